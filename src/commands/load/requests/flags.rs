//! The flags of `standfast load` for requests only.

use std::ops::RangeInclusive;

use load::scenario::Check;
use load::stages::Stage;

use super::checks;
use crate::commands::load::flags::{Bytes, content, stage};
use crate::units;

const HEADING: &str = "Requests (http:// https:// tcp:// tls://)";

/// Content, pacing and number of requests.
#[derive(clap::Args, Debug)]
pub(crate) struct Flags {
    /// Total number of requests; with --duration the run ends at whichever comes first
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = HEADING)]
    pub(super) requests: Option<u64>,

    /// Request method [default: GET, with --data POST]
    #[arg(short = 'X', long, value_name = "METHOD", value_parser = method, help_heading = HEADING)]
    pub(super) method: Option<String>,

    /// Request body, or @FILE. Over tcp:// the bytes to send, with the escapes \r \n \t \0 \\ \xNN
    #[arg(short, long, value_name = "TEXT", value_parser = content, help_heading = HEADING)]
    pub(super) data: Option<Bytes>,

    /// Ramp the rate, as --stages does connections: 30s:5k,1m:5k,0:100,1m:100
    #[arg(long, value_name = "TIME:RATE,…", value_delimiter = ',', value_parser = stage,
        conflicts_with_all = ["rate", "stages"], help_heading = HEADING)]
    pub(super) rates: Vec<Stage>,

    /// Open a new connection for each request
    #[arg(long, help_heading = HEADING)]
    pub(super) new_connections: bool,

    /// Requests in flight per connection (HTTP pipelining), at most 64
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = HEADING,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) pipeline: u32,

    /// Use HTTP/2: over https:// and wss:// by ALPN, over http:// and ws:// with prior knowledge
    #[arg(long, help_heading = HEADING, conflicts_with_all = ["pipeline", "http1.0"])]
    pub(in crate::commands::load) http2: bool,

    /// Requests in flight, or WebSockets, per connection, of --http2 and grpc://
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = HEADING,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(in crate::commands::load) streams: u32,

    /// Redirects to follow per request; 0 counts a redirect as an answer
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = HEADING,
        value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(in crate::commands::load) redirects: u32,

    /// Statuses that count as success: 2xx,304 or 200-204, of calls OK,NOT_FOUND [default: below 400, OK]
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', help_heading = HEADING,
        value_parser = statuses)]
    pub(super) accept: Vec<RangeInclusive<u16>>,

    /// Check each answer: 'json $.ok is true', 'contains TEXT', 'header NAME matches REGEX', 'regex REGEX',
    /// 'size <64KiB' or 'latency <250ms'; repeatable
    #[arg(long, value_name = "RULE", help_heading = HEADING, value_parser = checks::check)]
    pub(in crate::commands::load) check: Vec<Check>,

    /// Over tcp://: the expected answer, with the escapes of --data [default: any]
    #[arg(long, value_name = "TEXT", value_parser = escaped, help_heading = HEADING,
        conflicts_with_all = ["expect_regex", "expect_length"])]
    pub(super) expect: Option<Bytes>,

    /// Over tcp://: regular expression that matches the end of each answer
    #[arg(long, value_name = "REGEX", help_heading = HEADING, conflicts_with = "expect_length")]
    pub(super) expect_regex: Option<String>,

    /// Over tcp://: answer size in bytes, or its length prefix: u8, u16be, u16le, u32be, u32le, u64be
    /// or u64le, followed by + if the length includes the prefix
    #[arg(long, value_name = "LENGTH", help_heading = HEADING)]
    pub(super) expect_length: Option<String>,

    /// Use HTTP/1.0, which closes the connection after each answer
    #[arg(id = "http1.0", long = "http1.0", help_heading = HEADING)]
    pub(super) http10: bool,
}

/// Statuses of HTTP or, by name or number, of gRPC.
fn statuses(text: &str) -> Result<RangeInclusive<u16>, String> {
    let is_code =
        text.len() < 3 || text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if is_code && !text.ends_with("xx") {
        return load::grpc::accepted_code(text);
    }
    load::scenario::statuses(text)
}

fn method(text: &str) -> Result<String, String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let usable = !text.is_empty() && text.bytes().all(token);
    usable
        .then(|| text.to_owned())
        .ok_or_else(|| format!("invalid method {text:?}: expected a token such as GET"))
}

fn escaped(text: &str) -> Result<Bytes, String> {
    unescape(text.as_bytes()).map(Bytes)
}

/// Expands the escapes `\r`, `\n`, `\t`, `\0`, `\\` and `\xNN`.
///
/// # Errors
/// An unknown or incomplete escape.
pub(super) fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (sign, used) = match rest {
            [b'r', ..] => (b'\r', 1),
            [b'n', ..] => (b'\n', 1),
            [b't', ..] => (b'\t', 1),
            [b'0', ..] => (0, 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', high, low, ..] => (hex(*high, *low)?, 3),
            _ => return Err("invalid escape: expected r, n, t, 0, \\ or xNN after \\".to_owned()),
        };
        bytes.push(sign);
        rest = rest.get(used..).unwrap_or_default();
    }
    Ok(bytes)
}

fn hex(high: u8, low: u8) -> Result<u8, String> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let number = digit(high).zip(digit(low)).map(|(high, low)| (high * 16 + low) as u8);
    number.ok_or_else(|| "invalid escape: expected two hexadecimal digits after \\x".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_expanded() {
        assert_eq!(unescape(br"PING\r\n\x00\xfF\\\t\0a"), Ok(b"PING\r\n\x00\xff\\\t\0a".to_vec()));
        for wrong in [r"\", r"\q", r"\x1", r"\xgg"] {
            assert!(unescape(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
