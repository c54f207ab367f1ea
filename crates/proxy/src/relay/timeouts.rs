//! Timeouts of the relay: requests that take too long, and tunnels that are idle, half closed or too
//! old. There is no timer per tunnel: a share of the slots is scanned at intervals.

use std::time::Duration;

use engine::{ConnId, Core, Mode, Sys, invariant};

use super::dispatch::after;
use super::tunnel::{end_tunnel, idle_ns};
use super::{ConnectionKind, Relay};
use crate::access_log::Side;
use crate::counters::{EndReason, Refusal, Stage};

/// Interval between checks of requests in progress.
const EXCHANGES_EVERY_NS: u64 = 50_000_000;
/// Steps of one scan over all slots.
const STEPS: u64 = 64;
/// Minimum and maximum duration of a scan over all slots.
const LAP_MIN_NS: u64 = 200_000_000;
const LAP_MAX_NS: u64 = 20_000_000_000;

/// When the next checks are due.
#[derive(Default)]
pub(super) struct Clock {
    exchanges_ns: u64,
    waiters_ns: u64,
    tunnels_ns: u64,
    slot: u32,
    /// Buffer of exchanges past their deadline.
    due: Vec<u32>,
}

impl Clock {
    /// Makes this turn check the queued requests.
    pub(super) fn check_waiters_now(&mut self) {
        self.waiters_ns = 0;
    }
}

impl Relay {
    /// Runs the checks that are due; returns when the next are.
    pub(super) fn run_timeouts<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        let mut next = self.run_drains(core);
        if !self.exchanges.is_empty() {
            if self.clock.exchanges_ns <= now_ns {
                self.clock.exchanges_ns = now_ns + EXCHANGES_EVERY_NS;
                self.check_exchanges(core);
            }
            next = earlier(next, self.clock.exchanges_ns);
        }
        if !self.waiters.is_empty() {
            if self.clock.waiters_ns <= now_ns {
                // Workers wake each other for released permits; this catches a missed wake-up.
                self.clock.waiters_ns = now_ns + EXCHANGES_EVERY_NS;
                self.check_waiters(core);
            }
            next = earlier(next, self.clock.waiters_ns);
        }
        if !self.idle_connections.is_empty()
            && let Some(at_ns) = self.close_idle_connections(core)
        {
            next = earlier(next, at_ns);
        }
        if core.connections() > 0 {
            if self.clock.tunnels_ns <= now_ns {
                self.clock.tunnels_ns = now_ns + self.lap_ns() / STEPS;
                self.check_tunnels(core);
            }
            next = earlier(next, self.clock.tunnels_ns);
        }
        next
    }

    /// The duration of a scan over all slots: an eighth of the shortest timeout.
    fn lap_ns(&self) -> u64 {
        let timeouts = &self.live.timeouts;
        let (fin, answer) = (Some(timeouts.fin), Some(self.answer_timeouts.0));
        let idle = [timeouts.idle, self.idle_timeouts.shortest()];
        let shortest = idle.into_iter().chain([timeouts.lifetime, fin, answer]);
        let shortest = shortest.flatten().min().unwrap_or(timeouts.fin);
        let lap = u64::try_from(shortest.as_nanos() / 8).unwrap_or(u64::MAX);
        lap.clamp(LAP_MIN_NS, LAP_MAX_NS)
    }

    fn check_exchanges<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let mut due = std::mem::take(&mut self.clock.due);
        self.exchanges.due(core.now_ns(), &mut due);
        for index in due.drain(..) {
            self.exchange_is_due(core, index);
        }
        self.clock.due = due;
    }

    /// Retries the queued requests of each pool in order, until one must keep waiting.
    fn check_waiters<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let (mut next, mut served) = (self.waiters.first(), false);
        while let Some((position, index)) = next {
            self.retry(core, index);
            served |= !self.waiters.contains(position);
            next = self.waiters.after(position);
        }
        if served {
            // There may be a permit for the next one, too, in any worker.
            self.wake_next_waiter(core);
        }
    }

    fn exchange_is_due<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32) {
        let now_ns = core.now_ns();
        if self.check_body(core, index) {
            return;
        }
        let Some(exchange) = self.exchanges.get(index) else { return };
        let late = exchange.deadline_ns <= now_ns;
        if late && exchange.stage == Stage::Sent {
            let queued = exchange.upstream.map_or(0, |upstream| core.queued(upstream));
            if exchange.takes_request(queued) {
                exchange.deadline_ns = after(now_ns, exchange.head_timeout(&self.live.timeouts));
                return;
            }
        }
        if late && exchange.stage == Stage::Answering {
            // The upstream is not read meanwhile: only a client that takes nothing is late.
            let queued = core.queued(exchange.client);
            if exchange.takes_answer(queued) {
                exchange.deadline_ns = after(now_ns, exchange.answer_timeout(&self.live.timeouts));
                return;
            }
        }
        match exchange.stage {
            _ if !late => {}
            Stage::Reading => self.refuse(core, index, Refusal::StalledBody),
            Stage::Waiting => self.refuse(core, index, Refusal::Busy),
            Stage::Connecting => {
                self.abandon_upstream(core, index);
                self.retry(core, index);
            }
            Stage::Sent => {
                // All received body bytes were sent: the client has stalled, unless it must wait.
                let stalled = !exchange.request.is_done()
                    && !exchange.awaits_continue
                    && exchange.upstream.is_some_and(|upstream| core.queued(upstream) == 0);
                self.abandon_upstream(core, index);
                let why = if stalled { Refusal::StalledBody } else { Refusal::NoAnswer };
                self.refuse(core, index, why);
            }
            Stage::Answering => self.truncate_answer(core, index, (Side::Proxy, "answer_timeout")),
        }
    }

    fn check_tunnels<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let slots = core.slots();
        let share = slots.div_ceil(STEPS as u32).max(1);
        if self.clock.slot >= slots {
            self.clock.slot = 0;
        }
        let from = self.clock.slot;
        let to = from.saturating_add(share).min(slots);
        self.clock.slot = to;
        for slot in from..to {
            let Some(id) = core.id_at(slot) else { continue };
            match core.user(id) {
                Some(ConnectionKind::TunnelClient(_)) => self.check_tunnel(core, id),
                Some(&ConnectionKind::FlushingClient(flushing)) => {
                    self.check_flushing(core, id, flushing.timeout);
                }
                _ => {}
            }
        }
    }

    fn check_tunnel<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let Some(ConnectionKind::TunnelClient(client_leg)) = core.user(id) else {
            return invariant::broken("a tunnel that is checked has a client leg");
        };
        let timeouts = &self.live.timeouts;
        let (silent, upstream_leg) = (idle_ns(core, id, client_leg.peer), client_leg.peer);
        let half =
            [id, upstream_leg].into_iter().any(|leg| core.mode(leg) == Some(Mode::HalfClosed));
        let age_ns = client_leg.age_ns(core.now_ns());
        let idle = self.idle_timeouts.get(client_leg.idle_timeout, timeouts.idle);
        let longer = |limit: Duration| u128::from(silent) >= limit.as_nanos();
        let why = if half && longer(timeouts.fin) {
            Some(EndReason::Fin)
        } else if idle.is_some_and(longer) {
            Some(EndReason::Idle)
        } else if timeouts.lifetime.is_some_and(|limit| age_ns >= spread(limit, id)) {
            Some(EndReason::Lifetime)
        } else {
            None
        };
        if let Some(why) = why {
            end_tunnel(core, self.counters(), id, why);
        }
    }

    /// Resets a client that does not read the end of its response.
    fn check_flushing<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        of_route: Option<Duration>,
    ) {
        // A route that a reload has changed may have had a longer one than the idle clock measures now.
        let limit = of_route.unwrap_or(self.live.timeouts.answer).min(self.answer_timeouts.1);
        let limit = limit.as_nanos();
        if core.idle_at_least_ns(id).is_some_and(|silent| u128::from(silent) >= limit) {
            core.reset(id);
        }
    }
}

fn earlier(next: Option<u64>, other: u64) -> Option<u64> {
    Some(next.map_or(other, |next| next.min(other)))
}

/// A lifetime of 90 % to 110 %, fixed per tunnel, so that tunnels opened together do not end together.
fn spread(lifetime: Duration, id: ConnId) -> u64 {
    let mixed = id.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    let time_ns = u64::try_from(lifetime.as_nanos()).unwrap_or(u64::MAX);
    (time_ns - time_ns / 10).saturating_add(time_ns / 5 / 1024 * mixed)
}

#[cfg(test)]
mod tests {
    use super::super::idle_timeouts::IdleTimeout;
    use super::super::tunnel::ClientLeg;
    use super::*;
    use std::sync::Arc;

    use crate::balance::{Upstream, UpstreamAddress};

    #[test]
    fn lifetimes_are_spread_and_constant_per_tunnel() {
        let of = |seconds, number: u64| {
            spread(Duration::from_secs(seconds), ConnId::from_u64(number << 32 | number))
        };
        let all: Vec<u64> = (0..1_000).map(|number| of(2, number)).collect();
        let expected = 1_800_000_000..=2_200_000_000;
        assert!(all.iter().all(|time_ns| expected.contains(time_ns)), "{all:?}");
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert!(distinct.len() > 100, "{}", distinct.len());
        let again: Vec<u64> = (0..1_000).map(|number| of(2, number)).collect();
        assert_eq!(all, again);
    }

    #[test]
    fn the_age_of_a_tunnel_is_never_overestimated() {
        let address = UpstreamAddress::Tcp(([127, 0, 0, 1], 80).into());
        let upstream = Arc::new(Upstream::new(1, "127.0.0.1:80", address, 0));
        for began_ns in (0..2_000_000_000).step_by(9_999_991) {
            let permit = upstream.acquire(1).unwrap();
            let client_leg =
                ClientLeg::new(ConnId::from_u64(0), permit, began_ns, IdleTimeout::default());
            for real_ns in [0, 1_000_000, 62_500_000, 900_000_000, 7_000_000_000_000_000] {
                let age_ns = client_leg.age_ns(began_ns + real_ns);
                assert!(age_ns <= real_ns, "{age_ns} of {real_ns}");
                assert!(age_ns + 62_500_000 >= real_ns, "{age_ns} of {real_ns}");
            }
        }
    }
}
