//! What a broker keeps of a topic, where it keeps publications ([`crate::Settings::history`]): each has a position
//! there, the same for all nodes.

use std::time::Duration;

use crate::envelope::Message;

/// How much of each topic a broker keeps.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct HistorySettings {
    /// Publications.
    pub messages: usize,
    /// How long.
    pub age: Duration,
}

/// The place of a kept publication in its topic. Offsets rise, and may leave numbers out.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// Offsets of different epochs are not comparable: a broker that may have lost some begins another one.
    pub epoch: u32,
    /// Its number, from 1 on.
    pub offset: u64,
}

/// Where and when a publication was kept.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Its place.
    pub position: Position,
    /// The broker's time, in milliseconds since 1970.
    pub time_ms: u64,
}

/// What a broker has of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Past<'b> {
    /// The epoch of its offsets.
    pub epoch: u32,
    /// All that was published after this offset is in `messages`.
    pub floor: u64,
    /// So is all that was published after this time, in milliseconds since 1970.
    pub floor_ms: u64,
    /// The offset of the last publication; 0 if there was none in this epoch. It may not be kept any more.
    pub last: u64,
    /// In the order of their offsets, none of them twice.
    pub messages: Vec<(Kept, Message<'b>)>,
}
