//! [`Ledger`]: what was published, by topic and offset, and whether a gap that a reader is told of is one.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use topics::{Epoch, KeptAt, Position, Publication, Unavailable};

use super::scenario::Scenario;
use crate::ledger::Judge;

/// Bytes that a kept publication may count beyond its payload, at most.
const KEPT_BYTES_MAX: usize = 512;

/// One book for all.
pub(crate) type Ledger = crate::ledger::Ledger<Book>;

/// A publication.
struct Entry {
    number: u32,
    at_ns: u64,
    bytes: usize,
}

/// What the runs of all seeds together should have seen.
#[derive(Default)]
pub(crate) struct Coverage {
    /// Replays that began, and those that sent in more than one portion.
    pub(crate) replays: u64,
    pub(crate) portions: u64,
    /// Readers that returned when exactly the first kept publication was missing.
    pub(crate) at_the_edge: u64,
    /// Gaps that were told, by reason; in the middle of a replay.
    pub(crate) gaps: [u64; Unavailable::ALL.len()],
    pub(crate) overtaken: u64,
    /// Messages that readers got.
    pub(crate) messages: u64,
}

pub(crate) struct Book {
    pub(crate) failure: Option<String>,
    /// No new work is begun, and no fault is drawn.
    pub(crate) calm: bool,
    pub(crate) epoch: Epoch,
    topics: Vec<BTreeMap<u64, Entry>>,
    /// Publications so far. Each has a time of its own, so that which is older is no matter of chance.
    numbers: u32,
    limits: topics::HistoryLimits,
    tight: bool,
    broker: Option<u64>,
    pub(crate) coverage: Coverage,
}

impl Judge for Book {
    fn failure(&mut self) -> &mut Option<String> {
        &mut self.failure
    }
}

impl Book {
    pub(crate) fn new(scenario: &Scenario, epoch: Epoch) -> Self {
        Book {
            failure: None,
            calm: false,
            epoch,
            topics: (0..scenario.topics).map(|_| BTreeMap::new()).collect(),
            numbers: 0,
            limits: scenario.history,
            tight: scenario.tight,
            broker: scenario.broker,
            coverage: Coverage::default(),
        }
    }

    /// A publication that is about to be made.
    pub(crate) fn write(&mut self, topic: u32, filler: usize, now_ns: u64) -> Publication {
        self.numbers += 1;
        let mut data = format!("{:08x}", self.numbers).into_bytes();
        data.resize(8 + filler, b'.');
        let at_ns = now_ns + u64::from(self.numbers);
        Publication::new(topic.to_string().into(), data.into(), false).accepted(at_ns)
    }

    /// The place that the broker gives to a publication, if there is one.
    pub(crate) fn kept_at(&self, topic: u32, publication: &Publication) -> Option<KeptAt> {
        let step = 1 + u64::from(self.numbers).wrapping_mul(7_919) % self.broker?;
        let position = Position { epoch: self.epoch, offset: self.last(topic) + step };
        Some(KeptAt { position, at_ns: publication.accepted_ns })
    }

    /// It was made.
    pub(crate) fn published(&mut self, topic: u32, publication: &Publication) {
        let number = number_of(&publication.data).unwrap_or(0);
        let (epoch, Some(position)) = (self.epoch, publication.position()) else {
            return self.fail(format!("{number} was published without a position"));
        };
        let entry = Entry {
            number,
            at_ns: publication.accepted_ns,
            bytes: publication.data.len() + KEPT_BYTES_MAX,
        };
        let last = self.last(topic);
        self.require(position.epoch == epoch && position.offset > last, || {
            format!("{number} was published at {position:?}, after {last}")
        });
        if let Some(entries) = self.topics.get_mut(topic as usize) {
            entries.insert(position.offset, entry);
        }
    }

    /// The offset of a topic's last publication; 0 if there is none.
    pub(crate) fn last(&self, topic: u32) -> u64 {
        let entries = self.topics.get(topic as usize);
        entries.and_then(|all| all.last_key_value()).map_or(0, |(offset, _)| *offset)
    }

    /// The offset of the publication after an offset.
    pub(crate) fn next_after(&self, topic: u32, offset: u64) -> Option<u64> {
        let entries = self.topics.get(topic as usize)?;
        entries.range((Excluded(offset), Unbounded)).next().map(|(offset, _)| *offset)
    }

    /// The number of the publication at an offset.
    pub(crate) fn number_at(&self, topic: u32, offset: u64) -> Option<u32> {
        Some(self.topics.get(topic as usize)?.get(&offset)?.number)
    }

    /// A reader that has everything up to an offset is told of a gap: there must be one.
    pub(crate) fn gap(
        &mut self,
        topic: u32,
        epoch: Epoch,
        offset: u64,
        why: Unavailable,
        now_ns: u64,
    ) {
        if let Some(count) = self.coverage.gaps.get_mut(why as usize) {
            *count += 1;
        }
        let last = self.last(topic);
        let is_one = match why {
            Unavailable::Epoch => epoch != self.epoch,
            Unavailable::Ahead => epoch == self.epoch && offset > last,
            Unavailable::Evicted => {
                epoch == self.epoch && self.may_be_evicted(topic, offset, now_ns)
            }
        };
        self.require(is_one, || {
            format!("a gap after {offset} of {topic} was told, {why:?}, last is {last}")
        });
    }

    /// Whether the publication after an offset may have been evicted, by the limits alone.
    fn may_be_evicted(&self, topic: u32, offset: u64, now_ns: u64) -> bool {
        let Some(entries) = self.topics.get(topic as usize) else { return false };
        let later = || entries.range((Excluded(offset), Unbounded));
        let old =
            |entry: &Entry| entry.at_ns + self.limits.age_ns <= now_ns + u64::from(self.numbers);
        let Some((first, entry)) = later().next() else {
            // The entry of the topic was removed: its last publication is old.
            return self.tight || entries.get(&offset).is_some_and(old);
        };
        let bytes: usize = later().map(|(_, entry)| entry.bytes).sum();
        self.tight
            || later().count() > self.limits.messages
            || bytes > self.limits.topic_bytes
            || old(entry)
            || self.broker.is_none() && *first > offset + 1
    }

    /// A reader returns to what is available, after this offset.
    pub(crate) fn returns(&mut self, topic: u32, offset: u64) {
        self.coverage.replays += 1;
        let entries = self.topics.get(topic as usize);
        let later = entries.map_or(0, |all| all.range((Excluded(offset), Unbounded)).count());
        self.coverage.at_the_edge += u64::from(later == self.limits.messages);
    }
}

/// The number at the beginning of a publication's data.
pub(crate) fn number_of(data: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(data.get(..8)?).ok()?, 16).ok()
}
