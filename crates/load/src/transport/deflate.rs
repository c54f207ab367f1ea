//! [`Compression`]: permessage-deflate (RFC 7692) for one worker's [`crate::transport::websocket::WebSocket`]s. Each message
//! is compressed on its own in both directions, so that a connection keeps no window: this one serves all of them.
//!
//! It uses [`wire::websocket::SingleCompressor`] and [`wire::websocket::Inflater`]; runs of WebSockets alone
//! use the engine's compression.

use wire::Violation;
use wire::websocket::{Deflate, Inflater, SingleCompressor, is_utf8};

/// The smallest window for compressing; 8 bits are only supported for inflating.
const BITS_MIN: u8 = 9;

/// The compressor and the inflater of a worker.
pub(crate) struct Compression {
    /// The minimum size of a message to be compressed.
    above: usize,
    compressor: SingleCompressor,
    inflater: Option<Inflater>,
    compressed: Vec<u8>,
}

impl Compression {
    pub(crate) fn new(above: usize) -> Compression {
        Compression {
            above,
            compressor: SingleCompressor::default(),
            inflater: None,
            compressed: Vec::new(),
        }
    }

    /// The window for compressing; 0: messages are sent uncompressed.
    pub(crate) fn window(agreed: &Deflate) -> u8 {
        let bits = agreed.client_bits();
        if bits < BITS_MIN { 0 } else { bits }
    }

    /// Compresses a message; `None` if it is too short or compressing does not make it shorter.
    pub(crate) fn compress(&mut self, window: u8, message: &[u8]) -> Option<&[u8]> {
        if window < BITS_MIN || message.len() < self.above {
            return None;
        }
        self.compressed.clear();
        self.compressor.compress(window, message, &mut self.compressed);
        (self.compressed.len() < message.len()).then_some(&self.compressed[..])
    }

    /// Inflates a payload into `out`, up to `most` bytes.
    ///
    /// # Errors
    /// The message is longer, incomplete, or a text that is not UTF-8.
    pub(crate) fn inflate(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
        most: usize,
        is_text: bool,
    ) -> Result<(), Violation> {
        self.inflater.get_or_insert_default().inflate(payload, out, most)?;
        if is_text && !is_utf8(out) { Err(Violation::InvalidUtf8) } else { Ok(()) }
    }
}
