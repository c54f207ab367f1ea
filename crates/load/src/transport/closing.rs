//! [`Closing`]: closes a worker's connections, some per turn.

use engine::{Core, Sys};
use wire::websocket::CloseCode;

use crate::Close;
use crate::outcome::metrics::Metrics;
use crate::workload::client::Client;

const CLOSES_PER_TURN: u32 = 512;
const LOOK_AGAIN_NS: u64 = 5_000_000;

/// The closing of one worker's connections.
pub(crate) struct Closing {
    how: Close,
    next_slot: u32,
}

impl Closing {
    pub(crate) fn new(how: Close) -> Closing {
        Closing { how, next_slot: 0 }
    }

    pub(crate) fn turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        metrics: &Metrics,
    ) -> Option<u64> {
        let to = core.slots().min(self.next_slot.saturating_add(CLOSES_PER_TURN));
        for slot in self.next_slot..to {
            let Some(id) = core.id_at(slot) else { continue };
            match self.how {
                Close::Graceful => core.close(id, CloseCode::NORMAL, ""),
                Close::Abort => core.reset(id),
            }
        }
        self.next_slot = to.max(self.next_slot);
        if self.next_slot < core.slots() {
            return Some(core.now_ns());
        }
        if core.connections() == 0 {
            metrics.set_finished();
            return None;
        }
        // Connections close after the handler's turn, which wakes nothing.
        Some(core.now_ns() + LOOK_AGAIN_NS)
    }
}
