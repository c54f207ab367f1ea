//! [`Link`]: one connection of a user to one target. A user keeps one per target, and more while it sends
//! several requests to one at the same time.

use std::time::Duration;

use engine::{Closed, ConnId, Core, Sys};

use crate::transport::driver::Driver;
use crate::workload::requests::config::Requests;
use crate::workload::requests::request::Request;
use crate::workload::requests::requester::Requester;
use crate::workload::requests::script::{Script, SocketEnd};
use crate::workload::requests::user::User;

/// A request on a connection, by which its answer is found. In HTTP/1.1 it is the position in the
/// pipeline (RFC 9112 section 9.3.2), in HTTP/2 the number of its stream (RFC 9113 section 5.1.1).
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct StreamId(u32);

impl StreamId {
    /// The first request of a connection.
    pub(crate) const FIRST: StreamId = StreamId(0);

    /// A stream of a connection that users share.
    pub(crate) fn of(number: u32) -> StreamId {
        StreamId(number)
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// A connection or none, in 8 bytes instead of the 16 of an `Option`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct MaybeConn(u64);

impl MaybeConn {
    /// The last connection that the last of all possible workers could have.
    const NONE: MaybeConn = MaybeConn(u64::MAX);

    #[inline]
    pub(crate) fn get(self) -> Option<ConnId> {
        (self != Self::NONE).then(|| ConnId::from_u64(self.0))
    }

    #[inline]
    pub(crate) fn is(self, id: ConnId) -> bool {
        self.0 == id.as_u64()
    }

    #[inline]
    pub(crate) fn set(&mut self, id: ConnId) {
        self.0 = id.as_u64();
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<ConnId> {
        std::mem::take(self).get()
    }
}

impl Default for MaybeConn {
    fn default() -> Self {
        MaybeConn::NONE
    }
}

/// A connection, open or connecting; or none, before the first request.
#[derive(Default, Debug)]
pub(crate) struct Link<C> {
    pub(crate) conn: MaybeConn,
    pub(crate) opened: bool,
    /// The number of its target.
    pub(crate) endpoint: u8,
    /// 0 for requests; others are WebSockets.
    pub(crate) slot: u8,
    /// Requests that were sent on it, and those that were answered; both wrap, far above the most in flight.
    asked: u16,
    answered: u16,
    /// When its connect began, or later the last answer arrived.
    pub(crate) since_ns: u64,
    /// The state of its driver.
    pub(crate) state: C,
}

impl<C: Default> Link<C> {
    /// A link to a target, not connected.
    pub(crate) fn new(slot: u8, endpoint: u8) -> Link<C> {
        Link { slot, endpoint, ..Link::default() }
    }

    /// Whether it is a WebSocket.
    pub(crate) fn is_socket(&self) -> bool {
        self.slot > 0
    }

    /// Resets what belongs to a connection, as a new one begins.
    #[inline]
    pub(crate) fn restart(&mut self) {
        (self.asked, self.answered, self.state) = (0, 0, C::default());
    }

    /// Encodes a request that is sent next. Returns its stream.
    #[inline]
    pub(crate) fn ask<'a, D: Driver<State = C>>(
        &mut self,
        driver: &'a mut D,
        request: &'a Request,
    ) -> (StreamId, &'a [u8]) {
        let stream = StreamId(u32::from(self.asked));
        self.asked = self.asked.wrapping_add(1);
        (stream, driver.encode(&mut self.state, request))
    }

    /// The stream whose answer is received: answers come in the order of requests.
    #[inline]
    pub(crate) fn answering(&self) -> StreamId {
        StreamId(u32::from(self.answered))
    }

    /// Notes a complete answer. Returns its stream.
    #[inline]
    pub(crate) fn answered(&mut self, now_ns: u64) -> StreamId {
        let stream = self.answering();
        self.answered = self.answered.wrapping_add(1);
        self.since_ns = now_ns;
        stream
    }

    /// Notes that no answer is awaited any more, on a connection that stays open.
    pub(crate) fn give_up(&mut self) {
        self.answered = self.asked;
    }

    /// Whether its last answer arrived longer ago.
    fn is_older(&self, most: Duration, now_ns: u64) -> bool {
        now_ns > self.since_ns.saturating_add(most.as_nanos() as u64)
    }

    /// Forgets the connection, which is closed or will be. Returns it.
    pub(crate) fn take(&mut self) -> Option<ConnId> {
        self.opened = false;
        self.conn.take()
    }
}

impl<C: Default> User<C> {
    /// Makes a WebSocket, or the HTTP connection used last, the active one.
    pub(crate) fn activate(&mut self, slot: u8) {
        if self.link.slot != slot {
            let at = self.rare.links().iter().rposition(|link| link.slot == slot);
            let next = at.map(|at| self.rare.remove_link(at)).unwrap_or_else(|| Link::new(slot, 0));
            self.switch(next);
        }
    }

    /// Makes a link the active one, and keeps the one before if it is connected.
    pub(crate) fn switch(&mut self, next: Link<C>) {
        let before = std::mem::replace(&mut self.link, next);
        if before.conn.get().is_some() {
            self.keep(before);
        }
    }

    /// Keeps a link that is not the active one.
    pub(crate) fn keep(&mut self, link: Link<C>) {
        self.rare.push_link(link);
    }

    /// Makes the HTTP connection to a target the active one: a kept one, or one that is to be opened.
    /// Returns those to close, used longest ago, if they are to more than [`Requests::hosts`] targets.
    pub(crate) fn use_link(&mut self, endpoint: u8, config: &Requests, now_ns: u64) -> Vec<ConnId> {
        if self.link.is_socket() {
            // A socket belongs to one server.
            return self.link.take().into_iter().collect();
        }
        let mut next = self.take_kept(endpoint).unwrap_or_else(|| Link::new(0, endpoint));
        let mut closed = Vec::new();
        if config.reuse_within.is_some_and(|most| next.is_older(most, now_ns)) {
            closed.extend(next.take());
        }
        self.switch(next);
        self.take_surplus(config, &mut closed);
        closed
    }

    /// Takes the HTTP connection to a target that was used last, unless it is the active one.
    fn take_kept(&mut self, endpoint: u8) -> Option<Link<C>> {
        let is_it = |link: &Link<C>| link.slot == 0 && link.endpoint == endpoint;
        let at = self.rare.links().iter().rposition(is_it)?;
        Some(self.rare.remove_link(at))
    }

    /// Takes an open HTTP connection to a target, of a user that sends nothing on it.
    pub(crate) fn lend(&mut self, endpoint: u8) -> Option<Link<C>> {
        let link = &self.link;
        if link.slot == 0 && link.endpoint == endpoint && link.conn.get().is_some() {
            return Some(std::mem::take(&mut self.link));
        }
        self.take_kept(endpoint)
    }

    /// Takes the HTTP connections used longest ago, if they are to more than [`Requests::hosts`] targets.
    pub(crate) fn take_surplus(&mut self, config: &Requests, closed: &mut Vec<ConnId>) {
        while self.targets() > config.hosts
            && let Some(at) = self.rare.links().iter().position(|link| link.slot == 0)
        {
            closed.extend(self.rare.remove_link(at).take());
        }
    }

    /// The number of targets of its HTTP connections.
    fn targets(&self) -> usize {
        let all = || self.rare.links().iter().chain([&self.link]).filter(|link| link.slot == 0);
        let is_first = |(at, link): &(usize, &Link<C>)| {
            !all().take(*at).any(|before| before.endpoint == link.endpoint)
        };
        all().enumerate().filter(is_first).count()
    }
}

impl<D: Driver, S: Script> Requester<D, S> {
    /// The user of a connection that is not the active one, and its place in [`User::rare`].
    pub(crate) fn kept<Y: Sys>(&self, core: &Core<Y, Self>, id: ConnId) -> Option<(u32, usize)> {
        let user = core.user(id)?.user;
        let one = self.users.get(user as usize)?;
        Some((user, one.rare.links().iter().position(|link| link.conn.is(id))?))
    }

    /// Closes a connection on which data arrived although nothing was asked there.
    pub(crate) fn on_kept_data<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId) {
        if let Some((user, at)) = self.kept(core, id)
            && let Some(one) = self.users.get_mut(user as usize)
        {
            self.metrics.counts.unasked.add(1);
            one.rare.remove_link(at);
            core.abort(id);
        }
    }

    /// Handles the end of a connection that is not the active one.
    pub(crate) fn on_kept_closed<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId) {
        let Some((user, at)) = self.kept(core, id) else { return };
        let Some(one) = self.users.get_mut(user as usize) else { return };
        let link = one.rare.remove_link(at);
        self.metrics.counts.closed_idle.add(1);
        if D::PUSHES && link.is_socket() {
            self.script.socket_ended(user, link.slot, SocketEnd::Lost);
        }
    }

    /// Closes the connections of a user that are not the active one.
    fn close_kept<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32) {
        let Some(one) = self.users.get_mut(user as usize) else { return };
        for mut link in one.rare.take_links() {
            let Some(id) = link.conn.get() else { continue };
            if !link.is_socket() || !link.opened || self.driver.is_reset(&link.state) {
                core.abort(id);
                continue;
            }
            let bytes = self.driver.close(&mut link.state);
            if !bytes.is_empty() {
                core.write(id, bytes);
            }
            core.end_after(id, Closed::ByUs);
        }
    }

    /// Closes all connections of a user without requests in flight.
    pub(crate) fn close_all<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32) {
        if D::STREAMS {
            return self.close_block(core, user);
        }
        self.close_idle(core, user);
        let others = self.users.get(user as usize).is_some_and(|one| !one.rare.links().is_empty());
        if others {
            self.close_kept(core, user);
        }
    }
}
