//! Servers made with this crate, and tungstenite's client over loopback. Tests wait for conditions, never
//! for a time to pass.

#![allow(clippy::disallowed_methods, reason = "tests run in real time")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod brokers;
mod client;
mod client_links;
mod clients;
mod embedded;
mod exchanges;
mod flow;
mod http;
mod intervals;
mod routes;
mod stopping;
mod testing;
mod timers;
mod tls;
mod topics;
mod upgrades;
