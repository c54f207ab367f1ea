//! Broadcast adapters: publications by a channel of Redis, a stream of Redis and a subject of NATS, with brokers that
//! are killed, stopped, emptied and started again.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::brokers::{Broker, NatsClient, RedisClient, Reply};
use crate::harness::cable::Cable;
use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, identifiers, token};
use crate::harness::socket::{Socket, TEXT};
use crate::harness::tls::Authority;

/// A server with one adapter.
fn serve(adapter: &str, url: &str, more: &[&str]) -> Server {
    let broker = if adapter == "nats" { "--nats-servers" } else { "--redis-url" };
    Server::start(&[&["--broadcast-adapter", adapter, broker, url], more].concat())
}

/// The status and the text of `/ready`.
fn readiness(server: &Server) -> (u16, String) {
    let answer = server.admin_get("/ready");
    (answer.status, answer.body)
}

fn until_ready(server: &Server) {
    eventually("the server is ready", || readiness(server).0 == 200);
}

/// Waits until the server is not ready for a reason that contains this.
fn until_down(server: &Server, reason: &str) {
    let mut last = String::new();
    for _ in 0..6_000 {
        let (status, text) = readiness(server);
        if status == 503 && text.contains(reason) {
            return;
        }
        last = format!("{status} {text}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("expected 503 for {reason:?}: {last}");
}

/// The metric of the only adapter of this name.
fn metric(server: &Server, name: &str) -> f64 {
    let start = format!("standfast_{name}{{");
    let all = server.metrics();
    let mut of_adapters = all.iter().filter(|(sample, _)| sample.starts_with(&start));
    let (_, value) = of_adapters.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(of_adapters.next().is_none(), "one adapter");
    *value
}

fn publication(stream: &str, data: &str) -> String {
    json!({"stream": stream, "data": data}).to_string()
}

fn hears(socket: &mut Socket, expected: &[&str]) {
    for text in expected {
        let frame = socket.frame().expect("the socket stays open");
        assert_eq!(
            (frame.first, String::from_utf8(frame.payload).unwrap()),
            (TEXT, (*text).into())
        );
    }
}

/// Both kinds of adapters that keep nothing behave alike.
fn takes_publications_and_commands(adapter: &str, url: &str, mut publish: impl FnMut(&str)) {
    let more = ["--public", "--max-message", "1KiB"];
    let broker = if adapter == "nats" { "--nats-servers" } else { "--redis-url" };
    let flags = [&["--broadcast-adapter", &format!("http,{adapter}"), broker, url], &more[..]];
    let secret = [("STANDFAST_SERVE_SECRET", SECRET)];
    let server = Server::start_with(&flags.concat(), &secret);
    until_ready(&server);
    let mut socket = Socket::open(server.listen, "/topics/news");
    let mut session = Cable::join(server.listen, Some(&token(1))).welcomed();
    publish(&publication("news", "1"));
    let many: Vec<Value> =
        (2..100).map(|n| json!({"stream": "news", "data": n.to_string()})).collect();
    publish(&json!(many).to_string());
    // What cannot be understood is counted and changes nothing.
    for wrong in ["{", "", "7", r#"{"stream":"news"}"#, &publication("news", &"x".repeat(1025))] {
        publish(wrong);
    }
    publish(&publication("news", "100"));
    let all: Vec<String> = (1..=100).map(|n| n.to_string()).collect();
    hears(&mut socket, &all.iter().map(String::as_str).collect::<Vec<_>>());
    let target = json!({"identifier": identifiers(1), "reconnect": false});
    publish(&json!({"command": "disconnect", "payload": target}).to_string());
    assert_eq!(session.disconnect_reason(), ("remote".to_owned(), false));
    let published = format!("standfast_published_total{{source=\"{adapter}\"}}");
    assert_eq!(server.metrics()[&published], 100.0);
    let counts = ["messages_total", "invalid_total", "dropped_total", "opened_total", "open"];
    let count = |name: &str| metric(&server, &format!("broadcast_adapter_{name}"));
    // A command is counted after it was carried out.
    eventually("all messages are counted", || count("messages_total") == 9.0);
    assert_eq!(counts.map(count), [9.0, 5.0, 0.0, 1.0, 1.0]);
    eventually("it is logged", || server.log().contains("invalid message"));
    let log = server.log();
    assert_eq!(log.matches("invalid message").count(), 1, "once in a while: {log}");
    assert_eq!(log.matches("adapter open").count(), 1, "{log}");
}

/// The broker is killed and started again: sockets stay, and what is published then arrives.
fn outlives_its_broker(adapter: &str, broker: &mut Broker, publish: impl Fn(&Broker, &str)) {
    let server = serve(adapter, &broker.url(""), &[]);
    until_ready(&server);
    let mut socket = Socket::open(server.listen, "/topics/news");
    for number in 0..3 {
        let data = number.to_string();
        publish(broker, &publication("news", &data));
        hears(&mut socket, &[&data]);
        broker.kill();
        until_down(&server, "is down");
        broker.restart();
        until_ready(&server);
    }
    // One that is alive and does not answer.
    broker.signal(Signal::STOP);
    until_down(&server, "is down");
    broker.signal(Signal::CONT);
    until_ready(&server);
    publish(broker, &publication("news", "last"));
    hears(&mut socket, &["last"]);
    assert!(
        metric(&server, "broadcast_adapter_opened_total") >= 5.0
            && metric(&server, "broadcast_adapter_open") == 1.0
    );
    eventually("each is logged", || server.log().matches("adapter open again").count() == 4);
}

#[test]
fn a_channel_of_redis_takes_publications_and_commands() {
    let Some(redis) = Broker::redis(&[]) else { return };
    let mut client = RedisClient::connect(&redis);
    takes_publications_and_commands("redis", &redis.url(""), |body| {
        assert_eq!(client.number(&["PUBLISH", "__anycable__", body]), 1, "one server listens");
    });
}

#[test]
fn a_subject_of_nats_takes_publications_and_commands() {
    let Some(nats) = Broker::nats(&["--user", "app", "--pass", "p@ss"]) else { return };
    let mut client = NatsClient::connect(&nats, "app", "p@ss");
    let url = nats.url("app:p%40ss@");
    takes_publications_and_commands("nats", &url, |body| client.publish("__anycable__", body));
}

#[test]
fn a_channel_of_redis_outlives_its_broker() {
    let Some(mut redis) = Broker::redis(&[]) else { return };
    outlives_its_broker("redis", &mut redis, |redis, body| {
        RedisClient::connect(redis).number(&["PUBLISH", "__anycable__", body]);
    });
}

#[test]
fn a_subject_of_nats_outlives_its_broker() {
    let Some(mut nats) = Broker::nats(&[]) else { return };
    outlives_its_broker("nats", &mut nats, |nats, body| {
        NatsClient::connect(nats, "", "").publish("__anycable__", body);
    });
}

#[test]
fn credentials_and_absent_brokers_are_reported_without_secrets() {
    let Some(redis) = Broker::redis(&["--requirepass", "right"]) else { return };
    let Some(nats) = Broker::nats(&["--user", "app", "--pass", "right"]) else { return };
    let wrong = [
        ("redis", redis.url(":hush-hush@"), "WRONGPASS"),
        ("redisx", redis.url(""), "NOAUTH"),
        ("nats", nats.url("app:hush-hush@"), "authorization violation"),
        ("redis", "redis://u:hush-hush@127.0.0.1:1".to_owned(), "Connection refused"),
        ("nats", "nats://u:hush-hush@127.0.0.1:1".to_owned(), "Connection refused"),
    ];
    for (adapter, url, reason) in wrong {
        let server = serve(adapter, &url, &[]);
        until_down(&server, reason);
        assert_eq!(metric(&server, "broadcast_adapter_open"), 0.0);
        eventually("it tries again", || metric(&server, "broadcast_adapter_failed_total") >= 3.0);
        eventually("it is logged", || server.log().contains("adapter down"));
        let log = server.log();
        assert_eq!(log.matches("adapter down").count(), 1, "once: {log}");
        let stats = server.admin_get("/api/stats").body;
        assert!(!format!("{log}{stats}{}", readiness(&server).1).contains("hush"), "{log}");
    }
    // With the right ones.
    let server = serve("redis,redisx", &redis.url(":right@"), &[]);
    until_ready(&server);
}

/// What is in the stream and what of it is not acknowledged.
fn backlog(client: &mut RedisClient) -> (i64, i64) {
    let length = client.number(&["XLEN", "__anycable__"]);
    match client.ask(&["XPENDING", "__anycable__", "bx"]) {
        Reply::Many(parts) => match parts.first() {
            Some(Reply::Number(pending)) => (length, *pending),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn add(client: &mut RedisClient, body: &str) {
    let added = client.ask(&["XADD", "__anycable__", "*", "payload", body]);
    assert!(matches!(added, Reply::Text(_)), "{added:?}");
}

#[test]
fn a_stream_of_redis_loses_nothing_while_no_server_reads_it() {
    let Some(redis) = Broker::redis(&[]) else { return };
    let mut client = RedisClient::connect(&redis);
    for number in 0..200 {
        add(&mut client, &publication("news", &number.to_string()));
    }
    // Nobody has subscribed yet when they are read, so the history keeps them.
    let server = serve("redisx", &redis.url(""), &["--history", "memory", "--history-limit", "1k"]);
    until_ready(&server);
    eventually("all are acknowledged and deleted", || backlog(&mut client) == (0, 0));
    let history = server.admin_get("/api/history/news").json();
    assert_eq!(history["last"].as_u64(), Some(200), "{history}");
    let mut socket = Socket::open(server.listen, "/topics/news");
    // Entries that nobody understands do not come again and again.
    add(&mut client, "{");
    client.ask(&["XADD", "__anycable__", "*", "other", "field"]);
    add(&mut client, &publication("news", "after"));
    hears(&mut socket, &["after"]);
    eventually("they are deleted", || backlog(&mut client) == (0, 0));
    assert_eq!(metric(&server, "broadcast_adapter_invalid_total"), 2.0);
    // The server forgets everything, the group among it.
    client.ask(&["FLUSHALL"]);
    add(&mut client, &publication("news", "again"));
    hears(&mut socket, &["again"]);
    // Its consumer leaves with it.
    let mut server = server;
    server.signal(Signal::TERM);
    server.wait();
    assert_eq!(client.ask(&["XINFO", "CONSUMERS", "__anycable__", "bx"]), Reply::Many(Vec::new()));
}

#[test]
fn a_stream_of_redis_takes_over_from_consumers_that_have_ended() {
    let Some(redis) = Broker::redis(&[]) else { return };
    let mut client = RedisClient::connect(&redis);
    client.ask(&["XGROUP", "CREATE", "__anycable__", "bx", "0", "MKSTREAM"]);
    for number in 0..100 {
        add(&mut client, &publication("news", &number.to_string()));
    }
    let read = ["XREADGROUP", "GROUP", "bx", "ended", "COUNT", "100", "STREAMS", "__anycable__"];
    let taken = client.ask(&[&read[..], &[">"]].concat());
    assert!(matches!(taken, Reply::Many(_)), "{taken:?}");
    assert_eq!(backlog(&mut client), (100, 100), "of a consumer that never acknowledges");
    let server = serve("redisx", &redis.url(""), &[]);
    let mut socket = Socket::open(server.listen, "/topics/news");
    let all: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    hears(&mut socket, &all.iter().map(String::as_str).collect::<Vec<_>>());
    eventually("all are acknowledged", || backlog(&mut client) == (0, 0));
    assert_eq!(metric(&server, "broadcast_adapter_claimed_total"), 100.0);
}

#[test]
fn a_stream_of_redis_outlives_its_broker_and_keeps_what_it_has() {
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut redis) = Broker::redis(&durable) else { return };
    let server = serve("redisx", &redis.url(""), &[]);
    until_ready(&server);
    let mut socket = Socket::open(server.listen, "/topics/news");
    for number in 0..3 {
        add(&mut RedisClient::connect(&redis), &publication("news", &number.to_string()));
        hears(&mut socket, &[&number.to_string()]);
        redis.kill();
        until_down(&server, "is down");
        redis.restart();
        eventually("it has loaded its file", || {
            RedisClient::connect(&redis).ask(&["PING"]) == Reply::Text("PONG".to_owned())
        });
        // Before the adapter is open again.
        add(&mut RedisClient::connect(&redis), &publication("news", "meanwhile"));
        hears(&mut socket, &["meanwhile"]);
        until_ready(&server);
    }
    let mut client = RedisClient::connect(&redis);
    eventually("all are acknowledged", || backlog(&mut client) == (0, 0));
}

/// Publications to a topic that is overloaded wait, in order, and are acknowledged when they are accepted.
#[test]
fn a_stream_of_redis_waits_for_an_overloaded_topic() {
    let (identifiers, publications) = (1_000_usize, 100_usize);
    let Some(redis) = Broker::redis(&[]) else { return };
    let flags = ["--workers", "1", "--max-subscription-bytes", "16MiB", "--send-queue", "256MiB"];
    let server = serve("redisx", &redis.url(""), &flags);
    until_ready(&server);
    let mut cable = Cable::join(server.listen, None).welcomed();
    for number in 0..identifiers {
        let wanted = json!({"channel": "$pubsub", "stream_name": "large", "n": number});
        assert_eq!(cable.subscribe(&wanted), "confirm_subscription");
    }
    let mut client = RedisClient::connect(&redis);
    let numbers = (0..publications).map(|n| json!({"stream": "large", "data": n.to_string()}));
    add(&mut client, &json!(numbers.collect::<Vec<_>>()).to_string());
    let mut small = Socket::open(server.listen, "/topics/small");
    add(&mut client, &publication("small", "not delayed"));
    hears(&mut small, &["not delayed"]);
    let mut next = vec![0; identifiers];
    for _ in 0..identifiers * publications {
        let message = cable.hear();
        let identifier = message["identifier"].as_str().expect("a message of a subscription");
        let identifier: Value = serde_json::from_str(identifier).expect("it is the client's");
        let number = identifier["n"].as_u64().expect("its number") as usize;
        assert_eq!(message["message"].as_u64(), Some(next[number] as u64), "in order: {message}");
        next[number] += 1;
    }
    eventually("all are acknowledged", || backlog(&mut client) == (0, 0));
    assert!(metric(&server, "broadcast_adapter_waited_total") >= 1.0, "it was overloaded");
    assert_eq!(metric(&server, "broadcast_adapter_dropped_total"), 0.0);
    assert_eq!(metric(&server, "broadcast_adapter_claimed_total"), 0.0, "nothing came twice");
}

#[test]
fn brokers_without_a_url_are_named_by_the_environment_of_others() {
    let Some(redis) = Broker::redis(&[]) else { return };
    let url = redis.url("");
    for env in [
        &[("ANYCABLE_REDIS_URL", url.as_str()), ("ANYCABLE_REDIS_CHANNEL", "mine")][..],
        &[
            ("REDIS_URL", &url),
            ("STANDFAST_SERVE_BROADCAST_ADAPTER", "redis"),
            ("STANDFAST_SERVE_REDIS_CHANNEL", "mine"),
        ],
    ] {
        let server = Server::start_with(&[], env);
        until_ready(&server);
        let mut socket = Socket::open(server.listen, "/topics/news");
        let body = publication("news", "x");
        let listeners = RedisClient::connect(&redis).number(&["PUBLISH", "mine", &body]);
        assert_eq!(listeners, 1);
        hears(&mut socket, &["x"]);
    }
}

#[test]
fn adapters_over_tls_trust_only_the_ca_that_they_are_given() {
    let (files, other) = (Authority::new(), Authority::new());
    files.sign("broker", &["localhost"]);
    let [ca, cert, key] = ["ca.pem", "broker.pem", "broker.key"].map(|file| files.path(file));
    let tls = ["--port", "0", "--tls-port", "PORT", "--tls-auth-clients", "no"];
    let own = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let Some(redis) = Broker::redis(&[&tls[..], &own].concat()) else { return };
    let Some(nats) = Broker::nats(&["--tls", "--tlscert", &cert, "--tlskey", &key]) else { return };
    let brokers = [
        ("redis", format!("rediss://localhost:{}", redis.address.port()), "--redis-ca"),
        ("redisx", format!("rediss://localhost:{}", redis.address.port()), "--redis-ca"),
        ("nats", format!("tls://localhost:{}", nats.address.port()), "--nats-ca"),
    ];
    for (adapter, url, flag) in &brokers {
        let server = serve(adapter, url, &[*flag, &ca]);
        until_ready(&server);
        // Another CA, which did not sign it.
        let server = serve(adapter, url, &[*flag, &other.path("ca.pem")]);
        until_down(&server, "is down");
        eventually("it tries again", || metric(&server, "broadcast_adapter_failed_total") >= 3.0);
        assert_eq!(metric(&server, "broadcast_adapter_opened_total"), 0.0);
    }
}
