//! One worker's descriptor table and its epoll instance.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use super::faults::Fault;
use super::kernel::State;
use super::stream::{File, FileId, Poll, poll};
use crate::sys::{Event, Fd, Interest};

/// Descriptor numbers and their files. The lowest free number is used first, as POSIX requires.
pub(super) struct Table {
    pub(super) numbers: Vec<Option<FileId>>,
    pub(super) used: usize,
    pub(super) limit: usize,
    watches: Vec<Watch>,
    /// Numbers in the latest batch of events.
    batch: Vec<i32>,
    last_closed: Option<i32>,
    /// Nothing was ready at the last check, and nothing can have changed since.
    pub(super) quiet: bool,
    wake: Option<FileId>,
    /// No fault is drawn for calls on this table.
    pub(super) fault_free: bool,
    /// Calls that moved bytes, or opened or closed connections.
    pub(super) progress: u64,
    /// Connections closed since the last [`super::Kernel::take_ended`].
    pub(super) ended: Vec<super::Ended>,
}

/// epoll identifies a file by the number with which it was added, and removes it only when the last number
/// that refers to the file is closed.
#[derive(Copy, Clone)]
struct Watch {
    file: FileId,
    number: i32,
    interest: Interest,
    key: u64,
    /// It is watched for [`Interest::NONE`], and its failure was reported.
    reported: bool,
}

impl Table {
    pub(super) fn new(limit: usize) -> Self {
        Table {
            numbers: vec![None; 3],
            used: 0,
            limit,
            watches: Vec::new(),
            batch: Vec::new(),
            last_closed: None,
            quiet: false,
            wake: None,
            fault_free: false,
            progress: 0,
            ended: Vec::new(),
        }
    }

    pub(super) fn file(&self, fd: Fd) -> io::Result<FileId> {
        let number = usize::try_from(fd.number()).unwrap_or(usize::MAX);
        let file = self.numbers.get(number).copied().flatten();
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    pub(super) fn forget(&mut self, file: FileId) {
        self.watches.retain(|watch| watch.file != file);
    }
}

impl State {
    /// Gives a file a number in a table, without checking the limit.
    pub(super) fn install(&mut self, table: usize, file: FileId) -> Fd {
        match &mut self.files[file] {
            File::Stream(stream) => stream.owner = Some(table),
            File::Wake(_) => self.tables[table].wake = Some(file),
            File::Listener(_) | File::Free => {}
        }
        let table = &mut self.tables[table];
        let free = table.numbers.iter().skip(3).position(Option::is_none);
        let number = free.map_or(table.numbers.len(), |free| free + 3);
        if number == table.numbers.len() {
            table.numbers.push(None);
        }
        table.numbers[number] = Some(file);
        table.used += 1;
        if table.last_closed == Some(number as i32) {
            self.faults.count(Fault::NumberReused);
        }
        Fd::new(number as i32)
    }

    /// Removes a number and returns the file it referred to.
    pub(super) fn uninstall(&mut self, table: usize, fd: Fd) -> io::Result<FileId> {
        let table = &mut self.tables[table];
        let file = table.file(fd)?;
        table.numbers[fd.number() as usize] = None;
        table.used -= 1;
        table.progress += 1;
        table.last_closed = Some(fd.number());
        if table.batch.contains(&fd.number()) {
            self.faults.count(Fault::StaleEvent);
        }
        Ok(file)
    }

    pub(super) fn watch(
        &mut self,
        table: usize,
        fd: Fd,
        interest: Interest,
        key: u64,
        known: bool,
    ) -> io::Result<()> {
        let file = self.tables[table].file(fd)?;
        self.note(if known { 2 } else { 1 }, table, fd, key);
        let wake = matches!(self.files.get(file), Some(File::Wake(_)));
        if !wake && self.strike(table, Fault::WatchNoMemory) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let watches = &mut self.tables[table].watches;
        let mut found =
            watches.iter_mut().find(|watch| (watch.file, watch.number) == (file, fd.number()));
        let watch = Watch { file, number: fd.number(), interest, key, reported: false };
        match (&mut found, known) {
            (Some(old), true) => **old = watch,
            (None, false) => watches.push(watch),
            (Some(_), false) => return Err(io::Error::from_raw_os_error(libc::EEXIST)),
            (None, true) => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
        Ok(())
    }

    pub(super) fn unwatch(&mut self, table: usize, fd: Fd) -> io::Result<()> {
        let file = self.tables[table].file(fd)?;
        self.note(3, table, fd, 0);
        let watches = &mut self.tables[table].watches;
        let at = watches.iter().position(|watch| (watch.file, watch.number) == (file, fd.number()));
        let at = at.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        watches.swap_remove(at);
        Ok(())
    }

    /// Whether a wait would return events.
    pub(super) fn is_ready(&mut self, table: usize) -> bool {
        let awake = |file: FileId| poll(&self.files, file, self.now_ns).readable;
        if self.tables[table].quiet && !self.tables[table].wake.is_some_and(awake) {
            return false;
        }
        let ready = |watch: &Watch| report(*watch, poll(&self.files, watch.file, self.now_ns));
        let any = self.tables[table].watches.iter().any(|watch| ready(watch).is_some());
        self.tables[table].quiet = !any;
        any
    }

    /// Notes that a stream has changed, so that its table is checked again.
    pub(super) fn stir(&mut self, id: FileId) {
        match self.files[id].stream().map(|stream| stream.owner) {
            Some(Some(owner)) => self.tables[owner].quiet = false,
            // It waits in a listener's queue and may have become acceptable.
            Some(None) => self.stir_all(),
            None => {}
        }
    }

    /// Notes a change that may concern every table.
    pub(super) fn stir_all(&mut self) {
        self.tables.iter_mut().for_each(|table| table.quiet = false);
    }

    /// Returns events of ready descriptors in random order. A fault may leave some out.
    pub(super) fn wait(
        &mut self,
        table: usize,
        events: &mut Vec<Event>,
        events_max: usize,
    ) -> io::Result<()> {
        if self.strike(table, Fault::Interrupted) {
            return Err(io::Error::from_raw_os_error(libc::EINTR));
        }
        self.reset_one(table);
        let mut batch = Vec::new();
        for at in 0..self.tables[table].watches.len() {
            let watch = self.tables[table].watches[at];
            match report(watch, poll(&self.files, watch.file, self.now_ns)) {
                Some(_) if self.strike(table, Fault::LateEvent) => {}
                Some(event) => batch.push((watch.number, event)),
                None if watch.reported => {}
                None if self.strike(table, Fault::SpuriousEvent) => {
                    let readable = self.random.bool();
                    let event =
                        Event { key: watch.key, readable, writable: !readable, failed: false };
                    batch.push((watch.number, event));
                }
                None => {}
            }
        }
        self.random.shuffle(&mut batch);
        batch.truncate(events_max);
        self.reports += batch.len() as u64;
        self.note(4, table, Fd::new(0), batch.len() as u64);
        events.extend(batch.iter().map(|&(_, event)| event));
        for watch in &mut self.tables[table].watches {
            let failed = |(number, event): &(i32, Event)| *number == watch.number && event.failed;
            watch.reported |= watch.interest == Interest::NONE && batch.iter().any(failed);
        }
        self.tables[table].batch = batch.into_iter().map(|(number, _)| number).collect();
        Ok(())
    }

    /// Resets a random watched stream, if that fault is drawn.
    fn reset_one(&mut self, table: usize) {
        if self.tables[table].watches.is_empty() || !self.strike(table, Fault::Reset) {
            return;
        }
        let at = self.random.usize(..self.tables[table].watches.len());
        let file = self.tables[table].watches[at].file;
        self.reset(file);
    }

    pub(super) fn peer(&self, table: usize, fd: Fd) -> Option<SocketAddr> {
        let id = self.tables[table].file(fd).ok()?;
        let stream = self.files.get(id)?.stream()?;
        stream.remote.filter(|_| stream.is_connected())
    }

    pub(super) fn peer_has_left(&self, table: usize, fd: Fd) -> bool {
        let Ok(id) = self.tables[table].file(fd) else { return false };
        let stream = self.files.get(id).and_then(File::stream);
        stream.is_some_and(|stream| stream.ended || stream.dead || stream.error.is_some())
    }

    pub(super) fn local(&self, table: usize, fd: Fd) -> Option<SocketAddr> {
        let id = self.tables[table].file(fd).ok()?;
        self.files.get(id)?.stream()?.local
    }

    /// The same, even if the connection is over.
    pub(super) fn remote(&self, table: usize, fd: Fd) -> Option<SocketAddr> {
        let id = self.tables[table].file(fd).ok()?;
        self.files.get(id)?.stream()?.remote
    }

    pub(super) fn was_accepted(&self, table: usize, fd: Fd) -> bool {
        let Ok(id) = self.tables[table].file(fd) else { return false };
        let Some(stream) = self.files[id].stream().filter(|stream| !stream.connecting) else {
            return false;
        };
        let other = stream.peer.and_then(|peer| self.files[peer].stream());
        other.is_none_or(|other| !other.queued)
    }

    pub(super) fn read_by_peer(&self, table: usize, fd: Fd) -> u64 {
        let Ok(id) = self.tables[table].file(fd) else { return 0 };
        self.files[id].stream().map_or(0, |stream| stream.read_by_peer)
    }

    pub(super) fn clear_wake(&mut self, table: usize, fd: Fd) {
        if let Ok(file) = self.tables[table].file(fd)
            && let Some(File::Wake(flag)) = self.files.get(file)
        {
            flag.store(false, Ordering::Release);
        }
    }
}

/// The event that epoll would report for a watched file. Errors and hang-ups are reported for every
/// interest, with [`Interest::NONE`] only once.
fn report(watch: Watch, poll: Poll) -> Option<Event> {
    if watch.reported {
        return None;
    }
    let readable = poll.failed || watch.interest.read && poll.readable;
    let writable = poll.failed || watch.interest.write && poll.writable;
    let failed = poll.failed;
    (readable || writable).then_some(Event { key: watch.key, readable, writable, failed })
}
