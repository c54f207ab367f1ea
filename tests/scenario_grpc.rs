//! gRPC calls in scenarios: against a server that logs and answers each tenth call in a wrong way, to the unit; and
//! against connect-node, whose HTTP/2 has requests and calls on the same connections.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::harness::executable::{self, Finished};
use crate::harness::http2::{Call, Conduct, Http2Server};
use crate::harness::peer::{self, Program};
use crate::harness::{Deserted, Scratch};

const NOTES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/notes.proto");
const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; uint32 number = 2; }\n\
                     service B { rpc One(Text) returns (Text); rpc Many(Text) returns (stream Text);\n\
                     rpc Both(stream Text) returns (stream Text); }\n";

fn run(text: &str) -> Finished {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = Scratch::new(&format!("grpc-{number}.toml"), text);
    executable::run(&["load", file.path(), "--json", "-"])
}

/// The steps of the only flow.
fn steps(said: &Value) -> &Vec<Value> {
    said["flows"][0]["steps"].as_array().unwrap_or_else(|| panic!("no steps: {said}"))
}

#[test]
fn calls_fail_by_kind_and_counts_agree_with_the_server() {
    let proto = Scratch::new("scenario.proto", PROTO);
    for (how, kind) in [
        (Call::Right, None),
        (Call::NoTrailers, Some("grpc_no_status")),
        (Call::NoStatus, Some("grpc_no_status")),
        (Call::Text, Some("grpc_content_type")),
        (Call::OnlyText, Some("grpc_content_type")),
        (Call::Unavailable, Some("grpc_unavailable")),
        (Call::Status("5"), Some("grpc_not_found")),
        (Call::Status("99"), Some("grpc_other_status")),
        (Call::OnlyTrailers("16"), Some("grpc_unauthenticated")),
        (Call::OnlyTrailers("0"), Some("grpc_message")),
        (Call::Cut, Some("grpc_message")),
        (Call::Two, Some("grpc_message")),
        (Call::NoMessage, Some("grpc_message")),
    ] {
        let server = Http2Server::start(Conduct::Calls(how));
        let finished = run(&format!(
            "version = 1\nusers = 4\npasses = 25\ntarget = 'grpc://{}'\n[grpc]\nproto = '{}'\n\
             [[flows]]\n[[flows.steps]]\ngrpc = 'a.B/One'\nmessage = {{ text = 'x' }}\n\
             [[flows.steps]]\ngrpc = 'a.B/One'\nmessage = '{{\"text\":\"{{{{user}}}}\"}}'\n\
             checks = [{{ json = '$.text', is = 'x' }}, {{ json = '$.number', is = 0 }}]\n",
            server.address,
            proto.path()
        ));
        let said = finished.json();
        let failed: u64 =
            said["errors"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        let log = server.log.lock().unwrap();
        // A pass ends with its first failure.
        assert_eq!(said["requests"]["sent"], log.requests, "{how:?} {said}");
        assert_eq!(said["requests"]["ok"], log.answered, "{how:?} {said}");
        assert_eq!(log.requests - log.answered, failed, "{how:?} {said}");
        assert_eq!((log.connections, log.body_bytes), (4, log.requests * 8), "{how:?}");
        let kinds: Vec<&String> = said["errors"].as_object().unwrap().keys().collect();
        assert_eq!(kinds, kind.into_iter().collect::<Vec<_>>(), "{how:?} {said}");
        if how == Call::Right {
            let checks = steps(&said)[1]["checks"].as_array().unwrap();
            let passed: Vec<_> =
                checks.iter().filter_map(|check| check["passed"].as_u64()).collect();
            assert_eq!(passed, [100, 100], "{said}");
        }
    }
}

#[test]
fn an_expected_status_is_none_of_the_failures() {
    let proto = Scratch::new("expected.proto", PROTO);
    let server = Http2Server::start(Conduct::Calls(Call::Status("5")));
    let scenario = |status: &str| {
        format!(
            "version = 1\npasses = 100\ntarget = 'grpc://{}'\n[grpc]\nproto = '{}'\n[[flows]]\n\
             [[flows.steps]]\ngrpc = 'a.B/One'\nchecks = [{{ status = '{status}' }}]\n",
            server.address,
            proto.path()
        )
    };
    let said = run(&scenario("OK, NOT_FOUND")).json();
    assert_eq!((&said["requests"]["ok"], &said["errors"]), (&json!(100), &json!({})), "{said}");
    let said = run(&scenario("5")).json();
    assert_eq!((&said["requests"]["ok"], &said["errors"]), (&json!(10), &json!({"check": 90})));
}

#[test]
fn values_of_answers_are_in_later_calls_and_requests_share_their_connections() {
    let Some(server) = Program::start(&peer::CONNECT, "notes.js", &["http2"]) else { return };
    let finished = run(&format!(
        "version = 1\nusers = 4\npasses = 25\ntarget = 'http://127.0.0.1:{}'\n[connect]\nhttp2 = true\n\
         [grpc]\nproto = '{NOTES}'\n[[flows]]\n\
         [[flows.steps]]\ngrpc = 'notes.v1.Notes/Add'\nwithin = '20s'\n\
         message = {{ text = 'user {{{{user}}}}', count = '{{{{pass}}}}', labels = ['a', 'b'] }}\n\
         metadata = {{ authorization = 'Bearer {{{{user}}}}' }}\n\
         checks = [{{ header = 'x-served' }}, {{ header = 'x-left', matches = '^user' }}]\n\
         capture = {{ next = {{ json = '$.count' }}, label = {{ json = '$.labels[*]', take = 'all' }} }}\n\
         [[flows.steps]]\ngrpc = 'notes.v1.Notes/List'\n\
         message = '{{\"text\":\"{{{{label[1]}}}}\",\"count\":{{{{next}}}}}}'\n\
         checks = [{{ json = '$[0].text', is = 'b' }}, {{ regex = '\"count\":0' }}]\n\
         [[flows.steps]]\nurl = '/notes.v1.Notes/Add'\njson = {{ text = 'web' }}\n\
         [[flows.steps]]\n[[flows.steps.parallel]]\ngrpc = 'notes.v1.Notes/Add'\n\
         message = {{ text = 'NOT_FOUND' }}\nchecks = [{{ status = 'NOT_FOUND' }}]\n\
         [[flows.steps.parallel]]\nurl = '/notes.v1.Notes/Add'\njson = {{ text = 'beside' }}\n",
        server.first_line()
    ));
    let said = finished.json();
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    assert_eq!((&said["requests"]["ok"], &said["connections"]["opened"]), (&json!(500), &json!(4)));
    let lines = server.lines();
    let calls: Vec<Value> =
        lines.iter().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |fits: &dyn Fn(&Value) -> bool| calls.iter().filter(|call| fits(call)).count();
    assert_eq!(calls.len(), 500);
    assert_eq!(count(&|call| call["protocol"] == "grpc"), 300);
    assert_eq!(count(&|call| call["text"] == "b" && call["method"] == "List"), 100);
    let listed: u64 = calls
        .iter()
        .filter(|call| call["method"] == "List")
        .fold(0, |sum, call| sum + call["count"].as_u64().unwrap());
    assert_eq!(listed, 4 * (1..=25).sum::<u64>());
    assert_eq!(count(&|call| call["token"] == "Bearer 3" && call["text"] == "user 3"), 25);
    assert_eq!(count(&|call| call["deadline"].as_u64().is_some_and(|ms| ms <= 20_000)), 100);
}

#[test]
fn the_example_of_the_docs_runs() {
    let Some(server) = Program::start(&peer::CONNECT, "notes.js", &["http2"]) else { return };
    let docs = include_str!("../docs/load/scenarios.md");
    let example =
        docs.split("<!-- calls -->\n```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let port = server.first_line();
    let text = example
        .replace("127.0.0.1:50051", &format!("127.0.0.1:{port}"))
        .replace("notes.proto", NOTES)
        .replace("duration = \"30s\"", "passes = 2")
        .replace("\"p99<100ms\", ", "");
    let finished = run(&text);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(finished.json()["requests"]["ok"], 200, "{finished:?}");
}

#[test]
fn a_value_that_does_not_fit_its_field_is_not_sent() {
    let proto = Scratch::new("unfit.proto", PROTO);
    let server = Http2Server::start(Conduct::Calls(Call::Right));
    let finished = run(&format!(
        "version = 1\npasses = 10\ntarget = 'grpc://{}'\n[grpc]\nproto = '{}'\n[[flows]]\n\
         [[flows.steps]]\ngrpc = 'a.B/One'\ncapture = {{ text = {{ json = '$.text' }} }}\n\
         [[flows.steps]]\ngrpc = 'a.B/One'\nmessage = {{ number = '{{{{text}}}}' }}\n",
        server.address,
        proto.path()
    ));
    let said = finished.json();
    assert_eq!(said["errors"], json!({"grpc_request": 10}), "{finished:?}");
    assert_eq!(server.log.lock().unwrap().requests, 10, "{said}");
}

#[test]
fn setup_and_teardown_may_be_calls() {
    let proto = Scratch::new("fixtures.proto", PROTO);
    let server = Http2Server::start(Conduct::Calls(Call::Right));
    let finished = run(&format!(
        "version = 1\npasses = 8\ntarget = 'grpc://{}'\n[grpc]\nproto = '{}'\n\
         [[setup.steps]]\ngrpc = 'a.B/One'\ncapture = {{ text = {{ json = '$.text' }} }}\n\
         [[teardown.steps]]\ngrpc = 'a.B/One'\n\
         [[flows]]\n[[flows.steps]]\ngrpc = 'a.B/One'\nmessage = {{ text = '{{{{text}}}}' }}\n",
        server.address,
        proto.path()
    ));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(finished.json()["requests"]["ok"], 8, "{finished:?}");
    assert_eq!(server.log.lock().unwrap().requests, 10);
}

#[test]
fn types_are_asked_for_by_reflection() {
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let finished = run(&format!(
        "version = 1\npasses = 5\ntarget = 'grpc://127.0.0.1:{}'\nheaders = {{ authorization = 'Bearer x' }}\n\
         [[flows]]\n[[flows.steps]]\ngrpc = 'shop.v1.Orders/Place'\nmessage = {{ customerName = 'a' }}\n\
         checks = [{{ json = '$.text', is = 'thanks' }}]\n",
        server.first_line()
    ));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let lines = server.lines();
    let has_token = |line: &&String| line.contains("\"token\":\"Bearer x\"");
    assert_eq!(lines.iter().skip(1).filter(has_token).count(), lines.len() - 1, "{lines:?}");
}

#[test]
fn errors_name_the_line_and_the_key() {
    let proto = Scratch::new("errors.proto", PROTO);
    // Files of tests have the number of the process before their name.
    let own = format!("syntax = \"proto3\";\nimport \"{}-cycle.proto\";\n", std::process::id());
    let cycle = Scratch::new("cycle.proto", &own);
    let lost = Scratch::new("lost.proto", "syntax = \"proto3\";\nimport \"no.proto\";\n");
    let server = Http2Server::start(Conduct::Calls(Call::Right));
    let old = Http2Server::start(Conduct::Http11);
    let files = |step: &str| {
        format!(
            "version = 1\ntarget = 'grpc://{}'\n[grpc]\nproto = '{}'\n[[flows]]\n[[flows.steps]]\n{step}",
            server.address,
            proto.path()
        )
    };
    let of_types = |types: &str| {
        let step = "[[flows]]\n[[flows.steps]]\ngrpc = 'a.B/One'\n";
        format!("version = 1\ntarget = 'grpc://{}'\n[grpc]\n{types}\n{step}", server.address)
    };
    let reflected = |server: &str| {
        let step = "[[flows]]\n[[flows.steps]]\ngrpc = 'a.B/One'\n";
        format!("version = 1\ntarget = 'grpc://{server}'\n{step}")
    };
    let plain = "grpc = 'a.B/One'\n";
    for (scenario, parts) in [
        (files("grpc = 'a.B/Two'\n"), &["line 7", "grpc:", "no method Two in a.B", "One"][..]),
        (files("grpc = 'a.C/One'\n"), &["line 7", "no service a.C", "a.B"]),
        (files("grpc = 'One'\n"), &["line 7", "package.Service/Method"]),
        (files("grpc = 'a.B/{{seq}}'\n"), &["line 7", "without templates"]),
        (files("grpc = 'ws://a/a.B/One'\n"), &["line 7", "grpc://"]),
        (
            files(&format!("{plain}message = {{ text = 1 }}\n")),
            &["line 8", "message: text: expected a string, found the number 1; message Text"],
        ),
        (
            files(&format!("{plain}message = '{{\"txt\":\"x\"}}'\n")),
            &["line 8", "txt: no such field", "line 1 column", "text (string)"],
        ),
        (files(&format!("{plain}message = '{{'\n")), &["line 8", "invalid JSON"]),
        (files(&format!("{plain}message = {{ text = '{{{{sek}}}}' }}\n")), &["line 8", "{{seq}}"]),
        (files(&format!("{plain}message = [1]\n")), &["line 8", "a list is for"]),
        (files(&format!("{plain}message = 1\n")), &["line 8", "table, or JSON"]),
        (files(&format!("{plain}metadata = {{ grpc-x = 'a' }}\n")), &["line 8", "reserved"]),
        (files(&format!("{plain}headers = {{ a = 'b' }}\n")), &["line 6", "use metadata"]),
        (files(&format!("{plain}json = {{ a = 'b' }}\n")), &["line 6", "use message"]),
        (files(&format!("{plain}checks = [{{ status = 404 }}]\n")), &["line 8", "NOT_FOUND"]),
        (
            files(&format!("{plain}[[flows.steps]]\nurl = '/'\n")),
            &["line 8", "url:", "http2 = true in [connect]"],
        ),
        (
            files(&format!("{plain}[[flows.steps]]\nconnect = '/'\n")),
            &["line 8", "connect:", "http2 = true in [connect]"],
        ),
        (
            files(&format!("{plain}[connect]\nhttp2 = false\n")),
            &["line 8", "remove http2 = false"],
        ),
        (
            format!("version = 1\n[grpc]\nproto = '{}'\n[[flows]]\n[[flows.steps]]\n{plain}", proto.path()),
            &["line 6", "no target", "grpc://HOST:PORT/a.B/One"],
        ),
        (
            "version = 1\ntarget = 'http://a'\n[[flows]]\n[[flows.steps]]\nurl = 'grpc://a/b'\n".to_owned(),
            &["line 5", "use the key grpc"],
        ),
        (
            "version = 1\ntarget = 'http://a'\n[[flows]]\n[[flows.steps]]\nurl = '/'\nmessage = {}\n".to_owned(),
            &["line 4", "message needs grpc"],
        ),
        (of_types("proto = '/no/such.proto'"), &["line 7", "cannot read /no/such.proto"]),
        (
            of_types(&format!("proto = '{}'", cycle.path())),
            &["line 7", "cycle.proto", "import cycle detected"],
        ),
        (
            of_types(&format!("proto = '{}'", lost.path())),
            &["line 7", "'no.proto' not found", "proto_path in [grpc]"],
        ),
        (of_types("protoset = '/dev/null'"), &["line 7", "descriptor set is empty"]),
        (of_types("proto_path = '.'"), &["line 3", "proto_path needs proto"]),
        (reflected(&old.address.to_string()), &["line 5", "answers HTTP/1.1"]),
        (
            reflected(&Deserted::port().address.to_string()),
            &["line 5", "connection refused"],
        ),
    ] {
        let finished = run(&scenario);
        assert_eq!(finished.code, Some(2), "{scenario}: {finished:?}");
        let has_all = parts.iter().all(|part| finished.stderr.contains(part));
        assert!(has_all, "{parts:?}: {}\n{scenario}", finished.stderr);
        assert!(!finished.stderr.contains("--proto"), "{}", finished.stderr);
    }
    assert_eq!(server.log.lock().unwrap().requests, 0);
}
