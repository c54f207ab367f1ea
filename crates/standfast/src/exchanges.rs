//! The exchanges of a worker: plain requests on raw connections of the engine, from the head to the next
//! request.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{Answer, Closed, ConnId, Core, Sys};
use wire::Status;
use wire::http::{BodyDecoder, BodyEvent, Request as Head, expects_continue};

use crate::exchange::{Exchange, Http, Progress, State};
use crate::operations::WorkerOperations;
use crate::reply::Shared;
use crate::routes::{RouteList, nanoseconds};
use crate::worker::WorkerHandler;
use crate::{Response, SocketId};

/// How often slow clients and late replies are looked for.
const CHECK_NS: u64 = 500_000_000;

/// An exchange that only waits for its reply.
pub(crate) struct Unattended;

impl Exchange for Unattended {}

struct Ongoing {
    exchange: Box<dyn Exchange>,
    state: State,
}

/// The exchanges of a worker; empty costs nothing.
#[derive(Default)]
pub(crate) struct Exchanges {
    ongoing: BTreeMap<SocketId, Box<Ongoing>>,
    /// Those to be called in this turn.
    ready: Vec<SocketId>,
    /// What an exchange has written in its call.
    out: Vec<u8>,
    checked_ns: u64,
}

impl Exchanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.ongoing.is_empty()
    }

    pub(crate) fn contains(&self, id: SocketId) -> bool {
        !self.is_empty() && self.ongoing.contains_key(&id)
    }

    /// Begins an exchange. Its body is `body_bytes` long at most.
    pub(crate) fn begin(
        &mut self,
        id: SocketId,
        head: &Head<'_, '_>,
        exchange: Box<dyn Exchange>,
        decoder: Option<BodyDecoder>,
        now_ns: u64,
        reply: Option<(Arc<Shared>, u64)>,
    ) -> Answer {
        let mut state = State::new(head, decoder, now_ns);
        let waits = !state.body_is_complete() && expects_continue(head);
        if let Some((shared, until_ns)) = reply {
            (state.reply, state.until_ns) = (Some(shared), Some(until_ns));
        }
        self.ongoing.insert(id, Box::new(Ongoing { exchange, state }));
        self.ready.push(id);
        if waits { Answer::RawContinue } else { Answer::Raw }
    }
}

/// A decoder for the body of a request.
///
/// # Errors
/// The answer to a body that is too long.
pub(crate) fn decoder(head: &Head<'_, '_>, body_bytes: u64) -> Result<BodyDecoder, Response> {
    let limits = wire::Limits { body_bytes, ..wire::Limits::default() };
    BodyDecoder::for_request(head, &limits).map_err(|violation| {
        Response::text(violation.http_status(), "The body of this request is too long.\n")
    })
}

impl<R: RouteList> WorkerHandler<R> {
    /// Calls an exchange, and does what it has asked for.
    fn call_exchange<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        call: impl FnOnce(&mut dyn Exchange, &mut Http<'_>),
    ) {
        let WorkerHandler { exchanges, tools, .. } = self;
        let Exchanges { ongoing, ready, out, .. } = exchanges;
        let Some(own) = ongoing.get_mut(&id) else { return };
        let Ongoing { exchange, state } = &mut **own;
        let (begun, paused) = (std::mem::replace(&mut state.begun, true), state.paused);
        state.written = 0;
        let mut operations = WorkerOperations { core: &mut *core, tools };
        let mut http = Http { operations: &mut operations, id, state: &mut *state, out };
        if !begun {
            exchange.begin(&mut http);
        }
        if !http.state.is_over() {
            call(&mut **exchange, &mut http);
        }
        if !http.state.is_over() && !http.state.body_ended && http.body_is_complete() {
            http.state.body_ended = true;
            exchange.end(&mut http);
        }
        http.flush();
        if state.refused && core.queued(id) == 0 {
            ready.push(id);
        }
        if state.paused != paused {
            match state.paused {
                true => core.pause(id),
                false => core.resume(id),
            }
        }
        self.end_if_over(core, id);
    }

    /// Ends an exchange whose answer is complete; another request may follow.
    fn end_if_over<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let Some(own) = self.exchanges.ongoing.get(&id).filter(|own| own.state.is_over()) else {
            return;
        };
        let (progress, state) = (own.state.progress, &own.state);
        let keep = state.keep_alive && state.body_is_complete();
        self.close_exchange(id, progress == Progress::Finished);
        if progress == Progress::Aborted {
            return core.reset(id);
        }
        core.counters().requests.add(1);
        if keep {
            core.next_request(id);
        } else {
            core.end_after(id, Closed::Answered);
        }
    }

    fn close_exchange(&mut self, id: ConnId, complete: bool) {
        let Some(own) = self.exchanges.ongoing.remove(&id) else { return };
        if let Some(reply) = &own.state.reply {
            reply.end(&self.tools.remote.hub.waking);
        }
        own.exchange.close(complete);
    }

    // ---- what the engine reports ----

    pub(crate) fn on_body_data<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        data: &mut [u8],
    ) {
        let mut at = 0;
        loop {
            let rest = data.get(at..).unwrap_or_default();
            let Some(own) = self.exchanges.ongoing.get_mut(&id) else {
                // Its answer did not wait for the rest of the body, or it was aborted.
                return;
            };
            let state = &mut own.state;
            let decoder = state.decoder.as_mut().filter(|decoder| !decoder.is_done());
            let Some(decoder) = decoder.filter(|_| !state.paused) else {
                // What follows the body is the next request.
                if !rest.is_empty() {
                    core.leave_unread(rest.len());
                }
                return;
            };
            state.moved_ns = core.now_ns();
            let (used, piece) = match decoder.decode(rest) {
                Ok(Status::Partial) => return,
                Ok(Status::Complete((used, BodyEvent::Data(piece)))) => (used, piece),
                Ok(Status::Complete((used, BodyEvent::End))) => (used, &[][..]),
                Err(violation) => {
                    core.counters().count_violation(violation);
                    let status = violation.http_status();
                    return self.refuse(core, id, Response::text(status, "Invalid body.\n"));
                }
            };
            let ends = decoder.is_done();
            at += used;
            if ends {
                core.counters().bodies_in.add(1);
                if at < data.len() {
                    core.leave_unread(data.len() - at);
                }
            }
            if ends || !piece.is_empty() {
                self.call_exchange(core, id, |exchange, http| {
                    if !piece.is_empty() {
                        exchange.data(http, piece);
                    }
                });
            }
            if ends {
                return;
            }
        }
    }

    /// Answers an exchange that goes wrong, or cuts it off if it has begun to answer.
    fn refuse<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, response: Response) {
        let WorkerHandler { exchanges, tools, .. } = self;
        let Exchanges { ongoing, out, .. } = exchanges;
        let Some(own) = ongoing.get_mut(&id) else { return };
        let mut operations = WorkerOperations { core: &mut *core, tools };
        let mut http = Http { operations: &mut operations, id, state: &mut own.state, out };
        http.state.keep_alive = false;
        if !http.respond(response) {
            // An end of the connection would pass for the end of the answer.
            self.close_exchange(id, false);
            return core.reset(id);
        }
        http.flush();
        self.close_exchange(id, false);
        core.counters().requests.add(1);
        core.end_after(id, Closed::Refused);
    }

    pub(crate) fn on_exchange_drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let Some(own) = self.exchanges.ongoing.get_mut(&id) else { return };
        own.state.refused = false;
        own.state.moved_ns = core.now_ns();
        let (reply, waking) = (own.state.reply.clone(), self.tools.remote.hub.waking.clone());
        self.call_exchange(core, id, |exchange, http| {
            if let Some(reply) = reply {
                reply.write_to(http, &waking);
            }
            if !http.state.is_over() {
                exchange.drain(http);
            }
        });
    }

    /// The connection has ended.
    pub(crate) fn on_exchange_closed(&mut self, id: ConnId) {
        if !self.exchanges.is_empty() {
            self.close_exchange(id, false);
        }
    }

    /// The server stops: whether the connection may go on for a while.
    pub(crate) fn on_exchange_stopping<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
    ) -> bool {
        let Some(own) = self.exchanges.ongoing.get_mut(&id) else { return false };
        // The connection ends with this answer.
        if own.state.progress == Progress::Waiting {
            own.state.keep_alive = false;
        }
        if !std::mem::replace(&mut own.state.told_stopping, true) {
            self.call_exchange(core, id, |exchange, http| exchange.stopping(http));
        }
        self.exchanges.contains(id)
    }

    /// Goes on reading a body, or stops that, as another thread asks.
    pub(crate) fn pause_exchange<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        paused: bool,
    ) {
        self.call_exchange(core, id, |_, http| http.state.paused = paused);
    }

    /// Calls exchanges that have begun, those whose replies have changed, and ends those that take too long.
    /// Returns when to look again.
    pub(crate) fn turn_exchanges<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        if self.exchanges.is_empty() {
            self.exchanges.ready.clear();
            return None;
        }
        for id in self.tools.remote.take_signals(core.worker()) {
            let own = self.exchanges.ongoing.get(&id);
            let Some(reply) = own.and_then(|own| own.state.reply.clone()) else { continue };
            let waking = self.tools.remote.hub.waking.clone();
            self.call_exchange(core, id, |_, http| reply.write_to(http, &waking));
        }
        for id in std::mem::take(&mut self.exchanges.ready) {
            let state = self.exchanges.ongoing.get(&id).map(|own| &own.state);
            match state.map(|state| (state.begun, state.refused)) {
                Some((true, true)) => self.on_exchange_drained(core, id),
                Some((false, _)) => self.call_exchange(core, id, |_, _| {}),
                _ => {}
            }
        }
        let now_ns = core.now_ns();
        if now_ns >= self.exchanges.checked_ns.saturating_add(CHECK_NS) {
            self.exchanges.checked_ns = now_ns;
            self.end_late(core, now_ns);
        }
        let more = !self.exchanges.ready.is_empty();
        Some(if more { now_ns } else { self.exchanges.checked_ns.saturating_add(CHECK_NS) })
    }

    fn end_late<S: Sys>(&mut self, core: &mut Core<S, Self>, now_ns: u64) {
        let limit_ns = nanoseconds(self.exchange_timeout);
        let mut late = Vec::new();
        for (id, own) in &mut self.exchanges.ongoing {
            let state = &mut own.state;
            let queued = core.queued(*id);
            if queued < state.queued {
                state.moved_ns = now_ns;
            }
            state.queued = queued;
            let receives = !state.body_is_complete() && !state.paused;
            if !receives && queued == 0 {
                state.moved_ns = now_ns;
            } else if now_ns.saturating_sub(state.moved_ns) >= limit_ns {
                late.push((*id, 408));
                continue;
            }
            let waits = state.progress == Progress::Waiting;
            if waits && state.until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
                late.push((*id, 504));
            }
        }
        for (id, status) in late {
            let queued = core.queued(id);
            // With something queued the client is late with taking its answer.
            if status == 408 && queued == 0 {
                core.counters().bodies_late.add(1);
            }
            let text = match status {
                408 => "The request body was not received in time.\n",
                _ => "The application did not answer this request in time.\n",
            };
            if queued > 0 {
                self.close_exchange(id, false);
                core.reset(id);
            } else {
                self.refuse(core, id, Response::text(status, text));
            }
        }
    }
}
