//! [`Scenario`]: everything a seed decides before the run begins.

use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::Fault;
use engine::{Limits, SlowConsumer};
use fastrand::Rng;
use topics::HistoryLimits;

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
    /// Readers of each client worker.
    pub(crate) readers: usize,
    pub(crate) topics: u32,
    pub(crate) history: HistoryLimits,
    /// All topics together hold less than each may: anything may be evicted.
    pub(crate) tight: bool,
    /// A broker gives the offsets, and each may be so much more than the one before.
    pub(crate) broker: Option<u64>,
    /// Publications that the control plane makes at once at most.
    pub(crate) burst: u8,
    pub(crate) filler_max: usize,
    /// Bytes of the history that a reader is sent before the next has its turn.
    pub(crate) portion: usize,
    /// The longest time between two acts of a reader, and for which it stays away.
    pub(crate) rest: Duration,
    pub(crate) away: Duration,
    pub(crate) limits: Limits,
    pub(crate) buffers: (usize, usize),
    pub(crate) events: u64,
    pub(crate) rates: Vec<(Fault, u32)>,
}

impl Scenario {
    pub(crate) fn draw(random: &mut Rng) -> Self {
        let plenty = 64 * 1024 * 1024;
        let mut history = HistoryLimits {
            messages: 100_000,
            age_ns: 600_000_000_000,
            topic_bytes: plenty,
            bytes: plenty,
        };
        // One limit binds, so that what is evicted is known; often none does.
        let binds = random.u8(..8);
        match binds {
            0 => history.messages = random.usize(1..=6),
            1 => history.messages = random.usize(6..=40),
            2 => history.messages = random.usize(60..=150),
            3 => history.age_ns = random.u64(1_000_000..400_000_000),
            4 => history.topic_bytes = random.usize(1_000..40_000),
            5 => history.bytes = random.usize(2_000..60_000),
            _ => {}
        }
        let mut limits = Limits {
            send_queue_bytes: random.usize(8..=128) * 1024,
            slow_consumer: SlowConsumer::Disconnect,
            idle_timeout: Some(Duration::from_secs(30)),
            handshake_timeout: Duration::from_secs(2),
            close_timeout: Duration::from_millis(random.u64(100..500)),
            mailbox_bytes: random.usize(4..=64) * 1024,
            ..Limits::default()
        };
        limits.keep_alive_timeout = limits.handshake_timeout;
        let small = random.usize(256..=8192);
        Scenario {
            servers: random.usize(1..=3),
            clients: random.usize(1..=2),
            readers: random.usize(2..=12),
            topics: random.u32(1..=3),
            history,
            tight: binds == 5,
            // Those who replay much are overtaken at times.
            burst: if binds == 2 || random.u8(..3) == 0 { 60 } else { 6 },
            filler_max: if random.u8(..3) == 0 { 4_000 } else { 120 },
            portion: random.usize(1..=20_000),
            rest: Duration::from_micros(1 << random.u32(9..16)),
            away: Duration::from_micros(1 << random.u32(10..19)),
            limits,
            buffers: if binds == 2 || random.bool() {
                (small, small * 4)
            } else {
                (32 * 1024, 256 * 1024)
            },
            events: random.u64(1500..3500),
            rates: some_faults(&MOST, random),
            broker: [None, None, Some(1), Some(300)][random.usize(..4)],
        }
    }
}

/// How often each fault happens at most, out of 10,000.
const MOST: [(Fault, u32); 10] = [
    (Fault::ShortRead, 5000),
    (Fault::ShortSend, 5000),
    (Fault::AgainOnRead, 1000),
    (Fault::AgainOnSend, 1500),
    (Fault::Interrupted, 500),
    (Fault::Reset, 20),
    (Fault::ConnectInProgress, 6000),
    (Fault::SpuriousEvent, 300),
    (Fault::LateEvent, 3000),
    (Fault::ClockJump, 5),
];
