//! [`PublishCounters`]: publications begun and accepted per stream. Publishers write them; receivers read
//! them when a subscription begins and ends, to know which publications to expect. Of the newest numbers it
//! is kept when the publication was sent, because the number of a refused one is used again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde_json::Value;

/// The counters of all streams of a churn. Each has one publisher and at most one publication in flight,
/// so that its publications are ordered.
pub(crate) struct PublishCounters {
    streams: Vec<Stream>,
}

struct Stream {
    /// The name as JSON.
    name: String,
    /// Publications whose request may have been sent.
    begun: AtomicU32,
    /// Publications that the server has accepted, or may have.
    taken: AtomicU32,
    /// When the last one that was refused was sent.
    refused_ns: AtomicU64,
    /// By number: when the newest [`KEPT`] were sent.
    sent_ns: [AtomicU64; KEPT as usize],
}

/// Numbers of a stream of which it is kept when they were sent.
const KEPT: u32 = 64;

/// What is known of a publication that was received.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    Accepted,
    Refused,
    /// It is not answered yet.
    Unanswered,
}

impl PublishCounters {
    pub(crate) fn new(names: &[String]) -> PublishCounters {
        let stream = |name: &String| Stream {
            name: Value::from(name.as_str()).to_string(),
            begun: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            refused_ns: AtomicU64::new(0),
            sent_ns: [const { AtomicU64::new(0) }; KEPT as usize],
        };
        PublishCounters { streams: names.iter().map(stream).collect() }
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The name of a stream as JSON.
    pub(crate) fn name(&self, stream: usize) -> &str {
        self.streams.get(stream).map_or("null", |stream| &stream.name)
    }

    /// Begins the next publication of a stream and returns its number.
    pub(crate) fn begin(&self, stream: usize, now_ns: u64) -> u32 {
        let Some(stream) = self.streams.get(stream) else { return 0 };
        let number = stream.taken.load(Ordering::Relaxed);
        if let Some(sent_ns) = stream.sent_ns.get((number % KEPT) as usize) {
            sent_ns.store(now_ns, Ordering::SeqCst);
        }
        stream.begun.store(number + 1, Ordering::SeqCst);
        number
    }

    /// Notes that the begun publication was refused: its number is reused.
    pub(crate) fn refused(&self, stream: usize) {
        let Some(stream) = self.streams.get(stream) else { return };
        let number = stream.taken.load(Ordering::Relaxed);
        if let Some(sent_ns) = stream.sent_ns.get((number % KEPT) as usize) {
            stream.refused_ns.store(sent_ns.load(Ordering::Relaxed), Ordering::SeqCst);
        }
    }

    /// What is known of the publication with this number that was sent at this time. One that is 64 or more
    /// behind was accepted.
    pub(crate) fn known(&self, stream: u32, number: u32, sent_ns: u64) -> Known {
        let Some(stream) = self.streams.get(stream as usize) else { return Known::Accepted };
        let taken = || stream.taken.load(Ordering::SeqCst);
        let is_taken = number < taken();
        let refused_ns = stream.refused_ns.load(Ordering::SeqCst);
        let of_number = stream.sent_ns.get((number % KEPT) as usize);
        let is_it = of_number.is_some_and(|of| of.load(Ordering::SeqCst) == sent_ns);
        if taken().saturating_sub(number) >= KEPT {
            return Known::Accepted;
        }
        match (is_it, is_taken) {
            (true, true) => Known::Accepted,
            (true, false) if refused_ns != sent_ns => Known::Unanswered,
            _ => Known::Refused,
        }
    }

    /// Counts the begun publication as accepted. Without this call its number is reused.
    pub(crate) fn taken(&self, stream: usize) {
        if let Some(stream) = self.streams.get(stream) {
            stream.taken.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The first number that has not begun yet.
    pub(crate) fn begun_now(&self, stream: u32) -> u32 {
        self.streams.get(stream as usize).map_or(0, |stream| stream.begun.load(Ordering::SeqCst))
    }

    /// The number below which all publications are accepted.
    pub(crate) fn taken_now(&self, stream: u32) -> u32 {
        self.streams.get(stream as usize).map_or(0, |stream| stream.taken.load(Ordering::SeqCst))
    }

    /// The accepted publications of all streams.
    pub(crate) fn published(&self) -> u64 {
        self.streams.iter().map(|stream| u64::from(stream.taken.load(Ordering::SeqCst))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_publication_has_begun_and_is_not_accepted() {
        let counters = PublishCounters::new(&["a".to_owned()]);
        assert_eq!(counters.begin(0, 10), 0);
        assert_eq!((counters.begun_now(0), counters.taken_now(0)), (1, 0));
        assert_eq!(counters.known(0, 0, 10), Known::Unanswered);
        counters.refused(0);
        assert_eq!(counters.known(0, 0, 10), Known::Refused);
        assert_eq!(counters.begin(0, 20), 0, "refused, so the number is free");
        let known = [10, 20].map(|sent_ns| counters.known(0, 0, sent_ns));
        assert_eq!(known, [Known::Refused, Known::Unanswered]);
        counters.taken(0);
        let known = [10, 20].map(|sent_ns| counters.known(0, 0, sent_ns));
        assert_eq!(known, [Known::Refused, Known::Accepted]);
        assert_eq!(
            (counters.begin(0, 30), counters.begun_now(0), counters.taken_now(0)),
            (1, 2, 1)
        );
        assert_eq!(counters.published(), 1);
        for number in 1..=KEPT {
            counters.taken(0);
            assert_eq!(counters.begin(0, 30), number + 1);
        }
        assert_eq!(counters.known(0, 0, 10), Known::Accepted, "long ago");
    }
}
