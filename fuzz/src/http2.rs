//! An HTTP/2 connection that is fed as by a socket, and what holds of it at any time.

use std::sync::Arc;

use wire::http2::hpack::HeaderList;
use wire::http2::{Config, Connection, ErrorCode, Event, StreamId};
use wire::{Role, Violation};

use crate::input::Input;

/// Longest list of fields of these connections, in bytes.
const LIST_BYTES: u32 = 1000;
/// Longest header block, in bytes.
const BLOCK_BYTES: u32 = 2000;

type Field = (&'static [u8], &'static [u8]);

const REQUEST: [Field; 4] =
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a.example")];
const RESPONSE: [Field; 1] = [(b":status", b"200")];
const TRAILERS: [Field; 1] = [(b"x-end", b"yes")];

/// A connection with what it has returned and what it sends.
pub struct Side {
    pub connection: Connection,
    role: Role,
    list: HeaderList,
    pub out: Vec<u8>,
    /// Events as text, with pieces of data joined.
    pub log: Vec<String>,
    data: Vec<u8>,
    /// Streams of events, the latest last.
    streams: Vec<StreamId>,
    /// Streams of a server whose response has begun.
    responded: Vec<StreamId>,
    explicit_release: bool,
}

/// A configuration with small limits, by the bits of `choice`.
pub fn config(choice: u8) -> Config {
    Config {
        header_list_bytes: LIST_BYTES,
        header_block_bytes: BLOCK_BYTES,
        continuations: 4,
        header_table_bytes: [4096, 0, 200, 65_535][usize::from(choice & 3)],
        stream_window_bytes: [100, 65_535][usize::from(choice >> 2 & 1)],
        max_streams: [3, 100][usize::from(choice >> 3 & 1)],
        initial_max_streams: 3,
        enable_connect_protocol: choice >> 4 & 1 == 1,
        explicit_release: choice >> 5 & 1 == 1,
        resets: 20,
        control_frames: 50,
        empty_frames: 10,
        ..Config::default()
    }
}

impl Side {
    /// A connection; a client opens two streams at once.
    pub fn new(role: Role, config: Config) -> Side {
        let explicit_release = config.explicit_release;
        let (config, mut out) = (Arc::new(config), Vec::new());
        let mut connection = match role {
            Role::Client => Connection::client(&config, &mut out),
            Role::Server => Connection::server(&config, &mut out),
        };
        let mut streams = Vec::new();
        if role == Role::Client {
            streams.extend(connection.open(REQUEST, true, 1, &mut out).ok());
            streams.extend(connection.open(REQUEST, false, 2, &mut out).ok());
        }
        let (list, log, data) = (HeaderList::new(), Vec::new(), Vec::new());
        let responded = Vec::new();
        Side { connection, role, list, out, log, data, streams, responded, explicit_release }
    }

    /// Receives all of `bytes`.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut at = 0;
        let mut steps = 0;
        while let Some((used, event)) =
            self.connection.receive(&bytes[at..], &mut self.list, &mut self.out)?
        {
            // An event without bytes is the end of a stream that GOAWAY left out.
            steps += 1;
            assert!(steps <= bytes.len() + 200, "events without bytes");
            at += used;
            match event {
                Event::Data { stream, data, end_stream, .. } => {
                    assert!(!data.is_empty() || end_stream);
                    self.data.extend_from_slice(data);
                    if end_stream {
                        self.flush_data();
                        self.log.push(format!("end {stream:?}"));
                    }
                    continue;
                }
                Event::Head { stream, .. } => {
                    assert!(self.list.size() <= LIST_BYTES as usize);
                    self.streams.push(stream);
                    self.flush_data();
                    self.log.push(format!("{event:?} {:?}", self.list));
                }
                _ => {
                    self.flush_data();
                    self.log.push(format!("{event:?}"));
                }
            }
        }
        self.check();
        Ok(())
    }

    fn flush_data(&mut self) {
        if !self.data.is_empty() {
            let data = std::mem::take(&mut self.data);
            self.log.push(format!("data {}", data.escape_ascii()));
        }
    }

    /// What was seen, in the end.
    pub fn finish(mut self) -> (Vec<String>, Vec<u8>) {
        self.flush_data();
        (self.log, self.out)
    }

    /// Does what a program might do now.
    pub fn act(&mut self, input: &mut Input<'_>) {
        let (action, which) = (input.byte(), usize::from(input.byte()));
        let Side { connection, out, streams, responded, .. } = self;
        let picked = streams.get(which % streams.len().max(1)).copied();
        let begun = self.role == Role::Client || picked.is_some_and(|id| responded.contains(&id));
        let ends = action & 0x80 != 0;
        match (action & 7, picked) {
            (0, _) if self.role == Role::Client => {
                if let Ok(stream) = connection.open(REQUEST, ends, 3, out) {
                    streams.push(stream);
                }
            }
            (0, Some(stream)) if !begun => {
                responded.push(stream);
                _ = connection.respond(stream, RESPONSE, ends, out);
            }
            (1, Some(stream)) if begun => {
                let window = connection.send_window(stream);
                let data = vec![b'x'; usize::from(input.u16())];
                let before = out.len();
                if let Ok(taken) = connection.send_data(stream, &data, ends, out) {
                    assert_eq!(taken, data.len().min(window));
                    assert!(out.len() - before <= taken + 9 * (taken / 16_384 + 1));
                }
            }
            (2, Some(stream)) => _ = connection.reset(stream, ErrorCode::CANCEL, out),
            (3, Some(stream)) if begun => _ = connection.send_trailers(stream, TRAILERS, out),
            (4, Some(stream)) if self.explicit_release => {
                connection.release(stream, usize::from(input.u16()), out);
            }
            (5, _) => connection.ping(*b"12345678", out),
            (6, _) if which == 0 => connection.go_away(ErrorCode::NO_ERROR, out),
            (7, _) => connection.written(),
            _ => {}
        }
        self.check();
    }

    /// Memory is bounded by the limits, and the streams are as many as it says.
    fn check(&self) {
        let streams = self.connection.open_streams() as usize;
        assert_eq!(self.connection.streams().count(), streams);
        if self.role == Role::Server {
            assert!(streams <= 100);
        }
        // Tables of both directions, a partial frame with its growth, and places of streams.
        let most = 2 * 140_000 + 2 * (16_384 + BLOCK_BYTES as usize) + 64 * (2 * streams + 64);
        assert!(self.connection.memory_bytes() <= most);
    }
}
