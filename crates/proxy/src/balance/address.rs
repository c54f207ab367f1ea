//! Addresses of upstreams: [`Endpoint`] as configured, [`UpstreamAddress`] as connected to. A name can
//! resolve to several addresses, and to others later.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Longest path of a UNIX socket: `sun_path` has 108 bytes and ends with NUL (unix(7)).
const PATH_BYTES_MAX: usize = 107;

/// Where to connect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UpstreamAddress {
    /// Address and port.
    Tcp(SocketAddr),
    /// A UNIX socket.
    Unix(Arc<Path>),
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamAddress::Tcp(address) => address.fmt(f),
            UpstreamAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The location of an upstream as configured: address and port, name and port, or `unix:/PATH`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// An address, which needs no DNS.
    Address(UpstreamAddress),
    /// A name and a port; the name is resolved periodically.
    Name(Box<str>, u16),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: needs a path, as in unix:/run/app.sock".to_owned());
            }
            if path.contains('\0') {
                return Err("invalid upstream: the path contains a NUL byte".to_owned());
            }
            if path.len() > PATH_BYTES_MAX {
                return Err(format!(
                    "invalid upstream: the path of a UNIX socket has at most {PATH_BYTES_MAX} \
                     bytes, not {}",
                    path.len()
                ));
            }
            return Ok(Endpoint::Address(UpstreamAddress::Unix(Path::new(path).into())));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            if address.port() == 0 {
                return Err(format!("invalid upstream \"{text}\": the port must be 1 to 65535"));
            }
            return Ok(Endpoint::Address(UpstreamAddress::Tcp(address)));
        }
        let named = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match named {
            Some((host, port)) if is_name(host) && port > 0 => {
                // Names are compared without regard to case (RFC 4343).
                Ok(Endpoint::Name(host.to_ascii_lowercase().into(), port))
            }
            _ => Err(format!(
                "invalid upstream \"{text}\": expected 10.0.0.1:8080, app.internal:8080 or \
                 unix:/run/app.sock"
            )),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Address(address) => address.fmt(f),
            Endpoint::Name(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// Whether a text is a valid host name (RFC 1123 section 2.1, plus the underscore that some use).
fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        let right = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.len() <= 63 && label.bytes().all(right)
    };
    let digits = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    // Digits and dots alone are a mistyped address.
    text.len() <= 253 && text.split('.').all(label) && !text.bytes().all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_shown_as_written() {
        for text in ["10.0.0.1:80", "[::1]:8080", "unix:/run/a.sock", "app.internal:8080", "app:1"]
        {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert_eq!("App.Internal:1".parse::<Endpoint>().unwrap().to_string(), "app.internal:1");
        for text in
            ["", "app", "app:", "app:0", "app:70000", "unix:", "1.2.3:80", "a b:80", "a..b:1"]
        {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
        for text in ["10.0.0.1:0", "[::1]:0", "unix:/a\0b", &format!("unix:{}", "x".repeat(108))] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
        assert!(format!("unix:{}", "x".repeat(107)).parse::<Endpoint>().is_ok());
    }
}
