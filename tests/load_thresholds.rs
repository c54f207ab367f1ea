//! Thresholds of `standfast load` fail closed: against servers that refuse, reset and lose, no threshold
//! on something else passes the run.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::harness::chat::Chat;
use crate::harness::executable::{self, Finished};
use crate::harness::http;
use crate::harness::server::Server;
use crate::harness::web::Web;

/// Runs `load` with a threshold; returns how it ended and the result of the threshold.
fn with(threshold: &str, words: &[&str]) -> (Finished, Value) {
    let fixed = ["--plain", "--json", "-", "--threshold", threshold];
    let finished = executable::run(&[&["load"], words, &fixed].concat());
    let document = finished.json();
    assert_eq!(document["version"], 2, "{document}");
    (finished, document)
}

fn is_short(threshold: &str, words: &[&str], met: bool, reason: &str) -> Value {
    let (finished, document) = with(threshold, words);
    assert_eq!(finished.code, Some(1), "{threshold}: {finished:?}");
    assert_eq!(document["thresholds"][0]["met"], json!(met), "{threshold}: {document}");
    assert!(document["reasons"].to_string().contains(reason), "{threshold}: {document}");
    let last = finished.stderr.lines().rev().find(|line| line.starts_with("result")).unwrap();
    assert!(last.contains("fell short") && last.contains(reason), "{last}");
    document
}

#[test]
fn a_percentile_counts_requests_that_failed() {
    let number = AtomicU32::new(0);
    let web = Web::start(move |_| {
        let status = if number.fetch_add(1, Ordering::SeqCst) < 5 { 200 } else { 500 };
        (status, Vec::new(), String::new())
    });
    let url = format!("http://{}/", web.address);
    let words = [url.as_str(), "--connections", "1", "--requests", "505"];
    let document = is_short("p99<50ms", &words, false, "500 requests failed");
    assert_eq!(document["thresholds"][0]["value"], json!(null), "{document}");
    // Tolerated failures pass, and so does a percentile below them.
    let (finished, document) = with("errors<506", &words);
    assert_eq!((finished.code, &document["tolerated"]), (Some(0), &json!(true)), "{finished:?}");
}

#[test]
fn a_rate_counts_good_answers() {
    let web = Web::start(|_| (503, Vec::new(), String::new()));
    let url = format!("http://{}/", web.address);
    let words = [url.as_str(), "--connections", "2", "--rate", "500", "--duration", "1s"];
    let document = is_short("rate>490", &words, false, "requests failed");
    assert_eq!(document["good_per_second"], json!(0.0), "{document}");
}

#[test]
fn sockets_that_are_reset_are_no_failed_connects_and_no_success() {
    let chat = Chat::start(0);
    let url = format!("ws://{}/midway", chat.address);
    let words = [url.as_str(), "--connections", "10", "--hold", "1s"];
    is_short("failed==0", &words, true, "10 connections ended before the run did");
}

#[test]
fn rejected_subscriptions_are_errors() {
    let server = Server::start(&["--secret", "a secret that nobody has"]);
    let url = format!("cable://{}/cable", server.listen);
    let words = [url.as_str(), "--connections", "50", "--hold", "0"];
    let channel = r#"{"channel":"NobodyKnowsThisChannel"}"#;
    let words = [&words[..], &["--channel", channel]].concat();
    let document = is_short("errors<1", &words, false, "50 subscriptions were rejected");
    assert_eq!(document["thresholds"][0]["value"], json!(50.0), "{document}");
}

#[test]
fn refused_publications_are_not_lost_and_no_success() {
    let server = Server::start(&["--public"]);
    let number = AtomicU32::new(0);
    let admin = server.admin;
    let web = Web::start(move |request| {
        if !number.fetch_add(1, Ordering::SeqCst).is_multiple_of(10) {
            return (503, Vec::new(), String::new());
        }
        let answer = http::post(admin, "/api/publish", &request.body);
        (answer.status, Vec::new(), String::new())
    });
    let url = format!("ws://{}/topics/refused", server.listen);
    let publish = format!("http://{}/", web.address);
    let words = [url.as_str(), "--connections", "3", "--publish-url", publish.as_str()];
    let words = [&words[..], &["--fanout", "100", "--messages", "100"]].concat();
    let reason = "90 publications were rejected or not answered";
    let document = is_short("lost==0", &words, true, reason);
    assert_eq!(document["broadcast"]["received"], json!(30), "{document}");
    // The rate is that of accepted publications: a tenth of those sent.
    let document = is_short("rate>50", &words, false, reason);
    let broadcast = &document["broadcast"];
    assert!(broadcast["reached_rate"].as_f64().unwrap() > 50.0, "{document}");
    assert_eq!(broadcast["accepted_rate"], document["thresholds"][0]["value"], "{document}");
    assert!(broadcast["accepted_rate"].as_f64().unwrap() < 50.0, "{document}");
}
