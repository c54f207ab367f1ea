//! [`CableClients`]: every connection of a worker is an Action Cable client with one subscription. It waits
//! for the welcome, subscribes, repeats the subscribe until it is confirmed, gives the connection up
//! without pings, and obeys disconnect messages, as Rails' client does (`connection.js`,
//! `connection_monitor.js`, `subscription_guarantor.js`). [`crate::Retry`] sets the wait before it
//! reconnects. Data of the subscription is returned to the caller.
//!
//! It keeps 40 bytes per socket outside the slab, so that other runs need no memory for it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use action_cable::{Command, Message, data_prefix, put_string};
use engine::{ConnId, Core, Sys};
use wire::websocket::{CloseCode, OpCode};

use crate::outcome::metrics::{Metrics, WorkerMetrics};
use crate::transport::connector::Connector;
use crate::workload::client::Client;
use crate::workload::sweep::Sweep;
use crate::{Cable, Series};

/// How often each socket is checked, and so the maximum delay of its timers.
const LOOK: Duration = Duration::from_millis(250);
const VISITS_PER_TURN: u32 = 4_096;

/// One worker's clients.
pub(crate) struct CableClients {
    channels: Arc<[CableChannel]>,
    stale_ns: u64,
    repeat_ns: u64,
    /// By slot.
    clients: Vec<CableClient>,
    /// Started with the first connection.
    sweep: Option<Sweep>,
    /// Connections just closed by the client.
    given_up: Vec<ConnId>,
}

/// A channel identifier with its encoded commands.
pub(crate) struct CableChannel {
    pub(crate) identifier: String,
    pub(crate) subscribe: Vec<u8>,
    pub(crate) unsubscribe: Vec<u8>,
    /// The prefix of data as most servers encode it.
    pub(crate) prefix: Vec<u8>,
}

/// One client.
#[derive(Copy, Clone, Default)]
struct CableClient {
    state: State,
    /// Attempts in a row without a welcome.
    attempts: u32,
    began_ns: u64,
    /// When it opened, or received the welcome or the last ping.
    heard_ns: u64,
    /// When the first and the last subscribe were sent.
    asked_ns: u64,
    asked_last_ns: u64,
}

const _: () = assert!(size_of::<CableClient>() == 40);

#[derive(Copy, Clone, Default, Eq, PartialEq)]
enum State {
    #[default]
    Closed,
    /// Open, without a welcome yet.
    Opened,
    Subscribing,
    Subscribed,
    Rejected,
    /// Closing; `again` if it is to reconnect.
    Closing {
        again: bool,
    },
}

impl CableChannel {
    /// All channels of a run.
    pub(crate) fn all(cable: &Cable) -> Arc<[CableChannel]> {
        let channel = |identifier: &String| {
            let (mut subscribe, mut unsubscribe, mut prefix) = Default::default();
            let named = Cow::Borrowed(identifier.as_str());
            Command::Unsubscribe { identifier: named.clone() }.encode(&mut unsubscribe);
            let command = Command::Subscribe { identifier: named, history: None, presence: None };
            command.encode(&mut subscribe);
            data_prefix(identifier, &mut prefix);
            CableChannel { identifier: identifier.clone(), subscribe, unsubscribe, prefix }
        };
        cable.identifiers.iter().map(channel).collect()
    }
}

impl CableClients {
    pub(crate) fn new(cable: &Cable, channels: Arc<[CableChannel]>) -> CableClients {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        CableClients {
            channels,
            stale_ns: nanoseconds(cable.stale_after),
            repeat_ns: nanoseconds(cable.repeat),
            clients: Vec::new(),
            sweep: None,
            given_up: Vec::new(),
        }
    }

    /// Whether the connection of a slot receives publications.
    pub(crate) fn is_subscribed(&self, slot: u32) -> bool {
        self.clients.get(slot as usize).is_some_and(|client| client.state == State::Subscribed)
    }

    pub(crate) fn channels(&self) -> Arc<[CableChannel]> {
        Arc::clone(&self.channels)
    }

    /// The channel of the connection of a slot, if it is subscribed.
    pub(crate) fn subscribed_by(&self, connector: &Connector, slot: u32) -> Option<u32> {
        self.is_subscribed(slot).then(|| channel_at(&self.channels, connector, slot) as u32)
    }

    /// Handles an opened connection, after `before` failed attempts.
    pub(crate) fn opened<S: Sys>(&mut self, core: &mut Core<S, Client>, id: ConnId, before: u32) {
        let now_ns = core.clock_ns();
        let began_ns = core.user(id).map_or(now_ns, |socket| socket.sent_ns());
        let slot = id.slot() as usize;
        if slot >= self.clients.len() {
            self.clients.resize(slot + 1, CableClient::default());
        }
        let attempts = before + 1;
        let state = State::Opened;
        if let Some(client) = self.clients.get_mut(slot) {
            *client = CableClient {
                state,
                attempts,
                began_ns,
                heard_ns: now_ns,
                ..CableClient::default()
            };
        }
        self.sweep.get_or_insert_with(|| Sweep::new(now_ns, LOOK, 8));
    }

    /// Handles a message. Returns data published to the subscription: the JSON, possibly with the rest
    /// of the message.
    pub(crate) fn message<'d, S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        data: &'d [u8],
        connector: &mut Connector,
        metrics: &WorkerMetrics,
    ) -> Option<&'d [u8]> {
        let channel = channel_of(&self.channels, connector, id.slot())?;
        let client = self.clients.get_mut(id.slot() as usize)?;
        if matches!(client.state, State::Closed | State::Closing { .. }) {
            return None;
        }
        if let Some(published) = data.strip_prefix(channel.prefix.as_slice()) {
            return Some(published);
        }
        let message = std::str::from_utf8(data).ok().and_then(|text| Message::decode(text).ok());
        let now_ns = core.clock_ns();
        match message {
            Some(Message::Ping { .. }) => {
                client.heard_ns = now_ns;
                metrics.counts.cable_pings.add(1);
            }
            Some(Message::Welcome { .. }) if client.state == State::Opened => {
                metrics.record(Series::Welcome, now_ns.saturating_sub(client.began_ns));
                *client = CableClient {
                    state: State::Subscribing,
                    attempts: 0,
                    heard_ns: now_ns,
                    ..*client
                };
                subscribe(core, id, client, channel, metrics);
            }
            Some(Message::Confirm { identifier }) if identifier == channel.identifier => {
                confirmed(client, now_ns, connector, metrics);
            }
            Some(Message::Reject { identifier }) if identifier == channel.identifier => {
                if client.state != State::Subscribing {
                    metrics.counts.unexpected.add(1);
                } else {
                    client.state = State::Rejected;
                    metrics.counts.rejected.add(1);
                    connector.settled();
                }
            }
            Some(Message::Disconnect { reason, reconnect }) => {
                metrics.count_disconnect(reason.as_str());
                leave(client, reconnect, connector, metrics);
                core.close(id, CloseCode::NORMAL, "");
                self.given_up.push(id);
            }
            Some(Message::Data { identifier, message, .. }) if identifier == channel.identifier => {
                return Some(message.as_bytes());
            }
            // Valid, but not needed.
            Some(Message::Pong | Message::Presence { .. }) => {}
            _ => metrics.counts.unexpected.add(1),
        }
        None
    }

    /// Takes a connection that was just given up, to be counted.
    pub(crate) fn given_up(&mut self) -> Option<ConnId> {
        self.given_up.pop()
    }

    /// Handles a closed connection. Returns the number of failed attempts in a row if it is to be
    /// reopened.
    pub(crate) fn closed(
        &mut self,
        slot: u32,
        connector: &mut Connector,
        metrics: &Metrics,
    ) -> Option<u32> {
        let client = self.clients.get_mut(slot as usize)?;
        let again = match client.state {
            State::Closing { again } => again,
            _ => true,
        };
        leave(client, again, connector, metrics);
        client.state = State::Closed;
        again.then_some(client.attempts.max(1))
    }

    /// Repeats subscribes and gives up stale connections. Returns when to call it next.
    pub(crate) fn turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        connector: &mut Connector,
        metrics: &Metrics,
    ) -> Option<u64> {
        let (now_ns, slots) = (core.now_ns(), self.clients.len() as u32);
        let sweep = self.sweep.as_mut()?;
        let due = sweep.due(now_ns, slots, VISITS_PER_TURN);
        let full = due.len() as u32 == VISITS_PER_TURN;
        let next_ns = if full { now_ns } else { sweep.next_ns(now_ns, slots) };
        for slot in due {
            let (Some(client), Some(id)) = (self.clients.get_mut(slot as usize), core.id_at(slot))
            else {
                continue;
            };
            if matches!(client.state, State::Closed | State::Closing { .. }) {
                continue;
            }
            if now_ns > client.heard_ns.saturating_add(self.stale_ns) {
                metrics.counts.stale.add(1);
                leave(client, true, connector, metrics);
                core.close(id, CloseCode::NORMAL, "");
                self.given_up.push(id);
            } else if client.state == State::Subscribing
                && now_ns >= client.asked_last_ns.saturating_add(self.repeat_ns)
                && let Some(channel) = channel_of(&self.channels, connector, slot)
            {
                subscribe(core, id, client, channel, metrics);
            }
        }
        Some(next_ns)
    }

    /// Encodes a whisper on the channel of the connection of a slot.
    pub(crate) fn whisper(&self, connector: &Connector, slot: u32, text: &[u8]) -> Option<Vec<u8>> {
        let channel = channel_of(&self.channels, connector, slot)?;
        let (mut quoted, mut whisper) = (Vec::new(), Vec::new());
        put_string(std::str::from_utf8(text).ok()?, &mut quoted);
        let data = std::str::from_utf8(&quoted).ok()?;
        let identifier = Cow::Borrowed(channel.identifier.as_str());
        Command::Whisper { identifier, data }.encode(&mut whisper);
        Some(whisper)
    }
}

/// The channel of a slot, by the number of its connection in the run.
fn channel_at(channels: &[CableChannel], connector: &Connector, slot: u32) -> usize {
    let number = connector.first() + u64::from(slot);
    (number % channels.len().max(1) as u64) as usize
}

fn channel_of<'l>(
    channels: &'l [CableChannel],
    connector: &Connector,
    slot: u32,
) -> Option<&'l CableChannel> {
    channels.get(channel_at(channels, connector, slot))
}

fn subscribe<S: Sys>(
    core: &mut Core<S, Client>,
    id: ConnId,
    client: &mut CableClient,
    channel: &CableChannel,
    metrics: &Metrics,
) {
    let now_ns = core.clock_ns();
    metrics.counts.subscribes.add(1);
    match client.asked_ns {
        0 => client.asked_ns = now_ns,
        _ => metrics.counts.subscribes_again.add(1),
    }
    client.asked_last_ns = now_ns;
    core.send(id, OpCode::Text, &channel.subscribe);
}

fn confirmed(
    client: &mut CableClient,
    now_ns: u64,
    connector: &mut Connector,
    metrics: &WorkerMetrics,
) {
    match client.state {
        State::Subscribing => {}
        State::Subscribed => return metrics.counts.confirmed_again.add(1),
        _ => return metrics.counts.unexpected.add(1),
    }
    client.state = State::Subscribed;
    metrics.count_subscribed(now_ns);
    connector.settled();
    metrics.record(Series::Confirm, now_ns.saturating_sub(client.asked_ns));
    metrics.record(Series::Subscribed, now_ns.saturating_sub(client.began_ns));
}

/// Ends the current state of a client.
fn leave(client: &mut CableClient, again: bool, connector: &mut Connector, metrics: &Metrics) {
    match client.state {
        State::Opened | State::Subscribing => connector.settled(),
        State::Subscribed => metrics.counts.subscribed.sub(1),
        State::Rejected => metrics.counts.rejected.sub(1),
        State::Closed | State::Closing { .. } => {}
    }
    client.state = State::Closing { again };
}
