//! Compressed messages (RFC 7692) of a foreign client, by miniz_oxide.
//!
//! Not a codec of frames; that is `socket`.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

/// The first byte of a text message's first frame that is compressed: alone, and of several.
pub(crate) const DEFLATED: u8 = 0xC1;
pub(crate) const DEFLATED_FIRST: u8 = 0x41;
/// The first byte of a frame in the middle of a message, and of its last.
pub(crate) const CONTINUED: u8 = 0x00;
pub(crate) const CONTINUED_LAST: u8 = 0x80;

/// The offer that every client makes.
pub(crate) const OFFER: &str = "permessage-deflate";

/// Compresses a message: raw deflate, flushed, without the four bytes of the flush.
pub(crate) fn deflated(message: &[u8]) -> Vec<u8> {
    let mut out = compressed(message, FlushCompress::Sync);
    assert!(out.ends_with(&[0, 0, 0xFF, 0xFF]));
    out.truncate(out.len() - 4);
    out
}

/// Compresses a message with a final block (BFINAL), which has no flush bytes.
pub(crate) fn finished(message: &[u8]) -> Vec<u8> {
    compressed(message, FlushCompress::Finish)
}

fn compressed(message: &[u8], flush: FlushCompress) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 1024);
    Compress::new(Compression::default(), false).compress_vec(message, &mut out, flush).unwrap();
    out
}

/// Decompresses a message.
pub(crate) fn inflated(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 << 20);
    let data = [payload, &[0, 0, 0xFF, 0xFF]].concat();
    Decompress::new(false).decompress_vec(&data, &mut out, FlushDecompress::Sync).unwrap();
    out
}

/// Returns compressible text of about 4,096 bytes.
pub(crate) fn long_text(word: &str) -> String {
    (0..4096 / (word.len() + 6)).map(|n| format!("{word} {n:04} ")).collect()
}
