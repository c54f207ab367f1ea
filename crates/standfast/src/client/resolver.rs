//! [`Resolver`]: looks up the names that connections are opened to. A lookup blocks its thread, so there are
//! threads for it, a few at a time and none without a lookup.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) type Found = io::Result<Vec<SocketAddr>>;

/// Memory of a thread's stack: the resolver of the C library needs less than 64 KiB.
const STACK_BYTES: usize = 256 * 1024;

/// Lookups of names, by all connections of a [`Clients`](crate::Clients).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Lookups {
    /// Lookups that threads are at now: at most [`Limits::lookups`](crate::Limits::lookups).
    pub running: usize,
    /// Those that wait for a thread now.
    pub waiting: usize,
    /// Those since the start.
    pub begun: u64,
    /// Those of them that had to wait, because as many as are allowed were running.
    pub delayed: u64,
}

struct Lookup {
    /// Of its connection.
    number: u64,
    host: Box<str>,
    port: u16,
    done: Box<dyn FnOnce(Found) + Send>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Lookup>,
    figures: Lookups,
}

#[derive(Clone)]
pub(super) struct Resolver {
    state: Arc<Mutex<State>>,
    threads_max: usize,
    resolve: Resolve,
}

type Resolve = fn(&str, u16) -> Found;

impl Resolver {
    pub(super) fn new(threads_max: usize) -> Resolver {
        let resolve = |host: &str, port| (host, port).to_socket_addrs().map(Iterator::collect);
        Resolver::with(threads_max, resolve)
    }

    /// With another function than that of the C library.
    pub(super) fn with(threads_max: usize, resolve: Resolve) -> Resolver {
        Resolver { state: Arc::default(), threads_max: threads_max.max(1), resolve }
    }

    /// Looks up the name of a connection. `done` is called by another thread.
    ///
    /// # Errors
    /// A thread cannot be started, and none runs that could do it.
    pub(super) fn look_up(
        &self,
        number: u64,
        (host, port): (&str, u16),
        done: impl FnOnce(Found) + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.lock();
        state.waiting.push_back(Lookup { number, host: host.into(), port, done: Box::new(done) });
        state.figures.begun += 1;
        if state.figures.running >= self.threads_max {
            state.figures.delayed += 1;
            return Ok(());
        }
        state.figures.running += 1;
        drop(state);
        let own = self.clone();
        let thread = std::thread::Builder::new().name("resolve".to_owned()).stack_size(STACK_BYTES);
        let Err(error) = thread.spawn(move || while own.look_up_next() {}) else { return Ok(()) };
        let mut state = self.lock();
        state.figures.running -= 1;
        if state.figures.running > 0 {
            return Ok(());
        }
        let before = state.waiting.len();
        state.waiting.retain(|lookup| lookup.number != number);
        // Another thread may have taken it meanwhile, and reports.
        if state.waiting.len() < before { Err(error) } else { Ok(()) }
    }

    /// False without another one, where the thread ends.
    fn look_up_next(&self) -> bool {
        let mut state = self.lock();
        let Some(lookup) = state.waiting.pop_front() else {
            state.figures.running -= 1;
            return false;
        };
        drop(state);
        (lookup.done)((self.resolve)(&lookup.host, lookup.port));
        true
    }

    /// A connection that is not opened any more delays no other.
    pub(super) fn forget(&self, number: u64) {
        self.lock().waiting.retain(|lookup| lookup.number != number);
    }

    pub(super) fn forget_all(&self) {
        self.lock().waiting.clear();
    }

    pub(super) fn figures(&self) -> Lookups {
        let state = self.lock();
        Lookups { waiting: state.waiting.len(), ..state.figures }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Condvar, RwLock};

    use super::*;

    static MAY: Mutex<usize> = Mutex::new(0);
    static CHANGED: Condvar = Condvar::new();
    static NAMES: RwLock<Vec<String>> = RwLock::new(Vec::new());

    /// Waits until it may go on.
    fn slow(host: &str, port: u16) -> Found {
        NAMES.write().unwrap().push(host.to_owned());
        let mut may = MAY.lock().unwrap();
        while *may == 0 {
            may = CHANGED.wait(may).unwrap();
        }
        *may -= 1;
        match host {
            "unknown" => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(vec![([127, 0, 0, 1], port).into()]),
        }
    }

    #[test]
    fn a_few_names_are_looked_up_at_a_time_and_the_others_in_their_order() {
        let resolver = Resolver::with(2, slow);
        let (done, found) = channel();
        let names = ["a", "unknown", "c", "d", "e"];
        for (number, name) in names.into_iter().enumerate() {
            let done = done.clone();
            let note = move |found: Found| done.send((name, found.ok())).unwrap();
            resolver.look_up(number as u64, (name, 80), note).unwrap();
        }
        while NAMES.read().unwrap().len() < 2 {
            std::thread::yield_now();
        }
        let figures = resolver.figures();
        assert_eq!(figures, Lookups { running: 2, waiting: 3, begun: 5, delayed: 3 });
        resolver.forget(3);
        *MAY.lock().unwrap() = 4;
        CHANGED.notify_all();
        let mut all: Vec<_> = (0..4).map(|_| found.recv().unwrap()).collect();
        all.sort();
        let here = || Some(vec![([127, 0, 0, 1], 80).into()]);
        assert_eq!(all, [("a", here()), ("c", here()), ("e", here()), ("unknown", None)]);
        let looked_up = NAMES.read().unwrap().clone();
        assert_eq!(looked_up[2..], ["c", "e"]);
        while resolver.figures().running > 0 {
            std::thread::yield_now();
        }
        assert_eq!(resolver.figures(), Lookups { running: 0, waiting: 0, begun: 5, delayed: 3 });
    }
}
