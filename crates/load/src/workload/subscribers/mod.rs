//! [`Subscribers`]: clients that stay subscribed whatever happens. Each has one topic, reconnects with
//! backoff and keeps a log of what it noticed: confirmations, ends, publications. The log is returned as it
//! is; who published and what was owed is known elsewhere (`standfast prove cluster`).
//!
//! The other runs count at the receiving socket and keep a few bytes per socket, for a million of them. This
//! one keeps 24 bytes per event, for thousands of clients over minutes.

mod client;
mod log;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use engine::sys::process;
use engine::{Limits, Plan, Tables, Workers};

use self::client::{Clients, Order};
pub use self::log::{Event, Record, SubscriberLog};
use crate::Retry;

/// Targets of one worker: each is a topic at an endpoint (see [`engine::Core::add_target`]).
const TARGETS_MAX: usize = 255;
/// How long [`Subscribers::finish`] waits for the logs.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
/// Workers of a run: more would compete with the servers on the same machine.
const WORKERS: usize = 2;

/// What the clients speak.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Speech {
    /// A WebSocket at `/topics/NAME`, subscribed once it is open.
    Topics,
    /// AnyCable's extended Action Cable with a `$pubsub` stream, subscribed once that is confirmed.
    Cable,
    /// As `Cable`. Whenever it subscribes again it asks for what followed the last publication that it received, or
    /// without one for all since [`Subscribers::recover_since`].
    CableHistory,
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Subscribing {
    /// Where the clients connect. Client `n` begins with endpoint `n / topics`, modulo their number, and
    /// goes on to the next after each failed or lost connection.
    pub endpoints: Vec<SocketAddr>,
    /// The names of the topics. Client `n` subscribes to topic `n`, modulo their number.
    pub topics: Vec<String>,
    /// Number of clients.
    pub clients: u32,
    /// What they speak.
    pub speech: Speech,
    /// The waits before they reconnect.
    pub retry: Retry,
    /// Timeout of a connect with its handshake, and of a subscription.
    pub connect_timeout: Duration,
    /// Events that one client may log; what is beyond is counted as [`SubscriberLog::unlogged`].
    pub events_max: usize,
}

/// Counters of all clients, read while they run.
#[derive(Default, Debug)]
pub struct SubscriberCounts {
    subscribed: AtomicU64,
    received: AtomicU64,
    ended: AtomicU64,
    /// Unix seconds; 0 before it is set.
    recover_since: AtomicU64,
}

impl SubscriberCounts {
    /// Clients that are subscribed now.
    #[must_use]
    pub fn subscribed(&self) -> u64 {
        self.subscribed.load(Ordering::Relaxed)
    }

    /// Publications received so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Subscriptions that ended so far.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

/// Running clients.
pub struct Subscribers {
    workers: Workers<Order>,
    logs: Receiver<Vec<SubscriberLog>>,
    counts: Arc<SubscriberCounts>,
    count: usize,
}

impl Subscribers {
    /// The most topics for this number of endpoints.
    #[must_use]
    pub fn topics_max(endpoints: usize) -> usize {
        TARGETS_MAX / endpoints.max(1)
    }

    /// Starts the clients, which connect from now on.
    ///
    /// # Errors
    /// More topics than [`Subscribers::topics_max`], or the error of the system.
    pub fn start(settings: Subscribing) -> io::Result<Subscribers> {
        let targets = settings.endpoints.len() * settings.topics.len();
        if targets == 0 || targets > TARGETS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("expected 1 to {TARGETS_MAX} topics times endpoints, not {targets}"),
            ));
        }
        let tables = if process::private_tables_work() { Tables::Private } else { Tables::Shared };
        let workers = WORKERS.min(settings.clients.max(1) as usize);
        // A connection that is replaced may still be closing.
        let capacity = 2 * settings.clients.div_ceil(workers as u32) + 8;
        let plan = Plan { workers, accepting: workers, capacity, tables };
        let limits = Limits {
            idle_timeout: None,
            pings: false,
            handshake_timeout: settings.connect_timeout,
            ..Limits::default()
        };
        let counts = Arc::new(SubscriberCounts::default());
        let (sender, logs) = mpsc::channel();
        let (settings, shared) = (Arc::new(settings), Arc::clone(&counts));
        let workers_of = Workers::start(plan, &limits, &[], move |worker, _| {
            Clients::new(
                Arc::clone(&settings),
                (usize::from(worker), workers),
                Arc::clone(&shared),
                sender.clone(),
            )
        })?;
        for worker in 0..workers {
            // A mailbox holds 8 MiB: it fills only if the worker is gone.
            let _ = workers_of.remote().post(worker, Order::Begin, 0);
        }
        Ok(Subscribers { workers: workers_of, logs, counts, count: workers })
    }

    /// Counters of all clients.
    #[must_use]
    pub fn counts(&self) -> &SubscriberCounts {
        &self.counts
    }

    /// From now on clients of [`Speech::CableHistory`] that have received nothing yet and subscribe again ask for what
    /// was published since this time, in Unix seconds.
    pub fn recover_since(&self, unix_s: u64) {
        self.counts.recover_since.store(unix_s, Ordering::Relaxed);
    }

    /// Resets the connections of about `percent` of the clients, chosen by `seed`. They reconnect.
    pub fn drop_some(&self, percent: u32, seed: u64) {
        for worker in 0..self.count {
            let _ = self.workers.remote().post(worker, Order::Drop { percent, seed }, 0);
        }
    }

    /// Ends all clients and returns their logs, in the order of their numbers.
    ///
    /// # Errors
    /// A worker that failed or gave no logs in time.
    pub fn finish(self) -> io::Result<Vec<SubscriberLog>> {
        for worker in 0..self.count {
            let _ = self.workers.remote().post(worker, Order::Finish, 0);
        }
        let mut all = Vec::new();
        for _ in 0..self.count {
            let logs = self.logs.recv_timeout(FINISH_TIMEOUT);
            all.extend(logs.map_err(|_| io::Error::other("clients returned no logs"))?);
        }
        self.workers.drain(Duration::ZERO)?;
        all.sort_unstable_by_key(|log| log.client);
        Ok(all)
    }
}
