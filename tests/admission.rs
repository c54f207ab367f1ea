//! Admission: at each limit further clients get 503 with Retry-After, refusals are counted by the
//! limit's name, and accepted clients are not affected.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use serde_json::Value;

use crate::harness::executable::{Running, run, standfast};
use crate::harness::server::Server;
use crate::harness::socket::{PING, Socket, TEXT, upgrade};
use crate::harness::{PATIENCE, Scratch, eventually, http};

/// Valid values of `Retry-After`, in seconds.
const RETRY_AFTER: std::ops::RangeInclusive<u64> = 1..=10;
/// Refused connects in the test for leaks.
const REFUSED: u64 = 100_000;

/// Requests a WebSocket; `None` if it is refused. A refusal must have Retry-After.
fn try_open(address: SocketAddr) -> Option<Socket> {
    let mut socket = Socket::connect(address);
    socket.send(upgrade("/echo", &[]).as_bytes());
    let response = socket.response();
    if response.status == 101 {
        return Some(socket);
    }
    assert_eq!(response.status, 503, "{response:?}");
    let seconds = response.header("retry-after").and_then(|value| value.parse().ok());
    assert!(seconds.is_some_and(|seconds| RETRY_AFTER.contains(&seconds)), "{response:?}");
    assert!(socket.ends(), "a refused connection stays open");
    None
}

fn is_served(socket: &mut Socket) {
    socket.send_frame(TEXT, b"are you there?");
    assert_eq!(socket.frame().map(|frame| frame.payload), Some(b"are you there?".to_vec()));
}

fn refused(server: &Server, limit: &str) -> u64 {
    server.metrics()[&format!("standfast_refused_total{{limit=\"{limit}\"}}")] as u64
}

fn logs(server: &Server, flag: &str) {
    eventually("the log names the limit", || server.log().contains(flag));
}

#[test]
fn connections_of_one_address_are_limited_until_others_close() {
    let server = Server::start(&["--max-per-address", "3"]);
    let mut inside: Vec<Socket> = (0..3).filter_map(|_| try_open(server.listen)).collect();
    assert_eq!(inside.len(), 3);
    for _ in 0..5 {
        assert!(try_open(server.listen).is_none());
    }
    assert_eq!(refused(&server, "max_per_address"), 5);
    logs(&server, "--max-per-address");
    assert!(server.log().contains("127.0.0.1"), "{}", server.log());
    inside.iter_mut().for_each(is_served);
    assert_eq!(server.metrics()["standfast_addresses"], 1.0);
    inside.pop();
    eventually("a further client is accepted", || try_open(server.listen).is_some());
    drop(inside);
    eventually("the address is no longer tracked", || {
        server.metrics()["standfast_addresses"] == 0.0
    });
}

#[test]
fn addresses_of_one_prefix_are_one_address() {
    let server = Server::start(&[
        "--max-per-address",
        "1",
        "--per-address-prefix",
        "24/64",
        "--workers",
        "2",
    ]);
    let _inside = try_open(server.listen).expect("the first client is accepted");
    assert!(!opens_from([127, 0, 0, 9], server.listen), "the same /24");
    assert!(opens_from([127, 0, 1, 1], server.listen), "another /24");
}

/// Whether a WebSocket is opened for another address of loopback.
fn opens_from(source: [u8; 4], to: SocketAddr) -> bool {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    connect(&socket, &to).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(upgrade("/echo", &[]).as_bytes()).unwrap();
    http::read_response(&mut stream, &mut Vec::new()).status == 101
}

#[test]
fn connect_rates_are_limited_by_address_and_in_total() {
    for (flag, limit) in
        [("--per-address-rate", "per_address_rate"), ("--connect-rate", "connect_rate")]
    {
        let server = Server::start(&[flag, "5"]);
        let mut inside: Vec<Socket> = (0..5).filter_map(|_| try_open(server.listen)).collect();
        assert_eq!(inside.len(), 5, "{flag}: a burst of one second's rate");
        eventually("one is refused for the rate", || {
            inside.extend(try_open(server.listen));
            refused(&server, limit) > 0
        });
        inside.iter_mut().for_each(is_served);
        logs(&server, flag);
        eventually("the bucket has a token again", || try_open(server.listen).is_some());
    }
}

#[test]
fn the_oldest_incomplete_head_is_closed_for_the_newest() {
    let server = Server::start(&["--max-handshakes", "3", "--workers", "1"]);
    let mut bystander = Socket::open(server.listen, "/echo");
    let mut slow: Vec<Socket> = Vec::new();
    for n in 0..3 {
        let mut socket = Socket::connect(server.listen);
        socket.send(b"GET /echo HTTP/1.1\r\nX-Slow: ");
        slow.push(socket);
        eventually("it is in flight", || {
            server.metrics()["standfast_handshakes"] == f64::from(n + 1)
        });
    }
    let mut late = Socket::connect(server.listen);
    late.send(b"GET /echo HTTP/1.1\r\n");
    let answer = slow[0].response();
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(slow[0].ends());
    server.until_closed("shed", 1);
    assert_eq!(refused(&server, "max_handshakes"), 1);
    logs(&server, "--max-handshakes");
    // Complete requests never count, and remaining handshakes can complete.
    is_served(&mut bystander);
    is_served(&mut try_open(server.listen).expect("a complete head is answered at once"));
    late.send(upgrade("/echo", &[]).split_once("\r\n").unwrap().1.as_bytes());
    assert_eq!(late.response().status, 101);
    eventually("two are left", || server.metrics()["standfast_handshakes"] == 2.0);
}

#[test]
fn ten_thousand_slow_heads_leak_nothing() {
    let server = Server::start(&["--max-handshakes", "100", "--handshake-timeout", "2s"]);
    let mut bystander = Socket::open(server.listen, "/echo");
    let flood = |count: usize| {
        for _ in 0..count {
            let mut socket = Socket::connect(server.listen);
            socket.send(b"GET /echo HTTP/1.1\r\nX-Slow: ");
        }
    };
    let settle = || {
        eventually("only the bystander is connected", || {
            let metrics = server.metrics();
            metrics["standfast_connections"] == 1.0 && metrics["standfast_handshakes"] == 0.0
        });
    };
    flood(500);
    settle();
    let (descriptors, own) = (server.descriptors(), server.own_bytes());
    flood(10_000);
    is_served(&mut bystander);
    settle();
    eventually("all descriptors are closed", || server.descriptors() <= descriptors);
    eventually("memory is returned", || server.own_bytes() <= own + (1 << 20));
}

#[test]
fn refused_connects_leak_nothing() {
    let server = Server::start(&["--max-per-address", "1"]);
    let mut inside = try_open(server.listen).expect("the first client is accepted");
    let refuse = |count: u64| {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..count / 4).for_each(|_| assert!(try_open(server.listen).is_none()))
                });
            }
        });
    };
    refuse(4_000);
    let (descriptors, own) = (server.descriptors(), server.own_bytes());
    refuse(REFUSED);
    assert_eq!(refused(&server, "max_per_address"), 4_000 + REFUSED);
    is_served(&mut inside);
    eventually("all descriptors are closed", || server.descriptors() <= descriptors);
    eventually("memory is returned", || server.own_bytes() <= own + (1 << 20));
    let lines = server.log().matches("--max-per-address").count();
    assert!(lines < 60, "the log is limited: {lines} lines");
}

/// A client with a message that it has begun, and goes on pinging.
fn begin_message(address: SocketAddr, mib: usize) -> Socket {
    let mut socket = Socket::open(address, "/echo");
    let length = (mib << 20) as u64;
    // Not the last fragment.
    socket.send(&[&[0x02, 0xFF][..], &length.to_be_bytes(), &[1, 2, 3, 4]].concat());
    socket.send(&vec![7; mib << 20]);
    socket
}

#[test]
fn over_the_memory_limit_those_who_hold_most_are_shed_though_they_ping() {
    // The limit is too high to matter at first, and lowered by a reload.
    let config = Scratch::new("memory-limit.toml", "[serve]\nmemory_limit = \"4GiB\"\n");
    let server = Server::start(&[
        "--config",
        config.path(),
        // Clients count as silent after a second.
        "--idle-timeout",
        "off",
        "--workers",
        "2",
        "--max-message",
        "32MiB",
    ]);
    let before = server.rss_bytes();
    let mut idle: Vec<Socket> = (0..300).filter_map(|_| try_open(server.listen)).collect();
    assert_eq!(idle.len(), 300, "memory is below the limit");
    let mut attackers: Vec<Socket> = (0..24).map(|_| begin_message(server.listen, 2)).collect();
    eventually("the messages take memory", || server.rss_bytes() > before + (44 << 20));
    let limit = server.rss_bytes() - (24 << 20);
    eventually("all count as silent", || {
        let page = http::get(server.admin, "/api/connections?limit=1000").json();
        let silent = |one: &Value| one["idle_seconds"].as_f64().is_some_and(|idle| idle > 1.5);
        page["connections"].as_array().is_some_and(|all| all.iter().all(silent))
    });
    config.write(&format!("[serve]\nmemory_limit = \"{}KiB\"\n", limit >> 10));
    server.signal(rustix::process::Signal::HUP);
    logs(&server, "--memory-limit");
    let shed = || server.closed("shed");
    eventually("who holds most is shed, and there is room again", || {
        attackers.iter_mut().for_each(|attacker| attacker.send_frame(PING, b"still here"));
        shed() >= 8 && server.rss_bytes() <= limit && try_open(server.listen).is_some()
    });
    idle.iter_mut().for_each(is_served);
    assert!(shed() <= 24, "only attackers are closed");
    // It may have gone on since: both are of one moment.
    eventually("all who were shed have closed", || {
        let metrics = server.metrics();
        metrics["standfast_shed_total"] == metrics["standfast_closed_total{cause=\"shed\"}"]
    });
}

/// The worker's spare buffers are large after large messages.
#[test]
fn a_client_with_one_byte_of_a_message_holds_no_large_buffer() {
    let server = Server::start(&["--workers", "1"]);
    let mut other = Socket::open(server.listen, "/echo");
    let mut clients: Vec<Socket> = (0..300).filter_map(|_| try_open(server.listen)).collect();
    assert_eq!(clients.len(), 300);
    let before = server.rss_bytes();
    let half = vec![7; 32_500];
    for client in &mut clients {
        other.send_frame(0x02, &half);
        other.send_frame(0x80, &half);
        assert_eq!(other.frame().map(|frame| frame.payload.len()), Some(65_000));
        client.send_frame(0x02, b"x");
        client.send_frame(PING, b"");
        assert!(client.frame().is_some(), "the ping is answered");
    }
    let grown = server.rss_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes for 300 clients");
}

#[test]
fn the_server_listens_on_ipv4_ipv6_and_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("standfast-listen-{}.sock", std::process::id()));
    // A socket that an ended process left behind is replaced.
    drop(UnixListener::bind(&path).unwrap());
    let unix = format!("unix:{}", path.display());
    let listen = ["--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--listen", &unix];
    let mut server = Server::start(&listen);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let v6 = server.listeners.iter().find_map(|listener| {
        listener.parse().ok().filter(|address: &SocketAddr| address.is_ipv6())
    });
    is_served(&mut try_open(v6.expect("the ready line has the port")).unwrap());
    is_served(&mut try_open(server.listen).unwrap());
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(upgrade("/echo", &[]).as_bytes()).unwrap();
    assert_eq!(http::read_response(&mut stream, &mut Vec::new()).status, 101);
    let second = run(&["serve", "--listen", &unix, "--admin", "off"]);
    assert_eq!(second.code, Some(2), "the socket is in use: {second:?}");
    let peers = http::get(server.admin, "/api/connections").json();
    assert!(
        peers["connections"].as_array().unwrap().iter().any(|c| c["peer"].is_null()),
        "{peers}"
    );
    server.signal(rustix::process::Signal::TERM);
    stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(server.wait().success());
    assert!(!path.exists(), "the server removes the file");
}

#[test]
fn a_wildcard_v6_listener_accepts_ipv4_unless_it_has_its_own_listener() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (v4, v6) = (format!("127.0.0.1:{free}"), format!("[::]:{free}"));
    let serve = |listen: &[&str]| {
        let mut args = vec!["serve", "--admin", "off", "--echo", "--ready-json", "--log", "error"];
        args.extend(listen.iter().flat_map(|address| ["--listen", *address]));
        Running(standfast(&args).spawn().unwrap())
    };
    for listen in [&[&*v4, &*v6][..], &[&*v6]] {
        let _running = serve(listen);
        for address in [v4.clone(), format!("[::1]:{free}")] {
            eventually("it answers on both", || TcpStream::connect(&address).is_ok());
        }
    }
}

/// The PROXY header of a client, in both versions.
fn proxy_headers(client: [u8; 4]) -> [Vec<u8>; 2] {
    let [a, b, c, d] = client;
    let first = format!("PROXY TCP4 {a}.{b}.{c}.{d} 127.0.0.1 4711 8080\r\n").into_bytes();
    let mut second = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    second.extend([a, b, c, d, 127, 0, 0, 1, 0x12, 0x67, 0x1F, 0x90]);
    [first, second]
}

/// The status of the response to these bytes, sent a few at a time.
fn answer(server: &Server, bytes: &[u8], at_a_time: usize) -> (Socket, u16) {
    let mut socket = Socket::connect(server.listen);
    bytes.chunks(at_a_time).for_each(|chunk| socket.send(chunk));
    let status = socket.response().status;
    (socket, status)
}

/// The client addresses of open WebSockets, as sent by proxies, in order.
fn clients(server: &Server) -> Vec<String> {
    let page = http::get(server.admin, "/api/connections").json();
    let connections = page["connections"].as_array().expect("a list").iter();
    let open = connections.filter(|connection| connection["state"] == "websocket");
    let mut clients: Vec<String> =
        open.filter_map(|c| c["client"].as_str().map(str::to_owned)).collect();
    clients.sort();
    clients
}

#[test]
fn a_trusted_proxy_sends_the_client_in_a_proxy_header() {
    let proxies = ["--trusted-proxy", "127.0.0.0/8", "--proxy-protocol"];
    let server = Server::start(&[&proxies[..], &["--max-per-address", "1"]].concat());
    let mut inside = Vec::new();
    for (n, at_a_time) in [(1, 1), (2, 1000)] {
        let header = &proxy_headers([192, 0, 2, n])[usize::from(n) - 1];
        let bytes = [&header[..], upgrade("/echo", &[]).as_bytes()].concat();
        let (mut socket, status) = answer(&server, &bytes, at_a_time);
        assert_eq!(status, 101, "version {n}");
        is_served(&mut socket);
        inside.push(socket);
        let (mut again, status) = answer(&server, &bytes, 7);
        assert_eq!(status, 503, "version {n}: one connection of an address");
        assert!(again.ends());
    }
    assert_eq!(clients(&server), ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(refused(&server, "max_per_address"), 2);
    let (_, status) = answer(&server, upgrade("/echo", &[]).as_bytes(), 1000);
    assert_eq!(status, 400, "a trusted proxy must send the header");
    let sample = "standfast_violations_total{violation=\"bad_proxy_header\"}";
    assert_eq!(server.metrics()[sample], 1.0);
    drop(inside);
    eventually("both have disconnected", || server.metrics()["standfast_addresses"] == 0.0);
}

#[test]
fn untrusted_peers_cannot_set_the_client_address() {
    let header =
        |how: &str| upgrade("/echo", &[(how, "192.0.2.1"), ("Forwarded", "for=192.0.2.2")]);
    // This machine is not trusted.
    let others = ["--trusted-proxy", "10.0.0.0/8"];
    for more in [&["--proxy-protocol"][..], &[]] {
        let server = Server::start(&[&others[..], more].concat());
        for spoofed in proxy_headers([192, 0, 2, 1]) {
            let bytes = [&spoofed[..], upgrade("/echo", &[]).as_bytes()].concat();
            assert_eq!(answer(&server, &bytes, 1000).1, 400);
        }
        let (_inside, status) = answer(&server, header("X-Forwarded-For").as_bytes(), 1000);
        assert_eq!((status, clients(&server)), (101, Vec::new()));
    }
    let needs = run(&["serve", "--proxy-protocol"]);
    assert_eq!(needs.code, Some(2), "{needs:?}");
    assert!(needs.stderr.contains("--trusted-proxy"), "{needs:?}");
}

#[test]
fn a_trusted_proxy_sends_the_client_in_an_http_header() {
    for (how, flags) in
        [("X-Forwarded-For", &[][..]), ("Forwarded", &["--forwarded-header", "forwarded"])]
    {
        let list = ["--trusted-proxy", "127.0.0.1,10.0.0.0/8", "--max-per-address", "1"];
        let server = Server::start(&[&list[..], flags].concat());
        let value = |client: &str| match how {
            "Forwarded" => format!("for=1.1.1.1, for={client};proto=https, for=10.0.0.1"),
            _ => format!("1.1.1.1, {client}, 10.0.0.1"),
        };
        let ask = |client: &str| {
            // The other header is ignored.
            let other = if how == "Forwarded" { "X-Forwarded-For" } else { "Forwarded" };
            let request = upgrade("/echo", &[(how, &value(client)), (other, "for=9.9.9.9")]);
            answer(&server, request.as_bytes(), 1000)
        };
        let (mut inside, status) = ask("192.0.2.1");
        assert_eq!(status, 101, "{how}");
        assert_eq!(ask("192.0.2.1").1, 503, "{how}: one connection of an address");
        let (_other, status) = ask("192.0.2.2");
        assert_eq!(status, 101, "{how}");
        assert_eq!(clients(&server), ["192.0.2.1", "192.0.2.2"], "{how}");
        is_served(&mut inside);
    }
}
