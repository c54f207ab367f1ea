//! [`Requester`]: the worker handler of a run of requests: when its users send and wait, and when the
//! run ends. Connections are handled in [`crate::workload::requests::exchange`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use engine::invariant;
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sys};
use wire::websocket::OpCode;

use crate::Series;
use crate::outcome::request_metrics::RequestMetrics;
use crate::outcome::stalls::Stalls;
use crate::outcome::timings::Timings;
use crate::transport::driver::Driver;
use crate::transport::sources::Sources;
use crate::transport::target_table::TargetTable;
use crate::workload::requests::arrivals::Lane;
use crate::workload::requests::config::Requests;
use crate::workload::requests::conversation::Conversations;
use crate::workload::requests::parallel::Branches;
use crate::workload::requests::pool::Pool;
use crate::workload::requests::route::ConnectRoute;
use crate::workload::requests::schedule::{NextSend, Schedule};
use crate::workload::requests::script::{Part, Script, Step};
use crate::workload::requests::user::{Activity, Socket, User};
use crate::workload::requests::wakes::WakePacing;

/// Users started, and due requests sent, per turn.
const STARTS_PER_TURN: u32 = 64;
pub(crate) const SENDS_PER_TURN: usize = 256;
/// How often the number of users is updated with stages.
const STAGE_NS: u64 = 20_000_000;
/// How often a user that stays is checked.
const STAY_NS: u64 = 20_000_000;

/// An order of the main thread.
pub(crate) enum Order {
    /// Begin the run at this time.
    Begin(u64),
    /// End the run now.
    Stop,
    /// The name of a target was resolved.
    Resolved,
}

/// Why a user is woken.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Wake {
    Rested,
    Timeout,
    /// It stays, and may be done now.
    Stayed,
    ConnectTimeout,
    /// A message is due on its stream, or its call has lasted long enough.
    Message,
    /// The queue of its UNIX socket was full.
    Connect,
}

/// The stage of a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Waiting,
    Running,
    /// Nothing more is sent; answers are awaited until then.
    Ending(u64),
    Over,
}

/// One worker's side of a run.
pub(crate) struct Requester<D: Driver, S: Script> {
    pub(crate) config: Arc<Requests>,
    pub(crate) targets: TargetTable,
    /// Routes to targets by number, made on first use.
    pub(crate) routes: Vec<Option<ConnectRoute>>,
    /// Users that wait for a name to be resolved.
    pub(crate) awaiting_lookup: Vec<u32>,
    pub(crate) metrics: Arc<RequestMetrics>,
    pub(crate) driver: D,
    pub(crate) script: S,
    pub(crate) part: Part,
    pub(crate) sources: Sources,
    /// How many source addresses ran out of ports.
    pub(crate) changes: u32,
    /// Users, and then branches.
    pub(crate) users: Vec<User<D::State>>,
    pub(crate) branches: Branches,
    /// Connections with streams, and those of them whose driver has more to send.
    pub(crate) pool: Pool<D::State>,
    pub(crate) held: Vec<u32>,
    /// Calls of several messages.
    pub(crate) conversations: Option<Box<Conversations>>,
    pub(crate) schedule: Schedule,
    /// Users whose passes begin at a rate.
    pub(crate) lanes: Vec<Lane>,
    pub(crate) timings: Timings,
    /// Requests in flight.
    pub(crate) in_flight: usize,
    pub(crate) timeout_ns: u64,
    /// Users that are not done.
    alive: usize,
    /// Users below this have begun.
    pub(crate) started: u32,
    /// Users that are ready; the last is used first, so that no more connections are opened than
    /// needed, or with `in_turn` the first.
    pub(crate) idle: VecDeque<u32>,
    /// Due requests that were not sent, with `in_turn`, and passes that were dropped.
    pub(crate) skipped: u64,
    /// Whether the sending user was idle when its request was due.
    was_free: bool,
    pub(crate) parked: Vec<u32>,
    /// Wake-ups of users: ends of pauses, and timeouts.
    pub(crate) wakes: BinaryHeap<Reverse<(u64, u32, Wake)>>,
    next_stage_ns: u64,
    pub(crate) stage: Stage,
    /// Users whose request may end without an answer; see `pushes.rs`.
    pub(crate) soon: Vec<u32>,
    stalls: Stalls,
    pub(crate) wake_pacing: WakePacing,
}

impl<D: Driver, S: Script> Requester<D, S> {
    pub(crate) fn new(
        config: Arc<Requests>,
        targets: TargetTable,
        metrics: Arc<RequestMetrics>,
        sources: Sources,
        part: Part,
        driver: D,
        script: S,
    ) -> Requester<D, S> {
        let schedule = Schedule::new(&config, part, 0);
        let timeout_ns = u64::try_from(config.timeout.as_nanos()).unwrap_or(u64::MAX);
        let messages = config.messages.as_ref().filter(|_| D::MESSAGES);
        let conversations =
            messages.map(|messages| Box::new(Conversations::new(messages, part.users)));
        Requester {
            config,
            targets,
            routes: Vec::new(),
            awaiting_lookup: Vec::new(),
            metrics,
            driver,
            script,
            part,
            sources,
            changes: 0,
            users: Vec::new(),
            branches: Branches::new(part.users),
            pool: Pool::default(),
            held: Vec::new(),
            conversations,
            schedule,
            lanes: Vec::new(),
            timings: Timings::new(),
            in_flight: 0,
            timeout_ns,
            alive: part.users as usize,
            started: 0,
            idle: VecDeque::new(),
            skipped: 0,
            was_free: false,
            parked: Vec::new(),
            wakes: BinaryHeap::new(),
            next_stage_ns: 0,
            stage: Stage::Waiting,
            soon: Vec::new(),
            stalls: Stalls::default(),
            wake_pacing: WakePacing::default(),
        }
    }

    fn begin<Y: Sys>(&mut self, core: &mut Core<Y, Self>, begin_ns: u64) {
        self.schedule = Schedule::new(&self.config, self.part, begin_ns);
        self.script.start(&self.targets, self.schedule.measure_ns);
        self.begin_lanes();
        self.users = (0..self.part.users).map(|_| User::new()).collect();
        if D::PUSHES {
            self.driver.seed(core.random());
        }
        if let Some(talks) = &mut self.conversations {
            talks.measure_from(self.schedule.measure_ns);
        }
        self.stage = Stage::Running;
    }

    // ---- users ----

    /// Executes the next step of a user that can send another request.
    pub(crate) fn advance<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        if let Some(owner) = self.branches.user(user) {
            return self.end_branch(core, user, owner, now_ns);
        }
        if self.stage != Stage::Running {
            return self.retire(core, user);
        }
        match self.script.next(user, now_ns) {
            Step::Send => self.ready(core, user, now_ns),
            Step::SendDue(due_ns) => self.send(core, user, due_ns, now_ns),
            Step::Arrive => self.arrive(core, user, now_ns),
            Step::Wait(time) => {
                let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                self.sleep(user, now_ns.saturating_add(time_ns));
            }
            Step::Fail(failure) => {
                if let Some(one) = self.users.get_mut(user as usize) {
                    one.refused = Some(failure);
                }
                self.ready(core, user, now_ns);
            }
            Step::End => self.retire(core, user),
        }
    }

    /// Sends the request of a user, or queues the user until one is due.
    fn ready<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        if self.schedule.is_staged() && user >= self.schedule.users_at(now_ns) {
            return self.park(core, user);
        }
        if self.config.in_turn {
            self.set(user, Activity::Idle);
            return self.idle.push_back(user);
        }
        match self.schedule.take(now_ns) {
            NextSend::Due(due_ns) => {
                // It is late although another user, or this one with pipelining, was free.
                let was_free = self.was_free || !self.idle.is_empty();
                self.note_lag(due_ns, now_ns, was_free);
                self.send(core, user, due_ns, now_ns);
            }
            NextSend::Later => {
                self.set(user, Activity::Idle);
                self.idle.push_back(user);
            }
            NextSend::Over => self.retire(core, user),
        }
    }

    /// Records how late a request of the open model is sent.
    #[inline]
    fn note_lag(&mut self, due_ns: u64, now_ns: u64, was_free: bool) {
        if self.schedule.is_open() {
            self.record_lag(due_ns, now_ns, was_free);
        }
    }

    /// Records how late a request or a pass begins that was due at a time.
    pub(crate) fn record_lag(&mut self, due_ns: u64, now_ns: u64, was_free: bool) {
        if due_ns < self.schedule.measure_ns {
            return;
        }
        let lag_ns = now_ns.saturating_sub(due_ns);
        self.timings.record(Series::SendLag, lag_ns);
        if was_free {
            self.timings.record(Series::SchedulingError, lag_ns);
        }
    }

    /// Suspends a user.
    pub(crate) fn sleep(&mut self, user: u32, until_ns: u64) {
        if let Some(one) = self.users.get_mut(user as usize) {
            (one.activity, one.until_ns) = (Activity::Asleep, until_ns);
        }
        self.wakes.push(Reverse((until_ns, user, Wake::Rested)));
    }

    /// Parks a surplus user: it closes its connections and waits.
    fn park<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32) {
        self.set(user, Activity::Parked);
        if let Some(one) = self.users.get_mut(user as usize) {
            // When it resumes, its script decides again.
            one.refused = None;
        }
        self.parked.push(user);
        if D::PUSHES {
            self.script.parked(user);
        }
        self.close_all(core, user);
    }

    /// Ends a user. Its requests in flight are still awaited.
    pub(crate) fn retire<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let stays = one.activity == Activity::Staying && self.stage != Stage::Over;
        if one.activity == Activity::Over || stays {
            return;
        }
        if D::PUSHES && self.stage != Stage::Over && self.script.stays(user, core.clock_ns()) {
            one.activity = Activity::Staying;
            self.wakes.push(Reverse((core.clock_ns() + STAY_NS, user, Wake::Stayed)));
            return;
        }
        one.activity = Activity::Over;
        self.alive -= 1;
        self.close_all(core, user);
    }

    /// Closes the connection of a user without requests in flight.
    pub(crate) fn close_idle<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if one.flights.is_empty() {
            if D::PUSHES && one.on_socket() {
                return self.close_active(core, user);
            }
            one.link.take().into_iter().for_each(|id| core.abort(id));
        }
    }

    pub(crate) fn set(&mut self, user: u32, activity: Activity) {
        if let Some(one) = self.users.get_mut(user as usize) {
            one.activity = activity;
        }
    }

    // ---- parts of a turn ----

    fn start_users<Y: Sys>(&mut self, core: &mut Core<Y, Self>) {
        for _ in 0..STARTS_PER_TURN {
            if self.started >= self.part.users || self.stage != Stage::Running {
                return;
            }
            let user = self.started;
            self.started += 1;
            self.advance(core, user, core.clock_ns());
        }
    }

    fn wake_users<Y: Sys>(&mut self, core: &mut Core<Y, Self>, now_ns: u64) {
        while let Some(&Reverse((at_ns, user, why))) = self.wakes.peek() {
            if at_ns > now_ns {
                return;
            }
            self.wakes.pop();
            match why {
                Wake::Rested => self.wake(core, user, now_ns),
                Wake::Timeout => self.look_at_timeout(core, user, at_ns, now_ns),
                Wake::Stayed => {
                    self.set(user, Activity::Busy);
                    self.retire(core, user);
                }
                Wake::ConnectTimeout => self.look_at_connect(core, user, now_ns),
                Wake::Message if D::MESSAGES => self.wake_conversation(core, user, at_ns, now_ns),
                Wake::Message => {}
                Wake::Connect => self.connect_again(core, user, now_ns),
            }
        }
    }

    fn wake<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let until_ns = one.until_ns;
        if one.activity == Activity::Asleep && until_ns <= now_ns {
            one.activity = Activity::Busy;
            // In the closed loop the next step of a user is due when its pause ends.
            if !self.schedule.is_open() && until_ns >= self.schedule.measure_ns {
                self.timings.record(Series::SendLag, now_ns - until_ns);
            }
            self.advance(core, user, now_ns);
        }
    }

    /// Sends the requests that are due. Returns true if more may be due.
    fn send_due<Y: Sys>(&mut self, core: &mut Core<Y, Self>) -> bool {
        for _ in 0..SENDS_PER_TURN {
            let now_ns = core.clock_ns();
            let Some(user) = self.next_idle() else { return self.skip_due(now_ns) };
            match self.schedule.take(now_ns) {
                NextSend::Due(due_ns) => {
                    self.note_lag(due_ns, now_ns, true);
                    self.was_free = true;
                    self.send(core, user, due_ns, now_ns);
                    self.was_free = false;
                }
                NextSend::Later => {
                    self.return_idle(user);
                    return false;
                }
                NextSend::Over => self.retire(core, user),
            }
        }
        true
    }

    /// Resumes parked users if the stage has more users now.
    fn look_at_stage<Y: Sys>(&mut self, core: &mut Core<Y, Self>, now_ns: u64) {
        if !self.schedule.is_staged() || now_ns < self.next_stage_ns {
            return;
        }
        self.next_stage_ns = now_ns + STAGE_NS;
        let users = self.schedule.users_at(now_ns);
        let parked = std::mem::take(&mut self.parked);
        for user in parked {
            if user < users {
                self.set(user, Activity::Busy);
                self.advance(core, user, now_ns);
            } else {
                self.parked.push(user);
            }
        }
    }

    /// Several requests share a connection, and none is due at a time of its own.
    fn paces_wakes(&self) -> bool {
        let is_closed = !self.schedule.is_open() && self.lanes.is_empty();
        is_closed && self.config.block() > 1 && self.conversations.is_none()
    }

    fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let end_ns = match self.stage {
            Stage::Ending(give_up_ns) => give_up_ns,
            _ => self.schedule.until_ns,
        };
        let due_ns = self.schedule.next_ns().filter(|_| !self.idle.is_empty() || self.is_full());
        let wake_ns = self.wakes.peek().map(|Reverse((at_ns, ..))| *at_ns);
        let soon_ns = (!self.soon.is_empty()).then_some(now_ns);
        let stage_ns = self.schedule.is_staged().then_some(self.next_stage_ns);
        let start_ns = (self.started < self.part.users).then_some(now_ns);
        let end_ns = Some(end_ns).filter(|end_ns| *end_ns < u64::MAX);
        let (pass_ns, timings_ns) = (self.next_pass_ns(), self.timings.next_ns());
        let all = [end_ns, due_ns, wake_ns, stage_ns, start_ns, soon_ns, pass_ns, timings_ns];
        all.into_iter().flatten().min()
    }
}

impl<D: Driver, S: Script> Handler for Requester<D, S> {
    type User = Socket;
    type Post = Order;

    /// A server that is woken by the first of the next requests then finds more of them.
    const READS_TOGETHER: usize = 32;

    /// Never called: a client does not listen.
    fn request<Y: Sys>(&mut self, _: &mut Core<Y, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, "This is a client.\n"))
    }

    /// Never called: its connections are raw.
    fn open<Y: Sys>(&mut self, _: &mut Core<Y, Self>, _: ConnId) {}

    fn message<Y: Sys>(&mut self, _: &mut Core<Y, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn connected<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId) {
        if D::STREAMS {
            self.on_stream_connected(core, id);
        } else {
            self.on_connected(core, id);
        }
    }

    fn data<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId, data: &mut [u8]) {
        if D::STREAMS {
            self.on_stream_data(core, id, data);
        } else if D::PUSHES {
            self.on_pushing_data(core, id, data);
        } else {
            self.on_data(core, id, data);
        }
    }

    fn closed<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId, why: Closed, _: bool) {
        if D::STREAMS {
            self.on_stream_closed(core, id, why);
        } else {
            self.on_closed(core, id, why);
        }
    }

    fn drained<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId) {
        if D::STREAMS {
            self.on_stream_drained(core, id);
        } else if D::PUSHES {
            self.on_pushing_drained(core, id);
        }
    }

    fn post<Y: Sys>(&mut self, core: &mut Core<Y, Self>, order: Order) {
        match order {
            Order::Begin(begin_ns) => self.begin(core, begin_ns),
            Order::Resolved => self.connect_resolved(core),
            Order::Stop => self.stop(core, core.now_ns()),
        }
    }

    fn turn<Y: Sys>(&mut self, core: &mut Core<Y, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        if matches!(self.stage, Stage::Waiting | Stage::Over) {
            return None;
        }
        if self.stage == Stage::Running && now_ns < self.schedule.begin_ns {
            return Some(self.schedule.begin_ns);
        }
        self.stalls.turn(core, &self.metrics.stalled_ns);
        if D::STREAMS
            && self.paces_wakes()
            && let Some(ns) = self.wake_pacing.look(now_ns, self.in_flight)
        {
            core.coalesce_wakes(ns);
        }
        self.start_users(core);
        if D::PUSHES {
            self.finish_soon(core);
        }
        self.wake_users(core, now_ns);
        self.look_at_stage(core, now_ns);
        let mut more = (self.schedule.is_open() && self.send_due(core)) | self.begin_due(core);
        if D::MESSAGES {
            more |= self.send_ready(core);
        }
        if D::STREAMS && !self.held.is_empty() {
            more |= self.send_held(core);
        }
        let is_over = match self.stage {
            Stage::Ending(give_up_ns) => now_ns >= give_up_ns,
            _ => false,
        };
        if is_over || self.alive == 0 && self.in_flight == 0 {
            self.finish(core, now_ns);
            return None;
        }
        if self.stage == Stage::Running && now_ns >= self.schedule.until_ns {
            self.begin_ending(core, now_ns);
        }
        self.timings.flush(&self.metrics.timed, now_ns);
        if let Some(talks) = self.conversations.as_mut().filter(|_| D::MESSAGES) {
            talks.timings().flush(&self.metrics.timed, now_ns);
        }
        if more { Some(now_ns) } else { self.next_ns(now_ns) }
    }
}
