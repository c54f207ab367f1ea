//! [`Goal`]: the connections that this machine is meant to hold: how many, which ends, between which
//! addresses. A command fills it in from its flags; [`crate::check`] compares it with the machine.

use serde::Serialize;

use crate::limits::CONTROL_THREADS;

/// The connections that this machine is meant to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Goal {
    /// Connections held at once. Where both ends are here, each is two sockets.
    pub connections: u64,
    /// Which ends are on this machine.
    pub role: Role,
    /// Whether workers may leave the shared descriptor table, so that each has one of its own.
    pub private_tables: bool,
    /// Workers in each process, if configured; otherwise as many as needed.
    pub workers: Option<u64>,
    /// Where connections come from.
    pub sources: Sources,
    /// Number of addresses and ports they connect to.
    pub destinations: u64,
}

impl Goal {
    /// A goal with private tables, as many workers as needed, and connects over loopback to one port.
    pub fn new(role: Role, connections: u64) -> Self {
        Self {
            connections,
            role,
            private_tables: true,
            workers: None,
            sources: Sources::Loopback,
            destinations: 1,
        }
    }
}

/// Which ends of the connections are on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The server's.
    Serve,
    /// The clients'.
    Load,
    /// Both, in a process each.
    Prove,
    /// A load balancer: each connection is two sockets of one process.
    Proxy,
}

impl Role {
    /// Sockets on this machine per connection.
    pub const fn ends(self) -> u64 {
        match self {
            Self::Serve | Self::Load => 1,
            Self::Prove | Self::Proxy => 2,
        }
    }

    /// Processes that hold them.
    pub const fn processes(self) -> u64 {
        match self {
            Self::Serve | Self::Load | Self::Proxy => 1,
            Self::Prove => 2,
        }
    }

    /// Threads besides the workers, in all processes. A client has none but its main thread and that
    /// of the log, which already run when the limits are read.
    pub(crate) const fn control_threads(self) -> u64 {
        match self {
            Self::Load => 0,
            Self::Serve | Self::Proxy | Self::Prove => self.processes() * CONTROL_THREADS,
        }
    }

    /// Sockets of one process per connection.
    pub(crate) const fn ends_each(self) -> u64 {
        self.ends() / self.processes()
    }

    pub(crate) const fn connects(self) -> bool {
        matches!(self, Self::Load | Self::Prove | Self::Proxy)
    }

    pub(crate) const fn accepts(self) -> bool {
        matches!(self, Self::Serve | Self::Prove | Self::Proxy)
    }

    /// What follows "sockets" in a sentence.
    pub(crate) const fn place(self) -> &'static str {
        match self {
            Self::Serve | Self::Load => "",
            Self::Prove => " on this machine (both ends)",
            Self::Proxy => " through this machine (two each)",
        }
    }

    /// The flag that sets the number of connections.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Serve | Self::Proxy => "--max-connections",
            Self::Load | Self::Prove => "--connections",
        }
    }
}

/// The addresses connections come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sources {
    /// As many of 127.0.0.0/8 as are needed.
    Loopback,
    /// This many addresses.
    Addresses(u64),
}
