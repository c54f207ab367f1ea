//! What the encoder chooses: representations by name, and size updates.

use std::{vec, vec::Vec};

use super::*;

/// The first bytes of the blocks of a field that is sent twice by its name, and whether it is in the table.
fn twice(name: &str, value: &str) -> ([u8; 2], bool) {
    let mut encoder = Encoder::new();
    let [first, second] = [(); 2].map(|()| encode(&mut encoder, &fields(&[(name, value)]))[0]);
    ([first, second], encoder.table.size() > 0)
}

#[test]
fn secrets_are_never_indexed() {
    for (name, value, first) in [
        ("authorization", "Bearer 0123456789abcdef", [0x1f, 0x1f]),
        ("proxy-authorization", "Basic 0123456789abcdef", [0x1f, 0x1f]),
        ("cookie", "session=0123456789a", [0x1f, 0x1f]),
    ] {
        assert_eq!(twice(name, value), (first, false), "{name}");
    }
    // A long cookie is hard to guess.
    assert_eq!(twice("cookie", "session=0123456789ab"), ([0x60, 0xbe], true));
}

#[test]
fn values_that_change_stay_out_of_the_table() {
    for (name, value, first) in [
        (":path", "/a", 0x04),
        ("age", "7", 0x0f),
        ("content-length", "100", 0x0f),
        ("content-range", "bytes 0-1/2", 0x0f),
        ("etag", "\"a\"", 0x0f),
        ("if-match", "\"a\"", 0x0f),
        ("if-modified-since", "Mon, 21 Oct 2013 20:13:21 GMT", 0x0f),
        ("if-none-match", "\"a\"", 0x0f),
        ("last-modified", "Mon, 21 Oct 2013 20:13:21 GMT", 0x0f),
        ("location", "/a", 0x0f),
        ("set-cookie", "a=b", 0x0f),
    ] {
        assert_eq!(twice(name, value), ([first; 2], false), "{name}");
    }
    assert_eq!(twice(":path", "/"), ([0x84, 0x84], false), "the static table has it");
    assert_eq!(twice("user-agent", "a"), ([0x7a, 0xbe], true));
    assert_eq!(twice("x-any", "a"), ([0x40, 0xbe], true));
    // Up to three quarters of the table: 3,072 bytes with 32 and the name.
    assert_eq!(twice("x-any", &"a".repeat(3072 - 32 - 5)), ([0x40, 0xbe], true));
    assert_eq!(twice("x-any", &"a".repeat(3072 - 32 - 4)), ([0x00, 0x00], false));
}

#[test]
fn the_callers_choice_comes_first() {
    let mut encoder = Encoder::new();
    let mut field = |name: &str, value: &str, indexing| {
        let mut out = vec![];
        encoder.field(name.as_bytes(), value.as_bytes(), indexing, &mut out);
        out[0]
    };
    assert_eq!(field("authorization", "a", Indexing::Incremental), 0x57);
    assert_eq!(field("authorization", "a", Indexing::Without), 0xbe);
    assert_eq!(field("authorization", "a", Indexing::Never), 0x1f);
    assert_eq!(field(":method", "GET", Indexing::Never), 0x12);
    assert_eq!(field("x-any", "a", Indexing::Without), 0x00);
    assert_eq!(field("x-any", "a", Indexing::Never), 0x10);
    // Larger than the table: it would only empty it (RFC 7541 4.4).
    assert_eq!(field("x-any", &"a".repeat(4096 - 32 - 4), Indexing::Incremental), 0x00);
    assert_eq!(field("x-any", &"a".repeat(4096 - 32 - 5), Indexing::Incremental), 0x40);
}

/// RFC 7541 4.2: the smallest and the last size since the block before, and each once.
#[test]
fn size_updates_are_sent_once() {
    let get = fields(&[(":method", "GET")]);
    let after = |encoder: &mut Encoder, limits: &[u32]| -> Vec<u8> {
        limits.iter().for_each(|limit| encoder.set_limit(*limit));
        encode(encoder, &get)
    };
    let mut encoder = Encoder::new();
    assert_eq!(after(&mut encoder, &[]), [0x82]);
    assert_eq!(after(&mut encoder, &[4096]), [0x82]);
    // Never more than 4,096.
    assert_eq!(after(&mut encoder, &[65_536]), [0x82]);
    assert_eq!(after(&mut encoder, &[100]), [0x3f, 0x45, 0x82]);
    assert_eq!(after(&mut encoder, &[]), [0x82]);
    assert_eq!(after(&mut encoder, &[0, 4096]), [0x20, 0x3f, 0xe1, 0x1f, 0x82]);
    assert_eq!(after(&mut encoder, &[50, 0, 20]), [0x20, 0x34, 0x82]);
    assert_eq!(after(&mut encoder, &[20, 19, 20]), [0x33, 0x34, 0x82]);
    assert_eq!(after(&mut encoder, &[]), [0x82]);
    // Of our own choice.
    let mut small = Encoder::with_table(100);
    assert_eq!(after(&mut small, &[]), [0x3f, 0x45, 0x82]);
    assert_eq!(after(&mut small, &[200]), [0x82]);
    let mut large = Encoder::with_table(u32::MAX);
    assert_eq!(after(&mut large, &[]), [0x82]);
    assert_eq!(after(&mut large, &[u32::MAX]), [0x3f, 0xe0, 0xff, 0x03, 0x82]);
    assert_eq!(large.table.max(), TABLE_BYTES_MAX);
}

/// RFC 7541 5.2: only if it is shorter.
#[test]
fn strings_are_coded_if_that_is_shorter() {
    for (value, first) in [("", 0x00), ("a", 0x01), ("aaa", 0x82), ("~~", 0x02), ("307", 0x03)] {
        let mut out = vec![];
        Encoder::new().field(b":path", value.as_bytes(), Indexing::Without, &mut out);
        assert_eq!(out[1], first, "{value}");
    }
}
