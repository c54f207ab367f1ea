//! [`Scenario`]: everything a seed decides before the run begins.

use std::net::SocketAddr;
use std::time::Duration;

use brokers::limits::BATCH_CHANNELS;
use engine::sys::sim::Fault;
use engine::{Limits, SlowConsumer};
use fastrand::Rng;

use crate::some_faults;

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Where a node listens.
pub(crate) fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8000 + node as u16))
}

/// One run's shape.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) nodes: usize,
    /// Workers of each node.
    pub(crate) workers: usize,
    /// Servers among which topics are shared.
    pub(crate) shards: usize,
    pub(crate) topics: u32,
    /// Sockets of each node, about.
    pub(crate) sockets: usize,
    /// Average time between two acts of all sockets together, and between two publications by the nodes.
    pub(crate) act_ns: u64,
    pub(crate) publish_ns: u64,
    /// The nodes take turns to publish, at fixed times.
    pub(crate) steady: bool,
    /// Average time between two faults.
    pub(crate) fault_ns: u64,
    pub(crate) storm_ns: u64,
    pub(crate) filler_max: usize,
    /// Time to the broker or back, at most.
    pub(crate) latency_ns: u64,
    pub(crate) linger_ns: u64,
    /// Bytes that wait while there is no connection, and while there is one.
    pub(crate) spool_bytes: usize,
    pub(crate) queue_bytes: usize,
    /// Publications in a batch.
    pub(crate) batch: usize,
    /// Bytes that have arrived and are not delivered.
    pub(crate) inbox_bytes: usize,
    /// Bytes for one connection at which the server closes it.
    pub(crate) output_bytes: usize,
    /// How many channels a sender remembers, and senders a receiver.
    pub(crate) sent_max: usize,
    pub(crate) received_max: usize,
    pub(crate) limits: Limits,
    pub(crate) buffers: (usize, usize),
    pub(crate) rates: Vec<(Fault, u32)>,
}

impl Scenario {
    pub(crate) fn draw(random: &mut Rng) -> Self {
        let nodes = match random.u8(..16) {
            0 => 100,
            1..4 => random.usize(8..=20),
            _ => random.usize(1..=4),
        };
        let sockets = if nodes > 20 { 2 } else { random.usize(2..=8) };
        // More topics than one command to subscribe has.
        if nodes <= 4 && random.u8(..5) == 0 {
            return Self::wide(random);
        }
        let forgets = random.u8(..3) == 0;
        Scenario {
            nodes,
            workers: if nodes > 20 { 1 } else { random.usize(1..=2) },
            shards: random.usize(1..=3),
            topics: random.u32(1..=6),
            sockets,
            act_ns: random.u64(1..=4) * MS,
            publish_ns: random.u64(1..=8) * MS,
            steady: false,
            fault_ns: random.u64(50..1000) * MS,
            storm_ns: if nodes > 20 { 2 } else { random.u64(2..=5) } * SECOND_NS,
            filler_max: if random.u8(..4) == 0 { 2_000 } else { 60 },
            latency_ns: random.u64(1..=20) * MS / 4,
            linger_ns: random.u64(..800) * MS,
            spool_bytes: if random.bool() { 0 } else { random.usize(1_000..20_000) },
            queue_bytes: random.usize(2_000..60_000),
            batch: random.usize(1..=64),
            inbox_bytes: if random.u8(..4) == 0 { 4_000 } else { 1 << 20 },
            output_bytes: if random.u8(..3) == 0 { 6_000 } else { 1 << 20 },
            sent_max: if forgets { random.usize(2..8) } else { 1 << 16 },
            received_max: if forgets { random.usize(2..16) } else { 1 << 16 },
            limits: limits(random.usize(8..=64) * 1024),
            buffers: (32 * 1024, 256 * 1024),
            rates: some_faults(&MOST, random),
        }
    }

    /// A node with a client of every topic, and more topics than are subscribed to in one batch.
    fn wide(random: &mut Rng) -> Self {
        let topics = BATCH_CHANNELS + random.usize(1..=BATCH_CHANNELS / 4);
        Scenario {
            workers: random.usize(1..=2),
            shards: 1,
            act_ns: random.u64(1..=4) * MS,
            publish_ns: random.u64(1..=8) * MS,
            steady: false,
            fault_ns: random.u64(200..1000) * MS,
            storm_ns: SECOND_NS,
            filler_max: 60,
            linger_ns: random.u64(..800) * MS,
            limits: limits(64 * 1024),
            rates: some_faults(&MOST, random),
            ..Self::calm(1, topics, topics as u32, 1.0)
        }
    }

    /// So many nodes, each with so many sockets and so many publications a second, and nothing goes wrong.
    pub(crate) fn calm(nodes: usize, sockets: usize, topics: u32, each_publishes: f64) -> Self {
        let per_second = each_publishes * nodes as f64;
        Scenario {
            nodes,
            workers: 1,
            shards: 3,
            topics,
            sockets,
            act_ns: u64::MAX / 4,
            publish_ns: (SECOND_NS as f64 / per_second) as u64,
            steady: true,
            fault_ns: u64::MAX / 4,
            storm_ns: 10 * SECOND_NS,
            filler_max: 0,
            latency_ns: MS / 4,
            linger_ns: 10 * SECOND_NS,
            spool_bytes: 0,
            queue_bytes: 1 << 20,
            batch: 512,
            inbox_bytes: 1 << 25,
            output_bytes: 1 << 25,
            sent_max: 1 << 16,
            received_max: 1 << 20,
            limits: limits(1 << 20),
            buffers: (32 * 1024, 256 * 1024),
            rates: Vec::new(),
        }
    }
}

fn limits(mailbox_bytes: usize) -> Limits {
    let mut limits = Limits {
        send_queue_bytes: 64 * 1024,
        slow_consumer: SlowConsumer::Disconnect,
        idle_timeout: None,
        handshake_timeout: Duration::from_secs(5),
        close_timeout: Duration::from_millis(300),
        mailbox_bytes,
        ..Limits::default()
    };
    limits.keep_alive_timeout = limits.handshake_timeout;
    limits
}

/// How often each fault happens at most, out of 10,000.
const MOST: [(Fault, u32); 7] = [
    (Fault::ShortRead, 3000),
    (Fault::ShortSend, 3000),
    (Fault::AgainOnRead, 500),
    (Fault::AgainOnSend, 500),
    (Fault::Interrupted, 200),
    (Fault::Reset, 5),
    (Fault::LateEvent, 1000),
];
