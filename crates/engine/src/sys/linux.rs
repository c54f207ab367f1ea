//! [`Sys`] on Linux: level-triggered epoll and plain socket calls. The descriptor table may belong to this
//! worker alone. Sources: epoll(7), tcp(7), ip(7), close_range(2).

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use super::thread_waits::WaitsFile;
use super::{Event, Fd, Interest, Sys, ThreadWaits};

/// Events taken from the kernel by one `epoll_wait`.
const EVENTS_MAX: usize = 512;

/// Turns the -1 of a system call into its `errno`.
pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// One worker's access to the kernel. Create it in the worker's thread, after the thread has left the shared
/// descriptor table: the epoll instance belongs to the table.
pub struct Linux {
    epoll: Fd,
    wake: Option<Fd>,
    /// A cryptographic generator, seeded by the kernel: masks and secrets are drawn from it.
    random: ChaCha8Rng,
    raw: Box<[MaybeUninit<libc::epoll_event>; EVENTS_MAX]>,
    waits: WaitsFile,
    /// The kernel takes timeouts in nanoseconds (epoll_pwait2, Linux 5.11).
    exact_timeouts: bool,
    /// The thread's sleeps are not extended (`PR_SET_TIMERSLACK`).
    exact_sleep: bool,
}

impl Linux {
    /// A new epoll instance. `wake` is the number of an eventfd made before any worker left the
    /// shared table (see [`super::process::wake_descriptor`]).
    ///
    /// # Errors
    /// Those of `epoll_create1(2)` and `getrandom(2)`.
    pub fn new(wake: Option<i32>) -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Linux {
            epoll: Fd::new(epoll),
            wake: wake.map(Fd::new),
            random: ChaCha8Rng::from_seed(seed()?),
            raw: Box::new([MaybeUninit::uninit(); EVENTS_MAX]),
            waits: WaitsFile::default(),
            exact_timeouts: true,
            exact_sleep: false,
        })
    }

    /// Waits for up to `want` events. The timeout is exact to the nanosecond where the kernel and the sandbox
    /// allow that, else in milliseconds rounded up. Returns the number of events in `raw`.
    fn wait_raw(&mut self, want: i32, timeout: Option<Duration>) -> io::Result<usize> {
        let (epoll, raw) = (self.epoll.number(), self.raw.as_mut_ptr().cast());
        if self.exact_timeouts {
            let timeout = timeout.map(|timeout| libc::timespec {
                tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            });
            let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: the buffer holds at least `want` events; it and the timeout outlive the call.
            let got = unsafe {
                libc::syscall(libc::SYS_epoll_pwait2, epoll, raw, want, timeout, mask, 0_usize)
            };
            if got >= 0 {
                return Ok(got as usize);
            }
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
                return Err(error);
            }
            self.exact_timeouts = false;
        }
        let timeout_ms = timeout
            .map_or(-1, |t| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: the buffer holds at least `want` events and outlives the call.
        Ok(check(unsafe { libc::epoll_wait(epoll, raw, want, timeout_ms) })? as usize)
    }

    fn control(&mut self, op: libc::c_int, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        // epoll reports a hang-up whatever is watched for. Level-triggered, one that nobody handles
        // would be reported at each wait.
        let mut events = if interest == Interest::NONE { libc::EPOLLONESHOT as u32 } else { 0 };
        if interest.read {
            events |= libc::EPOLLIN as u32;
        }
        if interest.write {
            events |= libc::EPOLLOUT as u32;
        }
        self.epoll_control(op, fd, events, key)
    }

    fn epoll_control(&self, op: libc::c_int, fd: Fd, events: u32, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: key };
        // SAFETY: `event` lives through the call, which copies it.
        check(unsafe { libc::epoll_ctl(self.epoll.number(), op, fd.number(), &mut event) })?;
        Ok(())
    }
}

impl AsFd for Linux {
    /// The epoll instance.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as `Linux` is there.
        unsafe { BorrowedFd::borrow_raw(self.epoll.number()) }
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and `Linux` is not used after this.
        unsafe { libc::close(self.epoll.number()) };
    }
}

impl Sys for Linux {
    fn now_ns(&self) -> u64 {
        super::process::now_ns()
    }

    fn thread_waits(&mut self) -> Option<ThreadWaits> {
        self.waits.read()
    }

    fn pause(&mut self, ns: u32) {
        if !std::mem::replace(&mut self.exact_sleep, true) {
            // SAFETY: no pointers are passed. A thread's sleeps may otherwise last 50 us longer.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize) };
        }
        let time = libc::timespec { tv_sec: 0, tv_nsec: ns.min(999_999_999).into() };
        // SAFETY: the time outlives the call; nothing is written. A signal may end it early.
        unsafe {
            libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const time, std::ptr::null_mut())
        };
    }

    fn random(&mut self) -> u64 {
        self.random.next_u64()
    }

    fn wait(
        &mut self,
        events: &mut Vec<Event>,
        events_max: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let got = self.wait_raw(events_max.min(EVENTS_MAX) as i32, timeout)?;
        for raw in self.raw.iter().take(got) {
            // SAFETY: the kernel has written the first `got` events.
            let raw = unsafe { raw.assume_init() };
            let mask = raw.events;
            let failed = mask & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
            events.push(Event {
                key: raw.u64,
                readable: failed || mask & libc::EPOLLIN as u32 != 0,
                writable: failed || mask & libc::EPOLLOUT as u32 != 0,
                failed,
            });
        }
        Ok(())
    }

    fn poll_fd(&self) -> Option<i32> {
        Some(self.epoll.number())
    }

    fn watch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, key)
    }

    fn watch_listener(&mut self, listener: Fd, key: u64) -> io::Result<()> {
        // Otherwise a connection wakes all workers that wait, and all but one in vain.
        let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
        self.epoll_control(libc::EPOLL_CTL_ADD, listener, events, key)
    }

    fn is_shared(&self, listener: Fd) -> bool {
        // TCP listeners share a port, each with a socket and a queue of its own.
        socket_option(listener, libc::SO_DOMAIN).is_ok_and(|domain| domain == libc::AF_UNIX)
    }

    fn rewatch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, key)
    }

    fn unwatch(&mut self, fd: Fd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, Interest::NONE, 0)
    }

    fn wake_fd(&self) -> Option<Fd> {
        self.wake
    }

    fn clear_wake(&mut self) {
        if let Some(wake) = self.wake {
            let mut count = [0u8; 8];
            let _ = self.read(wake, &mut count);
        }
    }

    fn accept(&mut self, listener: Fd) -> io::Result<Fd> {
        // SAFETY: with null pointers no address is returned.
        let fd = check(unsafe {
            libc::accept4(
                listener.number(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            )
        })?;
        Ok(Fd::new(fd))
    }

    fn accept_with_peer(&mut self, listener: Fd) -> io::Result<(Fd, Option<IpAddr>)> {
        // SAFETY: an all-zero `sockaddr_storage` is valid.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: storage and length live through the call and match in size.
        let fd = check(unsafe {
            libc::accept4(
                listener.number(),
                (&raw mut storage).cast(),
                &mut length,
                libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            )
        })?;
        Ok((Fd::new(fd), from_raw(&storage).map(|address| address.ip())))
    }

    fn connect(&mut self, destination: SocketAddr, source: Option<IpAddr>) -> io::Result<Fd> {
        let socket = start_connect(destination, source)?;
        Ok(Fd::new(socket.into_raw_fd()))
    }

    fn connect_unix(&mut self, path: &Path) -> io::Result<Fd> {
        let (address, length) = unix_address(path)?;
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed.
        let fd = Fd::new(check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?);
        // SAFETY: `address` holds a socket address of `length` bytes.
        let begun = unsafe { libc::connect(fd.number(), (&raw const address).cast(), length) };
        match check(begun) {
            Ok(_) => Ok(fd),
            Err(error) => {
                self.close(fd);
                Err(error)
            }
        }
    }

    fn notice_dead_peer(&mut self, fd: Fd, timeout: Duration) {
        // A UNIX socket has no such options and needs none.
        let _ = super::process::notice_dead_peers(fd.number(), timeout);
    }

    fn connect_outcome(&mut self, fd: Fd) -> io::Result<()> {
        let code = socket_option(fd, libc::SO_ERROR)?;
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
    }

    #[inline]
    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> io::Result<usize> {
        // Not libc's wrapper: with threads it is a cancellation point, which costs some 30 instructions
        // before and after the call.
        // SAFETY: the kernel writes at most `into.len()` bytes to our buffer.
        let got = unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                fd.number(),
                into.as_mut_ptr(),
                into.len(),
                0,
                std::ptr::null_mut::<u8>(),
                std::ptr::null_mut::<u8>(),
            )
        };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
    }

    #[inline]
    fn send(&mut self, fd: Fd, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the kernel reads `bytes.len()` bytes that we hold borrowed.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                fd.number(),
                bytes.as_ptr(),
                bytes.len(),
                libc::MSG_NOSIGNAL,
                std::ptr::null::<u8>(),
                0,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    fn send_vectored(&mut self, fd: Fd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: an all-zero `msghdr` is a valid empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut().cast();
        // Its type depends on the C library: a word in glibc, 32 bits in musl. The few pieces fit both.
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: `IoSlice` has the layout of `iovec`; the kernel only reads the pieces.
        let sent = unsafe { libc::sendmsg(fd.number(), &message, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    fn shutdown_write(&mut self, fd: Fd) {
        // SAFETY: no pointers are passed; a dead socket only makes the call fail.
        unsafe { libc::shutdown(fd.number(), libc::SHUT_WR) };
    }

    fn close(&mut self, fd: Fd) {
        // SAFETY: the caller no longer uses the descriptor.
        unsafe { libc::close(fd.number()) };
    }

    fn stop_listening(&mut self, listener: Fd) {
        super::process::stop_listening(listener.number());
    }

    fn reset_on_close(&mut self, fd: Fd) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let length = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: `linger` lives through the call and `length` is its size.
        unsafe {
            libc::setsockopt(
                fd.number(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                length,
            )
        };
    }

    fn peer(&self, fd: Fd) -> Option<SocketAddr> {
        address_of(fd.number(), libc::getpeername).ok()
    }

    fn local(&self, fd: Fd) -> Option<SocketAddr> {
        address_of(fd.number(), libc::getsockname).ok()
    }

    fn is_broken(&self, fd: Fd) -> bool {
        let peer = address_of(fd.number(), libc::getpeername);
        peer.is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    }

    fn peer_has_left(&self, fd: Fd) -> bool {
        let left = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let mut polled = libc::pollfd { fd: fd.number(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: the kernel writes to our one entry, and does not wait.
        let ready = unsafe { libc::poll(&raw mut polled, 1, 0) };
        ready == 1 && polled.revents & left != 0
    }
}

impl Linux {
    fn read(&mut self, fd: Fd, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `into.len()` bytes to our buffer.
        let got = unsafe { libc::read(fd.number(), into.as_mut_ptr().cast(), into.len()) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
    }
}

/// Starts a non-blocking connect, from any port of `source` if given.
pub(super) fn start_connect(
    destination: SocketAddr,
    source: Option<IpAddr>,
) -> io::Result<OwnedFd> {
    let domain = if destination.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed; the descriptor is new and belongs to this function.
    let socket = unsafe { OwnedFd::from_raw_fd(check(libc::socket(domain, kind, 0))?) };
    let fd = Fd::new(socket.as_raw_fd());
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    if let Some(source) = source {
        set(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
        let (address, length) = to_raw(SocketAddr::new(source, 0));
        // SAFETY: `address` holds a socket address of `length` bytes.
        check(unsafe { libc::bind(fd.number(), (&raw const address).cast(), length) })?;
    }
    let (address, length) = to_raw(destination);
    // SAFETY: as above.
    let result = check(unsafe { libc::connect(fd.number(), (&raw const address).cast(), length) });
    match result {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// An integer option of a socket itself.
fn socket_option(fd: Fd, name: i32) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` and `length` live through the call and match in size.
    check(unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(fd.number(), libc::SOL_SOCKET, name, value, &mut length)
    })?;
    Ok(value)
}

/// Sets an integer socket option.
pub(super) fn set(fd: Fd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` lives through the call and `length` is its size.
    check(unsafe {
        libc::setsockopt(fd.number(), level, name, (&raw const value).cast(), length)
    })?;
    Ok(())
}

/// The address that `call` (getsockname or getpeername) returns for a socket.
pub(super) fn address_of(
    number: i32,
    call: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
) -> io::Result<SocketAddr> {
    // SAFETY: an all-zero `sockaddr_storage` is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: storage and length live through the call and match in size.
    check(unsafe { call(number, (&raw mut storage).cast(), &mut length) })?;
    from_raw(&storage).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

/// An address in the kernel's form, with its length.
pub(super) fn to_raw(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: an all-zero `sockaddr_storage` is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is large enough and aligned for every address family.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

fn from_raw(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family determines the type of the address.
            let raw = unsafe { (&raw const *storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { (&raw const *storage).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn unix_address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: an all-zero `sockaddr_un` is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // The last byte stays zero.
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (into, byte) in address.sun_path.iter_mut().zip(bytes) {
        *into = *byte as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// Random bytes of the kernel.
pub(super) fn seed() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // SAFETY: the kernel writes at most 32 bytes to our buffer. It gives up to 256 without interruption.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(got) {
        Ok(got) if got == bytes.len() => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}
