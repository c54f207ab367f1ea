//! [`HttpPublish`]: publishing with one HTTP request each (RFC 9112) over a kept-alive connection. It
//! blocks, as each publisher has its own thread. It does not support TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use engine::sys::process::now_ns;
use serde_json::Value;
use wire::http::{BodyDecoder, BodyEvent, HeadScanner, encode_request_head, parse_response};
use wire::{Limits, Status};

use crate::workload::fanout::publisher::{Failure, PublishTransport};
use crate::{Cause, Endpoint, Route};

/// Timeout of a connect and of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A connection idle for longer is not reused: its server may be closing it, and it would be unknown
/// whether a request lost in that was accepted.
const REST_NS: u64 = 1_000_000_000;
/// The most headers of a response.
const HEADERS_MAX: usize = 100;

/// The settings of publishing over HTTP.
#[derive(Clone, Debug)]
pub struct HttpPublish {
    /// The target.
    pub endpoint: Endpoint,
    /// Additional headers.
    pub headers: Vec<(String, String)>,
    /// The body. `$DATA` is replaced by the message as a JSON string without quotes and, with several
    /// streams, `$STREAM` by the name of the stream as JSON.
    pub body: String,
}

impl HttpPublish {
    /// The body for a topic of `standfast serve`.
    #[must_use]
    pub fn body_for(topic: &str) -> String {
        format!("{{\"topic\":{},\"data\":\"$DATA\"}}", Value::from(topic))
    }

    /// The body for several topics of `standfast serve`.
    pub const BODY_FOR_ALL: &str = r#"{"topic":$STREAM,"data":"$DATA"}"#;
    /// The body for several streams of AnyCable's `/_broadcast`.
    pub const BROADCAST_BODY_FOR_ALL: &str = r#"{"stream":$STREAM,"data":"\"$DATA\""}"#;

    /// The body for a stream of AnyCable's `/_broadcast`: `data` is JSON in a string.
    #[must_use]
    pub fn broadcast_body_for(stream: &str) -> String {
        format!(r#"{{"stream":{},"data":"\"$DATA\""}}"#, Value::from(stream))
    }
}

/// The HTTP transport of one publisher.
pub(crate) struct Http {
    http: HttpPublish,
    /// The connection, and when it was last used.
    connection: Option<(TcpStream, u64)>,
}

impl PublishTransport for Http {
    fn publish(&mut self, stream: &str, data: &str) -> Result<(), Failure> {
        let failure = |error: &io::Error, certain| {
            let cause = match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
                kind => kind.to_string(),
            };
            Failure { cause, certain }
        };
        if let Route::Unresolved(_) = self.http.endpoint.route {
            // The name is resolved only once.
            return Err(Failure { cause: Cause::Dns.name().to_owned(), certain: true });
        }
        let request = self.request(stream, data);
        let kept = self.connection.take().filter(|(_, used_ns)| now_ns() < used_ns + REST_NS);
        let mut connection = match kept {
            Some((connection, _)) => connection,
            None => self.connect().map_err(|error| failure(&error, true))?,
        };
        let sent = connection.write_all(&request);
        let answered = sent.and_then(|()| answer(&mut connection));
        let (status, keep) = answered.map_err(|error| failure(&error, false))?;
        self.connection = keep.then(|| (connection, now_ns()));
        if (200..300).contains(&status) {
            return Ok(());
        }
        Err(Failure { cause: format!("HTTP {status}"), certain: true })
    }
}

impl Http {
    pub(crate) fn new(http: HttpPublish) -> Http {
        Http { http, connection: None }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let connection = TcpStream::connect_timeout(&self.http.endpoint.address, TIMEOUT)?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    fn request(&self, stream: &str, data: &str) -> Vec<u8> {
        let HttpPublish { endpoint, headers, body } = &self.http;
        // A publication needs no escaping: it consists of letters, digits and spaces.
        let mut body = body.replace("$DATA", data);
        if !stream.is_empty() {
            body = body.replace("$STREAM", stream);
        }
        let length = body.len().to_string();
        let own = [
            ("Host", endpoint.host.as_str()),
            ("Content-Type", "application/json"),
            ("Content-Length", &length),
        ];
        let more = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut request = Vec::with_capacity(256 + body.len());
        encode_request_head(&mut request, "POST", &endpoint.path, own.into_iter().chain(more));
        request.extend_from_slice(body.as_bytes());
        request
    }
}

/// Reads a complete response. Returns its status, and whether the connection can be reused.
fn answer(connection: &mut TcpStream) -> io::Result<(u16, bool)> {
    let limits = Limits::default();
    let wrong = |violation: wire::Violation| io::Error::new(ErrorKind::InvalidData, violation);
    let (mut scanner, mut bytes) = (HeadScanner::default(), Vec::new());
    let end = loop {
        if let Status::Complete(end) = scanner.scan(&bytes, &limits).map_err(wrong)? {
            break end;
        }
        read_more(connection, &mut bytes)?;
    };
    let rest = bytes.split_off(end);
    let mut headers = [wire::http::EMPTY_HEADER; HEADERS_MAX];
    let response = parse_response(&bytes, &mut headers).map_err(wrong)?;
    let keep = wire::http::keep_alive(&response);
    let mut body = BodyDecoder::for_response(&response, "POST", &limits).map_err(wrong)?;
    let until_close = body.is_until_close();
    let (status, mut bytes) = (response.status, rest);
    while !body.is_done() {
        match body.decode(&bytes).map_err(wrong)? {
            Status::Complete((used, BodyEvent::End)) => {
                bytes.drain(..used);
                break;
            }
            Status::Complete((used, BodyEvent::Data(_))) => drop(bytes.drain(..used)),
            Status::Partial => match read_more(connection, &mut bytes) {
                Err(error) if until_close && error.kind() == ErrorKind::UnexpectedEof => break,
                read => read?,
            },
        }
    }
    Ok((status, keep && !until_close))
}

fn read_more(connection: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut some = [0; 4_096];
    let read = connection.read(&mut some)?;
    if read == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    bytes.extend_from_slice(some.get(..read).unwrap_or_default());
    Ok(())
}
