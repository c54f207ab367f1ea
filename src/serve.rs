//! `standfast serve`: flags, file and environment become a [`serve::Config`]; then signals are
//! waited for until the end.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgMatches, ValueEnum};
use engine::sys::process::{self, Signal, wait_signal};
use serde_json::json;
use serve::{
    Address, AdmissionLimits, Config, ForwardedBy, Limits, Live, Network, Origin, Prefix, Proxies,
    Running,
};
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};

use crate::anycable::Anycable;
use crate::settings::Settings;
use crate::{anycable, auth, channels, tls, units};

/// Headings of flags, by which `help` finds them.
pub(crate) const LISTENERS: &str = "Listeners";
const LIMITS: &str = "Limits";
pub(crate) const ADMISSION: &str = "Admission";
pub(crate) const PROCESS: &str = "Process";

/// The least that memory can be limited to.
const MEMORY_MIN: u64 = 16 << 20;
/// How often the end is asked for while draining.
const END_WAIT: Duration = Duration::from_millis(20);

/// Keys that take effect on SIGHUP; a change of any other needs a restart.
const RELOADABLE: [&str; 38] = [
    "admin_key",
    "allow_origin",
    "broadcast_key",
    "cable_ready_secret",
    "compress_above",
    "compression",
    "connect_rate",
    "drain",
    "end_expired",
    "enforce_jwt",
    "forwarded_header",
    "handshake_timeout",
    "jwt_keys",
    "jwt_param",
    "jwt_secret",
    "max_handshakes",
    "max_message",
    "max_per_address",
    "max_subscriptions",
    "memory_limit",
    "per_address_prefix",
    "per_address_rate",
    "ping_interval",
    "pings",
    "pong_timeout",
    "proxy_protocol",
    "public_streams",
    "secret",
    "send_queue",
    "slow_consumer",
    "streams_secret",
    "streams_whisper",
    "tls_cert",
    "tls_client_ca",
    "tls_key",
    "tls_min",
    "trusted_proxy",
    "turbo_secret",
];

/// Serve WebSockets: /cable, /topics/NAME, /events, /echo, /health
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Address and port for clients, or unix:/PATH; port 0 takes a free one. May be given several
    /// times
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_delimiter = ',',
        help_heading = LISTENERS)]
    listen: Vec<Address>,
    /// Address and port for operators, unix:/PATH, or off
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090", value_parser = admin,
        help_heading = LISTENERS)]
    admin: Admin,
    /// Serve /echo, which sends each message back
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = LISTENERS)]
    echo: bool,
    /// Let anyone subscribe and publish; implied when all listeners are loopback
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = LISTENERS)]
    public: bool,
    /// Let pages of this origin connect: https://example.com, https://*.example.com or * for all.
    /// May be given several times
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', help_heading = LISTENERS)]
    allow_origin: Vec<Origin>,
    /// Key that operators must send as a Bearer token
    #[arg(long, value_name = "KEY", value_parser = key, help_heading = LISTENERS)]
    admin_key: Option<String>,
    /// Worker threads [default: one per core, more as descriptor tables fill]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024),
        help_heading = PROCESS)]
    workers: Option<u16>,
    /// Connections at most, such as 50k [default: what the workers' descriptor tables hold]
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = LIMITS)]
    max_connections: Option<u64>,
    /// Longest message from a client, summed over its fragments
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = message_bytes,
        help_heading = LIMITS)]
    max_message: u32,
    /// Whether messages may be compressed (permessage-deflate): off; shared, each by itself; or
    /// takeover, with what each client keeps, for 310 KB a client
    #[arg(long, value_name = "HOW", default_value = "shared", help_heading = LIMITS)]
    compression: Compression,
    /// Bytes from which on a message is compressed
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = units::size,
        help_heading = LIMITS)]
    compress_above: u64,
    /// Bytes that may wait for one slow client
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = queue_bytes,
        help_heading = LIMITS)]
    send_queue: usize,
    /// What happens to a client beyond that
    #[arg(long, value_name = "POLICY", default_value = "disconnect", help_heading = LIMITS)]
    slow_consumer: SlowConsumer,
    /// Close clients that were silent for so long, or off
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = idle,
        help_heading = LIMITS)]
    idle_timeout: Idle,
    /// Ping clients after half the idle timeout, so that live ones stay
    #[arg(long, value_name = "WHEN", default_value = "on", help_heading = LIMITS)]
    pings: Switch,
    /// Time for a whole request head
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration,
        help_heading = ADMISSION)]
    handshake_timeout: Duration,
    /// Requests whose head is not whole yet, at most; beyond it the oldest is answered 503
    #[arg(long, value_name = "N", default_value = "16k", value_parser = number,
        help_heading = ADMISSION)]
    max_handshakes: u32,
    /// New connections per second, at most; further ones are answered 503
    #[arg(long, value_name = "N", value_parser = number, help_heading = ADMISSION)]
    connect_rate: Option<u32>,
    /// Connections of one address at a time, at most
    #[arg(long, value_name = "N", value_parser = number, help_heading = ADMISSION)]
    max_per_address: Option<u32>,
    /// New connections of one address per second, at most
    #[arg(long, value_name = "N", value_parser = number, help_heading = ADMISSION)]
    per_address_rate: Option<u32>,
    /// Leading bits that make one address, of IPv4 and of IPv6
    #[arg(long, value_name = "V4/V6", default_value = "32/64", value_parser = prefix,
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
    /// Resident memory beyond which nobody is let in and connections are shed, such as 2GiB
    #[arg(long, value_name = "SIZE", value_parser = memory_bytes, help_heading = ADMISSION)]
    memory_limit: Option<u64>,
    #[command(flatten)]
    channels: channels::Flags,
    #[command(flatten)]
    auth: auth::Flags,
    #[command(flatten)]
    tls: tls::ServerFlags,
    /// Connections that may wait to be accepted; net.core.somaxconn caps it
    #[arg(long, value_name = "N", default_value = "4096",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = LISTENERS)]
    backlog: u32,
    /// On SIGTERM, spread the closing of clients over this time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration,
        help_heading = PROCESS)]
    drain: Duration,
    /// Read settings from the [serve] section of this TOML file
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
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = level,
        help_heading = PROCESS)]
    log: LevelFilter,
}

/// Where the admin listener is, if anywhere.
#[derive(Clone, Debug)]
pub(crate) struct Admin(pub(crate) Option<Address>);

/// The idle timeout, if any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle(pub(crate) Option<Duration>);

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Forwarded {
    /// X-Forwarded-For
    XForwardedFor,
    /// Forwarded (RFC 7239)
    Forwarded,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Compression {
    /// Not at all
    Off,
    /// Each message by itself: an idle client costs no more than without
    Shared,
    /// With what each client has sent and received before
    Takeover,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SlowConsumer {
    /// Close it with 1013
    Disconnect,
    /// Drop its oldest messages
    DropOldest,
    /// Keep only the latest message
    LatestOnly,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Whatever keeps it from starting. Afterwards only a failed worker ends it, with exit code 1.
pub(crate) fn run(flags: &ArgMatches) -> Result<ExitCode> {
    let (settings, ignored) = read(flags)?;
    if settings.args.end_with_parent {
        process::end_with_parent();
    }
    agree(&settings.args)?;
    start_log(settings.args.log);
    if !ignored.is_empty() {
        warn!("these have no effect here: {}", ignored.join(", "));
    }
    let config = config(&settings.args)?;
    let running = serve::start(&config)?;
    if settings.args.ready_json {
        print_ready(&running).context("cannot print the ready line")?;
    }
    match serve_until_told(running, settings, flags) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            error!("{failure:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Reads all settings, and names variables of AnyCable's that have no effect.
fn read(flags: &ArgMatches) -> Result<(Settings<Args>, Vec<String>)> {
    let Anycable { layer, ignored } = Anycable::from_environment()?;
    Ok((Settings::read("serve", flags, (anycable::PREFIX, layer))?, ignored))
}

/// What flags say only together.
fn agree(args: &Args) -> Result<()> {
    if args.proxy_protocol && args.trusted_proxy.is_empty() {
        anyhow::bail!("--proxy-protocol needs --trusted-proxy: whose PROXY headers to believe");
    }
    Ok(())
}

fn serve_until_told(
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
    let (new, _) = read(flags)?;
    let mut fixed = settings.differ(&new);
    fixed.retain(|key| !RELOADABLE.contains(key));
    if !fixed.is_empty() {
        anyhow::bail!("a change of {} needs a restart", fixed.join(", "));
    }
    agree(&new.args)?;
    running.reload(&live(&new.args)?).map_err(anyhow::Error::msg)?;
    Ok(new)
}

fn config(args: &Args) -> Result<Config> {
    Ok(Config {
        listen: args.listen.clone(),
        admin: args.admin.0.clone(),
        echo: args.echo,
        cable_path: args.channels.path(),
        public: args.public,
        listen_broadcast: args.auth.listen_broadcast(),
        workers: args.workers.map(usize::from),
        max_connections: args.max_connections,
        backlog: args.backlog,
        live: live(args)?,
    })
}

fn live(args: &Args) -> Result<Live> {
    let mut limits = Limits::default();
    limits.wire.message_bytes = args.max_message;
    limits.send_queue_bytes = args.send_queue;
    limits.compression = match args.compression {
        Compression::Off => serve::Compression::Off,
        Compression::Shared => serve::Compression::Shared,
        Compression::Takeover => serve::Compression::Takeover,
    };
    limits.compress_above_bytes = usize::try_from(args.compress_above).unwrap_or(usize::MAX);
    limits.slow_consumer = match args.slow_consumer {
        SlowConsumer::Disconnect => serve::SlowConsumer::Disconnect,
        SlowConsumer::DropOldest => serve::SlowConsumer::DropOldest,
        SlowConsumer::LatestOnly => serve::SlowConsumer::LatestOnly,
    };
    limits.idle_timeout = args.idle_timeout.0;
    limits.pings = matches!(args.pings, Switch::On);
    limits.handshake_timeout = args.handshake_timeout;
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
    let (allow_origin, admin_key) = (args.allow_origin.clone(), args.admin_key.clone());
    let (auth, tls) = (args.auth.auth()?, args.tls.server()?);
    let channels = args.channels.channels();
    Ok(Live { limits, allow_origin, admin_key, channels, auth, tls })
}

pub(crate) fn start_log(level: LevelFilter) {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal() && !no_color)
        .with_writer(io::stderr)
        .init();
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

pub(crate) fn admin(text: &str) -> Result<Admin, String> {
    match text {
        "off" => Ok(Admin(None)),
        _ => text.parse().map(|address| Admin(Some(address))).map_err(|e| format!("{e}, nor off")),
    }
}

pub(crate) fn key(text: &str) -> Result<String, String> {
    let usable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    usable
        .then(|| text.to_owned())
        .ok_or_else(|| "a key is visible ASCII without blanks".to_owned())
}

pub(crate) fn idle(text: &str) -> Result<Idle, String> {
    if text == "off" {
        return Ok(Idle(None));
    }
    let time = units::positive_duration(text).map_err(|error| format!("{error}, or off"))?;
    Ok(Idle(Some(time)))
}

pub(crate) fn number(text: &str) -> Result<u32, String> {
    let number = units::positive_count(text)?;
    u32::try_from(number).map_err(|_| format!("{text} is too many: 4G is the most"))
}

pub(crate) fn prefix(text: &str) -> Result<Prefix, String> {
    let bits = |text: &str, most: u8| text.parse().ok().filter(|bits: &u8| *bits <= most);
    let parts = text.split_once('/').and_then(|(v4, v6)| Some((bits(v4, 32)?, bits(v6, 128)?)));
    let (v4, v6) = parts.ok_or_else(|| {
        format!("\"{text}\" is no pair of prefixes: write it as 32/64, for IPv4 and IPv6")
    })?;
    Ok(Prefix { v4, v6 })
}

pub(crate) fn memory_bytes(text: &str) -> Result<u64, String> {
    let bytes = units::size(text)?;
    let enough = (bytes >= MEMORY_MIN).then_some(bytes);
    enough.ok_or_else(|| format!("{text} is too little: the program alone takes 16MiB"))
}

fn message_bytes(text: &str) -> Result<u32, String> {
    let bytes = units::size(text)?;
    let within = u32::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    within.ok_or_else(|| "a message has 1 byte to 4 GiB".to_owned())
}

fn queue_bytes(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    usize::try_from(bytes).map_err(|_| format!("\"{text}\" is more than this machine addresses"))
}

pub(crate) fn level(text: &str) -> Result<LevelFilter, String> {
    text.parse().map_err(|_| format!("{text:?} is no level: off, error, warn, info or debug"))
}
