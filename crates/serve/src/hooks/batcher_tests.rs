//! Which events are sent together, when and how often, and that each ends once: delivered or dropped.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn limits() -> BatchLimits {
    BatchLimits {
        events: 3,
        bytes: 1000,
        window_ns: 100 * MS,
        queue_bytes: 100_000,
        age_ns: 60_000 * MS,
    }
}

fn push(batcher: &mut Batcher, now_ns: u64, text: &str) {
    batcher.push(now_ns, text.into());
}

/// The events of a batch that is to be sent, with its number and what was dropped before it.
fn sent(next: Next) -> (u64, Vec<String>, u64) {
    match next {
        Next::Send(batch) => {
            let events = batch.events.iter().map(|text| (**text).to_owned()).collect();
            (batch.number, events, batch.dropped)
        }
        Next::Wait(until) => panic!("waits until {until:?}"),
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn events_are_sent_after_the_window_or_when_a_batch_is_full() {
    let mut batcher = Batcher::new(limits());
    assert_eq!(batcher.next(0), Next::Wait(None));
    push(&mut batcher, 10, "a");
    push(&mut batcher, 20, "b");
    assert_eq!(batcher.next(20), Next::Wait(Some(10 + 100 * MS)));
    assert_eq!(sent(batcher.next(10 + 100 * MS)), (1, strings(&["a", "b"]), 0));
    for text in ["c", "d", "e", "f"] {
        push(&mut batcher, 200 * MS, text);
    }
    assert_eq!(batcher.next(900 * MS), Next::Wait(None), "one batch at a time");
    batcher.delivered();
    assert_eq!(sent(batcher.next(200 * MS)), (2, strings(&["c", "d", "e"]), 0), "by number");
    batcher.delivered();
    push(&mut batcher, 201 * MS, &"x".repeat(900));
    push(&mut batcher, 201 * MS, &"y".repeat(2000));
    assert_eq!(sent(batcher.next(201 * MS)).1, ["f".to_owned(), "x".repeat(900)], "by bytes");
    batcher.delivered();
    assert_eq!(sent(batcher.next(201 * MS)).1, ["y".repeat(2000)], "one that is longer alone");
    batcher.delivered();
    assert_eq!((batcher.len(), batcher.bytes(), batcher.next(900 * MS)), (0, 0, Next::Wait(None)));
    let stats = BatcherStats { delivered: 8, batches: 4, ..BatcherStats::default() };
    assert_eq!(batcher.stats(), stats);
}

#[test]
fn a_batch_is_sent_again_unchanged_after_a_pause_that_doubles() {
    let mut batcher = Batcher::new(BatchLimits { age_ns: u64::MAX, ..limits() });
    push(&mut batcher, 0, "a");
    let mut now_ns = 100 * MS;
    let first = batcher.next(now_ns);
    push(&mut batcher, now_ns, "b");
    let mut pauses = Vec::new();
    for _ in 0..9 {
        batcher.failed(now_ns, u64::MAX);
        let Next::Wait(Some(until_ns)) = batcher.next(now_ns) else { panic!("no pause") };
        pauses.push(until_ns - now_ns);
        now_ns = until_ns;
        assert_eq!(batcher.next(now_ns), first);
    }
    let (least, most) = (PAUSE_NS.0 / 2, PAUSE_NS.1);
    assert!(pauses.iter().all(|pause| (least..=most).contains(pause)), "{pauses:?}");
    assert!(pauses.windows(2).all(|two| two[0] <= two[1] || two[1] > most / 2), "{pauses:?}");
    assert!(pauses[8] >= most / 2);
    batcher.delivered();
    assert_eq!(sent(batcher.next(now_ns)), (2, strings(&["b"]), 0));
    assert_eq!(batcher.stats().failed, 9);
}

#[test]
fn the_oldest_events_are_dropped_beyond_the_bytes_and_the_next_batch_says_so() {
    let mut batcher = Batcher::new(BatchLimits { queue_bytes: 5 * 65, ..limits() });
    push(&mut batcher, 0, "a");
    let held = batcher.next(100 * MS);
    for number in 0..10 {
        push(&mut batcher, 200 * MS, &number.to_string());
        assert!(batcher.bytes() <= 5 * 65);
    }
    assert_eq!((batcher.len(), batcher.stats().dropped_bytes), (5, 6), "the batch stays");
    batcher.failed(200 * MS, 0);
    assert_eq!(batcher.next(1000 * MS), held);
    batcher.delivered();
    assert_eq!(sent(batcher.next(1000 * MS)), (2, strings(&["6", "7", "8"]), 6));
    batcher.delivered();
    assert_eq!(sent(batcher.next(1000 * MS)), (3, strings(&["9"]), 0), "told once");
}

#[test]
fn events_that_are_too_old_are_dropped_and_told_unless_they_are_being_sent() {
    let mut batcher = Batcher::new(limits());
    push(&mut batcher, 0, "a");
    let age_ns = limits().age_ns;
    let Next::Send(_) = batcher.next(100 * MS) else { panic!("it is due") };
    push(&mut batcher, 100 * MS, "b");
    assert_eq!(batcher.next(2 * age_ns), Next::Wait(None), "a is under way");
    assert_eq!((batcher.len(), batcher.stats().dropped_age), (1, 1), "b is not");
    batcher.failed(2 * age_ns, 0);
    assert_eq!(batcher.next(2 * age_ns), Next::Wait(None));
    assert_eq!((batcher.len(), batcher.bytes(), batcher.stats().dropped_age), (0, 0, 2));
    push(&mut batcher, 3 * age_ns, "c");
    assert_eq!(sent(batcher.next(3 * age_ns + 100 * MS)), (2, strings(&["c"]), 2));
}

/// A batch carries the number of events dropped before it. If the batch is dropped too, the next one carries that number.
#[test]
fn drops_told_by_a_batch_that_is_dropped_are_told_again() {
    let mut batcher = Batcher::new(limits());
    let age_ns = limits().age_ns;
    push(&mut batcher, 0, "a");
    assert_eq!(batcher.next(age_ns), Next::Wait(None));
    push(&mut batcher, age_ns, "b");
    assert_eq!(sent(batcher.next(age_ns + 100 * MS)).2, 1);
    batcher.failed(age_ns + 100 * MS, 0);
    push(&mut batcher, 3 * age_ns, "c");
    assert_eq!(sent(batcher.next(3 * age_ns + 100 * MS)), (2, strings(&["c"]), 2));
}

#[test]
fn a_drain_sends_at_once_and_again_soon() {
    let mut batcher = Batcher::new(limits());
    push(&mut batcher, 0, "a");
    batcher.drain(1);
    assert_eq!(sent(batcher.next(1)), (1, strings(&["a"]), 0));
    batcher.failed(1, u64::MAX);
    let Next::Wait(Some(until_ns)) = batcher.next(1) else { panic!("no pause") };
    assert!(until_ns <= 1 + DRAIN_PAUSE_NS.1);
    push(&mut batcher, until_ns, "b");
    assert_eq!(sent(batcher.next(until_ns)).1, ["a"]);
    batcher.delivered();
    assert_eq!(sent(batcher.next(until_ns)).1, ["b"]);
}

proptest! {
    /// Whatever a receiver does: events arrive in order, each at most once, memory is bounded, and each event
    /// is delivered or counted and told as dropped.
    #[test]
    fn every_event_ends_once(steps in prop::collection::vec((0u8..6, 0u64..40_000), 1..400)) {
        let limits = BatchLimits { queue_bytes: 2000, ..limits() };
        let mut batcher = Batcher::new(limits);
        let (mut now_ns, mut pushed) = (0, 0u64);
        let mut under_way: Option<Arc<Batch>> = None;
        let (mut heard, mut told) = (Vec::<u64>::new(), 0);
        for (step, random) in steps {
            now_ns += random * MS / 10;
            match step {
                0..=2 => {
                    let text = format!("{pushed}");
                    batcher.push(now_ns, text.into());
                    pushed += 1;
                }
                3 => if let Next::Send(batch) = batcher.next(now_ns) {
                    prop_assert!(under_way.is_none());
                    under_way = Some(batch);
                },
                _ => match under_way.take() {
                    Some(batch) if step == 4 => {
                        heard.extend(batch.events.iter().map(|text| text.parse::<u64>().unwrap()));
                        told += batch.dropped;
                        batcher.delivered();
                    }
                    Some(_) => batcher.failed(now_ns, random),
                    None => {}
                },
            }
            prop_assert!(batcher.bytes() <= limits.queue_bytes);
        }
        let untold = batcher.untold + batcher.current.as_ref().map_or(0, |c| c.batch.dropped);
        let stats = batcher.stats();
        prop_assert!(heard.windows(2).all(|two| two[0] < two[1]), "{heard:?}");
        prop_assert_eq!(stats.delivered, heard.len() as u64);
        prop_assert_eq!(told + untold, stats.dropped());
        prop_assert_eq!(stats.delivered + stats.dropped() + batcher.len() as u64, pushed);
    }
}
