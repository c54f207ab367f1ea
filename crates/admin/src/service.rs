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

    /// Connections now.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.remote.open().map(|(open, _)| u64::from(open)).sum()
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
    /// spread over `over`.
    fn drain(&mut self, over: Duration) {
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
