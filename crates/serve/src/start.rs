//! [`start`]: starts a server: listeners, workers, and only then everything else that opens descriptors.

use std::fmt;
use std::io;
use std::sync::Arc;

use admin::{Bootstrap, BootstrapConfig, BootstrapError, Listener};
use capacity::{Bytes, Goal, Machine, Role};
use engine::{Compression, Tables};
use tracing::{info, warn};

use crate::adapters;
use crate::app;
use crate::broadcast_worker;
use crate::config::{CONNECTIONS_DEFAULT, Config};
use crate::control::Control;
use crate::handler::ServeHandler;
use crate::hooks;
use crate::log_events;
use crate::presence::announcer;
use crate::server::Running;
use crate::shared::Shared;

/// The least limit of a body of `/api/publish`, in bytes.
const BODY_BYTES: usize = wire::Limits::BODY_BYTES as usize;
/// Warnings about the machine logged at start; `standfast doctor` shows all.
const WARNINGS_MAX: usize = 2;

/// Why a server did not start. The operating system's error is the source.
#[derive(Debug)]
pub enum StartError {
    /// Its workers or listeners could not be set up.
    Bootstrap(BootstrapError),
    /// The thread for broadcasts on the public listeners could not be started.
    BroadcastQueue(io::Error),
    /// The threads that call the application could not be started.
    App(io::Error),
    /// The thread that announces who joins and leaves could not be started.
    Presence(io::Error),
    /// The threads that send webhooks could not be started.
    Webhooks(io::Error),
    /// The threads of the connections to brokers could not be started.
    Pubsub(io::Error),
    /// The thread of the adapters could not be started.
    Adapters(io::Error),
    /// The admin listener did not start.
    Admin(admin::StartError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bootstrap(error) => error.fmt(f),
            StartError::BroadcastQueue(_) => f.write_str("cannot start the broadcast thread"),
            StartError::App(_) => f.write_str("cannot start the threads that call the application"),
            StartError::Presence(_) => f.write_str("cannot start the presence thread"),
            StartError::Webhooks(_) => f.write_str("cannot start the threads that send webhooks"),
            StartError::Pubsub(_) => f.write_str("cannot start the threads of --pubsub"),
            StartError::Adapters(_) => {
                f.write_str("cannot start the thread of the broadcast adapters")
            }
            StartError::Admin(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Bootstrap(error) => std::error::Error::source(error),
            StartError::BroadcastQueue(error)
            | StartError::App(error)
            | StartError::Presence(error)
            | StartError::Webhooks(error)
            | StartError::Pubsub(error)
            | StartError::Adapters(error) => Some(error),
            StartError::Admin(error) => std::error::Error::source(error),
        }
    }
}

/// Starts a server and returns once it accepts connections. Call it once, early in the process:
/// descriptors that are already open stay open in every worker's table.
///
/// # Errors
/// An environment or a configuration that does not allow it.
pub fn start(config: &Config) -> Result<Running, StartError> {
    let bootstrap = Bootstrap::prepare(&BootstrapConfig {
        listen: &config.listen,
        listen_tls: &config.listen_tls,
        backlog: config.backlog,
        peer_timeout: None,
        workers: config.workers,
        clients: config.max_connections,
        clients_default: CONNECTIONS_DEFAULT,
        descriptors_per_client: 1,
        client_noun: "connections",
    });
    let bootstrap = bootstrap.map_err(StartError::Bootstrap)?;
    warn_about_capacity(config, bootstrap.plan.tables);
    let (log, log_events) = log_events::channel();
    let (watchdog, workers) = (Arc::clone(&bootstrap.watchdog), bootstrap.plan.workers);
    let mut shared = Shared::new(config, watchdog, workers, log);
    shared.plain_listeners = bootstrap.plain_listeners;
    shared.tls_port = bootstrap.tls_port();
    let shared = Arc::new(shared);
    let for_handlers = Arc::clone(&shared);
    let (broadcasts, posted) = broadcast_worker::channel();
    let broadcasts = config.listen_broadcast.then_some(broadcasts);
    let handler = move |worker, _: &_| {
        ServeHandler::new(worker, Arc::clone(&for_handlers), broadcasts.clone())
    };
    let listen = bootstrap.listen.clone();
    let mut service =
        bootstrap.start(&config.live.limits, handler).map_err(StartError::Bootstrap)?;
    let remote = service.remote().clone();
    let control = Arc::new(Control::new(Arc::clone(&shared), remote.clone()));
    if config.listen_broadcast {
        let started = broadcast_worker::start(posted, Arc::clone(&control), remote);
        started.map_err(StartError::BroadcastQueue)?;
    }
    if let Some(calls) = &shared.calls {
        let started = app::start(Arc::clone(calls), service.remote().clone(), &shared.clock);
        started.map_err(StartError::App)?;
    }
    if shared.presence.is_some() {
        let started = announcer::start(&shared, service.remote().clone());
        started.map_err(StartError::Presence)?;
    }
    if let Some(hooks) = &shared.hooks {
        hooks::start(hooks).map_err(StartError::Webhooks)?;
    }
    if let Some(pubsub) = &shared.pubsub {
        let started = pubsub.start(&shared, service.remote().clone());
        started.map_err(StartError::Pubsub)?;
    }
    if !config.adapters.is_empty() {
        let open = adapters::open(&config.adapters, &control).map_err(StartError::Adapters)?;
        drop(shared.adapters.set(open));
    }
    service.admin = start_admin(config, control)?;
    log_ready(config, &listen, service.admin.as_ref());
    Ok(Running { service, shared, log_events, finishing: None })
}

/// Warns about what this machine lacks for the configured number of connections, if one is configured.
fn warn_about_capacity(config: &Config, tables: Tables) {
    let Some(connections) = config.max_connections else { return };
    let goal = Goal {
        private_tables: tables == Tables::Private,
        workers: config.workers.map(|workers| workers as u64),
        ..Goal::new(Role::Serve, connections)
    };
    let report = capacity::check(&Machine::read(), &goal);
    let shortfalls = report.shortfalls.iter().map(|shortfall| &shortfall.text);
    let warnings = report.warnings.iter().map(|warning| &warning.text);
    for text in shortfalls.chain(warnings).take(WARNINGS_MAX) {
        warn!("{text}");
    }
}

fn start_admin(
    config: &Config,
    control: Arc<Control>,
) -> Result<Option<admin::AdminListener>, StartError> {
    let Some(address) = config.admin.clone() else { return Ok(None) };
    // Base64 and escapes lengthen a message; the rest is room for an array of messages.
    let longest = config.live.limits.wire.message_bytes as usize;
    let body_bytes_max = BODY_BYTES.max(longest.saturating_mul(2));
    let key = config.live.admin_key.clone();
    let (tls, connections) = (config.live.admin_tls.clone(), config.admin_connections);
    let admin = admin::Config { address, key, tls, body_bytes_max, connections };
    admin::start(&admin, control).map(Some).map_err(StartError::Admin)
}

fn log_ready(config: &Config, listen: &[Listener], admin: Option<&admin::AdminListener>) {
    for listener in listen {
        info!("listening on {listener}");
    }
    match admin {
        Some(admin) => {
            info!("admin on {admin}");
            admin.log_page();
        }
        None if config.listen_broadcast => info!("no admin listener"),
        None => info!("no admin listener: publishing over HTTP is off"),
    }
    if config.listen_broadcast {
        info!("POST /_broadcast is open on the client listeners, with its key");
    }
    if config.live.limits.compression == Compression::Takeover {
        let each = Bytes(Compression::TAKEOVER_BYTES);
        info!("compression takeover: up to {each} for each active client that negotiates it");
    }
    if config.app.as_ref().is_some_and(|app| app.auth.is_some()) {
        info!("topics: the application decides who may subscribe and publish (--auth-url)");
    } else if config.public {
        info!("public: anyone who can connect may subscribe and publish (--public)");
    } else if config.is_public() {
        info!("public on loopback: on other interfaces topics are closed without --public");
    } else {
        info!("not public: /topics answers 403; to let anyone subscribe and publish, set --public");
    }
}
