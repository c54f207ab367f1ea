//! [`Client`]: the worker handler that opens connections: it executes [`Order`]s and counts the events
//! of its sockets.

use std::sync::Arc;
use std::time::Duration;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sys, Target};
use wire::websocket::{CloseCode, OpCode};

use crate::delivery::receivers::{Expect, Receivers};
use crate::outcome::metrics::{Metrics, WorkerMetrics};
use crate::outcome::stalls::Stalls;
use crate::transport::cable_client::CableClients;
use crate::transport::closing::Closing;
use crate::transport::connector::Connector;
use crate::workload::churn::{Churn, ChurnOrder};
use crate::workload::echo::{EchoOrder, EchoRun};
use crate::workload::heartbeat;
use crate::workload::heartbeat::Heartbeat;
use crate::workload::socket::Socket;
use crate::{Cause, Close};

/// An order of the main thread, or of the previous worker in the lane.
pub(crate) enum Order {
    /// Begin connections up to these numbers, by worker.
    Open(Arc<[u32]>),
    /// Ping every socket once per period; `None` stops.
    Heartbeat(Option<Duration>),
    /// Send messages and expect them back.
    Echo(EchoOrder),
    /// Count received publications.
    Expect(Expect),
    /// Send this on the nth socket that receives publications.
    Publish { nth: u32, data: Box<[u8]> },
    /// Judge every receiver, given the publications of each publisher.
    Judge(Arc<[u32]>),
    /// Begin and end subscriptions, and check what is published meanwhile.
    Churn(ChurnOrder),
    /// Stop the churn and judge the subscriptions.
    StopChurn,
    /// Send no further message of an echo and no ping.
    StopSending,
    /// Close this many open connections, in slot order.
    Retire(u32),
    /// Flush recorded times; the number counts these orders.
    Flush(u64),
    /// Close all connections.
    Finish(Close),
}

/// One worker's side of a run.
pub(crate) struct Client {
    targets: Arc<[Target]>,
    metrics: WorkerMetrics,
    connector: Connector,
    /// Only with Action Cable.
    subscribers: Option<CableClients>,
    heartbeat: Option<Heartbeat>,
    traffic: Traffic,
    closing: Option<Closing>,
    stalls: Stalls,
}

/// How received messages are handled.
enum Traffic {
    Nothing,
    Echo(EchoRun),
    Broadcast(Receivers),
    Churn(Churn),
}

impl Client {
    pub(crate) fn new(
        targets: Arc<[Target]>,
        metrics: Arc<Metrics>,
        connector: Connector,
        subscribers: Option<CableClients>,
    ) -> Client {
        let traffic = Traffic::Nothing;
        let metrics = WorkerMetrics::new(metrics);
        let stalls = Stalls::default();
        let (heartbeat, closing) = (None, None);
        Client { targets, metrics, connector, subscribers, heartbeat, traffic, closing, stalls }
    }

    /// Sends a text on the nth socket that receives publications.
    fn publish<S: Sys>(&mut self, core: &mut Core<S, Self>, nth: u32, data: &[u8]) {
        let reached = |core: &Core<S, Self>, id: ConnId| match &self.subscribers {
            Some(subscribers) => subscribers.is_subscribed(id.slot()),
            None => core.is_open(id),
        };
        let ids = (0..core.slots()).filter_map(|slot| core.id_at(slot));
        let Some(id) = ids.filter(|&id| reached(core, id)).nth(nth as usize) else { return };
        match &self.subscribers {
            None => {
                core.send(id, OpCode::Text, data);
            }
            Some(subscribers) => {
                let whisper = subscribers.whisper(&self.connector, id.slot(), data);
                if let Some(whisper) = whisper {
                    core.send(id, OpCode::Text, &whisper);
                }
            }
        }
    }

    /// Closes `count` open connections, in slot order.
    fn retire<S: Sys>(core: &mut Core<S, Self>, count: u32) {
        let mut slot = 0;
        let mut left = count;
        while left > 0 && slot < core.slots() {
            let id = core.id_at(slot).filter(|&id| core.is_open(id));
            let fresh = core.user_at(slot).is_some_and(|socket| !socket.has(Socket::RETIRED));
            if let Some(id) = id.filter(|_| fresh) {
                if let Some(socket) = core.user_at(slot) {
                    socket.set(Socket::RETIRED);
                }
                core.close(id, CloseCode::NORMAL, "");
                left -= 1;
            }
            slot += 1;
        }
    }

    /// Counts a WebSocket as closed, although its connection may still be closing.
    fn leave<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        let attempts = match &mut self.subscribers {
            Some(clients) => clients.closed(id.slot(), &mut self.connector, &self.metrics),
            None => Some(1),
        };
        let mut again = None;
        let is = |flag| core.user(id).is_some_and(|socket| socket.has(flag));
        if is(Socket::RETIRED) {
            self.metrics.counts.open.sub(1);
            self.metrics.counts.retired.add(1);
        } else if is(Socket::FINISHED) && why == Closed::ByUs {
            // In this order, so that a snapshot never misses both.
            self.metrics.counts.replaced.add(1);
            self.metrics.counts.open.sub(1);
            self.connector.replace(core);
        } else {
            // In this order, so that a snapshot never takes it for closed for good.
            again = attempts.filter(|&n| self.connector.will_reconnect(n, &self.metrics));
            self.metrics.count_closed(Cause::of(core, id, why));
        }
        if let Traffic::Churn(churn) = &mut self.traffic {
            churn.forget(id.slot());
        }
        let ended_ns = (why != Closed::ByUs).then(|| core.now_ns());
        if let Some(socket) = core.user_mut(id) {
            heartbeat::forget(socket, ended_ns.is_none(), &self.metrics);
            if let Traffic::Echo(echo) = &mut self.traffic {
                echo.forget(id, socket, ended_ns);
            }
            socket.set_gone(again.unwrap_or(0));
        }
    }

    /// Counts the connections that Action Cable clients have given up.
    fn leave_given_up<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        while let Some(id) = self.subscribers.as_mut().and_then(CableClients::given_up) {
            self.leave(core, id, Closed::ByUs);
        }
    }

    /// Adds the worker's targets, when it first connects.
    fn add_targets<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        for target in self.targets.iter() {
            // The run has at most 256. Without a target every connect to it would fail.
            let _ = core.add_target(target.clone());
        }
        self.targets = Arc::new([]);
    }
}

impl Handler for Client {
    type User = Socket;
    type Post = Order;

    /// An answer may be repeated, or arrive late, while its connection is closed and replaced.
    const HEARS_AFTER_CLOSE: bool = true;

    /// Never called: a client does not listen.
    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, "This is a client.\n"))
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let before = self.connector.opened(core, id, &self.metrics);
        match &mut self.subscribers {
            Some(subscribers) => subscribers.opened(core, id, before),
            None => self.connector.settled(),
        }
        if let Traffic::Echo(echo) = &mut self.traffic {
            echo.joined(core, id, &self.metrics);
        }
    }

    fn connected<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        self.connector.connected(core, id);
    }

    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        self.connector.received(core, id, data);
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        let mut data = &*data;
        if let Traffic::Churn(churn) = &mut self.traffic
            && churn.message(core, id, data, &self.metrics)
        {
            return;
        }
        if let Some(subscribers) = &mut self.subscribers {
            let published = subscribers.message(core, id, data, &mut self.connector, &self.metrics);
            let Some(published) = published else { return self.leave_given_up(core) };
            data = published;
        }
        match &mut self.traffic {
            Traffic::Nothing | Traffic::Churn(_) => {}
            Traffic::Echo(echo) => echo.message(core, id, opcode, data, &self.metrics),
            Traffic::Broadcast(receivers) => receivers.message(core, id, data, &self.metrics),
        }
    }

    fn pong<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        heartbeat::pong(core, id, data, &self.metrics);
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        self.leave(core, id, why);
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        if !opened {
            return self.connector.failed(core, id, why, &self.metrics);
        }
        if core.user(id).is_some_and(|socket| !socket.is_gone()) {
            self.leave(core, id, why);
        }
        let attempts = core.user(id).map_or(0, |socket| socket.sent);
        if attempts > 0 {
            self.connector.reconnect(core, attempts);
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, order: Order) {
        match order {
            Order::Open(shares) => {
                self.add_targets(core);
                self.connector.open(core, shares);
            }
            Order::Heartbeat(period) => {
                if self.heartbeat.as_ref().map(Heartbeat::period) != period {
                    let now_ns = core.now_ns();
                    self.heartbeat = period.map(|period| Heartbeat::new(now_ns, period));
                }
            }
            Order::Echo(order) => {
                self.traffic = Traffic::Echo(EchoRun::begin(core, order, &self.metrics));
            }
            Order::Expect(expect) => {
                let clients = self.subscribers.as_ref();
                let reached = |slot| clients.is_none_or(|clients| clients.is_subscribed(slot));
                let receivers = Receivers::begin(core, expect, reached, &self.metrics);
                self.traffic = Traffic::Broadcast(receivers);
            }
            Order::Publish { nth, data } => self.publish(core, nth, &data),
            Order::Judge(published) => {
                if let Traffic::Broadcast(receivers) = &mut self.traffic {
                    receivers.judge(core, &published, self.connector.first(), &self.metrics);
                }
            }
            Order::Churn(order) => {
                let Some(clients) = &self.subscribers else { return };
                let (channels, connector) = (clients.channels(), &self.connector);
                let channel_of = |slot| clients.subscribed_by(connector, slot);
                self.traffic =
                    Traffic::Churn(Churn::begin(core, order, channels, channel_of, &self.metrics));
            }
            Order::StopChurn => {
                if let Traffic::Churn(churn) = &mut self.traffic {
                    churn.stop(core);
                }
            }
            Order::StopSending => {
                self.heartbeat = None;
                if matches!(self.traffic, Traffic::Echo(_)) {
                    self.traffic = Traffic::Nothing;
                }
            }
            Order::Retire(count) => Self::retire(core, count),
            Order::Flush(number) => {
                match &mut self.traffic {
                    Traffic::Broadcast(receivers) => receivers.flush_rest(&self.metrics),
                    Traffic::Churn(churn) => churn.flush_rest(&self.metrics),
                    Traffic::Nothing | Traffic::Echo(_) => {}
                }
                self.metrics.flush_rest(number);
            }
            Order::Finish(how) => {
                self.connector.stop();
                self.heartbeat = None;
                self.traffic = Traffic::Nothing;
                self.subscribers = None;
                self.closing = Some(Closing::new(how));
            }
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        self.stalls.turn(core, &self.metrics.stalled_ns);
        let connect_ns = self.connector.turn(core, &self.metrics);
        let cable_ns = self.subscribers.as_mut();
        let cable_ns =
            cable_ns.and_then(|clients| clients.turn(core, &mut self.connector, &self.metrics));
        self.leave_given_up(core);
        let metrics = &self.metrics;
        let heartbeat_ns = self.heartbeat.as_mut().map(|heartbeat| heartbeat.turn(core, metrics));
        let traffic_ns = match &mut self.traffic {
            Traffic::Echo(echo) => echo.turn(core, metrics),
            Traffic::Churn(churn) => churn.turn(core, metrics),
            Traffic::Broadcast(receivers) => receivers.turn(core, metrics),
            Traffic::Nothing => None,
        };
        let close_ns = self.closing.as_mut().and_then(|closing| closing.turn(core, metrics));
        let flush_ns = metrics.flush(core.now_ns());
        let all = [connect_ns, cable_ns, heartbeat_ns, traffic_ns, close_ns, flush_ns];
        all.into_iter().flatten().min()
    }
}
