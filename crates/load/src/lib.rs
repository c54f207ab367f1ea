//! The load generator: opens connections, sends traffic, and measures.
//!
//! [`Run`] controls one run: it opens connections on its own [`engine::Workers`], holds them with
//! heartbeats, sends and checks messages, counts the publications that each receiver gets, and
//! returns a [`Summary`]. [`drive`] runs the phases of a [`Config`]; [`control`] executes commands of
//! another process. [`requests`] does the same for requests and answers, over HTTP or a private
//! protocol.
//!
//! It reads no command line, prints nothing, and does not depend on `serve`. It checks every message
//! at the receiving socket: lost, duplicated, reordered, corrupted and late are counts, not
//! estimates.

pub mod broadcast;
mod cause;
mod churn;
mod client;
mod closing;
mod config;
mod connector;
pub mod control;
mod drive;
mod echo;
mod endpoint;
mod fanout;
mod heartbeat;
mod in_flight;
mod ledger;
mod message;
mod pacer;
mod recorder;
pub mod requests;
mod retry;
mod run;
pub mod scenario;
mod shares;
mod socket;
mod sources;
pub mod stages;
mod subscriber;
mod summary;
mod sweep;
mod tunnels;
mod validator;
mod ways;
mod window;

pub use crate::cause::Cause;
pub use crate::churn::ChurnSummary;
pub use crate::config::{Cable, Churn, Close, Config, Connect, Content, Echo, Fanout, Publish};
pub use crate::drive::{Counts, Progress, Published, Row, RunOutcome, drive};
pub use crate::endpoint::Endpoint;
pub use crate::fanout::HttpPublish;
pub use crate::fanout::spread::Times;
pub use crate::ledger::Snapshot;
pub use crate::recorder::{Buckets, Latency, Recorder, Series};
pub use crate::retry::{Growth, Retry};
pub use crate::run::{ENDPOINTS_MAX, Run, StartError};
pub use crate::subscriber::CableSummary;
pub use crate::summary::{
    BroadcastSummary, Connections, EchoSummary, FanoutSummary, Figures, HeartbeatSummary, Receiver,
    Summary,
};
pub use crate::validator::{Validator, Verdict};
pub use crate::ways::{ConnectOptions, Proxy, Resolve, Route, basic};
