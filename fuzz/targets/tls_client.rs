//! A TLS worker in the client role over the simulated kernel: records split in every way, altered,
//! repeated, left out.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| standfast_fuzz::secure::play(wire::Role::Client, data));
