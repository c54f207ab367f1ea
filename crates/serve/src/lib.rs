//! The WebSocket server, `standfast serve`.
//!
//! [`start`] opens the listeners, starts the engine's workers with a `handler::ServeHandler` each,
//! then the control plane. `/echo` returns each message, `/topics/NAME` subscribes its client to a
//! topic, `/cable` is Action Cable, `/events` sends server-sent events, `/health` answers ok or
//! draining. Publishing over HTTP and all detail are on the admin listener.
//!
//! The crate parses no command line and no file (the executable does), makes no system call (the
//! engine does), and knows no protocol beyond its adapters in `protocols`.

mod adapters;
mod allowed_host;
mod app;
mod auth;
mod broadcast;
mod broadcast_worker;
mod config;
mod confirmation;
mod control;
mod handler;
mod hooks;
mod identifiers;
mod log_events;
mod origin;
mod path;
mod presence;
mod protocols;
mod publish;
mod pubsub;
mod rails_identity;
mod requested;
mod resume;
mod retry_queue;
mod server;
mod session;
mod session_index;
mod shared;
mod sid;
mod signature;
mod start;

pub use admin::{Address, Server};
pub use brokers::redis::{ClusterTransport, RedisTransport};
pub use brokers::{RedisUrl, ServerAddress};
pub use engine::{
    AdmissionLimits, Compression, HttpsRedirect, Limits, Network, Prefix, Proxies, ProxyProtocol,
    SlowConsumer, TlsClient, TlsError, TlsTrust,
};
pub use wire::http::{ForwardedBy, PlainPath};

pub use crate::allowed_host::AllowedHost;
pub use crate::app::{
    AppConfig, AuthUrl, DisconnectMode, PostUrl, PostUrlError, Target, TargetError,
};
pub use crate::auth::{
    Auth, Credentials, KeySet, Refusal, Secret, StreamKind, Times, VerifiedToken,
};
pub use crate::config::{
    Channels, Config, HistoryConfig, HistoryPlace, Live, LongPolling, PresenceConfig,
};
pub use crate::hooks::{EventKinds, WebhookConfig};
pub use crate::origin::Origin;
pub use crate::path::TOPIC_BYTES_MAX;
pub use crate::pubsub::{PubsubConfig, PubsubTransport};
pub use crate::server::Running;
pub use crate::start::{StartError, start};
