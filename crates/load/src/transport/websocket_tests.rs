//! Frames split at every byte, and hostile servers.

use std::fmt::Write;

use wire::websocket::{
    CloseCode, Compressor, FrameHeader, accept_key, encode, encode_close, encode_deflated,
};

use super::*;
use crate::workload::requests::answer::Wants;

const HEAD: &[u8] = b"GET /x HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: chat, other\r\n\r\n";

/// A connection that has sent its handshake, and the server's answer.
fn asked(more: &str) -> (WebSocket, WebSocketState, Vec<u8>) {
    asked_by(WebSocket::new(), more)
}

fn asked_by(mut socket: WebSocket, more: &str) -> (WebSocket, WebSocketState, Vec<u8>) {
    let mut state = WebSocketState::default();
    socket.seed(7);
    let request = Request::message(0, Kind::Connect, HEAD.to_vec());
    let asked = String::from_utf8(socket.encode(&mut state, &request).to_vec()).unwrap();
    let key = asked.split("Sec-WebSocket-Key: ").nth(1).unwrap();
    let offers = asked.contains("Sec-WebSocket-Extensions: permessage-deflate; ");
    assert_eq!(offers, socket.deflate.is_some(), "{asked}");
    assert!(key.ends_with("==\r\n\r\n") && asked.starts_with("GET /x"), "{asked}");
    let accept = String::from_utf8(accept_key(key.trim().as_bytes()).to_vec()).unwrap();
    let mut answer = "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n".to_owned();
    write!(answer, "Sec-WebSocket-Accept: {accept}\r\n{more}\r\n").unwrap();
    (socket, state, answer.into_bytes())
}

fn open() -> (WebSocket, WebSocketState) {
    let (mut socket, mut state, answer) = asked("Sec-WebSocket-Protocol: other\r\n");
    let mut awaited = Awaited::default();
    let whole = CompleteAnswer { used: answer.len(), status: 101, keep: true, body_bytes: 0 };
    assert_eq!(socket.receive(&mut state, &answer, &mut awaited), Received::Complete(whole));
    (socket, state)
}

/// The results of a stream in pieces of `piece` bytes, and the replies.
fn heard(stream: &[u8], piece: usize) -> (Vec<String>, Vec<u8>) {
    heard_by(open(), stream, piece)
}

fn heard_by(
    (mut socket, mut state): (WebSocket, WebSocketState),
    stream: &[u8],
    piece: usize,
) -> (Vec<String>, Vec<u8>) {
    let mut awaited = Awaited::default();
    let (mut heard, mut replied) = (Vec::new(), Vec::new());
    for piece in stream.chunks(piece) {
        let mut rest = piece;
        while !rest.is_empty() {
            let received = socket.receive(&mut state, rest, &mut awaited);
            replied.extend_from_slice(socket.reply());
            match received {
                Received::More => break,
                Received::Pushed(used) => {
                    rest = &rest[used..];
                    let message = socket.message();
                    let text = String::from_utf8_lossy(message.data).into_owned();
                    heard.push(format!("{} {text}", message.is_text));
                }
                Received::Closing(code) => {
                    heard.push(code.to_string());
                    return (heard, replied);
                }
                Received::Failed(failure) => {
                    heard.push(failure.name().to_owned());
                    return (heard, replied);
                }
                other => panic!("{other:?}: unexpected"),
            }
        }
    }
    (heard, replied)
}

fn fragment(out: &mut Vec<u8>, opcode: OpCode, fin: bool, data: &[u8]) {
    out.extend_from_slice(FrameHeader::new(opcode, fin, data.len(), None).as_slice());
    out.extend_from_slice(data);
}

#[test]
fn messages_are_the_same_at_any_split() {
    let mut stream = Vec::new();
    encode(&mut stream, OpCode::Text, b"one");
    encode(&mut stream, OpCode::Ping, b"there?");
    fragment(&mut stream, OpCode::Binary, false, b"tw");
    encode(&mut stream, OpCode::Ping, b"between");
    fragment(&mut stream, OpCode::Continuation, false, b"");
    fragment(&mut stream, OpCode::Continuation, true, b"o");
    encode(&mut stream, OpCode::Text, &[b'x'; 300]);
    encode(&mut stream, OpCode::Text, b"");
    encode(&mut stream, OpCode::Pong, b"unasked");
    encode_close(&mut stream, Some(CloseCode(4001)), "bye", None);
    let long = format!("true {}", "x".repeat(300));
    let all = ["true one", "false two", &long, "true ", "4001"];
    for piece in 1..=stream.len() {
        let (heard, replied) = heard(&stream, piece);
        assert_eq!(heard, all, "pieces of {piece}");
        // Two pongs and a close frame, masked.
        assert_eq!(replied.len(), 6 + 6 + 6 + 7 + 6 + 2, "pieces of {piece}");
        assert!(replied[0] == 0x8a && replied[1] == 0x86, "{replied:?}");
    }
}

#[test]
fn protocol_violations_are_reported_by_kind() {
    let mut big = FrameHeader::new(OpCode::Binary, true, 2 << 20, None).as_slice().to_vec();
    big.push(0);
    let cut_short: &[u8] = &[0x88, 1, 3];
    for (stream, kind) in [
        (&[0x81, 0x81, 1, 2, 3, 4, 5][..], "masked_frame"),
        (&[0xc1, 1, b'a'], "reserved_bits"),
        (&[0x83, 0], "reserved_opcode"),
        (&[0x80, 0], "unexpected_continuation"),
        (&[0x01, 1, b'a', 0x81, 1, b'b'], "interrupted_message"),
        (&[0x09, 0], "fragmented_control"),
        (&[0x89, 126, 0, 200], "control_too_long"),
        (&[0x81, 1, 0xff], "invalid_utf8"),
        (&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], "length_top_bit"),
        (&big, "message_too_big"),
        (cut_short, "close_too_short"),
        (&[0x88, 2, 3, 237], "close_code_invalid"),
    ] {
        for piece in [1, 2, stream.len()] {
            let (heard, replied) = heard(stream, piece);
            assert_eq!(heard, [kind], "pieces of {piece}");
            assert_eq!(replied.first(), Some(&0x88), "{kind}: the close frame has a code");
        }
    }
    // A message that never ends is given up when it is too long, not before.
    let mut endless = Vec::new();
    fragment(&mut endless, OpCode::Binary, false, b"x");
    for _ in 0..32 {
        fragment(&mut endless, OpCode::Continuation, false, &[b'x'; 32 << 10]);
    }
    assert_eq!(heard(&endless, 4_096).0, ["message_too_big"]);
}

#[test]
fn invalid_handshakes_are_rejected() {
    for (more, change, expected) in [
        ("", ("101", "403"), Ok(403)),
        ("", ("Accept: ", "Accept: x"), Err("wrong_accept")),
        ("", ("Upgrade: websocket", "Upgrade: h2c"), Err("switched_without_upgrade")),
        ("Sec-WebSocket-Protocol: third\r\n", ("", ""), Err("unoffered_protocol")),
        ("Sec-WebSocket-Extensions: permessage-deflate\r\n", ("", ""), Err("unoffered_extension")),
        ("Sec-WebSocket-Protocol: chat\r\n", ("", ""), Ok(101)),
        ("", ("HTTP/1.1", "SSH-2.0 "), Err("bad_status_line")),
    ] {
        let (mut socket, mut state, answer) = asked(more);
        let answer = String::from_utf8(answer).unwrap().replacen(change.0, change.1, 1);
        let mut awaited = Awaited::default();
        awaited.begin(Wants::Body(100), false, false);
        let came = socket.receive(&mut state, answer.as_bytes(), &mut awaited);
        let came = match came {
            Received::Complete(whole) => Ok(whole.status),
            Received::Failed(failure) => Err(failure.name()),
            other => panic!("{other:?}"),
        };
        assert_eq!(came, expected, "{answer}");
    }
    let (mut socket, mut state, _) = asked("");
    let endless = [b"HTTP/1.1 101 X\r\nA: ".as_slice(), &[b'a'; 20_000]].concat();
    let came = socket.receive(&mut state, &endless, &mut Awaited::default());
    assert_eq!(came, Received::Failed(Failure::Protocol(Violation::HeadTooLarge)));
}

#[test]
fn ping_awaits_its_pong_and_close_awaits_a_close() {
    let ((mut socket, mut state), mut awaited) = (open(), Awaited::default());
    let ping = Request::message(0, Kind::Ping, b"now".to_vec());
    assert_eq!(socket.encode(&mut state, &ping)[..2], [0x89, 0x83]);
    let mut stream = Vec::new();
    encode(&mut stream, OpCode::Pong, b"then");
    assert_eq!(socket.receive(&mut state, &stream, &mut awaited), Received::More);
    stream.clear();
    encode(&mut stream, OpCode::Pong, b"now");
    let whole =
        |used, keep| Received::Complete(CompleteAnswer { used, status: 0, keep, body_bytes: 0 });
    assert_eq!(socket.receive(&mut state, &stream, &mut awaited), whole(5, true));
    let close = Request::message(0, Kind::Close, Vec::new());
    assert_eq!(socket.encode(&mut state, &close)[..2], [0x88, 0x82]);
    stream.clear();
    encode_close(&mut stream, Some(CloseCode::NORMAL), "", None);
    assert_eq!(socket.receive(&mut state, &stream, &mut awaited), whole(4, false));
    assert!(socket.reply().is_empty(), "the other side has the last word");
}

const AGREED: &str = "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover\r\n";

/// A client with compression, after the handshake.
fn compressing(answer: &str) -> (WebSocket, WebSocketState) {
    let (mut socket, mut state, head) = asked_by(WebSocket::new().compressing(100), answer);
    let came = socket.receive(&mut state, &head, &mut Awaited::default());
    assert!(matches!(came, Received::Complete(CompleteAnswer { status: 101, .. })), "{came:?}");
    (socket, state)
}

fn deflated(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Compressor::new(15).compress(message, &mut out);
    out
}

#[test]
fn compressed_messages_are_the_same_at_any_split() {
    let long = "again and ".repeat(40);
    let payload = deflated(long.as_bytes());
    let mut stream = Vec::new();
    encode_deflated(&mut stream, OpCode::Text, &payload, None);
    encode(&mut stream, OpCode::Text, b"plain");
    let (first, last) = payload.split_at(payload.len() / 2);
    let header = FrameHeader::new(OpCode::Binary, false, first.len(), None).deflated();
    stream.extend_from_slice(header.as_slice());
    stream.extend_from_slice(first);
    fragment(&mut stream, OpCode::Continuation, true, last);
    let all = [format!("true {long}"), "true plain".to_owned(), format!("false {long}")];
    for piece in 1..=stream.len() {
        let (heard, _) = heard_by(compressing(AGREED), &stream, piece);
        assert_eq!(heard, all, "pieces of {piece}");
    }
}

#[test]
fn messages_are_compressed_if_negotiated_and_long_enough() {
    let message = |length: usize| Request::message(0, Kind::Text, vec![b'x'; length]);
    for (answer, length, first) in [
        (AGREED, 100, 0xc1),
        (AGREED, 99, 0x81),
        ("", 100, 0x81),
        (
            "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
          client_max_window_bits=8\r\n",
            100,
            0x81,
        ),
    ] {
        let (mut socket, mut state) = compressing(answer);
        let sent = socket.encode(&mut state, &message(length)).to_vec();
        assert_eq!(sent[0], first, "{answer} {length}");
        assert!(sent[1] & 0x80 != 0, "masked");
        if first == 0xc1 {
            assert!(sent.len() < 40, "{sent:?}");
        }
        let ping = Request::message(0, Kind::Ping, vec![b'x'; 120]);
        assert_eq!(socket.encode(&mut state, &ping)[0], 0x89, "control frames are not compressed");
    }
}

#[test]
fn invalid_compression_and_bombs_are_reported_by_kind() {
    let bomb = deflated(&vec![0; (1 << 20) + 1]);
    assert!(bomb.len() < 8_192, "{}", bomb.len());
    for (payload, opcode, kind) in [
        (bomb, OpCode::Binary, "inflated_too_big"),
        (b"\xff\xff\xff".to_vec(), OpCode::Binary, "bad_deflate"),
        (deflated(b"\xff"), OpCode::Text, "invalid_utf8"),
    ] {
        let mut stream = Vec::new();
        encode_deflated(&mut stream, opcode, &payload, None);
        for piece in [7, stream.len()] {
            let (heard, replied) = heard_by(compressing(AGREED), &stream, piece);
            assert_eq!(heard, [kind], "pieces of {piece}");
            assert_eq!(replied.first(), Some(&0x88), "{kind}: the close frame has a code");
        }
        // Nobody agreed to it.
        assert_eq!(heard_by(compressing(""), &stream, 7).0, ["reserved_bits"]);
    }
    let most = deflated(&vec![0; 1 << 20]);
    let mut stream = Vec::new();
    encode_deflated(&mut stream, OpCode::Binary, &most, None);
    assert_eq!(heard_by(compressing(AGREED), &stream, 512).0.len(), 1, "as long as may be");
}
