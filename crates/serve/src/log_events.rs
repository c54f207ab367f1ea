//! Log events of workers. A worker writes no log: it posts an event without waiting, and the control
//! plane writes it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tracing::warn;

/// Records that may wait to be written; further ones are only counted.
const RECORDS_MAX: usize = 1024;
/// Different records written at a time.
const WRITTEN_MAX: usize = 10;

/// An event that a worker reports.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Record {
    /// A page of this origin was refused.
    OriginRefused(Box<str>),
    /// A request on loopback had this Host, which is not this machine's.
    HostRefused(Box<str>),
}

/// The workers' end of the queue. Posting makes no system call on a descriptor.
#[derive(Clone)]
pub(crate) struct Recorder(SyncSender<Record>);

/// Where the control plane reads.
pub(crate) struct Records(Receiver<Record>);

pub(crate) fn channel() -> (Recorder, Records) {
    let (sender, receiver) = sync_channel(RECORDS_MAX);
    (Recorder(sender), Records(receiver))
}

impl Recorder {
    /// Posts a record unless too many wait: counters know of it anyway.
    pub(crate) fn post(&self, record: Record) {
        let _ = self.0.try_send(record);
    }
}

impl Records {
    /// Writes what was posted since the last call, equal records once with their number.
    pub(crate) fn write(&self) {
        let mut counted = BTreeMap::new();
        for record in self.0.try_iter().take(RECORDS_MAX) {
            *counted.entry(record).or_insert(0u64) += 1;
        }
        let different = counted.len();
        for (record, times) in counted.into_iter().take(WRITTEN_MAX) {
            match record {
                Record::OriginRefused(origin) => warn!(
                    times,
                    "refused a page of origin {origin}; to let it in, add --allow-origin {origin}"
                ),
                Record::HostRefused(host) => warn!(
                    times,
                    "refused a request for {host}, which is no name of this machine; behind a \
                     proxy, add --allow-origin https://{host}"
                ),
            }
        }
        if different > WRITTEN_MAX {
            warn!("and {} further names", different - WRITTEN_MAX);
        }
    }
}
