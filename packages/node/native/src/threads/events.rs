//! Events of the threads become calls of JavaScript.

use std::collections::VecDeque;

use engine::{ConnId, Core, Sys, invariant};
use wire::http::{EMPTY_HEADER, Request as Head, parse_request};

use super::batch::{Batch, Command, Event, PEER_BYTES, Peer, Piece, take};
use crate::exchange::{Client, Exchange, Place};
use crate::handler::{Event as Call, Js, Now};
use crate::replays::Sent;
use crate::requests::router_of;

impl Js {
    /// Calls JavaScript for what a thread tells.
    pub(crate) fn on_batch<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        start: u32,
        batch: &Batch<Event>,
    ) {
        let mut rest = &*batch.bytes;
        for event in &batch.list {
            // JavaScript may have closed the app meanwhile.
            if !self.threads.as_ref().is_some_and(|threads| threads.expects(start)) {
                return;
            }
            self.on_event(core, event, &mut rest);
        }
        if let Some(threads) = &self.threads {
            threads.taken();
        }
    }

    /// The number of a connection that JavaScript knows.
    #[inline]
    fn number_of(&self, id: ConnId) -> Option<u32> {
        self.threads.as_ref()?.table.number(id)
    }

    #[inline]
    fn keeps(&self, number: u32) -> bool {
        let entry = self.threads.as_ref().and_then(|threads| threads.table.get(number));
        let route = entry.and_then(|(_, entry)| self.sockets.get(usize::from(entry.route)));
        route.is_some_and(|own| own.keep)
    }

    fn on_event<S: Sys>(&mut self, core: &mut Core<S, Self>, event: &Event, rest: &mut &[u8]) {
        match *event {
            Event::Message { id, binary, length } => {
                let data = take(rest, length);
                let Some(number) = self.number_of(id) else { return };
                let keep = self.keeps(number);
                let slot = number << 1 | u32::from(binary);
                self.emit_then(
                    core,
                    Call::Message,
                    |env| [env.int(slot as i32), env.array_buffer(data)],
                    |env, [_, bytes], _| {
                        if !keep {
                            env.detach(bytes);
                        }
                    },
                );
            }
            Event::Open { id, route, length } => {
                let peer = Peer::from_bytes(take(rest, length));
                self.on_open(core, id, route, peer);
            }
            Event::Request { id, upgrades, proxied, certificate, lines, length } => {
                let mut bytes = take(rest, length);
                let mut peer = || Peer::from_bytes(take(&mut bytes, PEER_BYTES as u32));
                let (peer, proxied) = (peer(), proxied.then(peer));
                let certificate = take(&mut bytes, certificate);
                let known = proxied.is_some() || !certificate.is_empty();
                let client =
                    known.then(|| Box::new(Client { proxied, certificate: certificate.into() }));
                self.on_threads_request(core, id, upgrades, (peer, client), lines, bytes);
            }
            Event::Data { id, last, length } => {
                let data = take(rest, length);
                if let Some(number) = self.number_of(id) {
                    self.on_threads_data(core, number, data, last);
                }
            }
            Event::Flowed { id, bytes } => {
                let Some(number) = self.number_of(id) else { return };
                let Some(exchange) = self.exchanges.get_mut(&number) else { return };
                exchange.queued = exchange.queued.saturating_sub(bytes as usize);
                if exchange.queued == 0 {
                    let id = exchange.id;
                    self.tell_writable(core, id);
                }
            }
            Event::Gone(id) => {
                let Some(number) = self.number_of(id) else { return };
                if self.exchanges.remove(&number).is_some() {
                    self.emit(core, Call::Aborted, |env| [env.int(number as i32)]);
                    self.forget(number);
                } else {
                    // JavaScript has opened it meanwhile.
                    let reason = "Received TCP FIN before WebSocket close frame";
                    self.on_close(core, number, 1006, reason.as_bytes());
                }
            }
            Event::Close { id, code, length } => {
                let reason = take(rest, length);
                if let Some(number) = self.number_of(id) {
                    self.on_close(core, number, code, reason);
                }
            }
            Event::Buffered { id, bytes } => {
                if let (Some(number), Some(threads)) = (self.number_of(id), &mut self.threads) {
                    threads.buffered.insert(number, bytes);
                }
            }
            Event::Drain(id) => {
                let Some(number) = self.number_of(id) else { return };
                let Some(threads) = &mut self.threads else { return };
                threads.buffered.remove(&number);
                let route = threads.table.get(number).map(|(_, entry)| usize::from(entry.route));
                if route.and_then(|at| self.sockets.get(at)).is_some_and(|own| own.drain) {
                    self.emit(core, Call::Drain, |env| [env.int(number as i32)]);
                }
            }
            Event::Dropped { id, binary, length } => {
                let data = take(rest, length);
                let Some(number) = self.number_of(id) else { return };
                let slot = number << 1 | u32::from(binary);
                self.emit(core, Call::Dropped, |env| {
                    [env.int(slot as i32), env.array_buffer(data)]
                });
            }
            Event::Sent(ref sent) => self.on_sent(core, sent),
            Event::Ping { id, length } => {
                self.on_control(core, Call::Ping, id, take(rest, length));
            }
            Event::Pong { id, length } => {
                self.on_control(core, Call::Pong, id, take(rest, length));
            }
        }
    }

    /// A piece of a body, which waits if JavaScript has paused that.
    fn on_threads_data<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        number: u32,
        data: &[u8],
        last: bool,
    ) {
        let paused = self.exchanges.get(&number).is_some_and(|exchange| exchange.paused);
        let Some(threads) = &mut self.threads else { return };
        if paused || threads.held.contains_key(&number) {
            return threads
                .held
                .entry(number)
                .or_default()
                .push_back(Piece { data: data.into(), last });
        }
        self.emit_data(core, |env| {
            [env.int(number as i32), env.array_buffer(data), env.bool(last)]
        });
    }

    /// The pieces of bodies that JavaScript has resumed.
    pub(crate) fn go_on_with_bodies<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let resumed = self.threads.as_mut().map(|threads| std::mem::take(&mut threads.resumed));
        for number in resumed.into_iter().flatten() {
            while self.exchanges.get(&number).is_some_and(|exchange| !exchange.paused) {
                let Some(held) = self.threads.as_mut().map(|threads| &mut threads.held) else {
                    break;
                };
                let Some(Piece { data, last }) =
                    held.get_mut(&number).and_then(VecDeque::pop_front)
                else {
                    held.remove(&number);
                    break;
                };
                self.emit_data(core, |env| {
                    [env.int(number as i32), env.array_buffer(&data), env.bool(last)]
                });
            }
        }
    }

    /// Of a subscription that has not ended, and that no other has replaced.
    fn on_sent<S: Sys>(&mut self, core: &mut Core<S, Self>, sent: &Sent) {
        let (Some(number), Some(peers)) = (self.number_of(sent.id), self.peers_with_history())
        else {
            return;
        };
        let Some(threads) = &mut self.threads else { return };
        let awaited = threads.end_sending_of(number, |(_, ticket)| *ticket == sent.ticket);
        if let Some(keeper) = peers.keeper.as_ref().filter(|_| awaited) {
            self.tell_sent(core, keeper, number, sent);
        }
    }

    fn on_control<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        call: Call,
        id: ConnId,
        data: &[u8],
    ) {
        if let Some(number) = self.number_of(id) {
            self.emit(core, call, |env| [env.int(number as i32), env.array_buffer(data)]);
        }
    }

    fn on_open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, route: u16, peer: Peer) {
        let Some(own) = self.sockets.get(usize::from(route)) else {
            return invariant::broken("an open socket has a route");
        };
        let (index, open) = (own.route, own.open);
        let Some(threads) = &mut self.threads else { return };
        let Some(number) = threads.table.insert(id, peer, route, true) else {
            threads.command(id, Command::Close(id), &[]);
            return;
        };
        if open {
            self.emit(core, Call::Open, |env| [env.int(number as i32), env.int(index as i32)]);
        }
    }

    fn on_close<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        number: u32,
        code: u16,
        reason: &[u8],
    ) {
        self.emit(core, Call::Close, |env| {
            [env.int(number as i32), env.int(code.into()), env.array_buffer(reason)]
        });
        self.forget(number);
    }

    /// A connection has ended.
    pub(super) fn forget(&mut self, number: u32) {
        let Some(threads) = &mut self.threads else { return };
        threads.buffered.remove(&number);
        threads.held.remove(&number);
        threads.sending.remove(&number);
        if let Some(id) = threads.table.remove(number) {
            threads.mirror.leave(number, id);
        }
    }

    /// As `Js::on_request`, for a request that a thread keeps until it is answered.
    fn on_threads_request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        upgrades: bool,
        (peer, mut client): (Peer, Option<Box<Client>>),
        lines: u16,
        bytes: &[u8],
    ) {
        let Some(threads) = &mut self.threads else { return };
        let number = threads.table.insert(id, peer, 0, false);
        let mut headers = vec![EMPTY_HEADER; usize::from(lines)];
        let parsed = parse_request(bytes, &mut headers);
        let (Some(number), Ok(head)) = (number, parsed) else {
            // It was parsed by the thread: only the number is missing.
            threads.command(id, Command::Reset(id), &[]);
            return number.map(|number| self.forget(number)).unwrap_or_default();
        };
        let router = router_of(&self.routers, &head);
        // Named by its number, for what is done with responses.
        let own = ConnId::first_at(0, number);
        let mut spans = std::mem::take(&mut self.spans);
        let mut begun = None;
        for skip in 0..=self.routes.len() {
            let routers = self.routers.get(router);
            let found = routers
                .and_then(|(_, router)| router.find(head.method, head.path(), skip, &mut spans));
            let Some(route) = found else { break };
            let socket = self.routes.get(route as usize).copied().flatten();
            if socket.is_some() && !upgrades {
                continue;
            }
            if let (Some(index), Some(threads)) = (socket, &mut self.threads)
                && let Some((_, entry)) = threads.table.get_mut(number)
            {
                entry.route = index;
            }
            let mut exchange =
                begun.take().unwrap_or_else(|| self.begin(own, &head, true, core.now_ns()));
            exchange.client = client.take();
            let kept = self.answer_from_cache(route, &head, core.now_ns(), &mut exchange);
            if kept == Some(false) {
                self.spans = spans;
                return self.keep_exchange(number, exchange);
            }
            if let Some(index) = socket
                && !self.sockets.get(usize::from(index)).is_some_and(|own| own.upgrade)
            {
                self.spans = spans;
                return self.open_by_default(core, number, index, exchange, &head);
            }
            // Only read while the handler is called: see `Now`.
            let head = std::ptr::from_ref(&head).cast();
            self.now = Some(Now { exchange, head, spans, opening: None });
            let passed = self.emit_then(
                core,
                Call::Request,
                |env| {
                    let answered_or_upgrades = kept.is_some() || socket.is_some();
                    [env.int(number as i32), env.int(route as i32), env.bool(answered_or_upgrades)]
                },
                |env, _, passed| env.to_u32(passed),
            );
            // It was ended.
            let Some(mut now) = self.now.take() else { return };
            spans = now.spans;
            if self.number_of(id) != Some(number) {
                // The app was closed: what JavaScript keeps of the response ends, before the number is another's.
                self.spans = spans;
                self.keep_out(now.exchange.out);
                return self.emit(core, Call::Aborted, |env| [env.int(number as i32)]);
            }
            if passed == 1 {
                client = now.exchange.client.take();
                begun = self.passed_on(now.exchange);
                continue;
            }
            self.spans = spans;
            if now.exchange.opened {
                return self.keep_out(now.exchange.out);
            }
            return self.keep_exchange(number, now.exchange);
        }
        self.spans = spans;
        let mut exchange = begun.unwrap_or_else(|| self.begin(own, &head, true, core.now_ns()));
        exchange.not_found();
        self.keep_exchange(number, exchange);
    }

    /// The rest of the answer follows, or it is complete.
    fn keep_exchange(&mut self, number: u32, mut exchange: Exchange) {
        exchange.place = Place::Thread;
        self.exchanges.insert(number, Box::new(exchange));
        self.answer_by_thread(number);
    }

    /// A route without an upgrade handler, behind one whose handler has passed the request on.
    fn open_by_default<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        number: u32,
        index: u16,
        exchange: Exchange,
        head: &Head<'_, '_>,
    ) {
        self.exchanges.insert(number, Box::new(exchange));
        let offered = head.header("sec-websocket-protocol").unwrap_or_default();
        let first = offered.split(|byte| *byte == b',').next().unwrap_or_default();
        let protocol = String::from_utf8_lossy(first.trim_ascii()).into_owned();
        let protocol = Some(&*protocol).filter(|protocol| !protocol.is_empty());
        let Some(own) = self.sockets.get(usize::from(index)) else { return };
        let (route, open) = (own.route, own.open);
        if self.upgrade_by_thread(number, protocol) && open {
            self.emit(core, Call::Open, |env| [env.int(number as i32), env.int(route as i32)]);
        }
    }
}
