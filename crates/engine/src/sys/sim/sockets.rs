//! The socket calls of a simulated kernel.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use super::Ended;
use super::faults::Fault;
use super::kernel::{Due, State};
use super::stream::{Bound, File, FileId, Stream, shows};
use crate::invariant;
use crate::sys::Fd;

/// Time until a SYN is sent again that found the listener's queue full.
const SYN_AGAIN_NS: u64 = 1_000_000_000;

fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl State {
    // ---- accept and connect ----

    pub(super) fn accept(&mut self, table: usize, fd: Fd) -> io::Result<Fd> {
        let result = self.accept_inner(table, fd);
        let outcome = result.as_ref().map_or_else(code, |fd| fd.number() as u64);
        self.note(5, table, fd, outcome);
        result
    }

    fn accept_inner(&mut self, table: usize, fd: Fd) -> io::Result<Fd> {
        let id = self.tables[table].file(fd)?;
        if self.strike(table, Fault::Interrupted) {
            return Err(error(libc::EINTR));
        }
        // Linux takes a number before it looks at the queue, so a full table fails even if the queue is
        // empty.
        if self.tables[table].used >= self.tables[table].limit {
            self.faults.count(Fault::TableFull);
            return Err(error(libc::EMFILE));
        }
        if self.strike(table, Fault::SystemFull) {
            return Err(error(libc::ENFILE));
        }
        if self.strike(table, Fault::NoBuffers) {
            return Err(error(libc::ENOBUFS));
        }
        let Some(File::Listener(listener)) = self.files.get(id).filter(|file| file.listens())
        else {
            return Err(error(libc::EINVAL));
        };
        let mut waiting = listener.pending.iter();
        let shown = |&(id, at_ns): &(FileId, u64)| shows(&self.files, id, at_ns, self.now_ns);
        let Some(at) = waiting.position(shown) else {
            self.accepts_in_vain += 1;
            return Err(error(libc::EAGAIN));
        };
        if self.strike(table, Fault::AgainOnRead) {
            return Err(error(libc::EAGAIN));
        }
        let Some(File::Listener(listener)) = self.files.get_mut(id) else {
            return Err(error(libc::EINVAL));
        };
        let Some((accepted, _)) = listener.pending.remove(at) else {
            return Err(error(libc::EAGAIN));
        };
        self.tables[table].progress += 1;
        if self.strike(table, Fault::Aborted) {
            self.reset(accepted);
            self.remove(accepted);
            return Err(error(libc::ECONNABORTED));
        }
        let now_ns = self.now_ns;
        if let Some(stream) = self.files[accepted].stream_mut() {
            stream.queued = false;
            stream.since_ns = now_ns;
        }
        Ok(self.install(table, accepted))
    }

    pub(super) fn connect(
        &mut self,
        table: usize,
        destination: SocketAddr,
        source: Option<IpAddr>,
    ) -> io::Result<Fd> {
        let result = self.connect_inner(table, destination, source);
        let outcome = result.as_ref().map_or_else(code, |fd| fd.number() as u64);
        self.note(6, table, Fd::new(0), outcome);
        result
    }

    fn connect_inner(
        &mut self,
        table: usize,
        destination: SocketAddr,
        source: Option<IpAddr>,
    ) -> io::Result<Fd> {
        if self.tables[table].used >= self.tables[table].limit {
            self.faults.count(Fault::TableFull);
            return Err(error(libc::EMFILE));
        }
        if self.strike(table, Fault::NoBuffers) {
            return Err(error(libc::ENOBUFS));
        }
        if self.strike(table, Fault::NoAddress) {
            return Err(error(libc::EADDRNOTAVAIL));
        }
        let refused = self.strike(table, Fault::ConnectRefused);
        if refused && self.random.bool() {
            return Err(error(libc::ECONNREFUSED));
        }
        let source = source.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let port = 1024 + (self.serial % 60_000) as u16;
        let id = self.new_stream(Some(SocketAddr::new(source, port)), Some(destination));
        let (serial, now_ns) = (self.serial, self.now_ns);
        if let Some(stream) = self.files[id].stream_mut() {
            stream.connecting = true;
            stream.since_ns = now_ns;
        }
        let delay_ns = self.random.u64(10_000..20_000_000);
        if refused {
            self.at(delay_ns, Due::Refuse(id, serial));
        } else if self.strike(table, Fault::ConnectInProgress) {
            self.at(delay_ns, Due::Connect(id, serial));
        } else {
            self.arrive(id);
        }
        self.tables[table].progress += 1;
        Ok(self.install(table, id))
    }

    /// Connects to a UNIX socket, which takes no time: it succeeds or fails at once.
    pub(super) fn connect_unix(&mut self, table: usize, path: &Path) -> io::Result<Fd> {
        let result = self.connect_unix_inner(table, path);
        let outcome = result.as_ref().map_or_else(code, |fd| fd.number() as u64);
        self.note(15, table, Fd::new(0), outcome);
        result
    }

    fn connect_unix_inner(&mut self, table: usize, path: &Path) -> io::Result<Fd> {
        if self.tables[table].used >= self.tables[table].limit {
            self.faults.count(Fault::TableFull);
            return Err(error(libc::EMFILE));
        }
        if self.strike(table, Fault::NoBuffers) {
            return Err(error(libc::ENOBUFS));
        }
        if !self.unix_paths.iter().any(|bound| bound == path) {
            return Err(error(libc::ENOENT));
        }
        let listener = self.listener_at(&Bound::Unix(path.to_owned()));
        let refused = self.strike(table, Fault::ConnectRefused);
        let Some(listener) = listener.filter(|_| !refused) else {
            return Err(error(libc::ECONNREFUSED));
        };
        if self.backlog_is_full(listener) {
            self.faults.count(Fault::BacklogFull);
            return Err(error(libc::EAGAIN));
        }
        let id = self.new_stream(None, None);
        let now_ns = self.now_ns;
        if let Some(stream) = self.files[id].stream_mut() {
            stream.since_ns = now_ns;
        }
        self.join(id, listener);
        self.tables[table].progress += 1;
        Ok(self.install(table, id))
    }

    /// The SYN of a connect arrives at the listener of its destination.
    pub(super) fn arrive(&mut self, id: FileId) {
        let Some(stream) = self.files[id].stream() else {
            return invariant::broken("a connecting file is a stream");
        };
        let serial = stream.serial;
        let listener =
            stream.remote.and_then(|destination| self.listener_at(&Bound::Tcp(destination)));
        let Some(listener) = listener else {
            if let Some(stream) = self.files[id].stream_mut() {
                stream.fail(libc::ECONNREFUSED);
            }
            return;
        };
        if self.backlog_is_full(listener) {
            self.faults.count(Fault::BacklogFull);
            return self.at(SYN_AGAIN_NS, Due::Connect(id, serial));
        }
        self.join(id, listener);
    }

    fn listener_at(&self, address: &Bound) -> Option<FileId> {
        let listens = |file: &File| {
            file.listens() && matches!(file, File::Listener(l) if l.address == *address)
        };
        self.files.iter().position(listens)
    }

    fn backlog_is_full(&self, listener: FileId) -> bool {
        matches!(&self.files[listener], File::Listener(l) if l.pending.len() >= l.backlog)
    }

    /// Establishes a connection: makes its other end and puts that into the listener's queue.
    fn join(&mut self, id: FileId, listener: FileId) {
        let Some(stream) = self.files[id].stream() else {
            return invariant::broken("a connecting file is a stream");
        };
        let (local, remote) = (stream.local, stream.remote);
        let other = self.new_stream(remote, local);
        for (end, peer, queued) in [(id, other, false), (other, id, true)] {
            if let Some(stream) = self.files[end].stream_mut() {
                stream.connecting = false;
                stream.peer = Some(peer);
                stream.queued = queued;
            }
        }
        let mut defer_ns = 0;
        if let File::Listener(listener) = &mut self.files[listener] {
            defer_ns = listener.defer_ns;
            listener.pending.push_back((other, self.now_ns + defer_ns));
        }
        self.stir_all();
        self.at(defer_ns, Due::Show);
    }

    pub(super) fn connect_outcome(&mut self, table: usize, fd: Fd) -> io::Result<()> {
        let stream = self.stream(table, fd)?;
        stream.error.take().map_or(Ok(()), |code| Err(error(code)))
    }

    // ---- bytes ----

    pub(super) fn recv(&mut self, table: usize, fd: Fd, into: &mut [u8]) -> io::Result<usize> {
        let result = self.recv_inner(table, fd, into);
        let outcome = result.as_ref().map_or_else(code, |&got| got as u64);
        self.note(7, table, fd, outcome);
        result
    }

    fn recv_inner(&mut self, table: usize, fd: Fd, into: &mut [u8]) -> io::Result<usize> {
        let id = self.tables[table].file(fd)?;
        if self.strike(table, Fault::Interrupted) {
            return Err(error(libc::EINTR));
        }
        if self.strike(table, Fault::Reset) {
            self.reset(id);
        }
        if into.is_empty() {
            return Ok(0);
        }
        let stream = self.stream(table, fd)?;
        let there = stream.inbox.len().min(into.len());
        if there == 0 {
            // TCP does not report an error to a reader that has been sent the end of the stream.
            let reports = stream.is_unix() || !stream.ended;
            if let Some(code) = stream.error.take_if(|_| reports) {
                return Err(error(code));
            }
            let over = stream.ended || stream.dead;
            self.tables[table].progress += u64::from(over);
            return if over { Ok(0) } else { Err(error(libc::EAGAIN)) };
        }
        if self.strike(table, Fault::AgainOnRead) {
            return Err(error(libc::EAGAIN));
        }
        let short = there > 1 && self.strike(table, Fault::ShortRead);
        let got = if short { self.random.usize(1..there) } else { there };
        let stream = self.stream(table, fd)?;
        let (front, back) = stream.inbox.as_slices();
        let (first, second) = into[..got].split_at_mut(got.min(front.len()));
        first.copy_from_slice(&front[..first.len()]);
        second.copy_from_slice(&back[..second.len()]);
        stream.inbox.drain(..got);
        let peer = stream.peer;
        if let Some(peer) = peer {
            if let Some(sender) = self.files[peer].stream_mut() {
                sender.read_by_peer += got as u64;
            }
            // The sender may wait for room.
            self.stir(peer);
        }
        self.tables[table].progress += 1;
        Ok(got)
    }

    pub(super) fn send(
        &mut self,
        table: usize,
        fd: Fd,
        pieces: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let result = self.send_inner(table, fd, pieces);
        let outcome = result.as_ref().map_or_else(code, |&sent| sent as u64);
        self.note(8, table, fd, outcome);
        result
    }

    fn send_inner(&mut self, table: usize, fd: Fd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let id = self.tables[table].file(fd)?;
        if self.strike(table, Fault::Interrupted) {
            return Err(error(libc::EINTR));
        }
        if self.strike(table, Fault::Reset) {
            self.reset(id);
        }
        let stream = self.stream(table, fd)?;
        let unix = stream.is_unix();
        if let Some(code) = stream.error.take_if(|_| !unix) {
            return Err(error(code));
        }
        if stream.dead || stream.shut {
            return Err(error(libc::EPIPE));
        }
        if stream.connecting {
            return Err(error(libc::EAGAIN));
        }
        let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
        let Some(peer) = stream.peer else {
            // The other end is closed: these bytes are answered by an RST.
            stream.fail_by_reset();
            return Ok(offered);
        };
        let other = self.files[peer].stream();
        let room = other.map_or(0, |other| other.room - other.inbox.len());
        if room == 0 {
            self.faults.count(Fault::SlowReader);
            return Err(error(libc::EAGAIN));
        }
        if self.strike(table, Fault::AgainOnSend) {
            return Err(error(libc::EAGAIN));
        }
        let fits = offered.min(room);
        let short = fits > 1 && self.strike(table, Fault::ShortSend);
        let sent = if short { self.random.usize(1..fits) } else { fits };
        if let Some(other) = self.files[peer].stream_mut() {
            let mut left = sent;
            for piece in pieces {
                let taken = left.min(piece.len());
                other.inbox.extend(&piece[..taken]);
                left -= taken;
            }
        }
        self.stir(peer);
        self.tables[table].progress += 1;
        Ok(sent)
    }

    // ---- close ----

    pub(super) fn shutdown_write(&mut self, table: usize, fd: Fd) {
        self.note(9, table, fd, 0);
        let Ok(stream) = self.stream(table, fd) else { return };
        if stream.shut || stream.dead {
            return;
        }
        stream.shut = true;
        let (peer, ended) = (stream.peer, stream.ended);
        if let Some(other) = peer.and_then(|peer| self.files[peer].stream_mut()) {
            other.ended = true;
        }
        if let Some(peer) = peer {
            self.stir(peer);
        }
        if !ended {
            self.faults.count(Fault::HalfClose);
        }
    }

    pub(super) fn reset_on_close(&mut self, table: usize, fd: Fd) {
        if let Ok(stream) = self.stream(table, fd) {
            stream.reset_on_close = true;
        }
    }

    pub(super) fn stop_listening(&mut self, table: usize, fd: Fd) {
        self.note(14, table, fd, 0);
        let Ok(id) = self.tables[table].file(fd) else { return };
        if let Some(File::Listener(listener)) = self.files.get_mut(id) {
            listener.stopped = true;
            self.reset_pending(id);
        }
    }

    /// Resets all connections that wait to be accepted.
    fn reset_pending(&mut self, listener: FileId) {
        let File::Listener(listener) = &mut self.files[listener] else {
            return invariant::broken("a queue belongs to a listener");
        };
        for (waiting, _) in std::mem::take(&mut listener.pending) {
            self.lost += 1;
            self.reset(waiting);
            self.remove(waiting);
        }
    }

    pub(super) fn close(&mut self, table: usize, fd: Fd) {
        self.note(10, table, fd, 0);
        let Ok(id) = self.uninstall(table, fd) else { return };
        match &mut self.files[id] {
            File::Listener(listener) => {
                listener.references -= 1;
                if listener.references > 0 {
                    return;
                }
                self.reset_pending(id);
            }
            File::Stream(stream) => {
                let held_ns = self.now_ns - stream.since_ns;
                let peer_ended = stream.ended || stream.dead;
                self.tables[table].ended.push(Ended { held_ns, peer_ended });
                let unread = !stream.inbox.is_empty();
                // A connect whose end was not reported yet, but whose peer exists, is complete: an RST
                // reaches the peer (as on Linux).
                stream.connecting &= stream.peer.is_none();
                if stream.is_unix() {
                    self.hang_up(id, unread.then_some(libc::ECONNRESET));
                } else if stream.reset_on_close || unread {
                    self.reset(id);
                } else {
                    self.close_in_order(id);
                }
            }
            File::Wake(_) | File::Free => {}
        }
        for table in &mut self.tables {
            table.forget(id);
        }
        self.remove(id);
    }

    /// Closes a stream in order: the other end reads the bytes sent before and then the end.
    fn close_in_order(&mut self, id: FileId) {
        let peer = self.files[id].stream().and_then(|stream| stream.peer);
        if let Some(other) = peer.and_then(|peer| self.files[peer].stream_mut()) {
            other.ended = true;
        }
        self.unlink(id);
        if let Some(peer) = peer {
            self.stir(peer);
        }
    }

    /// The peer of a UNIX stream reads what was sent and then the end, or `error` before it.
    fn hang_up(&mut self, id: FileId, error: Option<i32>) {
        let peer = self.files[id].stream().and_then(|stream| stream.peer);
        if let Some(peer) = peer {
            if let Some(other) = self.files[peer].stream_mut() {
                other.hang_up(error);
            }
            self.unlink(id);
            self.stir(peer);
        }
    }

    /// An RST reaches both ends; bytes that they had not read may be lost with it, unless the end of the
    /// stream has arrived behind them.
    pub(super) fn reset(&mut self, id: FileId) {
        let Some(stream) = self.files[id].stream_mut().filter(|stream| !stream.connecting) else {
            return;
        };
        if stream.is_unix() {
            // No RST exists here. Only a peer that was never accepted is reset.
            if stream.queued {
                self.hang_up(id, Some(libc::ECONNRESET));
            }
            return;
        }
        if stream.is_over() {
            return;
        }
        let peer = stream.peer;
        let forgets = self.random.bool();
        for end in [Some(id), peer].into_iter().flatten() {
            if let Some(stream) = self.files[end].stream_mut() {
                stream.fail_by_reset();
                if forgets && !stream.ended {
                    stream.inbox.clear();
                }
            }
            self.stir(end);
        }
        self.unlink(id);
    }

    fn stream(&mut self, table: usize, fd: Fd) -> io::Result<&mut Stream> {
        let id = self.tables[table].file(fd)?;
        self.files[id].stream_mut().ok_or_else(|| error(libc::ENOTSOCK))
    }
}

/// An error as a number for the trace.
fn code(error: &io::Error) -> u64 {
    u64::MAX - error.raw_os_error().unwrap_or(0) as u64
}
