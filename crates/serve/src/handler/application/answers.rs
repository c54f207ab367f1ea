//! Answers of the application, and the ends of connections that it knows.

use std::sync::Arc;

use action_cable::Message;
use engine::{ConnId, Core, Sys, invariant};
use serde::Deserialize;
use wire::websocket::{CloseCode, OpCode};

use super::{ServeHandler, identifier_of, is_app_channel};
use crate::app::call::{CommandName, What};
use crate::app::reply::{Reply, Status};
use crate::app::session::{AppSession, Channel};
use crate::app::{Answered, DisconnectMode, Failure};
use crate::auth::{Cause, TokenIdentity, Whispers};
use crate::identifiers::Identifiers;
use crate::protocols::{Cable, Command, Disconnect, ProtocolAdapter};

impl ServeHandler {
    /// The end of a call.
    pub(in crate::handler) fn app_answered<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        answered: Answered,
    ) {
        let Some(Answered { id, call, outcome }) = self.hold_answer(core, answered) else { return };
        let Some(app) = &mut self.app else {
            return invariant::broken("an answer has an application");
        };
        if let Some(session) = app.departed.remove(&id) {
            return self.app_answered_late(core, session, &call.what, outcome);
        }
        let Some(in_flight) = app.session(id).and_then(|session| session.in_flight.take()) else {
            return invariant::broken("an answer belongs to a call of a session");
        };
        match in_flight.command {
            // It is being closed, by us.
            _ if !core.is_open(id) => self.note_answer(id, &call.what, outcome),
            None => self.app_connected(core, id, outcome),
            Some((name, identifier)) => {
                self.app_performed(core, id, name, &identifier, outcome, in_flight.message);
            }
        }
        self.count_app_bytes(core, id);
        self.perform_held(core, id);
    }

    fn app_connected<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        outcome: Result<Reply, Failure>,
    ) {
        let reply = match outcome {
            Ok(reply) if reply.status != Status::Error => reply,
            Err(Failure::Late) => return self.disconnect(core, id, Disconnect::AppUnavailable),
            Ok(_) | Err(_) => return self.disconnect(core, id, Disconnect::AppFailed),
        };
        if reply.status == Status::Failure {
            self.refuse_access(core.worker(), Cause::Application, "");
            return match self.transmit(core, id, &reply.transmissions, "disconnect") {
                true => core.close(id, CloseCode::NORMAL, "see the message before"),
                false => self.disconnect(core, id, Disconnect::Unauthorized),
            };
        }
        self.app_identified(id, &reply.identifiers);
        if let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) {
            session.cstate.merge(reply.env.cstate);
        }
        if self.over_budget(core, id) {
            return;
        }
        self.note_connect(core, id);
        if !self.transmit(core, id, &reply.transmissions, "welcome") {
            let sid = Some(self.shared.sids.of(id).into());
            self.send_message(core, id, &Message::Welcome { sid, restored: None });
        }
    }

    /// The application has accepted a connection, with these identifiers.
    fn app_identified(&mut self, id: ConnId, identifiers: &str) {
        if !identifiers.is_empty() {
            let identity = TokenIdentity { identifiers: identifiers.into(), expires_unix_s: None };
            self.sessions.add(id, &identity);
        }
        let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) else { return };
        (session.open, session.known) = (true, true);
        if let Some(identifiers) = self.sessions.identifiers(id) {
            session.identifiers = Arc::clone(identifiers);
        }
    }

    fn app_performed<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        name: CommandName,
        identifier: &Arc<str>,
        outcome: Result<Reply, Failure>,
        message: Option<Box<[u8]>>,
    ) {
        let reply = match outcome {
            Ok(reply) if reply.status != Status::Error => reply,
            // Clients repeat a subscribe that is not answered. One that has unsubscribed wants no more.
            Ok(_) | Err(_) if name == CommandName::Unsubscribe => {
                return self.end_channel(core, id, identifier);
            }
            Ok(_) | Err(_) => return,
        };
        let subscribes = name == CommandName::Subscribe;
        let refused = subscribes && reply.status == Status::Failure;
        self.note_state(id, name, identifier, &reply);
        if reply.stop_streams {
            self.stop_streams(core, id, identifier, |_| true);
        } else if !reply.stopped_streams.is_empty() {
            let stopped = |topic: &str| reply.stopped_streams.iter().any(|name| name == topic);
            self.stop_streams(core, id, identifier, stopped);
        }
        if !refused && let Err(cause) = self.start_streams(core, id, identifier, &reply.streams) {
            self.refuse_access(core.worker(), cause, identifier);
            if subscribes {
                self.end_channel(core, id, identifier);
                let identifier = (&**identifier).into();
                return self.send_message(core, id, &Message::Reject { identifier });
            }
        }
        if self.over_budget(core, id) {
            return;
        }
        let verdict = if refused { "reject_subscription" } else { "confirm_subscription" };
        let said = self.transmit(core, id, &reply.transmissions, verdict);
        if refused {
            self.refuse_access(core.worker(), Cause::Channel, identifier);
        }
        if subscribes && !said {
            let identifier = (&**identifier).into();
            let message = match refused {
                true => Message::Reject { identifier },
                false => Message::Confirm { identifier },
            };
            self.send_message(core, id, &message);
        }
        if subscribes
            && !refused
            && let Some(message) = message
        {
            self.app_subscribed(core, id, &message);
        }
        if let Some(presence) = reply.presence.filter(|_| !refused) {
            self.app_presence(core, id, identifier, &presence);
        }
        if name == CommandName::Unsubscribe {
            self.end_channel(core, id, identifier);
        }
        if reply.disconnect {
            let said = reply.transmissions.iter().any(|text| kind_of(text) == "disconnect");
            match said {
                true => {
                    // A session that the application ends is not kept.
                    self.end_app_session(core, id, false);
                    core.close(id, CloseCode::NORMAL, "see the message before");
                }
                false => self.disconnect(core, id, Disconnect::Remote { reconnect: true }),
            }
        }
    }

    /// What a client has requested together with a subscription that is confirmed now.
    fn app_subscribed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, message: &[u8]) {
        let Command::Subscribe { identifier, history, presence } =
            Cable::decode(OpCode::Text, message)
        else {
            return;
        };
        if let Some(history) = history {
            self.request_history(core, id, identifier.clone(), &history);
        }
        if let Some(presence) = presence {
            self.join_presence(core, id, identifier, &presence);
        }
    }

    /// Keeps the states in an answer, and begins a subscription that it confirms.
    fn note_state(&mut self, id: ConnId, name: CommandName, identifier: &str, reply: &Reply) {
        let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) else { return };
        note(&mut self.identifiers, session, name, identifier, reply);
    }

    /// As [`note_state`], for a connection that is being closed: nothing is sent to it.
    fn note_answer(&mut self, id: ConnId, what: &What, outcome: Result<Reply, Failure>) {
        let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) else { return };
        note_late(&mut self.identifiers, session, what, outcome);
    }

    /// The answer for a connection that has ended meanwhile.
    fn app_answered_late<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        mut session: Box<AppSession>,
        what: &What,
        outcome: Result<Reply, Failure>,
    ) {
        note_late(&mut self.identifiers, &mut session, what, outcome);
        self.report_end(core, &session);
    }

    /// A connection has ended, or is about to. If the client may resume its session, it is kept, and the
    /// application learns of the end when it is dropped.
    pub(in crate::handler) fn end_app_session<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        may_resume: bool,
    ) {
        let Some(app) = &mut self.app else { return };
        let Some(mut session) = app.remove(id) else { return };
        self.counters(core.worker()).uncount_bytes(session.counted);
        session.counted = 0;
        let Some(app) = &mut self.app else { return };
        if session.in_flight.is_some() && !app.calls.cancel(id) {
            // The application learns of the end once it has answered, so that it hears of both in order.
            session.held = None;
            app.departed.insert(id, session);
        } else if may_resume && self.store_app_session(core, &session) {
            self.end_identifiers(&session);
        } else {
            self.report_end(core, &session);
        }
    }

    fn end_identifiers(&mut self, session: &AppSession) {
        for channel in &session.channels {
            self.identifiers.end(channel.identifier);
        }
    }

    /// Whether the application is to know that a session has ended.
    pub(super) fn reports_end(&self, session: &AppSession) -> bool {
        let Some(app) = &self.app else { return false };
        match app.calls.config.disconnect_mode {
            DisconnectMode::Auto => session.known,
            DisconnectMode::Always => session.open,
            DisconnectMode::Never => false,
        }
    }

    /// Tells the application that a connection has ended, if it is to know.
    fn report_end<S: Sys>(&mut self, core: &Core<S, Self>, session: &AppSession) {
        let Some(app) = &self.app else { return };
        if self.reports_end(session) {
            let sid = self.shared.sids.of(session.id);
            let call = session.disconnect(sid, &self.identifiers);
            app.calls.submit_disconnect(core.now_ns(), session.id, call);
        }
        self.end_identifiers(session);
    }

    /// A publication of a connection that was refused is accepted now: the connection is read again, and
    /// commands that waited are performed.
    pub(in crate::handler) fn resume_publisher<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
    ) {
        if self.resume_asked(core, id) {
            return;
        }
        let session = self.app.as_mut().and_then(|app| app.session(id));
        let held = session.and_then(|session| session.held.as_ref());
        if !held.is_some_and(|held| held.paused) {
            core.resume(id);
        }
        self.perform_held(core, id);
    }

    /// Performs commands that waited, up to the next call, or to a whisper that has to wait itself.
    fn perform_held<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        while core.is_open(id) && !self.retry_queue.holds(id) {
            let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) else { return };
            if session.in_flight.is_some() {
                return;
            }
            let Some(held) = &mut session.held else { return };
            let Some((message, resume)) = held.pop() else {
                session.held = None;
                return;
            };
            if held.messages.is_empty() {
                session.held = None;
            }
            self.count_app_bytes(core, id);
            let command = Cable::decode(OpCode::Text, &message);
            match identifier_of(&command).is_some_and(is_app_channel) {
                true => self.app_command(core, id, command, &message),
                false => self.execute(core, id, command),
            }
            if resume && !self.retry_queue.holds(id) {
                core.resume(id);
            }
        }
    }

    /// Sends what the application wants to be sent. Returns whether a message of this type is among it.
    fn transmit<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        transmissions: &[String],
        kind: &str,
    ) -> bool {
        let mut found = false;
        for text in transmissions {
            found = found || kind_of(text) == kind;
            self.send_json(core, id, text.as_bytes());
        }
        found
    }
}

/// Keeps the states in an answer, and begins a subscription that it confirms.
fn note(
    identifiers: &mut Identifiers,
    session: &mut AppSession,
    name: CommandName,
    identifier: &str,
    reply: &Reply,
) {
    session.known = true;
    session.cstate.merge(reply.env.cstate.clone());
    if name == CommandName::Subscribe && reply.status == Status::Success {
        let index = identifiers.begin(identifier, "", Whispers::Never);
        // Most have one or two.
        session.channels.reserve_exact(1);
        session.channels.push(Channel { identifier: index, istate: Default::default() });
    }
    let index = identifiers.find(identifier).map(|(index, _)| index);
    if let Some(channel) = index.and_then(|index| session.channel(index)) {
        channel.istate.merge(reply.env.istate.clone());
    }
}

/// As [`note`], for a connection that has ended.
fn note_late(
    identifiers: &mut Identifiers,
    session: &mut AppSession,
    what: &What,
    outcome: Result<Reply, Failure>,
) {
    let Ok(reply) = outcome else { return };
    match what {
        What::Connect if reply.status == Status::Success => {
            (session.open, session.known) = (true, true);
            session.identifiers = reply.identifiers.into();
            session.cstate.merge(reply.env.cstate);
        }
        What::Command { name, identifier, .. } if reply.status != Status::Error => {
            note(identifiers, session, *name, identifier, &reply);
            let ended = identifiers.find(identifier).map(|(index, _)| index);
            if *name == CommandName::Unsubscribe
                && let Some(index) = ended.filter(|index| session.channel(*index).is_some())
            {
                session.channels.retain(|channel| channel.identifier != index);
                identifiers.end(index);
            }
        }
        _ => {}
    }
}

/// The type of a message, or nothing.
fn kind_of(text: &str) -> String {
    #[derive(Deserialize)]
    struct Fields {
        #[serde(rename = "type")]
        kind: Option<String>,
    }
    // Most have none: they are data.
    if !text.contains("\"type\"") {
        return String::new();
    }
    let fields = serde_json::from_str::<Fields>(text);
    fields.ok().and_then(|fields| fields.kind).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_message_is_found() {
        assert_eq!(
            kind_of(r#"{"identifier":"a","type":"confirm_subscription"}"#),
            "confirm_subscription"
        );
        for none in ["", "{", r#"{"message":{"type":"welcome"}}"#, r#"{"type":7}"#] {
            assert_eq!(kind_of(none), "", "{none}");
        }
    }
}
