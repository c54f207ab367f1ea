//! The queue of a pool: requests that wait while every upstream is at its maximum, and the counts that
//! pools of one name share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::invariant;

use super::pool::Pool;

/// State that pools of one name share across tables.
#[derive(Debug, Default)]
pub(crate) struct PoolState {
    pub(super) turn: AtomicU64,
    /// Queued requests: the worker of each, by a growing ticket number.
    queue: Mutex<BTreeMap<u64, usize>>,
    tickets: AtomicU64,
    pub(super) waiting: AtomicU32,
    pub(crate) busy: AtomicU64,
    pub(crate) down: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) overflowed: AtomicU64,
    pub(crate) panicked: AtomicU64,
    pub(crate) backup_picked: AtomicU64,
    pub(crate) ejections_withheld: AtomicU64,
}

impl PoolState {
    pub(super) fn queue(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a request of this worker to the queue, if the queue is shorter than `most`; returns
    /// its ticket.
    pub(super) fn push(&self, worker: usize, most: usize) -> Option<u64> {
        let mut queue = self.queue();
        if queue.len() >= most {
            return None;
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        queue.insert(ticket, worker);
        self.update_waiting(&queue);
        Some(ticket)
    }

    /// Removes a request from the queue; returns its worker.
    fn remove(&self, ticket: u64) -> Option<usize> {
        let mut queue = self.queue();
        let worker = queue.remove(&ticket);
        self.update_waiting(&queue);
        if worker.is_none() {
            invariant::broken("a request that waits is in its pool's queue");
        }
        worker
    }

    fn update_waiting(&self, queue: &BTreeMap<u64, usize>) {
        self.waiting.store(u32::try_from(queue.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// A queued request; dropping it leaves the queue.
#[derive(Debug)]
pub struct QueueTicket {
    pub(super) pool: Arc<Pool>,
    pub(super) ticket: u64,
}

impl QueueTicket {
    /// Whether this request has waited longest.
    #[must_use]
    pub fn is_first(&self) -> bool {
        let queue = self.pool.state().queue();
        queue.first_key_value().is_none_or(|(first, _)| *first >= self.ticket)
    }

    /// Follows a change of the pool: waits for the new upstreams, at the same position in the queue.
    pub(crate) fn move_to(&mut self, pool: &Arc<Pool>) {
        if !self.pool.shares_queue_with(pool) {
            // The pool was removed and added again: the request goes to the end of the new queue.
            let worker = self.pool.state().remove(self.ticket);
            let ticket = pool.state().push(worker.unwrap_or_default(), usize::MAX);
            self.ticket = ticket.unwrap_or(self.ticket);
        }
        pool.members().iter().for_each(|member| member.upstream.count_waiter(true));
        self.pool.members().iter().for_each(|member| member.upstream.count_waiter(false));
        self.pool = Arc::clone(pool);
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.pool.state().remove(self.ticket);
        self.pool.members().iter().for_each(|member| member.upstream.count_waiter(false));
    }
}
