//! [`Heartbeat`]: when which connections are told that we are there. Each turn looks at a share of the
//! slots, so that all of them are seen once per interval and a million are never looked at at once:
//! beats are thereby spread by slot.

use std::time::Duration;

use engine::{ConnId, Core, SharedFrame, Sys};

use super::Door;
use crate::dialect::{Cable, Dialect, Disconnect, Events};
use crate::session::{Session, Speaks};

/// How often a worker looks, at most.
const STEP: Duration = Duration::from_millis(20);

/// Where the round over the slots is.
#[derive(Default)]
pub(crate) struct Heartbeat {
    next_slot: u32,
    looked_ns: u64,
}

impl Heartbeat {
    /// The slots that are due: the share of `slots` that the time since the last call makes of
    /// `interval`. The rest of a round is its own share, so a range never wraps.
    fn due(&mut self, now_ns: u64, slots: u32, interval: Duration) -> std::ops::Range<u32> {
        let interval_ns = (interval.as_nanos() as u64).max(1);
        let passed = now_ns.saturating_sub(self.looked_ns).min(interval_ns);
        let share = (u128::from(slots) * u128::from(passed) / u128::from(interval_ns)) as u32;
        if share == 0 {
            // Not yet a slot's worth; but who was at rest for long begins anew.
            if passed == interval_ns {
                self.looked_ns = now_ns;
            }
            return 0..0;
        }
        // What is less than a slot's worth counts for the next call.
        let used = u128::from(share) * u128::from(interval_ns) / u128::from(slots);
        self.looked_ns = if passed == interval_ns { now_ns } else { self.looked_ns + used as u64 };
        if self.next_slot >= slots {
            self.next_slot = 0;
        }
        let from = self.next_slot;
        let to = from.saturating_add(share).min(slots);
        self.next_slot = to;
        from..to
    }
}

impl Door {
    /// Beats for the connections whose turn it is, and says when to be called again.
    pub(super) fn beat<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        if self.beating == 0 {
            return None;
        }
        let now_ns = core.now_ns();
        let interval = self.policy.channels.ping_interval;
        let due = self.heartbeat.due(now_ns, core.slots(), interval);
        if !due.is_empty() {
            let unix_s = self.shared.unix_s(now_ns);
            let ping = frame(|out| Cable::beat(unix_s, out));
            let comment = frame(|out| Events::beat(unix_s, out));
            for slot in due {
                let Some(id) = core.id_at(slot) else { continue };
                match core.user(id).map_or(Speaks::Http, Session::speaks) {
                    Speaks::Cable => drop(core.send_urgent(id, &ping)),
                    Speaks::CableExt => self.beat_extended(core, id, &ping),
                    Speaks::Events => drop(core.send_urgent(id, &comment)),
                    Speaks::Http | Speaks::Echo | Speaks::Topic => {}
                }
            }
        }
        Some(now_ns + STEP.as_nanos() as u64)
    }

    /// Clients of the extended protocol answer pings. Where that is asked of them, silence ends
    /// their session.
    fn beat_extended<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, ping: &SharedFrame) {
        let silent_ns = core.silent_ns(id).unwrap_or(0);
        let late = |timeout: Duration| u128::from(silent_ns) > timeout.as_nanos();
        if self.policy.channels.pong_timeout.is_some_and(late) && core.is_open(id) {
            self.counters(core.worker()).no_pong.add(1);
            return self.disconnect(core, id, Disconnect::NoPong);
        }
        core.send_urgent(id, ping);
    }
}

fn frame(write: impl FnOnce(&mut Vec<u8>)) -> SharedFrame {
    let mut bytes = Vec::new();
    write(&mut bytes);
    SharedFrame::new(&bytes, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(3);

    /// Beats of each slot over some intervals, looked at each `step`.
    fn beats(slots: u32, step: Duration, intervals: u32) -> Vec<u32> {
        let mut heartbeat = Heartbeat::default();
        let mut seen = vec![0; slots as usize];
        let (mut now, end) = (Duration::ZERO, INTERVAL * intervals);
        while now < end {
            now += step;
            for slot in heartbeat.due(now.as_nanos() as u64, slots, INTERVAL) {
                seen[slot as usize] += 1;
            }
        }
        seen
    }

    #[test]
    fn each_connection_is_told_once_per_interval() {
        for (slots, step) in [(1, 20), (7, 20), (1_000, 20), (20_000, 20), (1_000, 7), (1_000, 171)]
        {
            let seen = beats(slots, Duration::from_millis(step), 10);
            let (least, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
            assert!(
                (9..=11).contains(least) && (9..=11).contains(most),
                "{slots} {step}: {seen:?}"
            );
        }
    }

    #[test]
    fn a_step_is_a_small_share_and_a_long_rest_no_storm() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.due(1, 10_000, INTERVAL);
        let after = heartbeat.due(20_000_001, 10_000, INTERVAL).len();
        assert!((60..=70).contains(&after), "{after}");
        assert!(heartbeat.due(u64::MAX, 10_000, INTERVAL).len() <= 10_000);
        assert!(heartbeat.due(u64::MAX, 10_000, INTERVAL).is_empty());
    }
}
