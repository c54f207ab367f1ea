//! Ends sessions at the application's request, a portion per turn: one identity may have any number
//! of them.

use std::collections::{BTreeMap, BTreeSet};

use engine::{ConnId, Core, Mode, Sys};

use super::ServeHandler;
use crate::broadcast::sid_of;
use crate::protocols::Disconnect;

/// Sessions ended in one turn.
const ENDED_PER_TURN: usize = 256;

/// Sessions that are still to be ended, by the identifiers in the request. Each session has one
/// identity, so there are never more than sessions.
pub(super) type Disconnects = BTreeMap<Box<str>, Sessions>;

/// The sessions of one request, each with whether its client may reconnect.
pub(super) type Sessions = Vec<(ConnId, bool)>;

impl ServeHandler {
    /// Ends all sessions that now have these identifiers: of tokens, or of one session by its
    /// session id. [`ServeHandler::continue_disconnects`] does so.
    pub(super) fn disconnect_all<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        identifiers: &str,
        reconnect: bool,
    ) {
        let named = sid_of(identifiers).and_then(|sid| self.shared.sids.find(&sid));
        if let Some(stored) = &self.shared.stored_sessions {
            stored.end_identity(identifiers, core.now_ns());
            named.iter().for_each(|id| stored.end(*id));
        }
        let named = named.filter(|id| id.worker() == core.worker());
        let found = self.sessions.find(identifiers).into_iter().chain(named);
        // What is left of an earlier request is part of this one.
        let earlier = self.disconnects.remove(identifiers);
        let sessions = merge(found, reconnect, earlier);
        if !sessions.is_empty() {
            self.disconnects.insert(identifiers.into(), sessions);
        }
    }

    /// Ends some of the sessions that are to be ended. Returns when to be called again.
    pub(super) fn continue_disconnects<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        for _ in 0..ENDED_PER_TURN {
            let mut first = self.disconnects.first_entry()?;
            let session = first.get_mut().pop();
            if first.get().is_empty() {
                first.remove();
            }
            // It may have ended since. A stream of events is a raw connection.
            let is_live = |id: ConnId| core.is_open(id) || core.mode(id) == Some(Mode::Raw);
            if let Some((id, reconnect)) = session.filter(|(id, _)| is_live(*id)) {
                self.counters(core.worker()).disconnected.add(1);
                self.disconnect(core, id, Disconnect::Remote { reconnect });
            }
        }
        (!self.disconnects.is_empty()).then(|| core.now_ns())
    }
}

/// The sessions of a request, with what is left of an earlier one with the same identifiers: a client that one
/// of them forbids to reconnect may not.
fn merge(
    found: impl Iterator<Item = ConnId>,
    reconnect: bool,
    earlier: Option<Sessions>,
) -> Sessions {
    let forbidden: BTreeSet<ConnId> =
        earlier.into_iter().flatten().filter(|(_, may)| !may).map(|(id, _)| id).collect();
    found.map(|id| (id, reconnect && !forbidden.contains(&id))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_request_does_not_lift_that_a_client_must_not_reconnect() {
        let ids = [1, 2, 3].map(ConnId::from_u64);
        let first = merge(ids.into_iter().take(2), false, None);
        assert_eq!(first, [(ids[0], false), (ids[1], false)]);
        // One of them has ended meanwhile, another client has connected.
        let second = merge(ids.into_iter().skip(1), true, Some(first));
        assert_eq!(second, [(ids[1], false), (ids[2], true)]);
        let third = merge(ids.into_iter().skip(1), false, Some(second));
        assert_eq!(third, [(ids[1], false), (ids[2], false)]);
    }
}
