//! [`Threshold`]: the up or down state of an upstream from consecutive check results (rise and fall).
//! A single failed check takes no upstream out, and a single passed one brings none back.

/// The state of one upstream and the results that contradict it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judge {
    down: bool,
    /// Consecutive results that contradict the state.
    against: u32,
}

impl Judge {
    /// Believed to be up until it fails.
    pub(crate) fn new(down: bool) -> Self {
        Judge { down, against: 0 }
    }

    /// Hears one more answer; the verdict, if it changes.
    pub(crate) fn hear(&mut self, answered: bool, rise: u32, fall: u32) -> Option<bool> {
        if answered != self.down {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let enough = if self.down { rise } else { fall };
        if self.against < enough.max(1) {
            return None;
        }
        *self = Judge::new(!self.down);
        Some(self.down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is heard, `+` for an answer, and the verdict after each: `u`, `d` or `.` for no change.
    fn verdicts(heard: &str) -> String {
        let mut judge = Judge::new(false);
        let said = heard.bytes().map(|byte| match judge.hear(byte == b'+', 2, 3) {
            Some(true) => 'd',
            Some(false) => 'u',
            None => '.',
        });
        said.collect()
    }

    #[test]
    fn three_failures_in_a_row_are_down_and_two_answers_up() {
        assert_eq!(verdicts("---"), "..d");
        assert_eq!(verdicts("--+--+"), "......");
        assert_eq!(verdicts("---++"), "..d.u");
        assert_eq!(verdicts("---+-+-++"), "..d.....u");
        assert_eq!(verdicts("-----"), "..d..");
        let mut hasty = Judge::new(false);
        assert_eq!(hasty.hear(false, 0, 0), Some(true), "0 is 1");
    }
}
