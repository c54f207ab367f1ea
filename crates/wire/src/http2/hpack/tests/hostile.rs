//! Blocks that a hostile peer sends: each is refused, or bounded, and nothing panics.

use std::{vec, vec::Vec};

use super::*;

fn refused(block: &[u8]) -> Violation {
    decode(&mut Decoder::default(), block).unwrap_err()
}

#[test]
fn indices_of_no_entry_are_refused() {
    // RFC 7541 6.1: 0; 2.3.3: above both tables.
    for block in [&[0x80][..], &[0xbe], &[0xff, 0x00], &[0xff, 0xff, 0xff, 0x7f]] {
        assert_eq!(refused(block), Violation::HpackBadIndex, "{block:02x?}");
    }
    // As the index of a name.
    for block in [&[0x7e, 1, b'x'][..], &[0x0f, 0x2f, 1, b'x'], &[0x1f, 0x2f, 1, b'x']] {
        assert_eq!(refused(block), Violation::HpackBadIndex, "{block:02x?}");
    }
    // One entry, and the index of a second.
    let one = [0x40, 1, b'a', 1, b'b'];
    assert!(decode(&mut Decoder::default(), &[&one[..], &[0xbe]].concat()).is_ok());
    assert_eq!(refused(&[&one[..], &[0xbf]].concat()), Violation::HpackBadIndex);
}

#[test]
fn integers_are_limited_in_value_and_length() {
    // RFC 7541 5.1. Zeros after the prefix are valid, but not any number of them.
    assert_eq!(refused(&[0xff, 0x80, 0x80, 0x80, 0x80]), Violation::HpackIntegerTooLarge);
    assert_eq!(refused(&[0xff; 100]), Violation::HpackIntegerTooLarge);
    assert_eq!(refused(&[0x3f, 0xff, 0xff, 0xff, 0xff, 0x7f]), Violation::HpackIntegerTooLarge);
    assert_eq!(
        refused(&[0x00, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff]),
        Violation::HpackIntegerTooLarge
    );
    let padded = [0x00, 0x7f, 0x80, 0x80, 0x80, 0x00];
    let block = [&padded[..], &[b'x'; 127], &[0]].concat();
    assert_eq!(decode(&mut Decoder::default(), &block), Ok(vec![(vec![b'x'; 127], vec![])]));
}

#[test]
fn every_incomplete_block_is_refused_or_ends_after_a_field() {
    let mut encoder = Encoder::new();
    let sent = fields(&[
        (":method", "GET"),
        (":path", "/a/path/that/is/new"),
        ("x-long", &"value ".repeat(60)),
        ("authorization", "0\u{1}\u{2}"),
        ("x-long", &"value ".repeat(60)),
    ]);
    let block = encode(&mut encoder, &sent);
    for cut in 0..block.len() {
        match decode(&mut Decoder::default(), &block[..cut]) {
            Ok(fields) => assert!(fields.len() < sent.len() && sent.starts_with(&fields)),
            Err(violation) => assert_eq!(violation, Violation::HpackTruncated, "cut at {cut}"),
        }
    }
    // A length that is announced and not there costs nothing.
    assert_eq!(refused(&[0x40, 0x7f, 0xff, 0xff, 0x7f]), Violation::HpackTruncated);
}

#[test]
fn size_updates_are_at_the_beginning_and_within_the_limit() {
    let accepted: [&[u8]; 4] =
        [&[0x20], &[0x3f, 0xe1, 0x1f], &[0x20, 0x3f, 0xe1, 0x1f, 0x82], &[0x30, 0x82]];
    for block in accepted {
        assert!(decode(&mut Decoder::default(), block).is_ok(), "{block:02x?}");
    }
    // 4,097 (RFC 7541 6.3).
    assert_eq!(refused(&[0x3f, 0xe2, 0x1f]), Violation::HpackSizeUpdateTooLarge);
    // After a field (RFC 7541 4.2).
    assert_eq!(refused(&[0x82, 0x20]), Violation::HpackMisplacedSizeUpdate);
    assert_eq!(refused(&[0x30, 0x82, 0x3f, 0xe1, 0x1f]), Violation::HpackMisplacedSizeUpdate);
    // A larger limit is not used before an update (RFC 7541 4.2).
    let mut decoder = Decoder::new(65_535);
    assert_eq!(decoder.table.max(), 4096);
    assert!(decode(&mut decoder, &[0x3f, 0xe0, 0xff, 0x03]).is_ok());
    assert_eq!(decoder.table.max(), 65_535);
}

/// RFC 9113 4.3.1.
#[test]
fn a_reduced_limit_requires_an_update() {
    let reduced = |limits: &[u32]| {
        let mut decoder = Decoder::default();
        limits.iter().for_each(|limit| decoder.set_limit(*limit));
        decoder
    };
    assert_eq!(decode(&mut reduced(&[100]), &[0x82]), Err(Violation::HpackMissingSizeUpdate));
    assert_eq!(decode(&mut reduced(&[100]), &[]), Err(Violation::HpackMissingSizeUpdate));
    assert_eq!(
        decode(&mut reduced(&[100]), &[0x3f, 0x46]),
        Err(Violation::HpackSizeUpdateTooLarge)
    );
    let mut decoder = reduced(&[100]);
    assert!(decode(&mut decoder, &[0x3f, 0x45, 0x82]).is_ok());
    assert!(decode(&mut decoder, &[0x82]).is_ok(), "once is enough");
    // Smaller than required.
    assert!(decode(&mut reduced(&[100]), &[0x20]).is_ok());
    // Of several reductions the smallest has to be signalled, before the last.
    for limits in [[0, 4096], [0, 100]] {
        let last = if limits[1] == 100 { &[0x3f, 0x45][..] } else { &[0x3f, 0xe1, 0x1f] };
        assert_eq!(decode(&mut reduced(&limits), last), Err(Violation::HpackMissingSizeUpdate));
        assert!(decode(&mut reduced(&limits), &[&[0x20], last].concat()).is_ok());
        assert!(decode(&mut reduced(&limits), &[0x20]).is_ok());
    }
    // An increase, or a limit that the table does not reach, requires nothing.
    assert!(decode(&mut reduced(&[8192, 4096]), &[0x82]).is_ok());
    let mut small = Decoder::default();
    assert!(decode(&mut small, &[0x20]).is_ok());
    small.set_limit(100);
    assert!(decode(&mut small, &[0x82]).is_ok());
}

/// An entry of nearly the whole table, and blocks that refer to it.
fn table_with_large_entry() -> Decoder {
    let mut decoder = Decoder::default();
    let mut block = vec![0x40, 1, b'a', 0x7f, 0xdc, 0x1e];
    block.extend_from_slice(&[b'x'; 4059 - 4]);
    block[4..6].copy_from_slice(&[0x80 | ((4055 - 127) & 0x7f) as u8, ((4055 - 127) >> 7) as u8]);
    assert_eq!(decode(&mut decoder, &block).unwrap()[0].1.len(), 4055);
    assert_eq!(decoder.table.size(), 4088);
    decoder
}

#[test]
fn a_block_that_refers_to_a_large_entry_often_is_bounded() {
    let mut decoder = table_with_large_entry();
    let mut list = HeaderList::new();
    // 16 MB of fields in 4 KB.
    let result = decoder.decode(&[0xbe; 4096], &mut list, 16 * 1024);
    assert_eq!(result, Err(Violation::HeaderListBomb));
    assert!(list.memory_bytes() <= 64 * 1024, "{}", list.memory_bytes());
    assert_eq!(list.len(), 4, "what is within the limit");
    assert!(list.size() <= 16 * 1024);
}

#[test]
fn a_list_may_exceed_its_limit_by_64_kib_without_ending_the_connection() {
    let mut decoder = table_with_large_entry();
    let mut list = HeaderList::new();
    let block = [0xbe; 20];
    let limit = 20 * 4088 - EXCESS_BYTES_MAX;
    let result = decoder.decode(&block, &mut list, limit);
    assert_eq!(result, Err(Violation::HeaderListTooLarge));
    let result = decoder.decode(&block, &mut list, limit - 1);
    assert_eq!(result, Err(Violation::HeaderListBomb));
    assert_eq!(decoder.decode(&block, &mut list, usize::MAX), Ok(()));
}

/// A name as long as the table, inserted again by each two bytes.
#[test]
fn insertions_of_a_large_name_are_bounded() {
    let mut decoder = Decoder::default();
    let mut block = vec![0x40, 0x7f, 0, 0];
    block[2..4].copy_from_slice(&[0x80 | ((4000 - 127) & 0x7f) as u8, ((4000 - 127) >> 7) as u8]);
    block.extend_from_slice(&[b'n'; 4000]);
    block.push(0);
    block.extend_from_slice(&[0x7e, 0].repeat(8000));
    let mut list = HeaderList::new();
    assert_eq!(decoder.decode(&block, &mut list, 8192), Err(Violation::HeaderListBomb));
    assert!(list.memory_bytes() <= 64 * 1024 && decoder.memory_bytes() < 10 * 1024);
}

/// RFC 9113 10.5.1: the stream is refused, the connection goes on.
#[test]
fn a_list_above_the_limit_leaves_the_table_right() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
    let sent = fields(&[
        (":method", "GET"),
        ("x-first", "1"),
        ("x-large", &"large ".repeat(300)),
        ("x-last", "2"),
    ]);
    let block = encode(&mut encoder, &sent);
    let mut list = HeaderList::new();
    assert_eq!(decoder.decode(&block, &mut list, 1000), Err(Violation::HeaderListTooLarge));
    let kept: Vec<_> = list.iter().collect();
    assert_eq!(kept, pairs(&sent).take(2).collect::<Vec<_>>());
    assert_eq!(list.get(b"x-first"), Some(&b"1"[..]));
    assert_eq!(list.get(b"x-last"), None);
    // Everything is indexed by now.
    let block = encode(&mut encoder, &sent);
    assert_eq!(block.len(), 4);
    assert_eq!(decode(&mut decoder, &block), Ok(sent.clone()));
    // The same with indexed fields only.
    assert_eq!(decoder.decode(&block, &mut list, 1000), Err(Violation::HeaderListTooLarge));
    assert_eq!(list.len(), 2);
    let exact: usize = pairs(&sent).map(|(name, value)| name.len() + value.len() + 32).sum();
    assert_eq!(decoder.decode(&block, &mut list, exact), Ok(()));
    assert_eq!(decoder.decode(&block, &mut list, exact - 1), Err(Violation::HeaderListTooLarge));
    assert_eq!(decoder.decode(&[], &mut list, 0), Ok(()));
    assert!(list.is_empty());
}

/// RFC 7541 4.4: an entry larger than the table empties it, and is no error; a name that is evicted by its
/// own use is valid.
#[test]
fn entries_that_do_not_fit_empty_the_table() {
    let mut decoder = table_with_large_entry();
    let block = [&[0x7e, 0x7f, 0x80, 0x20][..], &[b'v'; 4096 + 127]].concat();
    let decoded = decode(&mut decoder, &block).unwrap();
    assert_eq!((decoded[0].0.as_slice(), decoded[0].1.len()), (&b"a"[..], 4223));
    assert_eq!(decoder.table.size(), 0);
    assert_eq!(decode(&mut decoder, &[0xbe]), Err(Violation::HpackBadIndex));
    let mut decoder = table_with_large_entry();
    assert_eq!(decode(&mut decoder, &[0x7e, 1, b'v']), Ok(fields(&[("a", "v")])));
    assert_eq!(decoder.table.size(), 34);
}

#[test]
fn strings_with_wrong_huffman_codes_are_refused() {
    // Of a name, a value, and one that is not even indexed.
    let cases: [&[u8]; 4] = [
        &[0x40, 0x81, 0x18, 0],
        &[0x44, 0x81, 0x18],
        &[0x04, 0x84, 0xff, 0xff, 0xff, 0xff],
        &[0x10, 0x82, 0xff, 0xff, 0],
    ];
    for block in cases {
        assert_eq!(refused(block), Violation::HpackBadHuffman, "{block:02x?}");
    }
}

#[test]
fn a_table_without_entries_holds_no_memory() {
    let mut decoder = Decoder::default();
    assert_eq!(decoder.memory_bytes(), 0);
    assert!(decode(&mut decoder, &[0x82, 0x86, 0x04, 1, b'/']).is_ok());
    assert_eq!(decoder.memory_bytes(), 0);
    assert!(decode(&mut decoder, &[0x44, 1, b'/']).is_ok());
    assert!(decoder.memory_bytes() <= 512, "{}", decoder.memory_bytes());
    assert!(decode(&mut decoder, &[0x20, 0x44, 1, b'/']).is_ok());
    assert_eq!(decoder.memory_bytes(), 0);
    // Full of the smallest entries.
    let mut decoder = Decoder::default();
    assert!(decode(&mut decoder, &[0x40, 0, 0].repeat(1000)).is_ok());
    assert!(decoder.memory_bytes() <= 4096, "{}", decoder.memory_bytes());
    assert_eq!(decoder.table.size(), 4096);
}
