//! The client against servers that violate the protocol, or only just follow it: the handshake
//! (RFC 6455 section 4.1), frames (5.1, 5.2), the close (7.1.1).

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Response, ServerFault, Sys,
    Tables, Target, Totals, Workers,
};
use wire::Violation;
use wire::websocket::{CloseCode, OpCode, accept_key};

const PATIENCE: Duration = Duration::from_secs(60);

/// What the client does besides echoing messages.
#[derive(Copy, Clone, PartialEq)]
enum Behaviour {
    Echo,
    /// Closes as soon as it is open.
    Close,
}

struct Visitor {
    behaviour: Behaviour,
    received: Vec<Vec<u8>>,
    ends: Sender<(Closed, bool, Vec<Vec<u8>>)>,
    /// Calls of `closing`, with the server's violation.
    closing_calls: Sender<(Closed, Option<ServerFault>)>,
}

impl Handler for Visitor {
    type User = ();
    type Post = Target;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, ""))
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if self.behaviour == Behaviour::Close {
            core.close(id, CloseCode::NORMAL, "");
        }
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        self.received.push(data.to_vec());
        core.send(id, opcode, data);
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        assert!(!core.is_open(id) && core.mode(id).is_some());
        self.closing_calls.send((why, core.server_fault(id))).unwrap();
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        if !opened && let Some(broken) = core.server_fault(id) {
            self.closing_calls.send((why, Some(broken))).unwrap();
        }
        self.ends.send((why, opened, std::mem::take(&mut self.received))).unwrap();
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, target: Target) {
        let target = core.add_target(target).unwrap();
        core.connect(target, None).unwrap();
    }
}

/// How a visit ended for the client, and the result of the server.
struct Visit<T> {
    why: Closed,
    opened: bool,
    received: Vec<Vec<u8>>,
    closing_calls: Vec<(Closed, Option<ServerFault>)>,
    totals: Totals,
    server: T,
}

/// Connects a client to `server`, which gets the stream after the request, and the request's key.
fn visit<T: Send>(
    limits: &Limits,
    behaviour: Behaviour,
    server: impl FnOnce(TcpStream, &str) -> T + Send,
) -> Visit<T> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = {
        let address = listener.local_addr().unwrap();
        Target::websocket(address, "localhost", "/", &["spoken"], false, &[])
    };
    let plan = Plan { workers: 1, accepting: 1, capacity: 4, tables: Tables::Shared };
    let (ends, ended) = mpsc::channel();
    let (closing_calls, left) = mpsc::channel();
    let handler = move |_: u16, _: &_| {
        let (ends, closing_calls) = (ends.clone(), closing_calls.clone());
        Visitor { behaviour, received: Vec::new(), ends, closing_calls }
    };
    let workers = Workers::start(plan, limits, &[], handler).unwrap();
    workers.remote().post(0, target, 0).unwrap();
    let server = thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let key = read_request(&mut stream);
            server(stream, &key)
        });
        server.join().unwrap()
    });
    let (why, opened, received) = ended.recv_timeout(PATIENCE).unwrap();
    let totals = Totals::sum(workers.remote().counters());
    workers.drain(Duration::ZERO).unwrap();
    let closing_calls = left.try_iter().collect();
    Visit { why, opened, received, closing_calls, totals, server }
}

/// Reads the client's request and returns its key.
fn read_request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
    key.unwrap().to_owned()
}

/// The correct response to a key, with further lines.
fn switching(key: &str, more: &str) -> Vec<u8> {
    let accept = String::from_utf8(accept_key(key.as_bytes()).to_vec()).unwrap();
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{more}\r\n"
    )
    .into_bytes()
}

/// Everything up to the end of the stream.
fn read_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    all
}

/// The frames of a client, unmasked, with the masking key of each.
fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>, [u8; 4])> {
    let mut frames = Vec::new();
    while let [first, second, rest @ ..] = bytes {
        assert!(second & 0x80 != 0, "a client masks every frame (RFC 6455 section 5.1)");
        let length = usize::from(second & 0x7F);
        assert!(length < 126, "these tests use short frames");
        let (mask, rest) = rest.split_first_chunk::<4>().unwrap();
        let (payload, rest) = rest.split_at(length);
        let clear = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
        frames.push((*first, clear.collect(), *mask));
        bytes = rest;
    }
    frames
}

fn count(totals: &Totals, violation: Violation) -> u64 {
    totals.violations[violation as usize]
}

#[test]
fn invalid_handshake_response_closes_the_connection() {
    let with = |more: &'static str| move |key: &str| switching(key, more);
    let without = |line: &'static str| {
        move |key: &str| {
            let right = String::from_utf8(switching(key, "")).unwrap();
            right.replacen(line, "X-:", 1).into_bytes()
        }
    };
    let status = |line: &'static str| {
        move |key: &str| {
            let right = String::from_utf8(switching(key, "Location: /\r\nContent-Length: 0\r\n"));
            right.unwrap().replacen("101 Switching Protocols", line, 1).into_bytes()
        }
    };
    type Server = Box<dyn Fn(&str) -> Vec<u8> + Send + Sync>;
    let servers: Vec<(Violation, Server)> = vec![
        (Violation::WrongAccept, Box::new(|_| switching("bm90IHRoZSBrZXkgYXQgYWxs", ""))),
        (Violation::WrongAccept, Box::new(without("Sec-WebSocket-"))),
        (Violation::SwitchedWithoutUpgrade, Box::new(without("Upgrade:"))),
        (Violation::SwitchedWithoutConnection, Box::new(without("Connection:"))),
        (Violation::UnofferedProtocol, Box::new(with("Sec-WebSocket-Protocol: other\r\n"))),
        (Violation::UnofferedExtension, Box::new(with("Sec-WebSocket-Extensions: x\r\n"))),
        (
            Violation::UnofferedExtension,
            Box::new(with("Sec-WebSocket-Extensions: permessage-deflate\r\n")),
        ),
        (Violation::NotSwitched, Box::new(status("200 OK"))),
        (Violation::NotSwitched, Box::new(status("302 Found"))),
        (Violation::NotSwitched, Box::new(status("503 Service Unavailable"))),
        (
            Violation::HeadTooLarge,
            Box::new(|_| [&b"HTTP/1.1 101 S\r\n"[..], &b"a: b\r\n".repeat(3_000)].concat()),
        ),
        (Violation::TooManyHeaders, Box::new(|key| switching(key, &"a: b\r\n".repeat(200)))),
        (Violation::BadStatusLine, Box::new(|_| b"SSH-2.0-x\r\n\r\n".to_vec())),
    ];
    for (violation, answer) in servers {
        let visit = visit(&Limits::default(), Behaviour::Echo, |mut stream, key| {
            stream.write_all(&answer(key)).unwrap();
            read_all(&stream)
        });
        assert_eq!(visit.why, Closed::HandshakeRejected, "{violation:?}");
        assert!(!visit.opened && visit.server.is_empty(), "{violation:?}");
        assert_eq!(count(&visit.totals, violation), 1, "{violation:?}");
        let broken = match visit.closing_calls.as_slice() {
            [(Closed::HandshakeRejected, Some(broken))] => *broken,
            other => panic!("{violation:?}: {other:?}"),
        };
        match broken {
            ServerFault::Violation(rule) => assert_eq!(rule, violation),
            ServerFault::Status(status) => {
                assert_eq!(violation, Violation::NotSwitched);
                assert!([200, 302, 503].contains(&status), "{status}");
            }
            other => panic!("{violation:?}: {other:?}"),
        }
        assert_eq!(visit.totals.connects, 1, "nothing is followed, nothing is tried again");
    }
}

#[test]
fn server_may_select_an_offered_subprotocol() {
    let visit = visit(&Limits::default(), Behaviour::Close, |mut stream, key| {
        stream.write_all(&switching(key, "Sec-WebSocket-Protocol: spoken\r\n")).unwrap();
        stream.write_all(&[0x88, 0]).unwrap();
        let mut frame = [0; 8];
        stream.read_exact(&mut frame).unwrap();
    });
    assert!(visit.opened);
    assert_eq!(visit.why, Closed::ByUs);
}

#[test]
fn frames_in_the_same_segment_as_the_response_are_received() {
    let visit = visit(&Limits::default(), Behaviour::Echo, |mut stream, key| {
        let frames = b"\x81\x05first\x01\x03sec\x80\x03ond\x88\x00";
        stream.write_all(&[&switching(key, "")[..], frames].concat()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        read_all(&stream)
    });
    assert_eq!(visit.received, [b"first".to_vec(), b"second".to_vec()]);
    let said: Vec<_> =
        frames(&visit.server).into_iter().map(|(first, data, _)| (first, data)).collect();
    let expected = [(0x81, b"first".to_vec()), (0x81, b"second".to_vec()), (0x88, Vec::new())];
    assert_eq!(said, expected);
    assert_eq!(visit.why, Closed::ByPeer);
}

#[test]
fn every_frame_is_masked_with_a_new_key() {
    const MESSAGES: usize = 50;
    let visit = visit(&Limits::default(), Behaviour::Echo, |mut stream, key| {
        let frames = [b"\x81\x04same".repeat(MESSAGES), b"\x89\x00\x88\x00".to_vec()].concat();
        stream.write_all(&[switching(key, ""), frames].concat()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        read_all(&stream)
    });
    let frames = frames(&visit.server);
    assert_eq!(frames.len(), MESSAGES + 2);
    let mut keys: Vec<[u8; 4]> = frames.iter().map(|frame| frame.2).collect();
    keys.sort_unstable();
    keys.dedup();
    // Two of 52 random keys are equal once in three million runs.
    assert!(keys.len() > MESSAGES, "{} keys", keys.len());
}

#[test]
fn frames_forbidden_to_servers_are_refused() {
    let announced = |length: u64| [&[0x82, 127][..], &length.to_be_bytes()].concat();
    let servers: Vec<(Violation, u16, Vec<u8>)> = vec![
        (Violation::MaskedFrame, 1002, b"\x81\x81\0\0\0\0x".to_vec()),
        (Violation::LengthTopBit, 1002, announced(u64::MAX)),
        (Violation::LengthTopBit, 1002, announced(1 << 63)),
        (Violation::MessageTooBig, 1009, announced(100 << 30)),
        (Violation::LengthNotMinimal, 1002, announced(125)),
        (Violation::ReservedBits, 1002, b"\xC1\x00".to_vec()),
        (Violation::ReservedOpCode, 1002, b"\x83\x00".to_vec()),
        (Violation::FragmentedControl, 1002, b"\x09\x00".to_vec()),
        (Violation::UnexpectedContinuation, 1002, b"\x80\x00".to_vec()),
        (Violation::InvalidUtf8, 1007, b"\x81\x02\xC3\x28".to_vec()),
        (Violation::CloseTooShort, 1002, b"\x88\x01\x03".to_vec()),
        (Violation::CloseCodeInvalid, 1002, b"\x88\x02\x03\xED".to_vec()),
    ];
    for (violation, code, bytes) in servers {
        let visit = visit(&Limits::default(), Behaviour::Echo, |mut stream, key| {
            stream.write_all(&[switching(key, ""), bytes].concat()).unwrap();
            read_all(&stream)
        });
        let frames = frames(&visit.server);
        assert_eq!(frames.len(), 1, "{violation:?}");
        assert_eq!(
            (frames[0].0, &frames[0].1[..2]),
            (0x88, &code.to_be_bytes()[..]),
            "{violation:?}"
        );
        assert_eq!(visit.why, Closed::Violation, "{violation:?}");
        let told = (Closed::Violation, Some(ServerFault::Violation(violation)));
        assert_eq!(visit.closing_calls, [told], "reported once, before closed");
        assert_eq!(count(&visit.totals, violation), 1, "{violation:?}");
    }
}

/// RFC 6455 section 7.1.1: the client waits for the server to close the TCP connection.
#[test]
fn server_closes_the_connection_after_the_closing_handshake() {
    let limits = Limits { close_timeout: PATIENCE, ..Limits::default() };
    let visit = visit(&limits, Behaviour::Echo, |mut stream, key| {
        stream.write_all(&[&switching(key, "")[..], b"\x88\x02\x03\xE8"].concat()).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let silence = stream.read(&mut [0]).map_err(|error| error.kind());
        (answer, silence)
    });
    let (answer, silence) = visit.server;
    assert_eq!(frames(&answer)[0].1, 1000_u16.to_be_bytes());
    assert_eq!(silence, Err(ErrorKind::WouldBlock), "it says nothing and does not leave first");
    assert_eq!(visit.why, Closed::ByPeer);
}

/// The client waits for that only until a timeout.
#[test]
fn client_closes_if_the_server_does_not() {
    let limits = Limits { close_timeout: Duration::from_millis(200), ..Limits::default() };
    let answered = visit(&limits, Behaviour::Echo, |mut stream, key| {
        stream.write_all(&[&switching(key, "")[..], b"\x88\x02\x03\xE8"].concat()).unwrap();
        read_all(&stream)
    });
    assert_eq!(frames(&answered.server).len(), 1);
    assert_eq!(answered.why, Closed::ByPeer);
    assert_eq!(answered.closing_calls, [(Closed::ByPeer, None)]);
    let unanswered = visit(&limits, Behaviour::Close, |mut stream, key| {
        stream.write_all(&switching(key, "")).unwrap();
        read_all(&stream)
    });
    assert_eq!(frames(&unanswered.server).len(), 1);
    assert_eq!(unanswered.why, Closed::ByUs);
    assert_eq!(unanswered.closing_calls, [], "its own order is no news to the handler");
}

/// The timeout is for the complete response, not for each byte.
#[test]
fn slow_handshake_response_times_out() {
    let limits = Limits { handshake_timeout: Duration::from_millis(300), ..Limits::default() };
    let visit = visit(&limits, Behaviour::Echo, |mut stream, _| {
        stream.write_all(b"HTTP/1.1 101 S\r\nX: ").unwrap();
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
    assert_eq!(visit.why, Closed::HandshakeTimeout);
    assert!(!visit.opened);
}
