//! [`Malformed`]: every way a text can fail to be a command, a message or an identifier.

use core::error::Error;
use core::fmt;

/// What was wrong with a text.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Malformed {
    /// No JSON, or cut short, or with something behind it; found in this line and column.
    NotJson {
        /// From 1.
        line: usize,
        /// From 1; 0 where a line ended.
        column: usize,
    },
    /// JSON, but no object.
    NotAnObject,
    /// A key that means something here came twice.
    Repeated,
    /// `command` is none of ours.
    UnknownCommand,
    /// `type` is none of ours.
    UnknownType,
    /// This key is missing.
    Missing(&'static str),
    /// The value of this key is of another kind.
    Invalid(&'static str),
}

impl Malformed {
    /// The label it is counted under, in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Malformed::NotJson { .. } => "not_json",
            Malformed::NotAnObject => "not_an_object",
            Malformed::Repeated => "repeated_key",
            Malformed::UnknownCommand => "unknown_command",
            Malformed::UnknownType => "unknown_type",
            Malformed::Missing(_) => "missing_key",
            Malformed::Invalid(_) => "invalid_value",
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::NotJson { line, column } => {
                write!(f, "not JSON (line {line}, column {column})")
            }
            Malformed::NotAnObject => f.write_str("not a JSON object"),
            Malformed::Repeated => f.write_str("a key comes twice"),
            Malformed::UnknownCommand => f.write_str("unknown command"),
            Malformed::UnknownType => f.write_str("unknown type"),
            Malformed::Missing(key) => write!(f, "{key} is missing"),
            Malformed::Invalid(key) => write!(f, "{key} is not what it should be"),
        }
    }
}

impl Error for Malformed {}
