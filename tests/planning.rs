//! `standfast plan` and `standfast load compare`: their output and exit codes.

use serde_json::Value;

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::server::Server;

#[test]
fn plan_prints_the_example_of_its_docs_page() {
    let finished = executable::run(&["plan", "--views", "30M", "--per-machine", "69"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let page = include_str!("../docs/load/plan.md");
    assert!(page.contains(&finished.stdout), "the docs page shows the output: {}", finished.stdout);
    let json = ["plan", "--views", "30M", "--per-machine", "69", "--json", "-"];
    let plan = json_of(&executable::run(&json));
    assert_eq!((&plan["requests"]["per_second"], &plan["machines"]), (&1389.into(), &21.into()));
    let nothing = executable::run(&["plan"]);
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    assert!(nothing.stderr.contains("--views 30M --per-machine 69"), "{}", nothing.stderr);
}

#[test]
fn plan_uses_the_memory_and_cpu_of_a_measured_run() {
    let server = Server::start(&[]);
    let run = Scratch::new("plan-run.json", "");
    echo(&server, &run, &["--watch-pid", &server.pid().to_string()]);
    let goal = ["--connections", "1M", "--messages", "50k", "--memory", "16GiB", "--cores", "4"];
    let plan =
        executable::run(&[&["plan"], &goal[..], &["--from", run.path(), "--json", "-"]].concat());
    let plan = json_of(&plan);
    let run: Value = serde_json::from_str(&std::fs::read_to_string(run.path()).unwrap()).unwrap();
    let each = run["watched"]["rss_bytes_per_connection"].as_f64().unwrap();
    let memory = &plan["memory"];
    assert_eq!(memory["bytes_per_connection"].as_f64(), Some(each), "{plan}");
    assert_eq!(memory["bytes"].as_u64(), Some((each * 1e6) as u64), "{plan}");
    let cpu = run["watched"]["cpu_ms_per_1000_messages"].as_f64().unwrap();
    let cores = plan["cpu"]["cores"].as_f64().unwrap();
    assert!((cores - cpu * 0.05).abs() < 1e-5, "50,000 a second: {plan}");
}

#[test]
fn two_runs_are_compared() {
    let server = Server::start(&[]);
    let [one, other, more] =
        ["one", "other", "more"].map(|name| Scratch::new(&format!("compare-{name}.json"), ""));
    echo(&server, &one, &[]);
    echo(&server, &other, &[]);
    let compare = |more: &[&str]| executable::run(&[&["load", "compare"], more].concat());
    let short = compare(&[one.path(), one.path()]);
    assert!(short.code == Some(2) && short.stderr.contains("runs of 10 s"), "{short:?}");
    let same = compare(&[one.path(), one.path(), "--max-regression", "p99=0%", "--json", "-"]);
    assert_eq!(same.code, Some(0), "{same:?}");
    let value = json_of(&same);
    assert_eq!(
        (&value["regressed"], &value["of"]),
        (&false.into(), &"messages that come back".into())
    );
    // An increased latency is found.
    let mut value: Value =
        serde_json::from_str(&std::fs::read_to_string(other.path()).unwrap()).unwrap();
    for key in ["p50_ms", "p90_ms", "p99_ms", "p999_ms"] {
        value["latency"][key] = 1e6.into();
    }
    other.write(&value.to_string());
    let worse = compare(&[one.path(), other.path(), "--max-regression", "p99=50%"]);
    assert_eq!(worse.code, Some(1), "{worse:?}");
    assert!(worse.stdout.contains("WORSE") && worse.stdout.contains("p99"), "{}", worse.stdout);
    let url = format!("ws://{}/echo", server.listen);
    let held = ["--connections", "3", "--hold", "1s", "--json", more.path()];
    assert_eq!(executable::run(&[&["load", &url], &held[..]].concat()).code, Some(0));
    let unlike = compare(&[one.path(), more.path()]);
    assert_eq!(unlike.code, Some(2), "{unlike:?}");
    assert!(unlike.stderr.contains("cannot compare"), "{}", unlike.stderr);
    let missing = compare(&[one.path(), "/no/such/file"]);
    assert!(missing.code == Some(2) && missing.stderr.contains("/no/such/file"), "{missing:?}");
}

#[test]
fn runs_of_requests_can_be_compared_and_planned_from() {
    let server = Server::start(&[]);
    let [one, fewer] = ["one", "fewer"].map(|name| Scratch::new(&format!("http-{name}.json"), ""));
    let url = format!("http://{}/health", server.listen);
    for (file, connections) in [(&one, "4"), (&fewer, "2")] {
        let numbers = ["--requests", "200", "--connections", connections, "--json", file.path()];
        let finished = executable::run(&[&["load", &url], &numbers[..]].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }
    let judged = ["--max-regression", "p50=0%", "--json", "-"];
    let same =
        executable::run(&[&["load", "compare", one.path(), one.path()], &judged[..]].concat());
    assert_eq!((same.code, &json_of(&same)["of"]), (Some(0), &"requests".into()));
    let unlike = executable::run(&["load", "compare", one.path(), fewer.path()]);
    assert_eq!(unlike.code, Some(2), "different numbers of users are not comparable: {unlike:?}");
    let run: Value = serde_json::from_str(&std::fs::read_to_string(one.path()).unwrap()).unwrap();
    let plan =
        json_of(&executable::run(&["plan", "--views", "1M", "--from", one.path(), "--json", "-"]));
    let served = 200.0 / run["seconds"].as_f64().unwrap();
    let each = plan["requests"]["per_machine"].as_f64().unwrap();
    assert!((each - served).abs() < served * 1e-6, "{plan}: {run}");
}

/// Runs an echo test that writes its JSON to `file`.
fn echo(server: &Server, file: &Scratch, more: &[&str]) {
    let url = format!("ws://{}/echo", server.listen);
    let numbers = ["--connections", "20", "--messages", "50", "--json", file.path()];
    let finished = executable::run(&[&["load", &url], &numbers[..], more].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

fn json_of(finished: &Finished) -> Value {
    let text = &finished.stdout;
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}
