//! [`Malformed`]: why a text is not a command, a message or an identifier.

use core::error::Error;
use core::fmt;

/// What is wrong with a text.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Malformed {
    /// Not JSON, truncated, or with trailing characters, at this line and column.
    NotJson {
        /// From 1.
        line: usize,
        /// From 1; 0 at the end of a line.
        column: usize,
    },
    /// Not MessagePack, truncated, or with trailing bytes, at this byte.
    NotMsgpack {
        /// From 0.
        byte: usize,
    },
    /// Not a message in Protobuf, or truncated, at this byte of the message or of a part of it.
    NotProtobuf {
        /// From 0.
        byte: usize,
    },
    /// Well-formed, but it has no counterpart in the other encoding.
    Unsupported(&'static str),
    /// JSON, but not an object.
    NotAnObject,
    /// A known key is repeated.
    Repeated,
    /// `command` is unknown.
    UnknownCommand,
    /// `type` is unknown.
    UnknownType,
    /// This key is missing.
    Missing(&'static str),
    /// The value of this key has the wrong type, is out of range, or is not valid Unicode.
    Invalid(&'static str),
}

impl Malformed {
    /// The name for counters, in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Malformed::NotJson { .. } => "not_json",
            Malformed::NotMsgpack { .. } => "not_msgpack",
            Malformed::NotProtobuf { .. } => "not_protobuf",
            Malformed::Unsupported(_) => "unsupported",
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
            Malformed::NotMsgpack { byte } => write!(f, "not MessagePack (byte {byte})"),
            Malformed::NotProtobuf { byte } => write!(f, "not Protobuf (byte {byte})"),
            Malformed::Unsupported(what) => write!(f, "{what} is not supported"),
            Malformed::NotAnObject => f.write_str("not a JSON object"),
            Malformed::Repeated => f.write_str("repeated key"),
            Malformed::UnknownCommand => f.write_str("unknown command"),
            Malformed::UnknownType => f.write_str("unknown type"),
            Malformed::Missing(key) => write!(f, "{key} is missing"),
            Malformed::Invalid(key) => write!(f, "{key} has an invalid value"),
        }
    }
}

impl Error for Malformed {}
