//! The dynamic table (RFC 7541 2.3.2 and 4), of an encoder or a decoder.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::{FIELD_OVERHEAD_BYTES, is_same, static_table};

/// Largest dynamic table that a decoder can allow, in bytes.
pub const TABLE_BYTES_MAX: u32 = 65_535;
/// The first memory for names and values, in bytes.
const RING_BYTES_MIN: usize = 256;

/// Entries by insertion. Names and values are in a ring, so that entries are inserted and evicted without
/// moving others. Without entries it holds no memory until the first one.
pub(super) struct Table {
    /// Its length is 0 or a power of two.
    ring: Vec<u8>,
    /// The oldest first.
    entries: VecDeque<Entry>,
    /// Where the next entry begins: a number of bytes since the table was made, which wraps.
    end: u32,
    /// The sum of the entries' sizes (4.1).
    size: u32,
    /// The maximum size (4.2).
    max: u32,
}

/// The value follows the name in the ring. Sizes are at most [`TABLE_BYTES_MAX`].
#[derive(Copy, Clone)]
struct Entry {
    begin: u32,
    name: u16,
    value: u16,
}

impl Table {
    pub(super) const fn new(max: u32) -> Table {
        Table { ring: Vec::new(), entries: VecDeque::new(), end: 0, size: 0, max }
    }

    pub(super) fn max(&self) -> u32 {
        self.max
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Bytes that can be inserted without evicting an entry, as counted by 4.1.
    pub(super) fn room(&self) -> usize {
        (self.max - self.size) as usize
    }

    /// Bytes of memory that it holds, used or not.
    pub(super) fn memory_bytes(&self) -> usize {
        self.ring.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Changes the maximum size, at most [`TABLE_BYTES_MAX`], and evicts what exceeds it (4.3).
    pub(super) fn resize(&mut self, max: u32) {
        self.max = max.min(TABLE_BYTES_MAX);
        self.evict(0);
        if self.max == 0 {
            self.ring = Vec::new();
            self.entries = VecDeque::new();
        }
    }

    /// Inserts an entry and evicts others for it; one that is larger than the table empties it (4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let length = name.len() + value.len();
        let size = length + FIELD_OVERHEAD_BYTES;
        self.evict(size);
        if size > self.max as usize {
            return;
        }
        self.reserve(length);
        self.write(self.end, name);
        self.write(self.end.wrapping_add(name.len() as u32), value);
        let (name, value) = (name.len() as u16, value.len() as u16);
        self.entries.push_back(Entry { begin: self.end, name, value });
        self.end = self.end.wrapping_add(length as u32);
        self.size += size as u32;
    }

    /// Evicts the oldest entries until there is room for `size` more, or none is left.
    fn evict(&mut self, size: usize) {
        while self.size as usize + size > self.max as usize
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.len() as u32 + FIELD_OVERHEAD_BYTES as u32;
        }
    }

    /// Bytes of the ring that are used.
    fn used(&self) -> usize {
        self.size as usize - self.entries.len() * FIELD_OVERHEAD_BYTES
    }

    /// Makes room in the ring for `length` more bytes. Its length stays below twice the maximum size.
    fn reserve(&mut self, length: usize) {
        let used = self.used();
        if used + length <= self.ring.len() {
            return;
        }
        let len = (used + length).next_power_of_two().max(RING_BYTES_MIN);
        let old = core::mem::replace(&mut self.ring, vec![0; len]);
        let begin = self.end.wrapping_sub(used as u32);
        let (first, second) = segments(&old, begin, used);
        self.write(begin, first);
        self.write(begin.wrapping_add(first.len() as u32), second);
    }

    /// Writes to the ring. The bytes are not more than its length.
    fn write(&mut self, position: u32, bytes: &[u8]) {
        let at = position as usize & self.ring.len().wrapping_sub(1);
        let (before, after) = self.ring.split_at_mut_checked(at).unwrap_or_default();
        let (first, second) = bytes.split_at(bytes.len().min(after.len()));
        if let Some(place) = after.get_mut(..first.len()) {
            place.copy_from_slice(first);
        }
        if let Some(place) = before.get_mut(..second.len()) {
            place.copy_from_slice(second);
        }
    }

    /// The entry with that index among all tables, the newest being the one after the static table
    /// (2.3.3).
    fn entry(&self, index: u32) -> Option<Entry> {
        let age = index.checked_sub(static_table::LEN + 1)? as usize;
        self.entries.get(self.entries.len().checked_sub(age + 1)?).copied()
    }

    /// The lengths of the name and of the value of the entry with that index.
    pub(super) fn lengths(&self, index: u32) -> Option<(usize, usize)> {
        self.entry(index).map(|entry| (usize::from(entry.name), usize::from(entry.value)))
    }

    /// Appends name and value of the entry with that index; returns the length of the name.
    pub(super) fn copy_field(&self, index: u32, out: &mut Vec<u8>) -> Option<usize> {
        let entry = self.entry(index)?;
        self.copy(entry.begin, entry.len(), out);
        Some(usize::from(entry.name))
    }

    /// Appends the name of the entry with that index; returns its length.
    pub(super) fn copy_name(&self, index: u32, out: &mut Vec<u8>) -> Option<usize> {
        let entry = self.entry(index)?;
        self.copy(entry.begin, usize::from(entry.name), out);
        Some(usize::from(entry.name))
    }

    fn copy(&self, begin: u32, length: usize, out: &mut Vec<u8>) {
        let (first, second) = segments(&self.ring, begin, length);
        out.extend_from_slice(first);
        if !second.is_empty() {
            out.extend_from_slice(second);
        }
    }

    /// The index of the newest entry with that name and value.
    pub(super) fn find_field(&self, name: &[u8], value: &[u8]) -> Option<u32> {
        let lengths = (u16::try_from(name.len()).ok()?, u16::try_from(value.len()).ok()?);
        self.newest(|entry| {
            (entry.name, entry.value) == lengths
                && self.equals(entry.begin.wrapping_add(u32::from(entry.name)), value)
                && self.equals(entry.begin, name)
        })
    }

    /// The index of the newest entry with that name.
    pub(super) fn find_name(&self, name: &[u8]) -> Option<u32> {
        self.newest(|entry| usize::from(entry.name) == name.len() && self.equals(entry.begin, name))
    }

    /// The index of the newest entry for which this is true.
    fn newest(&self, is_it: impl Fn(&Entry) -> bool) -> Option<u32> {
        let age = self.entries.iter().rev().position(is_it)?;
        Some(static_table::LEN + 1 + age as u32)
    }

    fn equals(&self, begin: u32, bytes: &[u8]) -> bool {
        let (first, second) = segments(&self.ring, begin, bytes.len());
        match bytes.split_at_checked(first.len()) {
            Some((head, tail)) => is_same(head, first) && is_same(tail, second),
            None => false,
        }
    }
}

impl Entry {
    fn len(self) -> usize {
        usize::from(self.name) + usize::from(self.value)
    }
}

/// The parts of a ring from that position: up to its end, and from its beginning.
#[inline]
fn segments(ring: &[u8], position: u32, length: usize) -> (&[u8], &[u8]) {
    let at = position as usize & ring.len().wrapping_sub(1);
    let (before, after) = ring.split_at_checked(at).unwrap_or_default();
    match after.get(..length) {
        Some(first) => (first, &[]),
        None => (after, before.get(..length - after.len()).unwrap_or_default()),
    }
}
