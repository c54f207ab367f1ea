//! No state of a tunnel makes a worker of `standfast proxy` spin: over TCP, UNIX sockets and TLS on both legs,
//! half-closed, unread, ended and reset by either side, in both orders. The worker's turns are counted on the
//! real kernel: epoll reports a hang-up whatever a descriptor is watched for, so a leg that waits for the other
//! one is easily reported for ever.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv, sockopt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use crate::harness::server::Server;
use crate::harness::socket::upgrade;
use crate::harness::tls::Authority;
use crate::harness::upstream::switching;
use crate::harness::{Scratch, eventually};

/// Turns per second that count as spinning. Timers need some tens; a worker that spins takes tens of
/// thousands, on a busy machine thousands.
const SPINS: f64 = 1_000.0;
/// How long turns are counted.
const COUNTED: Duration = Duration::from_millis(500);

/// What one end of a tunnel does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Open,
    HalfClosed,
    Ended,
    Reset,
}

/// What one end does, and whether it stops reading before, with more on its way than the buffers hold.
type End = (State, bool);

const ENDS: [End; 6] = [
    (State::Open, false),
    (State::Open, true),
    (State::HalfClosed, false),
    (State::HalfClosed, true),
    (State::Ended, false),
    (State::Reset, false),
];

/// One end of a tunnel, of any transport.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Client(Box<StreamOwned<ClientConnection, TcpStream>>),
    Server(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Stream {
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Tcp(tcp) => Some(tcp),
            Stream::Unix(_) => None,
            Stream::Client(stream) => Some(&stream.sock),
            Stream::Server(stream) => Some(&stream.sock),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(unix) => unix.as_fd(),
            other => other.tcp().expect("all others use TCP").as_fd(),
        }
    }

    fn reader(&mut self) -> &mut dyn Read {
        match self {
            Stream::Tcp(tcp) => tcp,
            Stream::Unix(unix) => unix,
            Stream::Client(stream) => stream,
            Stream::Server(stream) => stream,
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Stream::Tcp(tcp) => tcp,
            Stream::Unix(unix) => unix,
            Stream::Client(stream) => stream,
            Stream::Server(stream) => stream,
        }
    }

    /// Reads a head.
    fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.reader().read_exact(&mut byte).expect("a head arrives");
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap()
    }

    fn say(&mut self, text: &str) {
        self.writer().write_all(text.as_bytes()).unwrap();
        self.writer().flush().unwrap();
    }

    fn set_blocking(&self, blocking: bool) {
        rustix::io::ioctl_fionbio(self.fd(), !blocking).unwrap();
    }

    /// Sends as much as the kernel takes now.
    fn pour(&mut self) {
        while matches!(self.writer().write(&[b'd'; 32 * 1024]), Ok(1..)) {}
    }

    /// Waits until a byte has arrived and leaves it unread, so that a close becomes a reset, of a UNIX
    /// socket too.
    fn await_unread(&self) {
        eventually("a byte arrives", || {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let mut byte = [0u8];
            recv(self.fd(), &mut byte[..], flags).is_ok_and(|(_, got)| got > 0)
        });
    }

    /// Ends the sending direction.
    fn finish(&mut self) {
        match self {
            Stream::Client(stream) => stream.conn.send_close_notify(),
            Stream::Server(stream) => stream.conn.send_close_notify(),
            _ => {}
        }
        // A kernel that takes no more gets no close_notify.
        let _ = self.writer().flush();
        let _ = match self {
            Stream::Unix(unix) => unix.shutdown(Shutdown::Write),
            other => other.tcp().expect("all others use TCP").shutdown(Shutdown::Write),
        };
    }
}

/// A tunnel. An end that has closed is gone.
struct Tunnel {
    name: String,
    states: [State; 2],
    first: usize,
    ends: [Option<Stream>; 2],
}

impl Tunnel {
    /// Brings the end that acts first, or the other one, into its state.
    fn act(&mut self, first: bool) {
        let at = if first { self.first } else { 1 - self.first };
        let Some(mut stream) = self.ends[at].take() else { return };
        match self.states[at] {
            State::Open => self.ends[at] = Some(stream),
            State::HalfClosed => {
                stream.finish();
                self.ends[at] = Some(stream);
            }
            State::Ended => stream.finish(),
            State::Reset => {
                if let Some(tcp) = stream.tcp() {
                    sockopt::set_socket_linger(tcp, Some(Duration::ZERO)).unwrap();
                }
            }
        }
    }
}

/// A proxy with one worker and upstreams of every transport.
struct Setup {
    proxy: Server,
    clients: &'static str,
    _authority: Authority,
    tcp: TcpListener,
    tls: TcpListener,
    unix: UnixListener,
    accepts: Arc<ServerConfig>,
    trusts: Arc<ClientConfig>,
    paths: [String; 2],
    _config: Scratch,
}

impl Setup {
    fn new(clients: &'static str) -> Setup {
        let authority = Authority::new();
        authority.sign("server", &["localhost"]);
        let (tcp, tls) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let (tcp, tls) = (tcp.unwrap(), tls.unwrap());
        // Small buffers fill up soon.
        for listener in [&tcp, &tls] {
            sockopt::set_socket_recv_buffer_size(listener, 8 * 1024).unwrap();
        }
        let paths = ["up", "down"].map(|of| {
            let folder = std::env::temp_dir();
            format!("{}/standfast-turns-{}-{clients}-{of}", folder.display(), std::process::id())
        });
        let unix = UnixListener::bind(&paths[0]).unwrap();
        let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
        let secure = match clients {
            "tls" => format!("tls_cert = '{certificate}'\ntls_key = '{key}'"),
            _ => String::new(),
        };
        let pool = |name: &str, address: &str, more: &str| {
            format!(
                "[[route]]\npath = '/{name}'\npool = '{name}'\n\
                 [pool.{name}]\nupstreams = ['{address}']\n{more}\n"
            )
        };
        let config = [
            // No tunnel ends by itself while others are prepared.
            format!("[proxy]\nworkers = 1\nfin_timeout = '10m'\npeer_timeout = '10m'\n{secure}\n"),
            pool("tcp", &tcp.local_addr().unwrap().to_string(), ""),
            pool("unix", &format!("unix:{}", paths[0]), ""),
            pool("tls", &tls.local_addr().unwrap().to_string(), "tls = true\ntls_insecure = true"),
        ];
        let config = Scratch::new(&format!("turns-{clients}.toml"), &config.concat());
        let unix_listener = format!("unix:{}", paths[1]);
        let flags = ["--config", config.path(), "--listen", &unix_listener];
        let proxy = Server::start_proxy(if clients == "unix" { &flags } else { &flags[..2] });
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let accepts = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![authority.certificate("server")],
                PrivateKeyDer::from_pem_file(key).unwrap(),
            )
            .unwrap();
        let trusts = authority.client(None);
        Setup {
            proxy,
            clients,
            _authority: authority,
            tcp,
            tls,
            unix,
            accepts: Arc::new(accepts),
            trusts,
            paths,
            _config: config,
        }
    }

    fn metric(&self, name: &str) -> f64 {
        self.proxy.metrics()[&format!("standfast_{name}")]
    }

    fn connect(&self) -> Stream {
        if self.clients == "unix" {
            return Stream::Unix(UnixStream::connect(&self.paths[1]).unwrap());
        }
        let tcp = TcpStream::connect(self.proxy.listen).unwrap();
        sockopt::set_socket_recv_buffer_size(&tcp, 8 * 1024).unwrap();
        if self.clients == "tcp" {
            return Stream::Tcp(tcp);
        }
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.trusts), name).unwrap();
        Stream::Client(Box::new(StreamOwned::new(session, tcp)))
    }

    fn accept(&self, upstreams: &str) -> Stream {
        match upstreams {
            "unix" => Stream::Unix(self.unix.accept().unwrap().0),
            "tcp" => Stream::Tcp(self.tcp.accept().unwrap().0),
            _ => {
                let session = ServerConnection::new(Arc::clone(&self.accepts)).unwrap();
                let tcp = self.tls.accept().unwrap().0;
                Stream::Server(Box::new(StreamOwned::new(session, tcp)))
            }
        }
    }

    /// Opens a tunnel whose ends, the client first, are to come into these states. `first` acts first.
    fn tunnel(&self, upstreams: &str, ends: [End; 2], first: usize) -> Tunnel {
        let name = format!("{} to {upstreams}, {ends:?}, {first} first", self.clients);
        let mut client = self.connect();
        client.say(&upgrade(&format!("/{upstreams}"), &[]));
        let mut upstream = self.accept(upstreams);
        upstream.head();
        upstream.say(&switching());
        assert!(client.head().starts_with("HTTP/1.1 101 "), "{name}");
        let mut streams = [client, upstream];
        for (at, (state, paused)) in ends.into_iter().enumerate() {
            let other = &mut streams[1 - at];
            if paused {
                self.fill(other, &name);
            } else if state == State::Reset {
                other.say("x");
                streams[at].await_unread();
            }
        }
        Tunnel { name, states: ends.map(|(state, _)| state), first, ends: streams.map(Some) }
    }

    /// Sends on this end until the proxy has a backlog for the other end.
    fn fill(&self, end: &mut Stream, name: &str) {
        end.set_blocking(false);
        let mut least = self.metric("queued_bytes");
        eventually(&format!("the proxy holds something back: {name}"), || {
            end.pour();
            // The kernel may take more of an earlier backlog.
            let queued = self.metric("queued_bytes");
            least = least.min(queued);
            queued > least
        });
        end.pour();
    }

    /// The worker's turns per second.
    fn turns_per_second(&self) -> f64 {
        let (before, began) = (self.metric("turns_total"), Instant::now());
        thread::sleep(COUNTED);
        (self.metric("turns_total") - before) / began.elapsed().as_secs_f64()
    }

    /// Whether the worker comes to rest.
    fn is_quiet(&self) -> bool {
        // What is still arriving takes a few turns, too.
        (0..4).any(|_| self.turns_per_second() <= SPINS)
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn no_combination_spins(clients: &'static str) {
    let setup = Setup::new(clients);
    for upstreams in ["tcp", "unix", "tls"] {
        let mut tunnels = Vec::new();
        for (client, upstream) in ENDS.into_iter().flat_map(|a| ENDS.map(|b| (a, b))) {
            tunnels.push(setup.tunnel(upstreams, [client, upstream], 0));
            if client.0 != State::Open && upstream.0 != State::Open {
                tunnels.push(setup.tunnel(upstreams, [client, upstream], 1));
            }
        }
        // None ends before all backlogs are there.
        for first in [true, false] {
            tunnels.iter_mut().for_each(|tunnel| tunnel.act(first));
            // The worker has seen that once it has opened another tunnel.
            setup.tunnel(upstreams, [ENDS[0]; 2], 0);
        }
        if !setup.is_quiet() {
            // Without the tunnel that does it the worker rests.
            while let Some(tunnel) = tunnels.pop() {
                let name = tunnel.name.clone();
                drop(tunnel);
                assert!(setup.turns_per_second() > SPINS, "{name}: the worker spins");
            }
            panic!("{clients} to {upstreams}: the worker spins even without a tunnel");
        }
        let left = setup.metric("tunnels");
        assert!(left >= 20.0, "only {left} tunnels of {} are left", tunnels.len());
        let open = tunnels.iter().flat_map(|tunnel| &tunnel.ends).flatten().count();
        assert!(open > tunnels.len() / 2, "{open}");
        drop(tunnels);
        eventually("nothing is left", || setup.metric("tunnels") == 0.0);
    }
}

#[test]
fn no_tunnel_of_a_tcp_client_makes_a_worker_spin() {
    no_combination_spins("tcp");
}

#[test]
fn no_tunnel_of_a_unix_client_makes_a_worker_spin() {
    no_combination_spins("unix");
}

#[test]
fn no_tunnel_of_a_tls_client_makes_a_worker_spin() {
    no_combination_spins("tls");
}
