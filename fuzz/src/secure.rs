//! One worker with TLS over the simulated kernel, and a peer that uses the buffered interface of rustls.
//! The fuzzer splits the peer's output into any pieces and may alter, repeat, withhold or add bytes.
//!
//! For any input the worker neither panics nor spins, its counters are consistent, its output is records
//! with valid HTTP and valid frames, and in the end nothing is left. As long as no byte was altered the
//! connection works: no alert, the handshake completes, an echo returns.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use engine::sys::sim::{Fault, Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{
    ClientAuth, Limits, Remote, Target, TlsClient, TlsIdentity, TlsServer, TlsTrust, TlsVersion,
    Totals, Turn, Worker,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig};
use wire::Role;
use wire::websocket::{CloseCode, OpCode, accept_key, encode, encode_masked};

use crate::input::Input;
use crate::machine::handler::Echo;
use crate::machine::output;

const ACTIONS_MAX: usize = 300;
const TURNS_MAX: usize = 5000;
/// Key updates after which rustls treats its peer as an attacker.
const REFRESHED_MAX: usize = 30;
const MILLISECOND_NS: u64 = 1_000_000;
const REQUEST: &[u8] = b"GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const LAST_WORDS: &[u8] = b"are you still there?";

/// Certificates, made once: the tests do not depend on them.
static HOUSE: LazyLock<House> = LazyLock::new(House::new);

struct House {
    ca: String,
    certificate: String,
    key: String,
    server: TlsServer,
}

impl House {
    fn new() -> House {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
        let key = rcgen::KeyPair::generate().expect("a key");
        let ca = params.self_signed(&key).expect("an authority").pem();
        let issuer = rcgen::Issuer::new(params, key);
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
        let key = key.serialize_pem();
        let identity = TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes());
        let identity = identity.expect("an identity");
        let server =
            TlsServer::new(&[identity], TlsVersion::Tls12, ClientAuth::None).expect("a server");
        House { ca, certificate, key, server }
    }

    /// The TLS connection of the peer, in the other role than the worker.
    fn far_side(&self, role: Role, old: bool) -> Config {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let version = if old { &TLS12 } else { &TLS13 };
        let authority = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
        if role == Role::Server {
            let mut roots = RootCertStore::empty();
            roots.add(authority(&self.ca)).expect("an authority");
            let config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .expect("a version")
                .with_root_certificates(roots)
                .with_no_client_auth();
            return Config::Client(Arc::new(config));
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("PEM");
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_no_client_auth()
            .with_single_cert(vec![authority(&self.certificate)], key)
            .expect("a certificate");
        Config::Server(Arc::new(config))
    }
}

enum Config {
    Client(Arc<ClientConfig>),
    Server(Arc<ServerConfig>),
}

impl Config {
    fn connection(&self) -> Connection {
        match self {
            Config::Client(config) => {
                let name = ServerName::try_from("localhost").expect("a name");
                ClientConnection::new(Arc::clone(config), name).expect("a client").into()
            }
            Config::Server(config) => {
                rustls::ServerConnection::new(Arc::clone(config)).expect("a server").into()
            }
        }
    }
}

/// Plays the input against a worker whose side of each connection is `role`.
pub fn play(role: Role, data: &[u8]) {
    let mut input = Input::new(data);
    let mut siege = Siege::new(role, input.byte());
    siege.connect();
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        siege.act(&mut input);
        siege.settle();
    }
    siege.end();
}

struct Peer {
    fd: Fd,
    tls: Connection,
    /// Ciphertext that it has sent and that has not arrived.
    under_way: Vec<u8>,
    /// Plaintext that it has received.
    heard: Vec<u8>,
    /// The upgrade was requested or answered.
    switched: bool,
    /// Every byte so far was unaltered and in order, and it has not closed.
    honest: bool,
    /// It can no longer decode what it receives.
    deaf: bool,
    /// It may have been too slow.
    aged: bool,
    /// How often it requested new keys.
    refreshed: usize,
}

struct Siege {
    role: Role,
    config: Config,
    kernel: Kernel,
    worker: Worker<Sim, Echo>,
    remote: Remote<()>,
    table: usize,
    outside: Sim,
    listener: Fd,
    peer: Option<Peer>,
    /// The peer is the other end of the worker's newest connection.
    paired: bool,
    stopped: bool,
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 443))
}

impl Siege {
    fn new(role: Role, choice: u8) -> Siege {
        let buffers = if choice & 1 == 0 { (64 * 1024, 64 * 1024) } else { (300, 700) };
        let kernel = Kernel::new(u64::from(choice), buffers);
        let limits = Limits {
            send_queue_bytes: 64 * 1024,
            idle_timeout: Some(Duration::from_secs(2)),
            handshake_timeout: Duration::from_secs(1),
            close_timeout: Duration::from_millis(500),
            ..Limits::default()
        };
        let listeners = [kernel.listen(address(), 16, 0)];
        let server = role == Role::Server;
        let (ours, theirs) =
            if server { (&listeners[..], &[][..]) } else { (&[][..], &listeners[..]) };
        let (seat, outside) = (kernel.seat(64, ours), kernel.seat(1024, theirs));
        let accepts = if server { 0 } else { outside.listeners[0] };
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let (table, numbers) = (seat.sys.table(), seat.listeners);
        let mut worker =
            Worker::new(seat.sys, 0, limits, remote.clone(), &numbers, 50, Echo::default())
                .expect("a worker can be made");
        if server {
            worker.parts().1.set_tls(Some(HOUSE.server.clone()));
            remote.give_listener(0, 0);
        } else {
            let trust = TlsTrust::Authorities(HOUSE.ca.clone().into_bytes());
            let client = TlsClient::new(&trust, None, choice & 4 == 0).expect("a client");
            let mut target = Target::websocket(address(), "localhost", "/echo", &[], false, &[]);
            target.tls = Some(client.named("localhost").expect("a name"));
            worker.parts().1.add_target(target).expect("there is room for one target");
        }
        let config = HOUSE.far_side(role, choice & 2 != 0);
        let (outside, listener) = (outside.sys, Fd::new(accepts));
        let (peer, paired, stopped) = (None, true, false);
        Siege {
            role,
            config,
            kernel,
            worker,
            remote,
            table,
            outside,
            listener,
            peer,
            paired,
            stopped,
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let action = input.byte();
        let many = usize::from(action >> 4) * 97;
        match action & 15 {
            0 | 1 => self.deliver(usize::from(action >> 4)),
            2 => self.deliver(many),
            3 => self.deliver(usize::MAX),
            4 | 5 => self.alter(action, input),
            6 => self.say(many, input),
            7 => self.hear(many),
            8 => self.hear(usize::MAX),
            9 => {
                let times = [1, 20, 110, 400, 600, 1100, 2100, 10_000];
                self.kernel.advance(times[usize::from(action >> 4) % 8] * MILLISECOND_NS);
                self.with_peer(|peer, _| peer.aged = true);
            }
            10 => self.with_peer(|peer, outside| {
                outside.shutdown_write(peer.fd);
                peer.honest = false;
            }),
            11 => self.connect(),
            12 => self.with_peer(|peer, _| {
                peer.tls.send_close_notify();
                peer.honest = false;
                peer.deaf |= peer.tls.is_handshaking();
                peer.write();
            }),
            13 => self.set_faults(input.byte()),
            14 => self.with_peer(|peer, _| {
                peer.refreshed += 1;
                peer.honest &= peer.refreshed <= REFRESHED_MAX;
                let _ = peer.tls.refresh_traffic_keys();
                peer.write();
            }),
            _ => self.worker_acts(action >> 4),
        }
    }

    fn with_peer(&mut self, act: impl FnOnce(&mut Peer, &mut Sim)) {
        if let Some(peer) = &mut self.peer {
            act(peer, &mut self.outside);
        }
    }

    // ---- what the peer does ----

    /// Replaces the connection with a new one.
    fn connect(&mut self) {
        self.part();
        let fd = if self.role == Role::Server {
            self.outside.connect(address(), None)
        } else {
            if self.stopped || self.worker.parts().1.connect(0, None).is_err() {
                return;
            }
            self.settle();
            self.kernel.advance(30 * MILLISECOND_NS);
            self.outside.accept(self.listener)
        };
        let Ok(fd) = fd else {
            // This may be the next one accepted.
            self.paired = self.role == Role::Server;
            return;
        };
        let mut peer = Peer {
            fd,
            tls: self.config.connection(),
            under_way: Vec::new(),
            heard: Vec::new(),
            switched: false,
            honest: true,
            deaf: false,
            aged: false,
            refreshed: 0,
        };
        peer.write();
        self.peer = Some(peer);
    }

    /// Disconnects and checks what was received.
    fn part(&mut self) {
        let Some(peer) = self.peer.take() else { return };
        self.resume();
        self.outside.close(peer.fd);
        match self.role {
            Role::Server => output::check_server(&peer.heard),
            Role::Client => output::check_client(&peer.heard),
        }
    }

    /// Delivers at most that many bytes of what is in flight.
    fn deliver(&mut self, most: usize) {
        self.with_peer(|peer, outside| {
            let mut left = most.min(peer.under_way.len());
            while left > 0 {
                match outside.send(peer.fd, &peer.under_way[..left]) {
                    Ok(sent @ 1..) => {
                        peer.under_way.drain(..sent);
                        left -= sent;
                    }
                    _ => break,
                }
            }
        });
    }

    /// Alters what is in flight.
    fn alter(&mut self, action: u8, input: &mut Input<'_>) {
        let (at, how) = (usize::from(input.u16()), input.byte());
        self.with_peer(|peer, _| {
            peer.honest = false;
            let at = at % (peer.under_way.len() + 1);
            match action >> 4 & 3 {
                0 => {
                    if let Some(byte) = peer.under_way.get_mut(at) {
                        *byte ^= how.max(1);
                    }
                }
                1 => drop(peer.under_way.splice(at..at, input.take(usize::from(how)).to_vec())),
                2 => {
                    let end = peer.under_way.len().min(at + usize::from(how));
                    peer.under_way.drain(at..end);
                }
                _ => {
                    let end = peer.under_way.len().min(at + usize::from(how) * 16);
                    let again = peer.under_way[at..end].to_vec();
                    peer.under_way.extend(again);
                }
            }
        });
    }

    /// Sends the request or its response first, then messages of any length.
    fn say(&mut self, length: usize, input: &mut Input<'_>) {
        let opcode = if input.byte() & 1 == 0 { OpCode::Binary } else { OpCode::Ping };
        let length = if opcode.is_control() { length % 126 } else { length * 8 };
        let role = self.role;
        self.with_peer(|peer, _| {
            if peer.switch(role) {
                peer.frame(role, opcode, &vec![b'x'; length]);
            }
        });
    }

    /// Reads at most that many bytes of the worker's output.
    fn hear(&mut self, most: usize) {
        self.with_peer(|peer, outside| {
            let mut left = most;
            let mut buffer = [0; 4096];
            while left > 0 {
                let room = &mut buffer[..left.min(4096)];
                let Ok(got @ 1..) = outside.recv(peer.fd, room) else { return };
                peer.hear(&buffer[..got]);
                left -= got;
            }
        });
    }

    // ---- what the program and the kernel do ----

    fn worker_acts(&mut self, choice: u8) {
        let (handler, core) = self.worker.parts();
        let Some(id) = handler.pick(0) else { return };
        match choice {
            0 | 1 => _ = core.send(id, OpCode::Text, b"hello"),
            2 | 3 => _ = core.send(id, OpCode::Binary, &[7; 20_000]),
            4 => _ = core.ping(id, b"there?"),
            5 => core.close(id, CloseCode::NORMAL, "done"),
            6 => core.abort(id),
            7 => core.reset(id),
            8 | 9 => core.pause(id),
            _ => core.resume(id),
        }
    }

    fn set_faults(&self, choice: u8) {
        for (bit, fault, rate) in [
            (0, Fault::ShortRead, 5000),
            (1, Fault::ShortSend, 5000),
            (2, Fault::AgainOnRead, 2000),
            (3, Fault::AgainOnSend, 2000),
            (4, Fault::Interrupted, 1000),
            (5, Fault::SpuriousEvent, 1000),
            (6, Fault::LateEvent, 2000),
        ] {
            self.kernel.set_rate(fault, if choice >> bit & 1 == 0 { 0 } else { rate });
        }
    }

    /// Runs turns until the worker would sleep.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let now_ns = self.kernel.now_ns();
            let due = self.worker.deadline().is_some_and(|at_ns| at_ns <= now_ns);
            if self.stopped || !due && !self.kernel.is_ready(self.table) {
                return;
            }
            self.stopped = self.worker.turn(None).expect("no turn fails") == Turn::Stopped;
            let totals = self.totals();
            let went: u64 = totals.closed.iter().sum();
            assert_eq!(totals.accepted + totals.connects, went + totals.connections);
            assert_eq!(self.worker.parts().0.open(), totals.websockets);
        }
        panic!("the worker spins");
    }

    fn totals(&mut self) -> Totals {
        Totals::sum([self.worker.parts().1.counters()])
    }

    // ---- the end ----

    /// Delivers everything in flight, on both sides, without time passing.
    fn exchange(&mut self) {
        for _ in 0..2_000 {
            let before = (self.kernel.progress(self.table), self.heard());
            self.deliver(usize::MAX);
            self.settle();
            self.hear(usize::MAX);
            self.settle();
            let done = self.peer.as_ref().is_none_or(|peer| peer.under_way.is_empty());
            if done && before == (self.kernel.progress(self.table), self.heard()) {
                break;
            }
        }
    }

    fn resume(&mut self) {
        let (handler, core) = self.worker.parts();
        if let Some(id) = handler.pick(0) {
            core.resume(id);
        }
    }

    fn heard(&self) -> usize {
        self.peer.as_ref().map_or(0, |peer| peer.heard.len())
    }

    fn end(mut self) {
        self.kernel.calm();
        self.resume();
        self.exchange();
        self.check_conversation();
        self.part();
        self.remote.drain(Duration::ZERO);
        for _ in 0..200 {
            self.settle();
            if self.stopped {
                break;
            }
            self.kernel.advance(100 * MILLISECOND_NS);
        }
        assert!(self.stopped, "the worker does not end");
        let totals = self.totals();
        assert_eq!((totals.connections, totals.websockets, totals.queued_bytes), (0, 0, 0));
    }

    /// Checks that everything works with an unaltered peer that is still connected.
    fn check_conversation(&mut self) {
        let (role, totals) = (self.role, self.totals());
        let paired = self.paired;
        let Some(peer) = self.peer.as_mut().filter(|peer| peer.honest && paired) else { return };
        let told_to_go = self.worker.parts().0.open() == 0 && peer.switched;
        if totals.connections == 1 && !peer.aged && !told_to_go {
            assert!(!peer.tls.is_handshaking(), "the handshake does not end");
        }
        if totals.websockets == 1 && !peer.has_goodbye(role) {
            peer.frame(role, OpCode::Text, LAST_WORDS);
            self.exchange();
            let heard = &self.peer.as_ref().expect("it is there").heard;
            let echo = heard.len().checked_sub(LAST_WORDS.len()).map(|at| &heard[at..]);
            if role == Role::Server {
                assert_eq!(echo, Some(LAST_WORDS), "no echo");
            } else {
                assert!(echo.is_some(), "no echo");
            }
        }
    }
}

impl Peer {
    /// Turns its pending output into records in flight.
    fn write(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.under_way).expect("a vector takes all");
        }
    }

    fn plain(&mut self, bytes: &[u8]) {
        // Its buffer has a limit; it does not wait.
        for piece in bytes.chunks(16 * 1024) {
            let _ = self.tls.writer().write(piece);
            self.write();
        }
    }

    fn frame(&mut self, role: Role, opcode: OpCode, data: &[u8]) {
        let mut frame = Vec::new();
        match role {
            Role::Server => encode_masked(&mut frame, opcode, data, [1, 2, 3, 4]),
            Role::Client => encode(&mut frame, opcode, data),
        }
        self.plain(&frame);
    }

    /// Requests or accepts the upgrade after the handshake. Returns whether that was done before.
    fn switch(&mut self, role: Role) -> bool {
        if self.switched || self.tls.is_handshaking() {
            return self.switched;
        }
        if role == Role::Server {
            self.switched = true;
            self.plain(REQUEST);
            return false;
        }
        let text = String::from_utf8_lossy(&self.heard).into_owned();
        let key = text.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
        if let Some(accept) = key.map(|key| accept_key(key.as_bytes())) {
            self.switched = true;
            let accept = String::from_utf8_lossy(&accept).into_owned();
            self.plain(
                format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                     Connection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
                )
                .as_bytes(),
            );
        }
        false
    }

    fn hear(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.deaf {
            // A full buffer of data that can no longer be decoded is an error, too.
            let read = self.tls.read_tls(&mut bytes);
            match self.tls.process_new_packets() {
                Ok(state) => {
                    let begin = self.heard.len();
                    self.heard.resize(begin + state.plaintext_bytes_to_read(), 0);
                    let mut reader = self.tls.reader();
                    reader.read_exact(&mut self.heard[begin..]).expect("so much is there");
                }
                Err(error) => {
                    assert!(!self.honest, "the worker's records are bad: {error}");
                    self.deaf = true;
                }
            }
            if !matches!(read, Ok(1..)) {
                break;
            }
        }
        self.write();
    }

    /// The worker has sent close_notify.
    fn has_goodbye(&self, role: Role) -> bool {
        let close: &[u8] = if role == Role::Server { &[0x88] } else { &[0x88, 0x80] };
        self.heard.windows(close.len()).any(|window| window == close)
    }
}
