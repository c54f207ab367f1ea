//! [`ConnId`]: identifies a connection, and is safe to keep after the connection has closed.

use std::fmt;

/// Most workers of a process: 10 bits of a [`ConnId`].
pub const WORKERS_MAX: usize = 1 << 10;
/// Most connections of a worker at a time: 22 bits of a [`ConnId`].
pub const SLOTS_MAX: u32 = 1 << 22;

/// Identifies one connection of a process in 8 bytes: worker, slot and generation. A slot is
/// reused, a generation is not (until 2³² connections of that worker later), so sending to a stale
/// id has no effect.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    pub(crate) fn new(worker: u16, slot: u32, generation: u32) -> Self {
        debug_assert!(usize::from(worker) < WORKERS_MAX && slot < SLOTS_MAX);
        ConnId(u64::from(worker) << 54 | u64::from(slot) << 32 | u64::from(generation))
    }

    /// The smallest id of a connection in a slot.
    #[must_use]
    pub fn first_at(worker: u16, slot: u32) -> Self {
        ConnId::new(worker, slot, 0)
    }

    /// The worker that owns the connection.
    #[must_use]
    pub fn worker(self) -> u16 {
        (self.0 >> 54) as u16
    }

    /// The same slot and generation at another worker. Where each of several workers is the only one of its server, all
    /// have the same number: a program that numbers them itself tells their connections apart so.
    #[must_use]
    pub fn at_worker(self, worker: u16) -> Self {
        ConnId::new(worker, self.slot(), self.generation())
    }

    /// The connection's slot in that worker's slab.
    #[must_use]
    pub fn slot(self) -> u32 {
        (self.0 >> 32) as u32 & (SLOTS_MAX - 1)
    }

    /// Tells apart the connections that used the slot.
    #[must_use]
    pub fn generation(self) -> u32 {
        self.0 as u32
    }

    /// The id as a number, for logs and JSON.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// The id whose [`ConnId::as_u64`] is this number. Any number is accepted; it may identify no
    /// connection.
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        ConnId(number)
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.worker(), self.slot(), self.generation())
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_at_their_limits() {
        for (worker, slot, generation) in [(0, 0, 0), (1023, SLOTS_MAX - 1, u32::MAX), (53, 7, 9)] {
            let id = ConnId::new(worker, slot, generation);
            assert_eq!((id.worker(), id.slot(), id.generation()), (worker, slot, generation));
            assert_eq!(ConnId::from_u64(id.as_u64()), id);
        }
    }
}
