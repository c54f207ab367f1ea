//! The opening handshake with tungstenite on the other side, in either role.

use std::io::{self, Read, Write};

use tungstenite::handshake::server::{Request, Response};
use wire::Violation;
use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_request, parse_response, reason_phrase};
use wire::websocket::{
    accept_key, check_upgrade, check_upgrade_response, encode_key, encode_refusal,
    encode_upgrade_request, encode_upgrade_response,
};

use crate::others::Pipe;

#[test]
fn tungstenite_accepts_our_request_and_we_its_response() {
    let key = encode_key([7; 16]);
    let mut request = Vec::new();
    let headers = [("Origin", "http://h"), ("X-More", "yes")];
    encode_upgrade_request(&mut request, "h:80", "/a?b=c", &key, &["chat", "v2"], true, headers);
    let mut pipe = Pipe::new(&request);
    #[expect(clippy::result_large_err, reason = "the signature that tungstenite asks for")]
    let choose = |request: &Request, mut response: Response| {
        assert_eq!(request.uri(), "/a?b=c");
        assert_eq!(request.headers()["sec-websocket-protocol"], "chat, v2");
        assert_eq!(request.headers()["x-more"], "yes");
        let chosen = "v2".parse().expect("a header's value");
        response.headers_mut().insert("sec-websocket-protocol", chosen);
        Ok(response)
    };
    tungstenite::accept_hdr(&mut pipe, choose).expect("tungstenite accepts us");
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(&pipe.output, &mut headers).expect("its answer is HTTP");
    let switched = check_upgrade_response(&response, &key, &["chat", "v2"], true);
    assert_eq!(switched.map(|switched| switched.protocol), Ok(Some("v2")));
}

/// Answers a request once it has been written completely.
struct Answering {
    pipe: Pipe,
    refuse: Option<Violation>,
}

impl Read for Answering {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.pipe.input.get_ref().is_empty() {
            let mut headers = [EMPTY_HEADER; MAX_HEADERS];
            let request = parse_request(&self.pipe.output, &mut headers).expect("it asks in HTTP");
            let upgrade = check_upgrade(&request).expect("and well").expect("for a WebSocket");
            let mut answer = Vec::new();
            match self.refuse {
                Some(violation) => encode_refusal(&mut answer, violation),
                None => encode_upgrade_response(&mut answer, &accept_key(upgrade.key), None, None),
            }
            *self.pipe.input.get_mut() = answer;
        }
        self.pipe.read(into)
    }
}

impl Write for Answering {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pipe.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn we_accept_tungstenites_request_and_it_our_response() {
    let server = Answering { pipe: Pipe::new(b""), refuse: None };
    let (_, response) = tungstenite::client("ws://h/echo", server).expect("it accepts our answer");
    assert_eq!(response.status().as_u16(), 101);
}

#[test]
fn tungstenite_reads_why_it_was_refused() {
    for &violation in Violation::ALL {
        let server = Answering { pipe: Pipe::new(b""), refuse: Some(violation) };
        let error = tungstenite::client("ws://h/echo", server).map(|_| ()).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains(&violation.http_status().to_string()), "{violation:?}: {text}");
    }
}

/// The statuses that we or a caller send, and no others, have a reason phrase.
#[test]
fn reason_phrases_are_those_of_the_http_crate() {
    use tungstenite::http::StatusCode;

    let listed = [
        100, 101, 200, 201, 202, 204, 301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 406, 408,
        409, 411, 413, 414, 415, 417, 421, 422, 426, 429, 431, 500, 501, 502, 503, 504, 505,
    ];
    for status in 100..=599 {
        let theirs = StatusCode::from_u16(status).ok().and_then(|code| code.canonical_reason());
        let expected = match status {
            // RFC 9110 15.5.14 and 15.5.21 renamed them.
            413 => Some("Content Too Large"),
            422 => Some("Unprocessable Content"),
            _ => theirs.filter(|_| listed.contains(&status)),
        };
        assert_eq!(reason_phrase(status), expected.unwrap_or_default(), "{status}");
    }
}
