//! Bytes to frames and messages (RFC 6455 5), in place and without memory of its own: the state of
//! a connection between reads is one [`Decoder`] of 16 bytes. Not here: assembling fragments and
//! answering control frames.

use super::utf8::{self, Utf8Carry};
use super::{CONTROL_BYTES_MAX, CloseCode, OpCode, mask};
use crate::{Limits, Role, Status, Violation};

/// The result of one call of [`Decoder::decode`]. All data is unmasked and borrows the buffer.
#[derive(Eq, PartialEq, Debug)]
pub enum Event<'b> {
    /// A complete message in one frame. Text is valid UTF-8.
    Message {
        /// `Text` or `Binary`.
        opcode: OpCode,
        /// The payload.
        data: &'b mut [u8],
        /// It is compressed (RFC 7692): text is not checked, and the limit applies to these
        /// compressed bytes.
        deflated: bool,
    },
    /// A piece of a message that is fragmented, or whose frame has only partly arrived. Empty only
    /// if the frame is empty. Text is valid so far, but may end within a character.
    Fragment {
        /// The message's opcode: `Text` or `Binary`.
        opcode: OpCode,
        /// The next bytes of the message.
        data: &'b mut [u8],
        /// The message is complete with this piece.
        last: bool,
        /// As in a complete message.
        deflated: bool,
    },
    /// To be answered with a pong of the same payload.
    Ping(&'b mut [u8]),
    /// The answer to a ping, or unsolicited.
    Pong(&'b mut [u8]),
    /// The peer's last frame. Without a code the payload was empty.
    Close {
        /// The peer's reason as a code.
        code: Option<CloseCode>,
        /// Free text, at most 123 bytes.
        reason: &'b str,
    },
}

/// The state of one direction of a WebSocket between reads.
///
/// Feed it the bytes at hand until it returns `Partial`, each time passing what was not consumed;
/// then keep the unconsumed bytes (a partial header or control frame, fewer than 139) in front of
/// the next read. After a close frame it always returns `Partial` and consumes nothing: discard
/// what follows a close frame. A violation is final; the decoder must not be used after it.
///
/// ```
/// use wire::websocket::{Decoder, Event, OpCode, encode_masked};
/// use wire::{Limits, Role, Status, Violation};
///
/// let mut read = Vec::new();
/// encode_masked(&mut read, OpCode::Text, b"hello", [1, 2, 3, 4]);
/// encode_masked(&mut read, OpCode::Ping, b"?", [5, 6, 7, 8]);
/// read.pop(); // The last byte has not arrived yet.
///
/// let (mut decoder, limits, mut at) = (Decoder::default(), Limits::default(), 0);
/// let mut received = Vec::new();
/// while let Status::Complete((used, event)) =
///     decoder.decode(Role::Server, &limits, &mut read[at..])?
/// {
///     if let Event::Message { data, .. } = event {
///         received.extend_from_slice(data);
///     }
///     at += used;
/// }
/// assert_eq!(received, b"hello");
/// assert_eq!(read.len() - at, 6); // To be kept: a ping without its payload.
/// # Ok::<(), Violation>(())
/// ```
///
/// RSV1 is a violation unless permessage-deflate (RFC 7692) was negotiated, see
/// [`Decoder::enable_deflate`]. Then compressed messages are delivered as they arrived; the caller
/// inflates them and checks their length and UTF-8 after that.
#[derive(Copy, Clone, Default, Debug)]
pub struct Decoder {
    /// Remaining payload bytes of the current data frame.
    remaining: u32,
    /// Payload bytes announced by the frames of the current message so far.
    message_bytes: u32,
    /// Of the current data frame, rotated so that its first byte meets the next payload byte.
    mask: [u8; 4],
    utf8: Utf8Carry,
    flags: Flags,
}

const _: () = assert!(size_of::<Decoder>() == 16 && align_of::<Decoder>() == 4);

/// The opcode of the current message in the low bits (0: none), and the flags below.
#[derive(Copy, Clone, Default, Debug)]
struct Flags(u8);

impl Flags {
    const OPCODE: u8 = 0b0011;
    /// The current data frame is the last of its message.
    const FIN: u8 = 0b0100;
    /// A close frame was decoded.
    const CLOSED: u8 = 0b1000;
    /// The current message is compressed.
    const DEFLATED: u8 = 0b1_0000;
    /// Messages may be compressed, for the life of the connection.
    const DEFLATE: u8 = 0b10_0000;

    fn message(self) -> Option<OpCode> {
        match self.0 & Self::OPCODE {
            0 => None,
            1 => Some(OpCode::Text),
            _ => Some(OpCode::Binary),
        }
    }
}

/// A checked frame header.
struct Header {
    opcode: OpCode,
    fin: bool,
    /// Begins a compressed message.
    deflated: bool,
    /// Of the payload, at most the message limit.
    payload_bytes: u32,
    mask: [u8; 4],
    header_bytes: usize,
}

type Decoded<'b> = Result<Status<(usize, Event<'b>)>, Violation>;

impl Decoder {
    /// Decodes the next event from the front of `buf`, unmasking in place. `Complete` contains the
    /// number of bytes consumed, including the data.
    ///
    /// # Errors
    /// The peer's [`Violation`], decided as early as the bytes allow: from the header before any of
    /// the payload, and for text at the first byte that cannot be UTF-8.
    #[inline]
    pub fn decode<'b>(&mut self, role: Role, limits: &Limits, buf: &'b mut [u8]) -> Decoded<'b> {
        // A complete small data frame between messages: the case of nearly every frame.
        let masked = role == Role::Server;
        let start = if masked { 6 } else { 2 };
        if self.flags.0 & !Flags::DEFLATE == 0
            && let Some(&[first @ (0x81 | 0x82), second]) = buf.first_chunk()
            && (second >= 0x80) == masked
            && let payload_bytes = second & 0x7F
            && usize::from(payload_bytes) <= CONTROL_BYTES_MAX
            && u32::from(payload_bytes) <= limits.message_bytes
            && let end = start + usize::from(payload_bytes)
            && end <= buf.len()
        {
            let text = first == 0x81;
            let data = small_payload(text, start, buf.get_mut(..end).unwrap_or_default())?;
            let opcode = if text { OpCode::Text } else { OpCode::Binary };
            return Ok(Status::Complete((end, Event::Message { opcode, data, deflated: false })));
        }
        self.decode_any(role, limits, buf)
    }

    /// Accepts compressed messages from now on: permessage-deflate was negotiated.
    pub fn enable_deflate(&mut self) {
        self.flags.0 |= Flags::DEFLATE;
    }

    /// Whether a close frame was decoded.
    #[inline]
    pub const fn is_closed(&self) -> bool {
        self.flags.0 & Flags::CLOSED != 0
    }

    /// Whether a message has begun and not ended.
    #[inline]
    pub const fn is_within_message(&self) -> bool {
        self.flags.0 & Flags::OPCODE != 0
    }

    fn decode_any<'b>(&mut self, role: Role, limits: &Limits, buf: &'b mut [u8]) -> Decoded<'b> {
        if self.is_closed() {
            return Ok(Status::Partial);
        }
        if self.remaining > 0 {
            return match self.flags.message() {
                Some(opcode) if !buf.is_empty() => self.payload(role, opcode, 0, buf),
                _ => Ok(Status::Partial),
            };
        }
        let Some(header) = self.header(role, limits, buf)? else { return Ok(Status::Partial) };
        if header.opcode.is_control() {
            return self.control(role, &header, buf);
        }
        if header.payload_bytes > 0 && buf.len() == header.header_bytes {
            return Ok(Status::Partial);
        }
        self.begin_frame(role, &header, buf)
    }

    /// The next frame's header, checked; `None` if it is incomplete.
    fn header(&self, role: Role, limits: &Limits, buf: &[u8]) -> Result<Option<Header>, Violation> {
        let Some((&[first, second], rest)) = buf.split_first_chunk() else { return Ok(None) };
        let fin = first & 0x80 != 0;
        let rsv = first & 0x70;
        let deflated =
            rsv == 0x40 && self.flags.0 & Flags::DEFLATE != 0 && matches!(first & 0x0F, 1 | 2);
        if rsv != 0 && !deflated {
            return Err(Violation::ReservedBits);
        }
        let opcode = OpCode::from_byte(first).ok_or(Violation::ReservedOpCode)?;
        let length = second & 0x7F;
        match opcode {
            _ if opcode.is_control() => {
                if !fin {
                    return Err(Violation::FragmentedControl);
                }
                if usize::from(length) > CONTROL_BYTES_MAX {
                    return Err(Violation::ControlTooLong);
                }
            }
            OpCode::Continuation if !self.is_within_message() => {
                return Err(Violation::UnexpectedContinuation);
            }
            OpCode::Text | OpCode::Binary if self.is_within_message() => {
                return Err(Violation::InterruptedMessage);
            }
            _ => {}
        }
        match (role, second & 0x80 != 0) {
            (Role::Server, false) => return Err(Violation::UnmaskedFrame),
            (Role::Client, true) => return Err(Violation::MaskedFrame),
            _ => {}
        }

        let Some((length, rest)) = payload_length(length, rest)? else { return Ok(None) };
        let allowed = limits.message_bytes.saturating_sub(self.message_bytes);
        let payload_bytes = match u32::try_from(length) {
            Ok(bytes) if bytes <= allowed || opcode.is_control() => bytes,
            _ => return Err(Violation::MessageTooBig),
        };
        let (mask, rest) = match (role, rest.split_first_chunk()) {
            (Role::Client, _) => ([0; 4], rest),
            (Role::Server, Some((mask, rest))) => (*mask, rest),
            (Role::Server, None) => return Ok(None),
        };
        let header_bytes = buf.len() - rest.len();
        Ok(Some(Header { opcode, fin, deflated, payload_bytes, mask, header_bytes }))
    }

    /// A control frame: complete or not at all.
    fn control<'b>(&mut self, role: Role, header: &Header, buf: &'b mut [u8]) -> Decoded<'b> {
        let end = header.header_bytes + header.payload_bytes as usize;
        let Some(data) = buf.get_mut(header.header_bytes..end) else { return Ok(Status::Partial) };
        if role == Role::Server {
            mask::apply(data, header.mask);
        }
        let event = match header.opcode {
            OpCode::Ping => Event::Ping(data),
            OpCode::Pong => Event::Pong(data),
            _ => {
                let event = close(data)?;
                self.flags.0 |= Flags::CLOSED;
                event
            }
        };
        Ok(Status::Complete((end, event)))
    }

    /// A data frame of which at least one payload byte has arrived, or that has none.
    fn begin_frame<'b>(&mut self, role: Role, header: &Header, buf: &'b mut [u8]) -> Decoded<'b> {
        let begun = self.flags.message();
        let opcode = begun.unwrap_or(header.opcode);
        self.remaining = header.payload_bytes;
        self.message_bytes += header.payload_bytes;
        self.mask = header.mask;
        let kept = self.flags.0 & (Flags::DEFLATE | Flags::DEFLATED);
        let fin = if header.fin { Flags::FIN } else { 0 };
        let deflated = if header.deflated { Flags::DEFLATED } else { 0 };
        self.flags = Flags(opcode as u8 | kept | fin | deflated);

        let complete = buf.len() - header.header_bytes >= header.payload_bytes as usize;
        match self.payload(role, opcode, header.header_bytes, buf)? {
            Status::Complete((end, Event::Fragment { opcode, data, last: true, deflated }))
                if complete && begun.is_none() =>
            {
                Ok(Status::Complete((end, Event::Message { opcode, data, deflated })))
            }
            fragment => Ok(fragment),
        }
    }

    /// The available payload bytes of the current data frame, from `start` on.
    fn payload<'b>(
        &mut self,
        role: Role,
        opcode: OpCode,
        start: usize,
        buf: &'b mut [u8],
    ) -> Decoded<'b> {
        let end = buf.len().min(start.saturating_add(self.remaining as usize));
        let Some(data) = buf.get_mut(start..end) else {
            debug_assert!(false, "a header ends within the buffer it was read from");
            return Ok(Status::Partial);
        };
        let mut ascii = false;
        if role == Role::Server {
            ascii = mask::apply(data, self.mask);
            self.mask.rotate_left(data.len() % 4);
        }
        // At most `remaining`, so the cast keeps the value.
        self.remaining -= data.len() as u32;
        let last = self.remaining == 0 && self.flags.0 & Flags::FIN != 0;

        let deflated = self.flags.0 & Flags::DEFLATED != 0;
        if opcode == OpCode::Text && !deflated {
            let plain = ascii && self.utf8.is_empty();
            if !plain && !self.utf8.check(data) || last && !self.utf8.is_empty() {
                return Err(Violation::InvalidUtf8);
            }
        }
        if last {
            let flags = Flags(self.flags.0 & Flags::DEFLATE);
            *self = Decoder { flags, ..Decoder::default() };
        }
        Ok(Status::Complete((end, Event::Fragment { opcode, data, last, deflated })))
    }
}

/// The payload of a complete frame whose header has `start` bytes, unmasked if that contains a
/// mask.
#[inline]
fn small_payload(text: bool, start: usize, frame: &mut [u8]) -> Result<&mut [u8], Violation> {
    let (header, data) = frame.split_at_mut_checked(start).unwrap_or_default();
    let ascii = match *header {
        [_, _, a, b, c, d] => mask::apply(data, [a, b, c, d]),
        _ => data.is_ascii(),
    };
    if text && !ascii && !utf8::is_valid(data) {
        return Err(Violation::InvalidUtf8);
    }
    Ok(data)
}

/// The payload length from the second byte and those after it, in its shortest form only, and what
/// follows it; `None` if it is incomplete (RFC 6455 5.2).
fn payload_length(length: u8, rest: &[u8]) -> Result<Option<(u64, &[u8])>, Violation> {
    let (length, floor, rest) = match length {
        126 => {
            let Some((bytes, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (u64::from(u16::from_be_bytes(*bytes)), 126, rest)
        }
        127 => {
            let Some((bytes, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (u64::from_be_bytes(*bytes), 0x1_0000, rest)
        }
        _ => (u64::from(length), 0, rest),
    };
    if length >> 63 != 0 {
        return Err(Violation::LengthTopBit);
    }
    if length < floor {
        return Err(Violation::LengthNotMinimal);
    }
    Ok(Some((length, rest)))
}

/// The payload of a close frame (RFC 6455 5.5.1, 7.4).
fn close(data: &[u8]) -> Result<Event<'_>, Violation> {
    let Some((code, reason)) = data.split_first_chunk() else {
        return match data {
            [] => Ok(Event::Close { code: None, reason: "" }),
            _ => Err(Violation::CloseTooShort),
        };
    };
    let code = CloseCode(u16::from_be_bytes(*code));
    if !code.is_sendable() {
        return Err(Violation::CloseCodeInvalid);
    }
    let reason = core::str::from_utf8(reason).map_err(|_| Violation::CloseReasonUtf8)?;
    Ok(Event::Close { code: Some(code), reason })
}
