//! Publishing in AnyCable's format: `POST /_broadcast` on the admin listener, its key, its status codes;
//! and `/api/disconnect`.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::cable::Cable;
use crate::harness::http::{self, Response};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, identifiers, token};
use crate::harness::socket::{Frame, Socket, TEXT};
use crate::harness::{Scratch, eventually};

/// The key of `/_broadcast`, derived from the secret `s3Krit` with Python's `hmac`.
const KEY: &str = "a239a7ca182c90fc32bdedf73703d271388cf433843affffd3a5e757041fc716";
/// The key of `/api/`, likewise.
const API_KEY: &str = "1db397202b5bd68b12665b638515c3aeac9100f721fd7c4fcb6f29c69f32c886";

fn post(server: &Server, path: &str, key: &str, body: &str) -> Response {
    let length = body.len();
    let key = match key {
        "" => String::new(),
        key => format!("Authorization: Bearer {key}\r\n"),
    };
    http::ask(
        server.admin,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{key}\
             Content-Length: {length}\r\n\r\n{body}",
            server.admin
        ),
    )
}

fn broadcast(server: &Server, body: &Value) -> Response {
    post(server, "/_broadcast", "", &body.to_string())
}

fn texts(socket: &mut Socket, count: usize) -> Vec<String> {
    let text = |frame: Frame| {
        assert_eq!(frame.first, TEXT);
        String::from_utf8(frame.payload).unwrap()
    };
    (0..count).map(|_| text(socket.frame().expect("the socket stays open"))).collect()
}

#[test]
fn publications_arrive_in_order_one_or_many() {
    let server = Server::start(&[]);
    let mut a = Socket::open(server.listen, "/topics/a");
    let mut b = Socket::open(server.listen, "/topics/b");
    let one = broadcast(&server, &json!({"stream": "a", "data": "{\"n\":0}"}));
    assert_eq!((one.status, one.json()["published"].as_u64()), (201, Some(1)));
    let many: Vec<Value> = (1..100)
        .map(|n| {
            let stream = if n % 10 == 0 { "b" } else { "a" };
            json!({"stream": stream, "data": format!("{n}"), "meta": {"transient": true}})
        })
        .collect();
    assert_eq!(broadcast(&server, &json!(many)).status, 201);
    let numbers = |of: fn(&usize) -> bool| (1..100).filter(of).map(|n| n.to_string());
    let expected: Vec<String> =
        ["{\"n\":0}".to_owned()].into_iter().chain(numbers(|n| n % 10 != 0)).collect();
    assert_eq!(texts(&mut a, expected.len()), expected);
    assert_eq!(texts(&mut b, 9), numbers(|n| n % 10 == 0).collect::<Vec<_>>());
    assert_eq!(server.metrics()["standfast_published_total{source=\"broadcast\"}"], 100.0);
}

/// A client of `/cable` with this token, if any, subscribed to a stream; and its session id.
fn listener(server: &Server, token: Option<&str>, stream: &str) -> (Cable, String) {
    let mut client = Cable::join(server.listen, token);
    let sid = client.welcome();
    let wanted = json!({"channel": "$pubsub", "stream_name": stream});
    assert_eq!(client.subscribe(&wanted), "confirm_subscription");
    (client, sid)
}

#[test]
fn data_is_json_or_else_a_string() {
    let server = Server::start(&[]);
    let (mut client, _) = listener(&server, None, "news");
    for (data, message) in [
        ("{\"n\":1}", json!({"n": 1})),
        ("\"text\"", json!("text")),
        ("plain text", json!("plain text")),
        ("{broken", json!("{broken")),
        ("", json!("")),
    ] {
        assert_eq!(broadcast(&server, &json!({"stream": "news", "data": data})).status, 201);
        assert_eq!(client.hear()["message"], message, "{data}");
    }
}

#[test]
fn a_session_can_be_excluded() {
    let server = Server::start(&["--workers", "2"]);
    let mut clients: Vec<(Cable, String)> =
        (0..4).map(|_| listener(&server, None, "news")).collect();
    let publish = |data: &str, sid: &str| {
        let meta = json!({"exclude_socket": sid});
        let body = json!({"stream": "news", "data": data, "meta": meta});
        assert_eq!(broadcast(&server, &body).status, 201);
    };
    let sids: Vec<String> = clients.iter().map(|(_, sid)| sid.clone()).collect();
    for (at, sid) in sids.iter().enumerate() {
        publish(&at.to_string(), sid);
    }
    // An unknown session excludes nobody.
    publish("9", "0123456789abcdef0123456789abcdef");
    for (at, (client, _)) in clients.iter_mut().enumerate() {
        let heard: Vec<u64> = (0..4).map(|_| client.hear()["message"].as_u64().unwrap()).collect();
        let others = (0..4).filter(|other| *other != at).map(|other| other as u64);
        assert_eq!(heard, others.chain([9]).collect::<Vec<_>>());
    }
}

/// As in Action Cable; AnyCable ends the first session that it finds.
#[test]
fn disconnect_ends_all_sessions_with_the_identifiers_and_no_others() {
    let server = Server::start_with(
        &["--workers", "2", "--public", "--broadcast-key", "none"],
        &[("STANDFAST_SERVE_SECRET", SECRET)],
    );
    let of = |user| listener(&server, Some(&token(user)), "news").0;
    for (path, reconnect) in [("/_broadcast", false), ("/api/disconnect", true)] {
        let mut theirs: Vec<Cable> = (0..5).map(|_| of(1)).collect();
        let (mut other, mut nobody) = (of(2), listener(&server, None, "news").0);
        let target = json!({"identifier": identifiers(1), "reconnect": reconnect});
        let (body, status, key) = match path {
            "/_broadcast" => (json!({"command": "disconnect", "payload": target}), 201, ""),
            _ => (target, 200, API_KEY),
        };
        let answer = post(&server, path, key, &body.to_string());
        assert_eq!(answer.status, status, "{answer:?}");
        for client in &mut theirs {
            assert_eq!(client.disconnect_reason(), ("remote".to_owned(), reconnect));
            assert_eq!(client.socket.close_code(), 1000);
        }
        assert_eq!(broadcast(&server, &json!({"stream": "news", "data": "1"})).status, 201);
        assert_eq!(
            (other.hear()["message"].as_u64(), nobody.hear()["message"].as_u64()),
            (Some(1), Some(1))
        );
    }
    assert_eq!(server.metrics()["standfast_disconnected_total"], 10.0);
}

#[test]
fn disconnect_ends_streams_of_events_and_plain_sockets() {
    let server = Server::start_with(
        &[
            "--enforce-jwt",
            "--public",
            "--public-streams",
            "--ping-interval",
            "1h",
            "--broadcast-key",
            "none",
        ],
        &[("STANDFAST_SERVE_SECRET", SECRET)],
    );
    let stream_of = |user| {
        let mut events = Socket::connect(server.listen);
        let target = format!("/events?topic=news&jid={}", token(user));
        events.send(format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes());
        events.text_until(":\n\n");
        events
    };
    let (mut events, mut other) = (stream_of(1), stream_of(2));
    let mut topic = Socket::open(server.listen, &format!("/topics/news?jid={}", token(1)));
    let list = http::get(server.admin, "/api/connections?protocol=events").json();
    let listed = list["connections"].as_array().unwrap().iter();
    let listed = listed.filter(|entry| entry["identity"] == identifiers(1));
    assert_eq!(listed.count(), 1, "{list}");
    let target = json!({"identifier": identifiers(1), "reconnect": false});
    assert_eq!(post(&server, "/api/disconnect", API_KEY, &target.to_string()).status, 200);
    while events.take(&mut Vec::new()) {}
    assert_eq!(topic.close_code(), 1000);
    assert_eq!(server.metrics()["standfast_disconnected_total"], 2.0);
    assert_eq!(broadcast(&server, &json!({"stream": "news", "data": "1"})).status, 201);
    other.text_until("data: 1\n\n");
}

/// More of them than one turn of a worker ends.
#[test]
fn disconnect_ends_any_number_of_sessions() {
    let server = Server::start_with(
        &["--workers", "1", "--public", "--broadcast-key", "none"],
        &[("STANDFAST_SERVE_SECRET", SECRET)],
    );
    let of = |user| listener(&server, Some(&token(user)), "news").0;
    let mut theirs: Vec<Cable> = (0..600).map(|_| of(1)).collect();
    let mut other = of(2);
    let target = json!({"identifier": identifiers(1), "reconnect": true}).to_string();
    // Requests that overlap end each session once.
    for _ in 0..3 {
        assert_eq!(post(&server, "/api/disconnect", API_KEY, &target).status, 200);
    }
    for client in &mut theirs {
        assert_eq!(client.disconnect_reason(), ("remote".to_owned(), true));
        assert_eq!(client.socket.close_code(), 1000);
    }
    assert_eq!(server.metrics()["standfast_disconnected_total"], 600.0);
    assert_eq!(broadcast(&server, &json!({"stream": "news", "data": "1"})).status, 201);
    assert_eq!(other.hear()["message"].as_u64(), Some(1));
}

#[test]
fn nothing_of_a_malformed_batch_is_published() {
    let server = Server::start(&["--max-message", "1KiB"]);
    let mut a = Socket::open(server.listen, "/topics/a");
    let broken = [
        (json!([{"stream": "a", "data": "x"}, {"stream": "a"}]), 422),
        (json!([{"stream": "a", "data": "x"}, {"stream": "a", "data": "x".repeat(1025)}]), 413),
        (json!({"command": "dance"}), 422),
        (json!({"stream": "a", "data": "x", "meta": {"broadcast_type": "x".repeat(65)}}), 422),
    ];
    for (body, status) in broken {
        let answer = broadcast(&server, &body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.json()["message"].is_string(), "{answer:?}");
    }
    assert_eq!(post(&server, "/_broadcast", "", "{").status, 422, "AnyCable says 201");
    assert_eq!(http::get(server.admin, "/_broadcast").status, 405);
    assert_eq!(broadcast(&server, &json!({"stream": "a", "data": "last"})).status, 201);
    assert_eq!(texts(&mut a, 1), ["last"], "and nothing before it");
}

#[test]
fn with_a_secret_publishing_needs_its_key() {
    let server = Server::start_with(&[], &[("ANYCABLE_SECRET", "s3Krit")]);
    let body = r#"{"stream":"a","data":"x"}"#;
    for (key, status) in [("", 401), ("wrong", 401), (API_KEY, 401), (KEY, 201)] {
        assert_eq!(post(&server, "/_broadcast", key, body).status, status, "{key}");
    }
    let identifier = json!({"identifier": identifiers(1)}).to_string();
    let ours = [("/api/publish", r#"{"topic":"a","data":"x"}"#), ("/api/disconnect", &identifier)];
    for (path, body) in ours {
        for (key, status) in [("", 401), ("wrong", 401), (KEY, 401), (API_KEY, 200)] {
            assert_eq!(post(&server, path, key, body).status, status, "{path} {key}");
        }
    }
    // The rest of the listener needs no key: it is on loopback and has no admin key.
    assert_eq!(http::get(server.admin, "/api/stats").status, 200);
    // Without a secret there is no key to ask for.
    let without = Server::start_with(&[], &[("ANYCABLE_BROADCAST_KEY", "publisher")]);
    assert_eq!(without.publish(&json!({"topic": "a", "data": "x"})).status, 200);
}

#[test]
fn the_admin_key_is_accepted_everywhere_and_an_application_key_at_its_endpoint() {
    let secret = ("STANDFAST_SERVE_SECRET", "s3Krit");
    let server = Server::start_with(&["--admin-key", "operator"], &[secret]);
    let accepts = |path: &str, key: &str, body: &str| post(&server, path, key, body).status != 401;
    let (theirs, ours) = (r#"{"stream":"a","data":"x"}"#, r#"{"topic":"a","data":"x"}"#);
    for key in [KEY, "operator"] {
        assert!(accepts("/_broadcast", key, theirs), "{key}");
    }
    for key in [API_KEY, "operator"] {
        assert!(
            accepts("/api/publish", key, ours) && accepts("/api/disconnect", key, "{}"),
            "{key}"
        );
    }
    for key in [KEY, ""] {
        assert!(
            !accepts("/api/publish", key, ours) && !accepts("/api/disconnect", key, "{}"),
            "{key}"
        );
    }
    assert!(!accepts("/_broadcast", API_KEY, theirs));
    let stats = |key: &str| {
        let head = format!("GET /api/stats HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n");
        http::ask(server.admin, &format!("{head}Connection: close\r\n\r\n")).status
    };
    assert_eq!((stats(API_KEY), stats(KEY), stats("operator")), (401, 401, 200));
}

#[test]
fn the_broadcast_key_can_be_set_or_turned_off() {
    let secret = ("ANYCABLE_SECRET", "s3Krit");
    let body = r#"{"stream":"a","data":"x"}"#;
    let own = Server::start_with(&[], &[secret, ("ANYCABLE_BROADCAST_KEY", "publisher")]);
    assert_eq!(post(&own, "/_broadcast", KEY, body).status, 401);
    assert_eq!(post(&own, "/_broadcast", "publisher", body).status, 201);
    let none = Server::start_with(&[], &[secret, ("ANYCABLE_BROADCAST_KEY", "none")]);
    assert_eq!(post(&none, "/_broadcast", "", body).status, 201);
}

#[test]
fn a_reload_reads_secret_files_again() {
    let file = Scratch::new("reloaded.secret", "first\n");
    let server = Server::start(&["--broadcast-key", &format!("file:{}", file.path())]);
    let status = |key: &str| post(&server, "/_broadcast", key, "[]").status;
    assert_eq!((status("first"), status("second")), (201, 401));
    file.write("second\n");
    server.signal(Signal::HUP);
    eventually("the new key is accepted", || status("second") == 201);
    assert_eq!(status("first"), 401);
}

#[test]
fn without_a_key_pages_of_other_sites_cannot_publish() {
    let server = Server::start(&[]);
    let request = "POST /_broadcast HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n\
                   Connection: close\r\nContent-Length: 2\r\n\r\n[]";
    assert_eq!(http::ask(server.admin, request).status, 403);
}

/// As in AnyCable's server; plain topics have no type.
#[test]
fn a_broadcast_can_have_a_type() {
    let server = Server::start(&["--public-streams"]);
    let mut plain = Socket::open(server.listen, "/topics/a");
    let mut cable = Cable::join(server.listen, None).welcomed();
    let identifier = json!({"channel": "$pubsub", "stream_name": "a"});
    assert_eq!(cable.subscribe(&identifier), "confirm_subscription");
    let typed = json!({"stream": "a", "data": "{\"n\":1}", "meta": {"broadcast_type": "presence"}});
    assert_eq!(broadcast(&server, &typed).status, 201);
    let expected =
        json!({"type": "presence", "identifier": identifier.to_string(), "message": {"n": 1}});
    assert_eq!(cable.hear(), expected);
    assert_eq!(texts(&mut plain, 1), ["{\"n\":1}"]);
}

/// Sends requests to the client listener on one connection.
fn ask_in_turn(server: &Server, requests: &[String]) -> Vec<Response> {
    let mut stream = std::net::TcpStream::connect(server.listen).unwrap();
    stream.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    let mut pending = Vec::new();
    let mut ask = |request: &String| {
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        http::read_response(&mut stream, &mut pending)
    };
    requests.iter().map(&mut ask).collect()
}

fn head(server: &Server, key: &str, more: &str) -> String {
    let host = server.listen;
    format!(
        "POST /_broadcast HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n{more}\r\n\r\n"
    )
}

#[test]
fn with_a_key_broadcasts_are_accepted_on_the_client_listener() {
    let server = Server::start(&["--public", "--secret", SECRET, "--listen-broadcast"]);
    let mut a = Socket::open(server.listen, "/topics/a");
    let body = |n: u32| json!({"stream": "a", "data": n.to_string()}).to_string();
    let counted = |n| {
        let body = body(n);
        head(&server, KEY, &format!("Content-Length: {}", body.len())) + &body
    };
    let (one, rest) = (body(2), "0\r\n\r\n");
    let chunked = head(&server, KEY, "Transfer-Encoding: chunked");
    let (first, second) = one.split_at(7);
    let chunked = format!("{chunked}7\r\n{first}\r\n{:x}\r\n{second}\r\n{rest}", second.len());
    let broken = head(&server, KEY, "Content-Length: 1") + "{";
    let answers = ask_in_turn(&server, &[counted(1), chunked, broken, counted(3)]);
    let codes: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(codes, [201, 201, 422, 201], "all on one connection: {answers:?}");
    assert_eq!(answers[1].json()["published"], 1);
    assert_eq!(texts(&mut a, 3), ["1", "2", "3"]);
    assert_eq!(server.metrics()["standfast_published_total{source=\"broadcast\"}"], 3.0);
}

#[test]
fn without_the_key_no_body_is_read_on_the_client_listener() {
    let server = Server::start(&["--broadcast-key", "right", "--listen-broadcast"]);
    // The response does not wait for the announced body.
    for key in ["wrong", ""] {
        let answers = ask_in_turn(&server, &[head(&server, key, "Content-Length: 500")]);
        assert_eq!(answers[0].status, 401, "{answers:?}");
        assert_eq!(answers[0].header("connection"), Some("close"));
    }
    let long = head(&server, "right", "Content-Length: 1048577");
    assert_eq!(ask_in_turn(&server, &[long])[0].status, 413);
    let get = format!(
        "GET /_broadcast HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer right\r\n\r\n",
        server.listen
    );
    assert_eq!(ask_in_turn(&server, &[get])[0].status, 405);
    let metrics = server.metrics();
    assert_eq!(metrics["standfast_broadcast_refused_total"], 2.0);
    assert_eq!(metrics["standfast_bodies_in_total"], 0.0);
    // Without --listen-broadcast the path does not exist.
    let other = Server::start(&["--broadcast-key", "right"]);
    let body = head(&other, "right", "Content-Length: 0");
    assert_eq!(ask_in_turn(&other, &[body])[0].status, 404);
}

/// Slow publishers with the key hold memory for a limited time.
#[test]
fn incomplete_bodies_time_out_on_the_client_listener() {
    let flags = ["--broadcast-key", "k", "--listen-broadcast", "--handshake-timeout", "1s"];
    let server = Server::start(&flags);
    let incomplete = head(&server, "k", "Content-Length: 1000") + "{";
    assert_eq!(ask_in_turn(&server, &[incomplete])[0].status, 408);
    let metrics = server.metrics();
    let (late, held) = (metrics["standfast_bodies_late_total"], metrics["standfast_body_bytes"]);
    assert_eq!((late, held), (1.0, 0.0));
}
