//! A server's response to our handshake (RFC 6455 4.1): the result does not depend on how it is split, and
//! only a 101 with the correct accept value and nothing unoffered opens a WebSocket.
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::heads::{check_headers, find};
use standfast_fuzz::input::{Input, reads};
use wire::http::{BodyDecoder, EMPTY_HEADER, MAX_HEADERS, keep_alive, parse_response};
use wire::websocket::{accept_key, check_upgrade_response};
use wire::{Limits, Status};

/// From the example in RFC 6455 1.3, so that a correct response can be a seed.
const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";
const OFFERED: [&str; 2] = ["chat", "superchat"];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let seed = input.byte();
    let bytes = input.rest();
    let limits = Limits { head_bytes: 2048, ..Limits::default() };
    let Ok(Status::Complete(length)) = find(bytes, &limits, reads(seed)) else { return };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let Ok(response) = parse_response(&bytes[..length], &mut headers) else { return };
    assert!((100..=999).contains(&response.status));
    check_headers(response.headers);
    let _ = keep_alive(&response);
    for method in ["GET", "HEAD", "CONNECT"] {
        if let Ok(body) = BodyDecoder::for_response(&response, method, &limits) {
            assert!(!(body.is_done() && body.is_until_close()));
        }
    }
    for offered in [false, true] {
        let Ok(switched) = check_upgrade_response(&response, KEY, &OFFERED, offered) else {
            continue;
        };
        assert_eq!(response.status, 101);
        assert_eq!(response.header("sec-websocket-accept"), Some(&accept_key(KEY)[..]));
        assert!(switched.protocol.is_none_or(|chosen| OFFERED.contains(&chosen)));
        assert!(offered || switched.deflate.is_none());
    }
});
