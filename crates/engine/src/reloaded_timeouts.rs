//! New timeouts apply to handshakes that are under way.

use std::net::SocketAddr;
use std::time::Duration;

use wire::websocket::OpCode;

use crate::sys::Sys;
use crate::sys::sim::Kernel;
use crate::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Worker};

struct Host;

impl Handler for Host {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

/// Begins a head, sets another handshake timeout 100 ms later, and begins another head. How many
/// connections there are at each of some later times, in milliseconds.
fn open_after_reload<const N: usize>(before_s: u64, after_s: u64, at_ms: [u64; N]) -> [u32; N] {
    let limits =
        |seconds| Limits { handshake_timeout: Duration::from_secs(seconds), ..Limits::default() };
    let address = SocketAddr::from(([127, 0, 0, 1], 80));
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    let seat = kernel.seat(64, &[kernel.listen(address, 16, 0)]);
    let remote = Remote::new(vec![seat.wake], Limits::default().mailbox_bytes);
    let mailbox = remote.clone();
    let mut worker =
        Worker::new(seat.sys, 0, limits(before_s), mailbox, &seat.listeners, 50, Host).unwrap();
    remote.give_listener(0, 0);
    let mut outside = kernel.outside();
    let mut begin_head = |worker: &mut Worker<_, Host>| {
        let fd = outside.connect(address, None).unwrap();
        outside.send(fd, b"GET / HTTP/1.1\r\nHo").unwrap();
        for _ in 0..4 {
            worker.turn(Some(Duration::ZERO)).unwrap();
        }
    };
    begin_head(&mut worker);
    kernel.advance(100_000_000);
    worker.core.set_limits(limits(after_s));
    begin_head(&mut worker);
    assert_eq!(worker.core.connections(), 2);
    let mut now_ms = 0;
    at_ms.map(|at_ms| {
        kernel.advance((at_ms - now_ms) * 1_000_000);
        now_ms = at_ms;
        for _ in 0..4 {
            worker.turn(Some(Duration::ZERO)).unwrap();
        }
        worker.core.connections()
    })
}

#[test]
fn a_lower_handshake_timeout_applies_behind_an_older_deadline() {
    assert_eq!(open_after_reload(40, 2, [1_850, 1_950, 2_050]), [2, 1, 0]);
}

#[test]
fn a_higher_handshake_timeout_applies_to_a_head_that_was_begun() {
    assert_eq!(open_after_reload(2, 10, [2_050, 9_850, 9_950, 10_050]), [2, 2, 1, 0]);
}
