//! Mistakes of a first hour that show while a server runs: in its log, and in what it answers.
//!
//! Those of the command line are in `mistakes.rs`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use serde_json::json;

use crate::harness::cable::Extended;
use crate::harness::server::Server;
use crate::harness::socket::Socket;
use crate::harness::{eventually, http};

/// Each of these settings could be believed to do something.
#[test]
fn settings_of_parts_that_are_off_are_named_at_the_start() {
    let server = Server::start(&[
        "--history-limit=5",
        "--presence-ttl=1m",
        "--webhook-secret=x",
        "--auth-secret=x",
        "--rpc-timeout=1s",
        "--proxy-headers=cookie",
        "--pubsub-spool=1MiB",
    ]);
    for line in [
        "no effect without --auth-url: --auth-secret",
        "no effect without --history memory: --history-limit",
        "no effect without --presence memory: --presence-ttl",
        "no effect without --pubsub redis: --pubsub-spool",
        "no effect without --rpc-host: --rpc-timeout",
        "no effect without --rpc-host or --auth-url: --proxy-headers",
        "no effect without --webhook-url: --webhook-secret",
    ] {
        eventually(line, || server.log().contains(line));
    }
    let server = Server::start(&["--history", "memory", "--history-limit", "5"]);
    eventually("it has started", || server.log().contains("listening on"));
    assert!(!server.log().contains("no effect"), "{}", server.log());
}

#[test]
fn a_part_that_clients_request_and_that_is_off_is_logged_once() {
    let server = Server::start(&[]);
    let mut client = Extended::connect(server.listen, "");
    let identifier = r#"{"channel":"$pubsub","stream_name":"a"}"#;
    client.subscribe(identifier);
    let join = json!({"command": "join", "identifier": identifier, "presence": {"id": "1"}});
    for _ in 0..3 {
        client.history(identifier, &json!({"since": 1}));
        assert_eq!(client.hear()["type"], "reject_history");
        client.send(&join);
        assert_eq!(client.hear()["message"]["type"], "error");
    }
    for line in ["add --history memory", "add --presence memory"] {
        eventually(line, || server.log().contains(line));
        assert_eq!(server.log().matches(line).count(), 1, "{}", server.log());
    }
}

/// A server that answers whatever it receives as one of HTTP/1.1 does.
fn http_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut received = [0; 4096];
            if stream.read(&mut received).is_ok_and(|count| count > 0) {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            }
            // Its end would reset the connection before the answer was read.
            while stream.read(&mut received).is_ok_and(|count| count > 0) {}
        }
    });
    address
}

#[test]
fn rpc_to_a_server_without_grpc_is_told_apart_from_a_server_that_is_away() {
    let server = Server::start(&["--rpc-host", &http_server().to_string()]);
    let _client = Socket::open(server.listen, "/cable");
    let advice = "no gRPC is spoken there: HTTP RPC is --rpc-host http://HOST:PORT/PATH";
    eventually("the advice is in the log", || server.log().contains(advice));
}

#[test]
fn the_application_that_is_asked_is_named_with_its_path_and_without_its_query() {
    let url = format!("http://{}/ask?key=secret", http_server());
    let server = Server::start(&["--auth-url", &url]);
    let _refused = http::get(server.listen, "/events?topic=a");
    eventually("the path is in the log", || server.log().contains("/ask: status 400"));
    assert!(!server.log().contains("key=secret"), "{}", server.log());
}

#[test]
fn paths_of_another_listener_are_named() {
    let server = Server::start(&[]);
    for (path, expected) in [
        ("/api/publish", "--admin"),
        ("/metrics", "--admin"),
        ("/_broadcast", "--admin"),
        ("/topic/a", "/topics/NAME"),
        ("/", "/topics/NAME"),
    ] {
        let answer = http::get(server.listen, path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains(expected), "{path}: {}", answer.body);
    }
    let answer = server.admin_post("/_broadcast", r#"{"stream":"a","data":{"b":1}}"#);
    assert_eq!(answer.status, 422);
    let form = json!({"stream": "NAME", "data": "TEXT"});
    let shown = answer.json()["message"].as_str().unwrap().to_owned();
    let found = shown.split_once("expected {").map(|(_, rest)| format!("{{{rest}"));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&found.unwrap()).unwrap(), form);
}
