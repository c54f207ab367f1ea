//! Publishes the monotonic time to every connection, so many times a second:
//! `cargo run --release -p standfast-topics --example ticker -- 100`.
//! It prints its address as JSON and ends with its standard input.

use std::sync::Arc;
use std::time::Duration;

use engine::sys::process;
use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Remote, Sys, Tables, Workers,
};
use topics::{Directory, Memberships, Publication, Subscriber, Topics};
use wire::websocket::{OpCode, encode};

struct Ticker {
    topics: Topics,
    period_ns: u64,
    due_ns: u64,
}

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

fn as_text<C>(_: &mut C, _group: u32, publication: &Publication, out: &mut Vec<u8>) {
    encode(out, OpCode::Text, &publication.data);
}

impl Handler for Ticker {
    type User = User;
    type Post = Post;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        self.topics.subscribe(core, id, "time", 0);
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        self.topics.unsubscribe_all(core, id, |_| {});
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, Post(publication): Post) {
        self.topics.deliver(core, &publication, as_text);
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        if core.worker() == 0 && now_ns >= self.due_ns && self.topics.accepts_posts() {
            self.due_ns =
                self.due_ns.max(now_ns.saturating_sub(10 * self.period_ns)) + self.period_ns;
            let data = format!("{now_ns} ").into_bytes().into();
            let publication = Arc::new(Publication::new("time".into(), data, false));
            // A full mailbox skips a tick of the clock.
            let _ = self.topics.publish(core, &publication, as_text);
        }
        Some(self.topics.turn(core, as_text).unwrap_or(self.due_ns))
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}

fn main() -> std::io::Result<()> {
    process::tune_allocator();
    let rate: u64 = std::env::args().nth(1).and_then(|rate| rate.parse().ok()).unwrap_or(1);
    let address = ([127, 0, 0, 1], 0).into();
    let defer = Duration::from_secs(1);
    let listen =
        process::Listen { address, backlog: 4096, shared_port: true, defer, v6_only: false };
    let (listener, address) = process::listen(&listen)?;
    let plan = Plan { workers: 1, accepting: 1, capacity: 15_000, tables: Tables::Private };
    let directory = Directory::new();
    let handler = move |worker: u16, _: &Remote<Post>| Ticker {
        topics: Topics::new(worker, directory.clone()),
        period_ns: 1_000_000_000 / rate.max(1),
        due_ns: 0,
    };
    let workers = Workers::start(plan, &Limits::default(), &[listener], handler)?;
    println!("{{\"port\":{},\"pid\":{}}}", address.port(), std::process::id());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    workers.drain(Duration::ZERO)
}
