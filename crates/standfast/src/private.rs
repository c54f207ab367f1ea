//! [`PrivateServer`]: workers with descriptor tables of their own.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use engine::{Tables, TlsServer};

use crate::routes::{NoRoutes, Routed, Routes};
use crate::{Context, Error, Handler, Limits, Request, Response, RouteOptions, Running, Server};

/// A promise: in its methods this handler and what it owns use no descriptor that was opened elsewhere, and
/// wake no task of a runtime.
///
/// In a worker with a descriptor table of its own the number of such a descriptor is another file, perhaps
/// the socket of a client. That concerns files, sockets and pipes, wakers of tokio and other runtimes (which
/// write to a descriptor: also when a message is sent to a channel of tokio, or such a channel is dropped),
/// and threads that are started in a handler (they get the table of their worker). Standard streams, channels
/// and locks of `std`, and everything of this crate, may be used.
pub trait DescriptorFree: Handler {}

/// Routes whose handlers are all [`DescriptorFree`].
pub trait DescriptorFreeRoutes: Routes {}

impl DescriptorFreeRoutes for NoRoutes {}

impl<H: DescriptorFree, R: DescriptorFreeRoutes> DescriptorFreeRoutes for Routed<H, R> {}

/// A server whose workers have descriptor tables of their own (`close_range(2)`, Linux 5.9): `RLIMIT_NOFILE`
/// counts for each worker, so a million sockets are held where the limit is 20,000 and cannot be raised.
///
/// A worker holds as many sockets as its table; for [`Limits::connections`] there are as many workers as
/// their tables need, of which one for each core accepts until its table is full.
///
/// What a handler may use is less, so all of them promise to be [`DescriptorFree`], and plain requests are
/// answered by functions that own nothing. A server with shared tables cannot be made private, or the other
/// way round. Futures that wait for a [`Receipt`](crate::Receipt) are woken by a thread that shares the table
/// of the process, never by a worker.
///
/// Start it before anything else opens descriptors: those that are open at that time may stay open in the
/// tables of the workers.
///
/// ```no_run
/// use standfast::{
///     Accept, DescriptorFree, Handler, Limits, Message, PrivateServer, Response, Socket, UpgradeRequest,
/// };
///
/// #[derive(Clone)]
/// struct Echo;
///
/// impl Handler for Echo {
///     type Data = ();
///
///     fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
///         Ok(Accept::default())
///     }
///
///     fn message(&mut self, socket: &mut Socket<'_>, _: &mut (), message: Message<'_>) {
///         socket.send(message);
///     }
/// }
///
/// impl DescriptorFree for Echo {}
///
/// # fn main() -> Result<(), standfast::Error> {
/// PrivateServer::bind("127.0.0.1:8080")?
///     .route("/echo", Echo)
///     .limits(Limits { connections: Some(1_000_000), ..Limits::default() })
///     .run()
/// # }
/// ```
///
/// A handler without the promise is refused when the program is compiled:
///
/// ```compile_fail,E0277
/// # use standfast::{Accept, Handler, Message, PrivateServer, Response, Socket, UpgradeRequest};
/// #[derive(Clone)]
/// struct Echo;
/// # impl Handler for Echo {
/// #     type Data = ();
/// #     fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
/// #         Ok(Accept::default())
/// #     }
/// #     fn message(&mut self, _: &mut Socket<'_>, _: &mut (), _: Message<'_>) {}
/// # }
/// let server = PrivateServer::bind("127.0.0.1:0").unwrap().route("/echo", Echo);
/// ```
///
/// So is a closure that owns something, here a file:
///
/// ```compile_fail,E0308
/// # use std::io::Write;
/// # use standfast::{PrivateServer, Response};
/// let log = std::fs::File::create("/dev/null").unwrap();
/// let server = PrivateServer::bind("127.0.0.1:0").unwrap().get("/", move |_| {
///     let _ = (&log).write_all(b"asked\n");
///     Response::new(204)
/// });
/// ```
///
/// And answers by other threads:
///
/// ```compile_fail,E0599
/// # use standfast::PrivateServer;
/// let server = PrivateServer::bind("127.0.0.1:0").unwrap().later("GET", "/", None, |_, _| {});
/// ```
pub struct PrivateServer<R: Routes = NoRoutes>(Server<R>);

impl PrivateServer {
    /// As [`Server::bind`].
    ///
    /// # Errors
    /// [`Error::Address`] and [`Error::Listen`].
    pub fn bind(address: impl ToSocketAddrs) -> Result<PrivateServer, Error> {
        Server::bind(address).map(PrivateServer)
    }
}

impl<R: DescriptorFreeRoutes> PrivateServer<R> {
    /// As [`Server::and_bind`].
    ///
    /// # Errors
    /// As [`PrivateServer::bind`].
    pub fn and_bind(self, address: impl ToSocketAddrs) -> Result<Self, Error> {
        self.0.and_bind(address).map(PrivateServer)
    }

    /// As [`Server::address`].
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// As [`Server::route`], for a handler that promises to use no descriptors.
    #[must_use]
    pub fn route<H: DescriptorFree>(self, path: &str, handler: H) -> PrivateServer<Routed<H, R>> {
        PrivateServer(self.0.route(path, handler))
    }

    /// As [`Server::route_with`].
    #[must_use]
    pub fn route_with<H: DescriptorFree>(
        self,
        path: &str,
        handler: H,
        options: RouteOptions,
    ) -> PrivateServer<Routed<H, R>> {
        PrivateServer(self.0.route_with(path, handler, options))
    }

    /// As [`Server::get`], with a function that owns nothing.
    #[must_use]
    pub fn get(self, path: &str, respond: fn(&Request<'_>) -> Response) -> Self {
        PrivateServer(self.0.get(path, respond))
    }

    /// As [`Server::http`], with a function that owns nothing.
    #[must_use]
    pub fn http(
        self,
        method: &str,
        path: &str,
        body_bytes: Option<u64>,
        respond: fn(&Request<'_>) -> Response,
    ) -> Self {
        PrivateServer(self.0.http(method, path, body_bytes, respond))
    }

    /// As [`Server::every`], with a function that owns nothing.
    #[must_use]
    pub fn every(self, interval: Duration, act: fn(&mut Context<'_>)) -> Self {
        PrivateServer(self.0.every(interval, act))
    }

    /// Number of workers that accept at first, see [`Server::workers`].
    #[must_use]
    pub fn workers(self, workers: usize) -> Self {
        PrivateServer(self.0.workers(workers))
    }

    /// As [`Server::limits`]. [`Limits::connections`] is the number of sockets that there are workers for;
    /// by default as many as one table for each core holds.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        PrivateServer(self.0.limits(limits))
    }

    /// As [`Server::tls`].
    #[must_use]
    pub fn tls(self, tls: TlsServer) -> Self {
        PrivateServer(self.0.tls(tls))
    }

    /// As [`Server::start`].
    ///
    /// # Errors
    /// As [`Server::start`], and [`Error::NoPrivateTables`].
    pub fn start(self) -> Result<Running, Error> {
        if !engine::sys::process::private_tables_work() {
            return Err(Error::NoPrivateTables);
        }
        self.0.start_with(Tables::Private)
    }

    /// As [`Server::run`].
    ///
    /// # Errors
    /// As [`PrivateServer::start`], and [`Error::Failed`].
    pub fn run(self) -> Result<(), Error> {
        self.start()?.wait()
    }
}

impl<R: Routes> fmt::Debug for PrivateServer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateServer({})", self.0.address())
    }
}
