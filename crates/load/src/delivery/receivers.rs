//! [`Receivers`]: one worker's receivers of a fan-out, which are its sockets.
//!
//! They keep 16 bytes per socket and publisher. Those of the first publisher are part of [`Socket`], so
//! that only runs with several publishers need more.

use std::sync::Arc;

use engine::{ConnId, Core, Sys};

use crate::Receiver;
use crate::delivery::checker::{Checker, Expected, Track, add_worst, keep_worst};
use crate::delivery::verdicts::{Pending, TakenBack, Verdict, Verdicts};
use crate::outcome::metrics::Metrics;
use crate::workload::client::Client;
use crate::workload::socket::Socket;

/// The publishers to expect, as told to every worker.
#[derive(Clone, Debug)]
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
    /// The answers of the server, if there are any, of which each publisher awaits this many.
    pub(crate) verdicts: Option<(Arc<Verdicts>, u32)>,
}

/// One worker's receivers.
pub(crate) struct Receivers {
    expect: Expect,
    checker: Checker,
    /// Tracks of the publishers after the first, by slot.
    further: Vec<Track>,
    /// Receipts of publications that are not answered yet.
    pending: Option<Pending>,
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
        let pending = expect.verdicts.clone();
        let pending = pending.map(|(verdicts, in_flight)| Pending::new(verdicts, in_flight));
        Receivers { expect, checker, further: vec![Track::default(); tracks], pending }
    }

    pub(crate) fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        data: &[u8],
        metrics: &Metrics,
    ) {
        let now_ns = core.clock_ns();
        let Receivers { expect, checker, further, pending } = self;
        let (first, publishers) = (expect.first, expect.publishers);
        let socket = core.user_mut(id);
        let mut from = 0;
        let new = checker.check(&metrics.counts.delivery, data, now_ns, |publication| {
            let index = publication.publisher.wrapping_sub(first);
            let number = publication.sequence;
            from = index;
            match socket {
                Some(socket) if socket.has(Socket::SENDING) => Expected::Ignored,
                Some(socket) if socket.has(Socket::RECEIVING) => {
                    let (window, received) = if index == 0 {
                        // `sent` counts receipts here, as these sockets send nothing.
                        (&mut socket.window, &mut socket.sent)
                    } else {
                        match track(further, publishers, id.slot(), index) {
                            Some(track) => (&mut track.window, &mut track.received),
                            None => return Expected::Foreign,
                        }
                    };
                    let verdict = pending.as_ref().map(|pending| pending.verdict(index, number));
                    match verdict.unwrap_or(Verdict::Expected) {
                        Verdict::Expected => Expected::At(window, received, number),
                        Verdict::Refused => Expected::Refused(window, number),
                        Verdict::Unknown => Expected::Ignored,
                    }
                }
                // It was opened again meanwhile, so it is no receiver.
                Some(_) if index < publishers => Expected::Ignored,
                _ => Expected::Foreign,
            }
        });
        if let (Some(number), Some(pending)) = (new, pending) {
            pending.received(from, number);
        }
    }

    /// Takes back receipts whose publication is found to be refused, and passes on times. Returns when to
    /// call it next.
    pub(crate) fn turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        metrics: &Metrics,
    ) -> Option<u64> {
        self.take_back(core, metrics);
        self.checker.flush(metrics, core.now_ns())
    }

    /// Takes back receipts whose publication is found to be refused. At a receiver that has received 64
    /// later ones meanwhile it stays in the figures of that receiver; those of the run are exact.
    fn take_back<S: Sys>(&mut self, core: &mut Core<S, Client>, metrics: &Metrics) {
        let Receivers { expect, further, pending, .. } = self;
        let Some(pending) = pending else { return };
        let counts = &metrics.counts.delivery;
        while let Some(TakenBack { publisher, number, verdict, receipts }) = pending.take_back() {
            counts.taken_back.add(receipts.into());
            let is_refused = verdict == Verdict::Refused;
            counts.refused.add(if is_refused { receipts.into() } else { 0 });
            let mut left = receipts;
            for slot in 0..core.slots() {
                if left == 0 {
                    break;
                }
                let socket = core.user_at(slot).filter(|socket| socket.has(Socket::RECEIVING));
                let Some(socket) = socket else { continue };
                let (window, received) = match publisher {
                    0 => (&socket.window, &mut socket.sent),
                    index => match track(further, expect.publishers, slot, index) {
                        Some(track) => (&track.window, &mut track.received),
                        None => continue,
                    },
                };
                if window.has(number) {
                    *received = received.saturating_sub(1);
                    left -= 1;
                }
            }
        }
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
        self.take_back(core, metrics);
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
