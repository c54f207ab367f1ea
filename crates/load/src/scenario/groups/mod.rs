//! Groups of users who send to each other: who sends to whom ([`Group`]), and what all workers know of
//! it ([`Board`]). A message carries its sender, its number and when it was sent (`{{stamp}}`, laid out
//! as in [`crate::broadcast`]); every receiver is owed what was sent since it was there.

mod reception;
mod summary;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub(super) use self::reception::{Books, Members};
pub use self::summary::GroupSummary;

/// The most pairs of a sender and a receiver in all groups together; each takes some 40 bytes.
pub const GROUP_PAIRS_MAX: u64 = 1 << 20;

/// How users are grouped: users 0 to `size` − 1 are the first group, and so on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Who sends to whom.
    pub kind: Kind,
    /// Users of a group.
    pub size: u32,
    /// Senders who receive are owed their own messages too.
    pub own: bool,
    /// Each message is meant for one receiver; else all receivers are owed it.
    pub each: bool,
    /// A receipt later than this after its sending is late.
    pub late: Duration,
    /// When all is sent and nothing has come for so long, what is missing is lost.
    pub quiet: Duration,
}

/// Who sends to whom in a group.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The first to the second.
    OneToOne,
    /// The first to all others.
    OneToMany,
    /// All others to the first.
    ManyToOne,
    /// Everybody to everybody.
    ManyToMany,
}

/// What a user does in its group.
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
    /// Those of a group who send, and those who receive.
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

    /// Pairs of a sender and a receiver among so many users.
    #[must_use]
    pub fn pairs(&self, users: u64) -> u64 {
        let (senders, receivers) = self.numbers();
        let groups = users / u64::from(self.size.max(1));
        groups.saturating_mul(u64::from(senders) * u64::from(receivers))
    }

    /// What the user of that place in its group does.
    #[must_use]
    pub fn role(&self, member: u32) -> Role {
        match (self.sender(member), self.receiver(member)) {
            (Some(_), Some(_)) => Role::Both,
            (Some(_), None) => Role::Sender,
            _ => Role::Receiver,
        }
    }

    /// Which of the senders it is.
    fn sender(&self, member: u32) -> Option<u32> {
        match self.kind {
            Kind::OneToOne | Kind::OneToMany => (member == 0).then_some(0),
            Kind::ManyToOne => member.checked_sub(1),
            Kind::ManyToMany => Some(member),
        }
    }

    /// Which of the receivers it is.
    fn receiver(&self, member: u32) -> Option<u32> {
        match self.kind {
            Kind::OneToOne | Kind::OneToMany => member.checked_sub(1),
            Kind::ManyToOne => (member == 0).then_some(0),
            Kind::ManyToMany => Some(member),
        }
    }

    /// The place in the group of a receiver.
    fn receiver_at(&self, receiver: u32) -> u32 {
        match self.kind {
            Kind::OneToOne | Kind::OneToMany => receiver + 1,
            Kind::ManyToOne | Kind::ManyToMany => receiver,
        }
    }

    /// The next receiver after that one to whom this user may send; `None` after the last.
    fn next_receiver(&self, member: u32, after: Option<u32>) -> Option<u32> {
        let from = after.map_or(0, |receiver| receiver + 1);
        (from..self.numbers().1).find(|&receiver| self.receiver_at(receiver) != member)
    }
}

/// What all workers know of the groups of a run.
pub(super) struct Board {
    pub(super) group: Group,
    pub(super) users: u64,
    cells: Box<[Cell]>,
    meetings: Box<[Meeting]>,
}

/// What one sender has sent: to all, or to one receiver where each has its own.
#[derive(Default)]
struct Cell {
    /// Numbers given.
    sent: AtomicU32,
    /// Of them the first so many in the warm-up: nobody is owed those.
    warm: AtomicU32,
    /// Of the others those that never left.
    failed: AtomicU32,
}

/// How far a group is.
#[derive(Default)]
struct Meeting {
    /// Members who are there.
    arrived: AtomicU32,
    /// Senders who send no more.
    done: AtomicU32,
    /// Receivers who have all.
    settled: AtomicU32,
    /// When anything happened last.
    last_ns: AtomicU64,
}

impl Board {
    pub(super) fn new(group: Group, users: u64) -> Board {
        let groups = users / u64::from(group.size.max(1));
        let (senders, receivers) = group.numbers();
        let each = if group.each { u64::from(receivers) } else { 1 };
        let some = |count: u64| 0..count;
        Board {
            group,
            users,
            cells: some(groups * u64::from(senders) * each).map(|_| Cell::default()).collect(),
            meetings: some(groups).map(|_| Meeting::default()).collect(),
        }
    }

    fn cell(&self, group: u32, sender: u32, receiver: u32) -> Option<&Cell> {
        let (senders, receivers) = self.group.numbers();
        let first = group as usize * senders as usize + sender as usize;
        self.cells.get(match self.group.each {
            true => first * receivers as usize + receiver as usize,
            false => first,
        })
    }

    /// Numbers given by a sender for a receiver, and how many of them, after the warm-up, never left.
    fn sent(&self, group: u32, sender: u32, receiver: u32) -> (u32, u32) {
        let cell = self.cell(group, sender, receiver);
        cell.map_or((0, 0), |cell| {
            (cell.sent.load(Ordering::SeqCst), cell.failed.load(Ordering::SeqCst))
        })
    }

    /// Of the numbers given those of the warm-up.
    fn warm(&self, group: u32, sender: u32, receiver: u32) -> u32 {
        let cell = self.cell(group, sender, receiver);
        cell.map_or(0, |cell| cell.warm.load(Ordering::SeqCst))
    }

    fn meeting(&self, group: u32) -> Option<&Meeting> {
        self.meetings.get(group as usize)
    }

    fn is_met(&self, group: u32) -> bool {
        let arrived = |meeting: &Meeting| meeting.arrived.load(Ordering::SeqCst);
        self.meeting(group).is_some_and(|meeting| arrived(meeting) >= self.group.size)
    }

    fn is_sent(&self, group: u32) -> bool {
        let done = |meeting: &Meeting| meeting.done.load(Ordering::SeqCst);
        self.meeting(group).is_some_and(|meeting| done(meeting) >= self.group.numbers().0)
    }

    /// Nothing more is to come: all receivers have all, or it has been quiet for long enough.
    fn is_over(&self, group: u32, now_ns: u64) -> bool {
        let Some(meeting) = self.meeting(group).filter(|_| self.is_sent(group)) else {
            return self.meeting(group).is_none();
        };
        let quiet_ns = self.group.quiet.as_nanos() as u64;
        let last_ns = meeting.last_ns.load(Ordering::SeqCst);
        meeting.settled.load(Ordering::SeqCst) >= self.group.numbers().1
            || now_ns >= last_ns.saturating_add(quiet_ns)
    }

    /// Groups all of whose members were there.
    fn met(&self) -> u64 {
        let all = 0..u32::try_from(self.meetings.len()).unwrap_or(u32::MAX);
        all.filter(|&group| self.is_met(group)).count() as u64
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
