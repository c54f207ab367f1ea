//! Fleets under faults of a seed: whatever happens, the run ends, and either every count is that of the server, or
//! it is INCOMPLETE and says what is missing.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fleet::{Fleet, end, url};
use crate::harness::eventually;
use crate::harness::executable::{self, Running};
use crate::harness::recorder::Recorder;
use crate::harness::server::Server;
use crate::load_saturation::{busy_loops, on_one_core};

/// Seeds of a test.
const SEEDS: u64 = 11;
/// Shorter and longer than the lease of agents and leaders, which is 6 s.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(9)];

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Fault {
    /// An agent is killed.
    Lost,
    /// The load of an agent is killed, as by a kernel without memory.
    OutOfMemory,
    /// The load of an agent hangs.
    Hung,
    /// The load of an agent is stopped for a while, as on a machine that has too much to do.
    Slow,
    /// An agent is stopped for a while.
    Paused(Duration),
    /// An agent is killed and another of its name starts.
    Restarted,
    /// The NATS server is stopped for a while, as behind a cut cable.
    Partitioned(Duration),
    /// The NATS server is restarted.
    BrokerRestarted,
    /// Ctrl-C.
    Interrupted,
}

/// What must come of a run.
#[derive(PartialEq, Eq, Debug)]
enum Expected {
    Complete,
    Incomplete,
}

impl Fault {
    fn of(seed: u64) -> Fault {
        let all = [
            Fault::Lost,
            Fault::Paused(PAUSES[0]),
            Fault::BrokerRestarted,
            Fault::OutOfMemory,
            Fault::Hung,
            Fault::Partitioned(PAUSES[0]),
            Fault::Restarted,
            Fault::Paused(PAUSES[1]),
            Fault::Partitioned(PAUSES[1]),
            Fault::Interrupted,
            Fault::Slow,
        ];
        all[(seed % all.len() as u64) as usize]
    }

    fn expected(self) -> Expected {
        match self {
            Fault::Paused(pause) | Fault::Partitioned(pause) if pause == PAUSES[0] => {
                Expected::Complete
            }
            Fault::BrokerRestarted | Fault::Interrupted | Fault::Slow => Expected::Complete,
            _ => Expected::Incomplete,
        }
    }

    fn strike(self, fleet: &mut Fleet, agent: usize, leader: &Running) {
        match self {
            Fault::Lost => end(&fleet.agents[agent], Signal::KILL),
            Fault::OutOfMemory => kill_process(load(fleet, agent), Signal::KILL).expect("it runs"),
            Fault::Hung => kill_process(load(fleet, agent), Signal::STOP).expect("it runs"),
            Fault::Slow => {
                let load = load(fleet, agent);
                kill_process(load, Signal::STOP).expect("it runs");
                thread::sleep(PAUSES[0]);
                kill_process(load, Signal::CONT).expect("it is stopped");
            }
            Fault::Paused(pause) => {
                // The load goes on, as it is another process.
                end(&fleet.agents[agent], Signal::STOP);
                thread::sleep(pause);
                end(&fleet.agents[agent], Signal::CONT);
            }
            Fault::Restarted => {
                end(&fleet.agents[agent], Signal::KILL);
                fleet.agent(&format!("agent-{:02}", agent + 1), &[]);
            }
            Fault::Partitioned(pause) => {
                fleet.broker.signal(Signal::STOP);
                thread::sleep(pause);
                fleet.broker.signal(Signal::CONT);
            }
            Fault::BrokerRestarted => fleet.broker.restart(),
            Fault::Interrupted => end(leader, Signal::INT),
        }
    }
}

/// The load of an agent.
fn load(fleet: &Fleet, agent: usize) -> Pid {
    let pid = fleet.agents[agent].0.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let load = children.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    Pid::from_raw(load).unwrap()
}

fn run(seed: u64) {
    let Some(mut fleet) = Fleet::start(3) else { return };
    let (fault, server) = (Fault::of(seed), Recorder::hello());
    let requests = 900;
    let number = requests.to_string();
    let flags = ["-c", "9", "--rate", "60", "--requests", &number, "--fail", "errors<100%"];
    let leader = fleet.lead(&[&[url(&server).as_str()], &flags[..]].concat());
    let strikes_at = 10 + (seed * 37 % 200) as usize;
    eventually("the fault's time comes", || server.count() >= strikes_at);
    fault.strike(&mut fleet, (seed % 3) as usize, &leader);
    let finished = executable::finish(leader);
    let what = format!("seed {seed}, {fault:?}: {finished:?}");
    let json = finished.json();
    let complete = json["fleet"]["complete"] == json!(true);
    let expected = if complete { Expected::Complete } else { Expected::Incomplete };
    assert_eq!(expected, fault.expected(), "{what}");
    let sent = json["requests"]["sent"].as_u64().unwrap_or(0) as usize;
    if complete {
        assert_eq!(server.count(), sent, "{what}");
        assert!(fault == Fault::Interrupted || sent == requests, "{what}");
    } else {
        // A threshold that is met does not make it hold.
        assert_eq!(
            (finished.code, &json["held"], &json["tolerated"]),
            (Some(1), &json!(false), &json!(false))
        );
        assert!(!json["fleet"]["missing"].as_array().unwrap().is_empty(), "{what}");
        assert!(server.count() > sent, "{what}");
        // Nothing goes on without its leader.
        let mut before = usize::MAX;
        eventually("all loads have ended", || {
            thread::sleep(Duration::from_secs(1));
            std::mem::replace(&mut before, server.count()) == server.count()
        });
    }
}

#[test]
fn whatever_happens_a_run_ends_and_its_counts_are_true() {
    let number = std::env::var("STANDFAST_FLEET_SEEDS").ok().and_then(|text| text.parse().ok());
    let seeds: Vec<u64> = (0..number.unwrap_or(SEEDS)).collect();
    for some in seeds.chunks(4) {
        thread::scope(|scope| {
            for seed in some {
                scope.spawn(move || run(*seed));
            }
        });
    }
}

#[test]
fn a_saturated_agent_is_named_and_meets_no_threshold_on_a_time() {
    let Some(mut fleet) = Fleet::start(1) else { return };
    fleet.spawn_by(fleet.agent_command("slow", &[]), on_one_core);
    let server = Server::start(&[]);
    let _busy = busy_loops(3);
    let url = format!("http://{}/health", server.listen);
    let fails = ["--fail", "p99<10ms", "--fail", "errors<1"];
    let finished = fleet.run(&[&[&*url, "-c", "100", "--duration", "3s"], &fails[..]].concat());
    let json = finished.json();
    assert_eq!(
        (finished.code, &json["fleet"]["complete"]),
        (Some(1), &json!(true)),
        "{finished:?}"
    );
    assert_eq!(json["generator"]["saturated"], json!(true), "{finished:?}");
    let reasons = json["generator"]["reasons"].as_array().unwrap();
    let is_named = |reason: &Value| reason.as_str().unwrap().starts_with("slow: ");
    assert!(reasons.iter().any(is_named), "{finished:?}");
    assert!(finished.stderr.contains("SATURATED"), "{finished:?}");
    assert_eq!(json["thresholds"][0]["why"], json!("the generator was saturated"), "{finished:?}");
}
