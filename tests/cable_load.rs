//! `standfast load cable://` against `standfast serve`, and the scenario of 10,000 clients, small.
//! Against a faulty server: `crates/load/tests/cable.rs`.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::executable::{self, Finished, Running, standfast};
use crate::harness::server::Server;
use crate::harness::{Scratch, eventually};

fn start() -> Server {
    Server::start(&["--public-streams", "--drain", "1s"])
}

/// Runs 200 clients with `more` flags.
fn load(server: &Server, more: &[&str]) -> (Finished, Value) {
    let url = format!("cable://{}", server.listen);
    let all = ["load", &url, "--connections", "200", "--json", "-"];
    executable::run(&[&all[..], more].concat()).with_json()
}

#[test]
fn every_client_subscribes_and_receives_each_broadcast() {
    let server = start();
    let admin = server.admin;
    let (broadcast, publish) =
        (format!("http://{admin}/_broadcast"), format!("http://{admin}/api/publish"));
    for (how, url, more) in [
        ("one-by-one", &broadcast, &[][..]),
        ("storm", &publish, &["--cable-extended"]),
        ("windowed", &broadcast, &["--channel", r#"{"stream_name":"a b","channel":"$pubsub"}"#]),
    ] {
        let fanout = ["--fanout", "100", "--messages", "20", "--publish-url", url];
        let flags = [&["--connect", how][..], &fanout, more].concat();
        let (finished, summary) = load(&server, &flags);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let cable = &summary["cable"];
        assert_eq!((&cable["subscribed"], &cable["rejected"]), (&200.into(), &0.into()), "{cable}");
        assert_eq!(cable["to_subscribed"]["count"], 200, "{cable}");
        let broadcast = &summary["broadcast"];
        let fields = ["published", "receivers", "received", "lost", "duplicated", "foreign"];
        let said = fields.map(|field| broadcast[field].as_u64().unwrap_or(u64::MAX));
        assert_eq!(said, [20, 200, 4_000, 0, 0, 0], "{how}: {broadcast}");
    }
}

#[test]
fn whispers_reach_all_other_clients() {
    let server = start();
    let flags = ["--fanout", "100", "--messages", "20", "--publish-by-socket"];
    let (finished, summary) = load(&server, &flags);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let broadcast = &summary["broadcast"];
    let said = ["receivers", "received", "lost"].map(|field| broadcast[field].as_u64());
    assert_eq!(said, [Some(199), Some(199 * 20), Some(0)], "{broadcast}");
}

#[test]
fn rejected_subscriptions_are_reported() {
    let server = start();
    let channel = r#"{"channel":"ChatChannel","room":{1..3}}"#;
    let (finished, summary) = load(&server, &["--hold", "0", "--channel", channel]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(summary["cable"]["rejected"], 200, "{summary}");
    assert_eq!(summary["reasons"], json!(["200 subscriptions were rejected"]));
}

#[test]
fn server_restart_is_reported_by_disconnect_reason() {
    let mut server = start();
    let url = format!("cable://{}", server.listen);
    let once = ["--retry", "1", "--backoff", "10ms..20ms"];
    let hold = ["load", &url, "--hold", "10m", "--json", "-"];
    let mut command = standfast(&[&hold[..], &once].concat());
    let running = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running(running.spawn().expect("the executable starts"));
    let topics = || server.metrics().get("standfast_subscriptions").copied();
    eventually("all are subscribed", || topics() >= Some(100.0));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    // The hold ends when no connection is left and none will be reopened.
    let finished = executable::finish(running);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let summary = finished.json();
    assert_eq!(summary["cable"]["disconnects"], json!({ "server_restart": 100 }), "{summary}");
}

#[test]
fn cable_scenario_prints_one_table_of_its_rounds() {
    let small = ["--connections", "100", "--hold", "1s", "--heartbeat", "1s", "--broadcasts", "2"];
    let finished = executable::run(&[&["prove", "cable-10k"], &small[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let rows: Vec<&str> = finished.stdout.lines().filter(|line| line.ends_with("  HELD")).collect();
    let begins = |at: usize, words: &str| rows[at].trim_start().starts_with(words);
    assert_eq!(rows.len(), 4, "{}", finished.stdout);
    assert!(begins(0, "one by one, 1 worker ") && begins(3, "all at once, 2 workers"));
    assert!(finished.stdout.contains("Action Cable standalone"), "{}", finished.stdout);
    let storm = [&["prove", "cable-10k", "--connect", "storm"], &small[..], &["--json", "-"]];
    let finished = executable::run(&storm.concat());
    let json = finished.json();
    let rounds = json["rounds"].as_array().expect("a round each");
    assert_eq!((rounds.len(), &json["held"]), (2, &true.into()), "{json}");
    for round in rounds {
        assert_eq!(round["proof"]["broadcast"]["received"], 200, "{round}");
        assert!(round["proof"]["broadcast"]["first_to_last"]["p50_ms"].is_number(), "{round}");
    }
}

#[test]
fn churn_checks_deliveries_during_subscribes_and_unsubscribes() {
    let server = start();
    let broadcast = format!("http://{}/_broadcast", server.admin);
    let channel = r#"{"channel":"$pubsub","stream_name":"s{1..40}"}"#;
    let flags = ["--channel", channel, "--churn", "200", "--fanout", "100", "--duration", "7s"];
    let more = ["--late-after", "3s", "--publish-url", &broadcast];
    let (finished, summary) = load(&server, &[&flags[..], &more].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let churn = &summary["churn"];
    let none = ["lost", "duplicated", "reordered", "unexpected", "unconfirmed"];
    assert!(none.iter().all(|key| churn[key] == 0), "{churn}");
    assert!(["owed", "begun"].iter().all(|key| churn[key].as_u64() > Some(100)), "{churn}");
    let left = || server.metrics().get("standfast_topics").copied();
    eventually("nothing is left of it", || left() == Some(0.0));
}

#[test]
fn churn_scenario_reports_the_servers_memory() {
    let scenario = "version = 1\ncable = true\nbroadcasts = 0\nconnections = '100'\n\
        hold = '6s'\nheartbeat = '1s'\n[churn]\nrate = '100'\nstreams = '50'\n\
        publish = '50'\ngrace = '3s'\n[serve]\npublic_streams = true\n";
    let file = Scratch::new("churn.toml", scenario);
    let finished = executable::run(&["prove", file.path(), "--json", "-"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let churn = &finished.json()["churn"];
    let memory = &churn["server_rss_bytes"];
    assert!(memory["start"].as_u64() > Some(0) && memory["end"].as_u64() > Some(0), "{churn}");
    assert!(churn["owed"].as_u64() > Some(0) && churn["lost"] == 0, "{churn}");
}
