//! [`Request`]: the head of a request, and a body that was read; [`UpgradeRequest`]: one that asks for a
//! WebSocket.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Deref;

use engine::{Core, Sys};
use wire::http;
use wire::websocket::Upgrade;

use crate::decision::undecided;
use crate::handler::Decided;
use crate::pattern::{Pattern, decode, query_value};
use crate::{Accept, Decision, Remote, SocketId};

/// A request, valid for the call only: copy what is needed later.
pub struct Request<'r> {
    pub(crate) head: &'r http::Request<'r, 'r>,
    pub(crate) pattern: &'r Pattern,
    pub(crate) body: &'r [u8],
    pub(crate) client: &'r dyn Client,
    pub(crate) remote: &'r Remote,
}

/// What a request can ask of its connection.
pub(crate) trait Client {
    /// The address of the other end, and that of the client which a proxy has reported.
    fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>);
    fn certificate(&self) -> Option<&[u8]>;
}

/// A connection of a server.
pub(crate) struct Connected<'c, S: Sys, H: engine::Handler>(
    pub(crate) &'c Core<S, H>,
    pub(crate) SocketId,
);

impl<S: Sys, H: engine::Handler> Client for Connected<'_, S, H> {
    fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        self.0.addresses(self.1)
    }

    fn certificate(&self) -> Option<&[u8]> {
        self.0.client_certificate(self.1)
    }
}

impl<'r> Request<'r> {
    /// The method as sent, such as `GET`.
    #[must_use]
    pub fn method(&self) -> &'r str {
        self.head.method
    }

    /// The path as sent, without the query: visible ASCII.
    #[must_use]
    pub fn path(&self) -> &'r str {
        self.head.path()
    }

    /// The decoded value of a parameter of the route, such as `room` in `/chat/{room}`; `None` if the route
    /// has no such parameter or the value is not UTF-8 in percent-encoding. It is not empty.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<Cow<'r, str>> {
        decode(self.pattern.value(self.path(), name)?)
    }

    /// The query as sent, without its question mark.
    #[must_use]
    pub fn query_string(&self) -> Option<&'r str> {
        self.head.query()
    }

    /// The decoded value of the first query parameter of this name. One without a value is empty.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<Cow<'r, str>> {
        query_value(self.head.query()?, name)
    }

    /// The value of the first header of this name, in any case; `None` if it is not UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'r str> {
        std::str::from_utf8(self.head.header(name)?).ok()
    }

    /// All header lines in order, with names as sent.
    pub fn headers(&self) -> impl Iterator<Item = (&'r str, &'r [u8])> {
        self.head.headers.iter().map(|header| (header.name, header.value))
    }

    /// The token of `Authorization: Bearer …` (RFC 6750 section 2.1).
    #[must_use]
    pub fn bearer_token(&self) -> Option<&'r str> {
        let (scheme, token) = self.header("authorization")?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    }

    /// The value of a cookie as sent.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&'r str> {
        let lines = self.headers().filter(|(header, _)| header.eq_ignore_ascii_case("cookie"));
        let values = lines.filter_map(|(_, value)| std::str::from_utf8(value).ok());
        let mut pairs =
            values.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    }

    /// The body; empty for a route that reads none.
    #[must_use]
    pub fn body(&self) -> &'r [u8] {
        self.body
    }

    /// The client's address; `None` for one that is gone. Cost: a system call.
    #[must_use]
    pub fn client_address(&self) -> Option<IpAddr> {
        let (peer, client) = self.client.addresses();
        client.or(peer)
    }

    /// The certificate with which the client has proved who it is, in DER: with a [`TlsServer`](crate::TlsServer)
    /// that asks for one ([`ClientAuth`](crate::ClientAuth)). One of its authorities has signed it.
    #[must_use]
    pub fn client_certificate(&self) -> Option<&'r [u8]> {
        self.client.certificate()
    }

    /// The handle to this server for other threads.
    #[must_use]
    pub fn remote(&self) -> &'r Remote {
        self.remote
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method(), self.path())
    }
}

/// A request that asks for a WebSocket. It is a valid handshake (RFC 6455 section 4.2.1).
pub struct UpgradeRequest<'r> {
    pub(crate) request: &'r Request<'r>,
    pub(crate) upgrade: &'r Upgrade<'r>,
    pub(crate) id: SocketId,
}

impl<'r> Deref for UpgradeRequest<'r> {
    type Target = Request<'r>;

    fn deref(&self) -> &Request<'r> {
        self.request
    }
}

impl<'r> UpgradeRequest<'r> {
    /// The subprotocols that the client offers, in its order of preference.
    pub fn protocols(&self) -> impl Iterator<Item = &'r str> {
        self.upgrade.protocols()
    }

    /// Whether the client offers this subprotocol.
    #[must_use]
    pub fn offers(&self, protocol: &str) -> bool {
        self.protocols().any(|offered| offered == protocol)
    }

    /// The id that the socket will have.
    #[must_use]
    pub fn id(&self) -> SocketId {
        self.id
    }

    /// Decides later: return the [`Accept`], and let another thread or a future use the [`Decision`]. The
    /// client waits, and is not read meanwhile.
    ///
    /// ```
    /// # use standfast::{Accept, Handler, Message, Response, Socket, UpgradeRequest};
    /// # #[derive(Clone)] struct Slow;
    /// # fn look_up(_token: &str) -> Option<String> { None }
    /// impl Handler for Slow {
    ///     type Data = String;
    ///
    ///     fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<String>, Response> {
    ///         let token = request.bearer_token().ok_or_else(|| Response::new(401))?.to_owned();
    ///         let (decision, later) = request.later();
    ///         std::thread::spawn(move || match look_up(&token) {
    ///             Some(user) => decision.accept(user),
    ///             None => decision.refuse(Response::new(403)),
    ///         });
    ///         Ok(later)
    ///     }
    /// #     fn message(&mut self, _: &mut Socket<'_>, _: &mut String, _: Message<'_>) {}
    /// }
    /// ```
    #[must_use]
    pub fn later<D>(&self) -> (Decision<D>, Accept<D>) {
        let (decision, undecided) = undecided(self.id, self.request.remote.clone());
        (decision, Accept(Decided::Later(undecided)))
    }
}

impl std::fmt::Debug for UpgradeRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.request.fmt(f)
    }
}
