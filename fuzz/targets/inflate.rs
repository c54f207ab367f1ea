//! Compressed messages (RFC 7692 7.2): for any input the output never exceeds the limit, no data of one
//! message appears in another, and a compressed message inflates to the original.
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::input::{Input, reads};
use wire::Violation;
use wire::websocket::{Compressor, Inflater, SingleCompressor};

const CANARY: &[u8] = b"another's message, another's message";

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let (choice, seed) = (input.byte(), input.byte());
    let cap = [0, 1, 1000, 100_000][usize::from(choice & 3)];
    let payload = input.rest();
    hostile(payload, cap);
    round_trip(payload, 9 + (choice >> 2) % 7, seed);
});

/// The payload unchanged, as a peer might send it.
fn hostile(payload: &[u8], cap: usize) {
    let mut inflater = Inflater::default();
    let mut canary = Vec::new();
    Compressor::new(15).compress(CANARY, &mut canary);
    let mut out = Vec::new();
    inflater.inflate(&canary, &mut out, CANARY.len()).expect("a good message");
    let mut first = b"before".to_vec();
    let result = inflater.inflate(payload, &mut first, cap);
    let inflated = first.strip_prefix(b"before").expect("what was there is left alone");
    assert!(inflated.len() <= cap, "{} bytes of {cap}", inflated.len());
    assert!(matches!(result, Ok(()) | Err(Violation::InflatedTooBig | Violation::BadDeflate)));
    if result == Err(Violation::InflatedTooBig) {
        assert_eq!(inflated.len(), cap);
    }
    // The output does not depend on what was inflated before.
    let mut fresh = Vec::new();
    assert_eq!(Inflater::default().inflate(payload, &mut fresh, cap), result);
    assert_eq!(fresh, inflated);
    out.clear();
    inflater.inflate(&canary, &mut out, CANARY.len()).expect("the next message is another's");
    assert_eq!(out, CANARY);
    let mut on = Vec::new();
    let _ = Inflater::default().inflate_with_context(payload, &mut on, cap);
    assert!(on.len() <= cap);
}

/// The payload as messages, each compressed on its own and with a shared context.
fn round_trip(payload: &[u8], bits: u8, seed: u8) {
    let (mut alone, mut kept) = (SingleCompressor::default(), Compressor::new(bits));
    let (mut each, mut on) = (Inflater::default(), Inflater::default());
    let mut rest = payload;
    for size in reads(seed).take(6).chain([payload.len()]) {
        let (message, later) = rest.split_at(size.min(rest.len()));
        rest = later;
        let (mut wire, mut out) = (Vec::new(), Vec::new());
        alone.compress(bits, message, &mut wire);
        assert_eq!(each.inflate(&wire, &mut out, message.len()), Ok(()));
        assert_eq!(out, message);
        if let Some(less) = message.len().checked_sub(1) {
            out.clear();
            assert_eq!(each.inflate(&wire, &mut out, less), Err(Violation::InflatedTooBig));
        }
        let (mut wire, mut out) = (Vec::new(), Vec::new());
        kept.compress(message, &mut wire);
        assert_eq!(on.inflate_with_context(&wire, &mut out, message.len()), Ok(()));
        assert_eq!(out, message);
    }
}
