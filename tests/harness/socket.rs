//! A raw client socket that can misbehave: sends WebSocket frames or arbitrary bytes.
//!
//! Not a codec: it builds any frame and reads only what a server sends (unmasked frames). Its source is RFC 6455 §4.1 and §5.2.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::PATIENCE;
use super::http::{self, Response};

/// The first byte of an unfragmented text message.
pub(crate) const TEXT: u8 = 0x81;
/// The first byte of an unfragmented binary message.
pub(crate) const BINARY: u8 = 0x82;
/// The first byte of a close frame.
pub(crate) const CLOSE: u8 = 0x88;
/// The first byte of a ping.
pub(crate) const PING: u8 = 0x89;
/// The first byte of a pong.
pub(crate) const PONG: u8 = 0x8A;

/// The key of RFC 6455 §1.3 …
pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// … and its Sec-WebSocket-Accept.
pub(crate) const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// One frame from the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// FIN, reserved bits and opcode, as on the wire.
    pub(crate) first: u8,
    pub(crate) payload: Vec<u8>,
}

/// A connection to the server under test.
pub(crate) struct Socket {
    stream: TcpStream,
    pending: Vec<u8>,
    /// What [`Socket::pour`] could not send yet, and how much it has sent.
    unsent: Vec<u8>,
    poured: usize,
}

/// Sends on the connection of a [`Socket`].
pub(crate) struct Sender(TcpStream);

impl Sender {
    /// Returns whether the kernel took the bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }
}

impl Socket {
    /// Opens a TCP connection.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("Nagle can be switched off");
        Self { stream, pending: Vec::new(), unsent: Vec::new(), poured: 0 }
    }

    /// An open WebSocket at `path`.
    pub(crate) fn open(address: SocketAddr, path: &str) -> Self {
        Self::open_with(address, path, "")
    }

    /// As [`Socket::open`], with an offer of extensions unless it is empty.
    pub(crate) fn open_with(address: SocketAddr, path: &str, extensions: &str) -> Self {
        let mut socket = Self::connect(address);
        socket.send(upgrade(path, &[("Sec-WebSocket-Extensions", extensions)]).as_bytes());
        let response = socket.response();
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.header("sec-websocket-accept"), Some(ACCEPT));
        socket
    }

    /// Returns the local address.
    pub(crate) fn local_address(&self) -> String {
        self.stream.local_addr().expect("it is connected").to_string()
    }

    /// Sends `bytes` unchanged; write errors are ignored.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// A second handle, which sends while this one reads.
    pub(crate) fn sender(&self) -> Sender {
        Sender(self.stream.try_clone().expect("a descriptor is free"))
    }

    /// Sends one masked frame.
    pub(crate) fn send_frame(&mut self, first: u8, payload: &[u8]) {
        self.send(&masked(first, payload));
    }

    /// Sends as much of `bytes` as the kernel accepts and keeps the rest. While a rest is pending, sends
    /// only that and ignores `bytes`.
    pub(crate) fn pour(&mut self, bytes: &[u8]) {
        if self.unsent.is_empty() {
            self.unsent.extend_from_slice(bytes);
        }
        self.stream.set_nonblocking(true).expect("it can be told not to wait");
        while let Ok(sent @ 1..) = self.stream.write(&self.unsent) {
            self.unsent.drain(..sent);
            self.poured += sent;
        }
        self.stream.set_nonblocking(false).expect("it can be told to wait");
    }

    /// How many bytes [`Socket::pour`] has sent.
    pub(crate) fn poured(&self) -> usize {
        self.poured
    }

    /// Ends the connection by RST.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(std::time::Duration::ZERO))
            .expect("the time to linger can be set");
    }

    /// Shuts down the sending side.
    pub(crate) fn finish_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The server's answer to a request.
    pub(crate) fn response(&mut self) -> Response {
        http::read_response(&mut self.stream, &mut self.pending)
    }

    /// Reads text until it ends with `end`.
    pub(crate) fn text_until(&mut self, end: &str) -> String {
        while !self.pending.ends_with(end.as_bytes()) {
            let more = http::read_more(&mut self.stream, &mut self.pending);
            assert!(more, "it ended with {}", String::from_utf8_lossy(&self.pending));
        }
        String::from_utf8(std::mem::take(&mut self.pending)).expect("text")
    }

    /// Appends the next received bytes; returns false at the end.
    pub(crate) fn take(&mut self, into: &mut Vec<u8>) -> bool {
        into.append(&mut self.pending);
        http::read_more(&mut self.stream, into)
    }

    /// The next frame; `None` once the server has closed the connection.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, size)) = parse(&self.pending) {
                self.pending.drain(..size);
                return Some(frame);
            }
            if !http::read_more(&mut self.stream, &mut self.pending) {
                let rest = self.pending.len();
                assert!(rest == 0, "closed {rest} bytes into a frame");
                return None;
            }
        }
    }

    /// Returns the code of the next close frame and skips other frames.
    pub(crate) fn close_code(&mut self) -> u16 {
        loop {
            let frame = self.frame().expect("a close frame before the end");
            if frame.first == CLOSE {
                let code = frame.payload.first_chunk().expect("a close frame with a code");
                return u16::from_be_bytes(*code);
            }
        }
    }

    /// Returns whether the server closes the connection without another frame.
    pub(crate) fn ends(&mut self) -> bool {
        self.frame().is_none()
    }
}

/// Returns a valid upgrade request for `path`, with headers replaced or added by `changes`. An empty
/// value removes a header.
pub(crate) fn upgrade(path: &str, changes: &[(&str, &str)]) -> String {
    let right = [
        ("Host", "127.0.0.1"),
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Key", KEY),
        ("Sec-WebSocket-Version", "13"),
    ];
    let changed = |name: &str| changes.iter().any(|(other, _)| *other == name);
    let kept = right.iter().filter(|(name, _)| !changed(name));
    let headers: String = kept
        .chain(changes.iter().filter(|(_, value)| !value.is_empty()))
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!("GET {path} HTTP/1.1\r\n{headers}\r\n")
}

/// A masked frame with the shortest length form.
pub(crate) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xFA, 0x21, 0x3D];
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// Returns the first frame of `bytes` and its size once it is complete.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Frame, usize)> {
    let (&first, &second) = (bytes.first()?, bytes.get(1)?);
    assert!(second & 0x80 == 0, "a server masks no frame (§5.1)");
    let (length, head) = match second {
        126 => (u64::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?)), 4),
        127 => (u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?), 10),
        length => (u64::from(length), 2),
    };
    let size = head + usize::try_from(length).expect("a frame fits memory");
    let payload = bytes.get(head..size)?.to_vec();
    Some((Frame { first, payload }, size))
}
