//! A worker in the client role over the simulated kernel: bytes, timers, buffer space, resets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| standfast_fuzz::machine::play(wire::Role::Client, data));
