//! Sessions that an application knows and that continue on another connection: it is called for none of it,
//! and learns once of each end. Missed messages of its channels, which have several streams.

use std::sync::Mutex;
use std::sync::mpsc;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::app::{Answer, App, Call, room};
use crate::harness::cable::Extended;
use crate::harness::eventually;
use crate::harness::peer::{self, Program};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, derived_key, token};

/// No messages of either stream.
const NONE: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;

/// As [`crate::harness::app::chat`], with two streams for each room, to one of which its clients whisper. The
/// data of an action is the answer.
fn chat(call: &Call) -> Answer {
    let params: Value = serde_json::from_str(call.identifier()).unwrap_or_default();
    let name = params["room"].as_str().unwrap_or_default();
    let streams = [format!("{name}:1"), format!("{name}:2")];
    match call.name() {
        "subscribe" => Answer::Json(json!({
            "status": 1,
            "streams": streams,
            "env": {"istate": {"room": name, "$w": streams[0]}},
        })),
        "message" => {
            let data = call.body["data"].as_str().unwrap_or_default();
            let mut answer: Value = serde_json::from_str(data).expect("an answer");
            answer["status"] = json!(1);
            answer["transmissions"] =
                json!([json!({"identifier": call.identifier(), "message": "done"}).to_string()]);
            Answer::Json(answer)
        }
        _ => crate::harness::app::chat(call),
    }
}

fn server(app: &App, more: &[&str]) -> Server {
    let url = app.url();
    let fixed = ["--rpc-host", &url, "--history", "memory"];
    Server::start(&[&fixed[..], more].concat())
}

fn join(server: &Server, user: &str, query: &str) -> Extended {
    let cookie = format!("user={user}");
    Extended::connect_with(server.listen, query, ("Cookie", &cookie))
}

fn back(server: &Server, user: &str, sid: &str) -> Extended {
    join(server, user, &format!("?sid={sid}"))
}

fn publish(server: &Server, topic: &str, data: &str) {
    assert_eq!(server.publish(&json!({"topic": topic, "data": data})).status, 200);
}

fn epoch(server: &Server) -> Value {
    let reply = server.publish(&json!({"topic": "nobody", "data": "0"}));
    reply.json()["epoch"].clone()
}

fn until_stored(server: &Server, count: f64) {
    eventually("the session is stored", || server.metrics()["standfast_sessions_stored"] == count);
}

fn ended(server: &Server, result: &str) -> f64 {
    server.metrics()[&format!("standfast_sessions_ended_total{{result=\"{result}\"}}")]
}

fn count(app: &App, name: &str) -> usize {
    app.names().iter().filter(|own| *own == name).count()
}

/// The offsets of the messages up to the confirmation, by stream.
fn missed(client: &mut Extended, identifier: &str, streams: [&str; 2]) -> [Vec<u64>; 2] {
    let mut offsets = [Vec::new(), Vec::new()];
    loop {
        let message = client.hear();
        assert_eq!(message["identifier"], identifier, "{message}");
        if message["type"] == "confirm_history" {
            return offsets;
        }
        let at = streams.iter().position(|name| message["stream_id"] == *name);
        offsets[at.expect("one of its streams")]
            .push(message["offset"].as_u64().expect("a number"));
    }
}

fn after(epoch: &Value, positions: &[(&str, u64)]) -> Value {
    let position = |(stream, offset): &(&str, u64)| {
        ((*stream).to_owned(), json!({"epoch": epoch, "offset": offset}))
    };
    json!({"streams": positions.iter().map(position).collect::<serde_json::Map<_, _>>()})
}

/// Performs an action with this answer.
fn act(client: &mut Extended, identifier: &str, answer: &Value) {
    let data = answer.to_string();
    client.send(&json!({"command": "message", "identifier": identifier, "data": data}));
    assert_eq!(client.hear()["message"], "done");
}

#[test]
fn a_session_is_resumed_without_a_call_and_ends_once() {
    let app = App::start(chat);
    let server = server(&app, &[]);
    let epoch = epoch(&server);
    let mut client = join(&server, "ann", "");
    let (lobby, bar) = (room("lobby").to_string(), room("bar").to_string());
    for identifier in [&*lobby, &bar, NEWS] {
        client.subscribe(identifier);
    }
    act(&mut client, &lobby, &json!({"env": {"cstate": {"n": "2"}, "istate": {"seen": "7"}}}));
    act(&mut client, &lobby, &json!({"streams": ["more"], "stopped_streams": ["lobby:2"]}));
    publish(&server, "lobby:1", "1");
    assert_eq!(client.hear()["offset"], 1);
    let first = client.sid.clone();
    drop(client);
    until_stored(&server, 1.0);
    assert_eq!(server.metrics()["standfast_subscriptions"], 0.0);
    let before = app.calls().len();
    for (topic, data) in [("lobby:1", "2"), ("lobby:2", "3"), ("more", "4"), ("lobby:1", "5")] {
        publish(&server, topic, data);
    }
    let mut client = back(&server, "ann", &first);
    assert_eq!(client.welcome["restored"], true);
    let mut ids: Vec<&str> = client.welcome["restored_ids"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    ids.sort_unstable();
    let mut expected = [&*lobby, &bar, NEWS];
    expected.sort_unstable();
    assert_eq!(ids, expected);
    publish(&server, "more", "6");
    client.history(&lobby, &after(&epoch, &[("lobby:1", 1), ("more", 0)]));
    assert_eq!(missed(&mut client, &lobby, ["lobby:1", "more"]), [vec![2, 3], vec![1, 2]]);
    publish(&server, "lobby:1", "7");
    assert_eq!(client.hear()["offset"], 4);
    // Its states, its identity and its whispers.
    let mut other = join(&server, "bob", "");
    other.subscribe(&lobby);
    client.send(&json!({"command": "whisper", "identifier": lobby, "data": "psst"}));
    let heard = other.hear();
    assert_eq!((&heard["message"], &heard["offset"]), (&json!("psst"), &Value::Null));
    assert_eq!(app.calls().len(), before + 2, "those of the other client");
    act(&mut client, &lobby, &json!({}));
    let calls = app.calls();
    let call = calls.last().unwrap();
    assert_eq!(call.sid(), client.sid);
    assert_eq!(call.body["connection_identifiers"], json!({"user": "ann"}).to_string());
    assert_eq!(call.body["env"]["cstate"], json!({"since": "now", "n": "2"}));
    let istate = json!({"room": "lobby", "$w": "lobby:1", "seen": "7"});
    assert_eq!(call.body["env"]["istate"], istate);
    // A second time; then the application ends it while it has no connection.
    let second = client.sid.clone();
    drop(client);
    until_stored(&server, 1.0);
    let third = back(&server, "ann", &second).sid;
    assert_eq!(back(&server, "ann", &first).welcome["restored"], Value::Null, "that was another");
    until_stored(&server, 2.0);
    assert_eq!(count(&app, "disconnect"), 0);
    let body = json!({"identifier": json!({"user": "ann"}).to_string()}).to_string();
    assert_eq!(server.admin_post("/api/disconnect", &body).status, 200);
    eventually("both have ended", || count(&app, "disconnect") == 2);
    assert_eq!(back(&server, "ann", &third).welcome["restored"], Value::Null);
    assert_eq!((count(&app, "connect"), ended(&server, "resumed")), (4, 2.0));
    let calls = app.calls();
    let told = calls.iter().find(|call| call.name() == "disconnect" && call.sid() == third);
    let told = told.expect("the end of the resumed session");
    assert_eq!(told.body["subscriptions"], json!([lobby, bar]));
    let states = json!({
        lobby: istate.to_string(),
        bar: json!({"room": "bar", "$w": "bar:1"}).to_string(),
    });
    let same = |own: &Value, other: &Value| {
        let text = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_default();
        let parsed = |value| serde_json::from_str::<Value>(&text(value)).unwrap_or_default();
        parsed(own) == parsed(other)
    };
    for name in [&room("lobby").to_string(), &room("bar").to_string()] {
        assert!(same(&told.body["env"]["istate"][name], &states[name]), "{}", told.body);
    }
    assert_eq!(told.body["identifiers"], json!({"user": "ann"}).to_string());
}

#[test]
fn the_application_hears_of_an_end_when_a_session_has_expired() {
    let app = App::start(chat);
    let server = server(&app, &["--sessions-ttl", "1s"]);
    let mut client = join(&server, "ann", "");
    client.subscribe(&room("a").to_string());
    let sid = client.sid.clone();
    drop(client);
    eventually("it is told", || count(&app, "disconnect") == 1);
    assert_eq!((ended(&server, "expired"), ended(&server, "resumed")), (1.0, 0.0));
    assert_eq!(app.calls().last().unwrap().sid(), sid);
    assert_eq!(back(&server, "ann", &sid).welcome["restored"], Value::Null);
    assert_eq!(count(&app, "connect"), 2);
    // Without the extended protocol there is nothing to resume: at once.
    drop(
        crate::harness::cable::Cable::connect(server.listen, "", "", ("Cookie", "user=x"))
            .welcomed(),
    );
    eventually("it is told", || count(&app, "disconnect") >= 2);
}

/// The cookies of a handshake identify its client; so does a token.
#[test]
fn a_session_is_resumed_by_its_own_client_only() {
    let app = App::start(chat);
    let server = server(&app, &["--jwt-secret", SECRET]);
    let lost = join(&server, "ann", "").sid;
    until_stored(&server, 1.0);
    let bob = back(&server, "bob", &lost);
    assert_eq!(bob.welcome["restored"], Value::Null);
    eventually("the first has ended", || count(&app, "disconnect") == 1);
    let calls = app.calls();
    assert_eq!(calls.last().unwrap().sid(), lost);
    assert_eq!(back(&server, "ann", &lost).welcome["restored"], Value::Null, "single use");
    drop(bob);
    // With a token the headers may differ.
    let query = |user| format!("?jid={}", token(user));
    let mut client = join(&server, "", &query(7));
    client.subscribe(&room("a").to_string());
    let sid = client.sid.clone();
    let stored = server.metrics()["standfast_sessions_stored"];
    drop(client);
    until_stored(&server, stored + 1.0);
    let with = |user, sid: &str| format!("{}&sid={sid}", query(user));
    let client = join(&server, "another", &with(7, &sid));
    assert_eq!(client.welcome["restored_ids"], json!([room("a").to_string()]));
    let sid = client.sid.clone();
    drop(client);
    until_stored(&server, stored + 1.0);
    assert_eq!(join(&server, "", &with(8, &sid)).welcome["restored"], Value::Null);
    assert_eq!(ended(&server, "resumed"), 1.0);
}

/// What becomes of the command is not known to the client: it begins anew.
#[test]
fn a_connection_lost_during_a_call_is_not_resumed() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let app = App::start(move |call| {
        if call.name() == "message" {
            let _ = wait.lock().unwrap().recv();
        }
        chat(call)
    });
    let server = server(&app, &["--rpc-timeout", "60s"]);
    let mut client = join(&server, "ann", "");
    let a = room("a").to_string();
    client.subscribe(&a);
    client.send(&json!({"command": "message", "identifier": a, "data": "{}"}));
    eventually("it is called", || count(&app, "message") == 1);
    let sid = client.sid.clone();
    drop(client);
    eventually("it has left", || server.metrics()["standfast_websockets"] == 0.0);
    assert_eq!(back(&server, "ann", &sid).welcome["restored"], Value::Null);
    assert_eq!(count(&app, "disconnect"), 0, "not before the answer");
    release.send(()).unwrap();
    eventually("its end is told", || count(&app, "disconnect") == 1);
    assert_eq!(app.calls().last().unwrap().sid(), sid);
}

#[test]
fn a_server_that_ends_tells_of_sessions_that_could_have_been_resumed() {
    let app = App::start(chat);
    let mut server = server(&app, &[]);
    for _ in 0..20 {
        drop(join(&server, "ann", ""));
    }
    until_stored(&server, 20.0);
    assert_eq!(count(&app, "disconnect"), 0);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(count(&app, "disconnect"), 20);
}

/// A queue that is full refuses those that the application would have to be called for.
#[test]
fn sessions_are_resumed_while_the_application_is_away() {
    let app = App::start(chat);
    let server = server(&app, &["--rpc-queue", "1", "--rpc-concurrency", "1"]);
    let mut client = join(&server, "ann", "");
    let a = room("a").to_string();
    client.subscribe(&a);
    let sid = client.sid.clone();
    drop((client, app));
    until_stored(&server, 1.0);
    let mut waiting = Vec::new();
    eventually("the queue is full", || {
        let mut socket = crate::harness::socket::Socket::connect(server.listen);
        socket.send(crate::harness::socket::upgrade("/cable", &[]).as_bytes());
        let status = socket.response().status;
        waiting.push(socket);
        status == 503
    });
    let mut client = back(&server, "ann", &sid);
    assert_eq!(client.welcome["restored_ids"], json!([a]));
    client.history(&a, &json!({}));
    assert_eq!(client.hear()["type"], "confirm_history");
    publish(&server, "a:2", "1");
    assert_eq!(client.hear()["message"], 1);
}

/// All streams of a subscription, those that an action has added as well.
#[test]
fn missed_messages_of_all_streams_of_a_subscription_are_sent() {
    let app = App::start(chat);
    let server = server(&app, &["--history-limit", "5"]);
    let epoch = epoch(&server);
    for number in 1..=3 {
        publish(&server, "a:1", &number.to_string());
        publish(&server, "a:2", &number.to_string());
        publish(&server, "three", &number.to_string());
    }
    let a = room("a").to_string();
    let both = ["a:1", "a:2"];
    let mut client = join(&server, "ann", "");
    client.subscribe_with(&a, &after(&epoch, &[("a:1", 1), ("a:2", 2)]));
    assert_eq!(client.hear(), json!({"type": "confirm_subscription", "identifier": a}));
    assert_eq!(missed(&mut client, &a, both), [vec![2, 3], vec![3]]);
    // As a command of its own: positions for one stream, nothing for the other.
    client.history(&a, &after(&epoch, &[("a:1", 0)]));
    assert_eq!(missed(&mut client, &a, both), [vec![1, 2, 3], vec![]]);
    act(&mut client, &a, &json!({"streams": ["three"], "stopped_streams": ["a:2"]}));
    client.history(&a, &after(&epoch, &[("three", 1), ("a:1", 3), ("a:2", 0)]));
    assert_eq!(missed(&mut client, &a, ["three", "a:1"]), [vec![2, 3], vec![]]);
    act(&mut client, &a, &json!({"stop_streams": true}));
    client.history(&a, &after(&epoch, &[("three", 1)]));
    assert_eq!(missed(&mut client, &a, both), NONE, "there are none");
    // One stream without what was requested refuses for all, once; messages go on.
    act(&mut client, &a, &json!({"streams": ["a:1", "three"]}));
    for number in 4..=8 {
        publish(&server, "three", &number.to_string());
        assert_eq!(client.hear()["offset"], number);
    }
    client.history(&a, &after(&epoch, &[("a:1", 0), ("three", 1)]));
    assert_eq!(client.hear(), json!({"type": "reject_history", "identifier": a}));
    publish(&server, "a:1", "9");
    assert_eq!(client.hear()["offset"], 4);
    client.history(&room("b").to_string(), &json!({}));
    assert_eq!(client.hear()["type"], "reject_history", "not subscribed");
    // Whispers are not kept.
    let mut other = join(&server, "bob", "");
    other.subscribe(&a);
    other.send(&json!({"command": "whisper", "identifier": a, "data": "psst"}));
    assert_eq!(client.hear()["message"], "psst");
    publish(&server, "a:1", "10");
    assert_eq!(client.hear()["offset"], 5);
}

/// A stream that an answer ends and begins again while a resumed client has yet to ask for what it missed.
#[test]
fn streams_change_before_a_resumed_client_asks_for_messages() {
    let app = App::start(chat);
    let server = server(&app, &[]);
    let epoch = epoch(&server);
    let a = room("a").to_string();
    let mut client = join(&server, "ann", "");
    client.subscribe(&a);
    let sid = client.sid.clone();
    drop(client);
    until_stored(&server, 1.0);
    let mut client = back(&server, "ann", &sid);
    publish(&server, "a:1", "1");
    publish(&server, "a:2", "1");
    act(&mut client, &a, &json!({"stopped_streams": ["a:2"]}));
    publish(&server, "a:2", "2");
    act(&mut client, &a, &json!({"streams": ["a:2"]}));
    publish(&server, "a:2", "3");
    assert_eq!(client.hear()["offset"], 3, "as a new stream");
    client.history(&a, &json!({}));
    assert_eq!(missed(&mut client, &a, ["a:1", "a:2"]), [vec![1], vec![]]);
    client.history(&a, &after(&epoch, &[("a:2", 0)]));
    assert_eq!(missed(&mut client, &a, ["a:1", "a:2"]), [vec![], vec![1, 2, 3]]);
}

/// Many clients lose their connections at once and return at once, while messages are published: each gets each
/// message once, and the application is called for none of it.
#[test]
fn many_clients_are_away_for_a_while_and_miss_nothing() {
    const CLIENTS: usize = 200;
    const MESSAGES: u64 = 300;
    let app = App::start(chat);
    let limit = (2 * MESSAGES).to_string();
    let server = server(&app, &["--history-limit", &limit]);
    let epoch = epoch(&server);
    let a = room("a").to_string();
    let join = |number: usize, query: &str| join(&server, &format!("u{number}"), query);
    let mut clients: Vec<Extended> = (0..CLIENTS).map(|number| join(number, "")).collect();
    clients.iter_mut().for_each(|client| client.subscribe(&a));
    let calls = app.calls().len();
    let publish_some = |range: std::ops::RangeInclusive<u64>| {
        range.for_each(|number| publish(&server, "a:1", &number.to_string()));
    };
    publish_some(1..=100);
    // Each has read another part of them.
    let read: Vec<u64> = (0..CLIENTS as u64).map(|number| number % 101).collect();
    for (client, count) in clients.iter_mut().zip(&read) {
        for number in 1..=*count {
            assert_eq!(client.hear()["message"], number);
        }
    }
    let sids: Vec<String> = clients.iter().map(|client| client.sid.clone()).collect();
    drop(clients);
    publish_some(101..=200);
    until_stored(&server, CLIENTS as f64);
    std::thread::scope(|scope| {
        scope.spawn(|| publish_some(201..=MESSAGES));
        let mut back = Vec::new();
        for (number, sid) in sids.iter().enumerate() {
            let mut client = join(number, &format!("?sid={sid}"));
            assert_eq!(client.welcome["restored"], true);
            client.history(&a, &after(&epoch, &[("a:1", read[number])]));
            back.push(client);
        }
        for (client, count) in back.iter_mut().zip(&read) {
            let mut next = count + 1;
            while next <= MESSAGES {
                let message = client.hear();
                if message["type"] != "confirm_history" {
                    assert_eq!(
                        (&message["message"], &message["offset"]),
                        (&json!(next), &json!(next))
                    );
                    next += 1;
                }
            }
        }
    });
    assert_eq!((app.calls().len(), ended(&server, "resumed")), (calls, CLIENTS as f64));
}

#[test]
fn anycable_clients_of_an_application_resume_with_each_message_once() {
    let args = ["serve", SECRET];
    let Some(app) = Program::start(&peer::APPLICATION, "cable_app.js", &args) else { return };
    let url = format!("http://127.0.0.1:{}/_anycable", app.first_line());
    let key = derived_key("rpc-cable");
    let flags = ["--history", "memory", "--history-limit", "10k", "--sessions-ttl", "60s"];
    let server =
        Server::start(&[&flags[..], &["--rpc-host", &url, "--http-rpc-secret", &key]].concat());
    let (listen, admin) = (format!("ws://{}", server.listen), format!("http://{}", server.admin));
    let args = [&*listen, &admin, "application"];
    let expected = ["each message once"];
    peer::works(&peer::APPLICATION, "anycable_history.js", &args, &expected);
    let calls = |method: &str| {
        let name = format!("standfast_app_calls_total{{method=\"{method}\",status=\"success\"}}");
        server.metrics().get(&name).copied().unwrap_or_default()
    };
    // Each session ends once: it was resumed, or its end is told when it has expired.
    let (connects, resumed) = (calls("connect"), ended(&server, "resumed"));
    assert!(resumed > 0.0 && connects >= 6.0, "{connects} {resumed}");
    assert_eq!(calls("subscribe"), connects, "one channel each");
}
