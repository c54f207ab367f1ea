//! The streams of a connection. Their identifiers only grow (RFC 9113 5.1.1), so a queue in order of
//! identifiers is the table: no hash that a peer could collide, no allocation for each stream.

use alloc::collections::VecDeque;

/// A stream that is open, or half-closed on one side.
#[derive(Copy, Clone, Debug)]
pub(super) struct Stream {
    /// Data that the peer has yet to send by Content-Length, in bytes; `u64::MAX` if unknown.
    pub(super) length_left: u64,
    pub(super) id: u32,
    /// What the caller knows it by.
    pub(super) tag: u32,
    /// The window for sending is the peer's initial window plus this, so that a change of that
    /// setting changes all windows (RFC 9113 6.9.2).
    pub(super) send_delta: i32,
    /// The window for receiving is our initial window plus this.
    pub(super) receive_delta: i32,
    /// Data that was consumed, but not yet returned to the peer as window, in bytes.
    pub(super) consumed: u32,
    pub(super) flags: u16,
}

impl Stream {
    /// We sent END_STREAM.
    pub(super) const LOCAL_END: u16 = 1;
    /// The peer sent END_STREAM.
    pub(super) const REMOTE_END: u16 = 1 << 1;
    /// The peer sent a head that is not interim.
    pub(super) const HEAD: u16 = 1 << 2;
    /// The method is HEAD.
    pub(super) const METHOD_HEAD: u16 = 1 << 3;
    /// The method is CONNECT.
    pub(super) const METHOD_CONNECT: u16 = 1 << 4;
    /// Data could not be sent for lack of window, and the caller is told when there is some.
    pub(super) const BLOCKED: u16 = 1 << 5;
    /// We sent a head that is not interim.
    pub(super) const RESPONDED: u16 = 1 << 6;
    const REMOVED: u16 = 1 << 7;

    pub(super) const LENGTH_UNKNOWN: u64 = u64::MAX;

    pub(super) fn new(id: u32, tag: u32, flags: u16) -> Stream {
        let length_left = Stream::LENGTH_UNKNOWN;
        Stream { length_left, id, tag, send_delta: 0, receive_delta: 0, consumed: 0, flags }
    }

    pub(super) const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Whether both sides have ended.
    pub(super) const fn is_over(&self) -> bool {
        self.has(Stream::LOCAL_END | Stream::REMOTE_END)
    }
}

const _: () = assert!(size_of::<Stream>() == 32);

/// The streams of a connection in order of their identifiers. A removed stream keeps its place until
/// those in front of it are removed or half of all places are such.
#[derive(Default, Debug)]
pub(super) struct StreamTable {
    places: VecDeque<Stream>,
    live: u32,
}

impl StreamTable {
    /// Places that are kept before removed ones are looked for.
    const PLACES_FREE: usize = 16;

    pub(super) fn len(&self) -> u32 {
        self.live
    }

    /// Adds a stream, with a larger identifier than all before.
    pub(super) fn push(&mut self, stream: Stream) {
        debug_assert!(self.places.back().is_none_or(|last| last.id < stream.id));
        self.places.push_back(stream);
        self.live += 1;
    }

    pub(super) fn get(&self, id: u32) -> Option<&Stream> {
        self.places.get(self.locate(id)?)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        let place = self.locate(id)?;
        self.places.get_mut(place)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Stream> {
        let place = self.locate(id)?;
        let stream = self.places.get_mut(place)?;
        let removed = *stream;
        stream.flags |= Stream::REMOVED;
        self.live -= 1;
        while self.places.front().is_some_and(|first| first.has(Stream::REMOVED)) {
            self.places.pop_front();
        }
        if self.places.len() > 2 * self.live as usize + Self::PLACES_FREE {
            self.places.retain(|stream| !stream.has(Stream::REMOVED));
        }
        Some(removed)
    }

    /// Removes the last stream if its identifier is larger than `id`.
    pub(super) fn pop_after(&mut self, id: u32) -> Option<Stream> {
        while self.places.back().is_some_and(|last| last.id > id) {
            let last = self.places.pop_back()?;
            if !last.has(Stream::REMOVED) {
                self.live -= 1;
                return Some(last);
            }
        }
        None
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.places.iter().filter(|stream| !stream.has(Stream::REMOVED))
    }

    /// Gives unused memory back.
    pub(super) fn shrink(&mut self) {
        self.places.retain(|stream| !stream.has(Stream::REMOVED));
        self.places.shrink_to_fit();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Stream>()
    }

    /// The place of a stream that was not removed: where it is if no identifier after it was skipped
    /// or has lost its place, else by a binary search.
    #[inline]
    fn locate(&self, id: u32) -> Option<usize> {
        let last = self.places.back()?;
        let after = (last.id.checked_sub(id)? / 2) as usize;
        let guess = (self.places.len() - 1).checked_sub(after);
        let place = match guess {
            Some(place) if self.places.get(place).is_some_and(|stream| stream.id == id) => place,
            _ => self.places.binary_search_by_key(&id, |stream| stream.id).ok()?,
        };
        self.places.get(place).is_some_and(|stream| !stream.has(Stream::REMOVED)).then_some(place)
    }
}
