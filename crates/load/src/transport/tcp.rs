//! [`Tcp`]: a private protocol over plain TCP or TLS: a request is bytes, and [`Expect`] determines
//! where its answer ends.

use regex::bytes::Regex;

use crate::outcome::failure::Failure;
use crate::transport::driver::{CompleteAnswer, Driver, Received};
use crate::workload::requests::answer::Awaited;

/// How the end of an answer is found.
#[derive(Clone, Debug)]
pub enum Expect {
    /// The first bytes received.
    Anything,
    /// This many bytes.
    Length(u64),
    /// Exactly these bytes.
    Bytes(Vec<u8>),
    /// Bytes up to the first match of this expression, within [`Tcp::KEPT_BYTES`].
    Regex(Regex),
    /// A length prefix, and that many bytes.
    Prefix(Prefix),
}

/// A length prefix.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Its size, 1 to 8 bytes.
    pub bytes: u8,
    /// Little-endian byte order.
    pub little_endian: bool,
    /// The length includes the prefix.
    pub counts_itself: bool,
}

/// The TCP driver of one worker.
#[derive(Clone, Debug)]
pub struct Tcp {
    expect: Expect,
}

/// The state of a connection.
#[derive(Default, Debug)]
pub struct TcpState {
    received: u64,
    /// A partial prefix, or the bytes to match.
    kept: Vec<u8>,
}

impl Tcp {
    /// The most bytes that [`Expect::Regex`] searches.
    pub const KEPT_BYTES: usize = 64 * 1024;

    /// A driver whose answers all end like this.
    #[must_use]
    pub fn new(expect: Expect) -> Tcp {
        Tcp { expect }
    }

    /// The length of an answer with a prefix; `None` while the prefix is partial.
    fn prefixed(
        prefix: Prefix,
        state: &mut TcpState,
        bytes: &[u8],
    ) -> Result<Option<u64>, Failure> {
        let width = usize::from(prefix.bytes.clamp(1, 8));
        let missing = width.saturating_sub(state.kept.len());
        state.kept.extend_from_slice(bytes.get(..missing).unwrap_or(bytes));
        if state.kept.len() < width {
            return Ok(None);
        }
        let fold = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        let number = match prefix.little_endian {
            true => state.kept.iter().rev().fold(0, fold),
            false => state.kept.iter().fold(0, fold),
        };
        let own = width as u64;
        let whole = if prefix.counts_itself { Some(number) } else { number.checked_add(own) };
        whole.filter(|&whole| whole >= own).map(Some).ok_or(Failure::Unexpected)
    }

    /// The length of the answer, if known yet.
    fn length(&self, state: &mut TcpState, bytes: &[u8]) -> Result<Option<u64>, Failure> {
        match &self.expect {
            Expect::Anything => Ok(Some(bytes.len() as u64)),
            Expect::Length(length) => Ok(Some(*length)),
            Expect::Bytes(expected) => {
                let at = usize::try_from(state.received).unwrap_or(usize::MAX);
                let due = expected.get(at..).unwrap_or_default();
                let same = due.iter().zip(bytes).all(|(due, came)| due == came);
                same.then_some(Some(expected.len() as u64)).ok_or(Failure::Unexpected)
            }
            Expect::Prefix(prefix) => Tcp::prefixed(*prefix, state, bytes),
            Expect::Regex(regex) => {
                let room = Tcp::KEPT_BYTES.saturating_sub(state.kept.len());
                state.kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
                match regex.find(&state.kept) {
                    Some(found) => Ok(Some(found.end() as u64)),
                    None if bytes.len() > room => Err(Failure::TooLarge),
                    None => Ok(None),
                }
            }
        }
    }
}

impl Driver for Tcp {
    type State = TcpState;

    fn receive(&mut self, state: &mut TcpState, bytes: &[u8], awaited: &mut Awaited) -> Received {
        let length = match self.length(state, bytes) {
            Ok(length) => length,
            Err(failure) => return Received::Failed(failure),
        };
        let due = length.map(|length| length.saturating_sub(state.received));
        let due = due.and_then(|due| usize::try_from(due).ok()).filter(|due| *due <= bytes.len());
        let Some(used) = due else {
            state.received += bytes.len() as u64;
            awaited.body(bytes);
            return Received::More;
        };
        awaited.body(bytes.get(..used).unwrap_or_default());
        let body_bytes = state.received + used as u64;
        *state = TcpState::default();
        Received::Complete(CompleteAnswer { used, status: 0, keep: true, body_bytes })
    }

    fn ended(&mut self, state: &mut TcpState) -> Received {
        let begun = state.received > 0;
        Received::Failed(if begun { Failure::ClosedMidway } else { Failure::Closed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the answers of a stream that arrives in pieces of `piece` bytes.
    fn received(expect: Expect, stream: &[u8], piece: usize) -> Result<Vec<u64>, Failure> {
        let (mut tcp, mut state) = (Tcp::new(expect), TcpState::default());
        let (mut awaited, mut answers) = (Awaited::default(), Vec::new());
        for piece in stream.chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                match tcp.receive(&mut state, rest, &mut awaited) {
                    Received::More => break,
                    Received::Complete(whole) => {
                        rest = &rest[whole.used..];
                        answers.push(whole.body_bytes);
                    }
                    Received::Failed(failure) => return Err(failure),
                    other => panic!("{other:?}: nothing is pushed"),
                }
            }
        }
        Ok(answers)
    }

    #[test]
    fn answers_end_as_configured_at_any_split() {
        let regex = Regex::new(r"(?-u)\+[A-Z]+\r\n").unwrap();
        let prefix = |bytes, little_endian, counts_itself| {
            Expect::Prefix(Prefix { bytes, little_endian, counts_itself })
        };
        for piece in 1..12 {
            let of = |expect, stream: &[u8]| received(expect, stream, piece);
            assert_eq!(of(Expect::Length(4), b"abcdefghi"), Ok(vec![4, 4]), "{piece}");
            assert_eq!(of(Expect::Bytes(b"PONG".to_vec()), b"PONGPONG"), Ok(vec![4, 4]));
            assert_eq!(of(Expect::Regex(regex.clone()), b"+OK\r\n+PONG\r\n+"), Ok(vec![5, 7]));
            assert_eq!(of(prefix(2, false, false), b"\0\x03abc\0\0\0\x01x"), Ok(vec![5, 2, 3]));
            assert_eq!(of(prefix(4, true, true), b"\x05\0\0\0a\x04\0\0\0"), Ok(vec![5, 4]));
        }
    }

    #[test]
    fn unexpected_answers_fail() {
        let bytes = Expect::Bytes(b"PONG".to_vec());
        assert_eq!(received(bytes, b"POX", 2), Err(Failure::Unexpected));
        let itself = Expect::Prefix(Prefix { bytes: 2, little_endian: false, counts_itself: true });
        assert_eq!(received(itself, b"\0\x01x", 3), Err(Failure::Unexpected));
        let never = Expect::Regex(Regex::new("never").unwrap());
        let endless = vec![b'a'; Tcp::KEPT_BYTES + 1];
        assert_eq!(received(never, &endless, 4_096), Err(Failure::TooLarge));
        let mut tcp = Tcp::new(Expect::Length(3));
        let mut state = TcpState::default();
        assert_eq!(tcp.ended(&mut state), Received::Failed(Failure::Closed));
        tcp.receive(&mut state, b"a", &mut Awaited::default());
        assert_eq!(tcp.ended(&mut state), Received::Failed(Failure::ClosedMidway));
    }
}
