//! Admission over the simulated kernel with its faults, from a seed: many clients are admitted, many are
//! refused. At the end the counters agree: no closed connection is counted, and nothing stays open.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod many_workers;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use engine::sys::sim::{Fault, Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{
    AdmissionLimits, Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Refusal, Remote,
    Response, Totals, Worker,
};
use wire::websocket::OpCode;

const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// Its connection stays open for another one.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const SEEDS: u64 = 60;
const SECOND_NS: u64 = 1_000_000_000;

struct Host;

impl Handler for Host {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, got: &Incoming) -> Answer {
        match got.upgrade {
            Some(_) => Answer::Upgrade(None),
            None => Answer::Respond(Response::text(200, "ok\n")),
        }
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

/// Two workers with a listener each, and clients outside.
struct Simulation {
    kernel: Kernel,
    remote: Remote<()>,
    workers: Vec<Worker<Sim, Host>>,
    outside: Sim,
    open: Vec<Fd>,
    random: fastrand::Rng,
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

impl Simulation {
    fn new(seed: u64, limits: &Limits, capacity: u32) -> Simulation {
        let kernel = Kernel::new(seed, (64, 4096));
        let listeners: Vec<usize> = (0..2).map(|_| kernel.listen(address(), 64, 0)).collect();
        let (mut wakes, mut places) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let seat = kernel.seat(1000, &listeners);
            wakes.push(seat.wake);
            places.push((seat.sys, seat.listeners));
        }
        let remote = Remote::new(wakes, limits.mailbox_bytes);
        let workers = places.into_iter().enumerate().map(|(index, (sys, numbers))| {
            let (limits, remote) = (limits.clone(), remote.clone());
            Worker::new(sys, index as u16, limits, remote, &numbers, capacity, Host).unwrap()
        });
        let workers = workers.collect();
        (0..2).for_each(|listener| remote.give_listener(listener, listener));
        let outside = kernel.outside();
        let random = fastrand::Rng::with_seed(seed);
        Simulation { kernel, remote, workers, outside, open: Vec::new(), random }
    }

    fn faults(&self) {
        for fault in [
            Fault::ShortRead,
            Fault::ShortSend,
            Fault::AgainOnRead,
            Fault::AgainOnSend,
            Fault::Interrupted,
            Fault::Reset,
            Fault::Aborted,
            Fault::NoBuffers,
            Fault::LateEvent,
        ] {
            self.kernel.set_rate(fault, 300);
        }
    }

    /// A client connects, sends its request or a part of it, or disconnects.
    fn act(&mut self) {
        match self.random.u8(..6) {
            0 if !self.open.is_empty() => {
                let leaver = self.open.swap_remove(self.random.usize(..self.open.len()));
                if self.random.bool() {
                    self.outside.reset_on_close(leaver);
                }
                self.outside.close(leaver);
            }
            said => {
                let source = IpAddr::from([127, 0, 0, self.random.u8(1..5)]);
                let Ok(fd) = self.outside.connect(address(), Some(source)) else { return };
                let part = self.random.usize(..HANDSHAKE.len());
                let said = match said {
                    1 => &HANDSHAKE[..part],
                    2 => b"nonsense\r\n\r\n",
                    3 => REQUEST,
                    _ => HANDSHAKE,
                };
                let _ = self.outside.send(fd, said);
                self.open.push(fd);
            }
        }
    }

    fn turns(&mut self) {
        for worker in &mut self.workers {
            for _ in 0..3 {
                worker.turn(Some(Duration::ZERO)).unwrap();
            }
        }
        self.check();
    }

    /// Checks what must hold at any time.
    fn check(&self) {
        let totals = Totals::sum(self.remote.counters());
        let ended: u64 = totals.closed.iter().sum();
        assert_eq!(totals.accepted, ended + totals.connections, "who came in left or is there");
        let used: usize = (0..2).map(|table| self.kernel.used(table)).sum();
        assert_eq!(used, 2 * 3 + totals.connections as usize, "a refused one stays open");
    }

    /// All clients disconnect, and time passes.
    fn empty(&mut self) {
        self.kernel.calm();
        for fd in std::mem::take(&mut self.open) {
            self.outside.close(fd);
        }
        for _ in 0..40 {
            self.kernel.advance(SECOND_NS);
            self.turns();
        }
    }
}

#[test]
fn counters_agree_under_all_faults() {
    let mut seen = [0u64; Refusal::ALL.len()];
    let (mut shed, mut keep_alive_closed) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let mut maybe = |most: u32| random.bool().then(|| random.u32(1..most));
        let limits = Limits {
            admission: AdmissionLimits {
                handshakes: maybe(6).unwrap_or(100),
                connect_rate: maybe(200),
                per_address: maybe(8),
                per_address_rate: maybe(40),
                ..AdmissionLimits::default()
            },
            close_timeout: Duration::from_secs(1),
            idle_timeout: Some(Duration::from_secs(8)),
            ..Limits::default()
        };
        let capacity = if seed % 3 == 0 { 20 } else { 1000 };
        let mut simulation = Simulation::new(seed, &limits, capacity);
        simulation.faults();
        for step in 0..300 {
            simulation.act();
            simulation.kernel.advance(simulation.random.u64(..20_000_000));
            let short = (250..280).contains(&step) && seed % 2 == 0;
            simulation.remote.set_short_of_memory(short);
            if short {
                simulation.remote.shed(300, 0);
            }
            simulation.turns();
        }
        simulation.empty();
        let totals = Totals::sum(simulation.remote.counters());
        assert_eq!(totals.connections, 0, "seed {seed}");
        assert_eq!(
            simulation.remote.handshakes(),
            0,
            "seed {seed}: a handshake is still in flight"
        );
        if limits.admission.per_address.is_some() || limits.admission.per_address_rate.is_some() {
            assert!(simulation.remote.addresses() <= 4, "seed {seed}");
        } else {
            assert_eq!(simulation.remote.addresses(), 0, "seed {seed}");
        }
        seen.iter_mut().zip(&totals.refused).for_each(|(sum, one)| *sum += one);
        shed += totals.shed;
        keep_alive_closed += totals.keep_alive_closed;
    }
    let rare = shed.min(keep_alive_closed);
    let connections = seen[Refusal::Connections as usize];
    assert!(rare > 3 && connections > 3, "{shed} {keep_alive_closed} {connections}");
    // Nobody polls here: the tests of polled connections do.
    let others = [Refusal::Connections as usize, Refusal::PolledBytes as usize];
    let mut often = seen.iter().enumerate().filter(|(at, _)| !others.contains(at));
    assert!(often.all(|(_, count)| *count > 100), "{seen:?}");
}

#[test]
fn address_never_has_more_connections_than_its_limit() {
    for seed in 0..20 {
        let admission = AdmissionLimits { per_address: Some(3), ..AdmissionLimits::default() };
        let limits = Limits { admission, ..Limits::default() };
        let mut simulation = Simulation::new(seed, &limits, 1000);
        simulation.faults();
        for _ in 0..300 {
            simulation.act();
            simulation.kernel.advance(1_000_000);
            simulation.turns();
            let totals = Totals::sum(simulation.remote.counters());
            assert!(totals.connections <= 3 * 4, "seed {seed}: {}", totals.connections);
        }
        assert!(simulation.remote.addresses() <= 4);
        simulation.empty();
        assert_eq!(simulation.remote.addresses(), 0, "seed {seed}: an address stays");
    }
}
