//! Comparisons of made-up runs, whose outcome is known.

use std::fs;
use std::path::PathBuf;
use std::slice::from_ref;

use load::Outcome;
use serde_json::{Value, json};

use super::judge::{Comparison, Tolerance};
use super::run::Side;

/// Result files as the first version of the format wrote them.
const ECHO: &str = include_str!("v1/echo.json");
const REQUESTS: &str = include_str!("v1/requests.json");

/// A run of an echo at `rate` with `p99`.
fn run(rate: f64, p99: f64) -> Value {
    let mut run: Value = serde_json::from_str(ECHO).unwrap();
    run["generator"]["messages_per_second"] = rate.into();
    run["echo"]["sent"] = 10_000.into();
    run["latency"]["p99_ms"] = p99.into();
    run["target"] = json!(["ws://a:1/x?k=…"]);
    run
}

/// The same run with other rates.
fn rates(rates: &[f64]) -> Vec<Value> {
    rates.iter().map(|rate| run(*rate, 5.0)).collect()
}

/// A run with another value at a path such as `echo.lost`.
fn with(path: &str, value: impl Into<Value>) -> Value {
    let mut run = run(100.0, 5.0);
    *path.split('.').fold(&mut run, |at, key| &mut at[key]) = value.into();
    run
}

struct File(PathBuf);

impl File {
    fn new(name: &str, value: &Value) -> File {
        let name = format!("standfast-compare-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, value.to_string()).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn side(name: &str, values: &[Value]) -> anyhow::Result<Side> {
    let files: Vec<File> = values
        .iter()
        .enumerate()
        .map(|(at, value)| File::new(&format!("{name}{at}"), value))
        .collect();
    Side::read(&files.iter().map(|file| file.0.clone()).collect::<Vec<_>>())
}

fn compare(name: &str, before: &[Value], after: &[Value], allowed: &[&str]) -> (Comparison, Value) {
    let [before, after] = [(before, "a"), (after, "b")]
        .map(|(values, which)| side(&format!("{name}{which}"), values).unwrap());
    let allowed: Vec<Tolerance> = allowed.iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(before.differs_from(&after), None, "{name}");
    let comparison = Comparison::new(&before, &after, &allowed).unwrap();
    let value = serde_json::to_value(&comparison).unwrap();
    (comparison, value)
}

fn row<'a>(value: &'a Value, figure: &str) -> &'a Value {
    let rows = value["figures"].as_array().unwrap();
    rows.iter().find(|row| row["figure"] == figure).unwrap_or_else(|| panic!("{figure}: {value}"))
}

#[test]
fn runs_beside_themselves_are_not_worse() {
    let same = rates(&[100.0, 101.0]);
    let (comparison, value) = compare("same", &same, &same, &[]);
    assert!(!comparison.regressed() && !comparison.is_not_judged(), "{comparison}");
    assert_eq!(row(&value, "rate")["change"], 0.0);
    assert_eq!(row(&value, "rate")["basis"], "runs");
    // Without any spread the interval is a point, within any allowance.
    let (comparison, value) = compare("point", &rates(&[9.0; 3]), &rates(&[9.0; 3]), &["0%"]);
    assert_eq!(row(&value, "rate")["verdict"], "not_worse", "{comparison}");
    assert!(comparison.to_string().ends_with("B is not worse than allowed\n"), "{comparison}");
}

#[test]
fn one_run_each_has_no_interval_however_long_it_is() {
    // Sixty steady seconds, of which those of the second run are all a tenth slower: what the machine did
    // in that minute, or the change. Nothing in two files tells.
    let seconds = |rate: u64| {
        let mut value = run(rate as f64, 5.0);
        let mut sample = value["samples"][0].clone();
        let second = |at: u64| {
            (sample["elapsed_seconds"], sample["received"]) = (at.into(), (rate * at).into());
            sample.clone()
        };
        value["samples"] = (1..=60).map(second).collect();
        value
    };
    let (before, after) = (seconds(100), seconds(80));
    let (comparison, value) = compare("long", from_ref(&before), from_ref(&after), &[]);
    assert!(!comparison.regressed() && comparison.is_not_judged(), "{comparison}");
    assert_eq!(row(&value, "rate")["interval"], Value::Null);
    assert_eq!(row(&value, "rate")["verdict"], "not_judged");
    assert!(comparison.to_string().contains("One run has no interval"), "{comparison}");
    // Also with several of one side only.
    let (comparison, _) = compare("three", &rates(&[100.0, 101.0, 99.0]), &[after], &[]);
    assert!(comparison.is_not_judged(), "{comparison}");
}

#[test]
fn figure_without_an_interval_is_judged_only_if_named() {
    let one = |p99: f64| [run(100.0, p99)];
    let (named, value) = compare("named", &one(5.0), &one(6.0), &["p99=5%"]);
    assert!(named.regressed(), "{named}");
    assert_eq!(row(&value, "rate")["allowed"], Value::Null);
    let (comparison, _) = compare("unchanged", &one(5.0), &one(5.0), &["p99=0%"]);
    assert!(!comparison.regressed() && !comparison.is_not_judged(), "{comparison}");
    let (comparison, _) = compare("max", &one(5.0), &one(5.0), &["max=0%"]);
    assert!(comparison.is_not_judged(), "a maximum is not judged: {comparison}");
}

#[test]
fn a_regression_is_established_only_if_the_whole_interval_lies_beyond_the_allowed_one() {
    let before = rates(&[100.0, 101.0, 99.0]);
    for (name, after, allowed, verdict) in [
        // A tenth slower, by 7.9 % or more.
        ("beyond", [90.0, 91.0, 89.0], "5%", "worse"),
        ("within", [90.0, 91.0, 89.0], "15%", "not_worse"),
        // Slower for sure, and perhaps by less than is allowed.
        ("across", [93.0, 94.0, 92.0], "5%", "undecided"),
        ("wild", [60.0, 120.0, 90.0], "5%", "undecided"),
        ("faster", [110.0, 111.0, 109.0], "0%", "not_worse"),
    ] {
        let (comparison, value) = compare(name, &before, &rates(&after), &[allowed]);
        assert_eq!(row(&value, "rate")["verdict"], verdict, "{name}: {comparison}");
        assert_eq!(comparison.regressed(), verdict == "worse", "{name}: {comparison}");
        assert_eq!(comparison.to_string().contains("Undecided: rate"), verdict == "undecided");
    }
    let latencies = |p99: &[f64]| p99.iter().map(|p99| run(100.0, *p99)).collect::<Vec<_>>();
    let (slow, fast) = (latencies(&[6.0, 6.1, 5.9]), latencies(&[5.0, 5.1, 4.9]));
    assert!(compare("slow", &fast, &slow, &[]).0.regressed());
    assert!(!compare("fast", &slow, &fast, &[]).0.regressed(), "less is better");
    let change = compare("least", &fast, &slow, &[]).1;
    let interval = &row(&change, "p99")["interval"];
    let near = |at: usize, end: f64| (interval[at].as_f64().unwrap() - end).abs() < 0.0005;
    // The roots of (6 − 5r)² = t² (1 + r²) ÷ 300, with the exact t of 3.874 degrees of freedom.
    assert!(near(0, 0.1505) && near(1, 0.2520), "{interval}");
}

#[test]
fn a_figure_is_worse_only_if_it_stands_out_among_all() {
    let before = rates(&[100.0, 101.0, 99.0]);
    // Both intervals lie beyond 5 %; the first one does for one figure in six by chance, too.
    for (name, after, verdict) in [
        ("one-of-many", [92.5, 93.5, 91.5], "undecided"),
        ("stands-out", [90.5, 91.5, 89.5], "worse"),
    ] {
        let (comparison, value) = compare(name, &before, &rates(&after), &[]);
        let rate = row(&value, "rate");
        assert!(rate["interval"][1].as_f64().unwrap() < -0.05, "{comparison}");
        assert!(rate["probability"].as_f64().unwrap() < 0.025, "{comparison}");
        assert_eq!(rate["verdict"], verdict, "{comparison}");
        assert_eq!(comparison.regressed(), verdict == "worse", "{comparison}");
    }
}

/// Runs with so many of a million messages lost.
fn lost(counts: &[u64]) -> Vec<Value> {
    let with_lost = |count: &u64| {
        let mut value = with("echo.sent", 1_000_000);
        value["echo"]["lost"] = (*count).into();
        value
    };
    counts.iter().map(with_lost).collect()
}

#[test]
fn rare_errors_of_one_run_each_are_no_verdict() {
    let verdict = |name: &str, before: &[u64], after: &[u64], allowed: &[&str]| {
        let (comparison, value) = compare(name, &lost(before), &lost(after), allowed);
        assert_eq!(comparison.regressed(), value["errors"]["verdict"] == "worse", "{comparison}");
        value["errors"]["verdict"].as_str().unwrap().to_owned()
    };
    assert_eq!(verdict("rare", &[0], &[10], &[]), "not_judged", "0 against 10 in a million");
    assert_eq!(verdict("one-side", &[0], &[10, 11], &[]), "not_judged");
    assert_eq!(verdict("burst", &[0, 0, 0], &[0, 30, 0], &[]), "undecided", "one stall");
    assert_eq!(verdict("two", &[0, 0], &[10, 10], &[]), "undecided", "equal by chance");
    assert_eq!(verdict("each", &[0, 1, 0, 0], &[11, 9, 10, 12], &[]), "worse");
    assert_eq!(verdict("single", &[0, 0, 0], &[1, 1, 1], &[]), "undecided", "three coins");
    assert_eq!(verdict("allowed", &[0, 1, 0, 0], &[11, 9, 10, 12], &["errors=0.01%"]), "not_worse");
    assert_eq!(verdict("none", &[0, 0], &[0, 0], &[]), "not_worse");
    assert_eq!(verdict("fewer", &[50, 51, 49], &[0, 0, 0], &[]), "not_worse");
    // Half of all lost is beyond every allowed regression, whatever one run can establish.
    assert_eq!(verdict("half", &[0], &[500_000], &[]), "worse");
    assert_eq!(verdict("half-allowed", &[0], &[500_000], &["60%"]), "not_judged");
    assert_eq!(verdict("named", &[0], &[10], &["errors=0%"]), "worse", "asked for");
}

#[test]
fn connections_that_ended_are_errors() {
    let (_, value) =
        compare("ended", &[run(1.0, 1.0)], &[with("closed", json!({"reset": 9}))], &[]);
    assert_eq!(value["errors"]["after"], json!([9, 10_010]));
}

#[test]
fn files_that_cannot_be_compared_are_refused() {
    for (name, value, named) in [
        ("none", json!({"a": 1}), "not a result of `standfast load`"),
        ("proof", json!({"verdict": "HELD"}), "prove"),
        ("rounds", json!({"rounds": []}), "several rounds"),
    ] {
        let error = format!("{:#}", side(name, &[value]).err().unwrap());
        assert!(error.contains(named), "{error}");
    }
    let file = File::new("twice", &run(1.0, 1.0));
    let error = Side::read(&[file.0.clone(), file.0.clone()]).unwrap_err().to_string();
    assert!(error.contains("given twice"), "{error}");
    assert!("p98=1%".parse::<Tolerance>().unwrap_err().contains("p999"));
}

/// A run of requests as files of the second version are: those of the first, with all counts and settings.
fn requests() -> Value {
    let first = Outcome::read(serde_json::from_str(REQUESTS).unwrap()).unwrap();
    let mut run = serde_json::to_value(first).unwrap();
    run.as_object_mut().unwrap().extend(
        json!({"version": 2, "standfast": "0.1.0", "interrupted": false, "method": "GET",
            "keep_alive": true, "pipeline": 1, "message_bytes": 0, "duration_seconds": 30.0,
            "warm_up_seconds": 0.0, "settings": [["answer timeout", "30s"]]})
        .as_object()
        .unwrap()
        .clone(),
    );
    run["connections"]["requested"] = 4.into();
    run["target"] = json!(["http://a:1/x?k=…"]);
    run
}

#[test]
fn runs_with_other_settings_are_not_compared() {
    let set = |key: &str, value: Value| {
        let mut run = requests();
        run[key] = value;
        run
    };
    let mut users = requests();
    users["connections"]["requested"] = 20.into();
    let mut warmed = requests();
    warmed["requests"]["warm_up"] = 5.into();
    let one = side("settings", &[requests()]).unwrap();
    for (name, other, named) in [
        ("users", users, "connections: 4 and 20"),
        ("warmed", warmed, "warm up: no and yes"),
        ("kind", run(1.0, 1.0), "kind: requests and echo messages"),
        ("rate", set("pace", json!({"model": "open", "rate": 20.0})), "20 per second"),
        ("path", set("target", json!(["http://a:1/y"])), "/y"),
        ("query", set("target", json!(["http://a:1/x"])), "and http /x"),
        ("count", set("target", json!(["http://a/x?k=…", "http://b/x?k=…"])), "target"),
        ("tls", set("target", json!(["https://a:1/x?k=…"])), "https /x"),
        ("scenario", set("scenario", "folder/a.toml".into()), "scenario: none and a.toml"),
        ("method", set("method", "PUT".into()), "method: GET and PUT"),
        ("size", set("message_bytes", 9.into()), "message bytes: 0 and 9"),
        ("alive", set("keep_alive", false.into()), "keep alive: yes and no"),
        ("pipeline", set("pipeline", 8.into()), "pipeline: 1 and 8"),
        ("streams", set("streams", 8.into()), "streams: none and 8"),
        ("duration", set("duration_seconds", 61.0.into()), "duration seconds: 30.0 and 61.0"),
        ("number", set("duration_seconds", Value::Null), "duration seconds: 30.0 and none"),
        ("warm-up", set("warm_up_seconds", 1.0.into()), "warm up seconds: 0.0 and 1.0"),
        ("timeout", set("settings", json!([["answer timeout", "1s"]])), "timeout: 30s and 1s"),
    ] {
        let why = one.differs_from(&side(name, from_ref(&other)).unwrap()).unwrap_or_default();
        assert!(why.contains(named), "{name}: {why}");
        let mixed = side(&format!("mixed-{name}"), &[requests(), other]);
        assert!(mixed.err().unwrap().to_string().contains("not repetitions"), "{name}");
    }
    for (name, other) in [
        ("elsewhere", set("target", json!(["http://b:2/x?k=…"]))),
        ("longer", set("duration_seconds", 60.0.into())),
    ] {
        assert_eq!(one.differs_from(&side(name, &[other]).unwrap()), None, "{name}");
    }
}

#[test]
fn interrupted_and_saturated_runs_are_not_compared() {
    let one = side("fit", &[run(100.0, 5.0)]).unwrap();
    for (name, other, named) in [
        ("interrupted", with("interrupted", true), "was interrupted"),
        ("saturated", with("generator.saturated", "it was busy"), "saturated (it was busy)"),
    ] {
        let other = side(name, &[other]).unwrap();
        for why in [one.differs_from(&other), other.differs_from(&one)] {
            assert!(why.as_ref().is_some_and(|why| why.contains(named)), "{why:?}");
        }
    }
}

#[test]
fn nothing_answered_is_no_basis_and_a_regression() {
    let mut dead = requests();
    for (count, value) in [("ok", 0), ("failed", 600), ("sent", 0), ("answered", 0)] {
        dead["requests"][count] = value.into();
    }
    dead["latency"] = Value::Null;
    let [dead_side, one] = ["dead", "alive"]
        .map(|name| side(name, &[if name == "dead" { dead.clone() } else { requests() }]).unwrap());
    let why = dead_side.differs_from(&one).unwrap_or_default();
    assert!(why.contains("nothing was answered"), "{why}");
    for count in [1, 2] {
        let (before, after) = (vec![requests(); count], vec![dead.clone(); count]);
        let (comparison, _) = compare(&format!("dead{count}"), &before, &after, &[]);
        assert!(comparison.regressed(), "{comparison}");
    }
}

#[test]
fn what_a_file_does_not_record_is_noted() {
    let (comparison, value) = compare("recorded", &[requests()], &[requests()], &["p99=1%"]);
    assert_eq!(value["notes"], json!([]), "{comparison}");
    let mut older: Value = serde_json::from_str(REQUESTS).unwrap();
    for key in ["pace", "target", "generator"] {
        older.as_object_mut().unwrap().remove(key);
    }
    let (comparison, value) = compare("older", &[requests()], &[older], &["p99=1%"]);
    let notes = value["notes"].to_string();
    for unknown in ["message bytes", "method", "pace", "target", "interrupted", "saturated"] {
        assert!(notes.contains(unknown), "{unknown}: {comparison}");
    }
    let mut later = requests();
    later["version"] = 99.into();
    let error = format!("{:#}", side("later", &[later]).err().unwrap());
    assert!(error.contains("version 99"), "{error}");
}

#[test]
fn messages_of_streams_are_compared_and_calls_that_lasted_are_not() {
    let streams = |p99: f64| {
        let mut run = requests();
        run["requests"]["answered"] = 4.into();
        run["requests"]["stragglers"] = 4.into();
        let latency = json!({"count": 9, "above_range": 0, "p50_ms": 1.0, "p90_ms": 2.0,
            "p95_ms": 3.0, "p99_ms": p99, "p999_ms": 9.0, "max_ms": 9.5});
        run["messages"] = json!({"sent": 90, "unsent": 0, "warm_up": 0, "received": 90,
            "sent_per_second": 30.0, "received_per_second": 30.0, "calls_answered_early": 0,
            "calls_ended_by_client": 0, "latency": latency});
        run
    };
    let (before, after) = ([3.0, 3.1, 2.9].map(streams), [6.0, 6.1, 5.9].map(streams));
    let (comparison, value) = compare("streams", &before, &after, &["receipt_p99=10%"]);
    assert!(comparison.regressed(), "{comparison}");
    assert_eq!(row(&value, "receipt_p99")["verdict"], "worse", "{comparison}");
    assert_eq!(row(&value, "messages")["before"], 30.0, "{comparison}");
    assert_eq!(row(&value, "receipt_max")["verdict"], "not_judged", "{comparison}");
    let names: Vec<_> =
        value["figures"].as_array().unwrap().iter().map(|row| &row["figure"]).collect();
    assert!(
        !names.iter().any(|name| ["rate", "p50", "p99"].iter().any(|of| *name == of)),
        "{names:?}"
    );
    // Calls that ended before the run have both.
    let ended = || {
        let mut run = streams(3.0);
        run["requests"]["stragglers"] = 0.into();
        run
    };
    let (comparison, value) = compare("calls", &[ended(), ended()], &[ended(), ended()], &[]);
    assert!(row(&value, "rate")["before"].as_f64() > Some(0.0), "{comparison}");
    assert_eq!(row(&value, "receipt_p50")["change"], 0.0, "{comparison}");
}
