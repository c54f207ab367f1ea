//! Sessions are resumed once, by who had them, and their bytes are exact.

use std::collections::BTreeMap;

use super::*;
use crate::app::call::State;
use crate::app::reply::Reply;
use crate::app::stored::StoredChannel;
use crate::app::{AppConfig, Target};

fn session(identity: Option<&str>) -> StoredSession {
    let identity = identity.map(Into::into);
    StoredSession { identity, identifiers: vec!["x".into(); 3], app: None }
}

fn id(number: u64) -> ConnId {
    ConnId::from_u64(number)
}

fn token(identity: &str) -> Claim<'_> {
    Claim { identity: Some(identity), env: None }
}

const NOBODY: Claim<'_> = Claim { identity: None, env: None };

fn stored(age_ns: u64, bytes_max: usize) -> StoredSessions {
    StoredSessions::new(age_ns, bytes_max, None)
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[test]
fn a_session_is_resumed_once_by_its_own_identity() {
    let sessions = stored(100, 1 << 20);
    for number in 0..4 {
        sessions.put(id(number), session((number < 2).then_some("ann")), 10);
    }
    assert_eq!(sessions.take(id(0), token("ann"), 20), Some(session(Some("ann"))));
    assert_eq!(sessions.take(id(0), token("ann"), 20), None, "it was resumed");
    assert_eq!(sessions.take(id(1), token("bob"), 20), None);
    assert_eq!(sessions.take(id(1), token("ann"), 20), None, "somebody else has tried it");
    assert_eq!(sessions.take(id(2), token("ann"), 20), None);
    assert_eq!(sessions.take(id(3), NOBODY, 109), Some(session(None)));
    sessions.expire(20);
    assert_eq!(sessions.held(), (0, 0));
    assert_eq!((count(&sessions.resumed), count(&sessions.ended)), (2, 2));
}

#[test]
fn sessions_are_bounded_by_age_and_bytes() {
    let each = session(None).bytes();
    let sessions = stored(100, 10 * each);
    for number in 0..1_000 {
        sessions.put(id(number), session(None), 10);
        assert!(sessions.held().1 <= 10 * each);
    }
    assert_eq!(count(&sessions.evicted), 990);
    assert_eq!((sessions.take(id(989), NOBODY, 20), sessions.held()), (None, (10, 10 * each)));
    assert!(sessions.take(id(990), NOBODY, 20).is_some());
    assert_eq!(sessions.take(id(999), NOBODY, 110), None, "before it is dropped, too");
    sessions.expire(110);
    assert_eq!((sessions.held(), count(&sessions.expired)), ((0, 0), 9));
    // Resumed ones leave nothing behind.
    for number in 0..10_000 {
        sessions.put(id(number), session(Some("ann")), 200);
        assert!(sessions.take(id(number), token("ann"), 200).is_some());
    }
    assert!(sessions.lock().order.len() <= 65 && sessions.lock().by_identity.is_empty());
    let long = StoredSession { identifiers: vec!["x".into(); 1_000], ..session(None) };
    sessions.put(id(1), long, 200);
    assert_eq!(sessions.held(), (0, 0), "longer than all may be");
}

#[test]
fn an_identity_is_ended_also_for_those_that_lose_their_connection_soon() {
    let sessions = stored(u64::MAX, 1 << 20);
    for (number, identity) in [(1, "ann"), (2, "ann"), (3, "anna"), (4, "an")] {
        sessions.put(id(number), session(Some(identity)), 10);
    }
    sessions.end_identity("ann", 20);
    assert!(sessions.take(id(1), token("ann"), 30).is_none());
    assert!(sessions.take(id(3), token("anna"), 30).is_some());
    sessions.put(id(5), session(Some("ann")), ENDED_NS);
    assert!(!sessions.has(id(5), ENDED_NS));
    sessions.put(id(6), session(Some("ann")), ENDED_NS + 20);
    assert!(sessions.has(id(6), ENDED_NS + 20));
    assert_eq!(sessions.held().0, 2);
    sessions.end(id(6));
    assert!(!sessions.has(id(6), ENDED_NS + 20));
    assert_eq!(sessions.held().0, 1, "without those that have ended");
    sessions.expire(2 * ENDED_NS);
    assert_eq!((sessions.held().0, count(&sessions.ended)), (1, 4));
    assert!(sessions.lock().identities_ended.is_empty());
    // Requests for more identities than are remembered.
    for number in 0..=ENDED_MAX {
        sessions.end_identity(&number.to_string(), 3 * ENDED_NS);
    }
    assert_eq!(sessions.lock().identities_ended.len(), ENDED_MAX);
    sessions.put(id(7), session(Some("bob")), 4 * ENDED_NS - 1);
    sessions.put(id(8), session(Some("bob")), 4 * ENDED_NS);
    assert!(!sessions.has(id(7), 4 * ENDED_NS) && sessions.has(id(8), 4 * ENDED_NS));
}

fn env(url: &str, cookie: &str, address: &str) -> Env {
    Env::new(url, [("cookie", cookie), ("REMOTE_ADDR", address)].into_iter())
}

fn of_app(has_token: bool, identity: &str) -> StoredSession {
    let reply = br#"{"env":{"cstate":{"a":"1"}}}"#;
    let mut state = State::default();
    state.merge(Reply::from_json(reply).map_or(BTreeMap::new(), |reply| reply.env.cstate));
    let channel = StoredChannel {
        identifier: "{}".into(),
        istate: state.clone(),
        streams: vec!["one".into(), "two".into()],
    };
    let app = StoredApp {
        sid: "sid".into(),
        env: env("http://x/cable?a=b%20c&sid=old", "user=ann", "10.0.0.1"),
        identifiers: identity.into(),
        cstate: state,
        channels: vec![channel],
        has_token,
        known: true,
        reports_end: true,
    };
    let identity = Some(identity.into());
    StoredSession { identity, identifiers: Vec::new(), app: Some(Box::new(app)) }
}

/// It was identified by its cookies: whoever has others is another client.
#[test]
fn a_session_that_the_application_identified_belongs_to_its_handshake() {
    let sessions = stored(100, 1 << 20);
    let own = |sessions: &StoredSessions, env: &Env, identity| {
        sessions.put(id(1), of_app(false, "ann"), 10);
        let claim = Claim { identity, env: Some(env) };
        let taken = sessions.take(id(1), claim, 20).is_some();
        sessions.expire(10);
        taken
    };
    let back = env("http://x/cable?sid=sid&a=b+c", "user=ann", "10.0.0.2");
    assert!(own(&sessions, &back, None));
    assert!(!own(&sessions, &back, Some("ann")), "it had no token");
    for (url, cookie) in [
        ("http://x/cable?sid=sid&a=b+c", "user=bob"),
        ("http://x/cable?sid=sid&a=b+c", ""),
        ("http://x/cable?sid=sid&a=bc", "user=ann"),
        ("http://x/cable?sid=sid", "user=ann"),
        ("http://x/other?sid=sid&a=b+c", "user=ann"),
    ] {
        assert!(!own(&sessions, &env(url, cookie, "10.0.0.1"), None), "{url} {cookie}");
    }
    sessions.put(id(2), of_app(true, "ann"), 10);
    let other = env("http://x/cable", "", "");
    let claim = Claim { identity: Some("ann"), env: Some(&other) };
    assert!(sessions.take(id(2), claim, 20).is_some(), "the token says who it is");
}

#[test]
fn the_application_is_told_once_of_each_end_and_never_of_a_resumed_session() {
    let target = "http://127.0.0.1:9/_anycable".parse::<Target>().unwrap();
    let config = AppConfig { target: Some(target), disconnect_backlog: 10, ..AppConfig::new() };
    let calls = Calls::new(&config);
    let each = of_app(false, "ann").bytes();
    let sessions = StoredSessions::new(100, 20 * each, Some(Arc::clone(&calls)));
    let waiting = || calls.figures(0).1.waiting;
    let back = env("http://x/cable?a=b+c", "user=ann", "");
    for number in 0..20 {
        sessions.put(id(number), of_app(false, "ann"), 10);
    }
    let claim = Claim { identity: None, env: Some(&back) };
    assert!(sessions.take(id(7), claim, 20).is_some());
    sessions.put(id(20), of_app(false, "ann"), 30);
    assert_eq!(waiting(), 0);
    sessions.put(id(21), of_app(false, "ann"), 30);
    assert_eq!((waiting(), sessions.held().1), (1, 20 * each), "one had to leave");
    // They wait here as long as there is no room there.
    sessions.expire(120);
    assert_eq!((waiting(), sessions.held().0), (10, 11));
    sessions.expire(120);
    assert_eq!((waiting(), sessions.held().0), (10, 11));
    assert!(sessions.take(id(20), claim, 130).is_none(), "it is too old all the same");
    assert!(sessions.drain(125), "some are left");
    sessions.put(id(22), of_app(false, "ann"), 125);
    assert!(!sessions.has(id(22), 125));
}

#[test]
fn the_application_is_told_of_as_many_ends_as_their_calls_have_bytes_for() {
    let target = "http://127.0.0.1:9/_anycable".parse::<Target>().unwrap();
    let each = of_app(false, "ann").bytes();
    let config = AppConfig { target: Some(target), queue_bytes: 3 * each - 1, ..AppConfig::new() };
    let calls = Calls::new(&config);
    let sessions = StoredSessions::new(100, 20 * each, Some(Arc::clone(&calls)));
    (0..10).for_each(|number| sessions.put(id(number), of_app(false, "ann"), 10));
    sessions.expire(120);
    let waiting = || calls.figures(0).1.waiting;
    assert_eq!((waiting(), sessions.held().0), (3, 7));
    for _ in 0..10 {
        sessions.expire(120);
    }
    assert_eq!(calls.figures(0).0.disconnects_dropped, 0, "the others wait where they are");
    assert_eq!(waiting() + sessions.held().0, 10);
}
