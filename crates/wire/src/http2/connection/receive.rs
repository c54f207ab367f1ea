//! What we receive: bytes to frames. DATA is passed on in pieces; other frames are complete before they
//! are handled, in place if they have arrived at once.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::super::frame::{
    FRAME_BYTES_MIN, FRAME_HEADER_BYTES, FrameHeader, FrameType, PREFACE, encode_rst_stream, flags,
};
use super::super::hpack::HeaderList;
use super::super::streams::Stream;
use super::send::consume_stream;
use super::{Connection, Event, Phase, Reader, StreamId, flag};
use crate::Violation;
use crate::http2::ErrorCode;

/// Longest padding and priority in front of and behind a header block, in bytes (RFC 9113 6.2).
const HEADERS_EXTRA_BYTES: u32 = 1 + 5 + 255;

/// The result of a frame: an event, or none that the caller needs to know.
pub(super) type Handled = Result<Option<Event<'static>>, Violation>;

impl Reader {
    #[inline]
    pub(super) const fn frame(&self) -> FrameHeader {
        FrameHeader::parse(&self.header)
    }

    /// The stream whose header block is incomplete; 0 if there is none.
    #[inline]
    fn block_stream(&self) -> u32 {
        self.partial.as_ref().map_or(0, |partial| partial.stream)
    }
}

impl Connection {
    /// Takes the next bytes that have arrived, up to the next event. Returns how many bytes were used
    /// and the event; `None` if all were used and there is none. Call it with what was not used until it
    /// returns `None`; nothing need be kept. Answers that the protocol demands are appended to `out`.
    /// `list` gets the fields of each head; only those of [`Event::Head`] are valid.
    ///
    /// # Errors
    /// A violation that ends the connection. Nothing more can be received; the caller sends
    /// [`go_away_for`](Connection::go_away_for) it and closes.
    pub fn receive<'b>(
        &mut self,
        bytes: &'b [u8],
        list: &mut HeaderList,
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Event<'b>)>, Violation> {
        if self.has(flag::UNPROCESSED)
            && let Some(event) = self.next_unprocessed()
        {
            return Ok(Some((0, event)));
        }
        let mut rest = bytes;
        loop {
            let event = match self.reader.phase {
                Phase::Header => {
                    if !self.read_header(&mut rest) {
                        return Ok(None);
                    }
                    let frame = self.reader.frame();
                    self.check_header(frame)?;
                    if frame.kind == FrameType::DATA && !frame.has(flags::PADDED) {
                        self.begin_data(frame, 0, out)?
                    } else {
                        let whole = usize::try_from(frame.payload_bytes).ok();
                        let whole = whole.and_then(|bytes| rest.split_at_checked(bytes));
                        match whole {
                            Some((payload, after)) if self.reader.phase == Phase::Payload => {
                                rest = after;
                                self.reader.phase = Phase::Header;
                                self.handle(frame, payload, list, out)?
                            }
                            _ => None,
                        }
                    }
                }
                Phase::Data => {
                    let pending = self.reader.left > u32::from(self.reader.padding);
                    if rest.is_empty() && pending {
                        return Ok(None);
                    }
                    self.data(&mut rest)
                }
                _ if rest.is_empty() => return Ok(None),
                Phase::Padding => self.read_padding(&mut rest, out)?,
                Phase::Skip => {
                    let skipped = rest.len().min(self.reader.left as usize);
                    rest = rest.get(skipped..).unwrap_or_default();
                    // At most `left`, so the cast keeps the value.
                    self.reader.left -= skipped as u32;
                    if self.reader.left == 0 {
                        self.reader.phase = Phase::Header;
                    }
                    None
                }
                Phase::Payload => self.collect(&mut rest, list, out)?,
                Phase::Preface => {
                    self.read_preface(&mut rest)?;
                    None
                }
            };
            if let Some(event) = event {
                return Ok(Some((bytes.len() - rest.len(), event)));
            }
        }
    }

    /// Completes the frame header from `rest`. Returns whether it is complete.
    #[inline]
    fn read_header(&mut self, rest: &mut &[u8]) -> bool {
        let reader = &mut self.reader;
        if reader.arrived == 0
            && let Some((header, after)) = rest.split_first_chunk()
        {
            reader.header = *header;
            *rest = after;
            return true;
        }
        while let Some((&byte, after)) = rest.split_first() {
            if let Some(place) = reader.header.get_mut(usize::from(reader.arrived)) {
                *place = byte;
            }
            *rest = after;
            reader.arrived += 1;
            if usize::from(reader.arrived) == FRAME_HEADER_BYTES {
                reader.arrived = 0;
                return true;
            }
        }
        false
    }

    /// Compares what has arrived with the client's preface (RFC 9113 3.4).
    fn read_preface(&mut self, rest: &mut &[u8]) -> Result<(), Violation> {
        let expected = PREFACE.get(usize::from(self.reader.arrived)..).unwrap_or_default();
        let length = rest.len().min(expected.len());
        let (bytes, after) = rest.split_at(length);
        if !expected.starts_with(bytes) {
            return Err(Violation::Http2BadPreface);
        }
        *rest = after;
        self.reader.arrived += length as u8;
        if length == expected.len() {
            self.reader.arrived = 0;
            self.reader.phase = Phase::Header;
        }
        Ok(())
    }

    /// Checks a frame header on its own, before any of its payload, and chooses how to read that.
    #[inline]
    fn check_header(&mut self, frame: FrameHeader) -> Result<(), Violation> {
        if !self.has(flag::SETTINGS) && (frame.kind != FrameType::SETTINGS || frame.has(flags::ACK))
        {
            return Err(Violation::Http2NoSettings);
        }
        if frame.payload_bytes > self.config.max_frame() {
            return Err(Violation::Http2FrameTooLarge);
        }
        let block = self.reader.block_stream();
        if block != 0 && (frame.kind != FrameType::CONTINUATION || frame.stream != block) {
            return Err(Violation::Http2InterruptedBlock);
        }
        self.reader.left = frame.payload_bytes;
        self.reader.padding = 0;
        let on_stream = frame.stream != 0;
        let (allowed, phase) = match frame.kind {
            FrameType::DATA if frame.has(flags::PADDED) => (on_stream, Phase::Padding),
            FrameType::DATA => (on_stream, Phase::Data),
            FrameType::HEADERS => {
                let most = self.config.header_block_bytes.saturating_add(HEADERS_EXTRA_BYTES);
                if frame.payload_bytes > most {
                    return Err(Violation::Http2HeaderBlockTooLarge);
                }
                (on_stream, Phase::Payload)
            }
            FrameType::CONTINUATION if block == 0 => {
                return Err(Violation::Http2UnexpectedContinuation);
            }
            FrameType::CONTINUATION => {
                self.check_continuation(frame)?;
                (true, Phase::Payload)
            }
            FrameType::PUSH_PROMISE => return Err(Violation::Http2Push),
            FrameType::RST_STREAM | FrameType::PRIORITY => (on_stream, Phase::Payload),
            // They are collected before they are read, and need not be as long as DATA may be.
            FrameType::SETTINGS | FrameType::GOAWAY if frame.payload_bytes > FRAME_BYTES_MIN => {
                return Err(Violation::Http2FrameTooLarge);
            }
            FrameType::SETTINGS | FrameType::PING | FrameType::GOAWAY => {
                (!on_stream, Phase::Payload)
            }
            FrameType::WINDOW_UPDATE => (true, Phase::Payload),
            // RFC 9113 5.5.
            _ => {
                self.count_control_frame()?;
                (true, if frame.payload_bytes == 0 { Phase::Header } else { Phase::Skip })
            }
        };
        if !allowed {
            return Err(Violation::Http2WrongStream);
        }
        let length = frame.payload_bytes;
        let good = match frame.kind {
            FrameType::RST_STREAM | FrameType::WINDOW_UPDATE => length == 4,
            FrameType::PRIORITY => length == 5,
            FrameType::PING => length == 8,
            FrameType::GOAWAY => length >= 8,
            FrameType::SETTINGS if frame.has(flags::ACK) => length == 0,
            FrameType::SETTINGS => length.is_multiple_of(6),
            FrameType::DATA if frame.has(flags::PADDED) => length >= 1,
            _ => true,
        };
        if !good {
            return Err(Violation::Http2BadFrameLength);
        }
        self.reader.phase = phase;
        Ok(())
    }

    /// Collects the payload of a frame that has not arrived at once.
    #[cold]
    fn collect(&mut self, rest: &mut &[u8], list: &mut HeaderList, out: &mut Vec<u8>) -> Handled {
        let partial = self.reader.partial.get_or_insert_with(Box::default);
        let length = rest.len().min(self.reader.left as usize);
        let (bytes, after) = rest.split_at(length);
        partial.payload.extend_from_slice(bytes);
        *rest = after;
        self.reader.left -= length as u32;
        if self.reader.left > 0 {
            return Ok(None);
        }
        let payload = core::mem::take(&mut partial.payload);
        if partial.stream == 0 {
            self.reader.partial = None;
        }
        self.reader.phase = Phase::Header;
        self.handle(self.reader.frame(), &payload, list, out)
    }

    /// Handles a complete frame other than DATA.
    fn handle(
        &mut self,
        frame: FrameHeader,
        payload: &[u8],
        list: &mut HeaderList,
        out: &mut Vec<u8>,
    ) -> Handled {
        match frame.kind {
            FrameType::HEADERS => self.headers(frame, payload, list, out),
            FrameType::CONTINUATION => self.continuation(frame, payload, list, out),
            _ => self.control(frame, payload, out),
        }
    }

    /// Takes the length of the padding of a DATA frame.
    fn read_padding(&mut self, rest: &mut &[u8], out: &mut Vec<u8>) -> Handled {
        let Some((&padding, after)) = rest.split_first() else { return Ok(None) };
        *rest = after;
        let frame = self.reader.frame();
        self.reader.left -= 1;
        // RFC 9113 6.1.
        if u32::from(padding) > self.reader.left {
            return Err(Violation::Http2BadPadding);
        }
        self.reader.padding = padding;
        self.begin_data(frame, u32::from(padding) + 1, out)
    }

    /// Accounts for a DATA frame, before its content: windows, the stream's state, Content-Length.
    /// `framing` is what of its payload is padding.
    #[inline]
    fn begin_data(&mut self, frame: FrameHeader, framing: u32, out: &mut Vec<u8>) -> Handled {
        let payload = frame.payload_bytes;
        let data = payload - framing;
        // RFC 9113 6.9: all of the payload counts, on a closed stream as well. Both are below 2^31.
        let left = i64::from(self.receive_window) - i64::from(payload);
        self.receive_window = i32::try_from(left).map_err(|_| Violation::Http2WindowExceeded)?;
        if left < 0 {
            return Err(Violation::Http2WindowExceeded);
        }
        let ends = frame.has(flags::END_STREAM);
        if data == 0 && !ends {
            self.count_empty_frame()?;
        }
        self.consume(if self.config.explicit_release { framing } else { payload }, out);

        let is_server = self.has(flag::SERVER);
        let explicit = self.config.explicit_release;
        let initial = self.stream_window;
        let Some(stream) = self.streams.get_mut(frame.stream) else {
            self.check_closed(frame)?;
            self.count_control_frame()?;
            self.skip_data(data, out);
            return Ok(None);
        };
        let window = i64::from(initial) + i64::from(stream.receive_delta);
        // The window may be negative (RFC 9113 6.9.2), and an end without data needs none (6.9.1).
        if payload > 0 && i64::from(payload) > window {
            return Err(Violation::Http2WindowExceeded);
        }
        stream.receive_delta -= payload as i32;
        let violation = if stream.has(Stream::REMOTE_END) {
            Some(Violation::Http2ClosedStream)
        } else if !is_server && !stream.has(Stream::HEAD) {
            Some(Violation::Http2DataBeforeHead)
        } else if stream.length_left != Stream::LENGTH_UNKNOWN {
            match stream.length_left.checked_sub(u64::from(data)) {
                Some(left) if left == 0 || !ends => {
                    stream.length_left = left;
                    None
                }
                _ => Some(Violation::Http2WrongContentLength),
            }
        } else {
            None
        };
        self.reader.tag = stream.tag;
        if let Some(violation) = violation {
            self.skip_data(data, out);
            self.count_reset()?;
            return Ok(Some(self.fail_stream(frame.stream, violation, out)));
        }
        if !ends {
            let window = self.config.stream_window();
            consume_stream(stream, if explicit { framing } else { payload }, window, out);
        }
        // Not what is ignored.
        if data > 0 || ends {
            self.empty_frames = self.empty_frames.saturating_sub(1);
            self.useful();
        }
        self.reader.phase = Phase::Data;
        Ok(None)
    }

    /// Ignores the content of a DATA frame.
    fn skip_data(&mut self, data: u32, out: &mut Vec<u8>) {
        if self.config.explicit_release {
            self.consume(data, out);
        }
        self.reader.phase = if self.reader.left == 0 { Phase::Header } else { Phase::Skip };
    }

    /// Passes on what has arrived of a DATA frame.
    #[inline]
    fn data<'b>(&mut self, rest: &mut &'b [u8]) -> Option<Event<'b>> {
        let frame = self.reader.frame();
        let padding = u32::from(self.reader.padding);
        let due = (self.reader.left - padding) as usize;
        let (data, after) = rest.split_at(rest.len().min(due));
        *rest = after;
        self.reader.left -= data.len() as u32;
        let last = data.len() == due;
        if last {
            self.reader.phase = if padding == 0 { Phase::Header } else { Phase::Skip };
        }
        if self.config.explicit_release {
            self.held += data.len() as u32;
        }
        let end_stream = last && frame.has(flags::END_STREAM);
        if end_stream {
            self.end_remote(frame.stream);
        }
        let (stream, tag) = (StreamId(frame.stream), self.reader.tag);
        (!data.is_empty() || end_stream).then_some(Event::Data { stream, tag, data, end_stream })
    }

    /// The peer sent END_STREAM.
    pub(super) fn end_remote(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.flags |= Stream::REMOTE_END;
        if stream.is_over() {
            self.end_stream(id);
        }
    }

    /// Resets a stream for what the peer did.
    #[cold]
    pub(super) fn fail_stream(
        &mut self,
        id: u32,
        violation: Violation,
        out: &mut Vec<u8>,
    ) -> Event<'static> {
        let tag = self.streams.remove(id).map_or(0, |stream| stream.tag);
        encode_rst_stream(out, id, violation.http2_code());
        self.ignore_stream(id, out);
        Event::StreamFailed { stream: StreamId(id), tag, violation }
    }

    /// A frame on a stream that is not in the table: never opened, ended by the peer, or reset by us, in
    /// which case it may have been sent before the peer knew (RFC 9113 5.1).
    #[cold]
    pub(super) fn check_closed(&self, frame: FrameHeader) -> Result<(), Violation> {
        if self.is_idle(frame.stream) {
            return Err(Violation::Http2IdleStream);
        }
        if self.is_ignored(frame.stream) {
            return Ok(());
        }
        Err(Violation::Http2ClosedStream)
    }

    /// Whether a stream was not opened yet, or is of a kind that is never opened.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        let last = if self.has(flag::SERVER) {
            self.last_peer_stream
        } else {
            // The first is 1, so the difference keeps above zero.
            self.next_stream.saturating_sub(2)
        };
        id.is_multiple_of(2) || id > last
    }

    /// Whether frames of a stream are ignored: we have reset it, or will not process it.
    pub(super) fn is_ignored(&self, id: u32) -> bool {
        let (first, last) = self.reset_streams;
        (first..=last).contains(&id) && first > 0
            || self.has(flag::LEAVING) && self.has(flag::SERVER) && id > self.last_promised
    }

    /// Counts a frame that is neither a request nor data.
    #[inline]
    pub(super) fn count_control_frame(&mut self) -> Result<(), Violation> {
        self.control_frames = self.control_frames.saturating_add(1);
        if self.control_frames > self.config.control_frames {
            return Err(Violation::Http2TooManyControlFrames);
        }
        Ok(())
    }

    /// Counts a frame without content.
    #[cold]
    pub(super) fn count_empty_frame(&mut self) -> Result<(), Violation> {
        self.empty_frames = self.empty_frames.saturating_add(1);
        if self.empty_frames > self.config.empty_frames {
            return Err(Violation::Http2TooManyEmptyFrames);
        }
        Ok(())
    }

    /// Counts a stream that came to nothing.
    pub(super) fn count_reset(&mut self) -> Result<(), Violation> {
        self.resets = self.resets.saturating_add(1);
        if self.has(flag::SERVER) && self.resets > self.config.resets {
            return Err(Violation::Http2TooManyResets);
        }
        Ok(())
    }

    /// The next stream that the peer's GOAWAY leaves unprocessed.
    #[cold]
    fn next_unprocessed(&mut self) -> Option<Event<'static>> {
        let last = self.go_away.as_ref().map_or(u32::MAX, |go_away| go_away.last_stream);
        match self.streams.pop_after(last) {
            Some(stream) => {
                let code = ErrorCode::REFUSED_STREAM;
                Some(Event::Reset { stream: StreamId(stream.id), tag: stream.tag, code })
            }
            None => {
                self.flags &= !flag::UNPROCESSED;
                None
            }
        }
    }
}
