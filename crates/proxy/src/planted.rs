//! Bugs planted in the relay on purpose, so that its simulation can prove that it finds such. How is
//! with the engine's own list, [`engine::planted`].

use engine::planted::Plantable;
pub(crate) use engine::planted::on;

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

impl Plantable for Bug {
    const ALL: &'static [Bug] = &[
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
