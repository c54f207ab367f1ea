//! [`KnownUpstreams`]: the upstreams of the previous table while the next one is built. An upstream is
//! known by pool, name and address. If a pool no longer has its name, a new name at its address takes
//! it over: a reload that renames an upstream keeps its connections and its state.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Retired, Routes};
use crate::balance::{Upstream, UpstreamAddress};

/// The upstreams that no pool of the next table has taken yet, by pool and address.
pub(super) struct KnownUpstreams(BTreeMap<Box<str>, BTreeMap<UpstreamAddress, Vec<Arc<Upstream>>>>);

impl KnownUpstreams {
    /// All upstreams of a table.
    pub(super) fn of(routes: &Routes) -> Self {
        let mut pools = BTreeMap::<_, BTreeMap<_, Vec<_>>>::new();
        for pool in routes.pools() {
            let addresses = pools.entry(pool.name().into()).or_default();
            for member in pool.members() {
                let upstream = &member.upstream;
                let named = addresses.entry(upstream.address().clone()).or_default();
                named.push(Arc::clone(upstream));
            }
        }
        KnownUpstreams(pools)
    }

    /// Whether the table had no upstream.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(BTreeMap::is_empty)
    }

    /// Takes the upstream of this pool, name and address.
    pub(super) fn take(
        &mut self,
        pool: &str,
        name: &str,
        address: &UpstreamAddress,
    ) -> Option<Arc<Upstream>> {
        self.take_where(pool, address, |known| *known == *name)
    }

    /// Takes an upstream at this address whose name the pool no longer has; `has` tells which it has.
    pub(super) fn take_renamed(
        &mut self,
        pool: &str,
        address: &UpstreamAddress,
        has: impl Fn(&str) -> bool,
    ) -> Option<Arc<Upstream>> {
        self.take_where(pool, address, |known| !has(known))
    }

    fn take_where(
        &mut self,
        pool: &str,
        address: &UpstreamAddress,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Option<Arc<Upstream>> {
        let named = self.0.get_mut(pool)?.get_mut(address)?;
        let at = named.iter().position(|upstream| is_wanted(&upstream.name()))?;
        Some(named.remove(at))
    }

    /// What is left: these upstreams were removed.
    pub(super) fn into_retired(self) -> impl Iterator<Item = Retired> {
        self.0.into_iter().flat_map(|(pool, addresses)| {
            let upstreams = addresses.into_values().flatten();
            upstreams.map(move |upstream| Retired { pool: pool.clone(), upstream })
        })
    }
}
