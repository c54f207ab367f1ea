//! Costs of the hot paths on this machine, in nanoseconds, best of several rounds: `cargo run
//! --release -p standfast-wire --example cost`

use std::hint::black_box;
use std::time::Duration;

use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, parse_request};
use wire::http2::hpack::{self, Encoder, HeaderList, Indexing, Shape};
use wire::websocket::{
    Decoder, Event, OpCode, accept_key, check_upgrade, encode, encode_masked,
    encode_upgrade_response,
};
use wire::{Limits, Role, Status};

/// As a browser sends it, in length and number of lines.
const REQUEST: &[u8] = b"GET /topics/news HTTP/1.1\r\n\
    Host: push.example.com:8080\r\n\
    Connection: Upgrade\r\n\
    Pragma: no-cache\r\n\
    Cache-Control: no-cache\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)\r\n\
    Upgrade: websocket\r\n\
    Origin: https://www.example.com\r\n\
    Sec-WebSocket-Version: 13\r\n\
    Accept-Encoding: gzip, deflate, br\r\n\
    Accept-Language: en-US,en;q=0.9\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n";

fn main() {
    for (name, text) in [("ASCII", "x"), ("other", "é")] {
        for bytes in [20, 100, 1024, 16384] {
            let text = text.repeat(bytes / text.len());
            frames(&format!("decode masked text, {name}, {bytes} B"), Role::Server, &text);
        }
    }
    frames("decode plain text, ASCII, 20 B", Role::Client, &"x".repeat(20));

    let mut out = Vec::with_capacity(1 << 20);
    let text = [b'x'; 20];
    report("encode text, 20 B", 1000, || {
        out.clear();
        (0..1000).for_each(|_| encode(&mut out, OpCode::Text, black_box(&text)));
        black_box(&out);
    });
    report("encode masked text, 20 B", 1000, || {
        out.clear();
        (0..1000)
            .for_each(|_| encode_masked(&mut out, OpCode::Text, black_box(&text), [1, 2, 3, 4]));
        black_box(&out);
    });

    report("accept key", 1, || {
        black_box(accept_key(black_box(b"dGhlIHNhbXBsZSBub25jZQ==")));
    });
    let limits = Limits::default();
    report("find the end of a head", 1, || {
        black_box(HeadScanner::default().scan(black_box(REQUEST), &limits).is_ok());
    });
    report("parse a request", 1, || {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        black_box(parse_request(black_box(REQUEST), &mut headers).is_ok());
    });
    report("whole upgrade", 1, || {
        out.clear();
        upgrade(black_box(REQUEST), &limits, &mut out);
        black_box(&out);
    });
    header_blocks();
}

/// A server's head as nginx encodes it: literals that are indexed, all strings Huffman-coded.
const ANSWER: [(&str, &str, Indexing); 8] = [
    (":status", "200", Indexing::Auto),
    ("server", "nginx/1.22.1", Indexing::Incremental),
    ("date", "Mon, 21 Oct 2013 20:13:21 GMT", Indexing::Incremental),
    ("content-type", "text/html", Indexing::Incremental),
    ("content-length", "615", Indexing::Incremental),
    ("last-modified", "Sun, 20 Oct 2013 08:01:44 GMT", Indexing::Incremental),
    ("etag", "\"5263a1d8-267\"", Indexing::Without),
    ("accept-ranges", "bytes", Indexing::Without),
];
const FIELDS: [(&str, &str); 8] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "www.example.com:8443"),
    (":path", "/api/items?page=1"),
    ("user-agent", "standfast/0.1.0"),
    ("accept", "*/*"),
    ("accept-encoding", "gzip"),
    ("x-request", "6f1c52a0-9d41"),
];

fn header_blocks() {
    let mut list = HeaderList::new();
    let mut out = Vec::new();
    // The encoder has no memory of earlier blocks, as nginx has none.
    for (name, value, indexing) in ANSWER {
        let mut encoder = Encoder::new();
        encoder.begin(&mut out);
        encoder.field(name.as_bytes(), value.as_bytes(), indexing, &mut out);
    }
    for (name, table_bytes) in [("a table", 4096), ("no table", 0)] {
        let mut decoder = hpack::Decoder::new(table_bytes);
        let name = format!("decode nginx's head, {} B, {name}", out.len());
        report(&name, 1, || {
            decoder.decode(black_box(&out), &mut list, 65536).expect("a valid block");
        });
    }
    let (mut encoder, mut decoder) = (Encoder::new(), hpack::Decoder::default());
    let answer = ANSWER.map(|(name, value, _)| (name.as_bytes(), value.as_bytes()));
    let mut block = Vec::new();
    for (name, value) in answer {
        encoder.field(name, value, Indexing::Incremental, &mut block);
    }
    decoder.decode(&block, &mut list, 65536).expect("a valid block");
    block.clear();
    encoder.encode(answer, &mut block);
    report(&format!("decode the same indexed, {} B", block.len()), 1, || {
        decoder.decode(black_box(&block), &mut list, 65536).expect("a valid block");
    });
    let text = "a longer text with words ".repeat(40);
    block.clear();
    Encoder::with_table(0).encode([(&b"x-text"[..], text.as_bytes())], &mut block);
    report("decode 1,000 B of text", 1, || {
        decoder.decode(black_box(&block), &mut list, 65536).expect("a valid block");
    });

    let fields = FIELDS.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    report("encode a request, first", 1, || {
        out.clear();
        Encoder::new().encode(black_box(fields), &mut out);
        black_box(&out);
    });
    report("encode a request, again", 1, || {
        out.clear();
        encoder.encode(black_box(fields), &mut out);
        black_box(&out);
    });
    let fixed = fields.map(|(name, value)| (name, Some(value)));
    let mut changing = fixed;
    changing[3].1 = None;
    let shapes = [("a shape", Shape::new(fixed)), ("a shape and its path", Shape::new(changing))];
    for (name, mut shape) in shapes {
        let mut encode = |encoder: &mut Encoder| {
            out.clear();
            let values = if shape.changing() > 0 { &[fields[3].1][..] } else { &[] };
            encoder.encode_shape(&mut shape, black_box(values).iter().copied(), &mut out);
            black_box(out.len())
        };
        report(&format!("encode {name}, first"), 1, || {
            encode(&mut Encoder::new());
        });
        let mut encoder = Encoder::new();
        let bytes = (0..3).map(|_| encode(&mut encoder)).last().unwrap_or_default();
        report(&format!("encode {name}, again, {bytes} B"), 1, || {
            encode(&mut encoder);
        });
    }
}

fn frames(name: &str, role: Role, text: &str) {
    let count = (1 << 18) / (text.len() + 8);
    let mut stream = Vec::new();
    for _ in 0..count {
        match role {
            Role::Server => encode_masked(&mut stream, OpCode::Text, text.as_bytes(), [5, 6, 7, 8]),
            Role::Client => encode(&mut stream, OpCode::Text, text.as_bytes()),
        }
    }
    let limits = Limits::default();
    let mut buf = stream.clone();
    let copy = best(|| buf.copy_from_slice(&stream));
    let both = best(|| {
        buf.copy_from_slice(&stream);
        let mut decoder = Decoder::default();
        let mut rest = &mut buf[..];
        while let Ok(Status::Complete((used, event))) = decoder.decode(role, &limits, rest) {
            let Event::Message { opcode: OpCode::Text, data, .. } = event else { panic!() };
            black_box(data.as_ptr());
            rest = &mut rest[used..];
        }
        assert!(rest.is_empty());
    });
    print(name, both.saturating_sub(copy), count as u32);
}

fn upgrade(request: &[u8], limits: &Limits, out: &mut Vec<u8>) {
    let Ok(Status::Complete(len)) = HeadScanner::default().scan(request, limits) else { panic!() };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let request = parse_request(&request[..len], &mut headers).expect("a good head");
    let upgrade = check_upgrade(&request).expect("a good handshake").expect("a handshake");
    encode_upgrade_response(out, &accept_key(upgrade.key), None, None);
}

fn report(name: &str, units: u32, mut work: impl FnMut()) {
    let rounds = 1 + 1000 / units;
    let took = best(|| (0..rounds).for_each(|_| work()));
    print(name, took, rounds * units);
}

fn print(name: &str, took: Duration, units: u32) {
    println!("{name:<40}{:>10.1} ns", took.as_nanos() as f64 / f64::from(units));
}

#[expect(clippy::disallowed_methods, reason = "this measures and is no part of a program")]
fn best(mut work: impl FnMut()) -> Duration {
    let mut round = || {
        let start = std::time::Instant::now();
        work();
        start.elapsed()
    };
    (0..300).map(|_| round()).min().unwrap_or_default()
}
