//! Secrets by purpose, and the keys derived from them. Derivation is the same as in AnyCable's server,
//! so that the libraries of applications derive the same keys: HMAC-SHA256 (RFC 2104) of a phrase, in
//! lower-case hexadecimal.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;

use super::jwt::KeySet;

/// The value that means: no secret for this purpose, and no fallback to the shared one.
const NONE: &str = "none";
/// The phrase for the key of `/_broadcast`.
const BROADCAST: &[u8] = b"broadcast-cable";
/// The phrase for the key of publishing under `/api/`.
const API: &[u8] = b"api-cable";
/// The phrase for the key of calls of the application by HTTP.
const RPC: &[u8] = b"rpc-cable";
/// The phrase for the key that signs calls of `--auth-url`; AnyCable has none.
const AUTH_URL: &[u8] = b"standfast-auth-url";
/// The phrase for the key of what nodes leave for each other; AnyCable has none.
const NODES: &[u8] = b"standfast-nodes";
/// The phrase for the key that signs webhooks; AnyCable has none.
const WEBHOOKS: &[u8] = b"standfast-webhooks";

/// A secret. Debug output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// A secret as configured; `none` turns its purpose off.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Secret(text.into())
    }

    /// Whether it is `none`.
    #[must_use]
    pub fn is_none(&self) -> bool {
        &*self.0 == NONE
    }

    /// Whether it can be sent in a header: visible ASCII without spaces.
    #[must_use]
    pub fn fits_a_header(&self) -> bool {
        self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Compares in a time that depends on lengths only.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        verify_slices_are_equal(given, self.bytes()).is_ok()
    }

    fn derive(&self, phrase: &[u8]) -> Secret {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.bytes());
        let tag = hmac::sign(&key, phrase);
        let digits = tag.as_ref().iter().map(|byte| format!("{byte:02x}"));
        Secret::new(digits.collect::<String>())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Configuration of authentication and authorization.
#[derive(Clone, Debug)]
pub struct Auth {
    /// The shared secret, for every purpose without its own.
    pub secret: Option<Secret>,
    /// Checks tokens signed by HS256, HS384 and HS512.
    pub jwt_secret: Option<Secret>,
    /// Checks tokens of other algorithms, or of several keys.
    pub jwt_keys: Option<Arc<KeySet>>,
    /// The query parameter that carries a token; the header is `x-` and this. Default `jid`.
    pub jwt_param: Box<str>,
    /// Refuse connections without a token.
    pub enforce_jwt: bool,
    /// End sessions when their token expires. Otherwise tokens are checked when connecting only.
    pub end_expired: bool,
    /// Checks signed stream names.
    pub streams_secret: Option<Secret>,
    /// Checks signed names of Turbo. Default: `streams_secret`.
    pub turbo_secret: Option<Secret>,
    /// Checks signed names of CableReady. Default: `streams_secret`.
    pub cable_ready_secret: Option<Secret>,
    /// Accept unsigned stream names, too.
    pub public_streams: bool,
    /// Subscribers of signed streams may whisper to each other.
    pub streams_whisper: bool,
    /// The key of `/_broadcast`. By default it is derived from the secret.
    pub broadcast_key: Option<Secret>,
}

impl Default for Auth {
    fn default() -> Self {
        Auth {
            secret: None,
            jwt_secret: None,
            jwt_keys: None,
            jwt_param: "jid".into(),
            enforce_jwt: false,
            end_expired: false,
            streams_secret: None,
            turbo_secret: None,
            cable_ready_secret: None,
            public_streams: false,
            streams_whisper: false,
            broadcast_key: None,
        }
    }
}

impl Auth {
    /// Whether credentials are checked at all: then the server is public only with `public`.
    #[must_use]
    pub fn is_set(&self) -> bool {
        let keys = Keys::of(self);
        self.enforce_jwt
            || self.jwt_keys.is_some()
            || [keys.jwt, keys.streams, keys.turbo, keys.cable_ready].iter().any(Option::is_some)
    }

    /// Whether there is a key for `/_broadcast`.
    #[must_use]
    pub fn broadcasts_are_keyed(&self) -> bool {
        Keys::of(self).broadcast.is_some()
    }

    /// The key of calls of the application by HTTP that the secret has, if there is one.
    #[must_use]
    pub fn rpc_key(&self) -> Option<Secret> {
        let secret = self.secret.as_ref().filter(|secret| !secret.is_none());
        secret.map(|secret| secret.derive(RPC))
    }

    /// The key that signs calls of `--auth-url` that the secret has, if there is one.
    #[must_use]
    pub fn auth_url_key(&self) -> Option<Secret> {
        let secret = self.secret.as_ref().filter(|secret| !secret.is_none());
        secret.map(|secret| secret.derive(AUTH_URL))
    }

    /// The key that signs webhooks that the secret has, if there is one.
    #[must_use]
    pub fn webhook_key(&self) -> Option<Secret> {
        let secret = self.secret.as_ref().filter(|secret| !secret.is_none());
        secret.map(|secret| secret.derive(WEBHOOKS))
    }

    /// The key by which nodes hide from their broker what they leave for each other. Without any secret it is no
    /// secret, either.
    #[must_use]
    pub fn nodes_key(&self) -> Secret {
        let keys = Keys::of(self);
        let secret = self.secret.as_ref().filter(|secret| !secret.is_none());
        let any = secret.or(keys.jwt).or(keys.streams).or(keys.broadcast.as_ref());
        any.map_or_else(|| Secret::new("").derive(NODES), |secret| secret.derive(NODES))
    }

    /// Whether there is a key to check tokens by.
    #[must_use]
    pub fn checks_tokens(&self) -> bool {
        self.jwt_keys.is_some() || Keys::of(self).jwt.is_some()
    }
}

/// The secrets by purpose, fallbacks applied.
pub(super) struct Keys<'a> {
    pub(super) jwt: Option<&'a Secret>,
    pub(super) streams: Option<&'a Secret>,
    pub(super) turbo: Option<&'a Secret>,
    pub(super) cable_ready: Option<&'a Secret>,
    pub(super) broadcast: Option<Secret>,
    pub(super) api: Option<Secret>,
}

impl<'a> Keys<'a> {
    pub(super) fn of(auth: &'a Auth) -> Self {
        let secret = auth.secret.as_ref().filter(|secret| !secret.is_none());
        let streams = own_or(auth.streams_secret.as_ref(), secret);
        let derived = |phrase| secret.map(|secret| secret.derive(phrase));
        Keys {
            jwt: own_or(auth.jwt_secret.as_ref(), secret),
            streams,
            turbo: own_or(auth.turbo_secret.as_ref(), streams),
            cable_ready: own_or(auth.cable_ready_secret.as_ref(), streams),
            broadcast: match &auth.broadcast_key {
                Some(key) => Some(key.clone()).filter(|key| !key.is_none()),
                None => derived(BROADCAST),
            },
            api: derived(API),
        }
    }
}

/// A purpose's own secret or its fallback.
fn own_or<'a>(own: Option<&'a Secret>, other: Option<&'a Secret>) -> Option<&'a Secret> {
    own.or(other).filter(|secret| !secret.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(secret: Option<&Secret>) -> Option<&[u8]> {
        secret.map(Secret::bytes)
    }

    #[test]
    fn keys_are_derived_as_in_anycable_libraries() {
        // Computed by Python's hmac.
        let secret = Secret::new("s3Krit");
        let of = |phrase: &str| secret.derive(phrase.as_bytes());
        let expected = [
            ("broadcast-cable", "a239a7ca182c90fc32bdedf73703d271388cf433843affffd3a5e757041fc716"),
            ("api-cable", "1db397202b5bd68b12665b638515c3aeac9100f721fd7c4fcb6f29c69f32c886"),
            ("rpc-cable", "08ac56f1562c6377ddd5d2d55cee2e35e117a55959d6a6ea3a63548ef0a7e559"),
        ];
        for (phrase, key) in expected {
            assert_eq!(&*of(phrase).0, key, "{phrase}");
        }
        assert_eq!(
            (BROADCAST, API, RPC),
            (&b"broadcast-cable"[..], &b"api-cable"[..], &b"rpc-cable"[..])
        );
    }

    #[test]
    fn the_shared_secret_is_the_fallback_for_every_purpose() {
        let auth = Auth {
            secret: Some(Secret::new("all")),
            streams_secret: Some(Secret::new("streams")),
            cable_ready_secret: Some(Secret::new("ready")),
            ..Auth::default()
        };
        let keys = Keys::of(&auth);
        assert_eq!(bytes(keys.jwt), Some(&b"all"[..]));
        assert_eq!(bytes(keys.streams), Some(&b"streams"[..]));
        assert_eq!(bytes(keys.turbo), Some(&b"streams"[..]));
        assert_eq!(bytes(keys.cable_ready), Some(&b"ready"[..]));
        assert!(keys.broadcast.is_some() && keys.api.is_some());
    }

    #[test]
    fn none_turns_a_purpose_off() {
        let none = || Some(Secret::new("none"));
        let auth = Auth {
            secret: Some(Secret::new("all")),
            jwt_secret: none(),
            streams_secret: none(),
            broadcast_key: none(),
            ..Auth::default()
        };
        let keys = Keys::of(&auth);
        assert!(keys.jwt.is_none() && keys.streams.is_none() && keys.turbo.is_none());
        assert!(keys.broadcast.is_none() && keys.api.is_some());
        let auth = Auth { secret: none(), ..Auth::default() };
        assert!(!auth.is_set() && !auth.checks_tokens());
        let keys = Keys::of(&auth);
        assert!(keys.jwt.is_none() && keys.broadcast.is_none() && keys.api.is_none());
    }

    #[test]
    fn any_secret_for_clients_counts_as_set() {
        let secret = || Some(Secret::new("a"));
        for auth in [
            Auth { secret: secret(), ..Auth::default() },
            Auth { jwt_secret: secret(), ..Auth::default() },
            Auth { turbo_secret: secret(), ..Auth::default() },
            Auth { enforce_jwt: true, ..Auth::default() },
        ] {
            assert!(auth.is_set(), "{auth:?}");
        }
        let key = Auth { broadcast_key: secret(), ..Auth::default() };
        assert!(!key.is_set(), "the key of publishers does not concern clients");
    }
}
