//! [`Decoder`]: header blocks to fields.

use super::table::Table;
use super::{
    FIELD_OVERHEAD_BYTES, HeaderList, TABLE_BYTES_DEFAULT, TABLE_BYTES_MAX, huffman, integer,
    representation, static_table,
};
use crate::Violation;

/// Bytes by which a block may exceed the limit of the list and still be decoded to its end, so that only its
/// stream is refused.
pub const EXCESS_BYTES_MAX: usize = 64 * 1024;

/// The compression state of one connection, for the blocks that the peer sends. Without entries in its
/// table it holds no memory of its own.
pub struct Decoder {
    pub(super) table: Table,
    /// The largest size that the peer may choose for the table.
    limit: u32,
    /// The smallest limit since the last block, if the table exceeded it: the next block has to begin with
    /// an update to at most this size.
    required: Option<u32>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new(TABLE_BYTES_DEFAULT)
    }
}

impl Decoder {
    /// A decoder whose peer may use a table of that many bytes, at most [`TABLE_BYTES_MAX`]. It is 4,096
    /// ([`TABLE_BYTES_DEFAULT`]) until SETTINGS are exchanged, see [`Decoder::set_limit`].
    #[must_use]
    pub const fn new(table_bytes_max: u32) -> Decoder {
        let limit =
            if table_bytes_max < TABLE_BYTES_MAX { table_bytes_max } else { TABLE_BYTES_MAX };
        let max = if limit < TABLE_BYTES_DEFAULT { limit } else { TABLE_BYTES_DEFAULT };
        Decoder { table: Table::new(max), limit, required: None }
    }

    /// Changes the largest size of the table to our SETTINGS_HEADER_TABLE_SIZE, at most [`TABLE_BYTES_MAX`].
    /// To be called once the peer has acknowledged the setting; an increase also when it is sent.
    ///
    /// If the table is larger, the next block has to begin with a size update (RFC 7541 4.2, RFC 9113
    /// 4.3.1).
    pub fn set_limit(&mut self, table_bytes_max: u32) {
        self.limit = table_bytes_max.min(TABLE_BYTES_MAX);
        if self.limit < self.required.unwrap_or(self.table.max()) {
            self.required = Some(self.limit);
        }
    }

    /// Bytes of memory that it holds in addition to itself.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Decodes a complete block, the fragments of HEADERS or PUSH_PROMISE and its CONTINUATIONs together,
    /// into `list`, which is cleared first.
    ///
    /// `list_bytes_max` limits the size of the list (RFC 9113 6.5.2), and so the memory. It is checked after
    /// each field, so that meanwhile `list` holds at most one field more, which is as long as the table or as
    /// 8/5 of the block.
    ///
    /// # Errors
    /// [`Violation::HeaderListTooLarge`] if the list exceeds `list_bytes_max`. The block was decoded to its
    /// end, so the connection can go on and only the stream is to be refused (RFC 9113 10.5.1). `list` has
    /// the fields before the limit.
    ///
    /// Any other violation is an error of the connection (COMPRESSION_ERROR, RFC 9113 4.3), and nothing can
    /// be decoded after it. So is [`Violation::HeaderListBomb`]: the list exceeds the limit by more than
    /// [`EXCESS_BYTES_MAX`]. Decoding ends there, so the work is bounded, too.
    pub fn decode(
        &mut self,
        block: &[u8],
        list: &mut HeaderList,
        list_bytes_max: usize,
    ) -> Result<(), Violation> {
        list.clear();
        let mut rest = block;
        self.size_updates(&mut rest)?;
        let mut size = 0;
        while let Some(&first) = rest.first() {
            if first & representation::INDEXED != 0 {
                let index = integer::decode(&mut rest, 7)?;
                size += self.indexed(index, list, size, list_bytes_max)?;
            } else if first & representation::INCREMENTAL != 0 {
                let literal = self.literal(&mut rest, 6, list, false)?;
                let bytes = list.bytes.get(literal.begin..).unwrap_or_default();
                let (name, value) = bytes.split_at_checked(literal.name).unwrap_or_default();
                self.table.insert(name, value);
                size += literal.finish(list, size, list_bytes_max, false);
            } else if first & representation::SIZE_UPDATE != 0 {
                return Err(Violation::HpackMisplacedSizeUpdate);
            } else {
                let never_indexed = first & representation::NEVER_INDEXED != 0;
                let literal = self.literal(&mut rest, 4, list, never_indexed)?;
                size += literal.finish(list, size, list_bytes_max, never_indexed);
            }
            if size > list_bytes_max.saturating_add(EXCESS_BYTES_MAX) {
                return Err(Violation::HeaderListBomb);
            }
        }
        if size > list_bytes_max { Err(Violation::HeaderListTooLarge) } else { Ok(()) }
    }

    /// Updates of the table's size are at the beginning of a block (RFC 7541 4.2).
    fn size_updates(&mut self, rest: &mut &[u8]) -> Result<(), Violation> {
        let mut smallest = None;
        while let Some(&first) = rest.first()
            && first & 0xe0 == representation::SIZE_UPDATE
        {
            let max = integer::decode(rest, 5)?;
            // RFC 7541 6.3.
            if max > self.limit {
                return Err(Violation::HpackSizeUpdateTooLarge);
            }
            self.table.resize(max);
            smallest = Some(smallest.map_or(max, |smallest: u32| smallest.min(max)));
        }
        // RFC 9113 4.3.1: the smallest size of several has to be among the updates.
        if let Some(required) = self.required.take()
            && smallest.is_none_or(|smallest| smallest > required)
        {
            return Err(Violation::HpackMissingSizeUpdate);
        }
        Ok(())
    }

    /// An indexed field (RFC 7541 6.1); returns its size. Beyond the limit nothing is copied.
    #[inline]
    fn indexed(
        &self,
        index: u32,
        list: &mut HeaderList,
        size: usize,
        list_bytes_max: usize,
    ) -> Result<usize, Violation> {
        let begin = list.bytes.len();
        if index > static_table::LEN {
            let (name, value) = self.table.lengths(index).ok_or(Violation::HpackBadIndex)?;
            let own = name + value + FIELD_OVERHEAD_BYTES;
            if size + own <= list_bytes_max {
                self.table.copy_field(index, &mut list.bytes);
                list.finish_field(begin, name, false);
            }
            return Ok(own);
        }
        let (name, value) = static_table::entry(index).ok_or(Violation::HpackBadIndex)?;
        let own = name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        if size + own <= list_bytes_max {
            list.push(name, value);
        }
        Ok(own)
    }

    /// Appends name and value of a literal field (RFC 7541 6.2) to the bytes of `list`.
    #[inline]
    fn literal(
        &self,
        rest: &mut &[u8],
        prefix: u32,
        list: &mut HeaderList,
        is_secret: bool,
    ) -> Result<Literal, Violation> {
        let begin = list.bytes.len();
        let index = integer::decode(rest, prefix)?;
        if index == 0 {
            string(rest, list, false)?;
        } else if index > static_table::LEN {
            self.table.copy_name(index, &mut list.bytes).ok_or(Violation::HpackBadIndex)?;
        } else {
            let (name, _) = static_table::entry(index).ok_or(Violation::HpackBadIndex)?;
            list.bytes.extend_from_slice(name);
        }
        let name = list.bytes.len() - begin;
        string(rest, list, is_secret)?;
        Ok(Literal { begin, name })
    }
}

/// A field at the end of a list's bytes, that is not yet part of the list.
struct Literal {
    begin: usize,
    /// The length of its name.
    name: usize,
}

impl Literal {
    /// Adds it to the list if it is within the limit; returns its size.
    #[inline]
    fn finish(
        self,
        list: &mut HeaderList,
        size: usize,
        list_bytes_max: usize,
        never_indexed: bool,
    ) -> usize {
        let own = list.bytes.len() - self.begin + FIELD_OVERHEAD_BYTES;
        if size + own <= list_bytes_max {
            list.finish_field(self.begin, self.name, never_indexed);
        } else {
            list.bytes.truncate(self.begin);
        }
        own
    }
}

/// Appends a decoded string (RFC 7541 5.2) to the bytes of `list`. A secret is decoded as if it were new, so
/// that the time it takes does not tell who else has sent it.
#[inline]
fn string(rest: &mut &[u8], list: &mut HeaderList, is_secret: bool) -> Result<(), Violation> {
    let huffman = rest.first().is_some_and(|first| first & representation::HUFFMAN != 0);
    let length = integer::decode(rest, 7)? as usize;
    let (string, after) = rest.split_at_checked(length).ok_or(Violation::HpackTruncated)?;
    *rest = after;
    if !huffman {
        list.bytes.extend_from_slice(string);
        Ok(())
    } else if is_secret {
        huffman::decode(string, &mut list.bytes)
    } else {
        list.recent.decode(string, &mut list.bytes)
    }
}
