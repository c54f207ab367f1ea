//! `standfast prove`, small: the whole proof with its JSON, and a machine that is too small for
//! what was asked. 50,000 sockets: `cargo xtask test`; the million: `cargo xtask bench million`.

use serde_json::Value;

use crate::harness::executable::{self, limited};

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
    "/closed",
    "/connect_errors",
    "/verdict",
    "/reasons",
];

#[test]
fn a_small_proof_is_held_and_its_json_is_whole() {
    let small = ["--connections", "500", "--hold", "1s", "--heartbeat", "1s", "--broadcasts", "2"];
    let finished = executable::run(&[&["prove"], &small[..], &["--json", "-"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let report: Value = serde_json::from_str(&finished.stdout).expect("JSON alone on stdout");
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
    assert!(finished.stderr.contains("HELD"), "people see the verdict: {}", finished.stderr);
}

#[test]
fn a_machine_that_is_too_small_is_told_which_limit_what_fits_and_the_fix() {
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
