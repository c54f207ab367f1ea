//! Missed messages: requests for them by clients of the extended protocol, of `/events` and of `/topics`,
//! and sending them, a portion per turn and only as fast as each client reads.
//!
//! A subscription that is to get missed messages is on hold in its group until it has them
//! ([`topics::Topics::hold`]): then it continues without a gap or a repetition.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use action_cable::{Encoding, History, Message};
use engine::{ConnId, Core, Sys};
use topics::{Epoch, Position, Replayed, Start, Unavailable};
use wire::websocket::CloseCode;

use super::ServeHandler;
use crate::identifiers::{Form, Group};
use crate::log_events::Part;
use crate::protocols::{Events, encode};
use crate::session::SessionProtocol;

/// Bytes sent to one client before the next has its turn, and to all clients in one turn.
const PORTION_BYTES: usize = 128 * 1024;
const TURN_BYTES: usize = 1024 * 1024;
/// Clients that get a portion in one turn.
const PORTIONS_PER_TURN: usize = 64;
/// How long a resumed client has to request the messages that it missed. Then it gets those since it
/// resumed.
const REQUEST_NS: u64 = 10_000_000_000;

/// How long a client waits for a node that is behind the one that it comes from, and when that is looked at again.
const BEHIND_NS: u64 = 8_000_000_000;
const BEHIND_PAUSE_NS: u64 = 20_000_000;

/// What a client receives at the end of a replay, complete or not, by its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// Messages with this identifier.
    Cable(Arc<str>),
    /// Nothing, or an event.
    Events,
    /// Nothing, or a close frame.
    Plain,
}

/// A subscription on hold.
struct Replay {
    topic: Arc<str>,
    /// The number of its group.
    group: u32,
    /// The position of the next message.
    next: Position,
    /// Waits until this time for the client's request.
    until_ns: Option<u64>,
    /// Waits until this time for messages that the client has and this node has not, and when that is looked at.
    behind_until_ns: Option<u64>,
    looks_ns: u64,
    outcome: Outcome,
    /// The client receives a confirmation at the end.
    confirms: bool,
}

/// The subscriptions of a worker that are on hold.
#[derive(Default)]
pub(super) struct Replays {
    by_id: HashMap<ConnId, Vec<Replay>>,
    /// Connections whose turn comes; some have nothing on hold any more.
    ready: VecDeque<ConnId>,
    /// Connections that have resumed, and when they have to have requested messages.
    waiting: VecDeque<(u64, ConnId)>,
    /// Connections that this node is behind of, and when that is looked at.
    behind: VecDeque<(u64, ConnId)>,
}

impl Replays {
    fn add(&mut self, id: ConnId, replay: Replay) {
        let all = self.by_id.entry(id).or_default();
        all.retain(|other| other.group != replay.group || other.topic != replay.topic);
        match replay.until_ns {
            Some(until_ns) => self.waiting.push_back((until_ns, id)),
            None => self.ready.push_back(id),
        }
        all.push(replay);
    }

    /// The next position of a subscription on hold.
    fn held(&self, id: ConnId, group: u32, topic: &str) -> Option<Position> {
        let mut all = self.by_id.get(&id)?.iter();
        let found = all.find(|replay| replay.group == group && *replay.topic == *topic);
        found.map(|replay| replay.next)
    }

    /// Whether a subscription is sent messages that it has requested.
    fn sends(&self, id: ConnId, group: u32) -> bool {
        let mut all = self.by_id.get(&id).into_iter().flatten();
        all.any(|replay| replay.group == group && replay.until_ns.is_none())
    }

    /// Removes a subscription that has ended.
    pub(super) fn remove(&mut self, id: ConnId, group: u32) {
        if self.by_id.is_empty() {
            return;
        }
        if let Some(all) = self.by_id.get_mut(&id) {
            all.retain(|replay| replay.group != group);
            if all.is_empty() {
                self.remove_all(id);
            }
        }
    }

    /// The client is not told that it has all messages of a subscription: those of one stream are not kept.
    fn confirm_none(&mut self, id: ConnId, group: u32) {
        let all = self.by_id.get_mut(&id).into_iter().flatten();
        all.filter(|replay| replay.group == group).for_each(|replay| replay.confirms = false);
    }

    /// Removes all subscriptions of a connection.
    pub(super) fn remove_all(&mut self, id: ConnId) {
        if self.by_id.remove(&id).is_some() && self.by_id.is_empty() {
            self.by_id.shrink_to_fit();
        }
    }

    /// A connection has sent what waited. Returns whether there is more for it.
    pub(super) fn drained(&mut self, id: ConnId) -> bool {
        let more = !self.by_id.is_empty() && self.by_id.contains_key(&id);
        self.ready.extend(more.then_some(id));
        more
    }

    /// Lets those go on that have waited for a request for too long.
    fn end_waits(&mut self, now_ns: u64) {
        while let Some((until_ns, id)) = self.waiting.front().copied() {
            if until_ns > now_ns {
                return;
            }
            self.waiting.pop_front();
            let waits = self.by_id.get_mut(&id).into_iter().flatten();
            waits.for_each(|replay| replay.until_ns = None);
            self.drained(id);
        }
    }

    /// Lets those go on that have waited for this node for a moment.
    fn look_again(&mut self, now_ns: u64) {
        while let Some((looks_ns, id)) = self.behind.front().copied() {
            if looks_ns > now_ns {
                return;
            }
            self.behind.pop_front();
            self.drained(id);
        }
        self.behind.shrink_to(PORTIONS_PER_TURN);
    }

    /// Lets a client wait for messages that it has and this node has not. False if it has waited for long enough;
    /// while the broker is away it has not.
    fn wait_behind(
        &mut self,
        id: ConnId,
        group: u32,
        topic: &str,
        is_away: bool,
        now_ns: u64,
    ) -> bool {
        let mut all = self.by_id.get_mut(&id).into_iter().flatten();
        let found = all.find(|replay| replay.group == group && *replay.topic == *topic);
        let Some(replay) = found else { return false };
        if is_away {
            replay.behind_until_ns = None;
        }
        if now_ns >= *replay.behind_until_ns.get_or_insert(now_ns + BEHIND_NS) {
            return false;
        }
        replay.looks_ns = now_ns + BEHIND_PAUSE_NS;
        self.behind.push_back((replay.looks_ns, id));
        true
    }
}

/// As [`History::first`]. A client may come from a node that had more messages already than this one: it waits for
/// them.
fn first_missed(
    history: &topics::History,
    topic: &str,
    start: Start,
    now_ns: u64,
) -> Result<Position, Unavailable> {
    match (history.first(topic, start, now_ns), start) {
        (Err(Unavailable::Ahead), Start::After(position)) if history.is_replica() => {
            Ok(position.next())
        }
        (first, _) => first,
    }
}

impl ServeHandler {
    /// The group of a connection's subscription by an identifier.
    pub(super) fn cable_group<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        index: u32,
    ) -> Group {
        let (extended, messages) = core.user(id).map_or((false, Encoding::Json), |session| {
            (session.protocol() == SessionProtocol::CableExt, session.encoding())
        });
        // Events of presence are for the extended protocol only, too; in Protobuf all its messages differ.
        let differs = self.shared.history().is_some()
            || self.shared.presence.is_some()
            || self.shared.pubsub.is_some()
            || messages == Encoding::Protobuf;
        let form = match extended && differs {
            true => Form::CablePositions(index),
            false => Form::Cable(index),
        };
        Group { encoding: core.encoding(id), messages, form }
    }

    /// Executes the command `history`, or that part of a `subscribe`.
    pub(super) fn request_history<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: Cow<'_, str>,
        request: &History<'_>,
    ) {
        if self.shared.history().is_none() {
            self.shared.log_off(Part::History);
        }
        let Some((index, found)) = self.identifiers.find(&identifier) else {
            return self.reject_history(core, id, identifier, None);
        };
        let text = Arc::clone(found.text());
        let group = self.cable_group(core, id, index);
        let streams = self.streams_of(core, id, group.number());
        let subscribed = !streams.is_empty() || self.app_channel(id, &identifier).is_some();
        let positions = matches!(group.form, Form::CablePositions(_));
        let Some(history) = self.shared.history().filter(|_| subscribed && positions) else {
            return self.reject_history(core, id, identifier, None);
        };
        let group = group.number();
        let held: Vec<Option<Position>> =
            streams.iter().map(|topic| self.replays.held(id, group, topic)).collect();
        if self.replays.sends(id, group) {
            // Its answer follows; clients repeat what is not confirmed soon.
            return;
        }
        let now_ns = core.now_ns();
        let first = |(topic, held): (&Arc<str>, &Option<Position>)| {
            let position = request.streams.iter().find(|position| *position.stream_id == **topic);
            let start = match (position, request.since) {
                (Some(position), _) => {
                    let epoch = Epoch::parse(&position.epoch).ok_or(Unavailable::Epoch)?;
                    Start::After(Position { epoch, offset: position.offset })
                }
                (None, Some(since)) => Start::Since(self.shared.monotonic_ns(since)),
                // Nothing is requested.
                (None, None) => {
                    let end = || history.last(topic, now_ns).map(Position::next);
                    return held.or_else(end).ok_or(Unavailable::Evicted);
                }
            };
            first_missed(history, topic, start, now_ns)
        };
        let firsts: Result<Vec<Position>, _> = streams.iter().zip(&held).map(first).collect();
        match firsts {
            Ok(firsts) if firsts.is_empty() => {
                self.counters(core.worker()).history_confirmed.add(1);
                self.send_message(core, id, &Message::ConfirmHistory { identifier });
            }
            Ok(firsts) => {
                for (topic, next) in streams.iter().zip(firsts) {
                    let outcome = Outcome::Cable(Arc::clone(&text));
                    self.hold(core, id, topic, group, next, None, outcome);
                }
            }
            Err(why) => {
                self.replays.remove(id, group);
                for (topic, _) in streams.iter().zip(held).filter(|(_, held)| held.is_some()) {
                    self.topics.release(core, id, topic, group);
                }
                self.reject_history(core, id, identifier, Some(why));
            }
        }
    }

    /// The topics of a connection's groups with a number: one, or for a channel of an application any number.
    fn streams_of<S: Sys>(&self, core: &Core<S, Self>, id: ConnId, group: u32) -> Vec<Arc<str>> {
        let Some(session) = core.user(id) else { return Vec::new() };
        let groups = self.topics.groups_of(session.subscriptions());
        groups.filter(|(kind, ..)| *kind == group).map(|(_, topic, _)| topic.into()).collect()
    }

    /// Puts a subscription on hold, to be sent the messages from `next` on: soon, or by `until_ns` if the client
    /// does not request others before.
    #[expect(clippy::too_many_arguments, reason = "a subscription is named by three")]
    fn hold<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &Arc<str>,
        group: u32,
        next: Position,
        until_ns: Option<u64>,
        outcome: Outcome,
    ) {
        if self.topics.hold(core, id, topic, group) {
            let topic = Arc::clone(topic);
            let confirms = until_ns.is_none();
            let (behind_until_ns, looks_ns) = (None, 0);
            self.replays.add(
                id,
                Replay {
                    topic,
                    group,
                    next,
                    until_ns,
                    behind_until_ns,
                    looks_ns,
                    outcome,
                    confirms,
                },
            );
        }
    }

    /// Puts a resumed subscription on hold until the client requests messages.
    pub(super) fn await_history<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
    ) {
        let Some((index, found)) = self.identifiers.find(identifier) else { return };
        let text = Arc::clone(found.text());
        let group = self.cable_group(core, id, index).number();
        let now_ns = core.now_ns();
        for topic in self.streams_of(core, id, group) {
            let Some(history) = self.shared.history() else { return };
            let Some(next) = history.last(&topic, now_ns).map(Position::next) else { continue };
            let (until_ns, outcome) = (now_ns + REQUEST_NS, Outcome::Cable(Arc::clone(&text)));
            self.hold(core, id, &topic, group, next, Some(until_ns), outcome);
        }
    }

    /// Sends a client of `/events` or `/topics` the messages from a position on, and then further ones.
    pub(super) fn send_from<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &str,
        group: Group,
        next: Position,
    ) {
        let outcome = if group.form == Form::Event { Outcome::Events } else { Outcome::Plain };
        self.hold(core, id, &topic.into(), group.number(), next, None, outcome);
    }

    /// Where the messages begin that a client of `/events` or `/topics` requests by this text: Unix seconds,
    /// or a position as in the ids of events.
    ///
    /// # Errors
    /// They are not all available.
    pub(super) fn first_requested(
        &self,
        topic: &str,
        start: &str,
        now_ns: u64,
    ) -> Result<Position, Option<Unavailable>> {
        let Some(history) = self.shared.history() else { return Err(None) };
        let start = self.shared.start_of(start).ok_or(Some(Unavailable::Epoch))?;
        first_missed(history, topic, start, now_ns).map_err(Some)
    }

    /// Sends missed messages, a portion. Returns when to be called again.
    pub(super) fn send_missed<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let Replays { ready, waiting, behind, .. } = &self.replays;
        if ready.is_empty() && waiting.is_empty() && behind.is_empty() {
            return None;
        }
        let now_ns = core.now_ns();
        self.replays.end_waits(now_ns);
        self.replays.look_again(now_ns);
        let mut left = TURN_BYTES;
        for _ in 0..PORTIONS_PER_TURN {
            if left == 0 {
                break;
            }
            let Some(id) = self.replays.ready.pop_front() else { break };
            left = left.saturating_sub(self.send_portion(core, id));
        }
        if !self.replays.ready.is_empty() {
            return Some(now_ns);
        }
        self.replays.ready.shrink_to(PORTIONS_PER_TURN);
        let Replays { waiting, behind, .. } = &self.replays;
        waiting.front().into_iter().chain(behind.front()).map(|(due_ns, _)| *due_ns).min()
    }

    /// Whether a client has messages that this node has yet to receive.
    fn is_behind(&self, topic: &str, next: Position, now_ns: u64) -> bool {
        let history = self.shared.history().filter(|history| history.is_replica());
        let last = history.and_then(|history| history.last(topic, now_ns));
        last.is_some_and(|last| last.epoch == next.epoch && next.offset > last.next().offset)
    }

    /// Sends one connection a portion; returns about how many bytes.
    fn send_portion<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> usize {
        let (mut left, now_ns) = (PORTION_BYTES, core.now_ns());
        loop {
            let mut all = self.replays.by_id.get(&id).into_iter().flatten();
            let is_due = |replay: &Replay| replay.until_ns.is_none() && replay.looks_ns <= now_ns;
            let next = all.find(|replay| is_due(replay));
            let Some(replay) = next else { break };
            let (topic, group, next) = (Arc::clone(&replay.topic), replay.group, replay.next);
            let is_behind = self.is_behind(&topic, next, now_ns);
            if is_behind {
                let pubsub = self.shared.pubsub.as_ref();
                let is_away =
                    pubsub.is_some_and(|pubsub| !pubsub.broker.confirmed_or_await(&topic));
                if self.replays.wait_behind(id, group, &topic, is_away, now_ns) {
                    continue;
                }
            }
            let before = core.counters().messages_out.get();
            let identifiers = &self.identifiers;
            let encode = |core: &mut _, group, publication: &_, out: &mut _| {
                encode(identifiers, core, group, publication, out);
            };
            let replayed = if is_behind {
                self.topics.release(core, id, &topic, group);
                Err(Unavailable::Ahead)
            } else {
                self.topics.replay(core, id, &topic, group, next, &mut left, encode)
            };
            let messages = core.counters().messages_out.get() - before;
            self.counters(core.worker()).history_messages.add(messages);
            if let Ok(Replayed::More { next, waits }) = replayed {
                let all = self.replays.by_id.get_mut(&id).into_iter().flatten();
                let mut own = all.filter(|replay| replay.group == group && replay.topic == topic);
                own.by_ref().for_each(|replay| replay.next = next);
                if !waits {
                    self.replays.ready.push_back(id);
                }
                break;
            }
            let Some((outcome, confirms)) = self.end_replay(id, group, &topic) else { break };
            match replayed {
                Err(why) => self.replay_failed(core, id, &topic, group, outcome, why),
                Ok(_) if confirms => self.confirm_history(core, id, outcome),
                Ok(_) => {}
            }
        }
        PORTION_BYTES - left
    }

    /// A client does not get all that it has missed. If another epoch began while it was on hold, what is kept of that
    /// follows the gap, as the members of its group have got it meanwhile.
    fn replay_failed<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &Arc<str>,
        group: u32,
        outcome: Outcome,
        why: Unavailable,
    ) {
        let history = self.shared.history().filter(|_| why == Unavailable::Epoch);
        let renewed = history.and_then(|history| history.floor(topic, core.now_ns()));
        self.report_lost(core, id, topic, outcome.clone(), why, renewed);
        if let Some(floor) = renewed.filter(|_| outcome != Outcome::Plain) {
            self.hold(core, id, topic, group, floor.next(), None, outcome);
        }
        self.replays.confirm_none(id, group);
    }

    /// The application has ended a stream of a subscription.
    pub(super) fn stop_replay<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        group: u32,
        topic: &str,
    ) {
        if let Some((outcome, true)) = self.end_replay(id, group, topic) {
            self.confirm_history(core, id, outcome);
        }
    }

    fn confirm_history<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, outcome: Outcome) {
        self.counters(core.worker()).history_confirmed.add(1);
        if let Outcome::Cable(text) = outcome {
            let identifier = Cow::Borrowed(&*text);
            self.send_message(core, id, &Message::ConfirmHistory { identifier });
        }
    }

    /// Removes a replay; returns what the client receives, and whether it is due now: with the last of the streams
    /// of an identifier.
    fn end_replay(&mut self, id: ConnId, group: u32, topic: &str) -> Option<(Outcome, bool)> {
        let all = self.replays.by_id.get_mut(&id)?;
        let is = |replay: &Replay| replay.group == group && *replay.topic == *topic;
        let at = all.iter().position(is)?;
        let Replay { outcome, confirms, .. } = all.swap_remove(at);
        let confirms = confirms && all.iter().all(|replay| replay.group != group);
        if all.is_empty() {
            self.replays.remove_all(id);
        }
        Some((outcome, confirms))
    }

    /// Messages were evicted before the client had read that far, or their epoch has ended. It continues after the
    /// position `after`, or with what comes next.
    fn report_lost<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &str,
        outcome: Outcome,
        why: Unavailable,
        after: Option<Position>,
    ) {
        match outcome {
            Outcome::Cable(text) => self.reject_history(core, id, Cow::Borrowed(&*text), Some(why)),
            Outcome::Events => {
                let mut event = Vec::new();
                match after {
                    Some(_) => Events::reset(why.name(), after, &mut event),
                    None => self.put_reset(topic, Some(why), core.now_ns(), &mut event),
                }
                core.write(id, &event);
                self.count_unavailable(core.worker(), Some(why));
            }
            Outcome::Plain => {
                self.count_unavailable(core.worker(), Some(why));
                core.close(id, CloseCode::TRY_AGAIN_LATER, "missed messages are not kept any more");
            }
        }
    }

    /// Appends the event that tells a client of `/events` that messages are missing.
    pub(super) fn put_reset(
        &self,
        topic: &str,
        why: Option<Unavailable>,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) {
        let history = self.shared.history();
        let position = history.and_then(|history| history.last(topic, now_ns));
        Events::reset(why.map_or("off", Unavailable::name), position, out);
    }

    /// Counts a request for messages that are not available; `None`: there is no history.
    pub(super) fn count_unavailable(&self, worker: u16, why: Option<Unavailable>) {
        let counters = self.counters(worker);
        match why {
            Some(why) => counters.history_rejected[why as usize].add(1),
            None => counters.history_off.add(1),
        }
    }

    fn reject_history<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: Cow<'_, str>,
        why: Option<Unavailable>,
    ) {
        self.count_unavailable(core.worker(), why);
        self.send_message(core, id, &Message::RejectHistory { identifier });
    }
}
