//! Several nodes over Redis: what one accepts reaches the clients of all, once; a subscription is confirmed by the
//! broker first; and while the broker is away, refuses, is silent or comes back, sockets stay and every loss lies in
//! a gap that was told.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::cable::{Cable, Extended};
use crate::harness::eventually;
use crate::harness::http;
use crate::harness::redis::{Passage, Redis, Relay};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, identifiers, token};
use crate::harness::socket::{Socket, TEXT, upgrade};

/// The identifier of a public stream.
pub(crate) fn stream(name: &str) -> String {
    json!({"channel": "$pubsub", "stream_name": name}).to_string()
}

/// A node of the Redis at this URL, ready.
pub(crate) fn node(url: &str, more: &[&str]) -> Server {
    let server = unready_node(url, more);
    until_ready(&server);
    server
}

pub(crate) fn unready_node(url: &str, more: &[&str]) -> Server {
    let fixed = ["--pubsub", "redis", "--redis-url", url, "--public-streams", "--public"];
    Server::start(&[&fixed[..], more].concat())
}

pub(crate) fn until_ready(server: &Server) {
    eventually("the node is ready", || server.admin_get("/ready").status == 200);
}

/// A stream of events of a topic, after its first bytes.
fn events(server: &Server, topic: &str) -> Socket {
    let mut socket = Socket::connect(server.listen);
    let head = format!("GET /events?topic={topic} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    socket.send(head.as_bytes());
    socket.text_until(":\n\n");
    socket
}

/// The next event of a stream, without heartbeats.
fn event(socket: &mut Socket) -> String {
    loop {
        let text = socket.text_until("\n\n");
        // In chunks of HTTP/1.1, whose sizes are on lines of their own.
        if text.contains("data: ") {
            return text;
        }
    }
}

fn metric(server: &Server, name: &str) -> f64 {
    let all = server.metrics();
    let of = all.iter().filter(|(full, _)| full.split('{').next() == Some(name));
    of.map(|(_, value)| value).sum()
}

pub(crate) fn publish(server: &Server, topic: &str, data: &str) -> http::Response {
    server.publish(&json!({"topic": topic, "data": data}))
}

pub(crate) fn payload(socket: &mut Socket) -> String {
    String::from_utf8(socket.frame().expect("a frame").payload).unwrap()
}

#[test]
fn a_publication_reaches_the_clients_of_all_nodes_once_and_in_one_order() {
    let Some(redis) = Redis::start(&[]) else { return };
    let nodes = [(); 3].map(|()| node(&redis.url(), &["--streams-whisper"]));
    let [a, b, c] = &nodes;
    let mut plain = Socket::open(a.listen, "/topics/news");
    let mut basic = Cable::join(b.listen, None).welcomed();
    assert_eq!(
        basic.subscribe(&serde_json::from_str(&stream("news")).unwrap()),
        "confirm_subscription"
    );
    let mut extended = Extended::connect(c.listen, "");
    extended.subscribe(&stream("news"));
    let mut stream_of_events = events(a, "news");
    // By each adapter, each at another node.
    let answer = publish(b, "news", "1");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json(), json!({"published": 1, "nodes": 3}));
    let posted =
        http::post(c.admin, "/_broadcast", &json!({"stream": "news", "data": "2"}).to_string());
    assert_eq!(posted.status, 201, "{posted:?}");
    let mut publisher = Socket::open(b.listen, "/topics/news");
    publisher.send_frame(TEXT, b"3");
    for number in 1..=3 {
        assert_eq!(payload(&mut plain), number.to_string());
        assert_eq!(basic.hear()["message"], json!(number));
        assert_eq!(extended.hear()["message"], json!(number));
    }
    let streamed = stream_of_events.text_until("data: 3\n\n");
    let found: Vec<&str> = streamed.lines().filter(|line| line.starts_with("data: ")).collect();
    assert_eq!(found, ["data: 1", "data: 2", "data: 3"]);
    // Its own comes from the broker, too; what was on its way when it subscribed may come before.
    while payload(&mut publisher) != "3" {}
    // A whisper goes to the others, on all nodes.
    extended.send(&json!({"command": "whisper", "identifier": stream("news"), "data": 4}));
    assert_eq!(basic.hear()["message"], json!(4));
    assert_eq!(payload(&mut plain), "4");
    assert_eq!(publish(a, "news", "5").status, 200);
    assert_eq!(extended.hear()["message"], json!(5), "not its own whisper");
    // A session that is excluded by its id, posted to another node than its own.
    let sid = extended.sid.clone();
    let excluded = json!({"stream": "news", "data": "6", "meta": {"exclude_socket": sid}});
    assert_eq!(http::post(a.admin, "/_broadcast", &excluded.to_string()).status, 201);
    assert_eq!(publish(b, "news", "7").status, 200);
    assert_eq!(extended.hear()["message"], json!(7));
    assert_eq!((basic.hear()["message"].clone(), payload(&mut plain)), (json!(5), "5".to_owned()));
    assert_eq!((basic.hear()["message"].clone(), payload(&mut plain)), (json!(6), "6".to_owned()));
    for node in &nodes {
        assert_eq!(metric(node, "standfast_pubsub_gaps_total"), 0.0);
        eventually("each node knows the others", || {
            let cluster = node.admin_get("/api/cluster").json();
            cluster["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
        });
    }
    let nobody = publish(a, "unknown", "x").json();
    assert_eq!(nobody, json!({"published": 1, "nodes": 0}));
}

#[test]
fn publishers_of_all_nodes_are_seen_in_one_order_by_the_subscribers_of_all() {
    let Some(redis) = Redis::start(&[]) else { return };
    let nodes = [(); 2].map(|()| node(&redis.url(), &[]));
    let mut readers: Vec<Socket> =
        nodes.iter().map(|node| Socket::open(node.listen, "/topics/t")).collect();
    let mut writers: Vec<Socket> =
        nodes.iter().map(|node| Socket::open(node.listen, "/topics/t")).collect();
    for number in 0..200 {
        for (writer, socket) in writers.iter_mut().enumerate() {
            socket.send_frame(TEXT, format!("{writer}:{number}").as_bytes());
        }
    }
    let all: Vec<Vec<String>> =
        readers.iter_mut().map(|reader| (0..400).map(|_| payload(reader)).collect()).collect();
    assert_eq!(all[0], all[1], "one order");
    let each = all[0].iter().collect::<BTreeSet<_>>().len();
    assert_eq!(each, 400, "each once");
}

#[test]
fn topics_are_shared_by_several_servers_and_unsubscribed_late() {
    let (Some(one), Some(two)) = (Redis::start(&[]), Redis::start(&[])) else { return };
    let url = format!("{},{}", one.url(), two.url());
    let nodes = [(); 2].map(|()| node(&url, &["--pubsub-linger", "1s"]));
    let mut sockets: Vec<Socket> = (0..20)
        .map(|number| Socket::open(nodes[0].listen, &format!("/topics/room-{number}")))
        .collect();
    let subscribed = |redis: &Redis, number: usize| {
        let answer = redis.ask(&format!("PUBSUB NUMSUB standfast:t:room-{number}"));
        assert_eq!(answer, "*2");
        !redis.ask(&format!("PUBSUB CHANNELS standfast:t:room-{number}")).starts_with("*0")
    };
    let shards: Vec<[bool; 2]> =
        (0..20).map(|number| [subscribed(&one, number), subscribed(&two, number)]).collect();
    assert!(shards.iter().all(|[one, two]| one != two), "each at one of them: {shards:?}");
    let first = shards.iter().filter(|[one, _]| *one).count();
    assert!((3..=17).contains(&first), "{first} of 20 at the first");
    for (number, socket) in sockets.iter_mut().enumerate() {
        let answer = publish(&nodes[1], &format!("room-{number}"), "hello");
        assert_eq!(answer.json(), json!({"published": 1, "nodes": 1}));
        assert_eq!(payload(socket), "hello");
    }
    drop(sockets);
    eventually("nothing but the channel of nodes is left", || {
        let left = |redis: &Redis| redis.ask("PUBSUB CHANNELS standfast:t:*");
        left(&one) == "*0" && left(&two) == "*0"
    });
}

#[test]
fn a_subscription_is_confirmed_when_the_broker_has_confirmed_it_and_refused_if_it_does_not() {
    let Some(redis) = Redis::start(&[]) else { return };
    let relay = Relay::start(redis.address());
    let server = node(&format!("redis://{}", relay.address), &["--pubsub-timeout", "2s"]);
    relay.set(Passage::Held);
    let mut cable = Extended::connect(server.listen, "");
    let began = Instant::now();
    cable.send(&json!({"command": "subscribe", "identifier": stream("a")}));
    cable.send(&json!({"command": "subscribe", "identifier": stream("a")}));
    let mut plain = Socket::connect(server.listen);
    plain.send(upgrade("/topics/a", &[]).as_bytes());
    let unconfirmed =
        || server.admin_get("/api/cluster").json()["connections"][0]["unconfirmed"].clone();
    eventually("the topic is asked for", || unconfirmed() == json!(1));
    assert_eq!(metric(&server, "standfast_subscriptions"), 0.0);
    relay.set(Passage::Open);
    let confirmed = json!({"type": "confirm_subscription", "identifier": stream("a")});
    assert_eq!(cable.hear(), confirmed);
    assert_eq!(plain.response().status, 101);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(publish(&server, "a", "1").status, 200);
    assert_eq!(cable.hear()["message"], json!(1), "confirmed once");
    relay.set(Passage::Held);
    cable.send(&json!({"command": "subscribe", "identifier": stream("b")}));
    cable.send(&json!({"command": "subscribe", "identifier": stream("c")}));
    cable.send(&json!({"command": "unsubscribe", "identifier": stream("c")}));
    let rejected = json!({"type": "reject_subscription", "identifier": stream("b")});
    let mut plain = Socket::connect(server.listen);
    plain.send(upgrade("/topics/b", &[]).as_bytes());
    assert_eq!(cable.hear(), rejected);
    let refused = plain.response();
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let unconfirmed = metric(&server, "standfast_pubsub_unconfirmed_total");
    assert_eq!(unconfirmed, 2.0, "what the client had unsubscribed does not count");
    relay.set(Passage::Open);
    until_ready(&server);
    cable.subscribe(&stream("b"));
}

/// What a client asks for while nobody confirms it counts for it, also what it takes back.
#[test]
fn subscribes_that_are_held_are_bounded_in_bytes_for_each_client() {
    let Some(redis) = Redis::start(&[]) else { return };
    let relay = Relay::start(redis.address());
    let server = node(&format!("redis://{}", relay.address), &[]);
    relay.set(Passage::Held);
    let reject = |name: &str| json!({"type": "reject_subscription", "identifier": stream(name)});
    let mut cable = Extended::connect(server.listen, "");
    // Each is shorter than a message may be, both are more than a client may hold.
    let position = json!({"epoch": "a".repeat(50_000), "offset": 1});
    for name in ["one", "other"] {
        cable.subscribe_with(&stream(name), &json!({"streams": {name: position}}));
    }
    assert_eq!(cable.hear(), reject("other"), "at once");
    for _ in 0..400 {
        cable.send(&json!({"command": "subscribe", "identifier": stream("a")}));
        cable.send(&json!({"command": "unsubscribe", "identifier": stream("a")}));
    }
    assert_eq!(cable.hear(), reject("a"), "65,536 bytes are less than 400 entries of at least 192");
    drop(cable);
    relay.set(Passage::Open);
    until_ready(&server);
    Extended::connect(server.listen, "").subscribe(&stream("a"));
}

#[test]
fn while_the_broker_is_away_sockets_stay_and_afterwards_the_gap_is_told() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let nodes = [(); 2].map(|()| node(&redis.url(), &[]));
    let [a, b] = &nodes;
    let mut plain = Socket::open(a.listen, "/topics/news");
    let mut basic = Cable::join(a.listen, None).welcomed();
    basic.subscribe(&serde_json::from_str(&stream("news")).unwrap());
    let mut extended = Extended::connect(b.listen, "");
    extended.subscribe(&stream("news"));
    let mut stream_of_events = events(b, "news");
    redis.kill();
    for node in &nodes {
        eventually("the node is not ready", || node.admin_get("/ready").status == 503);
        let ready = node.admin_get("/ready").body;
        assert!(ready.starts_with("pubsub disconnected: redis://127.0.0.1"), "{ready}");
        assert_eq!(http::get(node.listen, "/ready").body, "pubsub disconnected\n");
        assert_eq!(http::get(node.listen, "/health").status, 200);
    }
    let refused = publish(a, "news", "lost");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.json()["error"], "pubsub_unavailable");
    assert_eq!(
        (refused.json()["published"].clone(), refused.json()["uncertain"].clone()),
        (json!(0), json!(0))
    );
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let ending = json!({"identifier": "{\"user\":1}"}).to_string();
    assert_eq!(http::post(a.admin, "/api/disconnect", &ending).status, 503);
    // A client's own publication waits, and so does a new subscription.
    plain.send_frame(TEXT, b"waited");
    let mut late = Extended::connect(a.listen, "");
    late.send(&json!({"command": "subscribe", "identifier": stream("new")}));
    redis.restart();
    nodes.iter().for_each(until_ready);
    let told = json!({"type": "reject_history", "identifier": stream("news")});
    assert_eq!(extended.hear(), told);
    let reset = event(&mut stream_of_events);
    assert!(reset.contains("event: reset\ndata: {\"reason\":\"gap\"}"), "{reset}");
    assert_eq!(late.hear(), json!({"type": "confirm_subscription", "identifier": stream("new")}));
    assert_eq!(payload(&mut plain), "waited");
    assert_eq!(publish(b, "news", "\"after\"").status, 200);
    assert_eq!(payload(&mut plain), "\"after\"");
    let heard: Vec<Value> = (0..2).map(|_| basic.hear()["message"].clone()).collect();
    assert_eq!(heard, [json!("waited"), json!("after")]);
    for node in &nodes {
        let gaps = node.metrics()["standfast_pubsub_gaps_total{cause=\"reconnected\"}"];
        // Its topic, and the channel of commands.
        assert_eq!(gaps, 2.0);
        assert!(node.log().contains("pubsub gap: "), "{}", node.log());
        assert!(node.log().contains("pubsub connected: redis://127.0.0.1"), "{}", node.log());
    }
}

/// The numbers that a client got, in order, with `None` where it was told of a gap.
fn collect(client: &mut Extended, last: u64) -> Vec<Option<u64>> {
    let mut heard = Vec::new();
    loop {
        let message = client.hear();
        match message["message"].as_u64() {
            Some(number) => {
                heard.push(Some(number));
                if number == last {
                    return heard;
                }
            }
            None => {
                assert_eq!(message["type"], "reject_history", "{message}");
                heard.push(None);
            }
        }
    }
}

#[test]
fn every_loss_lies_in_a_gap_that_was_told_and_nothing_arrives_twice() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let nodes = [(); 2].map(|()| node(&redis.url(), &["--pubsub-timeout", "20s"]));
    let mut clients: Vec<Extended> = nodes
        .iter()
        .map(|node| {
            let mut client = Extended::connect(node.listen, "");
            client.subscribe(&stream("load"));
            client
        })
        .collect();
    let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (admin, stop, taken) = (nodes[0].admin, Arc::clone(&ends), Arc::clone(&count));
    let publisher = thread::spawn(move || acknowledged(admin, &stop, &taken));
    for round in 1..=3 {
        eventually("more are acknowledged", || count.load(Ordering::SeqCst) >= 30 * round);
        redis.kill();
        redis.restart();
        nodes.iter().for_each(until_ready);
    }
    ends.store(true, Ordering::SeqCst);
    let acknowledged = publisher.join().unwrap();
    let last = u64::MAX;
    assert_eq!(publish(&nodes[0], "load", &last.to_string()).status, 200);
    for client in &mut clients {
        let heard = collect(client, last);
        let numbers: Vec<u64> = heard.iter().flatten().copied().collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "once each, in order: {numbers:?}");
        let mut told = heard.split(|one| one.is_none());
        // Between two gaps, or before the first one, all that was acknowledged arrived.
        told.by_ref().for_each(|stretch| {
            let (Some(Some(first)), Some(Some(last))) = (stretch.first(), stretch.last()) else {
                return;
            };
            let within = acknowledged.iter().filter(|number| (first..=last).contains(number));
            let missing: Vec<&u64> = within.filter(|number| !numbers.contains(number)).collect();
            assert!(missing.is_empty(), "silently lost: {missing:?}");
        });
    }
}

/// Publishes numbers until it has to stop, and returns those that were acknowledged, which it counts.
fn acknowledged(admin: SocketAddr, stop: &AtomicBool, count: &AtomicUsize) -> Vec<u64> {
    let mut taken = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let body = json!({"topic": "load", "data": number.to_string()}).to_string();
        if http::post(admin, "/api/publish", &body).status == 200 {
            taken.push(number);
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
    taken
}

#[test]
fn a_broker_that_refuses_or_is_read_only_is_told_by_name_and_tried_again() {
    let Some(redis) = Redis::start(&["--requirepass", "right"]) else { return };
    let place = redis.address();
    let wrong = unready_node(&format!("redis://:wrong@{place}"), &[]);
    let reason = |server: &Server| server.admin_get("/ready").body;
    eventually("the password is refused", || reason(&wrong).contains("WRONGPASS"));
    eventually("it is logged", || wrong.log().contains("pubsub disconnected"));
    assert!(!wrong.log().contains("wrong@"));
    let connection = wrong.admin_get("/api/cluster").json()["connections"][0].clone();
    assert_eq!(
        (connection["state"].clone(), connection["fault"].clone()),
        (json!("disconnected"), json!("refused"))
    );
    let right = node(&format!("redis://:right@{place}"), &[]);
    assert_eq!(publish(&right, "a", "1").status, 200);
    // An account that may use our channels only, and one that may not.
    let Some(acl) = Redis::start(&[]) else { return };
    assert_eq!(
        acl.ask("ACL SETUSER app on >pass +@all allchannels resetchannels &standfast:*"),
        "+OK"
    );
    assert_eq!(acl.ask("ACL SETUSER other on >pass +@all resetchannels &other:*"), "+OK");
    let may = node(&format!("redis://app:pass@{}", acl.address()), &[]);
    let mut plain = Socket::open(may.listen, "/topics/a");
    assert_eq!(publish(&may, "a", "1").status, 200);
    assert_eq!(payload(&mut plain), "1");
    let may_not = unready_node(&format!("redis://other:pass@{}", acl.address()), &[]);
    eventually("the channel is refused", || reason(&may_not).contains("NOPERM"));
    let (host, port) = (acl.address().ip(), acl.address().port());
    let replica = Redis::start(&["--replicaof", &host.to_string(), &port.to_string()]).unwrap();
    let reader = unready_node(&replica.url(), &[]);
    eventually("the replica is refused", || reason(&reader).contains("read-only"));
    assert_eq!(replica.ask("REPLICAOF NO ONE"), "+OK");
    until_ready(&reader);
    assert_eq!(replica.ask(&format!("REPLICAOF {host} {port}")), "+OK");
    eventually("it is noticed while connected", || reason(&reader).contains("read-only"));
}

#[test]
fn a_connection_that_swallows_everything_is_given_up() {
    let Some(redis) = Redis::start(&[]) else { return };
    let relay = Relay::start(redis.address());
    let server = node(&format!("redis://{}", relay.address), &["--pubsub-timeout", "1s"]);
    let mut extended = Extended::connect(server.listen, "");
    extended.subscribe(&stream("a"));
    relay.set(Passage::Swallowed);
    let lost = publish(&server, "a", "1");
    assert_eq!((lost.status, lost.json()["uncertain"].clone()), (503, json!(1)), "{lost:?}");
    eventually("silence is noticed", || server.admin_get("/ready").status == 503);
    relay.set(Passage::Open);
    until_ready(&server);
    assert_eq!(extended.hear()["type"], "reject_history");
    assert_eq!(extended.hear()["message"], json!(1), "it was sent again");
    assert_eq!(publish(&server, "a", "2").status, 200);
    assert_eq!(extended.hear()["message"], json!(2));
    assert!(metric(&server, "standfast_pubsub_faults_total") >= 1.0);
}

#[test]
fn publications_wait_in_the_spool_while_the_broker_is_away() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let server = node(&redis.url(), &["--pubsub-spool", "16KiB", "--pubsub-timeout", "100ms"]);
    let mut plain = Socket::open(server.listen, "/topics/a");
    redis.kill();
    eventually("the broker is away", || server.admin_get("/ready").status == 503);
    let withdrawn = publish(&server, "a", "withdrawn");
    assert_eq!((withdrawn.status, withdrawn.json()["uncertain"].clone()), (503, json!(0)));
    plain.send_frame(TEXT, b"1");
    plain.send_frame(TEXT, b"2");
    let waiting = || metric(&server, "standfast_pubsub_waiting");
    eventually("they wait, with the one that was withdrawn", || waiting() == 3.0);
    let long = "x".repeat(20 * 1024);
    assert_eq!(publish(&server, "a", &long).status, 503, "beyond the spool");
    redis.restart();
    assert_eq!((payload(&mut plain), payload(&mut plain)), ("1".to_owned(), "2".to_owned()));
    until_ready(&server);
}

#[test]
fn sessions_are_ended_on_all_nodes() {
    let Some(redis) = Redis::start(&[]) else { return };
    let nodes = [(); 2].map(|()| node(&redis.url(), &["--jwt-secret", SECRET]));
    let token = token(1);
    let mut clients: Vec<Cable> =
        nodes.iter().map(|node| Cable::join(node.listen, Some(&token)).welcomed()).collect();
    let body = json!({"identifier": identifiers(1), "reconnect": false}).to_string();
    let answer = nodes[0].admin_post("/api/disconnect", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    for client in &mut clients {
        assert_eq!(client.disconnect_reason(), ("remote".to_owned(), false));
    }
}

#[test]
fn thousands_of_topics_are_subscribed_again_in_batches() {
    const TOPICS: usize = 3_000;
    let Some(mut redis) = Redis::start(&[]) else { return };
    let flags = ["--max-subscriptions", "5000", "--max-subscription-bytes", "4MiB"];
    let server = node(&redis.url(), &flags);
    let mut client = Extended::connect(server.listen, "");
    for number in 0..TOPICS {
        let identifier = stream(&format!("room-{number}"));
        client.send(&json!({"command": "subscribe", "identifier": identifier}));
    }
    let confirmed = (0..TOPICS).filter(|_| client.hear()["type"] == "confirm_subscription").count();
    assert_eq!(confirmed, TOPICS);
    redis.kill();
    eventually("the broker is away", || server.admin_get("/ready").status == 503);
    redis.restart();
    until_ready(&server);
    let cluster = server.admin_get("/api/cluster").json();
    assert_eq!(cluster["connections"][0]["unconfirmed"], json!(0));
    // Each topic tells its gap, and then delivers.
    let told = (0..TOPICS).filter(|_| client.hear()["type"] == "reject_history").count();
    assert_eq!(told, TOPICS);
    for number in [0, TOPICS / 2, TOPICS - 1] {
        assert_eq!(publish(&server, &format!("room-{number}"), "1").status, 200);
        assert_eq!(client.hear()["identifier"], json!(stream(&format!("room-{number}"))));
    }
}

#[test]
fn with_a_history_nothing_before_a_gap_is_taken_for_complete() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let server = node(&redis.url(), &["--history", "memory"]);
    let mut client = Extended::connect(server.listen, "");
    client.subscribe(&stream("a"));
    assert_eq!(publish(&server, "a", "1").status, 200);
    let first = client.hear();
    assert_eq!((first["message"].clone(), first["stream_id"].clone()), (json!(1), json!("a")));
    let position = json!({"streams": {"a": {"offset": first["offset"], "epoch": first["epoch"]}}});
    client.history(&stream("a"), &position);
    assert_eq!(client.hear()["type"], "confirm_history");
    redis.kill();
    eventually("the broker is away", || server.admin_get("/ready").status == 503);
    redis.restart();
    until_ready(&server);
    assert_eq!(client.hear()["type"], "reject_history", "the gap is reported");
    client.history(&stream("a"), &position);
    assert_eq!(client.hear()["type"], "reject_history", "and what was before is not complete");
    assert_eq!(publish(&server, "a", "2").status, 200);
    let next = client.hear();
    let position = json!({"streams": {"a": {"offset": next["offset"], "epoch": next["epoch"]}}});
    client.history(&stream("a"), &position);
    assert_eq!(client.hear()["type"], "confirm_history", "from then on it is");
}
