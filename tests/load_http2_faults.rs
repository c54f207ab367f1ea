//! Twelve faults of a server of HTTP/2, for requests and for calls of gRPC: what `load` counts is what the server logs,
//! to the unit. One request at a time, so that a lost connection fails one.

use serde_json::{Value, json};

use crate::harness::executable;
use crate::harness::http2::{Call, Conduct, Http2Server, Log};
use crate::harness::{Scratch, eventually};

const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; }\n\
                     service B { rpc One(Text) returns (Text); }\n";

/// A fault, what it does, how many requests are made, and how many of them fail by which kind: of requests, and of
/// calls. No kind: none fails.
type Fault = (&'static str, Conduct, u64, [(u64, Option<&'static str>); 2]);

const TENTH: u64 = 10;

/// Those of which each request or each tenth one fails.
fn faults() -> Vec<Fault> {
    let calls = Conduct::Calls;
    let same = |count, kind| [(count, Some(kind)), (count, Some(kind))];
    vec![
        ("reset", Conduct::Resets(2), 100, same(TENTH, "stream_internal_error")),
        ("GOAWAY midway", Conduct::Leaves(7), 100, [(0, None), (0, None)]),
        // Requests have no trailers: their answer is complete.
        (
            "trailers missing",
            calls(Call::NoTrailers),
            100,
            [(0, None), (TENTH, Some("grpc_no_status"))],
        ),
        (
            "wrong content type",
            calls(Call::Text),
            100,
            [(TENTH, Some("check")), (TENTH, Some("grpc_content_type"))],
        ),
        ("cut frames", Conduct::Cuts, 100, same(TENTH, "closed")),
        (
            "deadline of the server",
            calls(Call::Status("4")),
            100,
            [(0, None), (TENTH, Some("grpc_deadline_exceeded"))],
        ),
        ("deadline of the client", Conduct::Stalls, 10, same(10, "timeout")),
        (
            "wrong status",
            calls(Call::Unavailable),
            100,
            [(TENTH, Some("status")), (TENTH, Some("grpc_unavailable"))],
        ),
        ("refused stream", Conduct::Resets(7), 100, same(TENTH, "stream_refused")),
        ("1,000 pushes", Conduct::Pushes, 20, same(20, "http2_push")),
        ("garbage", Conduct::Garbage, 20, same(20, "http2_no_settings")),
        ("silence", Conduct::Silent, 10, same(10, "timeout")),
    ]
}

/// The JSON of a run of so many requests, one at a time.
fn run(server: &Http2Server, is_call: bool, requests: u64, proto: &str, more: &[&str]) -> Value {
    let requests = requests.to_string();
    let url = match is_call {
        true => format!("grpc://{}/a.B/One", server.address),
        false => server.url(),
    };
    let own: &[&str] = if is_call {
        &["--proto", proto, "-d", "{\"text\":\"x\"}"]
    } else {
        &["--http2", "--data", "12345678"]
    };
    let flags = ["load", &url, "--connections", "1", "--requests", &requests];
    executable::run(&[&flags[..], own, more, &["--json", "-"]].concat()).json()
}

fn agree(what: &str, said: &Value, log: &Log, requests: u64, failed: u64) {
    let of = |name: &str| said["requests"][name].as_u64().unwrap_or_default();
    assert_eq!((of("ok"), of("failed")), (requests - failed, failed), "{what}: {said}");
    assert_eq!((of("sent"), of("unsent")), (log.requests, 0), "{what}: {said} {log:?}");
    // Where nothing was answered, up to two more connections find out why.
    let probes = log.connections.checked_sub(of_connections(said));
    let most = if failed == requests { 2 } else { 0 };
    assert!(probes.is_some_and(|probes| probes <= most), "{what}: {said} {log:?}");
}

fn of_connections(said: &Value) -> u64 {
    said["connections"]["opened"].as_u64().unwrap_or_default()
}

#[test]
fn each_fault_is_counted_to_the_unit() {
    let proto = Scratch::new("http2-faults.proto", PROTO);
    let mut wrong = Vec::new();
    for is_call in [false, true] {
        for (what, conduct, requests, expected) in faults() {
            let what = format!("{what} ({})", if is_call { "calls" } else { "requests" });
            let server = match is_call {
                true => Http2Server::of_calls(conduct),
                false => Http2Server::start(conduct),
            };
            let check = ["--check", "header content-type is application/grpc"];
            let is_checked = !is_call && conduct == Conduct::Calls(Call::Text);
            let times_out = expected[usize::from(is_call)].1 == Some("timeout");
            let timeout = ["--timeout", "300ms"];
            let more: &[&str] = match times_out {
                true => &timeout,
                false if is_checked => &check,
                false => &[],
            };
            let said = run(&server, is_call, requests, proto.path(), more);
            let (failed, kind) = expected[usize::from(is_call)];
            let errors = kind.map_or_else(|| json!({}), |kind| json!({kind: failed}));
            if said["errors"] != errors {
                wrong.push(format!("{what}: {} instead of {errors}", said["errors"]));
                continue;
            }
            eventually("the server has read what was sent", || {
                said["requests"]["sent"] == server.log.lock().unwrap().requests
            });
            let log = server.log.lock().unwrap();
            agree(&what, &said, &log, requests, failed);
            let timed_out = if kind == Some("timeout") { failed } else { 0 };
            assert!(log.resets >= timed_out, "what times out is cancelled, {what}: {log:?}");
        }
    }
    assert_eq!(wrong, <[String; 0]>::default());
}

#[test]
fn bodies_that_a_stalled_window_holds_back_time_out() {
    let proto = Scratch::new("stalled.proto", PROTO);
    for is_call in [false, true] {
        let server = match is_call {
            true => Http2Server::of_calls(Conduct::ClosesWindow),
            false => Http2Server::start(Conduct::ClosesWindow),
        };
        let said = run(&server, is_call, 10, proto.path(), &["--timeout", "300ms"]);
        let log = server.log.lock().unwrap();
        // What is sent before the server's SETTINGS arrive needs no window of it.
        let ok = said["requests"]["ok"].as_u64().unwrap();
        assert_eq!((ok, log.requests), (log.answered, log.answered), "{said} {log:?}");
        assert!(ok <= 1, "{said}");
        assert_eq!(said["errors"], json!({"timeout": 10 - ok}), "{said}");
        assert_eq!(said["requests"]["sent"], 10, "{said}");
        assert_eq!((log.body_bytes, log.resets), (8 * ok, 10 - ok), "{said} {log:?}");
    }
}

#[test]
fn how_a_server_leaves_connections_is_told_and_what_is_sent_again_is_counted() {
    let proto = Scratch::new("expels.proto", PROTO);
    let debug = "too_many_\\u{1b}pings";
    for is_call in [false, true] {
        let start = |conduct| match is_call {
            true => Http2Server::of_calls(conduct),
            false => Http2Server::start(conduct),
        };
        let server = start(Conduct::Expels(10));
        let said = run(&server, is_call, 100, proto.path(), &[]);
        let log = server.log.lock().unwrap();
        agree("expels", &said, &log, 100, 10);
        assert_eq!(said["errors"], json!({"goaway": 10}), "{said}");
        let goaways = json!({"ENHANCE_YOUR_CALM": {"count": 10, "debug": debug}});
        assert_eq!(said["goaways"], goaways, "{said}");
        assert_eq!(said["requests"]["repeated"], 0, "{said}");

        let server = start(Conduct::Leaves(7));
        let said = run(&server, is_call, 100, proto.path(), &["--streams", "5"]);
        eventually("the server has read what was sent", || {
            said["requests"]["repeated"] == server.log.lock().unwrap().unprocessed
        });
        let log = server.log.lock().unwrap();
        agree("leaves", &said, &log, 100, 0);
        assert!(log.unprocessed > 0, "{log:?}");
        let left = json!({"NO_ERROR": {"count": 14}});
        assert_eq!(said["goaways"], left, "{said}");
    }
}

#[test]
fn the_text_says_how_a_server_left() {
    let server = Http2Server::start(Conduct::Expels(1));
    let url = server.url();
    let flags = ["load", &url, "--http2", "--connections", "1", "--requests", "2"];
    let text = executable::run(&flags).stdout;
    assert!(
        text.contains("\n  GOAWAY      ENHANCE_YOUR_CALM 2, first: too_many_\\u{1b}pings\n"),
        "{text}"
    );
}

#[test]
fn a_head_that_is_too_long_fails_its_request_and_no_other() {
    let proto = Scratch::new("long-heads.proto", PROTO);
    for is_call in [false, true] {
        let server = match is_call {
            true => Http2Server::of_calls(Conduct::LongHeads),
            false => Http2Server::start(Conduct::LongHeads),
        };
        let said = run(&server, is_call, 100, proto.path(), &["--streams", "5"]);
        let log = server.log.lock().unwrap();
        agree("long heads", &said, &log, 100, 10);
        assert_eq!(said["errors"], json!({"header_list_too_large": 10}), "{said}");
        assert_eq!(log.connections, 1, "{said} {log:?}");
    }
}
