//! The end of a run: nothing more is sent, answers are awaited for a grace period, the rest is given up.

use std::collections::VecDeque;

use engine::{Core, Sys};

use crate::transport::driver::Driver;
use crate::workload::requests::config::Requests;
use crate::workload::requests::requester::{Requester, Stage};
use crate::workload::requests::script::Script;
use crate::workload::requests::user::Activity;

impl<D: Driver, S: Script> Requester<D, S> {
    /// Stops sending: users without a request end, the others have a grace period.
    pub(crate) fn begin_ending<Y: Sys>(&mut self, core: &mut Core<Y, Self>, now_ns: u64) {
        self.stage = Stage::Ending(now_ns.saturating_add(self.grace_ns()));
        let dropped = self.end_lanes(now_ns);
        self.metrics.set_untaken(self.skipped + self.schedule.untaken(now_ns) + dropped);
        (self.idle, self.parked) = (VecDeque::new(), Vec::new());
        self.started = self.part.users;
        for user in 0..self.part.users {
            let waits = self
                .users
                .get(user as usize)
                .is_some_and(|one| one.activity == Activity::Busy && !one.flights.is_empty());
            // The others end with their answer.
            if !waits {
                self.retire(core, user);
            }
        }
        if D::MESSAGES {
            self.end_conversations(core, now_ns);
        }
    }

    pub(crate) fn stop<Y: Sys>(&mut self, core: &mut Core<Y, Self>, now_ns: u64) {
        if self.stage == Stage::Running {
            self.schedule.until_ns = now_ns;
            self.begin_ending(core, now_ns);
        }
        if self.config.stops_at_once && matches!(self.stage, Stage::Ending(_)) {
            self.stage = Stage::Ending(now_ns);
        }
    }

    /// The grace period for answers at the end. It includes the slowest service time, so that a slow
    /// server is not counted as failing.
    fn grace_ns(&self) -> u64 {
        let slowest_ns = (self.timings.slowest_ms() * 1e6) as u64;
        let grace = Requests::GRACE.max(self.script.grace());
        slowest_ns.saturating_add(grace.as_nanos() as u64)
    }

    pub(crate) fn finish<Y: Sys>(&mut self, core: &mut Core<Y, Self>, now_ns: u64) {
        self.stage = Stage::Over;
        // Waiting without an answer does not prolong the measured time.
        let settled_ns = self.timings.settled_ns();
        // Answers after the end are counted apart.
        let is_at_end = self.schedule.is_at_end(now_ns) || self.lanes_are_at_end(now_ns);
        self.metrics.set_over(if is_at_end { self.schedule.until_ns } else { settled_ns });
        // Branches follow users.
        for user in 0..self.users.len() as u32 {
            self.give_up(core, user, now_ns);
        }
        for user in 0..self.part.users {
            self.retire(core, user);
        }
        if let Some(talks) = self.conversations.as_mut().filter(|_| D::MESSAGES) {
            talks.timings().flush_rest(&self.metrics.timed);
        }
        self.timings.flush_rest(&self.metrics.timed);
        self.metrics.set_done();
    }
}
