//! Bugs planted on purpose, so that the simulation can prove that it finds such. Without the
//! feature `planted` every question here is a constant no, and the compiler drops what it guards.

/// A fault somebody might write, each a line where [`on`] is asked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A queue is not watched for room after a short send.
    RoomForgotten,
    /// A name is taken for whoever has the slot now.
    GenerationIgnored,
    /// A deadline is taken for whoever has the slot now.
    DeadlineOfAnother,
    /// A single byte that a read leaves of the next frame is thrown away.
    TornTailLost,
    /// The wake-up is marked as seen only after the letters were worked on.
    WakeUpLost,
    /// A listener that rested for lack of descriptors is not watched again.
    ListenerForgotten,
    /// A full worker keeps the listener that it cannot accept from.
    ListenerKept,
    /// What is left of a header and payload cut short is counted without the header.
    CutMiscounted,
    /// A subscriber moved to a free place is passed by in the round under way.
    MovedMemberSkipped,
    /// A request head that is not whole in time is given as much time again.
    HeadProlonged,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Bug; 10] = [
        Bug::RoomForgotten,
        Bug::GenerationIgnored,
        Bug::DeadlineOfAnother,
        Bug::TornTailLost,
        Bug::WakeUpLost,
        Bug::ListenerForgotten,
        Bug::ListenerKept,
        Bug::CutMiscounted,
        Bug::MovedMemberSkipped,
        Bug::HeadProlonged,
    ];
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread's workers, instead of the one before.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether the bug is planted.
#[cfg(feature = "planted")]
#[must_use]
pub fn on(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether the bug is planted: it is not.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn on(_: Bug) -> bool {
    false
}
