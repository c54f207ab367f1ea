//! [`Topics::replay`]: sends members what they missed, from the history. Meanwhile they get no publication
//! with an offset from their group; once the last kept one was sent they do, without a gap or a repetition.
//!
//! Publications that were in the history when a replay ended may still be on their way to the group:
//! [`Replays`] knows up to which offset each such member has them, as long as that matters. Members that
//! missed the same share the frames: a replay is sent in pieces that end at fixed offsets, and the pieces
//! of a group are kept for a moment.

use std::collections::VecDeque;
use std::rc::Rc;

use engine::invariant::broken;
use engine::{ConnId, Core, Handler, Sent, SharedFrame, Sys};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::Topics;
use crate::directory::Publication;
use crate::history::{Position, Unavailable};
use crate::memberships::Subscriber;

/// Publications of a piece; one ends at each multiple of this offset, or of a greater one where offsets leave numbers
/// out.
const PIECE_MESSAGES: u64 = 64;
/// Bytes of the payloads in a piece, unless it is a single one.
const PIECE_BYTES: usize = 64 * 1024;
/// Bytes of pieces that a worker keeps, and how long it keeps those of a group that nobody needs.
const PIECES_BYTES_MAX: usize = 4 * 1024 * 1024;
const PIECES_AGE_NS: u64 = 1_000_000_000;
/// Groups examined for what is not needed any more, in one turn.
const PRUNED_PER_TURN: usize = 256;
/// The offset of a member whose replay has not ended.
const HELD: u64 = u64::MAX;

/// The members of a group that get publications from the history, each up to which offset. Shared with
/// frames of the group, for which it stays as it was.
#[derive(Clone, Default)]
pub(crate) struct Replaying(Rc<HashMap<ConnId, u64, RandomState>>);

impl Replaying {
    pub(crate) fn includes(&self, id: ConnId, offset: u64) -> bool {
        self.0.get(&id).is_some_and(|until| offset <= *until)
    }

    pub(crate) fn hold(&mut self, id: ConnId) {
        Rc::make_mut(&mut self.0).insert(id, HELD);
    }
}

/// The epoch of a piece, and the offsets of the first and the last publication that it is to have.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
struct PieceKey {
    epoch: u32,
    first: u64,
    last: u64,
}

/// Encoded publications.
struct Piece {
    frame: SharedFrame,
    /// These are all up to this offset.
    last: u64,
    /// Connections that do not get all of them.
    except: Vec<ConnId>,
}

/// The replays of one group.
#[derive(Default)]
struct GroupReplays {
    replaying: Replaying,
    /// The epoch of the offsets in it.
    epoch: u32,
    pieces: HashMap<PieceKey, Piece, RandomState>,
    bytes: usize,
    /// When a piece was used last, and when the group is examined.
    used_ns: u64,
    examine_ns: u64,
}

/// The replays of one worker. Empty unless there was one within the last second.
#[derive(Default)]
pub(crate) struct Replays {
    groups: HashMap<u32, GroupReplays, RandomState>,
    /// Groups and when they are examined, in this order.
    examined: VecDeque<(u64, u32)>,
    /// Bytes of pieces.
    bytes: usize,
}

/// What [`Topics::replay`] has done.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// All is sent, and the member gets further publications as they come: those from this position on.
    Done(Position),
    /// The next offset, and whether to wait until the connection has sent what waits.
    More {
        /// The position to continue at.
        next: Position,
        /// The socket takes nothing now.
        waits: bool,
    },
}

impl Topics {
    /// Keeps publications with an offset from a subscriber, until a [`Topics::replay`] ends. Returns `false`
    /// if it is not subscribed.
    pub fn hold<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        id: ConnId,
        topic: &str,
        kind: u32,
    ) -> bool
    where
        H: Handler<User: Subscriber>,
    {
        let Some(index) = self.group_of(core, id, topic, kind) else { return false };
        let Some(group) = self.groups.get_mut(index) else { return false };
        group.hold(id);
        self.replays.group(index, core.now_ns()).replaying.hold(id);
        true
    }

    /// Lets a subscriber that was just added get what is published after a position: what was published before may still
    /// be on its way.
    pub fn skip_until<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        id: ConnId,
        topic: &str,
        kind: u32,
        last: Position,
    ) where
        H: Handler<User: Subscriber>,
    {
        if self.hold(core, id, topic, kind)
            && let Some(index) = self.group_of(core, id, topic, kind)
        {
            self.replays.release(index, id, Some(last));
        }
    }

    /// Ends the hold of a subscriber without sending it what is in the history.
    pub fn release<S: Sys, H>(&mut self, core: &mut Core<S, H>, id: ConnId, topic: &str, kind: u32)
    where
        H: Handler<User: Subscriber>,
    {
        let Some(index) = self.group_of(core, id, topic, kind) else { return };
        let Some(history) = self.directory.history() else { return };
        let last = history.last(topic, core.now_ns());
        self.replays.release(index, id, last);
    }

    /// Sends a subscriber on hold publications from the history, from the position `next` on, until about
    /// `left` bytes are sent or its socket takes no more. `encode` is as in [`Topics::publish`]. When all are
    /// sent the hold ends.
    ///
    /// # Errors
    /// Not all of them are kept any more. The hold has ended then.
    #[expect(clippy::too_many_arguments, reason = "a subscription is named by three")]
    pub fn replay<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        id: ConnId,
        topic: &str,
        kind: u32,
        mut next: Position,
        left: &mut usize,
        mut encode: impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) -> Result<Replayed, Unavailable>
    where
        H: Handler<User: Subscriber>,
    {
        let Some(index) = self.group_of(core, id, topic, kind) else {
            return Ok(Replayed::Done(next));
        };
        let mut waits = false;
        loop {
            let step = match self.step(index, topic, next, core.now_ns()) {
                Ok(step) => step,
                Err(why) => {
                    self.release(core, id, topic, kind);
                    return Err(why);
                }
            };
            let (key, publications, last) = match step {
                Step::Done(until) => {
                    self.replays.release(index, id, until);
                    return Ok(Replayed::Done(next));
                }
                _ if *left == 0 || waits => return Ok(Replayed::More { next, waits }),
                Step::Kept(key) => (key, Vec::new(), key.last),
                Step::Encode(key, publications, last) => (key, publications, last),
            };
            let cached =
                self.replays.piece(index, key, core.now_ns()).filter(|_| publications.is_empty());
            let (frame, last) = match cached {
                Some(piece) => piece,
                None => {
                    let member = self.id(id);
                    let piece = encode_piece(core, member, kind, &publications, last, &mut encode);
                    let (frame, last) = (piece.frame.clone(), piece.last);
                    let shared = self.groups.get(index).is_some_and(|group| group.members() > 1);
                    if shared && piece.except.is_empty() {
                        self.replays.keep(index, key, piece);
                    }
                    (frame, last)
                }
            };
            if last < next.offset {
                broken("a piece has publications");
                return Ok(Replayed::Done(next));
            }
            next.offset = last + 1;
            *left = left.saturating_sub(frame.bytes().len());
            if !frame.bytes().is_empty() {
                waits = core.send_shared(id, &frame) != Sent::Sent;
            }
        }
    }

    /// What a replay does next.
    fn step(
        &self,
        index: u32,
        topic: &str,
        next: Position,
        now_ns: u64,
    ) -> Result<Step, Unavailable> {
        let Some(history) = self.directory.history() else { return Ok(Step::Done(None)) };
        history.read(topic, now_ns, |view| {
            let Some((first, last)) = view.piece(next, PIECE_MESSAGES)? else {
                // What was published before may still be in a mailbox, also where nothing of the topic is pending:
                // that is counted for the topic which ended with its last group before.
                return Ok(Step::Done(view.position()));
            };
            let key = PieceKey { epoch: next.epoch.as_u32(), first, last };
            if self.replays.has_piece(index, key) {
                return Ok(Step::Kept(key));
            }
            let (all, last) = view.publications(first, last, PIECE_BYTES)?;
            Ok(Step::Encode(key, all, last))
        })
    }

    /// The group in which a connection is subscribed.
    fn group_of<S: Sys, H>(
        &self,
        core: &mut Core<S, H>,
        id: ConnId,
        topic: &str,
        kind: u32,
    ) -> Option<u32>
    where
        H: Handler<User: Subscriber>,
    {
        let index = self.groups.find(topic, kind)?;
        core.user_mut(id)?.memberships().has(index).then_some(index)
    }

    /// Removes what replays do not need any more. Returns when to be called again.
    pub(crate) fn prune_replays(&mut self, now_ns: u64) -> Option<u64> {
        for _ in 0..PRUNED_PER_TURN {
            let (examine_ns, index) = *self.replays.examined.front()?;
            if examine_ns > now_ns {
                return Some(examine_ns);
            }
            self.replays.examined.pop_front();
            // Also of topics that ended with their last group: what was posted for them is not in the counts of this one.
            let idle = self.directory.pending_bytes() == 0;
            self.replays.examine(index, examine_ns, now_ns, idle);
        }
        Some(now_ns)
    }
}

/// What a replay does next.
enum Step {
    /// Nothing is missing. Publications up to this position may still be on their way to the group.
    Done(Option<Position>),
    /// The piece is kept.
    Kept(PieceKey),
    /// These are all up to an offset.
    Encode(PieceKey, Vec<Publication>, u64),
}

/// Encodes publications for a member, as they name it; those that are not for it are left out.
fn encode_piece<S: Sys, H: Handler>(
    core: &mut Core<S, H>,
    member: ConnId,
    kind: u32,
    publications: &[Publication],
    last: u64,
    encode: &mut impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
) -> Piece {
    let (mut bytes, mut messages) = (Vec::new(), 0);
    for publication in publications {
        let before = bytes.len();
        if publication.except != Some(member) {
            encode(core, kind, publication, &mut bytes);
        }
        messages += u32::from(bytes.len() > before);
    }
    let except = publications.iter().filter_map(|publication| publication.except).collect();
    Piece { frame: SharedFrame::new(&bytes, messages), last, except }
}

impl Replays {
    fn group(&mut self, index: u32, now_ns: u64) -> &mut GroupReplays {
        let examined = &mut self.examined;
        self.groups.entry(index).or_insert_with(|| {
            let examine_ns = now_ns + PIECES_AGE_NS;
            examined.push_back((examine_ns, index));
            GroupReplays { examine_ns, ..GroupReplays::default() }
        })
    }

    /// A group is about to get a publication: the members that do not get it from there.
    pub(crate) fn publishes(&mut self, index: u32, publication: &Publication) -> Option<Replaying> {
        if self.groups.is_empty() {
            return None;
        }
        let Position { epoch, offset } = publication.position()?;
        let group = self.groups.get_mut(&index)?;
        if epoch.as_u32() != group.epoch {
            return group.replaying.held();
        }
        let all = &group.replaying.0;
        if !all.values().any(|until| offset <= *until) {
            group.replaying.drop_until(offset);
            return None;
        }
        let replaying = group.replaying.clone();
        group.replaying.drop_until(offset);
        Some(replaying)
    }

    /// Ends the hold of a member that has everything up to a position; `None` if nothing earlier is on its way.
    fn release(&mut self, index: u32, id: ConnId, until: Option<Position>) {
        let Some(group) = self.groups.get_mut(&index) else { return };
        let Some(Position { epoch, offset }) = until else { return group.replaying.remove(id) };
        if epoch.as_u32() != group.epoch {
            // Offsets of the epoch before say nothing about what comes.
            group.replaying.drop_until(HELD - 1);
            group.epoch = epoch.as_u32();
        }
        Rc::make_mut(&mut group.replaying.0).insert(id, offset);
    }

    /// A member has left a group.
    pub(crate) fn forget(&mut self, index: u32, id: ConnId) {
        if !self.groups.is_empty()
            && let Some(group) = self.groups.get_mut(&index)
        {
            group.replaying.remove(id);
        }
    }

    pub(crate) fn remove_group(&mut self, index: u32) {
        if !self.groups.is_empty()
            && let Some(group) = self.groups.remove(&index)
        {
            self.bytes -= group.bytes;
        }
    }

    fn has_piece(&self, index: u32, key: PieceKey) -> bool {
        self.groups.get(&index).is_some_and(|group| group.pieces.contains_key(&key))
    }

    /// A kept piece and its last offset.
    fn piece(&mut self, index: u32, key: PieceKey, now_ns: u64) -> Option<(SharedFrame, u64)> {
        let group = self.groups.get_mut(&index)?;
        group.used_ns = now_ns;
        group.pieces.get(&key).map(|piece| (piece.frame.clone(), piece.last))
    }

    fn keep(&mut self, index: u32, key: PieceKey, piece: Piece) {
        let bytes = piece.frame.bytes().len();
        if self.bytes + bytes > PIECES_BYTES_MAX {
            self.groups.values_mut().for_each(GroupReplays::drop_pieces);
            self.bytes = 0;
        }
        let Some(group) = self.groups.get_mut(&index) else { return };
        if group.pieces.insert(key, piece).is_some() {
            return broken("a piece is encoded once");
        }
        group.bytes += bytes;
        self.bytes += bytes;
    }

    fn examine(&mut self, index: u32, examine_ns: u64, now_ns: u64, idle: bool) {
        let Some(group) = self.groups.get_mut(&index) else { return };
        // It is that of an earlier group with this index.
        if group.examine_ns != examine_ns {
            return;
        }
        if idle {
            group.replaying.drop_until(HELD - 1);
        }
        if now_ns.saturating_sub(group.used_ns) >= PIECES_AGE_NS {
            self.bytes -= group.bytes;
            group.drop_pieces();
        }
        if group.pieces.is_empty() && group.replaying.0.is_empty() {
            self.groups.remove(&index);
            if self.groups.is_empty() {
                self.groups.shrink_to_fit();
            }
            return;
        }
        group.examine_ns = now_ns + PIECES_AGE_NS;
        self.examined.push_back((group.examine_ns, index));
    }
}

impl GroupReplays {
    fn drop_pieces(&mut self) {
        self.pieces = HashMap::default();
        self.bytes = 0;
    }
}

impl Replaying {
    fn remove(&mut self, id: ConnId) {
        if self.0.contains_key(&id) {
            Rc::make_mut(&mut self.0).remove(&id);
        }
    }

    /// Those that are on hold, if there are any.
    fn held(&self) -> Option<Replaying> {
        let held = self.0.iter().filter(|(_, until)| **until == HELD);
        let held: HashMap<_, _, _> = held.map(|(id, until)| (*id, *until)).collect();
        (!held.is_empty()).then(|| Replaying(Rc::new(held)))
    }

    /// Removes the members that have no more than this offset from the history.
    fn drop_until(&mut self, offset: u64) {
        if self.0.values().any(|until| *until <= offset) {
            let kept = self.0.iter().filter(|(_, until)| **until > offset);
            self.0 = Rc::new(kept.map(|(id, until)| (*id, *until)).collect());
        }
    }
}
