//! Request bodies. A body is read only if the handler requests it by [`crate::Answer::Body`] after
//! seeing the head. It is collected up to the handler's limit, the worker's limit and a deadline,
//! and passed on complete. An unrequested body is not read: the connection ends with the answer.

use wire::http::{BodyDecoder, BodyEvent, CONTINUE, Request, expects_continue};
use wire::{Limits, Status};

use crate::buffers::held;
use crate::core::Core;
use crate::http::RequestContext;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::retry_after;
use crate::sys::Sys;
use crate::timers::nanoseconds;
use crate::worker::Worker;
use crate::{Handler, Response};

/// A body that is being received.
pub(crate) struct PendingBody {
    decoder: BodyDecoder,
    data: Vec<u8>,
    /// Deadline for the complete body.
    pub(crate) until_ns: u64,
    context: RequestContext,
}

impl PendingBody {
    /// Bytes received so far.
    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    /// Memory that they take, in bytes.
    pub(crate) fn held(&self) -> usize {
        held(&self.data)
    }
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Starts receiving the body of a request, up to `bytes_max` bytes.
    pub(crate) fn begin_body(
        &mut self,
        slot: u32,
        request: &Request<'_, '_>,
        bytes_max: u64,
        context: RequestContext,
    ) {
        let core = &mut self.core;
        let limits = Limits { body_bytes: bytes_max, ..core.limits.wire.clone() };
        let decoder = match BodyDecoder::for_request(request, &limits) {
            Ok(decoder) => decoder,
            Err(violation) => return core.reject(slot, violation),
        };
        let until_ns = core.now_ns.saturating_add(nanoseconds(core.limits.handshake_timeout));
        let body = PendingBody { decoder, data: Vec::new(), until_ns, context };
        if body.decoder.is_done() {
            return self.body_complete(slot, body);
        }
        if expects_continue(request) {
            core.cork.extend_from_slice(CONTINUE);
        }
        core.put_body(slot, Box::new(body));
    }

    /// Consumes received bytes of a body; returns how many were used.
    pub(crate) fn on_body(&mut self, slot: u32, bytes: &[u8]) -> usize {
        let core = &mut self.core;
        let Some(mut body) = core.take_body(slot) else {
            broken("a connection that reads a body has one pending");
            return bytes.len();
        };
        let mut at = 0;
        loop {
            match body.decoder.decode(bytes.get(at..).unwrap_or_default()) {
                Ok(Status::Complete((used, BodyEvent::End))) => {
                    self.body_complete(slot, *body);
                    return at + used;
                }
                Ok(Status::Complete((used, BodyEvent::Data(data)))) => {
                    at += used;
                    let held = core.counters().body_bytes.get() as usize + body.len();
                    if held + data.len() > core.limits.bodies_bytes {
                        core.counters().bodies_refused.add(1);
                        let response = bodies_overloaded(core.sys.random());
                        core.respond(slot, &response, false, &body.context, false);
                        return bytes.len();
                    }
                    body.data.extend_from_slice(data);
                }
                Ok(Status::Partial) => {
                    core.put_body(slot, body);
                    return at;
                }
                Err(violation) => {
                    core.reject(slot, violation);
                    return bytes.len();
                }
            }
        }
    }

    fn body_complete(&mut self, slot: u32, body: PendingBody) {
        // The handler may have ended the connection when it requested the body.
        let Some(id) = self.core.id_at(slot) else { return };
        self.core.counters().bodies_in.add(1);
        let answer = self.handler.body(&mut self.core, id, body.data);
        if self.core.live(id).is_some() {
            self.answer(slot, answer, &body.context);
        }
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Stores an incomplete body with its connection.
    fn put_body(&mut self, slot: u32, body: Box<PendingBody>) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let bytes = body.len() as u64;
        conn.cold().body = Some(body);
        self.counters().body_bytes.add(bytes);
    }

    fn take_body(&mut self, slot: u32) -> Option<Box<PendingBody>> {
        let body = self.slab.get_mut(slot)?.cold.as_mut()?.body.take()?;
        self.counters().body_bytes.sub(body.len() as u64);
        Some(body)
    }

    /// The body is not complete in time (RFC 9110 section 15.5.9).
    pub(crate) fn body_timed_out(&mut self, slot: u32) {
        let Some(body) = self.take_body(slot) else {
            return broken("a connection that reads a body has one pending");
        };
        self.counters().bodies_late.add(1);
        self.corked = Some(slot);
        let response = Response::text(408, "The request body was not received in time.\n");
        self.respond(slot, &response, false, &body.context, false);
        self.flush_cork();
        self.corked = None;
        self.after_read(slot, b"");
    }
}

fn bodies_overloaded(random: u64) -> Response {
    let mut response =
        Response::text(503, "The server is receiving too many request bodies: try again.\n");
    response.headers = vec![("Retry-After".into(), retry_after(random).into())];
    response
}

/// The answer when the handler requests a body where none can be read: after the body, or by a late
/// answer.
pub(crate) fn body_not_kept() -> Response {
    Response::text(500, "The request body was not kept.\n")
}
