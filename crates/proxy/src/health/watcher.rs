//! [`Watcher`]: the thread that runs health checks and DNS lookups, all concurrently and each at its
//! own interval.
//!
//! Start it after the workers, so that its sockets are in no worker's descriptor table. No worker
//! wakes it; it polls every [`POLL_EVERY`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use engine::sys::process::now_ns;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::{debug, info, warn};

use super::probe::{Failed, Question, ask};
use super::threshold::Judge;
use crate::balance::Upstream;
use crate::config::Outgoing;
use crate::routes::{Check, Fleet, Table};

/// How often it is looked for what is due.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Questions under way at most: each is a descriptor.
const ASKED_MAX: usize = 64;
/// Resolvers under way at most: each is a thread.
const RESOLVERS: usize = 2;
/// A resolver that failed is asked again after this, or sooner where names are kept more shortly.
const RESOLVE_AGAIN: Duration = Duration::from_secs(5);
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
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread or no epoll instance left.
    pub fn start(table: Arc<Table>, fleet: Arc<Mutex<Fleet>>) -> Result<Self, WatchError> {
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
        let watch = move || {
            runtime.block_on(Rounds::new(table, fleet).run(&stopped));
            // A resolver may hang for long; nobody waits for its answer.
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

/// What was heard.
enum Heard {
    Of(u32, Result<(), Failed>),
    Means(Name, io::Result<Vec<SocketAddr>>),
}

type Name = (Box<str>, u16);

struct Patient {
    upstream: Arc<Upstream>,
    check: Check,
    outgoing: Outgoing,
    judge: Judge,
    due_ns: u64,
    asked: bool,
}

struct Lookup {
    every: Duration,
    due_ns: u64,
    asked: bool,
    failing: bool,
}

struct Rounds {
    table: Arc<Table>,
    fleet: Arc<Mutex<Fleet>>,
    generation: Option<u64>,
    patients: BTreeMap<u32, Patient>,
    lookups: BTreeMap<Name, Lookup>,
    /// Questions to upstreams and to the resolver under way: slow names may not stop the checks.
    under_way: usize,
    resolving: usize,
    questions: u64,
    heard: (Sender<Heard>, Receiver<Heard>),
}

impl Rounds {
    fn new(table: Arc<Table>, fleet: Arc<Mutex<Fleet>>) -> Self {
        Rounds {
            table,
            fleet,
            generation: None,
            patients: BTreeMap::new(),
            lookups: BTreeMap::new(),
            under_way: 0,
            resolving: 0,
            questions: 0,
            heard: channel(2 * ASKED_MAX),
        }
    }

    async fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.follow();
            self.ask_due();
            let heard = tokio::time::timeout(LOOK_EVERY, self.heard.1.recv()).await;
            let mut next = heard.ok().flatten();
            while let Some(heard) = next {
                match heard {
                    Heard::Of(number, answer) => {
                        self.under_way -= 1;
                        self.hear(number, answer);
                    }
                    Heard::Means(name, addresses) => {
                        self.resolving -= 1;
                        self.means(name, addresses);
                    }
                }
                next = self.heard.1.try_recv().ok();
            }
        }
    }

    /// Follows the table: who came is asked at once, who left no more.
    fn follow(&mut self) {
        let generation = self.table.generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let (patients, names) = {
            let fleet = locked(&self.fleet);
            (fleet.patients(), fleet.names())
        };
        let now_ns = now_ns();
        let mut before = std::mem::take(&mut self.patients);
        for (upstream, check, outgoing) in patients {
            let number = upstream.number();
            let known = before.remove(&number);
            let down = upstream.standing(now_ns) == crate::balance::Standing::Down;
            let again =
                |known| Patient { check: check.clone(), outgoing: outgoing.clone(), ..known };
            let patient = known.map(again).unwrap_or_else(|| Patient {
                upstream,
                check: check.clone(),
                outgoing: outgoing.clone(),
                judge: Judge::new(down),
                due_ns: now_ns,
                asked: false,
            });
            self.patients.insert(number, patient);
        }
        let mut before = std::mem::take(&mut self.lookups);
        for (host, port, every) in names {
            let name = (host, port);
            let known = before.remove(&name).map(|known| Lookup { every, ..known });
            let lookup = Lookup { every, due_ns: now_ns, asked: false, failing: false };
            self.lookups.insert(name, known.unwrap_or(lookup));
        }
    }

    fn ask_due(&mut self) {
        let now_ns = now_ns();
        for (number, patient) in &mut self.patients {
            if self.under_way >= ASKED_MAX {
                break;
            }
            if patient.asked || patient.due_ns > now_ns {
                continue;
            }
            self.questions += 1;
            patient.asked = true;
            self.under_way += 1;
            let (number, sender) = (*number, self.heard.0.clone());
            let upstream = Arc::clone(&patient.upstream);
            let (check, outgoing) = (patient.check.clone(), patient.outgoing.clone());
            let nonce = nonce(self.questions, now_ns);
            tokio::spawn(async move {
                let Check { how, timeout, .. } = &check;
                let question = Question { how, upstream: &upstream, outgoing: &outgoing, nonce };
                let answer = ask(&question, *timeout).await;
                let _ = sender.send(Heard::Of(number, answer)).await;
            });
        }
        for (name, lookup) in &mut self.lookups {
            if self.resolving >= ASKED_MAX || lookup.asked || lookup.due_ns > now_ns {
                continue;
            }
            lookup.asked = true;
            self.resolving += 1;
            let (name, sender) = (name.clone(), self.heard.0.clone());
            tokio::spawn(async move {
                let found = tokio::net::lookup_host((&*name.0, name.1)).await;
                let addresses = found.map(Iterator::collect);
                let _ = sender.send(Heard::Means(name, addresses)).await;
            });
        }
    }

    fn hear(&mut self, number: u32, answer: Result<(), Failed>) {
        let Some(patient) = self.patients.get_mut(&number) else { return };
        let now_ns = now_ns();
        patient.asked = false;
        patient.due_ns = now_ns + spread(patient.check.every, u64::from(number) ^ now_ns);
        let (rise, fall) = (patient.check.rise, patient.check.fall);
        let verdict = patient.judge.hear(answer.is_ok(), rise, fall);
        let (name, address) = (patient.upstream.name(), patient.upstream.address());
        if let Err(why) = &answer {
            debug!("check of {name} ({address}): {why}");
        }
        let Some(down) = verdict else { return };
        patient.upstream.set_down(down, now_ns);
        match answer {
            Err(why) => warn!(
                "upstream {name} ({address}) is down after {fall} checks in a row: {why}; its \
                 tunnels are left alone"
            ),
            Ok(()) => info!("upstream {name} ({address}) is up again"),
        }
    }

    fn means(&mut self, name: Name, addresses: io::Result<Vec<SocketAddr>>) {
        let Some(lookup) = self.lookups.get_mut(&name) else { return };
        lookup.asked = false;
        let now_ns = now_ns();
        let (host, port) = (&*name.0, name.1);
        match addresses {
            Ok(addresses) if !addresses.is_empty() => {
                lookup.due_ns = now_ns + nanoseconds(lookup.every);
                lookup.failing = false;
                let changed = locked(&self.fleet).resolved((host, port), addresses, now_ns);
                if changed != crate::routes::Changed::default() {
                    let (came, left) = (changed.added, changed.removed);
                    info!("{host} resolves anew: {came} upstreams came, {left} left");
                }
            }
            failed => {
                lookup.due_ns = now_ns + nanoseconds(lookup.every.min(RESOLVE_AGAIN));
                if !std::mem::replace(&mut lookup.failing, true) {
                    let why = failed.err().map_or("no address".into(), |error| error.to_string());
                    warn!("{host} does not resolve ({why}): what it meant last is kept");
                }
            }
        }
    }
}

fn locked(fleet: &Mutex<Fleet>) -> MutexGuard<'_, Fleet> {
    fleet.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Sixteen bytes for a key: they need be different, not secret, as nobody's script can reach here.
fn nonce(question: u64, now_ns: u64) -> [u8; 16] {
    let mut nonce = [0; 16];
    let (first, second) = nonce.split_at_mut(8);
    first.copy_from_slice(&question.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    second.copy_from_slice(&now_ns.to_le_bytes());
    nonce
}

/// Resolves every name once and waits for the answers, before anything is served.
pub fn resolve_first(fleet: &mut Fleet, now_ns: u64) {
    use std::net::ToSocketAddrs;
    for (host, port, _) in fleet.names() {
        match (&*host, port).to_socket_addrs() {
            Ok(addresses) => {
                fleet.resolved((&host, port), addresses.collect(), now_ns);
            }
            Err(error) => warn!("{host} does not resolve ({error}): it is asked for again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::How;
    use super::*;
    use crate::balance::Standing;
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
    fn who_stops_answering_goes_down_and_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let table = Arc::new(Table::default());
        let mut said = RoutesConfig::to([address.to_string().parse().unwrap()]);
        let every = Duration::from_millis(20);
        said.pools[0].check = Check { how: How::Tcp, every, ..Check::default() };
        let mut fleet = Fleet::new(Arc::clone(&table));
        fleet.say(said.clone(), now_ns()).unwrap();
        let upstream = Arc::clone(&table.routes().pools()[0].members()[0].upstream);
        let fleet = Arc::new(Mutex::new(fleet));
        let watcher = Watcher::start(Arc::clone(&table), Arc::clone(&fleet)).unwrap();
        let stands = |standing| upstream.standing(now_ns()) == standing;
        assert!(stands(Standing::Up), "believed until it fails");
        drop(listener);
        eventually("it is down", || stands(Standing::Down));
        let listener = TcpListener::bind(address).unwrap();
        eventually("it is up again", || stands(Standing::Up));
        assert_eq!(upstream.flips(), 2);
        drop(listener);
        eventually("it is down", || stands(Standing::Down));
        said.pools[0].check.how = How::Off;
        locked(&fleet).say(said, now_ns()).unwrap();
        assert!(stands(Standing::Up), "nobody asks any more, so nobody knows better");
        drop(watcher);
    }

    #[test]
    fn names_are_resolved_and_what_they_mean_is_used() {
        let table = Arc::new(Table::default());
        let mut fleet = Fleet::new(Arc::clone(&table));
        let said = RoutesConfig::to(["localhost:7".parse().unwrap()]);
        fleet.say(said, now_ns()).unwrap();
        assert!(table.routes().pools()[0].members().is_empty());
        let fleet = Arc::new(Mutex::new(fleet));
        let _watcher = Watcher::start(Arc::clone(&table), fleet).unwrap();
        eventually("localhost is resolved", || !table.routes().pools()[0].members().is_empty());
    }

    #[test]
    fn checks_are_spread_by_a_tenth() {
        for seed in 0..1_000 {
            let spread = spread(Duration::from_nanos(1_000), seed << 20);
            assert!((900..=1_100).contains(&spread), "{spread}");
        }
    }
}
