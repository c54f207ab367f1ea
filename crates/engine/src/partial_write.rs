//! Partial writes: at which frame a write ended, so that a message counts as sent or as dropped and
//! never as both. Only for bytes that this engine encoded: it reads headers as `wire::websocket`
//! writes them (RFC 6455 section 5.2) and checks nothing.

/// Where a write of frames ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SplitPoint {
    /// Messages that were sent completely.
    pub(crate) complete: u32,
    /// The end of the frame that was sent in part; a frame begins there.
    pub(crate) end: usize,
    /// The partly sent frame is a message.
    pub(crate) message: bool,
}

/// Finds where `sent` bytes end in `bytes`, which begin with a frame or with the answer to a
/// handshake.
pub(crate) fn split_point(bytes: &[u8], sent: usize) -> SplitPoint {
    let mut split = SplitPoint { complete: 0, end: answer_bytes(bytes), message: false };
    while split.end <= sent {
        let Some((length, message)) = bytes.get(split.end..).and_then(frame) else { break };
        split.complete += u32::from(split.message);
        split.end = split.end.saturating_add(length).min(bytes.len());
        split.message = message;
    }
    split
}

/// The length of the handshake answer in front of the frames, or 0.
fn answer_bytes(bytes: &[u8]) -> usize {
    if !bytes.starts_with(b"HTTP/") {
        return 0;
    }
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(0, |end| end + 4)
}

/// The length of the first frame, and whether it is a message.
fn frame(bytes: &[u8]) -> Option<(usize, bool)> {
    let (&[first, second], rest) = bytes.split_first_chunk()?;
    let (extra, payload) = match second & 0x7F {
        126 => (2, usize::from(u16::from_be_bytes(*rest.first_chunk()?))),
        127 => (8, u64::from_be_bytes(*rest.first_chunk()?) as usize),
        short => (0, usize::from(short)),
    };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    Some((payload.saturating_add(2 + extra + mask), first & 0x08 == 0))
}

#[cfg(test)]
mod tests {
    use wire::websocket::{OpCode, encode, encode_close, encode_masked};

    use super::*;

    #[test]
    fn counts_complete_messages_at_every_split_point() {
        let mut bytes = b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec();
        let mut ends = vec![(bytes.len(), false)];
        encode(&mut bytes, OpCode::Text, b"short");
        ends.push((bytes.len(), true));
        encode(&mut bytes, OpCode::Pong, b"between");
        ends.push((bytes.len(), false));
        encode_masked(&mut bytes, OpCode::Binary, &[7; 300], [1, 2, 3, 4]);
        ends.push((bytes.len(), true));
        encode(&mut bytes, OpCode::Binary, &[7; 70_000]);
        ends.push((bytes.len(), true));
        encode_close(&mut bytes, None, "", None);
        ends.push((bytes.len(), false));
        for sent in 0..bytes.len() {
            let complete = ends.iter().filter(|&&(end, message)| message && end <= sent).count();
            let partial = ends.iter().find(|(end, _)| *end > sent).copied();
            let found = split_point(&bytes, sent);
            assert_eq!(
                (found.complete as usize, Some((found.end, found.message))),
                (complete, partial)
            );
        }
    }
}
