//! Sessions that continue on another node: by their id, once, for their own client; also those of a node that drains.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::app::{App, chat, room};
use crate::harness::cable::Extended;
use crate::harness::eventually;
use crate::harness::polling::Poller;
use crate::harness::redis::{Passage, Redis, Relay};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, token};
use crate::nodes::{node, publish, stream};
use crate::nodes_history::Keeper;

const CLOSE: u8 = 0x88;
const TEXT: u8 = 0x81;

fn nodes<const N: usize>(url: &str, more: &[&str]) -> [Server; N] {
    std::array::from_fn(|_| node(url, &[&["--history", "memory"][..], more].concat()))
}

fn of<const N: usize>(keeper: &Keeper) -> [Server; N] {
    std::array::from_fn(|_| keeper.node(&["--drain", "1s"]))
}

/// Starts a node with these flags.
type Start<'s> = &'s dyn Fn(&[&str]) -> Server;

/// With a stream for the sessions, beside that of the history.
#[test]
fn clients_resume_on_any_node_over_nats() {
    let Some(nats) = Keeper::nats() else { return };
    let [a, b] = of(&nats);
    there_and_back([&a, &b]);
    raced_for([&a, &b], 10);
}

#[test]
fn the_clients_of_a_node_that_drains_resume_on_another_one_over_nats() {
    let Some(nats) = Keeper::nats() else { return };
    drains(of(&nats));
}

/// Without its answers there is no session; what was stored before it was killed is there afterwards, once.
#[test]
fn sessions_outlive_nats_and_none_is_resumed_twice() {
    let Some(mut nats) = Keeper::nats() else { return };
    let [a, b]: [Server; 2] = of(&nats);
    let lost = || {
        let mut client = Extended::connect(a.listen, "");
        client.subscribe(&stream("news"));
        client
    };
    let [first, second] = [lose(&a, lost()), lose(&a, lost())];
    assert!(is_restored(&back(&b, &first)));
    let open = lost();
    let third = open.sid.clone();
    let Some(mut broker) = nats.broker.take() else { return };
    broker.kill();
    for node in [&a, &b] {
        eventually("it is away", || node.admin_get("/ready").status == 503);
    }
    drop(open);
    eventually("it is refused", || shared(&a, "refused") == 1.0);
    broker.restart();
    [&a, &b].into_iter().for_each(crate::nodes::until_ready);
    assert!(!is_restored(&back(&a, &first)) && !is_restored(&back(&b, &first)), "it was taken");
    assert!(is_restored(&back(&b, &second)));
    assert!(!is_restored(&back(&b, &third)), "it was not stored");
    assert!(is_restored(&back(&a, &third)), "its own node has it");
    let mut client = lost();
    assert_eq!(publish(&b, "news", "1").status, 200);
    assert_eq!(client.hear()["message"], json!(1));
}

fn shared(server: &Server, result: &str) -> f64 {
    server.metrics()[&format!("standfast_sessions_shared_total{{result=\"{result}\"}}")]
}

fn ended(server: &Server, result: &str) -> f64 {
    server.metrics()[&format!("standfast_sessions_ended_total{{result=\"{result}\"}}")]
}

/// Loses a client, and returns its session id once the store has the session.
fn lose(server: &Server, client: Extended) -> String {
    let before = shared(server, "stored");
    let sid = client.sid.clone();
    drop(client);
    eventually("the session is stored", || shared(server, "stored") == before + 1.0);
    sid
}

fn back(server: &Server, sid: &str) -> Extended {
    Extended::connect(server.listen, &format!("?sid={sid}"))
}

fn is_restored(client: &Extended) -> bool {
    client.welcome["restored"] == true
}

#[test]
fn a_client_resumes_on_another_node_and_its_session_is_gone_from_the_first() {
    let Some(redis) = Redis::start(&[]) else { return };
    let [a, b] = nodes(&redis.url(), &[]);
    there_and_back([&a, &b]);
}

#[test]
fn a_session_is_one_key_of_redis() {
    let Some(redis) = Redis::start(&[]) else { return };
    let [a] = nodes(&redis.url(), &[]);
    let mut client = Extended::connect(a.listen, "");
    client.subscribe(&stream("news"));
    lose(&a, client);
    assert_eq!(redis.ask("KEYS *"), "*1");
}

fn there_and_back([a, b]: [&Server; 2]) {
    let mut client = Extended::connect(a.listen, "");
    client.subscribe(&stream("news"));
    client.subscribe(&stream("more"));
    let sid = lose(a, client);
    let mut client = back(b, &sid);
    // What another node has resumed is no session of this one.
    let metrics = a.metrics();
    assert_eq!(metrics["standfast_sessions_stored"], 0.0);
    assert_eq!(metrics["standfast_sessions_stored_copies"], 1.0);
    assert!(is_restored(&client), "{}", client.welcome);
    let ids = client.welcome["restored_ids"].as_array().unwrap();
    assert!(ids.len() == 2 && ids.contains(&json!(stream("more"))), "{ids:?}");
    client.history(&stream("news"), &json!({}));
    assert_eq!(client.hear()["type"], "confirm_history");
    assert_eq!(publish(a, "news", "1").status, 200);
    assert_eq!(client.hear()["message"], json!(1));
    for node in [a, b] {
        assert!(!is_restored(&back(node, &sid)), "it was resumed");
    }
    // There and back again, and by the header; then on the node that it was lost from.
    let sid = lose(b, client);
    let client = Extended::connect_with(a.listen, "", ("X-ANYCABLE-RESTORE-SID", &sid));
    assert!(is_restored(&client));
    let sid = lose(a, client);
    assert!(is_restored(&back(a, &sid)));
    assert_eq!((shared(a, "taken"), shared(b, "taken")), (1.0, 1.0));
    assert_eq!(shared(b, "missing"), 1.0);
    assert_eq!(ended(a, "resumed") + ended(b, "resumed"), 3.0);
    for wrong in ["x".repeat(48), "0".repeat(48), "0".repeat(47)] {
        assert!(!is_restored(&back(b, &wrong)), "{wrong}");
    }
}

#[test]
fn of_two_clients_that_race_for_a_session_one_gets_it() {
    let Some(redis) = Redis::start(&[]) else { return };
    let [a, b] = nodes(&redis.url(), &[]);
    raced_for([&a, &b], 40);
}

fn raced_for([a, b]: [&Server; 2], times: usize) {
    let (mut winners, mut kept) = ([0, 0], Vec::new());
    for _ in 0..times {
        let mut client = Extended::connect(a.listen, "");
        client.subscribe(&stream("news"));
        let sid = lose(a, client);
        let raced = [a, b, a, b].map(|node| {
            let (listen, query) = (node.listen, format!("?sid={sid}"));
            thread::spawn(move || Extended::connect(listen, &query))
        });
        let clients = raced.map(|client| client.join().unwrap());
        let got: Vec<usize> = (0..4).filter(|client| is_restored(&clients[*client])).collect();
        assert_eq!(got.len(), 1, "{got:?}");
        winners[got[0] % 2] += 1;
        // Their sessions would be stored, too.
        kept.extend(clients);
    }
    assert_eq!(winners[0] + winners[1], times, "{winners:?}");
}

#[test]
fn a_session_in_the_store_belongs_to_its_identity() {
    let Some(redis) = Redis::start(&[]) else { return };
    let [a, b] = nodes(&redis.url(), &["--jwt-secret", SECRET]);
    let lost = || {
        let mut client = Extended::connect(a.listen, &format!("?jid={}", token(1)));
        client.subscribe(&stream("news"));
        lose(&a, client)
    };
    let of = |node: &Server, user, sid: &str| {
        is_restored(&Extended::connect(node.listen, &format!("?jid={}&sid={sid}", token(user))))
    };
    let sid = lost();
    assert!(!of(&b, 2, &sid));
    assert!(!of(&b, 1, &sid) && !of(&a, 1, &sid), "whoever tried it has ended it");
    let sid = lost();
    assert!(!of(&a, 2, &sid));
    assert!(!of(&a, 1, &sid));
    let sid = lost();
    assert!(of(&b, 1, &sid));
    // One whose identity is ended meanwhile, at either node.
    let sid = lost();
    let body = json!({"identifier": crate::harness::signing::identifiers(1)}).to_string();
    assert_eq!(a.admin_post("/api/disconnect", &body).status, 200);
    assert!(!of(&a, 1, &sid));
}

#[test]
fn the_clients_of_a_node_that_drains_resume_on_another_one() {
    let Some(redis) = Redis::start(&[]) else { return };
    drains(nodes(&redis.url(), &["--drain", "1s"]));
}

fn drains([mut a, b]: [Server; 2]) {
    const CLIENTS: usize = 50;
    let clients: Vec<Extended> = (0..CLIENTS)
        .map(|number| {
            let mut client = Extended::connect(a.listen, "");
            client.subscribe(&stream("news"));
            client.subscribe(&stream(&format!("room-{number}")));
            client
        })
        .collect();
    let lost_before = clients.len() / 10;
    let mut sids = Vec::new();
    let mut clients = clients.into_iter();
    sids.extend(clients.by_ref().take(lost_before).map(|client| lose(&a, client)));
    a.signal(Signal::TERM);
    let mut restored = Vec::new();
    for mut client in clients {
        loop {
            let frame = client.socket.frame().expect("a close frame before the end");
            if frame.first == CLOSE {
                assert_eq!(frame.payload[..2], 1001_u16.to_be_bytes(), "{frame:?}");
                break;
            }
            // Clients forget their session at `disconnect`.
            assert!(frame.first == TEXT && frame.payload.starts_with(b"{\"type\":\"ping\""));
        }
        restored.push(back(&b, &client.sid));
    }
    assert!(a.wait().success());
    restored.extend(sids.iter().map(|sid| back(&b, sid)));
    let count = restored.iter().filter(|client| is_restored(client)).count();
    assert_eq!((count, restored.len()), (CLIENTS, CLIENTS), "{}", b.log());
    assert_eq!(publish(&b, "news", "1").status, 200);
    for client in &mut restored {
        assert_eq!(client.welcome["restored_ids"].as_array().unwrap().len(), 2);
        client.history(&stream("news"), &json!({}));
        let mut heard = [client.hear(), client.hear()];
        heard.sort_by_key(|message| message["type"].is_string());
        assert_eq!(heard[0]["message"], json!(1), "{heard:?}");
        assert_eq!(heard[1]["type"], "confirm_history", "{heard:?}");
    }
}

#[test]
fn while_the_store_is_away_clients_begin_anew() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let relay = Relay::start(redis.address());
    let [a] = nodes(&redis.url(), &[]);
    let [b] = nodes(&format!("redis://{}", relay.address), &["--pubsub-timeout", "1s"]);
    let lost = |server: &Server| {
        let mut client = Extended::connect(server.listen, "");
        client.subscribe(&stream("news"));
        client
    };
    let sid = lose(&a, lost(&a));
    relay.set(Passage::Held);
    let began = Instant::now();
    let client = back(&b, &sid);
    assert!(!is_restored(&client));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(shared(&b, "unavailable"), 1.0);
    relay.set(Passage::Open);
    eventually("the store has answered", || shared(&b, "taken") == 1.0);
    assert!(!is_restored(&back(&a, &sid)), "it was taken for nobody");
    // Nothing is stored while it is away, and nothing is resumed.
    let client = lost(&a);
    let sid = client.sid.clone();
    redis.kill();
    eventually("it is away", || a.admin_get("/ready").status == 503);
    drop(client);
    eventually("it is refused", || shared(&a, "refused") == 1.0);
    assert!(!is_restored(&back(&a, &sid)) && !is_restored(&back(&b, &sid)));
    redis.restart();
    crate::nodes::until_ready(&a);
    let sid = lose(&a, lost(&a));
    crate::nodes::until_ready(&b);
    assert!(is_restored(&back(&b, &sid)));
}

/// Loses a client that polls no more, and returns its session id.
fn lose_polled(server: &Server, client: Poller) -> String {
    let before = shared(server, "stored");
    eventually("the session is stored", || shared(server, "stored") == before + 1.0);
    client.sid
}

#[test]
fn clients_that_poll_resume_on_their_own_node_and_on_another_one() {
    let Some(redis) = Redis::start(&[]) else { return };
    let polls = ["--long-polling", "--long-polling-flush-interval", "20ms"];
    let times = ["--long-polling-keepalive", "300ms", "--drain", "1s"];
    let [mut a, b] = nodes(&redis.url(), &[&polls[..], &times[..]].concat());
    let back = |node: &Server, sid: &str| {
        let client = Poller::open(node.listen, &format!("?sid={sid}"));
        assert_eq!(client.welcome["restored_ids"], json!([stream("news")]), "{}", client.welcome);
        client
    };
    let mut client = Poller::open(a.listen, "");
    client.subscribe(&stream("news"));
    let first = lose_polled(&a, client);
    let mut client = back(&a, &first);
    client.poll(&[json!({"command": "history", "identifier": stream("news"), "history": {}})]);
    assert_eq!(client.hear()["type"], "confirm_history");
    let sid = lose_polled(&a, client);
    // The commands of the request that resumes are executed once it has.
    let mut client = Poller::new(b.listen, &format!("?sid={sid}"), "");
    let history = json!({"command": "history", "identifier": stream("news"), "history": {}});
    client.begin(&history.to_string());
    assert_eq!(client.welcome["restored_ids"], json!([stream("news")]));
    assert_eq!(client.hear()["type"], "confirm_history");
    assert_eq!(publish(&a, "news", "1").status, 200);
    assert_eq!(client.hear()["message"], 1);
    for sid in [&first, &sid] {
        let anew = Poller::open(a.listen, &format!("?sid={sid}"));
        assert_eq!(anew.welcome["restored"], Value::Null, "it was resumed");
    }
    // A WebSocket resumes what polled, and the other way round.
    let sid = lose_polled(&b, client);
    let socket = self::back(&a, &sid);
    assert!(is_restored(&socket));
    let client = back(&b, &lose(&a, socket));
    let mut client = back(&a, &lose_polled(&b, client));
    // A node that drains answers the request that waits; nothing in it makes the client forget its session.
    client.send("");
    a.signal(Signal::TERM);
    let answer = client.answer();
    assert_eq!((answer.status, &*answer.body), (401, ""));
    back(&b, &client.sid);
    assert!(a.wait().success());
}

fn count(app: &App, name: &str) -> usize {
    app.names().iter().filter(|own| *own == name).count()
}

#[test]
fn the_ends_of_sessions_that_a_drained_node_has_left_are_told_once() {
    let Some(redis) = Redis::start(&[]) else { return };
    ends_are_told(&|flags| one(&redis, flags));
}

#[test]
fn the_ends_of_sessions_that_a_drained_node_has_left_are_told_once_over_nats() {
    let Some(nats) = Keeper::nats() else { return };
    ends_are_told(&|flags| nats.node(flags));
}

fn one(redis: &Redis, flags: &[&str]) -> Server {
    let [node] = nodes(&redis.url(), flags);
    node
}

fn ends_are_told(start: Start<'_>) {
    const CLIENTS: usize = 6;
    let app = App::start(chat);
    let url = app.url();
    let flags =
        ["--rpc-host", &url, "--sessions-ttl", "4s", "--drain", "1s", "--broadcast-key", "k"];
    let join = |server: &Server, query: &str| {
        Extended::connect_with(server.listen, query, ("Cookie", "user=ann"))
    };
    let mut a = start(&flags);
    let mut clients: Vec<Extended> = (0..CLIENTS).map(|_| join(&a, "")).collect();
    clients.iter_mut().for_each(|client| client.subscribe(&room("lobby").to_string()));
    let mut left: Vec<String> = clients.iter().map(|client| client.sid.clone()).collect();
    lose(&a, clients.pop().unwrap());
    a.signal(Signal::TERM);
    assert!(a.wait().success());
    // Also by nodes that have started since.
    let [b, c] = [start(&flags), start(&flags)];
    let resumed = join(&b, &format!("?sid={}", left.pop().unwrap()));
    assert!(is_restored(&resumed), "{}", resumed.welcome);
    let told = || {
        let calls = app.calls();
        let ended = calls.iter().filter(|call| call.name() == "disconnect");
        let mut sids: Vec<String> = ended.map(|call| call.sid().to_owned()).collect();
        sids.sort();
        sids
    };
    left.sort();
    eventually("their ends are told", || told().len() >= left.len());
    assert_eq!(told(), left);
    assert_eq!(shared(&b, "told") + shared(&c, "told"), left.len() as f64);
    // One that a request ends is told of at once, and nobody resumes it.
    let sid = lose(&b, resumed);
    let body = json!({"identifier": json!({"sid": sid}).to_string()}).to_string();
    assert_eq!(c.admin_post("/api/disconnect", &body).status, 200);
    eventually("its end is told", || told().contains(&sid));
    assert!(!is_restored(&join(&c, &format!("?sid={sid}"))));
}

#[test]
fn a_request_ends_sessions_that_a_drained_node_has_left() {
    let Some(redis) = Redis::start(&[]) else { return };
    a_request_ends(&|flags| one(&redis, flags));
}

#[test]
fn a_request_ends_sessions_that_a_drained_node_has_left_over_nats() {
    let Some(nats) = Keeper::nats() else { return };
    a_request_ends(&|flags| nats.node(flags));
}

fn a_request_ends(start: Start<'_>) {
    let flags = ["--jwt-secret", SECRET, "--drain", "100ms"];
    let [mut a, b] = [start(&flags), start(&flags)];
    let sids = [1, 2, 1].map(|user| {
        let mut client = Extended::connect(a.listen, &format!("?jid={}", token(user)));
        client.subscribe(&stream("news"));
        lose(&a, client)
    });
    a.signal(Signal::TERM);
    assert!(a.wait().success());
    let resumes = |node: &Server, user, sid: &str| {
        let client = Extended::connect(node.listen, &format!("?jid={}&sid={sid}", token(user)));
        (is_restored(&client), client)
    };
    assert!(resumes(&b, 1, &sids[2]).0, "before the request");
    let body = json!({"identifier": crate::harness::signing::identifiers(1)}).to_string();
    assert_eq!(b.admin_post("/api/disconnect", &body).status, 200);
    // By nodes that have not got the request, too.
    let c = start(&["--jwt-secret", SECRET]);
    assert!(!resumes(&c, 1, &sids[0]).0, "it was ended");
    assert_eq!(ended(&c, "ended"), 1.0);
    assert!(resumes(&c, 2, &sids[1]).0, "another identity");
}

#[test]
fn the_application_is_not_called_at_a_resume_and_learns_of_each_end_once() {
    let Some(redis) = Redis::start(&[]) else { return };
    let app = App::start(chat);
    let [a, b] = nodes(&redis.url(), &["--rpc-host", &app.url(), "--sessions-ttl", "3s"]);
    let join = |server: &Server, query: &str| {
        Extended::connect_with(server.listen, query, ("Cookie", "user=ann"))
    };
    let lobby = room("lobby").to_string();
    let mut client = join(&a, "");
    client.subscribe(&lobby);
    let first = lose(&a, client);
    let before = app.calls().len();
    let mut client = join(&b, &format!("?sid={first}"));
    assert_eq!(client.welcome["restored_ids"], json!([lobby]));
    assert_eq!(app.calls().len(), before);
    // Its states and streams.
    client.send(&json!({"command": "message", "identifier": lobby, "data": "{}"}));
    eventually("it is called", || count(&app, "message") == 1);
    let calls = app.calls();
    let call = calls.last().unwrap();
    assert_eq!(call.sid(), client.sid);
    assert_eq!(call.body["connection_identifiers"], json!({"user": "ann"}).to_string());
    assert_eq!(call.body["env"]["cstate"], json!({"since": "now"}));
    // Other cookies are another client's: it ends there.
    let sid = lose(&b, client);
    let other = Extended::connect_with(a.listen, &format!("?sid={sid}"), ("Cookie", "user=bob"));
    assert_eq!(other.welcome["restored"], Value::Null);
    eventually("its end is told", || count(&app, "disconnect") == 1);
    // One that nobody resumes is told of by the node that stored it.
    let sid = lose(&a, join(&a, ""));
    eventually("its end is told", || count(&app, "disconnect") == 2);
    assert_eq!(app.calls().last().unwrap().sid(), sid);
    assert!(join(&b, &format!("?sid={sid}")).welcome["restored"].is_null());
    // Of the one that was resumed elsewhere, the first node tells nothing.
    eventually("its copy has expired", || {
        let copies = |node: &Server| node.metrics()["standfast_sessions_stored_copies"];
        copies(&a) + copies(&b) <= 1.0
    });
    let sids: Vec<String> = app
        .calls()
        .iter()
        .filter(|call| call.name() == "disconnect")
        .map(|call| call.sid().to_owned())
        .collect();
    assert!(!sids.contains(&first), "{sids:?}");
}
