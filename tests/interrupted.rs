//! Ctrl-C at any moment: a run reports what was open and done, in what time, and what was in flight as
//! unknown: not as lost or failed.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::chat::Chat;
use crate::harness::executable::{self, Running, standfast};
use crate::harness::server::Server;
use crate::harness::web::Web;
use crate::harness::{PATIENCE, Scratch, eventually};

pub(crate) fn start(words: &[&str]) -> Running {
    let mut command = standfast(&[words, &["--plain", "--json", "-"]].concat());
    Running(command.spawn().unwrap())
}

/// Interrupts a run, which must end with 130, and returns its document and its text.
pub(crate) fn interrupt(running: Running) -> (Value, String) {
    signal(&running);
    let finished = executable::finish(running);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    (finished.json(), finished.stderr)
}

fn signal(running: &Running) {
    let pid = Pid::from_raw(running.0.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

#[test]
fn requests_in_flight_are_unknown() {
    // No request is answered in time.
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    let web = Web::start(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(PATIENCE);
        (200, Vec::new(), String::new())
    });
    let url = format!("http://{}/slow", web.address);
    let words = ["load", &url, "--connections", "4", "--rate", "20", "--duration", "1h"];
    let load = start(&words);
    eventually("four requests are in flight", || requests.load(Ordering::SeqCst) == 4);
    let (document, text) = interrupt(load);
    let of = &document["requests"];
    assert_eq!((&document["held"], &document["interrupted"]), (&json!(false), &json!(true)));
    assert_eq!((&of["failed"], &of["unknown"]), (&json!(0), &json!(4)), "{document}");
    assert_eq!(document["errors"], json!({}), "{document}");
    assert!(text.contains("4 in flight at the end: their result is unknown"), "{text}");
    assert!(text.contains("result        interrupted"), "{text}");
}

#[test]
fn messages_in_flight_are_unknown_and_rates_are_of_the_time_that_passed() {
    // Messages to a user who is not there have no answer.
    let chat = Chat::start(0);
    let url = format!("ws://{}/private?id={{1..3}}", chat.address);
    let words =
        ["load", &url, "--connections", "3", "--message", r#"{"to":99}"#, "--duration", "1h"];
    let load = start(&words);
    eventually("each socket has sent a message", || chat.received() == 3);
    let (document, text) = interrupt(load);
    let echo = &document["echo"];
    assert_eq!((&echo["sent"], &echo["lost"]), (&json!(3), &json!(0)), "{document}");
    assert_eq!((&echo["unknown"], &document["held"]), (&json!(3), &json!(false)), "{document}");
    assert!(document["seconds"].as_f64() < Some(60.0), "{document}");
    assert!(text.contains("3 in flight at the end"), "{text}");

    let server = Server::start(&[]);
    let messages = || server.metrics()["standfast_messages_in_total"];
    let url = format!("ws://{}/echo", server.listen);
    let load = start(&["load", &url, "--connections", "2", "--rate", "100", "--duration", "1h"]);
    eventually("messages are echoed", || messages() >= 50.0);
    let (document, _) = interrupt(load);
    let rate = document["per_second"].as_f64().unwrap();
    assert!((50.0..=110.0).contains(&rate), "{rate} per second: {document}");
}

#[test]
fn a_proof_reports_what_was_open() {
    let mut command = standfast(&["prove", "--connections", "50", "--hold", "10m", "--json", "-"]);
    let mut proof = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(proof.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("holding")), "the hold begins");
    signal(&proof);
    lines.for_each(drop);
    let mut document = String::new();
    proof.0.stdout.take().unwrap().read_to_string(&mut document).unwrap();
    assert_eq!(proof.wait().code(), Some(130), "{document}");
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["verdict"], "INTERRUPTED", "{document}");
    assert_eq!(document["connections"]["open"], 50, "{document}");
    assert!(document["server"]["rss_bytes"].as_u64() > Some(1_000_000), "{document}");
    assert_eq!(document["reasons"], json!(["interrupted before the end"]), "{document}");
}

/// The figures of a ramp are of what was opened, in the time until then.
#[test]
fn a_proof_interrupted_while_it_connects_tells_its_last_sample() {
    // So slow that it cannot end by itself.
    let scenario = Scratch::new(
        "slow-ramp.toml",
        "version = 1\nconnections = \"1000\"\nhold = \"1s\"\nconnect = \"paced:20\"\n",
    );
    let mut command = standfast(&["prove", scenario.path(), "--plain", "--json", "-"]);
    let mut proof = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(proof.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let some = |line: &String| line.contains("connecting") && !line.contains(" 0 of 1,000");
    assert!(lines.any(|line| some(&line)), "some are open");
    signal(&proof);
    lines.for_each(drop);
    let mut document = String::new();
    proof.0.stdout.take().unwrap().read_to_string(&mut document).unwrap();
    assert_eq!(proof.wait().code(), Some(130), "{document}");
    let document: Value = serde_json::from_str(&document).unwrap();
    let open = &document["connections"]["open"];
    assert!(open.as_u64() > Some(0), "{document}");
    let last = document["marks"].as_array().unwrap().last().unwrap();
    assert_eq!(&last["connections"], open, "{document}");
    assert!(last["server_rss_bytes"].as_u64() > Some(1_000_000), "{document}");
    // At 20 a second; a busy machine opens fewer.
    assert!(document["connections"]["per_second"].as_f64() < Some(40.0), "{document}");
}
