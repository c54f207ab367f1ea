//! Names that can only mean this machine. A listener on loopback without a key trusts its clients;
//! this check keeps out web pages that reach it through a local browser (DNS rebinding, cross-site
//! requests).

use std::net::IpAddr;

/// Whether `host` or `host:port`, as in a Host header or an origin, can only mean this machine
/// (RFC 6761 section 6.3 for names).
#[must_use]
pub fn means_this_machine(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let ends_with = |suffix: &str| {
        let from = host.len().checked_sub(suffix.len());
        from.and_then(|from| host.get(from..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
    };
    host.eq_ignore_ascii_case("localhost")
        || ends_with(".localhost")
        || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Whether a request with these headers may come from a browser on behalf of another site's page. A
/// client without Host is not a browser.
pub(crate) fn may_be_foreign_page(host: Option<&[u8]>, origin: Option<&[u8]>) -> bool {
    let local = |authority: &[u8]| std::str::from_utf8(authority).is_ok_and(means_this_machine);
    let page = |origin: &[u8]| {
        let authority = origin.windows(3).position(|part| part == b"://");
        authority.and_then(|at| origin.get(at + 3..)).is_some_and(local)
    };
    host.is_some_and(|host| !local(host)) || origin.is_some_and(|origin| !page(origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_found_in_any_case() {
        let local = ["localhost", "LocalHost:1", "App.LOCALHOST", "a.b.localhost:80", "127.9.9.9"];
        local.iter().for_each(|host| assert!(means_this_machine(host), "{host}"));
        // In the last ones no character begins where the suffix would.
        let others =
            ["", "host", "alocalhost", "localhost.", "128.0.0.1", "ölocalhost", "ö.localhos"];
        others.iter().for_each(|host| assert!(!means_this_machine(host), "{host}"));
    }

    #[test]
    fn only_hosts_and_origins_of_this_machine_are_local() {
        type Field = Option<&'static [u8]>;
        let cases: [(Field, Field, bool); 9] = [
            (None, None, false),
            (Some(b"127.0.0.1:8090"), None, false),
            (Some(b"localhost:8090"), Some(b"http://localhost:3000"), false),
            (Some(b"[::1]:8090"), Some(b"http://[::1]"), false),
            (Some(b"rebind.example:8090"), None, true),
            (Some(b"localhost.evil.example"), None, true),
            (Some(b"127.0.0.1:8090"), Some(b"https://evil.example"), true),
            (Some(b"127.0.0.1:8090"), Some(b"null"), true),
            (Some(b"127.0.0.1:8090"), Some(b"http://127.0.0.1.evil.example"), true),
        ];
        for (host, origin, foreign) in cases {
            assert_eq!(may_be_foreign_page(host, origin), foreign, "{host:?} {origin:?}");
        }
    }
}
