//! TLS 1.2 and 1.3 (RFC 5246, RFC 8446) under a connection: what one holds of it ([`Tls`]), what a
//! record layer owes a worker ([`Session`]), and what an operator sets up ([`TlsServer`],
//! [`TlsClient`]).
//!
//! A connection keeps its session and, while something is torn, the bytes of it: a record of which
//! the rest has not come, ciphertext the kernel had no room for. Everything else lies in buffers of
//! the worker. Queues hold plaintext, so that what they drop is whole messages; only what leaves now
//! is encrypted.
//!
//! What it is not: it reads no files, and no name of the library behind [`Session`] is seen outside
//! this folder, but by [`TlsClient::parts`].

mod client;
mod pem;
mod receive;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod transmit;

pub use self::client::{TlsClient, TlsTrust};
pub use self::pem::{TlsIdentity, TlsUnusable};
pub use self::server::{TlsServer, TlsVersion};
pub(crate) use self::transmit::Way;

/// One connection's share of TLS.
pub(crate) struct Tls {
    session: Box<dyn Session>,
    /// Ciphertext that the kernel had no room for yet: at most a few records.
    out: Vec<u8>,
    /// Ciphertext that is not whole yet: the front of a record, or of a message of the handshake.
    torn: Vec<u8>,
    /// The handshake was complete at some time.
    opened: bool,
    /// Our last record is written: the end of the stream was announced, or an alert.
    ended: bool,
    /// The peer has announced its end (close_notify).
    announced: bool,
}

impl Tls {
    fn new(session: Box<dyn Session>) -> Tls {
        Tls {
            session,
            out: Vec::new(),
            torn: Vec::new(),
            opened: false,
            ended: false,
            announced: false,
        }
    }

    /// Appends `plain` as records to `out`, unless our last record is written.
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        if self.ended {
            return Err(Broken);
        }
        self.session.seal(plain, &mut self.torn, out)
    }

    /// Appends our last record to `out`, once.
    fn close(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.session.close(&mut self.torn, out);
            // Nothing that comes is looked at any more.
            self.torn = Vec::new();
        }
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
    /// Works on the ciphertext in `bytes` as far as it is whole. Plaintext goes to the front of
    /// `plain`, which must be as long as `bytes`; what is to be sent for it is appended to `out`.
    /// What was not used is *torn*: each further call gets it back as it is now, here in front of
    /// what followed. After [`Then::Broken`] there are no further calls.
    fn receive(&mut self, bytes: &mut [u8], plain: &mut [u8], out: &mut Vec<u8>) -> Received;

    /// Appends `plain` as records to `out`.
    fn seal(&mut self, plain: &[u8], torn: &mut [u8], out: &mut Vec<u8>) -> Result<(), Broken>;

    /// Appends the announcement that nothing more comes (close_notify).
    fn close(&mut self, torn: &mut [u8], out: &mut Vec<u8>);

    /// How the handshake came to its end, if it did.
    fn handshake(&self) -> Option<Handshake>;
}

/// What came of some ciphertext.
struct Received {
    /// Bytes of it that are done with.
    used: usize,
    /// Bytes of plaintext.
    plain: usize,
    then: Then,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Then {
    /// More may follow.
    Open,
    /// The peer has announced its end.
    Closed,
    /// What came is not TLS as agreed; nothing more can be received.
    Broken,
}

/// The record layer cannot encrypt: not yet, or no more.
#[derive(Debug)]
struct Broken;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Handshake {
    Full,
    Resumed,
}

/// What one worker's connections share.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Where ciphertext is received. Taken out meanwhile.
    cipher: Vec<u8>,
    /// Records about to be sent.
    out: Vec<u8>,
    /// Plaintext in several pieces, put together for a record.
    gathered: Vec<u8>,
}
