//! One probe of one upstream: connects as a tunnel would, with the pool's PROXY header and TLS, and
//! sends one small request unless the check is `tcp`. The head of the response is parsed strictly, up
//! to its limit; the body is not read.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use engine::Closed;
use engine::sys::process::start_connect_from;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, encode_request_head, parse_response};
use wire::websocket::{check_upgrade_response, encode_key, encode_upgrade_request};
use wire::{Limits, Status, Violation};

use super::CheckKind;
use crate::balance::{Upstream, UpstreamAddress};
use crate::config::Transport;
use crate::routes::HealthCheck;

/// Why a probe failed.
#[derive(Debug)]
pub(crate) enum ProbeError {
    Silent(Duration),
    Broken(io::Error),
    NotHttp(Violation),
    Status(u16),
    /// Too many interim responses.
    Interim,
    Ended,
}

impl ProbeError {
    /// Whether this process lacks a port, a descriptor or memory, which says nothing about the upstream.
    pub(crate) fn is_ours(&self) -> bool {
        let ProbeError::Broken(error) = self else { return false };
        let why = Closed::from_connect_error(error);
        matches!(why, Closed::NoAddress | Closed::NoDescriptors | Closed::NoMemory)
    }
}

impl std::fmt::Display for ProbeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProbeError::Silent(time) => write!(f, "no response within {time:?}"),
            ProbeError::Broken(error) => error.fmt(f),
            ProbeError::NotHttp(rule) => write!(f, "invalid response: {rule}"),
            ProbeError::Status(status) => write!(f, "status {status}"),
            ProbeError::Interim => f.write_str("too many interim responses (1xx)"),
            ProbeError::Ended => f.write_str("connection closed before the response"),
        }
    }
}

/// One probe: what to send to which upstream.
pub(crate) struct Probe<'q> {
    pub(crate) check: &'q HealthCheck,
    pub(crate) upstream: &'q Upstream,
    /// The name of the upstream.
    pub(crate) name: &'q str,
    pub(crate) transport: &'q Transport,
    /// Where to connect from; `None` is the system's choice.
    pub(crate) source: Option<IpAddr>,
    /// The bytes of the handshake's key.
    pub(crate) nonce: [u8; 16],
    /// Whether a handshake names an origin, as browsers do.
    pub(crate) origin: bool,
}

impl Probe<'_> {
    /// The value of the Host header.
    fn host(&self) -> &str {
        let name = self.name;
        let own = if name.starts_with("unix:") { "localhost" } else { name };
        self.check.host.as_deref().unwrap_or(own)
    }

    /// The headers besides those of the protocol. Servers behind a proxy redirect requests that did not
    /// come over HTTPS, and Action Cable accepts a handshake from the page of its own host only.
    fn headers(&self) -> Vec<(&str, String)> {
        let mut headers =
            vec![("User-Agent", AGENT.to_owned()), ("X-Forwarded-Proto", "https".to_owned())];
        if self.origin {
            headers.push(("Origin", format!("https://{}", self.host())));
        }
        let own = &self.check.headers;
        headers.retain(|(name, _)| !own.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)));
        let own = own.iter().filter(|(_, value)| !value.is_empty());
        headers.extend(own.map(|(name, value)| (&**name, value.to_string())));
        headers
    }

    /// Whether a response with this status passes.
    fn expects(&self, status: u16) -> bool {
        match (&self.check.expect, &self.check.kind) {
            (Some(expected), _) => expected.contains(status),
            (None, CheckKind::WebSocket(_)) => status == 101,
            (None, _) => (200..=399).contains(&status),
        }
    }
}

/// Runs a check. A WebSocket check whose handshake is declined is repeated with an Origin header, or
/// without it if it had one; returns whether the last handshake had one. Some servers accept only
/// pages of their own host, others only those of a list, to which a check does not belong.
pub(crate) async fn run_check(mut request: Probe<'_>) -> (Result<(), ProbeError>, bool) {
    let answer = probe(&request, request.check.timeout).await;
    let is_handshake = matches!(request.check.kind, CheckKind::WebSocket(_));
    let configured = |(name, _): &(Box<str>, Box<str>)| name.eq_ignore_ascii_case("origin");
    let declined = matches!(answer, Err(ProbeError::Status(_)));
    if !is_handshake || !declined || request.check.headers.iter().any(configured) {
        return (answer, request.origin);
    }
    request.origin = !request.origin;
    match probe(&request, request.check.timeout).await {
        Ok(()) => (Ok(()), request.origin),
        Err(_) => (answer, !request.origin),
    }
}

/// Runs a probe.
async fn probe(probe: &Probe<'_>, timeout: Duration) -> Result<(), ProbeError> {
    let run = async {
        match probe.upstream.address() {
            UpstreamAddress::Tcp(address) => {
                let stream = connect(*address, probe.source).await.map_err(ProbeError::Broken)?;
                begin(stream, probe).await
            }
            UpstreamAddress::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(ProbeError::Broken)?;
                begin(stream, probe).await
            }
        }
    };
    tokio::time::timeout(timeout, run).await.unwrap_or(Err(ProbeError::Silent(timeout)))
}

/// Connects as the workers do.
async fn connect(address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(start_connect_from(address, source)?)?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

/// Sends the PROXY header and does the TLS handshake, if configured.
async fn begin(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    probe: &Probe<'_>,
) -> Result<(), ProbeError> {
    if matches!(probe.check.kind, CheckKind::Off | CheckKind::Tcp) {
        return Ok(());
    }
    if let Some(version) = probe.transport.proxy_header {
        // UNKNOWN or LOCAL: a probe has no client.
        let mut header = Vec::new();
        wire::encode_proxy_header(&mut header, version, None);
        stream.write_all(&header).await.map_err(ProbeError::Broken)?;
    }
    let Some(tls) = &probe.transport.tls else { return converse(stream, probe).await };
    let client = tls.of(probe.name);
    let (config, name) =
        client.map_err(|error| ProbeError::Broken(io::Error::other(error)))?.parts();
    let stream =
        TlsConnector::from(config).connect(name, stream).await.map_err(ProbeError::Broken)?;
    converse(stream, probe).await
}

async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    probe: &Probe<'_>,
) -> Result<(), ProbeError> {
    let (kind, host) = (&probe.check.kind, probe.host());
    let headers = probe.headers();
    let headers = headers.iter().map(|(name, value)| (*name, value.as_str()));
    let key = encode_key(probe.nonce);
    let mut request = Vec::new();
    match kind {
        CheckKind::Off | CheckKind::Tcp => return Ok(()),
        CheckKind::Http(path) => {
            let headers = [("Host", host)].into_iter().chain(headers);
            let headers = headers.chain([("Connection", "close")]);
            encode_request_head(&mut request, "GET", path, headers);
        }
        CheckKind::WebSocket(path) => {
            encode_upgrade_request(&mut request, host, path, &key, &[], false, headers);
        }
    }
    stream.write_all(&request).await.map_err(ProbeError::Broken)?;
    // A TLS stream may buffer it otherwise.
    stream.flush().await.map_err(ProbeError::Broken)?;
    let mut received = Vec::with_capacity(1024);
    for _ in 0..=INTERIM_MAX {
        let end = read_head(&mut stream, &mut received).await?;
        let head = received.get(..end).unwrap_or_default();
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let response = parse_response(head, &mut headers).map_err(ProbeError::NotHttp)?;
        // Another response follows. 101 is the only final one of them.
        if matches!(response.status, 100 | 102..=199) {
            received.drain(..end);
            continue;
        }
        if !probe.expects(response.status) {
            return Err(ProbeError::Status(response.status));
        }
        if response.status == 101 {
            check_upgrade_response(&response, &key, &[], false).map_err(ProbeError::NotHttp)?;
        }
        return Ok(());
    }
    Err(ProbeError::Interim)
}

/// Maximum number of interim responses (1xx) to one probe, as for requests.
const INTERIM_MAX: usize = 8;

/// The User-Agent of probes.
const AGENT: &str = "standfast-proxy";

/// Reads until `received` begins with a head; returns its length.
async fn read_head(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut Vec<u8>,
) -> Result<usize, ProbeError> {
    let limits = Limits::default();
    let mut scanner = HeadScanner::default();
    loop {
        if let Status::Complete(end) =
            scanner.scan(received, &limits).map_err(ProbeError::NotHttp)?
        {
            return Ok(end);
        }
        if stream.read_buf(received).await.map_err(ProbeError::Broken)? == 0 {
            return Err(ProbeError::Ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use wire::ProxyVersion;

    use super::*;

    /// Probes a listener without TLS.
    fn probe_at(
        listener: &TcpListener,
        kind: &str,
        transport: &Transport,
        timeout: Duration,
    ) -> Result<(), ProbeError> {
        let address = UpstreamAddress::Tcp(listener.local_addr().unwrap());
        let upstream = Upstream::new(1, "a.de:80", address, 0);
        // The accept key of these bytes is that of RFC 6455 section 1.3.
        let check = HealthCheck { kind: kind.parse().unwrap(), timeout, ..HealthCheck::default() };
        let nonce = *b"the sample nonce";
        let request = Probe {
            check: &check,
            upstream: &upstream,
            name: "a.de:80",
            transport,
            source: None,
            nonce,
            origin: false,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(probe(&request, timeout))
    }

    /// Probes a server that sends `answer` after its first read.
    fn probe_answer(kind: &str, answer: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = accepting.accept().unwrap();
            let _ = stream.read(&mut [0; 2048]);
            let _ = stream.write_all(answer);
        });
        let answer = probe_at(&listener, kind, &Transport::default(), Duration::from_secs(20));
        server.join().unwrap();
        answer.map_err(|failed| failed.to_string())
    }

    #[test]
    fn only_the_expected_response_passes() {
        let ok: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(probe_answer("http:/", ok), Ok(()));
        assert_eq!(probe_answer("tcp", b""), Ok(()));
        let hints: &[u8] =
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(probe_answer("http:/", hints), Ok(()), "the final response counts");
        let wrong = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n";
        let right = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        assert_eq!(probe_answer("websocket:/", right), Ok(()));
        for (kind, answer, why) in [
            ("http:/", &b"HTTP/1.1 503 No\r\n\r\n"[..], "503"),
            ("http:/", b"HTTP/1.1 200 O", "closed before"),
            ("http:/", b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 503 No\r\n\r\n", "503"),
            ("http:/", b"HTTP/1.1 103 Early Hints\r\n\r\n", "closed before"),
            ("http:/", b"SSH-2.0-x\r\n\r\n", "invalid response"),
            ("websocket:/", ok, "204"),
            ("websocket:/", wrong, "invalid response"),
        ] {
            let error = probe_answer(kind, answer).unwrap_err();
            assert!(error.contains(why), "{kind}: {error}");
        }
    }

    /// A head that never ends is not read to the timeout.
    #[test]
    fn an_endless_response_fails_the_check() {
        for line in [&b"X-Long: "[..], b"X: y\r\n", b"\r\nHTTP/1.1 103 Early Hints\r\n"] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let accepting = listener.try_clone().unwrap();
            let server = thread::spawn(move || {
                let (mut stream, _) = accepting.accept().unwrap();
                let first: &[u8] = match line.starts_with(b"X") {
                    true => b"HTTP/1.1 200 OK\r\n",
                    false => b"HTTP/1.1 103 Early Hints\r\n",
                };
                let mut sent = stream.write(first).unwrap();
                // It ends with the connection.
                while let Ok(more) = stream.write(line) {
                    sent += more;
                }
                sent
            });
            let plain = Transport::default();
            let failed = probe_at(&listener, "http:/", &plain, Duration::from_secs(20));
            let endless = matches!(failed, Err(ProbeError::NotHttp(_) | ProbeError::Interim));
            assert!(endless, "{failed:?}");
            server.join().unwrap();
        }
    }

    #[test]
    fn a_silent_or_absent_upstream_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (plain, short) = (Transport::default(), Duration::from_millis(50));
        assert!(matches!(probe_at(&listener, "http:/", &plain, short), Err(ProbeError::Silent(_))));
        let address = UpstreamAddress::Tcp(listener.local_addr().unwrap());
        drop(listener);
        let absent = Upstream::new(1, "a.de:80", address, 0);
        let check = HealthCheck { kind: CheckKind::Tcp, ..HealthCheck::default() };
        let (upstream, transport) = (&absent, &plain);
        let (name, nonce) = ("a.de:80", [0; 16]);
        let (source, origin) = (None, false);
        let request = Probe { check: &check, upstream, name, transport, source, nonce, origin };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(probe(&request, Duration::from_secs(20)));
        assert!(matches!(answer, Err(ProbeError::Broken(_))));
    }

    #[test]
    fn a_probe_sends_a_proxy_header_without_a_client() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = accepting.accept().unwrap();
            let (mut received, mut got) = (Vec::new(), [0; 2048]);
            while !received.ends_with(b"\r\n\r\n") {
                let more = stream.read(&mut got).unwrap();
                assert!(more > 0, "{}", received.escape_ascii());
                received.extend_from_slice(&got[..more]);
            }
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            received
        });
        let transport = Transport { proxy_header: Some(ProxyVersion::V1), tls: None };
        probe_at(&listener, "http:/health", &transport, Duration::from_secs(20)).unwrap();
        let received = server.join().unwrap();
        assert!(
            received.starts_with(b"PROXY UNKNOWN\r\nGET /health HTTP/1.1\r\nHost: a.de:80\r\n")
        );
    }
}
