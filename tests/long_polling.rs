//! Long polling of Action Cable (`docs/protocol/long-polling.md`): what a session does between its
//! requests, and what it does not. Hostile clients are in `long_polling_hostile.rs`.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::app::{App, chat, room};
use crate::harness::cable::Extended;
use crate::harness::eventually;
use crate::harness::http;
use crate::harness::polling::{Poller, messages};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, token};

const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;

/// A server with long polling and short times, so that tests need not wait for the default ones.
fn serve(more: &[&str]) -> Server {
    let fixed = ["--long-polling", "--long-polling-flush-interval", "20ms"];
    Server::start(&[&fixed[..], more].concat())
}

fn publish(server: &Server, topic: &str, data: &str) {
    assert_eq!(server.publish(&json!({"topic": topic, "data": data})).status, 200);
}

/// Waits until a request of a session waits for messages.
fn until_parked(server: &Server, requests: usize) {
    eventually("a request waits", || {
        let list = server.admin_get("/api/connections?limit=100").json();
        let all = list["connections"].as_array().unwrap();
        all.iter().filter(|one| one["state"] == "parked").count() == requests
    });
}

#[test]
fn it_is_off_by_default_and_takes_posts_only() {
    let off = Server::start(&[]);
    assert_eq!(http::post(off.listen, "/lp", "").status, 404);
    let on = Server::start(&["--long-polling", "--long-polling-path", "/poll"]);
    assert_eq!(http::post(on.listen, "/lp", "").status, 404);
    let get = http::get(on.listen, "/poll");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST, OPTIONS")));
    let opened = http::post(on.listen, "/poll", "");
    assert_eq!((opened.status, opened.header("content-type")), (200, Some("application/jsonl")));
    assert_eq!(opened.header("cache-control"), Some("no-store"));
    assert_eq!(messages(&opened)[0]["type"], "welcome");
}

#[test]
fn a_session_subscribes_hears_whispers_and_unsubscribes() {
    let server = serve(&["--public-streams", "--streams-whisper"]);
    let mut client = Poller::open(server.listen, "");
    let mut other = Extended::connect(server.listen, "");
    client.subscribe(NEWS);
    other.subscribe(NEWS);
    publish(&server, "news", "{\"n\":1}");
    assert_eq!(client.hear(), json!({"identifier": NEWS, "message": {"n": 1}}));
    assert_eq!(other.hear()["message"]["n"], 1);
    let whisper = json!({"command": "whisper", "identifier": NEWS, "data": {"typing": true}});
    client.poll(&[whisper.clone(), json!({"command": "ping"})]);
    assert_eq!(other.hear()["message"], json!({"typing": true}));
    // Its own whisper does not come back: the pong is next.
    assert_eq!(client.hear(), json!({"type": "pong"}));
    other.send(&whisper);
    assert_eq!(client.hear()["message"], json!({"typing": true}));
    client
        .poll(&[json!({"command": "unsubscribe", "identifier": NEWS}), json!({"command": "ping"})]);
    publish(&server, "news", "2");
    client.poll(&[json!({"command": "ping"})]);
    assert_eq!([client.hear(), client.hear()], [json!({"type": "pong"}), json!({"type": "pong"})]);
    let metrics = server.metrics();
    assert_eq!((metrics["standfast_polled"], metrics["standfast_websockets"]), (1.0, 1.0));
    assert_eq!(metrics["standfast_subscriptions"], 1.0);
}

#[test]
fn the_first_request_may_bring_commands_and_lines_may_end_in_any_way() {
    let server = serve(&[]);
    let mut client = Poller::new(server.listen, "", "");
    let subscribe = |name: &str| {
        let identifier = json!({"channel": "$pubsub", "stream_name": name}).to_string();
        json!({"command": "subscribe", "identifier": identifier}).to_string()
    };
    client.begin(&format!("\n{}\r\n\r\n{}", subscribe("a"), subscribe("b")));
    for name in ["a", "b"] {
        let confirmed = client.hear();
        assert_eq!(confirmed["type"], "confirm_subscription");
        assert!(confirmed["identifier"].as_str().unwrap().contains(&format!("\"{name}\"")));
    }
    // Line breaks within a message would end its line.
    publish(&server, "a", "{\n  \"text\": \"two\\nlines\",\r\n  \"n\": [1,\n2]\n}");
    assert_eq!(client.hear()["message"], json!({"text": "two\nlines", "n": [1, 2]}));
    publish(&server, "b", "not JSON:\ntwo lines");
    assert_eq!(client.hear()["message"], "not JSON:\ntwo lines");
}

#[test]
fn a_request_waits_for_messages_and_those_of_the_flush_interval_come_together() {
    let flags = ["--long-polling", "--long-polling-interval", "1s"];
    let server = Server::start(&flags);
    let mut client = Poller::open(server.listen, "");
    client.subscribe(NEWS);
    let begun = Instant::now();
    assert_eq!(client.poll(&[]), 0);
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
    client.send("");
    until_parked(&server, 1);
    for n in 0..5 {
        publish(&server, "news", &n.to_string());
    }
    let together = messages(&client.answer());
    assert_eq!(together.len(), 5, "{together:?}");
    // What has waited for longer is not kept back.
    publish(&server, "news", "5");
    thread::sleep(Duration::from_millis(600));
    let begun = Instant::now();
    assert_eq!(client.poll(&[]), 1);
    assert!(begun.elapsed() < Duration::from_millis(400), "{:?}", begun.elapsed());
}

/// Requests on new connections arrive at any worker; each message comes once and in order all the same.
#[test]
fn any_worker_reaches_the_session() {
    const CLIENTS: usize = 12;
    const MESSAGES: u64 = 60;
    let server = serve(&["--workers", "2"]);
    let mut clients: Vec<Poller> = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Poller::open(server.listen, "");
        client.subscribe(NEWS);
        clients.push(client);
    }
    let hears = |mut client: Poller| {
        for n in 0..MESSAGES {
            if n % 5 == 0 {
                client.reconnect();
            }
            assert_eq!(client.hear()["message"], n);
        }
    };
    thread::scope(|scope| {
        let all: Vec<_> =
            clients.into_iter().map(|client| scope.spawn(move || hears(client))).collect();
        for n in 0..MESSAGES {
            publish(&server, "news", &n.to_string());
            thread::sleep(Duration::from_millis(5));
        }
        all.into_iter().for_each(|client| client.join().unwrap());
    });
    let stats = server.admin_get("/api/stats").json();
    let requests = |worker: &Value| worker["bodies_in"].as_u64().unwrap();
    let each: Vec<u64> = stats["workers"].as_array().unwrap().iter().map(requests).collect();
    assert!(each.len() == 2 && each.iter().all(|count| *count > 0), "{each:?}");
    assert_eq!(server.metrics()["standfast_long_polling_lost_total"], 0.0);
}

#[test]
fn a_client_that_leaves_a_request_gets_its_messages_with_the_next() {
    let server = serve(&["--workers", "2"]);
    for _ in 0..8 {
        let mut client = Poller::open(server.listen, "");
        client.subscribe(NEWS);
        client.send("");
        until_parked(&server, 1);
        client.reconnect();
        until_parked(&server, 0);
        publish(&server, "news", "1");
        assert_eq!(client.hear()["message"], 1);
        client.poll(&[
            json!({"command": "unsubscribe", "identifier": NEWS}),
            json!({"command": "ping"}),
        ]);
    }
}

#[test]
fn a_further_request_replaces_the_one_that_waits() {
    let server = serve(&["--workers", "2"]);
    let mut first = Poller::open(server.listen, "");
    first.subscribe(NEWS);
    first.send("");
    until_parked(&server, 1);
    let mut second = Poller::new(server.listen, "", "");
    second.id = first.id.clone();
    second.send("");
    let replaced = first.answer();
    assert_eq!((replaced.status, &*replaced.body), (200, ""));
    publish(&server, "news", "1");
    assert_eq!(messages(&second.answer())[0]["message"], 1);
    assert_eq!(server.metrics()["standfast_long_polling_replaced_total"], 1.0);
}

/// As after a lost socket: the session is resumed with what it has missed.
#[test]
fn a_session_without_requests_ends_and_can_be_resumed() {
    let server = serve(&["--long-polling-keepalive", "300ms", "--history", "memory"]);
    let mut client = Poller::open(server.listen, "");
    client.subscribe(NEWS);
    publish(&server, "news", "1");
    let last = client.hear();
    eventually("the session is stored", || server.metrics()["standfast_sessions_stored"] == 1.0);
    publish(&server, "news", "2");
    let stale = client.ask("");
    // A client that is disconnected by a message forgets what it could resume.
    assert_eq!((stale.status, &*stale.body), (401, ""));
    let mut back = Poller::open(server.listen, &format!("?sid={}", client.sid));
    assert_eq!(
        (&back.welcome["restored"], &back.welcome["restored_ids"]),
        (&json!(true), &json!([NEWS]))
    );
    let stream = last["stream_id"].as_str().unwrap();
    let since = json!({"streams": {stream: {"epoch": last["epoch"], "offset": last["offset"]}}});
    back.poll(&[json!({"command": "history", "identifier": NEWS, "history": since})]);
    assert_eq!(back.hear()["message"], 2);
    assert_eq!(back.hear(), json!({"type": "confirm_history", "identifier": NEWS}));
    let metrics = server.metrics();
    assert_eq!(metrics["standfast_long_polling_stale_total"], 1.0);
    assert!(metrics["standfast_long_polling_expired_total"] >= 1.0);
}

#[test]
fn a_websocket_resumes_a_session_that_polled_and_the_other_way_round() {
    let server = serve(&["--long-polling-keepalive", "200ms", "--history", "memory"]);
    let stored = |count: f64| {
        eventually("stored", || server.metrics()["standfast_sessions_stored"] == count);
    };
    let mut client = Poller::open(server.listen, "");
    client.subscribe(NEWS);
    stored(1.0);
    let socket = Extended::connect(server.listen, &format!("?sid={}", client.sid));
    assert_eq!(socket.welcome["restored_ids"], json!([NEWS]));
    let sid = socket.sid.clone();
    drop(socket);
    stored(1.0);
    let back = Poller::open(server.listen, &format!("?sid={sid}"));
    assert_eq!(back.welcome["restored_ids"], json!([NEWS]));
}

/// More than one answer may hold: the rest follows with further ones.
#[test]
fn a_long_history_arrives_whole_and_in_order() {
    let server = serve(&["--history", "memory", "--send-queue", "64KiB", "--history-limit", "400"]);
    let text = "x".repeat(500);
    for n in 0..400 {
        publish(&server, "news", &json!({"n": n, "text": text}).to_string());
    }
    let mut client = Poller::open(server.listen, "");
    let epoch = server.admin_get("/api/history/news").json()["epoch"].clone();
    let history = json!({"streams": {"news": {"offset": 0, "epoch": epoch}}});
    client.poll(&[json!({"command": "subscribe", "identifier": NEWS, "history": history})]);
    assert_eq!(client.hear()["type"], "confirm_subscription");
    for n in 0..400 {
        assert_eq!(client.hear()["message"]["n"], n);
    }
    assert_eq!(client.hear()["type"], "confirm_history");
}

#[test]
fn presence_knows_clients_that_poll() {
    let server = serve(&[
        "--presence",
        "memory",
        "--presence-window",
        "20ms",
        "--long-polling-keepalive",
        "300ms",
        "--presence-ttl",
        "100ms",
    ]);
    let mut watcher = Extended::connect(server.listen, "");
    watcher.subscribe(NEWS);
    let mut client = Poller::open(server.listen, "");
    let presence = json!({"id": "p1", "info": {"name": "Paula"}});
    client.poll(&[json!({"command": "subscribe", "identifier": NEWS, "presence": presence})]);
    assert_eq!(client.hear()["type"], "confirm_subscription");
    let joined = watcher.hear();
    assert_eq!(
        (&joined["message"]["type"], &joined["message"]["id"]),
        (&json!("join"), &json!("p1"))
    );
    let mut seen = false;
    client.poll(&[json!({"command": "presence", "identifier": NEWS})]);
    while !seen {
        seen = client.hear()["message"]["type"] == "info";
    }
    // It polls no more: it leaves as one whose socket is lost.
    let left = watcher.hear();
    assert_eq!((&left["message"]["type"], &left["message"]["id"]), (&json!("leave"), &json!("p1")));
}

#[test]
fn an_application_decides_and_performs() {
    let app = App::start(chat);
    let url = app.url();
    let server = serve(&[
        "--rpc-host",
        &url,
        "--proxy-cookies",
        "user",
        "--long-polling-keepalive",
        "400ms",
    ]);
    let refused = Poller::new(server.listen, "", "").ask("");
    assert_eq!(refused.status, 401);
    assert_eq!(messages(&refused)[0]["reason"], "unauthorized");
    assert_eq!(refused.header("x-anycable-poll-id"), None);
    let mut client = Poller::new(server.listen, "?page=1", "Cookie: user=7\r\n");
    let identifier = room("lobby").to_string();
    let perform =
        json!({"command": "message", "identifier": identifier, "data": "{\"action\":\"speak\"}"});
    let commands =
        [json!({"command": "subscribe", "identifier": identifier}), perform.clone(), perform];
    let body: String = commands.iter().map(|command| format!("{command}\n")).collect();
    client.begin(&body);
    assert_eq!(client.hear()["type"], "confirm_subscription");
    for _ in 0..2 {
        assert_eq!(client.hear()["message"]["echo"], "{\"action\":\"speak\"}");
    }
    publish(&server, "room:lobby", "1");
    assert_eq!(client.hear()["message"], 1);
    eventually("the application learns of the end", || {
        app.names().iter().any(|name| name == "disconnect")
    });
    let names = app.names();
    assert_eq!(names, ["connect", "connect", "subscribe", "message", "message", "disconnect"]);
    let calls = app.calls();
    let environment = &calls[1].body["env"];
    assert!(environment["url"].as_str().unwrap().ends_with("/lp?page=1"), "{environment}");
    assert_eq!(environment["headers"]["cookie"], "user=7");
}

#[test]
fn operators_see_and_end_sessions() {
    let server = serve(&["--admin-key", "correct-horse"]);
    let mut client = Poller::open(server.listen, "");
    client.subscribe(NEWS);
    client.send("");
    until_parked(&server, 1);
    let list = server.admin_get("/api/connections?protocol=cable_ext").json();
    let entry = &list["connections"][0];
    assert_eq!((&entry["state"], &entry["topic"]), (&json!("polled"), &json!("news")));
    assert_eq!((&entry["client"], &entry["peer"]), (&json!("127.0.0.1"), &Value::Null));
    let id = entry["id"].as_str().unwrap();
    assert_eq!(server.admin_delete(&format!("/api/connections/{id}")).status, 200);
    let told = messages(&client.answer());
    assert_eq!(told, [json!({"type": "disconnect", "reason": "remote", "reconnect": true})]);
    let stale = client.ask("");
    assert_eq!((stale.status, &messages(&stale)[0]["reason"]), (401, &json!("session_expired")));
    eventually("nothing is left of it", || server.metrics()["standfast_subscriptions"] == 0.0);
}

#[test]
fn the_application_ends_sessions_by_their_identity() {
    let server = serve(&["--workers", "2", "--secret", SECRET]);
    let mut clients: Vec<Poller> =
        (0..4).map(|_| Poller::open(server.listen, &format!("?jid={}", token(7)))).collect();
    let key = crate::harness::signing::derived_key("broadcast-cable");
    let body = json!({"command": "disconnect",
        "payload": {"identifier": "{\"user_id\":7}", "reconnect": false}})
    .to_string();
    let request = format!(
        "POST /_broadcast HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(http::ask(server.admin, &request).status, 201);
    for client in &mut clients {
        // It was told with the request that waited, or is with the next one.
        let told = json!({"type": "disconnect", "reason": "remote", "reconnect": false});
        assert_eq!(client.hear(), told);
    }
    eventually("they are gone", || server.metrics()["standfast_polled"] == 0.0);
}

#[test]
fn a_drain_tells_clients_whose_request_waits() {
    let mut server = serve(&["--workers", "2", "--drain", "1s"]);
    let mut clients: Vec<Poller> = (0..4).map(|_| Poller::open(server.listen, "")).collect();
    let idle = Poller::open(server.listen, "");
    clients.iter_mut().for_each(|client| client.send(""));
    until_parked(&server, 4);
    let begun = Instant::now();
    server.signal(Signal::TERM);
    for client in &mut clients {
        let told = messages(&client.answer());
        let expected = json!({"type": "disconnect", "reason": "server_restart", "reconnect": true});
        assert_eq!(told, [expected]);
    }
    assert!(server.wait().success());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(idle);
}

#[test]
fn pages_of_admitted_origins_may_poll() {
    let server = serve(&["--allow-origin", "https://app.example"]);
    let head = |method: &str, origin: &str| {
        let request = format!(
            "{method} /lp HTTP/1.1\r\nHost: {0}\r\nOrigin: {origin}\r\nConnection: close\r\n\
             Access-Control-Request-Headers: x-anycable-poll-id\r\nContent-Length: 0\r\n\r\n",
            server.listen
        );
        http::ask(server.listen, &request)
    };
    let expected: HashMap<&str, &str> = HashMap::from([
        ("access-control-allow-origin", "https://app.example"),
        ("access-control-allow-credentials", "true"),
        ("access-control-expose-headers", "X-Anycable-Poll-ID"),
        ("vary", "Origin"),
    ]);
    for method in ["OPTIONS", "POST"] {
        let response = head(method, "https://app.example");
        assert_eq!(response.status, 200);
        for (name, value) in &expected {
            assert_eq!(response.header(name), Some(*value), "{method} {name}");
        }
        assert_eq!(head(method, "https://other.example").status, 403);
    }
    let preflight = head("OPTIONS", "https://app.example");
    assert_eq!(preflight.header("access-control-allow-headers"), Some("x-anycable-poll-id"));
    assert_eq!(preflight.header("access-control-allow-methods"), Some("POST"));
    assert_eq!(server.metrics()["standfast_origin_refused_total"], 2.0);
}
