//! [`Users`]: the users of one worker in a scenario, as a [`Script`]. A request depends only on the
//! state of its user, so rendering it again gives the same bytes.

use std::sync::Arc;
use std::time::Duration;

use crate::delivery::group::Members;
use crate::outcome::tally::Tallies;
use crate::outcome::tally::Tally;
use crate::workload::scenario::Scenario;
use crate::workload::scenario::call::of_status;
use crate::workload::scenario::condition::Operands;
use crate::workload::scenario::extract::AnswerView;
use crate::workload::scenario::parallel::Branch;
use crate::workload::scenario::prepared::{fixed, wants};
use crate::workload::scenario::render::Renderer;
use crate::workload::scenario::sockets::SOON;
use crate::workload::scenario::speak;
use crate::workload::scenario::speak::Action;
use crate::workload::scenario::template::mixed;
use crate::workload::scenario::user::{User, render_context};
use engine::invariant;

use crate::outcome::failure::Failure;
use crate::transport::driver::Push;
use crate::transport::target_table::TargetTable;
use crate::workload::requests::answer::{Answer, Wants};
use crate::workload::requests::request::{Kind, Request};
use crate::workload::requests::script::{Part, Script, SocketEnd, Step as Next};

/// One worker's users.
pub struct Users {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) part: Part,
    pub(crate) users: Vec<User>,
    /// What sends requests of users at the same time, numbered after users.
    pub(crate) branches: Vec<Branch>,
    /// Users in groups.
    pub(crate) members: Option<Members>,
    /// Whether some steps use WebSockets.
    has_sockets: bool,
    /// Whether some steps may be skipped.
    has_conditions: bool,
    operands: Operands,
    pub(crate) scratch: Vec<u8>,
    /// Constant requests, by step.
    fixed: Vec<Option<Request>>,
    wants: Vec<Wants>,
    /// The last rendered request.
    request: Request,
    renderer: Renderer,
    seed: u64,
    /// Numbers assigned to requests.
    numbered: u64,
    clock: Clock,
    targets: TargetTable,
    /// Requests due before this are warm-up and in no tally.
    pub(crate) measure_ns: u64,
    pub(crate) tally: Tally,
    tallies: Tallies,
    merged_ns: u64,
}

/// The wall clock at one moment of the monotonic clock.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    /// Nanoseconds of the monotonic clock.
    pub now_ns: u64,
    /// Milliseconds since 1970 at that moment.
    pub now_ms: u64,
}

/// The pause after a pass in which no step was made.
const PASS_REST: Duration = Duration::from_millis(1);
/// Grace in addition to the quiet time, for messages in flight at the end of a run.
const GROUP_GRACE: Duration = Duration::from_secs(10);

impl Users {
    /// The users of a worker. `seed` determines all random values of the run.
    #[must_use]
    pub fn new(
        scenario: Arc<Scenario>,
        part: Part,
        tallies: Tallies,
        seed: u64,
        clock: Clock,
    ) -> Users {
        let wants = scenario.steps.iter().map(|step| wants(&scenario, step)).collect();
        let mut renderer = Renderer::default();
        let fixed = scenario.steps.iter().map(|step| fixed(&scenario, step, &mut renderer));
        Users {
            members: tallies.state().map(Members::new),
            has_sockets: scenario.has_sockets(),
            has_conditions: scenario.has_conditions(),
            operands: Operands::default(),
            scratch: Vec::new(),
            fixed: fixed.collect(),
            wants,
            users: Vec::new(),
            branches: Vec::new(),
            request: Request::default(),
            renderer,
            seed,
            numbered: 0,
            clock,
            targets: TargetTable::new(&scenario.endpoints),
            measure_ns: 0,
            tally: Tally::new(&scenario),
            tallies,
            merged_ns: 0,
            part,
            scenario,
        }
    }

    /// Creates users up to `user`, so that memory is used only by started ones.
    fn ensure(&mut self, user: u32, now_ns: u64) {
        while self.users.len() <= user as usize {
            let at = self.users.len() as u32;
            let number = self.part.number(at);
            let mut user = User::new(&self.scenario, mixed(self.seed ^ mixed(number)));
            user.stamp.publisher = number as u32;
            user.arrives = self.scenario.arrives(number);
            user.think = self.arrives_after(number, now_ns);
            if let Some(members) = &mut self.members {
                members.add(number);
                user.place = members.place(at);
            }
            self.users.push(user);
            self.set_receiver(at, None);
        }
    }

    /// Begins a pass that is due; false if the user is done.
    fn begin_pass(&mut self, at: u32, due_ns: u64) -> bool {
        let number = self.part.number(at);
        let role = self.members.as_ref().map(|members| members.role(at));
        let Some(user) = self.users.get_mut(at as usize) else {
            invariant::broken("a user is created before its first step");
            return false;
        };
        let passes = self.scenario.passes;
        if user.is_done || passes.is_some_and(|passes| user.counted >= passes) {
            return false;
        }
        for (row, feed) in user.rows.iter_mut().zip(&self.scenario.feeds) {
            user.random = user.random.wrapping_add(1);
            let Some(next) = feed.next_row(number, mixed(user.random)) else { return false };
            *row = next;
        }
        let own = self.scenario.own_flow(number);
        let chosen = || self.scenario.chosen(role, user.chance_of_pass());
        user.flow = own.unwrap_or_else(chosen);
        (user.repeated, user.at_item, user.items, user.has_sent) = (0, 0, None, false);
        user.passes += 1;
        user.is_counted = due_ns >= self.measure_ns;
        if user.is_counted {
            user.counted += 1;
            self.tally.pass(user.flow);
        }
        user.at.step = None;
        user.advance(&self.scenario);
        true
    }

    /// Skips steps that are not to be made. Returns a pause if that ended the pass.
    fn skip(&mut self, at: u32) -> Option<Duration> {
        let number = self.part.number(at);
        loop {
            let user = self.users.get_mut(at as usize)?;
            let Some(step) = user.at.step else { break };
            if user.is_due(&self.scenario, number, &mut self.operands) {
                return None;
            }
            if user.next_item(&self.scenario, step) {
                continue;
            }
            user.repeated = 0;
            self.set_receiver(at, None);
            self.leave(at, step, false);
        }
        let user = self.users.get_mut(at as usize)?;
        user.arrived_ns = None;
        Some(if user.has_sent { SOON } else { PASS_REST })
    }

    /// Moves a user to the next step or the end of the pass.
    pub(crate) fn leave(&mut self, at: u32, number: usize, succeeded: bool) {
        let Some(user) = self.users.get_mut(at as usize) else {
            return invariant::broken("a user is created before its first step");
        };
        if succeeded {
            user.do_once(number);
        }
        user.advance(&self.scenario);
        if user.at.step.is_none() && user.is_counted {
            self.tally.completed(user.flow);
        }
    }

    /// Prepares the next request of a user, unless it leads to no server of the scenario.
    /// `draw` are its random values.
    pub(crate) fn prepare(&mut self, at: u32, draw: u64, now_ns: u64) -> Next {
        const NOWHERE: Next = Next::Fail(Failure::RedirectElsewhere);
        let Some(user) = self.users.get_mut(at as usize) else {
            invariant::broken("a user is created before its first step");
            return NOWHERE;
        };
        user.at.seq = self.numbered * self.part.stride.max(1) + self.part.first;
        self.numbered += 1;
        user.at.draw = draw;
        let since_ms = now_ns.saturating_sub(self.clock.now_ns) / 1_000_000;
        user.at.now_ms = self.clock.now_ms + since_ms;
        let Some(step) = user.at.step else { return NOWHERE };
        if self.fixed.get(step).is_some_and(Option::is_some) {
            return Next::Send;
        }
        let asked = self
            .users
            .get(at as usize)
            .and_then(|user| render_context(&self.scenario, user, self.part.number(at)));
        let Some(asked) = asked else {
            invariant::broken("a step has an endpoint of the scenario");
            return NOWHERE;
        };
        if let Some(call) = &asked.step.call {
            let fits = call.fits(&asked.values, &mut self.scratch);
            return if fits { Next::Send } else { Next::Fail(Failure::GrpcRequest) };
        }
        let target = self.renderer.target(&asked);
        if target.starts_with(b"/http:") || target.starts_with(b"/https:") {
            return NOWHERE;
        }
        Next::Send
    }

    /// Checks a complete answer.
    fn judge(&mut self, at: u32, status: u16, answer: &Answer<'_>) -> Option<Failure> {
        let scenario = Arc::clone(&self.scenario);
        let Some(user) = self.users.get_mut(at as usize) else {
            invariant::broken("a user is created before its first step");
            return None;
        };
        let found = user.at.step.and_then(|at| Some((at, scenario.steps.get(at)?)));
        let Some((number, step)) = found else {
            invariant::broken("an answer belongs to a step of the scenario");
            return None;
        };
        if scenario.cookies && step.call.is_none() {
            user.keep_cookies(&scenario, step, answer);
        }
        if let Some(failure) = speak::refused(&step.action, status, answer) {
            return Some(failure);
        }
        let counts = !answer.is_warm_up;
        let followed = user.redirected(&scenario, &self.targets, step, status, answer);
        if let Some(Err(failure)) = followed {
            return Some(failure);
        }
        let kept = matches!(self.wants.get(number), Some(Wants::Body(_)));
        if kept && answer.is_cut {
            return Some(Failure::TooLarge);
        }
        let mut json = String::new();
        if let Some(call) = step.call.as_ref().filter(|_| kept)
            && let Err(failure) = call.answer_json(&step.action, answer, &mut json)
        {
            return Some(failure);
        }
        let decoded;
        let shown = match &step.call {
            None => answer,
            Some(_) => {
                decoded = Answer { body: json.as_bytes(), ..*answer };
                &decoded
            }
        };
        let seen = AnswerView::new(status, shown);
        let mut failure = None;
        for (at, check) in step.checks.iter().enumerate() {
            let held = check.holds(&seen);
            if counts {
                self.tally.check(number, at, held);
            }
            failure = failure.or((!held).then_some(Failure::Check));
        }
        if let Some(wrong) = of_status(status, &step.checks) {
            return Some(wrong);
        }
        let mut missing = false;
        for (at, capture) in step.captures.iter().enumerate() {
            let value = capture.find(&seen, user.at.draw);
            if counts {
                self.tally.check(number, step.checks.len() + at, value.is_some());
            }
            missing |= value.is_none();
            if let (Some(slot), Some(value)) = (user.captures.get_mut(capture.slot), value) {
                *slot = Some(value.into());
            }
        }
        failure.or(missing.then_some(Failure::Check))
    }

    /// Ends the current step.
    fn over(&mut self, at: u32, failure: Option<Failure>, answer: &Answer<'_>) {
        let Some(user) = self.users.get_mut(at as usize) else {
            return invariant::broken("a user is created before its first step");
        };
        let Some(number) = user.at.step else { return };
        let is_whole = answer.outcome.is_ok() && !failure.is_some_and(Failure::is_of_call);
        if !answer.is_warm_up {
            self.tally.step(number, failure, is_whole.then_some(&answer.times));
        }
        user.at.follow = None;
        self.end_step(at, number, failure.is_some(), answer.is_warm_up);
    }

    /// Moves a user on from a step that has ended.
    pub(crate) fn end_step(&mut self, at: u32, number: usize, failed: bool, is_warm_up: bool) {
        let Some(user) = self.users.get_mut(at as usize) else {
            return invariant::broken("a user is created before its first step");
        };
        user.has_sent = true;
        let step = self.scenario.steps.get(number);
        let think = step.and_then(|step| step.think);
        user.think = think.map(|(least, most)| user.between(least, most));
        if failed && !step.is_some_and(|step| step.continues) {
            user.at.step = None;
            return;
        }
        if self.repeats(at, number) {
            return;
        }
        if self.has_sockets && !failed {
            self.note_socket(at, number, is_warm_up);
        }
        self.leave(at, number, !failed);
    }
}

impl Users {
    /// Renders the request of a user; returns its step if it is a constant one.
    fn render(&mut self, user: u32) -> Option<usize> {
        let one = self.users.get(user as usize);
        let constant = one.filter(|one| one.at.follow.is_none()).and_then(|one| one.at.step);
        if let Some(step) = constant.filter(|at| self.fixed.get(*at).is_some_and(Option::is_some)) {
            return Some(step);
        }
        let asked = one.and_then(|one| render_context(&self.scenario, one, self.part.number(user)));
        if let Some(asked) = asked {
            if let Some(call) = &asked.step.call {
                let (request, scratch) = (&mut self.request, &mut self.scratch);
                // What does not fit was not let through.
                request.set_message(asked.step.endpoint, call.kind(&asked.step.action), |out| {
                    let _ = call.render(&asked, scratch, out);
                });
                return None;
            }
            if asked.follow.is_none() && !matches!(asked.step.action, Action::Request) {
                speak::render(&asked, &mut self.renderer, &mut self.request);
                return None;
            }
            let (endpoint, is_head) = (asked.number(), asked.method() == "HEAD");
            let renderer = &mut self.renderer;
            self.request.set_rendered(endpoint, is_head, |out| renderer.render(&asked, out));
        } else {
            invariant::broken("a request belongs to a step of the scenario");
        }
        None
    }

    /// Follows a redirect; false if it does not lead to a server that may be asked.
    fn follow(&mut self, user: u32, status: u16, answer: &Answer<'_>) -> bool {
        let Some(one) = self.users.get_mut(user as usize) else {
            invariant::broken("a user is created before its first step");
            return false;
        };
        let found = one.at.step.and_then(|at| Some((at, self.scenario.steps.get(at)?)));
        let Some((number, step)) = found else {
            invariant::broken("an answer belongs to a step of the scenario");
            return false;
        };
        if speak::refused(&step.action, status, answer).is_some() {
            return false;
        }
        let followed = one.redirected(&self.scenario, &self.targets, step, status, answer);
        let Some(Ok(follow)) = followed else { return false };
        if self.scenario.cookies {
            one.keep_cookies(&self.scenario, step, answer);
        }
        one.at.follow = Some(Box::new(follow));
        if !answer.is_warm_up {
            self.tally.redirect(number);
        }
        true
    }
}

impl Script for Users {
    fn start(&mut self, targets: &TargetTable, measure_ns: u64) {
        (self.targets, self.measure_ns) = (targets.clone(), measure_ns);
        self.members.iter_mut().for_each(|members| members.measure_from(measure_ns));
    }

    fn next(&mut self, user: u32, now_ns: u64) -> Next {
        self.ensure(user, now_ns);
        let Some(one) = self.users.get_mut(user as usize) else {
            invariant::broken("a user is created before its first step");
            return Next::End;
        };
        if let Some(time) = one.think.take() {
            return Next::Wait(time);
        }
        if one.at.step.is_none() {
            let due_ns = match one.arrives {
                true => one.arrived_ns,
                false => Some(now_ns),
            };
            let Some(due_ns) = due_ns else { return Next::Arrive };
            if !self.begin_pass(user, due_ns) {
                return Next::End;
            }
        }
        if self.has_conditions
            && let Some(time) = self.skip(user)
        {
            return Next::Wait(time);
        }
        if self.has_sockets
            && let Some(next) = self.before_sending(user, now_ns)
        {
            return next;
        }
        let next = if self.group_of(user) > 0 {
            self.begin_group(user);
            Next::Send
        } else {
            let draw = self.users.get_mut(user as usize).map_or(0, User::chance);
            self.prepare(user, draw, now_ns)
        };
        let arrived = self.users.get_mut(user as usize).and_then(|one| one.arrived_ns.take());
        match (next, arrived) {
            (Next::Send, Some(due_ns)) => Next::SendDue(due_ns),
            (next, _) => next,
        }
    }

    fn arrived(&mut self, user: u32, due_ns: u64) {
        if let Some(one) = self.users.get_mut(user as usize) {
            one.arrived_ns = Some(due_ns);
        }
    }

    fn request(&mut self, number: u32) -> &Request {
        let user = self.enter(number);
        let fixed = self.render(user);
        self.enter(number);
        fixed.and_then(|step| self.fixed.get(step)?.as_ref()).unwrap_or(&self.request)
    }

    fn wants(&self, user: u32) -> Wants {
        let step = self.step_of(user);
        step.and_then(|step| self.wants.get(step)).copied().unwrap_or_default()
    }

    fn follows_up(&mut self, number: u32, answer: &Answer<'_>) -> bool {
        let Ok(status @ 300..400) = answer.outcome else { return false };
        let user = self.enter(number);
        let follows = self.follow(user, status, answer);
        self.enter(number);
        follows
    }

    fn answered(&mut self, number: u32, answer: &Answer<'_>) -> Option<Failure> {
        let user = self.enter(number);
        let failure = match answer.outcome {
            Ok(status) => self.judge(user, status, answer),
            Err(failure) => Some(failure),
        };
        if number != user {
            self.over_in_group(user, failure, answer);
            self.enter(number);
        } else {
            if self.has_sockets {
                self.note_unsent(user, answer);
            }
            self.over(user, failure, answer);
        }
        if self.tallies.is_live() {
            self.tallies.publish(&mut self.tally, &mut self.merged_ns, answer.times.done_ns);
        }
        failure.filter(|_| answer.outcome.is_ok())
    }

    fn kind(&self, user: u32) -> Kind {
        let one = self.users.get(user as usize).filter(|one| one.at.follow.is_none());
        let step = one.and_then(|one| self.scenario.steps.get(one.at.step?));
        step.map_or(Kind::Plain, |step| step.action.kind())
    }

    fn awaits(&self, user: u32) -> bool {
        let step = self.users.get(user as usize).and_then(|user| user.at.step);
        let step = step.and_then(|step| self.scenario.steps.get(step));
        step.is_some_and(|step| step.receive.is_some())
    }

    fn limit(&self, user: u32) -> Option<Duration> {
        self.step_of(user).and_then(|step| self.scenario.steps.get(step)?.limit)
    }

    fn begin(&mut self, user: u32, _due_ns: u64, now_ns: u64) {
        if user < self.part.users {
            self.stamp(user, now_ns);
            if self.has_sockets {
                self.forget_messages(user);
            }
        }
    }

    fn parallel(&self, user: u32) -> u8 {
        self.group_of(user)
    }

    fn endpoint(&self, user: u32, nth: u8) -> u8 {
        self.endpoint_of(user, nth)
    }

    fn fork(&mut self, user: u32, branch: u32, nth: u8, now_ns: u64) -> Option<Failure> {
        self.give(user, branch, nth, now_ns)
    }

    fn join(&mut self, user: u32, is_whole: bool) {
        self.end_group(user, is_whole);
    }

    fn socket(&self, user: u32) -> u8 {
        let step = self.users.get(user as usize).and_then(|user| user.at.step);
        step.and_then(|step| self.scenario.steps.get(step)).map_or(1, |step| step.socket)
    }

    fn pushed(&mut self, user: u32, socket: u8, push: &Push<'_>, waits: bool, now_ns: u64) -> bool {
        self.on_push(user, socket, push, waits, now_ns)
    }

    fn recall(&mut self, user: u32) -> Option<Vec<u8>> {
        self.take_matching(user)
    }

    fn keep_end(&mut self, user: u32, socket: u8, status: u16, head: &[u8]) {
        let inbox = self.users.get_mut(user as usize).and_then(|user| user.inbox_mut(socket));
        inbox.into_iter().for_each(|inbox| inbox.end(status, head));
    }

    fn recall_end(&mut self, user: u32) -> Option<(u16, Vec<u8>)> {
        let user = self.users.get_mut(user as usize)?;
        let socket = self.scenario.steps.get(user.at.step?)?.socket;
        user.inbox_mut(socket)?.take_end()
    }

    fn socket_ended(&mut self, user: u32, socket: u8, left: SocketEnd) {
        self.on_socket_end(user, socket, left);
    }

    fn parked(&mut self, user: u32) {
        self.repeat_setup_of(user, |_| true);
    }

    fn stays(&mut self, user: u32, now_ns: u64) -> bool {
        self.ensure(user, now_ns);
        self.members.as_mut().is_some_and(|members| members.stays(user, now_ns))
    }

    fn grace(&self) -> Duration {
        self.scenario.group.map_or(Duration::ZERO, |group| group.quiet + GROUP_GRACE)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        if let Some(members) = &mut self.members {
            self.tally.stats = members.finish(|at| self.part.number(at));
        }
        if self.scenario.keeps_captures
            && let Some(user) = self.users.first()
        {
            self.tally.captured = Some(user.captures.iter().cloned().collect());
        }
        self.tallies.merge(&self.tally);
    }
}

#[cfg(test)]
#[path = "users_tests.rs"]
mod tests;
