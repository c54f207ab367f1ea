//! [`start`]: a proxy's start, in the one order that private descriptor tables allow: limits,
//! listeners, workers with their wake-ups, and only then whatever else opens descriptors.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admin::Address;
use engine::sys::process::{self, Listen};
use engine::{Plan, Tables, Workers};
use host::Count;
use tracing::{info, warn};

use crate::access_log::{AccessLog, LogError};
use crate::api::Api;
use crate::config::{Config, TUNNELS_DEFAULT};
use crate::control::Control;
use crate::health::{WatchError, Watcher};
use crate::relay::Relay;
use crate::routes::{Fleet, Table};
use crate::server::{Running, Stage};
use crate::shared::Shared;

/// A connection is accepted once its request is here, at most this late.
const ACCEPT_DEFER: Duration = Duration::from_secs(1);
/// Listeners in all, over addresses and cores: what the engine takes.
const LISTENERS_MAX: usize = 64;
/// Longest body that the admin listener takes, in bytes.
const BODY_BYTES: usize = 64 * 1024;

/// Why a proxy did not start; the system's own word for it is the source.
#[derive(Debug)]
pub enum StartError {
    /// Nothing to listen on.
    NoListener,
    /// More addresses than listeners there can be.
    TooManyListeners,
    /// What is said of routes cannot be.
    Routes(String),
    /// A public listener's address cannot be had.
    Listen(Address, io::Error),
    /// What was asked for does not fit into descriptor tables.
    Tables {
        /// Workers there would be.
        workers: usize,
        /// Tunnels they hold.
        hold: u64,
        /// Tunnels asked for.
        asked: u64,
        /// Workers that would hold them, if any number does.
        needed: Option<usize>,
    },
    /// No threads or no descriptors for the workers.
    Workers(io::Error),
    /// The access log cannot be written.
    Log(LogError),
    /// The admin listener did not start.
    Admin(admin::StartError),
    /// Nobody can watch the upstreams.
    Watch(WatchError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoListener => f.write_str("there is nothing to listen on: give --listen"),
            StartError::TooManyListeners => {
                write!(f, "at most {LISTENERS_MAX} addresses can be listened on")
            }
            StartError::Routes(why) => f.write_str(why),
            StartError::Listen(address, _) => write!(f, "cannot listen on {address}"),
            StartError::Tables { workers, hold, asked, needed } => {
                let (hold, asked) = (Count(*hold), Count(*asked));
                write!(
                    f,
                    "{workers} workers hold {hold} tunnels of two descriptors, not {asked}: "
                )?;
                match needed {
                    Some(needed) => write!(f, "{needed} workers do (--workers {needed})"),
                    None => {
                        write!(f, "no number of workers does; raise the descriptor limit (nofile)")
                    }
                }
            }
            StartError::Workers(_) => f.write_str("the workers cannot begin"),
            StartError::Log(error) => error.fmt(f),
            StartError::Admin(error) => error.fmt(f),
            StartError::Watch(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Listen(_, error) | StartError::Workers(error) => Some(error),
            StartError::Log(error) => error.source(),
            StartError::Admin(error) => error.source(),
            StartError::Watch(error) => error.source(),
            _ => None,
        }
    }
}

/// Starts a proxy; when this returns it accepts.
///
/// # Errors
/// Whatever can be wrong with an environment or a configuration.
pub fn start(config: &Config) -> Result<Running, StartError> {
    let nofile = host::raise_nofile().unwrap_or_else(|_| host::nofile().soft);
    let cores = host::Machine::read().cores;
    let tables = choose_tables();
    let plan = plan(config, cores, nofile, tables)?;
    let table = Arc::new(Table::default());
    let mut fleet = Fleet::new(Arc::clone(&table));
    fleet.say(config.routes.clone(), process::now_ns()).map_err(StartError::Routes)?;
    crate::health::resolve_first(&mut fleet, process::now_ns());
    let (listeners, listen) = open_listeners(config, cores.min(plan.workers))?;
    let log = config.access_log.as_ref();
    let log = log.map(|(path, form)| AccessLog::new(path, *form)).transpose();
    let mut log = log.map_err(StartError::Log)?;
    let recorder = log.as_ref().map(|log| log.recorder().clone());
    let (live, sources) = (config.live.clone(), config.sources.clone());
    let public = listen.iter().find_map(|address| match address {
        Address::Tcp(address) => Some(*address),
        Address::Unix(_) => None,
    });
    let public = public.unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
    let workers = plan.workers;
    let shared = Shared::new(Arc::clone(&table), live, workers, sources, public, recorder);
    let shared = Arc::new(shared);
    let for_relays = Arc::clone(&shared);
    let relay = move |worker, _: &_| Relay::new(worker, Arc::clone(&for_relays));
    let limits = config.live.engine_limits();
    let workers = Workers::start(plan, &limits, &listeners, relay).map_err(StartError::Workers)?;
    let remote = workers.remote().clone();
    log.as_mut().map_or(Ok(()), AccessLog::start).map_err(StartError::Log)?;
    let fleet = Arc::new(Mutex::new(fleet));
    let api = Api { table: Arc::clone(&table), fleet: Arc::clone(&fleet) };
    let control = Control::new(Arc::clone(&shared), remote.clone(), api);
    let admin = start_admin(config, control)?;
    let watcher = Watcher::start(table, Arc::clone(&fleet)).map_err(StartError::Watch)?;
    say_ready(config, &listen, admin.as_ref());
    let files = config.listen.iter().filter_map(Address::path).map(Path::to_owned).collect();
    let stage = Stage::Serving(workers);
    Ok(Running {
        files,
        listen,
        admin,
        shared,
        remote,
        fleet,
        log,
        stage,
        crowd: 0,
        _watcher: watcher,
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

/// How many workers there are and what each holds: two connections a tunnel.
fn plan(config: &Config, cores: usize, nofile: u64, tables: Tables) -> Result<Plan, StartError> {
    let asked = config.max_tunnels.unwrap_or(TUNNELS_DEFAULT).saturating_mul(2);
    let most = Plan::new(asked, cores, nofile, tables);
    let mut plan = config.workers.map_or(most, |workers| Plan::new(1, workers, nofile, tables));
    let Some(tunnels) = config.max_tunnels else { return Ok(plan) };
    if plan.connections() < asked {
        let needed = (most.connections() >= asked).then_some(most.workers);
        let (workers, hold) = (plan.workers, plan.connections() / 2);
        return Err(StartError::Tables { workers, hold, asked: tunnels, needed });
    }
    let share = tunnels.div_ceil(plan.workers as u64).max(1).saturating_mul(2);
    plan.capacity = plan.capacity.min(u32::try_from(share).unwrap_or(u32::MAX));
    Ok(plan)
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
    let (mut opened, mut listen) = (Vec::new(), Vec::new());
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
                let timeout = config.live.limits.peer_timeout;
                let actual = open_tcp(options, timeout, each, &mut opened).map_err(failed)?;
                Address::Tcp(actual)
            }
            Address::Unix(path) => {
                open_unix(path, each, &mut opened).map_err(failed)?;
                address.clone()
            }
        });
    }
    Ok((opened, listen))
}

fn open_tcp(
    mut options: Listen,
    peer_timeout: Option<Duration>,
    each: usize,
    opened: &mut Vec<i32>,
) -> io::Result<SocketAddr> {
    if options.address.port() != 0 {
        // A port that may be shared would be shared with another program of this user, too.
        let (alone, _) = process::listen(&options)?;
        process::close(alone);
    }
    options.shared_port = true;
    for _ in 0..each {
        let (number, actual) = process::listen(&options)?;
        if let Some(timeout) = peer_timeout {
            process::notice_dead_peers(number, timeout)?;
        }
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

fn start_admin(config: &Config, control: Control) -> Result<Option<admin::Running>, StartError> {
    let Some(address) = config.admin.clone() else { return Ok(None) };
    let key = config.live.admin_key.clone();
    let admin = admin::Config { address, key, body_bytes_max: BODY_BYTES };
    admin::start(&admin, Arc::new(control)).map(Some).map_err(StartError::Admin)
}

fn say_ready(config: &Config, listen: &[Address], admin: Option<&admin::Running>) {
    let tls = if config.live.tls.is_some() { " (TLS)" } else { "" };
    for address in listen {
        info!("listening on {address}{tls}");
    }
    match admin {
        Some(admin) => info!("admin on {}", admin.address()),
        None => info!("no admin listener: upstreams change by the configuration file alone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_takes_two_places() {
        let planned = |workers, max_tunnels| {
            let config = Config { workers, max_tunnels, ..Config::default() };
            plan(&config, 2, 20_000, Tables::Private).map_err(|error| error.to_string())
        };
        let few = planned(None, Some(1_000)).unwrap();
        assert_eq!((few.workers, few.capacity), (2, 1_000));
        let many = planned(None, Some(50_000)).unwrap();
        assert!(many.connections() >= 100_000 && many.workers >= 6, "{many:?}");
        let error = planned(Some(1), Some(50_000)).unwrap_err();
        assert!(error.contains("--workers 6"), "{error}");
    }
}
