//! Connections in memory: what each side sees, in any splitting of the bytes.

mod cases;
mod floods;
mod pairs;
mod splits;
mod windows;

use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

use super::frame::{FrameHeader, FrameType, PREFACE};
use super::hpack::HeaderList;
use super::{Config, Connection, ErrorCode, Event, HeadKind, StreamId};
use crate::Violation;

/// An event that is kept. Pieces of data are joined.
#[derive(Clone, PartialEq, Debug)]
enum Seen {
    Head { stream: u32, kind: HeadKind, end_stream: bool, fields: Vec<(String, String)> },
    Data { stream: u32, data: Vec<u8>, end_stream: bool },
    Reset { stream: u32, code: ErrorCode },
    StreamFailed { stream: u32, violation: Violation },
    GoAway { last_stream: u32, code: ErrorCode },
    Settings,
    WindowOpened(Option<u32>),
    Pong([u8; 8]),
}

/// One side, with what it has seen and what it has to send.
struct Side {
    connection: Connection,
    list: HeaderList,
    out: Vec<u8>,
    seen: Vec<Seen>,
    /// Ids of streams by event, to answer them.
    ids: Vec<StreamId>,
    /// Calls of `receive`.
    calls: usize,
}

impl Side {
    fn client(config: &Config) -> Side {
        let mut out = Vec::new();
        let connection = Connection::client(&Arc::new(config.clone()), &mut out);
        Side::new(connection, out)
    }

    fn server(config: &Config) -> Side {
        let mut out = Vec::new();
        let connection = Connection::server(&Arc::new(config.clone()), &mut out);
        Side::new(connection, out)
    }

    fn new(connection: Connection, out: Vec<u8>) -> Side {
        let (list, seen, ids) = (HeaderList::new(), Vec::new(), Vec::new());
        Side { connection, list, out, seen, ids, calls: 0 }
    }

    /// Receives all of `bytes`.
    fn receive(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut at = 0;
        loop {
            self.calls += 1;
            let received = self.connection.receive(&bytes[at..], &mut self.list, &mut self.out)?;
            let Some((used, event)) = received else { return Ok(()) };
            at += used;
            let seen = match event {
                Event::Head { stream, kind, end_stream, .. } => {
                    self.ids.push(stream);
                    let text = |bytes| String::from_utf8_lossy(bytes).to_string();
                    let fields = self.list.iter().map(|(name, value)| (text(name), text(value)));
                    let fields = fields.collect();
                    Seen::Head { stream: stream.get(), kind, end_stream, fields }
                }
                Event::Data { stream, data, end_stream, .. } => {
                    if let Some(Seen::Data { stream: last, data: joined, end_stream: ended }) =
                        self.seen.last_mut()
                        && *last == stream.get()
                        && !*ended
                    {
                        joined.extend_from_slice(data);
                        *ended = end_stream;
                        continue;
                    }
                    Seen::Data { stream: stream.get(), data: data.to_vec(), end_stream }
                }
                Event::Reset { stream, code, .. } => Seen::Reset { stream: stream.get(), code },
                Event::StreamFailed { stream, violation, .. } => {
                    Seen::StreamFailed { stream: stream.get(), violation }
                }
                Event::GoAway { last_stream, code } => Seen::GoAway { last_stream, code },
                Event::Settings => Seen::Settings,
                Event::WindowOpened(stream) => {
                    Seen::WindowOpened(stream.map(|(stream, _)| stream.get()))
                }
                Event::Pong(payload) => Seen::Pong(payload),
            };
            self.seen.push(seen);
        }
    }

    /// Takes what is to be sent.
    fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// What was seen since the last call, without settings.
    fn news(&mut self) -> Vec<Seen> {
        let mut seen = std::mem::take(&mut self.seen);
        seen.retain(|seen| *seen != Seen::Settings);
        seen
    }
}

/// Passes bytes both ways until there are none.
fn exchange(a: &mut Side, b: &mut Side) {
    for _ in 0..1000 {
        let (from_a, from_b) = (a.sent(), b.sent());
        if from_a.is_empty() && from_b.is_empty() {
            return;
        }
        b.receive(&from_a).unwrap();
        a.receive(&from_b).unwrap();
    }
    panic!("both sides answer each other without an end");
}

/// Both sides after their SETTINGS were exchanged.
fn pair(client: &Config, server: &Config) -> (Side, Side) {
    let (mut client, mut server) = (Side::client(client), Side::server(server));
    exchange(&mut client, &mut server);
    client.seen.clear();
    server.seen.clear();
    (client, server)
}

type Field = (&'static [u8], &'static [u8]);

const GET: [Field; 4] =
    [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a.example")];

const POST: [Field; 4] =
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a.example")];

const OK: [Field; 1] = [(b":status", b"200")];

/// A frame with this payload.
fn frame(kind: FrameType, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let payload_bytes = payload.len() as u32;
    let header = FrameHeader { payload_bytes, kind, flags, stream };
    [&header.to_bytes(), payload].concat()
}

/// A setting as it is in SETTINGS.
fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// The frames in `bytes`, all complete, without a preface.
fn frames(bytes: &[u8]) -> Vec<(FrameHeader, Vec<u8>)> {
    let mut rest = bytes.strip_prefix(PREFACE.as_slice()).unwrap_or(bytes);
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_first_chunk() {
        let header = FrameHeader::parse(header);
        let (payload, after) = after.split_at(header.payload_bytes as usize);
        frames.push((header, payload.to_vec()));
        rest = after;
    }
    assert!(rest.is_empty());
    frames
}
