//! [`InFlight`]: the connects in flight of a run, and how many there may be.
//!
//! A connect is in flight until it is a WebSocket, with Action Cable until it is subscribed, or has
//! failed. The bound is divided over lanes: the workers of one lane connect one after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Config, Connect};

/// Shared by all workers of a run. Counted per connect, never per message.
pub(crate) struct InFlight {
    lanes: Box<[LaneCount]>,
    /// Over all lanes: now, and the most so far.
    now: AtomicU64,
    max: AtomicU64,
}

struct LaneCount {
    now: AtomicU64,
    bound: u64,
}

/// A worker's lane.
pub(crate) struct Lane {
    all: Arc<InFlight>,
    lane: usize,
}

impl InFlight {
    /// As many lanes as workers connect at a time. Few busy workers are faster than many, so this is
    /// one per core, unless one bound on all descriptors of these needs more.
    pub(crate) fn new(config: &Config, cores: usize, workers: usize, capacity: u32) -> InFlight {
        let bound = config.in_flight.or(config.connect.in_flight());
        let lanes = match (config.connect, bound) {
            (Connect::OneByOne, _) => 1,
            (Connect::Storm, Some(bound)) => {
                let storm = bound.min(config.connections).div_ceil(u64::from(capacity.max(1)));
                usize::try_from(storm).unwrap_or(usize::MAX).max(cores)
            }
            _ => cores,
        };
        // A lane with a bound of 0 would never connect.
        let most = bound.and_then(|bound| usize::try_from(bound).ok()).unwrap_or(usize::MAX);
        let lanes = lanes.min(most).clamp(1, workers.max(1)) as u64;
        let per_lane = |lane| match (config.in_flight, config.connect, bound) {
            (None, Connect::Windowed, _) => u64::from(Connect::WINDOW),
            (_, _, Some(bound)) => bound / lanes + u64::from(lane < bound % lanes),
            (_, _, None) => u64::MAX,
        };
        let lanes =
            (0..lanes).map(|lane| LaneCount { now: AtomicU64::new(0), bound: per_lane(lane) });
        InFlight { lanes: lanes.collect(), now: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    /// How many workers connect at a time.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The most connects in flight so far.
    pub(crate) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// The lane of a worker.
    pub(crate) fn lane(self: &Arc<Self>, worker: usize) -> Lane {
        Lane { all: Arc::clone(self), lane: worker % self.lanes() }
    }
}

impl Lane {
    /// How many lanes there are.
    pub(crate) fn lanes(&self) -> usize {
        self.all.lanes()
    }

    /// Whether no further connect may begin now.
    pub(crate) fn is_full(&self) -> bool {
        self.count().is_some_and(|count| count.now.load(Ordering::Relaxed) >= count.bound)
    }

    /// Counts a connect.
    pub(crate) fn begun(&self) {
        if let Some(count) = self.count() {
            count.now.fetch_add(1, Ordering::Relaxed);
        }
        let now = self.all.now.fetch_add(1, Ordering::Relaxed) + 1;
        if now > self.all.max.load(Ordering::Relaxed) {
            self.all.max.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Counts a connect that is in flight no longer.
    pub(crate) fn ended(&self) {
        if let Some(count) = self.count() {
            count.now.fetch_sub(1, Ordering::Relaxed);
        }
        self.all.now.fetch_sub(1, Ordering::Relaxed);
    }

    fn count(&self) -> Option<&LaneCount> {
        self.all.lanes.get(self.lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(connect: Connect, in_flight: Option<u64>) -> Config {
        Config { connect, in_flight, ..Config::new(Vec::new(), 1_000_000) }
    }

    /// The bounds of the lanes of a run on 2 cores with workers of 20,000 connections.
    fn bounds(connect: Connect, in_flight: Option<u64>) -> Vec<u64> {
        let in_flight = InFlight::new(&config(connect, in_flight), 2, 50, 20_000);
        in_flight.lanes.iter().map(|lane| lane.bound).collect()
    }

    #[test]
    fn a_storm_uses_as_many_workers_as_its_depth_needs() {
        assert_eq!(bounds(Connect::Windowed, None), [512, 512]);
        assert_eq!(bounds(Connect::Windowed, Some(11)), [6, 5]);
        assert_eq!(bounds(Connect::OneByOne, None), [1]);
        assert_eq!(bounds(Connect::Paced(5), None), [u64::MAX; 2]);
        assert_eq!(bounds(Connect::Paced(5), Some(1)), [1]);
        assert_eq!(bounds(Connect::Storm, None), [8_000, 8_000]);
        assert_eq!(bounds(Connect::Storm, Some(1)), [1]);
        assert_eq!(bounds(Connect::Storm, Some(100_000)), [20_000; 5]);
        assert_eq!(bounds(Connect::Storm, Some(u64::MAX)).len(), 50);
        let few = Config { connections: 10, ..config(Connect::Storm, Some(u64::MAX)) };
        assert_eq!(InFlight::new(&few, 2, 50, 20_000).lanes(), 2);
    }

    #[test]
    fn workers_of_a_lane_share_its_bound() {
        let in_flight = InFlight::new(&config(Connect::Storm, Some(3)), 2, 4, 20_000);
        let in_flight = Arc::new(in_flight);
        let lanes: Vec<Lane> = (0..4).map(|worker| in_flight.lane(worker)).collect();
        lanes[0].begun();
        assert!(!lanes[0].is_full() && !lanes[2].is_full());
        lanes[2].begun();
        assert!(lanes[0].is_full() && lanes[2].is_full() && !lanes[1].is_full());
        lanes[1].begun();
        assert!(lanes[3].is_full());
        lanes[..3].iter().for_each(Lane::ended);
        assert!(!lanes.iter().any(Lane::is_full));
        lanes[3].begun();
        assert_eq!(in_flight.max(), 3);
    }
}
