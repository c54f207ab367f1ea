//! [`Protocol`]: what a subprotocol name of the WebSocket handshake selects.

use crate::Encoding;

/// Action Cable v1.
pub const V1: &str = "actioncable-v1-json";
/// AnyCable's extension of it.
pub const V1_EXT: &str = "actioncable-v1-ext-json";
/// Offered last by Rails' client: a server selects it to say that it supports no other.
pub const UNSUPPORTED: &str = "actioncable-unsupported";
/// Prefix of an offered subprotocol that carries a token; never selected.
pub const TOKEN_PREFIX: &str = "anycable-token.";

/// A supported protocol; by default Action Cable v1 in JSON.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
pub struct Protocol {
    /// With history, resumption, presence, whispers and pongs.
    pub extended: bool,
    /// How messages are written.
    pub encoding: Encoding,
}

impl Protocol {
    /// Action Cable v1.
    pub const V1: Protocol = Protocol { extended: false, encoding: Encoding::Json };
    /// AnyCable's extension of it.
    pub const V1_EXT: Protocol = Protocol { extended: true, encoding: Encoding::Json };

    /// All of them.
    pub fn all() -> impl Iterator<Item = Protocol> {
        let both = |encoding| [false, true].map(|extended| Protocol { extended, encoding });
        Encoding::ALL.into_iter().flat_map(both)
    }

    /// The subprotocol name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.extended, self.encoding) {
            (false, Encoding::Json) => V1,
            (true, Encoding::Json) => V1_EXT,
            (false, Encoding::Msgpack) => "actioncable-v1-msgpack",
            (true, Encoding::Msgpack) => "actioncable-v1-ext-msgpack",
            (false, Encoding::Protobuf) => "actioncable-v1-protobuf",
            (true, Encoding::Protobuf) => "actioncable-v1-ext-protobuf",
        }
    }

    /// The protocol with this subprotocol name, if supported.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Protocol> {
        Protocol::all().find(|protocol| protocol.name() == name)
    }
}

/// The token in an offered subprotocol, if it carries one.
#[must_use]
pub fn token(offered: &str) -> Option<&str> {
    offered.strip_prefix(TOKEN_PREFIX).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_found_by_name() {
        assert_eq!(Protocol::all().count(), 6);
        for protocol in Protocol::all() {
            assert_eq!(Protocol::from_name(protocol.name()), Some(protocol));
            assert!(protocol.name().ends_with(protocol.encoding.name()));
            assert_eq!(protocol.name().contains("-ext-"), protocol.extended);
        }
        assert_eq!(Protocol::from_name(V1), Some(Protocol::default()));
        for other in ["", UNSUPPORTED, "actioncable-v1-cbor", "ACTIONCABLE-V1-JSON"] {
            assert_eq!(Protocol::from_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_token_is_read_from_a_subprotocol() {
        assert_eq!(token("anycable-token.a.b-c_d"), Some("a.b-c_d"));
        assert_eq!(token("anycable-token."), None);
        assert_eq!(token(V1), None);
    }
}
