//! Subscribers against a server that publishes, damages and ends connections: each client comes back, at the
//! next endpoint, and logs what it noticed in order.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::process;
use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Response, Sys, Tables, Workers,
};
use load::publication::{Publication, encode};
use load::subscribers::{Event, Speech, SubscriberLog, Subscribers, Subscribing};
use load::{Growth, Retry};
use wire::websocket::OpCode;

struct Server {
    address: SocketAddr,
    workers: Workers<Post>,
}

enum Post {
    Publish {
        topic: u8,
        text: String,
    },
    /// Ends all connections without a close frame.
    End,
}

/// Connections of topics, by the last digit of the path.
struct Topics;

impl Server {
    fn start() -> Server {
        let listen = process::Listen {
            address: ([127, 0, 0, 1], 0).into(),
            backlog: 128,
            shared_port: false,
            defer: Duration::ZERO,
            v6_only: false,
        };
        let (listener, address) = process::listen(&listen).unwrap();
        let plan = Plan { workers: 1, accepting: 1, capacity: 100, tables: Tables::Private };
        let topics = |_, _: &_| Topics;
        let workers = Workers::start(plan, &Limits::default(), &[listener], topics).unwrap();
        Server { address, workers }
    }

    fn post(&self, post: Post) {
        self.workers.remote().post(0, post, 0).unwrap();
    }

    fn publish(&self, topic: u8, sequence: u32) {
        let text = encode(&Publication::new(7, sequence, process::now_ns()), 0);
        self.post(Post::Publish { topic, text });
    }
}

impl Handler for Topics {
    type User = u8;
    type Post = Post;

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming,
    ) -> Answer {
        let Some(name) = incoming.head.target.strip_prefix("/topics/t") else {
            return Answer::Respond(Response::text(404, "no such path\n"));
        };
        *core.user_mut(id).unwrap() = name.parse().unwrap();
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        for slot in 0..core.slots() {
            let Some(id) = core.id_at(slot) else { continue };
            match &post {
                Post::End => core.abort(id),
                Post::Publish { topic, text } => {
                    if core.user(id) == Some(topic) {
                        core.send(id, OpCode::Text, text.as_bytes());
                    }
                }
            }
        }
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..4_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not within 20 s: {what}");
}

fn settings(servers: &[&Server]) -> Subscribing {
    Subscribing {
        endpoints: servers.iter().map(|server| server.address).collect(),
        topics: vec!["t0".to_owned(), "t1".to_owned()],
        clients: 8,
        speech: Speech::Topics,
        retry: Retry {
            attempts: u32::MAX,
            base: Duration::from_millis(20),
            most: Duration::from_millis(100),
            growth: Growth::Doubling,
            reconnect: true,
        },
        connect_timeout: Duration::from_secs(5),
        events_max: 100,
    }
}

fn events(log: &SubscriberLog) -> Vec<Event> {
    assert!(log.records.is_sorted_by_key(|record| record.at_ns), "{log:?}");
    log.records.iter().map(|record| record.event).collect()
}

#[test]
fn clients_log_what_they_get_and_come_back_at_the_next_endpoint() {
    let (one, other) = (Server::start(), Server::start());
    let subscribers = Subscribers::start(settings(&[&one, &other])).unwrap();
    let counts = subscribers.counts();
    eventually("all are subscribed", || counts.subscribed() == 8);
    one.publish(0, 0);
    other.publish(0, 0);
    one.post(Post::Publish { topic: 1, text: "sf1 1 2 3 ffffffff".to_owned() });
    eventually("topic 0 has four clients", || counts.received() == 4);
    one.post(Post::End);
    eventually("the first server's clients have left", || counts.ended() == 4);
    eventually("all are subscribed again", || counts.subscribed() == 8);
    other.publish(0, 1);
    eventually("all four are at the other server", || counts.received() == 8);
    subscribers.drop_some(100, 1);
    eventually("all were dropped", || counts.ended() == 12);
    eventually("all are subscribed again", || counts.subscribed() == 8);
    let logs = subscribers.finish().unwrap();
    assert_eq!(logs.iter().map(|log| log.client).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    // Two topics, so clients 0, 1, 4 and 5 begin at the first endpoint.
    let received = |sequence| Event::Received { publisher: 7, sequence };
    let [gone, dropped] = [Closed::Gone, Closed::Aborted].map(|why| Event::Ended { why });
    let [first, second] = [0, 1].map(|endpoint| Event::Subscribed { endpoint });
    for log in &logs {
        let mut expected = match (log.client % 4, log.topic) {
            (0, 0) => vec![first, received(0), gone, second, received(1)],
            (1, 1) => vec![first, Event::Damaged, gone, second],
            (2, 0) => vec![second, received(0), received(1)],
            _ => vec![second],
        };
        expected.extend([dropped, first]);
        assert_eq!(events(log), expected, "client {}", log.client);
        assert_eq!(log.unlogged, 0);
    }
}

#[test]
fn what_is_beyond_the_log_is_counted() {
    let server = Server::start();
    let settings = Subscribing { clients: 1, events_max: 3, ..settings(&[&server]) };
    let subscribers = Subscribers::start(settings).unwrap();
    let counts = subscribers.counts();
    eventually("it is subscribed", || counts.subscribed() == 1);
    (0..5).for_each(|sequence| server.publish(0, sequence));
    eventually("all arrived", || counts.received() == 5);
    let logs = subscribers.finish().unwrap();
    assert_eq!((logs[0].records.len(), logs[0].unlogged), (3, 3));
}
