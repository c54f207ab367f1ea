//! Asking one upstream once: connect, and if it is to say something, one small request. The answer's
//! head is read strictly, up to its limit, and its body not at all.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, encode_request_head, parse_response};
use wire::websocket::{check_upgrade_response, encode_key, encode_upgrade_request};
use wire::{Limits, Status, Violation};

use super::How;
use crate::balance::UpstreamAddress;

/// Why an upstream did not pass.
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

/// Asks. `host` stands in the request, `nonce` makes the handshake's key.
pub(crate) async fn ask(
    address: &UpstreamAddress,
    how: &How,
    host: &str,
    nonce: [u8; 16],
    timeout: Duration,
) -> Result<(), Failed> {
    let asked = async {
        match address {
            UpstreamAddress::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(Failed::Broken)?;
                converse(stream, how, host, nonce).await
            }
            UpstreamAddress::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(Failed::Broken)?;
                converse(stream, how, host, nonce).await
            }
        }
    };
    tokio::time::timeout(timeout, asked).await.unwrap_or(Err(Failed::Silent(timeout)))
}

async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    how: &How,
    host: &str,
    nonce: [u8; 16],
) -> Result<(), Failed> {
    let key = encode_key(nonce);
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

/// Who asks.
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

    use super::*;

    /// Asks a server that says `answer` to whatever it reads first.
    fn asked(how: &str, answer: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = UpstreamAddress::Tcp(listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 2048]);
            let _ = stream.write_all(answer);
        });
        let (how, timeout) = (how.parse().unwrap(), Duration::from_secs(20));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The accept key of these bytes is that of RFC 6455 section 1.3.
        let nonce = *b"the sample nonce";
        let answer = runtime.block_on(ask(&address, &how, "a.de", nonce, timeout));
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
        let address = UpstreamAddress::Tcp(listener.local_addr().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ask = |how: &str| {
            let (how, timeout) = (how.parse().unwrap(), Duration::from_millis(50));
            runtime.block_on(ask(&address, &how, "a.de", [0; 16], timeout))
        };
        assert!(matches!(ask("http:/"), Err(Failed::Silent(_))));
        drop(listener);
        assert!(matches!(ask("tcp"), Err(Failed::Broken(_))));
    }
}
