//! [`Delivery`]: posts that every worker must receive, such as a new configuration. One that finds a
//! mailbox full is posted again until it is delivered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::Remote;
use tracing::{info, warn};

/// Attempts, a millisecond apart, before a post is left to the periodic task.
const TRIES: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(1);

type Make<P> = Arc<dyn Fn() -> P + Send + Sync>;

/// The latest post of each worker that has not received it yet.
pub(crate) struct Delivery<P>(Mutex<BTreeMap<usize, Make<P>>>);

impl<P> Default for Delivery<P> {
    fn default() -> Self {
        Delivery(Mutex::default())
    }
}

impl<P> Delivery<P> {
    fn late(&self) -> MutexGuard<'_, BTreeMap<usize, Make<P>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts to each of these workers. What is not delivered within a moment replaces what an earlier
    /// call left, and [`Delivery::retry`] delivers it.
    pub(crate) fn post(
        &self,
        remote: &Remote<P>,
        workers: impl Iterator<Item = usize>,
        make: Make<P>,
    ) {
        let mut late = self.late();
        for worker in workers {
            // An older one must not arrive later.
            late.remove(&worker);
            let delivered = (0..TRIES).any(|_| {
                let posted = remote.post(worker, make(), 0).is_ok();
                if !posted {
                    std::thread::sleep(BETWEEN);
                }
                posted
            });
            if !delivered {
                warn!(
                    "configuration not delivered to worker {worker} yet, its mailbox is full: retrying"
                );
                late.insert(worker, Arc::clone(&make));
            }
        }
    }

    /// Tries again what is not delivered.
    pub(crate) fn retry(&self, remote: &Remote<P>) {
        self.late().retain(|worker, make| {
            let posted = remote.post(*worker, make(), 0).is_ok();
            if posted {
                info!("configuration delivered to worker {worker}");
            }
            !posted
        });
    }

    /// Workers that have not received the latest post.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.late().len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use engine::{
        Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Sys, Tables, Workers,
    };
    use wire::websocket::OpCode;

    use super::*;

    enum Post {
        /// Tells that it has been taken, and blocks the worker until the other end is dropped.
        Block(Sender<()>, Receiver<()>),
        Fill,
        Configuration(u32),
    }

    struct Host(Sender<u32>);

    impl Handler for Host {
        type User = ();
        type Post = Post;

        fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
            Answer::Upgrade(None)
        }

        fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

        fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

        fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

        fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, post: Post) {
            match post {
                Post::Block(taken, until) => {
                    taken.send(()).unwrap();
                    let _ = until.recv();
                }
                Post::Configuration(number) => drop(self.0.send(number)),
                Post::Fill => {}
            }
        }
    }

    #[test]
    fn a_worker_that_was_busy_gets_the_latest_configuration() {
        let plan = Plan { workers: 2, accepting: 2, capacity: 1, tables: Tables::Shared };
        let limits = Limits { mailbox_bytes: 4096, ..Limits::default() };
        let (sender, received) = channel();
        let workers = Workers::start(plan, &limits, &[], move |_, _| Host(sender.clone())).unwrap();
        let remote = workers.remote();
        let ((taken, begun), (block, until)) = (channel(), channel::<()>());
        assert!(remote.post(0, Post::Block(taken, until), 0).is_ok());
        begun.recv().unwrap();
        while remote.post(0, Post::Fill, 4000).is_ok() {}
        let delivery = Delivery::default();
        for number in [1, 2] {
            delivery.post(remote, 0..2, Arc::new(move || Post::Configuration(number)));
            assert_eq!(received.recv(), Ok(number), "the other worker has it");
            assert_eq!(delivery.waiting(), 1);
        }
        delivery.retry(remote);
        assert_eq!(delivery.waiting(), 1);
        drop(block);
        while delivery.waiting() > 0 {
            delivery.retry(remote);
            std::thread::sleep(BETWEEN);
        }
        assert_eq!(received.recv(), Ok(2), "only the latest");
        workers.drain(Duration::ZERO).unwrap();
        assert!(received.try_recv().is_err());
    }
}
