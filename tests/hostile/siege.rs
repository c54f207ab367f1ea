//! [`Siege`]: a server with one worker, a neighbour who goes on echoing, and an attack that is
//! begun again and again while it does.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::socket::{Frame, Socket, TEXT, upgrade};

/// Attacks begun before anything is measured, so that what a worker needs once is there.
const FIRST: usize = 20;
/// Attacks per attempt, all held at once, each between two echoes of the neighbour.
pub(super) const HELD: usize = 200;
/// Of so many echoes a hundredth may be slower than the 99th percentile.
const SLOW: usize = HELD / 100;
/// What a worker may take for all that is held, if a test has no bound of its own.
pub(super) const RSS_BYTES: u64 = 1 << 20;

/// A server under attack.
pub(super) struct Siege {
    pub(super) server: Server,
    neighbour: Socket,
}

impl Siege {
    /// A server with one worker and `more` flags, and a neighbour on it.
    pub(super) fn begin(more: &[&str]) -> Siege {
        let server = Server::start(&[&["--workers", "1"], more].concat());
        let neighbour = Socket::open(server.listen, "/echo");
        Siege { server, neighbour }
    }

    /// Begins `attack` over and over and has each judged by `judge`; how many there were.
    ///
    /// While all attacks of the first attempt are held, the process has grown by no more than
    /// `rss_bytes`. Of the neighbour's echoes, one before and one after each attack, no more than a
    /// hundredth of those after took longer than twice the 99th percentile of those before. The
    /// machine may be busy with other things, so that is tried until it holds.
    pub(super) fn withstands<T>(
        &mut self,
        rss_bytes: u64,
        mut attack: impl FnMut(SocketAddr) -> T,
        mut judge: impl FnMut(T),
    ) -> u64 {
        let address = self.server.listen;
        for _ in 0..FIRST {
            judge(attack(address));
            self.echo();
        }
        let rss_before = self.server.rss_bytes();
        let mut begun = FIRST;
        eventually("a neighbour is served as before", || {
            let (mut before, mut after, mut held) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..HELD {
                before.push(self.echo());
                held.push(attack(address));
                after.push(self.echo());
            }
            if begun == FIRST {
                let grown = self.server.rss_bytes().saturating_sub(rss_before);
                assert!(grown <= rss_bytes, "{HELD} attacks hold {grown} B, over {rss_bytes}");
            }
            begun += HELD;
            held.into_iter().for_each(&mut judge);
            before.sort_unstable();
            let usual = before[HELD - 1 - SLOW];
            after.iter().filter(|took| **took > 2 * usual).count() <= SLOW
        });
        begun as u64
    }

    /// The same for attacks that are bytes and an answer, taken in turn. Each must be counted as
    /// the violation it is named after.
    pub(super) fn refuses(&mut self, attacks: &[Attack]) {
        let mut turn = 0..;
        let begun = self.withstands(
            RSS_BYTES,
            |address| {
                let attack = &attacks[turn.next().unwrap_or_default() % attacks.len()];
                (attack, attack.begin(address))
            },
            |(attack, socket)| attack.judge(socket),
        );
        self.server.until_closed("violation", begun);
        let metrics = self.server.metrics();
        for (index, attack) in attacks.iter().enumerate() {
            let mine =
                |at: &u64| attacks[*at as usize % attacks.len()].violation == attack.violation;
            let expected = (0..begun).filter(mine).count();
            let sample =
                format!("standfast_violations_total{{violation=\"{}\"}}", attack.violation);
            assert_eq!(metrics.get(&sample), Some(&(expected as f64)), "{index}: {sample}");
        }
    }

    /// One echo of the neighbour and how long it took.
    pub(super) fn echo(&mut self) -> Duration {
        let begun = Instant::now();
        self.neighbour.send_frame(TEXT, b"as before");
        let frame = self.neighbour.frame();
        let took = begun.elapsed();
        assert_eq!(frame, Some(Frame { first: TEXT, payload: b"as before".to_vec() }));
        took
    }
}

/// Bytes that break one rule.
pub(super) struct Attack {
    violation: &'static str,
    bytes: Vec<u8>,
    answer: Answer,
}

enum Answer {
    /// On an open WebSocket, a close frame with this code.
    Close(u16),
    /// To a request, this status.
    Status(u16),
}

impl Attack {
    /// A forbidden frame.
    pub(super) fn frame(violation: &'static str, close: u16, bytes: Vec<u8>) -> Attack {
        Attack { violation, bytes, answer: Answer::Close(close) }
    }

    /// A forbidden request.
    pub(super) fn request(violation: &'static str, status: u16, bytes: Vec<u8>) -> Attack {
        Attack { violation, bytes, answer: Answer::Status(status) }
    }

    /// An upgrade request with these changes.
    pub(super) fn upgrade(
        violation: &'static str,
        status: u16,
        changes: &[(&str, &str)],
    ) -> Attack {
        Attack::request(violation, status, upgrade("/echo", changes).into_bytes())
    }

    fn begin(&self, address: SocketAddr) -> Socket {
        let mut socket = match self.answer {
            Answer::Close(_) => Socket::open(address, "/echo"),
            Answer::Status(_) => Socket::connect(address),
        };
        socket.send(&self.bytes);
        socket
    }

    fn judge(&self, mut socket: Socket) {
        match self.answer {
            Answer::Close(code) => assert_eq!(socket.close_code(), code, "{}", self.violation),
            Answer::Status(status) => {
                let response = socket.response();
                assert_eq!(response.status, status, "{}: {response:?}", self.violation);
            }
        }
        assert!(socket.ends(), "{}: the connection goes on", self.violation);
    }
}
