//! The part of a connection that keeps and takes values. The next batch is sent when the one before is answered.

use tracing::warn;

use super::Driver;
use crate::limits::{DELIVERY_PAUSE, LOG_INTERVAL_NS};
use crate::store::{Batch, StoreAnswer};
use crate::transport::{Fault, FaultKind, Link};

impl Driver {
    /// Performs what is queued. Ends with a fault.
    pub(super) async fn store(&self, link: &impl Link) -> Fault {
        let queue = &self.shard().store;
        let mut logged_ns = 0;
        queue.open();
        loop {
            let now_ns = self.broker.now_ns();
            let batch = queue.take_batch(now_ns);
            if batch.len() > 0 {
                let answers = match &batch {
                    Batch::Commands(commands) => link.store(commands).await,
                    Batch::Read(keys) => link.read(keys).await,
                    Batch::Add(values) => link.add(values).await,
                };
                let answers = match answers {
                    Ok(answers) if answers.len() == batch.len() => answers,
                    Ok(_) => return Fault::new(FaultKind::Protocol, "wrong number of answers"),
                    Err(fault) => return fault,
                };
                let refused = answers.iter().find_map(|answer| match answer {
                    StoreAnswer::Refused(why) => Some(why),
                    _ => None,
                });
                if let Some(why) = refused
                    && (logged_ns == 0 || now_ns.saturating_sub(logged_ns) >= LOG_INTERVAL_NS)
                {
                    logged_ns = now_ns.max(1);
                    warn!("pubsub store refused: {}: {why}", self.shard().server);
                }
                queue.answer(answers);
            }
            if !self.tell_answers().await && batch.len() == 0 {
                queue.wakes.notified().await;
            }
        }
    }

    /// The connection is lost.
    pub(super) async fn store_lost(&self) {
        self.shard().store.close();
        self.tell_answers().await;
    }

    /// Returns whether there were some.
    async fn tell_answers(&self) -> bool {
        let queue = &self.shard().store;
        let mut some = false;
        while let Some((request, answer)) = queue.next_answer() {
            some = true;
            if !(request.on_answer)(&answer) {
                // Kept, so that it is told although the connection is lost meanwhile.
                queue.keep_answer(request, answer);
                tokio::time::sleep(DELIVERY_PAUSE).await;
            }
        }
        some
    }
}
