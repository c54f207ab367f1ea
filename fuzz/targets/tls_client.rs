//! A worker in the client's role that speaks TLS, over the simulated kernel: records torn in every way,
//! altered, repeated, left out.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| standfast_fuzz::secure::play(wire::Role::Client, data));
