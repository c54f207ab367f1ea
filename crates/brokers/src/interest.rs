//! [`Interest`]: which channels are wanted, and which of them the broker has confirmed. It has no clock and does
//! no I/O.
//!
//! A channel is asked for in batches, and unsubscribed a while after it was wanted for the last time, so that a
//! page that is loaded again costs the broker nothing. After a disconnect nothing is confirmed, and all that is
//! wanted is asked for again; a channel that had been confirmed before has missed something then.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use crate::limits::{BATCH_CHANNELS, LINGERING_MAX, REJECTED_NS, UNWANTED_MAX};
use crate::transport::Channel;

/// Time between attempts to unsubscribe a channel whose confirmation has not arrived yet, in nanoseconds.
const AGAIN_NS: u64 = 100_000_000;
/// How long a channel lingers even if there are too many, in nanoseconds.
const LINGERS_NS: u64 = 1_000_000_000;

/// The channels of one connection.
#[derive(Debug)]
pub struct Interest {
    linger_ns: u64,
    channels: HashMap<Channel, Entry, RandomState>,
    /// To be asked for, with some that are not wanted any more.
    queue: VecDeque<Channel>,
    /// When each channel that nobody wants may go, oldest first, with some that are wanted again.
    lingering: VecDeque<(u64, Channel)>,
    /// When each channel that the broker has refused is asked for again, with its id, oldest first.
    rejected: VecDeque<(u64, u64, Channel)>,
    /// Channels that nobody wants.
    unwanted: usize,
    /// Channels that are not confirmed.
    open: usize,
    /// Channels that went away while there was no connection to unsubscribe them from.
    gone: Vec<Channel>,
    /// The number of the next entry.
    next_id: u64,
}

#[derive(Debug)]
struct Entry {
    /// Differs from that of earlier entries of the channel.
    id: u64,
    /// Somebody has to be told of the confirmation.
    awaited: bool,
    wanted: bool,
    state: State,
    /// It was confirmed before a disconnect: something may be missing.
    missed: bool,
    /// When it may go, while nobody wants it.
    until_ns: u64,
    /// What `confirmed` was given.
    generation: u64,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Queued,
    Asked,
    Confirmed,
    /// The broker has refused it, and is asked again later.
    Rejected,
}

/// What a confirmation means for a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Confirmed {
    /// The channel.
    pub channel: Channel,
    /// Somebody waits for it.
    pub awaited: bool,
    /// It was confirmed before, and then the connection was lost.
    pub missed: bool,
}

/// A subscribed channel.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Subscribed {
    /// Differs from that of every other channel, and from that of the same channel before it was unsubscribed.
    pub id: u64,
    /// The generation given when it was confirmed.
    pub generation: u64,
}

impl Interest {
    /// Nothing is wanted. Channels are unsubscribed `linger_ns` after they were wanted.
    #[must_use]
    pub fn new(linger_ns: u64) -> Self {
        Interest {
            linger_ns,
            channels: HashMap::default(),
            queue: VecDeque::new(),
            lingering: VecDeque::new(),
            rejected: VecDeque::new(),
            unwanted: 0,
            open: 0,
            gone: Vec::new(),
            next_id: 0,
        }
    }

    /// A channel is wanted until [`Interest::release`]. Returns whether there is something new to ask for.
    pub fn want(&mut self, channel: &Channel) -> bool {
        if let Some(entry) = self.channels.get_mut(channel) {
            self.unwanted -= usize::from(!entry.wanted);
            entry.wanted = true;
            return false;
        }
        self.next_id += 1;
        let entry = Entry {
            id: self.next_id,
            awaited: false,
            wanted: true,
            state: State::Queued,
            missed: false,
            until_ns: 0,
            generation: 0,
        };
        self.channels.insert(Channel::clone(channel), entry);
        self.queue.push_back(Channel::clone(channel));
        self.open += 1;
        true
    }

    /// A channel is about to be wanted: it is kept for a moment even if it is not. Returns whether there is
    /// something new to ask for.
    pub fn touch(&mut self, now_ns: u64, channel: &Channel) -> bool {
        let is_known = self.channels.contains_key(channel);
        if !is_known && self.unwanted >= UNWANTED_MAX {
            return false;
        }
        let new = !is_known && self.want(channel);
        if new || self.channels.get(channel).is_some_and(|entry| !entry.wanted) {
            self.release(now_ns, channel);
        }
        new
    }

    /// Nobody wants a channel any more.
    pub fn release(&mut self, now_ns: u64, channel: &str) {
        let Some((channel, _)) = self.channels.get_key_value(channel) else { return };
        let channel = Channel::clone(channel);
        let until_ns = now_ns.saturating_add(self.linger_ns);
        if let Some(entry) = self.channels.get_mut(&channel) {
            self.unwanted += usize::from(entry.wanted);
            (entry.wanted, entry.until_ns) = (false, until_ns);
        }
        self.lingering.push_back((until_ns, channel));
        if self.lingering.len() > LINGERING_MAX.max(2 * self.unwanted) {
            let channels = &self.channels;
            self.lingering.retain(|(until_ns, channel)| {
                let entry = channels.get(channel);
                entry.is_some_and(|entry| !entry.wanted && entry.until_ns == *until_ns)
            });
        }
    }

    /// Whether the broker has confirmed a channel. If not, its confirmation will be `awaited`.
    pub fn confirmed_or_await(&mut self, channel: &str) -> bool {
        let Some(entry) = self.channels.get_mut(channel) else { return false };
        entry.awaited |= entry.state != State::Confirmed;
        entry.state == State::Confirmed
    }

    /// A channel that is wanted or lingers, confirmed or not.
    #[must_use]
    pub fn get(&self, channel: &str) -> Option<Subscribed> {
        let entry = self.channels.get(channel)?;
        Some(Subscribed { id: entry.id, generation: entry.generation })
    }

    /// The next channels to subscribe to, at most [`BATCH_CHANNELS`].
    pub fn take_wanted(&mut self) -> Vec<Channel> {
        let mut batch = Vec::new();
        while batch.len() < BATCH_CHANNELS {
            let Some(channel) = self.queue.pop_front() else { break };
            // It may have been unsubscribed meanwhile, and be wanted again further behind.
            if let Some(entry) = self.channels.get_mut(&channel)
                && entry.state == State::Queued
            {
                entry.state = State::Asked;
                batch.push(channel);
            }
        }
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        batch
    }

    /// The broker has confirmed these: what is published from now on arrives. Returns those that are wanted
    /// still.
    pub fn confirm<'c>(
        &mut self,
        channels: impl IntoIterator<Item = &'c Channel>,
        generation: u64,
    ) -> Vec<Confirmed> {
        let mut confirmed = Vec::new();
        for channel in channels {
            let Some(entry) = self.channels.get_mut(channel) else { continue };
            if entry.state != State::Asked {
                continue;
            }
            (entry.state, entry.generation) = (State::Confirmed, generation);
            self.open -= 1;
            let (awaited, missed) = (entry.awaited, std::mem::take(&mut entry.missed));
            confirmed.push(Confirmed { channel: Channel::clone(channel), awaited, missed });
        }
        confirmed
    }

    /// The broker has refused a channel: nobody is told that it is confirmed, and it is asked for again after
    /// [`REJECTED_NS`]. It is not subscribed any more. Returns whether it was confirmed before; `None` if this is another
    /// entry of the channel.
    pub fn reject(&mut self, now_ns: u64, channel: &Channel, id: u64) -> Option<bool> {
        let entry = self.channels.get_mut(channel).filter(|entry| entry.id == id)?;
        let was_confirmed = match entry.state {
            State::Asked => false,
            State::Confirmed => {
                entry.missed = true;
                self.open += 1;
                true
            }
            State::Queued | State::Rejected => return None,
        };
        (entry.state, entry.awaited) = (State::Rejected, false);
        let again_ns = now_ns.saturating_add(REJECTED_NS);
        self.rejected.push_back((again_ns, id, Channel::clone(channel)));
        Some(was_confirmed)
    }

    /// Channels that the broker refused some time ago are asked for again.
    pub fn retry_rejected(&mut self, now_ns: u64) {
        while self.rejected.front().is_some_and(|(again_ns, ..)| *again_ns <= now_ns) {
            let Some((_, id, channel)) = self.rejected.pop_front() else { break };
            if let Some(entry) = self.channels.get_mut(&channel)
                && entry.id == id
                && entry.state == State::Rejected
            {
                entry.state = State::Queued;
                self.queue.push_back(channel);
            }
        }
        if self.rejected.is_empty() {
            self.rejected = VecDeque::new();
        }
    }

    /// Those who awaited the confirmations of these channels were told.
    pub fn told(&mut self, channels: &[Channel]) {
        for channel in channels {
            if let Some(entry) = self.channels.get_mut(channel)
                && entry.state == State::Confirmed
            {
                entry.awaited = false;
            }
        }
    }

    /// The channels to unsubscribe from now, at most [`BATCH_CHANNELS`]. They are forgotten.
    pub fn take_unwanted(&mut self, now_ns: u64) -> Vec<Channel> {
        let mut batch = Vec::new();
        for _ in 0..self.lingering.len() {
            if batch.len() == BATCH_CHANNELS {
                break;
            }
            // Not those that somebody is about to want.
            let early_ns = match self.unwanted > LINGERING_MAX {
                true => self.linger_ns.saturating_sub(LINGERS_NS),
                false => 0,
            };
            let due_ns = now_ns.saturating_add(early_ns);
            if self.lingering.front().is_none_or(|(until_ns, _)| *until_ns > due_ns) {
                break;
            }
            let Some((until_ns, channel)) = self.lingering.pop_front() else { break };
            let gone = |entry: &&mut Entry| !entry.wanted && entry.until_ns == until_ns;
            let Some(entry) = self.channels.get_mut(&channel).filter(gone) else { continue };
            match entry.state {
                _ if entry.awaited => {
                    let until_ns = now_ns.saturating_add(self.linger_ns.max(AGAIN_NS));
                    entry.until_ns = until_ns;
                    self.lingering.push_back((until_ns, channel));
                }
                State::Asked => {
                    let until_ns = now_ns.saturating_add(AGAIN_NS);
                    entry.until_ns = until_ns;
                    self.lingering.push_back((until_ns, channel));
                }
                State::Queued => {
                    (self.open, self.unwanted) = (self.open - 1, self.unwanted - 1);
                    let missed = entry.missed;
                    self.channels.remove(&channel);
                    if missed {
                        self.gone.push(channel);
                    }
                }
                State::Rejected => {
                    (self.open, self.unwanted) = (self.open - 1, self.unwanted - 1);
                    self.channels.remove(&channel);
                    self.gone.push(channel);
                }
                State::Confirmed => {
                    self.unwanted -= 1;
                    self.channels.remove(&channel);
                    batch.push(channel);
                }
            }
        }
        if self.lingering.is_empty() {
            self.lingering = VecDeque::new();
        }
        batch
    }

    /// Channels that were confirmed or refused once, and have been forgotten without being unsubscribed.
    pub fn take_gone(&mut self) -> Vec<Channel> {
        std::mem::take(&mut self.gone)
    }

    /// Whether channels are to be asked for.
    #[must_use]
    pub fn has_wanted(&self) -> bool {
        !self.queue.is_empty()
    }

    /// When channels are next to be unsubscribed, or asked for again.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        let unwanted = self.lingering.front().map(|(until_ns, _)| *until_ns);
        let again = self.rejected.front().map(|(again_ns, ..)| *again_ns);
        unwanted.into_iter().chain(again).min()
    }

    /// The connection is lost: nothing is confirmed, and everything is asked for again.
    pub fn disconnected(&mut self) {
        let mut all = Vec::with_capacity(self.channels.len());
        for (channel, entry) in &mut self.channels {
            entry.missed |= entry.state == State::Confirmed;
            entry.state = State::Queued;
            all.push((entry.id, Channel::clone(channel)));
        }
        // The oldest first: the order of a table of hashes would differ from run to run.
        all.sort_unstable_by_key(|(id, _)| *id);
        self.queue = all.into_iter().map(|(_, channel)| channel).collect();
        self.open = self.channels.len();
        self.rejected = VecDeque::new();
    }

    /// The broker has ended the subscription of a channel, which is asked for again. Returns the channel's id; `None`
    /// if it was not subscribed.
    pub fn subscription_ended(&mut self, channel: &str) -> Option<u64> {
        let (channel, _) = self.channels.get_key_value(channel)?;
        let channel = Channel::clone(channel);
        let entry = self.channels.get_mut(&channel)?;
        match entry.state {
            State::Queued | State::Rejected => return None,
            // Its confirmation, if it comes, is of the subscription that has ended.
            State::Asked => {}
            State::Confirmed => {
                entry.missed = true;
                self.open += 1;
            }
        }
        entry.state = State::Queued;
        self.queue.push_back(channel);
        Some(entry.id)
    }

    /// Channels that are not confirmed.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// All channels, those that linger included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.channels.len()
    }

    /// Whether nothing is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn channel(name: &str) -> Channel {
        name.into()
    }

    fn names(confirmed: &[Confirmed]) -> Vec<(&str, bool, bool)> {
        confirmed.iter().map(|one| (&*one.channel, one.awaited, one.missed)).collect()
    }

    #[test]
    fn what_somebody_is_about_to_want_is_bounded_while_nothing_is_confirmed() {
        let mut interest = Interest::new(20);
        let all = (0..UNWANTED_MAX).map(|number| channel(&number.to_string()));
        all.for_each(|channel| assert!(interest.touch(0, &channel)));
        assert!(!interest.touch(0, &channel("more")) && !interest.confirmed_or_await("more"));
        assert_eq!(interest.len(), UNWANTED_MAX);
        assert!(interest.want(&channel("more")), "what has a subscriber is wanted all the same");
        interest.take_unwanted(u64::MAX / 2);
        assert!(interest.touch(0, &channel("other")));
    }

    #[test]
    fn a_channel_is_asked_for_once_and_confirmed_once() {
        let mut interest = Interest::new(10);
        assert!(interest.want(&channel("a")) && !interest.want(&channel("a")));
        assert!(!interest.confirmed_or_await("a"));
        let batch = interest.take_wanted();
        assert_eq!((batch.clone(), interest.take_wanted().len()), (vec![channel("a")], 0));
        assert_eq!(interest.open(), 1);
        assert_eq!(names(&interest.confirm(&batch, 3)), [("a", true, false)]);
        assert_eq!(names(&interest.confirm(&batch, 4)), []);
        assert!(interest.confirmed_or_await("a") && interest.open() == 0);
        assert_eq!(interest.get("a"), Some(Subscribed { id: 1, generation: 3 }));
        assert!(!interest.confirmed_or_await("b"), "nobody wants it");
    }

    #[test]
    fn batches_are_bounded() {
        let mut interest = Interest::new(0);
        for number in 0..1_100 {
            assert!(interest.want(&number.to_string().into()));
        }
        let sizes: Vec<usize> = (0..4)
            .map(|_| {
                let batch = interest.take_wanted();
                interest.confirm(&batch, 0);
                batch.len()
            })
            .collect();
        assert_eq!(sizes, [512, 512, 76, 0]);
        (0..1_100).for_each(|number| interest.release(0, &number.to_string()));
        let sizes: Vec<usize> = (0..4).map(|_| interest.take_unwanted(0).len()).collect();
        assert_eq!((sizes, interest.len()), (vec![512, 512, 76, 0], 0));
    }

    #[test]
    fn a_channel_lingers_and_is_kept_if_it_is_wanted_again() {
        let mut interest = Interest::new(10);
        interest.want(&channel("a"));
        let batch = interest.take_wanted();
        interest.confirm(&batch, 0);
        interest.release(5, "a");
        assert_eq!(interest.due_ns(), Some(15));
        assert!(interest.take_unwanted(14).is_empty() && !interest.want(&channel("a")));
        assert!(interest.take_unwanted(15).is_empty() && interest.confirmed_or_await("a"));
        interest.release(20, "a");
        interest.release(22, "a");
        assert!(interest.take_unwanted(30).is_empty(), "since the last time");
        assert_eq!(interest.take_unwanted(32), [channel("a")]);
        assert!(interest.want(&channel("a")), "it has to be asked for again");
        assert_eq!(interest.get("a").unwrap().id, 2);
    }

    #[test]
    fn a_channel_that_is_asked_for_is_not_unsubscribed_before_its_confirmation() {
        let mut interest = Interest::new(0);
        interest.want(&channel("a"));
        let batch = interest.take_wanted();
        interest.release(0, "a");
        assert!(interest.take_unwanted(1).is_empty());
        interest.confirm(&batch, 0);
        assert_eq!(interest.take_unwanted(1 + AGAIN_NS), [channel("a")]);
        interest.want(&channel("b"));
        interest.release(0, "b");
        assert!(interest.take_unwanted(1).is_empty() && interest.take_wanted().is_empty());
        assert_eq!((interest.len(), interest.open()), (0, 0), "it was never asked for");
    }

    #[test]
    fn a_channel_that_is_about_to_be_wanted_is_kept_while_somebody_waits_for_it() {
        let mut interest = Interest::new(10);
        assert!(interest.touch(0, &channel("a")) && !interest.touch(1, &channel("a")));
        assert!(!interest.confirmed_or_await("a"));
        assert_eq!((interest.take_unwanted(50).len(), interest.len()), (0, 1), "it is awaited");
        let batch = interest.take_wanted();
        assert_eq!(names(&interest.confirm(&batch, 0)), [("a", true, false)]);
        assert!(interest.take_unwanted(90).is_empty(), "until they are told");
        interest.told(&batch);
        interest.touch(AGAIN_NS + 45, &channel("a"));
        assert!(interest.take_unwanted(AGAIN_NS + 50).is_empty(), "touched a moment ago");
        assert_eq!(interest.take_unwanted(AGAIN_NS + 55), [channel("a")]);
        interest.want(&channel("b"));
        assert!(!interest.touch(0, &channel("b")));
        assert_eq!((interest.take_unwanted(1_000).len(), interest.len()), (0, 1), "it is wanted");
    }

    #[test]
    fn of_too_many_channels_that_nobody_wants_the_oldest_go_early_but_not_at_once() {
        const SECOND_NS: u64 = 1_000_000_000;
        let mut interest = Interest::new(100 * SECOND_NS);
        let more = 1_000;
        for number in 0..LINGERING_MAX + more {
            let name = channel(&number.to_string());
            interest.touch(0, &name);
            // Flapping takes no memory.
            interest.want(&channel("flaps"));
            interest.release(0, "flaps");
        }
        assert!(interest.lingering.len() <= 2 * (LINGERING_MAX + more) + 2);
        for _ in 0..LINGERING_MAX {
            let batch = interest.take_wanted();
            interest.confirm(&batch, 0);
        }
        assert!(interest.take_unwanted(SECOND_NS - 1).is_empty(), "somebody is about to want them");
        let mut gone = 0;
        loop {
            match interest.take_unwanted(2 * SECOND_NS).len() {
                0 => break,
                many => gone += many,
            }
        }
        assert_eq!((gone, interest.unwanted), (more + 1, LINGERING_MAX));
        assert!(interest.get(&(LINGERING_MAX + more - 1).to_string()).is_some(), "the newest");
        assert_eq!(interest.open(), 0);
    }

    #[test]
    fn after_a_disconnect_everything_is_asked_for_and_only_what_was_confirmed_has_missed_something()
    {
        let mut interest = Interest::new(1_000);
        interest.want(&channel("a"));
        let batch = interest.take_wanted();
        interest.confirm(&batch, 0);
        interest.want(&channel("b"));
        interest.take_wanted();
        interest.disconnected();
        interest.want(&channel("c"));
        assert!(!interest.confirmed_or_await("a") && interest.open() == 3);
        let batch = interest.take_wanted();
        assert_eq!(batch.len(), 3);
        interest.disconnected();
        let batch = interest.take_wanted();
        let mut confirmed = interest.confirm(&batch, 0);
        confirmed.sort_by(|a, b| a.channel.cmp(&b.channel));
        let expected = [("a", true, true), ("b", false, false), ("c", false, false)];
        assert_eq!(names(&confirmed), expected);
        interest.told(&[channel("a")]);
        interest.disconnected();
        for name in ["a", "b"] {
            interest.release(0, name);
        }
        assert!(interest.take_unwanted(AGAIN_NS).is_empty(), "nothing is subscribed");
        let mut gone = interest.take_gone();
        gone.sort();
        assert_eq!((gone, interest.take_gone().len()), (vec![channel("a"), channel("b")], 0));
    }

    #[test]
    fn a_channel_that_the_broker_refuses_is_asked_for_again_later_and_forgotten_when_nobody_wants_it()
     {
        let mut interest = Interest::new(1_000);
        for name in ["bad", "good"] {
            interest.want(&channel(name));
            assert!(!interest.confirmed_or_await(name));
        }
        let batch = interest.take_wanted();
        assert_eq!(interest.reject(0, &batch[0], 9), None, "of another entry");
        assert_eq!(interest.reject(0, &batch[0], 1), Some(false));
        assert_eq!(names(&interest.confirm(&batch, 0)), [("good", true, false)]);
        interest.retry_rejected(REJECTED_NS - 1);
        assert!(interest.take_wanted().is_empty() && interest.due_ns() == Some(REJECTED_NS));
        interest.retry_rejected(REJECTED_NS);
        assert_eq!(interest.take_wanted(), [channel("bad")]);
        assert_eq!(names(&interest.confirm(&batch, 0)), [("bad", false, false)]);
        // One that was confirmed has missed something when it is confirmed again.
        assert_eq!(interest.reject(0, &batch[0], 1), Some(true));
        interest.retry_rejected(REJECTED_NS);
        let batch = interest.take_wanted();
        assert_eq!(names(&interest.confirm(&batch, 0)), [("bad", false, true)]);
        assert_eq!(interest.reject(0, &batch[0], 1), Some(true));
        interest.release(0, "bad");
        assert!(interest.take_unwanted(1_000).is_empty(), "it is not subscribed");
        assert_eq!((interest.take_gone(), interest.len()), (vec![channel("bad")], 1));
        interest.retry_rejected(REJECTED_NS);
        assert!(interest.take_wanted().is_empty() && interest.open() == 0);
    }

    #[test]
    fn a_subscription_that_the_broker_has_ended_is_asked_for_again() {
        let mut interest = Interest::new(1_000);
        for name in ["a", "b"] {
            interest.want(&channel(name));
        }
        assert_eq!(interest.subscription_ended("a"), None, "it is not subscribed yet");
        let batch = interest.take_wanted();
        interest.confirm(&batch[..1], 0);
        assert_eq!((interest.subscription_ended("a"), interest.open()), (Some(1), 2));
        assert_eq!(interest.subscription_ended("b"), Some(2), "before its confirmation");
        assert_eq!(names(&interest.confirm(&batch, 0)), []);
        let again = interest.take_wanted();
        assert_eq!(again, [channel("a"), channel("b")]);
        let confirmed = interest.confirm(&again, 0);
        assert_eq!(names(&confirmed), [("a", false, true), ("b", false, false)]);
        assert_eq!((interest.open(), interest.subscription_ended("c")), (0, None));
    }

    proptest! {
        /// The broker's side of it: a set of subscriptions, lost with the connection.
        #[test]
        fn what_is_wanted_is_subscribed_in_the_end(
            steps in proptest::collection::vec((0..6u8, 0..8u8), 0..200),
        ) {
            let mut interest = Interest::new(3);
            let (mut wanted, mut subscribed) = ([false; 8], std::collections::HashSet::new());
            let (mut now_ns, mut asked): (u64, Vec<Channel>) = (0, Vec::new());
            let work = |interest: &mut Interest, subscribed: &mut std::collections::HashSet<_>,
                        asked: &mut Vec<Channel>, now_ns| {
                subscribed.extend(asked.iter().cloned());
                interest.confirm(&*asked, 0);
                asked.clear();
                for gone in interest.take_unwanted(now_ns) {
                    subscribed.remove(&gone);
                }
                *asked = interest.take_wanted();
            };
            for (step, number) in steps {
                let name: Channel = number.to_string().into();
                now_ns += 1;
                match step {
                    0 | 1 if !wanted[usize::from(number)] => {
                        wanted[usize::from(number)] = true;
                        interest.want(&name);
                    }
                    2 if wanted[usize::from(number)] => {
                        wanted[usize::from(number)] = false;
                        interest.release(now_ns, &name);
                    }
                    3 => {
                        subscribed.clear();
                        asked.clear();
                        interest.disconnected();
                    }
                    _ => work(&mut interest, &mut subscribed, &mut asked, now_ns),
                }
            }
            now_ns += AGAIN_NS + 10;
            for _ in 0..4 {
                work(&mut interest, &mut subscribed, &mut asked, now_ns);
                now_ns += AGAIN_NS + 10;
            }
            let expected = (0..8).filter(|number| wanted[*number]).map(|number| number.to_string());
            let mut expected: Vec<String> = expected.collect();
            let mut found: Vec<String> = subscribed.iter().map(|name| name.to_string()).collect();
            expected.sort();
            found.sort();
            prop_assert_eq!(&expected, &found);
            prop_assert_eq!((interest.open(), interest.len()), (0, expected.len()));
            prop_assert_eq!(interest.unwanted, 0);
        }
    }
}
