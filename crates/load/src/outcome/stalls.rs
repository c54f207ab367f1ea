//! [`Stalls`]: how much of its time a worker spent in long waits for a core.
//!
//! The scheduler tells the sum of a thread's waits and their number. Their mean says little: a worker that
//! often sleeps has many waits of nothing, and the few of 4 ms, while another program uses up its time
//! slice, disappear among them. So the worker asks once a millisecond, and whenever a longer time has passed
//! between two turns, because then it may have waited. Of each such step it knows how long it waited at
//! least at one time.

use engine::sys::ThreadWaits;
use engine::{Core, Counter, Handler, Sys};

/// Between two looks, at least. A look costs 1 to 2 µs.
const STEP_NS: u64 = 1_000_000;
/// A wait is long from here: programs that take turns with messages wait less, one that uses up its time
/// slice makes others wait for 1 to 4 ms.
const LONG_NS: u64 = 1_000_000;

/// One worker's look at itself.
#[derive(Default)]
pub(crate) struct Stalls {
    last: Option<(u64, ThreadWaits)>,
}

impl Stalls {
    /// Adds to `stalled_ns` if this worker has waited for long; called in each turn.
    #[inline]
    pub(crate) fn turn<S: Sys, H: Handler>(&mut self, core: &mut Core<S, H>, stalled_ns: &Counter) {
        let is_due = |(at_ns, _): (u64, _)| core.now_ns() >= at_ns + STEP_NS;
        if self.last.is_none_or(is_due) {
            self.look(core, stalled_ns);
        }
    }

    fn look<S: Sys, H: Handler>(&mut self, core: &mut Core<S, H>, stalled_ns: &Counter) {
        let waits = core.thread_waits();
        // The clock of the turn does not know of waits since its begin.
        let now_ns = core.clock_ns();
        if let (Some((before_ns, before)), Some(waits)) = (self.last, waits) {
            stalled_ns.add(long_ns(now_ns.saturating_sub(before_ns), before, waits));
        }
        self.last = Some((now_ns, waits.unwrap_or_default()));
    }
}

/// The waits of a step, if one of them was long.
///
/// The longest is at least as long as the mean. And programs that take turns wait no longer than they work:
/// what exceeds the rest of the step is not made of short waits.
fn long_ns(step_ns: u64, before: ThreadWaits, now: ThreadWaits) -> u64 {
    let waited_ns = now.waited_ns.saturating_sub(before.waited_ns);
    let mean_ns = waited_ns / now.slices.saturating_sub(before.slices).max(1);
    let rest_ns = step_ns.saturating_sub(waited_ns);
    let longest_ns = mean_ns.max(waited_ns.saturating_sub(rest_ns));
    if longest_ns >= LONG_NS { waited_ns } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_are_told_from_many_short_ones() {
        let long = |step_us: u64, waited_us: u64, slices: u64| {
            let before = ThreadWaits { waited_ns: 7, slices: 7 };
            let now = ThreadWaits { waited_ns: 7 + waited_us * 1_000, slices: 7 + slices };
            long_ns(step_us * 1_000, before, now) / 1_000
        };
        // Turns with a target in slices of 0.02 to 0.7 ms, also in long turns with many messages.
        for (step, waited, slices) in [
            (1_000, 0, 0),
            (1_000, 500, 25),
            (1_100, 550, 5),
            (1_700, 1_200, 2),
            (8_000, 4_000, 20),
        ] {
            assert_eq!(long(step, waited, slices), 0, "{step} {waited} {slices}");
        }
        // A millisecond of many messages and then a time slice of another program; a step without anything
        // else; a wait after a long sleep; and a turn of 3 ms that was interrupted.
        for (step, waited, slices) in
            [(4_000, 3_000, 40), (4_000, 4_000, 1), (60_000, 4_000, 2), (6_000, 3_000, 1)]
        {
            assert_eq!(long(step, waited, slices), waited, "{step} {waited} {slices}");
        }
    }
}
