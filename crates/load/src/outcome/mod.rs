//! The results of a run: counters and histograms of workers, and the summaries made of them.

pub(crate) mod cable;
pub(crate) mod cause;
pub(crate) mod churn;
pub(crate) mod failure;
pub(crate) mod groups;
pub(crate) mod metrics;
pub(crate) mod recorder;
pub(crate) mod request_metrics;
pub(crate) mod requests;
pub(crate) mod summary;
pub(crate) mod tally;
pub(crate) mod timings;
