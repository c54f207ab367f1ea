//! How bytes become sessions: sources and destinations, connecting and retrying, and the protocols
//! of connections. [`connector`] opens the WebSockets of [`crate::Run`]; a [`driver::Driver`] is the
//! protocol of a connection of [`crate::requests`].

pub(crate) mod allowed;
pub(crate) mod cable;
pub(crate) mod cable_client;
pub(crate) mod closing;
pub(crate) mod connect_options;
pub(crate) mod connector;
pub(crate) mod deflate;
pub(crate) mod driver;
pub(crate) mod endpoint;
pub(crate) mod fields;
pub(crate) mod first_contact;
pub(crate) mod grpc;
pub(crate) mod grpc_web;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod http2_grpc;
pub(crate) mod in_flight;
pub(crate) mod open_call;
pub(crate) mod retry;
pub(crate) mod sources;
pub(crate) mod streams;
pub(crate) mod target_table;
pub(crate) mod tcp;
pub(crate) mod tunnel;
pub(crate) mod tunnels;
pub(crate) mod web;
pub(crate) mod websocket;
