//! [`Meter`]: the topics of one worker with most traffic, in bounded memory.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in
//! data streams, 2005): a fixed number of counters, and a topic without one takes over the smallest,
//! whose count becomes its possible error.

use std::hash::BuildHasher;
use std::sync::Arc;

use engine::invariant::broken;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Counters of a sketch. A topic with more than one in so many of all messages always has one.
const COUNTERS: usize = 256;
/// The length of a period, in nanoseconds. Periods begin at multiples of it, so those of all workers
/// are the same.
const PERIOD_NS: u64 = 60_000_000_000;

/// The topics of one worker with most traffic, in the current period and the one before.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// By messages, counted per receiver: a part for each period.
    pub messages: Vec<TopicCounts>,
    /// By bytes of messages before encoding, counted per receiver: a part for each period.
    pub bytes: Vec<TopicCounts>,
    /// The time that the two periods cover up to now, in nanoseconds.
    pub covered_ns: u64,
}

/// The largest counts of topics.
#[derive(Clone, Debug, Default)]
pub struct TopicCounts {
    /// Topics with their counts.
    pub counts: Vec<TopicCount>,
    /// The most that any other topic can have; 0 if there is none.
    pub others_max: u64,
}

/// A topic's count. The true one is at most `error` less.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicCount {
    /// The topic.
    pub topic: Arc<str>,
    /// The count.
    pub count: u64,
    /// By how much it may be too high.
    pub error: u64,
}

/// Measures the traffic of one worker's topics. It takes no memory before the first message.
#[derive(Default)]
pub(crate) struct Meter {
    current: Option<Box<Period>>,
    previous: Option<Box<Period>>,
}

struct Period {
    begin_ns: u64,
    hasher: RandomState,
    messages: Sketch,
    bytes: Sketch,
}

impl Meter {
    /// Counts a message of `bytes` bytes to `receivers` receivers.
    #[inline]
    pub(crate) fn count(&mut self, now_ns: u64, topic: &Arc<str>, receivers: usize, bytes: usize) {
        match &mut self.current {
            Some(period) if now_ns.wrapping_sub(period.begin_ns) < PERIOD_NS => {
                period.count(topic, receivers, bytes);
            }
            _ => self.begin_period(now_ns).count(topic, receivers, bytes),
        }
    }

    #[cold]
    fn begin_period(&mut self, now_ns: u64) -> &mut Period {
        let begin_ns = now_ns - now_ns % PERIOD_NS;
        let ended = self.current.take();
        self.previous = ended.filter(|ended| ended.begin_ns.saturating_add(PERIOD_NS) == begin_ns);
        self.current.insert(Box::new(Period {
            begin_ns,
            hasher: RandomState::default(),
            messages: Sketch::default(),
            bytes: Sketch::default(),
        }))
    }

    /// What was counted in the current period and in the one before.
    pub(crate) fn traffic(&self, now_ns: u64) -> Traffic {
        let begin_ns = now_ns - now_ns % PERIOD_NS;
        let recent = |period: &&Period| period.begin_ns.saturating_add(PERIOD_NS) >= begin_ns;
        let all = || self.current.as_deref().into_iter().chain(self.previous.as_deref());
        let periods = || all().filter(recent);
        Traffic {
            messages: periods().map(|period| period.messages.counts()).collect(),
            bytes: periods().map(|period| period.bytes.counts()).collect(),
            covered_ns: (now_ns % PERIOD_NS).saturating_add(PERIOD_NS).min(now_ns),
        }
    }
}

impl Period {
    fn count(&mut self, topic: &Arc<str>, receivers: usize, bytes: usize) {
        if !(self.messages.is_last(topic) && self.bytes.is_last(topic)) {
            let hash = self.hasher.hash_one(&**topic);
            self.messages.find(topic, hash);
            self.bytes.find(topic, hash);
        }
        self.messages.add(receivers as u64);
        self.bytes.add((receivers as u64).saturating_mul(bytes as u64));
    }
}

/// Counts of the topics with the largest ones.
#[derive(Default)]
struct Sketch {
    by_topic: HashTable<u16>,
    counters: Vec<Counter>,
    /// The counters as a binary heap, the smallest count first.
    heap: Vec<u16>,
    /// The counter found last: messages of a topic often follow each other.
    last: u16,
}

struct Counter {
    topic: Arc<str>,
    hash: u64,
    count: u64,
    error: u64,
    /// Where the heap has it.
    position: u16,
}

impl Sketch {
    #[inline]
    fn is_last(&self, topic: &Arc<str>) -> bool {
        self.get(self.last).is_some_and(|last| Arc::ptr_eq(&last.topic, topic))
    }

    /// Adds to the counter found last.
    #[inline]
    fn add(&mut self, weight: u64) {
        if let Some(counter) = self.counters.get_mut(usize::from(self.last)) {
            counter.count = counter.count.saturating_add(weight);
            let position = counter.position;
            self.sink(usize::from(position));
        }
    }

    /// Finds the counter of a topic: perhaps a new one, or the smallest of another topic.
    fn find(&mut self, topic: &Arc<str>, hash: u64) {
        let is = |at: &u16| self.get(*at).is_some_and(|counter| counter.topic == *topic);
        if let Some(at) = self.by_topic.find(hash, is) {
            self.last = *at;
            if let Some(counter) = self.counters.get_mut(usize::from(*at)) {
                // It may have been without subscribers, and has another name in memory now.
                counter.topic = Arc::clone(topic);
            }
            return;
        }
        self.last = match self.counters.len() {
            COUNTERS => self.take_over(topic, hash),
            at => {
                let (topic, position) = (Arc::clone(topic), at as u16);
                self.counters.push(Counter { topic, hash, count: 0, error: 0, position });
                self.heap.push(at as u16);
                self.rise(at);
                at as u16
            }
        };
        let counters = &self.counters;
        self.by_topic.insert_unique(hash, self.last, |at| {
            counters.get(usize::from(*at)).map_or(0, |counter| counter.hash)
        });
    }

    /// Gives the smallest counter to a topic.
    fn take_over(&mut self, topic: &Arc<str>, hash: u64) -> u16 {
        let at = self.heap.first().copied().unwrap_or_default();
        let Some(counter) = self.counters.get_mut(usize::from(at)) else {
            broken("a full sketch has counters");
            return 0;
        };
        match self.by_topic.find_entry(counter.hash, |other| *other == at) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => broken("a counter is found by its topic"),
        }
        counter.topic = Arc::clone(topic);
        counter.hash = hash;
        counter.error = counter.count;
        at
    }

    fn get(&self, at: u16) -> Option<&Counter> {
        self.counters.get(usize::from(at))
    }

    fn count_at(&self, position: usize) -> Option<u64> {
        self.get(*self.heap.get(position)?).map(|counter| counter.count)
    }

    /// Moves a counter that has grown away from the smallest.
    fn sink(&mut self, mut position: usize) {
        while let Some(left) = self.count_at(2 * position + 1) {
            let right = self.count_at(2 * position + 2).filter(|right| *right < left);
            let child = 2 * position + if right.is_some() { 2 } else { 1 };
            if self.count_at(position).is_none_or(|own| own <= right.unwrap_or(left)) {
                return;
            }
            self.swap(position, child);
            position = child;
        }
    }

    /// Moves a new counter, which is the smallest, to its place.
    fn rise(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.count_at(parent) <= self.count_at(position) {
                return;
            }
            self.swap(position, parent);
            position = parent;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for position in [one, other] {
            let at = self.heap.get(position).copied().unwrap_or_default();
            if let Some(counter) = self.counters.get_mut(usize::from(at)) {
                counter.position = position as u16;
            }
        }
    }

    fn counts(&self) -> TopicCounts {
        let counts = self.counters.iter().map(|counter| TopicCount {
            topic: Arc::clone(&counter.topic),
            count: counter.count,
            error: counter.error,
        });
        let smallest = self.count_at(0).filter(|_| self.counters.len() == COUNTERS);
        TopicCounts { counts: counts.collect(), others_max: smallest.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn find(counts: &TopicCounts, topic: &str) -> Option<(u64, u64)> {
        let found = counts.counts.iter().find(|one| &*one.topic == topic);
        found.map(|one| (one.count, one.error))
    }

    #[test]
    fn few_topics_are_counted_exactly() {
        let mut meter = Meter::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        for _ in 0..10 {
            meter.count(SECOND, &a, 3, 100);
            meter.count(SECOND, &b, 1, 1000);
        }
        // The same topic under another name in memory.
        meter.count(SECOND, &"a".into(), 3, 100);
        let traffic = meter.traffic(2 * SECOND);
        assert_eq!((traffic.messages.len(), traffic.covered_ns), (1, 2 * SECOND));
        assert_eq!(find(&traffic.messages[0], "a"), Some((33, 0)));
        assert_eq!(find(&traffic.bytes[0], "a"), Some((3300, 0)));
        assert_eq!(find(&traffic.bytes[0], "b"), Some((10_000, 0)));
        assert_eq!(traffic.messages[0].others_max, 0);
    }

    #[test]
    fn any_number_of_topics_takes_the_same_memory_and_errors_are_bounded() {
        let (mut sketch, hasher) = (Sketch::default(), RandomState::default());
        let mut exact = HashMap::<u64, u64>::new();
        let (mut state, mut total) = (1u64, 0);
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // A few topics are frequent, and there are thousands of others.
            let draw = state >> 33;
            let topic = if draw % 4 == 0 { draw / 4 % 20 } else { draw / 4 % 50_000 };
            let weight = 1 + draw % 3;
            let name: Arc<str> = topic.to_string().into();
            sketch.find(&name, hasher.hash_one(&*name));
            sketch.add(weight);
            *exact.entry(topic).or_default() += weight;
            total += weight;
        }
        assert_eq!((sketch.counters.len(), sketch.by_topic.len()), (COUNTERS, COUNTERS));
        let counts = sketch.counts();
        let smallest = sketch.counters.iter().map(|counter| counter.count).min();
        assert_eq!(smallest, Some(counts.others_max), "the heap is in order");
        assert!(counts.others_max <= total / COUNTERS as u64);
        for (topic, count) in exact {
            match find(&counts, &topic.to_string()) {
                Some((upper, error)) => {
                    assert!(upper >= count && upper - error <= count, "{topic}: {count}");
                }
                None => assert!(count <= counts.others_max, "{topic} has {count}"),
            }
        }
        let frequent = (0..20).filter(|topic: &u64| find(&counts, &topic.to_string()).is_some());
        assert_eq!(frequent.count(), 20);
    }

    #[test]
    fn counts_are_of_this_period_and_the_one_before() {
        let mut meter = Meter::default();
        let topic: Arc<str> = "a".into();
        let at = |minute: u64| minute * PERIOD_NS + 10 * SECOND;
        meter.count(at(5), &topic, 1, 1);
        meter.count(at(6), &topic, 10, 1);
        let sum = |meter: &Meter, now_ns| -> u64 {
            meter
                .traffic(now_ns)
                .messages
                .iter()
                .flat_map(|part| &part.counts)
                .map(|c| c.count)
                .sum()
        };
        assert_eq!((sum(&meter, at(6)), sum(&meter, at(7)), sum(&meter, at(8))), (11, 10, 0));
        assert_eq!(meter.traffic(at(6)).covered_ns, 70 * SECOND);
        meter.count(at(9), &topic, 100, 1);
        assert_eq!(sum(&meter, at(9)), 100, "a period without messages is between");
    }
}
