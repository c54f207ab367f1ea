//! How requests end without an answer: on a failed connection, by a timeout, or at the end of the run.
//! And how each result is counted.

use engine::invariant;
use engine::{Core, Sys};

use crate::outcome::failure::Failure;
use crate::transport::driver::Driver;
use crate::workload::requests::answer::{Answer, Times};
use crate::workload::requests::request::Kind;
use crate::workload::requests::requester::Requester;
use crate::workload::requests::script::Script;
use crate::workload::requests::user::Activity;

impl<D: Driver, S: Script> Requester<D, S> {
    /// Aborts the connection and fails the requests on it.
    pub(crate) fn fail_connection<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        failure: Failure,
        now_ns: u64,
    ) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.link.take().into_iter().for_each(|id| core.abort(id));
        self.fail(core, user, failure, now_ns);
    }

    /// Handles the timeout of the oldest request of a user.
    pub(crate) fn time_out<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let Some(one) = self.users.get(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if D::STREAMS {
            return self.time_out_stream(core, user, now_ns);
        }
        let opened = one.link.opened;
        let stays = one.flights.front().is_some_and(|flight| flight.kind.leaves_open());
        if D::PUSHES && opened && stays {
            return self.fail(core, user, Failure::Timeout, now_ns);
        }
        let failure = if opened { Failure::Timeout } else { Failure::ConnectTimeout };
        self.metrics.counts.connects_failed.add(u64::from(!opened));
        self.fail_connection(core, user, failure, now_ns);
    }

    /// Fails all requests in flight of a user, whose connection is closed or unusable.
    pub(crate) fn fail<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        failure: Failure,
        now_ns: u64,
    ) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.rare.set_redirect(None);
        one.link.give_up();
        let flights = std::mem::take(&mut one.flights);
        let at = one.activity;
        self.in_flight -= flights.len();
        for flight in flights.iter() {
            let times = flight.times.until(now_ns);
            self.judge(user, Err(failure), 0, times);
        }
        match at {
            Activity::Busy if failure.is_of_connect() => self.rest(core, user, now_ns),
            Activity::Busy => self.advance(core, user, now_ns),
            Activity::Over | Activity::Parked => self.close_all(core, user),
            _ => {}
        }
    }

    /// Passes the result of a request to the script, and counts it.
    #[inline]
    pub(crate) fn judge(
        &mut self,
        user: u32,
        outcome: Result<u16, Failure>,
        body_bytes: u64,
        times: Times,
    ) {
        if D::MESSAGES {
            self.end_conversation(user, outcome.err(), times.done_ns);
        }
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let is_warm_up = times.due_ns < self.schedule.measure_ns;
        let decoded = match outcome {
            Ok(_) => one.awaited.decode(body_bytes),
            Err(_) => Ok(false),
        };
        let (head, body, plain) = one.awaited.kept();
        let is_cut = decoded != Ok(true) && !body.is_empty() && (body.len() as u64) < body_bytes;
        let body = if decoded == Ok(true) { plain } else { body };
        // An answer that cannot be decoded counts as one, but the script gets the failure.
        let shown = outcome.and_then(|status| decoded.map(|_| status));
        let answer = Answer { outcome: shown, head, body, is_cut, body_bytes, is_warm_up, times };
        let judged = self.script.answered(user, &answer);
        // As with a driver that knows no status to be expected: a failed call is not timed.
        let outcome = match judged {
            Some(failure) if failure.is_of_call() => Err(failure),
            _ => outcome,
        };
        let counts = &self.metrics.counts;
        if is_warm_up {
            return counts.warm_up.add(1);
        }
        if decoded == Ok(true) {
            counts.decoded_bytes.add(plain.len() as u64);
        }
        if let Ok(status) = outcome {
            counts.answered.add(1);
            counts.body_bytes.add(body_bytes);
            counts.count_status(status);
            self.timings.answered(&times);
        } else if outcome != Err(Failure::Unfinished) {
            self.timings.failed(times.done_ns);
        }
        let is_straggler = outcome.is_ok() && times.done_ns > self.schedule.until_ns;
        counts.stragglers.add(u64::from(is_straggler));
        match shown.err().or(judged) {
            None => {
                counts.ok.add(1);
                counts.stragglers_ok.add(u64::from(is_straggler));
            }
            Some(failure) => {
                counts.count_failed(failure);
                let errors = &self.metrics.call_errors;
                if failure.is_of_call() && errors.lacks(failure) {
                    errors.note(failure, if head.is_empty() { self.driver.head() } else { head });
                }
            }
        }
    }

    /// Fails the requests in flight of a user at the end of the run.
    pub(crate) fn give_up<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let flights = std::mem::take(&mut one.flights);
        self.in_flight -= flights.len();
        // Waiting for a message that may never be sent is no failure.
        for flight in flights.iter().filter(|flight| flight.kind != Kind::Await) {
            let times = flight.times.until(now_ns);
            self.judge(user, Err(Failure::Unfinished), 0, times);
        }
        self.close_all(core, user);
    }
}
