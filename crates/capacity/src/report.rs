//! [`Report`]: the result of a check as data and as text: each limit's figures, which limits are too low,
//! and the fixes. [`crate::check`] fills it in.

use std::fmt;

use serde::Serialize;

use crate::fix::Fix;
use crate::goal::{Goal, Role};
use crate::limits::CONNECTIONS_DEFAULT_MAX;
use crate::text::{Bytes, Count, about};

/// A limit that connections can run into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Available memory, in bytes.
    Memory,
    /// `RLIMIT_NOFILE`: descriptors, counted per table.
    OpenFiles,
    /// `fs.file-max`: open files of the whole machine.
    SystemFiles,
    /// Ephemeral ports, counted in source addresses.
    Ports,
    /// Threads: limited by the control group, the user, the kernel, or process ids.
    Threads,
    /// Entries of connection tracking.
    Conntrack,
    /// `fs.epoll.max_user_watches`: sockets of one user that epoll watches.
    EpollWatches,
    /// `RLIMIT_AS`: address space of a process, in bytes.
    AddressSpace,
    /// `net.core.somaxconn`: connections waiting to be accepted.
    AcceptQueue,
    /// `net.ipv4.tcp_mem`, in pages.
    TcpMemory,
    /// `net.ipv4.tcp_rmem` and `tcp_wmem`: minimum buffers, in bytes for all sockets together.
    TcpBuffers,
    /// `net.ipv4.tcp_tw_reuse`: whether ports in `TIME_WAIT` may be used again.
    PortReuse,
    /// `vm.overcommit_memory`: whether the kernel grants memory that it cannot back.
    Overcommit,
}

impl Limit {
    /// Its name in a sentence: `not enough …`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::OpenFiles => "descriptors",
            Self::SystemFiles => "open files on the whole machine",
            Self::Ports => "ephemeral ports",
            Self::Threads => "threads",
            Self::Conntrack => "connection tracking entries",
            Self::EpollWatches => "epoll watches",
            Self::AddressSpace => "address space",
            Self::AcceptQueue => "accept queue",
            Self::TcpMemory => "TCP memory",
            Self::TcpBuffers => "TCP buffers",
            Self::PortReuse => "port reuse",
            Self::Overcommit => "overcommit",
        }
    }
}

/// A limit's current and needed values, in its own unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The limit.
    pub limit: Limit,
    /// Available now: bytes, descriptors of a process, files, source addresses, threads,
    /// entries.
    pub now: u64,
    /// What the goal needs. `u64::MAX` where no amount is enough.
    pub needed: u64,
    /// Connections that this limit allows.
    pub fits: u64,
    /// Connections at which it fails: `fits`, or more where it only gets slow beyond that.
    pub breaks: u64,
}

impl Need {
    /// Whether less is available than needed.
    pub const fn is_short(&self) -> bool {
        self.now < self.needed
    }
}

/// A limit that is too low for the goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shortfall {
    /// The figures.
    pub need: Need,
    /// The fixes; one of them is enough unless the text says otherwise.
    pub fixes: Vec<Fix>,
    /// What is short and how many connections fit, for people.
    pub text: String,
}

/// A setting that does not prevent the goal but has a visible effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The limit.
    pub limit: Limit,
    /// Its value now.
    pub now: u64,
    /// The recommended value.
    pub needed: u64,
    /// How to set it.
    pub fix: Fix,
    /// The effect, for people.
    pub text: String,
}

/// The result of [`crate::check`]: displayed for people, serialised for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The goal that was checked.
    pub goal: Goal,
    /// Workers that each process needs; `None` if no number is enough.
    pub workers: Option<u64>,
    /// Connections that this machine can hold in that role: the minimum over all limits.
    pub fits: u64,
    /// Every limit that could be read.
    pub needs: Vec<Need>,
    /// Limits that are too low, the lowest first.
    pub shortfalls: Vec<Shortfall>,
    /// Settings worth changing that do not prevent the goal.
    pub warnings: Vec<Warning>,
}

impl Report {
    /// Whether no limit is too low.
    pub fn holds(&self) -> bool {
        self.shortfalls.is_empty()
    }

    /// The number of connections to use where none is configured: what fits, rounded down to two digits, at most
    /// [`CONNECTIONS_DEFAULT_MAX`].
    pub fn suggested(&self) -> u64 {
        about(self.fits).min(CONNECTIONS_DEFAULT_MAX)
    }

    fn write_fit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (goal, workers) = (&self.goal, Count(self.workers.unwrap_or(0)));
        let connections = Count(goal.connections);
        write!(f, "{connections} sockets{} fit: {workers} workers", goal.role.place())?;
        if goal.role == Role::Prove {
            write!(f, " in each process")?;
        }
        match self.needs.iter().find(|need| need.limit == Limit::Memory) {
            Some(need) => write!(
                f,
                ", about {} of the {} that may be used",
                Bytes(need.needed),
                Bytes(need.now)
            ),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for shortfall in &self.shortfalls {
            writeln!(f, "{}", shortfall.text)?;
            write_fixes(f, &shortfall.fixes)?;
        }
        for warning in &self.warnings {
            writeln!(f, "note: {}", warning.text)?;
            write_fixes(f, std::slice::from_ref(&warning.fix))?;
        }
        if self.holds() {
            return self.write_fit(f);
        }
        if self.fits == 0 {
            return write!(f, "no connection fits until this is fixed");
        }
        let (fits, flag) = (about(self.fits), self.goal.role.flag());
        write!(f, "use a number that fits: {flag} {fits}")
    }
}

/// Commands shown per fix, the most common first; `standfast doctor` shows all.
const FIXES_SHOWN: usize = 4;

/// [`Fix::Fewer`] is left out: the report ends with it once, for all limits together.
fn write_fixes(f: &mut fmt::Formatter<'_>, fixes: &[Fix]) -> fmt::Result {
    let shown = fixes.iter().filter(|fix| !matches!(fix, Fix::Fewer { .. }));
    for fix in shown {
        for command in fix.commands().into_iter().take(FIXES_SHOWN) {
            writeln!(f, "  fix ({}): {}", command.place, command.line)?;
        }
    }
    Ok(())
}
