//! Groups without a network: the tests deliver the messages.

use std::sync::Arc;

use super::*;
use crate::delivery::group::Members;
use crate::delivery::publication;
use crate::delivery::publication::Publication;
use crate::outcome::groups::GroupSummary;
use crate::outcome::histograms::Histograms;

fn group(kind: Kind, size: u32) -> Group {
    let (late, quiet) = (Duration::from_secs(1), Duration::from_secs(2));
    Group { kind, size, own: false, each: false, late, quiet }
}

fn members(group: Group, users: u32) -> (Members, Arc<GroupState>) {
    let state = Arc::new(GroupState::new(group, u64::from(users), u64::from(users)));
    let mut members = Members::new(Arc::clone(&state));
    (0..users).for_each(|number| members.add(u64::from(number)));
    (members, state)
}

fn summary(mut members: Members, state: &GroupState) -> GroupSummary {
    GroupSummary::new(state, &members.finish(u64::from), &mut Histograms::default())
}

fn all_arrive(members: &mut Members, users: u32) {
    let there: Vec<bool> = (0..users).map(|at| members.arrive(at)).collect();
    assert_eq!(there.last(), Some(&true));
}

fn message(publisher: u32, sequence: u32, published_ns: u64) -> Vec<u8> {
    let text = publication::encode(&Publication::new(publisher, sequence, published_ns), 0);
    format!("{{\"say\":\"{text}\"}}").into_bytes()
}

#[test]
fn kinds_determine_senders_and_receivers() {
    for (kind, size, numbers, roles) in [
        (Kind::OneToOne, 2, (1, 1), [Role::Sender, Role::Receiver]),
        (Kind::OneToMany, 3, (1, 2), [Role::Sender, Role::Receiver]),
        (Kind::ManyToOne, 4, (3, 1), [Role::Receiver, Role::Sender]),
        (Kind::ManyToMany, 5, (5, 5), [Role::Both, Role::Both]),
    ] {
        let group = group(kind, size);
        assert_eq!(group.numbers(), numbers, "{kind}");
        assert_eq!([group.role(0), group.role(1)], roles, "{kind}");
        assert_eq!(group.pairs(u64::from(size) * 10), u64::from(numbers.0 * numbers.1) * 10);
    }
    let (many, _) = members(group(Kind::ManyToMany, 3), 6);
    let next = |to: &(u32, u64)| many.next_to(4, Some(to.0));
    let to: Vec<_> = std::iter::successors(many.next_to(4, None), next).collect();
    assert_eq!(to, [(0, 3), (2, 5)], "all of its group but itself");
    let (private, _) = members(group(Kind::OneToOne, 2), 4);
    assert_eq!((private.next_to(2, None), private.next_to(2, Some(0))), (Some((0, 3)), None));
}

#[test]
fn receivers_expect_what_was_sent_since_they_arrived() {
    let (mut all, state) = members(group(Kind::OneToMany, 3), 6);
    assert!(!all.arrive(0) && !all.arrive(1));
    assert_eq!(all.sends(0, 0, 5), Some(0), "user 2 has not arrived yet");
    assert!(all.arrive(2), "all are");
    for sequence in 1..6 {
        assert_eq!(all.sends(0, 0, 10), Some(sequence));
    }
    all.failed(0, 0, Publication::new(0, 5, 10));
    all.receipt(2, &message(0, 0, 5), 20);
    for sequence in [2, 1, 1, 3] {
        all.receipt(1, &message(0, sequence, 10), 20);
    }
    all.receipt(1, &message(0, 0, 5), 1_000_000_010);
    all.receipt(2, &message(0, 1, 10), 2_000_000_011);
    all.receipt(2, &message(3, 1, 10), 20);
    all.receipt(2, b"sf1 0 2 3 ffffffff", 20);
    all.receipt(0, &message(0, 1, 10), 20);
    all.receipt(1, b"hello", 20);
    let summary = summary(all, &state);
    let of = |name: &str| serde_json::to_value(&summary).unwrap()[name].as_u64().unwrap();
    // User 1: five that left, of which 0 to 3 came; user 2: four, of which one came.
    for (name, count) in [
        ("groups", 2),
        ("met", 1),
        ("senders", 2),
        ("receivers", 4),
        ("sent", 5),
        ("not_sent", 1),
        ("expected", 9),
        ("received", 5),
        ("lost", 4),
        ("duplicated", 1),
        ("reordered", 2),
        ("late", 2),
        ("foreign", 1),
        ("corrupted", 1),
        ("early", 1),
        ("receivers_short", 2),
    ] {
        assert_eq!(of(name), count, "{name}: {summary}");
    }
    assert_eq!(summary.worst[0], crate::Receiver { connection: 2, received: 1, lost: 3 });
    assert_eq!(summary.latency.unwrap().count, 5);
}

#[test]
fn a_refused_message_stands_for_no_other() {
    let (mut all, state) = members(group(Kind::OneToMany, 3), 3);
    all_arrive(&mut all, 3);
    for number in 0..4 {
        assert_eq!(all.sends(0, 0, 10), Some(number));
        if number == 1 {
            // User 1 receives it before the answer, user 2 after it.
            all.receipt(1, &message(0, number, 10), 11);
            all.failed(0, 0, Publication::new(0, number, 10));
            all.receipt(2, &message(0, number, 10), 12);
        }
    }
    for number in [0, 2] {
        all.receipt(1, &message(0, number, 10), 13);
        all.receipt(2, &message(0, number, 10), 13);
    }
    let summary = summary(all, &state);
    let of = |name: &str| serde_json::to_value(&summary).unwrap()[name].as_u64().unwrap();
    for (name, count) in
        [("sent", 3), ("expected", 6), ("received", 4), ("lost", 2), ("refused", 2)]
    {
        assert_eq!(of(name), count, "{name}: {summary}");
    }
    assert_eq!(summary.worst[1], crate::Receiver { connection: 2, received: 2, lost: 1 });
}

#[test]
fn warm_up_messages_are_not_expected() {
    let (mut all, state) = members(group(Kind::OneToMany, 3), 3);
    all.measure_from(10);
    all_arrive(&mut all, 3);
    for (now_ns, number) in [(5, 0), (6, 1), (9, 2)] {
        assert_eq!(all.sends(0, 0, now_ns), Some(number));
        all.lagged(0, now_ns);
    }
    all.failed(0, 0, Publication::new(0, 2, 9));
    all.receipt(1, &message(0, 0, 5), 8);
    all.receipt(1, b"sf1 0 2 3 ffffffff", 9);
    // Late, again, and to nobody's group: of the warm-up nothing is judged.
    all.receipt(1, &message(0, 0, 5), 2_000_000_000);
    all.receipt(1, &message(7, 1, 6), 12);
    for (now_ns, number) in [(10, 3), (11, 4), (12, 5)] {
        assert_eq!(all.sends(0, 0, now_ns), Some(number));
        all.lagged(0, now_ns);
    }
    all.failed(0, 0, Publication::new(0, 5, 12));
    all.receipt(1, &message(0, 3, 10), 13);
    all.receipt(1, &message(0, 4, 11), 14);
    all.receipt(2, &message(0, 4, 11), 14);
    let summary = summary(all, &state);
    let of = |name: &str| serde_json::to_value(&summary).unwrap()[name].as_u64().unwrap();
    for (name, count) in [
        ("warm_up", 2),
        ("sent", 2),
        ("not_sent", 1),
        ("expected", 4),
        ("received", 3),
        ("lost", 1),
        ("duplicated", 0),
        ("reordered", 0),
        ("late", 0),
        ("corrupted", 0),
        ("foreign", 0),
        ("early", 0),
    ] {
        assert_eq!(of(name), count, "{name}: {summary}");
    }
    let counts = [&summary.latency, &summary.send_lag].map(|latency| latency.unwrap().count);
    assert_eq!(counts, [3, 3]);
    assert!(summary.to_string().contains("2 sent in the warm-up"), "{summary}");
}

#[test]
fn with_each_a_message_is_expected_at_its_receiver_only() {
    let (mut all, state) = members(Group { each: true, ..group(Kind::ManyToMany, 3) }, 3);
    all_arrive(&mut all, 3);
    for at in 0..3 {
        let mut to = None;
        while let Some((receiver, number)) = all.next_to(at, to) {
            assert_eq!(all.sends(at, receiver, 1), Some(0), "numbers are of each pair");
            all.receipt(number as u32, &message(at, 0, 1), 2);
            to = Some(receiver);
        }
    }
    assert_eq!(all.sends(0, 2, 3), Some(1));
    let summary = summary(all, &state);
    assert_eq!((summary.sent, summary.expected, summary.received, summary.lost), (7, 7, 6, 1));
    assert_eq!(summary.worst[0].connection, 2);
}

#[test]
fn group_ends_when_complete_or_quiet() {
    let (mut all, _) = members(group(Kind::OneToOne, 2), 2);
    assert!(!all.stays(1, 0), "an incomplete group has nothing to wait for");
    let (mut all, _) = members(group(Kind::OneToOne, 2), 2);
    all_arrive(&mut all, 2);
    all.sends(0, 0, 1);
    assert!(all.stays(1, 1), "the other still sends");
    assert!(!all.sends_no_more(1, 1) && all.sends_no_more(0, 2));
    assert!(all.stays(0, 2) && all.stays(1, 2), "one is on its way");
    all.receipt(1, &message(0, 0, 1), 3);
    assert!(!all.stays(1, 3) && !all.stays(0, 3), "it came");
    let (mut all, _) = members(group(Kind::OneToOne, 2), 2);
    all_arrive(&mut all, 2);
    all.sends(0, 0, 1);
    assert!(all.stays(0, 10) && all.stays(1, 2_000_000_009));
    assert!(!all.stays(1, 2_000_000_010), "two seconds after anything happened");
}

#[test]
fn own_messages_are_expected_if_configured() {
    for own in [false, true] {
        let (mut all, state) = members(Group { own, ..group(Kind::ManyToMany, 2) }, 2);
        all_arrive(&mut all, 2);
        all.sends(0, 0, 1);
        (0..2).for_each(|at| all.receipt(at, &message(0, 0, 1), 2));
        let summary = summary(all, &state);
        let expected = 1 + u64::from(own);
        assert_eq!((summary.expected, summary.received, summary.lost), (expected, expected, 0));
    }
}
