//! The slab: a worker's connections in chunks, so that growing never copies a million of them and
//! an empty slab frees its memory.

/// Slots per chunk: at 64 bytes each 256 KiB, which the allocator maps separately and which uses
/// memory only as far as it was touched.
const CHUNK_SLOTS: usize = 4096;
const NONE: u32 = u32::MAX;

enum Slot<T> {
    Live(T),
    /// The next free slot of the chunk.
    Free(u32),
}

struct Chunk<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    live: u32,
}

impl<T> Chunk<T> {
    const fn new() -> Self {
        Chunk { slots: Vec::new(), free: NONE, live: 0 }
    }

    fn has_room(&self) -> bool {
        (self.live as usize) < CHUNK_SLOTS
    }
}

/// Values at stable `u32` slots. The lowest chunk with room is filled first.
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// No chunk below this one has room.
    first_with_room: usize,
    live: u32,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Slab { chunks: Vec::new(), first_with_room: 0, live: 0 }
    }

    /// Number of values.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// One more than the highest slot that may be live.
    pub(crate) fn end(&self) -> u32 {
        match self.chunks.last() {
            Some(last) => ((self.chunks.len() - 1) * CHUNK_SLOTS + last.slots.len()) as u32,
            None => 0,
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        while self.chunks.get(self.first_with_room).is_some_and(|chunk| !chunk.has_room()) {
            self.first_with_room += 1;
        }
        if self.first_with_room == self.chunks.len() {
            self.chunks.push(Chunk::new());
        }
        let base = self.first_with_room * CHUNK_SLOTS;
        let chunk = &mut self.chunks[self.first_with_room];
        chunk.live += 1;
        self.live += 1;
        if chunk.free != NONE {
            let place = chunk.free;
            let slot = &mut chunk.slots[place as usize];
            let Slot::Free(next) = *slot else { unreachable!("free list names a live slot") };
            chunk.free = next;
            *slot = Slot::Live(value);
            return base as u32 + place;
        }
        if chunk.slots.capacity() == 0 {
            chunk.slots.reserve_exact(CHUNK_SLOTS);
        }
        chunk.slots.push(Slot::Live(value));
        (base + chunk.slots.len() - 1) as u32
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        let chunk = self.chunks.get(slot as usize / CHUNK_SLOTS)?;
        match chunk.slots.get(slot as usize % CHUNK_SLOTS)? {
            Slot::Live(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK_SLOTS)?;
        match chunk.slots.get_mut(slot as usize % CHUNK_SLOTS)? {
            Slot::Live(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let index = slot as usize / CHUNK_SLOTS;
        let chunk = self.chunks.get_mut(index)?;
        let place = slot as usize % CHUNK_SLOTS;
        let entry = chunk.slots.get_mut(place)?;
        if matches!(entry, Slot::Free(_)) {
            return None;
        }
        let Slot::Live(value) = std::mem::replace(entry, Slot::Free(chunk.free)) else {
            unreachable!("checked above")
        };
        chunk.free = place as u32;
        chunk.live -= 1;
        self.live -= 1;
        self.first_with_room = self.first_with_room.min(index);
        if chunk.live == 0 {
            *chunk = Chunk::new();
        }
        while self.chunks.last().is_some_and(|last| last.live == 0) {
            self.chunks.pop();
        }
        self.first_with_room = self.first_with_room.min(self.chunks.len());
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_empty_chunks_freed() {
        let mut slab = Slab::new();
        let n = CHUNK_SLOTS as u32 * 2 + 10;
        for i in 0..n {
            assert_eq!(slab.insert(i), i);
        }
        assert_eq!((slab.live(), slab.end()), (n, n));
        assert_eq!(slab.remove(5), Some(5));
        assert_eq!(slab.remove(5), None);
        assert_eq!(slab.get(5), None);
        assert_eq!(slab.insert(77), 5);
        for i in 0..n {
            assert!(slab.remove(i).is_some());
        }
        assert_eq!((slab.live(), slab.end(), slab.chunks.len()), (0, 0, 0));
        assert_eq!(slab.insert(1), 0);
    }

    #[test]
    fn an_empty_chunk_in_the_middle_frees_its_memory() {
        let mut slab = Slab::new();
        for i in 0..CHUNK_SLOTS as u32 * 3 {
            slab.insert(i);
        }
        for i in CHUNK_SLOTS as u32..CHUNK_SLOTS as u32 * 2 {
            slab.remove(i);
        }
        assert_eq!(slab.chunks[1].slots.capacity(), 0);
        assert_eq!(slab.insert(9), CHUNK_SLOTS as u32);
        assert_eq!(slab.get(CHUNK_SLOTS as u32 * 2), Some(&(CHUNK_SLOTS as u32 * 2)));
    }
}
