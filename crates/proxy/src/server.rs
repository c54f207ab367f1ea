//! [`Running`]: a running proxy: reload, drain and shutdown.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admin::{Life, Server, Service};
use engine::sys::process::now_ns;
use tracing::info;

use crate::access_log::AccessLog;
use crate::config::Live;
use crate::failure_log::Teller;
use crate::health::Watcher;
use crate::relay::Post;
use crate::routes::{Fleet, RoutesConfig};
use crate::shared::Shared;

/// A running proxy.
pub struct Running {
    pub(crate) service: Service<Post>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) fleet: Arc<Mutex<Fleet>>,
    pub(crate) log: Option<AccessLog>,
    pub(crate) teller: Teller,
    pub(crate) _watcher: Watcher,
}

impl Running {
    /// Applies new settings and routes to every later request. Open tunnels are not affected. The
    /// access log is reopened.
    ///
    /// # Errors
    /// A message for operators; nothing was changed then.
    pub fn reload(&self, live: Live, routes: RoutesConfig) -> Result<(), String> {
        if live.tls.is_some() != self.shared.live().tls.is_some() {
            return Err("speaking TLS begins or ends with a restart only".to_owned());
        }
        self.service.set_admin_key(live.admin_key.as_deref())?;
        let mut fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = fleet.say(routes, now_ns())?;
        drop(fleet);
        info!("upstreams: {} came, {} left", changed.added, changed.removed);
        if let Some(log) = &self.log {
            log.reopen();
        }
        let live = self.shared.set_live(live);
        self.service.tell(self.shared.running(), || Post::Live(Arc::clone(&live)));
        Ok(())
    }
}

impl Server for Running {
    fn life(&self) -> &dyn Life {
        &self.service
    }

    fn life_mut(&mut self) -> &mut dyn Life {
        &mut self.service
    }

    fn memory_limit(&self) -> Option<u64> {
        self.shared.live().limits.admission.memory_bytes
    }

    fn on_look(&mut self) {
        self.shared.follow_clock();
        self.teller.look(&self.shared, now_ns());
    }

    fn on_drain(&mut self, over: Duration) {
        self.shared.set_draining();
        let tunnels: u64 = self.shared.counters.iter().map(|counters| counters.tunnels.get()).sum();
        info!("draining {tunnels} tunnels over {over:?}");
    }
}
