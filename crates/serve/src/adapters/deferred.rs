//! [`Deferred`]: what came in by an adapter and was refused, because its topic is overloaded or a mailbox is
//! full. It waits in bounded memory, in order within its topic, and delays no other topic. It has no clock
//! and publishes nothing.

use std::collections::{HashMap, VecDeque};

/// Memory counted for an entry beside what it holds, in bytes.
const ENTRY_BYTES: usize = 64;

/// Whether something was accepted, or is to be tried again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Accepted,
    Refused,
}

/// What waits, by lane: a topic, or the empty name for commands.
pub(super) struct Deferred<W> {
    lanes: HashMap<Box<str>, Lane<W>>,
    bytes: usize,
    bytes_max: usize,
    /// How many pieces of a message still wait, by its number.
    messages: HashMap<u64, usize>,
}

struct Lane<W> {
    waiting: VecDeque<Waiting<W>>,
    bytes: usize,
}

struct Waiting<W> {
    work: W,
    bytes: usize,
    message: u64,
}

impl<W> Deferred<W> {
    pub(super) fn new(bytes_max: usize) -> Self {
        Deferred { lanes: HashMap::new(), bytes: 0, bytes_max, messages: HashMap::new() }
    }

    /// Memory of what waits, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether earlier pieces of this lane wait, so that another one has to wait behind them.
    pub(super) fn is_waiting(&self, lane: &str) -> bool {
        self.lanes.contains_key(lane)
    }

    /// Keeps a piece of a message; false if there is no room. A lane may have as many bytes as all leave
    /// free. With `always` it is kept anyway: its message is kept elsewhere until it is accepted, so the
    /// caller bounds what it takes.
    pub(super) fn push(
        &mut self,
        lane: &str,
        work: W,
        bytes: usize,
        message: u64,
        always: bool,
    ) -> bool {
        let bytes = bytes + ENTRY_BYTES;
        let of_lane = self.lanes.get(lane).map_or(0, |lane| lane.bytes);
        if !always && of_lane + bytes > self.bytes_max.saturating_sub(self.bytes) {
            return false;
        }
        self.bytes += bytes;
        *self.messages.entry(message).or_default() += 1;
        let waiting = Waiting { work, bytes, message };
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.waiting.push_back(waiting);
            lane.bytes += bytes;
        } else {
            let waiting = VecDeque::from([waiting]);
            self.lanes.insert(lane.into(), Lane { waiting, bytes });
        }
        true
    }

    /// Tries everything again, each lane up to its first piece that is refused. Returns the numbers of the
    /// messages of which nothing waits any more.
    pub(super) fn retry(&mut self, mut attempt: impl FnMut(&W) -> Attempt) -> Vec<u64> {
        let (mut complete, messages, bytes) = (Vec::new(), &mut self.messages, &mut self.bytes);
        self.lanes.retain(|_, lane| {
            while let Some(first) = lane.waiting.front() {
                if attempt(&first.work) == Attempt::Refused {
                    return true;
                }
                lane.bytes -= first.bytes;
                *bytes -= first.bytes;
                let left = messages.get_mut(&first.message).map(|left| {
                    *left -= 1;
                    *left
                });
                if left == Some(0) {
                    messages.remove(&first.message);
                    complete.push(first.message);
                }
                lane.waiting.pop_front();
            }
            false
        });
        if self.lanes.is_empty() {
            (self.lanes, self.messages) = Default::default();
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_its_order_and_delays_no_other() {
        let mut deferred = Deferred::new(10_000);
        for (lane, work, message) in [("a", 1, 7), ("b", 2, 7), ("a", 3, 8), ("b", 4, 9)] {
            assert!(deferred.push(lane, work, 10, message, false));
        }
        assert!(deferred.is_waiting("a") && !deferred.is_waiting("c"));
        let mut tried = Vec::new();
        let complete = deferred.retry(|work| {
            tried.push(*work);
            if *work == 1 { Attempt::Refused } else { Attempt::Accepted }
        });
        tried.sort_unstable();
        assert_eq!(tried, [1, 2, 4], "3 is behind 1");
        assert_eq!(complete, [9], "of 7 one piece still waits");
        assert!(!deferred.is_waiting("b") && deferred.bytes() > 0);
        let mut tried = Vec::new();
        let complete = deferred.retry(|work| {
            tried.push(*work);
            Attempt::Accepted
        });
        assert_eq!((tried, complete), (vec![1, 3], vec![7, 8]));
        assert!(deferred.bytes() == 0 && deferred.messages.is_empty());
    }

    #[test]
    fn memory_is_bounded_and_a_lane_leaves_room_for_others() {
        let mut deferred = Deferred::new(64 * 1024);
        let fill = |deferred: &mut Deferred<()>, lane: &str| {
            (0..10_000).take_while(|n| deferred.push(lane, (), 1_000, *n, false)).count()
        };
        let (first, second) = (fill(&mut deferred, "a"), fill(&mut deferred, "b"));
        assert!(first >= 30 && second >= 14, "{first}, {second}");
        fill(&mut deferred, "c");
        assert!(deferred.bytes() <= 64 * 1024);
        assert!(deferred.push("a", (), 1_000, 0, true), "what is kept elsewhere");
        deferred.retry(|()| Attempt::Accepted);
        assert!(deferred.bytes() == 0 && fill(&mut deferred, "a") == first, "empty again");
    }
}
