//! Requests that JavaScript answers, on the thread that has their connections: the engine keeps one until its body is
//! read or the first bytes of its answer are there; then its connection is the handler's.

use engine::{Answer, ConnId, Core, Incoming, Sys};
use wire::http::{BodyDecoder, expects_continue};

use super::batch::{Event, Peer};
use super::holder::{Holder, head_bytes};
use crate::requests::{CHECK_NS, DECISION_NS, body_of, body_piece, end_exchange, is_stuck};

/// A request that JavaScript answers.
pub(super) struct Transfer {
    id: ConnId,
    /// What is to come of its body.
    body: Option<BodyDecoder>,
    /// The client sends its body only if it is asked to.
    expects_continue: bool,
    /// JavaScript reads the body.
    wanted: bool,
    paused: bool,
    /// The connection is the handler's.
    raw: bool,
    /// The engine was told that the request goes on.
    told: bool,
    /// What there is of the answer before the connection is the handler's.
    out: Vec<u8>,
    /// The answer is complete, and whether the connection can serve another request.
    ended: Option<bool>,
    /// Bytes written since the last [`Event::Flowed`].
    unreported: u32,
    /// See [`is_stuck`].
    moved_ns: u64,
    queued: usize,
}

impl Transfer {
    fn body_is_complete(&self) -> bool {
        self.body.as_ref().is_none_or(BodyDecoder::is_done)
    }

    /// Whether the connection serves another request, if this one is over. Of a connection that serves no more the
    /// rest of the body is discarded.
    fn over(&self) -> Option<bool> {
        let keeps = self.ended? && !self.expects_continue;
        (!keeps || self.body_is_complete()).then_some(keeps)
    }
}

impl Holder {
    /// Keeps a request until JavaScript answers it.
    pub(super) fn keep_request<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        incoming: &Incoming<'_, '_>,
    ) -> Answer {
        let transfer = Transfer {
            id,
            body: body_of(incoming.head),
            expects_continue: expects_continue(incoming.head),
            wanted: false,
            paused: false,
            raw: false,
            told: false,
            out: Vec::new(),
            ended: None,
            unreported: 0,
            moved_ns: 0,
            queued: 0,
        };
        self.transfers.insert(id.slot(), transfer);
        let peer = Peer::new(core.info(id).and_then(|info| info.peer));
        let mut bytes = peer.to_bytes().to_vec();
        let client = core.reported_client(id);
        bytes.extend(client.into_iter().flat_map(|client| Peer::reported(client).to_bytes()));
        let certificate = core.client_certificate(id).unwrap_or_default();
        bytes.extend_from_slice(certificate);
        let certificate = certificate.len() as u32;
        head_bytes(incoming.head, &mut bytes);
        let (upgrades, proxied) = (incoming.upgrade.is_some(), client.is_some());
        let length = bytes.len() as u32;
        let lines = u16::try_from(incoming.head.headers.len()).unwrap_or(u16::MAX);
        self.push(Event::Request { id, upgrades, proxied, certificate, lines, length }, &bytes);
        Answer::LaterWithin(DECISION_NS)
    }

    fn transfer(&mut self, id: ConnId) -> Option<&mut Transfer> {
        self.transfers.get_mut(&id.slot()).filter(|own| own.id == id)
    }

    /// The request goes on: the engine asks for [`Holder::go_on`].
    fn ask<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let waits = |own: &&mut Transfer| !own.raw && !own.told;
        if let Some(transfer) = self.transfer(id).filter(waits) {
            transfer.told = true;
            core.remote().answer(id, Answer::ByHandler);
        }
    }

    pub(super) fn go_on<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> Answer {
        let Some(transfer) = self.transfer(id) else {
            return Answer::Written { keep_alive: false };
        };
        if let Some(buffer) = core.answer_buffer(id) {
            buffer.extend_from_slice(&transfer.out);
        }
        if let Some(keep_alive) = transfer.over() {
            self.transfers.remove(&id.slot());
            return Answer::Written { keep_alive };
        }
        let out = std::mem::take(&mut transfer.out);
        (transfer.raw, transfer.moved_ns) = (true, core.now_ns());
        if transfer.wanted && transfer.expects_continue && out.is_empty() {
            transfer.expects_continue = false;
            return Answer::RawContinue;
        }
        self.flowing.push(id);
        Answer::Raw
    }

    /// JavaScript reads the body of a request.
    pub(super) fn on_wanted<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let Some(transfer) = self.transfer(id).filter(|own| !own.wanted) else { return };
        transfer.wanted = true;
        if transfer.body_is_complete() {
            // There is none, or no more of it: that is its end.
            self.push(Event::Data { id, last: true, length: 0 }, &[]);
        } else {
            self.ask(core, id);
        }
    }

    /// The next bytes of an answer; `ended` says with the last ones whether the connection can serve another request.
    pub(super) fn on_answer<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        ended: Option<bool>,
        data: &[u8],
    ) {
        let Some(transfer) = self.transfer(id) else { return };
        transfer.ended = ended;
        if ended.is_none() {
            transfer.unreported = transfer.unreported.saturating_add(data.len() as u32);
        }
        if !transfer.raw {
            transfer.out.extend_from_slice(data);
            return self.ask(core, id);
        }
        transfer.moved_ns = core.now_ns();
        core.write_unlimited(id, data);
        if ended.is_none() {
            self.flowing.push(id);
        }
        self.end_if_over(core, id);
    }

    fn end_if_over<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if let Some(keep_alive) = self.transfer(id).and_then(|own| own.over()) {
            self.transfers.remove(&id.slot());
            end_exchange(core, id, keep_alive);
        }
    }

    /// Whether the body of a request is read. `false` if there is no such request.
    pub(super) fn on_pause<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        paused: bool,
    ) -> bool {
        let Some(transfer) = self.transfer(id) else { return false };
        transfer.paused = paused;
        if !transfer.raw {
            return true;
        }
        match paused {
            true => core.pause(id),
            false => core.resume(id),
        }
        true
    }

    /// Bytes of a request's body.
    pub(super) fn on_body<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        let mut at = 0;
        loop {
            let rest = data.get(at..).unwrap_or_default();
            let Some(transfer) = self.transfer(id) else { return };
            transfer.moved_ns = core.now_ns();
            let reported = transfer.wanted && transfer.ended.is_none();
            let decoder = transfer.body.as_mut().filter(|_| !transfer.paused);
            let Some((used, piece, last)) = body_piece(core, id, decoder, rest) else { return };
            at += used;
            if reported && (last || !piece.is_empty()) {
                self.push(Event::Data { id, last, length: piece.len() as u32 }, piece);
            }
            if last {
                return self.end_if_over(core, id);
            }
        }
    }

    /// Tells JavaScript of an answer of which nothing waits. `false` if this is no connection of a request.
    pub(super) fn tell_flowed<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) -> bool {
        let Some(transfer) = self.transfer(id) else { return false };
        // With a queue that is not empty, the event follows when it has drained.
        if transfer.raw && transfer.unreported > 0 && core.queued(id) == 0 {
            let bytes = std::mem::take(&mut transfer.unreported);
            transfer.moved_ns = core.now_ns();
            self.push(Event::Flowed { id, bytes }, &[]);
        }
        true
    }

    /// At the end of a turn: tells of answers that flow, and gives up requests that are stuck. Returns when to look
    /// again.
    pub(super) fn check_transfers<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let mut flowing = std::mem::take(&mut self.flowing);
        for id in flowing.drain(..) {
            self.tell_flowed(core, id);
        }
        self.flowing = flowing;
        if self.transfers.is_empty() {
            return None;
        }
        let now_ns = core.now_ns();
        if now_ns >= self.checked_ns.saturating_add(CHECK_NS) {
            self.checked_ns = now_ns;
            for transfer in self.transfers.values_mut().filter(|own| own.raw) {
                let (queued, receives) =
                    (core.queued(transfer.id), !transfer.body_is_complete() && !transfer.paused);
                let moved = (&mut transfer.moved_ns, &mut transfer.queued);
                if is_stuck(moved, queued, receives, now_ns) {
                    core.reset(transfer.id);
                }
            }
        }
        Some(self.checked_ns.saturating_add(CHECK_NS))
    }

    /// The connection of a request has ended.
    pub(super) fn on_gone(&mut self, id: ConnId) {
        let gone = self.transfers.remove(&id.slot());
        if gone.is_some_and(|own| own.ended.is_none()) {
            self.push(Event::Gone(id), &[]);
        }
    }
}
