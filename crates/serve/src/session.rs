//! [`Session`]: the handler's data of a connection: its protocol and subscriptions. 16 bytes, no
//! allocation with one subscription.

use action_cable::{Encoding, Protocol};
use engine::invariant;
use topics::{Memberships, Subscriber};

/// The protocol of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionProtocol {
    /// HTTP; not upgraded.
    Http,
    /// `/echo`.
    Echo,
    /// `/topics/NAME`.
    Topic,
    /// Server-sent events.
    Events,
    /// Action Cable.
    Cable,
    /// Action Cable in AnyCable's extended form.
    CableExt,
    /// `/topics/NAME`, by a client that may not publish.
    TopicReader,
    /// `/topics/NAME`, by a client whose messages the application decides about.
    TopicAsker,
}

impl SessionProtocol {
    const ALL: [SessionProtocol; 8] = [
        SessionProtocol::Http,
        SessionProtocol::Echo,
        SessionProtocol::Topic,
        SessionProtocol::Events,
        SessionProtocol::Cable,
        SessionProtocol::CableExt,
        SessionProtocol::TopicReader,
        SessionProtocol::TopicAsker,
    ];

    /// Its name in the list of connections.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SessionProtocol::Http => "http",
            SessionProtocol::Echo => "echo",
            SessionProtocol::Topic | SessionProtocol::TopicReader | SessionProtocol::TopicAsker => {
                "topic"
            }
            SessionProtocol::Events => "events",
            SessionProtocol::Cable => "cable",
            SessionProtocol::CableExt => "cable_ext",
        }
    }

    /// The first protocol with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        SessionProtocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// All names.
    pub(crate) fn names() -> String {
        let all = SessionProtocol::ALL;
        let named = all.iter().filter(|own| SessionProtocol::named(own.name()) == Some(**own));
        named.map(|own| own.name()).collect::<Vec<_>>().join(", ")
    }

    /// Whether its clients expect periodic heartbeats.
    pub(crate) fn has_heartbeat(self) -> bool {
        matches!(self, SessionProtocol::Events | SessionProtocol::Cable | SessionProtocol::CableExt)
    }
}

/// The protocol and the subscriptions of a connection. The mark holds a [`SessionProtocol`] in its lower
/// byte and an [`Encoding`] in the other.
#[derive(Default)]
pub(crate) struct Session(Memberships);

const _: () = assert!(size_of::<Session>() == 16);

impl Session {
    pub(crate) fn new(protocol: SessionProtocol) -> Self {
        Session(Memberships::marked(protocol as u16))
    }

    /// A session of Action Cable.
    pub(crate) fn cable(protocol: Protocol) -> Self {
        let own =
            if protocol.extended { SessionProtocol::CableExt } else { SessionProtocol::Cable };
        Session(Memberships::marked(own as u16 | (protocol.encoding as u16) << 8))
    }

    #[inline]
    pub(crate) fn protocol(&self) -> SessionProtocol {
        let Some(protocol) = SessionProtocol::ALL.get(usize::from(self.0.mark() & 0xff)) else {
            invariant::broken("a session is marked with its protocol");
            return SessionProtocol::Http;
        };
        *protocol
    }

    /// How messages of the protocol are written.
    #[inline]
    pub(crate) fn encoding(&self) -> Encoding {
        let encoding = Encoding::ALL.get(usize::from(self.0.mark() >> 8));
        encoding.copied().unwrap_or_default()
    }

    pub(crate) fn subscriptions(&self) -> &Memberships {
        &self.0
    }
}

impl Subscriber for Session {
    type Mark = u16;

    fn memberships(&mut self) -> &mut Memberships {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_keeps_its_protocol() {
        assert_eq!(Session::default().protocol(), SessionProtocol::Http);
        for (at, protocol) in SessionProtocol::ALL.into_iter().enumerate() {
            assert_eq!((protocol as usize, Session::new(protocol).protocol()), (at, protocol));
            let named = SessionProtocol::named(protocol.name()).map(SessionProtocol::name);
            assert_eq!(named, Some(protocol.name()));
        }
        for protocol in Protocol::all() {
            let session = Session::cable(protocol);
            assert_eq!(session.encoding(), protocol.encoding);
            assert_eq!(session.protocol() == SessionProtocol::CableExt, protocol.extended);
            assert!(session.protocol().has_heartbeat());
        }
    }
}
