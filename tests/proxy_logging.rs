//! What `standfast proxy` logs: why an upstream fails (once), the access log, and configuration errors
//! before the start.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::thread;

use serde_json::{Value, json};

use crate::harness::http::read_more;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::{Upstream, switching};
use crate::harness::{Deserted, Scratch, eventually, executable, http};

/// A server that gives every request the same response and keeps the connection.
fn serve_fixed(answer: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, answer) = (listener.local_addr().unwrap(), answer.to_owned());
    thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && read_more(&mut stream, &mut head) {}
            let _ = stream.write_all(answer.as_bytes());
            kept.push(stream);
        }
    });
    address
}

fn request(proxy: &Server, text: &str) -> u16 {
    let mut socket = Socket::connect(proxy.listen);
    socket.send(text.as_bytes());
    socket.response().status
}

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

#[test]
fn failure_ejection_and_recovery_of_an_upstream_are_logged_once() {
    let deserted = Deserted::port();
    let address = deserted.address;
    let config =
        format!("[pool.a]\nupstreams = ['{address}']\neject_after = 3\neject_for = '1h'\n");
    let config = Scratch::new("failures.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path()]);
    let logged = |event: &str| {
        let line = format!("upstream {event}: {address}");
        proxy.log().matches(&line).count()
    };
    assert_eq!(request(&proxy, GET), 502);
    eventually("the first failure is logged", || logged("failing") == 1);
    assert!(proxy.log().contains(": connection refused"), "{}", proxy.log());
    assert_eq!((request(&proxy, GET), request(&proxy, GET)), (502, 502));
    eventually("its ejection is logged", || logged("ejected") == 1);
    assert!(proxy.log().contains("no new requests for 3600s"), "{}", proxy.log());
    for _ in 0..20 {
        assert_eq!(request(&proxy, GET), 502, "there is no other upstream");
    }
    drop(deserted);
    let listener = TcpListener::bind(address).unwrap();
    let answer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 204 None\r\nConnection: close\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while read_more(&mut stream, &mut head) {}
    });
    assert_eq!(request(&proxy, GET), 204);
    answer.join().unwrap();
    eventually("its recovery is logged", || logged("recovered") == 1);
    assert_eq!((logged("failing"), logged("ejected")), (1, 1), "{}", proxy.log());
}

#[test]
fn an_upstream_without_tls_is_logged() {
    let address = serve_fixed("HTTP/1.1 400 What\r\nContent-Length: 0\r\n\r\n").to_string();
    let flags = ["--upstream", &address, "--upstream-tls", "--upstream-name", "localhost"];
    let proxy = Server::start_proxy(&[&flags[..], &["--connect-timeout", "1s"]].concat());
    // The ClientHello has no blank line, so the server reads on until the connect times out.
    assert_eq!(request(&proxy, GET), 502);
    eventually("the reason is logged", || proxy.log().contains(": connect timed out"));
    let server = Server::start(&[]);
    let flags = ["--upstream", &server.listen.to_string(), "--upstream-tls"];
    let proxy = Server::start_proxy(&flags);
    assert_eq!(request(&proxy, GET), 502);
    eventually("the reason is logged", || proxy.log().contains(": TLS failed: "));
}

#[test]
fn invalid_responses_eject_the_upstream() {
    let wrong = serve_fixed(&switching().replace("s3pP", "AAAA"));
    for bad in [wrong, serve_fixed("SSH-2.0-OpenSSH_9.9\r\n\r\n")] {
        let good = serve_fixed(&switching());
        let config = format!(
            "[pool.a]\nupstreams = ['{bad}', '{good}']\nbalance = 'round_robin'\neject_after = 3\n\
             eject_for = '1h'\n"
        );
        let config = Scratch::new("wrong.toml", &config);
        let proxy = Server::start_proxy(&["--config", config.path(), "--workers", "1"]);
        let handshake = upgrade("/any", &[]);
        let answers: Vec<u16> = (0..6).map(|_| request(&proxy, &handshake)).collect();
        assert_eq!(answers.iter().filter(|status| **status == 502).count(), 3, "{answers:?}");
        let shown = http::get(proxy.admin, "/api/upstreams").json();
        let upstreams = shown["pools"][0]["upstreams"].as_array().unwrap();
        let bad = upstreams.iter().find(|one| one["address"] == bad.to_string()).unwrap();
        assert_eq!((&bad["state"], &bad["failed"]), (&json!("ejected"), &json!(3)), "{shown}");
        for _ in 0..6 {
            assert_eq!(request(&proxy, &handshake), 101, "the other upstream gets the request");
        }
    }
}

#[test]
fn each_request_is_logged_with_its_upstream_and_why_it_ended() {
    let (deserted, upstream, silent) = (Deserted::port(), Upstream::new(), Upstream::new());
    let wrong = serve_fixed("no answer\r\n\r\n").to_string();
    let part = |name: &str, address: &str| {
        format!(
            "[[route]]\nhost = '{name}.test'\npool = '{name}'\n[pool.{name}]\nupstreams = ['{address}']\n"
        )
    };
    let (nobody, there) = (deserted.address.to_string(), upstream.address().to_string());
    let mute = silent.address().to_string();
    let parts = [("nobody", &nobody), ("wrong", &wrong), ("mute", &mute), ("there", &there)];
    let config: String = parts.iter().map(|(name, address)| part(name, address)).collect();
    let config = Scratch::new("lines.toml", &config);
    let log = Scratch::new("lines.log", "");
    let flags = ["--config", config.path(), "--access-log", log.path(), "--workers", "1"];
    let proxy = Server::start_proxy(&[&flags[..], &["--upstream-timeout", "300ms"]].concat());
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let mut written = 0;
    let mut assert_logged =
        |upstream: Option<&str>, status: u16, by: &str, why: &str, bytes_out: u64| {
            eventually("the line is written", || lines().len() > written);
            let line = lines().remove(written);
            written += 1;
            assert_eq!(line["upstream"], json!(upstream), "{line}");
            let expected = json!([status, by, why, bytes_out]);
            let got = json!([line["status"], line["closed_by"], line["why"], line["bytes_out"]]);
            assert_eq!(got, expected, "{line}");
        };
    assert_eq!(request(&proxy, "GET /x HTTP/1.1\r\nHost: other.test\r\n\r\n"), 404);
    assert_logged(None, 404, "proxy", "no_route", 0);
    assert_eq!(request(&proxy, "CONNECT h:22 HTTP/1.1\r\nHost: h:22\r\n\r\n"), 405);
    assert_logged(None, 405, "proxy", "connect", 0);
    let handshake = |name: &str| upgrade("/any", &[("Host", &format!("{name}.test"))]);
    assert_eq!(request(&proxy, &handshake("nobody")), 502);
    assert_logged(Some(&nobody), 502, "proxy", "unreachable", 0);
    assert_eq!(request(&proxy, &handshake("wrong")), 502);
    assert_logged(Some(&wrong), 502, "proxy", "bad_answer", 0);
    assert_eq!(request(&proxy, &handshake("mute")), 504);
    assert_logged(Some(&mute), 504, "proxy", "no_answer", 0);
    let mut socket = Socket::connect(proxy.listen);
    socket.send(b"GET / HTTP/1.1\r\nHost: there.test\r\n\r\n");
    let mut leg = upstream.accept();
    leg.head();
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    socket.text_until("half");
    drop(leg);
    assert!(socket.ends());
    assert_logged(Some(&there), 200, "upstream", "truncated", 4);
}

#[test]
fn the_names_of_one_address_are_logged() {
    let address =
        serve_fixed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    let name = format!("localhost:{}", address.port());
    let config = Scratch::new(
        "names-logged.toml",
        &format!("[pool.a]\nupstreams = ['{name}', '{address}']\nbalance = 'round_robin'\n"),
    );
    let log = Scratch::new("names-logged.log", "");
    let proxy = Server::start_proxy(&["--config", config.path(), "--access-log", log.path()]);
    let count = 6;
    (0..count).for_each(|_| assert_eq!(request(&proxy, GET), 200));
    let lines = || -> Vec<Value> {
        std::fs::read_to_string(log.path())
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    eventually("all are logged", || lines().len() == count);
    let names: BTreeSet<String> = lines()
        .iter()
        .inspect(|line| assert_eq!(line["upstream"], address.to_string(), "{line}"))
        .map(|line| line["upstream_name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, [name, address.to_string()].into());
}

#[test]
fn a_rejected_head_is_logged_and_a_silent_client_is_not() {
    let upstream = Upstream::new();
    let log = Scratch::new("refused.log", "");
    let address = upstream.address().to_string();
    let flags = ["--upstream", &address, "--access-log", log.path(), "--workers", "1"];
    let hasty = ["--handshake-timeout", "1s", "--max-head", "2KiB"];
    let proxy = Server::start_proxy(&[&flags[..], &hasty].concat());
    let mut silent = Socket::connect(proxy.listen);
    let mut written = 0;
    let mut assert_logged = |expected: Value| {
        let mut line = Value::Null;
        eventually("the line is written", || {
            let text = std::fs::read_to_string(log.path()).unwrap();
            line = text.lines().nth(written).map_or(Value::Null, |l| l.parse().unwrap());
            !line.is_null()
        });
        written += 1;
        let keys = ["status", "why", "method", "target", "client", "closed_by", "upstream"];
        let values: Vec<&Value> = keys.iter().map(|key| &line[*key]).collect();
        assert_eq!(json!(values), expected, "{line}");
        line
    };
    let unread =
        |status: u16, why: &str| json!([status, why, null, null, "127.0.0.1", "proxy", null]);
    assert_eq!(request(&proxy, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
    assert_logged(unread(400, "duplicate_host"));
    assert_eq!(request(&proxy, "\x16\x03\x01 no TLS here\r\n\r\n"), 400);
    assert_logged(unread(400, "not_http"));
    let long = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(4_000));
    assert_eq!(request(&proxy, &long), 431);
    assert_logged(unread(431, "head_too_large"));
    // The head of an invalid handshake can be read.
    assert_eq!(request(&proxy, &upgrade("/ws?a", &[("Sec-WebSocket-Version", "12")])), 426);
    let ours = json!([426, "upgrade_version", "GET", "/ws?a", "127.0.0.1", "proxy", null]);
    assert_eq!(assert_logged(ours)["host"], "127.0.0.1");
    let mut late = Socket::connect(proxy.listen);
    late.send(b"GET / HTTP/1.1\r\nHos");
    assert!(late.ends(), "without a response");
    let line = assert_logged(unread(408, "handshake_timeout"));
    let took_ms = line["duration_ms"].as_u64().unwrap();
    assert!((900..60_000).contains(&took_ms), "{line}");
    assert!(silent.ends());
    eventually("both are counted", || {
        proxy.metrics()["standfast_closed_total{cause=\"handshake_timeout\"}"] == 2.0
    });
    assert_eq!(request(&proxy, "CONNECT h:22 HTTP/1.1\r\nHost: h:22\r\n\r\n"), 405);
    // The next line: the silent client left none.
    assert_logged(json!([405, "connect", "CONNECT", "h:22", "127.0.0.1", "proxy", null]));
    assert!(upstream.is_alone());
}

#[test]
fn a_source_address_of_another_machine_is_an_error_at_start() {
    // An address for documentation (RFC 5737), which no machine has.
    let flags = ["proxy", "--listen", "127.0.0.1:0", "--admin", "off", "--upstream", "127.0.0.1:9"];
    let started = executable::run(&[&flags[..], &["--source", "127.0.0.1,192.0.2.77"]].concat());
    let file = "[proxy]\nsource = ['192.0.2.77']\n[pool.a]\nupstreams = ['127.0.0.1:9']\n";
    let file = Scratch::new("source.toml", file);
    let checked = executable::run(&["proxy", "check", file.path()]);
    for finished in [started, checked] {
        assert_eq!(finished.code, Some(2), "{finished:?}");
        let complaint = "--source 192.0.2.77 is not an address of this machine";
        assert!(finished.stderr.contains(complaint), "{finished:?}");
    }
}

#[test]
fn a_rejected_head_is_logged_with_its_own_client_not_the_previous_one() {
    let upstream = Upstream::new();
    let log = Scratch::new("clients.log", "");
    let address = upstream.address().to_string();
    let flags = ["--upstream", &address, "--access-log", log.path(), "--workers", "1"];
    let proxy = Server::start_proxy(&[&flags[..], &["--trusted-proxy", "127.0.0.1"]].concat());
    let mut socket = Socket::connect(proxy.listen);
    let mut leg = None;
    for client in ["203.0.113.1", "203.0.113.2"] {
        let of = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n");
        socket.send(of.as_bytes());
        let leg = leg.get_or_insert_with(|| upstream.accept());
        assert!(leg.head().contains(client));
        leg.say("HTTP/1.1 204 No Content\r\n\r\n");
        socket.text_until("\r\n\r\n");
    }
    // The client cannot be read from this head; the address is that of the trusted proxy.
    socket.send(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
    assert_eq!(socket.response().status, 400);
    // This head is invalid, but its client can be read.
    let ours = [("Sec-WebSocket-Version", "12"), ("X-Forwarded-For", "203.0.113.3")];
    assert_eq!(request(&proxy, &upgrade("/ws", &ours)), 426);
    let clients = || -> Vec<Value> {
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.lines().map(|line| line.parse::<Value>().unwrap()["client"].clone()).collect()
    };
    eventually("all lines are written", || clients().len() == 4);
    assert_eq!(clients(), ["203.0.113.1", "203.0.113.2", "127.0.0.1", "203.0.113.3"]);
}
