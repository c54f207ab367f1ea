//! Topics on one worker are served in turns: one with thousands of groups delays no other, each
//! subscriber gets what was published in its order, and nothing that was accepted is lost.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Worker};
use topics::{Directory, Memberships, Publication, Refused, Subscriber, Topics};
use wire::websocket::OpCode;

const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// Groups of the large topics.
const KINDS: u32 = 5_000;

#[derive(Default)]
struct User(Memberships);

impl Subscriber for User {
    type Mark = u16;

    fn memberships(&mut self) -> &mut Memberships {
        &mut self.0
    }
}

struct Post(Arc<Publication>);

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post(publication)
    }
}

struct Host {
    topics: Topics,
    ids: Vec<ConnId>,
    /// Topic, kind and publication, as they were encoded.
    encoded: Vec<(Arc<str>, u32, u32)>,
}

type Encoded = Vec<(Arc<str>, u32, u32)>;

fn encode(encoded: &mut Encoded, kind: u32, publication: &Publication, out: &mut Vec<u8>) {
    let number = u32::from_be_bytes(*publication.data.first_chunk().unwrap());
    encoded.push((Arc::clone(&publication.topic), kind, number));
    wire::websocket::encode(out, OpCode::Binary, &publication.data);
}

impl Handler for Host {
    type User = User;
    type Post = Post;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.ids.push(id);
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        self.topics.unsubscribe_all(core, id, |_| {});
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, Post(publication): Post) {
        let encoded = &mut self.encoded;
        self.topics.deliver(core, &publication, |_, kind, publication, out| {
            encode(encoded, kind, publication, out);
        });
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let encoded = &mut self.encoded;
        self.topics.turn(core, |_, kind, publication, out| encode(encoded, kind, publication, out))
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}

/// A worker with connections whose clients read everything.
struct Machine {
    kernel: Kernel,
    outside: Sim,
    clients: Vec<Fd>,
    worker: Worker<Sim, Host>,
    remote: Remote<Post>,
    directory: Directory,
    received: Vec<Vec<u8>>,
}

impl Machine {
    fn start(connections: usize) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let kernel = Kernel::new(1, (1 << 20, 1 << 20));
        let listener = kernel.listen(address, 64, 0);
        let seat = kernel.seat(100, &[listener]);
        let limits = Limits { send_queue_bytes: 64 << 20, idle_timeout: None, ..Limits::default() };
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let directory = Directory::new();
        let topics = Topics::new(0, directory.clone());
        let host = Host { topics, ids: Vec::new(), encoded: Vec::new() };
        let listeners = &seat.listeners;
        let mut worker =
            Worker::new(seat.sys, 0, limits, remote.clone(), listeners, 100, host).unwrap();
        remote.give_listener(0, 0);
        let mut outside = kernel.outside();
        let mut clients = Vec::new();
        while worker.handler().ids.len() < connections {
            if clients.len() == worker.handler().ids.len() {
                let client = outside.connect(address, None).unwrap();
                outside.send(client, HANDSHAKE).unwrap();
                clients.push(client);
            }
            worker.turn(Some(Duration::ZERO)).unwrap();
        }
        let received = vec![Vec::new(); connections];
        Machine { kernel, outside, clients, worker, remote, directory, received }
    }

    fn subscribe(&mut self, connection: usize, topic: &str, kind: u32) {
        let (host, core) = self.worker.parts();
        let id = host.ids[connection];
        assert!(host.topics.subscribe(core, id, topic, kind));
    }

    fn publish(&self, topic: &str, number: u32) -> Result<(), Refused> {
        let data = [&number.to_be_bytes()[..], topic.as_bytes()].concat().into();
        let publication = Arc::new(Publication::new(topic.into(), data, true));
        self.directory.publish(&self.remote, &publication).map(drop)
    }

    fn turn(&mut self) {
        self.worker.turn(Some(Duration::ZERO)).unwrap();
        let mut buffer = vec![0; 1 << 16];
        for (client, received) in self.clients.iter().zip(&mut self.received) {
            while let Ok(size @ 1..) = self.outside.recv(*client, &mut buffer) {
                received.extend_from_slice(&buffer[..size]);
            }
        }
    }

    fn is_idle(&mut self) -> bool {
        self.worker.deadline().is_none_or(|at_ns| at_ns > self.kernel.now_ns())
    }

    /// Turns until nothing is left to do.
    fn settle(&mut self) -> usize {
        (1..100_000)
            .find(|_| {
                self.turn();
                self.is_idle()
            })
            .expect("it comes to an end")
    }

    /// The messages of a connection from a topic: their numbers, in the order of their receipt.
    fn numbers(&self, connection: usize, topic: &str) -> Vec<u32> {
        let received = &self.received[connection];
        let head = received.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let (mut at, mut numbers) = (head, Vec::new());
        while at < received.len() {
            assert_eq!(received[at], 0x82);
            let end = at + 2 + usize::from(received[at + 1]);
            let payload = &received[at + 2..end];
            if &payload[4..] == topic.as_bytes() {
                numbers.push(u32::from_be_bytes(*payload.first_chunk().unwrap()));
            }
            at = end;
        }
        numbers
    }
}

#[test]
fn a_small_topic_is_delivered_in_a_turn_whatever_others_have_pending() {
    for (hogs, kinds) in [(1, KINDS), (3, KINDS), (40, 500)] {
        let mut machine = Machine::start(3);
        let names: Vec<String> = (0..hogs).map(|hog| format!("hog {hog}")).collect();
        for name in &names {
            for kind in 0..kinds {
                machine.subscribe(0, name, kind);
            }
        }
        machine.subscribe(1, "small", 0);
        machine.subscribe(2, "small", 0);
        machine.settle();
        for name in &names {
            for number in 0..4 {
                machine.publish(name, number).unwrap();
            }
        }
        // They all were idle at first.
        (0..hogs).for_each(|_| machine.turn());
        for number in 0..50 {
            machine.publish("small", number).unwrap();
            // Posts are taken in the first.
            machine.turn();
            let expected: Vec<u32> = (0..=number).collect();
            for connection in [1, 2] {
                assert_eq!(machine.numbers(connection, "small"), expected, "beside {hogs}");
            }
        }
        let encoded = machine.worker.handler().encoded.len();
        assert!(encoded < hogs * 4 * kinds as usize, "the others are behind all the time");
        machine.settle();
        for name in &names {
            let numbers = machine.numbers(0, name);
            assert_eq!(numbers.len(), 4 * kinds as usize);
        }
        assert_eq!(machine.directory.pending_bytes(), 0);
    }
}

#[test]
fn topics_that_are_behind_share_a_worker_evenly() {
    let mut machine = Machine::start(1);
    let names = ["few", "some", "many"];
    for (name, share) in names.into_iter().zip([1, 2, 5]) {
        for kind in 0..share * 1_000 {
            machine.subscribe(0, name, kind);
        }
    }
    machine.settle();
    for name in names {
        machine.publish(name, 0).unwrap();
    }
    let delivered = |machine: &Machine| names.map(|name| machine.numbers(0, name).len());
    while delivered(&machine).iter().sum::<usize>() < 2_400 {
        machine.turn();
    }
    let counts = delivered(&machine);
    let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
    assert!(most - least <= 32, "{counts:?}");
    machine.settle();
    assert_eq!(delivered(&machine), [1_000, 2_000, 5_000]);
}

#[test]
fn a_topic_that_is_behind_is_refused_alone_until_it_has_caught_up() {
    let mut machine = Machine::start(2);
    for kind in 0..KINDS {
        machine.subscribe(0, "hog", kind);
    }
    machine.subscribe(1, "small", 0);
    machine.settle();
    let accepted = (0..).take_while(|number| machine.publish("hog", *number).is_ok()).count();
    assert!((2..=100).contains(&accepted), "{accepted}");
    assert_eq!(machine.publish("hog", 0), Err(Refused::TopicOverloaded));
    assert_eq!(machine.publish("small", 0), Ok(()));
    // Far from done, but too old.
    machine.turn();
    machine.kernel.advance(1_100_000_000);
    machine.turn();
    assert_eq!(machine.publish("hog", 0), Err(Refused::TopicOverloaded));
    assert_eq!(machine.publish("small", 1), Ok(()));
    machine.settle();
    assert_eq!(machine.publish("hog", accepted as u32), Ok(()));
    machine.settle();
    assert_eq!(machine.numbers(0, "hog").len(), (accepted + 1) * KINDS as usize);
    assert_eq!(machine.numbers(1, "small"), [0, 1]);
}

#[test]
fn a_topic_is_late_until_what_is_too_old_is_delivered() {
    let mut machine = Machine::start(1);
    for kind in 0..KINDS {
        machine.subscribe(0, "hog", kind);
    }
    machine.settle();
    machine.publish("hog", 0).unwrap();
    machine.turn();
    assert_eq!(machine.publish("hog", 1), Ok(()), "it is not late");
    machine.kernel.advance(1_100_000_000);
    machine.turn();
    assert_eq!(machine.publish("hog", 2), Err(Refused::TopicOverloaded));
    // Its subscribers leave, and another comes.
    let (host, core) = machine.worker.parts();
    let id = host.ids[0];
    host.topics.unsubscribe_all(core, id, |_| {});
    machine.subscribe(0, "hog", 7);
    let before = machine.numbers(0, "hog").len();
    assert_eq!(machine.publish("hog", 3), Ok(()));
    machine.settle();
    let numbers = machine.numbers(0, "hog");
    assert_eq!(numbers[before..], [3]);
    assert_eq!(machine.directory.pending_bytes(), 0);
    assert!(machine.worker.handler().topics.accepts_posts());
}

/// Random subscriptions and publications: of each topic a group gets exactly what was published while it
/// existed, in that order.
#[test]
fn each_group_gets_what_was_published_while_it_existed_in_order() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let names = ["a", "b", "c", "d"];
    let mut machine = Machine::start(1);
    let mut held: Vec<(usize, u32, usize)> = Vec::new();
    let mut published: [Vec<u32>; 4] = Default::default();
    let mut checked = 0;
    let mut next_kind = 0;
    for number in 0..3_000u32 {
        let topic = random(4) as usize;
        match random(10) {
            0..4 => {
                for _ in 0..=random(if topic == 0 { 200 } else { 5 }) {
                    machine.subscribe(0, names[topic], next_kind);
                    held.push((topic, next_kind, published[topic].len()));
                    next_kind += 1;
                }
            }
            4..6 if !held.is_empty() => {
                for _ in 0..=random(40).min(held.len() as u64 - 1) {
                    let at = random(held.len() as u64) as usize;
                    let (topic, kind, _) = held.swap_remove(at);
                    let (host, core) = machine.worker.parts();
                    let id = host.ids[0];
                    assert!(host.topics.unsubscribe(core, id, names[topic], kind));
                }
            }
            6..9 => {
                // Delivered on this thread, as those of the worker's own clients are.
                let data = [&number.to_be_bytes()[..], b"x"].concat().into();
                let publication = Publication::new(names[topic].into(), data, true);
                let (host, core) = machine.worker.parts();
                let encoded = &mut host.encoded;
                let result =
                    host.topics.publish(core, &Arc::new(publication), |_, kind, p, out| {
                        encode(encoded, kind, p, out);
                    });
                if result.is_ok() {
                    published[topic].push(number);
                }
            }
            _ => machine.turn(),
        }
        if number % 500 == 499 {
            machine.settle();
            let mut got = vec![Vec::new(); next_kind as usize];
            for (_, kind, number) in &machine.worker.handler().encoded {
                got[*kind as usize].push(*number);
            }
            for (topic, kind, from) in &held {
                assert_eq!(got[*kind as usize], published[*topic][*from..], "{kind} of {topic}");
                checked += got[*kind as usize].len();
            }
        }
    }
    assert!(checked > 1_000, "{checked}");
    assert_eq!(machine.directory.pending_bytes(), 0);
}
