//! [`drive_requests`]: a complete run of requests, driven by the main thread.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use capacity::SocketCounts;
use engine::invariant;
use engine::sys::process;
use engine::{Limits, Plan, Remote, Tables, Workers};

use crate::outcome::Outcome;
use crate::outcome::judge::judge;
use crate::outcome::request_metrics::{RequestMetrics, RequestSnapshot};
use crate::outcome::sections::RequestRun;
use crate::run::fit;
use crate::transport::driver::Driver;
use crate::transport::sources::Sources;
use crate::transport::target_table::TargetTable;
use crate::workload::requests::config::Requests;
use crate::workload::requests::requester::{Order, Requester};
use crate::workload::requests::schedule::users_of;
use crate::workload::requests::script::{Part, Script};
use crate::{Counts, Endpoint, Progress, Published, Recorder, Row, Series, StartError};

/// How often the end is polled, and how often a row is made.
const LOOK: Duration = Duration::from_millis(20);
const ROW_NS: u64 = 1_000_000_000;
/// Bytes of requests queued for a server that does not read.
const SEND_QUEUE_BYTES: usize = 64 * 1024 * 1024;

/// Runs `config`. `driver` and `script` are called in each worker's thread to make its own; `row` is
/// called once a second; `wait` waits for the given time or less and returns true to end the run.
///
/// # Errors
/// [`StartError::Unfit`] if the machine does not suffice or the configuration is inconsistent,
/// otherwise the error of the system or of a worker.
pub fn drive_requests<D: Driver, S: Script>(
    config: &Requests,
    driver: impl Fn() -> D + Send + Sync + 'static,
    script: impl Fn(Part) -> S + Send + Sync + 'static,
    mut row: impl FnMut(&Row),
    mut wait: impl FnMut(Duration) -> bool,
) -> Result<Outcome, StartError> {
    if let Some(unfit) = config.unfit() {
        return Err(StartError::Unfit(unfit.to_owned()));
    }
    let mut run = Run::start(config, driver, script)?;
    let (mut interrupted, mut is_marked) = (false, false);
    while !run.is_done() {
        run.collect();
        let now_ns = process::now_ns();
        if !is_marked && now_ns >= run.measure_ns {
            is_marked = true;
            row(&run.mark(now_ns));
        }
        if now_ns >= run.row_ns + ROW_NS {
            row(&run.row(now_ns));
        }
        if wait(LOOK) && !interrupted {
            interrupted = true;
            run.post_order(|| Order::Stop);
        }
    }
    run.collect();
    // The last partial second, so that the rows add up to the total.
    row(&run.row(process::now_ns()));
    let mut outcome = run.outcome(config, interrupted);
    run.workers.drain(Duration::ZERO)?;
    judge(&mut outcome, &[]);
    Ok(outcome)
}

/// A run under way.
struct Run {
    workers: Workers<Order>,
    _names: Names,
    all_metrics: Vec<Arc<RequestMetrics>>,
    begin_ns: u64,
    measure_ns: u64,
    /// Time and counters of the last row.
    row_ns: u64,
    before: RequestSnapshot,
    /// Histograms since the last row, and up to it.
    second: Recorder,
    timed: Arc<Recorder>,
    time_wait_most: u64,
}

impl Run {
    fn start<D: Driver, S: Script>(
        config: &Requests,
        driver: impl Fn() -> D + Send + Sync + 'static,
        script: impl Fn(Part) -> S + Send + Sync + 'static,
    ) -> Result<Run, StartError> {
        let machine = capacity::Machine::read();
        let nofile = capacity::raise_nofile().unwrap_or_else(|_| capacity::nofile().soft);
        let Requests { connections, endpoints, sources, force, .. } = config;
        // With pushes a user may have an HTTP connection and WebSockets.
        let each = if D::PUSHES { 1 + u64::from(config.sockets) } else { 1 };
        let most = connections.saturating_mul(each);
        let (plan, _) = fit(most, endpoints, sources, *force, &machine, nofile)?;
        let plan = workers(plan, *connections, most, machine.cores);
        let ports = machine.ports.usable();
        let sources = Sources::plan(most, endpoints, sources, ports, std::process::id());
        endpoints.iter().try_for_each(check_trust)?;
        let targets = TargetTable::new(endpoints);
        let all_metrics: Vec<_> =
            (0..plan.workers).map(|_| Arc::new(RequestMetrics::new())).collect();
        let limits = Limits {
            idle_timeout: None,
            pings: false,
            send_queue_bytes: SEND_QUEUE_BYTES,
            handshake_timeout: config.timeout,
            ..Limits::default()
        };
        let (books, own) = (all_metrics.clone(), Arc::new(config.clone()));
        let asked = targets.clone();
        let stride = plan.workers as u64;
        let workers = Workers::start(plan, &limits, &[], move |worker, _| {
            let first = u64::from(worker);
            let users = users_of(first, stride, own.connections);
            let users = u32::try_from(users).unwrap_or(u32::MAX);
            let part = Part { worker, first, stride, users };
            let metrics = books.get(usize::from(worker)).cloned();
            let metrics = metrics.unwrap_or_else(|| {
                invariant::broken("each worker has metrics that are reported");
                Arc::new(RequestMetrics::new())
            });
            let (config, targets) = (Arc::clone(&own), asked.clone());
            let (driver, script) = (driver(), script(part));
            Requester::new(config, targets, metrics, sources.clone(), part, driver, script)
        })?;
        if config.may_redirect() {
            look_up(&targets, workers.remote().clone(), all_metrics.len())?;
        }
        let begin_ns = process::now_ns();
        let run = Run {
            workers,
            _names: Names(targets),
            all_metrics,
            begin_ns,
            measure_ns: begin_ns + config.warm_up.as_nanos() as u64,
            row_ns: begin_ns,
            before: RequestSnapshot::default(),
            second: Recorder::default(),
            timed: Arc::default(),
            time_wait_most: 0,
        };
        run.post_order(|| Order::Begin(begin_ns));
        Ok(run)
    }

    fn post_order(&self, order: impl Fn() -> Order) {
        for worker in 0..self.all_metrics.len() {
            // A mailbox holds 8 MiB: it fills only if the worker is gone.
            let _ = self.workers.remote().post(worker, order(), 0);
        }
    }

    fn is_done(&self) -> bool {
        self.all_metrics.iter().all(|metrics| metrics.is_done()) || self.workers.any_ended()
    }

    fn snapshot(&self) -> RequestSnapshot {
        RequestSnapshot::of(self.all_metrics.iter().map(|metrics| &**metrics))
    }

    /// Takes the flushed histograms: often and little, as a worker may be waiting for this core.
    fn collect(&mut self) {
        self.all_metrics.iter().for_each(|metrics| metrics.timed.take(&mut self.second));
    }

    /// Marks the beginning of the measured time.
    fn mark(&self, now_ns: u64) -> Row {
        let counts = Counts::Requests(Box::new(self.snapshot()));
        Row {
            elapsed: Duration::from_nanos(now_ns - self.begin_ns),
            phase: "requests",
            progress: Progress { counts, ..Progress::default() },
            is_mark: true,
            ..Row::default()
        }
    }

    fn row(&mut self, now_ns: u64) -> Row {
        let counts = self.snapshot();
        let seconds = (now_ns - self.row_ns).max(1) as f64 / 1e9;
        let came = |counts: &RequestSnapshot| counts.answered + counts.warm_up;
        let latency = self.second.latency(Series::Latency);
        Arc::make_mut(&mut self.timed).merge(&self.second);
        self.second.clear();
        self.time_wait_most = self.time_wait_most.max(SocketCounts::read().tcp_time_wait);
        let causes = counts.errors();
        let row = Row {
            elapsed: Duration::from_nanos(now_ns - self.begin_ns),
            phase: if now_ns < self.measure_ns { "warm-up" } else { "requests" },
            open: counts.open,
            failed: counts.connects_failed,
            closed: counts.ended,
            sent: counts.sent + counts.warm_up_sent + counts.redirects,
            received: came(&counts),
            messages_per_second: came(&counts).saturating_sub(came(&self.before)) as f64 / seconds,
            latency,
            errors: counts.failed_total(),
            causes,
            progress: Progress {
                counts: Counts::Requests(Box::new(counts.clone())),
                timed: Arc::clone(&self.timed),
                published: Published::default(),
            },
            is_mark: false,
        };
        (self.row_ns, self.before) = (now_ns, counts);
        row
    }

    fn outcome(&self, config: &Requests, interrupted: bool) -> Outcome {
        let over_ns = self.all_metrics.iter().map(|metrics| metrics.over_ns()).max().unwrap_or(0);
        let untaken = self.all_metrics.iter().map(|metrics| metrics.untaken()).sum();
        let has_arrivals = !config.arrivals.is_empty();
        let run = RequestRun {
            requested: config.connections,
            interrupted,
            counts: &self.snapshot(),
            timed: &self.timed,
            measured: Duration::from_nanos(over_ns.saturating_sub(self.measure_ns)),
            unsent: if has_arrivals { 0 } else { untaken },
            dropped: has_arrivals.then_some(untaken),
            time_wait_most: self.time_wait_most,
        };
        run.outcome()
    }
}

/// As many threads as cores and at most as many as users, unless `most` sockets need more.
fn workers(plan: Plan, users: u64, most: u64, cores: usize) -> Plan {
    let room = u64::from(plan.capacity);
    let needed = usize::try_from(most.div_ceil(room.max(1))).unwrap_or(usize::MAX);
    let wanted = cores.min(usize::try_from(users).unwrap_or(usize::MAX)).max(needed).max(1);
    let workers = match plan.tables {
        Tables::Private => wanted.min(plan.workers),
        Tables::Shared => cores.min(wanted).min(plan.workers),
    };
    Plan { workers, accepting: workers, ..plan }
}

/// Ends name lookups when it is dropped.
struct Names(TargetTable);

impl Drop for Names {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Resolves redirect hosts on a separate thread, as a name server may take seconds.
fn look_up(targets: &TargetTable, remote: Remote<Order>, workers: usize) -> io::Result<()> {
    let targets = targets.clone();
    let notify = move || {
        for worker in 0..workers {
            // A mailbox holds 8 MiB: it fills only if the worker is gone.
            let _ = remote.post(worker, Order::Resolved, 0);
        }
    };
    let thread = thread::Builder::new().name("names".to_owned());
    thread.spawn(move || targets.look_up(notify)).map(drop)
}

/// TLS needs trusted certificate authorities.
fn check_trust(endpoint: &Endpoint) -> Result<(), StartError> {
    let host = &endpoint.host;
    let missing =
        || StartError::Unfit(format!("{host}: no trusted certificate authorities are configured"));
    if endpoint.tls && endpoint.client.is_none() { Err(missing()) } else { Ok(()) }
}
