//! What is sent and when: pacing, stages, heartbeats, echoes, fan-outs, churn, requests and scenarios.

pub(crate) mod churn;
pub(crate) mod client;
pub(crate) mod echo;
pub(crate) mod fanout;
pub(crate) mod heartbeat;
pub(crate) mod pacer;
pub(crate) mod parts;
pub mod requests;
pub mod scenario;
pub(crate) mod shares;
pub(crate) mod socket;
pub mod stages;
pub mod subscribers;
pub(crate) mod sweep;
pub(crate) mod validator;
