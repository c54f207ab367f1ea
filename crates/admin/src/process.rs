//! What this process uses, asked cheaply enough for every request: no walk over its memory map or
//! its threads, as `host` does when figures must be exact. Source: proc(5), clock_gettime(2).

use std::fs;

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

/// Resident memory of this process, in bytes; the kernel's running count may be some pages behind.
/// `None` without `/proc`.
#[must_use]
pub fn rss_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}

/// CPU time of all threads of this process, ended ones too, in seconds.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_uses_some_memory_and_some_time() {
        let rss = rss_bytes().unwrap();
        assert!(rss > 100 << 10 && rss < 1 << 40, "{rss}");
        let before = cpu_seconds();
        while cpu_seconds() <= before {}
    }
}
