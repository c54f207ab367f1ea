//! [`Dialogue`]: messages that the caller makes and judges, such as JSON with a number in it, one
//! at a time on each connection.

use std::fmt::Debug;

/// Makes messages and judges answers. All workers share it, so what it counts it counts in atomics.
pub trait Dialogue: Debug + Send + Sync {
    /// Writes message `sequence`, counted from 0, of a connection to `into`, which is empty.
    fn write(&self, connection: u64, sequence: u32, into: &mut Vec<u8>);

    /// What a message is that came while `sequence` was awaited, after so many nanoseconds.
    fn judge(&self, connection: u64, sequence: u32, data: &[u8], nanoseconds: u64) -> Verdict;
}

/// What a received message is to the one that was sent last.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Its answer. The next message may follow.
    Right,
    /// Its answer, but not what it should be: counted as corrupted. The next message may follow.
    Wrong,
    /// None of its answers: what somebody else said. It is still awaited.
    Foreign,
}
