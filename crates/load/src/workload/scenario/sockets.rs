//! WebSockets and open calls of [`Users`]: pushed messages, steps that wait for the group, and message rates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::workload::scenario::Step;
use crate::workload::scenario::speak::Action;
use crate::workload::scenario::users::Users;
use engine::invariant;

use crate::delivery::publication;
use crate::grpc::{Code, MethodKind};
use crate::outcome::failure::Failure;
use crate::transport::driver::Push;
use crate::workload::requests::answer::Answer;
use crate::workload::requests::script::{SocketEnd, Step as Next};

/// The most messages that a user keeps before it waits for one.
pub const INBOX_MESSAGES_MAX: usize = 256;
/// The most bytes of them.
pub const INBOX_BYTES_MAX: usize = 1 << 20;
/// How often it is polled whether other users have arrived or are done.
const LOOK: Duration = Duration::from_millis(20);
/// The pause after a step that sends nothing, so that a flow of such steps does not spin.
pub(crate) const SOON: Duration = Duration::from_micros(1);

/// Messages received before their user waited for one; the oldest are dropped.
#[derive(Default, Debug)]
pub(crate) struct Inbox {
    messages: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// The status and the head of a call that has ended before a step closed it.
    end: Option<Box<(u16, Vec<u8>)>>,
}

impl Inbox {
    /// Adds a message. Returns how many were dropped.
    fn push(&mut self, message: &[u8]) -> u64 {
        self.messages.push_back(message.into());
        self.bytes += message.len();
        let mut dropped = 0;
        while self.messages.len() > INBOX_MESSAGES_MAX || self.bytes > INBOX_BYTES_MAX {
            self.pop();
            dropped += 1;
        }
        dropped
    }

    fn pop(&mut self) -> Option<Box<[u8]>> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        Some(message)
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(crate) fn end(&mut self, status: u16, head: &[u8]) {
        self.end = Some(Box::new((status, head.to_vec())));
    }

    pub(crate) fn take_end(&mut self) -> Option<(u16, Vec<u8>)> {
        self.end.take().map(|end| *end)
    }
}

impl Users {
    /// The step of a user before, or instead of, sending anything.
    pub(crate) fn before_sending(&mut self, at: u32, now_ns: u64) -> Option<Next> {
        let user = self.users.get(at as usize)?;
        let step = self.scenario.steps.get(user.at.step?)?;
        match step.action {
            Action::Meet => Some(self.meet(at, now_ns)),
            Action::Stay => Some(self.stay(at, now_ns)),
            _ if step.stamped || step.action.is_message() => self.pace(at, now_ns),
            _ => None,
        }
    }

    fn meet(&mut self, at: u32, now_ns: u64) -> Next {
        let is_met = self.members.as_mut().is_none_or(|members| members.arrive(at));
        let Some(user) = self.users.get_mut(at as usize) else {
            invariant::broken("a user is created before its first step");
            return Next::End;
        };
        let since_ns = *user.waits_since_ns.get_or_insert(now_ns);
        let limit = user.at.step.and_then(|step| self.scenario.steps.get(step)?.limit);
        let limit_ns = limit.map_or(u64::MAX, |limit| limit.as_nanos() as u64);
        if is_met {
            return self.pass_step(at, None, now_ns);
        }
        if now_ns.saturating_sub(since_ns) >= limit_ns {
            return self.pass_step(at, Some(Failure::Timeout), now_ns);
        }
        Next::Wait(LOOK)
    }

    fn stay(&mut self, at: u32, now_ns: u64) -> Next {
        let over = self.members.as_mut().is_none_or(|members| members.sends_no_more(at, now_ns));
        if !over {
            return Next::Wait(LOOK);
        }
        self.pass_step(at, None, now_ns);
        if let Some(user) = self.users.get_mut(at as usize) {
            user.is_done = true;
        }
        Next::End
    }

    /// Ends a step that sent nothing.
    fn pass_step(&mut self, at: u32, failure: Option<Failure>, now_ns: u64) -> Next {
        let Some(user) = self.users.get_mut(at as usize) else {
            invariant::broken("a user is created before its first step");
            return Next::End;
        };
        user.waits_since_ns = None;
        let Some(number) = user.at.step else {
            invariant::broken("a step that passes was begun");
            return Next::End;
        };
        if now_ns >= self.measure_ns {
            self.tally.step(number, failure, None);
        }
        let continues = self.scenario.steps.get(number).is_some_and(|step| step.continues);
        if failure.is_some() && !continues {
            user.at.step = None;
            return Next::Wait(SOON);
        }
        self.leave(at, number, failure.is_none());
        Next::Wait(SOON)
    }

    /// Delays a message of a flow with a rate until it is due; a late one is sent at once.
    fn pace(&mut self, at: u32, now_ns: u64) -> Option<Next> {
        let user = self.users.get_mut(at as usize)?;
        let rate = self.scenario.flows.get(user.flow)?.rate?;
        let due_ns = *user.due_ns.get_or_insert(now_ns);
        if now_ns < due_ns {
            return Some(Next::Wait(Duration::from_nanos(due_ns - now_ns)));
        }
        user.due_ns = Some(due_ns + 1_000_000_000 / rate.max(1));
        if let Some(members) = &mut self.members {
            members.lagged(due_ns, now_ns);
        }
        None
    }

    /// Sets the stamp of a message about to be sent.
    pub(crate) fn stamp(&mut self, at: u32, now_ns: u64) {
        let Some(user) = self.users.get_mut(at as usize) else {
            return invariant::broken("a user is created before its first step");
        };
        let step = user.at.step.and_then(|step| self.scenario.steps.get(step));
        if !step.is_some_and(|step| step.stamped) {
            return;
        }
        let own = user.stamp.sequence.wrapping_add(1);
        let sequence = match &mut self.members {
            None => Some(own),
            Some(members) => members.sends(at, user.to.unwrap_or_default(), now_ns),
        };
        (user.stamp.due_ns, user.stamp.published_ns) = (now_ns, now_ns);
        user.stamp.sequence = sequence.unwrap_or(own);
    }

    /// Forgets what arrived on the call before the one that a user opens.
    pub(crate) fn forget_messages(&mut self, at: u32) {
        let Some(user) = self.users.get_mut(at as usize) else { return };
        let step = user.at.step.and_then(|step| self.scenario.steps.get(step));
        let Some(step) = step.filter(|step| matches!(step.action, Action::Open)) else { return };
        user.inbox_mut(step.socket).into_iter().for_each(|inbox| *inbox = Inbox::default());
    }

    /// Notes a stamped message that was not sent or was rejected.
    pub(crate) fn note_unsent(&mut self, at: u32, answer: &Answer<'_>) {
        let sent = match answer.outcome {
            Ok(status) => status < 400,
            Err(_) => answer.times.sent_ns > 0,
        };
        let Some(user) = self.users.get(at as usize).filter(|_| !sent) else { return };
        let step = user.at.step.and_then(|step| self.scenario.steps.get(step));
        if let (Some(members), true) = (&mut self.members, step.is_some_and(|step| step.stamped)) {
            members.failed(at, user.to.unwrap_or_default(), user.stamp);
        }
    }

    /// Selects the next receiver of a user after `after`; false if there is none.
    pub(crate) fn set_receiver(&mut self, at: u32, after: Option<u32>) -> bool {
        let next = self.members.as_ref().and_then(|members| members.next_to(at, after));
        let Some(user) = self.users.get_mut(at as usize) else {
            invariant::broken("a user is created before its first step");
            return false;
        };
        match next {
            Some((receiver, number)) => (user.to, user.to_number) = (Some(receiver), number),
            None if after.is_none() => (user.to, user.to_number) = (None, 0),
            None => return false,
        }
        true
    }

    /// Whether a step is repeated: for the next receiver, for the next item, or because of `repeat`.
    pub(crate) fn repeats(&mut self, at: u32, number: usize) -> bool {
        let Some(step) = self.scenario.steps.get(number) else {
            invariant::broken("a step number is of the scenario");
            return false;
        };
        let (each, repeat) = (step.each, step.repeat);
        let to = self.users.get(at as usize).and_then(|user| user.to);
        if each && to.is_some() && self.set_receiver(at, to) {
            return true;
        }
        self.set_receiver(at, None);
        let Some(user) = self.users.get_mut(at as usize) else {
            invariant::broken("a user is created before its first step");
            return false;
        };
        if user.next_item(&self.scenario, number) {
            return true;
        }
        user.repeated += 1;
        if user.repeated < repeat {
            return true;
        }
        user.repeated = 0;
        false
    }

    /// Handles a pushed message. Returns true if the user waits for it.
    pub(crate) fn on_push(
        &mut self,
        at: u32,
        socket: u8,
        push: &Push<'_>,
        waits: bool,
        now_ns: u64,
    ) -> bool {
        self.tally.sockets.received += 1;
        if let Some(members) = &mut self.members {
            let found = push.is_protobuf.then(|| publication::find_in_fields(push.data)).flatten();
            members.receipt(at, found.unwrap_or(push.data), now_ns);
        }
        let number = self.part.number(at);
        let Some(user) = self.users.get(at as usize) else {
            invariant::broken("a user is created before its first step");
            return false;
        };
        let keeps = self.scenario.flows.get(user.flow).is_some_and(|flow| {
            let steps = self.scenario.steps.get(flow.steps.clone()).unwrap_or_default();
            let awaits = |step: &Step| matches!(step.action, Action::Receive);
            steps.iter().any(|step| awaits(step) && step.socket == socket)
        });
        let step = user.at.step.and_then(|step| self.scenario.steps.get(step));
        let step = step.filter(|step| step.socket == socket);
        let receive = step.and_then(|step| step.receive.as_ref()).filter(|_| waits);
        // Messages in the inbox come first.
        let alone = step.is_some_and(|step| matches!(step.action, Action::Receive));
        let in_turn = !alone || user.inbox(socket).is_none_or(Inbox::is_empty);
        if let Some(receive) = receive.filter(|_| in_turn) {
            let values = user.values(&self.scenario, number);
            let call = step.and_then(|step| step.call.as_deref());
            return receive.is_of(call, push.data, &values, &mut self.scratch);
        }
        let Some(user) = self.users.get_mut(at as usize).filter(|_| keeps) else { return false };
        let Some(inbox) = user.inbox_mut(socket) else {
            invariant::broken("each socket has an inbox");
            return false;
        };
        self.tally.sockets.unread_dropped += inbox.push(push.data);
        false
    }

    /// Takes the oldest message of the inbox that the user waits for, and drops those before it.
    pub(crate) fn take_matching(&mut self, at: u32) -> Option<Vec<u8>> {
        let number = self.part.number(at);
        loop {
            let user = self.users.get_mut(at as usize)?;
            let step = self.scenario.steps.get(user.at.step?)?;
            let message = user.inbox_mut(step.socket)?.pop()?;
            let user = self.users.get(at as usize)?;
            let values = user.values(&self.scenario, number);
            let receive = step.receive.as_ref()?;
            if receive.is_of(step.call.as_deref(), &message, &values, &mut self.scratch) {
                return Some(message.into_vec());
            }
        }
    }

    /// Handles the end of a WebSocket: steps that set it up are repeated.
    pub(crate) fn on_socket_end(&mut self, at: u32, socket: u8, left: SocketEnd) {
        let only_answers = left == SocketEnd::Status(Code::OK) && self.only_answers(socket);
        let sockets = &mut self.tally.sockets;
        match left {
            SocketEnd::Closed(code) => *sockets.closed_by.entry(code).or_default() += 1,
            SocketEnd::Lost => sockets.gone += 1,
            // A call that only answers ends in this way.
            SocketEnd::Status(_) if only_answers => {}
            SocketEnd::Status(code) => {
                let status = code.name().map_or_else(|| code.0.to_string(), str::to_owned);
                *sockets.ended_by.entry(status).or_default() += 1;
            }
            SocketEnd::Failed(failure) => {
                *sockets.broken.entry(failure.name().to_owned()).or_default() += 1
            }
        }
        self.repeat_setup_of(at, |step| step.socket == socket);
    }

    /// Whether the call of a socket is of a method that takes one message.
    fn only_answers(&self, socket: u8) -> bool {
        let opens = |step: &&Step| step.socket == socket && matches!(step.action, Action::Open);
        let call = self.scenario.steps.iter().find(opens).and_then(|step| step.call.as_ref());
        call.is_some_and(|call| call.method.kind() == MethodKind::ServerStream)
    }

    /// Repeats the steps that set up these sockets although they are `once`.
    pub(crate) fn repeat_setup_of(&mut self, at: u32, of: impl Fn(&Step) -> bool) {
        let Some(user) = self.users.get_mut(at as usize) else {
            return invariant::broken("a user is created before its first step");
        };
        let steps = self.scenario.steps.iter().enumerate();
        for (number, _) in steps.filter(|(_, step)| step.action.is_of_the_socket() && of(step)) {
            user.done_once &= !1_u64.checked_shl(number as u32).unwrap_or(0);
        }
    }

    /// Notes that a step opened a socket that is held over passes, or closed a socket.
    pub(crate) fn note_socket(&mut self, at: u32, number: usize, is_warm_up: bool) {
        let scenario = Arc::clone(&self.scenario);
        let Some(step) = scenario.steps.get(number) else { return };
        let closes = matches!(step.action, Action::Close);
        // One that is only `once` stays closed.
        let is_held =
            || scenario.steps.iter().any(|other| other.holds && other.socket == step.socket);
        if closes && is_held() {
            self.repeat_setup_of(at, |other| other.socket == step.socket);
        }
        let Some(user) = self.users.get_mut(at as usize) else {
            return invariant::broken("a user is created before its first step");
        };
        let bit = 1_u32.checked_shl(step.socket.into()).unwrap_or(0);
        if closes {
            user.opened &= !bit;
        } else if step.holds {
            self.tally.sockets.reopened += u64::from(user.opened & bit > 0 && !is_warm_up);
            user.opened |= bit;
            let others = scenario.steps.iter().enumerate();
            let others = others.filter(|(_, other)| other.holds && other.socket == step.socket);
            others.for_each(|(number, _)| user.do_once(number));
        }
    }

    /// The delay of the first step of a user with staggered arrival, or of a flow that starts later.
    pub(crate) fn arrives_after(&self, number: u64, now_ns: u64) -> Option<Duration> {
        let own = self.scenario.own_flow(number).and_then(|flow| self.scenario.flows.get(flow));
        // Passes that begin at a rate are due later.
        if let Some(flow) = own.filter(|flow| !flow.start.is_zero() && flow.arrival_rate.is_none())
        {
            let start = Duration::from_nanos(self.measure_ns.saturating_sub(now_ns));
            return Some(start.saturating_add(flow.start));
        }
        let (step, interval) = self.scenario.arrive?;
        let turn = u32::try_from(number / step.max(1)).unwrap_or(u32::MAX);
        Some(interval.saturating_mul(turn)).filter(|time| !time.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_keeps_the_newest_within_its_bounds() {
        let mut inbox = Inbox::default();
        let dropped: u64 = (0..300_u32).map(|number| inbox.push(&number.to_le_bytes())).sum();
        assert_eq!((dropped, inbox.messages.len()), (44, INBOX_MESSAGES_MAX));
        assert_eq!(inbox.pop().as_deref(), Some(&44_u32.to_le_bytes()[..]));
        assert!(inbox.push(&vec![0; INBOX_BYTES_MAX]) > 0);
        assert_eq!((inbox.messages.len(), inbox.bytes), (1, INBOX_BYTES_MAX));
        assert!(inbox.pop().is_some() && inbox.is_empty() && inbox.bytes == 0);
    }
}
