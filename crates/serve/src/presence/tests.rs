//! Tests of [`Presence`], with a clock of their own.

use std::time::Duration;

use super::*;

const WINDOW: u64 = 250_000_000;
const TTL: u64 = 15_000_000_000;

fn presence(bytes: usize) -> Presence {
    Presence::new(
        &PresenceConfig {
            ttl: Duration::from_nanos(TTL),
            window: Duration::from_nanos(WINDOW),
            bytes,
            shared: false,
        },
        None,
    )
}

/// What is published at a time, and when to be called again.
fn turn(presence: &Presence, now_ns: u64) -> (Vec<String>, u64) {
    let mut all = Vec::new();
    let next_ns = presence.turn(now_ns, |topic, json| {
        all.push(format!("{topic} {}", String::from_utf8(json).unwrap()));
        true
    });
    (all, next_ns)
}

#[test]
fn members_join_leave_and_expire() {
    let presence = presence(1 << 20);
    let ann = presence.join("news", "ann", None, false, 0).unwrap();
    assert_eq!(turn(&presence, 0), (vec![], WINDOW));
    let join = r#"news {"type":"join","id":"ann"}"#;
    assert_eq!(turn(&presence, WINDOW), (vec![join.to_owned()], u64::MAX));
    presence.disconnected("news", &ann, WINDOW);
    assert_eq!(turn(&presence, WINDOW), (vec![], WINDOW + TTL));
    // Back in time, and away again.
    presence.join("news", "ann", None, false, 2 * WINDOW).unwrap();
    assert_eq!(turn(&presence, WINDOW + TTL).1, u64::MAX);
    presence.disconnected("news", &ann, 3 * WINDOW);
    assert_eq!(turn(&presence, 3 * WINDOW + TTL), (vec![], 4 * WINDOW + TTL));
    assert_eq!(presence.stats().members, 0);
    let leave = r#"news {"type":"leave","id":"ann"}"#;
    assert_eq!(turn(&presence, 4 * WINDOW + TTL), (vec![leave.to_owned()], u64::MAX));
    let stats = presence.stats();
    assert_eq!((stats.bytes, stats.topics, presence.held().1 > 0), (0, 0, true));
    assert_eq!((stats.joined, stats.left, stats.expired, stats.events), (1, 0, 1, [1, 1, 0, 0]));
}

/// A session may change its info as often as it likes.
#[test]
fn a_shorter_info_frees_bytes() {
    let presence = presence(64 * 1024);
    let long = format!("\"{}\"", "x".repeat(2000));
    for round in 0..100 {
        presence.join("news", "ann", Some(&long), round > 0, 0).unwrap();
        presence.join("news", "ann", Some("1"), true, 0).unwrap();
    }
    presence.leave("news", "ann", 0);
    turn(&presence, WINDOW);
    assert_eq!(presence.stats().bytes, 0);
}

#[test]
fn a_million_members_are_bounded_in_bytes_and_nothing_stays() {
    let presence = presence(64 * 1024);
    let mut joined = 0;
    for number in 0..100_000u64 {
        let topic = format!("topic {}", number % 7);
        match presence.join(&topic, &format!("member {number}"), Some("{}"), false, number) {
            Ok(_) => joined += 1,
            Err(why) => assert_eq!(why, Refused::Bytes),
        }
        assert!(presence.stats().bytes <= 64 * 1024);
        if number > 1_000 && joined > 100 {
            break;
        }
    }
    assert!(joined > 100 && joined < 1_000, "{joined}");
    assert_eq!(presence.stats().members, joined);
    // Workers count what they are refused.
    presence.refused(Refused::Bytes);
    assert_eq!(presence.refused_for_memory(1), Some(1));
    presence.refused(Refused::Bytes);
    assert_eq!(presence.refused_for_memory(2), None, "one line in ten seconds");
    assert_eq!(presence.refused_for_memory(1 + LINE_INTERVAL_NS), Some(1));
    for number in 0..1_100u64 {
        presence.leave(&format!("topic {}", number % 7), &format!("member {number}"), 0);
    }
    turn(&presence, 100 * WINDOW);
    let stats = presence.stats();
    assert_eq!((stats.members, stats.bytes, stats.left), (0, 0, joined));
}

#[test]
fn records_are_bounded() {
    let presence = presence(1 << 20);
    let long = "x".repeat(RECORD_BYTES_MAX);
    let join = |id: &str, info| presence.join("news", id, info, false, 0);
    assert_eq!(join("", None), Err(Refused::Record));
    assert_eq!(join(&long[..ID_BYTES_MAX + 1], None), Err(Refused::Record));
    assert_eq!(join("a", Some(&long)), Err(Refused::Record));
    assert!(join("a", Some(&long[1..])).is_ok());
    assert_eq!(presence.stats().members, 1);
}

#[test]
fn what_cannot_be_published_is_summarised_later() {
    let presence = presence(1 << 20);
    presence.join("news", "ann", None, false, 0).unwrap();
    let next_ns = presence.turn(WINDOW, |_, _| false);
    assert_eq!((next_ns, presence.stats().retried), (2 * WINDOW, 1));
    let info = r#"news {"type":"info","total":1,"records":[{"id":"ann"}]}"#;
    assert_eq!(turn(&presence, 2 * WINDOW).0, [info]);
    presence.leave("news", "ann", 10 * WINDOW);
    assert_eq!(presence.turn(11 * WINDOW, |_, _| false), 12 * WINDOW);
    let info = r#"news {"type":"info","total":0,"records":[]}"#;
    assert_eq!(turn(&presence, 12 * WINDOW), (vec![info.to_owned()], u64::MAX));
    assert_eq!(presence.stats().bytes, 0);
}

#[test]
fn a_list_waits_while_very_many_join() {
    let presence = presence(1 << 24);
    for number in 0..100 {
        presence.join("news", &number.to_string(), None, false, 0).unwrap();
    }
    let info = |records, at_once, now_ns| presence.info("news", records, at_once, None, now_ns);
    assert_eq!(info(true, false, 0), Info::Later);
    assert!(matches!(info(false, false, 0), Info::Ready(..)), "the number is known");
    assert!(matches!(info(true, true, 0), Info::Ready(..)));
    turn(&presence, WINDOW);
    assert_eq!(info(true, false, WINDOW), Info::Later);
    let Info::Ready(json, version) = info(true, false, 3 * WINDOW) else { panic!("it is calm") };
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["total"], json["records"].as_array().unwrap().len()), (&100.into(), 100));
    assert_eq!(presence.info("news", true, false, Some(version), 3 * WINDOW), Info::Same);
    presence.leave("news", "7", 3 * WINDOW);
    assert_ne!(presence.info("news", true, false, Some(version), 3 * WINDOW), Info::Same);
    assert_eq!(presence.info("none", true, false, None, 0), Info::Ready(presence.list("none"), 0));
}

#[test]
fn a_list_of_an_earlier_room_is_not_mistaken_for_a_later_one() {
    let presence = presence(1 << 20);
    let version = |id: &str, now_ns: u64| {
        presence.join("news", id, None, false, now_ns).unwrap();
        let info = presence.info("news", true, false, None, now_ns);
        presence.leave("news", id, now_ns);
        turn(&presence, now_ns + WINDOW);
        let Info::Ready(_, version) = info else { panic!("{info:?}") };
        version
    };
    assert!(version("ann", 0) < version("bob", 2 * WINDOW));
    assert_eq!(presence.stats().topics, 0);
}

#[test]
fn a_list_that_is_too_long_is_refused() {
    let presence = presence(1 << 30);
    let info = format!("\"{}\"", "x".repeat(4_000));
    for number in 0..1_100 {
        presence.join("news", &number.to_string(), Some(&info), false, 0).unwrap();
    }
    assert_eq!(presence.info("news", true, true, None, 0), Info::TooLong);
    assert!(presence.list("news").len() > LIST_BYTES_MAX);
}
