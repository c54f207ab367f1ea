//! [`AllowedHost`]: a name by which clients may address the server (`--allow-host`).
//!
//! A page of any site can reach a server on a private address by letting the site's own name resolve to
//! that address (DNS rebinding). The browser then takes the two for the same origin, but its requests
//! still carry the site's name in Host. An address in Host cannot be rebound.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::origin::host_and_port;

/// A name, or all names below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHost {
    /// `live.example.com`, with any port.
    Exact(Box<str>),
    /// `*.example.com`: one or more labels before this name.
    Subdomains(Box<str>),
}

impl AllowedHost {
    /// Whether a request to this authority (a name in lower case, without port) is allowed.
    pub(crate) fn matches(&self, host: &str) -> bool {
        match self {
            AllowedHost::Exact(name) => host == &**name,
            AllowedHost::Subdomains(parent) => {
                let labels = host.strip_suffix(&**parent).and_then(|rest| rest.strip_suffix('.'));
                labels.is_some_and(|labels| !labels.is_empty())
            }
        }
    }
}

/// Whether the host of an authority is an IP address.
pub(crate) fn is_address(host: &str) -> bool {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host).parse::<IpAddr>().is_ok()
}

/// Whether only machines of the same network reach this address, or which one it is depends on the
/// machine: private (RFC 1918, RFC 4193), shared (RFC 6598), link-local, loopback or unspecified.
pub(crate) fn may_be_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            shared
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_loopback()
                || v4.is_unspecified()
        }
        IpAddr::V6(v6) => {
            v6.is_unique_local()
                || v6.is_unicast_link_local()
                || v6 == Ipv6Addr::LOCALHOST
                || v6.is_unspecified()
        }
    }
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_lowercase();
        let (below, name) = match name.strip_prefix("*.") {
            Some(parent) => (true, parent),
            None => (false, &*name),
        };
        if is_address(name) {
            return Err("addresses are always allowed: give the names only".to_owned());
        }
        match host_and_port(name) {
            Some((host, None)) if below => Ok(AllowedHost::Subdomains(host.into())),
            Some((host, None)) => Ok(AllowedHost::Exact(host.into())),
            _ => Err("expected a name without port: live.example.com or *.example.com".to_owned()),
        }
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllowedHost::Exact(name) => f.write_str(name),
            AllowedHost::Subdomains(parent) => write!(f, "*.{parent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_subdomains_match() {
        let matches = |allowed: &str, host| allowed.parse::<AllowedHost>().unwrap().matches(host);
        assert!(matches("Live.example.com", "live.example.com"));
        assert!(!matches("live.example.com", "a.live.example.com"));
        assert!(matches("*.example.com", "a.b.example.com"));
        for host in ["example.com", ".example.com", "evilexample.com", "a.example.com.evil.test"] {
            assert!(!matches("*.example.com", host), "{host}");
        }
        for wrong in ["", "*", "*.", "a:80", "http://a", "a/b", "10.0.0.1", "[::1]", "::1", "a b"] {
            assert!(wrong.parse::<AllowedHost>().is_err(), "{wrong}");
        }
        for right in ["a", "live.example.com", "*.example.com"] {
            assert_eq!(right.parse::<AllowedHost>().unwrap().to_string(), right);
        }
    }

    #[test]
    fn private_addresses_are_told_from_public_ones() {
        for (address, private) in [
            ("10.1.2.3", true),
            ("172.16.0.1", true),
            ("192.168.1.5", true),
            ("169.254.1.1", true),
            ("100.64.0.1", true),
            ("127.0.0.1", true),
            ("0.0.0.0", true),
            ("::", true),
            ("::1", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("::ffff:192.168.1.5", true),
            ("100.128.0.1", false),
            ("172.32.0.1", false),
            ("203.0.113.5", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(may_be_private(address.parse().unwrap()), private, "{address}");
        }
    }
}
