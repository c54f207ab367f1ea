//! The proxy's relay between a client and an upstream that send anything.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| standfast_fuzz::relay::play(data));
