//! `standfast load grpc-web://…`: against a server that logs and answers each tenth call in a wrong way, to the unit;
//! and against connect-node.

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::grpc_web::{GrpcWebServer, Wrong};
use crate::harness::peer::{self, Program};

const NOTES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/notes.proto");
const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; }\n\
                     service B { rpc One(Text) returns (Text); rpc Many(Text) returns (stream Text);\n\
                     rpc Both(stream Text) returns (stream Text); }\n";

/// 200 calls of a method over 4 connections.
fn call(url: &str, more: &[&str]) -> (Finished, Value) {
    let flags = ["load", url, "--connections", "4", "--requests", "200", "--json", "-"];
    let finished = executable::run(&[&flags[..], more].concat());
    let said = if finished.stdout.is_empty() { Value::Null } else { finished.json() };
    (finished, said)
}

#[test]
fn calls_end_by_their_status_and_counts_agree_with_the_server() {
    let file = Scratch::new("web.proto", PROTO);
    for (how, kind, connections) in [
        (Wrong::Nothing, None, 4),
        // A connection goes on after an answer that says how it ended.
        (Wrong::Status("5"), Some("grpc_not_found"), 4),
        (Wrong::Status("99"), Some("grpc_other_status"), 4),
        (Wrong::InHead("16"), Some("grpc_unauthenticated"), 4),
        (Wrong::Unavailable, Some("grpc_unavailable"), 4),
        (Wrong::InHead("0"), Some("grpc_message"), 24),
        (Wrong::NoTrailers, Some("grpc_no_status"), 24),
        (Wrong::NoStatus, Some("grpc_no_status"), 24),
        (Wrong::Text, Some("grpc_content_type"), 24),
        (Wrong::Cut, Some("grpc_message"), 24),
        (Wrong::Two, Some("grpc_message"), 24),
        (Wrong::NoMessage, Some("grpc_message"), 24),
        (Wrong::More, Some("grpc_message"), 24),
        (Wrong::Long, Some("too_large"), 24),
        (Wrong::Ends, Some("closed_midway"), 24),
        (Wrong::Closes, Some("closed"), 24),
    ] {
        for scheme in ["grpc-web", "grpc-web-text"] {
            let server = GrpcWebServer::start(how);
            let url = format!("{scheme}://{}/a.B/One", server.address);
            let (finished, said) = call(&url, &["--proto", file.path(), "-d", "{\"text\":\"x\"}"]);
            let errors = kind.map_or_else(|| json!({}), |kind| json!({kind: 20}));
            assert_eq!(said["errors"], errors, "{how:?} {said} {}", finished.stderr);
            let log = server.log.lock().unwrap();
            let answered = if kind.is_some() { 180 } else { 200 };
            assert_eq!((log.calls, log.answered), (200, answered), "{how:?}");
            assert_eq!(said["requests"]["ok"], answered, "{how:?} {said}");
            assert_eq!(said["requests"]["answered"], answered, "{how:?} {said}");
            // Five bytes of prefix, and the field; trailers are not in the body.
            assert_eq!((log.body_bytes, &said["body_bytes"]), (200 * 8, &json!(answered * 8)));
            // The last call of a user needs no connection after it.
            let opened = said["connections"]["opened"].as_u64().unwrap();
            assert_eq!(opened, log.connections, "{how:?} {said}");
            let expected = if connections == 4 { 4..=4 } else { 20..=connections };
            assert!(expected.contains(&opened), "{how:?} {opened}");
            assert_eq!(log.strange, <[String; 0]>::default(), "{how:?}");
        }
    }
}

#[test]
fn several_messages_may_answer_a_call_of_a_server_stream() {
    let file = Scratch::new("web-stream.proto", PROTO);
    for (how, ok) in [(Wrong::Two, 200), (Wrong::InHead("0"), 200), (Wrong::Cut, 180)] {
        let server = GrpcWebServer::start(how);
        let url = format!("grpc-web://{}/a.B/Many", server.address);
        let (finished, said) = call(&url, &["--proto", file.path()]);
        assert_eq!(said["requests"]["ok"], ok, "{how:?} {said} {}", finished.stderr);
    }
}

#[test]
fn messages_of_a_server_stream_are_counted_and_timed_as_they_arrive() {
    let file = Scratch::new("web-messages.proto", PROTO);
    for scheme in ["grpc-web", "grpc-web-text"] {
        let server = GrpcWebServer::start(Wrong::Messages(5));
        let url = format!("{scheme}://{}/a.B/Many", server.address);
        let (finished, said) = call(&url, &["--proto", file.path()]);
        assert_eq!((finished.code, &said["requests"]["ok"]), (Some(0), &json!(200)), "{said}");
        let log = server.log.lock().unwrap();
        assert_eq!((log.calls, log.messages, log.connections), (200, 1_000, 4), "{log:?}");
        let of = &said["messages"];
        assert_eq!(
            [&of["received"], &of["calls_ended_by_client"]],
            [&json!(1_000), &json!(0)],
            "{said}"
        );
        assert_eq!(of["first"]["count"], 200, "{said}");
        assert_eq!(of["interval"]["count"], 800, "{said}");
        assert_eq!(said["body_bytes"], 1_000 * 8, "{said}");
    }
}

#[test]
fn what_is_no_answer_of_grpc_web_is_not_ended_as_good_by_hold() {
    let file = Scratch::new("web-page.proto", PROTO);
    let server = GrpcWebServer::start(Wrong::EndlessPage);
    let url = format!("grpc-web://{}/a.B/Many", server.address);
    let (finished, said) = call(&url, &["--proto", file.path(), "--hold", "20ms"]);
    let failed = said["requests"]["failed"].clone();
    assert_eq!(said["errors"], json!({ "grpc_unavailable": failed }), "{finished:?}");
    assert_eq!((finished.code, &said["requests"]["ok"]), (Some(1), &json!(0)), "{finished:?}");
}

#[test]
fn server_streams_end_as_good_after_some_messages_or_a_time() {
    let file = Scratch::new("web-held.proto", PROTO);
    for scheme in ["grpc-web", "grpc-web-text"] {
        let server = GrpcWebServer::start(Wrong::Endless);
        let url = format!("{scheme}://{}/a.B/Many", server.address);
        let flags = ["--proto", file.path(), "--messages", "3"];
        let (finished, said) = call(&url, &flags);
        assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
        let of = &said["messages"];
        assert_eq!(
            [&of["calls_ended_by_client"], &said["requests"]["ok"]],
            [&json!(200), &json!(200)],
            "{said}"
        );
        let received = of["received"].as_u64().unwrap();
        assert!(received >= 600, "{said}");
        assert_eq!(said["body_bytes"], received * 8, "{said}");
        // Each call ends its connection.
        assert_eq!(server.log.lock().unwrap().connections, 200, "{said}");
        let flags = ["--proto", file.path(), "--hold", "20ms"];
        let (finished, said) = call(&url, &flags);
        assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
        assert_eq!(said["messages"]["calls_ended_by_client"], 200, "{said}");
        assert!(said["latency"]["p50_ms"].as_f64().unwrap() >= 20.0, "{said}");
    }
    let server = GrpcWebServer::start(Wrong::Messages(4));
    let url = format!("grpc-web://{}/a.B/Many", server.address);
    let flags = ["--proto", file.path(), "--messages", "3", "--check", "json $[0]"];
    let (finished, _) = call(&url, &flags);
    assert!(finished.stderr.contains("--messages and --check"), "{finished:?}");
}

#[test]
fn statuses_and_answers_are_checked() {
    let file = Scratch::new("web-checks.proto", PROTO);
    let server = GrpcWebServer::start(Wrong::Status("5"));
    let url = format!("grpc-web://{}/a.B/One", server.address);
    let rules = [
        "--accept",
        "OK,NOT_FOUND",
        "--check",
        "json $.text is x",
        "--check",
        "header grpc-status",
    ];
    let flags = [&["--proto", file.path(), "-d", "{\"text\":\"{{seq}}\"}"][..], &rules].concat();
    let (finished, said) = call(&url, &flags);
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    let checks = said["flows"][0]["steps"][0]["checks"].as_array().unwrap();
    let passed: Vec<_> = checks.iter().filter_map(|check| check["passed"].as_u64()).collect();
    assert_eq!(passed, [200, 200], "{said}");
    let log = server.log.lock().unwrap();
    let digits: u64 = (0..200_u64).map(|number| number.to_string().len() as u64).sum();
    assert_eq!((log.calls, log.body_bytes), (200, 200 * 7 + digits), "{said}");
}

#[test]
fn connections_may_be_new_for_each_call() {
    let file = Scratch::new("web-new.proto", PROTO);
    let server = GrpcWebServer::start(Wrong::Nothing);
    let url = format!("grpc-web://{}/a.B/One", server.address);
    let (finished, said) = call(&url, &["--proto", file.path(), "--new-connections"]);
    assert_eq!((finished.code, &said["requests"]["ok"]), (Some(0), &json!(200)), "{finished:?}");
    assert_eq!(server.log.lock().unwrap().connections, 200);
}

#[test]
fn connect_node_is_called() {
    let Some(server) = Program::start(&peer::CONNECT, "notes.js", &["http1"]) else { return };
    let url = format!("grpc-web://127.0.0.1:{}/notes.v1.Notes", server.first_line());
    let message = r#"{"text":"user {{user}}","count":2}"#;
    let rules =
        ["--check", "json $.count is 3", "-H", "authorization: Bearer x", "--timeout", "20s"];
    let flags = [&["--proto", NOTES, "-d", message][..], &rules].concat();
    let (finished, said) = call(&format!("{url}/Add"), &flags);
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    let rules = ["--check", "json $[2].count is 2", "--check", "json $[3]"];
    let flags = [&["--proto", NOTES, "-d", r#"{"count":3}"#][..], &rules].concat();
    let (finished, said) = call(&format!("{url}/List"), &flags);
    assert_eq!(said["errors"], json!({"check": 200}), "{finished:?}");
    let checks = &said["flows"][0]["steps"][0]["checks"];
    assert_eq!((&checks[0]["passed"], &checks[1]["failed"]), (&json!(200), &json!(200)), "{said}");
    let (finished, said) =
        call(&format!("{url}/List"), &["--proto", NOTES, "-d", r#"{"count":3}"#]);
    assert_eq!((finished.code, &said["messages"]["received"]), (Some(0), &json!(600)), "{said}");
    let flags = ["--proto", NOTES, "-d", r#"{"text":"NOT_FOUND","count":1}"#];
    for method in ["Add", "List"] {
        let (finished, said) = call(&format!("{url}/{method}"), &flags);
        assert_eq!(said["errors"], json!({"grpc_not_found": 200}), "{method} {finished:?}");
        assert_eq!(said["connections"]["opened"], 4, "{said}");
    }
    let lines = server.lines();
    let calls: Vec<Value> =
        lines.iter().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (calls.len(), calls.iter().all(|call| call["protocol"] == "grpc-web")),
        (1_000, true)
    );
    let has_token = |call: &&Value| call["token"] == "Bearer x";
    assert_eq!(calls.iter().filter(has_token).count(), 200);
    let in_time = |call: &&Value| call["deadline"].as_u64().is_some_and(|ms| ms <= 20_000);
    assert_eq!(calls.iter().filter(in_time).count(), 200);
}

#[test]
fn what_cannot_be_called_is_said_before_the_run() {
    let file = Scratch::new("web-wrong.proto", PROTO);
    let server = GrpcWebServer::start(Wrong::Nothing);
    let url = |path: &str| format!("grpc-web://{}/{path}", server.address);
    let types = ["--proto", file.path()];
    for (path, more, parts) in [
        ("a.B/Two", &types[..], &["no method Two in a.B", "One"][..]),
        ("a.B/Both", &types, &["bidi stream", "gRPC-Web", "grpc://"]),
        ("a.B/One", &[], &["gRPC-Web", "--proto FILE"]),
        (
            "a.B/One",
            &["--streams", "3", "--proto", file.path()],
            &["--streams is for", "not for grpc-web://"],
        ),
        (
            "a.B/One",
            &["--http2", "--proto", file.path()],
            &["--http2 is for", "not for grpc-web://"],
        ),
    ] {
        let (finished, _) = call(&url(path), more);
        assert_eq!(finished.code, Some(2), "{path}: {finished:?}");
        assert!(parts.iter().all(|part| finished.stderr.contains(part)), "{parts:?}: {finished:?}");
    }
    assert_eq!(server.log.lock().unwrap().body_bytes, 0);
}
