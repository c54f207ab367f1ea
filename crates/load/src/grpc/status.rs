//! How a call ended: status codes with their names, and `grpc-message`, from trailers or instead of them
//! from HTTP. Sources: "gRPC status codes", "HTTP to gRPC status code mapping" and "HTTP2 Transport Mapping" of
//! gRPC's documentation.

use super::limits::STATUS_MESSAGE_BYTES;

/// A status code.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Code(pub u32);

/// The names, by number.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

impl Code {
    /// Not an error.
    pub const OK: Code = Code(0);
    /// Cancelled, usually by the client.
    pub const CANCELLED: Code = Code(1);
    /// An error without a code.
    pub const UNKNOWN: Code = Code(2);
    /// The deadline has passed.
    pub const DEADLINE_EXCEEDED: Code = Code(4);
    /// Not allowed.
    pub const PERMISSION_DENIED: Code = Code(7);
    /// A quota or a limit.
    pub const RESOURCE_EXHAUSTED: Code = Code(8);
    /// The server has no such method.
    pub const UNIMPLEMENTED: Code = Code(12);
    /// An invariant is broken, or the protocol violated.
    pub const INTERNAL: Code = Code(13);
    /// The server is not available; a retry may help.
    pub const UNAVAILABLE: Code = Code(14);
    /// Credentials are missing or invalid.
    pub const UNAUTHENTICATED: Code = Code(16);

    /// How many codes have a name: counters by code have one place more, for all others.
    pub const COUNT: usize = NAMES.len();

    /// Reads the value of `grpc-status`. Anything but a number is [`Code::UNKNOWN`].
    #[must_use]
    pub fn parse(value: &[u8]) -> Code {
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let text = std::str::from_utf8(value).ok().filter(|_| digits);
        text.and_then(|text| text.parse().ok()).map_or(Code::UNKNOWN, Code)
    }

    /// The code of this name or number, in any case.
    #[must_use]
    pub fn named(name: &str) -> Option<Code> {
        let number = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name));
        let number = number.and_then(|number| u32::try_from(number).ok());
        number.or_else(|| name.parse().ok()).map(Code)
    }

    /// Its name; `None` for numbers that have none.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.get(usize::try_from(self.0).ok()?).copied()
    }

    /// The code of an answer that has none, by its HTTP status.
    #[must_use]
    pub fn of_http(status: u16) -> Code {
        match status {
            400 => Code::INTERNAL,
            401 => Code::UNAUTHENTICATED,
            403 => Code::PERMISSION_DENIED,
            404 => Code::UNIMPLEMENTED,
            429 | 502 | 503 | 504 => Code::UNAVAILABLE,
            _ => Code::UNKNOWN,
        }
    }

    /// The code of a stream that was reset, by the error code of HTTP/2.
    #[must_use]
    pub fn of_reset(error: u32) -> Code {
        match error {
            0x7 => Code::UNAVAILABLE,
            0x8 => Code::CANCELLED,
            0xb => Code::RESOURCE_EXHAUSTED,
            0xc => Code::PERMISSION_DENIED,
            0x0..=0x4 | 0x6 | 0x9 | 0xa => Code::INTERNAL,
            _ => Code::UNKNOWN,
        }
    }
}

/// The name, or the number of a code without a name.
impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "status {}", self.0),
        }
    }
}

/// Decodes `grpc-message`, which is percent-encoded UTF-8. What is not is kept as it is, as the specification
/// demands; text beyond 4 KiB is left out.
#[must_use]
pub fn decode_message(value: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(value.len().min(STATUS_MESSAGE_BYTES));
    let mut rest = value;
    while let [first, after @ ..] = rest {
        if bytes.len() == STATUS_MESSAGE_BYTES {
            break;
        }
        match (first, hex_pair(after)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex_pair(text: &[u8]) -> Option<u8> {
    let [high, low, ..] = text else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_numbers() {
        assert_eq!(Code::parse(b"14"), Code::UNAVAILABLE);
        assert_eq!(Code::UNAVAILABLE.to_string(), "UNAVAILABLE");
        assert_eq!(Code::parse(b"0"), Code::OK);
        for invalid in [&b""[..], b"-1", b"+1", b"1x", b"99999999999", b"\xff"] {
            assert_eq!(Code::parse(invalid), Code::UNKNOWN, "{invalid:?}");
        }
        assert_eq!(Code::parse(b"77").to_string(), "status 77");
        for number in 0..17 {
            let code = Code(number);
            assert_eq!(Code::named(code.name().unwrap()), Some(code));
        }
        assert_eq!(Code::named("not_found"), Some(Code(5)));
        assert_eq!((Code::named("5"), Code::named("NO")), (Some(Code(5)), None));
    }

    #[test]
    fn answers_without_a_code_have_one() {
        for (status, code) in [(404, "UNIMPLEMENTED"), (503, "UNAVAILABLE"), (200, "UNKNOWN")] {
            assert_eq!(Code::of_http(status).to_string(), code);
        }
        for (error, code) in [(7, "UNAVAILABLE"), (8, "CANCELLED"), (2, "INTERNAL")] {
            assert_eq!(Code::of_reset(error).to_string(), code);
        }
    }

    #[test]
    fn messages_are_decoded_and_bounded() {
        for (value, message) in [
            (&b"plain text"[..], "plain text"),
            (b"50%25 of %e2%9c%93", "50% of \u{2713}"),
            (b"100%", "100%"),
            (b"%4", "%4"),
            (b"%zz%41", "%zzA"),
            (b"%ff", "\u{fffd}"),
        ] {
            assert_eq!(decode_message(value), message);
        }
        assert_eq!(decode_message(&[b'a'; 10_000]).len(), STATUS_MESSAGE_BYTES);
    }
}
