//! [`Bootstrap`]: the steps before a server's workers start: planning how many there are, and opening
//! the listeners for clients. Private descriptor tables dictate the order: listeners first, then the
//! workers, then everything else that opens descriptors.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use capacity::Count;
use engine::sys::process::{self, Listen};
use engine::sys::spread::{PORTS_OF_A_QUEUE, spread_by_port};
use engine::{Handler, LISTENERS_MAX, Limits, Plan, Remote, Tables, WORKERS_MAX, Workers};
use tracing::warn;

use crate::{Address, Service, Watchdog, listen_unix};

/// `TCP_DEFER_ACCEPT`: a connection is accepted when its request has arrived, or after this time.
const ACCEPT_DEFER: Duration = Duration::from_secs(1);
/// Accept queues of a TCP address on a machine with fewer cores. The kernel limits the length of each
/// (`net.core.somaxconn`, 4,096 by default); a storm of connects that overflows them is dropped.
const ACCEPT_QUEUES: usize = 32;

/// What a server needs from its workers and listeners.
#[derive(Copy, Clone, Debug)]
pub struct BootstrapConfig<'w> {
    /// Addresses to listen on without TLS; port 0 takes a free port.
    pub listen: &'w [Address],
    /// The same with TLS.
    pub listen_tls: &'w [Address],
    /// Length of the accept queue.
    pub backlog: u32,
    /// The time without an acknowledgement after which a client counts as dead.
    pub peer_timeout: Option<Duration>,
    /// Number of workers, if configured.
    pub workers: Option<usize>,
    /// Clients at most, if configured.
    pub clients: Option<u64>,
    /// Clients to plan for otherwise.
    pub clients_default: u64,
    /// Descriptors that each client needs.
    pub descriptors_per_client: u64,
    /// The plural noun for clients in messages.
    pub client_noun: &'static str,
}

impl BootstrapConfig<'_> {
    /// All addresses to listen on, those without TLS first.
    fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.listen.iter().chain(self.listen_tls)
    }

    fn address_count(&self) -> usize {
        self.listen.len() + self.listen_tls.len()
    }
}

/// A public listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its address, with the port that the system chose.
    pub address: Address,
    /// Whether its connections use TLS.
    pub tls: bool,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, if self.tls { " (TLS)" } else { "" })
    }
}

/// Why a server cannot start. The operating system's error is the source.
#[derive(Debug)]
pub enum BootstrapError {
    /// Nothing to listen on.
    NoListener,
    /// More addresses than the engine's limit of listeners.
    TooManyListeners,
    /// The address of a public listener cannot be opened.
    Listen(Address, io::Error),
    /// The requested clients do not fit into descriptor tables.
    Tables {
        /// Planned workers.
        workers: usize,
        /// Clients that these hold.
        capacity: u64,
        /// Clients requested.
        requested: u64,
        /// The plural noun for clients.
        client_noun: &'static str,
        /// Workers that hold the requested clients, if any number does.
        needed: Option<usize>,
        /// Whether each worker has its own table.
        private: bool,
    },
    /// No threads or no descriptors for the workers.
    Workers(io::Error),
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootstrapError::NoListener => f.write_str("no address to listen on: give --listen"),
            BootstrapError::TooManyListeners => {
                write!(f, "too many addresses to listen on: at most {LISTENERS_MAX}")
            }
            BootstrapError::Listen(address, error) => {
                write!(f, "cannot listen on {address}{}", hint(address, error))
            }
            BootstrapError::Tables {
                workers,
                capacity,
                requested,
                client_noun,
                needed,
                private,
            } => {
                let (capacity, requested) = (Count(*capacity), Count(*requested));
                let hold = if *workers == 1 { "worker holds" } else { "workers hold" };
                write!(f, "{workers} {hold} {capacity} {client_noun}, not {requested}: ")?;
                match needed {
                    Some(needed) => write!(f, "use --workers {needed}"),
                    None if *private => f.write_str(
                        "no number of workers is enough; raise the descriptor limit (nofile)",
                    ),
                    None => f.write_str(
                        "this system does not allow a descriptor table per worker; raise the \
                         descriptor limit (nofile) or configure fewer",
                    ),
                }
            }
            BootstrapError::Workers(_) => f.write_str("cannot start the workers"),
        }
    }
}

impl std::error::Error for BootstrapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BootstrapError::Listen(_, error) | BootstrapError::Workers(error) => Some(error),
            _ => None,
        }
    }
}

/// What to do about an address that cannot be opened, in brackets; empty if the error says it.
pub(crate) fn hint(address: &Address, error: &io::Error) -> String {
    let Address::Tcp(tcp) = address else { return String::new() };
    let port = tcp.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            " (choose another port, or see which process has this one: ss -ltnp 'sport = :{port}')"
        ),
        io::ErrorKind::PermissionDenied => format!(
            " (port {port} needs a privilege: AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd \
             unit, or choose a port from 1024)"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!(" (not an address of this machine; all of its addresses are 0.0.0.0:{port})")
        }
        _ => String::new(),
    }
}

/// Planned workers and open listeners.
#[derive(Debug)]
pub struct Bootstrap {
    /// How many workers there are and how many connections each may hold.
    pub plan: Plan,
    /// The public listeners.
    pub listen: Vec<Listener>,
    /// How many of the workers' listeners have no TLS; they are the first.
    pub plain_listeners: usize,
    /// Watches the workers once they have started.
    pub watchdog: Arc<Watchdog>,
    files: Vec<PathBuf>,
    listeners: Vec<i32>,
}

impl Bootstrap {
    /// Raises the descriptor limit, plans the workers, opens the listeners. Call it once, early in
    /// the process: descriptors that are already open stay open in every worker's table.
    ///
    /// # Errors
    /// Addresses that cannot be opened, and clients that do not fit into descriptor tables.
    pub fn prepare(config: &BootstrapConfig<'_>) -> Result<Bootstrap, BootstrapError> {
        let nofile = capacity::raise_nofile().unwrap_or_else(|_| capacity::nofile().soft);
        let cores = capacity::Machine::read().cores;
        let plan = plan(config, cores, nofile, choose_tables())?;
        let opened = open_listeners(config, accepting(config, cores))?;
        let files = config.addresses().filter_map(Address::path).map(Path::to_owned).collect();
        let watchdog = Arc::new(Watchdog::new(plan.workers));
        let Opened { listen, plain_listeners, listeners } = opened;
        Ok(Bootstrap { plan, listen, plain_listeners, watchdog, files, listeners })
    }

    /// The port of the first TCP listener with TLS.
    #[must_use]
    pub fn tls_port(&self) -> Option<u16> {
        let of_tls = self.listen.iter().filter(|listener| listener.tls);
        of_tls.into_iter().find_map(|listener| match listener.address {
            Address::Tcp(address) => Some(address.port()),
            Address::Unix(_) => None,
        })
    }

    /// Starts the workers, which accept connections when this returns. `handler` is called in each
    /// worker's thread when the worker is first needed.
    ///
    /// # Errors
    /// No threads or no descriptors for the workers.
    pub fn start<H, F>(
        self,
        limits: &Limits,
        handler: F,
    ) -> Result<Service<H::Post>, BootstrapError>
    where
        H: Handler + 'static,
        F: Fn(u16, &Remote<H::Post>) -> H + Send + Sync + 'static,
    {
        let workers = Workers::start(self.plan, limits, &self.listeners, handler);
        let workers = workers.map_err(BootstrapError::Workers)?;
        Ok(Service::new(workers, self.watchdog, self.listen, self.files))
    }
}

fn choose_tables() -> Tables {
    if process::private_tables_work() {
        return Tables::Private;
    }
    warn!(
        "this system does not allow a descriptor table per worker (close_range with \
         CLOSE_RANGE_UNSHARE): all workers share the descriptor limit of the process"
    );
    Tables::Shared
}

/// Plans how many workers there are and how many connections each may hold.
fn plan(
    config: &BootstrapConfig<'_>,
    cores: usize,
    nofile: u64,
    tables: Tables,
) -> Result<Plan, BootstrapError> {
    let each = config.descriptors_per_client.max(1);
    let requested = config.clients.unwrap_or(config.clients_default).saturating_mul(each);
    let addresses = config.address_count();
    let listeners = addresses * listeners_per_address(addresses, accepting(config, cores));
    let new = |clients, cores| Plan::new(clients, cores, nofile, listeners, tables);
    let most = new(requested, cores);
    // A plan for few connections has one worker per core.
    let mut plan = config.workers.map_or(most, |workers| new(1, workers));
    // There are more listeners than cores, so without this every worker would accept from one.
    plan.accepting = accepting(config, cores);
    let Some(clients) = config.clients else { return Ok(plan) };
    if plan.connections() < requested {
        let needed = (most.connections() >= requested).then_some(most.workers);
        let (workers, capacity) = (plan.workers, plan.connections() / each);
        let (client_noun, private) = (config.client_noun, tables == Tables::Private);
        return Err(BootstrapError::Tables {
            workers,
            capacity,
            requested: clients,
            client_noun,
            needed,
            private,
        });
    }
    let share = clients.div_ceil(plan.workers as u64).max(1).saturating_mul(each);
    plan.capacity = plan.capacity.min(u32::try_from(share).unwrap_or(u32::MAX));
    Ok(plan)
}

/// How many workers accept from the start: one per core, if there are as many.
fn accepting(config: &BootstrapConfig<'_>, cores: usize) -> usize {
    config.workers.map_or(cores, |workers| workers.min(cores)).clamp(1, WORKERS_MAX)
}

/// Listeners of each TCP address: as many for each worker that accepts from the start, together
/// [`ACCEPT_QUEUES`] where every table has room for them anyway. `SO_REUSEPORT` spreads clients over
/// them, so their accept queues add up.
fn listeners_per_address(addresses: usize, accepting: usize) -> usize {
    let addresses = addresses.max(1);
    let most = (LISTENERS_MAX / addresses).max(1);
    let queues = ACCEPT_QUEUES.min(Plan::LISTENERS_RESERVED / addresses);
    let workers = accepting.clamp(1, most);
    (queues / workers).max(1) * workers
}

/// The listeners of a server.
struct Opened {
    listen: Vec<Listener>,
    /// How many of `listeners` have no TLS; they are the first.
    plain_listeners: usize,
    /// Their descriptors.
    listeners: Vec<i32>,
}

/// Opens the listeners of each address, those of TCP on one port.
fn open_listeners(
    config: &BootstrapConfig<'_>,
    accepting: usize,
) -> Result<Opened, BootstrapError> {
    let addresses = config.address_count();
    if addresses == 0 {
        return Err(BootstrapError::NoListener);
    }
    if addresses > LISTENERS_MAX {
        return Err(BootstrapError::TooManyListeners);
    }
    let each = listeners_per_address(addresses, accepting);
    let (mut opened, mut listen, mut plain_listeners) = (Vec::new(), Vec::new(), 0);
    for (index, address) in config.addresses().enumerate() {
        let actual = match address {
            Address::Tcp(requested) => {
                open_tcp(config, *requested, (each, accepting), &mut opened).map(Address::Tcp)
            }
            Address::Unix(path) => {
                // More descriptors of one socket would add no queue.
                let each = each.min(accepting);
                open_unix(path, each, &mut opened).map(|()| address.clone())
            }
        };
        let actual = actual.map_err(|error| BootstrapError::Listen(address.clone(), error))?;
        let tls = index >= config.listen.len();
        listen.push(Listener { address: actual, tls });
        plain_listeners = if tls { plain_listeners } else { opened.len() };
    }
    Ok(Opened { listen, plain_listeners, listeners: opened })
}

fn open_tcp(
    config: &BootstrapConfig<'_>,
    address: SocketAddr,
    (each, accepting): (usize, usize),
    opened: &mut Vec<i32>,
) -> io::Result<SocketAddr> {
    let mut options = Listen {
        address,
        backlog: config.backlog,
        shared_port: false,
        defer: ACCEPT_DEFER,
        v6_only: v4_listens_on_port(config, address),
    };
    if address.port() != 0 {
        // SO_REUSEPORT would also share the port with another server of this user: try without it first.
        process::try_bind(&options)?;
    }
    options.shared_port = true;
    for _ in 0..each {
        let (number, actual) = process::listen(&options)?;
        if let Some(timeout) = config.peer_timeout {
            process::notice_dead_peers(number, timeout)?;
        }
        options.address = actual;
        opened.push(number);
    }
    let somaxconn = capacity::Machine::read().tcp.somaxconn.unwrap_or(u64::MAX);
    if each > accepting
        && each.is_multiple_of(accepting)
        && u64::from(config.backlog).min(somaxconn) >= PORTS_OF_A_QUEUE
        && let Some(listener) = opened.last()
    {
        let (workers, queues) = (accepting as u32, (each / accepting) as u32);
        // Where the kernel refuses it, or queues are short, connections spread at random, which only costs CPU.
        let _ = spread_by_port(*listener, workers, queues);
    }
    Ok(options.address)
}

/// One socket with several descriptors: each worker that accepts from the start has its own.
fn open_unix(path: &Path, each: usize, opened: &mut Vec<i32>) -> io::Result<()> {
    let listener = listen_unix(path)?;
    for _ in 1..each {
        opened.push(listener.try_clone()?.into_raw_fd());
    }
    opened.push(listener.into_raw_fd());
    Ok(())
}

/// Whether `[::]` must leave IPv4 to another listener. Without this it accepts both.
fn v4_listens_on_port(config: &BootstrapConfig<'_>, address: SocketAddr) -> bool {
    let v4 = |other: &Address| matches!(other, Address::Tcp(v4) if v4.is_ipv4() && v4.port() == address.port());
    address.is_ipv6() && config.addresses().any(v4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: BootstrapConfig<'_> = BootstrapConfig {
        listen: &[],
        listen_tls: &[],
        backlog: 16,
        peer_timeout: None,
        workers: None,
        clients: None,
        clients_default: 1_000_000,
        descriptors_per_client: 1,
        client_noun: "connections",
    };

    fn planned(config: BootstrapConfig<'_>, tables: Tables) -> Result<Plan, String> {
        plan(&config, 2, 20_000, tables).map_err(|error| error.to_string())
    }

    #[test]
    fn the_plan_has_workers_for_the_clients_and_capacity_for_the_workers() {
        let private = |workers, clients| {
            planned(BootstrapConfig { workers, clients, ..SERVER }, Tables::Private).unwrap()
        };
        let default = private(None, None);
        assert!(default.connections() >= 1_000_000 && default.workers > 50, "{default:?}");
        let few = private(None, Some(1_000));
        assert_eq!((few.workers, few.capacity), (2, 500));
        let one = private(Some(1), None);
        assert!(one.workers == 1 && one.capacity > 19_000, "{one:?}");
        let both = private(Some(4), Some(40_000));
        assert_eq!((both.workers, both.capacity), (4, 10_000));
    }

    #[test]
    fn a_client_with_two_descriptors_counts_twice() {
        let pairs = BootstrapConfig { descriptors_per_client: 2, client_noun: "pairs", ..SERVER };
        let private = |workers, clients| {
            planned(BootstrapConfig { workers, clients, ..pairs }, Tables::Private)
        };
        let few = private(None, Some(1_000)).unwrap();
        assert_eq!((few.workers, few.capacity), (2, 1_000));
        let many = private(None, Some(50_000)).unwrap();
        assert!(many.connections() >= 100_000 && many.workers >= 6, "{many:?}");
        let error = private(Some(1), Some(50_000)).unwrap_err();
        assert!(error.contains("--workers 6") && error.contains(" pairs, not 50"), "{error}");
    }

    #[test]
    fn a_plan_that_does_not_fit_is_refused_with_what_would_fit() {
        let error = |workers, clients, tables| {
            planned(BootstrapConfig { workers, clients, ..SERVER }, tables).unwrap_err()
        };
        let two = error(Some(2), Some(1_000_000), Tables::Private);
        assert!(two.contains("--workers 5"), "{two}");
        let none = error(Some(1), Some(1_000_000_000), Tables::Private);
        assert!(none.contains("no number of workers"), "{none}");
        let shared = error(None, Some(100_000), Tables::Shared);
        assert!(shared.contains("a descriptor table per worker"), "{shared}");
    }

    #[test]
    fn accept_queues_of_an_address_add_up() {
        for (addresses, accepting, each) in
            [(1, 1, 32), (1, 2, 32), (1, 3, 30), (1, 48, 48), (2, 2, 32), (4, 2, 16), (40, 2, 2)]
        {
            assert_eq!(
                listeners_per_address(addresses, accepting),
                each,
                "{addresses} {accepting}"
            );
            let listeners = addresses * each;
            assert!(listeners <= Plan::LISTENERS_RESERVED || each == accepting, "{listeners}");
        }
        assert_eq!(listeners_per_address(8, 128), 128);
        assert_eq!(listeners_per_address(16, 128), 64, "at most the engine's limit");
        assert_eq!(listeners_per_address(LISTENERS_MAX, 2), 1);
    }

    #[test]
    fn each_of_128_cores_gets_a_listener_of_every_address() {
        let two =
            [Address::Tcp(([127, 0, 0, 1], 0).into()), Address::Tcp(([127, 0, 0, 1], 0).into())];
        let config = BootstrapConfig { listen: &two, ..SERVER };
        assert_eq!(accepting(&config, 128), 128);
        let opened = open_listeners(&config, 128).unwrap();
        assert_eq!((opened.listeners.len(), opened.listen.len()), (256, 2));
        assert_eq!(opened.plain_listeners, 256);
        opened.listeners.into_iter().for_each(process::close);
        // Every table holds all listeners, so the plan leaves room for them.
        let planned = |listen| {
            let config = BootstrapConfig { listen, ..SERVER };
            plan(&config, 128, 20_000, Tables::Private).unwrap()
        };
        assert_eq!(planned(&two[..1]).capacity - planned(&two).capacity, 128);
        assert_eq!(planned(&two).capacity, 20_000 - 256 - 16 - 128);
    }

    #[test]
    fn plain_listeners_come_before_those_with_tls() {
        let any = [Address::Tcp(([127, 0, 0, 1], 0).into())];
        let config = BootstrapConfig { listen: &any, listen_tls: &any, ..SERVER };
        let opened = open_listeners(&config, 2).unwrap();
        assert_eq!((opened.plain_listeners, opened.listeners.len()), (32, 64));
        assert_eq!(opened.listen.iter().map(|one| one.tls).collect::<Vec<_>>(), [false, true]);
        opened.listeners.into_iter().for_each(process::close);
    }

    #[test]
    fn a_server_without_addresses_or_with_too_many_is_refused() {
        assert!(matches!(Bootstrap::prepare(&SERVER), Err(BootstrapError::NoListener)));
        let many = vec![Address::Tcp(([127, 0, 0, 1], 0).into()); LISTENERS_MAX + 1];
        let many = BootstrapConfig { listen: &many, ..SERVER };
        assert!(matches!(Bootstrap::prepare(&many), Err(BootstrapError::TooManyListeners)));
    }
}
