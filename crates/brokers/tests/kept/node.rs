//! What a node makes of what a broker keeps: nothing is missing and nothing is told twice, or the gap is told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use brokers::{GapCause, Outcome, Settings, Ticket};

use crate::model::Model;
use crate::servers::{NatsServer, RedisServer};
use crate::support::{Event, Node, eventually, publication, settings};

const HOUR: Duration = Duration::from_secs(3600);

fn hour() -> Settings {
    settings(1_000, HOUR)
}

fn numbers(range: std::ops::RangeInclusive<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Waits until a publisher is told that it is kept.
fn kept(node: &Node, topic: &str, data: &str) -> u64 {
    let ticket = Ticket::new();
    node.broker.publish(topic, publication(data, false), Some(ticket.clone())).unwrap();
    match ticket.wait(Duration::from_secs(60)) {
        Outcome::Published { position: Some(position), .. } => position.offset,
        other => panic!("{other:?}"),
    }
}

fn a_topic_is_loaded_before_it_is_confirmed<T>(transport: &T)
where
    T: brokers::Transport + Clone + Send + 'static,
{
    let [a, b] = [(); 2].map(|()| Node::start(transport, hour()));
    for number in numbers(1..=3) {
        kept(&a, "room", &number);
    }
    b.follow("room");
    let events = b.heard.of("room");
    let Event::Loaded { epoch, floor: 0, last: 3, data } = &events[0] else { panic!("{events:?}") };
    assert_eq!(*data, ["1", "2", "3"]);
    assert_eq!(events[1], Event::Confirmed);
    assert_eq!(kept(&a, "room", "4"), 4);
    b.until_heard("room", "4");
    let fourth = Event::Kept { epoch: *epoch, offset: 4, data: "4".to_owned() };
    assert_eq!(b.heard.of("room")[2..], [fourth]);
    a.broker.publish("room", publication("5", true), None).unwrap();
    b.until_heard("room", "5");
    assert_eq!(b.heard.of("room").last(), Some(&Event::Transient("5".to_owned())));
    // Nobody follows it for a while: it is loaded again.
    b.broker.release("room");
    eventually("released", || b.heard.of("room").last() == Some(&Event::Released));
    kept(&a, "room", "6");
    b.follow("room");
    let events = b.heard.of("room");
    let loaded = &events[events.len() - 2];
    assert!(
        matches!(loaded, Event::Loaded { last: 5, data, .. } if *data == ["1", "2", "3", "4", "6"]),
        "{events:?}"
    );
    assert_eq!(b.heard.gaps("room"), 0);
}

#[test]
fn a_topic_of_the_model_is_loaded_before_it_is_confirmed() {
    a_topic_is_loaded_before_it_is_confirmed(&Model::default());
}

#[test]
fn a_topic_of_redis_is_loaded_before_it_is_confirmed() {
    let Some(server) = RedisServer::start(&[]) else { return };
    a_topic_is_loaded_before_it_is_confirmed(&server.transport());
}

#[test]
fn a_topic_of_nats_is_loaded_before_it_is_confirmed() {
    let Some(server) = NatsServer::start() else { return };
    a_topic_is_loaded_before_it_is_confirmed(&server.transport());
}

#[test]
fn what_was_not_passed_on_is_fetched_before_what_follows() {
    let model = Model::default();
    let node = Node::start(&model, hour());
    node.follow("room");
    node.follow("last");
    node.publish("room", "1");
    node.until_heard("room", "1");
    model.lose_next(3);
    for number in numbers(2..=4) {
        kept(&node, "room", &number);
    }
    node.publish("room", "5");
    node.until_heard("room", "5");
    assert_eq!(node.heard.data("room"), numbers(1..=5));
    // The last one is noticed by a beacon.
    node.publish("last", "1");
    node.until_heard("last", "1");
    model.lose_next(1);
    kept(&node, "last", "2");
    node.until_heard("last", "2");
    assert_eq!(node.heard.gaps("room") + node.heard.gaps("last"), 0);
    assert_eq!(count(&node.broker.counters().healed), 2);
}

#[test]
fn of_what_is_not_kept_a_loss_is_told_and_what_is_kept_is_not_lost_with_it() {
    let model = Model::default();
    let node = Node::start(&model, hour());
    node.follow("room");
    node.publish("room", "1");
    node.until_heard("room", "1");
    // One that is kept and one that is not, then one that is not.
    model.lose_next(2);
    kept(&node, "room", "2");
    node.broker.publish("room", publication("3", true), None).unwrap();
    node.broker.publish("room", publication("4", true), None).unwrap();
    node.publish("room", "5");
    node.until_heard("room", "5");
    assert_eq!(node.heard.data("room"), ["1", "2", "4", "5"]);
    assert_eq!(node.heard.gaps("room"), 1, "{:?}", node.heard.of("room"));
}

#[test]
fn what_was_published_while_a_node_was_away_is_fetched_when_it_is_back() {
    let model = Model::default();
    let [a, b] = [(); 2].map(|()| Node::start(&model, hour()));
    let topics: Vec<String> = (0..1_500).map(|number| format!("t{number}")).collect();
    topics.iter().for_each(|topic| b.broker.want(topic));
    eventually("confirmed", || topics.iter().all(|topic| b.heard.confirmed(topic) == 1));
    for topic in &topics {
        a.publish(topic, "1");
    }
    let heard =
        |last: &str| topics.iter().all(|topic| b.heard.data(topic).ends_with(&[last.into()]));
    eventually("heard", || heard("1"));
    model.away(true);
    // They wait in the spool, and are sent by whoever is connected first.
    for topic in &topics {
        a.publish(topic, "2");
    }
    model.away(false);
    eventually("heard after the reconnect", || heard("2"));
    for topic in &topics {
        assert_eq!(b.heard.data(topic), ["1", "2"]);
        assert_eq!(b.heard.gaps(topic), 0);
    }
}

#[test]
fn what_is_not_kept_any_more_is_a_gap_and_the_rest_is_loaded() {
    let model = Model::default();
    let few = || settings(2, HOUR);
    let [a, b] = [(); 2].map(|()| Node::start(&model, few()));
    b.follow("room");
    a.publish("room", "1");
    b.until_heard("room", "1");
    b.heard.busy.store(true, Ordering::Relaxed);
    a.publish("room", "2");
    eventually("it is offered", || count(&b.heard.refused) > 0);
    for number in numbers(3..=6) {
        kept(&a, "room", &number);
    }
    b.heard.busy.store(false, Ordering::Relaxed);
    b.until_heard("room", "6");
    assert_eq!(b.heard.data("room"), numbers(1..=6), "what waits here needs no broker");
    model.lose_next(3);
    for number in numbers(7..=9) {
        kept(&a, "room", &number);
    }
    b.until_heard("room", "9");
    assert_eq!(b.heard.data("room"), ["1", "2", "3", "4", "5", "6", "8", "9"]);
    let events = b.heard.of("room");
    let gap = events.iter().position(|event| *event == Event::Gap(GapCause::Missing)).unwrap();
    assert!(matches!(events[gap - 1], Event::Loaded { floor: 7, last: 7, .. }), "{events:?}");
    assert_eq!(b.heard.gaps("room"), 1);
}

#[test]
fn a_topic_that_is_overloaded_is_behind_and_loses_nothing() {
    let model = Model::default();
    let node = Node::start(&model, hour());
    for topic in ["room", "other"] {
        node.follow(topic);
    }
    node.publish("room", "1");
    node.until_heard("room", "1");
    node.heard.overloaded.store(true, Ordering::Relaxed);
    for number in numbers(2..=50) {
        kept(&node, "room", &number);
    }
    eventually("it is offered", || count(&node.heard.refused) > 0);
    node.heard.overloaded.store(false, Ordering::Relaxed);
    node.until_heard("room", "50");
    assert_eq!(node.heard.data("room"), numbers(1..=50));
    assert_eq!(node.heard.gaps("room"), 0);
}

/// The beacon of a sender tells its newest number: it is no gap while what it stands for is still to be fetched.
#[test]
fn a_beacon_tells_no_gap_while_a_topic_is_behind() {
    let model = Model::default();
    let [node, other] = [(); 2].map(|()| Node::start(&model, hour()));
    node.follow("room");
    kept(&other, "room", "1");
    node.until_heard("room", "1");
    node.heard.overloaded.store(true, Ordering::Relaxed);
    let beacons = count(&other.broker.counters().beacons);
    for number in numbers(2..=5) {
        kept(&other, "room", &number);
    }
    eventually("it is offered", || count(&node.heard.refused) > 0);
    eventually("a beacon is sent", || count(&other.broker.counters().beacons) > beacons);
    node.heard.overloaded.store(false, Ordering::Relaxed);
    kept(&other, "room", "6");
    node.until_heard("room", "6");
    assert_eq!(node.heard.data("room"), numbers(1..=6));
    assert_eq!(node.heard.gaps("room"), 0);
}

/// The connection ends while a publication is offered: its number was noted, and the next connection fetches it.
#[test]
fn what_is_offered_when_the_connection_ends_is_not_lost() {
    let model = Model::default();
    let [node, other] = [(); 2].map(|()| Node::start(&model, hour()));
    node.follow("room");
    node.publish("room", "1");
    node.until_heard("room", "1");
    for number in numbers(2..=6) {
        other.until_up();
        node.heard.busy.store(true, Ordering::Relaxed);
        let refused = count(&node.heard.refused);
        kept(&other, "room", &number);
        eventually("it is offered", || count(&node.heard.refused) > refused);
        let connected = count(&node.broker.counters().connected);
        model.away(true);
        model.away(false);
        eventually("it connects again", || count(&node.broker.counters().connected) > connected);
        node.heard.busy.store(false, Ordering::Relaxed);
        node.until_heard("room", &number);
    }
    assert_eq!(node.heard.data("room"), numbers(1..=6));
    assert_eq!(node.heard.gaps("room"), 0);
}

#[test]
fn what_the_inbox_has_no_room_for_is_fetched() {
    let model = Model::default();
    let node = Node::start(&model, hour());
    node.follow("room");
    node.follow("small");
    node.publish("small", "1");
    node.until_heard("small", "1");
    node.heard.busy.store(true, Ordering::Relaxed);
    let long = |number: usize| format!("{number}{}", " ".repeat(1_000_000));
    for number in 1..=45 {
        kept(&node, "room", &long(number));
    }
    kept(&node, "small", "2");
    assert!(count(&node.broker.counters().dropped) > 0);
    node.heard.busy.store(false, Ordering::Relaxed);
    node.until_heard("room", &long(45));
    assert!(node.heard.data("room") == (1..=45).map(long).collect::<Vec<_>>());
    node.until_heard("small", "2");
    assert_eq!(node.heard.data("small"), ["1", "2"]);
    assert_eq!(node.heard.gaps("room") + node.heard.gaps("small"), 0);
}

#[test]
fn an_epoch_that_begins_while_a_node_is_connected_is_loaded_without_a_gap() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let node = Node::start(&server.transport(), hour());
    node.follow("room");
    kept(&node, "room", "1");
    node.until_heard("room", "1");
    assert_eq!(server.ask("FLUSHALL"), "+OK");
    kept(&node, "room", "2");
    kept(&node, "room", "3");
    node.until_heard("room", "3");
    assert_eq!(node.heard.data("room"), numbers(1..=3));
    assert_eq!(node.heard.gaps("room"), 0);
}

/// All connections are cut again and again while a node publishes.
#[test]
fn cut_connections_lose_nothing_and_repeat_nothing() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let [a, b] = [(); 2].map(|()| Node::start(&server.transport(), hour()));
    for node in [&a, &b] {
        node.follow("room");
    }
    let all = numbers(1..=600);
    for (at, number) in all.iter().enumerate() {
        a.publish("room", &**number);
        if at % 100 == 50 {
            server.cut();
        }
        if at % 20 == 0 {
            a.until_heard("room", number);
        }
    }
    for node in [&a, &b] {
        node.until_heard("room", "600");
        assert_eq!(node.heard.data("room"), all);
        assert_eq!(node.heard.gaps("room"), 0);
    }
    assert!(count(&b.broker.counters().connected) > 1);
}

fn a_restart_is_a_gap_or_nothing_is_missing(flags: &[&str]) {
    let Some(mut server) = RedisServer::start(flags) else { return };
    let [a, b] = [(); 2].map(|()| Node::start(&server.transport(), hour()));
    for node in [&a, &b] {
        node.follow("room");
    }
    let mut next = 1;
    for round in 1..=3 {
        for _ in 0..20 {
            a.publish("room", next.to_string());
            next += 1;
        }
        let last = (next - 1).to_string();
        // The last ones may be on their way.
        if round % 2 == 1 {
            // Without persistence it is lost for a node that has not read it yet.
            [&a, &b].iter().for_each(|node| node.until_heard("room", &last));
        }
        server.restart();
        for node in [&a, &b] {
            node.until_up();
            node.until_heard("room", &last);
        }
        eventually("the gap is reported", || {
            [&a, &b].iter().all(|node| node.heard.gaps("room") >= round)
        });
    }
    kept(&a, "room", "end");
    for node in [&a, &b] {
        node.until_heard("room", "end");
        let data = node.heard.data("room");
        let mut once = data.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), data.len(), "nothing is delivered twice: {data:?}");
    }
}

#[test]
fn a_restart_without_persistence_is_a_gap() {
    a_restart_is_a_gap_or_nothing_is_missing(&[]);
}

#[test]
fn a_restart_with_persistence_is_a_gap() {
    a_restart_is_a_gap_or_nothing_is_missing(&["--appendonly", "yes"]);
}

/// Somebody publishes all the time, also between the subscription and what is fetched after it.
fn a_busy_topic_is_loaded_once_and_continued<T>(transport: &T)
where
    T: brokers::Transport + Clone + Send + 'static,
{
    let [a, b] = [(); 2].map(|()| Node::start(transport, hour()));
    let is_over = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..100_000 {
                if count(&is_over) > 0 {
                    return;
                }
                kept(&a, "room", &number.to_string());
            }
        });
        for round in 1..=20 {
            b.follow("room");
            let before = b.heard.data("room").len();
            eventually("it goes on", || b.heard.data("room").len() > before + 5);
            b.broker.release("room");
            let released = |event: &&Event| **event == Event::Released;
            eventually("released", || b.heard.of("room").iter().filter(released).count() == round);
        }
        is_over.store(1, Ordering::Relaxed);
    });
    for part in b.heard.of("room").split(|event| *event == Event::Released) {
        let mut at = None;
        for event in part {
            match event {
                Event::Loaded { epoch, last, .. } => assert_eq!(at.replace((*epoch, *last)), None),
                Event::Kept { epoch, offset, .. } => {
                    let (in_epoch, last) = at.unwrap();
                    assert_eq!((*epoch, *offset), (in_epoch, last + 1));
                    at = Some((in_epoch, last + 1));
                }
                Event::Confirmed => assert!(at.is_some(), "it is loaded first"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_busy_topic_of_the_model_is_loaded_once_and_continued() {
    a_busy_topic_is_loaded_once_and_continued(&Model::default());
}

#[test]
fn a_busy_topic_of_redis_is_loaded_once_and_continued() {
    let Some(server) = RedisServer::start(&[]) else { return };
    a_busy_topic_is_loaded_once_and_continued(&server.transport());
}

#[test]
fn a_busy_topic_of_nats_is_loaded_once_and_continued() {
    let Some(server) = NatsServer::start() else { return };
    a_busy_topic_is_loaded_once_and_continued(&server.transport());
}

/// What NATS has kept is there after a restart, also for topics that nobody publishes to any more.
#[test]
fn restarts_of_nats_lose_nothing_and_repeat_nothing() {
    let Some(mut server) = NatsServer::start() else { return };
    let [a, b] = [(); 2].map(|()| Node::start(&server.transport(), hour()));
    for node in [&a, &b] {
        node.follow("room");
        node.follow("quiet");
    }
    a.publish("quiet", "1");
    let all = numbers(1..=300);
    for (at, number) in all.iter().enumerate() {
        a.publish("room", &**number);
        if at % 100 == 50 {
            server.restart();
        }
        if at % 20 == 0 {
            a.until_heard("room", number);
        }
    }
    for node in [&a, &b] {
        node.until_heard("room", "300");
        assert_eq!(node.heard.data("room"), all);
        assert_eq!((node.heard.data("quiet"), node.heard.gaps("quiet")), (numbers(1..=1), 0));
        assert_eq!(node.heard.gaps("room"), 0);
        assert!(count(&node.broker.counters().connected) > 1);
    }
}

#[test]
fn a_restart_of_nats_without_its_files_is_a_gap() {
    let Some(mut server) = NatsServer::start() else { return };
    let [a, b] = [(); 2].map(|()| Node::start(&server.transport(), hour()));
    for node in [&a, &b] {
        node.follow("room");
    }
    for number in numbers(1..=20) {
        kept(&a, "room", &number);
    }
    b.until_heard("room", "20");
    server.empty();
    for node in [&a, &b] {
        node.until_up();
        eventually("the gap is reported", || node.heard.gaps("room") == 1);
    }
    kept(&a, "room", "end");
    for node in [&a, &b] {
        node.until_heard("room", "end");
        assert_eq!(node.heard.data("room"), [numbers(1..=20), vec!["end".to_owned()]].concat());
    }
}
