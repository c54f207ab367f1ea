//! The load generator: opens connections, sends traffic, and measures.
//!
//! [`Run`] controls one run: it opens connections on its own [`engine::Workers`], holds them with
//! heartbeats, sends and checks messages, counts the publications that each receiver gets, and
//! returns an [`Outcome`]. [`drive`] runs the phases of a [`Config`]; [`control`] executes commands of
//! another process. [`radius`] is RADIUS over UDP. [`requests`] does the same for requests and answers, over HTTP or a private
//! protocol.
//!
//! It reads no command line, prints nothing, and does not depend on `serve`. It checks every message
//! at the receiving socket: lost, duplicated, reordered, corrupted and late are counts, not
//! estimates.

mod config;
pub mod control;
mod delivery;
mod drive;
pub mod files;
pub mod grpc;
mod outcome;
pub mod radius;
mod run;
mod transport;
mod workload;

pub use crate::config::{Cable, Churn, Close, Config, Connect, Content, Echo, Fanout, Publish};
pub use crate::delivery::checker::DeliveryCounts;
pub use crate::delivery::publication;
pub use crate::delivery::spread::Times;
pub use crate::drive::{Counts, Progress, Published, Row, drive};
pub use crate::outcome::bins::Bin;
pub use crate::outcome::cable::CableSummary;
pub use crate::outcome::cause::Cause;
pub use crate::outcome::churn::ChurnSummary;
pub use crate::outcome::generator::{Generator, Watched};
pub use crate::outcome::goaways::GoAwaySummary;
pub use crate::outcome::histograms::Histograms;
pub use crate::outcome::judge::{
    INCOMPLETE, Metric, Sign, Threshold, ThresholdResult, Verdict, judge, last_line,
};
pub use crate::outcome::latency_text::Bars;
pub use crate::outcome::messages::MessageSummary;
pub use crate::outcome::metrics::Snapshot;
pub use crate::outcome::recorder::{Buckets, Latency, Recorder, Series};
pub use crate::outcome::run_config::{PaceConfig, RunConfig};
pub use crate::outcome::samples::{Sample, SampleLatency, SampleSeries, Usage};
pub use crate::outcome::sections::{
    BroadcastSummary, Connections, EchoSummary, FanoutSummary, HeartbeatSummary, Quantiles,
    Receiver, RequestCounts,
};
pub use crate::outcome::selection::{Selection, Selector};
pub use crate::outcome::shared_row::{SharedRow, SharedRows};
pub use crate::outcome::stages::StageSummary;
pub use crate::outcome::{OUTCOME_VERSION, Outcome};
pub use crate::run::{ENDPOINTS_MAX, Run, StartError};
pub use crate::transport::allowed::{allow_only, refused};
pub use crate::transport::connect_options::{
    ConnectOptions, Dialect, Proxy, Resolve, Route, basic,
};
pub use crate::transport::endpoint::Endpoint;
pub use crate::transport::retry::{Growth, Retry};
pub use crate::transport::tunnel::Tunnel;
pub use crate::workload::fanout::http::HttpPublish;
pub use crate::workload::validator::{AnswerVerdict, Validator};
pub use crate::workload::{requests, scenario, stages, subscribers};
