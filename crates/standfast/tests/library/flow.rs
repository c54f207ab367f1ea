//! Sending, backpressure, limits and the ends of sockets.

use std::time::Duration;

use standfast::{CloseCode, Compression, Gone, Limits, RouteOptions, Sent, Server, SlowConsumer};

use crate::client::{Client, Noted, id_of, next};

#[test]
fn data_is_kept_for_each_socket_and_given_back_at_its_end() {
    let (handler, notes) = Noted::new(|socket, data, _| {
        socket.send(&data.count.to_string());
    });
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).start().unwrap();
    let (mut one, mut two) =
        (Client::open(server.address(), "/"), Client::open(server.address(), "/"));
    for expected in ["1", "2", "3"] {
        one.send("x");
        assert_eq!(one.text(), expected);
    }
    two.send("x");
    assert_eq!(two.text(), "1");
    one.close(3001, "for today");
    assert!(next(&notes).starts_with("open ") && next(&notes).starts_with("open "));
    assert_eq!(next(&notes), "close by_peer 3001 \"for today\" after 3");
    drop(two);
    assert_eq!(next(&notes), "close gone 0 \"\" after 1");
    assert_eq!(server.totals().messages_in, 4);
    drop(one);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn what_the_kernel_does_not_take_is_queued_and_drain_goes_on() {
    let (handler, notes) = Noted::new(|socket, data, _| {
        data.rest = 400;
        // Beyond the buffer of the cork, which takes what is sent during a read.
        while data.rest > 0 && socket.queued_bytes() == 0 {
            data.rest -= 1;
            socket.send(&[7; 100_000]);
        }
    });
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).start().unwrap();
    let mut client = Client::open(server.address(), "/");
    client.send("begin");
    // A client that reads at once may be as fast as the server, and nothing is queued.
    for _ in 0..10_000 {
        if server.totals().queued_bytes > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut bytes = 0;
    loop {
        match client.0.read().unwrap() {
            tungstenite::Message::Binary(data) => bytes += data.len(),
            tungstenite::Message::Text(text) => break assert_eq!(text.as_str(), "done"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes, 400 * 100_000);
    assert!(next(&notes).starts_with("open "));
    assert_eq!(next(&notes), "drain");
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_full_queue_drops_and_counts() {
    let (handler, notes) = Noted::new(|socket, data, _| {
        for _ in 0..1000 {
            data.rest += u32::from(socket.send(&[7; 100_000]) == Sent::Dropped);
        }
        assert!(data.rest > 0);
        data.rest = 0;
    });
    let limits = Limits { slow_consumer: SlowConsumer::DropOldest, ..Limits::default() };
    let limits = Limits { send_queue_bytes: 50_000, ..limits };
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).limits(limits);
    let server = server.start().unwrap();
    let mut client = Client::open(server.address(), "/");
    client.send("begin");
    assert!(next(&notes).starts_with("open "));
    // A client that reads at once may be as fast as the server, and nothing is dropped.
    for _ in 0..10_000 {
        if server.totals().dropped_slow > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut received = 0;
    while received + server.totals().dropped_slow < 1000 {
        match client.0.read().unwrap() {
            tungstenite::Message::Binary(_) => received += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received + server.totals().dropped_slow, 1000);
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_route_has_its_own_longest_message() {
    let (handler, notes) = Noted::new(|socket, _, text| {
        socket.send(&text.len().to_string());
    });
    let options = RouteOptions { message_bytes: Some(10), ..RouteOptions::default() };
    let server =
        Server::bind("127.0.0.1:0").unwrap().route_with("/short", handler.clone(), options);
    let server = server.route("/usual", handler).start().unwrap();
    let mut usual = Client::open(server.address(), "/usual");
    usual.send(&"x".repeat(64 * 1024));
    assert_eq!(usual.text(), "65536");
    let mut short = Client::open(server.address(), "/short");
    short.send("0123456789");
    assert_eq!(short.text(), "10");
    short.send("0123456789a");
    assert_eq!(short.closed(), (1009, "message too long".into()));
    drop((short, usual));
    let mut all: Vec<_> = (0..4).map(|_| next(&notes)).collect();
    all.retain(|note| !note.starts_with("open "));
    all.sort();
    assert_eq!(all[0], "close by_us 0 \"\" after 1");
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn sockets_are_closed_with_a_code_and_a_reason() {
    let (handler, notes) = Noted::new(|socket, _, text| {
        socket.send("last");
        let code = CloseCode(text.parse().unwrap());
        socket.close(code, "enough");
        assert!(!socket.is_open() && socket.send("after") == Sent::Dropped);
    });
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).start().unwrap();
    for (asked, sent) in [("1000", 1000), ("4321", 4321), ("1005", 1011), ("0", 1011)] {
        let mut client = Client::open(server.address(), "/");
        client.send(asked);
        assert_eq!(client.text(), "last");
        assert_eq!(client.closed(), (sent, "enough".into()));
        drop(client);
        assert!(next(&notes).starts_with("open "));
        assert_eq!(next(&notes), "close by_us 0 \"\" after 1");
    }
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn messages_of_a_call_leave_together() {
    let (handler, notes) = Noted::new(|socket, _, _| {
        socket.send("answer");
    });
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).start().unwrap();
    let mut client = Client::open(server.address(), "/");
    let id = id_of(&next(&notes));
    let called = server.remote().call(id, |_: &mut Noted, socket, data| {
        data.count = 7;
        socket.cork(|socket| {
            for _ in 0..3 {
                assert_eq!(socket.send("x"), Sent::Sent);
            }
            // Already collected: an inner one changes nothing.
            socket.cork(|socket| socket.send("y"));
        });
        socket.ping(b"p1");
    });
    called.unwrap();
    assert_eq!([client.text(), client.text(), client.text(), client.text()], ["x", "x", "x", "y"]);
    client.send("the client answers the ping when it reads on");
    assert_eq!(client.text(), "answer");
    assert_eq!(next(&notes), "pong p1");
    client.close(1000, "");
    assert_eq!(next(&notes), "close by_peer 1000 \"\" after 8");
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn other_threads_learn_whether_a_socket_is_there() {
    let (handler, notes) = Noted::new(|_, _, _| {});
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).start().unwrap();
    let mut client = Client::open(server.address(), "/");
    let id = id_of(&next(&notes));
    let remote = server.remote().clone();
    assert_eq!(remote.send_with_receipt(id, "hello").unwrap().wait(), Ok(Sent::Sent));
    assert_eq!(client.text(), "hello");
    remote.close(id, CloseCode::NORMAL, "bye").unwrap();
    assert_eq!(client.closed(), (1000, "bye".into()));
    drop(client);
    assert!(next(&notes).starts_with("close by_us"));
    assert_eq!(remote.send_with_receipt(id, "hello").unwrap().wait(), Err(Gone));
    let never = standfast::SocketId::from_u64(u64::MAX);
    assert_eq!(remote.send_with_receipt(never, "hello").unwrap().wait(), Err(Gone));
    server.stop(Duration::ZERO).unwrap();
    assert_eq!(remote.send_with_receipt(id, "hello").unwrap().wait(), Err(Gone));
}

#[test]
fn a_paused_socket_is_not_read_until_it_is_resumed() {
    let (handler, notes) = Noted::new(|socket, _, text| {
        socket.send(text);
        if text == "pause" {
            socket.pause();
        }
    });
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).start().unwrap();
    let mut client = Client::open(server.address(), "/");
    let id = id_of(&next(&notes));
    client.send("pause");
    client.send("after");
    assert_eq!(client.text(), "pause");
    let sent = server.remote().send_with_receipt(id, "from outside").unwrap();
    assert_eq!(sent.wait(), Ok(Sent::Sent));
    assert_eq!(client.text(), "from outside");
    server.remote().resume(id).unwrap();
    assert_eq!(client.text(), "after");
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn compression_is_negotiated_and_left_out_by_message() {
    let (handler, _notes) = Noted::new(|socket, _, text| {
        let long = "a".repeat(10_000);
        match text {
            "plain" => socket.send_uncompressed(&long),
            _ => socket.send(&long),
        };
    });
    let limits = Limits { compression: Compression::Shared, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).limits(limits);
    let server = server.start().unwrap();
    let offer = [("sec-websocket-extensions", "permessage-deflate")];
    let (mut client, response) = Client::try_open(server.address(), "/", &offer).unwrap();
    assert!(response.headers()["sec-websocket-extensions"].to_str().unwrap().contains("deflate"));
    client.send("plain");
    assert_eq!(client.text().len(), 10_000);
    assert_eq!(server.totals().deflate_in_bytes, 0);
    client.send("compressed");
    // tungstenite does not inflate, and reports the reserved bit.
    assert!(client.0.read().is_err());
    assert_eq!(server.totals().deflate_in_bytes, 10_000);
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}
