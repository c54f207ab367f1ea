//! Finds a client's token: in a header, a subprotocol, or the query, in this order. Browsers cannot set
//! headers on a WebSocket, hence the other two. Queries end up in the logs of proxies, so the
//! subprotocol is better.

use std::borrow::Cow;

use crate::path;

/// Prefix of an offered subprotocol that carries a token. It is never selected.
const PROTOCOL_PREFIX: &str = "anycable-token.";

/// The token of a handshake; an empty one counts as absent. `param` and `field` are the query parameter and the header.
pub(super) fn find<'b>(
    (param, field): (&str, &str),
    query: Option<&'b str>,
    header: impl Fn(&str) -> Option<&'b [u8]>,
    protocols: impl IntoIterator<Item = &'b str>,
) -> Option<Cow<'b, str>> {
    let in_header = header(field).map(String::from_utf8_lossy).filter(|token| !token.is_empty());
    let in_protocols = || {
        let mut tokens = protocols.into_iter().filter_map(|p| p.strip_prefix(PROTOCOL_PREFIX));
        tokens.find(|token| !token.is_empty()).map(Cow::Borrowed)
    };
    in_header.or_else(in_protocols).or_else(|| path::parameter(query, param))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in<'b>(
        query: Option<&'b str>,
        header: Option<&'b [u8]>,
        protocols: &[&'b str],
    ) -> Option<Cow<'b, str>> {
        let header = |name: &str| header.filter(|_| name == "x-jid");
        find(("jid", "x-jid"), query, header, protocols.iter().copied())
    }

    #[test]
    fn a_token_is_found_in_header_subprotocol_and_query() {
        type Case<'c> = (Option<&'c str>, Option<&'c [u8]>, &'c [&'c str], Option<&'c str>);
        let cases: [Case<'_>; 11] = [
            (None, None, &[], None),
            (Some("jid=a.b-_c"), None, &[], Some("a.b-_c")),
            (Some("pi=3&jid=a"), None, &[], Some("a")),
            (Some("xjid=a&jid=&jid=b"), None, &[], Some("b")),
            (Some("jid=a%2Eb"), None, &[], Some("a.b")),
            (Some("jid=a%2"), None, &[], Some("a%2")),
            (Some("jid&other=x"), None, &[], None),
            (None, Some(b"h"), &[], Some("h")),
            (Some("jid=q"), Some(b""), &["actioncable-v1-json"], Some("q")),
            (Some("jid=q"), None, &["actioncable-v1-json", "anycable-token.p"], Some("p")),
            (Some("jid=q"), Some(b"h"), &["anycable-token.p"], Some("h")),
        ];
        for (query, header, protocols, expected) in cases {
            let found = find_in(query, header, protocols);
            assert_eq!(found.as_deref(), expected, "{query:?} {header:?} {protocols:?}");
        }
    }

    #[test]
    fn the_parameter_name_is_configurable() {
        let header = |name: &str| (name == "x-token").then_some(&b"h"[..]);
        let found = find(("token", "x-token"), Some("jid=a"), header, []);
        assert_eq!(found.as_deref(), Some("h"));
        let found = find(("token", "x-token"), Some("jid=a&token=b"), |_| None, []);
        assert_eq!(found.as_deref(), Some("b"));
    }
}
