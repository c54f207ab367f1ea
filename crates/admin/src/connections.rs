//! [`Connections`]: the open connections of the admin listener. Their number and their times are
//! limited, so that silent clients never keep out those that have something to send.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::sys::process::now_ns;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Limits of the admin listener's connections.
#[derive(Copy, Clone, Debug)]
pub struct ConnectionLimits {
    /// Connections whose last request did not carry the key, and separately as many of those whose
    /// did. Default [`ConnectionLimits::CONNECTIONS`].
    pub connections: usize,
    /// Time for a request head from its first byte, and from the connect to the end of the first
    /// head, with the TLS handshake. Default 10 s.
    pub head: Duration,
    /// Time for a request body. Default 30 s.
    pub body: Duration,
    /// Time in which a client takes no byte of a response. Default 30 s.
    pub response: Duration,
    /// Time between a response and the next request. Default 75 s.
    pub idle: Duration,
}

impl ConnectionLimits {
    /// The default of `connections`.
    pub const CONNECTIONS: usize = 512;
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits {
            connections: Self::CONNECTIONS,
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            response: Duration::from_secs(30),
            idle: Duration::from_secs(75),
        }
    }
}

/// What a connection waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The first byte of its first request.
    New,
    /// The rest of a request head.
    Head,
    /// The rest of a request body.
    Body,
    /// The program's answer.
    Answer,
    /// The client, to take the response.
    Response,
    /// The same, of a response without an end.
    Stream,
    /// The next request.
    Idle,
}

impl Phase {
    const ALL: [Phase; 7] = [
        Phase::New,
        Phase::Head,
        Phase::Body,
        Phase::Answer,
        Phase::Response,
        Phase::Stream,
        Phase::Idle,
    ];

    /// The order in which connections make room: those without a request first. `None` for those
    /// that stay: the program answers soon.
    fn rank(self) -> Option<u8> {
        match self {
            Phase::New | Phase::Head | Phase::Idle => Some(0),
            Phase::Body | Phase::Response | Phase::Stream => Some(1),
            Phase::Answer => None,
        }
    }
}

/// Why the listener closed a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cause {
    /// It made room for another connection.
    Full,
    Head,
    Body,
    Response,
    Idle,
    /// Its TLS handshake failed.
    Tls,
}

impl Cause {
    pub(crate) const ALL: [Cause; 6] =
        [Cause::Full, Cause::Head, Cause::Body, Cause::Response, Cause::Idle, Cause::Tls];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Cause::Full => "full",
            Cause::Head => "head_timeout",
            Cause::Body => "body_timeout",
            Cause::Response => "response_timeout",
            Cause::Idle => "idle_timeout",
            Cause::Tls => "tls_failed",
        }
    }
}

/// The state of one connection, shared between its task and [`Connections`].
#[derive(Debug)]
pub(crate) struct Connection {
    phase: AtomicU8,
    since_ns: AtomicU64,
    keyed: AtomicBool,
}

impl Connection {
    fn new() -> Self {
        Connection {
            phase: AtomicU8::new(Phase::New as u8),
            since_ns: AtomicU64::new(now_ns()),
            keyed: AtomicBool::new(false),
        }
    }

    fn phase(&self) -> Phase {
        let phase = usize::from(self.phase.load(Ordering::Relaxed));
        Phase::ALL.get(phase).copied().unwrap_or(Phase::Idle)
    }

    fn since_ns(&self) -> u64 {
        self.since_ns.load(Ordering::Relaxed)
    }

    /// Enters a phase. Its time starts now.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.since_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// Bytes have arrived. The time for a first head runs since the connect.
    pub(crate) fn received(&self) {
        match self.phase() {
            Phase::New => self.phase.store(Phase::Head as u8, Ordering::Relaxed),
            Phase::Idle => self.enter(Phase::Head),
            Phase::Head | Phase::Body | Phase::Answer | Phase::Response | Phase::Stream => {}
        }
    }

    /// The client has taken bytes.
    pub(crate) fn sent(&self) {
        if let phase @ (Phase::Response | Phase::Stream) = self.phase() {
            self.enter(phase);
        }
    }

    /// Everything written so far has been taken.
    pub(crate) fn flushed(&self) {
        if self.phase() == Phase::Response {
            self.enter(Phase::Idle);
        }
    }

    /// Whether the last request carried the key.
    pub(crate) fn set_keyed(&self, keyed: bool) {
        self.keyed.store(keyed, Ordering::Relaxed);
    }

    fn is_keyed(&self) -> bool {
        self.keyed.load(Ordering::Relaxed)
    }

    /// Why to close it at this time, if it is late.
    fn late(&self, limits: &ConnectionLimits, now_ns: u64) -> Option<Cause> {
        let (limit, cause) = match self.phase() {
            Phase::New | Phase::Head => (limits.head, Cause::Head),
            Phase::Response | Phase::Stream => (limits.response, Cause::Response),
            Phase::Idle => (limits.idle, Cause::Idle),
            // The time for a body ends with a response; the program answers in its own time.
            Phase::Body | Phase::Answer => return None,
        };
        let waited = Duration::from_nanos(now_ns.saturating_sub(self.since_ns()));
        (waited >= limit).then_some(cause)
    }
}

struct Open {
    connection: Arc<Connection>,
    task: AbortHandle,
}

/// The open connections of the admin listener.
pub(crate) struct Connections {
    limits: ConnectionLimits,
    open: Mutex<Vec<Open>>,
    /// Notified when a connection was added.
    added: Notify,
    /// Notified when a connection was removed or can make room again.
    freed: Notify,
    closed: [AtomicU64; Cause::ALL.len()],
}

/// Removes a connection at the end of its task.
pub(crate) struct Membership {
    connections: Arc<Connections>,
    pub(crate) connection: Arc<Connection>,
}

impl Membership {
    /// A request has been answered, so this connection can make room again.
    pub(crate) fn answered(&self) {
        self.connections.freed.notify_one();
    }

    /// The client did not speak TLS, or one side refused the other's.
    pub(crate) fn handshake_failed(&self) {
        self.connections.count_closed(Cause::Tls);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.connections.remove(&self.connection);
    }
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Connections {
            limits,
            open: Mutex::default(),
            added: Notify::new(),
            freed: Notify::new(),
            closed: Default::default(),
        }
    }

    pub(crate) fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    /// Connections now.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Connections closed for this cause.
    pub(crate) fn closed(&self, cause: Cause) -> u64 {
        self.closed[cause as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_closed(&self, cause: Cause) {
        self.closed[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a connection that `spawn` starts the task of.
    pub(crate) fn add(self: &Arc<Self>, spawn: impl FnOnce(Membership) -> AbortHandle) {
        let connection = Arc::new(Connection::new());
        let connections = Arc::clone(self);
        // The lock is held so that a task that ends at once still finds its entry.
        let mut open = self.lock();
        let task = spawn(Membership { connections, connection: Arc::clone(&connection) });
        open.push(Open { connection, task });
        drop(open);
        self.added.notify_one();
    }

    fn remove(&self, connection: &Arc<Connection>) {
        let mut open = self.lock();
        if let Some(at) = open.iter().position(|each| Arc::ptr_eq(&each.connection, connection)) {
            open.swap_remove(at);
        }
        drop(open);
        self.freed.notify_one();
    }

    /// Returns once there is room for one more connection. Connections without the key make room for
    /// each other, and so do those with it.
    pub(crate) async fn make_room(&self) {
        while !self.has_room() {
            self.freed.notified().await;
        }
    }

    /// Closes as many connections as needed for one more; false if some would have to be closed whose
    /// requests are being answered.
    fn has_room(&self) -> bool {
        let limit = self.limits.connections;
        // A new connection has no key yet.
        [(false, limit.saturating_sub(1)), (true, limit)].into_iter().all(|(keyed, most)| {
            let of_kind = |each: &Open| each.connection.is_keyed() == keyed;
            while self.lock().iter().filter(|each| of_kind(each)).count() > most {
                if !self.close_longest_waiting(of_kind) {
                    return false;
                }
            }
            true
        })
    }

    /// Closes the connection that has waited longest for its client; false if there is none.
    pub(crate) fn close_any(&self) -> bool {
        self.close_longest_waiting(|each| !each.connection.is_keyed())
            || self.close_longest_waiting(|_| true)
    }

    fn close_longest_waiting(&self, of_kind: impl Fn(&Open) -> bool) -> bool {
        let mut open = self.lock();
        let candidates = open.iter().enumerate().filter(|(_, each)| of_kind(each));
        let ranked = candidates.filter_map(|(at, each)| {
            let rank = each.connection.phase().rank()?;
            Some(((rank, each.connection.since_ns()), at))
        });
        let Some((_, at)) = ranked.min() else { return false };
        let closed = open.swap_remove(at);
        drop(open);
        closed.task.abort();
        self.count_closed(Cause::Full);
        true
    }

    /// Closes late connections, for as long as the process lives.
    pub(crate) async fn watch(&self) {
        let shortest = self.limits.head.min(self.limits.response).min(self.limits.idle);
        let interval = (shortest / 10).min(Duration::from_secs(1));
        loop {
            if self.lock().is_empty() {
                self.added.notified().await;
            }
            tokio::time::sleep(interval).await;
            self.close_late(now_ns());
        }
    }

    fn close_late(&self, now_ns: u64) {
        let mut late = Vec::new();
        self.lock().retain(|each| match each.connection.late(&self.limits, now_ns) {
            Some(cause) => {
                late.push((each.task.clone(), cause));
                false
            }
            None => true,
        });
        for (task, cause) in late {
            task.abort();
            self.count_closed(cause);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
