//! Tests of gaps: each loss is found by the next publication or by a beacon.

use proptest::prelude::*;

use super::*;

const NODE: NodeId = NodeId(7);

fn at(epoch: u32, number: u64) -> Sequence {
    Sequence { epoch, number }
}

#[test]
fn publications_are_numbered_by_channel_and_beacons_follow_the_last_one() {
    let mut sequences = Sequences::new(10, 100);
    let (a, b): (Channel, Channel) = ("a".into(), "b".into());
    assert_eq!(sequences.next(0, &a), at(1, 1));
    assert_eq!(sequences.next(1, &b), at(2, 1));
    assert_eq!(sequences.next(5, &a), at(1, 2));
    assert_eq!(sequences.take_due(10, 9), [], "a was published to meanwhile");
    let beacon = |channel: &Channel, newest| Beacon { channel: Channel::clone(channel), newest };
    assert_eq!(sequences.take_due(14, 9), [beacon(&b, at(2, 1))]);
    assert_eq!(sequences.take_due(15, 9), [beacon(&a, at(1, 2))]);
    assert_eq!((sequences.due_ns(), sequences.take_due(1_000, 9).len()), (None, 0), "once");
    sequences.next(20, &a);
    sequences.published("a", at(1, 3), Some(0));
    assert_eq!(sequences.take_due(100, 9), [], "nobody is subscribed");
}

#[test]
fn a_forgotten_channel_begins_a_new_epoch() {
    let mut sequences = Sequences::new(10, 4);
    let name = |number: usize| -> Channel { number.to_string().into() };
    for number in 0..100 {
        assert_eq!(sequences.next(0, &name(number)).number, 1);
        assert!(sequences.len() <= 4);
    }
    assert_eq!(sequences.next(0, &name(99)), at(100, 2), "a recent one is remembered");
    assert_eq!(sequences.next(0, &name(0)), at(101, 1));
}

#[test]
fn what_is_remembered_is_bounded_while_all_of_it_is_used() {
    let (mut sequences, mut received) = (Sequences::new(10, 8), Received::new(8));
    for newest in 1..100 {
        // Each new channel is followed by a publication to all before it.
        for number in std::iter::once(newest).chain(0..newest) {
            let at = sequences.next(0, &number.to_string().into());
            received.publication(number, 0, NODE, at);
            assert!(sequences.len() <= 8 && received.len() <= 8);
        }
    }
}

#[test]
fn holes_repetitions_and_losses_at_the_end_are_found() {
    let mut received = Received::new(100);
    let mut publication = |number| received.publication(1, 0, NODE, at(1, number));
    assert_eq!(publication(5), Observed::InOrder, "the first since the subscription");
    assert_eq!(publication(6), Observed::InOrder);
    assert_eq!(publication(9), Observed::Gap(Some(2)));
    assert_eq!(publication(9), Observed::Repeated);
    assert_eq!(publication(7), Observed::Repeated);
    assert_eq!(publication(10), Observed::InOrder);
    assert_eq!(received.beacon(1, 0, NODE, at(1, 10)), Observed::InOrder);
    assert_eq!(received.beacon(1, 0, NODE, at(1, 12)), Observed::Gap(Some(2)));
    assert_eq!(received.beacon(1, 0, NODE, at(1, 12)), Observed::InOrder, "told once");
    assert_eq!(received.publication(1, 0, NODE, at(1, 13)), Observed::InOrder);
    assert_eq!(received.beacon(1, 0, NODE, at(1, 12)), Observed::InOrder, "an old one");
    assert_eq!(received.publication(1, 0, NODE, at(1, 14)), Observed::InOrder);
    // Another sender and another channel have numbers of their own.
    assert_eq!(received.publication(1, 0, NodeId(8), at(1, 99)), Observed::InOrder);
    assert_eq!(received.publication(2, 0, NODE, at(1, 99)), Observed::InOrder);
}

#[test]
fn a_new_epoch_of_a_sender_is_a_gap() {
    let mut received = Received::new(100);
    received.publication(1, 0, NODE, at(1, 3));
    assert_eq!(received.publication(1, 0, NODE, at(2, 1)), Observed::Gap(None));
    assert_eq!(received.beacon(1, 0, NODE, at(2, 1)), Observed::InOrder);
    assert_eq!(received.beacon(1, 0, NODE, at(4, 1)), Observed::Gap(None));
    assert_eq!(received.publication(1, 0, NODE, at(3, 2)), Observed::Repeated, "an old epoch");
    assert_eq!(received.beacon(1, 0, NODE, at(3, 2)), Observed::InOrder, "also old");
    assert_eq!(received.publication(1, 0, NODE, at(4, 2)), Observed::InOrder);
}

#[test]
fn what_may_be_forgotten_is_reported_as_a_gap() {
    let mut received = Received::new(8);
    received.publication(1, 0, NODE, at(1, 1));
    for node in 100..200 {
        received.publication(2, received.generation(), NodeId(node), at(1, 1));
        assert!(received.len() <= 8);
    }
    assert!(received.generation() > 0);
    assert_eq!(received.publication(1, 0, NODE, at(1, 2)), Observed::Gap(None));
    assert_eq!(received.publication(1, 0, NODE, at(1, 3)), Observed::InOrder, "known again");
    let now = received.generation();
    assert_eq!(received.publication(3, now, NODE, at(1, 50)), Observed::InOrder, "a new channel");
    assert_eq!(received.beacon(4, 0, NODE, at(1, 50)), Observed::Gap(None));
}

proptest! {
    /// A sender with little memory, a receiver with little memory, and a network that loses at random: after the
    /// last beacon a receiver that was told of no gap has everything.
    #[test]
    fn no_loss_is_silent(
        steps in proptest::collection::vec((0..6usize, any::<bool>(), 0..8u64), 1..300),
        sender_max in 2..8usize,
        receiver_max in 2..8usize,
    ) {
        let mut sequences = Sequences::new(1, sender_max);
        let mut received = Received::new(receiver_max);
        let names: Vec<Channel> = (0..6).map(|number: i32| number.to_string().into()).collect();
        // For each channel: lost since the last gap that was told.
        let (mut lost, mut first, mut now_ns) = ([false; 6], [true; 6], 0);
        let beacons = |sequences: &mut Sequences, received: &mut Received, lost: &mut [bool; 6],
                       now_ns| {
            for beacon in sequences.take_due(now_ns, 100) {
                let number: usize = beacon.channel.parse().unwrap();
                let seen = received.beacon(number as u64, 0, NODE, beacon.newest);
                lost[number] &= !matches!(seen, Observed::Gap(_));
            }
        };
        for (number, arrives, wait) in steps {
            let sequence = sequences.next(now_ns, &names[number]);
            // The first is received: it is what the receiver compares with.
            if arrives || first[number] {
                first[number] = false;
                match received.publication(number as u64, 0, NODE, sequence) {
                    Observed::Gap(_) => lost[number] = false,
                    Observed::InOrder => prop_assert!(!lost[number], "a loss was silent"),
                    Observed::Repeated => prop_assert!(false, "nothing is sent twice"),
                }
            } else {
                lost[number] = true;
            }
            now_ns += wait;
            beacons(&mut sequences, &mut received, &mut lost, now_ns);
        }
        beacons(&mut sequences, &mut received, &mut lost, now_ns + 10);
        // The sender has forgotten a channel before its beacon was due: the next epoch shows the gap.
        for (number, lost) in lost.iter_mut().enumerate().filter(|(_, lost)| **lost) {
            let sequence = sequences.next(now_ns, &names[number]);
            let seen = received.publication(number as u64, 0, NODE, sequence);
            *lost &= !matches!(seen, Observed::Gap(_));
        }
        prop_assert_eq!(lost, [false; 6]);
    }
}
