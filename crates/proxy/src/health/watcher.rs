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
            let down = upstream.state(now_ns) == crate::balance::UpstreamState::Down;
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
        for (number, checked) in &mut self.checked {
            if self.probing >= IN_FLIGHT_MAX {
                break;
            }
            if checked.probe.is_some() || checked.due_ns > now_ns {
                continue;
            }
            self.probes_started += 1;
            checked.probe = Some(self.probes_started);
            self.probing += 1;
            let (of, sender) = ((*number, self.probes_started), self.events.0.clone());
            let (upstream, name) = (Arc::clone(&checked.upstream), Arc::clone(&checked.name));
            let (check, transport) = (checked.check.clone(), checked.transport.clone());
            let (nonce, origin) = (nonce(self.probes_started, now_ns), checked.origin);
            let source = source(&self.sources, upstream.address(), checked.upstream.checks());
            tokio::spawn(async move {
                let (upstream, name, transport) = (&upstream, &*name, &transport);
                let check = &check;
                let request = Probe { check, upstream, name, transport, source, nonce, origin };
                let (answer, origin) = run_check(request).await;
                let _ = sender.send(Event::Probed(of, answer, origin)).await;
            });
        }
        for (name, lookup) in &mut self.lookups {
            if self.resolving >= IN_FLIGHT_MAX || lookup.in_flight || lookup.due_ns > now_ns {
                continue;
            }
            lookup.in_flight = true;
            self.resolving += 1;
            let (name, sender) = (name.clone(), self.events.0.clone());
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
        checked.upstream.count_check();
        checked.due_ns = now_ns + spread(checked.check.every, u64::from(number) ^ now_ns);
        if let Some(why) = answer.as_ref().err().filter(|why| why.is_ours()) {
            return debug!("health check not made: {}: {why}", checked.upstream.label());
        }
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

/// The source address of a check: those of the same family in turn.
fn source(sources: &[IpAddr], to: &UpstreamAddress, checks: u64) -> Option<IpAddr> {
    let UpstreamAddress::Tcp(to) = to else { return None };
    let fits: Vec<IpAddr> =
        sources.iter().copied().filter(|source| source.is_ipv4() == to.is_ipv4()).collect();
    let at = checks.checked_rem(fits.len() as u64)?;
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
mod tests {
    use std::net::TcpListener;

    use super::super::CheckKind;
    use super::*;
    use crate::balance::UpstreamState;
    use crate::routes::RoutesConfig;

    /// Waits for a condition, with a deadline for a failing test.
    fn eventually(what: &str, condition: impl Fn() -> bool) {
        for _ in 0..4_000 {
            if condition() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("gave up waiting until {what}");
    }

    #[test]
    fn an_upstream_that_stops_answering_goes_down_and_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let table = Arc::new(Table::default());
        let mut config = RoutesConfig::to([address.to_string().parse().unwrap()]);
        let every = Duration::from_millis(20);
        config.pools[0].check =
            HealthCheck { kind: CheckKind::Tcp, every, ..HealthCheck::default() };
        let mut registry = Registry::new(Arc::clone(&table));
        registry.apply(config.clone(), now_ns()).unwrap();
        let upstream = Arc::clone(&table.routes().pools()[0].members()[0].upstream);
        let registry = Arc::new(Mutex::new(registry));
        let watcher = Watcher::start(Arc::clone(&table), Arc::clone(&registry), &[]).unwrap();
        let stands = |standing| upstream.state(now_ns()) == standing;
        assert!(stands(UpstreamState::Up), "up until it fails");
        drop(listener);
        eventually("it is down", || stands(UpstreamState::Down));
        let listener = TcpListener::bind(address).unwrap();
        eventually("it is up again", || stands(UpstreamState::Up));
        assert_eq!(upstream.flips(), 2);
        drop(listener);
        eventually("it is down", || stands(UpstreamState::Down));
        config.pools[0].check.kind = CheckKind::Off;
        locked(&registry).apply(config, now_ns()).unwrap();
        assert!(stands(UpstreamState::Up), "without checks it counts as up");
        drop(watcher);
    }

    #[test]
    fn names_are_resolved_and_used() {
        let table = Arc::new(Table::default());
        let mut registry = Registry::new(Arc::clone(&table));
        let config = RoutesConfig::to(["localhost:7".parse().unwrap()]);
        registry.apply(config, now_ns()).unwrap();
        assert!(table.routes().pools()[0].members().is_empty());
        let registry = Arc::new(Mutex::new(registry));
        let _watcher = Watcher::start(Arc::clone(&table), registry, &[]).unwrap();
        eventually("localhost is resolved", || !table.routes().pools()[0].members().is_empty());
    }

    /// A loop that has never run, with one upstream, one name and checks every ten minutes.
    fn idle_loop() -> (WatchLoop, RoutesConfig) {
        let table = Arc::new(Table::default());
        let upstreams = ["10.0.0.1:80".parse().unwrap(), "app.internal:80".parse().unwrap()];
        let mut config = RoutesConfig::to(upstreams);
        let every = Duration::from_secs(600);
        let kind = CheckKind::Http("/health".into());
        config.pools[0].check = HealthCheck { kind, every, fall: 1, ..HealthCheck::default() };
        config.pools[0].resolve_every = every;
        let mut registry = Registry::new(Arc::clone(&table));
        registry.apply(config.clone(), now_ns()).unwrap();
        let mut watch = WatchLoop::new(table, Arc::new(Mutex::new(registry)), &[]);
        watch.sync_table();
        for checked in watch.checked.values_mut() {
            checked.due_ns = now_ns() + nanoseconds(every);
        }
        for lookup in watch.lookups.values_mut() {
            lookup.due_ns = now_ns() + nanoseconds(every);
        }
        (watch, config)
    }

    /// Seconds until the check and the lookup are due, after this configuration is applied.
    fn due_after(watch: &mut WatchLoop, config: &RoutesConfig) -> (u64, u64) {
        locked(&watch.registry).apply(config.clone(), now_ns()).unwrap();
        let before_ns = now_ns();
        watch.sync_table();
        let seconds = |due_ns: u64| due_ns.saturating_sub(before_ns) / 1_000_000_000;
        let check = watch.checked.values().next().unwrap().due_ns;
        (seconds(check), seconds(watch.lookups.values().next().unwrap().due_ns))
    }

    #[test]
    fn shorter_intervals_take_effect_at_once() {
        let (mut watch, mut config) = idle_loop();
        let (check, lookup) = due_after(&mut watch, &config);
        assert!(check > 500 && lookup > 500, "{check} {lookup}: nothing has changed");
        config.pools[0].check.every = Duration::from_secs(50);
        config.pools[0].resolve_every = Duration::from_secs(50);
        let (check, lookup) = due_after(&mut watch, &config);
        assert!(check <= 60 && lookup <= 60, "{check} {lookup}");
        config.pools[0].check.every = Duration::from_secs(600);
        config.pools[0].resolve_every = Duration::from_secs(600);
        let (check, lookup) = due_after(&mut watch, &config);
        assert!(check <= 60 && lookup <= 60, "{check} {lookup}: reloads never delay them");
    }

    #[test]
    fn a_changed_check_is_due_at_once_and_the_result_of_the_old_one_is_dropped() {
        let (mut watch, mut config) = idle_loop();
        let upstream = Arc::clone(&watch.checked.values().next().unwrap().upstream);
        let number = upstream.number();
        watch.checked.get_mut(&number).unwrap().probe = Some(7);
        config.pools[0].check.kind = CheckKind::Http("/other".into());
        assert_eq!(due_after(&mut watch, &config).0, 0);
        watch.on_probed((number, 7), Err(ProbeError::Ended), false);
        assert_eq!(upstream.state(now_ns()), UpstreamState::Up);
        assert_eq!(due_after(&mut watch, &config).0, 0, "it is still due");
    }

    /// The result arrives before the loop has seen that checks are off.
    #[test]
    fn a_result_after_checks_were_turned_off_is_dropped() {
        let (mut watch, mut config) = idle_loop();
        let upstream = Arc::clone(&watch.checked.values().next().unwrap().upstream);
        let number = upstream.number();
        let on = config.clone();
        watch.checked.get_mut(&number).unwrap().probe = Some(7);
        config.pools[0].check.kind = CheckKind::Off;
        locked(&watch.registry).apply(config, now_ns()).unwrap();
        watch.on_probed((number, 7), Err(ProbeError::Ended), false);
        assert_eq!(upstream.state(now_ns()), UpstreamState::Up);
        // Nor does it count when they are on again.
        locked(&watch.registry).apply(on, now_ns()).unwrap();
        watch.on_probed((number, 7), Err(ProbeError::Ended), false);
        assert_eq!(upstream.state(now_ns()), UpstreamState::Up);
    }

    #[test]
    fn a_check_that_could_not_be_made_says_nothing_about_the_upstream() {
        let (mut watch, _) = idle_loop();
        let upstream = Arc::clone(&watch.checked.values().next().unwrap().upstream);
        let number = upstream.number();
        // Linux: EADDRNOTAVAIL, EMFILE and ECONNREFUSED.
        for (error, state) in
            [(99, UpstreamState::Up), (24, UpstreamState::Up), (111, UpstreamState::Down)]
        {
            watch.checked.get_mut(&number).unwrap().probe = Some(7);
            let error = ProbeError::Broken(io::Error::from_raw_os_error(error));
            watch.on_probed((number, 7), Err(error), false);
            assert_eq!(upstream.state(now_ns()), state);
        }
    }

    #[test]
    fn checks_are_spread_by_a_tenth() {
        for seed in 0..1_000 {
            let spread = spread(Duration::from_nanos(1_000), seed << 20);
            assert!((900..=1_100).contains(&spread), "{spread}");
        }
    }
}
