//! [`OpenCalls`]: gRPC calls that stay open over the steps of a scenario, whose messages are pushed. Each is a socket
//! of [`crate::transport::streams`], where the answer is one of HTTP/1.1 and the trailers are its last frame, as in
//! gRPC-Web.

use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, parse_response};
use wire::{Limits, Status};

use crate::grpc::{Code, MessageDecoder, PREFIX_BYTES, TRAILERS, answer_status, limits, trailer};
use crate::outcome::failure::Failure;
use crate::transport::driver::{CompleteAnswer, Received};
use crate::transport::grpc::{Coding, is_type, of_code, of_frame};
use crate::transport::grpc_web::as_head;
use crate::workload::requests::answer::Awaited;

/// The calls of one worker.
#[derive(Default)]
pub(crate) struct OpenCalls {
    /// The last message, decompressed.
    pub(crate) message: Vec<u8>,
    /// The head of the last call that has ended, with its trailers.
    pub(crate) head: Vec<u8>,
    inflated: Vec<u8>,
}

/// The state of a call.
pub(crate) struct OpenCall {
    /// Exactly one message answers it.
    has_one_answer: bool,
    /// A step waits for its end.
    awaits_end: bool,
    /// The head of the answer, which may be partial.
    head: Vec<u8>,
    has_head: bool,
    scanner: HeadScanner,
    coding: Coding,
    decoder: MessageDecoder,
    messages: u32,
    /// Bytes of messages since a step waits for the end.
    body_bytes: u64,
    /// The frame with the trailers, which may be partial.
    trailers: Vec<u8>,
}

impl OpenCall {
    pub(crate) fn new(has_one_answer: bool) -> OpenCall {
        OpenCall {
            has_one_answer,
            awaits_end: false,
            head: Vec::new(),
            has_head: false,
            scanner: HeadScanner::default(),
            coding: Coding::default(),
            decoder: MessageDecoder::new(limits::OPEN_CALL_MESSAGE_BYTES),
            messages: 0,
            body_bytes: 0,
            trailers: Vec::new(),
        }
    }

    /// Waits for the end of the call: the messages before it are the body of the answer.
    pub(crate) fn await_end(&mut self) {
        (self.awaits_end, self.body_bytes) = (true, 0);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.awaits_end
    }

    /// Takes bytes of the head up to its end; returns how many, and the status of the call if it ends with it.
    fn take_head(&mut self, bytes: &[u8]) -> Result<(usize, Option<Code>), Failure> {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let scanned = self.scanner.scan(&self.head, &Limits::default());
        let Status::Complete(length) = scanned.map_err(Failure::Protocol)? else {
            return Ok((bytes.len(), None));
        };
        self.head.truncate(length);
        self.has_head = true;
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let head = parse_response(&self.head, &mut headers).map_err(Failure::Protocol)?;
        let code = head.header("grpc-status").map(Code::parse);
        if code.is_none() && head.status != 200 {
            return Err(of_code(Code::of_http(head.status)));
        }
        let kind = head.header("content-type").unwrap_or_default();
        if code.is_none() && !is_type(kind, b"application/grpc") {
            return Err(Failure::GrpcContentType);
        }
        self.coding = head.header("grpc-encoding").map(Coding::of).unwrap_or_default();
        Ok((length.saturating_sub(before), code))
    }
}

impl OpenCalls {
    /// Takes received bytes up to the next message, or the end of the call.
    pub(crate) fn receive(
        &mut self,
        call: &mut OpenCall,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Received {
        self.next(call, bytes, awaited).unwrap_or_else(Received::Failed)
    }

    fn next(
        &mut self,
        call: &mut OpenCall,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Result<Received, Failure> {
        let mut used = 0;
        if !call.has_head {
            let (of_head, code) = call.take_head(bytes)?;
            used = of_head;
            if let Some(code) = code {
                return self.end(call, Some(code), (&[], bytes.len()), awaited);
            }
        }
        let rest = bytes.get(used..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(Received::More);
        }
        let is_between = call.decoder.finish().is_ok();
        if !call.trailers.is_empty() || is_between && rest.first() == Some(&TRAILERS) {
            return self.take_trailers(call, rest, bytes.len(), awaited);
        }
        let (taken, message) = call.decoder.next(rest).map_err(|why| of_frame(&why))?;
        used += taken;
        let Some(message) = message else { return Ok(Received::More) };
        let plain = match message.compressed {
            false => message.bytes,
            true => {
                let most = limits::OPEN_CALL_MESSAGE_BYTES;
                call.coding.inflate(message.bytes, most, &mut self.inflated)?
            }
        };
        self.message.clear();
        self.message.extend_from_slice(plain);
        call.messages = call.messages.saturating_add(1);
        if call.awaits_end {
            // Plain whatever the head says of compression: the flag is 0.
            awaited.body(&[0]);
            awaited.body(&(plain.len() as u32).to_be_bytes());
            awaited.body(plain);
            call.body_bytes += (PREFIX_BYTES + plain.len()) as u64;
        }
        Ok(Received::Pushed(used))
    }

    /// Takes bytes of the frame with the trailers, at most [`limits::TRAILER_BYTES`].
    fn take_trailers(
        &mut self,
        call: &mut OpenCall,
        rest: &[u8],
        used: usize,
        awaited: &mut Awaited,
    ) -> Result<Received, Failure> {
        call.trailers.extend_from_slice(rest);
        let Some((prefix, lines)) = call.trailers.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(Received::More);
        };
        let [_, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        // Trailers are the last bytes of a call and bounded as heads are. A longer frame, or one that bytes follow, is
        // a message of the server with a wrong flag.
        if length > limits::TRAILER_BYTES || lines.len() > length {
            return Err(Failure::GrpcMessage);
        }
        if lines.len() < length {
            return Ok(Received::More);
        }
        let lines = lines.to_vec();
        let code = trailer(&lines, "grpc-status").map(Code::parse);
        self.end(call, code, (&lines, used), awaited)
    }

    /// The end of a call, by its status.
    fn end(
        &mut self,
        call: &mut OpenCall,
        code: Option<Code>,
        (lines, used): (&[u8], usize),
        awaited: &mut Awaited,
    ) -> Result<Received, Failure> {
        self.head.clear();
        self.head.extend_from_slice(&call.head);
        if !lines.is_empty() {
            self.head.truncate(self.head.len().saturating_sub(2));
            let fields = as_head(lines);
            let first = fields.windows(2).position(|two| two == b"\r\n").map_or(0, |at| at + 2);
            self.head.extend_from_slice(fields.get(first..).unwrap_or_default());
        }
        let code = code.ok_or(Failure::GrpcNoStatus)?;
        if code == Code::OK && call.has_one_answer && call.messages != 1 {
            return Err(Failure::GrpcMessage);
        }
        if !call.awaits_end {
            return Ok(Received::Ended(code));
        }
        if awaited.keeps_heads() {
            awaited.head(200, &self.head);
        }
        let (status, body_bytes) = (answer_status(code), call.body_bytes);
        Ok(Received::Complete(CompleteAnswer { used, status, keep: false, body_bytes }))
    }

    /// The end of a call without a status.
    pub(crate) fn ended(call: &OpenCall) -> Received {
        let is_cut = !call.trailers.is_empty() || call.decoder.finish().is_err();
        Received::Failed(if is_cut { Failure::ClosedMidway } else { Failure::Closed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::requests::answer::Wants;

    const HEAD: &[u8] = b"HTTP/1.1 200 \r\ncontent-type: application/grpc\r\nx-a: b\r\n\r\n";
    const ONE: &[u8] = b"\x00\x00\x00\x00\x02ab";
    const TWO: &[u8] = b"\x00\x00\x00\x00\x00";
    const OK: &[u8] = b"\x80\x00\x00\x00\x10grpc-status: 0\r\n";

    /// The messages and the end of a call whose answer arrives in pieces, with what scripts see of it.
    fn received(
        answer: &[u8],
        piece: usize,
        awaits_end: bool,
    ) -> (Vec<Vec<u8>>, Received, Awaited) {
        let (mut calls, mut call) = (OpenCalls::default(), OpenCall::new(false));
        let (mut messages, mut awaited) = (Vec::new(), Awaited::default());
        awaited.begin(Wants::Body(100), false, false);
        if awaits_end {
            call.await_end();
        }
        for bytes in answer.chunks(piece) {
            let mut rest = bytes;
            while !rest.is_empty() {
                match calls.receive(&mut call, rest, &mut awaited) {
                    Received::More => break,
                    Received::Pushed(used) => {
                        messages.push(calls.message.clone());
                        rest = &rest[used..];
                    }
                    Received::Complete(whole) => {
                        let whole = CompleteAnswer { used: 0, ..whole };
                        return (messages, Received::Complete(whole), awaited);
                    }
                    other => return (messages, other, awaited),
                }
            }
        }
        (messages, OpenCalls::ended(&call), awaited)
    }

    #[test]
    fn messages_and_the_status_do_not_depend_on_how_they_are_split() {
        let answer = [HEAD, ONE, TWO, OK].concat();
        for piece in 1..answer.len() {
            let (messages, end, _) = received(&answer, piece, false);
            assert_eq!(messages, [&b"ab"[..], b""], "{piece}");
            assert_eq!(end, Received::Ended(Code::OK), "{piece}");
            let (messages, end, awaited) = received(&answer, piece, true);
            let whole = CompleteAnswer { used: 0, status: 1_000, keep: false, body_bytes: 12 };
            assert_eq!((messages.len(), end), (2, Received::Complete(whole)), "{piece}");
            assert_eq!(awaited.kept_body(), [ONE, TWO].concat());
            let head = String::from_utf8(awaited.kept_head().to_vec()).unwrap();
            assert!(head.ends_with("x-a: b\r\ngrpc-status: 0\r\n\r\n"), "{head}");
        }
    }

    #[test]
    fn calls_end_by_their_status_and_what_is_no_call_fails() {
        let not_found =
            b"HTTP/1.1 200 \r\ncontent-type: application/grpc\r\ngrpc-status: 5\r\n\r\n";
        let empty = b"\x80\x00\x00\x00\x00";
        for (answer, end) in [
            (not_found.to_vec(), Received::Ended(Code(5))),
            (b"HTTP/1.1 503 \r\n\r\n".to_vec(), Received::Failed(Failure::GrpcUnavailable)),
            (b"HTTP/1.1 200 \r\n\r\n".to_vec(), Received::Failed(Failure::GrpcContentType)),
            ([HEAD, empty].concat(), Received::Failed(Failure::GrpcNoStatus)),
            ([HEAD, b"\x02"].concat(), Received::Failed(Failure::GrpcMessage)),
            // Trailers of 2 GiB, and some that bytes follow: messages of the server with a wrong flag.
            ([HEAD, b"\x80\x7f\0\0\0"].concat(), Received::Failed(Failure::GrpcMessage)),
            ([HEAD, b"\x00\x00\x10\x00\x01"].concat(), Received::Failed(Failure::TooLarge)),
            ([HEAD, &ONE[..6]].concat(), Received::Failed(Failure::ClosedMidway)),
            ([HEAD, &OK[..9]].concat(), Received::Failed(Failure::ClosedMidway)),
            ([HEAD, ONE].concat(), Received::Failed(Failure::Closed)),
        ] {
            for piece in [1, 3, 1_000] {
                assert_eq!(received(&answer, piece, false).1, end, "{piece} {answer:?}");
            }
        }
    }
}
