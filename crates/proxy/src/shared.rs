//! [`Shared`]: state that the workers and the control plane of one proxy share.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use engine::invariant;
use engine::sys::process::now_ns;
use wire::http::Request;

use crate::access_log::PendingEntry;
use crate::access_log::{Entry, Recorder, Side};
use crate::balance::Upstream;
use crate::config::Live;
use crate::counters::Counters;
use crate::histogram::{Histogram, Timings};
use crate::routes::Table;

/// Shared state of one proxy.
pub(crate) struct Shared {
    pub(crate) table: Arc<Table>,
    /// One for each planned worker.
    pub(crate) counters: Vec<Counters>,
    /// Duration histograms, by worker.
    pub(crate) timings: Vec<Timings>,
    pub(crate) sources: Vec<IpAddr>,
    /// How many of the workers' listeners have no TLS; they are the first.
    pub(crate) plain_listeners: usize,
    /// The port of the first TCP listener with TLS.
    pub(crate) tls_port: Option<u16>,
    recorder: Option<Recorder>,
    live: RwLock<Arc<Live>>,
    running: Vec<AtomicBool>,
    draining: AtomicBool,
    /// Offset of the wall clock from the monotonic clock, in milliseconds.
    wall_ms: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        table: Arc<Table>,
        live: Live,
        workers: usize,
        sources: Vec<IpAddr>,
        recorder: Option<Recorder>,
    ) -> Self {
        Shared {
            table,
            counters: (0..workers).map(|_| Counters::default()).collect(),
            timings: (0..workers).map(|_| Timings::default()).collect(),
            sources,
            plain_listeners: 0,
            tls_port: None,
            recorder,
            live: RwLock::new(Arc::new(live)),
            running: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            draining: AtomicBool::new(false),
            wall_ms: AtomicU64::new(wall_ahead_ms()),
        }
    }

    /// The settings in force.
    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_live(&self, live: Live) -> Arc<Live> {
        let live = Arc::new(live);
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&live);
        live
    }

    pub(crate) fn worker_started(&self, worker: usize) {
        match self.running.get(worker) {
            Some(running) => running.store(true, Ordering::Release),
            None => invariant::broken("a worker that starts was planned"),
        }
    }

    /// The workers that have started.
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> {
        let begun = |(worker, running): (usize, &AtomicBool)| {
            running.load(Ordering::Acquire).then_some(worker)
        };
        self.running.iter().enumerate().filter_map(begun)
    }

    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Updates the wall clock of the access log; workers read the monotonic clock only.
    pub(crate) fn follow_clock(&self) {
        self.wall_ms.store(wall_ahead_ms(), Ordering::Relaxed);
    }

    /// Records a duration in a histogram of a worker.
    pub(crate) fn observe(
        &self,
        worker: usize,
        what: impl Fn(&Timings) -> &Histogram,
        time_ns: u64,
    ) {
        match self.timings.get(worker) {
            Some(timings) => what(timings).add(time_ns),
            None => invariant::broken("every worker has histograms"),
        }
    }

    /// Returns how many lines of the access log were dropped, and how many writes failed.
    pub(crate) fn log_counts(&self) -> [u64; 2] {
        let counts = |recorder: &Recorder| [recorder.dropped(), recorder.errors()];
        self.recorder.as_ref().map_or([0; 2], counts)
    }

    // ---- the access log ----

    pub(crate) fn has_log(&self) -> bool {
        self.recorder.is_some()
    }

    /// Begins the access log entry of a request, if there is an access log.
    pub(crate) fn begin_log_entry(
        &self,
        request: &Request<'_, '_>,
        client: Option<IpAddr>,
        pool: Option<&str>,
        now_ns: u64,
    ) -> Option<Box<PendingEntry>> {
        self.recorder.as_ref()?;
        Some(Box::new(PendingEntry::new(request, client, pool, now_ns)))
    }

    /// Writes the access log entry of a request or tunnel that has ended.
    pub(crate) fn record(
        &self,
        log_entry: PendingEntry,
        upstream: Option<&Upstream>,
        bytes: (u64, u64),
        (closed_by, why): (Side, &'static str),
        now_ns: u64,
    ) {
        let Some(recorder) = &self.recorder else { return };
        recorder.post(Entry {
            began_ms: self.wall_ms.load(Ordering::Relaxed) + log_entry.began_ns / 1_000_000,
            duration: Duration::from_nanos(now_ns.saturating_sub(log_entry.began_ns)),
            client: log_entry.client,
            method: log_entry.method,
            host: log_entry.host,
            target: log_entry.target,
            agent: log_entry.agent,
            referer: log_entry.referer,
            request_id: log_entry.request_id,
            pool: log_entry.pool,
            version: log_entry.version,
            upstream: upstream.map(|upstream| upstream.address().to_string().into()),
            upstream_name: upstream.map(Upstream::name),
            status: log_entry.status,
            bytes_in: bytes.0,
            bytes_out: bytes.1,
            closed_by,
            why,
        });
    }
}

#[allow(clippy::disallowed_methods, reason = "the access log shows wall-clock time")]
fn wall_ahead_ms() -> u64 {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_millis()).unwrap_or(u64::MAX).saturating_sub(now_ns() / 1_000_000)
}
