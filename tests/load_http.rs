//! `standfast load http://…`, `https://…` and `tcp://…` as its users run it: figures and exit codes,
//! thresholds, files, the screen; targets that are dead, refuse, or use another protocol. Exact counts
//! against a recording server are in `crates/load/tests/requests.rs`.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::executable::{self, Finished, Running, standfast};
use crate::harness::recorder::Recorder;
use crate::harness::server::Server;
use crate::harness::tls::Authority;
use crate::harness::upstream::Upstream;
use crate::harness::web::Web;
use crate::harness::{Scratch, eventually};

/// 200 requests over 4 connections, with JSON on standard output.
fn load(url: &str, more: &[&str]) -> Finished {
    let flags = ["load", url, "--connections", "4", "--requests", "200", "--json", "-"];
    executable::run(&[&flags[..], more].concat())
}

fn fails_by(finished: &Finished, kind: &str) {
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(finished.json()["errors"], json!({kind: 200}), "{finished:?}");
    assert!(finished.stderr.contains("200 requests failed"), "stderr shows it too: {finished:?}");
}

/// The same of a target that is never reached, which ends a run that takes longer than a second.
fn never_reached(finished: &Finished, kind: &str) {
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let errors = &finished.json()["errors"];
    let count = errors[kind].as_u64().unwrap_or_default();
    assert!((1..=200).contains(&count) && errors.as_object().unwrap().len() == 1, "{finished:?}");
}

#[test]
fn requests_are_counted_timed_and_checked_against_thresholds() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let finished = load(&url, &["--fail", "errors<0.1%", "--fail", "p95<1m"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let said = finished.json();
    assert_eq!(said["requests"]["ok"], 200, "{said}");
    assert_eq!(said["status"], json!({"200": 200}), "{said}");
    assert_eq!((&said["connections"]["opened"], &said["errors"]), (&json!(4), &json!({})));
    assert_eq!(said["thresholds"][0]["met"], true, "{said}");
    for text in [
        "200 ok",
        "latency",
        "service time",
        "result        thresholds met\n",
        "errors 0.000 % < 0.1 %: met",
    ] {
        assert!(finished.stderr.contains(text), "no {text:?}: {finished:?}");
    }
    let metric = server.metrics()["standfast_requests_total"];
    assert_eq!(metric, 200.0, "the server counts the same");
    // Only thresholds decide.
    let missed = load(&url, &["--fail", "rate>100M"]);
    assert_eq!(missed.code, Some(1), "{missed:?}");
    let nowhere = format!("http://{}/nowhere", server.listen);
    fails_by(&load(&nowhere, &[]), "status");
    for more in [["--accept", "4xx,200"], ["--fail", "errors<100%"]] {
        let finished = load(&nowhere, &more);
        assert_eq!(finished.code, Some(i32::from(more[0] == "--fail")), "{finished:?}");
        assert_eq!(finished.json()["status"], json!({"404": 200}));
    }
}

#[test]
fn open_model_keeps_and_reports_the_rate() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let flags = ["--rate", "200", "--warm-up", "200ms", "--connections", "20", "--plain"];
    let run = ["load", &url, "--duration", "1s", "--json", "-"];
    let finished = executable::run(&[&run[..], &flags].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let said = finished.json();
    assert_eq!((&said["requests"]["ok"], &said["requests"]["warm_up"]), (&json!(200), &json!(40)));
    assert!(said["scheduling_error"]["p999_ms"].is_f64(), "{said}");
    // A server that answers at once needs few connections. A pause of this machine may need all.
    let opened = said["connections"]["opened"].as_u64().expect("a count");
    let says_why = "of up to 20: one opens when a request is due and none is free\n";
    assert_eq!(finished.stderr.contains(says_why), opened < 20, "{opened}: {finished:?}");
    assert!(finished.stderr.contains("requests"), "rows name the phase: {finished:?}");
}

fn met(said: &Value) -> Vec<bool> {
    let outcomes = said["thresholds"].as_array().unwrap().iter();
    outcomes.map(|outcome| outcome["met"].as_bool().unwrap()).collect()
}

/// Runs the command line, split at spaces, with JSON on standard output.
fn run(line: &str) -> (Finished, Value) {
    let finished = executable::run(&line.split(' ').collect::<Vec<_>>());
    let said = finished.json();
    (finished, said)
}

#[test]
fn silent_server_meets_no_error_threshold() {
    // The target only accepts connections.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", deaf.local_addr().unwrap());
    let line = format!("load {url} --connections 2 --duration 200ms --json - --fail");
    let (finished, said) = run(&format!("{line} errors<99.9%"));
    assert_eq!((finished.code, &said["thresholds"][0]["met"]), (Some(1), &json!(false)), "{said}");
    assert_eq!(
        (&said["errors"], &said["requests"]["failed"]),
        (&json!({"unfinished": 2}), &json!(2))
    );
    let (finished, said) = run(&format!("{line} failed<2"));
    assert_eq!((finished.code, &said["thresholds"][0]["value"]), (Some(1), &json!(2.0)), "{said}");
    // Two errors are allowed, but a run without any answer fails every threshold.
    let (finished, said) = run(&format!(
        "{line} errors<9 --fail failed<9 --fail closed<1 --fail rate<1M --fail p99<1h --fail max>0"
    ));
    assert_eq!((finished.code, &said["thresholds"][0]["value"]), (Some(1), &json!(2.0)), "{said}");
    assert_eq!(met(&said), [false; 6], "{said}");
    assert!(finished.stderr.contains("errors 2 < 9: MISSED: nothing was answered"));
}

#[test]
fn nothing_is_known_to_be_lost_without_messages() {
    let web = Web::start(|_| (200, Vec::new(), "ok".to_owned()));
    let line = format!("load http://{}/ --requests 10 --json - --fail lost==0", web.address);
    let (finished, said) = run(&line);
    let lost = &said["thresholds"][0];
    assert_eq!((&lost["met"], &lost["value"]), (&json!(false), &json!(null)), "{said}");
    assert_eq!(finished.code, Some(1), "{finished:?}");
}

#[test]
fn missed_rate_falls_short_regardless_of_thresholds() {
    let slow = Web::start(|_| {
        std::thread::sleep(Duration::from_millis(50));
        (200, Vec::new(), "ok".to_owned())
    });
    let url = format!("http://{}/", slow.address);
    let line = format!("load {url} --connections 1 --duration 500ms --json - --rate 200");
    let (finished, said) =
        run(&format!("{line} --fail errors<100% --fail p99<1m --fail failed<1k"));
    assert_eq!(
        (&said["generator"]["rate_missed"], finished.code),
        (&json!(true), Some(1)),
        "{said}"
    );
    let met = |at: usize| &said["thresholds"][at]["met"];
    assert!(met(0) == &json!(true) && met(2) == &json!(true), "{said}");
    // Most requests were never sent, which counts as a latency without end.
    assert_eq!((met(1), &said["thresholds"][1]["value"]), (&json!(false), &json!(null)), "{said}");
    assert!(finished.stderr.contains("the requested rate was not reached"), "{finished:?}");
    let of = &said["requests"];
    let due = ["ok", "failed", "unsent"].map(|name| of[name].as_u64().unwrap());
    assert_eq!(due.iter().sum::<u64>(), 100, "{said}");
    // Unsent requests count as errors and as a share of the due ones.
    let (_, said) = run(&format!("{line} --fail errors<50%"));
    assert_eq!(said["thresholds"][0]["met"], false, "{said}");
}

#[test]
fn run_without_answers_compares_as_worse() {
    let server = Server::start(&[]);
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [server.listen, deaf.local_addr().unwrap()];
    let compare = || {
        let [good, bad] = addresses.map(|address| {
            let file = Scratch::new(&format!("{}.json", address.port()), "");
            let url = format!("http://{address}/health");
            let flags = ["--connections", "4", "--rate", "100", "--duration", "300ms"];
            executable::run(&[&["load", &url, "--json", file.path()], &flags[..]].concat());
            file
        });
        executable::run(&["load", "compare", good.path(), bad.path(), "--json", "-"])
    };
    // Runs that a busy machine saturated are not compared.
    let compared = (0..20).map(|_| compare()).find(|one| !one.stderr.contains("saturated"));
    let compared = compared.expect("a machine that is not always busy");
    let said = compared.json();
    assert_eq!((compared.code, &said["errors"]["worse"]), (Some(1), &json!(true)), "{compared:?}");
    assert_eq!(said["errors"]["after"], json!([30, 30]), "{compared:?}");
}

#[test]
fn https_urls_use_tls() {
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
    assert_eq!(finished.json()["connections"]["opened"], 200);
    let other = Authority::new();
    never_reached(&load(&url, &["--ca", &other.path("ca.pem")]), "tls");
    let plain = Server::start(&[]);
    never_reached(&load(&format!("https://{}/health", plain.listen), &["--insecure"]), "tls");
}

#[test]
fn tcp_sends_the_given_bytes() {
    let server = Server::start(&[]);
    let url = format!("tcp://{}", server.listen);
    let data = r"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let finished = load(&url, &["--data", data, "--expect-regex", r"^HTTP/1\.1 \d+ (?s:.)*ok"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    fails_by(&load(&url, &["--data", data, "--expect", "HTTP/1.0"]), "unexpected");
}

#[test]
fn result_line_names_met_and_missed_thresholds() {
    let server = Recorder::start(|asked| {
        let status = if asked.target == "/x" { 500 } else { 200 };
        (status, Vec::new(), String::new())
    });
    let urls = ["/x", "/y"].map(|path| format!("http://{}{path}", server.address));
    let run = |fail: &str| {
        let flags = ["--requests", "20", "--connections", "2", "--plain", "--fail", fail];
        executable::run(&[&["load", &urls[0], &urls[1]], &flags[..]].concat())
    };
    let met = run("errors<99%");
    assert_eq!(met.code, Some(0), "{met:?}");
    assert!(met.stdout.ends_with("result        thresholds met (10 requests failed)\n"), "{met:?}");
    let missed = run("errors<9%");
    assert_eq!(missed.code, Some(1), "{missed:?}");
    let last = "result        fell short: threshold errors<9% missed; 10 requests failed\n";
    assert!(missed.stdout.ends_with(last), "{missed:?}");
}

#[test]
fn labels_name_what_was_counted() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{dead}/");
    let finished = executable::run(&["load", &url, "--requests", "9", "--connections", "3"]);
    let text = &finished.stdout;
    assert!(text.contains("9, of which 0 were sent: 0 ok, 9 failed"), "{text}");
    assert!(text.contains("in TIME_WAIT on this machine"), "{text}");
    let server = Server::start(&[]);
    let data = r"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let finished = load(&format!("tcp://{}", server.listen), &["--data", data]);
    assert_eq!(finished.json()["status"], json!({}), "tcp has no status: {finished:?}");
}

#[test]
fn html_report_shows_failed_requests() {
    let name = format!("standfast-failed-{}.html", std::process::id());
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let server = Server::start(&[]);
    let page = |path: &str, code: i32| {
        let url = format!("http://{}{path}", server.listen);
        let flags = ["load", &url, "--rate", "20", "--duration", "2200ms", "--plain", "--html"];
        let finished = executable::run(&[&flags[..], &[file.to_str().unwrap()]].concat());
        assert_eq!(finished.code, Some(code), "{finished:?}");
        fs::read_to_string(&file).unwrap()
    };
    let well = page("/health", 0);
    assert!(well.contains("No request failed.") && well.contains("Open connections"), "{well}");
    let failed = page("/nowhere", 1);
    assert!(failed.contains("requests failed") && failed.contains("Errors so far"), "{failed}");
    assert!(!failed.contains("No request failed") && !failed.contains("No connection"), "{failed}");
    fs::remove_file(file).unwrap();
}

#[test]
fn dead_and_silent_targets_are_counted_by_kind() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let deaf = ["load", &url, "--connections", "4", "--requests", "8", "--timeout", "200ms"];
    let finished = executable::run(&[&deaf[..], &["--json", "-"]].concat());
    assert_eq!(finished.json()["errors"], json!({"timeout": 8}), "{finished:?}");
    drop(listener);
    never_reached(&load(&url, &[]), "connect_refused");
}

#[test]
fn interrupted_run_prints_its_results() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let mut load = standfast(&["load", &url, "--duration", "1h", "--json", "-"]);
    let load = Running(load.stdin(Stdio::null()).spawn().unwrap());
    eventually("requests come", || server.metrics()["standfast_requests_total"] > 100.0);
    let pid = Pid::from_raw(load.0.id().try_into().unwrap());
    kill_process(pid.unwrap(), Signal::INT).unwrap();
    let finished = executable::finish(load);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    assert!(finished.stderr.contains("result        interrupted"), "{finished:?}");
    let said = finished.json();
    let sent = said["requests"]["sent"].as_f64().unwrap();
    assert_eq!(sent, server.metrics()["standfast_requests_total"], "{said}");
}

#[test]
fn run_writes_csv_and_html_report() {
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
    for text in ["ALL ANSWERED", "200 of 200 requests answered", "Latency, from due to answer"] {
        assert!(page.contains(text), "no {text:?} in {page}");
    }
    fs::remove_file(csv).unwrap();
    fs::remove_file(html).unwrap();
    let nowhere = load(&url, &["--csv", "/no/such/directory/rows.csv"]);
    assert_eq!(nowhere.code, Some(2), "{nowhere:?}");
}

#[test]
fn pipeline_sends_n_requests_before_the_first_answer() {
    let upstream = Upstream::new();
    let url = format!("http://{}/", upstream.address());
    let finished = thread::scope(|scope| {
        let run = scope.spawn(|| {
            let four = ["--pipeline", "4", "--connections", "1", "--requests", "20"];
            executable::run(
                &[&["load", &url], &four[..], &["--timeout", "5s", "--json", "-"]].concat(),
            )
        });
        let mut leg = upstream.accept();
        for _ in 0..5 {
            for _ in 0..4 {
                let head = leg.head();
                assert!(head.starts_with("GET / HTTP/1.1\r\n"), "{head}");
            }
            assert_eq!(leg.rest(), b"", "a fifth before the first is answered");
            leg.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".repeat(4));
        }
        run.join().unwrap()
    });
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(finished.json()["requests"]["ok"], 20, "{finished:?}");
    assert_eq!(finished.json()["connections"]["opened"], 1, "{finished:?}");
}

#[cfg(feature = "screen")]
#[test]
fn live_screen_shows_requests() {
    use crate::harness::terminal::Terminal;
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let terminal = Terminal::open(80, 24);
    let rate = ["load", &url, "--rate", "100", "--connections", "5", "--duration", "1h"];
    let mut running = terminal.run(&rate, &[]);
    terminal.shows(0, &["\x1b[?1049h", "▶ requests", "so far", "answers", "p99.9"]);
    terminal.press(b"\x03");
    assert_eq!(running.wait().code(), Some(130), "{}", terminal.seen());
    terminal.shows(0, &["service time"]);
}

#[test]
fn errors_name_the_invalid_flag() {
    for (line, named) in [
        ("http://127.0.0.1:1/ --hold 1s", "--hold is for ws://"),
        ("ws://127.0.0.1:1/ --requests 5", "--requests is for http://"),
        ("http://127.0.0.1:1/ --fail p99<50", "500ms"),
        ("http://127.0.0.1:1/ --fail errors<many%", "0.1%"),
        ("http://127.0.0.1:1/ --pipeline 2 --redirects 1", "redirects"),
        ("http://127.0.0.1:1/ --rates 1s:5 --rate 5", "--rate"),
        ("http://a:99999/", "http://a:99999/"),
        ("tcp://127.0.0.1:1 --expect x", "--data"),
        ("http://127.0.0.1:1/ --request 5", "--requests"),
        ("htp://127.0.0.1:1/", "did you mean http://127.0.0.1:1/?"),
        ("localhost", "expected http://localhost for requests or ws://localhost"),
        ("go-stres-http", "did you mean go-stress-http?"),
        ("http://127.0.0.1:1/ --accept 2xy", "expected 200, 2xx"),
        ("http://127.0.0.1:1/ --fail eror<1%", "did you mean errors?"),
        ("http://me:word@127.0.0.1:1/", "Authorization"),
        ("http://127.0.0.1:1/ä", "not ASCII"),
    ] {
        let words: Vec<&str> = std::iter::once("load").chain(line.split(' ')).collect();
        let finished = executable::run(&words);
        assert_eq!(finished.code, Some(2), "{line}: {finished:?}");
        assert!(finished.stderr.contains(named), "{line}: {finished:?}");
    }
}
