//! The control plane of a server: starting and stopping its workers ([`Bootstrap`], [`Service`]), and
//! the admin listener with metrics, statistics, connections and publishing. The listener has its own
//! thread with its own tokio runtime.
//!
//! It knows no topics and no protocols. A program ([`Program`]: `serve`, `proxy`) supplies the
//! content; this crate owns the listener, authentication, size limits and the response format. The
//! runtime's thread never waits for a worker, and no worker wakes a tokio task: workers have private
//! descriptor tables.

mod accept;
mod address;
mod auth;
mod body;
mod bootstrap;
mod causes;
mod connections;
mod delivery;
mod invariants;
mod listener;
mod live;
mod local;
pub mod log;
mod memory_trim;
mod memory_watch;
mod metrics;
mod page;
mod process;
mod refusal_log;
mod reply;
mod routes;
mod service;
mod tls;
mod watchdog;
mod workers;

use serde_json::Value;

pub use crate::address::Address;
pub use crate::auth::bearer;
pub use crate::bootstrap::{Bootstrap, BootstrapConfig, BootstrapError, Listener};
pub use crate::causes::{cause, causes_section, engine_causes};
pub use crate::connections::ConnectionLimits;
pub use crate::listener::{AdminListener, Config, StartError, listen_unix, start};
pub use crate::local::means_this_machine;
pub use crate::memory_trim::Held;
pub use crate::metrics::{
    Exposition, Kind, engine_histograms, engine_metrics, engine_stats, network_metrics,
};
pub use crate::page::HEAD as PAGE_HEAD;
pub use crate::process::{cpu_seconds, descriptors, rss_bytes};
pub use crate::reply::{Reply, retry_after};
pub use crate::routes::paths;
pub use crate::service::{Lifecycle, Server, Service, drain_message};
pub use crate::watchdog::Watchdog;
pub use crate::workers::{WorkerColumn, worker_rows, workers_section};

/// The part of the admin listener that a program supplies. All calls but [`Program::connections`],
/// [`Program::api`] and one form of [`Program::publish`] return at once. The defaults answer 404.
pub trait Program: Send + Sync + 'static {
    /// False while the program drains: load balancers should stop sending clients.
    fn healthy(&self) -> bool;

    /// Status and body of `/ready`: 200 if the program can serve clients now.
    fn ready(&self) -> (u16, String) {
        if self.healthy() { (200, "ready\n".to_owned()) } else { (503, "draining\n".to_owned()) }
    }

    /// Writes every metric.
    fn metrics(&self, exposition: &mut Exposition);

    /// The same figures as one JSON object, with a part per worker.
    fn stats(&self) -> Value;

    /// One page of connections. `filter` has the other parameters of the query, decoded; the program
    /// refuses those that it does not know. It may block for a second: it is called on a thread for
    /// blocking calls.
    fn connections(&self, _page: &Page, _filter: &[(String, String)]) -> Reply {
        Reply::not_found(&self.paths())
    }

    /// A body posted to `/api/publish`. To count the receivers it may block for a second: then it is
    /// called on a thread for blocking calls.
    fn publish(&self, _body: &[u8], _count_receivers: bool) -> Reply {
        Reply::not_found(&self.paths())
    }

    /// A body posted to `/_broadcast`, in AnyCable's format.
    fn broadcast(&self, _body: &[u8]) -> Reply {
        Reply::not_found(&self.paths())
    }

    /// A body posted to `/api/disconnect`.
    fn disconnect(&self, _body: &[u8]) -> Reply {
        Reply::not_found(&self.paths())
    }

    /// Whether publishing and ending sessions wait for something outside of the process: then they are called on
    /// a thread for blocking calls.
    fn waits_for_others(&self) -> bool {
        false
    }

    /// Whether this endpoint needs a key even where the listener has none.
    fn requires_key(&self, _entrance: AppEndpoint) -> bool {
        false
    }

    /// Whether this endpoint accepts a key other than the admin key.
    fn accepts_key(&self, _entrance: AppEndpoint, _key: &[u8]) -> bool {
        false
    }

    /// Answers a request for a path that the listener itself does not serve. `None` where the program
    /// does not serve it either. It may block for a second, like [`Program::connections`].
    fn api(&self, _request: &ApiRequest<'_>) -> Option<Reply> {
        None
    }

    /// The sections of the admin page at `/` and how it shows them; `None` if the program has no page.
    /// The form is described in `page/README.md`.
    fn page(&self) -> Option<Value> {
        None
    }

    /// The values of these sections now, and `at`, the time in seconds. With `complete` also those that
    /// cost the workers something. It may block for a second, like [`Program::connections`].
    fn sample(&self, _complete: bool) -> Value {
        Value::Null
    }

    /// The paths that exist, for 404 responses: those of the listener and of [`Program::api`].
    fn paths(&self) -> String {
        paths().collect::<Vec<_>>().join(", ")
    }
}

/// A request for the program's own API.
#[derive(Copy, Clone, Debug)]
pub struct ApiRequest<'r> {
    /// The method.
    pub method: &'r str,
    /// The path.
    pub path: &'r str,
    /// The parameters of the query, decoded.
    pub parameters: &'r [(String, String)],
    /// The body.
    pub body: &'r [u8],
    /// Whether the client proved that it may change the program: it sent the admin key, or opened a
    /// UNIX socket that only its owner can open. A listener on loopback without a key is open to every
    /// user of the machine.
    pub may_change: bool,
}

impl<'r> ApiRequest<'r> {
    /// The value of a query parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&'r str> {
        let found = self.parameters.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Endpoints that accept an application's own key. The admin key is accepted everywhere.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AppEndpoint {
    /// `/_broadcast`.
    Broadcast,
    /// `/api/publish`, `/api/disconnect`, `/api/history/TOPIC` and `/api/presence/…`.
    Api,
}

impl AppEndpoint {
    fn of(path: &str) -> Option<Self> {
        match path {
            "/_broadcast" => Some(AppEndpoint::Broadcast),
            "/api/publish" | "/api/disconnect" => Some(AppEndpoint::Api),
            _ if path.starts_with("/api/history/") => Some(AppEndpoint::Api),
            _ if path.starts_with("/api/presence/") => Some(AppEndpoint::Api),
            _ => None,
        }
    }
}

/// The part of the connection list that is requested.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Connections at most, 1 to [`Page::LIMIT_MAX`].
    pub limit: usize,
    /// List connections after this id, in the order of ids; 0 begins with the first.
    pub after: u64,
}

impl Page {
    /// Connections in a page by default.
    pub const LIMIT: usize = 100;
    /// The longest page: each entry costs its worker a system call.
    pub const LIMIT_MAX: usize = 1000;
}
