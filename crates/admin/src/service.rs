//! [`Service`]: the workers of a server from start to end, with the periodic tasks meanwhile, and
//! [`Server`], a program that runs on them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{Remote, TlsServer, Workers};

use crate::delivery::Delivery;
use crate::memory_trim::{Held, MemoryTrim};
use crate::memory_watch::MemoryWatch;
use crate::refusal_log::RefusalLog;
use crate::{Address, AdminListener, Listener, Watchdog, invariants};

/// Interval of the periodic tasks.
const TICK: Duration = Duration::from_secs(1);
/// The interval where memory has a limit.
const MEMORY_TICK: Duration = Duration::from_millis(100);

/// The part of a drain's time for each connection: closing a hundred a second is no storm of
/// reconnects, so few connections are closed sooner than many.
const DRAIN_PER_CONNECTION: Duration = Duration::from_millis(10);

/// The log line at the start of a drain that closes so many things. `noun` is one of them.
#[must_use]
pub fn drain_message(count: u64, noun: &str, over: Duration) -> String {
    let many = if count == 1 { "" } else { "s" };
    let what = match count {
        0 => format!("no open {noun}s"),
        _ if over.is_zero() => format!("{count} {noun}{many} at once"),
        _ => format!("{count} {noun}{many} over {over:?}"),
    };
    format!("draining: {what}; signal again to exit now")
}

/// A server's workers and listeners.
pub struct Service<P> {
    listen: Vec<Listener>,
    /// Files of UNIX sockets, removed when this is dropped.
    files: Vec<PathBuf>,
    /// The admin listener, once there is one.
    pub admin: Option<AdminListener>,
    remote: Remote<P>,
    delivery: Delivery<P>,
    stage: Stage<P>,
    watchdog: Arc<Watchdog>,
    refusal_log: RefusalLog,
    memory_watch: MemoryWatch,
    memory_trim: MemoryTrim,
}

/// The state of a server's workers.
enum Stage<P> {
    Serving(Workers<P>),
    Draining(JoinHandle<io::Result<()>>),
    Ended,
}

impl<P: Send + 'static> Service<P> {
    pub(crate) fn new(
        workers: Workers<P>,
        watchdog: Arc<Watchdog>,
        listen: Vec<Listener>,
        files: Vec<PathBuf>,
    ) -> Self {
        Service {
            listen,
            files,
            admin: None,
            remote: workers.remote().clone(),
            delivery: Delivery::default(),
            stage: Stage::Serving(workers),
            watchdog,
            refusal_log: RefusalLog::default(),
            memory_watch: MemoryWatch::default(),
            memory_trim: MemoryTrim::default(),
        }
    }

    /// The handle to the workers.
    #[must_use]
    pub fn remote(&self) -> &Remote<P> {
        &self.remote
    }

    /// Replaces the key of the admin listener.
    ///
    /// # Errors
    /// A sentence that says why the listener needs one.
    pub fn set_admin_key(&self, key: Option<&str>) -> Result<(), &'static str> {
        match &self.admin {
            Some(admin) if !admin.set_key(key) => {
                Err("the admin listener is reachable from other machines and needs admin_key")
            }
            _ => Ok(()),
        }
    }

    /// Replaces the TLS configuration of the admin listener's new connections.
    pub fn set_admin_tls(&self, tls: Option<&TlsServer>) {
        if let Some(admin) = &self.admin {
            admin.set_tls(tls);
        }
    }

    /// Posts a configuration to each of these workers. One whose mailbox stays full gets it later, by
    /// [`Lifecycle::tick`], unless a newer one was posted meanwhile.
    pub fn post_all(
        &self,
        workers: impl Iterator<Item = usize>,
        post: impl Fn() -> P + Send + Sync + 'static,
    ) {
        self.delivery.post(&self.remote, workers, Arc::new(post));
    }
}

/// [`Service`] without its type of posts.
pub trait Lifecycle {
    /// The public listeners.
    fn listen(&self) -> &[Listener];

    /// The admin listener, if there is one.
    fn admin(&self) -> Option<&Address>;

    /// Runs the periodic tasks: detects a failed worker, enforces the memory limit, logs refused
    /// clients. `held` is what the program itself holds for clients.
    ///
    /// # Errors
    /// A worker has ended without being told to.
    fn tick(&mut self, memory_limit: Option<u64>, held: Held) -> io::Result<()>;

    /// Starts draining: closes connections, spread over `over`.
    fn drain(&mut self, over: Duration);

    /// Connections now.
    fn open(&self) -> u64;

    /// The result of draining, once it is over.
    fn ended(&mut self) -> Option<io::Result<()>>;
}

impl<P: Send + 'static> Lifecycle for Service<P> {
    fn listen(&self) -> &[Listener] {
        &self.listen
    }

    fn admin(&self) -> Option<&Address> {
        self.admin.as_ref().map(AdminListener::address)
    }

    fn open(&self) -> u64 {
        self.remote.open().map(|(open, _)| u64::from(open)).sum()
    }

    fn tick(&mut self, memory_limit: Option<u64>, held: Held) -> io::Result<()> {
        self.refusal_log.write(&self.remote);
        self.delivery.retry(&self.remote);
        self.memory_watch.check(&self.remote, memory_limit);
        self.memory_trim.check(self.open(), held, &self.remote);
        if matches!(self.stage, Stage::Serving(_)) {
            // While draining a worker that has no connections left has ended and turns no more.
            self.watchdog.look(&self.remote);
        }
        invariants::log_unreported();
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Serving(workers) if workers.any_ended() => {
                workers.drain(Duration::ZERO)?;
                Err(io::Error::other("a worker has failed"))
            }
            stage => {
                self.stage = stage;
                Ok(())
            }
        }
    }

    fn drain(&mut self, over: Duration) {
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        self.stage = match stage {
            Stage::Serving(workers) => {
                Stage::Draining(std::thread::spawn(move || workers.drain(over)))
            }
            stage => stage,
        };
    }

    fn ended(&mut self) -> Option<io::Result<()>> {
        invariants::log_unreported();
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Draining(thread) if thread.is_finished() => {
                let failed = |_| Err(io::Error::other("draining panicked"));
                Some(thread.join().unwrap_or_else(failed))
            }
            Stage::Ended => Some(Ok(())),
            stage => {
                self.stage = stage;
                None
            }
        }
    }
}

impl<P> Drop for Service<P> {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A running program. The owner calls [`Server::tick`] every [`Server::tick_interval`].
pub trait Server {
    /// Its workers.
    fn lifecycle(&self) -> &dyn Lifecycle;

    /// Its workers.
    fn lifecycle_mut(&mut self) -> &mut dyn Lifecycle;

    /// Resident memory in bytes beyond which clients are refused and shed.
    fn memory_limit(&self) -> Option<u64>;

    /// Memory that the program itself holds for clients.
    fn held(&self) -> Held {
        Held::default()
    }

    /// The program's own part of [`Server::tick`].
    fn on_tick(&mut self) {}

    /// Reports `draining` at `/health` from now on. Clients are still accepted for `delay`; then
    /// [`Server::drain`] follows.
    fn announce_drain(&mut self, delay: Duration);

    /// Draining starts now and takes `over`.
    fn on_drain(&mut self, over: Duration);

    /// How often to call [`Server::tick`].
    fn tick_interval(&self) -> Duration {
        self.memory_limit().map_or(TICK, |_| MEMORY_TICK)
    }

    /// Runs the periodic tasks: detects a failed worker, enforces the memory limit, logs refused
    /// clients.
    ///
    /// # Errors
    /// A worker has ended without being told to.
    fn tick(&mut self) -> io::Result<()> {
        self.on_tick();
        let memory_limit = self.memory_limit();
        let held = self.held();
        self.lifecycle_mut().tick(memory_limit, held)
    }

    /// Starts draining: stops accepting, answers `draining` at `/health`, and closes every connection,
    /// spread over 10 ms each and at most `longest` together.
    fn drain(&mut self, longest: Duration) {
        let open = u32::try_from(self.lifecycle().open()).unwrap_or(u32::MAX);
        let over = DRAIN_PER_CONNECTION.saturating_mul(open).min(longest);
        self.on_drain(over);
        self.lifecycle_mut().drain(over);
    }

    /// The result of draining, once it is over.
    fn ended(&mut self) -> Option<io::Result<()>> {
        let ended = self.lifecycle_mut().ended();
        if ended.is_some() {
            self.on_tick();
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_of_nothing_has_no_time() {
        let message = |count, over| drain_message(count, "tunnel", Duration::from_millis(over));
        let end = "; signal again to exit now";
        assert_eq!(message(1_200, 12_000), format!("draining: 1200 tunnels over 12s{end}"));
        assert_eq!(message(1, 10), format!("draining: 1 tunnel over 10ms{end}"));
        assert_eq!(message(2, 0), format!("draining: 2 tunnels at once{end}"));
        assert_eq!(message(0, 20), format!("draining: no open tunnels{end}"));
        assert_eq!(message(0, 0), format!("draining: no open tunnels{end}"));
    }
}
