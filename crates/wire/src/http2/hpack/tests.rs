//! Tests of header compression: examples of RFC 7541, round trips, and input that is meant to harm.

mod appendix_c;
mod encoder;
mod generated;
mod hostile;
mod shapes;

use std::{string::String, vec, vec::Vec};

use super::*;
use crate::Violation;

/// A list limit that no test reaches by accident.
const LIST_BYTES: usize = 1 << 20;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn fields(pairs: &[(&str, &str)]) -> Fields {
    pairs
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

fn pairs(fields: &Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
}

/// Bytes of hexadecimal digits in groups.
fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, Violation> {
    let mut list = HeaderList::new();
    decoder.decode(block, &mut list, LIST_BYTES)?;
    let mut size = 0;
    let mut fields = vec![];
    for (name, value) in list.iter() {
        size += name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        fields.push((name.to_vec(), value.to_vec()));
    }
    assert_eq!((size, fields.len()), (list.size(), list.len()));
    Ok(fields)
}

fn encode(encoder: &mut Encoder, fields: &Fields) -> Vec<u8> {
    let mut out = vec![];
    encoder.encode(pairs(fields), &mut out);
    out
}
