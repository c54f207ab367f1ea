//! Requests that come to nothing before the handler is asked: a head that breaks a rule, which is answered
//! as the RFC says (RFC 9110 section 15.5, RFC 6585 section 5), and one that does not come in time, which
//! is answered nothing. The handler hears of both, so that a log may have a line for them. Not here: who
//! is let in (`admission/`), and bodies.

use wire::Violation;
use wire::http::Request;
use wire::websocket::encode_refusal;

use crate::core::Core;
use crate::sys::Sys;
use crate::worker::Worker;
use crate::{Broken, Closed, Handler, RefusedHead};

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Refuses a head that breaks a rule; `read` is what of it could be read, and how long it took.
    #[cold]
    pub(crate) fn refuse_head(
        &mut self,
        slot: u32,
        violation: Violation,
        (head, took_ns): (Option<&Request<'_, '_>>, u64),
    ) {
        let (status, why) = (violation.http_status(), violation.name());
        self.tell_refused(slot, &RefusedHead { head, status, why, took_ns });
        self.core.refuse(slot, violation);
    }

    /// The time for a handshake, or between two requests, has passed.
    pub(crate) fn on_late(&mut self, slot: u32, generation: u32) {
        if !self.core.handshake_is_late(slot, generation) {
            return;
        }
        let why = Closed::HandshakeTimeout;
        // Who has said nothing of it has asked for nothing.
        if self.core.has_torn_head(slot) {
            let took_ns = self.core.head_took_ns(slot);
            self.core.learn_client(slot, None);
            let late = RefusedHead { head: None, status: 408, why: why.name(), took_ns };
            self.tell_refused(slot, &late);
        }
        self.core.end(slot, why);
    }

    fn tell_refused(&mut self, slot: u32, refused: &RefusedHead<'_, '_>) {
        let accepted = self.core.slab.get(slot).is_some_and(|conn| !conn.is_client());
        if let Some(id) = self.core.id_at(slot).filter(|_| accepted) {
            self.handler.refused(&self.core, id, refused);
        }
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Answers a broken request as the RFC says, counts it, ends the connection.
    pub(crate) fn refuse(&mut self, slot: u32, violation: Violation) {
        self.counters().count_violation(violation);
        let Some(conn) = self.slab.get_mut(slot) else { return };
        if conn.is_client() {
            self.broken.insert(slot, Broken::Rule(violation));
            return self.end(slot, Closed::HandshakeRejected);
        }
        conn.closed = Closed::Violation;
        let before = conn.set_answered();
        self.handshake_over(before);
        encode_refusal(&mut self.cork, violation);
        self.finish(slot);
    }

    /// How long ago a head began that is not whole yet; nothing where it came at once.
    pub(crate) fn head_took_ns(&self, slot: u32) -> u64 {
        let cold = self.slab.get(slot).and_then(|conn| conn.cold.as_ref());
        let since_ns = cold.map(|cold| cold.since_ns).filter(|since_ns| *since_ns > 0);
        since_ns.map_or(0, |since_ns| self.now_ns.saturating_sub(since_ns))
    }

    fn has_torn_head(&self, slot: u32) -> bool {
        let cold = self.slab.get(slot).and_then(|conn| conn.cold.as_ref());
        cold.is_some_and(|cold| !cold.tail.is_empty())
    }
}
