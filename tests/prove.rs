//! `standfast prove` with few sockets: the complete proof with its JSON, and a machine that is too small
//! for the target. 50,000 sockets: `cargo xtask test`; the million: `cargo xtask bench million`.

use std::fs;

use serde_json::Value;

use crate::harness::eventually;
use crate::harness::executable::{self, Running, limited};
use crate::harness::lowered::Namespace;

/// Every field of docs/protocol/prove-json.md, as a JSON pointer.
const FIELDS: &[&str] = &[
    "/version",
    "/standfast",
    "/command",
    "/machine/kernel",
    "/connections/requested",
    "/connections/open",
    "/connections/failed",
    "/connections/seconds",
    "/connections/per_second",
    "/hold_seconds",
    "/seconds",
    "/server/rss_bytes",
    "/server/rss_bytes_per_connection",
    "/server/cpu_seconds",
    "/client/rss_bytes",
    "/client/rss_bytes_per_connection",
    "/client/cpu_seconds",
    "/kernel_bytes_per_socket",
    "/system_bytes",
    "/marks/0/connections",
    "/marks/0/server_rss_bytes",
    "/marks/0/client_rss_bytes",
    "/marks/0/kernel_bytes",
    "/heartbeats/sent",
    "/heartbeats/received",
    "/heartbeats/unanswered_sockets",
    "/broadcast/expected",
    "/broadcast/received",
    "/broadcast/lost",
    "/broadcast/duplicated",
    "/broadcast/p50_ms",
    "/broadcast/p99_ms",
    "/broadcast/last_ms",
    "/broadcast/to_last/p50_ms",
    "/broadcast/first_to_last/max_ms",
    "/closed",
    "/connect_errors",
    "/scenario",
    "/messages",
    "/link",
    "/samples/0/elapsed_seconds",
    "/samples/0/phase",
    "/samples/0/open",
    "/samples/0/server/rss_bytes",
    "/verdict",
    "/reasons",
];

#[test]
fn small_proof_holds_and_its_json_is_complete() {
    let small = ["--connections", "500", "--hold", "1s", "--heartbeat", "1s", "--broadcasts", "2"];
    let finished = executable::run(&[&["prove"], &small[..], &["--json", "-"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let report = finished.json();
    for field in FIELDS {
        assert!(report.pointer(field).is_some(), "no {field} in {report}");
    }
    let at = |field: &str| report.pointer(field).cloned().unwrap_or_default();
    assert_eq!(at("/verdict"), "HELD");
    assert_eq!(at("/reasons"), Value::Array(Vec::new()));
    assert_eq!((at("/connections/requested"), at("/connections/open")), (500.into(), 500.into()));
    assert!(at("/heartbeats/received").as_u64() >= Some(500), "{report}");
    assert_eq!((at("/broadcast/expected"), at("/broadcast/received")), (1000.into(), 1000.into()));
    assert_eq!((at("/broadcast/lost"), at("/broadcast/duplicated")), (0.into(), 0.into()));
    assert!(finished.stderr.contains("HELD"), "stderr shows the verdict: {}", finished.stderr);
}

#[test]
fn scenario_of_prove_runs_and_flags_override_it() {
    let less = ["--connections", "300", "--hold", "2s", "--message-every", "500ms", "--json", "-"];
    let finished = executable::run(&[&["prove", "million"], &less[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let report = finished.json();
    assert_eq!((&report["scenario"], &report["verdict"]), (&"million".into(), &"HELD".into()));
    // Exactly four messages each way for each socket.
    for (count, expected) in [("sent", 1_200), ("received", 1_200), ("lost", 0), ("duplicated", 0)]
    {
        assert_eq!(report["messages"][count], expected, "{count} in {report}");
    }
    assert_eq!(report["heartbeats"]["sent"], 0);
}

#[test]
fn scenario_file_of_prove_runs_and_its_errors_name_the_line() {
    let file = std::env::temp_dir().join(format!("standfast-scenario-{}.toml", std::process::id()));
    let path = file.to_str().expect("a plain path");
    let prove = |text: &str| {
        fs::write(&file, text).expect("the scenario is written");
        executable::run(&["prove", path])
    };
    let storm = "version = 1\nconnections = '400'\nconnect = 'storm'\nhold = '1s'\n\
                 heartbeat = '1s'\nbroadcasts = 2\n[serve]\nmax_message = '1KiB'\n";
    let finished = prove(storm);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("800 of 800 delivered"), "{}", finished.stdout);
    let finished = prove(&storm.replace("'1s'", "'1 second'"));
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("line 4"), "{}", finished.stderr);
    let finished = prove(&storm.replace("max_message", "max_mesage"));
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("max-mesage"), "{}", finished.stderr);
    let _ = fs::remove_file(&file);
}

/// The Wi-Fi reference run, small: a link that cannot carry the messages delays them for long.
#[test]
fn simulated_link_limits_the_rate_and_reports_its_traffic() {
    if Namespace::create().is_none() {
        return;
    }
    let small = ["prove", "slow-link", "--connections", "3k", "--hold", "6s"];
    let more = ["--message-every", "100ms", "--json", "-"];
    let finished = executable::run(&[&small[..], &more[..]].concat());
    let report: Value = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|_| panic!("needs root and iproute2: {finished:?}"));
    // 30,000 messages of 20 bytes a second are 22 Mbit/s at least; with acknowledgements twice that.
    let bytes = report["link"]["to_server"]["bytes"].as_u64().unwrap_or(0);
    let most = 72_000_000.0 / 8.0 * report["seconds"].as_f64().unwrap_or(0.0);
    assert!(bytes > 1_000_000 && (bytes as f64) < most * 1.05, "{report}");
    assert_eq!(report["connections"]["open"], 3_000, "{report}");
}

#[test]
fn killed_proof_leaves_no_process_behind() {
    let prove = executable::standfast(&["prove", "--connections", "200", "--hold", "60s"]).spawn();
    let prove = Running(prove.expect("the executable starts"));
    let mut children = String::new();
    eventually("both processes are there", || {
        let of = format!("/proc/{0}/task/{0}/children", prove.0.id());
        children = fs::read_to_string(of).expect("prove runs");
        children.split_whitespace().count() == 2
    });
    // Dropping it sends SIGKILL.
    drop(prove);
    let runs = |child: &str| fs::exists(format!("/proc/{child}")).unwrap_or(true);
    eventually("both have ended", || !children.split_whitespace().any(runs));
}

#[test]
fn too_small_a_machine_is_refused_with_the_limit_and_the_fix() {
    let finished = executable::run(&["prove", "--connections", "1000M"]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for word in ["not enough memory", "fit", "--connections"] {
        assert!(finished.stderr.contains(word), "no {word:?} in {}", finished.stderr);
    }
    let finished = executable::run_command(limited(64, &["prove", "--connections", "50k"]));
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for word in ["not enough descriptors", "64 descriptors", "about", "fit", "ulimit -n"] {
        assert!(finished.stderr.contains(word), "no {word:?} in {}", finished.stderr);
    }
    assert!(finished.stdout.is_empty(), "nothing was begun: {}", finished.stdout);
}
