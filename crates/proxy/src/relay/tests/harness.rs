//! [`Proxy`]: one worker of the proxy, its clients and its upstreams over the simulated kernel and its
//! clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{Remote, Worker};

use super::super::{Post, Relay, TunnelInfo, TunnelPage, TunnelQuery};
use crate::balance::Balance;
use crate::config::{Live, RouteTimeouts};
use crate::counters::{Counters, EndReason, Phase};
use crate::drain::{DrainAmount, DrainOrder, DrainTarget};
use crate::routes::{Registry, RoutesConfig, Table};
use crate::shared::Shared;

/// What the kernel takes for one reader.
pub(super) const BUFFER: usize = 64 * 1024;
const HANDSHAKE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const UPSTREAMS: u16 = 2;

pub(super) fn front() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

fn behind(upstream: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9001 + upstream))
}

/// The two ends of a tunnel.
#[derive(Copy, Clone)]
pub(super) struct Tunnel {
    pub(super) client: Fd,
    pub(super) upstream: Fd,
}

/// How a stream goes on after the bytes received.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Fin,
    Reset,
}

/// One worker, with upstreams that get requests in turn.
pub(super) struct Proxy {
    kernel: Kernel,
    worker: Worker<Sim, Relay>,
    table: usize,
    registry: Registry,
    shared: Arc<Shared>,
    pub(super) remote: Remote<Post>,
    outside: Sim,
    /// The upstreams' listeners.
    listeners: Vec<Fd>,
    opened: usize,
}

impl Proxy {
    pub(super) fn new() -> Proxy {
        let mut live = Live::default();
        // Idle times are measured in steps of 100 ms.
        live.timeouts.fin = Duration::from_millis(6_400);
        live.timeouts.idle_connection = Duration::from_millis(6_400);
        Proxy::with(live)
    }

    pub(super) fn with(live: Live) -> Proxy {
        let kernel = Kernel::new(1, (BUFFER, BUFFER));
        let listener = kernel.listen(front(), 2_000, 0);
        let behind_fds: Vec<usize> =
            (0..UPSTREAMS).map(|n| kernel.listen(behind(n), 2_000, 0)).collect();
        let endpoints = (0..UPSTREAMS).map(|n| behind(n).to_string().parse().unwrap());
        let mut routes = RoutesConfig::to(endpoints);
        routes.pools[0].balance = Balance::RoundRobin;
        let table = Arc::new(Table::default());
        let mut registry = Registry::new(Arc::clone(&table));
        registry.apply(routes, 0).unwrap();
        let shared = Arc::new(Shared::new(table, live, 1, Vec::new(), None));
        let seat = kernel.seat(4_000, &[listener]);
        let limits = shared.live().engine_limits(&RouteTimeouts::default());
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let relay = Relay::new(0, Arc::clone(&shared));
        let table = seat.sys.table();
        let worker =
            Worker::new(seat.sys, 0, limits, remote.clone(), &seat.listeners, 3_000, relay)
                .unwrap();
        remote.give_listener(0, 0);
        let outside = kernel.outside_with(&behind_fds);
        let listeners = outside.listeners.iter().map(|number| Fd::new(*number)).collect();
        let outside = outside.sys;
        let mut proxy = Proxy {
            kernel,
            worker,
            table,
            registry,
            shared,
            remote,
            outside,
            listeners,
            opened: 0,
        };
        proxy.settle();
        proxy
    }

    /// Turns until the worker would sleep.
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            let now_ns = self.kernel.now_ns();
            let due = self.worker.deadline().is_some_and(|at_ns| at_ns <= now_ns);
            if !due && !self.kernel.is_ready(self.table) {
                return;
            }
            self.worker.turn(None).unwrap();
        }
        panic!("the worker spins");
    }

    /// Lets time pass in steps of 100 ms.
    pub(super) fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / 100 {
            self.kernel.advance(100_000_000);
            self.settle();
        }
    }

    /// A request that has been sent.
    pub(super) fn connect(&mut self, head: &[u8]) -> Fd {
        let client = self.outside.connect(front(), None).unwrap();
        self.send(client, head);
        client
    }

    /// Gives an upstream another name.
    pub(super) fn rename(&mut self, upstream: usize, name: &str) {
        let routes = self.shared.table.routes();
        routes.pools()[0].members()[upstream].upstream.rename(name, 1_000);
    }

    /// Publishes changed routes, as a reload does before it posts the new settings.
    pub(super) fn publish(&mut self, change: impl FnOnce(&mut RoutesConfig)) {
        let mut config = self.registry.config().clone();
        change(&mut config);
        self.registry.apply(config, self.kernel.now_ns()).unwrap();
    }

    /// Failures of all upstreams.
    pub(super) fn failures(&self) -> u64 {
        let routes = self.shared.table.routes();
        routes.pools()[0].members().iter().map(|member| member.upstream.failed_times()).sum()
    }

    /// One read; returns the number of bytes.
    pub(super) fn receive_some(&mut self, fd: Fd, buffer: &mut [u8]) -> usize {
        let got = self.outside.recv(fd, buffer).unwrap_or(0);
        self.settle();
        got
    }

    /// A request that reached the next upstream.
    pub(super) fn request(&mut self, head: &[u8]) -> Tunnel {
        let client = self.connect(head);
        let listener = self.listeners[self.opened % usize::from(UPSTREAMS)];
        self.opened += 1;
        let upstream = self.outside.accept(listener).unwrap();
        let (head, end) = self.receive(upstream);
        assert!(head.starts_with(b"GET ") && head.ends_with(b"\r\n\r\n"));
        assert_eq!(end, End::Open);
        Tunnel { client, upstream }
    }

    /// Opens a tunnel to the next upstream.
    pub(super) fn open(&mut self) -> Tunnel {
        let tunnel = self.request(HANDSHAKE);
        self.send(tunnel.upstream, SWITCHED);
        let (head, end) = self.receive(tunnel.client);
        assert!(head.starts_with(b"HTTP/1.1 101 ") && head.ends_with(b"\r\n\r\n"));
        assert_eq!(end, End::Open);
        tunnel
    }

    /// Accepts a connection of the proxy to the upstream of this number, if there is one.
    pub(super) fn accept(&mut self, upstream: usize) -> Option<Fd> {
        let accepted = self.outside.accept(self.listeners[upstream]).ok();
        self.settle();
        accepted
    }

    /// Bytes of request heads that are kept.
    pub(super) fn head_bytes(&self) -> usize {
        self.worker.handler().exchanges.head_bytes()
    }

    /// Sends in portions that the kernel takes.
    pub(super) fn send(&mut self, fd: Fd, bytes: &[u8]) {
        for portion in bytes.chunks(BUFFER) {
            assert_eq!(self.outside.send(fd, portion).unwrap(), portion.len());
            self.settle();
        }
    }

    /// Ends one direction.
    pub(super) fn finish(&mut self, fd: Fd) {
        self.outside.shutdown_write(fd);
        self.settle();
    }

    pub(super) fn reset(&mut self, fd: Fd) {
        self.outside.reset_on_close(fd);
        self.outside.close(fd);
        self.settle();
    }

    /// Everything that arrived, and whether the stream ended.
    pub(super) fn receive(&mut self, fd: Fd) -> (Vec<u8>, End) {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; BUFFER]);
        loop {
            let end = match self.outside.recv(fd, &mut buffer) {
                Ok(0) => End::Fin,
                Ok(got) => {
                    bytes.extend_from_slice(&buffer[..got]);
                    self.settle();
                    continue;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => End::Open,
                Err(_) => End::Reset,
            };
            return (bytes, end);
        }
    }

    pub(super) fn received_end(&mut self, fd: Fd) -> End {
        let (bytes, end) = self.receive(fd);
        assert_eq!(bytes, b"");
        end
    }

    pub(super) fn order(&mut self, target: DrainTarget, amount: DrainAmount, over: Duration) {
        let order = Arc::new(DrainOrder::new(target, amount, over, self.kernel.now_ns()));
        order.sent_to(1);
        self.remote.post(0, Post::Drain(order), 0).unwrap();
        self.settle();
    }

    /// The numbers of the upstreams, in the order of their ports.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let routes = self.shared.table.routes();
        routes.pools()[0].members().iter().map(|member| member.upstream.number()).collect()
    }

    pub(super) fn list(
        &mut self,
        slot: u32,
        limit: usize,
        upstreams: Option<Box<[u32]>>,
    ) -> TunnelPage {
        let (reply, page) = sync_channel(1);
        let query = Box::new(TunnelQuery { slot, limit, upstreams, reply });
        self.remote.post(0, Post::ListTunnels(query), 0).unwrap();
        self.settle();
        page.try_recv().unwrap()
    }

    pub(super) fn all(&mut self) -> Vec<TunnelInfo> {
        let page = self.list(0, 1_000_000, None);
        assert_eq!(page.next_slot, None);
        page.tunnels
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.counters[0]
    }

    /// Open, half closed and ending tunnels.
    pub(super) fn phases(&self) -> [u64; 3] {
        [Phase::Open, Phase::HalfClosed, Phase::Ending].map(|phase| self.counters().in_phase(phase))
    }

    /// Why tunnels were closed, with their number.
    pub(super) fn ended(&self) -> Vec<(EndReason, u64)> {
        let all = EndReason::ALL.map(|why| (why, self.counters().ended(why)));
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Whether no tunnel and no permit is left, and the tunnels closed passed so many bytes.
    #[track_caller]
    pub(super) fn check_empty(&self, bytes_up: u64, bytes_down: u64) {
        let counters = self.counters();
        assert_eq!((counters.tunnels.get(), self.phases()), (0, [0; 3]));
        assert_eq!((counters.bytes_up.get(), counters.bytes_down.get()), (bytes_up, bytes_down));
        let routes = self.shared.table.routes();
        let permits = routes.pools()[0].members().iter().map(|member| member.upstream.tunnels());
        assert_eq!(permits.sum::<u32>(), 0);
    }
}
