//! [`Connector`]: opens one worker's share of the connections, some per turn, and then starts the next
//! worker of its lane. Only as many workers connect at a time as there are lanes.

use std::io::ErrorKind;
use std::sync::Arc;

use engine::invariant;
use engine::{Closed, ConnId, Core, Sys};

use crate::outcome::metrics::Metrics;
use crate::transport::in_flight::Lane;
use crate::transport::retry::Retries;
use crate::transport::sources::Sources;
use crate::transport::tunnels::{ConnectRoutes, Tunnels};
use crate::workload::client::{Client, Order};
use crate::workload::pacer::Pacer;
use crate::workload::requests::config::Requests;
use crate::{Cause, Config, Connect};

/// Retries per turn.
const RETRIES_PER_TURN: usize = 64;
/// Poll interval while connecting: a connection that ends is reported after the handler's turn and
/// makes room for another without waking the worker.
const LOOK_AGAIN_NS: u64 = 5_000_000;

/// One worker's connecting.
pub(crate) struct Connector {
    connect: Connect,
    sources: Sources,
    /// The number in the run of this worker's first connection.
    first: u64,
    lane: Lane,
    /// The connections to begin, by worker.
    shares: Arc<[u32]>,
    share: u32,
    begun: u32,
    /// This worker's connects in flight.
    under_way: u32,
    /// Connections begun when the current order was received, and the rate since.
    pace: Option<(u32, Pacer)>,
    /// How many source addresses ran out of ports.
    changes: u32,
    handed_over: bool,
    retries: Retries,
    /// Retries so far; their positions cycle through those of the worker.
    retried: u64,
    /// Only if an endpoint needs a proxy.
    tunnels: Option<Box<Tunnels>>,
    /// The queue of a UNIX socket was full: no connect before the first time, none succeeded since the
    /// second.
    rest_ns: u64,
    full_since_ns: Option<u64>,
    timeout_ns: u64,
}

impl Connector {
    pub(crate) fn new(
        config: &Config,
        sources: Sources,
        first: u64,
        lane: Lane,
        routes: ConnectRoutes,
    ) -> Connector {
        let timeout_ns = u64::try_from(config.connect_timeout.as_nanos()).unwrap_or(u64::MAX);
        Connector {
            connect: config.connect,
            sources,
            first,
            lane,
            shares: Arc::new([]),
            share: 0,
            begun: 0,
            under_way: 0,
            pace: None,
            changes: 0,
            handed_over: true,
            retries: Retries::new(config.retry),
            retried: 0,
            tunnels: routes.map(|routes| Box::new(Tunnels::new(routes, timeout_ns))),
            rest_ns: 0,
            full_since_ns: None,
            timeout_ns,
        }
    }

    /// Begins connections up to this worker's share.
    pub(crate) fn open<S: Sys>(&mut self, core: &Core<S, Client>, shares: Arc<[u32]>) {
        let me = usize::from(core.worker());
        self.share = shares.get(me).copied().unwrap_or(0).max(self.begun);
        self.handed_over = false;
        if let Connect::Paced(rate) = self.connect {
            let lanes = self.lane.lanes();
            let group = shares.chunks(lanes).nth(me / lanes).unwrap_or_default();
            let busy = |group: &[u32]| group.iter().filter(|&&share| share > 0).count() as u64;
            let (nth, of) = (busy(group.get(..me % lanes).unwrap_or_default()), busy(group));
            let pacer = Pacer::new(core.now_ns(), rate, 1, of).shifted(nth, of);
            self.pace = Some((self.begun, pacer));
        }
        self.shares = shares;
    }

    /// The number in the run of this worker's first connection.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Stops connecting and retrying.
    pub(crate) fn stop(&mut self) {
        self.share = self.begun;
        self.handed_over = true;
        self.retries.stop();
    }

    /// Counts an opened connection. Returns how many attempts failed before. The connect stays in
    /// progress until [`Connector::settled`].
    pub(crate) fn opened<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        metrics: &Metrics,
    ) -> u32 {
        metrics.count_opened(core.now_ns());
        if let Some(tunnels) = &mut self.tunnels {
            tunnels.opened(id);
        }
        let Some(socket) = core.user_mut(id) else {
            invariant::broken("a connection that opens is live");
            return 0;
        };
        let before = std::mem::take(&mut socket.sent);
        metrics.counts.opened_late.add(u64::from(before > 0));
        before
    }

    /// A connect is in flight no longer, as it succeeded completely or never will.
    pub(crate) fn settled(&mut self) {
        if let Some(left) = self.under_way.checked_sub(1) {
            self.under_way = left;
            self.lane.ended();
        }
    }

    /// Handles a failed attempt.
    pub(crate) fn failed<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        why: Closed,
        metrics: &Metrics,
    ) {
        self.settled();
        let on_its_way = self.tunnels.as_mut().and_then(|tunnels| tunnels.failed(id));
        let cause = on_its_way.unwrap_or_else(|| Cause::of(core, id, why));
        // While a socket opens, `sent` holds the number of earlier attempts.
        let before = core.user(id).map_or(0, |socket| socket.sent);
        self.retry(core, before.saturating_add(1), cause, metrics);
    }

    /// Whether a closed WebSocket is to be reopened, by [`Connector::reconnect`] once its connection has
    /// ended. `attempts` attempts in a row have failed, including this one.
    pub(crate) fn will_reconnect(&self, attempts: u32, metrics: &Metrics) -> bool {
        let comes = self.retries.reconnects() && self.retries.allows(attempts);
        metrics.counts.reconnects.add(u64::from(comes));
        comes
    }

    /// Reopens a WebSocket whose connection has ended.
    pub(crate) fn reconnect<S: Sys>(&mut self, core: &mut Core<S, Client>, attempts: u32) {
        let random = core.random();
        self.retries.again(attempts, core.now_ns(), random);
    }

    /// Opens a replacement for a WebSocket that has finished.
    pub(crate) fn replace<S: Sys>(&mut self, core: &Core<S, Client>) {
        self.retries.at_once(core.now_ns());
    }

    fn retry<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        attempts: u32,
        cause: Cause,
        metrics: &Metrics,
    ) {
        let random = core.random();
        if self.retries.again(attempts, core.now_ns(), random) {
            metrics.count_retried(cause);
        } else {
            metrics.count_failed(cause);
        }
    }

    /// Called when a connection through a proxy is connected to the proxy or, with TLS, to the host.
    pub(crate) fn connected<S: Sys>(&mut self, core: &mut Core<S, Client>, id: ConnId) {
        if let Some(tunnels) = &mut self.tunnels {
            tunnels.connected(core, id);
        }
    }

    /// Receives bytes from a proxy.
    pub(crate) fn received<S: Sys>(&mut self, core: &mut Core<S, Client>, id: ConnId, data: &[u8]) {
        if let Some(tunnels) = &mut self.tunnels {
            tunnels.received(core, id, data);
        }
    }

    pub(crate) fn turn<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        metrics: &Metrics,
    ) -> Option<u64> {
        let tunnel_ns = self.tunnels.as_mut().and_then(|tunnels| tunnels.turn(core));
        let retry_ns = self.retry_due(core, metrics);
        let begin_ns = self.begin_due(core, metrics);
        [tunnel_ns, retry_ns, begin_ns].into_iter().flatten().min()
    }

    /// Makes the retries that are due.
    fn retry_due<S: Sys>(&mut self, core: &mut Core<S, Client>, metrics: &Metrics) -> Option<u64> {
        for _ in 0..RETRIES_PER_TURN {
            let now_ns = core.clock_ns();
            let due = if now_ns < self.rest_ns { None } else { self.retries.next_due(now_ns) };
            let Some(attempts) = due else { break };
            let position = self.first + self.retried % u64::from(self.begun.max(1));
            self.retried += 1;
            self.attempt(core, position, attempts, metrics);
        }
        self.retries.due_ns().map(|due_ns| due_ns.max(self.rest_ns))
    }

    fn begin_due<S: Sys>(&mut self, core: &mut Core<S, Client>, metrics: &Metrics) -> Option<u64> {
        let again_ns = core.now_ns() + LOOK_AGAIN_NS;
        for _ in 0..self.connect.per_turn() {
            if self.begun >= self.share {
                return self.finish_share(core).then_some(again_ns);
            }
            if self.lane.is_full() {
                return Some(again_ns);
            }
            if self.rest_ns > core.now_ns() {
                return Some(self.rest_ns);
            }
            if let Some((begun, pacer)) = &self.pace {
                let due_ns = pacer.due_ns(u64::from(self.begun - begun));
                if due_ns > core.clock_ns() {
                    return Some(due_ns);
                }
            }
            self.begin_one(core, metrics);
        }
        Some(core.now_ns())
    }

    /// Starts the next worker of the lane once nothing is in flight, in a storm at once. Returns
    /// whether that is still to be done.
    fn finish_share<S: Sys>(&mut self, core: &Core<S, Client>) -> bool {
        if self.handed_over {
            return false;
        }
        if self.under_way == 0 || self.connect == Connect::Storm {
            let next = usize::from(core.worker()) + self.lane.lanes();
            let wanted = self.shares.get(next).is_some_and(|&share| share > 0);
            let order = Order::Open(Arc::clone(&self.shares));
            self.handed_over = !wanted || core.remote().post(next, order, 0).is_ok();
        }
        !self.handed_over
    }

    fn begin_one<S: Sys>(&mut self, core: &mut Core<S, Client>, metrics: &Metrics) {
        metrics.counts.begun.add(1);
        let position = self.first + u64::from(self.begun);
        self.begun += 1;
        self.attempt(core, position, 0, metrics);
    }

    /// Makes one connect attempt after `before` failed ones.
    fn attempt<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        position: u64,
        before: u32,
        metrics: &Metrics,
    ) {
        let began_ns = core.clock_ns();
        while let Some((destination, source)) = self.sources.pair(position, self.changes) {
            if self.tunnels.as_ref().is_some_and(|tunnels| tunnels.is_unresolved(destination)) {
                // The name is resolved only once.
                return metrics.count_failed(Cause::Dns);
            }
            let begun = match &mut self.tunnels {
                None => core.connect(destination, source),
                Some(tunnels) => tunnels.connect(core, destination, source),
            };
            if begun.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                return self.wait_for_room(core, before, began_ns, metrics);
            }
            match begun.map_err(|error| Closed::from_connect_error(&error)) {
                Ok(id) => {
                    self.under_way += 1;
                    self.lane.begun();
                    self.full_since_ns = None;
                    if let Some(socket) = core.user_mut(id) {
                        socket.sent = before;
                        socket.set_sent_ns(began_ns);
                    }
                    return;
                }
                Err(Closed::NoAddress) => {
                    self.changes += 1;
                    metrics.counts.sources_changed.add(1);
                }
                Err(cause) => {
                    return self.retry(core, before + 1, Cause::End(cause), metrics);
                }
            }
        }
        self.retry(core, before + 1, Cause::End(Closed::NoAddress), metrics);
    }

    /// Retries while the queue of a UNIX socket is full, as a connect does not wait there. All of it is
    /// one attempt, which fails when no connect has succeeded for the connect timeout.
    fn wait_for_room<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        before: u32,
        now_ns: u64,
        metrics: &Metrics,
    ) {
        let since_ns = *self.full_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) >= self.timeout_ns {
            return self.retry(core, before + 1, Cause::End(Closed::ConnectTimeout), metrics);
        }
        self.rest_ns = now_ns + Requests::CONNECT_REST.as_nanos() as u64;
        self.retries.at(self.rest_ns, before);
    }
}
