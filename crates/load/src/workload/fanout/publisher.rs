//! [`Publishers`]: they publish at a rate, over HTTP or on sockets of the run. Open model: each publication
//! has a due time, and the delay of its send is recorded.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::Remote;
use engine::sys::process::now_ns;

use crate::delivery::publication;
use crate::delivery::publication::Publication;
use crate::delivery::verdicts::{Verdict, Verdicts};
use crate::workload::churn::publish_counters::PublishCounters;
use crate::workload::client::Order;
use crate::workload::fanout::http::HttpPublishers;
use crate::workload::fanout::sockets;
use crate::workload::pacer::Pacer;
use crate::{Fanout, Publish, Recorder, Series};

/// The most different failures that are counted separately.
const CAUSES_MAX: usize = 32;
/// How long after the end overdue publications are still sent.
const OVERDUE_NS: u64 = 250_000_000;
/// The longest sleep, so that an interrupted run ends soon.
const NAP: Duration = Duration::from_millis(50);

/// The publishers of a run.
pub(crate) struct Publishers {
    metrics: Arc<PublishMetrics>,
    transport: Transport,
    /// When the first publication was due.
    pub(crate) began_ns: u64,
    /// Publications that are due in the whole run.
    planned: u64,
    /// They were stopped before that, as nobody was left to receive.
    is_cut_short: bool,
}

enum Transport {
    Http(HttpPublishers),
    Sockets(Vec<JoinHandle<()>>),
}

/// What became of a publication.
pub(crate) enum Published {
    Accepted,
    /// It was certainly not accepted, for this reason.
    Rejected(String),
    /// It was sent and not answered, for this reason: it may have been accepted.
    Unanswered(String),
    /// The run was interrupted before the answer.
    Unknown,
}

impl Published {
    /// Whether receivers are expected to receive it.
    pub(crate) fn is_expected(&self) -> bool {
        self.verdict() == Verdict::Expected
    }

    fn verdict(&self) -> Verdict {
        match self {
            Published::Accepted | Published::Unanswered(_) => Verdict::Expected,
            Published::Rejected(_) => Verdict::Refused,
            Published::Unknown => Verdict::Unknown,
        }
    }
}

/// Counters and times of publishing, read by the main thread at any time.
pub(crate) struct PublishMetrics {
    stop: AtomicBool,
    /// By publisher: publications accepted, or perhaps accepted.
    expected: Box<[AtomicU32]>,
    /// What receivers are to get, in the order of each publisher's numbers.
    verdicts: Option<Arc<Verdicts>>,
    stats: Mutex<PublishStats>,
}

/// See [`PublishMetrics`].
#[derive(Clone, Default)]
pub(crate) struct PublishStats {
    /// Publications rejected or not answered, by cause.
    pub(crate) failed: BTreeMap<String, u64>,
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
    pub(crate) unanswered: u64,
    pub(crate) unknown: u64,
    /// Due and not sent.
    pub(crate) unsent: u64,
    /// [`Series::PublishLag`], and [`Series::Publish`] where there is an answer.
    pub(crate) recorder: Recorder,
    /// Publications sent, accepted or not.
    pub(crate) sent: u64,
    /// When the last one was sent.
    pub(crate) last_sent_ns: u64,
}

impl PublishMetrics {
    fn new(publishers: u32, verdicts: Option<Arc<Verdicts>>) -> PublishMetrics {
        let expected = (0..publishers).map(|_| AtomicU32::new(0)).collect();
        PublishMetrics { stop: AtomicBool::new(false), expected, verdicts, stats: Mutex::default() }
    }

    fn stats(&self) -> MutexGuard<'_, PublishStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a publication is sent.
    pub(crate) fn sent(&self, due_ns: u64, now_ns: u64) {
        let mut stats = self.stats();
        stats.sent += 1;
        stats.last_sent_ns = stats.last_sent_ns.max(now_ns);
        stats.recorder.record(Series::PublishLag, now_ns.saturating_sub(due_ns));
    }

    /// Notes what became of a publication, and how long its answer took.
    pub(crate) fn ended(&self, publisher: u32, outcome: Published, took_ns: Option<u64>) {
        let mut stats = self.stats();
        if let Some(took_ns) = took_ns {
            stats.recorder.record(Series::Publish, took_ns);
        }
        if let Some(verdicts) = &self.verdicts {
            verdicts.settle(publisher, outcome.verdict());
        }
        if let Some(expected) = self.expected.get(publisher as usize) {
            expected.fetch_add(u32::from(outcome.is_expected()), Ordering::Release);
        }
        let cause = match outcome {
            Published::Accepted => return stats.accepted += 1,
            Published::Unknown => return stats.unknown += 1,
            Published::Rejected(cause) => {
                stats.rejected += 1;
                cause
            }
            Published::Unanswered(cause) => {
                stats.unanswered += 1;
                cause
            }
        };
        let known = stats.failed.len() < CAUSES_MAX || stats.failed.contains_key(&cause);
        *stats.failed.entry(if known { cause } else { "other".to_owned() }).or_default() += 1;
    }
}

impl Publishers {
    /// Starts them. `open` is the number of open sockets per worker of `remote`, on which they may
    /// publish; with a churn they publish to the streams of `counters` in turn, and otherwise over HTTP
    /// tell `verdicts` what was answered.
    pub(crate) fn start(
        fanout: &Fanout,
        remote: &Remote<Order>,
        open: &[u64],
        counters: Option<Arc<PublishCounters>>,
        verdicts: Option<Arc<Verdicts>>,
    ) -> io::Result<Publishers> {
        let metrics = Arc::new(PublishMetrics::new(fanout.publishers, verdicts));
        let planned = planned(fanout);
        if let Publish::Http(http) = &fanout.publish {
            let (http, began_ns) = HttpPublishers::start(fanout, http, &metrics, counters)?;
            let transport = Transport::Http(http);
            let is_cut_short = false;
            return Ok(Publishers { metrics, transport, began_ns, planned, is_cut_short });
        }
        let began_ns = now_ns();
        let mut threads = Vec::new();
        for ((worker, nth), index) in sockets(open).zip(0..fanout.publishers) {
            let (fanout, metrics, remote) = (fanout.clone(), Arc::clone(&metrics), remote.clone());
            let socket = Socket { index, remote, worker, nth };
            let run = move || socket.publish(&fanout, began_ns, &metrics);
            threads.push(std::thread::Builder::new().name("publisher".to_owned()).spawn(run)?);
        }
        let transport = Transport::Sockets(threads);
        Ok(Publishers { metrics, transport, began_ns, planned, is_cut_short: false })
    }

    /// Whether everything is published or has failed.
    pub(crate) fn is_done(&self) -> bool {
        match &self.transport {
            Transport::Http(http) => http.is_done(),
            Transport::Sockets(threads) => threads.iter().all(JoinHandle::is_finished),
        }
    }

    /// Publications of each publisher that receivers are expected to get.
    pub(crate) fn expected_each(&self) -> Arc<[u32]> {
        self.metrics.expected.iter().map(|expected| expected.load(Ordering::Acquire)).collect()
    }

    /// Publications so far that receivers are expected to get.
    pub(crate) fn expected(&self) -> u64 {
        self.expected_each().iter().copied().map(u64::from).sum()
    }

    pub(crate) fn progress(&self) -> crate::Published {
        let failed = self.metrics.stats().failed.values().sum();
        crate::Published { taken: self.expected(), failed }
    }

    pub(crate) fn stats(&self) -> PublishStats {
        let mut stats = self.metrics.stats().clone();
        if let Transport::Http(http) = &self.transport {
            stats.unsent = http.unsent();
        }
        if self.is_cut_short {
            stats.unsent = self.planned.saturating_sub(stats.sent);
        }
        stats
    }

    /// Stops publishing. Unless the run was interrupted, what is not published yet counts as unsent.
    pub(crate) fn stop(&mut self, is_interrupted: bool) {
        self.is_cut_short |= !is_interrupted && !self.is_done();
        self.end();
    }

    fn end(&mut self) {
        self.metrics.stop.store(true, Ordering::Release);
        match &mut self.transport {
            Transport::Http(http) => http.stop(),
            // A panic of a thread was already printed.
            Transport::Sockets(threads) => threads.drain(..).for_each(|one| drop(one.join())),
        }
    }
}

impl Drop for Publishers {
    fn drop(&mut self) {
        self.end();
    }
}

/// Publications that are due in a fan-out.
fn planned(fanout: &Fanout) -> u64 {
    let pacer = Pacer::new(0, fanout.rate, 1, 1);
    let in_time = fanout.duration.map_or(u64::MAX, |duration| {
        let until_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let about = u128::from(until_ns) * u128::from(fanout.rate) / 1_000_000_000;
        let about = u64::try_from(about).unwrap_or(u64::MAX).saturating_sub(1);
        // The first that is not due any more; rounding makes a difference of one.
        (about..).find(|&number| pacer.due_ns(number) >= until_ns).unwrap_or(about)
    });
    in_time.min(fanout.messages.map_or(u64::MAX, u64::from))
}

/// A publisher on a socket of the run: the nth of a worker.
struct Socket {
    index: u32,
    remote: Remote<Order>,
    worker: usize,
    nth: u32,
}

impl Socket {
    /// Publishes every `fanout.publishers`th publication.
    fn publish(&self, fanout: &Fanout, begin_ns: u64, metrics: &PublishMetrics) {
        let pacer = Pacer::new(begin_ns, fanout.rate, 1, 1);
        let until_ns = fanout.duration.map_or(u64::MAX, |time| begin_ns + time.as_nanos() as u64);
        let all = 0..u64::from(fanout.messages.unwrap_or(u32::MAX));
        let own = all.skip(self.index as usize).step_by(fanout.publishers.max(1) as usize);
        let mut sequence = 0;
        for number in own {
            let due_ns = pacer.due_ns(number);
            if due_ns >= until_ns || !wait_until(due_ns, &metrics.stop) {
                return;
            }
            let sent_ns = now_ns();
            if sent_ns > until_ns.saturating_add(OVERDUE_NS) {
                metrics.stats().unsent += 1;
                continue;
            }
            let publisher = Fanout::FIRST_PUBLISHER + self.index;
            let publication = Publication { publisher, sequence, due_ns, published_ns: sent_ns };
            let data = publication::encode(&publication, fanout.size);
            metrics.sent(due_ns, sent_ns);
            let order = Order::Publish { nth: self.nth, data: data.as_bytes().into() };
            let outcome = match self.remote.post(self.worker, order, data.len()) {
                Ok(()) => Published::Accepted,
                Err(_) => Published::Rejected("the generator is overloaded".to_owned()),
            };
            // The number of a rejected one is used again.
            sequence += u32::from(outcome.is_expected());
            metrics.ended(self.index, outcome, None);
        }
    }
}

/// Waits until `due_ns`; false if the run ends before.
fn wait_until(due_ns: u64, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Acquire) {
            return false;
        }
        let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(NAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publications_are_planned_by_number_and_by_time() {
        let of = |rate, messages, ms: Option<u64>| {
            let duration = ms.map(Duration::from_millis);
            let (publishers, size, late_after) = (1, 0, Duration::ZERO);
            let publish = Publish::Socket;
            planned(&Fanout { rate, publishers, messages, duration, size, late_after, publish })
        };
        assert_eq!([of(100, Some(75), None), of(100, Some(75), Some(500))], [75, 50]);
        assert_eq!([of(3, None, Some(1_000)), of(3, None, Some(1_001))], [3, 4]);
        assert_eq!(
            [of(3, None, Some(333)), of(3, None, Some(334)), of(7, None, Some(0))],
            [1, 2, 0]
        );
    }
}
