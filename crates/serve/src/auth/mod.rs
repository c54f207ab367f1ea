//! Authentication and authorization: tokens (JWT), signed stream names, and the secret for each
//! purpose. Applications that sign for AnyCable's server or with Rails' `MessageVerifier` need no
//! change.
//!
//! The module knows no sockets, no clock and no sessions. A refusal has a [`Cause`], which is counted.
//! Clients get the same answer for all causes but an expired token.

mod credentials;
mod jwt;
mod keys;
mod signed;
mod timestamp;
mod token;
#[cfg(test)]
mod vectors;

use action_cable::Channel;
use engine::{Counter, invariant};

pub use self::credentials::{Credentials, Refusal, StreamKind, Times, VerifiedToken};
pub use self::jwt::KeySet;
pub(crate) use self::jwt::TokenIdentity;
pub use self::keys::{Auth, Secret};

use self::jwt::Tokens;
use self::keys::Keys;
use self::signed::Verifier;

/// Why a connection or a subscription was refused; each is counted by name.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// There is no token, and one is required.
    TokenMissing,
    /// The token is longer than [`jwt::TOKEN_BYTES_MAX`].
    TokenTooLong,
    /// It is not a JWT, its algorithm is not supported, or it has critical extensions.
    TokenMalformed,
    /// No key matches its algorithm and key id.
    TokenKey,
    /// Its signature is wrong.
    TokenSignature,
    /// It is not valid yet (`nbf`).
    TokenEarly,
    /// It has expired (`exp`).
    TokenExpired,
    /// It has no identifiers: claim `ext` is missing or is neither a string nor an object.
    TokenIdentifiers,
    /// A signed name is malformed or longer than [`signed::SIGNED_BYTES_MAX`].
    StreamMalformed,
    /// Its signature is wrong.
    StreamSignature,
    /// It has expired.
    StreamExpired,
    /// It was signed for another purpose.
    StreamPurpose,
    /// The name, signed or not, is not a valid stream name.
    StreamName,
    /// There is no secret for signed names of this kind.
    StreamOff,
    /// The name is not signed, and unsigned names are off.
    StreamPublic,
    /// The channel is the application's, which is not called, or has refused it.
    Channel,
    /// The application has refused the connection.
    Application,
    /// The application does not let the client publish.
    Publish,
    /// The identifier names no channel or is too long.
    Identifier,
    /// The connection has reached its limit of subscriptions.
    Subscriptions,
    /// The connection has reached its limit of bytes of subscriptions.
    SubscriptionBytes,
    /// A request of long polling names the session of another identity.
    PollIdentity,
}

impl Cause {
    /// All, in the order of their declaration.
    pub(crate) const ALL: [Cause; 22] = [
        Cause::TokenMissing,
        Cause::TokenTooLong,
        Cause::TokenMalformed,
        Cause::TokenKey,
        Cause::TokenSignature,
        Cause::TokenEarly,
        Cause::TokenExpired,
        Cause::TokenIdentifiers,
        Cause::StreamMalformed,
        Cause::StreamSignature,
        Cause::StreamExpired,
        Cause::StreamPurpose,
        Cause::StreamName,
        Cause::StreamOff,
        Cause::StreamPublic,
        Cause::Channel,
        Cause::Application,
        Cause::Publish,
        Cause::Identifier,
        Cause::Subscriptions,
        Cause::SubscriptionBytes,
        Cause::PollIdentity,
    ];

    /// The name under which it is counted.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cause::TokenMissing => "token_missing",
            Cause::TokenTooLong => "token_too_long",
            Cause::TokenMalformed => "token_malformed",
            Cause::TokenKey => "token_key",
            Cause::TokenSignature => "token_signature",
            Cause::TokenEarly => "token_early",
            Cause::TokenExpired => "token_expired",
            Cause::TokenIdentifiers => "token_identifiers",
            Cause::StreamMalformed => "stream_malformed",
            Cause::StreamSignature => "stream_signature",
            Cause::StreamExpired => "stream_expired",
            Cause::StreamPurpose => "stream_purpose",
            Cause::StreamName => "stream_name",
            Cause::StreamOff => "stream_off",
            Cause::StreamPublic => "stream_public",
            Cause::Channel => "channel",
            Cause::Application => "application",
            Cause::Publish => "publish",
            Cause::Identifier => "identifier",
            Cause::Subscriptions => "subscriptions",
            Cause::SubscriptionBytes => "subscription_bytes",
            Cause::PollIdentity => "poll_identity",
        }
    }
}

/// How often each [`Cause`] occurred; one writer.
#[derive(Default)]
pub(crate) struct Refusals([Counter; Cause::ALL.len()]);

impl Refusals {
    /// Counts one.
    pub(crate) fn add(&self, cause: Cause) {
        match self.0.get(cause as usize) {
            Some(counter) => counter.add(1),
            None => invariant::broken("each cause has a counter"),
        }
    }

    pub(crate) fn get(&self, cause: Cause) -> u64 {
        self.0.get(cause as usize).map_or(0, Counter::get)
    }
}

/// The result of authentication.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Connect {
    /// The identity in a valid token. The expiry is kept only where sessions end with their tokens.
    Identified(TokenIdentity),
    /// No token, and none is required. Signed stream names decide what the connection may subscribe
    /// to.
    Anonymous,
    /// The token is genuine but has expired: the client may fetch another one.
    Expired,
    /// Not authenticated.
    Refused(Cause),
}

/// A stream that may be subscribed to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StreamGrant {
    pub(crate) stream: Box<str>,
    /// When its subscribers may whisper to each other.
    pub(crate) whispers: Whispers,
}

/// When the subscribers of a stream may whisper to each other: a property of its identifier. Whether
/// they may now is decided by [`Access::allows`], so that a reload takes effect at once.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub(crate) enum Whispers {
    Never,
    /// An unsigned stream: as long as there are such.
    Unsigned,
    /// A signed stream: if that is configured.
    Signed,
}

/// The settings in force, ready to verify with; shared by all workers until a reload.
#[derive(Debug)]
pub(crate) struct Access {
    tokens: Option<Tokens>,
    enforce: bool,
    end_expired: bool,
    /// The query parameter that carries a token, and the header.
    param: Box<str>,
    header: Box<str>,
    streams: Option<Verifier>,
    turbo: Option<Verifier>,
    cable_ready: Option<Verifier>,
    public_streams: bool,
    whispers: bool,
    broadcast_key: Option<Secret>,
    api_key: Option<Secret>,
}

impl Access {
    /// With `public`, unsigned stream names are accepted.
    pub(crate) fn new(auth: &Auth, public: bool) -> Self {
        let keys = Keys::of(auth);
        Access {
            tokens: Tokens::new(keys.jwt, auth.jwt_keys.as_deref()),
            enforce: auth.enforce_jwt,
            end_expired: auth.end_expired,
            header: format!("x-{}", auth.jwt_param).into(),
            param: auth.jwt_param.clone(),
            streams: keys.streams.map(Verifier::new),
            turbo: keys.turbo.map(Verifier::new),
            cable_ready: keys.cable_ready.map(Verifier::new),
            public_streams: auth.public_streams || public,
            whispers: auth.streams_whisper,
            broadcast_key: keys.broadcast,
            api_key: keys.api,
        }
    }

    /// The token of a handshake: see [`token::find`].
    pub(crate) fn token<'b>(
        &self,
        query: Option<&'b str>,
        header: impl Fn(&str) -> Option<&'b [u8]>,
        protocols: impl IntoIterator<Item = &'b str>,
    ) -> Option<std::borrow::Cow<'b, str>> {
        token::find((&self.param, &self.header), query, header, protocols)
    }

    /// Authenticates a connection by its token. Where there is nothing to check tokens by, they are
    /// ignored.
    pub(crate) fn connect(&self, token: Option<&str>, now_unix_s: u64) -> Connect {
        let (Some(token), Some(tokens)) = (token, &self.tokens) else {
            return match self.enforce {
                true => Connect::Refused(Cause::TokenMissing),
                false => Connect::Anonymous,
            };
        };
        match tokens.verify(token, now_unix_s) {
            Ok(holder) => {
                let expires_unix_s = holder.expires_unix_s.filter(|_| self.end_expired);
                Connect::Identified(TokenIdentity { expires_unix_s, ..holder })
            }
            Err(Cause::TokenExpired) => Connect::Expired,
            Err(cause) => Connect::Refused(cause),
        }
    }

    /// The stream of a subscription, if it is authorized.
    pub(crate) fn stream(
        &self,
        channel: &Channel<'_>,
        now_unix_s: u64,
    ) -> Result<StreamGrant, Cause> {
        let (verifier, signed) = match channel {
            Channel::PubSubSigned(name) => (&self.streams, name),
            Channel::Turbo(name) => (&self.turbo, name),
            Channel::CableReady(name) => (&self.cable_ready, name),
            Channel::PubSubPublic(_) if !self.public_streams => return Err(Cause::StreamPublic),
            Channel::PubSubPublic(name) => {
                let whispers = Whispers::Unsigned;
                return Ok(StreamGrant { stream: signed::stream(name)?, whispers });
            }
            Channel::App { .. } => return Err(Cause::Channel),
        };
        let verifier = verifier.as_ref().ok_or(Cause::StreamOff)?;
        let whispers = match channel {
            Channel::PubSubSigned(_) => Whispers::Signed,
            _ => Whispers::Never,
        };
        Ok(StreamGrant { stream: verifier.stream(signed, now_unix_s)?, whispers })
    }

    /// Whether subscribers may whisper to each other now.
    pub(crate) fn allows(&self, whispers: Whispers) -> bool {
        match whispers {
            Whispers::Never => false,
            Whispers::Unsigned => self.public_streams,
            Whispers::Signed => self.whispers,
        }
    }

    /// Whether `/_broadcast` has its own key.
    pub(crate) fn broadcasts_are_keyed(&self) -> bool {
        self.broadcast_key.is_some()
    }

    /// Whether `/api/publish` and `/api/disconnect` have their own key.
    pub(crate) fn api_is_keyed(&self) -> bool {
        self.api_key.is_some()
    }

    /// Whether connections without a valid token are refused.
    pub(crate) fn requires_token(&self) -> bool {
        self.enforce
    }

    /// Whether this is the key of `/_broadcast`.
    pub(crate) fn opens_broadcast(&self, given: &[u8]) -> bool {
        self.broadcast_key.as_ref().is_some_and(|key| key.is(given))
    }

    /// Whether this is the key for publishing below `/api/`.
    pub(crate) fn opens_api(&self, given: &[u8]) -> bool {
        self.api_key.as_ref().is_some_and(|key| key.is(given))
    }
}

#[cfg(test)]
mod tests {
    use super::vectors::HS256 as TOKEN;
    use super::*;

    /// `chat:2021`, signed with `s3Krit`.
    const SIGNED: &str = "ImNoYXQ6MjAyMSI=--f9ee45dbccb1da04d8ceb99cc820207804370ba0d06b46fc3b8b373af1\
                          315628";
    const NOW: u64 = 1_900_000_000;

    fn auth(secret: &str) -> Auth {
        Auth { secret: Some(Secret::new(secret)), ..Auth::default() }
    }

    fn signed(name: &str) -> Channel<'_> {
        Channel::PubSubSigned(name.into())
    }

    fn turbo(name: &str) -> Channel<'_> {
        Channel::Turbo(name.into())
    }

    fn name(granted: Result<StreamGrant, Cause>) -> Result<Box<str>, Cause> {
        granted.map(|granted| granted.stream)
    }

    #[test]
    fn a_token_identifies_the_connection() {
        let access = Access::new(&auth("ruby-to-go"), false);
        let known = access.connect(Some(TOKEN), NOW);
        let until = 2_000_000_000 + jwt::LEEWAY_S;
        let holder = |expires_unix_s| {
            Connect::Identified(TokenIdentity {
                identifiers: r#"{"user_id":"15"}"#.into(),
                expires_unix_s,
            })
        };
        assert_eq!(known, holder(None), "it is checked when connecting only");
        let ending = Auth { end_expired: true, ..auth("ruby-to-go") };
        let ending = Access::new(&ending, false);
        assert_eq!(ending.connect(Some(TOKEN), NOW), holder(Some(until)));
        assert_eq!(access.connect(Some(TOKEN), until + 1), Connect::Expired);
        assert_eq!(access.connect(Some("x"), NOW), Connect::Refused(Cause::TokenMalformed));
        let other = Access::new(&auth("another"), false);
        assert_eq!(other.connect(Some(TOKEN), NOW), Connect::Refused(Cause::TokenSignature));
    }

    #[test]
    fn a_token_is_read_from_the_configured_parameter() {
        let named = Auth { jwt_param: "token".into(), ..auth("a") };
        let access = Access::new(&named, false);
        let header = |name: &str| (name == "x-token").then_some(&b"h"[..]);
        assert_eq!(access.token(Some("jid=a"), header, []).as_deref(), Some("h"));
        assert_eq!(access.token(Some("token=q"), |_| None, []).as_deref(), Some("q"));
    }

    #[test]
    fn without_a_token_a_connection_is_anonymous_unless_one_is_enforced() {
        assert_eq!(Access::new(&auth("a"), false).connect(None, NOW), Connect::Anonymous);
        let enforced = Auth { enforce_jwt: true, ..auth("a") };
        let enforced = Access::new(&enforced, true);
        assert_eq!(enforced.connect(None, NOW), Connect::Refused(Cause::TokenMissing));
        // Without a secret the token is ignored.
        let without = Access::new(&Auth::default(), false);
        assert_eq!(without.connect(Some(TOKEN), NOW), Connect::Anonymous);
        let broken = Auth { enforce_jwt: true, ..Auth::default() };
        let refused = Connect::Refused(Cause::TokenMissing);
        assert_eq!(Access::new(&broken, false).connect(Some(TOKEN), NOW), refused);
    }

    #[test]
    fn each_kind_of_stream_has_its_secret() {
        let auth = Auth {
            turbo_secret: Some(Secret::new("s3Krit")),
            cable_ready_secret: Some(Secret::new("none")),
            ..auth("another")
        };
        let access = Access::new(&auth, false);
        assert_eq!(name(access.stream(&turbo(SIGNED), NOW)), Ok("chat:2021".into()));
        let refused = [
            (signed(SIGNED), Cause::StreamSignature),
            (Channel::CableReady(SIGNED.into()), Cause::StreamOff),
            (Channel::PubSubPublic("chat:2021".into()), Cause::StreamPublic),
            (Channel::App { channel: "ChatChannel".into() }, Cause::Channel),
        ];
        for (channel, cause) in refused {
            assert_eq!(access.stream(&channel, NOW), Err(cause), "{channel:?}");
        }
    }

    #[test]
    fn unsigned_names_need_a_public_server_or_public_streams() {
        let stream =
            |access: Access, name: &str| access.stream(&Channel::PubSubPublic(name.into()), NOW);
        let granted = Ok(StreamGrant { stream: "news".into(), whispers: Whispers::Unsigned });
        assert_eq!(stream(Access::new(&Auth::default(), true), "news"), granted);
        let on = Auth { public_streams: true, ..auth("a") };
        assert_eq!(stream(Access::new(&on, false), "news"), granted);
        assert_eq!(stream(Access::new(&on, false), ""), Err(Cause::StreamName));
        assert_eq!(stream(Access::new(&auth("a"), false), "news"), Err(Cause::StreamPublic));
    }

    #[test]
    fn signed_streams_allow_whispers_only_when_configured() {
        let whispers = |auth: &Auth, channel: &Channel<'_>| {
            let access = Access::new(auth, false);
            access.stream(channel, NOW).map(|granted| access.allows(granted.whispers))
        };
        let quiet = auth("s3Krit");
        let loud = Auth { streams_whisper: true, ..quiet.clone() };
        assert_eq!(whispers(&quiet, &signed(SIGNED)), Ok(false));
        assert_eq!(whispers(&loud, &signed(SIGNED)), Ok(true));
        assert_eq!(whispers(&loud, &turbo(SIGNED)), Ok(false));
    }

    #[test]
    fn publishing_needs_the_derived_or_the_configured_key() {
        let derived = Access::new(&auth("s3Krit"), false);
        let key = b"a239a7ca182c90fc32bdedf73703d271388cf433843affffd3a5e757041fc716";
        let api = b"1db397202b5bd68b12665b638515c3aeac9100f721fd7c4fcb6f29c69f32c886";
        assert!(derived.broadcasts_are_keyed() && derived.opens_broadcast(key));
        assert!(!derived.opens_broadcast(api) && !derived.opens_broadcast(b""));
        assert!(derived.api_is_keyed() && derived.opens_api(api) && !derived.opens_api(key));
        let given = Auth { broadcast_key: Some(Secret::new("key")), ..auth("s3Krit") };
        let given = Access::new(&given, false);
        assert!(given.opens_broadcast(b"key") && !given.opens_broadcast(key));
        let none = Access::new(&Auth::default(), false);
        assert!(!none.broadcasts_are_keyed() && !none.opens_broadcast(b""));
        assert!(!none.api_is_keyed() && !none.opens_api(b""));
    }

    #[test]
    fn each_cause_has_its_own_name_and_counter() {
        let refusals = Refusals::default();
        for (at, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at, "{cause:?}");
            (0..=at).for_each(|_| refusals.add(cause));
        }
        let mut names: Vec<&str> = Cause::ALL.into_iter().map(Cause::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
        assert_eq!(refusals.get(Cause::PollIdentity), Cause::ALL.len() as u64, "the last");
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let auth = Auth { broadcast_key: Some(Secret::new("hush-hush")), ..auth("hush-hush") };
        let access = Access::new(&auth, false);
        let shown = format!("{auth:?} {access:?}");
        // Neither as text nor as bytes.
        assert!(!shown.contains("hush") && !shown.contains("104, 117, 115, 104"), "{shown}");
    }
}
