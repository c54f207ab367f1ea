//! `standfast load grpc://…`: against a server that logs and answers each tenth call in a wrong way, to the unit;
//! and against grpc-js.

use std::fs;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::forward::Forward;
use crate::harness::http2::{Call, Conduct, Http2Server};
use crate::harness::peer::{self, Program};
use crate::harness::server::Server;

/// Types of the calls to servers without reflection.
const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; }\n\
                     service B { rpc One(Text) returns (Text); rpc Many(Text) returns (stream Text);\n\
                     rpc Both(stream Text) returns (stream Text); }\n";

/// 200 calls of `method` over 2 connections with 5 streams each.
fn call(url: &str, more: &[&str]) -> (Finished, Value) {
    let flags = ["load", url, "--connections", "2", "--streams", "5", "--requests", "200"];
    let finished = executable::run(&[&flags[..], &["--json", "-"], more].concat());
    let said = if finished.stdout.is_empty() { Value::Null } else { finished.json() };
    (finished, said)
}

#[test]
fn calls_end_by_their_status_and_counts_agree_with_the_server() {
    let file = Scratch::new("calls.proto", PROTO);
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
        (Call::Undecodable, Some("grpc_reply_undecodable")),
    ] {
        let server = Http2Server::start(Conduct::Calls(how));
        let url = format!("grpc://{}/a.B/One", server.address);
        let (finished, said) = call(&url, &["--proto", file.path(), "-d", "{\"text\":\"x\"}"]);
        let errors = kind.map_or_else(|| json!({}), |kind| json!({kind: 20}));
        assert_eq!(said["errors"], errors, "{how:?} {said} {}", finished.stderr);
        let log = server.log.lock().unwrap();
        let answered = if kind.is_some() { 180 } else { 200 };
        assert_eq!((log.requests, log.answered), (200, answered), "{how:?}");
        assert_eq!(said["requests"]["ok"], answered, "{how:?} {said}");
        // Five bytes of prefix, and the field.
        assert_eq!((log.body_bytes, log.connections), (200 * 8, 2), "{how:?}");
    }
}

#[test]
fn several_messages_may_answer_a_call_of_a_server_stream() {
    let file = Scratch::new("stream.proto", PROTO);
    for (how, ok) in [(Call::Two, 200), (Call::OnlyTrailers("0"), 200), (Call::Cut, 180)] {
        let server = Http2Server::start(Conduct::Calls(how));
        let url = format!("grpc://{}/a.B/Many", server.address);
        let (finished, said) = call(&url, &["--proto", file.path()]);
        assert_eq!(said["requests"]["ok"], ok, "{how:?} {said} {}", finished.stderr);
    }
}

#[test]
fn messages_with_placeholders_differ_in_length() {
    let file = Scratch::new("placeholders.proto", PROTO);
    let server = Http2Server::start(Conduct::Calls(Call::Right));
    let url = format!("grpc://{}/a.B/One", server.address);
    let (finished, said) = call(&url, &["--proto", file.path(), "-d", "{\"text\":\"{{seq}}\"}"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(said["requests"]["ok"], 200, "{said}");
    // Two workers number their 100 calls each: 0 to 199.
    let digits: u64 = (0..200_u64).map(|number| number.to_string().len() as u64).sum();
    assert_eq!(server.log.lock().unwrap().body_bytes, 200 * 7 + digits, "{said}");
}

#[test]
fn what_cannot_be_called_is_said_before_the_run() {
    let file = Scratch::new("wrong.proto", PROTO);
    let server = Http2Server::start(Conduct::Calls(Call::Right));
    let url = |path: &str| format!("grpc://{}/{path}", server.address);
    for (path, more, parts) in [
        ("a.B/Two", vec![], vec!["no method Two in a.B", "One"]),
        ("a.B", vec![], vec!["missing method after a.B", "it has One, Many"]),
        ("a.B/One", vec!["-d", "[1]"], vec!["takes one message", "a list is for methods"]),
        ("a.B/One", vec!["--proto", "."], vec![". is a folder: expected a .proto file"]),
        ("a.B/One", vec!["-d", "{\"text\":\"{{sek}}\"}"], vec!["{{sek}}", "a scenario has more"]),
        ("", vec![], vec!["package.Service/Method", "grpc-list"]),
        ("a.B/One", vec!["--messages", "5"], vec!["--messages is for streams", "unary"]),
        ("a.B/One", vec!["-d", "{\"text\":1}"], vec!["--data", "text", "string", "column"]),
        ("a.B/One", vec!["-d", "{\"text\":\"{{sek}}\"}"], vec!["--data", "sek"]),
        ("a.B/One", vec!["-H", "grpc-x: y"], vec!["reserved"]),
        ("a.B/One", vec!["--pipeline", "3"], vec!["--pipeline is for http:// and tcp://"]),
        ("a.B/One", vec!["--http2"], vec!["--http2 is for", "not for grpc://"]),
    ] {
        let (finished, _) = call(&url(path), &[&["--proto", file.path()][..], &more].concat());
        assert_eq!(finished.code, Some(2), "{path}: {finished:?}");
        assert!(parts.iter().all(|part| finished.stderr.contains(part)), "{parts:?}: {finished:?}");
    }
    assert_eq!(server.log.lock().unwrap().requests, 0);
}

#[test]
fn grpc_js_is_called_with_types_of_its_reflection() {
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let url = format!("grpc://127.0.0.1:{}/shop.v1.Orders", server.first_line());
    let message = r#"{"customerName":"user {{seq}}","items":[{"name":"a","number":{{user}}}]}"#;
    let (finished, said) = call(&format!("{url}/Place"), &["-d", message, "-H", "a: b"]);
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    assert_eq!((&said["requests"]["ok"], &said["streams"]), (&json!(200), &json!(5)), "{said}");
    // The prefix, and {"text":"thanks"}.
    assert_eq!(said["body_bytes"], 200 * (5 + 8), "{said}");
    let unimplemented = r#"{"customerName":"UNIMPLEMENTED"}"#;
    let (finished, said) = call(&format!("{url}/Place"), &["-d", unimplemented]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(said["errors"], json!({"grpc_unimplemented": 200}), "{said}");
}

#[test]
fn mistakes_say_what_to_try() {
    let file = Scratch::new("mistakes.proto", PROTO);
    let cut = Scratch::new("cut.proto", "syntax = \"proto3\";\nmessage A { string x = 1\n");
    let web = Server::start(&[]);
    let http2 = Http2Server::start(Conduct::Answers);
    let of = |scheme: &str, address: String, more: &[&str]| {
        let url = format!("{scheme}://{address}/a.B/One");
        executable::run(&[&["load", &url, "--requests", "5"], more].concat())
    };
    let types = ["--proto", file.path()];
    for (finished, parts) in [
        (
            of("grpc", web.listen.to_string(), &types),
            &["speaks HTTP/1.1", "is this the port of a gRPC server?", "grpc-web://"][..],
        ),
        (
            of("grpc-web", http2.address.to_string(), &types),
            &["speaks HTTP/2, and not HTTP/1.1", "call the method with grpc://"],
        ),
        (
            of("grpc", http2.address.to_string(), &["--proto", file.path(), "-d", "[{}]"]),
            &["/a.B/One is a unary method", "a list is for methods that take a stream"],
        ),
        (of("grpc", http2.address.to_string(), &["--proto", cut.path()]), &["cut.proto: expected"]),
        (
            of("grpc", http2.address.to_string(), &["--protoset", "."]),
            &[". is a folder: expected a descriptor set"],
        ),
    ] {
        let text = format!("{}{}", finished.stdout, finished.stderr);
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {finished:?}");
        assert!(!text.contains("leave out --http2"), "{finished:?}");
    }
}

#[test]
fn the_first_message_of_a_status_is_shown() {
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let url = format!("grpc://127.0.0.1:{}/shop.v1.Orders", server.first_line());
    let not_found = json!({"grpc_not_found": "no order of NOT_FOUND"});
    let denied = json!({"grpc_invalid_argument": "no such customer [google.rpc.Help]"});
    for (method, name, more, texts) in [
        ("Place", "NOT_FOUND", vec![], &not_found),
        ("Place", "NOT_FOUND", vec!["--check", "json $.text is thanks"], &not_found),
        ("Negotiate", "NOT_FOUND", vec!["--message-every", "1ms", "--messages", "2"], &not_found),
        ("Place", "DETAILS", vec![], &denied),
    ] {
        let message = format!("{{\"customerName\":\"{name}\"}}");
        let (finished, said) =
            call(&format!("{url}/{method}"), &[&["-d", &message][..], &more].concat());
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(&said["call_errors"], texts, "{method} {more:?} {said}");
    }
    let place = format!("{url}/Place");
    let flags = ["-c", "1", "--requests", "3", "-d", "{\"customerName\":\"NOT_FOUND\"}"];
    let finished = executable::run(&[&["load", &place][..], &flags].concat());
    let line = "grpc_not_found, first: no order of NOT_FOUND\n";
    assert!(finished.stdout.contains(line), "{finished:?}");
    let (_, said) = call(&place, &[]);
    assert_eq!(said.get("call_errors"), None, "{said}");
}

/// A UNIX socket whose connections go to a port.
fn unix_socket(port: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let to = format!("127.0.0.1:{port}");
    thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&to).unwrap());
            let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                to.shutdown(Shutdown::Write)
            });
            let (mut from, mut to) = (far, near);
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                to.shutdown(Shutdown::Write)
            });
        }
    });
    path.to_str().unwrap().to_owned()
}

#[test]
fn reflection_health_checks_and_lists_follow_resolve_and_unix_socket() {
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let port = server.first_line();
    let entry = format!("shop.invalid:{port}:127.0.0.1");
    let socket = unix_socket(&port, &format!("shop-{port}.sock"));
    for by in [["--resolve", &entry], ["--unix-socket", &socket]] {
        let place = format!("grpc://shop.invalid:{port}/shop.v1.Orders/Place");
        let (finished, said) = call(&place, &[&["--health"][..], &by].concat());
        assert_eq!(finished.code, Some(0), "{by:?} {finished:?}");
        assert_eq!(said["requests"]["ok"], 200, "{by:?} {said}");
        let server = format!("shop.invalid:{port}");
        let finished = executable::run(&[&["load", "grpc-list", &server][..], &by].concat());
        assert_eq!(finished.code, Some(0), "{by:?} {finished:?}");
        let command = format!("{} {}\n", by[0], by[1]);
        assert!(finished.stdout.contains(&command), "{by:?} {finished:?}");
    }
}

#[test]
fn a_port_of_something_else_is_named_with_advice_that_fits() {
    let file = Scratch::new("else.proto", PROTO);
    let web = crate::harness::server::Server::start(&[]);
    let url = format!("grpc://{}/a.B/One", web.listen);
    let flags = ["load", &url, "--proto", file.path(), "--requests", "5"];
    let finished = executable::run(&flags);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stdout.contains("speaks HTTP/1.1, gRPC needs HTTP/2"), "{finished:?}");
    assert!(!finished.stdout.contains("--http2"), "{finished:?}");
    let server = Http2Server::start(Conduct::Calls(Call::Right));
    for (scheme, hint) in [("http", "add --http2, or call"), ("grpc-web", "with grpc://")] {
        let url = format!("{scheme}://{}/a.B/One", server.address);
        let proto = if scheme == "http" { &[][..] } else { &["--proto", file.path()] };
        let flags = [&["load", &url, "-c", "2", "--duration", "5s"][..], proto].concat();
        let finished = executable::run(&flags);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(finished.stdout.contains("speaks HTTP/2, and not HTTP/1.1"), "{finished:?}");
        assert!(finished.stdout.contains(hint), "{finished:?}");
    }
}

#[test]
fn calls_reflection_and_health_checks_go_through_a_proxy() {
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let proxy = Forward::start(None);
    let by = format!("http://u:p@{}", proxy.address);
    let url = format!("grpc://127.0.0.1:{}/shop.v1.Orders/Place", server.first_line());
    let (finished, said) = call(&url, &["--proxy", &by, "--health"]);
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    // Those of the run, one for its types, and one for the health.
    let opened = said["connections"]["opened"].as_u64().unwrap_or_default();
    let asked = proxy.asked();
    assert_eq!(asked.len() as u64, opened + 2, "{said}");
    assert!(asked.iter().all(|head| head.contains("Proxy-Authorization: Basic ")), "{asked:?}");
    for (refusal, parts) in [
        ("HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", ["HTTP/1.1 407 No", "--proxy"]),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", ["refused the tunnel", "SSH-2.0"]),
        ("", ["no HTTP/2 within", "gRPC server"]),
    ] {
        let proxy = Forward::start(Some(refusal));
        let (finished, _) = call(&url, &["--proxy", &proxy.address.to_string()]);
        assert_eq!(finished.code, Some(2), "{refusal:?} {finished:?}");
        assert!(parts.iter().all(|part| finished.stderr.contains(part)), "{finished:?}");
    }
}

#[test]
fn a_run_begins_only_if_the_server_is_healthy() {
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let url = format!("grpc://127.0.0.1:{}", server.first_line());
    let place = format!("{url}/shop.v1.Orders/Place");
    for flag in ["--health", "--health=on"] {
        let (finished, said) = call(&place, &[flag]);
        assert_eq!(
            (finished.code, &said["requests"]["ok"]),
            (Some(0), &json!(200)),
            "{finished:?}"
        );
    }
    for (flag, part) in [
        ("--health=off", "service \"off\" is not serving (NOT_SERVING)"),
        ("--health=other", "does not know service \"other\" (NOT_FOUND)"),
    ] {
        let (finished, _) = call(&place, &[flag]);
        assert!(finished.code == Some(2) && finished.stderr.contains(part), "{finished:?}");
    }
    // Without files, and it is not in the reflection.
    let (finished, said) =
        call(&format!("{url}/grpc.health.v1.Health/Check"), &["-d", "{\"service\":\"on\"}"]);
    assert_eq!((finished.code, &said["body_bytes"]), (Some(0), &json!(200 * 7)), "{finished:?}");
    let Some(other) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1alpha"]) else {
        return;
    };
    let url = format!("grpc://127.0.0.1:{}/shop.v1.Orders/Place", other.first_line());
    let (finished, _) = call(&url, &["--health"]);
    let part = "no health service (UNIMPLEMENTED)";
    assert!(finished.code == Some(2) && finished.stderr.contains(part), "{finished:?}");
}
