//! Presence that nodes share over Redis or NATS: who joins at one node is known at all, once, and leaves with the last
//! connection anywhere; nodes that are killed, and brokers that lose their memory.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::cable::Extended;
use crate::harness::redis::Redis;
use crate::harness::server::Server;
use crate::harness::{eventually, http, peer};
use crate::nodes::{node, stream, unready_node, until_ready};
use crate::nodes_history::Keeper;

const FLAGS: [&str; 4] = ["--presence", "redis", "--presence-window", "50ms"];

fn member_node(redis: &Redis, more: &[&str]) -> Server {
    node(&redis.url(), &[&FLAGS[..], more].concat())
}

/// A node that shares presence over NATS, with a history there as well.
fn nats_node(nats: &Keeper, more: &[&str]) -> Server {
    let flags = ["--presence", "nats", "--presence-window", "50ms"];
    nats.node(&[&flags[..], more].concat())
}

fn subscribed(at: SocketAddr) -> Extended {
    let mut client = Extended::connect(at, "");
    client.subscribe(&stream("news"));
    client
}

fn join(client: &mut Extended, id: &str, info: &Value) {
    let presence = json!({"id": id, "info": info});
    let command = json!({"command": "join", "identifier": stream("news"), "presence": presence});
    client.send(&command);
}

fn command(client: &mut Extended, name: &str) {
    client.send(&json!({"command": name, "identifier": stream("news")}));
}

/// A subscribed client with a member.
fn joined(at: SocketAddr, id: &str) -> Extended {
    let mut client = subscribed(at);
    join(&mut client, id, &json!(1));
    client
}

/// AnyCable's library at two nodes in turn; the API is that of a third.
#[test]
fn anycable_core_knows_who_is_present_at_other_nodes() {
    let Some(redis) = Redis::start(&[]) else { return };
    let flags = ["--presence", "redis", "--presence-window", "100ms"];
    let nodes: Vec<Server> = (0..3).map(|_| node(&redis.url(), &flags)).collect();
    let public = format!("ws://{},ws://{}", nodes[0].listen, nodes[1].listen);
    let admin = format!("http://{}", nodes[2].admin);
    let expected = ["joins", "leaves", "a lost connection", "very many"];
    peer::works(&peer::NODE, "anycable_presence.js", &[&public, &admin], &expected);
}

/// The next event of presence: its type, and its id or its number of members.
fn event(client: &mut Extended) -> (String, String) {
    let message = client.hear();
    assert_eq!(message["type"], "presence", "{message}");
    let message = &message["message"];
    let about = message["id"].as_str().map(str::to_owned);
    let about = about.unwrap_or_else(|| message["total"].to_string());
    (message["type"].as_str().unwrap().to_owned(), about)
}

fn of(kind: &str, id: &str) -> (String, String) {
    (kind.to_owned(), id.to_owned())
}

/// Who is present, with their infos, as the API of a node says.
fn members(server: &Server, topic: &str) -> Vec<(String, Value)> {
    let reply = http::get(server.admin, &format!("/api/presence/{topic}/users"));
    assert_eq!(reply.status, 200, "{reply:?}");
    let record =
        |record: &Value| (record["id"].as_str().unwrap().to_owned(), record["info"].clone());
    reply.json()["records"].as_array().unwrap().iter().map(record).collect()
}

fn ids(server: &Server) -> Vec<String> {
    members(server, "news").into_iter().map(|(id, _)| id).collect()
}

#[test]
fn who_joins_at_one_node_is_present_at_all() {
    let Some(redis) = Redis::start(&[]) else { return };
    joins_at_one([(); 3].map(|()| member_node(&redis, &[])));
}

#[test]
fn who_joins_at_one_node_is_present_at_all_over_nats() {
    let Some(nats) = Keeper::nats() else { return };
    joins_at_one([(); 3].map(|()| nats_node(&nats, &[])));
}

fn joins_at_one([a, b, c]: [Server; 3]) {
    let mut watcher = subscribed(b.listen);
    let mut ann = subscribed(a.listen);
    join(&mut ann, "ann", &json!({"name": "Ann"}));
    let message = json!({"type": "join", "id": "ann", "info": {"name": "Ann"}});
    assert_eq!(watcher.hear()["message"], message);
    assert_eq!(ann.hear()["message"], message);
    let _bob = joined(b.listen, "bob");
    assert_eq!((event(&mut ann), event(&mut watcher)), (of("join", "bob"), of("join", "bob")));
    command(&mut watcher, "presence");
    let records = json!([{"id": "ann", "info": {"name": "Ann"}}, {"id": "bob", "info": 1}]);
    let list = json!({"type": "info", "total": 2, "records": records});
    assert_eq!(watcher.hear()["message"], list);
    // A node without subscribers of the topic finds out.
    assert_eq!(members(&c, "news"), members(&a, "news"));
    // Who subscribes later knows all at once, and gets no event of them.
    let mut late = subscribed(c.listen);
    command(&mut late, "presence");
    assert_eq!(late.hear()["message"], list);
    command(&mut ann, "leave");
    for client in [&mut watcher, &mut late, &mut ann] {
        assert_eq!(event(client), of("leave", "ann"));
    }
    assert_eq!(ids(&c), ["bob"]);
    let metrics = c.metrics();
    assert_eq!(metrics["standfast_presence_elsewhere"], 1.0);
    assert_eq!(metrics["standfast_presence_members"], 0.0);
    assert_eq!(metrics["standfast_presence_waiting"], 0.0);
}

#[test]
fn a_member_at_two_nodes_joins_once_and_leaves_once() {
    let Some(redis) = Redis::start(&[]) else { return };
    at_two_nodes([(); 2].map(|()| member_node(&redis, &["--presence-ttl", "1s"])));
    assert_eq!(redis.ask("KEYS standfast:p:*"), "*0");
}

#[test]
fn a_member_at_two_nodes_joins_once_and_leaves_once_over_nats() {
    let Some(nats) = Keeper::nats() else { return };
    at_two_nodes([(); 2].map(|()| nats_node(&nats, &["--presence-ttl", "1s"])));
    // Who comes later finds nobody.
    assert_eq!(ids(&nats_node(&nats, &[])), [""; 0]);
}

fn at_two_nodes(nodes: [Server; 2]) {
    let [a, b] = &nodes;
    let mut watcher = subscribed(b.listen);
    let mut one = joined(a.listen, "ann");
    assert_eq!(event(&mut watcher), of("join", "ann"));
    let mut two = subscribed(b.listen);
    join(&mut two, "ann", &json!(2));
    eventually("its info is that of its own node", || {
        (members(a, "news"), members(b, "news"))
            == (vec![("ann".into(), json!(1))], vec![("ann".into(), json!(2))])
    });
    command(&mut one, "leave");
    eventually("the other node's info is left", || {
        members(a, "news") == [("ann".to_owned(), json!(2))]
    });
    // The connection is lost, and the client comes back at the other node within the time.
    drop(two);
    let mut back = joined(a.listen, "ann");
    let mut bob = joined(a.listen, "bob");
    assert_eq!(event(&mut watcher), of("join", "bob"), "no event of ann");
    eventually("b has it no more", || {
        b.metrics()["standfast_presence_changes_total{change=\"expire\"}"] == 1.0
    });
    command(&mut bob, "leave");
    assert_eq!(event(&mut watcher), of("leave", "bob"), "no event of ann");
    command(&mut back, "leave");
    assert_eq!(event(&mut watcher), of("leave", "ann"));
    let metrics = ["standfast_presence_bytes", "standfast_presence_elsewhere"];
    eventually("nothing is left", || {
        nodes.iter().all(|node| metrics.iter().all(|name| node.metrics()[*name] == 0.0))
    });
}

#[test]
fn members_of_a_killed_node_leave_within_the_ttl_unless_they_are_back() {
    let Some(redis) = Redis::start(&[]) else { return };
    let start = || member_node(&redis, &["--presence-ttl", "2s"]);
    killed(&start, &|| redis.ask("HLEN standfast:p:news") == ":2");
}

#[test]
fn members_of_a_killed_node_leave_within_the_ttl_over_nats() {
    let Some(nats) = Keeper::nats() else { return };
    killed(&|| nats_node(&nats, &["--presence-ttl", "2s"]), &|| true);
}

fn killed(start: &dyn Fn() -> Server, is_removed: &dyn Fn() -> bool) {
    let (mut a, b) = (start(), start());
    let mut watcher = subscribed(b.listen);
    let _ann = joined(a.listen, "ann");
    assert_eq!(event(&mut watcher), of("join", "ann"));
    let _bob = joined(a.listen, "bob");
    assert_eq!(event(&mut watcher), of("join", "bob"));
    a.signal(Signal::KILL);
    a.wait();
    let killed = Instant::now();
    let _back = joined(b.listen, "ann");
    assert_eq!(ids(&b), ["ann", "bob"], "not at once");
    assert_eq!(event(&mut watcher), of("leave", "bob"));
    let after = killed.elapsed();
    assert!(after > Duration::from_millis(800), "{after:?}");
    assert!(after < Duration::from_secs(10), "{after:?}");
    assert_eq!(ids(&b), ["ann"]);
    // A new node does not know of the old one.
    let c = start();
    assert_eq!(ids(&c), ["ann"]);
    eventually("all of the old node is removed", is_removed);
}

#[test]
fn what_dead_nodes_left_behind_is_never_shown_and_removed() {
    let Some(redis) = Redis::start(&[]) else { return };
    let dead = "HSET standfast:p:news v 5 00000000000000ffann 1 00000000000000ffbob 1";
    assert_eq!(redis.ask(dead), ":3");
    let a = member_node(&redis, &["--presence-ttl", "2s"]);
    let mut watcher = subscribed(a.listen);
    assert_eq!(ids(&a), [""; 0]);
    eventually("it is removed", || redis.ask("EXISTS standfast:p:news") == ":0");
    let _ann = joined(a.listen, "ann");
    assert_eq!(event(&mut watcher), of("join", "ann"));
}

#[test]
fn a_broker_that_loses_its_memory_gets_the_members_again_without_an_event() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let nodes = [(); 2].map(|()| member_node(&redis, &["--presence-ttl", "5s"]));
    let [a, b] = &nodes;
    let mut watcher = subscribed(b.listen);
    let mut ann = joined(a.listen, "ann");
    assert_eq!(event(&mut watcher), of("join", "ann"));
    let _bob = joined(b.listen, "bob");
    assert_eq!(event(&mut watcher), of("join", "bob"));
    // Its memory only.
    assert_eq!(redis.ask("FLUSHALL"), "+OK");
    eventually("they write again", || redis.ask("HLEN standfast:p:news") == ":3");
    redis.kill();
    for node in &nodes {
        eventually("the loss is noticed", || node.admin_get("/ready").status == 503);
    }
    // Meanwhile one leaves and one joins.
    let began = Instant::now();
    command(&mut ann, "leave");
    redis.restart();
    nodes.iter().for_each(until_ready);
    let mut eve = joined(a.listen, "eve");
    let mut heard = Vec::new();
    while heard.len() < 2 {
        let message = watcher.hear();
        if message["type"] == "presence" {
            let of_message = &message["message"];
            heard.push(format!("{} {}", of_message["type"], of_message["id"]));
        }
    }
    heard.sort();
    assert_eq!(heard, ["\"join\" \"eve\"", "\"leave\" \"ann\""], "nobody flaps");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    for node in &nodes {
        eventually("the lists are right", || ids(node) == ["bob", "eve"]);
    }
    command(&mut eve, "leave");
    eventually("the last event", || event(&mut watcher) == of("leave", "eve"));
}

/// It is killed for less and for more than a lease lasts, and then loses its files.
#[test]
fn nobody_flaps_and_nobody_is_lost_when_nats_is_started_again() {
    let Some(mut nats) = Keeper::nats() else { return };
    let nodes = [(); 2].map(|()| nats_node(&nats, &["--presence-ttl", "4s"]));
    let [a, b] = &nodes;
    let mut watcher = subscribed(b.listen);
    let mut ann = joined(a.listen, "ann");
    assert_eq!(event(&mut watcher), of("join", "ann"));
    let _bob = joined(b.listen, "bob");
    assert_eq!(event(&mut watcher), of("join", "bob"));
    let Some(mut broker) = nats.broker.take() else { return };
    for (round, away) in [0, 5, 0].into_iter().enumerate() {
        broker.kill();
        if round == 2 {
            broker.empty();
        }
        for node in &nodes {
            eventually("the loss is noticed", || node.admin_get("/ready").status == 503);
        }
        // The leases end, by the clock of the server.
        std::thread::sleep(Duration::from_secs(away));
        // Meanwhile one leaves, and one comes afterwards.
        let came = format!("came {round}");
        let last = if round == 0 { "ann".to_owned() } else { format!("came {}", round - 1) };
        command(&mut ann, "leave");
        broker.restart();
        nodes.iter().for_each(until_ready);
        let late = nats_node(&nats, &["--presence-ttl", "4s"]);
        join(&mut ann, &came, &json!(1));
        let mut heard = Vec::new();
        while heard.len() < 2 {
            let message = watcher.hear();
            if message["type"] == "presence" {
                let about = &message["message"];
                heard.push((about["type"].to_string(), about["id"].to_string()));
            }
        }
        heard.sort();
        let quoted = |word: &str| format!("{word:?}");
        let expected = [(quoted("join"), quoted(&came)), (quoted("leave"), quoted(&last))];
        assert_eq!(heard, expected, "nobody flaps in round {round}");
        for node in [a, b, &late] {
            eventually("the lists are right", || ids(node) == ["bob", &came]);
        }
    }
    command(&mut ann, "leave");
    assert_eq!(event(&mut watcher), of("leave", "came 2"));
    assert_eq!(ids(a), ["bob"]);
}

#[test]
fn two_thousand_who_join_at_three_nodes_are_known_to_all() {
    let Some(redis) = Redis::start(&[]) else { return };
    two_thousand(&|more| node(&redis.url(), &[&["--presence", "redis"][..], more].concat()));
    eventually("nothing is left", || redis.ask("KEYS standfast:p:*") == "*0");
}

#[test]
fn two_thousand_who_join_at_three_nodes_are_known_to_all_over_nats() {
    let Some(nats) = Keeper::nats() else { return };
    two_thousand(&|more| nats.node(&[&["--presence", "nats"][..], more].concat()));
}

fn two_thousand(start: &dyn Fn(&[&str]) -> Server) {
    const EACH: usize = 667;
    let nodes: Vec<Server> = (0..3).map(|_| start(&["--presence-ttl", "2s"])).collect();
    let mut watchers: Vec<Extended> = nodes.iter().map(|node| subscribed(node.listen)).collect();
    let mut clients: Vec<Extended> = Vec::new();
    for number in 0..3 * EACH {
        let mut client = Extended::connect(nodes[number % 3].listen, "");
        let presence = json!({"id": number.to_string(), "info": {"number": number}});
        let identifier = stream("news");
        client
            .send(&json!({"command": "subscribe", "identifier": identifier, "presence": presence}));
        clients.push(client);
    }
    for (node, watcher) in nodes.iter().zip(&mut watchers) {
        eventually("all are known", || ids(node).len() == 3 * EACH);
        let mut total = 0;
        while total < 3 * EACH {
            total = watcher.hear()["message"]["total"].as_u64().unwrap_or(0) as usize;
        }
    }
    let lists: BTreeSet<String> =
        nodes.iter().map(|node| format!("{:?}", members(node, "news"))).collect();
    assert_eq!(lists.len(), 1, "the same lists");
    let writes = |node: &Server| node.metrics()["standfast_presence_elsewhere"];
    assert!(nodes.iter().all(|node| writes(node) == (2 * EACH) as f64));
    drop(clients);
    for node in &nodes {
        eventually("all have left", || ids(node).is_empty());
    }
}

#[test]
fn members_that_find_no_room_are_left_out_and_counted() {
    let Some(redis) = Redis::start(&[]) else { return };
    let a = member_node(&redis, &["--presence-ttl", "2s"]);
    let b = member_node(&redis, &["--presence-ttl", "2s", "--presence-bytes", "4KiB"]);
    let _watcher = subscribed(b.listen);
    let mut clients: Vec<Extended> =
        (0..20).map(|number| joined(a.listen, &format!("member {number}"))).collect();
    let omitted = || b.metrics()["standfast_presence_omitted_total"];
    eventually("some are left out", || omitted() >= 10.0);
    assert!(b.metrics()["standfast_presence_bytes"] <= 4096.0);
    eventually("it is logged", || b.log().contains("presence refused: the limit of memory"));
    assert_eq!(ids(&a).len(), 20);
    // When there is room the others are loaded.
    clients.drain(3..).for_each(|mut client| command(&mut client, "leave"));
    eventually("there is room", || ids(&b).len() == 3 && ids(&b) == ids(&a));
}

#[test]
fn presence_over_a_broker_needs_the_nodes_to_use_it() {
    let run = crate::harness::executable::run(&["serve", "--presence", "redis"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("--presence redis needs --pubsub redis"), "{run:?}");
    let flags = ["serve", "--presence", "nats", "--pubsub", "redis"];
    let run = crate::harness::executable::run(&flags);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("--presence nats needs --pubsub nats"), "{run:?}");
    let Some(redis) = Redis::start(&[]) else { return };
    let user = "ACL SETUSER app on >pass allchannels +@all -evalsha ~*";
    assert_eq!(redis.ask(user), "+OK");
    let server = unready_node(&format!("redis://app:pass@{}", redis.address()), &FLAGS);
    eventually("it says what is missing", || server.log().contains("NOPERM"));
}
