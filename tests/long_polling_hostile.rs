//! Long polling with clients that forge, flood, fall silent and never read: refused, bounded, counted.

use serde_json::json;

use crate::harness::eventually;
use crate::harness::http::{self, Response};
use crate::harness::polling::{Poller, messages};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, hs256, identifiers, now_unix_s, token};

const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;

fn serve(more: &[&str]) -> Server {
    let fixed = ["--long-polling", "--long-polling-flush-interval", "20ms"];
    Server::start(&[&fixed[..], more].concat())
}

fn reason(response: &Response) -> String {
    messages(response)[0]["reason"].as_str().unwrap().to_owned()
}

#[test]
fn forged_and_foreign_ids_are_refused() {
    let server = serve(&["--workers", "2", "--secret", SECRET, "--public-streams"]);
    let query = format!("?jid={}", token(7));
    let mut client = Poller::open(server.listen, &query);
    client.subscribe(NEWS);
    let id = client.id.clone();
    assert_eq!(id.len(), 48);
    // Neither the session id, which the application may know, nor another of the same numbers.
    let altered = format!("{}{}", &id[..47], if id.ends_with('0') { "1" } else { "0" });
    for wrong in [client.sid.as_str(), &altered, &id[..47], "x", "\u{e9}"] {
        let mut thief = Poller::new(server.listen, &query, "");
        thief.id = wrong.to_owned();
        let refused = thief.ask("");
        assert_eq!(
            (refused.status, reason(&refused)),
            (401, "session_expired".to_owned()),
            "{wrong}"
        );
    }
    // With the right id, but not the identity of its session.
    for other in ["".to_owned(), format!("?jid={}", token(8))] {
        let mut thief = Poller::new(server.listen, &other, "");
        thief.id = id.clone();
        let body = json!({"command": "unsubscribe", "identifier": NEWS}).to_string();
        let refused = thief.ask(&body);
        assert_eq!((refused.status, reason(&refused)), (401, "unauthorized".to_owned()), "{other}");
    }
    // Another token of the same identity is the client's own.
    let exp = now_unix_s() + 600;
    let later = hs256(SECRET, &json!({"ext": identifiers(7), "exp": exp}));
    client.query = format!("?jid={later}");
    assert_eq!(server.publish(&json!({"topic": "news", "data": "1"})).status, 401);
    client.poll(&[json!({"command": "ping"})]);
    assert_eq!(client.hear()["type"], "pong");
    let metrics = server.metrics();
    assert_eq!(metrics["standfast_auth_refused_total{cause=\"poll_identity\"}"], 2.0);
    assert_eq!(metrics["standfast_long_polling_stale_total"], 5.0);
    assert_eq!(metrics["standfast_subscriptions"], 1.0);
}

#[test]
fn tokens_are_verified_with_each_request() {
    let server = serve(&["--secret", SECRET, "--enforce-jwt"]);
    let none = Poller::new(server.listen, "", "").ask("");
    assert_eq!((none.status, reason(&none)), (401, "unauthorized".to_owned()));
    let old = hs256(SECRET, &json!({"ext": identifiers(7), "exp": now_unix_s() - 600}));
    let expired = Poller::new(server.listen, &format!("?jid={old}"), "").ask("");
    assert_eq!((expired.status, reason(&expired)), (401, "token_expired".to_owned()));
    let mut client = Poller::open_with(server.listen, "", &format!("X-JID: {}\r\n", token(7)));
    client.headers = format!("X-JID: {old}\r\n");
    let expired = client.ask("");
    assert_eq!((expired.status, reason(&expired)), (401, "token_expired".to_owned()));
    assert_eq!(server.metrics()["standfast_polled"], 1.0);
}

#[test]
fn long_bodies_and_broken_commands_are_refused() {
    let flags = ["--long-polling-max-body", "2KiB", "--max-message", "1KiB"];
    let server = serve(&flags);
    let mut client = Poller::open(server.listen, "");
    let long = client.ask(&"x".repeat(2049));
    assert_eq!(long.status, 413);
    client.reconnect();
    // Small enough for a request, too long for a message.
    let told = client.ask(&format!("{{\"command\":\"ping\",\"x\":\"{}\"}}", "x".repeat(1100)));
    assert_eq!((told.status, reason(&told)), (200, "invalid_request".to_owned()));
    assert_eq!(client.ask("").status, 401);
    for broken in ["{", "[]", "null", "\u{0}", "{\"command\":\"subscribe\"}"] {
        let mut client = Poller::open(server.listen, "");
        // What follows a malformed command is not executed.
        let subscribe = json!({"command": "subscribe", "identifier": NEWS});
        let told = client.ask(&format!("{broken}\n{subscribe}\n"));
        assert_eq!((told.status, reason(&told)), (200, "invalid_request".to_owned()), "{broken}");
    }
    assert_eq!(server.metrics()["standfast_commands_malformed_total"], 6.0);
    eventually("the sessions have ended", || {
        let metrics = server.metrics();
        metrics["standfast_subscriptions"] == 0.0 && metrics["standfast_polled"] == 0.0
    });
}

/// Nothing is left of clients that poll once and never again.
#[test]
fn clients_that_never_poll_again_leave_nothing_behind() {
    let server = serve(&["--workers", "2", "--long-polling-keepalive", "300ms"]);
    let body = json!({"command": "subscribe", "identifier": NEWS}).to_string();
    for _ in 0..300 {
        assert_eq!(http::post(server.listen, "/lp", &body).status, 200);
    }
    eventually("all have ended", || {
        let metrics = server.metrics();
        metrics["standfast_long_polling_expired_total"] == 300.0
            && metrics["standfast_polled"] == 0.0
            && metrics["standfast_subscriptions"] == 0.0
            && metrics["standfast_queued_bytes"] == 0.0
            && metrics["standfast_connections"] == 0.0
    });
}

#[test]
fn sessions_and_their_messages_are_bounded_in_bytes() {
    let flags =
        ["--long-polling-bytes", "32KiB", "--long-polling-keepalive", "60s", "--workers", "2"];
    let server = serve(&flags);
    let mut clients: Vec<Poller> = Vec::new();
    let refused = loop {
        let mut client = Poller::new(server.listen, "", "");
        let response = client.ask("");
        if response.status != 200 {
            break response;
        }
        client.id = response.header("x-anycable-poll-id").unwrap().to_owned();
        clients.push(client);
        assert!(clients.len() <= 32, "a session is counted with 1 KiB");
    };
    // The last one left no room for messages of a further one.
    assert_eq!((clients.len(), refused.status), (31, 503));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let metrics = server.metrics();
    assert_eq!(metrics["standfast_refused_total{limit=\"long_polling_bytes\"}"], 1.0);
    // Open ones still work, as far as there is room.
    let mut client = clients.pop().unwrap();
    client.subscribe(NEWS);
    let text = "x".repeat(2000);
    assert_eq!(server.publish(&json!({"topic": "news", "data": text})).status, 200);
    let ended = client.ask("");
    assert_eq!(ended.status, 401);
    let again = Poller::new(server.listen, "", "").ask("");
    assert_eq!(again.status, 200);
}

#[test]
fn a_client_that_takes_too_little_ends_and_holds_nothing() {
    let server = serve(&["--send-queue", "32KiB", "--long-polling-keepalive", "60s"]);
    let mut client = Poller::open(server.listen, "");
    client.subscribe(NEWS);
    let text = "x".repeat(2000);
    for _ in 0..40 {
        assert_eq!(server.publish(&json!({"topic": "news", "data": text})).status, 200);
    }
    eventually("it has ended", || server.metrics()["standfast_polled"] == 0.0);
    let metrics = server.metrics();
    assert_eq!(metrics["standfast_closed_total{cause=\"slow_consumer\"}"], 1.0);
    assert_eq!((metrics["standfast_queued_bytes"], metrics["standfast_polled_bytes"]), (0.0, 0.0));
    assert_eq!(client.ask("").status, 401);
}

#[test]
fn with_another_policy_it_loses_the_oldest() {
    let flags = [
        "--send-queue",
        "32KiB",
        "--slow-consumer",
        "drop-oldest",
        "--long-polling-keepalive",
        "60s",
    ];
    let server = serve(&flags);
    let mut client = Poller::open(server.listen, "");
    client.subscribe(NEWS);
    let text = "x".repeat(2000);
    for n in 0..40 {
        let data = json!({"n": n, "text": text}).to_string();
        assert_eq!(server.publish(&json!({"topic": "news", "data": data})).status, 200);
    }
    eventually("all are sent", || server.metrics()["standfast_dropped_slow_total"] >= 20.0);
    let kept = messages(&client.ask(""));
    let numbers: Vec<u64> = kept.iter().map(|one| one["message"]["n"].as_u64().unwrap()).collect();
    let first = 40 - numbers.len() as u64;
    assert!(first >= 20 && numbers == (first..40).collect::<Vec<u64>>(), "{numbers:?}");
}

/// A session counts for its address like a connection.
#[test]
fn sessions_count_for_the_limit_per_address() {
    let flags = ["--max-per-address", "4", "--long-polling-keepalive", "400ms"];
    let server = serve(&flags);
    let mut clients: Vec<Poller> = (0..2).map(|_| Poller::open(server.listen, "")).collect();
    // Two connections and two sessions.
    eventually("a further connection is refused", || {
        http::post(server.listen, "/lp", "").status == 503
    });
    for client in &mut clients {
        client.poll(&[json!({"command": "ping"})]);
    }
    drop(clients);
    eventually("the address is free again", || {
        let response = http::post(server.listen, "/lp", "");
        response.status == 200
    });
    assert!(server.metrics()["standfast_refused_total{limit=\"max_per_address\"}"] >= 1.0);
}

/// Requests that hang up at any point of their life leave no request and no session behind.
#[test]
fn requests_that_break_off_leave_nothing_behind() {
    use std::io::Write;
    use std::net::TcpStream;
    let server = serve(&["--workers", "2", "--long-polling-keepalive", "200ms"]);
    let opened = http::post(server.listen, "/lp", "");
    let id = opened.header("x-anycable-poll-id").unwrap();
    let body = json!({"command": "subscribe", "identifier": NEWS}).to_string();
    let request = format!(
        "POST /lp HTTP/1.1\r\nHost: x\r\nX-Anycable-Poll-ID: {id}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let opens = request.replace(&format!("X-Anycable-Poll-ID: {id}\r\n"), "");
    for whole in [&request, &opens] {
        for cut in (1..=whole.len()).step_by(7).chain([whole.len()]) {
            let mut stream = TcpStream::connect(server.listen).unwrap();
            stream.write_all(&whole.as_bytes()[..cut]).unwrap();
        }
    }
    eventually("nothing is left", || {
        let metrics = server.metrics();
        metrics["standfast_connections"] == 0.0
            && metrics["standfast_subscriptions"] == 0.0
            && metrics["standfast_body_bytes"] == 0.0
    });
    assert_eq!(server.metrics()["standfast_invariant_broken_total"], 0.0);
}
