//! Fleets: `standfast agent` runs its share of `standfast load … --agents WHO`. Both exchange the messages of
//! [`message`] over NATS and nothing else. A message may be lost or come twice: whatever matters is repeated
//! until it is answered, and counters are cumulative and numbered.

pub(crate) mod agent;
mod clocks;
pub(crate) mod controlled;
mod coordinator;
mod doctor;
mod executable;
pub(crate) mod fixtures;
mod hosted;
mod job;
pub(crate) mod leader;
mod list;
mod manifest;
pub(crate) mod member;
pub(crate) mod message;
mod query;
pub(crate) mod servers;
#[cfg(test)]
mod simulation;
mod travel;
mod upgrade;
pub(crate) mod whole;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use brokers::NatsUrl;
use brokers::nats::NatsTransport;

use crate::units;

/// The heading of the flags in the help of `load`.
pub(crate) const HEADING: &str = "Fleets";

/// The name of the fleet by default.
const FLEET: &str = "standfast";

/// Where the fleet is.
#[derive(clap::Args, Debug)]
pub(crate) struct FleetFlags {
    /// NATS server [default: nats://127.0.0.1:4222]
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = HEADING)]
    pub(crate) nats: Vec<NatsUrl>,
    /// Credentials for NATS (.creds)
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub(crate) nats_creds: Option<PathBuf>,
    /// CA of the server's certificate [default: the system's]
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub(crate) nats_ca: Option<PathBuf>,
    /// Name of the fleet
    #[arg(long, value_name = "NAME", default_value = FLEET, value_parser = word,
        help_heading = HEADING)]
    pub(crate) fleet: String,
}

/// Limit of the files of a run.
#[derive(clap::Args, Debug)]
pub(crate) struct FilesFlag {
    /// Most bytes of the files that travel with a run
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::size,
        help_heading = HEADING)]
    pub(crate) files_max: u64,
}

impl FleetFlags {
    pub(crate) fn transport(&self) -> Result<NatsTransport> {
        let (creds, ca) = (self.nats_creds.as_deref(), self.nats_ca.as_deref());
        crate::brokers::nats_servers(&self.nats, creds, ca)
    }

    /// Whether another fleet was named than the default.
    pub(crate) fn is_other(&self) -> bool {
        self.fleet != FLEET
    }
}

/// Look at the agents of a fleet before a run, and upgrade them
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the agents of a fleet
    List(list::Args),
    /// Check on each agent what its share of so many connections needs
    Doctor(doctor::Args),
    /// Have agents execute their file anew if it is of another release
    Upgrade(upgrade::Args),
    /// Print a Kubernetes manifest of a run by a fleet
    Manifest(manifest::Args),
}

/// Runs the command.
///
/// # Errors
/// No NATS server: exit code 2.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::List(args) => list::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Upgrade(args) => upgrade::run(args),
        Command::Manifest(args) => manifest::run(args),
    }
}

/// Agents stop a run whose leader was not heard for this time, and a leader gives up an agent.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// How often a leader says that it lives, and what was not answered is repeated.
const REPEAT: Duration = Duration::from_millis(500);
/// Bytes of a file or of a result in one message.
const PIECE_BYTES: usize = 128 * 1024;
/// Most bytes of a result.
const RESULT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most files of a run, and most agents that a leader finds.
const FILES_MAX: usize = 1_024;
const AGENTS_MAX: usize = 10_000;

/// A name that is one word of a subject.
fn word(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let fits = !text.is_empty() && text.len() <= 64 && text.bytes().all(is_plain);
    fits.then(|| text.to_owned())
        .ok_or_else(|| "expected up to 64 letters, digits, - or _".to_owned())
}

/// A label of an agent.
fn label(text: &str) -> Result<String, String> {
    let is_word = |part: &str| word(part).is_ok();
    let parts = text.split_once('=').filter(|(key, value)| is_word(key) && is_word(value));
    parts
        .map(|_| text.to_owned())
        .ok_or_else(|| "expected KEY=VALUE of letters, digits, - or _".to_owned())
}

/// Which agents: their number, `all`, or a label.
pub(crate) fn who(text: &str) -> Result<String, String> {
    let is_number = text.parse().is_ok_and(|number: usize| (1..=AGENTS_MAX).contains(&number));
    (is_number || label(text).is_ok() || text == "all")
        .then(|| text.to_owned())
        .ok_or_else(|| format!("expected a number up to {AGENTS_MAX}, all, or a label KEY=VALUE"))
}

/// A name that no other process has.
fn unique() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

fn sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The executable of this process, even if its file was removed or replaced since.
pub(super) fn own_file() -> Result<PathBuf> {
    let file = std::env::current_exe().context("the executable")?;
    // The kernel says so of a file that was removed or replaced.
    let is_there = !file.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") && file.exists();
    // Not of `self`: another program may execute it for this one.
    Ok(if is_there { file } else { format!("/proc/{}/exe", std::process::id()).into() })
}

/// An address for a server that agents connect to; port 0 lets the kernel choose.
pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0)));
    match address {
        Ok(address) if address.ip().is_unspecified() => {
            Err("expected the address that agents connect to, not all of this machine".to_owned())
        }
        Ok(address) => Ok(address),
        Err(_) => Err("expected an IP address or IP:PORT".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_a_key_and_a_value() {
        assert!(label("zone=eu-1").is_ok());
        for text in ["", "zone", "zone=", "=a", "a=b=c", "a b=c"] {
            assert!(label(text).is_err(), "{text}");
        }
    }

    #[test]
    fn agents_are_a_number_all_or_a_label() {
        for text in ["1", "16", "all", "zone=eu-1"] {
            assert_eq!(who(text).as_deref(), Ok(text));
        }
        for text in ["", "0", "-1", "1.5", "20000", "All", "typo", "zone=", "=a", "a=b=c"] {
            assert!(who(text).is_err(), "{text}");
        }
    }

    #[test]
    fn servers_listen_where_agents_can_connect() {
        for (text, address) in [
            ("10.0.0.9", "10.0.0.9:0"),
            ("10.0.0.9:8080", "10.0.0.9:8080"),
            ("fd00::9", "[fd00::9]:0"),
            ("[fd00::9]:80", "[fd00::9]:80"),
        ] {
            assert_eq!(listen(text).map(|address| address.to_string()).as_deref(), Ok(address));
        }
        for text in ["", "0.0.0.0", "[::]:80", "host", "8080"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
