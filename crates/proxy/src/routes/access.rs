//! [`AccessList`]: which client addresses a route allows.
//!
//! Lists apply to a path as upstreams may read it, too: decoded, without `.`, `..` and repeated slashes.
//! Otherwise `/%61dmin` would pass the list of `/admin`.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use engine::Network;

/// Maximum number of networks in the lists of a route.
pub(crate) const NETWORKS_MAX: usize = 4096;

/// Clients that a list names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Those with an address in this network.
    Of(Network),
    /// Those of UNIX sockets that have no address: neither a PROXY header nor a trusted proxy gave one.
    Unix,
}

impl FromStr for Clients {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix:" {
            return Ok(Clients::Unix);
        }
        if text.starts_with("unix") {
            return Err(format!("invalid value \"{text}\": expected unix: without a path"));
        }
        text.parse().map(Clients::Of)
    }
}

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clients::Of(network) => network.fmt(f),
            Clients::Unix => f.write_str("unix:"),
        }
    }
}

/// Allowed and denied clients. The most specific network that contains an address decides; for an
/// client that no rule names, whether any is allowed explicitly.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AccessList {
    /// The most specific first.
    rules: Vec<(Network, bool)>,
    /// Whether clients without an address are allowed, if the list names them.
    unix: Option<bool>,
    denies_others: bool,
}

impl AccessList {
    /// Creates a list.
    ///
    /// # Errors
    /// There are too many entries, or one is both allowed and denied.
    pub fn new(allow: &[Clients], deny: &[Clients]) -> Result<Self, String> {
        if allow.len() + deny.len() > NETWORKS_MAX {
            return Err(format!("allow and deny have more than {NETWORKS_MAX} entries"));
        }
        if let Some(both) = allow.iter().find(|clients| deny.contains(clients)) {
            return Err(format!("{both} is in allow and in deny"));
        }
        let allowed = allow.iter().map(|clients| (*clients, true));
        let denied = deny.iter().map(|clients| (*clients, false));
        let mut list = AccessList { denies_others: !allow.is_empty(), ..AccessList::default() };
        for (clients, allowed) in allowed.chain(denied) {
            match clients {
                Clients::Of(network) => list.rules.push((network, allowed)),
                Clients::Unix => list.unix = Some(allowed),
            }
        }
        list.rules.sort_by_key(|(network, _)| std::cmp::Reverse(network.prefix_bits()));
        Ok(list)
    }

    /// Whether every client is allowed.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.unix.is_none()
    }

    /// Whether a client is allowed. One without an address is that of a UNIX socket.
    pub(crate) fn allows(&self, client: Option<IpAddr>) -> bool {
        let rule = match client {
            Some(client) => {
                let rule = self.rules.iter().find(|(network, _)| network.contains(client));
                rule.map(|(_, allowed)| *allowed)
            }
            None => self.unix,
        };
        rule.unwrap_or(!self.denies_others)
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
        let clients = |list: &[&str]| -> Vec<Clients> {
            list.iter().map(|clients| clients.parse().unwrap()).collect()
        };
        AccessList::new(&clients(allow), &clients(deny))
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
    fn clients_of_unix_sockets_are_allowed_and_denied_by_name() {
        let tcp = Some([10, 0, 0, 1].into());
        for (allow, deny, of_unix, of_tcp) in [
            (&["unix:"][..], &[][..], true, false),
            (&["unix:", "10.0.0.0/8"], &[], true, true),
            (&["10.0.0.0/8"], &["unix:"], false, true),
            (&[], &["unix:"], false, true),
            (&["unix:"], &["0.0.0.0/0", "::/0"], true, false),
        ] {
            let list = list(allow, deny).unwrap();
            assert_eq!(
                (list.allows(None), list.allows(tcp)),
                (of_unix, of_tcp),
                "{allow:?} {deny:?}"
            );
            assert!(!list.is_empty());
        }
        assert_eq!(list(&["unix:"], &["unix:"]).unwrap_err(), "unix: is in allow and in deny");
        for text in ["unix", "unix:/run/a.sock"] {
            let error = text.parse::<Clients>().unwrap_err();
            assert!(error.contains("expected unix: without a path"), "{error}");
        }
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
