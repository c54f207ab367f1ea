//! One probe of one upstream: connects as a tunnel would, with the pool's PROXY header and TLS, and
//! sends one small request unless the check is `tcp`. The head of the response is parsed strictly, up
//! to its limit; the body is not read.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, encode_request_head, parse_response};
use wire::websocket::{check_upgrade_response, encode_key, encode_upgrade_request};
use wire::{Limits, Status, Violation};

use super::How;
use crate::balance::{Upstream, UpstreamAddress};
use crate::config::Outgoing;

/// Why a probe failed.
#[derive(Debug)]
pub(crate) enum Failed {
    Silent(Duration),
    Broken(io::Error),
    NotHttp(Violation),
    Status(u16),
    Ended,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failed::Silent(time) => write!(f, "no answer within {time:?}"),
            Failed::Broken(error) => error.fmt(f),
            Failed::NotHttp(rule) => write!(f, "the answer is not as agreed: {rule}"),
            Failed::Status(status) => write!(f, "it answered {status}"),
            Failed::Ended => f.write_str("it closed before it had answered"),
        }
    }
}

/// What is asked of whom.
pub(crate) struct Question<'q> {
    pub(crate) how: &'q How,
    pub(crate) upstream: &'q Upstream,
    pub(crate) outgoing: &'q Outgoing,
    /// What makes the handshake's key.
    pub(crate) nonce: [u8; 16],
}

impl Question<'_> {
    /// What stands in the Host header.
    fn host(&self) -> &str {
        let name = self.upstream.name();
        if name.starts_with("unix:") { "localhost" } else { name }
    }
}

/// Asks.
pub(crate) async fn ask(question: &Question<'_>, timeout: Duration) -> Result<(), Failed> {
    let asked = async {
        match question.upstream.address() {
            UpstreamAddress::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(Failed::Broken)?;
                begin(stream, question).await
            }
            UpstreamAddress::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(Failed::Broken)?;
                begin(stream, question).await
            }
        }
    };
    tokio::time::timeout(timeout, asked).await.unwrap_or(Err(Failed::Silent(timeout)))
}

/// Sends the PROXY header and does the TLS handshake, if configured.
async fn begin(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    question: &Question<'_>,
) -> Result<(), Failed> {
    if matches!(question.how, How::Off | How::Tcp) {
        return Ok(());
    }
    if let Some(version) = question.outgoing.proxy_header {
        // On behalf of nobody but itself.
        let mut header = Vec::new();
        wire::encode_proxy_header(&mut header, version, None);
        stream.write_all(&header).await.map_err(Failed::Broken)?;
    }
    let Some(tls) = &question.outgoing.tls else { return converse(stream, question).await };
    let client = tls.of(question.upstream.name());
    let (config, name) = client.map_err(|error| Failed::Broken(io::Error::other(error)))?.parts();
    let stream = TlsConnector::from(config).connect(name, stream).await.map_err(Failed::Broken)?;
    converse(stream, question).await
}

async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    question: &Question<'_>,
) -> Result<(), Failed> {
    let (how, host) = (question.how, question.host());
    let key = encode_key(question.nonce);
    let mut request = Vec::new();
    match how {
        How::Off | How::Tcp => return Ok(()),
        How::Http(path) => {
            let headers = [("Host", host), ("User-Agent", AGENT), ("Connection", "close")];
            encode_request_head(&mut request, "GET", path, headers);
        }
        How::WebSocket(path) => {
            let headers = [("User-Agent", AGENT)];
            encode_upgrade_request(&mut request, host, path, &key, &[], false, headers);
        }
    }
    stream.write_all(&request).await.map_err(Failed::Broken)?;
    // Over TLS it may be kept for more.
    stream.flush().await.map_err(Failed::Broken)?;
    let head = read_head(&mut stream).await?;
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(&head, &mut headers).map_err(Failed::NotHttp)?;
    match (how, response.status) {
        (How::WebSocket(_), 101) => {
            check_upgrade_response(&response, &key, &[], false).map_err(Failed::NotHttp)?;
            Ok(())
        }
        (How::Http(_), 200..=399) => Ok(()),
        (_, status) => Err(Failed::Status(status)),
    }
}

/// The User-Agent of probes.
const AGENT: &str = "standfast-proxy";

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, Failed> {
    let limits = Limits::default();
    let mut scanner = HeadScanner::default();
    let mut head = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut head).await.map_err(Failed::Broken)? == 0 {
            return Err(Failed::Ended);
        }
        if let Status::Complete(end) = scanner.scan(&head, &limits).map_err(Failed::NotHttp)? {
            head.truncate(end);
            return Ok(head);
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

    /// Asks whoever listens there in the clear, as a check does.
    fn asked_at(
        listener: &TcpListener,
        how: &str,
        outgoing: &Outgoing,
        timeout: Duration,
    ) -> Result<(), Failed> {
        let address = UpstreamAddress::Tcp(listener.local_addr().unwrap());
        let upstream = Upstream::new(1, "a.de:80", address, 0);
        // The accept key of these bytes is that of RFC 6455 section 1.3.
        let (how, nonce) = (how.parse().unwrap(), *b"the sample nonce");
        let question = Question { how: &how, upstream: &upstream, outgoing, nonce };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ask(&question, timeout))
    }

    /// Asks a server that says `answer` to whatever it reads first.
    fn asked(how: &str, answer: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = accepting.accept().unwrap();
            let _ = stream.read(&mut [0; 2048]);
            let _ = stream.write_all(answer);
        });
        let answer = asked_at(&listener, how, &Outgoing::default(), Duration::from_secs(20));
        server.join().unwrap();
        answer.map_err(|failed| failed.to_string())
    }

    #[test]
    fn an_answer_passes_only_if_it_is_the_one_asked_for() {
        let ok: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(asked("http:/", ok), Ok(()));
        assert_eq!(asked("tcp", b""), Ok(()));
        let wrong = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n";
        let right = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        assert_eq!(asked("websocket:/", right), Ok(()));
        for (how, answer, why) in [
            ("http:/", &b"HTTP/1.1 503 No\r\n\r\n"[..], "503"),
            ("http:/", b"HTTP/1.1 200 O", "closed before"),
            ("http:/", b"SSH-2.0-x\r\n\r\n", "not as agreed"),
            ("websocket:/", ok, "204"),
            ("websocket:/", wrong, "not as agreed"),
        ] {
            let error = asked(how, answer).unwrap_err();
            assert!(error.contains(why), "{how}: {error}");
        }
    }

    #[test]
    fn who_is_silent_or_not_there_does_not_pass() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (plain, short) = (Outgoing::default(), Duration::from_millis(50));
        assert!(matches!(asked_at(&listener, "http:/", &plain, short), Err(Failed::Silent(_))));
        let address = UpstreamAddress::Tcp(listener.local_addr().unwrap());
        drop(listener);
        let gone = Upstream::new(1, "a.de:80", address, 0);
        let question =
            Question { how: &How::Tcp, upstream: &gone, outgoing: &plain, nonce: [0; 16] };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(ask(&question, Duration::from_secs(20)));
        assert!(matches!(answer, Err(Failed::Broken(_))));
    }

    #[test]
    fn who_wants_a_proxy_header_gets_one_that_names_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = accepting.accept().unwrap();
            let (mut said, mut got) = (Vec::new(), [0; 2048]);
            while !said.ends_with(b"\r\n\r\n") {
                let more = stream.read(&mut got).unwrap();
                assert!(more > 0, "{}", said.escape_ascii());
                said.extend_from_slice(&got[..more]);
            }
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            said
        });
        let outgoing = Outgoing { proxy_header: Some(ProxyVersion::V1), tls: None };
        asked_at(&listener, "http:/health", &outgoing, Duration::from_secs(20)).unwrap();
        let said = server.join().unwrap();
        assert!(said.starts_with(b"PROXY UNKNOWN\r\nGET /health HTTP/1.1\r\nHost: a.de:80\r\n"));
    }
}
