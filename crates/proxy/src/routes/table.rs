//! [`Table`]: the current routes, for all threads. A worker caches them and reads one generation
//! number per request; it takes the lock only when that has changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::Routes;

/// The current routes.
#[derive(Debug, Default)]
pub struct Table {
    routes: RwLock<Arc<Routes>>,
    generation: AtomicU64,
}

impl Table {
    /// A table with these routes.
    #[must_use]
    pub fn new(routes: Routes) -> Self {
        Table { routes: RwLock::new(Arc::new(routes)), generation: AtomicU64::new(0) }
    }

    /// The current routes.
    #[must_use]
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes whenever the routes do.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the routes for every later request. Open tunnels are not affected.
    pub fn set(&self, routes: Routes) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// A worker's cache of the routes.
#[derive(Debug)]
pub struct Cached {
    routes: Arc<Routes>,
    generation: u64,
}

impl Cached {
    /// A cache of the current routes.
    #[must_use]
    pub fn new(table: &Table) -> Self {
        let generation = table.generation.load(Ordering::Acquire);
        Cached { routes: table.routes(), generation }
    }

    /// The current routes, read again if they have changed.
    #[inline]
    pub fn get(&mut self, table: &Table) -> &Arc<Routes> {
        if table.generation.load(Ordering::Acquire) != self.generation {
            *self = Cached::new(table);
        }
        &self.routes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::Pool;

    #[test]
    fn new_routes_are_used_by_the_next_request() {
        let named = |name| Routes::single(Arc::new(Pool::of(name, Vec::new())));
        let table = Table::new(named("old"));
        let mut cached = Cached::new(&table);
        assert_eq!(cached.get(&table).pools()[0].name(), "old");
        table.set(named("new"));
        assert_eq!(cached.get(&table).pools()[0].name(), "new");
        let cached_routes = Arc::clone(cached.get(&table));
        assert!(Arc::ptr_eq(&cached_routes, cached.get(&table)), "cached until the next change");
    }
}
