//! [`World`]: a kernel with two ends, ours and the peer's, each a [`Sys`] of its own; and what cases
//! do with it.

#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Linux, Sim};
use crate::Wake;
use crate::sys::sim::Kernel;
use crate::sys::{Event, Fd, Interest, Sys, process};

/// After this without a report there is none: what was under way has arrived.
const SETTLED: Duration = Duration::from_millis(20);
/// What the contract promises happens within this.
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections that wait to be accepted by a small listener, roughly: Linux takes one more.
const SMALL_BACKLOG: usize = 1;
const BACKLOG: usize = 64;
/// The key of what [`World::ready`] watches.
const KEY: u64 = 7;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Tcp,
    Unix,
}

/// How our end of a pair came about.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Accepts,
    Connects,
}

/// One of the two ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Ours,
    Theirs,
}

#[derive(Clone, Debug)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A connected stream.
#[derive(Copy, Clone)]
pub(super) struct Pair {
    pub(super) ours: Fd,
    pub(super) theirs: Fd,
}

/// Readiness by the letters of what is reported: `r`eadable, `w`ritable, `f`ailed; or `-`.
pub(super) const NOTHING: &str = "-";
pub(super) const FAILED: &str = "rwf";
/// For the four interests of [`World::assert_ready`].
pub(super) const FAILED_FOR_ALL: [&str; 4] = [FAILED; 4];

pub(super) trait World: Sized {
    type Sys: Sys;

    fn transport(&self) -> Transport;

    fn role(&self) -> Role;

    fn sys(&mut self, side: Side) -> &mut Self::Sys;

    /// A listener of one side: with room for many connections, or with next to none.
    fn listener(&self, side: Side, small: bool) -> (Fd, Address);

    /// Closes that listener, which is in no other table.
    fn close_listener(&mut self, side: Side, small: bool);

    /// An address of the transport where nobody listens.
    fn nobody(&self) -> Address;

    /// Reports of our side: as soon as there are any, or none after `time`.
    fn wait_for(&mut self, time: Duration) -> Vec<Event>;

    /// Wakes our side.
    fn wake(&self);

    // ---- what cases do ----

    fn ours(&mut self) -> &mut Self::Sys {
        self.sys(Side::Ours)
    }

    fn theirs(&mut self) -> &mut Self::Sys {
        self.sys(Side::Theirs)
    }

    fn is_unix(&self) -> bool {
        self.transport() == Transport::Unix
    }

    fn wait(&mut self) -> Vec<Event> {
        self.wait_for(SETTLED)
    }

    /// Lets what is under way arrive.
    fn settle(&mut self) {
        let events = self.wait();
        assert!(events.is_empty(), "nothing is watched: {events:?}");
    }

    fn connect(&mut self, side: Side, to: &Address) -> io::Result<Fd> {
        match to {
            Address::Tcp(address) => self.sys(side).connect(*address, None),
            Address::Unix(path) => self.sys(side).connect_unix(path),
        }
    }

    /// A connected stream of which our end was accepted or has connected, by the world's role.
    fn pair(&mut self) -> Pair {
        let accepts = match self.role() {
            Role::Accepts => Side::Ours,
            Role::Connects => Side::Theirs,
        };
        let connects = if accepts == Side::Ours { Side::Theirs } else { Side::Ours };
        let (listener, address) = self.listener(accepts, false);
        let connected = self.connect(connects, &address).unwrap();
        let accepted = self.until(|world| again(world.sys(accepts).accept(listener))).unwrap();
        self.settle();
        match accepts {
            Side::Ours => Pair { ours: accepted, theirs: connected },
            Side::Theirs => Pair { ours: connected, theirs: accepted },
        }
    }

    /// Calls `call` until it returns something.
    fn until<T>(&mut self, mut call: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline_ns = process::now_ns() + PATIENCE.as_nanos() as u64;
        loop {
            if let Some(result) = call(self) {
                return result;
            }
            assert!(process::now_ns() < deadline_ns, "it did not happen within {PATIENCE:?}");
            self.wait_for(Duration::from_millis(1));
        }
    }

    /// Reads what there is, or waits for it.
    fn recv(&mut self, side: Side, fd: Fd) -> Result<Vec<u8>, i32> {
        self.until(|world| {
            let mut buffer = [0; 4096];
            match world.sys(side).recv(fd, &mut buffer) {
                Ok(got) => Some(Ok(buffer[..got].to_vec())),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => None,
                Err(error) => Some(Err(error.raw_os_error().unwrap())),
            }
        })
    }

    fn recv_ours(&mut self, pair: Pair) -> Result<Vec<u8>, i32> {
        self.recv(Side::Ours, pair.ours)
    }

    fn send_ours(&mut self, pair: Pair, bytes: &[u8]) -> Result<usize, i32> {
        errno(self.ours().send(pair.ours, bytes))
    }

    fn send_theirs(&mut self, pair: Pair, bytes: &[u8]) {
        assert_eq!(self.theirs().send(pair.theirs, bytes).unwrap(), bytes.len());
    }

    /// The peer closes by RST, where the transport has that.
    fn reset_by_peer(&mut self, pair: Pair) {
        self.theirs().reset_on_close(pair.theirs);
        self.theirs().close(pair.theirs);
        self.settle();
    }

    /// Sends from our end until no byte is taken; how many were.
    fn fill(&mut self, pair: Pair) -> usize {
        let mut taken = 0;
        loop {
            match self.send_ours(pair, &[b'x'; 16 * 1024]) {
                Ok(sent) => taken += sent,
                Err(error) => {
                    assert_eq!(error, libc::EAGAIN);
                    self.settle();
                    // What is under way may have left room.
                    if self.send_ours(pair, b"x") == Err(libc::EAGAIN) {
                        return taken;
                    }
                    taken += 1;
                }
            }
        }
    }

    /// What is reported of a descriptor of ours that is watched for `interest`.
    fn ready(&mut self, fd: Fd, interest: Interest) -> String {
        self.ours().watch(fd, interest, KEY).unwrap();
        let events = self.wait();
        self.ours().unwatch(fd).unwrap();
        assert!(events.len() <= 1, "one descriptor is watched: {events:?}");
        letters(events.first())
    }

    /// Requires these reports of a descriptor of ours that is watched for nothing, for reading, for
    /// writing and for both.
    #[track_caller]
    fn assert_ready(&mut self, fd: Fd, expected: [&str; 4]) {
        for (interest, expected) in interests().into_iter().zip(expected) {
            let deadline_ns = process::now_ns() + PATIENCE.as_nanos() as u64;
            let mut got = self.ready(fd, interest);
            while got != expected && process::now_ns() < deadline_ns && self.is_asynchronous() {
                got = self.ready(fd, interest);
            }
            let transport = (self.transport(), self.role());
            assert_eq!(got, expected, "{transport:?}, watched for {interest:?}");
        }
    }

    /// Whether something may still be under way after a call has returned.
    fn is_asynchronous(&self) -> bool;
}

pub(super) fn interests() -> [Interest; 4] {
    [Interest::NONE, Interest::READ, Interest::WRITE, Interest { read: true, write: true }]
}

pub(super) fn letters(event: Option<&Event>) -> String {
    let Some(event) = event else { return NOTHING.to_owned() };
    assert_eq!(event.key, KEY);
    let flags = [(event.readable, 'r'), (event.writable, 'w'), (event.failed, 'f')];
    flags.into_iter().filter_map(|(set, letter)| set.then_some(letter)).collect()
}

pub(super) fn errno<T>(result: io::Result<T>) -> Result<T, i32> {
    result.map_err(|error| error.raw_os_error().unwrap())
}

/// Nothing where the call would block.
pub(super) fn again<T>(result: io::Result<T>) -> Option<io::Result<T>> {
    Some(result).filter(|result| {
        !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    })
}

// ---- the real kernel ----

pub(super) struct LinuxWorld {
    transport: Transport,
    role: Role,
    ours: Linux,
    theirs: Linux,
    wake: i32,
    listeners: Vec<(Side, bool, RealListener)>,
    nobody: Address,
    /// The socket that keeps the port of `nobody`.
    port_holder: Option<i32>,
    folder: PathBuf,
}

enum RealListener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

static WORLDS: AtomicU32 = AtomicU32::new(0);

impl LinuxWorld {
    pub(super) fn new(transport: Transport, role: Role) -> Self {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let name = format!("standfast-contract-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let mut listeners = Vec::new();
        for (side, small) in
            [(Side::Ours, false), (Side::Ours, true), (Side::Theirs, false), (Side::Theirs, true)]
        {
            let path = folder.join(format!("{side:?}-{small}"));
            let backlog = if small { SMALL_BACKLOG } else { BACKLOG };
            listeners.push((side, small, RealListener::open(transport, &path, backlog)));
        }
        let (nobody, port_holder) = match transport {
            Transport::Tcp => {
                let (address, holder) = port_without_listener();
                (Address::Tcp(address), Some(holder))
            }
            Transport::Unix => (Address::Unix(path_without_listener(&folder.join("nobody"))), None),
        };
        let wake = process::wake_descriptor().unwrap();
        let (ours, theirs) = (Linux::new(Some(wake)).unwrap(), Linux::new(None).unwrap());
        LinuxWorld { transport, role, ours, theirs, wake, listeners, nobody, port_holder, folder }
    }
}

/// A port that nobody listens on, and the socket that keeps others from getting it.
fn port_without_listener() -> (SocketAddr, i32) {
    // SAFETY: no pointers are passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    let (raw, length) = crate::sys::linux::to_raw(SocketAddr::from(([127, 0, 0, 1], 0)));
    // SAFETY: `raw` holds a socket address of `length` bytes.
    assert_eq!(unsafe { libc::bind(socket, (&raw const raw).cast(), length) }, 0);
    (crate::sys::linux::address_of(socket, libc::getsockname).unwrap(), socket)
}

/// The file of a UNIX listener that is closed.
fn path_without_listener(path: &Path) -> PathBuf {
    drop(UnixListener::bind(path).unwrap());
    path.to_owned()
}

impl RealListener {
    fn open(transport: Transport, path: &Path, backlog: usize) -> Self {
        let listener = match transport {
            Transport::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                listener.set_nonblocking(true).unwrap();
                RealListener::Tcp(listener)
            }
            Transport::Unix => {
                let listener = UnixListener::bind(path).unwrap();
                listener.set_nonblocking(true).unwrap();
                RealListener::Unix(listener, path.to_owned())
            }
        };
        // A second call changes the backlog (listen(2)).
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::listen(listener.number(), backlog as libc::c_int) }, 0);
        listener
    }

    fn number(&self) -> i32 {
        match self {
            RealListener::Tcp(listener) => listener.as_raw_fd(),
            RealListener::Unix(listener, _) => listener.as_raw_fd(),
        }
    }

    fn address(&self) -> Address {
        match self {
            RealListener::Tcp(listener) => Address::Tcp(listener.local_addr().unwrap()),
            RealListener::Unix(_, path) => Address::Unix(path.clone()),
        }
    }
}

impl Drop for LinuxWorld {
    fn drop(&mut self) {
        // The few sockets that a case leaves open stay so until the tests end.
        process::close(self.wake);
        if let Some(holder) = self.port_holder {
            process::close(holder);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl World for LinuxWorld {
    type Sys = Linux;

    fn transport(&self) -> Transport {
        self.transport
    }

    fn role(&self) -> Role {
        self.role
    }

    fn sys(&mut self, side: Side) -> &mut Linux {
        match side {
            Side::Ours => &mut self.ours,
            Side::Theirs => &mut self.theirs,
        }
    }

    fn listener(&self, side: Side, small: bool) -> (Fd, Address) {
        let mut all = self.listeners.iter();
        let found = all.find(|(of, is_small, _)| (*of, *is_small) == (side, small));
        let (_, _, listener) = found.unwrap();
        (Fd::new(listener.number()), listener.address())
    }

    fn close_listener(&mut self, side: Side, small: bool) {
        self.listeners.retain(|(of, is_small, _)| (*of, *is_small) != (side, small));
    }

    fn nobody(&self) -> Address {
        self.nobody.clone()
    }

    fn wait_for(&mut self, time: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        self.ours.wait(&mut events, 16, Some(time)).unwrap();
        events
    }

    fn wake(&self) {
        process::wake(self.wake);
    }

    fn is_asynchronous(&self) -> bool {
        true
    }
}

// ---- the simulated kernel ----

pub(super) struct SimWorld {
    transport: Transport,
    role: Role,
    kernel: Kernel,
    ours: Sim,
    theirs: Sim,
    wake: Box<dyn Wake>,
    listeners: Vec<(Side, bool, i32, Address)>,
    nobody: Address,
}

impl SimWorld {
    pub(super) fn new(transport: Transport, role: Role) -> Self {
        let kernel = Kernel::new(7, (4096, 4096));
        let address = |number: u16| match transport {
            Transport::Tcp => Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 80 + number))),
            Transport::Unix => Address::Unix(PathBuf::from(format!("/run/{number}"))),
        };
        let open = |number, backlog| match address(number) {
            Address::Tcp(address) => kernel.listen(address, backlog, 0),
            Address::Unix(path) => kernel.listen_unix(&path, backlog),
        };
        let ours = kernel.seat(100, &[open(0, BACKLOG), open(1, SMALL_BACKLOG)]);
        let theirs = kernel.seat(100, &[open(2, BACKLOG), open(3, SMALL_BACKLOG)]);
        let sides = [(Side::Ours, &ours, 0), (Side::Theirs, &theirs, 2)];
        let listeners = sides.into_iter().flat_map(|(side, seat, first)| {
            let [large, small] = seat.listeners[..] else { unreachable!("two were given") };
            [(side, false, large, address(first)), (side, true, small, address(first + 1))]
        });
        let listeners = listeners.collect();
        let nobody = match transport {
            Transport::Tcp => address(9),
            Transport::Unix => {
                let closed = kernel.seat(100, &[open(9, 1)]);
                let mut sys = closed.sys;
                sys.close(Fd::new(closed.listeners[0]));
                address(9)
            }
        };
        let (ours, wake, theirs) = (ours.sys, ours.wake, theirs.sys);
        SimWorld { transport, role, kernel, ours, theirs, wake, listeners, nobody }
    }
}

impl World for SimWorld {
    type Sys = Sim;

    fn transport(&self) -> Transport {
        self.transport
    }

    fn role(&self) -> Role {
        self.role
    }

    fn sys(&mut self, side: Side) -> &mut Sim {
        match side {
            Side::Ours => &mut self.ours,
            Side::Theirs => &mut self.theirs,
        }
    }

    fn listener(&self, side: Side, small: bool) -> (Fd, Address) {
        let mut all = self.listeners.iter();
        let found = all.find(|(of, is_small, ..)| (*of, *is_small) == (side, small));
        let (_, _, number, address) = found.unwrap();
        (Fd::new(*number), address.clone())
    }

    fn close_listener(&mut self, side: Side, small: bool) {
        let (listener, _) = self.listener(side, small);
        self.sys(side).close(listener);
    }

    fn nobody(&self) -> Address {
        self.nobody.clone()
    }

    fn wait_for(&mut self, time: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        self.ours.wait(&mut events, 16, Some(time)).unwrap();
        if events.is_empty() {
            self.kernel.advance(time.as_nanos() as u64);
            self.ours.wait(&mut events, 16, Some(time)).unwrap();
        }
        events
    }

    fn wake(&self) {
        self.wake.wake();
    }

    fn is_asynchronous(&self) -> bool {
        false
    }
}
