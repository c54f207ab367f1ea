//! Listeners: what waits in their queues, and what becomes of it.

use super::world::{NOTHING, Role, Side, World, again, errno};
use crate::sys::{Event, Sys};

pub(super) fn empty_queue_is_would_block(w: &mut impl World) {
    let (listener, _) = w.listener(Side::Ours, false);
    assert_eq!(errno(w.ours().accept(listener)).err(), Some(libc::EAGAIN));
    assert_eq!(errno(w.ours().accept_with_peer(listener)).err(), Some(libc::EAGAIN));
    w.assert_ready(listener, [NOTHING; 4]);
}

pub(super) fn listener_is_readable_until_its_queue_is_empty(w: &mut impl World) {
    let (listener, address) = w.listener(Side::Ours, false);
    for _ in 0..2 {
        w.connect(Side::Theirs, &address).unwrap();
    }
    w.assert_ready(listener, [NOTHING, "r", NOTHING, "r"]);
    w.ours().watch_listener(listener, 9).unwrap();
    let readable = [Event { key: 9, readable: true, writable: false, failed: false }];
    for _ in 0..2 {
        assert_eq!(w.wait(), readable);
        assert_eq!(w.wait(), readable);
        w.until(|w| again(w.ours().accept(listener))).unwrap();
    }
    assert!(w.wait().is_empty());
    assert_eq!(errno(w.ours().accept(listener)).err(), Some(libc::EAGAIN));
    // One that comes while it is watched, and one that is queued when it is watched again.
    w.connect(Side::Theirs, &address).unwrap();
    assert_eq!(w.wait(), readable);
    w.ours().unwatch(listener).unwrap();
    assert!(w.wait().is_empty());
    w.ours().watch_listener(listener, 9).unwrap();
    assert_eq!(w.wait(), readable);
}

pub(super) fn connection_is_accepted_with_the_bytes_sent_before(w: &mut impl World) {
    let (listener, address) = w.listener(Side::Ours, false);
    let theirs = w.connect(Side::Theirs, &address).unwrap();
    w.until(|w| again(w.theirs().send(theirs, b"early"))).unwrap();
    let accepted = w.until(|w| again(w.ours().accept(listener))).unwrap();
    assert_eq!(w.recv(Side::Ours, accepted), Ok(b"early".to_vec()));
    assert_eq!(errno(w.ours().recv(accepted, &mut [0])), Err(libc::EAGAIN));
}

pub(super) fn connection_that_its_peer_has_left_is_accepted(w: &mut impl World) {
    let (listener, address) = w.listener(Side::Ours, false);
    let theirs = w.connect(Side::Theirs, &address).unwrap();
    w.settle();
    w.theirs().reset_on_close(theirs);
    w.theirs().close(theirs);
    w.settle();
    let accepted = w.ours().accept(listener).unwrap();
    let expected = if w.is_unix() { Ok(vec![]) } else { Err(libc::ECONNRESET) };
    assert_eq!(w.recv(Side::Ours, accepted), expected);
    assert_eq!(w.recv(Side::Ours, accepted), Ok(vec![]));
}

pub(super) fn peer_address_is_known_even_of_a_reset_connection(w: &mut impl World) {
    let (listener, address) = w.listener(Side::Ours, false);
    let theirs = w.connect(Side::Theirs, &address).unwrap();
    w.settle();
    let from = w.theirs().local(theirs).unwrap();
    w.theirs().reset_on_close(theirs);
    w.theirs().close(theirs);
    w.settle();
    let (accepted, peer) = w.ours().accept_with_peer(listener).unwrap();
    assert_eq!(peer, Some(from.ip()));
    assert!(w.ours().is_broken(accepted));
    assert_eq!(w.ours().peer(accepted), None);
}

pub(super) fn stream_accepts_nothing(w: &mut impl World) {
    let pair = w.pair();
    assert_eq!(errno(w.ours().accept(pair.ours)).err(), Some(libc::EINVAL));
}

pub(super) fn closing_a_listener_resets_what_waits_and_refuses_what_follows(w: &mut impl World) {
    let (_, address) = w.listener(Side::Theirs, false);
    let ours = w.connect(Side::Ours, &address).unwrap();
    w.settle();
    w.close_listener(Side::Theirs, false);
    w.settle();
    assert_eq!(w.recv(Side::Ours, ours), Err(libc::ECONNRESET));
    assert_eq!(w.recv(Side::Ours, ours), Ok(vec![]));
    assert_refused(w, &address);
}

pub(super) fn stopped_listener_fails_and_resets_what_waits(w: &mut impl World) {
    let stops = if w.role() == Role::Accepts { Side::Ours } else { Side::Theirs };
    let connects = if stops == Side::Ours { Side::Theirs } else { Side::Ours };
    let (listener, address) = w.listener(stops, false);
    let waiting = w.connect(connects, &address).unwrap();
    w.settle();
    w.sys(stops).stop_listening(listener);
    w.settle();
    assert_eq!(w.recv(connects, waiting), Err(libc::ECONNRESET));
    assert_eq!(errno(w.sys(stops).accept(listener)).err(), Some(libc::EINVAL));
    if stops == Side::Ours {
        w.assert_ready(listener, super::world::FAILED_FOR_ALL);
    }
    assert_refused(w, &address);
}

fn assert_refused<W: World>(w: &mut W, address: &super::world::Address) {
    let refused = match w.connect(Side::Ours, address) {
        Ok(connect) => {
            w.settle();
            w.ours().connect_outcome(connect)
        }
        Err(error) => Err(error),
    };
    assert_eq!(errno(refused), Err(libc::ECONNREFUSED));
}
