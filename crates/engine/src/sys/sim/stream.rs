//! What a simulated descriptor refers to: a wake-up flag, a listener, or one end of a stream.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A place in the kernel's list of files; used again after the file is gone.
pub(super) type FileId = usize;

pub(super) enum File {
    Free,
    Wake(Arc<AtomicBool>),
    Listener(Listener),
    Stream(Box<Stream>),
}

impl File {
    /// Whether it takes connections.
    pub(super) fn listens(&self) -> bool {
        matches!(self, File::Listener(listener) if !listener.stopped)
    }
}

/// A listening socket, shared by all tables that have a number for it.
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    pub(super) backlog: usize,
    /// A connection without bytes is held back this long (`TCP_DEFER_ACCEPT`).
    pub(super) defer_ns: u64,
    /// Connections that wait, with the time from which they show even without bytes.
    pub(super) pending: VecDeque<(FileId, u64)>,
    /// Numbers that refer to it.
    pub(super) references: usize,
    /// Nobody may connect or accept any more.
    pub(super) stopped: bool,
}

/// One end of a TCP stream.
pub(super) struct Stream {
    /// Unlike its place, this number is not used again.
    pub(super) serial: u64,
    pub(super) connecting: bool,
    /// The other end, while somebody holds it.
    pub(super) peer: Option<FileId>,
    /// Bytes that have arrived and were not read.
    pub(super) inbox: VecDeque<u8>,
    /// Bytes the inbox may hold.
    pub(super) room: usize,
    /// The peer writes no more.
    pub(super) ended: bool,
    /// We write no more.
    pub(super) shut: bool,
    /// An error to be told once (`SO_ERROR`).
    pub(super) error: Option<i32>,
    /// Reset or never connected: nothing comes or goes any more.
    pub(super) dead: bool,
    pub(super) reset_on_close: bool,
    /// The table that has a number for it.
    pub(super) owner: Option<usize>,
    /// Waits in a listener's queue.
    pub(super) queued: bool,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// When a worker got it.
    pub(super) since_ns: u64,
}

/// What epoll would say of a file.
#[derive(Copy, Clone, Default)]
pub(super) struct Poll {
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// `EPOLLERR` or `EPOLLHUP`: reported whatever is watched for.
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
    pub(super) fn new(serial: u64, room: usize, local: SocketAddr, remote: SocketAddr) -> Self {
        Stream {
            serial,
            connecting: false,
            peer: None,
            inbox: VecDeque::new(),
            room,
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

    /// An RST has arrived or a connect has failed.
    pub(super) fn fail(&mut self, error: i32) {
        if !self.dead {
            self.error = Some(error);
            self.dead = true;
            self.connecting = false;
            self.peer = None;
        }
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
            Poll { readable, ..Poll::default() }
        }
        Some(File::Stream(stream)) => {
            let room = stream.peer.and_then(|peer| files.get(peer)?.stream());
            let room = room.is_none_or(|peer| peer.inbox.len() < peer.room);
            let failed = stream.dead || stream.error.is_some() || stream.ended && stream.shut;
            Poll {
                readable: !stream.connecting && (!stream.inbox.is_empty() || stream.ended),
                writable: !stream.connecting && (room || stream.shut),
                failed,
            }
        }
        _ => Poll::default(),
    }
}

/// Whether a connection that waits can be accepted: it has bytes or has waited long enough.
pub(super) fn shows(files: &[File], id: FileId, shows_ns: u64, now_ns: u64) -> bool {
    let stream = files.get(id).and_then(File::stream);
    shows_ns <= now_ns
        || stream.is_some_and(|stream| !stream.inbox.is_empty() || stream.ended || stream.dead)
}
