//! [`Exchange`]: one request to an upstream and its response, and the table of those in progress in a
//! worker. An open tunnel has none.

use std::sync::Arc;
use std::time::Duration;

use engine::{ConnId, invariant};
use wire::http::{BodyDecoder, HeadScanner};

use super::body::BodyClock;
use super::waiters::Position;
use crate::access_log::PendingEntry;
use crate::balance::{Permit, Pool, QueueTicket, Upstream};
use crate::config::{BodyLimits, Timeouts};
use crate::counters::{Counters, Stage};
use crate::headers::{AnswerChanges, Framing};
use crate::routes::RouteSettings;

/// One request and its response.
pub(super) struct Exchange {
    pub(super) client: ConnId,
    /// The connection that it uses now.
    pub(super) upstream: Option<ConnId>,
    pub(super) stage: Stage,
    pub(super) deadline_ns: u64,
    pub(super) began_ns: u64,
    /// When the connect to its upstream began.
    pub(super) connect_ns: u64,

    pub(super) pool: Arc<Pool>,
    pub(super) permit: Option<Permit>,
    pub(super) waiting: Option<QueueTicket>,
    /// Its position among the queued requests of the worker, if it waits.
    pub(super) position: Position,
    pub(super) hash: u64,
    pub(super) sticky: Option<u64>,
    /// Numbers of the upstreams that have failed it.
    pub(super) tried: Vec<u32>,

    /// The encoded request head for an upstream, with the buffered part of the body; empty once it
    /// cannot be sent again.
    pub(super) head: Vec<u8>,
    pub(super) info: RequestInfo,
    pub(super) request: BodyDecoder,
    pub(super) request_framing: Framing,
    /// A part of the body that is not kept was sent, so the request cannot be retried.
    pub(super) body_begun: bool,
    /// The body so far, if it is received before an upstream is chosen.
    pub(super) buffer: Vec<u8>,
    /// The bytes that count as buffered, until the response begins.
    pub(super) buffered_bytes: usize,
    /// The upstream was sent `Expect: 100-continue`: the client waits for it before it sends its body.
    pub(super) awaits_continue: bool,
    /// Bytes of the request that waited in the upstream's queue when last looked at; 0 once all are
    /// sent.
    pub(super) unsent_bytes: usize,
    /// The clock of its body, while that is being received.
    pub(super) clock: Option<BodyClock>,

    /// The received part of an incomplete response head.
    pub(super) partial_head: Vec<u8>,
    pub(super) scanner: HeadScanner,
    /// Part of a response was received, so the request cannot be retried.
    pub(super) answered: bool,
    /// Interim responses so far.
    pub(super) interim: u8,
    /// It uses a reused connection.
    pub(super) reused: bool,
    /// The key of connections to its upstream when it was chosen.
    pub(super) connection_key: u64,
    /// The config generation of that connection.
    pub(super) config_generation: u32,
    /// Its connection may be authenticated for the client, and must serve no other.
    pub(super) private: bool,
    /// Its connection has asked for credentials that authenticate it, and is kept for the client.
    /// Credentials alone keep none: any client can send them.
    pub(super) challenged: bool,
    /// Use no idle connection: one was found closed.
    pub(super) new_connection_only: bool,
    pub(super) answer: Option<AnswerBody>,
    /// Bytes of the response that waited in the client's queue when last looked at.
    pub(super) unread_bytes: usize,
    /// The settings of its route, if it has any.
    pub(super) settings: Option<Arc<RouteSettings>>,
    /// The encoded headers that the response gets.
    pub(super) answer_lines: Vec<u8>,
    /// The response gets the request id.
    pub(super) answers_id: bool,
    /// For the access log, if there is one.
    pub(super) log_entry: Option<Box<PendingEntry>>,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

/// Properties of the request that the response handling needs.
#[derive(Copy, Clone)]
pub(super) struct RequestInfo {
    /// The expected `Sec-WebSocket-Accept`, if it is a handshake.
    pub(super) accept: Option<[u8; 28]>,
    /// The client speaks HTTP/1.0.
    pub(super) http10: bool,
    pub(super) head_only: bool,
    pub(super) keep_alive: bool,
    /// The method is idempotent (RFC 9110 section 9.2.2).
    pub(super) idempotent: bool,
}

/// The body of a response in progress.
pub(super) struct AnswerBody {
    pub(super) decoder: BodyDecoder,
    pub(super) framing: Framing,
    /// The upstream connection may be reused.
    pub(super) reusable: bool,
    /// The client's connection closes after this response.
    pub(super) last: bool,
    /// It asks for credentials that authenticate the connection.
    pub(super) is_challenge: bool,
}

impl Exchange {
    /// Moves to another stage.
    pub(super) fn enter(&mut self, stage: Stage, counters: &Counters) {
        counters.move_stage(Some(self.stage), Some(stage));
        self.stage = stage;
    }

    /// The limits of its body, which its route may change.
    pub(super) fn body_limits(&self, all: &BodyLimits) -> BodyLimits {
        self.settings.as_ref().map_or(*all, |settings| settings.bodies(all))
    }

    /// The time for a connect to its upstream, with TLS.
    pub(super) fn connect_timeout(&self, all: &Timeouts) -> Duration {
        let of_route = self.settings.as_ref().and_then(|settings| settings.connect_timeout);
        of_route.unwrap_or(all.connect)
    }

    /// The time for its response, and for each pause in it and in the request's body.
    pub(super) fn answer_timeout(&self, all: &Timeouts) -> Duration {
        let of_route = self.settings.as_ref().and_then(|settings| settings.answer_timeout);
        of_route.unwrap_or(all.answer)
    }

    /// The time for the head of its response.
    pub(super) fn head_timeout(&self, all: &Timeouts) -> Duration {
        if self.info.accept.is_none() {
            return self.answer_timeout(all);
        }
        let of_route = self.settings.as_ref().and_then(|settings| settings.handshake_timeout);
        of_route.unwrap_or(all.handshake)
    }

    /// What changes in the head of its response.
    pub(super) fn answer_changes(&self) -> AnswerChanges<'_> {
        let rules = self.settings.as_ref().map_or(&[][..], |settings| &settings.response_headers);
        AnswerChanges { rules, sends_id: self.answers_id, lines: &self.answer_lines }
    }

    /// When it has to be looked at.
    fn due_ns(&self) -> u64 {
        let body_ns = self.clock.as_ref().map_or(u64::MAX, BodyClock::due_ns);
        self.deadline_ns.min(body_ns)
    }

    /// Whether a timeout or close is the upstream's fault: it is being connected to, or was
    /// sent the complete request. Otherwise a slow client could eject an upstream.
    pub(super) fn is_upstreams_turn(&self) -> bool {
        let sent = self.request.is_done() && self.unsent_bytes == 0;
        let awaits_response = self.stage == Stage::Sent && sent;
        awaits_response || self.stage == Stage::Connecting
    }

    /// The upstream that has the request, or had it last, for the access log.
    pub(super) fn last_upstream(&self) -> Option<&Upstream> {
        if let Some(permit) = &self.permit {
            return Some(permit.upstream());
        }
        let last = self.tried.last()?;
        let mut members = self.pool.members().iter().map(|member| &member.upstream);
        members.find(|upstream| upstream.number() == *last).map(|upstream| &**upstream)
    }

    /// Whether the upstream has taken some of the request since this was last asked; `queued` bytes
    /// wait for it now.
    pub(super) fn takes_request(&mut self, queued: usize) -> bool {
        std::mem::replace(&mut self.unsent_bytes, queued) > queued
    }

    /// Whether the client has read some of the response since this was last asked; `queued` bytes
    /// wait for it now.
    pub(super) fn takes_answer(&mut self, queued: usize) -> bool {
        std::mem::replace(&mut self.unread_bytes, queued) > queued
    }

    /// Whether the request may be retried: no part of a response was received, and nothing was sent
    /// that cannot be sent twice.
    pub(super) fn may_retry(&self) -> bool {
        let unsent = self.stage == Stage::Connecting;
        !self.answered && !self.body_begun && (unsent || self.info.idempotent)
    }
}

/// The exchanges in progress, at stable indices.
#[derive(Default)]
pub(super) struct Exchanges {
    slots: Vec<Option<Box<Exchange>>>,
    free: Vec<u32>,
}

impl Exchanges {
    pub(super) fn insert(&mut self, exchange: Exchange) -> u32 {
        let exchange = Some(Box::new(exchange));
        if let Some(index) = self.free.pop() {
            match self.slots.get_mut(index as usize) {
                Some(slot) => *slot = exchange,
                None => invariant::broken("a free slot of the exchange table exists"),
            }
            return index;
        }
        self.slots.push(exchange);
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    /// Returns an exchange in progress. Connections refer only to exchanges that exist, so a missing
    /// one is a bug.
    #[track_caller]
    pub(super) fn get(&mut self, index: u32) -> Option<&mut Exchange> {
        let exchange = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
        if exchange.is_none() {
            invariant::broken("a request under way has an exchange");
        }
        exchange
    }

    #[track_caller]
    pub(super) fn remove(&mut self, index: u32) -> Option<Box<Exchange>> {
        let Some(exchange) = self.slots.get_mut(index as usize).and_then(Option::take) else {
            invariant::broken("an exchange ends once");
            return None;
        };
        self.free.push(index);
        if self.is_empty() {
            // Frees the memory that a burst needed.
            *self = Exchanges::default();
        }
        Some(exchange)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Bytes of request heads that are kept.
    #[cfg(test)]
    #[cfg(feature = "simulation")]
    pub(super) fn head_bytes(&self) -> usize {
        self.slots.iter().flatten().map(|exchange| exchange.head.capacity()).sum()
    }

    /// Appends the exchanges whose deadline has passed.
    pub(super) fn due(&self, now_ns: u64, into: &mut Vec<u32>) {
        for (index, exchange) in self.slots.iter().enumerate() {
            let due = exchange.as_ref().is_some_and(|exchange| exchange.due_ns() <= now_ns);
            if due {
                into.extend(u32::try_from(index));
            }
        }
    }
}
