//! `standfast proxy`: tunnels, requests, identity headers, retries, timeouts and TLS. Clients and
//! upstreams are sockets of the test, or `load` and `serve`.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread;

use rustix::process::Signal;

use crate::harness::executable::run;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::tls::Authority;
use crate::harness::upstream::{Upstream, switching};
use crate::harness::{Deserted, Scratch, eventually, http};

fn before(upstream: &Upstream, more: &[&str]) -> Server {
    let address = upstream.address().to_string();
    Server::start_proxy(&[&["--upstream", &address], more].concat())
}

/// A tunnel with both its ends in the test.
fn tunnel(proxy: &Server, upstream: &Upstream) -> (Socket, crate::harness::upstream::Leg) {
    let mut socket = Socket::connect(proxy.listen);
    socket.send(upgrade("/any", &[]).as_bytes());
    let leg = upstream.tunnel();
    assert_eq!(socket.response().status, 101);
    (socket, leg)
}

fn ended(proxy: &Server, reason: &str) -> f64 {
    let name = format!("standfast_tunnels_ended_total{{reason=\"{reason}\"}}");
    proxy.metrics().get(&name).copied().unwrap_or_default()
}

#[test]
fn load_through_the_proxy_gets_the_echoes_of_serve() {
    let nodes = [Server::start(&[]), Server::start(&[])];
    let upstreams = format!("{},{}", nodes[0].listen, nodes[1].listen);
    let proxy = Server::start_proxy(&["--upstream", &upstreams]);
    let url = format!("ws://{}/echo", proxy.listen);
    let flags = ["--connections", "40", "--echo", "--rate", "400", "--messages", "10"];
    run(&[&["load", &url, "--json", "-"], &flags[..]].concat()).assert_held_at_any_rate();
    eventually("each tunnel has ended in order", || {
        ended(&proxy, "upstream") + ended(&proxy, "client") == 40.0
    });
    assert_eq!(proxy.metrics()["standfast_tunnels"], 0.0);
    assert_eq!(http::get(proxy.listen, "/health").status, 200);
}

#[test]
fn tunnel_bytes_pass_unchanged_and_each_side_half_closes_alone() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &[]);
    let (mut socket, mut leg) = tunnel(&proxy, &upstream);
    // Not a frame: the proxy does not parse tunnels.
    socket.send(b"\x00\xffnot a frame");
    assert_eq!(leg.bytes(13), b"\x00\xffnot a frame");
    socket.finish_sending();
    assert!(leg.ends(), "the client's end is passed on");
    leg.say("still here");
    assert_eq!(socket.text_until("still here"), "still here");
    drop(leg);
    assert!(socket.ends());
    eventually("it is counted for the client, who ended first", || ended(&proxy, "client") == 1.0);
    let (mut socket, leg) = tunnel(&proxy, &upstream);
    leg.finish();
    assert!(socket.ends(), "the upstream's end is passed on");
    socket.send(b"more");
    let mut leg = leg;
    assert_eq!(leg.bytes(4), b"more");
    drop(socket);
    assert!(leg.ends());
    eventually("and for the upstream", || ended(&proxy, "upstream") == 1.0);
}

#[test]
fn early_bytes_are_held_until_the_101_and_dropped_without_one() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &[]);
    let mut socket = Socket::connect(proxy.listen);
    socket.send((upgrade("/any", &[]) + "early").as_bytes());
    let mut leg = upstream.accept();
    leg.head();
    assert!(leg.is_silent(), "nothing goes before the 101");
    leg.say(switching() + "late");
    assert_eq!(leg.bytes(5), b"early");
    assert_eq!(socket.response().status, 101);
    assert_eq!(socket.text_until("late"), "late");
    let mut refused = Socket::connect(proxy.listen);
    refused.send((upgrade("/any", &[]) + "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    let mut leg = upstream.accept();
    leg.head();
    leg.say("HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno");
    let answer = refused.response();
    assert_eq!((answer.status, answer.body.as_str()), (403, "no"));
    assert!(refused.ends() && leg.ends(), "and both ends are over");
    assert!(upstream.is_alone(), "what followed went nowhere");
}

#[test]
fn identity_headers_are_written_by_the_proxy() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &["--forwarded"]);
    let ask = |proxy: &Server, more: &str| {
        let mut socket = Socket::connect(proxy.listen);
        let text = format!("GET /x HTTP/1.1\r\nHost: app.test\r\n{more}\r\n");
        socket.send(text.as_bytes());
        let mut leg = upstream.accept();
        let head = leg.head().to_ascii_lowercase();
        leg.say("HTTP/1.1 204 None\r\nConnection: close\r\n\r\n");
        assert_eq!(socket.response().status, 204);
        head
    };
    let forged = "X-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\nX-Real-IP: 1.1.1.1\r\n";
    let head = ask(&proxy, forged);
    assert!(head.contains("\r\nx-forwarded-for: 127.0.0.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nx-forwarded-proto: http\r\nx-forwarded-host: app.test\r\n"),
        "{head}"
    );
    let element = "\r\nforwarded: for=127.0.0.1;proto=http;host=\"app.test\"\r\n";
    assert!(head.contains(element) && !head.contains("1.1.1.1"), "{head}");
    assert!(head.contains("\r\nhost: app.test\r\n"), "{head}");
    let believing = before(&upstream, &["--trusted-proxy", "127.0.0.0/8"]);
    let head = ask(&believing, "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n");
    assert!(head.contains("\r\nx-forwarded-for: 192.0.2.7, 127.0.0.1\r\n"), "{head}");
    assert!(head.contains("\r\nx-forwarded-proto: https\r\n"), "{head}");
}

#[test]
fn a_proxy_header_is_received_and_sent() {
    let upstream = Upstream::new();
    let flags = ["--trusted-proxy", "127.0.0.1", "--proxy-protocol", "--upstream-proxy-protocol"];
    let proxy = before(&upstream, &[&flags[..], &["v1"]].concat());
    let mut socket = Socket::connect(proxy.listen);
    socket.send(b"PROXY TCP4 192.0.2.7 192.0.2.9 4711 443\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut leg = upstream.accept();
    let head = leg.head();
    let to = proxy.listen;
    let line = format!("PROXY TCP4 192.0.2.7 {} 4711 {}\r\nGET / ", to.ip(), to.port());
    assert!(head.starts_with(&line), "{head}");
    assert!(head.contains("X-Forwarded-For: 192.0.2.7\r\n"), "{head}");
    // The client's address is of another family than the listener's.
    let mut socket = Socket::connect(proxy.listen);
    socket.send(b"PROXY TCP6 2001:db8::5 ::1 4712 443\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let head = upstream.accept().head();
    let line = format!("PROXY TCP6 2001:db8::5 ::ffff:127.0.0.1 4712 {}\r\nGET / ", to.port());
    assert!(head.starts_with(&line), "{head}");
}

#[test]
fn a_proxy_header_names_client_and_listener_on_every_listener() {
    let upstream = Upstream::new();
    let version = ["--upstream-proxy-protocol", "v1"];
    // A second, IPv4 listener on this port would take the IPv4 clients from the [::] listener.
    let free = Deserted::port();
    let listen = format!("[::]:{},[::1]:0", free.address.port());
    let six = before(&upstream, &[&version[..], &["--listen", &listen]].concat());
    let four = before(&upstream, &[&version[..], &["--listen", "0.0.0.0:0"]].concat());
    for (proxy, at, family, address, to) in [
        (&six, 0, "TCP4", "127.0.0.1", "127.0.0.1"),
        (&six, 1, "TCP4", "127.0.0.1", "127.0.0.1"),
        (&six, 1, "TCP6", "::1", "[::1]"),
        (&six, 2, "TCP6", "::1", "[::1]"),
        (&four, 1, "TCP4", "127.0.0.1", "127.0.0.1"),
    ] {
        let port = proxy.listeners[at].rsplit_once(':').unwrap().1;
        let to = format!("{to}:{port}");
        let mut socket = Socket::connect(to.parse().unwrap());
        socket.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let head = upstream.accept().head();
        let local = socket.local_address();
        let from = local.rsplit_once(':').unwrap().1;
        let line = format!("PROXY {family} {address} {address} {from} {port}\r\nGET / ");
        assert!(head.starts_with(&line), "{line}: {head}");
    }
}

#[test]
fn long_response_heads_pass_with_a_larger_max_head() {
    let upstream = Upstream::new();
    let lines: String = (0..300).map(|at| format!("X-{at}: {}\r\n", "v".repeat(80))).collect();
    for (more, status) in [(&[][..], 502), (&["--max-head", "64KiB"][..], 200)] {
        let proxy = before(&upstream, more);
        let mut socket = Socket::connect(proxy.listen);
        socket.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut leg = upstream.accept();
        leg.head();
        leg.say(format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: 2\r\n\r\nok"));
        let answer = socket.response();
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("x-299").is_some(), status == 200);
    }
}

#[test]
fn http_requests_are_streamed_and_connections_reused() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &["--workers", "1"]);
    let mut socket = Socket::connect(proxy.listen);
    // Two pipelined requests, the first with a chunked body.
    socket.send(
        b"POST /one HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\nGET /two HTTP/1.1\r\nHost: h\r\n\r\n",
    );
    let mut leg = upstream.accept();
    let head = leg.head();
    assert!(head.starts_with("POST /one HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Transfer-Encoding: chunked\r\n"), "{head}");
    assert_eq!(leg.bytes(20), b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "without what is for one hop");
    assert!(leg.is_silent(), "the second waits for the first's answer");
    leg.say(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfo",
    );
    assert_eq!(socket.response().status, 100);
    assert_eq!(socket.text_until("2\r\nfo\r\n").lines().next(), Some("HTTP/1.1 200 OK"));
    leg.say("ur\r\n0\r\n\r\n");
    assert_eq!(socket.text_until("0\r\n\r\n"), "2\r\nur\r\n0\r\n\r\n");
    let head = leg.head();
    assert!(head.starts_with("GET /two HTTP/1.1\r\n"), "on the same connection: {head}");
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo");
    assert_eq!(socket.response().body, "two");
    assert_eq!(proxy.metrics()["standfast_reused_total"], 1.0);
    // A response delimited by the close, to a client that can read chunks.
    socket.send(b"GET /three HTTP/1.1\r\nHost: h\r\n\r\n");
    leg.head();
    leg.say("HTTP/1.1 200 OK\r\n\r\nuntil the end");
    socket.text_until("\r\nuntil the end\r\n");
    drop(leg);
    assert_eq!(socket.text_until("0\r\n\r\n"), "0\r\n\r\n");
    assert!(upstream.is_alone());
    // A truncated response is never complete for the client.
    let mut leg = {
        socket.send(b"GET /four HTTP/1.1\r\nHost: h\r\n\r\n");
        upstream.accept()
    };
    leg.head();
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    socket.text_until("half");
    drop(leg);
    assert!(socket.ends());
    assert_eq!(proxy.metrics()["standfast_truncated_total"], 1.0);
}

#[test]
fn options_star_is_passed_on_and_reason_phrases_are_kept() {
    let (upstream, other) = (Upstream::new(), Upstream::new());
    let (whole, below) = (upstream.address().to_string(), other.address().to_string());
    let config = format!(
        "[[route]]\nhost = 'chat.test'\npool = 'whole'\n[[route]]\npath = '/below'\npool = 'below'\n\
         [pool.whole]\nupstreams = ['{whole}']\n[pool.below]\nupstreams = ['{below}']\n"
    );
    let config = Scratch::new("whole.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--workers", "1"]);
    for target in ["*", "http://chat.test"] {
        let mut socket = Socket::connect(proxy.listen);
        socket.send(format!("OPTIONS {target} HTTP/1.1\r\nHost: chat.test\r\n\r\n").as_bytes());
        let mut leg = upstream.accept();
        let head = leg.head();
        assert!(head.starts_with("OPTIONS * HTTP/1.1\r\nHost: chat.test\r\n"), "{head}");
        let answer =
            "HTTP/1.1 404 Nope, not here\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        leg.say(answer);
        let said = socket.text_until("\r\n\r\n");
        assert!(said.starts_with("HTTP/1.1 404 Nope, not here\r\n"), "{said}");
    }
    let mut socket = Socket::connect(proxy.listen);
    socket.send(b"OPTIONS * HTTP/1.1\r\nHost: other.test\r\n\r\n");
    assert_eq!(socket.response().status, 404, "no route of that host is for all of it");
    assert!(other.is_alone());
}

#[test]
fn requests_are_retried_only_before_a_response_begins() {
    let (silent, upstream) = (TcpListener::bind("127.0.0.1:0").unwrap(), Upstream::new());
    let nobody = silent.local_addr().unwrap();
    drop(silent);
    let config = format!(
        "[pool.a]\nupstreams = ['{nobody}', '{}']\nbalance = 'round_robin'\neject_after = 0\n",
        upstream.address()
    );
    let config = Scratch::new("retry.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--workers", "1"]);
    for _ in 0..4 {
        let (_socket, _leg) = tunnel(&proxy, &upstream);
    }
    // Round robin: each request meets the dead upstream first.
    assert_eq!(proxy.metrics()["standfast_retries_total"], 4.0);
    // Once a response has begun, the client gets an error and nothing is retried.
    let mut socket = Socket::connect(proxy.listen);
    socket.send(upgrade("/any", &[]).as_bytes());
    let mut leg = upstream.accept();
    leg.head();
    leg.say("HTTP/1.1 10");
    leg.reset();
    assert_eq!(socket.response().status, 502);
    // A request that is not idempotent is not retried, whether it was executed or not.
    let mut socket = Socket::connect(proxy.listen);
    socket.send(b"POST /pay HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nbuy");
    let mut leg = upstream.accept();
    leg.head();
    assert_eq!(leg.bytes(3), b"buy");
    leg.reset();
    assert_eq!(socket.response().status, 502);
    assert!(upstream.is_alone());
}

/// However its upstream ends.
#[test]
fn a_request_whose_answer_has_begun_is_sent_to_no_other_upstream() {
    let [upstream, other] = [Upstream::new(), Upstream::new()];
    let config = format!(
        "[pool.a]\nupstreams = ['{}', {{ address = '{}', backup = true }}]\neject_after = 0\n",
        upstream.address(),
        other.address()
    );
    let config = Scratch::new("begun.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--workers", "1"]);
    for resets in [false, true] {
        let mut socket = Socket::connect(proxy.listen);
        socket.send(b"GET /any HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut leg = upstream.accept();
        leg.head();
        leg.say("HTTP/1.1 20");
        if resets {
            leg.reset();
        } else {
            drop(leg);
        }
        assert_eq!(socket.response().status, 502, "resets: {resets}");
    }
    assert!(other.is_alone());
    assert_eq!(proxy.metrics()["standfast_retries_total"], 0.0);
}

#[test]
fn a_retry_goes_to_another_upstream() {
    let (nobody, upstream) = (Deserted::port(), Upstream::new());
    let alone = Server::start_proxy(&["--upstream", &nobody.address.to_string()]);
    for _ in 0..5 {
        assert_eq!(http::get(alone.listen, "/").status, 502);
    }
    assert_eq!(alone.metrics()["standfast_retries_total"], 0.0, "there is nobody else");
    // A connect that fails at once.
    let missing = Scratch::new("missing", "");
    let config = format!(
        "[pool.a]\nupstreams = ['unix:{}.none', '{}']\nbalance = 'round_robin'\neject_after = 0\n",
        missing.path(),
        upstream.address()
    );
    let config = Scratch::new("missing.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--workers", "1"]);
    for _ in 0..6 {
        let (_socket, _leg) = tunnel(&proxy, &upstream);
    }
    assert_eq!(proxy.metrics()["standfast_retries_total"], 6.0);
}

#[test]
fn timeouts_close_tunnels_and_refuse_requests() {
    let upstream = Upstream::new();
    let times = ["--idle-timeout", "1s", "--fin-timeout", "500ms", "--upstream-timeout", "500ms"];
    let proxy = before(&upstream, &times);
    let mut waiting = Socket::connect(proxy.listen);
    waiting.send(upgrade("/any", &[]).as_bytes());
    let mut leg = upstream.accept();
    leg.head();
    assert_eq!(waiting.response().status, 504, "no 101 in time");
    assert!(leg.ends());
    let (mut idle, mut far) = tunnel(&proxy, &upstream);
    assert!(idle.ends() && far.ends());
    drop((idle, far));
    eventually("it was idle", || ended(&proxy, "idle_timeout") == 1.0);
    let (half, mut far) = tunnel(&proxy, &upstream);
    half.finish_sending();
    assert!(far.ends());
    eventually("the other half is ended, too", || ended(&proxy, "fin_timeout") == 1.0);
    let old = before(&upstream, &["--max-lifetime", "1s"]);
    let began = std::time::Instant::now();
    let tunnels: Vec<_> = (0..4).map(|_| tunnel(&old, &upstream)).collect();
    for (mut socket, mut far) in tunnels {
        assert!(socket.ends() && far.ends());
        let lived = began.elapsed();
        assert!(lived.as_millis() >= 900, "{lived:?} is more than a tenth too soon");
    }
    eventually("they had their time", || ended(&old, "max_lifetime") == 4.0);
}

#[test]
fn a_unix_socket_is_an_upstream_and_a_listener() {
    let folder = Scratch::new("folder", "");
    let (up, down) = (format!("{}.up", folder.path()), format!("{}.down", folder.path()));
    let listener = UnixListener::bind(&up).unwrap();
    let answer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 4096];
        let got = stream.read(&mut head).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nup")
            .unwrap();
        String::from_utf8_lossy(&head[..got]).into_owned()
    });
    let listen = format!("unix:{down}");
    let proxy = Server::start_proxy(&["--upstream", &format!("unix:{up}"), "--listen", &listen]);
    assert_eq!(proxy.listeners.len(), 2);
    let mut stream = std::os::unix::net::UnixStream::connect(&down).unwrap();
    stream.write_all(b"GET /u HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(http::read_response(&mut stream, &mut Vec::new()).body, "up");
    let head = answer.join().unwrap();
    assert!(head.starts_with("GET /u HTTP/1.1\r\n") && !head.contains("X-Forwarded-For"), "{head}");
    let _ = std::fs::remove_file(up);
}

#[test]
fn sigterm_does_not_wait_for_idle_connections() {
    let upstream = Upstream::new();
    let mut proxy = before(&upstream, &["--drain", "10m"]);
    let mut idle = Socket::connect(proxy.listen);
    idle.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut spare = upstream.accept();
    spare.head();
    spare.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole");
    assert_eq!(idle.response().body, "whole");
    proxy.signal(Signal::TERM);
    assert!(proxy.wait().success());
    assert!(idle.ends() && spare.ends());
}

#[test]
fn sigterm_closes_tunnels_and_completes_responses() {
    let upstream = Upstream::new();
    let mut proxy = before(&upstream, &["--drain", "200ms"]);
    let (mut socket, mut far) = tunnel(&proxy, &upstream);
    let mut asking = Socket::connect(proxy.listen);
    asking.send(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut leg = upstream.accept();
    leg.head();
    proxy.signal(Signal::TERM);
    assert!(socket.ends() && far.ends());
    drop((socket, far));
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole");
    let answer = asking.response();
    assert_eq!((answer.body.as_str(), answer.header("connection")), ("whole", Some("close")));
    drop((asking, leg));
    assert!(proxy.wait().success());
}

#[test]
fn tls_to_clients_and_mutual_tls_to_upstreams() {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    authority.sign("proxy", &["proxy.test"]);
    let path = |file: &str| authority.path(file);
    let (ca, certificate, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
    let server = ["--tls-cert", &certificate, "--tls-key", &key];
    let server = Server::start(&[&server[..], &["--tls-client-ca", &ca]].concat());
    let upstream = server.listen.to_string();
    let (shown, its_key) = (path("proxy.pem"), path("proxy.key"));
    let flags = ["--upstream", &upstream, "--tls-cert", &certificate, "--tls-key", &key];
    let out = ["--upstream-tls", "--upstream-ca", &ca, "--upstream-name", "localhost"];
    let who = ["--upstream-cert", &shown, "--upstream-key", &its_key];
    let proxy = Server::start_proxy(&[&flags[..], &out, &who].concat());
    let url = format!("wss://{}/echo", proxy.listen);
    let load = ["load", &url, "--ca", &ca, "--sni", "localhost", "--connections", "20", "--echo"];
    let more = ["--rate", "200", "--messages", "10", "--size", "20KiB", "--json", "-"];
    run(&[&load[..], &more].concat()).assert_held_at_any_rate();
    // Without a client certificate the upstream refuses.
    let unknown = Server::start_proxy(&[&flags[..], &out].concat());
    let url = format!("wss://{}/echo", unknown.listen);
    let load = ["load", &url, "--ca", &ca, "--sni", "localhost", "--connections", "1"];
    let finished = run(&load);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let name = "standfast_requests_refused_total{reason=\"unreachable\"}";
    assert!(unknown.metrics()[name] >= 1.0);
}

#[test]
fn frames_survive_split_reads() {
    let server = Server::start(&[]);
    let proxy = Server::start_proxy(&["--upstream", &server.listen.to_string()]);
    let mut socket = Socket::open(proxy.listen, "/echo");
    for length in [0, 1, 125, 126, 4_096, 60_000] {
        let payload = vec![b'p'; length];
        socket.send_frame(TEXT, &payload);
        assert_eq!(socket.frame().unwrap().payload, payload);
    }
}
