//! Draining: closing tunnels by order, spread over time: those of an upstream, a percentage or a
//! number.
//!
//! A [`DrainOrder`] goes to every worker. Each worker reports how many of its tunnels match, takes its
//! proportional part and closes it evenly over the time ([`Drains`]). The proxy does not follow frames
//! in tunnels, so clients see the TCP stream end without a close frame, which browsers report as 1006.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Maximum number of drains at a time; the API refuses more.
pub(crate) const ORDERS_MAX: usize = 256;
/// Tunnels closed and slots scanned in one turn, by all drains together. Each drain gets an equal
/// part, but at least the second number.
const ENDED_PER_TURN: (u64, u64) = (64, 1);
const SLOTS_PER_TURN: (u32, u32) = (16 * 1024, 256);
/// How long a worker waits for the others to report their matching tunnels.
const REPORT_WAIT_NS: u64 = 1_000_000_000;
const REPORT_LOOK_NS: u64 = 5_000_000;

/// The tunnels that a drain applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// Those to these upstreams, by number.
    Of(Box<[u32]>),
}

/// How many of the matching tunnels to close.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum HowMany {
    /// So many hundredths of a percent, 10,000 for all.
    Share(u32),
    /// A number.
    Count(u64),
}

/// What is to be ended.
#[derive(Debug)]
pub struct Order {
    which: Which,
    many: HowMany,
    began_ns: u64,
    over_ns: u64,
    workers: AtomicU32,
    reported: AtomicU32,
    concerned: AtomicU64,
    ended: AtomicU64,
}

impl Order {
    /// An order that begins now.
    #[must_use]
    pub fn new(which: Which, many: HowMany, over: Duration, now_ns: u64) -> Self {
        Order {
            which,
            many,
            began_ns: now_ns,
            over_ns: u64::try_from(over.as_nanos()).unwrap_or(u64::MAX),
            workers: AtomicU32::new(0),
            reported: AtomicU32::new(0),
            concerned: AtomicU64::new(0),
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

    fn concerns(&self, upstream: u32) -> bool {
        match &self.which {
            Which::All => true,
            Which::Of(numbers) => numbers.contains(&upstream),
        }
    }

    /// How many to close in total, once all workers have reported.
    fn budget(&self) -> Option<u64> {
        let workers = self.workers.load(Ordering::Acquire);
        let all = workers > 0 && self.reported.load(Ordering::Acquire) >= workers;
        all.then(|| self.of(self.concerned.load(Ordering::Relaxed)))
    }

    /// How many of so many, rounded up.
    fn of(&self, concerned: u64) -> u64 {
        match self.many {
            HowMany::Share(share) => {
                (concerned.saturating_mul(u64::from(share.min(10_000)))).div_ceil(10_000)
            }
            HowMany::Count(count) => count.min(concerned),
        }
    }

    /// The part of one worker, rounded up: the budget stops what is too many.
    fn part(&self, mine: u64, budget: u64) -> u64 {
        let concerned = self.concerned.load(Ordering::Relaxed).max(1);
        let part = (u128::from(mine) * u128::from(budget)).div_ceil(u128::from(concerned));
        u64::try_from(part).unwrap_or(u64::MAX).min(mine)
    }

    /// Takes one from the budget, if any is left.
    fn grant(&self, budget: u64) -> bool {
        let more = |ended| (ended < budget).then_some(ended + 1);
        self.ended.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// The orders that workers are still executing, for the API.
#[derive(Default)]
pub(crate) struct UnderWay(Vec<Weak<Order>>);

impl UnderWay {
    /// Whether one more may be given.
    pub(crate) fn has_room(&mut self) -> bool {
        // Each worker holds the order until its part is done.
        self.0.retain(|order| order.strong_count() > 0);
        self.0.len() < ORDERS_MAX
    }

    pub(crate) fn add(&mut self, order: &Arc<Order>) {
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
struct Ending {
    order: Arc<Order>,
    mine: u64,
    /// What this worker is to end, once that is known.
    part: Option<u64>,
    done: u64,
    slot: u32,
    /// Full scans of the slots since a match was found.
    laps: u32,
}

/// The orders of one worker.
#[derive(Default)]
pub(crate) struct Endings(Vec<Ending>);

impl Endings {
    /// Takes an order and says what it concerns here.
    pub(crate) fn take(&mut self, order: Arc<Order>, tunnels: &impl Tunnels) {
        let concerned = |slot: &u32| {
            tunnels.upstream_at(*slot).is_some_and(|upstream| order.concerns(upstream))
        };
        let mine = (0..tunnels.slots()).filter(concerned).count() as u64;
        order.concerned.fetch_add(mine, Ordering::Relaxed);
        order.reported.fetch_add(1, Ordering::Release);
        if mine == 0 {
            return;
        }
        self.0.push(Ending { order, mine, part: None, done: 0, slot: 0, laps: 0 });
    }

    /// Closes the tunnels that are due; returns when the next is due.
    pub(crate) fn turn(&mut self, now_ns: u64, tunnels: &mut impl Tunnels) -> Option<u64> {
        let mut next = None;
        let orders = u32::try_from(self.0.len()).unwrap_or(u32::MAX).max(1);
        let most = (ENDED_PER_TURN.0 / u64::from(orders)).max(ENDED_PER_TURN.1);
        let looks = (SLOTS_PER_TURN.0 / orders).max(SLOTS_PER_TURN.1);
        self.0.retain_mut(|ending| {
            let again = ending.turn(now_ns, (most, looks), tunnels);
            next = [next, again].into_iter().flatten().min();
            again.is_some()
        });
        next
    }
}

impl Ending {
    /// The time of its next turn; none when it is done.
    fn turn(
        &mut self,
        now_ns: u64,
        (most, mut looks): (u64, u32),
        tunnels: &mut impl Tunnels,
    ) -> Option<u64> {
        let Some((part, budget)) = self.part(now_ns) else { return Some(now_ns + REPORT_LOOK_NS) };
        let due = self.due(part, now_ns).saturating_sub(self.done).min(most);
        for _ in 0..due {
            let Some(slot) = self.find(tunnels, &mut looks) else {
                // Passed all and found none: they have ended by themselves.
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
        let concerned = self.order.concerned.load(Ordering::Relaxed);
        let budget = self.order.budget().or_else(|| late.then(|| self.order.of(concerned)))?;
        let part = *self.part.get_or_insert_with(|| self.order.part(self.mine, budget));
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

    /// The next slot with a tunnel that is concerned.
    fn find(&mut self, tunnels: &impl Tunnels, looks: &mut u32) -> Option<u32> {
        while *looks > 0 && self.laps < 2 {
            if self.slot >= tunnels.slots() {
                self.slot = 0;
                self.laps += 1;
                continue;
            }
            let slot = self.slot;
            (self.slot, *looks) = (slot + 1, *looks - 1);
            if tunnels.upstream_at(slot).is_some_and(|upstream| self.order.concerns(upstream)) {
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
    fn ordered(order: Order) -> (Arc<Order>, Vec<(Endings, Slots)>) {
        let order = Arc::new(order);
        let mut workers = Vec::new();
        for tunnels in [300u32, 100] {
            // Every other slot is a client's leg.
            let slots = (0..2 * tunnels).map(|n| (n % 2 == 0).then_some(n / 2 % 3)).collect();
            let mut worker = (Endings::default(), Slots(slots));
            worker.0.take(Arc::clone(&order), &worker.1);
            workers.push(worker);
        }
        order.sent_to(2);
        (order, workers)
    }

    /// Plays until nobody has more to do; the time of the last turn and how many had ended by half.
    fn play(workers: &mut [(Endings, Slots)], order: &Order, half_ns: u64) -> (u64, u64) {
        let (mut now_ns, mut by_half) = (0, 0);
        loop {
            let turns = workers.iter_mut().map(|(endings, slots)| endings.turn(now_ns, slots));
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
    fn a_drain_ends_all_of_one_upstream_evenly_over_its_time() {
        let over = Duration::from_secs(10);
        let (order, mut workers) =
            ordered(Order::new(Which::Of([1].into()), HowMany::Share(10_000), over, 0));
        let (last_ns, by_half) = play(&mut workers, &order, 5 * SECOND);
        assert_eq!(order.ended(), 133);
        assert!((64..=68).contains(&by_half), "{by_half}");
        assert!((9 * SECOND..=10 * SECOND).contains(&last_ns), "{last_ns}");
        for (_, slots) in &workers {
            assert_eq!(slots.left(1), 0);
            assert!(slots.left(0) > 30 && slots.left(2) > 30, "others are left alone");
        }
    }

    #[test]
    fn a_share_and_a_number_are_what_was_asked_for() {
        for (many, ended) in [
            (HowMany::Share(1_000), 40),
            (HowMany::Share(1), 1),
            (HowMany::Count(7), 7),
            (HowMany::Count(1_000), 400),
            (HowMany::Count(0), 0),
        ] {
            let (order, mut workers) =
                ordered(Order::new(Which::All, many, Duration::from_secs(1), 0));
            play(&mut workers, &order, 0);
            let left: usize = workers.iter().map(|w| w.1.0.iter().flatten().count()).sum();
            assert_eq!((order.ended(), left), (ended, 400 - ended as usize), "{many:?}");
        }
    }

    #[test]
    fn as_many_orders_as_there_may_be_are_carried_out_beside_each_other() {
        let orders = ORDERS_MAX as u32;
        let mut worker =
            (Endings::default(), Slots((0..4 * orders).map(|n| Some(n % orders)).collect()));
        for upstream in 0..orders {
            let (which, over) = (Which::Of([upstream].into()), Duration::from_secs(3));
            let order = Arc::new(Order::new(which, HowMany::Share(10_000), over, 0));
            worker.0.take(Arc::clone(&order), &worker.1);
            order.sent_to(1);
        }
        let mut now_ns = 0;
        while let Some(next) = worker.0.turn(now_ns, &mut worker.1) {
            now_ns = next.max(now_ns + 1);
        }
        assert_eq!(worker.1.0.iter().flatten().count(), 0, "the first are not forgotten");
        assert!((2 * SECOND..4 * SECOND).contains(&now_ns), "{now_ns}");
    }

    #[test]
    fn each_worker_ends_its_part() {
        let (order, mut workers) =
            ordered(Order::new(Which::All, HowMany::Share(5_000), Duration::ZERO, 0));
        play(&mut workers, &order, 0);
        let left: Vec<usize> = workers.iter().map(|w| w.1.0.iter().flatten().count()).collect();
        assert_eq!(left, [150, 50]);
    }

    #[test]
    fn who_does_not_answer_is_not_waited_for_long() {
        let order = Order::new(Which::All, HowMany::Share(10_000), Duration::from_secs(3), 0);
        let (order, mut workers) = ordered(order);
        order.sent_to(3);
        let (last_ns, by_wait) = play(&mut workers, &order, REPORT_WAIT_NS);
        assert_eq!(by_wait, 0);
        assert!(last_ns <= 3 * SECOND + 1, "{last_ns}");
        assert_eq!(workers.iter().map(|w| w.1.0.iter().flatten().count()).sum::<usize>(), 0);
    }

    #[test]
    fn tunnels_that_end_by_themselves_end_the_order() {
        let over = Duration::from_secs(1);
        let (order, mut workers) = ordered(Order::new(Which::All, HowMany::Share(10_000), over, 0));
        for (_, slots) in &mut workers {
            slots.0.fill(None);
        }
        play(&mut workers, &order, 0);
        assert_eq!(order.ended(), 0);
        assert!(workers.iter().all(|(endings, _)| endings.0.is_empty()));
    }
}
