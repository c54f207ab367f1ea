//! [`Lane`]: users of one worker whose passes begin at a rate ([`Arrivals`]), whether or not earlier ones
//! have ended. A pass that is due while none of them is free is dropped.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use engine::{Core, Sys};

use crate::transport::driver::Driver;
use crate::workload::requests::config::{Arrivals, Requests};
use crate::workload::requests::requester::{Requester, SENDS_PER_TURN};
use crate::workload::requests::schedule::{NextSend, Schedule};
use crate::workload::requests::script::{Part, Script};
use crate::workload::requests::user::Activity;

/// Users of one worker with a common arrival rate.
pub(crate) struct Lane {
    /// Their numbers in the worker.
    users: Range<u32>,
    schedule: Schedule,
    /// Users between two passes; the last is used first.
    idle: VecDeque<u32>,
}

impl Lane {
    /// The lane of a worker; `None` if it has none of the users. `all` is the schedule of the run.
    fn new(config: &Requests, arrivals: &Arrivals, part: Part, all: &Schedule) -> Option<Lane> {
        let place =
            |number: u64| u32::try_from(part.below(number)).unwrap_or(u32::MAX).min(part.users);
        let users = place(arrivals.users.start)..place(arrivals.users.end);
        if users.is_empty() {
            return None;
        }
        // One that starts later has no warm-up of its own.
        let is_later = !arrivals.start.is_zero();
        let own = Requests {
            connections: arrivals.users.end - arrivals.users.start,
            pace: arrivals.pace.clone(),
            duration: None,
            requests: None,
            warm_up: if is_later { Duration::ZERO } else { config.warm_up },
            ..Requests::new(Vec::new(), 1)
        };
        let start_ns = u64::try_from(arrivals.start.as_nanos()).unwrap_or(u64::MAX);
        let later_ns = all.measure_ns.saturating_add(start_ns);
        let begin_ns = if is_later { later_ns } else { all.begin_ns };
        let offset = arrivals.users.start;
        let mut schedule = Schedule::of(&own, part, users.clone(), offset, begin_ns);
        schedule.until_ns = schedule.until_ns.min(all.until_ns);
        Some(Lane { users, schedule, idle: VecDeque::new() })
    }

    /// Whether passes are dropped when they are due.
    fn is_full(&self, started: u32) -> bool {
        self.idle.is_empty() && started >= self.users.end
    }
}

impl<D: Driver, S: Script> Requester<D, S> {
    pub(crate) fn begin_lanes(&mut self) {
        let lane = |arrivals| Lane::new(&self.config, arrivals, self.part, &self.schedule);
        self.lanes = self.config.arrivals.iter().filter_map(lane).collect();
    }

    /// Begins the next pass of a user if one is due, or queues the user.
    pub(crate) fn arrive<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.users.contains(&user)) else {
            return self.retire(core, user);
        };
        match lane.schedule.take(now_ns) {
            NextSend::Due(due_ns) => {
                // It is late although another user was free.
                let was_free = !lane.idle.is_empty();
                self.record_lag(due_ns, now_ns, was_free);
                self.begin_pass(core, user, due_ns, now_ns);
            }
            NextSend::Later => {
                lane.idle.push_back(user);
                self.set(user, Activity::Idle);
            }
            NextSend::Over => self.retire(core, user),
        }
    }

    fn begin_pass<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        due_ns: u64,
        now_ns: u64,
    ) {
        self.set(user, Activity::Busy);
        self.script.arrived(user, due_ns);
        self.advance(core, user, now_ns);
    }

    /// Begins or drops the passes that are due. Returns true if more may be due.
    pub(crate) fn begin_due<Y: Sys>(&mut self, core: &mut Core<Y, Self>) -> bool {
        let mut more = false;
        for at in 0..self.lanes.len() {
            more |= self.begin_due_in(core, at);
        }
        more
    }

    fn begin_due_in<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: usize) -> bool {
        for _ in 0..SENDS_PER_TURN {
            let now_ns = core.clock_ns();
            let started = self.started;
            let Some(lane) = self.lanes.get_mut(at) else { return false };
            let is_full = lane.is_full(started);
            if lane.idle.is_empty() && !is_full {
                return false;
            }
            match lane.schedule.take(now_ns) {
                NextSend::Due(due_ns) => match lane.idle.pop_back() {
                    Some(user) => {
                        self.record_lag(due_ns, now_ns, true);
                        self.begin_pass(core, user, due_ns, now_ns);
                    }
                    None if due_ns >= self.schedule.measure_ns => {
                        self.skipped += 1;
                        self.metrics.set_untaken(self.skipped);
                    }
                    None => {}
                },
                NextSend::Later => return false,
                NextSend::Over => {
                    for user in std::mem::take(&mut lane.idle) {
                        self.retire(core, user);
                    }
                    return false;
                }
            }
        }
        true
    }

    /// When the next pass is due that can be begun or dropped.
    pub(crate) fn next_pass_ns(&self) -> Option<u64> {
        let waits = |lane: &&Lane| !lane.idle.is_empty() || lane.is_full(self.started);
        self.lanes.iter().filter(waits).filter_map(|lane| lane.schedule.next_ns()).min()
    }

    /// Ends the arrivals. Returns the passes that were due by then and neither begun nor dropped.
    pub(crate) fn end_lanes(&mut self, now_ns: u64) -> u64 {
        let lanes = std::mem::take(&mut self.lanes);
        lanes.iter().map(|lane| lane.schedule.untaken(now_ns)).sum()
    }

    /// Whether the run ends by the time of its passes.
    pub(crate) fn lanes_are_at_end(&self, now_ns: u64) -> bool {
        self.lanes.iter().any(|lane| lane.schedule.is_at_end(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::requests::config::Pace;

    #[test]
    fn lanes_of_all_workers_share_one_arrival_rate() {
        let users = 3..8;
        let arrivals =
            Arrivals { users: users.clone(), pace: Pace::Rate(1_000), start: Duration::ZERO };
        let config =
            Requests { duration: Some(Duration::from_secs(1)), ..Requests::new(Vec::new(), 10) };
        for workers in 1..12 {
            let parts = (0..workers).map(|first| Part::new(first as u16, workers, 1, 10));
            let lane = |part| {
                let all = Schedule::new(&config, part, 50);
                Some((part, Lane::new(&config, &arrivals, part, &all)?))
            };
            let lanes: Vec<(Part, Lane)> = parts.filter_map(lane).collect();
            let numbers = lanes.iter().flat_map(|(part, lane)| {
                lane.users.clone().map(|user| part.number(user)).collect::<Vec<u64>>()
            });
            let mut numbers: Vec<u64> = numbers.collect();
            numbers.sort_unstable();
            assert_eq!(numbers, users.clone().collect::<Vec<_>>(), "{workers}");
            let mut due: Vec<u64> = Vec::new();
            for (_, mut lane) in lanes {
                while let NextSend::Due(due_ns) = lane.schedule.take(u64::MAX - 1) {
                    due.push(due_ns);
                }
            }
            due.sort_unstable();
            let wanted: Vec<u64> = (0..1_000).map(|number| 50 + number * 1_000_000).collect();
            assert_eq!(due, wanted, "{workers}");
        }
    }
}
