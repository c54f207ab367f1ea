//! Health checks of upstreams: what is probed, how often, and how many results change the state.
//!
//! The control plane probes ([`Watcher`], a thread with its own runtime); workers only read the
//! result. Failures that workers observe themselves (passive checks) are counted by
//! [`crate::balance::Upstream::failed`] and eject an upstream for a while.

mod error_shares;
mod probe;
mod threshold;
mod watcher;

pub use self::watcher::{WatchError, Watcher};

use std::fmt;
use std::str::FromStr;

/// The kind of a health check.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum CheckKind {
    /// No check: only failed connects count.
    #[default]
    Off,
    /// A TCP connect.
    Tcp,
    /// A GET of this path; passes with a status from 200 to 399.
    Http(Box<str>),
    /// A WebSocket handshake at this path; passes with a valid 101.
    WebSocket(Box<str>),
}

/// Status codes, as ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(Box<[(u16, u16)]>);

impl Statuses {
    /// Maximum number of ranges.
    const RANGES_MAX: usize = 16;

    pub(crate) fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|(from, to)| (*from..=*to).contains(&status))
    }
}

impl FromStr for Statuses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            let code = |text: &str| text.parse().ok().filter(|code| (100..=599).contains(code));
            code(from).zip(code(to)).filter(|(from, to)| from <= to)
        };
        let ranges: Option<Box<[(u16, u16)]>> = text.split(',').map(range).collect();
        let ranges = ranges.filter(|ranges| ranges.len() <= Self::RANGES_MAX);
        ranges.map(Statuses).ok_or_else(|| {
            format!("invalid statuses \"{text}\": expected 200 or 200-204,401, at most 16 ranges")
        })
    }
}

impl FromStr for CheckKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("invalid check \"{text}\": expected off, tcp, http:/health or websocket:/echo")
        };
        let path = |path: &str| -> Result<Box<str>, String> {
            let visible = path.bytes().all(|byte| byte.is_ascii_graphic());
            if path.starts_with('/') && visible { Ok(path.into()) } else { Err(wrong()) }
        };
        match text.split_once(':') {
            None if text == "off" => Ok(CheckKind::Off),
            None if text == "tcp" => Ok(CheckKind::Tcp),
            Some(("http", rest)) => Ok(CheckKind::Http(path(rest)?)),
            Some(("websocket", rest)) => Ok(CheckKind::WebSocket(path(rest)?)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for CheckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckKind::Off => f.write_str("off"),
            CheckKind::Tcp => f.write_str("tcp"),
            CheckKind::Http(path) => write!(f, "http:{path}"),
            CheckKind::WebSocket(path) => write!(f, "websocket:{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_lists_of_ranges() {
        let statuses: Statuses = "101, 400-403".parse().unwrap();
        let found: Vec<u16> = (0..=999).filter(|status| statuses.contains(*status)).collect();
        assert_eq!(found, [101, 400, 401, 402, 403]);
        let many = ["200"; 17].join(",");
        for text in ["", "99", "600", "204-200", "2xx", "200,", "200-", &many] {
            assert!(text.parse::<Statuses>().unwrap_err().contains("invalid statuses"), "{text}");
        }
    }

    #[test]
    fn checks_are_shown_as_written() {
        for text in ["off", "tcp", "http:/health?full=1", "websocket:/echo"] {
            assert_eq!(text.parse::<CheckKind>().unwrap().to_string(), text);
        }
        for text in ["", "on", "http", "http:", "http:health", "http:/a b", "ftp:/"] {
            assert!(text.parse::<CheckKind>().unwrap_err().contains("http:/health"), "{text}");
        }
    }
}
