//! [`Address`]: the address of a listener, TCP or a UNIX socket.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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

const EXPECTED: &str =
    "expected IP:PORT such as 127.0.0.1:8080, or 0.0.0.0:8080 for all interfaces, or unix:/PATH";

/// `IP:PORT` or `unix:/PATH`. A port alone, `8080` or `:8080`, is on 127.0.0.1, as is `localhost`; `*` is
/// 0.0.0.0.
impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: needs a path: unix:/run/standfast.sock".to_owned());
            }
            return Ok(Address::Unix(path.into()));
        }
        if let Ok(address) = text.parse() {
            return Ok(Address::Tcp(address));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        if let Some(("http" | "https" | "ws" | "wss", rest)) = text.split_once("://") {
            let rest = rest.trim_end_matches('/');
            return Err(format!("expected an address without scheme and path: {rest}"));
        }
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(ip)) => return Err(format!("expected a port, too: {ip}:8080")),
            Ok(IpAddr::V6(ip)) => return Err(format!("expected a port, too: [{ip}]:8080")),
            Err(_) => {}
        }
        let Ok(port) = port.parse() else { return Err(EXPECTED.to_owned()) };
        let ip = match host {
            "" | "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            _ => return Err(EXPECTED.to_owned()),
        };
        Ok(Address::Tcp(SocketAddr::new(ip, port)))
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
        for text in ["", "localhost", "unix:", "host:80", ":", ":99999", "::1", "1::1:80"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn forms_that_people_type_are_taken_or_corrected() {
        for (text, address) in [
            ("8080", "127.0.0.1:8080"),
            (":8080", "127.0.0.1:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("*:8080", "0.0.0.0:8080"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), address);
        }
        for (text, hint) in [
            ("127.0.0.1", "127.0.0.1:8080"),
            ("::1", "[::1]:8080"),
            ("http://127.0.0.1:8080/", "scheme and path: 127.0.0.1:8080"),
            ("shop.example:80", "0.0.0.0:8080 for all interfaces"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.ends_with(hint) || error.contains(hint), "{error}");
        }
    }
}
