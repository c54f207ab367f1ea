//! [`AccessList`]: which client addresses a route allows.
//!
//! Lists apply to a path as upstreams may read it, too: decoded, without `.`, `..` and repeated slashes.
//! Otherwise `/%61dmin` would pass the list of `/admin`.

use std::borrow::Cow;
use std::net::IpAddr;

use engine::Network;

/// Maximum number of networks in the lists of a route.
pub(crate) const NETWORKS_MAX: usize = 4096;

/// Allowed and denied networks. The most specific network that contains an address decides; for an
/// address in none, whether any network is allowed explicitly.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AccessList {
    /// The most specific first.
    rules: Vec<(Network, bool)>,
    denies_others: bool,
}

impl AccessList {
    /// Creates a list.
    ///
    /// # Errors
    /// There are too many networks, or one is both allowed and denied.
    pub fn new(allow: &[Network], deny: &[Network]) -> Result<Self, String> {
        if allow.len() + deny.len() > NETWORKS_MAX {
            return Err(format!("allow and deny have more than {NETWORKS_MAX} networks"));
        }
        if let Some(both) = allow.iter().find(|network| deny.contains(network)) {
            return Err(format!("{both} is in allow and in deny"));
        }
        let allowed = allow.iter().map(|network| (*network, true));
        let denied = deny.iter().map(|network| (*network, false));
        let mut rules: Vec<(Network, bool)> = allowed.chain(denied).collect();
        rules.sort_by_key(|(network, _)| std::cmp::Reverse(network.prefix_bits()));
        Ok(AccessList { rules, denies_others: !allow.is_empty() })
    }

    /// Whether every client is allowed.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a client is allowed. One without an address is in no network.
    pub(crate) fn allows(&self, client: Option<IpAddr>) -> bool {
        let of = |client| self.rules.iter().find(|(network, _)| network.contains(client));
        client.and_then(of).map_or(!self.denies_others, |(_, allowed)| *allowed)
    }
}

/// The path as an upstream may read it: percent-decoded, without parameters (`;…`), dot segments and empty
/// segments. `None` if that is the path itself.
pub(crate) fn decoded_path(path: &str) -> Option<String> {
    let odd = |part: &str| path.contains(part);
    if !(odd("%") || odd("//") || odd("/.") || odd(";") || odd("\\")) {
        return None;
    }
    let decoded = String::from_utf8_lossy(&decode(path.as_bytes())).replace('\\', "/");
    let mut segments: Vec<&str> = Vec::new();
    let mut is_folder = true;
    for segment in decoded.split('/') {
        // Some servers end a text at NUL.
        let segment = segment.split([';', '\0']).next().unwrap_or_default();
        is_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => _ = segments.pop(),
            _ => segments.push(segment),
        }
    }
    let mut clean = String::from("/");
    clean.push_str(&segments.join("/"));
    if is_folder && !segments.is_empty() {
        clean.push('/');
    }
    (clean != path).then_some(clean)
}

/// Decodes each valid `%XX` once.
fn decode(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let digit = |at: usize| {
        let digit = path.get(at).copied().map(char::from).and_then(|digit| digit.to_digit(16));
        digit.and_then(|digit| u8::try_from(digit).ok())
    };
    let (mut out, mut at) = (Vec::with_capacity(path.len()), 0);
    while let Some(&byte) = path.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(high * 16 + low);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(allow: &[&str], deny: &[&str]) -> Result<AccessList, String> {
        let networks = |list: &[&str]| -> Vec<Network> {
            list.iter().map(|network| network.parse().unwrap()).collect()
        };
        AccessList::new(&networks(allow), &networks(deny))
    }

    #[test]
    fn the_most_specific_network_decides() {
        let allows = |list: &AccessList, address: &str| list.allows(Some(address.parse().unwrap()));
        let inside = list(&["10.0.0.0/8", "10.1.2.3", "2001:db8::/32"], &["10.1.0.0/16"]).unwrap();
        for (address, allowed) in [
            ("10.0.0.1", true),
            ("10.1.0.1", false),
            ("10.1.2.3", true),
            ("11.0.0.1", false),
            ("::ffff:10.0.0.1", true),
            ("::ffff:10.1.0.1", false),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
            ("::1", false),
        ] {
            assert_eq!(allows(&inside, address), allowed, "{address}");
        }
        let outside = list(&[], &["10.0.0.0/8", "::1"]).unwrap();
        for (address, allowed) in [("10.0.0.1", false), ("::1", false), ("192.0.2.1", true)] {
            assert_eq!(allows(&outside, address), allowed, "{address}");
        }
        // Everything is denied but what is allowed.
        let closed = list(&["192.0.2.1"], &["0.0.0.0/0", "::/0"]).unwrap();
        assert!(allows(&closed, "192.0.2.1") && !allows(&closed, "192.0.2.2"));
        assert!(!allows(&closed, "2001:db8::1"));
    }

    #[test]
    fn a_client_without_an_address_is_in_no_network() {
        assert!(!list(&["0.0.0.0/0"], &[]).unwrap().allows(None));
        assert!(list(&[], &["10.0.0.0/8"]).unwrap().allows(None));
        assert!(AccessList::default().allows(None));
        assert_eq!(list(&[], &[]).unwrap(), AccessList::default());
    }

    #[test]
    fn a_contradiction_is_an_error() {
        let error = list(&["10.0.0.0/8", "::1"], &["::1/128"]).unwrap_err();
        assert_eq!(error, "::1/128 is in allow and in deny");
    }

    #[test]
    fn paths_are_read_as_upstreams_may_read_them() {
        for (path, read) in [
            ("/", None),
            ("/admin", None),
            ("/admin/", None),
            ("/a.b/c", None),
            ("/%61dmin", Some("/admin")),
            ("/%61%64min/x", Some("/admin/x")),
            ("//admin", Some("/admin")),
            ("/x/../admin", Some("/admin")),
            ("/x/%2e%2e/admin/", Some("/admin/")),
            ("/x/..%2fadmin", Some("/admin")),
            ("/./admin", Some("/admin")),
            ("/../admin/.", Some("/admin/")),
            ("/admin;v=1/x", Some("/admin/x")),
            ("/x/..;/admin", Some("/admin")),
            ("\\admin", Some("/admin")),
            ("/%5cadmin", Some("/admin")),
            ("/.hidden", None),
            ("/100%", None),
            ("/%zz", None),
            ("/%61dmin/%ff", Some("/admin/\u{fffd}")),
            ("/admin%00", Some("/admin")),
            ("/%C3%BC", Some("/ü")),
            ("/..", Some("/")),
        ] {
            assert_eq!(decoded_path(path).as_deref(), read, "{path}");
        }
    }
}
