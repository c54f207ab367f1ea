//! Header compression (RFC 7541) beside two other implementations: what one encodes the others decode to the
//! same fields, and of any bytes we accept what another accepts.

use httlib_hpack::{Decoder as Httlib, Encoder as HttlibEncoder};
use loona_hpack::{Decoder as Loona, Encoder as LoonaEncoder};
use proptest::collection::vec;
use proptest::prelude::*;
use wire::Violation;
use wire::http2::hpack::{Decoder, Encoder, HeaderList, Indexing};

use super::config;

type Field = (Vec<u8>, Vec<u8>);

/// Table of all decoders, in bytes: small, so that entries are evicted.
const TABLE_BYTES: u32 = 300;
const LIST_BYTES: usize = 1 << 20;

/// All three decoders of one connection.
struct Decoders {
    ours: Decoder,
    loona: Loona<'static>,
    httlib: Httlib<'static>,
}

impl Decoders {
    fn new() -> Decoders {
        let mut loona = Loona::new();
        loona.set_max_allowed_table_size(TABLE_BYTES as usize);
        loona.set_max_table_size(TABLE_BYTES as usize);
        let httlib = Httlib::with_dynamic_size(TABLE_BYTES);
        Decoders { ours: Decoder::new(TABLE_BYTES), loona, httlib }
    }

    fn ours(&mut self, block: &[u8]) -> Result<Vec<Field>, Violation> {
        let mut list = HeaderList::new();
        self.ours.decode(block, &mut list, LIST_BYTES)?;
        Ok(list.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
    }

    fn loona(&mut self, block: &[u8]) -> Option<Vec<Field>> {
        self.loona.decode(block).ok()
    }

    fn httlib(&mut self, block: &[u8]) -> Option<Vec<Field>> {
        let mut fields = vec![];
        self.httlib.decode(&mut block.to_vec(), &mut fields).ok()?;
        Some(fields.into_iter().map(|(name, value, _)| (name, value)).collect())
    }
}

/// Fields as of real messages, some of which repeat.
fn field() -> impl Strategy<Value = Field> {
    const USUAL: [(&str, &str); 20] = [
        (":method", "GET"),
        (":method", "PUT"),
        (":scheme", "https"),
        (":authority", "www.example.com"),
        (":path", "/index.html"),
        (":path", "/search?q=caf%C3%A9&page=2"),
        (":status", "200"),
        (":status", "503"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
        ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("cookie", "session=9d41e5b06f1c52a0; theme=dark"),
        ("cookie", "a=b"),
        ("authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.ZRrHA1JJJW8opsbCGfG"),
        ("content-type", "application/grpc+proto"),
        ("grpc-timeout", "1S"),
        ("te", "trailers"),
        ("etag", "\"5263a1d8-267\""),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("x-request-id", "c5f0ad2c-5f5d-4ac0-9c0f-0a1dbe8d8a4f"),
    ];
    let usual = (0..USUAL.len()).prop_map(|place| {
        let (name, value) = USUAL[place];
        (name.as_bytes().to_vec(), value.as_bytes().to_vec())
    });
    let any = ("[a-z-]{1,20}", vec(any::<u8>(), 0..60))
        .prop_map(|(name, value)| (name.into_bytes(), value));
    prop_oneof![6 => usual, 1 => any]
}

fn lists() -> impl Strategy<Value = Vec<Vec<Field>>> {
    vec(vec(field(), 0..12), 1..8)
}

fn pairs(fields: &[Field]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
}

/// Blocks of random parts: representations with random indices and strings, size updates, and cut ones.
fn block() -> impl Strategy<Value = Vec<u8>> {
    let index = prop_oneof![4 => 1..=70u8, 1 => Just(0)];
    let string = prop_oneof![
        vec(any::<u8>(), 0..20).prop_map(|bytes| [&[bytes.len() as u8][..], &bytes].concat()),
        "[a-z0-9 ]{0,12}".prop_map(|text| {
            let mut block = vec![];
            let mut encoder = Encoder::new();
            encoder.field(b":path", text.as_bytes(), Indexing::Without, &mut block);
            block.split_off(1)
        }),
        vec(any::<u8>(), 0..6).prop_map(|bytes| [&[0x80 | bytes.len() as u8][..], &bytes].concat()),
    ];
    let literal = (0..3usize, index.clone(), string.clone(), string).prop_map(
        |(kind, index, name, value)| {
            let (first, most) = [(0x40, 62), (0x00, 14), (0x10, 14)][kind];
            let index = index.min(most);
            let name = if index == 0 { name } else { vec![] };
            [&[first | index][..], &name, &value].concat()
        },
    );
    let part = prop_oneof![
        4 => index.prop_map(|index| vec![0x80 | index]),
        6 => literal,
        1 => prop_oneof![Just(vec![0x20]), Just(vec![0x3f, 0x45]), Just(vec![0x3f, 0xe1, 0x1f])],
    ];
    (vec(part, 0..12), prop_oneof![4 => Just(0usize), 1 => 1..5usize]).prop_map(|(parts, cut)| {
        let mut block = parts.concat();
        block.truncate(block.len().saturating_sub(cut));
        block
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn others_decode_what_we_encode(lists in lists()) {
        let mut encoder = Encoder::with_table(TABLE_BYTES);
        let mut decoders = Decoders::new();
        for (nth, fields) in lists.iter().enumerate() {
            let mut block = vec![];
            encoder.encode(pairs(fields), &mut block);
            prop_assert_eq!(&decoders.ours(&block).unwrap(), fields);
            // Loona refuses a block of nothing but a size update.
            if nth > 0 || !fields.is_empty() {
                prop_assert_eq!(&decoders.loona(&block).expect("loona"), fields);
            }
            prop_assert_eq!(&decoders.httlib(&block).expect("httlib"), fields);
        }
    }

    #[test]
    fn we_decode_what_others_encode(lists in lists(), flags in vec(0..16u8, 1..20)) {
        let mut loona = LoonaEncoder::new();
        loona.set_max_table_size(TABLE_BYTES as usize);
        let mut httlib = HttlibEncoder::with_dynamic_size(TABLE_BYTES);
        let (mut of_loona, mut of_httlib) = (Decoders::new(), Decoders::new());
        let mut flags = flags.iter().cycle();
        for fields in &lists {
            let block = loona.encode(pairs(fields));
            prop_assert_eq!(&of_loona.ours(&block).unwrap(), fields);
            let mut block = vec![];
            for (name, value) in fields {
                // With all kinds of literals, with and without Huffman coding, and the best index.
                let flags = flags.next().unwrap() | 0x10;
                httlib.encode((name.clone(), value.clone(), flags), &mut block).unwrap();
            }
            prop_assert_eq!(&of_httlib.ours(&block).unwrap(), fields);
        }
    }

    /// Beside loona only: httlib panics on some incomplete blocks and accepts any padding.
    #[test]
    fn of_any_bytes_both_accept_the_same(blocks in vec(block(), 1..6)) {
        let mut decoders = Decoders::new();
        for block in &blocks {
            let theirs = decoders.loona(block);
            match decoders.ours(block) {
                // It refuses a block that ends with a size update, after it has applied it.
                Ok(fields) if fields.is_empty() => {}
                Ok(fields) => prop_assert_eq!(Some(fields), theirs),
                // RFC 7541 4.2: they are at the beginning. It accepts them between fields.
                Err(Violation::HpackMisplacedSizeUpdate) => break,
                Err(violation) => {
                    prop_assert_eq!(None, theirs, "{:?}", violation);
                    break;
                }
            }
        }
    }
}
