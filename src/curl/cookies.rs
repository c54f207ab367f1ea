//! Cookie files of `-b FILE`: in Netscape's format, one cookie per line in seven columns, or as header
//! lines of a response (curl.se/docs/http-cookies.html). Cookies of responses are not added.

use std::time::SystemTime;

/// Prefix of an HttpOnly cookie; other lines with # are comments.
const HTTP_ONLY: &str = "#HttpOnly_";

/// A cookie with its scope.
pub(super) struct Cookie {
    pair: String,
    /// Empty matches every host.
    domain: String,
    /// Whether subdomains match.
    is_wide: bool,
    path: String,
    is_secure: bool,
}

/// Returns the cookies of a file without invalid lines and expired cookies.
pub(super) fn read(text: &str) -> Vec<Cookie> {
    #[allow(clippy::disallowed_methods, reason = "only the system knows the time of day")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    text.lines().filter_map(|line| cookie(line, now.as_secs())).collect()
}

fn cookie(line: &str, now: u64) -> Option<Cookie> {
    let (name, value) = line.split_once(':').unwrap_or_default();
    if name.eq_ignore_ascii_case("set-cookie") {
        let pair = value.split(';').next().unwrap_or_default().trim();
        return pair.contains('=').then(|| Cookie {
            pair: pair.to_owned(),
            domain: String::new(),
            is_wide: true,
            path: "/".to_owned(),
            is_secure: false,
        });
    }
    let line = line.strip_prefix(HTTP_ONLY).unwrap_or(line);
    if line.starts_with('#') {
        return None;
    }
    let columns: Vec<&str> = line.split('\t').collect();
    let [domain, wide, path, secure, until, name, value] = columns.as_slice() else { return None };
    let until: u64 = until.parse().ok()?;
    (until == 0 || until > now).then(|| Cookie {
        pair: format!("{name}={value}"),
        domain: domain.trim_start_matches('.').to_owned(),
        is_wide: wide.eq_ignore_ascii_case("true"),
        path: (*path).to_owned(),
        is_secure: secure.eq_ignore_ascii_case("true"),
    })
}

impl Cookie {
    /// Returns `name=value`.
    pub(super) fn pair(&self) -> String {
        self.pair.clone()
    }

    /// Returns whether the cookie is sent to this URL (RFC 6265 section 5.4).
    pub(super) fn matches(&self, url: &str) -> bool {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = if path.is_empty() { "/" } else { path };
        let named = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let named = named.rsplit_once(':').map_or(named, |(name, _)| name).to_ascii_lowercase();
        let domain = self.domain.to_ascii_lowercase();
        let within = named.strip_suffix(&domain).is_some_and(|rest| rest.ends_with('.'));
        let is_host = domain.is_empty() || named == domain || self.is_wide && within;
        let below = path.strip_prefix(&self.path);
        let is_path = below.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with('/') || self.path.ends_with('/')
        });
        is_host && is_path && (!self.is_secure || scheme.eq_ignore_ascii_case("https"))
    }
}
