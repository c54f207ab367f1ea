//! [`MemoryWatch`]: compares the resident memory with `--memory-limit`, and has workers refuse and
//! shed clients while it is exceeded.

use engine::Remote;
use tracing::{info, warn};

use crate::rss_bytes;

/// What the last check found.
#[derive(Default)]
pub(crate) struct MemoryWatch {
    exceeded: bool,
    /// No client holds memory whose release would help.
    futile: bool,
}

impl MemoryWatch {
    /// Compares the process's memory with `limit`, in bytes, and acts on the workers.
    pub(crate) fn check<P>(&mut self, remote: &Remote<P>, limit: Option<u64>) {
        let over = |limit: u64| rss_bytes()?.checked_sub(limit).filter(|over| *over > 0);
        if limit.and_then(over).is_some() {
            // Free memory that the allocator keeps counts as resident, too.
            remote.trim_memory();
        }
        let over = limit.and_then(|limit| Some((over(limit)?, limit)));
        let exceeded = over.is_some();
        remote.set_short_of_memory(exceeded);
        let futile = over.is_some_and(|(bytes, limit)| !remote.shed(bytes, limit));
        match (std::mem::replace(&mut self.exceeded, exceeded), exceeded) {
            (false, true) => {
                warn!("memory limit exceeded: refusing and shedding clients; see --memory-limit")
            }
            (true, false) => info!("memory is below the limit again: accepting clients"),
            _ => {}
        }
        if futile && !std::mem::replace(&mut self.futile, futile) {
            warn!(
                "memory limit exceeded: closing clients would not help, refusing new ones only; \
                 raise --memory-limit"
            );
        }
        self.futile &= exceeded;
    }
}
