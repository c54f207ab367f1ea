//! Signs tokens and stream names as an application does.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// The secret of the applications of these tests.
pub(crate) const SECRET: &str = "s3Krit";

pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs()
}

/// The identifiers of a user's connections.
pub(crate) fn identifiers(user: u64) -> String {
    format!("{{\"user_id\":{user}}}")
}

/// Returns a token of this user that is valid for a minute.
pub(crate) fn token(user: u64) -> String {
    hs256(SECRET, &json!({"ext": identifiers(user), "exp": now_unix_s() + 60}))
}

/// Returns a token with these claims.
pub(crate) fn hs256(secret: &str, claims: &Value) -> String {
    let message = unsigned(&json!({"alg": "HS256", "typ": "JWT"}), claims);
    let tag = URL_SAFE_NO_PAD.encode(tag(secret, &message).as_ref());
    format!("{message}.{tag}")
}

/// A token without its signature.
pub(crate) fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

/// A stream's name as Rails' `MessageVerifier` signs it.
pub(crate) fn signed(secret: &str, stream: &str) -> String {
    let encoded = STANDARD.encode(json!(stream).to_string());
    let tag = tag(secret, &encoded);
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{encoded}--{digits}")
}

/// The key that is derived from [`SECRET`] for a purpose, in hexadecimal.
pub(crate) fn derived_key(purpose: &str) -> String {
    tag(SECRET, purpose).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The signature of a body that a server posts, from its header `t=UNIX,v1=HEX`; `None` if it is wrong.
pub(crate) fn signed_at(secret: &str, header: &str, body: &[u8]) -> Option<u64> {
    let (time, digest) = header.strip_prefix("t=")?.split_once(",v1=")?;
    let message = [time.as_bytes(), b".", body].concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let expected = hmac::sign(&key, &message);
    let expected: String = expected.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    (digest == expected).then(|| time.parse().ok()).flatten()
}

fn tag(secret: &str, message: &str) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hmac::sign(&key, message.as_bytes())
}

/// An ES256 key pair of an identity provider.
pub(crate) struct Signer {
    name: &'static str,
    pair: EcdsaKeyPair,
}

impl Signer {
    pub(crate) fn new(name: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
        Signer { name, pair: pair.expect("a key can be made") }
    }

    /// Returns the public key as a JWK.
    pub(crate) fn public(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let part = |range| URL_SAFE_NO_PAD.encode(&point[range]);
        let (x, y) = (part(1..33), part(33..65));
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.name, "x": x, "y": y})
    }

    /// Returns a token of this user that is valid for a minute.
    pub(crate) fn token(&self, user: u64) -> String {
        let header = json!({"alg": "ES256", "kid": self.name});
        let claims = json!({"ext": identifiers(user), "exp": now_unix_s() + 60});
        let message = unsigned(&header, &claims);
        let tag = self.pair.sign(&SystemRandom::new(), message.as_bytes());
        let tag = URL_SAFE_NO_PAD.encode(tag.expect("it can be signed").as_ref());
        format!("{message}.{tag}")
    }
}
