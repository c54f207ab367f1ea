//! [`Resolving`]: lookups of names before a configuration is applied. They run in threads of their own,
//! so that a slow resolver delays the change and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use engine::sys::process::now_ns;

/// A host name and a port.
pub(crate) type Name = (Box<str>, u16);

/// Maximum number of threads of one change.
const THREADS_MAX: usize = 4;
const STACK_BYTES: usize = 256 * 1024;
/// Time limit of all lookups of one change.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The results of lookups.
#[derive(Clone, Debug, Default)]
pub struct Lookups {
    /// The addresses of each name.
    pub(crate) found: BTreeMap<Name, Vec<SocketAddr>>,
    /// Hosts without an address, with the reason.
    pub failed: Vec<(Box<str>, String)>,
}

impl Lookups {
    /// Returns itself if every name has an address.
    ///
    /// # Errors
    /// The hosts that cannot be resolved, with the reasons.
    pub fn complete(self) -> Result<Self, String> {
        if self.failed.is_empty() {
            return Ok(self);
        }
        let failed = self.failed.iter().map(|(host, why)| format!("cannot resolve {host}: {why}"));
        Err(failed.collect::<Vec<_>>().join("; "))
    }
}

/// Lookups that are running. Dropping it abandons them.
pub struct Resolving {
    results: Receiver<(Name, io::Result<Vec<SocketAddr>>)>,
    open: BTreeSet<Name>,
    lookups: Lookups,
    until_ns: u64,
    stop: Arc<AtomicBool>,
}

impl Resolving {
    /// Starts looking up these names.
    #[must_use]
    pub fn start(names: Vec<Name>) -> Self {
        let lookup = |(host, port): &Name| Ok((&**host, *port).to_socket_addrs()?.collect());
        Resolving::with(names, TIMEOUT, lookup)
    }

    fn with(
        names: Vec<Name>,
        timeout: Duration,
        lookup: impl Fn(&Name) -> io::Result<Vec<SocketAddr>> + Clone + Send + 'static,
    ) -> Self {
        let (sender, results) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let open: BTreeSet<Name> = names.into_iter().collect();
        let queue = Arc::new(Mutex::new(open.clone()));
        for _ in 0..open.len().min(THREADS_MAX) {
            let (queue, stop) = (Arc::clone(&queue), Arc::clone(&stop));
            let (sender, lookup) = (sender.clone(), lookup.clone());
            let next = move || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
            let run = move || {
                while let Some(name) = next().filter(|_| !stop.load(Ordering::Relaxed)) {
                    let addresses = lookup(&name);
                    // The receiver has gone if the change was abandoned.
                    let _ = sender.send((name, addresses));
                }
            };
            // Without any thread, the results end at once and every name counts as failed.
            let _ = Builder::new().name("resolve".to_owned()).stack_size(STACK_BYTES).spawn(run);
        }
        let until_ns = now_ns().saturating_add(timeout.as_nanos() as u64);
        Resolving { results, open, lookups: Lookups::default(), until_ns, stop }
    }

    /// The hosts that have no result yet.
    #[must_use]
    pub fn hosts(&self) -> String {
        let hosts: BTreeSet<&str> = self.open.iter().map(|(host, _)| &**host).collect();
        hosts.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Returns the results if all have arrived, or the time is up.
    pub fn poll(&mut self) -> Option<Lookups> {
        while !self.open.is_empty() {
            match self.results.try_recv() {
                Ok((name, addresses)) => self.record(name, addresses),
                Err(TryRecvError::Empty) if now_ns() < self.until_ns => return None,
                Err(_) => self.give_up(),
            }
        }
        Some(std::mem::take(&mut self.lookups))
    }

    /// Waits for the results.
    #[must_use]
    pub fn wait(mut self) -> Lookups {
        while !self.open.is_empty() {
            let left = Duration::from_nanos(self.until_ns.saturating_sub(now_ns()));
            match self.results.recv_timeout(left) {
                Ok((name, addresses)) => self.record(name, addresses),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.give_up(),
            }
        }
        std::mem::take(&mut self.lookups)
    }

    fn record(&mut self, name: Name, addresses: io::Result<Vec<SocketAddr>>) {
        self.open.remove(&name);
        let why = match addresses {
            Ok(addresses) if !addresses.is_empty() => {
                self.lookups.found.insert(name, addresses);
                return;
            }
            Ok(_) => "it has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        self.lookups.failed.push((name.0, why));
    }

    fn give_up(&mut self) {
        let why = if now_ns() < self.until_ns { "cannot start a thread" } else { "timed out" };
        let open = std::mem::take(&mut self.open);
        self.lookups.failed.extend(open.into_iter().map(|(host, _)| (host, why.to_owned())));
    }
}

impl Drop for Resolving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(host: &str) -> Name {
        (host.into(), 80)
    }

    fn one() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 80))
    }

    #[test]
    fn every_name_that_fails_is_reported_with_its_reason() {
        let lookup = |(host, _): &Name| match &**host {
            "none.test" => Err(io::Error::other("no such name")),
            "empty.test" => Ok(Vec::new()),
            _ => Ok(vec![one()]),
        };
        let hosts = ["a.test", "none.test", "b.test", "empty.test", "c.test", "a.test"];
        let lookups = Resolving::with(hosts.map(name).into(), TIMEOUT, lookup).wait();
        let found: Vec<&str> = lookups.found.keys().map(|(host, _)| &**host).collect();
        assert_eq!(found, ["a.test", "b.test", "c.test"]);
        let error = lookups.complete().unwrap_err();
        assert!(error.contains("cannot resolve none.test: no such name"), "{error}");
        assert!(error.contains("cannot resolve empty.test: it has no address"), "{error}");
        assert!(Resolving::start(Vec::new()).poll().unwrap().complete().is_ok());
    }

    #[test]
    fn a_slow_lookup_blocks_no_poll_and_times_out() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let waiting = Arc::clone(&gate);
        let lookup = move |_: &Name| {
            drop(waiting.lock());
            Ok(vec![one()])
        };
        let mut slow = Resolving::with(vec![name("slow.test")], TIMEOUT, lookup.clone());
        assert!(slow.poll().is_none());
        assert_eq!(slow.hosts(), "slow.test");
        let late = Resolving::with(vec![name("late.test")], Duration::from_millis(1), lookup);
        assert_eq!(late.wait().complete().unwrap_err(), "cannot resolve late.test: timed out");
        drop(closed);
        assert_eq!(slow.wait().found[&name("slow.test")], [one()]);
    }
}
