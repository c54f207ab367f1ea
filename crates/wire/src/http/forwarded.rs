//! The client's address from the headers that proxies add: X-Forwarded-For, and Forwarded (RFC
//! 7239). Each proxy appends the address that it got the request from, so what a trusted one wrote
//! comes last, and anything before an address that is not trusted may be forged.
//!
//! Not here: which proxies are trusted, and which of the headers they write.

use core::net::{IpAddr, Ipv6Addr};

use super::head::list_items;
use super::{Header, Request};

/// The header in which proxies report addresses. Only one is trusted: a proxy that appends to one
/// of them forwards what a client has put into the other.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum ForwardedBy {
    /// `X-Forwarded-For: client, proxy`.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client, for=proxy` (RFC 7239).
    Forwarded,
}

impl Request<'_, '_> {
    /// The address furthest from us that a trusted proxy reports; `None` if there is none.
    pub fn forwarded_for(
        &self,
        by: ForwardedBy,
        is_trusted: impl Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        let name = match by {
            ForwardedBy::XForwardedFor => "x-forwarded-for",
            ForwardedBy::Forwarded => "forwarded",
        };
        let named = |header: &&Header<'_>| header.name.eq_ignore_ascii_case(name);
        let lines = self.headers.iter().filter(named).rev();
        let mut known = None;
        for line in lines {
            for item in line.value.rsplit(|byte| *byte == b',').flat_map(list_items) {
                let node = match by {
                    ForwardedBy::XForwardedFor => Some(item),
                    ForwardedBy::Forwarded => for_of(item),
                };
                // Hidden or malformed: addresses before it are not trustworthy.
                let Some(address) = node.and_then(address_of) else { return known };
                known = Some(address);
                if !is_trusted(address) {
                    return known;
                }
            }
        }
        known
    }
}

/// The `for` of one element of Forwarded, without quotes.
fn for_of(element: &[u8]) -> Option<&[u8]> {
    element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii).find_map(|pair| {
        let (name, value) = pair.split_at_checked(4)?;
        let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        name.eq_ignore_ascii_case(b"for=").then_some(quoted.unwrap_or(value))
    })
}

/// An address with or without a port; an IPv6 address in brackets, or alone.
fn address_of(node: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(node).ok()?;
    if let Some((inside, after)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let port = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return inside.parse::<Ipv6Addr>().ok().filter(|_| port).map(IpAddr::V6);
    }
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let (host, port) = text.split_once(':')?;
    host.parse().ok().filter(|address: &IpAddr| address.is_ipv4() && is_port(port))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use super::*;
    use crate::http::{EMPTY_HEADER, parse_request};

    fn found(by: ForwardedBy, lines: &[&str]) -> Option<String> {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut headers = [EMPTY_HEADER; 10];
        let request = parse_request(head.as_bytes(), &mut headers).unwrap();
        let trusted = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets()[0] == 10,
            IpAddr::V6(v6) => v6.segments()[0] == 0xfd00,
        };
        request.forwarded_for(by, trusted).map(|address| format!("{address}"))
    }

    #[test]
    fn the_last_untrusted_address_is_the_client() {
        let cases: [(&[&str], Option<&str>); 21] = [
            (&[], None),
            (&["X-Forwarded-For: 192.0.2.1"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 1.1.1.1, 192.0.2.1"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 1.1.1.1, 192.0.2.1, 10.0.0.2"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 1.1.1.1", "x-forwarded-for: 192.0.2.1"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 10.0.0.2"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 10.0.0.3, 10.0.0.2"], Some("10.0.0.3")),
            (&["X-Forwarded-For: 1.1.1.1, garbage, 10.0.0.2"], Some("10.0.0.2")),
            (&["X-Forwarded-For: 1.1.1.1, garbage"], None),
            (&["X-Forwarded-For:", "X-Forwarded-For: ,"], None),
            (&["X-Forwarded-For: 192.0.2.1:4711"], Some("192.0.2.1")),
            (&["X-Forwarded-For: [2001:db8::1]:4711"], Some("2001:db8::1")),
            (&["X-Forwarded-For: 2001:db8::1"], Some("2001:db8::1")),
            // What follows the address must be a port.
            (&["X-Forwarded-For: 192.0.2.1:65536"], None),
            (&["X-Forwarded-For: 192.0.2.1:+80"], None),
            (&["X-Forwarded-For: 192.0.2.1:x"], None),
            (&["X-Forwarded-For: 192.0.2.1:"], None),
            (&["X-Forwarded-For: [2001:db8::1]:x"], None),
            (&["X-Forwarded-For: [2001:db8::1]x"], None),
            (&["X-Forwarded-For: [192.0.2.1]"], None),
            (&["Forwarded: for=192.0.2.1"], None),
        ];
        for (lines, client) in cases {
            assert_eq!(found(ForwardedBy::XForwardedFor, lines).as_deref(), client, "{lines:?}");
        }
    }

    #[test]
    fn forwarded_reports_the_same_addresses() {
        let cases: [(&str, Option<&str>); 8] = [
            ("Forwarded: for=192.0.2.1", Some("192.0.2.1")),
            ("Forwarded: For=\"[2001:db8::1]:4711\";proto=https", Some("2001:db8::1")),
            ("Forwarded: proto=https; for=192.0.2.1;by=10.0.0.1", Some("192.0.2.1")),
            ("Forwarded: for=1.1.1.1, for=192.0.2.1, for=10.0.0.2", Some("192.0.2.1")),
            ("Forwarded: for=1.1.1.1, for=_hidden", None),
            ("Forwarded: for=unknown", None),
            // A quote that a client left open does not swallow what the proxy appended.
            ("Forwarded: for=1.1.1.1;host=\", for=192.0.2.1", Some("192.0.2.1")),
            ("X-Forwarded-For: 192.0.2.1", None),
        ];
        for (line, client) in cases {
            assert_eq!(found(ForwardedBy::Forwarded, &[line]).as_deref(), client, "{line}");
        }
    }
}
