//! Answers to requests of long polling. Those of a turn are sent at its end, outside of any read.

use std::borrow::Cow;

use engine::{Answer, ConnId, Core, Response, Sys, retry_after};

use super::{POLL_ID, PollPost, ServeHandler, Stage, post_poll};
use crate::protocols::{Cable, Disconnect, ProtocolAdapter};

/// Time until an answer for a worker with a full mailbox is posted again.
const RETRY_NS: u64 = 5_000_000;

/// The answer to a request, on its way to it.
pub(crate) struct PollAnswer {
    pub(super) request: ConnId,
    pub(super) session: ConnId,
    pub(super) status: u16,
    /// Messages for the client, a line each.
    pub(super) lines: Vec<u8>,
    /// How many of them it can get another time.
    pub(super) messages: u32,
    /// It is the answer to the request that has opened the session, and has its id.
    pub(super) opens: bool,
}

impl ServeHandler {
    /// Sends the answers that are due. Returns when to be called again.
    pub(super) fn send_answers<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let polling = self.polling.as_mut()?;
        let mut waiting = Vec::new();
        for answer in std::mem::take(&mut polling.answers) {
            if answer.request.worker() == core.worker() {
                self.deliver(core, answer);
                continue;
            }
            let to = answer.request;
            if let Err(PollPost::Answer(answer)) = post_poll(core, to, PollPost::Answer(answer)) {
                waiting.push(answer);
            }
        }
        let retries = !waiting.is_empty();
        if let Some(polling) = &mut self.polling {
            polling.answers.extend(waiting);
        }
        retries.then(|| core.now_ns() + RETRY_NS)
    }

    /// Answers a request of this worker. If its client has left, the session gets the messages back.
    pub(super) fn deliver<S: Sys>(&mut self, core: &mut Core<S, Self>, answer: PollAnswer) {
        let Some(polling) = &mut self.polling else { return };
        let waits =
            |stage: &Stage| matches!(stage, Stage::Waits { session } if *session == answer.session);
        let known = polling.request(answer.request).is_some_and(|request| waits(&request.stage));
        let request = if known { polling.remove_request(answer.request) } else { None };
        let mut response = response(answer.status, answer.lines, core.random());
        if answer.opens
            && answer.status == 200
            && let Some(ids) = &self.shared.poll_ids
        {
            let id = Cow::Owned(ids.of(answer.session));
            response.headers.push((Cow::Borrowed(POLL_ID), id));
        }
        let origin = request.as_ref().and_then(|request| request.origin.as_deref());
        access_headers(&mut response, origin);
        if request.is_some() && core.answer(answer.request, &response) || answer.messages == 0 {
            return;
        }
        self.counters(core.worker()).long_polling_returned.add(answer.messages.into());
        let (session, messages) = (answer.session, answer.messages);
        if session.worker() == core.worker() {
            return core.give_back(session, &response.body, messages);
        }
        let lines = response.body.into_owned();
        if post_poll(core, session, PollPost::Undelivered { session, lines, messages }).is_err() {
            self.counters(core.worker()).long_polling_lost.add(messages.into());
        }
    }
}

fn response(status: u16, lines: Vec<u8>, random: u64) -> Response {
    let mut response = Response::text(status, "");
    response.content_type = "application/jsonl";
    response.body = lines.into();
    response.headers.push((Cow::Borrowed("Cache-Control"), Cow::Borrowed("no-store")));
    if status == 503 {
        response.headers.push((Cow::Borrowed("Retry-After"), retry_after(random).into()));
    }
    response
}

/// The answer that refuses a request, with this text. It ends the connection, as the body is not read.
pub(super) fn refused_answer(lines: Vec<u8>, origin: Option<&str>) -> Answer {
    let mut response = response(401, lines, 0);
    access_headers(&mut response, origin);
    response.close = true;
    Answer::Respond(response)
}

/// Lets a page of an admitted origin read the answer, as it could read messages of a WebSocket.
pub(super) fn access_headers(response: &mut Response, origin: Option<&str>) {
    let Some(origin) = origin else { return };
    let mut header = |name, value| response.headers.push((Cow::Borrowed(name), value));
    header("Access-Control-Allow-Origin", Cow::Owned(origin.to_owned()));
    header("Access-Control-Allow-Credentials", Cow::Borrowed("true"));
    header("Access-Control-Expose-Headers", Cow::Borrowed(POLL_ID));
    header("Vary", Cow::Borrowed("Origin"));
}

/// The line that tells a client why its session has ended.
pub(super) fn disconnect_line(reason: Disconnect) -> Vec<u8> {
    let mut line = Vec::new();
    Cable::disconnect(reason, &mut line);
    if !line.is_empty() {
        line.push(b'\n');
    }
    line
}
