//! Bodies: lengths, chunks and their limits, in every split.

use std::string::String;
use std::vec::Vec;
use std::{format, vec};

use super::*;

/// Feeds a body in reads of the given sizes, the rest at once, then the end of the connection.
/// Returns the data, the number of bytes consumed if it ended, and the violation.
pub(super) fn read_body(
    mut body: BodyDecoder,
    stream: &[u8],
    reads: impl IntoIterator<Item = usize>,
) -> (Vec<u8>, Result<usize, Violation>) {
    let (mut data, mut at, mut arrived) = (vec![], 0, 0);
    for size in reads.into_iter().chain([stream.len()]) {
        arrived = stream.len().min(arrived + size);
        loop {
            match body.decode(&stream[at..arrived]) {
                Ok(Status::Complete((used, BodyEvent::End))) => {
                    assert!(body.is_done());
                    assert_eq!(body.decode(b"x"), Ok(Status::Complete((0, BodyEvent::End))));
                    return (data, Ok(at + used));
                }
                Ok(Status::Complete((used, BodyEvent::Data(piece)))) => {
                    assert!(used > 0);
                    data.extend_from_slice(piece);
                    at += used;
                }
                Ok(Status::Partial) => break,
                Err(violation) => return (data, Err(violation)),
            }
        }
        assert_eq!(at, arrived, "nothing is to be kept");
    }
    (data, body.finish_eof().map(|()| at))
}

pub(super) fn request_body(lines: &str, limits: &Limits) -> Result<BodyDecoder, Violation> {
    let head = with(lines);
    let mut headers = [EMPTY_HEADER; 8];
    BodyDecoder::for_request(&parse_request(head.as_bytes(), &mut headers)?, limits)
}

fn response_body(status: u16, lines: &str, method: &str) -> BodyDecoder {
    let head = format!("HTTP/1.1 {status} X\r\n{lines}\r\n");
    let mut headers = [EMPTY_HEADER; 8];
    let response = parse_response(head.as_bytes(), &mut headers).unwrap();
    BodyDecoder::for_response(&response, method, &Limits::default()).unwrap()
}

fn chunked(stream: &str) -> (String, Result<usize, Violation>) {
    let limits = Limits { chunk_line_bytes: 40, trailer_bytes: 60, ..Limits::default() };
    let body = request_body("Transfer-Encoding: chunked\r\n", &limits).unwrap();
    let whole = read_body(body.clone(), stream.as_bytes(), []);
    for cut in 0..stream.len() {
        assert_eq!(read_body(body.clone(), stream.as_bytes(), [cut]), whole, "{stream:?}");
    }
    assert_eq!(read_body(body, stream.as_bytes(), vec![1; stream.len()]), whole, "{stream:?}");
    (String::from_utf8(whole.0).unwrap(), whole.1)
}

#[test]
fn bodies_with_a_length_are_decoded() {
    let limits = Limits { body_bytes: 10, ..Limits::default() };
    let body = |length: &str| request_body(&format!("Content-Length: {length}\r\n"), &limits);
    let next = b"helloGET / HTTP/1.1";
    assert_eq!(read_body(body("5").unwrap(), next, []), (b"hello".into(), Ok(5)));
    assert_eq!(read_body(body("5").unwrap(), next, [2, 1]), (b"hello".into(), Ok(5)));
    assert_eq!(read_body(body("0").unwrap(), next, []), (vec![], Ok(0)));
    let ten = b"0123456789GET";
    assert_eq!(read_body(body("10").unwrap(), ten, [3, 2, 4]), (b"0123456789".into(), Ok(10)));
    assert!(!body("5").unwrap().is_until_close() && !body("5").unwrap().is_done());
    assert_eq!(
        read_body(body("6").unwrap(), b"hello", []),
        (b"hello".into(), Err(Violation::BodyTruncated))
    );
    assert_eq!(body("11").err(), Some(Violation::BodyTooLarge));
    assert!(request_body("", &limits).unwrap().is_done());
}

#[test]
fn responses_have_bodies_by_method_and_status() {
    for (status, method) in
        [(200, "HEAD"), (204, "GET"), (304, "GET"), (100, "GET"), (101, "GET"), (200, "CONNECT")]
    {
        assert!(
            response_body(status, "Content-Length: 9\r\n", method).is_done(),
            "{status} {method}"
        );
        assert!(response_body(status, "", method).is_done(), "{status} {method}");
    }
    let body = response_body(200, "", "GET");
    assert!(body.is_until_close());
    assert_eq!(read_body(body, b"to the end", [3]), (b"to the end".into(), Ok(10)));
    assert!(!response_body(404, "Content-Length: 9\r\n", "GET").is_done());
    assert!(!response_body(502, "Content-Length: 9\r\n", "CONNECT").is_done());
    let body = response_body(200, "Transfer-Encoding: Chunked\r\n", "GET");
    assert_eq!(read_body(body, b"1\r\nx\r\n0\r\n\r\n", []), (b"x".into(), Ok(11)));
}

#[test]
fn bodies_until_close_are_limited_too() {
    let mut headers = [EMPTY_HEADER; 1];
    let response = parse_response(b"HTTP/1.1 200 OK\r\n\r\n", &mut headers).unwrap();
    let limits = Limits { body_bytes: 4, ..Limits::default() };
    let body = BodyDecoder::for_response(&response, "GET", &limits).unwrap();
    assert_eq!(read_body(body.clone(), b"four", []), (b"four".into(), Ok(4)));
    assert_eq!(read_body(body, b"fours", [4]), (b"four".into(), Err(Violation::BodyTooLarge)));
}

#[test]
fn chunked_bodies_are_decoded() {
    let all = |stream: &str, data: &str| {
        assert_eq!(chunked(stream), (data.into(), Ok(stream.len())), "{stream:?}");
    };
    all("0\r\n\r\n", "");
    all("5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world");
    all("00a\r\n0123456789\r\nA;x=\"y\"\r\n0123456789\r\n0 ;z\r\n\r\n", "01234567890123456789");
    all("1\r\nx\r\n0\r\nDigest: abc\r\nEmpty:\r\n\r\n", "x");
    let many = format!("{}0\r\n\r\n", "1;extension\r\nx\r\n".repeat(20));
    all(&many, &"x".repeat(20));
    assert_eq!(chunked("0\r\n\r\nGET"), (String::new(), Ok(5)));
    for partial in ["", "5", "5\r\nhel", "5\r\nhello\r\n", "0\r\n", "0\r\nA: b\r\n"] {
        assert_eq!(chunked(partial).1, Err(Violation::BodyTruncated), "{partial:?}");
    }
    let bad = [
        ("\r\n", Violation::BadChunk),
        ("x\r\n", Violation::BadChunk),
        ("-1\r\n", Violation::BadChunk),
        (" 5\r\n", Violation::BadChunk),
        ("5 \r\n", Violation::BadChunk),
        ("5\n", Violation::BadChunk),
        ("5;a\nb\r\n", Violation::BadChunk),
        ("5;a\rb\r\n", Violation::BadChunk),
        ("0x5\r\n", Violation::BadChunk),
        ("1\r\nxy", Violation::BadChunk),
        ("1\r\nx\n", Violation::BadChunk),
        ("1\r\nx\r\n\r\n", Violation::BadChunk),
        ("10000000000000000\r\n", Violation::BadChunk),
        ("ffffffffffffffff\r\n", Violation::BodyTooLarge),
        ("100001\r\n", Violation::BodyTooLarge),
        ("0\r\n a: b\r\n", Violation::BadTrailer),
        ("0\r\na\r\n", Violation::BadTrailer),
        ("0\r\na : b\r\n", Violation::BadTrailer),
        ("0\r\na: b\n", Violation::BadTrailer),
        ("0\r\na: b\r\n c", Violation::BadTrailer),
    ];
    for (stream, violation) in bad {
        assert_eq!(chunked(stream).1, Err(violation), "{stream:?}");
    }
    assert_eq!(chunked(&format!("5;{}", "x".repeat(39))).1, Err(Violation::ChunkLineTooLong));
    assert_eq!(chunked(&"0".repeat(41)).1, Err(Violation::ChunkLineTooLong));
    assert_eq!(chunked(&format!("0\r\nA: {}", "x".repeat(58))).1, Err(Violation::TrailersTooLarge));
}

#[test]
fn chunks_are_limited_in_sum() {
    let limits = Limits { body_bytes: 20, ..Limits::default() };
    let body = request_body("Transfer-Encoding: chunked\r\n", &limits).unwrap();
    let chunk = b"a\r\n0123456789\r\n";
    assert_eq!(read_body(body.clone(), &chunk.repeat(2), []).1, Err(Violation::BodyTruncated));
    let (data, end) = read_body(body, &chunk.repeat(3), []);
    assert_eq!((data.len(), end), (20, Err(Violation::BodyTooLarge)));
}
