//! Requests that a script keeps until they are answered ([`Script::KEEPS`]): they are queued while a
//! connect is in progress, and sent again if the server has not processed them. And users that send in
//! turn.

use std::time::Duration;

use engine::invariant;
use engine::{Core, Sent, Sys};

use crate::outcome::failure::Failure;
use crate::transport::driver::Driver;
use crate::workload::requests::requester::{Requester, SENDS_PER_TURN};
use crate::workload::requests::schedule::NextSend;
use crate::workload::requests::script::Script;
use crate::workload::requests::user::User;

impl<D: Driver, S: Script> Requester<D, S> {
    /// Sends the requests that were queued behind the first while the connection was opened.
    pub(crate) fn send_queued<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let queued = self.users.get(user as usize).map_or(0, |one| one.flights.len());
        for nth in 1..queued {
            let Some(one) = self.users.get_mut(user as usize) else {
                return invariant::broken("each user number is in the table of users");
            };
            let Some(id) = one.link.conn.get() else { return };
            let request = self.script.unanswered(user, nth);
            let (stream, bytes) = one.link.ask(&mut self.driver, request);
            // A connection that drops a request has ended, which is reported later.
            if core.write(id, bytes) == Sent::Dropped {
                return;
            }
            self.sent(user, nth, stream, now_ns);
        }
    }

    /// Closes the connection of a user that was idle for longer than `most`.
    pub(crate) fn close_unused<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        now_ns: u64,
        most: Duration,
    ) {
        let since_ns = self.users.get(user as usize).map_or(0, |one| one.link.since_ns);
        if now_ns > since_ns.saturating_add(most.as_nanos() as u64) {
            self.close_idle(core, user);
        }
    }

    /// Sends the requests of a user on another connection: after an answer with `Connection: close` a
    /// server processes no more (RFC 9112 section 9.6).
    pub(crate) fn repeat<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let wants = self.script.wants(user);
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.link.take().into_iter().for_each(|id| core.abort(id));
        for flight in one.flights.iter_mut().filter(|flight| flight.times.sent_ns > 0) {
            (flight.times.sent_ns, flight.times.first_ns) = (0, 0);
            self.metrics.counts.sent.sub(1);
            self.metrics.counts.repeated.add(1);
        }
        let is_head = one.flights.front().is_some_and(|flight| flight.is_head);
        one.awaited.begin(wants, false, is_head);
        self.connect(core, user, now_ns);
    }

    pub(crate) fn next_idle(&mut self) -> Option<u32> {
        if self.config.in_turn { self.idle.pop_front() } else { self.idle.pop_back() }
    }

    pub(crate) fn return_idle(&mut self, user: u32) {
        if self.config.in_turn { self.idle.push_front(user) } else { self.idle.push_back(user) }
    }

    /// Whether due requests are not sent, as each user has as many in flight as it may.
    pub(crate) fn is_full(&self) -> bool {
        let full = |one: &User<D::State>| one.flights.len() >= self.config.pipeline as usize;
        self.config.in_turn && self.started >= self.part.users && self.users.iter().all(full)
    }

    /// Skips due requests. Returns true if more may be due.
    pub(crate) fn skip_due(&mut self, now_ns: u64) -> bool {
        if !self.is_full() {
            return false;
        }
        for _ in 0..SENDS_PER_TURN {
            if !matches!(self.schedule.take(now_ns), NextSend::Due(_)) {
                return false;
            }
            self.skipped += 1;
            self.metrics.set_untaken(self.skipped);
        }
        true
    }

    /// Sends a request that was not processed on another connection, once.
    pub(crate) fn repeat_stream<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        at: u32,
        user: u32,
        now_ns: u64,
    ) {
        if !self.free_stream(at, user) {
            return;
        }
        let Some(one) = self.users.get_mut(user as usize) else { return };
        let Some(flight) = one.flights.front_mut() else { return };
        // A server that has begun to answer has processed the call.
        let is_answered = flight.times.first_ns > 0;
        if std::mem::replace(&mut flight.is_repeated, true) || is_answered {
            return self.fail(core, user, Failure::GoAway, now_ns);
        }
        let counts = &self.metrics.counts;
        counts.repeated.add(1);
        if one.hops > 0 {
            // Times are from the send of the first request.
            counts.redirects.sub(1);
        } else if flight.times.sent_ns > 0 {
            let is_counted = flight.times.due_ns >= self.schedule.measure_ns;
            if is_counted { &counts.sent } else { &counts.warm_up_sent }.sub(1);
            flight.times.sent_ns = 0;
        }
        flight.times.first_ns = 0;
        if D::MESSAGES {
            self.take_back_conversation(user);
        }
        self.dispatch_stream(core, user, now_ns);
    }
}
