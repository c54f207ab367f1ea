//! [`Subscription`]: a subscription slot of one connection, and which publications are expected there.
//!
//! Publications of a stream are numbered and arrive in order. Expected, each once, are those that begin
//! after the confirmation was received and are accepted at least the *grace* before the unsubscribe is
//! sent. Those published while the subscription begins, or from the grace before its end on, are
//! allowed once. Those published longer than the grace before the subscribe, or received later than
//! that after the unsubscribe, are not allowed.

use crate::broadcast::Publication;
use crate::window::{Seen, Window};

/// One subscription slot of a connection, 64 bytes.
#[derive(Copy, Clone, Default)]
pub(crate) struct Place {
    /// Of the run's identifiers.
    pub(crate) line: u32,
    pub(crate) state: State,
    /// The first expected number, and the first that is no longer expected.
    from: u32,
    until: u32,
    /// The lowest number received, and how many different ones were.
    first: u32,
    received: u32,
    window: Window,
    asked_ns: u64,
    ended_ns: u64,
}

const _: () = assert!(size_of::<Place>() <= 64);

#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) enum State {
    #[default]
    Empty,
    /// A subscribe is out; `again` if it followed an unsubscribe of the same at once, whose last
    /// publications may still come.
    Asking {
        again: bool,
    },
    Subscribed,
    /// The unsubscribe follows after the grace.
    Leaving,
    /// The unsubscribe is out.
    Ended,
}

/// Publications expected and lost by a subscription.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    pub(crate) owed: u32,
    pub(crate) lost: u32,
}

impl Place {
    /// A subscription that is there already; it is owed what begins from now on.
    pub(crate) fn adopted(line: u32, begun: u32) -> Place {
        Place { line, state: State::Subscribed, from: begun, ..Place::default() }
    }

    /// The subscribe is sent.
    pub(crate) fn ask(&mut self, line: u32, now_ns: u64) {
        *self = Place {
            line,
            state: State::Asking { again: false },
            asked_ns: now_ns,
            ..Place::default()
        };
    }

    /// Notes the confirmation, received when `begun` publications had begun. Returns the verdict on the
    /// previous subscription if this one renews it, as its last publications arrived before.
    pub(crate) fn confirm(&mut self, begun: u32) -> Option<Verdict> {
        let State::Asking { again } = self.state else { return None };
        let before = again.then(|| self.verdict());
        if again {
            (self.first, self.received) = (0, 0);
        }
        (self.state, self.from, self.until) = (State::Subscribed, begun, begun);
        before
    }

    /// It is to end after the grace; so many publications were taken until now.
    pub(crate) fn notice(&mut self, taken: u32) {
        (self.state, self.until) = (State::Leaving, taken.max(self.from));
    }

    /// The unsubscribe is sent, and perhaps the same subscribe right after it.
    pub(crate) fn end(&mut self, again: bool, now_ns: u64) {
        self.ended_ns = now_ns;
        self.state = State::Ended;
        if again {
            (self.state, self.asked_ns) = (State::Asking { again }, now_ns);
        }
    }

    /// Notes a received publication of the stream; `None` if it is not allowed.
    pub(crate) fn receive(
        &mut self,
        publication: &Publication,
        now_ns: u64,
        grace_ns: u64,
    ) -> Option<Seen> {
        let number = publication.sequence;
        // A gap after the end means that a new subscription has begun.
        let goes_on = self.received == 0 || number <= self.window.next();
        let too_old = publication.published_ns.saturating_add(grace_ns) < self.asked_ns;
        let may = match self.state {
            State::Empty => false,
            State::Asking { again: true } => true,
            State::Asking { again: false } | State::Subscribed | State::Leaving => !too_old,
            State::Ended => goes_on && now_ns <= self.ended_ns.saturating_add(grace_ns),
        };
        if !may {
            return None;
        }
        let seen = self.window.note(number);
        if matches!(seen, Seen::InOrder | Seen::Reordered) {
            self.first = if self.received == 0 { number } else { self.first.min(number) };
            self.received += 1;
        }
        Some(seen)
    }

    /// Expected are the numbers from `from` to `until`. A gap between two received ones is a loss too,
    /// as a server skips nothing.
    pub(crate) fn verdict(&self) -> Verdict {
        let owed = self.until.saturating_sub(self.from);
        if self.received == 0 {
            return Verdict { owed, lost: owed };
        }
        let next = self.window.next();
        let between = (next - self.first).saturating_sub(self.received);
        let before = self.first.saturating_sub(self.from);
        Verdict { owed, lost: before + between + self.until.saturating_sub(next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: u64 = 100;

    fn publication(sequence: u32, published_ns: u64) -> Publication {
        Publication { publisher: 1, sequence, published_ns }
    }

    /// Subscribed when 5 had begun; those below 9 are expected.
    fn after(numbers: &[u32]) -> Verdict {
        let mut place = Place::default();
        place.ask(3, 1_000);
        assert_eq!(place.confirm(5), None);
        for &number in numbers {
            place.receive(&publication(number, 1_000), 1_000, GRACE).unwrap();
        }
        place.notice(9);
        place.end(false, 2_000);
        place.verdict()
    }

    #[test]
    fn owed_is_what_lies_between_confirmation_and_notice() {
        let of = |lost| Verdict { owed: 4, lost };
        assert_eq!(after(&[5, 6, 7, 8]), of(0));
        assert_eq!(after(&[4, 5, 6, 7, 8, 9]), of(0), "those around may come");
        assert_eq!(after(&[]), of(4));
        assert_eq!(after(&[6, 7, 8]), of(1), "the first is missing");
        assert_eq!(after(&[5, 6, 7]), of(1), "the last is missing");
        assert_eq!(after(&[5, 7, 8]), of(1), "one between is missing");
        assert_eq!(after(&[5, 7, 6, 8]), of(0), "swapped and not lost");
        assert_eq!(after(&[5, 6, 7, 8, 10]), of(1), "nothing is skipped afterwards either");
    }

    #[test]
    fn what_comes_again_or_in_another_order_is_told() {
        let mut place = Place::adopted(0, 0);
        let seen = [0, 1, 1, 3, 2].map(|n| place.receive(&publication(n, 0), 0, GRACE).unwrap());
        use Seen::{Duplicate, InOrder, Reordered};
        assert_eq!(seen, [InOrder, InOrder, Duplicate, InOrder, Reordered]);
    }

    #[test]
    fn what_may_not_come_is_refused() {
        let mut place = Place::default();
        assert_eq!(place.receive(&publication(0, 0), 0, GRACE), None, "nothing was asked for");
        place.ask(0, 1_000);
        assert_eq!(place.receive(&publication(0, 899), 1_000, GRACE), None, "long before");
        assert!(place.receive(&publication(1, 900), 1_000, GRACE).is_some());
        place.confirm(2);
        place.notice(2);
        place.end(false, 5_000);
        assert!(place.receive(&publication(2, 5_000), 5_100, GRACE).is_some());
        assert_eq!(place.receive(&publication(4, 5_000), 5_100, GRACE), None, "not the next");
        assert_eq!(place.receive(&publication(3, 5_000), 5_101, GRACE), None, "long after");
    }

    #[test]
    fn the_same_again_is_judged_when_it_is_confirmed() {
        let mut place = Place::adopted(7, 0);
        place.receive(&publication(0, 1), 1, GRACE);
        place.notice(2);
        place.end(true, 1_000);
        place.receive(&publication(1, 1_000), 1_000, GRACE);
        assert_eq!(place.confirm(4), Some(Verdict { owed: 2, lost: 0 }));
        // Numbers 2 and 3 were published while nobody was subscribed.
        let again = place.receive(&publication(1, 1_000), 1_001, GRACE);
        assert_eq!(again, Some(Seen::Duplicate), "also of the subscription before");
        place.receive(&publication(4, 1_001), 1_001, GRACE);
        place.notice(5);
        place.end(false, 1_500);
        assert_eq!(place.verdict(), Verdict { owed: 1, lost: 0 });
    }
}
