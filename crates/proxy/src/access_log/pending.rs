//! [`Note`]: what the access log tells of a request, kept from its head to its end. Of tunnels they
//! stand beside the connections ([`Notes`]), so that without an access log nothing is kept.

use std::collections::HashMap;
use std::net::IpAddr;

use engine::{ConnId, RefusedHead};
use wire::http::Request;

/// Longest part of a head that is kept, in bytes.
const PART_BYTES_MAX: usize = 1024;

/// What is told of a request when it is over.
#[derive(Default)]
pub(crate) struct Note {
    pub(crate) began_ns: u64,
    pub(crate) client: Option<IpAddr>,
    /// Empty, as the host and the target, where no head could be read.
    pub(crate) method: Box<str>,
    pub(crate) host: Box<str>,
    pub(crate) target: Box<str>,
    pub(crate) agent: Option<Box<str>>,
    pub(crate) referer: Option<Box<str>>,
    /// The pool, if a route was found.
    pub(crate) pool: Option<Box<str>>,
    /// Of HTTP/1.
    pub(crate) version: u8,
    /// What was answered, once that is known.
    pub(crate) status: u16,
}

impl Note {
    pub(crate) fn new(
        request: &Request<'_, '_>,
        client: Option<IpAddr>,
        pool: Option<&str>,
        now_ns: u64,
    ) -> Note {
        let header = |name| request.header(name).map(cut);
        Note {
            began_ns: now_ns,
            client,
            method: cut(request.method.as_bytes()),
            host: cut(request.authority().unwrap_or_default()),
            target: cut(request.target.as_bytes()),
            agent: header("user-agent"),
            referer: header("referer"),
            pool: pool.map(Into::into),
            version: request.version,
            status: 0,
        }
    }

    /// Of a request that the engine has refused.
    pub(crate) fn refused(
        refused: &RefusedHead<'_, '_>,
        client: Option<IpAddr>,
        began_ns: u64,
    ) -> Note {
        let note = match refused.head {
            Some(request) => Note::new(request, client, None, began_ns),
            None => Note { client, began_ns, ..Note::default() },
        };
        Note { status: refused.status, ..note }
    }
}

fn cut(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(bytes.get(..PART_BYTES_MAX).unwrap_or(bytes)).into()
}

/// The notes of a worker's tunnels, by the client's connection.
#[derive(Default)]
pub(crate) struct Notes(HashMap<ConnId, Box<Note>>);

impl Notes {
    pub(crate) fn keep(&mut self, client: ConnId, note: Option<Box<Note>>) {
        if let Some(note) = note {
            self.0.insert(client, note);
        }
    }

    pub(crate) fn take(&mut self, client: ConnId) -> Option<Box<Note>> {
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
