//! [`Client`]: the handler of workers with readers, who leave at any moment, come back with the position of
//! the last message that they have read, and check every message.

use std::time::Duration;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sys};
use topics::{Epoch, Position};
use wire::websocket::{CloseCode, OpCode};

use super::ledger::{Ledger, number_of};
use super::scenario::Scenario;
use super::server::position_of;
use crate::ledger::Judge;

/// What a reader waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Away,
    /// It has not subscribed.
    Idle,
    Subscribing,
    /// It has named a position; whether the server cannot have that.
    Resuming {
        foreign: bool,
    },
    Subscribed,
    Unsubscribing,
}

struct Reader {
    topic: u32,
    id: Option<ConnId>,
    state: State,
    /// The offset of the last message that it has read, since it was told of a gap.
    read: Option<u64>,
    /// What it was told to have up to here, without reading it.
    told: u64,
    /// It has left in the middle of a replay, to begin anew and to stay.
    restarts: bool,
    due_ns: u64,
    /// It does not read until then.
    paused_ns: Option<u64>,
}

pub(crate) struct Client {
    ledger: Ledger,
    readers: Vec<Reader>,
    rest: Duration,
    away: Duration,
    /// Publications in a hundred acts.
    publishes: u64,
}

impl Client {
    pub(crate) fn new(ledger: Ledger, scenario: &Scenario) -> Self {
        let reader = |number: usize| Reader {
            topic: number as u32 / 2 % scenario.topics,
            id: None,
            state: State::Away,
            read: None,
            told: 0,
            restarts: false,
            due_ns: 0,
            paused_ns: None,
        };
        let publishes = if scenario.burst > 10 { 5 } else { 30 };
        let readers = (0..scenario.readers).map(reader).collect();
        Client { ledger, readers, rest: scenario.rest, away: scenario.away, publishes }
    }

    /// After a calm each reader that is subscribed has everything.
    pub(crate) fn check_calm(&self) {
        let mut book = self.ledger.book();
        for reader in &self.readers {
            let Reader { topic, id, state, read, told, .. } = reader;
            match state {
                State::Away | State::Idle => {}
                State::Subscribed => {
                    let has = read.unwrap_or(*told);
                    let lacks = book.next_after(*topic, has);
                    book.require(lacks.is_none(), || {
                        format!("{id:?} has {has} of {topic} and never got {lacks:?}")
                    });
                }
                _ => book.fail(format!("{id:?} still waits: {state:?}")),
            }
        }
    }

    /// What one reader does next.
    fn act<S: Sys>(&mut self, core: &mut Core<S, Self>, at: usize) {
        let rest_ns = core.random() % (self.rest.as_nanos() as u64 + 1);
        let (now_ns, chance) = (core.now_ns(), core.random() % 100);
        let publishes = self.publishes;
        let Some(reader) = self.readers.get_mut(at) else { return };
        reader.due_ns = now_ns + rest_ns + 1;
        let Some(id) = reader.id else {
            // The targets are all topics in both groups.
            let target = reader.topic * 2 + at as u32 % 2;
            let Ok(id) = core.connect(target as u8, None) else { return };
            if let Some(user) = core.user_mut(id) {
                *user = at;
            }
            (reader.id, reader.due_ns) = (Some(id), u64::MAX);
            return;
        };
        match (reader.state, chance) {
            (_, 0..5) => core.abort(id),
            (_, 5) => core.reset(id),
            (_, 6) => core.close(id, CloseCode::NORMAL, "later"),
            (State::Idle, _) => self.subscribe(core, at, id, chance),
            (State::Subscribed, 7..14) => {
                reader.state = State::Unsubscribing;
                core.send(id, OpCode::Text, b"U");
            }
            (State::Subscribed, 14..17) if reader.paused_ns.is_none() => {
                reader.paused_ns = Some(now_ns + 20 * rest_ns);
                core.pause(id);
            }
            (State::Subscribed, _) if chance < 17 + publishes => {
                core.send(id, OpCode::Text, b"P");
            }
            _ => {}
        }
    }

    /// From now on, or after what it has read; some name positions that the server does not have.
    fn subscribe<S: Sys>(&mut self, core: &mut Core<S, Self>, at: usize, id: ConnId, chance: u64) {
        let Some(reader) = self.readers.get_mut(at) else { return };
        let own = self.ledger.book().epoch;
        let offset = reader.read.unwrap_or(reader.told);
        if offset == 0 || chance < 15 {
            reader.state = State::Subscribing;
            core.send(id, OpCode::Text, b"S");
            return;
        }
        let (epoch, offset, foreign) = match chance {
            // Of a server before this one, which had published as much.
            15..25 => (Epoch::new(0xdead_0000), offset, true),
            // Beyond what a broker reaches, whose offsets leave numbers out.
            25..30 => (own, offset + (1 << 40), true),
            _ => (own, offset, false),
        };
        reader.state = State::Resuming { foreign };
        core.send(id, OpCode::Text, format!("R{epoch}{offset:016x}").as_bytes());
        if chance > 80 {
            // What comes does not fit into its socket.
            reader.paused_ns = Some(core.now_ns() + 100 * self.rest.as_nanos() as u64);
            core.pause(id);
        }
    }

    /// Something that is no message, and the offset that it names.
    fn told(&mut self, at: usize, what: u8, offset: Option<u64>) {
        let Some(reader) = self.readers.get_mut(at) else { return };
        let state = reader.state;
        reader.state = match (what, state, offset) {
            (b'U', State::Unsubscribing, None) => State::Idle,
            (b'H', State::Resuming { foreign: false }, None) => State::Subscribed,
            (b'C', State::Subscribing, Some(offset))
            | (
                b'G',
                State::Resuming { .. } | State::Subscribed | State::Unsubscribing,
                Some(offset),
            ) => {
                (reader.read, reader.told) = (None, offset);
                if state == State::Unsubscribing { state } else { State::Subscribed }
            }
            _ => {
                let what = what as char;
                return self.ledger.book().fail(format!("{at} was told {what} while {state:?}"));
            }
        };
    }

    /// Unsubscribes at times as soon as a replay has begun, then subscribes to what comes.
    fn restart<S: Sys>(&mut self, core: &mut Core<S, Self>, at: usize, id: ConnId) {
        let calm = self.ledger.book().calm;
        let leaves = core.random().is_multiple_of(8);
        let Some(reader) = self.readers.get_mut(at).filter(|_| !calm) else { return };
        if reader.restarts && reader.state == State::Idle {
            (reader.restarts, reader.state, reader.due_ns) = (false, State::Subscribing, u64::MAX);
            core.send(id, OpCode::Text, b"S");
        } else if leaves && reader.state == State::Subscribed && reader.read.is_some() {
            (reader.restarts, reader.state) = (true, State::Unsubscribing);
            core.send(id, OpCode::Text, b"U");
        }
    }

    /// A message: the next one after what the reader has.
    fn reads(&mut self, at: usize, position: Position, number: Option<u32>) {
        let Some(reader) = self.readers.get_mut(at) else { return };
        let mut book = self.ledger.book();
        book.coverage.messages += 1;
        let Reader { topic, state, read, told, .. } = *reader;
        let Position { epoch, offset } = position;
        let subscribed = matches!(state, State::Subscribed | State::Unsubscribing);
        book.require(subscribed, || format!("{at} got {offset} while {state:?}"));
        let there = book.number_at(topic, offset);
        let own = book.epoch;
        book.require(epoch == own && there.is_some() && there == number, || {
            format!("{at} got {number:?} as {offset} of {topic}, which is {there:?}")
        });
        let next = book.next_after(topic, read.unwrap_or(told));
        // One that begins may get some that were on their way.
        let right = Some(offset) == next || read.is_none() && offset <= told;
        book.require(right, || {
            format!("{at} got {offset} of {topic} after {read:?}, told {told}, expected {next:?}")
        });
        reader.read = Some(offset);
    }
}

impl Handler for Client {
    /// The reader's number.
    type User = usize;
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(500, ""))
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let now_ns = core.now_ns();
        let reader = core.user(id).and_then(|at| self.readers.get_mut(*at));
        if let Some(reader) = reader {
            (reader.state, reader.due_ns) = (State::Idle, now_ns);
        }
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        _: OpCode,
        data: &mut [u8],
    ) {
        let Some(at) = core.user(id).copied() else { return };
        match (data.first(), position_of(data)) {
            (Some(b'M'), Some(position)) => {
                let number = data.get(25..).and_then(number_of);
                self.reads(at, position, number);
            }
            (Some(&what), _) => {
                let digits = data.get(1..).and_then(|digits| std::str::from_utf8(digits).ok());
                let offset = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                self.told(at, what, offset);
                self.restart(core, at, id);
            }
            (None, _) => self.ledger.book().fail("an empty message"),
        }
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        let away_ns = core.random() % (self.away.as_nanos() as u64 + 1);
        let now_ns = core.now_ns();
        let reader = core.user(id).and_then(|at| self.readers.get_mut(*at));
        let Some(reader) = reader.filter(|reader| reader.id == Some(id)) else { return };
        (reader.id, reader.state, reader.paused_ns) = (None, State::Away, None);
        reader.restarts = false;
        reader.due_ns = now_ns + away_ns + 1;
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        let calm = self.ledger.book().calm;
        for reader in &mut self.readers {
            let due = reader.paused_ns.is_some_and(|until_ns| calm || until_ns <= now_ns);
            if let Some(id) = reader.id.filter(|_| due) {
                reader.paused_ns = None;
                core.resume(id);
            }
        }
        if calm {
            return None;
        }
        for at in 0..self.readers.len() {
            if self.readers.get(at).is_some_and(|reader| reader.due_ns <= now_ns) {
                self.act(core, at);
            }
        }
        let times = |reader: &Reader| reader.due_ns.min(reader.paused_ns.unwrap_or(u64::MAX));
        self.readers.iter().map(times).min()
    }
}
