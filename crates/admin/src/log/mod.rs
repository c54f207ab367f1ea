//! The log on standard error: a bounded queue and the thread that writes it, so that a sink that fails
//! or blocks costs log lines and nothing else.
//!
//! A line that finds the queue full is dropped and counted. When the sink works again, one line says how
//! many were lost and why. Before [`start`], and without its thread, lines are written directly.

mod shown;
mod sink;

use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Builder};
use std::time::Duration;

use engine::sys::process::now_ns;
use tracing::{dispatcher, warn};

pub use self::shown::{SHOWN_CHARS_MAX, cut, error_chain, shown};
pub use self::sink::{LogSink, Written};
use crate::{Exposition, Kind};

/// Maximum size of the queue, in bytes.
const QUEUE_BYTES_MAX: usize = 1024 * 1024;
/// Time between writes to a sink that fails.
pub const RETRY: Duration = Duration::from_secs(1);
/// Longest wait at the end of the process for a sink that takes nothing, and in all.
const END_STALLED: Duration = Duration::from_secs(1);
const END_MAX: Duration = Duration::from_secs(5);
const END_POLL: Duration = Duration::from_millis(1);
const STACK_BYTES: usize = 256 * 1024;

/// The queue of standard error, once it is started.
static STDERR: OnceLock<Queue> = OnceLock::new();

/// Starts the thread that writes the log. Call it before anything is logged; later calls do nothing.
///
/// # Errors
/// The thread cannot be started.
pub fn start() -> io::Result<()> {
    let mut first = false;
    let queue = STDERR.get_or_init(|| {
        first = true;
        Queue::new(QUEUE_BYTES_MAX)
    });
    if !first {
        return Ok(());
    }
    let thread = Builder::new().name("log".to_owned()).stack_size(STACK_BYTES);
    let started = thread.spawn(move || queue.run(LogSink::stderr(), report));
    queue.is_direct.store(started.is_err(), Ordering::Release);
    started.map(drop)
}

/// Queues text of whole lines. It neither blocks nor fails.
pub fn write(text: &[u8]) {
    match STDERR.get().filter(|queue| !queue.is_direct.load(Ordering::Acquire)) {
        Some(queue) => queue.push(text),
        None => {
            let mut sink = LogSink::stderr();
            sink.buffer().extend_from_slice(text);
            while let Written::Full = sink.write(&AtomicU64::new(0)) {
                sink.wait_writable(RETRY);
            }
        }
    }
}

/// Queues one line.
pub fn write_line(line: &str) {
    write(format!("{line}\n").as_bytes());
}

/// Waits until all lines are written: at most a second in which none is, and five in all.
/// After one that waited in vain, further calls return at once until the sink takes something.
pub fn flush() {
    static STALLED_AT: AtomicU64 = AtomicU64::new(u64::MAX);
    let Some(queue) = STDERR.get().filter(|queue| !queue.is_direct.load(Ordering::Acquire)) else {
        return;
    };
    let progress = || queue.progress.load(Ordering::Relaxed);
    if STALLED_AT.load(Ordering::Relaxed) != progress()
        && !wait_while_progressing(|| queue.is_idle(), progress)
    {
        STALLED_AT.store(progress(), Ordering::Relaxed);
    }
}

/// Flushes the log when it is dropped, also on a panic.
pub struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        flush();
    }
}

/// The writer for `tracing_subscriber`, which writes a complete line at a time.
#[derive(Copy, Clone, Debug)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for the end of a writer: at most a second without progress, and five in all. Returns whether it
/// has ended.
pub fn wait_while_progressing(ended: impl Fn() -> bool, progress: impl Fn() -> u64) -> bool {
    let began_ns = now_ns();
    let mut last = (progress(), began_ns);
    while !ended() {
        let (now, at) = (now_ns(), progress());
        if at != last.0 {
            last = (at, now);
        }
        let stalled = now.saturating_sub(last.1) >= END_STALLED.as_nanos() as u64;
        if stalled || now.saturating_sub(began_ns) >= END_MAX.as_nanos() as u64 {
            return ended();
        }
        thread::sleep(END_POLL);
    }
    true
}

/// Logs a panic of any thread instead of printing it, which could block the thread for ever.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let backtrace = std::backtrace::Backtrace::capture();
        match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => {
                tracing::error!("thread {name}: {panic}\n{backtrace}");
            }
            _ => tracing::error!("thread {name}: {panic}"),
        }
    }));
}

/// The counts of the log, for `/metrics`.
pub(crate) fn metrics(exposition: &mut Exposition) {
    let [dropped, errors] = counts();
    let help = "Log lines lost because standard error failed or blocked.";
    exposition.single("log_dropped", Kind::Counter, help, dropped as f64);
    let help = "Failed writes of the log to standard error.";
    exposition.single("log_errors", Kind::Counter, help, errors as f64);
}

/// Lines lost and failed writes.
pub(crate) fn counts() -> [u64; 2] {
    let of = |counter: fn(&Queue) -> &AtomicU64| {
        STDERR.get().map_or(0, |queue| counter(queue).load(Ordering::Relaxed))
    };
    [of(|queue| &queue.dropped), of(|queue| &queue.errors)]
}

/// Logs that the sink works again.
fn report(text: &str) {
    if dispatcher::has_been_set() {
        warn!("{text}");
    } else {
        write_line(&format!("standfast: {text}"));
    }
}

struct Queue {
    bytes_max: usize,
    state: Mutex<State>,
    added: Condvar,
    /// Whether there is no thread, so that lines are written by their callers.
    is_direct: AtomicBool,
    /// Lines lost so far.
    dropped: AtomicU64,
    /// Failed writes so far.
    errors: AtomicU64,
    /// Bytes that the sink has taken.
    progress: AtomicU64,
}

#[derive(Default)]
struct State {
    lines: Vec<u8>,
    /// Lines lost since the last report.
    lost: u64,
    /// Whether the thread has lines that are not written yet.
    busy: bool,
}

impl Queue {
    fn new(bytes_max: usize) -> Queue {
        Queue {
            bytes_max,
            state: Mutex::default(),
            added: Condvar::new(),
            is_direct: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            progress: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, text: &[u8]) {
        let mut state = self.lock();
        if state.lines.len() + text.len() > self.bytes_max {
            let lines = text.iter().filter(|byte| **byte == b'\n').count().max(1) as u64;
            state.lost += lines;
            self.dropped.fetch_add(lines, Ordering::Relaxed);
            return;
        }
        state.lines.extend_from_slice(text);
        self.added.notify_one();
    }

    fn is_idle(&self) -> bool {
        let state = self.lock();
        state.lines.is_empty() && !state.busy
    }

    /// Writes the queue for ever.
    fn run(&self, mut sink: LogSink, report: impl Fn(&str)) {
        let mut failure = None;
        loop {
            let lost = self.take(&mut sink);
            // The sink has taken the lines before these, and the queue has room.
            if lost > 0 {
                let why = failure.take().unwrap_or_else(|| "standard error was blocked".to_owned());
                report(&format!("log works again: {lost} lines lost: {why}"));
            }
            failure = self.write(&mut sink);
            if self.lock().lost == 0
                && let Some(why) = failure.take()
            {
                report(&format!("log works again: 0 lines lost: {why}"));
            }
        }
    }

    /// Waits for lines and moves them to the sink. Returns how many were lost since the last call.
    fn take(&self, sink: &mut LogSink) -> u64 {
        let mut state = self.lock();
        state.busy = false;
        while state.lines.is_empty() && state.lost == 0 {
            state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.busy = true;
        mem::swap(&mut state.lines, sink.buffer());
        mem::take(&mut state.lost)
    }

    /// Writes until the sink has taken all lines. Returns the last failure.
    fn write(&self, sink: &mut LogSink) -> Option<String> {
        let mut failure = None;
        loop {
            match sink.write(&self.progress) {
                Written::All => return failure,
                Written::Full => sink.wait_writable(RETRY),
                Written::Failed(error) => {
                    self.errors.fetch_add(1, Ordering::Relaxed);
                    failure = Some(error.to_string());
                    thread::sleep(RETRY);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Arc;

    use super::*;

    /// Runs a queue over the write end of a pipe.
    fn queue(bytes_max: usize, out: io::PipeWriter) -> Arc<Queue> {
        let queue = Arc::new(Queue::new(bytes_max));
        let (run, report) = (Arc::clone(&queue), Arc::clone(&queue));
        let sink = LogSink::test_pipe(out);
        thread::spawn(move || {
            run.run(sink, |text| report.push(format!("{text}\n").as_bytes()));
        });
        queue
    }

    /// Reads until the text ends so.
    fn read_until(pipe: &mut io::PipeReader, end: &str) -> String {
        let (mut text, mut part) = (String::new(), [0; 4096]);
        while !text.ends_with(end) {
            let count = pipe.read(&mut part).unwrap();
            assert!(count > 0, "{text}");
            text += std::str::from_utf8(&part[..count]).unwrap();
        }
        text
    }

    #[test]
    fn lines_are_written_in_order_and_flushed() {
        let (mut pipe, out) = io::pipe().unwrap();
        let queue = queue(1024, out);
        for number in 0..10 {
            queue.push(format!("{number}\n").as_bytes());
        }
        let progress = || queue.progress.load(Ordering::Relaxed);
        assert!(wait_while_progressing(|| queue.is_idle(), progress));
        assert_eq!(read_until(&mut pipe, "9\n"), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_blocked_sink_loses_new_lines_and_the_log_says_how_many() {
        let (mut pipe, mut out) = io::pipe().unwrap();
        let filled = fill(&mut out);
        let queue = queue(100, out);
        queue.push(b"000000000\n");
        // Later its thread would take what was lost in two parts.
        while !queue.lock().lines.is_empty() {
            thread::yield_now();
        }
        for number in 1..1_000 {
            queue.push(format!("{number:09}\n").as_bytes());
        }
        // One line is with the thread, ten wait.
        let lost = queue.dropped.load(Ordering::Relaxed);
        assert_eq!(lost, 989);
        assert!(!wait_while_progressing(|| queue.is_idle(), || 0), "it is blocked");
        pipe.read_exact(&mut vec![0; filled]).unwrap();
        let end = format!("log works again: {lost} lines lost: standard error was blocked\n");
        let text = read_until(&mut pipe, &end);
        assert_eq!(text.lines().count() as u64, 1_000 - lost + 1, "{text}");
        queue.push(b"on\n");
        assert_eq!(read_until(&mut pipe, "on\n"), "on\n");
    }

    #[test]
    fn a_closed_pipe_is_counted_and_nothing_panics() {
        let (pipe, out) = io::pipe().unwrap();
        drop(pipe);
        let queue = queue(100, out);
        while queue.errors.load(Ordering::Relaxed) == 0 {
            queue.push(b"0123456789\n");
        }
        assert!(!queue.is_idle());
    }

    /// Fills a pipe; returns with how many bytes.
    fn fill(out: &mut io::PipeWriter) -> usize {
        let flags = rustix::fs::fcntl_getfl(&*out).unwrap();
        rustix::fs::fcntl_setfl(&*out, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        let mut filled = 0;
        while let Ok(count) = out.write(&[b'x'; 4096]) {
            filled += count;
        }
        rustix::fs::fcntl_setfl(&*out, flags).unwrap();
        filled
    }
}
