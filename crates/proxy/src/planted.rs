//! Bugs planted on purpose, so that the simulation of the relay can prove that it finds such. Without
//! the feature `planted` every question here is a constant no, and the compiler drops what it guards.
//! Those of the engine are in its own list.

/// A fault somebody might write, each a line where [`on`] is asked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Bug {
    /// One side of a tunnel has ended, and the other is not told.
    EndKept,
    /// A side that was stopped for a slow one is never read again.
    SideForgotten,
    /// Bytes that came before the 101 are left where they were held.
    EarlyBytesLost,
    /// Bytes that came with the 101 are dropped.
    LateBytesLost,
    /// Any 101 opens a tunnel, whatever it answers.
    AcceptUnchecked,
    /// A whole tunnel's other side stays open when one side breaks.
    OtherSideKept,
    /// The place at an upstream is not given back.
    PlaceKept,
    /// What was answered in part is asked once more.
    AskedTwice,
    /// A connection that saw an upgrade is used for another request.
    UpgradeReused,
    /// An upstream goes on answering whom nobody waits for.
    AnswerToNobody,
    /// Bytes are counted for the wrong direction.
    WrongDirection,
    /// A chunk's length is left out where the client reads chunks.
    ChunkUnframed,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Bug; 12] = [
        Bug::EndKept,
        Bug::SideForgotten,
        Bug::EarlyBytesLost,
        Bug::LateBytesLost,
        Bug::AcceptUnchecked,
        Bug::OtherSideKept,
        Bug::PlaceKept,
        Bug::AskedTwice,
        Bug::UpgradeReused,
        Bug::AnswerToNobody,
        Bug::WrongDirection,
        Bug::ChunkUnframed,
    ];
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread's relays, instead of the one before.
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
