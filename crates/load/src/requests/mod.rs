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

mod answer;
mod cable;
mod config;
mod counts;
mod deflate;
mod drive;
mod driver;
mod exchange;
mod failure;
mod http1;
mod places;
mod pushes;
mod reach;
mod request;
mod requester;
mod schedule;
mod script;
mod summary;
mod tcp;
mod timings;
mod tunnel;
mod user;
mod web;
mod websocket;

pub use self::answer::{Answer, Awaited, Times, Wants};
pub use self::cable::Cable;
pub use self::config::{Pace, Requests};
pub use self::counts::RequestSnapshot;
pub use self::drive::{RequestsOutcome, drive_requests};
pub use self::driver::{CompleteAnswer, Driver, Push, Received};
pub use self::failure::Failure;
pub use self::http1::Http1;
pub use self::places::{REDIRECT_HOSTS_MAX, TargetTable};
pub use self::request::{HttpRequest, Kind, Request};
pub use self::script::{Accepted, Fixed, Part, Script, SocketEnd, Step};
pub use self::summary::{RequestConnections, RequestCounts, RequestSummary};
pub use self::tcp::{Expect, Prefix, Tcp};
pub(crate) use self::tunnel::{Tunnel, TunnelRequest};
pub use self::web::Web;
pub use self::websocket::WebSocket;
