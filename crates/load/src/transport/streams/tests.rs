//! [`StreamKernel`] over one connection in memory, whose other end is the codec's server.

mod bed;

use super::*;
use bed::Bed;

#[test]
fn what_a_server_sends_arrives_however_it_is_split() {
    let message: Vec<u8> = (0..600).map(|byte| byte as u8).collect();
    for size in [1, 2, 8, 9, 10, 17, 100, usize::MAX] {
        let mut bed = Bed::new();
        bed.inner.borrow_mut().read_max = size;
        let sockets = [bed.open(), bed.open()];
        for (nth, part) in message.chunks(61).enumerate() {
            bed.server_sends(nth % 2, part, false);
            bed.turn();
        }
        bed.server_sends(0, &[], true);
        let received = sockets.map(|fd| bed.read_all(fd));
        let of = |first: usize| {
            message.chunks(61).skip(first).step_by(2).flatten().copied().collect::<Vec<u8>>()
        };
        assert_eq!(received[0], (of(0), true), "{size}");
        assert_eq!(received[1], (of(1), false), "{size}");
    }
}

#[test]
fn short_writes_lose_and_repeat_nothing() {
    let message: Vec<u8> = (0..40_000).map(|byte| byte as u8).collect();
    for size in [1, 7, 4_096] {
        let mut bed = Bed::new();
        let fd = bed.open();
        bed.inner.borrow_mut().write_max = size;
        assert_eq!(bed.send_all(fd, &message), message.len());
        bed.until_quiet();
        assert_eq!(bed.received(0), (message.clone(), false), "{size}");
        bed.kernel.shutdown_write(bed.fd(fd));
        bed.until_quiet();
        assert_eq!(bed.received(0), (message.clone(), true), "{size}");
    }
}

#[test]
fn a_full_window_stops_one_stream_and_not_the_other() {
    let mut bed = Bed::with_window(100);
    let (one, other) = (bed.open(), bed.open());
    bed.is_reading = false;
    assert_eq!(bed.send(one, &[1; 250]), Ok(100));
    assert_eq!(bed.send(one, &[1; 150]), Err(ErrorKind::WouldBlock));
    assert!(!bed.is_writable(one) && bed.is_writable(other));
    assert_eq!(bed.send(other, &[2; 50]), Ok(50));
    bed.is_reading = true;
    bed.until_quiet();
    assert!(bed.is_writable(one), "its window is open again");
    assert_eq!(bed.send_all(one, &[1; 150]), 150);
    bed.until_quiet();
    assert_eq!(bed.received(0), (vec![1; 250], false));
    assert_eq!(bed.received(1), (vec![2; 50], false));
}

#[test]
fn a_stream_that_is_not_read_opens_no_window() {
    let mut bed = Bed::new();
    let fd = bed.open();
    let most = STREAM_WINDOW_BYTES as usize;
    assert_eq!(bed.server_sends(0, &vec![7; most + 1_000], false), most);
    bed.until_quiet();
    assert_eq!(bed.server_sends(0, &[7; 1_000], false), 0, "nothing was read");
    assert_eq!(bed.read_all(fd).0.len(), most);
    bed.until_quiet();
    assert_eq!(bed.server_sends(0, &[7; 1_000], false), 1_000);
}

#[test]
fn a_reset_within_a_message_fails_its_socket_alone() {
    let mut bed = Bed::new();
    let (one, other) = (bed.open(), bed.open());
    bed.server_sends(0, b"the first ha", false);
    bed.server_sends(1, b"whole", false);
    bed.server_resets(0, ErrorCode::INTERNAL_ERROR);
    bed.until_quiet();
    assert_eq!(bed.read_all(other), (b"whole".to_vec(), false));
    assert!(bed.is_failed(one) && !bed.is_failed(other));
    let fault = bed.kernel.fault(bed.fd(one));
    assert_eq!(fault, Some(ServerFault::StreamReset(ErrorCode::INTERNAL_ERROR)));
    assert_eq!(bed.send(one, b"x"), Err(ErrorKind::ConnectionReset));
    assert_eq!(bed.send(other, b"x"), Ok(1));
}

#[test]
fn go_away_ends_no_stream_that_it_covers() {
    let mut bed = Bed::new();
    let fd = bed.open();
    bed.server_sends(0, b"before", false);
    bed.server_goes_away();
    bed.server_sends(0, b" and after", true);
    bed.until_quiet();
    assert_eq!(bed.read_all(fd), (b"before and after".to_vec(), true));
    assert_eq!(bed.kernel.fault(bed.fd(fd)), None);
    assert_eq!(bed.kernel.metrics.counts.http2_goaways.get(), 1);
    // A further socket gets another connection, and the old one is closed after its last.
    let _further = bed.connect();
    assert_eq!(bed.connects(), 2);
    bed.close(fd);
    bed.turn();
    assert!(bed.is_closed(0) && !bed.is_closed(1));
}

#[test]
fn the_end_of_a_connection_comes_after_what_was_received() {
    let mut bed = Bed::new();
    let (ended, open) = (bed.open(), bed.open());
    bed.server_sends(0, b"bye", true);
    bed.server_sends(1, b"cut", false);
    bed.inner.borrow_mut().is_ended = true;
    bed.until_quiet();
    for (fd, last) in [(ended, b"bye"), (open, b"cut")] {
        assert_eq!(bed.read_all(fd), (last.to_vec(), true));
    }
    assert!(bed.is_closed(0));
    bed.close(open);
    bed.close(ended);
}

#[test]
fn a_socket_that_is_closed_cancels_its_stream_unless_both_have_ended() {
    let mut bed = Bed::new();
    let (cut, both) = (bed.open(), bed.open());
    bed.server_sends(1, b"", true);
    bed.until_quiet();
    assert_eq!(bed.read_all(both), (Vec::new(), true));
    bed.kernel.shutdown_write(bed.fd(both));
    bed.close(both);
    bed.close(cut);
    bed.until_quiet();
    assert_eq!(bed.resets, [(0, ErrorCode::CANCEL)]);
    assert_eq!(bed.received(1), (Vec::new(), true));
    assert!(!bed.is_closed(0), "the connection takes further sockets");
}
