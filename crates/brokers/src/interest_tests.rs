//! Tests of what is wanted and confirmed.

use proptest::prelude::*;

use super::*;

fn channel(name: &str) -> Channel {
    name.into()
}

fn names(confirmed: &[Confirmed]) -> Vec<(&str, bool, bool)> {
    confirmed.iter().map(|one| (&*one.channel, one.awaited, one.missed)).collect()
}

#[test]
fn what_somebody_is_about_to_want_is_bounded_while_nothing_is_confirmed() {
    let mut interest = Interest::new(20);
    let all = (0..UNWANTED_MAX).map(|number| channel(&number.to_string()));
    all.for_each(|channel| assert!(interest.touch(0, &channel)));
    assert!(!interest.touch(0, &channel("more")) && !interest.confirmed_or_await("more"));
    assert_eq!(interest.len(), UNWANTED_MAX);
    assert!(interest.want(&channel("more")), "what has a subscriber is wanted all the same");
    interest.take_unwanted(u64::MAX / 2);
    assert!(interest.touch(0, &channel("other")));
}

#[test]
fn a_channel_is_asked_for_once_and_confirmed_once() {
    let mut interest = Interest::new(10);
    assert!(interest.want(&channel("a")) && !interest.want(&channel("a")));
    assert!(!interest.confirmed_or_await("a"));
    let batch = interest.take_wanted();
    assert_eq!((batch.clone(), interest.take_wanted().len()), (vec![channel("a")], 0));
    assert_eq!(interest.open(), 1);
    assert_eq!(names(&interest.confirm(&batch, 3)), [("a", true, false)]);
    assert_eq!(names(&interest.confirm(&batch, 4)), []);
    assert!(interest.confirmed_or_await("a") && interest.open() == 0);
    assert_eq!(interest.get("a"), Some(Subscribed { id: 1, generation: 3 }));
    assert!(!interest.confirmed_or_await("b"), "nobody wants it");
}

#[test]
fn batches_are_bounded() {
    let mut interest = Interest::new(0);
    for number in 0..1_100 {
        assert!(interest.want(&number.to_string().into()));
    }
    let sizes: Vec<usize> = (0..4)
        .map(|_| {
            let batch = interest.take_wanted();
            interest.confirm(&batch, 0);
            batch.len()
        })
        .collect();
    assert_eq!(sizes, [512, 512, 76, 0]);
    (0..1_100).for_each(|number| interest.release(0, &number.to_string()));
    let sizes: Vec<usize> = (0..4).map(|_| interest.take_unwanted(0).len()).collect();
    assert_eq!((sizes, interest.len()), (vec![512, 512, 76, 0], 0));
}

#[test]
fn a_channel_lingers_and_is_kept_if_it_is_wanted_again() {
    let mut interest = Interest::new(10);
    interest.want(&channel("a"));
    let batch = interest.take_wanted();
    interest.confirm(&batch, 0);
    interest.release(5, "a");
    assert_eq!(interest.due_ns(), Some(15));
    assert!(interest.take_unwanted(14).is_empty() && !interest.want(&channel("a")));
    assert!(interest.take_unwanted(15).is_empty() && interest.confirmed_or_await("a"));
    interest.release(20, "a");
    interest.release(22, "a");
    assert!(interest.take_unwanted(30).is_empty(), "since the last time");
    assert_eq!(interest.take_unwanted(32), [channel("a")]);
    assert!(interest.want(&channel("a")), "it has to be asked for again");
    assert_eq!(interest.get("a").unwrap().id, 2);
}

#[test]
fn a_channel_that_is_asked_for_is_not_unsubscribed_before_its_confirmation() {
    let mut interest = Interest::new(0);
    interest.want(&channel("a"));
    let batch = interest.take_wanted();
    interest.release(0, "a");
    assert!(interest.take_unwanted(1).is_empty());
    interest.confirm(&batch, 0);
    assert_eq!(interest.take_unwanted(1 + AGAIN_NS), [channel("a")]);
    interest.want(&channel("b"));
    interest.release(0, "b");
    assert!(interest.take_unwanted(1).is_empty() && interest.take_wanted().is_empty());
    assert_eq!((interest.len(), interest.open()), (0, 0), "it was never asked for");
}

#[test]
fn a_channel_that_is_about_to_be_wanted_is_kept_while_somebody_waits_for_it() {
    let mut interest = Interest::new(10);
    assert!(interest.touch(0, &channel("a")) && !interest.touch(1, &channel("a")));
    assert!(!interest.confirmed_or_await("a"));
    assert_eq!((interest.take_unwanted(50).len(), interest.len()), (0, 1), "it is awaited");
    let batch = interest.take_wanted();
    assert_eq!(names(&interest.confirm(&batch, 0)), [("a", true, false)]);
    assert!(interest.take_unwanted(90).is_empty(), "until they are told");
    interest.told(&batch);
    interest.touch(AGAIN_NS + 45, &channel("a"));
    assert!(interest.take_unwanted(AGAIN_NS + 50).is_empty(), "touched a moment ago");
    assert_eq!(interest.take_unwanted(AGAIN_NS + 55), [channel("a")]);
    interest.want(&channel("b"));
    assert!(!interest.touch(0, &channel("b")));
    assert_eq!((interest.take_unwanted(1_000).len(), interest.len()), (0, 1), "it is wanted");
}

#[test]
fn of_too_many_channels_that_nobody_wants_the_oldest_go_early_but_not_at_once() {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut interest = Interest::new(100 * SECOND_NS);
    let more = 1_000;
    for number in 0..LINGERING_MAX + more {
        let name = channel(&number.to_string());
        interest.touch(0, &name);
        // Flapping takes no memory.
        interest.want(&channel("flaps"));
        interest.release(0, "flaps");
    }
    assert!(interest.lingering.len() <= 2 * (LINGERING_MAX + more) + 2);
    for _ in 0..LINGERING_MAX {
        let batch = interest.take_wanted();
        interest.confirm(&batch, 0);
    }
    assert!(interest.take_unwanted(SECOND_NS - 1).is_empty(), "somebody is about to want them");
    let mut gone = 0;
    loop {
        match interest.take_unwanted(2 * SECOND_NS).len() {
            0 => break,
            many => gone += many,
        }
    }
    assert_eq!((gone, interest.unwanted), (more + 1, LINGERING_MAX));
    assert!(interest.get(&(LINGERING_MAX + more - 1).to_string()).is_some(), "the newest");
    assert_eq!(interest.open(), 0);
}

#[test]
fn after_a_disconnect_everything_is_asked_for_and_only_what_was_confirmed_has_missed_something() {
    let mut interest = Interest::new(1_000);
    interest.want(&channel("a"));
    let batch = interest.take_wanted();
    interest.confirm(&batch, 0);
    interest.want(&channel("b"));
    interest.take_wanted();
    interest.disconnected();
    interest.want(&channel("c"));
    assert!(!interest.confirmed_or_await("a") && interest.open() == 3);
    let batch = interest.take_wanted();
    assert_eq!(batch.len(), 3);
    interest.disconnected();
    let batch = interest.take_wanted();
    let mut confirmed = interest.confirm(&batch, 0);
    confirmed.sort_by(|a, b| a.channel.cmp(&b.channel));
    let expected = [("a", true, true), ("b", false, false), ("c", false, false)];
    assert_eq!(names(&confirmed), expected);
    interest.told(&[channel("a")]);
    interest.disconnected();
    for name in ["a", "b"] {
        interest.release(0, name);
    }
    assert!(interest.take_unwanted(AGAIN_NS).is_empty(), "nothing is subscribed");
    let mut gone = interest.take_gone();
    gone.sort();
    assert_eq!((gone, interest.take_gone().len()), (vec![channel("a"), channel("b")], 0));
}

#[test]
fn after_a_disconnect_what_is_wanted_is_asked_for_first() {
    let mut interest = Interest::new(1_000);
    for name in ["idle", "waits", "comes", "wanted"] {
        interest.want(&channel(name));
    }
    let batch = interest.take_wanted();
    interest.confirm(&batch, 0);
    for name in ["idle", "waits", "comes"] {
        interest.release(0, name);
    }
    interest.disconnected();
    assert_eq!((interest.queued(), interest.open()), (1, 4));
    assert!(!interest.confirmed_or_await("waits") && !interest.confirmed_or_await("waits"));
    assert!(interest.want(&channel("comes")) && !interest.want(&channel("comes")));
    assert!(interest.want(&channel("new")));
    let order = ["wanted", "waits", "comes", "new", "idle"].map(channel);
    assert_eq!(interest.take_wanted(), order);
    assert!(!interest.has_wanted());
    let confirmed = interest.confirm(&order, 1);
    assert!(confirmed.iter().all(|one| one.missed == (&*one.channel != "new")));
    // What has gone before it was asked for has missed something.
    interest.release(0, "comes");
    interest.disconnected();
    interest.take_unwanted(5_000);
    let mut gone = interest.take_gone();
    gone.sort();
    assert_eq!(gone, ["comes", "idle"].map(channel));
    assert_eq!(interest.take_wanted().len(), 3);
}

#[test]
fn a_channel_that_the_broker_refuses_is_asked_for_again_later_and_forgotten_when_nobody_wants_it() {
    let mut interest = Interest::new(1_000);
    for name in ["bad", "good"] {
        interest.want(&channel(name));
        assert!(!interest.confirmed_or_await(name));
    }
    let batch = interest.take_wanted();
    assert_eq!(interest.reject(0, &batch[0], 9), None, "of another entry");
    assert_eq!(interest.reject(0, &batch[0], 1), Some(false));
    assert_eq!(names(&interest.confirm(&batch, 0)), [("good", true, false)]);
    interest.retry_rejected(REJECTED_NS - 1);
    assert!(interest.take_wanted().is_empty() && interest.due_ns() == Some(REJECTED_NS));
    interest.retry_rejected(REJECTED_NS);
    assert_eq!(interest.take_wanted(), [channel("bad")]);
    assert_eq!(names(&interest.confirm(&batch, 0)), [("bad", false, false)]);
    // One that was confirmed has missed something when it is confirmed again.
    assert_eq!(interest.reject(0, &batch[0], 1), Some(true));
    interest.retry_rejected(REJECTED_NS);
    let batch = interest.take_wanted();
    assert_eq!(names(&interest.confirm(&batch, 0)), [("bad", false, true)]);
    assert_eq!(interest.reject(0, &batch[0], 1), Some(true));
    interest.release(0, "bad");
    assert!(interest.take_unwanted(1_000).is_empty(), "it is not subscribed");
    assert_eq!((interest.take_gone(), interest.len()), (vec![channel("bad")], 1));
    interest.retry_rejected(REJECTED_NS);
    assert!(interest.take_wanted().is_empty() && interest.open() == 0);
}

#[test]
fn a_subscription_that_the_broker_has_ended_is_asked_for_again() {
    let mut interest = Interest::new(1_000);
    for name in ["a", "b"] {
        interest.want(&channel(name));
    }
    assert_eq!(interest.subscription_ended("a"), None, "it is not subscribed yet");
    let batch = interest.take_wanted();
    interest.confirm(&batch[..1], 0);
    assert_eq!((interest.subscription_ended("a"), interest.open()), (Some(1), 2));
    assert_eq!(interest.subscription_ended("b"), Some(2), "before its confirmation");
    assert_eq!(names(&interest.confirm(&batch, 0)), []);
    let again = interest.take_wanted();
    assert_eq!(again, [channel("a"), channel("b")]);
    let confirmed = interest.confirm(&again, 0);
    assert_eq!(names(&confirmed), [("a", false, true), ("b", false, false)]);
    assert_eq!((interest.open(), interest.subscription_ended("c")), (0, None));
}

proptest! {
    /// The broker's side of it: a set of subscriptions, lost with the connection.
    #[test]
    fn what_is_wanted_is_subscribed_in_the_end(
        steps in proptest::collection::vec((0..6u8, 0..8u8), 0..200),
    ) {
        let mut interest = Interest::new(3);
        let (mut wanted, mut subscribed) = ([false; 8], std::collections::HashSet::new());
        let (mut now_ns, mut asked): (u64, Vec<Channel>) = (0, Vec::new());
        let work = |interest: &mut Interest, subscribed: &mut std::collections::HashSet<_>,
                    asked: &mut Vec<Channel>, now_ns| {
            subscribed.extend(asked.iter().cloned());
            interest.confirm(&*asked, 0);
            asked.clear();
            for gone in interest.take_unwanted(now_ns) {
                subscribed.remove(&gone);
            }
            *asked = interest.take_wanted();
        };
        for (step, number) in steps {
            let name: Channel = number.to_string().into();
            now_ns += 1;
            match step {
                0 | 1 if !wanted[usize::from(number)] => {
                    wanted[usize::from(number)] = true;
                    interest.want(&name);
                }
                2 if wanted[usize::from(number)] => {
                    wanted[usize::from(number)] = false;
                    interest.release(now_ns, &name);
                }
                3 => {
                    subscribed.clear();
                    asked.clear();
                    interest.disconnected();
                }
                _ => work(&mut interest, &mut subscribed, &mut asked, now_ns),
            }
        }
        now_ns += AGAIN_NS + 10;
        for _ in 0..4 {
            work(&mut interest, &mut subscribed, &mut asked, now_ns);
            now_ns += AGAIN_NS + 10;
        }
        let expected = (0..8).filter(|number| wanted[*number]).map(|number| number.to_string());
        let mut expected: Vec<String> = expected.collect();
        let mut found: Vec<String> = subscribed.iter().map(|name| name.to_string()).collect();
        expected.sort();
        found.sort();
        prop_assert_eq!(&expected, &found);
        prop_assert_eq!((interest.open(), interest.len()), (0, expected.len()));
        prop_assert_eq!(interest.unwanted, 0);
    }
}
