//! The live stream of the admin page: `/api/live`, server-sent events (WHATWG HTML section 9.2).
//!
//! One sampler serves all open streams. It runs while there is one; without it nothing is read.
//! A stream has a bounded queue: a client that is slow misses samples, and each of these is complete.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{MissedTickBehavior, interval};

use crate::Program;

/// Streams at most. Each is a page that somebody looks at.
pub(crate) const STREAMS_MAX: usize = 16;
/// Interval of samples.
const EVERY: Duration = Duration::from_secs(1);
/// Every so many samples the expensive values are sampled, too.
const SLOW_EVERY: u32 = 5;
/// Events that wait for one client.
const QUEUED_MAX: usize = 4;

/// Marks the response that is a stream.
#[derive(Copy, Clone)]
pub(crate) struct Streaming;

/// The open streams.
pub(crate) struct Live {
    program: Arc<dyn Program>,
    streams: Mutex<Streams>,
    /// Notified when a stream was added.
    added: Notify,
    refused: AtomicU64,
    samples: AtomicU64,
}

#[derive(Default)]
struct Streams {
    open: Vec<Sender<Bytes>>,
    /// The last sample with all values, for streams that are opened until the next one.
    complete: Option<Bytes>,
}

/// The body of a stream.
pub(crate) struct LiveBody(Receiver<Bytes>);

impl Body for LiveBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

impl Live {
    pub(crate) fn new(program: Arc<dyn Program>) -> Self {
        Live {
            program,
            streams: Mutex::default(),
            added: Notify::new(),
            refused: AtomicU64::new(0),
            samples: AtomicU64::new(0),
        }
    }

    /// Opens a stream that begins with this event; `None` if there are [`STREAMS_MAX`].
    pub(crate) fn open(&self, name: &str, first: &Value) -> Option<LiveBody> {
        let mut streams = self.lock();
        streams.open.retain(|stream| !stream.is_closed());
        if streams.open.len() >= STREAMS_MAX {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let (sender, receiver) = channel(QUEUED_MAX);
        for event in [Some(event(name, first)), streams.complete.clone()].into_iter().flatten() {
            // The queue has room for both.
            let _ = sender.try_send(event);
        }
        streams.open.push(sender);
        drop(streams);
        self.added.notify_one();
        Some(LiveBody(receiver))
    }

    /// Streams now.
    pub(crate) fn count(&self) -> usize {
        self.lock().open.iter().filter(|stream| !stream.is_closed()).count()
    }

    /// Requests refused because of [`STREAMS_MAX`].
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Samples taken.
    pub(crate) fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    /// Samples for the open streams, for as long as the process lives.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.added.notified().await;
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut number = 0u32;
            loop {
                ticks.tick().await;
                if self.count() == 0 {
                    break;
                }
                let complete = number.is_multiple_of(SLOW_EVERY);
                number = number.wrapping_add(1);
                let program = Arc::clone(&self.program);
                let sample = move || event("sample", &program.sample(complete));
                // A sample that failed is missing; the next one follows.
                if let Ok(sample) = tokio::task::spawn_blocking(sample).await {
                    self.samples.fetch_add(1, Ordering::Relaxed);
                    self.send(&sample, complete);
                }
            }
            self.lock().complete = None;
        }
    }

    fn send(&self, sample: &Bytes, complete: bool) {
        let mut streams = self.lock();
        streams.open.retain(|stream| !stream.is_closed());
        for stream in &streams.open {
            // A client that has not taken the last ones misses this one.
            let _ = stream.try_send(sample.clone());
        }
        if complete {
            streams.complete = Some(sample.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first event of a stream: what the page shows, and what its user may do.
pub(crate) fn page_event(page: &Value, may_change: bool, may_publish: bool) -> Value {
    json!({ "page": page, "may_change": may_change, "may_publish": may_publish })
}

/// An event. JSON has no line breaks outside strings, and escapes those in strings.
fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests;
