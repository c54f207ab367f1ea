//! [`Reply`]: the answer to a plain request that another thread or a future gives, complete or in pieces
//! ([`BodyWriter`]).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::exchange::Http;
use crate::waking::Waking;
use crate::{Gone, Remote, Response, SocketId};

/// Bytes that a [`BodyWriter`] takes before the worker has written them.
const WRITER_BYTES: usize = 256 * 1024;

/// The answer to a request of [`Server::later`](crate::Server::later) or [`Http::reply`], which waits for
/// it. It can be sent to another thread or kept in a future.
///
/// One that is dropped answers 500. One that takes longer than
/// [`Limits::reply_timeout`](crate::Limits::reply_timeout) comes too late: the client was answered 504.
pub struct Reply {
    shared: Arc<Shared>,
    id: SocketId,
    remote: Remote,
    answered: bool,
}

/// The body of an answer that another thread or a future writes. One that is dropped before
/// [`BodyWriter::finish`] cuts the connection off, so that the client notices that the body is not
/// complete.
pub struct BodyWriter {
    shared: Arc<Shared>,
    id: SocketId,
    remote: Remote,
    finished: bool,
}

/// Why a piece was not taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// More than 128 KiB wait for the client, and with this piece more than 256 KiB: write it again after
    /// [`BodyWriter::ready`] or [`BodyWriter::wait`].
    Full,
    /// The client has left, or was too slow.
    Gone,
}

impl std::fmt::Display for WriteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WriteError::Full => "too many bytes wait for the client; write again when it is ready",
            WriteError::Gone => "the client has left",
        })
    }
}

impl std::error::Error for WriteError {}

enum Begin {
    Complete(Response),
    Stream(Response, Option<u64>),
}

/// What a reply and its worker share.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    begin: Option<Begin>,
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the pieces.
    waiting: usize,
    finished: bool,
    aborted: bool,
    /// The exchange has ended.
    gone: bool,
    /// The worker was told and has not looked yet.
    signalled: bool,
    waker: Option<Waker>,
}

impl State {
    fn has_room(&self) -> bool {
        self.waiting <= WRITER_BYTES / 2
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and tells the worker, unless the exchange has ended.
    fn tell(&self, id: SocketId, remote: &Remote, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        if state.gone {
            return;
        }
        change(&mut state);
        let signal = !std::mem::replace(&mut state.signalled, true);
        drop(state);
        if signal {
            remote.signal(id);
        }
    }

    // ---- the worker's side ----

    /// Writes what is there.
    pub(crate) fn write_to(&self, http: &mut Http<'_>, waking: &Waking) {
        let mut state = self.lock();
        state.signalled = false;
        let begin = state.begin.take();
        drop(state);
        match begin {
            Some(Begin::Complete(response)) => drop(http.respond(response)),
            Some(Begin::Stream(response, length)) => drop(http.begin(response, length)),
            None => {}
        }
        loop {
            let mut state = self.lock();
            let Some(piece) = state.pieces.pop_front() else {
                let (finished, aborted) = (state.finished, state.aborted);
                drop(state);
                if finished {
                    http.finish();
                } else if aborted {
                    http.abort();
                }
                break;
            };
            drop(state);
            http.state.refused = false;
            let sent = http.write(&piece);
            let mut state = self.lock();
            if sent != crate::Sent::Dropped {
                state.waiting -= piece.len();
            } else if http.state.refused {
                state.pieces.push_front(piece);
                break;
            } else {
                // More than the announced length.
                drop(state);
                http.abort();
                break;
            }
        }
        self.notify(waking);
    }

    /// Tells the writer that there is room, or that nobody is there.
    fn notify(&self, waking: &Waking) {
        let mut state = self.lock();
        if !state.has_room() && !state.gone {
            return;
        }
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waking.wake(waker);
        }
    }

    /// The exchange has ended.
    pub(crate) fn end(&self, waking: &Waking) {
        let mut state = self.lock();
        state.gone = true;
        let (begin, pieces) = (state.begin.take(), std::mem::take(&mut state.pieces));
        drop(state);
        drop((begin, pieces));
        self.notify(waking);
    }
}

impl Reply {
    pub(crate) fn new(id: SocketId, remote: Remote) -> (Reply, Arc<Shared>) {
        let shared = Arc::<Shared>::default();
        (Reply { shared: Arc::clone(&shared), id, remote, answered: false }, shared)
    }

    /// Answers completely.
    pub fn respond(mut self, response: Response) {
        self.answer(Begin::Complete(response));
    }

    /// Begins an answer whose body follows. A body in the response is its first piece. With a length,
    /// exactly that many bytes have to follow.
    #[must_use]
    pub fn stream(mut self, response: Response, length: Option<u64>) -> BodyWriter {
        self.answer(Begin::Stream(response, length));
        let (shared, remote) = (Arc::clone(&self.shared), self.remote.clone());
        BodyWriter { shared, id: self.id, remote, finished: false }
    }

    /// Whether the client has left or was answered 504 meanwhile, so that nobody needs the answer.
    #[must_use]
    pub fn is_pointless(&self) -> bool {
        self.shared.lock().gone
    }

    fn answer(&mut self, begin: Begin) {
        self.answered = true;
        self.shared.tell(self.id, &self.remote, |state| state.begin = Some(begin));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            let response = Response::text(500, "The server did not answer this request.\n");
            self.answer(Begin::Complete(response));
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({})", self.id)
    }
}

impl BodyWriter {
    /// Writes a piece. It does not wait: see [`BodyWriter::ready`].
    ///
    /// Cost: an allocation, a copy and, if the worker sleeps, a system call that wakes it.
    ///
    /// # Errors
    /// [`WriteError`]: nothing of the piece was taken.
    pub fn write(&self, data: &[u8]) -> Result<(), WriteError> {
        let state = self.shared.lock();
        if state.gone {
            return Err(WriteError::Gone);
        }
        // What is ready takes a piece of any length: otherwise a long one would be refused and awaited in turn.
        if !state.has_room() && state.waiting + data.len() > WRITER_BYTES {
            return Err(WriteError::Full);
        }
        drop(state);
        self.shared.tell(self.id, &self.remote, |state| {
            state.waiting += data.len();
            state.pieces.push_back(data.into());
        });
        Ok(())
    }

    /// A future that is done when at most 128 KiB wait.
    ///
    /// # Errors
    /// [`Gone`], if the client has left.
    pub fn ready(&self) -> impl Future<Output = Result<(), Gone>> + Send + '_ {
        Ready(&self.shared)
    }

    /// Waits as [`BodyWriter::ready`]. Not in a handler: it would wait for itself.
    ///
    /// # Errors
    /// [`Gone`], if the client has left.
    pub fn wait(&self) -> Result<(), Gone> {
        let mut state = self.shared.lock();
        while !state.gone && !state.has_room() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.gone { Err(Gone) } else { Ok(()) }
    }

    /// Ends the body.
    pub fn finish(mut self) {
        self.finished = true;
        self.shared.tell(self.id, &self.remote, |state| state.finished = true);
    }

    /// Whether the client has left, or was too slow.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.lock().gone
    }
}

impl Drop for BodyWriter {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.tell(self.id, &self.remote, |state| state.aborted = true);
        }
    }
}

impl std::fmt::Debug for BodyWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BodyWriter({})", self.id)
    }
}

struct Ready<'a>(&'a Shared);

impl Future for Ready<'_> {
    type Output = Result<(), Gone>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if state.gone {
            return Poll::Ready(Err(Gone));
        }
        if state.has_room() {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
