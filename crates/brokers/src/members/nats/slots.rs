//! What messages of the stream of members say: the nodes of a topic, and the members of a node, divided into slots, so
//! that a change of one member does not write all.

use std::collections::BTreeMap;

use crate::envelope::NodeId;
use crate::members::event::{decode, encode};
use crate::members::{State, Write};
use crate::nats::StoredMessage;

/// Members in a slot; with more there are more slots.
pub(super) const SLOT_MEMBERS: usize = 64;
/// Bytes of a slot; with more there are more slots.
pub(super) const SLOT_BYTES: usize = 32 * 1024;
/// Slots of a node in a topic.
pub(super) const SLOTS_MAX: u32 = 4096;
/// Bytes of a member beside id and info.
const MEMBER_BYTES: usize = 5;

pub(super) type Infos = BTreeMap<Box<str>, Option<Box<str>>>;

/// A node that has members in a topic.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) node: NodeId,
    pub(super) slots: u32,
    /// Of the hash, so that no client can choose ids of one slot.
    pub(super) seed: u64,
}

/// The nodes of a topic, and where that was read.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) entries: Vec<Entry>,
    pub(super) sequence: u64,
    pub(super) time_ms: u64,
}

/// FNV-1a from a seed, with its bits mixed: the same for nodes of all versions.
pub(super) fn slot_of(id: &str, entry: &Entry) -> u32 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = id.bytes().fold(entry.seed ^ 0xcbf2_9ce4_8422_2325, step);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((hash >> 32) as u32) % entry.slots.max(1)
}

/// Slots that are about a quarter full.
pub(super) fn slots_for(members: &Infos) -> u32 {
    let bytes = members.iter().map(|(id, info)| id.len() + info.as_ref().map_or(0, |i| i.len()));
    let by_bytes = bytes.sum::<usize>() / (SLOT_BYTES / 4);
    let slots = (members.len() / (SLOT_MEMBERS / 4)).max(by_bytes).max(1);
    u32::try_from(slots).unwrap_or(SLOTS_MAX).min(SLOTS_MAX).next_power_of_two()
}

pub(super) fn changes_of(write: &Write) -> impl Iterator<Item = (&str, State<'_>)> {
    let present = write.present.iter().map(|(id, info)| (&**id, State::Present(info.as_deref())));
    present.chain(write.absent.iter().map(|id| (&**id, State::Absent)))
}

pub(super) fn has_present(changes: &[(&str, State<'_>)]) -> bool {
    changes.iter().any(|(_, state)| *state != State::Absent)
}

pub(super) fn apply(members: &mut Infos, changes: &[(&str, State<'_>)]) {
    for (id, state) in changes {
        match state {
            State::Present(info) => drop(members.insert((*id).into(), info.map(Into::into))),
            State::Absent => drop(members.remove(*id)),
        }
    }
}

/// The members in a slot; none if it is no slot of this version.
pub(super) fn infos(slot: StoredMessage) -> Infos {
    let mut members = Infos::new();
    if let Some((_, changes)) = decode(&slot.body) {
        apply(&mut members, &changes);
    }
    members
}

/// An empty slot has no bytes.
pub(super) fn encoded(node: NodeId, members: &Infos) -> Vec<u8> {
    if members.is_empty() {
        return Vec::new();
    }
    encode(node, members.iter().map(|(id, info)| (&**id, State::Present(info.as_deref()))))
}

pub(super) fn lines(entries: &[Entry]) -> Vec<u8> {
    let line = |Entry { node, slots, seed }: &Entry| format!("{node} {slots} {seed:x}\n");
    entries.iter().map(line).collect::<String>().into_bytes()
}

/// Lines that no node writes are left out.
pub(super) fn directory(message: StoredMessage) -> Directory {
    let text = String::from_utf8_lossy(&message.body);
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let node = NodeId(u64::from_str_radix(words.next()?, 16).ok()?);
        let slots = words.next()?.parse().ok()?;
        let seed = u64::from_str_radix(words.next()?, 16).ok()?;
        (1..=SLOTS_MAX).contains(&slots).then_some(Entry { node, slots, seed })
    };
    let entries = text.lines().filter_map(entry).collect();
    Directory { entries, sequence: message.sequence, time_ms: message.time_ms }
}

/// A write in pieces that are not longer than a message may be.
pub(super) struct Pieces<'w> {
    of: &'w Write,
    most: usize,
    all: Vec<Write>,
    left: usize,
    left_out: bool,
}

impl<'w> Pieces<'w> {
    /// The pieces, and whether a member is left out as it is longer than a message.
    pub(super) fn of(of: &'w Write, most: usize) -> (Vec<Write>, bool) {
        let mut pieces = Pieces { of, most, all: Vec::new(), left: 0, left_out: false };
        for (id, info) in &of.present {
            let length = id.len() + info.as_ref().map_or(0, |info| info.len());
            if let Some(piece) = pieces.room(length) {
                piece.present.push((id.clone(), info.clone()));
            }
        }
        for id in &of.absent {
            if let Some(piece) = pieces.room(id.len()) {
                piece.absent.push(id.clone());
            }
        }
        (pieces.all, pieces.left_out)
    }

    /// A piece with room for a member of so many bytes; `None` if none has.
    fn room(&mut self, bytes: usize) -> Option<&mut Write> {
        let bytes = bytes.saturating_add(MEMBER_BYTES);
        if bytes > self.most {
            self.left_out = true;
            return None;
        }
        if bytes > self.left {
            let (key, channel) = (self.of.key.clone(), self.of.channel.clone());
            let (present, absent) = (Vec::new(), Vec::new());
            self.all.push(Write { key, channel, node: self.of.node, present, absent });
            self.left = self.most;
        }
        self.left -= bytes;
        self.all.last_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::event::encode_changes;

    fn infos_of(many: usize, bytes: usize) -> Infos {
        let info = || Some("x".repeat(bytes).into());
        (0..many).map(|id| (id.to_string().into(), info())).collect()
    }

    #[test]
    fn slots_are_as_many_as_members_and_their_bytes_need() {
        for (many, bytes, slots) in
            [(0, 0, 1), (16, 10, 1), (65, 10, 4), (65, 1_000, 8), (1_000_000, 0, SLOTS_MAX)]
        {
            assert_eq!(slots_for(&infos_of(many, bytes)), slots, "{many} members");
        }
        let entry = Entry { node: NodeId(1), slots: 64, seed: 7 };
        let mut counts = [0; 64];
        (0..6_400).for_each(|id| counts[slot_of(&format!("user {id}"), &entry) as usize] += 1);
        assert!(counts.iter().all(|count| (50..160).contains(count)), "{counts:?}");
        let other = Entry { seed: 8, ..entry };
        let same = (0..6_400).filter(|id| {
            let id = format!("user {id}");
            slot_of(&id, &entry) == slot_of(&id, &other)
        });
        assert!(same.count() < 300, "who does not know the seed cannot choose a slot");
    }

    #[test]
    fn slots_and_directories_survive_the_way() {
        let message = |body: Vec<u8>| StoredMessage { sequence: 7, time_ms: 9, body };
        let members = infos_of(3, 5);
        assert_eq!(infos(message(encoded(NodeId(1), &members))), members);
        assert_eq!(encoded(NodeId(1), &Infos::new()), b"");
        assert!(infos(message(b"anything".to_vec())).is_empty());
        let entries = [
            Entry { node: NodeId(255), slots: 1, seed: u64::MAX },
            Entry { node: NodeId(u64::MAX), slots: SLOTS_MAX, seed: 0 },
        ];
        let mut body = lines(&entries);
        body.extend_from_slice(b"ff 0 1\nff 5000 1\nxx 1 1\nff\n\xff\n");
        let read = directory(message(body));
        assert_eq!((&read.entries[..], read.sequence, read.time_ms), (&entries[..], 7, 9));
    }

    #[test]
    fn writes_are_divided_until_they_fit() {
        let write = Write {
            key: "k".to_owned(),
            channel: "c".into(),
            node: NodeId(1),
            present: (0..10)
                .map(|id| (id.to_string().into(), Some("x".repeat(100).into())))
                .collect(),
            absent: vec!["gone".into(), "y".repeat(1_000).into()],
        };
        assert_eq!(Pieces::of(&write, 100_000), (vec![write.clone()], false));
        let (pieces, left_out) = Pieces::of(&write, 400);
        assert!(left_out);
        assert!(pieces.len() >= 3 && pieces.iter().all(|one| encode_changes(one).len() <= 408));
        let present = pieces.iter().flat_map(|piece| piece.present.clone());
        assert_eq!(present.collect::<Vec<_>>(), write.present);
        let absent: Vec<&str> =
            pieces.iter().flat_map(|piece| piece.absent.iter().map(|id| &**id)).collect();
        assert_eq!(absent, ["gone"], "what fits in no message is left out");
    }
}
