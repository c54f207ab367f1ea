//! [`Link`]: how publications go to other processes and come from them, by the crate `brokers`.
//!
//! Subscribers of this process get a publication at once, as without a broker; the broker has it for the others.
//! What it returns of this process is not delivered again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use brokers::envelope::{Message, NodeId};
use brokers::{ConfirmedTopic, GapCause, Kept, OwnedExcept, Past, Receiver, Undelivered};
use engine::sys::process::now_ns;
use topics::{Directory, Publication};

use crate::broker::{Broker, BrokerState, Transports};
use crate::remote::Post;
use crate::routes::random;
use crate::{Error, Refused};

/// Longest time for which an ending server waits for the broker to take what was published before.
const FLUSH_CHECKS: u32 = 500;
/// Time between two looks.
const FLUSH_INTERVAL: Duration = Duration::from_millis(2);

/// The broker that a server is to use, if any.
pub(crate) type Choice = Option<Broker>;

/// The way to other processes, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Link(Option<Arc<Pubsub>>);

struct Pubsub {
    broker: Arc<brokers::Broker>,
    transports: Transports,
    /// Publications that were accepted while the broker was away.
    lost: AtomicU64,
}

impl Link {
    /// Prepares the connections, and has the broker subscribed to what this directory has subscribers of.
    ///
    /// # Errors
    /// Settings that cannot be used.
    pub(crate) fn new(choice: Choice, directory: &mut Directory) -> Result<Link, Error> {
        let Some(chosen) = choice else { return Ok(Link(None)) };
        let transports = chosen.transports()?;
        let settings = brokers::Settings {
            prefix: chosen.prefix,
            node_name: chosen.name.unwrap_or_else(host_name),
            linger: chosen.linger,
            spool_bytes: chosen.spool_bytes,
            history: None,
            members: None,
            values: None,
            clock: now_ns,
            random,
        };
        let broker = match &transports {
            #[cfg(feature = "redis")]
            Transports::Redis(servers) => brokers::Broker::new(settings, servers),
            #[cfg(feature = "redis")]
            Transports::RedisCluster(parts) => brokers::Broker::new(settings, parts),
            #[cfg(feature = "nats")]
            Transports::Nats(servers) => {
                brokers::Broker::new(settings, std::slice::from_ref(servers))
            }
        };
        let own = Arc::clone(&broker);
        directory.observe(move |topic, there| match there {
            true => own.want(topic),
            false => own.release(topic),
        });
        Ok(Link(Some(Arc::new(Pubsub { broker, transports, lost: AtomicU64::new(0) }))))
    }

    /// Starts the threads of the connections.
    ///
    /// # Errors
    /// One cannot be started.
    pub(crate) fn start(
        &self,
        workers: &engine::Remote<Post>,
        directory: &Directory,
    ) -> io::Result<()> {
        let Some(pubsub) = &self.0 else { return Ok(()) };
        let (workers, directory) = (workers.clone(), directory.clone());
        let inward = Inward { workers, directory, node: pubsub.broker.node() };
        let receiver = Arc::new(inward);
        match pubsub.transports.clone() {
            #[cfg(feature = "redis")]
            Transports::Redis(servers) => pubsub.broker.start(servers, receiver),
            #[cfg(feature = "redis")]
            Transports::RedisCluster(parts) => pubsub.broker.start(parts, receiver),
            #[cfg(feature = "nats")]
            Transports::Nats(servers) => pubsub.broker.start(vec![servers], receiver),
        }
    }

    /// Ends the connections, once the broker has what was published before.
    pub(crate) fn end(&self) {
        let Some(Pubsub { broker, .. }) = self.0.as_deref() else { return };
        for _ in 0..FLUSH_CHECKS {
            if broker.unsent() == 0 || broker.trouble().is_some() {
                break;
            }
            std::thread::sleep(FLUSH_INTERVAL);
        }
        broker.stop();
    }

    /// Publishes to the subscribers of this process with `here`, and to those of the others.
    ///
    /// # Errors
    /// Too much waits, here or for the broker: nobody gets it.
    #[inline]
    pub(crate) fn publish(
        &self,
        publication: &Publication,
        here: impl FnOnce() -> Result<(), topics::Refused>,
    ) -> Result<(), Refused> {
        match &self.0 {
            None => Ok(here()?),
            Some(pubsub) => pubsub.publish(publication, here),
        }
    }

    pub(crate) fn state(&self) -> Option<BrokerState> {
        let Pubsub { broker, lost, .. } = self.0.as_deref()?;
        let counters = broker.counters();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut state = BrokerState {
            trouble: broker.trouble(),
            topics: 0,
            unconfirmed: 0,
            waiting: broker.unsent(),
            published: read(&counters.published),
            lost: read(lost) + read(&counters.refused),
            received: read(&counters.received),
            dropped: read(&counters.dropped),
            gaps: counters.gaps().iter().sum(),
            connected: read(&counters.connected),
            others: broker.nodes().into_iter().map(|seen| seen.name).collect(),
        };
        for shard in broker.shards() {
            state.topics += shard.topics;
            state.unconfirmed += shard.unconfirmed;
        }
        // The channel of signs of life.
        state.topics = state.topics.saturating_sub(1);
        Some(state)
    }
}

impl Pubsub {
    fn publish(
        &self,
        publication: &Publication,
        here: impl FnOnce() -> Result<(), topics::Refused>,
    ) -> Result<(), Refused> {
        let accepted = self.broker.accepts(&publication.topic, publication.data.len());
        let accepted = accepted.map_err(|_| Refused::BrokerFull)?;
        here()?;
        let message = brokers::Publication {
            data: Arc::clone(&publication.data),
            binary: publication.binary,
            transient: false,
            except: OwnedExcept::None,
            kind: None,
        };
        if self.broker.publish_accepted(accepted, message, None).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What arrives from other processes, to the workers of this one.
struct Inward {
    workers: engine::Remote<Post>,
    directory: Directory,
    node: NodeId,
}

impl Receiver for Inward {
    fn publication(
        &self,
        topic: &str,
        message: &Message<'_>,
        _kept: Option<Kept>,
    ) -> Result<(), Undelivered> {
        if message.node == self.node {
            return Ok(());
        }
        let publication = Publication::new(topic.into(), message.data.into(), message.binary);
        match self.directory.publish(&self.workers, &Arc::new(publication)) {
            Ok(_) => Ok(()),
            Err(topics::Refused::MailboxFull) => Err(Undelivered::Busy),
            Err(topics::Refused::TopicOverloaded) => Err(Undelivered::Overloaded),
        }
    }

    fn loaded(&self, _topic: &str, _past: &Past<'_>) {}

    fn kept_again(&self, _topic: &str, _message: &Message<'_>, _kept: Kept) {}

    fn released(&self, _topics: &[Box<str>]) {}

    fn confirmed(&self, _topics: &[ConfirmedTopic]) -> bool {
        true
    }

    fn gap(&self, topics: &[Box<str>], _cause: GapCause) -> usize {
        for (told, topic) in topics.iter().enumerate() {
            let mut notice = Publication::new((&**topic).into(), Arc::default(), false);
            notice.gap = true;
            if self.directory.publish(&self.workers, &Arc::new(notice)).is_err() {
                return told;
            }
        }
        topics.len()
    }

    /// Those of `standfast serve` end its sessions.
    fn command(&self, _body: &[u8]) -> bool {
        true
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unnamed".to_owned() } else { name.to_owned() }
}
