//! [`TlsSession`]: TLS of a client without sockets, for a [`crate::Sys`] that encrypts below its workers.

use super::{StreamState, Tls};
use crate::{TlsClient, TlsError};

/// The TLS of one connection of a client. The caller sends what is appended to `out`.
pub struct TlsSession(Tls);

/// Whether the stream goes on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum TlsState {
    /// More may follow.
    Open,
    /// The peer has ended it (close_notify).
    Ended,
    /// What was received is not TLS, or the handshake failed; the alert is in `out`.
    Failed,
}

impl TlsSession {
    /// Begins the handshake: appends the ClientHello to `out`.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn begin(client: &TlsClient, out: &mut Vec<u8>) -> Result<TlsSession, TlsError> {
        let mut tls = client.begin()?;
        tls.session.receive(&mut [], &mut [], out);
        Ok(TlsSession(tls))
    }

    /// The length of an incomplete record, for which the next [`TlsSession::receive`] needs room in front.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.0.partial.len()
    }

    /// Processes what was read into `bytes` behind [`TlsSession::kept`] bytes. Returns the bytes of plaintext
    /// that it wrote to the front of `plain`, which must be as long as `bytes`.
    pub fn receive(
        &mut self,
        bytes: &mut [u8],
        plain: &mut [u8],
        out: &mut Vec<u8>,
    ) -> (usize, TlsState) {
        let kept = self.kept();
        let received = self.0.receive(bytes, kept, plain, out);
        self.0.opened |= self.0.session.handshake().is_some();
        let state = match received.then {
            StreamState::Open => TlsState::Open,
            StreamState::Closed => TlsState::Ended,
            StreamState::Failed => TlsState::Failed,
        };
        (received.plain, state)
    }

    /// Whether the handshake is complete.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.opened
    }

    /// Appends `plain` as records. Returns `false` if nothing can be sent: not yet, or no more.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> bool {
        self.0.seal(plain, out).is_ok()
    }

    /// Appends the end of the stream (close_notify).
    pub fn close(&mut self, out: &mut Vec<u8>) {
        self.0.close(out);
    }
}
