//! Broadcast adapters: messages of applications that publish by a broker. An adapter connects for ever, hands each
//! message to its [`Inlet`] and says in what state it is. What a message means is the inlet's.
//!
//! All adapters run on one thread. An adapter never waits for its inlet, and keeps nothing that arrives: what an
//! inlet cannot accept now, it keeps in its own bounded memory and tries again.

#[cfg(feature = "redis")]
mod action_cable;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis_channel;
#[cfg(feature = "redis")]
mod redis_stream;
mod status;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, LocalSet};

#[cfg(feature = "redis")]
pub use self::action_cable::{ActionCableAdapter, Streams};
#[cfg(feature = "nats")]
pub use self::nats::NatsAdapter;
#[cfg(feature = "redis")]
pub use self::redis_channel::RedisChannelAdapter;
#[cfg(feature = "redis")]
pub use self::redis_stream::RedisStreamAdapter;
pub use self::status::{AdapterFigures, AdapterState, AdapterStatus};
use crate::backoff::Backoff;

/// Time between two attempts to hand over what an inlet has refused.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(20);

/// What accepts the messages of one adapter.
pub trait Inlet: Send + 'static {
    /// Takes a message. `kept` says that the broker keeps it until it is accepted.
    fn offer(&mut self, message: Message<'_>) -> Offered;

    /// Tries to accept what waits. Returns the numbers of the messages that now are accepted completely.
    fn retry(&mut self) -> Vec<u64>;

    /// Memory of what waits, in bytes; 0 if nothing does.
    fn waiting_bytes(&self) -> usize;

    /// These streams are received from now on; what was published to them before may be missing.
    fn begun(&mut self, _streams: &[&str]) {}

    /// The broker has confirmed streams that somebody waits for. False if it has to be told again.
    fn confirmed(&mut self, _streams: &[Box<str>]) -> bool {
        true
    }
}

/// A message.
#[derive(Copy, Clone, Debug)]
pub struct Message<'m> {
    /// Its channel, subject or stream.
    pub channel: &'m str,
    /// Its bytes.
    pub body: &'m [u8],
    /// Its number, unless the broker forgets it anyway: it is kept there until the inlet has accepted it.
    pub kept: Option<u64>,
    /// It is about sessions with these identifiers, which Rails has put together.
    pub identifiers: Option<&'m str>,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Offered {
    /// It was accepted completely.
    Accepted,
    /// All or a part of it waits.
    Waits,
    /// Some of it was dropped because too much waits.
    Dropped,
    /// It cannot be understood, and never will be.
    Invalid(String),
}

/// One adapter.
#[derive(Clone, Debug)]
pub enum Adapter {
    /// A channel of Redis.
    #[cfg(feature = "redis")]
    RedisChannel(RedisChannelAdapter),
    /// A stream of Redis.
    #[cfg(feature = "redis")]
    RedisStream(RedisStreamAdapter),
    /// What Rails' own adapter publishes by Redis.
    #[cfg(feature = "redis")]
    ActionCable(ActionCableAdapter),
    /// A subject of NATS.
    #[cfg(feature = "nats")]
    Nats(NatsAdapter),
}

/// Adapters that are open.
pub struct Adapters {
    statuses: Vec<Arc<AdapterStatus>>,
    /// How far the end is: adapters that look at it stop.
    phase: watch::Sender<Phase>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Whether adapters still take messages.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Open,
    /// Nothing is taken that another node could take.
    Leaving,
    Closed,
}

/// What an adapter needs while it runs.
pub(crate) struct Context {
    pub(crate) status: Arc<AdapterStatus>,
    pub(crate) inlet: Arc<Mutex<Box<dyn Inlet>>>,
    phase: watch::Receiver<Phase>,
    /// Notified when something begins to wait.
    waits: Notify,
}

impl Adapters {
    /// Opens adapters, each with its inlet, on a thread of their own. A broker that is away does not fail
    /// this: its adapter connects when it is back.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn open(adapters: Vec<(Adapter, Box<dyn Inlet>)>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (phase, phases) = watch::channel(Phase::Open);
        let (mut statuses, mut runs) = (Vec::new(), Vec::new());
        for (adapter, inlet) in adapters {
            let status = Arc::new(adapter.status());
            statuses.push(Arc::clone(&status));
            let inlet = Arc::new(Mutex::new(inlet));
            let context = Context { status, inlet, phase: phases.clone(), waits: Notify::new() };
            runs.push((adapter, context));
        }
        let run = move || {
            let local = LocalSet::new();
            let mut tasks = JoinSet::new();
            for (adapter, context) in runs {
                tasks.spawn_local_on(adapter.run(context), &local);
            }
            let all = async { while tasks.join_next().await.is_some() {} };
            local.block_on(&runtime, all);
            drop(local);
            // A lookup of a name that hangs does not delay the end.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("adapters".to_owned()).spawn(run)?;
        Ok(Adapters { statuses, phase, thread: Mutex::new(Some(thread)) })
    }

    /// The state and the counters of each adapter.
    pub fn figures(&self) -> Vec<AdapterFigures> {
        self.statuses.iter().map(|status| status.figures()).collect()
    }

    /// Why the first adapter that is not open is not.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.statuses.iter().find_map(|status| status.trouble())
    }

    /// The process will end: messages that another node could take are left to it.
    pub fn leave(&self) {
        self.phase.send_if_modified(|phase| raise(phase, Phase::Leaving));
    }

    /// Ends all adapters as soon as what they have taken is settled.
    pub fn close(&self) {
        self.phase.send_if_modified(|phase| raise(phase, Phase::Closed));
    }

    /// Whether all adapters have ended.
    pub fn is_closed(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

fn raise(phase: &mut Phase, to: Phase) -> bool {
    let later = to > *phase;
    *phase = (*phase).max(to);
    later
}

impl Adapter {
    /// The streams that it is to be told of, if it has to know them.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn streams(&self) -> Option<&Arc<Streams>> {
        match self {
            Adapter::ActionCable(adapter) => Some(adapter.streams()),
            _ => None,
        }
    }

    /// Its kind, as in the flag that opens it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "redis")]
            Adapter::RedisChannel(_) => "redis",
            #[cfg(feature = "redis")]
            Adapter::RedisStream(_) => "redisx",
            #[cfg(feature = "redis")]
            Adapter::ActionCable(_) => "action-cable",
            #[cfg(feature = "nats")]
            Adapter::Nats(_) => "nats",
        }
    }

    /// Whether no other process gets the messages that it gets.
    #[must_use]
    pub fn takes_alone(&self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Adapter::RedisStream(_) => true,
            _ => false,
        }
    }

    fn status(&self) -> AdapterStatus {
        match self {
            #[cfg(feature = "redis")]
            Adapter::RedisChannel(adapter) => adapter.status(),
            #[cfg(feature = "redis")]
            Adapter::RedisStream(adapter) => adapter.status(),
            #[cfg(feature = "redis")]
            Adapter::ActionCable(adapter) => adapter.status(),
            #[cfg(feature = "nats")]
            Adapter::Nats(adapter) => adapter.status(),
        }
    }

    async fn run(self, context: Context) {
        match self {
            #[cfg(feature = "redis")]
            Adapter::RedisChannel(adapter) => redis_channel::run(adapter, context).await,
            #[cfg(feature = "redis")]
            Adapter::RedisStream(adapter) => redis_stream::run(adapter, context).await,
            #[cfg(feature = "redis")]
            Adapter::ActionCable(adapter) => action_cable::run(adapter, context).await,
            #[cfg(feature = "nats")]
            Adapter::Nats(adapter) => nats::run(adapter, context).await,
        }
    }
}

impl Context {
    /// Hands a message to the inlet and counts what became of it.
    pub(crate) fn offer(&self, message: Message<'_>) -> Offered {
        let mut inlet = self.inlet.lock().unwrap_or_else(PoisonError::into_inner);
        let offered = inlet.offer(message);
        self.status.count(message.body.len(), &offered);
        self.status.waits(inlet.waiting_bytes());
        if offered == Offered::Waits {
            self.waits.notify_one();
        }
        offered
    }

    /// Tries to hand over what waits; returns the messages that are settled.
    pub(crate) fn retry(&self) -> Vec<u64> {
        let mut inlet = self.inlet.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = inlet.retry();
        self.status.waits(inlet.waiting_bytes());
        settled
    }

    /// Tells that streams are received from now on.
    pub(crate) fn begun(&self, streams: &[&str]) {
        self.inlet.lock().unwrap_or_else(PoisonError::into_inner).begun(streams);
    }

    /// Tells that streams are confirmed, again until it is taken.
    pub(crate) async fn confirmed(&self, streams: &[Box<str>]) {
        let take = || {
            let mut inlet = self.inlet.lock().unwrap_or_else(PoisonError::into_inner);
            inlet.confirmed(streams)
        };
        while !streams.is_empty() && !take() {
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Waits until it is time to retry; for ever while nothing waits.
    pub(crate) async fn retry_due(&self) {
        while self.status.waiting_bytes() == 0 {
            self.waits.notified().await;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }

    /// Waits before the next attempt to connect, and hands over what waits meanwhile. Whether the process
    /// has come so far that there is none.
    pub(crate) async fn pause(
        &self,
        backoff: &mut Backoff,
        until: Phase,
        mut settled: impl FnMut(Vec<u64>),
    ) -> bool {
        let mut pause = std::pin::pin!(backoff.pause());
        loop {
            tokio::select! {
                () = self.reached(until) => return true,
                () = &mut pause => return false,
                () = self.retry_due() => settled(self.retry()),
            }
        }
    }

    /// Whether the process has come this far.
    pub(crate) fn is(&self, phase: Phase) -> bool {
        *self.phase.borrow() >= phase
    }

    /// Waits until the process has come this far.
    pub(crate) async fn reached(&self, phase: Phase) {
        // Without a sender nobody needs the adapter any more.
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }
}
