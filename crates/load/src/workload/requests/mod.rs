//! Requests and answers: HTTP/1.1, plain TCP and private protocols. [`crate::drive`] runs WebSockets.
//!
//! [`drive_requests`] distributes users over workers. A [`Driver`] is the protocol of a connection, a
//! [`Script`] decides what its user sends; [`Requests`] sets the number of users and when they send.
//! Each request ends in exactly one [`Answer`] or [`Failure`].
//!
//! With [`Driver::PUSHES`] a server may also push messages: they go to the script, whose user may be
//! waiting for one. [`WebSocket`], [`Cable`] and [`Web`] are such drivers.
//!
//! Runs of WebSockets or Action Cable alone use [`crate::Run`], which counts connections instead. Both
//! use the engine's workers.

pub(crate) mod answer;
pub(crate) mod arrivals;
pub(crate) mod calls;
pub(crate) mod checked;
pub(crate) mod coding;
pub(crate) mod config;
pub(crate) mod conversation;
pub(crate) mod drive;
pub(crate) mod ending;
pub(crate) mod exchange;
pub(crate) mod failing;
pub(crate) mod flights;
pub(crate) mod generators;
pub(crate) mod link;
pub(crate) mod parallel;
pub(crate) mod pool;
pub(crate) mod pushes;
pub(crate) mod queued;
pub(crate) mod rare;
pub(crate) mod request;
pub(crate) mod requester;
pub(crate) mod route;
pub(crate) mod schedule;
pub(crate) mod script;
pub(crate) mod stream_calls;
pub(crate) mod streams;
pub(crate) mod timeouts;
pub(crate) mod trailers;
pub(crate) mod user;
mod wakes;

pub use self::answer::{Answer, Awaited, Times, Wants};
pub use self::calls::Calls;
pub use self::checked::{AnswerChecks, Checked};
pub use self::config::{Arrivals, Pace, Requests};
pub use self::conversation::{MessageCheck, MessagePace, Messages};
pub use self::drive::drive_requests;
pub use self::generators::{Gate, Generators};
pub use self::request::{HttpRequest, Kind, Request};
pub use self::script::{Accepted, Fixed, NextMessage, Part, Script, SocketEnd, Step};
pub use self::stream_calls::StreamCalls;
pub use crate::outcome::failure::Failure;
pub use crate::outcome::request_metrics::RequestSnapshot;
pub use crate::transport::cable::Cable;
pub use crate::transport::driver::{
    CompleteAnswer, Driver, Opened, Push, Received, StreamEvent, Window, Writable,
};
pub use crate::transport::grpc::{Grpc, GrpcStream};
pub use crate::transport::grpc_web::{GrpcWeb, GrpcWebStream};
pub use crate::transport::http1::Http1;
pub use crate::transport::http2::Http2;
pub use crate::transport::http2_grpc::Http2Grpc;
pub use crate::transport::target_table::{REDIRECT_HOSTS_MAX, TargetTable};
pub use crate::transport::tcp::{Expect, Prefix, Tcp};
pub use crate::transport::web::Web;
pub use crate::transport::websocket::WebSocket;
