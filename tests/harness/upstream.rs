//! An upstream server controlled by the test: it accepts connections, reads requests and sends arbitrary
//! bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::http::read_more;
use super::socket::ACCEPT;
use super::{PATIENCE, eventually};

/// The listener of an upstream.
pub(crate) struct Upstream(TcpListener);

impl Upstream {
    /// Listens on a free port.
    pub(crate) fn new() -> Self {
        Self::at("127.0.0.1")
    }

    /// Listens on a free port of this address.
    pub(crate) fn at(address: &str) -> Self {
        Self(TcpListener::bind((address, 0)).expect("a free port"))
    }

    /// Returns the listening address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    /// Accepts the next connection.
    pub(crate) fn accept(&self) -> Leg {
        let mut leg = None;
        self.0.set_nonblocking(true).expect("it can be told not to wait");
        eventually("the proxy has connected", || {
            leg = self.0.accept().ok();
            leg.is_some()
        });
        let (stream, _) = leg.expect("just seen");
        stream.set_nonblocking(false).expect("it can be told to wait");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        Leg { stream, pending: Vec::new() }
    }

    /// Accepts all waiting connections.
    pub(crate) fn each_waiting(&self, mut with: impl FnMut(Leg)) {
        self.0.set_nonblocking(true).expect("it can be told not to wait");
        while let Ok((stream, _)) = self.0.accept() {
            stream.set_nonblocking(false).expect("it can be told to wait");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
            with(Leg { stream, pending: Vec::new() });
        }
    }

    /// Returns whether no connection is waiting.
    pub(crate) fn is_alone(&self) -> bool {
        self.0.set_nonblocking(true).expect("it can be told not to wait");
        self.0.accept().is_err()
    }

    /// Accepts the next connection and answers its WebSocket handshake.
    pub(crate) fn tunnel(&self) -> Leg {
        let mut leg = self.accept();
        leg.head();
        leg.say(switching());
        leg
    }
}

/// One connection from the proxy.
pub(crate) struct Leg {
    pub(crate) stream: TcpStream,
    pending: Vec<u8>,
}

impl Leg {
    /// Wraps an accepted connection.
    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        Leg { stream, pending: Vec::new() }
    }

    /// Reads the head of the next request.
    pub(crate) fn head(&mut self) -> String {
        let end = loop {
            if let Some(at) = self.pending.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let more = read_more(&mut self.stream, &mut self.pending);
            assert!(more, "ended with {}", self.pending.escape_ascii());
        };
        String::from_utf8(self.pending.drain(..end).collect()).expect("a head is text")
    }

    /// As [`Leg::head`]; `None` at the end of the connection.
    pub(crate) fn head_if_any(&mut self) -> Option<String> {
        while !self.pending.windows(4).any(|four| four == b"\r\n\r\n") {
            if !read_more(&mut self.stream, &mut self.pending) {
                return None;
            }
        }
        Some(self.head())
    }

    /// Reads `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.pending.len() < count {
            let more = read_more(&mut self.stream, &mut self.pending);
            assert!(more, "ended with {}", self.pending.escape_ascii());
        }
        self.pending.drain(..count).collect()
    }

    /// Returns bytes that were received but not read yet.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.pending
    }

    /// Sends bytes.
    pub(crate) fn say(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).expect("the proxy takes it");
    }

    /// Returns whether the connection ends without more bytes, by FIN or RST.
    pub(crate) fn ends(&mut self) -> bool {
        self.pending.is_empty() && !read_more(&mut self.stream, &mut self.pending)
    }

    /// Returns whether nothing arrives for 100 ms.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("it can be set");
        let silent = self.stream.read(&mut [0]).is_err_and(|error| {
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        });
        self.stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
        silent
    }

    /// Shuts down the sending side.
    pub(crate) fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection by RST.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO))
            .expect("the time to linger can be set");
    }
}

/// Returns the correct answer to the handshakes of this harness.
pub(crate) fn switching() -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
    )
}
