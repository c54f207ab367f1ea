//! What the broker keeps, fetched: whole for topics that are new, and what is missing of the others.
//!
//! One task at a time delivers to a topic: until it is synced that which subscribes, then that which delivers what
//! arrives.

use std::collections::HashSet;

use foldhash::fast::RandomState;

use super::Driver;
use super::deliver::Delivered;
use crate::envelope::{Envelope, Message, NodeId, Sequence};
use crate::figures::{Counters, GapCause};
use crate::kept::{Kept, Past, Position};
use crate::limits::{BATCH_CHANNELS, FETCH_BYTES};
use crate::transport::{Channel, Fault, FaultKind, Fetched, Link, Rejected};

/// How much of what was fetched is delivered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Until {
    /// All.
    End,
    /// What is before this offset; what follows it is about to arrive.
    Offset(u64),
    /// Up to the last one of this sender with this number or a lower one.
    Sender(NodeId, Sequence),
}

/// What was fetched of some channels.
#[derive(Default)]
pub(super) struct Part {
    wanted: Vec<(Channel, Option<Position>)>,
    ids: Vec<u64>,
    fetched: Vec<Fetched>,
}

impl Driver {
    /// Channels are about to be subscribed.
    pub(super) fn follow(&self, channels: &[Channel]) {
        if self.broker.settings.history.is_none() {
            return;
        }
        let inner = self.shard().lock();
        let mut followed = self.followed.borrow_mut();
        for channel in channels.iter().filter(|channel| self.broker.topic(channel).is_some()) {
            if let Some(subscribed) = inner.interest.get(channel) {
                followed.begin(channel, subscribed.id);
            }
        }
    }

    /// Channels are not subscribed any more.
    pub(super) fn unfollow(&self, channels: &[Channel]) {
        if channels.is_empty() {
            return;
        }
        let keeps = self.broker.settings.history.is_some();
        let mut followed = self.followed.borrow_mut();
        let told = channels.iter().filter(|channel| followed.remove(channel) || !keeps);
        let topics = told.filter_map(|channel| self.broker.topic(channel));
        let topics: Vec<Box<str>> = topics.map(Box::from).collect();
        drop(followed);
        // Somebody may wait for the topic to be settled.
        self.settled.notify_one();
        if !topics.is_empty() {
            self.receiver.released(&topics);
        }
    }

    /// Fetches a part of what is kept of channels that have just been subscribed: all of those that are new, and of the
    /// others what was published while there was no connection. Returns the channels that are left.
    pub(super) async fn begin_sync(
        &self,
        link: &impl Link,
        channels: &[Channel],
    ) -> Result<(Part, Vec<(Channel, u64)>), Fault> {
        if self.broker.settings.history.is_none() {
            return Ok(Default::default());
        }
        let mut wanted: Vec<(Channel, u64)> = {
            let inner = self.shard().lock();
            let id = |channel: &Channel| {
                let found = inner.interest.get(channel)?;
                Some((Channel::clone(channel), found.id))
            };
            channels.iter().filter_map(id).collect()
        };
        let part = self.fetch_part(link, &mut wanted).await?;
        Ok((part, wanted))
    }

    /// Fetches what follows the position of channels.
    pub(super) async fn catch_up(
        &self,
        link: &impl Link,
        mut channels: Vec<(Channel, u64)>,
        cause: GapCause,
    ) -> Result<(), Fault> {
        while !channels.is_empty() {
            let part = self.fetch_part(link, &mut channels).await?;
            self.sync(part, cause).await;
        }
        Ok(())
    }

    /// Fetches as many of the channels as one command takes, and removes them from the list.
    async fn fetch_part(
        &self,
        link: &impl Link,
        channels: &mut Vec<(Channel, u64)>,
    ) -> Result<Part, Fault> {
        let part = channels.split_off(channels.len().saturating_sub(self.fetch_channels.get()));
        let (mut wanted, mut ids) =
            (Vec::with_capacity(part.len()), Vec::with_capacity(part.len()));
        for (channel, id) in part {
            let found = self.followed.borrow().get(&channel, id);
            if let Some(follow) = found {
                wanted.push((channel, follow.after()));
                ids.push(id);
            }
        }
        let (mut part, mut refused) = (Part::default(), Vec::new());
        let all = self.fetch(link, &wanted).await?;
        for ((wanted, id), fetched) in wanted.into_iter().zip(ids).zip(all) {
            match fetched {
                Ok(fetched) => {
                    part.wanted.push(wanted);
                    part.ids.push(id);
                    part.fetched.push(fetched);
                }
                Err(why) => refused.push((wanted.0, id, why)),
            }
        }
        self.reject_subscribed(link, refused).await?;
        Ok(part)
    }

    /// Delivers what was fetched.
    pub(super) async fn sync(&self, part: Part, cause: GapCause) {
        let Part { wanted, ids, fetched } = part;
        for (((channel, after), id), fetched) in wanted.iter().zip(ids).zip(&fetched) {
            match after {
                Some(_) => self.fetched(channel, id, fetched, Until::End, cause).await,
                None => self.load(channel, id, fetched),
            }
            self.followed.borrow_mut().synced(channel, id);
            self.settled.notify_one();
        }
    }

    /// Fetches, and adapts how many channels the next fetch has.
    async fn fetch(
        &self,
        link: &impl Link,
        channels: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
        if channels.is_empty() {
            return Ok(Vec::new());
        }
        let fetched = link.fetch(channels).await;
        if let Err(fault) = &fetched
            && fault.kind == FaultKind::Silent
        {
            // The next connection asks for less at a time.
            self.fetch_channels.set((self.fetch_channels.get() / 2).max(1));
        }
        let mut all = fetched?;
        if all.len() != channels.len() {
            return Err(Fault::new(
                FaultKind::Protocol,
                "another number of answers than asked for",
            ));
        }
        self.fetch_invalid_again(link, channels, &mut all).await?;
        Counters::add(&self.broker.counters.fetches, all.len());
        let messages = all.iter().flatten().map(|fetched| fetched.messages.len()).sum();
        Counters::add(&self.broker.counters.fetched, messages);
        let bytes: usize = all.iter().flatten().map(Fetched::bytes).sum();
        let many = self.fetch_channels.get();
        if bytes > FETCH_BYTES {
            self.fetch_channels.set((many / 2).max(1));
        } else if bytes < FETCH_BYTES / 4 && channels.len() >= many {
            self.fetch_channels.set((many * 2).min(BATCH_CHANNELS));
        }
        Ok(all)
    }

    /// Begins another epoch where what is kept was not written by a node, and fetches that.
    async fn fetch_invalid_again(
        &self,
        link: &impl Link,
        channels: &[(Channel, Option<Position>)],
        all: &mut [Result<Fetched, Rejected>],
    ) -> Result<(), Fault> {
        let is_invalid = |one: &Result<Fetched, Rejected>| {
            one.as_ref().is_err_and(|rejected| rejected.is_invalid)
        };
        let (mut places, mut again) = (Vec::new(), Vec::new());
        for (place, wanted) in all.iter_mut().zip(channels).filter(|(one, _)| is_invalid(one)) {
            places.push(place);
            again.push(wanted.clone());
        }
        if again.is_empty() {
            return Ok(());
        }
        let names: Vec<Channel> =
            again.iter().map(|(channel, _)| Channel::clone(channel)).collect();
        self.reset(link, &names).await?;
        let fetched = link.fetch(&again).await?;
        places.into_iter().zip(fetched).for_each(|(place, fetched)| *place = fetched);
        Ok(())
    }

    /// Fetches what is missing of a channel.
    pub(super) async fn heal(
        &self,
        link: &impl Link,
        channel: &str,
        id: u64,
        until: Until,
    ) -> Result<(), Fault> {
        let found = self.followed.borrow().get(channel, id);
        let Some(follow) = found else { return Ok(()) };
        let wanted = [(Channel::from(channel), follow.after())];
        let mut refused = Vec::new();
        for fetched in self.fetch(link, &wanted).await? {
            match fetched {
                Ok(fetched) => {
                    self.fetched(channel, id, &fetched, until, GapCause::Missing).await;
                }
                Err(why) => refused.push((Channel::from(channel), id, why)),
            }
        }
        self.reject_subscribed(link, refused).await
    }

    /// Delivers what was missing, or tells that it is not kept any more.
    async fn fetched(
        &self,
        channel: &str,
        id: u64,
        fetched: &Fetched,
        until: Until,
        cause: GapCause,
    ) {
        let found = self.followed.borrow().get(channel, id);
        let Some(follow) = found else { return };
        let is_lost = !fetched.continues(follow.position);
        if is_lost {
            let Fetched { epoch, floor, floor_ms, .. } = *fetched;
            let left = Fetched { epoch, floor, floor_ms, last: floor, messages: Vec::new() };
            // The empty history first: a client that asks before the gap is told is rejected, and one that asked earlier
            // gets the gap. What the broker still keeps is delivered after it.
            self.load(channel, id, &left);
            self.gap(&[channel], cause).await;
        }
        let decoded = fetched.messages.iter().map(|(kept, body)| (*kept, self.decode(body)));
        let mut messages: Vec<(Kept, Option<Message<'_>>)> = decoded.collect();
        let many = match until {
            Until::End => messages.len(),
            Until::Offset(before) => {
                messages.partition_point(|(kept, _)| kept.position.offset < before)
            }
            Until::Sender(node, newest) => {
                let is_wanted = |message: &Message<'_>| {
                    message.node == node
                        && (message.at.epoch != newest.epoch || message.at.number <= newest.number)
                };
                let last = messages
                    .iter()
                    .rposition(|(_, message)| message.as_ref().is_some_and(is_wanted));
                last.map_or(0, |last| last + 1)
            }
        };
        messages.truncate(many);
        if is_lost {
            self.skip_missing(id, messages.iter().filter_map(|(_, message)| message.as_ref()));
        }
        let mut healed = false;
        for (kept, message) in messages {
            let Some(message) = message else {
                self.gap(&[channel], GapCause::Unreadable).await;
                self.followed.borrow_mut().reached(channel, id, kept.position);
                continue;
            };
            match self.kept(channel, id, &message, kept).await {
                Delivered::Yes => healed = true,
                Delivered::Before => {}
                Delivered::No => return,
            }
        }
        self.followed.borrow_mut().set_behind(channel, id, false);
        Counters::add(&self.broker.counters.healed, usize::from(healed));
    }

    /// Notes the number before the first publication of each sender as received: a gap was told for what is missing
    /// before it, and is not told again.
    fn skip_missing<'m>(&self, id: u64, messages: impl Iterator<Item = &'m Message<'m>>) {
        let (mut received, mut senders) =
            (self.received.borrow_mut(), HashSet::<_, RandomState>::default());
        let generation = received.generation();
        for Message { node, at, .. } in messages {
            if senders.insert((*node, at.epoch)) {
                let before = Sequence { number: at.number.saturating_sub(1), ..*at };
                received.publication(id, generation, *node, before);
            }
        }
    }

    /// Replaces what is known of a topic.
    fn load(&self, channel: &str, id: u64, fetched: &Fetched) {
        let Some(topic) = self.broker.topic(channel) else { return };
        if self.followed.borrow().get(channel, id).is_none() {
            return;
        }
        let Fetched { mut floor, mut floor_ms, .. } = *fetched;
        let mut seen: HashSet<_, RandomState> = HashSet::default();
        let mut messages = Vec::with_capacity(fetched.messages.len());
        for (kept, body) in &fetched.messages {
            let Some(message) = self.decode(body) else {
                // A client that has what is before it would miss it.
                (floor, floor_ms) = (kept.position.offset, kept.time_ms);
                messages.clear();
                continue;
            };
            if !seen.insert((message.node, message.at.epoch, message.at.number)) {
                continue;
            }
            messages.push((*kept, message));
        }
        let Fetched { epoch, last, .. } = *fetched;
        Counters::add(&self.broker.counters.loaded, 1);
        self.receiver.loaded(topic, &Past { epoch, floor, floor_ms, last, messages });
        let mut followed = self.followed.borrow_mut();
        followed.reached(channel, id, Position { epoch, offset: last });
        followed.set_behind(channel, id, false);
    }

    /// A topic begins another epoch, and nothing of the one before was missed.
    pub(super) fn begin_epoch(&self, channel: &str, id: u64, kept: Kept) {
        let first = Fetched {
            epoch: kept.position.epoch,
            floor: 0,
            floor_ms: kept.time_ms,
            last: 0,
            messages: Vec::new(),
        };
        self.load(channel, id, &first);
    }

    fn decode<'b>(&self, body: &'b [u8]) -> Option<Message<'b>> {
        match Envelope::decode(body) {
            Ok(Envelope::Publication(message)) => Some(message),
            _ => {
                Counters::add(&self.broker.counters.malformed, 1);
                None
            }
        }
    }
}
