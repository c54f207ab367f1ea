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

    /// How many of the numbers below `whole` are of this generator, which has every nth block of so many. The last
    /// block may be shorter.
    #[must_use]
    pub fn of_blocks(self, block: u64, whole: u64) -> u64 {
        let block = block.max(1);
        let (full, rest) = (whole / block, whole % block);
        let has_rest = full % u64::from(self.of.max(1)) == u64::from(self.nth);
        self.part_of(full) * block + if has_rest { rest } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::requests::{Pace, Part, Requests};
    use crate::scenario::Feed;
    use crate::stages::Stage;
    use crate::workload::requests::schedule::{NextSend, Schedule};

    /// Workers of each generator: machines have different numbers of cores.
    const CORES: [u64; 4] = [2, 1, 4, 3];

    fn parts(of: u32, config: &Requests) -> Vec<Part> {
        let all = (0..of).flat_map(|nth| own_parts(nth, of, config));
        all.map(|(_, part)| part).collect()
    }

    /// Those of one generator.
    fn own_parts(nth: u32, of: u32, config: &Requests) -> Vec<(u32, Part)> {
        let (share, cores) = (Generators { nth, of }, CORES[nth as usize % CORES.len()]);
        let blocks = (config.block(), config.row());
        let part = |worker| Part::shared(share, worker, cores, blocks, config.connections);
        (0..cores).map(|worker| (nth, part(worker as u16))).collect()
    }

    #[test]
    fn users_of_all_generators_are_those_of_one() {
        for (users, streams, group) in [
            (1, None, 1),
            (7, None, 1),
            (1_000, None, 1),
            (1_000, Some(30), 1),
            (1_000, None, 4),
            (1_000, Some(30), 4),
            (1_000, Some(4), 500),
        ] {
            let config = Requests { streams, group, ..Requests::new(Vec::new(), users) };
            for of in 1..=9 {
                let parts = parts(of, &config);
                let mut numbers: Vec<u64> =
                    parts.iter().flat_map(|part| (0..part.users).map(|n| part.number(n))).collect();
                numbers.sort_unstable();
                assert_eq!(numbers, (0..users).collect::<Vec<_>>(), "{of} of {users}");
                for part in &parts {
                    let below = |number| (0..part.users).filter(move |n| part.number(*n) < number);
                    for number in (0..=users).step_by(7) {
                        assert_eq!(part.below(number), below(number).count() as u64, "{part:?}");
                    }
                }
                let own = |nth| Requests { generators: Generators { nth, of }, ..config.clone() };
                let all = || (0..of).map(own);
                assert_eq!(all().map(|own| own.own_users()).sum::<u64>(), users);
                let blocks = users.div_ceil(config.block().into());
                assert_eq!(all().map(|own| own.own_blocks()).sum::<u64>(), blocks);
                let busy = all().filter(|own| own.own_users() > 0).count() as u64;
                assert_eq!(busy, u64::from(of).min(config.generators_max()));
            }
        }
    }

    #[test]
    fn users_of_a_group_are_of_one_generator_and_of_all_its_workers() {
        for streams in [None, Some(6)] {
            let config = Requests { streams, group: 4, ..Requests::new(Vec::new(), 480) };
            for of in 2..=9 {
                let mut owners = BTreeMap::new();
                for (nth, part) in (0..of).flat_map(|nth| own_parts(nth, of, &config)) {
                    for number in (0..part.users).map(|n| part.number(n)) {
                        let owner = owners.entry(number / 4).or_insert(nth);
                        assert_eq!(*owner, nth, "group {} of {of}", number / 4);
                    }
                }
                assert_eq!(owners.len(), 120);
            }
            let workers = own_parts(0, 2, &config);
            let fewest = workers.iter().map(|(_, part)| part.users).min().unwrap();
            assert!(workers.len() == 2 && fewest >= 100, "{workers:?}");
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
            for group in [1, 5] {
                let config = Requests {
                    pace: pace.clone(),
                    requests,
                    duration,
                    group,
                    ..Requests::new(Vec::new(), 50)
                };
                let whole = due(&config, vec![Part::new(0, 1, 1, 50)]);
                assert!(whole.len() > 3_000);
                for of in 2..=7 {
                    let all = due(&config, parts(of, &config));
                    assert_eq!(all, whole, "{of} generators, groups of {group}");
                }
            }
        }
    }

    /// All times at which something is due.
    fn due(config: &Requests, parts: Vec<Part>) -> Vec<u64> {
        let mut due = Vec::new();
        for part in parts {
            let mut schedule = Schedule::new(config, part, 1_000);
            while let NextSend::Due(due_ns) = schedule.take(u64::MAX - 1) {
                due.push(due_ns);
            }
        }
        due.sort_unstable();
        due
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
