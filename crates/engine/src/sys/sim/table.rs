//! One worker's descriptor table and its epoll instance.

use std::io;
use std::sync::atomic::Ordering;

use super::faults::Fault;
use super::kernel::State;
use super::stream::{File, FileId, Poll, poll};
use crate::sys::{Event, Fd, Interest};

/// Numbers and what they refer to. The lowest free number is given out first, as POSIX demands.
pub(super) struct Table {
    pub(super) numbers: Vec<Option<FileId>>,
    pub(super) used: usize,
    pub(super) limit: usize,
    watches: Vec<Watch>,
    /// Numbers in the batch reported last.
    batch: Vec<i32>,
    last_closed: Option<i32>,
    /// Nothing was ready when somebody last looked, and nothing can have changed since.
    pub(super) quiet: bool,
    wake: Option<FileId>,
    /// Nothing is drawn for calls on this table.
    pub(super) spared: bool,
    /// Calls that got somewhere: bytes moved, connections came or went.
    pub(super) progress: u64,
    /// Connections closed since somebody asked.
    pub(super) ended: Vec<super::Ended>,
}

/// epoll knows a file under the number it was added with, and forgets it when the last number that
/// refers to the file is closed, not before.
#[derive(Copy, Clone)]
struct Watch {
    file: FileId,
    number: i32,
    interest: Interest,
    key: u64,
    /// It is watched for nothing, and its failure was told.
    told: bool,
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
            spared: false,
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
    /// Gives a file a number in a table, without asking for the limit.
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

    /// Takes the number away; the file it referred to.
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
        let watch = Watch { file, number: fd.number(), interest, key, told: false };
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

    /// Whether a wait would report something.
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

    /// Something about a stream has changed: whoever holds it has to look again.
    pub(super) fn stir(&mut self, id: FileId) {
        match self.files[id].stream().map(|stream| stream.owner) {
            Some(Some(owner)) => self.tables[owner].quiet = false,
            // It waits in a listener's queue, and may show only now.
            Some(None) => self.stir_all(),
            None => {}
        }
    }

    /// Something has changed that may concern every table.
    pub(super) fn stir_all(&mut self) {
        self.tables.iter_mut().for_each(|table| table.quiet = false);
    }

    /// Reports what is ready, in any order; some of it perhaps only next time.
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
                None if watch.told => {}
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
            let of_it = |(number, event): &(i32, Event)| *number == watch.number && event.failed;
            let told = batch.iter().any(of_it);
            watch.told |= told && watch.interest == Interest::NONE;
        }
        self.tables[table].batch = batch.into_iter().map(|(number, _)| number).collect();
        Ok(())
    }

    /// Resets a stream that the table watches, if that is drawn.
    fn reset_one(&mut self, table: usize) {
        if self.tables[table].watches.is_empty() || !self.strike(table, Fault::Reset) {
            return;
        }
        let at = self.random.usize(..self.tables[table].watches.len());
        let file = self.tables[table].watches[at].file;
        self.reset(file);
    }

    pub(super) fn clear_wake(&mut self, table: usize, fd: Fd) {
        if let Ok(file) = self.tables[table].file(fd)
            && let Some(File::Wake(flag)) = self.files.get(file)
        {
            flag.store(false, Ordering::Release);
        }
    }
}

/// What epoll would report of a watched file: errors and hang-ups always, but only once of what is
/// watched for nothing.
fn report(watch: Watch, poll: Poll) -> Option<Event> {
    if watch.told {
        return None;
    }
    let readable = poll.failed || watch.interest.read && poll.readable;
    let writable = poll.failed || watch.interest.write && poll.writable;
    let failed = poll.failed;
    (readable || writable).then_some(Event { key: watch.key, readable, writable, failed })
}
