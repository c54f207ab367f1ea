//! Header blocks of any bytes (RFC 7541): the list and all memory stay within their limits, a limit changes
//! nothing but what is left out, and what was decoded is encoded and decoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::input::Input;
use wire::Violation;
use wire::http2::hpack::{
    Decoder, EXCESS_BYTES_MAX, Encoder, FIELD_OVERHEAD_BYTES, HeaderList, TABLE_BYTES_MAX,
};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let choice = input.byte();
    let mut table = [4096, 0, 100, TABLE_BYTES_MAX][usize::from(choice & 3)];
    let limit = [64 * 1024, 0, 100, 1000][usize::from(choice >> 2 & 3)];
    let (mut decoder, mut unlimited) = (Decoder::new(table), Decoder::new(table));
    let (mut list, mut all, mut third) = (HeaderList::new(), HeaderList::new(), HeaderList::new());
    let mut encoder = Encoder::new();
    let mut again = Decoder::default();
    while !input.is_empty() {
        let length = input.byte();
        if length == 255 {
            let limit = u32::from(input.u16());
            table = table.max(limit);
            decoder.set_limit(limit);
            unlimited.set_limit(limit);
            continue;
        }
        let block = input.take(usize::from(length) * 4);
        let result = decoder.decode(block, &mut list, limit);
        let whole = unlimited.decode(block, &mut all, usize::MAX);
        check(&list, limit);
        let longest = block.len() * 2 + table as usize;
        assert!(list.memory_bytes() <= 4 * (limit + longest) + 16 * 1024);
        assert!(decoder.memory_bytes() <= 4 * table as usize + 1024);
        assert!(list.iter().zip(all.iter()).all(|(one, other)| one == other));
        match result {
            Ok(()) => assert_eq!((whole, list.len()), (Ok(()), all.len())),
            Err(Violation::HeaderListTooLarge) => assert!(whole.is_ok() && all.size() > limit),
            Err(Violation::HeaderListBomb) => {
                return assert!(all.size() > limit + EXCESS_BYTES_MAX);
            }
            Err(violation) => return assert_eq!(whole, Err(violation)),
        }
        assert_eq!(decoder.memory_bytes(), unlimited.memory_bytes());
        let mut out = Vec::new();
        encoder.encode(all.iter(), &mut out);
        assert_eq!(again.decode(&out, &mut third, usize::MAX), Ok(()));
        assert!(third.iter().eq(all.iter()));
    }
});

fn check(list: &HeaderList, limit: usize) {
    let bytes = |field: (&[u8], &[u8])| field.0.len() + field.1.len() + FIELD_OVERHEAD_BYTES;
    assert_eq!(list.iter().map(bytes).sum::<usize>(), list.size());
    assert!(list.size() <= limit);
}
