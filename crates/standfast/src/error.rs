//! [`Error`]: why a server did not start, or ended.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use engine::LISTENERS_MAX;

/// Why a server did not start, or ended. `Debug` is the same text as `Display`: it is what a `main` that
/// returns the error shows.
#[non_exhaustive]
pub enum Error {
    /// The name of an address cannot be resolved, or is none.
    Address(io::Error),
    /// An address cannot be listened on: `EADDRINUSE`, or a port that needs a privilege.
    Listen(SocketAddr, io::Error),
    /// A route with an invalid path, or two for the same path.
    Route(String),
    /// More addresses times workers than a process may have listeners.
    TooManyListeners,
    /// A URL that names no broker, or settings that it cannot be used with.
    Broker(String),
    /// The system refuses descriptor tables of single threads: Linux before 5.9, or a sandbox.
    NoPrivateTables,
    /// No threads or no descriptors for the workers.
    Workers(io::Error),
    /// A worker has failed, for example because a handler panicked. All sockets were closed.
    Failed(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Address(error) => write!(f, "invalid address: {error}"),
            Error::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Error::Route(what) | Error::Broker(what) => f.write_str(what),
            Error::TooManyListeners => write!(
                f,
                "too many listeners: addresses times workers must be at most {LISTENERS_MAX}"
            ),
            Error::NoPrivateTables => f.write_str(
                "workers cannot have descriptor tables of their own: close_range(2) is refused; \
                 use a Server",
            ),
            Error::Workers(error) => write!(f, "cannot start the workers: {error}"),
            Error::Failed(error) => write!(f, "the server has failed: {error}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Address(error)
            | Error::Listen(_, error)
            | Error::Workers(error)
            | Error::Failed(error) => Some(error),
            Error::Route(_)
            | Error::Broker(_)
            | Error::TooManyListeners
            | Error::NoPrivateTables => None,
        }
    }
}
