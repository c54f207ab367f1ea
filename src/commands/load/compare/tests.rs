//! Comparisons of made-up runs, whose outcome is known.

use std::fs;
use std::path::PathBuf;
use std::slice::from_ref;

use serde_json::{Value, json};

use super::judge::{Comparison, Tolerance};
use super::run::Side;

/// A run of an echo at `rate` with `p99`, and so many seconds of each value in turn.
fn run(rate: f64, p99: f64, seconds: &[f64]) -> Value {
    let mut received = 0.0;
    let samples: Vec<Value> = (0..seconds.len() * 4)
        .map(|at| {
            let this = seconds[at % seconds.len()];
            received += this;
            json!({"elapsed_seconds": at as f64 + 1.0, "phase": "echo", "received": received,
                "p50_ms": 1.0, "p99_ms": p99 * this / rate, "max_ms": 9.0})
        })
        .collect();
    json!({
        "held": true, "connections": {"requested": 10, "open": 10, "per_second": 100.0},
        "echo": {"sent": 10_000, "lost": 0},
        "latency": {"count": 10_000, "p50_ms": 1.0, "p90_ms": 2.0, "p99_ms": p99, "p999_ms": 9.0,
            "max_ms": 50.0},
        "generator": {"messages_per_second": rate, "saturated": null},
        "samples": samples,
    })
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
    assert_eq!(before.differs_from(&after), None);
    let comparison = Comparison::new(&before, &after, &allowed).unwrap();
    let value = serde_json::to_value(&comparison).unwrap();
    (comparison, value)
}

fn row<'a>(value: &'a Value, figure: &str) -> &'a Value {
    let rows = value["figures"].as_array().unwrap();
    rows.iter().find(|row| row["figure"] == figure).unwrap_or_else(|| panic!("{figure}: {value}"))
}

const STEADY: [f64; 5] = [100.0, 101.0, 99.0, 100.5, 99.5];

#[test]
fn a_run_beside_itself_is_not_worse() {
    let same = run(100.0, 5.0, &STEADY);
    let (comparison, value) = compare("same", from_ref(&same), from_ref(&same), &["0%"]);
    assert!(!comparison.regressed(), "{comparison}");
    assert_eq!(row(&value, "rate")["change"], 0.0);
    assert_eq!(row(&value, "rate")["basis"], "seconds");
}

#[test]
fn significant_regression_is_reported_and_one_within_the_allowance_is_not() {
    let slower = STEADY.map(|second| second * 0.9);
    let (before, after) = (run(100.0, 5.0, &STEADY), run(90.0, 5.0, &slower));
    let (comparison, value) = compare("slower", from_ref(&before), from_ref(&after), &[]);
    assert!(comparison.regressed() && row(&value, "rate")["worse"] == true, "{comparison}");
    let interval = &row(&value, "rate")["interval"];
    assert!(interval[0].as_f64() < Some(-0.09) && interval[1].as_f64() < Some(0.0), "{interval}");
    let (comparison, _) = compare("allowed", from_ref(&before), from_ref(&after), &["rate=15%"]);
    assert!(!comparison.regressed(), "{comparison}");
    let (comparison, _) = compare("better", &[after], &[before], &[]);
    assert!(!comparison.regressed(), "more is better: {comparison}");
}

#[test]
fn what_may_be_chance_is_not_worse() {
    let wild = [20.0, 180.0, 60.0, 140.0, 100.0];
    let (before, after) =
        (run(100.0, 5.0, &wild), run(90.0, 5.0, &wild.map(|second| second * 0.9)));
    let (comparison, value) = compare("wild", &[before], &[after], &[]);
    assert!(!comparison.regressed(), "{comparison}");
    assert!(row(&value, "rate")["interval"][1].as_f64() > Some(0.0), "{comparison}");
}

#[test]
fn several_runs_are_the_better_witnesses() {
    let runs = |p99: &[f64]| p99.iter().map(|p99| run(100.0, *p99, &STEADY)).collect::<Vec<_>>();
    let (comparison, value) =
        compare("runs", &runs(&[5.0, 5.1, 4.9]), &runs(&[6.0, 6.1, 5.9]), &[]);
    assert_eq!(row(&value, "p99")["basis"], "runs");
    assert!(row(&value, "p99")["worse"] == true && comparison.regressed(), "{comparison}");
    let (comparison, value) =
        compare("apart", &runs(&[2.0, 5.0, 8.0]), &runs(&[3.0, 6.0, 9.0]), &[]);
    assert!(row(&value, "p99")["worse"] == false && !comparison.regressed(), "{comparison}");
}

#[test]
fn figure_without_an_interval_is_judged_only_if_named_and_noted_as_such() {
    let bare = |p99: f64| run(100.0, p99, &[]);
    let (comparison, value) = compare("bare", &[bare(5.0)], &[bare(6.0)], &[]);
    assert_eq!(row(&value, "p99")["interval"], Value::Null);
    assert_eq!(row(&value, "p99")["allowed"], Value::Null);
    assert!(!comparison.regressed() && comparison.is_undecided(), "{comparison}");
    let (named, _) = compare("named", &[bare(5.0)], &[bare(6.0)], &["p99=5%"]);
    assert!(named.regressed(), "{named}");
    assert!(comparison.to_string().contains("unknown confidence"), "{comparison}");
    let (comparison, _) = compare("max", &[bare(5.0)], &[bare(5.0)], &["p99=0%"]);
    assert!(!comparison.regressed(), "{comparison}");
}

#[test]
fn more_errors_are_worse_where_chance_is_ruled_out() {
    let lost = |lost: u64| {
        let mut value = run(100.0, 5.0, &STEADY);
        value["echo"]["lost"] = lost.into();
        value
    };
    assert!(compare("lost", &[lost(0)], &[lost(50)], &[]).0.regressed());
    assert!(!compare("few", &[lost(10)], &[lost(14)], &[]).0.regressed());
    assert!(!compare("fewer", &[lost(50)], &[lost(0)], &[]).0.regressed());
}

#[test]
fn files_that_cannot_be_compared_are_refused() {
    let echo = run(100.0, 5.0, &STEADY);
    let mut more = echo.clone();
    more["connections"]["requested"] = 20.into();
    let mut held = echo.clone();
    held["echo"] = Value::Null;
    let echoed = side("echoed", from_ref(&echo)).unwrap();
    for (name, other, named) in [("more", &more, "20"), ("held", &held, "held")] {
        let why = echoed.differs_from(&side(name, from_ref(other)).unwrap()).unwrap();
        assert!(why.contains(named), "{why}");
        assert!(side("mixed", &[echo.clone(), other.clone()]).is_err());
    }
    for (name, value, named) in [
        ("none", json!({"a": 1}), "not a result of `standfast load`"),
        ("proof", json!({"verdict": "HELD"}), "prove"),
    ] {
        let error = format!("{:#}", side(name, &[value]).err().unwrap());
        assert!(error.contains(named), "{error}");
    }
    assert!("p98=1%".parse::<Tolerance>().unwrap_err().contains("p999"));
}

#[test]
fn two_runs_of_ten_seconds_have_intervals_and_drift_between_them_is_no_regression() {
    // As `load` writes ten seconds: nine or ten rows. Each run is steady in itself, the second 6 %
    // slower by the machine's mood: beyond the 5 % allowed, by less than its own seconds differ.
    let ten = |factor: f64| {
        let seconds = [100.0, 103.0, 97.0, 101.5, 98.5].map(|second| second * factor);
        let mut value = run(100.0 * factor, 5.0, &seconds);
        value["samples"].as_array_mut().unwrap().truncate(9);
        value
    };
    let (comparison, value) = compare("ten", &[ten(1.0)], &[ten(0.94)], &[]);
    assert_eq!(row(&value, "rate")["basis"], "seconds");
    assert!(!comparison.regressed(), "{comparison}");
    assert!(compare("tenth", &[ten(1.0)], &[ten(0.8)], &[]).0.regressed());
}

#[test]
fn runs_of_another_pace_path_or_scenario_are_not_compared() {
    let with = |key: &str, what: Value| {
        let mut value = run(100.0, 5.0, &STEADY);
        value["pace"] = json!({"model": "closed", "rate": null, "stages": null});
        value["target"] = json!(["http://a:1/x?k=…"]);
        value[key] = what;
        value
    };
    let closed = with("held", json!(true));
    let one = side("closed", from_ref(&closed)).unwrap();
    for (name, key, what, named) in [
        (
            "rate",
            "pace",
            json!({"model": "open", "rate": 20.0, "stages": null}),
            "at 20 per second",
        ),
        ("path", "target", json!(["http://a:1/y"]), "/y"),
        ("query", "target", json!(["http://a:1/x"]), "on http /x"),
        ("scenario", "scenario", json!("folder/a.toml"), "of a.toml"),
    ] {
        let other = with(key, what);
        let why = one.differs_from(&side(name, from_ref(&other)).unwrap()).unwrap_or_default();
        assert!(why.contains(named), "{name}: {why}");
        let mixed = side(&format!("mixed-{name}"), &[closed.clone(), other]);
        assert!(mixed.err().unwrap().to_string().contains("not repetitions"), "{name}");
    }
    let elsewhere = with("target", json!(["http://b:2/x?k=…"]));
    assert_eq!(one.differs_from(&side("elsewhere", &[elsewhere]).unwrap()), None);
    let old = run(100.0, 5.0, &STEADY);
    assert_eq!(one.differs_from(&side("old", &[old]).unwrap()), None);
}

#[test]
fn a_difference_lies_within_its_own_interval() {
    // One slow moment makes the whole run's percentile, and is one second of many.
    let mut after = run(100.0, 5.0, &STEADY);
    after["latency"]["p99_ms"] = json!(5_000.0);
    after["latency"]["p50_ms"] = json!(400.0);
    let (comparison, value) = compare("within", &[run(100.0, 5.0, &STEADY)], &[after], &[]);
    for figure in ["rate", "p50", "p99"] {
        let row = row(&value, figure);
        let (low, high) = (row["interval"][0].as_f64(), row["interval"][1].as_f64());
        let change = row["change"].as_f64();
        assert!(low <= change && change <= high, "{figure}: {comparison}");
    }
}
