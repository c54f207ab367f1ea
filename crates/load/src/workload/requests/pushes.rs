//! Connections with pushed messages: a user has HTTP connections (slot 0) and WebSockets, one of which is
//! active at a time. Nothing of this is compiled for drivers without [`Driver::PUSHES`].

use engine::invariant;
use engine::{Closed, ConnId, Core, Sys};

use crate::grpc::{Code, answer_status, code_of};
use crate::outcome::failure::Failure;
use crate::transport::driver::{CompleteAnswer, Driver, Received};
use crate::transport::grpc::of_code;
use crate::workload::requests::answer::Wants;
use crate::workload::requests::request::Kind;
use crate::workload::requests::requester::Requester;
use crate::workload::requests::script::Script;
use crate::workload::requests::script::SocketEnd;

impl<D: Driver, S: Script> Requester<D, S> {
    /// Activates the connection for the latest request. False if there is none, and the request has
    /// failed.
    pub(crate) fn choose<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        now_ns: u64,
    ) -> bool {
        let (kind, awaits) = (self.script.kind(user), self.script.awaits(user));
        let Some(one) = self.users.get_mut(user as usize) else {
            invariant::broken("each user number is in the table of users");
            return false;
        };
        one.activate(if kind == Kind::Plain { 0 } else { self.script.socket(user).max(1) });
        if let Some(flight) = one.flights.back_mut() {
            (flight.kind, flight.awaits) = (kind, awaits || kind == Kind::Await);
        }
        match kind {
            Kind::Plain => true,
            Kind::Connect | Kind::ConnectCable | Kind::Call { .. } => {
                self.close_active(core, user);
                true
            }
            _ if one.link.opened => true,
            _ => {
                self.choose_ended(core, user, kind, now_ns);
                false
            }
        }
    }

    /// Ends a request whose connection has ended: with what arrived before, or as not connected.
    fn choose_ended<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        kind: Kind,
        now_ns: u64,
    ) {
        if kind == Kind::Await
            && let Some(body) = self.script.recall(user)
        {
            return self.take_kept(user, (0, &[], &body), now_ns);
        }
        let end = match kind {
            Kind::Await | Kind::Binary | Kind::Close => self.script.recall_end(user),
            _ => None,
        };
        let Some((status, head)) = end else {
            return self.fail(core, user, Failure::NotConnected, now_ns);
        };
        if kind == Kind::Close {
            return self.take_kept(user, (status, &head, &[]), now_ns);
        }
        if let Some(one) = self.users.get_mut(user as usize) {
            one.awaited.begin(Wants::Head, false, false);
            one.awaited.head(status, &head);
        }
        self.fail(core, user, of_end(code_of(status).unwrap_or(Code::UNKNOWN)), now_ns);
    }

    /// Answers a request by what arrived before its connection ended: a status, a head and a body.
    fn take_kept(&mut self, user: u32, (status, head, body): (u16, &[u8], &[u8]), now_ns: u64) {
        let wants = self.script.wants(user);
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        one.awaited.begin(wants, false, false);
        one.awaited.head(status, head);
        one.awaited.body(body);
        (one.awaited.status, one.awaited.body_bytes) = (status, body.len() as u64);
        one.link.give_up();
        let stream = one.link.answering();
        if let Some(flight) = one.flights.back_mut() {
            // Ended with those that need no answer.
            (flight.kind, flight.awaits) = (Kind::Binary, false);
        }
        self.sent(user, 0, stream, now_ns);
    }

    /// Schedules the end of a request that needs no answer, or whose answer may be in the inbox.
    pub(crate) fn schedule_finish(&mut self, user: u32) {
        let flight = self.users.get(user as usize).and_then(|one| one.flights.front());
        let over = flight.is_some_and(|flight| match flight.kind {
            Kind::Text | Kind::Binary => !flight.awaits,
            kind => matches!(kind, Kind::Await | Kind::Call { .. }),
        });
        if over {
            self.soon.push(user);
        }
    }

    /// Ends the scheduled requests. It runs later so that a flow of them does not recurse.
    pub(crate) fn finish_soon<Y: Sys>(&mut self, core: &mut Core<Y, Self>) {
        for user in std::mem::take(&mut self.soon) {
            let now_ns = core.clock_ns();
            let Some(one) = self.users.get_mut(user as usize) else {
                invariant::broken("each user number is in the table of users");
                continue;
            };
            let flight = one.flights.front().filter(|flight| flight.times.sent_ns > 0);
            let kept = (one.awaited.status, one.awaited.body_bytes);
            let queued = one.link.conn.get().map_or(0, |id| core.queued(id));
            let (status, body_bytes) = match flight.map(|flight| (flight.kind, flight.awaits)) {
                // It ends when the kernel has taken it, which the engine reports.
                Some((Kind::Text | Kind::Binary, false)) if queued > 0 => continue,
                Some((Kind::Text | Kind::Binary, false) | (Kind::Call { .. }, _)) => kept,
                Some((Kind::Await, _)) => match self.script.recall(user) {
                    Some(message) => {
                        one.awaited.body(&message);
                        (0, message.len() as u64)
                    }
                    None => continue,
                },
                _ => continue,
            };
            let whole = CompleteAnswer { used: 0, status, keep: true, body_bytes };
            self.complete(core, user, whole, false, now_ns);
        }
    }

    /// Handles a connection whose queue in this process is empty again.
    pub(crate) fn on_pushing_drained<Y: Sys>(&mut self, core: &Core<Y, Self>, id: ConnId) {
        if let Some(user) = self.user_of(core, id) {
            self.schedule_finish(user);
        }
    }

    /// The user of a connection, and its place in [`User::rare`] unless it is the active one.
    ///
    /// [`User::rare`]: crate::workload::requests::user::User::rare
    fn owner<Y: Sys>(&self, core: &Core<Y, Self>, id: ConnId) -> Option<(u32, Option<usize>)> {
        let active = self.user_of(core, id).map(|user| (user, None));
        active.or_else(|| self.kept(core, id).map(|(user, at)| (user, Some(at))))
    }

    pub(crate) fn on_pushing_data<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        id: ConnId,
        data: &[u8],
    ) {
        let now_ns = core.clock_ns();
        let mut rest = data;
        while !rest.is_empty() {
            let Some((user, kept)) = self.owner(core, id) else { return };
            let Some(one) = self.users.get_mut(user as usize) else {
                return invariant::broken("each user number is in the table of users");
            };
            let is_inactive = kept.is_some();
            let slot = kept.and_then(|at| one.rare.links().get(at)).unwrap_or(&one.link).slot;
            if one.rare.has_tunnel() && !one.link.opened && !is_inactive {
                return self.tunnel_received(core, user, id, rest);
            }
            let on_socket = slot > 0;
            let sent = one.flights.front().is_some_and(|flight| flight.times.sent_ns > 0);
            let waits = !is_inactive && sent;
            if !on_socket && !waits {
                self.metrics.counts.unasked.add(1);
                return self.drop_connection(core, user, kept, false);
            }
            if waits
                && let Some(flight) = one.flights.front_mut()
                && flight.kind == Kind::Plain
                && flight.times.first_ns == 0
            {
                flight.times.first_ns = now_ns;
            }
            let link = kept.and_then(|at| one.rare.link_mut(at)).unwrap_or(&mut one.link);
            let received = self.driver.receive(&mut link.state, rest, &mut one.awaited);
            let reply = self.driver.reply();
            if !reply.is_empty() {
                core.write(id, reply);
            }
            match received {
                Received::More => return,
                Received::Pushed(used) => {
                    rest = rest.get(used..).unwrap_or_default();
                    self.pushed(core, user, slot, waits, now_ns);
                }
                Received::Complete(whole) => {
                    rest = rest.get(whole.used..).unwrap_or_default();
                    if waits {
                        let more = !on_socket && !rest.is_empty();
                        self.complete(core, user, whole, more, now_ns);
                    } else if !whole.keep {
                        return self.drop_connection(core, user, kept, true);
                    }
                }
                Received::Closing(code) => {
                    self.script.socket_ended(user, slot, SocketEnd::Closed(code));
                    self.drop_connection(core, user, kept, true);
                    return self.fail_waiting(core, user, is_inactive, Failure::Closed, now_ns);
                }
                Received::Ended(code) => {
                    // What needs no answer ends as it would have.
                    let waits = waits
                        && one.flights.front().is_some_and(|flight| {
                            flight.awaits
                                || !matches!(flight.kind, Kind::Binary | Kind::Call { .. })
                        });
                    if !waits {
                        let status = answer_status(code);
                        self.script.keep_end(user, slot, status, self.driver.head());
                    }
                    self.script.socket_ended(user, slot, SocketEnd::Status(code));
                    self.drop_connection(core, user, kept, false);
                    if waits {
                        self.fail_waiting(core, user, is_inactive, of_end(code), now_ns);
                    }
                    return;
                }
                Received::Failed(failure) => {
                    if on_socket {
                        self.script.socket_ended(user, slot, SocketEnd::Failed(failure));
                    }
                    self.drop_connection(core, user, kept, on_socket);
                    return self.fail_waiting(core, user, is_inactive, failure, now_ns);
                }
            }
        }
    }

    /// Fails what a user awaits on a closed connection.
    fn fail_waiting<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        is_inactive: bool,
        failure: Failure,
        now_ns: u64,
    ) {
        let waits = self.users.get(user as usize).is_some_and(|one| !one.flights.is_empty());
        if waits && !is_inactive {
            self.fail(core, user, failure, now_ns);
        }
    }

    /// Passes a pushed message to the script.
    fn pushed<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        slot: u8,
        waits: bool,
        now_ns: u64,
    ) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let waits = waits && one.flights.front().is_some_and(|flight| flight.awaits);
        let push = self.driver.message();
        if !self.script.pushed(user, slot, &push, waits, now_ns) || !waits {
            return;
        }
        one.awaited.body(push.data);
        let body_bytes = push.data.len() as u64;
        let whole = CompleteAnswer { used: 0, status: 0, keep: true, body_bytes };
        self.complete(core, user, whole, false, now_ns);
    }

    /// Closes the active connection of a user or a kept one; if `gracefully`, after pending data is sent.
    fn drop_connection<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        kept: Option<usize>,
        gracefully: bool,
    ) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let (opened, id) = match kept {
            None => (one.link.opened, one.link.take()),
            Some(at) if at < one.rare.links().len() => {
                let mut link = one.rare.remove_link(at);
                (link.opened, link.take())
            }
            Some(_) => return,
        };
        match id {
            Some(id) if gracefully && opened => core.end_after(id, Closed::ByUs),
            Some(id) => core.abort(id),
            None => {}
        }
    }

    /// Closes the active connection, with a close frame if the protocol has one.
    pub(crate) fn close_active<Y: Sys>(&mut self, core: &mut Core<Y, Self>, user: u32) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if self.driver.is_reset(&one.link.state) {
            return self.drop_connection(core, user, None, false);
        }
        if let Some(id) = one.link.conn.get().filter(|_| one.link.opened) {
            let bytes = self.driver.close(&mut one.link.state);
            if !bytes.is_empty() {
                core.write(id, bytes);
            }
        }
        self.drop_connection(core, user, None, true);
    }
}

/// The failure of a request on a call that the server has ended.
fn of_end(code: Code) -> Failure {
    if code == Code::OK { Failure::GrpcEnded } else { of_code(code) }
}
