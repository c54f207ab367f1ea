//! With `--pubsub` or Rails' streams: what waits until the broker has confirmed a topic. Nothing is subscribed or answered before
//! that, so a client that is confirmed misses nothing from then on.
//!
//! A command or an answer of the application is held and executed again when the topic is confirmed; a handshake
//! is answered then. What is not confirmed in time is refused.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use action_cable::{History, Message, Position, Presence};
use engine::{Answer, ConnId, Core, Sys};

use super::handshake::unavailable;
use super::restore::Restoring;
use super::{PendingOpen, ServeHandler};
use crate::app::decision::Publishing;
use crate::app::{Answered, Failure};
use crate::auth::TokenIdentity;
use crate::confirmation::Confirmation;
use crate::protocols::Command;

/// Held commands and handshakes that go on in one turn.
const RESUMED_PER_TURN: usize = 256;
/// Memory of one that is held beyond its texts, in bytes.
const HELD_BYTES: usize = 192;
/// Time beyond that of the broker after which the engine gives a handshake up: its answer is on the way then.
const GRACE_NS: u64 = 5_000_000_000;

/// What one worker holds.
pub(super) struct Awaiting {
    confirmation: Arc<Confirmation>,
    /// With the time at which each is refused, oldest first.
    by_topic: HashMap<Arc<str>, VecDeque<(u64, Held)>>,
    /// When to look for what is to be refused, by topic, oldest first.
    order: VecDeque<(u64, Arc<str>)>,
    /// Subscribes held of each connection.
    commands: HashMap<ConnId, HeldBy>,
    /// Handshakes, until they are answered, and whether their topic is confirmed.
    handshakes: HashMap<ConnId, (Handshake, Option<bool>)>,
    /// What goes on now, and whether its topic is confirmed.
    ready: VecDeque<(Held, bool)>,
    /// The number of the next subscribe.
    next: u64,
}

/// What is held of one connection. A subscribe that is not wanted any more counts until its entry has gone, so
/// that nobody fills memory by changing one's mind.
#[derive(Default)]
struct HeldBy {
    wanted: HashMap<Arc<str>, Subscribe>,
    entries: usize,
    bytes: usize,
}

/// A subscribe, with what it asks for.
struct Subscribe {
    /// Differs from that of an earlier one by the same identifier.
    number: u64,
    history: Option<History<'static>>,
    presence: Option<(Box<str>, Option<Box<str>>)>,
    /// Memory of these texts.
    bytes: usize,
}

enum Held {
    Subscribe { id: ConnId, identifier: Arc<str>, number: u64 },
    Answered(Box<Answered>),
    Handshake(ConnId),
}

/// The subscription that a handshake asks for.
pub(super) enum Handshake {
    Topic {
        name: Box<str>,
        identity: Option<TokenIdentity>,
        since: Option<Box<str>>,
        publishing: Publishing,
    },
    Events {
        topic: Box<str>,
        identity: Option<TokenIdentity>,
        start: Option<Box<str>>,
        origin: Option<Box<str>>,
    },
    /// A session that the store of the nodes may have, of either kind.
    Session(Box<Restoring>),
}

/// What is held without a topic: handshakes that the store is asked for. No topic has this name.
const NO_TOPIC: &str = "";

impl Awaiting {
    pub(super) fn new(confirmation: Arc<Confirmation>) -> Self {
        Awaiting {
            confirmation,
            by_topic: HashMap::new(),
            order: VecDeque::new(),
            commands: HashMap::new(),
            handshakes: HashMap::new(),
            ready: VecDeque::new(),
            next: 0,
        }
    }

    fn timeout_ns(&self) -> u64 {
        u64::try_from(self.confirmation.timeout().as_nanos()).unwrap_or(u64::MAX / 2)
    }

    fn hold(&mut self, now_ns: u64, topic: &str, held: Held) {
        let topic: Arc<str> = topic.into();
        let until_ns = now_ns.saturating_add(self.timeout_ns());
        self.order.push_back((until_ns, Arc::clone(&topic)));
        self.by_topic.entry(topic).or_default().push_back((until_ns, held));
    }

    /// A topic is confirmed.
    fn confirmed(&mut self, topic: &str) {
        let held = self.by_topic.remove(topic).unwrap_or_default();
        self.ready.extend(held.into_iter().map(|(_, held)| (held, true)));
        if self.by_topic.is_empty() {
            (self.by_topic, self.order) = Default::default();
        }
    }

    /// Refuses what has been held for too long.
    fn expire(&mut self, now_ns: u64) {
        while self.order.front().is_some_and(|(until_ns, _)| *until_ns <= now_ns) {
            let Some((_, topic)) = self.order.pop_front() else { return };
            let Some(held) = self.by_topic.get_mut(&topic) else { continue };
            let late = held.partition_point(|(until_ns, _)| *until_ns <= now_ns);
            self.ready.extend(held.drain(..late).map(|(_, held)| (held, false)));
            if held.is_empty() {
                self.by_topic.remove(&topic);
            }
        }
    }

    /// Forgets a connection that has ended. Returns its handshake.
    fn remove_all(&mut self, id: ConnId) -> Option<Handshake> {
        self.commands.remove(&id);
        self.handshakes.remove(&id).map(|(handshake, _)| handshake)
    }

    /// The handshake of a client whose session the store is asked for.
    pub(super) fn restoring(&mut self, id: ConnId) -> Option<&mut Restoring> {
        match self.handshakes.get_mut(&id) {
            Some((Handshake::Session(restoring), _)) => Some(restoring),
            _ => None,
        }
    }

    /// The store has answered: the handshake can go on.
    pub(super) fn restored(&mut self, id: ConnId) {
        if let Some((_, confirmed)) = self.handshakes.get_mut(&id) {
            *confirmed = Some(true);
        }
    }

    /// Holds the handshake of a client until the store has answered. Returns how long it may take.
    pub(super) fn hold_session(&mut self, now_ns: u64, id: ConnId, restoring: Restoring) -> u64 {
        self.hold(now_ns, NO_TOPIC, Held::Handshake(id));
        self.handshakes.insert(id, (Handshake::Session(Box::new(restoring)), None));
        self.timeout_ns().saturating_add(GRACE_NS)
    }

    /// No subscription by this identifier is wanted any more.
    fn remove(&mut self, id: ConnId, identifier: &str) {
        if let Some(held_by) = self.commands.get_mut(&id)
            && let Some(removed) = held_by.wanted.remove(identifier)
        {
            held_by.bytes = held_by.bytes.saturating_sub(removed.bytes);
        }
    }

    /// The entry of a subscribe has gone. Returns what it asks for, if it is still wanted.
    fn take(&mut self, id: ConnId, identifier: &str, number: u64) -> Option<Subscribe> {
        let held_by = self.commands.get_mut(&id)?;
        held_by.entries = held_by.entries.saturating_sub(1);
        held_by.bytes = held_by.bytes.saturating_sub(HELD_BYTES + identifier.len());
        let is_same = held_by.wanted.get(identifier).is_some_and(|own| own.number == number);
        let taken = if is_same { held_by.wanted.remove(identifier) } else { None };
        let texts = taken.as_ref().map_or(0, |taken| taken.bytes);
        held_by.bytes = held_by.bytes.saturating_sub(texts);
        if held_by.entries == 0 {
            self.commands.remove(&id);
        }
        taken
    }
}

impl ServeHandler {
    /// Whether the broker has confirmed a topic, if there is one.
    pub(super) fn is_confirmed(&self, topic: &str) -> bool {
        self.awaiting.as_ref().is_none_or(|awaiting| awaiting.confirmation.prepare(topic))
    }

    /// Whether there are brokers that confirm topics.
    pub(super) fn awaits_brokers(&self) -> bool {
        self.awaiting.is_some()
    }

    /// Whether a subscribe of a connection by this identifier is held.
    pub(super) fn is_held(&self, id: ConnId, identifier: &str) -> bool {
        let held_by = self.awaiting.as_ref().and_then(|awaiting| awaiting.commands.get(&id));
        held_by.is_some_and(|held_by| held_by.wanted.contains_key(identifier))
    }

    /// Memory and number of the subscribes that are held of a connection, those that it has taken back included.
    pub(super) fn held_commands(&self, id: ConnId) -> (usize, usize) {
        let held_by = self.awaiting.as_ref().and_then(|awaiting| awaiting.commands.get(&id));
        held_by.map_or((0, 0), |held_by| (held_by.bytes, held_by.entries))
    }

    /// A subscribe that is held is not wanted any more.
    pub(super) fn unhold(&mut self, id: ConnId, identifier: &str) {
        if let Some(awaiting) = &mut self.awaiting {
            awaiting.remove(id, identifier);
        }
    }

    /// Nothing of a connection is held any more.
    pub(super) fn unhold_all(&mut self, id: ConnId) {
        let handshake = self.awaiting.as_mut().and_then(|awaiting| awaiting.remove_all(id));
        if let Some(Handshake::Session(restoring)) = handshake {
            self.give_up(id, *restoring);
        }
    }

    /// Holds a subscribe until its topic is confirmed. Returns `false` if its texts are too long for that.
    pub(super) fn hold_subscribe<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        topic: &str,
        identifier: &str,
        history: Option<&History<'_>>,
        presence: Option<&Presence<'_>>,
    ) -> bool {
        let bytes = history.map_or(0, history_bytes) + presence.map_or(0, presence_bytes);
        let held = self.held_commands(id).0 + HELD_BYTES + identifier.len() + bytes;
        let Some(awaiting) = &mut self.awaiting else { return false };
        if held > self.policy.channels.max_subscription_bytes {
            return false;
        }
        let identifier: Arc<str> = identifier.into();
        let history = history.map(owned);
        let presence = presence.map(|one| ((&*one.id).into(), one.info.map(Into::into)));
        let number = awaiting.next;
        awaiting.next += 1;
        let held_by = awaiting.commands.entry(id).or_default();
        held_by.entries += 1;
        held_by.bytes = held;
        let subscribe = Subscribe { number, history, presence, bytes };
        held_by.wanted.insert(Arc::clone(&identifier), subscribe);
        awaiting.hold(core.now_ns(), topic, Held::Subscribe { id, identifier, number });
        true
    }

    /// Holds an answer of the application until the streams in it are confirmed. Returns it if they are.
    pub(super) fn hold_answer<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        answered: Answered,
    ) -> Option<Answered> {
        let Some(awaiting) = &mut self.awaiting else { return Some(answered) };
        let streams = answered.outcome.as_ref().map_or(&[][..], |reply| &reply.streams);
        let open = streams.iter().find(|stream| !awaiting.confirmation.prepare(stream)).cloned();
        match open {
            None => Some(answered),
            Some(stream) => {
                awaiting.hold(core.now_ns(), &stream, Held::Answered(Box::new(answered)));
                None
            }
        }
    }

    /// Answers a handshake now, or when its topic is confirmed.
    pub(super) fn open_confirmed<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        handshake: Handshake,
    ) -> Answer {
        let open = match &handshake {
            Handshake::Topic { name: topic, .. } | Handshake::Events { topic, .. } => {
                (!self.is_confirmed(topic)).then(|| topic.clone())
            }
            Handshake::Session(restoring) => self.awaited_topic(core, restoring),
        };
        let (Some(topic), Some(awaiting)) = (open, &mut self.awaiting) else {
            return self.open_handshake(core, id, handshake);
        };
        let now_ns = core.now_ns();
        awaiting.hold(now_ns, &topic, Held::Handshake(id));
        awaiting.handshakes.insert(id, (handshake, None));
        Answer::LaterWithin(awaiting.timeout_ns().saturating_add(GRACE_NS))
    }

    fn open_handshake<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        handshake: Handshake,
    ) -> Answer {
        match handshake {
            Handshake::Events { topic, identity, start, origin } => {
                let (start, origin) = (start.as_deref(), origin.as_deref());
                self.open_events(core, id, &topic, identity.as_ref(), start, origin)
            }
            Handshake::Topic { name, identity, since, publishing } => {
                let first = match self.first_missed(core, &name, since.as_deref()) {
                    Ok(first) => first,
                    Err(refused) => return refused,
                };
                self.pending_open = Some(PendingOpen::Topic { name, identity, first, publishing });
                Answer::Upgrade(None)
            }
            Handshake::Session(restoring) => self.open_restoring(core, id, *restoring),
        }
    }

    /// The late answer to a handshake that was held; `None` if it is not one.
    pub(super) fn answer_held<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
    ) -> Option<Answer> {
        let awaiting = self.awaiting.as_mut()?;
        let (handshake, confirmed) = awaiting.handshakes.remove(&id)?;
        if confirmed == Some(true) {
            return Some(self.open_confirmed(core, id, handshake));
        }
        if let Handshake::Session(restoring) = handshake {
            return Some(self.open_anew(core, id, *restoring));
        }
        awaiting.confirmation.count_unconfirmed();
        let why = "The subscription was not confirmed in time: try again.\n";
        Some(unavailable(why, core.random()))
    }

    /// The broker has confirmed topics.
    pub(super) fn topics_confirmed(&mut self, topics: &[Box<str>]) {
        let Some(awaiting) = &mut self.awaiting else { return };
        topics.iter().for_each(|topic| awaiting.confirmed(topic));
    }

    /// Goes on with what was held, a portion. Returns when to be called again.
    pub(super) fn continue_held<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        self.awaiting.as_mut()?.expire(now_ns);
        for _ in 0..RESUMED_PER_TURN {
            let Some((held, confirmed)) = self.awaiting.as_mut()?.ready.pop_front() else { break };
            match held {
                Held::Subscribe { id, identifier, number } => {
                    let wanted = self.awaiting.as_mut()?.take(id, &identifier, number);
                    // It may have ended, or have unsubscribed.
                    if let Some(subscribe) = wanted.filter(|_| core.is_open(id)) {
                        self.continue_subscribe(core, id, &identifier, subscribe, confirmed);
                    }
                }
                Held::Answered(mut answered) => {
                    if !confirmed {
                        answered.outcome = Err(Failure::Timeout);
                        self.awaiting.as_ref()?.confirmation.count_unconfirmed();
                    }
                    self.app_answered(core, *answered);
                }
                Held::Handshake(id) => {
                    if let Some(entry) = self.awaiting.as_mut()?.handshakes.get_mut(&id) {
                        entry.1 = Some(confirmed);
                        core.remote().answer(id, Answer::ByHandler);
                    }
                }
            }
        }
        let awaiting = self.awaiting.as_mut()?;
        if !awaiting.ready.is_empty() {
            return Some(now_ns);
        }
        awaiting.order.front().map(|(until_ns, _)| *until_ns)
    }

    fn continue_subscribe<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
        subscribe: Subscribe,
        confirmed: bool,
    ) {
        let Some(awaiting) = &mut self.awaiting else { return };
        let Subscribe { history, presence, .. } = subscribe;
        let identifier = Cow::Borrowed(identifier);
        if !confirmed {
            awaiting.confirmation.count_unconfirmed();
            return self.send_message(core, id, &Message::Reject { identifier });
        }
        let presence = presence
            .as_ref()
            .map(|(member, info)| Presence { id: Cow::Borrowed(&**member), info: info.as_deref() });
        self.execute(core, id, Command::Subscribe { identifier, history, presence });
    }
}

/// Memory of what a subscribe asks for.
fn history_bytes(history: &History<'_>) -> usize {
    let position =
        |one: &Position<'_>| size_of::<Position<'static>>() + one.stream_id.len() + one.epoch.len();
    history.streams.iter().map(position).sum()
}

fn presence_bytes(presence: &Presence<'_>) -> usize {
    presence.id.len() + presence.info.map_or(0, str::len)
}

fn owned(history: &History<'_>) -> History<'static> {
    let owned = |text: &Cow<'_, str>| Cow::Owned(text.clone().into_owned());
    let position = |position: &Position<'_>| Position {
        stream_id: owned(&position.stream_id),
        epoch: owned(&position.epoch),
        offset: position.offset,
    };
    History { since: history.since, streams: history.streams.iter().map(position).collect() }
}
