//! Ends sessions whose token has expired (`--end-expired`).

use engine::{Core, Sys};

use super::ServeHandler;
use crate::auth::Cause;
use crate::protocols::Disconnect;

/// Sessions ended in one turn: many tokens may expire at the same moment.
const ENDED_PER_TURN: usize = 256;
const NS_PER_S: u64 = 1_000_000_000;

impl ServeHandler {
    /// Ends expired sessions. Returns when to be called again.
    pub(super) fn end_expired<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let next_unix_s = self.sessions.next_expiry_unix_s()?;
        let now_ns = core.now_ns();
        let now_unix_s = self.shared.unix_s(now_ns);
        if now_unix_s <= next_unix_s {
            // Tokens are valid to the end of their last second.
            let left_s = next_unix_s.saturating_sub(now_unix_s).saturating_add(1);
            return Some(now_ns.saturating_add(left_s.saturating_mul(NS_PER_S)));
        }
        for _ in 0..ENDED_PER_TURN {
            let Some(id) = self.sessions.take_expired(now_unix_s) else { break };
            self.counters(core.worker()).auth_refused.add(Cause::TokenExpired);
            self.disconnect(core, id, Disconnect::TokenExpired);
        }
        Some(now_ns)
    }
}
