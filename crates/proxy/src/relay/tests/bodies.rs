//! Request and response bodies: buffering, slow peers, and the timeouts that apply to them.

use std::time::Duration;

use super::harness::{BUFFER, End, Proxy};
use super::{GET, OK};
use crate::config::{Live, MinRate};

const LARGE: usize = 16 * BUFFER;

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

/// Whether it is an error of the proxy, or a part of a response.
#[track_caller]
fn check_status(response: &[u8], status: &str) {
    let begins = response.starts_with(format!("HTTP/1.1 {status} ").as_bytes());
    assert!(begins, "{}", String::from_utf8_lossy(response));
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

#[test]
fn early_response_to_a_large_buffered_body_is_passed_on() {
    let mut proxy = buffering(2 * LARGE);
    let client = proxy.connect(&post(LARGE, ""));
    proxy.send(client, &vec![b'x'; LARGE]);
    let upstream = proxy.accept(0).unwrap();
    proxy.send(upstream, b"HTTP/1.1 413 Too large\r\nContent-Length: 3\r\n\r\nbig");
    let (response, _) = proxy.receive(client);
    check_status(&response, "413");
    // The rest of the body was not sent, so no other request follows on this connection.
    let mut buffer = vec![0; 2 * LARGE];
    while proxy.receive_some(upstream, &mut buffer) > 0 {}
    assert_ne!(proxy.received_end(upstream), End::Open);
    assert_eq!(proxy.failures(), 0);
}

#[test]
fn buffered_body_that_the_upstream_reads_slowly_is_no_timeout() {
    let mut proxy = buffering(2 * LARGE);
    let client = proxy.connect(&post(LARGE, ""));
    proxy.send(client, &vec![b'x'; LARGE]);
    let upstream = proxy.accept(0).unwrap();
    let (mut got, mut buffer) = (0, vec![0; BUFFER]);
    while got < LARGE {
        proxy.pass(Duration::from_secs(1));
        let more = proxy.receive_some(upstream, &mut buffer);
        assert!(more > 0, "{got} bytes were sent");
        got += more;
    }
    proxy.pass(Duration::from_millis(1_500));
    proxy.send(upstream, OK);
    check_status(&proxy.receive(client).0, "200");
}

#[test]
fn buffered_body_that_is_not_read_is_no_failure_of_the_upstream() {
    let mut proxy = buffering(2 * LARGE);
    let client = proxy.connect(&post(LARGE, ""));
    proxy.send(client, &vec![b'x'; LARGE]);
    assert!(proxy.accept(0).is_some());
    proxy.pass(Duration::from_secs(5));
    check_status(&proxy.receive(client).0, "504");
    assert_eq!(proxy.failures(), 0);
}

#[test]
fn client_that_reads_a_large_response_slowly_gets_all_of_it() {
    let mut live = Live::default();
    live.timeouts.answer = Duration::from_secs(2);
    let mut proxy = Proxy::with(live);
    let pair = proxy.request(GET);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 3 * BUFFER);
    proxy.send(pair.upstream, head.as_bytes());
    // The client's kernel takes one buffer, the second waits in the proxy.
    let (mut got, mut buffer) = (0, vec![0; BUFFER / 16]);
    proxy.send(pair.upstream, &[b'x'; BUFFER]);
    proxy.send(pair.upstream, &[b'x'; BUFFER]);
    while got < head.len() + BUFFER {
        proxy.pass(Duration::from_secs(1));
        let more = proxy.receive_some(pair.client, &mut buffer);
        assert!(more > 0, "{got} bytes were received");
        got += more;
    }
    // The upstream's time begins only now.
    proxy.pass(Duration::from_millis(1_500));
    proxy.send(pair.upstream, &[b'x'; BUFFER]);
    got += proxy.receive(pair.client).0.len();
    assert_eq!(got, head.len() + 3 * BUFFER);
}

#[test]
fn client_that_reads_nothing_of_a_response_is_reset() {
    let mut live = Live::default();
    live.timeouts.answer = Duration::from_secs(2);
    let mut proxy = Proxy::with(live);
    let pair = proxy.request(GET);
    proxy.send(pair.upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
    proxy.send(pair.upstream, &[b'x'; BUFFER]);
    proxy.send(pair.upstream, &[b'x'; BUFFER]);
    proxy.pass(Duration::from_secs(5));
    assert_eq!(proxy.receive(pair.client).1, End::Reset);
}

#[test]
fn client_that_waits_for_continue_is_not_slow() {
    let mut live = Live::default();
    live.timeouts.answer = Duration::from_secs(8);
    live.bodies.min_rate = Some(MinRate { bytes: 10, every: Duration::from_secs(2) });
    let mut proxy = Proxy::with(live);
    let expecting = post(5, "Expect: 100-continue\r\n");
    let client = proxy.connect(&expecting);
    let upstream = proxy.accept(0).unwrap();
    proxy.pass(Duration::from_secs(7));
    proxy.send(upstream, b"HTTP/1.1 100 Continue\r\n\r\n");
    check_status(&proxy.receive(client).0, "100");
    // From here on it is the client's turn, for the whole period.
    proxy.pass(Duration::from_millis(1_500));
    assert_eq!(proxy.receive(client), (Vec::new(), End::Open));
    proxy.send(client, b"xxxxx");
    proxy.send(upstream, OK);
    check_status(&proxy.receive(client).0, "200");

    let late = proxy.connect(&expecting);
    let upstream = proxy.accept(1).unwrap();
    proxy.send(upstream, b"HTTP/1.1 100 Continue\r\n\r\n");
    proxy.pass(Duration::from_secs(3));
    let (response, _) = proxy.receive(late);
    assert!(String::from_utf8_lossy(&response).contains("HTTP/1.1 408 "));

    let unanswered = proxy.connect(&expecting);
    proxy.pass(Duration::from_secs(9));
    check_status(&proxy.receive(unanswered).0, "504");
}
