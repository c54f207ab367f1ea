//! Sessions of clients that poll: what waits for which of them, and when they end.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use engine::{Closed, ConnId, Core, Handler, Sys};
use wire::websocket::OpCode;

use super::answers::{PollAnswer, disconnect_line};
use super::{Poll, ServeHandler};
use crate::auth::Cause;
use crate::config::LongPolling;
use crate::protocols::Disconnect;

/// Sessions whose time has come, in one turn.
const DUE_PER_TURN: usize = 1024;
/// Bytes of messages that are not kept back until the flush interval has passed.
const FLUSH_BYTES: usize = 64 * 1024;
/// Memory of a session beyond its queue and its connection, in bytes.
const SESSION_BYTES: usize = 320;

/// The sessions of one worker.
pub(super) struct Sessions {
    by_slot: HashMap<u32, Box<PollSession>>,
    /// When something is to be done for each.
    due: BTreeSet<(u64, ConnId)>,
    /// Sessions with lines that wait because they are paused.
    held_back: Vec<ConnId>,
    times: Times,
}

/// The settings in nanoseconds.
#[derive(Copy, Clone)]
struct Times {
    interval_ns: u64,
    flush_ns: u64,
    keepalive_ns: u64,
}

/// A session.
struct PollSession {
    id: ConnId,
    /// The identity of the token by which it was opened; requests of others are refused.
    identity: Option<Box<str>>,
    /// The request that waits for messages.
    waiting: Option<ConnId>,
    /// The request that has opened it is not answered yet.
    opens: bool,
    /// Why it was disconnected.
    disconnected: Option<Disconnect>,
    /// When the request that waits is answered without messages, or without one the session ends.
    until_ns: u64,
    /// When messages that wait are to be sent.
    flush_ns: Option<u64>,
    /// Its entry in the order.
    due_ns: u64,
    /// Lines of the client that wait until the session is resumed.
    unread: Vec<u8>,
}

impl PollSession {
    fn next_ns(&self) -> u64 {
        let flush_ns = self.flush_ns.filter(|_| self.waiting.is_some());
        flush_ns.map_or(self.until_ns, |flush_ns| flush_ns.min(self.until_ns))
    }
}

impl Sessions {
    pub(super) fn new(config: &LongPolling) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let times = Times {
            interval_ns: ns(config.interval),
            flush_ns: ns(config.flush_interval),
            keepalive_ns: ns(config.keepalive),
        };
        Sessions { by_slot: HashMap::new(), due: BTreeSet::new(), held_back: Vec::new(), times }
    }

    /// Adds a session that a request has opened.
    pub(super) fn open(
        &mut self,
        id: ConnId,
        identity: Option<Box<str>>,
        request: ConnId,
        now_ns: u64,
    ) {
        let until_ns = now_ns.saturating_add(self.times.interval_ns);
        self.due.insert((until_ns, id));
        let session = PollSession {
            id,
            identity,
            waiting: Some(request),
            opens: true,
            disconnected: None,
            until_ns,
            flush_ns: None,
            due_ns: until_ns,
            unread: Vec::new(),
        };
        self.by_slot.insert(id.slot(), Box::new(session));
    }

    fn get(&self, id: ConnId) -> Option<&PollSession> {
        let session = self.by_slot.get(&id.slot())?;
        (session.id == id).then_some(session)
    }

    /// Changes a session, and when it is due.
    fn change<T>(
        &mut self,
        id: ConnId,
        change: impl FnOnce(&mut PollSession, Times) -> T,
    ) -> Option<T> {
        let session = self.by_slot.get_mut(&id.slot()).filter(|session| session.id == id)?;
        let changed = change(session, self.times);
        let (before, now) = (session.due_ns, session.next_ns());
        if before != now {
            session.due_ns = now;
            self.due.remove(&(before, id));
            self.due.insert((now, id));
        }
        Some(changed)
    }

    fn remove(&mut self, id: ConnId) -> Option<Box<PollSession>> {
        self.get(id)?;
        let session = self.by_slot.remove(&id.slot())?;
        self.due.remove(&(session.due_ns, id));
        let (used, room) = (self.by_slot.len(), self.by_slot.capacity());
        if room > 64 && used < room / 8 {
            self.by_slot.shrink_to(2 * used);
        }
        Some(session)
    }

    /// A session whose time has come.
    fn due(&self, now_ns: u64) -> Option<ConnId> {
        self.due.first().filter(|(due_ns, _)| *due_ns <= now_ns).map(|(_, id)| *id)
    }

    /// Whether a request waits for the messages of a session.
    pub(super) fn waits(&self, id: ConnId) -> bool {
        self.get(id).is_some_and(|session| session.waiting.is_some())
    }

    /// Memory held for a session, in bytes.
    pub(super) fn held(&self, id: ConnId) -> usize {
        self.get(id).map_or(0, |session| SESSION_BYTES + session.unread.capacity())
    }
}

impl ServeHandler {
    /// A request for a session of this worker.
    pub(super) fn poll<S: Sys>(&mut self, core: &mut Core<S, Self>, poll: Poll) {
        let Poll { session: id, request, identity, body } = poll;
        let now_ns = core.now_ns();
        let Some(polling) = &mut self.polling else { return };
        let known = polling.sessions.get(id);
        if known.is_none() {
            self.counters(core.worker()).long_polling_stale.add(1);
            let lines = self.stale_lines(core, Some(id));
            return self.refuse_poll(id, request, 401, lines);
        }
        if known.is_some_and(|session| session.identity != identity) {
            // Another client's, whatever it knows of the id.
            self.refuse_access(core.worker(), Cause::PollIdentity, "");
            return self.refuse_poll(id, request, 401, disconnect_line(Disconnect::Unauthorized));
        }
        let before = polling.sessions.change(id, |session, times| {
            session.until_ns = now_ns.saturating_add(times.interval_ns);
            session.waiting.replace(request)
        });
        if let Some(before) = before.flatten() {
            // The client has given one of them up. Not an error: which one cannot be told, as requests on
            // several connections may overtake each other.
            self.counters(core.worker()).long_polling_replaced.add(1);
            self.refuse_poll(id, before, 200, Vec::new());
        }
        core.polled(id, 0);
        self.take_lines(core, id, body);
    }

    /// Answers a request with nothing that could be sent another time.
    fn refuse_poll(&mut self, session: ConnId, request: ConnId, status: u16, lines: Vec<u8>) {
        let Some(polling) = &mut self.polling else { return };
        let answer = PollAnswer { request, session, status, lines, messages: 0, opens: false };
        polling.answers.push(answer);
    }

    /// What the client of a session is told that does not exist (any more). If it can be resumed, nothing:
    /// clients forget the session that they are disconnected from.
    pub(super) fn stale_lines<S: Sys>(
        &self,
        core: &Core<S, Self>,
        session: Option<ConnId>,
    ) -> Vec<u8> {
        let stored = self.stored_sessions().zip(session);
        match stored.is_some_and(|(all, id)| all.may_return(id, core.now_ns())) {
            true => Vec::new(),
            false => disconnect_line(Disconnect::SessionExpired),
        }
    }

    /// The client of a request has left.
    pub(super) fn poll_gone<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        session: ConnId,
        request: ConnId,
    ) {
        let Some(polling) = &mut self.polling else { return };
        let now_ns = core.now_ns();
        polling.sessions.change(session, |session, times| {
            if session.waiting == Some(request) {
                session.waiting = None;
                session.until_ns = now_ns.saturating_add(times.keepalive_ns);
            }
        });
    }

    /// Executes commands, a line each. What comes while the session is paused waits.
    pub(super) fn take_lines<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        body: Vec<u8>,
    ) {
        let Some(polling) = &mut self.polling else { return };
        let most = polling.config.max_body as usize;
        let Some(session) = polling.sessions.by_slot.get_mut(&id.slot()) else { return };
        let mut lines = std::mem::take(&mut session.unread);
        let waited = !lines.is_empty();
        if waited && lines.len() + body.len() > most {
            return self.disconnect(core, id, Disconnect::Overloaded);
        }
        if waited {
            // A body need not end with a line break.
            lines.push(b'\n');
            lines.extend_from_slice(&body);
        } else {
            lines = body;
        }
        let longest = core.limits().wire.message_bytes as usize;
        let mut at = 0;
        while at < lines.len() && core.is_open(id) && !core.has_paused(id) {
            let rest = lines.get_mut(at..).unwrap_or_default();
            let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            at += length + 1;
            let line = rest.get_mut(..length).unwrap_or_default().trim_ascii_end().len();
            let Some(line) = rest.get_mut(..line).filter(|line| !line.is_empty()) else { continue };
            core.polled(id, 1);
            if line.len() > longest {
                self.counters(core.worker()).commands_malformed.add(1);
                self.disconnect(core, id, Disconnect::Malformed);
            } else {
                self.message(core, id, OpCode::Text, line);
            }
        }
        let Some(polling) = self.polling.as_mut().filter(|_| core.is_open(id)) else { return };
        let Some(session) = polling.sessions.by_slot.get_mut(&id.slot()) else { return };
        lines.drain(..at.min(lines.len()));
        if !lines.is_empty() {
            lines.shrink_to_fit();
            session.unread = lines;
            polling.sessions.held_back.push(id);
        }
    }

    /// Long polling's share of a turn: answers what is due. Returns when to be called again.
    pub(in crate::handler) fn poll_turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
    ) -> Option<u64> {
        self.polling.as_ref()?;
        self.resume_lines(core);
        for id in core.take_pollable() {
            self.note_output(core, id);
        }
        let now_ns = core.now_ns();
        let mut again = false;
        for _ in 0..DUE_PER_TURN {
            let due = self.polling.as_ref().and_then(|polling| polling.sessions.due(now_ns));
            let Some(id) = due else { break };
            again |= self.poll_due(core, id);
        }
        let retry = self.send_answers(core);
        let due = self.polling.as_ref()?.sessions.due.first().map(|(due_ns, _)| *due_ns);
        let again = again.then_some(now_ns);
        [retry, due, again].into_iter().flatten().min()
    }

    /// Executes commands of sessions that were resumed.
    fn resume_lines<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let Some(polling) = &mut self.polling else { return };
        for id in std::mem::take(&mut polling.sessions.held_back) {
            if !core.is_open(id) {
                continue;
            }
            if core.has_paused(id) {
                self.polling.iter_mut().for_each(|it| it.sessions.held_back.push(id));
            } else {
                self.take_lines(core, id, Vec::new());
            }
        }
    }

    /// A session has something for its client, which gets it with what follows within the flush interval.
    fn note_output<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let now_ns = core.now_ns();
        let at_once = !core.is_polled(id) || core.queued(id) > FLUSH_BYTES;
        let Some(polling) = &mut self.polling else { return };
        polling.sessions.change(id, |session, times| {
            let waits_ns = if at_once || session.opens { 0 } else { times.flush_ns };
            let flush_ns = now_ns.saturating_add(waits_ns);
            session.flush_ns = Some(session.flush_ns.map_or(flush_ns, |own| own.min(flush_ns)));
        });
    }

    /// The time of a session has come. Returns whether it may have more to send.
    fn poll_due<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        let now_ns = core.now_ns();
        let Some(polling) = &mut self.polling else { return false };
        let Some(session) = polling.sessions.get(id) else { return false };
        let (opens, disconnected) = (session.opens, session.disconnected);
        let Some(request) = session.waiting else {
            // Nobody has polled for too long.
            polling.sessions.change(id, |session, _| session.until_ns = u64::MAX);
            self.counters(core.worker()).long_polling_expired.add(1);
            core.abort(id);
            return false;
        };
        polling.sessions.change(id, |session, times| {
            (session.waiting, session.flush_ns, session.opens) = (None, None, false);
            session.until_ns = now_ns.saturating_add(times.keepalive_ns);
        });
        let closing = !core.is_polled(id);
        let mut lines = Vec::new();
        let messages = core.take_output(id, &mut lines);
        let status = match closing && opens {
            true => refusal_status(disconnected),
            false => 200,
        };
        let answer = PollAnswer { request, session: id, status, lines, messages, opens };
        polling.answers.push(answer);
        self.replays.drained(id)
    }

    /// Notes why a session is disconnected.
    pub(in crate::handler) fn note_disconnect(&mut self, id: ConnId, reason: Disconnect) {
        let Some(polling) = &mut self.polling else { return };
        if let Some(session) = polling.sessions.by_slot.get_mut(&id.slot())
            && session.id == id
        {
            session.disconnected = Some(reason);
        }
    }

    /// A session has ended: a request that waits for it is answered.
    pub(super) fn end_polled_session<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        why: Closed,
    ) {
        let Some(polling) = &mut self.polling else { return };
        let Some(session) = polling.sessions.remove(id) else { return };
        let Some(request) = session.waiting else { return };
        let lines = match (why, session.disconnected) {
            // It could not be told, or there is no message for it.
            (_, Some(_)) => Vec::new(),
            (Closed::SlowConsumer | Closed::Shed, _) => disconnect_line(Disconnect::Overloaded),
            _ => self.stale_lines(core, Some(id)),
        };
        let status = if session.opens { refusal_status(session.disconnected) } else { 401 };
        self.refuse_poll(id, request, status, lines);
    }
}

/// The status of the answer to a client whose session was refused.
fn refusal_status(reason: Option<Disconnect>) -> u16 {
    match reason {
        None | Some(Disconnect::Unauthorized | Disconnect::TokenExpired) => 401,
        Some(_) => 503,
    }
}
