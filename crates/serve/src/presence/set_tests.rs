//! Tests of [`Set`], with a clock of their own.

use proptest::prelude::*;

use super::*;

const WINDOW: u64 = 100;
const TTL: u64 = 1_000;

/// Announces what is due at a time, as text.
fn announced(set: &mut Set, now_ns: u64) -> Vec<String> {
    if set.pace.due_ns().is_none_or(|due_ns| due_ns > now_ns) {
        return Vec::new();
    }
    let (events, _) = set.announce(now_ns, WINDOW);
    events.into_iter().map(|(_, json)| String::from_utf8(json).unwrap()).collect()
}

fn join(set: &mut Set, id: &str, now_ns: u64) -> Joined {
    set.join(id, Some(r#"{"n":1}"#), false, now_ns, WINDOW)
}

#[test]
fn a_member_joins_with_its_first_session_and_leaves_with_its_last() {
    let mut set = Set::default();
    assert!(join(&mut set, "ann", 0).new);
    assert!(!join(&mut set, "ann", 10).new, "another tab");
    assert_eq!(announced(&mut set, 99), [""; 0], "not before the window ends");
    assert_eq!(announced(&mut set, 100), [r#"{"type":"join","id":"ann","info":{"n":1}}"#]);
    assert!(!set.end_session("ann", None, 200, WINDOW));
    assert!(set.end_session("ann", None, 300, WINDOW));
    assert_eq!(
        (set.present(), announced(&mut set, 400)),
        (0, vec![r#"{"type":"leave","id":"ann"}"#.into()])
    );
    assert!(set.is_empty());
}

#[test]
fn who_is_not_there_cannot_leave() {
    let mut set = Set::default();
    assert!(!set.end_session("ann", None, 0, WINDOW));
    join(&mut set, "ann", 0);
    assert!(set.end_session("ann", None, 1, WINDOW));
    assert!(!set.end_session("ann", None, 2, WINDOW) && !set.expire("ann", 3, WINDOW));
    assert_eq!(set.present(), 0);
}

#[test]
fn who_joins_and_leaves_in_a_window_is_not_mentioned() {
    let mut set = Set::default();
    join(&mut set, "ann", 0);
    set.end_session("ann", None, 10, WINDOW);
    let (events, freed) = set.announce(100, WINDOW);
    assert_eq!((events.len(), freed), (0, record_bytes("ann", Some(r#"{"n":1}"#))));
    assert!(set.is_empty());
    join(&mut set, "bob", 200);
    assert_eq!(announced(&mut set, 300).len(), 1);
    set.end_session("bob", None, 400, WINDOW);
    join(&mut set, "bob", 420);
    assert_eq!(announced(&mut set, 600), [""; 0], "subscribers know him");
    assert_eq!(set.present(), 1);
}

#[test]
fn a_lost_connection_is_not_a_leave_until_the_member_has_been_away_for_too_long() {
    let mut set = Set::default();
    join(&mut set, "ann", 0);
    announced(&mut set, 100);
    assert!(set.end_session("ann", Some(200 + TTL), 200, WINDOW));
    assert_eq!((set.present(), set.pace.due_ns()), (1, None));
    let back = join(&mut set, "ann", 600);
    assert_eq!((back.new, back.lingered_until_ns), (false, Some(200 + TTL)));
    assert!(!set.expire("ann", 200 + TTL, WINDOW), "it is back");
    set.end_session("ann", Some(700 + TTL), 700, WINDOW);
    assert!(!set.expire("ann", 699 + TTL, WINDOW));
    assert!(set.expire("ann", 700 + TTL, WINDOW));
    assert_eq!(announced(&mut set, 800 + TTL), [r#"{"type":"leave","id":"ann"}"#]);
}

#[test]
fn an_info_can_change_without_an_event() {
    let mut set = Set::default();
    join(&mut set, "ann", 0);
    announced(&mut set, 100);
    let version = set.version;
    let joined = set.join("ann", None, true, 200, WINDOW);
    assert_eq!((joined.new, joined.added, joined.freed), (false, 0, 7));
    assert_eq!((set.pace.due_ns(), set.version), (None, version + 1));
    set.end_session("ann", None, 300, WINDOW);
    assert_eq!(set.present(), 0, "again was no further session");
    let info = set.list(true, 1000).unwrap().json();
    assert_eq!(info, br#"{"type":"info","total":0,"records":[]}"#);
}

#[test]
fn very_many_changes_are_a_list_or_a_number() {
    for (members, event) in [(100, Event::Info), (1000, Event::Changed)] {
        let mut set = Set::default();
        for number in 0..members {
            join(&mut set, &number.to_string(), 0);
        }
        assert!(set.is_crowded(0));
        let (events, freed) = set.announce(100, WINDOW);
        assert_eq!((events.len(), freed), (1, 0));
        let (kind, json) = &events[0];
        assert_eq!(*kind, event);
        let json: serde_json::Value = serde_json::from_slice(json).unwrap();
        assert_eq!(json["total"], members);
        let records = json["records"].as_array().map(Vec::len);
        assert_eq!(records, (event == Event::Info).then_some(100));
        assert!(set.announce(100 + TTL, WINDOW).0.is_empty(), "all are announced");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Join(u8),
    Leave(u8),
    Drop(u8),
    Wait(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0..100u8;
    let step = prop_oneof![
        8 => id.clone().prop_map(Step::Join),
        3 => id.clone().prop_map(Step::Leave),
        3 => id.prop_map(Step::Drop),
        3 => (0..300u16).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    /// A subscriber that follows the events knows the members once all is announced, and the bytes are exact.
    #[test]
    fn who_follows_the_events_knows_the_members(steps in steps()) {
        let (mut set, mut known) = (Set::default(), std::collections::BTreeSet::new());
        let (mut now_ns, mut bytes) = (0, 0usize);
        let mut live = std::collections::BTreeMap::<u8, u32>::new();
        let mut lingering = std::collections::BTreeSet::<(u64, u8)>::new();
        let end = [Step::Wait(300), Step::Wait(3_000), Step::Wait(3_000), Step::Wait(3_000)];
        for step in steps.into_iter().chain(end) {
            match step {
                Step::Join(id) => {
                    let joined = join(&mut set, &id.to_string(), now_ns);
                    bytes = bytes + joined.added - joined.freed;
                    *live.entry(id).or_default() += 1;
                }
                Step::Leave(id) | Step::Drop(id) if live.get(&id).is_none_or(|live| *live == 0) => {}
                Step::Leave(id) => {
                    set.end_session(&id.to_string(), None, now_ns, WINDOW);
                    *live.entry(id).or_default() -= 1;
                }
                Step::Drop(id) => {
                    set.end_session(&id.to_string(), Some(now_ns + TTL), now_ns, WINDOW);
                    *live.entry(id).or_default() -= 1;
                    lingering.insert((now_ns + TTL, id));
                }
                Step::Wait(time) => now_ns += u64::from(time),
            }
            while let Some((until_ns, id)) = lingering.first().copied().filter(|(until, _)| *until <= now_ns) {
                lingering.pop_first();
                set.expire(&id.to_string(), until_ns.max(now_ns), WINDOW);
            }
            if set.pace.due_ns().is_some_and(|due| due <= now_ns) {
                let (events, freed) = set.announce(now_ns, WINDOW);
                bytes -= freed;
                for (event, json) in events {
                    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
                    let id = || json["id"].as_str().unwrap().to_owned();
                    match event {
                        Event::Join => prop_assert!(known.insert(id()), "joined twice"),
                        Event::Leave => prop_assert!(known.remove(&id()), "left twice"),
                        Event::Info => {
                            let all = json["records"].as_array().unwrap();
                            known = all.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
                        }
                        Event::Changed => prop_assert!(false, "these fit into a list"),
                    }
                }
            }
            prop_assert_eq!(bytes, set.bytes());
        }
        let present: std::collections::BTreeSet<String> =
            live.iter().filter(|(_, live)| **live > 0).map(|(id, _)| id.to_string()).collect();
        prop_assert_eq!(set.present(), present.len());
        prop_assert_eq!(known, present);
    }
}
