//! `standfast doctor`: for limits lowered in turn it names the one that breaks and where, and `load`
//! then breaks there, within 2 %. Also its explanations, and the page that is made from them.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::executable::{self, limited, standfast};
use crate::harness::namespace::Namespace;
use crate::harness::server::Server;

/// More than any of the lowered limits lets through, and few enough to be tried.
const TOO_MANY: &str = "3000";

/// What doctor says of so many connections, run by a command such as the one to be judged.
fn prediction(mut command: Command) -> Value {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let finished = executable::run_command(command);
    assert_eq!(finished.code, Some(1), "it is too small: {finished:?}");
    serde_json::from_str(&finished.stdout).expect("JSON alone on stdout")
}

/// Which limit breaks first, and at how many connections.
fn breaks(report: &Value) -> (String, f64) {
    let short = report["shortfalls"].as_array().expect("shortfalls").iter();
    let needs = short.map(|shortfall| &shortfall["need"]);
    let first = needs.min_by_key(|need| need["breaks"].as_u64()).expect("one is short");
    let name = first["limit"].as_str().expect("a name").to_owned();
    (name, first["breaks"].as_u64().expect("a number") as f64)
}

/// How many connections `load` gets when it tries for too many.
fn reached(mut command: Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let finished = executable::run_command(command);
    let summary: Value = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|_| panic!("JSON alone on stdout: {finished:?}"));
    summary["connections"]["open"].as_u64().expect("a number") as f64
}

fn assert_within_2_percent(what: &str, predicted: f64, reached: f64) {
    let off = (reached - predicted).abs() / predicted;
    assert!(off <= 0.02, "{what}: predicted {predicted}, reached {reached}");
    eprintln!("{what}: predicted {predicted}, reached {reached}");
}

fn doctor<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["doctor", "--json", "-", "--connections", TOO_MANY], more].concat()
}

fn load<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&load_of(TOO_MANY, url)[..], more].concat()
}

fn load_of<'a>(connections: &'a str, url: &'a str) -> Vec<&'a str> {
    let how = ["load", url, "--connections", connections, "--connect-timeout", "5s", "--force"];
    [&how[..], &["--hold", "1s", "--heartbeat", "0", "--json", "-"]].concat()
}

#[test]
fn descriptors_of_a_client_break_where_it_is_said() {
    for nofile in [96, 128, 160] {
        let server = Server::start(&[]);
        let url = format!("ws://{}/echo", server.listen);
        let report = prediction(limited(nofile, &doctor(&["--role", "load"])));
        let (limit, predicted) = breaks(&report);
        assert_eq!(limit, "open_files", "{report}");
        let reached = reached(limited(nofile, &load(&url, &[])));
        assert_within_2_percent(&format!("client, ulimit -n {nofile}"), predicted, reached);
    }
}

#[test]
fn descriptors_of_a_server_break_where_it_is_said() {
    for (nofile, workers) in [(300, "1"), (512, "2"), (640, "4")] {
        let more = ["--role", "serve", "--workers", workers];
        let (limit, predicted) = breaks(&prediction(limited(nofile, &doctor(&more))));
        assert_eq!(limit, "open_files");
        let server = Server::start_limited(nofile, &["--workers", workers]);
        let url = format!("ws://{}/echo", server.listen);
        let reached = reached(standfast(&load(&url, &[])));
        let what = format!("server, ulimit -n {nofile}, {workers} workers");
        assert_within_2_percent(&what, predicted, reached);
    }
}

/// The soft limit is raised to the hard one, so only the hard one breaks.
#[test]
fn a_soft_limit_alone_is_no_limit() {
    let lowered = |args: &[&str]| {
        let mut command = Command::new("sh");
        let script = "ulimit -Sn 32 && ulimit -Hn 128 && exec \"$0\" \"$@\"";
        let inner = standfast(args);
        command.args(["-c", script]).arg(inner.get_program()).args(inner.get_args());
        command
    };
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let (limit, predicted) = breaks(&prediction(lowered(&doctor(&["--role", "load"]))));
    assert_eq!(limit, "open_files");
    assert_within_2_percent("soft 32, hard 128", predicted, reached(lowered(&load(&url, &[]))));
}

#[test]
fn ports_break_where_it_is_said() {
    // Ports of the range, ports reserved in it, source addresses, destinations.
    for (range, reserved, sources, destinations) in [
        ("40000 40999", "", 1, 1),
        ("40000 40999", "40100-40299", 1, 1),
        ("40000 40999", "", 2, 1),
        ("40000 40499", "", 1, 2),
        ("40000 40499", "40001,40100-40149", 2, 2),
    ] {
        let Some(namespace) = Namespace::create() else { return };
        namespace.set("net.ipv4.ip_local_port_range", range);
        namespace.set("net.ipv4.ip_local_reserved_ports", reserved);
        let listen = ["127.0.0.1:9001", "127.0.0.1:9001,127.0.0.1:9002"][destinations - 1];
        let server = Server::start_in(&namespace, &["--listen", listen]);
        let source = ["127.0.0.1", "127.0.0.2"].get(..sources).unwrap_or_default().join(",");
        let (count, urls) =
            (destinations.to_string(), ["ws://127.0.0.1:9001/echo", "ws://127.0.0.1:9002/echo"]);
        let more = ["--role", "load", "--source", &source, "--destinations", &count];
        let (limit, predicted) = breaks(&prediction(namespace.inside(&standfast(&doctor(&more)))));
        assert_eq!(limit, "ports");
        let more = [urls.get(1..destinations).unwrap_or_default(), &["--source", &source]].concat();
        let reached = reached(namespace.inside(&standfast(&load(urls[0], &more))));
        let what = format!("ports {range}, reserved {reserved:?}, {sources} × {destinations}");
        assert_within_2_percent(&what, predicted, reached);
        drop(server);
    }
}

/// Threads are all or nothing: what is said to fit is held, two percent more does not begin.
#[test]
fn threads_of_a_user_break_where_it_is_said() {
    let nobody = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["prlimit", "--nproc=12", "--nofile=160"]);
        command.arg(executable::copy_for_anybody()).args(args);
        command
    };
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "needs root to become somebody else");
        eprintln!("skipped: needs root to become somebody else");
        return;
    }
    let report = prediction(nobody(&doctor(&["--role", "load"])));
    let (limit, predicted) = breaks(&report);
    assert_eq!(limit, "threads", "{report}");
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let load_of = |connections: f64| {
        let mut command = nobody(&load_of(&connections.to_string(), &url));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        executable::run_command(command)
    };
    let fits = load_of(predicted);
    let summary: Value = serde_json::from_str(&fits.stdout).expect("a summary");
    assert_eq!(summary["connections"]["open"].as_f64(), Some(predicted), "{fits:?}");
    let more = load_of((predicted * 1.02).ceil());
    assert_eq!(more.code, Some(2), "{more:?}");
    assert!(more.stderr.contains("thread"), "{more:?}");
}

/// A Mac's 256 descriptors: the message says what fits, and that holds.
#[test]
fn with_256_descriptors_a_newcomer_gets_from_error_to_held() {
    let small = ["prove", "--hold", "1s", "--heartbeat", "1s"];
    let refused = limited(256, &[&small[..], &["--connections", "10k"]].concat());
    let refused = executable::run_command(refused);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let said = refused.stderr.lines().rev().find_map(|line| line.split_once("--connections "));
    let fits = said.expect("it says what fits").1.trim();
    assert!(fits.parse().is_ok_and(|fits: u32| fits > 5_000), "{refused:?}");
    assert!(refused.stderr.contains("ulimit -n"), "{refused:?}");
    let held = limited(256, &[&small[..], &["--connections", "2k"]].concat());
    let held = executable::run_command(held);
    assert_eq!(held.code, Some(0), "{held:?}");
}

#[test]
fn doctor_says_what_fits_and_how_to_get_more() {
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
        "as things are, about ",
    ] {
        assert!(short.stdout.contains(line), "no {line:?} in {}", short.stdout);
    }
    assert!(!short.stdout.contains('\x1b'), "no colours into a pipe");
    let usage = executable::run(&["doctor", "--connections", "many"]);
    assert_eq!(usage.code, Some(2), "{usage:?}");
}

#[test]
fn a_message_is_explained_or_said_to_be_unknown() {
    let explain = |text: &str| executable::run(&["doctor", "explain", text]);
    let known = explain("2026/11/20 03:00:00 [alert] 7#7: 768 worker_connections are not enough");
    assert_eq!(known.code, Some(0), "{known:?}");
    assert!(known.stdout.contains("worker_rlimit_nofile"), "{}", known.stdout);
    let unknown = explain("the cat sat on the keyboard");
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stdout.contains("not known"), "{}", unknown.stdout);
}

#[test]
fn the_troubleshooting_page_is_the_table() {
    let page = executable::run(&["doctor", "explain", "--page"]).stdout;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operate/troubleshooting.md");
    let kept = fs::read_to_string(file).expect("the page is there");
    assert!(
        kept == page,
        "run `standfast doctor explain --page > docs/operate/troubleshooting.md`"
    );
}
