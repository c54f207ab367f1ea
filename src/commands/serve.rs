//! `standfast serve`: builds a [`serve::Config`] from flags, file and environment, and runs the server
//! until a signal ends it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{ArgMatches, ValueEnum};
use serve::{AllowedHost, Auth, Config, Limits, Live, Origin, Running};
use tracing::warn;

use crate::anycable::AnycableEnv;
use crate::running::{self, LISTENERS, PROCESS, Reload, ServerArgs};
use crate::settings::{Layer, Settings};
use crate::units::{IdleTimeout, idle_timeout};
use crate::{
    admission, anycable, application, auth, brokers, channels, history, presence, pubsub, tls,
    units, webhooks,
};

/// The heading of these flags, which is a topic of `help`.
const LIMITS: &str = "Limits";

/// Keys that take effect on SIGHUP; a change of any other needs a restart.
const RELOADABLE: &[&[&str]] = &[
    running::RELOADABLE,
    admission::RELOADABLE,
    tls::RELOADABLE,
    &[
        "allow_host",
        "allow_origin",
        "broadcast_key",
        "cable_ready_secret",
        "compress_above",
        "compression",
        "end_expired",
        "enforce_jwt",
        "jwt_keys",
        "jwt_param",
        "jwt_secret",
        "long_polling_bytes",
        "max_message",
        "max_subscription_bytes",
        "max_subscriptions",
        "ping_interval",
        "pings",
        "pong_timeout",
        "public_streams",
        "secret",
        "send_queue",
        "slow_consumer",
        "streams_secret",
        "streams_whisper",
        "turbo_secret",
    ],
];

/// Parts that are off by default: the flag that turns one on, and how the keys of its other flags begin.
const PARTS: &[(&str, &[&str])] = &[
    ("--auth-url", &["auth_"]),
    ("--history memory", &["history_", "sessions_"]),
    ("--presence memory", &["presence_"]),
    ("--pubsub redis", &["pubsub_", "node_id"]),
    ("--rpc-host", &["rpc_", "http_rpc_", "disconnect_"]),
    ("--rpc-host or --auth-url", &["proxy_headers", "proxy_cookies"]),
    ("--webhook-url", &["webhook_"]),
];

/// Serve WebSockets: /cable, /topics/NAME, /events, /echo, /health
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    server: running::Flags,
    /// Serve /echo, which sends each message back
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = LISTENERS)]
    echo: bool,
    /// Let anyone subscribe and publish; implied on loopback without a secret
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = LISTENERS)]
    public: bool,
    /// Allow pages of this origin: https://example.com, https://*.example.com or * for any. Repeatable
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', help_heading = LISTENERS)]
    allow_origin: Vec<Origin>,
    /// Names by which clients may address this server: live.example.com or *.example.com. Repeatable
    /// [default: any; on loopback, this machine's]
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = LISTENERS)]
    allow_host: Vec<AllowedHost>,
    /// Maximum connections, such as 50k [default: what the workers' descriptor tables hold]
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = LIMITS)]
    max_connections: Option<u64>,
    /// Longest message from a client, summed over its fragments
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = message_bytes,
        help_heading = LIMITS)]
    max_message: u32,
    /// Message compression (permessage-deflate): off; shared: each message on its own; takeover: with
    /// context takeover, 310 KB a client
    #[arg(long, value_name = "HOW", default_value = "shared", help_heading = LIMITS)]
    compression: Compression,
    /// Compress messages of at least this size
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = units::size,
        help_heading = LIMITS)]
    compress_above: u64,
    /// Maximum bytes queued for one slow client
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = queue_bytes,
        help_heading = LIMITS)]
    send_queue: usize,
    /// What to do with a client whose send queue is full
    #[arg(long, value_name = "POLICY", default_value = "disconnect", help_heading = LIMITS)]
    slow_consumer: SlowConsumer,
    /// Close clients that are silent for this time, or off
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = idle_timeout,
        help_heading = LIMITS)]
    idle_timeout: IdleTimeout,
    /// Ping clients after half the idle timeout, so that live ones are not closed
    #[arg(long, value_name = "WHEN", default_value = "on", help_heading = LIMITS)]
    pings: Switch,
    #[command(flatten)]
    admission: admission::Flags,
    #[command(flatten)]
    channels: channels::Flags,
    #[command(flatten)]
    long_polling: channels::LongPollingFlags,
    #[command(flatten)]
    history: history::Flags,
    #[command(flatten)]
    presence: presence::Flags,
    #[command(flatten)]
    auth: auth::Flags,
    #[command(flatten)]
    application: application::Flags,
    #[command(flatten)]
    webhooks: webhooks::Flags,
    #[command(flatten)]
    pubsub: pubsub::Flags,
    #[command(flatten)]
    brokers: brokers::Flags,
    #[command(flatten)]
    tls: tls::ServerFlags,
    /// Read settings from the [serve] section of this TOML file
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    config: Option<PathBuf>,
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
    /// Each message on its own: an idle client needs no extra memory
    Shared,
    /// With context takeover: earlier messages of the client improve compression
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

impl ServerArgs for Args {
    fn server(&self) -> &running::Flags {
        &self.server
    }
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Anything that prevents the start. After that only a failed worker ends it, with exit code 1.
pub(crate) fn run(flags: &ArgMatches) -> Result<ExitCode> {
    let (settings, ignored) = read(flags)?;
    let mut config = config(&settings.args)?;
    settings.args.server.init_process();
    if !ignored.is_empty() {
        warn!("environment variables ignored: {}", ignored.join(", "));
    }
    for idle in settings.without_effect(PARTS) {
        warn!("{idle}");
    }
    if let Some(pubsub) = &mut config.pubsub {
        pubsub.transport.discover().context("--redis-cluster")?;
    }
    let running = serve::start(&config)?;
    running::run_until_signal(running, settings, |running, old| {
        reload(running, old, flags).map(Reload::Applied)
    })
}

/// Reads all settings, and lists AnyCable variables without effect.
fn read(flags: &ArgMatches) -> Result<(Settings<Args>, Vec<String>)> {
    let AnycableEnv { layer, ignored } = AnycableEnv::from_environment()?;
    Ok((Settings::read("serve", flags, (anycable::PREFIX, layer))?, ignored))
}

/// Reads the secrets and keys of a server with these flags, as it would at its start.
///
/// # Errors
/// As at the start.
pub(crate) fn auth(flags: Layer) -> Result<Auth> {
    let AnycableEnv { layer, .. } = AnycableEnv::from_environment()?;
    let settings = Settings::<Args>::read_with("serve", flags, (anycable::PREFIX, layer))?;
    settings.args.auth.auth()
}

fn reload(running: &Running, old: &Settings<Args>, flags: &ArgMatches) -> Result<Settings<Args>> {
    let (new, _) = read(flags)?;
    running::check_reloadable(old, &new, RELOADABLE)?;
    running.reload(&config(&new.args)?.live).map_err(anyhow::Error::msg)?;
    Ok(new)
}

fn config(args: &Args) -> Result<Config> {
    let live = live(args)?;
    let (listen, listen_tls) = args.server.listeners(live.tls.is_some())?;
    let app = args.application.config(&live.auth, live.channels.ping_interval)?;
    let webhooks = args.webhooks.config(&live.auth)?;
    let pubsub = args.pubsub.config(&args.brokers)?;
    Ok(Config {
        listen,
        listen_tls,
        admin: args.server.admin.0.clone(),
        admin_connections: args.server.admin_connections(),
        echo: args.echo,
        cable_path: args.channels.path(),
        public: args.public,
        listen_broadcast: args.auth.listen_broadcast(),
        workers: args.server.workers.map(usize::from),
        max_connections: args.max_connections,
        history: args.history.config(&args.pubsub, &args.brokers)?,
        presence: args.presence.config(&args.pubsub)?,
        long_polling: args.long_polling.config(&args.channels.path())?,
        backlog: args.server.backlog,
        app,
        webhooks,
        pubsub,
        adapters: args.brokers.adapters(&args.pubsub)?,
        live,
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
    args.admission.set(&mut limits)?;
    args.channels.set(&mut limits)?;
    args.long_polling.set(&mut limits);
    let (allow_origin, admin_key) = (args.allow_origin.clone(), args.server.admin_key.clone());
    let allow_host = args.allow_host.clone();
    let (auth, tls) = (args.auth.auth()?, args.tls.server()?);
    let redirect = args.server.tls_listeners.redirect();
    let admin_tls = args.tls.admin(&args.server.admin)?;
    let channels = args.channels.channels();
    Ok(Live {
        limits,
        allow_origin,
        allow_host,
        admin_key,
        admin_tls,
        channels,
        auth,
        tls,
        redirect,
    })
}

fn message_bytes(text: &str) -> Result<u32, String> {
    let bytes = units::size(text)?;
    let within = u32::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    within.ok_or_else(|| "expected 1B to 4GiB".to_owned())
}

fn queue_bytes(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    usize::try_from(bytes).map_err(|_| "more than this machine can address".to_owned())
}
