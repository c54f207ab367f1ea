//! What programs say when they meet one of these limits: from the message to the cause and the
//! cure. `standfast doctor explain` looks messages up here, and `docs/operate/troubleshooting.md`
//! is made from it.
//!
//! Messages are as the programs print them, `N` standing for numbers and `X` for names; a message
//! is recognised by the phrases of it that do not change. Sources: errno(3), the programs' own
//! documentation and source of the versions of 2026.

use std::fmt::Write;

/// What goes wrong, with all that is to be said of it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trouble {
    /// A process's descriptors.
    Descriptors,
    /// Open files of the whole machine.
    SystemFiles,
    /// nginx's own limit.
    WorkerConnections,
    /// Ephemeral ports.
    Ports,
    /// Connections that wait to be accepted.
    AcceptQueue,
    /// Connection tracking.
    Conntrack,
    /// TCP's memory.
    TcpMemory,
    /// Memory.
    Memory,
    /// Threads and processes.
    Threads,
    /// Watches of epoll or inotify.
    Watches,
    /// The far side ends or refuses connections.
    Peer,
}

/// A message that is known.
#[derive(Debug)]
pub struct Message {
    /// Who says it.
    pub program: &'static str,
    /// As it is printed.
    pub text: &'static str,
    /// All of these are in it, in lower case.
    phrases: &'static [&'static str],
    /// What it means.
    pub trouble: Trouble,
}

impl Trouble {
    /// All, in the order of the page.
    pub const ALL: [Trouble; 11] = [
        Trouble::Descriptors,
        Trouble::SystemFiles,
        Trouble::WorkerConnections,
        Trouble::Ports,
        Trouble::AcceptQueue,
        Trouble::Conntrack,
        Trouble::TcpMemory,
        Trouble::Memory,
        Trouble::Threads,
        Trouble::Watches,
        Trouble::Peer,
    ];

    /// Its name, as a heading.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Descriptors => "Descriptors of a process",
            Self::SystemFiles => "Open files of the whole machine",
            Self::WorkerConnections => "nginx's worker_connections",
            Self::Ports => "Ephemeral ports",
            Self::AcceptQueue => "The accept queue and handshakes",
            Self::Conntrack => "Connection tracking",
            Self::TcpMemory => "TCP memory",
            Self::Memory => "Memory",
            Self::Threads => "Threads and processes",
            Self::Watches => "Watches of epoll and inotify",
            Self::Peer => "The far side, not this machine",
        }
    }

    /// Why it happens.
    pub const fn cause(self) -> &'static str {
        match self {
            Self::Descriptors => {
                "Each socket and file takes a descriptor, and the process has as many as its limit \
                 (RLIMIT_NOFILE, `ulimit -n`) allows: 256 by default on macOS, 1,024 on most \
                 Linux systems. A server at the limit cannot accept, open a file, or resolve a \
                 name; a proxy needs two descriptors per connection. A service manager or \
                 container sets its own limit and does not read limits.conf."
            }
            Self::SystemFiles => {
                "All processes together have `fs.file-max` open files (kern.maxfiles on macOS). It \
                 must not be below the limit of one process, or one busy service keeps everybody \
                 from logging in, after a reboot too."
            }
            Self::WorkerConnections => {
                "nginx allows each worker so many connections, to clients and to servers behind it \
                 together: 512 by default, 768 in the configuration that Debian and Ubuntu ship. A \
                 proxied WebSocket takes two for as long as it lives. `worker_connections` beyond \
                 the worker's descriptors is a warning at start and EMFILE later."
            }
            Self::Ports => {
                "A connection is told apart by both addresses and both ports, so from one address \
                 to one address and port there are as many as ephemeral ports: 28,232 by default on \
                 Linux (32768 to 60999), 16,384 on macOS (49152 to 65535), and on Linux the second \
                 half of them comes slowly. Ports of connections that this side closed first rest \
                 for 60 s (TIME_WAIT; 30 s on macOS)."
            }
            Self::AcceptQueue => {
                "Connections wait in the listener's queue until the program accepts them. It has \
                 the length that `listen` asked for, at most `net.core.somaxconn` (kern.ipc.somaxconn \
                 on macOS, 128): when it is full Linux drops the handshake and the client tries \
                 again after 1, 3, 7 s; macOS refuses."
            }
            Self::Conntrack => {
                "A firewall or NAT keeps an entry per connection, of both ends where both are here. \
                 When the table is full new connections are dropped while old ones live on; \
                 docker's networking and kube-proxy switch it on."
            }
            Self::TcpMemory => {
                "TCP's buffers of the whole machine are limited by `net.ipv4.tcp_mem`, in pages of \
                 4 KiB: low, pressure, high. A socket with one unread message takes a page, so a \
                 broadcast to a million takes a million pages (4 GB). Beyond the second number TCP \
                 slows down, beyond the third it drops. `Out of socket memory` is said too when \
                 there are more than `tcp_max_orphans` sockets nobody owns any more."
            }
            Self::Memory => {
                "A TCP socket takes about 4.4 KB of the kernel's memory, which counts for the \
                 container that made it, and whatever the program keeps for it. With \
                 `vm.overcommit_memory` at 2, or address space limited (`ulimit -v`), allocation \
                 fails while memory is free."
            }
            Self::Threads => {
                "Threads and processes are limited per user (`ulimit -u`), per service or container \
                 (pids.max: TasksMax, --pids-limit), and by the kernel (kernel.threads-max, \
                 kernel.pid_max). Little address space or a short vm.max_map_count has the same \
                 effect."
            }
            Self::Watches => {
                "epoll may watch `fs.epoll.max_user_watches` descriptors for one user, inotify \
                 `fs.inotify.max_user_watches` files with `max_user_instances` instances. inotify \
                 says \"no space left on device\" and means this, not a disk."
            }
            Self::Peer => {
                "The far side is not there, is full, or closed the connection: nothing listens on \
                 that port, its own limit is reached (look there), or a proxy between ended an idle \
                 connection. nginx closes a silent WebSocket after 60 s (proxy_read_timeout), most \
                 cloud load balancers after 60 to 350 s: send pings more often than that."
            }
        }
    }

    /// What helps: where, and the line.
    pub const fn cures(self) -> &'static [(&'static str, &'static str)] {
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
                ("see it", "cat /proc/sys/fs/file-nr    # open, free, most"),
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
                ("as root", "sysctl -w net.ipv4.tcp_tw_reuse=1"),
                (
                    "standfast load",
                    "--source IP,IP,…, or several URLs; on loopback it does so itself",
                ),
                ("nginx", "proxy_bind with several addresses, or several servers in the upstream"),
                ("any proxy", "keep connections to servers open instead of one per request"),
                ("macOS", "sudo sysctl -w net.inet.ip.portrange.first=16384"),
            ],
            Self::AcceptQueue => &[
                ("see it", "nstat -az TcpExtListenOverflows TcpExtListenDrops; ss -ltn"),
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
                ("not track at all", "nft: ct state untracked by a `notrack` rule for the port"),
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
                ("how much is needed", "standfast doctor --connections N"),
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
            Self::Peer => &[
                ("is anybody there", "ss -ltn; curl -v http://HOST:PORT/health"),
                ("nginx", "proxy_read_timeout 3600s; proxy_send_timeout 3600s;"),
                (
                    "nginx",
                    "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;",
                ),
                ("standfast serve", "--idle-timeout 60s    # pings go out after half of it"),
            ],
        }
    }
}

macro_rules! messages {
    ($($program:literal: $text:literal [$($phrase:literal),+] $trouble:ident;)*) => {
        /// Every message that is known.
        pub const MESSAGES: &[Message] = &[$(Message {
            program: $program,
            text: $text,
            phrases: &[$($phrase),+],
            trouble: Trouble::$trouble,
        },)*];
    };
}

messages! {
    "Linux, macOS": "Too many open files" ["too many open files"] Descriptors;
    "Linux, macOS": "EMFILE" ["emfile"] Descriptors;
    "Linux, macOS": "errno 24" ["errno", "24"] Descriptors;
    "Linux": "Too many open files in system" ["too many open files in system"] SystemFiles;
    "Linux, macOS": "ENFILE" ["enfile"] SystemFiles;
    "Linux": "VFS: file-max limit N reached" ["vfs", "file-max limit"] SystemFiles;
    "Linux": "ulimit: open files: cannot modify limit: Operation not permitted" ["ulimit", "cannot modify limit"] Descriptors;
    "Linux": "su: cannot open session: Too many open files in system" ["cannot open session"] SystemFiles;
    "Linux": "Cannot assign requested address" ["cannot assign requested address"] Ports;
    "macOS": "Can't assign requested address" ["cant assign requested address"] Ports;
    "Linux, macOS": "EADDRNOTAVAIL" ["eaddrnotavail"] Ports;
    "Linux": "Address already in use" ["address already in use"] Ports;
    "Linux, macOS": "EADDRINUSE" ["eaddrinuse"] Ports;
    "Linux": "possible SYN flooding on port N. Sending cookies." ["possible syn flooding"] AcceptQueue;
    "Linux": "nf_conntrack: table full, dropping packet" ["conntrack", "table full"] Conntrack;
    "Linux": "TCP: out of memory -- consider tuning tcp_mem" ["out of memory", "tcp_mem"] TcpMemory;
    "Linux": "Out of socket memory" ["out of socket memory"] TcpMemory;
    "Linux": "TCP: too many orphaned sockets" ["too many orphaned sockets"] TcpMemory;
    "Linux": "No buffer space available" ["no buffer space available"] TcpMemory;
    "Linux, macOS": "ENOBUFS" ["enobufs"] TcpMemory;
    "Linux": "Out of memory: Killed process N (X)" ["out of memory", "killed process"] Memory;
    "Linux": "Memory cgroup out of memory: Killed process N (X)" ["memory cgroup out of memory"] Memory;
    "Linux": "Cannot allocate memory" ["cannot allocate memory"] Memory;
    "Linux": "ENOMEM" ["enomem"] Memory;
    "Kubernetes": "OOMKilled" ["oomkilled"] Memory;
    "Linux": "fork: Resource temporarily unavailable" ["fork", "resource temporarily unavailable"] Threads;
    "Linux": "fork: retry: No child processes" ["fork: retry"] Threads;
    "Linux": "pthread_create failed: Resource temporarily unavailable" ["pthread_create"] Threads;
    "Linux": "cgroup: fork rejected by pids controller in X" ["fork rejected by pids controller"] Threads;
    "Linux": "epoll_ctl: No space left on device" ["epoll_ctl", "no space left on device"] Watches;
    "Linux": "inotify watch limit reached" ["inotify", "limit"] Watches;
    "Linux": "inotify_add_watch: No space left on device" ["inotify_add_watch", "no space left on device"] Watches;
    "Linux": "Connection refused" ["connection refused"] Peer;
    "Linux": "Connection reset by peer" ["connection reset by peer"] Peer;
    "Linux": "Connection timed out" ["connection timed out"] AcceptQueue;
    "macOS": "kern.maxfilesperproc limit exceeded" ["kern.maxfilesperproc"] Descriptors;
    "macOS": "file: table is full" ["file: table is full"] SystemFiles;
    "nginx": "N worker_connections are not enough" ["worker_connections are not enough"] WorkerConnections;
    "nginx": "N worker_connections exceed open file resource limit: N" ["worker_connections exceed open file resource limit"] WorkerConnections;
    "nginx": "accept4() failed (24: Too many open files)" ["accept4() failed", "too many open files"] Descriptors;
    "nginx": "socket() failed (24: Too many open files) while connecting to upstream" ["socket() failed", "too many open files"] Descriptors;
    "nginx": "open() \"X\" failed (24: Too many open files)" ["open()", "failed", "too many open files"] Descriptors;
    "nginx": "setrlimit(RLIMIT_NOFILE, N) failed (1: Operation not permitted)" ["setrlimit(rlimit_nofile"] Descriptors;
    "nginx": "connect() to X failed (99: Cannot assign requested address) while connecting to upstream" ["connect() to", "cannot assign requested address"] Ports;
    "nginx": "connect() failed (110: Connection timed out) while connecting to upstream" ["connect() failed", "connection timed out"] AcceptQueue;
    "nginx": "connect() failed (111: Connection refused) while connecting to upstream" ["connect() failed", "connection refused"] Peer;
    "nginx": "upstream timed out (110: Connection timed out) while proxying upgraded connection" ["upstream timed out", "upgraded connection"] Peer;
    "nginx": "upstream prematurely closed connection while reading response header" ["upstream prematurely closed connection"] Peer;
    "nginx": "no live upstreams while connecting to upstream" ["no live upstreams"] Peer;
    "HAProxy": "Proxy X reached process FD limit (maxsock=N). Please check 'ulimit-n' and restart." ["reached process fd limit"] Descriptors;
    "HAProxy": "Proxy X reached system FD limit (maxsock=N). Please check system tunables." ["reached system fd limit"] SystemFiles;
    "HAProxy": "Proxy X reached system memory limit (maxsock=N)." ["reached system memory limit"] Memory;
    "HAProxy": "[haproxy.main()] Cannot raise FD limit to N, limit is N." ["cannot raise fd limit"] Descriptors;
    "HAProxy": "FD limit (N) too low for maxconn=N/maxsock=N. Please raise 'ulimit-n' to N or more" ["fd limit", "too low for maxconn"] Descriptors;
    "HAProxy": "Connect() failed for backend X: no free ports." ["connect() failed for backend", "no free ports"] Ports;
    "Node": "Error: accept EMFILE" ["accept emfile"] Descriptors;
    "Node": "Error: connect EMFILE X:N - Local (undefined:undefined)" ["connect emfile"] Descriptors;
    "Node": "Error: EMFILE: too many open files, open 'X'" ["emfile: too many open files"] Descriptors;
    "Node": "Error: connect EADDRNOTAVAIL X:N" ["connect eaddrnotavail"] Ports;
    "Node": "Error: listen EADDRINUSE: address already in use X:N" ["listen eaddrinuse"] Ports;
    "Node": "Error: connect ECONNREFUSED X:N" ["econnrefused"] Peer;
    "Node": "Error: read ECONNRESET" ["econnreset"] Peer;
    "Node": "Error: connect ETIMEDOUT X:N" ["etimedout"] AcceptQueue;
    "Node": "Error: socket hang up" ["socket hang up"] Peer;
    "Node": "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory" ["javascript heap out of memory"] Memory;
    "Node": "Error: ENOSPC: System limit for number of file watchers reached" ["system limit for number of file watchers"] Watches;
    "Go": "accept tcp X: accept4: too many open files; retrying in N" ["accept4: too many open files"] Descriptors;
    "Go": "dial tcp X: socket: too many open files" ["socket: too many open files"] Descriptors;
    "Go": "dial tcp X: connect: cannot assign requested address" ["connect: cannot assign requested address"] Ports;
    "Go": "dial tcp X: connect: connection refused" ["connect: connection refused"] Peer;
    "Go": "dial tcp X: i/o timeout" ["i/o timeout"] AcceptQueue;
    "Go": "lookup X: no such host (under load: descriptors or ports of the resolver)" ["lookup", "no such host"] Descriptors;
    "Go": "runtime: failed to create new OS thread (have N already; errno=11)" ["failed to create new os thread"] Threads;
    "Go": "fatal error: runtime: out of memory" ["runtime: out of memory"] Memory;
    "Ruby": "Errno::EMFILE: Too many open files" ["errno::emfile"] Descriptors;
    "Ruby": "Errno::ENFILE: Too many open files in system" ["errno::enfile"] SystemFiles;
    "Ruby": "Errno::EADDRNOTAVAIL: Cannot assign requested address - connect(2) for X" ["errno::eaddrnotavail"] Ports;
    "Ruby": "Errno::ECONNREFUSED: Connection refused - connect(2) for X" ["errno::econnrefused"] Peer;
    "Ruby": "ThreadError: can't create Thread: Resource temporarily unavailable" ["cant create thread"] Threads;
    "Ruby": "ActiveRecord::ConnectionTimeoutError (could not obtain a connection from the pool)" ["could not obtain a connection from the pool"] Peer;
    "Python": "OSError: [Errno 24] Too many open files" ["oserror", "errno 24"] Descriptors;
    "Python": "OSError: [Errno 99] Cannot assign requested address" ["errno 99"] Ports;
    "Python": "RuntimeError: can't start new thread" ["cant start new thread"] Threads;
    "Java": "java.net.SocketException: Too many open files" ["socketexception", "too many open files"] Descriptors;
    "Java": "java.net.NoRouteToHostException: Cannot assign requested address" ["noroutetohostexception", "cannot assign requested address"] Ports;
    "Java": "java.lang.OutOfMemoryError: unable to create native thread" ["unable to create", "native thread"] Threads;
    "Redis": "max number of clients reached" ["max number of clients reached"] Descriptors;
    "Redis": "WARNING: The TCP backlog setting of N cannot be enforced because /proc/sys/net/core/somaxconn is set to the lower value of N." ["tcp backlog setting"] AcceptQueue;
    "Redis": "Increased maximum number of open files to N (it was originally set to N)." ["increased maximum number of open files"] Descriptors;
    "AnyCable": "failed to accept connection: too many open files" ["failed to accept connection"] Descriptors;
    "wrk": "unable to create thread N: X" ["unable to create thread"] Threads;
}

/// The messages a text may be, the likeliest first; several of one trouble count once. Case,
/// quotes, numbers and whatever stands around do not matter.
#[must_use]
pub fn explain(text: &str) -> Vec<&'static Message> {
    let text = plain(text);
    let mut matches: Vec<&Message> = MESSAGES
        .iter()
        .filter(|message| message.phrases.iter().all(|phrase| contains(&text, phrase)))
        .collect();
    // The longer the phrases, the less by chance.
    matches.sort_by_key(|message| {
        std::cmp::Reverse(message.phrases.iter().map(|phrase| phrase.len()).sum::<usize>())
    });
    let mut told = Vec::new();
    matches.retain(|message| {
        let new = !told.contains(&message.trouble);
        told.push(message.trouble);
        new
    });
    matches
}

/// Messages that share the most words with a text that is none of them, the nearest first.
#[must_use]
pub fn nearest(text: &str, most: usize) -> Vec<&'static Message> {
    let text = plain(text);
    let words: Vec<&str> = text.split(' ').filter(|word| word.len() > 3).collect();
    let shared = |message: &Message| {
        let of = plain(message.text);
        words.iter().filter(|word| of.split(' ').any(|other| other == **word)).count()
    };
    let mut near: Vec<(usize, &Message)> =
        MESSAGES.iter().map(|message| (shared(message), message)).filter(|(n, _)| *n > 0).collect();
    near.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    near.into_iter().take(most).map(|(_, message)| message).collect()
}

/// The page for `docs/operate/`.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Troubleshooting: from the message to the cure\n\n\
         Made from the table that `standfast doctor explain \"MESSAGE\"` looks in; a test keeps it \
         so. `standfast\ndoctor` says what this machine allows and needs, and \
         [limits.md](limits.md) how the limits work together.\n",
    );
    for trouble in Trouble::ALL {
        // Writing to a String cannot fail.
        let _ = write!(page, "\n## {}\n\n{}\n\n", trouble.name(), trouble.cause());
        page += "| who says it | what |\n|---|---|\n";
        for message in MESSAGES.iter().filter(|message| message.trouble == trouble) {
            let _ = writeln!(page, "| {} | `{}` |", message.program, message.text);
        }
        page += "\n| where | what helps |\n|---|---|\n";
        for (place, line) in trouble.cures() {
            let _ = writeln!(page, "| {place} | `{}` |", line.replace('|', "\\|"));
        }
    }
    page
}

/// In lower case, without quotes, each blank one.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for word in text.to_lowercase().split_whitespace() {
        if !plain.is_empty() {
            plain.push(' ');
        }
        plain.extend(word.chars().filter(|c| !matches!(c, '\'' | '"' | '`' | '’' | '“' | '”')));
    }
    plain
}

/// Whether a phrase stands there as words, so that 24 is not in 1024.
fn contains(text: &str, phrase: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase).any(|(at, found)| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let after = text.get(at + found.len()..).and_then(|after| after.chars().next());
        let edge = |own: Option<char>, other| !(inside(own) && inside(other));
        edge(phrase.chars().next(), before) && edge(phrase.chars().next_back(), after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_recognised_as_what_it_means() {
        for message in MESSAGES {
            let found = explain(message.text);
            let first = found.first().unwrap_or_else(|| panic!("{} is not found", message.text));
            assert_eq!(first.trouble, message.trouble, "{}: {}", message.text, first.text);
            assert!(message.phrases.iter().all(|phrase| *phrase == phrase.to_lowercase()));
        }
    }

    #[test]
    fn a_line_of_a_log_is_recognised() {
        for (line, trouble) in [
            (
                "2026/11/20 03:12:01 [alert] 71#71: 768 worker_connections are not enough",
                Trouble::WorkerConnections,
            ),
            (
                "2026/11/20 [crit] 9#9: accept4() failed (24: Too many open files)",
                Trouble::Descriptors,
            ),
            (
                "http: Accept error: accept tcp [::]:8080: accept4: too many open files; retrying in 1s",
                Trouble::Descriptors,
            ),
            (
                "[ 812.1] nf_conntrack: nf_conntrack: table full, dropping packet",
                Trouble::Conntrack,
            ),
            ("OSError: [Errno 24] Too many open files", Trouble::Descriptors),
            ("bash: fork: retry: Resource temporarily unavailable", Trouble::Threads),
            ("dial tcp 10.0.0.1:80: connect: cannot assign requested address", Trouble::Ports),
            ("connect: can’t assign requested address", Trouble::Ports),
            ("TOO MANY OPEN FILES IN SYSTEM", Trouble::SystemFiles),
            ("FD limit (1024) too low for maxconn=5000/maxsock=10030.", Trouble::Descriptors),
        ] {
            let found = explain(line);
            assert_eq!(found.first().map(|message| message.trouble), Some(trouble), "{line}");
        }
    }

    #[test]
    fn what_is_unknown_is_not_guessed() {
        for text in ["", "hello", "the disk is on fire", "port 1024 is fine", "no errors 240"] {
            assert!(explain(text).is_empty(), "{text}: {:?}", explain(text));
        }
        let near = nearest("worker connections were not enough today", 3);
        assert!(near.iter().any(|message| message.text.contains("not enough")), "{near:?}");
        assert!(nearest("zzz", 3).is_empty());
    }

    #[test]
    fn every_trouble_has_messages_and_cures() {
        for trouble in Trouble::ALL {
            assert!(MESSAGES.iter().any(|message| message.trouble == trouble));
            assert!(!trouble.cures().is_empty() && !trouble.cause().is_empty());
            assert!(page().contains(trouble.name()));
        }
    }
}
