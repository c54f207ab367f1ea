//! The built executable, run as its users run it: over real sockets, against foreign clients,
//! with good and bad input. Also the repository's own shape (`floors`).
//!
//! Nothing here links the programs' crates; what a test knows, it learnt through the command
//! line, a socket or `/proc`. Tests wait for conditions, never for a time to pass.

#![allow(clippy::disallowed_methods, reason = "tests run in real time; there is no `Sys` here")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod admin;
mod admin_limits;
mod admin_tls;
mod admission;
mod anycable_env;
mod at_capacity;
mod auth;
mod bad_input;
mod broadcast;
mod cable;
mod cable_actions;
mod cable_load;
mod compression;
mod docs;
mod doctor;
mod doctor_limits;
mod drain_delay;
mod fanout;
mod floors;
mod from_curl;
mod from_har;
mod from_k6;
mod harness;
mod help;
mod hostile;
mod install;
mod interrupted;
mod lifecycle;
mod limits;
mod listeners;
mod load;
mod load_counting;
mod load_hostile;
mod load_http;
mod load_metrics;
mod load_network;
mod load_network_sockets;
mod load_responses;
mod load_saturation;
mod load_thresholds;
mod log_sinks;
mod many_clients;
mod operators;
mod oracle;
mod peers;
mod planning;
mod prove;
mod prove_proxies;
mod proxy;
mod proxy_admin;
mod proxy_backup;
mod proxy_bodies;
mod proxy_checks;
mod proxy_close;
mod proxy_connection_auth;
mod proxy_error_ejection;
mod proxy_faults;
mod proxy_hostile;
mod proxy_identity;
mod proxy_logging;
mod proxy_masses;
mod proxy_metrics;
mod proxy_names;
mod proxy_pools;
mod proxy_restarts;
mod proxy_routes;
mod proxy_timeouts;
mod proxy_turns;
mod proxy_upstreams;
mod report;
mod room;
mod scenario_bodies;
mod scenario_flows;
mod scenario_lists;
mod scenario_passes;
mod scenario_sockets;
mod scenario_thresholds;
mod scenarios;
mod screen;
mod stress;
mod stress_reference;
mod systemd;
mod tls;
mod tls_admission;
mod tls_streams;
mod topic_isolation;
mod topics;
