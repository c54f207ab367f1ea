//! The check of Origin and Host (RFC 6455 section 10.2, RFC 6454): a browser sends the page's origin,
//! and nothing else prevents a page of one site from connecting to the server of another.
//!
//! Clients without Origin are not browsers and pass. The admin listener has its own check (`admin`).

use std::fmt;
use std::str::FromStr;

use admin::means_this_machine;

use crate::allowed_host::{AllowedHost, is_address};

/// An allowed origin: exactly one, all subdomains of one, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `*`: any origin.
    Any,
    /// `https://example.com`: scheme, host and port.
    Exact(OriginTuple),
    /// `https://*.example.com`: one or more labels before this host.
    Subdomains(OriginTuple),
}

/// Scheme, host and port of an origin (RFC 6454 section 4), in lower case, with the scheme's default port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginTuple {
    scheme: Box<str>,
    host: Box<str>,
    /// 0 if neither the origin nor its scheme has one.
    port: u16,
}

impl OriginTuple {
    /// Parses an origin as browsers send it; `None` for `null` and anything else.
    fn parse(text: &str) -> Option<OriginTuple> {
        let text = text.to_ascii_lowercase();
        let (scheme, authority) = text.split_once("://")?;
        let mut letters = scheme.bytes();
        let named = letters.next().is_some_and(|first| first.is_ascii_lowercase())
            && letters.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let (host, port) = host_and_port(authority)?;
        let port = port.or_else(|| implied_port(scheme)).unwrap_or(0);
        named.then(|| OriginTuple { scheme: scheme.into(), host: host.into(), port })
    }

    fn is_subdomain_of(&self, parent: &OriginTuple) -> bool {
        let labels = self.host.strip_suffix(&*parent.host).and_then(|rest| rest.strip_suffix('.'));
        self.scheme == parent.scheme
            && self.port == parent.port
            && labels.is_some_and(|labels| !labels.is_empty())
    }
}

/// Splits an authority. A name has letters, digits, `-`, `_` and single dots between labels; an IPv6
/// address is in brackets.
pub(crate) fn host_and_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let end = match authority.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at_checked(end)?;
    let port = match rest.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Some(digits.parse().ok()?),
        Some(_) => return None,
        None if rest.is_empty() => None,
        None => return None,
    };
    let is_name = |host: &str| {
        let label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        host.strip_suffix('.').unwrap_or(host).split('.').all(label)
    };
    let is_address = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
    };
    (is_name(host) || is_address(host)).then_some((host, port))
}

fn implied_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Origin::Any);
        }
        if text.eq_ignore_ascii_case("null") {
            return Err("the origin null cannot be allowed: every sandboxed page and local file \
                        has it"
                .to_owned());
        }
        let no_origin =
            || "expected an origin: https://example.com, https://*.example.com or *".to_owned();
        let text = text.strip_suffix('/').unwrap_or(text);
        let Some((scheme, below)) = text.split_once("://*.") else {
            return OriginTuple::parse(text).map(Origin::Exact).ok_or_else(no_origin);
        };
        let parent = OriginTuple::parse(&format!("{scheme}://{below}")).ok_or_else(no_origin)?;
        let last = parent.host.rsplit('.').next().unwrap_or_default();
        if !parent.host.contains('.') || last.bytes().all(|b| b.is_ascii_digit()) {
            return Err(
                "expected at least two labels after *, as in https://*.example.com".to_owned()
            );
        }
        Ok(Origin::Subdomains(parent))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (star, page) = match self {
            Origin::Any => return f.write_str("*"),
            Origin::Exact(page) => ("", page),
            Origin::Subdomains(page) => ("*.", page),
        };
        write!(f, "{}://{star}{}", page.scheme, page.host)?;
        if page.port == 0 || implied_port(&page.scheme) == Some(page.port) {
            return Ok(());
        }
        write!(f, ":{}", page.port)
    }
}

/// The origins and hosts that a server accepts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// All listeners are loopback or UNIX sockets: accept only pages of this machine. The same origin
    /// is not enough then, because any site can resolve its name to 127.0.0.1 (DNS rebinding).
    pub(crate) loopback: bool,
    /// Whether Host must be this machine: as above, and browsers can reach one of the listeners.
    pub(crate) check_host: bool,
    /// Access is public and unencrypted on an address that may be private: a page of the same origin
    /// has to name the server by an allowed name or an address (DNS rebinding, as above).
    pub(crate) may_be_rebound: bool,
    pub(crate) allowed: Vec<Origin>,
    /// Names by which the server may be addressed; any, if there are none and it is not on loopback.
    pub(crate) hosts: Vec<AllowedHost>,
}

impl Origins {
    /// Whether a page of `origin` may connect to a server that it addresses as `authority`, on a
    /// listener with `scheme` (`http` or `https`).
    pub(crate) fn admit(&self, origin: &[u8], authority: Option<&[u8]>, scheme: &str) -> bool {
        if self.allowed.contains(&Origin::Any) {
            return origin != b"null";
        }
        let Some(page) = std::str::from_utf8(origin).ok().and_then(OriginTuple::parse) else {
            return false;
        };
        let named = self.allowed.iter().any(|allowed| match allowed {
            Origin::Any => true,
            Origin::Exact(one) => *one == page,
            Origin::Subdomains(parent) => page.is_subdomain_of(parent),
        });
        if named || self.loopback {
            return named || means_this_machine(&page.host);
        }
        let own = authority.and_then(|own| std::str::from_utf8(own).ok());
        let own = own.and_then(|own| OriginTuple::parse(&format!("{scheme}://{own}")));
        own == Some(page) && self.admit_same_origin(authority, scheme == "https")
    }

    /// Whether a page that addresses this server as `authority` may be of the same origin. Over TLS
    /// the certificate has named the server.
    pub(crate) fn admit_same_origin(&self, authority: Option<&[u8]>, encrypted: bool) -> bool {
        let named =
            |authority| self.is_allowed_host(authority) || self.is_of_allowed_origin(authority);
        let text = authority.map(std::str::from_utf8);
        !self.may_be_rebound || encrypted || text.is_none_or(|text| text.is_ok_and(named))
    }

    /// Whether a request may address this server as `authority`. On loopback the name must be this
    /// machine's, elsewhere an address, if names are set; in both cases one of these names or an
    /// allowed origin's: a proxy in front forwards its site's name.
    pub(crate) fn admit_host(&self, authority: Option<&[u8]>) -> bool {
        let checked = self.check_host || !self.loopback && !self.hosts.is_empty();
        if !checked || self.allowed.contains(&Origin::Any) {
            return true;
        }
        // HTTP/1.1 requires Host, and browsers do not use HTTP/1.0.
        let Some(authority) = authority else { return true };
        let Ok(authority) = std::str::from_utf8(authority) else { return false };
        (self.loopback && means_this_machine(authority))
            || self.is_allowed_host(authority)
            || self.is_of_allowed_origin(authority)
    }

    /// Whether the authority has an allowed name or, beyond loopback, is an address.
    fn is_allowed_host(&self, authority: &str) -> bool {
        let authority = authority.to_ascii_lowercase();
        host_and_port(&authority).is_some_and(|(host, _)| {
            !self.loopback && is_address(host) || self.hosts.iter().any(|name| name.matches(host))
        })
    }

    /// Whether the authority has the host of an allowed origin.
    fn is_of_allowed_origin(&self, authority: &str) -> bool {
        self.allowed.iter().any(|allowed| match allowed {
            Origin::Any => true,
            Origin::Exact(one) => host_of(authority, one).is_some_and(|page| page == *one),
            Origin::Subdomains(parent) => {
                host_of(authority, parent).is_some_and(|page| page.is_subdomain_of(parent))
            }
        })
    }
}

/// The host of an authority, with scheme and port of `like`.
fn host_of(authority: &str, like: &OriginTuple) -> Option<OriginTuple> {
    let authority = authority.to_ascii_lowercase();
    let (host, _) = host_and_port(&authority)?;
    Some(OriginTuple { host: host.into(), ..like.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(loopback: bool, allowed: &[&str]) -> Origins {
        let allowed = allowed.iter().map(|text| text.parse().unwrap()).collect();
        Origins { loopback, check_host: loopback, allowed, ..Origins::default() }
    }

    #[test]
    fn rebound_names_are_refused_where_access_is_public_on_a_private_address() {
        let hosts: Vec<AllowedHost> = vec!["live.example".parse().unwrap()];
        let open = Origins { may_be_rebound: true, ..origins(false, &["http://site.example"]) };
        let named = Origins { hosts: hosts.clone(), ..open.clone() };
        for (host, unnamed, by_name) in [
            ("rebound.example:8080", false, false),
            ("live.example", false, true),
            ("LIVE.example:8080", false, true),
            ("site.example", true, true),
            ("192.168.1.5:8080", true, true),
            ("[fd00::5]:8080", true, true),
            ("localhost:8080", false, false),
        ] {
            let origin = format!("http://{host}");
            let admit = |origins: &Origins| {
                let (origin, host) = (origin.as_bytes(), Some(host.as_bytes()));
                let same_origin = origins.admit_same_origin(host, false);
                assert_eq!(origins.admit(origin, host, "http"), same_origin);
                same_origin
            };
            assert_eq!((admit(&open), admit(&named)), (unnamed, by_name), "{host}");
            assert!(open.admit_host(Some(host.as_bytes())), "no names are set: {host}");
            assert_eq!(named.admit_host(Some(host.as_bytes())), by_name, "{host}");
        }
        let local = Origins { hosts, ..origins(true, &[]) };
        assert!(local.admit_host(Some(b"live.example")), "the site of a proxy");
        assert!(
            !local.admit_host(Some(b"192.168.1.5")) && !local.admit_host(Some(b"other.example"))
        );
    }

    #[test]
    fn pages_of_this_machine_and_of_the_same_origin_are_accepted() {
        let local = origins(true, &[]);
        let remote = origins(false, &["https://App.example/"]);
        // Origin, Host, and whether it is accepted: on loopback, elsewhere over http, and over https.
        let cases = [
            ("http://localhost:3000", "127.0.0.1:8080", true, false, false),
            ("http://app.localhost", "127.0.0.1:8080", true, false, false),
            ("http://127.0.0.1:9", "127.0.0.1:8080", true, false, false),
            ("http://[::1]:9", "[::1]:8080", true, false, false),
            ("http://127.0.0.1.evil.example", "127.0.0.1:8080", false, false, false),
            ("http://localhost.evil.example", "127.0.0.1:8080", false, false, false),
            ("https://chat.example", "chat.example", false, false, true),
            ("https://chat.example", "Chat.example:443", false, false, true),
            ("http://chat.example:80", "chat.example", false, true, false),
            ("http://chat.example", "chat.example:80", false, true, false),
            ("http://chat.example:8080", "chat.example:8080", false, true, false),
            ("http://chat.example:8081", "chat.example:8080", false, false, false),
            ("https://chat.example:8443", "chat.example", false, false, false),
            ("ftp://chat.example", "chat.example", false, false, false),
            ("https://app.example", "chat.example", false, true, true),
            ("https://APP.example:443", "chat.example", false, true, true),
            ("http://app.example", "chat.example", false, false, false),
            ("https://app.example:444", "chat.example", false, false, false),
            ("https://app.example.", "chat.example", false, false, false),
            ("null", "chat.example", false, false, false),
            ("NULL", "null", false, false, false),
            ("garbage", "chat.example", false, false, false),
            ("http://chat.example@evil.example", "chat.example", false, false, false),
        ];
        for (origin, host, locally, plain, encrypted) in cases {
            let host = Some(host.as_bytes());
            let admit = |origins: &Origins, scheme| origins.admit(origin.as_bytes(), host, scheme);
            assert_eq!(admit(&local, "http"), locally, "local {origin}");
            assert_eq!(admit(&remote, "http"), plain, "http {origin}");
            assert_eq!(admit(&remote, "https"), encrypted, "https {origin}");
        }
    }

    #[test]
    fn a_star_matches_one_or_more_labels() {
        let origins = origins(false, &["https://*.example.org", "http://*.a.test:81"]);
        let cases = [
            ("https://www.example.org", true),
            ("https://a.b.EXAMPLE.org:443", true),
            ("https://example.org", false),
            ("https://.example.org", false),
            ("https://a..example.org", false),
            ("https://evilexample.org", false),
            ("https://evil-example.org", false),
            ("https://www.example.org.evil.test", false),
            ("https://www.example.org:8443", false),
            ("http://www.example.org", false),
            ("https://*.example.org", false),
            ("https://evil.test/.example.org", false),
            ("http://x.a.test:81", true),
            ("http://x.a.test", false),
        ];
        for (origin, admitted) in cases {
            assert_eq!(origins.admit(origin.as_bytes(), None, "https"), admitted, "{origin}");
        }
    }

    #[test]
    fn any_origin_excludes_null() {
        for loopback in [false, true] {
            let all = origins(loopback, &["*"]);
            assert!(all.admit(b"https://anywhere.example", None, "http"));
            assert!(!all.admit(b"null", None, "http"));
            assert!(all.admit_host(Some(b"anything.example")));
        }
    }

    #[test]
    fn on_loopback_host_must_be_this_machine_or_an_allowed_site() {
        let local = origins(true, &["https://chat.example", "https://*.site.example"]);
        let cases = [
            ("127.0.0.1:8080", true),
            ("LOCALHOST", true),
            ("[::1]:8080", true),
            ("Chat.example", true),
            ("chat.example:8080", true),
            ("a.site.example", true),
            ("site.example", false),
            ("rebound.example:8080", false),
            ("127.0.0.1.evil.example", false),
            ("chat.example.evil.example", false),
        ];
        for (host, admitted) in cases {
            assert_eq!(local.admit_host(Some(host.as_bytes())), admitted, "{host}");
            assert!(origins(false, &[]).admit_host(Some(host.as_bytes())), "elsewhere {host}");
        }
        assert!(local.admit_host(None), "HTTP/1.0");
    }

    #[test]
    fn only_valid_origins_are_parsed_and_they_display_as_written() {
        for wrong in [
            "example.com",
            "https://",
            "https://a/path",
            "",
            "null",
            "https://*",
            "https://*.",
            "https://*.org",
            "https://a.*.org",
            "https://*.*.example.org",
            "https://*.0.0.1",
            "https://a:99999",
            "https://a:",
            "https://user@a.example",
            "://a.example",
        ] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
        for right in [
            "*",
            "https://example.com",
            "https://*.example.com:8443",
            "http://[::1]:80",
            "chrome-extension://abcdef",
        ] {
            let shown = right.strip_suffix(":80").unwrap_or(right);
            assert_eq!(right.parse::<Origin>().unwrap().to_string(), shown);
        }
    }
}
