//! [`Coalescing`]: when a worker sleeps before it waits, as network cards delay interrupts.
//!
//! Of a peer that answers at once, each event wakes the worker, which handles it in less time than the wake has
//! cost, and sleeps again. A short sleep collects several. It has to end when it does not: when events come
//! seldom, then the wait alone is cheaper, and when their work takes longer than the sleep, as the worker is
//! then busy anyway.

/// How many sleeps a turn may take, from one wait to the next, before there are too few events.
const SLEEPS_MAX: u64 = 4;

#[derive(Default, Debug)]
pub(crate) struct Coalescing {
    /// How long a sleep takes; 0 without.
    ns: u32,
    is_on: bool,
    /// When the last wait began.
    waited_ns: u64,
}

impl Coalescing {
    #[inline]
    pub(crate) fn set(&mut self, ns: u32) {
        self.ns = ns;
    }

    /// How long to sleep before a wait that begins at `now_ns`, after a turn that began at `turn_ns`; the next
    /// thing is due at `due_ns`.
    #[inline]
    pub(crate) fn next(&mut self, turn_ns: u64, now_ns: u64, due_ns: Option<u64>) -> Option<u32> {
        if self.ns == 0 {
            return None;
        }
        let sleep = u64::from(self.ns);
        let last_ns = std::mem::replace(&mut self.waited_ns, now_ns);
        let (period, work) = (now_ns.saturating_sub(last_ns), now_ns.saturating_sub(turn_ns));
        self.is_on = match self.is_on {
            true => work <= sleep && period <= SLEEPS_MAX * sleep,
            false => period <= sleep,
        };
        let is_due = due_ns.is_some_and(|due_ns| due_ns < now_ns + sleep);
        (self.is_on && !is_due).then_some(self.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a worker sleeps after turns that each begin so long after the wait before, and work so long.
    fn sleeps(of: &mut Coalescing, turns: u64, wait: u64, work: u64) -> bool {
        let mut now_ns = of.waited_ns;
        let mut last = None;
        for _ in 0..turns {
            now_ns += wait + u64::from(last.unwrap_or(0)) + work;
            last = of.next(now_ns - work, now_ns, None);
        }
        last.is_some()
    }

    #[test]
    fn sleeps_while_events_come_fast() {
        let mut of = Coalescing { waited_ns: 1_000_000, ..Coalescing::default() };
        assert!(!sleeps(&mut of, 10, 2_000, 1_000), "nobody has asked for it");
        of.set(20_000);
        assert!(!sleeps(&mut of, 10, 50_000, 1_000), "events come seldom");
        assert!(sleeps(&mut of, 10, 2_000, 1_000));
        assert!(sleeps(&mut of, 10, 30_000, 1_000), "a pause of the peer does not end it");
        assert!(!sleeps(&mut of, 10, 90_000, 1_000), "a longer one does");
        assert!(sleeps(&mut of, 10, 0, 15_000));
        assert!(!sleeps(&mut of, 10, 0, 25_000), "the worker is busy");
        assert!(sleeps(&mut of, 10, 0, 5_000));
        of.set(0);
        assert!(!sleeps(&mut of, 10, 2_000, 1_000));
    }

    #[test]
    fn does_not_sleep_when_something_is_due() {
        let mut of = Coalescing { ns: 20_000, is_on: true, waited_ns: 1_000_000 };
        assert_eq!(of.next(1_009_000, 1_010_000, Some(1_029_999)), None);
        assert_eq!(of.next(1_019_000, 1_020_000, Some(1_040_000)), Some(20_000));
    }
}
