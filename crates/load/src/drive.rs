//! [`drive`]: a complete run in phases: connect, hold, echo, end.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use engine::sys::process;

use crate::outcome::Outcome;
use crate::outcome::judge::judge;
use crate::outcome::request_metrics::RequestSnapshot;
use crate::outcome::saturation::is_measured;
use crate::outcome::stages::StageWatch;
use crate::transport::first_contact::{Contact, FirstContact};
use crate::workload::stages;
use crate::{
    Close, Config, Echo, Endpoint, Fanout, Latency, Recorder, Run, Series, Snapshot, StartError,
};

/// How often the end of a phase is polled, and how often a row is made.
const LOOK_NS: u64 = 20_000_000;
const ROW_NS: u64 = 1_000_000_000;
/// How often the number of connections is updated in a stage.
const STEP_NS: u64 = 100_000_000;
/// The phase of a warm-up.
const WARM_UP: &str = "warm-up";
/// How long the end of a hold waits for pongs in flight.
const PONGS_NS: u64 = 2_000_000_000;

/// One second of a run.
#[derive(Clone, Default, Debug)]
pub struct Row {
    /// Since the run began.
    pub elapsed: Duration,
    /// The phase of the run.
    pub phase: &'static str,
    /// WebSockets open now.
    pub open: u64,
    /// Failed connects so far.
    pub failed: u64,
    /// WebSockets that ended so far.
    pub closed: u64,
    /// Messages and pings sent so far, and messages, pongs and publications received.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
    /// Messages received per second, or pongs where no messages are sent.
    pub messages_per_second: f64,
    /// Latency in this second.
    pub latency: Option<Latency>,
    /// Errors so far: failed and ended connections, and messages given up, wrong or duplicated.
    pub errors: u64,
    /// Errors by cause, without zeros.
    pub causes: Vec<(&'static str, u64)>,
    /// All counters and times since the run began.
    pub progress: Progress,
    /// It marks the beginning or the end of a phase, beside the rows of each second: with counters and
    /// without times and rates.
    pub is_mark: bool,
}

/// Counters and times since a run began.
#[derive(Clone, Default, Debug)]
pub struct Progress {
    /// Counters by kind of run.
    pub counts: Counts,
    /// Times of all workers.
    pub timed: Arc<Recorder>,
    /// Progress of the publishers of a fan-out or a churn.
    pub published: Published,
}

/// The counters of a run, by kind.
#[derive(Clone, Debug)]
pub enum Counts {
    /// Of a run of WebSockets.
    Sockets(Box<Snapshot>),
    /// Of a run of requests.
    Requests(Box<RequestSnapshot>),
}

impl Default for Counts {
    fn default() -> Self {
        Counts::Sockets(Box::default())
    }
}

/// The progress of publishers.
#[derive(Copy, Clone, Default, Debug)]
pub struct Published {
    /// Publications that were accepted, or may have been.
    pub taken: u64,
    /// Publications that were rejected or not answered.
    pub failed: u64,
}

/// Runs all phases of `config`. `row` is called once a second; `wait` waits for the given time or
/// less and returns true to end the run.
///
/// # Errors
/// Those of [`Run::start`] and of workers.
pub fn drive(
    config: &Config,
    mut row: impl FnMut(&Row),
    wait: impl FnMut(Duration) -> bool,
) -> Result<Outcome, StartError> {
    let mut run = Run::start(config)?;
    let now_ns = match &config.gate {
        None => process::now_ns(),
        Some(gate) => gate.pass().map_err(StartError::Unfit)?,
    };
    let staged = RefCell::new(StageWatch::new(&config.stages));
    let mut watch = Watch {
        row: |made: &Row| {
            staged.borrow_mut().row(made);
            row(made);
        },
        staged: &staged,
        wait,
        began_ns: now_ns,
        phase: "",
        rows: Rows::new(now_ns),
        contact: FirstContact::of_sockets(config, now_ns),
        endpoints: &config.endpoints,
        unreached: None,
    };
    let ended = phases(&mut run, config, &mut watch)?;
    if ended && watch.unreached.is_none() {
        run.interrupt();
    }
    watch.mark(&run, "");
    run.finish_fanout();
    run.finish_churn();
    let contact = Contact::of_sockets(&run.snapshot());
    let Watch { contact: first, unreached, row: _, .. } = watch;
    let explained = || first.explain_end(&config.endpoints, contact);
    let unreached = unreached.or_else(explained);
    let mut outcome = run.finish(config, Close::Graceful)?;
    outcome.stages = staged.take().finish();
    if unreached.is_some() {
        outcome.unreached = unreached;
        judge(&mut outcome, &[]);
    }
    Ok(outcome)
}

/// Runs the phases; true if one was interrupted, or the target cannot be reached.
fn phases<R: FnMut(&Row), W: FnMut(Duration) -> bool>(
    run: &mut Run,
    config: &Config,
    watch: &mut Watch<'_, R, W>,
) -> Result<bool, StartError> {
    if !config.stages.is_empty() {
        return Ok(watch.stages(run, config));
    }
    run.set_target(config.connections);
    if watch.until(run, "connect", |run, _| run.reached()) {
        return Ok(true);
    }
    run.heartbeat(config.heartbeat);
    let holds = config.echo.is_none() && config.fanout.is_none();
    if holds && watch.warm_up(run, config)? {
        return Ok(true);
    }
    let over_ns = process::now_ns() + config.hold.as_nanos() as u64;
    let pinging = Cell::new(holds);
    let held = |run: &mut Run, now_ns: u64| {
        // Otherwise a ping sent just now would be one that nobody answered.
        if now_ns >= over_ns && pinging.replace(false) {
            run.stop_heartbeats();
        }
        let counts = run.snapshot();
        let waits = counts.waiting > 0 && now_ns < over_ns + PONGS_NS;
        let all_closed = counts.open == 0 && counts.expected_to_open() == 0;
        all_closed || now_ns >= over_ns && !waits
    };
    if !config.hold.is_zero() && watch.until(run, "hold", held) {
        return Ok(true);
    }
    if !holds && watch.warm_up(run, config)? {
        return Ok(true);
    }
    if holds && !config.hold.is_zero() {
        run.awaited_pongs();
    }
    if let Some(echo) = &config.echo {
        run.echo(echo);
        let over = |run: &mut Run, _| {
            let counts = run.snapshot();
            run.echo_done() || counts.open == 0 && counts.expected_to_open() == 0
        };
        if watch.until(run, "echo", over) {
            return Ok(true);
        }
        let over_ns = process::now_ns() + config.linger.as_nanos() as u64;
        let over = |run: &mut Run, now_ns| now_ns >= over_ns || run.snapshot().open == 0;
        if watch.until(run, "hold", over) {
            return Ok(true);
        }
    }
    if let (Some(churn), Some(fanout)) = (&config.churn, &config.fanout) {
        run.churn(churn, fanout);
        let failed = Cell::new(None);
        let over = |run: &mut Run, _| match run.tend_churn() {
            Ok(over) => over || run.snapshot().open == 0,
            Err(error) => {
                failed.set(Some(error));
                true
            }
        };
        let interrupted = watch.until(run, "churn", over);
        return failed.take().map_or(Ok(interrupted), |error| Err(error.into()));
    }
    if let Some(fanout) = &config.fanout {
        run.expect_fanout(fanout);
        if watch.until(run, "fanout", |run, _| run.expecting()) {
            return Ok(true);
        }
        run.fan_out(fanout)?;
        let over = |run: &mut Run, _| run.tend_fanout() || run.snapshot().open == 0;
        return Ok(watch.until(run, "fanout", over));
    }
    Ok(false)
}

struct Watch<'c, R, W> {
    row: R,
    /// Follows the rows.
    staged: &'c RefCell<StageWatch>,
    wait: W,
    began_ns: u64,
    /// The phase whose beginning was marked.
    phase: &'static str,
    rows: Rows,
    contact: FirstContact,
    endpoints: &'c [Endpoint],
    /// Why the target cannot be reached.
    unreached: Option<String>,
}

impl<R: FnMut(&Row), W: FnMut(Duration) -> bool> Watch<'_, R, W> {
    /// Polls and makes rows until `done`; true if interrupted before, or the target cannot be reached.
    fn until(
        &mut self,
        run: &mut Run,
        phase: &'static str,
        done: impl Fn(&mut Run, u64) -> bool,
    ) -> bool {
        self.mark(run, phase);
        loop {
            run.collect();
            let now_ns = process::now_ns();
            if self.rows.due(now_ns) {
                let elapsed = Duration::from_nanos(now_ns - self.began_ns);
                (self.row)(&self.rows.make(run, now_ns, elapsed, phase));
            }
            if done(run, now_ns) {
                return false;
            }
            let contact = || Contact::of_sockets(&run.snapshot());
            self.unreached = self.contact.lost(self.endpoints, contact, now_ns);
            if self.unreached.is_some() {
                return true;
            }
            if (self.wait)(Duration::from_nanos(LOOK_NS)) {
                return true;
            }
        }
    }
}

impl<R: FnMut(&Row), W: FnMut(Duration) -> bool> Watch<'_, R, W> {
    /// Marks the end of a phase and the beginning of the next, if it is another; the last has no name.
    fn mark(&mut self, run: &Run, phase: &'static str) {
        let before = std::mem::replace(&mut self.phase, phase);
        if before == phase {
            return;
        }
        let elapsed = Duration::from_nanos(process::now_ns() - self.began_ns);
        for phase in [before, phase].into_iter().filter(|phase| !phase.is_empty()) {
            let counts = Counts::Sockets(Box::new(run.snapshot()));
            let progress = Progress { counts, ..Progress::default() };
            (self.row)(&Row { elapsed, phase, is_mark: true, progress, ..Row::default() });
        }
    }

    /// Does what the run will do for a while, and leaves it out of the figures; true if interrupted.
    fn warm_up(&mut self, run: &mut Run, config: &Config) -> Result<bool, StartError> {
        if config.warm_up.is_zero() {
            return Ok(false);
        }
        let interrupted = self.warm(run, config)?;
        // Pongs in flight would be answers to pings that do not count.
        run.heartbeat(None);
        let over_ns = process::now_ns() + PONGS_NS;
        let done = |run: &mut Run, now_ns| run.snapshot().waiting == 0 || now_ns >= over_ns;
        let interrupted = interrupted || self.until(run, WARM_UP, done);
        // The rest of it, so that no row has messages of the warm-up and of the measured time.
        let now_ns = process::now_ns();
        let elapsed = Duration::from_nanos(now_ns - self.began_ns);
        (self.row)(&self.rows.make(run, now_ns, elapsed, WARM_UP));
        run.begin_measuring();
        run.heartbeat(config.heartbeat);
        Ok(interrupted)
    }

    fn warm(&mut self, run: &mut Run, config: &Config) -> Result<bool, StartError> {
        let duration = Some(config.warm_up);
        if let Some(echo) = &config.echo {
            let messages = echo.messages.filter(|_| echo.turnover);
            run.echo(&Echo { duration, messages, ..echo.clone() });
            let over = |run: &mut Run, _| {
                let counts = run.snapshot();
                run.echo_done() || counts.open == 0 && counts.expected_to_open() == 0
            };
            return Ok(self.until(run, WARM_UP, over));
        }
        if let Some(fanout) = &config.fanout {
            let fanout = Fanout { duration, messages: None, ..fanout.clone() };
            run.expect_fanout(&fanout);
            if self.until(run, WARM_UP, |run, _| run.expecting()) {
                return Ok(true);
            }
            run.fan_out(&fanout)?;
            let over = |run: &mut Run, _| run.tend_fanout() || run.snapshot().open == 0;
            return Ok(self.until(run, WARM_UP, over));
        }
        let over_ns = process::now_ns() + config.warm_up.as_nanos() as u64;
        let over = |run: &mut Run, now_ns| now_ns >= over_ns || run.snapshot().open == 0;
        Ok(self.until(run, WARM_UP, over))
    }

    /// Runs the stages with heartbeats, then holds; true if interrupted before.
    fn stages(&mut self, run: &mut Run, config: &Config) -> bool {
        run.heartbeat(config.heartbeat);
        let began_ns = process::now_ns();
        self.staged.borrow_mut().begin(Duration::from_nanos(began_ns - self.began_ns));
        let mut next_ns = began_ns;
        let mut turns = stages::ends(&config.stages).peekable();
        loop {
            let elapsed = Duration::from_nanos(process::now_ns() - began_ns);
            // No end of a stage is skipped, however short the stage is.
            while let Some((_, connections)) = turns.next_if(|(end, _)| *end <= elapsed) {
                run.set_open(connections);
            }
            let now_ns = process::now_ns();
            let since = Duration::from_nanos(now_ns - self.began_ns);
            if self.staged.borrow().is_due(since) {
                // A row of its own, so that no row has figures of two stages.
                (self.row)(&self.rows.make(run, now_ns, since, "stages"));
            }
            let Some(wanted) = stages::connections_at(&config.stages, elapsed) else { break };
            run.set_open(wanted);
            next_ns += STEP_NS;
            if self.until(run, "stages", |_, now_ns| now_ns >= next_ns) {
                return true;
            }
        }
        let over_ns = process::now_ns() + config.hold.as_nanos() as u64;
        self.until(run, "hold", |run, now_ns| run.reached() && now_ns >= over_ns)
    }
}

/// Makes rows: the difference between now and a second ago.
pub(crate) struct Rows {
    last_ns: u64,
    counts: Snapshot,
    recorder: Arc<Recorder>,
}

impl Rows {
    pub(crate) fn new(now_ns: u64) -> Rows {
        Rows { last_ns: now_ns, counts: Snapshot::default(), recorder: Arc::default() }
    }

    fn due(&self, now_ns: u64) -> bool {
        now_ns >= self.last_ns + ROW_NS
    }

    fn make(&mut self, run: &Run, now_ns: u64, elapsed: Duration, phase: &'static str) -> Row {
        let (counts, recorder) = (run.snapshot(), Arc::new(run.recorder()));
        let seconds = (now_ns - self.last_ns).max(1) as f64 / 1e9;
        let messages = |counts: &Snapshot| counts.echo_received + counts.delivery.received;
        let came = |counts: &Snapshot| messages(counts) + counts.heartbeats_received;
        // Pongs are the messages of phases without others.
        let rate_of = |counts: &Snapshot| match is_measured(phase) {
            true => messages(counts),
            false => came(counts),
        };
        let received = rate_of(&counts).saturating_sub(rate_of(&self.counts));
        let mut second = Recorder::clone(&recorder);
        second.subtract(&self.recorder);
        let latency = [Series::Latency, Series::Broadcast, Series::Heartbeat]
            .into_iter()
            .find_map(|series| second.latency(series));
        let causes = counts.errors();
        let row = Row {
            elapsed,
            phase,
            open: counts.open,
            failed: counts.failed_total(),
            closed: counts.closed_total(),
            sent: counts.echo_sent + counts.heartbeats_sent,
            received: came(&counts),
            messages_per_second: received as f64 / seconds,
            latency,
            errors: causes.iter().map(|(_, count)| count).sum(),
            causes,
            progress: Progress {
                counts: Counts::Sockets(Box::new(counts.clone())),
                timed: Arc::clone(&recorder),
                published: run.published(),
            },
            is_mark: false,
        };
        *self = Rows { last_ns: now_ns, counts, recorder };
        row
    }
}
