//! BI-30: the generation counter wraps around, and no connection is mistaken for another.

use std::net::SocketAddr;

use wire::websocket::{OpCode, encode_masked};

use crate::sys::Sys;
use crate::sys::sim::Kernel;
use crate::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Worker};

/// Echoes, and keeps every id there was.
#[derive(Default)]
struct Host {
    ids: Vec<ConnId>,
    closed: Vec<ConnId>,
}

impl Handler for Host {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.ids.push(id);
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        op: OpCode,
        data: &mut [u8],
    ) {
        core.send(id, op, data);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        self.closed.push(id);
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

#[test]
fn bi_30_generations_wrap_around() {
    let address = SocketAddr::from(([127, 0, 0, 1], 80));
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    let seat = kernel.seat(64, &[kernel.listen(address, 16, 0)]);
    let (limits, table) = (Limits::default(), seat.sys.table());
    let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
    let host = Host::default();
    let mut worker =
        Worker::new(seat.sys, 0, limits, remote.clone(), &seat.listeners, 50, host).unwrap();
    remote.give_listener(0, 0);
    // As after four thousand million connections.
    worker.core.generation = u32::MAX - 5;
    let mut outside = kernel.outside();
    let mut request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        .to_vec();
    encode_masked(&mut request, OpCode::Text, b"mine", [1, 2, 3, 4]);
    for round in 1..=12 {
        let fd = outside.connect(address, None).unwrap();
        outside.send(fd, &request).unwrap();
        let settle = |worker: &mut Worker<_, Host>| {
            while kernel.is_ready(table) {
                worker.turn(None).unwrap();
            }
        };
        settle(&mut worker);
        // Earlier users of the slot get nothing, and no other connection gets it instead.
        let (host, core) = worker.parts();
        for closed in host.closed.clone() {
            assert_eq!(core.send(closed, OpCode::Text, b"stray"), crate::Sent::Dropped);
        }
        let mut answer = [0; 4096];
        let got = outside.recv(fd, &mut answer).unwrap();
        assert!(answer[..got].ends_with(b"\r\n\r\n\x81\x04mine"), "round {round}");
        outside.close(fd);
        settle(&mut worker);
        assert_eq!(worker.parts().0.closed.len(), round);
    }
    let mut ids = worker.parts().0.ids.clone();
    ids.dedup();
    assert_eq!(ids.len(), 12);
    let wrapped = |id: &ConnId| id.generation() < 12;
    assert!(ids.iter().any(wrapped) && !ids.iter().all(wrapped), "{ids:?}");
}
