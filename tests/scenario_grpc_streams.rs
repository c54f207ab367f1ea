//! gRPC calls of scenarios with several messages, and calls of gRPC-Web: against servers that log and do each tenth
//! call in a wrong way, to the unit; and against connect-node.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::harness::executable::{self, Finished};
use crate::harness::grpc_echo::{EchoServer, Wrong};
use crate::harness::grpc_web::{self, GrpcWebServer};
use crate::harness::peer::{self, Program};
use crate::harness::{Scratch, eventually};

const NOTES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/notes.proto");
const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; uint32 number = 2; }\n\
                     service B { rpc One(Text) returns (Text); rpc Send(stream Text) returns (Text);\n\
                     rpc Both(stream Text) returns (stream Text); }\n";

fn run(text: &str) -> Finished {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = Scratch::new(&format!("grpc-streams-{number}.toml"), text);
    executable::run(&["load", file.path(), "--json", "-"])
}

/// 100 passes of 4 users through these steps at a target.
fn scenario(target: &str, proto: &str, steps: &str) -> Finished {
    passes(25, target, proto, steps)
}

fn passes(passes: u32, target: &str, proto: &str, steps: &str) -> Finished {
    run(&format!(
        "version = 1\nusers = 4\npasses = {passes}\ntimeout = '2s'\ntarget = '{target}'\n[grpc]\n\
         proto = '{proto}'\n[[flows]]\n{steps}"
    ))
}

const BOTH: &str = "[[flows.steps]]\ngrpc = 'a.B/Both'\n\
                    message = [{ text = 'u{{user}}' }, { text = 'p{{pass}}' }, '{\"text\":\"{{uuid}}\"}', { text = 'd' }]\n\
                    checks = [{ json = '$[0].text', matches = '^u[0-3]$' }, { json = '$[3].text', is = 'd' }]\n\
                    capture = { third = { json = '$[2].text' } }\n";

#[test]
fn messages_of_a_stream_are_checked_and_captured_each() {
    let proto = Scratch::new("scenario-streams.proto", PROTO);
    let server = EchoServer::start(Wrong::Nothing);
    let target = format!("grpc://{}", server.address);
    let again = "[[flows.steps]]\ngrpc = 'a.B/Both'\nmessage = '[{\"text\":\"{{third}}\"},{\"text\":\"x\"}]'\n\
                 checks = [{ json = '$[0].text', matches = '^[0-9a-f-]{36}$' }, { regex = '\"x\"' }]\n\
                 [[flows.steps]]\ngrpc = 'a.B/Both'\nmessage = []\nchecks = [{ size = '=0' }]\n";
    let finished = scenario(&target, proto.path(), &format!("{BOTH}{again}"));
    let said = finished.json();
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    let log = server.log.lock().unwrap();
    assert_eq!((log.calls, log.ok), (300, 300), "{log:?}");
    assert_eq!((log.messages, log.echoed), (600, 600), "{log:?}");
    assert_eq!(said["requests"]["ok"], 300, "{said}");
    let one = EchoServer::start(Wrong::Counts);
    let steps = "[[flows.steps]]\ngrpc = 'a.B/Send'\nmessage = [{ text = 'a' }, { text = 'b' }]\n\
                 checks = [{ json = '$.text', is = 'x' }]\n";
    let finished = scenario(&format!("grpc://{}", one.address), proto.path(), steps);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let log = one.log.lock().unwrap();
    assert_eq!((log.calls, log.messages, log.echoed), (100, 200, 100), "{log:?}");
}

#[test]
fn streams_fail_by_kind_and_counts_agree_with_the_server() {
    let proto = Scratch::new("scenario-faults.proto", PROTO);
    for (wrong, kind) in [
        (Wrong::Reset, Some("stream_internal_error")),
        (Wrong::NoTrailers, Some("grpc_no_status")),
        (Wrong::Status("5"), Some("grpc_not_found")),
        (Wrong::Status("99"), Some("grpc_other_status")),
        (Wrong::Garbage, Some("grpc_message")),
        (Wrong::Long, Some("too_large")),
        (Wrong::Silent, Some("timeout")),
        (Wrong::Leaves(5), None),
        (Wrong::Stalls(4), Some("timeout")),
    ] {
        let server = EchoServer::start(wrong);
        let target = format!("grpc://{}", server.address);
        let each = if matches!(wrong, Wrong::Stalls(_)) { 2 } else { 25 };
        let finished = passes(each, &target, proto.path(), BOTH);
        let said = finished.json();
        eventually("the connections have ended", || {
            let log = server.log.lock().unwrap();
            log.ended == log.connections
        });
        let log = server.log.lock().unwrap();
        assert_eq!(said["requests"]["sent"], log.calls, "{wrong:?} {said} {log:?}");
        let failed: u64 =
            said["errors"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        let expected = match wrong {
            // Calls before the server's SETTINGS have the initial window.
            Wrong::Stalls(_) => log.calls - log.ok,
            _ if kind.is_some() => 10,
            _ => 0,
        };
        assert_eq!(failed, expected, "{wrong:?} {said} {log:?}");
        let kinds: Vec<&String> = said["errors"].as_object().unwrap().keys().collect();
        assert_eq!(kinds, kind.into_iter().collect::<Vec<_>>(), "{wrong:?} {said}");
        assert_eq!(said["requests"]["ok"], log.calls - expected, "{wrong:?} {said}");
        assert_eq!((log.calls, log.ok), (u64::from(each) * 4, log.calls - expected), "{log:?}");
        if wrong == Wrong::Silent {
            assert_eq!(log.resets, 10, "calls that time out are cancelled: {log:?}");
        }
    }
}

#[test]
fn calls_of_grpc_web_fail_by_kind_beside_requests() {
    use grpc_web::Wrong;
    let proto = Scratch::new("scenario-web.proto", PROTO);
    for (how, kind) in [
        (Wrong::Nothing, None),
        (Wrong::NoTrailers, Some("grpc_no_status")),
        (Wrong::Text, Some("grpc_content_type")),
        (Wrong::Unavailable, Some("grpc_unavailable")),
        (Wrong::Status("5"), Some("grpc_not_found")),
        (Wrong::InHead("16"), Some("grpc_unauthenticated")),
        (Wrong::Cut, Some("grpc_message")),
        (Wrong::Two, Some("grpc_message")),
        (Wrong::Ends, Some("closed_midway")),
        (Wrong::Closes, Some("closed")),
    ] {
        for scheme in ["grpc-web", "grpc-web-text"] {
            let server = GrpcWebServer::start(how);
            let target = format!("{scheme}://{}", server.address);
            let steps = "[[flows.steps]]\ngrpc = 'a.B/One'\nmessage = { text = 'u{{user}}' }\n\
                         checks = [{ json = '$.text', is = 'x' }]\n";
            let finished = scenario(&target, proto.path(), steps);
            let said = finished.json();
            let log = server.log.lock().unwrap();
            let errors = kind.map_or_else(|| json!({}), |kind| json!({kind: 10}));
            assert_eq!(said["errors"], errors, "{how:?} {said} {}", finished.stderr);
            let answered = if kind.is_some() { 90 } else { 100 };
            assert_eq!((log.calls, log.answered), (100, answered), "{how:?} {log:?}");
            assert_eq!(said["requests"]["ok"], answered, "{how:?} {said}");
            assert_eq!((log.body_bytes, &log.strange[..]), (900, &[][..]), "{how:?} {log:?}");
        }
    }
}

#[test]
fn values_of_connect_node_are_in_later_calls_of_grpc_web_and_requests() {
    let Some(server) = Program::start(&peer::CONNECT, "notes.js", &["http1"]) else { return };
    let finished = run(&format!(
        "version = 1\nusers = 4\npasses = 25\ntarget = 'http://127.0.0.1:{port}'\n[connect]\n\
         [grpc]\nproto = '{NOTES}'\n[[flows]]\n\
         [[flows.steps]]\ngrpc = 'grpc-web://127.0.0.1:{port}/notes.v1.Notes/Add'\n\
         message = {{ text = 'user {{{{user}}}}', count = '{{{{pass}}}}' }}\nwithin = '20s'\n\
         metadata = {{ authorization = 'Bearer {{{{user}}}}' }}\n\
         checks = [{{ header = 'x-served' }}, {{ header = 'x-left', matches = '^user' }}]\n\
         capture = {{ next = {{ json = '$.count' }} }}\n\
         [[flows.steps]]\ngrpc = 'grpc-web://127.0.0.1:{port}/notes.v1.Notes/List'\n\
         message = {{ text = 'b', count = '{{{{next}}}}' }}\ncapture = {{ all = {{ json = '$[*].count', take = 'all' }} }}\n\
         [[flows.steps]]\nurl = '/notes.v1.Notes/Add'\njson = {{ text = 'web' }}\n\
         [[flows.steps]]\n[[flows.steps.parallel]]\ngrpc = 'grpc-web://127.0.0.1:{port}/notes.v1.Notes/Add'\n\
         message = {{ text = 'NOT_FOUND' }}\nchecks = [{{ status = 'NOT_FOUND' }}]\n\
         [[flows.steps.parallel]]\nurl = '/notes.v1.Notes/Add'\njson = {{ text = 'beside' }}\n",
        port = server.first_line(),
    ));
    let said = finished.json();
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    let lines = server.lines();
    let calls: Vec<Value> =
        lines.iter().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |fits: &dyn Fn(&Value) -> bool| calls.iter().filter(|call| fits(call)).count();
    assert_eq!(calls.len(), 500);
    assert_eq!(count(&|call| call["protocol"] == "grpc-web"), 300);
    let listed: u64 = calls
        .iter()
        .filter(|call| call["method"] == "List")
        .fold(0, |sum, call| sum + call["count"].as_u64().unwrap());
    assert_eq!(listed, 4 * (1..=25).sum::<u64>());
    assert_eq!(count(&|call| call["token"] == "Bearer 3"), 25);
    assert_eq!(count(&|call| call["deadline"].as_u64().is_some_and(|ms| ms <= 20_000)), 100);
}

#[test]
fn what_does_not_fit_is_named_with_its_step_and_field() {
    let proto = Scratch::new("scenario-unfit.proto", PROTO);
    let server = EchoServer::start(Wrong::Nothing);
    let steps = "[[flows.steps]]\nname = 'first'\ngrpc = 'a.B/Both'\nmessage = [{ text = 'abc' }]\n\
                 capture = { text = { json = '$[0].text' } }\n\
                 [[flows.steps]]\nname = 'second'\ngrpc = 'a.B/Both'\n\
                 message = [{ text = 'good' }, { number = '{{text}}' }]\n";
    let finished = scenario(&format!("grpc://{}", server.address), proto.path(), steps);
    let said = finished.json();
    assert_eq!(said["errors"], json!({"grpc_request": 100}), "{finished:?}");
    let why = said["message_error"].as_str().unwrap();
    for part in ["second: number: expected an integer of 0 to 4294967295", "found \"abc\"", "when"]
    {
        assert!(why.contains(part), "{why}");
    }
    assert!(finished.stderr.contains(&format!("messages      first: {why}")), "{finished:?}");
    let log = server.log.lock().unwrap();
    assert_eq!((log.calls, log.messages), (100, 100), "{log:?}");
    // The server needs it to go on.
    drop(log);
    let good = scenario(
        &format!("grpc://{}", server.address),
        proto.path(),
        "[[flows.steps]]\ngrpc = 'a.B/Both'\nmessage = [{ number = '{{user}}' }]\n",
    );
    assert!(good.json().get("message_error").is_none(), "{good:?}");
}

#[test]
fn what_does_not_go_together_is_refused_with_its_line() {
    let proto = Scratch::new("scenario-refused.proto", PROTO);
    let of = |target: &str, more: &str| {
        run(&format!(
            "version = 1\ntarget = '{target}'\n[grpc]\nproto = '{}'\n[[flows]]\n[[flows.steps]]\n{more}",
            proto.path()
        ))
    };
    let (grpc, web) = ("grpc://127.0.0.1:1", "grpc-web://127.0.0.1:1");
    let call = "grpc = 'a.B/One'\n";
    for (target, more, parts) in [
        (grpc, "grpc = 'a.B/One'\nmessage = [{ text = 'a' }]\n", &["line 8", "a list is for"][..]),
        (
            grpc,
            "grpc = 'a.B/Both'\nmessage = [{ text = 'a' }, { txt = 'b' }]\n",
            &["line 8", "message 2: txt: no such field"],
        ),
        (grpc, "grpc = 'a.B/Both'\nmessage = [1]\n", &["line 8", "tables, or JSON"]),
        (web, "grpc = 'a.B/Both'\n", &["line 7", "bidi stream", "use grpc://"]),
        (
            web,
            &format!("{call}[[flows.steps]]\ngrpc = 'grpc://127.0.0.1:1/a.B/One'\n"),
            &["line 9", "cannot be in one scenario"],
        ),
        (grpc, &format!("{call}[[flows.steps]]\nconnect = '/'\n"), &["line 8", "http2 = true"]),
        (web, &format!("{call}[connect]\nhttp2 = true\n"), &["line 8", "remove http2 = true"]),
    ] {
        let finished = of(target, more);
        assert_eq!(finished.code, Some(2), "{more}: {finished:?}");
        let has_all = parts.iter().all(|part| finished.stderr.contains(part));
        assert!(has_all, "{parts:?}: {}\n{more}", finished.stderr);
    }
}
