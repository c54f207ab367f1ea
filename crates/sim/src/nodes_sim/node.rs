//! [`Node`]: the handler of a node's workers: topics over a broker, as `serve` does it.
//!
//! Clients send `S TOPIC` to subscribe, `U` to unsubscribe and `P` to publish. They get `C` and the number of a
//! baseline in the ledger when the subscription is confirmed, `U`, messages (`M` and their data), and `G` and a
//! time when something may be missing.

use std::sync::Arc;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Sys};
use topics::{Memberships, Publication, Subscriber, Topics};
use wire::websocket::{OpCode, encode};

use super::ledger::Ledger;
use super::pubsub::Pubsub;
use crate::ledger::Judge;

pub(crate) enum Post {
    Publication(Arc<Publication>),
    Confirmed(Arc<[u32]>),
}

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post::Publication(publication)
    }
}

#[derive(Default)]
pub(crate) struct User {
    memberships: Memberships,
    topic: u32,
}

impl Subscriber for User {
    type Mark = u16;

    fn memberships(&mut self) -> &mut Memberships {
        &mut self.memberships
    }
}

pub(crate) struct Node {
    ledger: Ledger,
    number: usize,
    topics: Topics,
    pubsub: Pubsub,
    filler_max: usize,
    /// Clients whose topic is not confirmed yet.
    awaiting: Vec<ConnId>,
}

impl Node {
    pub(crate) fn new(
        ledger: Ledger,
        number: usize,
        topics: Topics,
        pubsub: Pubsub,
        filler_max: usize,
    ) -> Self {
        Node { ledger, number, topics, pubsub, filler_max, awaiting: Vec::new() }
    }

    pub(crate) fn subscriptions(&self) -> u64 {
        self.topics.subscriptions()
    }

    /// Clients that wait for a confirmation.
    pub(crate) fn awaiting(&self) -> usize {
        self.awaiting.len()
    }

    /// Subscribes, or waits for the broker.
    fn subscribe<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let Some(topic) = core.user(id).map(|user| user.topic) else { return };
        let name = topic.to_string();
        if !self.pubsub.prepare(&name) {
            self.ledger.book().coverage.awaited += 1;
            return self.awaiting.push(id);
        }
        let baseline = self.ledger.book().confirm(topic);
        core.send(id, OpCode::Text, format!("C{baseline:08x}").as_bytes());
        let joined = self.topics.subscribe(core, id, &name, 0);
        let closed = !core.is_open(id);
        self.ledger.book().require(joined || closed, || format!("{id} could not subscribe"));
    }

    fn publish(&mut self, now_ns: u64, topic: u32, filler: usize) {
        publish(&self.ledger, &self.pubsub, self.number, now_ns, topic, filler);
    }
}

/// A node publishes.
pub(crate) fn publish(
    ledger: &Ledger,
    pubsub: &Pubsub,
    node: usize,
    now_ns: u64,
    topic: u32,
    filler: usize,
) {
    let mut book = ledger.book();
    let data = book.write(node, topic, filler);
    if pubsub.publish(&topic.to_string(), data) {
        book.accepted(now_ns, node, topic);
    } else {
        book.coverage.refused += 1;
    }
}

/// A publication as clients get it.
fn write<C>(_: &mut C, _: u32, publication: &Publication, out: &mut Vec<u8>) {
    let kind = if publication.gap { b"G" } else { b"M" };
    encode(out, OpCode::Text, &[&kind[..], &publication.data].concat());
}

impl Handler for Node {
    type User = User;
    type Post = Post;

    fn request<S: Sys>(
        &mut self,
        _: &mut Core<S, Self>,
        _: ConnId,
        _: &Incoming<'_, '_>,
    ) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        _: OpCode,
        data: &mut [u8],
    ) {
        let text = std::str::from_utf8(data).unwrap_or_default();
        let (what, rest) = text.split_at_checked(1).unwrap_or_default();
        match (what, rest.parse()) {
            ("S", Ok(topic)) => {
                if let Some(user) = core.user_mut(id) {
                    user.topic = topic;
                }
                self.subscribe(core, id);
            }
            ("P", Ok(topic)) => {
                let filler = core.random() as usize % (self.filler_max + 1);
                self.publish(core.now_ns(), topic, filler);
            }
            ("U", _) => {
                let Some(topic) = core.user(id).map(|user| user.topic) else { return };
                let left = self.topics.unsubscribe(core, id, &topic.to_string(), 0);
                self.ledger.book().require(left, || format!("{id} could not unsubscribe"));
                core.send(id, OpCode::Text, b"U");
            }
            _ => self.ledger.book().fail(format!("{id} sent {text:?}")),
        }
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        self.topics.unsubscribe_all(core, id, |_| {});
        self.awaiting.retain(|own| *own != id);
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        match post {
            Post::Publication(publication) => self.topics.deliver(core, &publication, write),
            Post::Confirmed(topics) => {
                let topic_of = |id: ConnId| core.user(id).map(|user| user.topic);
                let (ready, waiting) = std::mem::take(&mut self.awaiting)
                    .into_iter()
                    .partition(|id| topic_of(*id).is_none_or(|topic| topics.contains(&topic)));
                self.awaiting = waiting;
                let ready: Vec<ConnId> = ready;
                ready.into_iter().for_each(|id| self.subscribe(core, id));
            }
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        self.topics.turn(core, write)
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}
