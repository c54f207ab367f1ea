//! Polled connections over the simulated kernel.

use std::net::SocketAddr;
use std::time::Duration;

use fastrand::Rng;
use wire::websocket::{CloseCode, OpCode};

use super::{LINES, POLLED_BYTES, encode_line};
use crate::sys::sim::{Kernel, Sim};
use crate::sys::{Fd, Sys};
use crate::{
    AdmissionLimits, Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Refusal, Remote,
    Response, Sent, SharedFrame, SlowConsumer, Worker,
};

/// Opens a polled connection for requests of `/open`, and lets others wait.
#[derive(Default)]
struct Host {
    opened: Vec<Result<ConnId, Refusal>>,
    waiting: Vec<ConnId>,
    closed: Vec<(ConnId, Closed)>,
}

impl Handler for Host {
    type User = ();
    type Post = ();

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        if request.head.target == "/open" {
            self.opened.push(core.open_polled(id));
            return Answer::Respond(Response::text(200, "open\n"));
        }
        self.waiting.push(id);
        Answer::LaterWithin(60_000_000_000)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        assert!(!opened);
        self.closed.push((id, why));
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

/// A worker, and a client with one connection.
struct World {
    kernel: Kernel,
    worker: Worker<Sim, Host>,
    outside: Sim,
    fd: Fd,
}

impl World {
    fn new(limits: Limits) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let kernel = Kernel::new(1, (1 << 16, 1 << 16));
        let seat = kernel.seat(64, &[kernel.listen(address, 16, 0)]);
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let host = Host::default();
        let worker =
            Worker::new(seat.sys, 0, limits, remote.clone(), &seat.listeners, 5, host).unwrap();
        remote.give_listener(0, 0);
        let mut outside = kernel.outside();
        let fd = outside.connect(address, None).unwrap();
        World { kernel, worker, outside, fd }
    }

    fn turns(&mut self) {
        for _ in 0..4 {
            self.worker.turn(Some(Duration::ZERO)).unwrap();
        }
    }

    fn request(&mut self, path: &str) {
        let request = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
        self.outside.send(self.fd, request.as_bytes()).unwrap();
        self.turns();
    }

    fn received(&mut self) -> String {
        let mut answer = [0; 4096];
        let got = self.outside.recv(self.fd, &mut answer).unwrap_or(0);
        String::from_utf8(answer[..got].to_vec()).unwrap()
    }

    fn try_open(&mut self) -> Result<ConnId, Refusal> {
        self.request("/open");
        self.received();
        self.worker.handler.opened.pop().unwrap()
    }

    fn open(&mut self) -> ConnId {
        self.try_open().unwrap()
    }

    fn core(&mut self) -> &mut Core<Sim, Host> {
        &mut self.worker.core
    }

    fn send(&mut self, id: ConnId, message: &str) -> Sent {
        self.core().send(id, OpCode::Text, message.as_bytes())
    }

    fn take(&mut self, id: ConnId) -> (String, u32) {
        let mut out = Vec::new();
        let messages = self.core().take_output(id, &mut out);
        (String::from_utf8(out).unwrap(), messages)
    }
}

#[test]
fn a_message_is_one_line_with_the_same_meaning() {
    let mut out = Vec::new();
    encode_line(b"{\"a\":\r\n [1,\n2]}", &mut out);
    encode_line(b"", &mut out);
    assert_eq!(out, b"{\"a\":   [1, 2]}\n\n");
}

/// However sending, taking and giving back alternate: each message once, in order, and the counters agree.
#[test]
fn what_is_sent_is_taken_once_and_in_order() {
    for seed in 0..200 {
        let mut random = Rng::with_seed(seed);
        let mut world = World::new(Limits::default());
        let id = world.open();
        assert_eq!(world.core().encoding(id), u32::from(LINES));
        let (mut sent, mut heard, mut undelivered) = (0, Vec::new(), None::<(String, u32)>);
        for _ in 0..random.usize(1..60) {
            match random.u8(..4) {
                0 => {
                    world.send(id, &sent.to_string());
                    sent += 1;
                }
                1 => {
                    let mut lines = Vec::new();
                    let messages = random.u32(1..4);
                    for _ in 0..messages {
                        encode_line(sent.to_string().as_bytes(), &mut lines);
                        sent += 1;
                    }
                    world.core().send_shared(id, &SharedFrame::new(&lines, messages));
                }
                // An answer is on its way: at most one is.
                2 if undelivered.is_none() => undelivered = Some(world.take(id)),
                _ => match undelivered.take() {
                    Some((lines, messages)) if random.bool() => {
                        world.core().give_back(id, lines.as_bytes(), messages);
                    }
                    Some((lines, _)) => heard.push(lines),
                    None => {}
                },
            }
            let waiting = world.core().queued(id) as u64;
            let counters = world.core().counters();
            assert_eq!(
                (counters.polled_bytes.get(), counters.queued_bytes.get()),
                (waiting, waiting)
            );
        }
        if let Some((lines, messages)) = undelivered {
            world.core().give_back(id, lines.as_bytes(), messages);
        }
        let (lines, _) = world.take(id);
        heard.push(lines);
        let expected: String = (0..sent).map(|n| format!("{n}\n")).collect();
        assert_eq!(heard.concat(), expected, "seed {seed}");
        assert_eq!(world.core().counters().messages_out.get(), sent);
        assert_eq!(world.core().queued(id), 0);
    }
}

#[test]
fn it_has_something_to_take_when_its_queue_fills_and_when_it_closes() {
    let mut world = World::new(Limits { send_queue_bytes: 400, ..Limits::default() });
    let id = world.open();
    assert_eq!(world.core().take_pollable(), []);
    assert_eq!(world.send(id, "one"), Sent::Sent);
    world.send(id, "two");
    assert_eq!(world.core().take_pollable(), [id], "once while nobody takes");
    assert_eq!(world.send(id, &"x".repeat(100)), Sent::Queued(109));
    assert_eq!(world.core().take_pollable(), [id], "a quarter of its limit");
    let (lines, messages) = world.take(id);
    assert_eq!((lines.len(), messages), (109, 3));
    world.core().give_back(id, lines.as_bytes(), messages);
    assert_eq!(world.core().take_pollable(), [id]);
    world.core().close(id, CloseCode::NORMAL, "");
    assert_eq!((world.core().take_pollable(), world.core().is_open(id)), (vec![id], false));
    // The last messages can be taken; then it has ended.
    assert_eq!(world.send(id, "more"), Sent::Dropped);
    assert_eq!(world.take(id).1, 3);
    world.turns();
    assert_eq!(world.worker.handler.closed, [(id, Closed::ByUs)]);
    // What cannot be given back counts as dropped.
    world.core().give_back(id, lines.as_bytes(), messages);
    let counters = world.core().counters();
    assert_eq!((counters.polled.get(), counters.polled_bytes.get()), (0, 0));
    assert_eq!((counters.dropped_gone.get(), counters.connections.get()), (4, 1));
}

#[test]
fn nobody_takes_the_last_messages_of_one_that_closes() {
    let limits = Limits { close_timeout: Duration::from_secs(5), ..Limits::default() };
    let mut world = World::new(limits);
    let (one, other) = (world.open(), world.open());
    world.send(one, "never taken");
    world.core().close(one, CloseCode::NORMAL, "");
    // Without messages it ends at once.
    world.core().close(other, CloseCode::NORMAL, "");
    world.turns();
    assert_eq!(world.worker.handler.closed, [(other, Closed::ByUs)]);
    world.kernel.advance(5_100_000_000);
    world.turns();
    assert_eq!(world.worker.handler.closed[1], (one, Closed::ByUs));
    let counters = world.core().counters();
    assert_eq!((counters.dropped_gone.get(), counters.queued_bytes.get()), (1, 0));
}

#[test]
fn a_full_queue_follows_the_policy_and_frees_what_it_held() {
    for policy in [SlowConsumer::Disconnect, SlowConsumer::DropOldest] {
        let mut world = World::new(Limits {
            send_queue_bytes: 1000,
            slow_consumer: policy,
            ..Limits::default()
        });
        let id = world.open();
        let frame = |n: u32| SharedFrame::new(format!("{n:099}\n").as_bytes(), 1);
        for n in 0..20 {
            world.core().send_shared(id, &frame(n));
        }
        world.turns();
        let dropped = world.core().counters().dropped_slow.get();
        if policy == SlowConsumer::Disconnect {
            assert_eq!(world.worker.handler.closed, [(id, Closed::SlowConsumer)]);
            assert_eq!(dropped + world.core().counters().dropped_gone.get(), 20);
        } else {
            let (lines, messages) = world.take(id);
            assert_eq!(u64::from(messages) + dropped, 20);
            assert!(lines.ends_with("0019\n") && lines.len() <= 1000, "{lines}");
        }
        let counters = world.core().counters();
        assert_eq!((counters.polled_bytes.get(), counters.queued_bytes.get()), (0, 0));
    }
}

#[test]
fn the_worker_the_process_and_the_address_admit_no_more_than_their_limits() {
    let refused = |world: &World, why: Refusal| {
        let counters = world.worker.core.counters();
        crate::Totals::sum([counters]).refused[why as usize]
    };
    // Five connections, one of which is the client's own.
    let mut world = World::new(Limits::default());
    let all: Vec<ConnId> = (0..4).map(|_| world.open()).collect();
    assert_eq!(world.try_open(), Err(Refusal::Connections));
    assert_eq!(refused(&world, Refusal::Connections), 1);
    world.core().abort(all[2]);
    world.turns();
    world.open();
    let mut world = World::new(Limits { polled_bytes: 3 * POLLED_BYTES, ..Limits::default() });
    let (one, _) = (world.open(), world.open());
    assert_eq!(world.try_open(), Err(Refusal::PolledBytes));
    assert_eq!(world.send(one, &"x".repeat(POLLED_BYTES - 1)), Sent::Sent);
    assert_eq!(world.send(one, ""), Sent::Dropped);
    world.turns();
    assert_eq!(world.worker.handler.closed, [(one, Closed::SlowConsumer)]);
    world.open();
    let admission = AdmissionLimits { per_address: Some(2), ..AdmissionLimits::default() };
    let mut world = World::new(Limits { admission, ..Limits::default() });
    let one = world.open();
    assert_eq!(world.try_open(), Err(Refusal::PerAddress));
    let info = world.core().info(one).unwrap();
    assert_eq!((info.peer, info.client.map(|it| it.is_loopback())), (None, Some(true)));
    world.core().reset(one);
    world.turns();
    world.open();
    world.core().remote().set_short_of_memory(true);
    assert_eq!(world.try_open(), Err(Refusal::MemoryLimit));
}

#[test]
fn a_request_that_waits_is_answered_at_once_unless_its_client_has_left() {
    let mut world = World::new(Limits::default());
    world.request("/wait");
    let request = world.worker.handler.waiting[0];
    // A further request on the connection is read after the answer.
    world.request("/open");
    assert_eq!((world.received(), world.worker.handler.opened.len()), (String::new(), 0));
    let response = Response::text(200, "lines\n");
    assert!(world.core().answer(request, &response));
    assert!(!world.core().answer(request, &response), "once");
    assert!(world.received().ends_with("\r\n\r\nlines\n"));
    world.turns();
    assert!(world.received().ends_with("\r\n\r\nopen\n"));
    world.request("/wait");
    let request = world.worker.handler.waiting[1];
    let fd = world.fd;
    world.outside.close(fd);
    world.turns();
    assert!(!world.core().answer(request, &response));
}

#[test]
fn a_drain_ends_it_and_others_do_not_wait_for_it() {
    let mut world = World::new(Limits::default());
    let id = world.open();
    world.send(id, "waits");
    world.core().remote().drain(Duration::ZERO);
    for _ in 0..8 {
        world.kernel.advance(1_000_000_000);
        world.turns();
    }
    assert!(world.worker.handler.closed.contains(&(id, Closed::Draining)));
    assert_eq!(world.core().connections(), 0);
}

#[test]
fn a_request_that_is_not_answered_in_time_is_504_and_a_late_answer_changes_nothing() {
    let mut world = World::new(Limits::default());
    world.request("/wait");
    let id = world.worker.handler.waiting[0];
    world.kernel.advance(61_000_000_000);
    world.turns();
    let answer = world.received();
    assert!(
        answer.starts_with("HTTP/1.1 504 ") && answer.contains("Connection: close"),
        "{answer}"
    );
    world.core().remote().answer(id, Answer::Respond(Response::text(200, "late\n")));
    assert!(!world.core().open_late(id, None, &[]));
    world.turns();
    // Our side has ended behind the answer, and the connection ends with the client's.
    assert_eq!(world.outside.recv(world.fd, &mut [0; 16]).unwrap(), 0);
    assert_eq!(world.worker.handler.closed, []);
    world.outside.shutdown_write(world.fd);
    world.turns();
    assert_eq!(world.worker.handler.closed, [(id, Closed::Refused)]);
    assert_eq!(world.core().connections(), 0);
}
