//! Messages that start and never end (BI-04: endless fragments), over the simulated kernel and its clock: a
//! peer that only keeps the connection busy is closed, a slow one is not.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Worker};
use wire::Role;
use wire::websocket::{Decoder, Event, FrameHeader, OpCode, encode_masked};

const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SECOND_NS: u64 = 1_000_000_000;
const IDLE_SECONDS: usize = 120;
const MASK: [u8; 4] = [1, 2, 3, 4];

/// Closed connections and complete messages.
#[derive(Default)]
struct Host {
    closed: Vec<Closed>,
    messages: Vec<usize>,
}

impl Handler for Host {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, data: &mut [u8]) {
        self.messages.push(data.len());
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, why: Closed, _: bool) {
        self.closed.push(why);
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

/// One worker and one client that answers every ping.
struct Simulation {
    kernel: Kernel,
    worker: Worker<Sim, Host>,
    table: usize,
    outside: Sim,
    client: Fd,
    decoder: Decoder,
    read: Vec<u8>,
    /// The code and reason of the server's close frame.
    close_frame: Option<(u16, String)>,
}

impl Simulation {
    fn new() -> Simulation {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let kernel = Kernel::new(1, (1 << 20, 1 << 20));
        let listener = kernel.listen(address, 16, 0);
        let seat = kernel.seat(64, &[listener]);
        let limits = Limits {
            idle_timeout: Some(Duration::from_secs(IDLE_SECONDS as u64)),
            ..Limits::default()
        };
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let table = seat.sys.table();
        let worker =
            Worker::new(seat.sys, 0, limits, remote.clone(), &seat.listeners, 50, Host::default())
                .unwrap();
        remote.give_listener(0, 0);
        let mut outside = kernel.outside();
        let client = outside.connect(address, None).unwrap();
        outside.send(client, HANDSHAKE).unwrap();
        let (decoder, read, close_frame) = (Decoder::default(), Vec::new(), None);
        let mut simulation =
            Simulation { kernel, worker, table, outside, client, decoder, read, close_frame };
        simulation.settle();
        simulation
            .read
            .drain(..simulation.read.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4);
        simulation
    }

    fn send(&mut self, opcode: OpCode, last: bool, data: &[u8]) {
        let mut frame =
            FrameHeader::new(opcode, last, data.len(), Some([0; 4])).as_slice().to_vec();
        frame.extend_from_slice(data);
        // After the server's close frame the data is ignored.
        let _ = self.outside.send(self.client, &frame);
        self.settle();
    }

    /// Advances the clock by a second and answers pings.
    fn second(&mut self) {
        self.kernel.advance(SECOND_NS);
        self.settle();
        let mut read = std::mem::take(&mut self.read);
        let mut at = 0;
        let mut pongs = Vec::new();
        while let Ok(wire::Status::Complete((used, event))) =
            self.decoder.decode(Role::Client, &wire::Limits::default(), &mut read[at..])
        {
            match event {
                Event::Ping(payload) => encode_masked(&mut pongs, OpCode::Pong, payload, MASK),
                Event::Close { code, reason } => {
                    self.close_frame = Some((code.unwrap().0, reason.to_owned()));
                }
                other => panic!("{other:?}"),
            }
            at += used;
        }
        self.read = read.split_off(at);
        if !pongs.is_empty() {
            let _ = self.outside.send(self.client, &pongs);
            self.settle();
        }
    }

    fn settle(&mut self) {
        let due = |simulation: &Simulation| {
            let now_ns = simulation.kernel.now_ns();
            simulation.worker.deadline().is_some_and(|at_ns| at_ns <= now_ns)
        };
        while due(self) || self.kernel.is_ready(self.table) {
            self.worker.turn(None).unwrap();
        }
        let mut buffer = [0; 4096];
        while let Ok(got @ 1..) = self.outside.recv(self.client, &mut buffer) {
            self.read.extend_from_slice(&buffer[..got]);
        }
    }

    fn host(&mut self) -> &Host {
        self.worker.parts().0
    }

    /// Seconds until the connection is closed, with `each` called every second.
    fn lives(&mut self, most: usize, mut each: impl FnMut(&mut Simulation, usize)) -> usize {
        for second in 0..most {
            each(self, second);
            self.second();
            if self.close_frame.is_some() {
                // The timeout for an answer to our close frame passes.
                (0..10).for_each(|_| self.second());
                return second;
            }
        }
        most
    }
}

#[test]
fn endless_empty_fragments_are_closed_as_unfinished() {
    let mut simulation = Simulation::new();
    simulation.send(OpCode::Text, false, b"begun");
    let lived =
        simulation.lives(1_000, |simulation, _| simulation.send(OpCode::Continuation, false, b""));
    assert!((IDLE_SECONDS..=IDLE_SECONDS * 9 / 4).contains(&lived), "{lived} s");
    assert_eq!(simulation.close_frame, Some((1008, "message unfinished".to_owned())));
    assert_eq!(simulation.host().closed, [Closed::Unfinished]);
    assert!(simulation.host().messages.is_empty());
}

/// Not even the first byte of the message has arrived.
#[test]
fn message_of_only_empty_fragments_is_closed_as_unfinished() {
    let mut simulation = Simulation::new();
    simulation.send(OpCode::Binary, false, b"");
    let lived =
        simulation.lives(1_000, |simulation, _| simulation.send(OpCode::Continuation, false, b""));
    assert!((IDLE_SECONDS..=IDLE_SECONDS * 9 / 4).contains(&lived), "{lived} s");
    assert_eq!(simulation.host().closed, [Closed::Unfinished]);
}

/// Half a frame, and then nothing but pongs to our pings.
#[test]
fn pongs_do_not_keep_a_partial_frame_alive() {
    let mut simulation = Simulation::new();
    let header = FrameHeader::new(OpCode::Binary, true, 5_000, Some([0; 4]));
    let partial = [header.as_slice(), &[7; 100]].concat();
    simulation.outside.send(simulation.client, &partial).unwrap();
    simulation.settle();
    // A pong would be bytes of the partial frame, so this client can send none.
    let lived = simulation.lives(1_000, |simulation, second| {
        if second % 20 == 0 {
            simulation.outside.send(simulation.client, b"x").unwrap();
            simulation.settle();
        }
    });
    assert!(lived <= IDLE_SECONDS * 9 / 4, "{lived} s");
    assert_eq!(simulation.host().closed, [Closed::Unfinished]);
}

#[test]
fn slow_message_is_received_in_the_end() {
    let mut simulation = Simulation::new();
    simulation.send(OpCode::Binary, false, b"");
    let lived = simulation.lives(IDLE_SECONDS * 5, |simulation, _| {
        simulation.send(OpCode::Continuation, false, &[7; 10]);
    });
    assert_eq!((lived, simulation.close_frame.as_ref()), (IDLE_SECONDS * 5, None));
    simulation.send(OpCode::Continuation, true, b"");
    assert_eq!(simulation.host().messages, [IDLE_SECONDS * 5 * 10]);
}

/// The time for a message starts anew with each message.
#[test]
fn any_number_of_complete_messages_is_accepted() {
    let mut simulation = Simulation::new();
    let lived = simulation.lives(IDLE_SECONDS * 5, |simulation, second| {
        let begins = second % 100 == 0;
        let opcode = if begins { OpCode::Text } else { OpCode::Continuation };
        simulation.send(opcode, second % 100 == 99, b"x");
    });
    assert_eq!((lived, simulation.close_frame.as_ref()), (IDLE_SECONDS * 5, None));
    assert_eq!(simulation.host().messages, [100; 6]);
}

#[test]
fn silence_within_a_message_is_closed_as_idle() {
    let mut simulation = Simulation::new();
    simulation.send(OpCode::Text, false, b"begun");
    // Pings are not answered here.
    for _ in 0..IDLE_SECONDS * 2 {
        simulation.kernel.advance(SECOND_NS);
        simulation.settle();
    }
    assert_eq!(simulation.host().closed, [Closed::IdleTimeout]);
}
