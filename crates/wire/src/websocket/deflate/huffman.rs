//! Huffman codes of a block (RFC 1951 3.2): lengths from frequencies, codes from lengths, and how both are written.

use alloc::vec::Vec;

/// The longest code of literals, lengths and distances.
const BITS_MAX: usize = 15;
/// The same of code lengths.
const LENGTH_BITS_MAX: usize = 7;
/// The alphabet of code lengths, and the order in which its own lengths are written.
const LENGTHS: usize = 19;
const LENGTHS_ORDER: [u8; LENGTHS] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// Repeat the length before, 3 to 6 times; zeros, 3 to 10; zeros, 11 to 138.
const REPEAT: u8 = 16;
const ZEROS: u8 = 17;
const MANY_ZEROS: u8 = 18;

/// A code, with its first bit lowest, and its length; 0 for a symbol that does not occur.
#[derive(Copy, Clone, Default)]
pub(super) struct Code {
    pub(super) bits: u16,
    pub(super) length: u8,
}

/// Finds lengths and codes of an alphabet; kept for its memory.
#[derive(Default)]
pub(super) struct Builder {
    /// Symbols by rising frequency, as `frequency << 16 | symbol`.
    sorted: Vec<u32>,
    /// Weights of the inner nodes of the tree, in the order in which they are made; then their depths.
    nodes: Vec<u32>,
    /// By node, leaves first and in the order of `sorted`: the inner node above it.
    parents: Vec<u16>,
}

impl Builder {
    /// Codes for symbols of these frequencies, of at most `bits_max` bits. Returns the length of all in bits.
    pub(super) fn build(
        &mut self,
        frequencies: &[u16],
        bits_max: usize,
        codes: &mut [Code],
    ) -> usize {
        codes.fill(Code::default());
        let occurs = |(symbol, count): (usize, &u16)| {
            (*count > 0).then_some(u32::from(*count) << 16 | symbol as u32)
        };
        self.sorted.clear();
        self.sorted.extend(frequencies.iter().enumerate().filter_map(occurs));
        self.sorted.sort_unstable();
        // How many codes have each length.
        let mut counts = [0_u16; BITS_MAX + 1];
        match self.sorted.len() {
            0 => return 0,
            1 => counts[1] = 1,
            _ => self.count_lengths(bits_max, &mut counts),
        }
        let mut bits = 0;
        let mut rarest_first = self.sorted.iter();
        for (length, count) in counts.iter().enumerate().rev() {
            for packed in rarest_first.by_ref().take(usize::from(*count)) {
                if let Some(code) = codes.get_mut((packed & 0xFFFF) as usize) {
                    code.length = length as u8;
                }
                bits += (packed >> 16) as usize * length;
            }
        }
        assign(&counts, codes);
        bits
    }

    /// Counts the leaves of an optimal tree by their depth, which is limited to `bits_max`.
    fn count_lengths(&mut self, bits_max: usize, counts: &mut [u16; BITS_MAX + 1]) {
        let Builder { sorted, nodes, parents } = self;
        let leaves = sorted.len();
        nodes.clear();
        parents.clear();
        parents.resize(2 * leaves, 0);
        let (mut leaf, mut node) = (0, 0);
        // The next of the two queues whose weight is less.
        for made in 0..leaves - 1 {
            let mut weight = 0;
            for _ in 0..2 {
                let a = sorted.get(leaf).map_or(u32::MAX, |packed| packed >> 16);
                let b = nodes.get(node).copied().unwrap_or(u32::MAX);
                let is_leaf = a <= b;
                let taken = if is_leaf { leaf } else { leaves + node };
                leaf += usize::from(is_leaf);
                node += usize::from(!is_leaf);
                weight += a.min(b);
                if let Some(parent) = parents.get_mut(taken) {
                    *parent = made as u16;
                }
            }
            nodes.push(weight);
        }
        // From the root, which was made last, to the leaves.
        let depth_of = |nodes: &[u32], parents: &[u16], at: usize| {
            let parent = parents.get(at).map_or(0, |parent| usize::from(*parent));
            nodes.get(parent).copied().unwrap_or(0) + 1
        };
        if let Some(root) = nodes.last_mut() {
            *root = 0;
        }
        for at in (0..leaves - 1).rev().skip(1) {
            let depth = depth_of(nodes, parents, leaves + at);
            if let Some(node) = nodes.get_mut(at) {
                *node = depth;
            }
        }
        // Too long codes take room that the code space does not have, in units of the longest.
        let mut excess = 0_i32;
        for at in 0..leaves {
            let depth = depth_of(nodes, parents, at) as usize;
            let length = depth.min(bits_max);
            if let Some(count) = counts.get_mut(length) {
                *count += 1;
            }
            excess += 1 << (bits_max - length);
        }
        excess -= 1 << bits_max;
        // One of the longest that can be longer becomes an inner node, above itself and a longest one.
        while excess > 0 {
            let Some(at) = (1..bits_max).rev().find(|at| counts.get(*at).is_some_and(|c| *c > 0))
            else {
                return;
            };
            let changes = [(at, -1), (at + 1, 2), (bits_max, -1)];
            for (at, by) in changes {
                if let Some(count) = counts.get_mut(at) {
                    *count = count.wrapping_add_signed(by);
                }
            }
            excess -= 1;
        }
    }
}

/// Gives codes to symbols by their lengths (RFC 1951 3.2.2).
fn assign(counts: &[u16; BITS_MAX + 1], codes: &mut [Code]) {
    let mut next = [0_u16; BITS_MAX + 1];
    let mut code = 0;
    for (first, count) in next.iter_mut().skip(1).zip(counts.iter().skip(1)) {
        *first = code;
        code = (code + count) << 1;
    }
    for code in codes.iter_mut().filter(|code| code.length > 0) {
        if let Some(next) = next.get_mut(usize::from(code.length)) {
            code.bits = next.reverse_bits() >> (16 - code.length);
            *next += 1;
        }
    }
}

/// The codes that need no description (RFC 1951 3.2.6).
pub(super) fn fixed_literal(symbol: usize) -> Code {
    let symbol = symbol as u16;
    let (bits, length) = match symbol {
        0..144 => (0x30 + symbol, 8),
        144..256 => (0x190 + symbol - 144, 9),
        256..280 => (symbol - 256, 7),
        _ => (0xC0 + symbol - 280, 8),
    };
    Code { bits: bits.reverse_bits() >> (16 - length), length }
}

pub(super) fn fixed_distance(symbol: usize) -> Code {
    Code { bits: (symbol as u16).reverse_bits() >> 11, length: 5 }
}

/// The description of two alphabets (RFC 1951 3.2.7), before it is written.
pub(super) struct Description {
    literals: usize,
    distances: usize,
    /// How many of the lengths of code lengths are written.
    lengths: usize,
    /// Symbols of code lengths, each with how often it repeats what.
    symbols: Vec<(u8, u8)>,
    frequencies: [u16; LENGTHS],
    codes: [Code; LENGTHS],
}

impl Default for Description {
    fn default() -> Self {
        Description {
            literals: 0,
            distances: 0,
            lengths: 0,
            symbols: Vec::new(),
            frequencies: [0; LENGTHS],
            codes: [Code::default(); LENGTHS],
        }
    }
}

fn used(codes: &[Code], least: usize) -> usize {
    codes.iter().rposition(|code| code.length > 0).map_or(least, |at| at + 1).max(least)
}

impl Description {
    /// Prepares the description of these codes. Returns its length in bits.
    pub(super) fn prepare(
        &mut self,
        builder: &mut Builder,
        literals: &[Code],
        distances: &[Code],
    ) -> usize {
        self.literals = used(literals, 257);
        self.distances = used(distances, 1);
        self.symbols.clear();
        self.frequencies = [0; LENGTHS];
        let mut run = (0, 0);
        let both = [(literals, self.literals), (distances, self.distances)];
        for (codes, used) in both {
            for code in codes.get(..used).unwrap_or_default() {
                if code.length == run.0 {
                    run.1 += 1;
                } else {
                    self.add_run(run.0, run.1);
                    run = (code.length, 1);
                }
            }
        }
        self.add_run(run.0, run.1);
        builder.build(&self.frequencies, LENGTH_BITS_MAX, &mut self.codes);
        let length_of = |symbol: u8| {
            self.codes.get(usize::from(symbol)).map_or(0, |code| usize::from(code.length))
        };
        let last = LENGTHS_ORDER.iter().rposition(|symbol| length_of(*symbol) > 0);
        self.lengths = last.map_or(4, |at| at + 1).max(4);
        let symbols = self.symbols.iter();
        let bits = symbols.map(|(symbol, _)| length_of(*symbol) + usize::from(extra_bits(*symbol)));
        5 + 5 + 4 + 3 * self.lengths + bits.sum::<usize>()
    }

    fn add_run(&mut self, length: u8, mut times: usize) {
        let mut add = |symbol: u8, more: usize| {
            self.symbols.push((symbol, more as u8));
            if let Some(count) = self.frequencies.get_mut(usize::from(symbol)) {
                *count += 1;
            }
        };
        if length > 0 && times > 0 {
            add(length, 0);
            times -= 1;
        }
        while times > 0 {
            let taken = match (length, times) {
                (0, 11..) => {
                    let taken = times.min(138);
                    add(MANY_ZEROS, taken - 11);
                    taken
                }
                (0, 3..) => {
                    add(ZEROS, times - 3);
                    times
                }
                (_, 3..) => {
                    let taken = times.min(6);
                    add(REPEAT, taken - 3);
                    taken
                }
                _ => {
                    add(length, 0);
                    1
                }
            };
            times -= taken;
        }
    }

    pub(super) fn write(&self, bits: &mut BitWriter<'_>) {
        bits.push((self.literals - 257) as u32, 5);
        bits.push((self.distances - 1) as u32, 5);
        bits.push((self.lengths - 4) as u32, 4);
        for symbol in LENGTHS_ORDER.iter().take(self.lengths) {
            let code = self.codes.get(usize::from(*symbol)).copied().unwrap_or_default();
            bits.push(code.length.into(), 3);
        }
        for (symbol, more) in &self.symbols {
            let code = self.codes.get(usize::from(*symbol)).copied().unwrap_or_default();
            let value = u32::from(code.bits) | u32::from(*more) << code.length;
            bits.push(value, code.length + extra_bits(*symbol));
        }
    }
}

/// Bits behind a symbol of code lengths.
fn extra_bits(symbol: u8) -> u8 {
    match symbol {
        REPEAT => 2,
        ZEROS => 3,
        MANY_ZEROS => 7,
        _ => 0,
    }
}

/// Appends bits, the first one lowest.
pub(super) struct BitWriter<'o> {
    out: &'o mut Vec<u8>,
    bits: u64,
    count: u8,
}

impl<'o> BitWriter<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>) -> BitWriter<'o> {
        BitWriter { out, bits: 0, count: 0 }
    }

    /// Appends the lowest `count` bits of `value`, at most 32; its others are 0.
    #[inline(always)]
    pub(super) fn push(&mut self, value: u32, count: u8) {
        self.bits |= u64::from(value) << self.count;
        self.count += count;
        if self.count >= 32 {
            self.out.extend_from_slice(&(self.bits as u32).to_le_bytes());
            self.bits >>= 32;
            self.count -= 32;
        }
    }

    /// Fills the last byte with zeros.
    pub(super) fn align(&mut self) {
        let bytes = usize::from(self.count.div_ceil(8));
        self.out.extend_from_slice(self.bits.to_le_bytes().get(..bytes).unwrap_or_default());
        (self.bits, self.count) = (0, 0);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        debug_assert_eq!(self.count, 0);
        self.out.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    /// Checks that codes use all of the code space, and returns the longest.
    fn longest(frequencies: &[u16], bits_max: usize) -> u8 {
        let mut codes = vec![Code::default(); frequencies.len()];
        let bits = Builder::default().build(frequencies, bits_max, &mut codes);
        let pairs = || codes.iter().zip(frequencies);
        assert!(pairs().all(|(code, count)| (code.length > 0) == (*count > 0)));
        let total: usize =
            pairs().map(|(code, n)| usize::from(code.length) * usize::from(*n)).sum();
        assert_eq!(bits, total);
        let used = codes.iter().filter(|code| code.length > 0);
        let space: usize =
            used.clone().map(|code| 1 << (bits_max - usize::from(code.length))).sum();
        match used.clone().count() {
            0 => assert_eq!(space, 0),
            1 => assert_eq!(space, 1 << (bits_max - 1)),
            _ => assert_eq!(space, 1 << bits_max),
        }
        // Rarer symbols have no shorter codes.
        for (code, count) in pairs() {
            for (other, its_count) in pairs().filter(|(other, _)| other.length > 0) {
                assert!(count <= its_count || code.length <= other.length);
            }
        }
        used.map(|code| code.length).max().unwrap_or(0)
    }

    #[test]
    fn codes_are_no_longer_than_allowed() {
        let mut fibonacci = vec![1_u16, 1];
        while fibonacci.len() < 22 {
            fibonacci.push(fibonacci[fibonacci.len() - 1] + fibonacci[fibonacci.len() - 2]);
        }
        assert_eq!(longest(&fibonacci[..12], 15), 11);
        assert_eq!(longest(&fibonacci, 15), 15);
        assert_eq!(longest(&fibonacci[..19], 7), 7);
        assert_eq!(longest(&[0, 9, 0], 15), 1);
    }

    /// The codes in RFC 1951 3.2.2.
    #[test]
    fn rfc_1951_3_2_2_example() {
        let mut codes = [3, 3, 3, 3, 3, 2, 4, 4].map(|length| Code { bits: 0, length });
        assign(&[0, 0, 1, 5, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut codes);
        let plain = codes.map(|code| code.bits.reverse_bits() >> (16 - code.length));
        assert_eq!(plain, [0b010, 0b011, 0b100, 0b101, 0b110, 0b00, 0b1110, 0b1111]);
    }

    proptest! {
        #[test]
        fn codes_use_all_of_the_code_space(
            frequencies in prop::collection::vec(prop_oneof![Just(0_u16), 1_u16..4, any::<u16>()], 1..286),
        ) {
            longest(&frequencies, 15);
        }

        #[test]
        fn code_lengths_have_short_codes(frequencies in prop::collection::vec(0_u16..300, 19)) {
            longest(&frequencies, 7);
        }
    }
}
