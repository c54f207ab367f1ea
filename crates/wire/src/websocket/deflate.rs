//! Compresses and inflates messages (RFC 7692 7.2) with zlib-rs, which is memory-safe. Not here:
//! which messages to compress, and whose context is kept.

mod huffman;
mod single;

use alloc::vec::Vec;

use zlib_rs::{
    Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Method, Status, Strategy,
};

use crate::Violation;

pub use single::SingleCompressor;

/// The end of a message's last block, which is left out on the wire (RFC 7692 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];
/// The same followed by an empty last block: a stream that ends with it is complete.
const TAIL_AND_END: [u8; 6] = [0x00, 0x00, 0xFF, 0xFF, 0x03, 0x00];
/// Bytes by which output grows, and by what at first: the growth is cleared, so a short message
/// starts small.
const STEP: usize = 16 * 1024;
const STEP_MIN: usize = 256;
/// The usual ratio of a text's length to its compressed length.
const USUAL_RATIO: usize = 4;
/// The largest window, in bytes.
const WINDOW_BYTES: usize = 32 * 1024;
/// Fast, and on short texts as good as the slower levels.
const LEVEL: i32 = 2;
/// Of 9. For 1 KiB a third faster than the usual 8, since less is cleared before each message, with
/// the same length from 1 to 128 KiB.
const MEM_LEVEL: i32 = 5;

/// Compresses messages of one direction.
pub struct Compressor {
    zlib: Deflate,
}

impl Compressor {
    /// A compressor with a window of two to the power of `bits`, 9 to 15; other values are clamped.
    #[must_use]
    pub fn new(bits: u8) -> Compressor {
        let config = DeflateConfig {
            level: LEVEL,
            method: Method::Deflated,
            window_bits: -i32::from(bits.clamp(9, 15)),
            mem_level: MEM_LEVEL,
            strategy: Strategy::Default,
        };
        Compressor { zlib: Deflate::new_with_config(config) }
    }

    /// Appends a message as the payload of its frame. It can refer to the messages since the last
    /// [`Compressor::reset`].
    pub fn compress(&mut self, message: &[u8], out: &mut Vec<u8>) {
        if message.is_empty() {
            return out.push(0x00);
        }
        let begin = out.len();
        let (mut read, mut written) = (0, begin);
        loop {
            let room = (message.len() - read) / 2 + 64;
            out.resize(written + room.min(STEP), 0);
            let (in_before, out_before) = (self.zlib.total_in(), self.zlib.total_out());
            let input = message.get(read..).unwrap_or_default();
            let output = out.get_mut(written..).unwrap_or_default();
            // The only error is a wrong parameter, and all of them are set above.
            let result = self.zlib.compress(input, output, DeflateFlush::SyncFlush);
            debug_assert!(result.is_ok(), "{result:?}");
            read += (self.zlib.total_in() - in_before) as usize;
            written += (self.zlib.total_out() - out_before) as usize;
            if written < out.len() {
                break;
            }
        }
        debug_assert!(out.get(begin..written).is_some_and(|bytes| bytes.ends_with(&TAIL)));
        out.truncate(written.saturating_sub(TAIL.len()).max(begin));
    }

    /// Drops the context: the next message refers to nothing before it.
    pub fn reset(&mut self) {
        self.zlib.reset();
    }
}

/// Inflates messages of one direction, compressed with any window.
pub struct Inflater {
    zlib: Inflate,
}

impl Default for Inflater {
    fn default() -> Inflater {
        Inflater { zlib: Inflate::new(false, 15) }
    }
}

impl Inflater {
    /// Appends a message without context, given the payload of its frames, and drops the context.
    ///
    /// # Errors
    /// `InflatedTooBig` as soon as it exceeds `most` bytes, `BadDeflate` for anything but a
    /// complete message. `out` then holds what was inflated before that.
    pub fn inflate(
        &mut self,
        data: &[u8],
        out: &mut Vec<u8>,
        most: usize,
    ) -> Result<(), Violation> {
        self.reset();
        let begin = out.len();
        let most = begin + most;
        let ended = self.feed(data, out, begin, most)?;
        // A last block can end the message without an empty one after it.
        if ended || self.feed(&TAIL_AND_END, out, begin, most)? {
            return Ok(());
        }
        Err(Violation::BadDeflate)
    }

    /// Appends a message that may refer to those before it, and keeps the context. A truncated
    /// message is only noticed at the next one.
    ///
    /// # Errors
    /// As [`Inflater::inflate`]; nothing can be inflated after an error.
    pub fn inflate_with_context(
        &mut self,
        data: &[u8],
        out: &mut Vec<u8>,
        most: usize,
    ) -> Result<(), Violation> {
        let begin = out.len();
        let most = begin + most;
        if !self.feed(data, out, begin, most)? {
            self.feed(&TAIL, out, begin, most)?;
        }
        Ok(())
    }

    /// Drops the context.
    pub fn reset(&mut self) {
        self.zlib.reset(false);
    }

    /// Inflates all of `data`; returns `true` if it ended with a last block.
    fn feed(
        &mut self,
        data: &[u8],
        out: &mut Vec<u8>,
        begin: usize,
        most: usize,
    ) -> Result<bool, Violation> {
        let mut read = 0;
        let mut written = out.len();
        let mut step = (data.len() * USUAL_RATIO).clamp(STEP_MIN, STEP);
        loop {
            // One byte more shows that the output exceeds the limit.
            let room = (most + 1).saturating_sub(written).min(step);
            step = STEP;
            out.resize(written + room, 0);
            let (in_before, out_before) = (self.zlib.total_in(), self.zlib.total_out());
            let input = data.get(read..).unwrap_or_default();
            let output = out.get_mut(written..).unwrap_or_default();
            let status = self.zlib.decompress(input, output, InflateFlush::SyncFlush);
            read += (self.zlib.total_in() - in_before) as usize;
            written += (self.zlib.total_out() - out_before) as usize;
            let full = written == out.len();
            out.truncate(written);
            if written > most {
                out.truncate(most);
                return Err(Violation::InflatedTooBig);
            }
            let status = status.map_err(|_| Violation::BadDeflate)?;
            if status == Status::StreamEnd {
                self.continue_after_last_block(out.get(begin..).unwrap_or_default());
                if read == data.len() {
                    return Ok(true);
                }
            } else if !full {
                return if read == data.len() { Ok(false) } else { Err(Violation::BadDeflate) };
            }
        }
    }

    /// Continues after a block that is marked as the last: more blocks may follow (RFC 7692
    /// 7.2.3.4), and refer to what came before them in the message.
    fn continue_after_last_block(&mut self, message: &[u8]) {
        self.zlib.reset(false);
        let window = message.get(message.len().saturating_sub(WINDOW_BYTES)..).unwrap_or_default();
        // A stream that was just reset accepts any dictionary.
        let result = self.zlib.set_dictionary(window);
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 1 << 20;

    fn inflated(data: &[u8]) -> Result<Vec<u8>, Violation> {
        let mut out = vec![];
        Inflater::default().inflate(data, &mut out, MOST).map(|()| out)
    }

    fn compressed(message: &[u8], bits: u8) -> Vec<u8> {
        let mut out = vec![];
        Compressor::new(bits).compress(message, &mut out);
        out
    }

    /// The examples of RFC 7692 7.2.3.
    #[test]
    fn rfc_7692_7_2_3_examples() {
        let cases: [&[u8]; 5] = [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            // A last block, and an empty one after it.
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            // Two blocks.
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
            // A last block and nothing after it.
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
        ];
        for case in cases {
            assert_eq!(inflated(case).as_deref(), Ok(&b"Hello"[..]), "{case:02x?}");
        }
        assert_eq!(compressed(b"", 15), [0x00]);
        assert_eq!(inflated(&[0x00]).as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn a_kept_context_shortens_the_second_message() {
        let (mut compressor, mut inflater) = (Compressor::new(15), Inflater::default());
        let message = b"the quick brown fox jumps over the lazy dog".as_slice();
        let mut sizes = vec![];
        for _ in 0..3 {
            let (mut data, mut out) = (vec![], vec![]);
            compressor.compress(message, &mut data);
            sizes.push(data.len());
            inflater.inflate_with_context(&data, &mut out, MOST).unwrap();
            assert_eq!(out, message);
        }
        assert!(sizes[1] < sizes[0] / 2 && sizes[2] < sizes[0] / 2, "{sizes:?}");
        compressor.reset();
        let mut data = vec![];
        compressor.compress(message, &mut data);
        assert_eq!(inflated(&data).as_deref(), Ok(message), "it refers to nothing before it");
    }

    /// Bytes that cannot be compressed.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn messages_that_need_several_steps_are_appended() {
        let (mut compressor, mut inflater) = (Compressor::new(15), Inflater::default());
        for message in [noise(100_000), noise(1), noise(300), vec![7; 100_000], noise(40_000)] {
            let (mut data, mut out) = (b"before".to_vec(), b"before".to_vec());
            compressor.compress(&message, &mut data);
            inflater.inflate_with_context(&data[6..], &mut out, message.len()).unwrap();
            assert_eq!(out, [b"before", &message[..]].concat());
            // Without context, and with room for one byte less.
            let data = compressed(&message, 15);
            out.truncate(6);
            Inflater::default().inflate(&data, &mut out, message.len()).unwrap();
            assert_eq!(out, [b"before", &message[..]].concat());
            out.truncate(6);
            let refused = Inflater::default().inflate(&data, &mut out, message.len() - 1);
            assert_eq!(refused, Err(Violation::InflatedTooBig));
            assert_eq!(out, [b"before", &message[..message.len() - 1]].concat());
            out.truncate(6);
            let refused =
                Inflater::default().inflate_with_context(&data, &mut out, message.len() - 1);
            assert_eq!((refused, out.len()), (Err(Violation::InflatedTooBig), 5 + message.len()));
        }
    }

    /// A last block may be followed by more, which refers to what came before (RFC 7692 7.2.3.4).
    #[test]
    fn blocks_after_a_last_block_refer_to_those_before() {
        let text = b"the quick brown fox jumps over the lazy dog";
        // A stored last block, then the same text compressed with it as the context.
        let mut data = vec![0x01, text.len() as u8, 0, !(text.len() as u8), 0xff];
        data.extend_from_slice(text);
        let mut compressor = Compressor::new(15);
        compressor.compress(text, &mut vec![]);
        let first = data.len();
        compressor.compress(text, &mut data);
        assert!(data.len() < first + text.len() / 2, "it does not refer to the first");
        assert_eq!(inflated(&data), Ok([&text[..], text].concat()));
    }

    /// BI-09: a decompression bomb is stopped at the limit.
    #[test]
    fn bi_09_output_never_exceeds_the_limit() {
        let bomb = compressed(&vec![0; 8 << 20], 15);
        assert!(bomb.len() < 16 * 1024, "{}", bomb.len());
        let mut out = vec![];
        let refused = Inflater::default().inflate(&bomb, &mut out, 64 * 1024);
        assert_eq!(refused, Err(Violation::InflatedTooBig));
        assert!(out.len() <= 64 * 1024 && out.capacity() < 256 * 1024, "{}", out.capacity());
        let exactly = compressed(&[7; 1000], 15);
        assert_eq!(Inflater::default().inflate(&exactly, &mut vec![], 1000), Ok(()));
        let over = Inflater::default().inflate(&exactly, &mut vec![], 999);
        assert_eq!(over, Err(Violation::InflatedTooBig));
    }

    /// BI-10: malformed streams are refused, and do not affect the next message.
    #[test]
    fn bi_10_incomplete_messages_are_refused() {
        let whole = compressed(b"a message that is long enough to be cut anywhere", 15);
        let mut inflater = Inflater::default();
        for cut in 1..whole.len() {
            let mut out = vec![];
            let result = inflater.inflate(&whole[..cut], &mut out, MOST);
            assert_eq!(result, Err(Violation::BadDeflate), "cut at {cut}: {out:?}");
            let mut next = vec![];
            inflater.inflate(&whole, &mut next, MOST).unwrap();
            assert_eq!(next, b"a message that is long enough to be cut anywhere");
        }
        let too_far = [0x62, 0x60, 0x18, 0x05, 0x00, 0xff];
        let cases: [&[u8]; 4] = [&[], &[0xff; 8], &[0x06, 0x00], &too_far];
        for case in cases {
            assert!(inflated(case).is_err(), "{case:02x?}");
        }
    }

    proptest! {
        #[test]
        fn compressed_messages_round_trip(
            words in prop::collection::vec(0u8..40, 0..40_000),
            bits in 9u8..=15,
        ) {
            let data = compressed(&words, bits);
            prop_assert_eq!(inflated(&data), Ok(words));
        }

        #[test]
        fn anything_is_inflated_or_refused(data in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut out = vec![];
            let _ = Inflater::default().inflate(&data, &mut out, 1000);
            prop_assert!(out.len() <= 1000);
        }
    }
}
