//! Tokens: JWS in compact form (RFC 7515, 7519) with the claims `ext`, the identifiers of a
//! connection, and `exp`. `jsonwebtoken` checks signatures with aws-lc; this module decides which key
//! may check which token, and which claims a token needs.
//!
//! A key checks only algorithms of its own family, whatever the token's header claims: a public RSA
//! key is never used as a secret for HS256, and `none` is not an algorithm. Keys in the token or
//! referenced by it (`jwk`, `jku`, `x5c`) are ignored. A token with critical extensions (`crit`) is
//! refused.

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use super::{Cause, Secret};

/// Longest token, in bytes: it must fit into a request head beside everything else.
pub(super) const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Seconds by which the clocks of the application and this machine may differ.
pub(super) const LEEWAY_S: u64 = 5;
/// Most keys of a key set.
const KEYS_MAX: usize = 64;
/// Most keys tried for a token without a key id: each try costs its worker a signature check.
const TRIES_MAX: usize = 4;
/// Shortest modulus of an RSA key, in characters of base64: 2,048 bits (RFC 7518 section 3.3).
const RSA_CHARS_MIN: usize = 342;

/// A key set (JWKS, RFC 7517).
#[derive(Clone, Debug)]
pub struct KeySet {
    keys: Vec<Key>,
    skipped: usize,
}

#[derive(Clone, Debug)]
struct Key {
    name: Option<Box<str>>,
    /// The only algorithm it is for, if it names one.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

impl KeySet {
    /// Parses a key set, or a single key. Keys for encryption and of unsupported types are skipped.
    ///
    /// # Errors
    /// A sentence that says why no key is usable, or which one is too weak.
    pub fn parse(text: &str) -> Result<KeySet, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        let listed = match value {
            Value::Object(mut set) => match set.remove("keys") {
                Some(Value::Array(keys)) => keys,
                Some(_) => return Err("\"keys\" must be an array of keys".to_owned()),
                None => vec![Value::Object(set)],
            },
            _ => return Err("expected an object with \"keys\"".to_owned()),
        };
        if listed.len() > KEYS_MAX {
            return Err(format!("too many keys: {}, at most {KEYS_MAX} are allowed", listed.len()));
        }
        let all = listed.len();
        let keys = listed.into_iter().filter_map(|key| Key::read(key).transpose());
        let keys = keys.collect::<Result<Vec<Key>, String>>()?;
        if keys.is_empty() {
            return Err("it has no key that checks signatures".to_owned());
        }
        Ok(KeySet { skipped: all - keys.len(), keys })
    }

    /// Number of keys that can check signatures.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.keys.len()
    }

    /// Number of skipped keys.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }
}

impl Key {
    /// `None` for a key that cannot check signatures.
    fn read(value: Value) -> Result<Option<Key>, String> {
        let Ok(jwk) = serde_json::from_value::<Jwk>(value) else { return Ok(None) };
        let common = &jwk.common;
        if common.public_key_use.as_ref().is_some_and(|u| *u != PublicKeyUse::Signature) {
            return Ok(None);
        }
        let algorithm = match common.key_algorithm.map(Algorithm::try_from) {
            Some(Err(_)) => return Ok(None),
            Some(Ok(algorithm)) => Some(algorithm),
            None => None,
        };
        let name = common.key_id.as_deref();
        if let AlgorithmParameters::RSA(rsa) = &jwk.algorithm
            && rsa.n.len() < RSA_CHARS_MIN
        {
            let name = name.unwrap_or("without a name");
            return Err(format!("RSA key {name} is shorter than 2048 bits"));
        }
        let Ok(key) = DecodingKey::from_jwk(&jwk) else { return Ok(None) };
        Ok(Some(Key { name: name.map(Into::into), algorithm, key }))
    }

    fn of_secret(secret: &Secret) -> Key {
        let key = DecodingKey::from_secret(secret.bytes());
        Key { name: None, algorithm: None, key }
    }

    /// Whether this key may check a token with this header. A key without an id may check tokens with
    /// any.
    fn fits(&self, header: &Header) -> bool {
        self.key.family() == header.alg.family()
            && self.algorithm.is_none_or(|algorithm| algorithm == header.alg)
            && match (&self.name, &header.kid) {
                (Some(own), Some(wanted)) => **own == **wanted,
                _ => true,
            }
    }
}

/// The identity in a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TokenIdentity {
    /// The identifiers as the application wrote them, JSON.
    pub(crate) identifiers: Box<str>,
    /// Expiry in Unix seconds, leeway included.
    pub(crate) expires_unix_s: Option<u64>,
}

/// The keys that check tokens.
#[derive(Debug)]
pub(super) struct Tokens(Vec<Key>);

impl Tokens {
    /// `None` if there is no key.
    pub(super) fn new(secret: Option<&Secret>, set: Option<&KeySet>) -> Option<Self> {
        let listed = set.into_iter().flat_map(|set| &set.keys).cloned();
        let keys: Vec<Key> = secret.map(Key::of_secret).into_iter().chain(listed).collect();
        (!keys.is_empty()).then_some(Tokens(keys))
    }

    /// Verifies a token and returns its identity.
    pub(super) fn verify(&self, token: &str, now_unix_s: u64) -> Result<TokenIdentity, Cause> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Cause::TokenTooLong);
        }
        let header = decode_header(token).map_err(|_| Cause::TokenMalformed)?;
        if header.crit.is_some() {
            return Err(Cause::TokenMalformed);
        }
        let mut fitting = self.0.iter().filter(|key| key.fits(&header)).take(TRIES_MAX);
        let claims = fitting.try_fold(Cause::TokenKey, |_, key| claims(token, &header, key));
        match claims {
            // No key matches, or none has made the signature.
            Ok(cause) => Err(cause),
            Err(claims) => claims?.identity(now_unix_s),
        }
    }
}

/// Tries one key. `Ok` continues with the next key after a wrong signature; `Err` ends with the result.
fn claims(token: &str, header: &Header, key: &Key) -> Result<Cause, Result<Claims, Cause>> {
    let mut checks = Validation::new(header.alg);
    // `Claims::identity` checks the claims, against the time that is passed in.
    checks.validate_exp = false;
    checks.validate_aud = false;
    checks.required_spec_claims.clear();
    match decode::<Claims>(token, &key.key, &checks) {
        Ok(token) => Err(Ok(token.claims)),
        Err(error) => match error.kind() {
            ErrorKind::InvalidSignature => Ok(Cause::TokenSignature),
            _ => Err(Err(Cause::TokenMalformed)),
        },
    }
}

/// The claims that are used (RFC 7519 section 4.1).
#[derive(Deserialize)]
struct Claims {
    /// The identifiers: a string that is JSON, or that JSON itself.
    ext: Option<Box<RawValue>>,
    exp: Option<Number>,
    nbf: Option<Number>,
}

impl Claims {
    fn identity(self, now_unix_s: u64) -> Result<TokenIdentity, Cause> {
        let expires_unix_s = self.exp.as_ref().map(|exp| whole(exp).saturating_add(LEEWAY_S));
        if expires_unix_s.is_some_and(|until| now_unix_s > until) {
            return Err(Cause::TokenExpired);
        }
        if self.nbf.is_some_and(|nbf| whole(&nbf) > now_unix_s.saturating_add(LEEWAY_S)) {
            return Err(Cause::TokenEarly);
        }
        let identifiers = self.ext.and_then(|ext| identifiers(&ext));
        let identifiers = identifiers.ok_or(Cause::TokenIdentifiers)?;
        Ok(TokenIdentity { identifiers, expires_unix_s })
    }
}

/// The identifiers, byte for byte as written: the application names them when it ends sessions.
fn identifiers(ext: &RawValue) -> Option<Box<str>> {
    let json = ext.get();
    if json.starts_with('{') {
        return Some(json.into());
    }
    let text: String = serde_json::from_str(json).ok()?;
    (!text.is_empty()).then(|| text.into())
}

/// A time in whole seconds; 0 for times before 1970.
fn whole(time: &Number) -> u64 {
    // `as` saturates a float to the integer's range.
    time.as_u64().unwrap_or_else(|| time.as_f64().unwrap_or_default() as u64)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jsonwebtoken::{EncodingKey, encode};
    use serde_json::json;

    use super::super::vectors::{
        CONFUSED, EDDSA, ES256, ES384, HS256, HS384, HS512, KEYS, PS256, RS256, RS384, RS512,
    };
    use super::*;

    const NOW: u64 = 1_900_000_000;
    /// The `exp` of all of them.
    const EXP: u64 = 2_000_000_000;
    const IDENTIFIERS: &str = r#"{"user_id":"15"}"#;

    fn secret() -> Tokens {
        Tokens::new(Some(&Secret::new("ruby-to-go")), None).unwrap()
    }

    fn set() -> Tokens {
        Tokens::new(None, Some(&KeySet::parse(KEYS).unwrap())).unwrap()
    }

    /// The identifiers of a token.
    fn name(tokens: &Tokens, token: &str) -> Result<Box<str>, Cause> {
        tokens.verify(token, NOW).map(|holder| holder.identifiers)
    }

    /// A token with any header and claims.
    fn token(header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let key = EncodingKey::from_secret(b"ruby-to-go");
        let tag = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
        format!("{message}.{tag}")
    }

    fn with_claims(claims: &Value) -> String {
        token(&json!({"alg": "HS256"}), claims)
    }

    #[test]
    fn tokens_of_other_implementations_are_verified() {
        let holder =
            TokenIdentity { identifiers: IDENTIFIERS.into(), expires_unix_s: Some(EXP + LEEWAY_S) };
        for token in [HS256, HS384, HS512] {
            assert_eq!(secret().verify(token, NOW).as_ref(), Ok(&holder), "{token}");
        }
        for token in [RS256, RS384, RS512, PS256, ES256, ES384, EDDSA] {
            assert_eq!(set().verify(token, NOW).as_ref(), Ok(&holder), "{token}");
        }
    }

    #[test]
    fn a_key_checks_only_algorithms_of_its_family() {
        // A secret and public keys at once, as during a migration.
        let all = KeySet::parse(KEYS).unwrap();
        let all = Tokens::new(Some(&Secret::new("ruby-to-go")), Some(&all)).unwrap();
        for token in [HS256, RS256, ES256] {
            assert_eq!(name(&all, token), Ok(IDENTIFIERS.into()), "{token}");
        }
        // HS256 with the public RSA key as its secret, which is no secret.
        assert_eq!(name(&set(), CONFUSED), Err(Cause::TokenKey));
        assert_eq!(name(&all, CONFUSED), Err(Cause::TokenSignature));
        assert_eq!(name(&secret(), RS256), Err(Cause::TokenKey));
        assert_eq!(name(&set(), HS256), Err(Cause::TokenKey));
    }

    #[test]
    fn unsigned_tokens_are_refused() {
        let claims = json!({"ext": IDENTIFIERS, "exp": EXP});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        for alg in ["none", "None", "NONE", ""] {
            let unsigned = format!("{}.{}.", part(&json!({"alg": alg})), part(&claims));
            assert_eq!(name(&secret(), &unsigned), Err(Cause::TokenMalformed), "{alg}");
        }
        let (message, _) = HS256.rsplit_once('.').unwrap();
        assert_eq!(name(&secret(), &format!("{message}.")), Err(Cause::TokenSignature));
        let other = Tokens::new(Some(&Secret::new("ruby-to-g0")), None).unwrap();
        assert_eq!(name(&other, HS256), Err(Cause::TokenSignature));
    }

    #[test]
    fn a_key_id_selects_the_key() {
        let with = |kid: &str| {
            let claims = json!({"ext": IDENTIFIERS});
            token(&json!({"alg": "HS256", "kid": kid}), &claims)
        };
        let key = |kid: &str, k: &str| {
            let k = URL_SAFE_NO_PAD.encode(k);
            json!({"kty": "oct", "kid": kid, "k": k})
        };
        let two = json!({"keys": [key("old", "else"), key("new", "ruby-to-go")]}).to_string();
        let two = Tokens::new(None, Some(&KeySet::parse(&two).unwrap())).unwrap();
        assert_eq!(name(&two, &with("new")), Ok(IDENTIFIERS.into()));
        assert_eq!(name(&two, &with("old")), Err(Cause::TokenSignature));
        assert_eq!(name(&two, &with("lost")), Err(Cause::TokenKey));
        // Without a key id all matching keys are tried.
        assert_eq!(name(&two, HS256), Ok(IDENTIFIERS.into()));
        // The shared secret has no key id.
        assert_eq!(name(&secret(), &with("any")), Ok(IDENTIFIERS.into()));
    }

    #[test]
    fn a_token_without_a_key_id_is_tried_with_a_few_keys() {
        let keys = |position: usize| {
            let key = |at| if at == position { "ruby-to-go" } else { "else" };
            let keys = (0..8).map(|at| {
                let k = URL_SAFE_NO_PAD.encode(key(at));
                json!({"kty": "oct", "kid": at.to_string(), "k": k})
            });
            let set = json!({"keys": keys.collect::<Vec<_>>()}).to_string();
            Tokens::new(None, Some(&KeySet::parse(&set).unwrap())).unwrap()
        };
        assert!(name(&keys(TRIES_MAX - 1), HS256).is_ok());
        assert_eq!(name(&keys(TRIES_MAX), HS256), Err(Cause::TokenSignature));
    }

    #[test]
    fn malformed_tokens_are_refused() {
        let critical = token(&json!({"alg": "HS256", "crit": ["x"]}), &json!({"ext": "{}"}));
        let bad_claims = with_claims(&json!({"ext": "{}", "exp": "tomorrow"}));
        let list = with_claims(&json!(["ext"]));
        for text in ["", ".", "..", "a.b.c", "é.é.é", &critical, &bad_claims, &list] {
            assert_eq!(name(&secret(), text), Err(Cause::TokenMalformed), "{text}");
        }
        let long = with_claims(&json!({"ext": "x".repeat(TOKEN_BYTES_MAX)}));
        assert_eq!(name(&secret(), &long), Err(Cause::TokenTooLong));
    }

    #[test]
    fn a_token_with_any_character_changed_is_refused() {
        for (tokens, token) in [(secret(), HS256), (set(), ES256)] {
            for at in 0..token.len() {
                for letter in ["A", "x", "_", ".", "=", " ", "\u{e9}"] {
                    let (before, after) = (&token[..at], &token[at + 1..]);
                    let changed = format!("{before}{letter}{after}");
                    let taken = changed != token && tokens.verify(&changed, NOW).is_ok();
                    assert!(!taken, "{changed}");
                }
                assert!(tokens.verify(&token[..at], NOW).is_err());
            }
        }
    }

    #[test]
    fn identifiers_are_kept_to_the_byte() {
        let verified = |ext: Value| name(&secret(), &with_claims(&json!({ "ext": ext })));
        assert_eq!(verified(json!("{ \"b\":1,\"a\":2 }")), Ok("{ \"b\":1,\"a\":2 }".into()));
        assert_eq!(verified(json!({"user": 7})), Ok(r#"{"user":7}"#.into()));
        for invalid in [json!(""), json!(7), json!(["a"]), json!(true)] {
            assert_eq!(verified(invalid.clone()), Err(Cause::TokenIdentifiers), "{invalid}");
        }
        assert_eq!(
            name(&secret(), &with_claims(&json!({"exp": EXP}))),
            Err(Cause::TokenIdentifiers)
        );
    }

    #[test]
    fn times_are_checked_with_leeway() {
        let at = |claims: Value, now| secret().verify(&with_claims(&claims), now);
        let exp = |exp: Value| json!({"ext": "{}", "exp": exp});
        let until = |until| Ok(TokenIdentity { identifiers: "{}".into(), expires_unix_s: until });
        assert_eq!(at(exp(json!(100)), 100 + LEEWAY_S), until(Some(100 + LEEWAY_S)));
        assert_eq!(at(exp(json!(100)), 101 + LEEWAY_S), Err(Cause::TokenExpired));
        assert_eq!(at(exp(json!(100.9)), 100), until(Some(100 + LEEWAY_S)));
        assert_eq!(at(exp(json!(-7)), 100), Err(Cause::TokenExpired));
        assert_eq!(at(exp(json!(1e300)), 100), until(Some(u64::MAX)));
        // Without `exp` a token does not expire.
        assert_eq!(at(json!({"ext": "{}"}), u64::MAX), until(None));
        let nbf = json!({"ext": "{}", "nbf": 100 + LEEWAY_S});
        assert_eq!(at(nbf.clone(), 100), until(None));
        assert_eq!(at(nbf, 99), Err(Cause::TokenEarly));
        let over = token(&json!({"alg": "HS256"}), &json!({"ext": 7, "exp": 1}));
        assert_eq!(
            secret().verify(&over, 100),
            Err(Cause::TokenExpired),
            "whatever else is wrong with it"
        );
    }

    #[test]
    fn key_set_errors_name_the_mistake() {
        let set = KeySet::parse(KEYS).unwrap();
        assert_eq!((set.usable(), set.skipped()), (4, 2));
        assert!(!format!("{set:?}").contains("173, 211"), "Debug shows no key");
        let cases = [
            ("", "not JSON"),
            ("[]", "an object with \"keys\""),
            (r#"{"keys":{}}"#, "an array"),
            (r#"{"keys":[]}"#, "no key"),
            (r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB","kid":"short"}]}"#, "short is shorter"),
            (r#"{"keys":[{"kty":"oct","k":"YQ","use":"enc"}]}"#, "no key"),
        ];
        for (text, expected) in cases {
            let error = KeySet::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many = json!({"keys": vec![json!({"kty": "oct", "k": "YQ"}); KEYS_MAX + 1]});
        assert!(KeySet::parse(&many.to_string()).unwrap_err().contains("too many"));
        assert_eq!(KeySet::parse(r#"{"kty":"oct","k":"YQ"}"#).unwrap().usable(), 1, "one key");
    }

    #[test]
    fn tokens_of_the_library_are_verified() {
        let claims = json!({"ext": IDENTIFIERS, "exp": EXP});
        let key = EncodingKey::from_secret(b"ruby-to-go");
        let made = encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
        assert_eq!(name(&secret(), &made), Ok(IDENTIFIERS.into()));
    }
}
