//! Limits of connections to brokers, with their units.

use std::time::Duration;

/// Time to connect, with TLS and authentication.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the pings that find connections that swallow everything.
pub const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time for the answer to a ping or to a batch; then the connection is closed.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause before the next attempt to connect. It doubles from [`RETRY_FIRST`], with full jitter.
pub const RETRY_LONGEST: Duration = Duration::from_secs(2);
/// A connection that has lasted for this time is followed by the first pause again.
pub const STEADY: Duration = Duration::from_secs(5);
/// Longest first pause.
pub const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Channels in one command to subscribe or unsubscribe.
pub const BATCH_CHANNELS: usize = 512;
/// Channels that nobody wants any more and that are not unsubscribed yet. With more the oldest go early.
pub const LINGERING_MAX: usize = 64 * 1024;
/// With so many of them, and of those that somebody is about to want, no other one is asked for.
pub const UNWANTED_MAX: usize = 4 * LINGERING_MAX;
/// Bytes of publications that wait to be sent to one broker while it is connected.
pub const QUEUE_BYTES: usize = 8 * 1024 * 1024;
/// Publications and bytes sent with one write; the next ones wait for its answer.
pub const BATCH_PUBLICATIONS: usize = 512;
/// See [`BATCH_PUBLICATIONS`].
pub const BATCH_BYTES: usize = 1024 * 1024;
/// Bytes that have arrived from one broker and are not delivered yet.
pub const INBOX_BYTES: usize = 32 * 1024 * 1024;
/// Bytes that one command to fetch what is kept is meant to be answered with: the next one has fewer channels.
pub const FETCH_BYTES: usize = 4 * 1024 * 1024;
/// Longest message of a shard channel that is read; with a longer one the connection is closed.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Time for one node of a Redis Cluster to answer with its slots; then the next one is asked.
pub const SEED_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before a command is sent again whose hash slot is being moved, for [`ANSWER_TIMEOUT`] at most.
pub const REDIRECT_PAUSE: Duration = Duration::from_millis(20);
/// Connections of one process to a Redis Cluster: with more masters one is used for several of them.
pub const PARTS_MAX: usize = 64;
/// Those of a process that finds no node of the cluster when it starts.
pub const PARTS_UNKNOWN: usize = 8;
/// Channels of which all that is kept is fetched with the first command. It doubles while the answers are short, and is
/// halved after one that is too long or does not come in time.
pub const FETCH_CHANNELS_FIRST: usize = 2;
/// Bytes that one script in Redis answers with of a channel, at least: [`FETCH_BYTES`] are shared by the channels of a
/// command. What is left is asked for by the next one. The last message may exceed it.
pub const FETCH_PAGE_BYTES_MIN: usize = 16 * 1024;
/// For how long JetStream recognizes a publication that is sent again, if it keeps them for that long.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// Attempts to create or to change a stream that other nodes create and change, too.
pub const STREAM_ATTEMPTS: usize = 5;
/// Pause before publications that this node could not deliver are fetched.
pub const BEHIND_PAUSE: Duration = Duration::from_millis(500);
/// Channels whose numbers a sender remembers, for one broker.
pub const SENT_CHANNELS_MAX: usize = 256 * 1024;
/// Pairs of channel and sender that a receiver remembers, for one broker.
pub const RECEIVED_SENDERS_MAX: usize = 1024 * 1024;
/// How long after the last publication to a channel its newest number is repeated.
pub const BEACON_NS: u64 = 1_000_000_000;
/// Interval of the signs of life of a node.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a node is listed after its last sign of life, in nanoseconds.
pub const NODE_FORGOTTEN_NS: u64 = 60_000_000_000;
/// Nodes that are listed.
pub const NODES_MAX: usize = 1024;
/// How long a publication is offered to a busy worker before it is given up, in nanoseconds.
pub const DELIVERY_NS: u64 = 2_000_000_000;
/// Pause before it is offered again.
pub const DELIVERY_PAUSE: Duration = Duration::from_millis(2);
/// How long what had arrived before a connection ended is delivered before the next one is opened. What is left then
/// counts as dropped.
pub const LAST_DELIVERIES: Duration = Duration::from_secs(5);
/// Bytes of values and keys that wait to be put or taken at one broker.
pub const STORE_QUEUE_BYTES: usize = 16 * 1024 * 1024;
/// Values put and taken with one write; the next ones wait for its answer.
pub const STORE_BATCH: usize = 256;
/// See [`STORE_BATCH`].
pub const STORE_BATCH_BYTES: usize = 1024 * 1024;
/// How long a broker counts as full after it has refused a publication, unless it takes one, in nanoseconds.
pub const FULL_NS: u64 = 10_000_000_000;
/// Pause before the broker is asked again for a topic that it has refused, in nanoseconds.
pub const REJECTED_NS: u64 = 10_000_000_000;
/// Shortest time between two lines of the log about gaps, or about failed attempts to connect, in nanoseconds.
pub const LOG_INTERVAL_NS: u64 = 10_000_000_000;
