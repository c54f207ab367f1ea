//! What the tests share: the executable as a child process, a raw socket, foreign clients.
//!
//! No test lives here, and nothing here knows what any test expects.

pub(crate) mod cable;
pub(crate) mod executable;
pub(crate) mod http;
pub(crate) mod lowered;
pub(crate) mod peer;
mod scratch;
pub(crate) mod server;
pub(crate) mod signing;
pub(crate) mod socket;
pub(crate) mod terminal;
pub(crate) mod tls;

use std::thread;
use std::time::{Duration, Instant};

pub(crate) use self::scratch::Scratch;

/// How long a condition may take before a test gives up. Never a time a passing test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns as soon as `condition` holds.
///
/// # Panics
/// When it has not held within [`PATIENCE`], naming `what`.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "gave up waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
