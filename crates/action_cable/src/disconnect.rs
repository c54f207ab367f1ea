//! [`DisconnectReason`]: why a server ends a connection, and what the client should do.

use alloc::borrow::Cow;

/// Why a server ends a connection.
#[derive(Clone, Eq, PartialEq, Hash, Debug)]
pub enum DisconnectReason<'a> {
    /// The client is not authenticated or not authorized.
    Unauthorized,
    /// The server restarts.
    ServerRestart,
    /// The application requested it.
    Remote,
    /// The client sent an invalid command.
    InvalidRequest,
    /// No subscription and no activity for too long.
    IdleTimeout,
    /// Pings were not answered within the pong timeout.
    NoPong,
    /// The client reads too slowly.
    TooSlow,
    /// The token has expired.
    TokenExpired,
    /// Any other.
    Other(Cow<'a, str>),
}

use DisconnectReason as Reason;

impl<'a> DisconnectReason<'a> {
    /// The known reasons by name.
    const NAMED: [(&'static str, DisconnectReason<'static>); 8] = [
        ("unauthorized", Reason::Unauthorized),
        ("server_restart", Reason::ServerRestart),
        ("remote", Reason::Remote),
        ("invalid_request", Reason::InvalidRequest),
        ("idle_timeout", Reason::IdleTimeout),
        ("no_pong", Reason::NoPong),
        ("too_slow", Reason::TooSlow),
        ("token_expired", Reason::TokenExpired),
    ];

    /// The name in messages.
    #[must_use]
    pub fn as_str(&self) -> &str {
        if let Reason::Other(text) = self {
            return text;
        }
        let named = Self::NAMED.iter().find(|(_, reason)| reason == self);
        debug_assert!(named.is_some(), "every reason but Other has a name");
        named.map_or("", |(name, _)| name)
    }

    /// Whether the client should reconnect by default.
    #[must_use]
    pub fn reconnect(&self) -> bool {
        use Reason::{IdleTimeout, InvalidRequest, TokenExpired, Unauthorized};
        !matches!(self, Unauthorized | InvalidRequest | IdleTimeout | TokenExpired)
    }

    /// The code of the close frame that follows; RFC 6455 (7.4) allows sending it.
    #[must_use]
    pub fn close_code(&self) -> u16 {
        match self {
            Reason::ServerRestart => 1001,
            Reason::InvalidRequest => 1008,
            _ => 1000,
        }
    }
}

impl<'a> From<Cow<'a, str>> for DisconnectReason<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        let named = Self::NAMED.into_iter().find(|(name, _)| *name == text);
        named.map_or(Reason::Other(text), |(_, reason)| reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found_by_name_and_have_valid_close_codes() {
        for (name, reason) in DisconnectReason::NAMED {
            assert_eq!(reason.as_str(), name);
            assert_eq!(DisconnectReason::from(Cow::Borrowed(name)), reason);
            assert!(matches!(reason.close_code(), 1000 | 1001 | 1008), "{name}");
        }
        let other = DisconnectReason::from(Cow::Borrowed("tea_time"));
        assert_eq!(
            (other.as_str(), other.reconnect(), other.close_code()),
            ("tea_time", true, 1000)
        );
    }

    #[test]
    fn refused_clients_should_not_reconnect() {
        for (name, again) in [
            ("unauthorized", false),
            ("token_expired", false),
            ("idle_timeout", false),
            ("invalid_request", false),
            ("server_restart", true),
            ("remote", true),
            ("no_pong", true),
            ("too_slow", true),
        ] {
            assert_eq!(DisconnectReason::from(Cow::Borrowed(name)).reconnect(), again, "{name}");
        }
    }
}
