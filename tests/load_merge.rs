//! `standfast load merge`: two generators at the same time against one server, merged, agree to the unit
//! with what the server logged.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::web::Web;

/// Answers some requests with 503, and some late.
fn server() -> Web {
    Web::start(|request| {
        if request.number % 10 == 7 {
            thread::sleep(Duration::from_millis(20));
        }
        (if request.number % 5 == 3 { 503 } else { 200 }, Vec::new(), "hello".to_owned())
    })
}

/// Runs a generator for each of `connections` at the same time; their results.
fn load(url: &str, name: &str, connections: &[&str], more: &[&str]) -> Vec<Scratch> {
    let file = |at| Scratch::new(&format!("merge-{name}-{at}.json"), "");
    let files: Vec<Scratch> = (0..connections.len()).map(file).collect();
    thread::scope(|scope| {
        for (file, connections) in files.iter().zip(connections) {
            let flags = ["load", url, "--connections", connections, "--json", file.path()];
            let line = [&flags[..], more].concat();
            scope.spawn(move || {
                let finished = executable::run(&line);
                assert!(finished.code.is_some_and(|code| code < 2), "{finished:?}");
            });
        }
    });
    files
}

fn merge(files: &[Scratch], more: &[&str]) -> Finished {
    let paths: Vec<&str> = files.iter().map(Scratch::path).collect();
    executable::run(&[&["load", "merge"][..], &paths, more].concat())
}

fn read(file: &Scratch) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file.path()).unwrap()).unwrap()
}

#[test]
fn two_generators_are_merged_to_what_the_server_logged() {
    let server = server();
    let url = format!("http://{}/x", server.address);
    let more = ["--duration", "1500ms", "--fail", "errors<90%"];
    let files = load(&url, "log", &["3", "2"], &more);
    let parts: Vec<Value> = files.iter().map(read).collect();
    let merged = merge(&files, &["--json", "-", "--fail", "p50<10s"]);
    assert_eq!(merged.code, Some(0), "{merged:?}");
    let whole = merged.json();
    let got = server.got();
    let refused = got.iter().filter(|request| request.number % 5 == 3).count();
    let answered = json!({"200": got.len() - refused, "503": refused});
    let unfinished = whole["requests"]["unfinished"].as_u64().unwrap();
    assert_eq!(unfinished, 0, "all were answered: {whole}");
    assert_eq!(whole["status"], answered, "{whole}");
    assert_eq!(whole["requests"]["sent"], got.len(), "{whole}");
    assert_eq!(whole["requests"]["failed"], refused, "{whole}");
    assert_eq!(whole["latency"]["count"], got.len(), "{whole}");
    assert_eq!((&whole["users"], &whole["connections"]["opened"]), (&json!(5), &json!(5)));
    // The slowest tenth of both took 20 ms: no mean of percentiles.
    assert!(whole["latency"]["p99_ms"].as_f64() > Some(19.0), "{whole}");
    let longest = parts.iter().map(|part| part["latency"]["max_ms"].as_f64().unwrap());
    assert_eq!(whole["latency"]["max_ms"].as_f64(), longest.reduce(f64::max));
    // Both thresholds, judged on the whole.
    let texts: Vec<&Value> =
        whole["thresholds"].as_array().unwrap().iter().map(|of| &of["threshold"]).collect();
    assert_eq!(texts, ["errors<90%", "p50<10s"]);
    // The rate is what both answered ÷ the time of both.
    let count = |part: &Value| {
        (part["per_second"].as_f64().unwrap() * part["seconds"].as_f64().unwrap()).round()
    };
    assert!((count(&whole) - parts.iter().map(count).sum::<f64>()).abs() < 0.5, "{whole}");
    assert!(whole["seconds"].as_f64() >= Some(1.5), "{whole}");
    let last = |part: &Value| part["samples"].as_array().unwrap().last().cloned().unwrap();
    let rows: u64 = parts.iter().map(|part| last(part)["received"].as_u64().unwrap()).sum();
    assert_eq!(last(&whole)["received"], rows, "{whole}");
    for text in ["merged        ", "latency", "result        thresholds met"] {
        assert!(merged.stderr.contains(text), "no {text:?}: {merged:?}");
    }
    // It can be merged and compared like any other, and a threshold that is missed decides.
    let again = Scratch::new("merge-log-again.json", &whole.to_string());
    let missed = merge(&files, &["--fail", "errors<1%", "--json-out", again.path()]);
    assert_eq!(missed.code, Some(1), "{missed:?}");
    assert!(missed.stdout.contains("threshold errors<1% missed"), "{missed:?}");
    assert_eq!(read(&again)["latency"], whole["latency"]);
}

#[test]
fn results_that_are_not_parts_of_one_run_are_refused() {
    let server = server();
    let url = format!("http://{}/x", server.address);
    let files = load(&url, "one", &["1"], &["--requests", "20"]);
    let other = load(&format!("{url}/y"), "other", &["1"], &["--requests", "20"]);
    let later = load(&url, "later", &["1"], &["--requests", "20"]);
    let refused = |paths: &[&str], named: &str| {
        let finished = executable::run(&[&["load", "merge"][..], paths].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(named), "no {named:?}: {finished:?}");
    };
    let path = files[0].path();
    refused(&[path, path], "is given twice");
    refused(&[path, other[0].path()], "target");
    refused(&[path, later[0].path()], "same time");
    refused(&[path], "2 values");
    let mut document = read(&files[0]);
    document["requests"].as_object_mut().unwrap().remove("failed");
    let broken = Scratch::new("merge-broken.json", &document.to_string());
    refused(&[path, broken.path()], "missing field `failed`");
    let mut document = read(&files[0]);
    document["histograms"]["latency"]["hdr"] = json!("HISTFAAA");
    let broken = Scratch::new("merge-histogram.json", &document.to_string());
    refused(&[path, broken.path()], "invalid histogram");
    // Without a histogram the percentiles are unknown, and the rest is known.
    let mut document = read(&files[0]);
    document["histograms"] = Value::Null;
    let without = Scratch::new("merge-without.json", &document.to_string());
    let finished = executable::run(&[
        "load",
        "merge",
        path,
        without.path(),
        "--fail",
        "p99<1h",
        "--json",
        "-",
    ]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let merged = finished.json();
    assert_eq!((&merged["requests"]["sent"], &merged["latency"]), (&json!(40), &Value::Null));
    assert!(finished.stderr.contains("percentiles are unknown"), "{finished:?}");
}
