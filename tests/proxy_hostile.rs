//! Bad input that has broken other proxies, by number (BI-nn): the response, the counters, the memory
//! used meanwhile, and that a bystander (a well-behaved client of the same worker) is still served.
//! The proxy does not support HTTP/2 (BI-26), so none of its tunnels can be opened.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::harness::server::Server;
use crate::harness::socket::{KEY, Socket, upgrade};
use crate::harness::upstream::{Leg, Upstream, switching};
use crate::harness::{eventually, http, skip};

/// A proxy with one worker, an upstream in the test, and a bystander with a tunnel.
struct Scene {
    proxy: Server,
    upstream: Upstream,
    neighbour: Socket,
    far: Leg,
    rss_bytes: u64,
}

impl Scene {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(more: &[&str]) -> Self {
        let upstream = Upstream::new();
        let address = upstream.address().to_string();
        let flags = ["--upstream", &address, "--workers", "1"];
        let proxy = Server::start_proxy(&[&flags[..], more].concat());
        let mut neighbour = Socket::connect(proxy.listen);
        neighbour.send(upgrade("/neighbour", &[]).as_bytes());
        let far = upstream.tunnel();
        assert_eq!(neighbour.response().status, 101);
        let rss_bytes = proxy.rss_bytes();
        Self { proxy, upstream, neighbour, far, rss_bytes }
    }

    /// A client that sends this, and the upstream connection that gets it.
    fn asked(&self, request: impl AsRef<[u8]>) -> (Socket, Leg) {
        let mut socket = Socket::connect(self.proxy.listen);
        socket.send(request.as_ref());
        (socket, self.upstream.accept())
    }

    fn metric(&self, name: &str) -> f64 {
        self.proxy.metrics().get(&format!("standfast_{name}")).copied().unwrap_or_default()
    }

    fn refused(&self, reason: &str) -> f64 {
        self.metric(&format!("requests_refused_total{{reason=\"{reason}\"}}"))
    }

    /// The bystander is served, and memory has grown by `more` at most.
    fn is_unharmed(&mut self, more: u64) {
        self.neighbour.send(b"there?");
        assert_eq!(self.far.bytes(6), b"there?");
        self.far.say(b"\x81\x04here");
        assert_eq!(self.neighbour.frame().unwrap().payload, b"here");
        let held = self.proxy.rss_bytes().saturating_sub(self.rss_bytes);
        assert!(held <= more, "{held} bytes more are held");
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn bi_20_bytes_after_a_declined_upgrade_reach_no_upstream() {
    let mut scene = Scene::new();
    let both = upgrade("/ws", &[]) + "GET /admin HTTP/1.1\r\nHost: h\r\n\r\n";
    let (mut socket, mut leg) = scene.asked(both);
    assert!(leg.head().starts_with("GET /ws HTTP/1.1\r\n"));
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(socket.response().status, 200);
    assert!(socket.ends() && leg.ends());
    assert!(scene.upstream.is_alone());
    assert_eq!(scene.metric("declined_total"), 1.0);
    scene.is_unharmed(2 * MIB);
}

#[test]
fn bi_21_a_refused_version_opens_no_tunnel() {
    let mut scene = Scene::new();
    // The proxy refuses other versions before any upstream gets them.
    let mut socket = Socket::connect(scene.proxy.listen);
    socket.send(upgrade("/ws", &[("Sec-WebSocket-Version", "99")]).as_bytes());
    assert_eq!(socket.response().status, 426);
    // A refusal by the upstream is passed on unchanged.
    let (mut socket, mut leg) = scene.asked(upgrade("/ws", &[]));
    leg.head();
    leg.say(
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 14\r\n\r\n",
    );
    leg.finish();
    let answer = socket.response();
    assert_eq!((answer.status, answer.header("sec-websocket-version")), (426, Some("14")));
    socket.send(b"POST /internal HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    assert!(leg.ends(), "the other end hears nothing of it");
    assert_eq!(scene.metric("tunnels"), 1.0, "the neighbour's");
    scene.is_unharmed(2 * MIB);
}

#[test]
fn bi_22_an_unrequested_101_switches_nothing() {
    let mut scene = Scene::new();
    let post = "POST /check HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
    let (mut socket, mut leg) = scene.asked(post);
    leg.head();
    leg.say(switching());
    assert_eq!(socket.response().status, 502);
    let wrong = switching().replace("s3pP", "AAAA");
    let without = switching().replace("Upgrade: websocket\r\n", "");
    let twice = switching().replace("\r\n\r\n", "\r\nSec-WebSocket-Accept: x\r\n\r\n");
    for answer in [wrong, without, twice] {
        let (mut socket, mut leg) = scene.asked(upgrade("/ws", &[]));
        leg.head();
        leg.say(&answer);
        assert_eq!(socket.response().status, 502, "{answer}");
        assert!(socket.ends() && leg.ends());
    }
    assert_eq!(scene.refused("bad_answer"), 4.0);
    scene.is_unharmed(2 * MIB);
}

#[test]
fn bi_23_a_200_with_upgrade_is_a_200() {
    let mut scene = Scene::new();
    let (mut socket, mut leg) = scene.asked(upgrade("/ws", &[]) + "early");
    leg.head();
    let accept = switching().replace("101 Switching Protocols", "200 OK");
    leg.say(accept.replace("\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n"));
    let answer = socket.response();
    assert_eq!((answer.status, answer.header("upgrade")), (200, None));
    assert!(socket.ends() && leg.ends(), "the early bytes went nowhere");
    assert_eq!(scene.metric("tunnels"), 1.0);
    scene.is_unharmed(2 * MIB);
}

#[test]
fn bi_24_other_upgrades_bodies_and_old_versions_open_nothing() {
    let mut scene = Scene::new();
    let h2c = "GET /a HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\
               Connection: Upgrade, HTTP2-Settings\r\n\r\n";
    let (mut socket, mut leg) = scene.asked(h2c);
    let head = leg.head().to_ascii_lowercase();
    assert!(!head.contains("h2c") && !head.contains("http2-settings"), "{head}");
    leg.say("HTTP/1.1 204 None\r\n\r\n");
    assert_eq!(socket.response().status, 204);
    drop((socket, leg));
    // Of several protocols only WebSocket is offered and opened.
    let list = upgrade("/a", &[("Upgrade", "h2c, WebSocket"), ("HTTP2-Settings", "AAMAAABk")]);
    let (mut socket, mut leg) = scene.asked(list);
    let head = leg.head().to_ascii_lowercase();
    assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(!head.contains("h2c") && !head.contains("http2-settings"), "{head}");
    leg.say(switching());
    let answer = socket.response();
    assert_eq!((answer.status, answer.header("upgrade")), (101, Some("websocket")));
    drop((socket, leg));
    let handshake = |line: &str, more: &str| {
        format!(
            "{line}\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n{more}\r\n"
        )
    };
    for (request, status) in [
        (handshake("GET /a HTTP/1.1", "Content-Length: 1\r\n"), 400),
        (handshake("GET /a HTTP/1.1", "Transfer-Encoding: chunked\r\n"), 400),
        (handshake("GET /a HTTP/1.0", ""), 400),
        (handshake("POST /a HTTP/1.1", ""), 405),
        ("GET /a HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 400),
        ("CONNECT h:22 HTTP/1.1\r\nHost: h:22\r\n\r\n".into(), 405),
        ("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 400),
    ] {
        let mut socket = Socket::connect(scene.proxy.listen);
        socket.send(request.as_bytes());
        assert_eq!(socket.response().status, status, "{request}");
    }
    assert!(scene.upstream.is_alone(), "nobody was asked");
    scene.is_unharmed(2 * MIB);
}

#[test]
fn bi_25_connection_cannot_remove_the_proxys_headers() {
    let mut scene = Scene::new();
    let named =
        "X-Forwarded-For, x-forwarded-proto, X-FORWARDED-HOST, host, sec-websocket-key, cookie";
    let changes = [("Connection", format!("Upgrade, {named}")), ("Cookie", "a=1".to_owned())];
    let changes: Vec<(&str, &str)> = changes.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let (mut socket, mut leg) = scene.asked(upgrade("/ws", &changes));
    let head = leg.head();
    for line in
        ["X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http", "Host: 127.0.0.1", "Cookie: a=1"]
    {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
    }
    leg.say(switching());
    assert_eq!(socket.response().status, 101);
    scene.is_unharmed(2 * MIB);
}

#[test]
fn bi_26_http2_and_connect_are_refused_and_nothing_after_them_is_read() {
    const EACH: usize = 30;
    let mut scene = Scene::new();
    let behind = "GET /admin HTTP/1.1\r\nHost: h\r\n\r\n";
    let preface = format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{behind}");
    let connect = format!("CONNECT h:22 HTTP/1.1\r\nHost: h:22\r\n\r\n{behind}");
    let pseudo = format!("GET / HTTP/1.1\r\nHost: h\r\n:protocol: websocket\r\n\r\n{behind}");
    let mut held = Vec::new();
    for (request, status) in [(preface, 505), (connect, 405), (pseudo, 400)] {
        for _ in 0..EACH {
            let mut socket = Socket::connect(scene.proxy.listen);
            socket.send(request.as_bytes());
            assert_eq!(socket.response().status, status, "{request}");
            // Empty DATA frames, without an end.
            socket.pour(&[0; 64 * 1024]);
            assert!(socket.ends(), "{request}");
            held.push(socket);
        }
    }
    assert!(scene.upstream.is_alone(), "nobody was asked for anything");
    assert_eq!(scene.refused("connect"), EACH as f64);
    let versions = scene.metric("violations_total{violation=\"unsupported_version\"}");
    assert_eq!(versions, EACH as f64);
    scene.is_unharmed(2 * MIB);
    drop(held);
    // An h2c upgrade is answered in HTTP/1.1; the preface after it is refused.
    let h2c = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\n\
               Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let (mut socket, mut leg) = scene.asked(h2c);
    let head = leg.head().to_ascii_lowercase();
    assert!(!head.contains("h2c") && !head.contains("upgrade"), "{head}");
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(socket.response().status, 200);
    assert_eq!(socket.response().status, 505);
    assert!(socket.ends() && leg.is_silent());
    scene.is_unharmed(2 * MIB);
}

#[test]
fn a_client_refused_a_tunnel_is_not_read_further() {
    let mut scene = Scene::with(&["--upstream-timeout", "1s"]);
    let routes = format!(
        "[[route]]\npath = '/ws'\npool = 'a'\n[pool.a]\nupstreams = ['{}']\n",
        scene.upstream.address()
    );
    let routes = crate::harness::Scratch::new("refused.toml", &routes);
    let proxy = Server::start_proxy(&["--config", routes.path(), "--workers", "1"]);
    let mut socket = Socket::connect(proxy.listen);
    let behind = "GET /ws HTTP/1.1\r\nHost: h\r\n\r\n";
    socket.send((upgrade("/nowhere", &[]) + behind).as_bytes());
    let answer = socket.response();
    assert_eq!((answer.status, answer.header("connection")), (404, Some("close")));
    assert!(socket.ends() && scene.upstream.is_alone(), "what followed is no request");
    scene.is_unharmed(2 * MIB);
}

#[test]
fn a_client_that_resets_at_once_causes_no_upstream_request() {
    // Its address is unknown after the reset, and a request without one would seem to be the proxy's own.
    let mut scene = Scene::new();
    let before = scene.metric("requests_total");
    for _ in 0..200 {
        let mut socket = Socket::connect(scene.proxy.listen);
        socket.send(b"GET /admin HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        socket.reset();
    }
    scene.is_unharmed(2 * MIB);
    let asked = scene.metric("requests_total") - before;
    eventually("all are over", || scene.metric("exchanges") == 0.0);
    // Some were read before the reset arrived: those have the address.
    scene.upstream.each_waiting(|mut leg| {
        if let Some(head) = leg.head_if_any() {
            assert!(head.contains("X-Forwarded-For: 127.0.0.1\r\n"), "{head} of {asked}");
        }
    });
}

#[test]
fn bi_27_a_side_that_does_not_read_pauses_the_sender_both_ways() {
    let mut scene = Scene::with(&["--peer-timeout", "off"]);
    let mut held = Vec::new();
    let flood = vec![b'f'; 256 * 1024];
    for number in 0..20 {
        let (mut socket, mut leg) = scene.asked(upgrade("/ws", &[]));
        leg.head();
        leg.say(switching());
        assert_eq!(socket.response().status, 101);
        // Even ones send to the upstream, odd ones to the client; the other end never reads.
        let poured = if number % 2 == 0 {
            pour_all(&flood, |bytes| {
                let before = socket.poured();
                socket.pour(bytes);
                socket.poured() - before
            })
        } else {
            leg.stream.set_nonblocking(true).unwrap();
            pour_all(&flood, |bytes| leg.stream.write(bytes).unwrap_or(0))
        };
        assert!(poured > 100_000, "{poured}");
        held.push((socket, leg));
    }
    // At most one read of each may be buffered: 64 KiB.
    scene.is_unharmed(20 * 64 * 1024 + 2 * MIB);
    assert_eq!(scene.metric("tunnels"), 21.0, "nobody was closed for it");
    // The buffered bytes arrive as soon as the other end reads.
    let (mut socket, leg) = held.pop().unwrap();
    leg.stream.set_nonblocking(false).unwrap();
    let mut more = Vec::new();
    while more.len() < 100_000 {
        assert!(socket.take(&mut more), "it goes on");
    }
    assert!(more.iter().all(|byte| *byte == b'f'));
    drop((socket, leg, held));
    eventually("all have gone", || scene.metric("tunnels") == 1.0);
    eventually("nothing waits for them", || scene.metric("queued_bytes") == 0.0);
}

/// Sends until nothing was accepted for a moment; returns how much was.
fn pour_all(bytes: &[u8], mut pour: impl FnMut(&[u8]) -> usize) -> usize {
    let (mut poured, mut refused) = (0, 0);
    while refused < 20 {
        match pour(bytes) {
            0 => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            more => (poured, refused) = (poured + more, 0),
        }
        assert!(poured < 64 << 20, "it is taken without an end");
    }
    poured
}

#[test]
fn bi_28_resets_and_closes_in_every_state_leak_nothing() {
    let mut scene = Scene::with(&["--fin-timeout", "1s", "--upstream-timeout", "2s"]);
    let descriptors = scene.proxy.descriptors();
    // Before a head, within one, after one, before the 101, and in the tunnel.
    let whole = upgrade("/ws", &[]);
    for sent in ["", "GET /ws HT", whole.as_str()] {
        for reset in [true, false] {
            let mut socket = Socket::connect(scene.proxy.listen);
            socket.send(sent.as_bytes());
            let leg = (sent == whole).then(|| scene.upstream.accept());
            match reset {
                true => socket.reset(),
                false => drop(socket),
            }
            if let Some(mut leg) = leg {
                leg.head();
                if reset {
                    assert!(leg.ends(), "the upstream request is dropped");
                }
            }
        }
    }
    for side in 0..4 {
        let (mut socket, mut leg) = scene.asked(whole.as_bytes());
        leg.head();
        leg.say(switching());
        assert_eq!(socket.response().status, 101);
        // With unread bytes on both sides.
        socket.send(&[b'c'; 1000]);
        leg.say([b's'; 1000]);
        match side {
            0 => {
                socket.reset();
                let mut rest = Vec::new();
                while http::read_more(&mut leg.stream, &mut rest) {}
                assert!(rest.len() <= 1000, "what had come, and then the end");
            }
            1 => leg.reset(),
            2 => leg.stream.shutdown(Shutdown::Both).unwrap(),
            _ => socket.finish_sending(),
        }
    }
    eventually("only the bystander is left", || scene.metric("tunnels") == 1.0);
    eventually("no request is left", || scene.metric("exchanges") == 0.0);
    eventually("nothing stays open", || scene.proxy.descriptors() <= descriptors);
    let reset = scene.metric("tunnels_ended_total{reason=\"client_reset\"}")
        + scene.metric("tunnels_ended_total{reason=\"upstream_reset\"}");
    assert!(reset >= 2.0, "{reset}");
    scene.is_unharmed(2 * MIB);
}

#[test]
fn vanished_peers_are_probed_by_keepalive() {
    let scene = Scene::with(&["--peer-timeout", "40s"]);
    let port = scene.proxy.listen.port();
    let timers = std::process::Command::new("ss").args(["-tnoH", "state", "established"]).output();
    let Ok(timers) = timers else {
        return skip::missing("ss (iproute2) is not installed");
    };
    let timers = String::from_utf8_lossy(&timers.stdout).into_owned();
    let upstream = scene.upstream.address().port();
    for own in [format!(":{port} "), format!(":{upstream} ")] {
        // After half of it, so that many probes are lost.
        let soon = |line: &str| {
            let left = line.split("timer:(keepalive,").nth(1)?.split("sec").next()?;
            Some(left.parse::<f64>().is_ok_and(|seconds| seconds <= 20.0) || left.contains("ms"))
        };
        let mut mine = timers.lines().filter(|line| line.contains(&own));
        assert!(mine.any(|line| soon(line) == Some(true)), "{own} in {timers}");
    }
}

#[test]
fn thousands_of_refused_handshakes_leak_nothing() {
    let server = Server::start(&[]);
    let proxy = Server::start_proxy(&["--upstream", &server.listen.to_string()]);
    let refused = |count: usize| {
        for _ in 0..count {
            let mut stream = TcpStream::connect(proxy.listen).unwrap();
            stream.write_all(upgrade("/nowhere", &[]).as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        }
    };
    refused(200);
    let (rss, descriptors) = (proxy.rss_bytes(), proxy.descriptors());
    refused(3_000);
    let declined = || proxy.metrics()["standfast_declined_total"];
    assert_eq!(declined(), 3_200.0);
    eventually("no descriptor is left", || proxy.descriptors() <= descriptors);
    let grown = proxy.rss_bytes().saturating_sub(rss);
    assert!(grown < MIB, "{grown} bytes more");
    assert_eq!(http::get(proxy.listen, "/health").status, 200);
}
