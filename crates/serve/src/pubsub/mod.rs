//! Publications between nodes: [`Pubsub`] is what workers and the control plane use, `receiver.rs` what brokers
//! call. The connections are in the crate [`brokers`].
//!
//! A publication goes to the broker only, and to the subscribers of this node when the broker returns it: so all
//! nodes see one order, and what is not accepted reaches nobody. Without `--pubsub` none of this exists.

mod config;
mod following;
mod receiver;
#[cfg(test)]
mod receiver_tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use brokers::{Broker, Outcome, OwnedExcept, Ticket};
use engine::Remote;
use engine::sys::process::now_ns;
use topics::Publication;

pub use self::config::{PubsubConfig, PubsubTransport};
use self::following::Following;
use crate::broadcast::Disconnect;
use crate::config::HistoryConfig;
use crate::handler::Post;
use crate::resume::TAKEN_BACK_WITHIN;
use crate::shared::Shared;

/// A process's part of what crosses nodes.
pub(crate) struct Pubsub {
    pub(crate) broker: Arc<Broker>,
    /// Time for the broker to confirm a subscription or to take a publication.
    pub(crate) timeout: Duration,
    transport: PubsubTransport,
    /// The broker keeps publications, each at a position.
    pub(crate) keeps: bool,
    /// The topics that the control plane waits for.
    topics: Following,
    /// Subscriptions and handshakes refused because the broker did not confirm their topic in time.
    pub(crate) unconfirmed: AtomicU64,
    /// Requests to publish answered 503 because of the broker.
    pub(crate) unavailable: AtomicU64,
}

/// A publication that somebody posts, and the session that does not get it.
pub(crate) struct Posted {
    pub(crate) publication: Arc<Publication>,
    pub(crate) exclude: Option<Box<str>>,
}

/// What one request has queued for the broker.
pub(crate) struct Submitted {
    tickets: Vec<Arc<Ticket>>,
    /// How many there were, with those that found no room.
    total: usize,
    until: Instant,
}

/// What became of the publications of one request.
#[derive(Default)]
pub(crate) struct Sent {
    /// Those that the broker has, from the first on.
    pub(crate) published: u64,
    /// Later ones that it may have, too.
    pub(crate) uncertain: u64,
    /// All were published.
    pub(crate) complete: bool,
    /// The most connections that one of them reached; `None` if the broker does not tell.
    pub(crate) nodes: Option<u64>,
    /// The broker takes none of the length of a later one.
    pub(crate) too_long: bool,
    /// Why it has refused a later one.
    pub(crate) rejected: Option<Arc<str>>,
    /// Where it keeps those that it has, if it does.
    pub(crate) positions: Vec<Option<brokers::Position>>,
}

impl Pubsub {
    /// `history` is what the broker keeps of publications, if it does; `members` how long the members of a node stay
    /// after it has ended, if presence is shared.
    pub(crate) fn new(
        config: &PubsubConfig,
        history: Option<&HistoryConfig>,
        members: Option<Duration>,
        random: fn() -> u64,
    ) -> Arc<Self> {
        let settings = brokers::Settings {
            prefix: config.prefix.clone(),
            node_name: config.node_name.clone(),
            linger: config.linger,
            spool_bytes: config.spool_bytes,
            history: history
                .map(|of| brokers::HistorySettings { messages: of.messages, age: of.age }),
            members,
            values: history.map(|of| of.sessions_age.saturating_add(TAKEN_BACK_WITHIN)),
            clock: now_ns,
            random,
        };
        let broker = match &config.transport {
            PubsubTransport::Redis(shards) => Broker::new(settings, shards),
            PubsubTransport::RedisCluster(parts) => Broker::new(settings, parts),
            PubsubTransport::Nats(servers) => Broker::new(settings, std::slice::from_ref(servers)),
        };
        Arc::new(Pubsub {
            broker,
            timeout: config.timeout,
            transport: config.transport.clone(),
            keeps: history.is_some(),
            topics: Following::default(),
            unconfirmed: AtomicU64::new(0),
            unavailable: AtomicU64::new(0),
        })
    }

    /// Why not all publications reach all nodes now, for `/ready`: what has happened, and the reason; `None` if they do.
    pub(crate) fn trouble(&self) -> Option<(&'static str, String)> {
        let disconnected = self.broker.trouble().map(|why| ("pubsub disconnected", why));
        disconnected.or_else(|| Some(("pubsub full", self.broker.full()?)))
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// One cannot be started.
    pub(crate) fn start(&self, shared: &Arc<Shared>, remote: Remote<Post>) -> io::Result<()> {
        let receiver = Arc::new(receiver::Inward::new(shared, remote, self.broker.node()));
        match self.transport.clone() {
            PubsubTransport::Redis(shards) => self.broker.start(shards, receiver),
            PubsubTransport::RedisCluster(parts) => self.broker.start(parts, receiver),
            PubsubTransport::Nats(servers) => self.broker.start(vec![servers], receiver),
        }
    }

    /// Whether the broker keeps values that nodes leave for each other.
    pub(crate) fn stores(&self) -> bool {
        // NATS does so in JetStream, which it need not have without its history.
        self.keeps || !matches!(self.transport, PubsubTransport::Nats(_))
    }

    /// Publishes without waiting for the broker. False if it has to be tried again.
    pub(crate) fn send(&self, posted: &Posted) -> bool {
        self.queue(&posted.publication, posted.exclude.clone(), None).is_ok()
    }

    /// Ends sessions on the other nodes, without waiting. False if it has to be tried again.
    pub(crate) fn send_disconnect(&self, request: &Disconnect) -> bool {
        self.broker.command(receiver::disconnect_command(request), None).is_ok()
    }

    /// Publishes for a client of this node. False if it has to wait.
    pub(crate) fn publish(&self, publication: &Publication) -> bool {
        self.queue(publication, None, None).is_ok()
    }

    fn queue(
        &self,
        publication: &Publication,
        exclude: Option<Box<str>>,
        ticket: Option<Arc<Ticket>>,
    ) -> Result<(), brokers::Unavailable> {
        let except = match (exclude, publication.except) {
            (Some(sid), _) => OwnedExcept::Session(sid),
            (None, Some(id)) => OwnedExcept::Own(id.as_u64()),
            (None, None) => OwnedExcept::None,
        };
        let message = brokers::Publication {
            data: Arc::clone(&publication.data),
            binary: publication.binary,
            transient: publication.transient,
            except,
            kind: publication.kind.clone(),
        };
        self.broker.publish(&publication.topic, message, ticket)
    }

    /// Queues publications in their order, up to the first that finds no room.
    pub(crate) fn submit(&self, publications: Vec<Posted>) -> Submitted {
        let until = self.deadline();
        let total = publications.len();
        let mut tickets = Vec::with_capacity(total);
        for Posted { publication, exclude } in publications {
            let ticket = Ticket::new();
            if self.queue(&publication, exclude, Some(Arc::clone(&ticket))).is_err() {
                break;
            }
            tickets.push(ticket);
        }
        self.broker.count_refused(total - tickets.len());
        Submitted { tickets, total, until }
    }

    /// Waits until the broker has all.
    pub(crate) fn wait(&self, submitted: Submitted) -> Sent {
        let Submitted { tickets, total, until } = submitted;
        let mut sent = Sent::default();
        let (mut in_order, mut withdrawn) = (true, 0);
        for ticket in tickets {
            let left =
                if in_order { until.saturating_duration_since(now()) } else { Duration::ZERO };
            match ticket.wait(left) {
                Outcome::Published { reached, position } if in_order => {
                    sent.published += 1;
                    sent.positions.extend(self.keeps.then_some(position));
                    sent.nodes = sent.nodes.max(reached);
                }
                Outcome::Published { .. } | Outcome::Unknown => {
                    (sent.uncertain, in_order) = (sent.uncertain + 1, false);
                }
                Outcome::Withdrawn => (withdrawn, in_order) = (withdrawn + 1, false),
                Outcome::TooLong => (sent.too_long, in_order) = (true, false),
                Outcome::Full => {
                    (withdrawn, in_order) = (withdrawn + 1, false);
                    sent.rejected.get_or_insert(brokers::NO_ROOM.into());
                }
                Outcome::Rejected(why) => {
                    (withdrawn, in_order) = (withdrawn + 1, false);
                    let why = format!("the broker has refused it, {why}");
                    sent.rejected.get_or_insert(why.into());
                }
            }
        }
        self.broker.count_refused(withdrawn);
        sent.complete = sent.published == total as u64;
        sent
    }

    /// Queues a command that ends sessions on the other nodes.
    pub(crate) fn submit_disconnect(&self, request: &Disconnect) -> Submitted {
        let (ticket, until) = (Ticket::new(), self.deadline());
        let body = receiver::disconnect_command(request);
        let tickets = match self.broker.command(body, Some(Arc::clone(&ticket))) {
            Ok(()) => vec![ticket],
            Err(_) => Vec::new(),
        };
        self.broker.count_refused(1 - tickets.len());
        Submitted { tickets, total: 1, until }
    }

    /// Waits until the broker has confirmed a topic that nobody may be subscribed to, and what it keeps of it is loaded.
    /// False if it does not in time.
    pub(crate) fn follow(&self, topic: &str, is_loaded: impl Fn() -> bool) -> bool {
        self.topics.wait(self.deadline(), || self.broker.prepare(topic) && is_loaded())
    }

    fn deadline(&self) -> Instant {
        let now = now();
        now.checked_add(self.timeout).unwrap_or(now)
    }
}

#[expect(clippy::disallowed_methods, reason = "a deadline on a thread of the control plane")]
fn now() -> Instant {
    Instant::now()
}
