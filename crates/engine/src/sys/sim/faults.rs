//! [`Fault`]: failures and unusual behaviour of the simulated kernel, each with a rate and a count.

/// A fault of a [`super::Kernel`]. Most are drawn at a rate; those marked *natural* follow from limits and
/// from what the peers do, and are only counted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Fault {
    /// A read returns fewer bytes than have arrived.
    ShortRead,
    /// A write takes fewer bytes than there is room for.
    ShortSend,
    /// `EAGAIN` from a read or accept although there is data or a connection.
    AgainOnRead,
    /// `EAGAIN` from a write although there is room.
    AgainOnSend,
    /// `EINTR` from wait, accept, read or write.
    Interrupted,
    /// A stream is reset from outside.
    Reset,
    /// *Natural*: one end ended its side and still reads.
    HalfClose,
    /// *Natural*: a write found the peer's buffer full.
    SlowReader,
    /// *Natural*: `EMFILE`, the worker's table is full.
    TableFull,
    /// `ENFILE` from accept.
    SystemFull,
    /// `ENOBUFS` from accept and connect.
    NoBuffers,
    /// `ECONNABORTED` from accept: the peer disconnected while it waited in the queue.
    Aborted,
    /// *Natural*: a listener's queue was full and the connect is retried.
    BacklogFull,
    /// A connect stays in progress for a while.
    ConnectInProgress,
    /// A connect is refused, at once or later.
    ConnectRefused,
    /// `EADDRNOTAVAIL` from connect.
    NoAddress,
    /// `ENOMEM` from `epoll_ctl`.
    WatchNoMemory,
    /// An event without a cause.
    SpuriousEvent,
    /// A ready descriptor is missing from this batch of events.
    LateEvent,
    /// *Natural*: a descriptor of the latest batch of events was closed.
    StaleEvent,
    /// *Natural*: a descriptor number was reused right after it was closed.
    NumberReused,
    /// The clock jumps forward. Caused by the driver.
    ClockJump,
}

impl Fault {
    /// Every fault, in the order of its number.
    pub const ALL: [Fault; 22] = [
        Fault::ShortRead,
        Fault::ShortSend,
        Fault::AgainOnRead,
        Fault::AgainOnSend,
        Fault::Interrupted,
        Fault::Reset,
        Fault::HalfClose,
        Fault::SlowReader,
        Fault::TableFull,
        Fault::SystemFull,
        Fault::NoBuffers,
        Fault::Aborted,
        Fault::BacklogFull,
        Fault::ConnectInProgress,
        Fault::ConnectRefused,
        Fault::NoAddress,
        Fault::WatchNoMemory,
        Fault::SpuriousEvent,
        Fault::LateEvent,
        Fault::StaleEvent,
        Fault::NumberReused,
        Fault::ClockJump,
    ];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Fault::ShortRead => "short read",
            Fault::ShortSend => "short send",
            Fault::AgainOnRead => "EAGAIN on read",
            Fault::AgainOnSend => "EAGAIN on send",
            Fault::Interrupted => "EINTR",
            Fault::Reset => "reset",
            Fault::HalfClose => "half close",
            Fault::SlowReader => "slow reader",
            Fault::TableFull => "EMFILE",
            Fault::SystemFull => "ENFILE",
            Fault::NoBuffers => "ENOBUFS",
            Fault::Aborted => "ECONNABORTED",
            Fault::BacklogFull => "backlog full",
            Fault::ConnectInProgress => "connect in progress",
            Fault::ConnectRefused => "connect refused",
            Fault::NoAddress => "EADDRNOTAVAIL",
            Fault::WatchNoMemory => "epoll_ctl ENOMEM",
            Fault::SpuriousEvent => "spurious event",
            Fault::LateEvent => "late event",
            Fault::StaleEvent => "closed within batch",
            Fault::NumberReused => "descriptor reused",
            Fault::ClockJump => "clock jump",
        }
    }
}

/// The rate of a fault that always happens.
pub(super) const CERTAIN: u32 = 10_000;

/// The rate of each fault and how often it happened.
#[derive(Default)]
pub(super) struct Faults {
    rates: [u32; Fault::ALL.len()],
    counts: [u64; Fault::ALL.len()],
    pub(super) drawn: u64,
}

impl Faults {
    pub(super) fn set_rate(&mut self, fault: Fault, rate: u32) {
        self.rates[fault as usize] = rate;
    }

    /// Sets all rates to 0.
    pub(super) fn calm(&mut self) {
        self.rates = Default::default();
    }

    pub(super) fn count(&mut self, fault: Fault) {
        self.counts[fault as usize] += 1;
    }

    pub(super) fn counted(&self, fault: Fault) -> u64 {
        self.counts[fault as usize]
    }

    /// Draws whether the fault happens now, and counts it if so.
    pub(super) fn strike(&mut self, fault: Fault, random: &mut fastrand::Rng) -> bool {
        let rate = self.rates[fault as usize];
        let happens = rate > 0 && random.u32(..CERTAIN) < rate;
        if happens {
            self.drawn += 1;
            self.count(fault);
        }
        happens
    }
}
