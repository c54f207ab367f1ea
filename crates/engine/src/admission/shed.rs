//! Load shedding: which connections are closed to keep the process within its memory limit. Those
//! that hold most of it, whatever they send meanwhile; if nobody holds more than an idle connection
//! does, idle ones, provided that closing them helps. Never all at once: each round closes a share.
//!
//! A round is a pass over the worker's slots, some in each turn. It closes the clients that the
//! [order](ShedOrder) names and measures what the others hold, from which the next order follows.

use wire::websocket::CloseCode;

use super::Refusal;
use super::holdings::{Distribution, ShedOrder};
use crate::conn::Mode;
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::{SHED_HELD_MIN, SHED_LOOKS, SHED_MAX, SHED_MIN, SHED_REST_BYTES, SHED_SHARE};
use crate::sys::Sys;
use crate::worker::Worker;
use crate::{Closed, Handler};

/// A round of shedding under way.
pub(crate) struct ShedPass {
    order: ShedOrder,
    next_slot: u32,
    /// Connections that may still be closed.
    left: u32,
    /// What those that stay hold.
    distribution: Distribution,
}

/// What a connection is doing. Of those that hold the same, the greatest is closed first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    Busy,
    /// A WebSocket or tunnel that was silent for a while.
    Silent,
    /// Answered over plain HTTP, and waiting for another request.
    Waiting,
    /// Its first request head is incomplete.
    Handshake,
}

/// A connection that may be closed: the greatest is closed first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Bytes beyond those of an idle connection; 0 if they are too few to matter.
    held: usize,
    activity: Activity,
    idle_ticks: u16,
    slot: u32,
    /// Bytes of an idle connection, with those that it holds if they are too few to matter.
    base: usize,
}

impl Candidate {
    fn is_covered(&self, order: ShedOrder) -> bool {
        match order {
            ShedOrder::Holders(least) => self.held >= least,
            ShedOrder::Idle => self.held == 0,
            ShedOrder::Measure | ShedOrder::Futile => false,
        }
    }
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Begins a round of shedding; if one is under way, the rest of it follows the new order.
    pub(crate) fn begin_shedding(&mut self, order: ShedOrder) {
        let left = (self.core.slab.live() / SHED_SHARE).clamp(SHED_MIN, SHED_MAX);
        let pass = self.shed_pass.take();
        let (next_slot, distribution) =
            pass.map_or_else(Default::default, |pass| (pass.next_slot, pass.distribution));
        self.shed_pass = Some(ShedPass { order, next_slot, left, distribution });
    }

    /// Continues a round of shedding.
    pub(crate) fn continue_shedding(&mut self) {
        let Some(mut pass) = self.shed_pass.take() else { return };
        let end = self.core.slab.end();
        let (mut to, mut looks) = (pass.next_slot, SHED_LOOKS as usize);
        let mut covered = Vec::new();
        while to < end && looks > 0 {
            let slot = to;
            to += 1;
            let id = self.core.id_at(slot);
            let entries = id.map_or(0, |id| self.handler.held_entries(&self.core, id));
            looks = looks.saturating_sub(entries.saturating_add(1));
            let Some(candidate) = self.candidate(slot) else { continue };
            if candidate.is_covered(pass.order) {
                covered.push(candidate);
            } else {
                pass.distribution.add(candidate.held, candidate.base);
            }
        }
        covered.sort_unstable_by(|one, other| other.cmp(one));
        for candidate in covered {
            let bytes = candidate.held + candidate.base;
            if pass.left > 0 && self.core.admission().take_shed_bytes(bytes as u64) {
                pass.left -= 1;
                self.core.shed(candidate);
            } else {
                pass.distribution.add(candidate.held, candidate.base);
            }
        }
        if to < end {
            self.shed_pass = Some(ShedPass { next_slot: to, ..pass });
        } else {
            let mailboxes = &self.core.remote.shared.mailboxes;
            mailboxes[usize::from(self.core.index)].holdings.publish(&pass.distribution);
        }
    }

    /// The connection in a slot, if closing it frees something.
    fn candidate(&self, slot: u32) -> Option<Candidate> {
        let core = &self.core;
        let conn = core.slab.get(slot).filter(|conn| !conn.is_client())?;
        let idle_ticks = core.tick.wrapping_sub(conn.last_active);
        let activity = match conn.mode {
            Mode::Dead | Mode::Connecting => return None,
            Mode::Http if Core::<S, H>::is_in_flight(conn.flags) => Activity::Handshake,
            Mode::Http if conn.is_between_requests() => Activity::Waiting,
            Mode::WebSocket | Mode::Polled | Mode::Raw if core.timers.is_quiet(idle_ticks) => {
                Activity::Silent
            }
            _ => Activity::Busy,
        };
        let of_handler = core.id_at(slot).map_or(0, |id| self.handler.held_bytes(core, id));
        let held = conn.held() + of_handler;
        if held < SHED_HELD_MIN && activity == Activity::Busy {
            return None;
        }
        // Too few to choose it for them, but together they may be what takes the memory.
        let (held, few) = if held < SHED_HELD_MIN { (0, held) } else { (held, 0) };
        Some(Candidate { held, activity, idle_ticks, slot, base: conn.base() + few })
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Closes a connection and frees at once what it holds.
    fn shed(&mut self, candidate: Candidate) {
        let slot = candidate.slot;
        if candidate.activity == Activity::Handshake {
            return self.evict(slot, Refusal::MemoryLimit);
        }
        match self.slab.get(slot).map(|conn| conn.mode) {
            // It is being closed for another reason, and its peer takes its time.
            Some(Mode::Closing | Mode::Lingering) => return self.end(slot, Closed::Shed),
            Some(Mode::Polled) => {
                self.counters().shed.add(1);
                return self.end(slot, Closed::Shed);
            }
            Some(_) => self.counters().shed.add(1),
            None => return broken(SLOT_IN_USE),
        }
        if !self.drop_unsent(slot) {
            return self.reset_with(slot, Closed::Shed);
        }
        let code = Some(CloseCode::TRY_AGAIN_LATER);
        self.close_with(slot, Closed::Shed, code, "the server is short of memory");
    }

    /// Frees the queue of a connection that is about to be closed, except for the rest of a frame
    /// that the close frame has to follow. Returns `false` if no close frame can follow, because
    /// that rest is too long or not a frame.
    fn drop_unsent(&mut self, slot: u32) -> bool {
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return false;
        };
        let framed = conn.mode == Mode::WebSocket;
        let Some(cold) = conn.cold.as_mut() else { return true };
        cold.contexts = None;
        if cold.queue.is_empty() {
            return true;
        }
        if !framed {
            return false;
        }
        let before = cold.queue.len();
        let dropped = cold.queue.drop_unbegun();
        let (freed, rest) = (before - cold.queue.len(), cold.queue.held());
        self.counters().queued_bytes.sub(freed as u64);
        self.counters().dropped_gone.add(dropped);
        rest <= SHED_REST_BYTES
    }
}
