//! `standfast load http://…`, `https://…` and `tcp://…` as its users run it: figures and exit codes,
//! thresholds, files, the screen; targets that are dead, refuse, or speak something else. What a run
//! counts against a server that keeps book is in `crates/load/tests/requests.rs`.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::eventually;
use crate::harness::executable::{self, Finished, Running, standfast};
use crate::harness::server::Server;
use crate::harness::tls::Authority;

/// 200 requests over 4 connections, with JSON on standard output.
fn load(url: &str, more: &[&str]) -> Finished {
    let flags = ["load", url, "--connections", "4", "--requests", "200", "--json", "-"];
    executable::run(&[&flags[..], more].concat())
}

fn summary(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

fn fails_by(finished: &Finished, kind: &str) {
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(summary(finished)["errors"], json!({kind: 200}), "{finished:?}");
    assert!(finished.stderr.contains("200 requests failed"), "people are told too: {finished:?}");
}

#[test]
fn requests_are_counted_timed_and_judged() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let finished = load(&url, &["--fail", "errors<0.1%", "--fail", "p95<1m"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let said = summary(&finished);
    assert_eq!(said["requests"]["ok"], 200, "{said}");
    assert_eq!(said["status"], json!({"200": 200}), "{said}");
    assert_eq!((&said["connections"]["opened"], &said["errors"]), (&json!(4), &json!({})));
    assert_eq!(said["thresholds"][0]["met"], true, "{said}");
    for text in ["200 ok", "latency", "service time", "all answered", "errors<0.1%: 0.000, met"] {
        assert!(finished.stderr.contains(text), "no {text:?}: {finished:?}");
    }
    let metric = server.metrics()["standfast_requests_total"];
    assert_eq!(metric, 200.0, "the server says the same");
    // Thresholds alone decide.
    let missed = load(&url, &["--fail", "rate>100M"]);
    assert_eq!(missed.code, Some(1), "{missed:?}");
    let nowhere = format!("http://{}/nowhere", server.listen);
    fails_by(&load(&nowhere, &[]), "status");
    for more in [["--accept", "404"], ["--fail", "errors<100%"]] {
        let finished = load(&nowhere, &more);
        assert_eq!(finished.code, Some(i32::from(more[0] == "--fail")), "{finished:?}");
        assert_eq!(summary(&finished)["status"], json!({"404": 200}));
    }
}

#[test]
fn an_open_rate_is_held_and_told() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let flags = ["--rate", "200", "--warm-up", "200ms", "--connections", "20", "--plain"];
    let run = ["load", &url, "--duration", "1s", "--json", "-"];
    let finished = executable::run(&[&run[..], &flags].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let said = summary(&finished);
    assert_eq!((&said["requests"]["ok"], &said["requests"]["warm_up"]), (&json!(200), &json!(40)));
    assert!(said["scheduling_error"]["p999_ms"].is_f64(), "{said}");
    assert!(finished.stderr.contains("requests"), "rows name the phase: {finished:?}");
}

#[test]
fn tls_is_spoken_where_the_url_says_so() {
    let authority = Authority::new();
    authority.sign("server", &["127.0.0.1"]);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let server = Server::start(&["--tls-cert", &certificate, "--tls-key", &key]);
    let url = format!("https://{}/health", server.listen);
    let ca = authority.path("ca.pem");
    let finished = load(&url, &["--ca", &ca]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let finished = load(&url, &["--ca", &ca, "--new-connections"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(summary(&finished)["connections"]["opened"], 200);
    let other = Authority::new();
    fails_by(&load(&url, &["--ca", &other.path("ca.pem")]), "tls");
    let plain = Server::start(&[]);
    fails_by(&load(&format!("https://{}/health", plain.listen), &["--insecure"]), "tls");
}

#[test]
fn plain_tcp_speaks_what_it_is_told() {
    let server = Server::start(&[]);
    let url = format!("tcp://{}", server.listen);
    let data = r"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let finished = load(&url, &["--data", data, "--expect-regex", r"^HTTP/1\.1 \d+ (?s:.)*ok"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    fails_by(&load(&url, &["--data", data, "--expect", "HTTP/1.0"]), "unexpected");
}

#[test]
fn dead_and_silent_targets_are_told_by_kind() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let deaf = ["load", &url, "--connections", "4", "--requests", "8", "--timeout", "200ms"];
    let finished = executable::run(&[&deaf[..], &["--json", "-"]].concat());
    assert_eq!(summary(&finished)["errors"], json!({"timeout": 8}), "{finished:?}");
    drop(listener);
    fails_by(&load(&url, &[]), "connect_refused");
}

#[test]
fn an_interrupted_run_says_what_it_has() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let mut load = standfast(&["load", &url, "--duration", "1h", "--json", "-"]);
    let load = Running(load.stdin(Stdio::null()).spawn().unwrap());
    eventually("requests come", || server.metrics()["standfast_requests_total"] > 100.0);
    let pid = Pid::from_raw(load.0.id().try_into().unwrap());
    kill_process(pid.unwrap(), Signal::INT).unwrap();
    let finished = executable::finish(load);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    let said = summary(&finished);
    let sent = said["requests"]["sent"].as_f64().unwrap();
    assert_eq!(sent, server.metrics()["standfast_requests_total"], "{said}");
}

#[test]
fn a_run_leaves_rows_and_a_page() {
    let file = |name: &str| {
        let name = format!("standfast-http-{}.{name}", std::process::id());
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name).to_str().unwrap().to_owned()
    };
    let (csv, html) = (file("csv"), file("html"));
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let finished = load(&url, &["--csv", &csv, "--html", &html]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let rows = fs::read_to_string(&csv).unwrap();
    assert!(rows.starts_with("elapsed_seconds,phase,open,"), "{rows}");
    assert!(rows.lines().count() >= 2 && rows.contains(",requests,"), "{rows}");
    let page = fs::read_to_string(&html).unwrap();
    for text in ["ALL ANSWERED", "200 of 200 requests answered", "from due to answer"] {
        assert!(page.contains(text), "no {text:?} in {page}");
    }
    fs::remove_file(csv).unwrap();
    fs::remove_file(html).unwrap();
    let nowhere = load(&url, &["--csv", "/no/such/directory/rows.csv"]);
    assert_eq!(nowhere.code, Some(2), "{nowhere:?}");
}

#[cfg(feature = "screen")]
#[test]
fn the_live_screen_shows_requests_too() {
    use crate::harness::terminal::Terminal;
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let terminal = Terminal::open(80, 24);
    let rate = ["load", &url, "--rate", "100", "--connections", "5", "--duration", "1h"];
    let mut running = terminal.run(&rate, &[]);
    terminal.shows(0, &["\x1b[?1049h", "▶ requests", "errors", "none", "p99"]);
    terminal.press(b"\x03");
    assert_eq!(running.wait().code(), Some(130), "{}", terminal.seen());
    terminal.shows(0, &["service time"]);
}

#[test]
fn what_cannot_be_used_is_named() {
    for (line, named) in [
        ("http://127.0.0.1:1/ --hold 1s", "--hold is for ws://"),
        ("ws://127.0.0.1:1/ --requests 5", "--requests is for http://"),
        ("http://127.0.0.1:1/ --fail p99<50", "500ms"),
        ("http://127.0.0.1:1/ --fail errors<many%", "0.1%"),
        ("http://127.0.0.1:1/ --pipeline 2 --redirects 1", "redirects"),
        ("http://127.0.0.1:1/ --rates 1s:5 --rate 5", "--rate"),
        ("http://no-such-host.invalid/", "no-such-host.invalid"),
        ("tcp://127.0.0.1:1 --expect x", "--data"),
        ("http://127.0.0.1:1/ --request 5", "--requests"),
    ] {
        let words: Vec<&str> = std::iter::once("load").chain(line.split(' ')).collect();
        let finished = executable::run(&words);
        assert_eq!(finished.code, Some(2), "{line}: {finished:?}");
        assert!(finished.stderr.contains(named), "{line}: {finished:?}");
    }
}
