//! `standfast prove cluster`, small: a node that is killed and stopped loses nothing unexplained, and the same
//! proof of nodes that do not know of each other falls short; with Redis three nodes hold.

use std::fs;

use serde_json::Value;

use crate::harness::executable::{self, Finished, Running, standfast};
use crate::harness::{Scratch, eventually, skip};

/// Every field of docs/protocol/prove-cluster-json.md, as a JSON pointer.
const FIELDS: &[&str] = &[
    "/version",
    "/standfast",
    "/command",
    "/machine/kernel",
    "/settings/seed",
    "/unknown",
    "/settings/broker",
    "/settings/broker_version",
    "/settings/nodes",
    "/settings/clients",
    "/settings/topics",
    "/settings/rate",
    "/settings/duration_seconds",
    "/settings/cable",
    "/settings/history",
    "/settings/proxy",
    "/settings/serve",
    "/planned/0/from_ms",
    "/planned/0/until_ms",
    "/planned/0/kind",
    "/faults/0/text",
    "/faults/0/kind",
    "/faults/0/node",
    "/faults/0/from_seconds",
    "/faults/0/until_seconds",
    "/faults/0/losses",
    "/publications/sent",
    "/publications/acknowledged",
    "/publications/refused",
    "/publications/unanswered",
    "/subscribers/clients",
    "/subscribers/subscribed_at_the_end",
    "/subscribers/subscriptions",
    "/subscribers/ended",
    "/subscribers/unlogged",
    "/gaps_told/0",
    "/pairs",
    "/delivered",
    "/calm_pairs",
    "/calm_delivered",
    "/explained",
    "/unexplained/lost",
    "/unexplained/doubled",
    "/unexplained/reordered",
    "/unexplained/foreign",
    "/unexplained/damaged",
    "/doubled_explained",
    "/refused_delivered",
    "/unanswered_delivered",
    "/recovered",
    "/told_without_fault",
    "/examples",
    "/losses/0/second",
    "/losses/0/explained",
    "/losses/0/unexplained",
    "/seconds",
    "/verdict",
    "/reasons",
    "/samples/0/open",
];

const SMALL: [&str; 10] =
    ["prove", "cluster", "--clients", "200", "--topics", "6", "--rate", "60", "--duration", "8s"];

fn prove(more: &[&str]) -> Finished {
    executable::run(&[&SMALL[..], more].concat())
}

fn count(report: &Value, field: &str) -> u64 {
    let value = report.pointer(field).and_then(Value::as_u64);
    value.unwrap_or_else(|| panic!("no {field} in {report}"))
}

#[test]
fn a_node_that_is_killed_and_stopped_loses_nothing_unexplained() {
    let html = Scratch::new("cluster.html", "");
    for speech in [&[][..], &["--cable", "--proxy"][..]] {
        let one = ["--broker", "none", "--nodes", "1", "--seed", "3"];
        let files = ["--json", "-", "--html", html.path()];
        let finished = prove(&[&one[..], &files[..], speech].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let report = finished.json();
        for field in FIELDS {
            assert!(report.pointer(field).is_some(), "no {field} in {report}");
        }
        assert_eq!((&report["verdict"], &report["version"]), (&"HELD".into(), &1.into()));
        let kinds: Vec<_> =
            report["faults"].as_array().unwrap().iter().map(|one| one["kind"].as_str()).collect();
        for kind in ["node killed", "node stopped", "clients dropped"] {
            assert!(kinds.contains(&Some(kind)), "no {kind} in {kinds:?}");
        }
        let explained: u64 =
            report["explained"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        let (pairs, delivered) = (count(&report, "/pairs"), count(&report, "/delivered"));
        assert_eq!(delivered + explained, pairs, "every pair is one or the other: {report}");
        assert!(explained > 0 && delivered > explained, "{report}");
        assert_eq!(count(&report, "/subscribers/subscribed_at_the_end"), 200);
        assert_eq!(count(&report, "/calm_pairs"), count(&report, "/calm_delivered"));
        let page = fs::read_to_string(html.path()).unwrap();
        assert!(page.contains("Faults and losses over time") && page.contains("class=\"span\""));
    }
}

/// Nodes and Redis killed, stopped and cut off: every loss is told.
#[test]
fn three_nodes_on_redis_lose_nothing_unexplained() {
    if !fs::exists("/usr/bin/redis-server").unwrap_or(false) {
        return skip::missing("redis-server: try cargo xtask test --install");
    }
    let size = ["prove", "cluster", "--clients", "300", "--topics", "12", "--rate", "60"];
    let more = ["--duration", "15s", "--seed", "1", "--json", "-"];
    let finished = executable::run(&[&size[..], &more[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let report = finished.json();
    assert_eq!(report["verdict"], "HELD");
    let kinds = report["faults"].as_array().unwrap().iter().map(|one| one["kind"].as_str());
    let kinds: Vec<_> = kinds.flatten().collect();
    for kind in ["broker killed", "node killed", "node stopped", "link cut"] {
        assert!(kinds.contains(&kind), "no {kind} in {kinds:?}");
    }
    // Refused while Redis is away, and told by the nodes that lost it.
    assert!(count(&report, "/publications/refused/503") > 0, "{report}");
    let told: u64 = report["gaps_told"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert!(told > 0 && count(&report, "/delivered") > count(&report, "/pairs") / 2, "{report}");
    assert_eq!(count(&report, "/calm_pairs"), count(&report, "/calm_delivered"));
}

/// With a history clients get what they missed, at whichever node they come to.
#[test]
fn three_nodes_with_a_history_on_redis_lose_nothing() {
    if !fs::exists("/usr/bin/redis-server").unwrap_or(false) {
        return skip::missing("redis-server: try cargo xtask test --install");
    }
    let size = ["prove", "cluster", "--clients", "300", "--topics", "12", "--rate", "60"];
    let faults = "kill-node,stop-node,cut-link,delay-link,half-open,drop-clients";
    let more = ["--history", "--faults", faults, "--duration", "15s", "--seed", "1"];
    let finished = executable::run(&[&size[..], &more[..], &["--json", "-"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let report = finished.json();
    assert_eq!(report["verdict"], "HELD");
    assert_eq!(count(&report, "/delivered"), count(&report, "/pairs"), "{report}");
    // How many depends on what was under way at each fault.
    assert!(count(&report, "/recovered") > 0, "{report}");
}

/// NATS has its stream in files, so even a killed one loses nothing.
#[test]
fn three_nodes_with_a_history_on_nats_lose_nothing_although_it_is_killed() {
    if !fs::exists("/usr/sbin/nats-server").unwrap_or(false) {
        return skip::missing("nats-server: try cargo xtask test --install");
    }
    let size = ["prove", "cluster", "--clients", "300", "--topics", "12", "--rate", "60"];
    let more = ["--broker", "nats", "--history", "--duration", "15s", "--seed", "1"];
    let finished = executable::run(&[&size[..], &more[..], &["--json", "-"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let report = finished.json();
    assert_eq!(report["verdict"], "HELD");
    let kinds = report["faults"].as_array().unwrap().iter().map(|one| one["kind"].as_str());
    assert!(kinds.flatten().any(|kind| kind == "broker killed"), "{report}");
    assert_eq!(count(&report, "/delivered"), count(&report, "/pairs"), "{report}");
    assert!(count(&report, "/recovered") > 100, "{report}");
}

/// The checker's own proof: it must be able to fall short.
#[test]
fn nodes_that_do_not_know_of_each_other_fall_short() {
    let finished =
        prove(&["--broker", "none", "--seed", "4", "--faults", "drop-clients", "--json", "-"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let report = finished.json();
    assert_eq!(report["verdict"], "FELL SHORT");
    // Of each publication two thirds of the clients know nothing.
    let (pairs, lost) = (count(&report, "/pairs"), count(&report, "/unexplained/lost"));
    assert!(lost > pairs / 3 && lost < pairs * 4 / 5, "{lost} of {pairs}");
    assert!(finished.stderr.contains("lost and unexplained"), "{}", finished.stderr);
    assert_eq!(report["examples"].as_array().map(Vec::len), Some(20));
}

#[test]
fn killed_proof_leaves_no_process_behind() {
    let flags = ["--broker", "none", "--proxy", "--faults", "stop-node", "--duration", "60s"];
    let mut prove = standfast(&[&["prove", "cluster", "--clients", "20"], &flags[..]].concat());
    let prove = Running(prove.spawn().expect("the executable starts"));
    let mut children = String::new();
    eventually("three nodes and the proxy are there, one of them stopped", || {
        let of = format!("/proc/{0}/task/{0}/children", prove.0.id());
        children = fs::read_to_string(of).expect("prove runs");
        let is_stopped = |child: &str| {
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.contains(") T ")
        };
        children.split_whitespace().count() == 4 && children.split_whitespace().any(is_stopped)
    });
    // Dropping it sends SIGKILL.
    drop(prove);
    let runs = |child: &str| fs::exists(format!("/proc/{child}")).unwrap_or(true);
    eventually("all four have ended", || !children.split_whitespace().any(runs));
}

#[test]
fn mistakes_are_explained_before_anything_is_started() {
    let mut without = standfast(&["prove", "cluster"]);
    without.env("PATH", "/nonexistent");
    let finished = executable::run_command(without);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for word in ["redis-server is not installed", "apt-get install redis-server", "--redis-url"] {
        assert!(finished.stderr.contains(word), "no {word:?} in {}", finished.stderr);
    }
    for (flags, named) in [
        (&["--nodes", "0"][..], "--nodes"),
        (&["--topics", "200"], "--topics"),
        (&["--duration", "1s"], "--duration"),
        (&["--broker", "none", "--faults", "cut-link"], "cut-link"),
        (&["--broker", "none", "--history"], "--broker redis or nats"),
        (&["--redis-url", "redis://192.0.2.1:6379"], "loopback"),
        (&["--broker", "nats", "--redis-url", "redis://127.0.0.1:6379"], "--broker nats"),
    ] {
        let finished = executable::run(&[&["prove", "cluster"], flags].concat());
        assert_eq!(finished.code, Some(2), "{flags:?}: {finished:?}");
        assert!(finished.stderr.contains(named), "{flags:?}: {}", finished.stderr);
    }
}
