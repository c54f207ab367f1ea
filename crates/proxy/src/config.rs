//! What a proxy is told: plain data, from wherever it comes.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use admin::Address;
use engine::{Limits, TlsClient, TlsServer, TlsUnusable};
use wire::ProxyVersion;

use crate::access_log::Form;
use crate::routes::RoutesConfig;

/// Tunnels to plan for when nobody said how many.
pub(crate) const TUNNELS_DEFAULT: u64 = 500_000;
/// The finest tick of time by which silence is told.
const TICKS: u32 = 256;

/// What a proxy is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Public listeners; port 0 takes a free one. Default `127.0.0.1:8080`.
    pub listen: Vec<Address>,
    /// The admin listener, if there is to be one. Default `127.0.0.1:8090`.
    pub admin: Option<Address>,
    /// Workers at most; otherwise as many as cores, and further ones as descriptor tables fill.
    pub workers: Option<usize>,
    /// Tunnels at most; otherwise what the workers' tables hold. Each takes two descriptors.
    pub max_tunnels: Option<u64>,
    /// Connections that may wait to be accepted. Default 4096.
    pub backlog: u32,
    /// Addresses to connect from, in turn; without any the system chooses, and on loopback
    /// 127.0.0.0/8 is used as far as it is needed.
    pub sources: Vec<IpAddr>,
    /// Where to write a line per tunnel and request, and how.
    pub access_log: Option<(PathBuf, Form)>,
    /// Which requests go where.
    pub routes: RoutesConfig,
    /// What may change while the proxy runs.
    pub live: Live,
}

/// What may change while the proxy runs.
#[derive(Clone, Debug)]
pub struct Live {
    /// The engine's limits. The idle timeout, pings, compression and the slow-consumer policy are of
    /// no meaning here.
    pub limits: Limits,
    /// How long things may take.
    pub patience: Patience,
    /// How the public listeners speak TLS. Whether they do at all is settled at start.
    pub tls: Option<TlsServer>,
    /// Upstreams are told whose a request is by `Forwarded` (RFC 7239), beside `X-Forwarded-*`.
    pub forwarded: bool,
    /// Connections to upstreams that each worker keeps for a next request. Default 64.
    pub spares: usize,
    /// The bearer key of the admin listener.
    pub admin_key: Option<String>,
}

/// How long things may take.
#[derive(Copy, Clone, Debug)]
pub struct Patience {
    /// A connect to an upstream. Default 3 s.
    pub connect: Duration,
    /// An upstream's answer to a handshake. Default 10 s.
    pub handshake: Duration,
    /// An upstream's answer to another request, and each silence in the middle of one. Default 60 s.
    pub answer: Duration,
    /// A tunnel in which neither side says anything; `None` for ever. Default 1 h.
    pub idle: Option<Duration>,
    /// A tunnel of which one side has ended and the other says nothing. Default 30 s.
    pub fin: Duration,
    /// A tunnel, whatever happens in it, give or take a tenth; `None` for ever. Default `None`.
    pub lifetime: Option<Duration>,
    /// A connection to an upstream without a request. Default 30 s.
    pub spare: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connect: Duration::from_secs(3),
            handshake: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            idle: Some(Duration::from_secs(3600)),
            fin: Duration::from_secs(30),
            lifetime: None,
            spare: Duration::from_secs(30),
        }
    }
}

/// How the upstreams of a pool are spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// Over TLS, and how.
    pub tls: Option<UpstreamTls>,
    /// They are told whose a connection is by a PROXY header, in front of TLS too. It then serves
    /// one request only.
    pub proxy_header: Option<ProxyVersion>,
}

/// How TLS is spoken with upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Whom to believe, and what to show.
    pub client: TlsClient,
    /// The name to ask for, and to look for in certificates; otherwise that of each upstream.
    pub name: Option<String>,
}

impl UpstreamTls {
    /// For one upstream, named with its port, or as `unix:/path`, which has no name of its own.
    pub(crate) fn of(&self, upstream: &str) -> Result<TlsClient, TlsUnusable> {
        let upstream = if upstream.starts_with("unix:") { "localhost" } else { upstream };
        let host = upstream.rsplit_once(':').map_or(upstream, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        self.client.named(self.name.as_deref().unwrap_or(host))
    }
}

impl Live {
    /// The engine's limits, with what the relay needs of them.
    pub(crate) fn engine_limits(&self) -> Limits {
        let mut limits = self.limits.clone();
        // Nothing the engine closes by itself; it is the tick that counts. It must be fine for the
        // shortest time and not come round again within the longest.
        let Patience { idle, spare, answer, .. } = self.patience;
        let idle = idle.unwrap_or_default().max(spare).max(answer);
        let finest = self.patience.fin.min(self.patience.spare).min(Duration::from_secs(60)) / 64;
        let tick = finest.max(idle / 30_000).max(Duration::from_millis(20));
        limits.idle_timeout = Some(tick * TICKS);
        limits.pings = false;
        limits
    }
}

impl Default for Live {
    fn default() -> Self {
        let peer_timeout = Some(Duration::from_secs(120));
        Live {
            limits: Limits { peer_timeout, ..Limits::default() },
            patience: Patience::default(),
            tls: None,
            forwarded: false,
            spares: 64,
            admin_key: None,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: vec![Address::Tcp(([127, 0, 0, 1], 8080).into())],
            admin: Some(Address::Tcp(([127, 0, 0, 1], 8090).into())),
            workers: None,
            max_tunnels: None,
            backlog: 4096,
            sources: Vec::new(),
            access_log: None,
            routes: RoutesConfig::default(),
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
}
