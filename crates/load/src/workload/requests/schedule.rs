//! [`Schedule`]: when one worker's users may send. It has no access to sockets or clocks.

use std::ops::Range;
use std::time::Duration;

use crate::workload::pacer::{Pacer, Share};
use crate::workload::requests::config::{Pace, Requests};
use crate::workload::requests::script::Part;
use crate::workload::stages;
use crate::workload::stages::Stage;

/// When a user that is ready may send.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum NextSend {
    /// Now; the request was due at this time.
    Due(u64),
    /// Later.
    Later,
    /// Nothing is due any more.
    Over,
}

/// One worker's share of the schedule of a run.
pub(crate) struct Schedule {
    /// Due times of the open model.
    pacer: Option<Pacer>,
    /// Requests sent so far.
    number: u64,
    stages: Vec<Stage>,
    /// The users of this worker.
    part: Part,
    pub(crate) begin_ns: u64,
    /// Requests due before this are warm-up.
    pub(crate) measure_ns: u64,
    pub(crate) until_ns: u64,
    /// Requests that may still be begun after the warm-up.
    left: u64,
}

impl Schedule {
    /// A schedule that starts at `begin_ns` with the warm-up.
    pub(crate) fn new(config: &Requests, part: Part, begin_ns: u64) -> Schedule {
        Schedule::of(config, part, 0..part.users, 0, begin_ns)
    }

    /// The schedule of some users of a worker, whose first number in the run is `offset`.
    pub(crate) fn of(
        config: &Requests,
        part: Part,
        users: Range<u32>,
        offset: u64,
        begin_ns: u64,
    ) -> Schedule {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let measure_ns = begin_ns.saturating_add(nanoseconds(config.warm_up));
        let until_ns = config
            .over_after()
            .map_or(u64::MAX, |time| measure_ns.saturating_add(nanoseconds(time)));
        let whole = config.connections.max(1);
        let share = Share { part, users: users.clone(), offset, whole };
        let pacer = match &config.pace {
            Pace::Rate(rate) => Some(Pacer::new(begin_ns, *rate, 1, 1).shared(share.clone())),
            Pace::Rates(stages) => {
                // The warm-up uses the first rate above 0.
                let first = stages.iter().map(|stage| stage.connections).find(|rate| *rate > 0);
                let warm = Stage { time: config.warm_up, connections: first.unwrap_or(1) };
                let segments =
                    (!config.warm_up.is_zero()).then(|| warm_up(warm)).into_iter().flatten();
                let stages: Vec<Stage> = segments.chain(stages.iter().copied()).collect();
                Some(Pacer::staged(begin_ns, &stages).shared(share.clone()))
            }
            Pace::Closed | Pace::Users(_) => None,
        };
        let stages = match &config.pace {
            Pace::Users(stages) => stages.clone(),
            _ => Vec::new(),
        };
        let left = config.requests.map_or(u64::MAX, |requests| requests_of(requests, &share));
        Schedule { pacer, number: 0, stages, part, begin_ns, measure_ns, until_ns, left }
    }

    /// Whether it is an open model.
    pub(crate) fn is_open(&self) -> bool {
        self.pacer.is_some()
    }

    /// Whether the number of users changes.
    pub(crate) fn is_staged(&self) -> bool {
        !self.stages.is_empty()
    }

    /// Takes the next request that is due by `now_ns`.
    #[inline]
    pub(crate) fn take(&mut self, now_ns: u64) -> NextSend {
        let due_ns = match &self.pacer {
            None => now_ns,
            Some(pacer) => pacer.due_ns(self.number),
        };
        let counts = due_ns >= self.measure_ns;
        if due_ns >= self.until_ns || counts && self.left == 0 {
            return NextSend::Over;
        }
        if due_ns > now_ns {
            return NextSend::Later;
        }
        self.left -= u64::from(counts);
        self.number += 1;
        NextSend::Due(due_ns)
    }

    /// When the next request of the open model is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let due_ns = self.pacer.as_ref()?.due_ns(self.number);
        (due_ns < self.until_ns && self.left > 0).then_some(due_ns)
    }

    /// Whether the run ends by its time, and not by its users or number of requests: the time is over,
    /// or nothing is due before it is.
    pub(crate) fn is_at_end(&self, now_ns: u64) -> bool {
        let is_over = |pacer: &Pacer| self.left > 0 && pacer.due_ns(self.number) >= self.until_ns;
        now_ns >= self.until_ns || self.pacer.as_ref().is_some_and(is_over)
    }

    /// Requests that were due by `now_ns`, after the warm-up, and for which no user was free.
    pub(crate) fn untaken(&self, now_ns: u64) -> u64 {
        let Some(pacer) = &self.pacer else { return 0 };
        let taken = self.number.max(pacer.due_before(self.measure_ns));
        let due = pacer.due_before(now_ns.min(self.until_ns)).saturating_sub(taken);
        due.min(self.left)
    }

    /// How many of this worker's users are active at a time.
    pub(crate) fn users_at(&self, now_ns: u64) -> u32 {
        if self.stages.is_empty() {
            return self.part.users;
        }
        let elapsed = Duration::from_nanos(now_ns.saturating_sub(self.measure_ns));
        let first = self.stages.first().map_or(0, |stage| stage.connections);
        let warm = now_ns < self.measure_ns;
        let all =
            if warm { first } else { stages::connections_at(&self.stages, elapsed).unwrap_or(0) };
        u32::try_from(self.part.below(all)).unwrap_or(u32::MAX).min(self.part.users)
    }
}

/// Stages with a constant rate and then 0, so that the next stages start as without them.
fn warm_up(stage: Stage) -> [Stage; 3] {
    let none = Stage { time: Duration::ZERO, connections: 0 };
    [Stage { time: Duration::ZERO, ..stage }, stage, none]
}

/// This worker's share of the first `requests` of the run, which users take in turn.
fn requests_of(requests: u64, share: &Share) -> u64 {
    let Share { part, users, offset, whole } = share;
    let each = u64::from(users.end.saturating_sub(users.start));
    let before = part.below(offset.saturating_add(requests % whole));
    let rest = before.clamp(u64::from(users.start), u64::from(users.end)) - u64::from(users.start);
    requests / whole * each + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pace: Pace) -> Requests {
        Requests { pace, duration: None, requests: Some(1_001), ..Requests::new(Vec::new(), 5) }
    }

    fn parts(config: &Requests) -> Vec<Schedule> {
        let part = |first| Part::new(first, 3, 1, config.connections);
        (0..3).map(|first| Schedule::new(config, part(first), 1_000)).collect()
    }

    #[test]
    fn shares_add_up() {
        let mut taken = 0;
        for mut schedule in parts(&config(Pace::Closed)) {
            taken += (0..).take_while(|_| schedule.take(2_000) == NextSend::Due(2_000)).count();
            assert_eq!(schedule.take(2_000), NextSend::Over);
        }
        assert_eq!(taken, 1_001);
    }

    #[test]
    fn rate_ends_with_the_last_request() {
        let mut schedule = parts(&config(Pace::Rate(1))).remove(0);
        schedule.left = 1;
        assert_eq!(schedule.take(1_000), NextSend::Due(1_000));
        assert_eq!((schedule.take(1_001), schedule.next_ns()), (NextSend::Over, None));
        assert!(!schedule.is_at_end(1_001), "the number ended it, and no time");
    }

    #[test]
    fn warm_up_requests_do_not_count_towards_the_number() {
        let warm = Requests { warm_up: Duration::from_nanos(500), ..config(Pace::Closed) };
        let mut schedule = parts(&warm).remove(0);
        let all = (0..10_000).filter(|_| schedule.take(1_499) == NextSend::Due(1_499)).count();
        assert_eq!(all, 10_000);
        let measured = (0..10_000).filter(|_| schedule.take(1_500) == NextSend::Due(1_500)).count();
        assert_eq!(measured, 401, "two of five users, and the first has one more");
    }

    #[test]
    fn open_model_keeps_due_times_and_counts_untaken_requests() {
        let rate = Requests { requests: None, ..config(Pace::Rate(1_000_000)) };
        let rate = Requests { duration: Some(Duration::from_micros(10)), ..rate };
        let mut schedules = parts(&rate);
        let first = &mut schedules[0];
        assert_eq!(first.take(1_000), NextSend::Due(1_000));
        assert_eq!((first.take(1_000), first.next_ns()), (NextSend::Later, Some(4_000)));
        assert_eq!(first.untaken(6_001), 2, "4,000 and 6,000");
        assert_eq!(first.take(20_000), NextSend::Due(4_000), "late, and due when it was due");
        let left =
            (0..).take_while(|_| matches!(first.take(u64::MAX - 1), NextSend::Due(_))).count();
        assert_eq!((left, first.next_ns()), (2, None));
        let due: u64 = schedules.iter().map(|one| one.untaken(u64::MAX)).sum();
        assert_eq!(due, 4 + 2, "ten in all, four of the first worker");
    }

    #[test]
    fn workers_take_turns_and_never_send_at_once() {
        let second = Duration::from_secs(1);
        let steady = [(Duration::ZERO, 10_000), (second, 10_000)];
        let steady = steady.map(|(time, connections)| Stage { time, connections }).to_vec();
        for pace in [Pace::Rate(10_000), Pace::Rates(steady)] {
            let rate = Requests { requests: None, duration: Some(second), ..config(pace) };
            let mut due = Vec::new();
            for mut schedule in parts(&rate) {
                while let NextSend::Due(due_ns) = schedule.take(u64::MAX - 1) {
                    due.push(due_ns);
                }
            }
            due.sort_unstable();
            assert_eq!(due.len(), 10_000);
            let apart = due.windows(2).map(|two| two[1] - two[0]);
            assert!(apart.clone().all(|ns| ns.abs_diff(100_000) <= 2), "{:?}", apart.max());
        }
    }

    #[test]
    fn stages_change_the_number_of_users() {
        let second = Duration::from_secs(1);
        let stages = [(second, 5), (second, 0)];
        let stages = stages.map(|(time, connections)| Stage { time, connections }).to_vec();
        let schedules = parts(&config(Pace::Users(stages)));
        let at = |ms: u64| -> Vec<u32> {
            schedules.iter().map(|one| one.users_at(1_000 + ms * 1_000_000)).collect()
        };
        assert_eq!((at(0), at(400), at(999)), (vec![0; 3], vec![1, 1, 0], vec![2, 2, 1]));
        assert_eq!((at(1_800), at(2_500)), (vec![1, 0, 0], vec![0; 3]));
    }
}
