//! [`Event`]: a change of a topic's members as it is sent to the topic's channel.
//!
//! The versions before and after the change come from the broker, as decimal numbers: `BEFORE AFTER REST\n`, where
//! REST is 0 if no member is left. The node and its members follow.

use super::{ID_BYTES_MAX, INFO_BYTES_MAX, State, Write};
use crate::envelope::NodeId;

/// What events begin with: the version of envelopes, and a kind that they do not have.
pub(crate) const START: [u8; 2] = [1, 64];
/// Longest line with the versions, in bytes.
const LINE_BYTES_MAX: usize = 64;

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
const PRESENT_WITH_INFO: u8 = 2;

/// Whether a message is an event.
pub(crate) fn is_event(body: &[u8]) -> bool {
    body.starts_with(&START)
}

/// A change of members of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Event<'b> {
    /// The version before it; 0 if there were no members.
    pub(crate) before: u64,
    /// The version after it.
    pub(crate) after: u64,
    /// Members are left.
    pub(crate) rest: bool,
    pub(crate) node: NodeId,
    pub(crate) changes: Vec<(&'b str, State<'b>)>,
}

/// What follows the versions.
pub(crate) fn encode_changes(write: &Write) -> Vec<u8> {
    let present = write.present.iter().map(|(id, info)| (&**id, State::Present(info.as_deref())));
    let absent = write.absent.iter().map(|id| (&**id, State::Absent));
    encode(write.node, present.chain(absent))
}

/// Members of a node and their states.
pub(crate) fn encode<'m>(
    node: NodeId,
    changes: impl Iterator<Item = (&'m str, State<'m>)>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 * changes.size_hint().0);
    out.extend_from_slice(&node.0.to_le_bytes());
    for (id, state) in changes {
        let (kind, info) = match state {
            State::Absent => (ABSENT, None),
            State::Present(None) => (PRESENT, None),
            State::Present(info) => (PRESENT_WITH_INFO, info),
        };
        out.push(kind);
        put(&mut out, id);
        info.into_iter().for_each(|info| put(&mut out, info));
    }
    out
}

/// What [`encode`] has written.
pub(crate) fn decode(mut rest: &[u8]) -> Option<(NodeId, Vec<(&str, State<'_>)>)> {
    let node = NodeId(u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?));
    let mut changes = Vec::new();
    while let Some((kind, after_kind)) = rest.split_first() {
        rest = after_kind;
        let id = text(&mut rest, ID_BYTES_MAX)?;
        let state = match *kind {
            ABSENT => State::Absent,
            PRESENT => State::Present(None),
            PRESENT_WITH_INFO => State::Present(Some(text(&mut rest, INFO_BYTES_MAX)?)),
            _ => return None,
        };
        changes.push((id, state));
    }
    Some((node, changes))
}

fn put(out: &mut Vec<u8>, text: &str) {
    // The outbox takes none that is longer.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes().get(..usize::from(length)).unwrap_or_default());
}

impl<'b> Event<'b> {
    /// Reads an event; `None` if it is none of this version.
    pub(crate) fn decode(body: &'b [u8]) -> Option<Self> {
        let rest = body.strip_prefix(&START)?;
        let end = rest.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n')?;
        let mut numbers = str::from_utf8(rest.get(..end)?).ok()?.split(' ');
        let mut number = || numbers.next()?.parse::<u64>().ok();
        let (before, after, left) = (number()?, number()?, number()?);
        let (node, changes) = decode(rest.get(end + 1..)?)?;
        let valid = after > before && numbers.next().is_none() && left <= 1;
        valid.then_some(Event { before, after, rest: left == 1, node, changes })
    }
}

fn take<'b>(rest: &mut &'b [u8], bytes: usize) -> Option<&'b [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
}

fn text<'b>(rest: &mut &'b [u8], bytes_max: usize) -> Option<&'b str> {
    let length = usize::from(u16::from_le_bytes(take(rest, 2)?.try_into().ok()?));
    if length > bytes_max {
        return None;
    }
    str::from_utf8(take(rest, length)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(line: &str, write: &Write) -> Vec<u8> {
        [&START[..], line.as_bytes(), &encode_changes(write)].concat()
    }

    #[test]
    fn events_survive_the_way_and_others_are_refused() {
        let write = Write {
            key: String::new(),
            channel: "c".into(),
            node: NodeId(7),
            present: vec![("ann".into(), Some("{}".into())), ("é".into(), None)],
            absent: vec!["bob".into()],
        };
        let body = encoded("5 6 1\n", &write);
        let changes = vec![
            ("ann", State::Present(Some("{}"))),
            ("é", State::Present(None)),
            ("bob", State::Absent),
        ];
        let event = Event { before: 5, after: 6, rest: true, node: NodeId(7), changes };
        assert_eq!(Event::decode(&body), Some(event));
        assert!(is_event(&body) && !is_event(b"\x01\x01"));
        assert_eq!(Event::decode(&encoded("0 6 0\n", &write)).map(|event| event.rest), Some(false));
        for line in ["6 6 1\n", "5 6\n", "5 6 1 1\n", "5 6 2\n", "x 6 1\n", "5 6 1", "\n"] {
            assert_eq!(Event::decode(&encoded(line, &write)), None, "{line:?}");
        }
        for cut in 0..body.len() {
            let cut = Event::decode(&body[..cut]);
            assert!(cut.is_none_or(|event| event.changes.len() < 3));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_event_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Event::decode(&[&START[..], b"1 2 1\n", &bytes].concat());
            let _ = Event::decode(&bytes);
        }
    }
}
