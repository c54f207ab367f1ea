//! Metrics of long polling. Its sessions are counted by the engine, as `polled`.

use admin::{Exposition, Kind};
use engine::Counter;

use super::Control;
use crate::shared::WorkerCounters;

impl Control {
    pub(super) fn long_polling_metrics(&self, exposition: &mut Exposition) {
        let mut counter = |name, help, of: fn(&WorkerCounters) -> &Counter| {
            let value = self.sum(|worker| of(worker).get());
            exposition.single(name, Kind::Counter, help, value as f64);
        };
        let help = "Requests for long polling whose head and body were received.";
        counter("long_polling_requests", help, |worker| &worker.long_polling_requests);
        let help = "Requests for sessions of long polling that do not exist any more.";
        counter("long_polling_stale", help, |worker| &worker.long_polling_stale);
        let help = "Requests for long polling that another one for their session has replaced.";
        counter("long_polling_replaced", help, |worker| &worker.long_polling_replaced);
        let help = "Sessions of long polling that ended because no request came.";
        counter("long_polling_expired", help, |worker| &worker.long_polling_expired);
        let help =
            "Messages kept for the next request because the client had left before the answer.";
        counter("long_polling_returned", help, |worker| &worker.long_polling_returned);
        let help = "Those of them that another worker had no room for.";
        counter("long_polling_lost", help, |worker| &worker.long_polling_lost);
    }
}
