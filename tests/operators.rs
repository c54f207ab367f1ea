//! What operators see of `serve`: connections by identity, protocol, topic and address, the largest and
//! the busiest topics; and closing one connection.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::cable::Cable;
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, identifiers, token};
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::{eventually, http};

fn public_stream(name: &str) -> Value {
    json!({"channel": "$pubsub", "stream_name": name})
}

fn subscribed(server: &Server, token: Option<&str>, streams: &[&str]) -> Cable {
    let mut client = Cable::join(server.listen, token).welcomed();
    for stream in streams {
        assert_eq!(client.subscribe(&public_stream(stream)), "confirm_subscription");
    }
    client
}

/// All connections that match a query, over pages of two.
fn listed(server: &Server, query: &str) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), "0".to_owned());
    loop {
        let path = format!("/api/connections?limit=2&after={after}&{query}");
        let page = server.admin_get(&path);
        assert_eq!(page.status, 200, "{path}: {page:?}");
        let page = page.json();
        let entries = page["connections"].as_array().unwrap();
        assert!(entries.len() <= 2, "{page}");
        assert_eq!(page["silent_workers"], json!([]), "{page}");
        all.extend(entries.iter().cloned());
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => return all,
        }
    }
}

/// The peers of the connections that match a query.
fn peers(server: &Server, query: &str) -> BTreeSet<String> {
    let all = listed(server, query);
    all.iter().map(|entry| entry["peer"].as_str().unwrap().to_owned()).collect()
}

fn local(sockets: &[&Socket]) -> BTreeSet<String> {
    sockets.iter().map(|socket| socket.local_address()).collect()
}

#[test]
fn connections_are_filtered_by_identity_protocol_topic_and_address() {
    let flags = ["--public", "--public-streams", "--trusted-proxy", "127.0.0.1", "--workers", "2"];
    let flags = [&flags[..], &["--cable-path", "/cable"]].concat();
    let server = Server::start_with(&flags, &[("STANDFAST_SERVE_SECRET", SECRET)]);
    let open = |path: &str, client: &str| {
        let mut socket = Socket::connect(server.listen);
        socket.send(upgrade(path, &[("X-Forwarded-For", client)]).as_bytes());
        assert_eq!(socket.response().status, 101, "{path}");
        socket
    };
    let news = [open("/topics/news", "192.0.2.1"), open("/topics/news", "198.51.100.7")];
    let odd = open("/topics/caf%C3%A9%26more", "");
    let echo = open("/echo", "192.0.2.1");
    let alice = [
        subscribed(&server, Some(&token(1)), &["news", "sports"]),
        subscribed(&server, Some(&token(1)), &[]),
    ];
    let bob = subscribed(&server, Some(&token(2)), &["sports"]);
    let nobody = subscribed(&server, None, &["news"]);
    let mut events = Socket::connect(server.listen);
    events.send(b"GET /events?topic=news HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    events.text_until(":\n\n");

    let [first, second] = &alice;
    let cases: [(&str, Vec<&Socket>); 12] = [
        ("topic=news", vec![&news[0], &news[1], &first.socket, &nobody.socket, &events]),
        ("topic=sports", vec![&first.socket, &bob.socket]),
        ("topic=caf%C3%A9%26more", vec![&odd]),
        ("topic=none", vec![]),
        ("protocol=topic", vec![&news[0], &news[1], &odd]),
        ("protocol=echo", vec![&echo]),
        ("protocol=events", vec![&events]),
        ("identity=%7B%22user_id%22%3A1%7D", vec![&first.socket, &second.socket]),
        ("identity=%7B%22user_id%22%3A1%7D&topic=news", vec![&first.socket]),
        ("address=192.0.2.1", vec![&news[0], &echo]),
        ("address=198.51.100.0/24&protocol=topic", vec![&news[1]]),
        ("address=127.0.0.0/8&topic=sports", vec![&first.socket, &bob.socket]),
    ];
    for (query, expected) in cases {
        assert_eq!(peers(&server, query), local(&expected), "{query}");
    }
    assert_eq!(listed(&server, "").len(), 9, "without a filter all are listed");

    let entry = &listed(&server, "identity=%7B%22user_id%22%3A1%7D&topic=sports")[0];
    assert_eq!(entry["protocol"], "cable", "{entry}");
    assert_eq!(entry["identity"], identifiers(1), "{entry}");
    assert_eq!((&entry["topic"], &entry["subscriptions"]), (&Value::Null, &json!(2)), "{entry}");
    let topics = entry["topics"].as_array().unwrap().iter().map(|topic| topic.as_str().unwrap());
    assert_eq!(topics.collect::<BTreeSet<_>>(), ["news", "sports"].into(), "{entry}");
    let entry = &listed(&server, "protocol=echo")[0];
    assert_eq!((&entry["identity"], &entry["topics"]), (&Value::Null, &json!([])), "{entry}");
    assert_eq!(entry["client"], "192.0.2.1", "{entry}");

    let refused = [
        ("protocol=mqtt", "expected one of http, echo, topic, events, cable, cable_ext"),
        ("address=nowhere", "invalid network"),
        ("topics=news", "unknown parameter \\\"topics\\\""),
        ("topic=a&topic=b", "topic is given twice"),
        ("limit=1001", "up to 1000"),
    ];
    for (query, message) in refused {
        let reply = server.admin_get(&format!("/api/connections?{query}"));
        assert_eq!(reply.status, 400, "{query}: {reply:?}");
        assert!(reply.body.contains(message), "{query}: {reply:?}");
    }
}

#[test]
fn one_connection_is_closed_by_its_id_and_only_with_the_key() {
    let server = Server::start(&["--admin-key", "correct-horse", "--workers", "2"]);
    let mut topic = Socket::open(server.listen, "/topics/news");
    let mut other = Socket::open(server.listen, "/topics/news");
    let mut cable = subscribed(&server, None, &[]);
    let mut events = Socket::connect(server.listen);
    events.send(b"GET /events?topic=news HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    events.text_until(":\n\n");
    let id_of = |socket: &Socket| {
        let entry = listed(&server, "").into_iter();
        let mut entry = entry.filter(|entry| entry["peer"] == socket.local_address());
        entry.next().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let id = id_of(&topic);
    let delete = format!(
        "DELETE /api/connections/{id} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(http::ask(server.admin, &delete).status, 401);
    let closed = server.admin_delete(&format!("/api/connections/{id}"));
    assert_eq!((closed.status, &closed.json()["closed"]), (200, &json!(id)), "{closed:?}");
    assert_eq!(topic.close_code(), 1000);
    assert_eq!(server.admin_delete(&format!("/api/connections/{id}")).status, 404, "it is closing");
    eventually("the log has it", || server.log().contains("API: closed connection"));

    let id = id_of(&cable.socket);
    let closed = server.admin_delete(&format!("/api/connections/{id}?reconnect=false"));
    assert_eq!(closed.status, 200, "{closed:?}");
    assert_eq!(cable.disconnect_reason(), ("remote".to_owned(), false));
    let id = id_of(&events);
    assert_eq!(server.admin_delete(&format!("/api/connections/{id}")).status, 200);
    while events.take(&mut Vec::new()) {}

    let missing = [("12345", 404), ("18446744073709551615", 404), ("x", 400), ("", 400)];
    for (id, status) in missing {
        assert_eq!(server.admin_delete(&format!("/api/connections/{id}")).status, status, "{id}");
    }
    let id = id_of(&other);
    let wrong = server.admin_delete(&format!("/api/connections/{id}?reconnect=maybe"));
    assert_eq!(wrong.status, 400, "{wrong:?}");
    let shown = server.admin_get(&format!("/api/connections/{id}"));
    assert_eq!((shown.status, &shown.json()["peer"]), (200, &json!(other.local_address())));
    assert_eq!(server.admin_get("/api/connections/12345").status, 404);
    assert_eq!(server.admin_post(&format!("/api/connections/{id}"), "").status, 405);
    other.send_frame(TEXT, b"still open");
    assert_eq!(other.frame().unwrap().payload, b"still open");
    assert_eq!(server.metrics()["standfast_disconnected_total"], 3.0);
}

#[test]
fn without_a_key_nothing_is_closed_over_tcp() {
    let server = Server::start(&[]);
    let mut socket = Socket::open(server.listen, "/echo");
    let id = listed(&server, "")[0]["id"].as_str().unwrap().to_owned();
    let refused = server.admin_delete(&format!("/api/connections/{id}"));
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.body.contains("--admin-key"), "{refused:?}");
    socket.send_frame(TEXT, b"still open");
    assert_eq!(socket.frame().unwrap().payload, b"still open");
}

#[test]
fn top_topics_are_listed_by_subscribers_messages_and_bytes() {
    let server = Server::start(&["--workers", "2"]);
    let top = |query: &str| {
        let reply = server.admin_get(&format!("/api/topics{query}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    let none = top("");
    for list in ["by_subscribers", "by_messages", "by_bytes", "silent_workers"] {
        assert_eq!(none[list], json!([]), "{none}");
    }
    assert_eq!(none["topics"], 0);
    // Subscribers of a topic are on both workers, and one names it by an identifier.
    let open = |topic: &str| Socket::open(server.listen, &format!("/topics/{topic}"));
    let mut large: Vec<Socket> = (0..12).map(|_| open("large")).collect();
    let mut named = subscribed(&server, None, &["large"]);
    let mut busy = [open("busy"), open("busy")];
    let mut heavy = open("heavy");
    let _quiet: Vec<Socket> = (0..3).map(|at| open(&format!("quiet-{at}"))).collect();
    let heavy_data = "x".repeat(5000);
    let publication = |topic: &str, data: &str| json!({"topic": topic, "data": data});
    let mut all = vec![publication("large", "1234"), publication("nobody", "1")];
    all.extend((0..20).map(|_| publication("busy", "12")));
    all.extend((0..2).map(|_| publication("heavy", &heavy_data)));
    assert_eq!(server.publish(&Value::Array(all)).status, 200);
    large.iter_mut().for_each(|socket| drop(socket.frame().unwrap()));
    named.hear();
    busy.iter_mut().for_each(|socket| (0..20).for_each(|_| drop(socket.frame().unwrap())));
    (0..2).for_each(|_| drop(heavy.frame().unwrap()));

    let listed = top("?limit=3");
    let names = |list: &str| -> Vec<String> {
        let list = listed[list].as_array().unwrap();
        list.iter().map(|entry| entry["topic"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("by_subscribers"), ["large", "busy", "heavy"], "{listed}");
    assert_eq!(names("by_messages"), ["busy", "large", "heavy"], "{listed}");
    assert_eq!(names("by_bytes"), ["heavy", "busy", "large"], "{listed}");
    assert_eq!((&listed["topics"], &listed["silent_workers"]), (&json!(6), &json!([])), "{listed}");
    let seconds = listed["seconds"].as_f64().unwrap();
    assert!(seconds > 0.0 && seconds <= 120.0, "{listed}");
    let entry = |topic: &str, subscribers: u64, messages: u64, bytes: u64| {
        json!({
            "topic": topic, "subscribers": subscribers,
            "messages": messages, "messages_error": 0, "bytes": bytes, "bytes_error": 0,
        })
    };
    assert_eq!(listed["by_messages"][0], entry("busy", 2, 40, 80), "{listed}");
    assert_eq!(listed["by_subscribers"][0], entry("large", 13, 13, 52), "{listed}");
    assert_eq!(listed["by_bytes"][0], entry("heavy", 1, 2, 10_000), "{listed}");

    let found = top("?prefix=quiet-&limit=2");
    let names: Vec<&Value> = found["by_subscribers"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 2, "{found}");
    assert!(
        names.iter().all(|entry| entry["topic"].as_str().unwrap().starts_with("quiet-")),
        "{found}"
    );
    assert_eq!((&found["by_messages"], &found["topics"]), (&json!([]), &json!(6)), "{found}");
    assert_eq!(top("?prefix=bu")["by_bytes"][0], entry("busy", 2, 40, 80));

    drop(large);
    eventually("subscribers that have left are not counted", || {
        top("?limit=1")["by_subscribers"][0] == entry("busy", 2, 40, 80)
    });
    for query in ["?limit=0", "?limit=101", "?limit=x", "?topic=a&prefix=b"] {
        assert_eq!(server.admin_get(&format!("/api/topics{query}")).status, 400, "{query}");
    }
    assert_eq!(server.admin_delete("/api/topics").status, 405);
}

#[test]
fn all_topics_of_many_are_counted() {
    let server = Server::start(&["--workers", "2"]);
    // More than a worker counts in one portion; each identifier is a group of its own.
    let mut clients: Vec<Cable> = (0..12).map(|_| subscribed(&server, None, &[])).collect();
    let identifier = |client: usize, at: usize| {
        json!({"channel": "$pubsub", "stream_name": format!("t-{client}-{at}")}).to_string()
    };
    for (number, client) in clients.iter_mut().enumerate() {
        for at in 0..80 {
            let command = json!({"command": "subscribe", "identifier": identifier(number, at)});
            client.socket.send_frame(TEXT, command.to_string().as_bytes());
        }
        let last = json!({"command": "subscribe", "identifier": public_stream("all").to_string()});
        client.socket.send_frame(TEXT, last.to_string().as_bytes());
        (0..81).for_each(|_| assert_eq!(client.hear()["type"], "confirm_subscription"));
    }
    let listed = server.admin_get("/api/topics?limit=100").json();
    assert_eq!(listed["topics"], 12 * 80 + 1, "{listed}");
    assert_eq!(listed["by_subscribers"][0]["topic"], "all", "{listed}");
    assert_eq!(listed["by_subscribers"][0]["subscribers"], 12, "{listed}");
    assert_eq!(listed["by_subscribers"].as_array().unwrap().len(), 100, "{listed}");
}

#[test]
fn workers_have_histograms_of_turns_mailboxes_queues_and_deliveries() {
    let server = Server::start(&["--workers", "1", "--max-message", "64KiB"]);
    let mut reader = Socket::open(server.listen, "/topics/news");
    let _silent = Socket::open(server.listen, "/topics/flood");
    let read = |name: &str| {
        let metrics = server.metrics();
        let sample = |part: &str| {
            let sample = metrics.get(&format!("standfast_{name}_{part}")).copied();
            sample.unwrap_or_default()
        };
        let count = sample("count{worker=\"0\"}");
        assert_eq!(sample("bucket{worker=\"0\",le=\"+Inf\"}"), count, "{name}");
        (count, sample("sum{worker=\"0\"}"), metrics)
    };
    let (none, ..) = read("delivery_seconds");
    assert_eq!(none, 0.0);
    for number in 0..10 {
        // The next one is published after this one was received, so that both have a round.
        server.publish(&json!({"topic": "news", "data": number.to_string()}));
        reader.frame().unwrap();
        eventually("its delivery is recorded", || read("delivery_seconds").0 > f64::from(number));
    }
    let (count, seconds, metrics) = read("delivery_seconds");
    assert_eq!(count, 10.0, "one per publication");
    assert!(seconds > 0.0 && seconds < 60.0, "{seconds}");
    assert_eq!(metrics["standfast_delivery_seconds_bucket{worker=\"0\",le=\"10\"}"], 10.0);
    let (turns, seconds, _) = read("turn_seconds");
    assert!(turns >= 10.0 && seconds > 0.0, "{turns} {seconds}");
    let (posts, sum, _) = read("mailbox_posts");
    assert!(posts >= 1.0 && sum >= 10.0, "{posts} {sum}");
    let (posts, sum, _) = read("mailbox_bytes");
    assert!(posts >= 1.0 && sum >= 10.0 * 64.0, "{posts} {sum}");
    let (_, queued, _) = read("worker_queued_bytes");
    assert_eq!(queued, 0.0, "everybody has read");
    let data = "x".repeat(60_000);
    eventually("bytes wait for the client that does not read", || {
        server.publish(&json!({"topic": "flood", "data": data}));
        read("worker_queued_bytes").1 > 0.0
    });
}

#[test]
fn a_publication_is_answered_with_its_receivers_where_they_are_known() {
    let server = Server::start(&["--workers", "2"]);
    let publish = |query: &str, body: &Value| {
        let path = format!("/api/publish{query}");
        let reply = server.admin_post(&path, &body.to_string());
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    let news = json!({"topic": "news", "data": "x"});
    assert_eq!(publish("", &news), json!({"published": 1, "receivers": 0}), "known without asking");
    let mut sockets: Vec<Socket> =
        (0..7).map(|_| Socket::open(server.listen, "/topics/news")).collect();
    let mut named = subscribed(&server, None, &["news", "sports"]);
    assert_eq!(publish("", &news), json!({"published": 1}), "not known, and not asked for");
    assert_eq!(publish("?receivers=false", &news), json!({"published": 1}));
    let asked = "?receivers=true";
    assert_eq!(publish(asked, &news), json!({"published": 1, "receivers": 8}));
    let sports = json!({"topic": "sports", "data": "x"});
    let nobody = json!({"topic": "nobody", "data": "x"});
    let all = json!([news, sports, nobody, news]);
    assert_eq!(publish(asked, &all), json!({"published": 4, "receivers": 17}));
    assert_eq!(publish(asked, &nobody), json!({"published": 1, "receivers": 0}));
    for socket in &mut sockets {
        (0..5).for_each(|_| assert_eq!(socket.frame().unwrap().payload, b"x"));
    }
    (0..6).for_each(|_| drop(named.hear()));
    drop(sockets);
    eventually("who has left is not counted", || publish(asked, &news)["receivers"] == 1);
    let wrong = server.admin_post("/api/publish?receivers=yes", &news.to_string());
    assert_eq!(wrong.status, 400, "{wrong:?}");
    assert_eq!(server.admin_post("/api/publish?receivers=true", "{").status, 400);
}
