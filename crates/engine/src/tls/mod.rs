//! TLS 1.2 and 1.3 (RFC 5246, RFC 8446) under a connection: the state of one connection ([`Tls`]),
//! the interface of a record layer ([`Session`]), and the configuration ([`TlsServer`],
//! [`TlsClient`]).
//!
//! A connection keeps its session and, while something is incomplete, its bytes: a record of which
//! the rest has not arrived, ciphertext that the kernel had no room for. Everything else is in
//! buffers of the worker. Queues hold plaintext, so that dropping removes complete messages; only
//! what is sent now is encrypted.
//!
//! What it is not: it reads no files, and the library behind [`Session`] is visible outside this
//! folder only in [`TlsClient::parts`] and [`TlsServer::config`].

mod client;
mod pem;
mod receive;
mod server;
mod server_name;
mod session;
mod standalone;
#[cfg(test)]
mod tests;
mod transmit;

pub use self::client::{TlsClient, TlsTrust};
pub use self::pem::{TlsError, TlsIdentity};
pub use self::server::{ClientAuth, TlsServer, TlsVersion};
pub use self::standalone::{TlsSession, TlsState};
pub(crate) use self::transmit::Transmitter;

use crate::limits::TLS_HANDSHAKE_BYTES;

/// The TLS state of one connection.
pub(crate) struct Tls {
    session: Box<dyn Session>,
    /// Ciphertext that waits for room in the kernel: at most a few records.
    out: Vec<u8>,
    /// Incomplete ciphertext: the front of a record, or of a handshake message.
    partial: Vec<u8>,
    /// The handshake has been completed.
    opened: bool,
    /// Our last record is written: close_notify or an alert.
    ended: bool,
    /// The peer has sent close_notify.
    close_notify_received: bool,
    /// The name that the client asks for was reported, if it is to be.
    named: bool,
    /// What precedes TLS has been read, if anything does; until then `partial` is the front of that.
    begun: bool,
}

impl Tls {
    /// Memory that it holds beyond the session of an idle connection, in bytes.
    pub(crate) fn held(&self) -> usize {
        let handshake = if self.opened { 0 } else { TLS_HANDSHAKE_BYTES };
        self.out.capacity() + self.partial.capacity() + handshake
    }

    fn new(session: Box<dyn Session>) -> Tls {
        Tls {
            session,
            out: Vec::new(),
            partial: Vec::new(),
            opened: false,
            ended: false,
            close_notify_received: false,
            named: false,
            begun: false,
        }
    }

    /// Appends `plain` as records to `out`, unless our last record is written.
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        if self.ended {
            return Err(SealError);
        }
        self.session.seal(plain, &mut self.partial, out)
    }

    /// Appends our last record to `out`, once.
    fn close(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.session.close(&mut self.partial, out);
            // What arrives from now on is ignored.
            self.partial = Vec::new();
        }
    }

    /// The certificate of the peer, in DER, if it has sent one and the handshake is complete.
    pub(crate) fn peer_certificate(&self) -> Option<&[u8]> {
        self.session.peer_certificate().filter(|_| self.opened)
    }

    /// The handshake is complete.
    pub(crate) fn is_open(&self) -> bool {
        self.opened
    }

    /// Ciphertext waits for room in the kernel.
    pub(crate) fn has_records(&self) -> bool {
        !self.out.is_empty()
    }
}

/// The record layer of one connection, without sockets, clock or buffers of its own.
trait Session {
    /// Processes the ciphertext in `bytes` as far as it is complete. Plaintext goes to the front of
    /// `plain`, which must be as long as `bytes`; what is to be sent in answer is appended to
    /// `out`. What was not used is *partial*: each further call gets it back unchanged, here in
    /// front of what followed. After [`StreamState::Failed`] there are no further calls.
    fn receive(&mut self, bytes: &mut [u8], plain: &mut [u8], out: &mut Vec<u8>) -> Received;

    /// Appends `plain` as records to `out`.
    fn seal(
        &mut self,
        plain: &[u8],
        partial: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SealError>;

    /// Appends the end of the stream (close_notify).
    fn close(&mut self, partial: &mut [u8], out: &mut Vec<u8>);

    /// How the handshake was completed, if it was.
    fn handshake(&self) -> Option<Handshake>;

    /// The certificate that the peer has proved to own, in DER.
    fn peer_certificate(&self) -> Option<&[u8]>;
}

/// The result of processing some ciphertext.
struct Received {
    /// Bytes of it that were used.
    used: usize,
    /// Bytes of plaintext.
    plain: usize,
    then: StreamState,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum StreamState {
    /// More may follow.
    Open,
    /// The peer has sent close_notify.
    Closed,
    /// The input is invalid; nothing more can be received.
    Failed,
}

/// The record layer cannot encrypt: not yet, or no longer.
#[derive(Debug)]
struct SealError;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Handshake {
    Full,
    Resumed,
}

/// Buffers that one worker's connections share.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Where ciphertext is received. Taken out while in use.
    cipher: Vec<u8>,
    /// Records about to be sent.
    out: Vec<u8>,
    /// Plaintext from several pieces, joined for a record.
    gathered: Vec<u8>,
}
