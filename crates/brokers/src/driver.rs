//! The thread of the connections: for each broker it connects, subscribes, publishes, delivers and checks, and
//! begins again after every fault, for ever.
//!
//! The parts of a connection run at the same time and end with the first fault, but what had arrived before it is
//! delivered. What was on its way then is sent again over the next connection, with its number, so receivers that have it do not deliver it twice.

mod deliver;
mod fetch;
mod followed;
mod members;
mod members_refused;
mod publish;
mod reject;
mod store;
mod subscribe;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tracing::{info, warn};

use self::followed::Followed;
use self::members::Sharing;
use self::publish::{InFlight, Numbered};
use crate::backoff::Backoff;
use crate::broker::{Broker, Receiver, Shard, State};
use crate::figures::GapCause;
use crate::gaps::{Received, Sequences};
use crate::limits::{
    BEACON_NS, CONNECT_TIMEOUT, DELIVERY_PAUSE, FETCH_CHANNELS_FIRST, INBOX_BYTES, LAST_DELIVERIES,
    LOG_INTERVAL_NS, PING_INTERVAL, RECEIVED_SENDERS_MAX, SENT_CHANNELS_MAX,
};
use crate::transport::{Channel, Fault, FaultKind, Inbox, Link, Transport};

/// The state before the first attempt to connect.
pub(crate) fn not_yet() -> Fault {
    Fault::new(FaultKind::Unreachable, "not connected yet")
}

/// Starts the thread, which ends with the process or with [`Broker::stop`].
///
/// # Errors
/// The thread or its runtime cannot be started.
pub(crate) fn start<T: Transport + Send + 'static>(
    broker: Arc<Broker>,
    transports: Vec<T>,
    receiver: Arc<dyn Receiver>,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let stopping = Arc::clone(&broker);
    let run = move || {
        let local = LocalSet::new();
        for (at, transport) in transports.into_iter().enumerate() {
            let driver = Driver::new(Arc::clone(&broker), at, Arc::clone(&receiver));
            local.spawn_local(driver.run(transport));
        }
        runtime.block_on(async {
            tokio::select! {
                () = local => {}
                () = stopping.stopped.notified() => {}
            }
        });
    };
    std::thread::Builder::new().name("pubsub".to_owned()).spawn(run).map(drop)
}

/// One broker's connection, as its thread knows it.
struct Driver {
    broker: Arc<Broker>,
    at: usize,
    receiver: Arc<dyn Receiver>,
    sequences: RefCell<Sequences>,
    received: RefCell<Received>,
    /// What is on its way, and what was on its way when a connection was lost.
    in_flight: RefCell<Option<InFlight>>,
    resend: RefCell<VecDeque<Numbered>>,
    gap_log: RefCell<GapLog>,
    /// How far it is in the topics that the broker keeps.
    followed: RefCell<Followed>,
    /// Rung when one of them is synced or gone.
    settled: Notify,
    /// The connection has ended, and what had arrived is still delivered. Rung when that begins.
    is_ending: Cell<bool>,
    ends: Notify,
    /// Those of which something could not be delivered, with their ids, and when the oldest of it was seen.
    behind: RefCell<Vec<(Channel, u64)>>,
    behind_ns: Cell<u64>,
    /// Channels in one fetch.
    fetch_channels: Cell<usize>,
    /// What the inboxes had dropped when everything was fetched.
    dropped: Cell<u64>,
    no_memory_ns: Cell<u64>,
    /// When a topic that was refused is next logged.
    rejected_log_ns: Cell<u64>,
    sharing: Sharing,
}

/// Gaps that are not logged yet.
#[derive(Default)]
struct GapLog {
    topics: usize,
    next_ns: u64,
}

impl Driver {
    fn new(broker: Arc<Broker>, at: usize, receiver: Arc<dyn Receiver>) -> Self {
        Driver {
            broker,
            at,
            receiver,
            sequences: RefCell::new(Sequences::new(BEACON_NS, SENT_CHANNELS_MAX)),
            received: RefCell::new(Received::new(RECEIVED_SENDERS_MAX)),
            in_flight: RefCell::default(),
            resend: RefCell::default(),
            gap_log: RefCell::default(),
            followed: RefCell::default(),
            settled: Notify::new(),
            is_ending: Cell::default(),
            ends: Notify::new(),
            behind: RefCell::default(),
            behind_ns: Cell::default(),
            fetch_channels: Cell::new(FETCH_CHANNELS_FIRST),
            dropped: Cell::default(),
            no_memory_ns: Cell::default(),
            rejected_log_ns: Cell::default(),
            sharing: Sharing::default(),
        }
    }

    fn shard(&self) -> &Shard {
        // A driver is made for each shard.
        self.broker.shards.get(self.at).unwrap_or(&self.broker.shards[0])
    }

    async fn run<T: Transport>(self, transport: T) {
        let (mut backoff, mut logged_ns) = (Backoff::default(), 0);
        loop {
            let (inbox, inbox_receiver) =
                Inbox::new(INBOX_BYTES, Arc::clone(&self.broker.counters.dropped));
            let connecting = tokio::time::timeout(
                CONNECT_TIMEOUT,
                transport.connect(inbox, &self.broker.settings),
            )
            .await;
            let opened = connecting.unwrap_or_else(|_| {
                let why = format!("no connection within {CONNECT_TIMEOUT:?}");
                Err(Fault::new(FaultKind::Unreachable, why))
            });
            let fault = match opened {
                Ok(link) => {
                    self.broker.counters.connected.fetch_add(1, Ordering::Relaxed);
                    let mut delivering = pin!(self.deliver(&link, inbox_receiver));
                    let (fault, delivers) = tokio::select! {
                        fault = &mut delivering => (fault, false),
                        fault = link.ended() => (fault, true),
                        fault = self.subscribe(&link) => (fault, true),
                        fault = self.publish(&link) => (fault, true),
                        fault = self.store(&link) => (fault, true),
                        fault = self.check(&link) => (fault, true),
                        fault = self.share_members(&link) => (fault, true),
                    };
                    // With a history it is fetched by the next connection, in order.
                    if delivers && self.broker.settings.history.is_none() {
                        self.deliver_rest(delivering).await;
                    }
                    // One that ends soon again is not tried and logged at once each time.
                    if backoff.lasted(self.up_for()) {
                        logged_ns = 0;
                    }
                    fault
                }
                Err(fault) => fault,
            };
            self.broker.counters.fault_add(fault.kind);
            let now_ns = self.broker.now_ns();
            if logged_ns == 0 || now_ns.saturating_sub(logged_ns) >= LOG_INTERVAL_NS {
                logged_ns = now_ns.max(1);
                warn!("pubsub disconnected: {}: {fault}; connecting again", self.shard().server);
            }
            self.disconnected(now_ns, fault);
            self.store_lost().await;
            backoff.pause().await;
        }
    }

    /// The connection has ended: goes on with what had arrived, for a bounded time.
    async fn deliver_rest(&self, delivering: impl Future<Output = Fault>) {
        self.is_ending.set(true);
        self.ends.notify_one();
        self.settled.notify_one();
        let _ = tokio::time::timeout(LAST_DELIVERIES, delivering).await;
        self.is_ending.set(false);
    }

    fn is_up(&self) -> bool {
        matches!(self.shard().lock().state, State::Up { .. })
    }

    /// Time for which everything has been subscribed.
    fn up_for(&self) -> Duration {
        match self.shard().lock().state {
            State::Up { since_ns } => {
                Duration::from_nanos(self.broker.now_ns().saturating_sub(since_ns))
            }
            State::Down { .. } => Duration::ZERO,
        }
    }

    /// Everything is subscribed: publications may be sent.
    fn connected(&self, topics: usize) {
        let since_ns = self.broker.now_ns();
        let mut inner = self.shard().lock();
        if matches!(inner.state, State::Up { .. }) {
            return;
        }
        inner.state = State::Up { since_ns };
        drop(inner);
        info!("pubsub connected: {}, {topics} channels subscribed", self.shard().server);
        self.shard().wakes.publisher.notify_one();
    }

    fn disconnected(&self, now_ns: u64, why: Fault) {
        self.followed.borrow_mut().disconnected();
        if let Some(in_flight) = self.in_flight.borrow_mut().take() {
            self.resend.borrow_mut().extend(in_flight.into_numbered());
        }
        self.members_disconnected();
        let mut inner = self.shard().lock();
        inner.interest.disconnected();
        inner.state = match std::mem::replace(&mut inner.state, State::Up { since_ns: 0 }) {
            State::Up { .. } => State::Down { since_ns: now_ns, why },
            State::Down { since_ns, .. } => State::Down { since_ns, why },
        };
    }

    /// Ends if the broker does not answer.
    async fn check(&self, link: &impl Link) -> Fault {
        loop {
            tokio::time::sleep(PING_INTERVAL).await;
            let began_ns = self.broker.now_ns();
            if let Err(fault) = link.check().await {
                return fault;
            }
            let took_ns = self.broker.now_ns().saturating_sub(began_ns);
            self.shard().check_ns.store(took_ns, Ordering::Relaxed);
        }
    }

    /// Counts, logs and tells that publications to channels may be missing.
    async fn gap(&self, channels: &[impl AsRef<str>], cause: GapCause) {
        let counters = &self.broker.counters;
        counters.gaps_add(cause, channels.len());
        let named = channels.first().map_or("", |channel| channel.as_ref());
        self.log_gap(channels.len(), named, cause);
        let topics = channels.iter().filter_map(|channel| self.broker.topic(channel.as_ref()));
        let topics: Vec<Box<str>> = topics.map(Box::from).collect();
        let mut rest = &topics[..];
        while !rest.is_empty() {
            let told = self.receiver.gap(rest, cause);
            rest = rest.get(told..).unwrap_or_default();
            if !rest.is_empty() {
                tokio::time::sleep(DELIVERY_PAUSE).await;
            }
        }
    }

    fn log_gap(&self, channels: usize, named: &str, cause: GapCause) {
        let now_ns = self.broker.now_ns();
        let mut log = self.gap_log.borrow_mut();
        log.topics += channels;
        if now_ns < log.next_ns {
            return;
        }
        log.next_ns = now_ns.saturating_add(LOG_INTERVAL_NS);
        let (topics, cause) = (std::mem::take(&mut log.topics), cause.name());
        if named == &*self.broker.control {
            warn!(topics, cause, "pubsub gap: commands of other nodes may be missing");
        } else {
            let named = self.broker.topic(named).unwrap_or(named);
            warn!(
                topics,
                cause, "pubsub gap: publications may be missing, such as those to {named:?}"
            );
        }
    }

    /// Tells the program something, again until it takes it.
    async fn tell(&self, telling: impl Fn(&dyn Receiver) -> bool) {
        while !telling(&*self.receiver) {
            tokio::time::sleep(DELIVERY_PAUSE).await;
        }
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
