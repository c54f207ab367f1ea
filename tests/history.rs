//! Missed messages, frame by frame: at `/cable` in the extended protocol, at `/events` and `/topics`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;

use serde_json::{Value, json};

use crate::harness::cable::{EXTENDED, Extended};
use crate::harness::server::Server;
use crate::harness::socket::Socket;
use crate::harness::{eventually, http};

const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;
const MEMORY: [&str; 2] = ["--history", "memory"];

fn publish(server: &Server, data: &str) -> u64 {
    let reply = server.publish(&json!({"topic": "news", "data": data}));
    assert_eq!(reply.status, 200);
    let reply: Value = serde_json::from_str(&reply.body).unwrap();
    reply["offsets"][0].as_u64().unwrap_or_default()
}

/// The epoch of a server.
fn epoch(server: &Server) -> String {
    let reply = server.publish(&json!({"topic": "other", "data": ""}));
    let reply: Value = serde_json::from_str(&reply.body).unwrap();
    reply["epoch"].as_str().unwrap().to_owned()
}

/// A request for what comes after an offset.
fn after(epoch: &str, offset: u64) -> Value {
    json!({"streams": {"news": {"epoch": epoch, "offset": offset}}})
}

/// The numbers of the messages before the next message of this type, checked against their offsets.
fn numbers_until(client: &mut Extended, end: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        let message = client.hear();
        if message["type"] == end {
            return numbers;
        }
        assert_eq!(message["message"], message["offset"], "{message}");
        numbers.push(message["offset"].as_u64().unwrap());
    }
}

#[test]
fn a_subscriber_gets_missed_messages_with_their_positions_and_then_further_ones() {
    let server = Server::start(&MEMORY);
    let epoch = epoch(&server);
    for number in 1..=3 {
        assert_eq!(publish(&server, &number.to_string()), number);
    }
    let mut client = Extended::connect(server.listen, "");
    client.subscribe_with(NEWS, &after(&epoch, 1));
    assert_eq!(client.hear(), json!({"type": "confirm_subscription", "identifier": NEWS}));
    for number in 2..=3 {
        let expected = json!({
            "identifier": NEWS, "message": number, "stream_id": "news", "epoch": epoch,
            "offset": number,
        });
        assert_eq!(client.hear(), expected);
    }
    assert_eq!(client.hear(), json!({"type": "confirm_history", "identifier": NEWS}));
    publish(&server, "4");
    assert_eq!(client.hear()["offset"], 4);
    // Clients of the base protocol get no positions.
    let mut base = crate::harness::cable::Cable::join(server.listen, None).welcomed();
    assert_eq!(base.subscribe(&serde_json::from_str(NEWS).unwrap()), "confirm_subscription");
    publish(&server, "5");
    assert_eq!(base.hear(), json!({"identifier": NEWS, "message": 5}));
    assert_eq!(client.hear()["offset"], 5);
    let metrics = server.metrics();
    assert_eq!(metrics["standfast_history_requests_total{result=\"confirmed\"}"], 1.0);
    assert_eq!(metrics["standfast_history_messages_sent_total"], 2.0);
}

#[test]
fn what_is_not_available_is_rejected_and_the_subscription_goes_on() {
    let server = Server::start(&[&MEMORY[..], &["--history-limit", "5"]].concat());
    let epoch = epoch(&server);
    for number in 1..=10 {
        publish(&server, &number.to_string());
    }
    let request = |history: &Value| {
        let mut client = Extended::connect(server.listen, "");
        client.subscribe_with(NEWS, history);
        assert_eq!(client.hear()["type"], "confirm_subscription");
        let mut offsets = Vec::new();
        loop {
            let message = client.hear();
            match message["type"].as_str() {
                None => offsets.push(message["offset"].as_u64().unwrap()),
                Some(kind) => return (kind.to_owned(), offsets),
            }
        }
    };
    let confirmed = |offsets: &[u64]| ("confirm_history".to_owned(), offsets.to_vec());
    let rejected = || ("reject_history".to_owned(), Vec::new());
    // 6 is the lowest that is kept: who has 5 gets all of them.
    assert_eq!(request(&after(&epoch, 4)), rejected());
    assert_eq!(request(&after(&epoch, 5)), confirmed(&[6, 7, 8, 9, 10]));
    assert_eq!(request(&after(&epoch, 9)), confirmed(&[10]));
    assert_eq!(request(&after(&epoch, 10)), confirmed(&[]));
    assert_eq!(request(&after(&epoch, 11)), rejected());
    assert_eq!(request(&after("00000000", 9)), rejected());
    assert_eq!(request(&after("elsewhere", 9)), rejected());
    // Before the start of the server nothing is known; in the future nothing was published.
    assert_eq!(request(&json!({"since": 1_000_000_000})), rejected());
    assert_eq!(request(&json!({"since": -5})), rejected());
    assert_eq!(request(&json!({"since": 9_000_000_000_000_i64})), confirmed(&[]));
    assert_eq!(request(&json!({})), confirmed(&[]));
    // Not subscribed.
    let mut stranger = Extended::connect(server.listen, "");
    stranger.history(NEWS, &after(&epoch, 9));
    assert_eq!(stranger.hear()["type"], "reject_history");
    // A rejected client goes on with further messages.
    let mut client = Extended::connect(server.listen, "");
    client.subscribe_with(NEWS, &after(&epoch, 1));
    assert_eq!(client.hear()["type"], "confirm_subscription");
    assert_eq!(client.hear()["type"], "reject_history");
    publish(&server, "11");
    assert_eq!(client.hear()["offset"], 11);
    let metrics = server.metrics();
    let count = |of: &str| metrics[&format!("standfast_history_{of}")];
    assert_eq!(count("requests_total{result=\"evicted\"}"), 4.0);
    assert_eq!(count("requests_total{result=\"ahead\"}"), 1.0);
    assert_eq!(count("requests_total{result=\"epoch\"}"), 2.0);
    assert_eq!((count("messages"), count("topics")), (6.0, 2.0));
    assert_eq!(count("evicted_total{cause=\"messages\"}"), 6.0);
    assert_eq!(count("published_total"), 12.0);
}

#[test]
fn whispers_and_transient_publications_are_not_kept() {
    let server = Server::start(&MEMORY);
    let (mut one, mut two) =
        (Extended::connect(server.listen, ""), Extended::connect(server.listen, ""));
    for client in [&mut one, &mut two] {
        client.subscribe(NEWS);
    }
    one.send(&json!({"command": "whisper", "identifier": NEWS, "data": "psst"}));
    assert_eq!(two.hear(), json!({"identifier": NEWS, "message": "psst"}));
    let transient = json!({"stream": "news", "data": "7", "meta": {"transient": true}});
    assert_eq!(http::post(server.admin, "/_broadcast", &transient.to_string()).status, 201);
    assert_eq!(two.hear(), json!({"identifier": NEWS, "message": 7}));
    publish(&server, "1");
    assert_eq!(two.hear()["offset"], 1);
    assert_eq!(server.metrics()["standfast_history_messages"], 1.0);
}

/// Messages of each of four publishers.
const EACH: u64 = 400;

/// Publishers in several threads and on sockets of all workers, and clients that come and go meanwhile, some
/// with the position that they had: each gets each message once, and all get them in the same order.
#[test]
fn clients_that_join_while_others_publish_get_each_message_once_and_in_one_order() {
    let flags = ["--workers", "2", "--history-limit", "10k"];
    let server = Server::start(&[&MEMORY[..], &flags].concat());
    let epoch = epoch(&server);
    let (listen, admin) = (server.listen, server.admin);
    let orders: Vec<BTreeMap<u64, String>> = thread::scope(|scope| {
        let publishers: Vec<_> = (0..4u64)
            .map(|publisher| {
                scope.spawn(move || {
                    let mut socket = Socket::open(listen, "/topics/news");
                    for number in 0..EACH {
                        let data = json!(format!("{publisher}/{number}")).to_string();
                        if publisher % 2 == 0 {
                            let body = json!({"topic": "news", "data": data}).to_string();
                            assert_eq!(http::post(admin, "/api/publish", &body).status, 200);
                        } else {
                            socket.send_frame(0x81, data.as_bytes());
                            // Its own is the last of those that it has been sent.
                            while socket.frame().expect("a publication").payload != data.as_bytes()
                            {
                            }
                        }
                    }
                })
            })
            .collect();
        let epoch = &*epoch;
        let clients: Vec<_> = (0..8u64)
            .map(|client| scope.spawn(move || come_and_go(listen, epoch, client)))
            .collect();
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let first = &orders[0];
    assert_eq!(first.keys().copied().collect::<Vec<_>>(), (1..=4 * EACH).collect::<Vec<_>>());
    assert!(orders.iter().all(|order| order == first), "all have the same order");
    for publisher in 0..4 {
        let prefix = format!("{publisher}/");
        let own = first.values().filter_map(|text| text.strip_prefix(&prefix));
        let own: Vec<u64> = own.map(|number| number.parse().unwrap()).collect();
        assert_eq!(own, (0..EACH).collect::<Vec<_>>(), "publisher {publisher}");
    }
}

/// Connects again and again, and receives what comes after the last message that it has, until it has all.
fn come_and_go(listen: SocketAddr, epoch: &str, client: u64) -> BTreeMap<u64, String> {
    let mut all: BTreeMap<u64, String> = BTreeMap::new();
    for visit in 0.. {
        let mut socket = Extended::connect(listen, "");
        let had = all.len() as u64;
        socket.subscribe_with(NEWS, &after(epoch, had));
        assert_eq!(socket.hear()["type"], "confirm_subscription");
        let most = had + 5 + (client * 31 + visit * 17) % 60;
        let mut confirmed = false;
        while !confirmed || (all.len() as u64) < most.min(4 * EACH) {
            let message = socket.hear();
            if message["type"] == "confirm_history" {
                confirmed = true;
                continue;
            }
            let offset = message["offset"].as_u64().unwrap();
            assert_eq!(offset, all.len() as u64 + 1, "client {client}: {message}");
            all.insert(offset, message["message"].as_str().unwrap().to_owned());
        }
        if all.len() as u64 == 4 * EACH {
            break;
        }
    }
    all
}

/// Reads a stream until these events came, and returns what came, without heartbeats.
fn until(stream: &mut Socket, events: &str) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).replace(":\n\n", "");
        if text.ends_with(events) {
            return text;
        }
        assert!(stream.take(&mut bytes), "it ended with {text}");
    }
}

#[test]
fn events_have_ids_and_continue_after_the_last_one() {
    let server = Server::start(&[&MEMORY[..], &["--history-limit", "3"]].concat());
    let epoch = epoch(&server);
    let stream = |query: &str, header: &str| {
        let mut socket = Socket::connect(server.listen);
        let request = format!("GET /events?topic=news{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n");
        socket.send(format!("{request}{header}\r\n").as_bytes());
        socket
    };
    let mut fresh = stream("", "");
    until(&mut fresh, &format!("id: {epoch}:0\n\n"));
    for number in 1..=2 {
        publish(&server, &number.to_string());
    }
    let events = |first: u64, last: u64| -> String {
        let event = |number| format!("id: {epoch}:{number}\ndata: {number}\n\n");
        (first..=last).map(event).collect()
    };
    until(&mut fresh, &events(1, 2));
    let last_id = |offset: u64| format!("Last-Event-ID: {epoch}:{offset}\r\n");
    let mut back = stream("", &last_id(0));
    let text = until(&mut back, &events(1, 2));
    assert!(!text.contains("reset"), "{text}");
    // Of the header and the query the header is newer: browsers keep the query when they reconnect.
    let text = until(&mut stream(&format!("&since={epoch}:0"), &last_id(1)), &events(2, 2));
    assert!(!text.contains("data: 1"), "{text}");
    until(&mut stream(&format!("&since={epoch}:1"), ""), &events(2, 2));
    for number in 3..=5 {
        publish(&server, &number.to_string());
    }
    until(&mut back, &events(3, 5));
    let reset = |reason: &str| {
        format!("id: {epoch}:5\nevent: reset\ndata: {{\"reason\":\"{reason}\"}}\n\n")
    };
    until(&mut stream("", &last_id(1)), &reset("evicted"));
    until(&mut stream("", "Last-Event-ID: 00000000:4\r\n"), &reset("epoch"));
    until(&mut stream("", "Last-Event-ID: of another server\r\n"), &reset("epoch"));
    until(&mut stream("&since=1000000000", ""), &reset("evicted"));
    let mut lost = stream("", &last_id(9));
    until(&mut lost, &reset("ahead"));
    publish(&server, "6");
    until(&mut lost, &events(6, 6));
    // Without a history the client is told as well.
    let off = Server::start(&[]);
    let mut socket = Socket::connect(off.listen);
    socket.send(b"GET /events?topic=news&since=5 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    until(&mut socket, "event: reset\ndata: {\"reason\":\"off\"}\n\n");
}

#[test]
fn plain_topics_send_missed_messages_or_refuse() {
    let server = Server::start(&MEMORY);
    let epoch = epoch(&server);
    for number in 1..=3 {
        publish(&server, &number.to_string());
    }
    let mut socket = Socket::open(server.listen, &format!("/topics/news?since={epoch}:1"));
    for number in 2..=3 {
        assert_eq!(socket.frame().unwrap().payload, number.to_string().as_bytes());
    }
    publish(&server, "4");
    assert_eq!(socket.frame().unwrap().payload, b"4");
    let refused = |server: &Server, since: &str| {
        let mut socket = Socket::connect(server.listen);
        let path = format!("/topics/news?since={since}");
        socket.send(crate::harness::socket::upgrade(&path, &[]).as_bytes());
        socket.response().status
    };
    assert_eq!(refused(&server, "1000000000"), 410);
    assert_eq!(refused(&server, "yesterday"), 410);
    assert_eq!(refused(&server, &format!("{epoch}:9")), 410);
    assert_eq!(refused(&Server::start(&[]), "1000000000"), 410);
}

/// A history that is longer than the send queue and than what the socket takes at once.
#[test]
fn a_slow_client_gets_a_long_history_without_being_closed() {
    let flags =
        ["--history-limit", "10k", "--history-topic-bytes", "32MiB", "--send-queue", "256KiB"];
    let server = Server::start(&[&MEMORY[..], &flags].concat());
    let epoch = epoch(&server);
    let padding = "x".repeat(20_000);
    for batch in 0..20 {
        let message = |number: u64| {
            let data = json!({"number": batch * 30 + number, "padding": padding}).to_string();
            json!({"topic": "news", "data": data})
        };
        let batch: Vec<Value> = (1..=30).map(message).collect();
        assert_eq!(server.publish(&json!(batch)).status, 200);
    }
    let mut client = Extended::connect(server.listen, "");
    client.subscribe_with(NEWS, &after(&epoch, 0));
    // It reads nothing until the server has sent what fits; meanwhile others publish.
    eventually("the socket is full", || server.metrics()["standfast_queued_bytes"] > 0.0);
    publish(&server, r#"{"number":601}"#);
    assert_eq!(client.hear()["type"], "confirm_subscription");
    for number in 1..=601 {
        let message = client.hear();
        assert_eq!(
            (&message["offset"], &message["message"]["number"]),
            (&json!(number), &json!(number))
        );
    }
    assert_eq!(client.hear()["type"], "confirm_history");
}

#[test]
fn history_needs_the_extended_protocol() {
    let server = Server::start(&MEMORY);
    let epoch = epoch(&server);
    publish(&server, "1");
    let mut base = crate::harness::cable::Cable::join(server.listen, None).welcomed();
    assert_eq!(base.subscribe(&serde_json::from_str(NEWS).unwrap()), "confirm_subscription");
    let command = json!({"command": "history", "identifier": NEWS, "history": after(&epoch, 0)});
    base.socket.send_frame(0x81, command.to_string().as_bytes());
    assert_eq!(base.hear(), json!({"type": "reject_history", "identifier": NEWS}));
    let mut extended = Extended::connect(server.listen, "");
    assert_eq!(extended.protocol, EXTENDED);
    extended.subscribe(NEWS);
    extended.history(NEWS, &after(&epoch, 0));
    assert_eq!(numbers_until(&mut extended, "confirm_history"), [1]);
    // AnyCable's client leaves the request out if it has received nothing yet.
    extended.send(&json!({"command": "history", "identifier": NEWS}));
    assert!(numbers_until(&mut extended, "confirm_history").is_empty());
}
