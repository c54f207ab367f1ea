//! [`Publisher`]: publishes its part of a rate from its own thread, over HTTP or on a socket of the run.
//! Open model: each publication has a due time, and the delay of its send is recorded.

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
use crate::workload::churn::publish_counters::PublishCounters;
use crate::workload::client::Order;
use crate::workload::fanout::http::Http;
use crate::workload::pacer::Pacer;
use crate::{Fanout, Publish, Published, Recorder, Series};

/// The most different failures that are counted separately.
const CAUSES_MAX: usize = 32;
/// How long after the end overdue publications are still sent.
const OVERDUE_NS: u64 = 250_000_000;
/// The longest sleep, so that an interrupted run ends soon.
const NAP: Duration = Duration::from_millis(50);

/// A running publisher.
pub(crate) struct Publisher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    done: AtomicBool,
    /// Publications that the server accepted or may have accepted, or that were posted to a socket.
    published: AtomicU32,
    stats: Mutex<PublishStats>,
}

/// Counters and times of publishing.
#[derive(Clone, Default)]
pub(crate) struct PublishStats {
    /// Publications rejected or not answered, by cause.
    pub(crate) failed: BTreeMap<String, u64>,
    /// [`Series::PublishLag`], and [`Series::Publish`] where there is an answer.
    pub(crate) recorder: Recorder,
    /// Publications sent, accepted or not.
    pub(crate) sent: u64,
    /// When the last one was sent.
    pub(crate) last_sent_ns: u64,
}

impl PublishStats {
    /// Adds the stats of another publisher.
    pub(crate) fn merge(&mut self, other: PublishStats) {
        for (cause, count) in other.failed {
            *self.failed.entry(cause).or_default() += count;
        }
        self.recorder.merge(&other.recorder);
        self.sent += other.sent;
        self.last_sent_ns = self.last_sent_ns.max(other.last_sent_ns);
    }
}

/// The number, transport and start time of a publisher.
pub(crate) struct PublisherConfig {
    /// The number of the publisher, from 0.
    pub(crate) index: u32,
    pub(crate) remote: Remote<Order>,
    /// The worker of its socket, and the index of the socket among those open there.
    pub(crate) worker: usize,
    /// See `worker`.
    pub(crate) nth: u32,
    pub(crate) begin_ns: u64,
    /// With a churn: the counters of the streams, which are used in turn.
    pub(crate) counters: Option<Arc<PublishCounters>>,
}

impl Publisher {
    /// Starts publishing every `fanout.publishers`th publication.
    pub(crate) fn start(fanout: &Fanout, config: PublisherConfig) -> io::Result<Publisher> {
        let shared = Arc::new(Shared::default());
        let (fanout, inside) = (fanout.clone(), Arc::clone(&shared));
        let run = move || {
            let PublisherConfig { index, remote, worker, nth, begin_ns, counters } = config;
            let transport: Box<dyn PublishTransport> = match fanout.publish.clone() {
                Publish::Http(http) => Box::new(Http::new(http)),
                Publish::Socket => Box::new(Socket { remote, worker, nth }),
            };
            publish(&fanout, index, begin_ns, counters.as_deref(), transport, &inside);
            inside.done.store(true, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("publisher".to_owned()).spawn(run)?;
        Ok(Publisher { shared, thread: Some(thread) })
    }

    /// Whether everything is published or has failed.
    pub(crate) fn is_done(&self) -> bool {
        self.shared.done.load(Ordering::Acquire)
    }

    /// Publications so far that receivers are expected to get.
    pub(crate) fn published(&self) -> u32 {
        self.shared.published.load(Ordering::Acquire)
    }

    /// The progress of all publishers.
    pub(crate) fn progress(all: &[Publisher]) -> Published {
        let failed = |publisher: &Publisher| publisher.shared.stats().failed.values().sum::<u64>();
        Published {
            taken: all.iter().map(|publisher| u64::from(publisher.published())).sum(),
            failed: all.iter().map(failed).sum(),
        }
    }

    pub(crate) fn stats(&self) -> PublishStats {
        self.shared.stats().clone()
    }

    /// Asks it to stop.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Waits for its thread.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}

impl Shared {
    fn stats(&self) -> MutexGuard<'_, PublishStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn publish(
    fanout: &Fanout,
    index: u32,
    begin_ns: u64,
    counters: Option<&PublishCounters>,
    mut transport: Box<dyn PublishTransport>,
    shared: &Shared,
) {
    let pacer = Pacer::new(begin_ns, fanout.rate, 1, 1);
    let until_ns = fanout.duration.map_or(u64::MAX, |time| begin_ns + time.as_nanos() as u64);
    let all = 0..u64::from(fanout.messages.unwrap_or(u32::MAX));
    let own = all.skip(index as usize).step_by(fanout.publishers.max(1) as usize);
    let mut next = 0;
    for (nth, number) in (0..).zip(own) {
        let due_ns = pacer.due_ns(number);
        if due_ns >= until_ns || !wait_until(due_ns, shared) {
            return;
        }
        let sent_ns = now_ns();
        if sent_ns > until_ns.saturating_add(OVERDUE_NS) {
            return;
        }
        // With a churn each stream has its own numbers, and acts as a publisher.
        let stream =
            counters.map(|counters| (counters, counters.stream(index, fanout.publishers, nth)));
        let (which, sequence) = match stream {
            Some((counters, stream)) => (stream as u32, counters.begin(stream)),
            None => (index, next),
        };
        let publisher = Fanout::FIRST_PUBLISHER + which;
        let publication = Publication { publisher, sequence, due_ns, published_ns: sent_ns };
        let name = stream.map_or("", |(counters, stream)| counters.name(stream));
        let result = transport.publish(name, &publication::encode(&publication, fanout.size));
        let mut stats = shared.stats();
        stats.sent += 1;
        stats.last_sent_ns = sent_ns;
        stats.recorder.record(Series::PublishLag, sent_ns.saturating_sub(due_ns));
        stats.recorder.record(Series::Publish, now_ns().saturating_sub(sent_ns));
        // A publication that may have been accepted is expected, as its receipts would hide losses.
        // The number of a rejected one is reused.
        let refused = result.as_ref().is_err_and(|failure| failure.certain);
        next += u32::from(!refused);
        if let Some((counters, stream)) = stream.filter(|_| !refused) {
            counters.taken(stream);
        }
        shared.published.fetch_add(u32::from(!refused), Ordering::Release);
        if let Err(Failure { cause, .. }) = result {
            let known = stats.failed.len() < CAUSES_MAX || stats.failed.contains_key(&cause);
            let cause = if known { cause } else { "other".to_owned() };
            *stats.failed.entry(cause).or_default() += 1;
        }
    }
}

/// Waits until `due_ns`; false if the run ends before.
fn wait_until(due_ns: u64, shared: &Shared) -> bool {
    loop {
        if shared.stop.load(Ordering::Acquire) {
            return false;
        }
        let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// How publications are sent.
pub(crate) trait PublishTransport {
    /// Sends a publication. `stream` is the name of the stream as JSON, empty if there is only one.
    fn publish(&mut self, stream: &str, data: &str) -> Result<(), Failure>;
}

/// Why a publication failed.
pub(crate) struct Failure {
    /// The cause.
    pub(crate) cause: String,
    /// Whether it is certain that it was not accepted.
    pub(crate) certain: bool,
}

/// Publishes on a socket of the run.
struct Socket {
    remote: Remote<Order>,
    worker: usize,
    nth: u32,
}

impl PublishTransport for Socket {
    fn publish(&mut self, _: &str, data: &str) -> Result<(), Failure> {
        let order = Order::Publish { nth: self.nth, data: data.as_bytes().into() };
        let posted = self.remote.post(self.worker, order, data.len());
        posted
            .map_err(|_| Failure { cause: "the generator is overloaded".to_owned(), certain: true })
    }
}
