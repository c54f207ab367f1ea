//! A server of WebSockets over HTTP/2 (RFC 8441) that logs and misbehaves in one way. One thread per
//! connection; it writes frames byte by byte and reads no header block, so each is taken for a handshake.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::accept::{accept, end};
use super::http2::{frame, frame_bytes};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` and `:status: 400` (RFC 7541 appendix A).
const OK: &[u8] = &[0x88];
const BAD_REQUEST: &[u8] = &[0x8c];
/// The longest frame that each client takes.
const FRAME_BYTES: usize = 16_384;
/// How many messages of a socket are echoed before something happens to it.
const ECHOED_BEFORE: u64 = 3;

/// How it behaves. Every nth socket of the server is counted from 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// Echoes messages.
    Echoes,
    /// Sends its SETTINGS after this many milliseconds.
    SettingsLate(u64),
    /// Does not announce extended CONNECT.
    NoExtendedConnect,
    /// Speaks HTTP/1.1.
    Http11,
    /// Takes connections and streams, and answers nothing.
    Silent,
    /// Allows so many streams on a connection.
    Allows(u8),
    /// Answers the handshake of each 10th socket with 400.
    Refuses,
    /// Answers the handshake of each 10th socket by a reset with this code.
    ResetsHandshake(u8),
    /// Resets each 10th socket with this code in place of its fourth answer.
    Resets(u8),
    /// In place of its fourth answer, ends the stream of each 10th socket.
    Ends,
    /// The same in the middle of the answer.
    EndsMidway,
    /// The same with a close frame of this code before.
    Closes(u16),
    /// Sends each 10th socket a masked frame, which a client must refuse.
    MasksFrames,
    /// Sends bytes on the connection that are no frames of HTTP/2, in place of the fourth answer to each
    /// 10th socket.
    Garbage,
    /// Closes the connection in place of that answer.
    Cuts,
    /// On each connection sends GOAWAY after this many sockets, and processes no more of them.
    Leaves(u32),
    /// Windows that stay closed, so that no message can be sent.
    ClosesWindow,
    /// Windows of this many bytes, which it opens as it reads.
    NarrowWindow(u16),
}

/// What it received.
#[derive(Default, Clone, Debug)]
pub(crate) struct Log {
    pub(crate) connections: u64,
    /// Handshakes that were answered with 200.
    pub(crate) sockets: u64,
    /// All handshakes, without those after GOAWAY.
    pub(crate) handshakes: u64,
    pub(crate) unprocessed: u64,
    pub(crate) messages: u64,
    pub(crate) echoed: u64,
    pub(crate) pings: u64,
    /// Close frames by code; 0 without one.
    pub(crate) closes: BTreeMap<u16, u64>,
    /// Frames without a mask.
    pub(crate) unmasked: u64,
    /// Streams that the client reset, by code, and ended.
    pub(crate) resets: BTreeMap<u32, u64>,
    pub(crate) ended: u64,
    /// The most sockets on a connection at a time.
    pub(crate) sockets_most: u64,
    /// A handshake arrived before the SETTINGS were sent.
    pub(crate) too_early: u64,
    /// Codes of GOAWAY of clients.
    pub(crate) left: Vec<u32>,
}

pub(crate) struct SocketServer {
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

impl SocketServer {
    pub(crate) fn start(conduct: Conduct) -> SocketServer {
        let log = Arc::new(Mutex::new(Log::default()));
        let own = Arc::clone(&log);
        let address = accept(move |stream| {
            own.lock().unwrap().connections += 1;
            let (log, sockets) = (Arc::clone(&own), BTreeMap::new());
            Serving { stream, conduct, log, sockets }.serve()
        });
        SocketServer { address, log }
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/", self.address)
    }

    pub(crate) fn log(&self) -> Log {
        self.log.lock().unwrap().clone()
    }
}

/// A socket on a stream.
struct Socket {
    number: u64,
    received: Vec<u8>,
    echoed: u64,
    /// We have ended the stream.
    has_ended: bool,
}

struct Serving {
    stream: TcpStream,
    conduct: Conduct,
    log: Arc<Mutex<Log>>,
    sockets: BTreeMap<u32, Socket>,
}

impl Serving {
    /// Serves a connection until either side ends it.
    fn serve(mut self) -> Option<()> {
        let mut preface = vec![0; PREFACE.len()];
        self.stream.read_exact(&mut preface).ok()?;
        if self.conduct == Conduct::Http11 {
            let bad = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            self.stream.write_all(bad).ok()?;
            return self.end();
        }
        if preface != PREFACE {
            // A client that finds out what this is.
            return None;
        }
        if let Conduct::SettingsLate(milliseconds) = self.conduct {
            let time = Duration::from_millis(milliseconds);
            self.stream.set_read_timeout(Some(time)).ok()?;
            // The client's SETTINGS may come, and nothing else.
            let mut early = vec![0; 4096];
            while let Ok(got @ 1..) = self.stream.read(&mut early) {
                let kinds = kinds(early.get(..got)?);
                self.log.lock().unwrap().too_early += u64::from(kinds.contains(&HEADERS));
            }
        }
        let mut settings = vec![0, 8, 0, 0, 0, 1];
        match self.conduct {
            Conduct::NoExtendedConnect => settings.clear(),
            Conduct::Allows(streams) => settings.extend([0, 3, 0, 0, 0, streams]),
            Conduct::ClosesWindow => settings.extend([0, 4, 0, 0, 0, 0]),
            Conduct::NarrowWindow(bytes) => {
                settings.extend([0, 4, 0, 0]);
                settings.extend(bytes.to_be_bytes());
            }
            _ => {}
        }
        self.send(SETTINGS, 0, 0, &settings)?;
        let (mut mine, mut is_leaving) = (0, false);
        loop {
            let (kind, flags, stream, payload) = frame(&mut self.stream)?;
            match kind {
                SETTINGS if flags & 1 == 0 => self.send(SETTINGS, 1, 0, &[])?,
                PING if flags & 1 == 0 => self.send(PING, 1, 0, &payload)?,
                RST_STREAM => {
                    self.sockets.remove(&stream);
                    *self.log.lock().unwrap().resets.entry(number(&payload)?).or_default() += 1;
                }
                GOAWAY => {
                    let code = number(payload.get(4..)?)?;
                    self.log.lock().unwrap().left.push(code);
                }
                HEADERS if is_leaving => self.log.lock().unwrap().unprocessed += 1,
                HEADERS => {
                    mine += 1;
                    self.open(stream)?;
                    if self.conduct == Conduct::Leaves(mine) {
                        is_leaving = true;
                        let payload = [&stream.to_be_bytes()[..], &[0; 4]].concat();
                        self.send(GOAWAY, 0, 0, &payload)?;
                    }
                }
                DATA => self.data(stream, flags, &payload)?,
                _ => {}
            }
        }
    }

    /// Answers a handshake.
    fn open(&mut self, stream: u32) -> Option<()> {
        let number = {
            let mut log = self.log.lock().unwrap();
            log.handshakes += 1;
            log.handshakes
        };
        let is_tenth = number.is_multiple_of(10);
        match self.conduct {
            Conduct::Silent => return Some(()),
            Conduct::Refuses if is_tenth => {
                return self.send(HEADERS, END_HEADERS | END_STREAM, stream, BAD_REQUEST);
            }
            Conduct::ResetsHandshake(code) if is_tenth => {
                return self.send(RST_STREAM, 0, stream, &[0, 0, 0, code]);
            }
            _ => {}
        }
        self.sockets
            .insert(stream, Socket { number, received: Vec::new(), echoed: 0, has_ended: false });
        let mut log = self.log.lock().unwrap();
        log.sockets += 1;
        log.sockets_most = log.sockets_most.max(self.sockets.len() as u64);
        drop(log);
        self.send(HEADERS, END_HEADERS, stream, OK)
    }

    /// Takes bytes of a socket.
    fn data(&mut self, stream: u32, flags: u8, payload: &[u8]) -> Option<()> {
        if !payload.is_empty() {
            let more = (payload.len() as u32).to_be_bytes();
            self.send(WINDOW_UPDATE, 0, 0, &more)?;
            if self.sockets.contains_key(&stream) && flags & END_STREAM == 0 {
                self.send(WINDOW_UPDATE, 0, stream, &more)?;
            }
        }
        if let Some(socket) = self.sockets.get_mut(&stream) {
            socket.received.extend_from_slice(payload);
        }
        while let Some(frame) = self.sockets.get_mut(&stream).and_then(next_frame) {
            self.frame_of_socket(stream, &frame)?;
        }
        if flags & END_STREAM != 0 {
            self.log.lock().unwrap().ended += 1;
            self.end_stream(stream, &[])?;
            self.sockets.remove(&stream);
        }
        Some(())
    }

    /// Ends a stream with these bytes, unless it has ended.
    fn end_stream(&mut self, stream: u32, last: &[u8]) -> Option<()> {
        match self.sockets.get_mut(&stream) {
            Some(socket) if !socket.has_ended => {
                socket.has_ended = true;
                self.send(DATA, END_STREAM, stream, last)
            }
            _ => Some(()),
        }
    }

    fn frame_of_socket(&mut self, stream: u32, frame: &Frame) -> Option<()> {
        self.log.lock().unwrap().unmasked += u64::from(!frame.masked);
        match frame.opcode {
            8 => {
                let code = frame.payload.first_chunk().map_or(0, |code| u16::from_be_bytes(*code));
                *self.log.lock().unwrap().closes.entry(code).or_default() += 1;
                self.end_stream(stream, &unmasked(8, &frame.payload))
            }
            9 => {
                self.log.lock().unwrap().pings += 1;
                self.send(DATA, 0, stream, &unmasked(10, &frame.payload))
            }
            10 => Some(()),
            opcode => {
                self.log.lock().unwrap().messages += 1;
                self.answer(stream, &unmasked(opcode, &frame.payload))
            }
        }
    }

    /// Answers a message, or does what this server does instead.
    fn answer(&mut self, stream: u32, echo: &[u8]) -> Option<()> {
        let socket = self.sockets.get(&stream)?;
        let is_due = socket.number.is_multiple_of(10) && socket.echoed == ECHOED_BEFORE;
        if !is_due {
            return self.echo(stream, echo);
        }
        match self.conduct {
            Conduct::Resets(code) => {
                self.sockets.remove(&stream);
                self.send(RST_STREAM, 0, stream, &[0, 0, 0, code])
            }
            Conduct::Ends => self.end_stream(stream, &[]),
            Conduct::EndsMidway => self.end_stream(stream, echo.get(..echo.len() / 2)?),
            Conduct::Closes(code) => {
                self.send(DATA, 0, stream, &unmasked(8, &code.to_be_bytes()))?;
                self.end_stream(stream, &[])
            }
            Conduct::MasksFrames => self.send(DATA, 0, stream, &[0x82, 0x81, 0, 0, 0, 0, 7]),
            Conduct::Garbage => {
                self.stream.write_all(&[0xff; 100]).ok()?;
                self.end()
            }
            Conduct::Cuts => self.end(),
            _ => self.echo(stream, echo),
        }
    }

    /// Sends a message back in pieces, as DATA need not begin and end with messages.
    fn echo(&mut self, stream: u32, echo: &[u8]) -> Option<()> {
        self.sockets.get_mut(&stream)?.echoed += 1;
        self.log.lock().unwrap().echoed += 1;
        let piece = (echo.len() / 2 + 1).min(FRAME_BYTES);
        echo.chunks(piece).try_for_each(|piece| self.send(DATA, 0, stream, piece))
    }

    fn end(&mut self) -> Option<()> {
        end(&mut self.stream)
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<()> {
        self.stream.write_all(&frame_bytes(kind, flags, stream, payload)?).ok()
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// The types of the HTTP/2 frames in these bytes.
fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let Some(&[a, b, c, kind, ..]) = bytes.first_chunk::<9>() {
        kinds.push(kind);
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        bytes = bytes.get(9 + length..).unwrap_or_default();
    }
    kinds
}

/// A frame of a WebSocket (RFC 6455 section 5.2).
struct Frame {
    opcode: u8,
    masked: bool,
    payload: Vec<u8>,
}

/// Takes the next complete frame of a socket.
fn next_frame(socket: &mut Socket) -> Option<Frame> {
    let bytes = &socket.received;
    let (&first, &second) = bytes.first().zip(bytes.get(1))?;
    let (mut at, length) = match second & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?))),
        127 => (10, u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?) as usize),
        short => (2, usize::from(short)),
    };
    let masked = second & 0x80 != 0;
    let mut mask = [0; 4];
    if masked {
        mask = *bytes.get(at..)?.first_chunk()?;
        at += 4;
    }
    let payload = bytes.get(at..at + length)?;
    let payload = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
    socket.received.drain(..at + length);
    Some(Frame { opcode: first & 0x0f, masked, payload })
}

/// A frame of the server.
fn unmasked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        short @ ..126 => frame.push(short as u8),
        middle @ 126..0x1_0000 => {
            frame.push(126);
            frame.extend((middle as u16).to_be_bytes());
        }
        long => {
            frame.push(127);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}
