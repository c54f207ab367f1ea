//! [`Pace`]: when the changes of one topic are announced, and in which form. Pure: the time is passed in.
//!
//! A few changes are announced one by one, which every client understands; then the topic pauses for a
//! window for each of them, so that on average its subscribers get at most one event per window. Very
//! many are one event together, a summary, at most once per window.

/// Changes announced one by one as soon as their window ends.
const AT_ONCE_MAX: usize = 8;
/// Changes announced one by one at all. Up to this many wait until no more come, [`PATIENCE`] at most.
const BURST_MAX: usize = 64;
/// Longest wait and longest pause, in windows.
const PATIENCE: u64 = 8;
/// Time after a summary in which further changes are summarised as well, in windows.
const CALM: u64 = 2;

/// The form of an announcement.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// An event for each change.
    Single,
    /// One event for all.
    Summary,
}

/// When the subscribers of a topic get its next events.
#[derive(Debug, Default)]
pub(super) struct Pace {
    first_ns: u64,
    last_ns: u64,
    not_before_ns: u64,
    crowded_until_ns: u64,
    due_ns: Option<u64>,
    /// An announcement was refused: only a summary makes up for it.
    lost: bool,
}

impl Pace {
    /// When the next announcement is due.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Whether changes are summarised now, or may be soon.
    pub(super) fn is_crowded(&self, changes: usize, now_ns: u64) -> bool {
        changes > AT_ONCE_MAX || now_ns < self.crowded_until_ns
    }

    /// A change that is to be announced.
    pub(super) fn changed(&mut self, now_ns: u64, window_ns: u64) {
        self.last_ns = now_ns;
        if self.due_ns.is_none() {
            self.first_ns = now_ns;
            self.due_ns = Some(now_ns.saturating_add(window_ns).max(self.not_before_ns));
        }
    }

    /// The form in which this number of changes is announced now; `None` for later or not at all.
    pub(super) fn announce(&mut self, changes: usize, now_ns: u64, window_ns: u64) -> Option<Form> {
        let after = |windows: u64| now_ns.saturating_add(window_ns.saturating_mul(windows));
        let many = changes > BURST_MAX || self.lost;
        if many || now_ns < self.crowded_until_ns && changes > 1 {
            self.due_ns = None;
            self.lost = false;
            self.not_before_ns = after(1);
            if many {
                self.crowded_until_ns = after(CALM);
            }
            return Some(Form::Summary);
        }
        let grows = self.last_ns.saturating_add(window_ns) > now_ns;
        let waited = self.first_ns.saturating_add(window_ns.saturating_mul(PATIENCE)) <= now_ns;
        if changes > AT_ONCE_MAX && grows && !waited {
            self.due_ns = Some(after(1));
            return None;
        }
        self.due_ns = None;
        self.not_before_ns = after((changes as u64).min(PATIENCE));
        (changes > 0).then_some(Form::Single)
    }

    /// An announcement was not delivered.
    pub(super) fn refused(&mut self, now_ns: u64, window_ns: u64) {
        self.lost = true;
        self.due_ns = Some(now_ns.saturating_add(window_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 100;

    /// Plays changes at these times, and returns the time, the form and the number of each announcement.
    fn play(mut changes: Vec<u64>) -> Vec<(u64, Form, usize)> {
        let (mut pace, mut pending, mut announced) = (Pace::default(), 0, Vec::new());
        changes.sort_unstable();
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() || pace.due_ns().is_some() {
            match (changes.peek().copied(), pace.due_ns()) {
                (Some(at), due) if due.is_none_or(|due| at <= due) => {
                    pace.changed(at, WINDOW);
                    pending += 1;
                    changes.next();
                }
                (_, Some(due)) => {
                    if let Some(form) = pace.announce(pending, due, WINDOW) {
                        announced.push((due, form, pending));
                        pending = 0;
                    }
                }
                _ => unreachable!("there is a change or an announcement"),
            }
        }
        assert_eq!(pending, 0);
        announced
    }

    fn events(announced: &[(u64, Form, usize)]) -> usize {
        let count = |(_, form, changes): &(u64, Form, usize)| match form {
            Form::Single => *changes,
            Form::Summary => 1,
        };
        announced.iter().map(count).sum()
    }

    #[test]
    fn a_few_changes_are_announced_one_by_one_and_then_the_topic_pauses() {
        assert_eq!(play(vec![5]), [(105, Form::Single, 1)]);
        assert_eq!(play(vec![0, 1, 2]), [(100, Form::Single, 3)]);
        assert_eq!(play(vec![0, 1, 2, 150]), [(100, Form::Single, 3), (400, Form::Single, 1)]);
        assert_eq!(play(vec![0, 1000]), [(100, Form::Single, 1), (1100, Form::Single, 1)]);
    }

    #[test]
    fn some_dozens_wait_until_no_more_come() {
        let class: Vec<u64> = (0..30).map(|each| each * 10).collect();
        assert_eq!(play(class), [(400, Form::Single, 30)]);
        // They do not wait for ever.
        let slow: Vec<u64> = (0..40).map(|each| each * 50).collect();
        let announced = play(slow);
        assert!(announced.iter().all(|(_, form, _)| *form == Form::Single), "{announced:?}");
        assert!(announced[0].0 <= 900, "{announced:?}");
    }

    #[test]
    fn ten_thousand_in_eight_windows_are_at_most_ten_events() {
        let storms: [Vec<u64>; 4] = [
            (0..10_000).map(|each| each * 800 / 10_000).collect(),
            // The first few come alone.
            (0..10_000).map(|each| if each < 8 { 0 } else { 101 + each * 700 / 10_000 }).collect(),
            // It ends with a few stragglers.
            (0..10_000).map(|each| if each > 9_970 { 800 } else { each * 790 / 9_970 }).collect(),
            vec![3; 10_000],
        ];
        for storm in storms {
            let announced = play(storm);
            assert!(events(&announced) <= 10, "{announced:?}");
            assert!(announced.iter().any(|(_, form, _)| *form == Form::Summary), "{announced:?}");
        }
    }

    #[test]
    fn what_was_refused_is_summarised() {
        let mut pace = Pace::default();
        pace.changed(0, WINDOW);
        assert_eq!(pace.announce(1, 100, WINDOW), Some(Form::Single));
        pace.refused(100, WINDOW);
        assert_eq!(pace.due_ns(), Some(200));
        assert_eq!(pace.announce(0, 200, WINDOW), Some(Form::Summary));
        assert_eq!(pace.due_ns(), None);
    }

    #[test]
    fn a_topic_is_crowded_for_a_while_after_a_summary() {
        let mut pace = Pace::default();
        pace.changed(0, WINDOW);
        assert!(pace.is_crowded(AT_ONCE_MAX + 1, 0) && !pace.is_crowded(AT_ONCE_MAX, 0));
        assert_eq!(pace.announce(BURST_MAX + 1, 100, WINDOW), Some(Form::Summary));
        assert!(pace.is_crowded(0, 299) && !pace.is_crowded(0, 300));
    }
}
