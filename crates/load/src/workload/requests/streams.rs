//! Connections with streams, which users share: a block of users has one to each target, on which each has
//! a stream at a time. Nothing of this is compiled for drivers without [`Driver::STREAMS`].

use std::collections::VecDeque;

use engine::invariant;
use engine::{Closed, ConnId, Core, Sent, Sys};
use wire::http2::ErrorCode;

use crate::outcome::failure::Failure;
use crate::transport::driver::{CompleteAnswer, Driver, Opened, StreamEvent};
use crate::workload::requests::exchange::{ConnectStart, start_connect};
use crate::workload::requests::link::StreamId;
use crate::workload::requests::pool::Shared;
use crate::workload::requests::requester::{Requester, Stage};
use crate::workload::requests::script::Script;
use crate::workload::requests::user::Socket;

/// Places of an empty queue of users that are kept.
const WAITING_KEPT: usize = 128;

impl<D: Driver, S: Script> Requester<D, S> {
    /// The block of a user or of a branch.
    pub(crate) fn block(&self, user: u32) -> u32 {
        self.branches.user(user).unwrap_or(user) / self.part.block.max(1)
    }

    /// Sends the latest request of a user, or queues it until there is a stream for it.
    pub(crate) fn dispatch_stream<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        now_ns: u64,
    ) {
        let wants = self.script.wants(user);
        let block = self.block(user);
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let request = match one.rare.redirect() {
            Some(redirect) => redirect,
            None => self.script.request(user),
        };
        let (endpoint, is_head) = (request.endpoint(), request.is_head());
        if let Some(flight) = one.flights.front_mut() {
            flight.is_head = is_head;
            flight.times.first_ns = 0;
        }
        one.link.endpoint = endpoint;
        one.awaited.begin(wants, self.config.redirects > 0, is_head);
        let at = self.pool.find(block, endpoint).unwrap_or_else(|| {
            let secure = self.targets.endpoint(endpoint).is_some_and(|target| target.tls);
            self.pool.add(Shared {
                conn: None,
                opened: false,
                is_leaving: false,
                is_expelled: false,
                is_held: false,
                endpoint,
                secure,
                block,
                opener: user,
                streams: 0,
                waiting: VecDeque::new(),
                state: D::State::default(),
            })
        });
        let Some(shared) = self.pool.get(at) else {
            return invariant::broken("a shared connection is in the table");
        };
        shared.waiting.push_back(user);
        match (shared.opened, shared.conn) {
            (true, _) => self.open_waiting(core, at, now_ns),
            (false, None) if shared.waiting.len() == 1 => {
                shared.opener = user;
                self.connect_shared(core, at, now_ns);
            }
            _ => {}
        }
    }

    /// Connects again for a user, after a pause.
    pub(crate) fn connect_for<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        let block = self.block(user);
        let Some(endpoint) = self.users.get(user as usize).map(|one| one.link.endpoint) else {
            return invariant::broken("each user number is in the table of users");
        };
        if let Some(at) = self.pool.find(block, endpoint)
            && let Some(shared) = self.pool.get(at)
            && shared.conn.is_none()
            && !shared.waiting.is_empty()
        {
            shared.opener = user;
            self.connect_shared(core, at, now_ns);
        }
    }

    fn connect_shared<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: u32, now_ns: u64) {
        self.switch_to(core, at);
        let Some(shared) = self.pool.get(at) else { return };
        let (opener, endpoint, block) = (shared.opener, shared.endpoint, shared.block);
        let Some(route) = self.route(core, endpoint) else { return self.wait_for_lookup(opener) };
        self.arm_connect(opener, now_ns);
        self.begin_tunnel(opener, &route);
        let Some(shared) = self.pool.get(at) else { return };
        let of_run = self.part.block_number(block.into());
        let is_free =
            usize::from(endpoint) >= self.config.endpoints.len() && self.config.sources.is_empty();
        shared.state = D::State::default();
        let begun = match route.target() {
            Err(failure) => Err(failure),
            Ok((target, instead)) => {
                self.driver.outgoing().into_iter().for_each(Vec::clear);
                self.driver.start(&mut shared.state);
                let first = self.driver.outgoing().map(std::mem::take).unwrap_or_default();
                let (sources, changes) = (&self.sources, &mut self.changes);
                let first = instead.unwrap_or(&first);
                start_connect(core, sources, changes, (of_run, is_free), target, first)
            }
        };
        let (id, is_sent) = match begun {
            Ok(ConnectStart::Later) => return self.connect_later(opener, now_ns),
            Ok(ConnectStart::Connecting(id, is_sent)) => (id, is_sent),
            Err(failure) => {
                self.metrics.counts.connects_failed.add(1);
                return self.fail_shared(core, at, failure, now_ns);
            }
        };
        if let Some(shared) = self.pool.get(at) {
            shared.conn = Some(id);
        }
        if let Some(socket) = core.user_mut(id) {
            *socket = Socket { user: at, opened: false };
        }
        let tunnel = self.users.get_mut(opener as usize).and_then(|one| one.rare.tunnel());
        match tunnel {
            Some(tunnel) => tunnel.is_requested = is_sent,
            None if is_sent => self.opened_shared(core, at, id, now_ns),
            None => {}
        }
    }

    fn opened_shared<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        at: u32,
        id: ConnId,
        now_ns: u64,
    ) {
        if let Some(shared) = self.pool.get(at) {
            shared.opened = true;
        }
        if let Some(socket) = core.user_mut(id) {
            socket.opened = true;
        }
        self.metrics.counts.opened.add(1);
        self.metrics.counts.open.add(1);
        self.open_waiting(core, at, now_ns);
    }

    /// Whether a user opens a tunnel.
    fn has_tunnel(&self, user: u32) -> bool {
        self.users.get(user as usize).is_some_and(|one| one.rare.has_tunnel())
    }

    /// The shared connection of an engine connection.
    pub(crate) fn shared_of<Y: Sys>(&mut self, core: &Core<Y, Self>, id: ConnId) -> Option<u32> {
        let at = core.user(id)?.user;
        self.pool.get(at).filter(|shared| shared.conn == Some(id)).map(|_| at)
    }

    /// Handles a connect that did not complete at once, and a tunnel that has opened.
    pub(crate) fn on_stream_connected<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId) {
        let Some(at) = self.shared_of(core, id) else { return core.abort(id) };
        let Some(opener) = self.pool.get(at).map(|shared| shared.opener) else { return };
        if self.has_tunnel(opener) && !self.tunnel_connected(core, opener, id) {
            return;
        }
        self.switch_to(core, at);
        let Some(shared) = self.pool.get(at) else { return };
        shared.state = D::State::default();
        self.driver.outgoing().into_iter().for_each(Vec::clear);
        self.driver.start(&mut shared.state);
        self.opened_shared(core, at, id, core.clock_ns());
    }

    /// What the driver has to send from now on is for this connection; what it had for another is sent.
    pub(crate) fn switch_to<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: u32) {
        let before = std::mem::replace(&mut self.pool.current, at);
        if before == at {
            return;
        }
        match self.pool.connection(before).map(|(id, _)| id) {
            Some(id) => self.flush_streams(core, before, id),
            None => self.driver.outgoing().into_iter().for_each(Vec::clear),
        }
    }

    /// Begins streams for requests that wait, and sends what the driver has to send.
    fn open_waiting<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: u32, now_ns: u64) {
        let Some(id) = self.pool.get(at).and_then(|shared| shared.conn) else { return };
        self.switch_to(core, at);
        while let Some(shared) = self.pool.get(at).filter(|shared| !shared.is_leaving) {
            let Some(user) = shared.waiting.front().copied() else { break };
            let Some(one) = self.users.get_mut(user as usize) else {
                return invariant::broken("each user number is in the table of users");
            };
            let request = match one.rare.redirect() {
                Some(redirect) => redirect,
                None => self.script.request(user),
            };
            let secure = shared.secure;
            match self.driver.open(&mut shared.state, request, user, secure) {
                Opened::Stream(stream) => {
                    shared.waiting.pop_front();
                    shared.streams += 1;
                    one.link.conn.set(id);
                    self.sent(user, 0, StreamId::of(stream), now_ns);
                    if D::MESSAGES {
                        self.begin_conversation(core, (at, stream), user, now_ns);
                    }
                }
                Opened::Later => break,
                Opened::Never => {
                    self.flush_streams(core, at, id);
                    self.leave_shared(core, at, now_ns);
                    return self.close_left(core, at);
                }
                Opened::Invalid => {
                    shared.waiting.pop_front();
                    self.fail(core, user, Failure::Unexpected, now_ns);
                }
            }
        }
        if let Some(shared) = self.pool.get(at)
            && shared.waiting.is_empty()
            && shared.waiting.capacity() > WAITING_KEPT
        {
            // All users waited for the connect.
            shared.waiting = VecDeque::new();
        }
        self.flush_streams(core, at, id);
    }

    /// Sends what the driver has to send on a connection. If that has ended, it is reported later.
    pub(crate) fn flush_streams<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: u32, id: ConnId) {
        let Some(shared) = self.pool.get(at) else { return };
        if let Some(outgoing) = self.driver.outgoing().filter(|outgoing| !outgoing.is_empty()) {
            let sent = core.write(id, outgoing);
            outgoing.clear();
            if sent == Sent::Sent {
                self.driver.sent(&mut shared.state);
            }
        }
        if self.driver.is_held(&shared.state) && !std::mem::replace(&mut shared.is_held, true) {
            self.held.push(at);
        }
    }

    /// Sends more of the bodies that were held back. The engine reports only queues that become empty: if the kernel
    /// took everything at once there is no event. Returns whether more is held back.
    pub(crate) fn send_held<Y: Sys>(&mut self, core: &mut Core<Y, Self>) -> bool {
        for at in std::mem::take(&mut self.held) {
            let Some(shared) = self.pool.get(at) else { continue };
            shared.is_held = false;
            if let Some(id) = shared.conn.filter(|id| core.queued(*id) == 0) {
                self.send_more(core, at, id);
            }
        }
        !self.held.is_empty()
    }

    /// Sends more on a connection of which the kernel has taken all that waited.
    fn send_more<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: u32, id: ConnId) {
        self.switch_to(core, at);
        if let Some(shared) = self.pool.get(at) {
            self.driver.taken(&mut shared.state);
        }
        self.flush_streams(core, at, id);
    }

    /// Handles a connection whose queue in this process is empty again.
    pub(crate) fn on_stream_drained<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId) {
        if let Some(at) = self.shared_of(core, id) {
            self.send_more(core, at, id);
            if D::MESSAGES {
                self.resume_connection(core, at, core.clock_ns());
                self.flush_streams(core, at, id);
            }
        }
    }

    pub(crate) fn on_stream_data<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        id: ConnId,
        data: &[u8],
    ) {
        let now_ns = core.clock_ns();
        let Some(at) = self.shared_of(core, id) else { return core.abort(id) };
        let Some(shared) = self.pool.get(at) else { return };
        if !shared.opened {
            let opener = shared.opener;
            if self.has_tunnel(opener) {
                return self.tunnel_received(core, opener, id, data);
            }
        }
        let mut rest = data;
        loop {
            if self.stage == Stage::Over {
                // What was awaited is given up and counted.
                return;
            }
            self.switch_to(core, at);
            let Some(shared) = self.pool.get(at).filter(|shared| shared.conn == Some(id)) else {
                return;
            };
            let (used, event) = self.driver.receive_streams(&mut shared.state, rest);
            rest = rest.get(used..).unwrap_or_default();
            match event {
                StreamEvent::More => break,
                StreamEvent::Other => {}
                StreamEvent::Head(user, status, is_end) => {
                    self.stream_head(user, status, now_ns);
                    if is_end {
                        self.stream_complete(core, at, user, now_ns);
                    }
                }
                StreamEvent::Body(user, bytes, is_end) => {
                    if let Some(one) = self.users.get_mut(user as usize) {
                        one.awaited.body_bytes += bytes.len() as u64;
                        one.awaited.body(bytes);
                    }
                    if D::MESSAGES {
                        self.stream_messages(core, (at, id), user, (bytes, is_end), now_ns);
                    } else if is_end {
                        self.stream_complete(core, at, user, now_ns);
                    }
                }
                StreamEvent::Complete(user) => self.stream_complete(core, at, user, now_ns),
                StreamEvent::Trailers(user, status) => {
                    self.stream_trailers(user, status, now_ns);
                    self.stream_complete(core, at, user, now_ns);
                }
                StreamEvent::Failed(user, failure) => {
                    if self.free_stream(at, user) {
                        self.fail(core, user, failure, now_ns);
                    }
                }
                StreamEvent::Unprocessed(user) => self.repeat_stream(core, at, user, now_ns),
                StreamEvent::Writable(writable) if D::MESSAGES => {
                    self.resume_messages(core, at, writable, now_ns);
                }
                StreamEvent::Writable(_) => {}
                StreamEvent::Leaving(code) => {
                    let debug = self.driver.leaving_debug(&shared.state);
                    self.metrics.goaways.note(code, debug);
                    shared.is_expelled |= code != ErrorCode::NO_ERROR;
                    self.leave_shared(core, at, now_ns);
                }
                StreamEvent::Broken(failure) => {
                    // It says why, if the server still reads.
                    self.flush_streams(core, at, id);
                    core.end_after(id, Closed::ByUs);
                    return self.ended_shared(core, at, failure, now_ns);
                }
            }
        }
        self.open_waiting(core, at, now_ns);
        self.close_left(core, at);
    }

    fn stream_head(&mut self, user: u32, status: u16, now_ns: u64) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if let Some(flight) = one.flights.front_mut().filter(|flight| flight.times.first_ns == 0) {
            flight.times.first_ns = now_ns;
        }
        one.awaited.status = status;
        if one.awaited.keeps_head(status) {
            one.awaited.head(status, self.driver.head());
        }
    }

    /// Frees the stream of a user; false if it has none on this connection.
    pub(crate) fn free_stream(&mut self, at: u32, user: u32) -> bool {
        let Some(shared) = self.pool.get(at) else { return false };
        let conn = shared.conn;
        let Some(one) = self.users.get_mut(user as usize) else { return false };
        if one.flights.is_empty() || conn.is_none_or(|id| !one.link.conn.is(id)) {
            invariant::broken("a stream has a user with a request");
            return false;
        }
        one.link.conn.take();
        shared.streams = shared.streams.saturating_sub(1);
        true
    }

    pub(crate) fn stream_complete<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        at: u32,
        user: u32,
        now_ns: u64,
    ) {
        if !self.free_stream(at, user) {
            return;
        }
        if self.config.new_connections {
            self.pool.leave(at);
        }
        let Some(one) = self.users.get_mut(user as usize) else { return };
        let (status, body_bytes) = (one.awaited.status, one.awaited.body_bytes);
        let whole = CompleteAnswer { used: 0, status, keep: true, body_bytes };
        self.complete(core, user, whole, false, now_ns);
    }

    /// Handles GOAWAY: further requests go to another connection (RFC 9113 section 6.8).
    fn leave_shared<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: u32, now_ns: u64) {
        self.pool.leave(at);
        let waiting = self.pool.get(at).map(|shared| std::mem::take(&mut shared.waiting));
        for user in waiting.unwrap_or_default() {
            self.dispatch_stream(core, user, now_ns);
        }
    }

    /// The users of a block, and their branches, whose request is on a connection.
    fn users_on(&self, block: u32, id: ConnId) -> Vec<u32> {
        let each = self.part.block.max(1);
        let first = block.saturating_mul(each);
        let own = first..first.saturating_add(each).min(self.part.users);
        let branches = (self.part.users..self.users.len() as u32)
            .filter(|branch| self.block(*branch) == block);
        let is_on =
            |user: &u32| self.users.get(*user as usize).is_some_and(|one| one.link.conn.is(id));
        own.chain(branches).filter(is_on).collect()
    }

    /// Closes a connection that takes no further requests, once the last has ended.
    fn close_left<Y: Sys>(&mut self, core: &mut Core<Y, Self>, at: u32) {
        let Some(shared) = self.pool.get(at) else { return };
        if shared.is_leaving
            && shared.streams == 0
            && let Some(id) = shared.conn.take()
        {
            self.pool.free.push(at);
            core.end_after(id, Closed::ByUs);
            if D::MESSAGES {
                self.forget_blocked(at);
            }
        }
    }

    /// Aborts a connection and fails all requests on it and those that wait for it.
    pub(crate) fn fail_shared<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        at: u32,
        failure: Failure,
        now_ns: u64,
    ) {
        let Some(id) = self.pool.get(at).map(|shared| shared.conn) else { return };
        id.into_iter().for_each(|id| core.abort(id));
        self.ended_shared(core, at, failure, now_ns);
    }

    /// Fails all requests on a connection that has ended and those that wait for it.
    fn ended_shared<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        at: u32,
        failure: Failure,
        now_ns: u64,
    ) {
        self.pool.leave(at);
        let Some(shared) = self.pool.get(at) else { return };
        let (block, id) = (shared.block, shared.conn.take());
        let waiting = std::mem::take(&mut shared.waiting);
        shared.streams = 0;
        let mut users = id.map(|id| self.users_on(block, id)).unwrap_or_default();
        self.pool.free.push(at);
        if D::MESSAGES {
            self.forget_blocked(at);
        }
        users.extend(waiting);
        for user in users {
            let Some(one) = self.users.get_mut(user as usize) else { continue };
            one.link.conn.take();
            one.rare.set_tunnel(None);
            if !one.flights.is_empty() {
                self.fail(core, user, failure, now_ns);
            }
        }
    }

    /// Fails the connection of the tunnel that a user opens.
    pub(crate) fn fail_tunnel<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        id: ConnId,
        failure: Failure,
        now_ns: u64,
    ) {
        if let Some(at) = self.shared_of(core, id) {
            self.fail_shared(core, at, failure, now_ns);
        }
    }

    /// Cancels the stream of a user.
    pub(crate) fn cancel_stream<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        id: ConnId,
    ) {
        let Some(at) = self.shared_of(core, id) else { return };
        self.switch_to(core, at);
        let flight = self.users.get(user as usize).and_then(|one| one.flights.front());
        let Some(stream) = flight.map(|flight| flight.stream.number()) else { return };
        if let Some(shared) = self.pool.get(at) {
            self.driver.cancel(&mut shared.state, stream);
        }
        self.flush_streams(core, at, id);
        self.free_stream(at, user);
        self.close_left(core, at);
    }

    pub(crate) fn on_stream_closed<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        id: ConnId,
        why: Closed,
    ) {
        let opened = core.user(id).is_some_and(|socket| socket.opened);
        if opened {
            self.metrics.counts.open.sub(1);
            self.metrics.counts.ended.add(1);
        }
        // One that we gave up is counted already.
        let Some(at) = self.shared_of(core, id) else { return };
        self.metrics.counts.connects_failed.add(u64::from(!opened));
        let Some(shared) = self.pool.get(at) else { return };
        if opened && shared.streams == 0 && shared.waiting.is_empty() {
            self.metrics.counts.closed_idle.add(1);
        }
        let (secure, opener) = (shared.secure, shared.opener);
        let failure = match Failure::of_closed(why, opened) {
            Failure::Closed | Failure::Reset if shared.is_expelled => Failure::GoAway,
            failure if opened || !secure || self.has_tunnel(opener) => failure,
            failure => failure.in_tls(why),
        };
        self.ended_shared(core, at, failure, core.clock_ns());
    }

    /// Closes the connections of a block whose users are all done or parked.
    pub(crate) fn close_block<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32) {
        let (block, each) = (self.block(user), self.part.block.max(1));
        let first = block.saturating_mul(each);
        let end = first.saturating_add(each).min(self.part.users);
        // Users leave in their order: the next one tells that there are more.
        let others = (user.saturating_add(1).min(end)..end).chain(first..end);
        let needs = |user: u32| self.users.get(user as usize).is_some_and(|one| !one.is_away());
        if others.into_iter().any(needs) {
            return;
        }
        let usable = self.pool.usable.get_mut(block as usize).map(std::mem::take);
        for at in usable.unwrap_or_default() {
            self.pool.leave(at);
            self.close_left(core, at);
        }
    }
}
