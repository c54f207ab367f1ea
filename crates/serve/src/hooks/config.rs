//! [`WebhookConfig`]: which events are posted where.

use std::time::Duration;

use engine::TlsClient;

use super::batcher::BatchLimits;
use super::event::EventKind;
use crate::app::PostUrl;
use crate::auth::Secret;

/// A set of kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKinds(u8);

impl EventKinds {
    /// All kinds.
    pub const ALL: EventKinds = EventKinds((1 << EventKind::ALL.len()) - 1);

    /// The kinds with these names, or the first name that is none.
    ///
    /// # Errors
    /// The unknown name.
    pub fn named<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self, &'n str> {
        let mut set = 0;
        for name in names {
            let kind = EventKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or(name)?;
            set |= 1 << kind as u8;
        }
        Ok(EventKinds(set))
    }

    /// The names of all kinds.
    pub fn names() -> impl Iterator<Item = &'static str> {
        EventKind::ALL.into_iter().map(EventKind::name)
    }

    pub(crate) fn contains(self, kind: EventKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// Whether the first and the last subscriber of topics are to be noticed.
    pub(crate) fn has_occupancy(self) -> bool {
        self.contains(EventKind::Occupied) || self.contains(EventKind::Vacant)
    }
}

/// Which events are posted where. Taken at start only.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// The receivers; each gets every event.
    pub urls: Vec<PostUrl>,
    /// TLS to each of them, if it has TLS.
    pub tls: Vec<Option<TlsClient>>,
    /// Signs the bodies.
    pub secret: Option<Secret>,
    /// What is reported. Default: all.
    pub events: EventKinds,
    /// Events of a batch. Default 100.
    pub batch_events: usize,
    /// Bytes of a batch. Default 256 KiB.
    pub batch_bytes: usize,
    /// How long an event waits for others. Default 100 ms.
    pub window: Duration,
    /// Time for a request. Default 5 s.
    pub timeout: Duration,
    /// Memory of the events that wait for one receiver, in bytes. Default 16 MiB.
    pub queue_bytes: usize,
    /// Age at which events are dropped. Default 5 min.
    pub max_age: Duration,
    /// How long a topic has to be without a subscriber. Default 2 s.
    pub vacant_delay: Duration,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        WebhookConfig {
            urls: Vec::new(),
            tls: Vec::new(),
            secret: None,
            events: EventKinds::ALL,
            batch_events: 100,
            batch_bytes: 256 * 1024,
            window: Duration::from_millis(100),
            timeout: Duration::from_secs(5),
            queue_bytes: 16 << 20,
            max_age: Duration::from_secs(300),
            vacant_delay: Duration::from_secs(2),
        }
    }
}

impl WebhookConfig {
    pub(super) fn batch_limits(&self) -> BatchLimits {
        BatchLimits {
            events: self.batch_events.max(1),
            bytes: self.batch_bytes,
            window_ns: nanoseconds(self.window),
            queue_bytes: self.queue_bytes,
            age_ns: nanoseconds(self.max_age),
        }
    }

    pub(super) fn vacant_delay_ns(&self) -> u64 {
        nanoseconds(self.vacant_delay)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_chosen_by_name() {
        let chosen = EventKinds::named(["connect", "vacant"]).unwrap();
        assert!(chosen.contains(EventKind::Connect) && chosen.contains(EventKind::Vacant));
        assert!(!chosen.contains(EventKind::Occupied) && chosen.has_occupancy());
        assert_eq!(EventKinds::named(EventKinds::names()), Ok(EventKinds::ALL));
        assert_eq!(EventKinds::named(["connect", "message"]), Err("message"));
        assert!(!EventKinds::named(["subscribe"]).unwrap().has_occupancy());
    }
}
