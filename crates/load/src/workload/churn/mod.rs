//! [`Churn`]: one worker's Action Cable clients begin and end subscriptions at a rate while others
//! publish. Every publication is checked against its subscription ([`crate::delivery::subscription`]).
//!
//! A *step* picks a connection and one of its subscription slots at random: an empty slot subscribes to
//! a random stream, a subscribed one unsubscribes. After a quarter of the unsubscribes the same
//! subscription follows at once, which tests the order of a socket's commands. At the end no more
//! subscriptions end, and all remaining ones are judged.

pub(crate) mod publish_counters;
pub(crate) mod run;

use std::collections::VecDeque;
use std::sync::Arc;

use action_cable::Message;
use engine::invariant;
use engine::{ConnId, Core, Sys};
use wire::websocket::OpCode;

use self::publish_counters::{Known, PublishCounters};
use crate::Fanout;
use crate::delivery::checker::{Checker, Expected};
use crate::delivery::subscription::{State, Subscription, Verdict};
use crate::outcome::metrics::Metrics;
use crate::transport::cable_client::CableChannel;
use crate::workload::client::Client;
use crate::workload::pacer::Pacer;

/// The most subscriptions of a connection.
const SUBSCRIPTIONS: usize = 4;
/// Steps of one turn.
const STEPS_PER_TURN: u32 = 512;
/// One in this many unsubscribes is followed by the same subscribe.
const AGAIN: u64 = 4;
/// The prefix of pings, which [`crate::transport::cable_client::CableClients`] handles.
const PING: &[u8] = br#"{"type":"ping""#;

/// The order that starts the churn on a worker.
#[derive(Clone)]
pub(crate) struct ChurnOrder {
    pub(crate) counters: Arc<PublishCounters>,
    /// Steps per second over all connections, of which this worker has `part` of `whole`.
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
    checker: Checker,
    channels: Arc<[CableChannel]>,
    pacer: Pacer,
    steps: u64,
    /// By slot; `None` for connections that do not take part.
    subscriptions: Vec<Option<[Subscription; SUBSCRIPTIONS]>>,
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
        channels: Arc<[CableChannel]>,
        channel_of: impl Fn(u32) -> Option<u32>,
        metrics: &Metrics,
    ) -> Churn {
        let slots = core.slots();
        let mut subscriptions = vec![None; slots as usize];
        let mut members = Vec::new();
        for (slot, subscriptions) in (0..slots).zip(&mut subscriptions) {
            let open = core.id_at(slot).is_some_and(|id| core.is_open(id));
            let channel = channel_of(slot).filter(|_| open);
            if let Some(channel) = channel {
                let mut own = [Subscription::default(); SUBSCRIPTIONS];
                own[0] = Subscription::adopted(channel, order.counters.begun_now(channel));
                *subscriptions = Some(own);
                members.push(slot);
            }
        }
        metrics.set_expecting(Fanout::FIRST_PUBLISHER);
        let (nth, of) = order.turn;
        let pacer = Pacer::new(core.now_ns(), order.rate, order.part, order.whole);
        let pacer = pacer.shifted(nth, of);
        Churn {
            checker: Checker::new(order.grace_ns),
            order,
            channels,
            pacer,
            steps: 0,
            subscriptions,
            members,
            due: VecDeque::new(),
            stopping: false,
        }
    }

    /// Handles a message; returns false if it is for [`crate::transport::cable_client::CableClients`].
    pub(crate) fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        data: &[u8],
        metrics: &Metrics,
    ) -> bool {
        let slot = id.slot();
        if data.starts_with(PING) || self.subscriptions(slot).is_empty() {
            return false;
        }
        let channels = Arc::clone(&self.channels);
        let prefix = |channel: u32| {
            channels.get(channel as usize).map_or(&[][..], |channel| &channel.prefix)
        };
        let used = self.subscriptions(slot).iter().position(|subscription| {
            subscription.state != State::Empty && data.starts_with(prefix(subscription.channel))
        });
        if let Some(at) = used {
            self.published(core, slot, at, data, metrics);
            return true;
        }
        let message = std::str::from_utf8(data).ok().and_then(|text| Message::decode(text).ok());
        let at = |identifier: &str| {
            let named = |channel: u32| {
                channels.get(channel as usize).map(|channel| channel.identifier.as_str())
            };
            self.subscriptions(slot).iter().position(|subscription| {
                subscription.state != State::Empty
                    && named(subscription.channel) == Some(identifier)
            })
        };
        match message {
            Some(Message::Confirm { identifier }) => match at(&identifier) {
                Some(at) => self.confirmed(slot, at, metrics),
                None => metrics.counts.delivery.unexpected.add(1),
            },
            Some(Message::Data { identifier, .. }) => match at(&identifier) {
                Some(at) => self.published(core, slot, at, data, metrics),
                None => metrics.counts.delivery.unexpected.add(1),
            },
            Some(Message::Reject { .. }) => metrics.counts.delivery.unexpected.add(1),
            _ => return false,
        }
        true
    }

    /// Passes on the rest of the times.
    pub(crate) fn flush_rest(&mut self, metrics: &Metrics) {
        self.checker.flush_rest(metrics);
    }

    /// Forgets a connection that has ended: nothing is expected at it.
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(subscriptions) = self.subscriptions.get_mut(slot as usize) {
            *subscriptions = None;
        }
        self.members.retain(|&member| member != slot);
    }

    /// Starts the end: existing subscriptions are judged after the grace.
    pub(crate) fn stop<S: Sys>(&mut self, core: &mut Core<S, Client>) {
        self.stopping = true;
        let at_ns = core.now_ns().saturating_add(self.order.grace_ns);
        for &slot in &self.members {
            let Some(Some(subscriptions)) = self.subscriptions.get_mut(slot as usize) else {
                continue;
            };
            for (at, subscription) in subscriptions.iter_mut().enumerate() {
                match subscription.state {
                    State::Subscribed => subscription
                        .begin_ending(self.order.counters.taken_now(subscription.channel)),
                    State::Subscribing { .. } => {}
                    State::Empty | State::Ending | State::Unsubscribed => continue,
                }
                self.due.push_back((at_ns, slot, at as u8));
            }
        }
    }

    /// Does what is due. Returns when to call it next.
    pub(crate) fn turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        metrics: &Metrics,
    ) -> Option<u64> {
        let now_ns = core.now_ns();
        let flush_ns = self.checker.flush(metrics, now_ns);
        let due_ns = self.turn_due(core, now_ns, metrics);
        [flush_ns, due_ns].into_iter().flatten().min()
    }

    fn turn_due<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        now_ns: u64,
        metrics: &Metrics,
    ) -> Option<u64> {
        while let Some(&(at_ns, slot, at)) = self.due.front()
            && at_ns <= now_ns
        {
            self.due.pop_front();
            self.grace_is_over(core, slot, usize::from(at), metrics);
        }
        let next_ns = self.due.front().map(|(at_ns, ..)| *at_ns);
        if self.stopping {
            if next_ns.is_none() && metrics.judged().is_none() {
                self.checker.flush_rest(metrics);
                metrics.set_judged(Vec::new());
            }
            return next_ns;
        }
        for _ in 0..STEPS_PER_TURN {
            let due_ns = self.pacer.due_ns(self.steps);
            if due_ns > now_ns || self.members.is_empty() {
                return [Some(due_ns), next_ns].into_iter().flatten().min();
            }
            self.steps += 1;
            self.step(core, metrics);
        }
        Some(now_ns)
    }

    /// Begins or ends one subscription of a random connection.
    fn step<S: Sys>(&mut self, core: &mut Core<S, Client>, metrics: &Metrics) {
        let random = core.random();
        let member = (random >> 8) % self.members.len().max(1) as u64;
        let Some(&slot) = self.members.get(member as usize) else {
            return invariant::broken("a step of the churn has a member");
        };
        let first = random as usize % SUBSCRIPTIONS;
        let ready = |subscription: &Subscription| {
            matches!(subscription.state, State::Empty | State::Subscribed)
        };
        let subscriptions = self.subscriptions(slot);
        let turned = (0..SUBSCRIPTIONS).map(|nth| (first + nth) % SUBSCRIPTIONS);
        let Some(at) = turned.into_iter().find(|&at| subscriptions.get(at).is_some_and(ready))
        else {
            return;
        };
        let channel = core.random() % self.channels.len().max(1) as u64;
        let channel = channel as u32;
        let taken =
            subscriptions.iter().any(|it| it.state != State::Empty && it.channel == channel);
        let (now_ns, grace_ns) = (core.clock_ns(), self.order.grace_ns);
        let counters = Arc::clone(&self.order.counters);
        let Some(subscription) = self.subscription(slot, at) else {
            return invariant::broken("a member of the churn has subscriptions");
        };
        if subscription.state == State::Subscribed {
            subscription.begin_ending(counters.taken_now(subscription.channel));
            self.due.push_back((core.now_ns().saturating_add(grace_ns), slot, at as u8));
        } else if !taken {
            subscription.subscribe(channel, now_ns);
            self.subscribe(core, slot, channel, metrics);
        }
    }

    fn grace_is_over<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        slot: u32,
        at: usize,
        metrics: &Metrics,
    ) {
        let (stopping, now_ns) = (self.stopping, core.clock_ns());
        let again = core.random().is_multiple_of(AGAIN);
        let due_ns = core.now_ns().saturating_add(self.order.grace_ns);
        let counters = Arc::clone(&self.order.counters);
        // The connection may have ended meanwhile.
        let Some(subscription) = self.subscription(slot, at) else { return };
        let channel = subscription.channel;
        match subscription.state {
            State::Ending if !stopping => {
                subscription.unsubscribe(again, now_ns);
                self.send(core, slot, channel, |channel| &channel.unsubscribe);
                match again {
                    true => self.subscribe(core, slot, channel, metrics),
                    false => self.due.push_back((due_ns, slot, at as u8)),
                }
            }
            State::Ending | State::Unsubscribed => {
                settle(subscription, &counters, metrics);
                judged(subscription.verdict(), metrics);
                *subscription = Subscription::default();
            }
            State::Subscribing { .. } => {
                metrics.counts.churn_unconfirmed.add(1);
                *subscription = Subscription::default();
            }
            // Confirmed after the last publication, or its connection ended.
            State::Subscribed | State::Empty => *subscription = Subscription::default(),
        }
    }

    fn confirmed(&mut self, slot: u32, at: usize, metrics: &Metrics) {
        let counters = Arc::clone(&self.order.counters);
        let Some(subscription) = self.subscription(slot, at) else {
            return invariant::broken("a member of the churn has subscriptions");
        };
        if !matches!(subscription.state, State::Subscribing { .. }) {
            return metrics.counts.delivery.unexpected.add(1);
        }
        metrics.counts.churn_begun.add(1);
        settle(subscription, &counters, metrics);
        if let Some(before) = subscription.confirm(counters.begun_now(subscription.channel)) {
            judged(before, metrics);
        }
    }

    /// Checks data for a subscription.
    fn published<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        slot: u32,
        at: usize,
        data: &[u8],
        metrics: &Metrics,
    ) {
        let (now_ns, grace_ns) = (core.clock_ns(), self.order.grace_ns);
        let one = self.subscriptions.get_mut(slot as usize).and_then(Option::as_mut);
        let Some(subscription) = one.and_then(|all| all.get_mut(at)) else {
            return invariant::broken("a member of the churn has subscriptions");
        };
        let (stream, counters) = (subscription.channel, &self.order.counters);
        let channel = Fanout::FIRST_PUBLISHER + stream;
        let counts = &metrics.counts.delivery;
        settle(subscription, counters, metrics);
        let (expected, mut published_ns) = (&mut *subscription, 0);
        let first = self.checker.check(counts, data, now_ns, |publication| {
            published_ns = publication.published_ns;
            if publication.publisher != channel {
                return Expected::Unexpected;
            }
            if counters.known(stream, publication.sequence, published_ns) == Known::Refused {
                counts.refused.add(1);
                return Expected::Ignored;
            }
            expected.expects(publication, now_ns, grace_ns)
        });
        if let Some(number) = first {
            subscription.received(number, published_ns);
        }
    }

    fn subscribe<S: Sys>(
        &self,
        core: &mut Core<S, Client>,
        slot: u32,
        channel: u32,
        metrics: &Metrics,
    ) {
        metrics.counts.subscribes.add(1);
        self.send(core, slot, channel, |channel| &channel.subscribe);
    }

    fn send<S: Sys>(
        &self,
        core: &mut Core<S, Client>,
        slot: u32,
        channel: u32,
        of: impl Fn(&CableChannel) -> &[u8],
    ) {
        if let (Some(id), Some(channel)) = (core.id_at(slot), self.channels.get(channel as usize)) {
            core.send(id, OpCode::Text, of(channel));
        }
    }

    fn subscriptions(&self, slot: u32) -> &[Subscription] {
        self.subscriptions
            .get(slot as usize)
            .and_then(Option::as_ref)
            .map_or(&[], |subscriptions| &subscriptions[..])
    }

    fn subscription(&mut self, slot: u32, at: usize) -> Option<&mut Subscription> {
        self.subscriptions.get_mut(slot as usize)?.as_mut()?.get_mut(at)
    }
}

/// Takes back the receipt of a publication that was refused meanwhile.
fn settle(subscription: &mut Subscription, counters: &PublishCounters, metrics: &Metrics) {
    let Some((number, published_ns)) = subscription.pending() else { return };
    let known = counters.known(subscription.channel, number, published_ns);
    if known != Known::Unanswered {
        let is_refused = known == Known::Refused;
        subscription.settle(is_refused);
        metrics.counts.delivery.refused.add(u64::from(is_refused));
        metrics.counts.delivery.taken_back.add(u64::from(is_refused));
    }
}

fn judged(Verdict { expected, lost }: Verdict, metrics: &Metrics) {
    let counts = &metrics.counts;
    counts.churn_judged.add(1);
    counts.churn_owed.add(expected.into());
    counts.churn_lost.add(lost.into());
}
