//! `standfast prove --servers`: the servers of a proof are of agents, too, over a real NATS server.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fleet::{Fleet, end};
use crate::fleet_prove::Holding;
use crate::harness::eventually;
use crate::harness::executable;

/// A fleet of so many agents that run loads, and then of two that run servers.
fn fleet(loads: usize) -> Option<Fleet> {
    let mut fleet = Fleet::start(loads)?;
    for name in ["server-1", "server-2"] {
        fleet.agent(name, &["--serve", "127.0.0.1"]);
    }
    Some(fleet)
}

/// The processes that an agent has started.
fn children(agent: u32) -> Vec<String> {
    let path = format!("/proc/{agent}/task/{agent}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn two_servers_hold_the_sockets_of_three_agents_and_publish_to_each_once() {
    let Some(fleet) = fleet(3) else { return };
    let html = std::env::temp_dir().join(format!("standfast-servers-{}.html", std::process::id()));
    let page = html.to_str().expect("a plain path");
    let args = [
        "million-hold",
        "--connections",
        "301",
        "--hold",
        "2s",
        "--heartbeat",
        "1s",
        "--broadcasts",
        "3",
        "--servers",
        "2",
        "--html",
        page,
    ];
    let finished = fleet.prove("3", &args);
    let json = finished.json();
    assert_eq!((finished.code, &json["verdict"]), (Some(0), &json!("HELD")), "{finished:?}");
    assert_eq!(json["connections"]["open"], json!(301));
    let broadcast = &json["broadcast"];
    assert_eq!((&broadcast["expected"], &broadcast["received"]), (&json!(903), &json!(903)));
    assert_eq!((&broadcast["lost"], &broadcast["duplicated"]), (&json!(0), &json!(0)));
    // Each has every second socket, by its own count.
    let servers = json["servers"].as_array().expect("a list");
    let figure = |name: &str| -> Vec<&Value> { servers.iter().map(|one| &one[name]).collect() };
    assert_eq!(figure("name"), [&json!("server-1"), &json!("server-2")]);
    assert_eq!(figure("connections"), [&json!(151), &json!(150)]);
    let growth = |one: &Value| {
        one["rss_bytes_per_connection"].as_f64().unwrap() * one["connections"].as_f64().unwrap()
    };
    let each: f64 = servers.iter().map(growth).sum();
    let whole = json["server"]["rss_bytes_per_connection"].as_f64().unwrap() * 301.0;
    // Both are read within a moment, in which a page may come.
    assert!((each - whole).abs() < 32_768.0, "{each} and {whole}: {json}");
    let sum: u64 = figure("rss_bytes").iter().filter_map(|bytes| bytes.as_u64()).sum();
    assert_eq!(json["server"]["rss_bytes"].as_u64(), Some(sum), "{json}");
    assert!(figure("cpu_seconds").iter().all(|seconds| seconds.as_f64() > Some(0.0)), "{json}");
    // What this machine has is not that of the servers.
    assert_eq!(
        (&json["system_bytes"], &json["kernel_bytes_per_socket"]),
        (&Value::Null, &Value::Null)
    );
    let page = fs::read_to_string(&html).expect("a report");
    let _ = fs::remove_file(&html);
    for name in ["server-1", "server-2", "agent-01"] {
        assert!(finished.stderr.contains(name) && page.contains(name), "{name}: {finished:?}");
    }
    let places: Vec<&str> = figure("address").into_iter().filter_map(Value::as_str).collect();
    assert!(places.iter().all(|place| finished.stderr.contains(place)), "{finished:?}");
    // They end with the proof, and the agents are free for the next one.
    for agent in &fleet.agents {
        eventually("nothing runs", || children(agent.0.id()).is_empty());
    }
    let cable = ["cable-500k", "--connections", "100", "--hold", "2s", "--heartbeat", "1s"];
    let next = fleet.prove("2", &[&cable[..], &["--servers", "all"]].concat());
    assert_eq!(next.code, Some(0), "{next:?}");
    let args = ["million", "--connections", "90", "--hold", "2s", "--message-every", "500ms"];
    let echoes = fleet.prove("3", &[&args[..], &["--servers", "2"]].concat());
    assert_eq!((echoes.code, &echoes.json()["messages"]["received"]), (Some(0), &json!(360)));
}

#[test]
fn a_server_that_ends_fails_the_proof_and_one_that_is_not_heard_makes_it_incomplete() {
    for is_lost in [false, true] {
        let Some(fleet) = fleet(2) else { return };
        let proof = Holding::of(&fleet, ("2", "server"), &["--servers", "2"]);
        let agent = &fleet.agents[3];
        if is_lost {
            end(agent, Signal::KILL);
        } else {
            let server = children(agent.0.id());
            assert_eq!(server.len(), 1, "{server:?}");
            let server = server[0].parse().ok().and_then(Pid::from_raw).expect("a process");
            kill_process(server, Signal::KILL).expect("it runs");
        }
        let (code, json) = proof.finish();
        let (verdict, reason) = match is_lost {
            true => ("INCOMPLETE", "INCOMPLETE: server server-2: not heard for 6 s"),
            false => ("FELL SHORT", "server server-2: its server ended: signal: 9 (SIGKILL)"),
        };
        assert_eq!((code, &json["verdict"]), (Some(1), &json!(verdict)), "{json}");
        let first = json["reasons"][0].as_str().expect("a text");
        assert!(first.starts_with(reason), "{json}");
        // What it had is unknown, and so is the sum.
        assert_eq!(json["servers"][1]["rss_bytes"], Value::Null, "{json}");
        assert_eq!(json["server"]["rss_bytes"], Value::Null, "{json}");
        assert!(json["servers"][0]["rss_bytes"].is_u64(), "{json}");
        for agent in &fleet.agents[..3] {
            eventually("the others are free", || children(agent.0.id()).is_empty());
        }
    }
}

#[test]
fn ctrl_c_while_a_server_does_not_answer_keeps_the_results_of_all_agents() {
    let Some(fleet) = fleet(2) else { return };
    let proof = Holding::of(&fleet, ("2", "hangs"), &["--servers", "2"]);
    let server = children(fleet.agents[3].0.id());
    let server = server[0].parse().ok().and_then(Pid::from_raw).expect("a process");
    kill_process(server, Signal::STOP).expect("it runs");
    end(&proof.running, Signal::INT);
    let (code, json) = proof.finish();
    assert_eq!((code, &json["verdict"]), (Some(130), &json!("INTERRUPTED")), "{json}");
    assert_eq!(json["fleet"]["complete"], json!(true), "{json}");
    assert_eq!(json["connections"]["open"], json!(100), "{json}");
    // How it is then is unknown.
    assert_eq!(json["servers"][1]["connections"], Value::Null, "{json}");
}

#[test]
fn servers_end_without_their_leader_and_after_ctrl_c() {
    let Some(fleet) = fleet(1) else { return };
    for signal in [Signal::INT, Signal::KILL] {
        let proof = Holding::of(&fleet, ("1", "leaderless"), &["--servers", "2"]);
        assert_eq!(children(fleet.agents[1].0.id()).len(), 1);
        end(&proof.running, signal);
        if signal == Signal::INT {
            let (code, json) = proof.finish();
            assert_eq!((code, &json["verdict"]), (Some(130), &json!("INTERRUPTED")), "{json}");
        } else {
            drop(proof);
        }
        for agent in &fleet.agents {
            eventually("nothing runs", || children(agent.0.id()).is_empty());
        }
    }
}

#[test]
fn servers_that_cannot_do_their_part_are_listed_before_anything_starts() {
    let Some(mut fleet) = fleet(1) else { return };
    let refused = |fleet: &Fleet, args: &[&str]| {
        let finished = fleet.prove("1", args);
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{finished:?}");
        finished.stderr
    };
    let text = refused(&fleet, &["--connections", "90", "--servers", "3", "--agents-within", "1s"]);
    for part in [
        "nothing was started",
        "2 of 3 agents are free for --servers: server-1, server-2",
        "standfast agent --name NAME --serve IP",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = refused(&fleet, &["--connections", "900M", "--servers", "2"]);
    for part in ["agent server-2, 450,000,000 connections:", "agent agent-01, 900,000,000"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("\n  this machine: "), "nothing is held here: {text}");
    let text = refused(&fleet, &["--servers", "2"]);
    assert!(text.contains("--servers needs --connections"), "{text}");
    // Agents that run servers run no loads, and the other way round.
    let args = ["--connections", "90", "--agents-within", "1s"];
    let finished = fleet.prove("3", &args);
    assert!(finished.stderr.contains("1 of 3 agents are free: agent-01"), "{finished:?}");
    // An address of another machine: its agent finds out, and the other server ends.
    fleet.agent("server-3", &["--serve", "192.0.2.1", "--label", "at=far"]);
    fleet.agent("agent-02", &["--allow-target", "192.0.2.1", "--label", "at=far"]);
    let args = ["--connections", "90", "--servers", "at=far", "--plain"];
    let finished = fleet.prove("at=far", &args);
    let part = "server server-3: the server did not start\n";
    assert!(finished.code == Some(2) && finished.stderr.contains(part), "{finished:?}");
    assert!(finished.stderr.contains("cannot listen on 192.0.2.1"), "{finished:?}");
    let text = refused(&fleet, &["--connections", "90", "--servers", "at=far"]);
    assert!(text.contains("agent agent-01: start it with --allow-target 192.0.2.1"), "{text}");
}

#[test]
fn flags_that_agents_do_not_take_are_refused() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("servers-{}.toml", std::process::id()));
    let text = "version = 1\nconnections = '10'\n[serve]\nwebhook_url = 'http://127.0.0.1:1/'\n";
    fs::write(&file, text).expect("a scenario");
    let path = file.to_str().expect("a plain path");
    let finished = executable::run(&["prove", path, "--agents", "1", "--servers", "1"]);
    let _ = fs::remove_file(&file);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    let what = "--webhook-url=http://127.0.0.1:1/ of [serve] cannot be used with --servers";
    assert!(finished.stderr.contains(what), "{finished:?}");
    for (args, what) in [
        (&["--servers", "1"][..], "--agents"),
        (&["--servers", "1", "--agents", "1", "--listen", "127.0.0.1"], "--listen"),
    ] {
        let finished = executable::run(&[&["prove"], args].concat());
        assert!(finished.code == Some(2) && finished.stderr.contains(what), "{finished:?}");
    }
}
