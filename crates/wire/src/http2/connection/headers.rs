//! Header blocks: from frames to requests, responses and trailers.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::super::frame::{FrameHeader, flags};
use super::super::head::{check_request, check_response, check_trailers};
use super::super::hpack::HeaderList;
use super::super::streams::Stream;
use super::receive::Handled;
use super::{Connection, Event, HeadKind, Partial, StreamId, flag};
use crate::Violation;

impl Connection {
    /// HEADERS (RFC 9113 6.2).
    pub(super) fn headers(
        &mut self,
        frame: FrameHeader,
        payload: &[u8],
        list: &mut HeaderList,
        out: &mut Vec<u8>,
    ) -> Handled {
        let fragment = header_fragment(frame, payload)?;
        if fragment.len() > self.config.header_block_bytes as usize {
            return Err(Violation::Http2HeaderBlockTooLarge);
        }
        let end_stream = frame.has(flags::END_STREAM);
        if frame.has(flags::END_HEADERS) {
            return self.block(frame, end_stream, fragment, list, out);
        }
        let partial = self.reader.partial.get_or_insert_with(Box::default);
        *partial.as_mut() = Partial {
            payload: Vec::new(),
            block: fragment.to_vec(),
            stream: frame.stream,
            continuations: 0,
            end_stream,
        };
        Ok(None)
    }

    /// Checks CONTINUATION by its header, before it is collected.
    #[cold]
    pub(super) fn check_continuation(&mut self, frame: FrameHeader) -> Result<(), Violation> {
        let Some(partial) = &mut self.reader.partial else {
            return Err(Violation::Http2UnexpectedContinuation);
        };
        partial.continuations = partial.continuations.saturating_add(1);
        if partial.continuations > self.config.continuations {
            return Err(Violation::Http2TooManyContinuations);
        }
        let block_bytes = partial.block.len() + frame.payload_bytes as usize;
        if block_bytes > self.config.header_block_bytes as usize {
            return Err(Violation::Http2HeaderBlockTooLarge);
        }
        if frame.payload_bytes == 0 {
            return self.count_empty_frame();
        }
        Ok(())
    }

    /// CONTINUATION (RFC 9113 6.10).
    #[cold]
    pub(super) fn continuation(
        &mut self,
        frame: FrameHeader,
        payload: &[u8],
        list: &mut HeaderList,
        out: &mut Vec<u8>,
    ) -> Handled {
        let Some(partial) = &mut self.reader.partial else {
            return Err(Violation::Http2UnexpectedContinuation);
        };
        partial.block.extend_from_slice(payload);
        if !frame.has(flags::END_HEADERS) {
            return Ok(None);
        }
        let (block, end_stream) = (core::mem::take(&mut partial.block), partial.end_stream);
        self.reader.partial = None;
        self.block(frame, end_stream, &block, list, out)
    }

    /// A complete header block. It is decoded whatever becomes of it, because later blocks depend on it
    /// (RFC 9113 4.3).
    fn block(
        &mut self,
        frame: FrameHeader,
        end_stream: bool,
        block: &[u8],
        list: &mut HeaderList,
        out: &mut Vec<u8>,
    ) -> Handled {
        let most = self.config.header_list_bytes as usize;
        let is_too_large = match self.decoder.decode(block, list, most) {
            Ok(()) => false,
            Err(Violation::HeaderListTooLarge) => true,
            Err(violation) => return Err(violation),
        };
        let id = frame.stream;
        let is_server = self.has(flag::SERVER);
        let Some(stream) = self.streams.get_mut(id) else {
            if is_server && id > self.last_peer_stream {
                return self.request(id, end_stream, is_too_large, list, out);
            }
            if is_server && id.is_multiple_of(2) {
                return Err(Violation::Http2BadStreamId);
            }
            return self.ignored_block(frame);
        };
        let checked = if is_too_large {
            Err(Violation::HeaderListTooLarge)
        } else if stream.has(Stream::REMOTE_END) {
            Err(Violation::Http2ClosedStream)
        } else if stream.has(Stream::HEAD) {
            trailers(stream, end_stream, list)
        } else {
            response(stream, end_stream, list)
        };
        match checked {
            Ok(kind) => {
                let tag = stream.tag;
                if let HeadKind::Interim(_) = kind {
                    self.count_control_frame()?;
                } else {
                    self.useful();
                }
                if end_stream {
                    self.end_remote(id);
                }
                Ok(Some(Event::Head { stream: StreamId(id), tag, kind, end_stream }))
            }
            Err(violation) => {
                self.count_reset()?;
                Ok(Some(self.fail_stream(id, violation, out)))
            }
        }
    }

    /// The head of a request.
    fn request(
        &mut self,
        id: u32,
        end_stream: bool,
        is_too_large: bool,
        list: &HeaderList,
        out: &mut Vec<u8>,
    ) -> Handled {
        // RFC 9113 5.1.1.
        if id.is_multiple_of(2) {
            return Err(Violation::Http2BadStreamId);
        }
        if id > self.last_peer_stream + 2 || self.last_peer_stream == 0 && id > 1 {
            self.flags |= flag::SKIPPED;
        }
        self.last_peer_stream = id;
        if self.is_ignored(id) {
            self.count_control_frame()?;
            return Ok(None);
        }
        let checked = if is_too_large {
            Err(Violation::HeaderListTooLarge)
        } else if self.streams.len() >= self.config.max_streams {
            Err(Violation::Http2TooManyStreams)
        } else {
            check_request(list.iter(), self.config.enable_connect_protocol)
        };
        let checked = match checked {
            Ok(head) if end_stream && head.length.is_some_and(|bytes| bytes > 0) => {
                Err(Violation::Http2WrongContentLength)
            }
            checked => checked,
        };
        let head = match checked {
            Ok(head) => head,
            Err(violation) => {
                self.count_reset()?;
                return Ok(Some(self.fail_stream(id, violation, out)));
            }
        };
        let method = if head.is_connect { Stream::METHOD_CONNECT } else { 0 };
        let end = if end_stream { Stream::REMOTE_END } else { 0 };
        let mut stream = Stream::new(id, 0, Stream::HEAD | method | end);
        if let (Some(bytes), false) = (head.length, head.is_connect) {
            stream.length_left = bytes;
        }
        self.streams.push(stream);
        self.useful();
        let kind = HeadKind::Request;
        Ok(Some(Event::Head { stream: StreamId(id), tag: 0, kind, end_stream }))
    }

    /// A block on a stream that is not in the table.
    #[cold]
    fn ignored_block(&mut self, frame: FrameHeader) -> Handled {
        match self.check_closed(frame) {
            // The identifier may never have been used, as others were not (RFC 9113 5.1.1).
            Err(Violation::Http2ClosedStream) if self.has(flag::SKIPPED) => {
                Err(Violation::Http2BadStreamId)
            }
            Err(violation) => Err(violation),
            Ok(()) => self.count_control_frame().map(|()| None),
        }
    }
}

/// Trailers: the second head of a message that is not interim.
fn trailers(
    stream: &mut Stream,
    end_stream: bool,
    list: &HeaderList,
) -> Result<HeadKind, Violation> {
    if !end_stream {
        return Err(Violation::Http2UnfinishedTrailers);
    }
    check_trailers(list.iter())?;
    check_complete(stream)?;
    Ok(HeadKind::Trailers)
}

/// The head of a response.
fn response(
    stream: &mut Stream,
    end_stream: bool,
    list: &HeaderList,
) -> Result<HeadKind, Violation> {
    let head = check_response(list.iter())?;
    if head.status < 200 {
        return if end_stream {
            Err(Violation::Http2InterimEnd)
        } else {
            Ok(HeadKind::Interim(head.status))
        };
    }
    stream.flags |= Stream::HEAD;
    // RFC 9110 6.4.1: these have no content, whatever Content-Length says.
    if stream.has(Stream::METHOD_HEAD) || matches!(head.status, 204 | 304) {
        stream.length_left = 0;
    } else if stream.has(Stream::METHOD_CONNECT) && head.status < 300 {
        // RFC 9110 9.3.6: a tunnel.
    } else if let Some(bytes) = head.length {
        stream.length_left = bytes;
    }
    if end_stream {
        check_complete(stream)?;
    }
    Ok(HeadKind::Response(head.status))
}

/// Whether as much data has arrived as Content-Length said (RFC 9113 8.1.1).
fn check_complete(stream: &Stream) -> Result<(), Violation> {
    match stream.length_left {
        0 | Stream::LENGTH_UNKNOWN => Ok(()),
        _ => Err(Violation::Http2WrongContentLength),
    }
}

/// The payload of HEADERS without padding and priority (RFC 9113 6.2).
#[inline]
fn header_fragment(frame: FrameHeader, payload: &[u8]) -> Result<&[u8], Violation> {
    let mut fragment = payload;
    let mut padding = 0;
    if frame.has(flags::PADDED) {
        let (&length, rest) = fragment.split_first().ok_or(Violation::Http2BadFrameLength)?;
        (padding, fragment) = (usize::from(length), rest);
    }
    if frame.has(flags::PRIORITY) {
        fragment = fragment.get(5..).ok_or(Violation::Http2BadFrameLength)?;
    }
    let length = fragment.len().checked_sub(padding).ok_or(Violation::Http2BadPadding)?;
    Ok(fragment.get(..length).unwrap_or_default())
}
