//! Settings that refuse no connection but cause problems later: queues, TCP memory, overcommit. Each method
//! checks one setting and returns `None` where it is fine, unknown, or does not apply to the goal.

use super::Checker;
use crate::fix::Fix;
use crate::limits::{BACKLOG, PAGE_BYTES, TCP_PAGES_PER_UNREAD, percent};
use crate::report::{Limit, Warning};
use crate::text::{Bytes, Count};

/// Handshakes in progress that a listener should allow. With fewer, connection storms lose some.
const SYN_BACKLOG_LEAST: u64 = 1_024;

impl Checker<'_> {
    pub(super) fn accept_queue(&self) -> Option<Warning> {
        let now = self.machine.tcp.somaxconn?;
        let concerned = self.goal.role.accepts() && self.goal.connections > now;
        (concerned && now < BACKLOG).then(|| Warning {
            limit: Limit::AcceptQueue,
            now,
            needed: BACKLOG,
            fix: Fix::Sysctl { key: "net.core.somaxconn", value: BACKLOG.to_string() },
            text: format!(
                "net.core.somaxconn limits the accept queue to {} connections, {} are configured: \
                 in a connection storm some clients connect a second late",
                Count(now),
                Count(BACKLOG)
            ),
        })
    }

    /// The queue of handshakes in progress, which a connection storm from other machines can fill.
    pub(super) fn handshakes(&self) -> Option<Warning> {
        let now = self.machine.tcp.max_syn_backlog?;
        let concerned = self.goal.role.accepts() && self.goal.connections > now;
        (concerned && now < SYN_BACKLOG_LEAST).then(|| Warning {
            limit: Limit::AcceptQueue,
            now,
            needed: BACKLOG,
            fix: Fix::Sysctl { key: "net.ipv4.tcp_max_syn_backlog", value: BACKLOG.to_string() },
            text: format!(
                "net.ipv4.tcp_max_syn_backlog allows {} handshakes in progress: in a connection \
                 storm the kernel sends SYN cookies or drops handshakes",
                Count(now)
            ),
        })
    }

    /// A hard limit above the machine's: `su`, `sudo` and `sshd` fail to set it (limits.conf(5)).
    pub(super) fn logins(&self) -> Option<Warning> {
        let (files, needed) = (self.machine.files.file_max?, self.machine.files.nofile.hard);
        (files < needed && needed != u64::MAX).then(|| Warning {
            limit: Limit::SystemFiles,
            now: files,
            needed,
            fix: Fix::Sysctl { key: "fs.file-max", value: needed.to_string() },
            text: format!(
                "one process may open {} files, the whole machine {}: at that limit \
                 nobody can log in",
                Count(needed),
                Count(files)
            ),
        })
    }

    pub(super) fn port_reuse(&self) -> Option<Warning> {
        let now = self.machine.tcp.tw_reuse?;
        (self.goal.role.connects() && now == 0).then(|| Warning {
            limit: Limit::PortReuse,
            now,
            needed: 1,
            fix: Fix::Sysctl { key: "net.ipv4.tcp_tw_reuse", value: "1".to_owned() },
            text: "ports of closed connections stay in TIME_WAIT for 60 s before they can be \
                   used again: a second run within that time has fewer"
                .to_owned(),
        })
    }

    pub(super) fn overcommit(&self) -> Option<Warning> {
        let now = self.machine.vm.overcommit?;
        (now == 2).then(|| Warning {
            limit: Limit::Overcommit,
            now,
            needed: 0,
            fix: Fix::Sysctl { key: "vm.overcommit_memory", value: "0".to_owned() },
            text: "vm.overcommit_memory is 2: the kernel only grants memory that it can back, so \
                   threads may fail to start while memory is free"
                .to_owned(),
        })
    }

    pub(super) fn tcp_memory(&self) -> Option<Warning> {
        let [low, pressure, high] = self.machine.tcp.mem_pages?;
        let needed = self.goal.connections.saturating_mul(TCP_PAGES_PER_UNREAD);
        let raised =
            [low.max(needed), pressure.max(percent(needed, 125)), high.max(percent(needed, 150))];
        (pressure < needed).then(|| Warning {
            limit: Limit::TcpMemory,
            now: pressure,
            needed,
            fix: Fix::Sysctl {
                key: "net.ipv4.tcp_mem",
                value: raised.map(|pages| pages.to_string()).join(" "),
            },
            text: format!(
                "a broadcast to all connections takes {} pages of TCP memory until it is read; \
                 the kernel slows TCP beyond {} and drops segments beyond {}",
                Count(needed),
                Count(pressure),
                Count(high)
            ),
        })
    }

    /// The buffer that each socket may use even when TCP memory is exhausted: the first number of
    /// `tcp_rmem` and `tcp_wmem` (ip-sysctl), a page by default. Where it is higher, `tcp_mem` is no
    /// upper bound any more.
    pub(super) fn tcp_buffers(&self) -> Option<Warning> {
        let tcp = &self.machine.tcp;
        let (key, [least, usual, most]) =
            [("net.ipv4.tcp_rmem", tcp.rmem_bytes), ("net.ipv4.tcp_wmem", tcp.wmem_bytes)]
                .into_iter()
                .filter_map(|(key, sizes)| Some((key, sizes?)))
                .find(|(_, sizes)| sizes[0] > PAGE_BYTES)?;
        let sockets = self.goal.connections.saturating_mul(self.goal.role.ends());
        let (now, needed) = (self.machine.memory.available_bytes?, sockets.saturating_mul(least));
        (now < needed).then(|| Warning {
            limit: Limit::TcpBuffers,
            now,
            needed,
            fix: Fix::Sysctl { key, value: format!("{PAGE_BYTES} {usual} {most}") },
            text: format!(
                "{key} lets each socket use {} bytes even when TCP memory is exhausted: {} sockets \
                 may take {}, {} are available",
                Count(least),
                Count(sockets),
                Bytes(needed),
                Bytes(now)
            ),
        })
    }
}
