//! What a handler wants to do once a queue has drained is done in the same turn: nothing else may come for long.

use std::net::SocketAddr;

use wire::websocket::OpCode;

use crate::sys::Sys;
use crate::sys::sim::Kernel;
use crate::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Sent, Worker};

static MESSAGE: [u8; 50_000] = [b'a'; 50_000];
const MESSAGES: usize = 40;

/// Sends a connection many messages, as many as it takes, and more in the turn after it was told of a drain.
#[derive(Default)]
struct Host {
    left: usize,
    ready: Option<ConnId>,
}

impl Handler for Host {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.left = MESSAGES;
        self.ready = Some(id);
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn drained<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.ready = Some(id);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let id = self.ready.take()?;
        while self.left > 0 {
            self.left -= 1;
            if core.send(id, OpCode::Binary, &MESSAGE) != Sent::Sent {
                break;
            }
        }
        None
    }
}

#[test]
fn a_handler_goes_on_in_the_turn_in_which_a_queue_has_drained() {
    let address = SocketAddr::from(([127, 0, 0, 1], 80));
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    let seat = kernel.seat(64, &[kernel.listen(address, 16, 0)]);
    let (limits, table) = (Limits::default(), seat.sys.table());
    let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
    let host = Host::default();
    let mut worker =
        Worker::new(seat.sys, 0, limits, remote.clone(), &seat.listeners, 50, host).unwrap();
    remote.give_listener(0, 0);
    let mut outside = kernel.outside();
    let fd = outside.connect(address, None).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    outside.send(fd, request).unwrap();
    let mut received = 0;
    for _ in 0..MESSAGES * 10 {
        // Nothing but the connection wakes the worker: no timer is due.
        while kernel.is_ready(table) {
            worker.turn(None).unwrap();
        }
        assert_eq!(worker.handler().ready, None);
        let mut bytes = [0; 1 << 16];
        received += outside.recv(fd, &mut bytes).unwrap_or(0);
        if received > MESSAGES * MESSAGE.len() {
            break;
        }
    }
    assert_eq!(worker.handler().left, 0);
    assert!(received > MESSAGES * MESSAGE.len(), "{received} bytes");
}
