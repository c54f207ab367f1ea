//! [`check`]: whether this machine can hold a goal's connections, and which limits are too low for it.
//!
//! Pure arithmetic over a [`Machine`] and the estimates of [`crate::limits`]. A limit that could not be
//! read is skipped. The check runs before anything is opened and uses the hard descriptor limit, so the
//! caller must call [`crate::raise_nofile`] before or after it.

mod notes;

use crate::fix::Fix;
use crate::goal::{Goal, Role, Sources};
use crate::limits::{
    ADDRESS_BYTES_BASE, ADDRESS_BYTES_PER_CONTROL_THREAD, ADDRESS_BYTES_PER_WORKER, FILES_BASE,
    KERNEL_BYTES_PER_SOCKET, LISTENERS_RESERVED, LOOPBACK_SOURCES, MAPPINGS_BASE,
    MAPPINGS_PER_THREAD, MEMORY_PERCENT, TABLE_RESERVED, USER_BYTES_BASE, USER_BYTES_PER_SOCKET,
    percent, ports_per_source, private_capacity, sources_needed, worker_capacity, workers_max,
    workers_needed,
};
use crate::machine::Machine;
use crate::report::{Limit, Need, Report, Shortfall};
use crate::text::{Bytes, Count, about};

/// Compares what `goal` needs with what `machine` allows.
pub fn check(machine: &Machine, goal: &Goal) -> Report {
    let checker = Checker { machine, goal, workers: workers(machine, goal) };
    let checked: Vec<(Need, Vec<Fix>)> = [
        checker.memory(),
        checker.open_files(),
        checker.system_files(),
        checker.ports(),
        checker.threads(),
        checker.conntrack(),
        checker.epoll_watches(),
        checker.address_space(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let fits = checked.iter().map(|(need, _)| need.fits).min().unwrap_or(u64::MAX);
    let needs = checked.iter().map(|(need, _)| need.clone()).collect();
    let mut shortfalls: Vec<Shortfall> = checked
        .into_iter()
        .filter(|(need, _)| need.is_short())
        .map(|(need, fixes)| Shortfall { text: checker.explain(&need), need, fixes })
        .collect();
    shortfalls.sort_by_key(|shortfall| shortfall.need.fits);
    let warnings = [
        checker.accept_queue(),
        checker.handshakes(),
        checker.tcp_memory(),
        checker.tcp_buffers(),
        checker.logins(),
        checker.port_reuse(),
        checker.overcommit(),
    ];
    let warnings = warnings.into_iter().flatten().collect();
    Report { goal: goal.clone(), workers: checker.workers, fits, needs, shortfalls, warnings }
}

/// Workers that each process needs for the goal: at least one per core, unless a number is configured.
fn workers(machine: &Machine, goal: &Goal) -> Option<u64> {
    let cores = machine.cores as u64;
    match (goal.workers, goal.private_tables) {
        (Some(workers), _) => Some(workers.max(1)),
        (None, false) => Some(cores),
        (None, true) => {
            let sockets = goal.connections.saturating_mul(goal.role.ends_each());
            Some(workers_needed(sockets, table(machine, goal))?.max(cores))
        }
    }
}

/// Listeners beyond those that every table has room for: a server has one per core.
fn more_listeners(machine: &Machine, goal: &Goal) -> u64 {
    let listens = goal.role != Role::Load;
    if listens { (machine.cores as u64).saturating_sub(LISTENERS_RESERVED) } else { 0 }
}

/// Descriptors of a table without those further listeners.
fn table(machine: &Machine, goal: &Goal) -> u64 {
    machine.files.table().saturating_sub(more_listeners(machine, goal))
}

/// One check. Each method checks one limit and returns `None` where that limit is unknown or does not
/// apply to the goal.
struct Checker<'a> {
    machine: &'a Machine,
    goal: &'a Goal,
    workers: Option<u64>,
}

type Checked = Option<(Need, Vec<Fix>)>;

impl Checker<'_> {
    fn memory(&self) -> Checked {
        let (ends, connections) = (self.goal.role.ends(), self.goal.connections);
        let available = self.machine.memory.available_bytes?;
        let now = percent(available, MEMORY_PERCENT);
        let each = ends * (KERNEL_BYTES_PER_SOCKET + USER_BYTES_PER_SOCKET);
        let base = self.goal.role.processes() * USER_BYTES_BASE;
        let needed = connections.saturating_mul(each).saturating_add(base);
        let fits = now.saturating_sub(base) / each;
        let mut fixes = Vec::new();
        if fits > 0 {
            fixes.push(Fix::Fewer { connections: about(fits), flag: self.goal.role.flag() });
        }
        if let (true, Some(max)) =
            (self.machine.memory.cgroup_limits, self.machine.memory.cgroup_max_bytes)
        {
            let missing = needed.saturating_sub(now).div_ceil(MEMORY_PERCENT).saturating_mul(100);
            fixes.push(Fix::GroupMemory { bytes: max.saturating_add(missing) });
        }
        Some((Need { limit: Limit::Memory, now, needed, fits, breaks: fits }, fixes))
    }

    /// Per process: the sum over the workers' private tables, or the one shared table.
    fn open_files(&self) -> Checked {
        let (table, ends) = (table(self.machine, self.goal), self.goal.role.ends_each());
        let sockets = self.goal.connections.saturating_mul(ends);
        let (now, needed, files) = match (self.goal.private_tables, self.goal.workers) {
            (true, Some(workers)) => {
                let workers = workers.max(1);
                let share = sockets.div_ceil(workers);
                let now = workers.saturating_mul(worker_capacity(table, workers));
                (now, sockets, share.saturating_add(workers).saturating_add(TABLE_RESERVED))
            }
            (true, None) => (private_capacity(table), sockets, smallest_table(sockets)),
            (false, workers) => {
                let workers = workers.unwrap_or(self.machine.cores as u64);
                let own = TABLE_RESERVED.saturating_add(workers);
                (table, sockets.saturating_add(own), sockets.saturating_add(own))
            }
        };
        let files = files.saturating_add(more_listeners(self.machine, self.goal));
        let fits = now.saturating_sub(needed.saturating_sub(sockets)) / ends;
        let mut fixes = Vec::new();
        if self.goal.private_tables && self.goal.workers.is_some() {
            fixes.extend(workers_needed(sockets, table).map(|workers| Fix::Workers { workers }));
        }
        if self.machine.files.nr_open.is_some_and(|nr_open| nr_open < files) {
            fixes.push(Fix::Sysctl { key: "fs.nr_open", value: files.to_string() });
        }
        fixes.push(Fix::Nofile { files });
        Some((Need { limit: Limit::OpenFiles, now, needed, fits, breaks: fits }, fixes))
    }

    fn system_files(&self) -> Checked {
        let (ends, file_max) = (self.goal.role.ends(), self.machine.files.file_max?);
        let used = self.machine.files.used.unwrap_or(0);
        let now = file_max.saturating_sub(used);
        let base = self.goal.role.processes() * FILES_BASE;
        let needed = self.goal.connections.saturating_mul(ends).saturating_add(base);
        let fits = now.saturating_sub(base) / ends;
        let value = needed.saturating_add(used).to_string();
        let need = Need { limit: Limit::SystemFiles, now, needed, fits, breaks: fits };
        Some((need, vec![Fix::Sysctl { key: "fs.file-max", value }]))
    }

    fn ports(&self) -> Checked {
        let (goal, usable) = (self.goal, self.machine.ports.usable()?);
        if !goal.role.connects() {
            return None;
        }
        let now = match goal.sources {
            Sources::Loopback => LOOPBACK_SOURCES,
            Sources::Addresses(addresses) => addresses,
        };
        let needed = sources_needed(goal.connections, usable, goal.destinations);
        let per_source = ports_per_source(usable).saturating_mul(goal.destinations);
        let mut fixes = Vec::new();
        if let Some(sources) = needed {
            fixes.push(Fix::Sources { sources });
        }
        if usable < u64::from(u16::MAX - 1_024) {
            let key = "net.ipv4.ip_local_port_range";
            fixes.push(Fix::Sysctl { key, value: "1024 65535".to_owned() });
        }
        let fits = now.saturating_mul(per_source);
        let breaks = now.saturating_mul(usable).saturating_mul(goal.destinations);
        let needed = needed.unwrap_or(u64::MAX);
        let need = Need { limit: Limit::Ports, now, needed, fits, breaks };
        Some((need, fixes))
    }

    fn threads(&self) -> Checked {
        let (processes, table) = (self.goal.role.processes(), table(self.machine, self.goal));
        // Where no number of workers holds the goal: as many as add capacity.
        let workers = self.workers.unwrap_or_else(|| workers_max(table));
        let control = self.goal.role.control_threads();
        let needed = processes.saturating_mul(workers).saturating_add(control);
        let (now, fix) = self.thread_room(needed)?;
        let most = now.saturating_sub(control) / processes;
        let fits = match (self.goal.private_tables, self.goal.workers) {
            (true, None) => {
                let most = most.min(workers_max(table));
                most.saturating_mul(worker_capacity(table, most)) / self.goal.role.ends_each()
            }
            _ if now < needed => 0,
            _ => u64::MAX,
        };
        Some((Need { limit: Limit::Threads, now, needed, fits, breaks: fits }, vec![fix]))
    }

    /// The lowest of the limits on threads, and the fix that raises it to `needed`.
    fn thread_room(&self, needed: u64) -> Option<(u64, Fix)> {
        let threads = &self.machine.threads;
        let used = threads.used.unwrap_or(0);
        let kernel = |max: Option<u64>, key| {
            let value = used.saturating_add(needed).to_string();
            Some((max?.saturating_sub(used), Fix::Sysctl { key, value }))
        };
        let group = threads.cgroup_left.zip(threads.cgroup_max).map(|(left, max)| {
            let pids = max.saturating_add(needed.saturating_sub(left));
            (left, Fix::GroupPids { pids })
        });
        let user = threads.nproc.map(|max| {
            let used = threads.user_threads.unwrap_or(0);
            (max.saturating_sub(used), Fix::Nproc { threads: used.saturating_add(needed) })
        });
        // Each stack, its guard page and each arena of the allocator is a mapping.
        let mappings = self.machine.vm.max_map_count.map(|max| {
            let room = max.saturating_sub(MAPPINGS_BASE) / MAPPINGS_PER_THREAD;
            let value = MAPPINGS_BASE + needed.saturating_mul(MAPPINGS_PER_THREAD);
            (room, Fix::Sysctl { key: "vm.max_map_count", value: value.to_string() })
        });
        let rooms = [
            group,
            user,
            kernel(threads.threads_max, "kernel.threads-max"),
            kernel(threads.pid_max, "kernel.pid_max"),
            mappings,
        ];
        rooms.into_iter().flatten().min_by_key(|(room, _)| *room)
    }

    /// One entry per connection, for both ends. An empty table means that connections are not tracked.
    fn conntrack(&self) -> Checked {
        let tracked = self.machine.conntrack.filter(|conntrack| conntrack.count > 0)?;
        let now = tracked.max.saturating_sub(tracked.count);
        let needed = self.goal.connections;
        let value = needed.saturating_add(tracked.count).to_string();
        let need = Need { limit: Limit::Conntrack, now, needed, fits: now, breaks: now };
        Some((need, vec![Fix::Sysctl { key: "net.netfilter.nf_conntrack_max", value }]))
    }

    /// Each socket is watched by epoll, and all count for the same user.
    fn epoll_watches(&self) -> Checked {
        let (now, ends) = (self.machine.files.epoll_watches?, self.goal.role.ends());
        let needed = self.goal.connections.saturating_mul(ends);
        let fits = now / ends;
        let need = Need { limit: Limit::EpollWatches, now, needed, fits, breaks: fits };
        let value = needed.saturating_add(needed / 10).to_string();
        Some((need, vec![Fix::Sysctl { key: "fs.epoll.max_user_watches", value }]))
    }

    /// `RLIMIT_AS` of one process. Servers rarely have one; some shells and batch systems set it.
    fn address_space(&self) -> Checked {
        let now = self.machine.vm.address_space_bytes?;
        let needed = self.address_space_of(self.goal.connections);
        // More sockets need more workers, so the number is found by bisection.
        let (mut fits, mut beyond) = (0, 1 << 40);
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            *(if self.address_space_of(middle) <= now { &mut fits } else { &mut beyond }) = middle;
        }
        let need = Need { limit: Limit::AddressSpace, now, needed, fits, breaks: fits };
        Some((need, vec![Fix::AddressSpace { bytes: needed }]))
    }

    /// Address space that one process needs for so many connections, in bytes.
    fn address_space_of(&self, connections: u64) -> u64 {
        let role = self.goal.role;
        let goal = Goal { connections, ..self.goal.clone() };
        let most = || workers_max(table(self.machine, &goal));
        let workers = workers(self.machine, &goal).unwrap_or_else(most);
        let control = role.control_threads() / role.processes();
        let threads = workers.saturating_mul(ADDRESS_BYTES_PER_WORKER)
            + control * ADDRESS_BYTES_PER_CONTROL_THREAD;
        let each = role.ends_each() * USER_BYTES_PER_SOCKET;
        connections.saturating_mul(each).saturating_add(ADDRESS_BYTES_BASE + threads)
    }

    fn explain(&self, need: &Need) -> String {
        let (name, fits) = (need.limit.name(), Count(about(need.fits)));
        let (now, needed) = (Count(need.now), Count(need.needed));
        let what = match need.limit {
            Limit::Memory => format!(
                "need about {}, {} are available ({} % of it kept free)",
                Bytes(need.needed),
                Bytes(self.machine.memory.available_bytes.unwrap_or(need.now)),
                100 - MEMORY_PERCENT
            ),
            Limit::OpenFiles => self.explain_open_files(now, needed),
            Limit::SystemFiles => format!("need {needed}, fs.file-max leaves {now}"),
            Limit::Ports => self.explain_ports(need),
            Limit::Threads => format!("need {needed}, {now} are left"),
            Limit::Conntrack => format!("need {needed} entries, {now} are free"),
            Limit::EpollWatches => format!("need {needed}, fs.epoll.max_user_watches is {now}"),
            Limit::AddressSpace => format!(
                "need about {} of address space in a process, `ulimit -v` allows {}",
                Bytes(need.needed),
                Bytes(need.now)
            ),
            Limit::AcceptQueue
            | Limit::TcpMemory
            | Limit::TcpBuffers
            | Limit::PortReuse
            | Limit::Overcommit => format!("need {needed}, there are {now}"),
        };
        let (connections, place) = (Count(self.goal.connections), self.goal.role.place());
        format!("not enough {name}: {connections} sockets{place} {what}; about {fits} fit")
    }

    fn explain_open_files(&self, now: Count, needed: Count) -> String {
        let table = Count(self.machine.files.table());
        match (self.goal.private_tables, self.goal.workers) {
            (true, Some(workers)) => format!(
                "need room for {needed} in each process, {} workers with {table} descriptors each \
                 have room for {now}",
                Count(workers)
            ),
            (true, None) => format!(
                "need room for {needed} in each process, workers with {table} descriptors each \
                 have room for at most {now}"
            ),
            (false, _) => format!(
                "need {needed} in each process, {table} are allowed (one table for all workers)"
            ),
        }
    }

    fn explain_ports(&self, need: &Need) -> String {
        let usable = self.machine.ports.usable().unwrap_or(0);
        let each = Count(ports_per_source(usable).saturating_mul(self.goal.destinations));
        if need.needed == u64::MAX {
            return format!("need some, {} are usable", Count(usable));
        }
        format!(
            "need {} source addresses with {each} each (half of the range, beyond which connects \
             are slow), there are {}",
            Count(need.needed),
            Count(need.now)
        )
    }
}

/// The smallest power of two with which some number of workers holds `connections`.
fn smallest_table(connections: u64) -> u64 {
    let sizes = (6..63).map(|bits| 1_u64 << bits);
    sizes.into_iter().find(|&table| private_capacity(table) >= connections).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
