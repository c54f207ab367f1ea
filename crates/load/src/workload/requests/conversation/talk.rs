//! How the requester sends the messages of calls, and takes those that it receives.

use std::cmp::Reverse;

use engine::invariant;
use engine::{ConnId, Core, Sys};

use crate::Series;
use crate::delivery::publication::Publication;
use crate::grpc::limits::{BURST, UNANSWERED, WAITING_BYTES};
use crate::outcome::failure::Failure;
use crate::outcome::messages::MessageCounters;
use crate::outcome::timings::Timings;
use crate::transport::driver::{Driver, Window, Writable};
use crate::workload::requests::conversation::{Conversation, Conversations, MessagePace, State};
use crate::workload::requests::requester::{Requester, Stage, Wake};
use crate::workload::requests::script::{NextMessage, Script};

/// How soon a call that is not sent yet is looked at again, at the least.
const UNSENT_NS: u64 = 1_000_000;

impl Conversation {
    /// Counts and times a message, of a call that was sent when `begun_ns` says.
    #[inline]
    fn note_received(
        &mut self,
        counts: &MessageCounters,
        timings: &mut Timings,
        measure_ns: u64,
        begun_ns: impl FnOnce() -> u64,
        now_ns: u64,
    ) {
        if now_ns >= measure_ns {
            counts.received.add(1);
            match self.received {
                0 => timings.record(Series::First, now_ns.saturating_sub(begun_ns())),
                _ => timings.record(Series::Spread, now_ns.saturating_sub(self.received_ns)),
            }
        }
        self.received = self.received.saturating_add(1);
        self.received_ns = now_ns;
    }
}

impl<D: Driver, S: Script> Requester<D, S> {
    /// Begins the call of a user whose stream is open.
    pub(crate) fn begin_conversation<Y: Sys>(
        &mut self,
        core: &Core<Y, Self>,
        (at, stream): (u32, u32),
        user: u32,
        now_ns: u64,
    ) {
        let Some(talks) = &mut self.conversations else { return };
        let sends = talks.config.sends;
        let Some(one) = talks.users.get_mut(user as usize) else { return };
        (one.at, one.stream, one.received) = (at, stream, 0);
        one.state = if sends { State::Open } else { State::Ended };
        if let Some(sender) = talks.senders.get_mut(user as usize) {
            (sender.begun, sender.sent, sender.answered) = (0, 0, 0);
            (sender.begun_ns, sender.due_ns) = (now_ns, now_ns);
            (sender.is_awaiting, sender.wake_ns) = (false, 0);
            self.send_messages(core, user, now_ns);
        }
    }

    /// Begins the call of a user, on a connection without streams.
    pub(crate) fn begin_receiving(&mut self, user: u32) {
        let Some(talks) = &mut self.conversations else { return };
        let Some(one) = talks.users.get_mut(user as usize) else { return };
        (one.received, one.state) = (0, State::Ended);
    }

    /// Counts the messages that the driver has found last, on a connection without streams. True if the call of the
    /// user is over, as it has received what it should.
    pub(crate) fn count_messages(&mut self, user: u32, now_ns: u64) -> bool {
        let Requester { driver, conversations, metrics, timings, users, .. } = self;
        let (Some(talks), Some(counts)) = (conversations, &metrics.messages) else { return false };
        let flight = users.get(user as usize).and_then(|user| user.flights.front());
        let begun_ns = flight.map_or(now_ns, |flight| flight.times.sent_ns);
        let (measure_ns, per_call) = (talks.measure_ns, talks.config.per_call);
        let Some(one) = talks.users.get_mut(user as usize) else { return false };
        for _ in 0..driver.completed() {
            one.note_received(counts, timings, measure_ns, || begun_ns, now_ns);
        }
        per_call.is_some_and(|most| one.received >= most) && one.state != State::None
    }

    /// When the call of a user that only receives ends; of one that is not sent yet, at the earliest.
    pub(crate) fn held_until(&self, user: u32, now_ns: u64) -> Option<u64> {
        let config = &self.conversations.as_ref()?.config;
        let hold_ns = config.hold.filter(|_| !config.sends)?.as_nanos() as u64;
        Some(match self.users.get(user as usize)?.flights.front()?.times.sent_ns {
            0 => now_ns.saturating_add(hold_ns.max(UNSENT_NS)),
            sent_ns => sent_ns.saturating_add(hold_ns),
        })
    }

    /// Sets the wake-up of a call that sends, unless there is an earlier one.
    fn wake_at(&mut self, user: u32, at_ns: u64) {
        let Some(talks) = &mut self.conversations else { return };
        let Some(one) = talks.senders.get_mut(user as usize) else { return };
        if one.wake_ns == 0 || at_ns < one.wake_ns {
            one.wake_ns = at_ns;
            self.wakes.push(Reverse((at_ns, user, Wake::Message)));
        }
    }

    /// Sends what is due of a user. The caller passes it to the kernel.
    fn send_messages<Y: Sys>(&mut self, core: &Core<Y, Self>, user: u32, now_ns: u64) {
        let is_over = self.stage != Stage::Running;
        let number = self.part.number(user) as u32;
        let Requester { driver, script, pool, conversations, metrics, timings, .. } = self;
        let (Some(talks), Some(counts)) = (conversations, &metrics.messages) else { return };
        let Conversations { config, users, senders, measure_ns, message, .. } = &mut **talks;
        let Some(call) = users.get_mut(user as usize) else { return };
        let Some(one) = senders.get_mut(user as usize) else { return };
        let Some((id, state)) = pool.connection(call.at) else { return };
        let queued = core.queued(id);
        for _ in 0..BURST {
            if call.state != State::Open {
                return;
            }
            let is_last = |begun: u32| config.per_call.is_some_and(|most| begun >= most);
            if one.rest_at < one.rest.len() {
                let rest = one.rest.get(one.rest_at..).unwrap_or_default();
                let ends = is_last(one.begun);
                let (sent, window) = driver.send_message(state, call.stream, rest, ends);
                one.rest_at += sent;
                match window {
                    Window::Open => {}
                    Window::Ended => return call.state = State::Ended,
                    other => return talks.block(user, other),
                }
                one.sent(config, counts, *measure_ns, one.rest_ns);
                one.clear_rest();
                if ends {
                    call.state = State::Ended;
                }
                continue;
            }
            let held_ns =
                config.hold.map(|hold| one.begun_ns.saturating_add(hold.as_nanos() as u64));
            if is_over || is_last(one.begun) || held_ns.is_some_and(|until_ns| now_ns >= until_ns) {
                driver.send_message(state, call.stream, &[], true);
                return call.state = State::Ended;
            }
            let next_ns = match config.pace {
                MessagePace::Flow => now_ns,
                MessagePace::Every(_) => one.due_ns,
                MessagePace::Answered if one.is_awaiting => {
                    one.sent_ns.saturating_add(config.late_after.as_nanos() as u64)
                }
                MessagePace::Answered => now_ns,
            };
            let is_full = one.unanswered.len() >= UNANSWERED;
            if next_ns > now_ns || is_full {
                let next_ns = if is_full { None } else { Some(next_ns) };
                if let Some(at_ns) = [next_ns, held_ns].into_iter().flatten().min() {
                    self.wake_at(user, at_ns);
                }
                return;
            }
            if queued > WAITING_BYTES {
                // The engine says when its queue is empty.
                return talks.block(user, Window::Connection);
            }
            let waiting = driver.outgoing().map_or(0, |outgoing| outgoing.len());
            if queued.saturating_add(waiting) > WAITING_BYTES {
                // The kernel may take all of it at once, and no event says so: it is tried after the next flush.
                if !std::mem::replace(&mut one.is_ready, true) {
                    talks.ready.push_back(user);
                }
                return;
            }
            let due_ns = match config.pace {
                MessagePace::Every(interval) => {
                    one.due_ns = next_ns.saturating_add(interval.as_nanos() as u64);
                    next_ns
                }
                MessagePace::Flow | MessagePace::Answered => now_ns,
            };
            let stamp = Publication {
                publisher: number,
                sequence: one.number,
                due_ns,
                published_ns: now_ns,
            };
            message.clear();
            let next = NextMessage { nth: one.begun, stamp };
            if !script.message(user, &next, message) {
                // Its value does not fit: the script fails the call.
                driver.send_message(state, call.stream, &[], true);
                return call.state = State::Ended;
            }
            one.number = one.number.wrapping_add(1);
            one.begun = one.begun.saturating_add(1);
            if matches!(config.pace, MessagePace::Every(_)) && due_ns >= *measure_ns {
                timings.record(Series::PublishLag, now_ns.saturating_sub(due_ns));
            }
            let ends = is_last(one.begun);
            let (sent, window) = driver.send_message(state, call.stream, message, ends);
            match window {
                Window::Open => {
                    one.sent(config, counts, *measure_ns, (due_ns, now_ns));
                    if ends {
                        call.state = State::Ended;
                    }
                }
                Window::Ended => return call.state = State::Ended,
                other => {
                    one.rest.extend_from_slice(message.get(sent..).unwrap_or_default());
                    one.rest_ns = (due_ns, now_ns);
                    return talks.block(user, other);
                }
            }
        }
        if call.state == State::Open && !one.is_ready {
            one.is_ready = true;
            talks.ready.push_back(user);
        }
    }

    /// Continues with users that had more to send than others wait for. True if there is still more.
    pub(crate) fn send_ready<Y: Sys>(&mut self, core: &mut Core<Y, Self>) -> bool {
        let now_ns = core.clock_ns();
        let Some(users) = self.conversations.as_mut().map(|talks| std::mem::take(&mut talks.ready))
        else {
            return false;
        };
        let mut last = None;
        for user in users {
            let Some(talks) = &mut self.conversations else { return false };
            let Some((one, sender)) = talks.sender(user) else { continue };
            sender.is_ready = false;
            let at = one.at;
            if one.state == State::Open {
                self.switch_to(core, at);
                last = Some(at);
                if self.driver.outgoing().is_some_and(|outgoing| outgoing.len() > WAITING_BYTES) {
                    self.flush_messages(core, at);
                }
                self.send_messages(core, user, now_ns);
            }
        }
        if let Some(at) = last {
            self.flush_messages(core, at);
        }
        self.conversations.as_ref().is_some_and(|talks| talks.is_ready())
    }

    fn flush_messages<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: u32) {
        if let Some((id, _)) = self.pool.connection(at) {
            self.flush_streams(core, at, id);
        }
    }

    /// Sends more on streams that were out of window.
    pub(crate) fn resume_messages<Y: Sys>(
        &mut self,
        core: &Core<Y, Self>,
        at: u32,
        writable: Writable,
        now_ns: u64,
    ) {
        let Some(talks) = &mut self.conversations else { return };
        let is_here = |one: &&mut Conversation| one.state == State::Blocked && one.at == at;
        match writable {
            Writable::Stream(user) => {
                let Some(one) = talks.users.get_mut(user as usize).filter(is_here) else { return };
                one.state = State::Open;
                return self.send_messages(core, user, now_ns);
            }
            Writable::Connection => {}
            Writable::All => {
                let all = talks.users.iter_mut().zip(&mut talks.senders);
                for (user, (one, sender)) in (0..).zip(all) {
                    if is_here(&one) && sender.queued != Some(at) {
                        one.state = State::Open;
                        if !std::mem::replace(&mut sender.is_ready, true) {
                            talks.ready.push_back(user);
                        }
                    }
                }
            }
        }
        self.resume_connection(core, at, now_ns);
    }

    /// Sends more for users that wait for a connection, as far as it goes.
    pub(crate) fn resume_connection<Y: Sys>(&mut self, core: &Core<Y, Self>, at: u32, now_ns: u64) {
        while let Some(user) = self.conversations.as_mut().and_then(|talks| talks.next_blocked(at))
        {
            self.send_messages(core, user, now_ns);
            let talks = self.conversations.as_ref();
            let one = talks.and_then(|talks| talks.senders.get(user as usize));
            if one.is_some_and(|one| one.queued == Some(at)) {
                return;
            }
        }
    }

    /// Handles bytes of the answer to a call of several messages.
    pub(crate) fn stream_messages<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        (at, id): (u32, ConnId),
        user: u32,
        (bytes, is_end): (&[u8], bool),
        now_ns: u64,
    ) {
        match self.receive_messages(core, user, bytes, now_ns) {
            Err(failure) => {
                self.cancel_stream(core, user, id);
                self.fail(core, user, failure, now_ns);
            }
            Ok(_) if is_end => {
                if self.free_stream(at, user) {
                    self.fail(core, user, Failure::GrpcNoStatus, now_ns);
                }
            }
            Ok(true) => self.end_held(core, user, now_ns),
            Ok(false) => {}
        }
    }

    /// Takes bytes of the answer to a user. True if its call is over, as it has received what it should.
    ///
    /// # Errors
    /// The bytes are no messages.
    fn receive_messages<Y: Sys>(
        &mut self,
        core: &Core<Y, Self>,
        user: u32,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<bool, Failure> {
        let publisher = self.part.number(user) as u32;
        let Requester { driver, conversations, metrics, timings, users, .. } = self;
        let (Some(talks), Some(counts)) = (conversations, &metrics.messages) else {
            invariant::broken("a run of messages counts them");
            return Ok(false);
        };
        let mut rest = bytes;
        loop {
            let (used, message) = driver.next_message(user, rest)?;
            let Some(message) = message else { break };
            rest = rest.get(used..).unwrap_or_default();
            let measure_ns = talks.measure_ns;
            let Some(one) = talks.users.get_mut(user as usize) else { break };
            let begun_ns = || {
                let flight = users.get(user as usize).and_then(|user| user.flights.front());
                flight.map_or(now_ns, |flight| flight.times.sent_ns)
            };
            one.note_received(counts, timings, measure_ns, begun_ns, now_ns);
            talks.receive(counts, user, publisher, message, now_ns);
        }
        let (per_call, pace) = (talks.config.per_call, talks.config.pace);
        let Some(one) = talks.users.get(user as usize) else { return Ok(false) };
        let Some(sender) = talks.senders.get(user as usize) else {
            let is_over = per_call.is_some_and(|most| one.received >= most);
            return Ok(is_over && one.state != State::None);
        };
        if one.state == State::Open && pace != MessagePace::Flow && !sender.is_ready {
            self.send_messages(core, user, now_ns);
        }
        Ok(false)
    }

    /// Ends the call of a user that has received what it should, or for as long.
    pub(crate) fn end_held<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let Some(talks) = &mut self.conversations else { return };
        let Some(one) = talks.users.get_mut(user as usize).filter(|one| one.state != State::None)
        else {
            return;
        };
        let (at, stream) = (one.at, one.stream);
        if !D::STREAMS {
            self.metrics.messages.iter().for_each(|counts| counts.held.add(1));
            let Some(one) = self.users.get_mut(user as usize) else { return };
            let whole = self.driver.end_early(&mut one.link.state);
            return self.complete(core, user, whole, false, now_ns);
        }
        self.switch_to(core, at);
        let Some((id, state)) = self.pool.connection(at) else { return };
        self.driver.cancel(state, stream);
        self.metrics.messages.iter().for_each(|counts| counts.held.add(1));
        self.stream_complete(core, at, user, now_ns);
        self.flush_streams(core, at, id);
    }

    /// Handles the wake-up of a call.
    pub(crate) fn wake_conversation<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        at_ns: u64,
        now_ns: u64,
    ) {
        let Some(talks) = &mut self.conversations else { return };
        let Some(one) = talks.users.get(user as usize) else { return };
        let (at, state) = (one.at, one.state);
        let Some(sender) = talks.senders.get_mut(user as usize) else { return };
        if sender.wake_ns == at_ns {
            sender.wake_ns = 0;
            if state == State::Open {
                self.switch_to(core, at);
                self.send_messages(core, user, now_ns);
                self.flush_messages(core, at);
            }
        }
    }

    /// Ends our side of all calls, or those that only receive for a time, at the end of the run.
    pub(crate) fn end_conversations<Y: Sys>(&mut self, core: &mut Core<Y, Self>, now_ns: u64) {
        for user in 0..self.part.users {
            let Some(talks) = &self.conversations else { return };
            let (sends, is_held) = (talks.config.sends, talks.config.hold.is_some());
            let Some(one) = talks.users.get(user as usize) else { return };
            let at = one.at;
            if sends && one.state == State::Open {
                self.switch_to(core, at);
                self.send_messages(core, user, now_ns);
                self.flush_messages(core, at);
            } else if !sends && is_held {
                self.end_held(core, user, now_ns);
            }
        }
    }

    /// Notes the end of the call of a user.
    pub(crate) fn end_conversation(&mut self, user: u32, failure: Option<Failure>, now_ns: u64) {
        if let (Some(talks), Some(counts)) = (&mut self.conversations, &self.metrics.messages) {
            // In the grace period no message is due.
            talks.end(counts, user, failure, now_ns.min(self.schedule.until_ns));
        }
    }

    /// Takes back what was sent of a call that the server has not processed.
    pub(crate) fn take_back_conversation(&mut self, user: u32) {
        let (Some(talks), Some(counts)) = (&mut self.conversations, &self.metrics.messages) else {
            return;
        };
        if let Some(one) = talks.users.get_mut(user as usize) {
            one.state = State::None;
        }
        if let Some(one) = talks.senders.get_mut(user as usize) {
            counts.sent.sub(u64::from(one.sent));
            one.unanswered.clear();
            one.clear_rest();
        }
    }

    /// Removes the users that wait for room on a connection that has ended.
    pub(crate) fn forget_blocked(&mut self, at: u32) {
        self.conversations.iter_mut().for_each(|talks| talks.forget(at));
    }
}
