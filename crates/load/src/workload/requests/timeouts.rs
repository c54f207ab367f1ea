//! Timeouts of requests and connects, and connects that wait: for a name, or for room in the queue of a
//! UNIX socket.

use std::cmp::Reverse;

use engine::invariant;
use engine::{Core, Sys};

use crate::outcome::failure::Failure;
use crate::transport::driver::Driver;
use crate::workload::requests::config::Requests;
use crate::workload::requests::requester::{Requester, Wake};
use crate::workload::requests::script::Script;

impl<D: Driver, S: Script> Requester<D, S> {
    /// Sets the wake-up for the timeout of a request, or before that for the end of a call that only receives.
    pub(crate) fn arm(&mut self, user: u32, begun_ns: u64, now_ns: u64) {
        let mut at_ns = begun_ns.saturating_add(self.timeout_of(user));
        if D::MESSAGES {
            at_ns = at_ns.min(self.held_until(user, now_ns).unwrap_or(u64::MAX));
        }
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if one.armed_ns == 0 || at_ns < one.armed_ns {
            one.armed_ns = at_ns;
            self.wakes.push(Reverse((at_ns, user, Wake::Timeout)));
        }
    }

    /// The timeout of the request of a user.
    #[inline]
    fn timeout_of(&self, user: u32) -> u64 {
        let limit = self.script.limit(user);
        let nanoseconds = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        nanoseconds.unwrap_or(self.timeout_ns)
    }

    /// Sets the wake-up for the timeout of a connect.
    pub(crate) fn arm_connect(&mut self, user: u32, now_ns: u64) {
        let Some(timeout) = self.config.connect_timeout else { return };
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.link.since_ns = now_ns;
        if !one.is_connect_armed {
            one.is_connect_armed = true;
            let at_ns = now_ns.saturating_add(timeout.as_nanos() as u64);
            self.wakes.push(Reverse((at_ns, user, Wake::ConnectTimeout)));
        }
    }

    /// Retries a connect after a pause, as the queue of the UNIX socket is full.
    pub(crate) fn connect_later(&mut self, user: u32, now_ns: u64) {
        let at_ns = now_ns + Requests::CONNECT_REST.as_nanos() as u64;
        self.wakes.push(Reverse((at_ns, user, Wake::Connect)));
    }

    /// Suspends a user until the name of its target is resolved.
    pub(crate) fn wait_for_lookup(&mut self, user: u32) {
        if let Some(one) = self.users.get_mut(user as usize).filter(|one| !one.awaits_lookup) {
            one.awaits_lookup = true;
            self.awaiting_lookup.push(user);
        }
    }

    pub(crate) fn connect_resolved<Y: Sys>(&mut self, core: &mut Core<Y, Self>) {
        let now_ns = core.clock_ns();
        for user in std::mem::take(&mut self.awaiting_lookup) {
            let Some(one) = self.users.get_mut(user as usize) else {
                invariant::broken("each user number is in the table of users");
                continue;
            };
            one.awaits_lookup = false;
            if one.link.conn.get().is_none() && !one.flights.is_empty() {
                self.connect(core, user, now_ns);
            }
        }
    }

    /// Checks whether the request of a user has timed out; it may be a newer one.
    pub(crate) fn look_at_timeout<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        at_ns: u64,
        now_ns: u64,
    ) {
        let timeout_ns = self.timeout_of(user);
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if one.armed_ns != at_ns {
            // A wake-up that was set later was due sooner, and has replaced this one.
            return;
        }
        one.armed_ns = 0;
        let Some(times) = one.flights.front().map(|flight| flight.times) else { return };
        let until_ns = times.begun_ns.saturating_add(timeout_ns);
        let held_ns = match D::MESSAGES && times.sent_ns > 0 {
            true => {
                self.held_until(user, now_ns).filter(|held_ns| *held_ns <= now_ns.min(until_ns))
            }
            false => None,
        };
        if held_ns.is_some() {
            self.end_held(core, user, now_ns);
        } else if until_ns <= now_ns {
            self.time_out(core, user, now_ns);
        } else {
            self.arm(user, times.begun_ns, now_ns);
        }
    }

    /// Checks whether the connect of a user has timed out; it may be a newer one, or none.
    pub(crate) fn look_at_connect<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        now_ns: u64,
    ) {
        let Some(timeout) = self.config.connect_timeout else { return };
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.is_connect_armed = false;
        let (is_opened, waits) = (one.link.opened, !one.flights.is_empty());
        if is_opened || !waits || D::STREAMS && self.stream_is_open(user) {
            return;
        }
        let Some(one) = self.users.get(user as usize) else { return };
        let (begun_ns, timeout_ns) = (one.link.since_ns, timeout.as_nanos() as u64);
        if begun_ns.saturating_add(timeout_ns) <= now_ns {
            self.time_out(core, user, now_ns);
        } else {
            self.arm_connect(user, begun_ns);
        }
    }

    pub(crate) fn connect_again<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        now_ns: u64,
    ) {
        let Some(one) = self.users.get(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if one.link.conn.get().is_none() && !one.awaits_lookup && !one.flights.is_empty() {
            self.connect(core, user, now_ns);
        }
    }

    /// Ends the request of a user that took too long; others on its connection go on.
    pub(crate) fn time_out_stream<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        now_ns: u64,
    ) {
        let block = self.block(user);
        let Some(one) = self.users.get(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if let Some(id) = one.link.conn.get() {
            self.cancel_stream(core, user, id);
            return self.fail(core, user, Failure::Timeout, now_ns);
        }
        let Some(at) = self.pool.find(block, one.link.endpoint) else {
            return self.fail(core, user, Failure::Timeout, now_ns);
        };
        let Some(shared) = self.pool.get(at) else { return };
        if shared.opened {
            shared.waiting.retain(|one| *one != user);
            return self.fail(core, user, Failure::Timeout, now_ns);
        }
        self.metrics.counts.connects_failed.add(1);
        self.fail_shared(core, at, Failure::ConnectTimeout, now_ns);
    }

    /// Whether the connection that a user waits for is open.
    pub(crate) fn stream_is_open(&self, user: u32) -> bool {
        let Some(one) = self.users.get(user as usize) else { return false };
        let at = self.pool.find(self.block(user), one.link.endpoint);
        let shared = at.and_then(|at| self.pool.shared(at));
        one.link.conn.get().is_some() || shared.is_some_and(|shared| shared.opened)
    }
}
