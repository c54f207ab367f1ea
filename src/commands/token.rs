//! `standfast token`: makes and checks what `serve` verifies: tokens (JWT), signed stream names, and the
//! keys of publishers. Secrets are read as `serve` reads them: flags, environment, AnyCable's
//! environment, file. This file parses and prints; the crate `serve` signs and verifies.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serve::{Credentials, Refusal, StreamKind, Times};

use crate::commands::serve as server;
use crate::settings::Layer;
use crate::{output, units};

/// The word that stands for standard input.
const STDIN: &str = "-";
/// The longest input that is read: longer ones are refused anyway.
const INPUT_BYTES_MAX: u64 = 64 * 1024;

/// Make and check tokens (JWT) and signed stream names
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Secrets are read as standfast serve reads them: from flags, --config, and the\n\
                        environment (STANDFAST_SERVE_SECRET). Process lists show flags: use file:PATH"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Print a token for a client
    Create {
        /// Identifiers of the connection, a JSON object
        #[arg(value_name = "IDENTIFIERS")]
        identifiers: String,
        /// Lifetime, or never
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = lifetime)]
        expires: Lifetime,
        /// Time until it becomes valid
        #[arg(long, value_name = "TIME", value_parser = lifetime_s)]
        begins: Option<u64>,
        #[command(flatten)]
        secrets: Secrets,
    },
    /// Print the signed name of a stream
    SignStream {
        /// Name of the stream
        #[arg(value_name = "STREAM")]
        name: String,
        /// Channel: pubsub, turbo or cable-ready
        #[arg(long = "for", value_name = "CHANNEL", hide_possible_values = true)]
        kind: Option<Kind>,
        /// Lifetime, or never
        #[arg(long, value_name = "TIME", default_value = "never", value_parser = lifetime)]
        expires: Lifetime,
        #[command(flatten)]
        secrets: Secrets,
    },
    /// Check a token or a signed name, and say why it is refused
    Check {
        /// Token or signed name, or - to read it from standard input
        #[arg(value_name = "TEXT")]
        text: String,
        #[command(flatten)]
        secrets: Secrets,
    },
    /// Print the key of publishers that is derived from the secret
    Key {
        /// What it is for: publish (/api/publish, /api/disconnect) or broadcast (/_broadcast)
        #[arg(value_name = "USE", hide_possible_values = true)]
        key: Key,
        #[command(flatten)]
        secrets: Secrets,
    },
}

/// Settings of the server. They are parsed with its other settings.
#[derive(clap::Args, Debug)]
struct Secrets {
    /// Shared secret, or file:PATH
    #[arg(long, value_name = "SECRET")]
    secret: Option<String>,
    /// Secret for tokens [default: --secret]
    #[arg(long, value_name = "SECRET")]
    jwt_secret: Option<String>,
    /// Public keys for tokens (JWKS)
    #[arg(long, value_name = "FILE")]
    jwt_keys: Option<String>,
    /// Secret for streams [default: --secret]
    #[arg(long, value_name = "SECRET")]
    streams_secret: Option<String>,
    /// Secret for streams of Turbo
    #[arg(long, value_name = "SECRET")]
    turbo_secret: Option<String>,
    /// Secret for streams of CableReady
    #[arg(long, value_name = "SECRET")]
    cable_ready_secret: Option<String>,
    /// File with a [serve] section (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(ValueEnum, Copy, Clone, Debug)]
enum Kind {
    /// $pubsub
    Pubsub,
    /// Turbo::StreamsChannel
    Turbo,
    /// CableReady::Stream
    CableReady,
}

#[derive(ValueEnum, Copy, Clone, Debug)]
enum Key {
    /// /api/publish and /api/disconnect
    Publish,
    /// /_broadcast
    Broadcast,
}

/// How long something is valid, in seconds; `None` for ever.
#[derive(Copy, Clone, Debug)]
struct Lifetime(Option<u64>);

/// Runs the command. Exit code 1: the token or the signed name is refused.
///
/// # Errors
/// Settings that cannot be read, or something that no server would accept.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    #[allow(clippy::disallowed_methods, reason = "only the system knows the time of day")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let after = |seconds: u64| now.saturating_add(seconds);
    let line = match &args.command {
        Command::Create { identifiers, expires, begins, secrets } => {
            let begins = begins.map(after);
            let expires = expires.0.map(|time| begins.unwrap_or(now).saturating_add(time));
            let times = Times { now, begins, expires };
            secrets.read()?.create_token(identifiers, times).map_err(|why| anyhow!(why))?
        }
        Command::SignStream { name, kind, expires, secrets } => {
            let credentials = secrets.read()?;
            let with_secret = || {
                let mut kinds = StreamKind::ALL.into_iter();
                kinds.find(|kind| credentials.has_secret_for(*kind)).unwrap_or(StreamKind::PubSub)
            };
            let kind = kind.map_or_else(with_secret, Kind::of_stream);
            let expires = expires.0.map(after);
            credentials.sign_stream(kind, name, expires).map_err(|why| anyhow!(why))?
        }
        Command::Key { key, secrets } => {
            let credentials = secrets.read()?;
            let key = match key {
                Key::Publish => credentials.publish_key(),
                Key::Broadcast => credentials.broadcast_key(),
            };
            let key = key.context("no key: set --secret")?;
            String::from_utf8_lossy(key.bytes()).into_owned()
        }
        Command::Check { text, secrets } => return check(text, &secrets.read()?, now),
    };
    output::print(&(line + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn check(text: &str, credentials: &Credentials, now: u64) -> Result<ExitCode> {
    let text = match text {
        STDIN => from_stdin()?,
        text => text.to_owned(),
    };
    let text = text.trim();
    if text.is_empty() {
        bail!("nothing to check: expected a token or a signed stream name");
    }
    // Only tokens have dots.
    let checked = match text.contains('.') {
        true => check_token(text, credentials, now),
        false => check_stream(text, credentials, now),
    };
    let (said, code) = match checked {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(Refusal { cause, why }) => (format!("refused: {why} ({cause})\n"), ExitCode::from(1)),
    };
    output::print(&said)?;
    Ok(code)
}

fn check_token(token: &str, credentials: &Credentials, now: u64) -> Result<String, Refusal> {
    let verified = credentials.check_token(token, now)?;
    let (identifiers, expiry) = (&verified.identifiers, verified.expiry(now));
    Ok(format!("valid token\n  identifiers  {identifiers}\n  expires      {expiry}\n"))
}

/// The first refusal counts if no channel accepts the name: that of a channel with a secret.
fn check_stream(signed: &str, credentials: &Credentials, now: u64) -> Result<String, Refusal> {
    let mut kinds = StreamKind::ALL.to_vec();
    kinds.sort_by_key(|kind| !credentials.has_secret_for(*kind));
    let (mut stream, mut channels, mut refusal) = (None, Vec::new(), None);
    for kind in kinds {
        match credentials.check_stream(kind, signed, now) {
            Ok(name) => {
                stream = Some(name);
                channels.push(kind.channel());
            }
            Err(why) => refusal = refusal.or(Some(why)),
        }
    }
    match (stream, refusal) {
        (None, Some(refusal)) => Err(refusal),
        (stream, _) => {
            let (stream, channels) = (stream.unwrap_or_default(), channels.join(", "));
            Ok(format!("valid signed name\n  stream    {stream}\n  channels  {channels}\n"))
        }
    }
}

fn from_stdin() -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().take(INPUT_BYTES_MAX).read_to_string(&mut text);
    read.context("cannot read standard input")?;
    Ok(text)
}

impl Secrets {
    fn read(&self) -> Result<Credentials> {
        let config = self.config.as_ref().map(|file| file.display().to_string());
        let flags = [
            ("secret", &self.secret),
            ("jwt_secret", &self.jwt_secret),
            ("jwt_keys", &self.jwt_keys),
            ("streams_secret", &self.streams_secret),
            ("turbo_secret", &self.turbo_secret),
            ("cable_ready_secret", &self.cable_ready_secret),
            ("config", &config),
        ];
        let given =
            |(key, value): (&str, &Option<String>)| Some((key.to_owned(), vec![value.clone()?]));
        let flags: Layer = flags.into_iter().filter_map(given).collect();
        Ok(Credentials::new(server::auth(flags)?))
    }
}

impl Kind {
    fn of_stream(self) -> StreamKind {
        match self {
            Kind::Pubsub => StreamKind::PubSub,
            Kind::Turbo => StreamKind::Turbo,
            Kind::CableReady => StreamKind::CableReady,
        }
    }
}

fn lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime(None));
    }
    let seconds = lifetime_s(text).map_err(|error| format!("{error}, or never"))?;
    Ok(Lifetime(Some(seconds)))
}

/// Whole seconds, as times in tokens are.
fn lifetime_s(text: &str) -> Result<u64, String> {
    let time = units::duration(text)?;
    if time < Duration::from_secs(1) {
        return Err("expected at least 1s".to_owned());
    }
    Ok(time.as_secs())
}
