//! What a worker reports to webhooks: connects, subscriptions and their ends. Without webhooks it is one
//! comparison per event.
//!
//! A connection is reported once it is welcome, and its end if it was reported.

use std::sync::Arc;

use engine::{ConnId, Core, Sys};

use super::ServeHandler;
use crate::hooks::{Event, EventKind, Hooks};
use crate::session::{Session, SessionProtocol};

/// One worker's part of the webhooks.
pub(super) struct WorkerHooks {
    hooks: Arc<Hooks>,
    /// A bit for each slot whose connection was reported.
    reported: Vec<u64>,
}

impl WorkerHooks {
    pub(super) fn new(hooks: Arc<Hooks>) -> Self {
        WorkerHooks { hooks, reported: Vec::new() }
    }

    /// Sets whether the connection in a slot was reported. Returns whether it was before.
    fn set_reported(&mut self, slot: u32, reported: bool) -> bool {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if reported && word >= self.reported.len() {
            self.reported.resize(word + 1, 0);
        }
        let Some(word) = self.reported.get_mut(word) else { return false };
        let before = *word & bit != 0;
        *word = if reported { *word | bit } else { *word & !bit };
        before
    }
}

impl ServeHandler {
    /// A connection is welcome. Further calls have no effect.
    pub(super) fn note_connect<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let Some(own) = &mut self.hooks else { return };
        if !own.set_reported(id.slot(), true) && own.hooks.wants(EventKind::Connect) {
            let (peer, client) = core.addresses(id);
            let address = client.or(peer);
            self.note(core, id, Event { address, ..Event::new(EventKind::Connect) });
        }
    }

    /// A connection is or was subscribed to a topic.
    pub(super) fn note_topic<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        kind: EventKind,
        topic: &str,
    ) {
        if self.hooks.is_some() {
            self.note(core, id, Event { topic: Some(topic), ..Event::new(kind) });
        }
    }

    /// A connection has ended or is about to; its subscriptions still exist.
    pub(super) fn note_end<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let Some(own) = &mut self.hooks else { return };
        if !own.set_reported(id.slot(), false) {
            return;
        }
        if own.hooks.wants(EventKind::Unsubscribe)
            && let Some(session) = core.user(id)
        {
            for topic in self.topics.topics_of(session.subscriptions()) {
                self.note_topic(core, id, EventKind::Unsubscribe, topic);
            }
        }
        self.note(core, id, Event::new(EventKind::Disconnect));
    }

    fn note<S: Sys>(&self, core: &Core<S, Self>, id: ConnId, event: Event<'_>) {
        let Some(own) = self.hooks.as_ref().filter(|own| own.hooks.wants(event.kind)) else {
            return;
        };
        let sid = self.shared.sids.of(id);
        let protocol = core.user(id).map_or(SessionProtocol::Http, Session::protocol);
        let event = Event {
            sid: Some(&sid),
            protocol: Some(protocol.name()),
            identity: self.sessions.identifiers(id).map(|identity| &**identity),
            ..event
        };
        own.hooks.add(core.now_ns(), &event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::WebhookConfig;
    use crate::shared::UnixClock;

    #[test]
    fn the_end_of_a_connection_is_reported_if_it_was_reported() {
        let hooks = Hooks::new(&WebhookConfig::default(), UnixClock::new(), 1);
        let mut own = WorkerHooks::new(hooks);
        assert!(!own.set_reported(1000, false));
        for slot in [0, 63, 64, 1000] {
            assert!(!own.set_reported(slot, true) && own.set_reported(slot, true));
        }
        assert!(own.set_reported(64, false) && !own.set_reported(64, false));
        assert!(own.set_reported(63, false) && own.set_reported(1000, false));
    }
}
