//! What a server is told: plain data, from wherever it comes.

use std::time::Duration;

use admin::Address;
use engine::{Limits, TlsServer};

use crate::auth::Auth;
use crate::origin::Origin;

/// Longest topic name, in bytes of UTF-8: names are kept per worker and compared at each publish.
pub const TOPIC_BYTES_MAX: usize = 256;

/// Sockets to plan for when nobody said how many.
pub(crate) const CONNECTIONS_DEFAULT: u64 = 1_000_000;

/// What a server is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Public listeners; port 0 takes a free one. Default `127.0.0.1:8080`.
    pub listen: Vec<Address>,
    /// The admin listener, if there is to be one. Default `127.0.0.1:8090`.
    pub admin: Option<Address>,
    /// Serve `/echo`. Default off.
    pub echo: bool,
    /// The path of Action Cable. Default `/cable`.
    pub cable_path: Box<str>,
    /// Anyone may subscribe and publish. Implied when all listeners are loopback and nothing is to
    /// be checked.
    pub public: bool,
    /// Take what is published at `/_broadcast` on the public listeners too, of who shows the key for
    /// that. Default off.
    pub listen_broadcast: bool,
    /// Workers at most; otherwise as many as cores, and further ones as descriptor tables fill.
    pub workers: Option<usize>,
    /// Connections at most; otherwise what the workers' tables hold.
    pub max_connections: Option<u64>,
    /// Connections that may wait to be accepted. Default 4096.
    pub backlog: u32,
    /// What may change while the server runs.
    pub live: Live,
}

/// What may change while the server runs.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// The engine's limits. The idle timeout and the mailboxes' size are taken at start only.
    pub limits: Limits,
    /// Origins that may connect beside those that always may.
    pub allow_origin: Vec<Origin>,
    /// The bearer key of the admin listener.
    pub admin_key: Option<String>,
    /// What sessions with channels are like.
    pub channels: Channels,
    /// Who may connect, and listen to what. Whether anything is checked at all is settled at start.
    pub auth: Auth,
    /// How the public listeners speak TLS. Whether they do at all is settled at start.
    pub tls: Option<TlsServer>,
}

/// What sessions with channels are like.
#[derive(Clone, Debug)]
pub struct Channels {
    /// How often clients are told that we are there. Default 3 s, which Action Cable's clients
    /// expect: twice that without a ping and they connect anew.
    pub ping_interval: Duration,
    /// Clients of the extended protocol that were silent for this long are disconnected; `None`
    /// leaves them alone. Default `None`.
    pub pong_timeout: Option<Duration>,
    /// Subscriptions that one connection may have. Default 1,000.
    pub max_subscriptions: usize,
}

impl Default for Channels {
    fn default() -> Self {
        let ping_interval = Duration::from_secs(3);
        Channels { ping_interval, pong_timeout: None, max_subscriptions: 1_000 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: vec![Address::Tcp(([127, 0, 0, 1], 8080).into())],
            admin: Some(Address::Tcp(([127, 0, 0, 1], 8090).into())),
            echo: false,
            cable_path: "/cable".into(),
            public: false,
            listen_broadcast: false,
            workers: None,
            max_connections: None,
            backlog: 4096,
            live: Live::default(),
        }
    }
}

impl Config {
    /// Whether all public listeners are reachable from this machine only.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.listen.iter().all(Address::is_local)
    }

    /// Whether anyone may subscribe and publish.
    pub(crate) fn is_public(&self) -> bool {
        self.public || self.is_local() && !self.live.auth.is_set()
    }

    /// Whether all listeners are loopback and a browser of this machine reaches one of them.
    pub(crate) fn is_named(&self) -> bool {
        let tcp = |address: &Address| matches!(address, Address::Tcp(_));
        self.is_local() && self.listen.iter().any(tcp)
    }
}
