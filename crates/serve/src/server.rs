//! [`Running`]: a running server: reload, periodic tasks, drain.

use std::sync::Arc;
use std::time::Duration;

use admin::{Held, Lifecycle, Server, Service};
use tracing::info;

use crate::config::Live;
use crate::handler::Post;
use crate::log_events::LogReceiver;
use crate::shared::Shared;

/// A running server.
pub struct Running {
    pub(crate) service: Service<Post>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log_events: LogReceiver,
}

impl Running {
    /// Applies new settings: at once to new connections, with their next event to open ones.
    ///
    /// # Errors
    /// A sentence that says why not. Nothing has changed then.
    pub fn reload(&self, live: &Live) -> Result<(), &'static str> {
        if live.tls.is_some() != self.shared.policy().tls.is_some() {
            return Err("turning TLS on or off needs a restart");
        }
        // On loopback topics are public until the first secret is set, which is settled at start.
        if live.auth.is_set() != self.shared.policy().checks {
            return Err("adding the first secret or removing the last needs a restart");
        }
        self.service.set_admin_key(live.admin_key.as_deref())?;
        self.service.set_admin_tls(live.admin_tls.as_ref());
        let policy = self.shared.set_policy(live);
        self.service.post_all(self.shared.running(), move || Post::Policy(Arc::clone(&policy)));
        Ok(())
    }
}

impl Server for Running {
    fn lifecycle(&self) -> &dyn Lifecycle {
        &self.service
    }

    fn lifecycle_mut(&mut self) -> &mut dyn Lifecycle {
        &mut self.service
    }

    fn memory_limit(&self) -> Option<u64> {
        self.shared.memory_limit()
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        for worker in &self.shared.counters {
            held.now += worker.subscription_bytes.get();
            held.freed_total += worker.subscription_bytes_freed.get();
        }
        held
    }

    /// Writes the log events of the workers.
    fn on_tick(&mut self) {
        self.log_events.write();
        self.shared.follow_clock();
    }

    fn announce_drain(&mut self, delay: Duration) {
        self.shared.set_draining();
        info!("draining in {delay:?}: /health answers 503, clients are still accepted");
    }

    fn on_drain(&mut self, over: Duration) {
        self.shared.set_draining();
        info!("draining: {} connections over {over:?}", self.service.open());
    }
}
