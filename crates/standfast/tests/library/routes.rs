//! What routes do differently.

use std::time::Duration;

use standfast::{Compression, Limits, RouteOptions, Sent, Server, SlowConsumer};

use crate::client::{Client, Noted, next};

fn with(change: impl FnOnce(&mut RouteOptions)) -> RouteOptions {
    let mut options = RouteOptions::default();
    change(&mut options);
    options
}

#[test]
fn routes_have_queues_of_their_own() {
    let (handler, notes) = Noted::new(|socket, data, _| {
        while data.rest < 200 && socket.send(&[7; 10_000]) != Sent::Dropped {
            data.rest += 1;
        }
        data.count = data.rest;
        data.rest = 0;
    });
    let long = with(|route| route.send_queue_bytes = Some(16 << 20));
    let short = with(|route| {
        route.send_queue_bytes = Some(20_000);
        route.slow_consumer = Some(SlowConsumer::Disconnect);
    });
    let limits = Limits { slow_consumer: SlowConsumer::DropOldest, ..Limits::default() };
    let limits = Limits { send_queue_bytes: 100_000, ..limits };
    let server = Server::bind("127.0.0.1:0").unwrap().limits(limits);
    let server = server.route_with("/long", handler.clone(), long);
    let server = server.route_with("/short", handler.clone(), short).route("/usual", handler);
    let server = server.start().unwrap();
    // More than the kernel takes of a client that does not read.
    for (path, all, ends) in
        [("/long", true, false), ("/usual", false, false), ("/short", false, true)]
    {
        let mut client = Client::open(server.address(), path);
        assert!(next(&notes).starts_with("open "));
        for _ in 0..40 {
            client.send("more");
        }
        let mut received = 0;
        let closed = loop {
            match client.0.read() {
                Ok(tungstenite::Message::Binary(_)) => received += 1,
                Ok(tungstenite::Message::Close(frame)) => break Some(frame.unwrap().code.into()),
                // The queue was sent: the handler of these tests has nothing more to send.
                Ok(tungstenite::Message::Text(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(_) => break Some(0),
            }
            let dropped = server.totals().dropped_slow;
            if !ends && received + dropped >= 40 * 200 || received == 40 * 200 {
                break None;
            }
            if !all && !ends && dropped > 0 {
                break None;
            }
        };
        assert_eq!(closed.is_some(), ends, "{path}: {closed:?} after {received}");
        assert!(received == 8_000 || !all, "{path}: {received}");
        drop(client);
        while !next(&notes).starts_with("close") {}
    }
    let remote = server.remote().clone();
    server.stop(Duration::ZERO).unwrap();
    let slow = standfast::Closed::ALL.iter().position(|cause| cause.name() == "slow_consumer");
    assert_eq!(remote.totals().closed[slow.unwrap()], 1);
}

#[test]
fn routes_have_idle_timeouts_of_their_own() {
    let (handler, notes) = Noted::new(|socket, _, text| {
        socket.send(text);
    });
    let idle = with(|route| route.idle_timeout = Some(Some(Duration::from_millis(200))));
    let never = with(|route| route.idle_timeout = Some(None));
    let limits = Limits { pings: false, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").unwrap().limits(limits);
    let server = server.route_with("/idle", handler.clone(), idle);
    let server = server.route_with("/never", handler.clone(), never).route("/usual", handler);
    let server = server.workers(1).start().unwrap();
    let mut usual = Client::open(server.address(), "/usual");
    let mut never = Client::open(server.address(), "/never");
    for _ in 0..3 {
        let mut idle = Client::open(server.address(), "/idle");
        assert_eq!(idle.closed(), (1001, "idle timeout".into()));
        drop(idle);
    }
    for client in [&mut usual, &mut never] {
        client.send("here");
        assert_eq!(client.text(), "here");
    }
    drop((usual, never));
    server.stop(Duration::ZERO).unwrap();
    let idle = notes.iter().filter(|note| note.starts_with("close idle_timeout")).count();
    assert_eq!(idle, 3);
}

#[test]
fn a_long_message_is_refused_before_it_is_received() {
    let (handler, notes) = Noted::new(|socket, _, text| {
        socket.send(&text.len().to_string());
    });
    let long = with(|route| route.message_bytes = Some(4 << 20));
    let server = Server::bind("127.0.0.1:0").unwrap().route_with("/long", handler.clone(), long);
    let server = server.route("/usual", handler).start().unwrap();
    let mut client = Client::open(server.address(), "/long");
    client.send(&"x".repeat(3 << 20));
    assert_eq!(client.text(), (3 << 20).to_string());
    let mut usual = Client::open(server.address(), "/usual");
    // The client may be refused while it sends.
    let _ = usual.0.send(tungstenite::Message::text("x".repeat(3 << 20)));
    drop(usual);
    while !next(&notes).starts_with("close violation") {}
    assert!(server.totals().violations.iter().sum::<u64>() == 1);
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn routes_negotiate_compression_of_their_own() {
    let (handler, _notes) = Noted::new(|_, _, _| {});
    let shared = with(|route| route.compression = Some(Compression::Shared));
    let takeover = with(|route| route.compression = Some(Compression::Takeover));
    let server = Server::bind("127.0.0.1:0").unwrap();
    let server = server.route_with("/shared", handler.clone(), shared);
    let server = server.route_with("/takeover", handler.clone(), takeover).route("/off", handler);
    let server = server.start().unwrap();
    let offer = [("sec-websocket-extensions", "permessage-deflate")];
    let negotiated = |path| {
        let (_client, response) = Client::try_open(server.address(), path, &offer).unwrap();
        let header = response.headers().get("sec-websocket-extensions");
        header.map(|header| header.to_str().unwrap().to_owned())
    };
    assert_eq!(negotiated("/off"), None);
    assert!(negotiated("/shared").unwrap().contains("server_no_context_takeover"));
    assert!(!negotiated("/takeover").unwrap().contains("server_no_context_takeover"));
    server.stop(Duration::ZERO).unwrap();
}
