//! The redirect of plain HTTP to https: which requests it applies to, and where it leads. The host
//! comes from the client and goes into a URL, so it has to be a name or an address and nothing else:
//! `user@host` or `host%2f` would lead somewhere else.
//!
//! Not here: which connections use TLS, and which hosts a server serves.

use alloc::string::{String, ToString};
use core::fmt::Write;
use core::net::Ipv6Addr;
use core::str::FromStr;

use super::{ForwardedBy, Header, Request};

/// Longest name of a host (RFC 1035 section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
const HTTPS_PORT: u16 = 443;

/// A path that stays on plain HTTP: with `/` at its end that path and everything below it, otherwise
/// that path alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainPath(String);

impl FromStr for PlainPath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let valid = text.starts_with('/')
            && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%".contains(&byte));
        valid
            .then(|| PlainPath(text.to_string()))
            .ok_or("expected a path without query or escapes, such as /health or /status/")
    }
}

impl PlainPath {
    /// Whether a request for this path is not redirected. Escapes and dots can mean another path to
    /// the server behind, so they are not covered.
    #[must_use]
    pub fn covers(&self, path: &str) -> bool {
        let rest = match path.strip_prefix(self.0.as_str()) {
            Some(rest) if self.0.ends_with('/') => rest,
            rest => return rest == Some(""),
        };
        !rest.contains("..") && !rest.contains(['%', '\\'])
    }
}

impl Request<'_, '_> {
    /// The URL of this request with https and this port. `None` if it names no host, or its host is
    /// not a name or an address.
    #[must_use]
    pub fn https_url(&self, port: u16) -> Option<String> {
        let host = host_of(core::str::from_utf8(self.authority()?).ok()?)?;
        let mut url = String::from("https://");
        url.push_str(host);
        if port != HTTPS_PORT {
            let _ = write!(url, ":{port}");
        }
        // The asterisk form names the host itself: a URL without a path (RFC 9112 section 3.2.4).
        if self.target != "*" {
            url.push_str(self.path());
            if let Some(query) = self.query() {
                url.push('?');
                url.push_str(query);
            }
        }
        Some(url)
    }

    /// Whether the proxy that this request came from reports in its headers that the client used
    /// https.
    #[must_use]
    pub fn forwarded_https(&self, by: ForwardedBy) -> bool {
        let scheme = match by {
            ForwardedBy::XForwardedFor => {
                self.header("x-forwarded-proto").and_then(|value| items(value).next())
            }
            ForwardedBy::Forwarded => {
                let named = |header: &&Header<'_>| header.name.eq_ignore_ascii_case("forwarded");
                let last = self.headers.iter().rfind(named);
                let element = last.and_then(|header| items(header.value).last());
                element.and_then(proto_of)
            }
        };
        scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https"))
    }
}

/// The host of an authority, without its port; IPv6 in brackets.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']')?;
            inside.parse::<Ipv6Addr>().ok()?;
            (authority.get(..inside.len() + 2)?, after.strip_prefix(':').or_else(|| empty(after))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let named = host.starts_with('[')
        || host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let fits = (1..=NAME_BYTES_MAX).contains(&host.len());
    (named && fits && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(host)
}

fn empty(text: &str) -> Option<&str> {
    text.is_empty().then_some(text)
}

fn items(value: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// The `proto` of one element of Forwarded, without quotes.
fn proto_of(element: &[u8]) -> Option<&[u8]> {
    element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii).find_map(|pair| {
        let (name, value) = pair.split_at_checked(6)?;
        let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        name.eq_ignore_ascii_case(b"proto=").then_some(quoted.unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;
    use crate::http::{EMPTY_HEADER, parse_request};

    fn url(line: &str, host: &str, port: u16) -> Option<String> {
        let head = format!("{line} HTTP/1.1\r\n{host}\r\n\r\n");
        let mut headers = [EMPTY_HEADER; 8];
        // The parser refuses some hosts already.
        parse_request(head.as_bytes(), &mut headers).ok()?.https_url(port)
    }

    #[test]
    fn the_url_has_the_host_without_its_port_and_the_whole_target() {
        for (line, host, port, expected) in [
            ("GET /a/b?c=d&e", "Host: example.com", 443, "https://example.com/a/b?c=d&e"),
            ("POST /", "Host: example.com:80", 8443, "https://example.com:8443/"),
            ("GET /", "Host: Ex-a_mple.com:", 443, "https://Ex-a_mple.com/"),
            ("GET //other.test/..", "Host: h", 443, "https://h//other.test/.."),
            ("GET /", "Host: 192.0.2.1:8080", 8443, "https://192.0.2.1:8443/"),
            ("GET /", "Host: [2001:db8::1]:8080", 443, "https://[2001:db8::1]/"),
            ("GET http://a.test/x?y", "Host: b.test", 443, "https://a.test/x?y"),
            ("GET http://a.test?y", "Host: b.test", 443, "https://a.test/?y"),
            ("OPTIONS *", "Host: example.com", 443, "https://example.com"),
        ] {
            assert_eq!(url(line, host, port).as_deref(), Some(expected), "{line} {host}");
        }
    }

    #[test]
    fn a_host_that_could_lead_elsewhere_makes_no_url() {
        for host in [
            "Host:",
            "Host: :80",
            "Host: a.test@evil.test",
            "Host: user:pass@evil.test",
            "Host: a.test%2f.evil.test",
            "Host: a.test:80:90",
            "Host: a.test:x",
            "Host: a.test;b",
            "Host: [::1",
            "Host: [::1]x",
            "Host: [a.test]",
            "Host: []",
        ] {
            assert_eq!(url("GET /", host, 443), None, "{host}");
        }
        let long = format!("Host: {}", "a".repeat(254));
        assert_eq!(url("GET /", &long, 443), None);
        let mut headers = [EMPTY_HEADER; 8];
        let request = parse_request(b"GET / HTTP/1.0\r\n\r\n", &mut headers).unwrap();
        assert_eq!(request.https_url(443), None, "HTTP/1.0 without Host");
    }

    #[test]
    fn plain_paths_cover_themselves_or_what_is_below_them() {
        let covers = |plain: &str, path: &str| plain.parse::<PlainPath>().unwrap().covers(path);
        assert!(covers("/health", "/health"));
        assert!(!covers("/health", "/health/plans") && !covers("/health", "/healthy"));
        let acme = "/.well-known/acme-challenge/";
        assert!(covers(acme, "/.well-known/acme-challenge/to_k-en"));
        assert!(!covers(acme, "/.well-known/acme-challenge"));
        for outside in ["../../admin", "%2e%2e/admin", "x/..\\admin"] {
            assert!(!covers(acme, &format!("{acme}{outside}")), "{outside}");
        }
        for invalid in ["", "health", "/a?b", "/a b", "/a%20"] {
            assert!(invalid.parse::<PlainPath>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_proxy_reports_https_in_the_header_that_it_writes() {
        let reported = |line: &str, by| {
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n\r\n");
            let mut headers = [EMPTY_HEADER; 8];
            parse_request(head.as_bytes(), &mut headers).unwrap().forwarded_https(by)
        };
        let (x, forwarded) = (ForwardedBy::XForwardedFor, ForwardedBy::Forwarded);
        assert!(reported("X-Forwarded-Proto: https", x));
        assert!(reported("X-Forwarded-Proto: HTTPS, http", x));
        assert!(!reported("X-Forwarded-Proto: http, https", x));
        assert!(!reported("X-Forwarded-Proto: https", forwarded), "the other header");
        assert!(reported("Forwarded: for=1.2.3.4;proto=https", forwarded));
        assert!(reported("Forwarded: proto=http, for=x; Proto=\"https\"", forwarded));
        assert!(!reported("Forwarded: proto=https, for=x", forwarded), "the last one counts");
    }
}
