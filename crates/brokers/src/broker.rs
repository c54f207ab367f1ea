//! [`Broker`]: what a program does with other nodes: it wants topics, publishes, and sends commands. All its
//! methods may be called by any thread and wait for nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use std::collections::VecDeque;

use tokio::sync::Notify;

use crate::bell::Bell;
use crate::driver;
use crate::envelope::{Message, NodeId};
use crate::figures::{Counters, GapCause, NodeSeen, Nodes, ShardFigures};
use crate::interest::Interest;
use crate::kept::{HistorySettings, Kept, Past};
use crate::limits::{FULL_NS, QUEUE_BYTES};
use crate::members::Members;
use crate::members::outbox::Outbox;
use crate::placement::Placement;
use crate::store::StoreQueue;
use crate::ticket::Ticket;
use crate::transport::{Channel, Fault, Transport};

/// Why a broker that keeps publications takes none.
pub const NO_ROOM: &str = "the broker has no room for more (maxmemory of Redis, max_bytes of NATS)";

/// What holds for all connections.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Precedes the names of channels.
    pub prefix: String,
    /// The name of this node for others.
    pub node_name: String,
    /// How long a topic stays subscribed after it was wanted for the last time.
    pub linger: Duration,
    /// Bytes of publications that wait while there is no connection; 0 to refuse them.
    pub spool_bytes: usize,
    /// What the broker keeps of each topic; `None` if it keeps nothing.
    pub history: Option<HistorySettings>,
    /// How long the members of a node stay after it has ended; `None` if nodes share no members.
    pub members: Option<Duration>,
    /// Longest time for which values are kept by key ([`Broker::store`]); `None` if none are. Redis has no use for it.
    pub values: Option<Duration>,
    /// The monotonic clock, in nanoseconds.
    pub clock: fn() -> u64,
    /// Random numbers that differ from those of other processes.
    pub random: fn() -> u64,
}

impl Settings {
    /// The channel of commands and of signs of life.
    pub(crate) fn control(&self) -> String {
        format!("{}:nodes", self.prefix)
    }
}

/// What a program does with what arrives. Called by one thread, in order.
pub trait Receiver: Send + Sync + 'static {
    /// A publication for the subscribers of a topic, with its position if the broker keeps it: the next one
    /// that it keeps of this topic, after those of [`Receiver::loaded`].
    ///
    /// # Errors
    /// It was not delivered.
    fn publication(
        &self,
        topic: &str,
        message: &Message<'_>,
        kept: Option<Kept>,
    ) -> Result<(), Undelivered>;

    /// What the broker keeps of a topic, in place of all that was known of it: before the topic is confirmed for the
    /// first time, and where an epoch begins of which nothing was missed. Without messages before [`Receiver::gap`]
    /// tells that some are not kept any more: what is left follows that. Only with [`Settings::history`].
    fn loaded(&self, topic: &str, past: &Past<'_>);

    /// A publication that was delivered in another epoch is kept in this one, too, as its sender has sent it again.
    /// It is the next one that the broker keeps, and nobody gets it now. Only with [`Settings::history`].
    fn kept_again(&self, topic: &str, message: &Message<'_>, kept: Kept);

    /// Topics that are not followed any more. What the broker keeps of them, if it does, has to be loaded again.
    fn released(&self, topics: &[Box<str>]);

    /// The broker has confirmed topics: what is published to them from now on arrives. False if it has to be
    /// told again.
    fn confirmed(&self, topics: &[ConfirmedTopic]) -> bool;

    /// Publications to these topics may be missing: with [`Settings::history`] those that are not kept any more,
    /// which [`Receiver::loaded`] has told, or such as are never kept. Returns how many of the topics, from the first
    /// on, were told; it is called again with the others.
    fn gap(&self, topics: &[Box<str>], cause: GapCause) -> usize;

    /// A command of another node. False if it has to be told again.
    fn command(&self, body: &[u8]) -> bool;

    /// What gets the members of other nodes. Only with [`Settings::members`].
    fn members(&self) -> Option<&dyn Members> {
        None
    }
}

/// A topic that the broker has confirmed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfirmedTopic {
    /// Its name.
    pub topic: Box<str>,
    /// Somebody waits for it.
    pub awaited: bool,
}

/// Why a publication of another node was not delivered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Undelivered {
    /// Some thread is busy: try again soon.
    Busy,
    /// Its topic has too much pending: it is given up.
    Overloaded,
}

/// A topic for which a broker had room for a publication ([`Broker::accepts`]).
#[derive(Debug)]
pub struct Accepted(Channel);

/// Why a publication is not taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// There is no connection, and the spool has no room.
    Down,
    /// Too much waits to be sent.
    Full,
}

/// A publication as it waits to be sent.
#[derive(Clone, Debug)]
pub struct Publication {
    /// The payload.
    pub data: Arc<[u8]>,
    /// It is binary, not text.
    pub binary: bool,
    /// A history does not keep it.
    pub transient: bool,
    /// Who does not get it.
    pub except: OwnedExcept,
    /// The kind that receivers see.
    pub kind: Option<Arc<str>>,
}

/// As [`crate::envelope::Except`].
#[derive(Clone, Debug)]
pub enum OwnedExcept {
    /// Everyone gets it.
    None,
    /// A connection of this process.
    Own(u64),
    /// A session of any node.
    Session(Box<str>),
}

/// What waits to be sent.
pub(crate) struct Queued {
    pub(crate) channel: Channel,
    pub(crate) content: Content,
    pub(crate) ticket: Option<Arc<Ticket>>,
}

pub(crate) enum Content {
    Publication(Publication),
    Command(Box<[u8]>),
}

impl Queued {
    pub(crate) fn bytes(&self) -> usize {
        let content = match &self.content {
            Content::Publication(publication) => {
                publication.data.len() + publication.kind.as_ref().map_or(0, |kind| kind.len())
            }
            Content::Command(body) => body.len(),
        };
        size_of::<Self>() + self.channel.len() + content
    }
}

/// The connections of a process to its brokers.
pub struct Broker {
    pub(crate) node: NodeId,
    pub(crate) settings: Settings,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) counters: Counters,
    pub(crate) nodes: Mutex<Nodes>,
    bell: Arc<Bell>,
    is_leaving: AtomicBool,
    is_stopped: AtomicBool,
    /// Ends the thread of the connections.
    pub(crate) stopped: Notify,
    pub(crate) placement: Placement,
    /// The channel of commands and of signs of life.
    pub(crate) control: Channel,
}

/// One broker, which has the topics of a share of all hashes.
pub(crate) struct Shard {
    pub(crate) server: String,
    pub(crate) inner: Mutex<Inner>,
    /// Time of the last check, in nanoseconds.
    pub(crate) check_ns: AtomicU64,
    /// When it last had no room for a publication; 0 if it has taken one since.
    pub(crate) full_ns: AtomicU64,
    pub(crate) wakes: Wakes,
    /// Members that have changed and are not written.
    pub(crate) outbox: Outbox,
    pub(crate) store: StoreQueue,
}

/// Wakes the parts of a shard's connection.
#[derive(Default)]
pub(crate) struct Wakes {
    pub(crate) interest: Notify,
    pub(crate) publisher: Notify,
    pub(crate) members: Notify,
}

pub(crate) struct Inner {
    pub(crate) interest: Interest,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) queue_bytes: usize,
    /// Publications and commands that were taken from the queue and that the broker has not answered yet.
    pub(crate) unanswered: usize,
    pub(crate) state: State,
}

/// The state of a connection.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// It carries publications, since this time.
    Up { since_ns: u64 },
    /// There is none, or not everything is subscribed yet.
    Down { since_ns: u64, why: Fault },
}

impl Shard {
    /// Whether it has refused a publication a moment ago, and has taken none since.
    fn is_full(&self, now_ns: u64) -> bool {
        let full_ns = self.full_ns.load(Ordering::Relaxed);
        full_ns > 0 && now_ns.saturating_sub(full_ns) < FULL_NS
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Broker {
    /// Prepares connections; [`Broker::start`] opens them. There is at least one transport.
    #[must_use]
    pub fn new<T: Transport>(settings: Settings, transports: &[T]) -> Arc<Broker> {
        let now_ns = (settings.clock)();
        let control: Channel = settings.control().into();
        let placement = transports.first().map(Transport::placement).unwrap_or_default();
        let linger_ns = u64::try_from(settings.linger.as_nanos()).unwrap_or(u64::MAX);
        let shard = |transport: &T| Shard {
            server: transport.server(),
            inner: Mutex::new(Inner {
                interest: Interest::new(linger_ns),
                queue: VecDeque::new(),
                queue_bytes: 0,
                unanswered: 0,
                state: State::Down { since_ns: now_ns, why: driver::not_yet() },
            }),
            check_ns: AtomicU64::new(0),
            full_ns: AtomicU64::new(0),
            wakes: Wakes::default(),
            outbox: Outbox::default(),
            store: StoreQueue::default(),
        };
        let broker = Broker {
            node: NodeId((settings.random)()),
            shards: transports.iter().map(shard).collect(),
            counters: Counters::default(),
            nodes: Mutex::default(),
            bell: Arc::default(),
            is_leaving: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            stopped: Notify::new(),
            placement,
            control: Channel::clone(&control),
            settings,
        };
        broker.shard(&control).lock().interest.want(&control);
        Arc::new(broker)
    }

    /// Starts the threads. What arrives goes to `receiver`.
    ///
    /// # Errors
    /// A thread or the runtime cannot be started.
    pub fn start<T: Transport + Send + 'static>(
        self: &Arc<Self>,
        transports: Vec<T>,
        receiver: Arc<dyn Receiver>,
    ) -> io::Result<()> {
        driver::start(Arc::clone(self), transports, receiver)?;
        let broker = Arc::downgrade(self);
        self.bell.start(move || {
            let Some(broker) = broker.upgrade() else { return false };
            if broker.is_stopped.load(Ordering::Relaxed) {
                broker.stopped.notify_one();
                return false;
            }
            for Shard { wakes, store, .. } in &broker.shards {
                wakes.interest.notify_one();
                wakes.publisher.notify_one();
                wakes.members.notify_one();
                store.wakes.notify_one();
            }
            true
        })
    }

    /// This process.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The name of this node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.settings.node_name
    }

    pub(crate) fn now_ns(&self) -> u64 {
        (self.settings.clock)()
    }

    pub(crate) fn channel(&self, topic: &str) -> Channel {
        let prefix = &self.settings.prefix;
        match self.placement.has_slots() {
            // So that all keys of the topic are in the channel's slot.
            true => format!("{{{prefix}:t:{topic}}}").into(),
            false => format!("{prefix}:t:{topic}").into(),
        }
    }

    /// The topic of a channel; `None` if it is another one.
    pub(crate) fn topic<'c>(&self, channel: &'c str) -> Option<&'c str> {
        let channel = match self.placement.has_slots() {
            true => channel.strip_prefix('{')?.strip_suffix('}')?,
            false => channel,
        };
        channel.strip_prefix(&*self.settings.prefix)?.strip_prefix(":t:")
    }

    pub(crate) fn shard(&self, channel: &str) -> &Shard {
        let at = self.placement.shard(channel, self.shards.len());
        // There is at least one.
        self.shards.get(at).unwrap_or(&self.shards[0])
    }

    /// Wakes the thread of the connections.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// A topic has its first subscriber in this process.
    pub fn want(&self, topic: &str) {
        let channel = self.channel(topic);
        if self.shard(&channel).lock().interest.want(&channel) {
            self.bell.ring();
        }
    }

    /// A topic has lost its last subscriber in this process.
    pub fn release(&self, topic: &str) {
        let (channel, now_ns) = (self.channel(topic), self.now_ns());
        let shard = self.shard(&channel);
        let mut inner = shard.lock();
        let sooner = inner.interest.due_ns().is_none();
        inner.interest.release(now_ns, &channel);
        drop(inner);
        if sooner {
            self.bell.ring();
        }
    }

    /// Wants a topic for a moment: somebody is about to subscribe, and then wants it with [`Broker::want`].
    /// Returns whether the broker has confirmed it; otherwise [`Receiver::confirmed`] will be called with it.
    pub fn prepare(&self, topic: &str) -> bool {
        let (channel, now_ns) = (self.channel(topic), self.now_ns());
        let mut inner = self.shard(&channel).lock();
        inner.interest.touch(now_ns, &channel);
        let confirmed = inner.interest.confirmed_or_await(&channel);
        drop(inner);
        if !confirmed {
            self.bell.ring();
        }
        confirmed
    }

    /// Whether the broker has confirmed a topic that is wanted. If not, [`Receiver::confirmed`] will be called
    /// with it.
    pub fn confirmed_or_await(&self, topic: &str) -> bool {
        let channel = self.channel(topic);
        self.shard(&channel).lock().interest.confirmed_or_await(&channel)
    }

    /// Publishes to the subscribers of all nodes, this one included: each gets it when the broker returns it.
    ///
    /// # Errors
    /// Nothing was published.
    pub fn publish(
        &self,
        topic: &str,
        publication: Publication,
        ticket: Option<Arc<Ticket>>,
    ) -> Result<(), Unavailable> {
        self.publish_accepted(Accepted(self.channel(topic)), publication, ticket)
    }

    /// As [`Broker::publish`], of a publication that was asked about before.
    ///
    /// # Errors
    /// As [`Broker::publish`], if others have taken the room.
    pub fn publish_accepted(
        &self,
        Accepted(channel): Accepted,
        publication: Publication,
        ticket: Option<Arc<Ticket>>,
    ) -> Result<(), Unavailable> {
        self.queue(Queued { channel, content: Content::Publication(publication), ticket })
    }

    /// Sends a command to the other nodes.
    ///
    /// # Errors
    /// Nothing was sent.
    pub fn command(&self, body: Box<[u8]>, ticket: Option<Arc<Ticket>>) -> Result<(), Unavailable> {
        let channel = Channel::clone(&self.control);
        self.queue(Queued { channel, content: Content::Command(body), ticket })
    }

    /// A member of this node is present in a topic with this info, or is not. The other nodes are told soon.
    pub fn set_member(&self, topic: &str, id: &Arc<str>, state: Option<Option<&Arc<str>>>) {
        let channel = self.channel(topic);
        let state = state.map(Option::<&Arc<str>>::cloned);
        self.shard(&channel).outbox.push(topic, Arc::clone(id), state);
        self.bell.ring();
    }

    /// The process is about to end: from now on its members stay for [`Settings::members`] after it has ended.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// Closes the connections and ends the threads. What waits is not sent.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Members whose change is not written.
    #[must_use]
    pub fn members_waiting(&self) -> usize {
        self.shards.iter().map(|shard| shard.outbox.len()).sum()
    }

    /// Whether there is room for a publication with this many bytes of payload, unless others take it before. While
    /// there is no connection, there may be none in [`Broker::publish_accepted`], either.
    ///
    /// # Errors
    /// [`Unavailable::Full`].
    pub fn accepts(&self, topic: &str, bytes: usize) -> Result<Accepted, Unavailable> {
        let channel = self.channel(topic);
        let bytes = size_of::<Queued>() + channel.len() + bytes;
        let room = self.room_for(&self.shard(&channel).lock(), bytes);
        match room {
            Err(Unavailable::Full) => Err(Unavailable::Full),
            Ok(_) | Err(Unavailable::Down) => Ok(Accepted(channel)),
        }
    }

    /// The bytes that wait after these.
    fn room_for(&self, inner: &Inner, bytes: usize) -> Result<usize, Unavailable> {
        let (after, spool) = (inner.queue_bytes.saturating_add(bytes), self.settings.spool_bytes);
        let longest = QUEUE_BYTES.max(spool);
        match inner.state {
            State::Down { .. } if after > spool => Err(Unavailable::Down),
            State::Up { .. } if after > longest && !inner.queue.is_empty() => {
                Err(Unavailable::Full)
            }
            _ => Ok(after),
        }
    }

    fn queue(&self, queued: Queued) -> Result<(), Unavailable> {
        let bytes = queued.bytes();
        let mut inner = self.shard(&queued.channel).lock();
        let after = self.room_for(&inner, bytes)?;
        inner.queue.push_back(queued);
        inner.queue_bytes = after;
        drop(inner);
        self.bell.ring();
        Ok(())
    }

    /// Counts publications and commands that were given up after [`Unavailable`], or withdrawn. Those that are
    /// tried again are not.
    pub fn count_refused(&self, many: usize) {
        Counters::add(&self.counters.refused, many);
    }

    /// Why publications do not reach all nodes now; `None` if they do.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shards.iter().find_map(|shard| match &shard.lock().state {
            State::Up { .. } => None,
            State::Down { why, .. } => Some(format!("{}: {why}", shard.server)),
        })
    }

    /// Why a broker has refused a publication a moment ago that it had no room to keep; `None` if none has, or if all have
    /// taken one since.
    #[must_use]
    pub fn full(&self) -> Option<String> {
        let now_ns = self.now_ns();
        let full = self.shards.iter().find(|shard| shard.is_full(now_ns))?;
        Some(format!("{}: {NO_ROOM}", full.server))
    }

    /// Publications and commands that the broker does not have yet: they wait, or are on their way.
    #[must_use]
    pub fn unsent(&self) -> usize {
        let of = |shard: &Shard| {
            let inner = shard.lock();
            inner.queue.len() + inner.unanswered
        };
        self.shards.iter().map(of).sum()
    }

    /// The figures of each connection.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardFigures> {
        let now_ns = self.now_ns();
        let figures = |shard: &Shard| {
            let inner = shard.lock();
            let (since_ns, fault) = match &inner.state {
                State::Up { since_ns } => (*since_ns, None),
                State::Down { since_ns, why } => (*since_ns, Some(why.clone())),
            };
            ShardFigures {
                server: shard.server.clone(),
                since_ns,
                fault,
                is_full: shard.is_full(now_ns),
                topics: inner.interest.len(),
                unconfirmed: inner.interest.open(),
                waiting: inner.queue.len(),
                waiting_bytes: inner.queue_bytes,
                check_ns: shard.check_ns.load(Ordering::Relaxed),
            }
        };
        self.shards.iter().map(figures).collect()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The other nodes heard of lately.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeSeen> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).list(self.now_ns())
    }
}
