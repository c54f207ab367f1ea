//! A hundred agents on one machine: what their leader uses, and what they send each other.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fleet::{Fleet, url};
use crate::harness::brokers::Broker;
use crate::harness::executable::{self, Running};
use crate::harness::recorder::Recorder;
use crate::harness::{Deserted, eventually};

const AGENTS: usize = 100;
const SECONDS: u64 = 10;

/// The bytes that a NATS server has received and sent.
fn bytes(monitor: SocketAddr) -> Option<u64> {
    let mut stream = TcpStream::connect(monitor).ok()?;
    stream.write_all(b"GET /varz HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let varz: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1)?).ok()?;
    Some(varz["in_bytes"].as_u64()? + varz["out_bytes"].as_u64()?)
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

#[test]
fn the_leader_of_a_hundred_agents_is_small_and_says_little() {
    let monitor = Deserted::port();
    let port = monitor.address.port().to_string();
    let Some(broker) = Broker::nats(&["-m", &port]) else { return };
    let fleet = Fleet::of(broker, AGENTS);
    let server = Recorder::hello();
    let (connections, seconds) = ((2 * AGENTS).to_string(), format!("{SECONDS}s"));
    let flags =
        ["--rate", "400", "--duration", &seconds, "--agents-within", "1m", "--fail", "errors<1"];
    let leader: Running = fleet.lead(&[&[&*url(&server), "-c", &connections], &flags[..]].concat());
    let pid = leader.0.id();
    eventually("all agents send", || server.count() >= 400);
    // Of the seconds of the run alone; its begin and its end take more.
    let (from, ticks) =
        (bytes(monitor.address).expect("it counts"), usage(pid).expect("it runs").1);
    let sent = server.count();
    eventually("most is sent", || server.count() >= 400 * (SECONDS as usize - 2));
    let (most, until) = (usage(pid).expect("it runs"), bytes(monitor.address).expect("it counts"));
    let passed = (server.count() - sent) as f64 / 400.0;
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
        (Some(server.count() as u64), AGENTS)
    );
    let core = (most.1 - ticks) as f64 / ticks_per_second() / passed;
    let per_agent = (until - from) as f64 / AGENTS as f64 / passed;
    println!(
        "leader: {} KiB, {:.2} % of a core; {per_agent:.0} bytes a second and agent",
        kib,
        100.0 * core
    );
    assert!(per_agent <= 20_000.0, "{per_agent} bytes a second and agent");
    assert!(kib <= 64 * 1_024, "{kib} KiB");
    if !executable::is_debug() {
        assert!(core <= 0.02, "{core} of a core");
    }
}
