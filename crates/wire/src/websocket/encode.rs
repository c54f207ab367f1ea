//! Frames to bytes (RFC 6455 5.2), appended to the caller's buffer. Not here: fragmentation policy,
//! and choosing mask keys, which a client must draw unpredictably for each frame (5.3).

use alloc::vec::Vec;

use super::{CONTROL_BYTES_MAX, CloseCode, HEADER_BYTES_MAX, OpCode, mask};

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
/// Set in the first frame of a compressed message (RFC 7692 6).
const RSV1: u8 = 0x40;

/// The header of one frame, on the stack; its payload is sent from where it is.
#[derive(Copy, Clone, Debug)]
pub struct FrameHeader {
    bytes: [u8; 16],
    len: u8,
}

const _: () = assert!(HEADER_BYTES_MAX <= 16);

impl FrameHeader {
    /// A header for a payload of `len` bytes, in the shortest form. With a mask, the payload is to
    /// be sent masked with the same key.
    #[inline]
    pub fn new(opcode: OpCode, fin: bool, len: usize, mask: Option<[u8; 4]>) -> FrameHeader {
        let first = opcode as u8 | if fin { FIN } else { 0 };
        let masked = if mask.is_some() { MASKED } else { 0 };
        let start = |second: u8| u128::from(u16::from_be_bytes([first, masked | second]));
        let (mut bits, mut bytes) = match len {
            0..=125 => (start(len as u8), 2),
            126..=0xFFFF => (start(126) << 16 | len as u128, 4),
            _ => (start(127) << 64 | len as u128, 10),
        };
        if let Some(key) = mask {
            bits = bits << 32 | u128::from(u32::from_be_bytes(key));
            bytes += 4;
        }
        FrameHeader { bytes: (bits << (128 - 8 * bytes)).to_be_bytes(), len: bytes }
    }

    /// The same header for the first frame of a compressed message (RFC 7692 6).
    #[must_use]
    pub fn deflated(mut self) -> FrameHeader {
        self.bytes[0] |= RSV1;
        self
    }

    /// The bytes to send, 2 to 14 of them.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

/// Appends a complete unmasked frame: what a server sends.
#[inline]
pub fn encode(out: &mut Vec<u8>, opcode: OpCode, data: &[u8]) {
    let first = FIN | opcode as u8;
    out.reserve(HEADER_BYTES_MAX + data.len());
    match data.len() {
        len @ 0..=125 => out.extend_from_slice(&[first, len as u8]),
        len => out.extend_from_slice(FrameHeader::new(opcode, true, len, None).as_slice()),
    }
    out.extend_from_slice(data);
}

/// Appends a complete masked frame: what a client sends.
#[inline]
pub fn encode_masked(out: &mut Vec<u8>, opcode: OpCode, data: &[u8], mask: [u8; 4]) {
    out.reserve(HEADER_BYTES_MAX + data.len());
    match data.len() {
        len @ 0..=125 => {
            let [a, b, c, d] = mask;
            out.extend_from_slice(&[FIN | opcode as u8, MASKED | len as u8, a, b, c, d]);
        }
        len => out.extend_from_slice(FrameHeader::new(opcode, true, len, Some(mask)).as_slice()),
    }
    let start = out.len();
    out.extend_from_slice(data);
    mask::apply(out.get_mut(start..).unwrap_or_default(), mask);
}

/// Appends a complete frame whose payload a [`Compressor`](super::Compressor) wrote; masked for a
/// client.
pub fn encode_deflated(out: &mut Vec<u8>, opcode: OpCode, payload: &[u8], mask: Option<[u8; 4]>) {
    out.reserve(HEADER_BYTES_MAX + payload.len());
    let header = FrameHeader::new(opcode, true, payload.len(), mask).deflated();
    out.extend_from_slice(header.as_slice());
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = mask {
        mask::apply(out.get_mut(start..).unwrap_or_default(), key);
    }
}

/// Appends a close frame. The reason is truncated at a character so that it fits in 123 bytes, and
/// left out without a code, as the frame has no place for it then. Masked for a client, not for a
/// server.
pub fn encode_close(
    out: &mut Vec<u8>,
    code: Option<CloseCode>,
    reason: &str,
    mask: Option<[u8; 4]>,
) {
    let longest = reason.len().min(CONTROL_BYTES_MAX - 2);
    let reason = (0..=longest).rev().find_map(|end| reason.get(..end)).unwrap_or_default();
    let len = if code.is_some() { 2 + reason.len() } else { 0 };
    out.extend_from_slice(FrameHeader::new(OpCode::Close, true, len, mask).as_slice());
    let start = out.len();
    if let Some(CloseCode(code)) = code {
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(reason.as_bytes());
    }
    if let Some(key) = mask {
        mask::apply(out.get_mut(start..).unwrap_or_default(), key);
    }
}
