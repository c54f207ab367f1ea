//! [`start`]: a server's start, in the one order that private descriptor tables allow: limits,
//! listeners, workers with their wake-ups, and only then whatever else opens descriptors.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use admin::Address;
use engine::sys::process::{self, Listen};
use engine::{Compression, Plan, Tables, Workers};
use host::{Bytes, Count, Goal, Machine, Role};
use tracing::{info, warn};

use crate::broadcasts;
use crate::config::{CONNECTIONS_DEFAULT, Config};
use crate::control::Control;
use crate::door::Door;
use crate::records;
use crate::server::{Running, Stage};
use crate::shared::Shared;
use crate::watch::Watch;

/// A connection is accepted once its request is here, at most this late.
const ACCEPT_DEFER: Duration = Duration::from_secs(1);
/// Listeners in all, over addresses and cores: what the engine takes.
const LISTENERS_MAX: usize = 64;
/// Shortest body that `/api/publish` takes at most, in bytes.
const BODY_BYTES: usize = wire::Limits::BODY_BYTES as usize;
/// Warnings about the machine said at start; the `doctor` says all.
const WARNINGS_MAX: usize = 2;

/// Why a server did not start; the system's own word for it is the source.
#[derive(Debug)]
pub enum StartError {
    /// Nothing to listen on.
    NoListener,
    /// More addresses than listeners there can be.
    TooManyListeners,
    /// A public listener's address cannot be had.
    Listen(Address, io::Error),
    /// What was asked for does not fit into descriptor tables.
    Tables {
        /// Workers there would be.
        workers: usize,
        /// Connections they hold.
        hold: u64,
        /// Connections asked for.
        asked: u64,
        /// Workers that would hold them, if any number does.
        needed: Option<usize>,
        /// Whether each worker has a table of its own.
        private: bool,
    },
    /// No threads or no descriptors for the workers.
    Workers(io::Error),
    /// The admin listener did not start.
    Admin(admin::StartError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoListener => f.write_str("there is nothing to listen on: give --listen"),
            StartError::TooManyListeners => {
                write!(f, "at most {LISTENERS_MAX} addresses can be listened on")
            }
            StartError::Listen(address, _) => write!(f, "cannot listen on {address}"),
            StartError::Tables { workers, hold, asked, needed, private } => {
                let (hold, asked) = (Count(*hold), Count(*asked));
                write!(f, "{workers} workers hold {hold} connections, not {asked}: ")?;
                match needed {
                    Some(needed) => write!(f, "{needed} workers do (--workers {needed})"),
                    None if *private => {
                        write!(f, "no number of workers does; raise the descriptor limit (nofile)")
                    }
                    None => write!(
                        f,
                        "this system refuses workers tables of their own, so raise the descriptor \
                         limit (nofile) or ask for fewer"
                    ),
                }
            }
            StartError::Workers(_) => f.write_str("cannot start the workers"),
            StartError::Admin(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Listen(_, error) | StartError::Workers(error) => Some(error),
            StartError::Admin(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}

/// Starts a server and returns once it accepts connections. Call it once, early in the process:
/// descriptors that are open already stay open in every worker's table.
///
/// # Errors
/// Everything that can be wrong with an environment or a configuration.
pub fn start(config: &Config) -> Result<Running, StartError> {
    let nofile = host::raise_nofile().unwrap_or_else(|_| host::nofile().soft);
    let machine = Machine::read();
    let tables = choose_tables();
    let plan = plan(config, machine.cores, nofile, tables)?;
    say_fit(config, &machine, tables);
    let (listeners, listen) = open_listeners(config, machine.cores.min(plan.workers))?;
    let (recorder, records) = records::channel();
    let shared = Arc::new(Shared::new(config, plan.workers, recorder));
    let for_doors = Arc::clone(&shared);
    let (broadcasts, posted) = broadcasts::channel();
    let broadcasts = config.listen_broadcast.then_some(broadcasts);
    let door = move |worker, _: &_| Door::new(worker, Arc::clone(&for_doors), broadcasts.clone());
    let workers =
        Workers::start(plan, &config.live.limits, &listeners, door).map_err(StartError::Workers)?;
    let remote = workers.remote().clone();
    let control = Arc::new(Control::new(Arc::clone(&shared), remote.clone()));
    if config.listen_broadcast {
        let started = broadcasts::start(posted, Arc::clone(&control), remote.clone());
        started.map_err(StartError::Workers)?;
    }
    let admin = start_admin(config, control)?;
    say_ready(config, &listen, admin.as_ref());
    let socket_files = config.listen.iter().filter_map(Address::path).map(Path::to_owned);
    Ok(Running {
        socket_files: socket_files.collect(),
        watch: Watch::default(),
        listen,
        admin,
        shared,
        remote,
        records,
        stage: Stage::Serving(workers),
        crowd: 0,
    })
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

/// How many workers there are and what each holds.
fn plan(config: &Config, cores: usize, nofile: u64, tables: Tables) -> Result<Plan, StartError> {
    let asked = config.max_connections.unwrap_or(CONNECTIONS_DEFAULT);
    let most = Plan::new(asked, cores, nofile, tables);
    // As many workers as cores is what a plan for a few connections has.
    let mut plan = config.workers.map_or(most, |workers| Plan::new(1, workers, nofile, tables));
    let Some(asked) = config.max_connections else { return Ok(plan) };
    if plan.connections() < asked {
        let needed = (most.connections() >= asked).then_some(most.workers);
        let (workers, hold) = (plan.workers, plan.connections());
        let private = tables == Tables::Private;
        return Err(StartError::Tables { workers, hold, asked, needed, private });
    }
    let share = asked.div_ceil(plan.workers as u64).max(1);
    plan.capacity = plan.capacity.min(u32::try_from(share).unwrap_or(u32::MAX));
    Ok(plan)
}

/// Warns of what this machine lacks for the connections that were asked for. Without a number
/// nothing was asked for.
fn say_fit(config: &Config, machine: &Machine, tables: Tables) {
    let Some(asked) = config.max_connections else { return };
    let goal = Goal {
        private_tables: tables == Tables::Private,
        workers: config.workers.map(|workers| workers as u64),
        ..Goal::new(Role::Serve, asked)
    };
    let report = host::check(machine, &goal);
    let shortfalls = report.shortfalls.iter().map(|shortfall| &shortfall.text);
    let warnings = report.warnings.iter().map(|warning| &warning.text);
    for text in shortfalls.chain(warnings).take(WARNINGS_MAX) {
        warn!("{text}");
    }
}

/// Opens each address once per worker that accepts from the start, those of TCP on one port.
fn open_listeners(
    config: &Config,
    accepting: usize,
) -> Result<(Vec<i32>, Vec<Address>), StartError> {
    let addresses = config.listen.len();
    if addresses == 0 {
        return Err(StartError::NoListener);
    }
    if addresses > LISTENERS_MAX {
        return Err(StartError::TooManyListeners);
    }
    let each = accepting.clamp(1, LISTENERS_MAX / addresses);
    let mut opened = Vec::new();
    let mut listen = Vec::new();
    for address in &config.listen {
        let failed = |error| StartError::Listen(address.clone(), error);
        listen.push(match address {
            Address::Tcp(asked) => {
                let options = Listen {
                    address: *asked,
                    backlog: config.backlog,
                    shared_port: false,
                    defer: ACCEPT_DEFER,
                    v6_only: v4_has_the_port(config, *asked),
                };
                Address::Tcp(open_tcp(options, each, &mut opened).map_err(failed)?)
            }
            Address::Unix(path) => {
                open_unix(path, each, &mut opened).map_err(failed)?;
                address.clone()
            }
        });
    }
    Ok((opened, listen))
}

fn open_tcp(mut options: Listen, each: usize, opened: &mut Vec<i32>) -> io::Result<SocketAddr> {
    if options.address.port() != 0 {
        // A port that may be shared would be shared with another server of this user, too.
        let (alone, _) = process::listen(&options)?;
        process::close(alone);
    }
    options.shared_port = true;
    for _ in 0..each {
        let (number, actual) = process::listen(&options)?;
        options.address = actual;
        opened.push(number);
    }
    Ok(options.address)
}

/// One socket under several numbers: each worker that accepts from the start watches its own.
fn open_unix(path: &Path, each: usize, opened: &mut Vec<i32>) -> io::Result<()> {
    let listener = admin::listen_unix(path)?;
    for _ in 1..each {
        opened.push(listener.try_clone()?.into_raw_fd());
    }
    opened.push(listener.into_raw_fd());
    Ok(())
}

/// Whether `[::]` must leave IPv4 to another listener; by itself it takes both.
fn v4_has_the_port(config: &Config, address: SocketAddr) -> bool {
    let v4 = |other: &Address| matches!(other, Address::Tcp(v4) if v4.is_ipv4() && v4.port() == address.port());
    address.is_ipv6() && config.listen.iter().any(v4)
}

fn start_admin(
    config: &Config,
    control: Arc<Control>,
) -> Result<Option<admin::Running>, StartError> {
    let Some(address) = config.admin.clone() else { return Ok(None) };
    // Base64 and escapes make a message longer than it is; the rest is room for many.
    let longest = config.live.limits.wire.message_bytes as usize;
    let body_bytes_max = BODY_BYTES.max(longest.saturating_mul(2));
    let key = config.live.admin_key.clone();
    let admin = admin::Config { address, key, body_bytes_max };
    admin::start(&admin, control).map(Some).map_err(StartError::Admin)
}

fn say_ready(config: &Config, listen: &[Address], admin: Option<&admin::Running>) {
    let tls = if config.live.tls.is_some() { " (TLS)" } else { "" };
    for address in listen {
        info!("listening on {address}{tls}");
    }
    match admin {
        Some(admin) => info!("admin on {}", admin.address()),
        None if config.listen_broadcast => info!("no admin listener"),
        None => info!("no admin listener: nothing can be published over HTTP"),
    }
    if config.listen_broadcast {
        info!("POST /_broadcast is taken on the listeners for clients, with its key");
    }
    if config.live.limits.compression == Compression::Takeover {
        let each = Bytes(Compression::TAKEOVER_BYTES);
        info!("compression takeover: up to {each} for each client that agrees to it and speaks");
    }
    if config.public {
        info!("public: whoever reaches a listener may subscribe and publish");
    } else if config.is_public() {
        info!("public, as all listeners are loopback: elsewhere it would need --public");
    } else {
        info!("not public: /topics answers 403; to let anyone subscribe and publish, add --public");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(workers: Option<usize>, max: Option<u64>, tables: Tables) -> Result<Plan, String> {
        let config = Config { workers, max_connections: max, ..Config::default() };
        plan(&config, 2, 20_000, tables).map_err(|error| error.to_string())
    }

    #[test]
    fn workers_follow_from_connections_and_the_other_way_round() {
        let default = planned(None, None, Tables::Private).unwrap();
        assert!(default.connections() >= 1_000_000 && default.workers > 50, "{default:?}");
        let few = planned(None, Some(1_000), Tables::Private).unwrap();
        assert_eq!((few.workers, few.capacity), (2, 500));
        let one = planned(Some(1), None, Tables::Private).unwrap();
        assert!(one.workers == 1 && one.capacity > 19_000, "{one:?}");
        let both = planned(Some(4), Some(40_000), Tables::Private).unwrap();
        assert_eq!((both.workers, both.capacity), (4, 10_000));
    }

    #[test]
    fn the_impossible_is_refused_with_what_would_do() {
        let error = planned(Some(2), Some(1_000_000), Tables::Private).unwrap_err();
        assert!(error.contains("--workers 5"), "{error}");
        let error = planned(Some(1), Some(1_000_000_000), Tables::Private).unwrap_err();
        assert!(error.contains("no number of workers"), "{error}");
        let error = planned(None, Some(100_000), Tables::Shared).unwrap_err();
        assert!(error.contains("tables of their own"), "{error}");
    }
}
