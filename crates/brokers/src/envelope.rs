//! [`Envelope`]: what one node sends to others, in bytes.
//!
//! A byte for the version, one for the kind of message, then fields of fixed length (little endian) and texts
//! with their length. Bytes of another version or kind are an error, never a guess: nodes of different versions
//! meet during a rolling restart. Nothing that is decoded is used as an allocation size before it is compared
//! with the bytes that are there.

use std::fmt;

/// The version of the layout.
const VERSION: u8 = 1;
/// The longest text of a field, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// A process: a number drawn at its start.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u64);

/// Sixteen hexadecimal digits.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The place of a publication among those of one node to one channel.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Sequence {
    /// Numbers of different epochs are not comparable.
    pub epoch: u32,
    /// From 1 on, without gaps.
    pub number: u64,
}

/// A message between nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Envelope<'b> {
    /// For the subscribers of a topic.
    Publication(Message<'b>),
    /// The sender's newest number in this channel, repeated so that a loss at the end is noticed.
    Beacon {
        /// Who sends it.
        node: NodeId,
        /// Its newest publication.
        newest: Sequence,
    },
    /// A command for all nodes.
    Command {
        /// Who sends it.
        node: NodeId,
        /// Its place in the channel of commands.
        at: Sequence,
        /// What is to be done; the user of the crate knows.
        body: &'b [u8],
    },
    /// A node is alive.
    Alive {
        /// Who sends it.
        node: NodeId,
        /// Its name.
        name: &'b str,
    },
}

/// A publication with what receivers need to know of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message<'b> {
    /// Who sends it.
    pub node: NodeId,
    /// Its place among the sender's publications in this channel.
    pub at: Sequence,
    /// Binary, not text.
    pub binary: bool,
    /// A history does not keep it.
    pub transient: bool,
    /// A connection of the sender, or the id of a session, that does not get it.
    pub except: Except<'b>,
    /// The kind that receivers see.
    pub kind: Option<&'b str>,
    /// The payload.
    pub data: &'b [u8],
}

/// Who does not get a publication.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Except<'b> {
    /// Everyone gets it.
    None,
    /// The connection of the sending node with this number.
    Own(u64),
    /// The session with this id, on whichever node it is.
    Session(&'b str),
}

/// Why bytes are no envelope.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Another version of this program sent it, or another program.
    #[error("unknown version")]
    Version,
    /// A kind that this version does not know.
    #[error("unknown kind")]
    Kind,
    /// It ends within a field.
    #[error("too short")]
    Short,
    /// A text is too long or not UTF-8.
    #[error("invalid text")]
    Text,
    /// It has more bytes than its fields, or a field has an impossible value.
    #[error("invalid field")]
    Field,
}

const PUBLICATION: u8 = 1;
const BEACON: u8 = 2;
const COMMAND: u8 = 3;
const ALIVE: u8 = 4;

const BINARY: u8 = 1;
const TRANSIENT: u8 = 2;
const KIND: u8 = 4;
const EXCEPT_OWN: u8 = 8;
const EXCEPT_SESSION: u8 = 16;
const PUBLICATION_FLAGS: u8 = BINARY | TRANSIENT | KIND | EXCEPT_OWN | EXCEPT_SESSION;

impl<'b> Envelope<'b> {
    /// The bytes. Texts beyond the limit are left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes());
        out.push(VERSION);
        match self {
            Envelope::Publication(message) => message.encode(&mut out),
            Envelope::Beacon { node, newest } => {
                out.push(BEACON);
                put_place(&mut out, *node, *newest);
            }
            Envelope::Command { node, at, body } => {
                out.push(COMMAND);
                put_place(&mut out, *node, *at);
                out.extend_from_slice(body);
            }
            Envelope::Alive { node, name } => {
                out.push(ALIVE);
                out.extend_from_slice(&node.0.to_le_bytes());
                put_text(&mut out, name);
            }
        }
        out
    }

    /// About how many.
    fn bytes(&self) -> usize {
        64 + match self {
            Envelope::Publication(message) => message.data.len() + message.kind.map_or(0, str::len),
            Envelope::Command { body, .. } => body.len(),
            Envelope::Alive { name, .. } => name.len(),
            Envelope::Beacon { .. } => 0,
        }
    }

    /// Reads bytes that came from a broker.
    ///
    /// # Errors
    /// They are no envelope of this version.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Malformed> {
        let mut rest = Reader(bytes);
        if rest.byte()? != VERSION {
            return Err(Malformed::Version);
        }
        match rest.byte()? {
            PUBLICATION => Message::decode(rest).map(Envelope::Publication),
            BEACON => {
                let (node, newest) = rest.place()?;
                rest.end()?;
                Ok(Envelope::Beacon { node, newest })
            }
            COMMAND => {
                let (node, at) = rest.place()?;
                Ok(Envelope::Command { node, at, body: rest.0 })
            }
            ALIVE => {
                let node = NodeId(rest.u64()?);
                let name = rest.text()?;
                rest.end()?;
                Ok(Envelope::Alive { node, name })
            }
            _ => Err(Malformed::Kind),
        }
    }
}

impl<'b> Message<'b> {
    fn encode(&self, out: &mut Vec<u8>) {
        let kind = self.kind.filter(|kind| kind.len() <= TEXT_BYTES_MAX);
        out.push(PUBLICATION);
        put_place(out, self.node, self.at);
        let mut flags = 0;
        let mut set = |flag, on| flags |= if on { flag } else { 0 };
        set(BINARY, self.binary);
        set(TRANSIENT, self.transient);
        set(KIND, kind.is_some());
        set(EXCEPT_OWN, matches!(self.except, Except::Own(_)));
        let session = match self.except {
            Except::Session(sid) if sid.len() <= TEXT_BYTES_MAX => Some(sid),
            _ => None,
        };
        set(EXCEPT_SESSION, session.is_some());
        out.push(flags);
        if let Some(kind) = kind {
            put_text(out, kind);
        }
        if let Except::Own(connection) = self.except {
            out.extend_from_slice(&connection.to_le_bytes());
        }
        if let Some(sid) = session {
            put_text(out, sid);
        }
        out.extend_from_slice(self.data);
    }

    fn decode(mut rest: Reader<'b>) -> Result<Self, Malformed> {
        let (node, at) = rest.place()?;
        let flags = rest.byte()?;
        let has = |flag| flags & flag != 0;
        if flags & !PUBLICATION_FLAGS != 0 || has(EXCEPT_OWN) && has(EXCEPT_SESSION) {
            return Err(Malformed::Field);
        }
        let kind = if has(KIND) { Some(rest.text()?) } else { None };
        let except = if has(EXCEPT_OWN) {
            Except::Own(rest.u64()?)
        } else if has(EXCEPT_SESSION) {
            Except::Session(rest.text()?)
        } else {
            Except::None
        };
        let data = rest.0;
        if !has(BINARY) && std::str::from_utf8(data).is_err() {
            return Err(Malformed::Text);
        }
        let (binary, transient) = (has(BINARY), has(TRANSIENT));
        Ok(Message { node, at, binary, transient, except, kind, data })
    }
}

fn put_place(out: &mut Vec<u8>, node: NodeId, at: Sequence) {
    out.extend_from_slice(&node.0.to_le_bytes());
    out.extend_from_slice(&at.epoch.to_le_bytes());
    out.extend_from_slice(&at.number.to_le_bytes());
}

/// Appends a text of at most [`TEXT_BYTES_MAX`]; what is longer is cut at a character.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut bytes = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    let text = text.get(..bytes).unwrap_or_default();
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The bytes that are not read yet.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, bytes: usize) -> Result<&'b [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed::Short)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<&'b str, Malformed> {
        let bytes = usize::from(u16::from_le_bytes(self.array()?));
        if bytes > TEXT_BYTES_MAX {
            return Err(Malformed::Text);
        }
        std::str::from_utf8(self.take(bytes)?).map_err(|_| Malformed::Text)
    }

    fn place(&mut self) -> Result<(NodeId, Sequence), Malformed> {
        let node = NodeId(self.u64()?);
        let epoch = u32::from_le_bytes(self.array()?);
        Ok((node, Sequence { epoch, number: self.u64()? }))
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Field) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn publication() -> Message<'static> {
        Message {
            node: NodeId(7),
            at: Sequence { epoch: 3, number: 9 },
            binary: false,
            transient: true,
            except: Except::Session("sid"),
            kind: Some("whisper"),
            data: "é".as_bytes(),
        }
    }

    #[test]
    fn every_kind_survives_the_round_trip() {
        let (node, at) = (NodeId(u64::MAX), Sequence { epoch: u32::MAX, number: u64::MAX });
        let all = [
            Envelope::Publication(publication()),
            Envelope::Publication(Message { except: Except::Own(5), kind: None, ..publication() }),
            Envelope::Publication(Message { binary: true, data: &[255, 0], ..publication() }),
            Envelope::Beacon { node, newest: at },
            Envelope::Command { node, at, body: &[0, 1] },
            Envelope::Alive { node, name: "a.example" },
        ];
        for envelope in all {
            assert_eq!(Envelope::decode(&envelope.encode()).as_ref(), Ok(&envelope));
        }
    }

    #[test]
    fn the_layout_is_that_of_version_1() {
        // Nodes of other versions read it: a change needs another version.
        let bytes = Envelope::Publication(publication()).encode();
        let mut expected =
            vec![1, 1, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 22];
        expected.extend_from_slice(b"\x07\0whisper\x03\0sid\xc3\xa9");
        assert_eq!(bytes, expected);
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let decode = |bytes: &[u8]| Envelope::decode(bytes).unwrap_err();
        let whole = Envelope::Publication(publication()).encode();
        assert_eq!(decode(&[]), Malformed::Short);
        assert_eq!(decode(&[2, 1]), Malformed::Version);
        assert_eq!(decode(b"{\"stream\":\"a\"}"), Malformed::Version);
        assert_eq!(decode(&[1, 9]), Malformed::Kind);
        assert_eq!(decode(&whole[..30]), Malformed::Short);
        let mut changed = whole.clone();
        changed[22] |= 128;
        assert_eq!(decode(&changed), Malformed::Field);
        let mut not_text = whole;
        *not_text.last_mut().unwrap() = 0xff;
        assert_eq!(decode(&not_text), Malformed::Text);
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Envelope::decode(&bytes);
            let headed = [&[VERSION, bytes.first().map_or(0, |byte| byte % 6)], &bytes[..]].concat();
            if let Ok(envelope) = Envelope::decode(&headed) {
                let again = envelope.encode();
                prop_assert_eq!(Envelope::decode(&again).unwrap(), envelope);
            }
        }

        #[test]
        fn publications_survive_the_round_trip(
            numbers in any::<(u64, u32, u64, u64)>(),
            flags in any::<(bool, bool)>(),
            kind in proptest::option::of("[a-z]{0,70}"),
            sid in proptest::option::of(".{0,40}"),
            data in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let (node, epoch, number, own) = numbers;
            let binary = flags.0 || std::str::from_utf8(&data).is_err();
            let except = match &sid {
                Some(sid) => Except::Session(sid),
                None if flags.1 => Except::Own(own),
                None => Except::None,
            };
            let message = Message {
                node: NodeId(node), at: Sequence { epoch, number }, binary, transient: flags.1,
                except, kind: kind.as_deref(), data: &data,
            };
            let envelope = Envelope::Publication(message);
            let bytes = envelope.encode();
            prop_assert_eq!(Envelope::decode(&bytes).unwrap(), envelope);
        }
    }
}
