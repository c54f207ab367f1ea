//! [`StoredApp`]: what the application has said of a connection that was lost, for as long as its session
//! can be resumed.

use std::sync::Arc;

use super::call::{Call, Env, State, What};

/// Memory of a subscription and of a stream beyond their texts and state, in bytes.
const CHANNEL_BYTES: usize = 72;
const STREAM_BYTES: usize = 32;

/// What the application has said of a connection that was lost.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredApp {
    /// Its session id.
    pub(crate) sid: Box<str>,
    /// Its handshake.
    pub(crate) env: Env,
    /// Its identifiers.
    pub(crate) identifiers: Arc<str>,
    pub(crate) cstate: State,
    pub(crate) channels: Vec<StoredChannel>,
    /// Its token identified it, not the application.
    pub(crate) has_token: bool,
    /// The application knows it.
    pub(crate) known: bool,
    /// The application is to be told of its end.
    pub(crate) reports_end: bool,
}

/// A subscription to a channel of the application.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredChannel {
    pub(crate) identifier: Arc<str>,
    pub(crate) istate: State,
    pub(crate) streams: Vec<Box<str>>,
}

impl StoredApp {
    /// Its memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let channel = |channel: &StoredChannel| {
            let streams = channel.streams.iter().map(|name| STREAM_BYTES + name.len());
            let texts = channel.identifier.len() + channel.istate.bytes();
            CHANNEL_BYTES + texts + streams.sum::<usize>()
        };
        size_of::<Self>()
            + self.sid.len()
            + self.env.bytes()
            + self.identifiers.len()
            + self.cstate.bytes()
            + self.channels.iter().map(channel).sum::<usize>()
    }

    /// The call that says that it has ended.
    pub(crate) fn disconnect(&self) -> Call {
        let state =
            |channel: &StoredChannel| (Arc::clone(&channel.identifier), channel.istate.clone());
        let what = What::Disconnect {
            identifiers: Arc::clone(&self.identifiers),
            subscriptions: self.channels.iter().map(state).collect(),
        };
        let (env, cstate) = (self.env.clone(), self.cstate.clone());
        Call { sid: self.sid.clone(), env, cstate, what }
    }
}
