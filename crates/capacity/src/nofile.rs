//! The descriptor limit of this process. Source: getrlimit(2), `RLIMIT_NOFILE`.
//!
//! The limit counts per descriptor table, so a worker that has left the shared table has the full
//! limit for its own.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

/// Descriptors a table may hold; `u64::MAX` means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Nofile {
    /// The limit in effect.
    pub soft: u64,
    /// The highest value to which the process may raise it.
    pub hard: u64,
}

/// This process's descriptor limits now.
pub fn nofile() -> Nofile {
    let limit = getrlimit(Resource::Nofile);
    Nofile { soft: limit.current.unwrap_or(u64::MAX), hard: limit.maximum.unwrap_or(u64::MAX) }
}

/// Processes and threads that this process's user may have (getrlimit(2), `RLIMIT_NPROC`); `None`
/// where there is no limit, and for root, which is exempt.
pub(crate) fn nproc() -> Option<u64> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    getrlimit(Resource::Nproc).current
}

/// Bytes of address space this process may have (getrlimit(2), `RLIMIT_AS`); `None` without a limit.
pub(crate) fn address_space() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Raises the soft limit of this process to the hard one and returns the new limit.
///
/// # Errors
/// The error of setrlimit(2), for instance if a sandbox refuses it; the limit is then unchanged.
pub fn raise_nofile() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(nofile().soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_is_raised_to_hard() {
        let before = nofile();
        let lowered = Rlimit {
            current: Some(before.hard.min(before.soft) / 2),
            maximum: (before.hard != u64::MAX).then_some(before.hard),
        };
        setrlimit(Resource::Nofile, lowered).unwrap();
        assert!(nofile().soft < before.soft);
        assert_eq!(raise_nofile().unwrap(), before.hard);
        assert_eq!(nofile(), Nofile { soft: before.hard, hard: before.hard });
    }
}
