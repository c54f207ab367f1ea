//! [`Encoder`]: fields to header blocks.

use alloc::vec::Vec;

use super::shape::Memo;
use super::static_table::{self, Found};
use super::table::Table;
use super::{
    FIELD_OVERHEAD_BYTES, TABLE_BYTES_DEFAULT, TABLE_BYTES_MAX, huffman, integer, representation,
};

/// The largest table that an encoder uses, in bytes, however much the peer allows.
pub const ENCODER_TABLE_BYTES: u32 = TABLE_BYTES_DEFAULT;
/// Cookies up to this length are never indexed: a short secret could be guessed from the lengths of blocks
/// (RFC 7541 7.1.3).
const COOKIE_BYTES_GUESSABLE: usize = 20;

/// How a field is represented (RFC 7541 6).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Indexing {
    /// By its name: never indexed for secrets, without indexing for values that usually differ from one
    /// message to the next, and otherwise incremental.
    Auto,
    /// Added to the table, so that it takes a byte or two the next time (6.2.1).
    Incremental,
    /// Not added to the table (6.2.2).
    Without,
    /// Not added to any table on the way to the last recipient (6.2.3).
    Never,
}

/// The compression state of one connection, for the blocks that we send. Without entries in its table it
/// holds no memory of its own, and at most the table's size and 12 bytes for an entry.
pub struct Encoder {
    pub(super) table: Table,
    /// Counts changes of the table: what was encoded in the same generation is valid.
    pub(super) generation: u32,
    pub(super) memos: [Memo; Memo::COUNT],
    /// The largest size of our choice.
    most: u32,
    /// The size that the table is to have, and the smallest that was to be had since the last block.
    next: u32,
    smallest: u32,
    /// Whether the next block begins with size updates.
    update: bool,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder::new()
    }
}

impl Encoder {
    /// An encoder for a peer that allows a table of 4,096 bytes, as each does until its SETTINGS have
    /// arrived.
    #[must_use]
    pub const fn new() -> Encoder {
        Encoder::with_table(ENCODER_TABLE_BYTES)
    }

    /// As [`Encoder::new`], with a table of at most that many bytes, for less memory.
    #[must_use]
    pub const fn with_table(table_bytes_max: u32) -> Encoder {
        let most =
            if table_bytes_max < TABLE_BYTES_MAX { table_bytes_max } else { TABLE_BYTES_MAX };
        let next = if most < TABLE_BYTES_DEFAULT { most } else { TABLE_BYTES_DEFAULT };
        Encoder {
            table: Table::new(TABLE_BYTES_DEFAULT),
            generation: 1,
            memos: [Memo::NONE; Memo::COUNT],
            most,
            next,
            smallest: next,
            update: next != TABLE_BYTES_DEFAULT,
        }
    }

    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE. If it changes the size of the table, the next block
    /// begins with size updates (RFC 7541 4.2, RFC 9113 4.3.1).
    pub fn set_limit(&mut self, table_bytes_max: u32) {
        let next = table_bytes_max.min(self.most);
        self.update |= next != self.next;
        self.smallest = self.smallest.min(next);
        self.next = next;
    }

    /// Bytes of memory that it holds in addition to itself.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Appends the block of these fields, each represented as its name requires ([`Indexing::Auto`]).
    pub fn encode<'f>(
        &mut self,
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        out: &mut Vec<u8>,
    ) {
        self.begin(out);
        for (name, value) in fields {
            self.field(name, value, Indexing::Auto, out);
        }
    }

    /// Begins a block, of which [`Encoder::field`] appends the fields. What was appended has to be sent, as
    /// the peer's table follows ours.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if self.update {
            self.size_updates(out);
        }
    }

    #[cold]
    fn size_updates(&mut self, out: &mut Vec<u8>) {
        // RFC 7541 4.2: the smallest size in between has to be sent, too.
        let reduced = self.smallest < self.next.min(self.table.max());
        for size in reduced.then_some(self.smallest).into_iter().chain([self.next]) {
            integer::encode(out, representation::SIZE_UPDATE, 5, size);
            self.table.resize(size);
        }
        self.update = false;
        self.smallest = self.next;
        self.changed();
    }

    /// Appends a field to the block that was begun last.
    pub fn field(&mut self, name: &[u8], value: &[u8], indexing: Indexing, out: &mut Vec<u8>) {
        let indexing = match indexing {
            Indexing::Auto => automatic(name, value, self.table.max() as usize),
            chosen => chosen,
        };
        let index = match self.find(name, value) {
            (index, true) if indexing != Indexing::Never => {
                return integer::encode(out, representation::INDEXED, 7, index);
            }
            (index, _) => index,
        };
        let size = name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        if indexing == Indexing::Incremental && size <= self.table.max() as usize {
            literal(out, representation::INCREMENTAL, 6, index, name);
            string(out, value);
            self.table.insert(name, value);
            return self.changed();
        }
        let first = match indexing {
            Indexing::Never => representation::NEVER_INDEXED,
            _ => representation::WITHOUT_INDEXING,
        };
        literal(out, first, 4, index, name);
        string(out, value);
    }

    /// The index of a field, and whether its value is equal, too; 0 if no entry has its name.
    pub(super) fn find(&self, name: &[u8], value: &[u8]) -> (u32, bool) {
        let listed = match static_table::find(name, value) {
            Found::Field(index) => return (index, true),
            Found::Name(index) => Some(index),
            Found::No => None,
        };
        match self.table.find_field(name, value) {
            Some(index) => (index, true),
            None => (listed.or_else(|| self.table.find_name(name)).unwrap_or(0), false),
        }
    }

    /// What was encoded before is no longer valid.
    pub(super) fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        if self.generation == 0 {
            self.memos = [Memo::NONE; Memo::COUNT];
        }
    }
}

/// Appends the beginning of a literal field: the index of its name, or the name.
#[inline]
pub(super) fn literal(out: &mut Vec<u8>, first: u8, prefix: u32, index: u32, name: &[u8]) {
    integer::encode(out, first, prefix, index);
    if index == 0 {
        string(out, name);
    }
}

/// Appends a string, Huffman-coded only if that is shorter, as plain bytes are read faster (RFC 7541 5.2).
pub(super) fn string(out: &mut Vec<u8>, string: &[u8]) {
    let encoded = huffman::encoded_len(string);
    if encoded < string.len() {
        integer::encode(out, representation::HUFFMAN, 7, encoded as u32);
        huffman::encode(string, out);
    } else {
        integer::encode(out, 0, 7, string.len() as u32);
        out.extend_from_slice(string);
    }
}

/// How a field is represented, by its name.
fn automatic(name: &[u8], value: &[u8], table_bytes: usize) -> Indexing {
    match name {
        b"cookie" if value.len() < COOKIE_BYTES_GUESSABLE => Indexing::Never,
        _ if is_secret(name) => Indexing::Never,
        b":path" | b"age" | b"content-length" | b"content-range" | b"etag" | b"if-match"
        | b"if-modified-since" | b"if-none-match" | b"last-modified" | b"location"
        | b"set-cookie" => Indexing::Without,
        // One field would evict most of the others.
        _ if name.len() + value.len() + FIELD_OVERHEAD_BYTES > table_bytes / 4 * 3 => {
            Indexing::Without
        }
        _ => Indexing::Incremental,
    }
}

/// Fields whose values are secret (RFC 7541 7.1.3).
pub(super) fn is_secret(name: &[u8]) -> bool {
    matches!(name, b"authorization" | b"proxy-authorization")
}
