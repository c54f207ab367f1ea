//! Classes of connections with limits of their own, for example by path. A connection keeps its class in
//! the byte that says where an outgoing one connects to, so classes cost nothing per connection. Without
//! classes the limits of all connections are those of [`Limits`].

use std::time::Duration;

use wire::websocket::{Deflate, Upgrade};

use crate::conn::Conn;
use crate::core::Core;
use crate::sys::Sys;
use crate::{Compression, ConnId, Handler, Limits, SlowConsumer};

/// The limits of a class of accepted WebSockets, instead of those of the same names in [`Limits`].
#[derive(Clone, Debug)]
pub struct ClassLimits {
    /// Bytes that may wait for one slow consumer.
    pub send_queue_bytes: usize,
    /// What happens beyond that.
    pub slow_consumer: SlowConsumer,
    /// A connection idle for this long is closed; `None` disables that.
    pub idle_timeout: Option<Duration>,
    /// Longest message in bytes: at most that of `Limits::wire`. It applies while a message is received in
    /// several parts or inflated; one that lies complete in the read buffer is passed to the handler.
    pub message_bytes: u32,
    /// Whether messages are compressed: at most what [`Limits::compression`] allows.
    pub compression: Compression,
}

impl Limits {
    /// The idle timeouts of all classes.
    pub(crate) fn idle_timeouts(&self) -> impl Iterator<Item = Duration> {
        let classes = self.classes.iter().filter_map(|class| class.idle_timeout);
        self.idle_timeout.into_iter().chain(classes)
    }

    /// The shortest queue of any class, in bytes: up to there no class has to be looked up.
    pub(crate) fn least_queue_bytes(&self) -> usize {
        let classes = self.classes.iter().map(|class| class.send_queue_bytes);
        classes.fold(self.send_queue_bytes, usize::min)
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Puts an accepted connection into a class: an index of [`Limits::classes`]. For use in
    /// [`Handler::request`]; without it the connection has no class. An index beyond the list has the
    /// limits of connections without a class.
    pub fn set_class(&mut self, id: ConnId, class: u8) {
        if let Some(conn) = self.live_mut(id).filter(|conn| !conn.is_client()) {
            conn.target = class.saturating_add(1);
        }
    }

    fn class_of(&self, conn: &Conn<H::User>) -> Option<&ClassLimits> {
        let class = if conn.is_client() { 0 } else { usize::from(conn.target) };
        self.limits.classes.get(class.checked_sub(1)?)
    }

    fn class_at(&self, slot: u32) -> Option<&ClassLimits> {
        if self.limits.classes.is_empty() { None } else { self.class_of(self.slab.get(slot)?) }
    }

    /// Limit of the queue in a slot, in bytes, and what happens beyond it.
    pub(crate) fn queue_limit(&self, slot: u32) -> (usize, SlowConsumer) {
        let limits = &self.limits;
        self.class_at(slot).map_or((limits.send_queue_bytes, limits.slow_consumer), |class| {
            (class.send_queue_bytes, class.slow_consumer)
        })
    }

    /// Whether this much is beyond the limit of a queue, for what exceeds the shortest one.
    #[cold]
    pub(crate) fn exceeds_queue(&self, slot: u32, bytes: usize) -> bool {
        bytes > self.queue_limit(slot).0
    }

    /// Longest message of the connection in a slot, in bytes.
    pub(crate) fn message_limit(&self, slot: u32) -> usize {
        let all = self.limits.wire.message_bytes;
        self.class_at(slot).map_or(all, |class| class.message_bytes.min(all)) as usize
    }

    /// The index into the idle timeouts of [`crate::timers::Timers::idle_after`].
    pub(crate) fn idle_class(&self, conn: &Conn<H::User>) -> usize {
        if self.limits.classes.is_empty() || conn.is_client() { 0 } else { conn.target.into() }
    }

    /// The answer to an offer of compression by the class of the connection, where `deflate` is that
    /// without a class.
    pub(crate) fn deflate_of(
        &self,
        slot: u32,
        deflate: Option<Deflate>,
        upgrade: Option<&Upgrade<'_>>,
    ) -> Option<Deflate> {
        let (deflate, upgrade) = (deflate?, upgrade?);
        match self.class_at(slot).map(|class| class.compression) {
            Some(Compression::Off) => None,
            // The same offer was valid with contexts that are kept.
            Some(Compression::Shared) => upgrade.deflate(false).ok().flatten(),
            Some(Compression::Takeover) | None => Some(deflate),
        }
    }
}
