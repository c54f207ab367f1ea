//! [`Relay`]: the proxy's handler in a worker. Both legs of a tunnel are connections of one worker.
//! Bytes go from the worker's read buffer straight to the other leg; what the kernel does not take is
//! queued there, and the first leg is not read meanwhile (backpressure).
//!
//! `dispatch` starts a request and chooses an upstream, `connect` finds a connection to it, `answer`
//! passes responses on, `tunnel` relays bytes both ways, `timeouts` ends what takes too long.

mod answer;
mod connect;
mod dispatch;
mod exchange;
mod timeouts;
mod tunnel;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, RefusedHead, Sys};
use wire::websocket::OpCode;

use self::exchange::Exchanges;
use self::tunnel::{Far, Near};

use crate::access_log::Side;
use crate::access_log::pending::{Note, Notes};
use crate::balance::{Picked, Port};
use crate::config::Live;
use crate::counters::Counters;
use crate::drain::{Endings, Order};
use crate::planted::{self, Bug};
use crate::routes::Cached;
use crate::shared::Shared;

/// The role of a connection in the relay.
#[derive(Default)]
pub enum Leg {
    /// A client without a request, or what is over.
    #[default]
    Vacant,
    /// A client whose request is under way.
    Client(u32),
    /// A client whose last answer is still leaving; whether another request may follow.
    Leaving(bool),
    /// The connection that a request goes to.
    Upstream(u32, Option<Port>),
    /// A connection to an upstream, without a request.
    Spare(Option<Port>),
    /// A tunnel's connection to the client.
    Near(Near),
    /// A tunnel's connection to the upstream.
    Far(Far),
}

// Two of these, with what the engine keeps, are what an idle tunnel costs.
const _: () = assert!(size_of::<Leg>() <= 32);

/// Messages from other threads to a worker.
pub enum Post {
    /// Settings have changed.
    Live(Arc<Live>),
    /// Tunnels are to end.
    End(Arc<Order>),
    /// A page of tunnels is wanted.
    List(Box<List>),
    /// A place at an upstream came free, or pools have changed.
    Place,
}

/// Which tunnels to list.
pub struct List {
    pub(crate) slot: u32,
    pub(crate) limit: usize,
    /// Only tunnels to these upstreams, by number.
    pub(crate) upstreams: Option<Box<[u32]>>,
    pub(crate) reply: SyncSender<Listed>,
}

/// A page of tunnels.
pub(crate) struct Listed {
    pub(crate) tunnels: Vec<TunnelInfo>,
    /// The slot of the next page; `None` at the end.
    pub(crate) next_slot: Option<u32>,
}

/// One tunnel in the admin API.
pub(crate) struct TunnelInfo {
    pub(crate) id: ConnId,
    pub(crate) upstream: String,
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
    /// Connections to upstreams without a request, with the upstream's number, the oldest first.
    spares: Vec<(u32, ConnId)>,
    /// Where heads and chunks are put together.
    scratch: Vec<u8>,
    /// What is told of tunnels when they end, by the client's slot; empty without an access log.
    notes: Notes,
    endings: Endings,
    clock: timeouts::Clock,
    /// Queued requests, the oldest first.
    waiters: VecDeque<u32>,
    /// Counts the settings there were: a connection of other ones serves no further request.
    era: u32,
    /// Which of the source addresses is next.
    source: usize,
    /// The proxy is draining: connections are not kept for reuse.
    draining: bool,
}

impl Relay {
    pub(crate) fn new(worker: u16, shared: Arc<Shared>) -> Self {
        Relay {
            live: shared.live(),
            routes: Cached::new(&shared.table),
            shared,
            worker: usize::from(worker),
            exchanges: Exchanges::default(),
            spares: Vec::new(),
            scratch: Vec::new(),
            notes: Notes::default(),
            endings: Endings::default(),
            clock: timeouts::Clock::default(),
            waiters: VecDeque::new(),
            era: 0,
            source: 0,
            draining: false,
        }
    }

    fn counters(&self) -> &Counters {
        // There is one for each planned worker.
        &self.shared.counters[self.worker]
    }

    fn live_is<S: Sys>(&mut self, core: &mut Core<S, Self>, live: Arc<Live>) {
        core.set_limits(live.engine_limits());
        core.renew_tick();
        core.set_tls(live.tls.clone());
        self.live = live;
        // What was made as was said before serves no further request.
        self.era = self.era.wrapping_add(1);
        // Routes and pools may be others, too.
        self.clock.hurry();
        self.reset_spares(core);
    }

    fn reset_spares<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        for (_, spare) in std::mem::take(&mut self.spares) {
            Self::set(core, spare, Leg::Vacant);
            core.reset(spare);
        }
    }

    /// Remembers what a connection is from now on.
    fn set<S: Sys>(core: &mut Core<S, Self>, id: ConnId, leg: Leg) -> Leg {
        core.user_mut(id).map(|user| std::mem::replace(user, leg)).unwrap_or_default()
    }

    /// Gives a place at an upstream back, and tells whoever has waited longest for one.
    fn give_back<S: Sys>(&mut self, core: &Core<S, Self>, picked: Option<Picked>) {
        let Some(picked) = picked else { return };
        let wanted = picked.upstream().has_waiters();
        drop(picked);
        if wanted {
            self.tell_first(core);
        }
    }

    /// Has the first in each line look for a place.
    fn tell_first<S: Sys>(&mut self, core: &Core<S, Self>) {
        let routes = Arc::clone(self.routes.get(&self.shared.table));
        for worker in routes.pools().iter().filter_map(|pool| pool.first_in_line()) {
            if worker == self.worker {
                self.clock.hurry();
            } else {
                // With its mailbox full it looks by itself, a moment later.
                let _ = core.remote().post(worker, Post::Place, 0);
            }
        }
    }
}

impl Relay {
    /// Bytes of a connection that is not part of a tunnel.
    #[inline(never)]
    fn data_of_exchange<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        match core.user(id) {
            Some(&Leg::Client(index)) => self.on_body(core, index, id, data),
            Some(&Leg::Upstream(index, _)) => self.on_answer(core, index, id, data),
            // Of its next request.
            Some(Leg::Leaving(_)) => core.leave_unread(data.len()),
            // Nobody asked it.
            Some(Leg::Spare(_)) => core.abort(id),
            Some(Leg::Near(_) | Leg::Far(_) | Leg::Vacant) | None => {}
        }
    }
}

/// Takes the port out of an upstream connection whose role changes.
fn port_of<S: Sys>(core: &mut Core<S, Relay>, id: ConnId) -> Option<Port> {
    match Relay::set(core, id, Leg::Vacant) {
        Leg::Upstream(_, port) | Leg::Spare(port) => port,
        _ => None,
    }
}

/// A spare connection is not to be used any more.
fn forget_spare(spares: &mut Vec<(u32, ConnId)>, id: ConnId) {
    spares.retain(|(_, spare)| *spare != id);
}

impl Handler for Relay {
    type User = Leg;
    type Post = Post;

    /// Enough for CPU caches to help, few enough to keep the first one's latency low.
    const READS_TOGETHER: usize = 32;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.keep_room_for_pairs();
        self.shared.worker_started(self.worker);
        // From here on every reload is posted; this catches one from before.
        let live = self.shared.live();
        self.live_is(core, live);
    }

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        self.on_request(core, id, request)
    }

    fn refused<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId, head: &RefusedHead<'_, '_>) {
        if self.shared.has_log() {
            let (peer, told) = core.addresses(id);
            let now_ns = core.now_ns();
            let note = Note::refused(head, told.or(peer), now_ns.saturating_sub(head.took_ns));
            self.shared.record(note, None, (0, 0), (Side::Proxy, head.why), now_ns);
        }
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        // The relay accepts no WebSocket in the engine.
        core.abort(id);
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn connected<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if let Some(&Leg::Upstream(index, _)) = core.user(id) {
            self.send_head(core, index, id);
        }
    }

    #[inline]
    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        let (bytes, peer) = match core.user_mut(id) {
            Some(Leg::Near(near)) => (&mut near.bytes, near.peer),
            Some(Leg::Far(far)) => (&mut far.bytes, far.peer),
            _ => return self.data_of_exchange(core, id, data),
        };
        *bytes += data.len() as u64;
        tunnel::pass(core, id, peer, data);
    }

    fn ended<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        match core.user(id) {
            Some(Leg::Near(_) | Leg::Far(_)) => {
                self.half_ended(core, id);
                true
            }
            // It has said all and waits for the answer.
            Some(&Leg::Client(index)) => {
                self.exchanges.get(index).is_some_and(|exchange| exchange.request.is_done())
            }
            Some(Leg::Leaving(_)) => true,
            _ => false,
        }
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let waiting = match core.user(id) {
            Some(Leg::Near(near)) => Some(near.peer),
            Some(Leg::Far(far)) => Some(far.peer),
            Some(&Leg::Client(index)) => self.exchanges.get(index).and_then(|e| e.upstream),
            Some(&Leg::Upstream(index, _)) => self.exchanges.get(index).map(|e| e.client),
            Some(&Leg::Leaving(more)) => return self.after_answer(core, id, more),
            _ => None,
        };
        if let Some(waiting) = waiting.filter(|_| !planted::on(Bug::SideForgotten)) {
            core.resume(waiting);
        }
    }

    fn draining<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        self.draining = true;
        self.reset_spares(core);
    }

    fn holds<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        self.goes_on(core, id)
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, _: bool) {
        match Self::set(core, id, Leg::Vacant) {
            Leg::Near(near) => self.near_ended(core, id, near, why),
            Leg::Far(far) => self.far_ended(core, far, why),
            Leg::Client(index) => self.client_gone(core, index),
            Leg::Upstream(index, _) => {
                // Over TLS the end of a stream is the end of an answer only if it was announced.
                let cut = why == Closed::Gone && core.may_be_cut(id);
                self.upstream_gone(core, index, if cut { Closed::Reset } else { why });
            }
            Leg::Spare(_) => forget_spare(&mut self.spares, id),
            Leg::Vacant | Leg::Leaving(_) => {}
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        match post {
            Post::Live(live) => self.live_is(core, live),
            Post::End(order) => self.take_order(core, order),
            Post::List(list) => tunnel::list(core, &list),
            Post::Place => self.clock.hurry(),
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        self.on_time(core)
    }
}
