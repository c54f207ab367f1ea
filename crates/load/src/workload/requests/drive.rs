//! [`drive_requests`]: a complete run of requests, driven by the main thread.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use capacity::SocketCounts;
use engine::invariant;
use engine::sys::process;
use engine::{Limits, Plan, Remote, SLOTS_MAX, Tables, Workers};

use wire::Violation;

use crate::outcome::Outcome;
use crate::outcome::failure::Failure;
use crate::outcome::judge::judge;
use crate::outcome::messages::MessageCounts;
use crate::outcome::metrics::{Metrics, Snapshot};
use crate::outcome::request_metrics::{RequestMetrics, RequestSnapshot};
use crate::outcome::runs::RequestRun;
use crate::outcome::stages::StageWatch;
use crate::outcome::timed::unix_us;
use crate::run::fit;
use crate::transport::driver::Driver;
use crate::transport::first_contact::{Contact, FirstContact};
use crate::transport::sources::Sources;
use crate::transport::streams::{StreamKernel, StreamSettings};
use crate::transport::target_table::TargetTable;
use crate::workload::requests::config::Requests;
use crate::workload::requests::requester::{Order, Requester};
use crate::workload::requests::script::{Part, Script};
use crate::{Counts, Endpoint, Progress, Published, Recorder, Row, Series, StartError};

/// How often the end is polled, and how often a row is made.
const LOOK: Duration = Duration::from_millis(20);
const ROW_NS: u64 = 1_000_000_000;
const WARM_UP: &str = "warm-up";
/// How long connects in flight are awaited when the target cannot be reached.
const LOST_GRACE_NS: u64 = 100_000_000;
/// The status that servers of TLS answer plain requests with.
const BAD_REQUEST: u16 = 400;
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
    row: impl FnMut(&Row),
    mut wait: impl FnMut(Duration) -> bool,
) -> Result<Outcome, StartError> {
    if let Some(unfit) = config.unfit() {
        return Err(StartError::Unfit(unfit.to_owned()));
    }
    let mut run = Run::start(config, driver, script)?;
    let (mut interrupted, mut is_marked) = (false, false);
    let phase = |is_marked: bool| match is_marked || config.warm_up.is_zero() {
        true => "requests",
        false => WARM_UP,
    };
    let (mut stages, mut observer) = (StageWatch::new(config.pace.stages()), row);
    stages.begin(config.warm_up);
    let mut row = |stages: &mut StageWatch, row: &Row| {
        stages.row(row);
        observer(row);
    };
    let mut first = FirstContact::new(run.begin_ns);
    let mut lost: Option<(String, u64)> = None;
    let endpoints = &config.endpoints;
    while !run.is_done() && lost.as_ref().is_none_or(|(_, end_ns)| process::now_ns() < *end_ns) {
        run.collect();
        let now_ns = process::now_ns();
        if !is_marked && now_ns >= run.measure_ns {
            is_marked = true;
            if !config.warm_up.is_zero() {
                // The rest of it, so that no row has answers of the warm-up and of the measured time.
                row(&mut stages, &run.row(now_ns, WARM_UP));
            }
            row(&mut stages, &run.mark(now_ns));
        }
        let elapsed = Duration::from_nanos(now_ns.saturating_sub(run.begin_ns));
        if now_ns >= run.row_ns + ROW_NS || stages.is_due(elapsed) {
            row(&mut stages, &run.row(now_ns, phase(is_marked)));
        }
        if lost.is_none()
            && !interrupted
            && let Some(why) = first.lost(endpoints, || run.contact(config), now_ns)
        {
            lost = Some((why, process::now_ns() + LOST_GRACE_NS));
            run.post_order(|| Order::Stop);
        }
        if wait(LOOK) && !interrupted {
            interrupted = true;
            run.post_order(|| Order::Stop);
        }
    }
    let contact = run.contact(config);
    let explained = || first.explain_end(endpoints, contact);
    let unreached = lost.map(|(why, _)| why).or_else(explained);
    run.collect();
    // The last partial second, so that the rows add up to the total.
    row(&mut stages, &run.row(process::now_ns(), phase(is_marked)));
    let mut outcome = run.outcome(config, interrupted);
    run.add_said(&mut outcome);
    outcome.stages = stages.finish();
    outcome.unreached = unreached;
    run.workers.drain(Duration::ZERO)?;
    judge(&mut outcome, &[]);
    Ok(outcome)
}

/// A run under way.
struct Run {
    workers: Workers<Order>,
    _names: Names,
    all_metrics: Vec<Arc<RequestMetrics>>,
    /// Those of connections that carry sockets and requests as streams.
    carried: Vec<Arc<Metrics>>,
    begin_ns: u64,
    measure_ns: u64,
    /// Time and counters of the last row.
    row_ns: u64,
    before: RequestSnapshot,
    /// Messages of calls at the last row.
    received: u64,
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
        let Requests { endpoints, sources, force, .. } = config;
        // With pushes a user may also have WebSockets.
        let sockets = if D::PUSHES { u64::from(config.sockets) } else { 0 };
        let each = config.links.max(1) + sockets;
        let groups = config.own_blocks();
        let most = groups.saturating_mul(each);
        let (mut plan, _) = fit(most, endpoints, sources, *force, &machine, nofile)?;
        // Sockets and requests are then streams of connections.
        let over_streams = config.streams.filter(|_| D::PUSHES);
        if let Some(streams) = over_streams {
            plan.capacity = plan.capacity.saturating_mul(streams).min(SLOTS_MAX);
        }
        let plan = workers(plan, groups, most, machine.cores);
        let ports = machine.ports.usable();
        let sources = Sources::plan(most, endpoints, sources, ports, std::process::id());
        endpoints.iter().try_for_each(check_trust)?;
        let targets = TargetTable::new(endpoints);
        let has_messages = D::MESSAGES && config.messages.is_some();
        let all_metrics: Vec<_> =
            (0..plan.workers).map(|_| Arc::new(RequestMetrics::new(has_messages))).collect();
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
        let carried: Vec<Arc<Metrics>> = match over_streams {
            Some(_) => (0..plan.workers).map(|_| Arc::new(Metrics::new())).collect(),
            None => Vec::new(),
        };
        let requester = move |worker: u16, _: &_| {
            let (blocks, users) = ((own.block(), own.row()), own.connections);
            let part = Part::shared(own.generators, worker, stride, blocks, users);
            let metrics = books.get(usize::from(worker)).cloned();
            let metrics = metrics.unwrap_or_else(|| {
                invariant::broken("each worker has metrics that are reported");
                Arc::new(RequestMetrics::new(has_messages))
            });
            let (config, targets) = (Arc::clone(&own), asked.clone());
            let (driver, script) = (driver(), script(part));
            Requester::new(config, targets, metrics, sources.clone(), part, driver, script)
        };
        let workers = match over_streams {
            None => Workers::start(plan, &limits, &[], requester)?,
            Some(streams) => {
                let each = u32::try_from(each).unwrap_or(u32::MAX).saturating_mul(streams);
                let settings = StreamSettings::new(each, true, endpoints);
                let metrics = carried.clone();
                let over = move |worker: u16, kernel| {
                    let metrics = metrics.get(usize::from(worker)).cloned();
                    let metrics = metrics.unwrap_or_else(|| Arc::new(Metrics::new()));
                    StreamKernel::new(kernel, Arc::clone(&settings), metrics)
                };
                Workers::start_over(plan, &limits, &[], over, requester)?
            }
        };
        if config.may_redirect() {
            look_up(&targets, workers.remote().clone(), all_metrics.len())?;
        }
        let begin_ns = match &config.gate {
            None => process::now_ns(),
            Some(gate) => gate.pass().map_err(StartError::Unfit)?,
        };
        let run = Run {
            workers,
            _names: Names(targets),
            all_metrics,
            carried,
            begin_ns,
            measure_ns: begin_ns + config.warm_up.as_nanos() as u64,
            row_ns: begin_ns,
            before: RequestSnapshot::default(),
            received: 0,
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

    /// The messages of calls so far; `None` if they have one.
    fn messages(&self) -> Option<MessageCounts> {
        let mut of_all = self.all_metrics.iter().filter_map(|of| of.messages.as_deref()).peekable();
        of_all.peek()?;
        let mut sum = MessageCounts::default();
        of_all.for_each(|counts| sum.add(counts));
        Some(sum)
    }

    fn contact(&self, config: &Requests) -> Contact {
        let streams = config.streams.is_some();
        let counts = self.snapshot();
        let opened = counts.opened > 0;
        let refused = counts.statuses().filter(|(status, _)| *status == BAD_REQUEST);
        let refused: u64 = refused.map(|(_, count)| count).sum();
        let of = |why: Failure| counts.failed.get(why.index()).copied().unwrap_or_default();
        let mut unreached =
            Failure::all().zip(counts.failed.iter().copied()).map(|(why, count)| {
                let is_other = why == Failure::Protocol(Violation::NotHttp)
                    || streams && matches!(why, Failure::Protocol(_));
                if why.is_of_connect() || is_other { count } else { 0 }
            });
        Contact {
            opened,
            failed: counts.connects_failed + refused > 0 || unreached.any(|count| count > 0),
            ended: of(Failure::Closed) + of(Failure::Reset) > 0,
            answered: counts.answered > refused || opened && counts.warm_up > 0,
            ..Contact::default()
        }
    }

    /// Adds the texts of failed calls, and the GOAWAY frames.
    fn add_said(&self, outcome: &mut Outcome) {
        for of in &self.all_metrics {
            of.call_errors.add_to(&mut outcome.call_errors);
            of.goaways.add_to(&mut outcome.goaways);
        }
        self.carried.iter().for_each(|of| of.goaways.add_to(&mut outcome.goaways));
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

    fn row(&mut self, now_ns: u64, phase: &'static str) -> Row {
        let counts = self.snapshot();
        let seconds = (now_ns - self.row_ns).max(1) as f64 / 1e9;
        let came = |counts: &RequestSnapshot| counts.answered + counts.warm_up;
        let (mut received, mut latency) = (came(&counts), self.second.latency(Series::Latency));
        let mut sent = counts.sent + counts.warm_up_sent + counts.redirects;
        let mut before = came(&self.before);
        if let Some(messages) = self.messages() {
            // The messages of calls that last longer than a row.
            before = std::mem::replace(&mut self.received, messages.received);
            (sent, received) = (messages.sent + messages.warm_up, messages.received);
            latency = self.second.latency(Series::Broadcast).or(latency);
        }
        Arc::make_mut(&mut self.timed).merge(&self.second);
        self.second.clear();
        self.time_wait_most = self.time_wait_most.max(SocketCounts::read().tcp_time_wait);
        let causes = counts.errors();
        let row = Row {
            elapsed: Duration::from_nanos(now_ns - self.begin_ns),
            phase,
            open: counts.open,
            failed: counts.connects_failed,
            closed: counts.ended,
            sent,
            received,
            messages_per_second: received.saturating_sub(before) as f64 / seconds,
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
            requested: config.own_blocks(),
            interrupted,
            counts: &self.snapshot(),
            timed: &self.timed,
            measured: Duration::from_nanos(over_ns.saturating_sub(self.measure_ns)),
            unsent: if has_arrivals { 0 } else { untaken },
            dropped: has_arrivals.then_some(untaken),
            time_wait_most: self.time_wait_most,
            messages: config.messages.as_ref().zip(self.messages()),
            began_unix_us: Some(unix_us(self.begin_ns)),
            measured_unix_us: Some(unix_us(self.measure_ns)),
        };
        let mut outcome = run.outcome();
        if !self.carried.is_empty() {
            let counts = Snapshot::of(self.carried.iter().map(Arc::as_ref));
            outcome.connections.count_carriers(&counts);
        }
        outcome
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
