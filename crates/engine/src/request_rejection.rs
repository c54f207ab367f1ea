//! Requests that are rejected before they reach the handler: an invalid head, answered as RFC 9110
//! section 15.5 and RFC 6585 section 5 require, and one that is not received in time, which is not
//! answered. The handler is notified of both, so that they can be logged. Not here: admission
//! (`admission/`), and bodies.

use wire::Violation;
use wire::http::Request;
use wire::websocket::encode_refusal;

use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::sys::Sys;
use crate::worker::Worker;
use crate::{Closed, Handler, RejectedRequest, ServerFault};

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Rejects an invalid head; `head` is the part that could be parsed, if any, and `took_ns` its
    /// duration.
    #[cold]
    pub(crate) fn reject_head(
        &mut self,
        slot: u32,
        violation: Violation,
        (head, took_ns): (Option<&Request<'_, '_>>, u64),
    ) {
        let (status, why) = (violation.http_status(), violation.name());
        self.notify_rejected(slot, &RejectedRequest { head, status, why, took_ns });
        self.core.reject(slot, violation);
    }

    /// Handles a passed handshake deadline, or the end of the time between two requests.
    pub(crate) fn on_handshake_deadline(&mut self, slot: u32, generation: u32) {
        if !self.core.handshake_timed_out(slot, generation) {
            return;
        }
        let why = Closed::HandshakeTimeout;
        // A client that has sent nothing has requested nothing.
        if self.core.has_partial_head(slot) {
            let took_ns = self.core.head_took_ns(slot);
            self.core.set_client_from_header(slot, None);
            let late = RejectedRequest { head: None, status: 408, why: why.name(), took_ns };
            self.notify_rejected(slot, &late);
        }
        self.core.end(slot, why);
    }

    fn notify_rejected(&mut self, slot: u32, rejected: &RejectedRequest<'_, '_>) {
        let accepted = self.core.slab.get(slot).is_some_and(|conn| !conn.is_client());
        if let Some(id) = self.core.id_at(slot).filter(|_| accepted) {
            self.handler.rejected(&self.core, id, rejected);
        }
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Answers an invalid request with the violation's status, counts it, and ends the connection.
    pub(crate) fn reject(&mut self, slot: u32, violation: Violation) {
        self.counters().count_violation(violation);
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if conn.is_client() {
            self.server_faults.insert(slot, ServerFault::Violation(violation));
            return self.end(slot, Closed::HandshakeRejected);
        }
        conn.closed = Closed::Violation;
        let before = conn.set_answered();
        self.handshake_ended(before);
        encode_refusal(&mut self.cork, violation);
        self.finish(slot);
    }

    /// Time since the incomplete head began, in nanoseconds; 0 if it arrived at once.
    pub(crate) fn head_took_ns(&self, slot: u32) -> u64 {
        let cold = self.slab.get(slot).and_then(|conn| conn.cold.as_ref());
        let since_ns = cold.map(|cold| cold.since_ns).filter(|since_ns| *since_ns > 0);
        since_ns.map_or(0, |since_ns| self.now_ns.saturating_sub(since_ns))
    }

    fn has_partial_head(&self, slot: u32) -> bool {
        let cold = self.slab.get(slot).and_then(|conn| conn.cold.as_ref());
        cold.is_some_and(|cold| !cold.tail.is_empty())
    }
}
