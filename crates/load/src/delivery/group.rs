//! [`Members`]: one worker's users in their groups. `checker.rs` checks and counts what they receive.
//! Messages sent in the warm-up are not expected; only their number is counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::workload::scenario::groups::{GroupState, Role, SenderCounters};
use engine::invariant;

use crate::delivery::checker::{
    Checker, DeliveryCounters, DeliveryCounts, Expected, Track, add_worst, keep_worst,
};
use crate::delivery::publication::Publication;
use crate::{Receiver, Recorder, Series};

/// One worker's users in their groups.
pub(crate) struct Members {
    state: Arc<GroupState>,
    members: Vec<Member>,
    /// The tracks of each receiver, one per sender.
    tracks: Vec<SenderTrack>,
    checker: Checker,
    counts: DeliveryCounters,
    stats: GroupStats,
    /// Messages sent before this are warm-up.
    measure_ns: u64,
}

/// One user.
struct Member {
    group: u32,
    member: u32,
    /// Its first track.
    tracks: usize,
    arrived: bool,
    sent_all: bool,
    settled: bool,
}

/// The receipts of a receiver from a sender.
#[derive(Copy, Clone, Default)]
struct SenderTrack {
    track: Track,
    /// Messages assigned and failed before the receiver arrived.
    before: (u32, u32),
    /// Failures of the sender that were looked at.
    seen: u32,
}

/// The counters and times of a worker's groups.
#[derive(Clone, Default)]
pub(crate) struct GroupStats {
    pub(crate) sent: u64,
    pub(crate) warm_up: u64,
    pub(crate) failed: u64,
    pub(crate) expected: u64,
    pub(crate) delivery: DeliveryCounts,
    pub(crate) lost: u64,
    pub(crate) senders: u64,
    pub(crate) receivers: u64,
    pub(crate) short: u64,
    pub(crate) worst: Vec<Receiver>,
    /// [`Series::Broadcast`], [`Series::FromSend`] and [`Series::PublishLag`].
    pub(crate) recorder: Recorder,
    /// Times of the first and last send, and of the last receipt; 0 before.
    pub(crate) first_sent_ns: u64,
    pub(crate) last_sent_ns: u64,
    pub(crate) last_received_ns: u64,
}

impl Members {
    pub(crate) fn new(state: Arc<GroupState>) -> Members {
        let late_ns = u64::try_from(state.group.late.as_nanos()).unwrap_or(u64::MAX);
        Members {
            checker: Checker::new(late_ns).among_others(),
            state,
            members: Vec::new(),
            tracks: Vec::new(),
            counts: DeliveryCounters::default(),
            stats: GroupStats::default(),
            measure_ns: 0,
        }
    }

    /// Sets the end of the warm-up.
    pub(crate) fn measure_from(&mut self, measure_ns: u64) {
        self.measure_ns = measure_ns;
        self.checker.ignore_before(measure_ns);
    }

    /// Adds the worker's next user, by its number in the run.
    pub(crate) fn add(&mut self, number: u64) {
        let group = self.state.group;
        let size = u64::from(group.size.max(1));
        let (of, member) = ((number / size) as u32, (number % size) as u32);
        let tracks = self.tracks.len();
        if group.receiver(member).is_some() {
            self.stats.receivers += 1;
            let senders = group.numbers().0 as usize;
            self.tracks.resize(tracks + senders, SenderTrack::default());
        }
        self.stats.senders += u64::from(group.sender(member).is_some());
        let (arrived, sent_all, settled) = (false, false, false);
        self.members.push(Member { group: of, member, tracks, arrived, sent_all, settled });
    }

    /// Group and member index of a user.
    pub(crate) fn place(&self, at: u32) -> (u32, u32) {
        self.members.get(at as usize).map_or((0, 0), |one| (one.group, one.member))
    }

    pub(crate) fn role(&self, at: u32) -> Role {
        self.state.group.role(self.place(at).1)
    }

    /// The next receiver of a user after `after`, and its number in the run.
    pub(crate) fn next_to(&self, at: u32, after: Option<u32>) -> Option<(u32, u64)> {
        let (of, member) = self.place(at);
        let group = self.state.group;
        let receiver = group.next_receiver(member, after)?;
        let number = u64::from(of) * u64::from(group.size) + u64::from(group.receiver_at(receiver));
        Some((receiver, number))
    }

    /// Notes that a user has arrived; true once all of its group have.
    pub(crate) fn arrive(&mut self, at: u32) -> bool {
        let Some(one) = self.members.get_mut(at as usize) else {
            invariant::broken("a user of a group is one of its members");
            return false;
        };
        let state = &self.state;
        if !one.arrived {
            one.arrived = true;
            if let Some(receiver) = state.group.receiver(one.member) {
                for (track, sender) in
                    self.tracks.iter_mut().skip(one.tracks).zip(0..state.group.numbers().0)
                {
                    track.before = state.sent(one.group, sender, receiver);
                    track.seen = track.before.1;
                }
            }
            if let Some(progress) = state.progress(one.group) {
                progress.arrived.fetch_add(1, Ordering::SeqCst);
            }
        }
        state.is_met(one.group)
    }

    /// Assigns the number of a message about to be sent.
    pub(crate) fn sends(&mut self, at: u32, to: u32, now_ns: u64) -> Option<u32> {
        let one = self.members.get(at as usize)?;
        let sender = self.state.group.sender(one.member)?;
        let counters = self.state.counters(one.group, sender, to)?;
        let number = counters.sent.fetch_add(1, Ordering::SeqCst);
        if now_ns < self.measure_ns {
            // Only this user writes this counter.
            counters.warm.store(number + 1, Ordering::SeqCst);
            self.stats.warm_up += 1;
            return Some(number);
        }
        self.stats.sent += 1;
        if self.stats.first_sent_ns == 0 {
            self.stats.first_sent_ns = now_ns;
        }
        self.stats.last_sent_ns = now_ns;
        Some(number)
    }

    /// Notes that the message with this stamp was not sent or was refused.
    pub(crate) fn failed(&mut self, at: u32, to: u32, stamp: Publication) {
        if stamp.published_ns < self.measure_ns {
            self.stats.warm_up = self.stats.warm_up.saturating_sub(1);
            return;
        }
        let Some(one) = self.members.get(at as usize) else {
            return invariant::broken("a user of a group is one of its members");
        };
        let Some(sender) = self.state.group.sender(one.member) else { return };
        if let Some(counters) = self.state.counters(one.group, sender, to) {
            counters.fail(stamp.sequence);
            self.stats.failed += 1;
        }
    }

    /// Records the delay of a message about to be sent.
    pub(crate) fn lagged(&mut self, due_ns: u64, now_ns: u64) {
        if now_ns >= self.measure_ns {
            self.stats.recorder.record(Series::PublishLag, now_ns - due_ns);
        }
    }

    /// Checks a message received by a user.
    pub(crate) fn receipt(&mut self, at: u32, data: &[u8], now_ns: u64) {
        let Some(one) = self.members.get(at as usize).filter(|one| one.arrived) else { return };
        let (state, group, tracks) = (&self.state, self.state.group, &mut self.tracks);
        let counts = &self.counts;
        let first = self.checker.check(&self.counts, data, now_ns, |publication| {
            let Publication { publisher, sequence, .. } = *publication;
            let (of, from) = (publisher / group.size.max(1), publisher % group.size.max(1));
            let is_own = from == one.member && of == one.group;
            if is_own && !group.own {
                return Expected::Ignored;
            }
            let sender = group.sender(from).filter(|_| of == one.group);
            let Some(sender) = sender else { return Expected::Foreign };
            if group.receiver(one.member).is_none() {
                // A user that only sends may receive what all receive.
                return if group.each { Expected::Foreign } else { Expected::Ignored };
            }
            let Some(of_sender) = tracks.get_mut(one.tracks + sender as usize) else {
                invariant::broken("a receiver has a track for each sender");
                return Expected::Ignored;
            };
            let counters = group
                .receiver(one.member)
                .and_then(|receiver| state.counters(one.group, sender, receiver));
            counters.into_iter().for_each(|counters| of_sender.take_back(counters, counts));
            let is_refused =
                || counters.is_some_and(|of| of.failures(0).any(|failed| failed == sequence));
            match sequence.checked_sub(of_sender.before.0) {
                Some(number) if is_refused() => {
                    Expected::Refused(&mut of_sender.track.window, number)
                }
                Some(number) => of_sender.track.expects(number),
                None => Expected::Early,
            }
        });
        if first.is_some() {
            self.stats.last_received_ns = now_ns;
            if let Some(progress) = self.state.progress(one.group) {
                progress.last_ns.fetch_max(now_ns, Ordering::SeqCst);
            }
        }
    }

    /// Notes that a user is done sending; true once all senders of its group are.
    pub(crate) fn sends_no_more(&mut self, at: u32, now_ns: u64) -> bool {
        let Some(one) = self.members.get_mut(at as usize) else {
            invariant::broken("a user of a group is one of its members");
            return true;
        };
        if !one.sent_all {
            one.sent_all = true;
            let sends = self.state.group.sender(one.member).is_some();
            if let Some(progress) = self.state.progress(one.group).filter(|_| sends) {
                progress.last_ns.fetch_max(now_ns, Ordering::SeqCst);
                progress.done.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.state.is_sent(one.group)
    }

    /// Whether the group of a user that is done may still receive messages.
    pub(crate) fn stays(&mut self, at: u32, now_ns: u64) -> bool {
        if self.sends_no_more(at, now_ns) {
            self.settle(at);
        }
        let group = self.place(at).0;
        // A group that was never complete has nothing to wait for.
        self.state.is_met(group) && !self.state.is_over(group, now_ns)
    }

    /// Takes back what a receiver has received of messages that were refused later.
    fn take_back(&mut self, at: u32) {
        let Some(one) = self.members.get(at as usize) else { return };
        let Some(receiver) = self.state.group.receiver(one.member) else { return };
        let senders = 0..self.state.group.numbers().0;
        for (track, sender) in self.tracks.iter_mut().skip(one.tracks).zip(senders) {
            if let Some(counters) = self.state.counters(one.group, sender, receiver) {
                track.take_back(counters, &self.counts);
            }
        }
    }

    /// Notes, once, that a receiver has received everything expected.
    fn settle(&mut self, at: u32) {
        self.take_back(at);
        let expected = self.expected(at);
        let Some(one) = self.members.get_mut(at as usize) else {
            return invariant::broken("a user of a group is one of its members");
        };
        let has_all = expected.is_some_and(|(expected, lost)| lost == 0 && expected < u64::MAX);
        if has_all && !one.settled {
            one.settled = true;
            if let Some(progress) = self.state.progress(one.group) {
                progress.settled.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Messages expected and missing at a receiver; `None` for other users.
    fn expected(&self, at: u32) -> Option<(u64, u64)> {
        let one = self.members.get(at as usize)?;
        let group = self.state.group;
        let receiver = group.receiver(one.member)?;
        let (mut expected, mut lost) = (0, 0);
        for (track, sender) in self.tracks.iter().skip(one.tracks).zip(0..group.numbers().0) {
            if group.sender(one.member) == Some(sender) && !group.own || !one.arrived {
                continue;
            }
            let (sent, failed) = self.state.sent(one.group, sender, receiver);
            let (sent_before, failed_before) = track.before;
            let from = sent_before.max(self.state.warm(one.group, sender, receiver));
            let due = sent.saturating_sub(from).saturating_sub(failed - failed_before);
            expected += u64::from(due);
            lost += u64::from(due.saturating_sub(track.track.received));
        }
        Some((expected, lost))
    }

    /// The final stats; `number` returns the number of a user in the run.
    pub(crate) fn finish(&mut self, number: impl Fn(u32) -> u64) -> GroupStats {
        (0..self.members.len() as u32).for_each(|at| self.take_back(at));
        let mut stats = std::mem::take(&mut self.stats);
        stats.delivery = std::mem::take(&mut self.counts).counts();
        self.checker.drain(&mut stats.recorder);
        for at in 0..self.members.len() as u32 {
            let Some((expected, lost)) = self.expected(at) else { continue };
            stats.expected += expected;
            stats.lost += lost;
            if lost > 0 {
                stats.short += 1;
                let received = expected - lost;
                let receiver = Receiver { connection: number(at), received, lost };
                add_worst(&mut stats.worst, receiver);
            }
        }
        keep_worst(&mut stats.worst);
        stats
    }
}

impl SenderTrack {
    /// Takes back receipts of messages that were refused since the last look: they stand for no other.
    fn take_back(&mut self, counters: &SenderCounters, counts: &DeliveryCounters) {
        let failed = counters.failed.load(Ordering::SeqCst);
        if failed == self.seen {
            return;
        }
        for number in counters.failures(self.seen) {
            let number = number.checked_sub(self.before.0);
            if number.is_some_and(|number| self.track.window.has(number)) {
                self.track.received = self.track.received.saturating_sub(1);
                counts.taken_back.add(1);
                counts.refused.add(1);
            }
        }
        self.seen = failed;
    }
}

impl GroupStats {
    pub(crate) fn merge(&mut self, other: &GroupStats) {
        macro_rules! add {
            ($($name:ident),*) => { $(self.$name += other.$name;)* };
        }
        add!(sent, warm_up, failed, expected, lost, senders, receivers, short);
        self.delivery.merge(&other.delivery);
        self.worst.extend_from_slice(&other.worst);
        keep_worst(&mut self.worst);
        self.recorder.merge(&other.recorder);
        let firsts = [self.first_sent_ns, other.first_sent_ns].into_iter().filter(|ns| *ns > 0);
        self.first_sent_ns = firsts.min().unwrap_or(0);
        self.last_sent_ns = self.last_sent_ns.max(other.last_sent_ns);
        self.last_received_ns = self.last_received_ns.max(other.last_received_ns);
    }
}
