//! Connects: refused, under way and established.

use std::path::Path;

use super::world::{FAILED_FOR_ALL, NOTHING, Side, World, again, errno};
use crate::sys::{Interest, Sys};

pub(super) fn success_is_reported_as_writable(w: &mut impl World) {
    let (_, address) = w.listener(Side::Theirs, false);
    let ours = w.connect(Side::Ours, &address).unwrap();
    w.assert_ready(ours, [NOTHING, NOTHING, "w", "w"]);
    assert_eq!(errno(w.ours().connect_outcome(ours)), Ok(()));
    assert_eq!(errno(w.ours().send(ours, b"before it is accepted")), Ok(21));
}

pub(super) fn refused_connect_fails(w: &mut impl World) {
    let nobody = w.nobody();
    let mut refused = || {
        let ours = w.connect(Side::Ours, &nobody).unwrap();
        w.assert_ready(ours, FAILED_FOR_ALL);
        ours
    };
    let (outcome, recv, send) = (refused(), refused(), refused());
    assert_eq!(errno(w.ours().connect_outcome(outcome)), Err(libc::ECONNREFUSED));
    assert_eq!(errno(w.ours().connect_outcome(outcome)), Ok(()), "the error was taken");
    w.assert_ready(outcome, FAILED_FOR_ALL);
    assert_eq!(w.recv(Side::Ours, outcome), Ok(vec![]));
    assert_eq!(errno(w.ours().send(outcome, b"x")), Err(libc::EPIPE));
    assert_eq!(w.recv(Side::Ours, recv), Err(libc::ECONNREFUSED));
    assert_eq!(w.recv(Side::Ours, recv), Ok(vec![]));
    assert_eq!(errno(w.ours().send(send, b"x")), Err(libc::ECONNREFUSED));
    assert_eq!(errno(w.ours().send(send, b"x")), Err(libc::EPIPE));
}

/// With the listener's queue full, the SYN is sent again after a second.
pub(super) fn connect_under_way_is_not_ready_and_completes(w: &mut impl World) {
    let (listener, address) = w.listener(Side::Theirs, true);
    let mut before = Vec::new();
    let ours = loop {
        let ours = w.connect(Side::Ours, &address).unwrap();
        if w.ready(ours, Interest::WRITE) == NOTHING {
            break ours;
        }
        before.push(ours);
        assert!(before.len() < 10, "the queue does not fill up");
    };
    w.assert_ready(ours, [NOTHING; 4]);
    assert_eq!(errno(w.ours().connect_outcome(ours)), Ok(()), "not known yet");
    assert_eq!(errno(w.ours().send(ours, b"x")), Err(libc::EAGAIN));
    assert_eq!(errno(w.ours().recv(ours, &mut [0])), Err(libc::EAGAIN));
    assert_eq!(w.ours().peer(ours), None);
    for _ in before {
        w.until(|w| again(w.theirs().accept(listener))).unwrap();
    }
    w.until(|w| (w.ready(ours, Interest::WRITE) == "w").then_some(()));
    assert_eq!(errno(w.ours().connect_outcome(ours)), Ok(()));
    let theirs = w.until(|w| again(w.theirs().accept(listener))).unwrap();
    assert_eq!(errno(w.ours().send(ours, b"hello")), Ok(5));
    assert_eq!(w.recv(Side::Theirs, theirs), Ok(b"hello".to_vec()));
}

pub(super) fn refused_unix_connect_fails_at_once(w: &mut impl World) {
    let nobody = w.nobody();
    assert_eq!(errno(w.connect(Side::Ours, &nobody)).err(), Some(libc::ECONNREFUSED));
    let missing = Path::new("/nonexistent/standfast.sock");
    assert_eq!(errno(w.ours().connect_unix(missing)).err(), Some(libc::ENOENT));
}

pub(super) fn full_unix_queue_is_would_block(w: &mut impl World) {
    let (listener, address) = w.listener(Side::Theirs, true);
    let mut connected = 0;
    while w.connect(Side::Ours, &address).is_ok() {
        connected += 1;
        assert!(connected < 10, "the queue does not fill up");
    }
    assert_eq!(errno(w.connect(Side::Ours, &address)).err(), Some(libc::EAGAIN));
    w.theirs().accept(listener).unwrap();
    assert!(w.connect(Side::Ours, &address).is_ok());
}
