//! Whether `doctor` is right. Each test lowers one limit. `doctor` must name it and predict at how many
//! connections it is reached, and `load` must reach it within 2 % of that. The tests lower limits only of
//! processes, namespaces and control groups that they made, so the rest of the machine is unaffected.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::executable::{self, Finished, limited, standfast};
use crate::harness::lowered::{Group, Namespace, address_space, nobody, one_table, python_is_here};
use crate::harness::server::Server;
use crate::harness::skip;

/// More than any of the lowered limits allows, and few enough to try.
const TOO_MANY: &str = "3000";

fn run(mut command: Command) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    executable::run_command(command)
}

/// The report of doctor for [`TOO_MANY`] connections, run under the same limits as `load` later.
fn prediction(command: Command) -> Value {
    let finished = run(command);
    assert_eq!(finished.code, Some(1), "the limit is too low for {TOO_MANY}: {finished:?}");
    finished.json()
}

/// The limit that is reached first, and at how many connections.
fn breaks(report: &Value) -> (String, f64) {
    let short = report["shortfalls"].as_array().expect("shortfalls").iter();
    let needs = short.map(|shortfall| &shortfall["need"]);
    let first = needs.min_by_key(|need| need["breaks"].as_u64()).expect("a limit is short");
    let name = first["limit"].as_str().expect("a name").to_owned();
    (name, first["breaks"].as_u64().expect("a number") as f64)
}

/// How many connections `load` opens when it tries too many.
fn reached(command: Command) -> f64 {
    let finished = run(command);
    finished.json()["connections"]["open"].as_u64().expect("a number") as f64
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
fn client_runs_out_of_descriptors_where_predicted() {
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
fn server_runs_out_of_descriptors_where_predicted() {
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

/// With `--force` a run starts in spite of the check, and its summary names the limit that was short.
#[test]
fn forced_run_that_falls_short_names_the_limit() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let forced = run(limited(96, &load(&url, &[])));
    assert_eq!(forced.code, Some(1), "{forced:?}");
    let summary: Value = serde_json::from_str(&forced.stdout).expect("only JSON on stdout");
    assert!(summary["reasons"].to_string().contains("not enough descriptors"), "{summary}");
}

/// The soft limit is raised to the hard one, so only the hard one counts.
#[test]
fn only_the_hard_descriptor_limit_counts() {
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
fn ports_run_out_where_predicted() {
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

/// Where workers cannot leave the shared table, as under an old seccomp profile, they share one limit.
#[test]
fn shared_table_runs_out_of_descriptors_where_predicted() {
    if !python_is_here() {
        return;
    }
    for nofile in [150, 400] {
        let server = Server::start(&[]);
        let url = format!("ws://{}/echo", server.listen);
        let report = prediction(one_table(&limited(nofile, &doctor(&["--role", "load"]))));
        assert_eq!(report["goal"]["private_tables"], false);
        let (limit, predicted) = breaks(&report);
        assert_eq!(limit, "open_files", "{report}");
        let reached = reached(one_table(&limited(nofile, &load(&url, &[]))));
        assert_within_2_percent(&format!("client, one table of {nofile}"), predicted, reached);
    }
    let (limit, predicted) =
        breaks(&prediction(one_table(&limited(300, &doctor(&["--role", "serve"])))));
    assert_eq!(limit, "open_files");
    let server = Server::start_as(one_table, 300);
    let url = format!("ws://{}/echo", server.listen);
    let reached = reached(standfast(&load(&url, &[])));
    assert_within_2_percent("server, one table of 300", predicted, reached);
}

/// `prove` runs both ends, each with tables of its own, and holds as many as predicted.
#[test]
fn prove_runs_out_of_descriptors_where_predicted() {
    let (limit, predicted) = breaks(&prediction(limited(128, &doctor(&["--role", "prove"]))));
    assert_eq!(limit, "open_files");
    let all = ["prove", "--connections", TOO_MANY, "--force", "--json", "-"];
    let proof = limited(128, &[&all[..], &["--hold", "1s", "--heartbeat", "1s"]].concat());
    let finished = executable::run_command(proof);
    assert_eq!(finished.code, Some(1), "it holds fewer than requested: {finished:?}");
    let proof = finished.json();
    let open = proof["connections"]["open"].as_u64().expect("a number") as f64;
    assert_within_2_percent("both ends, ulimit -n 128", predicted, open);
}

/// On loopback `load` uses as many source addresses as a narrow port range needs.
#[test]
fn narrow_port_range_is_enough_on_loopback() {
    let Some(namespace) = Namespace::create() else { return };
    namespace.set("net.ipv4.ip_local_port_range", "40000 40999");
    let server = Server::start_in(&namespace, &[]);
    let fine = run(namespace.inside(&standfast(&doctor(&["--role", "load"]))));
    assert_eq!(fine.code, Some(0), "{fine:?}");
    let url = format!("ws://{}/echo", server.listen);
    assert_eq!(reached(namespace.inside(&standfast(&load(&url, &[])))), 3_000.0);
}

#[test]
fn user_runs_out_of_threads_where_predicted() {
    if !rustix::process::geteuid().is_root() {
        return skip::missing("needs root to switch to another user");
    }
    threads_run_out_where_predicted(|args| nobody(12, 160, args));
}

#[test]
fn control_group_runs_out_of_threads_where_predicted() {
    let Some(group) = Group::of_tasks(12) else { return };
    threads_run_out_where_predicted(|args| group.inside(&limited(160, args)));
}

/// A run needs all its threads to start: the predicted number is held, and 2 % more does not start.
fn threads_run_out_where_predicted(lowered: impl Fn(&[&str]) -> Command) {
    let report = prediction(lowered(&doctor(&["--role", "load"])));
    let (limit, predicted) = breaks(&report);
    assert_eq!(limit, "threads", "{report}");
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let load_of = |connections: f64| run(lowered(&load_of(&connections.to_string(), &url)));
    let fits = load_of(predicted);
    let summary: Value = serde_json::from_str(&fits.stdout).expect("a summary");
    assert_eq!(summary["connections"]["open"].as_f64(), Some(predicted), "{fits:?}");
    let more = load_of((predicted * 1.02).ceil());
    assert_eq!(more.code, Some(2), "{more:?}");
    assert!(more.stderr.contains("thread"), "{more:?}");
    eprintln!("threads: predicted {predicted}, held {predicted}, 2 % more did not start");
}

/// Address space is an estimate: the predicted number is held, and half the space is too little. The
/// estimate is for a release build; a debug build's image alone is larger.
#[test]
fn predicted_address_space_is_enough() {
    if executable::is_debug() {
        return skip::unsupported("needs a release build");
    }
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let lowered = |bytes: u64, args: &[&str]| address_space(bytes, &limited(160, args));
    let report = prediction(lowered(60_000_000, &doctor(&["--role", "load"])));
    let (limit, predicted) = breaks(&report);
    assert_eq!(limit, "address_space", "{report}");
    let connections = predicted.to_string();
    let load = load_of(&connections, &url);
    assert_eq!(reached(lowered(60_000_000, &load)), predicted);
    let half = run(lowered(30_000_000, &load));
    assert_ne!(half.code, Some(0), "no threads or no memory: {half:?}");
}

/// Memory is an estimate too: in a control group the predicted number is held.
#[test]
fn predicted_memory_is_enough() {
    let Some(group) = Group::of_memory(44 << 20) else { return };
    let report = prediction(group.inside(&standfast(&doctor(&["--role", "load"]))));
    let (limit, predicted) = breaks(&report);
    assert_eq!(limit, "memory", "{report}");
    let fixes = report["shortfalls"][0]["fixes"].to_string();
    assert!(fixes.contains("group_memory"), "{fixes}");
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let connections = predicted.to_string();
    assert_eq!(reached(group.inside(&standfast(&load_of(&connections, &url)))), predicted);
}
