//! Configuration of a server, as plain data; the executable reads flags, environment and file.

use std::time::Duration;

use admin::{Address, ConnectionLimits};
use brokers::adapters::Adapter;
use engine::{HttpsRedirect, Limits, TlsServer};
use topics::HistoryLimits;

use crate::allowed_host::{AllowedHost, may_be_private};
use crate::app::AppConfig;
use crate::auth::Auth;
use crate::hooks::WebhookConfig;
use crate::origin::Origin;
use crate::pubsub::PubsubConfig;

/// Connections to plan for by default.
pub(crate) const CONNECTIONS_DEFAULT: u64 = 1_000_000;

/// Configuration at start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Public listeners without TLS; port 0 takes a free port. Default `127.0.0.1:8080`.
    pub listen: Vec<Address>,
    /// The same with TLS, which needs `live.tls`.
    pub listen_tls: Vec<Address>,
    /// The admin listener; `None` for no admin listener. Default `127.0.0.1:8090`.
    pub admin: Option<Address>,
    /// Number and times of connections of the admin listener.
    pub admin_connections: ConnectionLimits,
    /// Serve `/echo`. Default off.
    pub echo: bool,
    /// The path of Action Cable. Default `/cable`.
    pub cable_path: Box<str>,
    /// Anyone may subscribe and publish. Implied when all listeners are loopback and no secret is
    /// set.
    pub public: bool,
    /// Serve `/_broadcast` on the public listeners too, for publishers with its key. Default off.
    pub listen_broadcast: bool,
    /// Workers at most; by default one per core, and further ones as descriptor tables fill.
    pub workers: Option<usize>,
    /// Connections at most; by default what the workers' descriptor tables hold.
    pub max_connections: Option<u64>,
    /// The history of topics; `None` for none. Default none.
    pub history: Option<HistoryConfig>,
    /// Who is present in topics; `None` to refuse presence. Default none.
    pub presence: Option<PresenceConfig>,
    /// Long polling; `None` to serve none. Default none.
    pub long_polling: Option<LongPolling>,
    /// Length of the accept queue. Default 4096.
    pub backlog: u32,
    /// The application that decides who may connect and subscribe, if there is one.
    pub app: Option<AppConfig>,
    /// Webhooks, if there is a receiver.
    pub webhooks: Option<WebhookConfig>,
    /// Publications between nodes, if there are others.
    pub pubsub: Option<PubsubConfig>,
    /// Brokers by which applications publish. Default none.
    pub adapters: Vec<Adapter>,
    /// Settings that a reload can change.
    pub live: Live,
}

/// Settings that a reload can change.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// The engine's limits. The idle timeout and the mailboxes' size are taken at start only.
    pub limits: Limits,
    /// Origins that may connect, in addition to the same origin and this machine's own pages.
    pub allow_origin: Vec<Origin>,
    /// Names by which clients may address the server. Default: any, and on loopback this machine's.
    pub allow_host: Vec<AllowedHost>,
    /// The bearer key of the admin listener.
    pub admin_key: Option<String>,
    /// TLS of the admin listener, if it has TLS.
    pub admin_tls: Option<TlsServer>,
    /// Settings of sessions with channels.
    pub channels: Channels,
    /// Authentication and authorization. Whether anything is checked at all is settled at start.
    pub auth: Auth,
    /// TLS of the public listeners that have it. Whether they use TLS at all is settled at start.
    pub tls: Option<TlsServer>,
    /// Redirects requests on the other listeners to https.
    pub redirect: Option<HttpsRedirect>,
}

/// Settings of the history, and of sessions that are kept to be resumed.
#[derive(Clone, Debug)]
pub struct HistoryConfig {
    /// Where they are kept. Default in this process.
    pub place: HistoryPlace,
    /// Publications kept of one topic. Default 100.
    pub messages: usize,
    /// How long they are kept. Default 300 s.
    pub age: Duration,
    /// Bytes kept of one topic. Default 1 MiB.
    pub topic_bytes: usize,
    /// Bytes kept of all topics. Default 64 MiB.
    pub bytes: usize,
    /// How long a session can be resumed after its connection has ended. Default 300 s.
    pub sessions_age: Duration,
    /// Bytes of sessions that can be resumed. Default 32 MiB.
    pub sessions_bytes: usize,
}

/// Where a history is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HistoryPlace {
    /// In this process.
    Memory,
    /// At the broker of [`Config::pubsub`], for all nodes; in this process is a copy of what it follows.
    Broker,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        HistoryConfig {
            place: HistoryPlace::Memory,
            messages: 100,
            age: Duration::from_secs(300),
            topic_bytes: 1024 * 1024,
            bytes: 64 * 1024 * 1024,
            sessions_age: Duration::from_secs(300),
            sessions_bytes: 32 * 1024 * 1024,
        }
    }
}

impl HistoryConfig {
    pub(crate) fn limits(&self) -> HistoryLimits {
        let age_ns = u64::try_from(self.age.as_nanos()).unwrap_or(u64::MAX);
        let HistoryConfig { messages, topic_bytes, bytes, .. } = *self;
        HistoryLimits { messages, age_ns, topic_bytes, bytes }
    }
}

/// Settings of presence.
#[derive(Clone, Debug)]
pub struct PresenceConfig {
    /// How long a member stays after its last connection was lost. Default 15 s.
    pub ttl: Duration,
    /// Time in which joins and leaves are collected before subscribers are told. Default 250 ms.
    pub window: Duration,
    /// Bytes of members of all topics. Default 32 MiB.
    pub bytes: usize,
    /// The broker of [`Config::pubsub`] shares members with the other nodes.
    pub shared: bool,
}

impl Default for PresenceConfig {
    fn default() -> Self {
        PresenceConfig {
            ttl: Duration::from_secs(15),
            window: Duration::from_millis(250),
            bytes: 32 * 1024 * 1024,
            shared: false,
        }
    }
}

/// Settings of long polling.
#[derive(Clone, Debug)]
pub struct LongPolling {
    /// Its path. Default `/lp`.
    pub path: Box<str>,
    /// How long a request waits for messages. Default 15 s.
    pub interval: Duration,
    /// How long messages are collected before a request that waits is answered. Default 500 ms.
    pub flush_interval: Duration,
    /// How long a session stays without a request. Default 5 s.
    pub keepalive: Duration,
    /// Longest body of a request, in bytes. Default 64 KiB.
    pub max_body: u64,
}

impl Default for LongPolling {
    fn default() -> Self {
        LongPolling {
            path: "/lp".into(),
            interval: Duration::from_secs(15),
            flush_interval: Duration::from_millis(500),
            keepalive: Duration::from_secs(5),
            max_body: 64 * 1024,
        }
    }
}

/// Settings of sessions with channels.
#[derive(Clone, Debug)]
pub struct Channels {
    /// Interval of heartbeat messages to clients. Default 3 s, which Action Cable's clients expect: they
    /// reconnect after twice that without a ping.
    pub ping_interval: Duration,
    /// Time after which silent clients of the extended protocol are disconnected; `None` for never.
    /// Default `None`.
    pub pong_timeout: Option<Duration>,
    /// Subscriptions that one connection may have. Default 1,000.
    pub max_subscriptions: usize,
    /// Memory that the subscriptions of one connection may take, in bytes. Default 64 KiB.
    pub max_subscription_bytes: usize,
}

impl Default for Channels {
    fn default() -> Self {
        let ping_interval = Duration::from_secs(3);
        Channels {
            ping_interval,
            pong_timeout: None,
            max_subscriptions: 1_000,
            max_subscription_bytes: 64 * 1024,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: vec![Address::Tcp(([127, 0, 0, 1], 8080).into())],
            listen_tls: Vec::new(),
            admin: Some(Address::Tcp(([127, 0, 0, 1], 8090).into())),
            admin_connections: ConnectionLimits::default(),
            echo: false,
            cable_path: "/cable".into(),
            public: false,
            listen_broadcast: false,
            workers: None,
            max_connections: None,
            history: None,
            presence: None,
            long_polling: None,
            backlog: 4096,
            app: None,
            webhooks: None,
            pubsub: None,
            adapters: Vec::new(),
            live: Live::default(),
        }
    }
}

impl Config {
    fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.listen.iter().chain(&self.listen_tls)
    }

    /// Whether only this machine can reach the public listeners.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.addresses().all(Address::is_local)
    }

    /// Whether anyone may subscribe and publish.
    pub(crate) fn is_public(&self) -> bool {
        self.public || self.is_local() && !self.live.auth.is_set()
    }

    /// Whether a page of another site could reach a public server by letting its own name resolve to
    /// one of the plain listeners' addresses (DNS rebinding); the certificate of a TLS listener is for
    /// no other name. On loopback Host is checked anyway.
    pub(crate) fn may_be_rebound(&self) -> bool {
        let private =
            |address: &Address| matches!(address, Address::Tcp(at) if may_be_private(at.ip()));
        !self.is_local() && self.is_public() && self.listen.iter().any(private)
    }

    /// Whether to check Host: all listeners are local, and browsers of this machine can reach one of them.
    pub(crate) fn checks_host(&self) -> bool {
        let tcp = |address: &Address| matches!(address, Address::Tcp(_));
        self.is_local() && self.addresses().any(tcp)
    }
}
