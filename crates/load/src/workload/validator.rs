//! [`Validator`]: custom messages and the validation of their answers, such as JSON with a number, one at
//! a time per connection.

use std::fmt::Debug;

/// Writes messages and validates answers. All workers share it, so its counters must be atomics.
pub trait Validator: Debug + Send + Sync {
    /// Writes message `sequence`, counted from 0, of a connection to `into`, which is empty.
    fn write(&self, connection: u64, sequence: u32, into: &mut Vec<u8>);

    /// Validates a message received while `sequence` was awaited, after `nanoseconds`.
    fn judge(&self, connection: u64, sequence: u32, data: &[u8], nanoseconds: u64)
    -> AnswerVerdict;

    /// Takes note of a message that was given up, or whose connection ended, after `nanoseconds`.
    fn missed(&self, _connection: u64, _nanoseconds: u64) {}
}

/// The relation of a received message to the last one sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AnswerVerdict {
    /// Its correct answer. The next message may follow.
    Right,
    /// Its answer, but invalid: counted as corrupted. The next message may follow.
    Wrong,
    /// Not its answer. The answer is still awaited.
    Foreign,
}
