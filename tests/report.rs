//! The HTML report of a run (`--html`) in a browser: it is complete, loads nothing, fits a phone screen,
//! and escapes user input. The same of the page of a comparison.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::executable;
use crate::harness::peer::{self, works};
use crate::harness::server::Server;

/// A file that is removed after its test.
struct Page(PathBuf);

impl Page {
    fn new(name: &str) -> Page {
        Page(std::env::temp_dir().join(format!("standfast-{name}-{}.html", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }

    /// Opens the report and checks that these charts have lines.
    fn is_shown_with(&self, charts: &[&str]) {
        let mut expected = vec!["loaded", "numbers", "charts", "histogram", "alignment"];
        expected.extend(["tables", "crosshair", "phone", "dark", "print"]);
        expected.extend(charts);
        works(&peer::BROWSER, "report.js", &[self.path()], &expected);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn proof_writes_an_html_report() {
    let page = Page::new("proof");
    let small = ["--connections", "300", "--hold", "3s", "--heartbeat", "1s"];
    let finished = executable::run(&[&["prove"], &small[..], &["--html", page.path()]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    page.is_shown_with(&[
        "Open sockets",
        "Messages and heartbeats",
        "Latency in each second",
        "CPU, in cores",
        "Process memory",
    ]);
    let text = fs::read_to_string(&page.0).expect("the page is there");
    for part in [
        "HELD",
        " UTC</p>",
        "Memory by number of sockets",
        "<dt>held for</dt><dd>3s</dd>",
        "The machine and its limits",
        "standfast prove --connections",
    ] {
        assert!(text.contains(part), "no {part:?}");
    }
}

#[test]
fn html_report_of_a_failed_load_shows_the_reasons() {
    let server = Server::start(&["--max-connections", "20"]);
    let page = Page::new("load");
    let url = format!("ws://{}/echo", server.listen);
    let some =
        ["--connections", "30", "--connect-timeout", "1s", "--rate", "100", "--duration", "3s"];
    let odd = ["--header", "X-Odd: <script>alert('ö ☃')</script>", "--threshold", "p99<1ms"];
    let odd = [&odd[..], &["--threshold", "failed<1", "--html", page.path()]].concat();
    let finished = executable::run(&[&["load", &url], &some[..], &odd].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    page.is_shown_with(&[
        "Open sockets",
        "Messages and heartbeats",
        "Latency in each second",
        "Errors so far",
        "CPU, in cores",
        "Process memory",
    ]);
    let text = fs::read_to_string(&page.0).expect("the page is there");
    assert!(text.contains("FELL SHORT") && !text.contains("<script>alert"), "{text}");
    for part in
        ["ö ☃", "<th scope=\"row\">failed&lt;1</th>", ">MISSED", "<dt>generator</dt>", "X-Odd"]
    {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
}

#[test]
fn missed_threshold_is_the_verdict_of_the_report() {
    let server = Server::start(&[]);
    let page = Page::new("threshold");
    let url = format!("ws://{}/echo", server.listen);
    let few = ["--connections", "3", "--messages", "2", "--threshold", "max<0"];
    let finished = executable::run(&[&["load", &url], &few[..], &["--html", page.path()]].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let text = fs::read_to_string(&page.0).expect("the page is there");
    assert!(text.contains("THRESHOLD MISSED") && text.contains(">max&lt;0<"), "{text}");
}

/// A run of the first version's format at this rate, with latencies `slower` times those of the others.
fn run_file(name: &str, rate: f64, slower: f64) -> Page {
    let text = include_str!("../src/commands/load/compare/v1/echo.json");
    let mut run: Value = serde_json::from_str(text).expect("JSON");
    run["generator"]["messages_per_second"] = rate.into();
    for key in ["p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms"] {
        let time = run["latency"][key].as_f64().expect("a time");
        run["latency"][key] = (time * slower).into();
    }
    let file = Page::new(name);
    fs::write(&file.0, run.to_string()).expect("a file");
    file
}

#[test]
fn comparison_is_written_as_a_page() {
    let rates = [50_000.0, 50_400.0, 49_800.0];
    let runs = |name: &str, slower: f64| {
        let file = |(number, rate): (usize, &f64)| {
            run_file(&format!("{name}<{number}>"), *rate, slower * (1.0 + 0.01 * number as f64))
        };
        rates.iter().enumerate().map(file).collect::<Vec<Page>>()
    };
    let (before, after) = (runs("before", 1.0), runs("after", 1.5));
    let list = |runs: &[Page]| runs.iter().map(Page::path).collect::<Vec<_>>().join(",");
    let page = Page::new("comparison");
    let compare = ["load", "compare", &list(&before), &list(&after), "--html", page.path()];
    let finished = executable::run(&compare);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let expected = ["loaded", "numbers", "figures", "runs", "worse", "phone", "dark", "print"];
    works(&peer::BROWSER, "comparison.js", &[page.path()], &expected);
    // One run of each has no intervals; the page says so, and the exit code is that of no verdict.
    let one = ["load", "compare", before[0].path(), after[0].path(), "--html", page.path()];
    let finished = executable::run(&one);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    let text = fs::read_to_string(&page.0).expect("the page is there");
    assert!(text.contains("NOT JUDGED") && text.contains("no interval"), "{text}");
    assert!(!text.contains("<circle"), "no interval is drawn: {text}");
}

#[test]
fn unwritable_report_is_an_error_before_the_run() {
    for args in [&["prove", "--connections", "10"][..], &["load", "ws://127.0.0.1:9/"]] {
        let finished = executable::run(&[args, &["--html", "/no/such/place/page.html"]].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains("/no/such/place/page.html"), "{finished:?}");
    }
}
