//! Admission: which connections the process accepts. Shared state is touched when a connection is
//! accepted, when a handshake is in flight, and when a connection ends; never per message, and not
//! at all while no limit needs it.
//!
//! Not here: what an admitted request may do (the handler's), and the maximum of connections (the
//! worker's table).

mod addresses;
mod full;
mod gate;
mod holdings;
mod in_flight;
mod proxies;
mod shed;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub(crate) use self::full::Room;
pub(crate) use self::gate::Client;
pub(crate) use self::holdings::{Holdings, ShedOrder};
pub use self::proxies::{Network, Proxies, ProxyProtocol};
pub(crate) use self::shed::ShedPass;

use self::addresses::Addresses;
use self::in_flight::Drained;

/// Admission limits. All but `handshakes` are off by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Handshakes in flight in the process (requests with an incomplete head), and one more for
    /// each that completed within the last seconds. Beyond it the oldest of a worker is evicted, if
    /// it stays incomplete. Default 16,000.
    pub handshakes: u32,
    /// New connections per second in the process, with bursts of as many.
    pub connect_rate: Option<u32>,
    /// Connections per address.
    pub per_address: Option<u32>,
    /// New connections per second per address, with bursts of as many.
    pub per_address_rate: Option<u32>,
    /// What counts as one address.
    pub prefix: Prefix,
    /// Resident memory of the process, in bytes. The control plane watches it and reports by
    /// [`crate::Remote::set_short_of_memory`] when it is exceeded.
    pub memory_bytes: Option<u64>,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        AdmissionLimits {
            handshakes: 16_000,
            connect_rate: None,
            per_address: None,
            per_address_rate: None,
            prefix: Prefix::default(),
            memory_bytes: None,
        }
    }
}

impl AdmissionLimits {
    /// Whether a limit applies per address.
    pub(crate) fn by_address(&self) -> bool {
        self.per_address.is_some() || self.per_address_rate.is_some()
    }
}

/// How many leading bits of an address identify a client.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// IPv4 bits, at most 32.
    pub v4: u8,
    /// IPv6 bits, at most 128.
    pub v6: u8,
}

impl Default for Prefix {
    /// One host for IPv4; for IPv6 the network from which one host chooses its address.
    fn default() -> Self {
        Prefix { v4: 32, v6: 64 }
    }
}

/// Why a connection was refused.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// Too many handshakes were in flight and this was the oldest.
    Handshakes,
    /// Too many connections arrived within a second.
    ConnectRate,
    /// Its address has too many connections.
    PerAddress,
    /// Too many connections of its address arrived within a second.
    PerAddressRate,
    /// The process uses more memory than its limit.
    MemoryLimit,
    /// The connection limit was reached, and this incomplete request was the oldest.
    Connections,
    /// Polled connections hold as much as they may.
    PolledBytes,
}

impl Refusal {
    /// Every reason, in the order of its discriminant.
    pub const ALL: [Refusal; 7] = [
        Refusal::Handshakes,
        Refusal::ConnectRate,
        Refusal::PerAddress,
        Refusal::PerAddressRate,
        Refusal::MemoryLimit,
        Refusal::Connections,
        Refusal::PolledBytes,
    ];

    /// The name in metrics, JSON and logs: that of the limit.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Handshakes => "max_handshakes",
            Refusal::ConnectRate => "connect_rate",
            Refusal::PerAddress => "max_per_address",
            Refusal::PerAddressRate => "per_address_rate",
            Refusal::MemoryLimit => "memory_limit",
            Refusal::Connections => "max_connections",
            Refusal::PolledBytes => "long_polling_bytes",
        }
    }
}

/// The part of admission that all workers share.
#[derive(Default)]
pub(crate) struct Admission {
    /// Handshakes in flight: accepted, and not answered by the end of the first read.
    pub(crate) handshakes: AtomicU32,
    /// Those of the last seconds that completed.
    drained: Drained,
    arrivals: Rate,
    addresses: Addresses,
    pub(crate) short_of_memory: AtomicBool,
    /// Bytes that the current round of shedding has yet to free.
    shed_bytes: AtomicU64,
    /// The last refused address, for the log.
    refused: Mutex<Option<IpAddr>>,
}

impl Admission {
    pub(crate) fn note_refused(&self, address: IpAddr) {
        // If another worker holds the lock, its address is as recent.
        if let Ok(mut refused) = self.refused.try_lock() {
            *refused = Some(address);
        }
    }

    /// Begins a round of shedding that frees this much.
    pub(crate) fn set_shed_bytes(&self, bytes: u64) {
        self.shed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts what closing a connection frees; `false` if enough is freed already.
    fn take_shed_bytes(&self, bytes: u64) -> bool {
        let take = |left: u64| (left > 0).then(|| left.saturating_sub(bytes));
        self.shed_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    pub(crate) fn addresses(&self) -> usize {
        self.addresses.len()
    }

    pub(crate) fn take_refused(&self) -> Option<IpAddr> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A rate per second with bursts of the same size (generic cell rate algorithm, ITU-T I.371): the
/// theoretical arrival time.
#[derive(Default)]
struct Rate(AtomicU64);

impl Rate {
    /// Counts an arrival, unless it exceeds the rate.
    fn take(&self, per_second: u32, now_ns: u64) -> bool {
        let step = |paid_ns| spend(paid_ns, per_second, now_ns);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).is_ok()
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// The theoretical arrival time after one more, if that is admitted now.
fn spend(paid_ns: u64, per_second: u32, now_ns: u64) -> Option<u64> {
    let price_ns = SECOND_NS / u64::from(per_second.max(1));
    let paid_ns = paid_ns.max(now_ns) + price_ns;
    (paid_ns <= now_ns + SECOND_NS).then_some(paid_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_admits_one_burst_and_then_its_steady_rate() {
        for per_second in [1, 3, 10, 1_000] {
            let rate = Rate::default();
            let mut now_ns = 7 * SECOND_NS;
            let burst = (0..2 * per_second).filter(|_| rate.take(per_second, now_ns)).count();
            assert_eq!(burst, per_second as usize);
            let mut later = 0;
            for _ in 0..10_000 {
                now_ns += SECOND_NS / 1_000;
                later += u32::from(rate.take(per_second, now_ns));
            }
            assert!((10 * per_second - 1..=10 * per_second).contains(&later), "{later}");
        }
    }

    #[test]
    fn refusals_are_listed_in_order_with_unique_names() {
        for (number, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, number);
            let others = Refusal::ALL.iter().filter(|other| other.name() == refusal.name());
            assert_eq!(others.count(), 1);
        }
    }
}
