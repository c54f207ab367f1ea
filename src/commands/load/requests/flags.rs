//! The flags of `standfast load` that only requests have, and which flags they do not share.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;
use load::stages::Stage;

use crate::commands::load::flags::{Bytes, content, stage};
use crate::units;

const HEADING: &str = "Requests (http:// https:// tcp:// tls://)";

/// What is asked, how, and when it is enough.
#[derive(clap::Args, Debug)]
pub(crate) struct Flags {
    /// Requests in all; with --duration too, whichever ends first
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = HEADING)]
    pub(super) requests: Option<u64>,

    /// The method [default: GET, with --data POST]
    #[arg(short = 'X', long, value_name = "METHOD", value_parser = method, help_heading = HEADING)]
    pub(super) method: Option<String>,

    /// The body, or @FILE. Over tcp:// what is sent: there \r \n \t \0 \\ and \xNN stand for bytes
    #[arg(short, long, value_name = "TEXT", value_parser = content, help_heading = HEADING)]
    pub(super) data: Option<Bytes>,

    /// Send so long first, and count it nowhere
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration,
        help_heading = HEADING)]
    pub(in crate::commands::load) warm_up: Duration,

    /// A rate that goes up and down, as --stages has connections: 30s:5k,1m:5k,0:100,1m:100
    #[arg(long, value_name = "TIME:RATE,…", value_delimiter = ',', value_parser = stage,
        conflicts_with_all = ["rate", "stages"], help_heading = HEADING)]
    pub(super) rates: Vec<Stage>,

    /// A new connection for each request
    #[arg(long, help_heading = HEADING)]
    pub(super) new_connections: bool,

    /// Requests a connection sends before the first is answered, at most 64
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = HEADING,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) pipeline: u32,

    /// Redirects to follow for one request; without it they are answers like others
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = HEADING,
        value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(in crate::commands::load) redirects: u32,

    /// Statuses that are no failure, such as 2xx,304 or 200-204 [default: all below 400]
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', help_heading = HEADING,
        value_parser = load::scenario::statuses)]
    pub(super) accept: Vec<RangeInclusive<u16>>,

    /// Over tcp://: what each answer is, with the same signs as --data [default: anything]
    #[arg(long, value_name = "TEXT", value_parser = escaped, help_heading = HEADING,
        conflicts_with_all = ["expect_regex", "expect_length"])]
    pub(super) expect: Option<Bytes>,

    /// Over tcp://: an expression that each answer ends with
    #[arg(long, value_name = "REGEX", help_heading = HEADING, conflicts_with = "expect_length")]
    pub(super) expect_regex: Option<String>,

    /// Over tcp://: each answer's bytes, or the length in front of it: u8, u16be, u16le, u32be, u32le,
    /// u64be or u64le, with a + where the length counts itself
    #[arg(long, value_name = "LENGTH", help_heading = HEADING)]
    pub(super) expect_length: Option<String>,

    /// Ask by HTTP/1.0, whose connections end with their answer
    #[arg(id = "http1.0", long = "http1.0", help_heading = HEADING)]
    pub(super) http10: bool,
}

/// Flags that mean nothing where requests are sent, by their names in [`crate::commands::load::Args`].
const OF_SOCKETS: [&str; 30] = [
    "connect",
    "retry",
    "backoff",
    "reconnect",
    "hold",
    "heartbeat",
    "echo",
    "size",
    "message",
    "binary",
    "answer",
    "think",
    "messages",
    "messages_per_connection",
    "fanout",
    "publishers",
    "publish_url",
    "publish_by_socket",
    "publish_key",
    "publish_header",
    "topic",
    "publish_body",
    "late_after",
    "channel",
    "churn",
    "cable_extended",
    "subprotocol",
    "compression",
    "compress_above",
    "control",
];

/// And those that mean nothing where WebSockets are opened.
const OF_REQUESTS: [&str; 13] = [
    "requests",
    "method",
    "data",
    "warm_up",
    "rates",
    "new_connections",
    "pipeline",
    "redirects",
    "accept",
    "expect",
    "expect_regex",
    "expect_length",
    "http1.0",
];

/// Names a flag that was given and means nothing with these URLs.
///
/// # Errors
/// The flag, and where it belongs.
pub(in crate::commands::load) fn check(flags: &ArgMatches, requests: bool) -> Result<()> {
    let (strange, where_to) = match requests {
        true => (&OF_SOCKETS[..], "ws://, wss:// and cable:// URLs"),
        false => (&OF_REQUESTS[..], "http://, https://, tcp:// and tls:// URLs"),
    };
    let given = |id: &&&str| flags.value_source(id) == Some(ValueSource::CommandLine);
    if let Some(id) = strange.iter().find(given) {
        bail!("--{} is for {where_to}", id.replace('_', "-"));
    }
    Ok(())
}

fn method(text: &str) -> Result<String, String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let usable = !text.is_empty() && text.bytes().all(token);
    usable.then(|| text.to_owned()).ok_or_else(|| format!("{text:?} is no method: write GET"))
}

fn escaped(text: &str) -> Result<Bytes, String> {
    unescape(text.as_bytes()).map(Bytes)
}

/// The bytes that a text with `\r`, `\n`, `\t`, `\0`, `\\` and `\xNN` stands for.
///
/// # Errors
/// A sign that is none of these.
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
            _ => return Err("after \\ comes r, n, t, 0, \\ or xNN".to_owned()),
        };
        bytes.push(sign);
        rest = rest.get(used..).unwrap_or_default();
    }
    Ok(bytes)
}

fn hex(high: u8, low: u8) -> Result<u8, String> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let number = digit(high).zip(digit(low)).map(|(high, low)| (high * 16 + low) as u8);
    number.ok_or_else(|| "after \\x come two hexadecimal digits".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;
    use crate::commands::load::Args;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        #[allow(dead_code, reason = "its matches are looked at")]
        args: Args,
    }

    #[test]
    fn every_flag_that_is_sorted_out_is_a_flag() {
        let command: Command = Cli::command();
        for id in OF_SOCKETS.iter().chain(&OF_REQUESTS) {
            assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
        let own: Vec<_> = command
            .get_arguments()
            .filter(|arg| arg.get_help_heading() == Some(HEADING))
            .map(|arg| arg.get_id().to_string())
            .collect();
        assert_eq!(own, OF_REQUESTS);
    }

    #[test]
    fn a_flag_of_the_others_is_named() {
        let of = |line: &str, requests| {
            let words = std::iter::once("load").chain(line.split(' '));
            check(&Cli::command().try_get_matches_from(words).unwrap(), requests)
        };
        let error = of("http://a --hold 1s", true).unwrap_err().to_string();
        assert!(error.contains("--hold is for ws://"), "{error}");
        let error = of("ws://a --warm-up 1s", false).unwrap_err().to_string();
        assert!(error.contains("--warm-up is for http://"), "{error}");
        assert!(of("http://a --requests 5 --rate 1k", true).is_ok());
        assert!(of("ws://a --hold 5s --rate 1k", false).is_ok());
    }

    #[test]
    fn signs_stand_for_bytes() {
        assert_eq!(unescape(br"PING\r\n\x00\xfF\\\t\0a"), Ok(b"PING\r\n\x00\xff\\\t\0a".to_vec()));
        for wrong in [r"\", r"\q", r"\x1", r"\xgg"] {
            assert!(unescape(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
