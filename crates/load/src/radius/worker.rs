//! [`Worker`]: the users of one thread. They share sockets, on which an answer finds its request by its
//! identifier.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::sys::process::now_ns;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::packet::{
    ACCESS_ACCEPT, ACCESS_CHALLENGE, ACCESS_REJECT, AUTHENTICATOR_BYTES, AccessRequest, Discarded,
    PACKET_BYTES_MAX, identifier,
};
use super::{
    Contact, Part, RETRANSMIT, Radius, RadiusCounts, RadiusEnd, RadiusResult, USERS_PER_SOCKET,
};
use crate::outcome::recorder::{Recorder, Series};
use crate::workload::scenario::template::mixed;

/// Pause before a datagram is sent again that the queue of the socket had no room for.
const FULL_NS: u64 = 1_000_000;
/// Pause of a user after a request that was refused or not sent.
const REST_NS: u64 = 100_000_000;
/// The longest wait for a datagram, after which it is noticed that the run is stopped.
const STOP_EVERY_NS: u64 = 50_000_000;
/// Datagrams received from a socket before the others have their turn.
const RECEIVED_MAX: usize = 256;
/// Sockets that one wait returns.
const READY_MAX: usize = 64;
/// Identifiers of a socket.
const IDENTIFIERS: usize = 256;

/// The users of a thread.
pub(super) struct Worker<'c, O> {
    request: AccessRequest,
    each: u64,
    /// No request begins after it.
    until_ns: u64,
    timeout_ns: u64,
    retransmit_ns: u64,
    channels: Vec<Channel>,
    epoll: OwnedFd,
    /// When users have to do something. An entry that is not that of [`User::armed_ns`] is stale.
    due: BinaryHeap<Reverse<(u64, Place)>>,
    /// Users that are not done.
    active: u64,
    random: u64,
    buffer: Box<[u8]>,
    counts: RadiusCounts,
    times: Recorder,
    contact: &'c Contact,
    /// The contact knows that the server answers.
    is_known: bool,
    observer: O,
}

/// A user: the number of its socket, and its place there.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    channel: u32,
    user: u8,
}

/// A socket with its users.
struct Channel {
    socket: UdpSocket,
    users: Vec<User>,
    /// The user of each identifier in use.
    owners: [Option<u8>; IDENTIFIERS],
    next: u8,
}

/// A user.
#[derive(Default)]
struct User {
    state: State,
    identifier: u8,
    /// Requests that it began.
    begun: u64,
    begun_ns: u64,
    /// When it has to do something.
    due_ns: u64,
    /// Its entry in [`Worker::due`]; 0 without one.
    armed_ns: u64,
    /// Datagrams of its request.
    sent: u32,
    packet: Vec<u8>,
}

#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
enum State {
    /// Its next request begins when it is due.
    #[default]
    Idle,
    InFlight,
    Done,
}

impl<'c, O: FnMut(&RadiusResult)> Worker<'c, O> {
    /// Opens the sockets of so many users.
    pub(super) fn new(
        radius: &Radius,
        users: u64,
        seed: u64,
        contact: &'c Contact,
        observer: O,
    ) -> io::Result<Worker<'c, O>> {
        let sockets = users.div_ceil(USERS_PER_SOCKET);
        let open = |number: u64| {
            let users = (users - number * USERS_PER_SOCKET).min(USERS_PER_SOCKET);
            Channel::open(radius.server, users as usize)
        };
        let channels: Vec<Channel> = (0..sockets).map(open).collect::<io::Result<_>>()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, channel) in (0..).zip(&channels) {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&epoll, &channel.socket, data, epoll::EventFlags::IN)?;
        }
        let begin_ns = now_ns();
        let after = |time: Duration| begin_ns.saturating_add(time.as_nanos() as u64);
        let mut worker = Worker {
            request: radius.request.clone(),
            each: radius.each.unwrap_or(u64::MAX),
            until_ns: radius.duration.map_or(u64::MAX, after),
            timeout_ns: radius.timeout.as_nanos() as u64,
            retransmit_ns: RETRANSMIT.as_nanos() as u64,
            channels,
            epoll,
            due: BinaryHeap::with_capacity(users as usize),
            active: users,
            random: seed,
            buffer: vec![0; PACKET_BYTES_MAX].into(),
            counts: RadiusCounts::default(),
            times: Recorder::default(),
            contact,
            is_known: false,
            observer,
        };
        for channel in 0..worker.channels.len() as u32 {
            let users = worker.channels.get(channel as usize).map_or(0, |one| one.users.len());
            (0..users as u8).for_each(|user| worker.arm(Place { channel, user }));
        }
        Ok(worker)
    }

    /// Runs its users until they are done, or it is stopped.
    pub(super) fn run(&mut self, stop: &AtomicBool) -> io::Result<Part> {
        let mut ready = Vec::with_capacity(READY_MAX);
        while self.active > 0 && !stop.load(Ordering::Acquire) {
            self.act(now_ns());
            if self.active > 0 {
                self.wait(&mut ready)?;
                ready.drain(..).for_each(|event| self.receive(event.data.u64() as usize));
            }
        }
        let users = self.channels.iter().flat_map(|channel| &channel.users);
        self.counts.unfinished = users.filter(|user| user.state == State::InFlight).count() as u64;
        let times = std::mem::take(&mut self.times);
        Ok(Part { counts: self.counts, times, end_ns: now_ns() })
    }

    /// Waits for datagrams until the next user is due.
    fn wait(&self, ready: &mut Vec<epoll::Event>) -> io::Result<()> {
        let due_ns = self.due.peek().map_or(u64::MAX, |Reverse((due_ns, _))| *due_ns);
        let wait_ns = due_ns.saturating_sub(now_ns()).min(STOP_EVERY_NS);
        let time = Timespec { tv_sec: 0, tv_nsec: wait_ns.cast_signed() };
        match epoll::wait(&self.epoll, spare_capacity(ready), Some(&time)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Does what is due.
    fn act(&mut self, now_ns: u64) {
        while let Some(Reverse((due_ns, place))) = self.due.peek().copied() {
            if due_ns > now_ns {
                return;
            }
            self.due.pop();
            let Some(user) = self.user(place).filter(|user| user.armed_ns == due_ns) else {
                continue;
            };
            user.armed_ns = 0;
            match user.state {
                // Its request was answered meanwhile, and the next one began.
                _ if user.due_ns > now_ns => {}
                State::Done => {}
                State::Idle => self.begin(place, now_ns),
                State::InFlight => self.again(place, now_ns),
            }
            self.arm(place);
        }
    }

    /// Adds an entry for when a user is due, unless it has one that is not later.
    fn arm(&mut self, place: Place) {
        let Some(user) = self.user(place).filter(|user| user.state != State::Done) else { return };
        let due_ns = user.due_ns.max(1);
        if user.armed_ns == 0 || due_ns < user.armed_ns {
            user.armed_ns = due_ns;
            self.due.push(Reverse((due_ns, place)));
        }
    }

    fn user(&mut self, place: Place) -> Option<&mut User> {
        self.channels.get_mut(place.channel as usize)?.users.get_mut(usize::from(place.user))
    }

    /// Begins the next request of a user, or ends it.
    fn begin(&mut self, place: Place, now_ns: u64) {
        let is_over = now_ns >= self.until_ns;
        let random = [self.random(), self.random()];
        let Some(channel) = self.channels.get_mut(place.channel as usize) else { return };
        let identifier = channel.claim(place.user);
        let Some(user) = channel.users.get_mut(usize::from(place.user)) else { return };
        if user.begun >= self.each || is_over {
            user.state = State::Done;
            self.active -= 1;
            channel.release(identifier);
            return;
        }
        let mut authenticator = [0; AUTHENTICATOR_BYTES];
        for (place, bytes) in authenticator.chunks_exact_mut(8).zip(random) {
            place.copy_from_slice(&bytes.to_ne_bytes());
        }
        self.request.encode(identifier, &authenticator, &mut user.packet);
        (user.state, user.identifier, user.sent) = (State::InFlight, identifier, 0);
        (user.begun, user.begun_ns) = (user.begun + 1, now_ns);
        self.counts.requests += 1;
        self.send(place, now_ns);
    }

    /// Unique, which is what a server needs to tell requests apart (RFC 2865 section 3).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        mixed(self.random)
    }

    /// Sends the request of a user again, or gives it up.
    fn again(&mut self, place: Place, now_ns: u64) {
        let timeout_ns = self.timeout_ns;
        let Some(user) = self.user(place) else { return };
        let is_late = now_ns.saturating_sub(user.begun_ns) >= timeout_ns;
        match (is_late, user.sent) {
            (false, _) => self.send(place, now_ns),
            (true, 0) => self.end(place, RadiusEnd::Unsent, 0, now_ns),
            (true, _) => self.end(place, RadiusEnd::Timeout, 0, now_ns),
        }
    }

    /// Sends the datagram of a user.
    fn send(&mut self, place: Place, now_ns: u64) {
        let mut refused = false;
        loop {
            let (timeout_ns, retransmit_ns) = (self.timeout_ns, self.retransmit_ns);
            let Some(channel) = self.channels.get_mut(place.channel as usize) else { return };
            let Some(user) = channel.users.get_mut(usize::from(place.user)) else { return };
            let end_ns = user.begun_ns.saturating_add(timeout_ns);
            match channel.socket.send(&user.packet) {
                Ok(_) => {
                    self.counts.datagrams_sent += 1;
                    self.counts.retransmissions += u64::from(user.sent > 0);
                    user.sent += 1;
                    user.due_ns = end_ns.min(now_ns.saturating_add(retransmit_ns));
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The kernel reports what came back for earlier datagrams, and sends nothing.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && !refused => {
                    refused = true;
                    self.refuse(place.channel as usize, now_ns);
                    if self.user(place).is_none_or(|user| user.state != State::InFlight) {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    user.due_ns = end_ns.min(now_ns + FULL_NS);
                    return;
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return self.end(place, RadiusEnd::Refused, 0, now_ns);
                }
                Err(_) => return self.end(place, RadiusEnd::Unsent, 0, now_ns),
            }
        }
    }

    /// Fails the requests of a socket that were sent: nothing listens where it sends to.
    fn refuse(&mut self, channel: usize, now_ns: u64) {
        let users = self.channels.get(channel).map_or(0, |channel| channel.users.len());
        for user in 0..users as u8 {
            let place = Place { channel: channel as u32, user };
            let is_sent = |user: &&mut User| user.state == State::InFlight && user.sent > 0;
            if self.user(place).filter(is_sent).is_some() {
                self.end(place, RadiusEnd::Refused, 0, now_ns);
                self.arm(place);
            }
        }
    }

    fn receive(&mut self, number: usize) {
        for _ in 0..RECEIVED_MAX {
            let Some(channel) = self.channels.get_mut(number) else { return };
            let received = match channel.socket.recv(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    self.refuse(number, now_ns());
                    continue;
                }
                // Nothing more. Other errors are of datagrams that were sent, and are noticed as timeouts.
                Err(_) => return,
            };
            let now_ns = now_ns();
            self.counts.datagrams_received += 1;
            let datagram = self.buffer.get(..received).unwrap_or_default();
            let Some(identifier) = identifier(datagram) else {
                self.counts.malformed += 1;
                continue;
            };
            let owner = channel.owners.get(usize::from(identifier)).copied().flatten();
            let Some((user, one)) =
                owner.and_then(|user| Some((user, channel.users.get(usize::from(user))?)))
            else {
                self.counts.unexpected += 1;
                continue;
            };
            let place = Place { channel: number as u32, user };
            match self.request.verify(&one.packet, datagram) {
                Ok(answer) => {
                    self.end(place, RadiusEnd::Answered(answer.code), answer.length, now_ns);
                    self.continue_user(place, now_ns);
                }
                Err(Discarded::Malformed) => self.counts.malformed += 1,
                Err(Discarded::Unverified) => self.counts.unverified += 1,
            }
        }
    }

    /// Begins the next request of a user after an answer. Its entry is for an earlier time, and is renewed then.
    fn continue_user(&mut self, place: Place, now_ns: u64) {
        if self.user(place).is_some_and(|user| user.state == State::Idle) {
            self.begin(place, now_ns);
            self.arm(place);
        }
    }

    /// Ends the request of a user.
    fn end(&mut self, place: Place, end: RadiusEnd, bytes: u16, now_ns: u64) {
        let counts = &mut self.counts;
        let (count, rest_ns) = match end {
            RadiusEnd::Answered(ACCESS_ACCEPT) => (&mut counts.accepted, 0),
            RadiusEnd::Answered(ACCESS_REJECT) => (&mut counts.rejected, 0),
            RadiusEnd::Answered(ACCESS_CHALLENGE) => (&mut counts.challenged, 0),
            RadiusEnd::Answered(_) => (&mut counts.other_codes, 0),
            RadiusEnd::Timeout => (&mut counts.timeouts, 0),
            RadiusEnd::Refused => (&mut counts.refused, REST_NS),
            RadiusEnd::Unsent => (&mut counts.unsent, REST_NS),
        };
        *count += 1;
        match end {
            RadiusEnd::Answered(_) if !self.is_known => {
                self.contact.answered.store(true, Ordering::Relaxed);
                self.is_known = true;
            }
            RadiusEnd::Refused => self.contact.refused.store(true, Ordering::Relaxed),
            _ => {}
        }
        let Some(channel) = self.channels.get_mut(place.channel as usize) else { return };
        let Some(user) = channel.users.get_mut(usize::from(place.user)) else { return };
        let took_ns = now_ns.saturating_sub(user.begun_ns);
        (user.state, user.due_ns) = (State::Idle, now_ns + rest_ns);
        let (identifier, is_first) = (user.identifier, user.begun == 1);
        channel.release(identifier);
        if let RadiusEnd::Answered(_) = end {
            self.times.record(Series::Latency, took_ns);
        }
        (self.observer)(&RadiusResult { end, bytes, took_ns, is_first });
    }
}

impl Channel {
    fn open(server: SocketAddr, users: usize) -> io::Result<Channel> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(server)?;
        socket.set_nonblocking(true)?;
        let users = (0..users).map(|_| User::default()).collect();
        Ok(Channel { socket, users, owners: [None; IDENTIFIERS], next: 0 })
    }

    /// Takes the next identifier that is not in use: there are more than users.
    fn claim(&mut self, user: u8) -> u8 {
        while self.owners.get(usize::from(self.next)).copied().flatten().is_some() {
            self.next = self.next.wrapping_add(1);
        }
        let claimed = self.next;
        if let Some(owner) = self.owners.get_mut(usize::from(claimed)) {
            *owner = Some(user);
        }
        self.next = claimed.wrapping_add(1);
        claimed
    }

    fn release(&mut self, identifier: u8) {
        if let Some(owner) = self.owners.get_mut(usize::from(identifier)) {
            *owner = None;
        }
    }
}
