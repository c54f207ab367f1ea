//! Calls of several messages: when each is sent, and whether those that are received are expected. Nothing of this
//! is compiled for drivers without [`crate::transport::driver::Driver::MESSAGES`]. On connections without streams
//! they are only received.
//!
//! A message waits where the windows of its stream or connection, or the kernel, take no more: at most the rest of
//! one is kept per stream. With [`MessagePace::Every`] those after it become late, or are never sent.

mod talk;

use std::collections::VecDeque;
use std::time::Duration;

use crate::delivery::checker::{Checker, Expected, Track};
use crate::delivery::publication::{self, Publication};
use crate::grpc::limits::KEPT_BYTES;
use crate::outcome::failure::Failure;
use crate::outcome::messages::MessageCounters;
use crate::outcome::timings::Timings;
use crate::transport::driver::Window;

/// The messages of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Messages {
    /// The client sends them one by one; otherwise they are part of the request.
    pub sends: bool,
    /// How many a call sends, or with `sends` false receives. `None`: until the run ends, or for `hold`.
    pub per_call: Option<u32>,
    /// How long a call sends, or with `sends` false receives.
    pub hold: Option<Duration>,
    /// When they are sent.
    pub pace: MessagePace,
    /// How messages that are received are matched with those that were sent.
    pub check: MessageCheck,
    /// An answer later than this is late, and with [`MessagePace::Answered`] no longer awaited.
    pub late_after: Duration,
}

/// When the next message of a stream is sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum MessagePace {
    /// As soon as the windows allow it.
    Flow,
    /// When the last one was answered.
    Answered,
    /// At this interval, from the beginning of the call.
    Every(Duration),
}

/// How a received message is matched with one that was sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum MessageCheck {
    /// Not at all.
    None,
    /// The nth received answers the nth sent.
    Order,
    /// By the stamp that it carries back.
    Stamp,
}

/// The calls of a worker.
pub(crate) struct Conversations {
    config: Messages,
    users: Vec<Conversation>,
    /// Of the same users; empty if calls only receive.
    senders: Vec<Sender>,
    checker: Checker,
    measure_ns: u64,
    /// Users that have more to send.
    ready: VecDeque<u32>,
    /// By connection: users that wait for its window, or for the kernel.
    blocked: Vec<VecDeque<u32>>,
    /// The last message.
    message: Vec<u8>,
}

/// The call of a user.
#[derive(Default)]
struct Conversation {
    state: State,
    at: u32,
    stream: u32,
    /// Messages received of this call, and when the last one was.
    received: u32,
    received_ns: u64,
}

// There may be 100,000 that only receive.
const _: () = assert!(size_of::<Conversation>() <= 24);

/// What a call has sent.
#[derive(Default)]
struct Sender {
    /// Messages of this call: begun, sent after the warm-up, and answered of those.
    begun: u32,
    sent: u32,
    answered: u32,
    /// The last one that was sent is not answered.
    is_awaiting: bool,
    is_ready: bool,
    /// Its place in `blocked`, by connection.
    queued: Option<u32>,
    begun_ns: u64,
    /// When the last message was sent.
    sent_ns: u64,
    /// When the next message is due.
    due_ns: u64,
    wake_ns: u64,
    /// The part of a message that the windows did not allow yet.
    rest: Vec<u8>,
    rest_at: usize,
    /// When that message was due and begun.
    rest_ns: (u64, u64),
    /// When unanswered messages were due and sent, if they are matched by their order.
    unanswered: VecDeque<(u64, u64)>,
    /// The number of the next message, and those that came back, over all calls.
    number: u32,
    track: Track,
}

#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
enum State {
    /// No call.
    #[default]
    None,
    /// It may send.
    Open,
    /// A window or the kernel takes no more.
    Blocked,
    /// Our side has ended.
    Ended,
}

impl Conversations {
    pub(crate) fn new(config: &Messages, users: u32) -> Conversations {
        let late_ns = u64::try_from(config.late_after.as_nanos()).unwrap_or(u64::MAX);
        let senders = if config.sends { users } else { 0 };
        Conversations {
            config: config.clone(),
            users: (0..users).map(|_| Conversation::default()).collect(),
            senders: (0..senders).map(|_| Sender::default()).collect(),
            checker: Checker::new(late_ns),
            measure_ns: 0,
            ready: VecDeque::new(),
            blocked: Vec::new(),
            message: Vec::new(),
        }
    }

    /// Sets the end of the warm-up.
    pub(crate) fn measure_from(&mut self, measure_ns: u64) {
        self.measure_ns = measure_ns;
        self.checker.ignore_before(measure_ns);
    }

    pub(crate) fn timings(&mut self) -> &mut Timings {
        self.checker.timings()
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The call of a user that sends.
    fn sender(&mut self, user: u32) -> Option<(&mut Conversation, &mut Sender)> {
        self.users.get_mut(user as usize).zip(self.senders.get_mut(user as usize))
    }

    /// Suspends a user until there is room again.
    fn block(&mut self, user: u32, window: Window) {
        let Some((one, sender)) = self.sender(user) else { return };
        one.state = State::Blocked;
        if window == Window::Stream || sender.queued == Some(one.at) {
            return;
        }
        sender.queued = Some(one.at);
        let at = one.at as usize;
        if self.blocked.len() <= at {
            self.blocked.resize_with(at + 1, VecDeque::new);
        }
        if let Some(blocked) = self.blocked.get_mut(at) {
            blocked.push_back(user);
        }
    }

    /// The next user that waits for a connection.
    fn next_blocked(&mut self, at: u32) -> Option<u32> {
        loop {
            let user = self.blocked.get_mut(at as usize)?.pop_front()?;
            let Some((one, sender)) = self.sender(user) else { continue };
            if sender.queued == Some(at) {
                sender.queued = None;
            }
            if one.state == State::Blocked && one.at == at {
                one.state = State::Open;
                return Some(user);
            }
        }
    }

    /// Removes the users that wait for room on a connection that has ended.
    fn forget(&mut self, at: u32) {
        let Some(blocked) = self.blocked.get_mut(at as usize) else { return };
        for user in std::mem::take(blocked) {
            let one = self.senders.get_mut(user as usize).filter(|one| one.queued == Some(at));
            one.into_iter().for_each(|one| one.queued = None);
        }
    }

    /// Checks a received message.
    fn receive(
        &mut self,
        counts: &MessageCounters,
        user: u32,
        publisher: u32,
        data: &[u8],
        now_ns: u64,
    ) {
        let Some(one) = self.senders.get_mut(user as usize) else { return };
        let (delivery, checker) = (&counts.delivery, &mut self.checker);
        let first = match self.config.check {
            MessageCheck::None => return,
            MessageCheck::Order => match one.unanswered.pop_front() {
                None => {
                    delivery.foreign.add(u64::from(now_ns >= self.measure_ns));
                    return;
                }
                Some((due_ns, published_ns)) => {
                    let sequence = one.track.window.next();
                    let publication = Publication { publisher, sequence, due_ns, published_ns };
                    one.is_awaiting &= !one.unanswered.is_empty();
                    let track = &mut one.track;
                    checker.receive(delivery, &publication, now_ns, |of| track.expects(of.sequence))
                }
            },
            MessageCheck::Stamp => {
                let text = publication::find_in_fields(data).unwrap_or_default();
                let (track, number) = (&mut one.track, one.number);
                let first = checker.check(delivery, text, now_ns, |of| {
                    if of.publisher == publisher && of.sequence < number {
                        track.expects(of.sequence)
                    } else {
                        Expected::Foreign
                    }
                });
                one.is_awaiting &= !one.track.window.has(number.wrapping_sub(1));
                first
            }
        };
        one.answered = one.answered.saturating_add(u32::from(first.is_some()));
    }

    /// Ends the call of a user, at this time or that of the last message, if that is earlier.
    fn end(&mut self, counts: &MessageCounters, user: u32, failure: Option<Failure>, now_ns: u64) {
        let measure_ns = self.measure_ns;
        let Some(one) = self.users.get_mut(user as usize) else { return };
        let was_open = one.state != State::Ended;
        if std::mem::take(&mut one.state) == State::None {
            return;
        }
        // A server may end calls that only receive at any time.
        let Some(one) = self.senders.get_mut(user as usize) else { return };
        if failure == Some(Failure::Unfinished) && self.config.check != MessageCheck::None {
            counts.unfinished.add(u64::from(one.sent.saturating_sub(one.answered)));
        }
        counts.early.add(u64::from(was_open && failure.is_none()));
        if was_open {
            let is_blocked = one.rest_at < one.rest.len();
            let is_cut = is_blocked && one.rest_ns.1 >= measure_ns;
            counts.unsent.add(u64::from(is_cut));
            if let MessagePace::Every(interval) = self.config.pace {
                let interval_ns = (interval.as_nanos() as u64).max(1);
                // After the time that calls are held, none is due.
                let held_ns = self.config.hold.map_or(u64::MAX, |hold| {
                    one.begun_ns.saturating_add(hold.as_nanos() as u64).saturating_sub(1)
                });
                let now_ns = now_ns.min(held_ns);
                let left = self.config.per_call.unwrap_or(u32::MAX).saturating_sub(one.begun);
                let due_ns = one.due_ns.max(measure_ns);
                // A message that is just due was not late: the call ended first.
                let is_late = now_ns.saturating_sub(one.due_ns) >= interval_ns;
                if failure.is_some() || is_blocked || is_late {
                    let late_ns = now_ns.checked_sub(due_ns);
                    let due = late_ns.map_or(0, |late_ns| late_ns / interval_ns + 1);
                    counts.unsent.add(due.min(u64::from(left)));
                }
            }
        }
        one.unanswered.clear();
        one.unanswered.shrink_to(64);
        one.clear_rest();
    }
}

impl Sender {
    fn clear_rest(&mut self) {
        self.rest.clear();
        self.rest.shrink_to(KEPT_BYTES);
        self.rest_at = 0;
    }

    /// Notes that a message was sent that was due and begun at these times.
    fn sent(
        &mut self,
        config: &Messages,
        counts: &MessageCounters,
        measure_ns: u64,
        times: (u64, u64),
    ) {
        let is_measured = times.1 >= measure_ns;
        if is_measured { &counts.sent } else { &counts.warm_up }.add(1);
        self.sent = self.sent.saturating_add(u32::from(is_measured));
        self.is_awaiting = true;
        self.sent_ns = times.1;
        if config.check == MessageCheck::Order {
            self.unanswered.push_back(times);
        }
    }
}
