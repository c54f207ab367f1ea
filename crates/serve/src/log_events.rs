//! Log events of workers. A worker writes no log: it posts an event without waiting, and the control
//! plane writes it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tracing::warn;

/// Events that may wait to be written; further ones are only counted.
const EVENTS_MAX: usize = 1024;
/// Distinct events written at a time.
const WRITTEN_MAX: usize = 10;

/// An event that a worker reports, with text of the client as [`admin::log::shown`] makes it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogEvent {
    /// A web page of this origin was refused.
    OriginRefused(Box<str>),
    /// A request on loopback had this Host, which is not this machine's.
    HostRefused(Box<str>),
    /// A request had this Host, which is no allowed name.
    HostNotAllowed(Box<str>),
}

/// The workers' end of the queue. Posting makes no system call on a descriptor.
#[derive(Clone)]
pub(crate) struct LogSender(SyncSender<LogEvent>);

/// The control plane's end of the queue.
pub(crate) struct LogReceiver(Receiver<LogEvent>);

pub(crate) fn channel() -> (LogSender, LogReceiver) {
    let (sender, receiver) = sync_channel(EVENTS_MAX);
    (LogSender(sender), LogReceiver(receiver))
}

impl LogSender {
    /// Posts an event unless the queue is full: counters have counted it anyway.
    pub(crate) fn post(&self, record: LogEvent) {
        let _ = self.0.try_send(record);
    }
}

impl LogReceiver {
    /// Writes the events since the last call, equal ones once with their number.
    pub(crate) fn write(&self) {
        let mut counted = BTreeMap::new();
        for record in self.0.try_iter().take(EVENTS_MAX) {
            *counted.entry(record).or_insert(0u64) += 1;
        }
        let different = counted.len();
        for (record, times) in counted.into_iter().take(WRITTEN_MAX) {
            match record {
                LogEvent::OriginRefused(origin) => warn!(
                    times,
                    "origin refused: {origin}; to allow it, add --allow-origin {origin}"
                ),
                LogEvent::HostNotAllowed(host) => warn!(
                    times,
                    "host refused: {host} is not an allowed name; to allow it, add --allow-host \
                     {host} without its port"
                ),
                LogEvent::HostRefused(host) => warn!(
                    times,
                    "host refused: {host} is not this machine; behind a proxy, add \
                     --allow-origin https://{host}"
                ),
            }
        }
        if different > WRITTEN_MAX {
            warn!("and {} other origins or hosts", different - WRITTEN_MAX);
        }
    }
}
