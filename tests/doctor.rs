//! `standfast doctor`: its table, its fixes, its explanations, the page that is generated from them, and the
//! first steps of a new user. Whether its numbers are right is tested in `doctor_limits.rs`.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::executable::{self, limited};

/// With a Mac's 256 descriptors, the first command reports what fits and the second holds it.
#[test]
fn with_256_descriptors_the_error_names_a_number_that_can_be_held() {
    let prove = |connections: &str| {
        let small = ["prove", "--hold", "1s", "--heartbeat", "1s", "--connections", connections];
        executable::run_command(limited(256, &small))
    };
    let refused = prove("1M");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("ulimit -n"), "{refused:?}");
    let suggested = refused.stderr.lines().find_map(|line| line.split_once("--connections "));
    let fits = suggested.expect("the error suggests a number").1.trim().to_owned();
    assert!(fits.parse().is_ok_and(|fits: u32| fits > 5_000), "{refused:?}");
    let held = prove(&fits);
    assert_eq!(held.code, Some(0), "{held:?}");
}

#[test]
fn with_256_descriptors_prove_without_a_number_holds_what_fits() {
    let held = executable::run_command(limited(256, &["prove", "--hold=1s", "--heartbeat=1s"]));
    assert_eq!(held.code, Some(0), "{held:?}");
    assert!(held.stdout.contains("HELD: 7,"), "{held:?}");
}

#[test]
fn colours_are_printed_to_a_terminal_without_no_color() {
    let on_a_terminal = |before: &str| {
        let doctor = executable::standfast(&["doctor", "--connections", "100"]);
        let line = format!("{before} {} doctor --connections 100", doctor.get_program().display());
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env_remove("NO_COLOR");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        executable::run_command(command).stdout
    };
    let plain = on_a_terminal("NO_COLOR=1");
    assert!(plain.contains("ok") && !plain.contains('\x1b'), "{plain}");
    let coloured = on_a_terminal("");
    assert!(coloured.contains("\x1b[32mok"), "{coloured}");
}

#[test]
fn doctor_prints_what_fits_and_how_to_raise_limits() {
    let fine = executable::run(&["doctor", "--connections", "100", "--role", "serve"]);
    assert_eq!(fine.code, Some(0), "{fine:?}");
    assert!(fine.stdout.contains("it fits"), "{}", fine.stdout);
    let short = limited(128, &["doctor", "--connections", "100k", "--role", "proxy"]);
    let short = executable::run_command(short);
    assert_eq!(short.code, Some(1), "{short:?}");
    for line in [
        "SHORT",
        "ulimit -n ",
        "* - nofile ",
        "LimitNOFILE=",
        "--ulimit nofile=",
        "worker_rlimit_nofile ",
        "currently about ",
    ] {
        assert!(short.stdout.contains(line), "no {line:?} in {}", short.stdout);
    }
    assert!(!short.stdout.contains('\x1b'), "no colours into a pipe");
    let next = executable::run_command(limited(256, &["doctor", "--connections", "100k"]));
    assert!(next.stdout.ends_with("fit: standfast prove --connections 7700\n"), "{next:?}");
    let usage = executable::run(&["doctor", "--connections", "many"]);
    assert_eq!(usage.code, Some(2), "{usage:?}");
}

#[test]
fn known_messages_are_explained_and_unknown_ones_reported() {
    let explain = |text: &str| executable::run(&["doctor", "explain", text]);
    let known = explain("2026/11/20 03:00:00 [alert] 7#7: 768 worker_connections are not enough");
    assert_eq!(known.code, Some(0), "{known:?}");
    assert!(known.stdout.contains("worker_rlimit_nofile"), "{}", known.stdout);
    let lookup = explain("FetchError: request failed, reason: getaddrinfo ENOTFOUND db.internal");
    assert!(lookup.stdout.contains("UV_THREADPOOL_SIZE"), "{}", lookup.stdout);
    let ports = explain("dial tcp 10.1.2.3:80: connect: cannot assign requested address");
    assert!(ports.stdout.contains("on this machine:"), "{}", ports.stdout);
    let near = explain("the workers have connections, enough for today");
    assert_eq!(near.code, Some(1), "{near:?}");
    assert!(near.stdout.contains("worker_connections are not enough"), "{}", near.stdout);
    let unknown = explain("the cat sat on the keyboard");
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stdout.contains("not known"), "{}", unknown.stdout);
}

#[test]
fn troubleshooting_page_is_generated_from_the_table() {
    let page = executable::run(&["doctor", "explain", "--page"]).stdout;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operate/troubleshooting.md");
    let kept = fs::read_to_string(file).expect("the page exists");
    assert!(
        kept == page,
        "run `standfast doctor explain --page > docs/operate/troubleshooting.md`"
    );
}
