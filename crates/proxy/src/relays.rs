//! [`Relays`]: the relays of one proxy without its threads, listeners and control plane, for the simulation,
//! which runs workers itself.

use std::sync::Arc;

use engine::Limits;

use crate::config::{Live, RouteTimeouts};
use crate::counters::{Counters, EndReason, Refusal};
use crate::relay::Relay;
use crate::routes::{Registry, RoutesConfig, Table};
use crate::shared::Shared;

/// Relays of one proxy, one per worker.
pub struct Relays {
    shared: Arc<Shared>,
    registry: Registry,
}

/// Counters of the relays, summed over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tunnels open now.
    pub tunnels: u64,
    /// Requests whose response is incomplete.
    pub exchanges: u64,
    /// Tunnels opened.
    pub opened: u64,
    /// Requests accepted.
    pub requests: u64,
    /// Handshakes with a response other than 101.
    pub declined: u64,
    /// Requests retried.
    pub retries: u64,
    /// Requests sent on a reused connection.
    pub reused: u64,
    /// Bytes from clients in tunnels that have ended.
    pub bytes_up: u64,
    /// Bytes from upstreams in tunnels that have ended.
    pub bytes_down: u64,
    /// Requests that the proxy itself answered with an error, in the order of [`Refusal::ALL`].
    pub refused: Vec<u64>,
    /// Tunnels ended, in the order of [`EndReason::ALL`].
    pub ended: Vec<u64>,
    /// Connections counted against the limits of upstreams.
    pub places: u64,
}

impl Relays {
    /// Creates relays with these routes and settings; no name is resolved.
    ///
    /// # Errors
    /// Invalid routes.
    pub fn new(routes: RoutesConfig, live: Live, workers: usize) -> Result<Relays, String> {
        let table = Arc::new(Table::default());
        let mut registry = Registry::new(Arc::clone(&table));
        registry.apply(routes, 0)?;
        let shared = Shared::new(table, live, workers, Vec::new(), None);
        Ok(Relays { shared: Arc::new(shared), registry })
    }

    /// The handler of one worker.
    #[must_use]
    pub fn relay(&self, worker: u16) -> Relay {
        Relay::new(worker, Arc::clone(&self.shared))
    }

    /// The limits its worker starts with.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.live().engine_limits(&RouteTimeouts::default())
    }

    /// The upstreams, which may change while tunnels are open.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// The counters so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let sum = |of: fn(&Counters) -> u64| self.shared.counters.iter().map(of).sum();
        let by = |of: &dyn Fn(&Counters) -> u64| self.shared.counters.iter().map(of).sum();
        let routes = self.shared.table.routes();
        let members = routes.pools().iter().flat_map(|pool| pool.members());
        Tally {
            tunnels: sum(|counters| counters.tunnels.get()),
            exchanges: sum(|counters| counters.exchanges.get()),
            opened: sum(|counters| counters.opened.get()),
            requests: sum(|counters| counters.requests.get()),
            declined: sum(|counters| counters.declined.get()),
            retries: sum(|counters| counters.retries.get()),
            reused: sum(|counters| counters.reused.get()),
            bytes_up: sum(|counters| counters.bytes_up.get()),
            bytes_down: sum(|counters| counters.bytes_down.get()),
            refused: Refusal::ALL.map(|why| by(&|counters| counters.refused(why))).to_vec(),
            ended: EndReason::ALL.map(|why| by(&|counters| counters.ended(why))).to_vec(),
            places: members.map(|member| u64::from(member.upstream.tunnels())).sum(),
        }
    }
}
