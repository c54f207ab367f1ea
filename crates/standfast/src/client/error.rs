//! [`ClientError`]: why there is no connection; [`Lost`]: how one ended.

use std::fmt;
use std::io;

use engine::{Closed, ServerFault, TlsError};

use crate::CloseCode;

/// Why there is no connection. `Debug` is the same text as `Display`.
#[non_exhaustive]
pub enum ClientError {
    /// A URL that cannot be connected to, or a header or subprotocol that cannot be sent.
    Options(String),
    /// No certificates of authorities, or a name that no certificate has.
    Tls(TlsError),
    /// No thread or no descriptors for the client.
    Worker(io::Error),
    /// The connection could not be opened, or has ended.
    Lost(Lost),
}

/// How a connection ended, or why it was not opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lost {
    /// The cause, as counted.
    pub cause: Closed,
    /// The WebSocket was open before.
    pub opened: bool,
    /// The server's close code, if it began to close and sent one.
    pub code: Option<CloseCode>,
    /// The server's reason, at most 123 bytes; usually empty.
    pub reason: Box<str>,
    /// The status with which the server has refused the handshake.
    pub status: Option<u16>,
    /// More for people, such as why a certificate was not accepted.
    pub detail: Option<Box<str>>,
    /// It is opened again after this time; `None` if it is not.
    pub again_in: Option<std::time::Duration>,
}

impl Lost {
    pub(super) fn new(cause: Closed, opened: bool) -> Lost {
        let (code, reason, status) = (None, "".into(), None);
        Lost { cause, opened, code, reason, status, detail: None, again_in: None }
    }

    pub(super) fn with_fault(mut self, fault: Option<ServerFault>) -> Lost {
        match fault {
            Some(ServerFault::Status(status)) => self.status = Some(status),
            Some(ServerFault::Violation(violation)) => {
                self.detail = Some(violation.to_string().into());
            }
            _ => {}
        }
        self
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cause, self.status, self.code) {
            (_, Some(status), _) => {
                write!(f, "the server answered {status} to the handshake, expected 101")?;
            }
            (Closed::ByPeer, _, Some(code)) => write!(f, "closed by the server: {}", code.0)?,
            (Closed::ByPeer, ..) => f.write_str("closed by the server")?,
            (Closed::ByUs, ..) => f.write_str("closed by this client")?,
            (Closed::Gone, ..) => f.write_str("the server has ended the connection")?,
            (Closed::Reset, ..) => f.write_str("connection reset by the server")?,
            (Closed::ConnectRefused, ..) => f.write_str("connection refused")?,
            (Closed::HandshakeTimeout, ..) => f.write_str("no answer to the handshake in time")?,
            (Closed::ConnectTimeout, ..) => f.write_str("no answer to the connect in time")?,
            (Closed::IdleTimeout, ..) => f.write_str("the server was silent for too long")?,
            (Closed::TlsFailed, ..) => f.write_str("TLS has failed")?,
            (Closed::HandshakeRejected | Closed::Violation, ..) => {
                f.write_str("the server violated the protocol")?;
            }
            (cause, ..) => write!(f, "connection ended: {cause}")?,
        }
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Options(what) => f.write_str(what),
            ClientError::Tls(error) => write!(f, "TLS: {error}"),
            ClientError::Worker(error) => write!(f, "cannot start the client: {error}"),
            ClientError::Lost(lost) => lost.fmt(f),
        }
    }
}

impl fmt::Debug for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClientError::Tls(error) => Some(error),
            ClientError::Worker(error) => Some(error),
            _ => None,
        }
    }
}
