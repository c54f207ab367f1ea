//! [`View`]: what readers get of one topic.

use super::topic::TopicHistory;
use super::{Epoch, Position, Start, Unavailable};
use crate::directory::Publication;

/// One topic under its lock.
pub(crate) struct View<'s> {
    epoch: Epoch,
    /// Its entry, unless it was never published to or is forgotten.
    pub(super) topic: Option<&'s TopicHistory>,
    /// The offset of the last publication; `None` if nothing is known.
    last: Option<u64>,
    /// All that was published after this offset is kept.
    floor: u64,
    /// So is all that was published after this time.
    lost_ns: u64,
}

impl<'s> View<'s> {
    /// A topic with an entry, in a history that gives offsets of this epoch since this time.
    pub(super) fn of(topic: &'s TopicHistory, epoch: Epoch, started_ns: u64) -> Self {
        let (epoch, started_ns) = match &topic.given {
            Some(given) => (given.epoch, 0),
            None => (epoch, started_ns),
        };
        let lost_ns = topic.lost_ns.max(started_ns);
        let (last, floor) = (Some(topic.last()), topic.floor());
        View { epoch, topic: Some(topic), last, floor, lost_ns }
    }

    /// A topic without an entry.
    pub(super) fn forgotten(epoch: Epoch, last: u64, lost_ns: u64) -> Self {
        View { epoch, topic: None, last: Some(last), floor: last, lost_ns }
    }

    /// A topic that a replica does not know.
    pub(super) fn unknown() -> Self {
        View { epoch: Epoch::default(), topic: None, last: None, floor: 0, lost_ns: u64::MAX }
    }

    /// The position of the last publication.
    pub(crate) fn position(&self) -> Option<Position> {
        Some(Position { epoch: self.epoch, offset: self.last? })
    }

    /// The position after which all that was published is kept.
    pub(super) fn floor(&self) -> Option<Position> {
        self.last.map(|_| Position { epoch: self.epoch, offset: self.floor })
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The offset of the last publication; 0 if none is known.
    pub(super) fn last(&self) -> u64 {
        self.last.unwrap_or(0)
    }

    /// The offset of the oldest publication that is kept, or of the next one if there is none.
    pub(super) fn lowest(&self) -> u64 {
        let oldest = self.topic.and_then(|topic| topic.at(0));
        oldest.map_or_else(|| self.last() + 1, |(offset, _)| offset)
    }

    pub(super) fn first(&self, start: Start) -> Result<Position, Unavailable> {
        let Some(last) = self.last else { return Err(Unavailable::Evicted) };
        let offset = match start {
            Start::After(position) if position.epoch != self.epoch => {
                return Err(Unavailable::Epoch);
            }
            Start::After(position) if position.offset > last => return Err(Unavailable::Ahead),
            Start::After(position) if position.offset < self.floor => {
                return Err(Unavailable::Evicted);
            }
            Start::After(position) => position.offset + 1,
            Start::Since(since_ns) if since_ns <= self.lost_ns => {
                return Err(Unavailable::Evicted);
            }
            Start::Since(since_ns) => {
                self.topic.map_or(last + 1, |topic| topic.first_since(since_ns))
            }
        };
        Ok(Position { epoch: self.epoch, offset })
    }

    /// The offsets of the first and the last publication of the piece that comes next, where a piece ends with each
    /// multiple of about so many publications; `None` if there is none.
    ///
    /// # Errors
    /// Not all of them are kept any more.
    pub(crate) fn piece(
        &self,
        next: Position,
        messages: u64,
    ) -> Result<Option<(u64, u64)>, Unavailable> {
        let last = self.last.ok_or(Unavailable::Evicted)?;
        if next.epoch != self.epoch {
            return Err(Unavailable::Epoch);
        }
        if next.offset > last {
            return Ok(None);
        }
        if next.offset <= self.floor {
            return Err(Unavailable::Evicted);
        }
        let topic = self.topic.ok_or(Unavailable::Evicted)?;
        let Some((first, _)) = topic.at(topic.index_from(next.offset)) else { return Ok(None) };
        // Where numbers are left out, there are fewer publications up to the next multiple.
        let each = (last - self.floor) / (topic.len() as u64).max(1);
        let span = messages.saturating_mul(each.max(1).next_power_of_two());
        Ok(Some((first, last.min(((first - 1) / span + 1).saturating_mul(span)))))
    }

    /// The publications from `first` to `last`, up to a number of bytes, but at least one; and the offset up to
    /// which these are all.
    ///
    /// # Errors
    /// Some of them are not kept any more.
    pub(crate) fn publications(
        &self,
        first: u64,
        last: u64,
        bytes_max: usize,
    ) -> Result<(Vec<Publication>, u64), Unavailable> {
        let topic = self.topic.filter(|_| first > self.floor).ok_or(Unavailable::Evicted)?;
        let mut bytes = 0;
        let mut all = Vec::new();
        let mut through = last;
        let from = topic.index_from(first);
        for (offset, kept) in (from..topic.len()).map_while(|index| topic.at(index)) {
            if offset > last {
                break;
            }
            bytes += kept.data.len();
            if bytes > bytes_max && !all.is_empty() {
                through = offset - 1;
                break;
            }
            let position = Position { epoch: self.epoch, offset };
            all.push(kept.publication(topic.name(), position));
        }
        Ok((all, through))
    }
}
