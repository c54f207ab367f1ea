//! A gRPC server that echoes each message of a stream, logs what it receives and sends, and does each tenth call or
//! message in one way wrong. One thread per connection; it reads no header block.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::accept::{accept, end};
use super::http2::{frame, frame_bytes};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PREFACE_BYTES: usize = 24;
/// `:status: 200` and `content-type: application/grpc`, also with `grpc-encoding: gzip`.
const HEAD: &[u8] = b"\x88\x0f\x10\x10application/grpc";
const GZIP: &[u8] = b"\x00\x0dgrpc-encoding\x04gzip";

/// What is wrong: with each tenth call, from its third message on if it has as many, or with each tenth message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Nothing,
    /// The stream is reset.
    Reset,
    /// The connection leaves after so many calls: later ones are not processed.
    Leaves(u32),
    /// The call ends without trailers.
    NoTrailers,
    /// The call ends with this status.
    Status(&'static str),
    /// The connection ends within a frame.
    Cut,
    /// Bytes that are no message.
    Garbage,
    /// The message is longer than is allowed.
    Long,
    /// Nothing is answered any more.
    Silent,
    /// The call ends before the client has sent all.
    Early,
    /// Streams have a window of so many bytes, which is never opened again.
    Stalls(u8),
    /// Each tenth message is not echoed.
    Drops,
    /// Each tenth message is echoed twice.
    Doubles,
    /// Each tenth message is echoed after the next one of its call.
    Swaps,
    /// Each tenth message is echoed with a change.
    Changes,
    /// One answer for each call, at its end.
    Counts,
    /// All messages are echoed compressed.
    Gzip,
    /// Each tenth call gets a message that is too large when decompressed.
    Bomb,
    /// Each tenth call gets a message in an encoding that was not named.
    Unnamed,
}

/// What it received and sent.
#[derive(Default, Debug)]
pub(crate) struct EchoLog {
    pub(crate) connections: u64,
    pub(crate) ended: u64,
    /// Calls that were processed.
    pub(crate) calls: u64,
    /// Calls that ended with OK.
    pub(crate) ok: u64,
    /// Messages received of processed calls, of which so many were compressed.
    pub(crate) messages: u64,
    pub(crate) compressed: u64,
    /// Messages sent completely.
    pub(crate) echoed: u64,
    /// RST_STREAM received.
    pub(crate) resets: u64,
    /// Messages of calls that were not processed.
    pub(crate) unprocessed: u64,
    /// Bytes of bodies that were received.
    pub(crate) bytes: u64,
}

pub(crate) struct EchoServer {
    pub(crate) address: SocketAddr,
    pub(crate) log: Arc<Mutex<EchoLog>>,
}

impl EchoServer {
    pub(crate) fn start(wrong: Wrong) -> EchoServer {
        let log = Arc::new(Mutex::new(EchoLog::default()));
        let own = Arc::clone(&log);
        let address = accept(move |stream| {
            own.lock().unwrap().connections += 1;
            let (log, calls) = (Arc::clone(&own), HashMap::new());
            Serving { stream, wrong, log, calls, begun: 0, last: u32::MAX }.serve();
            own.lock().unwrap().ended += 1;
        });
        EchoServer { address, log }
    }
}

#[derive(Default)]
struct Call {
    /// Bytes of an incomplete message.
    partial: Vec<u8>,
    messages: u32,
    is_wrong: bool,
    has_head: bool,
    /// A message that is echoed after the next one.
    later: Option<Vec<u8>>,
    is_over: bool,
}

struct Serving {
    stream: TcpStream,
    wrong: Wrong,
    log: Arc<Mutex<EchoLog>>,
    calls: HashMap<u32, Call>,
    begun: u32,
    /// The last stream that is processed.
    last: u32,
}

impl Serving {
    fn serve(mut self) -> Option<()> {
        self.stream.read_exact(&mut [0; PREFACE_BYTES]).ok()?;
        let window = match self.wrong {
            Wrong::Stalls(bytes) => vec![0, 4, 0, 0, 0, bytes],
            _ => Vec::new(),
        };
        self.send(SETTINGS, 0, 0, &window)?;
        loop {
            let (kind, flags, id, payload) = frame(&mut self.stream)?;
            let is_end = flags & END_STREAM > 0;
            match kind {
                SETTINGS if flags & 1 == 0 => self.send(SETTINGS, 1, 0, &[])?,
                PING if flags & 1 == 0 => self.send(PING, 1, 0, &payload)?,
                RST_STREAM => {
                    self.log.lock().unwrap().resets += 1;
                    self.calls.remove(&id);
                }
                HEADERS => {
                    self.begin(id)?;
                    if is_end {
                        self.end_call(id)?;
                    }
                }
                DATA => {
                    let more = (payload.len() as u32).to_be_bytes();
                    if !payload.is_empty() {
                        self.log.lock().unwrap().bytes += payload.len() as u64;
                        self.send(WINDOW_UPDATE, 0, 0, &more)?;
                        if !is_end && !matches!(self.wrong, Wrong::Stalls(_)) {
                            self.send(WINDOW_UPDATE, 0, id, &more)?;
                        }
                    }
                    if self.receive(id, &payload).is_none() {
                        return self.end();
                    }
                    if is_end {
                        self.end_call(id)?;
                    }
                }
                _ => {}
            }
        }
    }

    fn begin(&mut self, id: u32) -> Option<()> {
        if id > self.last {
            return Some(());
        }
        self.begun += 1;
        let number = {
            let mut log = self.log.lock().unwrap();
            log.calls += 1;
            log.calls
        };
        let is_wrong = number.is_multiple_of(10);
        self.calls.insert(id, Call { is_wrong, ..Call::default() });
        if self.wrong == Wrong::Leaves(self.begun) {
            self.last = id;
            let payload = [&id.to_be_bytes()[..], &[0; 4]].concat();
            self.send(GOAWAY, 0, 0, &payload)?;
        }
        Some(())
    }

    /// Takes bytes of a body; `None` ends the connection.
    fn receive(&mut self, id: u32, payload: &[u8]) -> Option<()> {
        if id > self.last {
            self.log.lock().unwrap().unprocessed += u64::from(!payload.is_empty());
            return Some(());
        }
        let Some(mut call) = self.calls.remove(&id) else { return Some(()) };
        call.partial.extend_from_slice(payload);
        while let [flag, a, b, c, d, ..] = *call.partial {
            let whole = 5 + u32::from_be_bytes([a, b, c, d]) as usize;
            if call.partial.len() < whole {
                break;
            }
            let message: Vec<u8> = call.partial.drain(..whole).skip(5).collect();
            let number = {
                let mut log = self.log.lock().unwrap();
                log.messages += 1;
                log.compressed += u64::from(flag == 1);
                log.messages
            };
            call.messages += 1;
            self.answer(id, &mut call, (flag, message), number)?;
        }
        self.calls.insert(id, call);
        Some(())
    }

    fn answer(&mut self, id: u32, call: &mut Call, of: (u8, Vec<u8>), number: u64) -> Option<()> {
        let (flag, mut message) = of;
        if call.is_over || self.wrong == Wrong::Counts {
            return Some(());
        }
        let is_tenth = number.is_multiple_of(10);
        if call.is_wrong && call.messages >= 3 {
            match self.wrong {
                Wrong::Reset => {
                    call.is_over = true;
                    return self.send(RST_STREAM, 0, id, &[0, 0, 0, 2]);
                }
                Wrong::Cut => {
                    self.stream.write_all(&[0, 0, 50, DATA, 0, 0, 0, 0, 1, b'a', b'b']).ok()?;
                    return None;
                }
                Wrong::Garbage => {
                    call.is_over = true;
                    return self.send(DATA, 0, id, b"hello, world");
                }
                Wrong::Long => {
                    call.is_over = true;
                    return self.send(DATA, 0, id, &[0, 0x7f, 0, 0, 0, 1]);
                }
                Wrong::Silent => return Some(()),
                Wrong::Early => {
                    call.is_over = true;
                    return self.trailers(id, "0");
                }
                Wrong::Bomb => {
                    call.is_over = true;
                    return self.send(DATA, 0, id, &framed(1, &gzip(&vec![0; 5 << 20])));
                }
                Wrong::Unnamed => {
                    call.is_over = true;
                    return self.send(DATA, 0, id, &framed(1, b"x"));
                }
                _ => {}
            }
        }
        self.head(id, call)?;
        match self.wrong {
            Wrong::Drops if is_tenth => return Some(()),
            Wrong::Swaps if is_tenth && call.later.is_none() => {
                call.later = Some(message);
                return Some(());
            }
            Wrong::Doubles if is_tenth => self.echo(id, &framed(0, &message))?,
            Wrong::Changes if is_tenth => message.iter_mut().rev().take(1).for_each(|b| *b ^= 1),
            Wrong::Gzip => return self.echo(id, &framed(1, &gzip(&message))),
            _ => {}
        }
        self.echo(id, &framed(flag, &message))?;
        match call.later.take() {
            Some(later) => self.echo(id, &framed(flag, &later)),
            None => Some(()),
        }
    }

    fn head(&mut self, id: u32, call: &mut Call) -> Option<()> {
        if !std::mem::replace(&mut call.has_head, true) {
            let gzip = if self.wrong == Wrong::Unnamed { &b""[..] } else { GZIP };
            self.send(HEADERS, END_HEADERS, id, &[HEAD, gzip].concat())?;
        }
        Some(())
    }

    fn echo(&mut self, id: u32, bytes: &[u8]) -> Option<()> {
        // In two pieces, so that messages are not frames.
        let (one, other) = bytes.split_at(bytes.len() / 2);
        self.send(DATA, 0, id, one)?;
        self.send(DATA, 0, id, other)?;
        self.log.lock().unwrap().echoed += 1;
        Some(())
    }

    /// The client has ended its side.
    fn end_call(&mut self, id: u32) -> Option<()> {
        let Some(mut call) = self.calls.remove(&id).filter(|call| !call.is_over) else {
            return Some(());
        };
        if self.wrong == Wrong::Counts {
            self.head(id, &mut call)?;
            self.echo(id, &framed(0, b"\x0a\x01x"))?;
        }
        if let Some(later) = call.later.take() {
            self.echo(id, &framed(0, &later))?;
        }
        self.head(id, &mut call)?;
        match self.wrong {
            Wrong::Silent if call.is_wrong => Some(()),
            Wrong::NoTrailers if call.is_wrong => self.send(DATA, END_STREAM, id, &[]),
            Wrong::Status(code) if call.is_wrong => self.trailers(id, code),
            _ => self.trailers(id, "0"),
        }
    }

    fn trailers(&mut self, id: u32, code: &str) -> Option<()> {
        let status = [b"\x00\x0bgrpc-status", &[code.len() as u8][..], code.as_bytes()].concat();
        // It is in the log before the client knows.
        self.log.lock().unwrap().ok += u64::from(code == "0");
        self.send(HEADERS, END_HEADERS | END_STREAM, id, &status)
    }

    fn send(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> Option<()> {
        self.stream.write_all(&frame_bytes(kind, flags, id, payload)?).ok()
    }

    fn end(&mut self) -> Option<()> {
        end(&mut self.stream)
    }
}

fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

fn gzip(message: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(message).unwrap();
    encoder.finish().unwrap()
}
