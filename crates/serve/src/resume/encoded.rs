//! A session as bytes for another node, sealed so that only who knows its session id can read them: they hold
//! cookies and the state that the application keeps, and a store has operators and backups.
//!
//! Numbers are little endian, texts and lists begin with their length. Bytes of another version are an error,
//! never a guess: nodes of different versions meet during a rolling restart. No announced length is used to
//! allocate.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;

use super::StoredSession;
use crate::app::call::{Env, State};
use crate::app::stored::{StoredApp, StoredChannel};

/// The version of the layouts: the first byte, and authenticated.
const VERSION: u8 = 2;
/// Bytes of a session beyond which it stays in its process.
const SESSION_BYTES_MAX: usize = 1024 * 1024;

const IDENTITY: u8 = 1;
const APP: u8 = 2;
const HAS_TOKEN: u8 = 4;
const KNOWN: u8 = 8;
const REPORTS_END: u8 = 16;
const FLAGS: u8 = IDENTITY | APP | HAS_TOKEN | KNOWN | REPORTS_END;

/// Seals bytes for the store.
pub(super) struct Sealer(RandomizedNonceKey);

impl Sealer {
    /// With a key for this purpose. `None` if the cipher is not available.
    pub(super) fn of(secret: &[u8], purpose: &[u8]) -> Option<Self> {
        let key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose);
        Some(Sealer(RandomizedNonceKey::new(&AES_256_GCM, key.as_ref()).ok()?))
    }

    pub(super) fn seal(&self, mut bytes: Vec<u8>) -> Option<Arc<[u8]>> {
        let nonce = self.0.seal_in_place_append_tag(Aad::from([VERSION]), &mut bytes).ok()?;
        let version: &[u8] = &[VERSION];
        Some([version, nonce.as_ref(), &bytes].concat().into())
    }

    /// The sealed bytes. `None` if they are not of this key and version.
    pub(super) fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (version, rest) = sealed.split_first()?;
        if *version != VERSION || rest.len() > 2 * SESSION_BYTES_MAX {
            return None;
        }
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let plain = self.0.open_in_place(nonce, Aad::from([VERSION]), &mut sealed).ok()?;
        Some(plain.to_vec())
    }
}

/// What a session id stands for in the store. Neither tells the id.
pub(crate) struct SessionKey {
    /// The key of the value: 32 hexadecimal digits.
    pub(crate) name: String,
    sealer: Sealer,
}

/// A session that was sealed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) session: StoredSession,
    /// When it was stored, in milliseconds since 1970.
    pub(crate) stored_ms: u64,
}

impl SessionKey {
    /// `None` if the cipher is not available.
    pub(crate) fn of(sid: &str) -> Option<SessionKey> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, sid.as_bytes());
        let name = hmac::sign(&key, b"standfast session name");
        let name = name.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let sealer = Sealer::of(sid.as_bytes(), b"standfast session seal")?;
        Some(SessionKey { name, sealer })
    }

    /// `None` if the session is too long.
    pub(crate) fn seal(&self, session: &StoredSession, stored_ms: u64) -> Option<Arc<[u8]>> {
        let encoded = encode(session, stored_ms);
        if encoded.len() > SESSION_BYTES_MAX { None } else { self.sealer.seal(encoded) }
    }

    /// The session in sealed bytes. `None` if they are not of this key and version.
    pub(crate) fn open(&self, sealed: &[u8]) -> Option<Opened> {
        decode(&self.sealer.open(sealed)?)
    }
}

fn encode(session: &StoredSession, stored_ms: u64) -> Vec<u8> {
    let StoredSession { identity, identifiers, app } = session;
    let mut flags = 0;
    let mut set = |flag, on| flags |= if on { flag } else { 0 };
    set(IDENTITY, identity.is_some());
    set(APP, app.is_some());
    if let Some(app) = app {
        set(HAS_TOKEN, app.has_token);
        set(KNOWN, app.known);
        set(REPORTS_END, app.reports_end);
    }
    let mut out = vec![flags];
    out.extend_from_slice(&stored_ms.to_le_bytes());
    if let Some(identity) = identity {
        put_text(&mut out, identity);
    }
    put_all(&mut out, identifiers, |out, text| put_text(out, text));
    if let Some(app) = app {
        put_text(&mut out, &app.sid);
        put_text(&mut out, app.env.text());
        put_text(&mut out, &app.identifiers);
        put_state(&mut out, &app.cstate);
        put_all(&mut out, &app.channels, |out, channel| {
            put_text(out, &channel.identifier);
            put_state(out, &channel.istate);
            put_all(out, &channel.streams, |out, stream| put_text(out, stream));
        });
    }
    out
}

fn decode(bytes: &[u8]) -> Option<Opened> {
    let mut rest = Reader(bytes);
    let flags = rest.byte()?;
    if flags & !FLAGS != 0 {
        return None;
    }
    let stored_ms = rest.u64()?;
    let has = |flag| flags & flag != 0;
    let identity = if has(IDENTITY) { Some(rest.text()?.into()) } else { None };
    let identifiers = rest.all(|rest| Some(rest.text()?.into()))?;
    let app = if has(APP) { Some(Box::new(decode_app(&mut rest, has)?)) } else { None };
    let session = StoredSession { identity, identifiers, app };
    rest.0.is_empty().then_some(Opened { session, stored_ms })
}

fn decode_app(rest: &mut Reader<'_>, has: impl Fn(u8) -> bool) -> Option<StoredApp> {
    Some(StoredApp {
        sid: rest.text()?.into(),
        env: Env::from_text(rest.text()?),
        identifiers: rest.text()?.into(),
        cstate: rest.state()?,
        channels: rest.all(|rest| {
            let (identifier, istate) = (rest.text()?.into(), rest.state()?);
            let streams = rest.all(|rest| Some(rest.text()?.into()))?;
            Some(StoredChannel { identifier, istate, streams })
        })?,
        has_token: has(HAS_TOKEN),
        known: has(KNOWN),
        reports_end: has(REPORTS_END),
    })
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    // What is longer is not sealed.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_length(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_all<T>(out: &mut Vec<u8>, all: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    put_length(out, all.len());
    all.iter().for_each(|one| put(out, one));
}

fn put_state(out: &mut Vec<u8>, state: &State) {
    put_all(out, state.fields(), |out, (key, value)| {
        put_text(out, key);
        put_text(out, value);
    });
}

/// The bytes that are not read yet.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, bytes: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn length(&mut self) -> Option<usize> {
        let length = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        usize::try_from(length).ok()
    }

    fn text(&mut self) -> Option<&'b str> {
        let bytes = self.length()?;
        str::from_utf8(self.take(bytes)?).ok()
    }

    /// A list, which grows with what is there.
    fn all<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..self.length()? {
            all.push(read(self)?);
        }
        all.shrink_to_fit();
        Some(all)
    }

    fn state(&mut self) -> Option<State> {
        Some(State::from_fields(self.all(|rest| Some((rest.text()?.into(), rest.text()?.into())))?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(key: &str, value: &str) -> State {
        State::from_fields(vec![(key.into(), value.into())])
    }

    fn plain() -> StoredSession {
        let identifiers = vec!["é".into(), "".into()];
        StoredSession { identity: Some(r#"{"user":1}"#.into()), identifiers, app: None }
    }

    fn of_app() -> StoredSession {
        let channel = StoredChannel {
            identifier: "{}".into(),
            istate: state("room", "7"),
            streams: vec!["a".into(), "b".into()],
        };
        let app = StoredApp {
            sid: "sid".into(),
            env: Env::new("http://a/cable?x=1", [("cookie", "a=b")].into_iter()),
            identifiers: "me".into(),
            cstate: state("k", "v"),
            channels: vec![channel],
            has_token: false,
            known: true,
            reports_end: true,
        };
        StoredSession { identity: None, identifiers: Vec::new(), app: Some(Box::new(app)) }
    }

    #[test]
    fn sessions_survive_the_way_and_are_opened_by_their_own_id_only() {
        let key = SessionKey::of("one").unwrap();
        let other = SessionKey::of("other").unwrap();
        assert_ne!(key.name, other.name);
        assert!(key.name.len() == 32 && !key.name.contains("one"));
        for session in [plain(), of_app()] {
            let sealed = key.seal(&session, 7).unwrap();
            assert_eq!(key.open(&sealed), Some(Opened { session, stored_ms: 7 }));
            assert_eq!(other.open(&sealed), None);
            assert!(!sealed.windows(4).any(|bytes| bytes == b"user" || bytes == b"room"));
            let mut altered = sealed.to_vec();
            for at in 0..altered.len() {
                altered[at] ^= 1;
                assert_eq!(key.open(&altered), None, "byte {at}");
                altered[at] ^= 1;
                assert_eq!(key.open(&altered[..at]), None, "cut at {at}");
            }
        }
    }

    #[test]
    fn the_layout_is_that_of_version_2() {
        // Nodes of other versions read it: a change needs another version.
        let bytes =
            b"\x01\x07\0\0\0\0\0\0\0\x0a\0\0\0{\"user\":1}\x02\0\0\0\x02\0\0\0\xc3\xa9\0\0\0\0";
        assert_eq!(encode(&plain(), 7), bytes);
        assert_eq!(encode(&of_app(), 7)[0], APP | KNOWN | REPORTS_END);
    }

    #[test]
    fn a_session_that_is_too_long_stays() {
        let identifiers = vec!["x".repeat(SESSION_BYTES_MAX).into()];
        let session = StoredSession { identifiers, ..plain() };
        assert!(SessionKey::of("one").unwrap().seal(&session, 7).is_none());
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(opened) = decode(&bytes) {
                let again = encode(&opened.session, opened.stored_ms);
                prop_assert_eq!(decode(&again), Some(opened));
            }
            let _ = SessionKey::of("one").unwrap().open(&bytes);
        }

        #[test]
        fn announced_lengths_are_compared_with_what_is_there(
            at in 0..200_usize,
            length in any::<u32>(),
        ) {
            let mut bytes = encode(&of_app(), 7);
            let at = at % (bytes.len() - 4);
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
            let _ = decode(&bytes);
        }
    }
}
