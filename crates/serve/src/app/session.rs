//! [`AppSession`]: what the application has said of a connection. Connections have one only where an
//! application is called; the others keep their 16 bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::ConnId;
use wire::websocket::OpCode;

use super::call::{Call, CommandName, Env, State, What};
use crate::identifiers::{Identifiers, Index};
use crate::protocols::{Cable, Command, ProtocolAdapter};

/// Bytes of commands that wait for their turn before the connection is not read any more.
const HELD_BYTES_MAX: usize = 16 * 1024;
/// Memory of a session beyond its texts and states, in bytes: its entries in tables, with spare room.
const SESSION_BYTES: usize = 256;
/// Memory of a subscription beyond its identifier and state, in bytes.
const CHANNEL_BYTES: usize = 32;

/// A connection whose commands the application answers.
pub(crate) struct AppSession {
    pub(crate) id: ConnId,
    pub(crate) env: Env,
    /// The connection's identifiers, shared with the index of sessions.
    pub(crate) identifiers: Arc<str>,
    pub(crate) cstate: State,
    pub(crate) channels: Vec<Channel>,
    /// The call that waits or runs.
    pub(crate) in_flight: Option<Box<InFlight>>,
    /// Commands that wait for it.
    pub(crate) held: Option<Box<Held>>,
    /// It is welcome.
    pub(crate) open: bool,
    /// The application knows it.
    pub(crate) known: bool,
    /// Its token identified it, not the application.
    pub(crate) has_token: bool,
    /// Its memory as counted.
    pub(crate) counted: u32,
}

const _: () = assert!(size_of::<AppSession>() <= 104);

/// A subscription to a channel of the application. Its streams are memberships of the connection.
pub(crate) struct Channel {
    pub(crate) identifier: Index,
    pub(crate) istate: State,
}

/// A call that waits or runs.
pub(crate) struct InFlight {
    /// The command, unless it is the connect.
    pub(crate) command: Option<(CommandName, Arc<str>)>,
    /// The client's message, if it has requests for after a subscription.
    pub(crate) message: Option<Box<[u8]>>,
}

/// Messages that wait for the end of a call, in order.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) messages: VecDeque<Box<[u8]>>,
    pub(crate) bytes: usize,
    pub(crate) paused: bool,
}

impl Held {
    /// Adds a message. Returns whether the connection is to be paused.
    pub(crate) fn push(&mut self, message: &[u8]) -> bool {
        self.messages.push_back(message.into());
        self.bytes += message.len() + 32;
        // Each time: it may have been resumed for another reason.
        let pause = self.bytes >= HELD_BYTES_MAX;
        self.paused |= pause;
        pause
    }

    /// The next message, and whether the connection is to be resumed.
    pub(crate) fn pop(&mut self) -> Option<(Box<[u8]>, bool)> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len() + 32;
        let resume = self.paused && self.bytes < HELD_BYTES_MAX / 2;
        self.paused &= !resume;
        Some((message, resume))
    }
}

impl AppSession {
    pub(crate) fn new(id: ConnId, env: Env, identifiers: Arc<str>) -> Self {
        AppSession {
            id,
            env,
            identifiers,
            cstate: State::default(),
            channels: Vec::new(),
            in_flight: None,
            held: None,
            open: false,
            known: false,
            has_token: false,
            counted: 0,
        }
    }

    pub(crate) fn channel(&mut self, identifier: Index) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.identifier == identifier)
    }

    /// Whether the client has unsubscribed from a channel without an answer yet.
    pub(crate) fn awaits_unsubscribe(&self) -> bool {
        let command = self.in_flight.as_ref().and_then(|in_flight| in_flight.command.as_ref());
        let mut held = self.held.iter().flat_map(|held| &held.messages);
        command.is_some_and(|(name, _)| *name == CommandName::Unsubscribe)
            || held.any(|message| {
                let command = Cable::decode(OpCode::Text, message);
                matches!(command, Command::Unsubscribe { .. })
            })
    }

    /// Its memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let states = self.channels.iter().map(|channel| CHANNEL_BYTES + channel.istate.bytes());
        let held = self.held.as_ref().map_or(0, |held| held.bytes);
        let message = self.in_flight.as_ref().and_then(|own| own.message.as_ref());
        let message = message.map_or(0, |message| message.len());
        SESSION_BYTES
            + self.env.bytes()
            + self.identifiers.len()
            + self.cstate.bytes()
            + states.sum::<usize>()
            + held
            + message
    }

    /// The call with this content.
    pub(crate) fn call(&self, sid: String, what: What) -> Call {
        let (env, cstate) = (self.env.clone(), self.cstate.clone());
        Call { sid: sid.into(), env, cstate, what }
    }

    /// The call that says that it has ended.
    pub(crate) fn disconnect(&self, sid: String, identifiers: &Identifiers) -> Call {
        let subscriptions = self.channels.iter().filter_map(|channel| {
            let text = identifiers.get(channel.identifier)?.text();
            Some((Arc::clone(text), channel.istate.clone()))
        });
        let subscriptions = subscriptions.collect();
        let own = Arc::clone(&self.identifiers);
        self.call(sid, What::Disconnect { identifiers: own, subscriptions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_messages_keep_their_order_and_pause_the_connection() {
        let mut held = Held::default();
        let message = |number: usize| vec![number as u8; 1000];
        let paused: Vec<bool> = (0..20).map(|number| held.push(&message(number))).collect();
        assert!(paused[..15].iter().all(|pause| !pause), "{paused:?}");
        assert!(paused[15..].iter().all(|pause| *pause), "{paused:?}");
        let mut resumed = Vec::new();
        for number in 0..20 {
            let (next, resume) = held.pop().unwrap();
            assert_eq!(&*next, message(number));
            resumed.push(resume);
        }
        assert!(held.pop().is_none());
        assert_eq!((held.bytes, resumed.iter().filter(|resume| **resume).count()), (0, 1));
    }
}
