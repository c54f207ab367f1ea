//! Ends sessions at the application's request, a portion per turn: one identity may have any number
//! of them.

use std::collections::BTreeMap;

use engine::{ConnId, Core, Mode, Sys};

use super::ServeHandler;
use crate::protocols::Disconnect;

/// Sessions ended in one turn.
const ENDED_PER_TURN: usize = 256;

/// Sessions that are still to be ended, by the identifiers in the request. Each session has one
/// identity, so there are never more than sessions.
pub(super) type Disconnects = BTreeMap<Box<str>, Sessions>;

/// The sessions of one request.
pub(super) struct Sessions {
    ids: Vec<ConnId>,
    reconnect: bool,
}

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
        let named = named.filter(|id| id.worker() == core.worker());
        let ids: Vec<ConnId> = self.sessions.find(identifiers).into_iter().chain(named).collect();
        if !ids.is_empty() {
            // What is left of an earlier request is part of this one.
            self.disconnects.insert(identifiers.into(), Sessions { ids, reconnect });
        }
    }

    /// Ends some of the sessions that are to be ended. Returns when to be called again.
    pub(super) fn continue_disconnects<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        for _ in 0..ENDED_PER_TURN {
            let mut first = self.disconnects.first_entry()?;
            let Sessions { ids, reconnect } = first.get_mut();
            let (id, reconnect) = (ids.pop(), *reconnect);
            if ids.is_empty() {
                first.remove();
            }
            // It may have ended since. A stream of events is a raw connection.
            let is_live = |id: &ConnId| matches!(core.mode(*id), Some(Mode::WebSocket | Mode::Raw));
            if let Some(id) = id.filter(is_live) {
                self.counters(core.worker()).disconnected.add(1);
                self.disconnect(core, id, Disconnect::Remote { reconnect });
            }
        }
        (!self.disconnects.is_empty()).then(|| core.now_ns())
    }
}

/// The session id in `{"sid":"…"}`, which names a connection without a token.
fn sid_of(identifiers: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(identifiers).ok()?;
    Some(value.get("sid")?.as_str()?.to_owned())
}
