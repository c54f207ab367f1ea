//! [`Running`]: a running proxy: reload, drain and shutdown.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admin::{Lifecycle, Server, Service};
use engine::sys::process::now_ns;
use tracing::info;

use crate::access_log::AccessLog;
use crate::config::Live;
use crate::failure_log::FailureLog;
use crate::health::Watcher;
use crate::relay::Post;
use crate::resolve::{Lookups, Resolving};
use crate::routes::{Changed, Registry, RoutesConfig};
use crate::shared::Shared;

/// A running proxy.
pub struct Running {
    pub(crate) service: Service<Post>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) registry: Arc<Mutex<Registry>>,
    pub(crate) log: Option<AccessLog>,
    pub(crate) failure_log: FailureLog,
    pub(crate) _watcher: Watcher,
}

impl Running {
    /// Starts the lookups that these routes need before [`Running::reload`]; `None` if they need none.
    #[must_use]
    pub fn resolve(&self, routes: &RoutesConfig) -> Option<Resolving> {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let names = registry.new_names(routes);
        (!names.is_empty()).then(|| Resolving::start(names))
    }

    /// Applies new settings and routes to every later request. Open tunnels are not affected. The
    /// access log is reopened.
    ///
    /// # Errors
    /// A message for operators; nothing was changed then.
    pub fn reload(&self, live: Live, routes: RoutesConfig, lookups: Lookups) -> Result<(), String> {
        let lookups = lookups.complete()?;
        routes.check()?;
        if live.tls.is_some() != self.shared.live().tls.is_some() {
            return Err("turning TLS on or off needs a restart".to_owned());
        }
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.check_addresses(&routes, &lookups.found)?;
        self.service.set_admin_key(live.admin_key.as_deref())?;
        self.service.set_admin_tls(live.admin_tls.as_ref());
        let changed = registry.apply_resolved(routes, lookups.found, now_ns())?;
        drop(registry);
        let Changed { added, removed, renamed } = changed;
        info!("upstreams changed: {added} added, {removed} removed, {renamed} renamed");
        if let Some(log) = &self.log {
            log.reopen();
        }
        let live = self.shared.set_live(live);
        self.service.post_all(self.shared.running(), move || Post::Reload(Arc::clone(&live)));
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
        self.shared.live().limits.admission.memory_bytes
    }

    fn on_tick(&mut self) {
        self.shared.follow_clock();
        self.failure_log.poll(&self.shared, now_ns());
        if let Some(log) = &mut self.log {
            log.report(now_ns());
        }
    }

    fn announce_drain(&mut self, delay: Duration) {
        self.shared.set_draining();
        info!("draining in {delay:?}: /health answers 503, clients are still accepted");
    }

    fn on_drain(&mut self, over: Duration) {
        self.shared.set_draining();
        let tunnels: u64 = self.shared.counters.iter().map(|counters| counters.tunnels.get()).sum();
        info!("{}", admin::drain_message(tunnels, "tunnel", over));
    }
}
