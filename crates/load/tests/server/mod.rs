//! A server on the engine with a behaviour per path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::sys::process;
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Response, Sys};
use engine::{Tables, Workers};
use wire::websocket::{CloseCode, OpCode};

/// A running server on loopback; it ends with the test.
pub(crate) struct Server {
    pub(crate) port: u16,
    workers: Workers<Post>,
    received: Arc<AtomicU64>,
}

pub(crate) enum Post {
    /// Send a text to all, with the faults of the topic.
    Publish(String),
    /// Stop reading from the first connection, so that its pings are not answered.
    MuteOne,
}

impl Server {
    pub(crate) fn start() -> Server {
        let address = ([127, 0, 0, 1], 0).into();
        let listen = process::Listen {
            address,
            backlog: 1024,
            shared_port: false,
            defer: Duration::ZERO,
            v6_only: false,
        };
        let (listener, address) = process::listen(&listen).unwrap();
        let plan = Plan { workers: 1, accepting: 1, capacity: 2_000, tables: Tables::Private };
        let mut limits = Limits::default();
        limits.wire.message_bytes = 1 << 20;
        let received = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&received);
        let faults = move |_, _: &_| Faults { published: 0, received: Arc::clone(&counted) };
        let workers = Workers::start(plan, &limits, &[listener], faults).unwrap();
        Server { port: address.port(), workers, received }
    }

    /// Messages received so far, of all connections.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    pub(crate) fn publish(&self, text: String) {
        self.workers.remote().post(0, Post::Publish(text), 0).unwrap();
    }

    pub(crate) fn mute_one(&self) {
        self.workers.remote().post(0, Post::MuteOne, 0).unwrap();
    }
}

struct Faults {
    published: u32,
    received: Arc<AtomicU64>,
}

/// The behaviour and the state of a connection.
#[derive(Default)]
pub(crate) struct Peer {
    path: Path,
    messages: u32,
    held: Vec<u8>,
}

#[derive(Copy, Clone, Default)]
enum Path {
    #[default]
    Echo,
    Faults,
    Drops,
    Late,
    Closes,
    Topic,
}

impl Handler for Faults {
    type User = Peer;
    type Post = Post;

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming,
    ) -> Answer {
        let path = match incoming.head.target {
            "/echo" => Path::Echo,
            "/faults" => Path::Faults,
            "/drops" => Path::Drops,
            "/late" => Path::Late,
            "/closes" => Path::Closes,
            "/topic" => Path::Topic,
            _ => return Answer::Respond(Response::text(404, "no such path\n")),
        };
        if let Some(peer) = core.user_mut(id) {
            peer.path = path;
        }
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        let Some(peer) = core.user_mut(id) else { return };
        peer.messages += 1;
        self.received.fetch_add(1, Ordering::SeqCst);
        let number = peer.messages;
        let held = std::mem::take(&mut peer.held);
        match (peer.path, number) {
            (Path::Faults, 50) | (Path::Late, 20) => return peer.held = data.to_vec(),
            (Path::Closes, 50) => {
                core.close(id, CloseCode::INTERNAL, "");
                return;
            }
            (Path::Faults, 70) => data[10] ^= 1,
            (Path::Faults | Path::Drops, _) if number.is_multiple_of(100) => return,
            (Path::Faults, _) if number.is_multiple_of(101) => {
                core.send(id, opcode, data);
            }
            _ => {}
        }
        core.send(id, opcode, data);
        if !held.is_empty() {
            core.send(id, opcode, &held);
        }
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        let first = core.id_at(0);
        let text = match post {
            Post::MuteOne => return first.into_iter().for_each(|id| core.pause(id)),
            Post::Publish(text) => text,
        };
        for slot in 0..core.slots() {
            let Some(id) = core.id_at(slot) else { continue };
            let copies = match (slot, self.published) {
                (0, 0) => 0,
                (1, 1) => 2,
                _ => 1,
            };
            for _ in 0..copies {
                core.send(id, OpCode::Text, text.as_bytes());
            }
        }
        self.published += 1;
    }
}
