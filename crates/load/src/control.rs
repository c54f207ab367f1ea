//! A run controlled by another process over standard input and output: how `prove` uses `load`.
//!
//! One JSON object per line in each direction. Commands on standard input:
//!
//! | command | meaning |
//! |---|---|
//! | `{"target":10000}` | begin connections up to this total; it never falls |
//! | `{"heartbeat":30}` | ping every open socket once in this many seconds, spread; 0 stops |
//! | `{"echo":{"size":20,"rate":1000,"messages":60}}` | send this many messages on every open socket, at this rate over all, and expect them back |
//! | `{"turnover":{"size":20,"messages":50,"seconds":10}}` | for this time every open socket sends this many messages, each when the last was answered, and is then closed and replaced |
//! | `{"expect":{"publisher":7,"messages":1}}` | reset the counts of this publisher's broadcasts at every open socket |
//! | `"churn"` | begin and end subscriptions while publishing, as the run's flags say |
//! | `{"finish":"graceful"}` | end: by the closing handshake, or `"abort"` by RST |
//!
//! Events on standard output, each with `"event"`:
//!
//! | event | when | fields |
//! |---|---|---|
//! | `ready` | once, first | `pid`, `workers`, `private_tables` |
//! | `reached` | all connections of a target are open or have failed | `connections` (the target), `open`, `failed`, `seconds` since the command |
//! | `answered` | once after `heartbeat`: every open socket has answered a ping | `sockets` |
//! | `echoed` | once after `echo` or `turnover`: all messages were answered or given up | `sent`, `received` |
//! | `expecting` | the sockets count: start publishing | `publisher`, `expected` |
//! | `received` | all that was expected was received | `publisher`, `received`, `duplicated` |
//! | `churned` | once after `churn`: all was published, and every subscription judged | `owed`, `lost` |
//! | `row` | each 250 ms | `elapsed` (seconds), `open`, `failed`, `closed`, `replaced`, `heartbeats_sent`, `heartbeats_received`, `answered`, `unanswered_sockets`, `messages_sent`, `messages_received`, `publications`, `publications_duplicated`; `errors` by cause, left out while there are none; `last_second` and `so_far`: percentiles of what was timed in the last complete second, and of the same since the run began, null without values |
//! | `error` | a line was not a valid command | `message` |
//! | `summary` | once, last, before the connections are closed | the complete [`Outcome`] |
//!
//! A publication is a text made by [`crate::delivery::publication::encode`]. The end of standard
//! input aborts the run. It never ends by itself.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use engine::Tables;
use engine::sys::process;
use serde::{Deserialize, Serialize};

use crate::{
    Close, Config, Content, Echo, Latency, Outcome, Recorder, Run, Series, Snapshot, StartError,
};

/// Where the events of a controlled run go.
pub trait Output {
    /// An event; before it `taken` commands were executed.
    ///
    /// # Errors
    /// Nobody takes it, which ends the run.
    fn event(&mut self, taken: u64, event: &Event) -> io::Result<()>;

    /// A command was executed, so that `taken` were.
    ///
    /// # Errors
    /// Nobody takes it, which ends the run.
    fn taken(&mut self, _taken: u64) -> io::Result<()> {
        Ok(())
    }

    /// Once a second: the time since the run began, all counters, and all that was timed.
    fn second(&mut self, _elapsed: Duration, _counts: &Snapshot, _timed: &Recorder) {}
}

/// Events as lines of JSON.
#[derive(Debug)]
pub struct Lines<W>(pub W);

impl<W: Write> Output for Lines<W> {
    fn event(&mut self, _: u64, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.0.write_all(&line)?;
        self.0.flush()
    }
}

const LOOK: Duration = Duration::from_millis(20);
const ROW_NS: u64 = 250_000_000;
/// How often percentiles are computed, as merging every worker's histograms is not free.
const SECOND_NS: u64 = 1_000_000_000;
/// How long answers to the last messages are awaited.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A command.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Begin connections up to this total; it never falls.
    Target(u64),
    /// Ping every open socket once in this many seconds; 0 stops.
    Heartbeat(f64),
    /// Send this many messages of `size` bytes on every open socket, `rate` per second over all.
    #[allow(missing_docs, reason = "described above")]
    Echo { size: usize, rate: u64, messages: u32 },
    /// For this time every open socket sends this many messages and is then replaced.
    #[allow(missing_docs, reason = "described above")]
    Turnover { size: usize, messages: u32, seconds: f64 },
    /// Expect this many broadcasts of a publisher at every open socket.
    #[allow(missing_docs, reason = "described above")]
    Expect { publisher: u32, messages: u32 },
    /// Begin and end subscriptions while publishing, as the run's flags say.
    Churn,
    /// End the run.
    Finish(Finish),
}

/// How connections are closed at the end.
#[derive(Serialize, Deserialize, Debug, PartialEq, Copy, Clone)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// By the closing handshake.
    Graceful,
    /// By RST.
    Abort,
}

/// An event.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs, reason = "described in the table of the module")]
pub enum Event {
    Ready { pid: u32, workers: usize, private_tables: bool },
    Reached { connections: u64, open: u64, failed: u64, seconds: f64 },
    Answered { sockets: u64 },
    Echoed { sent: u64, received: u64 },
    Expecting { publisher: u32, expected: u64 },
    Received { publisher: u32, received: u64, duplicated: u64 },
    Churned { owed: u64, lost: u64 },
    Row(Box<ProgressRow>),
    Error { message: String },
    Summary(Box<Outcome>),
}

/// The state of a controlled run.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
#[allow(missing_docs, reason = "described in the table of the module")]
pub struct ProgressRow {
    pub elapsed: f64,
    pub open: u64,
    pub failed: u64,
    pub closed: u64,
    pub replaced: u64,
    pub heartbeats_sent: u64,
    pub heartbeats_received: u64,
    pub answered: u64,
    pub unanswered_sockets: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub publications: u64,
    pub publications_duplicated: u64,
    /// Omitted while nothing went wrong.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    pub last_second: Option<Latency>,
    pub so_far: Option<Latency>,
}

impl ProgressRow {
    /// The row of these counters, without percentiles.
    #[must_use]
    pub fn of(elapsed: Duration, counts: &Snapshot) -> ProgressRow {
        ProgressRow {
            elapsed: elapsed.as_secs_f64(),
            open: counts.open,
            failed: counts.failed_total(),
            closed: counts.closed_total(),
            replaced: counts.replaced,
            heartbeats_sent: counts.heartbeats_sent,
            heartbeats_received: counts.heartbeats_received,
            answered: counts.answered,
            unanswered_sockets: counts.unanswered,
            messages_sent: counts.echo_sent,
            messages_received: counts.echo_received,
            publications: counts.delivery.received,
            publications_duplicated: counts.delivery.duplicated,
            errors: counts.errors().into_iter().map(|(kind, n)| (kind.to_owned(), n)).collect(),
            last_second: None,
            so_far: None,
        }
    }
}

/// Runs `config` under the commands of `input` and passes events to `output`; the phases of the
/// configuration do not apply. `interrupted` is polled 50 times a second and ends the run.
///
/// # Errors
/// Those of [`Run::start`] and of workers, and an `output` that cannot be written.
pub fn run_commands(
    config: &Config,
    input: impl BufRead + Send + 'static,
    output: impl Output,
    mut interrupted: impl FnMut() -> bool,
) -> Result<Outcome, StartError> {
    let run = Run::start(config)?;
    if let Some(gate) = &config.gate {
        gate.pass().map_err(StartError::Unfit)?;
    }
    let lines = read_lines(input);
    let mut control = Control::new(run, output);
    let private_tables = control.run.tables() == Tables::Private;
    let workers = control.run.workers();
    control.emit(&Event::Ready { pid: std::process::id(), workers, private_tables })?;
    let mut was_interrupted = false;
    let how = loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                if let Some(how) = control.command(&line, config)? {
                    break how;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Close::Abort,
        }
        if interrupted() {
            was_interrupted = true;
            break Close::Abort;
        }
        control.look()?;
    };
    control.run.finish_churn();
    if was_interrupted {
        control.run.interrupt();
    }
    let outcome = control.run.outcome(config);
    control.emit(&Event::Summary(Box::new(outcome.clone())))?;
    control.run.finish(config, how)?;
    Ok(outcome)
}

/// Reads lines on a thread that ends with the input.
fn read_lines(input: impl BufRead + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in input.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

struct Control<O> {
    run: Run,
    output: O,
    /// Commands that were executed.
    taken: u64,
    began_ns: u64,
    last_row_ns: u64,
    second: LastSecond,
    /// Requested events that are not emitted yet.
    reach: bool,
    answer: bool,
    echo: bool,
    expect: Option<u32>,
    receive: Option<u32>,
    churn: bool,
}

impl<O: Output> Control<O> {
    fn new(run: Run, output: O) -> Self {
        let began_ns = process::now_ns();
        Control {
            run,
            output,
            taken: 0,
            began_ns,
            last_row_ns: began_ns,
            second: LastSecond {
                began_ns,
                before: Recorder::default(),
                series: Series::Heartbeat,
                latency: None,
                so_far: None,
            },
            reach: false,
            answer: false,
            echo: false,
            expect: None,
            receive: None,
            churn: false,
        }
    }

    fn emit(&mut self, event: &Event) -> io::Result<()> {
        self.output.event(self.taken, event)
    }

    /// Executes a command line; returns how to end if the command is `finish`.
    fn command(&mut self, line: &str, config: &Config) -> io::Result<Option<Close>> {
        match serde_json::from_str(line) {
            Ok(Command::Target(connections)) => {
                self.run.set_target(connections);
                self.reach = true;
            }
            Ok(Command::Heartbeat(seconds)) => {
                let period = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                self.run.heartbeat(Some(period));
                self.answer = !period.is_zero();
            }
            Ok(Command::Echo { size, rate, messages }) => {
                self.run.echo(&Echo { rate: Some(rate), ..echo(size, messages) });
                self.echo = true;
            }
            Ok(Command::Turnover { size, messages, seconds }) => {
                let duration = Duration::try_from_secs_f64(seconds).ok();
                self.run.echo(&Echo { duration, turnover: true, ..echo(size, messages) });
                self.echo = true;
            }
            Ok(Command::Expect { publisher, messages }) => {
                self.run.expect_broadcasts(publisher, messages);
                (self.expect, self.receive) = (Some(publisher), None);
            }
            Ok(Command::Churn) => match (&config.churn, &config.fanout) {
                (Some(churn), Some(fanout)) => {
                    self.run.churn(churn, fanout);
                    self.churn = true;
                }
                _ => {
                    let message =
                        "churn: the run was started without the flags of a churn".to_owned();
                    self.emit(&Event::Error { message })?;
                }
            },
            Ok(Command::Finish(Finish::Graceful)) => return Ok(Some(Close::Graceful)),
            Ok(Command::Finish(Finish::Abort)) => return Ok(Some(Close::Abort)),
            Err(error) => {
                let message = format!("invalid command {line:?}: {error}");
                self.emit(&Event::Error { message })?;
            }
        }
        self.taken += 1;
        self.output.taken(self.taken)?;
        Ok(None)
    }

    /// Emits the events that are due.
    fn look(&mut self) -> io::Result<()> {
        self.run.collect();
        let counts = self.run.snapshot();
        if self.reach && self.run.reached() {
            self.reach = false;
            let (connections, open) = (self.run.requested(), counts.open);
            let (failed, seconds) = (counts.failed_total(), self.run.connecting().as_secs_f64());
            self.emit(&Event::Reached { connections, open, failed, seconds })?;
        }
        if self.answer && counts.answered >= counts.open {
            self.answer = false;
            self.emit(&Event::Answered { sockets: counts.answered })?;
        }
        if self.echo && self.run.echo_done() {
            self.echo = false;
            let (sent, received) = (counts.echo_sent, counts.echo_received);
            self.emit(&Event::Echoed { sent, received })?;
        }
        if let Some(publisher) = self.expect
            && self.run.expecting()
        {
            (self.expect, self.receive) = (None, Some(publisher));
            let expected = self.run.expected();
            self.emit(&Event::Expecting { publisher, expected })?;
        }
        if let Some(publisher) = self.receive
            && counts.delivery.received >= self.run.expected()
        {
            self.receive = None;
            let (received, duplicated) = (counts.delivery.received, counts.delivery.duplicated);
            self.emit(&Event::Received { publisher, received, duplicated })?;
        }
        if self.churn && self.run.tend_churn()? {
            self.churn = false;
            self.run.finish_churn();
            let counts = self.run.snapshot();
            self.emit(&Event::Churned { owed: counts.churn_owed, lost: counts.churn_lost })?;
        }
        self.row(&counts)
    }

    fn row(&mut self, counts: &Snapshot) -> io::Result<()> {
        let now_ns = process::now_ns();
        if now_ns < self.last_row_ns + ROW_NS {
            return Ok(());
        }
        self.last_row_ns = now_ns;
        let elapsed = Duration::from_nanos(now_ns - self.began_ns);
        if self.second.pass(&self.run, now_ns) {
            self.output.second(elapsed, counts, &self.second.before);
        }
        let LastSecond { latency: last_second, so_far, .. } = self.second;
        let row = ProgressRow { last_second, so_far, ..ProgressRow::of(elapsed, counts) };
        self.emit(&Event::Row(Box::new(row)))
    }
}

/// An echo in the closed loop.
fn echo(size: usize, messages: u32) -> Echo {
    Echo {
        size: size.max(Echo::SIZE_MIN),
        rate: None,
        messages: Some(messages),
        duration: None,
        turnover: false,
        content: (size < Echo::SIZE_MIN).then(|| Content::filling(size)),
        validator: None,
        think: None,
        timeout: ANSWER_TIMEOUT,
    }
}

/// The percentiles of the last complete second, and of the same series since the run began.
struct LastSecond {
    began_ns: u64,
    before: Recorder,
    /// What was timed last.
    series: Series,
    latency: Option<Latency>,
    so_far: Option<Latency>,
}

impl LastSecond {
    /// Returns whether another second is complete.
    fn pass(&mut self, run: &Run, now_ns: u64) -> bool {
        if now_ns < self.began_ns + SECOND_NS {
            return false;
        }
        self.began_ns = now_ns;
        let recorder = run.recorder();
        let mut second = recorder.clone();
        second.subtract(&self.before);
        let timed = [Series::Latency, Series::Broadcast, Series::Heartbeat]
            .into_iter()
            .find_map(|series| Some((series, second.latency(series)?)));
        self.latency = timed.map(|(_, latency)| latency);
        self.series = timed.map_or(self.series, |(series, _)| series);
        self.so_far = recorder.latency(self.series);
        self.before = recorder;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_documented() {
        let read = |line| serde_json::from_str::<Command>(line).unwrap();
        assert_eq!(read(r#"{"target":10000}"#), Command::Target(10_000));
        assert_eq!(read(r#"{"heartbeat":30}"#), Command::Heartbeat(30.0));
        let expect = Command::Expect { publisher: 7, messages: 1 };
        assert_eq!(read(r#"{"expect":{"publisher":7,"messages":1}}"#), expect);
        let echo = Command::Echo { size: 20, rate: 1_000, messages: 60 };
        assert_eq!(read(r#"{"echo":{"size":20,"rate":1000,"messages":60}}"#), echo);
        let turnover = Command::Turnover { size: 1, messages: 50, seconds: 2.5 };
        let line = r#"{"turnover":{"size":1,"messages":50,"seconds":2.5}}"#;
        assert_eq!(read(line), turnover);
        assert_eq!(read(r#""churn""#), Command::Churn);
        assert_eq!(read(r#"{"finish":"abort"}"#), Command::Finish(Finish::Abort));
        for wrong in ["", "{}", r#"{"stop":1}"#, r#"{"target":-1}"#, r#"{"expect":{"x":1}}"#] {
            assert!(serde_json::from_str::<Command>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_carry_their_name() {
        let event = Event::Reached { connections: 3, open: 2, failed: 1, seconds: 0.5 };
        let json = serde_json::to_value(event).unwrap();
        assert_eq!((&json["event"], &json["open"]), (&"reached".into(), &2.into()));
    }
}
