//! [`Pacer`]: when the next send is due. It knows neither sockets nor clocks, and what it answers
//! does not depend on how late anybody was: latency is counted from the due time.

/// A constant rate from a beginning on, without drift.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pacer {
    begin_ns: u64,
    /// Nanoseconds between two sends, as a fraction.
    interval: (u64, u64),
}

impl Pacer {
    /// `rate` sends a second for all, of which this one makes `part` of `whole`: its sends lie
    /// evenly over the same time. A rate, part or whole of 0 counts as 1.
    pub(crate) fn new(begin_ns: u64, rate: u64, part: u64, whole: u64) -> Pacer {
        let numerator = whole.max(1).saturating_mul(1_000_000_000);
        Pacer { begin_ns, interval: (numerator, rate.max(1).saturating_mul(part.max(1))) }
    }

    /// When send `number`, counted from 0, is due.
    pub(crate) fn due_ns(&self, number: u64) -> u64 {
        let (numerator, denominator) = self.interval;
        let after = u128::from(number) * u128::from(numerator) / u128::from(denominator);
        self.begin_ns.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_divides_nothing_does_not_drift() {
        let pacer = Pacer::new(1_000, 3, 1, 1);
        assert_eq!(pacer.due_ns(0), 1_000);
        assert_eq!(pacer.due_ns(1), 333_334_333);
        assert_eq!(pacer.due_ns(3_000_000), 1_000_000 * 1_000_000_000 + 1_000);
    }

    #[test]
    fn parts_make_the_whole_rate() {
        let parts = [Pacer::new(0, 1_000, 3, 10), Pacer::new(0, 1_000, 7, 10)];
        let until = 60_000_000_000;
        let sends = parts.map(|pacer| (0..).take_while(|&n| pacer.due_ns(n) < until).count());
        assert_eq!(sends, [18_000, 42_000]);
    }

    #[test]
    fn no_number_is_too_large() {
        assert!(Pacer::new(0, u64::MAX, u64::MAX, u64::MAX).due_ns(u64::MAX) > 0);
        assert_eq!(Pacer::new(5, 0, 0, 0).due_ns(2), 2_000_000_005);
    }
}
