//! Shared parts of the tests: the executable as a child process, a raw socket, foreign clients.
//!
//! No test lives here, and nothing here knows what any test expects.

pub(crate) mod accept;
pub(crate) mod app;
pub(crate) mod brokers;
pub(crate) mod cable;
pub(crate) mod chat;
pub(crate) mod deflate;
pub(crate) mod executable;
pub(crate) mod faults;
pub(crate) mod forward;
pub(crate) mod grpc_echo;
pub(crate) mod grpc_web;
pub(crate) mod haproxy;
pub(crate) mod http;
pub(crate) mod http2;
pub(crate) mod http2_sockets;
pub(crate) mod lowered;
pub(crate) mod names;
pub(crate) mod nginx;
pub(crate) mod peer;
pub(crate) mod polling;
pub(crate) mod radius;
pub(crate) mod rails;
pub(crate) mod recorder;
pub(crate) mod redis;
pub(crate) mod redis_cluster;
mod scratch;
pub(crate) mod server;
pub(crate) mod signing;
pub(crate) mod skip;
pub(crate) mod socket;
pub(crate) mod terminal;
pub(crate) mod tls;
pub(crate) mod tls_front;
pub(crate) mod tonic;
pub(crate) mod upstream;
pub(crate) mod web;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

pub(crate) use self::scratch::Scratch;

/// Time limit of a condition. A passing test never waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not hold within [`PATIENCE`], with `what` in the message.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "gave up waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A reserved port without a listener: connections are refused, the kernel does not assign it, and a
/// server may still be started there.
pub(crate) struct Deserted {
    pub(crate) address: SocketAddr,
    _bound: OwnedFd,
}

impl Deserted {
    pub(crate) fn port() -> Self {
        let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseaddr(&bound, true).unwrap();
        bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = getsockname(&bound).unwrap().try_into().unwrap();
        Deserted { address, _bound: bound }
    }
}

/// Returns two consecutive ports that were free a moment ago.
pub(crate) fn two_ports_in_a_row() -> [u16; 2] {
    let mut found = None;
    eventually("two free ports in a row", || {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = one.local_addr().unwrap().port();
        let next = port.checked_add(1);
        found = next.filter(|&next| TcpListener::bind(("127.0.0.1", next)).is_ok());
        found.is_some()
    });
    let second = found.unwrap();
    [second - 1, second]
}
