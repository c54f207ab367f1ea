//! [`Running`]: a server from its start to its end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use admin::Address;
use engine::sys::process::trim_allocator;
use engine::{Remote, Workers};
use tracing::info;

use crate::config::Live;
use crate::door::Post;
use crate::records::Records;
use crate::shared::Shared;
use crate::watch::Watch;

/// A running server. Whoever holds it should call [`Running::look_after`] as often as
/// [`Running::look_every`] says.
pub struct Running {
    pub(crate) listen: Vec<Address>,
    /// Files of UNIX sockets, which go with this.
    pub(crate) socket_files: Vec<PathBuf>,
    pub(crate) admin: Option<admin::Running>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: Remote<Post>,
    pub(crate) records: Records,
    pub(crate) watch: Watch,
    pub(crate) stage: Stage,
    /// The most connections since memory was last returned to the system.
    pub(crate) crowd: u64,
}

/// How often a server is looked after, and how often where its memory has a limit.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_AT_MEMORY_EVERY: Duration = Duration::from_millis(100);
/// Tries, a millisecond apart, to hand a worker its new settings.
const RELOAD_TRIES: u32 = 1_000;
/// Fewer connections than this leave nothing worth returning.
const CROWD: u64 = 1_000;

/// Where a server is in its life.
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

    /// Puts new settings in force: at once for new connections, with their next event for those
    /// that are open.
    ///
    /// # Errors
    /// A sentence that says why not; nothing was changed then.
    pub fn reload(&self, live: &Live) -> Result<(), &'static str> {
        if live.tls.is_some() != self.shared.policy().tls.is_some() {
            return Err("speaking TLS begins or ends with a restart only");
        }
        // On loopback the first secret ends what was public by itself, and the last one begins it.
        if live.auth.is_set() != self.shared.policy().checks {
            return Err("the first secret, and having none, take effect with a restart only");
        }
        if let Some(admin) = &self.admin
            && !admin.set_key(live.admin_key.as_deref())
        {
            return Err("the admin listener can be reached from elsewhere and needs its admin_key");
        }
        let policy = self.shared.set_policy(live);
        for worker in self.shared.running() {
            // A mailbox that has no room even for this frees itself soon, or its worker is dead.
            for _ in 0..RELOAD_TRIES {
                if self.remote.post(worker, Post::Policy(Arc::clone(&policy)), 0).is_ok() {
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
        self.shared.memory_limit().map_or(LOOK_EVERY, |_| LOOK_AT_MEMORY_EVERY)
    }

    /// Writes what workers had to say, and notices one that failed.
    ///
    /// # Errors
    /// A worker has ended although nobody asked it to.
    pub fn look_after(&mut self) -> io::Result<()> {
        self.records.write();
        self.shared.follow_clock();
        self.watch.refusals(&self.remote);
        self.watch.memory(&self.remote, self.shared.memory_limit());
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

    /// After most of a crowd has left, gives what the allocator kept for it back to the system.
    fn return_memory(&mut self) {
        let open: u64 = self.remote.open().map(|(open, _)| u64::from(open)).sum();
        if self.crowd >= CROWD && open < self.crowd / 2 {
            trim_allocator();
            self.crowd = open;
        }
        self.crowd = self.crowd.max(open);
    }

    /// Begins the end: stops accepting, says `draining` on `/health`, and closes every WebSocket
    /// with 1001, spread over `over`.
    pub fn drain(&mut self, over: Duration) {
        self.shared.set_draining();
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        self.stage = match stage {
            Stage::Serving(workers) => {
                let open: u64 = self.remote.open().map(|(open, _)| u64::from(open)).sum();
                info!("draining {open} connections over {over:?}");
                Stage::Draining(std::thread::spawn(move || workers.drain(over)))
            }
            stage => stage,
        };
    }

    /// Whether draining is over, and how it went.
    pub fn ended(&mut self) -> Option<io::Result<()>> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Draining(thread) if thread.is_finished() => {
                self.records.write();
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
        for file in &self.socket_files {
            let _ = std::fs::remove_file(file);
        }
    }
}
