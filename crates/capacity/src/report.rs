//! The answer of a check: each limit's figures, what is in the way, what to do, as data and as text.
//!
//! It decides nothing; [`crate::check`] fills it in.

use std::fmt;

use serde::Serialize;

use crate::fix::Fix;
use crate::goal::{Goal, Role};
use crate::limits::CONNECTIONS_DEFAULT_MAX;
use crate::text::{Bytes, Count, about};

/// A limit that can be in the way.
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
    /// Threads: the control group's, the kernel's, or process numbers.
    Threads,
    /// Entries of connection tracking.
    Conntrack,
    /// `fs.epoll.max_user_watches`: sockets of one user that epoll watches.
    EpollWatches,
    /// `RLIMIT_AS`: address space of a process, in bytes.
    AddressSpace,
    /// `net.core.somaxconn`: connections that wait to be accepted.
    AcceptQueue,
    /// `net.ipv4.tcp_mem`, in pages.
    TcpMemory,
    /// `net.ipv4.tcp_rmem` and `tcp_wmem`: what each socket may keep, in bytes of memory for all.
    TcpBuffers,
    /// `net.ipv4.tcp_tw_reuse`: whether ports that rest after a close may be used again.
    PortReuse,
    /// `vm.overcommit_memory`: whether memory must be there before it is used.
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
            Self::Conntrack => "room for connection tracking",
            Self::EpollWatches => "epoll watches",
            Self::AddressSpace => "address space",
            Self::AcceptQueue => "accept queue",
            Self::TcpMemory => "TCP memory",
            Self::TcpBuffers => "TCP buffers",
            Self::PortReuse => "reuse of ports",
            Self::Overcommit => "overcommit",
        }
    }
}

/// A limit, what there is of it and what is needed, in its own unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// Which.
    pub limit: Limit,
    /// What may be used now: bytes, descriptors of a process, files, source addresses, threads,
    /// entries.
    pub now: u64,
    /// What the goal needs of it. `u64::MAX` where no amount would do.
    pub needed: u64,
    /// Connections that this limit alone would allow.
    pub fits: u64,
    /// Connections at which it breaks: `fits`, or more where things go on slowly beyond that.
    pub breaks: u64,
}

impl Need {
    /// Whether there is less than is needed.
    pub const fn is_short(&self) -> bool {
        self.now < self.needed
    }
}

/// A limit that is in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shortfall {
    /// The figures.
    pub need: Need,
    /// What to do; each line helps by itself unless the text says otherwise.
    pub fixes: Vec<Fix>,
    /// What is short and how much fits, for people.
    pub text: String,
}

/// Something that does not stop the goal but will show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Which limit.
    pub limit: Limit,
    /// What there is now.
    pub now: u64,
    /// What would be better.
    pub needed: u64,
    /// How to get it.
    pub fix: Fix,
    /// What will be seen, for people.
    pub text: String,
}

/// What [`crate::check`] found. Shown as text for people, serialised for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What was asked.
    pub goal: Goal,
    /// Workers each process needs. `None`: no number of them is enough.
    pub workers: Option<u64>,
    /// Connections this machine honestly holds in that role: the least over all limits.
    pub fits: u64,
    /// Every limit that could be read.
    pub needs: Vec<Need>,
    /// Those in the way, tightest first.
    pub shortfalls: Vec<Shortfall>,
    /// What will show without being in the way.
    pub warnings: Vec<Warning>,
}

impl Report {
    /// Whether nothing is in the way.
    pub fn holds(&self) -> bool {
        self.shortfalls.is_empty()
    }

    /// The number to ask for when nobody said one: what fits, rounded down to two digits, at most
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
            return write!(f, "nothing fits until that is fixed");
        }
        let (fits, flag) = (about(self.fits), self.goal.role.flag());
        write!(f, "as things are, ask for what fits: {flag} {fits}")
    }
}

/// Places per remedy, those people mostly look; `standfast doctor` shows all.
const FIXES_SHOWN: usize = 4;

/// What to ask for instead is said once, at the end, for all limits together.
fn write_fixes(f: &mut fmt::Formatter<'_>, fixes: &[Fix]) -> fmt::Result {
    let said_here = fixes.iter().filter(|fix| !matches!(fix, Fix::Fewer { .. }));
    for fix in said_here {
        for command in fix.commands().into_iter().take(FIXES_SHOWN) {
            writeln!(f, "  fix ({}): {}", command.place, command.line)?;
        }
    }
    Ok(())
}
