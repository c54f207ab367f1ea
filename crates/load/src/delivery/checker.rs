//! [`DeliveryChecker`]: checks the publications received at every socket.
//!
//! The counts, per socket and publisher:
//! - *received*: each number counted once;
//! - *reordered*: received after a later one (also counted as received);
//! - *late*: received later than allowed after it was published (also counted as received);
//! - *duplicated*: received again; *stale*: 64 or more behind the newest, where a first receipt and a
//!   duplicate cannot be distinguished;
//! - *corrupted*: begins like a publication but was changed; *foreign*: anything else;
//! - *lost*: published, and not received when the run ended.
//!
//! It keeps 16 bytes per socket and publisher. Those of the first publisher are part of [`Socket`], so
//! that only runs with several publishers need more.

use engine::{ConnId, Core, Sys};

use crate::Series;
use crate::delivery::publication;
use crate::delivery::publication::Publication;
use crate::delivery::window::{Delivery, Window};
use crate::outcome::metrics::{Metrics, WorkerMetrics};
use crate::outcome::sections::Receiver;
use crate::workload::client::Client;
use crate::workload::socket::Socket;

/// The most receivers that are listed for their losses.
pub(crate) const WORST_MAX: usize = 10;

/// The publishers to expect, as told to every worker.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Expect {
    /// The lowest publisher number, and how many follow without gaps.
    pub(crate) first: u32,
    /// See `first`.
    pub(crate) publishers: u32,
    /// A receipt later than this after the publish is late.
    pub(crate) late_after_ns: u64,
    /// What was published before, in the warm-up, is ignored.
    pub(crate) since_ns: u64,
    /// The first sockets of the worker that publish, and are no receivers.
    pub(crate) senders: u32,
}

/// One worker's receivers.
pub(crate) struct DeliveryChecker {
    expect: Expect,
    /// Tracks of the publishers after the first, by slot.
    further: Vec<Track>,
}

/// The receipts of one socket from one publisher.
#[derive(Copy, Clone, Default)]
struct Track {
    window: Window,
    received: u32,
}

const _: () = assert!(size_of::<Track>() == 16);

impl DeliveryChecker {
    /// Starts counting at all sockets that are open now and that publications reach. A socket that
    /// opens later is no receiver.
    pub(crate) fn begin<S: Sys>(
        core: &mut Core<S, Client>,
        expect: Expect,
        reached: impl Fn(u32) -> bool,
        metrics: &Metrics,
    ) -> DeliveryChecker {
        let mut senders = expect.senders;
        for slot in 0..core.slots() {
            let open = core.id_at(slot).is_some_and(|id| core.is_open(id)) && reached(slot);
            if let Some(socket) = core.user_at(slot).filter(|_| open) {
                socket.begin_messages();
                socket.set(if senders > 0 { Socket::SENDING } else { Socket::RECEIVING });
                senders = senders.saturating_sub(1);
            }
        }
        metrics.set_expecting(expect.first);
        let tracks = core.slots() as usize * further(expect.publishers);
        DeliveryChecker { expect, further: vec![Track::default(); tracks] }
    }

    pub(crate) fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        data: &[u8],
        metrics: &WorkerMetrics,
    ) {
        let now_ns = core.clock_ns();
        let counts = &metrics.counts;
        let Some(text) = publication::find(data) else { return counts.publications_foreign.add(1) };
        let Some(publication) = publication::parse(text) else { return counts.corrupted.add(1) };
        if publication.published_ns < self.expect.since_ns {
            return;
        }
        let socket = core.user_mut(id).filter(|socket| socket.has(Socket::RECEIVING));
        let Some(seen) = socket.and_then(|socket| self.note(socket, id.slot(), &publication))
        else {
            let sends = core.user(id).is_some_and(|socket| socket.has(Socket::SENDING));
            return counts.publications_foreign.add(u64::from(!sends));
        };
        match seen {
            Delivery::InOrder => {}
            Delivery::Reordered => counts.publications_reordered.add(1),
            Delivery::Duplicate => return counts.publications_duplicated.add(1),
            Delivery::Stale => return counts.publications_stale.add(1),
        }
        counts.publications.add(1);
        let took_ns = now_ns.saturating_sub(publication.published_ns);
        if took_ns > self.expect.late_after_ns {
            counts.publications_late.add(1);
        }
        metrics.record(Series::Broadcast, took_ns);
        metrics.arrivals().note(&publication, now_ns);
    }

    /// Notes a publication at its socket; `None` if its publisher is not expected.
    fn note(
        &mut self,
        socket: &mut Socket,
        slot: u32,
        publication: &Publication,
    ) -> Option<Delivery> {
        let index = publication.publisher.checked_sub(self.expect.first)?;
        // `sent` counts receipts here, as these sockets send nothing.
        let (window, received) = match index.checked_sub(1) {
            None => (&mut socket.window, &mut socket.sent),
            Some(_) if index >= self.expect.publishers => return None,
            Some(at) => {
                let at = slot as usize * further(self.expect.publishers) + at as usize;
                let track = self.further.get_mut(at)?;
                (&mut track.window, &mut track.received)
            }
        };
        let seen = window.note(publication.sequence);
        *received += u32::from(matches!(seen, Delivery::InOrder | Delivery::Reordered));
        Some(seen)
    }

    /// Finds the receivers that lost most. `first` is the number in the run of the worker's first
    /// connection.
    pub(crate) fn judge<S: Sys>(
        &self,
        core: &mut Core<S, Client>,
        published: &[u32],
        first: u64,
        metrics: &Metrics,
    ) {
        let mut short = Vec::new();
        for slot in 0..core.slots() {
            let Some(id) = core.id_at(slot).filter(|&id| core.is_open(id)) else { continue };
            let socket = core.user(id).filter(|socket| socket.has(Socket::RECEIVING));
            let Some(mine) = socket.map(|socket| socket.sent) else { continue };
            let further = further(self.expect.publishers);
            let tracks = self.further.iter().skip(slot as usize * further).take(further);
            let each = || std::iter::once(mine).chain(tracks.clone().map(|track| track.received));
            let missing = published.iter().zip(each()).map(|(all, got)| all.saturating_sub(got));
            let lost: u64 = missing.map(u64::from).sum();
            if lost > 0 {
                metrics.counts.receivers_short.add(1);
                let (connection, received) = (first + u64::from(slot), each().map(u64::from).sum());
                short.push(Receiver { connection, received, lost });
            }
            if short.len() > 64 * WORST_MAX {
                keep_worst(&mut short);
            }
        }
        keep_worst(&mut short);
        metrics.set_judged(short);
    }
}

/// Additional tracks per socket.
fn further(publishers: u32) -> usize {
    publishers.saturating_sub(1) as usize
}

/// Keeps the [`WORST_MAX`] receivers that lost most.
pub(crate) fn keep_worst(receivers: &mut Vec<Receiver>) {
    receivers.sort_by_key(|receiver| (std::cmp::Reverse(receiver.lost), receiver.connection));
    receivers.truncate(WORST_MAX);
}
