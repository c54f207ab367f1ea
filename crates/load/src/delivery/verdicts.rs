//! [`Verdicts`]: which publications receivers are to get, by the answers of the server. The publisher
//! writes them, each worker reads them; nobody waits and nothing is allocated.
//!
//! The answers of a publisher arrive in the order of its numbers, and often behind the message itself. So
//! a receipt counts at first, and is taken back when the answer says that it is not to be expected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Numbers of each publisher whose verdict is kept: workers read them within that many.
const KEPT: u32 = 16_384;
const WORDS: u32 = KEPT / u64::BITS;

/// The verdict on one publication.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Each receiver is to get it.
    Expected,
    /// The server has refused it: no receiver is to get it.
    Refused,
    /// The run ended before the answer: receivers may get it or not.
    Unknown,
}

/// The verdicts on the publications of all publishers.
#[derive(Debug)]
pub(crate) struct Verdicts {
    /// Verdicts of all publishers together, to see at once whether there is a new one.
    all: AtomicU64,
    publishers: Box<[PublisherVerdicts]>,
}

#[derive(Debug)]
struct PublisherVerdicts {
    /// Numbers below it have a verdict.
    settled: AtomicU32,
    /// Numbers from it on are [`Verdict::Unknown`].
    unknown_from: AtomicU32,
    /// A bit of each of the newest [`KEPT`] numbers: 1 if it is not expected.
    bits: Box<[AtomicU64]>,
}

impl Verdicts {
    pub(crate) fn new(publishers: u32) -> Verdicts {
        let publisher = |_| PublisherVerdicts {
            settled: AtomicU32::new(0),
            unknown_from: AtomicU32::new(u32::MAX),
            bits: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
        };
        Verdicts { all: AtomicU64::new(0), publishers: (0..publishers).map(publisher).collect() }
    }

    /// Notes the verdict on the next publication of a publisher. Only the publisher calls this.
    pub(crate) fn settle(&self, publisher: u32, verdict: Verdict) {
        let Some(of) = self.publishers.get(publisher as usize) else { return };
        let number = of.settled.load(Ordering::Relaxed);
        let (word, bit) = place(number);
        if let Some(word) = of.bits.get(word) {
            let bits = word.load(Ordering::Relaxed);
            let is_expected = verdict == Verdict::Expected;
            word.store(if is_expected { bits & !bit } else { bits | bit }, Ordering::Relaxed);
        }
        if verdict == Verdict::Unknown {
            of.unknown_from.fetch_min(number, Ordering::Relaxed);
        }
        of.settled.store(number + 1, Ordering::Release);
        self.all.fetch_add(1, Ordering::Release);
    }

    /// The verdict on a number that is settled.
    fn of(&self, publisher: usize, number: u32) -> Verdict {
        let Some(of) = self.publishers.get(publisher) else { return Verdict::Expected };
        let (word, bit) = place(number);
        let is_kept = of.settled.load(Ordering::Acquire).saturating_sub(number) <= KEPT;
        match of.bits.get(word) {
            Some(word) if is_kept && word.load(Ordering::Relaxed) & bit > 0 => {
                let unknown_from = of.unknown_from.load(Ordering::Relaxed);
                if number >= unknown_from { Verdict::Unknown } else { Verdict::Refused }
            }
            _ => Verdict::Expected,
        }
    }
}

fn place(number: u32) -> (usize, u64) {
    let at = number % KEPT;
    ((at / u64::BITS) as usize, 1 << (at % u64::BITS))
}

/// One worker's receipts of publications without a verdict, by publisher.
pub(crate) struct Pending {
    verdicts: Arc<Verdicts>,
    /// The verdicts that were there at the last look.
    seen: u64,
    publishers: Vec<PendingPublisher>,
}

struct PendingPublisher {
    /// Numbers below it are settled.
    settled: u32,
    /// Receipts of the numbers from it on.
    receipts: Box<[u32]>,
}

/// A publication that was received and was not to be expected.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct TakenBack {
    pub(crate) publisher: u32,
    pub(crate) number: u32,
    pub(crate) verdict: Verdict,
    /// Receipts that counted so far.
    pub(crate) receipts: u32,
}

impl Pending {
    /// Of publishers with at most `in_flight` publications without a verdict.
    pub(crate) fn new(verdicts: Arc<Verdicts>, in_flight: u32) -> Pending {
        // A worker looks once a turn, and the publisher goes on meanwhile.
        let most = in_flight.saturating_add(1).saturating_mul(2).min(KEPT);
        let publisher =
            || PendingPublisher { settled: 0, receipts: (0..most).map(|_| 0).collect() };
        let publishers = verdicts.publishers.iter().map(|_| publisher()).collect();
        Pending { verdicts, seen: 0, publishers }
    }

    /// The verdict on a publication as far as it is known.
    #[inline]
    pub(crate) fn verdict(&self, publisher: u32, number: u32) -> Verdict {
        let settled = self.publishers.get(publisher as usize).map_or(0, |one| one.settled);
        if number >= settled {
            return Verdict::Expected;
        }
        self.verdicts.of(publisher as usize, number)
    }

    /// Notes the first receipt of a publication at a receiver.
    #[inline]
    pub(crate) fn received(&mut self, publisher: u32, number: u32) {
        let Some(one) = self.publishers.get_mut(publisher as usize) else { return };
        let most = one.receipts.len() as u32;
        if number >= one.settled
            && number - one.settled < most
            && let Some(receipts) = one.receipts.get_mut((number % most) as usize)
        {
            *receipts += 1;
        }
    }

    /// Takes a publication that was received, and whose verdict is new and not that it is expected.
    pub(crate) fn take_back(&mut self) -> Option<TakenBack> {
        let all = self.verdicts.all.load(Ordering::Acquire);
        if all == self.seen {
            return None;
        }
        let verdicts = &self.verdicts;
        for (at, one) in self.publishers.iter_mut().enumerate() {
            let settled = verdicts.publishers.get(at).map(|of| of.settled.load(Ordering::Acquire));
            let most = one.receipts.len() as u32;
            while one.settled < settled.unwrap_or(0) {
                let number = one.settled;
                one.settled += 1;
                let receipts = one.receipts.get_mut((number % most) as usize);
                let receipts = receipts.map_or(0, std::mem::take);
                let verdict = verdicts.of(at, number);
                if verdict != Verdict::Expected && receipts > 0 {
                    return Some(TakenBack { publisher: at as u32, number, verdict, receipts });
                }
            }
        }
        self.seen = all;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_are_taken_back_once_their_publication_is_refused() {
        let verdicts = Arc::new(Verdicts::new(2));
        let mut pending = Pending::new(Arc::clone(&verdicts), 1_000);
        for (publisher, number) in [(0, 0), (0, 1), (1, 0), (0, 1), (0, 2)] {
            assert_eq!(pending.verdict(publisher, number), Verdict::Expected);
            pending.received(publisher, number);
        }
        assert_eq!(pending.take_back(), None, "nothing is answered");
        verdicts.settle(0, Verdict::Expected);
        verdicts.settle(0, Verdict::Refused);
        let (publisher, number, verdict) = (0, 1, Verdict::Refused);
        let taken_back = Some(TakenBack { publisher, number, verdict, receipts: 2 });
        assert_eq!(pending.take_back(), taken_back);
        assert_eq!(pending.take_back(), None, "only once");
        assert_eq!(pending.verdict(0, 1), Verdict::Refused, "receipts from now on");
        verdicts.settle(0, Verdict::Unknown);
        verdicts.settle(1, Verdict::Refused);
        assert_eq!(pending.take_back().unwrap().verdict, Verdict::Unknown);
        let of_the_other = pending.take_back().unwrap();
        assert_eq!((of_the_other.publisher, of_the_other.number), (1, 0));
        assert_eq!(pending.take_back(), None);
    }

    #[test]
    fn the_newest_verdicts_are_kept() {
        let verdicts = Arc::new(Verdicts::new(1));
        let mut pending = Pending::new(Arc::clone(&verdicts), 4);
        verdicts.settle(0, Verdict::Refused);
        for _ in 1..KEPT {
            verdicts.settle(0, Verdict::Expected);
        }
        assert_eq!(pending.take_back(), None);
        assert_eq!(pending.verdict(0, 0), Verdict::Refused);
        verdicts.settle(0, Verdict::Expected);
        assert_eq!(pending.take_back(), None);
        assert_eq!(pending.verdict(0, 0), Verdict::Expected, "forgotten");
    }
}
