//! [`AppConfig`]: how the application is called.

use std::time::Duration;

use engine::TlsClient;

use super::target::{PostUrl, Target};
use crate::auth::Secret;

/// For which connections the application is called when they end.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum DisconnectMode {
    /// Those that it was called for.
    #[default]
    Auto,
    /// All that it could have been called for.
    Always,
    /// None.
    Never,
}

/// Where the application is asked about clients of plain topics.
#[derive(Clone, Debug)]
pub struct AuthUrl {
    /// Where it is.
    pub url: PostUrl,
    /// TLS to it, if it has TLS.
    pub tls: Option<TlsClient>,
    /// Signs the calls.
    pub secret: Option<Secret>,
    /// Memory of the decisions that may be used again, in bytes. Default 4 MiB.
    pub decisions_bytes: usize,
}

/// How the application is called. Taken at start only.
#[derive(Clone, Debug)]
pub struct AppConfig {
    /// Where it is called about clients of Action Cable, if it is.
    pub target: Option<Target>,
    /// Where it is asked about clients of plain topics, if it is.
    pub auth: Option<AuthUrl>,
    /// TLS to the target, if it has TLS.
    pub tls: Option<TlsClient>,
    /// The bearer key of HTTP RPC. By default derived from the secret.
    pub key: Option<Secret>,
    /// Calls at a time; by default as many as the application answers without delay, 5 to 100.
    pub concurrency: Option<u32>,
    /// Time for a call, once it has begun. Default 3 s.
    pub timeout: Duration,
    /// Calls that may wait. Default 100,000.
    pub queue: usize,
    /// Their memory, in bytes, and as much for disconnects that wait. Default 64 MiB.
    pub queue_bytes: usize,
    /// Time that a call may wait. Default 30 s.
    pub queue_wait: Duration,
    /// Time after which clients are supposed to give up: the newest call is next from then on.
    pub patience: Duration,
    /// Longest answer, in bytes. Default 1 MiB.
    pub reply_bytes: usize,
    /// Headers of the handshake that calls repeat, in lower case. Default `cookie`.
    pub proxy_headers: Vec<Box<str>>,
    /// Cookies in them; by default all.
    pub proxy_cookies: Vec<Box<str>>,
    /// For which connections the application is called when they end.
    pub disconnect_mode: DisconnectMode,
    /// Such calls per second. Default 100.
    pub disconnect_rate: u32,
    /// Such calls that may wait; then the oldest are dropped. Default 4096.
    pub disconnect_backlog: usize,
}

impl Default for AppConfig {
    fn default() -> Self {
        AppConfig::new()
    }
}

impl AppConfig {
    /// The defaults for an application that is called nowhere.
    #[must_use]
    pub fn new() -> Self {
        AppConfig {
            target: None,
            auth: None,
            tls: None,
            key: None,
            concurrency: None,
            timeout: Duration::from_secs(3),
            queue: 100_000,
            queue_bytes: 64 << 20,
            queue_wait: Duration::from_secs(30),
            patience: Duration::from_secs(6),
            reply_bytes: 1 << 20,
            proxy_headers: vec!["cookie".into()],
            proxy_cookies: Vec::new(),
            disconnect_mode: DisconnectMode::Auto,
            disconnect_rate: 100,
            disconnect_backlog: 4096,
        }
    }
}
