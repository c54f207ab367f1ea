//! Who is present, frame by frame: clients of the extended protocol, applications' answers, and the API.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::app::{Answer, App, room};
use crate::harness::cable::{Cable, Extended};
use crate::harness::server::Server;
use crate::harness::signing::SECRET;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::{eventually, http};

const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;
const MEMORY: [&str; 4] = ["--presence", "memory", "--presence-window", "50ms"];

fn server(more: &[&str]) -> Server {
    Server::start(&[&MEMORY[..], more].concat())
}

fn subscribed(server: &Server) -> Extended {
    let mut client = Extended::connect(server.listen, "");
    client.subscribe(NEWS);
    client
}

fn join(client: &mut Extended, id: &str, info: Value) {
    let presence = json!({"id": id, "info": info});
    client.send(&json!({"command": "join", "identifier": NEWS, "presence": presence}));
}

fn event(message: Value) -> Value {
    json!({"type": "presence", "identifier": NEWS, "message": message})
}

fn joined(id: &str, info: Value) -> Value {
    event(json!({"type": "join", "id": id, "info": info}))
}

fn left(id: &str) -> Value {
    event(json!({"type": "leave", "id": id}))
}

fn error() -> Value {
    event(json!({"type": "error"}))
}

/// Who is present, as the API says.
fn members(server: &Server, topic: &str) -> Vec<String> {
    let reply = http::get(server.admin, &format!("/api/presence/{topic}/users"));
    assert_eq!(reply.status, 200, "{reply:?}");
    let info = reply.json();
    let records = info["records"].as_array().unwrap();
    assert_eq!((&info["type"], &info["total"]), (&json!("info"), &json!(records.len())));
    records.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn members_join_and_leave_and_subscribers_are_told() {
    let server = server(&["--workers", "2"]);
    let mut watcher = subscribed(&server);
    let mut ann = subscribed(&server);
    join(&mut ann, "ann", json!({"name": "Ann"}));
    let event_of_ann = joined("ann", json!({"name": "Ann"}));
    assert_eq!((ann.hear(), watcher.hear()), (event_of_ann.clone(), event_of_ann));
    watcher.send(&json!({"command": "presence", "identifier": NEWS}));
    let records = json!([{"id": "ann", "info": {"name": "Ann"}}]);
    assert_eq!(watcher.hear(), event(json!({"type": "info", "total": 1, "records": records})));
    let data = json!({"return_records": false});
    watcher.send(&json!({"command": "presence", "identifier": NEWS, "data": data}));
    assert_eq!(watcher.hear(), event(json!({"type": "info", "total": 1, "records": []})));
    assert_eq!(members(&server, "news"), ["ann"]);
    // With the subscription, and away with it.
    let mut bob = Extended::connect(server.listen, "");
    let presence = json!({"id": "bob"});
    bob.send(&json!({"command": "subscribe", "identifier": NEWS, "presence": presence}));
    assert_eq!(bob.hear()["type"], "confirm_subscription");
    let event_of_bob = event(json!({"type": "join", "id": "bob"}));
    assert_eq!((watcher.hear(), bob.hear()), (event_of_bob.clone(), event_of_bob));
    bob.send(&json!({"command": "unsubscribe", "identifier": NEWS}));
    assert_eq!(watcher.hear(), left("bob"));
    ann.send(&json!({"command": "leave", "identifier": NEWS}));
    assert_eq!(watcher.hear(), left("ann"));
    assert_eq!(members(&server, "news"), [""; 0]);
    let metrics = server.metrics();
    assert_eq!(metrics["standfast_presence_bytes"], 0.0);
    assert_eq!(metrics["standfast_presence_changes_total{change=\"join\"}"], 2.0);
    assert_eq!(metrics["standfast_presence_changes_total{change=\"leave\"}"], 2.0);
    assert_eq!(metrics["standfast_presence_events_total{type=\"join\"}"], 2.0);
    assert_eq!(server.admin_get("/api/stats").json()["presence"]["left"], 2);
}

/// Plain topics and clients of the base protocol have no field for these events.
#[test]
fn only_protocols_with_types_get_events() {
    let server = server(&[]);
    let mut plain = Socket::open(server.listen, "/topics/news");
    let mut base = Cable::join(server.listen, None).welcomed();
    assert_eq!(base.subscribe(&serde_json::from_str(NEWS).unwrap()), "confirm_subscription");
    let mut stream = Socket::connect(server.listen);
    stream.send(b"GET /events?topic=news HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    let topics = || server.metrics()["standfast_subscriptions"];
    eventually("all are subscribed", || topics() == 3.0);
    let mut ann = subscribed(&server);
    join(&mut ann, "ann", json!(1));
    assert_eq!(ann.hear(), joined("ann", json!(1)));
    let expected = "event: presence\ndata: {\"type\":\"join\",\"id\":\"ann\",\"info\":1}\n\n";
    stream.text_until(expected);
    assert_eq!(server.publish(&json!({"topic": "news", "data": "7"})).status, 200);
    assert_eq!(plain.frame().unwrap().payload, b"7");
    assert_eq!(base.hear()["message"], 7);
    let command = json!({"command": "join", "identifier": NEWS, "presence": {"id": "x"}});
    base.socket.send_frame(TEXT, command.to_string().as_bytes());
    assert_eq!(base.hear(), error(), "not in the base protocol");
    assert_eq!(members(&server, "news"), ["ann"]);
}

#[test]
fn a_member_with_several_tabs_joins_once_and_leaves_once() {
    let server = server(&["--presence-ttl", "300ms"]);
    let mut watcher = subscribed(&server);
    let mut tabs: Vec<Extended> = (0..3).map(|_| subscribed(&server)).collect();
    for tab in &mut tabs {
        join(tab, "ann", json!(1));
    }
    assert_eq!(watcher.hear(), joined("ann", json!(1)));
    tabs[0].send(&json!({"command": "leave", "identifier": NEWS}));
    drop(tabs.remove(1));
    let mut bob = subscribed(&server);
    join(&mut bob, "bob", json!(2));
    assert_eq!(watcher.hear(), joined("bob", json!(2)), "no other event before");
    // The last tab loses its connection, and comes back in time.
    drop(tabs);
    let mut back = subscribed(&server);
    join(&mut back, "ann", json!(1));
    // Then the member is away for good.
    drop(back);
    let since = Instant::now();
    assert_eq!(watcher.hear(), left("ann"));
    assert!(since.elapsed() >= Duration::from_millis(250), "{:?}", since.elapsed());
    eventually("it is counted", || {
        server.metrics()["standfast_presence_changes_total{change=\"expire\"}"] == 1.0
    });
    assert_eq!(members(&server, "news"), ["bob"]);
}

#[test]
fn what_cannot_be_is_an_error_and_counted() {
    let server = server(&["--presence-bytes", "4KiB"]);
    let mut client = Extended::connect(server.listen, "");
    join(&mut client, "ann", json!(1));
    assert_eq!(client.hear(), error(), "not subscribed");
    client.send(&json!({"command": "presence", "identifier": NEWS}));
    assert_eq!(client.hear(), error());
    client.subscribe(NEWS);
    join(&mut client, &"x".repeat(300), json!(1));
    assert_eq!(client.hear(), error(), "a long id");
    join(&mut client, "ann", json!("x".repeat(5000)));
    assert_eq!(client.hear(), error(), "a long info");
    join(&mut client, "ann", json!(1));
    assert_eq!(client.hear(), joined("ann", json!(1)));
    join(&mut client, "bob", json!(1));
    assert_eq!(client.hear(), error(), "two ids at once");
    let mut others: Vec<Extended> = Vec::new();
    for number in 0..20 {
        let mut other = subscribed(&server);
        join(&mut other, &format!("member {number}"), json!("x".repeat(100)));
        others.push(other);
    }
    let refused = |cause: &str| {
        server.metrics()[&format!("standfast_presence_refused_total{{cause=\"{cause}\"}}")]
    };
    eventually("the limit is reached", || refused("bytes") >= 10.0);
    assert_eq!((refused("stream"), refused("record"), refused("other_id")), (2.0, 2.0, 1.0));
    eventually("it is logged", || server.log().contains("presence refused: the limit of memory"));
    let metrics = server.metrics();
    assert!(metrics["standfast_presence_bytes"] <= 4096.0, "{metrics:?}");
    assert_eq!(metrics["standfast_presence_members"], 21.0 - refused("bytes"));
}

/// A client that joins again replaces its info, which counts for its connection as it is then.
#[test]
fn another_info_counts_for_the_connection() {
    let server = server(&["--max-subscription-bytes", "3KiB"]);
    let mut client = subscribed(&server);
    let held = || server.metrics()["standfast_subscription_bytes"];
    join(&mut client, "ann", json!(1));
    assert_eq!(client.hear(), joined("ann", json!(1)));
    let least = held();
    join(&mut client, "ann", json!("x".repeat(1000)));
    eventually("the info counts", || held() == least + 1001.0);
    join(&mut client, "ann", json!("x".repeat(3000)));
    assert_eq!(client.hear(), error(), "too long beside the subscription");
    join(&mut client, "ann", json!(2));
    eventually("the shorter one counts", || held() == least);
    let refused = "standfast_presence_refused_total{cause=\"connection\"}";
    assert_eq!(server.metrics()[refused], 1.0);
    client.send(&json!({"command": "unsubscribe", "identifier": NEWS}));
    eventually("nothing is left", || held() == 0.0);
}

#[test]
fn without_presence_commands_and_the_api_say_so() {
    let server = Server::start(&[]);
    let mut client = subscribed(&server);
    join(&mut client, "ann", json!(1));
    assert_eq!(client.hear(), error());
    let reply = http::get(server.admin, "/api/presence/news/users");
    assert_eq!((reply.status, &reply.json()["error"]), (501, &json!("presence_off")));
    assert_eq!(server.admin_get("/api/stats").json()["presence"], Value::Null);
}

#[test]
fn the_api_needs_the_key_and_decodes_names() {
    let server = server(&["--secret", SECRET, "--public-streams"]);
    let path = "/api/presence/a%2Fb%20c/users";
    assert_eq!(http::get(server.admin, path).status, 401);
    let mut client = Extended::connect(server.listen, "");
    let identifier = json!({"channel": "$pubsub", "stream_name": "a/b c"}).to_string();
    client.subscribe(&identifier);
    let presence = json!({"id": "ann"});
    client.send(&json!({"command": "join", "identifier": identifier, "presence": presence}));
    client.hear();
    // Computed by Python's hmac, from the secret and "api-cable".
    let key = "1db397202b5bd68b12665b638515c3aeac9100f721fd7c4fcb6f29c69f32c886";
    let ask = |method: &str, path: &str| {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\
             Connection: close\r\n\r\n"
        );
        http::ask(server.admin, &request)
    };
    assert_eq!(ask("GET", path).json()["records"], json!([{"id": "ann"}]));
    assert_eq!(ask("GET", "/api/presence/none/users").json()["total"], 0);
    assert_eq!(ask("GET", &format!("/api/presence/{}/users", "x".repeat(300))).status, 400);
    assert_eq!(ask("DELETE", path).status, 405);
}

/// Answers that let clients join the stream of their room, by name or by action.
fn lobby(call: &crate::harness::app::Call) -> Answer {
    let id = call.body["connection_identifiers"].as_str().unwrap_or_default();
    match call.method() {
        "connect" => {
            let cookie = call.body["env"]["headers"]["cookie"].as_str().unwrap_or_default();
            Answer::Json(json!({"status": 1, "identifiers": cookie.replace("user=", "")}))
        }
        "command" => {
            let action = call.body["data"].as_str().unwrap_or_default().to_owned();
            let mut reply = json!({"status": 1});
            if call.body["command"] == "subscribe" {
                reply["streams"] = json!(["lobby"]);
                reply["env"] = json!({"istate": {"$p": "lobby"}});
                // JSON in a string, as in the protocol.
                reply["presence"] = json!({"type": "join", "id": id, "info": "{\"n\":1}"});
            } else if action.contains("hide") {
                reply["presence"] = json!({"type": "leave"});
            }
            Answer::Json(reply)
        }
        _ => Answer::Json(json!({"status": 1})),
    }
}

#[test]
fn an_application_says_who_is_present() {
    let app = App::start(lobby);
    let url = app.url();
    let server = server(&["--rpc-host", &url, "--proxy-cookies", "user"]);
    let connect =
        |user: &str| Extended::connect_with(server.listen, "", ("Cookie", &format!("user={user}")));
    let identifier = room("lobby").to_string();
    let of =
        |message: Value| json!({"type": "presence", "identifier": identifier, "message": message});
    let mut ann = connect("ann");
    ann.subscribe(&identifier);
    assert_eq!(ann.hear(), of(json!({"type": "join", "id": "ann", "info": {"n": 1}})));
    // Clients of the base protocol can be present, too.
    let mut bob = Cable::connect(server.listen, "", "", ("Cookie", "user=bob")).welcomed();
    assert_eq!(bob.subscribe(&room("lobby")), "confirm_subscription");
    assert_eq!(ann.hear(), of(json!({"type": "join", "id": "bob", "info": {"n": 1}})));
    assert_eq!(members(&server, "lobby"), ["ann", "bob"]);
    ann.send(&json!({"command": "presence", "identifier": identifier}));
    assert_eq!(ann.hear()["message"]["total"], 2);
    let hide =
        json!({"command": "message", "identifier": identifier, "data": "{\"action\":\"hide\"}"});
    bob.socket.send_frame(TEXT, hide.to_string().as_bytes());
    assert_eq!(ann.hear(), of(json!({"type": "leave", "id": "bob"})));
    ann.send(&json!({"command": "unsubscribe", "identifier": identifier}));
    eventually("she has left", || members(&server, "lobby").is_empty());
}

/// What a member of a large room receives: never more than one event per window on average.
#[test]
fn very_many_joins_are_few_events() {
    const MEMBERS: usize = 600;
    let server = Server::start(&["--workers", "2", "--presence", "memory"]);
    let mut watcher = subscribed(&server);
    let mut clients: Vec<Extended> =
        (0..MEMBERS).map(|_| Extended::connect(server.listen, "")).collect();
    let since = Instant::now();
    for (number, client) in clients.iter_mut().enumerate() {
        let presence = json!({"id": number.to_string(), "info": {"number": number}});
        client.send(&json!({"command": "subscribe", "identifier": NEWS, "presence": presence}));
    }
    let asks = json!({"command": "presence", "identifier": NEWS});
    watcher.send(&asks);
    let (mut events, mut last, mut list) = (0, 0, Value::Null);
    while last < MEMBERS || list.is_null() {
        let message = watcher.hear()["message"].clone();
        if message["records"].as_array().is_some_and(|records| records.len() == MEMBERS) {
            list = message["records"].clone();
            continue;
        }
        events += 1;
        last = message["total"].as_u64().map_or(last, |total| total as usize);
    }
    let windows = (since.elapsed().as_millis() / 250) as usize;
    assert!(events <= windows + 10, "{events} events in {windows} windows");
    assert_eq!(list[0]["info"], json!({"number": 0}));
    assert_eq!(members(&server, "news").len(), MEMBERS);
    drop(clients);
}
