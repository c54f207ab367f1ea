//! Costs of the hot paths on this machine, in nanoseconds, best of several rounds: `cargo run
//! --release -p standfast-wire --example cost`

use std::hint::black_box;
use std::time::Duration;

use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, parse_request};
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
