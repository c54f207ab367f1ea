//! Timers of a worker: deadlines in the order they were set, and a tick for everything idle. Idle
//! connections have no entry: the slot determines when a connection is checked.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Limits;
use crate::limits::SWEEP_SLOTS_PER_TURN;

/// Slices of the sweep per idle period: the tick is a quarter of the idle timeout ÷ this, within
/// [`TICK_MIN`] and [`TICK_MAX`].
const SLICES: u32 = 64;
const TICK_MIN: Duration = Duration::from_millis(20);
const TICK_MAX: Duration = Duration::from_secs(60);
/// Ticks that can be distinguished before the counter wraps around.
const TICKS_MAX: u16 = 60_000;
/// Idle ticks that are never reached: more than [`TICKS_MAX`].
const NEVER: u16 = u16::MAX;
/// The tick without an idle timeout.
const TICK_DEFAULT: Duration = Duration::from_secs(1);

/// Deadlines with the same timeout, so that the first one set is the first to pass. Entries keep when
/// they were set: a new timeout applies to all of them, and their order stays.
pub(crate) struct Deadlines {
    timeout_ns: u64,
    entries: VecDeque<Deadline>,
}

#[derive(Copy, Clone)]
pub(crate) struct Deadline {
    /// When it was set.
    pub(crate) since_ns: u64,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Deadlines {
    fn new(timeout: Duration) -> Self {
        Deadlines { timeout_ns: nanoseconds(timeout), entries: VecDeque::new() }
    }

    pub(crate) fn push(&mut self, now_ns: u64, slot: u32, generation: u32) {
        self.entries.push_back(Deadline { since_ns: now_ns, slot, generation });
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.entries.front().map(|deadline| deadline.since_ns.saturating_add(self.timeout_ns))
    }

    /// The deadline at an index, in the order in which they pass.
    pub(crate) fn get(&self, at: usize) -> Option<Deadline> {
        self.entries.get(at).copied()
    }

    /// Removes and returns the next deadline that has passed.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<Deadline> {
        if self.next_ns().is_none_or(|at_ns| at_ns > now_ns) {
            return None;
        }
        let deadline = self.entries.pop_front();
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
        deadline
    }
}

impl Limits {
    /// The step in which idle times are measured, at least 20 ms. It can be coarser than
    /// [`Limits::idle_precision`], as idle and keep-alive timeouts have at most 60,000 steps.
    #[must_use]
    pub fn idle_step(&self) -> Duration {
        let slice = self.idle_timeouts().min().map(|timeout| timeout / (4 * SLICES));
        let step = slice.map_or(TICK_DEFAULT, |slice| slice.clamp(TICK_MIN, TICK_MAX));
        let longest = self.idle_timeouts().max().unwrap_or_default().max(self.keep_alive_timeout);
        let finest = (longest / u32::from(TICKS_MAX)).max(TICK_MIN);
        let step = if self.classes.is_empty() { step } else { step.max(finest) };
        self.idle_precision.map_or(step, |precision| precision.max(finest).min(step))
    }
}

/// The timers of one worker.
pub(crate) struct Timers {
    pub(crate) handshake: Deadlines,
    pub(crate) closing: Deadlines,
    tick_ns: u64,
    began_ns: u64,
    /// Idle ticks after which a connection is closed: the fewest of any class, `None` if none is.
    pub(crate) idle_ticks: Option<u16>,
    /// Idle ticks without a class, then of each class; [`NEVER`] without a timeout.
    class_ticks: Box<[u16]>,
    /// Ticks in which the sweep checks every slot once.
    period_ticks: u64,
    /// The tick of the last sweep, and the slot it stopped at.
    swept_tick: u64,
    pub(crate) sweep_slot: u32,
    /// Slots that are due for a check and have not been checked yet.
    sweep_due: u32,
}

impl Timers {
    pub(crate) fn new(limits: &Limits, now_ns: u64) -> Self {
        let shortest = limits.idle_timeouts().min();
        let quarter = shortest.map(|timeout| timeout / 4);
        let tick_ns = nanoseconds(limits.idle_step());
        let in_ticks = |d: Duration| (nanoseconds(d) / tick_ns).clamp(1, u64::from(TICKS_MAX));
        let of_class = |timeout: Option<Duration>| timeout.map_or(NEVER, |t| in_ticks(t) as u16);
        let classes = limits.classes.iter().map(|class| class.idle_timeout);
        let idle = shortest.map(in_ticks);
        Timers {
            handshake: Deadlines::new(limits.handshake_timeout),
            closing: Deadlines::new(limits.close_timeout),
            tick_ns,
            began_ns: now_ns,
            idle_ticks: idle.map(|idle| idle as u16),
            class_ticks: std::iter::once(limits.idle_timeout)
                .chain(classes)
                .map(of_class)
                .collect(),
            period_ticks: quarter.map_or(1, in_ticks),
            swept_tick: 0,
            sweep_slot: 0,
            sweep_due: 0,
        }
    }

    /// Sets the timeouts of all deadlines, those that are set already included.
    pub(crate) fn set_timeouts(&mut self, limits: &Limits) {
        self.handshake.timeout_ns = nanoseconds(limits.handshake_timeout);
        self.closing.timeout_ns = nanoseconds(limits.close_timeout);
    }

    /// New timers for other limits, without the deadlines; `None` if the tick stays the same.
    pub(crate) fn renewed(&self, limits: &Limits, now_ns: u64) -> Option<Timers> {
        let timers = Timers::new(limits, now_ns);
        let stays = (timers.tick_ns, &timers.class_ticks) == (self.tick_ns, &self.class_ticks);
        (!stays).then_some(timers)
    }

    /// Idle ticks after which a connection is closed, by its class counted from 1; 0 without one.
    pub(crate) fn idle_after(&self, class: usize) -> Option<u16> {
        let ticks = self.class_ticks.get(class).or(self.class_ticks.first()).copied();
        ticks.filter(|ticks| *ticks != NEVER)
    }

    /// A duration in ticks, up to the maximum that can be distinguished.
    pub(crate) fn ticks(&self, ns: u64) -> u16 {
        u16::try_from(ns / self.tick_ns).unwrap_or(u16::MAX).min(TICKS_MAX)
    }

    /// The tick of `now_ns`, in the form that connections keep.
    #[inline]
    pub(crate) fn tick(&self, now_ns: u64) -> u16 {
        (now_ns.wrapping_sub(self.began_ns) / self.tick_ns) as u16
    }

    /// The slots to check now: their share for the ticks since the last call, or of that what one
    /// turn may check. The rest is due at once.
    pub(crate) fn sweep(&mut self, now_ns: u64, slots: u32) -> std::ops::Range<u32> {
        if self.idle_ticks.is_none() {
            return 0..0;
        }
        let tick = now_ns.wrapping_sub(self.began_ns) / self.tick_ns;
        let ticks = (tick - self.swept_tick).min(self.period_ticks);
        self.swept_tick = tick;
        let share = (u64::from(slots) * ticks).div_ceil(self.period_ticks) as u32;
        self.sweep_due = self.sweep_due.saturating_add(share).min(slots);
        if self.sweep_due == 0 {
            return 0..0;
        }
        if self.sweep_slot >= slots {
            self.sweep_slot = 0;
        }
        let from = self.sweep_slot;
        let to = from.saturating_add(self.sweep_due.min(SWEEP_SLOTS_PER_TURN)).min(slots);
        self.sweep_slot = to;
        // A pass ends at the last slot.
        self.sweep_due = if to == slots { 0 } else { self.sweep_due - (to - from) };
        from..to
    }

    /// Which of three spans, each as long as the idle timeout, `now_ns` is in: 1 to 3, in turn. A
    /// growth two spans ago is older than the timeout, and the sweep runs often enough not to miss
    /// that.
    pub(crate) fn span(&self, now_ns: u64) -> u16 {
        let span_ns = u64::from(self.idle_ticks.unwrap_or(u16::MAX)) * self.tick_ns;
        (now_ns.wrapping_sub(self.began_ns) / span_ns % 3) as u16 + 1
    }

    /// Whether this many idle ticks count as idle for shedding: a quarter of the idle timeout.
    pub(crate) fn is_quiet(&self, ticks: u16) -> bool {
        u64::from(ticks) >= self.period_ticks
    }

    /// When something is due next, if ever. The tick matters only while there are connections.
    pub(crate) fn next_ns(&self, connections: u32) -> Option<u64> {
        let ticks = self.swept_tick + u64::from(self.sweep_due == 0);
        let tick = (connections > 0 && self.idle_ticks.is_some())
            .then(|| self.began_ns + ticks * self.tick_ns);
        [self.handshake.next_ns(), self.closing.next_ns(), tick].into_iter().flatten().min()
    }

    /// The longest duration that the ticks of connections can measure.
    pub(crate) fn longest_ns(&self) -> u64 {
        u64::from(TICKS_MAX) * self.tick_ns
    }

    /// The duration of a tick.
    pub(crate) fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Nanoseconds between two ticks that connections keep.
    pub(crate) fn ns_between(&self, from: u16, to: u16) -> u64 {
        u64::from(to.wrapping_sub(from)) * self.tick_ns
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_pass_in_order_and_never_early() {
        let mut deadlines = Deadlines::new(Duration::from_nanos(100));
        for slot in 0..3 {
            deadlines.push(u64::from(slot) * 10, slot, 0);
        }
        assert!(deadlines.pop(99).is_none());
        assert_eq!(deadlines.pop(110).map(|d| d.slot), Some(0));
        assert_eq!(deadlines.pop(110).map(|d| d.slot), Some(1));
        assert!(deadlines.pop(110).is_none());
        assert_eq!(deadlines.next_ns(), Some(120));
    }

    #[test]
    fn a_sweep_period_checks_every_slot_once() {
        let limits = Limits { idle_timeout: Some(Duration::from_secs(120)), ..Limits::default() };
        let mut timers = Timers::new(&limits, 0);
        let slots = 10_007;
        let mut checks = vec![0u32; slots as usize];
        for tick in 1..=timers.period_ticks {
            let range = timers.sweep(tick * timers.tick_ns, slots);
            assert!(range.len() <= (slots as usize).div_ceil(SLICES as usize) + 1);
            for slot in range {
                checks[slot as usize] += 1;
            }
        }
        assert!(checks.iter().all(|&n| n == 1), "each slot once per period");
    }

    #[test]
    fn a_turn_checks_a_portion_of_the_slots_after_a_pause() {
        let limits = Limits { idle_timeout: Some(Duration::from_secs(120)), ..Limits::default() };
        let mut timers = Timers::new(&limits, 0);
        let (slots, now_ns) = (100_000, 90_000_000_000);
        let mut next = 0;
        while next < slots {
            let range = timers.sweep(now_ns, slots);
            assert!(range.start == next && !range.is_empty() && range.len() <= 4096, "{range:?}");
            next = range.end;
            let due_ns = timers.next_ns(1).unwrap();
            assert_eq!(due_ns <= now_ns, next < slots, "the rest is due at once");
        }
        assert!(timers.sweep(now_ns, slots).is_empty(), "each once");
        // The slots may be gone before they are checked.
        timers.sweep(2 * now_ns, slots);
        assert!(timers.sweep(2 * now_ns, 0).is_empty() && timers.next_ns(1) > Some(2 * now_ns));
    }

    #[test]
    fn a_longer_tick_measures_longer_idle_times() {
        let limits = |seconds| Limits {
            idle_timeout: Some(Duration::from_secs(seconds)),
            ..Limits::default()
        };
        let short = Timers::new(&limits(5), 0);
        let hour_ns = 3_600_000_000_000;
        assert!(short.renewed(&limits(5), hour_ns).is_none());
        let measured = |timers: &Timers, from_ns, to_ns| {
            timers.ns_between(timers.tick(from_ns), timers.tick(to_ns))
        };
        assert!(measured(&short, 0, hour_ns) < hour_ns, "the tick wrapped around");
        let long = short.renewed(&limits(36_000), hour_ns).unwrap();
        let silent_ns = measured(&long, hour_ns, 2 * hour_ns);
        assert!(silent_ns > hour_ns - long.tick_ns && silent_ns <= hour_ns, "{silent_ns}");
        // What was idle for 4 s still is, up to one tick.
        let before_ns = short.ns_between(short.tick(hour_ns - 4_000_000_000), short.tick(hour_ns));
        let at = long.tick(hour_ns).wrapping_sub(long.ticks(before_ns));
        let after_ns = long.ns_between(at, long.tick(hour_ns));
        assert!(before_ns - after_ns < long.tick_ns, "{before_ns} {after_ns}");
    }

    #[test]
    fn a_long_idle_timeout_is_measured_as_precisely_as_wanted() {
        let (seconds, hour) = (Duration::from_secs, Duration::from_secs(3_600));
        let limits = |idle_timeout, precision| Limits {
            idle_timeout,
            idle_precision: precision,
            ..Limits::default()
        };
        assert!(limits(Some(hour), None).idle_step() > seconds(14));
        let fine = limits(Some(hour), Some(seconds(6) / 16));
        assert_eq!(fine.idle_step(), seconds(6) / 16);
        let timers = Timers::new(&fine, 0);
        let between = |from, to| {
            let tick = |at| timers.tick(nanoseconds(at));
            Duration::from_nanos(timers.ns_between(tick(from), tick(to)))
        };
        assert_eq!(between(seconds(3), seconds(9)), seconds(6));
        let in_ticks = u64::from(timers.idle_ticks.unwrap()) * timers.tick_ns();
        assert_eq!(in_ticks, nanoseconds(hour), "the idle timeout itself is unchanged");
        // At most 60,000 steps, or the ticks that connections keep would wrap around.
        assert_eq!(limits(Some(24 * hour), Some(seconds(1))).idle_step(), 24 * hour / 60_000);
        assert_eq!(limits(None, Some(seconds(1) / 2)).idle_step(), seconds(1) / 2);
        assert_eq!(limits(None, Some(seconds(9))).idle_step(), TICK_DEFAULT);
    }

    #[test]
    fn classes_have_idle_timeouts_of_their_own() {
        let seconds = Duration::from_secs;
        let class = |idle_timeout| crate::ClassLimits {
            send_queue_bytes: 1,
            slow_consumer: crate::SlowConsumer::Disconnect,
            idle_timeout,
            message_bytes: 1,
            compression: crate::Compression::Off,
        };
        let limits = Limits {
            idle_timeout: None,
            classes: vec![class(Some(seconds(10))), class(None), class(Some(seconds(100_000)))],
            ..Limits::default()
        };
        let timers = Timers::new(&limits, 0);
        let after = |class| {
            let ticks = timers.idle_after(class)?;
            Some(timers.ns_between(0, ticks) as f64 / 1e9)
        };
        assert_eq!((after(0), after(2), after(9)), (None, None, None));
        let close = |class, to: f64| after(class).is_some_and(|is| (is / to - 1.0).abs() < 0.2);
        // The tick is coarse enough for the longest.
        assert!(close(1, 10.0) && close(3, 100_000.0), "{:?} {:?}", after(1), after(3));
        assert!(timers.next_ns(1).is_some());
    }

    #[test]
    fn without_an_idle_timeout_nothing_is_due() {
        let timers = Timers::new(&Limits { idle_timeout: None, ..Limits::default() }, 5);
        assert_eq!(timers.next_ns(1_000_000), None);
    }
}
