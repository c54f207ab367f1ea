//! [`Group`]: the members of one topic that get the same bytes, and the rolling sweep over them.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::invariant::broken;
use engine::{ConnId, Core, Handler, SharedFrame, Sys};

use crate::directory::Publication;
use crate::lane::Budget;
use crate::replay::Replaying;
use crate::topic::Topic;

/// Pending frames of a member are merged into one send up to this many bytes.
const MERGED_BYTES_MAX: usize = 256 * 1024;

/// Memory that a frame holds beyond its bytes.
const FRAME_BYTES: usize = 64;

#[derive(Copy, Clone)]
struct Member {
    slot: u32,
    /// The number of the next frame to send it.
    cursor: u32,
}

/// A frame, and the members that do not get it.
struct LogEntry {
    frame: SharedFrame,
    except: Option<ConnId>,
    /// The offset of its publication, and the members that get it from the history, if any.
    offset: u64,
    replaying: Option<Replaying>,
    /// When its publication was accepted; 0 if the delivery is not timed.
    accepted_ns: u64,
}

impl LogEntry {
    /// Whether it is not for all members.
    fn has_exceptions(&self) -> bool {
        self.except.is_some() || self.replaying.is_some()
    }

    fn excludes(&self, id: ConnId) -> bool {
        let replayed = |replaying: &Replaying| replaying.includes(id, self.offset);
        self.except == Some(id) || self.replaying.as_ref().is_some_and(replayed)
    }
}

/// One topic in one encoding on one worker.
pub(crate) struct Group {
    kind: u32,
    topic: Arc<Topic>,
    members: Vec<Member>,
    /// Frames that some member has not got yet, oldest first.
    log: VecDeque<LogEntry>,
    /// How many of them are not for all members.
    exceptions: usize,
    log_bytes: usize,
    /// The number of the first frame in the log.
    base: u32,
    /// Where the sweep continues: it never restarts, so no member is always last.
    position: usize,
    /// Members still to be visited in this round, and the frame up to which all are served after
    /// it.
    left: usize,
    round_head: u32,
    /// The frames merged last; the next members usually need the same.
    merged: Option<(u32, u32, SharedFrame)>,
}

impl Group {
    pub(crate) fn new(kind: u32, topic: Arc<Topic>) -> Self {
        Group {
            kind,
            topic,
            members: Vec::new(),
            log: VecDeque::new(),
            exceptions: 0,
            log_bytes: 0,
            base: 0,
            position: 0,
            left: 0,
            round_head: 0,
            merged: None,
        }
    }

    pub(crate) fn kind(&self) -> u32 {
        self.kind
    }

    pub(crate) fn topic(&self) -> &Arc<Topic> {
        &self.topic
    }

    pub(crate) fn name(&self) -> &str {
        self.topic.name()
    }

    /// Number of members.
    pub(crate) fn members(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Bytes of frames in the log.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.log_bytes
    }

    pub(crate) fn next_position(&self) -> u32 {
        self.members.len() as u32
    }

    pub(crate) fn add(&mut self, slot: u32) {
        self.members.push(Member { slot, cursor: self.head() });
        // It is in the path of the current round, and must not cost another member its visit.
        self.left += usize::from(self.left > 0);
    }

    /// Removes the member at a position; returns the slot of the member that moved there, if one
    /// did.
    pub(crate) fn remove(&mut self, position: u32) -> Option<u32> {
        if position as usize >= self.members.len() {
            broken("a membership's position is one of its group's");
            return None;
        }
        self.members.swap_remove(position as usize);
        let moved = self.members.get(position as usize).copied();
        if self.left > 0 {
            // The sweep may have passed the member that moved: the round restarts, unless that
            // member has all frames of this round. Otherwise members that keep leaving would keep a
            // round from ending.
            let lacks =
                |member: Member| (self.round_head.wrapping_sub(member.cursor) as i32).is_positive();
            let members = self.members.len();
            self.left = if moved.is_some_and(lacks) { members } else { self.left.min(members) };
        }
        if self.members.capacity() > 64 && self.members.len() < self.members.capacity() / 4 {
            self.members.shrink_to(self.members.len() * 2);
        }
        moved.map(|member| member.slot)
    }

    fn head(&self) -> u32 {
        self.base.wrapping_add(self.log.len() as u32)
    }

    /// Adds the frame of a publication for all members, or all but one; returns `true` if the group
    /// was idle and needs a sweep now.
    pub(crate) fn publish(
        &mut self,
        frame: SharedFrame,
        publication: &Publication,
        except: Option<ConnId>,
        replaying: Option<Replaying>,
    ) -> bool {
        let (offset, accepted_ns) = (publication.offset(), publication.accepted_ns);
        self.log_bytes += frame.bytes().len() + FRAME_BYTES;
        let entry = LogEntry { frame, except, offset, replaying, accepted_ns };
        self.exceptions += usize::from(entry.has_exceptions());
        self.log.push_back(entry);
        if self.left > 0 {
            return false;
        }
        self.begin_round();
        true
    }

    /// Excludes a member from the frames with an offset that are in the log.
    pub(crate) fn hold(&mut self, id: ConnId) {
        for entry in self.log.iter_mut().filter(|entry| entry.offset > 0) {
            self.exceptions += usize::from(!entry.has_exceptions());
            entry.replaying.get_or_insert_default().hold(id);
        }
    }

    fn begin_round(&mut self) {
        self.left = self.members.len();
        self.round_head = self.head();
    }

    /// Visits members while the budget lasts; returns `true` if there is more to do.
    pub(crate) fn sweep<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        budget: &mut Budget,
    ) -> bool {
        while self.left > 0 && budget.may_send() {
            budget.visits -= 1;
            if let Some(bytes) = self.visit(core) {
                budget.sends -= 1;
                budget.bytes = budget.bytes.saturating_sub(bytes);
            }
            self.left -= 1;
            if self.left == 0 {
                self.trim(core);
                if self.log.is_empty() {
                    self.merged = None;
                    return false;
                }
                self.begin_round();
            }
        }
        self.left > 0
    }

    /// Sends the next member all frames that it lacks; returns their bytes, `None` if it
    /// lacked none.
    fn visit<S: Sys, H: Handler>(&mut self, core: &mut Core<S, H>) -> Option<usize> {
        if self.position >= self.members.len() {
            self.position = 0;
        }
        let at = self.position;
        self.position += 1;
        self.catch_up(core, at)
    }

    /// Sends the member at a position all frames that it lacks; returns their bytes, `None` if it
    /// lacked none.
    pub(crate) fn catch_up<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        at: usize,
    ) -> Option<usize> {
        let head = self.head();
        let Some(member) = self.members.get_mut(at) else {
            broken("a group that is swept has members");
            return None;
        };
        let (slot, cursor) = (member.slot, member.cursor);
        if cursor == head {
            return None;
        }
        member.cursor = head;
        // Its connection has ended; the membership is removed when that is reaped.
        let id = core.id_at(slot)?;
        let first = cursor.wrapping_sub(self.base) as usize;
        let single = self.log.len() - first == 1;
        let excepted =
            self.exceptions > 0 && self.log.range(first..).any(|entry| entry.excludes(id));
        let merged = if single || excepted {
            None
        } else {
            self.merged(cursor, head, core.limits().send_queue_bytes)
        };
        if let Some(frame) = merged {
            core.send_shared(id, &frame);
            return Some(frame.bytes().len());
        }
        let mut bytes = 0;
        for entry in self.log.range(first..).filter(|entry| !entry.excludes(id)) {
            core.send_shared(id, &entry.frame);
            bytes += entry.frame.bytes().len();
        }
        Some(bytes)
    }

    /// The frames from `cursor` on merged into one, unless they are too long for that.
    fn merged(&mut self, cursor: u32, head: u32, longest: usize) -> Option<SharedFrame> {
        if let Some((from, to, frame)) = &self.merged
            && (*from, *to) == (cursor, head)
        {
            return Some(frame.clone());
        }
        let first = cursor.wrapping_sub(self.base) as usize;
        let length: usize = self.log.range(first..).map(|entry| entry.frame.bytes().len()).sum();
        if length > MERGED_BYTES_MAX.min(longest) {
            return None;
        }
        let mut bytes = Vec::with_capacity(length);
        for entry in self.log.range(first..) {
            bytes.extend_from_slice(entry.frame.bytes());
        }
        let frame = SharedFrame::new(&bytes, (self.log.len() - first) as u32);
        self.merged = Some((cursor, head, frame.clone()));
        Some(frame)
    }

    /// Drops the frames that all members have got.
    fn trim<S: Sys, H: Handler>(&mut self, core: &Core<S, H>) {
        // A long turn would be missing in the time at its start.
        let now_ns = core.clock_ns();
        let delivery = &core.histograms().delivery_ns;
        let done = self.round_head.wrapping_sub(self.base) as usize;
        for entry in self.log.drain(..done.min(self.log.len())) {
            self.log_bytes -= entry.frame.bytes().len() + FRAME_BYTES;
            self.exceptions -= usize::from(entry.has_exceptions());
            if entry.accepted_ns > 0 {
                delivery.record(now_ns.saturating_sub(entry.accepted_ns));
            }
        }
        self.base = self.round_head;
        if self.log.is_empty() && self.log.capacity() > 1024 {
            self.log = VecDeque::new();
        }
    }
}
