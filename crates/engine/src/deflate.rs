//! permessage-deflate on a worker's connections (RFC 7692): who compresses with what, and which
//! contexts are kept. By default none are: one inflater and one compressor serve all connections of a
//! worker, so that negotiating compression costs an idle socket nothing. Not here: the codecs, see
//! [`wire::websocket::SingleCompressor`] and [`wire::websocket::Compressor`].

use wire::Violation;
use wire::websocket::{
    self, Compressor, Deflate, FrameHeader, Inflater, OpCode, SingleCompressor, is_utf8,
};

use crate::conn::{Cold, Conn, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::POOLED_BUFFER_BYTES;
use crate::polled::{LINES, encode_line};
use crate::sys::Sys;
use crate::worker::Worker;
use crate::{ConnId, Handler, Sent};

/// Whether messages are compressed, and what is kept between them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Compression is not negotiated.
    #[default]
    Off,
    /// Each message on its own, with state that all connections of a worker share.
    Shared,
    /// Each connection keeps its contexts between messages: smaller messages, for
    /// [`Compression::TAKEOVER_BYTES`] per socket.
    Takeover,
}

impl Compression {
    /// Memory of a socket once both of its contexts are in use, in bytes: measured, see
    /// `docs/operate/serve.md`.
    pub const TAKEOVER_BYTES: u64 = 310_000;
}

/// The negotiated parameters of a connection, in a byte: the window of its compressor as a power of
/// two (0: it sends uncompressed), and which contexts it keeps.
#[derive(Copy, Clone, Default)]
pub(crate) struct NegotiatedDeflate(u8);

impl NegotiatedDeflate {
    const BITS: u8 = 0x0F;
    const KEEPS_OUT: u8 = 0x10;
    const KEEPS_IN: u8 = 0x20;
    /// A window of 256 bytes is accepted for reading but not used for writing.
    const BITS_MIN: u8 = 9;

    pub(crate) fn as_server(deflate: &Deflate) -> NegotiatedDeflate {
        let keeps_out = if deflate.server_no_context_takeover { 0 } else { Self::KEEPS_OUT };
        let keeps_in = if deflate.client_no_context_takeover { 0 } else { Self::KEEPS_IN };
        NegotiatedDeflate(deflate.server_bits() & Self::BITS | keeps_out | keeps_in)
    }

    pub(crate) fn as_client(deflate: &Deflate) -> NegotiatedDeflate {
        let bits = deflate.client_bits();
        NegotiatedDeflate(if bits < Self::BITS_MIN { 0 } else { bits & Self::BITS })
    }

    #[inline]
    pub(crate) fn compresses(self) -> bool {
        self.0 & Self::BITS != 0
    }

    #[inline]
    pub(crate) fn keeps_out(self) -> bool {
        self.0 & Self::KEEPS_OUT != 0
    }

    fn keeps_in(self) -> bool {
        self.0 & Self::KEEPS_IN != 0
    }

    fn bits(self) -> u8 {
        self.0 & Self::BITS
    }
}

/// The contexts that a connection keeps between messages, if that was negotiated.
#[derive(Default)]
pub(crate) struct Contexts {
    compressor: Option<Compressor>,
    inflater: Option<Inflater>,
}

impl Contexts {
    /// Memory that they take, in bytes: as measured, [`Compression::TAKEOVER_BYTES`] together.
    pub(crate) fn held(&self) -> usize {
        let compressor = if self.compressor.is_some() { 260_000 } else { 0 };
        compressor + if self.inflater.is_some() { 50_000 } else { 0 }
    }
}

/// The codecs that a worker's connections share, created when first needed.
#[derive(Default)]
pub(crate) struct SharedCodec {
    compressor: SingleCompressor,
    inflater: Option<Box<Inflater>>,
    compressed: Vec<u8>,
    inflated: Vec<u8>,
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Processes a complete compressed message.
    #[inline(never)]
    pub(crate) fn on_deflated(&mut self, id: ConnId, opcode: OpCode, data: &[u8]) {
        let core = &mut self.core;
        let mut message = std::mem::take(&mut core.codec.inflated);
        message.clear();
        match core.inflate(id.slot(), opcode, data, &mut message) {
            Ok(()) => {
                core.counters().messages_in.add(1);
                self.handler.message(core, id, opcode, &mut message);
            }
            Err(violation) => core.on_violation(id.slot(), violation),
        }
        message.shrink_to(POOLED_BUFFER_BYTES);
        self.core.codec.inflated = message;
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// How messages for this connection are encoded: connections with the same number get the same
    /// bytes. For groups of receivers, see [`Core::encode_message`].
    #[must_use]
    pub fn encoding(&self, id: ConnId) -> u32 {
        let encoding = |conn: &Conn<H::User>| match conn.mode {
            Mode::Polled => LINES,
            _ => conn.deflate.bits(),
        };
        self.live(id).map_or(0, |conn| encoding(conn).into())
    }

    /// Appends a message as a frame for accepted connections with this [encoding](Core::encoding),
    /// for [`Core::send_shared`].
    pub fn encode_message(
        &mut self,
        encoding: u32,
        opcode: OpCode,
        data: &[u8],
        out: &mut Vec<u8>,
    ) {
        let bits = encoding as u8 & NegotiatedDeflate::BITS;
        if bits == LINES {
            return encode_line(data, out);
        }
        if bits == 0 || data.len() < self.limits.compress_above_bytes {
            return websocket::encode(out, opcode, data);
        }
        let mut compressed = std::mem::take(&mut self.codec.compressed);
        compressed.clear();
        self.codec.compressor.compress(bits, data, &mut compressed);
        self.count_compressed(data, &compressed);
        if compressed.len() < data.len() {
            let header = FrameHeader::new(opcode, true, compressed.len(), None).deflated();
            out.extend_from_slice(header.as_slice());
            out.extend_from_slice(&compressed);
        } else {
            websocket::encode(out, opcode, data);
        }
        self.give_compressed(compressed);
    }

    /// Sends a message compressed, unless that makes it longer.
    #[inline(never)]
    pub(crate) fn send_deflated(&mut self, slot: u32, opcode: OpCode, data: &[u8]) -> Sent {
        let mut compressed = std::mem::take(&mut self.codec.compressed);
        compressed.clear();
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Sent::Dropped;
        };
        let (bits, keeps) = (conn.deflate.bits(), conn.deflate.keeps_out());
        if keeps {
            let contexts = conn.cold().contexts.get_or_insert_default();
            let compressor = contexts.compressor.get_or_insert_with(|| Compressor::new(bits));
            compressor.compress(data, &mut compressed);
        } else {
            self.codec.compressor.compress(bits, data, &mut compressed);
        }
        self.count_compressed(data, &compressed);
        // What went into a kept context must be sent, however long.
        let sent = if keeps || compressed.len() < data.len() {
            self.send_frame(slot, opcode, true, &compressed)
        } else {
            self.send_frame(slot, opcode, false, data)
        };
        self.give_compressed(compressed);
        sent
    }

    /// Resets the compressor of a connection that gets a shared frame: that frame is not in its
    /// context, so later messages must not refer to anything before it.
    pub(crate) fn reset_compressor(&mut self, slot: u32) {
        let cold: Option<&mut Cold> =
            self.slab.get_mut(slot).and_then(|conn| conn.cold.as_deref_mut());
        let contexts = cold.and_then(|cold| cold.contexts.as_mut());
        if let Some(compressor) = contexts.and_then(|contexts| contexts.compressor.as_mut()) {
            compressor.reset();
        }
    }

    fn inflate(
        &mut self,
        slot: u32,
        opcode: OpCode,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let most = self.message_limit(slot);
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Ok(());
        };
        if conn.deflate.keeps_in() {
            let contexts = conn.cold().contexts.get_or_insert_default();
            contexts.inflater.get_or_insert_default().inflate_with_context(data, out, most)?;
        } else {
            self.codec.inflater.get_or_insert_default().inflate(data, out, most)?;
        }
        self.counters().inflate_in_bytes.add(data.len() as u64);
        self.counters().inflate_out_bytes.add(out.len() as u64);
        if opcode == OpCode::Text && !is_utf8(out) {
            return Err(Violation::InvalidUtf8);
        }
        Ok(())
    }

    fn count_compressed(&self, message: &[u8], compressed: &[u8]) {
        self.counters().deflate_in_bytes.add(message.len() as u64);
        self.counters().deflate_out_bytes.add(compressed.len() as u64);
    }

    fn give_compressed(&mut self, mut compressed: Vec<u8>) {
        compressed.shrink_to(POOLED_BUFFER_BYTES);
        self.codec.compressed = compressed;
    }
}
