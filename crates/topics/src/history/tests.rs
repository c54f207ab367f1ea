//! Offsets, limits, and requests of [`History`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;
const LIMITS: HistoryLimits =
    HistoryLimits { messages: 10, age_ns: 100, topic_bytes: 1 << 20, bytes: 1 << 20 };

fn history(limits: HistoryLimits) -> History {
    History::new(Epoch::new(0xe9), limits, 5)
}

fn publication(topic: &str, data: &str, at_ns: u64) -> Publication {
    Publication::new(topic.into(), data.as_bytes().into(), false).accepted(at_ns)
}

/// Publishes and returns the offset.
fn publish(history: &History, topic: &str, data: &str, at_ns: u64) -> u64 {
    let publication = publication(topic, data, at_ns);
    history.sequence(&publication, || Ok(1)).unwrap();
    publication.position().unwrap().offset
}

/// The offset of the first to send.
fn first(history: &History, topic: &str, start: Start, now_ns: u64) -> Result<u64, Unavailable> {
    history.first(topic, start, now_ns).map(|position| position.offset)
}

fn after(offset: u64) -> Start {
    Start::After(Position { epoch: Epoch::new(0xe9), offset })
}

/// The payloads from an offset on.
fn kept(history: &History, topic: &str, first: u64, now_ns: u64) -> Vec<String> {
    let all = history.read(topic, now_ns, |view| view.publications(first, view.last(), usize::MAX));
    let text = |publication: &Publication| String::from_utf8(publication.data.to_vec()).unwrap();
    all.map_or(Vec::new(), |(all, _)| all.iter().map(text).collect())
}

fn audit(history: &History) -> usize {
    history.shards.iter().map(|cell| cell.shard.lock().unwrap().audit()).sum()
}

fn evicted(history: &History, cause: Eviction) -> u64 {
    history.stats().evicted[cause as usize]
}

#[test]
fn positions_are_what_their_text_says() {
    let position = Position { epoch: Epoch::new(0x9f1c_03aa), offset: 17 };
    assert_eq!(position.to_string(), "9f1c03aa:17");
    assert_eq!(Position::parse("9f1c03aa:17"), Some(position));
    for other in ["", ":", "9f1c03aa", "9f1c03aa:", "9F1C03AA:17", "9f1c03aa:-1", "9f1c03aa:1:7"] {
        assert_eq!(Position::parse(other), None, "{other}");
    }
}

#[test]
fn publications_of_a_topic_are_numbered_without_gaps_and_refused_ones_take_no_number() {
    let history = history(LIMITS);
    assert_eq!(publish(&history, "a", "1", 10), 1);
    let refused = publication("a", "refused", 10);
    assert_eq!(history.sequence(&refused, || Err(Refused::MailboxFull)), Err(Refused::MailboxFull));
    assert_eq!(refused.position(), None);
    assert_eq!(publish(&history, "a", "2", 10), 2);
    assert_eq!(publish(&history, "b", "1", 10), 1);
    assert_eq!(kept(&history, "a", 1, 10), ["1", "2"]);
    // A refused first publication leaves nothing behind.
    let before = history.stats();
    let refused = publication("c", "refused", 10);
    assert!(history.sequence(&refused, || Err(Refused::TopicOverloaded)).is_err());
    assert_eq!(history.stats(), before);
    assert_eq!(before.bytes, audit(&history));
}

#[test]
fn what_is_available_is_sent_and_the_rest_is_an_error_with_the_reason() {
    let history = history(LIMITS);
    assert_eq!(first(&history, "a", after(0), 10), Ok(1), "nothing was published");
    assert_eq!(first(&history, "a", after(1), 10), Err(Unavailable::Ahead));
    assert_eq!(
        first(&history, "a", Start::Since(5), 10),
        Err(Unavailable::Evicted),
        "at the start"
    );
    assert_eq!(first(&history, "a", Start::Since(6), 10), Ok(1));
    for number in 1..=15 {
        publish(&history, "a", &number.to_string(), 10 + number);
    }
    let first = |start| first(&history, "a", start, 30);
    // The lowest offset that is kept is 6, so a client at offset 5 can continue without a gap.
    assert_eq!((first(after(4)), first(after(5))), (Err(Unavailable::Evicted), Ok(6)));
    assert_eq!((first(after(14)), first(after(15))), (Ok(15), Ok(16)));
    assert_eq!(first(after(16)), Err(Unavailable::Ahead));
    let other = Position { epoch: Epoch::new(1), offset: 15 };
    assert_eq!(first(Start::After(other)), Err(Unavailable::Epoch));
    // 5 was published at 15, and is lost.
    assert_eq!(
        (first(Start::Since(15)), first(Start::Since(16))),
        (Err(Unavailable::Evicted), Ok(6))
    );
    assert_eq!((first(Start::Since(25)), first(Start::Since(26))), (Ok(15), Ok(16)));
    assert_eq!(kept(&history, "a", 14, 30), ["14", "15"]);
    assert_eq!(history.last("a", 30).unwrap().offset, 15);
}

#[test]
fn a_topic_is_bounded_by_number_by_bytes_and_by_age() {
    let history = history(HistoryLimits { topic_bytes: 3 * 244, ..LIMITS });
    let hundred = "x".repeat(100);
    for at in 0..5 {
        publish(&history, "a", &hundred, 10 + at);
    }
    assert_eq!(kept(&history, "a", 3, 20).len(), 3);
    assert_eq!(evicted(&history, Eviction::TopicBytes), 2);
    // Longer than all that a topic may hold: it is not kept, and neither is what would have a gap.
    assert_eq!(publish(&history, "a", &"x".repeat(1000), 20), 6);
    assert_eq!(first(&history, "a", after(5), 20), Err(Unavailable::Evicted));
    assert_eq!(first(&history, "a", after(6), 20), Ok(7));
    assert_eq!(publish(&history, "a", "seven", 20), 7);
    publish(&history, "b", "", 30);
    let many = self::history(LIMITS);
    for _ in 0..25 {
        publish(&many, "b", "", 30);
    }
    assert_eq!((evicted(&many, Eviction::Messages), many.stats().messages), (15, 10));
    // At its age a publication is gone for readers, whether or not it was removed.
    assert_eq!(first(&history, "a", after(6), 119), Ok(7));
    assert_eq!(first(&history, "a", after(6), 120), Err(Unavailable::Evicted));
    assert_eq!(first(&history, "a", after(7), 120), Ok(8), "nothing is missing after it");
    history.expire(130);
    let stats = history.stats();
    assert_eq!((stats.messages, stats.topics), (0, 2));
    assert_eq!(stats.kept_total, stats.evicted.iter().sum::<u64>());
    assert_eq!(stats.bytes, audit(&history));
    // The entries of topics stay ten times as long.
    history.expire(1_119);
    assert_eq!(history.stats().topics, 2);
    history.expire(1_130);
    assert_eq!((history.stats().topics, history.stats().bytes), (0, 0));
}

#[test]
fn offsets_do_not_restart_when_a_topic_was_forgotten() {
    let history = history(LIMITS);
    for _ in 0..7 {
        publish(&history, "a", "", 10);
    }
    history.expire(110);
    history.expire(5_000);
    assert_eq!(history.stats().topics, 0);
    assert_eq!(first(&history, "a", after(6), 5_000), Err(Unavailable::Evicted));
    assert_eq!(first(&history, "a", after(7), 5_000), Ok(8), "it has missed nothing");
    assert_eq!(first(&history, "a", Start::Since(10), 5_000), Err(Unavailable::Evicted));
    assert_eq!(publish(&history, "a", "", 5_000), 8);
    assert_eq!(first(&history, "a", after(6), 5_000), Err(Unavailable::Evicted));
    assert_eq!(first(&history, "a", after(7), 5_000), Ok(8));
}

#[test]
fn the_oldest_of_all_topics_is_evicted_for_the_limit_of_all() {
    let each = Kept::bytes_of(&publication("x", "data", 0));
    let topic = TopicHistory::bytes_of("000");
    // Twenty topics of ten.
    let limits = HistoryLimits { bytes: 20 * (topic + 10 * each), age_ns: SECOND_NS, ..LIMITS };
    let history = history(limits);
    let mut at_ns = 10;
    let mut fill = |topics: std::ops::Range<u32>| {
        for number in topics {
            for _ in 0..10 {
                at_ns += 1;
                publish(&history, &format!("{number:03}"), "data", at_ns);
                assert!(audit(&history) <= limits.bytes);
            }
        }
    };
    fill(0..20);
    assert_eq!((history.stats().messages, history.stats().bytes), (200, limits.bytes));
    assert_eq!(history.stats().evicted.iter().sum::<u64>(), 0);
    // Each further topic takes the room of the oldest one, with its entry.
    fill(20..30);
    let stats = history.stats();
    assert_eq!((stats.bytes, audit(&history)), (limits.bytes, limits.bytes));
    assert_eq!((stats.topics, stats.messages), (20, 200));
    assert_eq!(evicted(&history, Eviction::Bytes), 100);
    assert_eq!(kept(&history, "010", 1, at_ns).len(), 10);
    assert_eq!(history.first("009", after(9), at_ns), Err(Unavailable::Evicted));
}

/// Many topics in turn, against a list of all that was published: what is kept is the end of it that fits, to the
/// byte, whatever the topics and the lengths.
#[test]
fn what_is_kept_of_many_topics_is_exactly_the_newest_that_fits() {
    const TOPICS: usize = 300;
    let name = |topic: usize| format!("topic {topic:03}");
    let entries = TOPICS * TopicHistory::bytes_of(&name(0));
    let limits =
        HistoryLimits { messages: 100, age_ns: SECOND_NS, bytes: entries + 500_000, ..LIMITS };
    let history = history(limits);
    let mut published: Vec<(usize, usize)> = Vec::new();
    for number in 0..20_000 {
        // Each topic in turn at first, then in leaps.
        let topic = if number < 6_000 { number % TOPICS } else { number * 7_919 % TOPICS };
        let data = "x".repeat(number * 31 % 97);
        publish(&history, &name(topic), &data, 10 + number as u64);
        published.push((topic, Kept::bytes_of(&publication("", &data, 0))));
        if number % 1_000 != 999 {
            continue;
        }
        let (mut bytes, mut lengths) = (entries, vec![0; TOPICS]);
        for (topic, length) in published.iter().rev() {
            bytes += length;
            if bytes > limits.bytes {
                bytes -= length;
                break;
            }
            lengths[*topic] += 1;
        }
        let now_ns = 10 + number as u64;
        let held = |topic: usize| {
            let read = |view: View<'_>| view.publications(view.lowest(), view.last(), usize::MAX);
            history.read(&name(topic), now_ns, read).map_or(0, |(all, _)| all.len())
        };
        assert_eq!((0..TOPICS).map(held).collect::<Vec<_>>(), lengths, "after {number}");
        assert_eq!((history.stats().bytes, audit(&history)), (bytes, bytes), "after {number}");
        let stats = history.stats();
        assert_eq!(stats.messages as u64 + evicted(&history, Eviction::Bytes), stats.kept_total);
    }
}

#[test]
fn a_topic_that_is_due_to_be_forgotten_can_be_published_to() {
    let history = history(LIMITS);
    publish(&history, "a", "", 10);
    history.expire(200);
    assert_eq!(publish(&history, "a", "", 50_000), 2);
    assert_eq!((history.stats().bytes, history.stats().topics), (audit(&history), 1));
}

/// A topic to which much is published does not leave stale entries behind.
#[test]
fn lists_do_not_grow_with_what_was_published() {
    let history = history(LIMITS);
    for number in 0..100_000u64 {
        publish(&history, "busy", "", 10 + number / 1000);
        if number % 100 == 0 {
            publish(&history, &format!("{}", number % 7), "", 10 + number / 1000);
            assert_eq!(history.stats().bytes, audit(&history));
        }
    }
}

#[test]
fn concurrent_publishers_get_one_order_and_never_exceed_the_limit() {
    let each = Kept::bytes_of(&publication("x", "0000", 0));
    let limits = HistoryLimits { messages: 1_000, bytes: 150 * each, age_ns: SECOND_NS, ..LIMITS };
    let history = Arc::new(history(limits));
    let posted: Arc<Mutex<BTreeMap<String, Vec<u64>>>> = Arc::default();
    let done = Arc::new(AtomicBool::new(false));
    let publishers: Vec<_> = (0..4u64)
        .map(|thread| {
            let (history, posted) = (Arc::clone(&history), Arc::clone(&posted));
            std::thread::spawn(move || {
                for number in 0..2_000u64 {
                    let topic = (number % 5).to_string();
                    let publication = publication(&topic, "0000", 10 + number * 4 + thread);
                    let post = || {
                        let offset = publication.position().unwrap().offset;
                        posted.lock().unwrap().entry(topic.clone()).or_default().push(offset);
                        Ok(1)
                    };
                    history.sequence(&publication, post).unwrap();
                }
            })
        })
        .collect();
    let checker = {
        let (history, done) = (Arc::clone(&history), Arc::clone(&done));
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                // Shard by shard, so that it is at most what was held at some time.
                let held: Vec<_> =
                    history.shards.iter().map(|cell| cell.shard.lock().unwrap()).collect();
                let bytes: usize = held.iter().map(|shard| shard.audit()).sum();
                assert!(bytes <= limits.bytes, "{bytes}");
            }
        })
    };
    for publisher in publishers {
        publisher.join().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    checker.join().unwrap();
    for (topic, offsets) in &*posted.lock().unwrap() {
        assert!(offsets.is_sorted_by(|a, b| a < b), "{topic}: {offsets:?}");
    }
    let stats = history.stats();
    assert_eq!(stats.kept_total, stats.messages as u64 + stats.evicted.iter().sum::<u64>());
    assert_eq!((stats.kept_total, stats.bytes), (8_000, audit(&history)));
}

#[test]
fn an_epoch_is_eight_hexadecimal_digits() {
    let epoch = Epoch::new(0x00c0_ffee);
    assert_eq!((epoch.to_string(), Epoch::parse("00c0ffee")), ("00c0ffee".into(), Some(epoch)));
    for other in ["", "c0ffee", "00C0FFEE", "+0c0ffee", "00c0ffee0", "00c0ffé"] {
        assert_eq!(Epoch::parse(other), None, "{other}");
    }
}

#[test]
fn topics_that_are_followed_cost_no_other_topic_its_position() {
    let history = history(HistoryLimits { bytes: 2 << 20, ..LIMITS });
    history.begin("quiet", 10);
    let last = history.last("quiet", 10).unwrap();
    let missed = |now_ns| first(&history, "quiet", Start::After(last), now_ns);
    let all = || (0..2_000).map(|number| format!("topic {number}"));
    for (now_ns, topic) in (11..).zip(all()) {
        history.begin(&topic, now_ns);
        publish(&history, &topic, "1", now_ns);
    }
    assert_eq!(missed(3_000), Ok(last.offset + 1));
    // Nobody is subscribed to the others any more: they are forgotten in time, and this one stays.
    let names: Vec<String> = all().collect();
    history.forget(names.iter().map(|name| &**name));
    for now_ns in (3_000..10_000).step_by(100) {
        history.expire(now_ns);
        assert_eq!(missed(now_ns), Ok(last.offset + 1), "at {now_ns}");
    }
    assert_eq!((history.stats().topics, history.stats().bytes), (1, audit(&history)));
    history.begin("quiet", 10_000);
    assert_eq!(missed(10_001), Err(Unavailable::Evicted), "what came before was not received");
    // It is bounded: entries go before publications do.
    let offset = publish(&history, "kept", "1", 10_002);
    for number in 0..20_000 {
        history.begin(&number.to_string(), 10_003);
        assert!(history.stats().bytes <= 2 << 20);
    }
    assert_eq!(history.stats().bytes, audit(&history));
    assert_eq!(kept(&history, "kept", offset, 10_004), ["1"]);
}

#[test]
fn after_an_interruption_nothing_before_it_is_available() {
    let history = history(LIMITS);
    assert_eq!((publish(&history, "a", "1", 10), publish(&history, "a", "2", 11)), (1, 2));
    history.interrupt("a", 12);
    assert_eq!(first(&history, "a", after(2), 13), Err(Unavailable::Evicted), "one may be missing");
    assert_eq!(first(&history, "a", Start::Since(12), 13), Err(Unavailable::Evicted));
    assert_eq!(first(&history, "a", Start::Since(13), 13), Ok(4));
    assert_eq!(publish(&history, "a", "3", 14), 4, "an offset is passed over");
    assert_eq!(first(&history, "a", after(3), 15), Ok(4));
    assert_eq!(
        (kept(&history, "a", 4, 15), history.last("a", 15).unwrap().offset),
        (vec!["3".into()], 4)
    );
    // A topic that is not known has missed something, too.
    assert_eq!(first(&history, "b", Start::Since(10), 15), Ok(1));
    history.interrupt("b", 15);
    assert_eq!(first(&history, "b", Start::Since(15), 16), Err(Unavailable::Evicted));
    let stats = history.stats();
    assert_eq!((stats.kept_total, stats.messages), (3, 1));
    assert_eq!(stats.bytes, audit(&history));
}
