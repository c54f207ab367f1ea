//! Commands of protocols with subscriptions, and the start and end of their sessions.

use std::borrow::Cow;
use std::sync::Arc;

use action_cable::{Channel, Encoding, History, Message, Presence, Protocol};
use engine::{ConnId, Core, Sys, invariant};
use topics::{Publication, Subscriber};

use super::ServeHandler;
use crate::app::call::Env;
use crate::auth::{Cause, StreamGrant, TokenIdentity};
use crate::hooks::EventKind;
use crate::identifiers::{
    Form, Group, Identifier, MEMBERSHIP_BYTES, subscription_bytes, topic_share,
};
use crate::protocols::{Cable, Disconnect, PlainTopic, ProtocolAdapter, encode_message};
use crate::resume::StoredSession;
use crate::session::{Session, SessionProtocol};

/// Longest identifier, in bytes; signed names have some hundreds. A worker keeps one copy while it has
/// a subscription.
pub(super) const IDENTIFIER_BYTES_MAX: usize = 4096;

impl ServeHandler {
    /// Starts an Action Cable session, or disconnects it with the reason.
    pub(super) fn open_cable<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        protocol: Protocol,
        identity: Result<Option<TokenIdentity>, Disconnect>,
        env: Option<Env>,
        resumed: Option<StoredSession>,
    ) {
        let known = identity.as_ref().ok().and_then(Option::as_ref);
        self.begin_session(core, id, Session::cable(protocol), known);
        if let Err(reason) = identity {
            return self.disconnect(core, id, reason);
        }
        let restored = match (resumed, env) {
            (Some(session), env) => self.resume(core, id, session, env),
            (None, Some(env)) => {
                if self.begin_app_session(core, id, env) {
                    return;
                }
                None
            }
            (None, None) => None,
        };
        self.note_connect(core, id);
        let sid = Some(self.shared.sids.of(id).into());
        let restored = restored.map(|ids| ids.into_iter().map(Cow::Owned).collect());
        self.send_message(core, id, &Message::Welcome { sid, restored });
    }

    /// Starts a session, which ends with its token or at the application's request if it has an
    /// identity.
    pub(super) fn begin_session<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        session: Session,
        identity: Option<&TokenIdentity>,
    ) {
        if let Some(identity) = identity {
            self.sessions.add(id, identity);
        }
        if session.protocol().has_heartbeat() {
            if self.heartbeat_connections == 0 {
                self.heartbeat.begin(core.now_ns());
            }
            self.heartbeat_connections += 1;
        }
        match core.user_mut(id) {
            Some(user) => *user = session,
            None => invariant::broken("a connection has a session from its start"),
        }
    }

    pub(super) fn subscribe<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: Cow<'_, str>,
        history: Option<&History<'_>>,
        presence: Option<&Presence<'_>>,
    ) -> bool {
        // Clients repeat the command every half second until it is confirmed.
        if self.is_subscribed(core, id, &identifier) {
            self.send_message(core, id, &Message::Confirm { identifier });
            return true;
        }
        if self.is_held(id, &identifier) {
            return false;
        }
        let grant = match self.grant(core, id, &identifier) {
            Ok(grant) => grant,
            Err(cause) => {
                self.refuse_access(core.worker(), cause, unsigned(&identifier));
                self.send_message(core, id, &Message::Reject { identifier });
                return false;
            }
        };
        if !self.is_confirmed(&grant.stream) {
            if !self.hold_subscribe(core, id, &grant.stream, &identifier, history, presence) {
                self.refuse_access(core.worker(), Cause::SubscriptionBytes, unsigned(&identifier));
                self.send_message(core, id, &Message::Reject { identifier });
            }
            return false;
        }
        self.join(core, id, &identifier, &grant);
        self.send_message(core, id, &Message::Confirm { identifier });
        true
    }

    /// Adds a connection to the subscribers of a stream that it may subscribe to.
    pub(super) fn join<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
        grant: &StreamGrant,
    ) {
        let bytes = subscription_bytes(identifier, &grant.stream);
        let index = self.identifiers.begin(identifier, &grant.stream, grant.whispers);
        let group = self.cable_group(core, id, index);
        if self.topics.subscribe(core, id, &grant.stream, group.number()) {
            self.counters(core.worker()).subscriptions.add(1);
            self.count_bytes(core, id, |held| held.saturating_add(bytes));
            self.note_topic(core, id, EventKind::Subscribe, &grant.stream);
        } else {
            self.identifiers.end(index);
        }
    }

    pub(super) fn unsubscribe<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
    ) {
        self.unhold(id, identifier);
        // No client of this worker is subscribed by it, so this one is not either.
        let Some((index, found)) = self.identifiers.find(identifier) else { return };
        let (topic, bytes) = (Arc::clone(&found.topic), found.bytes());
        let group = self.cable_group(core, id, index);
        if self.is_subscribed(core, id, identifier) {
            self.replays.remove(id, group.number());
            self.end_presence(core, id, index);
            // Without subscriptions there is nothing to count for.
            self.count_bytes(core, id, |held| held.saturating_sub(bytes));
            self.topics.unsubscribe(core, id, &topic, group.number());
            self.identifiers.end(index);
            self.counters(core.worker()).subscriptions.sub(1);
            self.note_topic(core, id, EventKind::Unsubscribe, &topic);
        }
    }

    pub(super) fn subscribe_to_events<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &str,
    ) {
        let group = Group { encoding: 0, messages: Encoding::Json, form: Form::Event };
        self.topics.subscribe(core, id, topic, group.number());
        self.counters(core.worker()).subscriptions.add(1);
        self.note_topic(core, id, EventKind::Subscribe, topic);
    }

    /// Publishes to the other subscribers by this identifier, if it is subscribed and may whisper.
    pub(super) fn whisper<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
        data: &str,
    ) {
        let may = self.is_subscribed(core, id, identifier);
        let allows = |whispers| may && self.policy.access.allows(whispers);
        let found = self.identifiers.find(identifier).filter(|(_, found)| allows(found.whispers));
        let Some((_, found)) = found else {
            return self.counters(core.worker()).commands_ignored.add(1);
        };
        let topic = Arc::clone(&found.topic);
        let mut publication =
            Publication::new(topic, data.as_bytes().into(), false).accepted(core.now_ns());
        publication.except = Some(id);
        publication.transient = true;
        self.publish(core, id, Arc::new(publication));
    }

    /// Ends a session as its protocol does.
    pub(super) fn disconnect<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        reason: Disconnect,
    ) {
        self.note_disconnect(id, reason);
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let protocol = core.user(id).map_or(SessionProtocol::Http, Session::protocol);
        let (code, why) = match protocol {
            SessionProtocol::Cable | SessionProtocol::CableExt => {
                Cable::disconnect(reason, &mut text)
            }
            _ => PlainTopic::disconnect(reason, &mut text),
        };
        if protocol == SessionProtocol::CableExt && self.stored_sessions().is_some() {
            // A session that the server ends is not kept.
            self.note_end(core, id);
            self.end_app_session(core, id, false);
            self.unsubscribe_all(core, id);
        }
        if !text.is_empty() {
            self.send_json(core, id, &text);
        }
        self.text = text;
        core.close(id, code, why);
    }

    pub(super) fn send_message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        message: &Message<'_>,
    ) {
        let mut text = std::mem::take(&mut self.text);
        self.send_json(core, id, encode_message(message, &mut text));
        self.text = text;
    }

    pub(super) fn is_subscribed<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        identifier: &str,
    ) -> bool {
        let Some((index, found)) = self.identifiers.find(identifier) else { return false };
        let group = self.cable_group(core, id, index);
        core.user(id).is_some_and(|session| {
            self.topics.is_subscribed(session.subscriptions(), &found.topic, group.number())
        })
    }

    /// The stream that an identifier names, if the connection may subscribe to it.
    pub(super) fn grant<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        identifier: &str,
    ) -> Result<StreamGrant, Cause> {
        let (waiting_bytes, waiting) = self.held_commands(id);
        let held = core.user(id).map_or(0, |session| session.subscriptions().len()) + waiting;
        if held >= self.policy.channels.max_subscriptions {
            return Err(Cause::Subscriptions);
        }
        if identifier.len() > IDENTIFIER_BYTES_MAX {
            return Err(Cause::Identifier);
        }
        let channel = action_cable::channel(identifier).map_err(|_| Cause::Identifier)?;
        let grant = self.policy.access.stream(&channel, self.shared.unix_s(core.now_ns()))?;
        let bytes = core.user(id).map_or(0, |session| session.subscriptions().bytes());
        let bytes = bytes.saturating_add(subscription_bytes(identifier, &grant.stream));
        let bytes = self.members.held(id) + waiting_bytes + bytes as usize;
        if bytes > self.policy.channels.max_subscription_bytes {
            return Err(Cause::SubscriptionBytes);
        }
        Ok(grant)
    }

    /// Changes the memory that is counted for a connection's subscriptions.
    pub(super) fn count_bytes<S: Sys>(
        &self,
        core: &mut Core<S, Self>,
        id: ConnId,
        change: impl FnOnce(u32) -> u32,
    ) {
        let Some(session) = core.user_mut(id) else { return };
        let before = session.subscriptions().bytes();
        session.memberships().set_bytes(change(before));
        let now = session.subscriptions().bytes();
        let (added, freed) = (now.saturating_sub(before), before.saturating_sub(now));
        let counters = self.counters(core.worker());
        counters.subscription_bytes.add(added.into());
        counters.uncount_bytes(freed);
    }

    /// Ends all subscriptions of a connection.
    pub(super) fn unsubscribe_all<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let Some(session) = core.user(id) else {
            return invariant::broken("a closing connection has a session");
        };
        self.replays.remove_all(id);
        self.lose_presence(core, id);
        let ended = session.subscriptions().len() as u64;
        let bytes = session.subscriptions().bytes();
        self.counters(core.worker()).subscriptions.sub(ended);
        let identifiers = &mut self.identifiers;
        self.topics.unsubscribe_all(core, id, |group| {
            if let Form::Cable(index) | Form::CablePositions(index) = Group::of(group).form {
                identifiers.end(index);
            }
        });
        // Not before they are freed: the control plane returns free memory when this falls.
        self.counters(core.worker()).uncount_bytes(bytes);
    }

    /// Memory that a connection's subscriptions hold, in bytes: of identifiers and topics that others
    /// use as well a share.
    pub(super) fn subscriptions_held<S: Sys>(&self, core: &Core<S, Self>, id: ConnId) -> usize {
        let Some(session) = core.user(id) else { return 0 };
        let share = |(group, topic, members)| match Group::of(group).form {
            Form::Cable(index) | Form::CablePositions(index) => {
                self.identifiers.get(index).map_or(0, Identifier::share)
            }
            Form::Plain | Form::Event => topic_share(topic, members),
        };
        let groups = self.topics.groups_of(session.subscriptions());
        groups.map(|group| MEMBERSHIP_BYTES + share(group)).sum()
    }
}

/// The identifier, unless it has a signed name.
pub(super) fn unsigned(identifier: &str) -> &str {
    match action_cable::channel(identifier) {
        Ok(Channel::PubSubPublic(_) | Channel::App { .. }) => identifier,
        _ => "",
    }
}
