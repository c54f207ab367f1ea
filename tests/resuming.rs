//! Sessions of the extended protocol that continue on another connection.

use serde_json::{Value, json};

use crate::harness::cable::Extended;
use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, token};

const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;
const MORE: &str = r#"{"channel":"$pubsub","stream_name":"more"}"#;
const MEMORY: [&str; 2] = ["--history", "memory"];

fn publish(server: &Server, topic: &str, data: &str) {
    assert_eq!(server.publish(&json!({"topic": topic, "data": data})).status, 200);
}

/// Waits until a number of sessions can be resumed.
fn until_stored(server: &Server, count: f64) {
    eventually("the session is stored", || server.metrics()["standfast_sessions_stored"] == count);
}

fn ended(server: &Server, result: &str) -> f64 {
    server.metrics()[&format!("standfast_sessions_ended_total{{result=\"{result}\"}}")]
}

/// The request for what comes after the last message.
fn after(last: &Value) -> Value {
    let stream = last["stream_id"].as_str().unwrap();
    json!({"streams": {stream: {"epoch": last["epoch"], "offset": last["offset"]}}})
}

#[test]
fn a_lost_connection_is_resumed_with_its_subscriptions_and_what_it_missed() {
    let server = Server::start(&MEMORY);
    let mut client = Extended::connect(server.listen, "");
    client.subscribe(NEWS);
    client.subscribe(MORE);
    publish(&server, "news", "1");
    let last = client.hear();
    let sid = client.sid.clone();
    assert_eq!(sid.len(), 48);
    drop(client);
    until_stored(&server, 1.0);
    publish(&server, "news", "2");
    let mut back = Extended::connect(server.listen, &format!("?sid={sid}"));
    assert_eq!(back.welcome["restored"], true);
    let ids = back.welcome["restored_ids"].as_array().unwrap();
    assert!(ids.len() == 2 && [NEWS, MORE].iter().all(|id| ids.contains(&json!(id))), "{ids:?}");
    assert_ne!(back.sid, sid);
    // What is published before the request comes once, too, and in order.
    publish(&server, "news", "3");
    publish(&server, "more", "1");
    back.history(NEWS, &after(&last));
    for number in 2..=3 {
        assert_eq!(back.hear()["message"], number);
    }
    assert_eq!(back.hear(), json!({"type": "confirm_history", "identifier": NEWS}));
    publish(&server, "news", "4");
    assert_eq!(back.hear()["message"], 4);
    // A request without a position: what came since the client was back.
    back.history(MORE, &json!({}));
    assert_eq!(back.hear()["identifier"], MORE);
    assert_eq!(back.hear(), json!({"type": "confirm_history", "identifier": MORE}));
    assert_eq!((ended(&server, "resumed"), ended(&server, "unknown")), (1.0, 0.0));
    assert_eq!(server.metrics()["standfast_subscriptions"], 2.0);
}

/// It would miss nothing that was published after it came back.
#[test]
fn a_resumed_client_that_requests_nothing_gets_messages_after_a_while() {
    let server = Server::start(&MEMORY);
    let mut client = Extended::connect(server.listen, "");
    client.subscribe(NEWS);
    let sid = client.sid.clone();
    drop(client);
    until_stored(&server, 1.0);
    let mut back = Extended::connect(server.listen, &format!("?sid={sid}"));
    publish(&server, "news", "1");
    publish(&server, "news", "2");
    assert_eq!(
        (back.hear()["offset"].clone(), back.hear()["offset"].clone()),
        (json!(1), json!(2))
    );
}

#[test]
fn a_session_is_resumed_once_and_forged_ids_never() {
    let server = Server::start(&MEMORY);
    let mut client = Extended::connect(server.listen, "");
    client.subscribe(NEWS);
    let sid = client.sid.clone();
    // While the connection lives there is nothing to resume.
    assert_eq!(
        Extended::connect(server.listen, &format!("?sid={sid}")).welcome["restored"],
        Value::Null
    );
    drop(client);
    until_stored(&server, 1.0);
    let mut forged = sid.clone();
    let last = forged.pop().unwrap();
    forged.push(if last == '0' { '1' } else { '0' });
    for wrong in [&*forged, "", "x", &sid[..32], &"0".repeat(48), "%ff"] {
        let client = Extended::connect(server.listen, &format!("?sid={wrong}"));
        assert_eq!(client.welcome["restored"], Value::Null, "{wrong}");
    }
    let back = Extended::connect_with(server.listen, "", ("X-ANYCABLE-RESTORE-SID", &sid));
    assert_eq!(back.welcome["restored_ids"], json!([NEWS]));
    let again = Extended::connect(server.listen, &format!("?sid={sid}"));
    assert_eq!(again.welcome["restored"], Value::Null);
    assert_eq!(ended(&server, "resumed"), 1.0);
}

#[test]
fn a_session_belongs_to_the_identity_of_its_token() {
    let flags = ["--jwt-secret", SECRET, "--public-streams"];
    let server = Server::start(&[&MEMORY[..], &flags].concat());
    let lost = |user| {
        let mut client = Extended::connect(server.listen, &format!("?jid={}", token(user)));
        client.subscribe(NEWS);
        client.sid.clone()
    };
    let back = |jid: &str, sid: &str| {
        let client = Extended::connect(server.listen, &format!("?sid={sid}{jid}"));
        client.welcome["restored"] == true
    };
    let sid = lost(1);
    until_stored(&server, 1.0);
    assert!(!back(&format!("&jid={}", token(2)), &sid));
    // Whoever tried it has ended it.
    assert!(!back(&format!("&jid={}", token(1)), &sid));
    let sid = lost(1);
    until_stored(&server, 1.0);
    assert!(!back("", &sid));
    let sid = lost(1);
    until_stored(&server, 1.0);
    assert!(back(&format!("&jid={}", token(1)), &sid));
}

#[test]
fn a_session_that_the_server_ends_is_not_kept() {
    let server = Server::start(&MEMORY);
    let mut client = Extended::connect(server.listen, "");
    client.subscribe(NEWS);
    let sid = client.sid.clone();
    let body = json!({"identifier": json!({"sid": sid}).to_string()}).to_string();
    assert_eq!(server.admin_post("/api/disconnect", &body).status, 200);
    assert_eq!(client.hear()["type"], "disconnect");
    drop(client);
    let back = Extended::connect(server.listen, &format!("?sid={sid}"));
    assert_eq!(back.welcome["restored"], Value::Null);
    assert_eq!(server.metrics()["standfast_sessions_stored"], 0.0);
}

#[test]
fn sessions_that_can_be_resumed_are_bounded() {
    let flags = ["--sessions-bytes", "2KiB", "--sessions-ttl", "1s"];
    let server = Server::start(&[&MEMORY[..], &flags].concat());
    let clients: Vec<Extended> = (0..50)
        .map(|_| {
            let mut client = Extended::connect(server.listen, "");
            client.subscribe(NEWS);
            client
        })
        .collect();
    drop(clients);
    eventually("the others are dropped", || ended(&server, "evicted") >= 41.0);
    assert!(server.metrics()["standfast_sessions_stored_bytes"] <= 2048.0);
    eventually("all have expired", || {
        ended(&server, "evicted") + ended(&server, "expired") == 50.0
    });
    assert_eq!(server.metrics()["standfast_sessions_stored_bytes"], 0.0);
}
