//! Hostile publishers on the NATS server of a fleet: forged messages cannot make agents do more than run loads, and
//! nothing that they cut short holds.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fleet::{Fleet, url};
use crate::harness::brokers::NatsClient;
use crate::harness::eventually;
use crate::harness::executable;
use crate::harness::recorder::Recorder;

const ALL: &str = "standfast.fleet.standfast.all";

fn inbox(id: &str) -> String {
    format!("standfast.fleet.standfast.to.{id}")
}

/// A client that sees what is sent to the inbox of this name, and the answer of the fleet's agent to its call.
fn caller(fleet: &Fleet, id: &str) -> (NatsClient, Value) {
    let mut client = NatsClient::connect(&fleet.broker, "", "");
    client.subscribe(&inbox(id));
    // The agent may not have subscribed yet.
    let mut calls = NatsClient::connect(&fleet.broker, "", "");
    let call = format!("{}\n", json!({ "call": { "leader": id } }));
    eventually("the agent answers", || {
        let listed = executable::run(&["fleet", "list", "--nats", &fleet.broker.url("")]);
        listed.code == Some(0)
    });
    calls.publish(ALL, &call);
    let (_, here) = client.message();
    (client, serde_json::from_str(here.trim()).expect("JSON"))
}

#[test]
fn plans_that_do_more_than_load_are_refused() {
    let Some(fleet) = Fleet::start(1) else { return };
    let (mut answers, here) = caller(&fleet, "hostile");
    let mut client = NatsClient::connect(&fleet.broker, "", "");
    let agent = here["agent"].as_str().expect("an id").to_owned();
    let mut send = |message: &str| client.publish(&inbox(&agent), message);
    let server = Recorder::hello();
    let url = url(&server);
    // Neither messages nor names of folders.
    let deep = "[".repeat(100_000);
    for garbage in ["", "\n", "{}\n", "\u{0}\u{1}", &format!("{deep}\n"), &"x".repeat(900_000)] {
        send(garbage);
    }
    let version = here["says"]["here"]["version"].clone();
    let plan = |run: &str, words: Value, files: Value| {
        let plan = json!({ "run": run, "leader": "hostile", "version": version, "nth": 0, "of": 1,
            "seed": 1, "words": words, "files": files });
        format!("{}\n", json!({ "plan": plan }))
    };
    for run in ["../out", "a/b", ".", ""] {
        send(&plan(run, json!([url]), json!([])));
    }
    let outside = std::env::temp_dir().join(format!("standfast-outside-{}", std::process::id()));
    let outside = outside.to_str().expect("UTF-8");
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let file = |path: &str| json!([{ "path": path, "bytes": 0, "sha256": empty }]);
    let cases = [
        (json!([url, "--json", outside]), json!([]), "writes no files"),
        (json!([url, "--html", outside]), json!([]), "writes no files"),
        (json!([url, "--csv", outside]), json!([]), "writes no files"),
        (json!([url, "--metrics", "127.0.0.1:0"]), json!([]), "writes no files"),
        (json!([url, "--watch-pid", "1"]), json!([]), "writes no files"),
        (json!([url, "-d", "@/etc/hostname"]), json!([]), "outside the folder"),
        (json!([url, "--unix-socket", "/run/x"]), json!([]), "UNIX sockets"),
        (
            json!([url, "--agent-share={\"nth\":0,\"of\":1,\"seed\":1,\"allow\":[\"*\"]}"]),
            json!([]),
            "cannot be used multiple times",
        ),
        (json!(["init", outside]), json!([]), "neither a URL"),
        (
            json!(["grpc://127.0.0.1:9/a.B/C", "--proto", "hosts", "--proto-path", "/etc"]),
            json!([]),
            "outside the folder",
        ),
        (json!([url]), file("../out"), "below the folder"),
        (json!([url]), file(outside), "below the folder"),
        (json!([url]), json!([{ "path": "a", "bytes": u64::MAX, "sha256": empty }]), "--files-max"),
        (json!([url, "\u{0}"]), json!([]), "the load"),
    ];
    for (at, (words, files, what)) in cases.into_iter().enumerate() {
        let run = format!("run-{at}");
        send(&plan(&run, words.clone(), files));
        let why = loop {
            let (_, answer) = answers.message();
            let answer: Value = serde_json::from_str(answer.trim()).expect("JSON");
            assert!(answer["says"].get("ready").is_none(), "{words}");
            if answer["run"] == json!(run) && answer["says"]["refused"].is_object() {
                break answer["says"]["refused"]["why"].to_string();
            }
        };
        assert!(why.contains(what), "{words}: {why}");
        send(&format!("{}\n", json!({ "release": { "run": run } })));
    }
    assert!(fs::metadata(outside).is_err());
    let finished = fleet.run(&[&url, "-c", "2", "--requests", "5"]);
    assert_eq!((finished.code, server.count()), (Some(0), 5), "{finished:?}");
}

#[test]
fn answers_that_are_of_no_agent_reach_no_terminal_and_no_subject() {
    let Some(mut fleet) = Fleet::start(1) else { return };
    let mut calls = NatsClient::connect(&fleet.broker, "", "");
    calls.subscribe(ALL);
    let mut injected = NatsClient::connect(&fleet.broker, "", "");
    injected.subscribe("injected");
    let server = Recorder::hello();
    let url = url(&server);
    // It waits for another agent until all forged answers have reached it.
    let leader = fleet.lead_of("2", &[&url, "-c", "2", "--requests", "5", "--agents-within", "5m"]);
    let (_, call) = calls.message();
    let call: Value = serde_json::from_str(call.trim()).expect("JSON");
    let id = call["call"]["leader"].as_str().expect("an id").to_owned();
    let here = |agent: &str, name: &str, targets: &str| {
        let here = json!({ "name": name, "labels": [], "version": "1", "cores": 1, "busy": false,
            "targets": [targets] });
        format!("{}\n", json!({ "agent": agent, "run": "", "says": { "here": here } }))
    };
    for answer in [
        here("x 0\r\n\r\nPUB injected 0\r\n\r\n", "aaa", ""),
        here("id", "\u{1b}[2J", ""),
        here("id", "", ""),
        here("id", "aab", &"t".repeat(500_000)),
        "garbage".to_owned(),
    ] {
        calls.publish(&inbox(&id), &answer);
    }
    assert_eq!(server.count(), 0, "no forged answer is one of an agent");
    fleet.agent("zzz", &[]);
    let finished = executable::finish(leader);
    assert_eq!((finished.code, server.count()), (Some(0), 5), "{finished:?}");
    let agents = finished.json()["fleet"]["agents"].clone();
    assert_eq!((&agents[0]["name"], &agents[1]["name"]), (&json!("agent-01"), &json!("zzz")));
    assert!(!finished.stderr.contains('\u{1b}'), "{finished:?}");
    calls.publish("injected", "mark");
    assert_eq!(injected.message().1, "mark");
}

#[test]
fn an_agent_that_is_gone_before_it_is_ready_ends_the_wait() {
    let Some(fleet) = Fleet::start(1) else { return };
    let (_, here) = caller(&fleet, "asker");
    let version = here["says"]["here"]["version"].clone();
    let mut gone = NatsClient::connect(&fleet.broker, "", "");
    gone.subscribe(ALL);
    let server = Recorder::hello();
    let url = url(&server);
    let leader = fleet.lead_of("2", &[&url, "-c", "2"]);
    let (_, call) = gone.message();
    let call: Value = serde_json::from_str(call.trim()).expect("JSON");
    let id = call["call"]["leader"].as_str().expect("an id").to_owned();
    let here =
        json!({ "name": "gone", "labels": [], "version": version, "cores": 1, "busy": false });
    let answer = json!({ "agent": "gone", "run": "", "says": { "here": here } });
    gone.publish(&inbox(&id), &format!("{answer}\n"));
    let began = Instant::now();
    let finished = executable::finish(leader);
    assert_eq!((finished.code, server.count()), (Some(2), 0), "{finished:?}");
    let what = "nothing was started:\n  agent gone: not heard for 6 s";
    assert!(finished.stderr.contains(what), "{finished:?}");
    assert!(began.elapsed() < Duration::from_secs(50), "not as late as agents may get ready");
}

#[test]
fn a_run_whose_load_was_told_to_stop_by_others_does_not_hold() {
    let Some(fleet) = Fleet::start(1) else { return };
    let (_answers, here) = caller(&fleet, "hostile");
    let agent = here["agent"].as_str().expect("an id").to_owned();
    let mut seen = NatsClient::connect(&fleet.broker, "", "");
    seen.subscribe(ALL);
    let server = Recorder::hello();
    let url = url(&server);
    let leader = fleet.lead(&[&url, "-c", "2", "--rate", "50", "--duration", "1h"]);
    eventually("the load has begun", || server.count() > 20);
    let run = loop {
        let (_, message) = seen.message();
        let line = message.lines().next().unwrap_or_default();
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        if let Some(run) = message["beat"]["run"].as_str() {
            break run.to_owned();
        }
    };
    let beat = json!({ "beat": { "run": run, "stop": true } });
    NatsClient::connect(&fleet.broker, "", "").publish(&inbox(&agent), &format!("{beat}\n"));
    let finished = executable::finish(leader);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stdout.contains("its load stopped before the end"), "{finished:?}");
}
