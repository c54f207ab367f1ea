//! What this machine allows, and what N sockets need.
//!
//! [`Machine::read`] reads the machine's limits. [`check`] compares them with a [`Goal`] and reports each
//! [`Limit`] that is too low, how many connections fit, and the commands that raise it.
//! [`ProcessMemory`] and [`KernelMemory`] measure what open sockets cost.
//!
//! It opens no socket, starts no thread, reads no clock and changes only one thing: the soft
//! descriptor limit of its own process, in [`raise_nofile`]. Everything else is a read of `/proc`
//! and `/sys`. Sources: proc(5), getrlimit(2), cgroups(7), the kernel's `ip-sysctl` and `cgroup-v2`.

mod cgroup;
mod check;
mod fix;
mod goal;
pub mod limits;
mod machine;
pub mod messages;
mod nofile;
mod report;
mod root;
mod text;
mod threads;
mod usage;

pub use check::check;
pub use fix::{Command, Fix};
pub use goal::{Goal, Role, Sources};
pub use limits::{sources_needed, worker_capacity, workers_needed};
pub use machine::{
    AcceptLosses, Conntrack, Files, Machine, Memory, Ports, Process, Tcp, Threads, Vm,
};
pub use nofile::{Nofile, nofile, raise_nofile};
pub use report::{Limit, Need, Report, Shortfall, Warning};
pub use text::{Bytes, Count, Decimal, Milliseconds, about};
pub use threads::{ThreadTimes, stolen_seconds};
pub use usage::{KernelMemory, ProcessMemory, SocketCounts};
