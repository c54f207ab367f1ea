//! `standfast proxy` with slow, lying and disconnecting peers: no bytes are lost, no client can forge
//! an identity, and no client can eject an upstream.

use std::io::Write;
use std::os::unix::net::UnixListener;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::tls::Authority;
use crate::harness::upstream::{Leg, Upstream, switching};
use crate::harness::{Scratch, eventually};

/// A proxy with one worker and one upstream in the test.
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

/// Sends until the proxy has a backlog and no more is accepted, so that the rest is not read for now.
/// Returns how much was sent.
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

/// Waits until the only worker has processed everything sent before.
fn pass_one(proxy: &Server, upstream: &Upstream) {
    let (mut socket, mut leg) = tunnel(proxy, upstream);
    socket.send(b"there?");
    assert_eq!(leg.bytes(6), b"there?");
}

#[test]
fn bytes_sent_before_both_sides_closed_are_read_by_a_slow_client() {
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
fn bytes_of_a_closed_unix_upstream_are_read_by_a_slow_client() {
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
    // Unread bytes of the request would turn the close into a reset.
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
fn a_reset_after_a_half_close_is_counted_as_a_reset() {
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
fn with_proxy_headers_no_http_header_is_trusted() {
    let upstream = Upstream::new();
    let flags = ["--trusted-proxy", "127.0.0.1", "--proxy-protocol", "--forwarded"];
    let proxy = before(&upstream, &flags);
    let forged = "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Ssl: 6.6.6.6\r\nX_Forwarded_Port: evil\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-Proto: https\r\n\
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
fn the_host_of_an_absolute_url_must_be_valid() {
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
fn no_client_can_eject_an_upstream() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &["--answer-timeout", "1s"]);
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
    for _ in 0..2 {
        // A body that stalls.
        let (mut socket, mut leg) = asked(&proxy, &upstream, format!("{post}3\r\nabc\r\n"));
        leg.head();
        assert_eq!(socket.response().status, 408);
    }
    assert_eq!(failed(), 0.0);
    assert_eq!(metric(&proxy, "requests_refused_total{reason=\"stalled_body\"}"), 2.0);
    // A complete request without a response is a failure of the upstream.
    let (mut socket, _leg) = asked(&proxy, &upstream, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(socket.response().status, 504);
    assert_eq!(failed(), 1.0);
}

#[test]
fn endless_interim_responses_are_refused() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &[]);
    let refused = "requests_refused_total{reason=\"bad_answer\"}";
    for (interim, status) in [(8, 200), (9, 502)] {
        // To a client of HTTP/1.0 interim responses are not passed on.
        let (mut socket, mut leg) = asked(&proxy, &upstream, "GET / HTTP/1.0\r\nHost: h\r\n\r\n");
        leg.head();
        leg.say("HTTP/1.1 102 Processing\r\n\r\n".repeat(interim));
        let _ = leg.stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(socket.response().status, status, "{interim} interim responses");
    }
    assert_eq!(metric(&proxy, refused), 1.0);
}

#[test]
fn a_drain_ends_although_a_response_does_not() {
    let upstream = Upstream::new();
    let mut proxy = before(&upstream, &["--drain", "200ms", "--drain-grace", "500ms"]);
    let (mut socket, mut leg) = asked(&proxy, &upstream, "GET /events HTTP/1.0\r\nHost: h\r\n\r\n");
    leg.head();
    leg.say("HTTP/1.1 200 OK\r\n\r\n");
    let events = std::thread::spawn(move || while leg.stream.write_all(b"data: x\n\n").is_ok() {});
    let reads = std::thread::spawn(move || {
        let mut got = Vec::new();
        while socket.take(&mut got) {
            got.clear();
        }
    });
    proxy.signal(rustix::process::Signal::TERM);
    assert!(proxy.wait().success());
    events.join().unwrap();
    reads.join().unwrap();
}

#[test]
fn a_drain_waits_for_the_response_to_a_half_closed_client() {
    let upstream = Upstream::new();
    let mut proxy = before(&upstream, &["--drain", "200ms"]);
    let (mut half, mut its_leg) = asked(&proxy, &upstream, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    half.finish_sending();
    its_leg.head();
    let (mut socket, far) = tunnel(&proxy, &upstream);
    proxy.signal(rustix::process::Signal::TERM);
    // Slots are closed in order, so the one before was processed, too.
    assert!(socket.ends());
    drop((socket, far));
    its_leg.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole");
    assert_eq!(half.response().body, "whole");
    drop((half, its_leg));
    assert!(proxy.wait().success());
}

#[test]
fn keep_alive_and_later_heads_have_their_own_timeouts() {
    let (request, answer) =
        ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let upstream = Upstream::new();
    let flags =
        ["--handshake-timeout", "300ms", "--spare-connections", "0", "--keep-alive-timeout"];
    let patient = before(&upstream, &[&flags[..], &["10m"]].concat());
    let answers = |socket: &mut Socket| {
        let mut leg = upstream.accept();
        leg.head();
        leg.say(answer);
        assert_eq!(socket.response().body, "ok");
    };
    let (mut idle, mut dribbling) =
        (Socket::connect(patient.listen), Socket::connect(patient.listen));
    for socket in [&mut idle, &mut dribbling] {
        socket.send(request.as_bytes());
        answers(socket);
    }
    for late in 1..=4 {
        let mut begins = Socket::connect(patient.listen);
        begins.send(b"GET /");
        patient.until_closed("handshake_timeout", late);
    }
    idle.send(request.as_bytes());
    answers(&mut idle);
    dribbling.send(b"GET / HTTP/1.1\r\nX-Slow: ");
    eventually("who dribbles is ended", || {
        dribbling.send(b"x");
        patient.closed("handshake_timeout") == 5
    });
    let hasty = before(&upstream, &[&flags[..], &["300ms"]].concat());
    let mut idle = Socket::connect(hasty.listen);
    idle.send(request.as_bytes());
    answers(&mut idle);
    assert!(idle.ends());
    eventually("it is counted", || hasty.closed("answered") > 0);
}

#[test]
fn a_client_that_does_not_read_its_last_response_is_reset() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &["--answer-timeout", "3s"]);
    let request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let (_socket, mut leg) = asked(&proxy, &upstream, request.repeat(1_000));
    let length = 30_000;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let answer = [head.as_bytes(), &vec![b'a'; length]].concat();
    let waits = || metric(&proxy, "queued_bytes") > 0.0;
    for asked in 1..=1_000 {
        leg.head();
        leg.say(&answer);
        eventually("the next is asked, or the answer waits", || {
            waits() || metric(&proxy, "reused_total") >= f64::from(asked)
        });
        if waits() {
            break;
        }
    }
    assert!(waits());
    eventually("its end is given up", || !waits());
}

#[test]
fn a_drain_closes_tunnels_that_open_after_it_only_if_it_closes_tunnels() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &["--admin-key", "key"]);
    let order = |action: &str, more: &str| {
        let address = upstream.address();
        let body = format!("{{\"action\":\"{action}\",\"upstream\":\"{address}\"{more}}}");
        assert_eq!(proxy.admin_post("/api/upstreams", &body).status, 200);
    };
    // The handshake is under way when the order comes.
    let opens_after = |more: &str| {
        let (mut socket, mut leg) = asked(&proxy, &upstream, upgrade("/ws", &[]));
        leg.head();
        order("drain", more);
        leg.say(switching());
        assert_eq!(socket.response().status, 101);
        order("resume", "");
        (socket, leg)
    };
    let (mut socket, mut leg) = opens_after(",\"over_seconds\":60");
    assert!(socket.ends() && leg.ends());
    eventually("it is counted", || {
        metric(&proxy, "tunnels_ended_total{reason=\"ordered\"}") == 1.0
    });
    let (mut socket, mut leg) = opens_after("");
    socket.send(b"there?");
    assert_eq!(leg.bytes(6), b"there?");
}

#[test]
fn a_request_that_is_retried_after_a_reload_goes_to_the_new_upstreams() {
    let (old, new) = (Upstream::new(), Upstream::new());
    let config = |to: &Upstream| {
        format!("[proxy]\nworkers = 1\n[pool.a]\nupstreams = ['{}']\n", to.address())
    };
    let file = Scratch::new("retried.toml", &config(&old));
    let proxy = Server::start_proxy(&["--config", file.path()]);
    let (get, answer) = ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 204 X\r\n\r\n");
    let (mut socket, mut leg) = asked(&proxy, &old, get);
    leg.head();
    leg.say(answer);
    assert_eq!(socket.response().status, 204);
    // On the same connection, which the upstream closes before it reads the request.
    socket.send(get.as_bytes());
    eventually("it is sent", || metric(&proxy, "reused_total") == 1.0);
    file.write(&config(&new));
    proxy.signal(rustix::process::Signal::HUP);
    eventually("the reload is done", || proxy.log().contains("configuration reloaded"));
    leg.finish();
    let mut retried = new.accept();
    retried.head();
    retried.say(answer);
    assert_eq!(socket.response().status, 204);
    assert!(old.is_alone());
    assert!(leg.head().starts_with("GET / "), "both upstreams read it");
}

#[test]
fn a_reload_closes_idle_connections_of_old_settings() {
    let upstream = Upstream::new();
    let config =
        |more: &str| format!("[proxy]\n{more}\n[pool.a]\nupstreams = ['{}']\n", upstream.address());
    let file = Scratch::new("era.toml", &config(""));
    let proxy = Server::start_proxy(&["--config", file.path(), "--workers", "1"]);
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let (mut other, mut busy) = asked(&proxy, &upstream, get);
    busy.head();
    let (mut socket, mut spare) = asked(&proxy, &upstream, get);
    spare.head();
    spare.say(answer);
    assert_eq!(socket.response().status, 200);
    std::fs::write(file.path(), config("upstream_proxy_protocol = 'v1'")).unwrap();
    proxy.signal(rustix::process::Signal::HUP);
    assert!(spare.ends(), "it was opened without a PROXY header");
    busy.say(answer);
    assert_eq!(other.response().status, 200);
    assert!(busy.ends(), "and so was this");
    socket.send(get.as_bytes());
    let head = upstream.accept().head();
    assert!(head.starts_with("PROXY TCP4 127.0.0.1 "), "{head}");
}

#[test]
fn requests_with_a_body_reuse_only_recent_connections() {
    let upstream = Upstream::new();
    let proxy = before(&upstream, &["--spare-connections", "1"]);
    let post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (mut socket, mut leg) = asked(&proxy, &upstream, post);
    for _ in 0..20 {
        leg.head();
        assert_eq!(leg.bytes(3), b"abc");
        leg.say(answer);
        assert_eq!(socket.response().body, "ok");
        socket.send(post.as_bytes());
    }
    leg.head();
    assert!(upstream.is_alone(), "one connection was enough");
    assert_eq!(metric(&proxy, "reused_total"), 20.0);
    // Two concurrent requests leave two connections; one is kept, the other is closed.
    let (mut second, mut other) = asked(&proxy, &upstream, post);
    other.head();
    for (socket, leg) in [(&mut socket, &mut leg), (&mut second, &mut other)] {
        leg.bytes(3);
        leg.say(answer);
        assert_eq!(socket.response().body, "ok");
    }
    let error = std::io::Read::read(&mut leg.stream, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn over_tls_a_response_without_a_length_needs_a_close_notify() {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let flags = ["--upstream", &address, "--upstream-tls", "--upstream-name", "localhost"];
    let ca = authority.path("ca.pem");
    let proxy = Server::start_proxy(&[&flags[..], &["--upstream-ca", &ca]].concat());
    for said in [true, false] {
        let mut socket = Socket::connect(proxy.listen);
        socket.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let (stream, _) = listener.accept().unwrap();
        let session = tls_server(&certificate, &key);
        let mut stream = rustls::StreamOwned::new(session, stream);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(crate::harness::http::read_more(&mut stream, &mut head));
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf of it").unwrap();
        if said {
            stream.conn.send_close_notify();
        }
        stream.flush().unwrap();
        if said {
            let whole = socket.text_until("0\r\n\r\n");
            assert!(whole.contains("half of it"), "{whole}");
        } else {
            socket.text_until("half of it\r\n");
            drop(stream);
            assert!(socket.ends(), "no last chunk");
        }
    }
    assert_eq!(metric(&proxy, "truncated_total"), 1.0);
}

fn tls_server(certificate: &str, key: &str) -> rustls::ServerConnection {
    let chain = CertificateDer::pem_file_iter(certificate).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    rustls::ServerConnection::new(std::sync::Arc::new(config)).unwrap()
}

#[test]
fn a_queue_is_first_in_first_out() {
    let upstream = Upstream::new();
    let config = format!(
        "[pool.a]\nupstreams = [{{ address = '{}', max = 1 }}]\nqueue = 100\nqueue_timeout = '60s'\n",
        upstream.address()
    );
    let config = Scratch::new("queue.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--workers", "2"]);
    let (held, mut leg) = tunnel(&proxy, &upstream);
    let waiting = || metric(&proxy, "pool_waiting{pool=\"a\"}");
    let mut waiters = Vec::new();
    for number in 0..12 {
        let mut socket = Socket::connect(proxy.listen);
        let close = "Connection: close\r\n\r\n";
        socket.send(format!("GET /{number} HTTP/1.1\r\nHost: h\r\n{close}").as_bytes());
        waiters.push(socket);
        eventually("it waits", || waiting() == f64::from(number + 1));
    }
    drop(held);
    assert!(leg.ends());
    drop(leg);
    for number in 0..12 {
        let mut leg = upstream.accept();
        let head = leg.head();
        assert!(head.starts_with(&format!("GET /{number} ")), "{number}: {head}");
        if number < 4 {
            // A new request is not served before the queued ones.
            let mut late = Socket::connect(proxy.listen);
            late.send(b"GET /late HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            waiters.push(late);
        }
        leg.say("HTTP/1.1 204 None\r\nConnection: close\r\n\r\n");
    }
    for _ in 0..4 {
        let mut leg = upstream.accept();
        assert!(leg.head().starts_with("GET /late "));
        leg.say("HTTP/1.1 204 None\r\nConnection: close\r\n\r\n");
    }
}

/// Refusals with a constant delay would bring all refused clients back in the same second.
#[test]
fn clients_of_a_busy_pool_are_told_different_times_to_return() {
    let upstream = Upstream::new();
    let config = format!("[pool.a]\nupstreams = ['{}']\nmax = 1\nqueue = 1\n", upstream.address());
    let config = config + "queue_timeout = '1ms'\n";
    let file = Scratch::new("busy.toml", &config);
    let proxy = Server::start_proxy(&["--config", file.path(), "--workers", "1"]);
    let get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let (_held, mut leg) = asked(&proxy, &upstream, get);
    leg.head();
    // At once with a handshake, and after the queue.
    for request in [get.to_owned(), upgrade("/", &[])] {
        let mut told = std::collections::BTreeSet::new();
        eventually("they are spread", || {
            let mut socket = Socket::connect(proxy.listen);
            socket.send(request.as_bytes());
            let answer = socket.response();
            assert_eq!(answer.status, 503);
            let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=10).contains(&seconds), "{seconds}");
            told.insert(seconds);
            told.len() >= 3
        });
    }
}
