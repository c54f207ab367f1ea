//! A hundred agents (twenty of a debug build), each in a network namespace: what their leader uses, and what all of
//! them send each other.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::fleet::{Fleet, url};
use crate::harness::brokers::Broker;
use crate::harness::eventually;
use crate::harness::executable::{self, Running};
use crate::harness::lowered::{Namespace, switched};
use crate::harness::recorder::Recorder;

const SECONDS: u64 = 10;

/// Agents. Two hundred processes without optimization need more than a few cores, which other tests use, too.
fn agents() -> usize {
    if executable::is_debug() { 20 } else { 100 }
}

/// The largest memory in KiB, and the processor time in clock ticks, of a process so far.
fn usage(pid: u32) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()?
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    Some((line.split_whitespace().nth(1)?.parse().ok()?, fields.get(10)? + fields.get(11)?))
}

fn ticks_per_second() -> f64 {
    let output = Command::new("getconf").arg("CLK_TCK").output().expect("getconf is there");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

/// A fleet in namespaces that a switch joins. Leader and server are at the switch, NATS is in one of the
/// namespaces and each agent in another one.
struct Machines {
    fleet: Fleet,
    hub: Namespace,
    nats: Arc<Namespace>,
    _agents: Vec<Namespace>,
}

impl Machines {
    /// `None` without a NATS server, or if namespaces cannot be made.
    fn start(agents: usize) -> Option<Machines> {
        let (hub, nats) = (Namespace::create()?, Arc::new(Namespace::create()?));
        let namespaces: Option<Vec<Namespace>> = (0..agents).map(|_| Namespace::create()).collect();
        let namespaces = namespaces?;
        hub.switch(std::iter::once(&*nats).chain(&namespaces));
        let broker = Broker::nats_in(&nats, SocketAddr::from((switched(1), 4222)))?;
        let mut fleet = Fleet::of(broker, 0);
        let allowed = ["--allow-target", &switched(0).to_string()];
        for (at, namespace) in namespaces.iter().enumerate() {
            let command = fleet.agent_command(&format!("agent-{at:03}"), &allowed);
            fleet.spawn(namespace.inside(&command));
        }
        Some(Machines { fleet, hub, nats, _agents: namespaces })
    }

    fn lead(&self, args: &[&str]) -> Running {
        let all = self.fleet.agents.len().to_string();
        let mut command = self.hub.inside(&self.fleet.command(&all, args));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().expect("the leader starts"))
    }
}

#[test]
fn the_leader_of_a_hundred_agents_is_small_and_says_little() {
    let agents = agents();
    let rate = 4 * agents;
    let Some(machines) = Machines::start(agents) else { return };
    let listener = machines.hub.within(|| TcpListener::bind((switched(0), 8080)));
    let listener = listener.expect("the port is free");
    let server = Recorder::on(vec![listener], 0, |_| (200, Vec::new(), "hello".to_owned()));
    let connections = (2 * agents).to_string();
    let (per_second, seconds) = (rate.to_string(), format!("{SECONDS}s"));
    let run = ["-c", &connections, "--rate", &per_second, "--duration", &seconds];
    let flags = ["--agents-within", "1m", "--fail", "errors<1"];
    let leader = machines.lead(&[&[&*url(&server)], &run[..], &flags].concat());
    let pid = leader.0.id();
    eventually("all agents send", || server.count() >= rate);
    // Of the seconds of the run alone; its begin and its end take more.
    let (from, ticks) = (machines.nats.cable_bytes(), usage(pid).expect("it runs").1);
    let sent = server.count();
    eventually("most is sent", || server.count() >= rate * (SECONDS as usize - 2));
    let (most, until) = (usage(pid).expect("it runs"), machines.nats.cable_bytes());
    let passed = (server.count() - sent) as f64 / rate as f64;
    // Results are merged at the end.
    let mut kib = most.0;
    let finished = thread::scope(|scope| {
        let finished = scope.spawn(|| executable::finish(leader));
        while !finished.is_finished() {
            kib = usage(pid).map_or(kib, |(now, _)| now.max(kib));
            thread::sleep(Duration::from_millis(10));
        }
        finished.join().expect("it ends")
    });
    let json = finished.json();
    assert_eq!(json["fleet"]["complete"], json!(true), "{finished:?}");
    assert_eq!(
        (json["requests"]["sent"].as_u64(), json["fleet"]["agents"].as_array().unwrap().len()),
        (Some(server.count() as u64), agents)
    );
    let core = (most.1 - ticks) as f64 / ticks_per_second() / passed;
    // What NATS receives and sends, with the heads of packets, and what it sends on to the leader.
    let per_agent = (until - from) as f64 / agents as f64 / passed;
    println!(
        "leader of {agents}: {kib} KiB, {:.2} % of a core; {per_agent:.0} bytes a second and agent",
        100.0 * core
    );
    assert!(per_agent <= 20_000.0, "{per_agent} bytes a second and agent");
    assert!(kib <= 64 * 1_024, "{kib} KiB");
    // Code without optimization takes several times as long.
    if !executable::is_debug() {
        assert!(core <= 0.02, "{core} of a core");
    }
}
