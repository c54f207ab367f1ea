//! Cookies for balancing: lookup of one value in a `Cookie` header, and the sticky cookie (RFC 6265
//! sections 4.1 and 4.2).

use std::time::Duration;

/// The sticky cookie of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// The cookie's name.
    pub cookie: Box<str>,
    /// `Max-Age`; without it a session cookie.
    pub max_age: Option<Duration>,
    /// Adds the `Secure` attribute.
    pub secure: bool,
}

impl Sticky {
    /// The hash of the upstream that a `Cookie` header names.
    pub(crate) fn requested(&self, header: &[u8]) -> Option<u64> {
        let value = cookie(header, &self.cookie)?;
        let right = value.len() == 16 && value.iter().all(u8::is_ascii_hexdigit);
        let text = std::str::from_utf8(value).ok().filter(|_| right)?;
        u64::from_str_radix(text, 16).ok()
    }

    /// The value of the `Set-Cookie` header for this upstream. The cookie holds a hash, so that no
    /// internal address is disclosed.
    pub(crate) fn set(&self, upstream: u64) -> String {
        let mut value = format!("{}={upstream:016x}; Path=/; HttpOnly; SameSite=Lax", self.cookie);
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
    fn the_cookie_that_is_set_is_read_back() {
        let max_age = Some(Duration::from_secs(60));
        let sticky = Sticky { cookie: "lb".into(), max_age, secure: true };
        let set = sticky.set(0xabc);
        assert_eq!(set, "lb=0000000000000abc; Path=/; HttpOnly; SameSite=Lax; Max-Age=60; Secure");
        let sent = set.split(';').next().unwrap();
        assert_eq!(sticky.requested(sent.as_bytes()), Some(0xabc));
        for foreign in ["lb=", "lb=xyz", "lb=1", "lb=+000000000000abc", "other=0000000000000abc"] {
            assert_eq!(sticky.requested(foreign.as_bytes()), None, "{foreign}");
        }
    }
}
