//! Runs of requests against a server that misbehaves and counts requests: the counts of a run must be
//! exact, and nothing may hang.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod http_server;

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::sys::process;
use http_server::{MIX, start};
use load::requests::{
    Accepted, Answer, Expect, Failure, Fixed, Http1, HttpRequest, Pace, Part, Request, Requests,
    Script, Step, Tcp, Wants, drive_requests,
};
use load::stages::Stage;
use load::{Endpoint, Outcome, Row};

/// Longer than a healthy answer takes on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(10);

fn config(port: u16, connections: u64, requests: u64) -> Requests {
    let endpoint = Endpoint::parse_web(&format!("http://127.0.0.1:{port}/")).unwrap();
    Requests {
        duration: None,
        requests: Some(requests),
        timeout: PATIENCE,
        ..Requests::new(vec![endpoint], connections)
    }
}

fn get(target: &str) -> Request {
    let host = "127.0.0.1";
    Request::http(
        0,
        &HttpRequest { method: "GET", target, host, headers: &[], body: b"", close: false },
    )
}

fn drive(config: &Requests, target: &str) -> Outcome {
    let request = get(target);
    let script = move |part| Fixed::new(vec![request.clone()], part, Accepted::default());
    let ended = drive_with(config, script, |_| {});
    assert!(!ended.interrupted);
    ended
}

fn drive_with<S: Script>(
    config: &Requests,
    script: impl Fn(Part) -> S + Send + Sync + 'static,
    row: impl FnMut(&Row),
) -> Outcome {
    let wait = |time| {
        std::thread::sleep(time);
        false
    };
    let ended = drive_requests(config, Http1::new, script, row, wait).unwrap();
    assert!(ended.to_string().contains("sent"), "the summary is always there");
    ended
}

/// Asserts that each request has one result.
#[track_caller]
fn balanced(summary: &Outcome) {
    let of = summary.requests.unwrap();
    let failed: u64 = summary.errors.values().sum();
    assert_eq!(of.failed, failed, "{summary}");
    assert_eq!(summary.status.values().sum::<u64>(), of.answered, "{summary}");
    let refused = summary.errors.get("status").copied().unwrap_or(0);
    assert_eq!(of.answered, of.ok + refused, "{summary}");
}

#[test]
fn faults_are_counted_by_kind() {
    let (port, book) = start();
    for (fault, kind, keeps) in [
        ("error", "status", true),
        ("reset", "reset", false),
        ("reset_later", "reset", false),
        ("close", "closed", false),
        ("half", "closed_midway", false),
        ("truncated", "closed_midway", false),
        ("chunk", "bad_chunk", false),
        ("noise", "bad_status_line", false),
        ("head", "head_too_large", false),
        ("loop", "too_many_redirects", true),
    ] {
        let (before, accepted) = (book.received(), book.accepted());
        let config = Requests { redirects: 4, ..config(port, 3, 30) };
        let summary = drive(&config, &format!("/{fault}"));
        balanced(&summary);
        let of = summary.requests.unwrap();
        assert_eq!((of.sent, of.ok, of.failed, of.unfinished), (30, 0, 30, 0), "{fault}");
        assert_eq!(summary.errors.get(kind), Some(&30), "{fault}: {summary}");
        assert_eq!(of.redirects, if fault == "loop" { 120 } else { 0 }, "{fault}");
        // A server that ends every connection without an answer may expect TLS or HTTP/2: each is tried once
        // more, HTTP/2 by what looks like a request.
        let tried = u64::from(["reset", "closed"].contains(&kind));
        assert_eq!(book.received() - before, of.sent + of.redirects + tried, "{fault}");
        let opened = summary.connections.opened.unwrap();
        assert_eq!(opened, if keeps { 3 } else { 30 }, "{fault}: {summary}");
        assert_eq!(book.accepted() - accepted, opened + 2 * tried, "{fault}");
    }
}

#[test]
fn mixed_faults_are_counted_by_kind() {
    let (port, book) = start();
    let summary = drive(&config(port, 8, 600), "/mix");
    balanced(&summary);
    assert_eq!((summary.requests.unwrap().sent, book.received()), (600, 600), "{summary}");
    let error = |kind: &str| summary.errors.get(kind).copied().unwrap_or(0);
    for what in MIX {
        assert!(book.did(what) >= 50, "{what}");
    }
    let ok = book.did("ok") + book.did("length") + book.did("loop");
    assert_eq!(summary.requests.unwrap().ok, ok, "{summary}");
    assert_eq!(summary.connections.unasked.unwrap(), book.did("length"), "{summary}");
    for (kind, faults) in [
        ("status", &["error"][..]),
        ("reset", &["reset"]),
        ("closed", &["close"]),
        ("closed_midway", &["truncated", "half"]),
        ("bad_chunk", &["chunk"]),
        ("bad_status_line", &["noise"]),
        ("head_too_large", &["head"]),
    ] {
        let did = faults.iter().map(|fault| book.did(fault)).sum::<u64>();
        assert_eq!(error(kind), did, "{kind}: {summary}");
    }
    assert_eq!(summary.status[&302], book.did("loop"), "left as answers");
}

#[test]
fn endless_answers_time_out() {
    let (port, book) = start();
    for fault in ["silent", "dribble", "interim"] {
        let before = book.received();
        let config = Requests { timeout: Duration::from_millis(700), ..config(port, 2, 4) };
        let began_ns = process::now_ns();
        let summary = drive(&config, &format!("/{fault}"));
        balanced(&summary);
        assert_eq!(summary.errors.get("timeout"), Some(&4), "{fault}: {summary}");
        assert_eq!(book.received() - before, summary.requests.unwrap().sent, "{fault}");
        assert!(process::now_ns() - began_ns < PATIENCE.as_nanos() as u64, "{fault}");
    }
}

#[test]
fn refused_connects_fail_every_request_and_the_run_ends() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let summary = drive(&config(port, 4, 40), "/");
    balanced(&summary);
    assert_eq!(
        (summary.requests.unwrap().sent, summary.requests.unwrap().failed),
        (0, 40),
        "{summary}"
    );
    assert_eq!(summary.errors.get("connect_refused"), Some(&40), "{summary}");
    assert_eq!((summary.connections.opened.unwrap(), summary.connections.failed), (0, 40));
    assert_eq!((summary.latency, summary.per_second.unwrap()), (None, 0.0));
}

#[test]
fn connections_are_reused_unless_configured() {
    let (port, book) = start();
    for path in ["/ok", "/chunked"] {
        let before = book.accepted();
        let summary = drive(&config(port, 4, 200), path);
        assert_eq!(
            (summary.requests.unwrap().ok, summary.connections.opened.unwrap()),
            (200, 4),
            "{summary}"
        );
        assert_eq!((book.accepted() - before, summary.body_bytes.unwrap()), (4, 400));
        let before = book.accepted();
        let config = Requests { new_connections: true, ..config(port, 4, 200) };
        let summary = drive(&config, path);
        assert_eq!(
            (summary.requests.unwrap().ok, summary.connections.opened.unwrap()),
            (200, 200),
            "{summary}"
        );
        assert_eq!(book.accepted() - before, 200);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (port, book) = start();
    let config = Requests { pipeline: 8, ..config(port, 2, 1_000) };
    let summary = drive(&config, "/ok");
    balanced(&summary);
    assert_eq!((summary.requests.unwrap().ok, book.accepted()), (1_000, 2), "{summary}");
    // Requests pipelined behind an answer that ends the connection fail.
    let summary = drive(&config, "/truncated");
    balanced(&summary);
    let of = summary.requests.unwrap();
    assert_eq!((of.ok, of.failed), (0, 1_000), "{summary}");
}

#[test]
fn redirects_are_followed_if_configured() {
    let (port, book) = start();
    let summary = drive(&Requests { redirects: 1, ..config(port, 2, 50) }, "/redirect");
    balanced(&summary);
    let of = summary.requests.unwrap();
    assert_eq!((of.sent, of.redirects, of.ok), (50, 50, 50), "{summary}");
    assert_eq!((book.did("redirect"), book.did("ok")), (50, 50));
    assert_eq!(summary.status.keys().copied().collect::<Vec<_>>(), [200]);
}

#[test]
fn stall_shows_in_latency_and_not_in_service_time() {
    let (port, book) = start();
    let over = AtomicBool::new(false);
    let summary = std::thread::scope(|scope| {
        scope.spawn(|| {
            while book.received() < 100 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let stalled = book.stall.lock().unwrap();
            std::thread::sleep(Duration::from_secs(1));
            drop(stalled);
            over.store(true, Ordering::SeqCst);
        });
        let pace = Pace::Rate(200);
        drive(&Requests { pace, ..config(port, 1, 600) }, "/ok")
    });
    assert!(over.load(Ordering::SeqCst));
    balanced(&summary);
    assert_eq!(summary.requests.unwrap().ok, 600, "{summary}");
    let (latency, service) = (summary.latency.unwrap(), summary.service_time.unwrap());
    // A third of the requests were due while it stalled or behind that; one was under way.
    assert!(latency.p90_ms > 300.0 && latency.max_ms >= 900.0, "{summary}");
    assert!(service.p99_ms < 300.0 && service.max_ms >= 900.0, "{summary}");
    assert!(summary.scheduling_error.is_some_and(|error| error.p50_ms < 100.0), "{summary}");
}

/// Each request of a rate has its send lag, also those for which no user was free.
#[test]
fn send_lag_is_timed_for_every_request_of_a_rate() {
    let (port, book) = start();
    let summary = std::thread::scope(|scope| {
        scope.spawn(|| {
            while book.received() < 100 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _stalled = book.stall.lock().unwrap();
            std::thread::sleep(Duration::from_millis(500));
        });
        drive(&Requests { pace: Pace::Rate(200), ..config(port, 1, 300) }, "/ok")
    });
    let lag = summary.send_lag.unwrap();
    assert_eq!(lag.count, 300, "{summary}");
    assert!(lag.max_ms > 300.0, "the only user was busy: {summary}");
    let of_generator = summary.scheduling_error.unwrap();
    assert!(of_generator.count < lag.count, "{summary}");
    assert!(summary.to_string().contains("send lag"), "{summary}");
    let closed = drive(&config(port, 1, 10), "/ok");
    assert!(closed.send_lag.is_none(), "nothing is due in the closed loop: {closed}");
}

#[test]
fn first_byte_is_timed_apart_from_the_end_of_an_answer() {
    let (port, _book) = start();
    let summary = drive(&config(port, 2, 6), "/slow_body");
    balanced(&summary);
    let (first, whole) = (summary.time_to_first_byte.unwrap(), summary.service_time.unwrap());
    assert_eq!((first.count, whole.count), (6, 6), "{summary}");
    let slow_ms = http_server::SLOW_BODY.as_secs_f64() * 1e3;
    assert!(whole.p50_ms >= slow_ms && whole.p50_ms - first.p50_ms > slow_ms / 2.0, "{summary}");
    assert!(summary.to_string().contains("first byte"), "{summary}");
    let summary = drive(&config(port, 2, 100), "/ok");
    let (first, whole) = (summary.time_to_first_byte.unwrap(), summary.service_time.unwrap());
    assert_eq!((first.count, whole.count), (100, 100), "{summary}");
    assert!(first.max_ms <= whole.max_ms, "{summary}");
}

#[test]
fn frozen_server_fails_requests_in_flight() {
    let (port, book) = start();
    let over = AtomicBool::new(false);
    let summary = std::thread::scope(|scope| {
        scope.spawn(|| {
            while book.received() < 100 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _frozen = book.stall.lock().unwrap();
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let duration = Some(Duration::from_millis(700));
        let summary = drive(&Requests { duration, requests: None, ..config(port, 4, 0) }, "/ok");
        over.store(true, Ordering::SeqCst);
        summary
    });
    balanced(&summary);
    let of = summary.requests.unwrap();
    assert!(of.ok >= 90 && of.sent == of.ok + 4 && book.received() >= of.sent, "{summary}");
    assert_eq!((of.failed, of.unfinished, summary.errors["unfinished"]), (4, 4, 4), "{summary}");
    assert_eq!((summary.error_count(), summary.due_count()), (4, of.sent));
    assert_eq!(summary.reasons, ["4 requests failed"]);
    // The grace period without answers is not part of the measured time.
    assert!((0.7..2.0).contains(&summary.seconds.unwrap()), "{summary}");
}

#[test]
fn slow_answers_are_awaited_at_the_end() {
    let (port, book) = start();
    let duration = http_server::SLOW + Duration::from_millis(50);
    let timed = Requests { duration: Some(duration), ..config(port, 1, 0) };
    let summary = drive(&Requests { requests: None, ..timed }, "/slow");
    balanced(&summary);
    // The second answer takes longer than the grace period without a slow answer.
    assert_eq!(summary.requests.unwrap().ok, book.received(), "{summary}");
    assert!(summary.reasons.is_empty(), "{summary}");
    // It came after the end: it neither counts in the rate nor prolongs its time.
    let of = summary.requests.unwrap();
    assert_eq!((of.answered, of.stragglers), (2, 1), "{summary}");
    let seconds = duration.as_secs_f64();
    assert_eq!((summary.seconds, summary.per_second), (Some(seconds), Some(1.0 / seconds)));
}

#[test]
fn seconds_are_the_time_that_passed_and_not_until_the_last_answer() {
    let (port, _book) = start();
    let timeout = Duration::from_millis(400);
    let config = Requests { timeout, ..config(port, 2, 2) };
    // One user is answered at once, the other never.
    let script = |part| Fixed::new(vec![get("/ok"), get("/silent")], part, Accepted::default());
    let summary = drive_with(&config, script, |_| {});
    balanced(&summary);
    assert_eq!((summary.requests.unwrap().ok, summary.errors["timeout"]), (1, 1), "{summary}");
    assert!(summary.seconds.unwrap() >= 0.4 && summary.per_second.unwrap() <= 2.5, "{summary}");
}

#[test]
fn a_rate_ends_with_the_number_of_its_requests() {
    let (port, book) = start();
    let pace = Pace::Rate(50);
    let began_ns = process::now_ns();
    let summary = drive(&Requests { pace, ..config(port, 4, 3) }, "/ok");
    assert_eq!((summary.requests.unwrap().ok, book.received()), (3, 3), "{summary}");
    assert!(
        process::now_ns() - began_ns < PATIENCE.as_nanos() as u64,
        "nothing is left to wait for"
    );
}

#[test]
fn open_model_sends_due_requests_and_counts_unsent_ones() {
    let (port, book) = start();
    let pace = Pace::Rate(500);
    let (duration, warm_up) = (Some(Duration::from_secs(1)), Duration::from_millis(400));
    let open = Requests { pace, duration, warm_up, requests: None, ..config(port, 20, 0) };
    let summary = drive(&open, "/ok");
    balanced(&summary);
    let of = summary.requests.unwrap();
    assert_eq!((of.ok + of.unsent, of.warm_up), (500, 200), "{summary}");
    assert_eq!(book.received(), of.sent + of.warm_up);
    assert!(summary.seconds.unwrap() >= 1.0, "the time it was given: {summary}");
    // One connection that waits forever cannot send anything else.
    let summary = drive(&Requests { connections: 1, ..open }, "/silent");
    let of = summary.requests.unwrap();
    assert_eq!((of.ok, of.unsent >= 499), (0, true), "{summary}");
    assert_eq!((of.failed + of.unsent, summary.error_count()), (500, 500), "{summary}");
    assert_eq!(summary.due_count(), 500);
}

#[test]
fn a_staircase_of_users_and_of_rates_ends_by_itself() {
    let (port, book) = start();
    let step = |ms, connections| Stage { time: Duration::from_millis(ms), connections };
    let users = vec![step(0, 2), step(300, 2), step(0, 6), step(300, 6), step(200, 0)];
    let mut open = Vec::new();
    let request = get("/ok");
    let staged = Requests { pace: Pace::Users(users), requests: None, ..config(port, 6, 0) };
    let script = move |part| Fixed::new(vec![request.clone()], part, Accepted::default());
    let ended = drive_with(&staged, script, |row| open.push(row.open));
    balanced(&ended);
    assert!(ended.requests.unwrap().ok > 0 && ended.requests.unwrap().failed == 0);
    assert!(book.accepted() >= 6, "the second step has more users");
    let rates = vec![step(0, 100), step(500, 100), step(500, 300)];
    let staged = Requests { pace: Pace::Rates(rates), requests: None, ..config(port, 6, 0) };
    let summary = drive(&staged, "/ok");
    balanced(&summary);
    assert_eq!(summary.requests.unwrap().ok + summary.requests.unwrap().unsent, 150, "{summary}");
}

#[test]
fn interrupted_run_has_a_summary() {
    let (port, book) = start();
    let request = get("/ok");
    let script = move |part| Fixed::new(vec![request.clone()], part, Accepted::default());
    let endless =
        Requests { duration: Some(Duration::from_secs(3_600)), ..config(port, 2, 1 << 40) };
    let enough = |time| {
        std::thread::sleep(time);
        book.received() > 100
    };
    let ended = drive_requests(&endless, Http1::new, script, |_| {}, enough).unwrap();
    balanced(&ended);
    assert!(ended.interrupted);
    assert_eq!(ended.requests.unwrap().sent, book.received(), "{}", ended);
}

/// Alternates two requests and checks the answer to the first.
struct Steps {
    requests: [Request; 2],
    at: Vec<usize>,
}

impl Script for Steps {
    fn next(&mut self, user: u32, _: u64) -> Step {
        let at = &mut self.at[user as usize];
        *at += 1;
        match *at {
            1..=4 => Step::Send,
            5 => Step::Wait(Duration::from_millis(5)),
            6 => Step::Send,
            _ => Step::End,
        }
    }

    fn request(&mut self, user: u32) -> &Request {
        &self.requests[self.at[user as usize] % 2]
    }

    fn wants(&self, user: u32) -> Wants {
        if self.at[user as usize] % 2 == 1 { Wants::Body(1) } else { Wants::Nothing }
    }

    fn answered(&mut self, user: u32, answer: &Answer<'_>) -> Option<Failure> {
        let wanted = self.at[user as usize] % 2 == 1;
        let header = answer.header("content-length").map(<[u8]>::to_vec);
        let expected = wanted.then(|| b"2".to_vec());
        let body: &[u8] = if wanted { b"o" } else { b"" };
        let right = answer.body == body && header == expected && answer.body_bytes == 2;
        let times = answer.times;
        let ordered = times.due_ns <= times.sent_ns
            && times.sent_ns <= times.first_ns
            && times.first_ns <= times.done_ns;
        (!right || !ordered || times.sent_ns == 0).then_some(Failure::Check)
    }
}

#[test]
fn a_script_sees_what_it_wants_and_ends_the_run() {
    let (port, book) = start();
    let script = |part: Part| Steps {
        requests: [get("/ok?even"), get("/ok?odd")],
        at: vec![0; part.users as usize],
    };
    let summary = drive_with(&config(port, 3, 1_000), script, |_| {});
    balanced(&summary);
    assert_eq!((summary.requests.unwrap().ok, summary.errors.len()), (15, 0), "{summary}");
    assert_eq!(book.received(), 15);
}

#[test]
fn tcp_driver_runs_like_http() {
    let (port, book) = start();
    let endpoint = Endpoint::parse_tcp(&format!("tcp://127.0.0.1:{port}")).unwrap();
    let run = |path: &str, expect: Expect| {
        let config = Requests { endpoints: vec![endpoint.clone()], ..config(port, 2, 20) };
        let request = Request::raw(0, format!("GET {path} HTTP/1.1\r\n\r\n").into_bytes());
        let script = move |part| Fixed::new(vec![request.clone()], part, Accepted::default());
        let wait = |time| {
            std::thread::sleep(time);
            false
        };
        let driver = move || Tcp::new(expect.clone());
        drive_requests(&config, driver, script, |_| {}, wait).unwrap()
    };
    let right = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec();
    let summary = run("/ok", Expect::Bytes(right.clone()));
    assert_eq!(
        (summary.requests.unwrap().ok, summary.connections.opened.unwrap()),
        (20, 2),
        "{summary}"
    );
    assert_eq!(summary.body_bytes.unwrap(), 20 * right.len() as u64);
    let summary = run("/error", Expect::Bytes(right));
    assert_eq!(summary.errors.get("unexpected"), Some(&20), "{summary}");
    let summary = run("/half", Expect::Length(1_000));
    assert_eq!(summary.errors.get("closed_midway"), Some(&20), "{summary}");
    assert_eq!(book.received(), 60);
}

#[test]
fn json_has_the_names_of_the_schema() {
    let (port, _book) = start();
    let json = serde_json::to_value(drive(&config(port, 2, 20), "/ok")).unwrap();
    for name in ["ok", "failed"] {
        assert!(json["requests"][name].is_u64(), "{name}: {json}");
    }
    for name in ["seconds", "per_second"] {
        assert!(json[name].is_f64(), "{name}: {json}");
    }
    for times in ["latency", "service_time"] {
        for name in ["p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms"] {
            assert!(json[times][name].is_f64(), "{times}.{name}: {json}");
        }
    }
    assert_eq!((&json["status"]["200"], &json["connections"]["opened"]), (&20.into(), &2.into()));
    assert_eq!(json["errors"], serde_json::json!({}));
    assert_eq!(json["connections"]["failed"], 0);
}

#[test]
fn inconsistent_configurations_are_rejected() {
    for (wrong, expected) in [
        (Requests { pipeline: 0, ..config(1, 1, 1) }, "pipelining"),
        (Requests { pipeline: 2, redirects: 1, ..config(1, 1, 1) }, "redirects"),
        (Requests { pipeline: 2, new_connections: true, ..config(1, 1, 1) }, "persistent"),
        (Requests { requests: None, ..config(1, 1, 1) }, "no end is set"),
        (Requests { endpoints: Vec::new(), ..config(1, 1, 1) }, "URLs"),
    ] {
        let request = get("/");
        let script = move |part| Fixed::new(vec![request.clone()], part, Accepted::default());
        let ended = drive_requests(&wrong, Http1::new, script, |_| {}, |_| false);
        let error = ended.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
