//! [`Siege`]: a server with one worker, a well-behaved client that keeps echoing (the bystander), and
//! repeated attacks meanwhile. A second server with a bystander and no attacks is the reference, because
//! the load of the machine affects both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use crate::harness::executable;
use crate::harness::server::Server;
use crate::harness::socket::{Frame, PING, PONG, Socket, TEXT, masked, upgrade};
use crate::harness::tls::Secure;

/// Attacks before anything is measured, so that the worker has allocated what it needs once.
const FIRST: usize = 20;
/// Attacks per round, all open at the same time, with an echo of both bystanders for each.
pub(super) const HELD: usize = 200;
/// The attacked bystander's 99th percentile is at most this many times that of the reference.
const SLOWER: f64 = 2.0;
/// After every eighth attack both bystanders echo this often before the next one, which makes about
/// 200 attacks a second.
const GOES_ON_EVERY: usize = 8;
const GOES_ON: usize = 120;
/// An echo sent right after an attack may take longer by what the attack costs the worker. In seconds;
/// a debug build is slower.
const ATTACK: f64 = 200e-6;
const ATTACK_DEBUG: f64 = 10e-3;
/// Rounds and time within which that must hold.
const ROUNDS_MAX: usize = 200;
const ROUNDS_TIME_MAX: Duration = Duration::from_secs(120);
/// Memory that a worker may use for all open attacks, unless a test has its own bound.
pub(super) const RSS_BYTES: u64 = 1 << 20;

/// A server under attack, and a reference server.
pub(super) struct Siege {
    pub(super) server: Server,
    bystander: Bystander,
    calm: Bystander,
    /// The server of `calm`.
    _peaceful: Server,
}

/// A client that echoes.
enum Bystander {
    Plain(Socket),
    Secure(Box<Secure>),
}

impl Siege {
    /// A server with one worker and `more` flags, and a bystander.
    pub(super) fn begin(more: &[&str]) -> Siege {
        Siege::with(more, |server| Bystander::Plain(Socket::open(server.listen, "/echo")))
    }

    /// The same for a server with TLS, which `more` configures.
    pub(super) fn begin_tls(more: &[&str], client: &Arc<ClientConfig>) -> Siege {
        Siege::with(more, |server| {
            Bystander::Secure(Box::new(Secure::open(server.listen, client, "/echo")))
        })
    }

    fn with(more: &[&str], meet: impl Fn(&Server) -> Bystander) -> Siege {
        let flags = [&["--workers", "1"], more].concat();
        let (server, peaceful) = (Server::start(&flags), Server::start(&flags));
        let (bystander, calm) = (meet(&server), meet(&peaceful));
        Siege { server, bystander, calm, _peaceful: peaceful }
    }

    /// Starts `attack` repeatedly and checks the result of each with `judge`. Returns the number of attacks.
    ///
    /// While all attacks of the first round are open, the process has grown by at most
    /// `rss_bytes`. Both bystanders echo meanwhile, and the attacked one's 99th percentile is at
    /// most twice that of the reference. Of the echoes sent right after an attack, it may exceed that
    /// by the time for one attack.
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
            self.calm.echo();
        }
        let rss_before = self.server.own_bytes();
        let mut begun = FIRST;
        self.serves_as_before(|siege, times| {
            let mut held = Vec::new();
            for turn in 0..HELD {
                times.take(turn, siege, |_| held.push(attack(address)));
            }
            if begun == FIRST {
                let grown = siege.server.own_bytes().saturating_sub(rss_before);
                assert!(grown <= rss_bytes, "{HELD} attacks hold {grown} B, over {rss_bytes}");
            }
            begun += HELD;
            held.into_iter().for_each(&mut judge);
        });
        begun as u64
    }

    /// Runs rounds of echoes until the attacked bystander is as fast as the reference. Other processes only
    /// make echoes slower, so the lowest 99th percentile over all rounds is compared.
    pub(super) fn serves_as_before(&mut self, mut round: impl FnMut(&mut Siege, &mut Times)) {
        let attack = if executable::is_debug() { ATTACK_DEBUG } else { ATTACK };
        let [mut behind, mut attacked, mut calm] = [f64::INFINITY; 3];
        let begun = Instant::now();
        for _ in 0..ROUNDS_MAX {
            if begun.elapsed() > ROUNDS_TIME_MAX {
                break;
            }
            let mut times = Times::default();
            round(self, &mut times);
            behind = behind.min(p99(times.behind));
            attacked = attacked.min(p99(times.attacked));
            calm = calm.min(p99(times.calm));
            if attacked <= SLOWER * calm && behind <= SLOWER * calm + attack {
                return;
            }
        }
        panic!(
            "p99 of the bystander's echo: {attacked} s, right after an attack {behind} s; reference \
             {calm} s"
        );
    }

    /// The same for attacks that are bytes with an expected response, in rotation. Each must be counted as
    /// its violation.
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

    /// Sends one echo of the bystander and returns how long it took.
    pub(super) fn echo(&mut self) -> Duration {
        self.bystander.echo()
    }
}

/// How long echoes took in one round.
#[derive(Default)]
pub(super) struct Times {
    /// The bystander's, sent right after an attack.
    behind: Vec<Duration>,
    /// The bystander's in its longer runs, each of which starts right after an attack.
    attacked: Vec<Duration>,
    calm: Vec<Duration>,
}

impl Times {
    /// Times one echo of the bystander right after `attack`, and one of the reference before or after it. Every
    /// [`GOES_ON_EVERY`] turns both then send [`GOES_ON`] echoes.
    pub(super) fn take(&mut self, turn: usize, siege: &mut Siege, attack: impl FnOnce(&mut Siege)) {
        if turn.is_multiple_of(2) {
            self.calm.push(siege.calm.echo());
        }
        attack(siege);
        let behind = siege.bystander.echo();
        self.behind.push(behind);
        if !turn.is_multiple_of(2) {
            self.calm.push(siege.calm.echo());
        }
        if turn.is_multiple_of(GOES_ON_EVERY) {
            self.attacked.push(behind);
            for _ in 1..GOES_ON {
                self.attacked.push(siege.bystander.echo());
                self.calm.push(siege.calm.echo());
            }
        }
    }
}

/// The time that one in a hundred exceeds.
fn p99(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() - 1 - times.len() / 100].as_secs_f64()
}

impl Bystander {
    fn echo(&mut self) -> Duration {
        let begun = Instant::now();
        self.say(TEXT, b"as before");
        let mut frame = self.hear();
        while frame.as_ref().is_some_and(|frame| frame.first == PING) {
            self.say(PONG, b"");
            frame = self.hear();
        }
        let took = begun.elapsed();
        assert_eq!(frame, Some(Frame { first: TEXT, payload: b"as before".to_vec() }));
        took
    }

    fn say(&mut self, first: u8, payload: &[u8]) {
        match self {
            Bystander::Plain(socket) => socket.send_frame(first, payload),
            Bystander::Secure(socket) => socket.send(&masked(first, payload)).unwrap(),
        }
    }

    fn hear(&mut self) -> Option<Frame> {
        match self {
            Bystander::Plain(socket) => socket.frame(),
            Bystander::Secure(socket) => socket.frame(),
        }
    }
}

/// Bytes with one violation of the protocol.
pub(super) struct Attack {
    violation: &'static str,
    bytes: Vec<u8>,
    answer: Answer,
    /// The extensions that its handshake offers.
    extensions: &'static str,
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
        Attack { violation, bytes, answer: Answer::Close(close), extensions: "" }
    }

    /// A forbidden frame with this extension negotiated.
    pub(super) fn extended(
        extensions: &'static str,
        violation: &'static str,
        close: u16,
        bytes: Vec<u8>,
    ) -> Attack {
        Attack { extensions, ..Attack::frame(violation, close, bytes) }
    }

    /// A forbidden request.
    pub(super) fn request(violation: &'static str, status: u16, bytes: Vec<u8>) -> Attack {
        Attack { violation, bytes, answer: Answer::Status(status), extensions: "" }
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
            Answer::Close(_) => Socket::open_with(address, "/echo", self.extensions),
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
        assert!(socket.ends(), "{}: the connection is still open", self.violation);
    }
}
