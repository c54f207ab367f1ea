//! [`SubscriberLog`]: what one client noticed, in order.

use engine::Closed;

/// All that one client noticed.
#[derive(Clone, Debug, Default)]
pub struct SubscriberLog {
    /// The number of the client.
    pub client: u32,
    /// The number of its topic.
    pub topic: u32,
    /// In the order of time.
    pub records: Vec<Record>,
    /// Events that were not logged, because there were too many.
    pub unlogged: u64,
}

/// One event and when it was noticed, in nanoseconds of the monotonic clock.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The time.
    pub at_ns: u64,
    /// What happened.
    pub event: Event,
}

/// What a client notices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Subscribed, at this endpoint.
    Subscribed {
        /// The number of the endpoint.
        endpoint: u8,
    },
    /// The subscription ended with its connection.
    Ended {
        /// Why, as far as the client knows.
        why: Closed,
    },
    /// The server told that publications may be missing, with the connection still open.
    Gap,
    /// A publication.
    Received {
        /// Its publisher.
        publisher: u32,
        /// Its number.
        sequence: u32,
    },
    /// A message that is no publication, or was changed.
    Damaged,
}

const _: () = assert!(size_of::<Record>() == 24);

impl SubscriberLog {
    /// Adds an event unless there are `most` already.
    pub(crate) fn note(&mut self, at_ns: u64, event: Event, most: usize) {
        if self.records.len() < most {
            self.records.push(Record { at_ns, event });
        } else {
            self.unlogged += 1;
        }
    }
}
