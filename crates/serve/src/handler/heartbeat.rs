//! [`Heartbeat`]: which connections get a heartbeat when. Each slot has a fixed step within the
//! interval, so every connection gets one heartbeat per interval, spread over it, even while thousands
//! connect.

use std::time::Duration;

use engine::{ConnId, Core, SharedFrame, Sys};

use super::ServeHandler;
use crate::protocols::{Cable, Disconnect, Events, ProtocolAdapter};
use crate::session::{Session, SessionProtocol};

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
        let steps = (interval.as_nanos() / STEP.as_nanos()).max(1) as u64;
        let now = now_ns / STEP.as_nanos() as u64;
        // After a delay of an interval or more each slot is due once.
        let first = (self.step + 1).max((now + 1).saturating_sub(steps));
        self.step = self.step.max(now);
        let stride = usize::try_from(steps).unwrap_or(usize::MAX);
        (first..=now).flat_map(move |step| ((step % steps) as u32..slots).step_by(stride))
    }
}

impl ServeHandler {
    /// Sends the heartbeats that are due. Returns when to be called again.
    pub(super) fn beat<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        if self.heartbeat_connections == 0 {
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
            match core.user(id).map_or(SessionProtocol::Http, Session::protocol) {
                SessionProtocol::Cable => drop(core.send_urgent(id, &ping)),
                SessionProtocol::CableExt => self.beat_extended(core, id, &ping),
                SessionProtocol::Events => drop(core.send_urgent(id, &comment)),
                SessionProtocol::Http | SessionProtocol::Echo | SessionProtocol::Topic => {}
            }
        }
        Some(self.heartbeat.next_ns())
    }

    /// Pings a client of the extended protocol, or ends its session if it was silent for longer than
    /// the pong timeout.
    fn beat_extended<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, ping: &SharedFrame) {
        let silent_ns = core.idle_at_least_ns(id).unwrap_or(0);
        let late = |timeout: Duration| u128::from(silent_ns) >= timeout.as_nanos();
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
    fn heartbeats(
        step: Duration,
        slots: u32,
        from: impl Fn(u32) -> Duration,
    ) -> Vec<Vec<Duration>> {
        let mut heartbeat = Heartbeat::default();
        let mut times = vec![Vec::new(); slots as usize];
        let mut now = Duration::ZERO;
        while now < INTERVAL * 10 {
            now += step;
            let used = (0..slots).take_while(|&slot| from(slot) <= now).count() as u32;
            for slot in heartbeat.due(now.as_nanos() as u64, used, INTERVAL) {
                times[slot as usize].push(now);
            }
        }
        times
    }

    #[test]
    fn each_connection_gets_one_heartbeat_per_interval_even_while_many_connect() {
        let at_once = |_| Duration::ZERO;
        let in_a_storm = |slot: u32| Duration::from_millis(3) * slot;
        for step in [7, 20, 171].map(Duration::from_millis) {
            for times in [heartbeats(step, 1_000, at_once), heartbeats(step, 3_000, in_a_storm)] {
                for (slot, times) in times.iter().enumerate() {
                    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
                    let most = gaps.clone().max().unwrap_or_default();
                    assert!(most <= INTERVAL + step, "slot {slot} waited {most:?}");
                    let least = gaps.min().unwrap_or(INTERVAL);
                    assert!(least + step >= INTERVAL, "slot {slot} waited {least:?}");
                }
            }
        }
    }

    #[test]
    fn a_step_is_a_small_share_and_a_long_pause_causes_no_storm() {
        let mut heartbeat = Heartbeat::default();
        let mut due = |ms: u64| heartbeat.due(ms * 1_000_000, 9_000, INTERVAL).count();
        assert_eq!(due(1_000_000), 9_000, "once, after a pause of any length");
        assert_eq!(due(1_000_019), 0);
        assert_eq!((due(1_000_020), due(1_000_060)), (60, 120));
        assert_eq!(due(9_000_000), 9_000);
    }
}
