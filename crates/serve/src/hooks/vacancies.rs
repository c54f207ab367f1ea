//! [`Vacancies`]: topics that have lost their last subscriber a moment ago. A page that is loaded again
//! leaves its topics for a moment; neither that nor the return is reported. It has no clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Topics of which a vacancy is withheld. With more the oldest are reported early.
const WITHHELD_MAX: usize = 16 * 1024;

/// Vacancies that are not reported yet.
pub(crate) struct Vacancies {
    window_ns: u64,
    /// Since when.
    vacant: HashMap<Arc<str>, u64>,
    /// The same in order, with entries of topics that were occupied again meanwhile.
    order: VecDeque<(u64, Arc<str>)>,
}

impl Vacancies {
    pub(crate) fn new(window_ns: u64) -> Self {
        Vacancies { window_ns, vacant: HashMap::new(), order: VecDeque::new() }
    }

    /// A topic has its first subscriber. Returns whether that is to be reported.
    pub(crate) fn occupied(&mut self, topic: &str) -> bool {
        self.vacant.remove(topic).is_none()
    }

    /// A topic has lost its last subscriber.
    pub(crate) fn vacated(&mut self, now_ns: u64, topic: &str) {
        let topic: Arc<str> = topic.into();
        self.vacant.insert(Arc::clone(&topic), now_ns);
        self.order.push_back((now_ns, topic));
    }

    /// The next vacancy to report, and since when.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<(u64, Arc<str>)> {
        loop {
            let many = self.order.len() > WITHHELD_MAX;
            if !many && self.due_ns()? > now_ns {
                return None;
            }
            let (since_ns, topic) = self.order.pop_front()?;
            // It may have been occupied meanwhile, and vacated again.
            if self.vacant.get(&topic) == Some(&since_ns) {
                self.vacant.remove(&topic);
                if self.vacant.is_empty() {
                    (self.vacant, self.order) = Default::default();
                }
                return Some((since_ns, topic));
            }
        }
    }

    /// When the next vacancy is due.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.order.front().map(|(since_ns, _)| since_ns.saturating_add(self.window_ns))
    }

    /// The server ends: all are due.
    pub(crate) fn drain(&mut self) {
        self.window_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(vacancies: &mut Vacancies, now_ns: u64) -> Vec<(u64, String)> {
        let next = || vacancies.take_due(now_ns);
        std::iter::from_fn(next).map(|(since_ns, topic)| (since_ns, (*topic).into())).collect()
    }

    #[test]
    fn a_vacancy_is_reported_after_the_window_unless_the_topic_is_occupied_again() {
        let mut vacancies = Vacancies::new(100);
        assert!(vacancies.occupied("a") && vacancies.occupied("b"), "for the first time");
        vacancies.vacated(10, "a");
        vacancies.vacated(20, "b");
        assert_eq!(vacancies.due_ns(), Some(110));
        assert!(!vacancies.occupied("a"), "neither is reported");
        vacancies.vacated(50, "a");
        assert_eq!(due(&mut vacancies, 119), []);
        assert_eq!(due(&mut vacancies, 120), [(20, "b".to_owned())]);
        assert_eq!(due(&mut vacancies, 149), [], "since the last time that it was vacated");
        assert_eq!(due(&mut vacancies, 150), [(50, "a".to_owned())]);
        assert_eq!(vacancies.due_ns(), None);
        assert!(vacancies.occupied("a"), "after it was reported");
    }

    #[test]
    fn topics_that_flap_without_end_take_bounded_memory() {
        let mut vacancies = Vacancies::new(u64::MAX / 2);
        let mut reported = 0;
        for number in 0..100_000_u64 {
            vacancies.vacated(number, &number.to_string());
            vacancies.vacated(number, "flapping");
            assert!(!vacancies.occupied("flapping"));
            reported += due(&mut vacancies, number).len();
            assert!(vacancies.order.len() <= WITHHELD_MAX);
        }
        assert!(reported > 90_000, "early: {reported}");
        vacancies.drain();
        let left = due(&mut vacancies, u64::MAX / 2).len();
        assert_eq!((reported + left, vacancies.vacant.len()), (100_000, 0));
    }
}
