//! Transmitting: plaintext goes to the kernel as it is, or as TLS records. Both report how many
//! bytes of the input were taken, so queues need not know the difference.

use std::io::{self, IoSlice};

use super::{Buffers, Tls};
use crate::conn::Conn;
use crate::core::Core;
use crate::limits::FLUSH_BYTES_PER_TURN;
use crate::send::would_block;
use crate::slab::Slab;
use crate::sys::{Fd, Sys};
use crate::{Counters, Handler};

/// Plaintext encrypted for one send: the most that a connection holds as ciphertext if the kernel
/// takes nothing.
const SEALED_BYTES: usize = 32 * 1024;

/// A worker's access to the kernel for sending, while its slab is borrowed.
pub(crate) struct Transmitter<'a, S> {
    sys: &'a mut S,
    buffers: &'a mut Buffers,
    counters: &'a Counters,
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// The connections, and the transmitter for their bytes.
    #[inline]
    pub(crate) fn split(&mut self) -> (&mut Slab<Conn<H::User>>, Transmitter<'_, S>) {
        let counters = &self.remote.shared.mailboxes[usize::from(self.index)].counters;
        (
            &mut self.slab,
            Transmitter { sys: &mut self.sys, buffers: &mut self.tls_buffers, counters },
        )
    }
}

impl<S: Sys> Transmitter<'_, S> {
    /// Sends what the kernel takes of `bytes`, as they are or as records; returns how many need not
    /// be passed again.
    #[inline]
    pub(crate) fn send<U>(&mut self, conn: &mut Conn<U>, bytes: &[u8]) -> io::Result<usize> {
        match conn.cold.as_mut().and_then(|cold| cold.tls.as_deref_mut()) {
            None => self.sent(|sys| sys.send(conn.fd, bytes)),
            Some(tls) => self.seal_and_send(conn.fd, tls, &[IoSlice::new(bytes)]),
        }
    }

    /// The same for several pieces.
    #[inline]
    pub(crate) fn send_pieces(
        &mut self,
        fd: Fd,
        tls: Option<&mut Tls>,
        pieces: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        match (tls, pieces) {
            (Some(tls), _) => self.seal_and_send(fd, tls, pieces),
            (None, []) => Ok(0),
            (None, [one]) => self.sent(|sys| sys.send(fd, one)),
            (None, many) => self.sent(|sys| sys.send_vectored(fd, many)),
        }
    }

    #[inline]
    pub(crate) fn sent(
        &mut self,
        send: impl FnOnce(&mut S) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let sent = send(self.sys)?;
        self.counters.bytes_out.add(sent as u64);
        Ok(sent)
    }

    /// Sends waiting ciphertext; returns whether all of it was sent.
    pub(crate) fn send_records(&mut self, fd: Fd, tls: &mut Tls) -> io::Result<bool> {
        if tls.out.is_empty() {
            return Ok(true);
        }
        let sent = self.sent(|sys| sys.send(fd, &tls.out))?;
        if sent == tls.out.len() {
            tls.out = Vec::new();
            return Ok(true);
        }
        tls.out.drain(..sent);
        Ok(false)
    }

    /// Sends records, or keeps what the kernel has no room for.
    pub(super) fn send_or_keep(&mut self, fd: Fd, tls: &mut Tls, records: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        if tls.out.is_empty() && !records.is_empty() {
            sent = match self.sent(|sys| sys.send(fd, records)) {
                Err(error) if would_block(&error) => 0,
                other => other?,
            };
        }
        tls.out.extend_from_slice(records.get(sent..).unwrap_or_default());
        Ok(())
    }

    #[inline(never)]
    fn seal_and_send(
        &mut self,
        fd: Fd,
        tls: &mut Tls,
        pieces: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        if !self.send_records(fd, tls)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut records = std::mem::take(&mut self.buffers.out);
        let result = self.seal_all(fd, tls, pieces, &mut records);
        records.clear();
        self.buffers.out = records;
        result
    }

    /// Encrypts and sends until all is taken, ciphertext is left over, or the turn's budget is
    /// used: a peer that reads as fast as we encrypt would otherwise occupy the worker.
    fn seal_all(
        &mut self,
        fd: Fd,
        tls: &mut Tls,
        pieces: &[IoSlice<'_>],
        records: &mut Vec<u8>,
    ) -> io::Result<usize> {
        let mut taken = 0;
        while tls.out.is_empty() && taken < FLUSH_BYTES_PER_TURN {
            let plain = next_plain(pieces, taken, &mut self.buffers.gathered);
            if plain.is_empty() {
                break;
            }
            records.clear();
            // Nothing is sent before the handshake, so a failure means that the session has ended.
            tls.seal(plain, records).map_err(|_| io::ErrorKind::BrokenPipe)?;
            taken += plain.len();
            self.send_or_keep(fd, tls, records)?;
        }
        Ok(taken)
    }

    /// Sends close_notify, once; returns whether everything was sent.
    pub(crate) fn close(&mut self, fd: Fd, tls: &mut Tls) -> bool {
        let mut records = std::mem::take(&mut self.buffers.out);
        tls.close(&mut records);
        let kept = self.send_or_keep(fd, tls, &records);
        records.clear();
        self.buffers.out = records;
        // If nothing can be sent, there is nothing to wait for.
        kept.is_err() || tls.out.is_empty()
    }
}

/// The input after the first `taken` bytes, at most [`SEALED_BYTES`] of it, in one piece.
fn next_plain<'a>(
    pieces: &'a [IoSlice<'_>],
    mut taken: usize,
    gathered: &'a mut Vec<u8>,
) -> &'a [u8] {
    let mut pieces = pieces.iter();
    let first = loop {
        let Some(piece) = pieces.next() else { return &[] };
        if taken < piece.len() {
            break piece.get(taken..).unwrap_or_default();
        }
        taken -= piece.len();
    };
    if first.len() >= SEALED_BYTES || pieces.as_slice().is_empty() {
        return first.get(..SEALED_BYTES).unwrap_or(first);
    }
    gathered.clear();
    gathered.extend_from_slice(first);
    for piece in pieces {
        let room = SEALED_BYTES - gathered.len();
        gathered.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }
    gathered
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::tests::{CertificateAuthority, handshake, server_of};
    use super::*;
    use crate::sys::sim::Kernel;

    #[test]
    fn a_turn_encrypts_a_bounded_share() {
        let authority = CertificateAuthority::new();
        let server = server_of(&[authority.identity("one.test")]);
        let (mut server, mut client) = handshake(&server, &authority.client("one.test"), 4_096);
        let address = SocketAddr::from(([127, 0, 0, 1], 443));
        let kernel = Kernel::new(1, (64 << 20, 64 << 20));
        let listener = kernel.listen(address, 4, 0);
        let mut outside = kernel.outside();
        let peer = outside.connect(address, None).unwrap();
        let mut seat = kernel.seat(10, &[listener]);
        let fd = seat.sys.accept(Fd::new(seat.listeners[0])).unwrap();
        let (mut buffers, counters) = (Buffers::default(), Counters::default());
        let mut transmitter =
            Transmitter { sys: &mut seat.sys, buffers: &mut buffers, counters: &counters };

        let plain: Vec<u8> = (0..3 * FLUSH_BYTES_PER_TURN).map(|n| (n ^ (n >> 8)) as u8).collect();
        let (header, mut left) = plain.split_at(100);
        let pieces = [IoSlice::new(header), IoSlice::new(left)];
        let mut turns = 1;
        let taken = transmitter.send_pieces(fd, Some(&mut server.tls), &pieces).unwrap();
        assert!((FLUSH_BYTES_PER_TURN..FLUSH_BYTES_PER_TURN + SEALED_BYTES).contains(&taken));
        left = &left[taken - header.len()..];
        while !left.is_empty() {
            let pieces = [IoSlice::new(left)];
            let taken = transmitter.send_pieces(fd, Some(&mut server.tls), &pieces).unwrap();
            assert!(taken < FLUSH_BYTES_PER_TURN + SEALED_BYTES, "{taken}");
            left = &left[taken..];
            turns += 1;
        }
        assert_eq!(turns, 3);
        let mut wire = vec![0; 60_000];
        while let Ok(got @ 1..) = outside.recv(peer, &mut wire) {
            client.take(&wire[..got], usize::MAX);
        }
        assert!(client.received == plain);
    }
}
