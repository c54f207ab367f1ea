//! Process-wide calls outside a worker's turn: wake-up descriptors, listeners, private descriptor tables,
//! signals, the clock and the allocator.
//!
//! Order matters, because a private table is a copy of all descriptors below a number: open wake-up
//! descriptors and listeners first, then start threads that call [`leave_shared_table`], then open the rest.

#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use super::Fd;
use super::linux::{address_of, check, set, start_connect, to_raw};

/// How often, and at which interval, to check whether a joined thread has disappeared from `/proc`.
const THREAD_GONE_LOOKS: u32 = 100;
const THREAD_GONE_LOOK: Duration = Duration::from_millis(1);

/// Monotonic time in nanoseconds, the same clock for all processes since boot.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills `now`; CLOCK_MONOTONIC cannot fail on Linux.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A descriptor that wakes the worker that watches it (eventfd(2)). Create all of them before any worker
/// leaves the shared table: in a worker's table, the number of a later one is another file.
///
/// # Errors
/// `EMFILE` and `ENFILE`, if no descriptors are left.
pub fn wake_descriptor() -> io::Result<i32> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// Wakes the watcher of a descriptor from [`wake_descriptor`], from any thread.
pub fn wake(descriptor: i32) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the kernel reads 8 bytes of ours. With a full counter (EAGAIN) the watcher is awake already.
    unsafe { libc::write(descriptor, one.as_ptr().cast(), one.len()) };
}

/// Blocks until a descriptor from [`wake_descriptor`] is woken, and resets it.
pub fn wait_for_wake(descriptor: i32) {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let mut count = [0u8; 8];
    loop {
        // SAFETY: one `pollfd` is passed and lives through the call.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
        // SAFETY: the kernel writes 8 bytes to our buffer.
        let got = unsafe { libc::read(descriptor, count.as_mut_ptr().cast(), count.len()) };
        if got == 8 {
            return;
        }
    }
}

/// How a listener is opened.
#[derive(Copy, Clone, Debug)]
pub struct Listen {
    /// The address to listen on; port 0 takes a free port.
    pub address: SocketAddr,
    /// Length of the accept queue; the kernel limits it to `net.core.somaxconn`.
    pub backlog: u32,
    /// Share the port with other listeners of this user (`SO_REUSEPORT`).
    pub shared_port: bool,
    /// Delay a connection until its first bytes have arrived (`TCP_DEFER_ACCEPT`), at most this long. Zero
    /// does not delay.
    pub defer: Duration,
    /// Accept no IPv4 (`IPV6_V6ONLY`); otherwise `[::]` accepts both. Ignored for an IPv4 address.
    pub v6_only: bool,
}

/// Opens a listener; returns its number and its address. Connections accepted from it inherit
/// `TCP_NODELAY`.
///
/// # Errors
/// Those of socket(2), bind(2) and listen(2), above all `EADDRINUSE`.
pub fn listen(options: &Listen) -> io::Result<(i32, SocketAddr)> {
    let (number, address) = bind(options)?;
    if let Err(error) = set_backlog(number, options.backlog) {
        close(number);
        return Err(error);
    }
    Ok((number, address))
}

/// Changes the length of a listener's accept queue, see [`Listen::backlog`].
///
/// # Errors
/// Those of listen(2).
pub fn set_backlog(listener: i32, backlog: u32) -> io::Result<()> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    // SAFETY: no pointers are passed.
    check(unsafe { libc::listen(listener, backlog) }).map(drop)
}

/// Checks whether the address is free without listening on it, so no client is accepted by a listener
/// that is about to be closed.
///
/// # Errors
/// Those of socket(2) and bind(2), above all `EADDRINUSE`.
pub fn try_bind(options: &Listen) -> io::Result<()> {
    bind(options).map(|(number, _)| close(number))
}

/// A socket bound to the address, not listening yet.
fn bind(options: &Listen) -> io::Result<(i32, SocketAddr)> {
    let domain = if options.address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let number = check(unsafe { libc::socket(domain, kind, 0) })?;
    let fd = Fd::new(number);
    let bound = (|| {
        set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        if options.shared_port {
            set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        if options.address.is_ipv6() {
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, options.v6_only.into())?;
        }
        set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        if !options.defer.is_zero() {
            let seconds = i32::try_from(options.defer.as_secs().max(1)).unwrap_or(i32::MAX);
            set(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds)?;
        }
        let (address, length) = to_raw(options.address);
        // SAFETY: `address` holds a socket address of `length` bytes.
        check(unsafe { libc::bind(number, (&raw const address).cast(), length) })?;
        address_of(number, libc::getsockname)
    })();
    match bound {
        Ok(address) => Ok((number, address)),
        Err(error) => {
            close(number);
            Err(error)
        }
    }
}

/// Starts a connect as workers do: non-blocking, from any port of `source` if given. It has succeeded
/// when the socket is writable and has no error.
///
/// # Errors
/// Those of socket(2), bind(2) and connect(2).
pub fn start_connect_from(
    destination: SocketAddr,
    source: Option<IpAddr>,
) -> io::Result<TcpStream> {
    start_connect(destination, source).map(TcpStream::from)
}

/// Ends connections whose peer has disappeared: sets how long sent data may stay unacknowledged
/// (`TCP_USER_TIMEOUT`), and probes a peer that has been silent for half of that, then at intervals of a
/// tenth (`SO_KEEPALIVE`). Set on a listener, this applies to the connections it accepts.
///
/// The kernel only compares the time: after the timeout a single lost probe ends the connection
/// (`tcp_keepalive_timer`). So several probes are sent before, and all must be lost.
///
/// # Errors
/// Those of setsockopt(2), for instance if this is no TCP socket.
pub fn notice_dead_peers(socket: i32, timeout: Duration) -> io::Result<()> {
    let fd = Fd::new(socket);
    let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let (idle, between) = keepalive_seconds(timeout);
    set(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, milliseconds)?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, between)
}

/// The idle time before the first probe, and the interval between probes.
fn keepalive_seconds(timeout: Duration) -> (i32, i32) {
    let seconds =
        |part: u64| i32::try_from((timeout.as_secs() / part).clamp(1, 32_767)).unwrap_or(1);
    (seconds(2), seconds(10))
}

/// Makes a listener refuse further connections in every table that holds it (shutdown(2)).
pub fn stop_listening(listener: i32) {
    // SAFETY: no pointers are passed; for a stopped listener the call fails without effect.
    unsafe { libc::shutdown(listener, libc::SHUT_RDWR) };
}

/// Another descriptor of the same file, for another owner; closed in programs that are executed.
///
/// # Errors
/// As fcntl(2) reports, `EMFILE` above all.
pub fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; a new descriptor has no other owner.
    unsafe {
        let copy = check(libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(copy))
    }
}

/// Closes a descriptor by number in this thread's table.
pub fn close(number: i32) {
    // SAFETY: the caller no longer uses the descriptor.
    unsafe { libc::close(number) };
}

/// Gives the calling thread a descriptor table of its own: the numbers below `keep_below` stay
/// open in it; all others are closed, in the new table only. From then on `RLIMIT_NOFILE` applies to
/// this table alone.
///
/// # Errors
/// `ENOSYS` before Linux 5.9, `EPERM` where a sandbox forbids it; the thread then still uses the shared table.
pub fn leave_shared_table(keep_below: i32) -> io::Result<()> {
    let first = keep_below.max(3) as libc::c_uint;
    // SAFETY: closes no descriptor that this thread uses: it has opened none yet.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE as libc::c_uint,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks all signals in this thread but those of its own faults: their handlers may use descriptors, whose numbers are
/// other files in a private table.
pub fn block_all_signals() {
    let faults =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is changed and used; the old one is not returned.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for fault in faults {
            libc::sigdelset(set.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Closes what a private table has from the shared one, except standard streams and these: what the process closes
/// would stay open in it. Errors do not matter: what cannot be closed stays.
pub fn close_others(keep: &[i32]) {
    let mut keep: Vec<i32> = keep.iter().copied().filter(|number| *number > 2).collect();
    keep.sort_unstable();
    let mut first = 3;
    for number in keep.into_iter().chain([i32::MAX]) {
        if first < number {
            let (from, to) = (first as libc::c_uint, (number - 1) as libc::c_uint);
            // SAFETY: closes descriptors of a table of this thread alone, which uses none of them.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, 0 as libc::c_uint) };
        }
        first = number.saturating_add(1);
    }
}

/// Whether threads of this process can have private tables. Tries it on a short-lived thread.
#[must_use]
pub fn private_tables_work() -> bool {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let before = threads();
    // If no thread can be started, starting the workers fails with a better error.
    let looks = std::thread::Builder::new().stack_size(64 * 1024);
    let Ok(looking) = looks.spawn(|| leave_shared_table(i32::MAX - 1).is_ok()) else { return true };
    let works = looking.join();
    // A joined thread counts against RLIMIT_NPROC a moment longer, and every thread may be needed.
    for _ in 0..THREAD_GONE_LOOKS {
        if threads() <= before {
            break;
        }
        std::thread::sleep(THREAD_GONE_LOOK);
    }
    works.unwrap_or(false)
}

/// A signal that the process handles.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM: shut down gracefully.
    Terminate,
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGHUP: reload the configuration.
    Reload,
}

/// Blocks the signals of [`Signal`] in this thread and in all threads it starts later, so that only
/// [`wait_signal`] receives them. Blocks SIGXFSZ too: a write beyond the file size limit then fails with
/// `EFBIG` and does not end the process. Call it first in `main`.
pub fn block_signals() {
    let set = blocked_set();
    // SAFETY: `set` is a valid signal set; the old one is not returned.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// Waits for one of the blocked signals, at most `timeout`.
#[must_use]
pub fn wait_signal(timeout: Duration) -> Option<Signal> {
    let set = signal_set();
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: both pointers live through the call; no `siginfo_t` is returned.
    match unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &timeout) } {
        libc::SIGTERM => Some(Signal::Terminate),
        libc::SIGINT => Some(Signal::Interrupt),
        libc::SIGHUP => Some(Signal::Reload),
        _ => None,
    }
}

fn signal_set() -> libc::sigset_t {
    set_of(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
}

fn blocked_set() -> libc::sigset_t {
    set_of(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGXFSZ])
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set, sigaddset adds to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Sends SIGTERM to a process that this one started.
pub fn terminate(pid: u32) {
    if let Ok(pid) = i32::try_from(pid)
        && pid > 1
    {
        // SAFETY: no pointers are passed; for a dead process the call fails without effect.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

/// Has the kernel send SIGKILL to this process when its parent ends, so that a killed `prove`
/// leaves no child process behind (prctl(2), `PR_SET_PDEATHSIG`).
pub fn end_with_parent() {
    // SAFETY: no pointers are passed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Starts another program with no signal blocked, as a shell does (a child inherits the signals blocked by
/// [`block_signals`]). The kernel sends it SIGTERM when the calling thread ends.
///
/// # Errors
/// As [`Command::spawn`].
pub fn start_foreign(command: &mut Command) -> io::Result<Child> {
    let set = blocked_set();
    let prepare = move || {
        // SAFETY: `set` is a valid signal set; the old one is not returned.
        check(unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) })?;
        // SAFETY: no pointers are passed.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) })?;
        Ok(())
    };
    // SAFETY: between fork and exec only these two system calls are made. They allocate nothing and take
    // no lock.
    unsafe { command.pre_exec(prepare) }.spawn()
}

/// Ties the calling thread to one core, counted from 0 (sched_setaffinity(2)).
///
/// # Errors
/// `EINVAL` if the process may not run on that core.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: CPU_SET ignores a core beyond the set's size.
    unsafe { libc::CPU_SET(core, &mut cores) };
    // SAFETY: `cores` lives through the call and the size is its own.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &cores) })?;
    Ok(())
}

/// Sets the scheduler's time slice of the calling thread. With more busy threads than cores and a short
/// slice, each runs more often, and one that mostly sleeps runs soon after it wakes. Its share of the CPU is
/// the same. Linux supports slices of 0.1 to 100 ms from 6.12 on (sched_setattr(2)).
pub fn run_in_slices(slice: Duration) {
    // SAFETY: an all-zero `sched_attr` is a valid one of policy SCHED_OTHER.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: no pointers are passed; 0 means the calling thread.
    attributes.sched_nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    attributes.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    let (this_thread, flags) = (0, 0);
    // SAFETY: the kernel reads `attributes`, which contains its size. If refused, the slice is unchanged.
    unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, &raw const attributes, flags) };
}

/// Makes glibc's allocator return large blocks to the system when they are freed, and limits the number of
/// its arenas (mallopt(3)). Call it once, before threads start.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers are passed; unknown parameters are ignored.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 * 1024);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}

/// Returns freed memory to the system now (malloc_trim(3)), except what lies free at the end of another thread's
/// arena: see [`trim_own_arena`].
pub(crate) fn trim_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers are passed.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns what lies free at the end of this thread's arena to the system. malloc_trim(3) leaves that to the
/// next `free` of a block of at least 64 KiB in the arena, which may never come.
pub(crate) fn trim_own_arena() {
    std::hint::black_box(Vec::<u8>::with_capacity(96 * 1024));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_probes_are_sent_before_the_timeout() {
        for seconds in [7, 30, 120, 3_600] {
            let (idle, between) = keepalive_seconds(Duration::from_secs(seconds));
            let lost = (seconds as i32 - idle) / between;
            assert!(lost >= 3, "in {seconds} s: {lost} probes");
        }
    }

    #[test]
    fn a_private_table_keeps_the_descriptors_that_are_named() {
        if !private_tables_work() {
            return;
        }
        let all: Vec<i32> = (0..5).filter_map(|_| wake_descriptor().ok()).collect();
        let kept = [all[3], all[1]];
        // Other tests of this process close descriptors meanwhile: the numbers need not ascend.
        let highest = all.iter().copied().max().unwrap();
        let numbers = all.clone();
        let thread = std::thread::spawn(move || {
            leave_shared_table(highest + 1).unwrap();
            close_others(&kept);
            numbers.into_iter().filter(|number| duplicate(*number).is_ok()).collect::<Vec<_>>()
        });
        assert_eq!(thread.join().unwrap(), [all[1], all[3]]);
        assert!(all.iter().all(|number| duplicate(*number).is_ok()), "those of the process stay");
        all.into_iter().for_each(close);
    }
}
