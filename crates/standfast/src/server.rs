//! [`Server`]: addresses, routes and limits, to be started; [`Running`]: a server that was.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use engine::sys::process::{self, Listen};
use engine::{LISTENERS_MAX, Plan, Tables, TlsServer, Totals, WORKERS_MAX, Workers};
use topics::Directory;

use crate::intervals::Every;
use crate::limits::Classes;
use crate::pubsub::{self, Link};
use crate::remote::Hub;
use crate::remote::Post;
use crate::routes::{NoRoutes, Routed, Routes};
use crate::table::{Service, Table, Target};
use crate::waking::Waking;
use crate::worker::{Ended, Shared, WorkerHandler};
use crate::{Error, Exchange, Handler, Limits, Remote, Reply, Request, Response, RouteOptions};

/// A connection is accepted when its request has arrived, or after this time (`TCP_DEFER_ACCEPT`).
const ACCEPT_DEFER: Duration = Duration::from_secs(1);

/// A server that listens, but has not started yet: clients wait until it has.
///
/// ```no_run
/// # use standfast::{Accept, Handler, Message, Response, Server, Socket, UpgradeRequest};
/// # #[derive(Clone)] struct Chat;
/// # impl Handler for Chat {
/// #     type Data = ();
/// #     fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
/// #         Ok(Accept::default())
/// #     }
/// #     fn message(&mut self, _: &mut Socket<'_>, _: &mut (), _: Message<'_>) {}
/// # }
/// Server::bind("127.0.0.1:8080")?
///     .route("/chat/{room}", Chat)
///     .get("/health", |_| Response::text(200, "ok\n"))
///     .workers(2)
///     .run()?;
/// # Ok::<(), standfast::Error>(())
/// ```
pub struct Server<R: Routes = NoRoutes> {
    listeners: Listeners,
    routes: R,
    table: Table,
    limits: Limits,
    workers: Option<usize>,
    tls: Option<TlsServer>,
    broker: pubsub::Choice,
    /// Never locked: the mutex keeps the server `Sync`.
    pub(crate) every: Mutex<Vec<Every>>,
    /// The first mistake in the routes.
    mistake: Option<String>,
}

/// A server whose workers can start.
pub(crate) struct Prepared<R> {
    pub(crate) plan: Plan,
    pub(crate) limits: engine::Limits,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) listeners: Vec<i32>,
    pub(crate) routes: R,
    pub(crate) shared: Shared,
}

/// Addresses with one listener each, which are closed if the server does not start.
#[derive(Default)]
struct Listeners(Vec<(SocketAddr, i32)>);

impl Drop for Listeners {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(_, number)| process::close(number));
    }
}

impl Server {
    /// Listens on an address. Port 0 takes a free one, see [`Server::address`]. Of a name with several
    /// addresses the first that can be listened on is taken.
    ///
    /// # Errors
    /// [`Error::Address`] and [`Error::Listen`].
    pub fn bind(address: impl ToSocketAddrs) -> Result<Server, Error> {
        let server = Server {
            listeners: Listeners::default(),
            routes: NoRoutes,
            table: Table::default(),
            limits: Limits::default(),
            workers: None,
            tls: None,
            broker: Default::default(),
            every: Mutex::default(),
            mistake: None,
        };
        server.and_bind(address)
    }
}

impl<R: Routes> Server<R> {
    /// Listens on a further address.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn and_bind(mut self, address: impl ToSocketAddrs) -> Result<Self, Error> {
        let mut error =
            Error::Address(io::Error::new(io::ErrorKind::InvalidInput, "the name has no address"));
        for address in address.to_socket_addrs().map_err(Error::Address)? {
            match listen_first(address) {
                Ok(listener) => {
                    self.listeners.0.push(listener);
                    return Ok(self);
                }
                Err(failed) => error = Error::Listen(address, failed),
            }
        }
        Err(error)
    }

    /// The first address, with the port that the system chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listeners.0.first().map_or(([0, 0, 0, 0], 0).into(), |(address, _)| *address)
    }

    /// Opens WebSockets at a path, for this handler.
    ///
    /// A path has segments of text, parameters such as `{room}` for one segment, and at its end `{*rest}`
    /// for all that follow. Where several fit, text is preferred, whatever the order of the routes. A
    /// mistake in it is reported when the server starts.
    ///
    /// Each call makes a new type of server. A function that returns one says
    /// `Server<impl Routes>`.
    #[must_use]
    pub fn route<H: Handler>(self, path: &str, handler: H) -> Server<Routed<H, R>> {
        self.route_with(path, handler, RouteOptions::default())
    }

    /// As [`Server::route`], with what this route does differently.
    #[must_use]
    pub fn route_with<H: Handler>(
        mut self,
        path: &str,
        handler: H,
        options: RouteOptions,
    ) -> Server<Routed<H, R>> {
        self.add(path, Target::Socket(R::LEN));
        Server {
            listeners: self.listeners,
            routes: Routed::new(handler, options, self.routes),
            table: self.table,
            limits: self.limits,
            workers: self.workers,
            tls: self.tls,
            broker: self.broker,
            every: self.every,
            mistake: self.mistake,
        }
    }

    /// Answers plain requests for a path, by GET and HEAD; OPTIONS is answered with the methods of a path. The function is called in the workers: it must
    /// not wait.
    #[must_use]
    pub fn get(
        self,
        path: &str,
        respond: impl Fn(&Request<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.http("GET", path, None, respond)
    }

    /// Answers POST requests with bodies of at most this many bytes; longer ones are answered 413.
    #[must_use]
    pub fn post(
        self,
        path: &str,
        body_bytes: u64,
        respond: impl Fn(&Request<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.http("POST", path, Some(body_bytes), respond)
    }

    /// Answers plain requests with another method, such as `PUT`, in capitals. Without a limit no body is
    /// read.
    #[must_use]
    pub fn http(
        mut self,
        method: &str,
        path: &str,
        body_bytes: Option<u64>,
        respond: impl Fn(&Request<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        let (method, service) = (method.into(), Service::Now(Arc::new(respond)));
        self.add(path, Target::Http { method, body_bytes, service });
        self
    }

    /// Answers plain requests later, from other threads or futures: the function is called in the workers,
    /// and passes the [`Reply`](crate::Reply) on. A longer body than the limit is answered 413, without a limit any
    /// body.
    ///
    /// ```no_run
    /// # use standfast::{Response, Server};
    /// # fn look_up(_: &str) -> Option<String> { None }
    /// # fn main() -> Result<(), standfast::Error> {
    /// let (questions, received) = std::sync::mpsc::channel::<(String, standfast::Reply)>();
    /// std::thread::spawn(move || {
    ///     for (name, reply) in received {
    ///         reply.respond(match look_up(&name) {
    ///             Some(user) => Response::json(user),
    ///             None => Response::new(404),
    ///         });
    ///     }
    /// });
    /// Server::bind("127.0.0.1:8080")?
    ///     .later("GET", "/users/{name}", None, move |request, reply| {
    ///         let name = request.param("name").unwrap_or_default();
    ///         let _ = questions.send((name.into(), reply));
    ///     })
    ///     .run()
    /// # }
    /// ```
    ///
    /// Cost: two allocations for each request more than [`Server::http`].
    #[must_use]
    pub fn later(
        mut self,
        method: &str,
        path: &str,
        body_bytes: Option<u64>,
        ask: impl Fn(&Request<'_>, Reply) + Send + Sync + 'static,
    ) -> Self {
        let (method, service) = (method.into(), Service::Later(Arc::new(ask)));
        self.add(path, Target::Http { method, body_bytes, service });
        self
    }

    /// Answers plain requests whose bodies are received in pieces, of at most `body_bytes` bytes in all, or
    /// whose answers are sent in pieces. The function is called in the workers when the head has arrived,
    /// and returns what is to be called from then on, or the answer that refuses the request.
    ///
    /// ```no_run
    /// use standfast::{Exchange, Http, Response, Server};
    ///
    /// /// Sends a body back while it is received.
    /// struct Mirror;
    ///
    /// impl Exchange for Mirror {
    ///     fn begin(&mut self, http: &mut Http<'_>) {
    ///         http.begin(Response::new(200), None);
    ///     }
    ///
    ///     fn data(&mut self, http: &mut Http<'_>, data: &[u8]) {
    ///         if http.write(data) != standfast::Sent::Sent {
    ///             http.pause();
    ///         }
    ///     }
    ///
    ///     fn drain(&mut self, http: &mut Http<'_>) {
    ///         http.resume();
    ///     }
    ///
    ///     fn end(&mut self, http: &mut Http<'_>) {
    ///         http.finish();
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), standfast::Error> {
    /// Server::bind("127.0.0.1:8080")?
    ///     .exchange("POST", "/mirror", 1 << 30, |_| Ok(Box::new(Mirror)))
    ///     .run()
    /// # }
    /// ```
    #[must_use]
    pub fn exchange(
        mut self,
        method: &str,
        path: &str,
        body_bytes: u64,
        begin: impl Fn(&Request<'_>) -> Result<Box<dyn Exchange>, Response> + Send + Sync + 'static,
    ) -> Self {
        let (method, service) = (method.into(), Service::Exchange(Arc::new(begin)));
        self.add(path, Target::Http { method, body_bytes: Some(body_bytes), service });
        self
    }

    /// Number of workers, each a thread: at least 1, at most [`WORKERS_MAX`]. Default: one for each core.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers.clamp(1, WORKERS_MAX));
        self
    }

    /// Replaces the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// All connections use TLS, with the certificates of a [`TlsServer`].
    ///
    /// ```no_run
    /// # use standfast::{ClientAuth, Server, TlsIdentity, TlsServer, TlsVersion};
    /// let (certificates, key) = (std::fs::read("chain.pem")?, std::fs::read("key.pem")?);
    /// let identity = TlsIdentity::from_pem(&certificates, &key)?;
    /// let tls = TlsServer::new(&[identity], TlsVersion::default(), ClientAuth::None)?;
    /// Server::bind("0.0.0.0:443")?.tls(tls).run()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tls(mut self, tls: TlsServer) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Topics reach other processes, too, by this broker: see [the crate](crate#several-processes).
    #[cfg(any(feature = "redis", feature = "nats"))]
    #[must_use]
    pub fn broker(mut self, broker: crate::Broker) -> Self {
        self.broker = Some(broker);
        self
    }

    /// Topics reach other processes, too, by the Redis at this URL: see [`Broker::redis`](crate::Broker::redis).
    ///
    /// # Errors
    /// [`Error::Broker`].
    #[cfg(feature = "redis")]
    pub fn redis(self, url: &str) -> Result<Self, Error> {
        Ok(self.broker(crate::Broker::redis(url)?))
    }

    /// Topics reach other processes, too, by the NATS at this URL: see [`Broker::nats`](crate::Broker::nats).
    ///
    /// # Errors
    /// [`Error::Broker`].
    #[cfg(feature = "nats")]
    pub fn nats(self, url: &str) -> Result<Self, Error> {
        Ok(self.broker(crate::Broker::nats(url)?))
    }

    /// Starts the workers and returns; they accept clients then.
    ///
    /// # Errors
    /// [`Error::Route`], [`Error::Listen`], [`Error::Broker`] and [`Error::Workers`].
    pub fn start(self) -> Result<Running, Error> {
        self.start_with(Tables::Shared)
    }

    pub(crate) fn start_with(self, tables: Tables) -> Result<Running, Error> {
        let cores = || available_parallelism().map_or(1, usize::from);
        let workers = self.workers.unwrap_or_else(cores).clamp(1, WORKERS_MAX);
        let prepared = self.prepare(workers, tables)?;
        let Prepared { plan, limits, addresses, listeners, routes, shared } = prepared;
        let (directory, link) = (shared.directory.clone(), shared.link.clone());
        let (ended, hub) = (Arc::clone(&shared.ended), Arc::clone(&shared.hub));
        let routes = Mutex::new(routes);
        let handler = move |worker: u16, workers: &engine::Remote<Post>| {
            let own = routes.lock().unwrap_or_else(PoisonError::into_inner).fork();
            WorkerHandler::new(worker, own, &shared, workers)
        };
        let workers = Workers::start(plan, &limits, &listeners, handler).map_err(Error::Workers)?;
        if let Err(error) = link.start(workers.remote(), &directory) {
            let _ = workers.drain(Duration::ZERO);
            link.end();
            return Err(Error::Workers(error));
        }
        let remote = Remote::new(workers.remote().clone(), directory, link, hub);
        Ok(Running { workers, remote, addresses, ended })
    }

    /// Checks the routes and opens the listeners of all workers.
    pub(crate) fn prepare(mut self, workers: usize, tables: Tables) -> Result<Prepared<R>, Error> {
        if let Some(mistake) = self.mistake {
            return Err(Error::Route(mistake));
        }
        let listeners = self.listeners.0.len() * workers;
        if listeners > LISTENERS_MAX {
            return Err(Error::TooManyListeners);
        }
        let nofile = capacity::raise_nofile().unwrap_or_else(|_| capacity::nofile().soft);
        let connections = self.limits.connections.unwrap_or(1);
        let mut plan = Plan::new(connections, workers, nofile, listeners, tables);
        if let Some(connections) = self.limits.connections {
            let share = connections.div_ceil(plan.workers as u64).max(1);
            plan.capacity = plan.capacity.min(u32::try_from(share).unwrap_or(u32::MAX));
        }
        let addresses: Vec<_> = self.listeners.0.iter().map(|(address, _)| *address).collect();
        let (mut rest, backlog) = (Listeners::default(), self.limits.backlog);
        for (address, number) in &self.listeners.0 {
            // It listens since it was bound, before there were limits.
            process::set_backlog(*number, backlog)
                .map_err(|error| Error::Listen(*address, error))?;
        }
        for address in &addresses {
            for _ in 1..workers {
                let opened = process::listen(&options(*address, true, backlog));
                let (number, _) = opened.map_err(|error| Error::Listen(*address, error))?;
                rest.0.push((*address, number));
            }
        }
        let message_bytes = self.routes.set_message_bytes(self.limits.message_bytes);
        let classes = Classes::new(&self.routes.options(), &self.limits);
        if classes.len() > Classes::MAX {
            let what = "more than 254 routes of WebSockets, some with limits of their own";
            return Err(Error::Route(what.into()));
        }
        let by_route = classes.len() > 0;
        let limits = self.limits.of_engine(message_bytes, classes);
        self.table.sort();
        let waking = match tables {
            Tables::Shared => Waking::Here,
            // Before the workers leave the table of the process.
            Tables::Private => Waking::by_thread().map_err(Error::Workers)?,
        };
        let mut directory = Directory::new();
        let link = Link::new(self.broker, &mut directory)?;
        let shared = Shared {
            table: Arc::new(self.table),
            directory,
            link,
            tls: self.tls,
            by_route,
            reply_timeout: self.limits.reply_timeout,
            exchange_timeout: self.limits.exchange_timeout,
            every: self.every,
            hub: Arc::new(Hub::new(plan.workers, waking)),
            ended: Arc::default(),
        };
        // From here on the caller owns the listeners.
        let all = self.listeners.0.drain(..).chain(rest.0.drain(..));
        let listeners = all.map(|(_, number)| number).collect();
        Ok(Prepared { plan, limits, addresses, listeners, routes: self.routes, shared })
    }

    /// Starts the server and waits until it ends, as [`Running::wait`].
    ///
    /// # Errors
    /// As [`Server::start`], and [`Error::Failed`].
    pub fn run(self) -> Result<(), Error> {
        self.start()?.wait()
    }

    fn add(&mut self, path: &str, target: Target) {
        if let Err(mistake) = self.table.add(path, target) {
            self.mistake.get_or_insert(mistake);
        }
    }
}

impl<R: Routes> fmt::Debug for Server<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address())
    }
}

/// Opens the first listener of an address. Others may share its port from then on.
fn listen_first(address: SocketAddr) -> io::Result<(SocketAddr, i32)> {
    let backlog = Limits::default().backlog;
    if address.port() != 0 {
        // SO_REUSEPORT would also share it with another server of this user: try without it first.
        process::try_bind(&options(address, false, backlog))?;
    }
    process::listen(&options(address, true, backlog)).map(|(number, actual)| (actual, number))
}

fn options(address: SocketAddr, shared_port: bool, backlog: u32) -> Listen {
    Listen { address, backlog, shared_port, defer: ACCEPT_DEFER, v6_only: false }
}

/// A server that has started. Dropping this leaves it running.
pub struct Running {
    workers: Workers<Post>,
    remote: Remote,
    addresses: Vec<SocketAddr>,
    ended: Arc<Ended>,
}

impl Running {
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

    /// What the workers have counted, summed up: see [`Totals`].
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.remote.totals()
    }

    /// The same in Prometheus's text format 0.0.4, with the names that `standfast serve` has. See
    /// [`Remote::metrics`].
    #[must_use]
    pub fn metrics(&self) -> String {
        self.remote.metrics()
    }

    /// Stops the server as [`Remote::stop`], and waits until all connections have ended: `over`, then at most
    /// [`Limits::stop_grace`] for answers under way and [`Limits::close_timeout`] for the peers, and with a
    /// broker one second until it has what was published.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn stop(self, over: Duration) -> Result<(), Error> {
        let ended = self.workers.drain(over).map_err(Error::Failed);
        self.remote.link.end();
        ended
    }

    /// Waits until the server ends: after [`Remote::stop`], or because a worker has failed.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn wait(self) -> Result<(), Error> {
        self.ended.wait();
        // Workers that drain go on as they are; if one has failed, the others end now.
        let ended = self.workers.drain(Duration::ZERO).map_err(Error::Failed);
        self.remote.link.end();
        ended
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({})", self.address())
    }
}
