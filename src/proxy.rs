//! `standfast proxy`: flags, file and environment become a [`proxy::Config`]; then signals are waited
//! for until the end.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::proxy::access_log::Form;
use ::proxy::{
    Address, AdmissionLimits, Config, ForwardedBy, How, Limits, Live, Network, Patience, Place,
    PoolConfig, Prefix, Proxies, ProxyVersion, RoutesConfig, Running,
};
use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgMatches, Subcommand, ValueEnum};
use engine::sys::process::{self, Signal, wait_signal};
use serde_json::json;
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};

use crate::serve::{self, ADMISSION, Admin, Forwarded, Idle, LISTENERS, PROCESS};
use crate::settings::{Layer, Settings};
use crate::{routes, tls, units};

/// Headings of flags, by which `help` finds them.
const UPSTREAMS: &str = "Upstreams";
const TUNNELS: &str = "Tunnels";

/// How often the end is asked for while draining.
const END_WAIT: Duration = Duration::from_millis(20);

/// Keys that take effect on SIGHUP beside routes and pools; a change of any other needs a restart.
const RELOADABLE: [&str; 33] = [
    "admin_key",
    "answer_timeout",
    "connect_rate",
    "connect_timeout",
    "drain",
    "fin_timeout",
    "forwarded",
    "forwarded_header",
    "handshake_timeout",
    "idle_timeout",
    "max_handshakes",
    "max_lifetime",
    "max_per_address",
    "memory_limit",
    "per_address_prefix",
    "per_address_rate",
    "proxy_protocol",
    "spare_connections",
    "tls_cert",
    "tls_client_ca",
    "tls_key",
    "tls_min",
    "trusted_proxy",
    "upstream",
    "upstream_ca",
    "upstream_cert",
    "upstream_insecure",
    "upstream_key",
    "upstream_name",
    "upstream_proxy_protocol",
    "upstream_timeout",
    "upstream_tls",
    "max_head",
];

/// Stand before other servers: WebSockets and plain HTTP, balanced over upstreams
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Option<Task>,
    /// Address and port for clients, or unix:/PATH; port 0 takes a free one. May be given several
    /// times
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_delimiter = ',',
        help_heading = LISTENERS)]
    listen: Vec<Address>,
    /// A server to pass requests on to: ADDRESS:PORT, NAME:PORT or unix:/PATH. May be given several
    /// times; a file says more by [[route]] and [pool.NAME]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = UPSTREAMS)]
    upstream: Vec<Place>,
    /// Address and port for operators, unix:/PATH, or off
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090",
        value_parser = serve::admin,
        help_heading = LISTENERS)]
    admin: Admin,
    /// Key that operators must send as a Bearer token
    #[arg(long, value_name = "KEY", value_parser = serve::key, help_heading = LISTENERS)]
    admin_key: Option<String>,
    /// Worker threads [default: one per core, more as descriptor tables fill]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024),
        help_heading = PROCESS)]
    workers: Option<u16>,
    /// Tunnels at most, such as 50k; each takes two descriptors [default: what the workers'
    /// descriptor tables hold]
    #[arg(long, value_name = "TUNNELS", value_parser = units::count, help_heading = TUNNELS)]
    max_connections: Option<u64>,
    /// Connect to upstreams from these addresses, in turn [default: the system's choice, and on
    /// loopback as many of 127.0.0.0/8 as are needed]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = UPSTREAMS)]
    source: Vec<IpAddr>,
    /// Close tunnels in which neither side says anything for so long, or off
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = serve::idle,
        help_heading = TUNNELS)]
    idle_timeout: Idle,
    /// Close tunnels after this time, give or take a tenth, or off
    #[arg(long, value_name = "TIME", default_value = "off", value_parser = serve::idle,
        help_heading = TUNNELS)]
    max_lifetime: Idle,
    /// Time for a connect to an upstream
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::positive_duration,
        help_heading = UPSTREAMS)]
    connect_timeout: Duration,
    /// Time for an upstream's answer to a handshake
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration,
        help_heading = UPSTREAMS)]
    upstream_timeout: Duration,
    /// Time for an upstream's answer to another request, and for each silence in the middle of one
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::positive_duration,
        help_heading = UPSTREAMS)]
    answer_timeout: Duration,
    /// Close tunnels of which one side has ended and the other says nothing for so long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::positive_duration,
        help_heading = TUNNELS)]
    fin_timeout: Duration,
    /// Give up a peer that acknowledges nothing for so long (TCP_USER_TIMEOUT), and ask idle ones
    /// after twice that whether they are there; or off
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = serve::idle,
        help_heading = TUNNELS)]
    peer_timeout: Idle,
    /// Connections to upstreams that each worker keeps for a next plain request
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16),
        help_heading = UPSTREAMS)]
    spare_connections: u16,
    /// Time for a whole request head
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration,
        help_heading = ADMISSION)]
    handshake_timeout: Duration,
    /// Longest head of a request
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = head_bytes,
        help_heading = ADMISSION)]
    max_head: usize,
    /// Requests whose head is not whole yet, at most; beyond it the oldest is answered 503
    #[arg(long, value_name = "N", default_value = "16k", value_parser = serve::number,
        help_heading = ADMISSION)]
    max_handshakes: u32,
    /// New connections per second, at most; further ones are answered 503
    #[arg(long, value_name = "N", value_parser = serve::number, help_heading = ADMISSION)]
    connect_rate: Option<u32>,
    /// Connections of one address at a time, at most
    #[arg(long, value_name = "N", value_parser = serve::number, help_heading = ADMISSION)]
    max_per_address: Option<u32>,
    /// New connections of one address per second, at most
    #[arg(long, value_name = "N", value_parser = serve::number, help_heading = ADMISSION)]
    per_address_rate: Option<u32>,
    /// Leading bits that make one address, of IPv4 and of IPv6
    #[arg(long, value_name = "V4/V6", default_value = "32/64", value_parser = serve::prefix,
        help_heading = ADMISSION)]
    per_address_prefix: Prefix,
    /// Believe these peers, such as 10.0.0.0/8, when they tell a client's address. May be given
    /// several times
    #[arg(long, value_name = "CIDR", value_delimiter = ',', help_heading = ADMISSION)]
    trusted_proxy: Vec<Network>,
    /// They tell it by a PROXY header (v1 or v2) in front of each connection, and must
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = ADMISSION)]
    proxy_protocol: bool,
    /// The header by which they tell it otherwise
    #[arg(long, value_name = "HEADER", default_value = "x-forwarded-for", help_heading = ADMISSION)]
    forwarded_header: Forwarded,
    /// Tell upstreams whose a request is by Forwarded (RFC 7239) too, beside X-Forwarded-For, -Proto
    /// and -Host
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = UPSTREAMS)]
    forwarded: bool,
    /// Tell upstreams whose a connection is by a PROXY header
    #[arg(long, value_name = "VERSION", default_value = "off", help_heading = UPSTREAMS)]
    upstream_proxy_protocol: ProxyHeader,
    /// Resident memory beyond which nobody is let in, such as 2GiB
    #[arg(long, value_name = "SIZE", value_parser = serve::memory_bytes, help_heading = ADMISSION)]
    memory_limit: Option<u64>,
    /// Write a line per tunnel and request to this file when it ends, or to - (standard output)
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    access_log: Option<PathBuf>,
    /// How those lines look: json or combined
    #[arg(long, value_name = "FORM", default_value = "json", help_heading = PROCESS)]
    access_log_format: Form,
    #[command(flatten)]
    tls: tls::ServerFlags,
    #[command(flatten)]
    upstream_tls: tls::UpstreamFlags,
    /// Connections that may wait to be accepted; net.core.somaxconn caps it
    #[arg(long, value_name = "N", default_value = "4096",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = LISTENERS)]
    backlog: u32,
    /// On SIGTERM, spread the closing of tunnels over this time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration,
        help_heading = PROCESS)]
    drain: Duration,
    /// Read settings from the [proxy] section of this TOML file, and routes and pools beside it
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    config: Option<PathBuf>,
    /// Print one JSON line with addresses and process id when ready
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = PROCESS)]
    ready_json: bool,
    /// End when the process that started this one does
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true")]
    end_with_parent: bool,
    /// What to log: off, error, warn, info or debug
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = serve::level,
        help_heading = PROCESS)]
    log: LevelFilter,
}

/// What to do instead of running.
#[derive(Subcommand, Debug)]
enum Task {
    /// Read a configuration file as the proxy would, and say what is wrong
    Check {
        /// The file
        file: PathBuf,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ProxyHeader {
    /// Not at all
    Off,
    /// As a line of text
    V1,
    /// In binary
    V2,
}

/// Passes on until SIGTERM or SIGINT.
///
/// # Errors
/// Whatever keeps it from starting. Afterwards only a failed worker ends it, with exit code 1.
pub(crate) fn run(args: &Args, flags: &ArgMatches) -> Result<ExitCode> {
    if let Some(Task::Check { file }) = &args.task {
        return check(file);
    }
    let settings = read(flags)?;
    if settings.args.end_with_parent {
        process::end_with_parent();
    }
    let config = config(&settings.args)?;
    serve::start_log(settings.args.log);
    let running = proxy::start(&config)?;
    if settings.args.ready_json {
        print_ready(&running).context("cannot print the ready line")?;
    }
    match pass_on_until_told(running, settings, flags) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            error!("{failure:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn check(file: &Path) -> Result<ExitCode> {
    let layer = Layer::from([("config".to_owned(), vec![file.display().to_string()])]);
    let settings = Settings::<Args>::read_layer("proxy", layer)?;
    let routes = config(&settings.args)?.routes;
    let upstreams: usize = routes.pools.iter().map(|pool| pool.members.len()).sum();
    let many =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let (routes_said, pools) =
        (many(routes.routes.len(), "route"), many(routes.pools.len(), "pool"));
    println!("{}: {routes_said}, {pools}, {}", file.display(), many(upstreams, "upstream"));
    for unused in routes.unused() {
        println!("no route leads to [pool.{unused}]");
    }
    Ok(ExitCode::SUCCESS)
}

fn read(flags: &ArgMatches) -> Result<Settings<Args>> {
    Settings::read("proxy", flags, ("", Layer::new()))
}

fn pass_on_until_told(
    mut running: Running,
    mut settings: Settings<Args>,
    flags: &ArgMatches,
) -> io::Result<()> {
    loop {
        match wait_signal(running.look_every()) {
            Some(Signal::Terminate | Signal::Interrupt) => break,
            Some(Signal::Reload) => match reload(&running, &settings, flags) {
                Ok(new) => {
                    info!("settings were read again and hold");
                    settings = new;
                }
                Err(refused) => error!("settings stay as they were: {refused:#}"),
            },
            None => {}
        }
        running.look_after()?;
    }
    running.drain(settings.args.drain);
    loop {
        if let Some(ended) = running.ended() {
            return ended;
        }
        if let Some(Signal::Terminate | Signal::Interrupt) = wait_signal(END_WAIT) {
            warn!("told again: ending at once");
            return Ok(());
        }
    }
}

/// Reads all layers again and puts them in force, all or nothing.
fn reload(
    running: &Running,
    settings: &Settings<Args>,
    flags: &ArgMatches,
) -> Result<Settings<Args>> {
    let new = read(flags)?;
    let mut fixed = settings.differ(&new);
    fixed.retain(|key| !RELOADABLE.contains(key));
    if !fixed.is_empty() {
        bail!("a change of {} needs a restart", fixed.join(", "));
    }
    let config = config(&new.args)?;
    running.reload(config.live, config.routes).map_err(anyhow::Error::msg)?;
    Ok(new)
}

fn config(args: &Args) -> Result<Config> {
    if args.proxy_protocol && args.trusted_proxy.is_empty() {
        bail!("--proxy-protocol needs --trusted-proxy: whose PROXY headers to believe");
    }
    let routes = routes(args)?;
    let live = live(args)?;
    let plain = live.upstream_tls.is_none() && live.proxy_header.is_none();
    let asks = |pool: &&PoolConfig| matches!(pool.check.how, How::Http(_) | How::WebSocket(_));
    if let Some(pool) = routes.pools.iter().find(asks).filter(|_| !plain) {
        bail!(
            "[pool.{}]: check = \"{}\" asks in plain HTTP, which --upstream-tls and \
             --upstream-proxy-protocol do not fit: write check = \"tcp\"",
            pool.name,
            pool.check.how
        );
    }
    Ok(Config {
        listen: args.listen.clone(),
        admin: args.admin.0.clone(),
        workers: args.workers.map(usize::from),
        max_tunnels: args.max_connections,
        backlog: args.backlog,
        sources: args.source.clone(),
        access_log: args.access_log.clone().map(|path| (path, args.access_log_format)),
        routes,
        live,
    })
}

/// Flags before the file.
fn routes(args: &Args) -> Result<RoutesConfig> {
    let routes = if args.upstream.is_empty() {
        args.config.as_deref().map(routes::from_file).transpose()?.flatten()
    } else {
        Some(RoutesConfig::to(args.upstream.iter().cloned()))
    };
    let routes = routes.ok_or_else(|| {
        anyhow!(
            "there is nothing to pass requests on to: give --upstream ADDRESS:PORT, or a file \
                 with [pool.NAME] by --config"
        )
    })?;
    routes.check().map_err(anyhow::Error::msg)?;
    Ok(routes)
}

fn live(args: &Args) -> Result<Live> {
    let mut limits = Limits {
        handshake_timeout: args.handshake_timeout,
        peer_timeout: args.peer_timeout.0,
        ..Limits::default()
    };
    limits.wire.head_bytes = args.max_head;
    limits.admission = AdmissionLimits {
        handshakes: args.max_handshakes,
        connect_rate: args.connect_rate,
        per_address: args.max_per_address,
        per_address_rate: args.per_address_rate,
        prefix: args.per_address_prefix,
        memory_bytes: args.memory_limit,
    };
    limits.proxies = Proxies {
        trusted: args.trusted_proxy.clone(),
        protocol: args.proxy_protocol,
        forwarded: match args.forwarded_header {
            Forwarded::XForwardedFor => ForwardedBy::XForwardedFor,
            Forwarded::Forwarded => ForwardedBy::Forwarded,
        },
    };
    let upstream_tls = args.upstream_tls.client()?;
    let proxy_header = match args.upstream_proxy_protocol {
        ProxyHeader::Off => None,
        _ if upstream_tls.is_some() => bail!(
            "--upstream-proxy-protocol with --upstream-tls is not implemented: the header would \
             have to stand in front of TLS"
        ),
        ProxyHeader::V1 => Some(ProxyVersion::V1),
        ProxyHeader::V2 => Some(ProxyVersion::V2),
    };
    let patience = Patience {
        connect: args.connect_timeout,
        handshake: args.upstream_timeout,
        answer: args.answer_timeout,
        idle: args.idle_timeout.0,
        fin: args.fin_timeout,
        lifetime: args.max_lifetime.0,
        ..Patience::default()
    };
    Ok(Live {
        limits,
        patience,
        tls: args.tls.server()?,
        upstream_tls,
        proxy_header,
        forwarded: args.forwarded,
        spares: usize::from(args.spare_connections),
        admin_key: args.admin_key.clone(),
    })
}

fn head_bytes(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    let within = usize::try_from(bytes).ok().filter(|bytes| (1024..=64 * 1024).contains(bytes));
    within.ok_or_else(|| "a head has 1KiB to 64KiB".to_owned())
}

fn print_ready(running: &Running) -> io::Result<()> {
    let line = json!({
        "listen": running.listen().first().map(Address::to_string),
        "listeners": running.listen().iter().map(Address::to_string).collect::<Vec<_>>(),
        "admin": running.admin().map(Address::to_string),
        "pid": std::process::id(),
    });
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
