//! The page of a run (`--html`), opened in a browser: everything is there, nothing is fetched, it
//! fits a phone, and what users wrote stays text.

use std::fs;
use std::path::PathBuf;

use crate::harness::executable;
use crate::harness::peer::{self, works};
use crate::harness::server::Server;

/// A file that goes with its test.
struct Page(PathBuf);

impl Page {
    fn new(name: &str) -> Page {
        Page(std::env::temp_dir().join(format!("standfast-{name}-{}.html", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }

    /// Opens it; these charts must be there with their lines.
    fn is_shown_with(&self, charts: &[&str]) {
        let mut expected = vec!["loaded", "charts", "crosshair", "phone", "dark", "print"];
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
fn a_proof_as_a_page() {
    let page = Page::new("proof");
    let small = ["--connections", "300", "--hold", "3s", "--heartbeat", "1s"];
    let finished = executable::run(&[&["prove"], &small[..], &["--html", page.path()]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    page.is_shown_with(&[
        "Open sockets",
        "Memory of the programs",
        "Memory of the kernel, growth",
        "CPU, in cores",
        "Messages and heartbeats",
        "Latency",
    ]);
    let text = fs::read_to_string(&page.0).expect("the page is there");
    for part in ["HELD", "Memory on the way up", "The machine", "standfast prove --connections"] {
        assert!(text.contains(part), "no {part:?}");
    }
}

#[test]
fn a_load_that_fell_short_as_a_page() {
    let server = Server::start(&["--max-connections", "20"]);
    let page = Page::new("load");
    let url = format!("ws://{}/echo", server.listen);
    let some =
        ["--connections", "30", "--connect-timeout", "1s", "--rate", "100", "--duration", "3s"];
    let odd = ["--header", "X-Odd: <script>alert('odd')</script>", "--html", page.path()];
    let finished = executable::run(&[&["load", &url], &some[..], &odd].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    page.is_shown_with(&[
        "Open sockets",
        "Memory of the programs",
        "CPU, in cores",
        "Messages and heartbeats",
        "Latency",
        "Errors so far",
    ]);
    let text = fs::read_to_string(&page.0).expect("the page is there");
    assert!(text.contains("FELL SHORT") && !text.contains("<script>alert"), "{text}");
}

#[test]
fn where_no_page_can_be_written_nothing_is_begun() {
    for args in [&["prove", "--connections", "10"][..], &["load", "ws://127.0.0.1:9/"]] {
        let finished = executable::run(&[args, &["--html", "/no/such/place/page.html"]].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains("/no/such/place/page.html"), "{finished:?}");
    }
}
