//! Request and response bodies: buffering, slow peers, and the timeouts that apply to them.

use std::time::Duration;

use super::harness::Proxy;
use super::{GET, OK};
use crate::config::Live;

fn post(length: usize, headers: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: h\r\n{headers}Content-Length: {length}\r\n\r\n").into_bytes()
}

/// A proxy that buffers bodies of up to `bytes`, with an answer timeout of 2 s.
fn buffering(bytes: usize) -> Proxy {
    let mut live = Live::default();
    live.timeouts.answer = Duration::from_secs(2);
    live.bodies.buffer_bytes = Some(bytes);
    Proxy::with(live)
}

#[test]
fn body_longer_than_its_buffer_is_passed_on_over_a_reused_connection() {
    // The buffer is filled by a part of what was read, or exactly by the first read.
    for first in [5_000, 1_024] {
        let mut proxy = buffering(1_024);
        let pairs = [proxy.request(GET), proxy.request(GET)];
        for pair in pairs {
            proxy.send(pair.upstream, OK);
            assert!(proxy.receive(pair.client).0.ends_with(b"ok"));
        }
        let mut request = post(5_000, "");
        let head = request.len();
        request.resize(head + 5_000, b'x');
        let (front, rest) = request.split_at(head + first);
        proxy.send(pairs[0].client, front);
        proxy.send(pairs[0].client, rest);
        let (received, _) = proxy.receive(pairs[0].upstream);
        assert_eq!(proxy.counters().reused.get(), 1);
        let body = received.iter().filter(|byte| **byte == b'x').count();
        assert!(body >= 5_000, "{body} bytes, the first {first} at once");
    }
}
