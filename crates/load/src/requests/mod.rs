//! Requests and answers: HTTP/1.1, plain TCP, and protocols of one's own, beside the WebSockets that
//! [`crate::drive`] opens.
//!
//! [`drive_requests`] runs users over the workers. A [`Driver`] is how a connection speaks, a
//! [`Script`] what its user asks for; [`Requests`] says how many users there are and when they send.
//! Each request comes to one [`Answer`], or to one [`Failure`], and the summary tells both apart to
//! the unit.
//!
//! Messages may also come that nobody asked for, where a driver says so ([`Driver::PUSHES`]): they go to
//! the script, whose user may be waiting for one. [`WebSocket`], [`Cable`] and [`Web`] are such drivers.
//!
//! What it is not: runs of WebSockets or Action Cable alone stay with [`crate::Run`], where a connection
//! is the thing that is counted. Both stand on the engine's workers.

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
pub use self::drive::{RequestsEnded, drive_requests};
pub use self::driver::{Driver, Push, Received, Whole};
pub use self::failure::Failure;
pub use self::http1::Http1;
pub use self::places::{Places, REDIRECT_HOSTS_MAX};
pub use self::request::{HttpRequest, Kind, Request};
pub use self::script::{Accepted, Fixed, Left, Part, Script, Step};
pub use self::summary::{RequestConnections, RequestCounts, RequestSummary};
pub use self::tcp::{Expect, Prefix, Tcp};
pub(crate) use self::tunnel::{Through, Tunnel};
pub use self::web::Web;
pub use self::websocket::WebSocket;
