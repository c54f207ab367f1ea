//! The summaries of `load` and `prove` as people read them: units, thousands, percentiles in columns, the
//! distribution, a row per stage, and the cause of a failure in the first line. JSON has plain numbers.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::executable::{self, Finished, Running, standfast};
use crate::harness::server::Server;
use crate::harness::terminal::Terminal;

/// A run with JSON on standard output, and so its text on standard error.
fn load(words: &[&str]) -> (Finished, Value) {
    let finished = executable::run(&[&["load"], words, &["--plain", "--json", "-"]].concat());
    let document = finished.json();
    (finished, document)
}

/// The text after the rows of each second.
fn summary(finished: &Finished) -> &str {
    let text = &finished.stderr;
    let titles = ["\nrequests      ", "\nconnections   "];
    let at = titles.into_iter().find_map(|title| text.find(title));
    &text[at.map_or(0, |at| at + 1)..]
}

/// The lines that begin with a title and have figures in columns.
fn columns<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.trim_start().starts_with(title));
    let line = line.unwrap_or_else(|| panic!("no {title:?} in {text}"));
    line.trim_start()
        .trim_start_matches(title)
        .split("  ")
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
        .collect()
}

#[test]
fn requests_have_units_thousands_percentiles_and_a_distribution() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let words =
        ["--connections", "4", "--requests", "12000", "--fail", "p99<1m", "--fail", "failed<2k"];
    let (finished, document) = load(&[&[url.as_str()], &words[..]].concat());
    let text = summary(&finished);
    assert!(text.starts_with("requests      12,000 sent: 12,000 ok, 0 failed\n"), "{text}");
    assert!(text.contains("  status      200: 12,000\n"), "{text}");
    assert!(text.contains("threshold     failed 0 < 2,000: met\n"), "{text}");
    let threshold = text.lines().find(|line| line.starts_with("threshold     p99 ")).unwrap();
    assert!(threshold.ends_with("s < 60 s: met"), "{threshold}");
    // The same numbers, plain.
    assert_eq!(document["requests"]["ok"], 12_000, "{document}");
    assert!(document["thresholds"][0]["value"].is_number(), "{document}");
    let percentiles = ["p50", "p90", "p95", "p99", "p99.9", "max"];
    let head = text.lines().find(|line| line.contains("p99.9")).unwrap();
    assert_eq!(head.split_whitespace().collect::<Vec<_>>(), percentiles);
    let cells = columns(text, "latency");
    assert_eq!(cells.len(), percentiles.len(), "{cells:?}");
    assert!(cells.iter().all(|cell| cell.ends_with(" ms") || cell.ends_with(" s")), "{cells:?}");
    // In a pipe its bars are ASCII, and it counts every answer.
    let rows: Vec<&str> = text.lines().filter(|line| line.contains(" %  ")).collect();
    assert!(
        (1..=13).contains(&rows.len()) && rows[0].starts_with("  distribution  below "),
        "{text}"
    );
    assert!(
        rows.iter().any(|row| row.ends_with("######")) && rows.iter().all(|row| row.is_ascii()),
        "{text}"
    );
    let counts = rows.iter().map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let percent = words.iter().position(|word| *word == "%").unwrap();
        words[percent - 2].replace(',', "").parse::<u64>().unwrap()
    });
    assert_eq!(counts.sum::<u64>(), 12_000, "{text}");
    assert!(text.lines().count() <= 45, "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_terminal_with_utf_8_has_blocks() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let line = ["load", &url, "--requests", "200", "--plain"];
    for (variables, is_ascii) in [
        (&[("LC_ALL", "C.UTF-8")][..], false),
        (&[("LC_ALL", "C")], true),
        (&[("LC_ALL", "C.UTF-8"), ("NO_COLOR", "1")], true),
    ] {
        let terminal = Terminal::open(80, 24);
        let mut running = terminal.run(&line, variables);
        assert_eq!(running.wait().code(), Some(0), "{}", terminal.seen());
        terminal.shows(0, &["distribution", "result "]);
        let seen = terminal.seen();
        assert_eq!(seen.contains("████"), !is_ascii, "{variables:?}: {seen}");
        assert_eq!(seen.contains("####"), is_ascii, "{variables:?}: {seen}");
    }
}

#[test]
fn each_stage_has_a_row() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let (finished, document) = load(&[&url, "--stages", "0:2,1s:2,0:6,1s:6"]);
    let stages = document["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2, "steps have no row: {document}");
    let sum = |of: &str| stages.iter().map(|stage| stage[of].as_u64().unwrap()).sum::<u64>();
    assert_eq!((&stages[0]["target"], &stages[1]["target"]), (&json!(2), &json!(6)));
    // Those that came after the last row are in no stage.
    let answered = document["requests"]["answered"].as_u64().unwrap();
    assert!(sum("answered") <= answered && sum("answered") + 10 > answered, "{document}");
    for stage in stages {
        let [rate, most] = ["per_second", "per_second_most"].map(|of| stage[of].as_f64().unwrap());
        assert!(rate > 0.0 && most >= rate * 0.99, "{stage}");
        assert!(stage["latency"]["p95_ms"].as_f64() > Some(0.0), "{stage}");
    }
    let text = summary(&finished);
    assert!(text.contains("stages          target  answers/s    at most      p50"), "{text}");
    assert!(
        text.contains("\n  1      1 s         2 ") && text.contains("\n  2      1 s         6 "),
        "{text}"
    );
    let url = format!("ws://{}/echo", server.listen);
    let (finished, document) = load(&[&url, "--stages", "1s:30,1s:5", "--heartbeat", "500ms"]);
    let text = summary(&finished);
    assert!(text.contains("stages          target   opened/s  most open      p50"), "{text}");
    let stages = &document["stages"];
    assert_eq!((&stages[0]["target"], &stages[1]["target"]), (&json!(30), &json!(5)), "{document}");
    let opened = [0, 1].map(|at| stages[at]["opened"].as_u64().unwrap());
    assert!(opened[0] >= 20 && opened[0] + opened[1] == 30, "{document}");
    assert!(stages[0]["answered"].as_u64() > Some(0), "pongs: {document}");
    assert!(stages[0]["open_most"].as_u64() >= Some(20), "{document}");
    let (_, document) = load(&[&url, "--connections", "2", "--hold", "0"]);
    assert_eq!(document.get("stages"), None, "without stages there is no such field");
}

#[test]
fn the_first_line_names_the_true_cause() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for scheme in ["http", "ws"] {
        let url = format!("{scheme}://{closed}/");
        let finished = executable::run(&["load", &url, "--plain"]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let first = finished.stdout.lines().next().unwrap();
        let said = format!("NOT REACHED   connection refused by {closed} (is the server running?)");
        assert_eq!(first, said, "{finished:?}");
        assert!(!finished.stdout.contains("SATURATED"), "{finished:?}");
    }
    // A server that rejects every handshake is reached.
    let server = Server::start(&[]);
    let url = format!("ws://{}/no/such/path", server.listen);
    let finished = executable::run(&["load", &url, "--connections", "3", "--plain"]);
    let first = finished.stdout.lines().next().unwrap();
    assert_eq!(first, "NO CONNECTION no connection opened: status_404 3", "{finished:?}");
}

#[test]
fn heartbeats_that_were_not_due_are_named() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let words = [url.as_str(), "--connections", "50", "--hold", "1s", "--heartbeat", "1h"];
    let (finished, document) = load(&words);
    let heartbeats = &document["heartbeats"];
    let [sent, not_due] = ["sent", "not_due_sockets"].map(|of| heartbeats[of].as_u64().unwrap());
    assert_eq!(sent + not_due, 50, "{document}");
    assert!(finished.stderr.contains("not yet due on "), "{finished:?}");
    assert_eq!((finished.code, &heartbeats["unanswered_sockets"]), (Some(0), &json!(0)));
    let (finished, document) =
        load(&[&url, "--connections", "2", "--hold", "1s", "--heartbeat", "0"]);
    assert_eq!(document["heartbeats"]["not_due_sockets"], Value::Null, "{document}");
    assert!(!finished.stderr.contains("heartbeats"), "{finished:?}");
}

#[test]
fn fan_outs_have_messages_per_second() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/topics/news", server.listen);
    let words =
        ["--connections", "20", "--fanout", "50", "--messages", "100", "--publish-by-socket"];
    let (finished, document) = load(&[&[url.as_str()], &words[..]].concat());
    let text = summary(&finished);
    assert!(
        text.contains("publications  100 to 20 receivers, 2,000 of 2,000 received\n"),
        "{text}"
    );
    let line = text.lines().find(|line| line.starts_with("messages      ")).unwrap();
    let rate = line.trim_start_matches("messages      ").split(' ').next().unwrap();
    let rate: f64 = rate.replace(',', "").parse().unwrap();
    let published = document["broadcast"]["reached_rate"].as_f64().unwrap();
    assert!((rate / (published * 20.0) - 1.0).abs() < 0.01, "{rate}: {document}");
    assert!(text.contains("\n  from due      below "), "the distribution: {text}");
}

#[test]
fn an_interrupted_proof_tells_the_last_sample() {
    let words =
        ["--connections", "1200", "--hold", "1h", "--heartbeat", "1h", "--plain", "--json", "-"];
    let mut proof = Running(standfast(&[&["prove"], &words[..]].concat()).spawn().unwrap());
    let mut lines = BufReader::new(proof.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("holding")), "the hold begins");
    kill_process(Pid::from_raw(proof.0.id().try_into().unwrap()).unwrap(), Signal::INT).unwrap();
    let text = lines.collect::<Vec<_>>().join("\n");
    let mut document = String::new();
    proof.0.stdout.take().unwrap().read_to_string(&mut document).unwrap();
    assert_eq!(proof.wait().code(), Some(130), "{document}");
    let document: Value = serde_json::from_str(&document).unwrap();
    assert!(text.contains("INTERRUPTED: 1,200 of 1,200 WebSockets open"), "{text}");
    assert_eq!(document["connections"]["open"], 1_200, "{document}");
    let heartbeats = &document["heartbeats"];
    assert_eq!(heartbeats["unanswered_sockets"], 0, "{document}");
    assert!(heartbeats["not_due_sockets"].as_u64() > Some(1_000), "{document}");
    assert!(text.contains("not yet due on 1,"), "{text}");
    // Of the ramp and plausible, or said to be neither.
    let kernel = text.lines().find(|line| line.trim_start().starts_with("kernel")).unwrap();
    match document["kernel_bytes_per_socket"].as_f64() {
        Some(bytes) => {
            assert!((2_000.0..=16_000.0).contains(&bytes), "{document}");
            assert!(kernel.contains(" for both ends of each socket, "), "{kernel}");
        }
        None => {
            assert!(document["kernel_bytes_implausible"].is_number(), "{document}");
            assert!(
                kernel.contains("implausible, ") && kernel.contains("other programs"),
                "{kernel}"
            );
        }
    }
}
