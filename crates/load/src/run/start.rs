//! What a run needs before its workers start: whether it fits the machine, and the engine's limits.

use std::io;
use std::net::IpAddr;

use capacity::{Goal, Role};
use engine::sys::process;
use engine::{Limits, Plan, Tables};

use crate::transport::sources::{distinct_destinations, host_sources};
use crate::{Config, Endpoint};

/// The most destinations of one run, which is what an engine worker supports.
pub const ENDPOINTS_MAX: usize = 256;

/// Why a run could not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration does not fit the machine; the text says what to do.
    Unfit(String),
    /// A system call failed.
    System(io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::Unfit(text) => f.write_str(text),
            StartError::System(error) => write!(f, "cannot start: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        StartError::System(error)
    }
}

/// Plans the workers and their descriptor tables, or returns why the run does not fit.
pub(crate) fn fit(
    connections: u64,
    endpoints: &[Endpoint],
    sources: &[IpAddr],
    force: bool,
    machine: &capacity::Machine,
    nofile: u64,
) -> Result<(Plan, capacity::Report), StartError> {
    if endpoints.is_empty() || endpoints.len() > ENDPOINTS_MAX {
        return Err(StartError::Unfit(format!("expected 1 to {ENDPOINTS_MAX} URLs")));
    }
    let private_tables = process::private_tables_work();
    let goal = Goal {
        private_tables,
        sources: host_sources(endpoints, sources),
        destinations: distinct_destinations(endpoints),
        ..Goal::new(Role::Load, connections)
    };
    let report = capacity::check(machine, &goal);
    if !report.holds() && !force {
        return Err(StartError::Unfit(format!("{report}\nTo start anyway, add --force.")));
    }
    let tables = if private_tables { Tables::Private } else { Tables::Shared };
    Ok((Plan::new(connections, machine.cores, nofile, 0, tables), report))
}

/// The engine limits of a load client: no automatic pings, no idle timeout, and room for the
/// configured messages.
pub(super) fn limits(config: &Config) -> Limits {
    let mut limits = Limits {
        idle_timeout: None,
        pings: false,
        handshake_timeout: config.connect_timeout,
        close_timeout: super::CLOSE_TIMEOUT,
        ..Limits::default()
    };
    let echoed = config
        .echo
        .as_ref()
        .map_or(0, |echo| echo.content.as_ref().map_or(echo.size, |content| content.data.len()));
    let size = config.fanout.as_ref().map_or(0, |fanout| fanout.size).max(echoed);
    if let Some(bytes) = config.compress_above {
        limits.compress_above_bytes = bytes;
    }
    // An Action Cable message also carries its identifier, each byte of which may be escaped.
    let identifiers = config.cable.iter().flat_map(|cable| &cable.identifiers);
    let size = size + identifiers.map(|one| 2 * one.len() + 256).max().unwrap_or(0);
    let longest = u32::try_from(size).unwrap_or(u32::MAX);
    limits.wire.message_bytes = limits.wire.message_bytes.max(longest);
    limits.send_queue_bytes = limits.send_queue_bytes.max(4 * size);
    limits
}
