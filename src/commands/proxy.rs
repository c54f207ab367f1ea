//! The `standfast proxy` command: turns flags, file and environment into a [`proxy::Config`] and runs
//! the proxy until a signal ends it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::proxy::access_log::LogFormat;
use ::proxy::{
    Config, CookieKey, Endpoint, Limits, Live, Lookups, ProxyVersion, RequestIds, Resolving,
    RoutesConfig, Running, Timeouts, Transport,
};
use anyhow::{Context, Result, anyhow};
use clap::{ArgMatches, Subcommand, ValueEnum};
use tracing::info;

use crate::admission::{self, ADMISSION};
use crate::auth::{SecretSource, secret_source};
use crate::routes::PoolTransport;
use crate::running::{self, PROCESS, Reload, ServerArgs};
use crate::settings::{Layer, Settings};
use crate::units::{IdleTimeout, idle_timeout};
use crate::{bodies, output, routes, tls, units};

/// Headings of flag groups; `help` finds flags by them.
const UPSTREAMS: &str = "Upstreams";
const TUNNELS: &str = "Tunnels";

/// Keys that take effect on SIGHUP, besides routes and pools. A change of any other key needs a
/// restart.
const RELOADABLE: &[&[&str]] = &[
    running::RELOADABLE,
    admission::RELOADABLE,
    bodies::RELOADABLE,
    tls::RELOADABLE,
    &[
        "answer_timeout",
        "connect_timeout",
        "drain_grace",
        "fin_timeout",
        "forwarded",
        "idle_timeout",
        "max_head",
        "max_lifetime",
        "request_id",
        "spare_connections",
        "sticky_secret",
        "upstream",
        "upstream_ca",
        "upstream_cert",
        "upstream_insecure",
        "upstream_key",
        "upstream_name",
        "upstream_proxy_protocol",
        "upstream_timeout",
        "upstream_tls",
        "x_real_ip",
    ],
];

/// Reverse proxy and load balancer for WebSockets and HTTP
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    server: running::Flags,
    /// Upstream server: ADDRESS:PORT, NAME:PORT or unix:/PATH. Repeatable. For several pools use
    /// [[route]] and [pool.NAME] in a --config file
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = UPSTREAMS)]
    upstream: Vec<Endpoint>,
    /// Maximum number of tunnels, such as 50k; each takes two descriptors [default: what the
    /// workers' descriptor tables hold]
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = TUNNELS)]
    max_connections: Option<u64>,
    /// Source addresses for connections to upstreams, used in turn [default: chosen by the system;
    /// on loopback as many of 127.0.0.0/8 as needed]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = UPSTREAMS)]
    source: Vec<IpAddr>,
    /// Close a tunnel after this time without data in either direction, or off
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = idle_timeout,
        help_heading = TUNNELS)]
    idle_timeout: IdleTimeout,
    /// Close a tunnel at this age (plus or minus 10 %), or off
    #[arg(long, value_name = "TIME", default_value = "off", value_parser = idle_timeout,
        help_heading = TUNNELS)]
    max_lifetime: IdleTimeout,
    /// Timeout for connecting to an upstream, including TLS
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::positive_duration,
        help_heading = UPSTREAMS)]
    connect_timeout: Duration,
    /// Timeout for an upstream's response to a WebSocket handshake
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration,
        help_heading = UPSTREAMS)]
    upstream_timeout: Duration,
    /// Timeout for an upstream's response to any other request, and for each pause within it
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::positive_duration,
        help_heading = UPSTREAMS)]
    answer_timeout: Duration,
    /// Close a half-closed tunnel after this time without data
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::positive_duration,
        help_heading = TUNNELS)]
    fin_timeout: Duration,
    /// Drop a peer that acknowledges nothing for this time (TCP_USER_TIMEOUT), or off. Keepalive
    /// probes start after half of it idle and repeat every tenth of it
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = idle_timeout,
        help_heading = TUNNELS)]
    peer_timeout: IdleTimeout,
    /// Idle connections to upstreams that each worker keeps for later HTTP requests
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16),
        help_heading = UPSTREAMS)]
    spare_connections: u16,
    /// Secret for sticky cookies, the same on proxies that share clients. Process lists show flags:
    /// use file:PATH or STANDFAST_PROXY_STICKY_SECRET [default: random, new at each start]
    #[arg(long, value_name = "SECRET", value_parser = secret_source, help_heading = UPSTREAMS)]
    sticky_secret: Option<SecretSource>,
    #[command(flatten)]
    bodies: bodies::Flags,
    #[command(flatten)]
    admission: admission::Flags,
    /// Maximum size of a request head; a larger value than the default also applies to responses
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = head_bytes,
        help_heading = ADMISSION)]
    max_head: usize,
    /// Send Forwarded (RFC 7239) to upstreams, in addition to X-Forwarded-For, -Proto and -Host
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = UPSTREAMS)]
    forwarded: bool,
    /// Send X-Real-IP, the client's address, to upstreams
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = UPSTREAMS)]
    x_real_ip: bool,
    /// Send an id of each request as X-Request-Id: off, upstream, or all (clients, too). It is logged; a
    /// trusted proxy's is kept
    #[arg(long, value_name = "WHERE", default_value = "off", help_heading = UPSTREAMS)]
    request_id: RequestIds,
    /// Send a PROXY header to upstreams, before TLS if there is any; a pool can override it
    #[arg(long, value_name = "VERSION", default_value = "off", help_heading = UPSTREAMS)]
    upstream_proxy_protocol: ProxyHeader,
    /// Log each tunnel and request to this file when it ends, or to - (standard output). Connections
    /// that admission limits refuse are only counted
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    access_log: Option<PathBuf>,
    /// Format of the access log: json or combined
    #[arg(long, value_name = "FORM", default_value = "json", help_heading = PROCESS)]
    access_log_format: LogFormat,
    #[command(flatten)]
    tls: tls::ServerFlags,
    #[command(flatten)]
    upstream_tls: tls::UpstreamFlags,
    /// Time after --drain for responses in progress; then they are aborted
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration,
        help_heading = PROCESS)]
    drain_grace: Duration,
    /// Read [proxy] settings, [[route]] and [pool.NAME] from this TOML file
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    config: Option<PathBuf>,
}

/// Subcommands that do not run the proxy.
#[derive(Subcommand, Debug)]
enum Task {
    /// Check a configuration file, resolve the names of its upstreams and report errors
    Check {
        /// Configuration file (TOML)
        file: PathBuf,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ProxyHeader {
    /// No PROXY header
    Off,
    /// Version 1, a line of text
    V1,
    /// Version 2, binary
    V2,
}

impl ServerArgs for Args {
    fn server(&self) -> &running::Flags {
        &self.server
    }
}

/// Runs the proxy until SIGTERM or SIGINT.
///
/// # Errors
/// Any reason why it cannot start. After the start only a failed worker ends it, with exit code 1.
pub(crate) fn run(args: &Args, flags: &ArgMatches) -> Result<ExitCode> {
    if let Some(Task::Check { file }) = &args.task {
        return check(file);
    }
    let settings = read(flags)?;
    let config = config(&settings.args)?;
    settings.args.server.init_process();
    let running = proxy::start(&config)?;
    running::run_until_signal(running, settings, |running, old| reload(running, old, flags))
}

fn check(file: &Path) -> Result<ExitCode> {
    let layer = Layer::from([("config".to_owned(), vec![file.display().to_string()])]);
    let settings = Settings::<Args>::read_layer("proxy", layer)?;
    let config = config(&settings.args)?;
    proxy::check_sources(&config.sources)?;
    let routes = config.routes;
    Resolving::start(routes.hosts()).wait().complete().map_err(anyhow::Error::msg)?;
    let upstreams: usize = routes.pools.iter().map(|pool| pool.members.len()).sum();
    let count = |number: usize, what: &str| {
        format!("{number} {what}{}", if number == 1 { "" } else { "s" })
    };
    let (routes_text, pools) =
        (count(routes.routes.len(), "route"), count(routes.pools.len(), "pool"));
    let upstreams = count(upstreams, "upstream");
    output::print(&format!(
        "{}: configuration ok: {routes_text}, {pools}, {upstreams}\n",
        file.display()
    ))?;
    for unused in routes.unused() {
        output::print(&format!("warning: no route uses [pool.{unused}]\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(flags: &ArgMatches) -> Result<Settings<Args>> {
    Settings::read("proxy", flags, ("", Layer::new()))
}

fn reload(
    running: &Running,
    old: &Settings<Args>,
    flags: &ArgMatches,
) -> Result<Reload<Running, Args>> {
    let new = read(flags)?;
    running::check_reloadable(old, &new, RELOADABLE)?;
    let Config { live, routes, .. } = config(&new.args)?;
    let Some(mut resolving) = running.resolve(&routes) else {
        running.reload(live, routes, Lookups::default()).map_err(anyhow::Error::msg)?;
        return Ok(Reload::Applied(new));
    };
    info!("reload: resolving {}", resolving.hosts());
    let mut settings = Some((live, routes));
    let apply = move |running: &Running| {
        let lookups = resolving.poll()?;
        let (live, routes) = settings.take()?;
        Some(running.reload(live, routes, lookups).map_err(anyhow::Error::msg))
    };
    Ok(Reload::Waiting(new, Box::new(apply)))
}

fn config(args: &Args) -> Result<Config> {
    let live = live(args)?;
    let (listen, listen_tls) = args.server.listeners(live.tls.is_some())?;
    Ok(Config {
        listen,
        listen_tls,
        admin: args.server.admin.0.clone(),
        admin_connections: args.server.admin_connections(),
        workers: args.server.workers.map(usize::from),
        max_tunnels: args.max_connections,
        backlog: args.server.backlog,
        sources: args.source.clone(),
        access_log: args.access_log.clone().map(|path| (path, args.access_log_format)),
        routes: routes(args)?,
        live,
    })
}

/// Routes and pools: `--upstream` replaces those of the file. The TLS and PROXY settings of a pool
/// take precedence over the flags.
fn routes(args: &Args) -> Result<RoutesConfig> {
    let configured = if args.upstream.is_empty() {
        args.config.as_deref().map(routes::from_file).transpose()?.flatten()
    } else {
        Some((RoutesConfig::to(args.upstream.iter().cloned()), vec![PoolTransport::default()]))
    };
    let (mut routes, transports) = configured.ok_or_else(|| {
        anyhow!(
            "no upstream configured: use --upstream ADDRESS:PORT, or --config FILE with a \
             [pool.NAME] section"
        )
    })?;
    routes.check().map_err(anyhow::Error::msg)?;
    let flags = Transport { tls: args.upstream_tls.client()?, proxy_header: args.proxy_header() };
    let key = args.sticky_secret.as_ref().map(|secret| secret.read("sticky-secret")).transpose()?;
    let key = key.map_or_else(CookieKey::default, |secret| CookieKey::new(secret.bytes()));
    for (pool, transport) in routes.pools.iter_mut().zip(transports) {
        if let Some(sticky) = &mut pool.sticky {
            sticky.key = key.clone();
        }
        pool.transport = flags.clone();
        if let Some(tls) = transport.tls {
            let tls = tls.as_ref().map(tls::upstream_tls).transpose();
            pool.transport.tls = tls.with_context(|| format!("[pool.{}]: tls", pool.name))?;
        }
        if let Some(header) = transport.proxy_protocol {
            pool.transport.proxy_header = header;
        }
    }
    Ok(routes)
}

impl Args {
    fn proxy_header(&self) -> Option<ProxyVersion> {
        match self.upstream_proxy_protocol {
            ProxyHeader::Off => None,
            ProxyHeader::V1 => Some(ProxyVersion::V1),
            ProxyHeader::V2 => Some(ProxyVersion::V2),
        }
    }
}

fn live(args: &Args) -> Result<Live> {
    let mut limits = Limits {
        peer_timeout: args.peer_timeout.0,
        drain_grace: args.drain_grace,
        ..Limits::default()
    };
    args.admission.set(&mut limits)?;
    limits.wire.head_bytes = args.max_head;
    let timeouts = Timeouts {
        connect: args.connect_timeout,
        handshake: args.upstream_timeout,
        answer: args.answer_timeout,
        idle: args.idle_timeout.0,
        fin: args.fin_timeout,
        lifetime: args.max_lifetime.0,
        ..Timeouts::default()
    };
    Ok(Live {
        limits,
        timeouts,
        bodies: args.bodies.limits(),
        tls: args.tls.server()?,
        redirect: args.server.tls_listeners.redirect(),
        forwarded: args.forwarded,
        real_ip: args.x_real_ip,
        request_ids: args.request_id,
        idle_connections: usize::from(args.spare_connections),
        admin_key: args.server.admin_key.clone(),
        admin_tls: args.tls.admin(&args.server.admin)?,
    })
}

fn head_bytes(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    let within = usize::try_from(bytes).ok().filter(|bytes| (1024..=64 * 1024).contains(bytes));
    within.ok_or_else(|| "expected 1KiB to 64KiB".to_owned())
}
