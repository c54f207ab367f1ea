//! [`TargetTable`]: the targets of a run: its configured endpoints, and at most
//! [`REDIRECT_HOSTS_MAX`] hosts that answers redirect to.
//!
//! Workers resolve no names: a separate thread does ([`TargetTable::look_up`]) and notifies them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::Endpoint;
use crate::transport::endpoint::Schemes;

/// The most hosts of a run that are only reached by redirects.
pub const REDIRECT_HOSTS_MAX: usize = 32;
/// The most targets of a worker.
const NUMBERS_MAX: usize = 255;

/// The targets of one run. Clones share the table.
#[derive(Clone, Debug)]
pub struct TargetTable(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    first: Vec<Arc<Endpoint>>,
    more: Mutex<Vec<RedirectHost>>,
    asked: Condvar,
    is_over: AtomicBool,
}

/// A host reached by a redirect.
#[derive(Debug)]
struct RedirectHost {
    endpoint: Arc<Endpoint>,
    is_looked_up: bool,
}

impl TargetTable {
    /// A table of the configured endpoints.
    #[must_use]
    pub fn new(endpoints: &[Endpoint]) -> TargetTable {
        TargetTable(Arc::new(Inner {
            first: endpoints.iter().cloned().map(Arc::new).collect(),
            more: Mutex::default(),
            asked: Condvar::new(),
            is_over: AtomicBool::new(false),
        }))
    }

    /// The target of a number. Its name may not be resolved yet.
    #[must_use]
    pub fn endpoint(&self, number: u8) -> Option<Arc<Endpoint>> {
        let number = usize::from(number);
        let first = self.0.first.get(number).cloned();
        first.or_else(|| {
            let more = self.more();
            more.get(number - self.0.first.len()).map(|found| Arc::clone(&found.endpoint))
        })
    }

    /// The target of a number, once its name is resolved.
    pub(crate) fn resolved(&self, number: u8) -> Option<Arc<Endpoint>> {
        let at = usize::from(number);
        if let Some(first) = self.0.first.get(at) {
            return Some(Arc::clone(first));
        }
        let more = self.more();
        let found = more.get(at - self.0.first.len()).filter(|found| found.is_looked_up);
        found.map(|found| Arc::clone(&found.endpoint))
    }

    /// Resolves a Location header, received for a request of `from` to target `number`, to a target
    /// number and a request target. `None` if it is unusable or needs too many hosts.
    pub(crate) fn resolve_location(
        &self,
        number: u8,
        from: &str,
        location: &str,
    ) -> Option<(u8, String)> {
        let location = location.split('#').next()?;
        let usable = |target: &str| target.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
        let absolute = location.strip_prefix("//").map(|rest| (None, rest));
        let split = || location.split_once("://").filter(|(scheme, _)| is_scheme(scheme));
        let absolute = absolute.or_else(|| split().map(|(scheme, rest)| (Some(scheme), rest)));
        if let Some((scheme, rest)) = absolute {
            let at = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, target) = rest.split_at(at);
            let slash = if target.starts_with('/') { "" } else { "/" };
            let target = format!("{slash}{target}");
            let from = self.endpoint(number)?;
            let tls = match scheme {
                None => from.tls,
                Some(web) if web.eq_ignore_ascii_case("https") => true,
                Some(web) if web.eq_ignore_ascii_case("http") => false,
                Some(_) => return None,
            };
            let number = usable(&target).then(|| self.number(&from, tls, authority))??;
            return Some((number, target));
        }
        let (path, _) = from.split_once('?').unwrap_or((from, ""));
        let target = match location.chars().next()? {
            '/' => location.to_owned(),
            '?' => format!("{path}{location}"),
            _ => format!("{}/{location}", path.rsplit_once('/').map_or("", |(folder, _)| folder)),
        };
        usable(&target).then_some((number, target))
    }

    /// The number of a host that `from` redirects to, with the same connect options.
    fn number(&self, from: &Endpoint, tls: bool, authority: &str) -> Option<u8> {
        let same = |one: &Endpoint| {
            one.tls == tls
                && Arc::ptr_eq(&one.options, &from.options)
                && same_authority(&one.host, authority, tls)
        };
        let first = self.0.first.len();
        if let Some(number) = self.0.first.iter().position(|one| same(one)) {
            return u8::try_from(number).ok();
        }
        let mut more = self.more();
        if let Some(number) = more.iter().position(|found| same(&found.endpoint)) {
            return u8::try_from(first + number).ok();
        }
        let number = first + more.len();
        if more.len() >= REDIRECT_HOSTS_MAX || number >= NUMBERS_MAX {
            return None;
        }
        let url = format!("{}://{authority}/", if tls { "https" } else { "http" });
        let endpoint = Endpoint::read(Schemes::WEB, &url, &from.options).ok()?;
        let client = from.options.tls.as_ref().filter(|_| tls);
        let client = client.and_then(|client| client.named(endpoint.server_name()).ok());
        // Its requests are rendered for its route before its name is resolved.
        let route = from.options.route(&endpoint, true);
        let endpoint = Arc::new(Endpoint { client, route, ..endpoint });
        more.push(RedirectHost { endpoint, is_looked_up: false });
        self.0.asked.notify_one();
        u8::try_from(number).ok()
    }

    /// Resolves names as they are added and calls `found` after each, until [`TargetTable::end`].
    pub(crate) fn look_up(&self, mut found: impl FnMut()) {
        let mut more = self.more();
        while !self.0.is_over.load(Ordering::Acquire) {
            let Some(at) = more.iter().position(|found| !found.is_looked_up) else {
                more = self.0.asked.wait(more).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(endpoint) = more.get(at).map(|found| Endpoint::clone(&found.endpoint)) else {
                continue;
            };
            // It may take seconds, so the table is not locked meanwhile.
            drop(more);
            let options = Arc::clone(&endpoint.options);
            let endpoint = Arc::new(options.resolved(endpoint, true));
            if let Some(place) = self.more().get_mut(at) {
                *place = RedirectHost { endpoint, is_looked_up: true };
            }
            found();
            more = self.more();
        }
    }

    /// Ends [`TargetTable::look_up`].
    pub(crate) fn end(&self) {
        // Under the lock, or it could fall between the check and the wait.
        let _more = self.more();
        self.0.is_over.store(true, Ordering::Release);
        self.0.asked.notify_all();
    }

    fn more(&self) -> MutexGuard<'_, Vec<RedirectHost>> {
        self.0.more.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a text is a URL scheme, as a path may contain `://` too.
fn is_scheme(text: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.bytes().all(rest)
}

fn same_authority(one: &str, other: &str, tls: bool) -> bool {
    let port = if tls { ":443" } else { ":80" };
    let bare = |text: &str| text.strip_suffix(port).unwrap_or(text).to_ascii_lowercase();
    bare(one) == bare(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_hosts_are_numbered_once_resolved_and_bounded() {
        let endpoint = Endpoint::parse_web("http://127.0.0.1:81/").unwrap();
        let targets = TargetTable::new(&[endpoint]);
        let to =
            |location: &str| targets.resolve_location(0, "/", location).map(|(number, _)| number);
        assert_eq!((to("/x"), to("http://127.0.0.1:81/y")), (Some(0), Some(0)));
        assert_eq!((to("http://A.invalid/"), to("http://a.invalid:80/z")), (Some(1), Some(1)));
        assert_eq!((to("https://a.invalid/"), to("//127.0.0.1:82")), (Some(2), Some(3)));
        assert!(targets.resolved(1).is_none() && targets.resolved(9).is_none());
        let mut seen = 0;
        let own = targets.clone();
        targets.look_up(|| {
            seen += 1;
            if seen == 3 {
                own.end();
            }
        });
        assert_eq!(targets.resolved(3).unwrap().address.to_string(), "127.0.0.1:82");
        let dead = targets.resolved(1).unwrap();
        assert!(matches!(dead.route, crate::Route::Unresolved(_)), "{dead:?}");
        for number in 3..REDIRECT_HOSTS_MAX {
            assert_eq!(to(&format!("http://h{number}/")), Some(number as u8 + 1));
        }
        assert_eq!((to("http://one-more/"), to("http://h3/")), (None, Some(4)));
    }
}
