//! [`RefusalLog`]: log lines about clients that the workers did not accept.
//!
//! Workers only count. Here each reason is logged at most once in [`LOG_INTERVAL`], with the number
//! of clients since the last line.

use std::time::Duration;

use engine::sys::process::now_ns;
use engine::{Refusal, Remote, Totals};
use tracing::warn;

/// Shortest time between two lines about one reason.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What was logged so far.
#[derive(Default)]
pub(crate) struct RefusalLog {
    refused: [LogThrottle; Refusal::ALL.len()],
    accept_full: LogThrottle,
}

#[derive(Copy, Clone, Default)]
struct LogThrottle {
    /// The counter's value at the last line.
    logged: u64,
    /// No further line before this.
    next_ns: u64,
}

impl LogThrottle {
    /// The increase of the counter since the last line, if a line is due now.
    fn take_due(&mut self, total: u64) -> Option<u64> {
        let (times, now_ns) = (total - self.logged, now_ns());
        if times == 0 || now_ns < self.next_ns {
            return None;
        }
        *self = LogThrottle { logged: total, next_ns: now_ns + LOG_INTERVAL.as_nanos() as u64 };
        Some(times)
    }
}

impl RefusalLog {
    /// Logs refusals since the last line, and listeners that stopped accepting because every worker
    /// was full.
    pub(crate) fn write<P>(&mut self, remote: &Remote<P>) {
        let totals = Totals::sum(remote.counters());
        let throttles = Refusal::ALL.into_iter().zip(&mut self.refused);
        for ((reason, throttle), total) in throttles.zip(totals.refused) {
            let Some(times) = throttle.take_due(total) else { continue };
            let by_address = matches!(reason, Refusal::PerAddress | Refusal::PerAddressRate);
            match remote.take_refused().filter(|_| by_address) {
                Some(address) => warn!(times, "{}, last {address}", text(reason)),
                None => warn!(times, "{}", text(reason)),
            }
        }
        if let Some(times) = self.accept_full.take_due(totals.accept_full) {
            warn!(
                times,
                "connection limit reached: new clients wait in the accept queue; raise \
                 --max-connections as far as standfast doctor allows, or add servers"
            );
        }
    }
}

/// What happened, and the flag that sets the limit.
fn text(reason: Refusal) -> &'static str {
    match reason {
        Refusal::Handshakes => {
            "too many handshakes in flight: closed the oldest incomplete requests; see \
             --max-handshakes"
        }
        Refusal::ConnectRate => "connect rate exceeded: connections refused; see --connect-rate",
        Refusal::PerAddress => {
            "too many connections of one address: connections refused; see --max-per-address"
        }
        Refusal::PerAddressRate => {
            "connect rate of one address exceeded: connections refused; see --per-address-rate"
        }
        Refusal::Connections => {
            "connection limit reached: closed the oldest incomplete requests; see --max-connections"
        }
        Refusal::PolledBytes => {
            "long polling: sessions refused, those open hold too much; see --long-polling-bytes"
        }
        Refusal::MemoryLimit => {
            "memory limit exceeded: connections refused; raise --memory-limit or add servers"
        }
    }
}
