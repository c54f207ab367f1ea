//! `/cable` in MessagePack and Protobuf, byte by byte. AnyCable's client in these encodings is in
//! `peers.rs`.

use serde_json::json;

use crate::harness::server::Server;
use crate::harness::socket::{BINARY, Frame, Socket, TEXT, upgrade};
use crate::harness::{eventually, http};

const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;
const PONG: u8 = 0x8a;

/// A client after its welcome.
struct Client {
    socket: Socket,
    welcome: Vec<u8>,
}

impl Client {
    fn connect(server: &Server, protocol: &str) -> Self {
        let mut socket = Socket::connect(server.listen);
        let offered = ("Sec-WebSocket-Protocol", protocol);
        socket.send(upgrade("/cable", &[offered]).as_bytes());
        let response = socket.response();
        assert_eq!(response.status, 101);
        assert_eq!(response.header("sec-websocket-protocol"), Some(protocol));
        let mut client = Client { socket, welcome: Vec::new() };
        client.welcome = client.receive();
        client
    }

    /// The next message other than a ping.
    fn receive(&mut self) -> Vec<u8> {
        let frame = self.frame();
        assert_eq!(frame.first, BINARY, "{frame:?}");
        frame.payload
    }

    /// The next frame other than a ping.
    fn frame(&mut self) -> Frame {
        loop {
            let frame = self.socket.frame().expect("a message before the end");
            let pings = [&b"\x82\xa4type\xa4ping"[..], b"\x08\x03"];
            if !pings.iter().any(|ping| frame.payload.starts_with(ping)) {
                return frame;
            }
        }
    }

    fn send(&mut self, message: &[u8]) {
        self.socket.send_frame(BINARY, message);
    }
}

fn publish(server: &Server, data: &str) {
    assert_eq!(server.publish(&json!({"topic": "news", "data": data})).status, 200);
}

/// A short string in MessagePack.
fn packed(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("it is short");
    let header = if length < 32 { vec![0xa0 | length] } else { vec![0xd9, length] };
    [&header, text.as_bytes()].concat()
}

/// A map of short strings in MessagePack.
fn map(entries: &[(&str, &str)]) -> Vec<u8> {
    let texts = entries.iter().flat_map(|(key, text)| [packed(key), packed(text)]);
    let header = 0x80 | u8::try_from(entries.len()).expect("it is small");
    [vec![header], texts.collect::<Vec<_>>().concat()].concat()
}

/// A field of text in Protobuf.
fn field(number: u8, text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("it is short");
    [&[number << 3 | 2, length], text.as_bytes()].concat()
}

#[test]
fn messages_are_maps_in_messagepack() {
    let server = Server::start(&[]);
    for protocol in ["actioncable-v1-msgpack", "actioncable-v1-ext-msgpack"] {
        let mut client = Client::connect(&server, protocol);
        let welcome = [&[0x82][..], &packed("type"), &packed("welcome"), &packed("sid")].concat();
        assert!(client.welcome.starts_with(&welcome), "{:x?}", client.welcome);
        client.send(&map(&[("command", "subscribe"), ("identifier", NEWS)]));
        let confirmed = map(&[("type", "confirm_subscription"), ("identifier", NEWS)]);
        assert_eq!(client.receive(), confirmed);
        publish(&server, r#"{"n": [1, -2.5, null]}"#);
        let number = b"\x81\xa1n\x93\x01\xcb\xc0\x04\0\0\0\0\0\0\xc0";
        let data = [&[0x82][..], &packed("identifier"), &packed(NEWS), &packed("message")].concat();
        assert_eq!(client.receive(), [&data[..], number].concat());
        publish(&server, "not JSON");
        assert_eq!(client.receive(), [data, packed("not JSON")].concat());
        client.send(&map(&[("command", "ping")]));
        assert_eq!(client.receive(), map(&[("type", "pong")]));
        client.send(&map(&[("command", "subscribe"), ("identifier", "no channel")]));
        let rejected = map(&[("type", "reject_subscription"), ("identifier", "no channel")]);
        assert_eq!(client.receive(), rejected);
    }
}

#[test]
fn messages_have_the_fields_of_anycables_schema_in_protobuf() {
    let server = Server::start(&[]);
    for (protocol, identifier, message) in
        [("actioncable-v1-protobuf", 3, 5), ("actioncable-v1-ext-protobuf", 2, 3)]
    {
        let mut client = Client::connect(&server, protocol);
        let extended = message == 3;
        let welcome: &[u8] = if extended { b"\x08\x01\x4a" } else { b"\x08\x01" };
        assert!(client.welcome.starts_with(welcome), "{:x?}", client.welcome);
        assert_eq!(client.welcome.len() > 3, extended, "the base schema has no place for a sid");
        client.send(&[b"\x10\x01".to_vec(), field(3, NEWS)].concat());
        let confirmed = [b"\x08\x04".to_vec(), field(identifier, NEWS)].concat();
        assert_eq!(client.receive(), confirmed);
        publish(&server, r#"[1, "é"]"#);
        let array = b"\x92\x01\xa2\xc3\xa9";
        let data = [&field(identifier, NEWS)[..], &[message << 3 | 2, 5], array].concat();
        assert_eq!(client.receive(), data);
        // Commands that the schema lacks arrive as number 0.
        client.send(&[b"\x10\x00".to_vec(), field(3, NEWS)].concat());
        eventually("it is ignored", || server.metrics()["standfast_commands_ignored_total"] > 0.0);
        client.send(&[b"\x10\x04".to_vec(), field(3, NEWS), b"\x42\x02\x08\x05".to_vec()].concat());
        let refused = [b"\x08\x07".to_vec(), field(identifier, NEWS)].concat();
        assert_eq!(client.receive(), refused, "there is no history here");
    }
}

#[test]
fn hostile_messages_end_the_session_with_a_reason_in_its_encoding() {
    let server = Server::start(&[]);
    let packed_reason = [
        &[0x83][..],
        &packed("type"),
        &packed("disconnect"),
        &packed("reason"),
        &packed("invalid_request"),
        &packed("reconnect"),
        &[0xc2],
    ];
    let (packed_reason, other) = (packed_reason.concat(), b"\x08\x02".to_vec());
    let base = [other.clone(), field(6, "invalid_request")].concat();
    let extended = [other, field(4, "invalid_request")].concat();
    let deep = [vec![0x91; 60_000], vec![0xc0]].concat();
    let subscribe = map(&[("command", "subscribe")]);
    let mut count = 0.0;
    let mut refused = |protocol: &str, first: u8, message: &[u8], reason: &[u8]| {
        let mut client = Client::connect(&server, protocol);
        client.socket.send_frame(first, message);
        assert_eq!(client.receive(), reason, "{protocol} {:x?}", message.get(..9));
        assert_eq!(client.socket.close_code(), 1008);
        count += 1.0;
        assert_eq!(server.metrics()["standfast_commands_malformed_total"], count);
    };
    for message in [
        &b""[..],
        b"\xc1",
        b"\x90",
        b"\xdf\xff\xff\xff\xff\xa1a\x01",
        b"\xdb\xff\xff\xff\xffabc",
        b"\x81\x01\x01",
        b"\x81\xa1a\xd4\x05\x00",
        b"{}",
        &subscribe,
        &deep,
    ] {
        refused("actioncable-v1-msgpack", BINARY, message, &packed_reason);
    }
    let json = br#"{"command":"pong"}"#;
    refused("actioncable-v1-ext-msgpack", TEXT, json, &packed_reason);
    for message in [
        &b"\x10"[..],
        b"\x1a\xff\xff\xff\xff\x0fabc",
        b"\x10\x01\x1a\x01\xff",
        b"\x10\x01\x42\x02\x10\x01",
        b"\x0b",
    ] {
        refused("actioncable-v1-protobuf", BINARY, message, &base);
        refused("actioncable-v1-ext-protobuf", BINARY, message, &extended);
    }
    // Others are not disturbed.
    let mut client = Client::connect(&server, "actioncable-v1-msgpack");
    client.send(&map(&[("command", "subscribe"), ("identifier", NEWS)]));
    client.receive();
}

/// A broadcast with a type of its own, which Protobuf's schema cannot name.
#[test]
fn what_an_encoding_has_no_place_for_is_counted() {
    let server = Server::start(&[]);
    let mut clients = ["msgpack", "protobuf"].map(|encoding| {
        let mut client = Client::connect(&server, &format!("actioncable-v1-ext-{encoding}"));
        match encoding {
            "msgpack" => client.send(&map(&[("command", "subscribe"), ("identifier", NEWS)])),
            _ => client.send(&[b"\x10\x01".to_vec(), field(3, NEWS)].concat()),
        }
        client.receive();
        client
    });
    let typed = json!({"stream": "news", "data": "1", "meta": {"broadcast_type": "presence"}});
    assert_eq!(http::post(server.admin, "/_broadcast", &typed.to_string()).status, 201);
    publish(&server, "2");
    let [packed_client, protobuf] = &mut clients;
    let expected = [
        &[0x83][..],
        &packed("type"),
        &packed("presence"),
        &packed("identifier"),
        &packed(NEWS),
        &packed("message"),
        &[1],
    ];
    assert_eq!(packed_client.receive(), expected.concat());
    assert_eq!(protobuf.receive(), [field(2, NEWS), b"\x1a\x01\x02".to_vec()].concat());
    eventually("it is counted", || server.metrics()["standfast_messages_unencodable_total"] == 1.0);
}

/// With offsets a WebSocket pong takes its place, so that what follows does not wait for it.
#[test]
fn what_an_encoding_has_no_place_for_keeps_its_place_in_the_history() {
    let server = Server::start(&["--history", "memory"]);
    let typed = json!({"stream": "news", "data": "1", "meta": {"broadcast_type": "note"}});
    let broadcast = || http::post(server.admin, "/_broadcast", &typed.to_string()).status;
    let subscribe = [b"\x10\x01".to_vec(), field(3, NEWS)].concat();
    let confirmed = [b"\x08\x04".to_vec(), field(2, NEWS)].concat();
    let mut first = Client::connect(&server, "actioncable-v1-ext-protobuf");
    first.send(&subscribe);
    assert_eq!(first.receive(), confirmed);
    publish(&server, "0");
    let message = first.receive();
    let begin = [&field(2, NEWS)[..], b"\x1a\x01\x00", &field(6, "news")].concat();
    let rest = message.strip_prefix(&begin[..]).expect("a message with its position");
    let (epoch, offset) = rest.split_at(10);
    assert_eq!(offset, b"\x40\x01");
    assert_eq!(broadcast(), 201);
    publish(&server, "2");
    // Everything after the offset 0, which Protobuf leaves out.
    let epoch = std::str::from_utf8(&epoch[2..]).expect("the epoch is text");
    let position = field(2, epoch);
    let entry = [field(1, "news"), vec![0x12, position.len() as u8], position].concat();
    let history = [vec![0x12, entry.len() as u8], entry].concat();
    let mut client = Client::connect(&server, "actioncable-v1-ext-protobuf");
    client.send(&[subscribe, vec![0x42, history.len() as u8], history].concat());
    assert_eq!(client.receive(), confirmed);
    assert_eq!(client.receive(), message);
    let placeholder = client.frame();
    assert_eq!((placeholder.first, placeholder.payload.len()), (PONG, 0));
    let begins = |number: u8| [&field(2, NEWS)[..], &[0x1a, 1, number]].concat();
    assert!(client.receive().starts_with(&begins(2)));
    assert_eq!(client.receive(), [b"\x08\x06".to_vec(), field(2, NEWS)].concat());
    assert_eq!(broadcast(), 201);
    publish(&server, "3");
    let placeholder = client.frame();
    assert_eq!((placeholder.first, placeholder.payload.len()), (PONG, 0));
    assert!(client.receive().starts_with(&begins(3)));
}

/// Members as maps; clients of Protobuf, whose schema has neither these commands nor their events, are not told.
#[test]
fn presence_is_told_in_messagepack() {
    // One worker: with two, Bob could be told of what happened just before he subscribed.
    let flags =
        ["--presence=memory", "--presence-window=20ms", "--presence-ttl=100ms", "--workers=1"];
    let server = Server::start(&flags);
    let mut protobuf = Client::connect(&server, "actioncable-v1-ext-protobuf");
    protobuf.send(&[b"\x10\x01".to_vec(), field(3, NEWS)].concat());
    assert_eq!(protobuf.receive(), [b"\x08\x04".to_vec(), field(2, NEWS)].concat());
    let event = |fields: &[u8]| {
        let mut message = vec![0x83];
        for text in ["type", "presence", "identifier", NEWS, "message"] {
            message.extend(packed(text));
        }
        [&message[..], fields].concat()
    };
    // {"command": …, "identifier": …, "presence": {"id": …, "info": {"n": [1]}}}
    let with_member = |command: &str, id: &str| {
        let texts = ["command", command, "identifier", NEWS, "presence"].map(packed).concat();
        let member = [&[0x82][..], &map(&[("id", id)])[1..], &packed("info"), b"\x81\xa1n\x91\x01"];
        [vec![0x83], texts, member.concat()].concat()
    };
    let record = |kind: &[(&str, &str)]| {
        let fields = map(kind);
        [&[fields[0] + 1], &fields[1..], &packed("info"), b"\x81\xa1n\x91\x01"].concat()
    };
    let join = |client: &mut Client, command: &str, id: &str| {
        client.send(&with_member(command, id));
        if command == "subscribe" {
            let confirmed = map(&[("type", "confirm_subscription"), ("identifier", NEWS)]);
            assert_eq!(client.receive(), confirmed);
        }
        assert_eq!(client.receive(), event(&record(&[("type", "join"), ("id", id)])));
    };
    let mut ann = Client::connect(&server, "actioncable-v1-ext-msgpack");
    join(&mut ann, "subscribe", "ann");
    let mut bob = Client::connect(&server, "actioncable-v1-ext-msgpack");
    bob.send(&map(&[("command", "subscribe"), ("identifier", NEWS)]));
    bob.receive();
    join(&mut bob, "join", "bob");
    assert_eq!(ann.receive(), event(&record(&[("type", "join"), ("id", "bob")])));
    let request = [("command", "presence"), ("identifier", NEWS)];
    bob.send(&map(&request));
    let members = [record(&[("id", "ann")]), record(&[("id", "bob")])].concat();
    let list = ["type", "info", "total"].map(packed).concat();
    let list = [vec![0x83], list, vec![2], packed("records"), vec![0x92], members].concat();
    assert_eq!(bob.receive(), event(&list));
    // Only their number.
    let number = [&packed("data")[..], b"\x81\xaereturn_records\xc2"].concat();
    let request = map(&request);
    bob.send(&[&[request[0] + 1], &request[1..], &number].concat());
    let total = bob.receive();
    assert!(total.starts_with(&event(b"\x83\xa4type\xa4info\xa5total\x02")), "{total:x?}");
    // A second id on one connection.
    bob.send(&with_member("join", "eve"));
    assert_eq!(bob.receive(), event(&map(&[("type", "error")])));
    bob.send(&map(&[("command", "leave"), ("identifier", NEWS)]));
    let left = |id: &str| event(&map(&[("type", "leave"), ("id", id)]));
    assert_eq!(bob.receive(), left("bob"));
    drop(ann);
    assert_eq!(bob.receive(), left("ann"));
    publish(&server, "1");
    let data = [field(2, NEWS), b"\x1a\x01\x01".to_vec()].concat();
    assert_eq!(protobuf.receive(), data, "nothing came before it");
    // Two joins and two leaves.
    assert_eq!(server.metrics()["standfast_messages_unencodable_total"], 4.0);
}
