//! A worker in the client's role over the simulated kernel: bytes, timers, room to write, resets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| standfast_fuzz::machine::play(wire::Role::Client, data));
