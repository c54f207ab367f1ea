//! Webhooks: which events are posted, signed and in order, to receivers that accept them, fail, are away,
//! answer with garbage or never; and what is told at the end of the server.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::app::{Answer, App, Call, chat, room};
use crate::harness::cable::Cable;
use crate::harness::executable::run;
use crate::harness::peer::{self, Program};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, identifiers, now_unix_s, signed_at, token};
use crate::harness::socket::{Socket, TEXT};
use crate::harness::{Deserted, eventually};

const NODE: peer::Runtime = peer::Runtime { program: "node", check: &["-e", ""] };

/// A receiver that accepts everything.
fn receiver() -> App {
    App::start(accept)
}

fn accept(_: &Call) -> Answer {
    Answer::Raw(204, Vec::new())
}

/// A server that posts to this receiver, soon.
fn server(receiver: &App, more: &[&str]) -> Server {
    let url = format!("http://{}/hooks?key=1", receiver.address);
    let mut flags = vec!["--webhook-url", &url];
    for flag in ["--webhook-window", "--webhook-vacant-delay"] {
        if !more.contains(&flag) {
            flags.extend([flag, "1ms"]);
        }
    }
    flags.extend(more);
    Server::start(&flags)
}

/// The events in these calls.
fn events_in(calls: &[Call]) -> Vec<Value> {
    let events = |call: &Call| call.body["events"].as_array().expect("a batch has events").clone();
    calls.iter().flat_map(events).collect()
}

/// What a receiver has got, each event as `kind` or `kind topic`.
fn heard(receiver: &App) -> Vec<String> {
    let text = |event: &Value| {
        let kind = event["event"].as_str().expect("an event has a kind");
        let topic = event["topic"].as_str().map(|topic| format!(" {topic}")).unwrap_or_default();
        format!("{kind}{topic}")
    };
    events_in(&receiver.calls()).iter().map(text).collect()
}

fn count(server: &Server, name: &str) -> f64 {
    let all = server.metrics();
    let of = all.iter().filter(|(full, _)| full.split('{').next() == Some(name));
    of.map(|(_, value)| value).sum()
}

fn delivered(server: &Server) -> f64 {
    count(server, "standfast_webhook_delivered_total")
}

#[test]
fn events_of_plain_clients_are_posted_in_order_and_signed() {
    let receiver = receiver();
    let server = server(&receiver, &["--webhook-secret", "hush"]);
    let mut socket = Socket::open(server.listen, "/topics/news");
    eventually("it has subscribed", || heard(&receiver).len() == 3);
    socket.send_frame(TEXT, b"a message is no event");
    assert_eq!(socket.frame().unwrap().payload, b"a message is no event");
    drop(socket);
    let expected = [
        "connect",
        "occupied news",
        "subscribe news",
        "unsubscribe news",
        "disconnect",
        "vacant news",
    ];
    eventually("it has left", || heard(&receiver).len() == expected.len());
    let all = heard(&receiver);
    assert_eq!(all[..3], expected[..3]);
    let mut rest = all[3..].to_vec();
    rest.sort();
    assert_eq!(rest, ["disconnect", "unsubscribe news", "vacant news"]);

    let calls = receiver.calls();
    for call in &calls {
        assert_eq!(call.path, "/hooks?key=1");
        let header = call.header("x-standfast-signature").expect("it is signed");
        let at = signed_at("hush", header, &call.raw).expect("the signature is right");
        assert!(now_unix_s() - at < 60, "{header}");
        assert_eq!(call.header("x-standfast-batch"), call.body["id"].as_str());
        assert_eq!(call.body["dropped"], 0);
    }
    let events = events_in(&calls);
    let connect = &events[0];
    assert_eq!((&connect["protocol"], &connect["address"]), (&json!("topic"), &json!("127.0.0.1")));
    let now_ms = now_unix_s() * 1000;
    let time_ms = connect["time_ms"].as_u64().unwrap();
    assert!((now_ms - 60_000..=now_ms + 1000).contains(&time_ms), "{time_ms}");
    let ids: HashSet<&str> = events.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), events.len(), "each has its own id");
    let of_client = events.iter().filter(|event| event["sid"].is_string());
    assert!(
        of_client.clone().count() == 4 && of_client.clone().all(|e| e["sid"] == connect["sid"])
    );
    eventually("they are counted", || delivered(&server) == 6.0);
    let stats = server.admin_get("/api/stats").json();
    assert_eq!(stats["webhooks"]["events"]["connect"], 1);
    assert_eq!(stats["webhooks"]["receivers"][0]["delivered"], 6);
    assert_eq!(
        stats["webhooks"]["receivers"][0]["receiver"],
        format!("http://{}", receiver.address)
    );
}

#[test]
fn events_of_clients_of_channels_have_their_identity() {
    let receiver = receiver();
    let server = server(&receiver, &["--secret", SECRET, "--public-streams"]);
    let mut cable = Cable::join(server.listen, Some(&token(7)));
    let sid = cable.welcome();
    let stream = json!({"channel": "$pubsub", "stream_name": "chat"});
    assert_eq!(cable.subscribe(&stream), "confirm_subscription");
    let command = json!({"command": "unsubscribe", "identifier": stream.to_string()}).to_string();
    cable.socket.send_frame(TEXT, command.as_bytes());
    eventually("it has unsubscribed", || heard(&receiver).contains(&"vacant chat".to_owned()));
    assert_eq!(Cable::join(server.listen, Some("wrong")).refused(), "unauthorized");
    drop(cable);
    eventually("it has left", || heard(&receiver).contains(&"disconnect".to_owned()));
    let all = heard(&receiver);
    let of = |kind: &str| all.iter().filter(|event| event.starts_with(kind)).count();
    let counts = ["connect", "subscribe", "unsubscribe", "disconnect"].map(of);
    assert_eq!(counts, [1, 1, 1, 1], "one that is refused has not connected: {all:?}");
    for event in events_in(&receiver.calls()).iter().filter(|event| event["sid"].is_string()) {
        assert_eq!((&event["sid"], &event["identity"]), (&json!(sid), &json!(identifiers(7))));
        assert_eq!(event["protocol"], "cable");
    }
    // By the key that is derived from the secret.
    let key = "7d0a87f397749c0a353472f43f4eb6d43c3c41854830e69a53b43f80473c9c42";
    let call = &receiver.calls()[0];
    assert!(signed_at(key, call.header("x-standfast-signature").unwrap(), &call.raw).is_some());
}

/// A connection that the application decides about is reported once it is welcome, and its streams.
#[test]
fn events_of_clients_of_an_application() {
    let (app, receiver) = (App::start(chat), receiver());
    let server = server(&receiver, &["--rpc-host", &app.url()]);
    assert_eq!(Cable::connect(server.listen, "", "", ("", "")).refused(), "unauthorized");
    let mut cable = Cable::connect(server.listen, "", "", ("Cookie", "user=ann")).welcomed();
    assert_eq!(cable.subscribe(&room("a")), "confirm_subscription");
    drop(cable);
    eventually("it has left", || heard(&receiver).contains(&"vacant room:a".to_owned()));
    let mut all = heard(&receiver);
    all.sort();
    let expected = [
        "connect",
        "disconnect",
        "occupied room:a",
        "subscribe room:a",
        "unsubscribe room:a",
        "vacant room:a",
    ];
    assert_eq!(all, expected);
    let events = events_in(&receiver.calls());
    assert_eq!(events[0]["identity"], json!({"user": "ann"}).to_string());
}

#[test]
fn only_the_chosen_events_are_posted() {
    let receiver = receiver();
    let server = server(&receiver, &["--webhook-events", "connect,vacant"]);
    drop(Socket::open(server.listen, "/topics/news"));
    eventually("both are posted", || heard(&receiver).len() == 2);
    assert_eq!(heard(&receiver), ["connect", "vacant news"]);
    assert_eq!(count(&server, "standfast_webhook_events_total"), 2.0);
}

/// A page that is loaded again leaves its topics for a moment.
#[test]
fn a_topic_that_is_left_for_a_moment_is_neither_vacant_nor_occupied_again() {
    let receiver = receiver();
    let more = ["--webhook-events", "occupied,vacant", "--webhook-vacant-delay", "1h"];
    let mut server = server(&receiver, &more);
    for _ in 0..5 {
        let socket = Socket::open(server.listen, "/topics/news");
        eventually("it has subscribed", || server.metrics()["standfast_topics"] == 1.0);
        drop(socket);
        eventually("it has left", || server.metrics()["standfast_topics"] == 0.0);
    }
    let other = Socket::open(server.listen, "/topics/other");
    eventually("another is occupied", || heard(&receiver).contains(&"occupied other".to_owned()));
    assert_eq!(heard(&receiver), ["occupied news", "occupied other"]);
    drop(other);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(heard(&receiver)[2..], ["vacant news", "vacant other"], "at the end all is told");
}

#[test]
fn a_batch_that_is_not_accepted_is_posted_again_unchanged() {
    let attempts = AtomicUsize::new(0);
    let accepted = std::sync::Arc::new(Mutex::new(Vec::new()));
    let sink = std::sync::Arc::clone(&accepted);
    let receiver = App::start(move |call| match attempts.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::Raw(500, b"out of order".to_vec()),
        1 => Answer::Bytes(b"\x00garbage\r\n\r\n".to_vec()),
        2 => Answer::HangUp,
        // An answer is not read to its end.
        _ => {
            sink.lock().unwrap().push(call.clone());
            Answer::Raw(200, vec![b'x'; 10_000_000])
        }
    });
    let server = server(&receiver, &["--webhook-events", "connect"]);
    let sockets: Vec<Socket> = (0..3).map(|_| Socket::open(server.listen, "/topics/a")).collect();
    eventually("all are accepted", || delivered(&server) == 3.0);
    let calls = receiver.calls();
    for call in &calls[1..4] {
        assert_eq!(
            (&call.raw, call.header("x-standfast-batch")),
            (&calls[0].raw, calls[0].header("x-standfast-batch"))
        );
    }
    let events = events_in(&accepted.lock().unwrap());
    let ids: Vec<&str> = events.iter().map(|event| event["id"].as_str().unwrap()).collect();
    let numbers: Vec<&str> = ids.iter().map(|id| id.split_once('-').unwrap().1).collect();
    assert_eq!(numbers, ["1", "2", "3"]);
    assert_eq!(count(&server, "standfast_webhook_failed_total"), 3.0);
    let log = server.log();
    assert!(log.contains("webhook not accepted") && log.contains("out of order"), "{log}");
    eventually("the end is logged", || server.log().contains("webhooks accepted again"));
    drop(sockets);
}

/// A receiver that is away gets everything once it is back; another one does not wait for it.
#[test]
fn a_receiver_that_is_away_gets_all_events_when_it_is_back() {
    let (away, other) = (Deserted::port(), receiver());
    let url = format!("http://{}/hooks", away.address);
    let server = server(&other, &["--webhook-url", &url, "--webhook-events", "connect"]);
    let sockets: Vec<Socket> = (0..50).map(|_| Socket::open(server.listen, "/topics/a")).collect();
    eventually("the other has all", || heard(&other).len() == 50);
    eventually("it is away", || server.log().contains("webhook not accepted"));
    let address = away.address;
    drop(away);
    let back = App::start_at(address, accept);
    eventually("it has all", || heard(&back).len() == 50);
    let numbers = |app: &App| -> Vec<String> {
        let events = events_in(&app.calls());
        events.iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(numbers(&back), numbers(&other), "in order");
    assert_eq!(count(&server, "standfast_webhook_dropped_total"), 0.0);
    drop(sockets);
}

/// What a black hole does not take is dropped, counted and told, and memory stays.
#[test]
fn a_receiver_that_never_answers_holds_bounded_memory() {
    let silent = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_silent = std::sync::Arc::clone(&silent);
    let receiver = App::start(move |_| match is_silent.load(Ordering::SeqCst) {
        true => Answer::Never,
        false => Answer::Raw(200, Vec::new()),
    });
    let more =
        ["--webhook-queue-bytes", "20KiB", "--webhook-timeout", "300ms", "--webhook-batch", "10"];
    let server = server(&receiver, &more);
    for _ in 0..100 {
        drop(Socket::open(server.listen, "/topics/a"));
    }
    let dropped = || count(&server, "standfast_webhook_dropped_total");
    eventually("events are dropped", || dropped() > 100.0);
    assert!(count(&server, "standfast_webhook_waiting_bytes") <= 20.0 * 1024.0);
    eventually("all have left", || server.metrics()["standfast_connections"] == 0.0);
    eventually("that is logged", || server.log().contains("webhook events dropped"));
    silent.store(false, Ordering::SeqCst);
    eventually("the rest is accepted", || count(&server, "standfast_webhook_waiting") == 0.0);
    let all: f64 = count(&server, "standfast_webhook_events_total");
    assert_eq!(delivered(&server) + dropped(), all, "each event has one end");
    let calls = receiver.calls();
    let mut batches = HashSet::new();
    let first = |call: &&Call| batches.insert(call.body["id"].as_str().unwrap().to_owned());
    let told = calls.iter().filter(first).map(|call| call.body["dropped"].as_f64().unwrap());
    assert_eq!(told.sum::<f64>(), dropped(), "and each dropped one is told");
}

#[test]
fn events_that_are_too_old_are_dropped() {
    let away = Deserted::port();
    let url = format!("http://{}/hooks", away.address);
    let server = Server::start(&["--webhook-url", &url, "--webhook-max-age", "100ms"]);
    drop(Socket::open(server.listen, "/topics/a"));
    let dropped = || {
        let metrics = server.metrics();
        let name = format!(
            "standfast_webhook_dropped_total{{receiver=\"http://{}\",cause=\"age\"}}",
            away.address
        );
        metrics[&name]
    };
    eventually("they are dropped", || dropped() >= 5.0);
    assert_eq!(count(&server, "standfast_webhook_waiting_bytes"), 0.0);
}

#[test]
fn the_end_of_the_server_tells_of_the_end_of_its_connections() {
    let receiver = receiver();
    let mut server =
        server(&receiver, &["--webhook-window", "1h", "--webhook-events", "disconnect"]);
    let sockets: Vec<Socket> = (0..20).map(|_| Socket::open(server.listen, "/topics/a")).collect();
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(heard(&receiver).len(), 20);
    drop(sockets);
}

#[test]
fn a_receiver_that_never_answers_does_not_keep_the_server_from_ending() {
    let receiver = App::start(|_| Answer::Never);
    let mut server = server(&receiver, &["--webhook-timeout", "1h", "--webhook-events", "connect"]);
    let socket = Socket::open(server.listen, "/topics/a");
    eventually("it is posted", || receiver.calls().len() == 1);
    drop(socket);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert!(server.log().contains("1 webhook events were not delivered"), "{}", server.log());
}

#[test]
fn wrong_urls_and_events_prevent_the_start() {
    for (flags, expected) in [
        (["--webhook-url", "app.example/hooks"], "http://HOST/PATH"),
        (["--webhook-url", "http://user:password@app/"], "without user"),
        (["--webhook-events", "message"], "expected connect, disconnect"),
        (["--webhook-batch", "0"], "expected at least 1"),
    ] {
        let finished = run(&[&["serve", "--admin", "off"], &flags[..]].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(flags[0]), "{finished:?}");
        assert!(finished.stderr.contains(expected), "{finished:?}");
    }
    let many = ["http://a/"; 9].join(",");
    let finished = run(&["serve", "--admin", "off", "--webhook-url", &many]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("at most 8"), "{finished:?}");
}

/// By a program that verifies signatures as the documentation says.
#[test]
fn a_receiver_in_node() {
    let Some(program) = Program::start(&NODE, "webhooks.js", &["hush"]) else { return };
    let url = format!("http://127.0.0.1:{}/", program.first_line());
    let server = Server::start(&[
        "--webhook-url",
        &url,
        "--webhook-secret",
        "hush",
        "--webhook-vacant-delay",
        "1ms",
    ]);
    drop(Socket::open(server.listen, "/topics/news"));
    eventually("all are accepted", || delivered(&server) == 6.0);
    let batches = || {
        let lines = program.lines();
        lines
            .iter()
            .skip(1)
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .collect::<Vec<_>>()
    };
    let events =
        || batches().iter().map(|batch| batch["events"].as_array().unwrap().len()).sum::<usize>();
    eventually("it has printed them", || events() == 6);
    let wrong = Server::start(&["--webhook-url", &url, "--webhook-secret", "other"]);
    drop(Socket::open(wrong.listen, "/topics/news"));
    eventually("another signature is refused", || wrong.log().contains("status 401"));
    assert_eq!((delivered(&wrong), events()), (0.0, 6));
}
