//! [`Routes`]: the handlers of a server as one type, so that each is called directly and the data of its
//! sockets lies in the slot of the connection.
//!
//! Routes are a list: [`Routed`] is a handler and the routes before it, [`NoRoutes`] the end. What is kept
//! of a connection is a [`Slot`] of the same shape, with the size of the largest data.

use std::collections::BTreeMap;
use std::time::Duration;

use topics::Memberships;

use crate::decision::{Outcome, Undecided};
use crate::handler::{Decided, Opening};
use crate::intervals::Interval;
use crate::remote::Task;
use crate::{
    Close, CloseCode, Context, Handler, Message, Response, RouteOptions, Socket, SocketId,
    UpgradeRequest,
};

/// The handlers of a server. Implemented by the types that [`Server::route`](crate::Server::route) makes;
/// there are no others.
pub trait Routes: RouteList {}

impl<R: RouteList> Routes for R {}

/// No route.
#[derive(Clone, Debug)]
pub struct NoRoutes;

/// A handler, and the routes before it.
#[derive(Debug)]
pub struct Routed<H: Handler, R> {
    handler: H,
    options: RouteOptions,
    /// Longest message in bytes.
    message_bytes: usize,
    tick: Option<Interval>,
    rest: R,
}

/// The clients of a worker that wait for a decision, by route. Their data may belong to its thread, so
/// they are not with the routes.
pub struct Waiting<D, R> {
    own: BTreeMap<SocketId, Undecided<D>>,
    rest: R,
}

impl<D, R: Default> Default for Waiting<D, R> {
    fn default() -> Self {
        Waiting { own: BTreeMap::new(), rest: R::default() }
    }
}

/// What is kept of a connection: nothing, or the data of one of the handlers.
pub enum Slot<D, R> {
    Own(D),
    Other(R),
}

impl<D, R: Default> Default for Slot<D, R> {
    fn default() -> Self {
        Slot::Other(R::default())
    }
}

/// A connection without data.
#[derive(Default)]
pub struct NoData;

/// What becomes of a handshake.
pub enum Upgraded<S> {
    Open(S, Opening),
    Refuse(Response),
    Later,
}

impl<S> Upgraded<S> {
    fn map<T>(self, to: impl FnOnce(S) -> T) -> Upgraded<T> {
        match self {
            Upgraded::Open(slot, answer) => Upgraded::Open(to(slot), answer),
            Upgraded::Refuse(response) => Upgraded::Refuse(response),
            Upgraded::Later => Upgraded::Later,
        }
    }
}

/// The calls of a list of routes.
pub trait RouteList: Send + 'static {
    type Slot: Default + 'static;
    type Waiting: Default + 'static;
    /// Number of routes. The last one has the index `LEN - 1`.
    const LEN: usize;

    /// The routes of another worker.
    fn fork(&self) -> Self;
    /// The longest message that any route receives, in bytes, where `default` is that of a route
    /// without a limit of its own.
    fn set_message_bytes(&mut self, default: u32) -> u32;
    /// The options of the routes, by index.
    fn options(&self) -> Vec<RouteOptions>;
    fn upgrade(
        &mut self,
        waiting: &mut Self::Waiting,
        index: usize,
        request: &UpgradeRequest<'_>,
    ) -> Upgraded<Self::Slot>;
    /// The decision about a client; `None` if nobody decides about it.
    fn decided(waiting: &mut Self::Waiting, id: SocketId) -> Option<Upgraded<Self::Slot>>;
    /// A connection has ended, perhaps before a decision.
    fn forget(waiting: &mut Self::Waiting, id: SocketId);
    fn open(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot);
    fn message(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot, message: Message<'_>);
    fn drain(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot);
    fn timer(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot);
    fn pong(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot, payload: &[u8]);
    fn stopping(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot);
    fn close(&mut self, socket: &mut Socket<'_>, slot: Self::Slot, close: &Close<'_>);
    fn call(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot, task: Box<dyn Task>);
    fn missed(&mut self, context: &mut Context<'_>, topic: &str);
    /// Returns when the next tick is due.
    fn tick(&mut self, now_ns: u64, context: &mut Context<'_>) -> Option<u64>;
}

impl RouteList for NoRoutes {
    type Slot = NoData;
    type Waiting = ();
    const LEN: usize = 0;

    fn fork(&self) -> Self {
        NoRoutes
    }

    fn set_message_bytes(&mut self, _default: u32) -> u32 {
        0
    }

    fn options(&self) -> Vec<RouteOptions> {
        Vec::new()
    }

    fn upgrade(
        &mut self,
        _waiting: &mut (),
        _index: usize,
        _request: &UpgradeRequest<'_>,
    ) -> Upgraded<NoData> {
        engine::invariant::broken("a request is for one of the routes");
        Upgraded::Refuse(Response::new(500))
    }

    fn decided(_waiting: &mut (), _id: SocketId) -> Option<Upgraded<NoData>> {
        None
    }

    fn forget(_waiting: &mut (), _id: SocketId) {}
    fn open(&mut self, _socket: &mut Socket<'_>, _slot: &mut NoData) {}
    fn message(&mut self, _socket: &mut Socket<'_>, _slot: &mut NoData, _message: Message<'_>) {}
    fn drain(&mut self, _socket: &mut Socket<'_>, _slot: &mut NoData) {}
    fn timer(&mut self, _socket: &mut Socket<'_>, _slot: &mut NoData) {}
    fn pong(&mut self, _socket: &mut Socket<'_>, _slot: &mut NoData, _payload: &[u8]) {}
    fn stopping(&mut self, _socket: &mut Socket<'_>, _slot: &mut NoData) {}
    fn close(&mut self, _socket: &mut Socket<'_>, _slot: NoData, _close: &Close<'_>) {}
    fn call(&mut self, _socket: &mut Socket<'_>, _slot: &mut NoData, _task: Box<dyn Task>) {}

    fn missed(&mut self, _context: &mut Context<'_>, _topic: &str) {}

    fn tick(&mut self, _now_ns: u64, _context: &mut Context<'_>) -> Option<u64> {
        None
    }
}

impl<H: Handler, R: RouteList> Routed<H, R> {
    pub(crate) fn new(handler: H, options: RouteOptions, rest: R) -> Self {
        let tick = options.tick.filter(|interval| !interval.is_zero()).map(Interval::new);
        Routed { handler, options, message_bytes: 0, tick, rest }
    }

    fn tick_own(&mut self, now_ns: u64, context: &mut Context<'_>) -> Option<u64> {
        let tick = self.tick.as_mut()?;
        let (is_due, next_ns) = (tick.is_due(now_ns), tick.next_ns);
        if is_due {
            self.handler.tick(context);
        }
        Some(next_ns)
    }
}

impl<H: Handler, R: RouteList> RouteList for Routed<H, R> {
    type Slot = Slot<H::Data, R::Slot>;
    type Waiting = Waiting<H::Data, R::Waiting>;
    const LEN: usize = R::LEN + 1;

    fn fork(&self) -> Self {
        let rest = self.rest.fork();
        let routed = Routed::new(self.handler.clone(), self.options.clone(), rest);
        Routed { message_bytes: self.message_bytes, ..routed }
    }

    fn set_message_bytes(&mut self, default: u32) -> u32 {
        let own = self.options.message_bytes.unwrap_or(default);
        self.message_bytes = own as usize;
        own.max(self.rest.set_message_bytes(default))
    }

    fn options(&self) -> Vec<RouteOptions> {
        let mut options = self.rest.options();
        options.push(self.options.clone());
        options
    }

    fn upgrade(
        &mut self,
        waiting: &mut Self::Waiting,
        index: usize,
        request: &UpgradeRequest<'_>,
    ) -> Upgraded<Self::Slot> {
        if index != R::LEN {
            return self.rest.upgrade(&mut waiting.rest, index, request).map(Slot::Other);
        }
        match self.handler.upgrade(request).map(|accept| accept.0) {
            Ok(Decided::Now { data, answer }) => Upgraded::Open(Slot::Own(data), answer),
            Ok(Decided::Later(undecided)) => {
                waiting.own.insert(request.id(), undecided);
                Upgraded::Later
            }
            Err(response) => Upgraded::Refuse(response),
        }
    }

    fn decided(waiting: &mut Self::Waiting, id: SocketId) -> Option<Upgraded<Self::Slot>> {
        let Some(undecided) = waiting.own.get(&id) else {
            return R::decided(&mut waiting.rest, id).map(|upgraded| upgraded.map(Slot::Other));
        };
        // An earlier request of the same connection may have been decided about.
        let Some(outcome) = undecided.take() else { return Some(Upgraded::Later) };
        waiting.own.remove(&id);
        Some(match outcome {
            Outcome::Accept { data, answer } => Upgraded::Open(Slot::Own(data), answer),
            Outcome::Refuse(response) => Upgraded::Refuse(response),
        })
    }

    fn forget(waiting: &mut Self::Waiting, id: SocketId) {
        if !waiting.own.is_empty() {
            waiting.own.remove(&id);
        }
        R::forget(&mut waiting.rest, id);
    }

    fn open(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot) {
        match slot {
            Slot::Own(data) => self.handler.open(socket, data),
            Slot::Other(slot) => self.rest.open(socket, slot),
        }
    }

    #[inline]
    fn message(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot, message: Message<'_>) {
        match slot {
            Slot::Own(_) if message.len() > self.message_bytes => {
                socket.close(CloseCode::TOO_BIG, "message too long");
            }
            Slot::Own(data) => self.handler.message(socket, data, message),
            Slot::Other(slot) => self.rest.message(socket, slot, message),
        }
    }

    fn drain(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot) {
        match slot {
            Slot::Own(data) => self.handler.drain(socket, data),
            Slot::Other(slot) => self.rest.drain(socket, slot),
        }
    }

    fn timer(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot) {
        match slot {
            Slot::Own(data) => self.handler.timer(socket, data),
            Slot::Other(slot) => self.rest.timer(socket, slot),
        }
    }

    fn pong(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot, payload: &[u8]) {
        match slot {
            Slot::Own(data) => self.handler.pong(socket, data, payload),
            Slot::Other(slot) => self.rest.pong(socket, slot, payload),
        }
    }

    fn stopping(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot) {
        match slot {
            Slot::Own(data) => self.handler.stopping(socket, data),
            Slot::Other(slot) => self.rest.stopping(socket, slot),
        }
    }

    fn close(&mut self, socket: &mut Socket<'_>, slot: Self::Slot, close: &Close<'_>) {
        match slot {
            Slot::Own(data) => self.handler.close(socket, data, close),
            Slot::Other(slot) => self.rest.close(socket, slot, close),
        }
    }

    fn call(&mut self, socket: &mut Socket<'_>, slot: &mut Self::Slot, task: Box<dyn Task>) {
        match slot {
            Slot::Own(data) => task.run(&mut self.handler, socket, data),
            Slot::Other(slot) => self.rest.call(socket, slot, task),
        }
    }

    fn missed(&mut self, context: &mut Context<'_>, topic: &str) {
        self.handler.missed(context, topic);
        self.rest.missed(context, topic);
    }

    fn tick(&mut self, now_ns: u64, context: &mut Context<'_>) -> Option<u64> {
        let own = self.tick_own(now_ns, context);
        let rest = self.rest.tick(now_ns, context);
        own.into_iter().chain(rest).min()
    }
}

/// A random number: the keys of hash tables are some.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Routes with little data or none add nothing to what a connection has with its subscriptions.
const _: () = {
    type Three = Slot<(), Slot<bool, Slot<u8, NoData>>>;
    assert!(size_of::<Memberships<Slot<(), NoData>>>() == 16);
    assert!(size_of::<Memberships<Three>>() == 16);
    assert!(size_of::<Memberships<Slot<Box<u8>, NoData>>>() == 24);
};
