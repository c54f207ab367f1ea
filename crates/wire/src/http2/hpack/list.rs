//! [`HeaderList`]: decoded fields, in memory that is used again.

use alloc::vec::Vec;
use core::fmt;

use super::FIELD_OVERHEAD_BYTES;
use super::recent::RecentStrings;

/// The fields of one header block, in their order. Its memory is kept when it is cleared, so that a worker
/// decodes all blocks of all its connections into one list. The list also knows the strings that were
/// decoded into it last, which takes 8 KiB from the first one on.
#[derive(Default, Clone)]
pub struct HeaderList {
    /// Names and values, one after another.
    pub(super) bytes: Vec<u8>,
    fields: Vec<Ends>,
    size: usize,
    /// Here, as a list is for many blocks of many connections.
    pub(super) recent: RecentStrings,
}

/// Where a field's name and value end in the bytes; the name begins where the field before it ends.
#[derive(Copy, Clone)]
struct Ends {
    /// The highest bit: whether the field must not be indexed.
    name: u32,
    value: u32,
}

const NEVER_INDEXED: u32 = 1 << 31;

impl HeaderList {
    /// An empty list, without memory.
    #[must_use]
    pub const fn new() -> HeaderList {
        HeaderList { bytes: Vec::new(), fields: Vec::new(), size: 0, recent: RecentStrings::new() }
    }

    /// Removes all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        self.size = 0;
    }

    /// The number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether it has no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The sum of its names and values and 32 bytes for each field (RFC 9113 6.5.2,
    /// SETTINGS_MAX_HEADER_LIST_SIZE; RFC 7541 4.1).
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes of memory that it holds, used or not.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let fields = self.fields.capacity() * size_of::<Ends>();
        self.bytes.capacity() + fields + self.recent.memory_bytes()
    }

    /// Names and values, in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        self.iter_with_flag().map(|(name, value, _)| (name, value))
    }

    /// Names and values, in order, and whether the peer sent the field as never indexed: who passes it
    /// on must do the same, by [`Indexing::Never`](super::Indexing::Never) (RFC 7541 6.2.3).
    #[inline]
    pub fn iter_with_flag(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8], bool)> + Clone {
        let mut rest = self.bytes.as_slice();
        let mut begin = 0;
        self.fields.iter().map(move |ends| {
            let name_end = ends.name & !NEVER_INDEXED;
            let split = |bytes, length: u32| <[u8]>::split_at_checked(bytes, length as usize);
            let (name, after) = split(rest, name_end - begin).unwrap_or_default();
            let (value, after) = split(after, ends.value - name_end).unwrap_or_default();
            (rest, begin) = (after, ends.value);
            (name, value, ends.name & NEVER_INDEXED != 0)
        })
    }

    /// The value of the first field of that name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|field| field.0 == name).map(|field| field.1)
    }

    /// Appends a field. Fields beyond 2 GiB of names and values are left out.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.finish_field(begin, name.len(), false);
    }

    /// Makes a field of the bytes from `begin`.
    #[inline]
    pub(super) fn finish_field(&mut self, begin: usize, name_len: usize, never_indexed: bool) {
        let end = self.bytes.len();
        if end >= NEVER_INDEXED as usize {
            return self.bytes.truncate(begin);
        }
        let flag = if never_indexed { NEVER_INDEXED } else { 0 };
        self.fields.push(Ends { name: (begin + name_len) as u32 | flag, value: end as u32 });
        self.size += end - begin + FIELD_OVERHEAD_BYTES;
    }
}

impl fmt::Debug for HeaderList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| alloc::format!("{}", bytes.escape_ascii());
        f.debug_map().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}
