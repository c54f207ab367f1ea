//! An HTTP/2 connection between our client and our server, each of which does anything at any time, with
//! any delay in between: neither ever violates the protocol (RFC 9113).
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::http2::{Side, config};
use standfast_fuzz::input::Input;
use wire::Role;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mut config = config(input.byte());
    // What a program does is not an attack.
    (config.resets, config.control_frames, config.empty_frames) = (u16::MAX, u16::MAX, u16::MAX);
    let mut sides = [Side::new(Role::Client, config.clone()), Side::new(Role::Server, config)];
    let mut pipes = [Vec::new(), Vec::new()];
    while !input.is_empty() {
        let step = input.byte();
        let from = usize::from(step & 1);
        let bytes = std::mem::take(&mut sides[from].out);
        pipes[from].extend(bytes);
        if step & 2 == 0 {
            sides[from].act(&mut input);
        } else {
            let size = match step >> 2 {
                63 => pipes[from].len(),
                size => usize::from(size).min(pipes[from].len()),
            };
            let bytes: Vec<u8> = pipes[from].drain(..size).collect();
            let received = sides[1 - from].receive(&bytes);
            received.unwrap_or_else(|violation| panic!("{violation}"));
        }
    }
    // All that is still on its way arrives.
    for _ in 0..100 {
        let from_client = std::mem::take(&mut sides[0].out);
        let from_server = std::mem::take(&mut sides[1].out);
        pipes[0].extend(from_client);
        pipes[1].extend(from_server);
        if pipes.iter().all(Vec::is_empty) {
            break;
        }
        for from in [0, 1] {
            let bytes = std::mem::take(&mut pipes[from]);
            let received = sides[1 - from].receive(&bytes);
            received.unwrap_or_else(|violation| panic!("{violation}"));
        }
    }
    let failed = |side: &Side| side.log.iter().any(|line| line.contains("StreamFailed"));
    assert!(!sides.iter().any(failed), "{:?}", sides.map(|side| side.finish().0));
});
