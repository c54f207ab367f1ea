//! [`Envelope`]: the content of the simulation's messages: the sender, a number, and filler that shows
//! if a byte was lost, duplicated or misdelivered.

use wire::websocket::OpCode;

/// Bytes of a message without filler.
pub(crate) const HEAD: usize = 17;

/// What a message is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// To be sent back as it is.
    Echo,
    /// The sender wants to get what is published on the topic of its path.
    Subscribe,
    /// The sender wants no more of it.
    Unsubscribe,
    /// To be published there.
    Publish,
    /// From the control plane to one connection.
    Direct,
}

const KINDS: [(Kind, u8); 5] = [
    (Kind::Echo, b'E'),
    (Kind::Subscribe, b'S'),
    (Kind::Unsubscribe, b'U'),
    (Kind::Publish, b'P'),
    (Kind::Direct, b'D'),
];

/// A message's meaning.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// The connection that wrote it, or for [`Kind::Direct`] the one it is for.
    pub(crate) peer_id: u32,
    /// Counted from 0 for each kind.
    pub(crate) number: u32,
}

impl Envelope {
    /// The message with so many bytes of filler.
    pub(crate) fn write(self, filler: usize) -> Vec<u8> {
        let tag = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(b'?', |(_, l)| *l);
        let mut out =
            format!("{}{:08x}{:08x}", tag as char, self.peer_id, self.number).into_bytes();
        let start = self.peer_id.wrapping_mul(7).wrapping_add(self.number.wrapping_mul(13)) % 26;
        out.extend((b'a'..=b'z').cycle().skip(start as usize).take(filler));
        out
    }

    /// Text or binary, settled by the number.
    pub(crate) fn opcode(self) -> OpCode {
        if self.number.is_multiple_of(2) { OpCode::Text } else { OpCode::Binary }
    }

    /// The meaning of a message; `None` if it is incomplete.
    pub(crate) fn read(data: &[u8]) -> Option<Envelope> {
        let (head, filler) = data.split_at_checked(HEAD)?;
        let (first, digits) = head.split_first()?;
        let (kind, _) = KINDS.iter().find(|(_, tag)| tag == first)?;
        let digits = std::str::from_utf8(digits).ok()?;
        let peer_id = u32::from_str_radix(digits.get(..8)?, 16).ok()?;
        let number = u32::from_str_radix(digits.get(8..)?, 16).ok()?;
        let envelope = Envelope { kind: *kind, peer_id, number };
        let start = peer_id.wrapping_mul(7).wrapping_add(number.wrapping_mul(13)) % 26;
        let mut wanted = (b'a'..=b'z').cycle().skip(start as usize);
        filler.iter().all(|&byte| wanted.next() == Some(byte)).then_some(envelope)
    }
}
