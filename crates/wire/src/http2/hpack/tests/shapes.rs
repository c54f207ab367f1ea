//! Blocks of shapes: the same fields as without a shape, and short after the first ones.

use std::{format, string::ToString, vec, vec::Vec};

use super::*;

/// A load generator's request.
fn request() -> Vec<(&'static [u8], Option<&'static [u8]>)> {
    vec![
        (b":method", Some(b"GET")),
        (b":scheme", Some(b"https")),
        (b":authority", Some(b"www.example.com:8443")),
        (b":path", Some(b"/api/items?page=1")),
        (b"user-agent", Some(b"standfast/0.1.0")),
        (b"accept", Some(b"*/*")),
        (b"x-trace", Some(b"6f1c52a0")),
    ]
}

fn with_changing_path() -> Vec<(&'static [u8], Option<&'static [u8]>)> {
    let mut fields = request();
    fields[3].1 = None;
    fields
}

fn send(encoder: &mut Encoder, shape: &mut Shape, values: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![];
    encoder.encode_shape(shape, values.iter().copied(), &mut out);
    out
}

fn expected(shape: &[(&[u8], Option<&[u8]>)], values: &[&[u8]]) -> Fields {
    let mut values = values.iter();
    let mut value = |fixed: Option<&[u8]>| fixed.unwrap_or_else(|| values.next().unwrap()).to_vec();
    shape.iter().map(|(name, fixed)| (name.to_vec(), value(*fixed))).collect()
}

#[test]
fn after_the_first_block_each_field_takes_a_byte() {
    let mut shape = Shape::new(request());
    for _ in 0..3 {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
        for nth in 0..5 {
            let block = send(&mut encoder, &mut shape, &[]);
            assert_eq!(block.len() == 7, nth > 0, "block {nth} has {} bytes", block.len());
            assert_eq!(decode(&mut decoder, &block), Ok(expected(&request(), &[])));
        }
        assert_eq!(encoder.memos.iter().filter(|memo| memo.is_of(&shape)).count(), 1);
    }
    assert_eq!(shape.blocks(), 1, "all connections have the same block");
}

#[test]
fn only_values_that_change_are_encoded() {
    let mut shape = Shape::new(with_changing_path());
    assert_eq!(shape.changing(), 1);
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
    for nth in 0..300 {
        let path = format!("/api/items?page={nth}");
        let block = send(&mut encoder, &mut shape, &[path.as_bytes()]);
        assert!(nth == 0 || block.len() < 7 + path.len(), "{}", block.len());
        let expected = expected(&with_changing_path(), &[path.as_bytes()]);
        assert_eq!(decode(&mut decoder, &block), Ok(expected));
    }
    assert_eq!(shape.blocks(), 1);
}

#[test]
fn names_of_values_that_change_are_sent_once() {
    let mut shape = Shape::new([(&b"x-request-id-of-the-client"[..], None)]);
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
    for value in [b"00", b"01", b"02", b"03"] {
        let block = send(&mut encoder, &mut shape, &[value]);
        assert_eq!(block.len() <= 5, value != b"00", "{} bytes", block.len());
        let expected = vec![(b"x-request-id-of-the-client".to_vec(), value.to_vec())];
        assert_eq!(decode(&mut decoder, &block), Ok(expected));
    }
}

/// A kept block is used only while the table is what it was.
#[test]
fn other_blocks_and_sizes_in_between_make_a_block_invalid() {
    let (mut one, mut other) = (Shape::new(request()), Shape::new(with_changing_path()));
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
    for nth in 0..400u32 {
        let block = match nth % 7 {
            0 => encode(&mut encoder, &fields(&[("x-nth", &format!("{nth}"))])),
            3 | 4 => send(&mut encoder, &mut other, &[b"/"]),
            _ => send(&mut encoder, &mut one, &[]),
        };
        let expected = match nth % 7 {
            0 => fields(&[("x-nth", &format!("{nth}"))]),
            3 | 4 => expected(&with_changing_path(), &[b"/"]),
            _ => expected(&request(), &[]),
        };
        assert_eq!(decode(&mut decoder, &block), Ok(expected), "block {nth}");
        if nth % 50 == 49 {
            let limit = [0, 4096, 100, 65_536][nth as usize / 50 % 4];
            encoder.set_limit(limit);
            decoder.set_limit(limit);
        }
    }
    assert!(one.blocks() <= 16 && other.blocks() <= 16);
}

/// An encoder remembers few shapes; what it remembers of one is not used for another.
#[test]
fn shapes_in_the_same_place_are_told_apart() {
    let mut shape = Shape::new(request());
    let mut alone = Encoder::new();
    (0..2).for_each(|_| drop(send(&mut alone, &mut shape, &[])));
    // Eight at least, so that some have the place of the first.
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
    for nth in 0..16 {
        let value = format!("{nth}");
        let mut other = Shape::new([(&b"x-other"[..], Some(value.as_bytes()))]);
        for _ in 0..2 {
            let block = send(&mut encoder, &mut other, &[]);
            assert_eq!(decode(&mut decoder, &block), Ok(fields(&[("x-other", &value)])));
        }
        for _ in 0..2 {
            let block = send(&mut encoder, &mut shape, &[]);
            assert_eq!(decode(&mut decoder, &block), Ok(expected(&request(), &[])));
        }
    }
}

/// Shapes that together exceed the table do not evict each other's fields.
#[test]
fn blocks_stay_the_same_when_the_table_is_full() {
    let long = vec![b'x'; 1000];
    let of = |nth: u8| [(&b"x-shape"[..], Some(vec![nth; 1000])), (b"x-long", Some(long.clone()))];
    let mut shapes: Vec<Shape> = (0..8)
        .map(|nth| {
            let fields = of(nth);
            Shape::new(fields.iter().map(|(name, value)| (*name, value.as_deref())))
        })
        .collect();
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
    for round in 0..5 {
        let generation = encoder.generation;
        for (nth, shape) in shapes.iter_mut().enumerate() {
            let block = send(&mut encoder, shape, &[]);
            let expected =
                [(b"x-shape".to_vec(), vec![nth as u8; 1000]), (b"x-long".to_vec(), long.clone())];
            assert_eq!(decode(&mut decoder, &block), Ok(expected.to_vec()));
        }
        assert_eq!(encoder.generation == generation, round > 0);
    }
}

#[test]
fn secrets_stay_out_of_the_table() {
    let secret: [(&[u8], Option<&[u8]>); 2] =
        [(b"authorization", Some(b"Bearer 0123456789")), (b"proxy-authorization", None)];
    let mut shape = Shape::new(secret);
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
    let mut list = HeaderList::new();
    for _ in 0..3 {
        let block = send(&mut encoder, &mut shape, &[b"Basic 0123"]);
        assert_eq!(decoder.decode(&block, &mut list, LIST_BYTES), Ok(()));
        let fields: Vec<_> = list.iter_with_flag().collect();
        let first: (&[u8], &[u8], bool) = (b"authorization", b"Bearer 0123456789", true);
        assert_eq!(fields, [first, (b"proxy-authorization", b"Basic 0123", true)]);
        assert_eq!(encoder.table.size(), 0);
    }
}

#[test]
fn memory_of_an_encoder_is_bounded() {
    let mut shapes: Vec<Shape> = (0..100u32)
        .map(|nth| Shape::new([(&b"x-nth"[..], Some(nth.to_string().as_bytes())), (b"x", None)]))
        .collect();
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
    assert_eq!(encoder.memory_bytes(), 0);
    for round in 0..1000u32 {
        let shape = round as usize * 7 % 100;
        let block = send(&mut encoder, &mut shapes[shape], &[b"v"]);
        let expected = fields(&[("x-nth", &shape.to_string()), ("x", "v")]);
        assert_eq!(decode(&mut decoder, &block), Ok(expected));
        assert!(shapes[shape].blocks() <= 16);
    }
    assert!(encoder.memory_bytes() < 6 * 1024, "{}", encoder.memory_bytes());
    assert!(size_of::<Encoder>() <= 168, "{}", size_of::<Encoder>());
    assert!(size_of::<Decoder>() <= 96, "{}", size_of::<Decoder>());
}
