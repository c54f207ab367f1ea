//! What is reported of a stream in each state, for each [`Interest`], and how often.

use super::world::{FAILED_FOR_ALL, NOTHING, Side, World, interests};
use crate::sys::{Event, Interest, Sys};

/// The reports for the four interests while there is something to read, and while there is not.
const READABLE: [&str; 4] = [NOTHING, "r", "w", "rw"];
const WRITABLE: [&str; 4] = [NOTHING, NOTHING, "w", "w"];

pub(super) fn idle_stream_is_writable(w: &mut impl World) {
    let pair = w.pair();
    w.assert_ready(pair.ours, WRITABLE);
}

pub(super) fn arrived_bytes_make_it_readable(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"hello");
    w.assert_ready(pair.ours, READABLE);
}

pub(super) fn half_close_by_the_peer_makes_it_readable(w: &mut impl World) {
    let pair = w.pair();
    w.theirs().shutdown_write(pair.theirs);
    w.assert_ready(pair.ours, READABLE);
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
    w.assert_ready(pair.ours, READABLE);
}

pub(super) fn own_half_close_leaves_it_writable(w: &mut impl World) {
    let pair = w.pair();
    w.ours().shutdown_write(pair.ours);
    w.assert_ready(pair.ours, WRITABLE);
}

pub(super) fn both_half_closes_fail_it_whatever_is_watched(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    w.ours().shutdown_write(pair.ours);
    w.theirs().shutdown_write(pair.theirs);
    w.assert_ready(pair.ours, FAILED_FOR_ALL);
    assert!(w.ours().connect_outcome(pair.ours).is_ok(), "a hang-up is no error");
    assert_eq!(w.recv_ours(pair), Ok(b"before".to_vec()));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
    w.assert_ready(pair.ours, FAILED_FOR_ALL);
}

/// TCP cannot tell a close from a half-close. A UNIX stream has no other side any more.
pub(super) fn close_by_the_peer(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    w.theirs().close(pair.theirs);
    let expected = if w.is_unix() { FAILED_FOR_ALL } else { READABLE };
    w.assert_ready(pair.ours, expected);
    assert!(w.ours().connect_outcome(pair.ours).is_ok(), "a close in order is no error");
    assert_eq!(w.recv_ours(pair), Ok(b"before".to_vec()));
    w.assert_ready(pair.ours, expected);
}

pub(super) fn close_by_the_peer_with_bytes_unread_by_it_fails_it(w: &mut impl World) {
    let pair = w.pair();
    assert_eq!(w.send_ours(pair, b"unread"), Ok(6));
    w.settle();
    w.theirs().close(pair.theirs);
    w.assert_ready(pair.ours, FAILED_FOR_ALL);
}

pub(super) fn reset_by_the_peer_fails_it_even_after_the_error_was_taken(w: &mut impl World) {
    let pair = w.pair();
    w.reset_by_peer(pair);
    w.assert_ready(pair.ours, FAILED_FOR_ALL);
    let _ = w.ours().connect_outcome(pair.ours);
    w.assert_ready(pair.ours, FAILED_FOR_ALL);
}

pub(super) fn full_stream_is_not_writable_until_it_is_read(w: &mut impl World) {
    let pair = w.pair();
    let taken = w.fill(pair);
    w.assert_ready(pair.ours, [NOTHING; 4]);
    w.send_theirs(pair, b"hello");
    w.assert_ready(pair.ours, [NOTHING, "r", NOTHING, "r"]);
    let mut read = 0;
    while read < taken {
        read += w.recv(Side::Theirs, pair.theirs).unwrap().len();
    }
    w.assert_ready(pair.ours, READABLE);
}

pub(super) fn failure_of_a_stream_watched_for_nothing_is_reported_once_per_watch(
    w: &mut impl World,
) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    w.ours().watch(pair.ours, Interest::NONE, 9).unwrap();
    assert!(w.wait().is_empty(), "bytes are not watched for");
    w.ours().shutdown_write(pair.ours);
    w.theirs().close(pair.theirs);
    let failed = [Event { key: 9, readable: true, writable: true, failed: true }];
    for _ in 0..3 {
        assert_eq!(w.wait(), failed);
        assert!(w.wait().is_empty(), "it was reported");
        assert!(w.wait().is_empty(), "it was reported");
        w.ours().rewatch(pair.ours, Interest::NONE, 9).unwrap();
    }
}

pub(super) fn failure_of_a_stream_watched_for_reading_or_writing_is_reported_again(
    w: &mut impl World,
) {
    let [_, watched @ ..] = interests();
    for interest in watched {
        let pair = w.pair();
        w.ours().shutdown_write(pair.ours);
        w.theirs().close(pair.theirs);
        w.assert_ready(pair.ours, FAILED_FOR_ALL);
        w.ours().watch(pair.ours, interest, 9).unwrap();
        let failed = [Event { key: 9, readable: true, writable: true, failed: true }];
        for _ in 0..3 {
            assert_eq!(w.wait(), failed, "{interest:?}");
        }
        w.ours().close(pair.ours);
    }
}

/// As a connection that is resumed after its peer has hung up.
pub(super) fn stream_watched_for_nothing_reports_what_it_is_watched_for_next(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    w.ours().watch(pair.ours, Interest::NONE, 9).unwrap();
    assert!(w.wait().is_empty());
    w.ours().rewatch(pair.ours, Interest::READ, 9).unwrap();
    let readable = [Event { key: 9, readable: true, writable: false, failed: false }];
    assert_eq!(w.wait(), readable);
    assert_eq!(w.wait(), readable, "level-triggered again");
    w.ours().rewatch(pair.ours, Interest::NONE, 9).unwrap();
    w.ours().shutdown_write(pair.ours);
    w.theirs().close(pair.theirs);
    let failed = [Event { key: 9, readable: true, writable: true, failed: true }];
    assert_eq!(w.wait(), failed);
    assert!(w.wait().is_empty());
    w.ours().rewatch(pair.ours, Interest::READ, 9).unwrap();
    assert_eq!(w.wait(), failed);
    assert_eq!(w.wait(), failed, "level-triggered again");
    assert_eq!(w.recv_ours(pair), Ok(b"before".to_vec()));
}

pub(super) fn readable_is_reported_until_all_is_read(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"ab");
    w.ours().watch(pair.ours, Interest::READ, 9).unwrap();
    let readable = [Event { key: 9, readable: true, writable: false, failed: false }];
    assert_eq!(w.wait(), readable);
    assert_eq!(w.wait(), readable);
    assert_eq!(w.ours().recv(pair.ours, &mut [0]).unwrap(), 1);
    assert_eq!(w.wait(), readable, "a byte is left");
    assert_eq!(w.ours().recv(pair.ours, &mut [0]).unwrap(), 1);
    assert!(w.wait().is_empty());
}

pub(super) fn writable_is_reported_at_each_wait(w: &mut impl World) {
    let pair = w.pair();
    w.ours().watch(pair.ours, Interest::WRITE, 9).unwrap();
    let writable = [Event { key: 9, readable: false, writable: true, failed: false }];
    for _ in 0..3 {
        assert_eq!(w.wait(), writable);
        assert_eq!(w.send_ours(pair, b"x"), Ok(1));
    }
}

pub(super) fn end_of_stream_is_reported_at_each_wait(w: &mut impl World) {
    let pair = w.pair();
    w.theirs().shutdown_write(pair.theirs);
    w.ours().watch(pair.ours, Interest::READ, 9).unwrap();
    let readable = [Event { key: 9, readable: true, writable: false, failed: false }];
    for _ in 0..3 {
        assert_eq!(w.wait(), readable);
        assert_eq!(w.recv_ours(pair), Ok(vec![]));
    }
}

pub(super) fn rewatch_replaces_interest_and_key(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"hello");
    w.ours().watch(pair.ours, Interest::READ, 1).unwrap();
    assert_eq!(w.wait()[0].key, 1);
    w.ours().rewatch(pair.ours, Interest::WRITE, 2).unwrap();
    assert_eq!(w.wait(), [Event { key: 2, readable: false, writable: true, failed: false }]);
    w.ours().rewatch(pair.ours, Interest { read: true, write: true }, u64::MAX).unwrap();
    assert_eq!(w.wait(), [Event { key: u64::MAX, readable: true, writable: true, failed: false }]);
}

pub(super) fn unwatched_and_closed_streams_report_nothing(w: &mut impl World) {
    let (one, other) = (w.pair(), w.pair());
    for pair in [one, other] {
        w.send_theirs(pair, b"hello");
        w.ours().watch(pair.ours, Interest::READ, 9).unwrap();
    }
    w.until(|w| (w.wait().len() == 2).then_some(()));
    w.ours().unwatch(one.ours).unwrap();
    w.ours().close(other.ours);
    assert!(w.wait().is_empty());
    w.theirs().close(one.theirs);
    assert!(w.wait().is_empty(), "not even a failure");
    w.ours().watch(one.ours, Interest::READ, 9).unwrap();
    assert_eq!(w.wait().len(), 1, "it can be watched again");
}

pub(super) fn wait_appends_no_more_than_it_is_asked_for(w: &mut impl World) {
    let pairs = [w.pair(), w.pair(), w.pair()];
    for (key, pair) in (0..).zip(pairs) {
        w.ours().watch(pair.ours, Interest::WRITE, key).unwrap();
    }
    let mut events = Vec::new();
    w.ours().wait(&mut events, 2, None).unwrap();
    assert_eq!(events.len(), 2);
    w.ours().wait(&mut events, 2, None).unwrap();
    assert_eq!(events.len(), 4, "what was there stays");
}

pub(super) fn watch_calls_out_of_order_fail(w: &mut impl World) {
    let fd = w.pair().ours;
    let ours = w.ours();
    let code = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    assert_eq!(code(ours.rewatch(fd, Interest::READ, 1)), libc::ENOENT);
    assert_eq!(code(ours.unwatch(fd)), libc::ENOENT);
    ours.watch(fd, Interest::READ, 1).unwrap();
    assert_eq!(code(ours.watch(fd, Interest::READ, 1)), libc::EEXIST);
    ours.unwatch(fd).unwrap();
    assert_eq!(code(ours.unwatch(fd)), libc::ENOENT);
}
