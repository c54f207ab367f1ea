//! [`Clients`]: connections that a worker of their own drives; [`ClientRemote`]: the handle to one of them.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{MailboxFull, Totals};
use wire::websocket::OpCode;

use super::driver::Driver;
use super::resolver::{Lookups, Resolver};
use super::worker::{ClientPost, Connection};
use super::{ClientError, ClientHandler, Connect};
use crate::remote::{ReceiptSender, receipt};
use crate::waking::Waking;
use crate::{CloseCode, Limits, Message, Receipt};

/// Connections with handlers of one type, driven by one thread: for bots, bridges and feeds.
///
/// ```no_run
/// use standfast::{ClientHandler, ClientSocket, Clients, Connect, Limits, Message, Reconnect};
///
/// struct Bot;
///
/// impl ClientHandler for Bot {
///     fn message(&mut self, socket: &mut ClientSocket<'_>, message: Message<'_>) {
///         if message == Message::Text("ping") {
///             socket.send("pong");
///         }
///     }
/// }
///
/// # fn main() -> Result<(), standfast::ClientError> {
/// let bots = Clients::start(Limits::default())?;
/// let connect = Connect::to("ws://127.0.0.1:8080/chat/a").reconnect(Reconnect::default());
/// let bot = bots.connect(&connect, Bot)?;
/// let _ = bot.send("hello");
/// # Ok(())
/// # }
/// ```
pub struct Clients<H> {
    remote: ClientRemote,
    resolver: Resolver,
    next: AtomicU64,
    thread: JoinHandle<io::Result<()>>,
    handler: PhantomData<fn(H)>,
}

impl<H: ClientHandler + Send> Clients<H> {
    /// Starts the thread. These limits are those of all connections.
    ///
    /// # Errors
    /// [`ClientError::Worker`].
    pub fn start(limits: Limits) -> Result<Clients<H>, ClientError> {
        Clients::start_with(limits, Resolver::new)
    }

    /// With a resolver that is made for this number of threads.
    fn start_with(limits: Limits, resolver: fn(usize) -> Resolver) -> Result<Self, ClientError> {
        let (started, start) = mpsc::channel();
        let resolver = resolver(limits.lookups);
        let own_resolver = resolver.clone();
        let run = move || {
            // The descriptors of a driver belong to its thread.
            let mut driver = match Driver::<H>::new(&limits, own_resolver) {
                Ok(driver) => driver,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return Ok(());
                }
            };
            let _ = started.send(Ok(driver.remote()));
            while driver.turn(None)? {}
            Ok(())
        };
        let thread = std::thread::Builder::new().name("clients".to_owned()).spawn(run);
        let thread = thread.map_err(ClientError::Worker)?;
        let workers = start.recv().unwrap_or_else(|_| Err(ended())).map_err(ClientError::Worker)?;
        let remote = ClientRemote { workers, number: 0 };
        Ok(Clients { remote, resolver, next: AtomicU64::new(1), thread, handler: PhantomData })
    }

    /// Begins a connection. [`ClientHandler::open`] or [`ClientHandler::close`] reports what becomes of it.
    /// With [`Connect::reconnect`] a first connection that fails is tried again, too.
    ///
    /// # Errors
    /// [`ClientError`], or [`ClientError::Worker`] if the mailbox is full, or the thread has ended because a handler
    /// panicked: [`Clients::wait`] tells.
    pub fn connect(&self, connect: &Connect, handler: H) -> Result<ClientRemote, ClientError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let remote = ClientRemote { workers: self.remote.workers.clone(), number };
        let connection = Connection::new(connect.check()?, handler, remote.clone());
        let bytes = size_of::<Connection<H>>();
        let posted = self.remote.workers.post(0, ClientPost::Connect(connection), bytes);
        posted.map_err(|full| ClientError::Worker(io::Error::other(full.to_string())))?;
        if self.remote.workers.is_closed(0) {
            return Err(ClientError::Worker(ended()));
        }
        Ok(remote)
    }

    /// Lookups of names, now and since the start.
    #[must_use]
    pub fn lookups(&self) -> Lookups {
        self.resolver.figures()
    }

    /// What was counted, over all connections.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals::sum(self.remote.workers.counters())
    }

    /// Closes all connections with 1001, spread over this time, and waits until they have ended.
    ///
    /// # Errors
    /// [`ClientError::Worker`]: the thread has failed, for example because a handler panicked.
    pub fn stop(self, over: Duration) -> Result<(), ClientError> {
        self.remote.workers.drain(over);
        let panicked = |_| Err(io::Error::other("a handler panicked"));
        self.thread.join().unwrap_or_else(panicked).map_err(ClientError::Worker)
    }

    /// Waits until the thread ends: after [`Clients::stop`] of nobody else, so in general for ever.
    ///
    /// # Errors
    /// As [`Clients::stop`].
    pub fn wait(self) -> Result<(), ClientError> {
        let panicked = |_| Err(io::Error::other("a handler panicked"));
        self.thread.join().unwrap_or_else(panicked).map_err(ClientError::Worker)
    }
}

impl<H> std::fmt::Debug for Clients<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clients({} begun)", self.next.load(Ordering::Relaxed) - 1)
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread of the clients has ended: a handler has panicked")
}

/// A handle to a connection of a client that any thread and any future can have. It stays valid when the
/// connection is opened again. A clone costs a reference count.
#[derive(Clone)]
pub struct ClientRemote {
    pub(super) workers: engine::Remote<ClientPost>,
    pub(super) number: u64,
}

impl ClientRemote {
    /// Sends a message. While there is no connection it is lost: [`ClientRemote::send_with_receipt`] tells.
    ///
    /// # Errors
    /// [`MailboxFull`]: nothing was posted; try again later.
    pub fn send<'m>(&self, message: impl Into<Message<'m>>) -> Result<(), MailboxFull> {
        self.post(message.into(), None)
    }

    /// As [`ClientRemote::send`], and tells what became of it.
    ///
    /// # Errors
    /// As [`ClientRemote::send`].
    pub fn send_with_receipt<'m>(
        &self,
        message: impl Into<Message<'m>>,
    ) -> Result<Receipt, MailboxFull> {
        let (sender, receipt) = receipt(Waking::Here);
        self.post(message.into(), Some(sender))?;
        Ok(receipt)
    }

    /// Closes the connection, which is not opened again.
    ///
    /// # Errors
    /// As [`ClientRemote::send`].
    pub fn close(&self, code: CloseCode, reason: &str) -> Result<(), MailboxFull> {
        let post = ClientPost::Close { number: self.number, code, reason: reason.into() };
        self.workers.post(0, post, reason.len())
    }

    fn post(
        &self,
        message: Message<'_>,
        receipt: Option<ReceiptSender>,
    ) -> Result<(), MailboxFull> {
        let binary = message.opcode() == OpCode::Binary;
        let data: Box<[u8]> = message.as_bytes().into();
        let post = ClientPost::Send { number: self.number, binary, data, receipt };
        self.workers.post(0, post, message.len())
    }
}

impl std::fmt::Debug for ClientRemote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientRemote({})", self.number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::super::resolver::Found;
    use super::*;
    use crate::{ClientSocket, Lost};

    /// Threads that look up a name.
    static INSIDE: Mutex<Inside> = Mutex::new(Inside { now: 0, most: 0, may_leave: false });
    static CHANGED: Condvar = Condvar::new();

    struct Inside {
        now: usize,
        most: usize,
        may_leave: bool,
    }

    /// Finds nothing, and waits until it may say so.
    fn slow(_: &str, _: u16) -> Found {
        let mut inside = INSIDE.lock().unwrap();
        inside.now += 1;
        inside.most = inside.most.max(inside.now);
        CHANGED.notify_all();
        inside = CHANGED.wait_while(inside, |inside| !inside.may_leave).unwrap();
        inside.now -= 1;
        Err(io::ErrorKind::NotFound.into())
    }

    struct Ends(mpsc::Sender<()>);

    impl ClientHandler for Ends {
        fn message(&mut self, _: &mut ClientSocket<'_>, _: Message<'_>) {}

        fn close(&mut self, _: &Lost) {
            self.0.send(()).unwrap();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs a kernel")]
    fn as_many_threads_look_names_up_as_the_limit_says() {
        let limits = Limits { lookups: 3, ..Limits::default() };
        let clients = Clients::start_with(limits, |threads| Resolver::with(threads, slow)).unwrap();
        let (ends, ended) = mpsc::channel();
        for number in 0..20 {
            let connect = Connect::to(&format!("ws://host-{number}.invalid/"));
            clients.connect(&connect, Ends(ends.clone())).unwrap();
        }
        while clients.lookups().begun < 20 {
            std::thread::yield_now();
        }
        let inside = INSIDE.lock().unwrap();
        let mut inside = CHANGED.wait_while(inside, |inside| inside.now < 3).unwrap();
        let lookups = clients.lookups();
        assert_eq!((lookups.running, lookups.waiting, lookups.delayed), (3, 17, 17));
        inside.may_leave = true;
        drop(inside);
        CHANGED.notify_all();
        (0..20).for_each(|_| ended.recv().unwrap());
        assert_eq!(INSIDE.lock().unwrap().most, 3);
        clients.stop(Duration::ZERO).unwrap();
    }
}
