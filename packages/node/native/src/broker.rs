//! Other processes: publications go to Redis or NATS and come from there, by the crate `brokers`.
//!
//! Subscribers of this process get a publication at once, as without a broker; the broker has it for the others.
//! What it returns of this process is not delivered again. With a history it is: the broker gives the order and the
//! positions, so subscribers of this process get a publication when it returns, too.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use brokers::envelope::{Except, Message, NodeId};
use brokers::nats::NatsTransport;
use brokers::redis::RedisTransport;
use brokers::{
    ConfirmedTopic, GapCause, Kept, NatsServers, NatsUrl, OwnedExcept, Past, Receiver, RedisUrl,
    Undelivered,
};
use engine::sys::process::now_ns;
use engine::{ConnId, TlsClient, TlsTrust};
use napi_sys::napi_value;
use topics::{Epoch, KeptAt, PastPublication, Publication, Refused};

use crate::handler::Post;
use crate::history::Keeper;
use crate::napi::{Env, Thrown};
use crate::shared::Peers;

/// How long a topic stays subscribed at the broker after its last subscriber in this process has left.
const LINGER: Duration = Duration::from_secs(10);
/// How often, and at which interval, the end of the last app looks whether the broker has what was published before.
const FLUSH_CHECKS: u32 = 500;
const FLUSH_INTERVAL: Duration = Duration::from_millis(2);
/// Characters of a prefix at most.
const PREFIX_MAX: usize = 64;

/// What apps set of a broker.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Broker {
    /// Of Redis or NATS, with commas between several.
    pub(crate) urls: String,
    pub(crate) prefix: String,
    /// Bytes of publications that wait while there is no connection.
    pub(crate) spool_bytes: usize,
    /// Authorities that its certificates are checked by, in PEM; without them those of the machine.
    pub(crate) authorities: Option<String>,
}

#[derive(Clone)]
enum Transports {
    Redis(Vec<RedisTransport>),
    Nats(NatsTransport),
}

impl Broker {
    fn transports(&self) -> Result<Transports, Thrown> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let fits = (1..=PREFIX_MAX).contains(&self.prefix.len());
        if !fits || !self.prefix.bytes().all(plain) {
            let expected = "expected 1 to 64 letters, digits, -, _, . or :";
            return Err(format!("invalid prefix {:?} of a broker: {expected}", self.prefix).into());
        }
        let tls = |is_used: bool| {
            let authorities = self.authorities.as_ref();
            let trust = authorities.map(|pem| TlsTrust::Authorities(pem.as_bytes().into()));
            let client = match is_used {
                false => return Ok(None),
                true => TlsClient::new(&trust.unwrap_or_default(), None, true),
            };
            let client = client.map_err(|error| format!("TLS to a broker: {error}"))?;
            Ok::<_, Thrown>(Some(client.parts().0))
        };
        let urls = || self.urls.split(',').map(str::trim);
        let scheme = |url: &str| url.split_once(':').map(|(scheme, _)| scheme.to_owned());
        let is_nats = urls().all(|url| matches!(scheme(url).as_deref(), Some("nats" | "tls")));
        if is_nats {
            let urls: Result<Vec<NatsUrl>, _> = urls().map(str::parse).collect();
            let urls = urls.map_err(|error| error.to_string())?;
            let tls = tls(urls.iter().any(NatsUrl::is_tls))?;
            let servers = NatsServers { urls, credentials: None };
            return Ok(Transports::Nats(NatsTransport { servers, tls }));
        }
        let is_redis = urls().all(|url| {
            let scheme = scheme(url);
            let schemes = ["redis", "rediss", "valkey", "valkeys", "unix", "redis+unix"];
            scheme.is_some_and(|scheme| schemes.contains(&&*scheme))
        });
        if !is_redis {
            let expected =
                "expected redis://HOST, rediss://HOST, unix:/PATH, nats://HOST or tls://HOST";
            return Err(
                format!("invalid URL of a broker: {expected}, one or several of one kind").into()
            );
        }
        let redis = |url: &str| {
            let url: RedisUrl = url.parse().map_err(|error| format!("{error}"))?;
            Ok::<_, Thrown>(RedisTransport { tls: tls(url.tls)?, url, sentinels: Vec::new() })
        };
        urls().map(redis).collect::<Result<_, _>>().map(Transports::Redis)
    }
}

/// The connections to a broker.
pub(crate) struct Link {
    pub(crate) broker: Broker,
    own: Arc<brokers::Broker>,
    transports: Transports,
    /// Publications that were accepted while the broker was away.
    lost: AtomicU64,
}

impl Link {
    /// Prepares the connections, and has the broker subscribed to what these apps have subscribers of.
    pub(crate) fn new(broker: Broker, peers: &mut Peers) -> Result<Link, Thrown> {
        let transports = broker.transports()?;
        let settings = brokers::Settings {
            prefix: broker.prefix.clone(),
            node_name: host_name(),
            linger: LINGER,
            spool_bytes: broker.spool_bytes,
            history: peers.keeper.as_ref().map(Keeper::settings),
            members: None,
            values: None,
            clock: now_ns,
            random,
        };
        let own = match &transports {
            Transports::Redis(servers) => brokers::Broker::new(settings, servers),
            Transports::Nats(servers) => {
                brokers::Broker::new(settings, std::slice::from_ref(servers))
            }
        };
        let observed = Arc::clone(&own);
        peers.directory.observe(move |topic, there| match there {
            true => observed.want(topic),
            false => observed.release(topic),
        });
        Ok(Link { broker, own, transports, lost: AtomicU64::new(0) })
    }

    pub(crate) fn start(&self, peers: &Arc<Peers>) -> io::Result<()> {
        let receiver = Arc::new(Inward { peers: Arc::clone(peers), node: self.own.node() });
        match self.transports.clone() {
            Transports::Redis(servers) => self.own.start(servers, receiver),
            Transports::Nats(servers) => self.own.start(vec![servers], receiver),
        }
    }

    /// Ends the connections, once the broker has what was published before.
    pub(crate) fn end(&self) {
        for _ in 0..FLUSH_CHECKS {
            if self.own.unsent() == 0 || self.own.trouble().is_some() {
                break;
            }
            std::thread::sleep(FLUSH_INTERVAL);
        }
        self.own.stop();
    }

    /// Publishes to the subscribers of this process with `here`, and to those of the others.
    ///
    /// # Errors
    /// Too much waits, here or for the broker: nobody gets it.
    pub(crate) fn publish<T>(
        &self,
        publication: &Publication,
        here: impl FnOnce() -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let accepted = self.own.accepts(&publication.topic, publication.data.len());
        let accepted = accepted.map_err(|_| Refused::MailboxFull)?;
        let result = here()?;
        let message = message(publication, OwnedExcept::None);
        if self.own.publish_accepted(accepted, message, None).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(result)
    }

    /// Publishes to the subscribers of all processes, this one's included: they get it when the broker returns it.
    ///
    /// # Errors
    /// There is no connection, or too much waits: nobody gets it.
    pub(crate) fn submit(&self, publication: &Publication) -> Result<(), Refused> {
        let except = publication.except.map(|id| OwnedExcept::Own(id.as_u64()));
        let message = message(publication, except.unwrap_or(OwnedExcept::None));
        let queued = self.own.publish(&publication.topic, message, None);
        queued.map_err(|_| Refused::MailboxFull)
    }

    /// Whether the broker has confirmed a topic that somebody is about to subscribe to, or to read.
    pub(crate) fn prepare(&self, topic: &str) -> bool {
        self.own.prepare(topic)
    }

    /// `[trouble or undefined, topics, unconfirmed, waiting, published, lost, received, dropped, gaps, connected,
    /// [names of others]]`
    pub(crate) fn state(&self, env: Env) -> napi_value {
        let (own, counters) = (&self.own, self.own.counters());
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (mut topics, mut unconfirmed) = (0, 0);
        for shard in own.shards() {
            topics += shard.topics;
            unconfirmed += shard.unconfirmed;
        }
        let trouble = own.trouble().map_or_else(|| env.undefined(), |why| env.string(&why));
        let numbers = [
            // The channel of signs of life is none of the program's.
            topics.saturating_sub(1) as u64,
            unconfirmed as u64,
            own.unsent() as u64,
            read(&counters.published),
            read(&self.lost) + read(&counters.refused),
            read(&counters.received),
            read(&counters.dropped),
            counters.gaps().iter().sum(),
            read(&counters.connected),
        ];
        let others = env.array(own.nodes().iter().map(|other| env.string(&other.name)));
        let numbers = numbers.into_iter().map(|number| env.number(number as f64));
        env.array([trouble].into_iter().chain(numbers).chain([others]))
    }
}

fn message(publication: &Publication, except: OwnedExcept) -> brokers::Publication {
    let data = Arc::clone(&publication.data);
    let binary = publication.binary;
    brokers::Publication { data, binary, transient: false, except, kind: None }
}

/// What arrives from other processes, to the apps of this one.
struct Inward {
    peers: Arc<Peers>,
    node: NodeId,
}

impl Inward {
    /// A publication as the apps of this process get it.
    fn inward(&self, topic: &str, message: &Message<'_>) -> Publication {
        let mut publication = Publication::new(topic.into(), message.data.into(), message.binary);
        // The message does not say whether it is to be compressed: it is for clients that have agreed to it.
        publication.kind = Some("".into());
        if self.peers.keeper.is_some() {
            publication.accepted_ns = now_ns();
            publication.transient = message.transient;
            publication.except = match message.except {
                Except::Own(id) if message.node == self.node => Some(ConnId::from_u64(id)),
                _ => None,
            };
        }
        publication
    }
}

impl Receiver for Inward {
    fn publication(
        &self,
        topic: &str,
        message: &Message<'_>,
        kept: Option<Kept>,
    ) -> Result<(), Undelivered> {
        let Peers { directory, keeper, .. } = &*self.peers;
        if keeper.is_none() && message.node == self.node {
            return Ok(());
        }
        let publication = Arc::new(self.inward(topic, message));
        let kept = keeper.as_ref().zip(kept);
        let published = match kept.map(|(keeper, kept)| keeper.kept_at(kept)) {
            Some(at) => directory.publish_kept(&*self.peers, &publication, at),
            None => directory.publish_by(&*self.peers, &publication, None),
        };
        match published {
            Ok(_) => Ok(()),
            Err(Refused::MailboxFull) => Err(Undelivered::Busy),
            Err(Refused::TopicOverloaded) => Err(Undelivered::Overloaded),
        }
    }

    fn loaded(&self, topic: &str, past: &Past<'_>) {
        let Some(keeper) = &self.peers.keeper else { return };
        let publication = |(kept, message): &(Kept, Message<'_>)| {
            let KeptAt { position, at_ns } = keeper.kept_at(*kept);
            let publication = self.inward(topic, message);
            PastPublication { offset: position.offset, at_ns, publication }
        };
        let past = topics::Past {
            epoch: Epoch::new(past.epoch),
            floor: past.floor,
            floor_ns: keeper.monotonic_ns(past.floor_ms),
            last: past.last,
            publications: past.messages.iter().map(publication).collect(),
        };
        keeper.history.load(topic, past, now_ns());
    }

    fn kept_again(&self, topic: &str, message: &Message<'_>, kept: Kept) {
        if let Some(keeper) = &self.peers.keeper {
            keeper.history.record(&self.inward(topic, message), keeper.kept_at(kept));
        }
    }

    fn released(&self, topics: &[Box<str>]) {
        if let Some(keeper) = &self.peers.keeper {
            keeper.history.forget(topics.iter().map(|topic| &**topic));
        }
    }

    fn confirmed(&self, topics: &[ConfirmedTopic]) -> bool {
        let awaited = topics.iter().filter(|one| one.awaited).map(|one| one.topic.clone());
        let awaited: Arc<[Box<str>]> = awaited.collect();
        let bytes = awaited.iter().map(|topic| topic.len() + size_of::<Box<str>>()).sum();
        awaited.is_empty()
            || self.peers.post_to_all(bytes, || Post::Confirmed(Arc::clone(&awaited)))
    }

    fn gap(&self, topics: &[Box<str>], _cause: GapCause) -> usize {
        for (told, topic) in topics.iter().enumerate() {
            let mut notice = Publication::new((&**topic).into(), Arc::default(), false);
            (notice.gap, notice.transient) = (true, true);
            let posted = self.peers.directory.publish_by(&*self.peers, &Arc::new(notice), None);
            if posted.is_err() {
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

pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
