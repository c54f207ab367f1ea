//! [`Embedded`]: a server without threads of its own, driven by the event loop of another program.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use engine::sys::linux::Linux;
use engine::sys::process::{self, now_ns};
use engine::{Tables, Totals, Turn, Worker};

use crate::operations::WorkerOperations;
use crate::pubsub::Link;
use crate::routes::Routes;
use crate::server::Prepared;
use crate::worker::WorkerHandler;
use crate::{Context, Error, Remote, Server};

/// A server with one worker that has no thread: its owner calls [`Embedded::turn`], for example from the event
/// loop of a graphical program or of an interpreter. Made by [`Server::embed`].
///
/// The loop watches [`Embedded::poll_fd`] for reading, level-triggered. A turn is due when that is readable, and
/// after [`Embedded::due`]. It takes a fraction of a millisecond unless handlers wait, and does not wait itself. Between two
/// turns [`Embedded::act`] acts on any socket.
///
/// ```
/// # use standfast::{Accept, Handler, Message, Response, Server, Socket, UpgradeRequest};
/// # #[derive(Clone)] struct Echo;
/// # impl Handler for Echo {
/// #     type Data = ();
/// #     fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
/// #         Ok(Accept::default())
/// #     }
/// #     fn message(&mut self, socket: &mut Socket<'_>, _: &mut (), message: Message<'_>) {
/// #         socket.send(message);
/// #     }
/// # }
/// # /// Waits for a descriptor, as the loop of a program does.
/// # fn wait(_: i32, _: Option<std::time::Duration>) {}
/// let mut server = Server::bind("127.0.0.1:0")?.route("/echo", Echo).embed()?;
/// # let mut rounds = 0..3;
/// # let mut going_on = || rounds.next().is_some();
/// while going_on() {
///     wait(server.poll_fd(), server.due());
///     server.turn()?;
///     server.act(|context| context.publish("rounds", "another round"))?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it ends all connections at once; to close them with 1001, see [`Remote::stop`] and go on with turns
/// until [`Embedded::turn`] returns `false`.
pub struct Embedded<R: Routes> {
    worker: Worker<Linux, WorkerHandler<R>>,
    remote: Remote,
    link: Link,
    addresses: Vec<SocketAddr>,
    listeners: Vec<i32>,
}

impl<R: Routes> Server<R> {
    /// Starts the server without threads, one worker that its owner drives. [`Server::workers`] has no effect.
    /// (With a broker its connections have a thread.)
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn embed(self) -> Result<Embedded<R>, Error> {
        let Prepared { plan, limits, addresses, listeners, routes, shared } =
            self.prepare(1, Tables::Shared)?;
        let mut remote = None;
        let worker = Worker::embedded(limits, plan.capacity, |workers| {
            remote = Some(Remote::new(
                workers.clone(),
                shared.directory.clone(),
                shared.link.clone(),
                Arc::clone(&shared.hub),
            ));
            WorkerHandler::new(0, routes, &shared, workers)
        });
        let started = worker.map_err(Error::Workers).and_then(|worker| {
            let remote = remote.ok_or_else(|| Error::Workers(std::io::ErrorKind::Other.into()))?;
            remote.link.start(&remote.workers, &shared.directory).map_err(Error::Workers)?;
            Ok((worker, remote))
        });
        let (mut worker, remote) = match started {
            Ok(started) => started,
            Err(error) => {
                shared.link.end();
                listeners.iter().for_each(|&number| process::close(number));
                return Err(error);
            }
        };
        for &number in &listeners {
            // `prepare` has counted them.
            let _ = worker.add_listener(number);
        }
        Ok(Embedded { worker, remote, link: shared.link, addresses, listeners })
    }
}

impl<R: Routes> Embedded<R> {
    /// The descriptor to watch for reading: an epoll instance, which is readable while a turn has something
    /// to do.
    #[must_use]
    pub fn poll_fd(&self) -> i32 {
        self.worker.as_fd().as_raw_fd()
    }

    /// Time until a turn is due even if the descriptor is not readable; `None` for never. It may become shorter
    /// by [`Embedded::act`] and [`Embedded::turn`].
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let at_ns = self.worker.deadline()?;
        Some(Duration::from_nanos(at_ns.saturating_sub(now_ns())))
    }

    /// Reads and sends what is possible, and calls the handlers. Returns `false` once the server has stopped:
    /// see [`Remote::stop`].
    ///
    /// # Errors
    /// [`Error::Failed`]: epoll itself fails, and the server cannot go on.
    pub fn turn(&mut self) -> Result<bool, Error> {
        let turn = self.worker.turn(Some(Duration::ZERO)).map_err(Error::Failed)?;
        Ok(turn == Turn::Running)
    }

    /// Acts on sockets and topics between two turns. What it publishes is delivered in the next turn, which is
    /// due at once then.
    pub fn act<T>(&mut self, act: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let (handler, core) = self.worker.act();
        let mut operations = WorkerOperations { core, tools: &mut handler.tools };
        act(&mut Context::new(&mut operations))
    }

    /// The addresses that it listens on, with the ports that the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The first of them.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.addresses.first().copied().unwrap_or(([0, 0, 0, 0], 0).into())
    }

    /// The handle for other threads.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// What was counted: see [`Totals`].
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.remote.totals()
    }
}

impl<R: Routes> Drop for Embedded<R> {
    fn drop(&mut self) {
        self.worker.end_all();
        self.link.end();
        self.listeners.iter().for_each(|&number| process::close(number));
    }
}

impl<R: Routes> AsFd for Embedded<R> {
    /// As [`Embedded::poll_fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.worker.as_fd()
    }
}

impl<R: Routes> fmt::Debug for Embedded<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedded({})", self.address())
    }
}
