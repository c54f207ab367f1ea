//! [`Address`]: the parts of a `ws://` or `wss://` URL.

use std::net::IpAddr;

/// Where a URL leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Address {
    pub(super) tls: bool,
    /// A name, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// As in the header `Host`.
    pub(super) authority: String,
    /// With the query.
    pub(super) path: String,
}

impl Address {
    /// # Errors
    /// What is wrong, for people.
    pub(super) fn parse(url: &str) -> Result<Address, String> {
        let wrong = |what: &str| format!("invalid URL {url:?}: {what}");
        let (tls, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => (true, rest),
            _ => return Err(wrong("expected ws://HOST or wss://HOST")),
        };
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("spaces and letters outside of ASCII have to be percent-encoded"));
        }
        if rest.contains('#') {
            return Err(wrong("a URL of a WebSocket has no fragment (#)"));
        }
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        if authority.contains('@') {
            return Err(wrong("give user and password as the header Authorization"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let closed = rest.split_once(']');
                let (host, port) = closed.ok_or_else(|| wrong("the bracket is not closed"))?;
                let is_address = host.parse::<std::net::Ipv6Addr>().is_ok();
                if !is_address || !(port.is_empty() || port.starts_with(':')) {
                    return Err(wrong("expected an IPv6 address in brackets, and :PORT"));
                }
                (host, port.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let usual = if tls { 443 } else { 80 };
        let port = port.map_or(Ok(usual), str::parse);
        let port = port.map_err(|_| wrong("expected a port from 1 to 65535"))?;
        let path = match path.as_bytes().first() {
            None => "/".to_owned(),
            Some(b'?') => format!("/{path}"),
            Some(_) => path.to_owned(),
        };
        let (host, authority) = (host.to_owned(), authority.to_owned());
        Ok(Address { tls, host, port, authority, path })
    }

    /// The address, if the host is one and not a name.
    pub(super) fn literal(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_host_a_port_and_a_path() {
        for (url, tls, host, port, path) in [
            ("ws://localhost", false, "localhost", 80, "/"),
            ("wss://example.org/a/b?c=d", true, "example.org", 443, "/a/b?c=d"),
            ("WS://127.0.0.1:8080?x", false, "127.0.0.1", 8080, "/?x"),
            ("ws://[::1]:81/", false, "::1", 81, "/"),
        ] {
            let parsed = Address::parse(url).unwrap();
            let got = (parsed.tls, &*parsed.host, parsed.port, &*parsed.path);
            assert_eq!(got, (tls, host, port, path), "{url}");
        }
        assert_eq!(Address::parse("ws://[::1]:81/").unwrap().authority, "[::1]:81");
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        for (url, expected) in [
            ("http://localhost", "ws://HOST"),
            ("localhost", "ws://HOST"),
            ("ws://", "host"),
            ("ws://a:b", "port"),
            ("ws://a:70000", "port"),
            ("ws://u:p@a", "Authorization"),
            ("ws://a/#b", "fragment"),
            ("ws://a/b c", "percent"),
            ("ws://[::1", "bracket"),
            ("ws://[a]", "IPv6"),
        ] {
            let error = Address::parse(url).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
