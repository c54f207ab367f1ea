//! [`MemoryWatch`]: compares the resident memory with `--memory-limit`, and has workers refuse and
//! shed clients while it is exceeded.

use engine::Remote;
use engine::sys::process::trim_allocator;
use tracing::{info, warn};

use crate::rss_bytes;

/// Whether the limit was exceeded at the last check.
#[derive(Default)]
pub(crate) struct MemoryWatch {
    exceeded: bool,
}

impl MemoryWatch {
    /// Compares the process's memory with `limit`, in bytes, and acts on the workers.
    pub(crate) fn check<P>(&mut self, remote: &Remote<P>, limit: Option<u64>) {
        let is_over = |limit: u64| rss_bytes().is_some_and(|rss| rss > limit);
        let mut exceeded = limit.is_some_and(is_over);
        if exceeded {
            // Free memory that the allocator keeps counts as resident, too.
            trim_allocator();
            exceeded = limit.is_some_and(is_over);
        }
        remote.set_short_of_memory(exceeded);
        if exceeded {
            remote.shed();
        }
        match (std::mem::replace(&mut self.exceeded, exceeded), exceeded) {
            (false, true) => {
                warn!("memory limit exceeded: refusing and shedding clients; see --memory-limit")
            }
            (true, false) => info!("memory is below the limit again: accepting clients"),
            _ => {}
        }
    }
}
