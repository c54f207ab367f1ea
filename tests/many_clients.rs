//! The cases of Rails' Action Cable client tests with many or disconnecting clients. The rest is in
//! `cable.rs`, `broadcast.rs` and `oracle/`.
//!
//! Rails' tests perform actions of a channel. Without an application, whispers and publications replace them.

use serde_json::{Value, json};

use crate::harness::cable::Cable;
use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::socket::TEXT;

fn news() -> Value {
    json!({"channel": "$pubsub", "stream_name": "news"})
}

fn whisper(client: &mut Cable, data: usize) {
    let command = json!({"command": "whisper", "identifier": news().to_string(), "data": data});
    client.socket.send_frame(TEXT, command.to_string().as_bytes());
}

/// Each client sends a whisper to all others; each receives one from every other client, once.
fn all_receive_each_other(count: usize) {
    let server = Server::start(&["--workers", "2"]);
    let mut clients: Vec<Cable> =
        (0..count).map(|_| Cable::join(server.listen, None).welcomed()).collect();
    for client in &mut clients {
        assert_eq!(client.subscribe(&news()), "confirm_subscription");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        whisper(client, number);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let mut heard: Vec<u64> =
            (1..count).map(|_| client.hear()["message"].as_u64().expect("a number")).collect();
        heard.sort_unstable();
        let others = (0..count).filter(|other| *other != number).map(|other| other as u64);
        assert_eq!(heard, others.collect::<Vec<_>>());
    }
    assert_eq!(server.publish(&json!({"topic": "news", "data": "\"last\""})).status, 200);
    for client in &mut clients {
        assert_eq!(client.hear()["message"], "last", "nothing is delivered twice");
    }
}

#[test]
fn ten_clients_receive_each_other() {
    all_receive_each_other(10);
}

#[test]
fn hundred_clients_receive_each_other() {
    all_receive_each_other(100);
}

/// Clients that disconnect before a response, by RST and FIN, do not affect the others.
#[test]
fn disconnecting_clients_do_not_affect_others() {
    let server = Server::start(&[]);
    let mut stays = Cable::join(server.listen, None).welcomed();
    assert_eq!(stays.subscribe(&news()), "confirm_subscription");
    for number in 0..20 {
        let mut goes = Cable::join(server.listen, None);
        let command = json!({"command": "subscribe", "identifier": news().to_string()});
        goes.socket.send_frame(TEXT, command.to_string().as_bytes());
        whisper(&mut goes, number);
        if number % 2 == 0 {
            goes.socket.reset();
        }
    }
    eventually("one subscription is left", || server.metrics()["standfast_subscriptions"] == 1.0);
    assert_eq!(server.publish(&json!({"topic": "news", "data": "\"still here\""})).status, 200);
    while stays.hear()["message"] != "still here" {}
}

#[test]
fn disconnected_client_is_unsubscribed() {
    let server = Server::start(&[]);
    let mut client = Cable::join(server.listen, None).welcomed();
    for stream in ["news", "weather"] {
        let identifier = json!({"channel": "$pubsub", "stream_name": stream});
        assert_eq!(client.subscribe(&identifier), "confirm_subscription");
    }
    let metrics = server.metrics();
    assert_eq!((metrics["standfast_subscriptions"], metrics["standfast_topics"]), (2.0, 2.0));
    drop(client);
    eventually("its subscriptions are removed", || {
        let metrics = server.metrics();
        (metrics["standfast_subscriptions"], metrics["standfast_topics"]) == (0.0, 0.0)
    });
}
