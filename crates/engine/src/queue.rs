//! The send queue of one socket: bytes of its own, and frames shared with others.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use crate::invariant::broken;
use crate::partial_write::split_point;

/// Encoded bytes that many queues of one worker refer to: a publication is one of these.
#[derive(Clone, Debug)]
pub struct SharedFrame {
    bytes: Rc<[u8]>,
    /// Number of messages in it; merged publications count each of theirs.
    messages: u32,
}

impl SharedFrame {
    /// Wraps bytes already encoded for the wire that contain this many messages.
    #[must_use]
    pub fn new(bytes: &[u8], messages: u32) -> Self {
        SharedFrame { bytes: bytes.into(), messages }
    }

    /// The encoded bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of messages in it.
    #[must_use]
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// The share of its bytes that one of those who hold it accounts for.
    fn share(&self) -> usize {
        self.bytes.len() / Rc::strong_count(&self.bytes)
    }
}

/// The policy for a peer whose queue would exceed its limit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum SlowConsumer {
    /// Close with 1013 (default): the client reconnects and knows that it missed something.
    #[default]
    Disconnect,
    /// Drop the oldest waiting publications.
    DropOldest,
    /// Keep only the newest publication.
    LatestOnly,
    /// Refuse what is new while more than the limit waits.
    RefuseNew,
}

#[derive(Debug)]
enum Piece {
    /// Complete frames, or unframed bytes, and the number of messages in them.
    Owned(Box<[u8]>, u32),
    /// The rest of one frame, and whether it is a message.
    Partial(Box<[u8]>, bool),
    Shared(SharedFrame),
    /// Sent before everything that has not begun to be sent; not a message, and one at most.
    Urgent(SharedFrame),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Owned(bytes, _) | Piece::Partial(bytes, _) => bytes,
            Piece::Shared(frame) | Piece::Urgent(frame) => frame.bytes(),
        }
    }

    /// Its bytes, or of bytes that others hold as well its share.
    fn held(&self) -> usize {
        match self {
            Piece::Owned(bytes, _) | Piece::Partial(bytes, _) => bytes.len(),
            Piece::Shared(frame) | Piece::Urgent(frame) => frame.share(),
        }
    }

    fn messages(&self) -> u32 {
        match self {
            Piece::Owned(_, messages) => *messages,
            Piece::Partial(_, message) => u32::from(*message),
            Piece::Shared(frame) => frame.messages(),
            Piece::Urgent(_) => 0,
        }
    }
}

/// Memory that a piece holds beyond its bytes.
const PIECE_BYTES: usize = 32;
/// Pieces examined to estimate what a queue holds.
const HELD_LOOKS: usize = 64;
/// Pieces passed to one vectored write.
pub(crate) const PIECES_MAX: usize = 16;

/// A queue of pieces in order, the first possibly sent in part.
#[derive(Default, Debug)]
pub(crate) struct SendQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are already sent.
    sent: usize,
    bytes: usize,
}

impl SendQueue {
    /// Bytes waiting.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Memory that it holds, which its limit applies to.
    pub(crate) fn weight(&self) -> usize {
        self.bytes + self.pieces.len() * PIECE_BYTES
    }

    /// Memory that would be freed without this queue, in bytes: of frames that others hold as well
    /// it counts a share. Estimated from some of its pieces if it has many.
    pub(crate) fn held(&self) -> usize {
        let pieces = self.pieces.len();
        let step = pieces.div_ceil(HELD_LOOKS).max(1);
        let examined = (0..pieces).step_by(step).filter_map(|at| self.pieces.get(at));
        let (held, bytes) = examined.fold((0, 0), |(held, bytes), piece| {
            (held + piece.held() as u128, bytes + piece.bytes().len() as u128)
        });
        let estimate = self.bytes as u128 * held / bytes.max(1);
        estimate as usize + pieces * PIECE_BYTES
    }

    /// Messages that are not completely sent. `framed`: its connection is a WebSocket, so the
    /// messages in a partly sent piece can be told apart.
    pub(crate) fn messages(&self, framed: bool) -> u64 {
        let all: u64 = self.pieces.iter().map(|piece| u64::from(piece.messages())).sum();
        let begun = self.pieces.front().filter(|_| framed && self.sent > 0);
        let complete = begun.map_or(0, |piece| match piece {
            Piece::Partial(..) => 0,
            piece => split_point(piece.bytes(), self.sent).complete.min(piece.messages()),
        });
        all - u64::from(complete)
    }

    /// Queues complete frames with this many messages, or with none any bytes.
    pub(crate) fn push_owned(&mut self, bytes: &[u8], messages: u32) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.pieces.push_back(Piece::Owned(bytes.into(), messages));
        }
    }

    /// Queues the rest of one frame.
    pub(crate) fn push_partial(&mut self, bytes: &[u8], message: bool) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.pieces.push_back(Piece::Partial(bytes.into(), message));
        }
    }

    /// Queues the rest of frames with this many messages, after `sent` bytes of them.
    pub(crate) fn push_rest(&mut self, bytes: &[u8], sent: usize, messages: u32) {
        if sent == 0 {
            return self.push_owned(bytes, messages);
        }
        if messages == 0 {
            return self.push_partial(bytes.get(sent..).unwrap_or_default(), false);
        }
        let split = split_point(bytes, sent);
        self.push_partial(bytes.get(sent..split.end).unwrap_or_default(), split.message);
        let rest = messages.saturating_sub(split.complete + u32::from(split.message));
        self.push_owned(bytes.get(split.end..).unwrap_or_default(), rest);
    }

    /// Queues a shared frame of which `skip` bytes are already sent. Only the first piece of a
    /// queue may be partly sent, so `skip` is zero unless the queue is empty.
    pub(crate) fn push_shared(&mut self, frame: &SharedFrame, skip: usize) {
        debug_assert!(skip == 0 || self.pieces.is_empty());
        if self.pieces.is_empty() {
            self.sent = skip;
        }
        self.bytes += frame.bytes().len() - skip;
        self.pieces.push_back(Piece::Shared(frame.clone()));
    }

    /// Queues a frame before everything that has not begun to be sent. It replaces one that waits
    /// like this already.
    pub(crate) fn push_urgent(&mut self, frame: &SharedFrame) {
        // A header and its payload are two partial pieces of one frame: what follows the first piece
        // may belong to it, however much of that is sent.
        // Nothing may precede the answer to the request, even if none of it is sent.
        let answer = |piece: &Piece| piece.bytes().starts_with(b"HTTP/");
        let first = usize::from(self.sent > 0 || self.pieces.front().is_some_and(answer));
        let partial = |piece: &&Piece| matches!(piece, Piece::Partial(..));
        let begun = first + self.pieces.iter().skip(first).take_while(partial).count();
        self.bytes += frame.bytes().len();
        let urgent = Piece::Urgent(frame.clone());
        match self.pieces.get_mut(begun) {
            Some(earlier @ Piece::Urgent(_)) => {
                self.bytes -= earlier.bytes().len();
                *earlier = urgent;
            }
            _ => self.pieces.insert(begun, urgent),
        }
    }

    /// Queues bytes with this many messages before everything else, none of which has begun to be sent.
    pub(crate) fn push_front(&mut self, bytes: &[u8], messages: u32) {
        debug_assert!(self.sent == 0);
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.pieces.push_front(Piece::Owned(bytes.into(), messages));
        }
    }

    /// Removes everything, none of which has begun to be sent, and appends it to `out`. Returns the numbers of
    /// bytes and messages.
    pub(crate) fn take_all(&mut self, out: &mut Vec<u8>) -> (u64, u64) {
        debug_assert!(self.sent == 0);
        let (bytes, mut messages) = (self.bytes, 0);
        out.reserve_exact(bytes);
        for piece in std::mem::take(self).pieces {
            out.extend_from_slice(piece.bytes());
            messages += u64::from(piece.messages());
        }
        (bytes as u64, messages)
    }

    /// The waiting bytes, as pieces for one vectored write.
    pub(crate) fn slices<'a>(&'a self, into: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
        let mut filled = 0;
        for (index, (place, piece)) in into.iter_mut().zip(&self.pieces).enumerate() {
            let skip = if index == 0 { self.sent } else { 0 };
            *place = IoSlice::new(piece.bytes().get(skip..).unwrap_or_default());
            filled = index + 1;
        }
        filled
    }

    /// Removes the bytes that were sent.
    pub(crate) fn advance(&mut self, mut n: usize) {
        self.bytes -= n;
        while n > 0 {
            let Some(first) = self.pieces.front() else {
                return broken("a queue holds the bytes that were sent from it");
            };
            let left = first.bytes().len() - self.sent;
            if n < left {
                self.sent += n;
                return;
            }
            n -= left;
            self.sent = 0;
            self.pieces.pop_front();
        }
    }

    /// Drops the oldest publications that have not begun to be sent, until `room` more bytes fit
    /// under `limit`. Returns the number of messages dropped.
    pub(crate) fn drop_oldest(&mut self, room: usize, limit: usize) -> u64 {
        let mut dropped = 0;
        let mut index = usize::from(self.sent > 0);
        while self.weight() + room > limit {
            let Some(piece) = self.pieces.get(index) else { break };
            if let Piece::Shared(frame) = piece {
                dropped += u64::from(frame.messages());
                self.bytes -= frame.bytes().len();
                self.pieces.remove(index);
            } else {
                index += 1;
            }
        }
        dropped
    }

    /// Drops everything but the frame that has begun to be sent. Returns the number of messages
    /// dropped.
    pub(crate) fn drop_unbegun(&mut self) -> u64 {
        let torn = |piece: &&Piece| matches!(piece, Piece::Partial(..));
        let torn = self.pieces.iter().take_while(torn).count();
        let kept = torn.max(usize::from(self.sent > 0)).min(self.pieces.len());
        let mut dropped = 0;
        for piece in self.pieces.drain(kept..) {
            self.bytes -= piece.bytes().len();
            dropped += u64::from(piece.messages());
        }
        self.pieces.shrink_to_fit();
        dropped
    }

    /// Drops every publication that has not begun to be sent. Returns the number of messages
    /// dropped.
    pub(crate) fn drop_publications(&mut self) -> u64 {
        self.drop_oldest(1, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut SendQueue, step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while !queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let filled = queue.slices(&mut slices);
            let flat: Vec<u8> = slices[..filled].iter().flat_map(|s| s.iter().copied()).collect();
            let n = step.min(flat.len());
            out.extend_from_slice(&flat[..n]);
            queue.advance(n);
        }
        out
    }

    #[test]
    fn pieces_are_sent_in_order_for_any_write_size() {
        for step in 1..12 {
            let mut queue = SendQueue::default();
            queue.push_shared(&SharedFrame::new(b"abc", 1), 1);
            queue.push_owned(b"defg", 1);
            queue.push_owned(b"", 1);
            queue.push_shared(&SharedFrame::new(b"hi", 1), 0);
            assert_eq!(queue.len(), 8);
            assert_eq!(drain(&mut queue, step), b"bcdefghi");
        }
    }

    #[test]
    fn the_newest_urgent_frame_is_sent_between_frames() {
        let urgent = |text: &[u8]| SharedFrame::new(text, 0);
        let mut queue = SendQueue::default();
        queue.push_shared(&SharedFrame::new(b"begun", 1), 2);
        queue.push_owned(b"reply", 1);
        queue.push_urgent(&urgent(b"<1>"));
        queue.push_urgent(&urgent(b"<two>"));
        assert_eq!((queue.len(), queue.messages(false)), (13, 2));
        assert_eq!(drain(&mut queue, 2), b"gun<two>reply");
        // A header and its payload are one frame, though two pieces.
        queue.push_partial(b"header", false);
        queue.push_partial(b"payload", true);
        queue.push_owned(b"reply", 1);
        queue.push_urgent(&urgent(b"<3>"));
        assert_eq!(drain(&mut queue, 5), b"headerpayload<3>reply");
        // Nor may a frame begin within a pong.
        queue.push_rest(b"pong", 2, 0);
        queue.push_urgent(&urgent(b"<4>"));
        assert_eq!(drain(&mut queue, 1), b"ng<4>");
    }

    #[test]
    fn an_urgent_frame_never_lands_within_another() {
        let urgent = SharedFrame::new(b"<urgent>", 0);
        // What a connection can have queued first, and whether nothing may precede it: a header and
        // its payload, the rest of frames, the answer to its request, a whole frame, a shared one.
        type Fill = fn(&mut SendQueue);
        let fills: [(bool, Fill); 6] = [
            (true, |queue| {
                queue.push_partial(b"header ", false);
                queue.push_partial(b"payload.", true);
            }),
            (true, |queue| queue.push_partial(b"rest.", true)),
            (true, |queue| queue.push_rest(b"\x81\x04one.\x81\x04two.", 3, 2)),
            (true, |queue| queue.push_owned(b"HTTP/1.1 101 Switching Protocols.", 0)),
            (false, |queue| queue.push_owned(b"whole.", 1)),
            (false, |queue| queue.push_shared(&SharedFrame::new(b"shared.", 1), 0)),
        ];
        for (torn, fill) in fills {
            let mut queue = SendQueue::default();
            fill(&mut queue);
            queue.push_owned(b"next.", 1);
            let whole = drain(&mut queue, 1000);
            for sent in 0..whole.len() {
                let mut queue = SendQueue::default();
                fill(&mut queue);
                queue.push_owned(b"next.", 1);
                queue.advance(sent);
                queue.push_urgent(&urgent);
                queue.push_urgent(&urgent);
                let rest = drain(&mut queue, 3);
                let at = rest.windows(8).position(|window| window == b"<urgent>").unwrap();
                let before = [&whole[..sent], &rest[..at]].concat();
                let text = String::from_utf8_lossy(&rest).into_owned();
                let between = before.ends_with(b".") || before.is_empty() && !torn;
                assert!(between, "after {sent}: {text}");
                assert_eq!([&before[..], &rest[at + 8..]].concat(), whole, "after {sent}: {text}");
            }
        }
    }

    #[test]
    fn drops_publications_but_no_replies_or_partly_sent_frames() {
        let mut queue = SendQueue::default();
        queue.push_shared(&SharedFrame::new(b"begun", 1), 2);
        queue.push_shared(&SharedFrame::new(b"old", 3), 0);
        queue.push_owned(b"reply", 1);
        queue.push_shared(&SharedFrame::new(b"new", 1), 0);
        assert_eq!(queue.drop_oldest(3, 14 + 3 * PIECE_BYTES), 3);
        assert_eq!(drain(&mut queue, 100), b"gunreplynew");
        queue.push_owned(b"reply", 1);
        queue.push_shared(&SharedFrame::new(b"new", 1), 0);
        assert_eq!(queue.drop_publications(), 1);
        assert_eq!(drain(&mut queue, 100), b"reply");
    }

    #[test]
    fn a_queue_holds_its_own_bytes_and_a_share_of_those_it_shares() {
        let mut queues: Vec<SendQueue> = (0..10).map(|_| SendQueue::default()).collect();
        for number in 0..1_000 {
            let frame = SharedFrame::new(&vec![0; 1_000 + number % 7], 1);
            queues.iter_mut().for_each(|queue| queue.push_shared(&frame, 0));
        }
        assert!((130_000..135_000).contains(&queues[0].held()), "{}", queues[0].held());
        let mut alone = SendQueue::default();
        alone.push_owned(&[0; 50_000], 1);
        assert_eq!((alone.held(), SendQueue::default().held()), (50_000 + PIECE_BYTES, 0));
        queues.drain(1..);
        assert!(queues[0].held() > 1_000_000, "{}", queues[0].held());
    }

    #[test]
    fn only_the_begun_frame_is_kept() {
        let mut queue = SendQueue::default();
        queue.push_partial(b"header", false);
        queue.push_partial(b"payload", true);
        queue.push_owned(b"reply", 2);
        queue.push_shared(&SharedFrame::new(b"news", 3), 0);
        assert_eq!((queue.drop_unbegun(), queue.len()), (5, 13));
        assert_eq!(drain(&mut queue, 5), b"headerpayload");
        queue.push_shared(&SharedFrame::new(b"begun", 1), 2);
        queue.push_owned(b"reply", 1);
        assert_eq!((queue.drop_unbegun(), queue.len()), (1, 3));
        assert_eq!(drain(&mut queue, 5), b"gun");
        queue.push_owned(b"reply", 1);
        assert_eq!((queue.drop_unbegun(), queue.is_empty()), (1, true));
    }
}
