//! Tests that cannot run on this machine, because it lacks a program or a privilege.
//!
//! libtest counts a test that returns early as passed. `cargo xtask test` names a file in
//! `STANDFAST_SKIPPED`; each such test appends a line to it and is counted as skipped.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;

/// Records that the running test skips something for `reason`, which says what is missing.
///
/// # Panics
/// With `CI` set, where nothing may be missing.
pub(crate) fn missing(reason: &str) {
    assert!(!is_ci(), "CI is set and this machine lacks something: {reason}");
    record(reason);
}

/// The same for what many CI machines cannot offer, such as writable control groups.
pub(crate) fn unsupported(reason: &str) {
    record(reason);
}

fn record(reason: &str) {
    eprintln!("skipped: {reason}");
    let Some(path) = env::var_os("STANDFAST_SKIPPED") else { return };
    // libtest names the thread of a test after the test.
    let thread = thread::current();
    let line = format!("{}\t{reason}\n", thread.name().unwrap_or("unnamed"));
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the skip list is writable");
}

/// The same rule as in `xtask`: empty, 0 and false mean no.
fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}
