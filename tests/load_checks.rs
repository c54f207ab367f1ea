//! `load --check` and `--accept`: answers of HTTP and of gRPC that are not what they should be, to the unit.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::http2::{Call, Conduct, Http2Server};
use crate::harness::peer::{self, Program};
use crate::harness::recorder::Recorder;

const NOTES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/notes.proto");
const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; }\n\
                     service B { rpc One(Text) returns (Text); rpc Many(Text) returns (stream Text); }\n";

/// 200 requests over 4 connections.
fn load(url: &str, more: &[&str]) -> (Finished, Value) {
    let flags = ["load", url, "--connections", "4", "--requests", "200", "--json", "-"];
    let finished = executable::run(&[&flags[..], more].concat());
    let said = if finished.stdout.is_empty() { Value::Null } else { finished.json() };
    (finished, said)
}

/// Passed and failed, by check.
fn checks(said: &Value) -> Vec<(u64, u64)> {
    let checks = said["flows"][0]["steps"][0]["checks"].as_array();
    let checks = checks.unwrap_or_else(|| panic!("no checks: {said}"));
    let count = |check: &Value, of: &str| check[of].as_u64().unwrap();
    checks.iter().map(|check| (count(check, "passed"), count(check, "failed"))).collect()
}

/// A server whose each 10th answer is `{"ok":false}`.
fn each_tenth_is_wrong() -> Recorder {
    let number = AtomicU64::new(0);
    Recorder::start(move |_| {
        let number = number.fetch_add(1, Ordering::Relaxed) + 1;
        let ok = !number.is_multiple_of(10);
        (200, vec![("X-Kind", "json".to_owned())], format!("{{\"ok\":{ok},\"n\":[1,2]}}"))
    })
}

#[test]
fn bodies_heads_and_sizes_are_checked_and_counted() {
    let server = each_tenth_is_wrong();
    let url = format!("http://{}/", server.address);
    let (finished, said) = load(
        &url,
        &[
            "--check",
            "json $.ok is true",
            "--check",
            "contains \"n\":[1",
            "--check",
            "header x-kind is json",
            "--check",
            "size <22",
            "--check",
            "json $.n[2]",
            "--fail",
            "checks>50%",
        ],
    );
    assert_eq!(checks(&said), [(180, 20), (200, 0), (200, 0), (180, 20), (0, 200)], "{said}");
    assert_eq!((&said["errors"], server.count()), (&json!({"check": 200}), 200), "{said}");
    assert_eq!((&said["requests"]["answered"], finished.code), (&json!(200), Some(0)));
    let (finished, said) = load(&url, &["--check", "json $.ok is true"]);
    assert_eq!((&said["errors"], finished.code), (&json!({"check": 20}), Some(1)), "{finished:?}");
    let line = "check         json $.ok is true: 180 passed, 20 failed";
    assert!(finished.stderr.lines().any(|one| one == line), "{}", finished.stderr);
    assert!(!finished.stderr.contains("passes begun"), "{}", finished.stderr);
}

#[test]
fn pipelined_answers_and_those_over_http2_are_checked() {
    let server = each_tenth_is_wrong();
    let url = format!("http://{}/", server.address);
    let (_, said) = load(&url, &["--pipeline", "4", "--check", "json $.ok is true"]);
    assert_eq!((checks(&said), server.count()), (vec![(180, 20)], 200), "{said}");
    let server = Http2Server::start(Conduct::Answers);
    let (_, said) = load(&server.url(), &["--http2", "--check", "contains hell"]);
    assert_eq!((checks(&said), &said["requests"]["ok"]), (vec![(200, 0)], &json!(200)), "{said}");
}

#[test]
fn without_checks_there_is_nothing_about_them() {
    let server = each_tenth_is_wrong();
    let (_, said) = load(&format!("http://{}/", server.address), &[]);
    assert_eq!((&said["flows"], &said["requests"]["ok"]), (&Value::Null, &json!(200)), "{said}");
}

#[test]
fn answers_to_calls_are_checked_as_json() {
    let file = Scratch::new("checks.proto", PROTO);
    let types = ["--proto", file.path()];
    for (how, path, check, errors, counted) in [
        (Call::Right, "One", "json $.text is x", json!({}), (200, 0)),
        (Call::Right, "One", "json $.text is y", json!({"check": 200}), (0, 200)),
        (Call::Right, "Many", "json $[0].text is x", json!({}), (200, 0)),
        (Call::Two, "Many", "json $[1].text is x", json!({"check": 180}), (20, 180)),
        (Call::Status("5"), "One", "json $.text is x", json!({"grpc_not_found": 20}), (200, 0)),
        (Call::Cut, "One", "json $.text is x", json!({"grpc_message": 20}), (180, 0)),
        (Call::NoTrailers, "One", "json $.text is x", json!({"grpc_no_status": 20}), (180, 0)),
        (
            Call::Undecodable,
            "One",
            "json $.text is x",
            json!({"grpc_reply_undecodable": 20}),
            (180, 0),
        ),
    ] {
        let server = Http2Server::start(Conduct::Calls(how));
        let url = format!("grpc://{}/a.B/{path}", server.address);
        let (finished, said) = load(&url, &[&types[..], &["--check", check]].concat());
        assert_eq!(said["errors"], errors, "{how:?} {check} {finished:?}");
        assert_eq!(checks(&said), [counted], "{how:?} {check} {said}");
        let log = server.log.lock().unwrap();
        assert_eq!((log.requests, log.connections), (200, 4), "{how:?} {said}");
    }
}

#[test]
fn statuses_of_calls_are_accepted_by_name_or_number() {
    let file = Scratch::new("accepted.proto", PROTO);
    for (accept, errors) in [
        ("OK,NOT_FOUND", json!({})),
        ("0,5", json!({})),
        ("not_found", json!({"status": 180})),
        ("OK,CANCELLED", json!({"grpc_not_found": 20})),
    ] {
        let server = Http2Server::start(Conduct::Calls(Call::Status("5")));
        let url = format!("grpc://{}/a.B/One", server.address);
        let (finished, said) = load(&url, &["--proto", file.path(), "--accept", accept]);
        assert_eq!(said["errors"], errors, "{accept} {finished:?}");
        assert_eq!(said["flows"], Value::Null, "{said}");
        assert_eq!(server.log.lock().unwrap().requests, 200);
    }
}

#[test]
fn messages_with_placeholders_are_checked_by_a_real_server() {
    let Some(server) = Program::start(&peer::CONNECT, "notes.js", &["http2"]) else { return };
    let url = format!("grpc://127.0.0.1:{}/notes.v1.Notes/Add", server.first_line());
    let message = r#"{"text":"user {{user}}","count":{{random_int 1 5}}}"#;
    let rules = ["--check", "json $.text matches ^user [0-3]$", "--check", "header x-left"];
    let flags = [&["--proto", NOTES, "-d", message][..], &rules].concat();
    let (finished, said) = load(&url, &flags);
    assert_eq!((checks(&said), finished.code), (vec![(200, 0), (200, 0)], Some(0)), "{finished:?}");
    assert_eq!(server.lines().len(), 201);
}

#[test]
fn what_cannot_be_checked_is_said_before_the_run() {
    let file = Scratch::new("unchecked.proto", PROTO);
    for (url, flags, parts) in [
        ("http://127.0.0.1:1/", vec!["--check", "json ok"], vec!["--check", "JSONPath"]),
        ("http://127.0.0.1:1/", vec!["--check", "body x"], vec!["--check", "contains TEXT"]),
        ("http://127.0.0.1:1/", vec!["--accept", "NOT_FOUND"], vec!["--accept", "2xx,404"]),
        (
            "tcp://127.0.0.1:1",
            vec!["-d", "x", "--check", "size >1"],
            vec!["--check is for http://"],
        ),
        (
            "grpc://127.0.0.1:1/a.B/One",
            vec!["--proto", file.path(), "--accept", "404"],
            vec!["--accept", "OK,NOT_FOUND"],
        ),
    ] {
        let (finished, _) = load(url, &flags);
        assert_eq!(finished.code, Some(2), "{url}: {finished:?}");
        assert!(parts.iter().all(|part| finished.stderr.contains(part)), "{parts:?}: {finished:?}");
    }
}
