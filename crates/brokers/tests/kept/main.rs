//! History that brokers keep: one suite for what a transport promises (`contract.rs`), run against a model and real
//! servers, and what a node makes of it (`node.rs`).

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod contract;
mod members;
mod model;
mod nats;
mod node;
mod pages;
mod redis;
mod rejected;
mod servers;
mod support;
