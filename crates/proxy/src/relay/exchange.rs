//! [`Exchange`]: one request to an upstream and its response, and the table of those in progress in a
//! worker. An open tunnel has none.

use std::sync::Arc;

use engine::ConnId;
use wire::http::{BodyDecoder, HeadScanner};

use crate::access_log::pending::Note;
use crate::balance::{Picked, Pool, Waiting};
use crate::counters::{Counters, Stage};
use crate::headers::Framing;
use crate::planted::{self, Bug};

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
    pub(super) picked: Option<Picked>,
    pub(super) waiting: Option<Waiting>,
    pub(super) hash: u64,
    pub(super) sticky: Option<u64>,
    /// Numbers of the upstreams that have failed it.
    pub(super) tried: Vec<u32>,

    /// The encoded request head for an upstream.
    pub(super) head: Vec<u8>,
    pub(super) asked: Asked,
    pub(super) request: BodyDecoder,
    pub(super) request_framing: Framing,
    /// Part of the body was sent, so the request cannot be retried.
    pub(super) body_begun: bool,

    /// The front of an answer whose head is not whole yet.
    pub(super) torn: Vec<u8>,
    pub(super) scanner: HeadScanner,
    /// Part of a response was received, so the request cannot be retried.
    pub(super) answered: bool,
    /// Interim responses so far.
    pub(super) interim: u8,
    /// It uses a reused connection.
    pub(super) reused: bool,
    /// Of which settings that connection is.
    pub(super) era: u32,
    /// No such connection is to be taken again: one was found closed.
    pub(super) fresh: bool,
    pub(super) answer: Option<AnswerBody>,
    /// For the access log, if there is one.
    pub(super) note: Option<Box<Note>>,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

/// Properties of the request that the response handling needs.
#[derive(Copy, Clone)]
pub(super) struct Asked {
    /// The right answer to its handshake, if it is one.
    pub(super) accept: Option<[u8; 28]>,
    /// It is of HTTP/1.0.
    pub(super) old: bool,
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
}

impl Exchange {
    /// Moves to another stage.
    pub(super) fn enter(&mut self, stage: Stage, counters: &Counters) {
        counters.staged(Some(self.stage), Some(stage));
        self.stage = stage;
    }

    /// Whether a timeout or close is the upstream's fault: it is being connected to, or has the
    /// complete request. Otherwise a slow client could eject an upstream.
    pub(super) fn is_upstreams_turn(&self) -> bool {
        let asked = self.stage == Stage::Asked && self.request.is_done();
        asked || self.stage == Stage::Connecting
    }

    /// The upstream that has it, or had it last, for the access log.
    pub(super) fn last_asked(&self) -> Option<String> {
        if let Some(picked) = &self.picked {
            return Some(picked.address().to_string());
        }
        let last = self.tried.last()?;
        let mut members = self.pool.members().iter().map(|member| &member.upstream);
        let upstream = members.find(|upstream| upstream.number() == *last)?;
        Some(upstream.address().to_string())
    }

    /// Whether the request may be retried: no part of a response was received, and nothing was sent
    /// that cannot be sent twice.
    pub(super) fn may_retry(&self) -> bool {
        let unsent = self.stage == Stage::Connecting;
        let answered = self.answered && !planted::on(Bug::AskedTwice);
        !answered && !self.body_begun && (unsent || self.asked.idempotent)
    }
}

/// The exchanges in progress, at stable indices.
#[derive(Default)]
pub(super) struct Exchanges {
    places: Vec<Option<Box<Exchange>>>,
    free: Vec<u32>,
}

impl Exchanges {
    pub(super) fn insert(&mut self, exchange: Exchange) -> u32 {
        let exchange = Some(Box::new(exchange));
        if let Some(index) = self.free.pop() {
            if let Some(place) = self.places.get_mut(index as usize) {
                *place = exchange;
            }
            return index;
        }
        self.places.push(exchange);
        u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn get(&mut self, index: u32) -> Option<&mut Exchange> {
        self.places.get_mut(index as usize)?.as_deref_mut()
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Box<Exchange>> {
        let exchange = self.places.get_mut(index as usize)?.take()?;
        self.free.push(index);
        if self.is_empty() {
            // Frees the memory that a burst needed.
            *self = Exchanges::default();
        }
        Some(exchange)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Appends the exchanges whose deadline has passed.
    pub(super) fn due(&self, now_ns: u64, into: &mut Vec<u32>) {
        for (index, exchange) in self.places.iter().enumerate() {
            let due = exchange.as_ref().is_some_and(|exchange| exchange.deadline_ns <= now_ns);
            if due {
                into.extend(u32::try_from(index));
            }
        }
    }
}
