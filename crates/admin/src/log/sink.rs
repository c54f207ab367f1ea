//! [`LogSink`]: a file, a pipe or a standard stream that lines are written to, and that may fail or
//! block.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Stderr, Stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A sink with the lines that it has not taken yet. What a failed write leaves over is written by the
/// next one, so a full disk tears no line.
pub struct LogSink {
    path: Option<PathBuf>,
    out: Option<Out>,
    pending: Vec<u8>,
    written: usize,
}

/// An open sink. Standard streams are written without the locks of `std`, which a blocked writer
/// would keep.
enum Out {
    File(File),
    Stdout(Stdout),
    Stderr(Stderr),
}

/// The result of a write.
#[derive(Debug)]
pub enum Written {
    /// All pending lines.
    All,
    /// A part; the sink takes no more now.
    Full,
    /// A part or nothing.
    Failed(io::Error),
}

/// Maximum size of one write.
const PART_BYTES: usize = 16 * 1024;

impl LogSink {
    /// Capacity that an empty sink keeps, in bytes.
    const KEPT_BYTES: usize = 64 * 1024;

    /// Standard error.
    #[must_use]
    pub fn stderr() -> LogSink {
        LogSink::new(None, Some(Out::Stderr(io::stderr())))
    }

    /// Standard output.
    #[must_use]
    pub fn stdout() -> LogSink {
        LogSink::new(None, Some(Out::Stdout(io::stdout())))
    }

    /// Checks that a file can be opened. A FIFO is not opened: its reader would see the end.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn check_file(path: &Path) -> io::Result<()> {
        if is_fifo(path) { Ok(()) } else { open(path).map(drop) }
    }

    /// A file that is appended to. A FIFO that nobody reads is opened by a later write.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn file(path: &Path) -> io::Result<LogSink> {
        let out = match open(path) {
            Err(error) if is_unread_fifo(path, &error) => None,
            opened => Some(Out::File(opened?)),
        };
        Ok(LogSink::new(Some(path.to_owned()), out))
    }

    #[cfg(test)]
    pub(super) fn test_pipe(out: io::PipeWriter) -> LogSink {
        LogSink::new(None, Some(Out::File(std::os::fd::OwnedFd::from(out).into())))
    }

    fn new(path: Option<PathBuf>, out: Option<Out>) -> LogSink {
        LogSink { path, out, pending: Vec::new(), written: 0 }
    }

    /// Opens the file again by its name, after log rotation. A line that was begun is written to the
    /// new file from its start.
    ///
    /// # Errors
    /// The file cannot be opened; the old one is still used.
    pub fn reopen(&mut self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let file = open(path).map_err(|error| explained(path, error))?;
        self.out = Some(Out::File(file));
        let begun = self.pending.get(..self.written).unwrap_or_default();
        self.written = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        Ok(())
    }

    /// Returns whether no line is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The buffer for the next lines, each with its line feed. Fill it only while the sink is empty.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Writes pending lines and adds the bytes that were taken to `progress`. A standard stream may
    /// block; a file does not.
    pub fn write(&mut self, progress: &AtomicU64) -> Written {
        if self.out.is_none()
            && let Err(error) = self.reopen()
        {
            return Written::Failed(error);
        }
        while let Some(rest) = self.pending.get(self.written..).filter(|rest| !rest.is_empty()) {
            let Some(out) = &self.out else { break };
            // In parts, as a blocking write of everything would show no progress.
            match rustix::io::write(out, rest.get(..PART_BYTES).unwrap_or(rest)) {
                Ok(0) => return Written::Failed(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count;
                    progress.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Written::Full,
                Err(error) => return Written::Failed(error.into()),
            }
        }
        self.pending.clear();
        self.pending.shrink_to(Self::KEPT_BYTES);
        self.written = 0;
        Written::All
    }

    /// Waits until a sink that was full may take more.
    pub fn wait_writable(&self, timeout: Duration) {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        if let Some(out) = &self.out {
            let _ = poll(&mut [PollFd::new(out, PollFlags::OUT)], Some(&timeout));
        }
    }
}

impl AsFd for Out {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Out::File(file) => file.as_fd(),
            Out::Stdout(stdout) => stdout.as_fd(),
            Out::Stderr(stderr) => stderr.as_fd(),
        }
    }
}

/// Opens a file to append to. Not blocking: a FIFO without a reader would delay the start, and a full one
/// the end.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    OpenOptions::new().create(true).append(true).custom_flags(flags).open(path)
}

fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

fn is_unread_fifo(path: &Path, error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && is_fifo(path)
}

fn explained(path: &Path, error: io::Error) -> io::Error {
    if is_unread_fifo(path, &error) {
        return io::Error::new(error.kind(), "no process reads this FIFO");
    }
    error
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    struct Fifo(PathBuf);

    impl Fifo {
        fn new(name: &str) -> Fifo {
            let name = format!("standfast-sink-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_file(&path);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            Fifo(path)
        }
    }

    impl Drop for Fifo {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn write(sink: &mut LogSink) -> Written {
        sink.write(&AtomicU64::new(0))
    }

    fn reader(path: &Path) -> File {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
        OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap()
    }

    #[test]
    fn a_full_device_fails_and_keeps_the_lines() {
        let mut sink = LogSink::file(Path::new("/dev/full")).unwrap();
        sink.buffer().extend_from_slice(b"one\n");
        for _ in 0..2 {
            let written = write(&mut sink);
            assert!(
                matches!(&written, Written::Failed(error)
                if error.kind() == ErrorKind::StorageFull),
                "{written:?}"
            );
        }
        assert!(!sink.is_empty());
    }

    #[test]
    fn a_fifo_gets_its_lines_once_it_is_read() {
        let fifo = Fifo::new("unread");
        let mut sink = LogSink::file(&fifo.0).unwrap();
        sink.buffer().extend_from_slice(b"one\n");
        let failed = write(&mut sink);
        assert!(
            matches!(&failed, Written::Failed(error)
            if error.to_string().contains("no process reads")),
            "{failed:?}"
        );
        let mut read = reader(&fifo.0);
        assert!(matches!(write(&mut sink), Written::All));
        let mut text = [0; 16];
        assert_eq!(read.read(&mut text).unwrap(), 4);
        assert_eq!(&text[..4], b"one\n");
    }

    #[test]
    fn a_full_fifo_takes_the_rest_later_and_tears_no_line() {
        let fifo = Fifo::new("full");
        let mut read = reader(&fifo.0);
        let mut sink = LogSink::file(&fifo.0).unwrap();
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        sink.buffer().extend(line.repeat(1_000));
        let mut all = Vec::new();
        let mut full = 0;
        loop {
            match write(&mut sink) {
                Written::All => break,
                Written::Full => full += 1,
                Written::Failed(error) => panic!("{error}"),
            }
            let mut part = vec![0; 32 * 1024];
            let count = read.read(&mut part).unwrap();
            all.extend_from_slice(&part[..count]);
            sink.wait_writable(Duration::from_secs(60));
        }
        let _ = read.read_to_end(&mut all);
        assert!(full > 5, "{full}");
        assert_eq!(all, line.repeat(1_000));
        assert!(sink.pending.capacity() <= LogSink::KEPT_BYTES);
    }

    #[test]
    fn a_line_that_was_begun_is_whole_in_the_reopened_file() {
        let fifo = Fifo::new("moved");
        let read = reader(&fifo.0);
        let mut sink = LogSink::file(&fifo.0).unwrap();
        let line = [b"y".repeat(99_999), b"\n".to_vec()].concat();
        sink.buffer().extend(line.repeat(2));
        assert!(matches!(write(&mut sink), Written::Full));
        fs::remove_file(&fifo.0).unwrap();
        sink.reopen().unwrap();
        assert!(matches!(write(&mut sink), Written::All));
        assert_eq!(fs::read(&fifo.0).unwrap(), line.repeat(2));
        drop(read);
    }
}
