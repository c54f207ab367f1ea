//! [`Receivers`]: one worker's receivers of a fan-out, which are its sockets.
//!
//! They keep 16 bytes per socket and publisher. Those of the first publisher are part of [`Socket`], so
//! that only runs with several publishers need more.

use engine::{ConnId, Core, Sys};

use crate::Receiver;
use crate::delivery::checker::{Checker, Expected, Track, add_worst, keep_worst};
use crate::outcome::metrics::Metrics;
use crate::workload::client::Client;
use crate::workload::socket::Socket;

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
pub(crate) struct Receivers {
    expect: Expect,
    checker: Checker,
    /// Tracks of the publishers after the first, by slot.
    further: Vec<Track>,
}

impl Receivers {
    /// Starts counting at all sockets that are open now and that publications reach. A socket that
    /// opens later is no receiver.
    pub(crate) fn begin<S: Sys>(
        core: &mut Core<S, Client>,
        expect: Expect,
        reached: impl Fn(u32) -> bool,
        metrics: &Metrics,
    ) -> Receivers {
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
        let mut checker = Checker::new(expect.late_after_ns).with_arrivals();
        checker.ignore_before(expect.since_ns);
        Receivers { expect, checker, further: vec![Track::default(); tracks] }
    }

    pub(crate) fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        data: &[u8],
        metrics: &Metrics,
    ) {
        let (now_ns, expect, further) = (core.clock_ns(), self.expect, &mut self.further);
        let socket = core.user_mut(id);
        self.checker.check(&metrics.counts.delivery, data, now_ns, |publication| match socket {
            Some(socket) if socket.has(Socket::SENDING) => Expected::Ignored,
            Some(socket) if socket.has(Socket::RECEIVING) => {
                let index = publication.publisher.wrapping_sub(expect.first);
                let number = publication.sequence;
                if index == 0 {
                    // `sent` counts receipts here, as these sockets send nothing.
                    return Expected::At(&mut socket.window, &mut socket.sent, number);
                }
                let track = track(further, expect.publishers, id.slot(), index);
                track.map_or(Expected::Foreign, |track| track.expects(number))
            }
            _ => Expected::Foreign,
        });
    }

    /// Passes on times. Returns when to call it next.
    pub(crate) fn turn(&mut self, now_ns: u64, metrics: &Metrics) -> Option<u64> {
        self.checker.flush(metrics, now_ns)
    }

    /// Passes on the rest of the times.
    pub(crate) fn flush_rest(&mut self, metrics: &Metrics) {
        self.checker.flush_rest(metrics);
    }

    /// Finds the receivers that lost most, and passes on the rest of the times. `first` is the number in the run of the worker's first
    /// connection.
    pub(crate) fn judge<S: Sys>(
        &mut self,
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
                add_worst(&mut short, Receiver { connection, received, lost });
            }
        }
        keep_worst(&mut short);
        self.checker.flush_rest(metrics);
        metrics.set_judged(short);
    }
}

/// The track of a publisher after the first; `None` if it is not expected.
fn track(tracks: &mut [Track], publishers: u32, slot: u32, index: u32) -> Option<&mut Track> {
    if index >= publishers {
        return None;
    }
    tracks.get_mut(slot as usize * further(publishers) + index as usize - 1)
}

/// Additional tracks per socket.
fn further(publishers: u32) -> usize {
    publishers.saturating_sub(1) as usize
}
