//! Requests over https against a server that misbehaves and counts requests: each failure has its kind.

#[path = "../../crates/load/tests/http_server/mod.rs"]
#[allow(dead_code, reason = "the tests of the crate use the rest of it")]
mod http_server;

use std::sync::Arc;
use std::thread;

use serde_json::Value;

use super::workloads::{count, counts};
use super::{at_most_twice, moments};
use crate::harness::eventually;
use crate::harness::executable;
use crate::harness::tls_front::Front;
use crate::interrupted;

/// The kinds of faults of a server of requests, and how they are counted.
const REQUESTS: [(&str, &str); 12] = [
    ("error", "status"),
    ("reset", "reset"),
    ("reset_later", "reset"),
    ("close", "closed"),
    ("half", "closed_midway"),
    ("truncated", "closed_midway"),
    ("chunk", "bad_chunk"),
    ("noise", "bad_status_line"),
    ("head", "head_too_large"),
    ("loop", "too_many_redirects"),
    ("silent", "timeout"),
    ("interim", "timeout"),
];

fn https(path: &str, more: &[&str]) -> (Vec<String>, Arc<http_server::ServerLog>) {
    let (port, log) = http_server::start();
    let front = Front::of(([127, 0, 0, 1], port).into());
    let url = format!("https://{}/{path}", front.address);
    let words = ["load", &url, "--connections", "2", "--insecure", "--redirects", "2"];
    (words.iter().chain(more).map(|word| (*word).to_owned()).collect(), log)
}

#[test]
fn faults_of_requests_over_https_agree_with_the_log() {
    thread::scope(|scope| {
        for (path, kind) in REQUESTS {
            scope.spawn(move || {
                at_most_twice(|| {
                    // A healthy answer takes a while on a machine that is busy with other tests.
                    let timeout = if kind == "timeout" { "3s" } else { "30s" };
                    let more =
                        ["--requests", "4", "--timeout", timeout, "--connect-timeout", "30s"];
                    let (words, log) = https(path, &more);
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let finished = executable::finish(interrupted::start(&words));
                    let document = finished.json();
                    let of = &document["requests"];
                    let [sent, failed, redirects] = counts(of, ["sent", "failed", "redirects"]);
                    assert_eq!((sent, failed), (4, 4), "{path}: {document}");
                    assert_eq!(document["errors"], serde_json::json!({ kind: 4 }), "{document}");
                    assert_eq!(log.received(), sent + redirects, "{path}: {document}");
                    let opened = count(&document["connections"], "opened");
                    assert_eq!(log.accepted(), opened, "{path}: {document}");
                    assert_eq!(finished.code, Some(1), "{path}: {finished:?}");
                });
            });
        }
    });
}

#[test]
fn interrupted_requests_over_https_agree_with_the_log() {
    thread::scope(|scope| {
        for (moment, (path, _)) in moments().into_iter().zip(REQUESTS.into_iter().cycle()) {
            scope.spawn(move || {
                at_most_twice(|| {
                    let (words, log) = https(path, &["--duration", "1h", "--timeout", "1s"]);
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let running = interrupted::start(&words);
                    eventually("the run has begun", || log.received() > 0);
                    thread::sleep(moment);
                    let (document, _) = interrupted::interrupt(running);
                    let of = &document["requests"];
                    let [sent, ok, failed] = counts(of, ["sent", "ok", "failed"]);
                    let [unknown, redirects] = counts(of, ["unknown", "redirects"]);
                    let unopened = count(&document["connections"], "failed");
                    assert_eq!(sent + unopened, ok + failed + unknown, "{path}: {document}");
                    eventually("all requests were read", || log.received() >= sent + redirects);
                    assert_eq!(log.received(), sent + redirects, "{path}: {document}");
                    let errors = document["errors"].as_object().unwrap().values();
                    let told: u64 = errors.filter_map(Value::as_u64).sum();
                    assert_eq!((ok, told, unknown <= 2), (0, failed, true), "{path}: {document}");
                });
            });
        }
    });
}
