//! [`Polls`]: the simulated server's polled connections, and the requests that take messages from them.

use engine::{Answer, ConnId, Core, Response, Sys};
use topics::Topics;

use super::ledger::Ledger;
use super::server::{POLLED_LINES, Server};

/// How long a polled connection stays without a request.
const KEEPALIVE_NS: u64 = 300_000_000;
/// Longest time until a request is answered.
const INTERVAL_NS: u64 = 5_000_000;
/// The engine's time for it, which must not matter.
const WITHIN_NS: u64 = 30_000_000_000;

/// What one worker has of them.
#[derive(Default)]
pub(super) struct Polls {
    /// Polled connections with the time at which they end without a request.
    open: Vec<(ConnId, u64)>,
    /// Requests with their polled connections, and when they are answered.
    waiting: Vec<(ConnId, ConnId, u64)>,
}

impl Polls {
    pub(super) fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Server>,
        id: ConnId,
        peer_id: u32,
        topics: &mut Topics,
        ledger: &Ledger,
    ) -> Answer {
        let polled = match core.user(id).and_then(|user| user.polled) {
            Some(polled) => polled,
            None => {
                let Ok(polled) = core.open_polled(id) else {
                    return Answer::Respond(Response::text(503, "no room\n"));
                };
                topics.subscribe(core, polled, "0", POLLED_LINES);
                if let Some(user) = core.user_mut(id) {
                    user.polled = Some(polled);
                }
                self.open.push((polled, u64::MAX));
                ledger.book().known.push((polled, peer_id));
                polled
            }
        };
        let at_ns = core.now_ns() + core.random() % INTERVAL_NS;
        self.waiting.push((id, polled, at_ns));
        self.keep(polled, u64::MAX);
        Answer::LaterWithin(WITHIN_NS)
    }

    fn keep(&mut self, polled: ConnId, until_ns: u64) {
        let own = self.open.iter_mut().find(|(id, _)| *id == polled);
        own.into_iter().for_each(|own| own.1 = until_ns);
    }

    /// A connection has ended; returns whether it was a polled one.
    pub(super) fn ended<S: Sys>(&mut self, core: &Core<S, Server>, id: ConnId) -> bool {
        if let Some(polled) = core.user(id).and_then(|user| user.polled) {
            self.keep(polled, core.now_ns() + KEEPALIVE_NS);
        }
        self.waiting.retain(|(request, ..)| *request != id);
        let before = self.open.len();
        self.open.retain(|(polled, _)| *polled != id);
        self.open.len() < before
    }

    /// Answers what is due, and ends what nobody polls. Returns when to be called again.
    pub(super) fn turn<S: Sys>(&mut self, core: &mut Core<S, Server>) -> Option<u64> {
        let now_ns = core.now_ns();
        // Those with much to take are answered at once.
        let pollable = core.take_pollable();
        let due = |(_, polled, at_ns): &(ConnId, ConnId, u64)| {
            *at_ns <= now_ns || pollable.contains(polled)
        };
        let answered: Vec<_> = self.waiting.iter().copied().filter(due).collect();
        self.waiting.retain(|waiting| !due(waiting));
        for (request, polled, _) in answered {
            answer(core, request, polled);
            self.keep(polled, now_ns + KEEPALIVE_NS);
        }
        for (polled, _) in self.open.iter().filter(|(_, until_ns)| *until_ns <= now_ns) {
            core.abort(*polled);
        }
        let requests = self.waiting.iter().map(|(.., at_ns)| *at_ns);
        let ends = self.open.iter().map(|(_, until_ns)| *until_ns).filter(|at| *at < u64::MAX);
        requests.chain(ends.filter(|at_ns| *at_ns > now_ns)).min()
    }
}

fn answer<S: Sys>(core: &mut Core<S, Server>, request: ConnId, polled: ConnId) {
    let mut lines = Vec::new();
    let messages = core.take_output(polled, &mut lines);
    let known = core.mode(polled).is_some() || messages > 0;
    let mut response = Response::text(if known { 200 } else { 410 }, "");
    // At times the messages return, as if the request were one of another worker and had ended.
    let delivered = !core.random().is_multiple_of(8) && {
        response.body = lines.clone().into();
        core.answer(request, &response)
    };
    if !delivered {
        core.give_back(polled, &lines, messages);
        response.body = Vec::new().into();
        core.answer(request, &response);
    }
}
