//! Compresses messages that refer to nothing before them (RFC 1951), short ones in one block. The tables of
//! [`Compressor`] are for a window of 32 KiB, and cleared before each message; these have the size of the message.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Compressor;
use super::huffman::{BitWriter, Builder, Code, Description, fixed_distance, fixed_literal};

/// The longest message that is compressed here. Positions in it have 16 bits.
const SHORT_BYTES_MAX: usize = 32 * 1024;
/// The smallest window, as a power of two, and how many sizes there are.
const WINDOW_BITS_MIN: u8 = 9;
const WINDOWS: usize = 7;

/// Compresses messages without context, for connections with any window.
#[derive(Default)]
pub struct SingleCompressor {
    short: Option<Box<ShortCompressor>>,
    /// By window size, for long messages.
    long: [Option<Compressor>; WINDOWS],
}

impl SingleCompressor {
    /// Appends a message as the payload of its frame, for a window of two to the power of `bits`, 9 to 15; other
    /// values are clamped.
    pub fn compress(&mut self, bits: u8, message: &[u8], out: &mut Vec<u8>) {
        let index = usize::from(bits.saturating_sub(WINDOW_BITS_MIN)).min(WINDOWS - 1);
        if message.len() <= SHORT_BYTES_MAX {
            let window = 1 << (usize::from(WINDOW_BITS_MIN) + index);
            return self.short.get_or_insert_default().compress(message, window, out);
        }
        if let Some(compressor) = self.long.get_mut(index) {
            let compressor = compressor.get_or_insert_with(|| Compressor::new(bits));
            compressor.compress(message, out);
            compressor.reset();
        }
    }
}

const LITERALS: usize = 286;
const DISTANCES: usize = 30;
const END_OF_BLOCK: usize = 256;
const MATCH_MIN: usize = 4;
const MATCH_MAX: usize = 258;
const BITS_MAX: usize = 15;
/// Entries of the table of positions, as a power of two, at least and at most.
const TABLE_BITS_MIN: u32 = 8;
const TABLE_BITS_MAX: u32 = 13;
/// A match this long is taken without looking for a longer one a byte later.
const GOOD_MATCH: usize = 16;
/// Below this length a block is not worth codes of its own, which have to be described.
const FIXED_BELOW_BITS: usize = 50 * 8;

/// Compresses messages of at most [`SHORT_BYTES_MAX`].
struct ShortCompressor {
    positions: Positions,
    /// Literals, and matches as `length << 16 | distance`.
    tokens: Vec<u32>,
    literals: [u16; LITERALS],
    distances: [u16; DISTANCES],
    builder: Builder,
    literal_codes: [Code; LITERALS],
    distance_codes: [Code; DISTANCES],
    description: Description,
}

impl Default for ShortCompressor {
    fn default() -> Self {
        ShortCompressor {
            positions: Positions::default(),
            tokens: Vec::new(),
            literals: [0; LITERALS],
            distances: [0; DISTANCES],
            builder: Builder::default(),
            literal_codes: [Code::default(); LITERALS],
            distance_codes: [Code::default(); DISTANCES],
            description: Description::default(),
        }
    }
}

impl ShortCompressor {
    /// Appends a message as the payload of its frame, for a window of so many bytes.
    fn compress(&mut self, message: &[u8], window: usize, out: &mut Vec<u8>) {
        if message.is_empty() {
            return out.push(0x00);
        }
        self.find_matches(message, window);
        self.write(message, out);
    }

    /// Divides a message into tokens, and counts their symbols.
    fn find_matches(&mut self, message: &[u8], window: usize) {
        let ShortCompressor { positions, tokens, literals, distances, .. } = self;
        positions.reset(message.len());
        tokens.clear();
        literals.fill(0);
        distances.fill(0);
        let mut add_literal = |tokens: &mut Vec<u32>, at: usize| {
            let byte = message.get(at).copied().unwrap_or_default();
            tokens.push(byte.into());
            count(literals, byte.into());
        };
        let end = (message.len() + 1).saturating_sub(MATCH_MIN);
        let mut at = 0;
        while at < end {
            let Some(mut found) = positions.find(message, at, window) else {
                add_literal(tokens, at);
                at += 1;
                continue;
            };
            // Those up to here are in the table.
            let mut known = at + 1;
            if found.length < GOOD_MATCH && known < end {
                let next = positions.find(message, known, window);
                if let Some(longer) = next.filter(|next| next.length > found.length) {
                    add_literal(tokens, at);
                    found = longer;
                    at += 1;
                }
                known += 1;
            }
            tokens.push((found.length as u32) << 16 | found.distance as u32);
            at += found.length;
            for passed in known..at.min(end) {
                positions.add(message, passed);
            }
        }
        for at in at..message.len() {
            add_literal(tokens, at);
        }
        count(literals, END_OF_BLOCK);
        for token in tokens.iter().filter(|token| **token > 0xFFFF) {
            count(literals, length_symbol(*token).0);
            count(distances, distance_symbol(*token).0);
        }
    }

    /// Writes the tokens in the shortest of the three forms of a block.
    fn write(&mut self, message: &[u8], out: &mut Vec<u8>) {
        let fixed_bits = self.fixed_bits();
        let stored_bits = message.len() * 8 + 32;
        let ShortCompressor { builder, literal_codes, distance_codes, description, .. } = self;
        let mut own_bits = usize::MAX;
        if fixed_bits >= FIXED_BELOW_BITS {
            own_bits = builder.build(&self.literals, BITS_MAX, literal_codes)
                + builder.build(&self.distances, BITS_MAX, distance_codes)
                + description.prepare(builder, literal_codes, distance_codes);
        }
        let best_bits = fixed_bits.min(own_bits);
        out.reserve((best_bits + self.extra_bits()).min(stored_bits) / 8 + 16);
        let mut bits = BitWriter::new(out);
        // Not the last block of its stream, as an empty one follows.
        if best_bits + self.extra_bits() >= stored_bits {
            bits.push(0b000, 3);
            bits.align();
            let length = message.len() as u16;
            bits.bytes(&length.to_le_bytes());
            bits.bytes(&(!length).to_le_bytes());
            bits.bytes(message);
        } else if own_bits < fixed_bits {
            bits.push(0b100, 3);
            self.description.write(&mut bits);
            self.write_tokens(&mut bits);
        } else {
            bits.push(0b010, 3);
            for (symbol, code) in self.literal_codes.iter_mut().enumerate() {
                *code = fixed_literal(symbol);
            }
            for (symbol, code) in self.distance_codes.iter_mut().enumerate() {
                *code = fixed_distance(symbol);
            }
            self.write_tokens(&mut bits);
        }
        // An empty stored block, without the lengths that are left out on the wire.
        bits.push(0b000, 3);
        bits.align();
    }

    /// The length of all symbols with the fixed codes, in bits.
    fn fixed_bits(&self) -> usize {
        let sum =
            |counts: &[u16]| counts.iter().map(|count| u32::from(*count)).sum::<u32>() as usize;
        let literals =
            |from: usize, to: usize| sum(self.literals.get(from..to).unwrap_or_default());
        8 * literals(0, 144)
            + 9 * literals(144, 256)
            + 7 * literals(256, 280)
            + 8 * literals(280, LITERALS)
            + 5 * sum(&self.distances)
    }

    /// The length of what is behind symbols, in bits.
    fn extra_bits(&self) -> usize {
        let lengths = self.literals.iter().enumerate().skip(265).take(20);
        let lengths = lengths.map(|(symbol, count)| usize::from(*count) * ((symbol - 261) / 4));
        let distances = self.distances.iter().enumerate().skip(4);
        let distances = distances.map(|(symbol, count)| usize::from(*count) * (symbol / 2 - 1));
        lengths.sum::<usize>() + distances.sum::<usize>()
    }

    fn write_tokens(&self, bits: &mut BitWriter<'_>) {
        let literal = |symbol: usize| self.literal_codes.get(symbol).copied().unwrap_or_default();
        let distance = |symbol: usize| self.distance_codes.get(symbol).copied().unwrap_or_default();
        let mut push = |code: Code, extra: u32, more: u32| {
            bits.push(u32::from(code.bits) | more << code.length, code.length + extra as u8);
        };
        for token in &self.tokens {
            if *token <= 0xFF {
                push(literal(*token as usize), 0, 0);
                continue;
            }
            let (symbol, extra, more) = length_symbol(*token);
            push(literal(symbol), extra, more);
            let (symbol, extra, more) = distance_symbol(*token);
            push(distance(symbol), extra, more);
        }
        push(literal(END_OF_BLOCK), 0, 0);
    }
}

#[inline(always)]
fn count(counts: &mut [u16], symbol: usize) {
    if let Some(count) = counts.get_mut(symbol) {
        *count += 1;
    }
}

/// The symbol of a match's length, and its further bits: how many, and which.
#[inline(always)]
fn length_symbol(token: u32) -> (usize, u32, u32) {
    let value = (token >> 16) - 3;
    if value < 8 {
        return (257 + value as usize, 0, 0);
    }
    if value as usize == MATCH_MAX - 3 {
        return (285, 0, 0);
    }
    let extra = value.ilog2() - 2;
    (257 + (extra * 4 + (value >> extra)) as usize, extra, value & ((1 << extra) - 1))
}

/// The symbol of a distance, and its further bits.
#[inline(always)]
fn distance_symbol(token: u32) -> (usize, u32, u32) {
    let value = (token & 0xFFFF) - 1;
    if value < 4 {
        return (value as usize, 0, 0);
    }
    let extra = value.ilog2() - 1;
    ((extra * 2 + (value >> extra)) as usize, extra, value & ((1 << extra) - 1))
}

struct Match {
    length: usize,
    distance: usize,
}

/// By a hash of four bytes, where they were last, plus one.
#[derive(Default)]
struct Positions {
    table: Vec<u16>,
    shift: u32,
}

impl Positions {
    fn reset(&mut self, message_bytes: usize) {
        let bits = message_bytes.next_power_of_two().ilog2().clamp(TABLE_BITS_MIN, TABLE_BITS_MAX);
        self.table.clear();
        self.table.resize(1 << bits, 0);
        self.shift = 32 - bits;
    }

    /// Adds a position, and returns the one before with the same hash.
    #[inline(always)]
    fn replace(&mut self, word: u32, at: usize) -> usize {
        let hash = (word.wrapping_mul(0x9E37_79B1) >> self.shift) as usize;
        let Some(entry) = self.table.get_mut(hash) else { return 0 };
        core::mem::replace(entry, at as u16 + 1).into()
    }

    #[inline(always)]
    fn add(&mut self, message: &[u8], at: usize) {
        self.replace(word_at(message, at), at);
    }

    /// Adds a position, and returns what the message has in common with itself there.
    #[inline(always)]
    fn find(&mut self, message: &[u8], at: usize, window: usize) -> Option<Match> {
        let word = word_at(message, at);
        let before = self.replace(word, at).checked_sub(1)?;
        let distance = at - before;
        if distance > window || word_at(message, before) != word {
            return None;
        }
        let length = MATCH_MIN + common(message, before + MATCH_MIN, at + MATCH_MIN);
        Some(Match { length, distance })
    }
}

#[inline(always)]
fn word_at(message: &[u8], at: usize) -> u32 {
    let bytes = message.get(at..).and_then(|rest| rest.first_chunk::<4>());
    u32::from_le_bytes(bytes.copied().unwrap_or_default())
}

/// How many bytes at `a` and at `b`, which is behind it, are the same, up to what a match has besides its first four.
#[inline(always)]
fn common(message: &[u8], a: usize, b: usize) -> usize {
    let other = message.get(b..).unwrap_or_default();
    let other = other.get(..MATCH_MAX - MATCH_MIN).unwrap_or(other);
    let one = message.get(a..).and_then(|one| one.get(..other.len())).unwrap_or_default();
    let (one, one_rest) = one.as_chunks::<8>();
    let (other, other_rest) = other.as_chunks::<8>();
    let mut same = 0;
    for (x, y) in one.iter().zip(other) {
        let differs = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differs != 0 {
            return same + (differs.trailing_zeros() / 8) as usize;
        }
        same += 8;
    }
    same + one_rest.iter().zip(other_rest).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;
    use zlib_rs::{Inflate, InflateFlush};

    use super::super::Inflater;
    use super::*;

    /// Compresses for a window, and inflates in steps with a window that is no larger.
    fn round_trip(compressor: &mut SingleCompressor, bits: u8, message: &[u8]) -> usize {
        let mut data = b"before".to_vec();
        compressor.compress(bits, message, &mut data);
        let data = &data[6..];
        let mut out = vec![];
        Inflater::default().inflate(data, &mut out, message.len()).unwrap();
        assert!(out == message, "{} bytes are not the same", message.len());
        let mut stepwise = Inflate::new(false, bits);
        let (mut read, mut step, mut got) = (0, [0; 32], vec![]);
        while got.len() < message.len() {
            let (before, written) = (stepwise.total_in(), stepwise.total_out());
            stepwise.decompress(&data[read..], &mut step, InflateFlush::SyncFlush).unwrap();
            read += (stepwise.total_in() - before) as usize;
            got.extend_from_slice(&step[..(stepwise.total_out() - written) as usize]);
        }
        assert!(got == message);
        data.len()
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn matches_are_within_the_window() {
        let mut compressor = SingleCompressor::default();
        let part = noise(700);
        let twice = [&part[..], &part].concat();
        assert!(round_trip(&mut compressor, 9, &twice) > 1400, "512 bytes do not reach");
        assert!(round_trip(&mut compressor, 10, &twice) < 1000);
    }

    #[test]
    fn all_three_forms_of_a_block() {
        let mut compressor = SingleCompressor::default();
        assert_eq!(round_trip(&mut compressor, 15, &noise(1000)), 1 + 4 + 1000 + 1);
        assert!(round_trip(&mut compressor, 15, b"hello hello hello") < 12);
        let text =
            "the quick brown fox jumps over the lazy dog, ".repeat(3) + "and 0123456789 more words";
        assert!(round_trip(&mut compressor, 15, text.as_bytes()) < 80);
        assert!(round_trip(&mut compressor, 15, &[7; SHORT_BYTES_MAX]) < 60);
        let mut empty = vec![];
        compressor.compress(15, b"", &mut empty);
        assert_eq!(empty, [0]);
    }

    #[test]
    fn long_messages_refer_to_nothing_before_them() {
        let mut compressor = SingleCompressor::default();
        for len in [SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1, 100_000, 1, 2, 3, 4, 5] {
            round_trip(&mut compressor, 15, &noise(len));
            round_trip(&mut compressor, 15, &vec![7; len]);
        }
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            words in prop::collection::vec(0_u8..40, 0..4000),
            any in prop::collection::vec(any::<u8>(), 0..500),
            bits in 9_u8..=15,
            repeats in 1_usize..4,
        ) {
            let mut compressor = SingleCompressor::default();
            round_trip(&mut compressor, bits, &any);
            round_trip(&mut compressor, bits, &[&words[..], &any].concat().repeat(repeats));
        }
    }
}
