//! [`Closed`]: why a connection ended. Code, counters, logs and tests use this one list.

use std::fmt;

use wire::Violation;
use wire::http2::ErrorCode;

/// Why a connection ended, reported once for each.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Closed {
    /// The peer began the closing handshake (RFC 6455 section 5.5.1).
    ByPeer,
    /// We began it, and the peer answered or the close timeout passed.
    ByUs,
    /// We are shutting down (close code 1001).
    Draining,
    /// The peer ended its stream without a close frame.
    Gone,
    /// The peer reset the connection.
    Reset,
    /// The peer violated HTTP or WebSocket.
    Violation,
    /// The handshake was answered with a refusal: no such path, not allowed, not an upgrade.
    Refused,
    /// A plain HTTP exchange was completed.
    Answered,
    /// Nothing was received for the idle timeout.
    IdleTimeout,
    /// The request head, or the answer to our handshake, was not received in time.
    HandshakeTimeout,
    /// The peer read too slowly and its queue passed the limit (close code 1013).
    SlowConsumer,
    /// Our connect was refused.
    ConnectRefused,
    /// Our connect was not answered in time.
    ConnectTimeout,
    /// No free port on the source address for this destination (`EADDRNOTAVAIL`).
    NoAddress,
    /// This process or machine has no descriptors left (`EMFILE`, `ENFILE`).
    NoDescriptors,
    /// The kernel has no memory for another socket (`ENOBUFS`, `ENOMEM`).
    NoMemory,
    /// Our connect failed for another reason.
    ConnectFailed,
    /// The server rejected our handshake.
    HandshakeRejected,
    /// Ended by us at once, without a closing handshake.
    Aborted,
    /// We ended it to free resources: too many handshakes, or too little memory (503, or close code
    /// 1013).
    Shed,
    /// The peer did not speak TLS as agreed, or one side refused the other's certificate.
    TlsFailed,
    /// The peer was active, but did not complete a message (close code 1008).
    Unfinished,
    /// Nothing was acknowledged for so long that the kernel gave the peer up: it vanished, or does
    /// not read its data (`ETIMEDOUT`).
    GivenUp,
}

/// What a server did wrong, as its client sees it: details of [`Closed::HandshakeRejected`] and
/// [`Closed::Violation`], and of the ends that a [`crate::Sys`] explains.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ServerFault {
    /// It violated this rule.
    Violation(Violation),
    /// It answered our handshake with this status.
    Status(u16),
    /// It reset the stream of the connection (RFC 9113 section 6.4).
    StreamReset(ErrorCode),
    /// It does not process the stream of the connection (GOAWAY, RFC 9113 section 6.8).
    GoAway,
    /// It speaks HTTP/2 without WebSockets (RFC 8441 section 3).
    NoExtendedConnect,
    /// A proxy refused the tunnel of the HTTP/2 connection (RFC 9110 section 9.3.6).
    ProxyRefused,
    /// The HTTP/2 connection of the stream could not be opened, for this reason.
    Carrier(Closed),
}

impl Closed {
    /// Every cause, in the order of its discriminant.
    pub const ALL: [Closed; 23] = [
        Closed::ByPeer,
        Closed::ByUs,
        Closed::Draining,
        Closed::Gone,
        Closed::Reset,
        Closed::Violation,
        Closed::Refused,
        Closed::Answered,
        Closed::IdleTimeout,
        Closed::HandshakeTimeout,
        Closed::SlowConsumer,
        Closed::ConnectRefused,
        Closed::ConnectTimeout,
        Closed::NoAddress,
        Closed::NoDescriptors,
        Closed::NoMemory,
        Closed::ConnectFailed,
        Closed::HandshakeRejected,
        Closed::Aborted,
        Closed::Shed,
        Closed::TlsFailed,
        Closed::Unfinished,
        Closed::GivenUp,
    ];

    /// The name in metrics, JSON and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Closed::ByPeer => "by_peer",
            Closed::ByUs => "by_us",
            Closed::Draining => "draining",
            Closed::Gone => "gone",
            Closed::Reset => "reset",
            Closed::Violation => "violation",
            Closed::Refused => "refused",
            Closed::Answered => "answered",
            Closed::IdleTimeout => "idle_timeout",
            Closed::HandshakeTimeout => "handshake_timeout",
            Closed::SlowConsumer => "slow_consumer",
            Closed::ConnectRefused => "connect_refused",
            Closed::ConnectTimeout => "connect_timeout",
            Closed::NoAddress => "no_address",
            Closed::NoDescriptors => "no_descriptors",
            Closed::NoMemory => "no_memory",
            Closed::ConnectFailed => "connect_failed",
            Closed::HandshakeRejected => "handshake_rejected",
            Closed::Aborted => "aborted",
            Closed::Shed => "shed",
            Closed::TlsFailed => "tls_failed",
            Closed::Unfinished => "unfinished",
            Closed::GivenUp => "given_up",
        }
    }

    /// The cause that a read or write error means. An ICMP error replaces `ETIMEDOUT` (tcp(7)).
    #[must_use]
    pub(crate) fn from_io_error(error: &std::io::Error) -> Closed {
        match error.raw_os_error() {
            Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => Closed::GivenUp,
            _ => Closed::Reset,
        }
    }

    /// The cause that a connect error means.
    #[must_use]
    pub fn from_connect_error(error: &std::io::Error) -> Closed {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Closed::ConnectRefused,
            Some(libc::ETIMEDOUT) => Closed::ConnectTimeout,
            Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => Closed::NoAddress,
            Some(libc::EMFILE | libc::ENFILE) => Closed::NoDescriptors,
            Some(libc::ENOBUFS | libc::ENOMEM) => Closed::NoMemory,
            Some(libc::ECONNRESET) => Closed::Reset,
            _ => Closed::ConnectFailed,
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_listed_in_order_with_unique_names() {
        let mut names = Vec::new();
        for (number, cause) in Closed::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
            names.push(cause.name());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Closed::ALL.len());
    }
}
