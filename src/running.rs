//! What `serve` and `proxy` share as running servers: flags, logging, the ready line, signals.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use admin::log::{self, LogWriter};
use admin::{ConnectionLimits, Listener};
use anyhow::{Context, Result, bail};
use clap::FromArgMatches;
use clap::builder::ArgPredicate;
use engine::sys::process::{self, Signal, wait_signal};
use serde_json::json;
use serve::{Address, Server};
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};

use crate::settings::Settings;
use crate::systemd::State;
use crate::tls_listeners::TlsListenerFlags;
use crate::{systemd, units};

/// Headings of flags, which are the topics of `help`.
pub(crate) const LISTENERS: &str = "Listeners";
pub(crate) const PROCESS: &str = "Process";

/// Interval of checks whether a reload can be applied.
const RELOAD_POLL: Duration = Duration::from_millis(50);

/// Interval of checks for the end of draining.
const END_WAIT: Duration = Duration::from_millis(20);

/// Keys of these flags that take effect on SIGHUP.
pub(crate) const RELOADABLE: &[&str] =
    &["admin_key", "drain", "drain_delay", "redirect_except", "redirect_https"];

/// The flags of every server.
#[derive(clap::Args, Debug)]
#[group(id = "server")]
pub(crate) struct Flags {
    /// Address and port for clients, or unix:/PATH; port 0 takes a free port. Repeatable. With
    /// --listen-tls these listeners have no TLS, and there is none by default
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_delimiter = ',',
        default_value_if("listen_tls", ArgPredicate::IsPresent, None), help_heading = LISTENERS)]
    listen: Vec<Address>,
    #[command(flatten)]
    pub(crate) tls_listeners: TlsListenerFlags,
    /// Address and port for operators, unix:/PATH, or off
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090", value_parser = admin,
        help_heading = LISTENERS)]
    pub(crate) admin: Admin,
    /// Key for the admin listener, sent as a Bearer token
    #[arg(long, value_name = "KEY", value_parser = key, help_heading = LISTENERS)]
    pub(crate) admin_key: Option<String>,
    /// Connections of the admin listener with the key, and as many without it; at most a quarter of
    /// the descriptor limit each
    #[arg(long, value_name = "N", default_value = "512",
        value_parser = clap::value_parser!(u16).range(1..), help_heading = LISTENERS)]
    admin_connections: u16,
    /// Worker threads [default: one per core, more as descriptor tables fill]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024),
        help_heading = PROCESS)]
    pub(crate) workers: Option<u16>,
    /// Length of the accept queue, capped by net.core.somaxconn
    #[arg(long, value_name = "N", default_value = "4096",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = LISTENERS)]
    pub(crate) backlog: u32,
    /// On SIGTERM, answer 503 at /health for this time before closing the listeners, so that load
    /// balancers stop sending clients first
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration,
        help_heading = PROCESS)]
    drain_delay: Duration,
    /// On SIGTERM, spread closing the clients over 10 ms each, and at most this time together
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration,
        help_heading = PROCESS)]
    drain: Duration,
    /// Print a JSON line with addresses and process id when ready
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = PROCESS)]
    ready_json: bool,
    /// Exit when the parent process exits
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true")]
    end_with_parent: bool,
    /// Log level: off, error, warn, info or debug
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = level,
        help_heading = PROCESS)]
    log: LevelFilter,
}

/// The address of the admin listener, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Admin(pub(crate) Option<Address>);

/// The flags of a program that is a server.
pub(crate) trait ServerArgs: clap::Args + FromArgMatches {
    /// The flags of every server.
    fn server(&self) -> &Flags;
}

impl Flags {
    /// The listeners for clients: without TLS, and with it. `has_tls`: there is a certificate.
    pub(crate) fn listeners(&self, has_tls: bool) -> Result<(Vec<Address>, Vec<Address>)> {
        self.tls_listeners.split(&self.listen, has_tls)
    }

    /// Limits of the admin listener's connections.
    pub(crate) fn admin_connections(&self) -> ConnectionLimits {
        let connections = usize::from(self.admin_connections);
        ConnectionLimits { connections, ..ConnectionLimits::default() }
    }

    /// Sets up logging and what else concerns the process. Call it before anything else starts.
    pub(crate) fn init_process(&self) {
        if self.end_with_parent {
            process::end_with_parent();
        }
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        tracing_subscriber::fmt()
            .with_max_level(self.log)
            .with_target(false)
            .with_ansi(io::stderr().is_terminal() && !no_color)
            .with_writer(|| LogWriter)
            .init();
        log::log_panics();
    }
}

/// A reload whose settings were read and checked.
pub(crate) enum Reload<R, A> {
    /// They are in force.
    Applied(Settings<A>),
    /// They wait for something slow. The function applies them once it can, and returns `None` until
    /// then.
    Waiting(Settings<A>, ApplyReload<R>),
}

/// Applies a reload that had to wait.
pub(crate) type ApplyReload<R> = Box<dyn FnMut(&R) -> Option<Result<()>>>;

/// Prints the ready line and runs the server until SIGTERM or SIGINT. `reload` reads all settings
/// again and applies them, all or none.
///
/// # Errors
/// The ready line cannot be printed. After that only a failed worker ends it, with exit code 1.
pub(crate) fn run_until_signal<R: Server, A: ServerArgs>(
    running: R,
    settings: Settings<A>,
    reload: impl Fn(&R, &Settings<A>) -> Result<Reload<R, A>>,
) -> Result<ExitCode> {
    if settings.args.server().ready_json {
        print_ready(&running).context("cannot print the ready line")?;
    }
    systemd::report(State::Ready);
    match run(running, settings, reload) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            error!("{failure:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn run<R: Server, A: ServerArgs>(
    mut running: R,
    mut settings: Settings<A>,
    reload: impl Fn(&R, &Settings<A>) -> Result<Reload<R, A>>,
) -> io::Result<()> {
    let mut waiting = None;
    serve_until(&mut running, &mut settings, &mut waiting, &reload, None)?;
    systemd::report(State::Stopping);
    let delay = settings.args.server().drain_delay;
    if !delay.is_zero() {
        running.announce_drain(delay);
        let until_ns = Some(process::now_ns().saturating_add(nanoseconds(delay)));
        let until = serve_until(&mut running, &mut settings, &mut waiting, &reload, until_ns)?;
        if until == Until::Signal {
            return exit_at_once();
        }
    }
    running.drain(settings.args.server().drain);
    let mut tick_ns = 0;
    loop {
        if let Some(ended) = running.ended() {
            return ended;
        }
        // Clients that are not closed yet still send: the memory limit applies to them.
        let now_ns = process::now_ns();
        if now_ns >= tick_ns {
            running.tick()?;
            tick_ns = now_ns.saturating_add(nanoseconds(running.tick_interval()));
        }
        if let Some(Signal::Terminate | Signal::Interrupt) = wait_signal(END_WAIT) {
            return exit_at_once();
        }
    }
}

/// Why [`serve_until`] returned.
#[derive(PartialEq, Eq)]
enum Until {
    /// SIGTERM or SIGINT.
    Signal,
    /// The time has passed.
    Passed,
}

/// Serves, and reloads on SIGHUP, until a signal to end or the given time. `waiting` is a reload that is
/// not in force yet.
///
/// # Errors
/// A worker has failed.
fn serve_until<R: Server, A: ServerArgs>(
    running: &mut R,
    settings: &mut Settings<A>,
    waiting: &mut Option<(Settings<A>, ApplyReload<R>)>,
    reload: &impl Fn(&R, &Settings<A>) -> Result<Reload<R, A>>,
    until_ns: Option<u64>,
) -> io::Result<Until> {
    loop {
        let left = until_ns.map(|until_ns| until_ns.saturating_sub(process::now_ns()));
        if left == Some(0) {
            return Ok(Until::Passed);
        }
        let interval =
            running.tick_interval().min(left.map_or(Duration::MAX, Duration::from_nanos));
        let poll = waiting.as_ref().map_or(interval, |_| interval.min(RELOAD_POLL));
        let mut reloaded = None;
        match wait_signal(poll) {
            Some(Signal::Terminate | Signal::Interrupt) => return Ok(Until::Signal),
            Some(Signal::Reload) => {
                // A later reload replaces one that waits.
                *waiting = None;
                systemd::report(State::Reloading);
                match reload(running, settings) {
                    Ok(Reload::Applied(new)) => reloaded = Some(Ok(new)),
                    Ok(Reload::Waiting(new, apply)) => *waiting = Some((new, apply)),
                    Err(error) => reloaded = Some(Err(error)),
                }
            }
            None => {}
        }
        if let Some((new, mut apply)) = waiting.take() {
            match apply(running) {
                Some(applied) => reloaded = Some(applied.map(|()| new)),
                None => *waiting = Some((new, apply)),
            }
        }
        match reloaded {
            Some(Ok(new)) => {
                info!("configuration reloaded");
                systemd::report(State::Reloaded);
                *settings = new;
            }
            Some(Err(error)) => {
                error!("reload failed, configuration unchanged: {error:#}");
                systemd::report(State::NotReloaded(&format!("{error:#}")));
            }
            None => {}
        }
        running.tick()?;
    }
}

fn exit_at_once() -> io::Result<()> {
    warn!("second signal: exiting now");
    Ok(())
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Refuses a change of settings that need a restart.
pub(crate) fn check_reloadable<A: ServerArgs>(
    old: &Settings<A>,
    new: &Settings<A>,
    reloadable: &[&[&str]],
) -> Result<()> {
    let mut fixed = old.differing_keys(new);
    fixed.retain(|key| !reloadable.iter().any(|part| part.contains(key)));
    if !fixed.is_empty() {
        bail!("changing {} needs a restart", fixed.join(", "));
    }
    Ok(())
}

fn print_ready(running: &impl Server) -> io::Result<()> {
    let running = running.lifecycle();
    let addresses = |wanted: &dyn Fn(&Listener) -> bool| -> Vec<String> {
        let listeners = running.listen().iter().filter(|listener| wanted(listener));
        listeners.map(|listener| listener.address.to_string()).collect()
    };
    let line = json!({
        "listen": addresses(&|_| true).first(),
        "listeners": addresses(&|_| true),
        "listeners_tls": addresses(&|listener| listener.tls),
        "admin": running.admin().map(Address::to_string),
        "pid": std::process::id(),
    });
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

fn admin(text: &str) -> Result<Admin, String> {
    match text {
        "off" => Ok(Admin(None)),
        _ => text.parse().map(|address| Admin(Some(address))).map_err(|e| format!("{e}, or off")),
    }
}

pub(crate) fn key(text: &str) -> Result<String, String> {
    let usable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    usable
        .then(|| text.to_owned())
        .ok_or_else(|| "expected visible ASCII without spaces".to_owned())
}

fn level(text: &str) -> Result<LevelFilter, String> {
    text.parse().map_err(|_| "expected off, error, warn, info or debug".to_owned())
}
