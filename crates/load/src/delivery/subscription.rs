//! [`Subscription`]: a subscription slot of one connection, and which publications are expected there.
//!
//! Publications of a stream are numbered and arrive in order. Expected, each once, are those that begin
//! after the confirmation was received and are accepted at least the *grace* before the unsubscribe is
//! sent. Those published while the subscription begins, or from the grace before its end on, are
//! allowed once. Those published longer than the grace before the subscribe, or received later than
//! that after the unsubscribe, are not allowed.

use crate::delivery::checker::{Expected, Track};
use crate::delivery::publication::Publication;

/// One subscription slot of a connection, 64 bytes.
#[derive(Copy, Clone, Default)]
pub(crate) struct Subscription {
    /// Index of the run's channel.
    pub(crate) channel: u32,
    pub(crate) state: State,
    /// The first expected number, and the first that is no longer expected.
    from: u32,
    until: u32,
    /// The lowest number received.
    first: u32,
    track: Track,
    asked_ns: u64,
    ended_ns: u64,
    /// A received number whose publication is not answered yet, and when that was sent; 0 for none.
    pending_ns: u64,
    pending: u32,
}

const _: () = assert!(size_of::<Subscription>() <= 64);

#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) enum State {
    #[default]
    Empty,
    /// The subscribe was sent; `again` if right after an unsubscribe of the same stream, whose last
    /// publications may still arrive.
    Subscribing {
        again: bool,
    },
    Subscribed,
    /// The unsubscribe is sent after the grace.
    Ending,
    /// The unsubscribe was sent.
    Unsubscribed,
}

/// Publications expected and lost by a subscription.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    pub(crate) expected: u32,
    pub(crate) lost: u32,
}

impl Subscription {
    /// An existing subscription: publications that begin from now on are expected.
    pub(crate) fn adopted(channel: u32, begun: u32) -> Subscription {
        Subscription { channel, state: State::Subscribed, from: begun, ..Subscription::default() }
    }

    /// Notes that the subscribe is sent.
    pub(crate) fn subscribe(&mut self, channel: u32, now_ns: u64) {
        *self = Subscription {
            channel,
            state: State::Subscribing { again: false },
            asked_ns: now_ns,
            ..Subscription::default()
        };
    }

    /// Notes the confirmation, received when `begun` publications had begun. Returns the verdict on the
    /// previous subscription if this one renews it, as its last publications arrived before.
    pub(crate) fn confirm(&mut self, begun: u32) -> Option<Verdict> {
        let State::Subscribing { again } = self.state else { return None };
        let before = again.then(|| self.verdict());
        if again {
            (self.first, self.track.received) = (0, 0);
        }
        (self.state, self.from, self.until) = (State::Subscribed, begun, begun);
        before
    }

    /// Ends it after the grace; `taken` publications are accepted so far.
    pub(crate) fn begin_ending(&mut self, taken: u32) {
        (self.state, self.until) = (State::Ending, taken.max(self.from));
    }

    /// Notes that the unsubscribe is sent, and if `again` the same subscribe right after it.
    pub(crate) fn unsubscribe(&mut self, again: bool, now_ns: u64) {
        self.ended_ns = now_ns;
        self.state = State::Unsubscribed;
        if again {
            (self.state, self.asked_ns) = (State::Subscribing { again }, now_ns);
        }
    }

    /// Whether a received publication of the stream is allowed.
    pub(crate) fn expects(
        &mut self,
        publication: &Publication,
        now_ns: u64,
        grace_ns: u64,
    ) -> Expected<'_> {
        let number = publication.sequence;
        // A gap after the end means that a new subscription has begun.
        let goes_on = self.track.received == 0 || number <= self.track.window.next();
        let too_old = publication.published_ns.saturating_add(grace_ns) < self.asked_ns;
        let may = match self.state {
            State::Empty => false,
            State::Subscribing { again: true } => true,
            State::Subscribing { again: false } | State::Subscribed | State::Ending => !too_old,
            State::Unsubscribed => goes_on && now_ns <= self.ended_ns.saturating_add(grace_ns),
        };
        if may { self.track.expects(number) } else { Expected::Unexpected }
    }

    /// Notes a number that was received for the first time, of a publication that may be refused yet.
    pub(crate) fn received(&mut self, number: u32, published_ns: u64) {
        self.first = if self.track.received == 1 { number } else { self.first.min(number) };
        (self.pending, self.pending_ns) = (number, published_ns);
    }

    /// The publication that may be refused yet, and when it was sent. A stream has one at a time.
    pub(crate) fn pending(&self) -> Option<(u32, u64)> {
        (self.pending_ns > 0).then_some((self.pending, self.pending_ns))
    }

    /// Notes what was answered to the pending publication. If it was refused it was not received: its
    /// number is used again.
    pub(crate) fn settle(&mut self, is_refused: bool) {
        self.pending_ns = 0;
        if is_refused {
            self.track.window.forget(self.pending);
            self.track.received = self.track.received.saturating_sub(1);
            if self.first == self.pending {
                self.first = self.track.window.lowest().unwrap_or(0);
            }
        }
    }

    /// Expected are the numbers from `from` to `until`. A gap between two received ones is a loss too,
    /// as a server skips nothing.
    pub(crate) fn verdict(&self) -> Verdict {
        let expected = self.until.saturating_sub(self.from);
        let (received, next) = (self.track.received, self.track.window.next());
        if received == 0 {
            return Verdict { expected, lost: expected };
        }
        let between = (next - self.first).saturating_sub(received);
        let before = self.first.saturating_sub(self.from);
        Verdict { expected, lost: before + between + self.until.saturating_sub(next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::checker::{Checker, DeliveryCounters, DeliveryCounts};
    use crate::delivery::publication;

    const GRACE: u64 = 100;

    /// What one publication counts as at a subscription.
    fn receive(
        subscription: &mut Subscription,
        (sequence, published_ns): (u32, u64),
        now_ns: u64,
    ) -> &'static str {
        let data = publication::encode(&Publication::new(1, sequence, published_ns), 0);
        let (counts, mut checker) = (DeliveryCounters::default(), Checker::new(GRACE));
        let expected = &mut *subscription;
        let first = checker.check(&counts, data.as_bytes(), now_ns, move |publication| {
            expected.expects(publication, now_ns, GRACE)
        });
        if let Some(number) = first {
            subscription.received(number, published_ns);
        }
        match counts.counts() {
            DeliveryCounts { unexpected: 1, .. } => "unexpected",
            DeliveryCounts { duplicated: 1, .. } => "duplicated",
            DeliveryCounts { reordered: 1, .. } => "reordered",
            DeliveryCounts { received: 1, .. } => "received",
            other => panic!("{other:?}"),
        }
    }

    /// Subscribed when 5 had begun; those below 9 are expected.
    fn after(numbers: &[u32]) -> Verdict {
        let mut subscription = Subscription::default();
        subscription.subscribe(3, 1_000);
        assert_eq!(subscription.confirm(5), None);
        for &number in numbers {
            assert_ne!(receive(&mut subscription, (number, 1_000), 1_000), "unexpected");
        }
        subscription.begin_ending(9);
        subscription.unsubscribe(false, 2_000);
        subscription.verdict()
    }

    #[test]
    fn publications_between_confirmation_and_end_are_expected() {
        let of = |lost| Verdict { expected: 4, lost };
        assert_eq!(after(&[5, 6, 7, 8]), of(0));
        assert_eq!(after(&[4, 5, 6, 7, 8, 9]), of(0), "those around may come");
        assert_eq!(after(&[]), of(4));
        assert_eq!(after(&[6, 7, 8]), of(1), "the first is missing");
        assert_eq!(after(&[5, 6, 7]), of(1), "the last is missing");
        assert_eq!(after(&[5, 7, 8]), of(1), "one between is missing");
        assert_eq!(after(&[5, 7, 6, 8]), of(0), "reordered and not lost");
        assert_eq!(after(&[5, 6, 7, 8, 10]), of(1), "nothing is skipped afterwards either");
    }

    #[test]
    fn duplicates_and_reordering_are_detected() {
        let mut subscription = Subscription::adopted(0, 0);
        let seen = [0, 1, 1, 3, 2].map(|number| receive(&mut subscription, (number, 0), 0));
        assert_eq!(seen, ["received", "received", "duplicated", "received", "reordered"]);
    }

    #[test]
    fn publications_outside_the_subscription_are_rejected() {
        let mut subscription = Subscription::default();
        assert_eq!(receive(&mut subscription, (0, 0), 0), "unexpected", "not subscribed");
        subscription.subscribe(0, 1_000);
        assert_eq!(receive(&mut subscription, (0, 899), 1_000), "unexpected", "long before");
        assert_eq!(receive(&mut subscription, (1, 900), 1_000), "received");
        subscription.confirm(2);
        subscription.begin_ending(2);
        subscription.unsubscribe(false, 5_000);
        assert_eq!(receive(&mut subscription, (2, 5_000), 5_100), "received");
        assert_eq!(receive(&mut subscription, (4, 5_000), 5_100), "unexpected", "not the next");
        assert_eq!(receive(&mut subscription, (3, 5_000), 5_101), "unexpected", "long after");
    }

    #[test]
    fn a_refused_publication_stands_for_no_other() {
        let of = |numbers: &[(u32, bool)]| {
            let mut subscription = Subscription::adopted(0, 0);
            for &(number, is_refused) in numbers {
                assert_eq!(receive(&mut subscription, (number, 5), 5), "received");
                assert_eq!(subscription.pending(), Some((number, 5)));
                subscription.settle(is_refused);
                assert_eq!(subscription.pending(), None);
            }
            subscription.begin_ending(3);
            subscription.verdict()
        };
        let lost = |lost| Verdict { expected: 3, lost };
        assert_eq!(of(&[(0, true), (0, false), (1, false), (2, false)]), lost(0));
        assert_eq!(of(&[(0, true), (1, false), (2, false)]), lost(1), "the first");
        assert_eq!(of(&[(0, false), (1, true), (2, false)]), lost(1), "one between");
        assert_eq!(of(&[(0, false), (1, false), (2, true)]), lost(1), "the last");
        assert_eq!(of(&[(0, true), (0, true)]), lost(3));
        assert_eq!(of(&[(0, false), (1, false), (2, false), (3, true)]), lost(0), "one behind");
    }

    #[test]
    fn renewed_subscription_is_judged_on_confirmation() {
        let mut subscription = Subscription::adopted(7, 0);
        receive(&mut subscription, (0, 1), 1);
        subscription.begin_ending(2);
        subscription.unsubscribe(true, 1_000);
        receive(&mut subscription, (1, 1_000), 1_000);
        assert_eq!(subscription.confirm(4), Some(Verdict { expected: 2, lost: 0 }));
        // Numbers 2 and 3 were published while nobody was subscribed.
        let again = receive(&mut subscription, (1, 1_000), 1_001);
        assert_eq!(again, "duplicated", "also of the subscription before");
        receive(&mut subscription, (4, 1_001), 1_001);
        subscription.begin_ending(5);
        subscription.unsubscribe(false, 1_500);
        assert_eq!(subscription.verdict(), Verdict { expected: 1, lost: 0 });
    }
}
