//! A small HTTP/2 server that logs requests and misbehaves in one way. One thread per connection; it writes
//! frames byte by byte and reads no header block: a response is the indexed field `:status: 200`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The client's preface (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` (RFC 7541 appendix A).
const OK: &[u8] = &[0x88];
/// The same, and `content-type: application/grpc`.
const GRPC_OK: &[u8] = b"\x88\x0f\x10\x10application/grpc";
/// A message of gRPC with a field.
const MESSAGE: &[u8] = b"\x00\x00\x00\x00\x03\x0a\x01x";

/// How it behaves. Every nth request of the server is counted from 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// Answers with a body of 5 bytes.
    Answers,
    /// Answers so many requests of a connection together.
    Gathers(usize),
    /// Answers with a head, and never ends the body.
    Stalls,
    /// Resets each 10th stream with this code.
    Resets(u8),
    /// On each connection sends GOAWAY after this many requests and processes no more of them.
    Leaves(u32),
    /// On each connection sends GOAWAY with ENHANCE_YOUR_CALM at this request, and closes it without an answer.
    Expels(u32),
    /// Closes the connection within the answer to each 10th request.
    Cuts,
    /// Closes the connection without an answer at each 10th request.
    Closes,
    /// Sends frames whose windows stay closed, so that no body can be sent.
    ClosesWindow,
    /// Answers each request with 1,000 PUSH_PROMISE frames.
    Pushes,
    /// Answers with bytes that are no frames.
    Garbage,
    /// Answers in HTTP/1.1.
    Http11,
    /// Reads, and answers nothing.
    Silent,
    /// Answers each 10th request with a body shorter than its content-length.
    Short,
    /// Answers each 10th request with a head of 20 KiB.
    LongHeads,
    /// Answers each 10th request with DATA before a head.
    Headless,
    /// Allows so many streams at a time.
    Allows(u8),
    /// Sends 3,000 pings, each after the answer to the one before, and then answers.
    Pings,
    /// Answers calls of gRPC, each 10th in this way.
    Calls(Call),
}

/// What is wrong with the answer to a call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Nothing.
    Right,
    /// It ends without trailers.
    NoTrailers,
    /// Its trailers have no status.
    NoStatus,
    /// It is text.
    Text,
    /// It is text without a body.
    OnlyText,
    /// Its HTTP status is 503.
    Unavailable,
    /// Its status, with a message, and without.
    Status(&'static str),
    /// Only trailers, with this status.
    OnlyTrailers(&'static str),
    /// Its message is cut.
    Cut,
    /// It has two messages.
    Two,
    /// It is no message.
    NoMessage,
    /// Its message is cut within a field.
    Undecodable,
}

/// What it received.
#[derive(Default, Debug)]
pub(crate) struct Log {
    pub(crate) connections: u64,
    /// Requests with their body, that were received before the server left.
    pub(crate) requests: u64,
    /// Requests that were answered completely.
    pub(crate) answered: u64,
    /// Requests after GOAWAY, which it does not process.
    pub(crate) unprocessed: u64,
    /// Bytes of bodies.
    pub(crate) body_bytes: u64,
    /// The most streams at a time.
    pub(crate) streams_most: u64,
    /// RST_STREAM of clients.
    pub(crate) resets: u64,
    /// Codes of GOAWAY of clients.
    pub(crate) left: Vec<u32>,
}

pub(crate) struct Http2Server {
    pub(crate) address: SocketAddr,
    pub(crate) log: Arc<Mutex<Log>>,
}

impl Http2Server {
    pub(crate) fn start(conduct: Conduct) -> Http2Server {
        Http2Server::of(conduct, false)
    }

    /// One that answers calls of gRPC where others answer requests.
    pub(crate) fn of_calls(conduct: Conduct) -> Http2Server {
        Http2Server::of(conduct, true)
    }

    fn of(conduct: Conduct, has_calls: bool) -> Http2Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Log::default()));
        let own = Arc::clone(&log);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                own.lock().unwrap().connections += 1;
                let log = Arc::clone(&own);
                thread::spawn(move || Serving { stream, conduct, has_calls, log }.serve());
            }
        });
        Http2Server { address, log }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

struct Serving {
    stream: TcpStream,
    conduct: Conduct,
    has_calls: bool,
    log: Arc<Mutex<Log>>,
}

impl Serving {
    /// Serves a connection until either side ends it.
    fn serve(mut self) -> Option<()> {
        let mut preface = vec![0; PREFACE.len()];
        self.stream.read_exact(&mut preface).ok()?;
        if preface != PREFACE {
            // A client that finds out what this is.
            return None;
        }
        let settings: Vec<u8> = match self.conduct {
            Conduct::ClosesWindow => vec![0, 4, 0, 0, 0, 0],
            Conduct::Allows(streams) => vec![0, 3, 0, 0, 0, streams],
            _ => Vec::new(),
        };
        match self.conduct {
            Conduct::Garbage => self.stream.write_all(&[0xff; 100]).ok()?,
            Conduct::Http11 => {
                let bad = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
                self.stream.write_all(bad).ok()?;
            }
            _ => self.send(SETTINGS, 0, 0, &settings)?,
        }
        let (mut open, mut mine, mut is_leaving) = (0_u64, 0_u32, false);
        let mut gathered = Vec::new();
        loop {
            let (kind, flags, stream, payload) = self.frame()?;
            match kind {
                SETTINGS if flags & 1 == 0 => self.send(SETTINGS, 1, 0, &[])?,
                PING if flags & 1 == 0 => self.send(PING, 1, 0, &payload)?,
                RST_STREAM => {
                    open = open.saturating_sub(1);
                    self.log.lock().unwrap().resets += 1;
                }
                GOAWAY => {
                    let code = payload.get(4..8)?.iter().fold(0, |sum, b| sum << 8 | u32::from(*b));
                    self.log.lock().unwrap().left.push(code);
                }
                HEADERS | DATA => {
                    if kind == HEADERS {
                        open += 1;
                        let mut log = self.log.lock().unwrap();
                        log.streams_most = log.streams_most.max(open);
                    } else {
                        self.log.lock().unwrap().body_bytes += payload.len() as u64;
                        if !payload.is_empty() {
                            let more = (payload.len() as u32).to_be_bytes();
                            self.send(WINDOW_UPDATE, 0, 0, &more)?;
                            if flags & END_STREAM == 0 {
                                self.send(WINDOW_UPDATE, 0, stream, &more)?;
                            }
                        }
                    }
                    if flags & END_STREAM == 0 {
                        continue;
                    }
                    if is_leaving {
                        self.log.lock().unwrap().unprocessed += 1;
                        continue;
                    }
                    mine += 1;
                    let number = {
                        let mut log = self.log.lock().unwrap();
                        log.requests += 1;
                        log.requests
                    };
                    gathered.push(stream);
                    if self.conduct == Conduct::Expels(mine) {
                        let code = [0, 0, 0, 11];
                        let payload =
                            [&stream.to_be_bytes()[..], &code, b"too_many_\x1bpings"].concat();
                        self.send(GOAWAY, 0, 0, &payload)?;
                        return self.end();
                    }
                    if let Conduct::Gathers(least) = self.conduct
                        && gathered.len() < least
                    {
                        continue;
                    }
                    for stream in std::mem::take(&mut gathered) {
                        match self.answer(stream, number) {
                            Some(ends) => open = open.saturating_sub(u64::from(ends)),
                            None => return self.end(),
                        }
                    }
                    if self.conduct == Conduct::Leaves(mine) {
                        is_leaving = true;
                        let payload = [&stream.to_be_bytes()[..], &[0; 4]].concat();
                        self.send(GOAWAY, 0, 0, &payload)?;
                    }
                }
                _ => {}
            }
        }
    }

    /// Answers a request. True if its stream has ended; `None` ends the connection.
    fn answer(&mut self, stream: u32, number: u64) -> Option<bool> {
        let is_tenth = number.is_multiple_of(10);
        let head = if self.has_calls { GRPC_OK } else { OK };
        match self.conduct {
            Conduct::Silent | Conduct::Garbage | Conduct::Http11 => return Some(false),
            Conduct::Stalls => {
                self.send(HEADERS, END_HEADERS, stream, head)?;
                return Some(false);
            }
            Conduct::Resets(code) if is_tenth => {
                self.send(RST_STREAM, 0, stream, &[0, 0, 0, code])?;
                return Some(true);
            }
            Conduct::Cuts if is_tenth => {
                self.send(HEADERS, END_HEADERS, stream, head)?;
                let [one, other] = if self.has_calls { [0, 0] } else { [b'a', b'b'] };
                let cut = [0, 0, 50, DATA, END_STREAM, 0, 0, 0, stream as u8, one, other];
                self.stream.write_all(&cut).ok()?;
                return None;
            }
            Conduct::Closes if is_tenth => return None,
            Conduct::Pushes => {
                for nth in 1..=1_000_u32 {
                    let promised = [&(nth * 2).to_be_bytes()[..], OK].concat();
                    self.send(PUSH_PROMISE, END_HEADERS, stream, &promised)?;
                }
            }
            Conduct::Pings => {
                for _ in 0..3_000 {
                    self.send(PING, 0, 0, b"12345678")?;
                    while self.frame()?.0 != PING {}
                }
            }
            Conduct::Short if is_tenth => {
                // `content-length: 9`, by the name with index 28 of the static table.
                let head = [OK, &[0x0f, 0x0d, 1, b'9']].concat();
                self.send(HEADERS, END_HEADERS, stream, &head)?;
                self.send(DATA, END_STREAM, stream, b"hello")?;
                return Some(true);
            }
            Conduct::LongHeads if is_tenth => {
                // Literals of 4 KiB, without indexing.
                let field = [b"\x00\x01x\x7f\xe0\x1e", &[b'y'; 4063][..]].concat();
                let block = [head, &field.repeat(5)].concat();
                let (begin, rest) = block.split_at(16_000);
                self.send(HEADERS, END_STREAM, stream, begin)?;
                self.send(CONTINUATION, END_HEADERS, stream, rest)?;
                return Some(true);
            }
            Conduct::Headless if is_tenth => {
                self.send(DATA, END_STREAM, stream, b"hello")?;
                return Some(true);
            }
            Conduct::Calls(wrong) => {
                let how = if is_tenth { wrong } else { Call::Right };
                return self.answer_call(stream, how);
            }
            _ => {}
        }
        if self.has_calls {
            return self.answer_call(stream, Call::Right);
        }
        self.send(HEADERS, END_HEADERS, stream, OK)?;
        self.send(DATA, END_STREAM, stream, b"hello")?;
        self.log.lock().unwrap().answered += 1;
        Some(true)
    }

    fn answer_call(&mut self, stream: u32, how: Call) -> Option<bool> {
        let ends = END_HEADERS | END_STREAM;
        let status = |code: &str| {
            [b"\x00\x0bgrpc-status", &[code.len() as u8][..], code.as_bytes()].concat()
        };
        match how {
            Call::OnlyTrailers(code) => {
                let head = [GRPC_OK, &status(code)].concat();
                self.send(HEADERS, ends, stream, &head)?;
                return Some(true);
            }
            Call::Text => {
                let head = [OK, b"\x0f\x10\x0atext/plain"].concat();
                self.send(HEADERS, END_HEADERS, stream, &head)?;
                self.send(DATA, END_STREAM, stream, b"not here")?;
                return Some(true);
            }
            Call::OnlyText => {
                let head = [OK, b"\x0f\x10\x0atext/plain"].concat();
                self.send(HEADERS, ends, stream, &head)?;
                return Some(true);
            }
            Call::Unavailable => {
                // `:status: 503`, by the name with index 8.
                self.send(HEADERS, ends, stream, b"\x08\x03503")?;
                return Some(true);
            }
            _ => self.send(HEADERS, END_HEADERS, stream, GRPC_OK)?,
        }
        match how {
            Call::Cut => self.send(DATA, 0, stream, MESSAGE.get(..6)?)?,
            Call::NoMessage => self.send(DATA, 0, stream, b"hello, world")?,
            Call::Undecodable => self.send(DATA, 0, stream, b"\x00\x00\x00\x00\x03\x0a\x05x")?,
            Call::Two => self.send(DATA, 0, stream, &[MESSAGE, MESSAGE].concat())?,
            Call::NoTrailers => self.send(DATA, END_STREAM, stream, MESSAGE)?,
            // In two pieces.
            _ => {
                self.send(DATA, 0, stream, MESSAGE.get(..3)?)?;
                self.send(DATA, 0, stream, MESSAGE.get(3..)?)?;
            }
        }
        match how {
            Call::NoTrailers => {}
            Call::NoStatus => self.send(HEADERS, ends, stream, b"\x00\x01a\x01b")?,
            Call::Status(code) => self.send(HEADERS, ends, stream, &status(code))?,
            _ => self.send(HEADERS, ends, stream, &status("0"))?,
        }
        self.log.lock().unwrap().answered += u64::from(how == Call::Right);
        Some(true)
    }

    /// Ends the connection so that all that was sent arrives.
    fn end(&mut self) -> Option<()> {
        self.stream.shutdown(std::net::Shutdown::Write).ok()?;
        while self.stream.read(&mut [0; 4096]).ok()? > 0 {}
        None
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<()> {
        self.stream.write_all(&frame_bytes(kind, flags, stream, payload)?).ok()
    }

    fn frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        frame(&mut self.stream)
    }
}

/// A frame as bytes.
pub(crate) fn frame_bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<Vec<u8>> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = length.get(1..)?.to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    Some(bytes)
}

/// Reads a frame: its type, flags, stream and payload.
pub(crate) fn frame(stream: &mut TcpStream) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut header = [0; 9];
    stream.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
    stream.read_exact(&mut header).ok()?;
    let [a, b, c, kind, flags, id @ ..] = header;
    let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
    stream.read_exact(&mut payload).ok()?;
    Some((kind, flags, u32::from_be_bytes(id) & 0x7fff_ffff, payload))
}
