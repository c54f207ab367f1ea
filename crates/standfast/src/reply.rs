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
    /// The futures that wait for room, each by its number.
    wakers: Vec<(u64, Waker)>,
    next_waiter: u64,
}

impl State {
    fn has_room(&self) -> bool {
        self.waiting <= WRITER_BYTES / 2
    }

    fn take_waker(&mut self, number: u64) -> Option<Waker> {
        let at = self.wakers.iter().position(|(own, _)| *own == number)?;
        Some(self.wakers.swap_remove(at).1)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and tells the worker, unless the exchange has ended or nothing was changed.
    fn tell(
        &self,
        id: SocketId,
        remote: &Remote,
        change: impl FnOnce(&mut State) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let mut state = self.lock();
        if state.gone {
            return Err(WriteError::Gone);
        }
        change(&mut state)?;
        let signal = !std::mem::replace(&mut state.signalled, true);
        drop(state);
        if signal {
            remote.signal(id);
        }
        Ok(())
    }

    // ---- the worker's side ----

    /// Writes what is there.
    pub(crate) fn write_to(&self, http: &mut Http<'_>, waking: &Waking) {
        let mut state = self.lock();
        state.signalled = false;
        let (begin, mut pieces) = (state.begin.take(), std::mem::take(&mut state.pieces));
        let (finished, aborted) = (state.finished, state.aborted);
        drop(state);
        match begin {
            Some(Begin::Complete(response)) => drop(http.respond(response)),
            Some(Begin::Stream(response, length)) => drop(http.begin(response, length)),
            None => {}
        }
        let (mut written, mut too_long) = (0, false);
        while let Some(piece) = pieces.front() {
            http.state.refused = false;
            if http.write(piece) == crate::Sent::Dropped {
                // Otherwise it is more than the announced length.
                too_long = !http.state.refused;
                break;
            }
            written += piece.len();
            pieces.pop_front();
        }
        if too_long {
            http.abort();
        } else if pieces.is_empty() && finished {
            http.finish();
        } else if pieces.is_empty() && aborted {
            http.abort();
        }
        let mut state = self.lock();
        state.waiting -= written;
        // What was refused precedes what was added meanwhile.
        pieces.append(&mut state.pieces);
        state.pieces = pieces;
        self.notify(state, waking);
    }

    /// Tells the writers that there is room, or that nobody is there.
    fn notify(&self, mut state: MutexGuard<'_, State>, waking: &Waking) {
        if !state.has_room() && !state.gone {
            return;
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(|(_, waker)| waking.wake(waker));
    }

    /// The exchange has ended.
    pub(crate) fn end(&self, waking: &Waking) {
        let mut state = self.lock();
        state.gone = true;
        let dropped = (state.begin.take(), std::mem::take(&mut state.pieces));
        self.notify(state, waking);
        drop(dropped);
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
    ///
    /// ```
    /// # use standfast::{Gone, Reply, Response, WriteError};
    /// /// Sends lines, in a thread that may wait.
    /// fn send(reply: Reply, lines: impl Iterator<Item = String>) -> Result<(), Gone> {
    ///     let body = reply.stream(Response::new(200), None);
    ///     for line in lines {
    ///         while body.write(line.as_bytes()) == Err(WriteError::Full) {
    ///             body.wait()?;
    ///         }
    ///     }
    ///     body.finish();
    ///     Ok(())
    /// }
    /// ```
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
        let begins = |state: &mut State| {
            state.begin = Some(begin);
            Ok(())
        };
        // A client that has left needs no answer.
        let _ = self.shared.tell(self.id, &self.remote, begins);
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
        self.shared.tell(self.id, &self.remote, |state| {
            // What is ready takes a piece of any length: otherwise a long one would be refused and awaited in turn.
            if !state.has_room() && state.waiting + data.len() > WRITER_BYTES {
                return Err(WriteError::Full);
            }
            state.waiting += data.len();
            state.pieces.push_back(data.into());
            Ok(())
        })
    }

    /// A future that is done when at most 128 KiB wait. Any number of tasks may wait at a time; they are woken
    /// together, so one of them may find [`WriteError::Full`] again.
    ///
    /// # Errors
    /// [`Gone`], if the client has left.
    pub fn ready(&self) -> impl Future<Output = Result<(), Gone>> + Send + '_ {
        Ready { shared: &self.shared, number: None }
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
        self.end(|state| state.finished = true);
    }

    fn end(&self, how: impl FnOnce(&mut State)) {
        let ends = |state: &mut State| {
            how(state);
            Ok(())
        };
        // A client that has left needs no end.
        let _ = self.shared.tell(self.id, &self.remote, ends);
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
            self.end(|state| state.aborted = true);
        }
    }
}

impl std::fmt::Debug for BodyWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BodyWriter({})", self.id)
    }
}

struct Ready<'a> {
    shared: &'a Shared,
    /// That of its waker, once it waits.
    number: Option<u64>,
}

impl Future for Ready<'_> {
    type Output = Result<(), Gone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        if state.gone {
            return Poll::Ready(Err(Gone));
        }
        if state.has_room() {
            return Poll::Ready(Ok(()));
        }
        let number = self.number.unwrap_or_else(|| {
            state.next_waiter += 1;
            state.next_waiter
        });
        let before = state.take_waker(number);
        state.wakers.push((number, context.waker().clone()));
        drop(state);
        // Not with the lock held: it may own a task that has a writer.
        drop(before);
        self.number = Some(number);
        Poll::Pending
    }
}

/// One that is no longer waited for is not woken.
impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.shared.lock().take_waker(number);
            drop(waker);
        }
    }
}
