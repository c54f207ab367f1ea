//! [`Ledger`]: what both sides sent and received of each request and tunnel, and whether it was
//! right. The first contradiction is the run's failure.
//!
//! Each byte follows from its exchange, direction and offset, so it can be checked where it
//! arrives and nothing is stored.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

/// One book for all.
#[derive(Clone)]
pub(crate) struct Ledger(Rc<RefCell<Book>>);

/// The direction of bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From the client.
    Up,
    /// From the upstream.
    Down,
}

/// One direction of one request or tunnel.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Flow {
    /// Bytes sent.
    pub(crate) sent: u64,
    /// Bytes up that were received, in order and correct.
    pub(crate) received: u64,
    /// The sender has ended after all its bytes.
    pub(crate) ended: bool,
}

/// One request, which may become a tunnel.
#[derive(Clone, Default, Debug)]
pub(crate) struct Exchange {
    pub(crate) up: Flow,
    /// What each upstream that answered has sent. There can be several: after a reset an upstream may
    /// still read and answer a request that the proxy has sent to another one since.
    downs: Vec<Flow>,
    /// Bytes that the client received, in order and correct.
    pub(crate) down_received: u64,
    /// Upstreams that received its complete head.
    pub(crate) attempts: u32,
    /// Upstreams whose answer, or its beginning, has surely arrived.
    pub(crate) answered: u32,
    /// Connections to upstreams on which the proxy has read bytes of an answer.
    answers_read: u32,
    /// It must not be sent twice.
    pub(crate) once: bool,
    /// It requests a tunnel.
    pub(crate) upgrade: bool,
    /// An upstream has answered its handshake rightly.
    pub(crate) switched: bool,
    /// Its client received the 101.
    pub(crate) client_switched: bool,
    /// One of its ends reset the connection, or closed it without waiting for the other.
    pub(crate) broken: bool,
    /// The client has disconnected.
    pub(crate) client_gone: bool,
    /// The upstream of its tunnel has disconnected without ending its side.
    pub(crate) aborted: bool,
}

pub(crate) struct Book {
    pub(crate) failure: Option<String>,
    /// No new work is begun, and no fault is drawn.
    pub(crate) calm: bool,
    /// Nothing is lost unless one of its ends resets the connection.
    strict: bool,
    exchanges: Vec<Exchange>,
    /// Clients that received the 101.
    pub(crate) opened: u64,
    /// Directions that arrived in full and ended cleanly.
    pub(crate) complete: u64,
    /// Clean ends before all bytes had arrived, without a reset.
    pub(crate) truncated: u64,
}

impl Ledger {
    pub(crate) fn new(strict: bool) -> Self {
        let (failure, exchanges) = (None, Vec::new());
        let (opened, complete, truncated) = (0, 0, 0);
        let book = Book { failure, calm: false, strict, exchanges, opened, complete, truncated };
        Ledger(Rc::new(RefCell::new(book)))
    }

    pub(crate) fn book(&self) -> RefMut<'_, Book> {
        self.0.borrow_mut()
    }
}

/// Length of the random bytes that all payloads are taken from. A prime, so no usual length is a
/// multiple of it.
const PATTERN_BYTES: usize = 65_521;

thread_local! {
    static PATTERN: Vec<u8> = {
        let mut random = fastrand::Rng::with_seed(20);
        (0..PATTERN_BYTES).map(|_| random.u8(..)).collect()
    };
}

/// Passes the bytes from that offset to `each`, piece by piece; whether it accepted all.
fn pieces(
    exchange: u32,
    direction: Direction,
    from: u64,
    count: u64,
    mut each: impl FnMut(&[u8]) -> bool,
) -> bool {
    let own = (u64::from(exchange) * 2 + u64::from(direction == Direction::Down)) * 4_099;
    let (mut at, end) = (own + from, own + from + count);
    PATTERN.with(|pattern| {
        while at < end {
            let start = (at % PATTERN_BYTES as u64) as usize;
            let length = (PATTERN_BYTES - start).min((end - at) as usize);
            if !each(pattern.get(start..start + length).unwrap_or_default()) {
                return false;
            }
            at += length as u64;
        }
        true
    })
}

/// The payload's bytes from that offset.
pub(crate) fn bytes(exchange: u32, direction: Direction, from: u64, count: u64) -> Vec<u8> {
    let mut all = Vec::with_capacity(count as usize);
    pieces(exchange, direction, from, count, |piece| {
        all.extend_from_slice(piece);
        true
    });
    all
}

/// Whether the data equals the payload at that offset.
fn matches_pattern(exchange: u32, direction: Direction, from: u64, data: &[u8]) -> bool {
    let mut rest = data;
    pieces(exchange, direction, from, data.len() as u64, |piece| {
        let (here, more) = rest.split_at(piece.len().min(rest.len()));
        rest = more;
        here == piece
    })
}

impl Book {
    /// Records a failure, unless there is one.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failure.get_or_insert(what.into());
    }

    pub(crate) fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(what());
        }
    }

    pub(crate) fn begin(&mut self, upgrade: bool, once: bool) -> u32 {
        self.exchanges.push(Exchange { upgrade, once, ..Exchange::default() });
        self.exchanges.len() as u32 - 1
    }

    pub(crate) fn exchanges(&self) -> &[Exchange] {
        &self.exchanges
    }

    pub(crate) fn exchange(&mut self, exchange: u32) -> &mut Exchange {
        let at = exchange as usize;
        if at >= self.exchanges.len() {
            self.fail(format!("an upstream received {exchange}, which no client sent"));
            self.exchanges.resize_with(at.min(1 << 20) + 1, Exchange::default);
        }
        // There is one now.
        let last = self.exchanges.len() - 1;
        &mut self.exchanges[at.min(last)]
    }

    /// An upstream received a complete head.
    pub(crate) fn attempts(&mut self, exchange: u32, upgrade: bool) {
        let strict = self.strict;
        let known = self.exchange(exchange);
        known.attempts += 1;
        let known = known.clone();
        self.require(known.upgrade == upgrade, || {
            format!("{exchange} is requested as another kind")
        });
        self.require(!known.once || known.attempts == 1, || format!("{exchange} was sent twice"));
        // A reset right after an answer may have discarded it before the proxy read it.
        self.require(!strict || known.answered == 0 || known.aborted, || {
            format!("{exchange} was sent again after it was answered")
        });
    }

    /// The proxy has read bytes of an upstream's answer. From then on it must not send the request to
    /// another upstream, so it reads no second answer. This holds whatever else fails; an upstream that
    /// received the request earlier may still process it later.
    pub(crate) fn answer_read(&mut self, exchange: u32) {
        let known = self.exchange(exchange);
        known.answers_read += 1;
        let once = known.answers_read == 1;
        self.require(once, || {
            format!("{exchange} was sent to another upstream after its answer had begun")
        });
    }

    /// An upstream begins a tunnel or a complete answer; returns which of the exchange's flows it is.
    pub(crate) fn answers(&mut self, exchange: u32) -> usize {
        let exchange = self.exchange(exchange);
        exchange.answered += 1;
        exchange.downs.push(Flow::default());
        exchange.downs.len() - 1
    }

    /// Bytes of one direction have arrived.
    pub(crate) fn received(&mut self, exchange: u32, direction: Direction, from: u64, data: &[u8]) {
        let known = self.exchange(exchange);
        let sent = if direction == Direction::Up { known.up.sent } else { known.most_sent() };
        let right = matches_pattern(exchange, direction, from, data);
        let end = from + data.len() as u64;
        self.require(right, || {
            format!("{exchange}: wrong bytes {direction:?} at {from}..{end} of {sent}")
        });
        self.require(end <= sent, || {
            format!("{exchange}: {end} bytes {direction:?}, {sent} were sent")
        });
        let known = self.exchange(exchange);
        let received = match direction {
            Direction::Up => &mut known.up.received,
            Direction::Down => &mut known.down_received,
        };
        *received = end.max(*received);
    }

    /// A client's tunnel was reset.
    pub(crate) fn received_reset(&mut self, exchange: u32) {
        let expected = self.exchange(exchange).broken || !self.strict;
        self.require(expected, || format!("{exchange} was reset by neither side"));
    }

    /// In a calm: whether the client of a tunnel should have received an end by now.
    pub(crate) fn end_is_due(&mut self, exchange: u32) -> bool {
        let strict = self.strict;
        let exchange = self.exchange(exchange);
        let ended = !exchange.downs.is_empty() && exchange.downs.iter().all(|flow| flow.ended);
        ended || strict && exchange.aborted
    }

    /// The receiver has read the end of the stream.
    pub(crate) fn received_end(&mut self, exchange: u32, direction: Direction, received: u64) {
        let known = self.exchange(exchange).clone();
        let complete = match direction {
            Direction::Up => known.up.is_complete(received),
            Direction::Down => known.is_complete_answer(received),
        };
        if complete {
            self.complete += 1;
            return;
        }
        if known.broken {
            return;
        }
        self.truncated += 1;
        let strict = self.strict;
        self.require(!strict, || {
            format!("{exchange}: ended {direction:?} after {received} bytes: {known:?}")
        });
    }

    /// The client has sent so many bytes.
    pub(crate) fn sent_up(&mut self, exchange: u32, bytes: u64) {
        let up = &mut self.exchange(exchange).up;
        up.sent = up.sent.max(bytes);
    }

    /// The flow of an upstream that answers, from [`Book::answers`].
    pub(crate) fn down(&mut self, exchange: u32, flow: usize) -> &mut Flow {
        let downs = &mut self.exchange(exchange).downs;
        downs.resize_with(downs.len().max(flow + 1), Flow::default);
        &mut downs[flow]
    }
}

impl Flow {
    /// Whether the sender has sent exactly so many bytes and ended.
    fn is_complete(&self, bytes: u64) -> bool {
        self.ended && self.sent == bytes
    }
}

impl Exchange {
    /// Whether an upstream has sent exactly so many bytes and ended.
    pub(crate) fn is_complete_answer(&self, bytes: u64) -> bool {
        self.downs.iter().any(|flow| flow.is_complete(bytes))
    }

    /// Bytes sent by the upstream that sent most.
    pub(crate) fn most_sent(&self) -> u64 {
        self.downs.iter().map(|flow| flow.sent).max().unwrap_or(0)
    }
}
