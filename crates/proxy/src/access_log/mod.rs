//! The access log: one line per tunnel or request when it ends, as JSON or in the combined format.
//!
//! A worker posts an [`Entry`] and never waits: the queue is bounded, and entries that find it full
//! are dropped, counted and reported. A thread of the control plane polls the queue every 50 ms and
//! writes; posting wakes no thread. If the sink fails or blocks, that thread keeps its lines and tries
//! again.

mod line;
mod pending;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use admin::log::{self, LogSink, Written};
use engine::sys::process::now_ns;
use tracing::{info, warn};

pub(crate) use self::pending::{PendingEntries, PendingEntry};

/// How often the queue is emptied.
const WRITE_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of queued entries.
const ENTRIES_MAX: usize = 8 * 1024;
/// Lines that are formatted at a time, in bytes.
const BATCH_BYTES: usize = 64 * 1024;
/// Shortest time between two messages about lost lines.
const REPORT_EVERY_NS: u64 = 10_000_000_000;
const STACK_BYTES: usize = 256 * 1024;

/// The format of a line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One JSON object.
    #[default]
    Json,
    /// The combined format of Apache and nginx, followed by further fields.
    Combined,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(LogFormat::Json),
            "combined" => Ok(LogFormat::Combined),
            _ => Err(format!("invalid access log format \"{text}\": expected json or combined")),
        }
    }
}

/// The side that closed a tunnel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Client,
    /// The upstream.
    Upstream,
    /// This proxy.
    Proxy,
}

impl Side {
    /// The name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Upstream => "upstream",
            Side::Proxy => "proxy",
        }
    }
}

/// One tunnel or request in the log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Start time, in milliseconds since 1970.
    pub began_ms: u64,
    /// Duration.
    pub duration: Duration,
    /// The client's address, if it is known.
    pub client: Option<IpAddr>,
    /// The method; empty if the head was unreadable, as are then the host and the target.
    pub method: Box<str>,
    /// The minor version of HTTP/1: 0 or 1.
    pub version: u8,
    /// The Host header.
    pub host: Box<str>,
    /// The request target with its query.
    pub target: Box<str>,
    /// The User-Agent header.
    pub agent: Option<Box<str>>,
    /// The Referer header.
    pub referer: Option<Box<str>>,
    /// The request id, if request ids are used.
    pub request_id: Option<Box<str>>,
    /// The pool, if a route was found.
    pub pool: Option<Box<str>>,
    /// The upstream's address, if one was chosen.
    pub upstream: Option<Box<str>>,
    /// Its name: names can share an address.
    pub upstream_name: Option<Arc<str>>,
    /// The status sent to the client.
    pub status: u16,
    /// Bytes from the client after the request head.
    pub bytes_in: u64,
    /// Bytes to the client after the response head.
    pub bytes_out: u64,
    /// The side that closed it.
    pub closed_by: Side,
    /// Why, as named in the metrics.
    pub why: &'static str,
}

/// The sending side of the log, for workers.
#[derive(Clone)]
pub struct Recorder {
    queue: SyncSender<Entry>,
    counts: Arc<Counts>,
}

/// What happened to the lines.
#[derive(Default)]
struct Counts {
    /// Entries lost because the queue was full.
    dropped: AtomicU64,
    /// Failed writes.
    errors: AtomicU64,
    /// Bytes that the sink has taken.
    written: AtomicU64,
}

impl Recorder {
    /// Posts an entry, or counts it as dropped if the queue is full.
    pub fn post(&self, entry: Entry) {
        if self.queue.try_send(entry).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many entries were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Returns how many writes have failed.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.counts.errors.load(Ordering::Relaxed)
    }
}

/// The log cannot be written; the system error is the source.
#[derive(Debug)]
pub struct LogError(PathBuf, io::Error);

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write the access log to {}", self.0.display())
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.1)
    }
}

/// The log and its writer thread. Dropping it writes the remaining entries, and waits at most a second
/// for a sink that takes nothing.
pub struct AccessLog {
    path: PathBuf,
    format: LogFormat,
    reopen: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    recorder: Recorder,
    entries: Option<Receiver<Entry>>,
    /// Lost lines that were logged, and when the next message may be.
    reported: u64,
    quiet_until_ns: u64,
}

impl AccessLog {
    /// Creates a log that appends to a file, or writes to standard output if the path is `-`. Until
    /// [`AccessLog::start`] entries are queued and no descriptor is held.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn new(path: &Path, format: LogFormat) -> Result<Self, LogError> {
        if !is_stdout(path) {
            LogSink::check_file(path).map_err(|error| LogError(path.to_owned(), error))?;
        }
        let (queue, entries) = sync_channel(ENTRIES_MAX);
        Ok(AccessLog {
            path: path.to_owned(),
            format,
            reopen: Arc::default(),
            stop: Arc::default(),
            thread: None,
            recorder: Recorder { queue, counts: Arc::default() },
            entries: Some(entries),
            reported: 0,
            quiet_until_ns: 0,
        })
    }

    /// Starts writing. Call it once the workers have their own descriptor tables; otherwise their
    /// copies would keep a rotated and deleted file alive.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub fn start(&mut self) -> Result<(), LogError> {
        let Some(entries) = self.entries.take() else { return Ok(()) };
        let failed = |error| LogError(self.path.clone(), error);
        let writer = Writer {
            sink: open(&self.path).map_err(failed)?,
            entries,
            path: self.path.clone(),
            format: self.format,
            counts: Arc::clone(&self.recorder.counts),
            reopen: Arc::clone(&self.reopen),
            stop: Arc::clone(&self.stop),
            is_failing: false,
            retry_ns: 0,
        };
        let thread = Builder::new().name("access-log".to_owned()).stack_size(STACK_BYTES);
        self.thread = Some(thread.spawn(move || writer.run()).map_err(failed)?);
        Ok(())
    }

    /// The sending side of the log, for workers.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Reopens the file by name, after log rotation.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Release);
    }

    /// Logs how many lines were lost since the last message, at most one message in ten seconds.
    pub(crate) fn report(&mut self, now_ns: u64) {
        let dropped = self.recorder.dropped();
        if dropped > self.reported && now_ns >= self.quiet_until_ns {
            warn!("access log lines lost: {}, {}", dropped - self.reported, self.path.display());
            self.reported = dropped;
            self.quiet_until_ns = now_ns + REPORT_EVERY_NS;
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.quiet_until_ns = 0;
        self.report(now_ns());
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        let written = || self.recorder.counts.written.load(Ordering::Relaxed);
        // A thread that is blocked in a write ends with the process.
        if !log::wait_while_progressing(|| thread.is_finished(), written) {
            warn!("the last lines of the access log are lost: {}", self.path.display());
        }
    }
}

/// The thread's part.
struct Writer {
    sink: LogSink,
    entries: Receiver<Entry>,
    path: PathBuf,
    format: LogFormat,
    counts: Arc<Counts>,
    reopen: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    is_failing: bool,
    /// When a sink that fails is tried again.
    retry_ns: u64,
}

impl Writer {
    /// Writes until the log is dropped and everything is written.
    fn run(mut self) {
        loop {
            let is_last = self.stop.load(Ordering::Acquire);
            if self.reopen.swap(false, Ordering::AcqRel) {
                self.reopen();
            }
            if self.sink.is_empty() {
                self.fill();
            }
            if self.sink.is_empty() {
                if is_last {
                    return;
                }
                thread::sleep(WRITE_EVERY);
            } else if now_ns() < self.retry_ns {
                thread::sleep(WRITE_EVERY);
            } else {
                self.write();
            }
        }
    }

    /// Moves entries to the sink as lines, at most [`BATCH_BYTES`] and one line.
    fn fill(&mut self) {
        let mut lines = String::new();
        for entry in self.entries.try_iter() {
            match self.format {
                LogFormat::Json => line::json(&mut lines, &entry),
                LogFormat::Combined => line::combined(&mut lines, &entry),
            }
            if lines.len() >= BATCH_BYTES {
                break;
            }
        }
        self.sink.buffer().extend_from_slice(lines.as_bytes());
    }

    fn write(&mut self) {
        let path = self.path.display();
        match self.sink.write(&self.counts.written) {
            Written::All => {
                if std::mem::take(&mut self.is_failing) {
                    info!("access log works again: {path}");
                }
            }
            Written::Full => self.sink.wait_writable(WRITE_EVERY),
            Written::Failed(error) => {
                self.counts.errors.fetch_add(1, Ordering::Relaxed);
                self.retry_ns = now_ns() + log::RETRY.as_nanos() as u64;
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!("cannot write the access log to {path}: {error}; trying again");
                }
            }
        }
    }

    fn reopen(&mut self) {
        self.retry_ns = 0;
        if let Err(error) = self.sink.reopen() {
            warn!(
                "cannot reopen the access log {}: {error}; still writing to the old file",
                self.path.display()
            );
        }
    }
}

fn open(path: &Path) -> io::Result<LogSink> {
    if is_stdout(path) { Ok(LogSink::stdout()) } else { LogSink::file(path) }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn entry(target: &str) -> Entry {
        Entry {
            began_ms: 1_700_000_000_123,
            duration: Duration::from_millis(1_500),
            client: Some([10, 0, 0, 1].into()),
            method: "GET".into(),
            version: 1,
            host: "chat.example.com".into(),
            target: target.into(),
            agent: Some("say \"hi\"\n".into()),
            referer: None,
            request_id: None,
            pool: Some("chat".into()),
            upstream: Some("10.0.0.2:80".into()),
            upstream_name: Some("app.internal:80".into()),
            status: 101,
            bytes_in: 7,
            bytes_out: 11,
            closed_by: Side::Client,
            why: "gone",
        }
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("standfast-log-{}-{name}", std::process::id()))
    }

    #[test]
    fn every_entry_is_written_and_reopen_leaves_a_moved_file() {
        let (path, moved) = (scratch("now"), scratch("moved"));
        let _ = std::fs::remove_file(&path);
        let mut log = AccessLog::new(&path, LogFormat::Json).unwrap();
        log.start().unwrap();
        for number in 0..100 {
            log.recorder().post(entry(&format!("/{number}")));
        }
        let lines =
            |path: &Path| std::fs::read_to_string(path).map_or(0, |text| text.lines().count());
        while lines(&path) < 100 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::rename(&path, &moved).unwrap();
        log.reopen();
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        log.recorder().post(entry("/last"));
        drop(log);
        assert_eq!((lines(&moved), lines(&path)), (100, 1));
        let text = std::fs::read_to_string(&path).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["target"], "/last");
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(moved);
    }

    #[test]
    fn entries_dropped_from_a_full_queue_are_counted() {
        let (queue, entries) = sync_channel(2);
        let recorder = Recorder { queue, counts: Arc::default() };
        for _ in 0..5 {
            recorder.post(entry("/"));
        }
        assert_eq!(recorder.dropped(), 3);
        assert_eq!(entries.try_iter().count(), 2);
    }

    #[test]
    fn an_unwritable_file_is_an_error_at_once() {
        let error = AccessLog::new(Path::new("/proc/none/x"), LogFormat::Json).err().unwrap();
        assert!(error.to_string().contains("/proc/none/x"));
    }
}
