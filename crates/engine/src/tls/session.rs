//! The record layer by rustls, in the form without buffers of its own (`Unbuffered…Connection`).
//! Only this file uses that form: the next version of the library names it differently.

use std::sync::{Arc, OnceLock};

use rustls::HandshakeKind;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use super::{Handshake, Received, SealError, Session, StreamState};

/// Room for one record's header, nonce and tag, whatever the cipher, and for a key update.
const OVERHEAD_BYTES: usize = 256;
const RECORD_BYTES: usize = 16 * 1024;

/// A server's or a client's connection; clients keep the error of the first failure.
pub(super) enum Connection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection, Arc<OnceLock<String>>),
}

/// The result of one step.
enum Step {
    /// There may be more to do with the input.
    More,
    /// All of the input is processed.
    Idle,
    Closed,
    Invalid,
    /// Invalid as well, with the library's reason.
    Failed(rustls::Error),
}

impl Connection {
    /// One step over the front of `bytes`: the bytes used, the bytes written into `plain`, and the
    /// result.
    fn step(
        &mut self,
        bytes: &mut [u8],
        plain: &mut [u8],
        out: &mut Vec<u8>,
    ) -> (usize, usize, Step) {
        match self {
            Connection::Server(connection) => {
                take(connection.process_tls_records(bytes), plain, out)
            }
            Connection::Client(connection, first_error) => {
                let taken = take(connection.process_tls_records(bytes), plain, out);
                if let (_, _, Step::Failed(error)) = &taken {
                    first_error.get_or_init(|| error.to_string());
                }
                taken
            }
        }
    }

    /// Calls `write` if application data can be sent now. `partial` is the incomplete input of the
    /// last receive: the library keeps offsets into it and needs it again.
    fn write(&mut self, partial: &mut [u8], write: impl Write) -> Result<(), SealError> {
        match self {
            Connection::Server(connection) => {
                writable(connection.process_tls_records(partial), write)
            }
            Connection::Client(connection, _) => {
                writable(connection.process_tls_records(partial), write)
            }
        }
    }
}

fn take<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plain: &mut [u8],
    out: &mut Vec<u8>,
) -> (usize, usize, Step) {
    let mut used = status.discard;
    let mut written = 0;
    let step = match status.state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut step = Step::More;
            while let Some(record) = traffic.next_record() {
                let Ok(record) = record else { return (used, written, Step::Invalid) };
                used += record.discard;
                let end = written + record.payload.len();
                // Plaintext is shorter than its ciphertext, for which there is room.
                let Some(room) = plain.get_mut(written..end) else {
                    step = Step::Invalid;
                    break;
                };
                room.copy_from_slice(record.payload);
                written = end;
            }
            step
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let encoded = grow(out, OVERHEAD_BYTES, |room| match data.encode(room) {
                Ok(written) => Ok(written),
                Err(EncodeError::InsufficientSize(size)) => Err(Some(size.required_size)),
                Err(EncodeError::AlreadyEncoded) => Err(None),
            });
            if encoded.is_ok() { Step::More } else { Step::Invalid }
        }
        // The encoded data is in `out`, and the caller sends it.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Step::More
        }
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Step::Closed,
        Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Step::Idle,
        // Early data is neither offered nor accepted.
        Ok(_) => Step::Invalid,
        Err(error) => Step::Failed(error),
    };
    (used, written, step)
}

/// Something to write once application data can be sent; a trait because it is generic over the
/// role.
trait Write {
    fn write<Data>(
        self,
        traffic: rustls::unbuffered::WriteTraffic<'_, Data>,
    ) -> Result<(), EncryptError>;
}

fn writable<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    write: impl Write,
) -> Result<(), SealError> {
    match status.state {
        Ok(ConnectionState::WriteTraffic(traffic)) => write.write(traffic).map_err(|_| SealError),
        _ => Err(SealError),
    }
}

struct Seal<'a> {
    plain: &'a [u8],
    out: &'a mut Vec<u8>,
}

impl Write for Seal<'_> {
    fn write<Data>(
        self,
        mut traffic: rustls::unbuffered::WriteTraffic<'_, Data>,
    ) -> Result<(), EncryptError> {
        let records = self.plain.len() / RECORD_BYTES + 1;
        let room = self.plain.len() + records * OVERHEAD_BYTES;
        let sealed = grow(self.out, room, |room| match traffic.encrypt(self.plain, room) {
            Ok(written) => Ok(written),
            Err(EncryptError::InsufficientSize(size)) => Err(Some(size.required_size)),
            Err(EncryptError::EncryptExhausted) => Err(None),
        });
        sealed.map_err(|SealError| EncryptError::EncryptExhausted)
    }
}

struct Close<'a>(&'a mut Vec<u8>);

impl Write for Close<'_> {
    fn write<Data>(
        self,
        mut traffic: rustls::unbuffered::WriteTraffic<'_, Data>,
    ) -> Result<(), EncryptError> {
        let closed = grow(self.0, OVERHEAD_BYTES, |room| match traffic.queue_close_notify(room) {
            Ok(written) => Ok(written),
            Err(EncryptError::InsufficientSize(size)) => Err(Some(size.required_size)),
            Err(EncryptError::EncryptExhausted) => Err(None),
        });
        closed.map_err(|SealError| EncryptError::EncryptExhausted)
    }
}

/// Lets `write` fill room at the end of `out`, with more room if it requests that.
fn grow(
    out: &mut Vec<u8>,
    mut room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
) -> Result<(), SealError> {
    let start = out.len();
    for _ in 0..2 {
        out.resize(start + room, 0);
        match write(out.get_mut(start..).unwrap_or_default()) {
            Ok(written) => {
                out.truncate(start + written);
                return Ok(());
            }
            Err(Some(more)) => room = more,
            Err(None) => break,
        }
    }
    out.truncate(start);
    Err(SealError)
}

impl Session for Connection {
    fn receive(&mut self, bytes: &mut [u8], plain: &mut [u8], out: &mut Vec<u8>) -> Received {
        let mut received = Received { used: 0, plain: 0, then: StreamState::Open };
        loop {
            let rest = bytes.get_mut(received.used..).unwrap_or_default();
            let room = plain.get_mut(received.plain..).unwrap_or_default();
            let (used, written, step) = self.step(rest, room, out);
            received.used += used;
            received.plain += written;
            received.then = match step {
                Step::More => continue,
                Step::Idle => StreamState::Open,
                Step::Closed => StreamState::Closed,
                Step::Invalid | Step::Failed(_) => StreamState::Failed,
            };
            break;
        }
        if received.then == StreamState::Failed {
            // The alert with the reason comes with the next step; the input of a further one may
            // not be processed.
            let rest = bytes.get_mut(received.used..).unwrap_or_default();
            self.step(rest, &mut [], out);
        }
        received
    }

    fn seal(
        &mut self,
        plain: &[u8],
        partial: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        self.write(partial, Seal { plain, out })
    }

    fn close(&mut self, partial: &mut [u8], out: &mut Vec<u8>) {
        // Before the handshake is complete there is nothing to close.
        let _ = self.write(partial, Close(out));
    }

    fn handshake(&self) -> Option<Handshake> {
        let (handshaking, kind) = match self {
            Connection::Server(one) => (one.is_handshaking(), one.handshake_kind()),
            Connection::Client(one, _) => (one.is_handshaking(), one.handshake_kind()),
        };
        let resumed = matches!(kind, Some(HandshakeKind::Resumed));
        let how = if resumed { Handshake::Resumed } else { Handshake::Full };
        (!handshaking).then_some(how)
    }

    fn peer_certificate(&self) -> Option<&[u8]> {
        let chain = match self {
            Connection::Server(one) => one.peer_certificates(),
            Connection::Client(one, _) => one.peer_certificates(),
        };
        chain?.first().map(|certificate| certificate.as_ref())
    }
}
