//! [`RequestContext`]: who sent a request and what the settings of its route do with it.

use std::sync::Arc;

use wire::http::Request;

use crate::config::{BodyLimits, Live};
use crate::headers::{ClientIdentity, RequestChanges, answer_lines};
use crate::request_id::{self, RequestIds};
use crate::routes::{RouteSettings, Variables};

/// Headers that the proxy's own responses set themselves.
const OWN: [&str; 4] = ["allow", "connection", "content-type", "retry-after"];

/// The client of a request, its id, and the settings of its route once that is found.
pub(super) struct RequestContext {
    pub(super) identity: ClientIdentity,
    pub(super) id: Option<Box<str>>,
    ids: RequestIds,
    pub(super) settings: Option<Arc<RouteSettings>>,
}

impl RequestContext {
    pub(super) fn new(
        request: &Request<'_, '_>,
        identity: ClientIdentity,
        ids: RequestIds,
        random: impl FnMut() -> u64,
    ) -> RequestContext {
        let id = (ids != RequestIds::Off).then(|| request_id::of(request, &identity, random));
        RequestContext { identity, id, ids, settings: None }
    }

    /// Sets the settings of the route that was found.
    pub(super) fn routed(
        &mut self,
        settings: Option<&Arc<RouteSettings>>,
        random: impl FnMut() -> u64,
    ) {
        self.settings = settings.cloned();
        let needed = settings.is_some_and(|settings| settings.uses_request_id());
        if needed && self.id.is_none() {
            self.id = Some(request_id::new(random));
        }
    }

    /// The limits of the request's body.
    pub(super) fn bodies(&self, live: &Live) -> BodyLimits {
        self.settings.as_ref().map_or(live.bodies, |settings| settings.bodies(&live.bodies))
    }

    /// Whether the response gets the request id.
    pub(super) fn answers_id(&self) -> bool {
        self.ids == RequestIds::All
    }

    /// What changes in the head for the upstream.
    pub(super) fn request_changes<'c>(&'c self, request: &Request<'_, 'c>) -> RequestChanges<'c> {
        let rules = self.settings.as_ref().map_or(&[][..], |settings| &settings.request_headers);
        let sends_id = self.ids != RequestIds::Off;
        RequestChanges { rules, variables: self.variables(request), sends_id }
    }

    /// Encodes the headers that the response gets.
    pub(super) fn answer_lines(&self, request: &Request<'_, '_>) -> Vec<u8> {
        let rules = self.settings.as_ref().map_or(&[][..], |settings| &settings.response_headers);
        if rules.is_empty() && !self.answers_id() {
            return Vec::new();
        }
        answer_lines(rules, self.answers_id(), &self.variables(request))
    }

    fn variables<'c>(&'c self, request: &Request<'_, 'c>) -> Variables<'c> {
        Variables {
            remote_addr: self.identity.address(),
            host: request.authority().unwrap_or_default(),
            secure: self.identity.secure,
            request_id: self.id.as_deref(),
        }
    }
}

/// The headers in encoded lines that a response of the proxy itself can get.
pub(super) fn for_own_response(lines: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let lines = std::str::from_utf8(lines).unwrap_or_default().split_terminator("\r\n");
    let pairs = lines.filter_map(|line| line.split_once(": "));
    pairs.filter(|(name, _)| !OWN.iter().any(|own| name.eq_ignore_ascii_case(own)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_responses_keep_their_own_headers() {
        let lines = b"X-A: b: c\r\nContent-Type: text/html\r\nretry-after: 1\r\nX-D: e\r\n";
        let pairs: Vec<_> = for_own_response(lines).collect();
        assert_eq!(pairs, [("X-A", "b: c"), ("X-D", "e")]);
        assert_eq!(for_own_response(b"").count(), 0);
    }
}
