//! Message bodies: none, with a length, chunked, or until the end of the connection (RFC 9112 6 and
//! 7). Chunk extensions and trailers are checked and discarded. Not a buffer: data is passed on as
//! it arrives.

use super::encode::is_bodiless;
use super::head::{Framing, Request, Response};
use super::scan::is_tchar;
use crate::{Limits, Status, Violation};

/// The result of one call of [`BodyDecoder::decode`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum BodyEvent<'b> {
    /// The next bytes of the body; empty if only framing was consumed.
    Data(&'b [u8]),
    /// The body is complete; what follows is the next message.
    End,
}

/// How much of a body is still to come, and in which form.
///
/// Feed it what arrives, each time passing what was not consumed, until `End`; it consumes
/// everything up to there, so nothing need be kept between reads. `Partial` is its answer to an
/// empty buffer. After `End` it always returns `End` and consumes nothing. If the connection ends
/// first, call [`finish_eof`](BodyDecoder::finish_eof). A violation is final.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: State,
    /// Bytes of data the peer may still send.
    allowed: u64,
    /// Bytes the current chunk-size line may still have.
    line_left: u32,
    trailer_left: u32,
    chunk_line_bytes: u32,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum State {
    Counted(u64),
    UntilClose,
    /// Within the digits of a chunk's size: the value so far, if there is one.
    ChunkSize(Option<u64>),
    /// After the digits, before a `;` or the line's end.
    ChunkBlank(u64),
    ChunkExtension(u64),
    /// The line feed of a chunk-size line is expected.
    ChunkLineFeed(u64),
    ChunkData(u64),
    ChunkDataReturn,
    ChunkDataLineFeed,
    /// A trailer, or the blank line after the last one.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    FinalLineFeed,
    Done,
}

type Decoded<'b> = Result<Status<(usize, BodyEvent<'b>)>, Violation>;

impl BodyDecoder {
    /// A decoder for the body of a request; without either header it has none.
    ///
    /// # Errors
    /// `BodyTooLarge` if Content-Length exceeds `limits.body_bytes`.
    pub fn for_request(
        request: &Request<'_, '_>,
        limits: &Limits,
    ) -> Result<BodyDecoder, Violation> {
        BodyDecoder::new(request.framing, State::Done, limits)
    }

    /// A decoder for the body of the response to a request of this method. HEAD, CONNECT (if
    /// granted), 1xx, 204 and 304 have none; without either header it runs until the connection
    /// ends.
    ///
    /// # Errors
    /// `BodyTooLarge` if Content-Length exceeds `limits.body_bytes`.
    pub fn for_response(
        response: &Response<'_, '_>,
        method: &str,
        limits: &Limits,
    ) -> Result<BodyDecoder, Violation> {
        let bodiless = is_bodiless(response.status)
            || method == "HEAD"
            || method == "CONNECT" && matches!(response.status, 200..=299);
        let framing = if bodiless { Framing::Length(0) } else { response.framing };
        BodyDecoder::new(framing, State::UntilClose, limits)
    }

    fn new(framing: Framing, unsaid: State, limits: &Limits) -> Result<BodyDecoder, Violation> {
        let state = match framing {
            Framing::Unsaid => unsaid,
            Framing::Length(0) => State::Done,
            Framing::Length(bytes) if bytes > limits.body_bytes => {
                return Err(Violation::BodyTooLarge);
            }
            Framing::Length(bytes) => State::Counted(bytes),
            Framing::Chunked => State::ChunkSize(None),
        };
        Ok(BodyDecoder {
            state,
            allowed: limits.body_bytes,
            line_left: limits.chunk_line_bytes,
            trailer_left: limits.trailer_bytes,
            chunk_line_bytes: limits.chunk_line_bytes,
        })
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the body ends with the connection, which then serves no further message.
    pub fn is_until_close(&self) -> bool {
        self.state == State::UntilClose
    }

    /// Decodes from the front of `buf`. `Complete` contains the number of bytes consumed, including
    /// the data.
    ///
    /// # Errors
    /// A malformed chunk or trailer, or an exceeded limit, as soon as its byte has arrived.
    pub fn decode<'b>(&mut self, buf: &'b [u8]) -> Decoded<'b> {
        let mut consumed = 0;
        while self.state != State::Done {
            let rest = buf.get(consumed..).unwrap_or(&[]);
            let due = match self.state {
                State::Counted(bytes) | State::ChunkData(bytes) => bytes,
                State::UntilClose => u64::MAX,
                _ => {
                    let Some(byte) = rest.first() else { break };
                    self.framing_byte(*byte)?;
                    consumed += 1;
                    continue;
                }
            };
            let data = usize::try_from(due).ok().and_then(|due| rest.get(..due)).unwrap_or(rest);
            if data.is_empty() {
                break;
            }
            self.take(data.len() as u64)?;
            return Ok(Status::Complete((consumed + data.len(), BodyEvent::Data(data))));
        }
        match (self.state, consumed) {
            (State::Done, _) => Ok(Status::Complete((consumed, BodyEvent::End))),
            (_, 0) => Ok(Status::Partial),
            _ => Ok(Status::Complete((consumed, BodyEvent::Data(&[])))),
        }
    }

    /// Handles the end of the connection, which is the regular end of a body that has no other.
    ///
    /// # Errors
    /// `BodyTruncated` if more was expected.
    pub fn finish_eof(&mut self) -> Result<(), Violation> {
        match self.state {
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err(Violation::BodyTruncated),
        }
    }

    /// Accounts for `bytes` of data, at least one and no more than are expected.
    fn take(&mut self, bytes: u64) -> Result<(), Violation> {
        self.allowed = self.allowed.checked_sub(bytes).ok_or(Violation::BodyTooLarge)?;
        self.state = match self.state {
            State::Counted(due) if due == bytes => State::Done,
            State::Counted(due) => State::Counted(due - bytes),
            State::ChunkData(due) if due == bytes => State::ChunkDataReturn,
            State::ChunkData(due) => State::ChunkData(due - bytes),
            state => state,
        };
        Ok(())
    }

    /// Consumes one byte that is not data.
    fn framing_byte(&mut self, byte: u8) -> Result<(), Violation> {
        match self.state {
            State::TrailerStart
            | State::TrailerName
            | State::TrailerValue
            | State::TrailerLineFeed
            | State::FinalLineFeed => {
                self.trailer_left =
                    self.trailer_left.checked_sub(1).ok_or(Violation::TrailersTooLarge)?;
                self.state = trailer_byte(self.state, byte).ok_or(Violation::BadTrailer)?;
            }
            State::ChunkDataReturn | State::ChunkDataLineFeed => {
                self.state = chunk_byte(self.state, byte).ok_or(Violation::BadChunk)?;
                self.line_left = self.chunk_line_bytes;
            }
            _ => {
                self.line_left =
                    self.line_left.checked_sub(1).ok_or(Violation::ChunkLineTooLong)?;
                self.state = chunk_byte(self.state, byte).ok_or(Violation::BadChunk)?;
                // A chunk that exceeds the limit is refused before its first byte.
                if matches!(self.state, State::ChunkData(bytes) if bytes > self.allowed) {
                    return Err(Violation::BodyTooLarge);
                }
            }
        }
        Ok(())
    }
}

/// The state after a byte of a chunk-size line, or of the line end after a chunk (RFC 9112 7.1).
fn chunk_byte(state: State, byte: u8) -> Option<State> {
    Some(match (state, byte) {
        (State::ChunkSize(size), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
            let digit = u64::from(char::from(byte).to_digit(16)?);
            State::ChunkSize(Some(size.unwrap_or(0).checked_mul(16)?.checked_add(digit)?))
        }
        (State::ChunkSize(Some(size)) | State::ChunkBlank(size), b' ' | b'\t') => {
            State::ChunkBlank(size)
        }
        (State::ChunkSize(Some(size)) | State::ChunkBlank(size), b';') => {
            State::ChunkExtension(size)
        }
        (State::ChunkSize(Some(size)) | State::ChunkExtension(size), b'\r') => {
            State::ChunkLineFeed(size)
        }
        (State::ChunkExtension(_), b'\t' | b' '..=b'~' | 0x80..) => state,
        (State::ChunkLineFeed(0), b'\n') => State::TrailerStart,
        (State::ChunkLineFeed(size), b'\n') => State::ChunkData(size),
        (State::ChunkDataReturn, b'\r') => State::ChunkDataLineFeed,
        (State::ChunkDataLineFeed, b'\n') => State::ChunkSize(None),
        _ => return None,
    })
}

/// The state after a byte of the trailers (RFC 9112 7.1.2).
fn trailer_byte(state: State, byte: u8) -> Option<State> {
    Some(match (state, byte) {
        (State::TrailerStart, b'\r') => State::FinalLineFeed,
        (State::FinalLineFeed, b'\n') => State::Done,
        (State::TrailerStart | State::TrailerName, _) if is_tchar(byte) => State::TrailerName,
        (State::TrailerName, b':') => State::TrailerValue,
        (State::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => State::TrailerValue,
        (State::TrailerValue, b'\r') => State::TrailerLineFeed,
        (State::TrailerLineFeed, b'\n') => State::TrailerStart,
        _ => return None,
    })
}
