//! The configuration of a proxy, as plain data.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use admin::{Address, ConnectionLimits};
use engine::{HttpsRedirect, Limits, TlsClient, TlsError, TlsServer};
use wire::ProxyVersion;

use crate::access_log::LogFormat;
use crate::request_id::RequestIds;
use crate::routes::RoutesConfig;

/// Number of tunnels to plan for if none is configured.
pub(crate) const TUNNELS_DEFAULT: u64 = 500_000;
/// Ticks per idle period: the resolution of the idle clock.
const TICKS: u32 = 256;
/// Maximum number of steps of the idle clock in the longest timeout. The clock wraps at 65,536; a
/// timeout that has passed is noticed before.
const STEPS_MAX: u32 = 60_000;

/// The configuration at start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Public listeners without TLS; port 0 picks a free one. Default `127.0.0.1:8080`.
    pub listen: Vec<Address>,
    /// The same with TLS, which needs `live.tls`.
    pub listen_tls: Vec<Address>,
    /// The admin listener, if any. Default `127.0.0.1:8090`.
    pub admin: Option<Address>,
    /// Number and times of connections of the admin listener.
    pub admin_connections: ConnectionLimits,
    /// Maximum number of workers; by default one per core, and more as descriptor tables fill.
    pub workers: Option<usize>,
    /// Maximum number of tunnels; by default what the workers' descriptor tables hold. Each tunnel
    /// takes two descriptors.
    pub max_tunnels: Option<u64>,
    /// Listen backlog. Default 4096.
    pub backlog: u32,
    /// Source addresses for connections to upstreams, used in turn. If empty the system chooses, and
    /// on loopback as many addresses of 127.0.0.0/8 as needed are used.
    pub sources: Vec<IpAddr>,
    /// File and format of the access log.
    pub access_log: Option<(PathBuf, LogFormat)>,
    /// Routes and pools.
    pub routes: RoutesConfig,
    /// Settings that a reload can change.
    pub live: Live,
}

/// Settings that a reload can change.
#[derive(Clone, Debug)]
pub struct Live {
    /// The engine's limits. The idle timeout, pings, compression and the slow-consumer policy have no
    /// effect here.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Limits of request bodies.
    pub bodies: BodyLimits,
    /// TLS of the public listeners that have it. Turning it on or off needs a restart.
    pub tls: Option<TlsServer>,
    /// Redirects requests on the other listeners to https.
    pub redirect: Option<HttpsRedirect>,
    /// Sends `Forwarded` (RFC 7239) to upstreams, in addition to `X-Forwarded-*`.
    pub forwarded: bool,
    /// Sends `X-Real-IP`, the client's address, to upstreams.
    pub real_ip: bool,
    /// Where request ids are sent.
    pub request_ids: RequestIds,
    /// Maximum number of idle connections to upstreams that each worker keeps for later requests.
    /// Default 64.
    pub idle_connections: usize,
    /// The bearer token of the admin listener.
    pub admin_key: Option<String>,
    /// TLS of the admin listener, if it has TLS.
    pub admin_tls: Option<TlsServer>,
}

/// Timeouts of connections, requests and tunnels.
#[derive(Copy, Clone, Debug)]
pub struct Timeouts {
    /// For connecting to an upstream. Default 3 s.
    pub connect: Duration,
    /// For an upstream's response to a WebSocket handshake. Default 10 s.
    pub handshake: Duration,
    /// For an upstream's response to any other request, and for each pause within it. Default 60 s.
    pub answer: Duration,
    /// For a tunnel without data in either direction; `None` disables it. Default 1 h.
    pub idle: Option<Duration>,
    /// For a half-closed tunnel without data. Default 30 s.
    pub fin: Duration,
    /// For the lifetime of a tunnel, ± 10 %; `None` disables it. Default `None`.
    pub lifetime: Option<Duration>,
    /// For an idle connection to an upstream. Default 30 s.
    pub idle_connection: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(3),
            handshake: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            idle: Some(Duration::from_secs(3600)),
            fin: Duration::from_secs(30),
            lifetime: None,
            idle_connection: Duration::from_secs(30),
        }
    }
}

/// Limits of request bodies. Handshakes have no body.
#[derive(Copy, Clone, Debug)]
pub struct BodyLimits {
    /// Maximum size in bytes; `None` allows any. Default `None`.
    pub bytes_max: Option<u64>,
    /// For the complete body; `None` disables it. Default 1 h.
    pub timeout: Option<Duration>,
    /// The minimum rate while the client is being read; `None` disables it. Default 10 KiB each 20 s.
    pub min_rate: Option<MinRate>,
    /// Bytes of each body to receive before an upstream is chosen; `None` chooses one at once.
    /// Default `None`.
    pub buffer_bytes: Option<usize>,
    /// Bytes of buffered bodies in each worker; beyond it bodies are passed on as they arrive.
    /// Default 16 MiB.
    pub buffers_bytes: usize,
}

/// A minimum rate: so many bytes in each period.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// Bytes in each period.
    pub bytes: u64,
    /// The period.
    pub every: Duration,
}

impl Default for BodyLimits {
    fn default() -> Self {
        BodyLimits {
            bytes_max: None,
            timeout: Some(Duration::from_secs(3600)),
            min_rate: Some(MinRate { bytes: 10 * 1024, every: Duration::from_secs(20) }),
            buffer_bytes: None,
            buffers_bytes: 16 * 1024 * 1024,
        }
    }
}

/// TLS and PROXY header on connections to the upstreams of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// TLS, if it is used.
    pub tls: Option<UpstreamTls>,
    /// Version of the PROXY header, if one is sent; it precedes TLS. The connection then serves one
    /// request only, because the header names its client.
    pub proxy_header: Option<ProxyVersion>,
}

/// TLS settings for connections to upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Trusted authorities and the client certificate.
    pub client: TlsClient,
    /// The server name for SNI and certificates; by default the name of each upstream.
    pub name: Option<String>,
}

impl UpstreamTls {
    /// Returns the TLS client for one upstream, given as `name:port`, or as `unix:/path`, for which
    /// the name is `localhost`.
    pub(crate) fn of(&self, upstream: &str) -> Result<TlsClient, TlsError> {
        let upstream = if upstream.starts_with("unix:") { "localhost" } else { upstream };
        let host = upstream.rsplit_once(':').map_or(upstream, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        self.client.named(self.name.as_deref().unwrap_or(host))
    }
}

/// The timeouts that routes set and the idle clock measures.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct RouteTimeouts {
    /// The longest idle timeout.
    pub(crate) longest_idle: Option<Duration>,
    /// The shortest and the longest answer timeout.
    pub(crate) answer: Option<(Duration, Duration)>,
}

impl Live {
    /// The shortest and the longest answer timeout: of all routes, and of those that set their own.
    pub(crate) fn answer_timeouts(&self, of_routes: &RouteTimeouts) -> (Duration, Duration) {
        let all = self.timeouts.answer;
        of_routes.answer.map_or((all, all), |(least, most)| (least.min(all), most.max(all)))
    }

    /// Returns the engine's limits, adjusted for the relay.
    pub(crate) fn engine_limits(&self, of_routes: &RouteTimeouts) -> Limits {
        let mut limits = self.limits.clone();
        // The engine closes no tunnel for idleness; only its clock is used. Its steps are fine enough
        // for the shortest timeout, unless that would be too many for the longest.
        let Timeouts { idle, fin, .. } = self.timeouts;
        let (answer, longest_answer) = self.answer_timeouts(of_routes);
        let longest = idle.max(of_routes.longest_idle).unwrap_or_default().max(longest_answer);
        let finest = fin.min(answer).min(Duration::from_secs(60)) / 64;
        let tick = finest.max(longest / STEPS_MAX).max(Duration::from_millis(20));
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
            timeouts: Timeouts::default(),
            bodies: BodyLimits::default(),
            tls: None,
            redirect: None,
            forwarded: false,
            real_ip: false,
            request_ids: RequestIds::Off,
            idle_connections: 64,
            admin_key: None,
            admin_tls: None,
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
        self.listen.iter().chain(&self.listen_tls).all(Address::is_local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_clock_is_fine_enough_for_every_timeout_that_it_can_measure() {
        let seconds = Duration::from_secs;
        let hour = seconds(3600);
        for (idle, fin, answer, expected) in [
            (Some(hour), seconds(30), seconds(60), seconds(30) / 64),
            // The idle timeout takes at most 60,000 steps.
            (Some(hour), seconds(2), seconds(60), hour / 60_000),
            (Some(25 * hour), seconds(2), seconds(60), hour * 25 / 60_000),
            (Some(hour), seconds(60), seconds(16), seconds(16) / 64),
            (None, seconds(60), seconds(6_000), seconds(60) / 64),
            (None, seconds(1), seconds(1), Duration::from_millis(20)),
        ] {
            let mut live = Live::default();
            (live.timeouts.idle, live.timeouts.fin, live.timeouts.answer) = (idle, fin, answer);
            let step = live.engine_limits(&RouteTimeouts::default()).idle_step();
            let expected = expected.max(Duration::from_millis(20));
            assert_eq!(step, expected, "{idle:?} {fin:?} {answer:?}");
            // The same if only routes have these timeouts.
            live.timeouts.idle = Some(seconds(1));
            live.timeouts.answer = seconds(100);
            let of_routes =
                RouteTimeouts { longest_idle: idle, answer: Some((answer, seconds(10_000))) };
            let step = live.engine_limits(&of_routes).idle_step();
            let longest = seconds(10_000) / STEPS_MAX;
            assert_eq!(step, expected.max(longest), "{idle:?} {fin:?} {answer:?}");
        }
    }
}
