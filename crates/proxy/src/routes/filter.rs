//! [`UpstreamFilter`]: the upstreams that an operator means.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::balance::{Endpoint, Upstream, UpstreamAddress};

/// The upstreams that a request or a change applies to. What is left out matches all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamFilter {
    /// The pool.
    pub pool: Option<Box<str>>,
    /// The name as configured. In a pool without this name it is an address, with all its names.
    pub upstream: Option<Endpoint>,
    /// The address, as a name can have several.
    pub address: Option<UpstreamAddress>,
}

impl UpstreamFilter {
    /// The upstreams among these that match. Each is given with its pool.
    pub(super) fn select<'u>(
        &self,
        all: Vec<(&'u str, &'u Arc<Upstream>)>,
    ) -> Vec<(&'u str, &'u Arc<Upstream>)> {
        let name = self.upstream.as_ref().map(ToString::to_string);
        let of_pool = |(pool, _): &(&str, _)| self.pool.as_deref().is_none_or(|own| own == *pool);
        let mut found: Vec<(&str, &Arc<Upstream>)> = all.into_iter().filter(of_pool).collect();
        if let Some(name) = &name {
            let named = found.iter().filter(|(_, upstream)| *upstream.name() == **name);
            let pools: BTreeSet<&str> = named.map(|(pool, _)| *pool).collect();
            found.retain(|(pool, upstream)| {
                if pools.contains(pool) {
                    *upstream.name() == **name
                } else {
                    upstream.address().to_string() == *name
                }
            });
        }
        if let Some(address) = &self.address {
            found.retain(|(_, upstream)| upstream.address() == address);
        }
        found
    }
}
