//! Which web pages may connect (RFC 6455 section 10.2): a browser names the page's origin, and
//! nothing else stops a page of one site from speaking to the server of another.
//!
//! Clients that send no Origin are no browsers and are not concerned.

use std::fmt;
use std::str::FromStr;

use admin::means_this_machine;

/// An origin that is allowed: `https://example.com`, `null`, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(Box<str>);

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let origin = text.strip_suffix('/').unwrap_or(text).to_ascii_lowercase();
        let well_formed = matches!(&*origin, "*" | "null")
            || authority(&origin).is_some_and(|host| !host.is_empty() && !host.contains('/'));
        if well_formed {
            return Ok(Origin(origin.into()));
        }
        Err(format!("\"{text}\" is no origin: write it as https://example.com, null or *"))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The origins a server admits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// Any page of this machine and no other: all listeners are loopback. A page of the same
    /// origin does not count then, because a name that its owner points at 127.0.0.1 would make
    /// any site one of ours (DNS rebinding).
    pub(crate) loopback: bool,
    pub(crate) allowed: Vec<Origin>,
}

impl Origins {
    /// Whether a page of `origin` may connect to the server it calls `host`.
    pub(crate) fn admit(&self, origin: &[u8], host: Option<&[u8]>) -> bool {
        let Ok(origin) = std::str::from_utf8(origin) else { return false };
        let named = |allowed: &Origin| &*allowed.0 == "*" || allowed.0.eq_ignore_ascii_case(origin);
        if self.allowed.iter().any(named) {
            return true;
        }
        let Some(authority) = authority(origin) else { return false };
        if self.loopback {
            return means_this_machine(authority);
        }
        let own = host.and_then(|host| std::str::from_utf8(host).ok());
        own.is_some_and(|own| without_port(own, origin) == without_port(authority, origin))
    }
}

/// Host and port of an origin.
fn authority(origin: &str) -> Option<&str> {
    let (scheme, authority) = origin.split_once("://")?;
    (!scheme.is_empty()).then_some(authority)
}

/// Host and port in lower case, without the port that the origin's scheme implies.
fn without_port(authority: &str, origin: &str) -> String {
    let implied = match origin.get(..6) {
        Some(start) if start.eq_ignore_ascii_case("https:") => ":443",
        _ => ":80",
    };
    authority.strip_suffix(implied).unwrap_or(authority).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_and_of_the_same_origin_are_admitted() {
        let local = Origins { loopback: true, allowed: Vec::new() };
        let remote = Origins {
            loopback: false,
            allowed: vec!["https://App.example/".parse().unwrap(), "null".parse().unwrap()],
        };
        let cases = [
            ("http://localhost:3000", "127.0.0.1:8080", true, false),
            ("http://app.localhost", "127.0.0.1:8080", true, false),
            ("http://127.0.0.1:9", "127.0.0.1:8080", true, false),
            ("http://[::1]:9", "[::1]:8080", true, false),
            ("http://127.0.0.1.evil.example", "127.0.0.1:8080", false, false),
            ("http://localhost.evil.example", "127.0.0.1:8080", false, false),
            ("https://chat.example", "chat.example", false, true),
            ("https://chat.example", "Chat.example:443", false, true),
            ("http://chat.example:80", "chat.example", false, true),
            ("https://chat.example:8443", "chat.example", false, false),
            ("https://app.example", "chat.example", false, true),
            ("null", "chat.example", false, true),
            ("garbage", "chat.example", false, false),
        ];
        for (origin, host, locally, remotely) in cases {
            let host = Some(host.as_bytes());
            assert_eq!(local.admit(origin.as_bytes(), host), locally, "local {origin}");
            assert_eq!(remote.admit(origin.as_bytes(), host), remotely, "remote {origin}");
        }
        let all = Origins { loopback: false, allowed: vec!["*".parse().unwrap()] };
        assert!(all.admit(b"https://anywhere.example", None));
    }

    #[test]
    fn only_origins_can_be_allowed() {
        for wrong in ["example.com", "https://", "https://a/path", ""] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
    }
}
