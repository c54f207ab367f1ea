//! [`Server`]: the simulated server's handler: topics with a history, as a program would write it.
//!
//! Readers send `S` to subscribe, `R EPOCH OFFSET` to subscribe after a position, `U` to unsubscribe, `P` to
//! publish. They get `C OFFSET` (messages after it come), `H` (those after the requested position come),
//! `G OFFSET` (a gap: those after this one come), `U`, and messages: `M EPOCH OFFSET` and their data.

use std::sync::Arc;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sys};
use topics::{
    Directory, Epoch, History, Memberships, Position, Publication, Replayed, Start, Subscriber,
    Topics, Unavailable,
};
use wire::websocket::{OpCode, encode};

use super::ledger::Ledger;
use super::scenario::Scenario;
use crate::ledger::Judge;

/// A publication for a worker.
pub(crate) struct Post(Arc<Publication>);

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post(publication)
    }
}

#[derive(Default)]
pub(crate) struct User {
    memberships: Memberships,
    topic: u32,
    /// Half of the readers of a topic are in a group of their own.
    kind: u32,
}

impl Subscriber for User {
    type Mark = u16;

    fn memberships(&mut self) -> &mut Memberships {
        &mut self.memberships
    }
}

/// A reader that is sent messages from the history.
struct Replay {
    id: ConnId,
    next: Position,
    /// Its socket takes nothing now.
    waits: bool,
}

pub(crate) struct Server {
    ledger: Ledger,
    topics: Topics,
    directory: Directory,
    history: Arc<History>,
    replays: Vec<Replay>,
    portion: usize,
    filler_max: usize,
}

impl Server {
    pub(crate) fn new(
        ledger: Ledger,
        index: u16,
        directory: Directory,
        history: Arc<History>,
        scenario: &Scenario,
    ) -> Self {
        let topics = Topics::new(index, directory.clone());
        let (portion, filler_max) = (scenario.portion, scenario.filler_max);
        Server { ledger, topics, directory, history, replays: Vec::new(), portion, filler_max }
    }

    pub(crate) fn subscriptions(&self) -> u64 {
        self.topics.subscriptions()
    }

    /// Readers that are not sent everything yet.
    pub(crate) fn replaying(&self) -> usize {
        self.replays.len()
    }

    fn subscribe<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, on: &str, kind: u32) {
        let joined = self.topics.subscribe(core, id, on, kind);
        self.ledger.book().require(joined, || format!("{id} could not subscribe"));
    }

    /// Subscribes after a position, if what comes after it is there.
    fn resume<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, position: Position) {
        let Some((topic, kind)) = core.user(id).map(|user| (user.topic, user.kind)) else { return };
        let name = topic.to_string();
        match self.history.first(&name, Start::After(position), core.now_ns()) {
            Ok(next) => {
                self.ledger.book().returns(topic, position.offset);
                say(core, id, "H");
                self.subscribe(core, id, &name, kind);
                let held = self.topics.hold(core, id, &name, kind);
                self.ledger.book().require(held, || format!("{id} could not be held"));
                self.replays.push(Replay { id, next, waits: false });
            }
            Err(why) => {
                self.tell_gap(core, id, topic, position, why);
                self.subscribe(core, id, &name, kind);
            }
        }
    }

    fn tell_gap<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: u32,
        position: Position,
        why: Unavailable,
    ) {
        let now_ns = core.now_ns();
        self.ledger.book().gap(topic, position.epoch, position.offset, why, now_ns);
        let last = self.history.last(&topic.to_string(), now_ns).map_or(0, |last| last.offset);
        say(core, id, &format!("G{last:016x}"));
    }

    /// Sends a portion to each reader that takes one.
    fn send_missed<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let mut kept = Vec::new();
        for mut replay in std::mem::take(&mut self.replays) {
            if replay.waits {
                kept.push(replay);
                continue;
            }
            let id = replay.id;
            let Some((topic, kind)) = core.user(id).map(|user| (user.topic, user.kind)) else {
                continue;
            };
            let (name, mut left) = (topic.to_string(), self.portion);
            let replayed = self.topics.replay(core, id, &name, kind, replay.next, &mut left, write);
            match replayed {
                Ok(Replayed::Done(_)) => {}
                Ok(Replayed::More { next, waits }) => {
                    self.ledger.book().coverage.portions += 1;
                    (replay.next, replay.waits) = (next, waits);
                    kept.push(replay);
                }
                Err(why) => {
                    self.ledger.book().coverage.overtaken += 1;
                    // Without the portions before, it would be that of the last one.
                    let offset = replay.next.offset - 1;
                    let position = Position { offset, ..replay.next };
                    self.tell_gap(core, id, topic, position, why);
                }
            }
        }
        self.replays = kept;
        self.replays.iter().any(|replay| !replay.waits).then(|| core.now_ns())
    }

    fn publish<S: Sys>(&mut self, core: &mut Core<S, Self>, topic: u32) {
        let filler = core.random() as usize % self.filler_max;
        let publication = self.ledger.book().write(topic, filler, core.now_ns());
        let publication = Arc::new(publication);
        let kept_at = self.ledger.book().kept_at(topic, &publication);
        let published = match kept_at {
            Some(at) => self.directory.publish_kept(core.remote(), &publication, at).map(|_| ()),
            None => self.topics.publish(core, &publication, write),
        };
        if published.is_ok() {
            self.ledger.book().published(topic, &publication);
        }
    }
}

/// Sends a text that is no message.
fn say<S: Sys>(core: &mut Core<S, Server>, id: ConnId, text: &str) {
    core.send(id, OpCode::Text, text.as_bytes());
}

/// A message as readers get it.
fn write<C>(_: &mut C, _: u32, publication: &Publication, out: &mut Vec<u8>) {
    let Some(Position { epoch, offset }) = publication.position() else { return };
    let head = format!("M{epoch}{offset:016x}");
    encode(out, OpCode::Text, &[head.as_bytes(), &publication.data].concat());
}

impl Handler for Server {
    type User = User;
    type Post = Post;

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        let mut parts = request.head.target.split('/').skip(1).map(str::parse);
        let (Some(Ok(topic)), Some(Ok(kind))) = (parts.next(), parts.next()) else {
            return Answer::Respond(Response::text(404, "nothing here\n"));
        };
        if let Some(user) = core.user_mut(id) {
            (user.topic, user.kind) = (topic, kind);
        }
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
        let Some((topic, kind)) = core.user(id).map(|user| (user.topic, user.kind)) else { return };
        let name = topic.to_string();
        match &*data {
            b"S" => {
                let last = self.history.last(&name, core.now_ns()).map_or(0, |last| last.offset);
                say(core, id, &format!("C{last:016x}"));
                self.subscribe(core, id, &name, kind);
            }
            b"U" => {
                let left = self.topics.unsubscribe(core, id, &name, kind);
                self.ledger.book().require(left, || format!("{id} could not unsubscribe"));
                self.replays.retain(|replay| replay.id != id);
                say(core, id, "U");
            }
            b"P" => self.publish(core, topic),
            _ => match position_of(data) {
                Some(position) => self.resume(core, id, position),
                None => self.ledger.book().fail(format!("{id} sent {data:?}")),
            },
        }
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        self.topics.unsubscribe_all(core, id, |_| {});
        self.replays.retain(|replay| replay.id != id);
    }

    fn drained<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        let own = self.replays.iter_mut().filter(|replay| replay.id == id);
        own.for_each(|replay| replay.waits = false);
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, Post(publication): Post) {
        self.topics.deliver(core, &publication, write);
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let missed = self.send_missed(core);
        let sweep = self.topics.turn(core, write);
        [missed, sweep].into_iter().flatten().min()
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}

/// The position in an `R` or an `M`, after which there may be more.
pub(crate) fn position_of(data: &[u8]) -> Option<Position> {
    let (epoch, offset) = (data.get(1..9)?, data.get(9..25)?);
    let epoch = Epoch::parse(std::str::from_utf8(epoch).ok()?)?;
    let offset = u64::from_str_radix(std::str::from_utf8(offset).ok()?, 16).ok()?;
    Some(Position { epoch, offset })
}
