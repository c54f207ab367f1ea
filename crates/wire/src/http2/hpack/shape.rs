//! [`Shape`]: fields that are encoded once for many blocks.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use super::encoder::{is_secret, literal, string};
use super::{Encoder, FIELD_OVERHEAD_BYTES, integer, representation};

/// Different blocks that a shape keeps: connections that did the same have the same block.
const BLOCKS_MAX: usize = 16;

/// The fields of messages that are sent again and again, some of which have a value that changes. One is
/// for any number of encoders.
///
/// The first block of a connection puts the fixed fields into its table, and the names of the others. From
/// then on the block is the same as long as the table is, and is copied; only values that change are encoded.
pub struct Shape {
    /// Unique in the process.
    id: u32,
    fields: Box<[Field]>,
    /// At most [`BLOCKS_MAX`].
    blocks: Vec<Block>,
}

struct Field {
    name: Box<[u8]>,
    /// `None` if it changes.
    value: Option<Box<[u8]>>,
}

/// An encoded block.
#[derive(PartialEq)]
struct Block {
    /// Without the values that change.
    bytes: Box<[u8]>,
    /// Where the values that change are in it.
    gaps: Box<[u32]>,
}

/// What an encoder knows of a shape.
#[derive(Copy, Clone)]
pub(super) struct Memo {
    /// 0 if there is none.
    shape: u32,
    /// The generation of the encoder's table for which the block is valid.
    generation: u32,
    /// Which of the shape's blocks.
    block: u32,
}

impl Memo {
    /// Shapes that an encoder remembers at a time, by id.
    pub(super) const COUNT: usize = 4;
    pub(super) const NONE: Memo = Memo { shape: 0, generation: 0, block: 0 };

    #[cfg(test)]
    pub(super) fn is_of(&self, shape: &Shape) -> bool {
        self.shape == shape.id
    }
}

impl Shape {
    /// The shape of these fields in this order, those that change without a value. A field is put into the
    /// table of a connection if there is room, and is no secret: `authorization` and `proxy-authorization`
    /// are never indexed (RFC 7541 7.1.3).
    #[must_use]
    pub fn new<'f>(fields: impl IntoIterator<Item = (&'f [u8], Option<&'f [u8]>)>) -> Shape {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let field = |(name, value): (&[u8], Option<&[u8]>)| Field {
            name: name.into(),
            value: value.map(Box::from),
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Shape { id, fields: fields.into_iter().map(field).collect(), blocks: Vec::new() }
    }

    #[cfg(test)]
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The value of the first field of that name; `None` if it changes, or if there is none.
    #[must_use]
    pub fn fixed(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields.iter().find(|field| *field.name == *name)?.value.as_deref()
    }

    /// The number of fields whose value changes.
    #[must_use]
    pub fn changing(&self) -> usize {
        self.fields.iter().filter(|field| field.value.is_none()).count()
    }
}

impl Encoder {
    /// Appends a block of that shape, with values for the fields that change, in their order. Values that
    /// are missing are empty.
    #[inline]
    pub fn encode_shape<'v>(
        &mut self,
        shape: &mut Shape,
        values: impl IntoIterator<Item = &'v [u8]>,
        out: &mut Vec<u8>,
    ) {
        self.begin(out);
        let mut values = values.into_iter();
        let memo = self.memos.get(shape.id as usize % Memo::COUNT);
        if let Some(memo) = memo
            && memo.shape == shape.id
            && memo.generation == self.generation
            && let Some(block) = shape.blocks.get(memo.block as usize)
        {
            return block.copy(values, out);
        }
        self.encode_fields(shape, &mut values, out);
    }

    /// Encodes each field, and keeps the block if it changed nothing in the table.
    #[inline(never)]
    fn encode_fields(
        &mut self,
        shape: &mut Shape,
        values: &mut dyn Iterator<Item = &[u8]>,
        out: &mut Vec<u8>,
    ) {
        let generation = self.generation;
        let (mut bytes, mut gaps, mut copied) = (Vec::new(), Vec::new(), out.len());
        for field in &shape.fields {
            match &field.value {
                Some(value) => self.fixed_field(&field.name, value, out),
                None => {
                    let value = values.next().unwrap_or_default();
                    let (index, _) = self.find(&field.name, &[]);
                    if index == 0 && self.index_if_room(&field.name, value, index, out) {
                        // For its name: the block is encoded once more anyway.
                        continue;
                    }
                    literal(out, unindexed(&field.name), 4, index, &field.name);
                    bytes.extend_from_slice(out.get(copied..).unwrap_or_default());
                    gaps.push(bytes.len() as u32);
                    string(out, value);
                    copied = out.len();
                }
            }
        }
        if generation != self.generation {
            return;
        }
        bytes.extend_from_slice(out.get(copied..).unwrap_or_default());
        let block = Block { bytes: bytes.into(), gaps: gaps.into() };
        let place = shape.blocks.iter().position(|known| *known == block).or_else(|| {
            let place = shape.blocks.len();
            (place < BLOCKS_MAX).then(|| shape.blocks.push(block)).map(|()| place)
        });
        if let Some(place) = place
            && let Some(memo) = self.memos.get_mut(shape.id as usize % Memo::COUNT)
        {
            *memo = Memo { shape: shape.id, generation, block: place as u32 };
        }
    }

    /// Appends a field that does not change.
    fn fixed_field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let (index, same) = self.find(name, value);
        if same && !is_secret(name) {
            return integer::encode(out, representation::INDEXED, 7, index);
        }
        if !self.index_if_room(name, value, index, out) {
            literal(out, unindexed(name), 4, index, name);
            string(out, value);
        }
    }

    /// Appends a field and adds it to the table, if it is no secret and that evicts nothing: shapes that
    /// together are larger than the table would evict each other's fields in every block.
    fn index_if_room(&mut self, name: &[u8], value: &[u8], index: u32, out: &mut Vec<u8>) -> bool {
        let size = name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        if is_secret(name) || size > self.table.room() {
            return false;
        }
        literal(out, representation::INCREMENTAL, 6, index, name);
        string(out, value);
        self.table.insert(name, value);
        self.changed();
        true
    }
}

fn unindexed(name: &[u8]) -> u8 {
    if is_secret(name) { representation::NEVER_INDEXED } else { representation::WITHOUT_INDEXING }
}

impl Block {
    #[inline]
    fn copy<'v>(&self, mut values: impl Iterator<Item = &'v [u8]>, out: &mut Vec<u8>) {
        let mut copied = 0;
        for &gap in &self.gaps {
            out.extend_from_slice(self.bytes.get(copied..gap as usize).unwrap_or_default());
            string(out, values.next().unwrap_or_default());
            copied = gap as usize;
        }
        out.extend_from_slice(self.bytes.get(copied..).unwrap_or_default());
    }
}
