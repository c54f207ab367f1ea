//! [`TopicHistory`]: what is kept of one topic.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::ConnId;

use super::given::Given;
use super::{KeptMessage, Position};
use crate::directory::Publication;

/// Memory of a kept publication beyond its payload, and of a topic's entry beyond its name, in bytes: the
/// spare room of lists and tables included. Measured.
const KEPT_BYTES: usize = 144;
const TOPIC_BYTES: usize = 384;

/// A kept publication.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) data: Arc<[u8]>,
    kind: Option<Arc<str>>,
    except: Option<ConnId>,
    pub(super) at_ns: u64,
    binary: bool,
}

impl Kept {
    pub(super) fn new(publication: &Publication, at_ns: u64) -> Self {
        Kept {
            data: Arc::clone(&publication.data),
            kind: publication.kind.clone(),
            except: publication.except,
            at_ns,
            binary: publication.binary,
        }
    }

    pub(super) fn message(&self, offset: u64) -> KeptMessage {
        KeptMessage {
            offset,
            at_ns: self.at_ns,
            data: Arc::clone(&self.data),
            binary: self.binary,
            kind: self.kind.clone(),
        }
    }

    pub(super) fn publication(&self, topic: &Arc<str>, position: Position) -> Publication {
        let data = Arc::clone(&self.data);
        let mut publication = Publication::new(Arc::clone(topic), data, self.binary);
        publication.kind.clone_from(&self.kind);
        publication.except = self.except;
        publication.set_position(Some(position));
        publication
    }

    /// The bytes that count for a publication.
    pub(super) fn bytes_of(publication: &Publication) -> usize {
        bytes_of(&publication.data, publication.kind.as_deref())
    }

    pub(super) fn bytes(&self) -> usize {
        bytes_of(&self.data, self.kind.as_deref())
    }
}

fn bytes_of(data: &[u8], kind: Option<&str>) -> usize {
    KEPT_BYTES + data.len() + kind.map_or(0, str::len)
}

/// One topic.
pub(super) struct TopicHistory {
    pub(super) name: Arc<str>,
    /// Oldest first, numbered without gaps.
    pub(super) kept: VecDeque<Kept>,
    /// The number of the first of them; of the next publication if there is none. Numbers are offsets, unless
    /// those are `given`.
    pub(super) lowest: u64,
    /// Of what is kept.
    pub(super) bytes: usize,
    /// When the last evicted publication was published.
    pub(super) lost_ns: u64,
    /// The offsets that somebody else gave.
    pub(super) given: Option<Box<Given>>,
    /// Its entry stays, if there is room, even if it has been without publications for long.
    pub(super) followed: bool,
}

impl TopicHistory {
    /// Without publications; the next one has the number `lowest`.
    pub(super) fn new(name: &Arc<str>, lowest: u64, lost_ns: u64) -> Self {
        TopicHistory {
            name: Arc::clone(name),
            kept: VecDeque::new(),
            lowest,
            bytes: 0,
            lost_ns,
            given: None,
            followed: false,
        }
    }

    pub(super) fn bytes_of(name: &str) -> usize {
        TOPIC_BYTES + name.len()
    }

    /// The same of a topic whose offsets are given.
    pub(super) fn bytes_of_given(name: &str) -> usize {
        TOPIC_BYTES + Given::TOPIC_BYTES + name.len()
    }

    pub(super) fn entry_bytes(&self) -> usize {
        let given = if self.given.is_some() { Given::TOPIC_BYTES } else { 0 };
        TOPIC_BYTES + given + self.name.len()
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The number of the next publication.
    pub(super) fn next(&self) -> u64 {
        self.lowest + self.kept.len() as u64
    }

    /// Whether the publication with a number is kept.
    pub(super) fn holds(&self, number: u64) -> bool {
        (self.lowest..self.next()).contains(&number)
    }

    /// The offset of the last publication.
    pub(super) fn last(&self) -> u64 {
        self.given.as_ref().map_or_else(|| self.next() - 1, |given| given.last)
    }

    /// All that was published after this offset is kept.
    pub(super) fn floor(&self) -> u64 {
        self.given.as_ref().map_or(self.lowest - 1, |given| given.floor)
    }

    /// How many publications are kept.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// One of those that are kept, from 0 on, with its offset.
    pub(super) fn at(&self, index: usize) -> Option<(u64, &Kept)> {
        let offset = match &self.given {
            Some(given) => *given.offsets.get(index)?,
            None => self.lowest + index as u64,
        };
        Some((offset, self.kept.get(index)?))
    }

    /// Where those that are kept reach an offset.
    pub(super) fn index_from(&self, offset: u64) -> usize {
        match &self.given {
            Some(given) => given.index_from(offset),
            None => usize::try_from(offset.saturating_sub(self.lowest)).unwrap_or(usize::MAX),
        }
    }

    /// The offset from which on all were published at or after a time.
    pub(super) fn first_since(&self, since_ns: u64) -> u64 {
        let index = self.kept.partition_point(|kept| kept.at_ns < since_ns);
        self.at(index).map_or_else(|| self.last() + 1, |(offset, _)| offset)
    }

    /// Removes the oldest; returns its bytes.
    pub(super) fn pop(&mut self) -> Option<usize> {
        let kept = self.kept.pop_front()?;
        let mut bytes = kept.bytes();
        self.lowest += 1;
        if let Some(given) = &mut self.given {
            bytes += Given::KEPT_BYTES;
            given.pop();
        }
        self.bytes -= bytes;
        self.lost_ns = kept.at_ns;
        if self.kept.is_empty() {
            self.kept = VecDeque::new();
        } else if self.kept.capacity() > 16 && self.kept.len() < self.kept.capacity() / 4 {
            self.kept.shrink_to(2 * self.kept.len());
        }
        Some(bytes)
    }
}
