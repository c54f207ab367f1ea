//! A history that nodes share (`--history redis`, `--history nats`): a client that comes to another node gets exactly
//! what it missed, by every protocol, and each node reads it over HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::brokers::Broker;
use crate::harness::cable::Extended;
use crate::harness::eventually;
use crate::harness::http;
use crate::harness::redis_cluster::Cluster;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::nodes::{payload, publish, stream, until_ready};

/// A broker that keeps publications, and the flags of its nodes.
pub(crate) struct Keeper {
    pub(crate) broker: Option<Broker>,
    _cluster: Option<Cluster>,
    flags: Vec<String>,
}

impl Keeper {
    pub(crate) fn redis() -> Option<Self> {
        let broker = Broker::redis(&[])?;
        let url = format!("redis://{}", broker.address);
        let flags = ["--pubsub", "redis", "--redis-url", &url, "--history", "redis"];
        let flags = flags.map(str::to_owned).to_vec();
        Some(Keeper { broker: Some(broker), _cluster: None, flags })
    }

    pub(crate) fn nats() -> Option<Self> {
        let broker = Broker::nats(&["--jetstream", "--store_dir", "."])?;
        let url = broker.url("");
        let flags = ["--pubsub", "nats", "--nats-servers", &url, "--history", "nats"];
        let flags = flags.map(str::to_owned).to_vec();
        Some(Keeper { broker: Some(broker), _cluster: None, flags })
    }

    fn cluster() -> Option<Self> {
        let cluster = Cluster::start(false)?;
        let url = cluster.url();
        let flags = ["--pubsub", "redis", "--redis-url", &url, "--redis-cluster"];
        let flags = [&flags[..], &["--history", "redis"]].concat();
        let flags = flags.into_iter().map(str::to_owned).collect();
        Some(Keeper { broker: None, _cluster: Some(cluster), flags })
    }

    pub(crate) fn node(&self, more: &[&str]) -> Server {
        let own = self.flags.iter().map(String::as_str);
        let common = ["--public-streams", "--public"];
        let flags: Vec<&str> = own.chain(common).chain(more.iter().copied()).collect();
        let server = Server::start(&flags);
        until_ready(&server);
        server
    }
}

/// The tests below, once with each broker.
macro_rules! with_both {
    ($($name:ident => $redis:ident, $nats:ident;)*) => {$(
        #[test]
        fn $redis() {
            if let Some(keeper) = Keeper::redis() {
                $name(keeper);
            }
        }

        #[test]
        fn $nats() {
            if let Some(keeper) = Keeper::nats() {
                $name(keeper);
            }
        }
    )*};
}

with_both! {
    another_node => redis_continues_at_another_node, nats_continues_at_another_node;
    events_and_topics => redis_continues_events_and_topics, nats_continues_events_and_topics;
    over_http => redis_is_read_over_http_at_every_node, nats_is_read_over_http_at_every_node;
    come_and_go => redis_clients_change_nodes, nats_clients_change_nodes;
    restart => redis_that_lost_its_data_is_told, nats_that_lost_its_data_is_told;
    waiting => redis_that_lost_its_data_meanwhile, nats_that_lost_its_data_meanwhile;
}

#[test]
fn a_redis_cluster_continues_at_another_node() {
    if let Some(keeper) = Keeper::cluster() {
        another_node(keeper);
    }
}

#[test]
fn a_redis_cluster_continues_events_and_topics() {
    if let Some(keeper) = Keeper::cluster() {
        events_and_topics(keeper);
    }
}

#[test]
fn a_redis_cluster_is_read_over_http_at_every_node() {
    if let Some(keeper) = Keeper::cluster() {
        over_http(keeper);
    }
}

#[test]
fn clients_of_a_redis_cluster_change_nodes() {
    if let Some(keeper) = Keeper::cluster() {
        come_and_go(keeper);
    }
}

/// Publishes a number and returns its position.
fn published(server: &Server, topic: &str, number: u64) -> (String, u64) {
    let answer = publish(server, topic, &number.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    let epoch = answer["epoch"].as_str().unwrap_or_else(|| panic!("no epoch in {answer}"));
    let offset = answer["offsets"][0].as_u64().unwrap_or_else(|| panic!("no offset in {answer}"));
    (epoch.to_owned(), offset)
}

fn after(topic: &str, epoch: &str, offset: u64) -> Value {
    json!({"streams": {topic: {"epoch": epoch, "offset": offset}}})
}

/// Subscribes with a history; returns the numbers of the missed messages and the type of the end.
fn missed(client: &mut Extended, topic: &str, history: &Value) -> (Vec<u64>, String) {
    client.subscribe_with(&stream(topic), history);
    assert_eq!(client.hear()["type"], "confirm_subscription");
    let mut numbers = Vec::new();
    loop {
        let message = client.hear();
        match message["type"].as_str() {
            Some(end) => return (numbers, end.to_owned()),
            None => numbers.push(message["message"].as_u64().unwrap()),
        }
    }
}

fn another_node(keeper: Keeper) {
    let nodes = [(); 3].map(|()| keeper.node(&[]));
    let [a, b, c] = &nodes;
    let mut client = Extended::connect(a.listen, "");
    client.subscribe(&stream("news"));
    let (epoch, first) = published(b, "news", 1);
    let heard = client.hear();
    assert_eq!(
        (heard["message"].clone(), heard["offset"].clone(), heard["epoch"].clone()),
        (json!(1), json!(first), json!(epoch))
    );
    drop(client);
    // Meanwhile others publish, to other topics, too.
    let mut last = first;
    for number in 2..=40 {
        published(&nodes[number as usize % 3], "other", number);
        let (same, offset) = published(&nodes[number as usize % 2], "news", number);
        assert!(same == epoch && offset > last, "{same}:{offset} after {epoch}:{last}");
        last = offset;
    }
    let confirmed = |numbers: &[u64]| (numbers.to_vec(), "confirm_history".to_owned());
    let rejected = (Vec::new(), "reject_history".to_owned());
    let mut expected: Vec<u64> = (2..=40).collect();
    // A node that has had no subscriber of this topic, and one that has.
    for node in [c, a] {
        if std::ptr::eq(node, a) {
            // Else the newest follows what was missed.
            eventually("the node has all", || {
                http::get(node.admin, "/api/history/news").json()["last"] == last
            });
        }
        let at = |history: &Value| {
            let mut client = Extended::connect(node.listen, "");
            let missed = missed(&mut client, "news", history);
            (client, missed)
        };
        assert_eq!(at(&after("news", &epoch, first)).1, confirmed(&expected));
        assert_eq!(at(&after("news", &epoch, last)).1, confirmed(&[]));
        let (mut client, missed) = at(&after("news", "00000000", last));
        assert_eq!(missed, rejected);
        let number = 1 + expected.len() as u64 + 1;
        last = published(b, "news", number).1;
        assert_eq!(client.hear()["message"], json!(number), "it goes on");
        expected.push(number);
    }
    // A node waits for what it has yet to receive, but not for ever.
    let mut ahead = Extended::connect(c.listen, "");
    assert_eq!(missed(&mut ahead, "news", &after("news", &epoch, last + 1_000_000)), rejected);
    let transient = json!({"stream": "news", "data": "0", "meta": {"transient": true}});
    let answer = http::post(b.admin, "/_broadcast", &transient.to_string());
    assert_eq!((answer.status, answer.json()["offsets"].clone()), (201, json!([null])));
}

fn events_and_topics(keeper: Keeper) {
    let nodes = [(); 2].map(|()| keeper.node(&[]));
    let (epoch, first) = published(&nodes[0], "news", 1);
    let second = published(&nodes[1], "news", 2).1;
    let third = published(&nodes[0], "news", 3).1;
    for node in &nodes {
        let mut socket = Socket::connect(node.listen);
        let head = "GET /events?topic=news HTTP/1.1\r\nHost: 127.0.0.1\r\n";
        socket.send(format!("{head}Last-Event-ID: {epoch}:{first}\r\n\r\n").as_bytes());
        let text = socket.text_until("data: 3\n\n");
        let expected = format!("id: {epoch}:{second}\ndata: 2\n\n");
        assert!(text.contains(&expected) && !text.contains("data: 1\n"), "{text}");
        assert!(text.ends_with(&format!("id: {epoch}:{third}\ndata: 3\n\n")), "{text}");
        let mut socket = Socket::connect(node.listen);
        socket.send(upgrade(&format!("/topics/news?since={epoch}:{first}"), &[]).as_bytes());
        assert_eq!(socket.response().status, 101);
        assert_eq!([payload(&mut socket), payload(&mut socket)], ["2", "3"]);
    }
}

fn over_http(keeper: Keeper) {
    let nodes = [(); 2].map(|()| keeper.node(&["--history-limit", "5"]));
    let positions: Vec<(String, u64)> =
        (1..=8).map(|number| published(&nodes[0], "a/b", number)).collect();
    for node in &nodes {
        let page = node.admin_get("/api/history/a%2Fb?limit=3");
        assert_eq!(page.status, 200, "{page:?}");
        let page = page.json();
        assert_eq!(page["epoch"], json!(positions[0].0));
        assert_eq!(
            (page["first"].clone(), page["last"].clone()),
            (json!(positions[3].1), json!(positions[7].1))
        );
        let data: Vec<&str> = page["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["data"].as_str().unwrap())
            .collect();
        assert_eq!(data, ["4", "5", "6"]);
        let next = page["next"].as_str().unwrap();
        let rest = node.admin_get(&format!("/api/history/a%2Fb?since={next}")).json();
        let offsets: Vec<u64> = rest["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["offset"].as_u64().unwrap())
            .collect();
        assert_eq!(offsets, [positions[6].1, positions[7].1]);
        assert_eq!(rest["next"], Value::Null);
        // Its position may be that of the oldest publication that the broker keeps.
        let never = node.admin_get("/api/history/never").json();
        assert_eq!(never["messages"], json!([]));
        assert!(never["last"].as_u64().is_some_and(|last| last < positions[7].1), "{never}");
        let old = format!("/api/history/a%2Fb?since={}:{}", positions[0].0, positions[0].1);
        assert_eq!(node.admin_get(&old).status, 410);
    }
    let Some(mut broker) = keeper.broker else { return };
    broker.kill();
    let impatient = &nodes[1];
    eventually("the broker is away", || impatient.admin_get("/ready").status == 503);
    let refused = impatient.admin_get("/api/history/unknown");
    assert_eq!(
        (refused.status, refused.json()["error"].clone()),
        (503, json!("pubsub_unavailable"))
    );
}

const EACH: u64 = 300;

/// Publishers at all nodes, and clients that change the node at each visit: each gets each message once, and all in
/// one order.
fn come_and_go(keeper: Keeper) {
    let nodes = [(); 3].map(|()| keeper.node(&["--history-limit", "10k"]));
    let (epoch, before) = published(&nodes[0], "news", 0);
    let listen: Vec<SocketAddr> = nodes.iter().map(|node| node.listen).collect();
    let total = EACH * nodes.len() as u64;
    let orders: Vec<BTreeMap<u64, u64>> = thread::scope(|scope| {
        let publishers: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(at, node)| {
                scope.spawn(move || {
                    for number in 0..EACH {
                        published(node, "news", 1 + at as u64 * EACH + number);
                    }
                })
            })
            .collect();
        let (epoch, listen) = (&*epoch, &*listen);
        let clients: Vec<_> = (0..6)
            .map(|client| scope.spawn(move || visits(listen, epoch, before, client, total)))
            .collect();
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert!(orders.iter().all(|order| *order == orders[0]), "one order");
    let numbers: std::collections::BTreeSet<u64> = orders[0].values().copied().collect();
    assert_eq!(numbers, (1..=total).collect(), "each once");
}

fn visits(
    listen: &[SocketAddr],
    epoch: &str,
    before: u64,
    client: usize,
    total: u64,
) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    for visit in 0.. {
        let mut socket = Extended::connect(listen[(client + visit) % listen.len()], "");
        let last = all.last_key_value().map_or(before, |(offset, _)| *offset);
        socket.subscribe_with(&stream("news"), &after("news", epoch, last));
        assert_eq!(socket.hear()["type"], "confirm_subscription");
        let most = all.len() as u64 + 5 + (client as u64 * 31 + visit as u64 * 17) % 60;
        let mut confirmed = false;
        while !confirmed || (all.len() as u64) < most.min(total) {
            let message = socket.hear();
            if message["type"] == "confirm_history" {
                confirmed = true;
                continue;
            }
            let offset = message["offset"].as_u64().unwrap_or_else(|| panic!("{message}"));
            let last = all.last_key_value().map_or(before, |(offset, _)| *offset);
            assert!(offset > last, "client {client}, after {last}: {message}");
            all.insert(offset, message["message"].as_u64().unwrap());
        }
        if all.len() as u64 == total {
            break;
        }
    }
    all
}

fn restart(keeper: Keeper) {
    let nodes = [(); 2].map(|()| keeper.node(&[]));
    let Some(mut broker) = keeper.broker else { return };
    let mut client = Extended::connect(nodes[0].listen, "");
    client.subscribe(&stream("news"));
    let (epoch, offset) = published(&nodes[1], "news", 1);
    assert_eq!(client.hear()["message"], json!(1));
    broker.kill();
    nodes.iter().for_each(|node| {
        eventually("the broker is away", || node.admin_get("/ready").status == 503);
    });
    broker.empty();
    broker.restart();
    nodes.iter().for_each(until_ready);
    assert_eq!(client.hear()["type"], "reject_history", "the loss is told");
    let (next, _) = published(&nodes[1], "news", 2);
    assert_ne!(next, epoch, "offsets begin anew");
    assert_eq!(client.hear()["message"], json!(2));
    let mut other = Extended::connect(nodes[1].listen, "");
    let rejected = (Vec::new(), "reject_history".to_owned());
    assert_eq!(missed(&mut other, "news", &after("news", &epoch, offset)), rejected);
    published(&nodes[0], "news", 3);
    assert_eq!(other.hear()["message"], json!(3));
}

/// Clients that wait for a node while the broker loses its data: after the gap they get all that it has kept since.
fn waiting(keeper: Keeper) {
    let nodes = [(); 2].map(|()| keeper.node(&[]));
    let Some(mut broker) = keeper.broker else { return };
    let [other, late] = &nodes;
    let (epoch, offset) = published(other, "news", 1);
    let mut member = Extended::connect(late.listen, "");
    member.subscribe(&stream("news"));
    // They come from a node that had more than this one.
    let ahead = offset + 1_000_000;
    let mut waits = Extended::connect(late.listen, "");
    waits.subscribe_with(&stream("news"), &after("news", &epoch, ahead));
    assert_eq!(waits.hear()["type"], "confirm_subscription");
    let mut events = Socket::connect(late.listen);
    let head = "GET /events?topic=news HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    events.send(format!("{head}Last-Event-ID: {epoch}:{ahead}\r\n\r\n").as_bytes());
    events.text_until(":\n\n");
    broker.kill();
    for node in &nodes {
        eventually("the broker is away", || node.admin_get("/ready").status == 503);
    }
    // The other node publishes before this one is back.
    late.signal(Signal::STOP);
    broker.empty();
    broker.restart();
    until_ready(other);
    for number in 2..=4 {
        published(other, "news", number);
    }
    late.signal(Signal::CONT);
    until_ready(late);
    published(late, "news", 5);
    for (name, client) in [("member", &mut member), ("waits", &mut waits)] {
        assert_eq!(client.hear()["type"], "reject_history", "{name}");
        let mut heard = Vec::new();
        while heard.last() != Some(&5) {
            let message = client.hear();
            // The gap of the topic, and that of what this client has asked for.
            if message["type"] != "reject_history" {
                heard.push(message["message"].as_u64().unwrap_or_else(|| panic!("{message}")));
            }
        }
        assert_eq!(heard, [2, 3, 4, 5], "{name}");
    }
    let text = events.text_until("data: 5\n\n");
    let (reset, rest) = text.split_once("event: reset\n").unwrap_or_else(|| panic!("{text}"));
    assert!(!reset.contains("data: "), "{text}");
    let data: Vec<&str> = rest.split('\n').filter_map(|line| line.strip_prefix("data: ")).collect();
    let numbers: Vec<&str> = data.into_iter().filter(|data| !data.contains("reason")).collect();
    assert_eq!(numbers, ["2", "3", "4", "5"], "{text}");
}
