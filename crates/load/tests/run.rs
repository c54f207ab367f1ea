//! Complete runs against a server that misbehaves and counts its faults: the counts of the run must be
//! exact. The server uses the engine, with a path per behaviour; `tests/load_counting.rs` of the
//! repository tests the executable with an independent server.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod server;

use std::io::{self, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use load::control::Lines;
use load::publication::{self, Publication};
use load::{Close, Config, Connect, Content, Echo, Endpoint, Outcome, Row, Run};
use serde_json::{Value, json};

use server::Server;

const CONNECTIONS: u64 = 4;
const MESSAGES: u32 = 250;
const PATIENCE: Duration = Duration::from_secs(60);

fn config(port: u16, path: &str) -> Config {
    let endpoint = Endpoint::parse(&format!("ws://127.0.0.1:{port}{path}")).unwrap();
    Config { connect_timeout: PATIENCE, ..Config::new(vec![endpoint], CONNECTIONS) }
}

fn echo(rate: Option<u64>) -> Echo {
    let timeout = Duration::from_secs(1);
    Echo {
        size: 20,
        rate,
        messages: Some(MESSAGES),
        duration: None,
        turnover: false,
        content: None,
        validator: None,
        think: None,
        timeout,
    }
}

fn drive(config: &Config) -> Outcome {
    drive_with(config, |_| {})
}

fn drive_with(config: &Config, row: impl FnMut(&Row)) -> Outcome {
    let wait = |time| {
        std::thread::sleep(time);
        false
    };
    let ended = load::drive(config, row, wait).unwrap();
    assert!(!ended.interrupted);
    ended
}

fn drive_with_wait(config: &Config, wait: impl FnMut(Duration) -> bool) -> Outcome {
    load::drive(config, |_| {}, wait).unwrap()
}

#[test]
fn correct_server_has_no_errors_in_both_models_and_all_sizes() {
    let server = Server::start();
    for rate in [None, Some(1_000)] {
        for size in [4, 20, 70_000] {
            // As many bytes a second as a slow machine still moves.
            let (rate, messages) = match (rate, size) {
                (Some(_), 70_000) => (Some(100), MESSAGES / 10),
                _ => (rate, MESSAGES),
            };
            let echo = Echo { size, timeout: PATIENCE, messages: Some(messages), ..echo(rate) };
            let config = Config { echo: Some(echo), ..config(server.port, "/echo") };
            let summary = drive(&config);
            assert!(summary.held, "size {size}, rate {rate:?}: {:?}", summary.reasons);
            let echo = summary.echo.unwrap();
            assert_eq!(echo.sent, CONNECTIONS * u64::from(messages));
            assert_eq!(echo.received, echo.sent);
            let lagged = summary.send_lag.map_or(0, |lag| lag.count);
            assert_eq!(lagged, rate.map_or(0, |_| echo.sent), "size {size}, rate {rate:?}");
            let timed = summary.latency.map_or(0, |latency| latency.count);
            let small_and_open = size < 20 && rate.is_some();
            assert_eq!(timed, if small_and_open { 0 } else { echo.sent }, "size {size}");
        }
    }
}

/// Messages of the warm-up are sent and answered, and are in no figure, in all models.
#[test]
fn messages_of_a_warm_up_are_in_no_figure() {
    let server = Server::start();
    let filling = Some(Content::filling(4));
    let duration = Some(Duration::from_millis(300));
    let closed = echo(None);
    for echo in [
        Echo { timeout: PATIENCE, ..closed.clone() },
        Echo { timeout: PATIENCE, ..echo(Some(2_000)) },
        Echo { timeout: PATIENCE, content: filling, size: 4, ..closed.clone() },
        Echo { timeout: PATIENCE, turnover: true, messages: Some(5), duration, ..closed.clone() },
    ] {
        let turnover = echo.turnover;
        let warm_up = Duration::from_millis(300);
        let config = Config { echo: Some(echo), warm_up, ..config(server.port, "/echo") };
        let mut phases = Vec::new();
        let outcome = drive_with(&config, |row| phases.push(row.phase));
        assert!(outcome.held, "{outcome}");
        let (warm, echo) = (outcome.warm_up_messages.unwrap(), outcome.echo.clone().unwrap());
        assert!(warm > 0, "{outcome}");
        if !turnover {
            assert_eq!(echo.sent, CONNECTIONS * u64::from(MESSAGES), "{outcome}");
        }
        assert_eq!((echo.received, echo.lost, echo.unsent), (echo.sent, 0, 0), "{outcome}");
        let timed = [&outcome.latency, &outcome.service_time].map(|one| one.unwrap().count);
        assert_eq!(timed, [echo.sent; 2], "{outcome}");
        phases.dedup();
        assert!(phases.windows(2).any(|two| two == ["warm-up", "echo"]), "{phases:?}");
    }
}

/// Answers of the warm-up that come when it is over count as nothing.
#[test]
fn late_answers_of_a_warm_up_are_in_no_figure() {
    let server = Server::start();
    let timeout = Duration::from_millis(50);
    let echo = Echo { timeout, messages: Some(10), ..echo(None) };
    let warm_up = Duration::from_millis(300);
    let config = Config { echo: Some(echo), warm_up, ..config(server.port, "/late") };
    let echo = drive(&config).echo.unwrap();
    assert_eq!((echo.duplicated, echo.corrupted), (0, 0), "{echo:?}");
    assert!(echo.received <= echo.sent, "{echo:?}");
}

#[test]
fn pings_of_a_warm_up_are_in_no_figure() {
    let server = Server::start();
    let heartbeat = Some(Duration::from_millis(100));
    let hold = Duration::from_millis(500);
    let config = Config { heartbeat, hold, ..config(server.port, "/echo") };
    let cold = drive(&config).heartbeats.unwrap();
    let warm_up = Duration::from_secs(3);
    let warm = drive(&Config { warm_up, ..config }).heartbeats.unwrap();
    assert_eq!((warm.received, warm.unanswered_sockets), (warm.sent, 0), "{warm:?}");
    assert!(warm.sent < 3 * cold.sent, "seven times as many were sent: {warm:?}, {cold:?}");
    assert_eq!(warm.latency.unwrap().count, warm.received);
}

/// The server drops each 100th message of a socket, duplicates each 101st, answers the 50th after the
/// 51st and corrupts the 70th.
#[test]
fn open_model_counts_every_fault() {
    let server = Server::start();
    let config = Config { echo: Some(echo(Some(5_000))), ..config(server.port, "/faults") };
    let summary = drive(&config);
    let echo = summary.echo.unwrap();
    assert_eq!(echo.sent, CONNECTIONS * u64::from(MESSAGES));
    assert_eq!(echo.lost, CONNECTIONS * 3, "two dropped and one changed: {echo:?}");
    assert_eq!(echo.duplicated, CONNECTIONS * 2, "{echo:?}");
    assert_eq!(echo.reordered, CONNECTIONS, "{echo:?}");
    assert_eq!(echo.corrupted, CONNECTIONS, "{echo:?}");
    assert_eq!(echo.late, 0, "{echo:?}");
    assert_eq!(echo.received, echo.sent - echo.lost + echo.duplicated + echo.corrupted);
    assert!(!summary.held && summary.reasons.len() == 4, "{:?}", summary.reasons);
    // A changed message is no answer, so it does not take from the good ones either.
    assert_eq!(summary.good_per_second, summary.per_second);
}

/// The server closes each connection on its 50th message: nothing is answered in the rest of the time.
#[test]
fn rates_of_connections_that_all_ended_are_of_the_whole_time() {
    let server = Server::start();
    let duration = Some(Duration::from_secs(1));
    for rate in [None, Some(1_000)] {
        // Of 200 messages two make a percentile: a pause of this machine makes a run saturated.
        let blamed = (0..3).all(|_| {
            let echo = Echo { messages: None, duration, ..echo(rate) };
            let mut outcome = drive(&Config { echo: Some(echo), ..config(server.port, "/closes") });
            let echo = outcome.echo.as_ref().unwrap();
            let answered = echo.sent - echo.lost;
            assert!(answered > 0 && outcome.connections.open == Some(0), "{outcome}");
            assert_eq!(outcome.seconds, Some(1.0), "{outcome}");
            assert_eq!(outcome.per_second, Some(answered as f64), "{outcome}");
            outcome.config.pace.rate = rate.map(|rate| rate as f64);
            let mut generator = load::Generator::new(2);
            generator.finish(&outcome);
            outcome.generator = Some(generator);
            outcome.is_saturated()
        });
        assert!(!blamed, "the server ended the connections, and the generator is blamed");
    }
}

/// The messages of an interrupted run are those that the server received.
#[test]
fn nothing_is_sent_after_the_counts_of_an_interrupted_run() {
    let server = Server::start();
    for rate in [None, Some(20_000)] {
        let before = server.received();
        let echo = Echo { messages: None, duration: Some(PATIENCE), ..echo(rate) };
        let config = Config { echo: Some(echo), ..config(server.port, "/echo") };
        let outcome = drive_with_wait(&config, |time| {
            std::thread::sleep(time);
            server.received() > before + 500
        });
        assert!(outcome.interrupted);
        assert_eq!(outcome.echo.unwrap().sent, server.received() - before, "rate {rate:?}");
    }
}

/// A message that is never answered stops its socket for the timeout only.
#[test]
fn closed_loop_gives_up_dropped_messages_and_continues() {
    let server = Server::start();
    let config = Config { echo: Some(echo(None)), ..config(server.port, "/drops") };
    let echo = drive(&config).echo.unwrap();
    assert_eq!(echo.sent, CONNECTIONS * u64::from(MESSAGES));
    assert_eq!(echo.lost, CONNECTIONS * 2, "{echo:?}");
    assert_eq!(echo.received, echo.sent - echo.lost, "{echo:?}");
    assert_eq!((echo.duplicated, echo.reordered, echo.corrupted), (0, 0, 0));
}

/// The server answers the 20th message of each socket only after the 21st has come.
#[test]
fn closed_loop_distinguishes_late_from_lost() {
    let server = Server::start();
    let config = Config { echo: Some(echo(None)), ..config(server.port, "/late") };
    let echo = drive(&config).echo.unwrap();
    assert_eq!(echo.sent, CONNECTIONS * u64::from(MESSAGES));
    assert_eq!(echo.received, echo.sent, "{echo:?}");
    assert!(echo.late >= CONNECTIONS, "a slow machine makes more late: {echo:?}");
    assert_eq!((echo.lost, echo.duplicated, echo.reordered, echo.corrupted), (0, 0, 0, 0));
}

/// Every message is counted although connections are replaced: none is sent twice or lost in between.
#[test]
fn turnover_replaces_connections_and_counts_all_messages() {
    let server = Server::start();
    let content = |size| Some(Content::filling(size));
    for (size, content) in [(4, content(1)), (20, None), (70_000, None)] {
        let duration = Some(Duration::from_millis(400));
        let echo = Echo { size, content, messages: Some(5), timeout: PATIENCE, ..echo(None) };
        let echo = Echo { turnover: true, duration, ..echo };
        let summary = drive(&Config { echo: Some(echo), ..config(server.port, "/echo") });
        assert!(summary.held, "size {size}: {:?}", summary.reasons);
        let (connections, echo) = (summary.connections, summary.echo.unwrap());
        assert!(connections.replaced.unwrap() > 2 * CONNECTIONS, "size {size}: {connections:?}");
        assert_eq!(
            connections.open.unwrap(),
            CONNECTIONS,
            "those of the end stay: {connections:?}"
        );
        assert_eq!(
            echo.sent,
            5 * (CONNECTIONS + connections.replaced.unwrap()),
            "size {size}: {echo:?}"
        );
        assert_eq!(echo.received, echo.sent, "size {size}: {echo:?}");
    }
}

/// The server drops the 100th message of each connection, which delays its replacement.
#[test]
fn turnover_continues_after_dropped_answers() {
    let server = Server::start();
    let timeout = Duration::from_millis(200);
    let echo = Echo { messages: Some(120), turnover: true, timeout, ..echo(None) };
    let echo = Echo { duration: Some(Duration::from_secs(1)), ..echo };
    let summary = drive(&Config { echo: Some(echo), ..config(server.port, "/drops") });
    let (connections, echo) = (summary.connections, summary.echo.unwrap());
    assert!(connections.replaced.unwrap() >= CONNECTIONS, "{connections:?}");
    assert!(
        echo.lost >= connections.replaced.unwrap(),
        "each replaced connection lost one: {echo:?}"
    );
    assert_eq!(echo.received, echo.sent - echo.lost, "{echo:?}");
    assert!(!summary.held);
}

#[test]
fn failed_connects_are_counted_by_cause_and_end_the_run() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let summary = drive(&Config { hold: PATIENCE, ..config(closed, "/") });
    assert_eq!(summary.connections.failed, CONNECTIONS);
    assert_eq!(summary.connect_errors["connect_refused"], CONNECTIONS);
    let server = Server::start();
    let summary = drive(&Config { hold: PATIENCE, ..config(server.port, "/no-such-path") });
    assert_eq!(summary.connect_errors["status_404"], CONNECTIONS);
    assert!(!summary.held);
}

#[test]
fn every_connect_mode_opens_all() {
    let server = Server::start();
    for connect in [Connect::Windowed, Connect::Storm, Connect::OneByOne, Connect::Paced(2_000)] {
        let wanted = 600;
        let config = Config { connections: wanted, connect, ..config(server.port, "/echo") };
        let mut run = Run::start(&config).unwrap();
        run.set_target(wanted / 3);
        wait_until(|| run.reached());
        assert_eq!(run.snapshot().open, wanted / 3, "{connect:?}");
        run.set_target(wanted);
        wait_until(|| run.reached());
        if let Connect::Paced(rate) = connect {
            let paced = (wanted * 2 / 3) as f64 / rate as f64;
            assert!(run.connecting().as_secs_f64() > paced * 0.9, "{:?}", run.connecting());
        }
        let summary = run.finish(&config, Close::Graceful).unwrap();
        assert!(summary.held, "{connect:?}: {:?}", summary.reasons);
        assert_eq!(summary.connections.open.unwrap(), wanted);
    }
}

/// However fast the server is: each worker of a storm begins all that may be in flight before it serves
/// the first, though workers may do so one after another.
#[test]
fn a_storm_is_as_deep_as_may_be_in_flight() {
    let server = Server::start();
    let wanted = 1_600;
    // As many workers connect at a time.
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    for (connect, in_flight, expected) in [
        (Connect::Storm, None, wanted / cores..=wanted),
        (Connect::Storm, Some(300), 300 / cores..=300),
        (Connect::Windowed, Some(7), 1..=7),
        (Connect::OneByOne, None, 1..=1),
    ] {
        let config =
            Config { connections: wanted, connect, in_flight, ..config(server.port, "/echo") };
        let summary = drive(&config);
        assert!(summary.held, "{connect:?}: {:?}", summary.reasons);
        let most = summary.connections.in_flight_max.unwrap();
        assert!(expected.contains(&most), "{connect:?}, {in_flight:?}: {most} in flight");
    }
}

/// The server answers no ping on one socket.
#[test]
fn heartbeats_find_unanswered_sockets() {
    let server = Server::start();
    let period = Some(Duration::from_millis(400));
    let config = config(server.port, "/echo");
    let mut run = Run::start(&config).unwrap();
    run.set_target(CONNECTIONS);
    wait_until(|| run.reached());
    server.mute_one();
    run.heartbeat(period);
    wait_until(|| run.snapshot().heartbeats_sent >= 3 * CONNECTIONS);
    wait_until(|| run.snapshot().waiting == 1);
    assert_eq!(run.snapshot().unanswered, 1);
    let summary = run.finish(&config, Close::Abort).unwrap();
    assert_eq!(summary.heartbeats.as_ref().unwrap().unanswered_sockets, 1);
    assert!(summary.heartbeats.as_ref().unwrap().latency.is_some());
}

/// In a run shorter than the period most sockets are never pinged.
/// Also those that were sent just before the end.
#[test]
fn every_ping_has_its_pong_at_the_end_of_a_run() {
    let server = Server::start();
    let (heartbeat, hold) = (Some(Duration::from_millis(100)), Duration::from_millis(150));
    let many = Config { connections: 300, heartbeat, hold, ..config(server.port, "/echo") };
    for _ in 0..10 {
        let heartbeats = drive(&many).heartbeats.unwrap();
        assert!(heartbeats.awaited && heartbeats.sent > 20, "{heartbeats:?}");
        let unanswered = heartbeats.unanswered_sockets;
        assert_eq!((heartbeats.received, unanswered), (heartbeats.sent, 0), "{heartbeats:?}");
    }
}

#[test]
fn heartbeats_that_were_never_due_are_not_missing() {
    let server = Server::start();
    let echo = Echo { messages: Some(1), timeout: PATIENCE, ..echo(None) };
    let heartbeat = Some(Duration::from_secs(3600));
    let config = Config { heartbeat, echo: Some(echo), ..config(server.port, "/echo") };
    let outcome = drive(&config);
    let heartbeats = outcome.heartbeats.as_ref().unwrap();
    assert!(heartbeats.sent < CONNECTIONS, "{heartbeats:?}");
    assert!(heartbeats.unanswered_sockets <= heartbeats.sent, "{heartbeats:?}");
    // As runs of requests say answers per second.
    let text = outcome.to_string();
    let line = text.lines().find(|line| line.starts_with("messages ")).unwrap();
    assert!(line.contains(" per second sent, ") && line.contains(" answered over "), "{text}");
}

/// Controlled by commands; the server skips one receiver of the first publication and sends the second
/// one twice to another.
#[test]
fn broadcasts_are_counted_at_every_receiver() {
    let server = Server::start();
    let (commands, events) = obey(config(server.port, "/topic"));
    let tell = |line: Value| commands.send(format!("{line}\n").into_bytes()).unwrap();
    let until = |name: &str| loop {
        let event = events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no event {name}"));
        if event["event"] == name {
            return event;
        }
    };
    assert_eq!(until("ready")["pid"], std::process::id());
    tell(json!({ "target": CONNECTIONS }));
    assert_eq!(until("reached")["open"], CONNECTIONS);
    tell(json!({ "heartbeat": 0.2 }));
    assert_eq!(until("answered")["sockets"], CONNECTIONS);
    commands.send(b"nonsense\n".to_vec()).unwrap();
    assert!(until("error")["message"].as_str().unwrap().contains("nonsense"));
    let (publisher, messages) = (7, 3);
    tell(json!({ "expect": { "publisher": publisher, "messages": messages } }));
    let expected = CONNECTIONS * messages;
    assert_eq!(until("expecting")["expected"], expected);
    for sequence in 0..messages as u32 {
        let published_ns = engine::sys::process::now_ns();
        server
            .publish(publication::encode(&Publication::new(publisher, sequence, published_ns), 0));
    }
    while until("row")["publications"] != expected - 1 {}
    tell(json!({ "finish": "abort" }));
    let summary = until("summary");
    let broadcast = &summary["broadcast"];
    assert_eq!(broadcast["expected"], expected);
    assert_eq!(broadcast["received"], expected - 1);
    assert_eq!((&broadcast["lost"], &broadcast["duplicated"]), (&1.into(), &1.into()));
    assert!(broadcast["last_ms"].as_f64().unwrap() >= broadcast["p50_ms"].as_f64().unwrap());
    assert_eq!(summary["held"], false);
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = engine::sys::process::now_ns() + PATIENCE.as_nanos() as u64;
    while !condition() {
        assert!(engine::sys::process::now_ns() < deadline, "gave up waiting");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `config` under control in a thread: lines in, events out.
fn obey(config: Config) -> (Sender<Vec<u8>>, Receiver<Value>) {
    let (commands, lines) = mpsc::channel();
    let (said, events) = mpsc::channel();
    std::thread::spawn(move || {
        let input = BufReader::new(Input { lines, pending: Vec::new() });
        load::control::run_commands(&config, input, Lines(Output(said)), || false).unwrap();
    });
    (commands, events)
}

struct Input {
    lines: Receiver<Vec<u8>>,
    pending: Vec<u8>,
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.pending.is_empty() {
            self.pending = self.lines.recv().unwrap_or_default();
        }
        let taken = into.len().min(self.pending.len());
        into[..taken].copy_from_slice(&self.pending[..taken]);
        self.pending.drain(..taken);
        Ok(taken)
    }
}

struct Output(Sender<Value>);

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let event = serde_json::from_slice(line).expect("each write is one line of JSON");
        // The test may have seen enough.
        let _ = self.0.send(event);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
