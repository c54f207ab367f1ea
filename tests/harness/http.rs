//! Just enough HTTP/1.1 to ask and to read an answer: test-only, trusting the far side.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// An answer: status, headers with their names in lower case, body by its Content-Length.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    /// The value of header `name`, given in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// `GET path`.
pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
}

/// `POST path` with `body`, without a Content-Type.
pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Response {
    let length = body.len();
    ask(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ),
    )
}

/// Sends `request`, which must end its connection, and reads the answer.
pub(crate) fn ask(address: SocketAddr, request: &str) -> Response {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream.write_all(request.as_bytes()).expect("the request is taken");
    read_response(&mut stream, &mut Vec::new())
}

/// Reads one answer; bytes that follow it are left in `pending`.
pub(crate) fn read_response(stream: &mut impl Read, pending: &mut Vec<u8>) -> Response {
    let head_end = loop {
        if let Some(at) = pending.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        assert!(read_more(stream, pending), "closed within a head: {}", pending.escape_ascii());
    };
    let head = String::from_utf8(pending.drain(..head_end).collect()).expect("a head is text");
    let mut lines = head.lines();
    let status_line = lines.next().unwrap_or_default();
    let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut response = Response {
        status: status.unwrap_or_else(|| panic!("no status in {status_line:?}")),
        headers,
        body: String::new(),
    };
    let length = response.header("content-length").map_or(0, |value| value.parse().unwrap_or(0));
    while pending.len() < length {
        assert!(read_more(stream, pending), "closed within a body of {length} bytes");
    }
    response.body = String::from_utf8_lossy(&pending[..length]).into_owned();
    pending.drain(..length);
    response
}

/// Appends what the next read brings; false at the end of the stream or after a reset.
pub(crate) fn read_more(stream: &mut impl Read, pending: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 16 * 1024];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(count) => {
            pending.extend_from_slice(&buffer[..count]);
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
        Err(error) => panic!("read: {error}"),
    }
}
