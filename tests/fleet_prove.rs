//! `standfast prove --agents`: the sockets of a proof are of agents, over a real NATS server.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fleet::{Fleet, end};
use crate::harness::executable::{self, Finished, Running};
use crate::harness::{eventually, executable::standfast};

impl Fleet {
    fn proof(&self, agents: &str, args: &[&str]) -> Command {
        let nats = self.broker.url("");
        standfast(&[&["prove"], args, &["--agents", agents, "--nats", &nats]].concat())
    }

    pub(crate) fn prove(&self, agents: &str, args: &[&str]) -> Finished {
        executable::run_command(self.proof(agents, &[args, &["--json=-"]].concat()))
    }
}

/// A proof by all agents that holds 100 sockets until it is stopped.
pub(crate) struct Holding {
    pub(crate) running: Running,
    log: PathBuf,
    json: PathBuf,
}

impl Holding {
    fn start(fleet: &Fleet, name: &str) -> Holding {
        Holding::of(fleet, (&fleet.agents.len().to_string(), name), &[])
    }

    /// The same by these agents, with flags besides.
    pub(crate) fn of(fleet: &Fleet, (agents, name): (&str, &str), more: &[&str]) -> Holding {
        let file = |what: &str| {
            std::env::temp_dir().join(format!("standfast-{}-{name}.{what}", std::process::id()))
        };
        let (log, json) = (file("log"), file("json"));
        let path = json.to_str().expect("a plain path");
        let args = ["--connections", "100", "--hold", "10m", "--plain", "--json", path];
        let mut proof = fleet.proof(agents, &[&args[..], more].concat());
        proof.stdout(Stdio::null()).stderr(File::create(&log).expect("a log"));
        let running = Running(proof.spawn().expect("the proof starts"));
        let holding = Holding { running, log, json };
        eventually("the sockets are open", || holding.log().contains("connected: 100 open"));
        holding
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The exit code and the result.
    pub(crate) fn finish(mut self) -> (Option<i32>, Value) {
        let code = self.running.wait().code();
        let json = fs::read_to_string(&self.json).unwrap_or_default();
        let json = serde_json::from_str(&json);
        (code, json.unwrap_or_else(|error| panic!("{error}: {}", self.log())))
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let _ = (fs::remove_file(&self.log), fs::remove_file(&self.json));
    }
}

/// The sum of a figure over the agents of a proof.
fn sum(json: &Value, figure: &str) -> u64 {
    let agents = json["fleet"]["agents"].as_array().expect("a list");
    agents.iter().map(|one| one["outcome"].pointer(figure).unwrap().as_u64().unwrap()).sum()
}

#[test]
fn agents_hold_the_sockets_of_a_proof_and_counts_agree_to_the_unit() {
    let Some(fleet) = Fleet::start(3) else { return };
    let html = std::env::temp_dir().join(format!("standfast-fleet-{}.html", std::process::id()));
    let page = html.to_str().expect("a plain path");
    let args = ["million-hold", "--connections", "301", "--hold", "2s", "--heartbeat", "1s"];
    let finished = fleet.prove("3", &[&args[..], &["--broadcasts", "2", "--html", page]].concat());
    let json = finished.json();
    assert_eq!((finished.code, &json["verdict"]), (Some(0), &json!("HELD")), "{finished:?}");
    assert_eq!((&json["connections"]["open"], sum(&json, "/connections/open")), (&json!(301), 301));
    let broadcast = &json["broadcast"];
    assert_eq!((&broadcast["expected"], &broadcast["received"]), (&json!(602), &json!(602)));
    assert_eq!((&broadcast["lost"], sum(&json, "/broadcast/received")), (&json!(0), 602));
    // The clocks of agents are others than that of the publisher.
    assert_eq!((&broadcast["p50_ms"], &broadcast["to_last"]), (&Value::Null, &Value::Null));
    let pongs = json["heartbeats"]["received"].as_u64().expect("a number");
    assert!(pongs >= 301 && pongs == sum(&json, "/heartbeats/received"), "{json}");
    assert_eq!(json["heartbeats"]["sent"].as_u64(), Some(sum(&json, "/heartbeats/sent")));
    assert_eq!((&json["fleet"]["complete"], &json["fleet"]["missing"]), (&json!(true), &json!([])));
    let names: Vec<&Value> =
        json["fleet"]["agents"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, [&json!("agent-01"), &json!("agent-02"), &json!("agent-03")]);
    assert!(json["client"]["rss_bytes"].as_u64() > Some(1 << 20), "{json}");
    let page = fs::read_to_string(&html).expect("a report");
    let _ = fs::remove_file(&html);
    for name in ["agent-01", "agent-02", "agent-03"] {
        assert!(finished.stderr.contains(name) && page.contains(name), "{name}: {finished:?}");
    }
}

#[test]
fn messages_of_agents_are_those_of_one_process() {
    let Some(fleet) = Fleet::start(2) else { return };
    let args = ["million", "--connections", "301", "--hold", "2s", "--message-every", "500ms"];
    let finished = fleet.prove("2", &args);
    let json = finished.json();
    assert_eq!((finished.code, &json["verdict"]), (Some(0), &json!("HELD")), "{finished:?}");
    for (count, expected) in [("sent", 1_204), ("received", 1_204), ("lost", 0), ("unsent", 0)] {
        assert_eq!(json["messages"][count], expected, "{count} in {json}");
    }
    assert_eq!((sum(&json, "/echo/sent"), sum(&json, "/latency/count")), (1_204, 1_204));
    assert!(json["messages"]["p99_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{json}");
}

#[test]
fn a_proof_that_loses_an_agent_is_incomplete() {
    let Some(fleet) = Fleet::start(2) else { return };
    let proof = Holding::start(&fleet, "lost");
    end(&fleet.agents[1], Signal::KILL);
    let (code, json) = proof.finish();
    assert_eq!((code, &json["verdict"]), (Some(1), &json!("INCOMPLETE")), "{json}");
    assert_eq!(json["connections"]["open"], json!(50));
    let reason = json["reasons"][0].as_str().expect("a text");
    assert!(reason.starts_with("INCOMPLETE: agent agent-02: not heard for 6 s"), "{json}");
    let agents = &json["fleet"]["agents"];
    assert_eq!((&json["fleet"]["complete"], &agents[1]["outcome"]), (&json!(false), &Value::Null));
    assert!(agents[1]["missing"].is_string() && agents[0]["missing"].is_null(), "{json}");
    // The other agent has stopped, and is free.
    let next = fleet.prove("1", &["--connections", "10", "--hold", "1s", "--heartbeat", "1s"]);
    assert_eq!(next.code, Some(0), "{next:?}");
}

#[test]
fn ctrl_c_ends_a_proof_with_the_results_of_all_agents() {
    let Some(fleet) = Fleet::start(2) else { return };
    let proof = Holding::start(&fleet, "interrupted");
    end(&proof.running, Signal::INT);
    let (code, json) = proof.finish();
    assert_eq!((code, &json["verdict"]), (Some(130), &json!("INTERRUPTED")), "{json}");
    assert_eq!((&json["connections"]["open"], sum(&json, "/connections/open")), (&json!(100), 100));
    assert_eq!(json["fleet"]["complete"], json!(true));
}

#[test]
fn all_problems_of_agents_are_listed_before_anything_starts() {
    let Some(mut fleet) = Fleet::start(1) else { return };
    fleet.agent("agent-02", &["--allow-target", "10.255.0.1"]);
    let refused = |agents: &str, args: &[&str]| {
        let finished = fleet.prove(agents, args);
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{finished:?}");
        finished.stderr
    };
    // Every machine is too small.
    let text = refused("2", &["--connections", "900M"]);
    for part in [
        "nothing was started",
        "agent agent-01, 450,000,000",
        "agent agent-02, 450,000,000",
        "this machine: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = refused("2", &["--connections", "90k", "--listen", "10.255.0.1"]);
    for part in [
        "agent agent-01: start it with --allow-target 10.255.0.1",
        "agent agent-01, 45,000 connections:",
        "agent agent-02, 45,000 connections:",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("agent agent-02: start it"), "{text}");
    let text = refused("3", &["--connections", "90", "--agents-within", "1s"]);
    assert!(text.contains("2 of 3 agents are free: agent-01, agent-02"), "{text}");
    let text = refused("2", &["--connections", "1"]);
    assert!(text.contains("1 connection cannot be shared by 2 agents"), "{text}");
}

#[test]
fn what_agents_cannot_share_is_refused_by_name() {
    for (args, what) in [
        (
            &["cable-10k"][..],
            "cable-10k cannot use --agents: connections are opened one after another",
        ),
        (&["cable-churn"], "cable-churn cannot use --agents: the process of its [churn]"),
        (&["nginx-idle"], "nginx-idle cannot use --agents: its [[cells]]"),
        (&["slow-link"], "slow-link cannot use --agents: the clients of its [link]"),
        (&["--connect", "one-by-one"], "this proof cannot use --agents"),
    ] {
        let finished = executable::run(&[&["prove"], args, &["--agents", "2"]].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(what), "{what}: {finished:?}");
    }
    for (flag, value) in [("--nats", "nats://127.0.0.1:1"), ("--fleet", "other")] {
        let finished = executable::run(&["prove", flag, value]);
        let what = format!("{flag} has an effect only with --agents");
        assert!(finished.code == Some(2) && finished.stderr.contains(&what), "{finished:?}");
    }
    let finished = executable::run(&["prove", "--agents", "2", "--listen", "0.0.0.0"]);
    assert!(finished.code == Some(2) && finished.stderr.contains("not all of this machine"));
}
