//! Wake-ups from other threads, and the clock.

use std::time::Duration;

use super::world::{LinuxWorld, Role, Transport, World};
use crate::sys::{Event, Interest, Sys};

pub(super) fn wake_up_is_readable_until_it_is_cleared(w: &mut impl World) {
    w.wake();
    let fd = w.ours().wake_fd().unwrap();
    w.ours().watch(fd, Interest::READ, 9).unwrap();
    let readable = [Event { key: 9, readable: true, writable: false, failed: false }];
    assert_eq!(w.wait(), readable, "a wake-up before the watch counts");
    assert_eq!(w.wait(), readable);
    w.wake();
    w.ours().clear_wake();
    assert!(w.wait().is_empty(), "several are cleared as one");
    w.ours().clear_wake();
    w.wake();
    assert_eq!(w.wait(), readable, "clearing an unset one does no harm");
}

pub(super) fn clock_does_not_go_back(w: &mut impl World) {
    let mut before = w.ours().now_ns();
    for _ in 0..3 {
        w.settle();
        let now = w.ours().now_ns();
        assert!(now - before >= 20_000_000, "settling takes 20 ms");
        assert!(w.theirs().now_ns() >= now, "both ends have the same clock");
        before = now;
    }
}

#[test]
fn linux_waits_no_shorter_than_the_timeout() {
    let mut world = LinuxWorld::new(Transport::Tcp, Role::Accepts);
    for timeout in [1, 999, 1_000_001, 5_000_000].map(Duration::from_nanos) {
        let before = world.ours().now_ns();
        assert!(world.wait_for(timeout).is_empty());
        let waited = Duration::from_nanos(world.ours().now_ns() - before);
        assert!(waited >= timeout, "{waited:?} of {timeout:?}");
    }
}
