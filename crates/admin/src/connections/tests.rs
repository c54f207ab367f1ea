//! The limits over real sockets, with short times.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use engine::sys::process::now_ns;
use engine::{ClientAuth, TlsIdentity, TlsServer, TlsVersion};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

use crate::{
    Address, AdminListener, ApiRequest, Config, ConnectionLimits, Exposition, Program, Reply, start,
};

/// Time limit of a condition.
const PATIENCE: Duration = Duration::from_secs(60);
const NEVER: Duration = Duration::from_secs(3600);
/// A limit that is reached. This process is much faster, even on a loaded machine.
const SOON: Duration = Duration::from_secs(1);

/// Answers `/wait` when the test says so, and `/large` with more than kernel buffers take.
struct Fake {
    entered: Mutex<Sender<()>>,
    leave: Mutex<Receiver<()>>,
}

impl Program for Fake {
    fn healthy(&self) -> bool {
        true
    }

    fn metrics(&self, _: &mut Exposition) {}

    fn stats(&self) -> Value {
        json!({})
    }

    fn page(&self) -> Option<Value> {
        Some(json!({}))
    }

    fn sample(&self, _: bool) -> Value {
        json!({})
    }

    fn publish(&self, body: &[u8], _: bool) -> Reply {
        Reply::json(&json!({ "bytes": body.len() }))
    }

    fn api(&self, request: &ApiRequest<'_>) -> Option<Reply> {
        match request.path {
            "/wait" => {
                self.entered.lock().unwrap().send(()).unwrap();
                self.leave.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                Some(Reply::text(200, "waited\n"))
            }
            "/large" => Some(Reply::text(200, &"x".repeat(64 << 20))),
            _ => None,
        }
    }
}

struct Fixture {
    listener: AdminListener,
    entered: Receiver<()>,
    leave: Sender<()>,
}

impl Fixture {
    fn start(connections: ConnectionLimits) -> Self {
        Self::start_with(connections, None)
    }

    fn start_with(connections: ConnectionLimits, tls: Option<TlsServer>) -> Self {
        let (entered, has_entered) = channel();
        let (leave, may_leave) = channel();
        let fake = Fake { entered: Mutex::new(entered), leave: Mutex::new(may_leave) };
        let config = Config {
            address: "127.0.0.1:0".parse().unwrap(),
            key: Some("key".to_owned()),
            tls,
            body_bytes_max: 1024,
            connections,
        };
        let listener = start(&config, Arc::new(fake)).unwrap();
        Fixture { listener, entered: has_entered, leave }
    }

    fn connect(&self) -> TcpStream {
        let Address::Tcp(address) = self.listener.address() else { unreachable!() };
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn counted(&self, name: &str) -> u64 {
        let mut stream = self.connect();
        send(&mut stream, "GET /metrics", "");
        let text = response(&mut stream);
        let sample = text.lines().find_map(|line| line.strip_prefix(name));
        sample.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }

    fn closed(&self, cause: &str) -> u64 {
        self.counted(&format!("standfast_admin_closed_total{{cause=\"{cause}\"}}"))
    }
}

fn none() -> ConnectionLimits {
    let connections = ConnectionLimits::CONNECTIONS;
    ConnectionLimits { connections, head: NEVER, body: NEVER, response: NEVER, idle: NEVER }
}

fn send(stream: &mut impl Write, request: &str, body: &str) {
    let length = body.len();
    let key = "Authorization: Bearer key";
    let head = format!("{request} HTTP/1.1\r\nHost: a\r\n{key}\r\nContent-Length: {length}\r\n");
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
}

/// Reads one response with a Content-Length.
fn response(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut lengths = head.lines().filter_map(|l| l.strip_prefix("content-length: "));
            let length: usize = lengths.next().unwrap().parse().unwrap();
            if body.len() >= length {
                return text;
            }
        }
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "closed after {text:?}");
        bytes.extend_from_slice(&buffer[..count]);
    }
}

/// Waits until the listener has closed the connection.
fn ends(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0; 1]);
    stream.set_nonblocking(false).unwrap();
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = now_ns() + PATIENCE.as_nanos() as u64;
    while !condition() {
        assert!(now_ns() < deadline, "gave up waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_head_has_to_be_complete_in_time() {
    let fixture = Fixture::start(ConnectionLimits { head: SOON, ..none() });
    let mut silent = fixture.connect();
    let mut begun = fixture.connect();
    begun.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap();
    let mut second = fixture.connect();
    send(&mut second, "GET /api/stats", "");
    response(&mut second);
    let mut idle = second.try_clone().unwrap();
    assert!(ends(&mut silent) && ends(&mut begun));
    assert!(fixture.closed("head_timeout") >= 2);
    assert!(is_open(&mut idle), "the time for a head does not run between requests");
    second.write_all(b"GET /metr").unwrap();
    assert!(ends(&mut second));
    assert!(fixture.closed("head_timeout") >= 3);
}

#[test]
fn a_head_sent_byte_by_byte_gains_no_time() {
    let fixture = Fixture::start(ConnectionLimits { head: SOON, ..none() });
    let mut slow = fixture.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
    eventually("it is closed", || {
        thread::sleep(SOON / 10);
        slow.write_all(b"x").is_err()
    });
    assert!(fixture.closed("head_timeout") >= 1);
}

#[test]
fn an_idle_connection_is_closed_in_time() {
    let fixture = Fixture::start(ConnectionLimits { idle: SOON, ..none() });
    let mut idle = fixture.connect();
    send(&mut idle, "GET /api/stats", "");
    response(&mut idle);
    assert!(ends(&mut idle));
    assert_eq!(fixture.closed("idle_timeout"), 1);
}

#[test]
fn a_stream_lasts_longer_than_an_idle_connection() {
    let fixture = Fixture::start(ConnectionLimits { idle: SOON / 10, ..none() });
    let mut live = fixture.connect();
    send(&mut live, "GET /api/live", "");
    let mut read = Vec::new();
    // Samples are a second apart.
    while read.windows(14).filter(|part| part == b"event: sample\n").count() < 3 {
        let mut buffer = [0; 4096];
        let count = live.read(&mut buffer).unwrap();
        assert!(count > 0, "closed after {}", read.escape_ascii());
        read.extend_from_slice(&buffer[..count]);
    }
    assert_eq!(fixture.closed("idle_timeout"), 0);
}

#[test]
fn a_late_body_is_answered_408() {
    let fixture = Fixture::start(ConnectionLimits { body: SOON, ..none() });
    let mut late = fixture.connect();
    let head = "POST /api/publish HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer key\r\n";
    late.write_all(format!("{head}Content-Length: 9\r\n\r\nhalf").as_bytes()).unwrap();
    let text = response(&mut late);
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    assert!(ends(&mut late), "the rest of the body is not a request");
    assert_eq!(fixture.closed("body_timeout"), 1);
}

#[test]
fn a_client_that_takes_no_response_is_closed() {
    let fixture = Fixture::start(ConnectionLimits { response: SOON, ..none() });
    let mut deaf = fixture.connect();
    send(&mut deaf, "GET /large", "");
    eventually("it is closed", || fixture.closed("response_timeout") >= 1);
}

#[test]
fn silent_connections_make_room_for_each_other_and_not_those_with_the_key() {
    let fixture = Fixture::start(ConnectionLimits { connections: 4, ..none() });
    let mut keyed: Vec<TcpStream> = (0..3).map(|_| fixture.connect()).collect();
    for stream in &mut keyed {
        send(stream, "GET /api/stats", "");
        response(stream);
    }
    let mut silent: Vec<TcpStream> = (0..40).map(|_| fixture.connect()).collect();
    for stream in silent.iter_mut().take(36) {
        assert!(ends(stream));
    }
    for stream in &mut keyed {
        send(stream, "GET /api/stats", "");
        response(stream);
    }
    assert!(fixture.closed("full") >= 36);
    assert!(fixture.counted("standfast_admin_connections ") <= 8);
}

#[test]
fn connections_with_the_key_make_room_for_each_other() {
    let fixture = Fixture::start(ConnectionLimits { connections: 4, ..none() });
    let mut keyed: Vec<TcpStream> = Vec::new();
    for _ in 0..20 {
        let mut stream = fixture.connect();
        send(&mut stream, "GET /api/stats", "");
        response(&mut stream);
        keyed.push(stream);
    }
    // Connections move to the other kind with their first request, so up to five wait at a time.
    for stream in keyed.iter_mut().take(15) {
        assert!(ends(stream));
    }
    assert!(is_open(keyed.last_mut().unwrap()));
}

#[test]
fn a_request_in_progress_is_never_closed_to_make_room() {
    let fixture = Fixture::start(ConnectionLimits { connections: 1, ..none() });
    let wait = |_| {
        let mut stream = fixture.connect();
        send(&mut stream, "GET /wait", "");
        fixture.entered.recv_timeout(PATIENCE).unwrap();
        stream
    };
    let mut waiting: Vec<TcpStream> = (0..2).map(wait).collect();
    let mut third = fixture.connect();
    send(&mut third, "GET /api/stats", "");
    for _ in 0..2 {
        fixture.leave.send(()).unwrap();
    }
    for stream in &mut waiting {
        assert!(response(stream).contains("waited"));
    }
    response(&mut third);
}

/// A listener with TLS, and clients that trust it.
struct SecureFixture {
    fixture: Fixture,
    client: Arc<ClientConfig>,
}

impl SecureFixture {
    fn start(connections: ConnectionLimits) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        let server = TlsServer::new(&[identity], TlsVersion::Tls12, ClientAuth::None).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let fixture = Fixture::start_with(connections, Some(server));
        SecureFixture { fixture, client: Arc::new(client) }
    }

    fn session(&self) -> ClientConnection {
        let name = ServerName::try_from("localhost").unwrap();
        ClientConnection::new(Arc::clone(&self.client), name).unwrap()
    }

    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        StreamOwned::new(self.session(), self.fixture.connect())
    }

    fn hello(&self) -> Vec<u8> {
        let mut hello = Vec::new();
        self.session().write_tls(&mut hello).unwrap();
        hello
    }

    fn closed(&self, cause: &str) -> u64 {
        let mut stream = self.connect();
        send(&mut stream, "GET /metrics", "");
        let text = response(&mut stream);
        let name = format!("standfast_admin_closed_total{{cause=\"{cause}\"}} ");
        let sample = text.lines().find_map(|line| line.strip_prefix(&name));
        sample.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }
}

/// Reads until the listener has closed the connection.
fn ends_after_data(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn the_time_for_a_head_includes_the_tls_handshake() {
    let secure = SecureFixture::start(ConnectionLimits { head: SOON, ..none() });
    let hello = secure.hello();
    let mut stalled: Vec<TcpStream> = Vec::new();
    for bytes in [&hello[..0], &hello[..1], &hello[..hello.len() - 1], &hello[..]] {
        let mut stream = secure.fixture.connect();
        stream.write_all(bytes).unwrap();
        stalled.push(stream);
    }
    let mut silent = secure.connect();
    while silent.conn.is_handshaking() {
        silent.conn.complete_io(&mut silent.sock).unwrap();
    }
    for stream in &mut stalled {
        assert!(ends_after_data(stream));
    }
    assert!(ends_after_data(&mut silent.sock), "a handshake alone gains no time");
    eventually("all are counted", || secure.closed("head_timeout") >= 5);
}

#[test]
fn a_client_that_takes_no_response_over_tls_is_closed() {
    let secure = SecureFixture::start(ConnectionLimits { response: SOON, ..none() });
    let mut deaf = secure.connect();
    send(&mut deaf, "GET /large", "");
    eventually("it is closed", || secure.closed("response_timeout") >= 1);
}

#[test]
fn a_large_response_over_tls_is_complete_and_requests_follow_it() {
    let secure = SecureFixture::start(none());
    let mut stream = secure.connect();
    send(&mut stream, "GET /large", "");
    let mut left = 64 << 20;
    let mut buffer = vec![0; 1 << 20];
    let mut head = Vec::new();
    while left > 0 {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{left} bytes are missing");
        let mut bytes = &buffer[..count];
        if head.len() < 4 || !head.ends_with(b"\r\n\r\n") {
            let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
            head.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end..];
        }
        left -= bytes.len();
    }
    send(&mut stream, "GET /api/stats", "");
    response(&mut stream);
}

#[test]
fn handshakes_make_room_for_each_other_and_not_connections_with_the_key() {
    let secure = SecureFixture::start(ConnectionLimits { connections: 4, ..none() });
    let mut keyed = secure.connect();
    send(&mut keyed, "GET /api/stats", "");
    response(&mut keyed);
    let hello = secure.hello();
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..40 {
        let mut stream = secure.fixture.connect();
        stream.write_all(&hello).unwrap();
        held.push(stream);
    }
    for stream in held.iter_mut().take(36) {
        assert!(ends_after_data(stream));
    }
    send(&mut keyed, "GET /api/stats", "");
    response(&mut keyed);
    assert!(secure.closed("full") >= 36);
}
