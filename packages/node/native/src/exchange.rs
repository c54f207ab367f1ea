//! [`Exchange`]: a request that JavaScript answers, and the bytes of its answer.
//!
//! An answer is written in order, as uWebSockets does: status, headers, then a body with a length or in chunks.

use engine::ConnId;
use wire::http::{BodyDecoder, LAST_CHUNK, encode_chunk, is_token};

use crate::date::push_date;
use crate::requests::NOT_FOUND;
use crate::threads::Peer;

/// Where the bytes of an answer go.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The handler has been called and has not returned.
    Handler,
    /// The engine keeps the request of a WebSocket until it is told what becomes of it.
    Parked,
    /// The connection is the handler's.
    Raw,
    /// A thread has the connection.
    Thread,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stage {
    Fresh,
    Head,
    Chunks,
    /// A body whose length is announced.
    Counted,
    Ended,
}

/// Headers of the answer that opens a WebSocket.
pub(crate) type Headers = Vec<(Box<str>, Box<str>)>;

pub(crate) struct Exchange {
    pub(crate) id: ConnId,
    pub(crate) place: Place,
    stage: Stage,
    /// What was not passed to the engine yet.
    pub(crate) out: Vec<u8>,
    /// What is to come of the request's body.
    pub(crate) decoder: Option<BodyDecoder>,
    pub(crate) wants_data: bool,
    pub(crate) expects_continue: bool,
    /// The connection can serve another request.
    pub(crate) keep_alive: bool,
    pub(crate) head_only: bool,
    pub(crate) http_1_0: bool,
    /// The status has no body, or not even a length: a 304 may tell that of the answer with a body (RFC 9110 8.6).
    bodiless: bool,
    lengthless: bool,
    written: Written,
    /// The client closes, or expects that of us.
    client_closes: bool,
    pub(crate) corked: bool,
    pub(crate) paused: bool,
    /// Bytes of the body so far.
    pub(crate) offset: u64,
    /// The status is 101: headers are those of the WebSocket's answer.
    switching: bool,
    headers: Headers,
    /// It has become a WebSocket.
    pub(crate) opened: bool,
    /// The program was told that what it writes has to wait, and not yet that it can go on.
    pub(crate) waits: bool,
    /// The engine was told that a parked request can be answered; with threads, a part of the answer was passed on.
    pub(crate) told: bool,
    /// When something last moved, and how much waited then; with threads, how much was passed on that waits.
    pub(crate) moved_ns: u64,
    pub(crate) queued: usize,
    /// With threads, what is known of its client beside the address, if anything is.
    pub(crate) client: Option<Box<Client>>,
}

/// What is known of the client of a connection beside its address.
pub(crate) struct Client {
    /// The address in the PROXY header.
    pub(crate) proxied: Option<Peer>,
    /// Its certificate in DER; empty without one.
    pub(crate) certificate: Box<[u8]>,
}

impl Exchange {
    pub(crate) fn new(id: ConnId, out: Vec<u8>, now_ns: u64) -> Exchange {
        Exchange {
            id,
            place: Place::Handler,
            stage: Stage::Fresh,
            out,
            decoder: None,
            wants_data: false,
            expects_continue: false,
            keep_alive: true,
            head_only: false,
            http_1_0: false,
            bodiless: false,
            lengthless: false,
            written: Written::default(),
            client_closes: false,
            corked: false,
            paused: false,
            offset: 0,
            switching: false,
            headers: Vec::new(),
            opened: false,
            waits: false,
            told: false,
            moved_ns: now_ns,
            queued: 0,
            client: None,
        }
    }

    /// What the head of the request says of the connection.
    pub(crate) fn set_keep_alive(&mut self, keep_alive: bool) {
        (self.keep_alive, self.client_closes) = (keep_alive, !keep_alive);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Whether the answer is complete while its handler is called, and nothing has to follow.
    pub(crate) fn is_answered(&self) -> bool {
        self.has_ended() && !self.opened && (self.body_is_complete() || !self.keep_alive)
    }

    /// Whether the answer has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.stage != Stage::Fresh
    }

    pub(crate) fn body_is_complete(&self) -> bool {
        self.decoder.as_ref().is_none_or(BodyDecoder::is_done)
    }

    pub(crate) fn take_headers(&mut self) -> Headers {
        std::mem::take(&mut self.headers)
    }

    /// Writes a status such as `200 OK`, unless there is one.
    pub(crate) fn status(&mut self, status: &[u8]) {
        if self.stage != Stage::Fresh {
            return;
        }
        self.stage = Stage::Head;
        self.switching = status.starts_with(b"101");
        self.lengthless = status.starts_with(b"1") || status.starts_with(b"204");
        self.bodiless = self.lengthless || status.starts_with(b"304");
        if self.switching {
            return;
        }
        self.out.extend_from_slice(b"HTTP/1.1 ");
        push_clean(&mut self.out, status);
        self.out.extend_from_slice(b"\r\n");
    }

    /// # Errors
    /// The head is complete, or the name is no header's.
    pub(crate) fn header(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if !is_token(name) {
            return Err("invalid header name: expected letters, digits and dashes");
        }
        self.status(b"200 OK");
        if self.stage != Stage::Head {
            return Err("the head of this response is complete: write headers before the body");
        }
        if self.switching {
            let text = |bytes: &[u8]| {
                let mut clean = Vec::new();
                push_clean(&mut clean, bytes);
                String::from_utf8_lossy(&clean).into_owned().into_boxed_str()
            };
            self.headers.push((text(name), text(value)));
            return Ok(());
        }
        self.written.note(name, value);
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
        push_clean(&mut self.out, value);
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Writes a head that was made before: a status, unless there is one, and lines of headers, of which some are noted.
    pub(crate) fn prepared_head(&mut self, status: &[u8], lines: &[u8], written: Written) {
        self.status(status);
        if self.stage == Stage::Head {
            self.written.add(written);
            self.out.extend_from_slice(lines);
        }
    }

    /// Headers that answers have behind those of the program.
    fn common_headers(&mut self) {
        if !self.written.date {
            // While the handler is called, it is the time of this turn.
            let now_ns = (self.place == Place::Handler).then_some(self.moved_ns);
            push_date(&mut self.out, now_ns);
        }
        let Written { connection, close, .. } = self.written;
        if !self.keep_alive {
            // A program's own header says nothing of what we do, unless it does; a client that closes knows.
            let is_told = close || connection && self.client_closes;
            if !is_told {
                self.out.extend_from_slice(b"Connection: close\r\n");
            }
        } else if self.http_1_0 && !connection {
            self.out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
    }

    /// Ends the head of an answer with a body of this length; without one it has none that is announced.
    fn end_head(&mut self, length: Option<u64>, close: bool) {
        self.status(b"200 OK");
        if self.stage != Stage::Head {
            return;
        }
        self.stage = Stage::Counted;
        if close {
            self.keep_alive = false;
        }
        self.common_headers();
        if let Some(length) = length.filter(|_| !self.lengthless) {
            self.out.extend_from_slice(b"Content-Length: ");
            push_decimal(&mut self.out, length);
            self.out.extend_from_slice(b"\r\n");
        }
        self.out.extend_from_slice(b"\r\n");
    }

    fn put(&mut self, data: &[u8]) {
        self.offset += data.len() as u64;
        if !self.head_only && !self.bodiless {
            self.out.extend_from_slice(data);
        }
    }

    /// A piece of a body in chunks.
    pub(crate) fn write(&mut self, data: &[u8]) {
        if matches!(self.stage, Stage::Fresh | Stage::Head) {
            self.status(b"200 OK");
            self.stage = Stage::Chunks;
            if self.http_1_0 {
                self.keep_alive = false;
            }
            self.common_headers();
            if !self.http_1_0 && !self.bodiless {
                self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            }
            self.out.extend_from_slice(b"\r\n");
        }
        self.offset += data.len() as u64;
        if self.head_only || self.bodiless {
            return;
        }
        if self.http_1_0 {
            self.out.extend_from_slice(data);
        } else {
            encode_chunk(&mut self.out, data);
        }
    }

    /// Ends the answer with the rest of its body.
    pub(crate) fn end(&mut self, data: &[u8], close: bool) {
        match self.stage {
            Stage::Chunks => {
                if !data.is_empty() {
                    self.write(data);
                }
                if close {
                    self.keep_alive = false;
                }
                if !self.http_1_0 && !self.head_only && !self.bodiless {
                    self.out.extend_from_slice(LAST_CHUNK);
                }
            }
            Stage::Fresh | Stage::Head => {
                self.end_head(Some(data.len() as u64).filter(|_| !self.bodiless), close);
                self.put(data);
            }
            Stage::Counted => self.put(data),
            Stage::Ended => return,
        }
        self.stage = Stage::Ended;
    }

    /// The answer to a request that no route is for. What a handler has written before it passed the request on is before
    /// it: then the status is that of the handler.
    pub(crate) fn not_found(&mut self) {
        if !self.has_begun() {
            self.status(b"404 Not Found");
            let written = self.header(b"Content-Type", b"text/html; charset=utf-8");
            debug_assert_eq!(written, Ok(()));
        }
        self.end(NOT_FOUND.as_bytes(), false);
    }

    /// Ends the answer without a body, whatever length is reported.
    pub(crate) fn end_without_body(&mut self, length: Option<u64>, close: bool) {
        if self.stage == Stage::Chunks {
            return self.end(&[], close);
        }
        self.end_head(length, close);
        self.stage = Stage::Ended;
    }

    /// A piece of a body of `total` bytes; ends the answer with the last one.
    pub(crate) fn part(&mut self, data: &[u8], total: u64) {
        if matches!(self.stage, Stage::Fresh | Stage::Head) {
            self.end_head(Some(total).filter(|_| !self.bodiless), false);
        }
        let left = total.saturating_sub(self.offset);
        let data = usize::try_from(left).ok().and_then(|left| data.get(..left)).unwrap_or(data);
        self.put(data);
        if self.offset >= total {
            self.stage = Stage::Ended;
        }
    }
}

/// Which headers the program has written, of those that answers have without it.
#[derive(Copy, Clone, Default)]
pub(crate) struct Written {
    date: bool,
    connection: bool,
    /// That one says that the connection is closed.
    close: bool,
}

impl Written {
    pub(crate) fn note(&mut self, name: &[u8], value: &[u8]) {
        self.date |= name.eq_ignore_ascii_case(b"date");
        if name.eq_ignore_ascii_case(b"connection") {
            self.connection = true;
            let mut options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            self.close |= options.any(|option| option.eq_ignore_ascii_case(b"close"));
        }
    }

    fn add(&mut self, other: Written) {
        self.date |= other.date;
        self.connection |= other.connection;
        self.close |= other.close;
    }
}

/// Appends text with blanks for control characters, so that nobody is tricked into another header.
fn push_clean(out: &mut Vec<u8>, text: &[u8]) {
    let from = out.len();
    out.extend_from_slice(text);
    let control = |byte: &u8| *byte < 0x20 && *byte != b'\t' || *byte == 0x7F;
    for byte in out.get_mut(from..).unwrap_or_default() {
        if control(byte) {
            *byte = b' ';
        }
    }
}

fn push_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; 20];
    let mut length = 0;
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
        length += 1;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(digits.len() - length..).unwrap_or_default());
}
