//! [`Upstream`]: one address that requests go to, with its state and counts, shared by all threads,
//! and [`Permit`], one acquired connection to it. [`super::Pool`] chooses among several.

mod fault;
mod permit;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use self::fault::Fault;
pub use self::permit::Permit;
pub(crate) use self::permit::Port;
use super::UpstreamAddress;
use super::errors::ErrorCounts;
use super::hash::hash_bytes;

/// When an upstream is ejected (passive health check).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Consecutive failures; 0 disables ejection.
    pub after: u32,
    /// Duration in nanoseconds.
    pub for_ns: u64,
}

/// The state of an upstream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum UpstreamState {
    /// It takes new requests.
    Up,
    /// Consecutive requests to it failed, or its answers were 5xx too often; it gets no new ones for a while.
    Ejected,
    /// Its health checks fail.
    Down,
    /// It takes no new requests, by an operator's order.
    Draining,
}

impl UpstreamState {
    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            UpstreamState::Up => "up",
            UpstreamState::Ejected => "ejected",
            UpstreamState::Down => "down",
            UpstreamState::Draining => "draining",
        }
    }
}

/// One upstream. It lives as long as a table names it or a tunnel uses it.
#[derive(Debug)]
pub struct Upstream {
    number: u32,
    name: RwLock<Arc<str>>,
    connection_key: AtomicU32,
    address: UpstreamAddress,
    hash: u64,
    tunnels: AtomicU32,
    /// Queued requests in the pools of this upstream.
    waiters: AtomicU32,
    picks: AtomicU64,
    failed: AtomicU64,
    ejections: AtomicU64,
    flips: AtomicU64,
    checks: AtomicU64,
    failures: AtomicU32,
    /// It has not answered since its last failure.
    failing: AtomicBool,
    /// Its last failure.
    fault: Mutex<Option<Fault>>,
    eject_after: AtomicU32,
    eject_for_ns: AtomicU64,
    ejected_until_ns: AtomicU64,
    errors: ErrorCounts,
    up_since_ns: AtomicU64,
    down: AtomicBool,
    draining: AtomicBool,
    /// Odd while an operator closes its tunnels. Each order to do so has its own number.
    closing: AtomicU32,
    /// Connections to it per source address; `None` is the system's choice.
    ports: Mutex<Vec<(Option<IpAddr>, Arc<AtomicU32>)>>,
}

impl Upstream {
    /// `number` is unique in this process, `name` is the address as configured. `up_since_ns` is when
    /// a slow start begins; 0 means none.
    #[must_use]
    pub fn new(number: u32, name: &str, address: UpstreamAddress, up_since_ns: u64) -> Self {
        Upstream {
            number,
            name: RwLock::new(name.into()),
            connection_key: AtomicU32::new(number),
            hash: hash_bytes(address.to_string().as_bytes()),
            address,
            tunnels: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            picks: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            ejections: AtomicU64::new(0),
            flips: AtomicU64::new(0),
            checks: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            failing: AtomicBool::new(false),
            fault: Mutex::default(),
            eject_after: AtomicU32::new(0),
            eject_for_ns: AtomicU64::new(0),
            ejected_until_ns: AtomicU64::new(0),
            errors: ErrorCounts::default(),
            up_since_ns: AtomicU64::new(up_since_ns),
            down: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            closing: AtomicU32::new(0),
            ports: Mutex::default(),
        }
    }

    /// Its number, never reused in this process.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name for logs: as configured, with its address if that differs, as a name can resolve to
    /// several addresses.
    pub(crate) fn label(&self) -> String {
        let (name, address) = (self.name(), self.address.to_string());
        if *name == *address { address } else { format!("{name} ({address})") }
    }

    /// Its name: its address as configured.
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives it another name. `key` is not used by any other upstream.
    pub(crate) fn rename(&self, name: &str, key: u32) {
        *self.name.write().unwrap_or_else(PoisonError::into_inner) = name.into();
        // Last: a connection that is made meanwhile has the key of the old name and is not reused.
        self.connection_key.store(key, Ordering::Release);
    }

    /// Identifies its name and address: with TLS a connection belongs to the name that was verified, so
    /// it is reused only under the key with which it was made. Read before the name.
    pub(crate) fn connection_key(&self) -> u32 {
        self.connection_key.load(Ordering::Acquire)
    }

    /// Where to connect.
    #[must_use]
    pub fn address(&self) -> &UpstreamAddress {
        &self.address
    }

    /// The hash of its address: the same in every process.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The hash of its address and name: the same in every process.
    pub(crate) fn named_hash(&self) -> u64 {
        hash_bytes(format!("{}\0{}", self.address, self.name()).as_bytes())
    }

    /// Tunnels and requests that use it now, including those being connected.
    #[must_use]
    pub fn tunnels(&self) -> u32 {
        self.tunnels.load(Ordering::Relaxed)
    }

    /// Counts one more queued request in its pool, or one less.
    pub(crate) fn count_waiter(&self, more: bool) {
        if more {
            self.waiters.fetch_add(1, Ordering::Relaxed);
        } else {
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether a request is queued for it.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Times it was picked.
    #[must_use]
    pub fn picks(&self) -> u64 {
        self.picks.load(Ordering::Relaxed)
    }

    /// Failed connects, handshakes and responses.
    #[must_use]
    pub fn failed_times(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Times it was ejected.
    #[must_use]
    pub fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// Times health checks changed its state.
    #[must_use]
    pub fn flips(&self) -> u64 {
        self.flips.load(Ordering::Relaxed)
    }

    /// Finished health checks.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }

    pub(crate) fn count_check(&self) {
        self.checks.fetch_add(1, Ordering::Relaxed);
    }

    /// Why it is ejected, and for how many seconds from now.
    pub(crate) fn ejected(&self, now_ns: u64) -> Option<(&'static str, f64)> {
        let (failures_ns, errors_ns) =
            (self.ejected_until_ns.load(Ordering::Relaxed), self.errors.ejected_until_ns());
        let (why, until_ns) =
            if errors_ns > failures_ns { ("5xx", errors_ns) } else { ("failures", failures_ns) };
        (until_ns > now_ns).then(|| (why, (until_ns - now_ns) as f64 / 1e9))
    }

    /// Its state now.
    #[must_use]
    pub fn state(&self, now_ns: u64) -> UpstreamState {
        if self.draining.load(Ordering::Relaxed) {
            UpstreamState::Draining
        } else if self.down.load(Ordering::Relaxed) {
            UpstreamState::Down
        } else if self.ejected_until_ns.load(Ordering::Relaxed) > now_ns
            || self.errors.ejected_until_ns() > now_ns
        {
            UpstreamState::Ejected
        } else {
            UpstreamState::Up
        }
    }

    /// Whether its health checks fail, which [`Upstream::state`] does not tell while it is draining.
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Whether an operator has taken it out of balancing.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Records a response with this status.
    pub(crate) fn answered(&self, status: u16) {
        self.succeeded();
        self.errors.count(status);
    }

    /// Its answers, if they are counted.
    pub(crate) fn errors(&self) -> &ErrorCounts {
        &self.errors
    }

    /// Ejects it because of its 5xx answers.
    pub(crate) fn eject_for_errors(&self, until_ns: u64) {
        self.errors.eject(until_ns);
        self.up_since_ns.store(until_ns, Ordering::Relaxed);
    }

    /// Records a response, whatever its status.
    pub fn succeeded(&self) {
        // Read first: the cache line stays shared between cores while there are no failures.
        if self.failing.load(Ordering::Relaxed) {
            self.failing.store(false, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it has not answered since its last failure.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Its last failure, if any.
    pub(crate) fn fault(&self) -> Option<Fault> {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failed connect, a close before the response or an invalid response.
    pub fn failed(&self, now_ns: u64, fault: Fault) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        // If another thread holds the lock, it records a failure just as recent.
        if let Ok(mut last) = self.fault.try_lock() {
            *last = Some(fault);
        }
        self.failing.store(true, Ordering::Relaxed);
        if self.ejected_until_ns.load(Ordering::Relaxed) > now_ns {
            // Requests sent before the ejection do not prolong it.
            return;
        }
        let after = self.eject_after.load(Ordering::Relaxed);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if after == 0 || failures < after {
            return;
        }
        self.failures.store(0, Ordering::Relaxed);
        let until_ns = now_ns.saturating_add(self.eject_for_ns.load(Ordering::Relaxed));
        self.ejected_until_ns.store(until_ns, Ordering::Relaxed);
        self.up_since_ns.store(until_ns, Ordering::Relaxed);
        self.ejections.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the result of its health checks; going up begins a slow start.
    pub(crate) fn set_down(&self, down: bool, now_ns: u64) {
        if self.down.swap(down, Ordering::Relaxed) == down {
            return;
        }
        self.flips.fetch_add(1, Ordering::Relaxed);
        if !down {
            self.failing.store(false, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
            self.ejected_until_ns.store(0, Ordering::Relaxed);
            self.up_since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Begins or ends draining; ending it begins a slow start, and tunnels stay open again.
    pub(crate) fn set_draining(&self, draining: bool, now_ns: u64) {
        if !draining {
            self.closing.fetch_and(!1, Ordering::Relaxed);
        }
        if self.draining.swap(draining, Ordering::Relaxed) && !draining {
            self.up_since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// An operator closes its tunnels and takes it out of balancing: one that opens late is closed, too.
    /// Returns the number of this order, which replaces an earlier one.
    pub(crate) fn set_closing(&self) -> u32 {
        let next = |closing: u32| Some(closing.wrapping_add(2) | 1);
        let before = self.closing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        before.unwrap_or_default().wrapping_add(2) | 1
    }

    /// Whether a tunnel that opens now is closed at once.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed) & 1 == 1
    }

    /// Whether its tunnels are closed by this order: it was not resumed, and no later order was given.
    pub(crate) fn is_closed_by(&self, order: u32) -> bool {
        self.closing.load(Ordering::Relaxed) == order
    }

    /// Counts a connection to it from this source address; `None` is the system's choice.
    pub(crate) fn port(&self, source: Option<IpAddr>) -> Port {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let known = ports.iter().find(|(of, _)| *of == source).map(|(_, count)| Arc::clone(count));
        let count = known.unwrap_or_else(|| {
            let new = Arc::default();
            if ports.len() < SOURCES_MAX {
                ports.push((source, Arc::clone(&new)));
            }
            new
        });
        count.fetch_add(1, Ordering::Relaxed);
        Port(count)
    }

    /// Connections to it by source address.
    pub(crate) fn ports(&self) -> Vec<(Option<IpAddr>, u32)> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.iter().map(|(source, count)| (*source, count.load(Ordering::Relaxed))).collect()
    }

    /// When it is ejected.
    pub(crate) fn ejection(&self) -> Ejection {
        Ejection {
            after: self.eject_after.load(Ordering::Relaxed),
            for_ns: self.eject_for_ns.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set_ejection(&self, ejection: Ejection) {
        self.eject_after.store(ejection.after, Ordering::Relaxed);
        self.eject_for_ns.store(ejection.for_ns, Ordering::Relaxed);
    }

    /// Progress of its slow start, in 1,024ths.
    pub(crate) fn warmth(&self, slow_start_ns: u64, now_ns: u64) -> u64 {
        let since = self.up_since_ns.load(Ordering::Relaxed);
        let up_ns = now_ns.saturating_sub(since);
        if since == 0 || up_ns >= slow_start_ns {
            return WARM;
        }
        let part = u128::from(up_ns) * u128::from(WARM) / u128::from(slow_start_ns);
        u64::try_from(part).unwrap_or(WARM).max(COLD)
    }

    /// Acquires a permit, unless `most` are in use.
    pub(crate) fn acquire(self: &Arc<Self>, most: u32) -> Option<Permit> {
        let more = |tunnels| (tunnels < most).then_some(tunnels + 1);
        self.tunnels.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        self.picks.fetch_add(1, Ordering::Relaxed);
        Some(Permit(Arc::clone(self)))
    }
}

/// Maximum number of source addresses counted for one upstream; connections from further ones are
/// not shown.
const SOURCES_MAX: usize = 256;

/// Warmth of an upstream after its slow start.
pub(crate) const WARM: u64 = 1024;
/// The minimum warmth, so that an upstream in slow start gets some requests.
const COLD: u64 = 32;
