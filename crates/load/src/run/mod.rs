//! [`Run`]: the workers of one run, controlled by the main thread.
//!
//! The order of calls: [`Run::start`]; [`Run::set_target`] any number of times, polling
//! [`Run::reached`]; heartbeats, echo or broadcasts on the open connections; [`Run::finish`] once.
//! Only the `finish` functions block.

mod measure;
mod start;

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::invariant;
use engine::sys::process;
use engine::{Plan, SLOTS_MAX, Tables, Workers};

use self::measure::Warmed;
pub(crate) use self::start::fit;
use self::start::limits;
pub use self::start::{ENDPOINTS_MAX, StartError};

use crate::delivery::receivers::Expect;
use crate::delivery::spread::Times;
use crate::delivery::verdicts::Verdicts;
use crate::outcome::Outcome;
use crate::outcome::histograms::Histograms;
use crate::outcome::metrics::{Metrics, Snapshot};
use crate::outcome::runs::Expected;
use crate::transport::cable_client::{CableChannel, CableClients};
use crate::transport::connector::Connector;
use crate::transport::in_flight::InFlight;
use crate::transport::sources::Sources;
use crate::transport::streams::{StreamKernel, StreamSettings};
use crate::transport::tunnels::connect_routes;
use crate::workload::churn::run::ChurnRun;
use crate::workload::client::{Client, Order};
use crate::workload::echo::EchoOrder;
use crate::workload::fanout::{FanoutRun, sockets};
use crate::workload::shares::{shares, shares_of_streams};
use crate::{
    Churn, ChurnSummary, Close, Config, Echo, Fanout, FanoutSummary, Publish, Published, Recorder,
};

/// The sockets of each worker.
fn sockets_each(sockets: u64, streams: Option<u32>, plan: &Plan, lanes: usize) -> Vec<u32> {
    let (workers, capacity) = (plan.workers, plan.capacity);
    match streams {
        None => shares(sockets, workers, lanes, capacity),
        Some(streams) => {
            let connections = capacity / streams.max(1);
            shares_of_streams(sockets, streams, workers, lanes, connections)
        }
    }
}

/// How long `finish` waits for closing handshakes before it resets the rest.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for workers to judge the receivers of a fan-out.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running load test.
pub struct Run {
    workers: Workers<Order>,
    all_metrics: Vec<Arc<Metrics>>,
    /// Times that were collected, and the number of orders to flush.
    timed: RefCell<Recorder>,
    flushes: Cell<u64>,
    /// Counters and times at the end of the warm-up, and the messages sent in it.
    warmed: Option<Box<Warmed>>,
    plan: Plan,
    fit: capacity::Report,
    in_flight: Arc<InFlight>,
    shares: Arc<[u32]>,
    /// Connections to begin, capped by what the workers hold; and the number requested.
    target: u64,
    requested: u64,
    /// With stages: connections begun in total, and those that should be open.
    stepped: u64,
    standing: u64,
    heartbeat: Option<Duration>,
    /// Sockets were pinged at any time.
    pings: bool,
    expected: Option<Expected>,
    fanout: Option<FanoutRun>,
    /// What the publishers of the next fan-out tell the receivers.
    verdicts: Option<Arc<Verdicts>>,
    judged: Option<(FanoutSummary, Times, Histograms)>,
    /// Receipts that were still arriving when a fan-out was interrupted.
    unknown: Option<u64>,
    churn: Option<ChurnRun>,
    churned: Option<(ChurnSummary, Histograms)>,
    /// Messages that echoes are to send, without those limited by time only; `None` without an
    /// echo.
    requested_messages: Option<u64>,
    /// Connections are clients of Action Cable.
    cable: bool,
    /// Sockets on a connection, with HTTP/2.
    streams: Option<u32>,
    interrupted: bool,
    awaits_pongs: bool,
    /// When the first echo began, and when the last was seen to be over.
    echo_began_ns: Option<u64>,
    echo_over_ns: Cell<Option<u64>>,
    began_ns: u64,
    /// Time until the target was reached. Later reconnects do not count.
    connected: Cell<Option<Duration>>,
}

impl Run {
    /// Starts workers for at most `config.connections` connections and opens none yet. Raises the
    /// soft descriptor limit to the hard one. Call it before anything else opens long-lived
    /// descriptors.
    ///
    /// # Errors
    /// [`StartError::Unfit`] if descriptors, ports or destinations do not suffice for the
    /// connections, otherwise the error of the system.
    pub fn start(config: &Config) -> Result<Run, StartError> {
        let machine = capacity::Machine::read();
        let nofile = capacity::raise_nofile().unwrap_or_else(|_| capacity::nofile().soft);
        let Config { endpoints, sources, force, .. } = config;
        // Descriptors and ports are of connections, which sockets share with HTTP/2.
        let carriers = config.carriers(config.connections);
        let (mut plan, fit) = fit(carriers, endpoints, sources, *force, &machine, nofile)?;
        let seed = std::process::id();
        let ports = machine.ports.usable();
        let (endpoints, listed) = (&config.endpoints, &config.sources);
        let sources = Sources::plan(carriers, endpoints, listed, ports, seed);
        let streams = config.streams;
        plan.capacity = plan.capacity.saturating_mul(streams.unwrap_or(1)).min(SLOTS_MAX);
        let in_flight = InFlight::new(config, machine.cores, plan.workers, plan.capacity);
        let lanes = in_flight.lanes();
        let in_flight = Arc::new(in_flight);
        let at_most = sockets_each(config.connections, streams, &plan, lanes);
        let firsts: Vec<u64> = at_most
            .iter()
            .scan(0, |first, share| {
                *first += u64::from(*share);
                Some(*first - u64::from(*share))
            })
            .collect();
        let (targets, routes) = connect_routes(config).map_err(StartError::Unfit)?;
        let all_metrics: Vec<_> = (0..plan.workers).map(|_| Arc::new(Metrics::new())).collect();
        let (books, config) = (all_metrics.clone(), config.clone());
        let cable = config.cable.is_some();
        let channels = config.cable.as_ref().map(CableChannel::all);
        let counted = Arc::clone(&in_flight);
        let metrics_of = move |at: usize| {
            books.get(at).cloned().unwrap_or_else(|| {
                invariant::broken("each worker has metrics that are reported");
                Arc::new(Metrics::new())
            })
        };
        let shared = StreamSettings::of(&config);
        let limits = limits(&config);
        let of_worker = metrics_of.clone();
        let client = move |worker: u16, _: &_| {
            let at = usize::from(worker);
            let metrics = of_worker(at);
            let first = firsts.get(at).copied().unwrap_or(0);
            let (sources, lane) = (sources.clone(), counted.lane(at));
            let connector = Connector::new(&config, sources, first, lane, routes.clone());
            let cable = config.cable.as_ref().zip(channels.clone());
            let subscribers = cable.map(|(cable, channels)| CableClients::new(cable, channels));
            Client::new(Arc::clone(&targets), metrics, connector, subscribers)
        };
        let workers = match shared {
            None => Workers::start(plan, &limits, &[], client)?,
            Some(shared) => {
                let streams = move |worker, kernel| {
                    let metrics = metrics_of(usize::from(worker));
                    StreamKernel::new(kernel, Arc::clone(&shared), metrics)
                };
                Workers::start_over(plan, &limits, &[], streams, client)?
            }
        };
        let shares = vec![0; plan.workers].into();
        let began_ns = process::now_ns();
        Ok(Run {
            workers,
            all_metrics,
            timed: RefCell::default(),
            flushes: Cell::new(0),
            warmed: None,
            plan,
            fit,
            in_flight,
            shares,
            target: 0,
            requested: 0,
            stepped: 0,
            standing: 0,
            heartbeat: None,
            pings: false,
            expected: None,
            fanout: None,
            verdicts: None,
            judged: None,
            unknown: None,
            churn: None,
            churned: None,
            requested_messages: None,
            cable,
            streams,
            interrupted: false,
            awaits_pongs: false,
            echo_began_ns: None,
            echo_over_ns: Cell::new(None),
            began_ns,
            connected: Cell::new(None),
        })
    }

    /// The number of worker threads.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.plan.workers
    }

    /// Whether workers have private descriptor tables.
    #[must_use]
    pub fn tables(&self) -> Tables {
        self.plan.tables
    }

    /// Sets the number of connections to begin in total; it never falls. Starts the clock of
    /// [`Run::connecting`].
    pub fn set_target(&mut self, connections: u64) {
        self.requested = self.requested.max(connections);
        self.target = self.requested.min(self.plan.connections());
        let lanes = self.in_flight.lanes();
        self.shares = sockets_each(self.target, self.streams, &self.plan, lanes).into();
        self.began_ns = process::now_ns();
        self.connected.set(None);
        // Each worker of the first group starts the next in its lane when it is done.
        for worker in self.busy().filter(|worker| *worker < self.in_flight.lanes()) {
            self.post_order(worker, Order::Open(Arc::clone(&self.shares)));
        }
        if self.heartbeat.is_some() {
            self.heartbeat(self.heartbeat);
        }
    }

    /// Sets the number of open connections, up or down. Surplus ones are closed by the closing
    /// handshake and do not count as lost.
    pub fn set_open(&mut self, connections: u64) {
        let wanted = self.stepped.saturating_add(connections.saturating_sub(self.standing));
        if connections > self.standing {
            self.stepped = wanted;
            let began_ns = self.began_ns;
            self.set_target(wanted);
            self.began_ns = began_ns;
        } else {
            self.retire(self.standing - connections);
        }
        self.standing = connections;
    }

    /// Closes connections of all workers, in proportion to what each has.
    fn retire(&self, connections: u64) {
        let open: Vec<u64> =
            self.all_metrics.iter().map(|metrics| metrics.counts.open.get()).collect();
        let whole = open.iter().sum::<u64>().max(1);
        let (mut before, mut ordered) = (0_u64, 0_u64);
        for (worker, part) in open.into_iter().enumerate() {
            before += part;
            let until = u128::from(connections) * u128::from(before) / u128::from(whole);
            let until = u64::try_from(until).unwrap_or(connections);
            let count = u32::try_from(until - ordered).unwrap_or(u32::MAX);
            ordered = until;
            if count > 0 {
                self.post_order(worker, Order::Retire(count));
            }
        }
    }

    /// The last target given to [`Run::set_target`].
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// Whether every connection of the target is open or has failed; with Action Cable, is
    /// subscribed or never will be.
    #[must_use]
    pub fn reached(&self) -> bool {
        let reached = self.snapshot().settled(self.cable) >= self.target;
        if reached && self.connected.get().is_none() {
            self.connected.set(Some(self.connecting()));
        }
        reached
    }

    /// The sockets of each worker that receive publications.
    fn reached_each(&self) -> Vec<u64> {
        let counts = self.all_metrics.iter().map(|metrics| &metrics.counts);
        counts
            .map(|counts| if self.cable { &counts.subscribed } else { &counts.open }.get())
            .collect()
    }

    /// Time from the last [`Run::set_target`] to the last connection that opened, so far or until
    /// the target was reached.
    #[must_use]
    pub fn connecting(&self) -> Duration {
        if let Some(connected) = self.connected.get() {
            return connected;
        }
        Duration::from_nanos(self.snapshot().last_open_ns.saturating_sub(self.began_ns))
    }

    /// Pings every open socket once per period, spread over it; `None` stops.
    pub fn heartbeat(&mut self, period: Option<Duration>) {
        self.heartbeat = period.filter(|period| !period.is_zero());
        self.pings |= self.heartbeat.is_some();
        for worker in self.busy() {
            self.post_order(worker, Order::Heartbeat(self.heartbeat));
        }
    }

    /// Blocks until no further ping is sent.
    pub(crate) fn stop_heartbeats(&mut self) {
        for worker in self.busy() {
            self.post_order(worker, Order::Heartbeat(None));
        }
        // Workers execute orders one after another.
        self.flush();
    }

    /// Starts an echo on all sockets that are open now.
    pub fn echo(&mut self, echo: &Echo) {
        let each = echo.messages.filter(|_| echo.duration.is_none() && !echo.turnover).unwrap_or(0);
        let connections = self.requested.saturating_sub(self.snapshot().retired);
        *self.requested_messages.get_or_insert(0) += connections * u64::from(each);
        let echo = Arc::new(echo.clone());
        let open = self.reached_each();
        let whole = open.iter().sum();
        let begin_ns = process::now_ns();
        self.echo_began_ns.get_or_insert(begin_ns);
        self.echo_over_ns.set(None);
        let (mut nth, of) = (0, open.iter().filter(|part| **part > 0).count() as u64);
        for (worker, &part) in open.iter().enumerate() {
            let Some(metrics) = self.all_metrics.get(worker) else {
                invariant::broken("each worker has metrics");
                continue;
            };
            metrics.set_echo_done(part == 0);
            if part > 0 {
                let echo = Arc::clone(&echo);
                let turn = (nth, of);
                self.post_order(
                    worker,
                    Order::Echo(EchoOrder { echo, begin_ns, part, whole, turn }),
                );
                nth += 1;
            }
        }
    }

    /// Whether the echo is over on all workers: all messages are answered or given up.
    #[must_use]
    pub fn echo_done(&self) -> bool {
        let done = self.all_metrics.iter().all(|metrics| metrics.echo_is_done());
        if done && self.echo_over_ns.get().is_none() {
            self.echo_over_ns.set(Some(process::now_ns()));
        }
        done
    }

    /// Notes that the run is ended early: what is in flight is neither lost nor failed.
    pub fn interrupt(&mut self) {
        self.interrupted = true;
        // What is sent until the connections are closed would be in no figure.
        for worker in self.busy() {
            self.post_order(worker, Order::StopSending);
        }
    }

    /// Notes that the end of the run waited for the pongs of all pings.
    pub(crate) fn awaited_pongs(&mut self) {
        self.awaits_pongs = true;
    }

    /// Makes all sockets that are open now count the publications of `publisher`, of which there
    /// will be `messages`. Publish once [`Run::expecting`] returns true.
    pub fn expect_broadcasts(&mut self, publisher: u32, messages: u32) {
        let expect = Expect {
            first: publisher,
            publishers: 1,
            late_after_ns: u64::MAX,
            since_ns: 0,
            senders: 0,
            verdicts: None,
        };
        self.expect(&expect, 0, u64::from(messages));
    }

    /// Makes the first `senders` sockets publishers and the others receivers.
    fn expect(&mut self, expect: &Expect, senders: u32, messages: u64) {
        let reached = self.reached_each();
        let receivers = reached.iter().sum::<u64>().saturating_sub(senders.into());
        self.expected = Some(Expected { publisher: expect.first, receivers, messages });
        let places: Vec<usize> =
            sockets(&reached).take(senders as usize).map(|(worker, _)| worker).collect();
        for worker in self.busy() {
            let senders = places.iter().filter(|place| **place == worker).count() as u32;
            self.post_order(worker, Order::Expect(Expect { senders, ..expect.clone() }));
        }
    }

    /// The number of sending sockets: a whisper does not come back to its sender.
    fn senders(&self, fanout: &Fanout) -> u32 {
        let whispers = self.cable && matches!(fanout.publish, Publish::Socket);
        if whispers { fanout.publishers } else { 0 }
    }

    /// Makes all sockets that are open now receivers of a fan-out. Call [`Run::fan_out`] once
    /// [`Run::expecting`] returns true.
    pub fn expect_fanout(&mut self, fanout: &Fanout) {
        let late_after_ns = u64::try_from(fanout.late_after.as_nanos()).unwrap_or(u64::MAX);
        let (first, publishers) = (Fanout::FIRST_PUBLISHER, fanout.publishers);
        let since_ns = process::now_ns();
        let verdicts = match &fanout.publish {
            Publish::Http(http) => Some((Arc::new(Verdicts::new(publishers)), http.in_flight)),
            Publish::Socket => None,
        };
        self.verdicts = verdicts.as_ref().map(|(verdicts, _)| Arc::clone(verdicts));
        let expect = Expect { first, publishers, late_after_ns, since_ns, senders: 0, verdicts };
        self.expect(&expect, self.senders(fanout), 0);
    }

    /// Starts publishing.
    ///
    /// # Errors
    /// The publisher threads could not be started.
    pub fn fan_out(&mut self, fanout: &Fanout) -> io::Result<()> {
        let (open, senders) = (self.reached_each(), self.senders(fanout).into());
        let (remote, verdicts) = (self.workers.remote(), self.verdicts.take());
        let run = FanoutRun::start(fanout, remote, &open, senders, verdicts)?;
        self.fanout = Some(run);
        Ok(())
    }

    /// Advances a fan-out; call it several times a second. Returns true when all is published and
    /// nothing more is awaited.
    pub fn tend_fanout(&mut self) -> bool {
        let counts = self.measured();
        let Some(fanout) = &mut self.fanout else { return true };
        let done = fanout.tend(&self.all_metrics, &counts, process::now_ns());
        if let Some(expected) = &mut self.expected {
            expected.messages = fanout.published();
        }
        done
    }

    /// Progress of the publishers of a fan-out or a churn.
    #[must_use]
    pub fn published(&self) -> Published {
        let fanout = self.fanout.as_ref().map(FanoutRun::progress);
        fanout.or_else(|| self.churn.as_ref().map(ChurnRun::progress)).unwrap_or_default()
    }

    /// Ends a fan-out and blocks until every receiver is judged.
    pub fn finish_fanout(&mut self) {
        let Some(mut fanout) = self.fanout.take() else { return };
        fanout.stop(self.interrupted, || self.measured().delivery.expected());
        if let Some(expected) = &mut self.expected {
            expected.messages = fanout.published();
        }
        self.judge_receivers(&fanout.published_each());
        self.unknown = Some(fanout.unknown);
        self.judged = Some(fanout.summary(&self.all_metrics, &self.measured()));
    }

    /// Makes the receivers pass on their times and be judged.
    fn judge_receivers(&self, published: &Arc<[u32]>) {
        let busy: Vec<usize> = self.busy().collect();
        for &worker in &busy {
            self.post_order(worker, Order::Judge(Arc::clone(published)));
        }
        let over_ns = process::now_ns() + JUDGE_TIMEOUT.as_nanos() as u64;
        let judged = || {
            let mut all_metrics = busy.iter().filter_map(|worker| self.all_metrics.get(*worker));
            all_metrics.all(|metrics| metrics.judged().is_some())
        };
        while !judged() && !self.workers.any_ended() && process::now_ns() < over_ns {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts a churn: subscribed sockets end and begin subscriptions while publishers publish to all
    /// their streams.
    pub fn churn(&mut self, churn: &Churn, fanout: &Fanout) {
        let open = self.reached_each();
        self.churn = Some(ChurnRun::begin(churn, fanout, self.workers.remote(), &open));
    }

    /// Advances a churn; call it several times a second. Returns true when all is published and
    /// judged.
    ///
    /// # Errors
    /// The publisher threads could not be started.
    pub fn tend_churn(&mut self) -> io::Result<bool> {
        let Some(churn) = &mut self.churn else { return Ok(true) };
        churn.tend(&self.all_metrics, process::now_ns())
    }

    /// Ends a churn and blocks until all subscriptions are judged.
    pub fn finish_churn(&mut self) {
        let Some(mut churn) = self.churn.take() else { return };
        churn.stop(process::now_ns(), self.interrupted);
        let ended = |run: &Run| run.workers.any_ended();
        while !ended(self) && !churn.tend(&self.all_metrics, process::now_ns()).unwrap_or(true) {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.flush();
        self.churned = Some(churn.summary(&self.snapshot(), &self.recorder()));
    }

    /// Whether all sockets count the expected publications.
    #[must_use]
    pub fn expecting(&self) -> bool {
        let Some(expected) = self.expected else { return false };
        self.busy()
            .filter_map(|worker| self.all_metrics.get(worker))
            .all(|metrics| metrics.expects(expected.publisher))
    }

    /// Publications expected at all receivers together.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.expected.map_or(0, |expected| expected.total())
    }

    /// All counters.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.all_metrics.iter().map(|metrics| &**metrics))
    }

    /// Takes the outcome, closes all connections and ends the workers.
    ///
    /// # Errors
    /// The error that made a worker fail.
    pub fn finish(self, config: &Config, how: Close) -> io::Result<Outcome> {
        if self.expected.is_some() && self.judged.is_none() {
            // What others have published, which is counted and not known by publisher.
            self.judge_receivers(&Arc::from([]));
        }
        let outcome = self.outcome(config);
        self.end_connections(how, CLOSE_TIMEOUT);
        if how == Close::Graceful {
            self.end_connections(Close::Abort, CLOSE_TIMEOUT);
        }
        self.workers.drain(Duration::ZERO)?;
        Ok(outcome)
    }

    fn end_connections(&self, how: Close, timeout: Duration) {
        for worker in self.busy() {
            self.post_order(worker, Order::Finish(how));
        }
        let over_ns = process::now_ns() + timeout.as_nanos() as u64;
        let finished = || {
            let mut busy = self.busy().filter_map(|worker| self.all_metrics.get(worker));
            busy.all(|metrics| metrics.is_finished())
        };
        while !finished() && !self.workers.any_ended() && process::now_ns() < over_ns {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Workers that have or will have connections.
    fn busy(&self) -> impl Iterator<Item = usize> + use<> {
        let shares = Arc::clone(&self.shares);
        (0..shares.len()).filter(move |worker| shares.get(*worker).is_some_and(|&n| n > 0))
    }

    fn post_order(&self, worker: usize, order: Order) {
        // A mailbox holds 8 MiB and an order counts 64 bytes: it fills only if the worker is gone.
        let _ = self.workers.remote().post(worker, order, 0);
    }
}
