//! [`Heartbeat`]: which connections get a heartbeat when. Each slot has a fixed step within the
//! interval, so every connection gets one heartbeat per interval, spread over it, even while thousands
//! connect.

use std::time::Duration;

use engine::{ConnId, Core, SharedFrame, Sys};

use super::Door;
use crate::protocols::{Cable, Dialect, Disconnect, Events};
use crate::session::{Session, Speaks};

/// Time between the steps of an interval.
const STEP: Duration = Duration::from_millis(20);

/// The steps that have passed.
#[derive(Default)]
pub(crate) struct Heartbeat {
    /// Steps since the clock began.
    step: u64,
}

impl Heartbeat {
    /// When the next step is due; it may be past.
    fn next_ns(&self) -> u64 {
        (self.step + 1) * STEP.as_nanos() as u64
    }

    /// The slots, of `slots`, whose step has come since the last call.
    fn due(
        &mut self,
        now_ns: u64,
        slots: u32,
        interval: Duration,
    ) -> impl Iterator<Item = u32> + use<> {
        let moments = (interval.as_nanos() / STEP.as_nanos()).max(1) as u64;
        let now = now_ns / STEP.as_nanos() as u64;
        // Who was late by an interval or more is not late twice.
        let first = (self.step + 1).max((now + 1).saturating_sub(moments));
        self.step = self.step.max(now);
        let stride = usize::try_from(moments).unwrap_or(usize::MAX);
        (first..=now).flat_map(move |step| ((step % moments) as u32..slots).step_by(stride))
    }
}

impl Door {
    /// Beats for the connections whose turn it is, and says when to be called again.
    pub(super) fn beat<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        if self.beating == 0 {
            return None;
        }
        let now_ns = core.now_ns();
        if now_ns < self.heartbeat.next_ns() {
            return Some(self.heartbeat.next_ns());
        }
        let interval = self.policy.channels.ping_interval;
        let unix_s = self.shared.unix_s(now_ns);
        let ping = frame(|out| Cable::beat(unix_s, out));
        let comment = frame(|out| Events::beat(unix_s, out));
        for slot in self.heartbeat.due(now_ns, core.slots(), interval) {
            let Some(id) = core.id_at(slot) else { continue };
            match core.user(id).map_or(Speaks::Http, Session::speaks) {
                Speaks::Cable => drop(core.send_urgent(id, &ping)),
                Speaks::CableExt => self.beat_extended(core, id, &ping),
                Speaks::Events => drop(core.send_urgent(id, &comment)),
                Speaks::Http | Speaks::Echo | Speaks::Topic => {}
            }
        }
        Some(self.heartbeat.next_ns())
    }

    /// Pings a client of the extended protocol, or ends its session if it was silent for longer than
    /// the pong timeout.
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

    /// When each slot is due over ten intervals, with a call each `step`, where slot n is used from
    /// `from(n)` on.
    fn told(step: Duration, slots: u32, from: impl Fn(u32) -> Duration) -> Vec<Vec<Duration>> {
        let mut heartbeat = Heartbeat::default();
        let mut told = vec![Vec::new(); slots as usize];
        let mut now = Duration::ZERO;
        while now < INTERVAL * 10 {
            now += step;
            let there = (0..slots).take_while(|&slot| from(slot) <= now).count() as u32;
            for slot in heartbeat.due(now.as_nanos() as u64, there, INTERVAL) {
                told[slot as usize].push(now);
            }
        }
        told
    }

    #[test]
    fn each_connection_is_told_once_per_interval_also_while_many_come_in() {
        let at_once = |_| Duration::ZERO;
        let in_a_storm = |slot: u32| Duration::from_millis(3) * slot;
        for step in [7, 20, 171].map(Duration::from_millis) {
            for told in [told(step, 1_000, at_once), told(step, 3_000, in_a_storm)] {
                for (slot, told) in told.iter().enumerate() {
                    let gaps = told.windows(2).map(|pair| pair[1] - pair[0]);
                    let most = gaps.clone().max().unwrap_or_default();
                    assert!(most <= INTERVAL + step, "slot {slot} waited {most:?}");
                    let least = gaps.min().unwrap_or(INTERVAL);
                    assert!(least + step >= INTERVAL, "slot {slot} waited {least:?}");
                }
            }
        }
    }

    #[test]
    fn a_step_is_a_small_share_and_a_long_rest_no_storm() {
        let mut heartbeat = Heartbeat::default();
        let mut due = |ms: u64| heartbeat.due(ms * 1_000_000, 9_000, INTERVAL).count();
        assert_eq!(due(1_000_000), 9_000, "once, after however long a rest");
        assert_eq!(due(1_000_019), 0);
        assert_eq!((due(1_000_020), due(1_000_060)), (60, 120));
        assert_eq!(due(9_000_000), 9_000);
    }
}
