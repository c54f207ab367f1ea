//! [`Concurrency`]: how many calls the application gets at a time. Either a fixed number, or one that
//! follows the application's latency: it grows by steps while calls wait and are answered as fast as
//! before, and falls by a share once the application itself lets them wait (additive increase,
//! multiplicative decrease). Now and then it is the least for a moment, which shows how fast the
//! application is when nothing waits in it. It has no clock.

use super::call::Method;

/// The adaptive limit at first, and its bounds.
const START: f64 = 25.0;
const LEAST: f64 = 5.0;
const MOST: f64 = 100.0;
/// Added at the end of a window in which calls waited.
const STEP: f64 = 2.0;
/// What is left of it after a window with congestion.
const DECREASE: f64 = 0.75;
/// The shortest window, in nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// Time after which the application may have another least latency, in nanoseconds.
const EPOCH_NS: u64 = 10_000_000_000;
/// Congestion: even the fastest call of a window took this many times the least latency, and this many
/// nanoseconds more.
const SLOWER: u64 = 2;
const SLACK_NS: u64 = 5_000_000;
/// Calls of a method in a window before they are judged.
const SAMPLES_MIN: u32 = 3;

/// The limit of calls at a time.
#[derive(Debug)]
pub(crate) struct Concurrency {
    limit: f64,
    fixed: bool,
    window: Window,
    /// The limit after this window, in which it is the least.
    probing: Option<f64>,
    next_probe_ns: u64,
    /// By method: a method with slower calls does not make the others look slow.
    least: [Least; Method::ALL.len()],
}

/// What was measured since the last change.
#[derive(Debug, Default)]
struct Window {
    began_ns: u64,
    done: u32,
    failed: u32,
    /// A call waited for another one to end.
    short: bool,
    fastest: [(u32, u64); Method::ALL.len()],
}

/// The least latency of the last one to two epochs.
#[derive(Debug, Default, Clone, Copy)]
struct Least {
    since_ns: u64,
    now: Option<u64>,
    before: Option<u64>,
}

impl Least {
    fn record(&mut self, now_ns: u64, latency_ns: u64) {
        if now_ns.saturating_sub(self.since_ns) >= EPOCH_NS {
            *self = Least { since_ns: now_ns, now: None, before: self.now };
        }
        self.now = Some(self.now.map_or(latency_ns, |least| least.min(latency_ns)));
    }

    fn get(&self) -> Option<u64> {
        self.now.into_iter().chain(self.before).min()
    }
}

impl Concurrency {
    /// A fixed number, at least 1, or an adaptive one.
    pub(crate) fn new(fixed: Option<u32>) -> Self {
        Concurrency {
            limit: fixed.map_or(START, |limit| f64::from(limit.max(1))),
            fixed: fixed.is_some(),
            window: Window::default(),
            probing: None,
            next_probe_ns: 0,
            least: Default::default(),
        }
    }

    /// The limit now.
    pub(crate) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// A call waits because the limit is reached.
    pub(crate) fn reached(&mut self) {
        self.window.short = true;
    }

    /// Records the end of a call. `failed`: the application refused it for load, or did not answer in
    /// time; then the latency says nothing.
    pub(crate) fn record(&mut self, now_ns: u64, method: Method, latency_ns: u64, failed: bool) {
        if self.fixed {
            return;
        }
        let window = &mut self.window;
        window.done += 1;
        if failed {
            window.failed += 1;
        } else {
            let (samples, fastest) = &mut window.fastest[method as usize];
            *fastest = if *samples == 0 { latency_ns } else { latency_ns.min(*fastest) };
            *samples += 1;
        }
        // What ran before the probe has waited in the application.
        let needed = self.probing.map_or(self.limit / 2.0, |before| before + LEAST);
        let enough = f64::from(window.done) >= needed;
        if enough && now_ns.saturating_sub(window.began_ns) >= WINDOW_NS {
            self.end_window(now_ns);
        }
    }

    fn end_window(&mut self, now_ns: u64) {
        let window = std::mem::take(&mut self.window);
        self.window.began_ns = now_ns;
        let mut congested = u64::from(window.failed) * 10 > u64::from(window.done);
        for ((samples, fastest), least) in window.fastest.into_iter().zip(&mut self.least) {
            if samples == 0 {
                continue;
            }
            let before = least.get();
            congested |= samples >= SAMPLES_MIN
                && before.is_some_and(|before| fastest > SLOWER * before + SLACK_NS);
            least.record(now_ns, fastest);
        }
        if let Some(before) = self.probing.take() {
            self.limit = before;
            self.next_probe_ns = now_ns.saturating_add(EPOCH_NS);
        } else if window.short && now_ns >= self.next_probe_ns {
            self.probing = Some(std::mem::replace(&mut self.limit, LEAST));
        } else if congested {
            self.limit = (self.limit * DECREASE).max(LEAST);
        } else if window.short {
            self.limit = (self.limit + STEP).min(MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Runs calls that always wait against an application that answers `slots` at a time in `service`
    /// each, first come first served. Returns the limit at the end, and the calls answered in the second
    /// half as a share of what it can answer.
    fn run(slots: usize, service_ns: u64, seconds: u64) -> (usize, f64) {
        let mut concurrency = Concurrency::new(None);
        let mut free = vec![0u64; slots];
        let mut running: Vec<(u64, u64)> = Vec::new();
        let (mut now, end, mut answered) = (0, seconds * 1000 * MS, 0u64);
        while now < end {
            while running.len() < concurrency.limit() {
                let slot = (0..slots).min_by_key(|slot| free[*slot]).unwrap();
                free[slot] = free[slot].max(now) + service_ns;
                running.push((free[slot], now));
            }
            concurrency.reached();
            let next = (0..running.len()).min_by_key(|at| running[*at].0).unwrap();
            let (done, began) = running.swap_remove(next);
            now = done;
            answered += u64::from(now > end / 2);
            concurrency.record(now, Method::Command, now - began, false);
        }
        let most = slots as f64 * (end / 2) as f64 / service_ns as f64;
        (concurrency.limit(), answered as f64 / most)
    }

    #[test]
    fn it_finds_the_concurrency_of_an_application_and_keeps_it_busy() {
        for (slots, service) in [(5, 20), (28, 20), (60, 20), (28, 200)] {
            let (limit, share) = run(slots, service * MS, 60);
            assert!(share > 0.95, "{slots} slots: limit {limit}, {share}");
            assert!(limit <= 3 * slots, "{slots} slots: limit {limit}");
        }
        let (limit, share) = run(500, 20 * MS, 20);
        assert!(limit == 100 && share > 0.19, "the most: limit {limit}, {share}");
    }

    #[test]
    fn failures_reduce_it_to_the_least_and_it_recovers() {
        let mut concurrency = Concurrency::new(None);
        let mut now = 0;
        let mut calls = |concurrency: &mut Concurrency, failed| {
            for _ in 0..5_000 {
                now += 5 * MS;
                concurrency.reached();
                concurrency.record(now, Method::Connect, 20 * MS, failed);
            }
        };
        calls(&mut concurrency, true);
        assert_eq!(concurrency.limit(), 5);
        calls(&mut concurrency, false);
        assert_eq!(concurrency.limit(), 100);
    }

    #[test]
    fn it_does_not_grow_while_nothing_waits() {
        let mut concurrency = Concurrency::new(None);
        for at in 0..10_000 {
            concurrency.record(at * MS, Method::Command, MS, false);
        }
        assert_eq!(concurrency.limit(), 25);
    }

    proptest! {
        #[test]
        fn it_stays_within_its_bounds(
            calls in proptest::collection::vec((0..500u64, 0..3usize, 0..4000u64, any::<bool>()), 1..2000),
            fixed in proptest::option::of(0..1000u32),
        ) {
            let mut concurrency = Concurrency::new(fixed);
            let mut now = 0;
            for (pause, method, latency, failed) in calls {
                now += pause * MS;
                concurrency.reached();
                concurrency.record(now, Method::ALL[method], latency * MS, failed);
                match fixed {
                    Some(fixed) => prop_assert_eq!(concurrency.limit(), fixed.max(1) as usize),
                    None => prop_assert!((5..=100).contains(&concurrency.limit())),
                }
            }
        }
    }
}
