//! What a process does around its workers: wake-up descriptors, listeners, private descriptor
//! tables, signals, the clock and the allocator. Not for use inside a worker's turn.
//!
//! Order matters, because a private table is a copy cut off at a number: wake-up descriptors and
//! listeners first, then threads that call [`leave_shared_table`], then everything else.

#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use super::Fd;
use super::linux::{address_of, check, set, to_raw};

/// How often, and after which time, it is looked whether a thread that was joined is gone.
const THREAD_GONE_LOOKS: u32 = 100;
const THREAD_GONE_LOOK: Duration = Duration::from_millis(1);

/// Monotonic time in nanoseconds: the same for all processes of this boot.
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

/// A descriptor that wakes whoever watches it (eventfd(2)). Make all of them before any worker
/// leaves the shared table: one made later has a number that means something else there.
///
/// # Errors
/// `EMFILE` and `ENFILE`, as the process has no descriptors left.
pub fn wake_descriptor() -> io::Result<i32> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// Wakes the watcher of a descriptor from [`wake_descriptor`], from any thread.
pub fn wake(descriptor: i32) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the kernel reads 8 bytes that are ours. A full counter (EAGAIN) is awake already.
    unsafe { libc::write(descriptor, one.as_ptr().cast(), one.len()) };
}

/// Blocks until a descriptor from [`wake_descriptor`] was woken, and makes it quiet again.
pub fn wait_for_wake(descriptor: i32) {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let mut count = [0u8; 8];
    loop {
        // SAFETY: one `pollfd` is passed and lives through the call.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
        // SAFETY: the kernel writes 8 bytes to a buffer that is ours.
        let got = unsafe { libc::read(descriptor, count.as_mut_ptr().cast(), count.len()) };
        if got == 8 {
            return;
        }
    }
}

/// How a listener is opened.
#[derive(Copy, Clone, Debug)]
pub struct Listen {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
    pub backlog: u32,
    /// Share the port with other listeners of this user (`SO_REUSEPORT`).
    pub shared_port: bool,
    /// Report a connection only once its first bytes are here (`TCP_DEFER_ACCEPT`), at most this
    /// long. Zero reports at once.
    pub defer: Duration,
    /// Leave IPv4 alone (`IPV6_V6ONLY`); else `[::]` takes both. Of no meaning to an IPv4 address.
    pub v6_only: bool,
}

/// Opens a listener and tells its number and address. Connections accepted from it inherit
/// `TCP_NODELAY`.
///
/// # Errors
/// What socket(2), bind(2) and listen(2) answer, first of all `EADDRINUSE`.
pub fn listen(options: &Listen) -> io::Result<(i32, SocketAddr)> {
    let backlog = i32::try_from(options.backlog).unwrap_or(i32::MAX);
    let (number, address) = bind(options)?;
    // SAFETY: no pointers are passed.
    if let Err(error) = check(unsafe { libc::listen(number, backlog) }) {
        close(number);
        return Err(error);
    }
    Ok((number, address))
}

/// Asks whether the address could be listened on, without listening there: whoever connects
/// meanwhile is refused, and not taken in by a listener that is closed again.
///
/// # Errors
/// What socket(2) and bind(2) answer, first of all `EADDRINUSE`.
pub fn try_bind(options: &Listen) -> io::Result<()> {
    bind(options).map(|(number, _)| close(number))
}

/// A socket that is to listen, at its address.
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

/// Lets connections fail whose peer is gone without a word: sets how long it may leave unacknowledged
/// what it was sent (`TCP_USER_TIMEOUT`), and asks one that is silent for half of that whether it is
/// there, and each tenth again (`SO_KEEPALIVE`). What a listener is told holds for those it accepts.
///
/// The kernel looks at nothing but that time: a question that is asked after it and gets lost is the
/// peer's end (`tcp_keepalive_timer`). So all must be asked before, and several must be lost.
///
/// # Errors
/// What setsockopt(2) answers, to what is no TCP socket for one.
pub fn notice_dead_peers(socket: i32, timeout: Duration) -> io::Result<()> {
    let fd = Fd::new(socket);
    let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let (idle, between) = keepalive_seconds(timeout);
    set(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, milliseconds)?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, between)
}

/// After which silence a peer is asked whether it is there, and how often then.
fn keepalive_seconds(timeout: Duration) -> (i32, i32) {
    let seconds =
        |part: u64| i32::try_from((timeout.as_secs() / part).clamp(1, 32_767)).unwrap_or(1);
    (seconds(2), seconds(10))
}

/// Makes a listener refuse further connections in every table that holds it (shutdown(2)).
pub fn stop_listening(listener: i32) {
    // SAFETY: no pointers are passed; a listener that has stopped only makes the call fail.
    unsafe { libc::shutdown(listener, libc::SHUT_RDWR) };
}

/// Closes a descriptor by number in this thread's table.
pub fn close(number: i32) {
    // SAFETY: the caller gives up the descriptor.
    unsafe { libc::close(number) };
}

/// Gives the calling thread a descriptor table of its own: the numbers below `keep_below` stay
/// open in it, all others are closed in the new table only. From then on `RLIMIT_NOFILE` counts
/// this table by itself.
///
/// # Errors
/// `ENOSYS` before Linux 5.9, `EPERM` where a sandbox forbids it: the thread then still shares.
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

/// Tells whether threads of this process may have tables of their own, by trying it on a thread
/// that then ends.
#[must_use]
pub fn private_tables_work() -> bool {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let before = threads();
    // Where no thread can be had the workers cannot be either, and they say so better.
    let looks = std::thread::Builder::new().stack_size(64 * 1024);
    let Ok(looking) = looks.spawn(|| leave_shared_table(i32::MAX - 1).is_ok()) else { return true };
    let works = looking.join();
    // Joined is not gone: for a moment longer it counts against RLIMIT_NPROC, where every thread
    // may be wanted.
    for _ in 0..THREAD_GONE_LOOKS {
        if threads() <= before {
            break;
        }
        std::thread::sleep(THREAD_GONE_LOOK);
    }
    works.unwrap_or(false)
}

/// A signal that asks the process for something.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM: end in good order.
    Terminate,
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// Blocks the signals of [`Signal`] in this thread and in all it will start, so that only
/// [`wait_signal`] takes them. Call it first in `main`.
pub fn block_signals() {
    let set = signal_set();
    // SAFETY: `set` is a valid signal set; the old one is not wanted.
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
    // SAFETY: both pointers live through the call; no information is asked back.
    match unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &timeout) } {
        libc::SIGTERM => Some(Signal::Terminate),
        libc::SIGINT => Some(Signal::Interrupt),
        libc::SIGHUP => Some(Signal::Reload),
        _ => None,
    }
}

fn signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that the others add to.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Sends SIGTERM to a process that this one started.
pub fn terminate(pid: u32) {
    if let Ok(pid) = i32::try_from(pid)
        && pid > 1
    {
        // SAFETY: no pointers are passed; a dead process only makes the call fail.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

/// Has the kernel send SIGKILL to this process when its parent ends, so that a killed `prove`
/// leaves no half of itself behind (prctl(2), `PR_SET_PDEATHSIG`).
pub fn end_with_parent() {
    // SAFETY: no pointers are passed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Starts a program that is not ours as any shell would, with no signal blocked (a child inherits what
/// [`block_signals`] did), and has the kernel send it SIGTERM when the calling thread ends.
///
/// # Errors
/// As [`Command::spawn`].
pub fn start_foreign(command: &mut Command) -> io::Result<Child> {
    let set = signal_set();
    let prepare = move || {
        // SAFETY: `set` is a valid signal set; the old one is not wanted.
        check(unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) })?;
        // SAFETY: no pointers are passed.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) })?;
        Ok(())
    };
    // SAFETY: between fork and exec these two system calls are made and nothing else, which allocates
    // nothing and takes no lock.
    unsafe { command.pre_exec(prepare) }.spawn()
}

/// Ties the calling thread to one core, counted from 0 (sched_setaffinity(2)).
///
/// # Errors
/// `EINVAL` when the process may not run there.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: CPU_SET ignores a core beyond the set's size.
    unsafe { libc::CPU_SET(core, &mut cores) };
    // SAFETY: `cores` lives through the call and the size is its own.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &cores) })?;
    Ok(())
}

/// Asks the scheduler to run the calling thread in pieces of `slice`: with more busy threads than
/// cores, each comes round sooner, and one that mostly sleeps runs soon after it wakes. Its share
/// stays the same. Linux heeds it from 6.12 on, between 0.1 and 100 ms (sched_setattr(2)).
pub fn run_in_slices(slice: Duration) {
    // SAFETY: an all-zero `sched_attr` is a valid one of policy SCHED_OTHER.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: no pointers are passed; 0 means the calling thread.
    attributes.sched_nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    attributes.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    let (this_thread, flags) = (0, 0);
    // SAFETY: the kernel reads `attributes`, which names its own size. A refusal changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, &raw const attributes, flags) };
}

/// Makes glibc's allocator give large blocks back as soon as they are freed, and keeps it from
/// making an arena for each of many threads (mallopt(3)). Call it once, before threads start.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers are passed; unknown parameters are ignored.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 * 1024);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}

/// Returns freed memory to the system now (malloc_trim(3)).
pub fn trim_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers are passed.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peer_is_given_up_for_one_question_that_was_lost() {
        for seconds in [7, 30, 120, 3_600] {
            let (idle, between) = keepalive_seconds(Duration::from_secs(seconds));
            let lost = (seconds as i32 - idle) / between;
            assert!(lost >= 3, "of {seconds} s: {lost} are asked in time");
        }
    }
}
