//! Frames: closes, violations, fragments, pings, compressed messages, and pauses.

use engine::sys::Sys;
use engine::{Closed, Compression, Limits};
use wire::Violation;
use wire::websocket::OpCode;

use crate::harness::{BUFFER, Simulation, close_frame, compressed, frame, text};

/// RFC 6455, section 5.5.1.
#[test]
fn after_our_close_nothing_but_a_close_counts() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/");
    let late = [
        text("close"),
        text("late"),
        frame(OpCode::Text, false, b"la"),
        frame(OpCode::Continuation, true, b"te"),
        frame(OpCode::Ping, true, b"late"),
        frame(OpCode::Pong, true, b"late"),
    ];
    simulation.send(fd, &late.concat());
    simulation.send(fd, &late[1..].concat());
    assert_eq!(simulation.received(0), ["close"]);
    assert_eq!(simulation.receive(fd), (b"\x88\x08\x03\xe8enough".to_vec(), false));
    let totals = simulation.totals();
    assert_eq!((totals.messages_in, totals.pings_in, totals.pongs_in), (1, 0, 0));
    simulation.send(fd, &close_frame());
    assert_eq!(simulation.receive(fd), (Vec::new(), true), "our side ends after the peer's close");
    simulation.outside.close(fd);
    simulation.settle();
    let host = simulation.host();
    assert_eq!((&*host.closing, &*host.closed), (&[][..], &[Closed::ByUs][..]));
}

#[test]
fn close_of_the_peer_is_answered_with_its_code() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/");
    simulation.send(fd, &[close_frame(), text("late")].concat());
    assert_eq!(simulation.receive(fd), (b"\x88\x02\x03\xe8".to_vec(), true));
    assert_eq!(simulation.received(0), [""; 0]);
    assert_eq!(simulation.host().closing, [Closed::ByPeer]);
    simulation.outside.close(fd);
    simulation.settle();
    assert_eq!(simulation.host().closed, [Closed::ByPeer]);
}

#[test]
fn violation_is_closed_with_its_code_and_counted() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/");
    simulation.send(fd, &[text("fine"), frame(OpCode::Text, true, &[0xff]), text("late")].concat());
    assert_eq!(simulation.received(0), ["fine"]);
    let (bytes, ended) = simulation.receive(fd);
    assert_eq!((&bytes[..1], &bytes[2..4], ended), (&[0x88][..], &[3, 239][..], true));
    assert_eq!(&bytes[4..], Violation::InvalidUtf8.name().as_bytes());
    assert_eq!(simulation.totals().violations[Violation::InvalidUtf8 as usize], 1);
    assert_eq!(simulation.host().closing, [Closed::Violation]);
    simulation.outside.close(fd);
    simulation.settle();
    assert_eq!(simulation.host().closed, [Closed::Violation]);
}

#[test]
fn violation_after_our_close_ends_the_stream_for_our_reason() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/");
    simulation.send(fd, &text("close"));
    simulation.send(fd, &frame(OpCode::Text, true, &[0xff]));
    assert_eq!(simulation.receive(fd), (b"\x88\x08\x03\xe8enough".to_vec(), true));
    simulation.outside.close(fd);
    simulation.settle();
    let host = simulation.host();
    assert_eq!((&*host.closing, &*host.closed), (&[][..], &[Closed::ByUs][..]));
}

#[test]
fn fragments_are_joined_whatever_comes_between() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/");
    for round in ["first", "second"] {
        for byte in round.as_bytes() {
            let opcode =
                if *byte == round.as_bytes()[0] { OpCode::Text } else { OpCode::Continuation };
            simulation.send(fd, &frame(opcode, false, &[*byte]));
            simulation.send(fd, &frame(OpCode::Ping, true, b"?"));
        }
        simulation.send(fd, &frame(OpCode::Continuation, true, b"."));
    }
    assert_eq!(simulation.received(0), ["first.", "second."]);
    assert_eq!(simulation.receive(fd).0, b"\x8a\x01?".repeat(11));
    let totals = simulation.totals();
    assert_eq!((totals.messages_in, totals.pings_in), (2, 11));
}

#[test]
fn compressed_messages_are_received_until_our_close() {
    let limits = Limits { compression: Compression::Shared, ..Limits::default() };
    let mut simulation = Simulation::with(limits);
    let fd = simulation.connect("/");
    let messages = [compressed("one", 1), compressed("two", 3), compressed("close", 1)];
    let late = [compressed("late", 1), compressed("late", 2)].concat();
    simulation.send(fd, &[messages.concat(), late.clone()].concat());
    simulation.send(fd, &late);
    assert_eq!(simulation.received(0), ["one", "two", "close"]);
    assert_eq!(simulation.totals().messages_in, 3);
    assert_eq!(simulation.receive(fd), (b"\x88\x08\x03\xe8enough".to_vec(), false));
}

/// RFC 6455, section 5.5.3.
#[test]
fn only_the_latest_ping_behind_a_queue_is_answered() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/");
    simulation.send(fd, &text("flood"));
    for payload in [b"1", b"2", b"3"] {
        simulation.send(fd, &frame(OpCode::Ping, true, payload));
    }
    let (bytes, _) = simulation.receive(fd);
    let flood = 4 * (BUFFER + 10);
    assert_eq!(&bytes[flood..], b"\x8a\x013");
    assert_eq!(simulation.totals().pings_in, 3);
}

#[test]
fn aborted_connection_receives_and_sends_nothing_more() {
    let invalid = frame(OpCode::Text, true, &[0xff]);
    for last in [close_frame(), invalid] {
        let mut simulation = Simulation::new();
        let fd = simulation.connect("/");
        let late = [text("late"), frame(OpCode::Ping, true, b"late"), last].concat();
        simulation.send(fd, &[text("one"), text("abort"), late].concat());
        assert_eq!(simulation.received(0), ["one", "abort"]);
        assert_eq!(simulation.receive(fd), (Vec::new(), true));
        assert_eq!(simulation.totals().violations[Violation::InvalidUtf8 as usize], 0);
        let host = simulation.host();
        assert_eq!((&*host.closing, &*host.closed), (&[][..], &[Closed::Aborted][..]));
    }
}

/// With a violation behind it.
#[test]
fn bytes_behind_a_close_of_the_peer_are_not_decoded() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/");
    simulation.send(fd, &[close_frame(), frame(OpCode::Text, true, &[0xff])].concat());
    simulation.send(fd, &frame(OpCode::Text, true, &[0xff]));
    assert_eq!(simulation.receive(fd), (b"\x88\x02\x03\xe8".to_vec(), true));
    assert_eq!(simulation.totals().violations[Violation::InvalidUtf8 as usize], 0);
}

#[test]
fn paused_connection_keeps_what_was_read() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/");
    simulation.send(fd, &[text("pause"), text("kept"), text("pause")].concat());
    let read = simulation.totals().bytes_in;
    simulation.send(fd, &text("unread"));
    assert_eq!(simulation.received(0), ["pause"]);
    assert_eq!(simulation.totals().bytes_in, read);
    for expected in [&["kept", "pause"][..], &["unread"]] {
        let (host, core) = simulation.worker.parts();
        core.resume(host.ids[0]);
        simulation.settle();
        assert_eq!(simulation.received(0), expected);
    }
    assert!(simulation.totals().bytes_in > read);
}

/// Its event was fetched together with that of the connection that pauses it.
#[test]
fn connection_paused_in_the_same_turn_is_not_read() {
    for path in ["/", "/raw"] {
        let mut simulation = Simulation::new();
        let fds = [simulation.connect(path), simulation.connect(path)];
        let order = if path == "/" { text("pause other") } else { b"pause other".to_vec() };
        let read = simulation.totals().bytes_in;
        fds.iter().for_each(|fd| simulation.put(*fd, &order));
        simulation.settle();
        let received = std::mem::take(&mut simulation.host().received);
        assert_eq!(received.len(), 1, "{received:?}");
        if path == "/" && !crate::SOCKETS_TOGETHER {
            assert_eq!(simulation.totals().bytes_in - read, order.len() as u64);
        }
        let paused = 1 - received[0].0;
        let (host, core) = simulation.worker.parts();
        core.resume(host.ids[paused]);
        simulation.settle();
        assert_eq!(simulation.host().received, [(paused, "pause other".to_owned())]);
    }
}
