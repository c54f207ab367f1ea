//! A kernel in memory with connections to a server of HTTP/2, which the test speaks for.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use wire::http2::{Config, Connection, Event as Http2Event, HeadKind, StreamId};
use wire::websocket::{encode_key, encode_upgrade_request};

const HOST: &str = "a.test:80";
/// Turns after which nothing moves any more, in all tests.
const TURNS: usize = 100_000;

/// What the test decides of the connections, and their bytes.
pub(super) struct Inner {
    /// Bytes that a call takes at most.
    pub(super) read_max: usize,
    pub(super) write_max: usize,
    /// The server has closed the first connection.
    pub(super) is_ended: bool,
    conns: Vec<Conn>,
}

#[derive(Default)]
struct Conn {
    key: u64,
    interest: Option<Interest>,
    to_client: Vec<u8>,
    to_server: Vec<u8>,
    is_closed: bool,
}

pub(super) struct Memory(Rc<RefCell<Inner>>);

/// The kernel under test, and the server of its first connection.
pub(super) struct Bed {
    pub(super) inner: Rc<RefCell<Inner>>,
    pub(super) kernel: StreamKernel<Memory>,
    server: Connection,
    /// The server returns window for what it receives.
    pub(super) is_reading: bool,
    unread: Vec<(StreamId, usize)>,
    streams: Vec<(StreamId, Vec<u8>, bool)>,
    /// By the number of the stream.
    pub(super) resets: Vec<(usize, ErrorCode)>,
    events: Vec<Event>,
}

impl Bed {
    pub(super) fn new() -> Bed {
        Bed::with_window(Config::default().stream_window_bytes)
    }

    /// A server whose streams have a window of so many bytes.
    pub(super) fn with_window(stream_window_bytes: u32) -> Bed {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let upstream = Upstream {
            destination: Destination::Tcp(address),
            host: HOST.to_owned(),
            connect: None,
            tls: None,
        };
        let config = Arc::new(Config {
            stream_window_bytes: STREAM_WINDOW_BYTES,
            connection_window_bytes: CONNECTION_WINDOW_BYTES,
            explicit_release: true,
            ..Config::default()
        });
        let settings =
            StreamSettings { streams: 8, upstreams: vec![upstream], config, has_requests: false };
        let most = usize::MAX;
        let inner = Inner { read_max: most, write_max: most, is_ended: false, conns: Vec::new() };
        let inner = Rc::new(RefCell::new(inner));
        let memory = Memory(Rc::clone(&inner));
        let metrics = Arc::new(Metrics::new());
        let kernel = StreamKernel::new(memory, Arc::new(settings), metrics);
        let of_server = Arc::new(Config {
            stream_window_bytes,
            enable_connect_protocol: true,
            explicit_release: true,
            ..Config::default()
        });
        let mut first = Conn::default();
        let server = Connection::server(&of_server, &mut first.to_client);
        // The first connect takes it.
        inner.borrow_mut().conns.push(first);
        Bed {
            inner,
            kernel,
            server,
            is_reading: true,
            unread: Vec::new(),
            streams: Vec::new(),
            resets: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn fd(&self, socket: usize) -> Fd {
        Sockets::fd(socket as u32)
    }

    /// Connects a socket and writes its request as far as possible.
    pub(super) fn connect(&mut self) -> usize {
        let fd = self.kernel.connect(SocketAddr::from(([127, 0, 0, 1], 80)), None).unwrap();
        let at = Sockets::index(fd).unwrap() as usize;
        let interest = Interest { read: true, write: true };
        self.kernel.watch(Sockets::fd(at as u32), interest, at as u64 | u64::MAX << 32).unwrap();
        let _ = self.request(at);
        at
    }

    fn request(&mut self, socket: usize) -> Result<usize, ErrorKind> {
        let (mut head, none) = (Vec::new(), [("", ""); 0]);
        encode_upgrade_request(&mut head, HOST, "/", &encode_key([1; 16]), &[], false, none);
        self.send(socket, &head)
    }

    /// An open socket, whose answer was read.
    pub(super) fn open(&mut self) -> usize {
        let at = self.connect();
        let before = self.streams.len();
        for _ in 0..TURNS {
            if self.streams.len() > before {
                break;
            }
            self.turn();
            let _ = self.request(at);
        }
        let (stream, ..) = self.streams[before];
        let mut out = Vec::new();
        self.server.respond(stream, [(&b":status"[..], &b"200"[..])], false, &mut out).unwrap();
        self.put(&out);
        self.until_quiet();
        let (answer, is_end) = self.read_all(at);
        assert!(answer.starts_with(b"HTTP/1.1 101 ") && answer.ends_with(b"\r\n\r\n") && !is_end);
        at
    }

    fn put(&self, bytes: &[u8]) {
        self.inner.borrow_mut().conns[0].to_client.extend_from_slice(bytes);
    }

    /// A wait of the kernel, and the server's turn.
    pub(super) fn turn(&mut self) {
        self.events.clear();
        self.kernel.wait(&mut self.events, 64, None).unwrap();
        let bytes = std::mem::take(&mut self.inner.borrow_mut().conns[0].to_server);
        let (mut fields, mut out, mut rest) = (HeaderList::new(), Vec::new(), bytes.as_slice());
        while let Some((used, event)) = self.server.receive(rest, &mut fields, &mut out).unwrap() {
            rest = &rest[used..];
            match event {
                Http2Event::Head { stream, kind: HeadKind::Request, .. } => {
                    self.streams.push((stream, Vec::new(), false));
                }
                Http2Event::Data { stream, data, end_stream, .. } => {
                    self.unread.push((stream, data.len()));
                    let one = self.streams.iter_mut().find(|one| one.0 == stream).unwrap();
                    one.1.extend_from_slice(data);
                    one.2 |= end_stream;
                }
                Http2Event::Reset { stream, code, .. } => {
                    let nth = self.streams.iter().position(|one| one.0 == stream).unwrap();
                    self.resets.push((nth, code));
                }
                _ => {}
            }
        }
        if self.is_reading {
            for (stream, bytes) in std::mem::take(&mut self.unread) {
                self.server.release(stream, bytes, &mut out);
            }
        }
        self.put(&out);
    }

    /// Turns until no bytes are in flight.
    pub(super) fn until_quiet(&mut self) {
        let mut quiet = 0;
        for _ in 0..TURNS {
            self.turn();
            let inner = self.inner.borrow();
            let moves = inner.conns[0].to_client.len() + inner.conns[0].to_server.len() > 0;
            drop(inner);
            let waits = self.kernel.carriers.get(0).is_some_and(|one| one.backlog() > 0);
            quiet = if moves || waits { 0 } else { quiet + 1 };
            if quiet > 2 || self.is_closed(0) {
                return;
            }
        }
        panic!("bytes are still in flight");
    }

    pub(super) fn send(&mut self, socket: usize, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.kernel.send(Sockets::fd(socket as u32), bytes).map_err(|error| error.kind())
    }

    /// Sends as the engine does, the rest when there is room. Returns how much was taken.
    pub(super) fn send_all(&mut self, socket: usize, bytes: &[u8]) -> usize {
        let mut sent = 0;
        for _ in 0..TURNS {
            match self.send(socket, &bytes[sent..]) {
                Ok(taken) => sent += taken,
                Err(ErrorKind::WouldBlock) => self.turn(),
                Err(_) => break,
            }
            if sent == bytes.len() {
                break;
            }
        }
        sent
    }

    /// Everything that there is to read, and whether it is followed by the end.
    pub(super) fn read_all(&mut self, socket: usize) -> (Vec<u8>, bool) {
        let (mut all, mut part, mut quiet) = (Vec::new(), [0; 1_000], 0);
        while quiet < 2_000 {
            match self.kernel.recv(Sockets::fd(socket as u32), &mut part) {
                Ok(0) => return (all, true),
                Ok(taken) => all.extend_from_slice(&part[..taken]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    quiet += 1;
                    self.turn();
                }
                Err(error) => panic!("{error}"),
            }
        }
        (all, false)
    }

    fn event(&mut self, socket: usize) -> Event {
        self.turn();
        let key = socket as u64 | u64::MAX << 32;
        let none = Event { key, readable: false, writable: false, failed: false };
        self.kernel.list(socket as u32);
        self.turn();
        self.events.iter().find(|event| event.key == key).copied().unwrap_or(none)
    }

    pub(super) fn is_writable(&mut self, socket: usize) -> bool {
        self.event(socket).writable
    }

    pub(super) fn is_failed(&mut self, socket: usize) -> bool {
        self.event(socket).failed
    }

    pub(super) fn close(&mut self, socket: usize) {
        self.kernel.close(Sockets::fd(socket as u32));
    }

    /// What the server sends on a stream, and how much its windows allow.
    pub(super) fn server_sends(&mut self, nth: usize, bytes: &[u8], ends: bool) -> usize {
        let mut out = Vec::new();
        let sent = self.server.send_data(self.streams[nth].0, bytes, ends, &mut out).unwrap();
        self.put(&out);
        sent
    }

    pub(super) fn server_resets(&mut self, nth: usize, code: ErrorCode) {
        let mut out = Vec::new();
        assert!(self.server.reset(self.streams[nth].0, code, &mut out));
        self.put(&out);
    }

    pub(super) fn server_goes_away(&mut self) {
        let mut out = Vec::new();
        self.server.go_away(ErrorCode::NO_ERROR, &mut out);
        self.put(&out);
    }

    /// What the server has received of a stream, and whether it has ended.
    pub(super) fn received(&self, nth: usize) -> (Vec<u8>, bool) {
        let (_, bytes, is_end) = &self.streams[nth];
        (bytes.clone(), *is_end)
    }

    pub(super) fn connects(&self) -> usize {
        let inner = self.inner.borrow();
        inner.conns.iter().filter(|conn| conn.interest.is_some()).count()
    }

    pub(super) fn is_closed(&self, nth: usize) -> bool {
        self.inner.borrow().conns[nth].is_closed
    }
}

impl Sys for Memory {
    fn now_ns(&self) -> u64 {
        0
    }

    fn random(&mut self) -> u64 {
        1
    }

    fn wait(&mut self, events: &mut Vec<Event>, _: usize, _: Option<Duration>) -> io::Result<()> {
        let inner = self.0.borrow();
        for (nth, conn) in inner.conns.iter().enumerate().filter(|(_, conn)| !conn.is_closed) {
            let Some(interest) = conn.interest else { continue };
            let ended = inner.is_ended && nth == 0;
            let readable = interest.read && (!conn.to_client.is_empty() || ended);
            let event = Event { key: conn.key, readable, writable: interest.write, failed: false };
            events.extend((readable || interest.write).then_some(event));
        }
        Ok(())
    }

    fn poll_fd(&self) -> Option<i32> {
        None
    }

    fn watch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        let conn = &mut self.0.borrow_mut().conns[fd.number() as usize];
        (conn.interest, conn.key) = (Some(interest), key);
        Ok(())
    }

    fn rewatch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        self.watch(fd, interest, key)
    }

    fn unwatch(&mut self, _: Fd) -> io::Result<()> {
        Ok(())
    }

    fn wake_fd(&self) -> Option<Fd> {
        None
    }

    fn clear_wake(&mut self) {}

    fn accept(&mut self, _: Fd) -> io::Result<Fd> {
        Err(ErrorKind::Unsupported.into())
    }

    fn accept_with_peer(&mut self, _: Fd) -> io::Result<(Fd, Option<IpAddr>)> {
        Err(ErrorKind::Unsupported.into())
    }

    fn connect(&mut self, _: SocketAddr, _: Option<IpAddr>) -> io::Result<Fd> {
        let mut inner = self.0.borrow_mut();
        let at = inner.conns.iter().position(|conn| conn.interest.is_none());
        let at = at.unwrap_or_else(|| {
            inner.conns.push(Conn::default());
            inner.conns.len() - 1
        });
        inner.conns[at].interest = Some(Interest::NONE);
        Ok(Fd::new(at as i32))
    }

    fn connect_outcome(&mut self, _: Fd) -> io::Result<()> {
        Ok(())
    }

    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.0.borrow_mut();
        let (most, is_ended) = (inner.read_max, inner.is_ended);
        let conn = &mut inner.conns[fd.number() as usize];
        let taken = conn.to_client.len().min(into.len()).min(most);
        if taken == 0 && !is_ended {
            return Err(ErrorKind::WouldBlock.into());
        }
        into[..taken].copy_from_slice(&conn.to_client[..taken]);
        conn.to_client.drain(..taken);
        Ok(taken)
    }

    fn send(&mut self, fd: Fd, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.borrow_mut();
        let most = inner.write_max;
        let conn = &mut inner.conns[fd.number() as usize];
        // As a buffer that is full until the server has read.
        let taken = bytes.len().min(most.saturating_sub(conn.to_server.len()));
        if taken == 0 && !bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        conn.to_server.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn send_vectored(&mut self, fd: Fd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(fd, pieces.first().map_or(&[], |piece| piece))
    }

    fn shutdown_write(&mut self, _: Fd) {}

    fn close(&mut self, fd: Fd) {
        self.0.borrow_mut().conns[fd.number() as usize].is_closed = true;
    }

    fn reset_on_close(&mut self, _: Fd) {}

    fn peer(&self, _: Fd) -> Option<SocketAddr> {
        None
    }

    fn is_broken(&self, _: Fd) -> bool {
        false
    }

    fn peer_has_left(&self, _: Fd) -> bool {
        false
    }
}
