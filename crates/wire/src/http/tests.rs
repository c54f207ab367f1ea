//! Heads: what is refused and with which violation, every split, and bad inputs that broke other servers
//! (BI-nn). Bodies: `tests/bodies.rs`.

use std::string::String;
use std::vec::Vec;
use std::{format, vec};

use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;
use crate::{Limits, Status, Violation};

mod bodies;

use bodies::{read_body, request_body};

/// The parsed parts of a head, owned.
#[derive(Clone, PartialEq, Debug)]
struct Parsed {
    /// Method and target, or status and reason.
    first: (String, String),
    version: u8,
    headers: Vec<(String, Vec<u8>)>,
}

fn owned(headers: &[Header<'_>]) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|header| (header.name.into(), header.value.into())).collect()
}

/// Scans a head that arrives in reads of the given sizes, the rest at once, and parses it.
fn read_request(
    stream: &[u8],
    reads: impl IntoIterator<Item = usize>,
) -> Result<Status<(usize, Parsed)>, Violation> {
    let limits = Limits::default();
    let mut scanner = HeadScanner::default();
    let mut arrived = 0;
    for size in reads.into_iter().chain([stream.len()]) {
        arrived = stream.len().min(arrived + size);
        let scanned = scanner.scanned();
        if let Status::Complete(len) = scanner.scan(&stream[..arrived], &limits)? {
            let mut headers = [EMPTY_HEADER; MAX_HEADERS];
            let request = parse_request(&stream[..len], &mut headers)?;
            let first = (request.method.into(), request.target.into());
            let headers = owned(request.headers);
            let parsed = Parsed { first, version: request.version, headers };
            return Ok(Status::Complete((len, parsed)));
        }
        // Linear: all but the last three bytes are never looked at again.
        assert!(scanner.scanned() + 3 >= arrived && scanner.scanned() >= scanned);
    }
    Ok(Status::Partial)
}

fn refusal(stream: &str) -> Option<Violation> {
    let whole = read_request(stream.as_bytes(), []);
    assert_eq!(whole, read_request(stream.as_bytes(), vec![1; stream.len()]), "{stream:?}");
    whole.err()
}

/// A valid request with these additional header lines.
fn with(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n")
}

#[test]
fn a_request_is_located_and_parsed() {
    let stream =
        b"\r\nGET /a?b=c HTTP/1.1\r\nHost: a.b:1\r\nX-Tab:\t one\ttwo \r\nEmpty:\r\n\r\nrest";
    let Ok(Status::Complete((len, parsed))) = read_request(stream, []) else { panic!() };
    assert_eq!(&stream[len..], b"rest");
    assert_eq!(parsed.first, ("GET".into(), "/a?b=c".into()));
    assert_eq!(parsed.version, 1);
    let headers = [("Host", "a.b:1"), ("X-Tab", "one\ttwo"), ("Empty", "")];
    assert_eq!(parsed.headers, headers.map(|(name, value)| (name.into(), value.into())));
}

#[test]
fn request_accessors_return_target_and_headers() {
    let ask = |target: &str, lines: &str, question: &dyn Fn(&Request<'_, '_>) -> bool| {
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        question(&parse_request(head.as_bytes(), &mut headers).unwrap())
    };
    let lists = "Connection: keep-alive , UPGRADE\r\nconnection: ,,close\r\n";
    assert!(ask("/", lists, &|r| r.header_list_contains("Connection", "upgrade")));
    assert!(ask("/", lists, &|r| r.header_list_contains("CONNECTION", "close")));
    assert!(!ask("/", lists, &|r| r.header_list_contains("connection", "alive")));
    assert!(!ask("/", lists, &|r| keep_alive(r)));
    assert!(ask("/", lists, &|r| r.header("connection") == Some(b"keep-alive , UPGRADE")));
    assert!(ask("/", "", &|r| keep_alive(r) && r.header("connection").is_none()));
    let paths = [
        ("/", "/", None),
        ("/a?b?c", "/a", Some("b?c")),
        ("/to?u=http://x/y", "/to", Some("u=http://x/y")),
        ("/a/b://c", "/a/b://c", None),
        ("//host/a", "//host/a", None),
        ("http://host/a?b", "/a", Some("b")),
        ("ws://host", "/", None),
        ("ws://host?x", "/", Some("x")),
    ];
    for (target, path, query) in paths {
        assert!(ask(target, "", &|r| (r.path(), r.query()) == (path, query)), "{target}");
    }
    let expect = "Expect: 100-Continue\r\nContent-Length: ";
    assert!(ask("/", &format!("{expect}5\r\n"), &|r| expects_continue(r)));
    assert!(!ask("/", &format!("{expect}0\r\n"), &|r| expects_continue(r)));
    assert!(!ask("/", "Content-Length: 5\r\n", &|r| expects_continue(r)));
    assert!(ask("/", "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", &|r| {
        expects_continue(r)
    }));
}

#[test]
fn http_1_0_closes_without_keep_alive() {
    for (lines, expected) in [("", false), ("Connection: Keep-Alive\r\n", true)] {
        let head = format!("GET / HTTP/1.0\r\n{lines}\r\n");
        let mut headers = [EMPTY_HEADER; 1];
        assert_eq!(keep_alive(&parse_request(head.as_bytes(), &mut headers).unwrap()), expected);
    }
}

#[test]
fn the_authority_of_the_target_goes_before_host() {
    let authority = |target: &str| {
        let head = format!("GET {target} HTTP/1.1\r\nHost: h:1\r\n\r\n");
        let mut headers = [EMPTY_HEADER; 2];
        let request = parse_request(head.as_bytes(), &mut headers).unwrap();
        request.authority().map(|host| String::from_utf8(host.to_vec()).unwrap())
    };
    for (target, expected) in [
        ("/", "h:1"),
        ("http://a:8080", "a:8080"),
        ("http://a:8080/b?c", "a:8080"),
        ("ws://a?b", "a"),
        ("/to/http://b/c", "h:1"),
        ("/to?u=http://b/c", "h:1"),
    ] {
        assert_eq!(authority(target).as_deref(), Some(expected), "{target}");
    }
    let mut headers = [EMPTY_HEADER; 1];
    let old = parse_request(b"GET / HTTP/1.0\r\n\r\n", &mut headers).unwrap();
    assert_eq!(old.authority(), None);
}

#[test]
fn a_host_has_the_characters_of_rfc_3986() {
    for byte in 0x21..0x7F {
        let head = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", char::from(byte));
        let parsed = parse_request(head.as_bytes(), &mut [EMPTY_HEADER; 1]).map(|_| ());
        let allowed = byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(&byte);
        assert_eq!(parsed, if allowed { Ok(()) } else { Err(Violation::BadHost) }, "{byte}");
    }
}

#[test]
fn only_http_1_1_expects_an_interim_response() {
    for (version, expected) in [(0, false), (1, true)] {
        let head = format!(
            "PUT / HTTP/1.{version}\r\nHost: h\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
        );
        let mut headers = [EMPTY_HEADER; 4];
        let request = parse_request(head.as_bytes(), &mut headers).unwrap();
        assert_eq!((request.version(), expects_continue(&request)), (version, expected));
    }
    assert!(!keep_alive_of("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n\r\n"));
    assert!(keep_alive_of("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n\r\n"));
}

fn keep_alive_of(response: &str) -> bool {
    let mut headers = [EMPTY_HEADER; 2];
    keep_alive(&parse_response(response.as_bytes(), &mut headers).unwrap())
}

#[test]
fn bad_first_lines_are_refused() {
    let lines = [
        ("\x16\x03\x01", Violation::NotHttp),
        ("\0", Violation::NotHttp),
        (" GET / HTTP/1.1", Violation::NotHttp),
        ("\r\n\r\n", Violation::NotHttp),
        ("\n", Violation::NotHttp),
        ("GET / HTTP/1.1\n", Violation::BareLineFeed),
        ("GET /\0", Violation::ControlCharacter),
        ("GET / HTTP/1.1\r\n\r\n", Violation::MissingHost),
        ("GET\r\n\r\n", Violation::BadRequestLine),
        ("GET /\r\n\r\n", Violation::BadRequestLine),
        ("GET  / HTTP/1.1\r\n\r\n", Violation::BadRequestLine),
        ("GET / HTTP/1.1 \r\n\r\n", Violation::BadRequestLine),
        ("GET / HTTPS/1.1\r\n\r\n", Violation::BadRequestLine),
        ("G(T / HTTP/1.1\r\n\r\n", Violation::BadRequestLine),
        ("PRI * HTTP/2.0\r\n\r\n", Violation::UnsupportedVersion),
        ("GET / HTTP/1.2\r\n\r\n", Violation::UnsupportedVersion),
        ("GET a HTTP/1.1\r\n\r\n", Violation::BadTarget),
        ("GET * HTTP/1.1\r\n\r\n", Violation::BadTarget),
        ("GET x:1 HTTP/1.1\r\n\r\n", Violation::BadTarget),
        ("GET /é HTTP/1.1\r\n\r\n", Violation::BadTarget),
        ("GET /#a HTTP/1.1\r\n\r\n", Violation::BadTarget),
        ("GET http://a\",for=9.9.9.9;x=\"/p HTTP/1.1\r\n\r\n", Violation::BadTarget),
        ("GET http://user@h/p HTTP/1.1\r\n\r\n", Violation::BadTarget),
        ("GET http:///p HTTP/1.1\r\n\r\n", Violation::BadTarget),
        ("GET http://?q HTTP/1.1\r\n\r\n", Violation::BadTarget),
    ];
    for (stream, violation) in lines {
        assert_eq!(refusal(stream), Some(violation), "{stream:?}");
    }
    for stream in [
        "OPTIONS * HTTP/1.1",
        "CONNECT x:1 HTTP/1.1",
        "GET http://x/ HTTP/1.1",
        "GET http://[::1]:80?q HTTP/1.1",
    ] {
        assert_eq!(refusal(&format!("{stream}\r\nHost: x\r\n\r\n")), None, "{stream}");
    }
}

#[test]
fn non_http_input_is_refused_at_once() {
    let limits = Limits::default();
    for first in 0..=255 {
        let token = first > 32 && first < 127 && !b"\"(),/:;<=>?@[\\]{}".contains(&first);
        let found = HeadScanner::default().scan(&[first], &limits).is_ok();
        assert_eq!(found, token || first == b'\r', "{first}");
    }
}

#[test]
fn bi_13_a_trickling_head_is_scanned_once_and_limited() {
    // `read_request` asserts that each byte is looked at a constant number of times.
    let endless = with(&format!("X: {}", "y".repeat(1 << 20)));
    assert_eq!(refusal(&endless), Some(Violation::HeadTooLarge));
    let fits = Limits::HEAD_BYTES - with("X: \r\n").len();
    assert_eq!(refusal(&with(&format!("X: {}\r\n", "y".repeat(fits)))), None);
    let longer = with(&format!("X: {}\r\n", "y".repeat(fits + 1)));
    assert_eq!(refusal(&longer), Some(Violation::HeadTooLarge));
    // As soon as the limit is reached, not when the head ends.
    let limits = Limits::default();
    let dribble = vec![b'y'; Limits::HEAD_BYTES];
    let mut scanner = HeadScanner::default();
    for len in 0..Limits::HEAD_BYTES {
        assert_eq!(scanner.scan(&dribble[..len], &limits), Ok(Status::Partial));
    }
    assert_eq!(scanner.scan(&dribble, &limits), Err(Violation::HeadTooLarge));
}

#[test]
fn bi_14_headers_beyond_the_limit_are_refused() {
    let lines = |count: usize| with(&"a: b\r\n".repeat(count));
    assert_eq!(refusal(&lines(MAX_HEADERS - 1)), None);
    assert_eq!(refusal(&lines(MAX_HEADERS)), Some(Violation::TooManyHeaders));
    assert_eq!(refusal(&lines(2000)), Some(Violation::TooManyHeaders));
    assert_eq!(refusal(&with("X-Forwarded-For:\r\nX-Forwarded-For: a\r\n")), None);
}

#[test]
fn bi_19_ambiguous_lines_are_refused() {
    let lines = [
        ("X: a\0b\r\n", Violation::ControlCharacter),
        ("X: a\x7f\r\n", Violation::ControlCharacter),
        ("X: a\rb\r\n", Violation::BareCarriageReturn),
        ("X: a\nY: b\r\n", Violation::BareLineFeed),
        ("X: a\r\r\n", Violation::BareCarriageReturn),
        ("X: a\r\n b\r\n", Violation::FoldedHeader),
        ("X: a\r\n\tb\r\n", Violation::FoldedHeader),
        ("X : a\r\n", Violation::SpaceBeforeColon),
        ("X\t: a\r\n", Violation::SpaceBeforeColon),
        ("X\r\n", Violation::BadHeaderName),
        (": a\r\n", Violation::BadHeaderName),
        ("é: a\r\n", Violation::BadHeaderName),
        ("X(: a\r\n", Violation::BadHeaderName),
        ("Host: x\r\n", Violation::DuplicateHost),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", Violation::ConflictingContentLength),
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            Violation::LengthAndTransferEncoding,
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
            Violation::LengthAndTransferEncoding,
        ),
        ("Transfer-Encoding: gzip, chunked\r\n", Violation::UnsupportedTransferEncoding),
        ("Transfer-Encoding: chunked, chunked\r\n", Violation::UnsupportedTransferEncoding),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Violation::UnsupportedTransferEncoding,
        ),
        ("Transfer-Encoding: xchunked\r\n", Violation::UnsupportedTransferEncoding),
        ("Transfer-Encoding:\r\n", Violation::UnsupportedTransferEncoding),
        ("Content-Length: 5, 5\r\n", Violation::BadContentLength),
        ("Content-Length: +5\r\n", Violation::BadContentLength),
        ("Content-Length: -1\r\n", Violation::BadContentLength),
        ("Content-Length: 0x5\r\n", Violation::BadContentLength),
        ("Content-Length:\r\n", Violation::BadContentLength),
        ("Content-Length: 18446744073709551616\r\n", Violation::BadContentLength),
    ];
    for (lines, violation) in lines {
        assert_eq!(refusal(&with(lines)), Some(violation), "{lines:?}");
    }
    assert_eq!(refusal(&with("Content-Length: 5\r\ncontent-length: 5\r\n")), None);
    // Names as long as those of the headers that are checked.
    for line in ["From: a b", "Accept-Charset: utf-8", "If-Modified-Since: now"] {
        assert_eq!(refusal(&with(&format!("{line}\r\n{line}\r\n"))), None, "{line}");
    }
    for host in ["a b", "a/b", "a@b", "a,b", "é", "a?b"] {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(refusal(&head), Some(Violation::BadHost), "{host}");
    }
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refusal(old), Some(Violation::TransferEncodingInHttp10));
}

#[test]
fn parsing_is_as_strict_as_scanning() {
    let heads = [
        "GET / HTTP/1.1\nHost: x\n\n",
        "GET / HTTP/1.1\nHost: x\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\n\r\n",
        "\n\r\nGET / HTTP/1.1\r\n",
    ];
    for head in heads {
        let mut headers = [EMPTY_HEADER; 4];
        assert!(parse_request(head.as_bytes(), &mut headers).is_err(), "{head:?}");
    }
    for value in ["a\0b", "a\x7f"] {
        let head = with(&format!("X: {value}\r\n"));
        let mut headers = [EMPTY_HEADER; 4];
        let parsed = parse_request(head.as_bytes(), &mut headers);
        assert_eq!(parsed.err(), Some(Violation::ControlCharacter), "{value:?}");
    }
    for head in ["", "GET / HTTP/1.1\r\nHost: x\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\nmore"] {
        let mut headers = [EMPTY_HEADER; 4];
        let parsed = parse_request(head.as_bytes(), &mut headers);
        assert_eq!(parsed.err(), Some(Violation::NotHttp), "{head:?}");
    }
}

#[test]
fn responses_are_parsed() {
    let parse = |head: &str| {
        let mut headers = [EMPTY_HEADER; 4];
        let response = parse_response(head.as_bytes(), &mut headers)?;
        Ok((response.status, String::from(response.reason), keep_alive(&response)))
    };
    assert_eq!(parse("HTTP/1.1 200 OK\r\n\r\n"), Ok((200, "OK".into(), true)));
    assert_eq!(parse("HTTP/1.1 404 \r\n\r\n"), Ok((404, "".into(), true)));
    assert_eq!(parse("HTTP/1.0 204\r\n\r\n"), Ok((204, "".into(), false)));
    assert_eq!(parse("HTTP/1.1 099 No\r\n\r\n"), Err(Violation::BadStatusLine));
    assert_eq!(parse("HTTP/1.1 20x No\r\n\r\n"), Err(Violation::BadStatusLine));
    assert_eq!(parse("HTTP/2.0 200 OK\r\n\r\n"), Err(Violation::UnsupportedVersion));
    assert_eq!(parse("ICY 200 OK\r\n\r\n"), Err(Violation::BadStatusLine));
    assert_eq!(parse("HTTP/1.1 200 OK\r\nA : b\r\n\r\n"), Err(Violation::SpaceBeforeColon));
    assert_eq!(parse("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n"), Err(Violation::FoldedHeader));
}

#[test]
fn heads_and_chunks_are_encoded() {
    let mut out = vec![];
    encode_response(&mut out, 404, [("A", "b\r\nEvil: 1"), ("C", "d")], b"gone");
    let expected =
        "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nA: b  Evil: 1\r\nC: d\r\n\r\ngone";
    assert_eq!(String::from_utf8(out).unwrap(), expected);

    for status in [103, 204, 304] {
        let mut out = vec![];
        encode_response(&mut out, status, [("A", "b")], b"none");
        let head = String::from_utf8(out).unwrap();
        assert!(head.ends_with("\r\nA: b\r\n\r\n") && !head.contains("Length"), "{head}");
    }

    let mut out = vec![];
    encode_response_head(&mut out, 299, []);
    assert_eq!(out, b"HTTP/1.1 299 \r\n\r\n");

    let mut out = vec![];
    encode_request_head(&mut out, "GET", "/a b\r\n", [("Host", "x")]);
    assert_eq!(out, b"GET /a+b++ HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(matches!(read_request(&out, []), Ok(Status::Complete(_))));

    for (len, line) in
        [(1, "1"), (15, "f"), (16, "10"), (255, "ff"), (256, "100"), (65536, "10000")]
    {
        let mut out = vec![];
        encode_chunk(&mut out, &vec![b'x'; len]);
        assert!(out.starts_with(format!("{line}\r\nx").as_bytes()), "{len}");
        assert_eq!(out.len(), line.len() + len + 4);
    }
    let mut out = vec![];
    encode_chunk(&mut out, b"");
    assert!(out.is_empty());
}

fn reads() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![vec_of(0usize..9, 0..200), vec_of(1usize..200, 0..20)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(500), failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_head_parses_the_same_for_any_reads(
        lines in vec_of("[A-Za-z-]{0,12}: ?[ -~\t]{0,30}", 0..8), reads in reads(),
        flips in vec_of((any::<u16>(), any::<u8>()), 0..3),
    ) {
        let mut lines = lines.join("\r\n");
        lines.push_str("\r\n");
        let mut stream = with(&lines).into_bytes();
        for (at, byte) in flips {
            let len = stream.len();
            stream[usize::from(at) % len] = byte;
        }
        prop_assert_eq!(read_request(&stream, reads), read_request(&stream, []));
    }

    #[test]
    fn encoded_heads_parse(
        target in "/[!-\"$-~]{0,40}",
        headers in vec_of(("[A-Za-z0-9_-]{1,16}", "([!-~]([ -~]{0,40}[!-~])?)?"), 0..20),
    ) {
        let headers: Vec<_> = headers
            .iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("host"))
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .chain([("Host", "example.com")])
            .collect();
        let mut out = vec![];
        encode_request_head(&mut out, "POST", &target, headers.iter().copied());
        let Ok(Status::Complete((len, parsed))) = read_request(&out, []) else { panic!("{out:?}") };
        prop_assert_eq!(len, out.len());
        prop_assert_eq!(parsed.first, ("POST".into(), target));
        let expected: Vec<_> =
            headers.iter().map(|(name, value)| ((*name).into(), value.as_bytes().to_vec())).collect();
        prop_assert_eq!(parsed.headers, expected);
    }

    #[test]
    fn chunks_decode_the_same_for_any_reads(
        chunks in vec_of(vec_of(any::<u8>(), 0..300), 0..6), reads in reads(),
        flips in vec_of((any::<u16>(), any::<u8>()), 0..2),
    ) {
        let mut stream = vec![];
        chunks.iter().for_each(|chunk| encode_chunk(&mut stream, chunk));
        stream.extend_from_slice(b"0\r\nA: b\r\n\r\n");
        let body = request_body("Transfer-Encoding: chunked\r\n", &Limits::default()).unwrap();
        let whole = read_body(body.clone(), &stream, []);
        prop_assert_eq!(&whole, &(chunks.concat(), Ok(stream.len())));
        prop_assert_eq!(read_body(body.clone(), &stream, reads.clone()), whole);
        for (at, byte) in flips {
            let len = stream.len();
            stream[usize::from(at) % len] = byte;
        }
        let partial = read_body(body.clone(), &stream, reads);
        prop_assert_eq!(partial, read_body(body, &stream, []));
    }
}
