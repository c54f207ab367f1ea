//! Bugs planted on purpose, so that the simulation can prove that it finds such. Without the
//! feature `planted` every question here is a constant no, and the compiler drops what it guards.
//! A program on the engine has its own list, and asks by the same function.

#[cfg(feature = "planted")]
use std::any::TypeId;
#[cfg(feature = "planted")]
use std::cell::Cell;
use std::fmt::Debug;

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

impl Plantable for Bug {
    const ALL: &'static [Bug] = &[
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

/// A list of such: the engine's own, or that of a program on it.
pub trait Plantable: Copy + PartialEq + Debug + 'static {
    /// Every bug of the list.
    const ALL: &'static [Self];
}

#[cfg(feature = "planted")]
thread_local! {
    /// Which list, and where in it.
    static PLANTED: Cell<Option<(TypeId, usize)>> = const { Cell::new(None) };
}

/// Plants a bug in this thread's workers, instead of the one before, whichever list that was of.
#[cfg(feature = "planted")]
pub fn plant<B: Plantable>(bug: Option<B>) {
    PLANTED.set(bug.and_then(place));
}

/// Whether the bug is planted.
#[cfg(feature = "planted")]
#[must_use]
pub fn on<B: Plantable>(bug: B) -> bool {
    PLANTED.get().is_some_and(|planted| place(bug) == Some(planted))
}

#[cfg(feature = "planted")]
fn place<B: Plantable>(bug: B) -> Option<(TypeId, usize)> {
    Some((TypeId::of::<B>(), B::ALL.iter().position(|other| *other == bug)?))
}

/// Whether the bug is planted: it is not.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn on<B: Plantable>(_: B) -> bool {
    false
}
