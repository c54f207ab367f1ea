//! [`ErrorShares`]: ejects upstreams whose answers are 5xx too often, over a sliding window. It runs in one
//! thread, so that two ejections at once cannot leave a pool with too few upstreams.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tracing::{info, warn};

use crate::balance::{ErrorEjection, Pool, Upstream, UpstreamState};
use crate::routes::Routes;

/// Interval between judgements.
const EVERY_NS: u64 = 100_000_000;
/// Parts of a window: it is longer than configured by at most one of them.
const PARTS: u64 = 10;

/// The windows of all upstreams whose pools eject by 5xx.
#[derive(Default)]
pub(super) struct ErrorShares {
    windows: BTreeMap<u32, Window>,
    due_ns: u64,
}

impl ErrorShares {
    /// Judges the answers since the last call, if that was long enough ago.
    pub(super) fn poll(&mut self, routes: &Routes, now_ns: u64) {
        if now_ns < self.due_ns {
            return;
        }
        self.due_ns = now_ns + EVERY_NS;
        let mut before = std::mem::take(&mut self.windows);
        for pool in routes.pools() {
            let config = pool.limits().error_ejection;
            if config.percent == 0 {
                continue;
            }
            for upstream in pool.members().iter().map(|member| &member.upstream) {
                let known = before.remove(&upstream.number());
                let known = known.filter(|window| window.config == config);
                let mut window = known.unwrap_or_else(|| Window::new(config, upstream));
                window.judge(pool, upstream, now_ns);
                self.windows.insert(upstream.number(), window);
            }
        }
    }
}

/// The recent answers of one upstream.
struct Window {
    config: ErrorEjection,
    /// Time, answers and errors at the start of each part.
    parts: VecDeque<(u64, u64, u64)>,
    /// Ejections in a row.
    level: u32,
    last_for_ns: u64,
    /// When its ejection ends or has ended.
    until_ns: u64,
    is_out: bool,
    /// An ejection was withheld, and this was logged.
    withheld: bool,
}

impl Window {
    fn new(config: ErrorEjection, upstream: &Upstream) -> Window {
        let until_ns = upstream.errors().ejected_until_ns();
        let (parts, is_out) = (VecDeque::new(), until_ns > 0);
        Window { config, parts, level: 0, last_for_ns: 0, until_ns, is_out, withheld: false }
    }

    fn judge(&mut self, pool: &Pool, upstream: &Upstream, now_ns: u64) {
        if now_ns < self.until_ns {
            self.parts.clear();
            return;
        }
        if std::mem::take(&mut self.is_out) {
            info!("upstream is tried again after its 5xx answers: {}", upstream.label());
        }
        let window_ns = nanoseconds(self.config.window);
        if now_ns.saturating_sub(self.until_ns) >= self.last_for_ns.max(window_ns) {
            self.level = 0;
        }
        let share = self.add(upstream.errors().counts(), now_ns, window_ns);
        let Some((answers, errors)) = share else {
            self.withheld = false;
            return;
        };
        if upstream.state(now_ns) != UpstreamState::Up {
            return;
        }
        let label = upstream.label();
        if !pool.can_spare_one(now_ns) {
            if !std::mem::replace(&mut self.withheld, true) {
                pool.count_withheld();
                warn!(
                    "upstream not ejected: {label}: {errors} of {answers} answers were 5xx, but too few \
                     other upstreams of pool {} are up",
                    pool.name()
                );
            }
            return;
        }
        let first_ns = nanoseconds(self.config.first);
        let for_ns = first_ns.saturating_mul(1 << self.level.min(32));
        let for_ns = for_ns.min(nanoseconds(self.config.longest)).max(1);
        self.level += 1;
        (self.last_for_ns, self.until_ns, self.is_out) = (for_ns, now_ns + for_ns, true);
        self.parts.clear();
        upstream.eject_for_errors(self.until_ns);
        let time = Duration::from_nanos(for_ns);
        warn!("upstream ejected: {label}: {errors} of {answers} answers were 5xx; for {time:?}");
    }

    /// Adds the counts of now. Returns answers and errors in the window if they are enough, and too many.
    fn add(
        &mut self,
        (answers, errors): (u64, u64),
        now_ns: u64,
        window_ns: u64,
    ) -> Option<(u64, u64)> {
        let newest = self.parts.back().map(|(at_ns, ..)| *at_ns);
        if newest.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= window_ns / PARTS) {
            self.parts.push_back((now_ns, answers, errors));
        }
        let begins_ns = now_ns.saturating_sub(window_ns);
        while self.parts.get(1).is_some_and(|(at_ns, ..)| *at_ns <= begins_ns) {
            self.parts.pop_front();
        }
        let (_, answers_before, errors_before) = *self.parts.front()?;
        let (answers, errors) = (answers - answers_before, errors - errors_before);
        let judged = answers >= u64::from(self.config.answers.max(1));
        (judged && errors * 100 >= answers * u64::from(self.config.percent))
            .then_some((answers, errors))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    // Sums with the clock do not overflow.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::balance::{Member, PoolLimits, UpstreamAddress};

    const S: u64 = 1_000_000_000;

    /// A pool of upstreams that count their answers, and how it ejects them.
    fn routes(upstreams: u8, panic_threshold: u8) -> Routes {
        let seconds = Duration::from_secs;
        let (first, longest) = (seconds(2), seconds(5));
        let error_ejection =
            ErrorEjection { percent: 50, window: seconds(1), answers: 10, first, longest };
        let limits = PoolLimits { panic_threshold, error_ejection, ..PoolLimits::default() };
        let member = |number: u8| {
            let address = UpstreamAddress::Tcp(([10, 0, 0, number], 80).into());
            let upstream = Arc::new(Upstream::new(number.into(), "a:80", address, 0));
            upstream.errors().set_counting(true);
            Member { upstream, weight: 1, max_tunnels: u32::MAX, backup: false }
        };
        let members = (0..upstreams).map(member).collect();
        let (balance, state) = (Default::default(), Arc::default());
        Routes::single(Arc::new(Pool::new("p", balance, None, limits, members, state)))
    }

    fn upstream(routes: &Routes, at: usize) -> Arc<Upstream> {
        Arc::clone(&routes.pools()[0].members()[at].upstream)
    }

    #[test]
    fn a_share_of_errors_ejects_for_a_time_that_doubles_up_to_a_bound() {
        let (routes, mut shares) = (routes(2, 1), ErrorShares::default());
        let bad = upstream(&routes, 0);
        let mut now_ns = 100 * S;
        for seconds in [2, 4, 5, 5] {
            now_ns += S / 10;
            shares.poll(&routes, now_ns);
            (0..9).for_each(|_| bad.answered(500));
            now_ns += S / 10;
            shares.poll(&routes, now_ns);
            assert_eq!(bad.state(now_ns), UpstreamState::Up, "too few answers to judge");
            bad.answered(200);
            now_ns += S / 10;
            shares.poll(&routes, now_ns);
            // Answers that were under way do not count.
            (0..100).for_each(|_| bad.answered(502));
            now_ns += seconds * S - 1;
            shares.poll(&routes, now_ns);
            assert_eq!(bad.state(now_ns), UpstreamState::Ejected, "{seconds}");
            now_ns += 1;
            assert_eq!(bad.state(now_ns), UpstreamState::Up, "{seconds}");
        }
        assert_eq!(bad.errors().ejections(), 4);
        // It stays for as long as it was ejected: the next ejection is short again.
        for _ in 0..60 {
            now_ns += S / 10;
            shares.poll(&routes, now_ns);
            bad.answered(200);
        }
        (0..200).for_each(|_| bad.answered(599));
        now_ns += S / 10;
        shares.poll(&routes, now_ns);
        assert_eq!(bad.errors().ejected_until_ns(), now_ns + 2 * S);
    }

    #[test]
    fn only_answers_of_the_window_count() {
        let (routes, mut shares) = (routes(2, 1), ErrorShares::default());
        let upstream = upstream(&routes, 0);
        let mut now_ns = S;
        shares.poll(&routes, now_ns);
        (0..9).for_each(|_| upstream.answered(500));
        for _ in 0..12 {
            now_ns += S / 10;
            shares.poll(&routes, now_ns);
        }
        (0..9).for_each(|_| upstream.answered(500));
        now_ns += S / 10;
        shares.poll(&routes, now_ns);
        assert_eq!(upstream.state(now_ns), UpstreamState::Up);
        assert!(shares.windows[&0].parts.len() <= 12);
    }

    #[test]
    fn a_pool_keeps_the_upstreams_that_panic_threshold_asks_for() {
        for (panic_threshold, ejected) in [(0, 3), (1, 3), (50, 2), (51, 1), (100, 0)] {
            let (routes, mut shares) = (routes(4, panic_threshold), ErrorShares::default());
            let all: Vec<Arc<Upstream>> = (0..4).map(|at| upstream(&routes, at)).collect();
            shares.poll(&routes, S);
            all.iter().for_each(|upstream| (0..20).for_each(|_| upstream.answered(503)));
            for part in 1..5 {
                shares.poll(&routes, S + part * EVERY_NS);
            }
            let states = all.iter().map(|upstream| upstream.state(S + 5 * EVERY_NS));
            let out = states.filter(|state| *state == UpstreamState::Ejected).count();
            assert_eq!(out, ejected, "{panic_threshold} %");
        }
    }
}
