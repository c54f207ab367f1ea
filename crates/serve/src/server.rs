//! [`Running`]: a running server: reload, periodic tasks, drain.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use admin::{Held, Lifecycle, Server, Service};
use engine::sys::process::now_ns;
use tracing::{info, warn};

use crate::config::Live;
use crate::handler::Post;
use crate::log_events::LogReceiver;
use crate::shared::Shared;

/// Time for calls of the application and webhooks after the last connection has ended.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// A running server.
pub struct Running {
    pub(crate) service: Service<Post>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log_events: LogReceiver,
    /// The workers' result, and since when calls, webhooks and publications are waited for.
    pub(crate) finishing: Option<(io::Result<()>, u64)>,
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
        if let Some(presence) = &self.shared.presence {
            let (now, freed_total) = presence.held();
            (held.now, held.freed_total) = (held.now + now, held.freed_total + freed_total);
        }
        held
    }

    /// Writes the log events of the workers, returns the memory of calls after a storm, and removes what has
    /// expired.
    fn on_tick(&mut self) {
        self.log_events.write();
        self.shared.follow_clock();
        if self.shared.calls.as_ref().is_some_and(|calls| calls.has_emptied()) {
            self.service.remote().trim_memory();
        }
        if let Some(calls) = &self.shared.calls {
            calls.expire_decisions(now_ns());
        }
        if let Some(history) = self.shared.history() {
            history.expire(now_ns());
        }
        let presence = self.shared.presence.as_ref();
        if let Some(times) = presence.and_then(|presence| presence.refused_for_memory(now_ns())) {
            warn!(times, "presence refused: the limit of memory is reached (--presence-bytes)");
        }
        if let Some(sessions) = &self.shared.stored_sessions {
            sessions.expire(now_ns());
        }
    }

    fn announce_drain(&mut self, delay: Duration) {
        self.shared.set_draining();
        info!("draining in {delay:?}: /health answers 503, clients are still accepted");
    }

    fn on_drain(&mut self, over: Duration) {
        self.shared.set_draining();
        if let Some(open) = self.shared.adapters.get() {
            open.adapters.leave();
        }
        if let Some(calls) = &self.shared.calls {
            calls.drain();
            if let Some(sessions) = &self.shared.stored_sessions {
                sessions.drain(now_ns());
            }
        }
        info!("{}", admin::drain_message(self.service.open(), "connection", over));
    }

    /// The workers have ended, and so have the calls and webhooks that tell of it, unless they take longer
    /// than [`LAST_CALLS`]; and the broker has all publications, unless it takes longer than `--pubsub-timeout`.
    fn ended(&mut self) -> Option<io::Result<()>> {
        let (result, since_ns) = match self.finishing.take() {
            Some(finishing) => finishing,
            None => {
                let result = self.service.ended()?;
                self.on_tick();
                if let Some(hooks) = &self.shared.hooks {
                    hooks.drain();
                }
                if let Some(open) = self.shared.adapters.get() {
                    open.adapters.close();
                }
                (result, now_ns())
            }
        };
        let (calls, hooks) = (self.shared.calls.as_ref(), self.shared.hooks.as_ref());
        let sessions = self.shared.stored_sessions.as_ref().filter(|_| calls.is_some());
        let untold = sessions.is_some_and(|sessions| sessions.drain(now_ns()));
        let events = hooks.map_or(0, |hooks| hooks.waiting());
        let pubsub = self.shared.pubsub.as_ref();
        let unsent = pubsub.map_or(0, |pubsub| pubsub.broker.unsent());
        let closed = self.shared.adapters.get().is_none_or(|open| open.adapters.is_closed());
        let idle = calls.is_none_or(|calls| calls.is_idle()) && !untold;
        let idle = idle && events == 0 && closed;
        let waited = Duration::from_nanos(now_ns().saturating_sub(since_ns));
        let unstored = pubsub.map_or(0, |pubsub| pubsub.broker.store_waiting());
        let is_flushed =
            unsent + unstored == 0 || pubsub.is_none_or(|pubsub| waited >= pubsub.timeout);
        if !(idle || waited >= LAST_CALLS) || !is_flushed {
            self.finishing = Some((result, since_ns));
            return None;
        }
        let waiting = calls.map_or(0, |calls| calls.figures(now_ns()).1.waiting);
        if waiting > 0 {
            warn!("{waiting} calls of the application were not made");
        }
        if unsent > 0 {
            warn!("{unsent} publications were not sent to the broker");
        }
        if events > 0 {
            warn!("{events} webhook events were not delivered");
        }
        Some(result)
    }
}
