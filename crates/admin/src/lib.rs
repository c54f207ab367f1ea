//! The control plane of a server: the life of its workers ([`Ground`], [`Service`]), and an admin
//! listener with metrics, statistics, connections and publishing, on a tokio runtime of its own in a
//! thread of its own.
//!
//! What it is not: it knows no topic and no protocol. A program ([`Program`]: `serve`, `proxy`)
//! supplies what is told; this crate owns the listener, who may ask, the sizes and the form
//! of answers. It never waits for a worker on the runtime's thread, and no worker ever wakes a
//! tokio task: a worker's descriptors are not this thread's.

mod address;
mod auth;
mod bootstrap;
mod listener;
mod local;
mod memory_trim;
mod memory_watch;
mod metrics;
mod process;
mod reply;
mod routes;
mod service;

use serde_json::Value;

pub use crate::address::Address;
pub use crate::auth::bearer;
pub use crate::bootstrap::{Ground, GroundError, Wanted};
pub use crate::listener::{Config, Running, StartError, listen_unix, start};
pub use crate::local::means_this_machine;
pub use crate::metrics::{Exposition, Kind, engine_metrics, engine_stats};
pub use crate::process::{cpu_seconds, descriptors, rss_bytes};
pub use crate::reply::Reply;
pub use crate::service::{Life, Server, Service};

/// What the admin listener tells and takes on behalf of a program. All calls but
/// [`Program::connections`] and [`Program::api`] answer at once. A program has what it says it has:
/// by itself it publishes nothing and lists nothing.
pub trait Program: Send + Sync + 'static {
    /// False while the program drains: load balancers should send nobody any more.
    fn healthy(&self) -> bool;

    /// Writes every metric.
    fn metrics(&self, exposition: &mut Exposition);

    /// The same as one JSON object, with a part per worker.
    fn stats(&self) -> Value;

    /// One page of connections. It may block for a second: it is called on a thread where that
    /// hinders nobody.
    fn connections(&self, _page: &Page) -> Reply {
        Reply::not_found(self.paths())
    }

    /// A body posted to `/api/publish`.
    fn publish(&self, _body: &[u8]) -> Reply {
        Reply::not_found(self.paths())
    }

    /// A body posted to `/_broadcast`, in the form of AnyCable's server.
    fn broadcast(&self, _body: &[u8]) -> Reply {
        Reply::not_found(self.paths())
    }

    /// A body posted to `/api/disconnect`.
    fn disconnect(&self, _body: &[u8]) -> Reply {
        Reply::not_found(self.paths())
    }

    /// Whether this entrance takes a key even where the listener has none.
    fn is_keyed(&self, _entrance: Entrance) -> bool {
        false
    }

    /// Whether this key, which need not be the admin key, opens this entrance.
    fn opens(&self, _entrance: Entrance, _key: &[u8]) -> bool {
        false
    }

    /// A request at a path that is none of the listener's own; nothing where the program has no
    /// such path. It may block for a second, like [`Program::connections`].
    fn api(&self, _asked: &Asked<'_>) -> Option<Reply> {
        None
    }

    /// The paths there are, for whoever asked for another.
    fn paths(&self) -> &'static str {
        "/metrics, /health, /_broadcast, /api/publish, /api/disconnect, /api/stats and \
         /api/connections"
    }
}

/// A request for the program's own API.
#[derive(Copy, Clone, Debug)]
pub struct Asked<'r> {
    /// The method.
    pub method: &'r str,
    /// The path.
    pub path: &'r str,
    /// What follows the question mark, or nothing.
    pub query: &'r str,
    /// The body.
    pub body: &'r [u8],
}

impl<'r> Asked<'r> {
    /// The value of a parameter of the query, as it stands there: what this API takes needs no
    /// escapes.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&'r str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find_map(|(key, value)| (key == name).then_some(value))
    }
}

/// Where applications may come in with a key of their own; the admin key opens every door.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// `/_broadcast`.
    Broadcast,
    /// `/api/publish` and `/api/disconnect`.
    Api,
}

impl Entrance {
    fn of(path: &str) -> Option<Self> {
        match path {
            "/_broadcast" => Some(Entrance::Broadcast),
            "/api/publish" | "/api/disconnect" => Some(Entrance::Api),
            _ => None,
        }
    }
}

/// Which connections to list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// At most so many, 1 to [`Page::LIMIT_MAX`].
    pub limit: usize,
    /// Those after this connection, in the order of their numbers; 0 begins.
    pub after: u64,
}

impl Page {
    /// Connections in a page when nothing was said.
    pub const LIMIT: usize = 100;
    /// The longest page: each entry costs its worker a system call.
    pub const LIMIT_MAX: usize = 1000;
}
