//! [`Bootstrap`]: the steps before a server's workers start: planning how many there are, and opening
//! the listeners for clients. Private descriptor tables dictate the order: listeners first, then the
//! workers, then everything else that opens descriptors.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use capacity::Count;
use engine::sys::process::{self, Listen};
use engine::{Handler, Limits, Plan, Remote, Tables, Workers};
use tracing::warn;

use crate::{Address, Service, listen_unix};

/// `TCP_DEFER_ACCEPT`: a connection is accepted when its request has arrived, or after this time.
const ACCEPT_DEFER: Duration = Duration::from_secs(1);
/// Listeners of all addresses and cores together: the engine's limit.
const LISTENERS_MAX: usize = 64;

/// What a server needs from its workers and listeners.
#[derive(Copy, Clone, Debug)]
pub struct Wanted<'w> {
    /// Addresses to listen on; port 0 takes a free one.
    pub listen: &'w [Address],
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
    /// Descriptors that each needs.
    pub each: u64,
    /// What they are called.
    pub named: &'static str,
}

/// Why a server cannot start. The operating system's error is the source.
#[derive(Debug)]
pub enum GroundError {
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
        /// Clients they hold.
        hold: u64,
        /// Clients asked for.
        asked: u64,
        /// What those are called.
        named: &'static str,
        /// Workers that would hold them, if any number does.
        needed: Option<usize>,
        /// Whether each worker has its own table.
        private: bool,
    },
    /// No threads or no descriptors for the workers.
    Workers(io::Error),
}

impl fmt::Display for GroundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroundError::NoListener => f.write_str("there is nothing to listen on: give --listen"),
            GroundError::TooManyListeners => {
                write!(f, "at most {LISTENERS_MAX} addresses can be listened on")
            }
            GroundError::Listen(address, _) => write!(f, "cannot listen on {address}"),
            GroundError::Tables { workers, hold, asked, named, needed, private } => {
                let (hold, asked) = (Count(*hold), Count(*asked));
                write!(f, "{workers} workers hold {hold} {named}, not {asked}: ")?;
                match needed {
                    Some(needed) => write!(f, "{needed} workers do (--workers {needed})"),
                    None if *private => f.write_str(
                        "no number of workers does; raise the descriptor limit (nofile)",
                    ),
                    None => f.write_str(
                        "this system refuses workers tables of their own, so raise the descriptor \
                         limit (nofile) or ask for fewer",
                    ),
                }
            }
            GroundError::Workers(_) => f.write_str("cannot start the workers"),
        }
    }
}

impl std::error::Error for GroundError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            GroundError::Listen(_, error) | GroundError::Workers(error) => Some(error),
            _ => None,
        }
    }
}

/// Planned workers and open listeners.
#[derive(Debug)]
pub struct Ground {
    /// How many workers there are and what each may hold.
    pub plan: Plan,
    /// The public listeners, with the ports the system chose.
    pub listen: Vec<Address>,
    files: Vec<PathBuf>,
    listeners: Vec<i32>,
}

impl Ground {
    /// Raises the descriptor limit, plans the workers, opens the listeners. Call it once, early in
    /// the process: descriptors that are already open stay open in every worker's table.
    ///
    /// # Errors
    /// Everything that can be wrong with an environment or with what is wanted.
    pub fn lay(wanted: &Wanted<'_>) -> Result<Ground, GroundError> {
        let nofile = capacity::raise_nofile().unwrap_or_else(|_| capacity::nofile().soft);
        let cores = capacity::Machine::read().cores;
        let plan = plan(wanted, cores, nofile, choose_tables())?;
        let (listeners, listen) = open_listeners(wanted, cores.min(plan.workers))?;
        let files = wanted.listen.iter().filter_map(Address::path).map(Path::to_owned).collect();
        Ok(Ground { plan, listen, files, listeners })
    }

    /// Starts the workers, which accept connections when this returns. `handler` is called in each
    /// worker's thread when the worker is first needed.
    ///
    /// # Errors
    /// No threads or no descriptors for the workers.
    pub fn begin<H, F>(self, limits: &Limits, handler: F) -> Result<Service<H::Post>, GroundError>
    where
        H: Handler + 'static,
        F: Fn(u16, &Remote<H::Post>) -> H + Send + Sync + 'static,
    {
        let workers = Workers::start(self.plan, limits, &self.listeners, handler);
        Ok(Service::new(workers.map_err(GroundError::Workers)?, self.listen, self.files))
    }
}

fn choose_tables() -> Tables {
    if process::private_tables_work() {
        return Tables::Private;
    }
    warn!(
        "this system refuses workers descriptor tables of their own (close_range with \
         CLOSE_RANGE_UNSHARE): all share one, so the descriptor limit is that of the process"
    );
    Tables::Shared
}

/// Plans how many workers there are and how many connections each may hold.
fn plan(
    wanted: &Wanted<'_>,
    cores: usize,
    nofile: u64,
    tables: Tables,
) -> Result<Plan, GroundError> {
    let each = wanted.each.max(1);
    let asked = wanted.clients.unwrap_or(wanted.clients_default).saturating_mul(each);
    let most = Plan::new(asked, cores, nofile, tables);
    // As many workers as cores is what a plan for a few connections has.
    let mut plan = wanted.workers.map_or(most, |workers| Plan::new(1, workers, nofile, tables));
    let Some(clients) = wanted.clients else { return Ok(plan) };
    if plan.connections() < asked {
        let needed = (most.connections() >= asked).then_some(most.workers);
        let (workers, hold) = (plan.workers, plan.connections() / each);
        let (named, private) = (wanted.named, tables == Tables::Private);
        return Err(GroundError::Tables { workers, hold, asked: clients, named, needed, private });
    }
    let share = clients.div_ceil(plan.workers as u64).max(1).saturating_mul(each);
    plan.capacity = plan.capacity.min(u32::try_from(share).unwrap_or(u32::MAX));
    Ok(plan)
}

/// Opens each address once per worker that accepts from the start, those of TCP on one port.
fn open_listeners(
    wanted: &Wanted<'_>,
    accepting: usize,
) -> Result<(Vec<i32>, Vec<Address>), GroundError> {
    let addresses = wanted.listen.len();
    if addresses == 0 {
        return Err(GroundError::NoListener);
    }
    if addresses > LISTENERS_MAX {
        return Err(GroundError::TooManyListeners);
    }
    let each = accepting.clamp(1, LISTENERS_MAX / addresses);
    let (mut opened, mut listen) = (Vec::new(), Vec::new());
    for address in wanted.listen {
        let actual = match address {
            Address::Tcp(asked) => open_tcp(wanted, *asked, each, &mut opened).map(Address::Tcp),
            Address::Unix(path) => open_unix(path, each, &mut opened).map(|()| address.clone()),
        };
        listen.push(actual.map_err(|error| GroundError::Listen(address.clone(), error))?);
    }
    Ok((opened, listen))
}

fn open_tcp(
    wanted: &Wanted<'_>,
    address: SocketAddr,
    each: usize,
    opened: &mut Vec<i32>,
) -> io::Result<SocketAddr> {
    let mut options = Listen {
        address,
        backlog: wanted.backlog,
        shared_port: false,
        defer: ACCEPT_DEFER,
        v6_only: v4_has_the_port(wanted.listen, address),
    };
    if address.port() != 0 {
        // SO_REUSEPORT would also share the port with another server of this user: try without it first.
        process::try_bind(&options)?;
    }
    options.shared_port = true;
    for _ in 0..each {
        let (number, actual) = process::listen(&options)?;
        if let Some(timeout) = wanted.peer_timeout {
            process::notice_dead_peers(number, timeout)?;
        }
        options.address = actual;
        opened.push(number);
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

/// Whether `[::]` must leave IPv4 to another listener; by itself it takes both.
fn v4_has_the_port(listen: &[Address], address: SocketAddr) -> bool {
    let v4 = |other: &Address| matches!(other, Address::Tcp(v4) if v4.is_ipv4() && v4.port() == address.port());
    address.is_ipv6() && listen.iter().any(v4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Wanted<'_> = Wanted {
        listen: &[],
        backlog: 16,
        peer_timeout: None,
        workers: None,
        clients: None,
        clients_default: 1_000_000,
        each: 1,
        named: "connections",
    };

    fn planned(wanted: Wanted<'_>, tables: Tables) -> Result<Plan, String> {
        plan(&wanted, 2, 20_000, tables).map_err(|error| error.to_string())
    }

    #[test]
    fn workers_follow_from_clients_and_the_other_way_round() {
        let private = |workers, clients| {
            planned(Wanted { workers, clients, ..SERVER }, Tables::Private).unwrap()
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
    fn who_needs_two_descriptors_takes_two_places() {
        let pairs = Wanted { each: 2, named: "pairs", ..SERVER };
        let private =
            |workers, clients| planned(Wanted { workers, clients, ..pairs }, Tables::Private);
        let few = private(None, Some(1_000)).unwrap();
        assert_eq!((few.workers, few.capacity), (2, 1_000));
        let many = private(None, Some(50_000)).unwrap();
        assert!(many.connections() >= 100_000 && many.workers >= 6, "{many:?}");
        let error = private(Some(1), Some(50_000)).unwrap_err();
        assert!(error.contains("--workers 6") && error.contains(" pairs, not 50"), "{error}");
    }

    #[test]
    fn the_impossible_is_refused_with_what_would_do() {
        let error = |workers, clients, tables| {
            planned(Wanted { workers, clients, ..SERVER }, tables).unwrap_err()
        };
        let two = error(Some(2), Some(1_000_000), Tables::Private);
        assert!(two.contains("--workers 5"), "{two}");
        let none = error(Some(1), Some(1_000_000_000), Tables::Private);
        assert!(none.contains("no number of workers"), "{none}");
        let shared = error(None, Some(100_000), Tables::Shared);
        assert!(shared.contains("tables of their own"), "{shared}");
    }

    #[test]
    fn a_server_that_listens_nowhere_is_none() {
        assert!(matches!(Ground::lay(&SERVER), Err(GroundError::NoListener)));
        let many = vec![Address::Tcp(([127, 0, 0, 1], 0).into()); LISTENERS_MAX + 1];
        let many = Wanted { listen: &many, ..SERVER };
        assert!(matches!(Ground::lay(&many), Err(GroundError::TooManyListeners)));
    }
}
