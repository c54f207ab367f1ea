//! What `standfast proxy` owes when somebody is slow, lies or breaks off: nothing that was said is lost,
//! nobody speaks in another's name, and no client makes an upstream look bad.

use std::io::Write;
use std::os::unix::net::UnixListener;

use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::{Leg, Upstream, switching};
use crate::harness::{Scratch, eventually};

/// One worker before one upstream of the test's.
fn before(upstream: &Upstream, more: &[&str]) -> Server {
    let address = upstream.address().to_string();
    let flags = ["--upstream", &address, "--workers", "1"];
    Server::start_proxy(&[&flags[..], more].concat())
}

fn asked(proxy: &Server, upstream: &Upstream, request: impl AsRef<[u8]>) -> (Socket, Leg) {
    let mut socket = Socket::connect(proxy.listen);
    socket.send(request.as_ref());
    (socket, upstream.accept())
}

fn tunnel(proxy: &Server, upstream: &Upstream) -> (Socket, Leg) {
    let (mut socket, mut leg) = asked(proxy, upstream, upgrade("/ws", &[]));
    leg.head();
    leg.say(switching());
    assert_eq!(socket.response().status, 101);
    (socket, leg)
}

fn metric(proxy: &Server, name: &str) -> f64 {
    proxy.metrics().get(&format!("standfast_{name}")).copied().unwrap_or_default()
}

/// Says more and more until some of it waits in the proxy, and then whatever else is taken: that is not
/// read for now. How much was said.
fn say_too_much(proxy: &Server, stream: &mut impl Write) -> usize {
    let mut said = 0;
    eventually("the proxy keeps something back for the client", || {
        said += stream.write(&[b'd'; 64 * 1024]).unwrap_or(0);
        metric(proxy, "queued_bytes") > 0.0
    });
    while let Ok(more @ 1..) = stream.write(&[b'd'; 16 * 1024]) {
        said += more;
    }
    said
}

/// The one worker has seen all that came before this.
fn pass_one(proxy: &Server, upstream: &Upstream) {
    let (mut socket, mut leg) = tunnel(proxy, upstream);
    socket.send(b"there?");
    assert_eq!(leg.bytes(6), b"there?");
}

#[test]
fn what_was_said_before_both_sides_ended_is_read_by_a_client_in_its_own_time() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &[]);
    let (mut socket, mut leg) = tunnel(&proxy, &upstream);
    socket.finish_sending();
    assert!(leg.ends());
    leg.stream.set_nonblocking(true).unwrap();
    let said = say_too_much(&proxy, &mut leg.stream);
    drop(leg);
    pass_one(&proxy, &upstream);
    let mut got = Vec::new();
    while socket.take(&mut got) {}
    assert_eq!(got.len(), said);
    drop(socket);
    eventually("it ended as the client began it", || {
        metric(&proxy, "tunnels_ended_total{reason=\"client\"}") >= 1.0
    });
}

#[test]
fn what_a_unix_socket_said_before_it_was_closed_is_read_by_a_slow_client() {
    let (folder, other) = (Scratch::new("folder", ""), Upstream::new());
    let path = format!("{}.up", folder.path());
    let listener = UnixListener::bind(&path).unwrap();
    let routes = format!(
        "[[route]]\npath = '/ws'\npool = 'b'\n[[route]]\npool = 'a'\n\
         [pool.a]\nupstreams = ['unix:{path}']\n[pool.b]\nupstreams = ['{}']\n",
        other.address()
    );
    let routes = Scratch::new("unix.toml", &routes);
    let proxy = Server::start_proxy(&["--config", routes.path(), "--workers", "1"]);
    let mut socket = Socket::connect(proxy.listen);
    socket.send(b"GET /big HTTP/1.0\r\nHost: h\r\n\r\n");
    let (mut stream, _) = listener.accept().unwrap();
    // What was not read of the request would make a break of the end.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert!(crate::harness::http::read_more(&mut stream, &mut head));
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    stream.set_nonblocking(true).unwrap();
    let said = say_too_much(&proxy, &mut stream);
    drop(stream);
    pass_one(&proxy, &other);
    let mut got = Vec::new();
    while socket.take(&mut got) {}
    let body = got.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(got.len() - body, said);
    assert_eq!(metric(&proxy, "truncated_total"), 0.0);
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_break_after_one_side_has_ended_is_told_as_a_break() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &[]);
    let (mut socket, mut leg) = tunnel(&proxy, &upstream);
    socket.finish_sending();
    assert!(leg.ends());
    leg.say("half of wh");
    assert_eq!(socket.text_until("half of wh"), "half of wh");
    leg.reset();
    eventually("the upstream broke it off", || {
        metric(&proxy, "tunnels_ended_total{reason=\"upstream_reset\"}") == 1.0
    });
}

#[test]
fn behind_a_proxy_header_no_other_word_is_taken() {
    let upstream = Upstream::new();
    let flags = ["--trusted-proxy", "127.0.0.1", "--proxy-protocol", "--forwarded"];
    let proxy = before(&upstream, &flags);
    let forged = "X-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-Proto: https\r\n\
                  X-Forwarded-Host: evil\r\nForwarded: for=6.6.6.6\r\n";
    let request = format!(
        "PROXY TCP4 192.0.2.7 192.0.2.9 4711 443\r\nGET / HTTP/1.1\r\nHost: h\r\n{forged}\r\n"
    );
    let (_socket, mut leg) = asked(&proxy, &upstream, request);
    let head = leg.head();
    assert!(!head.contains("6.6.6.6") && !head.contains("evil"), "{head}");
    for line in [
        "X-Forwarded-For: 192.0.2.7",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: h",
        "Forwarded: for=192.0.2.7;proto=http;host=\"h\"",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
    }
}

#[test]
fn a_name_in_a_whole_url_is_a_name_or_nothing() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &["--forwarded"]);
    for target in ["http://a\",for=9.9.9.9;x=\"/p", "http://user@h/p", "http:///p", "http://?q"] {
        let mut socket = Socket::connect(proxy.listen);
        socket.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        assert_eq!(socket.response().status, 400, "{target}");
    }
    assert!(upstream.is_alone(), "nobody was asked");
}

#[test]
fn no_client_gets_an_upstream_ejected() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &["--answer-timeout", "300ms"]);
    let failed = || {
        let name = "upstream_failed_total{";
        let metrics = proxy.metrics();
        let mut of = metrics.iter().filter(|(key, _)| key.contains(name));
        *of.next().expect("it is counted").1
    };
    let post = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    for _ in 0..4 {
        let (mut socket, mut leg) = asked(&proxy, &upstream, post);
        leg.head();
        socket.send(b"zz\r\n");
        assert_eq!(socket.response().status, 400);
    }
    for _ in 0..4 {
        // A body that does not go on.
        let (mut socket, mut leg) = asked(&proxy, &upstream, format!("{post}3\r\nabc\r\n"));
        leg.head();
        assert_eq!(socket.response().status, 408);
    }
    assert_eq!(failed(), 0.0);
    assert_eq!(metric(&proxy, "requests_refused_total{reason=\"stalled_body\"}"), 4.0);
    // Whose request is whole and gets no answer has an upstream that fails.
    let (mut socket, _leg) = asked(&proxy, &upstream, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(socket.response().status, 504);
    assert_eq!(failed(), 1.0);
}
