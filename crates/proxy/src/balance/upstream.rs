//! [`Upstream`]: one address that requests go to, with its state and counts, shared by all threads,
//! and [`Permit`], one acquired connection to it. [`super::Pool`] chooses among several.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engine::Closed;

use super::UpstreamAddress;
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
pub enum Standing {
    /// It takes tunnels.
    Up,
    /// Consecutive requests to it failed; it gets no new ones for a while.
    Ejected,
    /// Its health checks fail.
    Down,
    /// It takes no new requests, by an operator's order.
    Draining,
}

impl Standing {
    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Standing::Up => "up",
            Standing::Ejected => "ejected",
            Standing::Down => "down",
            Standing::Draining => "draining",
        }
    }
}

/// Why an upstream failed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Connection refused.
    Refused,
    /// The connect timed out.
    Unreached,
    /// The connect failed, with the error number if it is known.
    Connect(Option<i32>),
    /// The TLS handshake failed.
    Tls,
    /// It closed the connection before its response.
    Broken,
    /// It sent no response in time.
    Silent,
    /// Its response was invalid.
    BadAnswer,
}

impl Fault {
    /// The fault of a connection that was closed before the response.
    pub(crate) fn of(why: Closed) -> Fault {
        match why {
            Closed::ConnectRefused => Fault::Refused,
            Closed::ConnectTimeout | Closed::HandshakeTimeout => Fault::Unreached,
            Closed::ConnectFailed => Fault::Connect(None),
            Closed::TlsFailed => Fault::Tls,
            _ => Fault::Broken,
        }
    }

    /// The fault of a connect that failed at once.
    pub(crate) fn of_connect(error: &io::Error) -> Fault {
        match Fault::of(Closed::of_connect(error)) {
            Fault::Connect(_) => Fault::Connect(error.raw_os_error()),
            fault => fault,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Connect(Some(number)) => {
                let error = io::Error::from_raw_os_error(*number);
                return write!(f, "it cannot be connected to: {error}");
            }
            Fault::Refused => "nobody listens there",
            Fault::Unreached => "the connect took too long",
            Fault::Connect(None) => "it cannot be connected to",
            Fault::Tls => {
                "TLS failed: it speaks none, or one side does not believe the other's certificate or \
                 name (tls_ca, tls_name, tls_cert)"
            }
            Fault::Broken => "it ended the connection before it had answered",
            Fault::Silent => "it did not answer in time",
            Fault::BadAnswer => "its answer breaks the rules of HTTP, or of the handshake",
        })
    }
}

/// One upstream. It lives as long as a table names it or a tunnel uses it.
#[derive(Debug)]
pub struct Upstream {
    number: u32,
    name: Box<str>,
    address: UpstreamAddress,
    hash: u64,
    tunnels: AtomicU32,
    /// Requests that wait for a place here or at its neighbours.
    wanted: AtomicU32,
    taken: AtomicU64,
    failed: AtomicU64,
    ejections: AtomicU64,
    flips: AtomicU64,
    failures: AtomicU32,
    /// It has not answered since its last failure.
    failing: AtomicBool,
    /// Its last failure.
    fault: Mutex<Option<Fault>>,
    eject_after: AtomicU32,
    eject_for_ns: AtomicU64,
    ejected_until_ns: AtomicU64,
    up_since_ns: AtomicU64,
    down: AtomicBool,
    draining: AtomicBool,
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
            name: name.into(),
            hash: hash_bytes(address.to_string().as_bytes()),
            address,
            tunnels: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            taken: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            ejections: AtomicU64::new(0),
            flips: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            failing: AtomicBool::new(false),
            fault: Mutex::default(),
            eject_after: AtomicU32::new(0),
            eject_for_ns: AtomicU64::new(0),
            ejected_until_ns: AtomicU64::new(0),
            up_since_ns: AtomicU64::new(up_since_ns),
            down: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            ports: Mutex::default(),
        }
    }

    /// Its number, never reused in this process.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The place it came from, as it is written.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
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

    /// Tunnels and requests that use it now, including those being connected.
    #[must_use]
    pub fn tunnels(&self) -> u32 {
        self.tunnels.load(Ordering::Relaxed)
    }

    /// One more request waits for a place in a pool of its, or one less.
    pub(crate) fn is_wanted(&self, more: bool) {
        if more {
            self.wanted.fetch_add(1, Ordering::Relaxed);
        } else {
            self.wanted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether a request is queued for it.
    pub(crate) fn has_waiters(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Times it was picked.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
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

    /// Its state now.
    #[must_use]
    pub fn standing(&self, now_ns: u64) -> Standing {
        if self.draining.load(Ordering::Relaxed) {
            Standing::Draining
        } else if self.down.load(Ordering::Relaxed) {
            Standing::Down
        } else if self.ejected_until_ns.load(Ordering::Relaxed) > now_ns {
            Standing::Ejected
        } else {
            Standing::Up
        }
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

    /// Begins or ends draining; ending it begins a slow start.
    pub(crate) fn set_draining(&self, draining: bool, now_ns: u64) {
        if self.draining.swap(draining, Ordering::Relaxed) && !draining {
            self.up_since_ns.store(now_ns, Ordering::Relaxed);
        }
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

    /// Takes a place, unless `most` are taken.
    pub(crate) fn take(self: &Arc<Self>, most: u32) -> Option<Picked> {
        let more = |tunnels| (tunnels < most).then_some(tunnels + 1);
        self.tunnels.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Picked(Arc::clone(self)))
    }
}

/// Maximum number of source addresses counted for one upstream; connections from further ones are
/// not shown.
const SOURCES_MAX: usize = 256;

/// A connection to an upstream, which uses a port of a source address. Dropping it releases the
/// count.
#[derive(Debug)]
pub struct Port(Arc<AtomicU32>);

impl Drop for Port {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Warmth of an upstream after its slow start.
pub(crate) const WARM: u64 = 1024;
/// The minimum warmth, so that an upstream in slow start gets some requests.
const COLD: u64 = 32;

/// One of the tunnels that an upstream allows, held from the choice to the end of the tunnel.
/// Dropping it releases it, so that none can leak.
#[derive(Debug)]
pub struct Picked(Arc<Upstream>);

// It stays with its tunnel.
const _: () = assert!(size_of::<Option<Picked>>() == 8);

impl Picked {
    /// Where to connect.
    #[must_use]
    pub fn address(&self) -> &UpstreamAddress {
        &self.0.address
    }

    /// The upstream, to record success or failure.
    #[must_use]
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.0
    }
}

impl Drop for Picked {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream() -> Arc<Upstream> {
        let address = UpstreamAddress::Tcp(([127, 0, 0, 1], 80).into());
        Arc::new(Upstream::new(1, "127.0.0.1:80", address, 0))
    }

    #[test]
    fn a_place_comes_back_when_it_is_dropped() {
        let upstream = upstream();
        let first = upstream.take(2).unwrap();
        let second = upstream.take(2).unwrap();
        assert!(upstream.take(2).is_none());
        drop(first);
        assert_eq!(upstream.tunnels(), 1);
        let third = upstream.take(2).unwrap();
        drop((second, third));
        assert_eq!((upstream.tunnels(), upstream.taken()), (0, 3));
    }

    #[test]
    fn ports_are_counted_by_the_address_they_belong_to() {
        let (upstream, one) = (upstream(), IpAddr::from([127, 0, 0, 1]));
        let (first, second) = (upstream.port(Some(one)), upstream.port(None));
        let third = upstream.port(Some(one));
        assert_eq!(upstream.ports(), [(Some(one), 2), (None, 1)]);
        drop((first, second));
        assert_eq!(upstream.ports(), [(Some(one), 1), (None, 0)]);
        let many: Vec<Port> = (0..1_000)
            .map(|n| upstream.port(Some(IpAddr::from([10, 0, (n >> 8) as u8, n as u8]))))
            .collect();
        assert_eq!(upstream.ports().len(), SOURCES_MAX, "a list without end is not kept");
        drop((third, many));
        assert!(upstream.ports().iter().all(|(_, count)| *count == 0));
    }

    #[test]
    fn failures_in_a_row_eject_for_a_while() {
        let upstream = upstream();
        upstream.set_ejection(Ejection { after: 3, for_ns: 10 });
        upstream.failed(1, Fault::Refused);
        upstream.failed(2, Fault::Refused);
        upstream.succeeded();
        upstream.failed(3, Fault::Refused);
        upstream.failed(4, Fault::Refused);
        assert_eq!(upstream.standing(4), Standing::Up, "an answer between them starts anew");
        upstream.failed(5, Fault::Silent);
        assert_eq!(upstream.fault(), Some(Fault::Silent));
        assert_eq!(upstream.standing(6), Standing::Ejected);
        (0..5).for_each(|_| upstream.failed(14, Fault::Refused));
        assert_eq!(upstream.standing(15), Standing::Up, "what was under way prolongs nothing");
        assert_eq!((upstream.ejections(), upstream.failed_times()), (1, 10));
    }

    #[test]
    fn checks_that_say_the_same_again_are_no_flip() {
        let upstream = upstream();
        for down in [true, true, false, false, true] {
            upstream.set_down(down, 7);
        }
        assert_eq!((upstream.flips(), upstream.standing(8)), (3, Standing::Down));
        upstream.set_draining(true, 9);
        assert_eq!(upstream.standing(9), Standing::Draining);
    }

    #[test]
    fn who_comes_up_warms_up() {
        let upstream = upstream();
        assert_eq!(upstream.warmth(1_000, 1), WARM, "there from the start");
        upstream.set_down(true, 10);
        upstream.set_down(false, 1_000);
        assert_eq!(upstream.warmth(1_000, 1_000), COLD);
        assert_eq!(upstream.warmth(1_000, 1_500), WARM / 2);
        assert_eq!(upstream.warmth(1_000, 2_000), WARM);
        assert_eq!(upstream.warmth(0, 1_000), WARM, "no slow start was asked for");
    }
}
