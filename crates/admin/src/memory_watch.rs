//! [`MemoryWatch`]: compares the resident memory with `--memory-limit`, and has workers refuse and
//! shed clients while it is exceeded.

use std::time::Duration;

use engine::sys::process::{now_ns, trim_allocator};
use engine::{Refusal, Remote, Totals};
use tracing::{info, warn};

use crate::rss_bytes;

/// How often one reason is written about at most.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// What was told already.
#[derive(Default)]
pub(crate) struct Watch {
    told: [Told; Refusal::ALL.len()],
    full: Told,
    short_of_memory: bool,
}

#[derive(Copy, Clone, Default)]
struct Told {
    times: u64,
    /// Nothing more before this.
    until_ns: u64,
}

impl Told {
    /// How often it came since it was last written, if it is to be written now.
    fn news(&mut self, total: u64) -> Option<u64> {
        let (times, now_ns) = (total - self.times, now_ns());
        if times == 0 || now_ns < self.until_ns {
            return None;
        }
        *self = Told { times: total, until_ns: now_ns + TOLD_EVERY.as_nanos() as u64 };
        Some(times)
    }
}

impl Watch {
    /// Compares what the process holds with what it may, and has workers shed what is too much.
    pub(crate) fn memory<P>(&mut self, remote: &Remote<P>, most: Option<u64>) {
        let passed = |most: u64| rss_bytes().is_some_and(|rss| rss > most);
        let mut short = most.is_some_and(passed);
        if short {
            // What the allocator keeps for later is not held by anybody.
            trim_allocator();
            short = most.is_some_and(passed);
        }
        remote.set_short_of_memory(short);
        if short {
            remote.shed();
        }
        let before = std::mem::replace(&mut self.short_of_memory, short);
        match (before, short) {
            (false, true) => warn!(
                "more memory than --memory-limit is held: nobody is let in, and some have to leave"
            ),
            (true, false) => info!("memory is below --memory-limit again"),
            _ => {}
        }
    }

    /// Writes whom the workers refused since it was last written.
    pub(crate) fn refusals<P>(&mut self, remote: &Remote<P>) {
        let refused = Totals::sum(remote.counters()).refused;
        for ((why, told), total) in Refusal::ALL.into_iter().zip(&mut self.told).zip(refused) {
            let Some(times) = told.news(total) else { continue };
            let by_address = matches!(why, Refusal::PerAddress | Refusal::PerAddressRate);
            match remote.take_refused().filter(|_| by_address) {
                Some(address) => warn!(times, "{}, last {address}", said(why)),
                None => warn!(times, "{}", said(why)),
            }
        }
    }

    /// Writes that accepting stopped since it was last written, as every place was taken.
    pub(crate) fn full<P>(&mut self, remote: &Remote<P>) {
        if let Some(times) = self.full.news(Totals::sum(remote.counters()).accept_full) {
            warn!(
                times,
                "every place is taken: who comes waits in the kernel's queue until somebody leaves; \
                 raise --max-connections as far as standfast doctor says, or spread the clients"
            );
        }
    }
}

/// What happened and what to do, for people.
fn said(why: Refusal) -> &'static str {
    match why {
        Refusal::Handshakes => {
            "ended the oldest request whose head was not whole yet: too many were in flight; see \
             --max-handshakes"
        }
        Refusal::ConnectRate => "refused connections that came too fast; see --connect-rate",
        Refusal::PerAddress => {
            "refused connections of an address that has too many; see --max-per-address"
        }
        Refusal::PerAddressRate => {
            "refused connections of an address that came too fast; see --per-address-rate"
        }
        Refusal::MemoryLimit => {
            "refused connections while memory is short; raise --memory-limit or spread the clients"
        }
    }
}
