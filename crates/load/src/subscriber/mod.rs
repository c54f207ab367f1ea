//! [`CableClients`]: every connection of a worker is an Action Cable client with one subscription. It waits
//! for the welcome, subscribes, repeats the subscribe until it is confirmed, gives the connection up
//! without pings, and obeys disconnect messages, as Rails' client does (`connection.js`,
//! `connection_monitor.js`, `subscription_guarantor.js`). [`crate::Retry`] sets the wait before it
//! reconnects. Data of the subscription is returned to the caller.
//!
//! It keeps 40 bytes per socket outside the slab, so that other runs need no memory for it.

mod summary;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use action_cable::{Command, Message, data_prefix, put_string};
use engine::{ConnId, Core, Sys};
use wire::websocket::{CloseCode, OpCode};

pub use self::summary::CableSummary;
use crate::client::Client;
use crate::connector::Connector;
use crate::ledger::Ledger;
use crate::sweep::Sweep;
use crate::{Cable, Series};

/// How often each socket is checked, and so the maximum delay of its timers.
const LOOK: Duration = Duration::from_millis(250);
const VISITS_PER_TURN: u32 = 4_096;

/// One worker's clients.
pub(crate) struct Subscribers {
    lines: Arc<[Line]>,
    stale_ns: u64,
    repeat_ns: u64,
    /// By slot.
    seats: Vec<Seat>,
    /// Begun with the first connection.
    sweep: Option<Sweep>,
    /// Connections just closed by the client.
    given_up: Vec<ConnId>,
}

/// One identifier with what is sent and received under it.
pub(crate) struct Line {
    pub(crate) identifier: String,
    pub(crate) subscribe: Vec<u8>,
    pub(crate) unsubscribe: Vec<u8>,
    /// The prefix of data as most servers encode it.
    pub(crate) prefix: Vec<u8>,
}

/// One client.
#[derive(Copy, Clone, Default)]
struct Seat {
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

const _: () = assert!(size_of::<Seat>() == 40);

#[derive(Copy, Clone, Default, Eq, PartialEq)]
enum State {
    #[default]
    Gone,
    /// Open and not welcome yet.
    Opened,
    Asking,
    Subscribed,
    Rejected,
    /// Closing, to come again or not.
    Leaving {
        again: bool,
    },
}

impl Line {
    /// Those of a run.
    pub(crate) fn all(cable: &Cable) -> Arc<[Line]> {
        let line = |identifier: &String| {
            let (mut subscribe, mut unsubscribe, mut prefix) = Default::default();
            let named = Cow::Borrowed(identifier.as_str());
            Command::Unsubscribe { identifier: named.clone() }.encode(&mut unsubscribe);
            let command = Command::Subscribe { identifier: named, history: None, presence: None };
            command.encode(&mut subscribe);
            data_prefix(identifier, &mut prefix);
            Line { identifier: identifier.clone(), subscribe, unsubscribe, prefix }
        };
        cable.identifiers.iter().map(line).collect()
    }
}

impl Subscribers {
    pub(crate) fn new(cable: &Cable, lines: Arc<[Line]>) -> Subscribers {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Subscribers {
            lines,
            stale_ns: nanoseconds(cable.stale_after),
            repeat_ns: nanoseconds(cable.repeat),
            seats: Vec::new(),
            sweep: None,
            given_up: Vec::new(),
        }
    }

    /// Whether the connection of a slot receives publications.
    pub(crate) fn is_subscribed(&self, slot: u32) -> bool {
        self.seats.get(slot as usize).is_some_and(|seat| seat.state == State::Subscribed)
    }

    pub(crate) fn lines(&self) -> Arc<[Line]> {
        Arc::clone(&self.lines)
    }

    /// The channel of the connection of a slot, if it is subscribed.
    pub(crate) fn subscribed_by(&self, connector: &Connector, slot: u32) -> Option<u32> {
        self.is_subscribed(slot).then(|| line_at(&self.lines, connector, slot) as u32)
    }

    /// Handles an opened connection, after `before` failed attempts.
    pub(crate) fn opened<S: Sys>(&mut self, core: &mut Core<S, Client>, id: ConnId, before: u32) {
        let now_ns = core.clock_ns();
        let began_ns = core.user(id).map_or(now_ns, |socket| socket.sent_ns());
        let slot = id.slot() as usize;
        if slot >= self.seats.len() {
            self.seats.resize(slot + 1, Seat::default());
        }
        let attempts = before + 1;
        let state = State::Opened;
        if let Some(seat) = self.seats.get_mut(slot) {
            *seat = Seat { state, attempts, began_ns, heard_ns: now_ns, ..Seat::default() };
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
        ledger: &Ledger,
    ) -> Option<&'d [u8]> {
        let line = line_of(&self.lines, connector, id.slot())?;
        let seat = self.seats.get_mut(id.slot() as usize)?;
        if matches!(seat.state, State::Gone | State::Leaving { .. }) {
            return None;
        }
        if let Some(published) = data.strip_prefix(line.prefix.as_slice()) {
            return Some(published);
        }
        let message = std::str::from_utf8(data).ok().and_then(|text| Message::decode(text).ok());
        let now_ns = core.clock_ns();
        match message {
            Some(Message::Ping { .. }) => {
                seat.heard_ns = now_ns;
                ledger.counts.cable_pings.add(1);
            }
            Some(Message::Welcome { .. }) if seat.state == State::Opened => {
                ledger.record(Series::Welcome, now_ns.saturating_sub(seat.began_ns));
                *seat = Seat { state: State::Asking, attempts: 0, heard_ns: now_ns, ..*seat };
                subscribe(core, id, seat, line, ledger);
            }
            Some(Message::Confirm { identifier }) if identifier == line.identifier => {
                confirmed(seat, now_ns, connector, ledger);
            }
            Some(Message::Reject { identifier }) if identifier == line.identifier => {
                if seat.state != State::Asking {
                    ledger.counts.unexpected.add(1);
                } else {
                    seat.state = State::Rejected;
                    ledger.counts.rejected.add(1);
                    connector.settled();
                }
            }
            Some(Message::Disconnect { reason, reconnect }) => {
                ledger.count_disconnect(reason.as_str());
                leave(seat, reconnect, connector, ledger);
                core.close(id, CloseCode::NORMAL, "");
                self.given_up.push(id);
            }
            Some(Message::Data { identifier, message, .. }) if identifier == line.identifier => {
                return Some(message.as_bytes());
            }
            // Valid, but not needed.
            Some(Message::Pong | Message::Presence { .. }) => {}
            _ => ledger.counts.unexpected.add(1),
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
        ledger: &Ledger,
    ) -> Option<u32> {
        let seat = self.seats.get_mut(slot as usize)?;
        let again = match seat.state {
            State::Leaving { again } => again,
            _ => true,
        };
        leave(seat, again, connector, ledger);
        seat.state = State::Gone;
        again.then_some(seat.attempts.max(1))
    }

    /// Repeats subscribes and gives up stale connections. Returns when to call it next.
    pub(crate) fn turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        connector: &mut Connector,
        ledger: &Ledger,
    ) -> Option<u64> {
        let (now_ns, slots) = (core.now_ns(), self.seats.len() as u32);
        let sweep = self.sweep.as_mut()?;
        let due = sweep.due(now_ns, slots, VISITS_PER_TURN);
        let full = due.len() as u32 == VISITS_PER_TURN;
        let next_ns = if full { now_ns } else { sweep.next_ns(now_ns, slots) };
        for slot in due {
            let (Some(seat), Some(id)) = (self.seats.get_mut(slot as usize), core.id_at(slot))
            else {
                continue;
            };
            if matches!(seat.state, State::Gone | State::Leaving { .. }) {
                continue;
            }
            if now_ns > seat.heard_ns.saturating_add(self.stale_ns) {
                ledger.counts.stale.add(1);
                leave(seat, true, connector, ledger);
                core.close(id, CloseCode::NORMAL, "");
                self.given_up.push(id);
            } else if seat.state == State::Asking
                && now_ns >= seat.asked_last_ns.saturating_add(self.repeat_ns)
                && let Some(line) = line_of(&self.lines, connector, slot)
            {
                subscribe(core, id, seat, line, ledger);
            }
        }
        Some(next_ns)
    }

    /// Encodes a whisper on the channel of the connection of a slot.
    pub(crate) fn whisper(&self, connector: &Connector, slot: u32, text: &[u8]) -> Option<Vec<u8>> {
        let line = line_of(&self.lines, connector, slot)?;
        let (mut quoted, mut whisper) = (Vec::new(), Vec::new());
        put_string(std::str::from_utf8(text).ok()?, &mut quoted);
        let data = std::str::from_utf8(&quoted).ok()?;
        let identifier = Cow::Borrowed(line.identifier.as_str());
        Command::Whisper { identifier, data }.encode(&mut whisper);
        Some(whisper)
    }
}

/// By the number of the connection in the run, which is that of its place.
fn line_at(lines: &[Line], connector: &Connector, slot: u32) -> usize {
    let number = connector.first() + u64::from(slot);
    (number % lines.len().max(1) as u64) as usize
}

fn line_of<'l>(lines: &'l [Line], connector: &Connector, slot: u32) -> Option<&'l Line> {
    lines.get(line_at(lines, connector, slot))
}

fn subscribe<S: Sys>(
    core: &mut Core<S, Client>,
    id: ConnId,
    seat: &mut Seat,
    line: &Line,
    ledger: &Ledger,
) {
    let now_ns = core.clock_ns();
    ledger.counts.subscribes.add(1);
    match seat.asked_ns {
        0 => seat.asked_ns = now_ns,
        _ => ledger.counts.subscribes_again.add(1),
    }
    seat.asked_last_ns = now_ns;
    core.send(id, OpCode::Text, &line.subscribe);
}

fn confirmed(seat: &mut Seat, now_ns: u64, connector: &mut Connector, ledger: &Ledger) {
    match seat.state {
        State::Asking => {}
        State::Subscribed => return ledger.counts.confirmed_again.add(1),
        _ => return ledger.counts.unexpected.add(1),
    }
    seat.state = State::Subscribed;
    ledger.count_subscribed(now_ns);
    connector.settled();
    let mut recorder = ledger.recorder();
    recorder.record(Series::Confirm, now_ns.saturating_sub(seat.asked_ns));
    recorder.record(Series::Subscribed, now_ns.saturating_sub(seat.began_ns));
}

/// What it was it is no more.
fn leave(seat: &mut Seat, again: bool, connector: &mut Connector, ledger: &Ledger) {
    match seat.state {
        State::Opened | State::Asking => connector.settled(),
        State::Subscribed => ledger.counts.subscribed.sub(1),
        State::Rejected => ledger.counts.rejected.sub(1),
        State::Gone | State::Leaving { .. } => {}
    }
    seat.state = State::Leaving { again };
}
