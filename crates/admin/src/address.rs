//! [`Address`]: the address of a listener, TCP or a UNIX socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Address and port; port 0 takes a free one.
    Tcp(SocketAddr),
    /// Path of a UNIX socket with mode 0600.
    Unix(PathBuf),
}

impl Address {
    /// The path of a UNIX socket.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Address::Tcp(_) => None,
            Address::Unix(path) => Some(path),
        }
    }

    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix(_) => true,
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: needs a path: unix:/run/standfast.sock".to_owned());
            }
            return Ok(Address::Unix(path.into()));
        }
        text.parse()
            .map(Address::Tcp)
            .map_err(|_| "expected IP:PORT or unix:/path/to/socket".to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_displayed_as_they_are_parsed() {
        for text in ["127.0.0.1:8090", "[::1]:0", "unix:/run/a.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "localhost", "unix:", "127.0.0.1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
