//! A topic with ten thousand groups on one worker: publications are encoded in portions, in order,
//! for the subscribers at the time, also while clients subscribe and unsubscribe.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Sys, process};
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Worker};
use topics::{Directory, Memberships, Publication, Subscriber, Topics};
use wire::websocket::OpCode;

const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const KINDS: u32 = 10_000;
/// Most groups for which a worker encodes at once.
const PORTION: usize = 64;
/// Most groups for which it encodes in one turn.
const TURN: usize = 256;

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
    id: Option<ConnId>,
    /// Kind and publication, as they were encoded.
    encoded: Vec<(u32, u8)>,
}

fn encode(encoded: &mut Vec<(u32, u8)>, kind: u32, publication: &Publication, out: &mut Vec<u8>) {
    encoded.push((kind, publication.data[0]));
    out.extend_from_slice(&[0x81, 1, publication.data[0]]);
}

impl Handler for Host {
    type User = User;
    type Post = Post;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.id = Some(id);
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
}

/// A worker with one connection.
fn start() -> (Worker<Sim, Host>, ConnId) {
    let address = SocketAddr::from(([127, 0, 0, 1], 80));
    let kernel = Kernel::new(1, (64 * 1024, 64 * 1024));
    let listener = kernel.listen(address, 64, 0);
    let seat = kernel.seat(100, &[listener]);
    let limits = Limits { send_queue_bytes: 16 << 20, ..Limits::default() };
    let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
    let topics = Topics::new(0, Directory::new());
    let host = Host { topics, id: None, encoded: Vec::new() };
    let listeners = &seat.listeners;
    let mut worker =
        Worker::new(seat.sys, 0, limits, remote.clone(), listeners, 100, host).unwrap();
    remote.give_listener(0, 0);
    let mut outside = kernel.outside();
    let client = outside.connect(address, None).unwrap();
    outside.send(client, HANDSHAKE).unwrap();
    while worker.handler().id.is_none() {
        worker.turn(Some(Duration::ZERO)).unwrap();
    }
    let id = worker.handler().id.unwrap();
    (worker, id)
}

#[test]
fn publications_reach_ten_thousand_groups_in_portions() {
    let (mut worker, id) = start();
    let (host, core) = worker.parts();
    let began_ns = process::now_ns();
    for kind in 0..KINDS {
        assert!(host.topics.subscribe(core, id, "news", kind));
    }
    println!("{KINDS} groups of one topic in {} ms", (process::now_ns() - began_ns) / 1_000_000);
    for number in 0..2 {
        host.post(core, Post(Arc::new(Publication::new("news".into(), [number].into(), false))));
    }
    assert_eq!(host.encoded.len(), PORTION, "one portion, and the second publication waits");
    // Remove the next in line, the last in line and one that has the first publication; add two.
    let next = PORTION as u32;
    let first: Vec<(u32, u8)> = (0..next).map(|kind| (kind, 0)).collect();
    assert_eq!(host.encoded, first, "the oldest group gets it first");
    for kind in [next, KINDS - 1, 0] {
        assert!(host.topics.unsubscribe(core, id, "news", kind));
    }
    assert!(host.topics.subscribe(core, id, "news", KINDS));
    assert!(host.topics.subscribe(core, id, "news", 0), "subscribes again");
    let mut turns = 0;
    loop {
        let before = worker.handler().encoded.len();
        worker.turn(Some(Duration::ZERO)).unwrap();
        let now = worker.handler().encoded.len();
        assert!(now - before <= TURN, "{} at once", now - before);
        turns += 1;
        if now == before {
            break;
        }
    }
    assert!(turns > 2 * (KINDS as usize - PORTION) / TURN, "{turns}");
    let encoded = std::mem::take(&mut worker.parts().0.encoded);
    let mut got = vec![Vec::new(); KINDS as usize + 1];
    for (kind, publication) in encoded {
        got[kind as usize].push(publication);
    }
    for (kind, got) in got.into_iter().enumerate() {
        let expected: &[u8] = match kind as u32 {
            KINDS => &[],
            gone if gone == next || gone == KINDS - 1 => &[],
            0 => &[0],
            _ => &[0, 1],
        };
        assert_eq!(got, expected, "{kind}");
    }
    let (host, core) = worker.parts();
    host.topics.unsubscribe_all(core, id, |_| {});
    assert_eq!(host.topics.subscriptions(), 0);
}

/// While much waits for slow consumers, a publication is not encoded thousands of times at once.
#[test]
fn large_publications_are_not_encoded_for_all_groups_at_once() {
    let (mut worker, id) = start();
    let (host, core) = worker.parts();
    for kind in 0..1_000 {
        host.topics.subscribe(core, id, "news", kind);
    }
    let large = Arc::new(Publication::new("news".into(), vec![b'x'; 64].into(), false));
    let mut encodes = 0;
    host.topics.deliver(core, &large, |_, _, _, out| {
        encodes += 1;
        out.resize(64 * 1024, b'x');
    });
    assert!(encodes <= 5, "{encodes} copies of 64 KiB");
    let mut most = 0;
    for _ in 0..100 {
        let mut now = 0;
        host.topics.turn(core, |_, _, _, out| {
            now += 1;
            out.resize(64 * 1024, b'x');
        });
        most = most.max(now);
        encodes += now;
    }
    assert!(most <= 65 && (100..=1_000).contains(&encodes), "{most} at once of {encodes}");
}
