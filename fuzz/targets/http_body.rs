//! Bodies: with a length, chunked, until close (RFC 9112 6 and 7). The data, the end and the violation do
//! not depend on how they are split, and the output never exceeds the limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use standfast_fuzz::input::{Input, reads};
use wire::http::{BodyDecoder, BodyEvent, EMPTY_HEADER, parse_response};
use wire::http::{LAST_CHUNK, encode_chunk};
use wire::{Limits, Status, Violation};

type Read = (Vec<u8>, Option<usize>, Option<Violation>);

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let (kind, seed) = (input.byte(), input.byte());
    let limits = Limits {
        body_bytes: [u64::MAX, 0, 1, 300][usize::from(kind >> 2 & 3)],
        chunk_line_bytes: [256, 8][usize::from(kind >> 4 & 1)],
        trailer_bytes: [4096, 16][usize::from(kind >> 5 & 1)],
        ..Limits::default()
    };
    let framing = match kind & 3 {
        0 | 1 => "Transfer-Encoding: chunked\r\n".to_owned(),
        2 => format!("Content-Length: {}\r\n", input.u16()),
        _ => String::new(),
    };
    let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n");
    let mut headers = [EMPTY_HEADER; 4];
    let response = parse_response(head.as_bytes(), &mut headers).expect("this is a head");
    let Ok(decoder) = BodyDecoder::for_response(&response, "GET", &limits) else { return };
    let stream = input.rest();
    let whole = read(decoder.clone(), stream, std::iter::once(stream.len()));
    check_same(&whole, &read(decoder.clone(), stream, std::iter::repeat(1)));
    check_same(&whole, &read(decoder.clone(), stream, reads(seed)));
    assert!(whole.0.len() as u64 <= limits.body_bytes);
    if kind & 3 == 0 && limits.body_bytes == u64::MAX {
        check_chunks(decoder, stream, seed);
    }
});

/// Before a violation some data may have been returned or not; everything else is the same.
fn check_same(whole: &Read, torn: &Read) {
    assert_eq!((whole.1, whole.2), (torn.1, torn.2));
    let data = if whole.2.is_some() { &torn.0[..whole.0.len()] } else { &torn.0[..] };
    assert_eq!(whole.0, data);
}

/// The data, the position of the end, and the violation.
fn read(mut decoder: BodyDecoder, stream: &[u8], sizes: impl Iterator<Item = usize>) -> Read {
    let (mut data, mut at) = (Vec::new(), 0);
    for size in sizes {
        let there = stream.len().min(at + size);
        while at < there {
            match decoder.decode(&stream[at..there]) {
                Ok(Status::Complete((used, BodyEvent::End))) => {
                    assert!(decoder.is_done());
                    return (data, Some(at + used), None);
                }
                Ok(Status::Complete((used, BodyEvent::Data(piece)))) => {
                    assert!(used > 0);
                    data.extend_from_slice(piece);
                    at += used;
                }
                Ok(Status::Partial) => panic!("bytes were there, and none was taken"),
                Err(violation) => return (data, None, Some(violation)),
            }
        }
        if at == stream.len() {
            break;
        }
    }
    if decoder.is_done() {
        return (data, Some(at), None);
    }
    let ended = decoder.finish_eof();
    (data, ended.is_ok().then_some(at), ended.err())
}

/// A body that is written in chunks is read back.
fn check_chunks(decoder: BodyDecoder, data: &[u8], seed: u8) {
    let (mut out, mut rest) = (Vec::new(), data);
    for size in reads(seed) {
        if rest.is_empty() {
            break;
        }
        let (chunk, later) = rest.split_at(size.min(rest.len()));
        encode_chunk(&mut out, chunk);
        rest = later;
    }
    out.extend_from_slice(LAST_CHUNK);
    let end = out.len();
    assert_eq!(read(decoder, &out, std::iter::once(end)), (data.to_vec(), Some(end), None));
}
