//! [`PendingEntry`]: the access log entry of a request in progress, kept from its head to its end.
//! Those of tunnels are kept apart from the connections ([`PendingEntries`]), so that without an
//! access log they cost no memory.

use std::collections::HashMap;
use std::net::IpAddr;

use admin::log;
use engine::{ConnId, RejectedRequest};
use wire::http::Request;

/// Maximum length of a field that is kept, in bytes.
const PART_BYTES_MAX: usize = 1024;

/// The access log entry of a request in progress.
#[derive(Default)]
pub(crate) struct PendingEntry {
    pub(crate) began_ns: u64,
    pub(crate) client: Option<IpAddr>,
    /// Empty, as the host and the target, if the head was unreadable.
    pub(crate) method: Box<str>,
    pub(crate) host: Box<str>,
    pub(crate) target: Box<str>,
    pub(crate) agent: Option<Box<str>>,
    pub(crate) referer: Option<Box<str>>,
    /// The request id, if it has one.
    pub(crate) request_id: Option<Box<str>>,
    /// The pool, if a route was found.
    pub(crate) pool: Option<Box<str>>,
    /// The minor version of HTTP/1.
    pub(crate) version: u8,
    /// The status of the response; 0 until it is known.
    pub(crate) status: u16,
}

impl PendingEntry {
    pub(crate) fn new(
        request: &Request<'_, '_>,
        client: Option<IpAddr>,
        pool: Option<&str>,
        now_ns: u64,
    ) -> PendingEntry {
        let header = |name| request.header(name).map(cut);
        PendingEntry {
            began_ns: now_ns,
            client,
            method: cut(request.method.as_bytes()),
            host: log::cut(request.authority().unwrap_or_default(), log::SHOWN_CHARS_MAX).0.into(),
            target: cut(request.target.as_bytes()),
            agent: header("user-agent"),
            referer: header("referer"),
            request_id: None,
            pool: pool.map(Into::into),
            version: request.version,
            status: 0,
        }
    }

    /// The entry of a request that the engine has refused.
    pub(crate) fn refused(
        refused: &RejectedRequest<'_, '_>,
        client: Option<IpAddr>,
        began_ns: u64,
    ) -> PendingEntry {
        let note = match refused.head {
            Some(request) => PendingEntry::new(request, client, None, began_ns),
            None => PendingEntry { client, began_ns, ..PendingEntry::default() },
        };
        PendingEntry { status: refused.status, ..note }
    }
}

fn cut(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(bytes.get(..PART_BYTES_MAX).unwrap_or(bytes)).into()
}

/// The entries of a worker's tunnels, by client connection.
#[derive(Default)]
pub(crate) struct PendingEntries(HashMap<ConnId, Box<PendingEntry>>);

impl PendingEntries {
    pub(crate) fn keep(&mut self, client: ConnId, note: Option<Box<PendingEntry>>) {
        if let Some(note) = note {
            self.0.insert(client, note);
        }
    }

    pub(crate) fn take(&mut self, client: ConnId) -> Option<Box<PendingEntry>> {
        if self.0.is_empty() {
            return None;
        }
        let note = self.0.remove(&client);
        if self.0.is_empty() {
            self.0 = HashMap::new();
        }
        note
    }
}
