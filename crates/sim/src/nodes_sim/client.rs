//! [`Client`]: the handler of the worker with all clients, who come, subscribe, publish, leave and come back to
//! another node, and check every message.

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sys};
use wire::websocket::{CloseCode, OpCode};

use super::ledger::{Ledger, Reading};
use super::scenario::Scenario;
use crate::ledger::Judge;

#[derive(Debug)]
enum State {
    Away,
    /// Not open yet.
    Connecting,
    Idle,
    Subscribing,
    Subscribed(Reading),
    Unsubscribing(Reading),
}

#[derive(Debug)]
struct Reader {
    id: Option<ConnId>,
    node: usize,
    topic: u32,
    state: State,
}

pub(crate) struct Client {
    ledger: Ledger,
    readers: Vec<Reader>,
    nodes: usize,
    topics: u32,
    act_ns: u64,
    due_ns: u64,
    /// Readers that come and subscribe at the beginning.
    first: usize,
}

impl Client {
    pub(crate) fn new(ledger: Ledger, scenario: &Scenario) -> Self {
        let reader = |number: usize| Reader {
            id: None,
            node: number % scenario.nodes,
            topic: (number / scenario.nodes) as u32 % scenario.topics,
            state: State::Away,
        };
        let count = scenario.sockets * scenario.nodes;
        let readers = (0..count).map(reader).collect();
        let (nodes, topics) = (scenario.nodes, scenario.topics);
        Client { ledger, readers, nodes, topics, act_ns: scenario.act_ns, due_ns: 0, first: 0 }
    }

    /// Those that are subscribed, and those that are about to be.
    pub(crate) fn subscribed(&self) -> (usize, usize) {
        let count =
            |is: fn(&State) -> bool| self.readers.iter().filter(|one| is(&one.state)).count();
        (
            count(|state| matches!(state, State::Subscribed(_))),
            count(|state| matches!(state, State::Subscribing | State::Unsubscribing(_))),
        )
    }

    /// Each that is subscribed has everything, or was told of a gap.
    pub(crate) fn check(&self) {
        let mut book = self.ledger.book();
        for reader in &self.readers {
            match &reader.state {
                State::Subscribed(reading) => book.check(reader.node, reading),
                State::Subscribing | State::Unsubscribing(_) => {
                    book.fail(format!("a client still waits: {reader:?}"));
                }
                State::Away | State::Connecting | State::Idle => {}
            }
        }
    }

    /// What the next reader does.
    fn act<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let at = match self.first < self.readers.len() {
            true => self.first,
            false => core.random() as usize % self.readers.len(),
        };
        self.first += 1;
        let (chance, topic) = (core.random() % 100, core.random() as u32 % self.topics);
        let other = core.random() as usize % self.nodes;
        let living = !self.ledger.book().dead[other];
        let elsewhere = self.first > self.readers.len();
        let Some(reader) = self.readers.get_mut(at) else { return };
        let Some(id) = reader.id else {
            if elsewhere && living {
                reader.node = other;
            }
            if let Ok(id) = core.connect(reader.node as u8, None) {
                if let Some(user) = core.user_mut(id) {
                    *user = at;
                }
                (reader.id, reader.state) = (Some(id), State::Connecting);
            }
            return;
        };
        match (&mut reader.state, chance) {
            (State::Connecting, _) => {}
            (_, 0..4) => core.abort(id),
            (_, 4) => core.close(id, CloseCode::NORMAL, "later"),
            (State::Idle, _) => {
                (reader.topic, reader.state) = (topic, State::Subscribing);
                core.send(id, OpCode::Text, format!("S{topic}").as_bytes());
            }
            (State::Subscribed(_), 5..12) => {
                let state = std::mem::replace(&mut reader.state, State::Idle);
                if let State::Subscribed(reading) = state {
                    reader.state = State::Unsubscribing(reading);
                }
                core.send(id, OpCode::Text, b"U");
            }
            _ => {
                core.send(id, OpCode::Text, format!("P{topic}").as_bytes());
            }
        }
    }
}

impl Handler for Client {
    /// The reader's number.
    type User = usize;
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(500, ""))
    }

    /// Subscribes at once.
    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let reader = core.user(id).and_then(|at| self.readers.get_mut(*at));
        if let Some(reader) = reader {
            reader.state = State::Subscribing;
            let topic = reader.topic;
            core.send(id, OpCode::Text, format!("S{topic}").as_bytes());
        }
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        _: OpCode,
        data: &mut [u8],
    ) {
        let Some(reader) = core.user(id).and_then(|at| self.readers.get_mut(*at)) else { return };
        let mut book = self.ledger.book();
        let (what, rest) = data.split_at_checked(1).unwrap_or_default();
        let number = |digits| {
            let text = std::str::from_utf8(digits).unwrap_or_default();
            u64::from_str_radix(text, 16).unwrap_or_default()
        };
        match (what, &mut reader.state) {
            (b"C", State::Subscribing) => {
                let reading = Reading::new(reader.topic, number(rest) as usize);
                reader.state = State::Subscribed(reading);
            }
            (b"M", State::Subscribed(reading) | State::Unsubscribing(reading)) => {
                book.got(reader.node, reading, rest);
            }
            (b"G", State::Subscribed(reading) | State::Unsubscribing(reading)) => {
                reading.gap(number(rest));
            }
            (b"U", State::Unsubscribing(_)) => reader.state = State::Idle,
            (_, state) => book.fail(format!("a client got {what:?} while {state:?}")),
        }
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        let reader = core.user(id).and_then(|at| self.readers.get_mut(*at));
        if let Some(reader) = reader.filter(|reader| reader.id == Some(id)) {
            (reader.id, reader.state) = (None, State::Away);
        }
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        if self.ledger.book().calm {
            return None;
        }
        let now_ns = core.now_ns();
        if self.due_ns > now_ns {
            return Some(self.due_ns);
        }
        self.act(core);
        // Those of the beginning come quickly.
        let pause_ns = if self.first < self.readers.len() { 20_000 } else { self.act_ns };
        self.due_ns = now_ns + 1 + core.random() % (2 * pause_ns);
        Some(self.due_ns)
    }
}
