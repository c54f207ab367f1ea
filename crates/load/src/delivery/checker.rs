//! [`Checker`]: checks received publications, for all who receive any: the sockets of a fan-out, users in
//! groups, and subscriptions of a churn.
//!
//! Every received message is exactly one of:
//! - *received*: a number received for the first time at its receiver; it may also be *reordered*,
//!   received after a later number of its sender, and *late*, received later than allowed after it
//!   was sent;
//! - *duplicated*: received again; *stale*: 64 or more behind the newest, where a first receipt and a
//!   duplicate cannot be distinguished;
//! - *corrupted*: begins like a publication but was changed;
//! - *refused*: its publication was refused by the server, as far as that is known at its receipt;
//! - *foreign*: anything else that the receiver did not expect; *early*: sent before its receiver
//!   arrived; *unexpected*: outside the lifetime of a subscription.
//!
//! *Lost* is judged at the end: sent, and not received. A receipt whose publication is found to be refused
//! later is taken back then, so that it never stands for another.

use engine::Counter;

use serde::{Deserialize, Serialize};

use crate::delivery::publication;
use crate::delivery::publication::Publication;
use crate::delivery::spread::Arrivals;
use crate::delivery::window::{Delivery, Window};
use crate::outcome::metrics::Metrics;
use crate::outcome::timings::Timings;
use crate::{Receiver, Recorder};

/// The most receivers that are listed for their losses.
const WORST_MAX: usize = 10;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Received publications of one worker; see [`DeliveryCounts`].
        #[derive(Default)]
        pub(crate) struct DeliveryCounters {
            $(pub(crate) $name: Counter,)*
        }

        /// Received publications.
        #[derive(Copy, Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub struct DeliveryCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl DeliveryCounters {
            /// The values now.
            pub(crate) fn counts(&self) -> DeliveryCounts {
                DeliveryCounts { $($name: self.$name.get(),)* }
            }
        }

        impl DeliveryCounts {
            /// Those of `received` that were to be expected.
            #[must_use]
            pub fn expected(&self) -> u64 {
                self.received.saturating_sub(self.taken_back)
            }

            /// Without those counted before.
            pub(crate) fn since(&self, before: &DeliveryCounts) -> DeliveryCounts {
                DeliveryCounts { $($name: self.$name.saturating_sub(before.$name),)* }
            }

            /// Adds the counts of other receivers.
            pub fn merge(&mut self, other: &DeliveryCounts) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Received, each number once per receiver.
    received,
    /// Of `received`, those that were not to be expected: refused ones, and those whose publication was
    /// not answered when the run ended.
    taken_back,
    /// Received although the server had refused the publication.
    refused,
    /// Received after a later number; also in `received`.
    reordered,
    /// Received later than allowed after they were sent; also in `received`.
    late,
    /// Received again.
    duplicated,
    /// Received 64 or more behind the newest of their sender.
    stale,
    /// Received with changes.
    corrupted,
    /// Messages that the receiver did not expect.
    foreign,
    /// Sent before the receiver arrived.
    early,
    /// For subscriptions that had ended or did not exist, or published long before them.
    unexpected,
}

/// The receipts of one receiver from one sender.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Track {
    pub(crate) window: Window,
    /// Different numbers received.
    pub(crate) received: u32,
}

const _: () = assert!(size_of::<Track>() == 16);

impl Track {
    /// A number is expected here.
    pub(crate) fn expects(&mut self, number: u32) -> Expected<'_> {
        Expected::At(&mut self.window, &mut self.received, number)
    }
}

/// What a receiver expects of a publication.
pub(crate) enum Expected<'t> {
    /// It is expected at this window and count of different numbers; with its number.
    At(&'t mut Window, &'t mut u32, u32),
    /// It was refused; noted at this window, with its number.
    Refused(&'t mut Window, u32),
    /// Its sender is not expected here.
    Foreign,
    /// See [`DeliveryCounts::early`].
    Early,
    /// See [`DeliveryCounts::unexpected`].
    Unexpected,
    /// It is not counted.
    Ignored,
}

/// One worker's checks. Counts are visible at once, times in batches.
pub(crate) struct Checker {
    late_after_ns: u64,
    /// Publications sent before this are ignored, and corrupted ones received before it.
    since_ns: u64,
    /// Messages that do not begin like a publication are foreign.
    counts_others: bool,
    timings: Timings,
    /// With a fan-out: first and last receipts.
    arrivals: Option<Arrivals>,
}

impl Checker {
    pub(crate) fn new(late_after_ns: u64) -> Checker {
        let (since_ns, timings) = (0, Timings::new());
        Checker { late_after_ns, since_ns, counts_others: true, timings, arrivals: None }
    }

    /// Also times the first and last receipt of each publication.
    pub(crate) fn with_arrivals(self) -> Checker {
        Checker { arrivals: Some(Arrivals::default()), ..self }
    }

    /// Ignores messages that are no publications, as receivers get others too.
    pub(crate) fn among_others(self) -> Checker {
        Checker { counts_others: false, ..self }
    }

    /// Sets the end of the warm-up.
    pub(crate) fn ignore_before(&mut self, since_ns: u64) {
        self.since_ns = since_ns;
    }

    /// Checks a received message. `expect` finds what its receiver expects of a publication. Returns the
    /// number that was received for the first time.
    #[inline]
    pub(crate) fn check<'t>(
        &mut self,
        counts: &DeliveryCounters,
        data: &[u8],
        now_ns: u64,
        expect: impl FnOnce(&Publication) -> Expected<'t>,
    ) -> Option<u32> {
        let Some(text) = publication::find(data) else {
            counts.foreign.add(u64::from(self.counts_others));
            return None;
        };
        let Some(publication) = publication::parse(text) else {
            counts.corrupted.add(u64::from(now_ns >= self.since_ns));
            return None;
        };
        self.receive(counts, &publication, now_ns, expect)
    }

    /// Checks a received publication.
    #[inline]
    pub(crate) fn receive<'t>(
        &mut self,
        counts: &DeliveryCounters,
        publication: &Publication,
        now_ns: u64,
        expect: impl FnOnce(&Publication) -> Expected<'t>,
    ) -> Option<u32> {
        if publication.published_ns < self.since_ns {
            return None;
        }
        let (window, received, number) = match expect(publication) {
            Expected::At(window, received, number) => (window, Some(received), number),
            Expected::Refused(window, number) => (window, None, number),
            Expected::Foreign => return none(&counts.foreign),
            Expected::Early => return none(&counts.early),
            Expected::Unexpected => return none(&counts.unexpected),
            Expected::Ignored => return None,
        };
        match window.note(number) {
            Delivery::InOrder => {}
            Delivery::Reordered => counts.reordered.add(u64::from(received.is_some())),
            Delivery::Duplicate => return none(&counts.duplicated),
            Delivery::Stale => return none(&counts.stale),
        }
        let Some(received) = received else { return none(&counts.refused) };
        counts.received.add(1);
        *received += 1;
        let late = now_ns.saturating_sub(publication.published_ns) > self.late_after_ns;
        counts.late.add(u64::from(late));
        self.timings.received(publication.due_ns, publication.published_ns, now_ns);
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.note(publication, now_ns);
        }
        Some(number)
    }

    /// Its times, which are passed on by their user.
    pub(crate) fn timings(&mut self) -> &mut Timings {
        &mut self.timings
    }

    /// Passes on times, at most every quarter of a second. Returns when to call it next.
    pub(crate) fn flush(&mut self, metrics: &Metrics, now_ns: u64) -> Option<u64> {
        if self.timings.flush(&metrics.timed, now_ns)
            && let Some(arrivals) = &mut self.arrivals
        {
            metrics.arrivals().merge(arrivals);
        }
        self.timings.next_ns()
    }

    /// Passes on the rest of the times.
    pub(crate) fn flush_rest(&mut self, metrics: &Metrics) {
        self.timings.flush_rest(&metrics.timed);
        if let Some(arrivals) = &mut self.arrivals {
            metrics.arrivals().merge(arrivals);
        }
    }

    /// Adds all times to `all`.
    pub(crate) fn drain(&mut self, all: &mut Recorder) {
        self.timings.drain(all);
    }
}

fn none(count: &Counter) -> Option<u32> {
    count.add(1);
    None
}

/// Adds a receiver that lost publications. Keeps some more than are listed.
pub(crate) fn add_worst(receivers: &mut Vec<Receiver>, receiver: Receiver) {
    receivers.push(receiver);
    if receivers.len() > 64 * WORST_MAX {
        keep_worst(receivers);
    }
}

/// Keeps the [`WORST_MAX`] receivers that lost most.
pub(crate) fn keep_worst(receivers: &mut Vec<Receiver>) {
    receivers.sort_by_key(|receiver| (std::cmp::Reverse(receiver.lost), receiver.connection));
    receivers.truncate(WORST_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Series;

    const MS: u64 = 1_000_000;

    fn text(publication: &Publication) -> Vec<u8> {
        publication::encode(publication, 0).into_bytes()
    }

    #[test]
    fn every_message_is_one_of_them() {
        let (counts, mut checker) = (DeliveryCounters::default(), Checker::new(100 * MS));
        let mut track = Track::default();
        let mut of = |sequence, now_ns| {
            let publication = Publication::new(1, sequence, 0);
            checker.check(&counts, &text(&publication), now_ns, |_| track.expects(sequence))
        };
        assert_eq!(
            [of(0, 1), of(2, 1), of(1, 101 * MS), of(2, 1)],
            [Some(0), Some(2), Some(1), None]
        );
        assert_eq!([of(99, 1), of(3, 1)], [Some(99), None]);
        let one = text(&Publication::new(2, 7, 0));
        for expected in [Expected::Foreign, Expected::Early, Expected::Unexpected] {
            assert_eq!(checker.check(&counts, &one, 1, |_| expected), None);
        }
        assert_eq!(checker.check(&counts, &one, 1, |_| Expected::Ignored), None);
        assert_eq!(checker.check(&counts, b"sf1 1 2 3 ffffffff", 1, |_| Expected::Early), None);
        assert_eq!(checker.check(&counts, b"hello", 1, |_| Expected::Early), None);
        let expected = DeliveryCounts {
            received: 4,
            taken_back: 0,
            refused: 0,
            reordered: 1,
            late: 1,
            duplicated: 1,
            stale: 1,
            corrupted: 1,
            foreign: 2,
            early: 1,
            unexpected: 1,
        };
        assert_eq!((counts.counts(), track.received), (expected, 4));
    }

    #[test]
    fn warm_up_and_other_messages_are_ignored() {
        let counts = DeliveryCounters::default();
        let mut checker = Checker::new(1).among_others();
        checker.ignore_before(10);
        for data in [&text(&Publication::new(1, 0, 9))[..], b"sf1 1 2 3 ffffffff", b"hello"] {
            assert_eq!(checker.check(&counts, data, 9, |_| Expected::Foreign), None);
        }
        assert_eq!(counts.counts(), DeliveryCounts::default());
    }

    #[test]
    fn receipts_are_timed_from_due_and_from_send() {
        let (counts, mut checker) = (DeliveryCounters::default(), Checker::new(u64::MAX));
        let (mut track, mut all) = (Track::default(), Recorder::default());
        // Due at 1 ms, sent at 901 ms, received at 903 ms.
        let publication = Publication { due_ns: MS, ..Publication::new(1, 0, 901 * MS) };
        let data = text(&publication);
        assert_eq!(checker.check(&counts, &data, 903 * MS, |_| track.expects(0)), Some(0));
        checker.drain(&mut all);
        let max = |series| all.latency(series).unwrap().max_ms.round();
        assert_eq!([Series::Broadcast, Series::FromSend].map(max), [902.0, 2.0]);
    }
}
