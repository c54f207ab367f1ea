//! `standfast load grpc-list`: services of real servers by reflection, of files, and what else answers on a port.

use std::io::{self, Write};
use std::net::TcpListener;
use std::thread;

use serde_json::Value;

use crate::harness::executable::{self, Finished};
use crate::harness::peer::{self, Program};
use crate::harness::recorder::Recorder;
use crate::harness::tls::Authority;
use crate::harness::{Deserted, Scratch};

const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/shop.proto");

/// What is listed for the service of `shop.proto`, with the flags that a run needs.
fn listed(url: &str, flags: &str) -> String {
    let order = "{\"customerName\":\"text\",\"items\":[{\"name\":\"text\",\"number\":1}],\"labels\":{\"key\":\"text\"},\
                 \"speed\":\"EXPRESS\",\"card\":\"text\",\"placedAt\":\"2026-01-31T18:05:00Z\"}";
    let command = format!("standfast load {url}/shop.v1.Orders");
    format!(
        "shop.v1.Orders\n  \
           Place  unary  shop.v1.Order → shop.v1.Receipt\n    \
             {command}/Place -d '{order}'{flags}\n  \
           Import  client stream  shop.v1.Order → shop.v1.Receipt\n    \
             {command}/Import -d '{order}'{flags}\n  \
           Watch  server stream  google.protobuf.Empty → shop.v1.Order\n    \
             {command}/Watch{flags}\n  \
           Negotiate  bidi stream  shop.v1.Order → shop.v1.Receipt\n    \
             {command}/Negotiate -d '{order}'{flags}\n"
    )
}

fn list(args: &[&str]) -> Finished {
    executable::run(&[&["load", "grpc-list"], args].concat())
}

/// The error of a command that must fail.
fn problem(args: &[&str]) -> String {
    let finished = list(args);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{args:?}: {finished:?}");
    assert!(finished.stderr.lines().count() <= 3, "{finished:?}");
    finished.stderr
}

fn calls(app: &Program) -> Vec<Value> {
    let lines = app.lines();
    lines.iter().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn services_are_listed_by_reflection_of_either_version() {
    for mode in ["v1", "v1alpha"] {
        let Some(app) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &[mode]) else {
            return;
        };
        let server = format!("127.0.0.1:{}", app.first_line());
        let finished = list(&[&server, "-H", "Authorization: Bearer x"]);
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{finished:?}");
        assert_eq!(finished.stdout, listed(&format!("grpc://{server}"), ""));
        let calls = calls(&app);
        assert!(calls.iter().all(|call| call["token"] == "Bearer x"), "{calls:?}");
        let last = calls.last().expect("a call");
        let service = format!("/grpc.reflection.{mode}.ServerReflection/ServerReflectionInfo");
        assert_eq!(last["path"], service.as_str());
    }
}

#[test]
fn a_server_without_reflection_needs_files() {
    let Some(app) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["none"]) else {
        return;
    };
    let server = format!("127.0.0.1:{}", app.first_line());
    let expected = format!(
        "standfast: {server}: no reflection service (UNIMPLEMENTED): give --proto FILE or --protoset FILE\n"
    );
    assert_eq!(problem(&[&server]), expected);
    let finished = list(&[&server, "--proto", PROTO]);
    assert_eq!(finished.stdout, listed(&format!("grpc://{server}"), &format!(" --proto {PROTO}")));
}

#[test]
fn tls_is_told_from_plain_text() {
    let authority = Authority::new();
    authority.sign("app", &["localhost"]);
    let files = ["app.pem", "app.key", "ca.pem"].map(|file| authority.path(file));
    let [cert, key, ca] = files.each_ref().map(String::as_str);
    let start = |mode| Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &[mode, cert, key]);
    let Some(app) = start("v1") else { return };
    let port = app.first_line();
    let url = format!("grpcs://localhost:{port}");
    let finished = list(&[&url, "--ca", ca]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{finished:?}");
    assert_eq!(finished.stdout, listed(&url, &format!(" --ca {ca}")));
    let finished = list(&[&url, "--insecure"]);
    assert_eq!(finished.stdout, listed(&url, " --insecure"));
    let text = problem(&[&url]);
    assert!(text.contains("invalid peer certificate") && text.contains("--ca FILE"), "{text}");
    let plain = format!("localhost:{port}");
    let text = problem(&[&plain]);
    assert!(text.contains(&format!("try grpcs://{plain}")), "{text}");
    let text = problem(&[&plain, "--ca", ca]);
    assert!(text.contains("TLS flags without a URL with TLS: expected grpcs://"), "{text}");

    let Some(plain) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let server = format!("127.0.0.1:{}", plain.first_line());
    let text = problem(&[&format!("grpcs://{server}"), "--insecure"]);
    assert!(text.contains(&format!("try grpc://{server}")), "{text}");

    let Some(https) = start("https") else { return };
    let text = problem(&[&format!("grpcs://localhost:{}", https.first_line()), "--ca", ca]);
    assert!(text.contains("refuses HTTP/2 (ALPN h2)"), "{text}");
}

#[test]
fn other_servers_are_named() {
    let http = Recorder::hello();
    let text = problem(&[&http.address.to_string()]);
    assert!(text.contains("answers HTTP/1.1: gRPC needs HTTP/2"), "{text}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"220 mail.example.com ESMTP\r\n");
            let _ = io::copy(&mut stream, &mut io::sink());
        }
    });
    let text = problem(&[&address]);
    assert!(text.contains("answers \"220 mail\", which is not HTTP/2"), "{text}");

    let text = problem(&[&Deserted::port().address.to_string()]);
    assert!(text.contains("connection refused (is the server running on this port?)"), "{text}");
    let text = problem(&["no-such-host.invalid:50051"]);
    assert!(text.contains("cannot connect: failed to lookup"), "{text}");
}

/// Answers that are none of reflection end with a reason.
#[test]
fn wrong_answers_are_errors() {
    let Some(app) = Program::start(&peer::NODE_ALONE, "grpc_wrong.js", &[]) else { return };
    let server = format!("127.0.0.1:{}", app.first_line());
    for (case, why) in [
        ("right", "asked for something else"),
        ("no_status", "no grpc-status"),
        ("no_number", "(UNKNOWN: )"),
        ("refused", "add credentials with -H"),
        ("page", "is it a gRPC server?"),
        ("long", "asked for something else"),
        ("no_trailers", "no grpc-status"),
        ("status_in_head", "(INTERNAL: )"),
        ("not_found", "answers HTTP/2, but not gRPC (status 404 Not Found, no content-type)"),
        ("reset", "stream error"),
        ("gone", "connection"),
    ] {
        let text = problem(&[&server, "-H", &format!("cookie: case={case}")]);
        assert!(text.contains(why), "{case}: {text}");
    }
}

#[test]
fn files_are_listed_without_a_server() {
    let finished = list(&["--proto", PROTO]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(finished.stdout, listed("grpc://HOST:PORT", &format!(" --proto {PROTO}")));
    let folder = PROTO.rsplit_once('/').expect("a path").0;
    let finished = list(&["--proto", "shop.proto", "--proto-path", folder]);
    let flags = format!(" --proto shop.proto --proto-path {folder}");
    assert_eq!(finished.stdout, listed("grpc://HOST:PORT", &flags));
    for (text, why) in [
        ("syntax = \"proto3\";\nmessage A { string = 1; }\n", ":2:20: "),
        ("syntax = \"proto3\";\nimport \"no.proto\";\n", ":2:1: import 'no.proto' not found"),
        ("syntax = \"proto3\";\nmessage A { B b = 1; }\n", ":2:13: "),
    ] {
        let file = Scratch::new("wrong.proto", text);
        let text = problem(&["--proto", file.path()]);
        assert!(text.contains(why), "{text}");
    }
    let text = problem(&["--proto", "/no/such.proto"]);
    assert!(text.contains("cannot read /no/such.proto"), "{text}");
}
