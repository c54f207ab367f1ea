//! The content of an echo message, by which its answer is checked: always its number, and from 20
//! bytes on its due time, its send time and a checksum. The layout is in
//! `docs/protocol/load-messages.md`. The counts are in `echo`.

/// Bytes of the number at the start of every message.
pub(crate) const SEQUENCE_BYTES: usize = 4;
/// The minimum size of a message with times and a checksum.
pub(crate) const STAMPED_BYTES: usize = 20;

/// The messages of a run: all of one size with the same padding.
pub(crate) struct Format {
    buffer: Vec<u8>,
}

/// The content of a correct answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct DecodedMessage {
    pub(crate) sequence: u32,
    /// Due time and send time in monotonic nanoseconds; small messages have none.
    pub(crate) times_ns: Option<(u64, u64)>,
}

impl Format {
    /// Messages of `size` bytes, at least [`SEQUENCE_BYTES`].
    pub(crate) fn new(size: usize) -> Format {
        let filling = (0..size.max(SEQUENCE_BYTES)).map(|at| b' ' + (at % 95) as u8);
        Format { buffer: filling.collect() }
    }

    /// Encodes message `sequence` of the socket identified by `salt`.
    pub(crate) fn encode(&mut self, salt: u64, sequence: u32, due_ns: u64, sent_ns: u64) -> &[u8] {
        let sequence_bytes = sequence.to_le_bytes();
        if self.buffer.len() < STAMPED_BYTES {
            let check = check(salt, sequence, 0, 0).to_le_bytes();
            let bytes = sequence_bytes.iter().chain(check.iter().cycle());
            self.buffer.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        } else {
            let delay_us = delay_us(due_ns, sent_ns);
            let check = check(salt, sequence, due_ns, delay_us);
            let (due, delay) = (due_ns.to_le_bytes(), delay_us.to_le_bytes());
            let check = check.to_le_bytes();
            let bytes = sequence_bytes.iter().chain(&due).chain(&delay).chain(&check);
            self.buffer.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        }
        &self.buffer
    }

    /// Decodes an answer to the socket identified by `salt`; `None` if it is none of the messages sent
    /// there.
    pub(crate) fn decode(&self, salt: u64, data: &[u8]) -> Option<DecodedMessage> {
        if data.len() != self.buffer.len() {
            return None;
        }
        let (sequence, rest) = data.split_first_chunk()?;
        let sequence = u32::from_le_bytes(*sequence);
        if data.len() < STAMPED_BYTES {
            let check = check(salt, sequence, 0, 0).to_le_bytes();
            let right = rest.iter().zip(check.iter().cycle()).all(|(byte, check)| byte == check);
            return right.then_some(DecodedMessage { sequence, times_ns: None });
        }
        let (due, rest) = rest.split_first_chunk()?;
        let (delay, rest) = rest.split_first_chunk()?;
        let (carried_check, filling) = rest.split_first_chunk()?;
        let (due_ns, delay_us) = (u64::from_le_bytes(*due), u32::from_le_bytes(*delay));
        let right = u32::from_le_bytes(*carried_check) == check(salt, sequence, due_ns, delay_us)
            && Some(filling) == self.buffer.get(STAMPED_BYTES..);
        let sent_ns = due_ns.saturating_add(u64::from(delay_us) * 1_000);
        right.then_some(DecodedMessage { sequence, times_ns: Some((due_ns, sent_ns)) })
    }
}

fn delay_us(due_ns: u64, sent_ns: u64) -> u32 {
    u32::try_from(sent_ns.saturating_sub(due_ns) / 1_000).unwrap_or(u32::MAX)
}

/// A 32-bit checksum over the content of a message and its socket: two rounds of multiply-and-fold.
fn check(salt: u64, sequence: u32, due_ns: u64, delay_us: u32) -> u32 {
    let fold = |x: u64| x ^ (x >> 32);
    let first = fold((salt ^ due_ns).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let rest = u64::from(sequence) << 32 | u64::from(delay_us);
    fold((first ^ rest).wrapping_mul(0xd6e8_feb8_6659_fd93)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_messages_are_decoded() {
        for size in [4, 5, 8, 19, 20, 21, 64, 70_000] {
            let mut format = Format::new(size);
            let message = format.encode(9, 77, 5_000_000_000, 5_000_123_456).to_vec();
            assert_eq!(message.len(), size);
            let times_ns = (size >= 20).then_some((5_000_000_000, 5_000_123_000));
            assert_eq!(format.decode(9, &message), Some(DecodedMessage { sequence: 77, times_ns }));
        }
    }

    #[test]
    fn every_changed_byte_is_detected() {
        for size in [8, 20, 300] {
            let mut format = Format::new(size);
            let message = format.encode(9, 77, 5_000_000_000, 5_000_123_456).to_vec();
            for at in 0..size {
                for bit in 0..8 {
                    let mut changed = message.clone();
                    changed[at] ^= 1 << bit;
                    assert_eq!(format.decode(9, &changed), None, "size {size}, byte {at}");
                }
            }
            assert_eq!(format.decode(9, &message[..size - 1]), None);
            assert_eq!(format.decode(8, &message), None, "an answer to another socket");
        }
    }

    #[test]
    fn a_send_that_is_very_late_saturates() {
        assert_eq!(delay_us(0, u64::MAX), u32::MAX);
        assert_eq!(delay_us(10, 5), 0);
    }
}
