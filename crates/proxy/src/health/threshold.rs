//! [`Threshold`]: the up or down state of an upstream from consecutive check results (rise and fall).
//! A single failed check takes no upstream out, and a single passed one brings none back.

/// The state of one upstream and the results that contradict it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Threshold {
    down: bool,
    /// Consecutive results that contradict the state.
    against: u32,
}

impl Threshold {
    /// Starts in this state.
    pub(crate) fn new(down: bool) -> Self {
        Threshold { down, against: 0 }
    }

    /// Records a result; returns whether the upstream is down, if that changes.
    pub(crate) fn record(&mut self, answered: bool, rise: u32, fall: u32) -> Option<bool> {
        if answered != self.down {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let enough = if self.down { rise } else { fall };
        if self.against < enough.max(1) {
            return None;
        }
        *self = Threshold::new(!self.down);
        Some(self.down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records results, `+` for passed, and returns the change after each: `u`, `d`, or `.` for none.
    fn changes(results: &str) -> String {
        let mut threshold = Threshold::new(false);
        let changes = results.bytes().map(|byte| match threshold.record(byte == b'+', 2, 3) {
            Some(true) => 'd',
            Some(false) => 'u',
            None => '.',
        });
        changes.collect()
    }

    #[test]
    fn three_consecutive_failures_are_down_and_two_passes_up() {
        assert_eq!(changes("---"), "..d");
        assert_eq!(changes("--+--+"), "......");
        assert_eq!(changes("---++"), "..d.u");
        assert_eq!(changes("---+-+-++"), "..d.....u");
        assert_eq!(changes("-----"), "..d..");
        let mut zero = Threshold::new(false);
        assert_eq!(zero.record(false, 0, 0), Some(true), "0 counts as 1");
    }
}
