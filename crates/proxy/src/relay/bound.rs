//! Connections on which an upstream authenticates its client. NTLM and Negotiate authenticate a
//! connection, not a request: the upstream answers every later request on it as that user (RFC 4559
//! section 6). Such a connection is never shared. It serves one client connection and ends with it.

use std::collections::HashMap;
use std::sync::Arc;

use engine::{ConnId, Core, Mode, Sys};
use wire::http::Header;

use super::{ConnectionKind, Relay, port_of};
use crate::balance::{Permit, PickContext, PickError, Pool};

/// Beginnings of the schemes that authenticate a connection. `nego` includes `Nego2`.
const SCHEMES: [&[u8]; 3] = [b"kerberos", b"nego", b"ntlm"];

/// Maximum number of idle bound connections of a worker. They count for no upstream's `max`.
pub(super) const BOUND_MAX: usize = 1024;

/// The bound connections that are idle, by their client: at most one for each.
#[derive(Default)]
pub(super) struct BoundConnections(HashMap<ConnId, BoundConnection>);

/// An idle upstream connection that serves one client only.
pub(super) struct BoundConnection {
    pub(super) upstream: ConnId,
    /// The upstream's connection key when it was made.
    pub(super) key: u64,
    pub(super) pool: Arc<Pool>,
    /// Its last response was a challenge: credentials for another upstream would be wrong, and clients
    /// take that for a wrong password.
    pub(super) authenticating: bool,
}

/// Whether credentials in these headers authenticate the connection.
pub(super) fn has_credentials(headers: &[Header<'_>]) -> bool {
    any_scheme(headers, &["authorization"])
}

/// Whether a response with this status asks for credentials that authenticate the connection.
pub(super) fn is_challenge(status: u16, headers: &[Header<'_>]) -> bool {
    matches!(status, 401 | 407) && any_scheme(headers, &["www-authenticate", "proxy-authenticate"])
}

fn any_scheme(headers: &[Header<'_>], names: &[&str]) -> bool {
    let mut named = headers
        .iter()
        .filter(|header| names.iter().any(|name| header.name.eq_ignore_ascii_case(name)));
    named.any(|header| has_scheme(header.value))
}

/// Whether a list of challenges, or credentials, name one of the schemes. A comma within quotes may
/// make this true of another scheme, whose connection is then not shared either.
fn has_scheme(value: &[u8]) -> bool {
    value.split(|byte| *byte == b',').any(|item| {
        let item = item.trim_ascii_start();
        let begins = |scheme: &&[u8]| {
            item.get(..scheme.len()).is_some_and(|front| front.eq_ignore_ascii_case(scheme))
        };
        SCHEMES.iter().any(begins)
    })
}

impl BoundConnections {
    /// Acquires a permit at the upstream of the client's connection. `None` if it has none in this
    /// pool, or its upstream takes no requests.
    pub(super) fn pick(
        &self,
        client: ConnId,
        pool: &Pool,
        key: &PickContext<'_>,
    ) -> Option<Result<Permit, PickError>> {
        if self.0.is_empty() {
            return None;
        }
        let bound = self.0.get(&client).filter(|bound| bound.pool.shares_queue_with(pool))?;
        pool.pick_member(bound.key, key, bound.authenticating)
    }
}

impl Relay {
    /// Sends a request on its client's bound connection. Resets that connection instead if the request
    /// has to go elsewhere within its pool.
    pub(super) fn take_bound<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32) -> bool {
        if self.bound.0.is_empty() {
            return false;
        }
        let Some(exchange) = self.exchanges.get(index) else { return false };
        let (client, key) = (exchange.client, exchange.connection_key);
        let Some(bound) = self.bound.0.get(&client) else { return false };
        if !bound.pool.shares_queue_with(&exchange.pool) {
            return false;
        }
        let upstream = bound.upstream;
        let usable = bound.key == key && core.mode(upstream) == Some(Mode::Raw);
        if !usable || exchange.new_connection_only {
            self.unbind(core, client);
            return false;
        }
        (exchange.private, exchange.challenged) = (true, true);
        self.forget_bound(client);
        self.send_on(core, index, upstream);
        true
    }

    /// Keeps an idle connection for the next requests of this client, unless there are too many.
    pub(super) fn bind<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        client: ConnId,
        bound: BoundConnection,
    ) {
        self.unbind(core, client);
        let upstream = bound.upstream;
        let port = port_of(core, upstream);
        let full = self.bound.0.len() >= BOUND_MAX;
        self.counters().unbound.add(u64::from(full));
        if full || core.mode(upstream) != Some(Mode::Raw) {
            Self::set(core, upstream, ConnectionKind::Unused);
            return core.abort(upstream);
        }
        Self::set(core, upstream, ConnectionKind::BoundConnection(client, port));
        self.bound.0.insert(client, bound);
        self.counters().bound.add(1);
    }

    /// Resets the connection that is bound to a client, if there is one.
    pub(super) fn unbind<S: Sys>(&mut self, core: &mut Core<S, Self>, client: ConnId) {
        if self.bound.0.is_empty() {
            return;
        }
        if let Some(upstream) = self.forget_bound(client) {
            Self::set(core, upstream, ConnectionKind::Unused);
            core.reset(upstream);
        }
    }

    /// Resets all bound connections.
    pub(super) fn unbind_all<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        for (_, bound) in std::mem::take(&mut self.bound.0) {
            self.counters().bound.sub(1);
            Self::set(core, bound.upstream, ConnectionKind::Unused);
            core.reset(bound.upstream);
        }
    }

    /// Forgets the connection that is bound to a client.
    pub(super) fn forget_bound(&mut self, client: ConnId) -> Option<ConnId> {
        let bound = self.bound.0.remove(&client)?;
        self.counters().bound.sub(1);
        Some(bound.upstream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_that_authenticate_a_connection_are_found_in_lists() {
        for value in [
            "NTLM",
            "ntlm TlRMTVNTUAAB",
            "Negotiate YII=",
            "Nego2",
            "Kerberos x",
            "Basic realm=\"a\", Negotiate",
            "Digest a=b ,  NTLM",
        ] {
            assert!(has_scheme(value.as_bytes()), "{value}");
        }
        for value in
            ["", "Basic TlRMOm50bG0=", "Bearer ntlm", "Digest username=\"negotiate\"", "NT"]
        {
            assert!(!has_scheme(value.as_bytes()), "{value}");
        }
        let header = |name, value: &'static str| Header { name, value: value.as_bytes() };
        let basic = header("WWW-Authenticate", "Basic");
        let ntlm = header("www-authenticate", "NTLM");
        assert!(is_challenge(401, &[basic, ntlm]) && !is_challenge(401, &[basic]));
        assert!(!is_challenge(200, &[ntlm]), "only requests with credentials authenticate");
        assert!(has_credentials(&[header("AUTHORIZATION", "NTLM a")]));
        assert!(!has_credentials(&[header("X-Authorization", "NTLM a")]));
    }
}
