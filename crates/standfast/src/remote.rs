//! [`Remote`]: the way to a server from other threads and from futures.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use engine::{MailboxFull, Sent, Totals};
use topics::{Directory, Publication};
use wire::websocket::OpCode;

use crate::metrics;
use crate::operations::publication;
use crate::pubsub::Link;
use crate::waking::Waking;
use crate::{CloseCode, Handler, Message, Refused, Socket, SocketId};

/// A handle to a running server that any thread can have. What it is asked for goes to the worker of the
/// socket by a bounded mailbox ([`Limits::mailbox_bytes`](crate::Limits::mailbox_bytes)), and is done in the
/// order of one thread's calls. A clone costs three reference counts.
///
/// It works in futures on any runtime: no method blocks but [`Receipt::wait`]. Do not call that one in a
/// handler, whose worker it would wait for.
#[derive(Clone)]
pub struct Remote {
    pub(crate) workers: engine::Remote<Post>,
    directory: Directory,
    pub(crate) link: Link,
    pub(crate) hub: Arc<Hub>,
}

/// What other threads and workers share besides mailboxes.
pub(crate) struct Hub {
    /// For each worker, the exchanges whose replies have changed; each is listed once.
    signals: Box<[Mutex<Vec<SocketId>>]>,
    pub(crate) waking: Waking,
}

impl Hub {
    pub(crate) fn new(workers: usize, waking: Waking) -> Hub {
        Hub { signals: (0..workers).map(|_| Mutex::default()).collect(), waking }
    }
}

/// What other threads post to a worker.
pub(crate) enum Post {
    Publication(Arc<Publication>),
    Send { to: SocketId, binary: bool, data: Box<[u8]>, receipt: Option<ReceiptSender> },
    Close { to: SocketId, code: CloseCode, reason: Box<str> },
    Pause { to: SocketId, paused: bool },
    Call { to: SocketId, task: Box<dyn Task> },
}

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post::Publication(publication)
    }
}

impl Remote {
    pub(crate) fn new(
        workers: engine::Remote<Post>,
        directory: Directory,
        link: Link,
        hub: Arc<Hub>,
    ) -> Self {
        Remote { workers, directory, link, hub }
    }

    /// Makes the worker of an exchange look at its reply.
    pub(crate) fn signal(&self, id: SocketId) {
        let worker = usize::from(id.worker());
        if let Some(signals) = self.hub.signals.get(worker) {
            signals.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            self.workers.wake(worker);
        }
    }

    /// The exchanges of a worker whose replies have changed since the last call.
    pub(crate) fn take_signals(&self, worker: u16) -> Vec<SocketId> {
        let signals = self.hub.signals.get(usize::from(worker));
        signals.map_or_else(Vec::new, |signals| {
            std::mem::take(&mut *signals.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Sends a message to a socket. If that has closed, the message is counted as dropped.
    ///
    /// # Errors
    /// [`MailboxFull`]: nothing was posted; try again later.
    pub fn send<'m>(
        &self,
        to: SocketId,
        message: impl Into<Message<'m>>,
    ) -> Result<(), MailboxFull> {
        self.post_message(to, message.into(), None)
    }

    /// As [`Remote::send`], and tells what became of it.
    ///
    /// # Errors
    /// As [`Remote::send`].
    pub fn send_with_receipt<'m>(
        &self,
        to: SocketId,
        message: impl Into<Message<'m>>,
    ) -> Result<Receipt, MailboxFull> {
        let (sender, receipt) = receipt(self.hub.waking.clone());
        self.post_message(to, message.into(), Some(sender))?;
        Ok(receipt)
    }

    /// Publishes to all subscribers of a topic, on all workers, and with a broker in all processes.
    ///
    /// # Errors
    /// [`Refused`]: too much is pending, and nobody gets this message; try again later.
    pub fn publish<'m>(&self, topic: &str, message: impl Into<Message<'m>>) -> Result<(), Refused> {
        let publication = publication(topic, message.into(), None);
        let here = || self.directory.publish(&self.workers, &publication).map(drop);
        self.link.publish(&publication, here)
    }

    /// Closes a socket, as [`Socket::close`].
    ///
    /// # Errors
    /// As [`Remote::send`].
    pub fn close(&self, to: SocketId, code: CloseCode, reason: &str) -> Result<(), MailboxFull> {
        self.post(to, Post::Close { to, code, reason: reason.into() }, reason.len())
    }

    /// Stops reading from a socket, as [`Socket::pause`], or the body of an [`Exchange`](crate::Exchange).
    ///
    /// # Errors
    /// As [`Remote::send`].
    pub fn pause(&self, to: SocketId) -> Result<(), MailboxFull> {
        self.post(to, Post::Pause { to, paused: true }, 0)
    }

    /// Goes on reading from a socket, as [`Socket::resume`], or the body of an
    /// [`Exchange`](crate::Exchange).
    ///
    /// # Errors
    /// As [`Remote::send`].
    pub fn resume(&self, to: SocketId) -> Result<(), MailboxFull> {
        self.post(to, Post::Pause { to, paused: false }, 0)
    }

    /// Calls a function in the worker of a socket, with its handler and its data: for the end of a task
    /// that another thread did for it. If the socket has closed, or its route has another handler, the
    /// function is dropped without being called; a channel whose sender it owns is closed then.
    ///
    /// ```
    /// # use standfast::{Accept, Handler, Message, Remote, Response, Socket, SocketId, UpgradeRequest};
    /// # #[derive(Clone)] struct Shop;
    /// # struct Customer { paid: bool }
    /// # impl Handler for Shop {
    /// #     type Data = Customer;
    /// #     fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<Customer>, Response> {
    /// #         Ok(Accept::new(Customer { paid: false }))
    /// #     }
    /// #     fn message(&mut self, _: &mut Socket<'_>, _: &mut Customer, _: Message<'_>) {}
    /// # }
    /// fn payment_arrived(remote: &Remote, customer: SocketId) {
    ///     let _ = remote.call(customer, |_: &mut Shop, socket, customer| {
    ///         customer.paid = true;
    ///         socket.send("thank you");
    ///     });
    /// }
    /// ```
    ///
    /// # Panics
    /// In debug builds for a [`PrivateServer`](crate::PrivateServer): the function, and what it owns, must
    /// not use a descriptor or a waker there.
    ///
    /// # Errors
    /// As [`Remote::send`].
    pub fn call<H: Handler>(
        &self,
        to: SocketId,
        function: impl FnOnce(&mut H, &mut Socket<'_>, &mut H::Data) + Send + 'static,
    ) -> Result<(), MailboxFull> {
        debug_assert!(
            matches!(self.hub.waking, Waking::Here),
            "a function of another thread may own descriptors or wakers, which a worker with a \
             descriptor table of its own must not use"
        );
        let bytes = size_of_val(&function);
        let task = Box::new(TypedTask { function, handler: PhantomData::<fn(H)> });
        self.post(to, Post::Call { to, task }, bytes)
    }

    /// Stops the server: no more clients are accepted, and the sockets are closed with 1001, spread over
    /// `over` so that not all clients come back to another server at once.
    /// [`Server::run`](crate::Server::run) and [`Running::wait`](crate::Running::wait) return when all
    /// connections have ended.
    pub fn stop(&self, over: Duration) {
        self.workers.drain(over);
    }

    /// What the workers have counted, summed up.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals::sum(self.workers.counters())
    }

    /// The state of the broker; `None` without one.
    #[cfg(any(feature = "redis", feature = "nats"))]
    #[must_use]
    pub fn broker(&self) -> Option<crate::BrokerState> {
        self.link.state()
    }

    /// The same in Prometheus's text format 0.0.4 (`text/plain; version=0.0.4`): names have the prefix
    /// `standfast_`, counters end in `_total`.
    ///
    /// ```no_run
    /// # use standfast::{Response, Server};
    /// // On an address that only Prometheus reaches: the server does not ask who reads it.
    /// Server::bind("127.0.0.1:9100")?
    ///     .get("/metrics", |request| {
    ///         let text = request.remote().metrics().into_bytes();
    ///         Response::body(200, "text/plain; version=0.0.4", text)
    ///     })
    ///     .run()
    /// # ?; Ok::<(), standfast::Error>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics::exposition(&self.totals())
    }

    fn post_message(
        &self,
        to: SocketId,
        message: Message<'_>,
        receipt: Option<ReceiptSender>,
    ) -> Result<(), MailboxFull> {
        let binary = message.opcode() == OpCode::Binary;
        let data: Box<[u8]> = message.as_bytes().into();
        self.post(to, Post::Send { to, binary, data, receipt }, message.len())
    }

    fn post(&self, to: SocketId, post: Post, bytes: usize) -> Result<(), MailboxFull> {
        let worker = usize::from(to.worker());
        if worker >= self.workers.workers() {
            // A number that was never a socket's.
            return Ok(());
        }
        self.workers.post(worker, post, bytes)
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({} workers)", self.workers.workers())
    }
}

// ---- receipts ----

/// What became of a message of [`Remote::send_with_receipt`]: a future, or to be waited for. It can be
/// dropped.
#[derive(Debug)]
pub struct Receipt(Arc<ReceiptShared>);

/// The socket has closed, or its server has ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the socket has closed")
    }
}

impl std::error::Error for Gone {}

#[derive(Debug, Default)]
struct ReceiptShared {
    state: Mutex<ReceiptState>,
    known: Condvar,
}

#[derive(Debug, Default)]
struct ReceiptState {
    outcome: Option<Result<Sent, Gone>>,
    waker: Option<Waker>,
}

/// The worker's side of a receipt. A post that is never processed drops it.
#[derive(Debug)]
pub(crate) struct ReceiptSender(Arc<ReceiptShared>, Waking);

pub(crate) fn receipt(waking: Waking) -> (ReceiptSender, Receipt) {
    let shared = Arc::new(ReceiptShared::default());
    (ReceiptSender(Arc::clone(&shared), waking), Receipt(shared))
}

impl ReceiptSender {
    pub(crate) fn tell(&self, outcome: Result<Sent, Gone>) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        self.0.known.notify_all();
        if let Some(waker) = waker {
            self.1.wake(waker);
        }
    }
}

impl Drop for ReceiptSender {
    fn drop(&mut self) {
        self.tell(Err(Gone));
    }
}

impl Receipt {
    /// Waits until the worker has processed the message. Not in a handler: it would wait for itself.
    ///
    /// # Errors
    /// [`Gone`], if the socket has closed.
    pub fn wait(self) -> Result<Sent, Gone> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = state.outcome {
                return outcome;
            }
            state = self.0.known.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Future for Receipt {
    type Output = Result<Sent, Gone>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = state.outcome {
            return Poll::Ready(outcome);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

// ---- calls ----

/// A function to be called with a handler and the data of a socket, whatever their types are.
pub trait Task: Send {
    fn run(self: Box<Self>, handler: &mut dyn Any, socket: &mut Socket<'_>, data: &mut dyn Any);
}

struct TypedTask<H, F> {
    function: F,
    handler: PhantomData<fn(H)>,
}

impl<H, F> Task for TypedTask<H, F>
where
    H: Handler,
    F: FnOnce(&mut H, &mut Socket<'_>, &mut H::Data) + Send,
{
    fn run(self: Box<Self>, handler: &mut dyn Any, socket: &mut Socket<'_>, data: &mut dyn Any) {
        let (handler, data) = (handler.downcast_mut(), data.downcast_mut());
        if let (Some(handler), Some(data)) = (handler, data) {
            (self.function)(handler, socket, data);
        }
    }
}
