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
    /// To be asked for after these: nobody wanted them when the connection was lost.
    later: VecDeque<Channel>,
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
    /// It is among those that are asked for later.
    later: bool,
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
            later: VecDeque::new(),
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
            return self.ask_now(channel);
        }
        self.next_id += 1;
        let entry = Entry {
            id: self.next_id,
            awaited: false,
            wanted: true,
            later: false,
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

    /// A channel that would be asked for later is asked for with the others. Returns whether it was one.
    fn ask_now(&mut self, channel: &str) -> bool {
        let name = match self.channels.get_key_value(channel) {
            Some((name, entry)) if entry.later => Channel::clone(name),
            _ => return false,
        };
        if let Some(entry) = self.channels.get_mut(channel) {
            entry.later = false;
        }
        self.queue.push_back(name);
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
        self.ask_now(channel);
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
            let next = self.queue.pop_front().or_else(|| self.later.pop_front());
            let Some(channel) = next else { break };
            // It may have been unsubscribed meanwhile, and be wanted again further behind.
            if let Some(entry) = self.channels.get_mut(&channel)
                && entry.state == State::Queued
            {
                (entry.state, entry.later) = (State::Asked, false);
                batch.push(channel);
            }
        }
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        if self.later.is_empty() {
            self.later = VecDeque::new();
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

    /// The broker has refused a channel: its subscriptions stay unconfirmed, and it is asked for again after
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
        !self.queue.is_empty() || !self.later.is_empty()
    }

    /// When channels are next to be unsubscribed, or asked for again.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        let unwanted = self.lingering.front().map(|(until_ns, _)| *until_ns);
        let again = self.rejected.front().map(|(again_ns, ..)| *again_ns);
        unwanted.into_iter().chain(again).min()
    }

    /// The connection is lost: nothing is confirmed, and everything is asked for again, what nobody wants last.
    pub fn disconnected(&mut self) {
        let mut all = Vec::with_capacity(self.channels.len() - self.unwanted);
        let mut later = Vec::with_capacity(self.unwanted);
        for (channel, entry) in &mut self.channels {
            entry.missed |= entry.state == State::Confirmed;
            entry.state = State::Queued;
            entry.later = !entry.wanted && !entry.awaited;
            let list = if entry.later { &mut later } else { &mut all };
            list.push((entry.id, Channel::clone(channel)));
        }
        // The oldest first: the order of a table of hashes would differ from run to run.
        all.sort_unstable_by_key(|(id, _)| *id);
        later.sort_unstable_by_key(|(id, _)| *id);
        self.later = later.into_iter().map(|(_, channel)| channel).collect();
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

    /// Channels that somebody wants or waits for, of those that are to be asked for.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
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
#[path = "interest_tests.rs"]
mod tests;
