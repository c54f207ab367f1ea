//! PROXY headers over the simulated kernel. [`ProxyProtocol::Accepted`]: a header at every split, its time, what it
//! leaves behind, and that limits do not go by what it says. [`ProxyProtocol::Required`], while settings change.

use std::time::Duration;

use wire::websocket::OpCode;

use super::*;
use crate::sys::sim::{Kernel, Sim};
use crate::sys::{Fd, Sys};
use crate::timers::nanoseconds;
use crate::{AdmissionLimits, Answer, Incoming, Limits, Remote, Response, Turn, Worker};

/// Notes the clients that requests are reported to come from.
#[derive(Default)]
struct Notes(Vec<Option<SocketAddr>>);

impl Handler for Notes {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: &Incoming) -> Answer {
        self.0.push(core.reported_client(id));
        Answer::Respond(Response::text(200, "ok"))
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const CLIENT: &str = "192.0.2.7:4711";

fn header() -> Vec<u8> {
    let mut out = Vec::new();
    let ends = (CLIENT.parse().unwrap(), "192.0.2.9:443".parse().unwrap());
    wire::encode_proxy_header(&mut out, wire::ProxyVersion::V2, Some(ends));
    out
}

/// Everybody is trusted.
fn proxies(protocol: ProxyProtocol) -> Proxies {
    let trusted = ["0.0.0.0/0", "::/0"].map(|network| network.parse().unwrap()).to_vec();
    let trusted = if protocol == ProxyProtocol::Accepted { Vec::new() } else { trusted };
    Proxies { trusted, protocol, ..Proxies::default() }
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

struct Bed {
    kernel: Kernel,
    outside: Sim,
    worker: Worker<Sim, Notes>,
}

impl Bed {
    fn new(per_address: Option<u32>) -> Bed {
        Bed::with(ProxyProtocol::Accepted, per_address)
    }

    fn with(protocol: ProxyProtocol, per_address: Option<u32>) -> Bed {
        let kernel = Kernel::new(1, (1 << 16, 1 << 16));
        let listener = kernel.listen(address(), 16, 0);
        let seat = kernel.seat(64, &[listener]);
        let limits = Limits {
            proxies: proxies(protocol),
            admission: AdmissionLimits { per_address, ..AdmissionLimits::default() },
            ..Limits::default()
        };
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let notes = Notes::default();
        let mut worker =
            Worker::new(seat.sys, 0, limits, remote, &seat.listeners, 64, notes).unwrap();
        worker.start_listening(0);
        Bed { outside: kernel.outside(), kernel, worker }
    }

    fn connect(&mut self) -> Fd {
        let client = self.outside.connect(address(), None).unwrap();
        self.turns();
        client
    }

    fn send(&mut self, client: Fd, bytes: &[u8]) {
        assert_eq!(self.outside.send(client, bytes).unwrap(), bytes.len());
        self.turns();
    }

    fn turns(&mut self) {
        for _ in 0..4 {
            assert_eq!(self.worker.turn(Some(Duration::ZERO)).unwrap(), Turn::Running);
        }
    }

    /// What has arrived at a client.
    fn answer(&mut self, client: Fd) -> String {
        let mut answer = [0; 4096];
        let got = self.outside.recv(client, &mut answer).unwrap();
        String::from_utf8_lossy(&answer[..got]).into_owned()
    }

    fn pass(&mut self, time: Duration) {
        self.kernel.advance(nanoseconds(time));
        self.turns();
    }

    fn take(&mut self) -> Vec<Option<SocketAddr>> {
        std::mem::take(&mut self.worker.handler.0)
    }

    /// Connections that hold anything beyond their slot.
    fn busy(&self) -> usize {
        let slots = 0..self.worker.core.slab.end();
        slots
            .filter(|slot| self.worker.core.slab.get(*slot).is_some_and(|c| c.cold.is_some()))
            .count()
    }
}

#[test]
fn a_header_at_every_split_holds_for_its_connection_and_ends_with_it() {
    let client: SocketAddr = CLIENT.parse().unwrap();
    let header = header();
    for at in 0..=header.len() {
        let mut bed = Bed::new(None);
        let (one, other) = (bed.connect(), bed.connect());
        let (front, rest) = header.split_at(at);
        for piece in [front, rest].into_iter().filter(|piece| !piece.is_empty()) {
            bed.send(one, piece);
        }
        assert_eq!((bed.take().len(), bed.busy()), (0, 0), "nothing is kept of it");
        bed.send(one, &[GET, GET].concat());
        bed.send(other, GET);
        bed.send(one, GET);
        let expected = [Some(client), Some(client), None, Some(client)];
        assert_eq!(bed.take(), expected, "{at}");
        assert_eq!(bed.worker.core.clients.len(), 1, "nobody pays for it who sends none");
        bed.outside.close(one);
        bed.turns();
        assert!(bed.worker.core.clients.is_empty());
        // The next connection has its slot.
        let next = bed.connect();
        bed.send(next, GET);
        assert_eq!(bed.take(), [None]);
    }
}

#[test]
fn a_second_header_and_a_later_one_are_no_requests() {
    let header = header();
    for bytes in [[&*header, &header, GET].concat(), [GET, &header, GET].concat()] {
        let mut bed = Bed::new(None);
        let client = bed.connect();
        bed.send(client, &bytes);
        assert!(bed.take().len() <= 1);
        let answer = bed.answer(client);
        assert!(answer.contains("HTTP/1.1 400 "), "{answer}");
    }
}

#[test]
fn an_incomplete_header_has_the_time_of_a_head() {
    for at in [1, 13, 27] {
        let mut bed = Bed::new(None);
        let client = bed.connect();
        // As long as a client may be silent.
        bed.pass(Duration::from_secs(9));
        bed.send(client, &header()[..at]);
        bed.pass(Duration::from_secs(8));
        assert_eq!(bed.worker.core.connections(), 1, "{at}");
        bed.pass(Duration::from_secs(4));
        assert_eq!(bed.worker.core.connections(), 0, "{at}");
    }
}

#[test]
fn limits_count_the_peer_and_not_what_it_claims() {
    let mut bed = Bed::new(Some(1));
    let first = bed.connect();
    bed.send(first, &[&*header(), GET].concat());
    assert_eq!(bed.take(), [Some(CLIENT.parse().unwrap())]);
    // Its peer has one already.
    bed.connect();
    assert_eq!(bed.worker.core.connections(), 1);
    bed.outside.close(first);
    bed.turns();
    let next = bed.connect();
    bed.send(next, GET);
    assert_eq!(bed.take(), [None]);
}

#[test]
fn a_setting_holds_for_connections_that_are_accepted_afterwards() {
    let change = |bed: &mut Bed, protocol| {
        let limits = Limits { proxies: proxies(protocol), ..bed.worker.core.limits().clone() };
        bed.worker.core.set_limits(limits);
    };
    // Required when it was accepted, and not any more.
    let mut bed = Bed::with(ProxyProtocol::Required, None);
    let (early, without) = (bed.connect(), bed.connect());
    change(&mut bed, ProxyProtocol::Off);
    bed.send(early, &[&*header(), GET].concat());
    bed.send(without, GET);
    // Whose request it is, an HTTP header would say now.
    assert_eq!(bed.take(), [None]);
    assert!(bed.answer(early).starts_with("HTTP/1.1 200 "));
    assert!(bed.answer(without).starts_with("HTTP/1.1 400 "));
    // Not required when it was accepted.
    let (late, next) = (bed.connect(), bed.connect());
    bed.send(late, GET);
    change(&mut bed, ProxyProtocol::Required);
    bed.send(late, GET);
    bed.send(next, GET);
    assert_eq!(bed.take(), [None, None, None]);
    let last = bed.connect();
    bed.send(last, GET);
    assert_eq!(bed.take(), []);
}
