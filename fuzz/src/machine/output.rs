//! The worker's output, decoded by the codecs of the other role: valid heads, then frames without a
//! violation, at most one close frame and nothing after it.

use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, parse_request, parse_response};
use wire::websocket::{Decoder, Event, Inflater, check_upgrade};
use wire::{Limits, Role, Status};

/// The output of a server on one connection, truncated anywhere.
pub fn check_server(bytes: &[u8]) {
    let Some((head, rest)) = head(bytes) else { return };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(head, &mut headers).expect("the server answers in HTTP");
    // What follows another response depends on the method of the request.
    if response.status == 101 {
        let agreed = response.header("sec-websocket-extensions").unwrap_or_default();
        let each = agreed.windows(26).any(|word| word == b"server_no_context_takeover");
        check_frames(Role::Client, rest, if each { Deflate::Each } else { Deflate::Kept });
    }
}

/// The output of a client on one connection, truncated anywhere.
pub fn check_client(bytes: &[u8]) {
    let Some((head, rest)) = head(bytes) else { return };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let request = parse_request(head, &mut headers).expect("the client asks in HTTP");
    assert!(check_upgrade(&request).expect("the handshake is good").is_some());
    check_frames(Role::Server, rest, Deflate::Each);
}

fn head(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    match HeadScanner::default().scan(bytes, &Limits::default()) {
        Ok(Status::Complete(length)) => Some(bytes.split_at(length)),
        Ok(Status::Partial) => None,
        Err(violation) => panic!("the worker's head is bad: {violation}"),
    }
}

/// The compression context that a message may refer to.
#[derive(Clone, Copy, PartialEq)]
enum Deflate {
    Each,
    Kept,
}

fn check_frames(reader: Role, bytes: &[u8], deflate: Deflate) {
    let (mut decoder, mut stream) = (Decoder::default(), bytes.to_vec());
    let (mut inflater, mut message) = (Inflater::default(), Vec::new());
    decoder.enable_deflate();
    let mut at = 0;
    loop {
        match decoder.decode(reader, &Limits::default(), &mut stream[at..]) {
            Ok(Status::Complete((used, event))) => {
                if let Event::Message { data, deflated: true, .. } = event {
                    message.clear();
                    let inflated = match deflate {
                        Deflate::Each => inflater.inflate(data, &mut message, 1 << 20),
                        Deflate::Kept => inflater.inflate_with_context(data, &mut message, 1 << 20),
                    };
                    inflated.expect("what the worker compressed can be inflated");
                }
                at += used;
            }
            Ok(Status::Partial) => break,
            Err(violation) => panic!("the worker's frames are bad: {violation}"),
        }
    }
    assert!(!decoder.is_closed() || at == stream.len(), "something follows the close frame");
}
