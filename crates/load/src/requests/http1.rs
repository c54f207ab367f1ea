//! [`Http1`]: an HTTP/1.1 and 1.0 client (RFC 9112): heads; bodies with a length, chunked, or until the
//! end of the connection; interim answers. Content codings are not decoded.

use wire::http::{
    BodyDecoder, BodyEvent, EMPTY_HEADER, HeadScanner, MAX_HEADERS, Response, keep_alive,
    parse_response,
};
use wire::{Limits, Status, Violation};

use super::{Awaited, Driver, Failure, Received, Whole};

/// Heads longer than this are parsed anew each time.
const KNOWN_HEAD_BYTES: usize = 1024;

/// The HTTP driver of one worker.
#[derive(Default)]
pub struct Http1 {
    limits: Limits,
    known: Known,
}

/// The last head and its parsed values: servers repeat the same head for up to a second, and an
/// identical one need not be parsed again.
#[derive(Default)]
struct Known {
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
    /// A head that is not whole.
    torn: Vec<u8>,
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
        Http1 { limits, known: Known::default() }
    }

    /// Returns a complete answer if its head is the cached one.
    #[inline]
    fn again(&self, bytes: &[u8], awaited: &mut Awaited) -> Option<Whole> {
        let Known { head, status, keep, length, is_bodiless } = &self.known;
        let rest = bytes.strip_prefix(&head[..]).filter(|_| !head.is_empty())?;
        let length = if awaited.is_bodiless() { 0 } else { *length };
        let body = rest.get(..usize::try_from(length).ok()?)?;
        if *is_bodiless != awaited.is_bodiless() {
            return None;
        }
        awaited.head(*status, head);
        awaited.body(body);
        let used = head.len() + body.len();
        Some(Whole { used, status: *status, keep: *keep, body_bytes: length })
    }

    /// Receives a head; returns the bytes used once it is complete.
    fn head(
        &mut self,
        state: &mut Http1State,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Result<Status<usize>, Violation> {
        let before = state.torn.len();
        if before > 0 {
            state.torn.extend_from_slice(bytes);
        }
        let all = if before > 0 { &state.torn[..] } else { bytes };
        let Status::Complete(length) = state.scanner.scan(all, &self.limits)? else {
            if before == 0 {
                state.torn.extend_from_slice(bytes);
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
            self.known.remember(head, &response, state.keep, awaited.is_bodiless(), &body);
            awaited.head(response.status, head);
            state.body = Some(body);
        }
        state.scanner = HeadScanner::default();
        state.torn = Vec::new();
        Ok(Status::Complete(length.saturating_sub(before)))
    }
}

impl Known {
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
        let Some(length) = length.filter(|_| head.len() <= KNOWN_HEAD_BYTES) else { return };
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
        let Some(decoder) = &mut self.body else { return Ok(false) };
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

    /// The answer is over; the next one begins afresh.
    fn finish(&mut self, used: usize) -> Whole {
        self.body = None;
        let body_bytes = std::mem::take(&mut self.body_bytes);
        Whole { used, status: self.status, keep: self.keep, body_bytes }
    }
}

impl Driver for Http1 {
    type State = Http1State;

    #[inline]
    fn receive(&mut self, state: &mut Http1State, bytes: &[u8], awaited: &mut Awaited) -> Received {
        if state.body.is_none()
            && state.torn.is_empty()
            && let Some(whole) = self.again(bytes, awaited)
        {
            return Received::Whole(whole);
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
                    Err(violation) => return Received::Broken(Failure::Protocol(violation)),
                }
                continue;
            }
            return match state.body(bytes, &mut at, awaited) {
                Ok(true) => Received::Whole(state.finish(at)),
                Ok(false) => Received::More,
                Err(violation) => Received::Broken(Failure::Protocol(violation)),
            };
        }
    }

    fn ended(&mut self, state: &mut Http1State) -> Received {
        let Some(body) = &mut state.body else {
            let begun = !state.torn.is_empty();
            return Received::Broken(if begun { Failure::ClosedMidway } else { Failure::Closed });
        };
        match body.finish_eof() {
            Ok(()) => Received::Whole(state.finish(0)),
            Err(_) => Received::Broken(Failure::ClosedMidway),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Wants;
    use super::*;

    /// What a stream brings when it comes in pieces of so many bytes.
    fn received(stream: &[u8], piece: usize) -> (Vec<(Whole, Vec<u8>)>, Option<Failure>) {
        let (mut http, mut state) = (Http1::new(), Http1State::default());
        let mut awaited = Awaited::default();
        awaited.begin(Wants::Body(1 << 20), false, false);
        let mut answers = Vec::new();
        for piece in stream.chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                match http.receive(&mut state, rest, &mut awaited) {
                    Received::More => break,
                    Received::Whole(whole) => {
                        rest = &rest[whole.used..];
                        answers.push((Whole { used: 0, ..whole }, awaited.body.clone()));
                        awaited.begin(Wants::Body(1 << 20), false, false);
                    }
                    Received::Broken(failure) => return (answers, Some(failure)),
                    other => panic!("{other:?}: nothing comes by itself"),
                }
            }
        }
        match http.ended(&mut state) {
            Received::Whole(whole) => answers.push((whole, awaited.body.clone())),
            Received::Broken(Failure::Closed) => {}
            Received::Broken(failure) => return (answers, Some(failure)),
            other => unreachable!("{other:?}: an end is an end"),
        }
        (answers, None)
    }

    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\
        Content-Length: 5\r\n\r\nagainHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\n\
        Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: z\r\n\r\n\
        HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end";

    #[test]
    fn however_a_stream_is_torn_its_answers_are_the_same() {
        let whole = |status, keep, body_bytes| Whole { used: 0, status, keep, body_bytes };
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
    fn what_ends_or_breaks_in_the_middle_is_told_apart() {
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
    fn the_answer_to_head_ends_with_its_head_and_is_not_taken_for_another() {
        let (mut http, mut state) = (Http1::new(), Http1State::default());
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let mut awaited = Awaited::default();
        for is_bodiless in [true, true, false, true] {
            awaited.begin(Wants::Nothing, false, is_bodiless);
            let bytes = if is_bodiless { head.to_vec() } else { [&head[..], b"12345"].concat() };
            let body_bytes = if is_bodiless { 0 } else { 5 };
            let whole = Whole { used: bytes.len(), status: 200, keep: true, body_bytes };
            assert_eq!(http.receive(&mut state, &bytes, &mut awaited), Received::Whole(whole));
        }
    }
}
