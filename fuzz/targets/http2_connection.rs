//! Any bytes to an HTTP/2 connection in either role (RFC 9113): events, answers and the position of a
//! violation do not depend on how the stream is split, and memory is bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::http2::{Side, config};
use standfast_fuzz::input::{Input, reads};
use wire::http2::frame::PREFACE;
use wire::{Role, Violation};

type Read = (Vec<String>, Vec<u8>, Option<Violation>);

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let (role, choice, seed) = (input.byte(), input.byte(), input.byte());
    let (role, mut stream) = match role & 1 {
        0 => (Role::Server, PREFACE.to_vec()),
        _ => (Role::Client, Vec::new()),
    };
    if seed & 1 == 0 {
        stream.extend_from_slice(b"\0\0\0\x04\0\0\0\0\0");
    }
    stream.extend_from_slice(input.rest());
    let whole = read(role, choice, &stream, std::iter::once(stream.len()));
    assert_eq!(whole, read(role, choice, &stream, std::iter::repeat(1)));
    assert_eq!(whole, read(role, choice, &stream, reads(seed)));
});

fn read(role: Role, choice: u8, stream: &[u8], sizes: impl Iterator<Item = usize>) -> Read {
    let mut side = Side::new(role, config(choice));
    let mut rest = stream;
    let mut violation = None;
    for size in sizes {
        let (piece, after) = rest.split_at(rest.len().min(size));
        rest = after;
        violation = side.receive(piece).err();
        if rest.is_empty() || violation.is_some() {
            break;
        }
    }
    let (log, out) = side.finish();
    (log, out, violation)
}
