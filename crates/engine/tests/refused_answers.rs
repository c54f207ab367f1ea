//! BI-11 at the client: invalid responses to an offer of compression. Each is refused and counted, costs no
//! memory, and does not slow a well-behaved connection on the same worker. Why each response is invalid is
//! tested next to the codec (`wire`, `handshake/deflate.rs`).

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]
#![allow(clippy::disallowed_methods, reason = "it times echoes, in real time")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Response, Sys, Tables, Target,
    Totals, Workers,
};
use wire::websocket::{OpCode, accept_key};

const PATIENCE: Duration = Duration::from_secs(60);
const PAYLOAD: usize = 8;
/// Echoes per round, and echoes between two refused responses: the three wake-ups of each delay fewer echoes of a round
/// than are beyond its 99th percentile.
const ECHOES: usize = 3_600;
const EVERY: usize = 360;
/// How many times as high the 99th percentile may be as in a round without refused responses …
const SLOWER: f64 = 2.0;
/// … in the best of this many rounds, as other processes only make echoes slower.
const ROUNDS_MAX: usize = 100;
const RSS_BYTES: u64 = 1 << 20;

const LIES: [&str; 18] = [
    "server_max_window_bits=0",
    "server_max_window_bits=7",
    "server_max_window_bits=16",
    "server_max_window_bits=099",
    "server_max_window_bits=\"\"",
    "server_max_window_bits=",
    "server_max_window_bits=x",
    "server_max_window_bits=4294967305",
    "client_max_window_bits=0",
    "client_max_window_bits=7",
    "client_max_window_bits=16",
    "client_max_window_bits=099",
    "client_max_window_bits=\"\"",
    "client_max_window_bits=",
    "client_max_window_bits=x",
    "client_max_window_bits=4294967305",
    "server_no_context_takeover=1",
    "unknown",
];

/// The times of a round's echoes, and how its connects to the invalid server ended.
struct Round {
    times: Vec<Duration>,
    ends: Vec<Closed>,
}

/// Echoes with a valid server continuously, and connects to the invalid server if ordered.
struct Neighbour {
    invalid: u8,
    connects: bool,
    sent_at: Instant,
    round: Round,
    rounds: Sender<Round>,
}

/// First both servers' addresses; then whether to connect to the invalid one.
enum Order {
    Begin(SocketAddr, SocketAddr),
    Visit(bool),
}

impl Handler for Neighbour {
    type User = ();
    type Post = Order;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, ""))
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        self.sent_at = Instant::now();
        core.send(id, OpCode::Binary, &[1; PAYLOAD]);
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        _: OpCode,
        data: &mut [u8],
    ) {
        assert_eq!(data, [1; PAYLOAD]);
        let times = &mut self.round.times;
        times.push(self.sent_at.elapsed());
        if self.connects && times.len().is_multiple_of(EVERY) {
            core.connect(self.invalid, None).unwrap();
        }
        if times.len() == ECHOES {
            let round = std::mem::replace(&mut self.round, Round { times: vec![], ends: vec![] });
            self.rounds.send(round).unwrap();
        }
        self.sent_at = Instant::now();
        core.send(id, OpCode::Binary, data);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, why: Closed, opened: bool) {
        if !opened {
            self.round.ends.push(why);
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, order: Order) {
        match order {
            Order::Begin(good, invalid) => {
                let target = |address| Target::websocket(address, "localhost", "/", &[], true, &[]);
                let good = core.add_target(target(good)).unwrap();
                self.invalid = core.add_target(target(invalid)).unwrap();
                core.connect(good, None).unwrap();
            }
            Order::Visit(connects) => self.connects = connects,
        }
    }
}

#[test]
fn refused_responses_do_not_affect_another_connection() {
    let (good, invalid) = (serve(echo, |_| ""), serve(|_| (), |number| LIES[number % LIES.len()]));
    let plan = Plan { workers: 1, accepting: 1, capacity: 64, tables: Tables::Shared };
    let (rounds, round) = mpsc::channel();
    let workers = Workers::start(plan, &Limits::default(), &[], move |_, _| Neighbour {
        invalid: 0,
        connects: false,
        sent_at: Instant::now(),
        round: Round { times: vec![], ends: vec![] },
        rounds: rounds.clone(),
    })
    .unwrap();
    let tell = |order| workers.remote().post(0, order, 0).unwrap();
    let next = || round.recv_timeout(PATIENCE).unwrap();
    tell(Order::Begin(good, invalid));
    let (mut calm, mut attacked) = (p99(next()), f64::INFINITY);
    let mut ends = 0;
    let mut resident = None;
    for connects in [true, false].into_iter().cycle().take(2 * ROUNDS_MAX) {
        tell(Order::Visit(connects));
        // The round in which the order arrived is of both kinds.
        ends += refused(&next());
        let round = next();
        ends += refused(&round);
        let best = if connects { &mut attacked } else { &mut calm };
        *best = best.min(p99(round));
        resident.get_or_insert_with(rss_bytes);
        if attacked <= SLOWER * calm && ends >= 3 * LIES.len() {
            break;
        }
    }
    assert!(attacked <= SLOWER * calm, "an echo takes {attacked} s, in peace {calm} s");
    let grown = rss_bytes().saturating_sub(resident.unwrap());
    assert!(grown <= RSS_BYTES, "{ends} refused answers left {grown} B");
    let totals = Totals::sum(workers.remote().counters());
    let counted: u64 = totals.violations.iter().sum();
    assert!(counted >= ends as u64, "{counted} of {ends} counted");
    workers.drain(Duration::ZERO).unwrap();
}

/// How many connects ended; all must have been refused.
fn refused(round: &Round) -> usize {
    assert!(round.ends.iter().all(|why| *why == Closed::HandshakeRejected), "{:?}", round.ends);
    round.ends.len()
}

fn p99(mut round: Round) -> f64 {
    round.times.sort_unstable();
    round.times[ECHOES - 1 - ECHOES / 100].as_secs_f64()
}

/// A server that answers every handshake with the compression response of `agrees`, then runs `then`.
fn serve(then: fn(TcpStream), agrees: fn(usize) -> &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut piece = [0; 1024];
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(got) if got > 0 => head.extend_from_slice(&piece[..got]),
                    _ => return,
                }
            }
            let head = String::from_utf8(head).unwrap();
            let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
            let accept = String::from_utf8(accept_key(key.unwrap().as_bytes()).to_vec()).unwrap();
            let agreed = match agrees(number) {
                "" => String::new(),
                answer => format!("Sec-WebSocket-Extensions: permessage-deflate; {answer}\r\n"),
            };
            let answer = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                 Connection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n{agreed}\r\n"
            );
            stream.write_all(answer.as_bytes()).unwrap();
            then(stream);
        }
    });
    address
}

/// Echoes every frame until the client disconnects.
fn echo(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut frame = [0; 6 + PAYLOAD];
    while stream.read_exact(&mut frame).is_ok() {
        let mut answer = [0; 2 + PAYLOAD];
        answer[..2].copy_from_slice(&[frame[0], PAYLOAD as u8]);
        for (at, byte) in answer[2..].iter_mut().enumerate() {
            *byte = frame[6 + at] ^ frame[2 + at % 4];
        }
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
