//! Tests of the queue.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

fn id(number: u64) -> ConnId {
    ConnId::from_u64(number)
}

fn limits() -> QueueLimits {
    QueueLimits {
        calls: 1000,
        bytes: 100_000,
        wait_ns: 30 * S,
        patience_ns: 6 * S,
        disconnects: 100,
        disconnect_rate: 100,
    }
}

fn queue(concurrency: u32) -> Queue<u64> {
    Queue::new(limits(), Concurrency::new(Some(concurrency)))
}

fn push(queue: &mut Queue<u64>, now: u64, number: u64) {
    queue.push(now, id(number), Method::Connect, number, 10).unwrap();
}

/// The call that is next, which must be one.
fn call(queue: &mut Queue<u64>, now: u64) -> Box<Entry<u64>> {
    match queue.next(now) {
        Next::Call(entry) => entry,
        other => panic!("{other:?}"),
    }
}

fn answered(queue: &mut Queue<u64>, now: u64, entry: &Entry<u64>) -> bool {
    queue.finished(now, entry.id, entry.method, MS, Ended::Answered)
}

#[test]
fn calls_are_next_in_order_up_to_the_concurrency() {
    let mut queue = queue(2);
    (0..4).for_each(|number| push(&mut queue, number, number));
    let (first, second) = (call(&mut queue, 5), call(&mut queue, 5));
    assert_eq!((first.call, second.call), (0, 1));
    assert!(matches!(queue.next(5), Next::Wait(Some(at)) if at == 2 + 30 * S));
    assert!(!queue.is_ready(5));
    assert!(!answered(&mut queue, 6, &second));
    assert!(queue.is_ready(6));
    assert_eq!(call(&mut queue, 6).call, 2);
    assert_eq!((queue.len(), queue.bytes(), queue.running()), (1, 10, 2));
}

#[test]
fn a_call_ends_with_its_connection() {
    let mut queue = queue(1);
    (0..3).for_each(|number| push(&mut queue, 0, number));
    let running = call(&mut queue, 0);
    assert!(!queue.cancel(running.id), "it runs");
    assert!(queue.cancel(id(1)) && !queue.cancel(id(1)));
    assert!(answered(&mut queue, 1, &running), "its connection has ended");
    assert_eq!(call(&mut queue, 1).call, 2);
    assert_eq!((queue.len(), queue.bytes()), (0, 0));
}

#[test]
fn the_newest_is_next_once_the_oldest_clients_give_up() {
    let mut queue = queue(1);
    push(&mut queue, 0, 0);
    push(&mut queue, S, 1);
    push(&mut queue, 5 * S, 2);
    let newest = call(&mut queue, 6 * S);
    assert_eq!(newest.call, 2);
    queue.cancel(id(0));
    answered(&mut queue, 6 * S, &newest);
    push(&mut queue, 6 * S, 3);
    assert_eq!(call(&mut queue, 6 * S).call, 1, "the oldest has waited 5 s");
}

#[test]
fn late_calls_are_returned_as_such_even_while_nothing_may_run() {
    let mut queue = queue(1);
    (0..3).for_each(|number| push(&mut queue, number * S, number));
    let _running = call(&mut queue, 0);
    assert!(matches!(queue.next(30 * S), Next::Wait(Some(at)) if at == 31 * S));
    assert!(matches!(queue.next(31 * S), Next::Late(entry) if entry.call == 1));
    assert!(matches!(queue.next(31 * S), Next::Wait(Some(at)) if at == 32 * S));
}

#[test]
fn it_is_bounded_by_number_and_bytes() {
    let limits = QueueLimits { calls: 2, bytes: 100, disconnects: 2, ..limits() };
    let mut queue = Queue::new(limits, Concurrency::new(None));
    assert_eq!(queue.push(0, id(1), Method::Connect, 1, 101), Err(Full));
    assert_eq!(queue.push(0, id(1), Method::Connect, 1, 50), Ok(()));
    assert_eq!(queue.push(0, id(2), Method::Connect, 2, 51), Err(Full));
    assert_eq!(queue.push(0, id(2), Method::Connect, 2, 10), Ok(()));
    assert_eq!(queue.push(0, id(3), Method::Connect, 3, 10), Err(Full));
    assert!(queue.push_disconnect(0, id(4), 4, 10).is_empty());
    assert!(queue.push_disconnect(0, id(5), 5, 10).is_empty());
    assert_eq!(queue.push_disconnect(0, id(6), 6, 10), [4], "the oldest is dropped");
    assert_eq!((queue.len(), queue.bytes()), (4, 80));
}

#[test]
fn disconnects_take_no_room_of_other_calls() {
    let mut queue = Queue::new(QueueLimits { bytes: 100, ..limits() }, Concurrency::new(None));
    for number in 0..4 {
        assert!(queue.push_disconnect(0, id(number), number, 30).is_empty());
    }
    assert_eq!(queue.disconnect_room(), Room { calls: 96, bytes: 0 });
    assert!(queue.has_room(100), "clients connect while others leave");
    assert_eq!(queue.push(0, id(5), Method::Connect, 5, 100), Ok(()));
    assert_eq!(queue.push_disconnect(0, id(6), 6, 30), [0], "the oldest is dropped");
    assert_eq!(queue.push_disconnect(0, id(7), 7, 1_000), [1], "and no more than for its number");
    assert_eq!(queue.push_disconnect(0, id(8), 8, 1), [2, 3, 6, 7]);
    assert_eq!((queue.len(), queue.bytes()), (2, 101));
}

#[test]
fn disconnects_have_their_own_rate_and_delay_no_other_call() {
    let mut queue = queue(2);
    for number in 0..10 {
        queue.push_disconnect(0, id(100 + number), 100 + number, 10);
    }
    push(&mut queue, 0, 0);
    assert_eq!(call(&mut queue, 0).call, 0, "a connect goes first");
    let disconnect = call(&mut queue, 0);
    assert_eq!(disconnect.call, 100);
    assert!(matches!(queue.next(0), Next::Wait(Some(at)) if at == 10 * MS), "100 per second");
    answered(&mut queue, MS, &disconnect);
    let second = call(&mut queue, 10 * MS);
    assert_eq!(second.call, 101);
    assert!(matches!(queue.next(15 * MS), Next::Wait(Some(at)) if at == 20 * MS));
    queue.drain();
    let ended = [call(&mut queue, 15 * MS), call(&mut queue, 15 * MS), call(&mut queue, 15 * MS)];
    assert_eq!(ended.map(|entry| entry.call), [102, 103, 104], "the server ends: no rate");
    assert!(matches!(queue.next(15 * MS), Next::Wait(None)), "four at a time");
}

/// An application that restarts: nothing is lost, and it is not flooded when it is back.
#[test]
fn calls_that_do_not_reach_the_application_wait_and_one_at_a_time_tries() {
    let mut queue = queue(10);
    (0..5).for_each(|number| push(&mut queue, 0, number));
    let unreached = |queue: &mut Queue<u64>, now, entry: Box<Entry<u64>>| {
        assert!(!queue.finished(now, entry.id, entry.method, 0, Ended::Unreached));
        queue.put_back(entry);
    };
    for _ in 0..3 {
        let entry = call(&mut queue, 0);
        assert_eq!(entry.call, 0, "it keeps its position");
        unreached(&mut queue, 0, entry);
    }
    let mut now = 0;
    for pause in [50, 100, 200, 400, 800, 1000, 1000] {
        let Next::Wait(Some(until)) = queue.next(now) else { panic!("paused") };
        assert_eq!(until, now + pause * MS);
        now = until;
        let entry = call(&mut queue, now);
        assert!(!queue.is_ready(now), "one tries");
        unreached(&mut queue, now, entry);
    }
    now += S;
    let entry = call(&mut queue, now);
    answered(&mut queue, now, &entry);
    for number in 1..5 {
        assert_eq!(call(&mut queue, now).call, number, "all may go again");
    }
}

#[test]
fn memory_is_returned_once_after_a_peak() {
    let limits = QueueLimits { bytes: 10 << 20, ..limits() };
    let mut queue = Queue::new(limits, Concurrency::new(Some(1)));
    for number in 0..4 {
        queue.push(0, id(number), Method::Connect, number, 256 * 1024).unwrap();
    }
    assert!(!queue.has_emptied());
    (0..3).for_each(|number| assert!(queue.cancel(id(number))));
    assert!(queue.has_emptied() && !queue.has_emptied());
}

/// Steps of a random run.
#[derive(Clone, Debug)]
enum Step {
    Push(u64, usize),
    Disconnect(u64),
    Cancel(u64),
    Next,
    Finish(usize, u8),
    Pause(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..40u64, 1..40usize).prop_map(|(id, bytes)| Step::Push(id, bytes)),
        (0..40u64).prop_map(Step::Disconnect),
        (0..40u64).prop_map(Step::Cancel),
        Just(Step::Next),
        Just(Step::Next),
        (0..10usize, 0..4u8).prop_map(|(at, how)| Step::Finish(at, how)),
        (0..20_000u64).prop_map(Step::Pause),
    ]
}

proptest! {
    /// Each accepted call has exactly one end, bounds hold, and the accounts are exact.
    #[test]
    fn every_call_ends_once(steps in proptest::collection::vec(step(), 1..400), fixed in 1..8u32) {
        let limits = QueueLimits { calls: 12, bytes: 300, disconnects: 5, ..limits() };
        let mut queue = Queue::new(limits, Concurrency::new(Some(fixed)));
        let (mut now, mut number) = (0, 0u64);
        let mut open = std::collections::BTreeSet::new();
        let mut busy = std::collections::BTreeSet::new();
        let mut running: Vec<Box<Entry<u64>>> = Vec::new();
        for step in steps {
            match step {
                Step::Push(conn, bytes) if !busy.contains(&conn) => {
                    number += 1;
                    if queue.push(now, id(conn), Method::Command, number, bytes).is_ok() {
                        open.insert(number);
                        busy.insert(conn);
                    }
                }
                Step::Push(..) => {}
                Step::Disconnect(conn) => {
                    number += 1;
                    open.insert(number);
                    for dropped in queue.push_disconnect(now, id(conn), number, 10) {
                        prop_assert!(open.remove(&dropped));
                    }
                }
                Step::Cancel(conn) => {
                    let before = queue.len();
                    if queue.cancel(id(conn)) {
                        prop_assert_eq!(queue.len(), before - 1);
                        busy.remove(&conn);
                        // It is one of those that are open; which is checked by the total below.
                        open.insert(u64::MAX - conn);
                    }
                }
                Step::Next => match queue.next(now) {
                    Next::Call(entry) => {
                        prop_assert!(open.contains(&entry.call));
                        running.push(entry);
                    }
                    Next::Late(entry) => {
                        prop_assert!(open.remove(&entry.call));
                        busy.remove(&entry.id.as_u64());
                    }
                    Next::Wait(until) => {
                        prop_assert!(until.is_none_or(|until| until > now), "{:?} {}", until, now);
                        prop_assert!(!queue.is_ready(now));
                    }
                },
                Step::Finish(at, how) if !running.is_empty() => {
                    let entry = running.swap_remove(at % running.len());
                    let ended = [Ended::Answered, Ended::Overloaded, Ended::Unreached][usize::from(how) % 3];
                    let gone = queue.finished(now, entry.id, entry.method, MS, ended);
                    if ended == Ended::Unreached && !gone {
                        queue.put_back(entry);
                    } else {
                        prop_assert!(open.remove(&entry.call));
                        if entry.method != Method::Disconnect {
                            busy.remove(&entry.id.as_u64());
                        }
                    }
                }
                Step::Finish(..) => {}
                Step::Pause(ms) => now += ms * MS,
            }
            let regular = running.iter().filter(|entry| entry.method != Method::Disconnect).count();
            prop_assert!(regular <= fixed as usize);
            prop_assert!(running.len() - regular <= DISCONNECTS_AT_ONCE);
            prop_assert_eq!(queue.running(), running.len());
            prop_assert_eq!(queue.is_idle(), queue.len() + running.len() == 0);
        }
        // All that is left comes out, and nothing else.
        let cancelled = open.iter().filter(|number| **number > u64::MAX - 100).count();
        let _ = cancelled;
        for _ in 0..10_000 {
            match queue.next(now) {
                Next::Call(entry) => running.push(entry),
                Next::Late(_) => {}
                Next::Wait(Some(until)) if running.is_empty() => now = until,
                Next::Wait(_) => {}
            }
            for entry in running.drain(..) {
                queue.finished(now, entry.id, entry.method, MS, Ended::Answered);
            }
            if queue.is_idle() {
                break;
            }
        }
        prop_assert!(queue.is_idle());
        prop_assert_eq!((queue.bytes(), queue.len()), (0, 0));
    }
}
