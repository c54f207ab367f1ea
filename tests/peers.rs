//! Real client libraries against `serve`.

use serde_json::json;

use crate::harness::Scratch;
use crate::harness::cable::Cable;
use crate::harness::peer::{self, talks};
use crate::harness::rails::RAILS;
use crate::harness::server::Server;
use crate::harness::signing::SECRET;

#[test]
fn node_ws() {
    let expected = [
        "echo_text",
        "echo_binary",
        "echo_every_length_form",
        "echo_fragments",
        "echo_many_in_order",
        "compressed",
        "topic_from_admin",
        "topic_from_client",
    ];
    talks(&peer::NODE, "ws.js", &Server::start(&[]), &expected);
}

#[test]
fn rails_action_cable() {
    let expected = [
        "receives",
        "rejects",
        "many_subscriptions",
        "unsubscribes_and_subscribes_again",
        "hears_pings",
        "reconnects",
    ];
    talks(&peer::NODE, "actioncable.js", &Server::start(&[]), &expected);
}

#[test]
fn anycable_core() {
    let expected = [
        "actioncable-v1-json receives",
        "actioncable-v1-json rejects",
        "actioncable-v1-json comes back",
        "actioncable-v1-ext-json receives",
        "actioncable-v1-ext-json rejects",
        "actioncable-v1-ext-json comes back",
        "whispers",
    ];
    talks(&peer::NODE, "anycable.js", &Server::start(&[]), &expected);
}

/// Sockets killed at random moments while others publish, with sessions resumed and subscribed again.
#[test]
fn anycable_core_gets_each_message_once() {
    let flags = ["--workers", "2", "--history", "memory", "--history-limit", "1k"];
    talks(&peer::NODE, "anycable_history.js", &Server::start(&flags), &["each message once"]);
}

/// The same library without a WebSocket.
#[test]
fn anycable_core_by_long_polling() {
    let flags = [
        "--workers",
        "2",
        "--long-polling",
        "--long-polling-interval",
        "200ms",
        "--long-polling-flush-interval",
        "20ms",
        "--long-polling-keepalive",
        "1s",
        "--history",
        "memory",
        "--history-limit",
        "1k",
        "--presence",
        "memory",
    ];
    let expected = [
        "actioncable-v1-json receives and is rejected",
        "actioncable-v1-ext-json receives and is rejected",
        "whispers and presence",
        "each message once while it sends commands",
        "resumes with what it has missed",
    ];
    talks(&peer::NODE, "long_polling.js", &Server::start(&flags), &expected);
}

/// Its own list of who is present, after few and after very many joins.
#[test]
fn anycable_core_knows_who_is_present() {
    let flags = ["--workers", "2", "--presence", "memory", "--presence-window", "100ms"];
    let expected = ["joins", "leaves", "a lost connection", "very many"];
    talks(&peer::NODE, "anycable_presence.js", &Server::start(&flags), &expected);
}

/// The same library in MessagePack and Protobuf.
#[test]
fn anycable_core_in_other_encodings() {
    let flags = ["--workers", "2", "--history", "memory", "--presence", "memory"];
    let expected = [
        "actioncable-v1-msgpack receives",
        "actioncable-v1-msgpack rejects",
        "actioncable-v1-msgpack is pinged",
        "actioncable-v1-msgpack comes back",
        "actioncable-v1-ext-msgpack receives",
        "actioncable-v1-ext-msgpack rejects",
        "actioncable-v1-ext-msgpack is pinged",
        "actioncable-v1-ext-msgpack comes back",
        "actioncable-v1-protobuf receives",
        "actioncable-v1-protobuf rejects",
        "actioncable-v1-protobuf is pinged",
        "actioncable-v1-protobuf comes back",
        "actioncable-v1-ext-protobuf receives",
        "actioncable-v1-ext-protobuf rejects",
        "actioncable-v1-ext-protobuf is pinged",
        "actioncable-v1-ext-protobuf comes back",
        "whispers",
        "presence",
        "actioncable-v1-ext-msgpack gets the history",
        "actioncable-v1-ext-protobuf gets the history",
    ];
    talks(&peer::ENCODERS, "anycable_encodings.js", &Server::start(&flags), &expected);
}

/// The same library in a browser.
#[test]
fn anycable_web() {
    let expected = [
        "actioncable-v1-json receives",
        "actioncable-v1-json rejects",
        "actioncable-v1-json comes back",
        "actioncable-v1-ext-json receives",
        "actioncable-v1-ext-json rejects",
        "actioncable-v1-ext-json comes back",
        "actioncable-v1-ext-json is sent away and comes back",
    ];
    talks(&peer::ANYCABLE_WEB, "anycable_web.js", &Server::start(&[]), &expected);
}

/// Tokens, signatures and broadcasts of application libraries.
#[test]
fn an_application_of_anycable() {
    let (public, private) = (Scratch::new("jose.json", ""), Scratch::new("jose.private", ""));
    let (public, private) = (public.path(), private.path());
    peer::works(&peer::APPLICATION, "application.js", &["keys", public, private], &["keys"]);
    if std::fs::read(public).is_ok_and(|keys| keys.is_empty()) {
        return;
    }
    let secret = ("ANYCABLE_SECRET", SECRET);
    let server = Server::start_with(&["--enforce-jwt", "--jwt-keys", public], &[secret]);
    let (listen, admin) = (format!("ws://{}", server.listen), format!("http://{}", server.admin));
    let args = ["talk", &listen, &admin, SECRET, private];
    let expected = [
        "param",
        "header",
        "sub-protocol",
        "RS256",
        "PS512",
        "ES384",
        "EdDSA",
        "refused",
        "disconnects",
    ];
    peer::works(&peer::APPLICATION, "application.js", &args, &expected);
}

/// Broadcasts of a Rails app with the example's adapter: to the admin listener, and to the client
/// listener.
#[test]
fn broadcasts_of_a_rails_app() {
    if !peer::is_here(&RAILS, "Action Cable") {
        return;
    }
    let flags = ["--secret", SECRET, "--public-streams", "--listen-broadcast"];
    let server = Server::start(&flags);
    let mut cable = Cable::join(server.listen, None).welcomed();
    let news = json!({"channel": "$pubsub", "stream_name": "news"});
    assert_eq!(cable.subscribe(&news), "confirm_subscription");
    for address in [server.admin, server.listen] {
        let url = format!("http://{address}/_broadcast");
        let expected = ["broadcast", "refused"];
        peer::works(&RAILS, "rails/broadcast.rb", &[&url, SECRET], &expected);
        assert_eq!(cable.hear()["message"], json!({"text": "héllo ✓", "n": 1}));
    }
}

/// The example, as its first lines describe.
#[test]
fn turbo_in_a_browser() {
    let server = Server::start(&["--turbo-secret", "demo"]);
    talks(&peer::BROWSER, "turbo.js", &server, &["connected", "appended", "replaced"]);
}

#[test]
fn python_websockets() {
    let expected = [
        "echo_text",
        "echo_binary",
        "echo_fragments",
        "ping",
        "close_code",
        "topic_from_admin",
        "topic_from_client",
    ];
    talks(&peer::PYTHON, "websockets_client.py", &Server::start(&[]), &expected);
}

#[test]
fn a_browser_page() {
    let expected = ["echo_text", "echo_binary", "topic_from_admin", "topic_from_client"];
    talks(&peer::BROWSER, "browser.js", &Server::start(&[]), &expected);
}
