//! Sessions whose application is called: the handshake and commands of its channels. Its answers are in
//! `answers.rs`, sessions that continue on another connection in `resume.rs`.
//!
//! Commands of one connection are performed in order, one at a time; others wait here. Streams with
//! public or signed names never wait for the application.

mod answers;
mod resume;
mod streams;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use action_cable::{Channel as ChannelName, Message};
use engine::{Answer, ConnId, Core, Incoming, Sys};
use topics::Publication;
use wire::http::Request;
use wire::websocket::OpCode;

use super::ServeHandler;
use super::channels::IDENTIFIER_BYTES_MAX;
use super::handshake::{Handshakes, too_many_wait};
use crate::app::call::{CommandName, Env, What};
use crate::app::session::{AppSession, InFlight};
use crate::app::{Calls, Full};
use crate::auth::Cause;
use crate::identifiers::{Index, subscription_bytes};
use crate::path::check_topic;
use crate::protocols::{Cable, Command, Disconnect, ProtocolAdapter};

/// The key of a subscription's state with the stream that its client whispers to.
const WHISPER_STREAM: &str = "$w";
/// The one with the stream in which its client is present.
const PRESENCE_STREAM: &str = "$p";

/// One worker's sessions whose application is called.
pub(super) struct Application {
    calls: Arc<Calls>,
    handshakes: Handshakes,
    nobody: Arc<str>,
    by_slot: HashMap<u32, Box<AppSession>>,
    /// Sessions that have ended while a call ran: as many as calls run, at most.
    departed: HashMap<ConnId, Box<AppSession>>,
}

/// What becomes of a command.
enum Turn {
    /// It does not concern the application.
    Ours,
    /// It is the application's, and may be performed now.
    Now,
    /// It waits for a call of this connection.
    Later,
    /// It repeats one that waits.
    Repeated,
}

impl Application {
    pub(super) fn new(calls: Arc<Calls>) -> Self {
        Application {
            handshakes: Handshakes::new(&calls.config),
            calls,
            nobody: "".into(),
            by_slot: HashMap::new(),
            departed: HashMap::new(),
        }
    }

    fn session(&mut self, id: ConnId) -> Option<&mut AppSession> {
        let session = self.by_slot.get_mut(&id.slot())?;
        (session.id == id).then_some(session)
    }

    fn remove(&mut self, id: ConnId) -> Option<Box<AppSession>> {
        let Entry::Occupied(entry) = self.by_slot.entry(id.slot()) else { return None };
        let session = (entry.get().id == id).then(|| entry.remove());
        if self.by_slot.capacity() > 64 && self.by_slot.len() < self.by_slot.capacity() / 8 {
            self.by_slot.shrink_to(2 * self.by_slot.len());
        }
        session
    }
}

impl ServeHandler {
    /// For a handshake at `/cable`: what calls repeat of it, or the refusal of a client that would have to wait
    /// for a queue that is full. `None` where no application is called.
    pub(super) fn app_env<S: Sys>(
        &self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
        has_identity: bool,
    ) -> Result<Option<Env>, Answer> {
        match request.upgrade {
            Some(_) => self.app_env_of(core, id, request.head, has_identity),
            None => Ok(None),
        }
    }

    /// The same for any request that opens a session.
    pub(super) fn app_env_of<S: Sys>(
        &self,
        core: &mut Core<S, Self>,
        id: ConnId,
        head: &Request<'_, '_>,
        has_identity: bool,
    ) -> Result<Option<Env>, Answer> {
        let Some(app) = &self.app else { return Ok(None) };
        if !has_identity && !app.calls.has_room() {
            return Err(too_many_wait(core.random()));
        }
        Ok(Some(app.handshakes.env(core, id, head)))
    }

    /// Begins the session of a new connection. Returns whether the application decides about it: then it
    /// is welcomed or refused later.
    pub(super) fn begin_app_session<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        env: Env,
    ) -> bool {
        let Some(app) = &mut self.app else { return false };
        let identifiers = self.sessions.identifiers(id);
        let known = identifiers.is_some();
        let identifiers = Arc::clone(identifiers.unwrap_or(&app.nobody));
        let mut session = Box::new(AppSession::new(id, env, identifiers));
        (session.open, session.has_token) = (known, known);
        app.by_slot.insert(id.slot(), session);
        self.count_app_bytes(core, id);
        if known {
            return false;
        }
        self.submit(core, id, InFlight { command: None, message: None }, What::Connect);
        true
    }

    /// A message of a client of Action Cable, where an application is called.
    pub(super) fn app_message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &[u8],
    ) {
        let command = Cable::decode(opcode, data);
        match self.turn_of(id, &command, data) {
            Turn::Ours => self.execute(core, id, command),
            Turn::Now => self.app_command(core, id, command, data),
            Turn::Repeated => {}
            Turn::Later => {
                let session = self.app.as_mut().and_then(|app| app.session(id));
                let Some(session) = session else { return };
                if session.held.get_or_insert_default().push(data) {
                    core.pause(id);
                }
                self.count_app_bytes(core, id);
            }
        }
    }

    fn turn_of(&mut self, id: ConnId, command: &Command<'_>, data: &[u8]) -> Turn {
        let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) else {
            return Turn::Ours;
        };
        let Some(identifier) = identifier_of(command) else { return Turn::Ours };
        if session.open && !is_app_channel(identifier) {
            return Turn::Ours;
        }
        if session.in_flight.is_none() && session.held.is_none() {
            return Turn::Now;
        }
        // Clients repeat a subscribe until it is confirmed.
        if matches!(command, Command::Subscribe { .. }) && session.awaits(identifier, data) {
            return Turn::Repeated;
        }
        Turn::Later
    }

    /// Performs a command for a channel of the application.
    fn app_command<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        command: Command<'_>,
        data: &[u8],
    ) {
        let Some(identifier) = identifier_of(&command) else { return };
        let channel = self.app_channel(id, identifier);
        match command {
            Command::Subscribe { identifier, .. } if channel.is_some() => {
                self.send_message(core, id, &Message::Confirm { identifier });
            }
            Command::Subscribe { identifier, history, presence } => {
                if let Err(cause) = self.app_may_subscribe(core, id, &identifier) {
                    self.refuse_access(core.worker(), cause, &identifier);
                    return self.send_message(core, id, &Message::Reject { identifier });
                }
                let message = (history.is_some() || presence.is_some()).then(|| data.into());
                self.call_command(core, id, CommandName::Subscribe, &identifier, "", message);
            }
            Command::Unsubscribe { identifier } if channel.is_some() => {
                self.call_command(core, id, CommandName::Unsubscribe, &identifier, "", None);
            }
            Command::Perform { identifier, data } if channel.is_some() => {
                self.call_command(core, id, CommandName::Message, &identifier, &data, None);
            }
            Command::Whisper { data, .. } => self.app_whisper(core, id, channel, data),
            Command::History { identifier, history } => {
                self.request_history(core, id, identifier, &history);
            }
            Command::Join { identifier, presence } => {
                self.join_presence(core, id, identifier, &presence);
            }
            Command::Leave { identifier } => self.leave_presence(core, id, &identifier),
            Command::Presence { identifier, records } => {
                self.request_members(core, id, identifier, records);
            }
            _ => self.counters(core.worker()).commands_ignored.add(1),
        }
    }

    /// The subscription by this identifier, if the connection has one.
    pub(in crate::handler) fn app_channel(
        &mut self,
        id: ConnId,
        identifier: &str,
    ) -> Option<Index> {
        let (index, _) = self.identifiers.find(identifier)?;
        self.app.as_mut()?.session(id)?.channel(index).map(|channel| channel.identifier)
    }

    fn app_may_subscribe<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        identifier: &str,
    ) -> Result<(), Cause> {
        let session = self.app.as_mut().and_then(|app| app.session(id));
        let channels = session.map_or(0, |session| session.channels.len());
        let streams = core.user(id).map_or(0, |session| session.subscriptions().len());
        if channels.max(streams) >= self.policy.channels.max_subscriptions {
            return Err(Cause::Subscriptions);
        }
        if identifier.len() > IDENTIFIER_BYTES_MAX {
            return Err(Cause::Identifier);
        }
        let bytes = self.session_bytes(core, id) + subscription_bytes(identifier, "") as usize;
        if bytes > self.policy.channels.max_subscription_bytes {
            return Err(Cause::SubscriptionBytes);
        }
        Ok(())
    }

    /// The stream in which the clients of a subscription are present, as the application has chosen.
    pub(in crate::handler) fn app_presence_stream(
        &mut self,
        id: ConnId,
        channel: Index,
    ) -> Option<&str> {
        let channel = self.app.as_mut()?.session(id)?.channel(channel)?;
        channel.istate.get(PRESENCE_STREAM).filter(|stream| check_topic(stream).is_ok())
    }

    /// Whispers to the stream that the application has chosen for the subscription.
    fn app_whisper<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        channel: Option<Index>,
        data: &str,
    ) {
        let session = self.app.as_mut().and_then(|app| app.session(id));
        let channel = session.zip(channel).and_then(|(session, index)| session.channel(index));
        let stream = channel.and_then(|channel| channel.istate.get(WHISPER_STREAM));
        let Some(stream) = stream.filter(|stream| check_topic(stream).is_ok()) else {
            return self.counters(core.worker()).commands_ignored.add(1);
        };
        let publication = Publication::new(stream.into(), data.as_bytes().into(), false);
        let mut publication = publication.accepted(core.now_ns());
        publication.except = Some(id);
        publication.transient = true;
        self.publish(core, id, Arc::new(publication));
    }

    fn call_command<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        name: CommandName,
        identifier: &str,
        data: &str,
        message: Option<Box<[u8]>>,
    ) {
        let found = self.identifiers.find(identifier);
        let (index, text) = match found {
            Some((index, found)) => (Some(index), Arc::clone(found.text())),
            None => (None, identifier.into()),
        };
        let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) else { return };
        let channel = index.and_then(|index| session.channel(index));
        let istate = channel.map(|channel| channel.istate.clone()).unwrap_or_default();
        let what = What::Command {
            name,
            identifier: Arc::clone(&text),
            identifiers: Arc::clone(&session.identifiers),
            data: data.into(),
            istate,
        };
        let keeps = message.is_some();
        let in_flight = InFlight { command: Some((name, text)), message };
        self.submit(core, id, in_flight, what);
        if keeps {
            self.count_app_bytes(core, id);
        }
    }

    fn submit<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        in_flight: InFlight,
        what: What,
    ) {
        let sid = self.shared.sids.of(id);
        let Some(app) = &mut self.app else { return };
        let calls = Arc::clone(&app.calls);
        let Some(session) = app.session(id) else { return };
        let call = session.call(sid, what);
        match calls.submit(core.now_ns(), id, call) {
            Ok(()) => session.in_flight = Some(Box::new(in_flight)),
            Err(Full) => self.disconnect(core, id, Disconnect::AppUnavailable),
        }
    }
}

impl AppSession {
    /// Whether a subscribe by this identifier waits or runs already, and nothing after it undoes it.
    fn awaits(&self, identifier: &str, message: &[u8]) -> bool {
        for held in self.held.iter().flat_map(|held| held.messages.iter().rev()) {
            if **held == *message {
                return true;
            }
            let held = Cable::decode(OpCode::Text, held);
            if identifier_of(&held) == Some(identifier) {
                return false;
            }
        }
        let command = self.in_flight.as_ref().and_then(|in_flight| in_flight.command.as_ref());
        command.is_some_and(|(name, own)| *name == CommandName::Subscribe && **own == *identifier)
    }
}

/// The identifier in a command that has one.
fn identifier_of<'c>(command: &'c Command<'_>) -> Option<&'c str> {
    match command {
        Command::Subscribe { identifier, .. }
        | Command::Unsubscribe { identifier }
        | Command::Perform { identifier, .. }
        | Command::Whisper { identifier, .. }
        | Command::History { identifier, .. }
        | Command::Join { identifier, .. }
        | Command::Leave { identifier }
        | Command::Presence { identifier, .. } => Some(identifier),
        _ => None,
    }
}

/// Whether an identifier names a channel of the application. One that cannot be parsed is refused
/// without it.
fn is_app_channel(identifier: &str) -> bool {
    matches!(action_cable::channel(identifier), Ok(ChannelName::App { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_of_the_application_are_told_from_streams() {
        assert!(is_app_channel(r#"{"channel":"ChatChannel","id":1}"#));
        for ours in [r#"{"channel":"$pubsub","stream_name":"a"}"#, "a", "{}"] {
            assert!(!is_app_channel(ours), "{ours}");
        }
    }
}
