//! [`PublishCounters`]: publications begun and accepted per stream. Publishers write them; receivers read
//! them when a subscription begins and ends, to know which publications to expect. No history is kept.

use std::sync::atomic::{AtomicU32, Ordering};

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
}

impl PublishCounters {
    pub(crate) fn new(names: &[String]) -> PublishCounters {
        let stream = |name: &String| Stream {
            name: Value::from(name.as_str()).to_string(),
            begun: AtomicU32::new(0),
            taken: AtomicU32::new(0),
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
    pub(crate) fn begin(&self, stream: usize) -> u32 {
        let Some(stream) = self.streams.get(stream) else { return 0 };
        let number = stream.taken.load(Ordering::Relaxed);
        stream.begun.store(number + 1, Ordering::SeqCst);
        number
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
        assert_eq!(counters.begin(0), 0);
        assert_eq!((counters.begun_now(0), counters.taken_now(0)), (1, 0));
        assert_eq!(counters.begin(0), 0, "refused, so the number is free");
        counters.taken(0);
        assert_eq!((counters.begin(0), counters.begun_now(0), counters.taken_now(0)), (1, 2, 1));
        assert_eq!(counters.published(), 1);
    }
}
