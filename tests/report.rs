//! The HTML report of a run (`--html`) in a browser: it is complete, loads nothing, fits a phone screen,
//! and escapes user input.

use std::fs;
use std::path::PathBuf;

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

#[test]
fn unwritable_report_is_an_error_before_the_run() {
    for args in [&["prove", "--connections", "10"][..], &["load", "ws://127.0.0.1:9/"]] {
        let finished = executable::run(&[args, &["--html", "/no/such/place/page.html"]].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains("/no/such/place/page.html"), "{finished:?}");
    }
}
