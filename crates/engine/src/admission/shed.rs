//! Load shedding: which connections are closed to keep the process within its memory limit, in this
//! order: handshakes in flight, idle plain HTTP connections, the longest idle, slow consumers.
//! Never all at once: each round closes a share.
//!
//! A connection that is neither idle nor slow stays; then only new ones are refused.

use wire::websocket::CloseCode;

use super::Refusal;
use crate::conn::{Flags, Mode};
use crate::core::Core;
use crate::invariant::broken;
use crate::limits::{EVICTION_LOOKS, SHED_LOOKS, SHED_MAX, SHED_MIN, SHED_SHARE};
use crate::sys::Sys;
use crate::{Closed, Handler};

/// A connection's priority for shedding: the greatest is closed first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A slow consumer, by bytes in its queue.
    Slow(usize),
    /// An idle connection, by ticks of silence.
    Idle(u16),
    /// Answered over plain HTTP, and waiting for another request.
    Plain,
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Evicts this worker's oldest handshake in flight.
    pub(super) fn evict_oldest_handshake(&mut self, why: Refusal) -> bool {
        let mut at = 0;
        for _ in 0..EVICTION_LOOKS {
            let Some(deadline) = self.timers.handshake.get(at) else { return false };
            let conn = self.slab.get(deadline.slot);
            let conn = conn.filter(|conn| conn.generation == deadline.generation);
            match conn.map(|conn| (conn.mode, conn.flags)) {
                Some((Mode::Http, flags)) if Self::is_in_flight(flags) => {
                    self.evict(deadline.slot, why);
                    return true;
                }
                Some((Mode::Http | Mode::Parked | Mode::Connecting, _)) => at += 1,
                // The deadline is stale.
                _ if at == 0 => self.drop_first_deadline(),
                _ => at += 1,
            }
        }
        false
    }

    fn drop_first_deadline(&mut self) {
        let Some(deadline) = self.timers.handshake.pop(u64::MAX) else {
            return broken("a deadline that was looked at is still queued");
        };
        let conn = self.slab.get_mut(deadline.slot);
        let Some(conn) = conn.filter(|conn| conn.generation == deadline.generation) else { return };
        let before = conn.flags;
        conn.flags.clear(Flags::DEADLINE);
        self.handshake_ended(before);
    }

    /// One round of shedding.
    pub(crate) fn shed(&mut self) {
        let share = (self.slab.live() / SHED_SHARE).clamp(SHED_MIN, SHED_MAX);
        let mut left = share as usize;
        while left > 0 && self.evict_oldest_handshake(Refusal::MemoryLimit) {
            left -= 1;
        }
        for (_, slot) in self.shed_next(left) {
            self.counters().shed.add(1);
            let code = Some(CloseCode::TRY_AGAIN_LATER);
            self.close_with(slot, Closed::Shed, code, "the server is short of memory");
        }
    }

    /// Up to `count` slots to shed, the highest priority first, among those that this round
    /// examines.
    fn shed_next(&mut self, count: usize) -> Vec<(Rank, u32)> {
        let end = self.slab.end();
        let from = if self.shed_slot < end { self.shed_slot } else { 0 };
        let to = from.saturating_add(SHED_LOOKS).min(end);
        self.shed_slot = to;
        let mut ranked: Vec<(Rank, u32)> =
            (from..to).filter_map(|slot| Some((self.rank(slot)?, slot))).collect();
        ranked.sort_unstable_by(|one, other| other.cmp(one));
        ranked.truncate(count);
        ranked
    }

    fn rank(&self, slot: u32) -> Option<Rank> {
        let conn = self.slab.get(slot).filter(|conn| !conn.is_client())?;
        let idle = self.tick.wrapping_sub(conn.last_active);
        match conn.mode {
            Mode::Http if conn.flags.has(Flags::ANSWERED) => Some(Rank::Plain),
            Mode::WebSocket | Mode::Raw if self.timers.is_quiet(idle) => Some(Rank::Idle(idle)),
            Mode::WebSocket | Mode::Raw if conn.backlog() > 0 => Some(Rank::Slow(conn.weight())),
            _ => None,
        }
    }
}
