//! [`Relay`]: a TCP relay between a node and the broker that can be told to fail: cut connections, delay
//! bytes, or keep connections open and swallow what arrives. It knows nothing of what it carries.
//!
//! Two threads per connection, one per direction: a node has a few connections to its broker.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use engine::sys::process::now_ns;

/// Connections of one relay; what comes beyond is closed.
const CONNECTIONS_MAX: usize = 256;
/// Bytes read at a time, and how many such portions wait in each direction: beyond it the sender waits, as
/// with a full socket buffer.
const PORTION_BYTES: usize = 64 * 1024;
const PORTIONS_MAX: usize = 256;
/// How often a thread that waits looks whether its connection has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Timeout of connecting to the broker, which is on loopback.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What the link does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Link {
    Pass,
    /// Existing connections are closed, new ones too.
    Cut,
    /// Connections stay open, new ones are accepted, nothing arrives.
    Swallow,
}

/// A running relay. It ends with its process.
pub(super) struct Relay {
    listen: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    broker: SocketAddr,
    state: Mutex<State>,
}

struct State {
    link: Link,
    /// Bytes arrive this much later.
    delay: Duration,
    connections: Vec<Connection>,
}

/// Both sockets of a connection, to close them from outside.
struct Connection {
    number: u64,
    node: TcpStream,
    /// `None` if it began while the link swallowed.
    broker: Option<TcpStream>,
}

impl Relay {
    /// Listens on loopback.
    ///
    /// # Errors
    /// No free port, or no thread.
    pub(super) fn start(broker: SocketAddr) -> io::Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let listen = listener.local_addr()?;
        let state =
            Mutex::new(State { link: Link::Pass, delay: Duration::ZERO, connections: Vec::new() });
        let shared = Arc::new(Shared { broker, state });
        let accepting = Arc::clone(&shared);
        thread::Builder::new().name("relay".into()).spawn(move || {
            for (number, node) in (0..).zip(listener.incoming()) {
                match node {
                    Ok(node) => accepting.begin(number, node),
                    Err(_) => thread::sleep(LOOK),
                }
            }
        })?;
        Ok(Relay { listen, shared })
    }

    /// Where the node connects instead of to the broker.
    pub(super) fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Changes by how much later bytes arrive, in both directions.
    pub(super) fn set_delay(&self, delay: Duration) {
        self.shared.state().delay = delay;
    }

    /// Changes what the link does. Connections of a cut link are closed, and those that have swallowed
    /// something when that ends: their stream has a hole.
    pub(super) fn set(&self, link: Link) {
        let mut state = self.shared.state();
        let before = std::mem::replace(&mut state.link, link);
        if link == Link::Cut || (before == Link::Swallow && link != Link::Swallow) {
            state.connections.drain(..).for_each(Connection::close);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a connection of the node, or closes it.
    fn begin(self: &Arc<Self>, number: u64, node: TcpStream) {
        let link = self.state().link;
        let broker = match link {
            Link::Cut => return,
            Link::Swallow => None,
            Link::Pass => {
                match TcpStream::connect_timeout(&self.broker, CONNECT_TIMEOUT) {
                    Ok(broker) => Some(broker),
                    // The broker is down: the node sees its connection end.
                    Err(_) => return,
                }
            }
        };
        // If anything fails here, both sockets are dropped, and so closed.
        let _ = self.join(number, node, broker);
    }

    fn join(
        self: &Arc<Self>,
        number: u64,
        node: TcpStream,
        broker: Option<TcpStream>,
    ) -> io::Result<()> {
        node.set_nodelay(true)?;
        let ends = Connection {
            number,
            node: node.try_clone()?,
            broker: broker.as_ref().map(TcpStream::try_clone).transpose()?,
        };
        {
            let mut state = self.state();
            // The link may have changed while the broker was connected to.
            let fits = state.link != Link::Cut && state.connections.len() < CONNECTIONS_MAX;
            let has_hole = broker.is_none() && state.link != Link::Swallow;
            if !fits || has_hole {
                ends.close();
                return Ok(());
            }
            state.connections.push(ends);
        }
        match broker {
            Some(broker) => {
                broker.set_nodelay(true)?;
                let (from, to) = (node.try_clone()?, broker.try_clone()?);
                self.carry(number, from, to)?;
                self.carry(number, broker, node)
            }
            None => self.swallow(number, node),
        }
    }

    /// Starts to carry one direction.
    fn carry(self: &Arc<Self>, number: u64, mut from: TcpStream, to: TcpStream) -> io::Result<()> {
        let (portions, arriving) = sync_channel(PORTIONS_MAX);
        let shared = Arc::clone(self);
        thread::Builder::new().name("relay-out".into()).spawn(move || {
            write_due(&arriving, to);
            shared.end(number);
        })?;
        let shared = Arc::clone(self);
        thread::Builder::new().name("relay-in".into()).spawn(move || {
            shared.read(&mut from, &portions);
        })?;
        Ok(())
    }

    /// Reads until the end; drops what is read while the link swallows.
    fn read(&self, from: &mut TcpStream, portions: &SyncSender<(u64, Vec<u8>)>) {
        let mut buffer = vec![0; PORTION_BYTES];
        loop {
            let Ok(length) = from.read(&mut buffer) else { return };
            let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
                return;
            };
            let (link, delay) = {
                let state = self.state();
                (state.link, state.delay)
            };
            match link {
                Link::Pass => {}
                Link::Swallow => continue,
                Link::Cut => return,
            }
            let due_ns = now_ns() + delay.as_nanos() as u64;
            if portions.send((due_ns, bytes.to_vec())).is_err() {
                return;
            }
        }
    }

    /// Keeps a connection open that began while the link swallowed.
    fn swallow(self: &Arc<Self>, number: u64, mut node: TcpStream) -> io::Result<()> {
        let shared = Arc::clone(self);
        thread::Builder::new().name("relay-in".into()).spawn(move || {
            let mut buffer = vec![0; PORTION_BYTES];
            while node.read(&mut buffer).is_ok_and(|length| length > 0) {}
            shared.end(number);
        })?;
        Ok(())
    }

    /// Closes a connection, one of whose directions has ended.
    fn end(&self, number: u64) {
        let mut state = self.state();
        if let Some(at) = state.connections.iter().position(|one| one.number == number) {
            state.connections.swap_remove(at).close();
        }
    }
}

impl Connection {
    fn close(self) {
        let broker = self.broker.as_ref();
        for socket in [Some(&self.node), broker].into_iter().flatten() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Writes what was read when it is due, in order, until either side ends.
fn write_due(arriving: &Receiver<(u64, Vec<u8>)>, mut to: TcpStream) {
    loop {
        match arriving.recv_timeout(LOOK) {
            Ok((due_ns, bytes)) => {
                let wait_ns = due_ns.saturating_sub(now_ns());
                if wait_ns > 0 {
                    thread::sleep(Duration::from_nanos(wait_ns));
                }
                if to.write_all(&bytes).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A broker that returns what it receives.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut from = socket.try_clone().unwrap();
                    let mut to = socket;
                    let _ = io::copy(&mut from, &mut to);
                });
            }
        });
        address
    }

    fn connect(relay: &Relay) -> TcpStream {
        let socket = TcpStream::connect(relay.listen()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    fn ask(socket: &mut TcpStream, text: &str) -> io::Result<String> {
        socket.write_all(text.as_bytes())?;
        let mut answer = vec![0; text.len()];
        socket.read_exact(&mut answer)?;
        Ok(String::from_utf8(answer).unwrap())
    }

    #[test]
    fn bytes_pass_and_a_delay_is_at_least_what_was_asked_for() {
        let relay = Relay::start(echo()).unwrap();
        let mut socket = connect(&relay);
        assert_eq!(ask(&mut socket, "one").unwrap(), "one");
        relay.set_delay(Duration::from_millis(60));
        let began_ns = now_ns();
        assert_eq!(ask(&mut socket, "two").unwrap(), "two");
        // Once in each direction.
        assert!(now_ns() - began_ns >= 120_000_000);
        relay.set_delay(Duration::ZERO);
        assert_eq!(ask(&mut socket, "three").unwrap(), "three");
    }

    #[test]
    fn a_cut_link_ends_connections_and_refuses_new_ones_until_it_passes() {
        let relay = Relay::start(echo()).unwrap();
        let mut socket = connect(&relay);
        assert_eq!(ask(&mut socket, "one").unwrap(), "one");
        relay.set(Link::Cut);
        assert!(ask(&mut socket, "two").is_err());
        assert!(ask(&mut connect(&relay), "three").is_err());
        relay.set(Link::Pass);
        assert_eq!(ask(&mut connect(&relay), "four").unwrap(), "four");
    }

    #[test]
    fn a_half_open_link_swallows_and_ends_its_connections_afterwards() {
        let relay = Relay::start(echo()).unwrap();
        let mut socket = connect(&relay);
        assert_eq!(ask(&mut socket, "one").unwrap(), "one");
        relay.set(Link::Swallow);
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let silent = |error: io::Error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        };
        assert!(silent(ask(&mut socket, "two").unwrap_err()), "it is open and says nothing");
        let mut new = connect(&relay);
        new.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(silent(ask(&mut new, "three").unwrap_err()), "so is a new one");
        relay.set(Link::Pass);
        for mut socket in [socket, new] {
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert!(!ask(&mut socket, "four").is_err_and(silent), "its stream has a hole");
        }
        assert_eq!(ask(&mut connect(&relay), "five").unwrap(), "five");
    }
}
