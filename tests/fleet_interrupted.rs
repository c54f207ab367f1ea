//! Ctrl-C while a fleet gets ready, runs and ends: nothing is waited for that cannot come, also with an agent that
//! is stopped.

use std::fs::{self, File};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::fleet::{Fleet, end, load_of, url};
use crate::harness::brokers::NatsClient;
use crate::harness::eventually;
use crate::harness::executable::{self, Running};
use crate::harness::recorder::Recorder;

/// Ctrl-C until the process has ended, as an impatient user does.
fn interrupt(running: &mut Running) -> Option<i32> {
    let mut status = None;
    eventually("it ends", || {
        status = running.0.try_wait().expect("it is ours");
        if status.is_none() {
            end(running, Signal::INT);
        }
        status.is_some()
    });
    status.and_then(|status| status.code())
}

#[test]
fn ctrl_c_before_the_start_starts_nothing_and_frees_the_agents() {
    let Some(fleet) = Fleet::start(2) else { return };
    let server = Recorder::hello();
    let mut listener = NatsClient::connect(&fleet.broker, "", "");
    listener.subscribe("standfast.fleet.standfast.to.*");
    let url = url(&server);
    let leader = fleet.lead(&[&url, "-c", "2", "--duration", "10m"]);
    // Two seconds before the start each agent is told when that is.
    while !listener.message().1.starts_with("{\"begin\"") {}
    end(&leader, Signal::INT);
    let finished = executable::finish(leader);
    assert_eq!((finished.code, &*finished.stdout), (Some(130), ""), "{finished:?}");
    assert!(finished.stderr.contains("interrupted: nothing was started"), "{finished:?}");
    // The agents take another run, and the server has seen nothing of the first.
    assert_eq!(server.count(), 0);
    let next = fleet.run(&[&url, "-c", "2", "--requests", "8"]);
    assert_eq!((next.code, server.count()), (Some(0), 8), "{next:?}");
}

#[test]
fn an_agent_that_is_restarted_while_others_are_awaited_is_counted_once() {
    let Some(mut fleet) = Fleet::start(1) else { return };
    let server = Recorder::hello();
    let mut listener = NatsClient::connect(&fleet.broker, "", "");
    listener.subscribe("standfast.fleet.standfast.to.*");
    let leader = fleet.lead_of("2", &[&url(&server), "-c", "2", "--requests", "8"]);
    let mut answered = || loop {
        let (_, message) = listener.message();
        let message: Value = serde_json::from_str(message.trim()).expect("JSON");
        if !message["says"]["here"].is_null() {
            break message["agent"].as_str().unwrap().to_owned();
        }
    };
    let first = answered();
    end(&fleet.agents[0], Signal::KILL);
    fleet.agent("agent-01", &[]);
    while answered() == first {}
    fleet.agent("agent-02", &[]);
    let finished = executable::finish(leader);
    assert_eq!((finished.code, server.count()), (Some(0), 8), "{finished:?}");
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_an_agent_that_is_stopped() {
    let Some(fleet) = Fleet::start(2) else { return };
    let server = Recorder::hello();
    let mut leader = fleet.lead(&[&url(&server), "-c", "4", "--rate", "50", "--duration", "10m"]);
    eventually("both send", || server.count() > 20);
    end(&fleet.agents[1], Signal::STOP);
    assert_eq!(interrupt(&mut leader), Some(130));
    let finished = executable::finish(leader);
    let json = finished.json();
    assert_eq!((&json["held"], &json["fleet"]["complete"]), (&json!(false), &json!(false)));
    let missing = &json["fleet"]["agents"][1]["missing"];
    assert_eq!(missing, "interrupted before it had sent its result", "{json}");
    end(&fleet.agents[1], Signal::CONT);
}

#[test]
fn an_agent_ends_on_ctrl_c_although_its_load_does_not_read_what_a_setup_captured() {
    let Some(mut fleet) = Fleet::start(2) else { return };
    let may_answer = Arc::new(AtomicBool::new(false));
    let may = Arc::clone(&may_answer);
    // Together more than a pipe takes.
    let server = Recorder::start(move |_| {
        eventually("the load is stopped", || may.load(Ordering::Relaxed));
        let token = "x".repeat(60_000);
        (200, Vec::new(), json!({ "a": token, "b": token, "c": token }).to_string())
    });
    let scenario = format!(
        "version = 1\ntarget = '{}'\nusers = 2\npasses = 1\n[setup]\n[[setup.steps]]\nurl = '/login'\n\
         capture = {{ a = {{ json = '$.a' }}, b = {{ json = '$.b' }}, c = {{ json = '$.c' }} }}\n\
         [[flows]]\n[[flows.steps]]\nurl = '/'\n",
        url(&server).trim_end_matches('/')
    );
    fs::write(fleet.folder().join("run.toml"), scenario).expect("it can be written");
    let mut seen = NatsClient::connect(&fleet.broker, "", "");
    seen.subscribe("standfast.fleet.standfast.to.*");
    let mut command = fleet.command("2", &["run.toml"]);
    command.current_dir(fleet.folder());
    let _leader = Running(command.spawn().expect("the leader starts"));
    eventually("the setup is made", || server.count() > 0);
    kill_process(load_of(&fleet.agents[1]).expect("a load"), Signal::STOP).expect("it runs");
    may_answer.store(true, Ordering::Relaxed);
    let mut message = || seen.message().1;
    let is_order = |message: &str| message.starts_with("{\"set_up\"") && message.contains("xxxx");
    while !is_order(&message()) {}
    // The agent says again and again that it has the order, which is long and does not come again.
    let mut said = 0;
    while said < 5 {
        let message = message();
        assert!(said < 2 || !is_order(&message), "it was answered");
        said += usize::from(message.contains("\"setting_up\""));
    }
    assert_eq!(interrupt(&mut fleet.agents[1]), Some(0));
}

#[test]
fn a_proof_ends_at_once_on_ctrl_c_although_a_load_takes_no_command() {
    // While the sockets are held, and while all agents have to take the next command.
    for (hold, begun, stops_in) in
        [("10m", "connected: 20 open", "connected: 20 open"), ("4s", "holding ", "held for ")]
    {
        let Some(fleet) = Fleet::start(2) else { return };
        let (log, json) = (fleet.folder().join("log"), fleet.folder().join("json"));
        let (nats, path) = (fleet.broker.url(""), json.to_str().expect("a plain path"));
        let mut proof = executable::standfast(&[
            "prove",
            "--agents=2",
            "--nats",
            &nats,
            "--connections=20",
            "--heartbeat=1s",
            "--broadcasts=1",
            "--plain",
            "--hold",
            hold,
            "--json",
            path,
        ]);
        proof.stdout(Stdio::null()).stderr(File::create(&log).expect("a log"));
        let mut proof = Running(proof.spawn().expect("it starts"));
        let has = |text: &str| fs::read_to_string(&log).unwrap_or_default().contains(text);
        eventually("the sockets are open", || has(begun));
        kill_process(load_of(&fleet.agents[1]).expect("a load"), Signal::STOP).expect("it runs");
        eventually("the phase", || has(stops_in));
        assert_eq!(interrupt(&mut proof), Some(130));
        let json: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        let of_fleet = &json["fleet"];
        assert_eq!(
            (&json["verdict"], &of_fleet["complete"]),
            (&json!("INTERRUPTED"), &json!(false))
        );
        let missing = &of_fleet["agents"][1]["missing"];
        assert_eq!(missing, "interrupted before it had sent its result", "{json}");
        assert!(!json["reasons"].to_string().contains("no broadcast"), "{json}");
        // The agent ends the load, and is free.
        eventually("it is free", || load_of(&fleet.agents[1]).is_none());
    }
}
