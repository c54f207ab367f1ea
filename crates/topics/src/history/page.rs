//! [`History::page`]: reads kept publications for others than subscribers.

use std::sync::Arc;

use super::{Epoch, History, Start, Unavailable};

/// Part of the history of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryPage {
    /// The epoch of the offsets.
    pub epoch: Epoch,
    /// The offset of the oldest one that is kept, or of the next one if none is.
    pub first: u64,
    /// The offset of the last publication.
    pub last: u64,
    /// In order, without any missing.
    pub messages: Vec<KeptMessage>,
}

/// A kept publication, for readers other than subscribers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptMessage {
    /// Its offset.
    pub offset: u64,
    /// When it was published, by the monotonic clock.
    pub at_ns: u64,
    /// The payload.
    pub data: Arc<[u8]>,
    /// The payload is binary, not text.
    pub binary: bool,
    /// The kind of message reported to receivers, if there is one.
    pub kind: Option<Arc<str>>,
}

impl History {
    /// Kept publications of a topic, from the oldest or from `start` on: up to `limit`, and up to
    /// `bytes_max` of payload, but at least one.
    ///
    /// # Errors
    /// Why not all of them are available.
    pub fn page(
        &self,
        topic: &str,
        start: Option<Start>,
        limit: usize,
        bytes_max: usize,
        now_ns: u64,
    ) -> Result<HistoryPage, Unavailable> {
        self.read(topic, now_ns, |view| {
            let first = match start {
                Some(start) => view.first(start)?.offset,
                None => view.position().map(|_| view.lowest()).ok_or(Unavailable::Evicted)?,
            };
            let mut bytes = 0;
            let mut messages = Vec::new();
            let from = view.topic.map_or(0, |topic| topic.index_from(first));
            let kept = |index| view.topic.and_then(|topic| topic.at(index));
            for (offset, kept) in (from..).map_while(kept) {
                bytes += kept.data.len();
                if messages.len() == limit || bytes > bytes_max && !messages.is_empty() {
                    break;
                }
                messages.push(kept.message(offset));
            }
            let (epoch, first, last) = (view.epoch(), view.lowest(), view.last());
            Ok(HistoryPage { epoch, first, last, messages })
        })
    }
}
