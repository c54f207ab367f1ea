//! [`Watcher`]: the thread that runs health checks and DNS lookups, all concurrently and each at its
//! own interval.
//!
//! Start it after the workers, so that its sockets are in no worker's descriptor table. No worker
//! wakes it; it polls every [`POLL_EVERY`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use engine::sys::process::now_ns;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::{debug, info, warn};

use super::error_shares::ErrorShares;
use super::probe::{Probe, ProbeError, run_check};
use super::threshold::Threshold;
use crate::balance::{PoolHealth, Upstream, UpstreamAddress};
use crate::config::Transport;
use crate::routes::{HealthCheck, Registry, Table};

/// How often due checks and lookups are started.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of checks in flight (each is a descriptor), and of lookups.
const IN_FLIGHT_MAX: usize = 64;
/// Maximum number of resolver threads.
const RESOLVERS: usize = 2;
/// Retry interval after a failed lookup, or the pool's `resolve` if that is shorter.
const RESOLVE_RETRY: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 256 * 1024;

/// The watcher cannot start; the system error is the source.
#[derive(Debug)]
pub struct WatchError(io::Error);

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot start the thread that checks upstreams")
    }
}

impl std::error::Error for WatchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Watches all upstreams of a registry until it is dropped.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread. Checks leave from `sources` in turn, as connections of the workers do.
    ///
    /// # Errors
    /// The system has no thread or no epoll instance left.
    pub fn start(
        table: Arc<Table>,
        registry: Arc<Mutex<Registry>>,
        sources: &[IpAddr],
    ) -> Result<Self, WatchError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(RESOLVERS)
            .thread_stack_size(STACK_BYTES)
            .thread_name("resolve")
            .build()
            .map_err(WatchError)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let watch_loop = WatchLoop::new(table, registry, sources);
        let watch = move || {
            runtime.block_on(watch_loop.run(&stopped));
            // A lookup may hang for long; shutdown does not wait for it.
            runtime.shutdown_background();
        };
        let thread = Builder::new().name("health".to_owned()).stack_size(STACK_BYTES);
        let thread = Some(thread.spawn(watch).map_err(WatchError)?);
        Ok(Watcher { stop, thread })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The result of a check or a lookup.
enum Event {
    /// The numbers of the upstream and the probe, the result, and whether the handshake had an Origin
    /// header.
    Probed((u32, u64), Result<(), ProbeError>, bool),
    Resolved(Name, io::Result<Vec<SocketAddr>>),
}

type Name = (Box<str>, u16);

struct CheckedUpstream {
    upstream: Arc<Upstream>,
    /// The name that is checked.
    name: Arc<str>,
    check: HealthCheck,
    transport: Transport,
    threshold: Threshold,
    due_ns: u64,
    /// The number of the probe in flight.
    probe: Option<u64>,
    /// Probes so far, each from the next source address.
    probes: u64,
    /// Whether handshakes with an Origin header passed last.
    origin: bool,
}

struct Lookup {
    every: Duration,
    due_ns: u64,
    in_flight: bool,
    failing: bool,
}

struct WatchLoop {
    table: Arc<Table>,
    registry: Arc<Mutex<Registry>>,
    generation: Option<u64>,
    checked: BTreeMap<u32, CheckedUpstream>,
    lookups: BTreeMap<Name, Lookup>,
    /// Pools with too few upstreams that are up, and whether their backups serve.
    panicking: BTreeMap<Box<str>, bool>,
    errors: ErrorShares,
    /// Checks and lookups in flight, counted apart: slow lookups must not stop the checks.
    probing: usize,
    resolving: usize,
    probes_started: u64,
    sources: Vec<IpAddr>,
    events: (Sender<Event>, Receiver<Event>),
}

impl WatchLoop {
    fn new(table: Arc<Table>, registry: Arc<Mutex<Registry>>, sources: &[IpAddr]) -> Self {
        WatchLoop {
            table,
            registry,
            generation: None,
            checked: BTreeMap::new(),
            lookups: BTreeMap::new(),
            panicking: BTreeMap::new(),
            errors: ErrorShares::default(),
            probing: 0,
            resolving: 0,
            probes_started: 0,
            sources: sources.to_vec(),
            events: channel(2 * IN_FLIGHT_MAX),
        }
    }

    async fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.sync_table();
            self.start_due();
            self.errors.poll(&self.table.routes(), now_ns());
            let event = tokio::time::timeout(POLL_EVERY, self.events.1.recv()).await;
            let mut next = event.ok().flatten();
            while let Some(event) = next {
                match event {
                    Event::Probed(of, answer, origin) => {
                        self.probing -= 1;
                        self.on_probed(of, answer, origin);
                    }
                    Event::Resolved(name, addresses) => {
                        self.resolving -= 1;
                        self.on_resolved(name, addresses);
                    }
                }
                next = self.events.1.try_recv().ok();
            }
        }
    }

    /// Syncs with the table: new upstreams are checked at once, removed ones no more.
    fn sync_table(&mut self) {
        if self.generation != Some(self.table.generation()) {
            let registry = Arc::clone(&self.registry);
            self.sync_with(&locked(&registry));
        }
    }

    fn sync_with(&mut self, registry: &Registry) {
        let generation = self.table.generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let (checked, names) = (registry.health_checks(), registry.names());
        let now_ns = now_ns();
        let mut before = std::mem::take(&mut self.checked);
        for (upstream, check, transport) in checked {
            let number = upstream.number();
            let known = before.remove(&number);
            let down = upstream.is_down();
            let name = upstream.name();
            let again = |known: CheckedUpstream| {
                let every = check.every;
                // Another check, or the same of another name, is due at once.
                let same = known.name == name
                    && known.transport == transport
                    && HealthCheck { every, ..known.check } == check;
                let latest_ns = now_ns + spread(every, u64::from(number) ^ now_ns);
                CheckedUpstream {
                    check: check.clone(),
                    transport: transport.clone(),
                    due_ns: if same { known.due_ns.min(latest_ns) } else { now_ns },
                    probe: known.probe.filter(|_| same),
                    probes: known.probes,
                    name: Arc::clone(&name),
                    upstream: known.upstream,
                    threshold: known.threshold,
                    origin: known.origin,
                }
            };
            let checked = known.map(again).unwrap_or_else(|| CheckedUpstream {
                upstream,
                name: Arc::clone(&name),
                check: check.clone(),
                transport: transport.clone(),
                threshold: Threshold::new(down),
                due_ns: now_ns,
                probe: None,
                probes: 0,
                origin: false,
            });
            self.checked.insert(number, checked);
        }
        let mut before = std::mem::take(&mut self.lookups);
        for (host, port, every) in names {
            let name = (host, port);
            let latest_ns = now_ns + nanoseconds(every);
            let again =
                |known: Lookup| Lookup { every, due_ns: known.due_ns.min(latest_ns), ..known };
            let known = before.remove(&name).map(again);
            let lookup = Lookup { every, due_ns: now_ns, in_flight: false, failing: false };
            self.lookups.insert(name, known.unwrap_or(lookup));
        }
    }

    fn start_due(&mut self) {
        let now_ns = now_ns();
        let idle = self.checked.iter().filter(|(_, checked)| checked.probe.is_none());
        let due = idle.map(|(number, checked)| (checked.due_ns, *number));
        for number in longest_due(due, now_ns, self.probing) {
            let Some(checked) = self.checked.get_mut(&number) else { continue };
            self.probes_started += 1;
            checked.probe = Some(self.probes_started);
            let turn = checked.probes;
            checked.probes += 1;
            self.probing += 1;
            let (of, sender) = ((number, self.probes_started), self.events.0.clone());
            let (upstream, name) = (Arc::clone(&checked.upstream), Arc::clone(&checked.name));
            let (check, transport) = (checked.check.clone(), checked.transport.clone());
            let (nonce, origin) = (nonce(self.probes_started, now_ns), checked.origin);
            let source = source(&self.sources, upstream.address(), turn);
            tokio::spawn(async move {
                let (upstream, name, transport) = (&upstream, &*name, &transport);
                let check = &check;
                let request = Probe { check, upstream, name, transport, source, nonce, origin };
                let (answer, origin) = run_check(request).await;
                let _ = sender.send(Event::Probed(of, answer, origin)).await;
            });
        }
        let idle = self.lookups.iter().filter(|(_, lookup)| !lookup.in_flight);
        let due = idle.map(|(name, lookup)| (lookup.due_ns, name.clone()));
        for name in longest_due(due, now_ns, self.resolving) {
            let Some(lookup) = self.lookups.get_mut(&name) else { continue };
            lookup.in_flight = true;
            self.resolving += 1;
            let sender = self.events.0.clone();
            tokio::spawn(async move {
                let found = tokio::net::lookup_host((&*name.0, name.1)).await;
                let addresses = found.map(Iterator::collect);
                let _ = sender.send(Event::Resolved(name, addresses)).await;
            });
        }
    }

    fn on_probed(
        &mut self,
        (number, probe): (u32, u64),
        answer: Result<(), ProbeError>,
        origin: bool,
    ) {
        // A reload that turns checks off marks upstreams as up while it holds the lock. A result that
        // was applied afterwards would mark one as down for good.
        let registry = Arc::clone(&self.registry);
        let held = locked(&registry);
        self.sync_with(&held);
        // None: the upstream was removed meanwhile, or has another check.
        let checked = self.checked.get_mut(&number);
        let Some(checked) = checked.filter(|checked| checked.probe == Some(probe)) else { return };
        let now_ns = now_ns();
        checked.probe = None;
        checked.origin = origin;
        checked.due_ns = now_ns + spread(checked.check.every, u64::from(number) ^ now_ns);
        if let Some(why) = answer.as_ref().err().filter(|why| why.is_ours()) {
            return debug!("health check not made: {}: {why}", checked.upstream.label());
        }
        checked.upstream.count_check();
        let (rise, fall) = (checked.check.rise, checked.check.fall);
        let verdict = checked.threshold.record(answer.is_ok(), rise, fall);
        if let Err(why) = &answer {
            debug!("health check failed: {}: {why}", checked.upstream.label());
        }
        let Some(down) = verdict else { return };
        checked.upstream.set_down(down, now_ns);
        drop(held);
        let shown = checked.upstream.label();
        match answer {
            Err(why) => warn!(
                "upstream down: {shown}: {why}; {fall} consecutive health checks \
                 failed; open tunnels are kept"
            ),
            Ok(()) => info!("upstream up: {shown}"),
        }
        self.log_panic();
    }

    /// Logs pools that begin or cease to ignore the health of their upstreams, or to use their backups.
    fn log_panic(&mut self) {
        let (now_ns, routes) = (now_ns(), self.table.routes());
        self.panicking.retain(|name, _| routes.pool(name).is_some());
        for pool in routes.pools() {
            let (name, health) = (pool.name(), pool.health(now_ns));
            let PoolHealth { up, total, backups_up, backups } = health;
            let on_backups = up == 0 && backups_up > 0;
            if !on_backups && !pool.lacks_upstreams(health) {
                if self.panicking.remove(name).is_some() {
                    info!("pool {name}: {up} of {total} upstreams are up");
                }
            } else if self.panicking.insert(name.into(), on_backups) != Some(on_backups) {
                match (up, pool.limits().panic_threshold) {
                    _ if on_backups => warn!(
                        "pool {name}: only backups are up: requests go to {backups_up} of {backups} \
                         backups"
                    ),
                    (0, 0) => warn!("pool {name}: no upstream is up: requests are answered 503"),
                    (0, _) => warn!("pool {name}: no upstream is up: requests go to all of them"),
                    _ => warn!(
                        "pool {name}: only {up} of {total} upstreams are up: requests go to all of \
                         them"
                    ),
                }
            }
        }
    }

    fn on_resolved(&mut self, name: Name, addresses: io::Result<Vec<SocketAddr>>) {
        // None: the name was removed meanwhile.
        let Some(lookup) = self.lookups.get_mut(&name) else { return };
        lookup.in_flight = false;
        let now_ns = now_ns();
        let (host, port) = (&*name.0, name.1);
        match addresses {
            Ok(addresses) if !addresses.is_empty() => {
                lookup.due_ns = now_ns + nanoseconds(lookup.every);
                lookup.failing = false;
                let changed = locked(&self.registry).resolved((host, port), addresses, now_ns);
                if changed != crate::routes::Changed::default() {
                    let (added, removed) = (changed.added, changed.removed);
                    info!("addresses changed: {host}: {added} upstreams added, {removed} removed");
                }
            }
            failed => {
                lookup.due_ns = now_ns + nanoseconds(lookup.every.min(RESOLVE_RETRY));
                if !std::mem::replace(&mut lookup.failing, true) {
                    let why = failed.err().map_or("no address".into(), |error| error.to_string());
                    warn!("cannot resolve {host}: {why}; the last addresses are kept");
                }
            }
        }
    }
}

/// Those that are due, the longest due first, up to the maximum in flight: otherwise those whose checks
/// take longest, which are due again when they end, would leave no turn to others.
fn longest_due<K: Ord>(
    all: impl Iterator<Item = (u64, K)>,
    now_ns: u64,
    in_flight: usize,
) -> Vec<K> {
    let mut due: Vec<(u64, K)> = all.filter(|(due_ns, _)| *due_ns <= now_ns).collect();
    due.sort_unstable();
    due.truncate(IN_FLIGHT_MAX.saturating_sub(in_flight));
    due.into_iter().map(|(_, key)| key).collect()
}

/// The source address of a check: those of the same family in turn.
fn source(sources: &[IpAddr], to: &UpstreamAddress, turn: u64) -> Option<IpAddr> {
    let UpstreamAddress::Tcp(to) = to else { return None };
    let fits: Vec<IpAddr> =
        sources.iter().copied().filter(|source| source.is_ipv4() == to.is_ipv4()).collect();
    let at = turn.checked_rem(fits.len() as u64)?;
    fits.get(usize::try_from(at).ok()?).copied()
}

fn locked(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The interval ± 10 %, so that upstreams are not all checked at the same moment.
fn spread(time: Duration, seed: u64) -> u64 {
    let time_ns = nanoseconds(time);
    let tenth = (time_ns / 10).max(1);
    let bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    time_ns - tenth + bits % (2 * tenth)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// Sixteen bytes for a handshake key. They must differ but need not be secret: no script can reach a
/// health check.
fn nonce(count: u64, now_ns: u64) -> [u8; 16] {
    let mut nonce = [0; 16];
    let (first, second) = nonce.split_at_mut(8);
    first.copy_from_slice(&count.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    second.copy_from_slice(&now_ns.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests;
