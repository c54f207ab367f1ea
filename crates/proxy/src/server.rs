//! [`Running`]: a proxy from its start to its end.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use admin::Address;
use engine::sys::process::{now_ns, trim_allocator};
use engine::{Remote, Workers};
use tracing::{info, warn};

use crate::access_log::AccessLog;
use crate::config::Live;
use crate::health::Watcher;
use crate::relay::Post;
use crate::routes::{Fleet, RoutesConfig};
use crate::shared::Shared;

/// How often a proxy is looked after, and how often where its memory has a limit.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_AT_MEMORY_EVERY: Duration = Duration::from_millis(100);
/// Tries, a millisecond apart, to hand a worker its new settings.
const RELOAD_TRIES: u32 = 1_000;
/// Fewer connections than this leave nothing worth returning.
const CROWD: u64 = 1_000;

/// A running proxy. Whoever holds it should call [`Running::look_after`] as often as
/// [`Running::look_every`] says.
pub struct Running {
    /// Files of UNIX sockets, which go with this.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) listen: Vec<Address>,
    pub(crate) admin: Option<admin::Running>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: Remote<Post>,
    pub(crate) fleet: Arc<Mutex<Fleet>>,
    pub(crate) log: Option<AccessLog>,
    pub(crate) stage: Stage,
    /// The most connections since memory was last returned to the system.
    pub(crate) crowd: u64,
    pub(crate) _watcher: Watcher,
}

/// Where a proxy is in its life.
pub(crate) enum Stage {
    Serving(Workers<Post>),
    Draining(JoinHandle<io::Result<()>>),
    Ended,
}

impl Running {
    /// The public listeners, with the ports the system chose.
    #[must_use]
    pub fn listen(&self) -> &[Address] {
        &self.listen
    }

    /// The admin listener, if there is one.
    #[must_use]
    pub fn admin(&self) -> Option<&Address> {
        self.admin.as_ref().map(admin::Running::address)
    }

    /// Puts new settings and routes in force, for every request from then on. Tunnels know nothing of
    /// it. The access log is opened again.
    ///
    /// # Errors
    /// A sentence that says why not; nothing was changed then.
    pub fn reload(&self, live: Live, routes: RoutesConfig) -> Result<(), String> {
        if live.tls.is_some() != self.shared.live().tls.is_some() {
            return Err("speaking TLS begins or ends with a restart only".to_owned());
        }
        if let Some(admin) = &self.admin
            && !admin.set_key(live.admin_key.as_deref())
        {
            let why = "the admin listener can be reached from elsewhere and needs its admin_key";
            return Err(why.to_owned());
        }
        let mut fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = fleet.say(routes, now_ns())?;
        drop(fleet);
        info!("upstreams: {} came, {} left", changed.added, changed.removed);
        if let Some(log) = &self.log {
            log.reopen();
        }
        let live = self.shared.set_live(live);
        for worker in self.shared.running() {
            // A mailbox that has no room even for this frees itself soon, or its worker is dead.
            for _ in 0..RELOAD_TRIES {
                if self.remote.post(worker, Post::Live(Arc::clone(&live)), 0).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// How often this should be looked after.
    #[must_use]
    pub fn look_every(&self) -> Duration {
        self.memory_limit().map_or(LOOK_EVERY, |_| LOOK_AT_MEMORY_EVERY)
    }

    fn memory_limit(&self) -> Option<u64> {
        self.shared.live().limits.admission.memory_bytes
    }

    /// Notices a worker that failed, and memory that is short.
    ///
    /// # Errors
    /// A worker has ended although nobody asked it to.
    pub fn look_after(&mut self) -> io::Result<()> {
        self.shared.follow_clock();
        self.look_at_memory();
        self.return_memory();
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Serving(workers) if workers.any_ended() => {
                workers.drain(Duration::ZERO)?;
                Err(io::Error::other("a worker has ended"))
            }
            stage => {
                self.stage = stage;
                Ok(())
            }
        }
    }

    /// While more memory is held than may be, nobody is let in.
    fn look_at_memory(&self) {
        let Some(most) = self.memory_limit() else { return };
        let passed = || admin::rss_bytes().is_some_and(|rss| rss > most);
        let mut short = passed();
        if short {
            // What the allocator keeps for later is not held by anybody.
            trim_allocator();
            short = passed();
        }
        self.remote.set_short_of_memory(short);
        if short {
            warn!("more memory than --memory-limit is held: nobody is let in");
        }
    }

    /// After most of a crowd has left, gives what the allocator kept for it back to the system.
    fn return_memory(&mut self) {
        let open: u64 = self.remote.open().map(|(open, _)| u64::from(open)).sum();
        if self.crowd >= CROWD && open < self.crowd / 2 {
            trim_allocator();
            self.crowd = open;
        }
        self.crowd = self.crowd.max(open);
    }

    /// Begins the end: stops accepting, says `draining` on `/health`, and ends every tunnel, spread
    /// over `over`. Answers under way come to their end.
    pub fn drain(&mut self, over: Duration) {
        self.shared.set_draining();
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        self.stage = match stage {
            Stage::Serving(workers) => {
                let tunnels: u64 =
                    self.shared.counters.iter().map(|counters| counters.tunnels.get()).sum();
                info!("draining {tunnels} tunnels over {over:?}");
                Stage::Draining(std::thread::spawn(move || workers.drain(over)))
            }
            stage => stage,
        };
    }

    /// Whether draining is over, and how it went.
    pub fn ended(&mut self) -> Option<io::Result<()>> {
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

impl Drop for Running {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}
