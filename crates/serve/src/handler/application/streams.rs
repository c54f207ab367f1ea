//! Streams of subscriptions that the application has chosen, and the memory of its sessions.

use engine::{ConnId, Core, Sys};

use super::ServeHandler;
use crate::auth::{Cause, Whispers};
use crate::hooks::EventKind;
use crate::identifiers::subscription_bytes;
use crate::path::check_topic;
use crate::protocols::Disconnect;

impl ServeHandler {
    /// Subscribes a connection to streams of one of its subscriptions.
    pub(super) fn start_streams<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
        streams: &[impl AsRef<str>],
    ) -> Result<(), Cause> {
        let index = match self.app_channel(id, identifier) {
            _ if streams.is_empty() => return Ok(()),
            None => return Ok(()),
            Some(index) => index,
        };
        let group = self.cable_group(core, id, index).number();
        for stream in streams.iter().map(AsRef::as_ref) {
            check_topic(stream).map_err(|_| Cause::StreamName)?;
            let held = core.user(id).map_or(0, |session| session.subscriptions().len());
            if held >= self.policy.channels.max_subscriptions {
                return Err(Cause::Subscriptions);
            }
            let bytes = subscription_bytes(identifier, stream);
            let total = self.session_bytes(core, id).saturating_add(bytes as usize);
            if total > self.policy.channels.max_subscription_bytes {
                return Err(Cause::SubscriptionBytes);
            }
            // Each stream keeps the identifier, too.
            self.identifiers.begin(identifier, "", Whispers::Never);
            if self.topics.subscribe(core, id, stream, group) {
                self.counters(core.worker()).subscriptions.add(1);
                self.note_topic(core, id, EventKind::Subscribe, stream);
                self.count_bytes(core, id, |held| held.saturating_add(bytes));
            } else {
                self.identifiers.end(index);
            }
        }
        Ok(())
    }

    /// Ends streams of a subscription.
    pub(super) fn stop_streams<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
        stops: impl Fn(&str) -> bool,
    ) {
        let Some(index) = self.app_channel(id, identifier) else { return };
        let group = self.cable_group(core, id, index).number();
        let Some(session) = core.user(id) else { return };
        let all = self.topics.groups_of(session.subscriptions());
        let stopped = all.filter(|(kind, topic, _)| *kind == group && stops(topic));
        let stopped: Vec<Box<str>> = stopped.map(|(_, topic, _)| topic.into()).collect();
        for topic in stopped {
            let bytes = subscription_bytes(identifier, &topic);
            self.count_bytes(core, id, |held| held.saturating_sub(bytes));
            self.stop_replay(core, id, group, &topic);
            if self.topics.unsubscribe(core, id, &topic, group) {
                self.identifiers.end(index);
                self.counters(core.worker()).subscriptions.sub(1);
                self.note_topic(core, id, EventKind::Unsubscribe, &topic);
            }
        }
    }

    /// Ends a subscription.
    pub(super) fn end_channel<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
    ) {
        let Some(index) = self.app_channel(id, identifier) else { return };
        self.replays.remove(id, self.cable_group(core, id, index).number());
        self.stop_streams(core, id, identifier, |_| true);
        self.end_presence(core, id, index);
        if let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) {
            session.channels.retain(|channel| channel.identifier != index);
            session.channels.shrink_to(session.channels.len() * 2);
        }
        self.identifiers.end(index);
    }

    /// The memory of a connection's session and streams, in bytes.
    pub(in crate::handler) fn session_bytes<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
    ) -> usize {
        let streams = core.user(id).map_or(0, |session| session.subscriptions().bytes());
        self.app_held(id) + self.members.held(id) + streams as usize
    }

    /// The memory of a connection's session, in bytes; 0 if it has none.
    pub(in crate::handler) fn app_held(&self, id: ConnId) -> usize {
        let session = self.app.as_ref().and_then(|app| app.by_slot.get(&id.slot()));
        session.filter(|session| session.id == id).map_or(0, |session| session.bytes())
    }

    /// Ends a connection that holds more than it may because of the application's answers.
    pub(super) fn over_budget<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        let over = self.session_bytes(core, id) > self.policy.channels.max_subscription_bytes;
        if over {
            self.refuse_access(core.worker(), Cause::SubscriptionBytes, "");
            self.disconnect(core, id, Disconnect::AppFailed);
        }
        over
    }

    /// Counts the memory of a session as it is now.
    pub(super) fn count_app_bytes<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) else { return };
        let now = u32::try_from(session.bytes()).unwrap_or(u32::MAX);
        let before = std::mem::replace(&mut session.counted, now);
        let counters = self.counters(core.worker());
        counters.subscription_bytes.add(now.saturating_sub(before).into());
        counters.uncount_bytes(before.saturating_sub(now));
    }
}
