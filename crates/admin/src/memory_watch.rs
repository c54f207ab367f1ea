//! [`MemoryWatch`]: compares the resident memory with `--memory-limit`, and has workers refuse and
//! shed clients while it is exceeded.

use std::time::Duration;

use engine::Remote;
use engine::sys::process::now_ns;
use tracing::{info, warn};

use crate::rss_bytes;

/// While closing clients would not help, the workers measure once in this time what clients hold:
/// that costs them a look at every subscription.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// What the last check found.
#[derive(Default)]
pub(crate) struct MemoryWatch {
    exceeded: bool,
    /// No client holds memory whose release would help.
    futile: bool,
    /// While that is so, the workers do not measure before this.
    measure_ns: u64,
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
        let futile = over.is_some_and(|(bytes, limit)| {
            let helps = remote.can_shed(bytes, limit);
            if helps || self.take_measurement(now_ns()) {
                remote.shed(bytes, limit);
            }
            !helps
        });
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

    /// Whether the workers may measure now, at a time when nothing else is to be done.
    fn take_measurement(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.measure_ns;
        if due {
            self.measure_ns = now_ns.saturating_add(MEASURE_INTERVAL.as_nanos() as u64);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_vain_the_workers_measure_once_a_second() {
        let mut watch = MemoryWatch::default();
        // Ten checks per second, as with --memory-limit.
        let checks = (0..100).map(|check| 1_000 + check * 100_000_000);
        assert_eq!(checks.filter(|now_ns| watch.take_measurement(*now_ns)).count(), 10);
    }
}
