//! Bytes on a connected stream: results and errors of reads and writes, up to its end.

use std::io::IoSlice;

use super::world::{Role, Side, World, errno};
use crate::sys::{Fd, Sys};

pub(super) fn bytes_arrive_in_order_and_in_portions(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"hel");
    w.send_theirs(pair, b"lo");
    w.settle();
    let mut buffer = [0; 4];
    assert_eq!(w.ours().recv(pair.ours, &mut buffer).unwrap(), 4);
    assert_eq!(&buffer, b"hell");
    assert_eq!(w.recv_ours(pair), Ok(b"o".to_vec()));
}

pub(super) fn nothing_to_read_is_would_block(w: &mut impl World) {
    let pair = w.pair();
    assert_eq!(errno(w.ours().recv(pair.ours, &mut [0; 8])), Err(libc::EAGAIN));
}

pub(super) fn end_of_stream_follows_the_bytes_and_stays(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"last");
    w.theirs().shutdown_write(pair.theirs);
    assert_eq!(w.recv_ours(pair), Ok(b"last".to_vec()));
    for _ in 0..3 {
        assert_eq!(w.recv_ours(pair), Ok(vec![]));
    }
}

pub(super) fn full_stream_takes_part_and_then_would_block(w: &mut impl World) {
    let pair = w.pair();
    let large = vec![b'x'; 64 << 20];
    let sent = w.send_ours(pair, &large).unwrap();
    assert!(sent > 0 && sent < large.len(), "{sent} bytes were taken");
    let taken = sent + w.fill(pair);
    let mut read = 0;
    while read < taken {
        read += w.recv(Side::Theirs, pair.theirs).unwrap().len();
    }
    assert_eq!(read, taken);
    assert_eq!(errno(w.theirs().recv(pair.theirs, &mut [0])), Err(libc::EAGAIN));
    assert_eq!(w.send_ours(pair, b"again"), Ok(5));
}

pub(super) fn pieces_are_sent_one_after_another(w: &mut impl World) {
    let pair = w.pair();
    let pieces = [b"one, ".as_slice(), b"", b"two"].map(IoSlice::new);
    assert_eq!(w.theirs().send_vectored(pair.theirs, &pieces).unwrap(), 8);
    assert_eq!(w.recv_ours(pair), Ok(b"one, two".to_vec()));
    let taken = w.fill(pair);
    let result = errno(w.ours().send_vectored(pair.ours, &pieces));
    assert_eq!(result, Err(libc::EAGAIN), "after {taken} bytes");
}

pub(super) fn after_its_own_half_close_a_stream_only_reads(w: &mut impl World) {
    let pair = w.pair();
    w.ours().shutdown_write(pair.ours);
    assert_eq!(w.send_ours(pair, b"late"), Err(libc::EPIPE));
    assert_eq!(w.recv(Side::Theirs, pair.theirs), Ok(vec![]));
    w.send_theirs(pair, b"answer");
    assert_eq!(w.recv_ours(pair), Ok(b"answer".to_vec()));
}

pub(super) fn after_a_half_close_by_the_peer_a_stream_only_writes(w: &mut impl World) {
    let pair = w.pair();
    w.theirs().shutdown_write(pair.theirs);
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
    assert_eq!(w.send_ours(pair, b"answer"), Ok(6));
    assert_eq!(w.recv(Side::Theirs, pair.theirs), Ok(b"answer".to_vec()));
}

pub(super) fn close_by_the_peer_leaves_its_bytes_to_read(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    w.theirs().close(pair.theirs);
    assert_eq!(w.recv_ours(pair), Ok(b"before".to_vec()));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
}

pub(super) fn first_send_after_a_close_by_the_peer_is_lost(w: &mut impl World) {
    let pair = w.pair();
    w.theirs().close(pair.theirs);
    w.settle();
    assert_eq!(w.send_ours(pair, b"lost"), Ok(4), "only the answer to it is a reset");
    w.settle();
    assert_eq!(w.send_ours(pair, b"x"), Err(libc::EPIPE));
    assert_eq!(w.send_ours(pair, b"x"), Err(libc::EPIPE));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
}

/// Bytes that the peer had sent before are read first, unless they were lost on their way.
fn recv_after_bytes(w: &mut impl World, pair: super::world::Pair) -> Result<Vec<u8>, i32> {
    match w.recv_ours(pair) {
        Ok(bytes) if !bytes.is_empty() => {
            assert_eq!(bytes, b"before");
            w.recv_ours(pair)
        }
        other => other,
    }
}

pub(super) fn close_with_unread_bytes_resets_the_peer(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    assert_eq!(w.send_ours(pair, b"unread"), Ok(6));
    w.settle();
    w.theirs().close(pair.theirs);
    w.settle();
    assert_eq!(recv_after_bytes(w, pair), Err(libc::ECONNRESET));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
    assert_eq!(w.send_ours(pair, b"x"), Err(libc::EPIPE));
}

pub(super) fn reset_by_the_peer_is_an_error_once_and_then_the_end(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    w.reset_by_peer(pair);
    assert_eq!(recv_after_bytes(w, pair), Err(libc::ECONNRESET));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
    assert_eq!(w.send_ours(pair, b"x"), Err(libc::EPIPE));
    assert!(w.ours().connect_outcome(pair.ours).is_ok(), "the error was taken");
}

pub(super) fn reset_by_the_peer_is_an_error_of_the_next_send(w: &mut impl World) {
    let pair = w.pair();
    w.reset_by_peer(pair);
    assert_eq!(w.send_ours(pair, b"x"), Err(libc::ECONNRESET));
    assert_eq!(w.send_ours(pair, b"x"), Err(libc::EPIPE));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
}

/// After its FIN a reader is not told of the reset that follows; a writer is.
pub(super) fn reset_after_the_end_is_no_error_of_a_read(w: &mut impl World) {
    for takes in [|w: &mut _, pair| send(w, pair), |w: &mut _, pair| outcome(w, pair)] {
        let pair = w.pair();
        w.theirs().shutdown_write(pair.theirs);
        w.settle();
        w.reset_by_peer(pair);
        assert_eq!(w.recv_ours(pair), Ok(vec![]));
        assert_eq!(takes(w, pair), Err(libc::EPIPE));
        assert_eq!(outcome(w, pair), Ok(()));
        assert_eq!(w.recv_ours(pair), Ok(vec![]));
    }
}

/// What was sent before an end that has arrived has arrived, too: the reader would take less for all of it.
pub(super) fn reset_after_the_end_leaves_the_bytes_before_it(w: &mut impl World) {
    for _ in 0..16 {
        let pair = w.pair();
        w.send_theirs(pair, b"before");
        w.theirs().shutdown_write(pair.theirs);
        w.settle();
        w.reset_by_peer(pair);
        assert_eq!(w.recv_ours(pair), Ok(b"before".to_vec()));
        assert_eq!(w.recv_ours(pair), Ok(vec![]));
    }
}

fn send<W: World>(w: &mut W, pair: super::world::Pair) -> Result<(), i32> {
    w.send_ours(pair, b"x").map(drop)
}

fn outcome<W: World>(w: &mut W, pair: super::world::Pair) -> Result<(), i32> {
    errno(w.ours().connect_outcome(pair.ours))
}

pub(super) fn reset_of_a_stream_that_is_over_is_no_error(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    w.theirs().shutdown_write(pair.theirs);
    w.settle();
    w.ours().shutdown_write(pair.ours);
    w.settle();
    w.reset_by_peer(pair);
    assert_eq!(outcome(w, pair), Ok(()));
    assert_eq!(w.recv_ours(pair), Ok(b"before".to_vec()));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
}

pub(super) fn reset_on_close_means_nothing_to_a_unix_stream(w: &mut impl World) {
    let pair = w.pair();
    w.send_theirs(pair, b"before");
    w.reset_by_peer(pair);
    assert_eq!(outcome(w, pair), Ok(()));
    assert_eq!(w.recv_ours(pair), Ok(b"before".to_vec()));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
    assert_eq!(w.send_ours(pair, b"x"), Err(libc::EPIPE));
}

pub(super) fn error_is_taken_once(w: &mut impl World) {
    let pair = w.pair();
    assert_eq!(outcome(w, pair), Ok(()));
    assert_eq!(w.send_ours(pair, b"unread"), Ok(6));
    w.settle();
    w.theirs().close(pair.theirs);
    w.settle();
    assert_eq!(outcome(w, pair), Err(libc::ECONNRESET));
    assert_eq!(outcome(w, pair), Ok(()));
    assert_eq!(w.recv_ours(pair), Ok(vec![]));
    assert_eq!(w.send_ours(pair, b"x"), Err(libc::EPIPE));
}

pub(super) fn unknown_descriptor_is_an_error(w: &mut impl World) {
    let ours = w.ours();
    for unknown in [Fd::new(1_000_000_000), Fd::new(-1)] {
        assert_eq!(errno(ours.recv(unknown, &mut [0])), Err(libc::EBADF));
        assert_eq!(errno(ours.send(unknown, b"x")), Err(libc::EBADF));
        assert_eq!(errno(ours.connect_outcome(unknown)), Err(libc::EBADF));
        assert_eq!(errno(ours.watch(unknown, super::super::Interest::READ, 1)), Err(libc::EBADF));
        assert_eq!(errno(ours.accept(unknown)), Err(libc::EBADF));
        assert_eq!(ours.peer(unknown), None);
        ours.shutdown_write(unknown);
        ours.reset_on_close(unknown);
    }
}

pub(super) fn addresses(w: &mut impl World) {
    let pair = w.pair();
    let (ours, theirs) = (w.ours().local(pair.ours), w.theirs().local(pair.theirs));
    assert_eq!(w.ours().peer(pair.ours), theirs);
    assert_eq!(w.theirs().peer(pair.theirs), ours);
    assert_eq!((ours.is_none(), theirs.is_none()), (w.is_unix(), w.is_unix()));
    if !w.is_unix() {
        let (accepted, connected) = match w.role() {
            Role::Accepts => (ours, theirs),
            Role::Connects => (theirs, ours),
        };
        assert!(accepted.unwrap().ip().is_loopback() && connected.unwrap().ip().is_loopback());
        assert_ne!(accepted, connected);
    }
    assert!(!w.ours().is_broken(pair.ours) && !w.ours().peer_has_left(pair.ours));
    w.theirs().send(pair.theirs, b"last").unwrap();
    w.theirs().shutdown_write(pair.theirs);
    w.settle();
    assert!(!w.ours().is_broken(pair.ours), "our side goes on");
    assert!(w.ours().peer_has_left(pair.ours), "though its bytes are not read yet");
    assert!(!w.theirs().peer_has_left(pair.theirs));
    assert_eq!(w.ours().peer(pair.ours), theirs);
    w.ours().shutdown_write(pair.ours);
    w.settle();
    assert_eq!(w.ours().is_broken(pair.ours), !w.is_unix(), "it is over");
    assert_eq!(w.ours().peer(pair.ours), None);
    assert_eq!(w.ours().local(pair.ours), ours);

    let pair = w.pair();
    w.reset_by_peer(pair);
    assert_eq!(w.ours().is_broken(pair.ours), !w.is_unix());
    assert!(w.ours().peer_has_left(pair.ours));
    assert_eq!(w.ours().peer(pair.ours), None);
}
