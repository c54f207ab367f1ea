//! The part of a connection that delivers what arrives.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::Driver;
use super::fetch::Until;
use super::followed::Follow;
use crate::broker::Undelivered;
use crate::envelope::{Envelope, Message, NodeId, Sequence};
use crate::figures::{Counters, GapCause};
use crate::gaps::Observed;
use crate::interest::Subscribed;
use crate::kept::Kept;
use crate::limits::{BEHIND_PAUSE, DELIVERY_NS, DELIVERY_PAUSE};
use crate::members::is_event;
use crate::transport::{Arrived, Channel, Fault, FaultKind, InboxReceiver, Incoming, Link};

/// What became of a publication that the broker keeps.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Delivered {
    Yes,
    /// It was delivered before.
    Before,
    /// Not now: it will be fetched, or its topic is not subscribed any more.
    No,
}

/// A publication that counts as received and is not delivered. If it is dropped, also by the end of the connection,
/// its topic is behind, so that the publication is fetched.
struct Unfinished<'d> {
    driver: &'d Driver,
    channel: &'d str,
    id: u64,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Unfinished { driver, channel, id } = *self;
        if driver.followed.borrow_mut().set_behind(channel, id, true) {
            driver.behind.borrow_mut().push((Channel::from(channel), id));
        }
    }
}

impl Driver {
    /// Delivers until the connection has ended and what had arrived is delivered.
    pub(super) async fn deliver(&self, link: &impl Link, mut inbox: InboxReceiver) -> Fault {
        self.dropped.set(self.dropped_now());
        self.behind_ns.set(0);
        loop {
            let is_ending = self.is_ending.get();
            if is_ending {
                inbox.close();
            }
            let arrived = match inbox.try_next() {
                Some(arrived) => Some(arrived),
                None if is_ending => break,
                None => {
                    if let Err(fault) = self.overflowed(link).await {
                        return fault;
                    }
                    match self.next(&mut inbox).await {
                        Some(Some(arrived)) => Some(arrived),
                        Some(None) => break,
                        None => None,
                    }
                }
            };
            match arrived {
                Some(Arrived::Message(message)) => {
                    if let Err(fault) = self.arrived(link, &message).await
                        // What could not be fetched will be, by the next connection.
                        && !self.is_ending.get()
                    {
                        return fault;
                    }
                }
                Some(Arrived::Ended(channel)) => self.subscription_ended(&channel),
                None => {}
            }
            if !self.is_ending.get()
                && let Err(fault) = self.catch_up_behind(link).await
                && !self.is_ending.get()
            {
                return fault;
            }
        }
        Fault::new(FaultKind::Closed, "the connection was closed")
    }

    async fn arrived(&self, link: &impl Link, message: &Incoming) -> Result<(), Fault> {
        let channel = &*message.channel;
        let counters = &self.broker.counters;
        if is_event(&message.body) {
            self.members_changed(channel, &message.body);
            return Ok(());
        }
        let Ok(envelope) = Envelope::decode(&message.body) else {
            Counters::add(&counters.malformed, 1);
            if self.shard().lock().interest.get(channel).is_some() {
                self.gap(&[channel], GapCause::Unreadable).await;
            }
            return Ok(());
        };
        let found = self.shard().lock().interest.get(channel);
        // It may have been unsubscribed a moment ago.
        let Some(subscribed) = found else { return Ok(()) };
        match envelope {
            Envelope::Publication(publication) => {
                Counters::add(&counters.received, 1);
                if self.broker.settings.history.is_none() {
                    self.publication(channel, subscribed, &publication).await;
                } else if let Some((kept, before)) = message.kept {
                    self.kept_arrived(link, channel, subscribed.id, &publication, kept, before)
                        .await?;
                } else {
                    let (node, mut before) = (publication.node, publication.at);
                    before.number = before.number.saturating_sub(1);
                    self.fill(link, channel, subscribed, node, before).await?;
                    self.publication(channel, subscribed, &publication).await;
                }
            }
            Envelope::Beacon { node, newest } => {
                if !self.fill(link, channel, subscribed, node, newest).await? {
                    return Ok(());
                }
                let seen = self.received.borrow_mut().beacon(
                    subscribed.id,
                    subscribed.generation,
                    node,
                    newest,
                );
                self.tell_missing(channel, seen).await;
            }
            Envelope::Command { node, at, body } => {
                if self.is_new(channel, subscribed, node, at).await && node != self.broker.node {
                    self.tell(|receiver| receiver.command(body)).await;
                }
            }
            Envelope::Alive { node, name } if node != self.broker.node => {
                let now_ns = self.broker.now_ns();
                let nodes = self.broker.nodes.lock();
                nodes.unwrap_or_else(PoisonError::into_inner).heard(now_ns, node, name);
            }
            Envelope::Alive { .. } => {}
        }
        Ok(())
    }

    /// The broker has ended a subscription: it is asked for again, as after a disconnect.
    fn subscription_ended(&self, channel: &str) {
        let ended = self.shard().lock().interest.subscription_ended(channel);
        let Some(id) = ended else { return };
        Counters::add(&self.broker.counters.moved, 1);
        self.followed.borrow_mut().unsynced(channel, id);
        self.shard().wakes.interest.notify_one();
    }

    /// Whether a publication or a command was not received before. Tells what is missing before it.
    async fn is_new(
        &self,
        channel: &str,
        subscribed: Subscribed,
        node: NodeId,
        at: Sequence,
    ) -> bool {
        let seen =
            self.received.borrow_mut().publication(subscribed.id, subscribed.generation, node, at);
        self.tell_missing(channel, seen).await;
        if seen == Observed::Repeated {
            Counters::add(&self.broker.counters.repeated, 1);
        }
        seen != Observed::Repeated
    }

    async fn tell_missing(&self, channel: &str, seen: Observed) {
        if let Observed::Gap(_) = seen {
            self.gap(&[channel], GapCause::Missing).await;
        }
    }

    async fn publication(&self, channel: &str, subscribed: Subscribed, message: &Message<'_>) {
        if !self.is_new(channel, subscribed, message.node, message.at).await {
            return;
        }
        let Some(topic) = self.broker.topic(channel) else { return };
        if !self.offer(topic, message, None, || true).await {
            self.gap(&[channel], GapCause::Overloaded).await;
        }
    }

    /// Offers a publication while it is wanted, for a bounded time. Returns whether it was delivered.
    async fn offer(
        &self,
        topic: &str,
        message: &Message<'_>,
        kept: Option<Kept>,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        let mut until_ns = None;
        while is_wanted() {
            match self.receiver.publication(topic, message, kept) {
                Ok(()) => return true,
                Err(Undelivered::Overloaded) => return false,
                Err(Undelivered::Busy) => {
                    let now_ns = self.broker.now_ns();
                    let until_ns = *until_ns.get_or_insert(now_ns.saturating_add(DELIVERY_NS));
                    if now_ns >= until_ns {
                        return false;
                    }
                    tokio::time::sleep(DELIVERY_PAUSE).await;
                }
            }
        }
        false
    }

    /// A publication that the broker keeps has arrived; `before` is the offset of the one before it.
    async fn kept_arrived(
        &self,
        link: &impl Link,
        channel: &str,
        id: u64,
        message: &Message<'_>,
        kept: Kept,
        before: u64,
    ) -> Result<(), Fault> {
        let Some(follow) = self.settled(channel, id).await else { return Ok(()) };
        if follow.behind {
            // It is fetched with what is before it.
            return Ok(());
        }
        let (at, position) = (follow.position, kept.position);
        if at.epoch == position.epoch && before > at.offset {
            self.heal(link, channel, id, Until::Offset(position.offset)).await?;
        } else if at.epoch != position.epoch {
            // Within a connection nothing is lost but what the inbox drops.
            if before == 0 && self.dropped.get() == self.dropped_now() {
                self.begin_epoch(channel, id, kept);
            } else {
                self.heal(link, channel, id, Until::Offset(position.offset)).await?;
            }
        }
        let found = self.followed.borrow().get(channel, id);
        if found.is_some_and(|follow| !follow.behind)
            && self.kept(channel, id, message, kept).await == Delivered::Before
        {
            Counters::add(&self.broker.counters.repeated, 1);
        }
        Ok(())
    }

    /// Delivers a publication that the broker keeps, if it follows what was delivered.
    pub(super) async fn kept(
        &self,
        channel: &str,
        id: u64,
        message: &Message<'_>,
        kept: Kept,
    ) -> Delivered {
        let current = || {
            let follow = self.followed.borrow().get(channel, id)?;
            let (at, position) = (follow.position, kept.position);
            Some((follow, at.epoch == position.epoch && at.offset < position.offset))
        };
        let follow = match current() {
            None => return Delivered::No,
            Some((_, false)) => return Delivered::Before,
            Some((follow, true)) => follow,
        };
        let Some(topic) = self.broker.topic(channel) else { return Delivered::No };
        let generation = self.shard().lock().interest.get(channel).map(|found| found.generation);
        let generation = generation.unwrap_or_default();
        let unfinished = Unfinished { driver: self, channel, id };
        let seen = self.received.borrow_mut().publication(id, generation, message.node, message.at);
        self.tell_missing(channel, seen).await;
        // One that was not delivered was received before, too.
        let delivered = if seen == Observed::Repeated && !follow.behind {
            if follow.renewed {
                self.receiver.kept_again(topic, message, kept);
            }
            Delivered::Before
        } else {
            let is_wanted = || matches!(current(), Some((_, true)));
            if !self.offer(topic, message, Some(kept), is_wanted).await {
                return Delivered::No;
            }
            Delivered::Yes
        };
        std::mem::forget(unfinished);
        self.followed.borrow_mut().reached(channel, id, kept.position);
        delivered
    }

    /// A channel once what was published before the connection is fetched; `None` if it is another subscription,
    /// if the broker refuses to fetch it, or if the connection has ended.
    async fn settled(&self, channel: &str, id: u64) -> Option<Follow> {
        loop {
            let follow = self.followed.borrow().get(channel, id)?;
            if follow.synced {
                return Some(follow);
            }
            if follow.rejected || self.is_ending.get() {
                return None;
            }
            self.settled.notified().await;
        }
    }

    /// Fetches what is missing of a sender up to a number, if anything is. False if a later fetch does that, or nobody
    /// wants it: then nothing up to that number may count as received or missing.
    async fn fill(
        &self,
        link: &impl Link,
        channel: &str,
        subscribed: Subscribed,
        node: NodeId,
        newest: Sequence,
    ) -> Result<bool, Fault> {
        let id = subscribed.id;
        if self.broker.settings.history.is_none() || self.broker.topic(channel).is_none() {
            return Ok(true);
        }
        match self.settled(channel, id).await {
            Some(follow) if !follow.behind => {}
            _ => return Ok(false),
        }
        if self.received.borrow_mut().is_missing(id, node, newest) {
            self.heal(link, channel, id, Until::Sender(node, newest)).await?;
            let found = self.followed.borrow().get(channel, id);
            return Ok(found.is_some_and(|follow| !follow.behind));
        }
        Ok(true)
    }

    pub(super) fn dropped_now(&self) -> u64 {
        self.broker.counters.dropped.load(Ordering::Relaxed)
    }

    /// What the inbox had no room for is fetched once it is empty.
    async fn overflowed(&self, link: &impl Link) -> Result<(), Fault> {
        let dropped = self.dropped_now();
        if self.broker.settings.history.is_none() || self.dropped.get() == dropped {
            return Ok(());
        }
        let all = self.followed.borrow().all();
        let synced = all.into_iter().filter(|(channel, id)| {
            self.followed.borrow().get(channel, *id).is_some_and(|follow| follow.synced)
        });
        self.catch_up(link, synced.collect(), GapCause::Missing).await?;
        self.dropped.set(dropped);
        Ok(())
    }

    /// The next message; `None` if something else is to be done first.
    async fn next(&self, inbox: &mut InboxReceiver) -> Option<Option<Arrived>> {
        let next = async {
            tokio::select! {
                arrived = inbox.next() => Some(arrived),
                () = self.ends.notified() => None,
            }
        };
        if self.behind.borrow().is_empty() {
            return next.await;
        }
        tokio::time::timeout(BEHIND_PAUSE, next).await.unwrap_or(None)
    }

    /// After a pause fetches what could not be delivered.
    async fn catch_up_behind(&self, link: &impl Link) -> Result<(), Fault> {
        if self.behind.borrow().is_empty() {
            return Ok(());
        }
        let now_ns = self.broker.now_ns();
        if self.behind_ns.get() == 0 {
            self.behind_ns.set(now_ns);
        }
        if now_ns.saturating_sub(self.behind_ns.get()) < BEHIND_PAUSE.as_nanos() as u64 {
            return Ok(());
        }
        self.behind_ns.set(0);
        let channels = std::mem::take(&mut *self.behind.borrow_mut());
        let is_behind = |channel: &Channel, id| {
            let found = self.followed.borrow().get(channel, id);
            found.is_some_and(|follow| follow.behind)
        };
        let mut fault = Ok(());
        for (channel, id) in channels {
            let is_synced = self.followed.borrow().get(&channel, id).is_some_and(|one| one.synced);
            if fault.is_ok() && is_synced && is_behind(&channel, id) {
                fault = self.heal(link, &channel, id, Until::End).await;
            }
            if is_behind(&channel, id) {
                self.behind.borrow_mut().push((channel, id));
            }
        }
        fault
    }
}
