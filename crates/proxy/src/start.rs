//! [`start`]: opens listeners and starts workers, and only then opens any other descriptor.

use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use admin::{Bootstrap, BootstrapConfig, BootstrapError, Listener};
use engine::sys::process;
use tracing::{info, warn};

use crate::access_log::{AccessLog, LogError};
use crate::api::Api;
use crate::config::{Config, RouteTimeouts, TUNNELS_DEFAULT};
use crate::control::Control;
use crate::failure_log::FailureLog;
use crate::health::{WatchError, Watcher};
use crate::relay::Relay;
use crate::resolve::Resolving;
use crate::routes::{Registry, Table};
use crate::server::Running;
use crate::shared::Shared;

/// Maximum size of an admin request body, in bytes.
const BODY_BYTES: usize = 64 * 1024;

/// Why a proxy did not start; the system error is the source.
#[derive(Debug)]
pub enum StartError {
    /// Listeners or workers cannot be set up.
    Bootstrap(BootstrapError),
    /// This source address does not belong to this machine.
    Source(IpAddr, io::Error),
    /// The routes or pools are invalid.
    Routes(String),
    /// The access log cannot be written.
    Log(LogError),
    /// The admin listener did not start.
    Admin(admin::StartError),
    /// The health check thread did not start.
    Watch(WatchError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bootstrap(error) => error.fmt(f),
            StartError::Source(address, _) => {
                write!(f, "--source {address} is not an address of this machine")
            }
            StartError::Routes(why) => f.write_str(why),
            StartError::Log(error) => error.fmt(f),
            StartError::Admin(error) => error.fmt(f),
            StartError::Watch(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Bootstrap(error) => error.source(),
            StartError::Source(_, error) => Some(error),
            StartError::Routes(_) => None,
            StartError::Log(error) => error.source(),
            StartError::Admin(error) => error.source(),
            StartError::Watch(error) => error.source(),
        }
    }
}

/// Checks that each of these source addresses can be used.
///
/// # Errors
/// The first address that does not belong to this machine.
pub fn check_sources(sources: &[IpAddr]) -> Result<(), StartError> {
    sources.iter().try_for_each(|address| {
        let bound = UdpSocket::bind((*address, 0)).map(drop);
        bound.map_err(|error| StartError::Source(*address, error))
    })
}

/// Starts a proxy. It accepts connections when this returns.
///
/// # Errors
/// Any error of the environment or the configuration; see [`StartError`].
pub fn start(config: &Config) -> Result<Running, StartError> {
    check_sources(&config.sources)?;
    let table = Arc::new(Table::default());
    let mut registry = Registry::new(Arc::clone(&table));
    config.routes.check().map_err(StartError::Routes)?;
    let lookups = Resolving::start(config.routes.hosts()).wait();
    for (host, why) in &lookups.failed {
        // A resolver may start later than the proxy.
        warn!("cannot resolve {host}: {why}; retrying");
    }
    let (routes, now_ns) = (config.routes.clone(), process::now_ns());
    registry.apply_resolved(routes, lookups.found, now_ns).map_err(StartError::Routes)?;
    let bootstrap = Bootstrap::prepare(&BootstrapConfig {
        listen: &config.listen,
        listen_tls: &config.listen_tls,
        backlog: config.backlog,
        peer_timeout: config.live.limits.peer_timeout,
        workers: config.workers,
        clients: config.max_tunnels,
        clients_default: TUNNELS_DEFAULT,
        descriptors_per_client: 2,
        client_noun: "tunnels of two descriptors",
    });
    let bootstrap = bootstrap.map_err(StartError::Bootstrap)?;
    let log = config.access_log.as_ref();
    let log = log.map(|(path, form)| AccessLog::new(path, *form)).transpose();
    let mut log = log.map_err(StartError::Log)?;
    let recorder = log.as_ref().map(|log| log.recorder().clone());
    let (live, sources) = (config.live.clone(), config.sources.clone());
    let (listen, watchdog) = (bootstrap.listen.clone(), Arc::clone(&bootstrap.watchdog));
    let workers = bootstrap.plan.workers;
    let mut shared = Shared::new(Arc::clone(&table), live, workers, sources, recorder);
    shared.plain_listeners = bootstrap.plain_listeners;
    shared.tls_port = bootstrap.tls_port();
    let shared = Arc::new(shared);
    let for_relays = Arc::clone(&shared);
    let relay = move |worker, _: &_| Relay::new(worker, Arc::clone(&for_relays));
    let limits = config.live.engine_limits(&RouteTimeouts::default());
    let mut service = bootstrap.start(&limits, relay).map_err(StartError::Bootstrap)?;
    log.as_mut().map_or(Ok(()), AccessLog::start).map_err(StartError::Log)?;
    let registry = Arc::new(Mutex::new(registry));
    let (of_api, active_drains) = (Arc::clone(&table), Mutex::default());
    let api = Api { table: of_api, registry: Arc::clone(&registry), active_drains };
    let control = Control::new(Arc::clone(&shared), service.remote().clone(), api, watchdog);
    service.admin = start_admin(config, control)?;
    let watcher = Watcher::start(table, Arc::clone(&registry), &config.sources);
    let watcher = watcher.map_err(StartError::Watch)?;
    log_ready(config, &listen, service.admin.as_ref());
    let failure_log = FailureLog::default();
    Ok(Running { service, shared, registry, log, failure_log, _watcher: watcher })
}

fn start_admin(
    config: &Config,
    control: Control,
) -> Result<Option<admin::AdminListener>, StartError> {
    let Some(address) = config.admin.clone() else { return Ok(None) };
    let key = config.live.admin_key.clone();
    let (tls, connections) = (config.live.admin_tls.clone(), config.admin_connections);
    let admin = admin::Config { address, key, tls, body_bytes_max: BODY_BYTES, connections };
    admin::start(&admin, Arc::new(control)).map(Some).map_err(StartError::Admin)
}

fn log_ready(config: &Config, listen: &[Listener], admin: Option<&admin::AdminListener>) {
    for listener in listen {
        info!("listening on {listener}");
    }
    let sticky = || config.routes.pools.iter().filter_map(|pool| pool.sticky.as_ref());
    if sticky().any(|sticky| sticky.key.is_drawn()) {
        info!(
            "sticky cookies end with this process: set --sticky-secret to keep them over restarts \
             and to share them between proxies"
        );
    }
    match admin {
        Some(admin) => {
            info!("admin on {admin}");
            admin.log_page();
            if config.live.admin_key.is_none() && admin.address().path().is_none() {
                info!("admin API read-only over TCP: changes need --admin-key or a UNIX socket");
            }
        }
        None => info!("no admin listener: upstreams can be changed only by the configuration file"),
    }
}
