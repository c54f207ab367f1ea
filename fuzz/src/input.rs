//! [`Input`]: the fuzzer's bytes, taken from the front as numbers and slices. After its end it returns
//! zeros, so that every input is valid and a shorter one means nearly the same.

/// The rest of the input.
pub struct Input<'d>(&'d [u8]);

impl<'d> Input<'d> {
    pub fn new(data: &'d [u8]) -> Self {
        Input(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Takes at most that many bytes.
    pub fn take(&mut self, most: usize) -> &'d [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn rest(self) -> &'d [u8] {
        self.0
    }
}

/// Random sizes of the reads that a stream is split into: many small ones, some large.
pub fn reads(seed: u8) -> impl Iterator<Item = usize> {
    let mut state = u32::from(seed) | 0x100;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(0x01000193) ^ (state >> 15);
        Some(match state & 7 {
            0..=3 => 1,
            4 | 5 => 1 + (state >> 8 & 7) as usize,
            6 => 1 + (state >> 8 & 127) as usize,
            _ => 1 + (state >> 8 & 4095) as usize,
        })
    })
}
