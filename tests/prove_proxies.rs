//! `standfast prove` of a scenario with cells, small: every cell through `standfast proxy`, nginx and
//! HAProxy, each message counted. The reference sizes: `standfast prove nginx-idle`, `nginx-active`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::executable::{self, Running, limited};
use crate::harness::{Scratch, eventually, skip};

/// Returns whether the program is installed at Debian's path. If not, the test is recorded as skipped; under `CI` it fails.
fn is_here(proxy: &str) -> bool {
    let here = Path::new("/usr/sbin").join(proxy).is_file();
    if !here {
        skip::missing(&format!("{proxy} is not installed: try cargo xtask test --install"));
    }
    here
}

fn pass<'a>(report: &'a Value, cell: usize, proxy: &str) -> &'a Value {
    let passes = report["cells"][cell]["passes"].as_array().expect("a cell has passes");
    let mut passes = passes.iter().filter(|pass| pass["proxy"] == proxy);
    passes.next().unwrap_or_else(|| panic!("no {proxy} in cell {cell} of {report}"))
}

#[test]
fn every_message_returns_through_all_three_proxies() {
    let text = "version = 1\nabout = 'small'\n\
                [[cells]]\ntunnels = ['200']\nsizes = ['10']\nevery = ['250ms']\nhold = '1s'\n\
                [[cells]]\ntunnels = ['50']\nsizes = ['1']\nmessages = 5\nhold = '1s'\n";
    let file = Scratch::new("cells.toml", text);
    let (json, html) = (Scratch::new("cells.json", ""), Scratch::new("cells.html", ""));
    let outputs = ["--json", json.path(), "--html", html.path()];
    let finished = executable::run(&[&["prove", file.path()], &outputs[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let read = |file: &Scratch| fs::read_to_string(file.path()).unwrap();
    let report: Value = serde_json::from_str(&read(&json)).unwrap();
    assert_eq!((&report["verdict"], &report["version"]), (&"HELD".into(), &1.into()), "{report}");
    let names = [&report["cells"][0]["name"], &report["cells"][1]["name"]];
    assert_eq!(names, ["200-10B-250ms", "50-1B-5x"]);
    for proxy in ["standfast", "nginx", "haproxy"] {
        if proxy != "standfast" && !is_here(proxy) {
            let why = pass(&report, 0, proxy)["left_out"].as_str().unwrap();
            assert!(why.contains("not installed"), "{why}");
            continue;
        }
        assert!(finished.stdout.contains(proxy), "{}", finished.stdout);
        for cell in [0, 1] {
            let figures = &pass(&report, cell, proxy)["figures"];
            let count =
                |key: &str| figures[key].as_u64().unwrap_or_else(|| panic!("{key}: {report}"));
            // Four messages on each of 200; five on each connection there was, of 50 at a time.
            let (sent, open) = if cell == 0 { (800, 200) } else { (5 * count("opened"), 50) };
            assert_eq!((count("sent"), count("received")), (sent, sent), "{proxy}: {figures}");
            assert_eq!((count("open"), count("failed")), (open, 0), "{proxy}: {figures}");
            assert_eq!(figures["closed"], serde_json::json!({}), "{proxy}");
            assert!(count("rss_bytes") > 1 << 20, "{proxy}: {figures}");
            assert!(figures["cpu_cores"].as_f64() > Some(0.0), "{proxy}: {figures}");
        }
        let opened = pass(&report, 1, proxy)["figures"]["opened"].as_u64();
        assert!(opened >= Some(100), "{proxy} replaced them: {opened:?}");
    }
    let page = read(&html);
    assert!(page.contains("<th scope=\"col\">haproxy</th>") && page.contains("200"), "{page}");
}

#[test]
fn proxy_that_cannot_hold_a_cell_is_left_out_with_the_reason() {
    if !is_here("haproxy") {
        return;
    }
    let text = "version = 1\n[[cells]]\ntunnels = ['300']\nsizes = ['20']\nevery = ['500ms']\n\
                hold = '500ms'\n";
    let file = Scratch::new("too-many.toml", text);
    let args = ["prove", file.path(), "--proxies", "standfast,haproxy", "--json", "-"];
    let finished = executable::run_command(limited(600, &args));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let report = finished.json();
    let ours = &pass(&report, 0, "standfast")["figures"];
    assert_eq!((&ours["received"], &ours["workers"]), (&300.into(), &2.into()), "{report}");
    let theirs = pass(&report, 0, "haproxy");
    assert!(theirs["figures"].is_null(), "{theirs}");
    assert!(theirs["left_out"].as_str().unwrap().contains("250 tunnels"), "{theirs}");
    assert!(finished.stderr.contains("250 tunnels"), "stderr shows it too: {}", finished.stderr);
}

#[test]
fn killed_proof_leaves_no_proxy_behind() {
    if !is_here("nginx") {
        return;
    }
    let text =
        "version = 1\n[[cells]]\ntunnels = ['20']\nsizes = ['20']\nevery = ['1s']\nhold = '60s'\n";
    let file = Scratch::new("killed.toml", text);
    let prove = executable::standfast(&["prove", file.path(), "--proxies", "nginx"]).spawn();
    let prove = Running(prove.expect("the executable starts"));
    let mut children = String::new();
    eventually("server, nginx and clients are there", || {
        let of = format!("/proc/{0}/task/{0}/children", prove.0.id());
        children = fs::read_to_string(of).expect("prove runs");
        children.split_whitespace().count() == 3
    });
    // Dropping it sends SIGKILL.
    drop(prove);
    let runs = |child: &str| fs::exists(format!("/proc/{child}")).unwrap_or(true);
    eventually("all three have ended", || !children.split_whitespace().any(runs));
}
