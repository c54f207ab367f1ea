//! The transcript for both servers. Only the channel name differs.

use serde_json::json;

use super::player::{Act, CHANNEL, MUCH, OFFER, Step, identifier, subscribe};
use crate::harness::socket::{BINARY, CLOSE, TEXT};

/// All steps. The last one disconnects all clients.
pub(super) fn steps() -> Vec<Step> {
    let mut steps = opening();
    steps.extend(subscribing());
    steps.extend(data());
    steps.extend(malformed());
    steps.extend(extensions());
    steps.push(step("a ping", 1, vec![Act::RecordPing]));
    steps.push(step("the server restarts", 2, vec![send(0, subscribe(&news())), Act::Restart]));
    steps
}

fn opening() -> Vec<Step> {
    let protocols = |name, offered| {
        step(name, 0, vec![Act::Handshake("/cable", vec![("Sec-WebSocket-Protocol", offered)])])
    };
    let origin = |name, origin| {
        let headers = vec![("Sec-WebSocket-Protocol", OFFER), ("Origin", origin)];
        step(name, 0, vec![Act::Handshake("/cable", headers)])
    };
    let plain = vec![("Upgrade", ""), ("Connection", "close")];
    let offer = vec![("Sec-WebSocket-Protocol", OFFER)];
    vec![
        step("welcome", 0, vec![Act::Welcome]),
        protocols("the subprotocols of Rails' client", OFFER),
        protocols("no subprotocol offered", ""),
        protocols("a subprotocol that neither speaks", "soap"),
        protocols("only the word for having none in common", "actioncable-unsupported"),
        protocols("AnyCable's subprotocol", "actioncable-v1-ext-json"),
        origin("a page of the same origin", "http://127.0.0.1"),
        origin("a page of an origin that is allowed", "https://friend.example"),
        origin("a page of another origin", "https://evil.example"),
        step("no WebSocket", 0, vec![Act::Handshake("/cable", plain)]),
        step("an invalid token is refused", 0, vec![Act::Handshake("/cable?jid=x.y.z", offer)]),
    ]
}

fn subscribing() -> Vec<Step> {
    // Identifiers are compared as text: other spaces, order or escapes make another one.
    let texts = [
        format!(r#"{{"stream_name":"news","channel":"{CHANNEL}"}}"#),
        format!(r#" {{ "channel" : "{CHANNEL}" , "stream_name" : "news" }} "#),
        format!(r#"{{"channel":"{CHANNEL}","stream_name":"n\u0065ws","more":"\/é\u00e9<&>😀"}}"#),
        format!(r#"{{"channel":"{CHANNEL}","stream_name":"news","n":[1.0,null,{{"a":1e2}}]}}"#),
    ];
    let texts = texts.iter().map(|text| send(0, subscribe(text))).chain([publish_one()]).collect();
    let twice = vec![send(0, subscribe(&news())), send(0, subscribe(&news())), publish_one()];
    let both = |name: &str| identifier("news", name);
    let pair = vec![
        send(0, subscribe(&both("a"))),
        send(0, subscribe(&both("b"))),
        publish_one(),
        send(0, unsubscribe(&both("a"))),
        publish_one(),
    ];
    let resubscribe = vec![
        send(0, subscribe(&news())),
        send(0, unsubscribe(&news())),
        publish_one(),
        send(0, subscribe(&news())),
        publish_one(),
    ];
    // Nothing is published here: in Rails the first subscription can outlive its end when both
    // arrive at once.
    let packet = [subscribe(&news()), unsubscribe(&news()), subscribe(&news())];
    let packet = vec![Act::Send(0, packet.map(|text| (TEXT, text)).into())];
    let nameless = [identifier("", ""), format!(r#"{{"channel":"{CHANNEL}"}}"#)];
    let rejected = nameless.iter().map(|text| send(0, subscribe(text))).collect();
    let refused_twice = vec![send(0, subscribe(&nameless[0])), send(0, subscribe(&nameless[0]))];
    let long = identifier("news", MUCH);
    let close = Act::Send(0, vec![(CLOSE, String::new())]);
    vec![
        step("subscribe", 1, vec![send(0, subscribe(&news())), publish_one()]),
        step("identifiers come back byte for byte", 1, texts),
        step("one channel with other parameters", 1, pair),
        step(
            "one of two clients goes",
            2,
            vec![
                send(0, subscribe(&news())),
                send(1, subscribe(&news())),
                publish_one(),
                close,
                publish_one(),
            ],
        ),
        step(
            "one of two clients unsubscribes",
            2,
            vec![
                send(0, subscribe(&news())),
                send(1, subscribe(&news())),
                send(0, unsubscribe(&news())),
                publish_one(),
            ],
        ),
        step("subscribe twice", 1, twice),
        step("unsubscribe, then subscribe again", 1, resubscribe),
        step("subscribe, unsubscribe, subscribe in one packet", 1, packet),
        step("a stream without a name", 1, rejected),
        step("rejected, and asked again", 1, refused_twice),
        step(
            "a channel that is not there",
            1,
            vec![send(0, subscribe(r#"{"channel":"NobodysChannel","stream_name":"news"}"#))],
        ),
        step("an identifier of more than 4,096 bytes", 1, vec![send(0, subscribe(&long))]),
        step("unsubscribe from what was not subscribed to", 1, vec![send(0, unsubscribe(&news()))]),
    ]
}

fn data() -> Vec<Step> {
    let mut acts = vec![send(0, subscribe(&news()))];
    for data in [
        r#"{"text":"hello","n":[1,2.5,null,{"deep":{}}]}"#,
        r#"[1,"two",[]]"#,
        r#""text""#,
        r#""""#,
        r#""<b>é & 😀\n\u2028\"\\""#,
        r#""{\"text\":\"JSON in a string\"}""#,
        "7",
        "-0.5",
        "1e3",
        "12345678901234567890",
        "true",
        "false",
        "null",
    ] {
        acts.push(Act::Publish("news", data));
    }
    let unsubscribed = vec![Act::Publish("nobodys", "1")];
    let action = |action: &str| {
        let data = json!({"action": action, "text": "hello"}).to_string();
        json!({"command": "message", "identifier": news(), "data": data}).to_string()
    };
    let no_object = json!({"command": "message", "identifier": news(), "data": "no JSON"});
    vec![
        step("data of each kind", 1, acts),
        step("a stream that nobody listens to", 1, unsubscribed),
        step(
            "an action that the channel has not",
            1,
            vec![send(0, subscribe(&news())), send(0, action("dance"))],
        ),
        step(
            "an action that answers",
            1,
            vec![send(0, subscribe(&news())), send(0, action("echo"))],
        ),
        step(
            "a message that is no JSON",
            1,
            vec![send(0, subscribe(&news())), send(0, no_object.to_string())],
        ),
        step("a message to what was not subscribed to", 1, vec![send(0, action("echo"))]),
    ]
}

fn malformed() -> Vec<Step> {
    let of = |name, text: &str| step(name, 1, vec![send(0, text.to_owned())]);
    let unknown = json!({"command": "dance", "identifier": news()}).to_string();
    vec![
        of("text that is no JSON", "{"),
        of("no text at all", ""),
        of("an array", "[]"),
        of("a command without its identifier", r#"{"command":"subscribe"}"#),
        of("no command", "{}"),
        of("an identifier that is a number", r#"{"command":"subscribe","identifier":7}"#),
        of("an identifier that is no JSON", &subscribe("news")),
        of("a command that is not known", &unknown),
        step("a binary message", 1, vec![Act::Send(0, vec![(BINARY, subscribe(&news()))])]),
    ]
}

/// Commands of AnyCable's extended protocol.
fn extensions() -> Vec<Step> {
    let whisper = json!({"command": "whisper", "identifier": news(), "data": {"typing": true}});
    let since = json!({"since": 1_700_000_000});
    let history = json!({"command": "subscribe", "identifier": news(), "history": since});
    let presence = json!({"command": "presence", "identifier": news()});
    vec![
        step(
            "a whisper",
            2,
            vec![
                send(0, subscribe(&news())),
                send(1, subscribe(&news())),
                send(0, whisper.to_string()),
            ],
        ),
        step("subscribe with history", 1, vec![send(0, history.to_string())]),
        step("who is present", 1, vec![send(0, subscribe(&news())), send(0, presence.to_string())]),
        step("a ping of the client's", 1, vec![send(0, json!({"command": "ping"}).to_string())]),
        step("a pong", 1, vec![send(0, json!({"command": "pong"}).to_string())]),
    ]
}

fn step(name: &'static str, clients: usize, acts: Vec<Act>) -> Step {
    Step { name, clients, acts }
}

fn send(number: usize, text: String) -> Act {
    Act::Send(number, vec![(TEXT, text)])
}

fn publish_one() -> Act {
    Act::Publish("news", "1")
}

fn news() -> String {
    identifier("news", "")
}

fn unsubscribe(identifier: &str) -> String {
    json!({"command": "unsubscribe", "identifier": identifier}).to_string()
}
