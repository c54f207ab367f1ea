//! Room at the connection limit: connections without a request give way to new ones, idle keep-alive
//! connections before incomplete request heads, and never one that has just come or been answered.

use std::sync::atomic::{Ordering, fence};

use super::Refusal;
use crate::conn::{Conn, Mode};
use crate::core::Core;
use crate::limits::{EVICTION_LOOKS, GIVES_WAY_AFTER};
use crate::parked::LISTENERS_MAX;
use crate::sys::Sys;
use crate::timers::{Deadline, nanoseconds};
use crate::{Closed, Handler};

/// The result of [`Core::make_room`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// A connection has ended; its slot is free after this turn.
    Made,
    /// A connection may give way soon.
    Soon,
    /// No connection of this worker can give way.
    None,
}

/// What a connection with a handshake deadline would lose by giving way.
enum Candidate {
    /// Nothing: it is between two requests, for this time in nanoseconds.
    Idle(u64),
    /// An incomplete head, begun this long ago.
    Head(u64),
    /// More: it stays.
    Busy,
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Whether connections of this worker may be able to give way.
    pub(crate) fn may_make_room(&self) -> bool {
        let mailbox = self.remote.shared.mailboxes.get(usize::from(self.index));
        mailbox.is_some_and(|mailbox| mailbox.gives_way.load(Ordering::Relaxed))
    }

    /// Sets whether connections of this worker may be able to give way, for all workers.
    pub(crate) fn set_may_make_room(&self, may: bool) {
        if self.may_make_room() != may
            && let Some(mailbox) = self.remote.shared.mailboxes.get(usize::from(self.index))
        {
            mailbox.gives_way.store(may, Ordering::Relaxed);
            if may {
                self.take_over_parked_listeners();
            }
        }
    }

    /// Accepts from parked listeners with the next turn: a connection may give way to their clients.
    fn take_over_parked_listeners(&self) {
        let parked = &self.remote.shared.parked;
        // Pairs with the fence in `park_listener`: a connection may have been answered as if nobody
        // waited, just before a listener was parked.
        fence(Ordering::SeqCst);
        if parked.any(LISTENERS_MAX) {
            for index in (0..LISTENERS_MAX).filter(|index| parked.take(*index)) {
                self.remote.give_listener(usize::from(self.index), index);
            }
        }
    }

    /// Whether clients wait for a connection to end. Then a connection that has been answered does
    /// not stay open for a further request.
    pub(crate) fn clients_wait(&self) -> bool {
        self.full || self.remote.shared.parked.seems_any()
    }

    /// Ends the connection that has been idle longest, or else the oldest incomplete head, among those
    /// that this call examines.
    pub(crate) fn make_room(&mut self) -> Room {
        let least_ns = nanoseconds(GIVES_WAY_AFTER);
        let (mut idle, mut head) = (None::<(u64, u32)>, None::<(u64, u32)>);
        let (mut at, mut result) = (0, Room::Soon);
        for _ in 0..EVICTION_LOOKS {
            let Some(deadline) = self.timers.handshake.get(at) else {
                result = Room::None;
                break;
            };
            let conn = self.slab.get(deadline.slot);
            let conn = conn.filter(|conn| conn.generation == deadline.generation);
            match conn {
                Some(conn) if matches!(conn.mode, Mode::Http | Mode::Parked | Mode::Connecting) => {
                    let best = match self.candidate(conn, deadline) {
                        Candidate::Idle(ns) => Some((&mut idle, ns)),
                        Candidate::Head(ns) => Some((&mut head, ns)),
                        Candidate::Busy => None,
                    };
                    if let Some((best, ns)) = best
                        && best.is_none_or(|(longest_ns, _)| longest_ns < ns)
                    {
                        *best = Some((ns, deadline.slot));
                    }
                    at += 1;
                }
                // The deadline is stale.
                _ if at == 0 => self.drop_first_deadline(),
                _ => at += 1,
            }
        }
        let old = |&(ns, _): &(u64, u32)| ns >= least_ns;
        if let Some((_, slot)) = idle.filter(old) {
            self.counters().keep_alive_closed.add(1);
            self.close_with(slot, Closed::Shed, None, "");
            return Room::Made;
        }
        if let Some((_, slot)) = head.filter(old) {
            self.evict(slot, Refusal::Connections);
            return Room::Made;
        }
        if idle.or(head).is_some() { Room::Soon } else { result }
    }

    fn candidate(&self, conn: &Conn<H::User>, deadline: Deadline) -> Candidate {
        if conn.is_client() || conn.mode != Mode::Http {
            return Candidate::Busy;
        }
        if conn.is_between_requests() {
            return Candidate::Idle(self.timers.ns_between(conn.last_active, self.tick));
        }
        let cold = conn.cold.as_ref();
        if cold.is_some_and(|cold| cold.body.is_some() || !cold.queue.is_empty()) {
            return Candidate::Busy;
        }
        let since_ns = cold.map(|cold| cold.since_ns).filter(|since_ns| *since_ns > 0);
        Candidate::Head(self.now_ns.saturating_sub(since_ns.unwrap_or(deadline.since_ns)))
    }
}
