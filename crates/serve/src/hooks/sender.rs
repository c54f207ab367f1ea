//! The threads that post batches to the receivers, one for each.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use engine::sys::process::now_ns;
use hyper::header::{HeaderName, HeaderValue};
use tokio::runtime::{Builder, Runtime};
use tracing::{info, warn};

use super::Hooks;
use super::batcher::{Batch, BatcherStats, Next};
use crate::app::PostUrl;
use crate::app::client::{CallError, HttpClient};
use crate::signature::{self, Signer};

/// Longest answer that is read, in bytes. Nothing of it is used but for the log.
const ANSWER_BYTES: usize = 64 * 1024;
/// How long a thread waits at most.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Shortest time between two lines about one receiver, in nanoseconds.
const LOG_INTERVAL_NS: u64 = 10_000_000_000;
/// The header with the id of a batch, which is also in its body.
const BATCH: HeaderName = HeaderName::from_static("x-standfast-batch");

/// One receiver, as its thread knows it.
struct Sender {
    hooks: Arc<Hooks>,
    /// Its position among the receivers.
    at: usize,
    url: PostUrl,
    client: HttpClient,
    signer: Option<Signer>,
    runtime: Runtime,
    log: ReceiverLog,
}

/// What was not logged yet.
#[derive(Default)]
struct ReceiverLog {
    failing: bool,
    failed: u64,
    dropped: u64,
    next_ns: u64,
}

/// Starts the threads.
///
/// # Errors
/// A thread or a runtime cannot be started.
pub(crate) fn start(hooks: &Arc<Hooks>) -> io::Result<()> {
    let config = &hooks.config;
    for (at, (url, tls)) in config.urls.iter().zip(&config.tls).enumerate() {
        info!("webhooks to {url}");
        let mut sender = Sender {
            hooks: Arc::clone(hooks),
            at,
            url: url.clone(),
            client: HttpClient::new(&url.host, tls.clone(), ANSWER_BYTES),
            signer: config.secret.as_ref().map(Signer::new),
            runtime: Builder::new_current_thread().enable_io().enable_time().build()?,
            log: ReceiverLog::default(),
        };
        let thread = std::thread::Builder::new().name("webhooks".to_owned());
        thread.spawn(move || sender.run())?;
    }
    if !config.urls.is_empty() && config.secret.is_none() {
        warn!("webhooks are not signed: set --webhook-secret or --secret");
    }
    Ok(())
}

impl Sender {
    fn run(&mut self) {
        loop {
            let batch = self.next_batch();
            let began_ns = now_ns();
            let sent = self.send(&batch);
            let now_ns = now_ns();
            let mut inner = self.hooks.lock();
            let Some(receiver) = inner.receivers.get_mut(self.at) else { return };
            receiver.took.record(now_ns.saturating_sub(began_ns));
            match &sent {
                Ok(()) => receiver.batcher.delivered(),
                Err(_) => receiver.batcher.failed(now_ns, random()),
            }
            let stats = receiver.batcher.stats();
            drop(inner);
            self.log.write(&self.url, now_ns, sent.err(), stats);
        }
    }

    /// Waits for the next batch.
    fn next_batch(&mut self) -> Arc<Batch> {
        let hooks = Arc::clone(&self.hooks);
        let mut inner = hooks.lock();
        loop {
            let now_ns = now_ns();
            hooks.report_vacancies(&mut inner, now_ns);
            let vacancy_ns = inner.vacancies.due_ns();
            let Some(receiver) = inner.receivers.get_mut(self.at) else {
                // There is one for each thread.
                inner = hooks.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            receiver.looks_ns = None;
            let next = receiver.batcher.next(now_ns);
            let stats = receiver.batcher.stats();
            self.log.write_dropped(&self.url, now_ns, stats);
            match next {
                Next::Send(batch) => {
                    // A vacancy may be the event that another receiver waits for.
                    hooks.notify(&inner);
                    return batch;
                }
                Next::Wait(until_ns) => {
                    let longest_ns = now_ns + LONGEST_WAIT.as_nanos() as u64;
                    let until_ns = until_ns.into_iter().chain(vacancy_ns).min();
                    let until_ns = until_ns.unwrap_or(longest_ns).min(longest_ns);
                    receiver.looks_ns = Some(until_ns);
                    hooks.notify(&inner);
                    let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns));
                    let waited = hooks.changed.wait_timeout(inner, wait);
                    inner = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Posts a batch. The error is for the log.
    fn send(&self, batch: &Batch) -> Result<(), String> {
        let id = format!("{}-{}-{}", self.hooks.epoch, self.at, batch.number);
        let body = body(&id, batch);
        let unix_s = self.hooks.clock.unix_ms(now_ns()) / 1000;
        let signed = self.signer.as_ref().and_then(|signer| signer.header(unix_s, body.as_bytes()));
        let timeout = self.hooks.config.timeout;
        let sending = async {
            let mut request = self.client.post(&self.url.path, body)?;
            let headers = request.headers_mut();
            headers.extend(HeaderValue::from_str(&id).ok().map(|id| (BATCH, id)));
            headers.extend(signed.map(|signed| (signature::HEADER, signed)));
            self.client.send(request).await
        };
        let sent = self.runtime.block_on(async { tokio::time::timeout(timeout, sending).await });
        match sent {
            Ok(Ok(answer)) if answer.status.is_success() => Ok(()),
            Ok(Ok(answer)) => Err(answer.shown()),
            Ok(Err(error)) => Err(CallError::why(&error).to_owned()),
            Err(_) => Err(format!("no answer within {timeout:?}")),
        }
    }
}

impl ReceiverLog {
    fn write(&mut self, url: &PostUrl, now_ns: u64, error: Option<String>, stats: BatcherStats) {
        match error {
            None if std::mem::take(&mut self.failing) => {
                info!("webhooks accepted again: {url}");
                self.next_ns = 0;
            }
            None => {}
            Some(why) => {
                self.failed += 1;
                if !self.failing || now_ns >= self.next_ns {
                    let times = std::mem::take(&mut self.failed);
                    warn!(times, "webhook not accepted: {url}: {why}; it is sent again");
                    self.next_ns = now_ns.saturating_add(LOG_INTERVAL_NS);
                }
                self.failing = true;
            }
        }
        self.write_dropped(url, now_ns, stats);
    }

    fn write_dropped(&mut self, url: &PostUrl, now_ns: u64, stats: BatcherStats) {
        let dropped = stats.dropped() - self.dropped;
        if dropped > 0 && (self.dropped == 0 || now_ns >= self.next_ns) {
            warn!("webhook events dropped: {dropped} for {url}: it accepts too few or none");
            self.dropped = stats.dropped();
            self.next_ns = now_ns.saturating_add(LOG_INTERVAL_NS);
        }
    }
}

/// The body of a batch.
fn body(id: &str, batch: &Batch) -> String {
    let bytes: usize = batch.events.iter().map(|event| event.len() + 1).sum();
    let mut body = String::with_capacity(bytes + 128);
    body.push_str(&format!(r#"{{"id":"{id}","dropped":{},"events":["#, batch.dropped));
    for (at, event) in batch.events.iter().enumerate() {
        if at > 0 {
            body.push(',');
        }
        body.push_str(event);
    }
    body.push_str("]}");
    body
}

/// Without random numbers of the system attempts are not spread.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rand::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_an_object_with_its_events_in_order() {
        let events = [r#"{"id":"e-1"}"#.into(), r#"{"id":"e-2"}"#.into()];
        let batch = Batch { number: 3, events: events.into(), dropped: 7 };
        let json: serde_json::Value = serde_json::from_str(&body("e-0-3", &batch)).unwrap();
        let expected = serde_json::json!({
            "id": "e-0-3", "dropped": 7, "events": [{"id": "e-1"}, {"id": "e-2"}],
        });
        assert_eq!(json, expected);
    }
}
