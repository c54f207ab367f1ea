//! The estimates of [`crate::check`]: what a socket costs and how far each limit may be used.
//!
//! Figures are this project's own measurements (Linux 6.18, x86-64, 4 KiB pages); `prove` prints the
//! actual ones next to them. The machine's limits are in [`crate::Machine`].

use std::ops::RangeInclusive;

/// Bytes of kernel memory an established, idle TCP socket takes with its file, inode, dentry, epoll
/// item and slot in a descriptor table. Measured: 4,100–4,400. This is the upper end, so that a
/// prediction is never too high. A connection whose two ends are on one machine costs it twice.
pub const KERNEL_BYTES_PER_SOCKET: u64 = 4_400;

/// Measurements of it that can be of the sockets. The memory of the kernel is that of the whole machine: what is
/// below or above has memory in it that other programs freed or allocated.
pub const KERNEL_BYTES_PLAUSIBLE: RangeInclusive<f64> = 2_000.0..=16_000.0;

/// Bytes of user memory per socket, in `serve` and in `load`: an upper bound that both stay below.
pub const USER_BYTES_PER_SOCKET: u64 = 128;

/// Bytes of user memory a process takes with no socket open.
pub const USER_BYTES_BASE: u64 = 32 * 1024 * 1024;

/// Percent of the available memory that sockets may take. The rest is for page cache, skbs in
/// flight and other processes: a machine is slow long before its memory is full.
pub const MEMORY_PERCENT: u64 = 95;

/// Descriptors of each table that are no connections, besides one eventfd per worker: standard
/// streams, epoll, up to [`LISTENERS_RESERVED`] listeners, and what the process inherited. The engine
/// plans with the same number.
pub const TABLE_RESERVED: u64 = LISTENERS_RESERVED + 16;

/// Listeners that [`TABLE_RESERVED`] covers. A server on more cores has one per core, and every
/// table holds all of them.
pub const LISTENERS_RESERVED: u64 = 64;

/// Most workers of a process, and most connections of a worker.
pub const WORKERS_MAX: u64 = 1 << 10;
/// See [`WORKERS_MAX`].
pub const WORKER_CONNECTIONS_MAX: u64 = 1 << 22;

/// Files that a process has open besides its connections, for `fs.file-max`.
pub const FILES_BASE: u64 = 1_000;

/// Threads of a process that are not workers: main and control plane.
pub const CONTROL_THREADS: u64 = 8;

/// Connections that `prove` opens by default, on a machine that can hold more.
pub const CONNECTIONS_DEFAULT_MAX: u64 = 1_000_000;

/// Backlog that `serve` passes to `listen`. `net.core.somaxconn` limits it silently.
pub const BACKLOG: u64 = 4_096;

/// Addresses in 127.0.0.0/8 that can be a source without being configured, less network and
/// broadcast.
pub const LOOPBACK_SOURCES: u64 = (1 << 24) - 2;

/// Pages of `tcp_mem` that a socket is charged with while one small message waits unread: the
/// kernel reserves whole pages per socket. Measured: 0.96.
pub const TCP_PAGES_PER_UNREAD: u64 = 1;

/// Bytes of a page, the unit of `tcp_mem`.
pub const PAGE_BYTES: u64 = 4_096;

/// Bytes of address space a process takes without workers: the executable, its libraries, the heap.
/// The executable alone is 36 MB, less for the profile `dist`.
pub const ADDRESS_BYTES_BASE: u64 = 40 * 1024 * 1024;

/// Bytes of address space a worker takes: its stack of 512 KiB, buffers, mailbox, the first chunk of
/// its slab. Measured 1.0–1.1 MB; the allocator does without its arenas of 64 MiB where they are refused.
pub const ADDRESS_BYTES_PER_WORKER: u64 = 1_250_000;

/// Bytes of address space a thread of the control plane takes: Rust's stack of 2 MiB.
pub const ADDRESS_BYTES_PER_CONTROL_THREAD: u64 = 2 * 1024 * 1024;

/// Mappings (`vm.max_map_count`) of a process without workers, and of each thread: stack, guard,
/// arenas. Measured 40 and 4.2.
pub const MAPPINGS_BASE: u64 = 300;
/// See [`MAPPINGS_BASE`].
pub const MAPPINGS_PER_THREAD: u64 = 5;

const _: () = assert!(MEMORY_PERCENT < 100);
const _: () = assert!(USER_BYTES_PER_SOCKET < KERNEL_BYTES_PER_SOCKET);

/// Ports per (source, destination address and port) that connects find at full speed: half of them.
///
/// `connect` without a bound port looks first at ports of one parity (`ip_local_port_range` in
/// ip-sysctl); when those are in use, each call scans thousands. Measured: 50,000 connects/s up to half
/// the range, then 260/s.
pub const fn ports_per_source(usable_ports: u64) -> u64 {
    usable_ports / 2
}

/// Source addresses needed for `connections`, each with `usable_ports` towards each of
/// `destinations` (address and port). `None` when there is no port or no destination.
pub fn sources_needed(connections: u64, usable_ports: u64, destinations: u64) -> Option<u64> {
    let per_source = ports_per_source(usable_ports).saturating_mul(destinations);
    (per_source > 0).then(|| connections.div_ceil(per_source).max(1))
}

/// Connections that one worker's private table of `table` descriptors holds, in a process of
/// `workers`: each table also holds every worker's eventfd, made before the tables are separated. Tables
/// are filled completely, because a full worker passes its listener on.
pub fn worker_capacity(table: u64, workers: u64) -> u64 {
    table.saturating_sub(workers).saturating_sub(TABLE_RESERVED).min(WORKER_CONNECTIONS_MAX)
}

/// Workers with private tables of `table` descriptors that are needed for `connections`, at least 1.
/// `None` if no number is enough: with more workers than half a table, the eventfd of a further one costs
/// the others more than it adds.
pub fn workers_needed(connections: u64, table: u64) -> Option<u64> {
    if connections > private_capacity(table) {
        return None;
    }
    (1..=workers_max(table).max(1))
        .find(|&workers| workers.saturating_mul(worker_capacity(table, workers)) >= connections)
}

/// Connections that any number of workers with private tables of `table` descriptors can hold.
pub fn private_capacity(table: u64) -> u64 {
    let workers = workers_max(table);
    workers.saturating_mul(worker_capacity(table, workers))
}

/// The number of workers with the highest sum of capacities, at most [`WORKERS_MAX`].
pub(crate) fn workers_max(table: u64) -> u64 {
    (table.saturating_sub(TABLE_RESERVED) / 2).min(WORKERS_MAX)
}

/// `percent` % of `value`, rounded down.
pub(crate) fn percent(value: u64, percent: u64) -> u64 {
    let wide = u128::from(value) * u128::from(percent) / 100;
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_connections_need_51_workers_at_20_000_descriptors() {
        assert_eq!(workers_needed(1_000_000, 20_000), Some(51));
        assert_eq!(workers_needed(1, 20_000), Some(1));
        assert_eq!(workers_needed(0, 20_000), Some(1));
        assert_eq!(workers_needed(1_000_000, 2_000_000), Some(1));
        assert_eq!(workers_needed(1_000_000, 4_096), Some(267));
    }

    #[test]
    fn workers_needed_is_the_smallest_number_that_is_enough() {
        for table in [90, 256, 1_024, 4_096, 20_000, 1_048_576] {
            for connections in [1, 100, 999, 10_000, 13_000, 500_000] {
                match workers_needed(connections, table) {
                    Some(workers) => {
                        assert!(workers * worker_capacity(table, workers) >= connections);
                        let fewer = workers - 1;
                        assert!(fewer * worker_capacity(table, fewer) < connections);
                    }
                    None => assert!(private_capacity(table) < connections),
                }
            }
        }
    }

    #[test]
    fn small_tables_have_a_maximum_for_any_number_of_workers() {
        assert_eq!(private_capacity(256), 88 * 88);
        assert_eq!(workers_needed(1_000_000, 256), None);
        assert_eq!(workers_needed(1, 80), None);
        assert_eq!(private_capacity(0), 0);
        assert_eq!(workers_needed(1, u64::MAX), Some(1));
    }

    #[test]
    fn half_the_ports_per_source_and_destination_count() {
        assert_eq!(sources_needed(1_000_000, 28_232, 1), Some(71));
        assert_eq!(sources_needed(1_000_000, 28_232, 2), Some(36));
        assert_eq!(sources_needed(10, 28_232, 1), Some(1));
        assert_eq!(sources_needed(10, 1, 1), None);
        assert_eq!(sources_needed(10, 100, 0), None);
    }
}
