//! What clients hold, for shedding: each worker measures its own and publishes the result, from
//! which follows who is closed in the next round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::limits::{SHED_HELD_MIN, SHED_IDLE_SHARE};

/// Steps of the distribution. Each is twice as high as the one before, and the last has no end.
const STEPS: usize = 24;

/// The memory that one worker's clients held when it was last measured. Written by that worker.
#[derive(Default)]
pub(crate) struct Holdings {
    held: [AtomicU64; STEPS],
    idle: AtomicU64,
    measured: AtomicBool,
}

impl Holdings {
    pub(crate) fn publish(&self, distribution: &Distribution) {
        for (shared, bytes) in self.held.iter().zip(distribution.held) {
            shared.store(bytes, Ordering::Relaxed);
        }
        self.idle.store(distribution.idle, Ordering::Relaxed);
        self.measured.store(true, Ordering::Release);
    }

    /// Memory is no longer short: what was measured will be outdated when it is again.
    pub(crate) fn forget(&self) {
        self.publish(&Distribution::default());
        self.measured.store(false, Ordering::Release);
    }

    fn read(&self) -> Option<Distribution> {
        let load = |shared: &AtomicU64| shared.load(Ordering::Relaxed);
        self.measured.load(Ordering::Acquire).then(|| Distribution {
            held: std::array::from_fn(|step| self.held.get(step).map_or(0, load)),
            idle: load(&self.idle),
        })
    }
}

/// The bytes that clients hold, by how much each of them holds.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Distribution {
    /// In total by those that hold at least [`SHED_HELD_MIN`] × 2^step.
    held: [u64; STEPS],
    /// By idle connections that hold less.
    idle: u64,
}

impl Distribution {
    /// Counts a client that holds `held` bytes beyond the `base` of an idle one.
    pub(crate) fn add(&mut self, held: usize, base: usize) {
        let bytes = if held < SHED_HELD_MIN {
            &mut self.idle
        } else {
            let step = (held / SHED_HELD_MIN).ilog2() as usize;
            match self.held.get_mut(step.min(STEPS - 1)) {
                Some(bytes) => bytes,
                None => return,
            }
        };
        *bytes += (held + base) as u64;
    }
}

/// Who is closed in a round.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ShedOrder {
    /// Nobody: the workers measure.
    Measure,
    /// Clients that hold at least this many bytes.
    Holders(usize),
    /// Idle connections: nobody holds more.
    Idle,
    /// Nobody: all that clients hold would not be enough.
    Futile,
}

impl ShedOrder {
    /// The order that frees `over_bytes` by closing as few clients as possible, given the holdings
    /// of all workers that have clients. Idle clients have to hold a good part of `limit_bytes`: a
    /// few of them share their pages with others, so that closing them frees nothing.
    pub(crate) fn choose<'h>(
        workers: impl Iterator<Item = &'h Holdings>,
        over_bytes: u64,
        limit_bytes: u64,
    ) -> ShedOrder {
        let (mut sum, mut all_measured) = (Distribution::default(), true);
        for worker in workers {
            let Some(one) = worker.read() else {
                all_measured = false;
                continue;
            };
            sum.held.iter_mut().zip(one.held).for_each(|(sum, bytes)| *sum += bytes);
            sum.idle += one.idle;
        }
        let (mut freed, mut least) = (0, None);
        for (step, bytes) in sum.held.iter().enumerate().rev().filter(|(_, bytes)| **bytes > 0) {
            freed += bytes;
            least = Some(SHED_HELD_MIN << step);
            if freed >= over_bytes {
                break;
            }
        }
        let worthwhile = over_bytes.max(limit_bytes / SHED_IDLE_SHARE);
        match least {
            Some(least) => ShedOrder::Holders(least),
            None if !all_measured => ShedOrder::Measure,
            None if sum.idle >= worthwhile => ShedOrder::Idle,
            None => ShedOrder::Futile,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn holdings(clients: &[usize]) -> Holdings {
        let (mut distribution, holdings) = (Distribution::default(), Holdings::default());
        clients.iter().for_each(|held| distribution.add(*held, 128));
        holdings.publish(&distribution);
        holdings
    }

    #[test]
    fn those_who_hold_most_on_any_worker_come_first() {
        let workers = [holdings(&[2_000; 500]), holdings(&[3 * MIB, 3 * MIB, 70_000])];
        let choose = |over: usize| ShedOrder::choose(workers.iter(), over as u64, 0);
        assert_eq!(choose(1), ShedOrder::Holders(2 * MIB));
        assert_eq!(choose(6 * MIB), ShedOrder::Holders(2 * MIB));
        assert_eq!(choose(6 * MIB + 10_000), ShedOrder::Holders(64 << 10));
        assert_eq!(choose(7 * MIB), ShedOrder::Holders(1 << 10));
        assert_eq!(choose(70 * MIB), ShedOrder::Holders(1 << 10), "it frees something");
    }

    #[test]
    fn idle_clients_are_closed_only_if_that_is_enough() {
        let workers = [holdings(&[0; 500]), holdings(&[100; 500])];
        let choose = |over, limit| ShedOrder::choose(workers.iter(), over, limit);
        assert_eq!(choose(100_000, 1_000_000), ShedOrder::Idle);
        assert_eq!(choose(1_000_000, 1_000_000), ShedOrder::Futile);
        assert_eq!(choose(1, 10_000_000), ShedOrder::Futile, "they are not what takes memory");
        assert_eq!(ShedOrder::choose([].iter(), 1, 1_000_000), ShedOrder::Futile);
    }

    #[test]
    fn idle_clients_stay_until_all_workers_have_measured() {
        let workers = [holdings(&[0; 500]), Holdings::default()];
        assert_eq!(ShedOrder::choose(workers.iter(), 1, 0), ShedOrder::Measure);
        workers[1].publish(&Distribution::default());
        assert_eq!(ShedOrder::choose(workers.iter(), 1, 0), ShedOrder::Idle);
        workers[0].forget();
        assert_eq!(ShedOrder::choose(workers.iter(), 1, 0), ShedOrder::Measure);
        // A worker that is late does not protect what others hold.
        let workers = [holdings(&[MIB]), Holdings::default()];
        assert_eq!(ShedOrder::choose(workers.iter(), 1, 0), ShedOrder::Holders(MIB));
    }

    #[test]
    fn any_size_has_a_step() {
        for held in [SHED_HELD_MIN, SHED_HELD_MIN + 1, 1 << 30, 1 << 40, usize::MAX / 2] {
            let order = ShedOrder::choose([holdings(&[held])].iter(), 1, 0);
            let ShedOrder::Holders(least) = order else { panic!("{order:?}") };
            assert!(least <= held && (least > held / 2 || held > 1 << 30), "{least} {held}");
        }
    }
}
