//! [`Table`]: the routes in force, for all threads. A worker keeps what it saw last and looks at one
//! number per request; only when that has changed does it take the lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::Routes;

/// The routes in force.
#[derive(Debug, Default)]
pub struct Table {
    routes: RwLock<Arc<Routes>>,
    generation: AtomicU64,
}

impl Table {
    /// A table that begins with these.
    #[must_use]
    pub fn new(routes: Routes) -> Self {
        Table { routes: RwLock::new(Arc::new(routes)), generation: AtomicU64::new(0) }
    }

    /// Those in force now.
    #[must_use]
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes whenever the routes do.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Puts others in force, for every request from now on. Tunnels know nothing of it.
    pub fn set(&self, routes: Routes) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// What a worker saw last.
#[derive(Debug)]
pub struct Cached {
    routes: Arc<Routes>,
    generation: u64,
}

impl Cached {
    /// As they are now.
    #[must_use]
    pub fn new(table: &Table) -> Self {
        let generation = table.generation.load(Ordering::Acquire);
        Cached { routes: table.routes(), generation }
    }

    /// The routes in force.
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
    fn what_is_set_is_seen_with_the_next_look() {
        let named = |name| Routes::single(Arc::new(Pool::of(name, Vec::new())));
        let table = Table::new(named("old"));
        let mut cached = Cached::new(&table);
        assert_eq!(cached.get(&table).pools()[0].name(), "old");
        table.set(named("new"));
        assert_eq!(cached.get(&table).pools()[0].name(), "new");
        let seen = Arc::clone(cached.get(&table));
        assert!(Arc::ptr_eq(&seen, cached.get(&table)), "and is kept until the next change");
    }
}
