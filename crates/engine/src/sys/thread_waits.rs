//! [`ThreadWaits`]: how long a thread was ready to run while others had the cores. Source: the kernel's
//! `sched-stats` (`/proc/thread-self/schedstat`).

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Longer than any line of `schedstat`: three numbers of 20 digits.
const LINE_BYTES: usize = 64;

/// What the scheduler did with a thread since it began.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub struct ThreadWaits {
    /// Nanoseconds ready to run, while other threads had the cores.
    pub waited_ns: u64,
    /// How many times it was put on a core.
    pub slices: u64,
}

/// The thread's file, opened when it is first asked for.
#[derive(Default)]
pub(super) enum WaitsFile {
    #[default]
    Unopened,
    Open(File),
    /// The kernel does not tell, or no descriptor was free.
    Absent,
}

impl WaitsFile {
    /// Reads the figures of the calling thread, which must be the same each time.
    pub(super) fn read(&mut self) -> Option<ThreadWaits> {
        if matches!(self, WaitsFile::Unopened) {
            let file = File::open("/proc/thread-self/schedstat");
            *self = file.map_or(WaitsFile::Absent, WaitsFile::Open);
        }
        let WaitsFile::Open(file) = self else { return None };
        let mut line = [0; LINE_BYTES];
        let length = file.read_at(&mut line, 0).ok()?;
        parse(line.get(..length)?)
    }
}

/// "nanoseconds on a core, nanoseconds waited, slices".
fn parse(line: &[u8]) -> Option<ThreadWaits> {
    let mut numbers = line.split(u8::is_ascii_whitespace);
    let mut next = || std::str::from_utf8(numbers.next()?).ok()?.parse().ok();
    let _ran_ns: u64 = next()?;
    Some(ThreadWaits { waited_ns: next()?, slices: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_and_third_numbers_are_read() {
        let waits = ThreadWaits { waited_ns: 20, slices: u64::MAX };
        assert_eq!(parse(b"1 20 18446744073709551615\n"), Some(waits));
        for bad in ["", "1 2", "1 2 \n", "1 -2 3\n", "1 x 3\n", "é 1 2"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_thread_that_goes_on_has_more_slices() {
        let mut file = WaitsFile::default();
        let Some(before) = file.read() else {
            return assert!(!std::path::Path::new("/proc/thread-self/schedstat").exists());
        };
        while file.read().is_some_and(|now| now.slices == before.slices) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let after = file.read().unwrap();
        assert!(after.slices > before.slices && after.waited_ns >= before.waited_ns);
    }
}
