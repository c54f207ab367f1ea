//! A [`History`] that is a replica of what a broker keeps.

use std::collections::BTreeMap;

use super::*;

const LIMITS: HistoryLimits =
    HistoryLimits { messages: 10, age_ns: 100_000, topic_bytes: 1 << 20, bytes: 1 << 20 };
const EPOCH: Epoch = Epoch(0xa1);

fn at(epoch: Epoch, offset: u64) -> Position {
    Position { epoch, offset }
}

fn after(offset: u64) -> Start {
    Start::After(at(EPOCH, offset))
}

fn publication(topic: &str, data: &str) -> Publication {
    Publication::new(topic.into(), data.as_bytes().into(), false).accepted(1_000)
}

/// Publishes at an offset, the data of which is that offset.
fn follow(history: &History, topic: &str, position: Position, at_ns: u64) {
    let publication = publication(topic, &position.offset.to_string());
    let kept_at = KeptAt { position, at_ns };
    assert_eq!(history.follow(&publication, kept_at, || Ok(1)), Ok(1));
    assert_eq!(publication.position(), Some(position));
}

/// What a broker keeps: publications at these offsets, each published at the time that is its offset.
fn past(floor: u64, offsets: &[u64]) -> Past {
    let publication = |&offset: &u64| {
        let publication = publication("x", &offset.to_string());
        PastPublication { offset, at_ns: offset, publication }
    };
    let publications: Vec<_> = offsets.iter().map(publication).collect();
    let last = offsets.last().copied().unwrap_or(floor);
    Past { epoch: EPOCH, floor, floor_ns: floor, last, publications }
}

/// The offsets that are sent to somebody, in pieces as replays do.
fn sent(history: &History, topic: &str, start: Start) -> Result<Vec<u64>, Unavailable> {
    let mut next = history.first(topic, start, 1_000)?;
    let mut all = Vec::new();
    loop {
        let piece = history.read(topic, 1_000, |view| {
            let Some((first, last)) = view.piece(next, 4)? else { return Ok(None) };
            assert!(next.offset <= first && first <= last);
            view.publications(first, last, usize::MAX).map(Some)
        })?;
        let Some((publications, through)) = piece else { return Ok(all) };
        assert!(!publications.is_empty() && through >= next.offset);
        for publication in publications {
            let offset = publication.position().unwrap().offset;
            assert_eq!(*publication.data, *offset.to_string().as_bytes());
            all.push(offset);
        }
        next.offset = through + 1;
    }
}

fn page(history: &History, topic: &str, start: Option<Start>) -> Vec<u64> {
    let page = history.page(topic, start, usize::MAX, usize::MAX, 1_000).unwrap();
    page.messages.iter().map(|message| message.offset).collect()
}

fn audit(history: &History) -> usize {
    history.shards.iter().map(|cell| cell.shard.lock().unwrap().audit()).sum()
}

fn check(history: &History) {
    let stats = history.stats();
    assert_eq!(stats.bytes, audit(history));
    assert_eq!(stats.kept_total, stats.messages as u64 + stats.evicted.iter().sum::<u64>());
}

#[test]
fn offsets_are_those_of_the_broker_and_may_leave_numbers_out() {
    let history = History::replica(LIMITS, 5);
    history.load("a", past(10, &[12, 13, 40]), 100);
    assert_eq!(history.last("a", 100), Some(at(EPOCH, 40)));
    follow(&history, "a", at(EPOCH, 41), 500);
    follow(&history, "a", at(EPOCH, 1_000_000), 501);
    let all = vec![12, 13, 40, 41, 1_000_000];
    for (start, from) in [(10, 0), (11, 0), (12, 1), (13, 2), (39, 2), (40, 3), (41, 4)] {
        assert_eq!(sent(&history, "a", after(start)).as_ref(), Ok(&all[from..].to_vec()));
        assert_eq!(page(&history, "a", Some(after(start))), all[from..]);
    }
    assert_eq!(page(&history, "a", None), all);
    assert_eq!(sent(&history, "a", after(1_000_000)), Ok(vec![]));
    assert_eq!(sent(&history, "a", after(9)), Err(Unavailable::Evicted));
    assert_eq!(sent(&history, "a", after(1_000_001)), Err(Unavailable::Ahead));
    let other = Start::After(at(Epoch(0xb2), 40));
    assert_eq!(sent(&history, "a", other), Err(Unavailable::Epoch));
    // By time: all that was published after 10 is there.
    assert_eq!(sent(&history, "a", Start::Since(10)), Err(Unavailable::Evicted));
    assert_eq!(sent(&history, "a", Start::Since(11)), Ok(all.clone()));
    assert_eq!(sent(&history, "a", Start::Since(500)), Ok(vec![41, 1_000_000]));
    assert_eq!(sent(&history, "a", Start::Since(502)), Ok(vec![]));
    check(&history);
}

#[test]
fn a_topic_that_is_empty_at_the_broker_is_known_and_others_are_not() {
    let history = History::replica(LIMITS, 5);
    history.load("a", past(0, &[]), 100);
    assert_eq!(history.last("a", 100), Some(at(EPOCH, 0)));
    assert_eq!(sent(&history, "a", after(0)), Ok(vec![]));
    assert_eq!(sent(&history, "a", Start::Since(1)), Ok(vec![]), "long before this process");
    // The last one was kept twice by mistake, and is delivered once.
    history.load("d", Past { last: 9, ..past(5, &[6, 8]) }, 100);
    assert_eq!(sent(&history, "d", after(5)), Ok(vec![6, 8]));
    assert_eq!(
        (sent(&history, "d", after(8)), sent(&history, "d", after(9))),
        (Ok(vec![]), Ok(vec![]))
    );
    assert_eq!(history.last("d", 100), Some(at(EPOCH, 9)));
    // All were evicted at the broker: whoever has the last one has missed nothing.
    history.load("b", past(7, &[]), 100);
    assert_eq!(
        (sent(&history, "b", after(7)), sent(&history, "b", after(6))),
        (Ok(vec![]), Err(Unavailable::Evicted))
    );
    assert_eq!(history.last("c", 100), None);
    assert_eq!(sent(&history, "c", after(0)), Err(Unavailable::Evicted));
    assert_eq!(sent(&history, "c", Start::Since(900)), Err(Unavailable::Evicted));
    assert!(history.page("c", None, 1, 1, 100).is_err());
    // Nobody has published there since, and it is still known.
    history.expire(u64::MAX / 2);
    assert_eq!(history.last("b", 100), Some(at(EPOCH, 7)));
    history.forget(["a", "b", "c", "d"]);
    assert_eq!((history.stats().topics, history.stats().bytes), (0, 0));
}

#[test]
fn another_epoch_or_an_offset_that_comes_again_begins_anew() {
    let history = History::replica(LIMITS, 5);
    history.load("a", past(0, &[1, 2, 3]), 100);
    let next = Epoch(0xb2);
    follow(&history, "a", at(next, 1), 900);
    assert_eq!(sent(&history, "a", after(3)), Err(Unavailable::Epoch));
    assert_eq!(sent(&history, "a", Start::After(at(next, 0))), Ok(vec![1]));
    assert_eq!(history.first("a", Start::Since(999), 1_000), Err(Unavailable::Evicted));
    follow(&history, "a", at(next, 2), 901);
    follow(&history, "a", at(next, 2), 902);
    assert_eq!(sent(&history, "a", Start::After(at(next, 1))), Ok(vec![2]), "the second one");
    assert_eq!(sent(&history, "a", Start::After(at(next, 0))), Err(Unavailable::Evicted));
    // What is not known begins with what comes.
    follow(&history, "b", at(EPOCH, 50), 900);
    assert_eq!(sent(&history, "b", after(49)), Ok(vec![50]));
    assert_eq!(sent(&history, "b", after(48)), Err(Unavailable::Evicted));
    // A loss is told, and then the broker's own is loaded.
    history.interrupt("b", 1_000);
    assert_eq!(
        (history.last("b", 1_000), sent(&history, "b", after(50))),
        (None, Err(Unavailable::Evicted))
    );
    history.load("b", past(40, &[48, 50, 51]), 1_000);
    assert_eq!(sent(&history, "b", after(45)), Ok(vec![48, 50, 51]));
    check(&history);
}

#[test]
fn a_replay_that_is_overtaken_by_another_epoch_or_by_eviction_is_told() {
    let history = History::replica(LIMITS, 5);
    history.load("a", past(0, &[2, 4, 6]), 100);
    let next = history.first("a", after(2), 100).unwrap();
    let piece = || history.read("a", 100, |view| view.piece(next, 4));
    assert_eq!(piece(), Ok(Some((4, 6))));
    (10..20).for_each(|offset| follow(&history, "a", at(EPOCH, offset), 100));
    assert_eq!(piece(), Err(Unavailable::Evicted));
    follow(&history, "a", at(Epoch(0xb2), 500), 100);
    assert_eq!(piece(), Err(Unavailable::Epoch));
    let floor = history.floor("a", 100).unwrap();
    assert_eq!(
        (floor, sent(&history, "a", Start::After(floor))),
        (at(Epoch(0xb2), 499), Ok(vec![500]))
    );
    history.forget(["a"]);
    assert_eq!(piece(), Err(Unavailable::Evicted));
    assert_eq!(history.floor("a", 100), None);
}

#[test]
fn what_is_refused_is_not_kept_and_what_is_not_given_has_no_position() {
    let history = History::replica(LIMITS, 5);
    let refused = publication("a", "");
    let kept_at = KeptAt { position: at(EPOCH, 1), at_ns: 1 };
    let result = history.follow(&refused, kept_at, || Err(Refused::MailboxFull));
    assert_eq!((result, refused.position()), (Err(Refused::MailboxFull), None));
    assert_eq!((history.stats(), audit(&history)), (HistoryStats::default(), 0));
}

#[test]
fn limits_of_this_process_hold_and_the_end_of_a_topic_stays_known() {
    let each = Kept::bytes_of(&publication("", "10")) + given::Given::KEPT_BYTES;
    let entry = TopicHistory::bytes_of_given("00");
    let limits = HistoryLimits { bytes: 4 * entry + 20 * each, topic_bytes: 6 * each, ..LIMITS };
    let history = History::replica(limits, 5);
    for topic in ["00", "01", "02", "03"] {
        history.load(topic, past(9, &[10, 12, 14, 16, 18, 20, 22, 24]), 100);
        check(&history);
        assert!(history.stats().bytes <= limits.bytes);
        assert_eq!(sent(&history, topic, after(12)).map(|all| all.len()), Ok(6), "the newest");
        assert_eq!(sent(&history, topic, after(11)), Err(Unavailable::Evicted));
    }
    assert_eq!(history.stats().evicted[Eviction::Bytes as usize], 4);
    assert_eq!(sent(&history, "00", after(22)), Ok(vec![24]));
    // Longer than all that a topic may hold.
    let long = publication("00", &"x".repeat(7 * each));
    history.follow(&long, KeptAt { position: at(EPOCH, 30), at_ns: 200 }, || Ok(1)).unwrap();
    assert_eq!(sent(&history, "00", after(24)), Err(Unavailable::Evicted));
    assert_eq!(sent(&history, "00", after(30)), Ok(vec![]));
    // Entries alone are more than all may hold: they stay, publications do not.
    for number in 10..99 {
        history.load(&number.to_string(), past(0, &[10]), 100);
    }
    check(&history);
    assert_eq!((history.stats().topics, history.stats().messages), (93, 0));
    assert_eq!(sent(&history, "98", after(10)), Ok(vec![]));
    history.forget(
        (10..99).map(|number| number.to_string()).collect::<Vec<_>>().iter().map(|name| &**name),
    );
    follow(&history, "01", at(EPOCH, 31), 300);
    assert_eq!(sent(&history, "01", after(30)), Ok(vec![31]));
    check(&history);
}

/// Lists by which the oldest is found do not grow with what was loaded and forgotten.
#[test]
fn topics_are_loaded_and_forgotten_for_ever() {
    let history = History::replica(LIMITS, 5);
    for round in 0..3_000_u64 {
        for topic in ["a", "b"] {
            history.load(topic, past(0, &[1, 2, 3]), round);
        }
        if round % 3 == 0 {
            history.forget(["b"]);
        }
        check(&history);
    }
}

/// Against a model: loads, publications with any steps between offsets, other epochs, losses and releases.
#[test]
fn readers_get_exactly_what_follows_their_position() {
    #[derive(Default)]
    struct Topic {
        epoch: u32,
        floor: u64,
        last: u64,
        kept: BTreeMap<u64, ()>,
    }
    let history = History::replica(HistoryLimits { age_ns: u64::MAX, ..LIMITS }, 5);
    let mut state = 11_u64;
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut model: [Option<Topic>; 3] = Default::default();
    for _ in 0..20_000 {
        let which = random(3) as usize;
        let name = which.to_string();
        match (random(20), &mut model[which]) {
            (0, topic) => {
                history.forget([&*name]);
                *topic = None;
            }
            (1, topic) => {
                let floor = random(50);
                let mut offsets = Vec::new();
                let mut last = floor;
                for _ in 0..random(30) {
                    last += 1 + random(3) * random(40);
                    offsets.push(last);
                }
                history.load(&name, past(floor, &offsets), 1);
                let kept: BTreeMap<u64, ()> = offsets
                    .iter()
                    .rev()
                    .take(LIMITS.messages)
                    .map(|offset| (*offset, ()))
                    .collect();
                let dropped = offsets.len().checked_sub(LIMITS.messages + 1).map(|at| offsets[at]);
                let floor = dropped.unwrap_or(floor);
                *topic = Some(Topic { epoch: EPOCH.0, floor, last, kept });
            }
            (2, topic) => {
                let epoch = random(3) as u32 + 1;
                let changes = topic.as_ref().is_none_or(|topic| topic.epoch != epoch);
                if changes {
                    follow(&history, &name, at(Epoch(epoch), 7), 1);
                    *topic = Some(Topic { epoch, floor: 6, last: 7, kept: [(7, ())].into() });
                }
            }
            (_, Some(topic)) => {
                topic.last += 1 + random(2) * random(200);
                follow(&history, &name, at(Epoch(topic.epoch), topic.last), 1);
                topic.kept.insert(topic.last, ());
                if topic.kept.len() > LIMITS.messages {
                    topic.floor = topic.kept.pop_first().unwrap().0;
                }
            }
            (_, None) => assert_eq!(history.last(&name, 1), None),
        }
        let Some(topic) = &model[which] else { continue };
        let from = topic.floor.saturating_sub(3) + random(topic.last - topic.floor + 8);
        let expected = match from {
            from if from > topic.last => Err(Unavailable::Ahead),
            from if from < topic.floor => Err(Unavailable::Evicted),
            from => Ok(topic.kept.range(from + 1..).map(|(offset, ())| *offset).collect()),
        };
        let position = at(Epoch(topic.epoch), from);
        assert_eq!(sent(&history, &name, Start::After(position)), expected, "after {from}");
        assert_eq!(history.last(&name, 1), Some(at(Epoch(topic.epoch), topic.last)));
        assert_eq!(history.floor(&name, 1), Some(at(Epoch(topic.epoch), topic.floor)));
    }
    check(&history);
}
