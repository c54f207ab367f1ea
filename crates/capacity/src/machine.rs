//! [`Machine`]: the limits of this machine, as plain data.
//!
//! It only reads; [`crate::check`] decides what is too low. A limit that does not exist or cannot be read
//! is `None`. Sources: proc(5), the kernel's `ip-sysctl`, `sysctl/fs`,
//! `sysctl/kernel`, `sysctl/vm` and `nf_conntrack-sysctl`.

use std::path::Path;
use std::thread::available_parallelism;

use serde::Serialize;

use crate::cgroup;
use crate::nofile::{Nofile, address_space, nofile, nproc};
use crate::root::{Root, field, field_kb};

/// What this machine, or the container we are in, allows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// Name of the first processor.
    pub cpu_model: Option<String>,
    /// Cores this process may use, by its affinity and its control group's quota.
    pub cores: usize,
    /// Whether this looks like the inside of a container.
    pub container: bool,
    /// Memory, in bytes.
    pub memory: Memory,
    /// Descriptors and open files.
    pub files: Files,
    /// Ephemeral ports.
    pub ports: Ports,
    /// TCP's own limits.
    pub tcp: Tcp,
    /// Connection tracking, where the kernel has it.
    pub conntrack: Option<Conntrack>,
    /// Threads and processes.
    pub threads: Threads,
    /// Virtual memory.
    pub vm: Vm,
}

/// Memory in bytes, the machine's or the control group's where that is tighter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Total memory.
    pub total_bytes: Option<u64>,
    /// Memory that can be allocated without swapping (`MemAvailable`).
    pub available_bytes: Option<u64>,
    /// The control group's limit, when there is one.
    pub cgroup_max_bytes: Option<u64>,
    /// Whether `available_bytes` is limited by the control group, not the machine.
    pub cgroup_limits: bool,
}

/// Descriptors of this process and open files of the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// `RLIMIT_NOFILE` of this process, per descriptor table.
    pub nofile: Nofile,
    /// `fs.nr_open`: the highest value a hard limit can have.
    pub nr_open: Option<u64>,
    /// `fs.file-max`: open files of the whole machine.
    pub file_max: Option<u64>,
    /// Files open now on the whole machine (`fs.file-nr`).
    pub used: Option<u64>,
    /// `fs.epoll.max_user_watches`: sockets that epoll may watch for one user.
    pub epoll_watches: Option<u64>,
}

impl Files {
    /// Descriptors one table can hold once the soft limit has been raised to the hard one.
    pub fn table(&self) -> u64 {
        self.nofile.hard.min(self.nr_open.unwrap_or(u64::MAX))
    }
}

/// Ephemeral ports: those of outgoing connections that are not bound to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ports {
    /// First and last, both included (`net.ipv4.ip_local_port_range`).
    pub range: Option<(u16, u16)>,
    /// How many of them are in `net.ipv4.ip_local_reserved_ports`.
    pub reserved: u64,
}

impl Ports {
    /// Ports in the range that may be used, `None` when the range is unknown.
    pub fn usable(&self) -> Option<u64> {
        let (first, last) = self.range?;
        let all = (u64::from(last) + 1).saturating_sub(u64::from(first));
        Some(all.saturating_sub(self.reserved))
    }
}

/// TCP's own limits, of this network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tcp {
    /// `net.core.somaxconn`: longest accept queue, per listener.
    pub somaxconn: Option<u64>,
    /// `net.ipv4.tcp_max_syn_backlog`: handshakes in progress, per listener.
    pub max_syn_backlog: Option<u64>,
    /// `net.ipv4.tcp_mem` in pages: low, pressure, high; of the whole machine.
    pub mem_pages: Option<[u64; 3]>,
    /// `net.ipv4.tcp_rmem` in bytes: min, default, max; per socket.
    pub rmem_bytes: Option<[u64; 3]>,
    /// `net.ipv4.tcp_wmem` in bytes: min, default, max; per socket.
    pub wmem_bytes: Option<[u64; 3]>,
    /// `net.ipv4.tcp_tw_reuse`: 0 never, 1 always, 2 on loopback.
    pub tw_reuse: Option<u64>,
    /// Connects that were lost before they were accepted.
    pub losses: Option<AcceptLosses>,
}

/// Connects to any listener of this network namespace that the kernel dropped, since it exists
/// (`/proc/net/netstat`, `TcpExt`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AcceptLosses {
    /// `ListenOverflows`: an accept queue was full.
    pub listen_overflows: u64,
    /// `ListenDrops`: for that or any other reason, such as memory.
    pub listen_drops: u64,
    /// `SyncookiesSent`: SYN cookies sent, as a queue of handshakes in progress or of accepted ones was
    /// full.
    pub syncookies_sent: u64,
    /// `SyncookiesRecv`: valid answers to them, each a connection.
    pub syncookies_received: u64,
    /// `SyncookiesFailed`: the answer to a SYN cookie was invalid, mostly because it came too late.
    pub syncookies_failed: u64,
}

impl AcceptLosses {
    /// Reads the counters of this process's network namespace. `None` where there are none.
    pub fn read() -> Option<AcceptLosses> {
        Self::read_from(&Root(Path::new("/")))
    }

    fn read_from(root: &Root<'_>) -> Option<AcceptLosses> {
        let text = root.text("/proc/self/net/netstat")?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
        let (names, values) = (lines.next()?, lines.next()?);
        let find = |name: &str| {
            let mut both = names.split_whitespace().zip(values.split_whitespace());
            both.find(|(of, _)| *of == name)?.1.parse().ok()
        };
        Some(AcceptLosses {
            listen_overflows: find("ListenOverflows")?,
            listen_drops: find("ListenDrops")?,
            syncookies_sent: find("SyncookiesSent").unwrap_or(0),
            syncookies_received: find("SyncookiesRecv").unwrap_or(0),
            syncookies_failed: find("SyncookiesFailed").unwrap_or(0),
        })
    }
}

/// Entries of the kernel's connection tracking table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Conntrack {
    /// `net.netfilter.nf_conntrack_max`.
    pub max: u64,
    /// `net.netfilter.nf_conntrack_count`; 0 means that no rule uses tracking.
    pub count: u64,
}

/// Threads and processes, which the kernel counts alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Threads {
    /// `kernel.threads-max`.
    pub threads_max: Option<u64>,
    /// `kernel.pid_max`; each thread takes a number.
    pub pid_max: Option<u64>,
    /// Threads on the machine now (`/proc/loadavg`).
    pub used: Option<u64>,
    /// The control group's `pids.max`.
    pub cgroup_max: Option<u64>,
    /// How much of it the control group has left.
    pub cgroup_left: Option<u64>,
    /// `RLIMIT_NPROC`: threads of this user; `None` without a limit, and for root.
    pub nproc: Option<u64>,
    /// Threads this user has now, where there is such a limit.
    pub user_threads: Option<u64>,
}

/// Virtual memory settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// `vm.overcommit_memory`: 0 heuristic, 1 always, 2 never.
    pub overcommit: Option<u64>,
    /// `vm.max_map_count`: mappings per process.
    pub max_map_count: Option<u64>,
    /// `RLIMIT_AS` of this process in bytes; `None` without a limit.
    pub address_space_bytes: Option<u64>,
}

/// Values from system calls, separate from the files so that a test can supply them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The descriptor limits.
    pub nofile: Nofile,
    /// The cores it may run on.
    pub cores: usize,
    /// Threads its user may have, if that is limited.
    pub nproc: Option<u64>,
    /// Its user.
    pub uid: u32,
    /// Bytes of address space it may have, if that is limited.
    pub address_space: Option<u64>,
}

impl Process {
    /// The values of this process, now.
    pub fn current() -> Self {
        Self {
            nofile: nofile(),
            cores: available_parallelism().map_or(1, usize::from),
            nproc: nproc(),
            uid: rustix::process::getuid().as_raw(),
            address_space: address_space(),
        }
    }
}

impl Machine {
    /// This machine, as it is now.
    pub fn read() -> Self {
        Self::read_from(Path::new("/"), Process::current())
    }

    /// The machine whose `/proc` and `/sys` are below `root`.
    pub fn read_from(root: &Path, process: Process) -> Self {
        let root = &Root(root);
        let kernel = root.text("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned());
        Self {
            kernel,
            cpu_model: cpu_model(root),
            cores: cgroup::cores(root).unwrap_or(usize::MAX).min(process.cores).max(1),
            container: container(root),
            memory: memory(root),
            files: Files {
                nofile: process.nofile,
                nr_open: root.number("/proc/sys/fs/nr_open"),
                file_max: root.number("/proc/sys/fs/file-max"),
                used: root.number("/proc/sys/fs/file-nr"),
                epoll_watches: root.number("/proc/sys/fs/epoll/max_user_watches"),
            },
            ports: ports(root),
            tcp: tcp(root),
            conntrack: conntrack(root),
            threads: threads(root, process),
            vm: Vm {
                overcommit: root.number("/proc/sys/vm/overcommit_memory"),
                max_map_count: root.number("/proc/sys/vm/max_map_count"),
                address_space_bytes: process.address_space,
            },
        }
    }
}

fn cpu_model(root: &Root<'_>) -> Option<String> {
    let text = root.text("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn container(root: &Root<'_>) -> bool {
    const RUNTIMES: [&str; 5] = ["docker", "kubepods", "containerd", "libpod", "lxc"];
    let first = root.text("/proc/1/cgroup").unwrap_or_default();
    root.exists("/.dockerenv")
        || root.exists("/run/.containerenv")
        || RUNTIMES.iter().any(|runtime| first.contains(runtime))
}

fn memory(root: &Root<'_>) -> Memory {
    let text = root.text("/proc/meminfo").unwrap_or_default();
    let total = field_kb(&text, "MemTotal");
    let available = field_kb(&text, "MemAvailable");
    let group = cgroup::memory(root);
    let tighter = |machine: Option<u64>, group: Option<u64>| machine.into_iter().chain(group).min();
    let available_bytes = tighter(available, group.map(|quota| quota.left));
    Memory {
        total_bytes: tighter(total, group.map(|quota| quota.max)),
        available_bytes,
        cgroup_max_bytes: group.map(|quota| quota.max),
        cgroup_limits: available_bytes != available,
    }
}

fn ports(root: &Root<'_>) -> Ports {
    let range = root.numbers("/proc/sys/net/ipv4/ip_local_port_range").map(|[a, b]| (a, b));
    let reserved = root.text("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    Ports { range, reserved: range.map_or(0, |range| reserved_in(&reserved, range)) }
}

/// How many ports of `range` a list such as `8080,9148-9150` names (the kernel keeps it disjoint).
fn reserved_in(list: &str, (first, last): (u16, u16)) -> u64 {
    let spans = list.trim().split(',').filter_map(|span| {
        let (from, to) = span.split_once('-').unwrap_or((span, span));
        Some((from.parse::<u16>().ok()?, to.parse::<u16>().ok()?))
    });
    spans
        .map(|(from, to)| (u64::from(to.min(last)) + 1).saturating_sub(u64::from(from.max(first))))
        .sum()
}

fn tcp(root: &Root<'_>) -> Tcp {
    Tcp {
        somaxconn: root.number("/proc/sys/net/core/somaxconn"),
        max_syn_backlog: root.number("/proc/sys/net/ipv4/tcp_max_syn_backlog"),
        mem_pages: root.numbers("/proc/sys/net/ipv4/tcp_mem"),
        rmem_bytes: root.numbers("/proc/sys/net/ipv4/tcp_rmem"),
        wmem_bytes: root.numbers("/proc/sys/net/ipv4/tcp_wmem"),
        tw_reuse: root.number("/proc/sys/net/ipv4/tcp_tw_reuse"),
        losses: AcceptLosses::read_from(root),
    }
}

fn conntrack(root: &Root<'_>) -> Option<Conntrack> {
    let max = root.number("/proc/sys/net/netfilter/nf_conntrack_max")?;
    let count = root.number("/proc/sys/net/netfilter/nf_conntrack_count")?;
    Some(Conntrack { max, count })
}

fn threads(root: &Root<'_>, process: Process) -> Threads {
    let group = cgroup::pids(root);
    // The fourth word of loadavg is running/all.
    let used = root
        .text("/proc/loadavg")
        .and_then(|text| text.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok());
    Threads {
        threads_max: root.number("/proc/sys/kernel/threads-max"),
        pid_max: root.number("/proc/sys/kernel/pid_max"),
        used,
        cgroup_max: group.map(|quota| quota.max),
        cgroup_left: group.map(|quota| quota.left),
        nproc: process.nproc,
        user_threads: process.nproc.map(|_| threads_of(root, process.uid)),
    }
}

/// Threads of all processes of a user, which is what `RLIMIT_NPROC` counts.
fn threads_of(root: &Root<'_>, uid: u32) -> u64 {
    let uid = u64::from(uid);
    let statuses = root.names("/proc").into_iter().filter_map(|name| {
        name.parse::<u32>().ok()?;
        root.text(&format!("/proc/{name}/status"))
    });
    statuses
        .filter(|status| field(status, "Uid") == Some(uid))
        .filter_map(|status| field(&status, "Threads"))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fake::FakeRoot;

    const PROCESS: Process = Process {
        nofile: Nofile { soft: 1_024, hard: 20_000 },
        cores: 8,
        nproc: Some(500),
        uid: 65_534,
        address_space: Some(1 << 30),
    };

    #[test]
    fn all_limits_are_read() {
        let root = FakeRoot::new(&[
            ("/proc/sys/kernel/osrelease", "6.18.0\n"),
            ("/proc/cpuinfo", "processor\t: 0\nmodel\t\t: 85\nmodel name\t: A Processor @ 2\n"),
            ("/proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   600 kB\n"),
            ("/proc/sys/fs/nr_open", "1048576\n"),
            ("/proc/sys/fs/file-max", "2000000\n"),
            ("/proc/sys/fs/file-nr", "448\t0\t2000000\n"),
            ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("/proc/sys/net/ipv4/ip_local_reserved_ports", "8080,32760-32769,60000,60999-65000\n"),
            ("/proc/sys/net/core/somaxconn", "4096\n"),
            ("/proc/sys/net/ipv4/tcp_max_syn_backlog", "2048\n"),
            ("/proc/sys/net/ipv4/tcp_mem", "1\t2\t3\n"),
            ("/proc/sys/net/ipv4/tcp_rmem", "4\t5\t6\n"),
            ("/proc/sys/net/ipv4/tcp_wmem", "7\t8\t9\n"),
            ("/proc/sys/net/ipv4/tcp_tw_reuse", "2\n"),
            ("/proc/sys/net/netfilter/nf_conntrack_max", "262144\n"),
            ("/proc/sys/net/netfilter/nf_conntrack_count", "12\n"),
            ("/proc/sys/kernel/threads-max", "192731\n"),
            ("/proc/sys/kernel/pid_max", "32768\n"),
            ("/proc/loadavg", "0.20 0.32 0.21 1/87 8166\n"),
            ("/proc/sys/vm/overcommit_memory", "0\n"),
            ("/proc/sys/vm/max_map_count", "65530\n"),
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/cpu.max", "350000 100000\n"),
            ("/sys/fs/cgroup/memory.max", "819200\n"),
            ("/sys/fs/cgroup/memory.current", "409600\n"),
            ("/sys/fs/cgroup/pids.max", "100\n"),
            ("/sys/fs/cgroup/pids.current", "40\n"),
            ("/.dockerenv", ""),
            ("/proc/sys/fs/epoll/max_user_watches", "5000000\n"),
            ("/proc/7/status", "Name:\ta\nUid:\t65534\t65534\nThreads:\t5\n"),
            ("/proc/8/status", "Name:\tb\nUid:\t65534\t65534\nThreads:\t2\n"),
            ("/proc/9/status", "Name:\tc\nUid:\t0\t0\nThreads:\t50\n"),
        ]);
        let read = Machine::read_from(root.path(), PROCESS);
        let expected = Machine {
            kernel: Some("6.18.0".into()),
            cpu_model: Some("A Processor @ 2".into()),
            cores: 3,
            container: true,
            memory: Memory {
                total_bytes: Some(819_200),
                available_bytes: Some(409_600),
                cgroup_max_bytes: Some(819_200),
                cgroup_limits: true,
            },
            files: Files {
                nofile: PROCESS.nofile,
                nr_open: Some(1_048_576),
                file_max: Some(2_000_000),
                used: Some(448),
                epoll_watches: Some(5_000_000),
            },
            ports: Ports { range: Some((32_768, 60_999)), reserved: 4 },
            tcp: Tcp {
                somaxconn: Some(4_096),
                max_syn_backlog: Some(2_048),
                mem_pages: Some([1, 2, 3]),
                rmem_bytes: Some([4, 5, 6]),
                wmem_bytes: Some([7, 8, 9]),
                tw_reuse: Some(2),
                losses: None,
            },
            conntrack: Some(Conntrack { max: 262_144, count: 12 }),
            threads: Threads {
                threads_max: Some(192_731),
                pid_max: Some(32_768),
                used: Some(87),
                cgroup_max: Some(100),
                cgroup_left: Some(60),
                nproc: Some(500),
                user_threads: Some(7),
            },
            vm: Vm {
                overcommit: Some(0),
                max_map_count: Some(65_530),
                address_space_bytes: Some(1 << 30),
            },
        };
        assert_eq!(read, expected);
        assert_eq!(read.ports.usable(), Some(28_228));
        let json = serde_json::to_value(&read).unwrap();
        assert_eq!(json["files"]["nofile"]["hard"], 20_000);
        assert_eq!(json["ports"]["range"][1], 60_999);
    }

    #[test]
    fn missing_files_are_none() {
        let root = FakeRoot::new(&[("/proc/sys/fs/file-max", "not a number")]);
        let read = Machine::read_from(root.path(), PROCESS);
        assert_eq!((read.kernel, read.cpu_model, read.cores), (None, None, 8));
        assert_eq!(read.memory, Memory::default());
        assert_eq!(read.files.file_max, None);
        assert_eq!(read.ports.usable(), None);
        assert_eq!((read.tcp, read.conntrack), (Tcp::default(), None));
        let threads = Threads { nproc: Some(500), user_threads: Some(0), ..Threads::default() };
        assert_eq!(
            (read.threads, read.vm),
            (threads, Vm { address_space_bytes: Some(1 << 30), ..Vm::default() })
        );
        assert!(!read.container);
    }

    #[test]
    fn unlimited_control_group_leaves_the_machines_memory() {
        let root = FakeRoot::new(&[
            ("/proc/meminfo", "MemTotal: 10 kB\nMemAvailable: 8 kB\n"),
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/memory.max", "1000000\n"),
            ("/sys/fs/cgroup/memory.current", "1\n"),
            ("/proc/1/cgroup", "0::/kubepods/pod1\n"),
        ]);
        let read = Machine::read_from(root.path(), PROCESS);
        assert_eq!(read.memory.total_bytes, Some(10_240));
        assert_eq!(read.memory.available_bytes, Some(8_192));
        assert!(!read.memory.cgroup_limits);
        assert!(read.container);
    }

    #[test]
    fn lost_connects_are_those_of_the_network_namespace() {
        let netstat = "TcpExt: SyncookiesSent SyncookiesRecv SyncookiesFailed ListenOverflows ListenDrops\n\
            TcpExt: 5 3 7 11 13\nIpExt: ListenOverflows\nIpExt: 17\n";
        let root = FakeRoot::new(&[("/proc/self/net/netstat", netstat)]);
        let losses = AcceptLosses {
            listen_overflows: 11,
            listen_drops: 13,
            syncookies_sent: 5,
            syncookies_received: 3,
            syncookies_failed: 7,
        };
        assert_eq!(AcceptLosses::read_from(&Root(root.path())), Some(losses));
        root.write("/proc/self/net/netstat", "TcpExt: ListenDrops\nTcpExt: 1\n");
        assert_eq!(AcceptLosses::read_from(&Root(root.path())), None);
        assert!(AcceptLosses::read().is_some(), "of this machine");
    }

    #[test]
    fn table_is_limited_by_nr_open() {
        let nofile = Nofile { soft: 10, hard: u64::MAX };
        let mut files = Files {
            nofile,
            nr_open: Some(1_048_576),
            file_max: None,
            used: None,
            epoll_watches: None,
        };
        assert_eq!(files.table(), 1_048_576);
        files.nofile.hard = 4_096;
        assert_eq!(files.table(), 4_096);
    }

    #[test]
    fn this_machine_has_memory_cores_and_ports() {
        let read = Machine::read();
        assert!(read.cores >= 1);
        assert!(read.memory.available_bytes.unwrap() <= read.memory.total_bytes.unwrap());
        assert!(read.files.nofile.soft <= read.files.nofile.hard);
        assert!(read.kernel.is_some());
    }
}
