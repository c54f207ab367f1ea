//! Sec-WebSocket-Extensions as offers and as a response (RFC 7692 7): for any value, what a server accepts
//! is within the bounds, and a client that reads the response understands the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Violation;
use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_request, parse_response};
use wire::websocket::{
    Deflate, accept_key, check_upgrade, check_upgrade_response, encode_upgrade_response,
};

const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";

fuzz_target!(|data: &[u8]| {
    let text: Vec<u8> = data.iter().copied().filter(|byte| !b"\r\0".contains(byte)).collect();
    let mut lines = Vec::new();
    for line in text.split(|byte| *byte == b'\n').take(16) {
        lines.extend_from_slice(b"Sec-WebSocket-Extensions: ");
        lines.extend_from_slice(line);
        lines.extend_from_slice(b"\r\n");
    }
    offers(&lines);
    let answer = answer_of(KEY);
    let answer = [answer.strip_suffix(b"\r\n").expect("a head"), &lines, b"\r\n"].concat();
    if let Some(Ok(Some(agreed))) = read_answer(&answer) {
        check_bounds(&agreed, 8);
        assert!(agreed.server_no_context_takeover, "an answer must keep what was asked for");
    }
});

/// Parses them as a server.
fn offers(lines: &[u8]) {
    let head = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let head = [head, lines, b"\r\n"].concat();
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let Ok(request) = parse_request(&head, &mut headers) else { return };
    let Ok(Some(upgrade)) = check_upgrade(&request) else { return };
    for takeover in [false, true] {
        let agreed = match upgrade.deflate(takeover) {
            Ok(Some(agreed)) => agreed,
            Ok(None) => continue,
            Err(violation) => return assert_eq!(violation, Violation::UpgradeBadExtension),
        };
        check_bounds(&agreed, 9);
        assert!(takeover || agreed.server_no_context_takeover && agreed.client_no_context_takeover);
        let mut answer = Vec::new();
        encode_upgrade_response(&mut answer, &accept_key(KEY), None, Some(&agreed));
        if agreed.server_no_context_takeover {
            assert_eq!(read_answer(&answer), Some(Ok(Some(agreed))));
        }
    }
}

fn check_bounds(agreed: &Deflate, least: u8) {
    assert!((least..=15).contains(&agreed.server_bits()), "{agreed:?}");
    assert!((8..=15).contains(&agreed.client_bits()), "{agreed:?}");
}

fn answer_of(key: &[u8; 24]) -> Vec<u8> {
    let mut answer = Vec::new();
    encode_upgrade_response(&mut answer, &accept_key(key), None, None);
    answer
}

/// Parses it as the client that has offered; nothing if it is not a valid head.
fn read_answer(answer: &[u8]) -> Option<Result<Option<Deflate>, Violation>> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(answer, &mut headers).ok()?;
    let switched = check_upgrade_response(&response, KEY, &[], true);
    Some(switched.map(|switched| switched.deflate))
}
