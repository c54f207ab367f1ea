//! [`Relay`]: the proxy's handler in a worker. Both legs of a tunnel are connections of one worker.
//! Bytes go from the worker's read buffer straight to the other leg; what the kernel does not take is
//! queued there, and the first leg is not read meanwhile (backpressure).
//!
//! `dispatch` starts a request and chooses an upstream, `body` receives its body, `connect` finds a
//! connection to it, `context` applies the settings of a route, `bound` keeps connections that serve one client only, `answer` passes responses on,
//! `tunnel` relays bytes both ways, `timeouts` ends what takes too long.

mod answer;
mod body;
mod bound;
mod connect;
mod context;
mod dispatch;
mod exchange;
mod idle_timeouts;
mod redirect;
#[cfg(test)]
#[cfg(feature = "simulation")]
mod tests;
mod timeouts;
mod tunnel;
mod waiters;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, RejectedRequest, Sys, invariant};
use wire::websocket::OpCode;

use self::bound::BoundConnections;
use self::connect::IdleConnection;
use self::exchange::Exchanges;
use self::idle_timeouts::IdleTimeouts;
use self::tunnel::{ClientLeg, UpstreamLeg};
use self::waiters::Waiters;

use crate::access_log::Side;
use crate::access_log::{PendingEntries, PendingEntry};
use crate::balance::{Permit, Port};
use crate::config::{Live, RouteTimeouts};
use crate::counters::Counters;
use crate::drain::{DrainOrder, Drains};
use crate::routes::Cached;
use crate::shared::Shared;

/// The role of a connection in the relay.
#[derive(Default)]
pub enum ConnectionKind {
    /// A client without a request, or a connection that is being closed.
    #[default]
    Unused,
    /// A client with a request in progress, by its exchange.
    RequestClient(u32),
    /// A client whose last response is still being sent.
    FlushingClient(Flushing),
    /// The upstream connection of a request, by its exchange.
    RequestUpstream(u32, Option<Port>),
    /// An idle connection to an upstream.
    IdleConnection(Option<Port>),
    /// An idle connection to an upstream that serves this client only.
    BoundConnection(ConnId, Option<Port>),
    /// The client leg of a tunnel.
    TunnelClient(ClientLeg),
    /// The upstream leg of a tunnel.
    TunnelUpstream(UpstreamLeg),
}

/// A complete response that its client has not read yet.
#[derive(Copy, Clone)]
pub struct Flushing {
    /// Another request may follow.
    more: bool,
    /// The answer timeout of its route, if that sets one.
    timeout: Option<Duration>,
}

// An idle tunnel costs two of these in addition to the engine's state.
const _: () = assert!(size_of::<ConnectionKind>() <= 32);

/// Messages from other threads to a worker.
pub enum Post {
    /// Settings have changed.
    Reload(Arc<Live>),
    /// Drain tunnels.
    Drain(Arc<DrainOrder>),
    /// Send a page of tunnels.
    ListTunnels(Box<TunnelQuery>),
    /// A permit was released or pools have changed: queued requests may proceed.
    PermitReleased,
}

/// Which tunnels to list.
pub struct TunnelQuery {
    pub(crate) slot: u32,
    pub(crate) limit: usize,
    /// Only tunnels to these upstreams, by number.
    pub(crate) upstreams: Option<Box<[u32]>>,
    pub(crate) reply: SyncSender<TunnelPage>,
}

/// A page of tunnels.
pub(crate) struct TunnelPage {
    pub(crate) tunnels: Vec<TunnelInfo>,
    /// The slot of the next page; `None` at the end.
    pub(crate) next_slot: Option<u32>,
}

/// One tunnel in the admin API.
pub(crate) struct TunnelInfo {
    pub(crate) id: ConnId,
    /// The name of the upstream.
    pub(crate) upstream: Arc<str>,
    /// The address of the upstream.
    pub(crate) address: String,
    pub(crate) client: Option<IpAddr>,
    pub(crate) seconds: u64,
    pub(crate) idle_seconds: f64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) queued: usize,
}

/// One worker's part of the proxy.
pub struct Relay {
    shared: Arc<Shared>,
    live: Arc<Live>,
    routes: Cached,
    worker: usize,
    exchanges: Exchanges,
    /// The longest idle first.
    idle_connections: Vec<IdleConnection>,
    /// Connections that serve one client only.
    bound: BoundConnections,
    /// Buffer for encoding heads and chunks.
    scratch: Vec<u8>,
    /// Access log entries of open tunnels, by client; empty without an access log.
    log_entries: PendingEntries,
    drains: Drains,
    clock: timeouts::Clock,
    idle_timeouts: IdleTimeouts,
    /// The shortest and the longest answer timeout, those of routes included.
    answer_timeouts: (Duration, Duration),
    waiters: Waiters,
    /// Bytes of buffered request bodies.
    buffered_bytes: usize,
    /// Incremented by each reload: a connection of an older generation is not reused.
    config_generation: u32,
    /// Index of the next source address.
    source: usize,
    /// The proxy is draining: connections are not kept for reuse.
    draining: bool,
}

impl Relay {
    pub(crate) fn new(worker: u16, shared: Arc<Shared>) -> Self {
        let live = shared.live();
        Relay {
            answer_timeouts: live.answer_timeouts(&RouteTimeouts::default()),
            live,
            routes: Cached::new(&shared.table),
            shared,
            worker: usize::from(worker),
            exchanges: Exchanges::default(),
            idle_connections: Vec::new(),
            bound: BoundConnections::default(),
            scratch: Vec::new(),
            log_entries: PendingEntries::default(),
            drains: Drains::default(),
            clock: timeouts::Clock::default(),
            idle_timeouts: IdleTimeouts::default(),
            waiters: Waiters::default(),
            buffered_bytes: 0,
            config_generation: 0,
            source: 0,
            draining: false,
        }
    }

    fn counters(&self) -> &Counters {
        // There is one for each planned worker.
        &self.shared.counters[self.worker]
    }

    fn apply_live<S: Sys>(&mut self, core: &mut Core<S, Self>, live: Arc<Live>) {
        let routes = self.routes.get(&self.shared.table);
        let of_routes = routes.all().filter_map(|route| route.settings.as_ref()?.idle_timeout?);
        let longest_idle = self.idle_timeouts.apply(of_routes);
        let answers = || routes.all().filter_map(|route| route.settings.as_ref()?.answer_timeout);
        let answer = answers().min().zip(answers().max());
        let of_routes = RouteTimeouts { longest_idle, answer };
        self.answer_timeouts = live.answer_timeouts(&of_routes);
        core.set_limits(live.engine_limits(&of_routes));
        core.renew_tick();
        core.set_tls(live.tls.clone());
        core.set_plain_listeners(self.shared.plain_listeners);
        self.live = live;
        // Connections made with the old settings serve no further request.
        self.config_generation = self.config_generation.wrapping_add(1);
        // Routes and pools may have changed, too.
        self.clock.check_waiters_now();
        self.reset_idle_connections(core);
    }

    fn reset_idle_connections<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        for idle in std::mem::take(&mut self.idle_connections) {
            Self::set(core, idle.id, ConnectionKind::Unused);
            core.reset(idle.id);
        }
        self.unbind_all(core);
    }

    /// Sets the role of a connection; returns the previous one.
    fn set<S: Sys>(core: &mut Core<S, Self>, id: ConnId, leg: ConnectionKind) -> ConnectionKind {
        let Some(user) = core.user_mut(id) else {
            invariant::broken("a connection that the relay refers to exists");
            return ConnectionKind::default();
        };
        std::mem::replace(user, leg)
    }

    /// Releases a permit and wakes the request that has waited longest for one.
    fn release<S: Sys>(&mut self, core: &Core<S, Self>, permit: Option<Permit>) {
        let Some(permit) = permit else { return };
        let wanted = permit.upstream().has_waiters();
        drop(permit);
        if wanted {
            self.wake_next_waiter(core);
        }
    }

    /// Makes the first request in each queue try again.
    fn wake_next_waiter<S: Sys>(&mut self, core: &Core<S, Self>) {
        let routes = Arc::clone(self.routes.get(&self.shared.table));
        for worker in routes.pools().iter().filter_map(|pool| pool.queue_head_worker()) {
            if worker == self.worker {
                self.clock.check_waiters_now();
            } else {
                // If the mailbox is full, the worker tries by itself a moment later.
                let _ = core.remote().post(worker, Post::PermitReleased, 0);
            }
        }
    }
}

impl Relay {
    /// Bytes of a connection that is not part of a tunnel.
    #[inline(never)]
    fn data_of_exchange<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        match core.user(id) {
            Some(&ConnectionKind::RequestClient(index)) => self.on_body(core, index, id, data),
            Some(&ConnectionKind::RequestUpstream(index, _)) => {
                self.on_answer(core, index, id, data)
            }
            // They belong to its next request.
            Some(ConnectionKind::FlushingClient(_)) => core.leave_unread(data.len()),
            // An upstream must not send without a request.
            Some(ConnectionKind::IdleConnection(_) | ConnectionKind::BoundConnection(..)) => {
                core.abort(id)
            }
            Some(
                ConnectionKind::TunnelClient(_)
                | ConnectionKind::TunnelUpstream(_)
                | ConnectionKind::Unused,
            )
            | None => {}
        }
    }
}

/// Takes the port out of an upstream connection whose role changes.
fn port_of<S: Sys>(core: &mut Core<S, Relay>, id: ConnId) -> Option<Port> {
    match Relay::set(core, id, ConnectionKind::Unused) {
        ConnectionKind::RequestUpstream(_, port)
        | ConnectionKind::IdleConnection(port)
        | ConnectionKind::BoundConnection(_, port) => port,
        _ => {
            invariant::broken("a connection to an upstream is known as one");
            None
        }
    }
}

/// Removes a connection from the idle connections.
fn forget_idle_connection(idle_connections: &mut Vec<IdleConnection>, id: ConnId) {
    idle_connections.retain(|idle| idle.id != id);
}

impl Handler for Relay {
    type User = ConnectionKind;
    type Post = Post;

    /// Enough for CPU caches to help, few enough to keep the first one's latency low.
    const READS_TOGETHER: usize = 32;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.keep_room_for_pairs();
        self.shared.worker_started(self.worker);
        // From here on every reload is posted; this catches one from before.
        let live = self.shared.live();
        self.apply_live(core, live);
    }

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        self.on_request(core, id, request)
    }

    fn rejected<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        head: &RejectedRequest<'_, '_>,
    ) {
        if self.shared.has_log() {
            let (peer, named) = core.addresses(id);
            let now_ns = core.now_ns();
            let log_entry =
                PendingEntry::refused(head, named.or(peer), now_ns.saturating_sub(head.took_ns));
            self.shared.record(log_entry, None, (0, 0), (Side::Proxy, head.why), now_ns);
        }
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        // The relay accepts no WebSocket in the engine.
        core.abort(id);
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn connected<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if let Some(&ConnectionKind::RequestUpstream(index, _)) = core.user(id) {
            self.send_head(core, index, id);
        }
    }

    #[inline]
    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        let (bytes, peer) = match core.user_mut(id) {
            Some(ConnectionKind::TunnelClient(client_leg)) => {
                (&mut client_leg.bytes, client_leg.peer)
            }
            Some(ConnectionKind::TunnelUpstream(upstream_leg)) => {
                (&mut upstream_leg.bytes, upstream_leg.peer)
            }
            _ => return self.data_of_exchange(core, id, data),
        };
        *bytes += data.len() as u64;
        tunnel::pass(core, id, peer, data);
    }

    fn ended<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        match core.user(id) {
            Some(ConnectionKind::TunnelClient(_) | ConnectionKind::TunnelUpstream(_)) => {
                self.half_closed(core, id);
                true
            }
            // The client has sent its request and waits for the response.
            Some(&ConnectionKind::RequestClient(index)) => {
                self.exchanges.get(index).is_some_and(|exchange| exchange.request.is_done())
            }
            Some(ConnectionKind::FlushingClient(_)) => true,
            _ => false,
        }
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let waiting = match core.user(id) {
            Some(ConnectionKind::TunnelClient(client_leg)) => Some(client_leg.peer),
            Some(ConnectionKind::TunnelUpstream(upstream_leg)) => Some(upstream_leg.peer),
            Some(&ConnectionKind::RequestClient(index)) => {
                self.answer_drained(index, core.now_ns())
            }
            Some(&ConnectionKind::RequestUpstream(index, _)) => {
                self.request_drained(index, core.now_ns())
            }
            Some(&ConnectionKind::FlushingClient(flushing)) => {
                return self.after_answer(core, id, flushing.more);
            }
            _ => None,
        };
        if let Some(waiting) = waiting {
            core.resume(waiting);
        }
    }

    fn draining<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        self.draining = true;
        self.reset_idle_connections(core);
    }

    fn defers_drain<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        self.holds_open(core, id)
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, _: bool) {
        match Self::set(core, id, ConnectionKind::Unused) {
            ConnectionKind::TunnelClient(client_leg) => {
                self.client_leg_closed(core, id, client_leg, why)
            }
            ConnectionKind::TunnelUpstream(upstream_leg) => {
                self.upstream_leg_closed(core, upstream_leg, why)
            }
            ConnectionKind::RequestClient(index) => self.client_closed(core, index),
            ConnectionKind::RequestUpstream(index, _) => {
                // Over TLS a stream ends a response only with a close_notify (no truncation attack).
                let cut = why == Closed::Gone && core.may_be_truncated(id);
                self.upstream_closed(core, index, if cut { Closed::Reset } else { why });
            }
            ConnectionKind::IdleConnection(_) => {
                forget_idle_connection(&mut self.idle_connections, id)
            }
            ConnectionKind::BoundConnection(client, _) => {
                self.forget_bound(client);
            }
            ConnectionKind::Unused | ConnectionKind::FlushingClient(_) => {}
        }
        self.unbind(core, id);
    }

    /// What a client has sent and its upstream does not take.
    fn held_bytes<S: Sys>(&self, core: &Core<S, Self>, id: ConnId) -> usize {
        match core.user(id) {
            Some(ConnectionKind::TunnelClient(leg)) => core.queued(leg.peer),
            _ => 0,
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        match post {
            Post::Reload(live) => self.apply_live(core, live),
            Post::Drain(order) => self.begin_drain(core, order),
            Post::ListTunnels(list) => tunnel::list(core, &list),
            Post::PermitReleased => self.clock.check_waiters_now(),
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        self.run_timeouts(core)
    }
}
