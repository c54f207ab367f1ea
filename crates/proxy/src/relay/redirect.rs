//! Redirects requests on plain listeners to https, once a route has accepted their host: a client of
//! another name gets 404 and no URL.

use std::sync::Arc;

use engine::{Answer, ConnId, Core, Incoming, Sys};

use super::Relay;
use crate::access_log::Side;
use crate::balance::Pool;

impl Relay {
    /// The redirect of a request to https, if it is to be redirected.
    pub(super) fn redirect_to_https<S: Sys>(
        &self,
        core: &Core<S, Self>,
        client: ConnId,
        incoming: &Incoming<'_, '_>,
        pool: &Arc<Pool>,
    ) -> Option<Answer> {
        let redirect = self.live.redirect.as_ref()?;
        let response = redirect.answer(core, client, incoming.head, self.shared.tls_port)?;
        self.counters().https_redirects.add(u64::from(response.status == 308));
        if self.shared.has_log() {
            let (peer, named) = core.addresses(client);
            let (from, now_ns) = (named.or(peer), core.now_ns());
            let entry = self.shared.begin_log_entry(incoming.head, from, Some(pool.name()), now_ns);
            if let Some(mut entry) = entry {
                entry.status = response.status;
                let by = (Side::Proxy, "https_redirect");
                self.shared.record(*entry, None, (0, 0), by, now_ns);
            }
        }
        Some(Answer::Respond(response))
    }
}
