//! [`Window`]: which messages of a sender have arrived, exact within the newest 64.

/// How a message was delivered, by its number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// The newest so far.
    InOrder,
    /// Received for the first time, after a newer one.
    Reordered,
    /// Received before.
    Duplicate,
    /// 64 or more behind the newest: whether it was received before is unknown.
    Stale,
}

/// The newest 64 numbers of one sender, 12 bytes.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// One more than the highest number received.
    next: u32,
    /// Bit i: number `next - 1 - i` was received. Two halves avoid 8-byte alignment.
    received: [u32; 2],
}

impl Window {
    /// One more than the highest number received.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    const BITS: u32 = u64::BITS;

    fn bits(&self) -> u64 {
        u64::from(self.received[0]) | u64::from(self.received[1]) << 32
    }

    /// Whether a number was received; of those that are 64 or more behind it is unknown.
    pub(crate) fn has(&self, sequence: u32) -> bool {
        let behind = self.next.checked_sub(1).and_then(|last| last.checked_sub(sequence));
        let bits = behind.and_then(|behind| self.bits().checked_shr(behind));
        bits.is_some_and(|bits| bits & 1 > 0)
    }

    /// Forgets a number, as if it had not been received.
    pub(crate) fn forget(&mut self, sequence: u32) {
        let behind = self.next.checked_sub(1).and_then(|last| last.checked_sub(sequence));
        let Some(bit) = behind.and_then(|behind| 1_u64.checked_shl(behind)) else { return };
        let mut bits = self.bits() & !bit;
        let newer = bits.trailing_zeros();
        if newer >= Self::BITS {
            (self.next, bits) = (0, 0);
        } else {
            // The highest number that was received is the newest again.
            (self.next, bits) = (self.next - newer, bits >> newer);
        }
        self.received = [bits as u32, (bits >> 32) as u32];
    }

    /// The lowest number of the newest 64 that was received.
    pub(crate) fn lowest(&self) -> Option<u32> {
        let oldest = Self::BITS.checked_sub(self.bits().leading_zeros() + 1)?;
        self.next.checked_sub(1 + oldest)
    }

    /// Notes number `sequence`, from 0 to `u32::MAX - 1`.
    pub(crate) fn note(&mut self, sequence: u32) -> Delivery {
        let bits = self.bits();
        let (bits, seen) = if sequence >= self.next {
            let ahead = sequence - self.next + 1;
            self.next = sequence.saturating_add(1);
            (bits.checked_shl(ahead).unwrap_or(0) | 1, Delivery::InOrder)
        } else {
            let behind = self.next - 1 - sequence;
            if behind >= Self::BITS {
                return Delivery::Stale;
            }
            let bit = 1 << behind;
            (bits | bit, if bits & bit == 0 { Delivery::Reordered } else { Delivery::Duplicate })
        };
        self.received = [bits as u32, (bits >> 32) as u32];
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(sequences: &[u32]) -> Vec<Delivery> {
        let mut window = Window::default();
        sequences.iter().map(|&sequence| window.note(sequence)).collect()
    }

    #[test]
    fn order_gaps_and_duplicates_are_distinguished() {
        use Delivery::{Duplicate, InOrder, Reordered};
        assert_eq!(notes(&[0, 1, 2]), [InOrder; 3]);
        assert_eq!(notes(&[0, 0, 1, 0, 1]), [InOrder, Duplicate, InOrder, Duplicate, Duplicate]);
        assert_eq!(notes(&[0, 2, 1, 3, 1]), [InOrder, InOrder, Reordered, InOrder, Duplicate]);
        assert_eq!(notes(&[5, 0, 5]), [InOrder, Reordered, Duplicate]);
    }

    #[test]
    fn newest_64_are_known() {
        assert_eq!(notes(&[0, 64, 1])[2], Delivery::Reordered);
        assert_eq!(notes(&[0, 64, 0])[2], Delivery::Stale);
        assert_eq!(notes(&[0, 63, 0])[2], Delivery::Duplicate);
        assert_eq!(notes(&[1, 1_000_000, 999_999, 1])[2..], [Delivery::Reordered, Delivery::Stale]);
        assert_eq!(notes(&[u32::MAX - 1, u32::MAX - 2])[1], Delivery::Reordered);
    }

    /// Compares it with a complete set.
    #[test]
    fn window_agrees_with_a_complete_set_in_random_traffic() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut window = Window::default();
        let (mut all, mut highest) = (std::collections::HashSet::new(), None::<u32>);
        for step in 0..20_000_u32 {
            let sequence = step.saturating_sub(draw(100) as u32) + draw(3) as u32;
            let fresh = all.insert(sequence);
            let expected = match highest {
                Some(top) if sequence <= top && top - sequence >= 64 => Delivery::Stale,
                Some(top) if sequence <= top && fresh => Delivery::Reordered,
                Some(top) if sequence <= top => Delivery::Duplicate,
                _ => Delivery::InOrder,
            };
            highest = highest.max(Some(sequence));
            assert_eq!(window.note(sequence), expected, "{sequence} at step {step}");
        }
    }

    #[test]
    fn a_forgotten_number_was_never_received() {
        let mut window = Window::default();
        [4, 5, 7]
            .into_iter()
            .for_each(|number| assert_ne!(window.note(number), Delivery::Duplicate));
        window.forget(7);
        assert_eq!((window.next(), window.lowest()), (6, Some(4)));
        assert_eq!(window.note(7), Delivery::InOrder);
        window.forget(4);
        assert_eq!((window.next(), window.lowest()), (8, Some(5)));
        assert_eq!(window.note(4), Delivery::Reordered);
        [4, 5, 7, 7].into_iter().for_each(|number| window.forget(number));
        assert_eq!(window, Window::default());
        assert_eq!((window.lowest(), window.note(200)), (None, Delivery::InOrder));
        window.note(300);
        window.forget(200);
        assert_eq!(window.lowest(), Some(300), "it was forgotten already");
    }

    #[test]
    fn a_window_knows_the_newest_64() {
        let mut window = Window::default();
        assert!(!window.has(0));
        [3, 5, 66]
            .into_iter()
            .for_each(|number| assert_ne!(window.note(number), Delivery::Duplicate));
        let known = [2, 3, 4, 5, 65, 66, 67].map(|number| window.has(number));
        assert_eq!(known, [false, true, false, true, false, true, false]);
        window.note(67);
        assert!(!window.has(3) && window.has(5));
    }
}
