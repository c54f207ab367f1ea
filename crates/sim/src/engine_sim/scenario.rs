//! [`Scenario`]: everything a seed decides before the run begins.

use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::Fault;
use engine::{Limits, SlowConsumer};
use fastrand::Rng;

use crate::some_faults;

/// Where the simulated server listens.
pub(crate) fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8080))
}

/// One run's shape.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    pub(crate) raw_peers: usize,
    pub(crate) listeners: usize,
    /// Connections each client worker wants to have.
    pub(crate) wanted: usize,
    pub(crate) capacity: u32,
    /// Descriptors of a server's table for connections.
    pub(crate) table: usize,
    pub(crate) backlog: usize,
    pub(crate) defer: Duration,
    pub(crate) topics: u32,
    /// Places to connect to that are no topics.
    pub(crate) echo_targets: usize,
    /// Publications that the control plane makes at once at most.
    pub(crate) burst: u8,
    /// Times out of 100 that a client stops reading instead of doing something.
    pub(crate) pauses: u64,
    pub(crate) limits: Limits,
    /// The longest rest of a peer between two things it does.
    pub(crate) rest: Duration,
    /// Filler of the longest messages.
    pub(crate) filler_max: usize,
    pub(crate) buffers: (usize, usize),
    pub(crate) events: u64,
    pub(crate) rates: Vec<(Fault, u32)>,
    pub(crate) drain: Duration,
    /// The drain starts while everything is at work and faults go on.
    pub(crate) ends_in_storm: bool,
}

impl Scenario {
    pub(crate) fn draw(random: &mut Rng) -> Self {
        // More subscribers than a turn serves, on one worker.
        let crowd = random.u8(..8) == 0;
        let (servers, clients) = if crowd { (1..=1, 2..=3) } else { (1..=4, 1..=3) };
        let (servers, clients) = (random.usize(servers), random.usize(clients));
        let wanted = if crowd { random.usize(60..=90) } else { random.usize(2..=10) };
        // More publications than slow readers take.
        let flood = !crowd && random.u8(..5) == 0;
        let roomy = crowd || random.u8(..3) > 0;
        let capacity = if roomy { 300 } else { random.u32(2..=12) };
        let short_table = !crowd && random.u8(..4) == 0;
        let table = if short_table { random.usize(2..=8) } else { capacity as usize };
        let policies =
            [SlowConsumer::Disconnect, SlowConsumer::DropOldest, SlowConsumer::LatestOnly];
        let policy = if random.u8(..2) == 0 { 0 } else { random.usize(..3) };
        let mut limits = Limits {
            send_queue_bytes: random.usize(if flood { 1..=8 } else { 4..=64 }) * 1024,
            slow_consumer: policies.get(policy).copied().unwrap_or_default(),
            idle_timeout: Some(Duration::from_millis(random.u64(600..3000))),
            handshake_timeout: Duration::from_millis(random.u64(300..1500)),
            close_timeout: Duration::from_millis(random.u64(100..500)),
            mailbox_bytes: random.usize(1..=64) * 1024,
            ..Limits::default()
        };
        limits.keep_alive_timeout = limits.handshake_timeout;
        let small = random.usize(64..=4096);
        let buffers =
            if flood || random.bool() { (small, small * 4) } else { (32 * 1024, 256 * 1024) };
        Scenario {
            servers,
            clients,
            raw_peers: random.usize(2..=8),
            listeners: random.usize(1..=servers),
            wanted,
            capacity,
            table,
            backlog: random.usize(1..=64),
            defer: if random.bool() { Duration::from_secs(1) } else { Duration::ZERO },
            topics: if crowd { 1 } else { random.u32(1..=3) },
            echo_targets: if crowd || flood { 0 } else { 3 },
            burst: if flood { 24 } else { 5 },
            pauses: if flood { 20 } else { 1 },
            limits,
            rest: Duration::from_micros(1 << random.u32(8..17)),
            filler_max: if random.u8(..3) == 0 { 60_000 } else { random.usize(100..4000) },
            buffers,
            events: random.u64(1000..2000) * if crowd { 3 } else { 1 },
            rates: some_faults(&MOST, random),
            drain: Duration::from_millis(random.choice([0, 50, 400]).unwrap_or(0)),
            ends_in_storm: random.u8(..5) == 0,
        }
    }
}

/// How often each fault happens at most, out of 10,000.
const MOST: [(Fault, u32); 16] = [
    (Fault::ShortRead, 5000),
    (Fault::ShortSend, 5000),
    (Fault::AgainOnRead, 1000),
    (Fault::AgainOnSend, 1500),
    (Fault::Interrupted, 500),
    (Fault::Reset, 20),
    (Fault::SystemFull, 1000),
    (Fault::NoBuffers, 500),
    (Fault::Aborted, 500),
    (Fault::ConnectInProgress, 6000),
    (Fault::ConnectRefused, 500),
    (Fault::NoAddress, 500),
    (Fault::WatchNoMemory, 50),
    (Fault::SpuriousEvent, 300),
    (Fault::LateEvent, 3000),
    (Fault::ClockJump, 10),
];
