//! Authentication and authorization over real sockets: tokens in all places, signed stream names, keys
//! that change.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::cable::Cable;
use crate::harness::server::Server;
use crate::harness::signing::{
    SECRET, Signer, hs256, identifiers, now_unix_s, signed, token, unsigned,
};
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::{Scratch, eventually, http};

fn server(more: &[&str]) -> Server {
    Server::start_with(more, &[("STANDFAST_SERVE_SECRET", SECRET)])
}

/// Refusals with this cause.
fn refusals(server: &Server, cause: &str) -> u64 {
    let stats = http::get(server.admin, "/api/stats").json();
    stats["auth_refused"][cause].as_u64().unwrap_or_default()
}

#[test]
fn a_token_is_accepted_in_query_header_and_subprotocol() {
    let server = server(&["--enforce-jwt"]);
    let token = token(1);
    let query = format!("?jid={token}");
    Cable::connect(server.listen, &query, "", ("", "")).welcomed();
    Cable::connect(server.listen, "", "", ("X-JID", &token)).welcomed();
    let protocol = format!(", anycable-token.{token}");
    Cable::connect(server.listen, "", &protocol, ("", "")).welcomed();
    let named = self::server(&["--enforce-jwt", "--jwt-param", "token"]);
    Cable::connect(named.listen, &format!("?token={token}"), "", ("", "")).welcomed();
    assert_eq!(Cable::connect(named.listen, &query, "", ("", "")).refused(), "unauthorized");
}

#[test]
fn an_enforced_token_is_required_wherever_a_client_can_connect() {
    let server = server(&["--enforce-jwt", "--public", "--public-streams"]);
    let valid = token(1);
    let opens = |target: &str, header: &str| {
        let mut socket = Socket::connect(server.listen);
        socket.send(upgrade(target, &[("X-JID", header)]).as_bytes());
        socket.response().status
    };
    for path in ["/topics/news", "/echo"] {
        let before = refusals(&server, "token_missing");
        assert_eq!(opens(path, ""), 403, "{path}");
        assert_eq!(refusals(&server, "token_missing"), before + 1, "{path}");
        assert_eq!(opens(path, &hs256("other", &json!({"ext": "{}"}))), 403, "{path}");
        assert_eq!(opens(path, &valid), 101, "{path}");
        assert_eq!(opens(&format!("{path}?jid={valid}"), ""), 101, "{path}");
        assert_eq!(http::get(server.listen, path).status, 426, "not a handshake: {path}");
    }
    assert_eq!(http::get(server.listen, "/events?topic=news").status, 403);
    assert_eq!(http::get(server.listen, "/health").status, 200, "needs no token");
    let open = self::server(&["--public"]);
    let mut socket = Socket::connect(open.listen);
    socket.send(upgrade("/topics/news", &[("X-JID", "no token")]).as_bytes());
    assert_eq!(socket.response().status, 101, "without --enforce-jwt tokens are ignored there");
}

#[test]
fn all_refusals_but_an_expired_token_look_the_same() {
    let server = server(&["--enforce-jwt"]);
    let with_claims = |claims: Value| hs256(SECRET, &claims);
    let none = unsigned(&json!({"alg": "none"}), &json!({"ext": identifiers(1)}));
    let cases = [
        (None, "unauthorized", "token_missing"),
        (Some("no.token.this".to_owned()), "unauthorized", "token_malformed"),
        (Some(format!("{none}.")), "unauthorized", "token_malformed"),
        (Some(hs256("other", &json!({"ext": "{}"}))), "unauthorized", "token_signature"),
        (Some(with_claims(json!({"sub": "1"}))), "unauthorized", "token_identifiers"),
        (
            Some(with_claims(json!({"ext": "{}", "nbf": now_unix_s() + 60}))),
            "unauthorized",
            "token_early",
        ),
        (
            Some(with_claims(json!({"ext": "{}", "exp": now_unix_s() - 60}))),
            "token_expired",
            "token_expired",
        ),
    ];
    for (token, reason, cause) in cases {
        let before = refusals(&server, cause);
        assert_eq!(Cable::join(server.listen, token.as_deref()).refused(), reason, "{cause}");
        assert_eq!(refusals(&server, cause), before + 1, "{cause}");
    }
}

#[test]
fn public_keys_verify_tokens_and_can_be_reloaded() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let file = Scratch::new("rotated.json", &json!({"keys": [old.public()]}).to_string());
    let server = Server::start(&["--jwt-keys", file.path(), "--enforce-jwt"]);
    let accepts = |token: &str| Cable::join(server.listen, Some(token)).hear()["type"] == "welcome";
    assert!(accepts(&old.token(1)) && !accepts(&new.token(1)));
    file.write(&json!({"keys": [new.public()]}).to_string());
    server.signal(Signal::HUP);
    eventually("the new key's token is accepted", || accepts(&new.token(1)));
    // Each worker gets the new keys on its own.
    eventually("the old key's token is refused", || !accepts(&old.token(1)));
}

#[test]
fn without_a_token_clients_subscribe_by_signed_names() {
    let server = server(&["--turbo-secret", "turbo", "--cable-ready-secret", "none"]);
    let mut client = Cable::join(server.listen, None).welcomed();
    let pubsub = |name: &str, value: &str| json!({"channel": "$pubsub", name: value});
    let turbo = |secret: &str| json!({"channel": "Turbo::StreamsChannel", "signed_stream_name": signed(secret, "chat")});
    let good = signed(SECRET, "chat");
    let cases = [
        (pubsub("signed_stream_name", &good), None),
        (turbo("turbo"), None),
        (turbo(SECRET), Some("stream_signature")),
        (pubsub("signed_stream_name", "chat"), Some("stream_malformed")),
        (pubsub("stream_name", "chat"), Some("stream_public")),
        (json!({"channel": "CableReady::Stream", "identifier": good}), Some("stream_off")),
        (json!({"channel": "ChatChannel", "id": 1}), Some("channel")),
    ];
    for (identifier, cause) in cases {
        let expected = if cause.is_some() { "reject_subscription" } else { "confirm_subscription" };
        assert_eq!(client.subscribe(&identifier), expected, "{identifier}");
        if let Some(cause) = cause {
            assert_eq!(refusals(&server, cause), 1, "{cause}");
        }
    }
    let open = self::server(&["--public-streams"]);
    let mut client = Cable::join(open.listen, None).welcomed();
    let plain = pubsub("stream_name", "chat");
    assert_eq!(client.subscribe(&plain), "confirm_subscription");
}

#[test]
fn a_reload_revokes_and_grants_whispers_of_open_subscriptions() {
    let config = Scratch::new("whispers.toml", "[serve]\nstreams_whisper = true\n");
    let server = server(&["--config", config.path()]);
    let stream = json!({"channel": "$pubsub", "signed_stream_name": signed(SECRET, "chat")});
    let mut client = Cable::join(server.listen, None).welcomed();
    assert_eq!(client.subscribe(&stream), "confirm_subscription");
    let whisper = json!({"command": "whisper", "identifier": stream.to_string(), "data": 1});
    let ignored = || server.metrics()["standfast_commands_ignored_total"];
    let mut whispers = || {
        let before = ignored();
        client.socket.send_frame(TEXT, whisper.to_string().as_bytes());
        // Commands are handled in order, so this one has been.
        let other = json!({"channel": "ChatChannel"});
        assert_eq!(client.subscribe(&other), "reject_subscription");
        ignored() == before
    };
    assert!(whispers());
    for allowed in [false, true] {
        config.write(&format!("[serve]\nstreams_whisper = {allowed}\n"));
        server.signal(Signal::HUP);
        eventually("the open subscription follows", || whispers() == allowed);
    }
}

#[test]
fn with_end_expired_a_session_ends_with_its_token() {
    // It has expired; the leeway of 5 s keeps it valid a moment longer.
    let ends_soon = |user: u64| {
        let claims = json!({"ext": identifiers(user), "exp": now_unix_s().saturating_sub(3)});
        hs256(SECRET, &claims)
    };
    let ending = server(&["--end-expired"]);
    let mut short = Cable::join(ending.listen, Some(&ends_soon(1))).welcomed();
    let mut long = Cable::join(ending.listen, Some(&token(2))).welcomed();
    assert_eq!(short.disconnect_reason(), ("token_expired".to_owned(), false));
    assert_eq!(short.socket.close_code(), 1000);
    let stream = json!({"channel": "$pubsub", "signed_stream_name": signed(SECRET, "chat")});
    assert_eq!(long.subscribe(&stream), "confirm_subscription", "other sessions continue");
    assert_eq!(refusals(&ending, "token_expired"), 1);
}

#[test]
fn with_end_expired_streams_of_events_and_plain_sockets_end_with_their_token() {
    let ending = server(&[
        "--end-expired",
        "--enforce-jwt",
        "--public",
        "--public-streams",
        // Heartbeats would keep the reader of a stream that does not end from timing out.
        "--ping-interval",
        "1h",
    ]);
    // It has expired; the leeway of 5 s keeps it valid a moment longer.
    let claims = json!({"ext": identifiers(1), "exp": now_unix_s().saturating_sub(2)});
    let token = hs256(SECRET, &claims);
    let mut events = Socket::connect(ending.listen);
    let request = format!("GET /events?topic=news&jid={token} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    events.send(request.as_bytes());
    events.text_until(":\n\n");
    let mut topic = Socket::open(ending.listen, &format!("/topics/news?jid={token}"));
    while events.take(&mut Vec::new()) {}
    assert_eq!(topic.close_code(), 1008);
    assert_eq!(refusals(&ending, "token_expired"), 2);
}
