//! `standfast load` against targets that refuse, stay silent, reject or disconnect: it ends, counts
//! failures by cause and exits with 1. Correct and faulty servers: `load_counting`.

use std::net::TcpListener;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::chat::Chat;
use crate::harness::executable::{self, Running, standfast};
use crate::harness::recorder::Recorder;
use crate::harness::server::Server;
use crate::harness::{Deserted, eventually, two_ports_in_a_row};

#[test]
fn refused_connections_are_counted_by_cause() {
    let nobody = Deserted::port();
    let summary = falls_short(&format!("ws://{}/", nobody.address), &[]);
    assert_eq!(summary["connect_errors"], json!({"connect_refused": 20}), "{summary}");
}

#[test]
fn silent_server_times_out_the_handshake() {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}/", deaf.local_addr().unwrap());
    let summary = falls_short(&url, &["--connect-timeout", "500ms"]);
    assert_eq!(summary["connect_errors"], json!({"handshake_timeout": 20}), "{summary}");
}

#[test]
fn rejected_handshakes_are_counted_by_status() {
    let server = Server::start(&[]);
    let summary = falls_short(&format!("ws://{}/nowhere", server.listen), &[]);
    assert_eq!(summary["connect_errors"], json!({"status_404": 20}), "{summary}");
}

#[test]
fn lost_connections_are_counted_by_cause() {
    let mut server = Server::start(&["--drain", "0s"]);
    let load = hold(&server, "3s");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let finished = executable::finish(load);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let summary = finished.json();
    assert_eq!(summary["connections"]["open"], 0, "{summary}");
    assert_eq!(summary["closed"], json!({"by_peer": 20}), "{summary}");
}

#[test]
fn interrupted_run_prints_its_results_and_exits_with_130() {
    let server = Server::start(&[]);
    let load = hold(&server, "10m");
    // The server sends pings once all connections count as open.
    let pings = || server.metrics().get("standfast_pings_in_total").copied();
    eventually("a first ping comes", || pings() >= Some(1.0));
    let pid = Pid::from_raw(load.0.id().try_into().unwrap());
    kill_process(pid.unwrap(), Signal::INT).unwrap();
    let finished = executable::finish(load);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    assert_eq!(finished.json()["connections"]["open"], 20, "{finished:?}");
}

#[test]
fn every_connect_mode_opens_all_connections() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    for connect in ["windowed", "one-by-one", "paced:1k", "storm"] {
        let numbers = ["--connections", "300", "--connect", connect, "--messages", "3"];
        let finished = executable::run(&[&["load", &url], &numbers[..], &["--json", "-"]].concat());
        assert_eq!(finished.code, Some(0), "{connect}: {finished:?}");
        let summary = finished.json();
        assert_eq!(summary["connections"]["open"], 300, "{connect}: {summary}");
        assert_eq!(summary["echo"]["received"], 900, "{connect}: {summary}");
    }
}

/// Runs 20 connections against `url`, requires that none opens and exit code 1; the summary.
fn falls_short(url: &str, more: &[&str]) -> Value {
    let args = ["load", url, "--connections", "20", "--json", "-"];
    let finished = executable::run(&[&args[..], more].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("fell short"), "stderr shows it too: {finished:?}");
    let summary = finished.json();
    assert_eq!((&summary["held"], &summary["connections"]["failed"]), (&json!(false), &json!(20)));
    summary
}

/// Starts holding 20 connections for `time`; returns once the server has them.
fn hold(server: &Server, time: &str) -> Running {
    let url = format!("ws://{}/echo", server.listen);
    let args = ["load", &url, "--connections", "20", "--hold", time, "--json", "-"];
    let mut load = standfast(&args);
    let load = Running(load.stdin(Stdio::null()).spawn().unwrap());
    eventually("all are open", || server.metrics()["standfast_websockets"] == 20.0);
    load
}

/// No server listens at first, as after a crash; then all connect, spread by jitter.
#[test]
fn refused_connections_are_retried_with_jitter() {
    let nobody = Deserted::port();
    let address = nobody.address.to_string();
    let url = format!("ws://{address}/echo");
    let crowd = ["--connections", "200", "--connect", "storm", "--hold", "1s", "--json", "-"];
    let retry = ["--retry", "forever", "--backoff", "20ms..300ms"];
    let load = standfast(&[&["load", &url], &crowd[..], &retry].concat()).spawn();
    let load = Running(load.expect("the executable starts"));
    // Each attempt is refused until the server starts.
    let server = Server::start(&["--listen", &address]);
    let finished = executable::finish(load);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let summary = finished.json();
    let connections = &summary["connections"];
    assert_eq!(
        (&connections["open"], &connections["failed"]),
        (&200.into(), &0.into()),
        "{summary}"
    );
    let retried = connections["retries"].as_u64().unwrap();
    assert_eq!(
        summary["retried_by"]["connect_refused"].as_u64().unwrap_or(0),
        retried,
        "{summary}"
    );
    drop(server);
}

#[test]
fn failed_attempts_are_counted_apart_from_failed_connections() {
    let nobody = Deserted::port();
    let url = format!("ws://{}/echo", nobody.address);
    let summary = falls_short(&url, &["--retry", "3", "--backoff", "1ms..5ms"]);
    assert_eq!(summary["connect_errors"], json!({"connect_refused": 20}), "{summary}");
    assert_eq!(summary["retried_by"], json!({"connect_refused": 60}), "{summary}");
}

/// The server closes each idle socket; each is reopened repeatedly.
#[test]
fn closed_connections_are_reopened() {
    let server = Server::start(&["--idle-timeout", "1s", "--pings", "off"]);
    let url = format!("ws://{}/echo", server.listen);
    let again = ["--connections", "20", "--hold", "4s", "--heartbeat", "0", "--json", "-"];
    let reconnect = ["--reconnect", "--backoff", "1ms..10ms"];
    let finished = executable::run(&[&["load", &url], &again[..], &reconnect].concat());
    let summary = finished.json();
    let connections = &summary["connections"];
    let reconnects = connections["reconnects"].as_u64().unwrap();
    let ended: u64 =
        summary["closed"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert!(reconnects >= 20 && reconnects == ended, "{summary}");
    assert_eq!(connections["failed"], 0, "{summary}");
}

/// The server counts connections and messages, too.
#[test]
fn connections_are_replaced_after_n_messages_as_the_server_counts() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let few = ["--connections", "20", "--messages-per-connection", "5", "--duration", "500ms"];
    let finished = executable::run(&[&["load", &url], &few[..], &["--json", "-"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let summary = finished.json();
    let replaced = summary["connections"]["replaced"].as_u64().unwrap();
    assert!(replaced >= 20, "{summary}");
    assert_eq!((&summary["connections"]["open"], &summary["closed"]), (&20.into(), &json!({})));
    assert_eq!(summary["echo"]["sent"], 5 * (20 + replaced), "{summary}");
    assert_eq!(summary["echo"]["received"], summary["echo"]["sent"], "{summary}");
    assert_eq!(server.metrics()["standfast_accepted_total"], (20 + replaced) as f64);
}

#[test]
fn thresholds_decide_the_exit_code() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let few = ["--connections", "10", "--messages", "20", "--json", "-"];
    let run = |threshold: &str| {
        executable::run(&[&["load", &url], &few[..], &["--threshold", threshold]].concat())
    };
    for (threshold, code) in [("p99<1m", 0), ("max<0", 1), ("failed<1", 0), ("lost>0", 1)] {
        let finished = run(threshold);
        assert_eq!(finished.code, Some(code), "{threshold}: {finished:?}");
        let outcome = finished.json()["thresholds"][0].clone();
        assert_eq!(outcome["met"], code == 0, "{outcome}");
        assert!(outcome["value"].is_number(), "{outcome}");
    }
    assert_eq!(run("p99<soon").code, Some(2));
}

#[test]
fn watched_process_is_measured_and_a_saturated_generator_is_reported() {
    let server = Server::start(&[]);
    let pid = server.pid().to_string();
    let url = format!("ws://{}/echo", server.listen);
    let watch = ["--connections", "500", "--hold", "1s", "--watch-pid", &pid, "--json", "-"];
    let finished = executable::run(&[&["load", &url], &watch[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let watched = finished.json()["watched"].clone();
    let number = |key: &str| watched[key].as_f64().unwrap_or_else(|| panic!("no {key}: {watched}"));
    assert!(number("rss_bytes") >= number("rss_bytes_before"), "{watched}");
    assert!(number("cpu_seconds") > 0.0 && number("rss_bytes_per_connection") >= 0.0, "{watched}");
    let opened = number("descriptors") - number("descriptors_before");
    assert!((500.0..600.0).contains(&opened), "one for each connection: {watched}");
    let missing = ["--watch-pid", "4194304"];
    assert_eq!(executable::run(&[&["load", &url], &missing[..]].concat()).code, Some(2));

    let much = ["--connections", "10", "--rate", "50M", "--duration", "1s", "--json", "-"];
    let finished = executable::run(&[&["load", &url], &much[..]].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let generator = finished.json()["generator"].clone();
    assert_eq!(generator["saturated"], true, "{finished:?}");
    assert!(generator["reasons"][0].is_string(), "{finished:?}");
    assert!(finished.stderr.contains("bottleneck"), "{}", finished.stderr);
}

#[test]
fn port_range_is_expanded_to_several_targets() {
    let [first, second] = two_ports_in_a_row();
    let one = Server::start(&["--listen", &format!("127.0.0.1:{first}")]);
    let two = Server::start(&["--listen", &format!("127.0.0.1:{second}")]);
    let url = format!("ws://127.0.0.1:{{{first}..{second}}}/echo");
    let mut load = standfast(&["load", &url, "--connections", "40", "--hold", "10m"]);
    let load = Running(load.spawn().unwrap());
    for server in [&one, &two] {
        eventually("half are there", || server.metrics()["standfast_websockets"] == 20.0);
    }
    drop(load);
}

#[test]
fn stages_ramp_connections_up_and_down() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let stages = ["--stages", "500ms:100,300ms:100,500ms:20,300ms:50", "--json", "-"];
    let finished = executable::run(&[&["load", &url], &stages[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let connections = finished.json()["connections"].clone();
    let said = ["requested", "open", "retired", "failed"].map(|key| connections[key].as_u64());
    assert_eq!(said, [Some(50), Some(50), Some(80), Some(0)], "{connections}");
    assert_eq!(finished.json()["closed"], json!({}), "{finished:?}");
    let metrics = server.metrics();
    assert_eq!(metrics["standfast_accepted_total"], 130.0);
    let wrong = executable::run(&["load", &url, "--stages", "10k"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("30s:10k"), "{}", wrong.stderr);
}

#[test]
fn custom_message_is_sent_with_think_time_and_answered() {
    let server = Server::start(&["--public"]);
    let echo = format!("ws://{}/echo", server.listen);
    let own = ["--connections", "5", "--messages", "4", "--message", r#"{"cmd":"ping"}"#];
    let think = ["--think", "50ms..100ms", "--json", "-"];
    for more in [&[][..], &["--binary"], &["--answer", "any"]] {
        let finished = executable::run(&[&["load", &echo], &own[..], more, &think].concat());
        assert_eq!(finished.code, Some(0), "{more:?}: {finished:?}");
        let echo = finished.json()["echo"].clone();
        assert_eq!(
            (&echo["sent"], &echo["received"], &echo["lost"]),
            (&20.into(), &20.into(), &0.into())
        );
        assert_eq!(finished.json()["latency"]["count"], 20, "{finished:?}");
    }
    // Five subscribers of one topic receive each message: four answers too many each time.
    let topic = format!("ws://{}/topics/x", server.listen);
    let finished = executable::run(&[&["load", &topic], &own[..], &["--json", "-"]].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.json()["echo"]["corrupted"].as_u64() > Some(0), "{finished:?}");
    let missing = executable::run(&["load", &echo, "--message", "@/no/such/file"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
}

#[test]
fn no_threshold_is_met_without_answers() {
    let met = |url: &str, more: &[&str], thresholds: &[&str]| {
        let fail = thresholds.iter().flat_map(|threshold| ["--fail", threshold]);
        let words = ["load", url, "--connections", "2", "--json", "-"].into_iter();
        let words: Vec<&str> = words.chain(more.iter().copied()).chain(fail).collect();
        let finished = executable::run(&words);
        let outcomes = finished.json()["thresholds"].as_array().unwrap().clone();
        let met = outcomes.iter().map(|outcome| outcome["met"] == true);
        (finished.code, met.collect::<Vec<_>>())
    };
    let nobody = Deserted::port();
    let of_connects = ["failed<9", "errors<9", "closed==0", "errors<100%"];
    let refused = met(&format!("ws://{}/", nobody.address), &[], &of_connects);
    assert_eq!(refused, (Some(1), vec![false; 4]));
    // The server reads messages and sends nothing.
    let mute = Recorder::hello();
    let url = format!("ws://{}/", mute.address);
    let messages = ["--messages", "1", "--timeout", "200ms"];
    let of_messages = ["lost<9", "errors<9", "failed<9", "late==0", "duplicated==0", "p99<1h"];
    assert_eq!(met(&url, &messages, &of_messages), (Some(1), vec![false; 6]));
    // Without messages `lost` has no meaning; the number of open connections has.
    let held = met(&url, &["--hold", "10ms"], &["failed<1", "errors<1", "lost==0", "late==0"]);
    assert_eq!(held, (Some(1), vec![true, true, false, false]));
}

#[test]
fn server_must_choose_an_offered_subprotocol() {
    let chat = Chat::start(0);
    let url = format!("ws://{}/echo?chooses=chat.v1", chat.address);
    let run = |offer: &[&str]| {
        let few = ["--connections", "3", "--messages", "2", "--json", "-"];
        executable::run(&[&["load", &url], &few[..], offer].concat()).with_json()
    };
    let (finished, agreed) = run(&["--subprotocol", "chat.v2", "--subprotocol", "chat.v1"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(agreed["echo"]["received"], 6, "{agreed}");
    for offer in [&["--subprotocol", "chat.v2"][..], &[]] {
        let (finished, other) = run(offer);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(other["connect_errors"], json!({"unoffered_protocol": 3}), "{other}");
    }
    let handshakes = chat.book().handshakes;
    let offers = handshakes.iter().map(|asked| asked.header("sec-websocket-protocol"));
    let expected = [Some("chat.v2, chat.v1"), Some("chat.v2"), None];
    assert_eq!(offers.collect::<Vec<_>>(), expected.map(|offer| [offer; 3]).concat());
}
