//! Requests that a script keeps until they are answered ([`Script::KEEPS`]): they are queued while a
//! connect is in progress, and sent again if the server has not processed them.

use engine::invariant;
use engine::{Core, Sent, Sys};

use crate::transport::driver::Driver;
use crate::workload::requests::requester::Requester;
use crate::workload::requests::script::Script;

impl<D: Driver, S: Script> Requester<D, S> {
    /// Sends the requests that were queued behind the first while the connection was opened.
    pub(crate) fn send_queued<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let queued = self.users.get(user as usize).map_or(0, |one| one.flights.len());
        for nth in 1..queued {
            let Some(one) = self.users.get_mut(user as usize) else {
                return invariant::broken("each user number is in the table of users");
            };
            let Some(id) = one.conn else { return };
            let bytes = self.driver.encode(&mut one.state, self.script.unanswered(user, nth));
            // A connection that drops a request has ended, which is reported later.
            if core.write(id, bytes) == Sent::Dropped {
                return;
            }
            self.sent(user, nth, now_ns);
        }
    }

    /// Sends the requests of a user on another connection: after an answer with `Connection: close` a
    /// server processes no more (RFC 9112 section 9.6).
    pub(crate) fn repeat<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let wants = self.script.wants(user);
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.opened = false;
        one.conn.take().into_iter().for_each(|id| core.abort(id));
        for flight in one.flights.iter_mut().filter(|flight| flight.times.sent_ns > 0) {
            (flight.times.sent_ns, flight.times.first_ns) = (0, 0);
            self.metrics.counts.sent.sub(1);
        }
        let is_head = one.flights.front().is_some_and(|flight| flight.is_head);
        one.awaited.begin(wants, false, is_head);
        self.connect(core, user, now_ns);
    }
}
