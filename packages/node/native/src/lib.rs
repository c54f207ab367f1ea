//! The engine of standfast on the event loop of Node.js: the native half of the package `standfast`.
//!
//! An app has a worker of the engine without a thread of its own: libuv watches its descriptor and its deadline,
//! and its turns call JavaScript. `../uws` has the other half, which is what programs see.
//!
//! | module | contents |
//! |---|---|
//! | `app` | a worker on the loop, and how calls from JavaScript reach it |
//! | `handler` | the engine's handler: events of connections become calls of JavaScript |
//! | `requests` | routes, handlers and bodies of requests |
//! | `exchange`, `http` | requests that are being answered, and what JavaScript does with them |
//! | `cached` | answers that are kept for routes with a cache |
//! | `date` | the date of answers |
//! | `sockets` | what JavaScript does with WebSockets and topics |
//! | `dropped` | publications that sockets have lost |
//! | `setup` | routes, listeners, certificates |
//! | `shared` | topics of several apps |
//! | `broker` | topics of several processes |
//! | `history` | what topics keep |
//! | `replays` | sending sockets what they missed |
//! | `threads` | threads that hold the sockets of an app |
//! | `key_value` | what a program shares between its threads |
//! | `children` | listeners that pass to apps of other threads |
//! | `router` | which routes fit a request |
//! | `napi`, `uv` | the parts of Node-API and libuv that are used |
//!
//! Unsafe code is where C is called (`napi`, `uv`), and in `app`, whose calls come back while a turn is under way.

mod app;
mod broker;
mod cached;
mod children;
mod date;
mod dropped;
mod exchange;
mod handler;
mod history;
mod http;
mod key_value;
mod napi;
mod replays;
mod requests;
mod router;
mod setup;
mod shared;
mod sockets;
mod threads;
mod uv;
