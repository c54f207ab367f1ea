//! Request bodies: their limits in size and time, buffering before an upstream is chosen, and passing on.
//!
//! A body is passed on as it arrives, unless buffering is configured. A buffered body becomes part of the
//! encoded head, so both are sent and retried together.

use engine::{ConnId, Core, Sent, Sys, invariant};
use wire::http::{BodyEvent, LAST_CHUNK, encode_chunk};
use wire::{Status, Violation};

use super::Relay;
use super::connect::queued_bytes;
use super::dispatch::{after, body_limits};
use super::exchange::Exchange;
use crate::access_log::Side;
use crate::config::BodyLimits;
use crate::counters::{Refusal, Stage};
use crate::headers::{Framing, remove_header};

/// The clock of a request body that is being received.
pub(super) struct BodyClock {
    /// When the complete body is due.
    until_ns: u64,
    /// When the next check of the rate is due.
    check_ns: u64,
    /// Bytes received until the last check.
    checked_bytes: u64,
    /// The client was not read for a part of the time since the last check.
    blocked: bool,
}

impl BodyClock {
    fn new(now_ns: u64, limits: &BodyLimits) -> BodyClock {
        BodyClock {
            until_ns: limits.timeout.map_or(u64::MAX, |timeout| after(now_ns, timeout)),
            check_ns: next_check(now_ns, limits),
            checked_bytes: 0,
            blocked: false,
        }
    }

    /// When it has to be looked at.
    pub(super) fn due_ns(&self) -> u64 {
        self.until_ns.min(self.check_ns)
    }

    /// Checks total time and rate; `bytes` were received so far.
    fn check(&mut self, now_ns: u64, bytes: u64, limits: &BodyLimits) -> Option<Refusal> {
        if self.until_ns <= now_ns {
            return Some(Refusal::LateBody);
        }
        if now_ns < self.check_ns {
            return None;
        }
        let grown = bytes - self.checked_bytes.min(bytes);
        let least = limits.min_rate.map_or(0, |rate| rate.bytes);
        if grown < least && !self.blocked {
            return Some(Refusal::SlowBody);
        }
        (self.checked_bytes, self.blocked) = (bytes, false);
        self.check_ns = next_check(now_ns, limits);
        None
    }
}

fn next_check(now_ns: u64, limits: &BodyLimits) -> u64 {
    limits.min_rate.map_or(u64::MAX, |rate| after(now_ns, rate.every))
}

/// The limits of a request body's syntax, with its maximum size.
pub(super) fn request_limits(limits: &BodyLimits) -> wire::Limits {
    wire::Limits { body_bytes: limits.bytes_max.unwrap_or(u64::MAX), ..body_limits().clone() }
}

/// The refusal for an invalid body.
pub(super) fn refusal_of_body(violation: Violation) -> Refusal {
    if violation == Violation::BodyTooLarge { Refusal::BodyTooLarge } else { Refusal::BadBody }
}

impl Relay {
    /// Begins to receive a body before an upstream is chosen, if that is configured. Returns whether it
    /// does.
    pub(super) fn begin_buffering(&mut self, index: u32, now_ns: u64) -> bool {
        let Some(exchange) = self.exchanges.get(index) else { return false };
        let limits = &exchange.body_limits(&self.live.bodies);
        let deadline_ns = after(now_ns, exchange.answer_timeout(&self.live.timeouts));
        let whole = exchange.request.is_done() || exchange.info.accept.is_some();
        if limits.buffer_bytes.is_none() || whole {
            return false;
        }
        let counters = &self.shared.counters[self.worker];
        if self.buffered_bytes >= limits.buffers_bytes {
            counters.bodies_unbuffered.add(1);
            return false;
        }
        counters.bodies_buffered.add(1);
        exchange.enter(Stage::Reading, counters);
        exchange.deadline_ns = deadline_ns;
        exchange.clock = Some(BodyClock::new(now_ns, limits));
        // This proxy answers it.
        exchange.awaits_continue = false;
        remove_header(&mut exchange.head, "Expect");
        true
    }

    /// Uncounts the buffered body of a request.
    pub(super) fn uncount_buffer(&mut self, bytes: usize) {
        match self.buffered_bytes.checked_sub(bytes) {
            Some(left) => self.buffered_bytes = left,
            None => invariant::broken("a buffered body was counted"),
        }
        self.counters().buffered_bytes.sub(bytes as u64);
    }

    /// Starts the clock of a body that is passed on from here, or lets it go on with a new check.
    pub(super) fn start_body_clock(&mut self, index: u32, now_ns: u64) {
        let Some(exchange) = self.exchanges.get(index) else { return };
        let limits = &exchange.body_limits(&self.live.bodies);
        match &mut exchange.clock {
            Some(clock) => {
                clock.checked_bytes = exchange.bytes_in;
                clock.check_ns = next_check(now_ns, limits);
            }
            None => exchange.clock = Some(BodyClock::new(now_ns, limits)),
        }
    }

    /// The client may send its body, or does so: from here on it can be too slow.
    pub(super) fn end_continue_wait(&mut self, index: u32, now_ns: u64) {
        let Some(exchange) = self.exchanges.get(index) else { return };
        if std::mem::take(&mut exchange.awaits_continue) {
            exchange.deadline_ns = after(now_ns, exchange.answer_timeout(&self.live.timeouts));
            self.start_body_clock(index, now_ns);
        }
    }

    /// Everything of the request so far is sent: the time for the response begins, or for more of the
    /// body. Returns the client, which is read on.
    pub(super) fn request_drained(&mut self, index: u32, now_ns: u64) -> Option<ConnId> {
        let exchange = self.exchanges.get(index)?;
        exchange.unsent_bytes = 0;
        if exchange.stage == Stage::Sent {
            exchange.deadline_ns = after(now_ns, exchange.head_timeout(&self.live.timeouts));
        }
        Some(exchange.client)
    }

    /// Handles bytes of a client after its request head.
    pub(super) fn on_body<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        client: ConnId,
        data: &mut [u8],
    ) {
        let Some(exchange) = self.exchanges.get(index) else { return };
        let deadline_ns = after(core.now_ns(), exchange.answer_timeout(&self.live.timeouts));
        if exchange.info.accept.is_some() || exchange.request.is_done() {
            // They belong to the tunnel, once it is open, or to the next request.
            return core.leave_unread(data.len());
        }
        if exchange.stage == Stage::Reading {
            exchange.deadline_ns = deadline_ns;
            return self.buffer_body(core, index, data);
        }
        let unasked = matches!(exchange.stage, Stage::Waiting | Stage::Connecting);
        let Some(upstream) = exchange.upstream.filter(|_| !unasked) else {
            return core.leave_unread(data.len());
        };
        exchange.body_begun = true;
        exchange.deadline_ns = deadline_ns;
        self.end_continue_wait(index, core.now_ns());
        let Some(exchange) = self.exchanges.get(index) else { return };
        let mut out = std::mem::take(&mut self.scratch);
        let framing = exchange.request_framing;
        let taken = decode_body(exchange, data, framing, &mut out);
        let sent = core.write(upstream, &out);
        exchange.unsent_bytes = queued_bytes(sent);
        out.clear();
        self.scratch = out;
        match taken {
            Ok(taken) => {
                if let Sent::Queued(_) = sent {
                    core.pause(client);
                    if let Some(clock) = &mut exchange.clock {
                        clock.blocked = true;
                    }
                }
                core.leave_unread(data.len() - taken);
            }
            Err(violation) => self.end_body(core, index, refusal_of_body(violation)),
        }
    }

    /// Ends a request for its body. Within a response no error can be sent.
    fn end_body<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32, why: Refusal) {
        if self.exchanges.get(index).is_some_and(|exchange| exchange.stage == Stage::Answering) {
            self.truncate_answer(core, index, (Side::Proxy, why.name()));
        } else {
            self.abandon_upstream(core, index);
            self.refuse(core, index, why);
        }
    }

    /// Adds bytes to a buffered body. Chooses an upstream when the body is complete or the buffer full.
    fn buffer_body<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32, data: &[u8]) {
        let Some(exchange) = self.exchanges.get(index) else { return };
        let limits = &exchange.body_limits(&self.live.bodies);
        let before = exchange.buffer.len();
        let room = limits.buffer_bytes.unwrap_or_default().saturating_sub(before);
        let room = room.min(limits.buffers_bytes.saturating_sub(self.buffered_bytes));
        let fits = data.get(..room).unwrap_or(data);
        // It is encoded when it is sent: chunks of one byte would need six times as much.
        let mut buffer = std::mem::take(&mut exchange.buffer);
        let taken = decode_body(exchange, fits, Framing::Counted, &mut buffer);
        let grown = buffer.len() - before;
        exchange.buffered_bytes += grown;
        exchange.buffer = buffer;
        self.buffered_bytes += grown;
        self.shared.counters[self.worker].buffered_bytes.add(grown as u64);
        let taken = match taken {
            Ok(taken) => taken,
            Err(violation) => return self.refuse(core, index, refusal_of_body(violation)),
        };
        core.leave_unread(data.len() - taken);
        if exchange.request.is_done() || fits.len() < data.len() {
            exchange.encode_buffer();
            exchange.enter(Stage::Waiting, &self.shared.counters[self.worker]);
            self.retry(core, index);
        }
    }

    /// Ends a request whose body is too slow or too late; returns whether it is.
    pub(super) fn check_body<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32) -> bool {
        let now_ns = core.now_ns();
        let Some(exchange) = self.exchanges.get(index) else { return true };
        let limits = &exchange.body_limits(&self.live.bodies);
        if exchange.request.is_done() {
            exchange.clock = None;
            return false;
        }
        let unread = matches!(exchange.stage, Stage::Waiting | Stage::Connecting);
        let full = exchange.upstream.is_some_and(|upstream| core.queued(upstream) > 0);
        let bytes = exchange.bytes_in;
        let Some(clock) = &mut exchange.clock else { return false };
        if unread {
            // Its upstream is late, not the client.
            clock.check_ns = next_check(now_ns, limits);
            return false;
        }
        clock.blocked |= full;
        let Some(why) = clock.check(now_ns, bytes, limits) else { return false };
        self.end_body(core, index, why);
        true
    }
}

impl Exchange {
    /// Appends the buffered body to the head.
    fn encode_buffer(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.head.reserve_exact(buffer.len() + 32);
        match self.request_framing {
            Framing::Chunked => encode_chunk(&mut self.head, &buffer),
            _ => self.head.extend_from_slice(&buffer),
        }
        if self.request.is_done() && self.request_framing == Framing::Chunked {
            self.head.extend_from_slice(LAST_CHUNK);
        }
    }
}

/// Appends the body bytes in `data` to `out`, in this framing; returns how many bytes belong to the
/// body.
fn decode_body(
    exchange: &mut Exchange,
    data: &[u8],
    framing: Framing,
    out: &mut Vec<u8>,
) -> Result<usize, Violation> {
    let mut taken = 0;
    while let Some(rest) = data.get(taken..).filter(|rest| !rest.is_empty()) {
        let Status::Complete((used, event)) = exchange.request.decode(rest)? else { break };
        taken += used;
        match event {
            BodyEvent::Data(bytes) => {
                exchange.bytes_in += bytes.len() as u64;
                match framing {
                    Framing::Chunked => encode_chunk(out, bytes),
                    _ => out.extend_from_slice(bytes),
                }
            }
            BodyEvent::End => break,
        }
        if exchange.request.is_done() {
            break;
        }
    }
    if exchange.request.is_done() && framing == Framing::Chunked {
        out.extend_from_slice(LAST_CHUNK);
    }
    Ok(taken)
}
