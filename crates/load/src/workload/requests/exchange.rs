//! The connections of a [`Requester`]: connects, requests, answers and redirects. How requests fail is in
//! `failing.rs`.

use std::io::ErrorKind;

use engine::invariant;
use engine::{Closed, ConnId, Core, Sent, ServerFault, Sys};

use crate::outcome::failure::Failure;
use crate::transport::driver::{CompleteAnswer, Driver, Received};
use crate::transport::http2::of_reset;
use crate::transport::sources::Sources;
use crate::workload::requests::answer::Answer;
use crate::workload::requests::answer::header;
use crate::workload::requests::flights::{Flight, FlightTimes};
use crate::workload::requests::link::StreamId;
use crate::workload::requests::requester::Requester;
use crate::workload::requests::script::{Script, SocketEnd};
use crate::workload::requests::user::{Activity, Socket};

/// How a connect started.
pub(crate) enum ConnectStart {
    /// It is in progress; true if it is already connected and its first bytes are sent.
    Connecting(ConnId, bool),
    /// The queue of a UNIX socket is full.
    Later,
}

impl<D: Driver, S: Script> Requester<D, S> {
    /// Sends the request of a user that was due at `due_ns`.
    pub(crate) fn send<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        due_ns: u64,
        now_ns: u64,
    ) {
        if let Some(most) = self.config.reuse_within {
            self.close_unused(core, user, now_ns, most);
        }
        if self.script.parallel(user) > 0 {
            return self.begin_group(core, user, due_ns, now_ns);
        }
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.activity = Activity::Busy;
        one.hops = 0;
        let times = FlightTimes { due_ns, begun_ns: now_ns, ..FlightTimes::default() };
        if due_ns >= self.schedule.measure_ns {
            self.metrics.counts.begun.add(1);
        }
        if let Some(failure) = one.refused.take() {
            return self.refuse(core, user, failure, times);
        }
        one.flights.push_back(Flight { times, ..Flight::default() });
        self.in_flight += 1;
        self.script.begin(user, due_ns, now_ns);
        self.arm(user, now_ns, now_ns);
        self.dispatch(core, user, now_ns);
        self.fill(core, user, now_ns);
    }

    /// Fails a request that cannot be sent, when it is due.
    fn refuse<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        failure: Failure,
        times: FlightTimes,
    ) {
        let now_ns = times.begun_ns;
        self.judge(user, Err(failure), 0, times.until(now_ns));
        self.rest(core, user, now_ns);
    }

    /// Sends another request on a connection with pipelining.
    fn fill<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        if self.config.pipeline == 1 {
            return;
        }
        let Some(one) = self.users.get(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let room = one.flights.len() < self.config.pipeline as usize;
        if (one.link.opened || S::KEEPS) && one.activity == Activity::Busy && room {
            self.advance(core, user, now_ns);
        }
    }

    /// Sends the latest request of a user, and connects first if necessary.
    fn dispatch<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        if D::STREAMS {
            return self.dispatch_stream(core, user, now_ns);
        }
        if D::PUSHES && !self.choose(core, user, now_ns) {
            return;
        }
        let wants = self.script.wants(user);
        let Some(mut one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let redirect = one.rare.take_redirect();
        let request = match &redirect {
            Some(redirect) => redirect,
            None => self.script.request(user),
        };
        let (endpoint, is_head) = (request.endpoint(), request.is_head());
        let (first, latest) = (one.flights.len() == 1, one.flights.len().saturating_sub(1));
        if let Some(latest) = one.flights.get_mut(latest) {
            latest.is_head = is_head;
            // After a redirect the answer that counts begins later.
            latest.times.first_ns = 0;
        }
        if first {
            one.awaited.begin(wants, self.config.redirects > 0, is_head);
        }
        let has_others = one.link.conn.get().is_none() && !one.rare.links().is_empty();
        if first && (one.link.endpoint != endpoint || has_others) {
            Self::lend_link(core, &mut self.users, &self.branches, user, endpoint);
            let Some(again) = self.users.get_mut(user as usize) else { return };
            one = again;
            for id in one.use_link(endpoint, &self.config, now_ns) {
                self.metrics.counts.closed_surplus.add(1);
                core.abort(id);
            }
        }
        match one.link.conn.get().filter(|_| one.link.opened) {
            Some(id) => {
                let (stream, bytes) = one.link.ask(&mut self.driver, request);
                // A step that only waits sends nothing.
                let sent = match D::PUSHES && bytes.is_empty() {
                    true => Sent::Sent,
                    false => core.write(id, bytes),
                };
                one.rare.set_redirect(redirect);
                // A connection that drops a request has ended, which is reported later.
                if sent != Sent::Dropped {
                    let ends = D::PUSHES && self.driver.ends_our_side(&one.link.state);
                    self.sent(user, latest, stream, now_ns);
                    if ends {
                        core.finish_writing(id);
                    }
                }
            }
            // It is sent with those before it, once the connection is open.
            None if S::KEEPS && !first => {}
            None => {
                one.link.endpoint = endpoint;
                one.rare.set_redirect(redirect);
                self.connect(core, user, now_ns);
            }
        }
    }

    /// Notes that the nth oldest request of a user was passed to the kernel.
    #[inline]
    pub(crate) fn sent(&mut self, user: u32, nth: usize, on: StreamId, now_ns: u64) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let Some(Flight { times, stream, .. }) = one.flights.get_mut(nth) else {
            return invariant::broken("a request that was sent is in flight");
        };
        *stream = on;
        let counts = &self.metrics.counts;
        match one.hops {
            0 if times.due_ns >= self.schedule.measure_ns => counts.sent.add(1),
            0 => counts.warm_up_sent.add(1),
            _ => return counts.redirects.add(1),
        }
        times.sent_ns = now_ns;
        if D::MESSAGES && !D::STREAMS {
            self.begin_receiving(user);
        }
        if D::PUSHES {
            self.schedule_finish(user);
        }
    }

    pub(crate) fn connect<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, now_ns: u64) {
        if D::STREAMS {
            return self.connect_for(core, user, now_ns);
        }
        let Some(number) = self.users.get(user as usize).map(|one| one.link.endpoint) else {
            return invariant::broken("each user number is in the table of users");
        };
        let Some(route) = self.route(core, number) else { return self.wait_for_lookup(user) };
        self.arm_connect(user, now_ns);
        self.begin_tunnel(user, &route);
        let begun = match route.target() {
            Ok((target, instead)) => self.begin_connect(core, user, target, instead),
            Err(failure) => Err(failure),
        };
        match begun {
            Ok(ConnectStart::Later) => self.connect_later(user, now_ns),
            Ok(ConnectStart::Connecting(id, is_sent)) => {
                let Some(one) = self.users.get_mut(user as usize) else {
                    return invariant::broken("each user number is in the table of users");
                };
                one.link.conn.set(id);
                if let Some(socket) = core.user_mut(id) {
                    *socket = Socket { user, opened: false };
                }
                match one.rare.tunnel() {
                    Some(tunnel) => tunnel.is_requested = is_sent,
                    None if is_sent => {
                        self.opened(core, user, id);
                        self.sent(user, 0, StreamId::FIRST, now_ns);
                        self.send_queued(core, user, now_ns);
                    }
                    None => {}
                }
            }
            Err(failure) => {
                self.metrics.counts.connects_failed.add(1);
                self.fail(core, user, failure, now_ns);
            }
        }
    }

    /// Starts a connect with its first bytes: the user's request, or `instead`.
    fn begin_connect<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        target: u8,
        instead: Option<&[u8]>,
    ) -> Result<ConnectStart, Failure> {
        let of_user = self.part.number(self.branches.user(user).unwrap_or(user));
        let position = self.branches.position(user, of_user, &self.config);
        let Some(one) = self.users.get_mut(user as usize) else {
            invariant::broken("each user number is in the table of users");
            return Err(Failure::ConnectFailed);
        };
        let is_own = usize::from(one.link.endpoint) < self.config.endpoints.len();
        let first = match instead {
            Some(instead) => instead,
            None => {
                one.link.restart();
                let request = match one.rare.redirect() {
                    Some(redirect) => redirect,
                    None => self.script.unanswered(user, 0),
                };
                one.link.ask(&mut self.driver, request).1
            }
        };
        let is_free = !is_own && self.config.sources.is_empty();
        start_connect(core, &self.sources, &mut self.changes, (position, is_free), target, first)
    }

    fn opened<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32, id: ConnId) {
        if let Some(one) = self.users.get_mut(user as usize) {
            one.link.opened = true;
        }
        if let Some(socket) = core.user_mut(id) {
            socket.opened = true;
        }
        self.metrics.counts.opened.add(1);
        self.metrics.counts.open.add(1);
    }

    /// The user of a connection, if it is still the one in use.
    #[inline]
    pub(crate) fn user_of<Y: Sys>(&self, core: &Core<Y, Self>, id: ConnId) -> Option<u32> {
        let user = core.user(id)?.user;
        let one = self.users.get(user as usize)?;
        one.link.conn.is(id).then_some(user)
    }

    /// Handles a connect that did not complete at once.
    pub(crate) fn on_connected<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId) {
        let Some(user) = self.user_of(core, id) else {
            return core.abort(id);
        };
        let is_tunnel = self.users.get(user as usize).is_some_and(|one| one.rare.has_tunnel());
        if is_tunnel && !self.tunnel_connected(core, user, id) {
            return;
        }
        self.opened(core, user, id);
        let now_ns = core.clock_ns();
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.link.restart();
        let request = match one.rare.redirect() {
            Some(redirect) => redirect,
            None => self.script.unanswered(user, 0),
        };
        let (stream, bytes) = one.link.ask(&mut self.driver, request);
        if core.write(id, bytes) != Sent::Dropped {
            self.sent(user, 0, stream, now_ns);
            self.send_queued(core, user, now_ns);
        }
        self.fill(core, user, now_ns);
    }

    pub(crate) fn on_data<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId, data: &[u8]) {
        let now_ns = core.clock_ns();
        let mut rest = data;
        while !rest.is_empty() {
            let Some(user) = self.user_of(core, id) else { return self.on_kept_data(core, id) };
            let Some(one) = self.users.get_mut(user as usize) else {
                return invariant::broken("each user number is in the table of users");
            };
            if one.rare.has_tunnel() && !one.link.opened {
                return self.tunnel_received(core, user, id, rest);
            }
            let Some(flight) = one.flights.front_mut().filter(|flight| flight.times.sent_ns > 0)
            else {
                return self.unasked(core, user);
            };
            if flight.times.first_ns == 0 {
                flight.times.first_ns = now_ns;
            }
            let received = self.driver.receive(&mut one.link.state, rest, &mut one.awaited);
            if D::MESSAGES && self.count_messages(user, now_ns) && received == Received::More {
                return self.end_held(core, user, now_ns);
            }
            match received {
                Received::More => return,
                Received::Complete(whole) => {
                    rest = rest.get(whole.used..).unwrap_or_default();
                    self.complete(core, user, whole, !rest.is_empty(), now_ns);
                }
                Received::Failed(failure) => {
                    return self.fail_connection(core, user, failure, now_ns);
                }
                // Only returned by drivers that push.
                Received::Pushed(_) | Received::Closing(_) | Received::Ended(_) => return,
            }
        }
    }

    /// Handles a complete answer; `more` if bytes follow it.
    pub(crate) fn complete<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        whole: CompleteAnswer,
        more: bool,
        now_ns: u64,
    ) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let stream = match one.flights.front() {
            Some(flight) if D::STREAMS => flight.stream,
            _ => one.link.answered(now_ns),
        };
        if self.config.redirects > 0 && self.redirect(core, user, whole, more, now_ns) {
            return;
        }
        if self.config.pipeline == 1 && self.follows_up(user, whole, now_ns) {
            return self.follow(core, user, whole, more, now_ns);
        }
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let Some(flight) = one.take_flight(stream) else {
            return invariant::broken("an answer belongs to a request in flight");
        };
        self.in_flight -= 1;
        self.wake_pacing.answers += 1;
        one.rare.set_redirect(None);
        let times = flight.times.until(now_ns);
        self.judge(user, Ok(whole.status), whole.body_bytes, times);
        self.continue_user(core, user, whole, more, now_ns);
    }

    /// Continues with the connection and its user after an answer.
    fn continue_user<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        whole: CompleteAnswer,
        more: bool,
        now_ns: u64,
    ) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let waits = !one.flights.is_empty();
        if waits && whole.keep {
            let is_head = one.flights.front().is_some_and(|flight| flight.is_head);
            one.awaited.begin(self.script.wants(user), false, is_head);
        } else if waits && S::KEEPS {
            self.repeat(core, user, now_ns);
        } else if waits {
            // Requests pipelined behind it will not be answered.
            self.fail_connection(core, user, Failure::Closed, now_ns);
            return;
        } else if more {
            self.unasked(core, user);
        } else if !whole.keep || self.config.new_connections && !(D::PUSHES && one.on_socket()) {
            self.close_idle(core, user);
        }
        let at = self.users.get(user as usize).map(|one| one.activity);
        match at {
            Some(Activity::Busy) => self.advance(core, user, now_ns),
            // The user is done, or parked.
            Some(Activity::Over | Activity::Parked) => self.close_all(core, user),
            _ => {}
        }
    }

    /// Whether the script follows up an answer with another request.
    #[inline]
    fn follows_up(&mut self, user: u32, whole: CompleteAnswer, now_ns: u64) -> bool {
        let Some(one) = self.users.get(user as usize) else {
            invariant::broken("each user number is in the table of users");
            return false;
        };
        let Some(flight) = one.flights.front() else {
            invariant::broken("an answer belongs to a request in flight");
            return false;
        };
        let answer = Answer {
            outcome: Ok(whole.status),
            head: one.awaited.kept_head(),
            body: one.awaited.kept_body(),
            is_cut: false,
            body_bytes: whole.body_bytes,
            is_warm_up: flight.times.due_ns < self.schedule.measure_ns,
            times: flight.times.until(now_ns),
        };
        self.script.follows_up(user, &answer)
    }

    /// Sends the follow-up of the script as part of the same request.
    fn follow<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        whole: CompleteAnswer,
        more: bool,
        now_ns: u64,
    ) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.hops += 1;
        if more || !whole.keep || self.config.new_connections {
            one.link.take().into_iter().for_each(|id| core.abort(id));
        }
        self.dispatch(core, user, now_ns);
    }

    /// Follows a redirect. Returns false if the answer is none.
    fn redirect<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        whole: CompleteAnswer,
        more: bool,
        now_ns: u64,
    ) -> bool {
        let Some(one) = self.users.get_mut(user as usize) else {
            invariant::broken("each user number is in the table of users");
            return false;
        };
        if !matches!(whole.status, 301 | 302 | 303 | 307 | 308) {
            return false;
        }
        let Some(location) = header(one.awaited.kept_head(), "location") else { return false };
        let request = match one.rare.redirect() {
            Some(redirect) => redirect,
            None => self.script.request(user),
        };
        let next = request.redirected(whole.status, location, &self.targets);
        if more || !whole.keep || self.config.new_connections {
            one.link.take().into_iter().for_each(|id| core.abort(id));
        }
        let failure = match next {
            _ if one.hops >= self.config.redirects => Failure::TooManyRedirects,
            None => Failure::RedirectElsewhere,
            Some(next) => {
                one.hops += 1;
                one.rare.set_redirect(Some(Box::new(next)));
                self.dispatch(core, user, now_ns);
                return true;
            }
        };
        self.fail(core, user, failure, now_ns);
        true
    }

    /// Closes a connection on which the server sent unsolicited data, as further data cannot be trusted.
    fn unasked<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32) {
        self.metrics.counts.unasked.add(1);
        self.close_idle(core, user);
    }

    pub(crate) fn on_closed<Y: Sys>(&mut self, core: &mut Core<Y, Self>, id: ConnId, why: Closed) {
        let opened = core.user(id).is_some_and(|socket| socket.opened);
        if opened {
            self.metrics.counts.open.sub(1);
            self.metrics.counts.ended.add(1);
        }
        let Some(user) = self.user_of(core, id) else { return self.on_kept_closed(core, id) };
        let now_ns = core.clock_ns();
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if D::PUSHES && one.on_socket() && opened {
            self.script.socket_ended(user, one.link.slot, SocketEnd::Lost);
        }
        one.link.take();
        if !opened {
            self.metrics.counts.connects_failed.add(1);
            let mut failure = explained(core, id, why, false);
            let endpoint = self.targets.endpoint(one.link.endpoint);
            if !one.rare.has_tunnel() && endpoint.is_some_and(|endpoint| endpoint.tls) {
                failure = failure.in_tls(why);
            }
            return self.fail(core, user, failure, now_ns);
        }
        if one.flights.is_empty() {
            return self.metrics.counts.closed_idle.add(1);
        }
        if why != Closed::Gone {
            let failure = explained(core, id, why, true);
            return self.fail(core, user, failure, now_ns);
        }
        match self.driver.ended(&mut one.link.state) {
            Received::Complete(whole) => {
                self.complete(core, user, CompleteAnswer { keep: false, ..whole }, false, now_ns);
            }
            Received::Failed(failure) => self.fail(core, user, failure, now_ns),
            _ => self.fail(core, user, Failure::Closed, now_ns),
        }
    }
}

/// Why a connection failed; if it is a stream of HTTP/2, more is known.
fn explained<Y: Sys, D: Driver, S: Script>(
    core: &Core<Y, Requester<D, S>>,
    id: ConnId,
    why: Closed,
    opened: bool,
) -> Failure {
    if !D::PUSHES {
        return Failure::of_closed(why, opened);
    }
    match core.server_fault(id) {
        Some(ServerFault::StreamReset(code)) => of_reset(code),
        Some(ServerFault::GoAway) => Failure::GoAway,
        Some(ServerFault::NoExtendedConnect) => Failure::NoExtendedConnect,
        Some(ServerFault::ProxyRefused) => Failure::ProxyRefused,
        Some(ServerFault::Violation(violation)) => Failure::Protocol(violation),
        Some(ServerFault::Carrier(why)) => Failure::of_closed(why, false),
        Some(ServerFault::Status(_)) | None => Failure::of_closed(why, opened),
    }
}

/// Starts a connect with its first bytes, from the source address of a position in the run; from any if
/// `is_free`, as the plan of sources is only for the configured targets.
pub(crate) fn start_connect<Y: Sys, D: Driver, S: Script>(
    core: &mut Core<Y, Requester<D, S>>,
    sources: &Sources,
    changes: &mut u32,
    (position, is_free): (u64, bool),
    target: u8,
    first: &[u8],
) -> Result<ConnectStart, Failure> {
    loop {
        let Some(source) = sources.source(position, *changes) else {
            // Ports become free again: start over with the first source.
            *changes = 0;
            return Err(Failure::NoAddress);
        };
        let source = source.filter(|_| !is_free);
        let error = match core.connect_with_data(target, source, first) {
            Ok((id, is_sent)) => return Ok(ConnectStart::Connecting(id, is_sent)),
            // The queue of a UNIX socket is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Ok(ConnectStart::Later);
            }
            Err(error) => Closed::from_connect_error(&error),
        };
        match error {
            Closed::NoAddress => *changes += 1,
            other => return Err(Failure::of_closed(other, false)),
        }
    }
}
