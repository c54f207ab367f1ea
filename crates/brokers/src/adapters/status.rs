//! [`AdapterStatus`]: in what state an adapter is, since when and why, and what it has counted. Changes of the
//! state are logged, once each.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::Offered;

/// Time between two log lines about messages that are invalid or dropped, or about other reasons for which
/// an adapter is still down.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// In what state an adapter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterState {
    /// It has not been open yet.
    Connecting,
    /// It takes messages.
    Open,
    /// It connects again. What happened last.
    Down(String),
}

/// State and counters of one adapter.
pub struct AdapterStatus {
    /// The kind of adapter, as in the flag that opens it.
    adapter: &'static str,
    /// Where it listens, without credentials.
    place: String,
    /// Whether the broker forgets what is published while the adapter is down.
    forgets: bool,
    inner: Mutex<Inner>,
    messages: AtomicU64,
    bytes: AtomicU64,
    invalid: AtomicU64,
    dropped: AtomicU64,
    waited: AtomicU64,
    claimed: AtomicU64,
    missed: AtomicU64,
    waiting_bytes: AtomicUsize,
}

struct Inner {
    state: AdapterState,
    since: Instant,
    opened: u64,
    failed: u64,
    /// When it was last logged that the adapter is down.
    told_down: Option<Instant>,
    /// When something invalid or dropped was logged last, and how many were not since.
    logged: Option<Instant>,
    unlogged: u64,
}

/// State and counters at one time.
#[derive(Clone, Debug)]
pub struct AdapterFigures {
    /// The kind of adapter, as in the flag that opens it.
    pub adapter: &'static str,
    /// Where it listens, without credentials.
    pub place: String,
    /// Its state.
    pub state: AdapterState,
    /// How long it has been in it.
    pub since: Duration,
    /// Times that it was opened.
    pub opened: u64,
    /// Times that it was closed by an error, or could not be opened.
    pub failed: u64,
    /// Messages received.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that could not be understood.
    pub invalid: u64,
    /// Messages of which something was dropped because too much waited.
    pub dropped: u64,
    /// Messages of which something had to wait.
    pub waited: u64,
    /// Messages taken over from a consumer that did not acknowledge them.
    pub claimed: u64,
    /// Times that a subscribed stream may have missed messages, because the connection was lost.
    pub missed: u64,
    /// Memory of what waits, in bytes.
    pub waiting_bytes: usize,
}

impl AdapterStatus {
    pub(super) fn new(adapter: &'static str, place: String, forgets: bool) -> Self {
        let inner = Inner {
            state: AdapterState::Connecting,
            since: Instant::now(),
            opened: 0,
            failed: 0,
            told_down: None,
            logged: None,
            unlogged: 0,
        };
        AdapterStatus {
            adapter,
            place,
            forgets,
            inner: Mutex::new(inner),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            waiting_bytes: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The adapter takes messages.
    pub(super) fn open(&self) {
        let mut inner = self.lock();
        inner.opened += 1;
        let (adapter, place) = (self.adapter, &self.place);
        match &inner.state {
            AdapterState::Open => return,
            AdapterState::Connecting => info!("broadcast adapter open: {adapter}, {place}"),
            AdapterState::Down(_) => {
                let seconds = inner.since.elapsed().as_secs_f64();
                let lost = match self.forgets {
                    true => "what was published meanwhile was not received",
                    false => "what was published meanwhile is in the stream",
                };
                info!(
                    "broadcast adapter open again: {adapter}, {place}: down for {seconds:.1} s, {lost}"
                );
            }
        }
        (inner.state, inner.since) = (AdapterState::Open, Instant::now());
    }

    /// The adapter was closed by an error, or could not be opened.
    pub(super) fn down(&self, reason: String) {
        let mut inner = self.lock();
        inner.failed += 1;
        let was_down = matches!(inner.state, AdapterState::Down(_));
        let is_new = inner.state != AdapterState::Down(reason.clone());
        let recent = inner.told_down.is_some_and(|told| told.elapsed() < LOG_EVERY);
        if is_new && !(was_down && recent) {
            let (adapter, place) = (self.adapter, &self.place);
            warn!(
                "broadcast adapter down: {adapter}, {place}: {reason}; connecting again, /ready answers 503"
            );
            inner.told_down = Some(Instant::now());
        }
        inner.state = AdapterState::Down(reason);
        if !was_down {
            inner.since = Instant::now();
        }
    }

    /// Counts a message and what became of it.
    pub(super) fn count(&self, bytes: usize, offered: &Offered) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        match offered {
            Offered::Accepted => {}
            Offered::Waits => drop(self.waited.fetch_add(1, Ordering::Relaxed)),
            Offered::Dropped => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                self.log("message dropped", "its topic is overloaded and too much waits already");
            }
            Offered::Invalid(why) => {
                self.invalid.fetch_add(1, Ordering::Relaxed);
                self.log("invalid message", why);
            }
        }
    }

    /// Counts messages taken over from other consumers.
    pub(super) fn claimed(&self, messages: usize) {
        self.claimed.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// Counts streams that may have missed messages.
    pub(super) fn missed(&self, streams: usize) {
        self.missed.fetch_add(streams as u64, Ordering::Relaxed);
    }

    /// Sets how much waits.
    pub(super) fn waits(&self, bytes: usize) {
        self.waiting_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Logs this, unless something like it was logged a moment ago.
    fn log(&self, event: &str, why: &str) {
        let mut inner = self.lock();
        if inner.logged.is_some_and(|logged| logged.elapsed() < LOG_EVERY) {
            inner.unlogged += 1;
            return;
        }
        let unlogged = std::mem::take(&mut inner.unlogged);
        inner.logged = Some(Instant::now());
        let (adapter, place) = (self.adapter, &self.place);
        match unlogged {
            0 => warn!("{event}: broadcast adapter {adapter}, {place}: {why}"),
            more => warn!(
                "{event}: broadcast adapter {adapter}, {place}: {why} (and {more} like it before)"
            ),
        }
    }

    /// Why the adapter is not open, in words for operators.
    pub(super) fn trouble(&self) -> Option<String> {
        let (adapter, place, inner) = (self.adapter, &self.place, self.lock());
        match &inner.state {
            AdapterState::Open => None,
            AdapterState::Connecting => {
                Some(format!("broadcast adapter {adapter} connects to {place}"))
            }
            AdapterState::Down(reason) => {
                let seconds = inner.since.elapsed().as_secs();
                Some(format!(
                    "broadcast adapter {adapter} at {place} is down for {seconds} s: {reason}"
                ))
            }
        }
    }

    pub(super) fn figures(&self) -> AdapterFigures {
        let inner = self.lock();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AdapterFigures {
            adapter: self.adapter,
            place: self.place.clone(),
            state: inner.state.clone(),
            since: inner.since.elapsed(),
            opened: inner.opened,
            failed: inner.failed,
            messages: count(&self.messages),
            bytes: count(&self.bytes),
            invalid: count(&self.invalid),
            dropped: count(&self.dropped),
            waited: count(&self.waited),
            claimed: count(&self.claimed),
            missed: count(&self.missed),
            waiting_bytes: self.waiting_bytes(),
        }
    }
}
