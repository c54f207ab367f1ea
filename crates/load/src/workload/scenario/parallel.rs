//! Steps whose requests are sent at the same time: the branches of [`Users`], each of which makes one step
//! of a group for its user.

use engine::invariant;

use crate::outcome::failure::Failure;
use crate::workload::requests::answer::Answer;
use crate::workload::requests::script::Step as Next;
use crate::workload::scenario::render::Follow;
use crate::workload::scenario::template::mixed;
use crate::workload::scenario::user::User;
use crate::workload::scenario::users::Users;

/// What a branch has apart from its user.
#[derive(Debug)]
pub(crate) struct Branch {
    user: u32,
    /// Its own while the user is not, and the other way round: see [`Users::enter`].
    own: Position,
}

/// Where a user or a branch is, and the values of its request.
#[derive(Default, Debug)]
pub(crate) struct Position {
    pub(crate) step: Option<usize>,
    pub(crate) seq: u64,
    pub(crate) draw: u64,
    pub(crate) now_ms: u64,
    pub(crate) follow: Option<Box<Follow>>,
}

/// The group of a user whose requests are in flight.
#[derive(Copy, Clone, Debug)]
pub(crate) struct InGroup {
    /// Its first step.
    pub(crate) first: usize,
    /// From which the random values of its requests are drawn, in whatever order they are sent.
    draw: u64,
    failed: bool,
    is_warm_up: bool,
}

impl Users {
    fn branch(&self, number: u32) -> Option<&Branch> {
        self.branches.get(number.checked_sub(self.part.users)? as usize)
    }

    /// The step of a user or a branch.
    pub(crate) fn step_of(&self, number: u32) -> Option<usize> {
        match self.branch(number) {
            Some(branch) => branch.own.step,
            None => self.users.get(number as usize)?.at.step,
        }
    }

    /// Lets the user of a branch be where the branch is, until it is called again. Returns the user.
    pub(crate) fn enter(&mut self, number: u32) -> u32 {
        let Some(at) = number.checked_sub(self.part.users) else { return number };
        let Some(branch) = self.branches.get_mut(at as usize) else { return number };
        if let Some(user) = self.users.get_mut(branch.user as usize) {
            std::mem::swap(&mut user.at, &mut branch.own);
        }
        branch.user
    }

    /// The requests of the current step of a user, if they are sent at the same time.
    pub(crate) fn group_of(&self, user: u32) -> u8 {
        if user >= self.part.users {
            return 0;
        }
        let step = self.users.get(user as usize).and_then(|user| user.at.step);
        step.and_then(|step| self.scenario.steps.get(step)).map_or(0, |step| step.parallel)
    }

    /// The target of one of them.
    pub(crate) fn endpoint_of(&self, user: u32, nth: u8) -> u8 {
        let first = self.users.get(user as usize).and_then(|user| user.at.step);
        let step = first.and_then(|first| self.scenario.steps.get(first + usize::from(nth)));
        step.map_or(0, |step| step.endpoint)
    }

    /// Begins the group of a user, before its first request.
    pub(crate) fn begin_group(&mut self, at: u32) {
        let Some(user) = self.users.get_mut(at as usize) else { return };
        let Some(first) = user.at.step else { return };
        let draw = user.chance();
        user.group = Some(InGroup { first, draw, failed: false, is_warm_up: false });
    }

    /// Gives a branch one request of the group of a user.
    pub(crate) fn give(&mut self, at: u32, number: u32, nth: u8, now_ns: u64) -> Option<Failure> {
        let Some(group) = self.users.get(at as usize).and_then(|user| user.group) else {
            invariant::broken("a branch is given a step of a group");
            return Some(Failure::RedirectElsewhere);
        };
        let place = number.saturating_sub(self.part.users) as usize;
        while self.branches.len() <= place {
            self.branches.push(Branch { user: at, own: Position::default() });
        }
        let step = Some(group.first + usize::from(nth));
        let draw = mixed(group.draw ^ mixed(u64::from(nth)));
        if let Some(branch) = self.branches.get_mut(place) {
            *branch = Branch { user: at, own: Position { step, ..Position::default() } };
        }
        self.enter(number);
        let next = self.prepare(at, draw, now_ns);
        self.enter(number);
        match next {
            Next::Fail(failure) => Some(failure),
            _ => None,
        }
    }

    /// Ends a request of a group.
    pub(crate) fn over_in_group(&mut self, at: u32, failure: Option<Failure>, answer: &Answer<'_>) {
        let Some(user) = self.users.get_mut(at as usize) else {
            return invariant::broken("a user is created before its first step");
        };
        let Some(number) = user.at.step else { return };
        user.at.follow = None;
        if let Some(group) = &mut user.group {
            group.failed |= failure.is_some();
            group.is_warm_up = answer.is_warm_up;
        }
        if !answer.is_warm_up {
            let is_whole = answer.outcome.is_ok() && !failure.is_some_and(Failure::is_of_call);
            let times = is_whole.then_some(&answer.times);
            self.tally.step(number, failure, times);
        }
    }

    /// Ends the group of a user; `is_whole` unless some of its requests were not sent.
    pub(crate) fn end_group(&mut self, at: u32, is_whole: bool) {
        let Some(user) = self.users.get_mut(at as usize) else {
            return invariant::broken("a user is created before its first step");
        };
        let Some(group) = user.group.take() else {
            return invariant::broken("a group ends after it began");
        };
        if !is_whole {
            user.at.step = None;
            return;
        }
        self.end_step(at, group.first, group.failed, group.is_warm_up);
    }
}

impl User {
    /// The step whose list of items is looped over.
    pub(crate) fn looping(&self) -> Option<usize> {
        self.group.map(|group| group.first).or(self.at.step)
    }
}
