//! Draining: closing tunnels by order, spread over time: those of an upstream, a percentage or a
//! number.
//!
//! A [`DrainOrder`] goes to every worker. Each worker reports how many of its tunnels match, takes its
//! proportional part and closes it evenly over the time ([`Drains`]). The proxy does not follow frames
//! in tunnels, so clients see the TCP stream end without a close frame, which browsers report as 1006.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::balance::Upstream;

/// Maximum number of drains at a time; the API refuses more.
pub(crate) const ORDERS_MAX: usize = 256;
/// Tunnels closed and slots scanned in one turn, by all drains together. Each drain gets an equal
/// part, but at least the second number.
const ENDED_PER_TURN: (u64, u64) = (64, 1);
const SLOTS_PER_TURN: (u32, u32) = (16 * 1024, 256);
/// How long a worker waits for the others to report their matching tunnels.
const REPORT_WAIT_NS: u64 = 1_000_000_000;
const REPORT_POLL_NS: u64 = 5_000_000;

/// The tunnels that a drain applies to.
#[derive(Clone, Debug)]
pub enum DrainTarget {
    /// All tunnels.
    All,
    /// Tunnels to these upstreams, by number.
    Upstreams(Box<[u32]>),
    /// Tunnels to upstreams that are drained or removed.
    Closing(Box<[ClosingUpstream]>),
}

/// An upstream whose tunnels are closed until it is resumed or added again, or until the next such order.
#[derive(Clone, Debug)]
pub struct ClosingUpstream {
    upstream: Arc<Upstream>,
    order: u32,
}

impl ClosingUpstream {
    /// Tunnels that open from now on are closed at once.
    pub(crate) fn new(upstream: &Arc<Upstream>) -> Self {
        ClosingUpstream { upstream: Arc::clone(upstream), order: upstream.set_closing() }
    }

    fn is(&self, number: u32) -> bool {
        self.upstream.number() == number && self.upstream.is_closed_by(self.order)
    }
}

/// How many of the matching tunnels to close.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum DrainAmount {
    /// A share in hundredths of a percent; 10,000 is all.
    Share(u32),
    /// A number.
    Count(u64),
}

impl fmt::Display for DrainAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DrainAmount::Share(share) => write!(f, "{} %", f64::from(*share) / 100.0),
            DrainAmount::Count(count) => write!(f, "{count}"),
        }
    }
}

/// An order to close tunnels, shared by the workers.
#[derive(Debug)]
pub struct DrainOrder {
    target: DrainTarget,
    amount: DrainAmount,
    began_ns: u64,
    over_ns: u64,
    workers: AtomicU32,
    reported: AtomicU32,
    matching: AtomicU64,
    ended: AtomicU64,
}

impl DrainOrder {
    /// Creates an order that begins now.
    #[must_use]
    pub fn new(target: DrainTarget, amount: DrainAmount, over: Duration, now_ns: u64) -> Self {
        DrainOrder {
            target,
            amount,
            began_ns: now_ns,
            over_ns: u64::try_from(over.as_nanos()).unwrap_or(u64::MAX),
            workers: AtomicU32::new(0),
            reported: AtomicU32::new(0),
            matching: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    /// Sets how many workers got the order; they wait until it is known.
    pub(crate) fn sent_to(&self, workers: u32) {
        self.workers.store(workers, Ordering::Release);
    }

    /// Tunnels closed so far.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn matches(&self, upstream: u32) -> bool {
        match &self.target {
            DrainTarget::All => true,
            DrainTarget::Upstreams(numbers) => numbers.contains(&upstream),
            DrainTarget::Closing(upstreams) => upstreams.iter().any(|one| one.is(upstream)),
        }
    }

    /// How many to close in total, once all workers have reported.
    fn budget(&self) -> Option<u64> {
        let workers = self.workers.load(Ordering::Acquire);
        let all = workers > 0 && self.reported.load(Ordering::Acquire) >= workers;
        all.then(|| self.amount_of(self.matching.load(Ordering::Relaxed)))
    }

    /// How many of `matching` tunnels to close, rounded up.
    fn amount_of(&self, matching: u64) -> u64 {
        match self.amount {
            DrainAmount::Share(share) => {
                (matching.saturating_mul(u64::from(share.min(10_000)))).div_ceil(10_000)
            }
            DrainAmount::Count(count) => count.min(matching),
        }
    }

    /// The part of one worker, rounded up; the budget prevents an excess.
    fn part(&self, own: u64, budget: u64) -> u64 {
        let matching = self.matching.load(Ordering::Relaxed).max(1);
        let part = (u128::from(own) * u128::from(budget)).div_ceil(u128::from(matching));
        u64::try_from(part).unwrap_or(u64::MAX).min(own)
    }

    /// Takes one from the budget, if any is left.
    fn grant(&self, budget: u64) -> bool {
        let more = |ended| (ended < budget).then_some(ended + 1);
        self.ended.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// The orders that workers are still executing, for the API.
#[derive(Default)]
pub(crate) struct ActiveDrains(Vec<Weak<DrainOrder>>);

impl ActiveDrains {
    /// Whether another order may start.
    pub(crate) fn has_room(&mut self) -> bool {
        // Each worker holds the order until its part is done.
        self.0.retain(|order| order.strong_count() > 0);
        self.0.len() < ORDERS_MAX
    }

    pub(crate) fn add(&mut self, order: &Arc<DrainOrder>) {
        self.0.push(Arc::downgrade(order));
    }
}

/// The tunnels of one worker, by slot.
pub(crate) trait Tunnels {
    /// One more than the highest slot in use.
    fn slots(&self) -> u32;
    /// The upstream of the tunnel in a slot, if it holds a tunnel's client leg.
    fn upstream_at(&self, slot: u32) -> Option<u32>;
    /// Closes that tunnel.
    fn end(&mut self, slot: u32);
}

/// One order at one worker.
struct Drain {
    order: Arc<DrainOrder>,
    own: u64,
    /// How many this worker closes, once it is known.
    part: Option<u64>,
    done: u64,
    slot: u32,
    /// Full scans of the slots since a match was found.
    laps: u32,
}

/// The orders of one worker.
#[derive(Default)]
pub(crate) struct Drains(Vec<Drain>);

impl Drains {
    /// Accepts an order and reports how many tunnels match here.
    pub(crate) fn take(&mut self, order: Arc<DrainOrder>, tunnels: &impl Tunnels) {
        let matching =
            |slot: &u32| tunnels.upstream_at(*slot).is_some_and(|upstream| order.matches(upstream));
        let own = (0..tunnels.slots()).filter(matching).count() as u64;
        order.matching.fetch_add(own, Ordering::Relaxed);
        order.reported.fetch_add(1, Ordering::Release);
        if own == 0 {
            return;
        }
        self.0.push(Drain { order, own, part: None, done: 0, slot: 0, laps: 0 });
    }

    /// Closes the tunnels that are due; returns when the next is due.
    pub(crate) fn turn(&mut self, now_ns: u64, tunnels: &mut impl Tunnels) -> Option<u64> {
        let mut next = None;
        let orders = u32::try_from(self.0.len()).unwrap_or(u32::MAX).max(1);
        let most = (ENDED_PER_TURN.0 / u64::from(orders)).max(ENDED_PER_TURN.1);
        let scans = (SLOTS_PER_TURN.0 / orders).max(SLOTS_PER_TURN.1);
        self.0.retain_mut(|drain| {
            let again = drain.turn(now_ns, (most, scans), tunnels);
            next = [next, again].into_iter().flatten().min();
            again.is_some()
        });
        next
    }
}

impl Drain {
    /// Returns the time of its next turn; `None` when it is done.
    fn turn(
        &mut self,
        now_ns: u64,
        (most, mut scans): (u64, u32),
        tunnels: &mut impl Tunnels,
    ) -> Option<u64> {
        let Some((part, budget)) = self.part(now_ns) else { return Some(now_ns + REPORT_POLL_NS) };
        let due = self.due(part, now_ns).saturating_sub(self.done).min(most);
        for _ in 0..due {
            let Some(slot) = self.find(tunnels, &mut scans) else {
                // Two full scans without a match: the tunnels have ended.
                return (self.laps < 2).then_some(now_ns);
            };
            if !self.order.grant(budget) {
                return None;
            }
            self.done += 1;
            tunnels.end(slot);
        }
        (self.done < part).then(|| self.next_ns(part).max(now_ns))
    }

    fn part(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let late = now_ns.saturating_sub(self.order.began_ns) > REPORT_WAIT_NS;
        let matching = self.order.matching.load(Ordering::Relaxed);
        let budget =
            self.order.budget().or_else(|| late.then(|| self.order.amount_of(matching)))?;
        let part = *self.part.get_or_insert_with(|| self.order.part(self.own, budget));
        Some((part, budget))
    }

    /// How many should be closed by now.
    fn due(&self, part: u64, now_ns: u64) -> u64 {
        let passed = now_ns.saturating_sub(self.order.began_ns);
        if passed >= self.order.over_ns {
            return part;
        }
        let due = u128::from(part) * u128::from(passed) / u128::from(self.order.over_ns);
        u64::try_from(due).unwrap_or(part)
    }

    /// When the next is due.
    fn next_ns(&self, part: u64) -> u64 {
        let next = u128::from(self.order.over_ns) * u128::from(self.done + 1);
        let after = u64::try_from(next.div_ceil(u128::from(part.max(1)))).unwrap_or(u64::MAX);
        self.order.began_ns.saturating_add(after)
    }

    /// The next slot with a matching tunnel.
    fn find(&mut self, tunnels: &impl Tunnels, scans: &mut u32) -> Option<u32> {
        while *scans > 0 && self.laps < 2 {
            if self.slot >= tunnels.slots() {
                self.slot = 0;
                self.laps += 1;
                continue;
            }
            let slot = self.slot;
            (self.slot, *scans) = (slot + 1, *scans - 1);
            if tunnels.upstream_at(slot).is_some_and(|upstream| self.order.matches(upstream)) {
                self.laps = 0;
                return Some(slot);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream numbers by slot.
    struct Slots(Vec<Option<u32>>);

    impl Tunnels for Slots {
        fn slots(&self) -> u32 {
            self.0.len() as u32
        }
        fn upstream_at(&self, slot: u32) -> Option<u32> {
            self.0[slot as usize]
        }
        fn end(&mut self, slot: u32) {
            assert!(self.0[slot as usize].take().is_some());
        }
    }

    impl Slots {
        fn left(&self, upstream: u32) -> usize {
            self.0.iter().filter(|slot| **slot == Some(upstream)).count()
        }
    }

    const SECOND: u64 = 1_000_000_000;

    /// Two workers with tunnels to three upstreams each, and an order to both.
    fn ordered(order: DrainOrder) -> (Arc<DrainOrder>, Vec<(Drains, Slots)>) {
        let order = Arc::new(order);
        let mut workers = Vec::new();
        for tunnels in [300u32, 100] {
            // Every other slot is a client's leg.
            let slots = (0..2 * tunnels).map(|n| (n % 2 == 0).then_some(n / 2 % 3)).collect();
            let mut worker = (Drains::default(), Slots(slots));
            worker.0.take(Arc::clone(&order), &worker.1);
            workers.push(worker);
        }
        order.sent_to(2);
        (order, workers)
    }

    /// Runs until all workers are done; returns the time of the last turn and the count at `half_ns`.
    fn play(workers: &mut [(Drains, Slots)], order: &DrainOrder, half_ns: u64) -> (u64, u64) {
        let (mut now_ns, mut by_half) = (0, 0);
        loop {
            let turns = workers.iter_mut().map(|(drains, slots)| drains.turn(now_ns, slots));
            let next = turns.collect::<Vec<_>>().into_iter().flatten().min();
            if now_ns <= half_ns {
                by_half = order.ended();
            }
            match next {
                Some(next) => now_ns = next.max(now_ns + 1),
                None => return (now_ns, by_half),
            }
        }
    }

    #[test]
    fn a_drain_closes_all_tunnels_of_one_upstream_evenly() {
        let over = Duration::from_secs(10);
        let (order, mut workers) = ordered(DrainOrder::new(
            DrainTarget::Upstreams([1].into()),
            DrainAmount::Share(10_000),
            over,
            0,
        ));
        let (last_ns, by_half) = play(&mut workers, &order, 5 * SECOND);
        assert_eq!(order.ended(), 133);
        assert!((64..=68).contains(&by_half), "{by_half}");
        assert!((9 * SECOND..=10 * SECOND).contains(&last_ns), "{last_ns}");
        for (_, slots) in &workers {
            assert_eq!(slots.left(1), 0);
            assert!(
                slots.left(0) > 30 && slots.left(2) > 30,
                "tunnels to other upstreams are kept"
            );
        }
    }

    #[test]
    fn a_share_or_a_number_is_closed_exactly() {
        for (amount, ended) in [
            (DrainAmount::Share(1_000), 40),
            (DrainAmount::Share(1), 1),
            (DrainAmount::Count(7), 7),
            (DrainAmount::Count(1_000), 400),
            (DrainAmount::Count(0), 0),
        ] {
            let (order, mut workers) =
                ordered(DrainOrder::new(DrainTarget::All, amount, Duration::from_secs(1), 0));
            play(&mut workers, &order, 0);
            let left: usize = workers.iter().map(|w| w.1.0.iter().flatten().count()).sum();
            assert_eq!((order.ended(), left), (ended, 400 - ended as usize), "{amount:?}");
        }
    }

    #[test]
    fn the_maximum_number_of_drains_run_concurrently() {
        let orders = ORDERS_MAX as u32;
        let mut worker =
            (Drains::default(), Slots((0..4 * orders).map(|n| Some(n % orders)).collect()));
        for upstream in 0..orders {
            let (target, over) =
                (DrainTarget::Upstreams([upstream].into()), Duration::from_secs(3));
            let order = Arc::new(DrainOrder::new(target, DrainAmount::Share(10_000), over, 0));
            worker.0.take(Arc::clone(&order), &worker.1);
            order.sent_to(1);
        }
        let mut now_ns = 0;
        while let Some(next) = worker.0.turn(now_ns, &mut worker.1) {
            now_ns = next.max(now_ns + 1);
        }
        assert_eq!(worker.1.0.iter().flatten().count(), 0, "no drain starves");
        assert!((2 * SECOND..4 * SECOND).contains(&now_ns), "{now_ns}");
    }

    #[test]
    fn each_worker_closes_its_part() {
        let (order, mut workers) = ordered(DrainOrder::new(
            DrainTarget::All,
            DrainAmount::Share(5_000),
            Duration::ZERO,
            0,
        ));
        play(&mut workers, &order, 0);
        let left: Vec<usize> = workers.iter().map(|w| w.1.0.iter().flatten().count()).collect();
        assert_eq!(left, [150, 50]);
    }

    #[test]
    fn a_worker_that_does_not_report_delays_the_others_briefly() {
        let order = DrainOrder::new(
            DrainTarget::All,
            DrainAmount::Share(10_000),
            Duration::from_secs(3),
            0,
        );
        let (order, mut workers) = ordered(order);
        order.sent_to(3);
        let (last_ns, by_wait) = play(&mut workers, &order, REPORT_WAIT_NS);
        assert_eq!(by_wait, 0);
        assert!(last_ns <= 3 * SECOND + 1, "{last_ns}");
        assert_eq!(workers.iter().map(|w| w.1.0.iter().flatten().count()).sum::<usize>(), 0);
    }

    #[test]
    fn a_drain_ends_when_its_tunnels_have_ended() {
        let over = Duration::from_secs(1);
        let (order, mut workers) =
            ordered(DrainOrder::new(DrainTarget::All, DrainAmount::Share(10_000), over, 0));
        for (_, slots) in &mut workers {
            slots.0.fill(None);
        }
        play(&mut workers, &order, 0);
        assert_eq!(order.ended(), 0);
        assert!(workers.iter().all(|(drains, _)| drains.0.is_empty()));
    }
}
