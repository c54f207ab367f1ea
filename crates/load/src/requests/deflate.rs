//! [`Compression`]: permessage-deflate (RFC 7692) for one worker's [`super::WebSocket`]s. Each message
//! goes by itself, both ways, so that a connection keeps no window: what is here serves all of them.
//!
//! The codec is [`wire::websocket::Compressor`]'s and [`wire::websocket::Inflater`]'s; runs of sockets
//! alone have the engine's.

use wire::Violation;
use wire::websocket::{Compressor, Deflate, Inflater, is_utf8};

/// The least window that is written; one of 8 bits is only read.
const BITS_MIN: u8 = 9;
/// Windows there are from then on.
const WINDOWS: usize = 7;

/// What is offered, and done once a server has agreed.
pub(super) struct Compression {
    /// Bytes from which on a message is compressed.
    above: usize,
    /// By window, made when one is first agreed on.
    compressors: [Option<Compressor>; WINDOWS],
    inflater: Option<Inflater>,
    compressed: Vec<u8>,
}

impl Compression {
    pub(super) fn new(above: usize) -> Compression {
        Compression {
            above,
            compressors: Default::default(),
            inflater: None,
            compressed: Vec::new(),
        }
    }

    /// The window to write with; 0: what is sent stays plain.
    pub(super) fn window(agreed: &Deflate) -> u8 {
        let bits = agreed.client_bits();
        if bits < BITS_MIN { 0 } else { bits }
    }

    /// The payload of a message's frame, where it is long enough and compressing makes it shorter.
    pub(super) fn compress(&mut self, window: u8, message: &[u8]) -> Option<&[u8]> {
        let at = usize::from(window.checked_sub(BITS_MIN)?);
        if message.len() < self.above {
            return None;
        }
        let compressor = self.compressors.get_mut(at)?;
        let compressor = compressor.get_or_insert_with(|| Compressor::new(window));
        self.compressed.clear();
        compressor.compress(message, &mut self.compressed);
        compressor.forget();
        (self.compressed.len() < message.len()).then_some(&self.compressed[..])
    }

    /// Appends the message of such a payload, of at most so many bytes.
    ///
    /// # Errors
    /// It is longer, no whole message, or a text that is no UTF-8.
    pub(super) fn inflate(
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
