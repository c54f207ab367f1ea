//! Resource usage of this process, cheap enough to read at every request: no walk over the memory map
//! or the threads, as `capacity` does where figures must be exact. Source: proc(5), clock_gettime(2).

use std::fs;

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

/// Resident memory of this process, in bytes. The kernel's running count may lag by some pages. `None`
/// without `/proc`.
#[must_use]
pub fn rss_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}

/// The number of descriptors in each thread's table, by thread name. Empty where the kernel does not
/// count them (before Linux 6.2).
#[must_use]
pub fn descriptors() -> Vec<(String, u64)> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let held = threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        let name = fs::read_to_string(thread.join("comm")).ok()?;
        let held = fs::metadata(thread.join("fd")).ok()?.len();
        (held > 0).then(|| (name.trim_end().to_owned(), held))
    });
    held.collect()
}

/// CPU time of all threads of this process, ended threads included, in seconds.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opened_files_are_counted_for_their_thread() {
        let name = || fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end().to_owned();
        let held =
            move || descriptors().into_iter().find(|(of, _)| *of == name()).map(|(_, held)| held);
        let opened = std::thread::Builder::new().name("one-more".to_owned()).spawn(move || {
            let before = held();
            let _files: Vec<_> = (0..100).map(|_| fs::File::open("/dev/null").unwrap()).collect();
            (before, held())
        });
        let (before, after) = opened.unwrap().join().unwrap();
        // Other tests of this process open and close files too.
        let grown = before.zip(after).is_some_and(|(before, after)| after > before + 50);
        assert!(grown || before.is_none(), "{before:?} {after:?}");
    }

    #[test]
    fn memory_and_cpu_time_of_this_process_are_plausible() {
        let rss = rss_bytes().unwrap();
        assert!(rss > 100 << 10 && rss < 1 << 40, "{rss}");
        let before = cpu_seconds();
        while cpu_seconds() <= before {}
    }
}
