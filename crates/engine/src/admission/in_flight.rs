//! Handshakes in flight: accepted connections whose first head is incomplete. Those that stay so are
//! limited; a storm of clients whose requests arrive late is not.
//!
//! In a storm clients are connected long before they can send: their own machine is busy, and
//! `TCP_DEFER_ACCEPT` does not hold for connections that came by a SYN cookie. So a handshake can be
//! refused only when nothing came for half of its time, or only a part of a head in [`HEAD_GRACE`],
//! and its socket has nothing to read; and each one that completed within the last seconds allows
//! for another.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Refusal, SECOND_NS};
use crate::conn::{Conn, Flags, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::{EVICTION_LOOKS, EVICTIONS_PER_TURN, HEAD_GRACE};
use crate::sys::Sys;
use crate::timers::nanoseconds;
use crate::worker::Worker;
use crate::{Closed, Handler};

/// Seconds over which completed handshakes are counted, with the current one.
const DRAINED_SECONDS: usize = 8;

/// How many handshakes completed within the last seconds, by second: number of the second in the
/// upper half, count in the lower.
#[derive(Default)]
pub(crate) struct Drained([AtomicU64; DRAINED_SECONDS]);

impl Drained {
    /// Counts a handshake that was in flight and completed.
    pub(super) fn count(&self, now_ns: u64) {
        let second = (now_ns / SECOND_NS) & u64::from(u32::MAX);
        let Some(bucket) = self.0.get(second as usize % DRAINED_SECONDS) else { return };
        let step = |entry: u64| {
            let current = entry >> 32 == second;
            // Another thread's clock may be a moment ahead: then this one is not counted.
            let later = (second as u32).wrapping_sub((entry >> 32) as u32) > u32::MAX / 2;
            let full = current && entry as u32 == u32::MAX;
            let next = if current { entry.saturating_add(1) } else { second << 32 | 1 };
            (!later && !full).then_some(next)
        };
        let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }

    /// Handshakes completed in this second and the ones before.
    fn recent(&self, now_ns: u64) -> u32 {
        let second = (now_ns / SECOND_NS) as u32;
        let entries = self.0.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let recent = entries
            .filter(|entry| second.wrapping_sub((entry >> 32) as u32) < DRAINED_SECONDS as u32)
            .map(|entry| entry as u32);
        recent.fold(0, u32::saturating_add)
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Whether a connection counts as a handshake in flight.
    pub(crate) fn is_in_flight(flags: Flags) -> bool {
        flags.has(Flags::DEADLINE) && !flags.has(Flags::CLIENT | Flags::OPENED | Flags::ANSWERED)
    }

    /// Counts a handshake in flight.
    pub(crate) fn handshake_started(&self) {
        self.admission().handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// The first bytes of a head, or TLS: its own time begins now, after that of a silent client.
    pub(crate) fn head_begins(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        conn.cold().since_ns = self.now_ns;
        if Self::is_in_flight(conn.flags) {
            let generation = conn.generation;
            self.timers.handshake.push(self.now_ns, slot, generation);
        }
    }

    /// A handshake was given up or completed; `before` are the connection's flags until now.
    pub(crate) fn handshake_ended(&self, before: Flags) {
        if Self::is_in_flight(before) {
            self.admission().handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A head was complete; `before` are the connection's flags until now.
    pub(crate) fn handshake_completed(&self, before: Flags) {
        if Self::is_in_flight(before) {
            self.admission().drained.count(self.now_ns);
        }
        self.handshake_ended(before);
    }

    /// The oldest handshake in flight of this worker, among the deadlines that are examined, and
    /// from when on it can be refused.
    fn oldest_handshake(&mut self) -> Option<(u32, u64)> {
        let timeout_ns = nanoseconds(self.limits.handshake_timeout);
        let grace_ns = nanoseconds(HEAD_GRACE);
        let mut at = 0;
        for _ in 0..EVICTION_LOOKS {
            let deadline = self.timers.handshake.get(at)?;
            let conn = self.slab.get(deadline.slot);
            let conn = conn.filter(|conn| conn.generation == deadline.generation);
            match conn.map(|conn| (conn.mode, conn.flags)) {
                Some((Mode::Http, flags)) if Self::is_in_flight(flags) => {
                    let cold = self.slab.get(deadline.slot).and_then(|conn| conn.cold.as_ref());
                    let begun_ns = cold.map(|cold| cold.since_ns).filter(|begun_ns| *begun_ns > 0);
                    let silent_until_ns = deadline.since_ns.saturating_add(timeout_ns / 2);
                    let due_ns = begun_ns.map_or(silent_until_ns, |begun_ns| begun_ns + grace_ns);
                    return Some((deadline.slot, due_ns));
                }
                Some((Mode::Http | Mode::Parked | Mode::Connecting, _)) => at += 1,
                // The deadline is stale.
                _ if at == 0 => self.drop_first_deadline(),
                _ => at += 1,
            }
        }
        None
    }

    pub(super) fn drop_first_deadline(&mut self) {
        let Some(deadline) = self.timers.handshake.pop(u64::MAX) else {
            return broken("a deadline that was looked at is still queued");
        };
        let conn = self.slab.get_mut(deadline.slot);
        let Some(conn) = conn.filter(|conn| conn.generation == deadline.generation) else { return };
        let before = conn.flags;
        conn.flags.clear(Flags::DEADLINE);
        self.handshake_ended(before);
    }

    /// Claims one of the handshakes beyond the limit: it no longer counts, and the caller evicts
    /// one, or gives it back.
    fn claim_excess(&self) -> bool {
        let admission = self.admission();
        let drained = admission.drained.recent(self.now_ns);
        let allowed = self.limits.admission.handshakes.saturating_add(drained);
        let step = |handshakes: u32| (handshakes > allowed).then(|| handshakes - 1);
        admission.handshakes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).is_ok()
    }
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Refuses this worker's oldest handshakes in flight that stay incomplete, while the process
    /// has too many. Returns when the next one can be refused, if there are too many still.
    pub(crate) fn evict_excess_handshakes(&mut self) -> Option<u64> {
        let limit = self.core.limits.admission.handshakes;
        let few = || self.core.admission().handshakes.load(Ordering::Relaxed) <= limit;
        if self.core.timers.handshake.next_ns().is_none() || few() {
            return None;
        }
        for _ in 0..EVICTIONS_PER_TURN {
            if !self.core.claim_excess() {
                return None;
            }
            let due = self.core.oldest_handshake();
            let Some((slot, _)) = due.filter(|(_, due_ns)| *due_ns <= self.core.now_ns) else {
                self.core.handshake_started();
                return due.map(|(_, due_ns)| due_ns);
            };
            // Its request may have arrived since the last wait.
            self.read(slot);
            let conn = self.core.slab.get_mut(slot);
            match conn
                .filter(|conn| conn.mode == Mode::Http && Core::<S, H>::is_in_flight(conn.flags))
            {
                Some(conn) => {
                    // It has been uncounted with the claim.
                    conn.flags.clear(Flags::DEADLINE);
                    self.core.evict(slot, Refusal::Handshakes);
                }
                None => self.core.handshake_started(),
            }
        }
        Some(self.core.now_ns)
    }
}

impl<U> Conn<U> {
    /// Whether nothing has arrived from the client since it was accepted.
    pub(crate) fn is_silent(&self) -> bool {
        let silent = |cold: &crate::conn::Cold| cold.tail.is_empty() && cold.since_ns == 0;
        self.closed == Closed::Aborted && self.cold.as_deref().is_none_or(silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_handshakes_count_for_some_seconds() {
        let drained = Drained::default();
        let at = |seconds: u64| seconds * SECOND_NS;
        assert_eq!(drained.recent(at(0)), 0);
        for second in 100..120 {
            for _ in 0..3 {
                drained.count(at(second) + 7);
            }
            let seconds = (second - 99).min(DRAINED_SECONDS as u64) as u32;
            assert_eq!(drained.recent(at(second) + 8), 3 * seconds);
        }
        // A clock that is behind changes nothing.
        drained.count(at(119 - DRAINED_SECONDS as u64));
        assert_eq!(drained.recent(at(119)), 24);
        assert_eq!(drained.recent(at(124)), 9);
        assert_eq!(drained.recent(at(127)), 0);
    }
}
