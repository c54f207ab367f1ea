//! Cookies for balancing: lookup of one value in a `Cookie` header, and the sticky cookie (RFC 6265
//! sections 4.1 and 4.2).

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_lc_rs::{hmac, rand};

/// Bytes of a key that the process draws for itself.
const KEY_BYTES: usize = 32;

/// The key of sticky cookies. A cookie is an HMAC of its upstream, so that a client can neither choose
/// an upstream nor find out its address. Debug output does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct CookieKey {
    bytes: Arc<[u8]>,
    drawn: bool,
}

impl CookieKey {
    /// A key that proxies share, and that stays over restarts.
    #[must_use]
    pub fn new(secret: &[u8]) -> CookieKey {
        CookieKey { bytes: secret.into(), drawn: false }
    }

    /// Whether this process has drawn it at random.
    pub(crate) fn is_drawn(&self) -> bool {
        self.drawn
    }

    /// The value for an upstream in a pool, by its hash.
    fn value(&self, pool: &str, upstream: u64) -> u64 {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.bytes));
        context.update(b"standfast sticky cookie\0");
        context.update(&upstream.to_be_bytes());
        context.update(pool.as_bytes());
        let tag = context.sign();
        let front = tag.as_ref().first_chunk().copied().unwrap_or_default();
        u64::from_be_bytes(front)
    }
}

impl Default for CookieKey {
    /// The key that this process has drawn at random.
    fn default() -> Self {
        static DRAWN: OnceLock<Arc<[u8]>> = OnceLock::new();
        let draw = || {
            let mut bytes = [0; KEY_BYTES];
            // A known key would be worse than no proxy.
            assert!(rand::fill(&mut bytes).is_ok(), "the system has no random numbers");
            bytes.into()
        };
        CookieKey { bytes: Arc::clone(DRAWN.get_or_init(draw)), drawn: true }
    }
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey(..)")
    }
}

/// The sticky cookie of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// The cookie's name.
    pub cookie: Box<str>,
    /// `Max-Age`; without it a session cookie.
    pub max_age: Option<Duration>,
    /// Adds the `Secure` attribute.
    pub secure: bool,
    /// The key of its values.
    pub key: CookieKey,
}

impl Sticky {
    /// The cookie's value for an upstream in a pool, by its hash.
    pub(crate) fn value(&self, pool: &str, upstream: u64) -> u64 {
        self.key.value(pool, upstream)
    }

    /// The cookie's value in a `Cookie` header.
    pub(crate) fn requested(&self, header: &[u8]) -> Option<u64> {
        let value = cookie(header, &self.cookie)?;
        let right = value.len() == 16 && value.iter().all(u8::is_ascii_hexdigit);
        let text = std::str::from_utf8(value).ok().filter(|_| right)?;
        u64::from_str_radix(text, 16).ok()
    }

    /// The value of the `Set-Cookie` header for this value of the cookie.
    pub(crate) fn set(&self, value: u64) -> String {
        let mut value = format!("{}={value:016x}; Path=/; HttpOnly; SameSite=Lax", self.cookie);
        if let Some(age) = self.max_age {
            value += &format!("; Max-Age={}", age.as_secs());
        }
        if self.secure {
            value += "; Secure";
        }
        value
    }
}

/// The value of the first cookie with this name.
pub(crate) fn cookie<'h>(header: &'h [u8], name: &str) -> Option<&'h [u8]> {
    header.split(|byte| *byte == b';').find_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_by_its_full_name() {
        let header = b"ab=1; a=2;a=3; c=\"x y\"; d";
        assert_eq!(cookie(header, "a"), Some(&b"2"[..]));
        assert_eq!(cookie(header, "c"), Some(&b"x y"[..]));
        assert_eq!(cookie(header, "b"), None);
        assert_eq!(cookie(header, "d"), None);
        assert_eq!(cookie(b"", "a"), None);
    }

    #[test]
    fn values_depend_on_key_pool_and_upstream() {
        let key = CookieKey::new(b"secret");
        let value = key.value("a", 1);
        // Fixed: another value would move every client at the next upgrade of a fleet.
        assert_eq!(format!("{value:016x}"), "ec80e50af234172d");
        assert_eq!(CookieKey::new(b"secret").value("a", 1), value);
        let others = [key.value("b", 1), key.value("a", 2), CookieKey::new(b"other").value("a", 1)];
        assert!(others.iter().all(|other| *other != value));
        assert_eq!(CookieKey::default(), CookieKey::default(), "one per process");
        assert_eq!(format!("{key:?}"), "CookieKey(..)");
    }

    #[test]
    fn the_cookie_that_is_set_is_read_back() {
        let max_age = Some(Duration::from_secs(60));
        let key = CookieKey::new(b"secret");
        let sticky = Sticky { cookie: "lb".into(), max_age, secure: true, key };
        let set = sticky.set(0xabc);
        assert_eq!(set, "lb=0000000000000abc; Path=/; HttpOnly; SameSite=Lax; Max-Age=60; Secure");
        let sent = set.split(';').next().unwrap();
        assert_eq!(sticky.requested(sent.as_bytes()), Some(0xabc));
        for foreign in ["lb=", "lb=xyz", "lb=1", "lb=+000000000000abc", "other=0000000000000abc"] {
            assert_eq!(sticky.requested(foreign.as_bytes()), None, "{foreign}");
        }
    }
}
