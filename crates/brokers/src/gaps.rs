//! Gaps: what is missing among the publications of other nodes, found by the numbers that they carry.
//!
//! [`Sequences`] is the sender's side: it numbers the publications of each channel, and repeats the newest number
//! a while after the last one (a *beacon*), so that a loss at the end is found. [`Received`] is the receiver's side.
//! Both are bounded, and what they forget is never taken for complete: a sender that has forgotten a channel begins
//! a new epoch, and a receiver that may have forgotten a sender reports a gap. Neither has a clock.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use foldhash::fast::RandomState;

use crate::envelope::{NodeId, Sequence};
use crate::transport::Channel;

/// The most recently used entries: at least half of `max`, at most `max`.
#[derive(Debug)]
struct Recent<K, V> {
    max: usize,
    young: HashMap<K, V, RandomState>,
    old: HashMap<K, V, RandomState>,
    /// How many times entries had to go.
    evictions: u64,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    fn new(max: usize) -> Self {
        Recent { max: max.max(2), young: HashMap::default(), old: HashMap::default(), evictions: 0 }
    }

    fn get_mut<Q: ?Sized + Eq + Hash>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: std::borrow::Borrow<Q>,
    {
        if !self.young.contains_key(key)
            && let Some((key, value)) = self.old.remove_entry(key)
        {
            self.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// Adds an entry that is not there. The least recently used ones may have to go.
    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.max / 2 {
            self.evictions += u64::from(!self.old.is_empty());
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// The numbers of what this node publishes.
#[derive(Debug)]
pub struct Sequences {
    beacon_ns: u64,
    channels: Recent<Channel, Sent>,
    /// When each beacon is due, oldest first, with some that are not due any more.
    beacons: VecDeque<(u64, Channel)>,
    epochs: u32,
}

#[derive(Debug)]
struct Sent {
    newest: Sequence,
    /// When the beacon is due; `None` if it was sent, or is not needed.
    due_ns: Option<u64>,
}

/// A beacon to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beacon {
    /// Where.
    pub channel: Channel,
    /// The newest publication there.
    pub newest: Sequence,
}

impl Sequences {
    /// Nothing was published. A beacon follows `beacon_ns` after a publication; at most `channels_max` channels are
    /// remembered.
    #[must_use]
    pub fn new(beacon_ns: u64, channels_max: usize) -> Self {
        Sequences {
            beacon_ns,
            channels: Recent::new(channels_max),
            beacons: VecDeque::new(),
            epochs: 0,
        }
    }

    /// The number of the next publication to a channel.
    pub fn next(&mut self, now_ns: u64, channel: &Channel) -> Sequence {
        let due_ns = now_ns.saturating_add(self.beacon_ns);
        if let Some(sent) = self.channels.get_mut(channel) {
            sent.newest.number += 1;
            if sent.due_ns.replace(due_ns).is_none() {
                self.beacons.push_back((due_ns, Channel::clone(channel)));
            }
            return sent.newest;
        }
        self.epochs = self.epochs.wrapping_add(1);
        let newest = Sequence { epoch: self.epochs, number: 1 };
        let sent = Sent { newest, due_ns: Some(due_ns) };
        self.channels.insert(Channel::clone(channel), sent);
        self.beacons.push_back((due_ns, Channel::clone(channel)));
        newest
    }

    /// The broker has a publication, and how many connections got it: without any, nobody needs a beacon.
    pub fn published(&mut self, channel: &str, at: Sequence, reached: Option<u64>) {
        if reached == Some(0)
            && let Some(sent) = self.channels.get_mut(channel)
            && sent.newest == at
        {
            sent.due_ns = None;
        }
    }

    /// The beacons that are due, at most `most`.
    pub fn take_due(&mut self, now_ns: u64, most: usize) -> Vec<Beacon> {
        let mut due = Vec::new();
        while due.len() < most {
            let Some((due_ns, _)) = self.beacons.front() else { break };
            if *due_ns > now_ns {
                break;
            }
            let Some((_, channel)) = self.beacons.pop_front() else { break };
            let Some(sent) = self.channels.get_mut(&channel) else { continue };
            match sent.due_ns {
                Some(due_ns) if due_ns <= now_ns => {
                    sent.due_ns = None;
                    due.push(Beacon { channel, newest: sent.newest });
                }
                // Something was published meanwhile.
                Some(later_ns) => self.beacons.push_back((later_ns, channel)),
                None => {}
            }
        }
        if self.beacons.is_empty() {
            self.beacons = VecDeque::new();
        }
        due
    }

    /// When the next beacon may be due.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.beacons.front().map(|(due_ns, _)| *due_ns)
    }

    /// Channels that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.channels.len()
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a number tells.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Observed {
    /// Nothing is missing.
    InOrder,
    /// It was received before.
    Repeated,
    /// So many are missing before it; `None` if their number is unknown.
    Gap(Option<u64>),
}

/// The newest numbers received.
#[derive(Debug)]
pub struct Received {
    senders: Recent<(u64, NodeId), Sequence>,
}

impl Received {
    /// Nothing was received. At most `senders_max` pairs of channel and sender are remembered.
    #[must_use]
    pub fn new(senders_max: usize) -> Self {
        Received { senders: Recent::new(senders_max) }
    }

    /// To be kept with a channel when its subscription is confirmed: what was forgotten since may be its senders.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.senders.evictions
    }

    /// A publication arrived in the channel with this number, which was confirmed at a generation.
    pub fn publication(
        &mut self,
        channel: u64,
        confirmed_at: u64,
        node: NodeId,
        at: Sequence,
    ) -> Observed {
        let Some(last) = self.senders.get_mut(&(channel, node)) else {
            let forgotten = self.generation() != confirmed_at;
            self.senders.insert((channel, node), at);
            // Without having forgotten anything: what came before was before the subscription.
            return if forgotten { Observed::Gap(None) } else { Observed::InOrder };
        };
        if at.epoch != last.epoch {
            // The sender has forgotten the channel, and perhaps more than once.
            if is_older(at, *last) {
                return Observed::Repeated;
            }
            *last = at;
            return Observed::Gap(None);
        }
        match at.number.checked_sub(last.number) {
            Some(0) | None => Observed::Repeated,
            Some(steps) => {
                *last = at;
                if steps == 1 { Observed::InOrder } else { Observed::Gap(Some(steps - 1)) }
            }
        }
    }

    /// A beacon arrived.
    pub fn beacon(
        &mut self,
        channel: u64,
        confirmed_at: u64,
        node: NodeId,
        newest: Sequence,
    ) -> Observed {
        let Some(last) = self.senders.get_mut(&(channel, node)) else {
            let forgotten = self.generation() != confirmed_at;
            self.senders.insert((channel, node), newest);
            return if forgotten { Observed::Gap(None) } else { Observed::InOrder };
        };
        if newest.epoch != last.epoch {
            if is_older(newest, *last) {
                return Observed::InOrder;
            }
            *last = newest;
            return Observed::Gap(None);
        }
        match newest.number.checked_sub(last.number) {
            // Publications are ahead of it.
            Some(0) | None => Observed::InOrder,
            missing => {
                *last = newest;
                Observed::Gap(missing)
            }
        }
    }

    /// Whether something of a sender up to this number was not received, if it is known.
    pub fn is_missing(&mut self, channel: u64, node: NodeId, newest: Sequence) -> bool {
        self.senders.get_mut(&(channel, node)).is_some_and(|last| {
            if newest.epoch == last.epoch {
                newest.number > last.number
            } else {
                !is_older(newest, *last)
            }
        })
    }

    /// Pairs of channel and sender that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.senders.len()
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether a number is of an earlier epoch: later ones of a process have higher numbers, and may wrap.
fn is_older(at: Sequence, than: Sequence) -> bool {
    at.epoch.wrapping_sub(than.epoch) > u32::MAX / 2
}

#[cfg(test)]
#[path = "gaps_tests.rs"]
mod tests;
