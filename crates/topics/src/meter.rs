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
        let (messages, bytes) = (Sketch::default(), Sketch::default());
        self.current.insert(Box::new(Period { begin_ns, messages, bytes }))
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
        self.messages.add(topic, receivers as u64);
        self.bytes.add(topic, (receivers as u64).saturating_mul(bytes as u64));
    }
}

/// Counts of the topics with the largest ones.
#[derive(Default)]
struct Sketch {
    hasher: RandomState,
    by_topic: HashTable<u16>,
    counters: Vec<Counter>,
    /// The count of each counter, apart so that the smallest is found quickly.
    counts: Vec<u64>,
    /// The counter used last: messages of a topic often follow each other.
    last: usize,
}

struct Counter {
    topic: Arc<str>,
    error: u64,
}

impl Sketch {
    #[inline]
    fn add(&mut self, topic: &Arc<str>, weight: u64) {
        let last = self.counters.get(self.last);
        if !last.is_some_and(|last| Arc::ptr_eq(&last.topic, topic)) {
            self.last = self.counter(topic);
        }
        if let Some(count) = self.counts.get_mut(self.last) {
            *count = count.saturating_add(weight);
        }
    }

    /// The counter of a topic, perhaps one taken over from another.
    fn counter(&mut self, topic: &Arc<str>) -> usize {
        let hash = self.hasher.hash_one(&**topic);
        let is = |at: &u16| {
            self.counters.get(usize::from(*at)).is_some_and(|counter| counter.topic == *topic)
        };
        if let Some(at) = self.by_topic.find(hash, is) {
            let at = usize::from(*at);
            if let Some(counter) = self.counters.get_mut(at) {
                // It may have been without subscribers, and has another name in memory now.
                counter.topic = Arc::clone(topic);
            }
            return at;
        }
        let at = self.free_counter(topic);
        let (hasher, counters) = (&self.hasher, &self.counters);
        self.by_topic.insert_unique(hash, at as u16, |at| {
            counters.get(usize::from(*at)).map_or(0, |counter| hasher.hash_one(&*counter.topic))
        });
        at
    }

    /// A counter for a topic that has none: a new one, or the smallest.
    fn free_counter(&mut self, topic: &Arc<str>) -> usize {
        if self.counters.len() < COUNTERS {
            self.counters.push(Counter { topic: Arc::clone(topic), error: 0 });
            self.counts.push(0);
            return self.counters.len() - 1;
        }
        let smallest = self.smallest();
        let at = self.counts.iter().position(|count| *count == smallest).unwrap_or_default();
        let Some(counter) = self.counters.get_mut(at) else {
            broken("a full sketch has counters");
            return 0;
        };
        let hash = self.hasher.hash_one(&*counter.topic);
        match self.by_topic.find_entry(hash, |other| usize::from(*other) == at) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => broken("a counter is found by its topic"),
        }
        *counter = Counter { topic: Arc::clone(topic), error: smallest };
        at
    }

    fn smallest(&self) -> u64 {
        self.counts.iter().copied().min().unwrap_or_default()
    }

    fn counts(&self) -> TopicCounts {
        let counts = self.counters.iter().zip(&self.counts);
        let counts = counts.map(|(Counter { topic, error }, count)| TopicCount {
            topic: Arc::clone(topic),
            count: *count,
            error: *error,
        });
        let full = self.counters.len() == COUNTERS;
        TopicCounts { counts: counts.collect(), others_max: if full { self.smallest() } else { 0 } }
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
        let mut sketch = Sketch::default();
        let mut exact = HashMap::<u64, u64>::new();
        let (mut state, mut total) = (1u64, 0);
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // A few topics are frequent, and there are thousands of others.
            let draw = state >> 33;
            let topic = if draw % 4 == 0 { draw / 4 % 20 } else { draw / 4 % 50_000 };
            let weight = 1 + draw % 3;
            sketch.add(&topic.to_string().into(), weight);
            *exact.entry(topic).or_default() += weight;
            total += weight;
        }
        assert_eq!((sketch.counters.len(), sketch.by_topic.len()), (COUNTERS, COUNTERS));
        let counts = sketch.counts();
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
