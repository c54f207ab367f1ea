//! [`Watchdog`]: notices workers whose event loop has stopped turning.
//!
//! Workers already count their turns, so a busy worker pays nothing. One that has not turned since the
//! last look may be idle or stuck: it is woken, and if that leads to no turn, it is stuck.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine::Remote;
use engine::sys::process::now_ns;
use serde_json::Value;
use tracing::{info, warn};

use crate::{Exposition, Kind};

/// Time without a turn after which a worker counts as stalled.
const STALL: Duration = Duration::from_secs(5);
/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Watches the workers of one process.
#[derive(Debug)]
pub struct Watchdog {
    stall: Duration,
    interval: Duration,
    looked_ns: AtomicU64,
    stalls: AtomicU64,
    workers: Box<[Watched]>,
}

#[derive(Debug, Default)]
struct Watched {
    /// Turns at the last look.
    turns: AtomicU64,
    /// When it was woken to see whether it turns; 0 while it does.
    woken_ns: AtomicU64,
    /// It is stalled, and that has been logged.
    logged: AtomicBool,
}

impl Watchdog {
    /// For this many workers, with the usual times.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self::with_times(workers, STALL, INTERVAL)
    }

    fn with_times(workers: usize, stall: Duration, interval: Duration) -> Self {
        let workers = (0..workers).map(|_| Watched::default()).collect();
        let (looked_ns, stalls) = (AtomicU64::new(0), AtomicU64::new(0));
        Watchdog { stall, interval, looked_ns, stalls, workers }
    }

    /// Looks at every worker, wakes those that have not turned since the last look, and logs those
    /// that stall or turn again. Called by one thread; calls within the interval have no effect.
    pub(crate) fn look<P>(&self, remote: &Remote<P>) {
        let now_ns = now_ns();
        let since_ns = now_ns.saturating_sub(self.looked_ns.load(Ordering::Relaxed));
        if Duration::from_nanos(since_ns) < self.interval {
            return;
        }
        self.looked_ns.store(now_ns, Ordering::Relaxed);
        for (worker, (watched, counters)) in self.workers.iter().zip(remote.counters()).enumerate()
        {
            let turns = counters.turns.get();
            if turns == 0 {
                // It has not started: further workers start when descriptor tables fill.
                continue;
            }
            let woken_ns = watched.woken_ns.load(Ordering::Relaxed);
            if turns != watched.turns.load(Ordering::Relaxed) {
                watched.woken_ns.store(0, Ordering::Relaxed);
                watched.turns.store(turns, Ordering::Relaxed);
                if watched.logged.swap(false, Ordering::Relaxed) {
                    let seconds = Duration::from_nanos(now_ns.saturating_sub(woken_ns)).as_secs();
                    info!("worker {worker} responds again after {seconds} s");
                }
            } else if woken_ns == 0 {
                watched.woken_ns.store(now_ns, Ordering::Relaxed);
                remote.wake(worker);
            } else if Duration::from_nanos(now_ns.saturating_sub(woken_ns)) >= self.stall
                && !watched.logged.swap(true, Ordering::Relaxed)
            {
                self.stalls.fetch_add(1, Ordering::Relaxed);
                let seconds = self.stall.as_secs();
                warn!("worker {worker} has not responded for {seconds} s: /ready answers 503");
            }
        }
    }

    /// The stalled workers, each with the time since it was woken in vain.
    pub fn stalled<P>(&self, remote: &Remote<P>) -> impl Iterator<Item = (usize, Duration)> {
        let now_ns = now_ns();
        let each = self.workers.iter().zip(remote.counters()).enumerate();
        each.filter_map(move |(worker, (watched, counters))| {
            let woken_ns = watched.woken_ns.load(Ordering::Relaxed);
            let waited = Duration::from_nanos(now_ns.saturating_sub(woken_ns));
            let turned = counters.turns.get() != watched.turns.load(Ordering::Relaxed);
            (woken_ns > 0 && !turned && waited >= self.stall).then_some((worker, waited))
        })
    }

    /// How often a worker has stalled.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Writes its metrics.
    pub fn metrics<P>(&self, remote: &Remote<P>, exposition: &mut Exposition) {
        let stalled = self.stalled(remote).count() as f64;
        let help = "Workers that have not responded for 5 s.";
        exposition.single("workers_stalled", Kind::Gauge, help, stalled);
        let help = "Times that a worker did not respond for 5 s.";
        exposition.single("worker_stalls", Kind::Counter, help, self.stalls() as f64);
    }

    /// The same figures as members of a JSON object.
    pub fn stats<P>(&self, remote: &Remote<P>) -> [(String, Value); 2] {
        [
            ("workers_stalled".to_owned(), self.stalled(remote).count().into()),
            ("worker_stalls".to_owned(), self.stalls().into()),
        ]
    }

    /// Status and body of `/ready`.
    #[must_use]
    pub fn readiness<P>(&self, remote: &Remote<P>, draining: bool) -> (u16, String) {
        if draining {
            return (503, "draining\n".to_owned());
        }
        match self.stalled(remote).next() {
            Some((worker, waited)) => {
                let seconds = waited.as_secs();
                (503, format!("worker {worker} has not responded for {seconds} s\n"))
            }
            None => (200, "ready\n".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use engine::{
        Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Sys, Tables, Workers,
    };

    use wire::websocket::OpCode;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A post makes its worker wait for the test.
    struct Stops;

    struct Stop {
        stopped: Sender<()>,
        go_on: Receiver<()>,
    }

    impl Handler for Stops {
        type Post = Stop;
        type User = ();

        fn request<S: Sys>(
            &mut self,
            _: &mut Core<S, Self>,
            _: ConnId,
            _: &Incoming<'_, '_>,
        ) -> Answer {
            Answer::Upgrade(None)
        }

        fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

        fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

        fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

        fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, post: Stop) {
            let _ = post.stopped.send(());
            post.go_on.recv_timeout(PATIENCE).unwrap();
        }
    }

    fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = now_ns() + PATIENCE.as_nanos() as u64;
        while !condition() {
            assert!(now_ns() < deadline, "gave up waiting until {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_worker_that_does_not_turn_is_stalled_and_an_idle_one_is_not() {
        let plan = Plan { workers: 2, accepting: 2, capacity: 16, tables: Tables::Shared };
        let workers = Workers::start(plan, &Limits::default(), &[], |_, _: &_| Stops).unwrap();
        let remote = workers.remote().clone();
        let watchdog = Watchdog::with_times(2, Duration::from_secs(3), Duration::from_millis(10));
        let stalled = || {
            watchdog.look(&remote);
            watchdog.stalled(&remote).map(|(worker, _)| worker).collect::<Vec<_>>()
        };
        for worker in 0..2 {
            // A worker starts with its first post.
            let (stopped, _has_stopped) = channel();
            let (go_on, may_go_on) = channel();
            go_on.send(()).unwrap();
            assert!(remote.post(worker, Stop { stopped, go_on: may_go_on }, 0).is_ok());
        }
        eventually("the idle workers were woken and turned", || {
            assert!(stalled().is_empty(), "idle is not stalled");
            remote.counters().all(|counters| counters.turns.get() > 20)
        });
        assert_eq!(watchdog.readiness(&remote, false), (200, "ready\n".to_owned()));
        assert_eq!(watchdog.readiness(&remote, true).0, 503);

        let (stopped, has_stopped) = channel();
        let (go_on, may_go_on) = channel();
        let stop = Stop { stopped, go_on: may_go_on };
        assert!(remote.post(1, stop, 0).is_ok());
        has_stopped.recv_timeout(PATIENCE).unwrap();
        eventually("worker 1 is stalled", || stalled() == [1]);
        let (status, body) = watchdog.readiness(&remote, false);
        assert!(status == 503 && body.starts_with("worker 1 has not responded for "), "{body}");
        eventually("it is counted", || {
            stalled();
            watchdog.stalls() == 1
        });
        go_on.send(()).unwrap();
        eventually("it turns again", || stalled().is_empty());
        eventually("ready", || watchdog.readiness(&remote, false).0 == 200);
        workers.drain(Duration::ZERO).unwrap();
    }
}
