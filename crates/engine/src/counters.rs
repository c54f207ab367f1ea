//! Counters of a worker. One writer, any number of readers: the worker does a plain add, and the
//! control plane sums over the workers on request.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::invariant::broken;
use crate::{Closed, Refusal};

/// A counter that its one worker changes and every thread may read.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds, from the owning worker only.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Subtracts, from the owning worker only; for gauges.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The counters of one worker.
        #[derive(Debug)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: Counter,)*
            closed: [Counter; Closed::ALL.len()],
            violations: [Counter; wire::Violation::ALL.len()],
            refused: [Counter; Refusal::ALL.len()],
        }

        impl Default for Counters {
            fn default() -> Self {
                Counters {
                    $($name: Counter::default(),)*
                    closed: std::array::from_fn(|_| Counter::default()),
                    violations: std::array::from_fn(|_| Counter::default()),
                    refused: Default::default(),
                }
            }
        }

        /// The sum of several workers' counters.
        #[derive(Default, Clone, Debug)]
        pub struct Totals {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Connections ended, by cause, in the order of [`Closed::ALL`].
            pub closed: Vec<u64>,
            /// Protocol violations by peers, in the order of [`wire::Violation::ALL`].
            pub violations: Vec<u64>,
            /// Refused connections, by reason, in the order of [`Refusal::ALL`].
            pub refused: Vec<u64>,
        }

        impl Totals {
            /// The sum over workers.
            #[must_use]
            pub fn sum<'a>(workers: impl IntoIterator<Item = &'a Counters>) -> Totals {
                let mut totals = Totals {
                    closed: vec![0; Closed::ALL.len()],
                    violations: vec![0; wire::Violation::ALL.len()],
                    refused: vec![0; Refusal::ALL.len()],
                    ..Totals::default()
                };
                for worker in workers {
                    $(totals.$name += worker.$name.get();)*
                    for (sum, one) in totals.closed.iter_mut().zip(&worker.closed) {
                        *sum += one.get();
                    }
                    for (sum, one) in totals.refused.iter_mut().zip(&worker.refused) {
                        *sum += one.get();
                    }
                    for (sum, one) in totals.violations.iter_mut().zip(&worker.violations) {
                        *sum += one.get();
                    }
                }
                totals
            }

            /// Name and value of the plain counters, for metrics.
            pub fn plain(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Name, help and value of the plain counters, for metrics. The help is the comment of
            /// the counter.
            pub fn described(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),*).trim_ascii(), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections that exist now, in any state (gauge).
    connections,
    /// WebSockets open now (gauge).
    websockets,
    /// Connections without a socket opened, for clients that poll.
    polled_opened,
    /// Those that exist now (gauge).
    polled,
    /// Bytes that wait for their next polls (gauge).
    polled_bytes,
    /// Connections accepted and admitted.
    accepted,
    /// Connects begun.
    connects,
    /// WebSocket handshakes completed, either role.
    upgrades,
    /// TLS handshakes completed, either role.
    tls_handshakes,
    /// TLS handshakes that resumed an earlier session.
    tls_resumed,
    /// HTTP requests answered without an upgrade.
    requests,
    /// Request bodies received completely.
    bodies_in,
    /// Request bodies that were not received in time (408).
    bodies_late,
    /// Request bodies for which a worker had no room (503).
    bodies_refused,
    /// Bytes of incomplete request bodies (gauge).
    body_bytes,
    /// Messages received completely.
    messages_in,
    /// Messages sent or queued, counted per receiver, delivered or dropped.
    messages_out,
    /// Bytes read from sockets.
    bytes_in,
    /// Bytes written to sockets.
    bytes_out,
    /// Pings sent by us.
    pings_out,
    /// Pings received.
    pings_in,
    /// Pongs received.
    pongs_in,
    /// Bytes in send queues now (gauge).
    queued_bytes,
    /// Messages dropped because the receiver's queue was full.
    dropped_slow,
    /// Messages dropped because their receiver had disconnected.
    dropped_gone,
    /// Posts to other workers refused by a full mailbox.
    mailbox_full,
    /// Times accepting paused: no descriptors or no memory (`EMFILE`, `ENFILE`, `ENOBUFS`).
    accept_paused,
    /// Times accepting stopped at a listener because every worker was at capacity.
    accept_full,
    /// Times a worker at capacity passed its listener on.
    listener_handed_on,
    /// Idle keep-alive connections closed at the connection limit, to make room for new ones.
    keep_alive_closed,
    /// Bytes of messages before compression.
    deflate_in_bytes,
    /// Bytes of messages after compression.
    deflate_out_bytes,
    /// Bytes of compressed messages received.
    inflate_in_bytes,
    /// Bytes of these messages after inflating.
    inflate_out_bytes,
    /// Connections admitted without counting for their address: the table of addresses is full.
    addresses_uncounted,
    /// Connections closed because memory was short.
    shed,
    /// Turns of the worker.
    turns,
}

impl Counters {
    /// Counts an ended connection.
    pub fn count_closed(&self, cause: Closed) {
        match self.closed.get(cause as usize) {
            Some(counter) => counter.add(1),
            None => broken("each cause has a counter"),
        }
    }

    /// Counts a refused connection.
    pub fn count_refused(&self, refusal: Refusal) {
        match self.refused.get(refusal as usize) {
            Some(counter) => counter.add(1),
            None => broken("each refusal has a counter"),
        }
    }

    /// Counts a protocol violation.
    pub fn count_violation(&self, violation: wire::Violation) {
        match self.violations.get(violation as usize) {
            Some(counter) => counter.add(1),
            None => broken("each violation has a counter"),
        }
    }
}
