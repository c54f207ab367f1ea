//! Authentication of the admin listener: a bearer key (RFC 6750 section 2.1), compared in constant time.

use std::hint::black_box;
use std::sync::{Arc, PoisonError, RwLock};

/// The key that requests must carry, if one is set. A reload can replace it.
#[derive(Clone, Default)]
pub(crate) struct Key(Arc<RwLock<Option<Box<[u8]>>>>);

impl Key {
    pub(crate) fn new(key: Option<&str>) -> Self {
        let this = Key::default();
        this.set(key);
        this
    }

    pub(crate) fn set(&self, key: Option<&str>) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *current = key.map(|key| key.as_bytes().into());
    }

    /// Whether a key is set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether a request with this Authorization header is authorized.
    pub(crate) fn allows(&self, authorization: Option<&[u8]>) -> bool {
        let key = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(key) = key.as_deref() else { return true };
        authorization.and_then(bearer).is_some_and(|given| constant_time_eq(given, key))
    }
}

/// The token of a Bearer authorization. The scheme is case-insensitive (RFC 9110 section 11.1).
pub fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Compares in a time that depends only on the length of `given`, not on where the two differ.
fn constant_time_eq(given: &[u8], key: &[u8]) -> bool {
    let mut differ = given.len() ^ key.len();
    for (at, byte) in given.iter().enumerate() {
        let other = key.get(at % key.len().max(1)).copied().unwrap_or_default();
        differ |= usize::from(black_box(byte ^ other));
    }
    black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_complete_key_is_accepted() {
        let key = Key::new(Some("secret"));
        for right in ["Bearer secret", "bearer secret"] {
            assert!(key.allows(Some(right.as_bytes())), "{right}");
        }
        let wrong = [
            "",
            "secret",
            "Bearer",
            "Bearer ",
            "Bearer secre",
            "Bearer secretsecret",
            "Basic secret",
        ];
        for wrong in wrong {
            assert!(!key.allows(Some(wrong.as_bytes())), "{wrong}");
        }
        assert!(!key.allows(None));
        key.set(None);
        assert!(key.allows(None) && key.allows(Some(b"anything")));
    }
}
