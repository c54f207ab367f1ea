//! Frames about the connection and its streams: SETTINGS, PING, GOAWAY, RST_STREAM, WINDOW_UPDATE.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::super::frame::{FrameHeader, FrameType, STREAM_MAX, WINDOW_MAX, flags};
use super::super::frame::{encode_ping, encode_settings_ack};
use super::super::settings::{Settings, id};
use super::super::streams::Stream;
use super::receive::Handled;
use super::{Connection, Event, GoAway, PeerSettings, StreamId, flag};
use crate::Violation;
use crate::http2::ErrorCode;

/// Bytes of a GOAWAY's debug data that are kept.
const DEBUG_BYTES_MAX: usize = 256;

impl Connection {
    /// Handles a complete frame whose length was checked.
    pub(super) fn control(
        &mut self,
        frame: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Handled {
        match frame.kind {
            FrameType::RST_STREAM => self.rst_stream(frame, payload),
            _ => {
                self.count_control_frame()?;
                match frame.kind {
                    FrameType::SETTINGS if frame.has(flags::ACK) => {
                        self.settings_acknowledged();
                        Ok(None)
                    }
                    FrameType::SETTINGS => self.settings(payload, out),
                    FrameType::GOAWAY => Ok(Some(self.goaway(payload))),
                    FrameType::PING => Ok(self.pinged(frame, payload, out)),
                    FrameType::WINDOW_UPDATE => self.window_update(frame, payload, out),
                    // PRIORITY says nothing (RFC 9113 5.3.2).
                    _ => Ok(None),
                }
            }
        }
    }

    /// SETTINGS (RFC 9113 6.5): all are applied, in order, before they are acknowledged.
    fn settings(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Handled {
        let is_server = self.has(flag::SERVER);
        let mut settings = if self.has(flag::SETTINGS) {
            self.peer.settings(self.has(flag::CONNECT_PROTOCOL))
        } else {
            Settings::default()
        };
        for entry in payload.chunks_exact(6) {
            let &[a, b, c, d, e, f] = entry else { continue };
            let (id, value) = (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]));
            settings.apply(id, value)?;
            match id {
                id::HEADER_TABLE_SIZE => self.encoder.set_limit(value),
                // A server must not set it to 1 (RFC 9113 6.5.2).
                id::ENABLE_PUSH if !is_server && value == 1 => {
                    return Err(Violation::Http2BadSetting);
                }
                id::INITIAL_WINDOW_SIZE => self.check_windows(value)?,
                _ => {}
            }
        }
        self.peer = PeerSettings {
            max_concurrent_streams: settings.max_concurrent_streams,
            initial_window_bytes: settings.initial_window_bytes,
            max_frame_bytes: settings.max_frame_bytes,
            max_header_list_bytes: settings.max_header_list_bytes,
        };
        self.flags |= flag::SETTINGS;
        if settings.enable_connect_protocol && !is_server {
            self.flags |= flag::CONNECT_PROTOCOL;
        }
        encode_settings_ack(out);
        Ok(Some(Event::Settings))
    }

    /// Whether a new initial window keeps the windows of all streams within the largest size (RFC 9113
    /// 6.9.2). They are looked at only if one may exceed it.
    fn check_windows(&mut self, initial: u32) -> Result<(), Violation> {
        let exceeds = |delta: i32| i64::from(initial) + i64::from(delta) > i64::from(WINDOW_MAX);
        if exceeds(self.send_delta_max) {
            let deltas = self.streams.iter().map(|stream| stream.send_delta);
            self.send_delta_max = deltas.max().unwrap_or(0).max(0);
            if exceeds(self.send_delta_max) {
                return Err(Violation::Http2BadWindowSetting);
            }
        }
        Ok(())
    }

    /// From now on the peer keeps to our settings (RFC 9113 6.5.3).
    fn settings_acknowledged(&mut self) {
        if !self.has(flag::ACKNOWLEDGED) {
            self.flags |= flag::ACKNOWLEDGED;
            self.stream_window = self.config.stream_window();
            self.decoder.set_limit(self.config.header_table_bytes);
        }
    }

    /// PING (RFC 9113 6.7).
    fn pinged(
        &mut self,
        frame: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Event<'static>> {
        let payload = *payload.first_chunk()?;
        if frame.has(flags::ACK) {
            return Some(Event::Pong(payload));
        }
        encode_ping(out, payload, true);
        None
    }

    /// GOAWAY (RFC 9113 6.8). A later one does not take a stream back.
    fn goaway(&mut self, payload: &[u8]) -> Event<'static> {
        let (last_stream, code, debug) = match payload {
            &[a, b, c, d, e, f, g, h, ref debug @ ..] => {
                (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]), debug)
            }
            _ => (0, ErrorCode::PROTOCOL_ERROR.0, payload),
        };
        let before = self.go_away.as_ref().map_or(STREAM_MAX, |go_away| go_away.last_stream);
        let last_stream = (last_stream & STREAM_MAX).min(before);
        let debug = debug.get(..debug.len().min(DEBUG_BYTES_MAX)).unwrap_or_default().to_vec();
        self.go_away = Some(Box::new(GoAway { last_stream, debug }));
        if !self.has(flag::SERVER) {
            self.flags |= flag::UNPROCESSED;
        }
        Event::GoAway { last_stream, code: ErrorCode(code) }
    }

    /// RST_STREAM (RFC 9113 6.4).
    fn rst_stream(&mut self, frame: FrameHeader, payload: &[u8]) -> Handled {
        if let Some(stream) = self.streams.remove(frame.stream) {
            // Streams whose response has begun may end so, as those of server-sent events do.
            if !stream.has(Stream::RESPONDED) {
                self.count_reset()?;
            }
            let code = ErrorCode(payload.first_chunk().map_or(0, |code| u32::from_be_bytes(*code)));
            return Ok(Some(Event::Reset {
                stream: StreamId(frame.stream),
                tag: stream.tag,
                code,
            }));
        }
        if self.is_idle(frame.stream) {
            return Err(Violation::Http2IdleStream);
        }
        self.count_control_frame()?;
        Ok(None)
    }

    /// WINDOW_UPDATE (RFC 9113 6.9).
    fn window_update(&mut self, frame: FrameHeader, payload: &[u8], out: &mut Vec<u8>) -> Handled {
        let increment = payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let increment = i64::from(increment & WINDOW_MAX);
        if frame.stream == 0 {
            if increment == 0 {
                return Err(Violation::Http2ZeroIncrement);
            }
            self.send_window = i32::try_from(i64::from(self.send_window) + increment)
                .map_err(|_| Violation::Http2WindowOverflow)?;
            let opened = self.has(flag::BLOCKED) && self.send_window > 0;
            if opened {
                self.flags &= !flag::BLOCKED;
            }
            return Ok(opened.then_some(Event::WindowOpened(None)));
        }
        let initial = i64::from(self.peer.initial_window_bytes);
        let Some(stream) = self.streams.get_mut(frame.stream) else {
            if self.is_idle(frame.stream) {
                return Err(Violation::Http2IdleStream);
            }
            return Ok(None);
        };
        let delta = i64::from(stream.send_delta) + increment;
        let violation = if increment == 0 {
            Violation::Http2ZeroIncrement
        } else if initial + delta > i64::from(WINDOW_MAX) {
            Violation::Http2WindowOverflow
        } else {
            // The sum is at most 2^31 - 1 and the initial window not negative, so the cast keeps the
            // value.
            stream.send_delta = delta as i32;
            self.send_delta_max = self.send_delta_max.max(stream.send_delta);
            if !stream.has(Stream::BLOCKED) || initial + delta <= 0 {
                return Ok(None);
            }
            stream.flags &= !Stream::BLOCKED;
            let opened = (StreamId(stream.id), stream.tag);
            return Ok(Some(Event::WindowOpened(Some(opened))));
        };
        self.count_reset()?;
        Ok(Some(self.fail_stream(frame.stream, violation, out)))
    }
}

impl PeerSettings {
    fn settings(self, enable_connect_protocol: bool) -> Settings {
        Settings {
            max_concurrent_streams: self.max_concurrent_streams,
            initial_window_bytes: self.initial_window_bytes,
            max_frame_bytes: self.max_frame_bytes,
            max_header_list_bytes: self.max_header_list_bytes,
            enable_connect_protocol,
            ..Settings::default()
        }
    }
}
