//! All known messages with the programs that print them and the problem they are about. Sources: errno(3),
//! the source code of the kernel and of the programs. To add a message, add a line here and regenerate the
//! page in `docs/`.

use super::{Message, Trouble};

macro_rules! messages {
    ($($program:literal: $text:literal [$($phrase:literal),+] $trouble:ident;)*) => {
        /// All known messages.
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
    "Linux": "pam_limits(sshd:session): Could not set limit for 'nofile': Operation not permitted" ["could not set limit for nofile"] Descriptors;
    "Linux": "sudo: pam_open_session: Permission denied" ["pam_open_session", "permission denied"] Descriptors;
    "Linux": "Cannot assign requested address" ["cannot assign requested address"] Ports;
    "macOS": "Can't assign requested address" ["cant assign requested address"] Ports;
    "Linux, macOS": "EADDRNOTAVAIL" ["eaddrnotavail"] Ports;
    "Linux": "Address already in use" ["address already in use"] Ports;
    "Linux, macOS": "EADDRINUSE" ["eaddrinuse"] Ports;
    "Linux": "TCP: time wait bucket table overflow" ["time wait bucket table overflow"] Ports;
    "ss, netstat": "TIME-WAIT" ["time-wait"] TimeWait;
    "netstat": "TIME_WAIT" ["time_wait"] TimeWait;
    "ss -s": "TCP: N (estab N, closed N, orphaned N, timewait N)" ["timewait"] TimeWait;
    "ss": "CLOSE-WAIT" ["close-wait"] CloseWait;
    "netstat": "CLOSE_WAIT" ["close_wait"] CloseWait;
    "ss": "SYN-SENT" ["syn-sent"] HalfWay;
    "netstat": "SYN_SENT" ["syn_sent"] HalfWay;
    "ss": "SYN-RECV" ["syn-recv"] HalfWay;
    "netstat": "SYN_RECV" ["syn_recv"] HalfWay;
    "ss": "FIN-WAIT-1" ["fin-wait-1"] HalfWay;
    "netstat": "FIN_WAIT1" ["fin_wait1"] HalfWay;
    "ss": "FIN-WAIT-2" ["fin-wait-2"] HalfWay;
    "netstat": "FIN_WAIT2" ["fin_wait2"] HalfWay;
    "ss": "LAST-ACK" ["last-ack"] HalfWay;
    "netstat": "LAST_ACK" ["last_ack"] HalfWay;
    "Linux": "TCP: request_sock_TCP: Possible SYN flooding on port X:N. Sending cookies." ["possible syn flooding"] AcceptQueue;
    "nstat, netstat -s": "TcpExtListenOverflows" ["tcpextlistenoverflows"] AcceptQueue;
    "nstat, netstat -s": "TcpExtListenDrops" ["tcpextlistendrops"] AcceptQueue;
    "nstat, netstat -s": "TcpExtSyncookiesSent" ["tcpextsyncookiessent"] AcceptQueue;
    "nstat, netstat -s": "TcpExtSyncookiesRecv" ["tcpextsyncookiesrecv"] AcceptQueue;
    "nstat, netstat -s": "TcpExtSyncookiesFailed" ["tcpextsyncookiesfailed"] AcceptQueue;
    "/proc/net/netstat": "ListenOverflows" ["listenoverflows"] AcceptQueue;
    "standfast": "standfast_listen_overflows_total" ["listen_overflows"] AcceptQueue;
    "/proc/net/netstat": "ListenDrops" ["listendrops"] AcceptQueue;
    "standfast": "standfast_listen_drops_total" ["listen_drops"] AcceptQueue;
    "/proc/net/netstat": "SyncookiesSent" ["syncookiessent"] AcceptQueue;
    "standfast": "standfast_syncookies_sent_total" ["syncookies_sent"] AcceptQueue;
    "/proc/net/netstat": "SyncookiesRecv" ["syncookiesrecv"] AcceptQueue;
    "standfast": "standfast_syncookies_received_total" ["syncookies_received"] AcceptQueue;
    "/proc/net/netstat": "SyncookiesFailed" ["syncookiesfailed"] AcceptQueue;
    "standfast": "standfast_syncookies_failed_total" ["syncookies_failed"] AcceptQueue;
    "Linux": "neighbour: arp_cache: neighbor table overflow!" ["neighbor table overflow"] Neighbours;
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
    "Linux": "Temporary failure in name resolution" ["temporary failure in name resolution"] Names;
    "macOS": "proc: table is full" ["proc: table is full"] Threads;
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
    "nginx": "could not build the X_hash, you should increase either X_hash_max_size: N or X_hash_bucket_size: N" ["could not build", "hash"] NginxHash;
    "nginx": "could not build optimal X_hash, you should increase either X_hash_max_size: N or X_hash_bucket_size: N; ignoring X_hash_bucket_size" ["could not build optimal", "hash"] NginxHash;
    "nginx": "X could not be resolved (110: Operation timed out)" ["could not be resolved"] Names;
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
    "Node": "Error: getaddrinfo ENOTFOUND X" ["enotfound"] Names;
    "Node": "Error: getaddrinfo EAI_AGAIN X" ["eai_again"] Names;
    "Node": "Error: getaddrinfo EMFILE X" ["getaddrinfo emfile"] Descriptors;
    "Node": "Error: write EPIPE" ["epipe"] Peer;
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
    "Go": "dial tcp: lookup X: no such host" ["lookup", "no such host"] Names;
    "Go": "dial tcp: lookup X on X: read udp X: i/o timeout" ["lookup", "read udp", "i/o timeout"] Names;
    "Go": "read tcp X: read: connection reset by peer" ["read: connection reset by peer"] Peer;
    "Go": "runtime: failed to create new OS thread (have N already; errno=11)" ["failed to create new os thread"] Threads;
    "Go": "fatal error: runtime: out of memory" ["runtime: out of memory"] Memory;
    "Ruby": "Errno::EMFILE: Too many open files" ["errno::emfile"] Descriptors;
    "Ruby": "Errno::ENFILE: Too many open files in system" ["errno::enfile"] SystemFiles;
    "Ruby": "Errno::EADDRNOTAVAIL: Cannot assign requested address - connect(2) for X" ["errno::eaddrnotavail"] Ports;
    "Ruby": "Errno::ECONNREFUSED: Connection refused - connect(2) for X" ["errno::econnrefused"] Peer;
    "Ruby": "Errno::ECONNRESET: Connection reset by peer" ["errno::econnreset"] Peer;
    "Ruby": "Errno::ENOMEM: Cannot allocate memory" ["errno::enomem"] Memory;
    "Ruby": "getaddrinfo: Temporary failure in name resolution (SocketError)" ["socketerror", "temporary failure in name resolution"] Names;
    "Ruby": "ThreadError: can't create Thread: Resource temporarily unavailable" ["cant create thread"] Threads;
    "Ruby": "ActiveRecord::ConnectionTimeoutError (could not obtain a connection from the pool)" ["could not obtain a connection from the pool"] Peer;
    "Python": "OSError: [Errno 24] Too many open files" ["oserror", "errno 24"] Descriptors;
    "Python": "OSError: [Errno 99] Cannot assign requested address" ["errno 99"] Ports;
    "Python": "socket.gaierror: [Errno -3] Temporary failure in name resolution" ["gaierror"] Names;
    "Python": "RuntimeError: can't start new thread" ["cant start new thread"] Threads;
    "Java": "java.net.SocketException: Too many open files" ["socketexception", "too many open files"] Descriptors;
    "Java": "java.net.NoRouteToHostException: Cannot assign requested address" ["noroutetohostexception", "cannot assign requested address"] Ports;
    "Java": "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or process/resource limits reached" ["unable to create", "native thread"] Threads;
    "Redis": "max number of clients reached" ["max number of clients reached"] Descriptors;
    "Redis": "WARNING: The TCP backlog setting of N cannot be enforced because /proc/sys/net/core/somaxconn is set to the lower value of N." ["tcp backlog setting"] AcceptQueue;
    "Redis": "Increased maximum number of open files to N (it was originally set to N)." ["increased maximum number of open files"] Descriptors;
    "wrk": "unable to create thread N: X" ["unable to create thread"] Threads;
}
