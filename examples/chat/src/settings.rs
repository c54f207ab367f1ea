//! [`Settings`]: the command line.

use std::net::SocketAddr;

use clap::Parser;

/// A distributed chat, with gowebsocket's protocol
#[derive(Parser, Clone, Debug)]
#[command(name = "chat", max_term_width = 80)]
pub(crate) struct Settings {
    /// Address for WebSockets, HTTP and the page; may be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8089")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Threads with connections [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<usize>,
    /// Application ids; users see those of their own
    #[arg(long, value_name = "IDS", value_delimiter = ',', default_value = "101,102,103,104")]
    pub(crate) apps: Vec<u32>,
    /// Sockets at most [default: as the descriptor limit allows]
    #[arg(long, value_name = "N")]
    pub(crate) sockets: Option<u64>,
    /// A descriptor table for each worker: more sockets than the limit of descriptors, with
    /// --sockets N; a node alone
    #[arg(long, requires = "sockets", conflicts_with_all = ["redis", "nats"])]
    pub(crate) private_tables: bool,
    /// Close sockets that are silent for this long, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 360, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle_seconds: u32,
    /// A user is online for this long after a heartbeat, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    pub(crate) online_seconds: u32,
    /// Announce enters and exits in applications of at most this many users; 0: never
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) announce_users: u64,
    /// Deliveries of announcements per second and application; beyond, they are sent together
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) announce_rate: u64,
    /// Message ids remembered for 12 hours, at 44 bytes each; beyond, the oldest are forgotten
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) message_ids: usize,
    /// Users in an answer of /user/list; userCount counts all
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) list_users: usize,
    /// Nodes at the same Redis are one chat: redis://HOST:PORT
    #[arg(long, value_name = "URL", conflicts_with = "nats")]
    pub(crate) redis: Option<String>,
    /// Nodes at the same NATS are one chat: nats://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(crate) nats: Option<String>,
    /// Prefix of the channels at the broker: a chat of its own
    #[arg(long, value_name = "PREFIX", default_value = "chat")]
    pub(crate) prefix: String,
    /// A node that is silent for this long is gone, with its users, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(250..))]
    pub(crate) node_ttl_ms: u64,
    /// Token that logins must have as serviceToken [default: any]
    #[arg(long, value_name = "TOKEN", env = "CHAT_SERVICE_TOKEN", hide_env_values = true)]
    pub(crate) service_token: Option<String>,
    /// Key of the HTTP API, as Authorization: Bearer KEY [default: none]
    #[arg(long, value_name = "KEY", env = "CHAT_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
}
