//! [`Reception`]: checks at every socket what one publisher's broadcasts brought there.

use engine::{ConnId, Core, Sys};

use crate::Series;
use crate::broadcast;
use crate::client::Client;
use crate::ledger::Ledger;
use crate::window::Seen;

/// One worker's receivers.
pub(crate) struct Reception {
    publisher: u32,
}

impl Reception {
    /// All sockets that exist now begin to count the publications of `publisher`.
    pub(crate) fn begin<S: Sys>(
        core: &mut Core<S, Client>,
        publisher: u32,
        ledger: &Ledger,
    ) -> Reception {
        for slot in 0..core.slots() {
            if let Some(socket) = core.user_at(slot) {
                socket.begin_messages();
            }
        }
        ledger.set_expecting(publisher);
        Reception { publisher }
    }

    pub(crate) fn message<S: Sys>(
        &self,
        core: &mut Core<S, Client>,
        id: ConnId,
        data: &[u8],
        ledger: &Ledger,
    ) {
        let now_ns = core.clock_ns();
        let counts = &ledger.counts;
        let ours = broadcast::parse(data).filter(|found| found.publisher == self.publisher);
        let Some((publication, socket)) = ours.zip(core.user_mut(id)) else {
            return counts.publications_foreign.add(1);
        };
        match socket.window.note(publication.sequence) {
            Seen::InOrder | Seen::Reordered => counts.publications.add(1),
            Seen::Duplicate => return counts.publications_duplicated.add(1),
            Seen::Stale => return counts.publications_late.add(1),
        }
        ledger.record(Series::Broadcast, now_ns.saturating_sub(publication.published_ns));
    }
}
