//! [`Client`]: the handler of workers in the client's role. They echo, subscribe, publish, close in
//! every way and reconnect, and check all that they receive.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sent, Sys};
use wire::websocket::{CloseCode, OpCode};

use super::envelope::{Envelope, Kind};
use super::ledger::Ledger;
use super::scenario::Scenario;

/// Messages of an echo connection that may be in flight.
const WINDOW: u32 = 8;

/// The target of a client worker whose requests are answered later, if it has so many.
const LATER: usize = 2;

/// What a connection is for, by its path.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Echo,
    Topic,
}

struct Conversation {
    id: ConnId,
    purpose: Purpose,
    /// Its request waits for an answer that may be no.
    may_fail: bool,
    began_ns: u64,
    due_ns: u64,
    /// It does not read until then.
    paused_ns: Option<u64>,
    open: bool,
    /// Its queue has grown and was not reported empty since.
    blocked: bool,
    subscribed: bool,
    /// It wants nothing more and only waits.
    resigned: bool,
    /// Echoes sent and received.
    echoes_sent: u32,
    echoes_received: u32,
    published: u32,
}

pub(crate) struct Client {
    ledger: Ledger,
    process: usize,
    wanted: usize,
    rest: Duration,
    filler_max: usize,
    pauses: u64,
    /// What each of the worker's targets is for.
    targets: Vec<Purpose>,
    conversations: BTreeMap<u32, Conversation>,
    connect_ns: u64,
    /// Messages given to `send`.
    pub(crate) sent_messages: u64,
}

impl Client {
    pub(crate) fn new(
        ledger: Ledger,
        process: usize,
        scenario: &Scenario,
        targets: Vec<Purpose>,
    ) -> Self {
        Client {
            ledger,
            process,
            wanted: scenario.wanted,
            rest: scenario.rest,
            filler_max: scenario.filler_max,
            pauses: scenario.pauses,
            targets,
            conversations: BTreeMap::new(),
            connect_ns: 0,
            sent_messages: 0,
        }
    }

    /// After a calm nothing may be in flight on an open connection.
    pub(crate) fn check_calm(&self, now_ns: u64, handshake_ns: u64) {
        let mut book = self.ledger.book();
        for (peer_id, conversation) in &self.conversations {
            let Conversation { id, echoes_sent, echoes_received, blocked, open, .. } = conversation;
            book.require(echoes_sent == echoes_received || !open, || {
                format!("{peer_id} ({id}) still waits for the echo of {echoes_received} of {echoes_sent}")
            });
            book.require(!blocked || !open, || {
                format!("{peer_id} ({id}) never got a call of `drained`")
            });
            let late = !open && now_ns - conversation.began_ns > handshake_ns + 500_000_000;
            book.require(!late, || format!("{peer_id} ({id}) neither opened nor closed"));
        }
    }

    fn rest_ns<S: Sys>(&self, core: &mut Core<S, Self>) -> u64 {
        core.now_ns() + core.random() % (self.rest.as_nanos() as u64 + 1)
    }

    fn connect<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let target = core.random() as usize % self.targets.len().max(1);
        let Some(&purpose) = self.targets.get(target) else { return };
        let Ok(id) = core.connect(target as u8, None) else { return };
        let peer_id = self.ledger.book().new_peer(true);
        if let Some(user) = core.user_mut(id) {
            *user = peer_id;
        }
        let conversation = Conversation {
            id,
            purpose,
            may_fail: target == LATER,
            began_ns: core.now_ns(),
            due_ns: u64::MAX,
            paused_ns: None,
            open: false,
            blocked: false,
            subscribed: false,
            resigned: false,
            echoes_sent: 0,
            echoes_received: 0,
            published: 0,
        };
        self.conversations.insert(peer_id, conversation);
    }

    /// What one open connection does next.
    fn act<S: Sys>(&mut self, core: &mut Core<S, Self>, peer_id: u32) {
        let calm = self.ledger.book().calm;
        let due_ns = self.rest_ns(core);
        let chance = core.random() % 100;
        let filler = self.filler(core);
        let pause = core.random() % 100 < self.pauses;
        let Some(conversation) = self.conversations.get_mut(&peer_id) else { return };
        conversation.due_ns = due_ns;
        let id = conversation.id;
        if calm {
            return;
        }
        if conversation.blocked || conversation.resigned {
            // Until `drained`.
            conversation.due_ns = u64::MAX;
            return;
        }
        match chance {
            0 => return core.close(id, CloseCode::NORMAL, "done"),
            1 if due_ns.is_multiple_of(4) => return core.abort(id),
            2 if due_ns.is_multiple_of(4) => return core.reset(id),
            3 => {
                core.ping(id, b"there?");
            }
            _ if pause && conversation.paused_ns.is_none() => {
                conversation.paused_ns = Some(due_ns + due_ns % 200_000_000);
                core.pause(id);
            }
            _ => {}
        }
        let (kind, number) = match conversation.purpose {
            Purpose::Echo if conversation.echoes_sent - conversation.echoes_received < WINDOW => {
                conversation.echoes_sent += 1;
                (Kind::Echo, conversation.echoes_sent - 1)
            }
            Purpose::Echo => return,
            Purpose::Topic if !conversation.subscribed => {
                conversation.subscribed = true;
                (Kind::Subscribe, 0)
            }
            Purpose::Topic if chance < 6 => {
                conversation.resigned = true;
                (Kind::Unsubscribe, 0)
            }
            Purpose::Topic if chance < 40 => {
                conversation.published += 1;
                (Kind::Publish, conversation.published - 1)
            }
            Purpose::Topic => return,
        };
        let envelope = Envelope { kind, peer_id, number };
        let filler = if kind == Kind::Echo { filler } else { 0 };
        self.sent_messages += 1;
        if let Sent::Queued(_) = core.send(id, envelope.opcode(), &envelope.write(filler)) {
            conversation.blocked = true;
        }
    }

    fn filler<S: Sys>(&self, core: &mut Core<S, Self>) -> usize {
        let random = core.random() as usize;
        match random % 10 {
            0 => random / 16 % self.filler_max,
            1 => random / 16 % self.filler_max.min(5000),
            _ => random / 16 % 100,
        }
    }
}

impl Handler for Client {
    /// The peer's number.
    type User = u32;
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, _: &Incoming) -> Answer {
        self.ledger.book().fail(format!("a request to the client's {id}"));
        Answer::Respond(Response::text(500, ""))
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        self.ledger.book().opened(self.process, id);
        let due_ns = self.rest_ns(core);
        let conversation = core.user(id).and_then(|peer_id| self.conversations.get_mut(peer_id));
        match conversation {
            Some(conversation) if conversation.id == id => {
                conversation.open = true;
                conversation.due_ns = due_ns;
            }
            _ => {
                self.ledger.book().fail(format!("{id} opened on a connection that no client made"))
            }
        }
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        let mut book = self.ledger.book();
        book.called(self.process, id, "message");
        book.arrived += 1;
        let Some(envelope) = Envelope::read(data) else {
            return book.fail(format!("{id} received an incomplete message"));
        };
        let peer_id = core.user(id).copied().unwrap_or(0);
        let Some(conversation) = self.conversations.get_mut(&peer_id) else {
            return book
                .fail(format!("{id} received {envelope:?} on a connection that no client made"));
        };
        book.require(opcode == envelope.opcode(), || {
            format!("{peer_id} received {envelope:?} as {opcode:?}")
        });
        match envelope.kind {
            Kind::Echo => {
                let expected = conversation.echoes_received;
                let right = (envelope.peer_id, envelope.number) == (peer_id, expected);
                book.require(right && expected < conversation.echoes_sent, || {
                    format!(
                        "{peer_id} ({id}) received {envelope:?}, expected the echo of {expected}"
                    )
                });
                conversation.echoes_received += 1;
            }
            Kind::Direct => {
                book.require(envelope.peer_id == peer_id, || {
                    format!("{peer_id} ({id}) received {envelope:?}")
                });
            }
            Kind::Publish => book.received(peer_id, envelope.peer_id, envelope.number),
            Kind::Subscribe | Kind::Unsubscribe => {
                book.fail(format!("{peer_id} received {envelope:?}"))
            }
        }
    }

    fn pong<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, _: &[u8]) {
        self.ledger.book().called(self.process, id, "pong");
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        self.ledger.book().drained(self.process, id, core.info(id));
        let conversation = core.user(id).and_then(|peer_id| self.conversations.get_mut(peer_id));
        if let Some(conversation) = conversation.filter(|conversation| conversation.blocked) {
            conversation.blocked = false;
            conversation.due_ns = core.now_ns();
        }
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        let mut book = self.ledger.book();
        book.closing(self.process, id, why);
        book.require(!core.is_open(id), || format!("{id} is open after `closing`"));
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        let mut book = self.ledger.book();
        book.ended(self.process, id, why, opened);
        let peer_id = core.user(id).copied().unwrap_or(0);
        book.peer_gone(peer_id);
        let Some(conversation) = self.conversations.remove(&peer_id) else {
            return book.fail(format!("{id} closed on a connection that no client made"));
        };
        let age_ns = core.now_ns() - conversation.began_ns;
        let timed_out = matches!(why, Closed::ConnectTimeout | Closed::HandshakeTimeout);
        let early = timed_out && age_ns < core.limits().handshake_timeout.as_nanos() as u64;
        book.require(!early, || format!("{id} ended by {why} after {age_ns} ns"));
        let refused = why == Closed::HandshakeRejected && !conversation.may_fail;
        book.require(!refused && why != Closed::Violation, || format!("{id} ended by {why}"));
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        let calm = self.ledger.book().calm;
        for conversation in self.conversations.values_mut() {
            if conversation.paused_ns.is_some_and(|until_ns| calm || until_ns <= now_ns) {
                conversation.paused_ns = None;
                core.resume(conversation.id);
            }
        }
        let wants = !calm && self.conversations.len() < self.wanted;
        if wants && self.connect_ns <= now_ns {
            self.connect(core);
            // So that all are there after some 20 ms.
            self.connect_ns = now_ns + core.random() % (40_000_000 / self.wanted as u64);
        }
        let due: Vec<u32> = self
            .conversations
            .iter()
            .filter(|(_, conversation)| conversation.open && conversation.due_ns <= now_ns)
            .map(|(peer_id, _)| *peer_id)
            .collect();
        for peer_id in due {
            self.act(core, peer_id);
        }
        let acts = self.conversations.values().filter(|conversation| conversation.open);
        let next = acts.map(|conversation| conversation.due_ns).min();
        let paused = self.conversations.values().filter_map(|c| c.paused_ns).min();
        let connect = (!calm && self.conversations.len() < self.wanted).then_some(self.connect_ns);
        [next.filter(|_| !calm), connect, paused].into_iter().flatten().min()
    }
}
