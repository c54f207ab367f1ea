//! Header blocks that we encode (RFC 7541), with any fields, representations, shapes and sizes of the table: a
//! decoder gets the same fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::input::Input;
use wire::http2::hpack::{Decoder, Encoder, HeaderList, Indexing, Shape};

const NAMES: [&[u8]; 12] = [
    b":method",
    b":path",
    b":status",
    b"cookie",
    b"authorization",
    b"accept-encoding",
    b"date",
    b"x-a",
    b"x-b",
    b"content-length",
    b"",
    b"x-a-long-name-that-is-in-no-table",
];
const INDEXING: [Indexing; 4] =
    [Indexing::Auto, Indexing::Incremental, Indexing::Without, Indexing::Never];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let own = u32::from(input.u16());
    let (mut encoder, mut decoder) = (Encoder::with_table(own), Decoder::default());
    let mut shapes: Vec<(Vec<Given>, Shape)> = (0..input.byte() % 7)
        .map(|_| {
            let fields = fields(&mut input);
            let of = fields.iter().map(|field| (field.name, field.fixed.then_some(field.value)));
            let shape = Shape::new(of);
            (fields, shape)
        })
        .collect();
    let mut list = HeaderList::new();
    while !input.is_empty() {
        let mut block = Vec::new();
        let step = input.byte();
        match shapes.get_mut(usize::from(step & 7)) {
            Some((given, shape)) => {
                let values: Vec<&[u8]> = given.iter().map(|_| input.take(5)).collect();
                let mut used = values.iter().copied();
                let expected: Vec<(&[u8], &[u8])> = given
                    .iter()
                    .map(|field| {
                        let value = if field.fixed { field.value } else { used.next().unwrap() };
                        (field.name, value)
                    })
                    .collect();
                encoder.encode_shape(shape, values.iter().copied(), &mut block);
                decoder.decode(&block, &mut list, usize::MAX).expect("a valid block");
                assert!(list.iter().eq(expected));
            }
            None if step & 8 == 0 => {
                let limit = u32::from(input.u16());
                encoder.set_limit(limit);
                decoder.set_limit(limit);
                continue;
            }
            None => {
                let fields = fields(&mut input);
                encoder.begin(&mut block);
                for field in &fields {
                    encoder.field(field.name, field.value, field.indexing, &mut block);
                }
                decoder.decode(&block, &mut list, usize::MAX).expect("a valid block");
                assert!(list.iter().eq(fields.iter().map(|field| (field.name, field.value))));
            }
        }
        assert!(encoder.memory_bytes() <= 4 * own as usize + 1024);
    }
});

struct Given<'d> {
    name: &'d [u8],
    value: &'d [u8],
    indexing: Indexing,
    /// In a shape: whether the value does not change.
    fixed: bool,
}

fn fields<'d>(input: &mut Input<'d>) -> Vec<Given<'d>> {
    (0..input.byte() % 9)
        .map(|_| {
            let (choice, length) = (input.byte(), input.byte());
            let any = input.take(usize::from(choice >> 6));
            Given {
                name: NAMES.get(usize::from(choice & 15)).copied().unwrap_or(any),
                value: input.take(usize::from(length & 63) * (1 + usize::from(length >> 7))),
                indexing: INDEXING[usize::from(choice >> 4 & 3)],
                fixed: length & 64 == 0,
            }
        })
        .collect()
}
