//! [`Deferred`]: replies to connections that were received together, which are sent together, too. The kernel's code for
//! sending then stays in the processor's caches, as that of the handler does before.
//!
//! A reply waits for the handler's next calls. All are sent when those since the last time took [`DEFER_NS`], also by
//! calls that sent nothing. So a reply may wait for one slow call; after it, nothing is deferred in the next
//! [`SLOW_TURNS`] turns. Whatever else is sent to a connection, or ends it, sends all that was deferred first: see
//! [`Core::settle`].

use std::mem;

use crate::conn::{Flags, Mode};
use crate::core::Core;
use crate::limits::CORK_BYTES;
use crate::sys::Sys;
use crate::{ConnId, Handler};

/// For how long calls have their replies sent together, in nanoseconds.
const DEFER_NS: u64 = 100_000;
/// In how many turns nothing is deferred after a call that took [`DEFER_NS`].
const SLOW_TURNS: u8 = 16;
/// The largest buffer that is kept for the next reply.
const SPARE_BYTES: usize = 8 * 1024;

#[derive(Default)]
pub(crate) struct Deferred {
    /// Replies are deferred from now on.
    is_on: bool,
    /// Since when, or since when what was deferred has been sent.
    began_ns: u64,
    /// When the handler's last call had ended.
    called_ns: u64,
    /// In how many turns nothing is deferred.
    slow_turns: u8,
    replies: Vec<Reply>,
    spare: Vec<Vec<u8>>,
}

struct Reply {
    id: ConnId,
    bytes: Vec<u8>,
    messages: u32,
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// From now on, until [`Core::end_deferring`], replies are deferred.
    pub(crate) fn begin_deferring(&mut self) {
        if self.deferred.slow_turns > 0 {
            self.deferred.slow_turns -= 1;
            return;
        }
        let now_ns = self.sys.now_ns();
        self.deferred.is_on = true;
        (self.deferred.began_ns, self.deferred.called_ns) = (now_ns, now_ns);
    }

    /// Sends what was deferred, and defers no more.
    pub(crate) fn end_deferring(&mut self) {
        self.deferred.is_on = false;
        self.settle();
    }

    /// At the end of a read: sends or defers what was collected for this connection.
    #[inline]
    pub(crate) fn reply(&mut self, slot: u32) {
        if !H::READS_SOCKETS_TOGETHER || !self.deferred.is_on {
            return self.flush_cork();
        }
        if !self.cork.is_empty() {
            self.defer(slot);
        }
        let now_ns = self.sys.now_ns();
        let took_ns = now_ns.saturating_sub(mem::replace(&mut self.deferred.called_ns, now_ns));
        if took_ns >= DEFER_NS {
            self.deferred.slow_turns = SLOW_TURNS;
        }
        if now_ns.saturating_sub(self.deferred.began_ns) >= DEFER_NS {
            self.deferred.began_ns = now_ns;
            self.settle();
        }
    }

    /// Takes what was collected for this connection, or sends it now.
    fn defer(&mut self, slot: u32) {
        let ends = Flags::FINISH | Flags::CLOSE_SENT;
        let stays = |mode| matches!(mode, Mode::WebSocket | Mode::Http);
        let conn = self.slab.get(slot).filter(|conn| stays(conn.mode) && !conn.flags.has(ends));
        let Some(generation) = conn.map(|conn| conn.generation) else { return self.flush_cork() };
        if self.cork.len() > CORK_BYTES {
            return self.flush_cork();
        }
        let id = ConnId::new(self.index, slot, generation);
        let spare = self.deferred.spare.pop().unwrap_or_default();
        let bytes = mem::replace(&mut self.cork, spare);
        let messages = mem::take(&mut self.cork_messages);
        self.deferred.replies.push(Reply { id, bytes, messages });
    }

    /// Before it is asked how much waits for a connection.
    pub fn send_deferred_to(&mut self, id: ConnId) {
        if self.deferred.replies.iter().any(|reply| reply.id == id) {
            self.send_deferred();
        }
    }

    /// Before anything else is sent to a connection, or ends it.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if H::READS_SOCKETS_TOGETHER && !self.deferred.replies.is_empty() {
            self.send_deferred();
        }
    }

    /// Sends replies that wait for the handler to be called for other connections. For programs that end within such
    /// a call; otherwise they are sent in time.
    #[inline(never)]
    pub fn send_deferred(&mut self) {
        let mut replies = mem::take(&mut self.deferred.replies);
        for Reply { id, bytes, messages } in &mut replies {
            if self.live(*id).is_some() {
                self.write_out(id.slot(), bytes, *messages);
            }
            if bytes.capacity() <= SPARE_BYTES {
                bytes.clear();
                self.deferred.spare.push(mem::take(bytes));
            }
        }
        replies.clear();
        self.deferred.replies = replies;
    }
}
