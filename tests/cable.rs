//! `/cable`, frame by frame: commands of Action Cable clients and the messages to them. The real
//! clients are in `peers.rs`.

use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::server::Server;
use crate::harness::socket::{BINARY, CLOSE, Socket, TEXT, upgrade};
use crate::harness::{Scratch, eventually, executable, http};

const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;
/// The same channel, another text.
const NEWS_TOO: &str = r#"{"stream_name":"news","channel":"$pubsub"}"#;

/// A client after its welcome.
struct Client {
    socket: Socket,
    sid: String,
}

impl Client {
    fn connect(server: &Server) -> Self {
        Self::with(server, "/cable", "actioncable-v1-json")
    }

    fn with(server: &Server, path: &str, protocol: &str) -> Self {
        let mut socket = handshake(server, path, protocol, Some(protocol));
        let welcome = next(&mut socket).expect("a welcome");
        assert_eq!(welcome["type"], "welcome");
        let sid = welcome["sid"].as_str().expect("a session id").to_owned();
        Self { socket, sid }
    }

    fn send(&mut self, command: &Value) {
        self.socket.send_frame(TEXT, command.to_string().as_bytes());
    }

    fn command(&mut self, command: &str, identifier: &str) {
        self.send(&json!({"command": command, "identifier": identifier}));
    }

    fn subscribe(&mut self, identifier: &str) {
        self.command("subscribe", identifier);
        let confirmed = json!({"type": "confirm_subscription", "identifier": identifier});
        assert_eq!(self.receive(), confirmed);
    }

    /// The next message other than a ping.
    fn receive(&mut self) -> Value {
        next(&mut self.socket).expect("a message before the end")
    }
}

fn handshake(server: &Server, path: &str, offered: &str, agreed: Option<&str>) -> Socket {
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade(path, &[("Sec-WebSocket-Protocol", offered)]).as_bytes());
    let response = socket.response();
    assert_eq!((response.status, response.header("sec-websocket-protocol")), (101, agreed));
    socket
}

/// The next message other than a ping; `None` at a close frame.
fn next(socket: &mut Socket) -> Option<Value> {
    loop {
        let frame = socket.frame().expect("a frame before the end");
        if frame.first == CLOSE {
            return None;
        }
        assert_eq!(frame.first, TEXT);
        let message: Value = serde_json::from_slice(&frame.payload).expect("JSON");
        if message["type"] != "ping" {
            return Some(message);
        }
    }
}

fn publish(server: &Server, data: &str) {
    assert_eq!(server.publish(&json!({"topic": "news", "data": data})).status, 200);
}

fn data(identifier: &str, message: impl Into<Value>) -> Value {
    json!({"identifier": identifier, "message": message.into()})
}

#[test]
fn a_subscription_is_confirmed_and_receives_publications() {
    let server = Server::start(&[]);
    let (mut one, mut two) = (Client::connect(&server), Client::connect(&server));
    one.subscribe(NEWS);
    two.subscribe(NEWS_TOO);
    publish(&server, r#"{"text":"hello"}"#);
    publish(&server, "not JSON");
    let plain = json!({"topic": "news", "data_base64": "AP8="});
    assert_eq!(server.publish(&plain).status, 200);
    for (client, identifier) in [(&mut one, NEWS), (&mut two, NEWS_TOO)] {
        assert_eq!(client.receive(), data(identifier, json!({"text": "hello"})));
        assert_eq!(client.receive(), data(identifier, "not JSON"));
        assert_eq!(client.receive(), data(identifier, "AP8="));
    }
    assert_ne!(one.sid, two.sid);
}

/// One namespace: a message of a plain subscriber reaches clients of Action Cable and of events.
#[test]
fn a_topic_is_shared_by_all_protocols() {
    let server = Server::start(&[]);
    let mut plain = Socket::open(server.listen, "/topics/news");
    let mut cable = Client::connect(&server);
    cable.subscribe(NEWS);
    let mut events = Socket::connect(server.listen);
    events.send(b"GET /events?topic=news HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    eventually("all have subscribed", || server.metrics()["standfast_subscriptions"] == 3.0);
    plain.send_frame(TEXT, b"7");
    assert_eq!(cable.receive(), data(NEWS, 7));
    assert_eq!(plain.frame().map(|frame| frame.payload), Some(b"7".to_vec()));
    let response = events.text_until("data: 7\n\n");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(
        response.to_ascii_lowercase().contains("content-type: text/event-stream\r\n"),
        "{response}"
    );
}

#[test]
fn a_second_subscribe_is_confirmed_and_delivers_once() {
    let server = Server::start(&[]);
    let mut client = Client::connect(&server);
    client.subscribe(NEWS);
    client.subscribe(NEWS);
    publish(&server, "1");
    publish(&server, "2");
    assert_eq!((client.receive(), client.receive()), (data(NEWS, 1), data(NEWS, 2)));
    assert_eq!(server.metrics()["standfast_subscriptions"], 1.0);
}

/// In one read or in many.
#[test]
fn commands_of_one_connection_are_executed_in_order() {
    let server = Server::start(&[]);
    let mut client = Client::connect(&server);
    for _ in 0..50 {
        client.command("subscribe", NEWS);
        client.command("unsubscribe", NEWS);
    }
    client.command("unsubscribe", NEWS_TOO);
    client.command("subscribe", NEWS_TOO);
    for identifier in std::iter::repeat_n(NEWS, 50).chain([NEWS_TOO]) {
        assert_eq!(client.receive()["identifier"], identifier);
    }
    publish(&server, "1");
    assert_eq!(client.receive(), data(NEWS_TOO, 1));
    client.command("unsubscribe", NEWS_TOO);
    eventually("no topic is left", || server.metrics()["standfast_topics"] == 0.0);
}

#[test]
fn unauthorized_subscriptions_are_rejected_and_counted() {
    let server = Server::start(&["--max-subscriptions", "2"]);
    let mut client = Client::connect(&server);
    let long = json!({"channel": "$pubsub", "stream_name": "x", "more": "x".repeat(4096)});
    for (identifier, cause) in [
        (r#"{"channel":"ChatChannel"}"#, "channel"),
        (r#"{"channel":"$pubsub","stream_name":""}"#, "stream_name"),
        (r#"{"channel":"Turbo::StreamsChannel","signed_stream_name":"x"}"#, "stream_off"),
        ("no JSON", "identifier"),
        (&long.to_string(), "identifier"),
    ] {
        client.command("subscribe", identifier);
        let rejected = json!({"type": "reject_subscription", "identifier": identifier});
        assert_eq!(client.receive(), rejected);
        let counted = format!("standfast_auth_refused_total{{cause=\"{cause}\"}}");
        assert!(server.metrics()[&counted] > 0.0, "{identifier}");
    }
    client.subscribe(NEWS);
    client.subscribe(NEWS_TOO);
    let third = r#"{"channel":"$pubsub","stream_name":"third"}"#;
    client.command("subscribe", third);
    assert_eq!(client.receive()["type"], "reject_subscription");
    client.command("unsubscribe", NEWS);
    client.subscribe(third);
}

/// The `number`th identifier of a client for the stream `news`, padded to some length.
fn padded(client: usize, number: usize, length: usize) -> String {
    let pad = format!("{client}-{number}-{}", "x".repeat(length));
    json!({"channel": "$pubsub", "stream_name": "news", "pad": pad}).to_string()
}

/// Subscribes by identifiers of its own until one is rejected or it has `most`.
fn subscribe_all(client: &mut Client, number: usize, most: usize, length: usize) -> usize {
    for count in 0..most {
        client.command("subscribe", &padded(number, count, length));
        if client.receive()["type"] == "reject_subscription" {
            return count;
        }
    }
    most
}

#[test]
fn subscriptions_of_a_client_are_limited_in_bytes() {
    let server = Server::start(&[]);
    let counted = || server.metrics()["standfast_subscription_bytes"] as usize;
    let mut client = Client::connect(&server);
    let confirmed = subscribe_all(&mut client, 0, 1_000, 3_500);
    assert!((5..15).contains(&confirmed), "{confirmed} of 3.5 KB each, twice and more, in 64 KiB");
    let refused = "standfast_auth_refused_total{cause=\"subscription_bytes\"}";
    assert_eq!(server.metrics()[refused], 1.0);
    assert!((32 << 10..=64 << 10).contains(&counted()), "{}", counted());
    // What it has works, and one that it gives up makes room.
    publish(&server, "1");
    (0..confirmed).for_each(|_| assert_eq!(client.receive()["message"], 1));
    client.command("subscribe", &padded(0, 0, 3_500));
    assert_eq!(client.receive()["type"], "confirm_subscription", "it is subscribed already");
    client.command("unsubscribe", &padded(0, 0, 3_500));
    client.subscribe(&padded(0, 7_777, 3_500));
    // Another client has a limit of its own, though it uses the same identifiers.
    let mut second = Client::connect(&server);
    assert_eq!(subscribe_all(&mut second, 0, 1_000, 3_500), confirmed);
    drop((client, second));
    eventually("nothing is counted any more", || {
        let metrics = server.metrics();
        counted() == 0 && metrics["standfast_subscriptions"] + metrics["standfast_topics"] == 0.0
    });
}

#[test]
fn short_subscriptions_are_limited_in_bytes_as_well() {
    let server = Server::start(&["--max-subscription-bytes", "16KiB"]);
    let mut client = Client::connect(&server);
    let confirmed = subscribe_all(&mut client, 0, 1_000, 0);
    assert!((10..25).contains(&confirmed), "{confirmed}");
}

/// However few clients have left, and however many stay.
#[test]
fn memory_of_subscriptions_is_returned_when_their_clients_leave() {
    let server = Server::start(&["--max-subscription-bytes", "16MiB", "--workers", "1"]);
    let mut staying: Vec<Client> = (0..20).map(|_| Client::connect(&server)).collect();
    staying.iter_mut().for_each(|client| client.subscribe(NEWS));
    let before = server.rss_bytes();
    let mut leaving: Vec<Client> = (0..4).map(|_| Client::connect(&server)).collect();
    for (number, client) in leaving.iter_mut().enumerate() {
        assert_eq!(subscribe_all(client, number, 500, 3_500), 500);
    }
    let held = server.rss_bytes() - before;
    assert!(held > 12 << 20, "{held}");
    drop(leaving);
    eventually("memory is returned", || server.rss_bytes() < before + held / 5);
    publish(&server, "1");
    staying.iter_mut().for_each(|client| assert_eq!(client.receive(), data(NEWS, 1)));
}

#[test]
fn over_the_memory_limit_clients_with_the_most_subscriptions_are_shed() {
    let config = Scratch::new("subscriptions.toml", "[serve]\nmemory_limit = '4GiB'\n");
    let more = ["--config", config.path(), "--max-subscription-bytes", "16MiB"];
    let server = Server::start(&[&more[..], &["--workers", "1"]].concat());
    let mut few: Vec<Client> = (0..50).map(|_| Client::connect(&server)).collect();
    few.iter_mut().for_each(|client| client.subscribe(NEWS));
    let before = server.rss_bytes();
    let mut many: Vec<Client> = (0..4).map(|_| Client::connect(&server)).collect();
    for (number, client) in many.iter_mut().enumerate() {
        assert_eq!(subscribe_all(client, number, 500, 3_500), 500);
    }
    let held = server.rss_bytes() - before;
    assert!(held > 12 << 20 && server.rss_bytes() > 16 << 20, "{held}");
    let limit = server.rss_bytes() - held / 2;
    config.write(&format!("[serve]\nmemory_limit = '{}KiB'\n", limit >> 10));
    server.signal(Signal::HUP);
    eventually("one with many is shed, and memory is below the limit", || {
        // Their pongs and commands make no difference.
        many.iter_mut().for_each(|client| client.send(&json!({"command": "pong"})));
        server.closed("shed") > 0 && server.rss_bytes() < limit
    });
    assert!(server.closed("shed") <= 4, "{}", server.closed("shed"));
    publish(&server, "1");
    few.iter_mut().for_each(|client| assert_eq!(client.receive(), data(NEWS, 1)));
}

/// A client with a few subscriptions holds little, but many such clients hold much.
#[test]
fn over_the_memory_limit_clients_with_few_unique_subscriptions_are_shed() {
    // The limit is at least 16 MiB.
    const CLIENTS: usize = 2_000;
    let config = Scratch::new("few-subscriptions.toml", "[serve]\nmemory_limit = '4GiB'\n");
    let server = Server::start(&["--config", config.path(), "--workers", "1"]);
    let mut one: Vec<Client> = (0..50).map(|_| Client::connect(&server)).collect();
    one.iter_mut().for_each(|client| client.subscribe(NEWS));
    let mut few: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&server)).collect();
    let before = server.rss_bytes();
    for (number, client) in few.iter_mut().enumerate() {
        assert_eq!(subscribe_all(client, number, 4, 0), 4);
    }
    let held = server.rss_bytes() - before;
    assert!(held > CLIENTS as u64 * 2_000, "{held}");
    let limit = server.rss_bytes() - held / 4;
    config.write(&format!("[serve]\nmemory_limit = '{}KiB'\n", limit >> 10));
    server.signal(Signal::HUP);
    eventually("some with few are shed", || {
        few.iter_mut().for_each(|client| client.send(&json!({"command": "pong"})));
        server.metrics()["standfast_shed_total"] > 0.0
    });
    publish(&server, "1");
    one.iter_mut().for_each(|client| assert_eq!(client.receive(), data(NEWS, 1)));
}

#[test]
fn a_whisper_is_not_sent_to_its_sender() {
    let server = Server::start(&[]);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&server)).collect();
    clients.iter_mut().for_each(|client| client.subscribe(NEWS));
    let whisper = json!({"command": "whisper", "identifier": NEWS, "data": {"typing": [1, 2]}});
    clients[0].send(&whisper);
    publish(&server, "1");
    assert_eq!(clients[0].receive(), data(NEWS, 1));
    for client in &mut clients[1..] {
        let received = [client.receive(), client.receive()];
        assert!(received.contains(&data(NEWS, json!({"typing": [1, 2]}))), "{received:?}");
    }
    // A client that is not subscribed cannot whisper.
    let mut stranger = Client::connect(&server);
    stranger.send(&whisper);
    eventually("it is counted", || server.metrics()["standfast_commands_ignored_total"] == 1.0);
}

#[test]
fn history_and_presence_commands_are_refused() {
    let server = Server::start(&[]);
    let mut client = Client::with(&server, "/cable", "actioncable-v1-ext-json");
    let since = json!({"since": 1_700_000_000});
    client.send(&json!({"command": "subscribe", "identifier": NEWS, "history": since}));
    assert_eq!(client.receive()["type"], "confirm_subscription");
    assert_eq!(client.receive(), json!({"type": "reject_history", "identifier": NEWS}));
    client.send(&json!({"command": "history", "identifier": NEWS, "history": since}));
    assert_eq!(client.receive()["type"], "reject_history");
    client.send(&json!({"command": "presence", "identifier": NEWS}));
    assert_eq!(client.receive()["message"], json!({"type": "error"}));
    client.send(&json!({"command": "ping"}));
    assert_eq!(client.receive(), json!({"type": "pong"}));
}

#[test]
fn the_first_supported_subprotocol_is_selected() {
    let server = Server::start(&[]);
    let (v1, ext) = ("actioncable-v1-json", "actioncable-v1-ext-json");
    for (offered, agreed) in [
        (format!("{v1}, actioncable-unsupported"), Some(v1)),
        (format!("{ext}, {v1}"), Some(ext)),
        (format!("actioncable-v1-msgpack, {v1}"), Some("actioncable-v1-msgpack")),
        (format!("{ext}, actioncable-v1-ext-protobuf"), Some(ext)),
        (format!("actioncable-v1-cbor, {v1}"), Some(v1)),
        (format!("{v1}, anycable-token.x.y.z"), Some(v1)),
        ("actioncable-unsupported".to_owned(), None),
    ] {
        handshake(&server, "/cable", &offered, agreed);
    }
    let mut plain = Socket::open(server.listen, "/cable");
    assert_eq!(next(&mut plain).expect("a welcome")["type"], "welcome");
}

#[test]
fn malformed_messages_end_the_session_with_a_reason() {
    let server = Server::start(&[]);
    let what: [(u8, &[u8]); 4] =
        [(TEXT, b"{"), (TEXT, b"[]"), (TEXT, br#"{"command":"subscribe"}"#), (BINARY, b"{}")];
    for (count, (first, payload)) in what.into_iter().enumerate() {
        let mut client = Client::connect(&server);
        client.socket.send_frame(first, payload);
        let expected =
            json!({"type": "disconnect", "reason": "invalid_request", "reconnect": false});
        assert_eq!(client.receive(), expected);
        assert_eq!(client.socket.close_code(), 1008);
        let malformed = server.metrics()["standfast_commands_malformed_total"];
        assert_eq!(malformed, (count + 1) as f64);
    }
    // An unknown command is ignored.
    let mut client = Client::connect(&server);
    client.send(&json!({"command": "dance", "identifier": NEWS}));
    client.subscribe(NEWS);
}

#[test]
fn pings_start_at_open_and_have_the_time() {
    let server = Server::start(&["--ping-interval", "50ms"]);
    let mut client = Client::connect(&server);
    let mut pings = 0;
    while pings < 5 {
        let frame = client.socket.frame().expect("a ping");
        let ping: Value = serde_json::from_slice(&frame.payload).expect("JSON");
        assert_eq!(ping["type"], "ping");
        assert!(ping["message"].as_u64().expect("a time") > 1_700_000_000);
        pings += 1;
    }
}

/// A slow reader gets each ping between two messages, long before its queue is empty.
#[test]
fn a_ping_is_sent_ahead_of_queued_data() {
    let flags = ["--ping-interval", "100ms", "--send-queue", "64MiB", "--max-message", "1MiB"];
    let server = Server::start(&flags);
    let mut client = Client::connect(&server);
    client.subscribe(NEWS);
    let big = json!({"topic": "news", "data": "x".repeat(1_000_000)});
    for _ in 0..20 {
        assert_eq!(server.publish(&big).status, 200);
    }
    eventually("its queue is long", || server.metrics()["standfast_queued_bytes"] > 10_000_000.0);
    let before = Instant::now();
    // One ping per interval is queued, in front.
    eventually("two intervals pass", || before.elapsed().as_millis() > 250);
    let mut messages = 0;
    loop {
        let frame = client.socket.frame().expect("a frame");
        if frame.payload.starts_with(br#"{"type":"ping""#) {
            break;
        }
        messages += 1;
    }
    assert!(messages < 15, "the ping came after {messages} of 20 messages");
}

#[test]
fn a_silent_session_ends_after_the_pong_timeout() {
    let flags = ["--ping-interval", "50ms", "--pong-timeout", "300ms"];
    let server = Server::start(&flags);
    let mut silent = Client::with(&server, "/cable", "actioncable-v1-ext-json");
    let mut basic = Client::connect(&server);
    let mut live = Client::with(&server, "/cable", "actioncable-v1-ext-json");
    let mut ended = false;
    while !ended {
        let frame = live.socket.frame().expect("it stays connected");
        assert_ne!(frame.first, CLOSE, "a client that answers stays connected");
        live.send(&json!({"command": "pong"}));
        ended = server.metrics()["standfast_no_pong_total"] >= 1.0;
    }
    let expected = json!({"type": "disconnect", "reason": "no_pong", "reconnect": true});
    assert_eq!(silent.receive(), expected);
    assert_eq!(silent.socket.close_code(), 1000);
    basic.subscribe(NEWS);
    assert_eq!(server.metrics()["standfast_no_pong_total"], 1.0);
}

#[test]
fn a_long_idle_timeout_does_not_blur_the_pong_timeout() {
    const PINGS: usize = 25;
    for idle in ["1000s", "off"] {
        let flags = ["--ping-interval", "200ms", "--pong-timeout", "1s", "--idle-timeout", idle];
        let server = Server::start(&flags);
        let mut live = Client::with(&server, "/cable", "actioncable-v1-ext-json");
        let mut answered = Instant::now();
        for _ in 0..PINGS {
            let frame = live.socket.frame().expect("it stays connected");
            let text = String::from_utf8_lossy(&frame.payload);
            assert!(text.starts_with(r#"{"type":"ping""#), "{idle}: {text}");
            answered = Instant::now();
            live.send(&json!({"command": "pong"}));
        }
        let expected = json!({"type": "disconnect", "reason": "no_pong", "reconnect": true});
        while live.receive() != expected {}
        let silent = answered.elapsed();
        assert!(silent >= Duration::from_secs(1), "{idle}: {silent:?}");
    }
}

#[test]
fn a_reload_sets_a_pong_timeout_that_is_measured_as_precisely() {
    let base = "[serve]\nping_interval = \"200ms\"\nidle_timeout = \"2h\"\n";
    let config = Scratch::new("pong.toml", base);
    let server = Server::start(&["--config", config.path(), "--workers", "1"]);
    config.write(&format!("{base}pong_timeout = \"1s\"\n"));
    server.signal(Signal::HUP);
    eventually("the reload is logged", || server.log().contains("configuration reloaded"));
    let mut silent = Client::with(&server, "/cable", "actioncable-v1-ext-json");
    let expected = json!({"type": "disconnect", "reason": "no_pong", "reconnect": true});
    let begun = Instant::now();
    while silent.receive() != expected {}
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
}

#[test]
fn a_reload_ends_no_client_that_was_not_pinged_within_the_new_pong_timeout() {
    let config = Scratch::new("pong-grace.toml", "[serve]\nping_interval = \"1h\"\n");
    let server = Server::start(&["--config", config.path(), "--workers", "1"]);
    let mut live = Client::with(&server, "/cable", "actioncable-v1-ext-json");
    // It is silent for longer than the new timeout.
    std::thread::sleep(Duration::from_secs(3));
    let reloaded = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    config.write("[serve]\nping_interval = \"200ms\"\npong_timeout = \"1s\"\n");
    server.signal(Signal::HUP);
    let mut pings = 0;
    while pings < 8 {
        let frame = live.socket.frame().expect("it stays connected");
        let ping: Value = serde_json::from_slice(&frame.payload).unwrap();
        assert_eq!(ping["type"], "ping", "{ping}");
        if ping["message"].as_u64().unwrap() < reloaded {
            // The first one, of the time of the connect.
            continue;
        }
        pings += 1;
        live.send(&json!({"command": "pong"}));
    }
    assert_eq!(server.metrics()["standfast_no_pong_total"], 0.0);
}

#[test]
fn a_pong_timeout_that_cannot_be_kept_is_refused() {
    for (flags, complaint) in [
        (["--pong-timeout", "3s", "--idle-timeout", "1h"], "more than --ping-interval 3s"),
        (["--pong-timeout", "6s", "--idle-timeout", "13h"], "at least 6.24s, or a shorter"),
    ] {
        let finished =
            executable::run(&[&["serve", "--listen", "127.0.0.1:0"], &flags[..]].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains("invalid --pong-timeout"), "{finished:?}");
        assert!(finished.stderr.contains(complaint), "{finished:?}");
    }
}

#[test]
fn a_draining_server_tells_clients_to_reconnect() {
    let mut server = Server::start(&["--drain", "200ms"]);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&server)).collect();
    server.signal(Signal::TERM);
    for client in &mut clients {
        let expected = json!({"type": "disconnect", "reason": "server_restart", "reconnect": true});
        assert_eq!(client.receive(), expected);
        assert_eq!(client.socket.close_code(), 1001);
        client.socket.send_frame(CLOSE, &1001u16.to_be_bytes());
    }
    assert!(server.wait().success());
}

#[test]
fn tokens_authenticate_clients() {
    let server = Server::start(&["--secret", "s3Krit", "--enforce-jwt"]);
    let first = |path: &str, protocols: &str| {
        let mut socket = handshake(&server, path, protocols, Some("actioncable-v1-json"));
        let message = next(&mut socket).expect("a message");
        (message["type"].clone(), message["reason"].clone())
    };
    let v1 = "actioncable-v1-json";
    assert_eq!(first("/cable", v1), (json!("disconnect"), json!("unauthorized")));
    assert_eq!(first("/cable?jid=x.y.z", v1), (json!("disconnect"), json!("unauthorized")));
    let good = token(&json!({"ext": r#"{"user":1}"#}));
    assert_eq!(first(&format!("/cable?jid={good}"), v1), (json!("welcome"), Value::Null));
    let protocols = format!("{v1}, anycable-token.{good}");
    assert_eq!(first("/cable", &protocols), (json!("welcome"), Value::Null));
    let old = token(&json!({"ext": "{}", "exp": 1_000_000_000}));
    let expired = (json!("disconnect"), json!("token_expired"));
    assert_eq!(first(&format!("/cable?jid={old}"), v1), expired);
}

#[test]
fn signed_stream_names_are_verified() {
    let server = Server::start(&["--turbo-secret", "s3Krit"]);
    let mut client = Client::connect(&server);
    // "chat:2021", signed with s3Krit as Rails does.
    let signed =
        "ImNoYXQ6MjAyMSI=--f9ee45dbccb1da04d8ceb99cc820207804370ba0d06b46fc3b8b373af1315628";
    let turbo = |name: &str| {
        json!({"channel": "Turbo::StreamsChannel", "signed_stream_name": name}).to_string()
    };
    client.subscribe(&turbo(signed));
    let message = json!({"topic": "chat:2021", "data": "\"<turbo-stream></turbo-stream>\""});
    assert_eq!(server.publish(&message).status, 200);
    let received = client.receive();
    assert_eq!(received, data(&turbo(signed), "<turbo-stream></turbo-stream>"));
    client.command("subscribe", &turbo(&signed.replace("f9ee", "f9ef")));
    assert_eq!(client.receive()["type"], "reject_subscription");
    // With a secret unsigned names are refused.
    client.command("subscribe", NEWS);
    assert_eq!(client.receive()["type"], "reject_subscription");
    assert_eq!(http::get(server.listen, "/events?topic=news").status, 403);
}

/// A token for the secret `s3Krit`.
fn token(claims: &Value) -> String {
    let key = jsonwebtoken::EncodingKey::from_secret(b"s3Krit");
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), claims, &key).expect("it can be signed")
}
