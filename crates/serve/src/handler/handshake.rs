//! [`Handshakes`]: what calls of the application repeat of a client's handshake.

use std::borrow::Cow;

use engine::{Answer, ConnId, Core, Handler, Response, Sys, retry_after};
use wire::http::Request;

use crate::app::AppConfig;
use crate::app::call::{Env, REMOTE_ADDR};

/// Which parts of a handshake calls repeat.
pub(super) struct Handshakes {
    headers: Vec<Box<str>>,
    /// The cookies; by default all.
    cookies: Vec<Box<str>>,
}

impl Handshakes {
    pub(super) fn new(config: &AppConfig) -> Self {
        Handshakes { headers: config.proxy_headers.clone(), cookies: config.proxy_cookies.clone() }
    }

    /// The URL and the headers of a handshake.
    pub(super) fn env<S: Sys, H: Handler>(
        &self,
        core: &Core<S, H>,
        id: ConnId,
        head: &Request<'_, '_>,
    ) -> Env {
        let scheme = if core.is_encrypted(id) { "https" } else { "http" };
        let host = String::from_utf8_lossy(head.authority().unwrap_or_default());
        let query = head.query().map(|query| format!("?{query}")).unwrap_or_default();
        let url = format!("{scheme}://{host}{}{query}", head.path());
        let mut headers: Vec<(&str, Cow<'_, str>)> = Vec::with_capacity(self.headers.len() + 1);
        for name in &self.headers {
            let Some(value) = head.header(name) else { continue };
            let value = String::from_utf8_lossy(value);
            let value = match &**name {
                "cookie" if !self.cookies.is_empty() => selected(&value, &self.cookies).into(),
                _ => value,
            };
            if !value.is_empty() {
                headers.push((name, value));
            }
        }
        let (peer, client) = core.addresses(id);
        let address = client.or(peer).map(|address| address.to_string()).unwrap_or_default();
        headers.push((REMOTE_ADDR, address.into()));
        Env::new(&url, headers.iter().map(|(name, value)| (*name, &**value)))
    }
}

/// The cookies with these names.
fn selected(cookies: &str, names: &[Box<str>]) -> String {
    let all = cookies.split(';').map(str::trim);
    let kept = all.filter(|cookie| {
        let name = cookie.split_once('=').map_or(*cookie, |(name, _)| name);
        names.iter().any(|wanted| **wanted == *name)
    });
    kept.collect::<Vec<&str>>().join("; ")
}

/// The refusal of a client for which the application cannot be called: it comes back after a while that
/// differs from client to client.
pub(super) fn unavailable(why: &'static str, random: u64) -> Answer {
    let mut response = Response::text(503, why);
    response.headers.push(("Retry-After".into(), retry_after(random).into()));
    response.close = true;
    Answer::Respond(response)
}

/// The same because the queue is full.
pub(super) fn too_many_wait(random: u64) -> Answer {
    unavailable("Too many clients wait for the application: try again.\n", random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_selected_by_name() {
        let names = ["a".into(), "c".into()];
        assert_eq!(selected("a=1; b=2;c=x=y ; aa=3", &names), "a=1; c=x=y");
        assert_eq!(selected("b=2", &names), "");
    }
}
