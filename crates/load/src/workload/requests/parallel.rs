//! Requests of one step that a user sends at the same time. Each is sent by a *branch*, which has a
//! connection of its own: an entry of [`Requester::users`] behind those of users. Branches are used by
//! all users of a worker in turn; the connections go back to the user.

use engine::invariant;
use engine::{Core, Sys};

use crate::transport::driver::Driver;
use crate::workload::requests::config::Requests;
use crate::workload::requests::requester::{Requester, Stage};
use crate::workload::requests::script::Script;
use crate::workload::requests::user::{Activity, User};

/// How many branches are made when there is no room for more.
const GROWTH_MIN: usize = 64;

/// The branches of one worker.
#[derive(Default)]
pub(crate) struct Branches {
    /// The number of users, which branches follow.
    first: u32,
    /// The user of each, and the target of its request.
    all: Vec<(u32, u8)>,
    free: Vec<u32>,
}

/// The requests of a user that are sent at the same time.
#[derive(Debug)]
pub(crate) struct Group {
    /// When they were due.
    due_ns: u64,
    /// Those that were not begun yet, in order.
    waiting: Vec<u8>,
    /// Branches that have not ended.
    running: Vec<u32>,
    /// Some will not be sent, as the run has ended.
    is_cut: bool,
    /// Its user rests, as a connect has failed.
    rests: bool,
}

impl Branches {
    pub(crate) fn new(first: u32) -> Branches {
        Branches { first, ..Branches::default() }
    }

    /// The user of a branch; `None` if it is none.
    #[inline]
    pub(crate) fn user(&self, number: u32) -> Option<u32> {
        let at = number.checked_sub(self.first)?;
        self.all.get(at as usize).map(|(user, _)| *user)
    }

    /// The number among the connections of a run, of which each user has `links`: it decides the source
    /// address.
    pub(crate) fn position(&self, number: u32, of_user: u64, config: &Requests) -> u64 {
        let nth = number.checked_sub(self.first).map_or(0, |at| 1 + u64::from(at));
        of_user + config.connections * (nth % config.links.max(1))
    }

    fn set(&mut self, number: u32, user: u32, endpoint: u8) {
        let at = number.saturating_sub(self.first) as usize;
        if let Some(branch) = self.all.get_mut(at) {
            *branch = (user, endpoint);
        }
    }

    fn endpoint(&self, number: u32) -> Option<u8> {
        let at = number.checked_sub(self.first)?;
        self.all.get(at as usize).map(|(_, endpoint)| *endpoint)
    }
}

impl<D: Driver, S: Script> Requester<D, S> {
    /// Sends the requests of the step of a user that was due at `due_ns`.
    pub(crate) fn begin_group<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        due_ns: u64,
        now_ns: u64,
    ) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.activity = Activity::Forked;
        let waiting = (0..self.script.parallel(user)).collect();
        let (running, is_cut, rests) = (Vec::new(), false, false);
        one.rare.set_group(Group { due_ns, waiting, running, is_cut, rests });
        self.begin_waiting(core, user, now_ns);
    }

    /// Sends the requests of a group that may be sent, and ends the group after the last.
    fn begin_waiting<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        loop {
            let is_over = self.stage != Stage::Running;
            let per_host = self.config.connections_per_host.max(1);
            let Some(group) = self.users.get_mut(user as usize).and_then(|one| one.rare.group())
            else {
                // It has ended in the meantime.
                return;
            };
            if is_over && !group.waiting.is_empty() {
                group.waiting.clear();
                group.is_cut = true;
            }
            let (script, branches) = (&self.script, &self.branches);
            let has_room = |nth: &u8| {
                let to = script.endpoint(user, *nth);
                let same = |branch: &&u32| branches.endpoint(**branch) == Some(to);
                group.running.iter().filter(same).count() < per_host
            };
            let Some(at) = group.waiting.iter().position(has_room) else {
                if group.running.is_empty() {
                    self.end_group(core, user, now_ns);
                }
                return;
            };
            let (nth, due_ns) = (group.waiting.remove(at), group.due_ns);
            let branch = self.take_branch(core, user, nth, now_ns);
            let failure = self.script.fork(user, branch, nth, now_ns);
            if let Some(one) = self.users.get_mut(branch as usize) {
                one.refused = failure;
            }
            self.send(core, branch, due_ns, now_ns);
        }
    }

    /// Takes a free branch for a request of a user, or makes one, with a connection of the user to its
    /// target if there is one.
    fn take_branch<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        nth: u8,
        now_ns: u64,
    ) -> u32 {
        let endpoint = self.script.endpoint(user, nth);
        let branch = self.branches.free.pop().unwrap_or_else(|| {
            let number = self.branches.first + self.branches.all.len() as u32;
            self.branches.all.push((user, endpoint));
            if self.users.len() == self.users.capacity() {
                self.users.reserve_exact(GROWTH_MIN.max(self.users.len() / 8));
            }
            self.users.push(User::new());
            number
        });
        self.branches.set(branch, user, endpoint);
        if let Some(group) = self.users.get_mut(user as usize).and_then(|one| one.rare.group()) {
            group.running.push(branch);
        }
        Self::lend_link(core, &mut self.users, &self.branches, branch, endpoint);
        if let Some(one) = self.users.get_mut(branch as usize) {
            one.use_link(endpoint, &self.config, now_ns).into_iter().for_each(|id| core.abort(id));
        }
        branch
    }

    /// Gives a branch a connection of its user to a target, if there is one.
    pub(crate) fn lend_link<Y: Sys>(
        core: &mut Core<Y, Self>,
        users: &mut [User<D::State>],
        branches: &Branches,
        branch: u32,
        endpoint: u8,
    ) {
        let Some(user) = branches.user(branch) else { return };
        let link = users.get_mut(user as usize).and_then(|one| one.lend(endpoint));
        let (Some(link), Some(one)) = (link, users.get_mut(branch as usize)) else { return };
        if let Some(socket) = link.conn.get().and_then(|id| core.user_mut(id)) {
            socket.user = branch;
        }
        one.keep(link);
    }

    /// Ends a branch whose request has ended, and goes on with its group.
    pub(crate) fn end_branch<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        branch: u32,
        user: u32,
        now_ns: u64,
    ) {
        self.set(branch, Activity::Over);
        self.return_links(core, branch, user);
        self.branches.free.push(branch);
        if let Some(group) = self.users.get_mut(user as usize).and_then(|one| one.rare.group()) {
            group.running.retain(|one| *one != branch);
        }
        self.begin_waiting(core, user, now_ns);
    }

    /// Gives the connections of a branch back to its user.
    fn return_links<Y: Sys>(&mut self, core: &mut Core<Y, Self>, branch: u32, user: u32) {
        let Some(one) = self.users.get_mut(branch as usize) else {
            return invariant::broken("each branch is in the table of users");
        };
        let active = std::mem::take(&mut one.link);
        let links = one.rare.take_links().into_iter().chain([active]);
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let keeps = !matches!(one.activity, Activity::Over | Activity::Parked);
        for mut link in links {
            let Some(id) = link.conn.get() else { continue };
            if !keeps {
                link.take().into_iter().for_each(|id| core.abort(id));
                continue;
            }
            if let Some(socket) = core.user_mut(id) {
                socket.user = user;
            }
            one.keep(link);
        }
        let mut closed = Vec::new();
        one.take_surplus(&self.config, &mut closed);
        for id in closed {
            self.metrics.counts.closed_surplus.add(1);
            core.abort(id);
        }
    }

    /// Ends a group, all of whose requests have ended, and goes on with its user.
    fn end_group<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let Some(group) = one.rare.take_group() else { return };
        let is_busy = one.activity == Activity::Forked;
        if is_busy {
            one.activity = Activity::Busy;
        }
        self.script.join(user, !group.is_cut);
        if is_busy && group.rests {
            self.sleep(user, now_ns + Requests::CONNECT_REST.as_nanos() as u64);
        } else if is_busy {
            self.advance(core, user, now_ns);
        }
    }

    /// Suspends a user after a failed connect; of a branch, the user when its group has ended.
    pub(crate) fn rest<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let Some(owner) = self.branches.user(user) else {
            return self.sleep(user, now_ns + Requests::CONNECT_REST.as_nanos() as u64);
        };
        if let Some(group) = self.users.get_mut(owner as usize).and_then(|one| one.rare.group()) {
            group.rests = true;
        }
        self.end_branch(core, user, owner, now_ns);
    }
}
