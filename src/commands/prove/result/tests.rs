//! Tests of the verdict and its texts.

use std::time::Duration;

use load::{EchoSummary, HeartbeatSummary};

use super::*;
use crate::commands::prove::plan::Messages;

fn measured() -> Measured {
    let mut m = Measured::new(10);
    m.open = 10;
    m.unanswered = Some(0);
    let broadcast = BroadcastSummary { expected: 10, received: 10, ..BroadcastSummary::default() };
    let heartbeats = HeartbeatSummary { sent: 10, received: 10, ..HeartbeatSummary::default() };
    m.load = Some(Outcome {
        heartbeats: Some(heartbeats),
        broadcast: Some(broadcast),
        closed: [("gone".to_owned(), 0)].into(),
        ..Outcome::default()
    });
    m
}

#[test]
fn connections_per_second_are_those_that_opened() {
    let mut m = measured();
    (m.failed, m.connect_seconds) = (2, 2.0);
    load(&mut m).connections.opened = Some(9);
    load(&mut m).connections.replaced = Some(2);
    // One of ten never opened, two failed, and two were opened again.
    assert_eq!(m.opened(), 7);
    m.load = None;
    assert_eq!(m.opened(), 10);
}

fn load(m: &mut Measured) -> &mut Outcome {
    m.load.as_mut().unwrap()
}

fn broadcast(m: &mut Measured) -> &mut BroadcastSummary {
    load(m).broadcast.as_mut().unwrap()
}

fn plan(messages: Option<Messages>) -> Plan {
    let second = Duration::from_secs(1);
    Plan {
        scenario: None,
        about: None,
        connections: Some(10),
        connect: load::Connect::Windowed,
        hold: second,
        heartbeat: second,
        broadcasts: 1,
        messages,
        link: None,
        cable: false,
        stale_after: None,
        churn: None,
        rounds: Vec::new(),
        cells: Vec::new(),
        proxies: Vec::new(),
        serve: Vec::new(),
        listen: None,
        has_servers: false,
        force: false,
    }
}

fn verdict(m: Measured) -> (&'static str, String) {
    let proof = Proof::judge(m, &Machine::read(), &plan(None));
    (proof.verdict, proof.reasons.join("; "))
}

#[test]
fn kernel_memory_is_that_of_the_opening_sockets_or_implausible() {
    let proof = |ramp| {
        let m = Measured { kernel_ramp: ramp, ..measured() };
        let proof = Proof::judge(m, &Machine::read(), &plan(None));
        let of = (proof.kernel_bytes_per_socket, proof.kernel_bytes_implausible);
        (of, proof.kernel_bytes_unknown.unwrap_or_default())
    };
    assert_eq!(proof(Some((84_000, 10))), ((Some(4_200.0), None), ""));
    let others = "other programs allocated or freed kernel memory meanwhile";
    for (bytes, each) in [(0, 0.0), (-20_000, -1_000.0), (2_000_000_000, 1e8)] {
        assert_eq!(proof(Some((bytes, 10))), ((None, Some(each)), others));
    }
    assert_eq!(proof(Some((7, 0))), ((None, None), "no socket was opened"));
    assert!(proof(None).1.contains("/proc/meminfo"));
}

#[test]
fn any_failure_prevents_held() {
    assert_eq!(verdict(measured()), (HELD, String::new()));
    type Spoil = fn(&mut Measured);
    let spoilt: [(Spoil, &str); 10] = [
        (|m| load(m).cable.get_or_insert_default().waiting = 6, "6 sockets are open"),
        (|m| m.failed = 1, "1 connections failed"),
        (|m| m.open = 9, "1 requested sockets"),
        (|m| m.unanswered = Some(2), "2 sockets answered no heartbeat"),
        (|m| m.unanswered = None, "no heartbeats and no messages"),
        (|m| broadcast(m).lost = 3, "3 broadcast deliveries"),
        (|m| broadcast(m).duplicated = 4, "were duplicated"),
        (|m| load(m).closed = [("gone".to_owned(), 5)].into(), "gone 5"),
        (|m| load(m).broadcast = None, "reported no broadcast"),
        (|m| m.load = None, "reported no outcome"),
    ];
    for (spoil, why) in spoilt {
        let mut m = measured();
        spoil(&mut m);
        let (verdict, reasons) = verdict(m);
        assert_eq!(verdict, FELL_SHORT, "{why}");
        assert!(reasons.contains(why), "{reasons}");
    }
    let mut m = measured();
    m.interrupted = true;
    assert_eq!(verdict(m).0, INTERRUPTED);
}

#[test]
fn every_message_must_be_echoed() {
    let every = Duration::from_millis(100);
    let plan = plan(Some(Messages { every, size: 20 }));
    let times = |p99_ms| Latency { p99_ms, count: 100, ..Latency::default() };
    let run = |lost, lag_ms| {
        let mut m = measured();
        m.unanswered = None;
        let echo = EchoSummary { sent: 100, received: 100, lost, ..EchoSummary::default() };
        load(&mut m).echo = Some(echo);
        load(&mut m).latency = Some(times(20.0 + lag_ms));
        load(&mut m).service_time = Some(times(20.0));
        m
    };
    let unknown = |mut m: Measured| {
        load(&mut m).latency = None;
        m
    };
    let unreported = |mut m: Measured| {
        load(&mut m).echo = None;
        m
    };
    for (measured, verdict, why) in [
        (run(0, 0.0), HELD, ""),
        (run(1, 0.0), FELL_SHORT, "1 messages were not answered"),
        (run(0, 3_000.0), FELL_SHORT, "sent 25 of 100 requested messages per second"),
        (unknown(run(0, 0.0)), FELL_SHORT, "unknown whether messages were sent on time"),
        (unreported(run(0, 0.0)), FELL_SHORT, "reported no messages"),
    ] {
        let proof = Proof::judge(measured, &Machine::read(), &plan);
        assert_eq!(proof.verdict, verdict, "{:?}", proof.reasons);
        assert!(proof.reasons.join("; ").contains(why), "{why}: {:?}", proof.reasons);
    }
}
