//! All examples of RFC 7541, Appendix C.

use std::{vec, vec::Vec};

use super::*;

/// C.1.1 to C.1.3.
#[test]
fn c_1_integers() {
    for (value, prefix, bytes) in
        [(10, 5, &[0x0a][..]), (1337, 5, &[0x1f, 0x9a, 0x0a]), (42, 8, &[0x2a])]
    {
        let mut out = vec![];
        integer::encode(&mut out, 0, prefix, value);
        assert_eq!(out, bytes);
        let mut rest = bytes;
        assert_eq!(integer::decode(&mut rest, prefix), Ok(value));
        assert!(rest.is_empty());
    }
}

/// C.2: one field in each representation; the size of the table after it.
#[test]
fn c_2_representations() {
    let cases = [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key",
            "custom-header",
            55,
            false,
        ),
        ("040c 2f73 616d 706c 652f 7061 7468", ":path", "/sample/path", 0, false),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", "password", "secret", 0, true),
        ("82", ":method", "GET", 0, false),
    ];
    for (block, name, value, size, never_indexed) in cases {
        let mut decoder = Decoder::default();
        let mut list = HeaderList::new();
        assert_eq!(decoder.decode(&hex(block), &mut list, LIST_BYTES), Ok(()));
        let field = (name.as_bytes(), value.as_bytes(), never_indexed);
        assert_eq!(list.iter_with_flag().collect::<Vec<_>>(), [field]);
        assert_eq!(decoder.table.size(), size);
    }
}

/// Blocks of one connection, with their fields and the sizes of the table after them.
struct Example {
    table_bytes: u32,
    plain: [&'static str; 3],
    huffman: [&'static str; 3],
    fields: [&'static [(&'static str, &'static str)]; 3],
    sizes: [u32; 3],
}

/// C.3 without and C.4 with Huffman coding.
const REQUESTS: Example = Example {
    table_bytes: 4096,
    plain: [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ],
    huffman: [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ],
    fields: [
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
        ],
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
            ("cache-control", "no-cache"),
        ],
        &[
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ],
    ],
    sizes: [57, 110, 164],
};

/// C.5 without and C.6 with Huffman coding, in a table of 256 bytes, so that entries are evicted.
const RESPONSES: Example = Example {
    table_bytes: 256,
    plain: [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a \
         3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 \
         677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 \
         553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ],
    huffman: [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e \
         919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 \
         821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed \
         4ee5 b106 3d50 07",
    ],
    fields: [
        &[
            (":status", "302"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ],
        &[
            (":status", "307"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ],
        &[
            (":status", "200"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
            ("location", "https://www.example.com"),
            ("content-encoding", "gzip"),
            ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
        ],
    ],
    sizes: [222, 222, 215],
};

#[test]
fn c_3_to_c_6_are_decoded() {
    for example in [REQUESTS, RESPONSES] {
        for blocks in [example.plain, example.huffman] {
            let mut decoder = Decoder::new(example.table_bytes);
            for ((block, expected), size) in blocks.iter().zip(example.fields).zip(example.sizes) {
                assert_eq!(decode(&mut decoder, &hex(block)), Ok(fields(expected)));
                assert_eq!(decoder.table.size(), size);
            }
        }
    }
}

/// "307" is as long with as without Huffman coding; the example codes it, and we do not.
#[test]
fn c_4_and_c_6_are_encoded_to_the_same_bytes() {
    for (example, uncoded) in [(REQUESTS, None), (RESPONSES, Some(1))] {
        let mut encoder = Encoder::with_table(example.table_bytes);
        encoder.begin(&mut vec![]);
        for nth in 0..3 {
            let mut out = vec![];
            for (name, value) in example.fields[nth] {
                encoder.field(name.as_bytes(), value.as_bytes(), Indexing::Incremental, &mut out);
            }
            let blocks = if uncoded == Some(nth) { example.plain } else { example.huffman };
            assert_eq!(out, hex(blocks[nth]));
            assert_eq!(encoder.table.size(), example.sizes[nth]);
        }
    }
}
