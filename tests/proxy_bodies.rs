//! Request bodies through `standfast proxy`: slow ones do not hold an upstream, long ones are refused, and
//! buffered ones take an upstream only when they are complete.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::http::Response;
use crate::harness::server::Server;
use crate::harness::socket::Socket;
use crate::harness::upstream::{Leg, Upstream};
use crate::harness::{Scratch, eventually};

const CHUNKED: &str = "POST /up HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A proxy with one worker and one upstream that takes `max` requests at a time.
struct Setup {
    proxy: Server,
    upstream: Upstream,
    config: Scratch,
}

impl Setup {
    /// `keys` are lines of the section `[proxy]`.
    fn new(max: u32, keys: &str) -> Setup {
        let upstream = Upstream::new();
        let name = format!("bodies-{}.toml", upstream.address().port());
        let config = Scratch::new(&name, &text(&upstream, max, keys));
        let proxy = Server::start_proxy(&["--config", config.path()]);
        Setup { proxy, upstream, config }
    }

    fn client(&self, request: impl AsRef<[u8]>) -> Socket {
        let mut socket = Socket::connect(self.proxy.listen);
        socket.send(request.as_ref());
        socket
    }

    fn metric(&self, name: &str) -> f64 {
        self.proxy.metrics().get(&format!("standfast_{name}")).copied().unwrap_or_default()
    }

    fn refused(&self, reason: &str) -> f64 {
        self.metric(&format!("requests_refused_total{{reason=\"{reason}\"}}"))
    }

    /// A complete request is served.
    fn serves(&self) {
        let mut socket = self.client("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let mut leg = self.upstream.accept();
        let head = leg.head();
        assert!(head.starts_with("GET / "), "{head}");
        leg.say(OK);
        assert_eq!(socket.response().status, 200);
    }
}

fn text(upstream: &Upstream, max: u32, keys: &str) -> String {
    format!(
        "[proxy]\nworkers = 1\nspare_connections = 0\n{keys}\n\
         [pool.a]\nupstreams = ['{}']\nmax = {max}\nqueue = 4\nqueue_timeout = '10m'\n",
        upstream.address()
    )
}

/// Sends a byte of a body from time to time until the proxy answers.
fn trickle(mut socket: Socket) -> JoinHandle<Response> {
    let mut sender = socket.sender();
    let sends = thread::spawn(move || {
        while sender.send(b"1\r\nx\r\n") {
            thread::sleep(Duration::from_millis(50));
        }
    });
    thread::spawn(move || {
        let answer = socket.response();
        drop(socket);
        sends.join().unwrap();
        answer
    })
}

#[test]
fn slow_bodies_do_not_hold_every_permit() {
    let setup = Setup::new(2, "body_min_rate = '100B/1s'");
    let slow: Vec<(JoinHandle<Response>, Leg)> = (0..2)
        .map(|_| {
            let socket = setup.client(CHUNKED);
            let mut leg = setup.upstream.accept();
            leg.head();
            (trickle(socket), leg)
        })
        .collect();
    // It waits for one of the two permits.
    setup.serves();
    for (client, _leg) in slow {
        assert_eq!(client.join().unwrap().status, 408);
    }
    assert_eq!(setup.refused("slow_body"), 2.0);
    let failed = setup.proxy.metrics();
    let mut failed = failed.iter().filter(|(name, _)| name.contains("upstream_failed_total{"));
    assert_eq!(failed.next().map(|(_, count)| *count), Some(0.0), "no client ejects an upstream");
}

#[test]
fn a_body_has_a_total_time_however_fast_it_is() {
    let setup = Setup::new(1, "body_timeout = '1s'");
    let socket = setup.client(CHUNKED);
    let mut leg = setup.upstream.accept();
    leg.head();
    assert_eq!(trickle(socket).join().unwrap().status, 408);
    assert_eq!(setup.refused("late_body"), 1.0);
    drop(leg);
    setup.serves();
}

#[test]
fn a_client_is_not_slow_while_its_upstream_does_not_read() {
    let setup = Setup::new(8, "body_min_rate = '1KiB/3s'");
    let length = 32 << 20;
    let mut fast =
        setup.client(format!("POST /fast HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"));
    let body = vec![b'f'; length];
    let mut sender = fast.sender();
    let sends = thread::spawn(move || sender.send(&body));
    let mut leg = setup.upstream.accept();
    leg.head();
    eventually("the upstream has stopped reading", || setup.metric("queued_bytes") > 0.0);
    // Each of these is found slow one period later.
    for _ in 0..2 {
        let slow = setup.client(CHUNKED);
        let mut slow_leg = setup.upstream.accept();
        slow_leg.head();
        assert_eq!(trickle(slow).join().unwrap().status, 408);
    }
    assert!(leg.bytes(length).iter().all(|byte| *byte == b'f'));
    assert!(sends.join().unwrap());
    leg.say(OK);
    assert_eq!(fast.response().status, 200);
}

#[test]
fn a_body_over_the_limit_is_answered_413() {
    let setup = Setup::new(1, "max_body = '10B'");
    let counted = |length: usize| {
        let body = "b".repeat(length);
        format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    // The limit itself is allowed.
    let mut fits = setup.client(counted(10));
    let mut leg = setup.upstream.accept();
    leg.head();
    assert_eq!(leg.bytes(10), b"bbbbbbbbbb");
    leg.say(OK);
    assert_eq!(fits.response().status, 200);
    drop(leg);
    let mut larger = setup.client(counted(11));
    let answer = larger.response();
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    let expecting =
        "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n";
    assert_eq!(setup.client(expecting).response().status, 413);
    assert!(setup.upstream.is_alone(), "none of these reaches an upstream");
    // Without a length it is found out on the way.
    let mut chunked = setup.client(format!("{CHUNKED}6\r\nabcdef\r\n"));
    let mut leg = setup.upstream.accept();
    leg.head();
    leg.bytes(11);
    chunked.send(b"5\r\nghijk\r\n");
    assert_eq!(chunked.response().status, 413);
    assert!(leg.ends());
    assert_eq!(setup.refused("body_too_large"), 3.0);
    // A reload changes it for later requests.
    setup.config.write(&text(&setup.upstream, 1, "max_body = 'off'"));
    setup.proxy.signal(Signal::HUP);
    let mut passed = false;
    eventually("the new limit holds", || {
        let before = setup.refused("body_too_large");
        let _socket = setup.client(counted(11));
        eventually("it is refused or passed on", || {
            setup.upstream.each_waiting(|_| passed = true);
            passed || setup.refused("body_too_large") > before
        });
        passed
    });
}

#[test]
fn an_invalid_body_ends_a_response_that_has_begun() {
    let setup = Setup::new(1, "");
    let mut client = setup.client(CHUNKED);
    let mut leg = setup.upstream.accept();
    leg.head();
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
    client.text_until("ab");
    client.send(b"zz\r\n");
    assert!(leg.ends(), "the request cannot be completed");
    eventually("it is counted", || setup.metric("truncated_total") == 1.0);
    assert_eq!(setup.refused("bad_body"), 0.0, "the client got no 400");
    setup.serves();
}

#[test]
fn a_buffered_body_takes_an_upstream_when_it_is_complete() {
    let setup = Setup::new(1, "body_buffer = '64KiB'");
    let mut slow = setup.client(format!("{CHUNKED}3;a=b\r\nabc\r\n2\r\nd"));
    let counted = "PUT /counted HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc";
    let mut counted = setup.client(counted);
    eventually("both are being received", || setup.metric("buffered_body_bytes") == 7.0);
    assert_eq!(setup.metric("worker_requests{worker=\"0\",state=\"reading\"}"), 2.0);
    setup.serves();
    slow.send(b"e\r\n0\r\nTrailer: x\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut leg = setup.upstream.accept();
    let head = leg.head();
    assert!(head.starts_with("POST /up ") && head.contains("Transfer-Encoding: chunked"), "{head}");
    assert_eq!(leg.bytes(15), b"5\r\nabcde\r\n0\r\n\r\n");
    leg.say(OK);
    assert_eq!(slow.response().status, 200);
    drop(leg);
    // What follows the body is the next request.
    let mut leg = setup.upstream.accept();
    assert!(leg.head().starts_with("GET /next "));
    leg.say(OK);
    assert_eq!(slow.response().status, 200);
    drop(leg);
    counted.send(b"def");
    let mut leg = setup.upstream.accept();
    leg.head();
    assert_eq!(leg.bytes(6), b"abcdef");
    leg.say(OK);
    assert_eq!(counted.response().status, 200);
    assert_eq!(setup.metric("bodies_buffered_total"), 2.0);
    assert_eq!(setup.metric("buffered_body_bytes"), 0.0);
}

#[test]
fn a_body_longer_than_its_buffer_arrives_whole() {
    let setup = Setup::new(1, "body_buffer = '100KiB'");
    let body: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut socket = setup.client(head);
    let mut sender = socket.sender();
    let sent = body.clone();
    let sends = thread::spawn(move || sent.chunks(7_777).all(|chunk| sender.send(chunk)));
    let mut leg = setup.upstream.accept();
    leg.head();
    assert!(setup.metric("buffered_body_bytes") <= 102_400.0);
    assert!(leg.bytes(body.len()) == body, "every byte in order");
    assert!(sends.join().unwrap());
    leg.say(OK);
    assert_eq!(socket.response().status, 200);
    // The same in chunks, with a pause at the full buffer.
    let mut socket = setup.client(CHUNKED);
    for chunk in body[..200 * 1024].chunks(50 * 1024) {
        socket.send(format!("{:x}\r\n", chunk.len()).as_bytes());
        socket.send(chunk);
        socket.send(b"\r\n");
    }
    drop(leg);
    let mut leg = setup.upstream.accept();
    leg.head();
    socket.send(b"0\r\n\r\n");
    let mut got = Vec::new();
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(leg.bytes(1));
        }
        let size = std::str::from_utf8(&line).unwrap().trim();
        let size = usize::from_str_radix(size, 16).unwrap();
        got.extend(leg.bytes(size));
        assert_eq!(leg.bytes(2), b"\r\n");
        if size == 0 {
            break;
        }
    }
    assert!(got == body[..200 * 1024], "every byte in order");
    leg.say(OK);
    assert_eq!(socket.response().status, 200);
}

#[test]
fn slow_bodies_in_buffers_end_by_their_rate() {
    let setup = Setup::new(1, "body_buffer = '64KiB'\nbody_min_rate = '100B/1s'");
    assert_eq!(trickle(setup.client(CHUNKED)).join().unwrap().status, 408);
    assert!(setup.upstream.is_alone());
    assert_eq!(setup.refused("slow_body"), 1.0);
    assert_eq!(setup.metric("buffered_body_bytes"), 0.0);
    assert_eq!(setup.metric("exchanges"), 0.0);
}

#[test]
fn beyond_the_memory_for_buffers_bodies_are_passed_on() {
    let setup = Setup::new(8, "body_buffer = '1KiB'\nbody_buffer_memory = '1500B'");
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n";
    let part = format!("{head}{}", "x".repeat(1000));
    let first = setup.client(&part);
    eventually("the first is buffered", || setup.metric("buffered_body_bytes") == 1000.0);
    // Part of the second fits, and nothing of the third.
    let passed_on = || {
        let client = setup.client(&part);
        let mut leg = setup.upstream.accept();
        leg.head();
        assert!(leg.bytes(1000).iter().all(|byte| *byte == b'x'));
        (client, leg)
    };
    let _second = passed_on();
    assert_eq!(setup.metric("buffered_body_bytes"), 1500.0);
    assert_eq!(setup.metric("bodies_unbuffered_total"), 0.0);
    let _third = passed_on();
    assert_eq!(setup.metric("bodies_unbuffered_total"), 1.0);
    // A client that leaves gives its part back.
    drop(first);
    eventually("the first is forgotten", || setup.metric("buffered_body_bytes") == 500.0);
}

#[test]
fn a_client_that_expects_100_is_told_to_continue() {
    let setup = Setup::new(1, "body_buffer = '64KiB'");
    let head = "POST / HTTP/1.1\r\nHost: h\r\nexpect: 100-Continue\r\nContent-Length: 3\r\n\r\n";
    let mut socket = setup.client(head);
    assert_eq!(socket.text_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    assert!(setup.upstream.is_alone());
    socket.send(b"abc");
    let mut leg = setup.upstream.accept();
    let head = leg.head();
    assert!(!head.to_ascii_lowercase().contains("expect"), "{head}");
    assert_eq!(leg.bytes(3), b"abc");
    leg.say(OK);
    assert_eq!(socket.response().status, 200);
}

#[test]
fn a_buffered_body_is_sent_again_on_a_retry() {
    let (upstream, other) = (Upstream::new(), Upstream::new());
    let config = format!(
        "[proxy]\nworkers = 1\nbody_buffer = '64KiB'\n[pool.a]\nbalance = 'round_robin'\n\
         upstreams = ['{}', '{}']\n",
        upstream.address(),
        other.address()
    );
    let config = Scratch::new("retry.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path()]);
    let mut socket = Socket::connect(proxy.listen);
    socket.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabcdef");
    for (upstream, answers) in [(&upstream, false), (&other, true)] {
        let mut leg = upstream.accept();
        assert!(leg.head().starts_with("PUT / "));
        assert_eq!(leg.bytes(6), b"abcdef");
        if answers {
            leg.say(OK);
        }
    }
    assert_eq!(socket.response().status, 200);
}

#[test]
fn a_buffered_body_goes_to_the_upstreams_of_now() {
    let setup = Setup::new(1, "body_buffer = '64KiB'");
    let mut socket = setup.client(format!("{CHUNKED}3\r\nabc\r\n"));
    eventually("it is being received", || setup.metric("buffered_body_bytes") == 3.0);
    let now = Upstream::new();
    setup.config.write(&text(&now, 1, "body_buffer = '64KiB'"));
    setup.proxy.signal(Signal::HUP);
    eventually("it is reloaded", || setup.proxy.log().contains("1 added, 1 removed"));
    socket.send(b"0\r\n\r\n");
    let mut leg = now.accept();
    leg.head();
    leg.say(OK);
    assert_eq!(socket.response().status, 200);
    assert!(setup.upstream.is_alone());
}
