//! The subprotocol names of the WebSocket handshake.

/// Action Cable v1.
pub const V1: &str = "actioncable-v1-json";
/// AnyCable's extension of it.
pub const V1_EXT: &str = "actioncable-v1-ext-json";
/// Offered last by Rails' client: a server selects it to say that it supports no other.
pub const UNSUPPORTED: &str = "actioncable-unsupported";
/// Prefix of an offered subprotocol that carries a token; never selected.
pub const TOKEN_PREFIX: &str = "anycable-token.";

/// A supported protocol.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Protocol {
    /// Action Cable v1.
    V1,
    /// With history, resumption, presence, whispers and pongs.
    V1Ext,
}

impl Protocol {
    /// The subprotocol name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::V1 => V1,
            Protocol::V1Ext => V1_EXT,
        }
    }

    /// The protocol with this subprotocol name, if supported.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Protocol> {
        [Protocol::V1, Protocol::V1Ext].into_iter().find(|protocol| protocol.name() == name)
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
        for protocol in [Protocol::V1, Protocol::V1Ext] {
            assert_eq!(Protocol::from_name(protocol.name()), Some(protocol));
        }
        for other in ["", UNSUPPORTED, "actioncable-v1-msgpack", "ACTIONCABLE-V1-JSON"] {
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
