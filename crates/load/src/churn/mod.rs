//! [`Churn`]: one worker's Action Cable clients begin and end subscriptions at a rate while others
//! publish. Every publication is checked against its subscription ([`place`]).
//!
//! A *step* picks a connection and one of its subscription slots at random: an empty slot subscribes to
//! a random stream, a subscribed one unsubscribes. After a quarter of the unsubscribes the same
//! subscription follows at once, which tests the order of a socket's commands. At the end no more
//! subscriptions end, and all remaining ones are judged.

mod board;
mod place;
mod run;
mod summary;

use std::collections::VecDeque;
use std::sync::Arc;

use action_cable::Message;
use engine::{ConnId, Core, Sys};
use wire::websocket::OpCode;

pub(crate) use self::board::Board;
use self::place::{Place, State, Verdict};
pub(crate) use self::run::ChurnRun;
pub use self::summary::ChurnSummary;
use crate::broadcast;
use crate::client::Client;
use crate::ledger::Ledger;
use crate::pacer::Pacer;
use crate::subscriber::Line;
use crate::window::Seen;
use crate::{Fanout, Series};

/// Subscriptions that a connection has at most.
const PLACES: usize = 4;
/// Steps of one turn.
const STEPS_PER_TURN: u32 = 512;
/// One in this many unsubscribes is followed by the same subscribe.
const AGAIN: u64 = 4;
/// The prefix of pings, which [`crate::subscriber::CableClients`] handles.
const PING: &[u8] = br#"{"type":"ping""#;

/// The order that starts the churn on a worker.
#[derive(Clone)]
pub(crate) struct ChurnOrder {
    pub(crate) board: Arc<Board>,
    /// Steps a second over all connections, of which this worker has `part` of `whole`.
    pub(crate) rate: u64,
    pub(crate) part: u64,
    pub(crate) whole: u64,
    /// The index of this worker among those that take part, and their number.
    pub(crate) turn: (u64, u64),
    pub(crate) grace_ns: u64,
}

/// One worker's connections.
pub(crate) struct Churn {
    order: ChurnOrder,
    lines: Arc<[Line]>,
    pacer: Pacer,
    steps: u64,
    /// By slot, of those that take part.
    places: Vec<Option<[Place; PLACES]>>,
    /// Slots that take part.
    members: Vec<u32>,
    /// Ends of grace periods in order: time, slot and subscription index.
    due: VecDeque<(u64, u32, u8)>,
    /// No subscription begins or ends any more.
    stopping: bool,
}

impl Churn {
    /// Starts with all connections that are subscribed now; `channel_of` returns their channel.
    pub(crate) fn begin<S: Sys>(
        core: &mut Core<S, Client>,
        order: ChurnOrder,
        lines: Arc<[Line]>,
        line_of: impl Fn(u32) -> Option<u32>,
        ledger: &Ledger,
    ) -> Churn {
        let slots = core.slots();
        let mut places = vec![None; slots as usize];
        let mut members = Vec::new();
        for (slot, places) in (0..slots).zip(&mut places) {
            let open = core.id_at(slot).is_some_and(|id| core.is_open(id));
            let line = line_of(slot).filter(|_| open);
            if let Some(line) = line {
                let mut own = [Place::default(); PLACES];
                own[0] = Place::adopted(line, order.board.begun_now(line));
                *places = Some(own);
                members.push(slot);
            }
        }
        ledger.set_expecting(Fanout::FIRST_PUBLISHER);
        let (nth, of) = order.turn;
        let pacer = Pacer::new(core.now_ns(), order.rate, order.part, order.whole);
        let pacer = pacer.shifted(nth, of);
        let due = VecDeque::new();
        Churn { order, lines, pacer, steps: 0, places, members, due, stopping: false }
    }

    /// Handles a message; returns false if it is for [`crate::subscriber::CableClients`].
    pub(crate) fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        data: &[u8],
        ledger: &Ledger,
    ) -> bool {
        let slot = id.slot();
        if data.starts_with(PING) || self.places(slot).is_empty() {
            return false;
        }
        let lines = Arc::clone(&self.lines);
        let prefix = |line: u32| lines.get(line as usize).map_or(&[][..], |line| &line.prefix);
        let used = self
            .places(slot)
            .iter()
            .position(|place| place.state != State::Empty && data.starts_with(prefix(place.line)));
        if let Some(at) = used {
            self.published(core, slot, at, data, ledger);
            return true;
        }
        let message = std::str::from_utf8(data).ok().and_then(|text| Message::decode(text).ok());
        let at = |identifier: &str| {
            let named = |line: u32| lines.get(line as usize).map(|line| line.identifier.as_str());
            self.places(slot).iter().position(|place| {
                place.state != State::Empty && named(place.line) == Some(identifier)
            })
        };
        match message {
            Some(Message::Confirm { identifier }) => match at(&identifier) {
                Some(at) => self.confirmed(slot, at, ledger),
                None => ledger.counts.churn_unexpected.add(1),
            },
            Some(Message::Data { identifier, .. }) => match at(&identifier) {
                Some(at) => self.published(core, slot, at, data, ledger),
                None => ledger.counts.churn_unexpected.add(1),
            },
            Some(Message::Reject { .. }) => ledger.counts.churn_unexpected.add(1),
            _ => return false,
        }
        true
    }

    /// Forgets a connection that has ended: nothing is expected at it.
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(places) = self.places.get_mut(slot as usize) {
            *places = None;
        }
        self.members.retain(|&member| member != slot);
    }

    /// Starts the end: existing subscriptions are judged after the grace.
    pub(crate) fn stop<S: Sys>(&mut self, core: &mut Core<S, Client>) {
        self.stopping = true;
        let at_ns = core.now_ns().saturating_add(self.order.grace_ns);
        for &slot in &self.members {
            let Some(Some(places)) = self.places.get_mut(slot as usize) else { continue };
            for (at, place) in places.iter_mut().enumerate() {
                match place.state {
                    State::Subscribed => place.notice(self.order.board.taken_now(place.line)),
                    State::Asking { .. } => {}
                    State::Empty | State::Leaving | State::Ended => continue,
                }
                self.due.push_back((at_ns, slot, at as u8));
            }
        }
    }

    /// Does what is due. Returns when to call it next.
    pub(crate) fn turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        ledger: &Ledger,
    ) -> Option<u64> {
        let now_ns = core.now_ns();
        while let Some(&(at_ns, slot, at)) = self.due.front()
            && at_ns <= now_ns
        {
            self.due.pop_front();
            self.grace_is_over(core, slot, usize::from(at), ledger);
        }
        let next_ns = self.due.front().map(|(at_ns, ..)| *at_ns);
        if self.stopping {
            if next_ns.is_none() && ledger.judged().is_none() {
                ledger.set_judged(Vec::new());
            }
            return next_ns;
        }
        for _ in 0..STEPS_PER_TURN {
            let due_ns = self.pacer.due_ns(self.steps);
            if due_ns > now_ns || self.members.is_empty() {
                return [Some(due_ns), next_ns].into_iter().flatten().min();
            }
            self.steps += 1;
            self.step(core, ledger);
        }
        Some(now_ns)
    }

    /// Begins or ends one subscription, of a connection at random.
    fn step<S: Sys>(&mut self, core: &mut Core<S, Client>, ledger: &Ledger) {
        let random = core.random();
        let member = (random >> 8) % self.members.len().max(1) as u64;
        let Some(&slot) = self.members.get(member as usize) else { return };
        let first = random as usize % PLACES;
        let ready = |place: &Place| matches!(place.state, State::Empty | State::Subscribed);
        let places = self.places(slot);
        let turned = (0..PLACES).map(|nth| (first + nth) % PLACES);
        let Some(at) = turned.into_iter().find(|&at| places.get(at).is_some_and(ready)) else {
            return;
        };
        let line = core.random() % self.lines.len().max(1) as u64;
        let line = line as u32;
        let taken = places.iter().any(|it| it.state != State::Empty && it.line == line);
        let (now_ns, grace_ns) = (core.clock_ns(), self.order.grace_ns);
        let board = Arc::clone(&self.order.board);
        let Some(place) = self.place(slot, at) else { return };
        if place.state == State::Subscribed {
            place.notice(board.taken_now(place.line));
            self.due.push_back((core.now_ns().saturating_add(grace_ns), slot, at as u8));
        } else if !taken {
            place.ask(line, now_ns);
            self.ask(core, slot, line, ledger);
        }
    }

    fn grace_is_over<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        slot: u32,
        at: usize,
        ledger: &Ledger,
    ) {
        let (stopping, now_ns) = (self.stopping, core.clock_ns());
        let again = core.random().is_multiple_of(AGAIN);
        let due_ns = core.now_ns().saturating_add(self.order.grace_ns);
        let Some(place) = self.place(slot, at) else { return };
        let line = place.line;
        match place.state {
            State::Leaving if !stopping => {
                place.end(again, now_ns);
                self.send(core, slot, line, |line| &line.unsubscribe);
                match again {
                    true => self.ask(core, slot, line, ledger),
                    false => self.due.push_back((due_ns, slot, at as u8)),
                }
            }
            State::Leaving | State::Ended => {
                judged(place.verdict(), ledger);
                *place = Place::default();
            }
            State::Asking { .. } => {
                ledger.counts.churn_unconfirmed.add(1);
                *place = Place::default();
            }
            // Confirmed after the last publication, or gone with its connection.
            State::Subscribed | State::Empty => *place = Place::default(),
        }
    }

    fn confirmed(&mut self, slot: u32, at: usize, ledger: &Ledger) {
        let board = Arc::clone(&self.order.board);
        let Some(place) = self.place(slot, at) else { return };
        if !matches!(place.state, State::Asking { .. }) {
            return ledger.counts.churn_unexpected.add(1);
        }
        ledger.counts.churn_begun.add(1);
        if let Some(before) = place.confirm(board.begun_now(place.line)) {
            judged(before, ledger);
        }
    }

    /// Checks data for a subscription.
    fn published<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        slot: u32,
        at: usize,
        data: &[u8],
        ledger: &Ledger,
    ) {
        let (now_ns, grace_ns) = (core.clock_ns(), self.order.grace_ns);
        let counts = &ledger.counts;
        let Some(text) = broadcast::find(data) else { return counts.publications_foreign.add(1) };
        let Some(publication) = broadcast::parse(text) else { return counts.corrupted.add(1) };
        let Some(place) = self.place(slot, at) else { return };
        let own = Some(place.line) == publication.publisher.checked_sub(Fanout::FIRST_PUBLISHER);
        let seen = own.then(|| place.receive(&publication, now_ns, grace_ns)).flatten();
        match seen {
            None => return counts.churn_unexpected.add(1),
            Some(Seen::Duplicate) => return counts.publications_duplicated.add(1),
            Some(Seen::Stale) => return counts.publications_stale.add(1),
            Some(Seen::Reordered) => counts.publications_reordered.add(1),
            Some(Seen::InOrder) => {}
        }
        counts.publications.add(1);
        let took_ns = now_ns.saturating_sub(publication.published_ns);
        if took_ns > grace_ns {
            counts.publications_late.add(1);
        }
        ledger.record(Series::Broadcast, took_ns);
    }

    fn ask<S: Sys>(&self, core: &mut Core<S, Client>, slot: u32, line: u32, ledger: &Ledger) {
        ledger.counts.subscribes.add(1);
        self.send(core, slot, line, |line| &line.subscribe);
    }

    fn send<S: Sys>(
        &self,
        core: &mut Core<S, Client>,
        slot: u32,
        line: u32,
        of: impl Fn(&Line) -> &[u8],
    ) {
        if let (Some(id), Some(line)) = (core.id_at(slot), self.lines.get(line as usize)) {
            core.send(id, OpCode::Text, of(line));
        }
    }

    fn places(&self, slot: u32) -> &[Place] {
        self.places.get(slot as usize).and_then(Option::as_ref).map_or(&[], |places| &places[..])
    }

    fn place(&mut self, slot: u32, at: usize) -> Option<&mut Place> {
        self.places.get_mut(slot as usize)?.as_mut()?.get_mut(at)
    }
}

fn judged(Verdict { owed, lost }: Verdict, ledger: &Ledger) {
    let counts = &ledger.counts;
    counts.churn_judged.add(1);
    counts.churn_owed.add(owed.into());
    counts.churn_lost.add(lost.into());
}
