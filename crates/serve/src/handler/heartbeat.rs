//! [`Heartbeat`]: which connections get a heartbeat when. Each slot has a fixed step within the
//! interval, so every connection gets one heartbeat per interval, spread over it, even while thousands
//! connect.

use std::time::Duration;

use action_cable::Protocol;
use engine::{ConnId, Core, SharedFrame, Sys};

use super::ServeHandler;
use crate::protocols::{Disconnect, Events, Pings, ProtocolAdapter};
use crate::session::SessionProtocol;

/// Time between the steps of an interval.
const STEP: Duration = Duration::from_millis(20);

/// Heartbeats sent in one turn. After a delay many are due, and messages must not wait for all of
/// them.
const BEATS_PER_TURN: usize = 1024;

/// The steps that have passed.
#[derive(Default)]
pub(crate) struct Heartbeat {
    /// Steps since the clock began whose slots are all done.
    step: u64,
    /// The next slot of the step after it, if that has begun.
    slot: Option<u32>,
    /// From when on clients that are silent for the pong timeout are late.
    judged_from_ns: u64,
}

impl Heartbeat {
    /// Gives clients the pong timeout from now on: with the previous interval the last ping may be longer ago
    /// than the new timeout.
    pub(super) fn policy_changed(&mut self, now_ns: u64, pong_timeout: Option<Duration>) {
        let timeout_ns = u64::try_from(pong_timeout.unwrap_or_default().as_nanos());
        self.judged_from_ns = now_ns.saturating_add(timeout_ns.unwrap_or(u64::MAX));
    }

    /// The first connection has come: what was due before is not.
    pub(super) fn begin(&mut self, now_ns: u64) {
        (self.step, self.slot) = (now_ns / STEP.as_nanos() as u64, None);
    }

    /// When the next step is due; it may be past.
    fn next_ns(&self) -> u64 {
        (self.step + 1) * STEP.as_nanos() as u64
    }

    /// The next slot, of `slots`, whose step has come.
    fn due(&mut self, now_ns: u64, slots: u32, interval: Duration) -> Option<u32> {
        let steps = (interval.as_nanos() / STEP.as_nanos()).max(1) as u64;
        let stride = u32::try_from(steps).unwrap_or(u32::MAX);
        let now = now_ns / STEP.as_nanos() as u64;
        if self.step + steps < now {
            // After a delay of an interval or more each slot is due once.
            (self.step, self.slot) = (now - steps, None);
        }
        while self.step < now {
            let first = ((self.step + 1) % steps) as u32;
            let slot = self.slot.unwrap_or(first);
            if slot < slots {
                self.slot = Some(slot.saturating_add(stride));
                return Some(slot);
            }
            (self.step, self.slot) = (self.step + 1, None);
        }
        None
    }

    /// The slots that are due, as many of them as one turn may visit.
    fn portion(
        &mut self,
        now_ns: u64,
        slots: u32,
        interval: Duration,
    ) -> impl Iterator<Item = u32> {
        std::iter::from_fn(move || self.due(now_ns, slots, interval)).take(BEATS_PER_TURN)
    }
}

impl ServeHandler {
    /// Sends heartbeats that are due. Returns when to be called again.
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
        let mut pings = Pings::new(unix_s);
        let comment = frame(|out| Events::beat(unix_s, out));
        let mut heartbeat = std::mem::take(&mut self.heartbeat);
        let judges = now_ns >= heartbeat.judged_from_ns;
        for slot in heartbeat.portion(now_ns, core.slots(), interval) {
            let Some(id) = core.id_at(slot) else { continue };
            let Some(session) = core.user(id) else { continue };
            let protocol = |extended| Protocol { extended, encoding: session.encoding() };
            match session.protocol() {
                SessionProtocol::Cable => {
                    core.send_urgent(id, pings.of(protocol(false)));
                }
                SessionProtocol::CableExt => {
                    self.beat_extended(core, id, pings.of(protocol(true)), judges);
                }
                SessionProtocol::Events => drop(core.send_urgent(id, &comment)),
                SessionProtocol::Http
                | SessionProtocol::Echo
                | SessionProtocol::Topic
                | SessionProtocol::TopicReader
                | SessionProtocol::TopicAsker => {}
            }
        }
        self.heartbeat = heartbeat;
        Some(self.heartbeat.next_ns())
    }

    /// Pings a client of the extended protocol, or ends its session if `judges` and it was silent for longer
    /// than the pong timeout.
    fn beat_extended<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        ping: &SharedFrame,
        judges: bool,
    ) {
        if core.is_polled(id) {
            // Each request of its client is a sign of life, and it gets no pings.
            return;
        }
        let silent_ns = core.idle_at_least_ns(id).unwrap_or(0);
        let late = |timeout: Duration| u128::from(silent_ns) >= timeout.as_nanos();
        // What a paused client has sent is not read.
        let judged = judges && !core.has_paused(id) && core.is_open(id);
        if judged && self.policy.channels.pong_timeout.is_some_and(late) {
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
            while let Some(slot) = heartbeat.due(now.as_nanos() as u64, used, INTERVAL) {
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

    /// A connection that is the only one waits for its step, too.
    #[test]
    fn the_first_heartbeat_is_spread_over_the_interval() {
        let began = Duration::from_secs(1_000_000) + STEP / 2;
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(began.as_nanos() as u64);
        let mut first = vec![Duration::ZERO; 300];
        for passed in (0..=INTERVAL.as_millis() as u64).map(Duration::from_millis) {
            let now_ns = (began + passed).as_nanos() as u64;
            while let Some(slot) = heartbeat.due(now_ns, first.len() as u32, INTERVAL) {
                assert_eq!(std::mem::replace(&mut first[slot as usize], passed), Duration::ZERO);
            }
        }
        assert!(first.iter().all(|first| *first > Duration::ZERO && *first <= INTERVAL));
        let early = first.iter().filter(|first| **first <= INTERVAL / 2).count();
        assert!((140..=160).contains(&early), "{early}");
    }

    #[test]
    fn another_interval_causes_no_burst_and_no_long_gap() {
        let slots = 2_000;
        for (before, after) in [(3, 10), (10, 3), (3, 2), (2, 3), (60, 1)] {
            let (before, after) = (Duration::from_secs(before), Duration::from_secs(after));
            for changed in [61_000, 61_007, 61_490].map(Duration::from_millis) {
                let (mut heartbeat, mut now) = (Heartbeat::default(), Duration::ZERO);
                let mut last = vec![Duration::ZERO; slots as usize];
                while now < changed + 3 * after {
                    now += STEP;
                    let interval = if now < changed { before } else { after };
                    let mut beats = 0;
                    while let Some(slot) = heartbeat.due(now.as_nanos() as u64, slots, interval) {
                        let gap = now - std::mem::replace(&mut last[slot as usize], now);
                        assert!(gap <= before + after + STEP, "{before:?} {after:?}: {gap:?}");
                        beats += 1;
                    }
                    let share = f64::from(slots) * STEP.as_secs_f64() / interval.as_secs_f64();
                    assert!(f64::from(beats) <= 2.0 * share + 2.0, "{before:?} {after:?}: {beats}");
                }
                assert!(last.iter().all(|last| now - *last <= after + STEP));
            }
        }
    }

    #[test]
    fn a_step_is_a_small_share_and_a_long_pause_causes_no_storm() {
        let mut heartbeat = Heartbeat::default();
        let mut due = |ms: u64| {
            let turns = std::iter::repeat_with(|| {
                heartbeat.portion(ms * 1_000_000, 9_000, INTERVAL).collect::<Vec<u32>>()
            });
            let turns: Vec<Vec<u32>> = turns.take_while(|slots| !slots.is_empty()).collect();
            assert!(turns.iter().all(|slots| slots.len() <= BEATS_PER_TURN));
            let mut slots = turns.concat();
            slots.sort_unstable();
            slots.dedup();
            (turns.len(), slots.len())
        };
        assert_eq!(due(1_000_000), (9, 9_000), "each once, after a pause of any length");
        assert_eq!(due(1_000_019), (0, 0));
        assert_eq!((due(1_000_020), due(1_000_060)), ((1, 60), (1, 120)));
        assert_eq!(due(9_000_000), (9, 9_000));
    }

    #[test]
    fn steps_that_come_during_a_long_pause_are_not_lost_between_turns() {
        let mut heartbeat = Heartbeat::default();
        let (mut now_ms, mut beats) = (1_000_000, vec![0; 9_000]);
        for _ in 0..100 {
            for slot in heartbeat.portion(now_ms * 1_000_000, 9_000, INTERVAL) {
                beats[slot as usize] += 1;
            }
            // Turns take a while.
            now_ms += 10;
        }
        // One second has passed: each slot once, and a third of them again.
        let (once, twice) = (beats.iter().filter(|n| **n == 1).count(), beats.len());
        assert!(beats.iter().all(|n| (1..=2).contains(n)), "{beats:?}");
        assert!(twice - once <= 3_100, "{once}");
    }
}
