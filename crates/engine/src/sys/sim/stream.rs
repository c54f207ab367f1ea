//! [`File`]: what a simulated descriptor refers to: a wake-up flag, a listener, or one end of a stream.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An index into the kernel's list of files; reused after the file is removed.
pub(super) type FileId = usize;

pub(super) enum File {
    Free,
    Wake(Arc<AtomicBool>),
    Listener(Listener),
    Stream(Box<Stream>),
}

impl File {
    /// Whether it accepts connections.
    pub(super) fn listens(&self) -> bool {
        matches!(self, File::Listener(listener) if !listener.stopped)
    }
}

/// What a listener is bound to.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Bound {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A listening socket, shared by all tables that have a number for it.
pub(super) struct Listener {
    pub(super) address: Bound,
    pub(super) backlog: usize,
    /// How long a connection without bytes is delayed (`TCP_DEFER_ACCEPT`).
    pub(super) defer_ns: u64,
    /// Waiting connections, each with the time from which it can be accepted even without bytes.
    pub(super) pending: VecDeque<(FileId, u64)>,
    /// Numbers that refer to it.
    pub(super) references: usize,
    /// Neither connects nor accepts succeed any more.
    pub(super) stopped: bool,
}

/// One end of a TCP or UNIX stream.
pub(super) struct Stream {
    /// Unlike its index, this number is never reused.
    pub(super) serial: u64,
    pub(super) connecting: bool,
    /// The other end, until one of them closes or resets: both ends refer to each other or neither does.
    pub(super) peer: Option<FileId>,
    /// Bytes that have arrived and are not read yet.
    pub(super) inbox: VecDeque<u8>,
    /// Bytes the inbox may hold.
    pub(super) room: usize,
    /// Bytes that the other end's owner has read, while the two ends were connected.
    pub(super) read_by_peer: u64,
    /// The peer has ended its side.
    pub(super) ended: bool,
    /// We have ended our side.
    pub(super) shut: bool,
    /// An error that is returned once (`SO_ERROR`).
    pub(super) error: Option<i32>,
    /// Reset or never connected: nothing can be sent or received.
    pub(super) dead: bool,
    pub(super) reset_on_close: bool,
    /// The table that has a number for it.
    pub(super) owner: Option<usize>,
    /// Waits in a listener's queue.
    pub(super) queued: bool,
    /// The addresses of both ends; none of a UNIX stream.
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// When a worker got the descriptor.
    pub(super) since_ns: u64,
}

/// The readiness of a file.
#[derive(Copy, Clone, Default)]
pub(super) struct Poll {
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// `EPOLLERR` or `EPOLLHUP`: reported for every interest.
    pub(super) failed: bool,
}

impl File {
    pub(super) fn stream(&self) -> Option<&Stream> {
        match self {
            File::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    pub(super) fn stream_mut(&mut self) -> Option<&mut Stream> {
        match self {
            File::Stream(stream) => Some(stream),
            _ => None,
        }
    }
}

impl Stream {
    pub(super) fn new(
        serial: u64,
        room: usize,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
    ) -> Self {
        Stream {
            serial,
            connecting: false,
            peer: None,
            inbox: VecDeque::new(),
            room,
            read_by_peer: 0,
            ended: false,
            shut: false,
            error: None,
            dead: false,
            reset_on_close: false,
            owner: None,
            queued: false,
            local,
            remote,
            since_ns: 0,
        }
    }

    pub(super) fn is_unix(&self) -> bool {
        self.remote.is_none()
    }

    /// Both sides have ended the stream, or the peer of a UNIX stream has closed it.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.shut
    }

    /// Whether the kernel still names the peer of a TCP stream (getpeername(2)).
    pub(super) fn is_connected(&self) -> bool {
        !self.connecting && !self.dead && !self.is_over()
    }

    /// An RST has arrived or a connect has failed.
    pub(super) fn fail(&mut self, error: i32) {
        if !self.dead {
            self.error = Some(error);
            self.dead = true;
            self.connecting = false;
        }
    }

    /// An RST has arrived. It has no effect on a stream that is over, and is `EPIPE` after a FIN.
    pub(super) fn fail_by_reset(&mut self) {
        if !self.is_over() {
            self.fail(if self.ended { libc::EPIPE } else { libc::ECONNRESET });
        }
    }

    /// The peer of a UNIX stream has closed it: nothing more can be sent either way.
    pub(super) fn hang_up(&mut self, error: Option<i32>) {
        self.ended = true;
        self.shut = true;
        self.error = self.error.or(error);
    }
}

/// Readiness of the file at `id`.
pub(super) fn poll(files: &[File], id: FileId, now_ns: u64) -> Poll {
    match files.get(id) {
        Some(File::Wake(flag)) => {
            Poll { readable: flag.load(Ordering::Acquire), ..Poll::default() }
        }
        Some(File::Listener(listener)) => {
            let mut waiting = listener.pending.iter();
            let readable = waiting.any(|&(id, shows_ns)| shows(files, id, shows_ns, now_ns));
            Poll { readable, failed: listener.stopped, ..Poll::default() }
        }
        Some(File::Stream(stream)) => {
            let room = stream.peer.and_then(|peer| files.get(peer)?.stream());
            let room = room.is_none_or(|peer| peer.inbox.len() < peer.room);
            Poll {
                readable: !stream.connecting && (!stream.inbox.is_empty() || stream.ended),
                writable: !stream.connecting && (room || stream.shut && !stream.is_unix()),
                failed: stream.dead || stream.error.is_some() || stream.is_over(),
            }
        }
        _ => Poll::default(),
    }
}

/// Whether a waiting connection can be accepted: it has bytes or has waited long enough.
pub(super) fn shows(files: &[File], id: FileId, shows_ns: u64, now_ns: u64) -> bool {
    let stream = files.get(id).and_then(File::stream);
    shows_ns <= now_ns
        || stream.is_some_and(|stream| !stream.inbox.is_empty() || stream.ended || stream.dead)
}
