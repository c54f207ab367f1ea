//! Groups of users that send to each other: their configuration ([`Group`]), and the state shared by
//! all workers ([`GroupState`]). A message carries its sender, number and send time (`{{stamp}}`, with
//! the layout of [`crate::delivery::publication`]). A receiver is expected to get all messages sent since it arrived.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The most pairs of a sender and a receiver in all groups together; each takes some 40 bytes.
pub const GROUP_PAIRS_MAX: u64 = 1 << 20;

/// How users are grouped: users 0 to `size` − 1 are the first group, and so on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The kind of group.
    pub kind: Kind,
    /// Users per group.
    pub size: u32,
    /// Senders that receive are expected to get their own messages too.
    pub own: bool,
    /// Each message has one receiver; otherwise all receivers are expected to get it.
    pub each: bool,
    /// A receipt later than this after its sending is late.
    pub late: Duration,
    /// When all is sent and nothing is received for this time, missing messages are lost.
    pub quiet: Duration,
}

/// The senders and receivers of a group.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The first to the second.
    OneToOne,
    /// The first to all others.
    OneToMany,
    /// All others to the first.
    ManyToOne,
    /// All to all.
    ManyToMany,
}

/// The role of a user in its group.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// It sends.
    Sender,
    /// It receives.
    Receiver,
    /// It does both.
    Both,
}

impl Kind {
    /// All, by name.
    pub const NAMED: [(&'static str, Kind); 4] = [
        ("1:1", Kind::OneToOne),
        ("1:N", Kind::OneToMany),
        ("N:1", Kind::ManyToOne),
        ("N:N", Kind::ManyToMany),
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Kind::NAMED.iter().find(|(_, kind)| kind == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

impl Group {
    /// The numbers of senders and receivers in a group.
    #[must_use]
    pub fn numbers(&self) -> (u32, u32) {
        let others = self.size.saturating_sub(1);
        match self.kind {
            Kind::OneToOne => (1, 1),
            Kind::OneToMany => (1, others),
            Kind::ManyToOne => (others, 1),
            Kind::ManyToMany => (self.size, self.size),
        }
    }

    /// Pairs of a sender and a receiver among `users`.
    #[must_use]
    pub fn pairs(&self, users: u64) -> u64 {
        let (senders, receivers) = self.numbers();
        let groups = users / u64::from(self.size.max(1));
        groups.saturating_mul(u64::from(senders) * u64::from(receivers))
    }

    /// The role of the member at an index of its group.
    #[must_use]
    pub fn role(&self, member: u32) -> Role {
        match (self.sender(member), self.receiver(member)) {
            (Some(_), Some(_)) => Role::Both,
            (Some(_), None) => Role::Sender,
            _ => Role::Receiver,
        }
    }

    /// The sender index of a member.
    pub(crate) fn sender(&self, member: u32) -> Option<u32> {
        match self.kind {
            Kind::OneToOne | Kind::OneToMany => (member == 0).then_some(0),
            Kind::ManyToOne => member.checked_sub(1),
            Kind::ManyToMany => Some(member),
        }
    }

    /// The receiver index of a member.
    pub(crate) fn receiver(&self, member: u32) -> Option<u32> {
        match self.kind {
            Kind::OneToOne | Kind::OneToMany => member.checked_sub(1),
            Kind::ManyToOne => (member == 0).then_some(0),
            Kind::ManyToMany => Some(member),
        }
    }

    /// The member index of a receiver.
    pub(crate) fn receiver_at(&self, receiver: u32) -> u32 {
        match self.kind {
            Kind::OneToOne | Kind::OneToMany => receiver + 1,
            Kind::ManyToOne | Kind::ManyToMany => receiver,
        }
    }

    /// The next receiver that a member sends to; `None` after the last.
    pub(crate) fn next_receiver(&self, member: u32, after: Option<u32>) -> Option<u32> {
        let from = after.map_or(0, |receiver| receiver + 1);
        (from..self.numbers().1).find(|&receiver| self.receiver_at(receiver) != member)
    }
}

/// The state of the groups of a run, shared by all workers.
pub(crate) struct GroupState {
    pub(crate) group: Group,
    /// Those of this generator.
    pub(crate) groups: u64,
    senders: Box<[SenderCounters]>,
    progress: Box<[GroupProgress]>,
}

/// What one sender has sent: to all, or with `each` to one receiver.
#[derive(Default)]
pub(crate) struct SenderCounters {
    /// Numbers assigned.
    pub(crate) sent: AtomicU32,
    /// The first of them, sent in the warm-up: they are not expected.
    pub(crate) warm: AtomicU32,
    /// Those after the warm-up that were not sent or were refused.
    pub(crate) failed: AtomicU32,
    /// The newest of them.
    failures: [AtomicU32; FAILURES],
}

/// The newest failures of a sender that its receivers can look at.
const FAILURES: usize = 8;

impl SenderCounters {
    /// Notes that a number was not sent or was refused. Only the sender calls this.
    pub(crate) fn fail(&self, number: u32) {
        let failed = self.failed.load(Ordering::SeqCst);
        if let Some(newest) = self.failures.get(failed as usize % FAILURES) {
            newest.store(number, Ordering::SeqCst);
        }
        self.failed.store(failed + 1, Ordering::SeqCst);
    }

    /// The newest failures from the `seen`th on.
    pub(crate) fn failures(&self, seen: u32) -> impl Iterator<Item = u32> {
        let failed = self.failed.load(Ordering::SeqCst);
        let kept = failed.saturating_sub(FAILURES as u32);
        let number = |at: u32| self.failures.get(at as usize % FAILURES);
        (seen.max(kept)..failed).filter_map(number).map(|number| number.load(Ordering::SeqCst))
    }
}

/// The progress of a group.
#[derive(Default)]
pub(crate) struct GroupProgress {
    /// Members that have arrived.
    pub(crate) arrived: AtomicU32,
    /// Senders that are done.
    pub(crate) done: AtomicU32,
    /// Receivers that have received everything.
    pub(crate) settled: AtomicU32,
    /// When the last event happened.
    pub(crate) last_ns: AtomicU64,
}

impl GroupState {
    /// Of so many users, of which a generator has `own`.
    pub(crate) fn new(group: Group, users: u64, own: u64) -> GroupState {
        let groups = users / u64::from(group.size.max(1));
        let (senders, receivers) = group.numbers();
        let each = if group.each { u64::from(receivers) } else { 1 };
        let some = |count: u64| 0..count;
        GroupState {
            group,
            groups: own / u64::from(group.size.max(1)),
            senders: some(groups * u64::from(senders) * each)
                .map(|_| SenderCounters::default())
                .collect(),
            progress: some(groups).map(|_| GroupProgress::default()).collect(),
        }
    }

    pub(crate) fn counters(
        &self,
        group: u32,
        sender: u32,
        receiver: u32,
    ) -> Option<&SenderCounters> {
        let (senders, receivers) = self.group.numbers();
        let first = group as usize * senders as usize + sender as usize;
        self.senders.get(match self.group.each {
            true => first * receivers as usize + receiver as usize,
            false => first,
        })
    }

    /// Numbers assigned by a sender for a receiver, and how many of them failed after the warm-up.
    pub(crate) fn sent(&self, group: u32, sender: u32, receiver: u32) -> (u32, u32) {
        let counters = self.counters(group, sender, receiver);
        counters.map_or((0, 0), |counters| {
            (counters.sent.load(Ordering::SeqCst), counters.failed.load(Ordering::SeqCst))
        })
    }

    /// Numbers assigned in the warm-up.
    pub(crate) fn warm(&self, group: u32, sender: u32, receiver: u32) -> u32 {
        let counters = self.counters(group, sender, receiver);
        counters.map_or(0, |counters| counters.warm.load(Ordering::SeqCst))
    }

    pub(crate) fn progress(&self, group: u32) -> Option<&GroupProgress> {
        self.progress.get(group as usize)
    }

    pub(crate) fn is_met(&self, group: u32) -> bool {
        let arrived = |progress: &GroupProgress| progress.arrived.load(Ordering::SeqCst);
        self.progress(group).is_some_and(|progress| arrived(progress) >= self.group.size)
    }

    pub(crate) fn is_sent(&self, group: u32) -> bool {
        let done = |progress: &GroupProgress| progress.done.load(Ordering::SeqCst);
        self.progress(group).is_some_and(|progress| done(progress) >= self.group.numbers().0)
    }

    /// Whether no more messages are expected: all receivers are complete, or the quiet time is over.
    pub(crate) fn is_over(&self, group: u32, now_ns: u64) -> bool {
        let Some(progress) = self.progress(group).filter(|_| self.is_sent(group)) else {
            return self.progress(group).is_none();
        };
        let quiet_ns = self.group.quiet.as_nanos() as u64;
        let last_ns = progress.last_ns.load(Ordering::SeqCst);
        progress.settled.load(Ordering::SeqCst) >= self.group.numbers().1
            || now_ns >= last_ns.saturating_add(quiet_ns)
    }

    /// Groups whose members have all arrived.
    pub(crate) fn met(&self) -> u64 {
        let all = 0..u32::try_from(self.progress.len()).unwrap_or(u32::MAX);
        all.filter(|&group| self.is_met(group)).count() as u64
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
