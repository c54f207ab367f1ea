//! What the scheduler did with single threads, and what the host took from this machine.
//!
//! Samples, not limits: two of them and a subtraction tell how busy a thread was and how long it waited for
//! a core. Sources: the kernel's `sched-stats` (`/proc/PID/task/TID/schedstat`), proc(5) (`comm`, `stat`).

use std::path::Path;

use rustix::param::clock_ticks_per_second;

use crate::root::Root;

/// One thread, since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Its thread id.
    pub id: u32,
    /// Nanoseconds on a core.
    pub ran_ns: u64,
    /// Nanoseconds ready to run, while other threads had the cores.
    pub waited_ns: u64,
    /// How many times it was put on a core.
    pub slices: u64,
}

impl ThreadTimes {
    /// The threads of a process whose name starts with `prefix`, in the order of their ids. Threads that
    /// cannot be read, as on kernels without `CONFIG_SCHED_INFO`, are left out.
    pub fn named(pid: u32, prefix: &str) -> Vec<Self> {
        Self::named_in(Path::new("/"), pid, prefix)
    }

    fn named_in(root: &Path, pid: u32, prefix: &str) -> Vec<Self> {
        let root = Root(root);
        let tasks = format!("/proc/{pid}/task");
        let mut threads: Vec<Self> = root
            .names(&tasks)
            .into_iter()
            .filter_map(|task| {
                let name = root.text(&format!("{tasks}/{task}/comm"))?;
                name.starts_with(prefix).then_some(())?;
                let [ran_ns, waited_ns, slices] =
                    root.numbers(&format!("{tasks}/{task}/schedstat"))?;
                Some(Self { id: task.parse().ok()?, ran_ns, waited_ns, slices })
            })
            .collect();
        threads.sort_unstable_by_key(|thread| thread.id);
        threads
    }
}

/// CPU time that the host of this virtual machine gave to others while its cores had work, in seconds
/// since boot, over all cores. `None` if `/proc/stat` does not tell.
pub fn stolen_seconds() -> Option<f64> {
    stolen_in(Path::new("/"))
}

fn stolen_in(root: &Path) -> Option<f64> {
    let text = Root(root).text("/proc/stat")?;
    // cpu user nice system idle iowait irq softirq steal
    let ticks: u64 = text.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
    Some(ticks as f64 / clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fake::FakeRoot;

    #[test]
    fn threads_are_found_by_name_and_unreadable_ones_are_left_out() {
        let root = FakeRoot::new(&[
            ("/proc/7/task/7/comm", "standfast\n"),
            ("/proc/7/task/7/schedstat", "1 2 3\n"),
            ("/proc/7/task/12/comm", "worker-1\n"),
            ("/proc/7/task/12/schedstat", "50 60 7\n"),
            ("/proc/7/task/9/comm", "worker-0\n"),
            ("/proc/7/task/9/schedstat", "10 20 3\n"),
            ("/proc/7/task/13/comm", "worker-2\n"),
            ("/proc/7/task/13/schedstat", "10 20\n"),
        ]);
        let thread = |id, ran_ns, waited_ns, slices| ThreadTimes { id, ran_ns, waited_ns, slices };
        let threads = ThreadTimes::named_in(root.path(), 7, "worker-");
        assert_eq!(threads, [thread(9, 10, 20, 3), thread(12, 50, 60, 7)]);
        assert_eq!(ThreadTimes::named_in(root.path(), 8, "worker-"), []);
    }

    #[test]
    fn stolen_time_is_unknown_without_its_column() {
        let root = FakeRoot::new(&[("/proc/stat", "cpu  1 2 3 4 5 6 7 200 0 0\ncpu0 1\n")]);
        assert_eq!(stolen_in(root.path()), Some(200.0 / clock_ticks_per_second() as f64));
        root.write("/proc/stat", "cpu  1 2 3 4\n");
        assert_eq!(stolen_in(root.path()), None);
    }

    #[test]
    fn a_busy_thread_of_this_process_is_seen() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::Builder::new().name("spinning".to_owned());
        let busy = busy.spawn(move || while stopped.try_recv().is_err() {}).unwrap();
        let of = || ThreadTimes::named(std::process::id(), "spinning").first().copied();
        let found = (0..1_000_000).find_map(|_| of().filter(|thread| thread.ran_ns > 1_000_000));
        stop.send(()).unwrap();
        busy.join().unwrap();
        assert!(found.is_some());
    }
}
