//! What we send: heads, data within the windows, resets, pings and GOAWAY.

use alloc::vec::Vec;

use super::super::frame::{
    FRAME_HEADER_BYTES, FrameHeader, FrameType, STREAM_MAX, encode_go_away, encode_ping,
    encode_rst_stream, encode_window_update, finish_headers, flags,
};
use super::super::hpack::Shape;
use super::super::streams::Stream;
use super::{Connection, Phase, Refused, StreamEnded, StreamId, flag};
use crate::http2::ErrorCode;
use crate::{Role, Violation};

impl Connection {
    /// Opens a stream and sends the head of a request, pseudo-fields first; `end_stream` if it has no
    /// body. The fields are not checked.
    ///
    /// # Errors
    /// The reason why no stream can be opened; then nothing was appended.
    pub fn open<'f>(
        &mut self,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        end_stream: bool,
        tag: u32,
        out: &mut Vec<u8>,
    ) -> Result<StreamId, Refused> {
        if let Some(refused) = self.refusal() {
            return Err(refused);
        }
        let mut method = 0;
        let fields = fields.into_iter().inspect(|(name, value)| {
            if *name == b":method" {
                method = method_flag(value);
            }
        });
        let start = begin_headers(out);
        self.encoder.encode(fields, out);
        Ok(self.opened(start, method, end_stream, tag, out))
    }

    /// As [`open`](Connection::open), with a shape of fields and the values of those that change. Its
    /// `:method` must not be one of them.
    ///
    /// # Errors
    /// The reason why no stream can be opened; then nothing was appended.
    #[inline]
    pub fn open_shape<'v>(
        &mut self,
        shape: &mut Shape,
        values: impl IntoIterator<Item = &'v [u8]>,
        end_stream: bool,
        tag: u32,
        out: &mut Vec<u8>,
    ) -> Result<StreamId, Refused> {
        if let Some(refused) = self.refusal() {
            return Err(refused);
        }
        let method = shape.fixed(b":method").map_or(0, method_flag);
        let start = begin_headers(out);
        self.encoder.encode_shape(shape, values, out);
        Ok(self.opened(start, method, end_stream, tag, out))
    }

    /// Why no stream can be opened now.
    #[inline]
    pub(super) fn refusal(&self) -> Option<Refused> {
        if self.is_going_away() {
            Some(Refused::GoingAway)
        } else if self.next_stream > STREAM_MAX {
            Some(Refused::NoIdentifiers)
        } else if self.streams.len() >= self.peer.max_concurrent_streams {
            Some(Refused::TooManyStreams)
        } else {
            None
        }
    }

    /// Completes the HEADERS of a new stream.
    #[inline]
    fn opened(
        &mut self,
        start: usize,
        method: u16,
        end_stream: bool,
        tag: u32,
        out: &mut Vec<u8>,
    ) -> StreamId {
        debug_assert!(self.role() == Role::Client, "a server opens no streams");
        let id = self.next_stream;
        finish_headers(out, start, id, end_stream, self.peer.max_frame_bytes);
        self.next_stream += 2;
        let end = if end_stream { Stream::LOCAL_END } else { 0 };
        self.streams.push(Stream::new(id, tag, method | end));
        self.useful();
        StreamId(id)
    }

    /// Sends the head of a response, `:status` first; `end_stream` if it has no body. The fields are
    /// not checked.
    ///
    /// # Errors
    /// The stream has ended; nothing was appended.
    pub fn respond<'f>(
        &mut self,
        stream: StreamId,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamEnded> {
        self.sending(stream)?;
        let start = begin_headers(out);
        self.encoder.encode(fields, out);
        self.sent_head(stream, start, end_stream, out);
        Ok(())
    }

    /// As [`respond`](Connection::respond), with a shape of fields and the values of those that change.
    ///
    /// # Errors
    /// The stream has ended; nothing was appended.
    pub fn respond_shape<'v>(
        &mut self,
        stream: StreamId,
        shape: &mut Shape,
        values: impl IntoIterator<Item = &'v [u8]>,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamEnded> {
        self.sending(stream)?;
        let start = begin_headers(out);
        self.encoder.encode_shape(shape, values, out);
        self.sent_head(stream, start, end_stream, out);
        Ok(())
    }

    /// Sends the head of an interim response, `:status` first.
    ///
    /// # Errors
    /// The stream has ended; nothing was appended.
    pub fn respond_interim<'f>(
        &mut self,
        stream: StreamId,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamEnded> {
        self.sending(stream)?;
        let start = begin_headers(out);
        self.encoder.encode(fields, out);
        finish_headers(out, start, stream.0, false, self.peer.max_frame_bytes);
        Ok(())
    }

    /// Sends trailers, which end the stream.
    ///
    /// # Errors
    /// The stream has ended; nothing was appended.
    pub fn send_trailers<'f>(
        &mut self,
        stream: StreamId,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamEnded> {
        self.respond(stream, fields, true, out)
    }

    fn sending(&self, stream: StreamId) -> Result<&Stream, StreamEnded> {
        match self.streams.get(stream.0) {
            Some(stream) if !stream.has(Stream::LOCAL_END) => Ok(stream),
            _ => Err(StreamEnded),
        }
    }

    /// Completes the HEADERS of a head or of trailers.
    fn sent_head(&mut self, id: StreamId, start: usize, end_stream: bool, out: &mut Vec<u8>) {
        finish_headers(out, start, id.0, end_stream, self.peer.max_frame_bytes);
        self.useful();
        if let Some(stream) = self.streams.get_mut(id.0) {
            stream.flags |= Stream::RESPONDED;
        }
        if end_stream {
            self.end_local(id);
        }
    }

    /// Sends as much of `data` as the windows allow, in DATA frames. Returns how many bytes that is;
    /// if fewer than given, [`Event::WindowOpened`](super::Event::WindowOpened) tells when to go on.
    /// `end_stream` ends the stream if all is taken; without data that needs no window.
    ///
    /// # Errors
    /// The stream has ended; nothing was appended.
    pub fn send_data(
        &mut self,
        stream: StreamId,
        data: &[u8],
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> Result<usize, StreamEnded> {
        let mut sent = 0;
        loop {
            let rest = data.get(sent..).unwrap_or_default();
            let Some((header, taken)) = self.data_frame(stream, rest.len(), end_stream)? else {
                return Ok(sent);
            };
            out.extend_from_slice(&header);
            out.extend_from_slice(rest.get(..taken).unwrap_or_default());
            sent += taken;
            if sent == data.len() {
                return Ok(sent);
            }
        }
    }

    /// The header of one DATA frame for at most that many bytes, and how many of them the caller has to
    /// send behind it: for data that is not copied. `None` if the windows allow nothing now, or if there
    /// is nothing to send.
    ///
    /// # Errors
    /// The stream has ended.
    #[inline]
    pub fn data_frame(
        &mut self,
        stream: StreamId,
        bytes: usize,
        end_stream: bool,
    ) -> Result<Option<([u8; FRAME_HEADER_BYTES], usize)>, StreamEnded> {
        let allowed = self.sendable(self.sending(stream)?.send_delta);
        let taken = bytes.min(allowed).min(self.peer.max_frame_bytes as usize);
        let Some(state) = self.streams.get_mut(stream.0) else { return Err(StreamEnded) };
        if taken < bytes && taken == allowed {
            state.flags |= Stream::BLOCKED;
            if self.send_window <= 0 || self.send_window as usize == taken {
                self.flags |= flag::BLOCKED;
            }
        }
        let ends = end_stream && taken == bytes;
        if taken == 0 && !ends {
            return Ok(None);
        }
        // At most the window, so the casts keep the value.
        state.send_delta -= taken as i32;
        self.send_window -= taken as i32;
        self.useful();
        if ends {
            self.end_local(stream);
        }
        let header = FrameHeader {
            payload_bytes: taken as u32,
            kind: FrameType::DATA,
            flags: if ends { flags::END_STREAM } else { 0 },
            stream: stream.0,
        };
        Ok(Some((header.to_bytes(), taken)))
    }

    /// We sent END_STREAM.
    fn end_local(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get_mut(stream.0) else { return };
        state.flags |= Stream::LOCAL_END;
        if state.is_over() {
            self.end_stream(stream.0);
        }
    }

    /// A stream ended regularly on both sides.
    pub(super) fn end_stream(&mut self, stream: u32) {
        self.streams.remove(stream);
        self.resets = self.resets.saturating_sub(1);
    }

    /// Whether a DATA frame of this stream is being received.
    pub(super) fn reads_data_of(&self, stream: u32) -> bool {
        matches!(self.reader.phase, Phase::Data | Phase::Padding)
            && self.reader.frame().stream == stream
    }

    /// Resets a stream: sends RST_STREAM, and ignores what still arrives. Returns whether it had not
    /// ended before.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode, out: &mut Vec<u8>) -> bool {
        if self.streams.remove(stream.0).is_none() {
            return false;
        }
        encode_rst_stream(out, stream.0, code);
        self.ignore_stream(stream.0, out);
        true
    }

    /// Frames that still arrive on a stream that we have reset are ignored.
    pub(super) fn ignore_stream(&mut self, stream: u32, out: &mut Vec<u8>) {
        let (first, last) = self.reset_streams;
        let first = if first == 0 { stream } else { first.min(stream) };
        self.reset_streams = (first, last.max(stream));
        if self.reads_data_of(stream) {
            let begun = self.reader.phase != Phase::Padding;
            self.reader.phase = Phase::Skip;
            if !begun {
                // The frame has not been counted yet, and all of it is (RFC 9113 6.9).
                let payload = self.reader.left;
                self.receive_window = self.receive_window.saturating_sub_unsigned(payload);
                self.consume(payload, out);
            } else if self.config.explicit_release {
                let left = self.reader.left.saturating_sub(u32::from(self.reader.padding));
                self.consume(left, out);
            }
        }
    }

    /// Sends GOAWAY. A server promises to process the streams that it has returned so far, and no
    /// later ones. After an error the connection is to be closed.
    pub fn go_away(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        self.flags |= flag::LEAVING;
        self.last_promised = self.last_promised.min(self.last_peer_stream);
        encode_go_away(out, self.last_promised, code);
    }

    /// Announces that the connection will be shut down, to a client that may have requests on their
    /// way: they are still processed until [`go_away`](Connection::go_away) (RFC 9113 6.8).
    pub fn announce_shutdown(&mut self, out: &mut Vec<u8>) {
        encode_go_away(out, self.last_promised, ErrorCode::NO_ERROR);
    }

    /// Sends GOAWAY with the code of a violation that [`receive`](Connection::receive) returned.
    pub fn go_away_for(&mut self, violation: Violation, out: &mut Vec<u8>) {
        self.go_away(violation.http2_code(), out);
    }

    /// Sends a ping; the answer is [`Event::Pong`](super::Event::Pong) with the same payload.
    pub fn ping(&mut self, payload: [u8; 8], out: &mut Vec<u8>) {
        encode_ping(out, payload, false);
    }

    /// With [`Config::explicit_release`](super::super::Config::explicit_release): data of this stream was
    /// consumed, so that the peer may send as much again. To be called for all data that was returned,
    /// whether the stream has ended or not.
    pub fn release(&mut self, stream: StreamId, bytes: usize, out: &mut Vec<u8>) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.held);
        self.held -= bytes;
        self.consume(bytes, out);
        let window = self.config.stream_window();
        if let Some(stream) = self.streams.get_mut(stream.0)
            && !stream.has(Stream::REMOTE_END)
        {
            consume_stream(stream, bytes, window, out);
        }
    }

    /// Counts bytes of the connection's window as consumed, and returns them to the peer once they are
    /// half of the window.
    #[inline]
    pub(super) fn consume(&mut self, bytes: u32, out: &mut Vec<u8>) {
        self.consumed += bytes;
        if self.consumed >= self.config.connection_window() / 2 {
            encode_window_update(out, 0, self.consumed);
            self.receive_window += self.consumed as i32;
            self.consumed = 0;
        }
    }

    /// A frame with a purpose of its own: as many as four other frames belong to it.
    #[inline]
    pub(super) fn useful(&mut self) {
        self.control_frames = self.control_frames.saturating_sub(4);
    }
}

/// As [`Connection::consume`], of a stream whose window is that large.
#[inline]
pub(super) fn consume_stream(stream: &mut Stream, bytes: u32, window: u32, out: &mut Vec<u8>) {
    stream.consumed += bytes;
    if stream.consumed > 0 && stream.consumed >= window / 2 {
        encode_window_update(out, stream.id, stream.consumed);
        stream.receive_delta += stream.consumed as i32;
        stream.consumed = 0;
    }
}

/// Makes room for a frame header; returns where.
#[inline]
fn begin_headers(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    start
}

/// The flag of a method whose response has another body than its head says.
#[inline]
fn method_flag(method: &[u8]) -> u16 {
    match method {
        b"HEAD" => Stream::METHOD_HEAD,
        b"CONNECT" => Stream::METHOD_CONNECT,
        _ => 0,
    }
}
