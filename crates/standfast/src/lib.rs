//! WebSocket servers that hold a million sockets on one machine: handlers, topics, backpressure.
//!
//! This is the engine of the `standfast` server as a library. A [`Handler`] decides what happens on the
//! sockets of a path, a [`Server`] has handlers and addresses.
//!
//! ```no_run
//! use standfast::{Accept, Handler, Message, Response, Server, Socket, UpgradeRequest};
//!
//! #[derive(Clone)]
//! struct Echo;
//!
//! impl Handler for Echo {
//!     type Data = ();
//!
//!     fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
//!         Ok(Accept::default())
//!     }
//!
//!     fn message(&mut self, socket: &mut Socket<'_>, _: &mut (), message: Message<'_>) {
//!         socket.send(message);
//!     }
//! }
//!
//! fn main() -> Result<(), standfast::Error> {
//!     Server::bind("127.0.0.1:8080")?.route("/echo", Echo).run()
//! }
//! ```
//!
//! # Where to look
//!
//! | to do this | use |
//! |---|---|
//! | answer a message; know whether it was sent, waits or was dropped | [`Socket::send`], [`Sent`] |
//! | send to everyone in a room | [`Socket::subscribe`], [`Socket::publish`], [`Socket::publish_to_others`] |
//! | keep something for each socket | [`Handler::Data`] |
//! | look at path, query, headers, cookies and origin before letting a client in | [`UpgradeRequest`], [`Request`] |
//! | refuse a client | `Err(`[`Response`]`)` from [`Handler::upgrade`] |
//! | choose a subprotocol | [`UpgradeRequest::offers`], [`Accept::with_protocol`] |
//! | ask a database before letting a client in | [`UpgradeRequest::later`], [`Decision`] |
//! | send from other threads and from async code | [`Remote`] |
//! | add headers to the answer that opens a socket | [`Accept::header`], [`Decision::header`] |
//! | do something at intervals, once for the server | [`Server::every`] |
//! | do something at intervals with a handler, on each worker | [`RouteOptions::tick`], [`Handler::tick`] |
//! | do something for a socket after some time, such as ending it without a login | [`Socket::set_timer`], [`Handler::timer`] |
//! | close with a code and a reason; know why a socket was closed | [`Socket::close`], [`Handler::close`], [`Close`] |
//! | send pings, and know when they are answered | [`Socket::ping`], [`Handler::pong`], [`Limits::pings`] |
//! | send much without filling memory | [`Sent::Queued`], [`Handler::drain`], [`Socket::pause`] |
//! | limit messages, queues, idle sockets, for all or for one path | [`Limits`], [`RouteOptions`] |
//! | compress (permessage-deflate) | [`Limits::compression`], [`Socket::send_uncompressed`] |
//! | answer plain HTTP | [`Server::get`], [`Server::post`] |
//! | receive a body or send an answer in pieces | [`Server::exchange`], [`Exchange`] |
//! | answer plain HTTP from another thread or a future | [`Server::later`], [`Reply`], [`BodyWriter`] |
//! | TLS | [`Server::tls`] |
//! | reach the sockets of other processes | [several processes](#several-processes) |
//! | stop without losing clients | [`Remote::stop`], [`Running::stop`] |
//! | hold more sockets than the limit of descriptors of a process | [`PrivateServer`] |
//! | drive a worker from an event loop that is there already | [`Server::embed`], [`Embedded`] |
//! | count, and show the counters to Prometheus | [`Running::totals`], [`Remote::metrics`] |
//! | test a handler, without a network or by one | [`TestServer`], [testing](#testing) |
//! | connect to other servers, and wait for answers | [`connect`], [`Connect`], [`Client`] |
//! | keep connections to other servers, for bots and bridges | [`Clients`], [`ClientHandler`], [`Reconnect`] |
//!
//! Examples, each run by one command: `cargo run --release -p standfast --example echo_server`, and the same with
//! `topic_server`, `chat`, `ticker_server`, `jwt`, `pieces`, `bridge` and `echo_client`.
//!
//! # Workers and the turn
//!
//! A server has some workers, by default one for each core. A worker is a thread with an epoll instance, a
//! read buffer and its connections, which stay with it until they end. It does one thing after the other:
//!
//! > wait → read → posts of other threads → timers → ticks and topics → report what was sent
//!
//! Handlers are called in these turns. Each worker has a clone of each handler, so a handler needs no lock
//! for its own fields. Topics belong to the server: a publication reaches the subscribers of all workers.
//!
//! # The life of a message
//!
//! One `recv` of at most 64 KiB fills the buffer of the worker. Frames are decoded and unmasked where they
//! lie, and [`Handler::message`] gets a slice of that buffer. [`Socket::send`] writes the answer into a
//! second buffer of the worker, which leaves by one `send` when all messages of the read have been handled:
//! two system calls, no allocation, no lock, no task. What the kernel does not take is copied into the
//! queue of the socket, which then exists, and `send` returns [`Sent::Queued`]. When the queue is empty
//! [`Handler::drain`] is called. A socket whose queue is longer than a quarter of its limit is not read
//! until it is shorter than an eighth. Beyond the limit the policy for slow consumers applies
//! ([`Limits::slow_consumer`]).
//!
//! A publication is copied once. Each worker with subscribers encodes it once for each negotiated
//! compression and then visits its subscribers, some in each turn, so that other sockets are served
//! meanwhile. Queues hold references to that frame.
//!
//! # What it costs
//!
//! An idle socket takes 64 bytes in the process if the handler's data is at most 3 bytes long and needs no
//! alignment, such as a few `bool`s; with a `Box` or a number of 8 bytes it takes 72 or 80. The kernel takes another
//! 4 KiB. What a program does not use, such as timers, limits by route or exchanges, takes no byte. For a message of
//! 100 bytes the example `echo_server` executes 1,150 instructions outside of the kernel on 100 sockets and 1,122 on
//! 1,000; `standfast serve --echo` executes 1,152 and 1,120 (callgrind). With one socket, where each message is a turn,
//! they are 1,977 and 2,173. On a loaded machine it answered 0.98 times as many messages in a CPU second
//! (0.95 to 1.25) on 100 sockets, and 1.00 times (0.91 to 1.13) on 1,000: medians of 7 pairs each.
//!
//! Text is checked as UTF-8 when it is received and, because there is no unsafe code in this crate, once more
//! when it becomes a `&str`; bytes are not.
//!
//! # Several processes
//!
//! With the feature `redis` or `nats`, and `Server::redis` or `Server::nats`, topics belong to all processes of
//! an application that use the same Redis or NATS:
//!
//! ```no_run
//! # #[cfg(feature = "redis")]
//! # fn start(server: standfast::Server) -> Result<(), standfast::Error> {
//! server.redis("redis://127.0.0.1:6379")?.run()
//! # }
//! ```
//!
//! A publication reaches the subscribers of its own process as without a broker, at once, and those of the
//! others by the broker, once each. A process is subscribed at the broker to the topics that it has subscribers
//! of. What one publisher publishes to one topic arrives everywhere in that order; different publishers may be
//! seen in different orders. To reach a user wherever the user is connected, give each user a topic, such as
//! `user:42`, and subscribe the user's sockets to it.
//!
//! Other processes get a publication at most once. While the broker cannot be reached, subscribers of the own
//! process still get everything; for the others publications wait up to `Broker::spool_bytes` and are lost
//! beyond that, counted as `BrokerState::lost`. Publications are numbered: a process that finds a number missing
//! counts it as a gap (`BrokerState::gaps`) and calls [`Handler::missed`] on each worker with subscribers of the
//! topic. The first subscriber to a topic in a process gets publications of other processes once the broker has
//! confirmed the subscription, usually within a millisecond: `BrokerState::is_ready`. Processes of `standfast serve --pubsub` with the same broker and
//! prefix share their plain topics with the library's.
//!
//! `Broker::redis_cluster` is for a Redis Cluster, `Broker::sentinels` for a Redis whose address sentinels know.
//!
//! The connections have a thread with tokio, a second thread wakes it, and what happens to them is logged by
//! `tracing`. A publication costs its publisher a copy of its topic, two locks and, if that thread sleeps, a
//! system call. Without the features none of it is compiled; without a broker, publishing compares one pointer.
//!
//! # Errors and panics
//!
//! Sending does not fail: it returns what became of the message, and counters tell what was lost. A client
//! that violates the protocol is closed with the code of RFC 6455 and counted by the rule that it broke. A
//! handler that panics ends its worker, and so the server: [`Server::run`] returns [`Error::Failed`].
//!
//! # Testing
//!
//! A [`TestServer`] calls a handler for sockets that exist in memory: what it answers, publishes and closes can be
//! compared, and nothing waits. A server on port 0 tests what a client sees:
//!
//! ```
//! # use standfast::{Accept, Handler, Response, Socket, UpgradeRequest};
//! use std::time::Duration;
//! use standfast::{CloseCode, Message, Server};
//! # #[derive(Clone)] struct Echo;
//! # impl Handler for Echo {
//! #     type Data = ();
//! #     fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
//! #         Ok(Accept::default())
//! #     }
//! #     fn message(&mut self, socket: &mut Socket<'_>, _: &mut (), message: Message<'_>) {
//! #         socket.send(message);
//! #     }
//! # }
//!
//! let server = Server::bind("127.0.0.1:0")?.route("/echo", Echo).workers(1).start()?;
//! let mut client = standfast::connect(&format!("ws://{}/echo", server.address()))?;
//! client.send("hello")?;
//! assert_eq!(client.receive()?, Message::Text("hello"));
//! client.close(CloseCode::NORMAL, "")?;
//! server.stop(Duration::ZERO)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Coming from other crates
//!
//! | tungstenite, axum, fastwebsockets | here |
//! |---|---|
//! | a task for each socket with a loop that reads | [`Handler::message`]; what the loop kept is [`Handler::Data`] |
//! | `split()` into sink and stream, a channel to the task that writes | not needed: [`Context::socket`] sends to other sockets of the worker, [`Remote`] from anywhere, by [`SocketId`]; of a client [`ClientRemote`] |
//! | a list of senders, or a broadcast channel | [`Socket::subscribe`] and [`Socket::publish`] |
//! | `State`, `Extension` | fields of the handler; an `Arc` for what all workers share |
//! | `accept_hdr_async`, `WebSocketUpgrade` with extractors | [`Handler::upgrade`] |
//! | `protocols([…])`, `Sec-WebSocket-Protocol` | [`UpgradeRequest::offers`], [`Accept::with_protocol`] |
//! | `max_message_size`, `max_frame_size` | [`Limits::message_bytes`]; a frame has no limit of its own, and is refused by its length before it is received |
//! | `max_write_buffer_size`, `write_buffer_size` | [`Limits::send_queue_bytes`]; what is sent in a call leaves by one system call |
//! | `FragmentCollector`, `Message::Frame` | fragments are always joined, and messages sent in one frame |
//! | `Message::Ping`, `Message::Pong`, `auto_pong` | pings are answered, and not shown to the handler; for own ones [`Socket::ping`] and [`Handler::pong`] |
//! | `Message::Close(frame)` | [`Socket::close`] and [`Handler::close`]; the answering frame is sent by the crate |
//! | `DeflateConfig`: windows, context takeover | [`Limits::compression`], by route [`RouteOptions::compression`] |
//! | `serve(…).with_graceful_shutdown(…)` | [`Remote::stop`], [`Running::stop`], [`Handler::stopping`] |
//! | `connect_async`, `connect` | [`connect`](connect()), [`Connect`], [`Clients`] |
//! | `tokio::time::interval` | [`Server::every`], [`Handler::tick`], [`Socket::set_timer`] |
//!
//! # What is not there
//!
//! HTTP/2, and files: a body is written by the program. Linux only.
//!
//! # Versions
//!
//! Rust 1.90 is the oldest that works. Until 1.0 a minor version may change the interface, a patch version
//! does not: `cargo semver-checks` is part of each release.
//!
//! # What the types forbid
//!
//! A [`Socket`] cannot be kept beyond the call, nor sent to another thread:
//!
//! ```compile_fail
//! # use standfast::{Message, Socket};
//! fn message(socket: &mut Socket<'_>, message: Message<'_>) {
//!     std::thread::spawn(move || socket.send(message));
//! }
//! ```
//!
//! ```compile_fail,E0277
//! fn needs_send<T: Send>() {}
//! needs_send::<standfast::Socket<'static>>();
//! ```
//!
//! Neither can a message, which lies in the read buffer:
//!
//! ```compile_fail
//! # use standfast::Message;
//! struct Kept(Vec<Message<'static>>);
//! fn message(kept: &mut Kept, message: Message<'_>) {
//!     kept.0.push(message);
//! }
//! ```
//!
//! A decision is made once:
//!
//! ```compile_fail,E0382
//! # use standfast::{Decision, Response};
//! fn decide(decision: Decision<()>) {
//!     decision.accept(());
//!     decision.refuse(Response::new(403));
//! }
//! ```
//!
//! A request is answered once, and what is called for it stays in its worker:
//!
//! ```compile_fail,E0382
//! # use standfast::{Reply, Response};
//! fn answer(reply: Reply) {
//!     reply.respond(Response::new(200));
//!     reply.respond(Response::new(500));
//! }
//! ```
//!
//! ```compile_fail,E0277
//! fn needs_send<T: Send>() {}
//! needs_send::<standfast::Http<'static>>();
//! ```
//!
//! What was finished cannot be written to:
//!
//! ```compile_fail,E0382
//! # use standfast::BodyWriter;
//! fn write(body: BodyWriter) {
//!     body.finish();
//!     let _ = body.write(b"more");
//! }
//! ```
//!
//! What a thread decides about goes to a worker, so it has to be `Send`:
//!
//! ```compile_fail,E0277
//! # use standfast::Decision;
//! fn decide(decision: Decision<std::rc::Rc<str>>) {
//!     std::thread::spawn(move || decision.accept("name".into()));
//! }
//! ```

#![forbid(unsafe_code)]

#[cfg(any(feature = "redis", feature = "nats"))]
mod broker;
mod client;
mod decision;
mod embedded;
mod error;
mod exchange;
mod exchanges;
mod handler;
mod header;
mod intervals;
mod limits;
mod message;
mod metrics;
mod operations;
mod pattern;
mod private;
#[cfg_attr(not(any(feature = "redis", feature = "nats")), path = "no_pubsub.rs")]
mod pubsub;
mod refused;
mod remote;
mod reply;
mod request;
mod response;
mod routes;
mod server;
mod socket;
mod table;
mod testing;
mod timers;
mod waking;
mod worker;

pub use engine::{
    ClientAuth, Closed, Compression, ConnId as SocketId, MailboxFull, Refusal, Sent, SlowConsumer,
    TlsClient, TlsError, TlsIdentity, TlsServer, TlsTrust, TlsVersion, Totals, WORKERS_MAX,
};
pub use wire::Violation;
pub use wire::websocket::CloseCode;

#[cfg(any(feature = "redis", feature = "nats"))]
pub use crate::broker::{Broker, BrokerState};
pub use crate::client::{
    Client, ClientError, ClientHandler, ClientRemote, ClientSocket, Clients, Connect, Lookups,
    Lost, Reconnect,
};
pub use crate::decision::Decision;
pub use crate::embedded::Embedded;
pub use crate::error::Error;
pub use crate::exchange::{Exchange, Http};
pub use crate::handler::{Accept, Close, Handler};
pub use crate::header::InvalidHeader;
pub use crate::limits::{Limits, RouteOptions};
pub use crate::message::Message;
pub use crate::private::{DescriptorFree, DescriptorFreeRoutes, PrivateServer};
pub use crate::refused::Refused;
pub use crate::remote::{Gone, Receipt, Remote};
pub use crate::reply::{BodyWriter, Reply, WriteError};
pub use crate::request::{Request, UpgradeRequest};
pub use crate::response::Response;
pub use crate::routes::{NoRoutes, Routed, Routes};
pub use crate::server::{Running, Server};
pub use crate::socket::{Context, Socket};
pub use crate::testing::{Received, TestServer};

/// Connects to a WebSocket, and waits until it is open: [`Connect`] with nothing but its URL.
///
/// ```no_run
/// # fn main() -> Result<(), standfast::ClientError> {
/// let mut client = standfast::connect("ws://127.0.0.1:8080/echo")?;
/// client.send("hello")?;
/// println!("{:?}", client.receive()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ClientError`].
pub fn connect(url: &str) -> Result<Client, ClientError> {
    Connect::to(url).open()
}
