//! A request head (RFC 9112), its handshake (RFC 6455 4.2) and the response. An accepted head means the
//! same when it is written again, and every response is valid HTTP.
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::heads::{check_headers, find, write_again};
use standfast_fuzz::input::{Input, reads};
use wire::http::{
    EMPTY_HEADER, MAX_HEADERS, expects_continue, keep_alive, parse_request, parse_response,
};
use wire::websocket::{
    accept_key, check_upgrade, check_upgrade_response, encode_refusal, encode_upgrade_response,
};
use wire::{Limits, Status, Violation};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let seed = input.byte();
    let bytes = input.rest();
    let limits = Limits { head_bytes: 2048, ..Limits::default() };
    let head = match find(bytes, &limits, reads(seed)) {
        Ok(Status::Complete(length)) => &bytes[..length],
        Ok(Status::Partial) => return,
        Err(violation) => return check_refusal(violation),
    };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let request = match parse_request(head, &mut headers) {
        Ok(request) => request,
        Err(violation) => return check_refusal(violation),
    };
    check_headers(request.headers);
    let asked = (keep_alive(&request), expects_continue(&request), request.path(), request.query());
    if request.version == 1
        && let Some(again) = write_again(request.method, request.target, request.headers)
    {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let again = parse_request(&again, &mut headers).expect("what we wrote is a request");
        assert_eq!((again.method, again.target), (request.method, request.target));
        assert_eq!(again.headers, request.headers);
        let twice = (keep_alive(&again), expects_continue(&again), again.path(), again.query());
        assert_eq!(asked, twice);
    }
    let upgrade = match check_upgrade(&request) {
        Ok(Some(upgrade)) => upgrade,
        Ok(None) => return,
        Err(violation) => return check_refusal(violation),
    };
    let key: &[u8; 24] = upgrade.key.try_into().expect("a key is 24 characters");
    let offered: Vec<&str> = upgrade.protocols().collect();
    assert!(offered.iter().all(|protocol| upgrade.offers(protocol)));
    let chosen = offered.last().copied();
    let mut answer = Vec::new();
    encode_upgrade_response(&mut answer, &accept_key(key), chosen, None);
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(&answer, &mut headers).expect("our 101 is a response");
    let switched = check_upgrade_response(&response, key, &offered, false).expect("and a good one");
    assert_eq!(switched.protocol, chosen);
});

/// A rejection is a complete response with a correct length.
fn check_refusal(violation: Violation) {
    let mut answer = Vec::new();
    encode_refusal(&mut answer, violation);
    let Ok(Status::Complete(length)) = find(&answer, &Limits::default(), std::iter::repeat(1))
    else {
        panic!("the refusal of {violation:?} has no head");
    };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(&answer[..length], &mut headers).expect("a refusal is HTTP");
    assert_eq!(response.status, violation.http_status());
    let said = response.header("content-length").expect("a refusal says its length");
    assert_eq!(std::str::from_utf8(said), Ok((answer.len() - length).to_string().as_str()));
}
