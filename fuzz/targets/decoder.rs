//! Frames in either role (RFC 6455 5), with and without compression: the events and the position of a
//! violation do not depend on how the stream is split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::frames::read;
use standfast_fuzz::input::{Input, reads};
use wire::{Limits, Role};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let choice = input.byte();
    let seed = input.byte();
    let role = if choice & 1 == 0 { Role::Server } else { Role::Client };
    let deflate = choice & 8 != 0;
    let message_bytes = [64 * 1024, 1, 125, 1000][usize::from(choice >> 1 & 3)];
    let limits = Limits { message_bytes, ..Limits::default() };
    let stream = input.rest();
    let whole = read(role, deflate, &limits, stream, std::iter::once(stream.len()));
    let bytewise = read(role, deflate, &limits, stream, std::iter::repeat(1));
    assert_eq!(whole, bytewise);
    assert_eq!(whole, read(role, deflate, &limits, stream, reads(seed)));
});
