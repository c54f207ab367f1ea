//! What a NATS server sends, from bytes, and what is sent to it. It does no I/O.
//!
//! Of the client protocol of NATS only what publish, subscribe and requests need: no queue groups.
//! <https://docs.nats.io/reference/reference-protocols/nats-protocol>

use std::fmt::Write;

/// Longest line of a server: that of `INFO` names the servers of a cluster.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Longest payload that a server may announce.
pub(super) const PAYLOAD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One thing that a server says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ServerOp {
    /// About itself, as JSON.
    Info(Vec<u8>),
    Message(Delivery),
    Ping,
    /// The answer to a ping of ours, after everything that was sent before it.
    Pong,
    /// It accepts what was sent.
    Ok,
    /// It does not, and may close the connection.
    Error(String),
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Delivery {
    /// The subscription.
    pub(crate) sid: u64,
    /// The number after the last dot of the subject, 0 if there is none: which request this answers.
    pub(super) number: u64,
    /// Its headers with the line before them; empty if it has none.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// A message whose payload is not complete.
#[derive(Copy, Clone)]
struct Announced {
    sid: u64,
    number: u64,
    head: usize,
    /// With the head.
    length: usize,
}

/// Bytes that are no message of a NATS server.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no NATS: {0}")]
pub(super) struct Malformed(&'static str);

/// From bytes to operations. However the bytes are split, the operations are the same.
#[derive(Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
    /// What of them is read already.
    read: usize,
    /// How far the end of a line was looked for.
    searched: usize,
    payload: Option<Announced>,
}

impl Decoder {
    /// Adds bytes that have arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.read > 0 {
            self.bytes.drain(..self.read);
            self.searched = self.searched.saturating_sub(self.read);
            self.read = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next operation, if it is complete.
    pub(super) fn next(&mut self) -> Result<Option<ServerOp>, Malformed> {
        loop {
            if let Some(announced) = self.payload {
                return self.message(announced);
            }
            let Some(line) = self.line()? else { return Ok(None) };
            let (name, rest) = match line.iter().position(|byte| matches!(byte, b' ' | b'\t')) {
                Some(end) => line.split_at(end),
                None => (line.as_slice(), &[][..]),
            };
            let rest = rest.trim_ascii();
            return Ok(Some(match name.to_ascii_uppercase().as_slice() {
                b"MSG" => {
                    self.payload = Some(announced(rest, false)?);
                    continue;
                }
                b"HMSG" => {
                    self.payload = Some(announced(rest, true)?);
                    continue;
                }
                b"INFO" => ServerOp::Info(rest.to_vec()),
                b"PING" => ServerOp::Ping,
                b"PONG" => ServerOp::Pong,
                b"+OK" => ServerOp::Ok,
                b"-ERR" => {
                    let text = String::from_utf8_lossy(rest);
                    ServerOp::Error(text.trim_matches('\'').to_owned())
                }
                _ => return Err(Malformed("unknown operation")),
            }));
        }
    }

    /// The next line without its end.
    fn line(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        let from = self.searched.max(self.read);
        let rest = self.bytes.get(from..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let line = self.bytes.get(self.read..from + at).unwrap_or_default();
                let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
                self.read = from + at + 1;
                self.searched = self.read;
                Ok(Some(line))
            }
            None if self.bytes.len() - self.read > LINE_BYTES_MAX => {
                Err(Malformed("a line without an end"))
            }
            None => {
                self.searched = self.bytes.len();
                Ok(None)
            }
        }
    }

    fn message(&mut self, of: Announced) -> Result<Option<ServerOp>, Malformed> {
        let (body, end) = (self.read + of.head, self.read + of.length);
        let Some(after) = self.bytes.get(end..end + 2) else { return Ok(None) };
        if after != b"\r\n" {
            return Err(Malformed("a payload of another length than announced"));
        }
        let head = self.bytes.get(self.read..body).unwrap_or_default().to_vec();
        let body = self.bytes.get(body..end).unwrap_or_default().to_vec();
        self.read = end + 2;
        self.payload = None;
        Ok(Some(ServerOp::Message(Delivery { sid: of.sid, number: of.number, head, body })))
    }
}

/// What `SUBJECT SID [REPLY] [HEAD] LENGTH` announces.
fn announced(rest: &[u8], has_head: bool) -> Result<Announced, Malformed> {
    let text = std::str::from_utf8(rest).map_err(|_| Malformed("a message without a number"))?;
    let mut words = text.split_ascii_whitespace();
    let number = words.next().and_then(|subject| subject.rsplit_once('.')?.1.parse().ok());
    let sid = words.next().and_then(|sid| sid.parse().ok());
    let mut length =
        || words.next_back()?.parse().ok().filter(|length| *length <= PAYLOAD_BYTES_MAX);
    let total = length();
    let head = if has_head { length() } else { Some(0) };
    match (sid, total, head) {
        (Some(sid), Some(length), Some(head)) if head <= length => {
            Ok(Announced { sid, number: number.unwrap_or_default(), head, length })
        }
        (None, _, _) => Err(Malformed("a message without a number")),
        _ => Err(Malformed("a message without a length, or too long")),
    }
}

/// Appends a publication.
pub(super) fn publish(into: &mut Vec<u8>, subject: &str, body: &[u8]) {
    into.extend_from_slice(format!("PUB {subject} {}\r\n", body.len()).as_bytes());
    into.extend_from_slice(body);
    into.extend_from_slice(b"\r\n");
}

/// Appends a request with the subject of its answer.
pub(super) fn request(into: &mut Vec<u8>, subject: &str, reply: &str, body: &[u8]) {
    into.extend_from_slice(format!("PUB {subject} {reply} {}\r\n", body.len()).as_bytes());
    into.extend_from_slice(body);
    into.extend_from_slice(b"\r\n");
}

/// Appends a request with headers.
pub(super) fn request_with_head(
    into: &mut Vec<u8>,
    subject: &str,
    reply: &str,
    head: &str,
    body: &[u8],
) {
    let (head_bytes, total) = (head.len(), head.len() + body.len());
    into.extend_from_slice(format!("HPUB {subject} {reply} {head_bytes} {total}\r\n").as_bytes());
    into.extend_from_slice(head.as_bytes());
    into.extend_from_slice(body);
    into.extend_from_slice(b"\r\n");
}

/// Appends a subscription with a number of ours.
pub(super) fn subscribe(into: &mut Vec<u8>, subject: &str, sid: u64) {
    into.extend_from_slice(format!("SUB {subject} {sid}\r\n").as_bytes());
}

/// Appends the end of a subscription.
pub(super) fn unsubscribe(into: &mut Vec<u8>, sid: u64) {
    into.extend_from_slice(format!("UNSUB {sid}\r\n").as_bytes());
}

/// The subject of a channel: one word of letters, digits and a few signs, and %XX for other bytes, so that no
/// name is a wildcard or ends a line.
pub(crate) fn subject(channel: &str) -> String {
    let mut subject = String::with_capacity(channel.len());
    for byte in channel.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'-' | b'_' | b'/' | b'=' => {
                subject.push(char::from(byte));
            }
            // Writing to a string does not fail.
            _ => drop(write!(subject, "%{byte:02X}")),
        }
    }
    subject
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &[u8] = b"INFO {\"max_payload\":1}\r\nMSG a 7 5\r\nh\r\nlo\r\nPING\r\n+OK\r\n\
        MSG b 8 reply 0\r\n\r\nHMSG i.x.12 0 13 15\r\nNATS/1.0\r\nA:\nhi\r\nPONG\r\n-ERR 'Permissions Violation'\r\n";

    fn all(decoder: &mut Decoder) -> Vec<ServerOp> {
        std::iter::from_fn(|| decoder.next().unwrap()).collect()
    }

    fn message(sid: u64, number: u64, head: &[u8], body: &[u8]) -> ServerOp {
        let (head, body) = (head.to_vec(), body.to_vec());
        ServerOp::Message(Delivery { sid, number, head, body })
    }

    fn expected() -> Vec<ServerOp> {
        vec![
            ServerOp::Info(br#"{"max_payload":1}"#.to_vec()),
            message(7, 0, b"", b"h\r\nlo"),
            ServerOp::Ping,
            ServerOp::Ok,
            message(8, 0, b"", b""),
            message(0, 12, b"NATS/1.0\r\nA:\n", b"hi"),
            ServerOp::Pong,
            ServerOp::Error("Permissions Violation".to_owned()),
        ]
    }

    #[test]
    fn what_is_no_nats_is_an_error() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"MSG a x 1\r\n",
            b"MSG a 1 x\r\n",
            b"MSG a 1 99999999999\r\n",
            b"MSG\r\n",
            b"HMSG a 1 5\r\n",
            b"HMSG a 1 5 4\r\n",
            b"MSG a 1 2\r\nabcd",
        ] {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            assert!(decoder.next().is_err(), "{}", String::from_utf8_lossy(bytes));
        }
        let mut decoder = Decoder::default();
        decoder.push(&vec![b'x'; LINE_BYTES_MAX + 1]);
        assert!(decoder.next().is_err());
    }

    #[test]
    fn a_subject_is_one_word_whatever_the_channel() {
        assert_eq!(subject("standfast:t:room-1/a_b"), "standfast:t:room-1/a_b");
        assert_eq!(subject("a b.*>é%\r\n"), "a%20b%2E%2A%3E%C3%A9%25%0D%0A");
    }

    proptest! {
        #[test]
        fn operations_are_the_same_however_the_bytes_are_split(
            cuts in proptest::collection::vec(0..STREAM.len(), 0..20),
        ) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let (mut decoder, mut found) = (Decoder::default(), Vec::new());
            for pair in cuts.windows(2) {
                decoder.push(&STREAM[pair[0]..pair[1]]);
                found.extend(all(&mut decoder));
            }
            prop_assert_eq!(found, expected());
        }

        #[test]
        fn any_bytes_are_operations_or_an_error(bytes: Vec<u8>) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }

        #[test]
        fn subjects_of_different_channels_differ(one in ".{0,8}", other in ".{0,8}") {
            prop_assert_eq!(subject(&one) == subject(&other), one == other);
        }
    }
}
