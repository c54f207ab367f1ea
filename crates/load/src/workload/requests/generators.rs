//! [`Generators`]: a run that several generators share. The split is that of workers, one level above: each
//! generator has every nth user, data row and `{{seq}}`, and what is due at a rate is due at the same times as
//! with one generator.

use std::fmt::Debug;

/// Which of the generators of a run this is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Generators {
    /// Its number, from 0.
    pub nth: u32,
    /// How many there are.
    pub of: u32,
}

/// What a run waits for after its workers have started, so that several generators begin at the same time.
pub trait Gate: Debug + Send + Sync {
    /// Blocks until the run begins. Returns that time in nanoseconds of the engine's clock.
    ///
    /// # Errors
    /// Why it does not begin.
    fn pass(&self) -> Result<u64, String>;
}

impl Generators {
    /// A run of one generator.
    pub const ONE: Generators = Generators { nth: 0, of: 1 };

    /// How many of the numbers below `whole` are of this generator.
    #[must_use]
    pub fn part_of(self, whole: u64) -> u64 {
        let (nth, of) = (u64::from(self.nth), u64::from(self.of.max(1)));
        whole.saturating_sub(nth).div_ceil(of)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::requests::{Pace, Part, Requests};
    use crate::scenario::Feed;
    use crate::stages::Stage;
    use crate::workload::requests::schedule::{NextSend, Schedule};

    /// Workers of each generator: machines have different numbers of cores.
    const CORES: [u64; 4] = [2, 1, 4, 3];

    fn parts(of: u32, config: &Requests) -> Vec<Part> {
        let workers = |nth: u32| {
            let (share, cores) = (Generators { nth, of }, CORES[nth as usize % CORES.len()]);
            (0..cores).map(move |worker| (share, worker as u16, cores))
        };
        let all = (0..of).flat_map(workers);
        let block = config.block();
        all.map(|(share, worker, cores)| {
            Part::shared(share, worker, cores, block, config.connections)
        })
        .collect()
    }

    #[test]
    fn users_of_all_generators_are_those_of_one() {
        for (users, streams) in [(1, None), (7, None), (1_000, None), (1_000, Some(30))] {
            let config = Requests { streams, ..Requests::new(Vec::new(), users) };
            for of in 1..=9 {
                let parts = parts(of, &config);
                let mut numbers: Vec<u64> =
                    parts.iter().flat_map(|part| (0..part.users).map(|n| part.number(n))).collect();
                numbers.sort_unstable();
                assert_eq!(numbers, (0..users).collect::<Vec<_>>(), "{of} of {users}");
                let own = |nth| Generators { nth, of }.part_of(config.groups());
                assert_eq!((0..of).map(own).sum::<u64>(), config.groups());
            }
        }
    }

    #[test]
    fn what_is_due_in_each_second_is_the_plan_whatever_the_number_of_generators() {
        let stage =
            |seconds, connections| Stage { time: Duration::from_secs(seconds), connections };
        let ramp = vec![stage(5, 1_000), stage(2, 1_000), stage(3, 0)];
        for (pace, requests) in
            [(Pace::Rate(997), None), (Pace::Rates(ramp), None), (Pace::Rate(997), Some(3_001))]
        {
            let duration = Some(Duration::from_secs(10));
            let config = Requests { pace, requests, duration, ..Requests::new(Vec::new(), 50) };
            let due = |parts: Vec<Part>| {
                let mut due = Vec::new();
                for part in parts {
                    let mut schedule = Schedule::new(&config, part, 1_000);
                    while let NextSend::Due(due_ns) = schedule.take(u64::MAX - 1) {
                        due.push(due_ns);
                    }
                }
                due.sort_unstable();
                due
            };
            let whole = due(vec![Part::new(0, 1, 1, 50)]);
            assert!(whole.len() > 3_000);
            for of in 2..=7 {
                assert_eq!(due(parts(of, &config)), whole, "{of} generators");
            }
        }
    }

    #[test]
    fn rows_of_all_generators_are_used_once() {
        let feed = || {
            let mut feed = Feed::from_csv("x", b"id\na\nb\nc\nd\ne\nf\ng\n").unwrap();
            feed.once = true;
            feed
        };
        let mut rows: Vec<u32> = Vec::new();
        for nth in 0..3 {
            let feed = feed();
            feed.rewind(Generators { nth, of: 3 });
            rows.extend(std::iter::from_fn(|| feed.next_row(0, 0)));
        }
        rows.sort_unstable();
        assert_eq!(rows, (0..7).collect::<Vec<_>>());
    }
}
