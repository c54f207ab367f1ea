//! Subscriptions that are sent what they missed: a portion in each turn, and only as fast as each client reads.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use engine::{ConnId, Core, Handler, Sys};
use topics::{History, Position, Replayed, Topics, Unavailable};

use crate::handler::{User, encode};

/// In the kind of a group: each message begins with its position.
pub(crate) const POSITIONS: u32 = 1 << 16;

/// Bytes sent to one socket before the next has its turn, and sockets that get some in one turn.
const PORTION_BYTES: usize = 128 * 1024;
const PORTIONS_PER_TURN: usize = 8;

/// A subscription that is sent what it missed. Until then it is on hold in its group.
pub(crate) struct Replay {
    pub(crate) id: ConnId,
    pub(crate) topic: Arc<str>,
    pub(crate) kind: u32,
    pub(crate) next: Position,
    /// It does not get all.
    pub(crate) why: Option<Unavailable>,
    /// What JavaScript's thread knows it by, where sockets are on other threads.
    pub(crate) ticket: u32,
}

/// Where the messages of a subscription begin, for a thread that has its socket. `kind` is [`POSITIONS`], or 0.
pub(crate) enum Beginning {
    /// With what was missed.
    At { kind: u32, next: Option<Position>, why: Option<Unavailable> },
    /// With what is published after the last position, if there is one.
    After { kind: u32, last: Option<Position> },
}

/// A subscription that was sent what it missed.
pub(crate) struct Sent {
    pub(crate) id: ConnId,
    pub(crate) topic: Arc<str>,
    pub(crate) ticket: u32,
    /// It did not get all.
    pub(crate) why: Option<Unavailable>,
    /// The position of the last message before what comes, if it is known.
    pub(crate) last: Option<Position>,
}

/// The subscriptions of a thread's sockets that are sent what they missed.
#[derive(Default)]
pub(crate) struct Replays {
    ready: VecDeque<Replay>,
    /// Those whose socket takes nothing now.
    waiting: HashMap<ConnId, Vec<Replay>>,
}

impl Replays {
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.waiting.is_empty()
    }

    /// A socket has sent what waited.
    pub(crate) fn drained(&mut self, id: ConnId) {
        if !self.waiting.is_empty() {
            self.ready.extend(self.waiting.remove(&id).into_iter().flatten());
        }
    }

    /// A subscription has ended.
    pub(crate) fn remove(&mut self, id: ConnId, topic: &str) {
        if self.is_empty() {
            return;
        }
        let is_other = |replay: &Replay| replay.id != id || *replay.topic != *topic;
        self.ready.retain(is_other);
        if let Some(all) = self.waiting.get_mut(&id) {
            all.retain(is_other);
            if all.is_empty() {
                self.waiting.remove(&id);
            }
        }
    }

    /// A socket has ended. Those that are ready are not found when their turn comes.
    pub(crate) fn remove_all(&mut self, id: ConnId) {
        if !self.waiting.is_empty() {
            self.waiting.remove(&id);
        }
    }

    /// Whether some are sent more in the next turn.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Ends a subscription; returns whether there was one.
    pub(crate) fn end_subscription<S: Sys, H: Handler<User = User>>(
        &mut self,
        core: &mut Core<S, H>,
        topics: &mut Topics,
        id: ConnId,
        topic: &str,
        has_history: bool,
    ) -> bool {
        let encoding = core.encoding(id);
        topics.catch_up(core, id);
        let was = topics.unsubscribe(core, id, topic, encoding);
        if !has_history {
            return was;
        }
        self.remove(id, topic);
        was || topics.unsubscribe(core, id, topic, encoding | POSITIONS)
    }

    /// Begins to send a subscription what it missed. Returns what it has been sent if that is all.
    pub(crate) fn begin<S: Sys, H: Handler<User = User>>(
        &mut self,
        core: &mut Core<S, H>,
        topics: &mut Topics,
        history: &History,
        replay: Replay,
    ) -> Option<Sent> {
        topics.hold(core, replay.id, &replay.topic, replay.kind);
        self.go_on(core, topics, history, replay)
    }

    /// Sends those that are ready a portion each. Returns whose they are, and which have been sent all.
    pub(crate) fn turn<S: Sys, H: Handler<User = User>>(
        &mut self,
        core: &mut Core<S, H>,
        topics: &mut Topics,
        history: &History,
    ) -> Vec<(ConnId, Option<Sent>)> {
        let mut all = Vec::new();
        for _ in 0..PORTIONS_PER_TURN.min(self.ready.len()) {
            let Some(replay) = self.ready.pop_front() else { break };
            if core.is_open(replay.id) {
                all.push((replay.id, self.go_on(core, topics, history, replay)));
            }
        }
        all
    }

    fn go_on<S: Sys, H: Handler<User = User>>(
        &mut self,
        core: &mut Core<S, H>,
        topics: &mut Topics,
        history: &History,
        replay: Replay,
    ) -> Option<Sent> {
        let Replay { id, ticket, .. } = replay;
        let topic = Arc::clone(&replay.topic);
        match send_portion(core, topics, history, replay) {
            Portion::Done(why, next) => {
                // The position of what was sent last.
                let last = Position { offset: next.offset.saturating_sub(1), ..next };
                return Some(Sent { id, topic, ticket, why, last: Some(last) });
            }
            Portion::More(replay, true) => self.waiting.entry(id).or_default().push(replay),
            Portion::More(replay, false) => self.ready.push_back(replay),
        }
        None
    }
}

/// How a replay goes on.
enum Portion {
    /// All is sent before this position.
    Done(Option<Unavailable>, Position),
    /// There is more, at once or when its socket takes something.
    More(Replay, bool),
}

/// Sends a portion of what a subscription missed.
fn send_portion<S: Sys, H: Handler<User = User>>(
    core: &mut Core<S, H>,
    topics: &mut Topics,
    history: &History,
    mut replay: Replay,
) -> Portion {
    let Replay { id, kind, next, .. } = replay;
    // Beside what waits already, a portion could exceed `maxBackpressure`.
    if core.queued(id) > 0 {
        return Portion::More(replay, true);
    }
    let (topic, mut left) = (Arc::clone(&replay.topic), PORTION_BYTES);
    match topics.replay(core, id, &topic, kind, next, &mut left, encode) {
        Ok(Replayed::Done(next)) => Portion::Done(replay.why, next),
        Ok(Replayed::More { next, waits }) => {
            replay.next = next;
            Portion::More(replay, waits)
        }
        Err(why) => {
            // What is kept of another epoch follows the gap; else what is published from now on.
            let floor = history.floor(&topic, core.now_ns());
            let renewed = floor.filter(|_| why == Unavailable::Epoch);
            if renewed.is_some_and(|_| topics.hold(core, id, &topic, kind)) {
                replay.next = renewed.map_or(next, Position::next);
                replay.why = replay.why.or(Some(why));
                return Portion::More(replay, false);
            }
            let last = history.last(&topic, core.now_ns());
            Portion::Done(Some(why), last.map_or(next, Position::next))
        }
    }
}
