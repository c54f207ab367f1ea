//! [`Scenario`]: everything a seed decides before the run begins.

use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::Fault;
use fastrand::Rng;
use proxy::{Balance, Endpoint, Live, MemberConfig, PoolConfig, ProxyVersion, RoutesConfig};

use crate::some_faults;

/// Where the simulated proxy listens.
pub(crate) fn front() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8080))
}

/// Where the upstream of this number listens.
pub(crate) fn behind(upstream: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9001 + upstream as u16))
}

/// One run's shape.
pub(crate) struct Scenario {
    pub(crate) workers: usize,
    pub(crate) listeners: usize,
    pub(crate) capacity: u32,
    /// Descriptors of a worker's table for connections.
    pub(crate) table: usize,
    pub(crate) upstreams: usize,
    /// Clients at a time.
    pub(crate) clients: usize,
    pub(crate) routes: RoutesConfig,
    pub(crate) live: Live,
    /// The longest rest of a peer between two things it does.
    pub(crate) rest: Duration,
    /// Bytes of the longest tunnels and bodies.
    pub(crate) bytes_max: u64,
    pub(crate) buffers: (usize, usize),
    pub(crate) events: u64,
    pub(crate) rates: Vec<(Fault, u32)>,
    pub(crate) drain: Duration,
    /// The drain starts while everything is at work and faults go on.
    pub(crate) ends_in_storm: bool,
    /// The proxy's times are short: it ends tunnels by itself.
    pub(crate) hasty: bool,
}

impl Scenario {
    pub(crate) fn draw(random: &mut Rng) -> Self {
        let strict = random.u8(..STRICT) == 0;
        let workers = random.usize(1..=3);
        let roomy = random.u8(..3) > 0;
        let capacity = if roomy { 300 } else { random.u32(4..=16) };
        let short_table = random.u8(..4) == 0;
        let table = if short_table { random.usize(4..=12) } else { capacity as usize };
        let upstreams = random.usize(if strict { 2..=3 } else { 1..=3 });
        let hasty = !strict && random.u8(..3) == 0;
        let small = random.usize(64..=4096);
        let buffers = if random.bool() { (small, small * 4) } else { (16 * 1024, 128 * 1024) };
        let mut rates = some_faults(&MOST, random);
        if strict {
            rates.retain(|(fault, _)| !UNRECORDED.contains(fault));
        }
        // So that no tunnel takes minutes.
        let most = buffers.0 as u64 * 50;
        Scenario {
            workers,
            listeners: random.usize(1..=workers),
            capacity,
            table,
            upstreams,
            clients: random.usize(2..=14),
            routes: routes(upstreams, random),
            live: live(hasty, random),
            rest: Duration::from_micros(1 << random.u32(8..13)),
            bytes_max: random.choice([300, 20_000, 200_000]).unwrap_or(300).min(most),
            buffers,
            events: random.u64(800..2000),
            rates,
            drain: Duration::from_millis(random.choice([0, 50, 400]).unwrap_or(0)),
            ends_in_storm: !strict && random.u8(..5) == 0,
            hasty,
        }
    }

    /// Upstreams receive a PROXY header.
    pub(crate) fn sends_proxy_header(&self) -> bool {
        self.routes.pools.iter().any(|pool| pool.transport.proxy_header.is_some())
    }

    /// Only a peer that records it resets a connection, and only its two ends end one.
    pub(crate) fn is_strict(&self) -> bool {
        let rate = |fault| self.rates.iter().find(|(other, _)| *other == fault).map(|(_, r)| *r);
        let calm = |fault| rate(fault).unwrap_or(0) == 0;
        !self.hasty && !self.ends_in_storm && UNRECORDED.into_iter().all(calm)
    }
}

fn routes(upstreams: usize, random: &mut Rng) -> RoutesConfig {
    let places = (0..upstreams).filter_map(|upstream| behind(upstream).to_string().parse().ok());
    let places: Vec<Endpoint> = places.collect();
    let mut routes = RoutesConfig::to(places.iter().cloned());
    if let Some(pool) = routes.pools.first_mut() {
        let mut drawn = PoolConfig::new(&pool.name.clone(), []);
        drawn.members = places.into_iter().map(MemberConfig::new).collect();
        drawn.balance = if random.bool() { Balance::RoundRobin } else { Balance::default() };
        drawn.max = (random.u8(..3) == 0).then(|| random.u32(1..=6));
        drawn.limits.queue = if drawn.max.is_some() { random.u32(..4) } else { 0 };
        drawn.limits.queue_timeout = Duration::from_millis(random.u64(100..1000));
        drawn.eject_for = Duration::from_millis(random.u64(50..1000));
        drawn.transport.proxy_header = (random.u8(..6) == 0).then_some(ProxyVersion::V1);
        *pool = drawn;
    }
    routes
}

fn live(hasty: bool, random: &mut Rng) -> Live {
    let mut live = Live { forwarded: random.bool(), ..Live::default() };
    live.idle_connections = random.usize(..4);
    let buffer = random.choice([None, None, Some(1), Some(1000), Some(100_000)]).flatten();
    (live.bodies.buffer_bytes, live.bodies.buffers_bytes) = (buffer, random.usize(1000..100_000));
    // Peers rest longer than a rate allows.
    live.bodies.min_rate = None;
    live.limits.handshake_timeout = Duration::from_secs(5);
    live.limits.keep_alive_timeout = Duration::from_secs(5);
    live.limits.close_timeout = Duration::from_millis(random.u64(100..2000));
    let times = &mut live.timeouts;
    times.connect = Duration::from_millis(random.u64(200..2000));
    times.handshake = Duration::from_millis(random.u64(200..2000));
    times.answer = Duration::from_millis(random.u64(500..3000));
    times.idle_connection = Duration::from_millis(random.u64(500..3000));
    (times.idle, times.fin) = (Some(Duration::from_secs(600)), Duration::from_secs(600));
    if hasty {
        times.idle = Some(Duration::from_millis(random.u64(300..3000)));
        times.fin = Duration::from_millis(random.u64(300..3000));
        times.lifetime = random.bool().then(|| Duration::from_secs(random.u64(1..4)));
    }
    live
}

/// One run of so many is drawn strict, with several upstreams.
const STRICT: u8 = 4;
/// Faults that end connections, or make the proxy end some, without any peer recording it.
const UNRECORDED: [Fault; 3] = [Fault::Reset, Fault::WatchNoMemory, Fault::ClockJump];

/// How often each fault happens at most, out of 10,000.
const MOST: [(Fault, u32); 16] = [
    (Fault::ShortRead, 5000),
    (Fault::ShortSend, 5000),
    (Fault::AgainOnRead, 1000),
    (Fault::AgainOnSend, 1500),
    (Fault::Interrupted, 500),
    (Fault::Reset, 20),
    (Fault::SystemFull, 500),
    (Fault::NoBuffers, 500),
    (Fault::Aborted, 300),
    (Fault::ConnectInProgress, 6000),
    (Fault::ConnectRefused, 500),
    (Fault::NoAddress, 500),
    (Fault::WatchNoMemory, 30),
    (Fault::SpuriousEvent, 300),
    (Fault::LateEvent, 3000),
    (Fault::ClockJump, 5),
];
