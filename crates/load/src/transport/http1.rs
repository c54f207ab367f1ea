//! [`Http1`]: an HTTP/1.1 and 1.0 client (RFC 9112): heads; bodies with a length, chunked, or until the
//! end of the connection; interim answers. Content codings are not decoded.

use engine::invariant;
use wire::http::{
    BodyDecoder, BodyEvent, EMPTY_HEADER, HeadScanner, MAX_HEADERS, Response, keep_alive,
    parse_response,
};
use wire::{Limits, Status, Violation};

use crate::outcome::failure::Failure;
use crate::transport::driver::{CompleteAnswer, Driver, Received};
use crate::workload::requests::answer::Awaited;

/// Longer heads are not cached.
const CACHED_HEAD_BYTES: usize = 1024;

/// The HTTP driver of one worker.
#[derive(Default)]
pub struct Http1 {
    limits: Limits,
    cached: CachedHead,
}

/// The last head and its parsed values: servers repeat the same head for up to a second, and an
/// identical one need not be parsed again.
#[derive(Default)]
struct CachedHead {
    head: Vec<u8>,
    is_bodiless: bool,
    status: u16,
    keep: bool,
    /// Bytes of the body; other kinds of body are not cached.
    length: u64,
}

/// The state of a connection.
#[derive(Default)]
pub struct Http1State {
    /// A partial head.
    partial: Vec<u8>,
    scanner: HeadScanner,
    /// The body being received.
    body: Option<BodyDecoder>,
    status: u16,
    keep: bool,
    body_bytes: u64,
}

impl Http1 {
    /// A driver without a limit on bodies.
    #[must_use]
    pub fn new() -> Http1 {
        let limits = Limits { body_bytes: u64::MAX, ..Limits::default() };
        Http1 { limits, cached: CachedHead::default() }
    }

    /// Returns a complete answer if its head is the cached one.
    #[inline]
    fn cached_answer(&self, bytes: &[u8], awaited: &mut Awaited) -> Option<CompleteAnswer> {
        let CachedHead { head, status, keep, length, is_bodiless } = &self.cached;
        let rest = bytes.strip_prefix(&head[..]).filter(|_| !head.is_empty())?;
        let length = if awaited.is_bodiless() { 0 } else { *length };
        let body = rest.get(..usize::try_from(length).ok()?)?;
        if *is_bodiless != awaited.is_bodiless() {
            return None;
        }
        awaited.head(*status, head);
        awaited.body(body);
        let used = head.len() + body.len();
        Some(CompleteAnswer { used, status: *status, keep: *keep, body_bytes: length })
    }

    /// Receives a head; returns the bytes used once it is complete.
    fn head(
        &mut self,
        state: &mut Http1State,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Result<Status<usize>, Violation> {
        let before = state.partial.len();
        if before > 0 {
            state.partial.extend_from_slice(bytes);
        }
        let all = if before > 0 { &state.partial[..] } else { bytes };
        let Status::Complete(length) = state.scanner.scan(all, &self.limits)? else {
            if before == 0 {
                state.partial.extend_from_slice(bytes);
            }
            return Ok(Status::Partial);
        };
        let head = all.get(..length).unwrap_or_default();
        let mut headers = [EMPTY_HEADER; MAX_HEADERS / 3];
        let mut many = [EMPTY_HEADER; MAX_HEADERS];
        let response = match parse_response(head, &mut headers) {
            Err(Violation::TooManyHeaders) => parse_response(head, &mut many)?,
            other => other?,
        };
        // Interim answers precede the final one (RFC 9110 section 15.2).
        if !matches!(response.status, 100 | 102..=199) {
            let method = if awaited.is_bodiless() { "HEAD" } else { "GET" };
            let body = BodyDecoder::for_response(&response, method, &self.limits)?;
            state.status = response.status;
            state.keep = keep_alive(&response) && response.status != 101;
            state.keep &= !body.is_until_close();
            self.cached.remember(head, &response, state.keep, awaited.is_bodiless(), &body);
            awaited.head(response.status, head);
            state.body = Some(body);
        }
        state.scanner = HeadScanner::default();
        state.partial = Vec::new();
        Ok(Status::Complete(length.saturating_sub(before)))
    }
}

impl CachedHead {
    fn remember(
        &mut self,
        head: &[u8],
        response: &Response<'_, '_>,
        keep: bool,
        is_bodiless: bool,
        body: &BodyDecoder,
    ) {
        self.head.clear();
        // The parser has checked that the header, if present, is a number.
        let length = response
            .header("content-length")
            .and_then(|value| std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()));
        let length = if body.is_done() { Some(0) } else { length };
        let Some(length) = length.filter(|_| head.len() <= CACHED_HEAD_BYTES) else { return };
        self.head.extend_from_slice(head);
        let status = response.status;
        (self.status, self.keep, self.length, self.is_bodiless) =
            (status, keep, length, is_bodiless);
    }
}

impl Http1State {
    /// Receives body bytes; true once the body is complete.
    fn body(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        awaited: &mut Awaited,
    ) -> Result<bool, Violation> {
        let Some(decoder) = &mut self.body else {
            invariant::broken("a body is decoded after its head");
            return Ok(false);
        };
        loop {
            let rest = bytes.get(*at..).unwrap_or_default();
            match decoder.decode(rest)? {
                Status::Complete((used, BodyEvent::Data(data))) => {
                    *at += used;
                    self.body_bytes += data.len() as u64;
                    awaited.body(data);
                }
                Status::Complete((used, BodyEvent::End)) => {
                    *at += used;
                    return Ok(true);
                }
                Status::Partial => return Ok(false),
            }
        }
    }

    /// Ends the answer and resets for the next one.
    fn finish(&mut self, used: usize) -> CompleteAnswer {
        self.body = None;
        let body_bytes = std::mem::take(&mut self.body_bytes);
        CompleteAnswer { used, status: self.status, keep: self.keep, body_bytes }
    }
}

impl Driver for Http1 {
    type State = Http1State;

    #[inline]
    fn receive(&mut self, state: &mut Http1State, bytes: &[u8], awaited: &mut Awaited) -> Received {
        if state.body.is_none()
            && state.partial.is_empty()
            && let Some(whole) = self.cached_answer(bytes, awaited)
        {
            return Received::Complete(whole);
        }
        let mut at = 0;
        loop {
            if state.body.is_none() {
                let rest = bytes.get(at..).unwrap_or_default();
                if rest.is_empty() {
                    return Received::More;
                }
                match self.head(state, rest, awaited) {
                    Ok(Status::Complete(used)) => at += used,
                    Ok(Status::Partial) => return Received::More,
                    Err(violation) => return Received::Failed(Failure::Protocol(violation)),
                }
                continue;
            }
            return match state.body(bytes, &mut at, awaited) {
                Ok(true) => Received::Complete(state.finish(at)),
                Ok(false) => Received::More,
                Err(violation) => Received::Failed(Failure::Protocol(violation)),
            };
        }
    }

    fn ended(&mut self, state: &mut Http1State) -> Received {
        let Some(body) = &mut state.body else {
            let begun = !state.partial.is_empty();
            return Received::Failed(if begun { Failure::ClosedMidway } else { Failure::Closed });
        };
        match body.finish_eof() {
            Ok(()) => Received::Complete(state.finish(0)),
            Err(_) => Received::Failed(Failure::ClosedMidway),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::requests::answer::Wants;

    /// The answers of a stream that arrives in pieces of `piece` bytes.
    fn received(stream: &[u8], piece: usize) -> (Vec<(CompleteAnswer, Vec<u8>)>, Option<Failure>) {
        let (mut http, mut state) = (Http1::new(), Http1State::default());
        let mut awaited = Awaited::default();
        awaited.begin(Wants::Body(1 << 20), false, false);
        let mut answers = Vec::new();
        for piece in stream.chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                match http.receive(&mut state, rest, &mut awaited) {
                    Received::More => break,
                    Received::Complete(whole) => {
                        rest = &rest[whole.used..];
                        answers.push((
                            CompleteAnswer { used: 0, ..whole },
                            awaited.kept_body().to_vec(),
                        ));
                        awaited.begin(Wants::Body(1 << 20), false, false);
                    }
                    Received::Failed(failure) => return (answers, Some(failure)),
                    other => panic!("{other:?}: nothing is pushed"),
                }
            }
        }
        match http.ended(&mut state) {
            Received::Complete(whole) => answers.push((whole, awaited.kept_body().to_vec())),
            Received::Failed(Failure::Closed) => {}
            Received::Failed(failure) => return (answers, Some(failure)),
            other => unreachable!("{other:?}: an end is an end"),
        }
        (answers, None)
    }

    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\
        Content-Length: 5\r\n\r\nagainHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\n\
        Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: z\r\n\r\n\
        HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end";

    #[test]
    fn answers_are_the_same_at_any_split() {
        let whole = |status, keep, body_bytes| CompleteAnswer { used: 0, status, keep, body_bytes };
        let expected = [
            (whole(200, true, 5), b"hello".to_vec()),
            (whole(200, true, 5), b"again".to_vec()),
            (whole(404, true, 5), b"abcde".to_vec()),
            (whole(204, true, 0), Vec::new()),
            (whole(200, false, 10), b"to the end".to_vec()),
        ];
        for piece in 1..=STREAM.len() {
            let (answers, failure) = received(STREAM, piece);
            assert_eq!((answers.as_slice(), failure), (&expected[..], None), "pieces of {piece}");
        }
    }

    #[test]
    fn truncated_and_invalid_answers_are_distinguished() {
        let long = [b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &[b'a'; 20_000]].concat();
        for (stream, failure) in [
            (b"HTTP/1.1 200".as_slice(), Failure::ClosedMidway),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", Failure::ClosedMidway),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                Failure::Protocol(Violation::BadChunk),
            ),
            (b"SSH-2.0-OpenSSH\r\n\r\n", Failure::Protocol(Violation::BadStatusLine)),
            (&long, Failure::Protocol(Violation::HeadTooLarge)),
        ] {
            for piece in [1, 7, stream.len()] {
                assert_eq!(received(stream, piece), (Vec::new(), Some(failure)), "{piece}");
            }
        }
    }

    #[test]
    fn answer_to_head_has_no_body_and_is_cached_separately() {
        let (mut http, mut state) = (Http1::new(), Http1State::default());
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let mut awaited = Awaited::default();
        for is_bodiless in [true, true, false, true] {
            awaited.begin(Wants::Nothing, false, is_bodiless);
            let bytes = if is_bodiless { head.to_vec() } else { [&head[..], b"12345"].concat() };
            let body_bytes = if is_bodiless { 0 } else { 5 };
            let whole = CompleteAnswer { used: bytes.len(), status: 200, keep: true, body_bytes };
            assert_eq!(http.receive(&mut state, &bytes, &mut awaited), Received::Complete(whole));
        }
    }
}
