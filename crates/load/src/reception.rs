//! [`Reception`]: checks at every socket what one publisher's publications brought there.
//!
//! What the counts mean, at every socket:
//! - *received*: came, each number counted once;
//! - *reordered*: came after a later one (also counted as received);
//! - *late*: came more than the time allowed after it was published (also received);
//! - *duplicated*: came again; *stale*: 64 or more behind the newest, where a first receipt and a
//!   repetition look alike;
//! - *corrupted*: begins like a publication and is none as it was sent; *foreign*: anything else;
//! - *lost*: published, and not received when the run ended.

use engine::{ConnId, Core, Sys};

use crate::Series;
use crate::broadcast;
use crate::client::Client;
use crate::ledger::Ledger;
use crate::summary::Receiver;
use crate::window::Seen;

/// Receivers that are named for what they lost.
pub(crate) const WORST_MAX: usize = 10;

/// What every worker is told of a publisher.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Expect {
    pub(crate) publisher: u32,
    /// A receipt later than this after the publish is late.
    pub(crate) late_after_ns: u64,
}

/// One worker's receivers.
pub(crate) struct Reception {
    expect: Expect,
}

impl Reception {
    /// All sockets that exist now begin to count the publications of a publisher.
    pub(crate) fn begin<S: Sys>(
        core: &mut Core<S, Client>,
        expect: Expect,
        ledger: &Ledger,
    ) -> Reception {
        for slot in 0..core.slots() {
            if let Some(socket) = core.user_at(slot) {
                socket.begin_messages();
            }
        }
        ledger.set_expecting(expect.publisher);
        Reception { expect }
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
        let Some(publication) = broadcast::parse(data) else {
            let ours = data.starts_with(broadcast::BEGINNING);
            let count = if ours { &counts.corrupted } else { &counts.publications_foreign };
            return count.add(1);
        };
        let ours = publication.publisher == self.expect.publisher;
        let Some(socket) = core.user_mut(id).filter(|_| ours) else {
            return counts.publications_foreign.add(1);
        };
        match socket.window.note(publication.sequence) {
            Seen::InOrder => {}
            Seen::Reordered => counts.publications_reordered.add(1),
            Seen::Duplicate => return counts.publications_duplicated.add(1),
            Seen::Stale => return counts.publications_stale.add(1),
        }
        // Counted per socket in the place of messages sent, of which there are none here.
        socket.sent = socket.sent.saturating_add(1);
        counts.publications.add(1);
        let took_ns = now_ns.saturating_sub(publication.published_ns);
        if took_ns > self.expect.late_after_ns {
            counts.publications_late.add(1);
        }
        ledger.record(Series::Broadcast, took_ns);
        ledger.arrivals().note(publication.sequence, publication.published_ns, now_ns);
    }

    /// Names the receivers that lost most of so many publications.
    pub(crate) fn judge<S: Sys>(core: &mut Core<S, Client>, published: u32, ledger: &Ledger) {
        let mut short = Vec::new();
        for slot in 0..core.slots() {
            let Some(id) = core.id_at(slot).filter(|&id| core.is_open(id)) else { continue };
            let received = core.user_at(slot).map_or(0, |socket| socket.sent);
            let lost = published.saturating_sub(received);
            if lost > 0 {
                ledger.counts.receivers_short.add(1);
                short.push(Receiver { worker: id.worker(), slot, received, lost });
            }
            if short.len() > 64 * WORST_MAX {
                keep_worst(&mut short);
            }
        }
        keep_worst(&mut short);
        ledger.set_judged(short);
    }
}

/// Leaves the few that lost most.
pub(crate) fn keep_worst(receivers: &mut Vec<Receiver>) {
    receivers.sort_by_key(|receiver| std::cmp::Reverse(receiver.lost));
    receivers.truncate(WORST_MAX);
}
