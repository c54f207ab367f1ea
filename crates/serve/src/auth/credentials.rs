//! Credentials as applications use them: making tokens and signed stream names, and explaining why one
//! is refused. The code that serves clients decides what is accepted; this module adds a sentence for
//! people. Clients never see it.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{EncodingKey, Header, encode};
use serde::Serialize;
use serde_json::Value;

use action_cable::Channel;

use super::jwt::{LEEWAY_S, TOKEN_BYTES_MAX};
use super::keys::Keys;
use super::signed::{self, SIGNED_BYTES_MAX, Verifier};
use super::{Access, Auth, Cause, Secret, timestamp};

/// The settings of a server, to make and check credentials with.
#[derive(Debug)]
pub struct Credentials {
    auth: Auth,
    access: Access,
}

/// The channels that accept signed stream names. Each can have its own secret.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// `$pubsub`.
    PubSub,
    /// `Turbo::StreamsChannel`.
    Turbo,
    /// `CableReady::Stream`.
    CableReady,
}

/// When a token is valid, in Unix seconds.
#[derive(Copy, Clone, Debug)]
pub struct Times {
    /// Now: the claim `iat`.
    pub now: u64,
    /// When it becomes valid, if not now: the claim `nbf`.
    pub begins: Option<u64>,
    /// When it expires: the claim `exp`.
    pub expires: Option<u64>,
}

/// What a valid token says.
#[derive(Debug, PartialEq, Eq)]
pub struct VerifiedToken {
    /// The identifiers of the connection, JSON.
    pub identifiers: Box<str>,
    /// The claim `exp` in Unix seconds.
    pub expires_unix_s: Option<u64>,
}

/// Why a token or a signed name is refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The name under which the server counts it.
    pub cause: &'static str,
    /// What is wrong with it, and what helps.
    pub why: String,
}

/// The claims of a new token, in this order.
#[derive(Serialize)]
struct NewClaims<'a> {
    ext: &'a str,
    iat: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<u64>,
}

impl StreamKind {
    /// All, in the order of their fallbacks.
    pub const ALL: [StreamKind; 3] = [Self::PubSub, Self::Turbo, Self::CableReady];

    /// The channel's name in identifiers.
    #[must_use]
    pub fn channel(self) -> &'static str {
        match self {
            Self::PubSub => "$pubsub",
            Self::Turbo => "Turbo::StreamsChannel",
            Self::CableReady => "CableReady::Stream",
        }
    }

    /// The flag that sets its own secret.
    fn flag(self) -> &'static str {
        match self {
            Self::PubSub => "--streams-secret",
            Self::Turbo => "--turbo-secret",
            Self::CableReady => "--cable-ready-secret",
        }
    }
}

impl Credentials {
    /// Of a server with these settings.
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        Credentials { access: Access::new(&auth, false), auth }
    }

    /// Makes a token, signed with the secret for tokens by HS256.
    ///
    /// # Errors
    /// There is no such secret, or the identifiers are not a JSON object or too long.
    pub fn create_token(&self, identifiers: &str, times: Times) -> Result<String, String> {
        let keys = Keys::of(&self.auth);
        let secret = keys.jwt.ok_or("no secret for tokens: set --secret or --jwt-secret")?;
        let is_object = serde_json::from_str(identifiers).is_ok_and(|json: Value| json.is_object());
        if !is_object {
            return Err("expected identifiers as a JSON object such as {\"user_id\":1}".to_owned());
        }
        let Times { now, begins, expires } = times;
        let claims = NewClaims { ext: identifiers, iat: now, nbf: begins, exp: expires };
        let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(secret.bytes()));
        let token = token.map_err(|error| error.to_string())?;
        if token.len() > TOKEN_BYTES_MAX {
            let bytes = token.len();
            return Err(format!("the token has {bytes} bytes, at most {TOKEN_BYTES_MAX} are read"));
        }
        Ok(token)
    }

    /// Verifies a token as for a client that connects.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn check_token(&self, token: &str, now_unix_s: u64) -> Result<VerifiedToken, Refusal> {
        let Some(tokens) = &self.access.tokens else {
            let why = "no key to check it by: set --secret, --jwt-secret or --jwt-keys";
            return Err(Refusal::new(Cause::TokenKey, why));
        };
        let identity = tokens.verify(token, now_unix_s);
        let identity = identity
            .map_err(|cause| Refusal::new(cause, explain_token(cause, token, now_unix_s)))?;
        let expires_unix_s = identity.expires_unix_s.map(|until| until.saturating_sub(LEEWAY_S));
        Ok(VerifiedToken { identifiers: identity.identifiers, expires_unix_s })
    }

    /// Signs a stream name for a channel.
    ///
    /// # Errors
    /// There is no secret for the channel, or the name is not valid.
    pub fn sign_stream(
        &self,
        kind: StreamKind,
        name: &str,
        expires_unix_s: Option<u64>,
    ) -> Result<String, String> {
        let verifier = self.verifier(kind).ok_or_else(|| no_secret(kind))?;
        let name = signed::stream(name).map_err(|_| "expected a name of 1 to 256 bytes")?;
        Ok(verifier.sign(&name, expires_unix_s))
    }

    /// Whether there is a secret for the signed names of a channel.
    #[must_use]
    pub fn has_secret_for(&self, kind: StreamKind) -> bool {
        self.verifier(kind).is_some()
    }

    /// Verifies a signed name as for a subscription, and returns the stream.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn check_stream(
        &self,
        kind: StreamKind,
        signed: &str,
        now_unix_s: u64,
    ) -> Result<Box<str>, Refusal> {
        let channel = match kind {
            StreamKind::PubSub => Channel::PubSubSigned(signed.into()),
            StreamKind::Turbo => Channel::Turbo(signed.into()),
            StreamKind::CableReady => Channel::CableReady(signed.into()),
        };
        let grant = self.access.stream(&channel, now_unix_s);
        let explain = |cause| Refusal::new(cause, explain_stream(cause, kind, signed, now_unix_s));
        grant.map(|grant| grant.stream).map_err(explain)
    }

    /// The key of `/_broadcast`.
    #[must_use]
    pub fn broadcast_key(&self) -> Option<&Secret> {
        self.access.broadcast_key.as_ref()
    }

    /// The key of `/api/publish` and `/api/disconnect`.
    #[must_use]
    pub fn publish_key(&self) -> Option<&Secret> {
        self.access.api_key.as_ref()
    }

    fn verifier(&self, kind: StreamKind) -> Option<&Verifier> {
        match kind {
            StreamKind::PubSub => self.access.streams.as_ref(),
            StreamKind::Turbo => self.access.turbo.as_ref(),
            StreamKind::CableReady => self.access.cable_ready.as_ref(),
        }
    }
}

impl VerifiedToken {
    /// When it expires, for people.
    #[must_use]
    pub fn expiry(&self, now_unix_s: u64) -> String {
        match self.expires_unix_s {
            None => "never".to_owned(),
            // Within the leeway.
            Some(at) if at < now_unix_s => expired(at, now_unix_s),
            Some(at) => format!("in {}, at {}", span(at - now_unix_s), moment(at)),
        }
    }
}

impl Refusal {
    fn new(cause: Cause, why: impl Into<String>) -> Self {
        Refusal { cause: cause.name(), why: why.into() }
    }
}

fn no_secret(kind: StreamKind) -> String {
    let (channel, flag) = (kind.channel(), kind.flag());
    format!("no secret for signed names of {channel}: set --secret or {flag}")
}

/// What is wrong with a token that was refused. Its parts are read without verification.
fn explain_token(cause: Cause, token: &str, now_unix_s: u64) -> String {
    let part = |nth| json_of(URL_SAFE_NO_PAD.decode(token.split('.').nth(nth)?).ok()?);
    let (header, claims) = (part(0).unwrap_or_default(), part(1).unwrap_or_default());
    let algorithm = header["alg"].as_str().unwrap_or_default();
    let time = |claim: &str| claims[claim].as_f64().unwrap_or_default() as u64;
    match cause {
        Cause::TokenTooLong => {
            let bytes = token.len();
            format!("it has {bytes} bytes, at most {TOKEN_BYTES_MAX} are read")
        }
        Cause::TokenMalformed => malformed_token(token, &header, &claims),
        Cause::TokenKey => {
            let id = match &header["kid"] {
                Value::String(id) => format!("key id \"{id}\""),
                _ => "no key id".to_owned(),
            };
            let help = match algorithm.starts_with("HS") {
                true => "set --secret or --jwt-secret",
                false => "--jwt-keys FILE reads public keys",
            };
            format!("no key checks {algorithm} with {id}: {help}")
        }
        Cause::TokenSignature => {
            format!(
                "wrong key: it was signed ({algorithm}) with another key, or changed afterwards"
            )
        }
        Cause::TokenExpired => expired(time("exp"), now_unix_s),
        Cause::TokenEarly => {
            let nbf = time("nbf");
            let wait = span(nbf.saturating_sub(now_unix_s));
            format!("not valid yet: it begins in {wait}, at {} (nbf)", moment(nbf))
        }
        Cause::TokenIdentifiers => match &claims["ext"] {
            Value::Null => {
                "claim ext is missing: expected the identifiers, a JSON object".to_owned()
            }
            ext => format!("claim ext is {ext}: expected a JSON object, or a string with one"),
        },
        _ => cause.name().to_owned(),
    }
}

fn malformed_token(token: &str, header: &Value, claims: &Value) -> String {
    let parts = token.split('.').count();
    let is_number = |claim: &&str| claims[*claim].is_null() || claims[*claim].is_number();
    if parts != 3 {
        return format!("not a JWT: expected 3 parts separated by dots, found {parts}");
    }
    if !header.is_object() {
        return "not a JWT: its first part is not a JSON object in base64url".to_owned();
    }
    if !header["crit"].is_null() {
        return "it has critical extensions (crit), which are not supported".to_owned();
    }
    if !claims.is_object() {
        return "not a JWT: its second part is not a JSON object in base64url".to_owned();
    }
    match ["exp", "nbf"].iter().find(|claim| !is_number(claim)) {
        Some(claim) => format!("claim {claim} is {}: expected Unix seconds", claims[*claim]),
        None => {
            let algorithm = &header["alg"];
            format!(
                "algorithm {algorithm} is not supported: expected HS256 to HS512, RS256 to RS512, \
                 PS256 to PS512, ES256, ES384 or EdDSA"
            )
        }
    }
}

/// What is wrong with a signed name that was refused. Its content is read without verification.
fn explain_stream(cause: Cause, kind: StreamKind, signed: &str, now_unix_s: u64) -> String {
    let content = signed.rsplit_once("--").map(|(encoded, _)| encoded);
    let decoded = |text: &str| STANDARD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text)).ok();
    let content = content.and_then(|encoded| json_of(decoded(encoded)?)).unwrap_or_default();
    let envelope = &content["_rails"];
    match cause {
        Cause::StreamMalformed if signed.len() > SIGNED_BYTES_MAX => {
            format!("it has {} bytes, at most {SIGNED_BYTES_MAX} are read", signed.len())
        }
        Cause::StreamMalformed => {
            "not a signed name: expected base64 of the name as JSON, --, and \
                                   64 lower-case hexadecimal digits of HMAC-SHA256"
                .to_owned()
        }
        Cause::StreamSignature => {
            let channel = kind.channel();
            format!(
                "wrong key: it was signed with another secret than that of {channel}, or changed afterwards"
            )
        }
        Cause::StreamExpired => {
            let expiry = envelope["exp"].as_str().and_then(timestamp::parse);
            expired(expiry.unwrap_or_default(), now_unix_s)
        }
        Cause::StreamPurpose => {
            format!("it was signed for the purpose {}: expected none", envelope["pur"])
        }
        Cause::StreamName => {
            format!(
                "it contains {content}: expected a stream name, a JSON string of 1 to 256 bytes"
            )
        }
        Cause::StreamOff => no_secret(kind),
        _ => cause.name().to_owned(),
    }
}

fn json_of(bytes: Vec<u8>) -> Option<Value> {
    serde_json::from_slice(&bytes).ok()
}

fn expired(at_unix_s: u64, now_unix_s: u64) -> String {
    let ago = span(now_unix_s.saturating_sub(at_unix_s));
    format!("expired {ago} ago, at {} (exp)", moment(at_unix_s))
}

/// To the second, as times in tokens are.
fn moment(unix_s: u64) -> String {
    timestamp::format(unix_s).replace(".000Z", "Z")
}

/// A time span in its two largest units: `2h 5m`.
fn span(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (size, unit) in units {
        if left >= size {
            parts.push(format!("{}{unit}", left / size));
            left %= size;
        } else if !parts.is_empty() {
            break;
        }
    }
    parts.truncate(2);
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::vectors::{ES256, HS256};
    use super::*;

    const NOW: u64 = 1_900_000_000;
    const IDENTIFIERS: &str = r#"{ "user_id":1 }"#;

    fn credentials(secret: &str) -> Credentials {
        Credentials::new(Auth { secret: Some(Secret::new(secret)), ..Auth::default() })
    }

    fn times(begins: Option<u64>, expires: Option<u64>) -> Times {
        Times { now: NOW, begins, expires }
    }

    fn why(credentials: &Credentials, token: &str) -> (&'static str, String) {
        let Refusal { cause, why } = credentials.check_token(token, NOW).unwrap_err();
        (cause, why)
    }

    fn unsigned(header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.AA", part(header), part(claims))
    }

    #[test]
    fn tokens_are_accepted_with_their_identifiers_to_the_byte() {
        let ours = credentials("ruby-to-go");
        let token = ours.create_token(IDENTIFIERS, times(None, Some(NOW + 3_600))).unwrap();
        let verified = ours.check_token(&token, NOW).unwrap();
        let expires_unix_s = Some(NOW + 3_600);
        assert_eq!(verified, VerifiedToken { identifiers: IDENTIFIERS.into(), expires_unix_s });
        assert_eq!(verified.expiry(NOW), "in 1h, at 2030-03-17T18:46:40Z");
        let forever = ours.create_token("{}", times(None, None)).unwrap();
        assert_eq!(ours.check_token(&forever, u64::MAX).unwrap().expiry(NOW), "never");
        assert!(ours.check_token(HS256, NOW).is_ok(), "tokens of other implementations, too");
    }

    #[test]
    fn refused_tokens_are_explained() {
        let ours = credentials("ruby-to-go");
        let old = ours.create_token("{}", times(None, Some(NOW - 7_500))).unwrap();
        let early = ours.create_token("{}", times(Some(NOW + 300), None)).unwrap();
        let signed = |claims: &Value| {
            let key = EncodingKey::from_secret(b"ruby-to-go");
            encode(&Header::default(), claims, &key).unwrap()
        };
        let crit = json!({"alg": "HS256", "crit": ["x"]});
        let cases = [
            (old, "token_expired", "expired 2h 5m ago, at 2030-03-17T15:41:40Z (exp)"),
            (early, "token_early", "begins in 5m, at 2030-03-17T17:51:40Z (nbf)"),
            (
                ES256.to_owned(),
                "token_key",
                "no key checks ES256 with key id \"es256-1\": --jwt-keys",
            ),
            (signed(&json!({"sub": "1"})), "token_identifiers", "claim ext is missing"),
            (signed(&json!({"ext": 7})), "token_identifiers", "claim ext is 7"),
            (signed(&json!({"exp": "x"})), "token_malformed", "claim exp is \"x\": expected Unix"),
            ("a.b".to_owned(), "token_malformed", "expected 3 parts separated by dots, found 2"),
            ("a.b.c".to_owned(), "token_malformed", "its first part"),
            (
                unsigned(&json!({"alg": "none"}), &json!({})),
                "token_malformed",
                "algorithm \"none\"",
            ),
            (unsigned(&crit, &json!({})), "token_malformed", "critical extensions"),
            ("x".repeat(9_000), "token_too_long", "9000 bytes, at most 8192"),
        ];
        for (token, cause, part) in cases {
            let (found, why) = why(&ours, &token);
            assert!(found == cause && why.contains(part), "{found}: {why}");
        }
        let (cause, other) = why(&credentials("another"), HS256);
        assert!(cause == "token_signature" && other.starts_with("wrong key"), "{other}");
        let (_, none) = why(&Credentials::new(Auth::default()), HS256);
        assert!(none.contains("--jwt-secret"), "{none}");
    }

    #[test]
    fn tokens_that_no_server_accepts_are_not_made() {
        let ours = credentials("ruby-to-go");
        for identifiers in ["", "7", "user", "[]", "{"] {
            let error = ours.create_token(identifiers, times(None, None)).unwrap_err();
            assert!(error.contains("JSON object"), "{identifiers}: {error}");
        }
        let long = json!({"a": "x".repeat(8_192)}).to_string();
        assert!(ours.create_token(&long, times(None, None)).unwrap_err().contains("at most 8192"));
        let none = Credentials::new(Auth::default());
        assert!(none.create_token("{}", times(None, None)).unwrap_err().contains("--jwt-secret"));
        assert!(none.sign_stream(StreamKind::Turbo, "a", None).unwrap_err().contains("--turbo-"));
        for name in [String::new(), "x".repeat(257)] {
            let error = ours.sign_stream(StreamKind::PubSub, &name, None).unwrap_err();
            assert!(error.contains("256 bytes"), "{error}");
        }
    }

    #[test]
    fn signed_names_are_accepted_by_the_channels_of_their_secret() {
        let auth = Auth { turbo_secret: Some(Secret::new("turbo")), ..credentials("a").auth };
        let ours = Credentials::new(auth);
        let signed = ours.sign_stream(StreamKind::PubSub, "chat/1", Some(NOW + 1)).unwrap();
        let check = |kind, now| ours.check_stream(kind, &signed, now).map_err(|no| no.why);
        assert_eq!(check(StreamKind::PubSub, NOW), Ok("chat/1".into()));
        assert_eq!(check(StreamKind::CableReady, NOW), Ok("chat/1".into()));
        assert!(check(StreamKind::Turbo, NOW).unwrap_err().starts_with("wrong key"));
        let late = check(StreamKind::PubSub, NOW + 61).unwrap_err();
        assert_eq!(late, "expired 1m ago, at 2030-03-17T17:46:41Z (exp)");
        let turbo = ours.sign_stream(StreamKind::Turbo, "chat/1", None).unwrap();
        assert_eq!(ours.check_stream(StreamKind::Turbo, &turbo, NOW), Ok("chat/1".into()));
        let malformed = ours.check_stream(StreamKind::Turbo, "chat/1", NOW).unwrap_err();
        assert!(malformed.why.starts_with("not a signed name"), "{malformed:?}");
        let number = Verifier::new(&Secret::new("a")).sign_content("7");
        let number = ours.check_stream(StreamKind::PubSub, &number, NOW).unwrap_err();
        assert!(number.why.contains("it contains 7"), "{number:?}");
    }

    #[test]
    fn time_spans_have_two_units_at_most() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3_600, "1h"), (3_601, "1h"), (90_061, "1d 1h")]
        {
            assert_eq!(span(seconds), text);
        }
    }
}
