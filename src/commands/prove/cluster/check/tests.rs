//! Planted losses, doubles, reorders and late tells: what the checker must name and what it must not explain.

use load::subscribers::Record;

use super::super::evidence::{Tell, stream};
use super::*;

const S: u64 = 1_000_000_000;
const NODES: usize = 3;

/// A publication per second from second 1 on, to topic 0 at node 0, answered after 10 ms.
fn published(count: u32) -> Vec<Publication> {
    let one = |sequence: u32| Publication {
        publisher: stream(0, 0, NODES),
        sequence,
        topic: 0,
        node: 0,
        sent_ns: u64::from(sequence + 1) * S,
        ended_ns: u64::from(sequence + 1) * S + S / 100,
        answer: Answer::Acknowledged,
    };
    (0..count).map(one).collect()
}

/// A client at node 1, subscribed from the beginning, that received these numbers 20 ms after their sending.
fn subscriber(numbers: impl IntoIterator<Item = u32>) -> SubscriberLog {
    let mut records = vec![Record { at_ns: 1, event: Event::Subscribed { endpoint: 1 } }];
    records.extend(numbers.into_iter().map(received));
    SubscriberLog { records, ..SubscriberLog::default() }
}

fn received(sequence: u32) -> Record {
    let at_ns = u64::from(sequence + 1) * S + S / 50;
    Record { at_ns, event: Event::Received { publisher: stream(0, 0, NODES), sequence } }
}

fn window(fault: Fault, from: u64, until: u64) -> Window {
    Window { fault, from_ns: from * S, until_ns: until * S }
}

const KILLED: Fault = Fault::KillNode { node: 1 };
const CUT: Fault = Fault::CutLink { node: 1 };
const DELAYED: Fault = Fault::DelayLink { node: 1, delay_ms: 50 };

fn evidence(log: SubscriberLog, windows: Vec<Window>) -> Evidence {
    Evidence {
        publications: published(40),
        subscribers: vec![log],
        windows,
        endpoints_are_nodes: true,
        ..Evidence::default()
    }
}

/// A log in which a connection ends and is back, with these numbers before and after.
fn away(before: u32, ended: u64, why: Closed, back: u64, after: u32) -> SubscriberLog {
    let mut log = subscriber(0..before);
    log.records.push(Record { at_ns: ended * S, event: Event::Ended { why } });
    log.records.push(Record { at_ns: back * S, event: Event::Subscribed { endpoint: 2 } });
    log.records.extend((after..40).map(received));
    log
}

fn lost(findings: &Findings) -> (u64, u64) {
    (findings.explained.values().sum(), findings.unexplained.lost)
}

#[test]
fn all_delivered_once_is_nothing_to_explain() {
    let findings = check(&evidence(subscriber(0..40), Vec::new()));
    assert_eq!((findings.pairs, findings.delivered), (40, 40));
    assert_eq!((lost(&findings), findings.unexplained.total()), ((0, 0), 0));
}

#[test]
fn a_loss_that_nobody_told_is_unexplained_even_in_a_fault() {
    // Planted: the node's link is cut for five seconds and nothing is told.
    let numbers = (0..40).filter(|number| !(10..15).contains(number));
    let windows = vec![window(CUT, 11, 16)];
    let findings = check(&evidence(subscriber(numbers), windows));
    assert_eq!((lost(&findings), findings.pairs, findings.delivered), ((0, 5), 40, 35));
    assert_eq!(findings.examples.len(), 5);
    assert!(findings.examples[0].contains("number 10 of topic 0"), "{:?}", findings.examples);
    assert_eq!(findings.by_second[10], (0, 1));
}

#[test]
fn a_told_loss_has_the_fault_as_its_cause() {
    let numbers = (0..40).filter(|number| !(10..15).contains(number));
    let windows = vec![window(CUT, 11, 16), window(Fault::CutLink { node: 0 }, 10, 17)];
    let mut evidence = evidence(subscriber(numbers), windows);
    evidence.tells.push(Tell { node: 1, at_ns: 17 * S });
    let findings = check(&evidence);
    assert_eq!(lost(&findings), (5, 0));
    assert_eq!(findings.by_window, [5, 0], "its own node's, not that of node 1");
}

#[test]
fn a_tell_of_another_node_or_after_its_time_explains_nothing() {
    let windows = || vec![window(CUT, 11, 16)];
    for (node, at, explained) in [
        (1, 12, true),
        (1, 31, true),
        (1, 32, false),
        (2, 12, false),
        (0, 12, false),
        (1, 9, false),
    ] {
        let mut evidence = evidence(subscriber(0..10), windows());
        // Nothing later shows the node what is missing.
        evidence.publications.truncate(11);
        evidence.tells.push(Tell { node, at_ns: at * S });
        let expected = if explained { (1, 0) } else { (0, 1) };
        assert_eq!(lost(&check(&evidence)), expected, "told by {node} at {at}");
    }
}

#[test]
fn a_fault_that_hits_a_node_before_it_has_recovered_gives_it_more_time() {
    // It is cut off, and a second after that from the broker once more.
    let again =
        |node, from| vec![window(CUT, 11, 16), window(Fault::SwallowLink { node }, from, 24)];
    for (windows, at, explained) in [
        (again(1, 17), 39, true),
        (again(1, 17), 40, false),
        (again(2, 17), 32, false),
        (again(1, 22), 32, false),
    ] {
        let mut evidence = evidence(subscriber(0..10), windows);
        evidence.publications.truncate(11);
        evidence.tells.push(Tell { node: 1, at_ns: at * S });
        let expected = if explained { (1, 0) } else { (0, 1) };
        assert_eq!(lost(&check(&evidence)), expected, "told at {at}");
    }
}

#[test]
fn a_gap_told_to_the_client_counts_and_one_without_a_fault_is_named_so() {
    let mut log = subscriber((0..40).filter(|number| *number != 10));
    log.records.push(Record { at_ns: 13 * S, event: Event::Gap });
    log.records.sort_by_key(|record| record.at_ns);
    let findings = check(&evidence(log, Vec::new()));
    assert_eq!((lost(&findings), findings.told_without_fault), ((1, 0), 1));
}

#[test]
fn a_client_that_was_away_for_a_fault_knows_it() {
    let windows = vec![window(KILLED, 11, 14)];
    let of = |why, back, windows: &[Window]| {
        let log = away(10, 11, why, back, back as u32 - 1);
        lost(&check(&evidence(log, windows.to_vec())))
    };
    assert_eq!(of(Closed::Reset, 15, &windows), (4, 0));
    assert_eq!(of(Closed::Reset, 15, &[]), (0, 4), "there was no fault");
    assert_eq!(of(Closed::Reset, 35, &windows), (0, 24), "it stays away too long");
    assert_eq!(of(Closed::Aborted, 15, &windows), (0, 4), "it left by itself, by no plan");
    assert_eq!(
        of(Closed::Aborted, 15, &[window(Fault::DropClients { percent: 9 }, 11, 11)]),
        (4, 0)
    );
}

#[test]
fn a_hole_before_an_end_is_not_explained_by_it() {
    // Number 8 is missing although 9 arrived on the same connection, which then ended with its node.
    let windows = || vec![window(KILLED, 11, 14)];
    let mut log = away(10, 11, Closed::Reset, 15, 14);
    log.records.retain(|record| record.event != received(8).event);
    assert_eq!(lost(&check(&evidence(log, windows()))), (4, 1));
    // If nothing later arrived, it was under way.
    let mut log = away(10, 11, Closed::Reset, 15, 14);
    log.records.retain(|record| ![received(8).event, received(9).event].contains(&record.event));
    assert_eq!(lost(&check(&evidence(log, windows()))), (6, 0));
}

#[test]
fn a_confirmation_before_the_brokers_is_found() {
    // Planted: subscribed at once, although what is published in the next two seconds does not arrive.
    let findings = check(&evidence(subscriber(2..40), vec![window(Fault::KillBroker, 0, 2)]));
    assert_eq!(lost(&findings), (0, 2));
}

#[test]
fn doubles_are_unexplained_on_one_connection() {
    let mut log = subscriber(0..40);
    log.records.push(Record { at_ns: 41 * S, ..received(3) });
    let windows = || vec![window(DELAYED, 1, 40)];
    let findings = check(&evidence(log, windows()));
    assert_eq!((findings.unexplained.doubled, findings.doubled_explained), (1, 0));
    // A delayed one may arrive again at a node that the client came to meanwhile.
    let mut log = away(12, 12, Closed::Reset, 13, 13);
    log.records.push(Record { at_ns: 14 * S, ..received(11) });
    log.records.sort_by_key(|record| record.at_ns);
    let findings = check(&evidence(log.clone(), windows()));
    assert_eq!((findings.unexplained.doubled, findings.doubled_explained), (0, 1));
    let findings = check(&evidence(log, Vec::new()));
    assert_eq!((findings.unexplained.doubled, findings.doubled_explained), (1, 0));
}

#[test]
fn reorders_are_found_unless_the_earlier_one_was_still_unanswered() {
    let mut log = subscriber(0..40);
    log.records.swap(6, 7);
    let of = |evidence: &Evidence| check(evidence).unexplained.reordered;
    let mut evidence = evidence(log, vec![window(DELAYED, 1, 40)]);
    assert_eq!(of(&evidence), 1);
    evidence.publications[5].ended_ns = 8 * S;
    assert_eq!(of(&evidence), 0, "its publisher did not wait for the answer");
}

#[test]
fn a_gap_that_is_told_long_after_the_hole_was_seen_is_another_one() {
    let tell = |at: u64| Tell { node: 1, at_ns: at * S };
    let with = |at: u64, windows: Vec<Window>| {
        let mut evidence = evidence(subscriber((0..20).chain(21..40)), windows);
        evidence.tells = vec![tell(at)];
        lost(&check(&evidence))
    };
    // Number 20 was sent after 21 s, number 21 arrived after 22 s.
    assert_eq!(with(23, vec![]), (1, 0));
    assert_eq!(with(26, vec![]), (0, 1));
    let stopped = Fault::StopNode { node: 1 };
    assert_eq!(with(26, vec![window(stopped, 22, 25)]), (1, 0), "its metrics were read late");
    assert_eq!(with(26, vec![window(CUT, 15, 25)]), (0, 1));
}

#[test]
fn clients_that_are_told_need_more_than_a_counter_of_their_node() {
    let mut log = subscriber((0..20).chain(21..40));
    let mut evidence = evidence(log.clone(), vec![]);
    evidence.clients_are_told = true;
    evidence.tells = vec![Tell { node: 1, at_ns: 22 * S }];
    assert_eq!(lost(&check(&evidence)), (0, 1));
    log.records.insert(21, Record { at_ns: 22 * S, event: Event::Gap });
    evidence.subscribers = vec![log];
    assert_eq!(lost(&check(&evidence)), (1, 0));
}

#[test]
fn what_is_missing_when_a_proof_ends_early_is_unknown() {
    let mut evidence = evidence(subscriber(0..30), vec![]);
    assert_eq!((check(&evidence).unexplained.lost, check(&evidence).unknown), (10, 0));
    evidence.ended_early = true;
    let findings = check(&evidence);
    assert_eq!((findings.unexplained.total(), findings.unknown, findings.delivered), (0, 10, 30));
    assert!(findings.examples.is_empty() && findings.by_second.iter().all(|one| *one == (0, 0)));
}

#[test]
fn what_was_never_published_there_or_is_damaged_is_unexplained() {
    let mut log = subscriber(0..40);
    let other = Event::Received { publisher: stream(1, 0, NODES), sequence: 0 };
    log.records.extend([
        Record { at_ns: 41 * S, event: other },
        Record { at_ns: 41 * S, event: Event::Damaged },
    ]);
    let findings = check(&evidence(log, Vec::new()));
    assert_eq!((findings.unexplained.foreign, findings.unexplained.damaged), (1, 1));
    assert_eq!(findings.unexplained.total(), 2);
}

#[test]
fn refused_and_unanswered_publications_are_owed_to_nobody() {
    let mut evidence = evidence(subscriber(0..38), Vec::new());
    evidence.publications[39].answer = Answer::Refused(503);
    evidence.publications[38].answer = Answer::Unknown;
    evidence.publications[37].answer = Answer::Unknown;
    evidence.publications[36].answer = Answer::Refused(503);
    let findings = check(&evidence);
    assert_eq!((findings.pairs, findings.delivered, lost(&findings)), (36, 36, (0, 0)));
    assert_eq!((findings.refused_delivered, findings.unanswered_delivered), (1, 1));
}

#[test]
fn through_a_proxy_the_tell_of_any_node_counts() {
    let mut evidence = evidence(subscriber((0..40).filter(|number| *number != 10)), Vec::new());
    evidence.endpoints_are_nodes = false;
    evidence.tells.push(Tell { node: 2, at_ns: 12 * S });
    assert_eq!(lost(&check(&evidence)), (1, 0));
}

/// A client that recovers: away from second 11 to 15, where number 12 is missing of what it asks for.
fn recovering(missing: &[u32], told: Option<u64>, windows: Vec<Window>) -> Evidence {
    let mut log = away(10, 11, Closed::Reset, 15, 10);
    let is_missing = |event: Event| missing.iter().any(|number| received(*number).event == event);
    log.records.retain(|record| !is_missing(record.event));
    for record in &mut log.records {
        if let Event::Received { sequence: 10..14, .. } = record.event {
            record.at_ns = 15 * S;
        }
    }
    log.records.extend(told.map(|at| Record { at_ns: at * S, event: Event::Gap }));
    log.records.sort_by_key(|record| record.at_ns);
    Evidence { clients_recover: true, ..evidence(log, windows) }
}

#[test]
fn a_client_that_recovers_gets_what_was_published_while_it_was_away() {
    let windows = || vec![window(KILLED, 11, 14)];
    let findings = check(&recovering(&[], None, windows()));
    assert_eq!((findings.delivered, findings.unexplained.total()), (40, 0));
    assert_eq!(findings.recovered, 4);
    // Neither the end of its connection nor the gap that its node told explains anything.
    let mut evidence = recovering(&[12], None, windows());
    evidence.tells.push(Tell { node: 2, at_ns: 15 * S });
    assert_eq!(lost(&check(&evidence)), (0, 1));
    assert_eq!(lost(&check(&recovering(&[12], Some(15), windows()))), (0, 1), "nothing was lost");
}

#[test]
fn only_a_broker_that_lost_its_data_excuses_from_recovery_and_only_those_whom_it_tells() {
    let windows = || vec![window(Fault::KillBroker, 11, 14)];
    for (told, explained) in [(Some(15), 2), (Some(29), 2), (None, 0), (Some(9), 0), (Some(31), 0)]
    {
        let expected = (explained, 2 - explained);
        assert_eq!(lost(&check(&recovering(&[8, 9], told, windows()))), expected, "{told:?}");
    }
    // What the broker got when it was back is unknown to a client that was away, and to no other.
    assert_eq!(lost(&check(&recovering(&[12, 13], Some(15), windows()))), (2, 0));
    assert_eq!(lost(&check(&recovering(&[15, 16], Some(18), windows()))), (0, 2));
    // Nothing had kept it from arriving before.
    assert_eq!(lost(&check(&recovering(&[3], Some(15), windows()))), (0, 1));
    let stopped = window(Fault::StopNode { node: 1 }, 4, 15);
    let windows = vec![stopped, window(Fault::KillBroker, 11, 14)];
    assert_eq!(lost(&check(&recovering(&[3], Some(15), windows))), (1, 0));
}

#[test]
fn a_broker_that_keeps_its_data_excuses_nothing() {
    let windows = || vec![window(Fault::KillBroker, 11, 14)];
    for missing in [&[8, 9][..], &[12, 13]] {
        let evidence = recovering(missing, Some(15), windows());
        assert_eq!(lost(&check(&Evidence { broker_keeps_data: true, ..evidence })), (0, 2));
    }
    let mut evidence = recovering(&[], Some(15), windows());
    evidence.broker_keeps_data = true;
    assert_eq!(check(&evidence).unexplained.total(), 0);
    let log = &mut evidence.subscribers[0];
    log.records.push(Record { at_ns: 15 * S + S / 2, ..received(9) });
    log.records.sort_by_key(|record| record.at_ns);
    assert_eq!(check(&evidence).unexplained.doubled, 1);
}

#[test]
fn clients_that_recover_get_nothing_twice_and_all_in_one_order() {
    let again = |told: Option<u64>, windows| {
        let mut evidence = recovering(&[], told, windows);
        let log = &mut evidence.subscribers[0];
        log.records.push(Record { at_ns: 15 * S + S / 2, ..received(9) });
        log.records.sort_by_key(|record| record.at_ns);
        let findings = check(&evidence);
        (findings.unexplained.doubled, findings.doubled_explained)
    };
    assert_eq!(again(None, vec![window(DELAYED, 1, 40)]), (1, 0));
    assert_eq!(again(None, vec![window(Fault::KillBroker, 11, 14)]), (1, 0));
    assert_eq!(again(Some(15), vec![window(Fault::KillBroker, 11, 14)]), (0, 1));
    // Number 8 comes with what was missed, after 9.
    let mut evidence = recovering(&[8], None, vec![window(KILLED, 11, 14)]);
    evidence.subscribers[0].records.push(Record { at_ns: 41 * S, ..received(8) });
    assert_eq!(check(&evidence).unexplained.reordered, 1);
}
