//! [`EchoRun`]: sends messages that the server sends back, and checks every answer.
//!
//! The counts per socket:
//! - an answer is *duplicated* when its message was answered before, *corrupted* when it is none
//!   of the messages sent on that socket;
//! - open model: an answer is *reordered* when a later message was answered before it;
//! - closed loop with turnover: a connection that has sent its messages is closed and replaced by
//!   another, which starts with its first message. At the end of the time open connections finish
//!   their messages;
//! - closed loop: a message not answered within the timeout is given up and the next is sent. An
//!   answer that still arrives is *late*: its message is not lost;
//! - 64 or more messages behind the newest answer, a first answer and a duplicate cannot be
//!   distinguished: such an answer is *late* too, and its message stays lost;
//! - *lost* messages were sent and not answered when the run ended.
//!
//! So received = sent − lost + duplicated + corrupted + late ones 64 or more behind.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use engine::invariant;
use engine::{ConnId, Core, Sent, Sys};
use wire::websocket::{CloseCode, OpCode};

use crate::delivery::message::{DecodedMessage, Format};
use crate::delivery::window::Delivery;
use crate::outcome::metrics::{Snapshot, WorkerMetrics};
use crate::workload::client::Client;
use crate::workload::pacer::Pacer;
use crate::workload::socket::Socket;
use crate::workload::sweep::Sweep;
use crate::{AnswerVerdict, Content, Echo, Series, Validator};

/// How long after the end overdue messages are still sent: a rate that cannot be reached must not
/// prolong the run.
const OVERDUE_NS: u64 = 250_000_000;
/// Messages sent, and sockets visited, per turn.
const SENDS_PER_TURN: usize = 256;
const VISITS_PER_TURN: u32 = 4096;

/// The order that starts an echo on a worker.
#[derive(Clone)]
pub(crate) struct EchoOrder {
    pub(crate) echo: Arc<Echo>,
    /// When it begins, in monotonic nanoseconds, the same for all workers.
    pub(crate) begin_ns: u64,
    /// This worker's sockets, and those of all workers.
    pub(crate) part: u64,
    pub(crate) whole: u64,
    /// The index of this worker among those that take part, and their number.
    pub(crate) turn: (u64, u64),
}

/// One worker's echo.
pub(crate) struct EchoRun {
    echo: Arc<Echo>,
    format: Format,
    /// The message that a validator has written.
    text: Vec<u8>,
    /// When it began.
    begin_ns: u64,
    /// No message is due after this time.
    until_ns: u64,
    pace: Pace,
    /// Messages of this worker: sent, and answered at least once.
    sent: u64,
    answered: u64,
    /// No connection joins any more.
    over: bool,
}

enum Pace {
    /// Messages are sent when due, round-robin over the sockets.
    Open(RoundRobin),
    /// A socket's next message is sent when its last was answered or given up.
    Closed(ClosedLoop),
}

/// The state of the open model.
struct RoundRobin {
    pacer: Pacer,
    number: u64,
    next_slot: u32,
    round: u32,
    sent_in_round: bool,
    /// Once all is sent: when to stop waiting for answers.
    give_up_ns: Option<u64>,
}

/// The state of the closed loop.
struct ClosedLoop {
    /// Sockets below this have sent their first message.
    begun_slot: u32,
    /// Sockets that still send or await an answer.
    active: u64,
    /// Sockets that are being closed and replaced after their messages.
    closing: u64,
    timeouts: Sweep,
    /// Ends of pauses between messages, and their sockets (the number breaks ties).
    thinking: BinaryHeap<Reverse<(u64, u64, ConnId)>>,
}

impl EchoRun {
    /// Starts with all sockets that are open now.
    pub(crate) fn begin<S: Sys>(
        core: &mut Core<S, Client>,
        order: EchoOrder,
        metrics: &WorkerMetrics,
    ) -> EchoRun {
        let EchoOrder { echo, begin_ns, part, whole, turn: (nth, of) } = order;
        let mut active = 0;
        for slot in 0..core.slots() {
            let open = core.id_at(slot).is_some_and(|id| core.is_open(id));
            let Some(socket) = core.user_at(slot) else { continue };
            socket.begin_messages();
            if open {
                socket.set(Socket::ECHOING);
                active += 1;
            }
        }
        metrics.set_echo_done(false);
        let pace = match echo.rate {
            Some(rate) => Pace::Open(RoundRobin {
                pacer: Pacer::new(begin_ns, rate, part, whole).shifted(nth, of),
                number: 0,
                next_slot: 0,
                round: 0,
                sent_in_round: false,
                give_up_ns: None,
            }),
            None => {
                let timeouts = Sweep::new(begin_ns, echo.timeout / 4, 8);
                Pace::Closed(ClosedLoop {
                    begun_slot: 0,
                    active,
                    closing: 0,
                    timeouts,
                    thinking: BinaryHeap::new(),
                })
            }
        };
        let after = |duration: Duration| begin_ns.saturating_add(duration.as_nanos() as u64);
        let until_ns = echo.duration.map_or(u64::MAX, after);
        let format = Format::new(echo.size);
        let text = Vec::new();
        EchoRun { format, text, echo, begin_ns, until_ns, pace, sent: 0, answered: 0, over: false }
    }

    /// Handles a connection that opened: with turnover it replaces one that was closed.
    pub(crate) fn joined<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        metrics: &WorkerMetrics,
    ) {
        let Pace::Closed(loops) = &mut self.pace else { return };
        let Some(socket) = core.user_mut(id).filter(|_| self.echo.turnover && !self.over) else {
            return;
        };
        socket.set(Socket::ECHOING);
        loops.active += 1;
        // Higher slots send their first message in a later turn.
        if id.slot() < loops.begun_slot {
            self.next_in_loop(core, id, core.clock_ns(), metrics);
        }
    }

    /// Sends what is due. Returns when to call it next; `None` when the echo is over.
    pub(crate) fn turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        metrics: &WorkerMetrics,
    ) -> Option<u64> {
        let next_ns = match self.pace {
            Pace::Open(_) => self.turn_open(core, metrics),
            Pace::Closed(_) => self.turn_closed(core, metrics),
        };
        if next_ns.is_none() {
            self.over = true;
            metrics.set_echo_done(true);
        }
        next_ns
    }

    /// Checks a received message.
    pub(crate) fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        opcode: OpCode,
        data: &[u8],
        metrics: &WorkerMetrics,
    ) {
        let now_ns = core.clock_ns();
        let counts = &metrics.counts;
        let Some(socket) = core.user_mut(id) else {
            return invariant::broken("a message comes on a live connection");
        };
        if let Some(validator) = self.echo.validator.clone() {
            counts.echo_received.add(1);
            return self.validate(&*validator, core, id, data, now_ns, metrics);
        }
        let carried = match &self.echo.content {
            None => self.format.decode(id.as_u64(), data).filter(|_| opcode == OpCode::Binary),
            Some(content) => matched_in_order(content, socket, opcode, data),
        };
        let due_ns =
            carried.as_ref().and_then(|carried| carried.times_ns).map(|(due_ns, _)| due_ns);
        if due_ns.is_some_and(|due_ns| due_ns < self.begin_ns) {
            // It answers a message of the warm-up that was given up.
            return;
        }
        counts.echo_received.add(1);
        let Some(carried) = carried.filter(|carried| carried.sequence < socket.sent) else {
            return counts.corrupted.add(1);
        };
        let seen = socket.window.note(carried.sequence);
        match seen {
            Delivery::InOrder | Delivery::Reordered => {}
            Delivery::Duplicate => return counts.duplicated.add(1),
            Delivery::Stale => return counts.late.add(1),
        }
        counts.echo_answered.add(1);
        self.answered += 1;
        let awaited = socket.has(Socket::AWAITING) && carried.sequence + 1 == socket.sent;
        let times_ns = carried.times_ns.or(awaited.then_some((socket.sent_ns(), socket.sent_ns())));
        if let Some((due_ns, sent_ns)) = times_ns {
            metrics.echoed(due_ns, sent_ns, now_ns);
        }
        match self.pace {
            Pace::Open(_) => counts.reordered.add(u64::from(seen == Delivery::Reordered)),
            Pace::Closed(_) if awaited => self.answered_in_loop(core, id, now_ns, metrics),
            Pace::Closed(_) => counts.late.add(1),
        }
    }

    /// Passes an answer to the validator.
    fn validate<S: Sys>(
        &mut self,
        validator: &dyn Validator,
        core: &mut Core<S, Client>,
        id: ConnId,
        data: &[u8],
        now_ns: u64,
        metrics: &WorkerMetrics,
    ) {
        let Some(socket) = core.user_mut(id) else {
            return invariant::broken("a message comes on a live connection");
        };
        let Some(sequence) = socket.sent.checked_sub(1).filter(|_| socket.has(Socket::AWAITING))
        else {
            return;
        };
        let sent_ns = socket.sent_ns();
        let took_ns = now_ns.saturating_sub(sent_ns);
        match validator.judge(id.as_u64(), sequence, data, took_ns) {
            AnswerVerdict::Foreign => return,
            AnswerVerdict::Wrong => metrics.counts.corrupted.add(1),
            AnswerVerdict::Right => metrics.echoed(sent_ns, sent_ns, now_ns),
        }
        metrics.counts.echo_answered.add(1);
        self.answered += 1;
        self.answered_in_loop(core, id, now_ns, metrics);
    }

    /// Forgets a socket that has ended at `now_ns`, or that we have closed (`None`).
    pub(crate) fn forget(&mut self, id: ConnId, socket: &Socket, now_ns: Option<u64>) {
        if let Some(now_ns) = now_ns.filter(|_| socket.has(Socket::AWAITING)) {
            self.missed(id, socket.sent_ns(), now_ns);
        }
        let Pace::Closed(loops) = &mut self.pace else { return };
        loops.active -= u64::from(socket.has(Socket::ECHOING));
        // Sockets of an earlier echo are not counted in `closing`.
        let finished = u64::from(socket.has(Socket::FINISHED));
        loops.closing = loops.closing.saturating_sub(finished);
    }

    /// Tells the validator that a message was not answered.
    fn missed(&self, id: ConnId, sent_ns: u64, now_ns: u64) {
        if let Some(validator) = &self.echo.validator {
            validator.missed(id.as_u64(), now_ns.saturating_sub(sent_ns));
        }
    }

    // ---- open model ----

    fn turn_open<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        metrics: &WorkerMetrics,
    ) -> Option<u64> {
        for _ in 0..SENDS_PER_TURN {
            let Pace::Open(rounds) = &mut self.pace else {
                invariant::broken("the open model runs in the open model");
                return None;
            };
            let now_ns = core.clock_ns();
            if let Some(give_up_ns) = rounds.give_up_ns {
                let over = self.answered >= self.sent || now_ns >= give_up_ns;
                return (!over).then_some(give_up_ns);
            }
            let due_ns = rounds.pacer.due_ns(rounds.number);
            let overdue = now_ns > self.until_ns.saturating_add(OVERDUE_NS);
            if due_ns < self.until_ns && due_ns > now_ns {
                return Some(due_ns);
            }
            let next = rounds
                .next(core, self.echo.messages)
                .filter(|_| due_ns < self.until_ns && !overdue);
            let Some(id) = next else {
                rounds.give_up_ns = Some(now_ns + self.echo.timeout.as_nanos() as u64);
                continue;
            };
            if self.send(core, id, due_ns, now_ns, metrics)
                && let Pace::Open(rounds) = &mut self.pace
            {
                rounds.number += 1;
                metrics.record(Series::SendLag, now_ns.saturating_sub(due_ns));
            }
        }
        Some(core.now_ns())
    }

    // ---- closed loop ----

    fn turn_closed<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        metrics: &WorkerMetrics,
    ) -> Option<u64> {
        let (slots, now_ns) = (core.slots(), core.clock_ns());
        let Pace::Closed(loops) = &mut self.pace else {
            invariant::broken("the closed loop runs in the closed loop");
            return None;
        };
        let from = loops.begun_slot;
        let to = slots.min(from.saturating_add(SENDS_PER_TURN as u32));
        loops.begun_slot = to.max(from);
        let begun = loops.begun_slot >= slots;
        let due = loops.timeouts.due(now_ns, slots, VISITS_PER_TURN);
        for slot in from..to {
            let waits = core.user_at(slot).is_some_and(|socket| socket.has(Socket::ECHOING));
            if let Some(id) = core.id_at(slot).filter(|_| waits) {
                self.next_in_loop(core, id, core.clock_ns(), metrics);
            }
        }
        let timeout_ns = self.echo.timeout.as_nanos() as u64;
        for slot in due {
            let sent_ns = core.user_at(slot).filter(|socket| socket.has(Socket::AWAITING));
            let sent_ns = sent_ns.map(|socket| socket.sent_ns());
            let given_up = sent_ns.filter(|sent_ns| now_ns.saturating_sub(*sent_ns) > timeout_ns);
            if let Some((id, sent_ns)) = core.id_at(slot).zip(given_up) {
                metrics.counts.given_up.add(1);
                self.missed(id, sent_ns, now_ns);
                if self.echo.turnover && now_ns >= self.until_ns {
                    self.leave(core, id);
                    continue;
                }
                self.next_in_loop(core, id, now_ns, metrics);
            }
        }
        for _ in 0..SENDS_PER_TURN {
            let Pace::Closed(loops) = &mut self.pace else {
                invariant::broken("the closed loop runs in the closed loop");
                return None;
            };
            let Some((due_ns, id)) = loops.next_ready(now_ns) else { break };
            metrics.record(Series::SendLag, now_ns - due_ns);
            self.next_in_loop(core, id, now_ns, metrics);
        }
        let Pace::Closed(loops) = &self.pace else {
            invariant::broken("the closed loop runs in the closed loop");
            return None;
        };
        let thought_ns = loops.thinking.peek().map_or(u64::MAX, |Reverse((due_ns, ..))| *due_ns);
        match (loops.active, begun) {
            (0, _) if loops.closing == 0 && !self.expects_replacement(now_ns, metrics) => None,
            (_, false) => Some(core.now_ns()),
            (_, true) => Some(loops.timeouts.next_ns(now_ns, slots).min(thought_ns)),
        }
    }

    /// Whether no socket is active but a replacement is still connecting.
    fn expects_replacement(&self, now_ns: u64, metrics: &WorkerMetrics) -> bool {
        let patience_ns = self.echo.timeout.as_nanos() as u64;
        self.echo.turnover
            && now_ns < self.until_ns.saturating_add(patience_ns)
            && Snapshot::of([&**metrics]).expected_to_open() > 0
    }

    /// Sends the next message, at once or after a pause.
    fn answered_in_loop<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        now_ns: u64,
        metrics: &WorkerMetrics,
    ) {
        let Some((least, most)) = self.echo.think else {
            return self.next_in_loop(core, id, now_ns, metrics);
        };
        let (least, most) = (least.as_nanos() as u64, most.as_nanos() as u64);
        let more = (u128::from(core.random()) * u128::from(most - least)) >> 64;
        let due_ns = now_ns.saturating_add(least).saturating_add(more as u64);
        if let Some(socket) = core.user_mut(id) {
            socket.clear(Socket::AWAITING);
        }
        if let Pace::Closed(loops) = &mut self.pace {
            loops.thinking.push(Reverse((due_ns, id.as_u64(), id)));
        }
    }

    /// Sends a socket's next message, if it has one.
    fn next_in_loop<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        now_ns: u64,
        metrics: &WorkerMetrics,
    ) {
        let taking_part = |socket: &&mut Socket| socket.has(Socket::ECHOING);
        let Some(socket) = core.user_mut(id).filter(taking_part) else { return };
        socket.clear(Socket::AWAITING);
        let more = self.echo.messages.is_none_or(|messages| socket.sent < messages);
        let in_time = now_ns < self.until_ns;
        if more && (in_time || self.echo.turnover) {
            // A socket that drops a message has ended, which is reported later.
            if self.send(core, id, now_ns, now_ns, metrics)
                && let Some(socket) = core.user_mut(id)
            {
                socket.set(Socket::AWAITING);
            }
            return;
        }
        if self.echo.turnover
            && in_time
            && let Pace::Closed(loops) = &mut self.pace
        {
            socket.set(Socket::FINISHED);
            loops.closing += 1;
            core.close(id, CloseCode::NORMAL, "");
        }
        self.leave(core, id);
    }

    /// Removes a socket from the echo.
    fn leave<S: Sys>(&mut self, core: &mut Core<S, Client>, id: ConnId) {
        let Some(socket) = core.user_mut(id) else {
            return invariant::broken("a connection that leaves the echo is live");
        };
        socket.clear(Socket::ECHOING | Socket::AWAITING);
        if let Pace::Closed(loops) = &mut self.pace {
            loops.active -= 1;
        }
    }

    fn send<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        due_ns: u64,
        now_ns: u64,
        metrics: &WorkerMetrics,
    ) -> bool {
        let Some(sequence) = core.user(id).map(|socket| socket.sent) else {
            invariant::broken("an echo is sent on a live connection");
            return false;
        };
        if let Some(validator) = &self.echo.validator {
            self.text.clear();
            validator.write(id.as_u64(), sequence, &mut self.text);
        }
        let (opcode, message) = match &self.echo.content {
            None if self.echo.validator.is_some() => (OpCode::Text, &self.text[..]),
            None => (OpCode::Binary, self.format.encode(id.as_u64(), sequence, due_ns, now_ns)),
            Some(content) if content.binary => (OpCode::Binary, &content.data[..]),
            Some(content) => (OpCode::Text, &content.data[..]),
        };
        if core.send(id, opcode, message) == Sent::Dropped {
            return false;
        }
        if let Some(socket) = core.user_mut(id) {
            socket.sent += 1;
            socket.set_sent_ns(now_ns);
        }
        metrics.counts.echo_sent.add(1);
        self.sent += 1;
        true
    }
}

impl ClosedLoop {
    /// Returns a socket whose pause is over, and when it ended.
    fn next_ready(&mut self, now_ns: u64) -> Option<(u64, ConnId)> {
        let &Reverse((due_ns, _, id)) = self.thinking.peek()?;
        (due_ns <= now_ns).then(|| {
            self.thinking.pop();
            (due_ns, id)
        })
    }
}

/// Matches an answer without a number to the oldest unanswered message.
fn matched_in_order(
    content: &Content,
    socket: &Socket,
    opcode: OpCode,
    data: &[u8],
) -> Option<DecodedMessage> {
    let same = data == content.data && (opcode == OpCode::Binary) == content.binary;
    let sequence = socket.window.next();
    // With one message in flight, the last send time is that of this message.
    let alone = sequence + 1 == socket.sent;
    let times_ns = alone.then_some((socket.sent_ns(), socket.sent_ns()));
    (same || content.any_answer).then_some(DecodedMessage { sequence, times_ns })
}

impl RoundRobin {
    /// The next open socket; `None` after `messages` rounds, or when no socket is left.
    fn next<S: Sys>(&mut self, core: &Core<S, Client>, messages: Option<u32>) -> Option<ConnId> {
        loop {
            if messages.is_some_and(|messages| self.round >= messages) {
                return None;
            }
            if self.next_slot >= core.slots() {
                if !self.sent_in_round {
                    return None;
                }
                (self.next_slot, self.sent_in_round) = (0, false);
                self.round += 1;
                continue;
            }
            let id = core.id_at(self.next_slot).filter(|&id| core.is_open(id));
            self.next_slot += 1;
            let echoing = |id: &ConnId| core.user(*id).is_some_and(|s| s.has(Socket::ECHOING));
            if let Some(id) = id.filter(echoing) {
                self.sent_in_round = true;
                return Some(id);
            }
        }
    }
}
