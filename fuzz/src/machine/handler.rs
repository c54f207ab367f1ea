//! [`Echo`]: echoes messages, gives each kind of answer by path, and checks the events of every
//! connection: opened once, closed once, and nothing after that.

use std::collections::BTreeMap;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sys};
use wire::websocket::OpCode;

#[derive(Clone, Copy, PartialEq)]
enum Life {
    Begun,
    Open,
    Closed,
}

#[derive(Default)]
pub struct Echo {
    lives: BTreeMap<ConnId, Life>,
    ids: Vec<ConnId>,
    /// Requests that wait for an answer.
    pub later: Vec<ConnId>,
}

impl Echo {
    /// Open WebSockets, according to the events.
    pub fn open(&self) -> u64 {
        self.lives.values().filter(|life| **life == Life::Open).count() as u64
    }

    /// One of the present or past connections.
    pub fn pick(&self, at: usize) -> Option<ConnId> {
        self.ids.iter().rev().nth(at % 8).or(self.ids.last()).copied()
    }

    fn called(&mut self, id: ConnId) {
        let life = self.lives.entry(id).or_insert_with(|| {
            self.ids.push(id);
            Life::Begun
        });
        assert!(*life != Life::Closed, "called after `closed`");
    }
}

impl Handler for Echo {
    type User = ();
    type Post = ();

    fn request<S: Sys>(
        &mut self,
        _: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        self.called(id);
        let protocol = request.upgrade.and_then(|upgrade| upgrade.protocols().next());
        match request.head.path() {
            "/later" => {
                self.later.push(id);
                Answer::Later
            }
            "/stream" => Answer::Stream(Response::text(200, "begin\n")),
            "/plain" => Answer::Respond(Response::text(200, "plain\n")),
            "/body" => Answer::Body(1_000),
            "/close" => Answer::Respond(Response { close: true, ..Response::text(404, "no\n") }),
            _ => Answer::Upgrade(protocol.map(Into::into)),
        }
    }

    fn body<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, body: Vec<u8>) -> Answer {
        self.called(id);
        assert!(body.len() <= 1_000, "a body of {} bytes", body.len());
        if body.first() == Some(&b'l') {
            self.later.push(id);
            return Answer::Later;
        }
        Answer::Respond(Response::text(200, "body\n"))
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.called(id);
        let before = self.lives.insert(id, Life::Open);
        assert!(before == Some(Life::Begun), "`open` twice");
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        self.called(id);
        assert!(data.len() <= core.limits().wire.message_bytes as usize);
        if opcode == OpCode::Text {
            assert!(std::str::from_utf8(data).is_ok(), "text that is not UTF-8");
        }
        core.send(id, opcode, data);
    }

    fn pong<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        self.called(id);
        assert!(data.len() <= 125);
    }

    fn data<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, _: &mut [u8]) {
        self.called(id);
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        self.called(id);
        assert_eq!(core.info(id).map_or(0, |info| info.queued_bytes), 0);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, _: Closed, opened: bool) {
        self.called(id);
        let before = self.lives.insert(id, Life::Closed);
        assert_eq!(before == Some(Life::Open), opened);
        self.later.retain(|other| *other != id);
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}
