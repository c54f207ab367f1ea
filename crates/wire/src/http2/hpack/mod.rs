//! Header compression of HTTP/2 (HPACK, RFC 7541): complete header blocks to fields and back.
//!
//! - [`Decoder`]: one for a connection, for the blocks that the peer sends. Writes the fields into a
//!   [`HeaderList`], of which a worker needs one for all its connections.
//! - [`Encoder`]: one for a connection, for the blocks that we send.
//! - [`Shape`]: fields that are sent many times, with values that change or without; after the first
//!   blocks of a connection its block is copied.
//!
//! Names and values are bytes. Which of them are valid in HTTP/2 (RFC 9113 8.2 and 8.3), and that
//! names are in lower case, is the caller's to check.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod list;
mod recent;
mod shape;
mod static_table;
mod table;

pub use decoder::{Decoder, EXCESS_BYTES_MAX};
pub use encoder::{ENCODER_TABLE_BYTES, Encoder, Indexing};
pub use list::HeaderList;
pub use shape::Shape;
pub use table::TABLE_BYTES_MAX;

#[cfg(test)]
mod tests;

/// What each field counts in addition to its name and value, in the size of a table (RFC 7541 4.1) and
/// in that of a header list (RFC 9113 6.5.2, SETTINGS_MAX_HEADER_LIST_SIZE).
pub const FIELD_OVERHEAD_BYTES: usize = 32;

/// The size of both tables of a connection until SETTINGS_HEADER_TABLE_SIZE changes it (RFC 9113
/// 6.5.2), in bytes.
pub const TABLE_BYTES_DEFAULT: u32 = 4096;

/// Whether both are equal. The C library's comparison reads with vector masks, and for nothing at the address
/// of an empty slice, where there is no page, takes longer than for a whole field.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// First bits of representations (RFC 7541 6).
mod representation {
    /// Indexed field, 7-bit prefix (6.1).
    pub(super) const INDEXED: u8 = 0x80;
    /// Literal with incremental indexing, 6-bit prefix (6.2.1).
    pub(super) const INCREMENTAL: u8 = 0x40;
    /// Dynamic table size update, 5-bit prefix (6.3).
    pub(super) const SIZE_UPDATE: u8 = 0x20;
    /// Literal never indexed, 4-bit prefix (6.2.3).
    pub(super) const NEVER_INDEXED: u8 = 0x10;
    /// Literal without indexing, 4-bit prefix (6.2.2).
    pub(super) const WITHOUT_INDEXING: u8 = 0x00;
    /// A string that is Huffman-coded, 7-bit prefix (5.2).
    pub(super) const HUFFMAN: u8 = 0x80;
}
