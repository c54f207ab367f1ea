//! [`CookieJar`]: the cookies of one user (RFC 6265), stored, matched and expired as in browsers, and
//! bounded. Instead of a list of public suffixes, a domain without a dot is rejected.
//!
//! No library is used, as they read the clock, have no bounds, and depend on the tables of
//! internationalised names.

/// The most cookies of a user; the oldest is dropped.
pub const COOKIES_MAX: usize = 50;
/// The most bytes of a cookie's name and value; a longer one is dropped.
pub const COOKIE_BYTES_MAX: usize = 4_096;

/// One user's cookies.
#[derive(Clone, Default, Debug)]
pub(crate) struct CookieJar {
    /// In the order they were first set.
    cookies: Vec<Cookie>,
}

#[derive(Clone, Debug)]
struct Cookie {
    name: Box<str>,
    value: Box<str>,
    domain: Box<str>,
    /// Only for the host itself, without subdomains.
    is_host_only: bool,
    path: Box<str>,
    secure: bool,
    /// In milliseconds since 1970.
    expires_ms: u64,
}

/// The target of a request or the source of an answer.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Site<'a> {
    /// Name or address, without port.
    pub(crate) host: &'a str,
    /// The request target; a query is ignored.
    pub(crate) path: &'a str,
    /// Whether TLS is used.
    pub(crate) secure: bool,
}

impl CookieJar {
    /// Handles a Set-Cookie header (section 5.3).
    pub(crate) fn set(&mut self, line: &[u8], site: &Site<'_>, now_ms: u64) {
        let Some(cookie) = std::str::from_utf8(line).ok().and_then(|line| read(line, site, now_ms))
        else {
            return;
        };
        let same = |one: &Cookie| {
            (&one.name, &one.domain, &one.path) == (&cookie.name, &cookie.domain, &cookie.path)
        };
        let before = self.cookies.iter().position(same);
        match before {
            _ if cookie.expires_ms <= now_ms => {
                before.map(|at| self.cookies.remove(at));
            }
            // It keeps its position.
            Some(at) => self.cookies[at] = cookie,
            None => {
                if self.cookies.len() >= COOKIES_MAX {
                    self.cookies.retain(|one| one.expires_ms > now_ms);
                }
                if self.cookies.len() >= COOKIES_MAX {
                    self.cookies.remove(0);
                }
                self.cookies.push(cookie);
            }
        }
    }

    /// Appends the value of the Cookie header for a site (section 5.4); false if there is none.
    pub(crate) fn render(&self, out: &mut Vec<u8>, site: &Site<'_>, now_ms: u64) -> bool {
        let path = path_of(site.path);
        let fits = |cookie: &&Cookie| {
            let host = match cookie.is_host_only {
                true => site.host.eq_ignore_ascii_case(&cookie.domain),
                false => is_of_domain(site.host, &cookie.domain),
            };
            let due = cookie.expires_ms > now_ms && (site.secure || !cookie.secure);
            host && due && is_below(path, &cookie.path)
        };
        let begin = out.len();
        // Longer paths first, then older cookies; few are of more than one length.
        let mut longest = usize::MAX;
        loop {
            let shorter = self.cookies.iter().filter(fits).map(|cookie| cookie.path.len());
            let Some(length) = shorter.filter(|&length| length < longest).max() else { break };
            for cookie in self.cookies.iter().filter(fits).filter(|c| c.path.len() == length) {
                if out.len() > begin {
                    out.extend_from_slice(b"; ");
                }
                for text in [&*cookie.name, "=", &*cookie.value] {
                    out.extend_from_slice(text.as_bytes());
                }
            }
            longest = length;
        }
        out.len() > begin
    }
}

/// Parses a Set-Cookie header (sections 5.2 and 5.3).
fn read(line: &str, site: &Site<'_>, now_ms: u64) -> Option<Cookie> {
    let mut parts = line.split(';');
    let (name, value) = parts.next()?.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let breaks = |text: &str| text.bytes().any(|byte| byte.is_ascii_control());
    if name.is_empty() || name.len() + value.len() > COOKIE_BYTES_MAX || breaks(line) {
        return None;
    }
    let mut cookie = Cookie {
        name: name.into(),
        value: value.into(),
        domain: site.host.to_ascii_lowercase().into(),
        is_host_only: true,
        path: default_path(site.path).into(),
        secure: false,
        expires_ms: u64::MAX,
    };
    let mut max_age = None;
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        match key.as_str() {
            "expires" => cookie.expires_ms = date_ms(value).unwrap_or(cookie.expires_ms),
            "max-age" => max_age = value.parse::<i64>().ok().or(max_age),
            "domain" if !value.is_empty() => {
                let domain = value.strip_prefix('.').unwrap_or(value).to_ascii_lowercase();
                let own = site.host.eq_ignore_ascii_case(&domain);
                let below = domain.contains('.') && is_of_domain(site.host, &domain);
                if !own && !below {
                    return None;
                }
                (cookie.domain, cookie.is_host_only) = (domain.into(), false);
            }
            "path" if value.starts_with('/') => cookie.path = value.into(),
            "secure" => cookie.secure = true,
            _ => {}
        }
    }
    if let Some(seconds) = max_age {
        let milliseconds = u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000);
        cookie.expires_ms = if milliseconds == 0 { 0 } else { now_ms.saturating_add(milliseconds) };
    }
    (cookie.path.len() <= COOKIE_BYTES_MAX).then_some(cookie)
}

/// Domain matching (section 5.1.3): equal, or a subdomain unless the host is an address.
fn is_of_domain(host: &str, domain: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let below = host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    host == domain || below && host.parse::<std::net::IpAddr>().is_err()
}

/// Path matching (section 5.1.4).
fn is_below(path: &str, cookie: &str) -> bool {
    path.strip_prefix(cookie)
        .is_some_and(|rest| rest.is_empty() || cookie.ends_with('/') || rest.starts_with('/'))
}

fn path_of(target: &str) -> &str {
    target.split('?').next().unwrap_or_default()
}

fn default_path(target: &str) -> &str {
    let path = path_of(target);
    match path.rfind('/') {
        Some(at) if at > 0 && path.starts_with('/') => path.get(..at).unwrap_or("/"),
        _ => "/",
    }
}

/// Parses a cookie date (section 5.1.1) to milliseconds since 1970; 0 if earlier.
fn date_ms(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let is_delimiter = |char: char| !(char.is_ascii_alphanumeric() || char == ':');
    let (mut time, mut day, mut month, mut year) = (None, None, None, None);
    for token in text.split(is_delimiter).filter(|token| !token.is_empty()) {
        let number = token.parse::<i64>().ok();
        let three = token.get(..3).map(str::to_ascii_lowercase);
        let named = MONTHS.iter().position(|name| three.as_deref() == Some(name));
        match (number, named) {
            _ if time.is_none() && token.contains(':') => time = Some(clock(token)?),
            (Some(number), _) if day.is_none() && token.len() <= 2 => day = Some(number),
            (Some(number), _) if year.is_none() && matches!(token.len(), 2 | 4) => {
                year = Some(match number {
                    70..=99 => number + 1_900,
                    0..=69 => number + 2_000,
                    number => number,
                });
            }
            (None, Some(at)) if month.is_none() => month = Some(at as i64 + 1),
            _ => {}
        }
    }
    let (day, month, year) = (day?, month?, year?);
    if !(1..=31).contains(&day) || year < 1_601 {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + time?;
    Some(u64::try_from(seconds).unwrap_or(0) * 1_000)
}

fn clock(token: &str) -> Option<i64> {
    let mut parts = token.split(':').map(|part| part.parse::<i64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let right =
        (0..24).contains(&hours) && (0..60).contains(&minutes) && (0..60).contains(&seconds);
    right.then_some(hours * 3_600 + minutes * 60 + seconds)
}

/// Days in the Gregorian calendar. Years begin in March, so that the leap day is the last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year
        - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn site<'a>(host: &'a str, path: &'a str) -> Site<'a> {
        Site { host, path, secure: false }
    }

    fn sent(jar: &CookieJar, site: &Site<'_>, now_ms: u64) -> String {
        let mut out = Vec::new();
        jar.render(&mut out, site, now_ms);
        String::from_utf8(out).unwrap()
    }

    fn jar(lines: &[&str], from: &Site<'_>) -> CookieJar {
        let mut jar = CookieJar::default();
        lines.iter().for_each(|line| jar.set(line.as_bytes(), from, NOW_MS));
        jar
    }

    #[test]
    fn cookies_are_sent_to_their_host_and_path() {
        let here = site("www.example.com", "/a/b?c");
        let kept = jar(&["id=1; HttpOnly", "id=2", "long=x; Path=/a/b", "root=y; Path=/"], &here);
        assert_eq!(
            sent(&kept, &here, NOW_MS),
            "long=x; id=2; root=y",
            "set again, longest path first"
        );
        assert_eq!(sent(&kept, &site("www.example.com", "/ab"), NOW_MS), "root=y");
        assert_eq!(sent(&kept, &site("example.com", "/a/b"), NOW_MS), "");
        assert_eq!(sent(&kept, &site("x.www.example.com", "/a/b"), NOW_MS), "");
    }

    #[test]
    fn domain_cookies_match_subdomains_only() {
        let here = site("www.example.com", "/");
        let kept =
            jar(&["a=1; Domain=.Example.com", "b=2; Domain=other.com", "c=3; Domain=com"], &here);
        assert_eq!(sent(&kept, &site("shop.example.com", "/"), NOW_MS), "a=1");
        assert_eq!(sent(&kept, &site("badexample.com", "/"), NOW_MS), "");
        let address = jar(&["a=1; Domain=0.0.1", "b=2; Domain=127.0.0.1"], &site("127.0.0.1", "/"));
        assert_eq!(sent(&address, &site("127.0.0.1", "/"), NOW_MS), "b=2");
    }

    #[test]
    fn cookies_expire_and_are_deleted() {
        let here = site("a.b", "/");
        let mut kept = jar(
            &[
                "a=1; Max-Age=10; Expires=Thu, 01 Jan 1970 00:00:00 GMT",
                "b=2; Expires=Tue, 14-Nov-23 22:13:30 GMT",
                "s=3; Secure",
            ],
            &here,
        );
        assert_eq!(sent(&kept, &here, NOW_MS + 9_999), "a=1; b=2");
        assert_eq!(sent(&kept, &here, NOW_MS + 10_000), "");
        assert_eq!(sent(&kept, &Site { secure: true, ..here }, NOW_MS + 10_000), "s=3");
        kept.set(b"a=; Max-Age=0", &here, NOW_MS);
        assert_eq!(sent(&kept, &here, NOW_MS), "b=2");
    }

    #[test]
    fn dates_are_read_in_every_form() {
        for text in [
            "Wed, 15 Nov 2023 00:00:00 GMT",
            "Wednesday, 15-Nov-23 00:00:00 GMT",
            "Wed Nov 15 00:00:00 2023",
        ] {
            assert_eq!(date_ms(text), Some(1_700_006_400_000), "{text}");
        }
        assert_eq!(date_ms("Thu, 29 Feb 2024 12:34:56 GMT"), Some(1_709_210_096_000));
        assert_eq!(date_ms("Thu, 01 Jan 1601 00:00:00 GMT"), Some(0));
        for wrong in ["", "tomorrow", "32 Nov 2023 00:00:00", "15 Nov 2023", "15 Nov 2023 25:00:00"]
        {
            assert_eq!(date_ms(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_jar_is_bounded() {
        let here = site("a.b", "/");
        let mut kept = CookieJar::default();
        for number in 0..COOKIES_MAX + 2 {
            kept.set(format!("c{number}=1").as_bytes(), &here, NOW_MS);
        }
        let line = sent(&kept, &here, NOW_MS);
        assert_eq!(line.matches('=').count(), COOKIES_MAX);
        assert!(!line.contains("c1=") && line.contains("c2="), "the oldest have gone: {line}");
        let long = format!("x={}", "y".repeat(COOKIE_BYTES_MAX));
        assert_eq!(sent(&jar(&[&long, "a\u{1}=1", "=3", "z"], &here), &here, NOW_MS), "");
    }
}
