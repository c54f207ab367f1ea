//! Memory, CPU time and sockets that processes and the kernel actually use.
//!
//! Samples, not limits. Two of them and a subtraction give a cost per socket; user and kernel
//! memory are separate. Sources: proc(5) (`smaps_rollup`, `status`, `stat`, `meminfo`), the kernel's
//! `sched-stats`, `/proc/net/sockstat`.

use std::fs;
use std::io;
use std::path::Path;

use rustix::param::{clock_ticks_per_second, page_size};
use serde::Serialize;

use crate::root::{Root, field_kb};

/// One process's memory and CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProcessMemory {
    /// Resident memory of the process in bytes: anonymous, file-backed and shared.
    pub rss_bytes: u64,
    /// The part of it that no file backs: heap and stacks.
    pub anon_bytes: u64,
    /// CPU time of all its threads in seconds, to the nanosecond while no thread has ended, to
    /// two clock ticks (20 ms) after.
    pub cpu_seconds: f64,
}

impl ProcessMemory {
    /// A sample of the process `pid`. Memory comes from its page tables (`smaps_rollup`), which is
    /// exact; where that is refused, from the kernel's counters, which may lag by megabytes on
    /// machines with many cores.
    ///
    /// # Errors
    /// If there is no such process, or it has ended and is a zombie.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::of_in(Path::new("/"), pid)
    }

    fn of_in(root: &Path, pid: u32) -> io::Result<Self> {
        let root = Root(root);
        let rollup = fs::read_to_string(root.path(&format!("/proc/{pid}/smaps_rollup")));
        let rollup = rollup.ok().and_then(|text| resident(&text, "Rss", "Anonymous"));
        let (rss_bytes, anon_bytes) = match rollup {
            Some(resident) => resident,
            None => {
                let status = fs::read_to_string(root.path(&format!("/proc/{pid}/status")))?;
                let resident = resident(&status, "VmRSS", "RssAnon");
                resident.ok_or_else(|| io::Error::other(format!("process {pid} has ended")))?
            }
        };
        Ok(Self { rss_bytes, anon_bytes, cpu_seconds: cpu_seconds(&root, pid) })
    }
}

fn resident(text: &str, rss: &str, anon: &str) -> Option<(u64, u64)> {
    Some((field_kb(text, rss)?, field_kb(text, anon)?))
}

/// Threads' schedstat is exact but forgets threads that ended; stat remembers them, in ticks,
/// rounded down. The larger of the two is closer.
fn cpu_seconds(root: &Root<'_>, pid: u32) -> f64 {
    let tasks = fs::read_dir(root.path(&format!("/proc/{pid}/task")));
    let nanos: u64 = tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| Root(&task.path()).number::<u64>("schedstat"))
        .sum();
    let ticks = root.text(&format!("/proc/{pid}/stat")).and_then(|text| stat_ticks(&text));
    let exact = nanos as f64 / 1e9;
    exact.max(ticks.unwrap_or(0) as f64 / clock_ticks_per_second() as f64)
}

/// utime + stime, fields 14 and 15. The second field, the name, may hold spaces and parentheses.
fn stat_ticks(stat: &str) -> Option<u64> {
    let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = words.next()?.parse().ok()?;
    let system: u64 = words.next()?.parse().ok()?;
    user.checked_add(system)
}

/// Memory of the kernel, of the whole machine, in bytes.
///
/// In a container this is still the whole machine's, so other processes' growth is included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelMemory {
    /// Kernel objects. Reclaimable ones too: the dentry of an open socket is counted there.
    pub slab_bytes: u64,
    /// Threads' kernel stacks.
    pub kernel_stack_bytes: u64,
    /// Page tables of all processes.
    pub page_tables_bytes: u64,
    /// Per-core allocations.
    pub percpu_bytes: u64,
    /// Large kernel allocations: descriptor tables, and the stacks where those are mapped.
    pub vmalloc_bytes: u64,
    /// TCP's own accounting (`sockstat` mem), in whole pages per socket. Most of it is in `slab_bytes`
    /// too and some is only reserved, so [`Self::total`] leaves it out.
    pub tcp_mem_bytes: u64,
    /// Memory still available (`MemAvailable`).
    pub available_bytes: u64,
}

impl KernelMemory {
    /// A sample of this machine.
    ///
    /// # Errors
    /// If `/proc/meminfo` cannot be read or has no `Slab`.
    pub fn read() -> io::Result<Self> {
        Self::read_from(Path::new("/"))
    }

    fn read_from(root: &Path) -> io::Result<Self> {
        let root = Root(root);
        let text = fs::read_to_string(root.path("/proc/meminfo"))?;
        let field = |key| field_kb(&text, key).unwrap_or(0);
        let slab_bytes = field_kb(&text, "Slab");
        Ok(Self {
            slab_bytes: slab_bytes.ok_or_else(|| io::Error::other("/proc/meminfo has no Slab"))?,
            kernel_stack_bytes: field("KernelStack"),
            page_tables_bytes: field("PageTables"),
            percpu_bytes: field("Percpu"),
            vmalloc_bytes: field("VmallocUsed"),
            tcp_mem_bytes: SocketCounts::read_in(&root).tcp_mem_pages * page_size() as u64,
            available_bytes: field("MemAvailable"),
        })
    }

    /// All kernel memory. Where stacks are mapped (`CONFIG_VMAP_STACK`) they are part of
    /// `vmalloc_bytes`, so the larger of the two counts.
    pub fn total(&self) -> u64 {
        self.slab_bytes
            + self.page_tables_bytes
            + self.percpu_bytes
            + self.vmalloc_bytes.max(self.kernel_stack_bytes)
    }
}

/// TCP sockets of this network namespace (`/proc/net/sockstat`); IPv6 ones are not in `tcp_in_use`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SocketCounts {
    /// Open and bound.
    pub tcp_in_use: u64,
    /// In `TIME_WAIT` for 60 s after a close, each with its port.
    pub tcp_time_wait: u64,
    /// Closed by the program and not yet by TCP (orphans).
    pub tcp_orphans: u64,
    /// Pages of TCP memory of the whole machine.
    pub tcp_mem_pages: u64,
}

impl SocketCounts {
    /// The counts now; all 0 when they cannot be read.
    pub fn read() -> Self {
        Self::read_in(&Root(Path::new("/")))
    }

    fn read_in(root: &Root<'_>) -> Self {
        let text = root.text("/proc/net/sockstat").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
        let count = |key| {
            let mut words = line.split_whitespace().skip_while(|word| *word != key).skip(1);
            words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        Self {
            tcp_in_use: count("inuse"),
            tcp_time_wait: count("tw"),
            tcp_orphans: count("orphan"),
            tcp_mem_pages: count("mem"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fake::FakeRoot;

    const STAT: &str = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 300 200 0 0 20 0 1 0 5\n";

    #[test]
    fn memory_is_read_from_smaps_rollup_if_possible() {
        let root = FakeRoot::new(&[
            ("/proc/7/smaps_rollup", "5-7 ---p 0 [rollup]\nRss:  100 kB\nAnonymous:  60 kB\n"),
            ("/proc/7/status", "Name:\ta\nVmRSS:\t   90 kB\nRssAnon:\t   50 kB\n"),
        ]);
        let sample = ProcessMemory::of_in(root.path(), 7).unwrap();
        assert_eq!((sample.rss_bytes, sample.anon_bytes), (102_400, 61_440));
        root.write("/proc/7/smaps_rollup", "");
        let sample = ProcessMemory::of_in(root.path(), 7).unwrap();
        assert_eq!((sample.rss_bytes, sample.anon_bytes), (92_160, 51_200));
    }

    #[test]
    fn a_process_that_has_ended_is_an_error() {
        let root = FakeRoot::new(&[("/proc/7/status", "Name:\ta\nState:\tZ (zombie)\n")]);
        assert!(ProcessMemory::of_in(root.path(), 7).is_err());
        let missing = ProcessMemory::of_in(root.path(), 8).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn cpu_time_is_the_threads_sum_or_the_ticks_when_threads_have_ended() {
        let root = FakeRoot::new(&[
            ("/proc/7/status", "VmRSS: 1 kB\nRssAnon: 1 kB\n"),
            ("/proc/7/task/7/schedstat", "6000000001 5 1\n"),
            ("/proc/7/task/8/schedstat", "2000000000 5 1\n"),
            ("/proc/7/stat", STAT),
        ]);
        let sample = ProcessMemory::of_in(root.path(), 7).unwrap();
        assert_eq!(sample.cpu_seconds, 8.000000001);
        root.write("/proc/7/task/7/schedstat", "1000000000 5 1\n");
        let sample = ProcessMemory::of_in(root.path(), 7).unwrap();
        assert_eq!(sample.cpu_seconds, 500.0 / clock_ticks_per_second() as f64);
    }

    #[test]
    fn kernel_memory_counts_nothing_twice() {
        let root = FakeRoot::new(&[
            (
                "/proc/meminfo",
                "MemAvailable: 900 kB\nSlab: 100 kB\nSReclaimable: 70 kB\nKernelStack: 5 kB\n\
                 PageTables: 20 kB\nVmallocUsed: 8 kB\nPercpu: 3 kB\n",
            ),
            (
                "/proc/net/sockstat",
                "sockets: used 13\nTCP: inuse 11 orphan 2 tw 33 alloc 1 mem 4\nUDP: inuse 9 mem 9\n",
            ),
        ]);
        let sample = KernelMemory::read_from(root.path()).unwrap();
        assert_eq!(sample.total(), (100 + 20 + 3 + 8) * 1024);
        assert_eq!(sample.tcp_mem_bytes, 4 * page_size() as u64);
        assert_eq!(sample.available_bytes, 900 * 1024);
        let counts = SocketCounts::read_in(&Root(root.path()));
        assert_eq!((counts.tcp_in_use, counts.tcp_time_wait, counts.tcp_orphans), (11, 33, 2));
    }

    #[test]
    fn kernel_memory_without_a_slab_figure_is_an_error() {
        let root = FakeRoot::new(&[("/proc/meminfo", "MemTotal: 900 kB\n")]);
        assert!(KernelMemory::read_from(root.path()).is_err());
    }

    #[test]
    fn this_process_has_memory_and_this_kernel_a_slab() {
        let before = ProcessMemory::of(std::process::id()).unwrap();
        let block = vec![1_u8; 32 << 20];
        let after = ProcessMemory::of(std::process::id()).unwrap();
        assert!(std::hint::black_box(&block).len() == 32 << 20);
        assert!(after.anon_bytes >= before.anon_bytes + (24 << 20));
        assert!(after.rss_bytes >= after.anon_bytes);
        assert!(after.cpu_seconds >= before.cpu_seconds);
        assert!(KernelMemory::read().unwrap().total() > 0);
    }
}
