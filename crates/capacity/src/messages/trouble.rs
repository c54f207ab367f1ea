//! [`Trouble`]: the problems that messages are about, with the cause and the remedies of each. Several
//! messages may have the same problem. Sources: proc(5), getrlimit(2), limits.conf(5), the kernel's `ip-sysctl`, and
//! the manuals of the programs named.

use crate::machine::Machine;
use crate::text::{Bytes, Count};

/// A problem that a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trouble {
    /// Too few descriptors in a process.
    Descriptors,
    /// Too few open files on the whole machine.
    SystemFiles,
    /// nginx's own limit of connections.
    WorkerConnections,
    /// Too few ephemeral ports.
    Ports,
    /// Sockets in `TIME_WAIT`: this side closed first.
    TimeWait,
    /// Sockets in `CLOSE_WAIT`: the program has not closed them.
    CloseWait,
    /// Sockets that are opening or closing and get no answer from the peer.
    HalfWay,
    /// A full accept queue.
    AcceptQueue,
    /// A full connection tracking table.
    Conntrack,
    /// TCP memory is exhausted.
    TcpMemory,
    /// Too little memory.
    Memory,
    /// Too few threads or processes.
    Threads,
    /// Too few epoll or inotify watches.
    Watches,
    /// Name lookups that fail under load.
    Names,
    /// A full neighbour table (ARP, NDP).
    Neighbours,
    /// nginx's hash tables are too small.
    NginxHash,
    /// The peer ends or refuses connections.
    Peer,
}

impl Trouble {
    /// All problems, in the order of the page.
    pub const ALL: [Trouble; 17] = [
        Trouble::Descriptors,
        Trouble::SystemFiles,
        Trouble::WorkerConnections,
        Trouble::Ports,
        Trouble::TimeWait,
        Trouble::CloseWait,
        Trouble::HalfWay,
        Trouble::AcceptQueue,
        Trouble::Conntrack,
        Trouble::TcpMemory,
        Trouble::Memory,
        Trouble::Threads,
        Trouble::Watches,
        Trouble::Names,
        Trouble::Neighbours,
        Trouble::NginxHash,
        Trouble::Peer,
    ];

    /// Its name, as a heading.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Descriptors => "Descriptors of a process",
            Self::SystemFiles => "Open files of the whole machine",
            Self::WorkerConnections => "nginx's worker_connections",
            Self::Ports => "Ephemeral ports",
            Self::TimeWait => "Sockets in TIME_WAIT",
            Self::CloseWait => "Sockets in CLOSE_WAIT",
            Self::HalfWay => "Sockets in SYN_SENT, SYN_RECV, FIN_WAIT or LAST_ACK",
            Self::AcceptQueue => "Accept queue and handshakes",
            Self::Conntrack => "Connection tracking",
            Self::TcpMemory => "TCP memory",
            Self::Memory => "Memory",
            Self::Threads => "Threads and processes",
            Self::Watches => "epoll and inotify watches",
            Self::Names => "Name lookups under load",
            Self::Neighbours => "The neighbour table (ARP, NDP)",
            Self::NginxHash => "nginx's hash tables",
            Self::Peer => "The peer, not this machine",
        }
    }

    /// The cause, in a few sentences.
    pub const fn cause(self) -> &'static str {
        match self {
            Self::Descriptors => {
                "Each socket and file takes a descriptor, and the process has as many as its limit \
                 (RLIMIT_NOFILE, `ulimit -n`) allows: 256 by default on macOS, 1,024 on most \
                 Linux systems. A server at the limit cannot accept, open a file, or resolve a \
                 name; a proxy needs two descriptors per connection. A service manager or \
                 container sets its own limit and does not read limits.conf. A hard limit above \
                 `fs.nr_open` cannot be set: named in limits.conf it keeps `sshd`, `su` and `sudo` \
                 from opening a session."
            }
            Self::SystemFiles => {
                "All processes together may have `fs.file-max` open files (kern.maxfiles on macOS). It \
                 must be above the limit of a single process. Otherwise one busy service uses them \
                 all and nobody can log in, not even after a reboot."
            }
            Self::WorkerConnections => {
                "nginx limits the connections of each worker, to clients and upstreams \
                 together: 512 by default, 768 in the configuration that Debian and Ubuntu ship. A \
                 proxied WebSocket uses two for its whole life. If `worker_connections` exceeds \
                 the worker's descriptors, nginx warns at start and fails with EMFILE later."
            }
            Self::Ports => {
                "A connection is identified by both addresses and both ports. So one source address can \
                 have as many connections to one address and port as there are ephemeral ports: \
                 28,232 by default on Linux (32768 to 60999), 16,384 on macOS (49152 to 65535). On \
                 Linux, connects are slow once half of them are in use. Ports of connections that \
                 this side closed first stay in TIME_WAIT for 60 s (30 s on macOS)."
            }
            Self::TimeWait => {
                "The side that closes a connection first keeps its end for 60 s (twice the maximum \
                 segment lifetime; 30 s on macOS), so that a late segment of the old connection is \
                 not mistaken for one of a new connection. This is normal and takes little memory, \
                 but each socket keeps a port. A client or proxy that opens a connection for each \
                 request runs out of ports at about 470 connections per second to one address \
                 (28,232 ports ÷ 60 s). Where the server closes first, it keeps these sockets and \
                 uses up no ephemeral ports. tcp_tw_reuse lets a client take such a port again after \
                 a second; it does nothing for a server."
            }
            Self::CloseWait => {
                "The peer has closed the connection and the program on this machine has not called \
                 close. The kernel waits for it without a time limit. This is always a bug of that \
                 program (an error path that forgets the socket, a pool that returns dead \
                 connections, a thread that hangs), never of a kernel setting. In the end the \
                 program has too many open files."
            }
            Self::HalfWay => {
                "SYN_SENT: a connect gets no answer. A firewall drops it, the machine does not exist, or \
                 its accept queue is full. SYN_RECV: a client has not completed its handshake. It has \
                 disappeared, or this is a SYN flood. FIN_WAIT_1 and LAST_ACK: this side has closed \
                 and gets no acknowledgement, often with data unsent. The peer has disappeared. \
                 FIN_WAIT_2: the peer has acknowledged the close and does not close its own side, \
                 where it is in CLOSE_WAIT. The kernel ends such sockets after tcp_fin_timeout once \
                 no program holds them."
            }
            Self::AcceptQueue => {
                "Connections wait in the listener's queue until the program accepts them. Its length \
                 is the backlog given to `listen`, at most `net.core.somaxconn` (kern.ipc.somaxconn \
                 on macOS, 128). When it is full Linux drops the handshake and the client retries \
                 after 1, 3 and 7 s; macOS refuses the connection. In a storm Linux answers with SYN \
                 cookies instead: a client whose connection is then dropped believes that it is \
                 connected, and is reset when its request comes too late (SyncookiesFailed). Cookies that \
                 are sent and answered (SyncookiesSent, SyncookiesRecv) are no loss. `standfast \
                 serve` and `proxy` open up to 32 listeners per address, whose queues add up."
            }
            Self::Conntrack => {
                "A firewall or NAT keeps a table entry per connection. When the table is full, new \
                 connections are dropped and existing ones continue. Docker's networking and \
                 kube-proxy enable connection tracking."
            }
            Self::TcpMemory => {
                "`net.ipv4.tcp_mem` limits the TCP buffers of the whole machine, in pages of 4 KiB: \
                 low, pressure, high. A socket with one unread message takes a page, so a \
                 broadcast to a million takes a million pages (4 GB). Beyond the second number TCP \
                 slows down, beyond the third it drops segments. The kernel also logs `Out of \
                 socket memory` when more than `tcp_max_orphans` sockets belong to no process."
            }
            Self::Memory => {
                "A TCP socket takes about 4.4 KB of kernel memory, which is charged to the container \
                 that created it, plus what the program keeps for it. With `vm.overcommit_memory` \
                 set to 2, or with limited address space (`ulimit -v`), allocations fail while \
                 memory is free."
            }
            Self::Threads => {
                "Threads and processes are limited per user (`ulimit -u`), per service or container \
                 (pids.max: TasksMax, --pids-limit), and by the kernel (kernel.threads-max, \
                 kernel.pid_max). Too little address space or a low vm.max_map_count has the same \
                 effect."
            }
            Self::Watches => {
                "epoll may watch `fs.epoll.max_user_watches` descriptors per user, inotify \
                 `fs.inotify.max_user_watches` files in `max_user_instances` instances. \"No space \
                 left on device\" from these calls means this limit, not a full disk."
            }
            Self::Names => {
                "A lookup needs a descriptor, a port and a resolver that answers in time. Under \
                 load one of them is missing (look for EMFILE and EADDRNOTAVAIL in the same log), or \
                 the resolver drops requests: Docker's at 127.0.0.11, or a cluster's DNS behind \
                 connection tracking. Node looks up names in 4 threads, again for each \
                 connection."
            }
            Self::Neighbours => {
                "The kernel keeps the hardware address of each neighbour on a link, at most \
                 `net.ipv4.neigh.default.gc_thresh3` (1,024). With more clients, containers or \
                 source addresses on one link, new connections fail and existing ones continue."
            }
            Self::NginxHash => {
                "nginx keeps names (servers, map, types, variables) in hash tables of a fixed size and \
                 does not start when they do not fit. This is about the number and length of names, \
                 not about connections."
            }
            Self::Peer => {
                "The peer refused or closed the connection: nothing listens on that port, the peer \
                 has reached one of its own limits (check that machine), or a proxy in between \
                 closed an idle connection. nginx closes an idle WebSocket after 60 s \
                 (proxy_read_timeout), most cloud load balancers after 60 to 350 s. Send pings more \
                 often than that."
            }
        }
    }

    /// The remedies: where to apply each, and the line.
    pub const fn remedies(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Descriptors => &[
                ("see it", "cat /proc/PID/limits | grep 'open files'"),
                ("this shell", "ulimit -n 1048576    # up to `ulimit -Hn`; beyond it as root"),
                ("/etc/security/limits.conf", "* - nofile 1048576    # then log in again"),
                ("systemd", "LimitNOFILE=1048576    # in the unit; then daemon-reload, restart"),
                ("docker", "docker run --ulimit nofile=1048576:1048576 …"),
                ("Kubernetes", "LimitNOFILE=1048576 in containerd.service on the node"),
                ("nginx", "worker_rlimit_nofile 1048576;"),
                ("HAProxy", "global: ulimit-n 1048576 (or a maxconn it can derive it from)"),
                ("macOS", "sudo launchctl limit maxfiles 65536 200000; ulimit -n 65536"),
            ],
            Self::SystemFiles => &[
                ("see it", "cat /proc/sys/fs/file-nr    # open, free, maximum"),
                ("as root", "sysctl -w fs.file-max=2500000"),
                ("to keep it", "fs.file-max = 2500000    # /etc/sysctl.d/90-standfast.conf"),
                ("macOS", "sudo sysctl -w kern.maxfiles=400000 kern.maxfilesperproc=200000"),
            ],
            Self::WorkerConnections => &[
                ("nginx, events", "worker_connections 65536;    # two per proxied connection"),
                ("nginx, main", "worker_rlimit_nofile 131072;    # above worker_connections"),
                ("nginx, main", "worker_processes auto;    # the limit is per worker"),
                ("apply", "nginx -t && nginx -s reload"),
            ],
            Self::Ports => &[
                ("see it", "ss -s; cat /proc/sys/net/ipv4/ip_local_port_range"),
                ("as root", "sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\""),
                ("as root", "sysctl -w net.ipv4.tcp_tw_reuse=1 net.ipv4.tcp_max_tw_buckets=262144"),
                ("docker", "docker run --sysctl net.ipv4.ip_local_port_range=\"1024 65535\" …"),
                (
                    "standfast load",
                    "--source IP,IP,…, or several URLs; on loopback this is automatic",
                ),
                ("nginx", "proxy_bind with several addresses, or several servers in the upstream"),
                ("any proxy", "keep connections to upstreams open instead of one per request"),
                ("macOS", "sudo sysctl -w net.inet.ip.portrange.first=16384"),
            ],
            Self::TimeWait => &[
                (
                    "see it",
                    "ss -s; ss -tan state time-wait | awk '{print $5}' | sort | uniq -c | sort -n",
                ),
                ("first", "keep connections open: HTTP keep-alive, connection pools"),
                ("as root, for clients", "sysctl -w net.ipv4.tcp_tw_reuse=1"),
                ("as root, for clients", "sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\""),
                (
                    "nginx, to upstreams",
                    "upstream: keepalive 64; proxy_http_version 1.1; proxy_set_header Connection \"\";",
                ),
                (
                    "Go",
                    "http.Transport{MaxIdleConnsPerHost: N}; read each body to its end and close it",
                ),
                (
                    "standfast stress",
                    "-k keeps connections, as does load without --new-connections",
                ),
                (
                    "do not use",
                    "tcp_tw_recycle: it broke clients behind NAT; removed in Linux 4.12",
                ),
            ],
            Self::CloseWait => &[
                ("see it with its process", "ss -tanp state close-wait"),
                ("the program", "close the socket when a read returns 0; close idle connections"),
                (
                    "until it is fixed",
                    "restart the program; a higher ulimit -n only delays the failure",
                ),
            ],
            Self::HalfWay => &[
                (
                    "see it",
                    "ss -tan state syn-sent; ss -tan state syn-recv; ss -tano state fin-wait-1",
                ),
                (
                    "does the peer answer",
                    "ping HOST; curl -v http://HOST:PORT/; tcpdump -ni any port N",
                ),
                (
                    "SYN_RECV, as root",
                    "sysctl -w net.ipv4.tcp_syncookies=1 net.ipv4.tcp_max_syn_backlog=4096",
                ),
                ("FIN_WAIT_2, as root", "sysctl -w net.ipv4.tcp_fin_timeout=30"),
                ("FIN_WAIT_1, LAST_ACK, as root", "sysctl -w net.ipv4.tcp_orphan_retries=3"),
            ],
            Self::AcceptQueue => &[
                ("see it", "nstat -az 'TcpExtListen*' 'TcpExtSyncookies*'; ss -ltn"),
                ("as root", "sysctl -w net.core.somaxconn=4096 net.ipv4.tcp_max_syn_backlog=4096"),
                ("standfast serve", "--backlog 4096"),
                ("nginx", "listen 80 backlog=4096;"),
                ("Node", "server.listen({ port, backlog: 4096 })"),
                ("Ruby (Puma)", "bind 'tcp://0.0.0.0:3000?backlog=4096'"),
                ("macOS", "sudo sysctl -w kern.ipc.somaxconn=4096"),
            ],
            Self::Conntrack => &[
                (
                    "see it",
                    "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max",
                ),
                ("as root", "sysctl -w net.netfilter.nf_conntrack_max=2000000"),
                ("disable tracking", "nft: ct state untracked by a `notrack` rule for the port"),
                ("docker", "docker run --network host …"),
            ],
            Self::TcpMemory => &[
                ("see it", "cat /proc/net/sockstat    # mem is in pages; compare with tcp_mem"),
                ("as root", "sysctl -w net.ipv4.tcp_mem=\"786432 2097152 3145728\""),
                (
                    "as root",
                    "sysctl -w net.ipv4.tcp_rmem=\"4096 4096 16777216\" net.ipv4.tcp_wmem=\"4096 4096 16777216\"",
                ),
                ("as root", "sysctl -w net.ipv4.tcp_max_orphans=262144"),
            ],
            Self::Memory => &[
                ("see it", "free -m; dmesg | grep -i oom; cat /sys/fs/cgroup/memory.max"),
                ("memory needed", "standfast doctor --connections N"),
                ("docker", "docker run --memory 16g …"),
                ("systemd", "MemoryMax=16G"),
                ("as root", "sysctl -w vm.overcommit_memory=0"),
            ],
            Self::Threads => &[
                ("see it", "cat /proc/PID/limits | grep processes; cat /sys/fs/cgroup/pids.max"),
                ("this shell", "ulimit -u 65536"),
                ("/etc/security/limits.conf", "* - nproc 65536"),
                ("systemd", "TasksMax=65536"),
                ("docker", "docker run --pids-limit 65536 …"),
                (
                    "as root",
                    "sysctl -w kernel.threads-max=200000 kernel.pid_max=400000 vm.max_map_count=262144",
                ),
            ],
            Self::Watches => &[
                ("as root", "sysctl -w fs.epoll.max_user_watches=4000000"),
                (
                    "as root",
                    "sysctl -w fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=1024",
                ),
            ],
            Self::Names => &[
                ("see it", "cat /etc/resolv.conf; dig +tries=1 NAME; ls /proc/PID/fd | wc -l"),
                ("standfast load", "give the address instead of the name, or several URLs"),
                ("Node", "UV_THREADPOOL_SIZE=64; an http.Agent with keepAlive"),
                (
                    "Kubernetes",
                    "dnsConfig: {options: [{name: ndots, value: \"1\"}]}; NodeLocal DNSCache",
                ),
                ("any system", "a caching resolver on this machine: systemd-resolved, unbound"),
            ],
            Self::Neighbours => &[
                ("see it", "ip -s neigh show nud all | wc -l; dmesg | grep neigh"),
                (
                    "as root",
                    "sysctl -w net.ipv4.neigh.default.gc_thresh1=8192 net.ipv4.neigh.default.gc_thresh2=32768 net.ipv4.neigh.default.gc_thresh3=65536",
                ),
            ],
            Self::NginxHash => &[
                (
                    "nginx, http",
                    "server_names_hash_bucket_size 128; server_names_hash_max_size 4096;",
                ),
                ("apply", "nginx -t && nginx -s reload"),
            ],
            Self::Peer => &[
                ("does the peer answer", "ss -ltn; curl -v http://HOST:PORT/health"),
                ("nginx", "proxy_read_timeout 3600s; proxy_send_timeout 3600s;"),
                (
                    "nginx",
                    "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;",
                ),
                ("standfast serve", "--idle-timeout 60s    # pings go out after half of it"),
            ],
        }
    }

    /// The current value of the limit on `machine`; `None` where the problem is not about a limit, or the
    /// value is unknown.
    pub fn on_machine(self, machine: &Machine) -> Option<String> {
        let (files, tcp) = (&machine.files, &machine.tcp);
        Some(match self {
            Self::Descriptors => format!(
                "ulimit -n is {} (soft), {} (hard)",
                Count(files.nofile.soft),
                Count(files.nofile.hard)
            ),
            Self::SystemFiles => {
                let used = Count(files.used?);
                format!("{used} files are open, fs.file-max is {}", Count(files.file_max?))
            }
            Self::Ports | Self::TimeWait => {
                let (first, last) = machine.ports.range?;
                let usable = Count(machine.ports.usable()?);
                format!("ports {first} to {last}, {usable} of them usable")
            }
            Self::AcceptQueue => {
                let dropped = tcp.losses.map_or(String::new(), |losses| {
                    format!(
                        "; {} connects dropped, {} of them because a queue was full",
                        Count(losses.listen_drops),
                        Count(losses.listen_overflows)
                    )
                });
                format!(
                    "net.core.somaxconn is {}, net.ipv4.tcp_max_syn_backlog {}{dropped}",
                    Count(tcp.somaxconn?),
                    Count(tcp.max_syn_backlog?)
                )
            }
            Self::Conntrack => {
                let Some(tracked) = machine.conntrack else {
                    return Some("this kernel tracks no connections".to_owned());
                };
                format!("{} of {} entries are in use", Count(tracked.count), Count(tracked.max))
            }
            Self::TcpMemory => {
                let [low, pressure, high] = tcp.mem_pages?.map(Count);
                format!("net.ipv4.tcp_mem is {low} · {pressure} · {high} pages")
            }
            Self::Memory => format!("{} are available", Bytes(machine.memory.available_bytes?)),
            Self::Threads => {
                let used = Count(machine.threads.used?);
                format!(
                    "{used} threads run, kernel.threads-max is {}",
                    Count(machine.threads.threads_max?)
                )
            }
            Self::Watches => {
                format!("fs.epoll.max_user_watches is {}", Count(files.epoll_watches?))
            }
            Self::WorkerConnections
            | Self::CloseWait
            | Self::HalfWay
            | Self::Names
            | Self::Neighbours
            | Self::NginxHash
            | Self::Peer => return None,
        })
    }
}
