//! Leaders of fleets that are killed, whatever they are at: no load goes on, and all agents are free again within
//! ten seconds.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fleet::{Fleet, end, url};
use crate::harness::brokers::NatsClient;
use crate::harness::eventually;
use crate::harness::executable::{self, Running};
use crate::harness::recorder::Recorder;

const AGENTS: usize = 2;
/// The most time without a leader.
const ORPHANED_MAX: Duration = Duration::from_secs(10);

/// What a leader is at when it is killed.
#[derive(Copy, Clone, Debug)]
enum Phase {
    /// It looks for agents.
    Calling,
    /// It has sent the first plan.
    Planning,
    /// It sends files.
    Sending,
    /// An agent is ready.
    Waiting,
    /// It has told the first agent when to begin.
    Starting,
    Running,
    /// It has told the agents to stop.
    Stopping,
    /// An agent has a result.
    Fetching,
}

const PHASES: [Phase; 8] = [
    Phase::Calling,
    Phase::Planning,
    Phase::Sending,
    Phase::Waiting,
    Phase::Starting,
    Phase::Running,
    Phase::Stopping,
    Phase::Fetching,
];

impl Phase {
    /// A part of the first message of it.
    fn sign(self) -> &'static str {
        match self {
            Phase::Calling => r#"{"call":"#,
            Phase::Planning => r#"{"plan":"#,
            Phase::Sending => r#"{"piece":"#,
            Phase::Waiting => r#""says":{"ready":"#,
            Phase::Starting => r#"{"begin":"#,
            Phase::Running => r#"{"row":"#,
            Phase::Stopping => r#""stop":true"#,
            Phase::Fetching => r#""says":{"done":"#,
        }
    }
}

/// Asks all agents, until each is free. All of them have answered before.
fn wait_until_free(fleet: &Fleet) {
    let mut answers = NatsClient::connect(&fleet.broker, "", "");
    answers.subscribe("standfast.fleet.standfast.to.asker");
    let mut calls = NatsClient::connect(&fleet.broker, "", "");
    let call = format!("{}\n", json!({ "call": { "leader": "asker" } }));
    eventually("all agents are free", || {
        calls.publish("standfast.fleet.standfast.all", &call);
        let mut is_busy = || {
            let (_, here) = answers.message();
            let here: Value = serde_json::from_str(here.trim()).expect("JSON");
            here["says"]["here"]["busy"] == json!(true)
        };
        // All answers are taken.
        (0..AGENTS).filter(|_| is_busy()).count() == 0
    });
}

/// Processes that an agent has started.
fn children(agent: &Running) -> usize {
    let pid = agent.0.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap_or_default().split_whitespace().count()
}

fn kill(phase: Phase) {
    let Some(fleet) = Fleet::start(AGENTS) else { return };
    eventually("all agents answer", || {
        let listed = ["fleet", "list", "--json=-", "--nats", &fleet.broker.url("")];
        executable::run(&listed).json()["agents"].as_array().map(Vec::len) == Some(AGENTS)
    });
    let server = Recorder::hello();
    let mut seen = NatsClient::connect(&fleet.broker, "", "");
    seen.subscribe("standfast.fleet.standfast.>");
    let body = fleet.folder().join("body.txt");
    fs::write(body, "x".repeat(300_000)).expect("a file");
    let url = url(&server);
    let mut args = vec![url.as_str(), "-c", "4", "--rate", "20"];
    match phase {
        Phase::Sending => args.extend(["-d", "@body.txt", "--requests", "1"]),
        Phase::Fetching => args.extend(["--requests", "20"]),
        _ => args.extend(["--duration", "10m"]),
    }
    let mut command = fleet.command(&AGENTS.to_string(), &args);
    command.current_dir(fleet.folder());
    let leader = Running(command.spawn().expect("the leader starts"));
    if matches!(phase, Phase::Stopping) {
        eventually("both send", || server.count() > 20);
        end(&leader, Signal::INT);
    }
    let started = Instant::now();
    while !seen.message().1.contains(phase.sign()) {
        assert!(started.elapsed() < Duration::from_secs(60), "{phase:?} has not begun");
    }
    end(&leader, Signal::KILL);
    let killed = Instant::now();
    drop(leader);
    wait_until_free(&fleet);
    let orphaned = killed.elapsed();
    let loads: usize = fleet.agents.iter().map(children).sum();
    assert_eq!(loads, 0, "{phase:?}");
    println!("{phase:?}: free after {:.1} s", orphaned.as_secs_f64());
    assert!(orphaned <= ORPHANED_MAX, "{phase:?}: {orphaned:?}");
    // No request of the run comes any more, and the agents are as good as before.
    let before = server.count();
    let next = fleet.run(&[&url, "-c", "2", "--requests", "7"]);
    assert_eq!((next.code, server.count()), (Some(0), before + 7), "{phase:?}: {next:?}");
    eventually("nothing of the runs is left", || fleet.runs().is_empty());
}

#[test]
fn whatever_a_leader_is_at_when_it_is_killed_its_agents_are_free_within_ten_seconds() {
    for some in PHASES.chunks(4) {
        thread::scope(|scope| {
            for phase in some {
                scope.spawn(move || kill(*phase));
            }
        });
    }
}
