//! A fan-out through a server that drops, duplicates, reorders, corrupts and delays messages by a seeded
//! plan and counts its faults: the counts of the run must be the same.
//!
//! `STANDFAST_RECEIVERS=100000 cargo test --release -p standfast-load --test fanout -- --nocapture
//! faults_of_a_server` does it with that many receivers; it takes a minute and a gigabyte. With
//! `STANDFAST_RESULT=FILE` it writes what both sides counted.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::sys::process;
use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Remote, Response, Sys, Tables,
    Workers,
};
use load::{Config, Endpoint, Fanout, Outcome, Publish, publication};
use wire::websocket::OpCode;

/// The timing of the run and of the server's delays: a delay must be shorter than 64 publications, and
/// messages without a delay must not be late on a slow machine. The run must not end before delayed
/// messages arrive: it waits `late_after` from one receipt to the next.
struct Timing {
    publishers: u32,
    rate: u64,
    /// Of all publishers.
    messages: u32,
    late_after: Duration,
    delay: Duration,
}

const FEW: Timing = Timing {
    publishers: 4,
    rate: 24,
    messages: 192,
    late_after: Duration::from_secs(5),
    delay: Duration::from_millis(6_500),
};
const MANY: Timing = Timing {
    publishers: 3,
    rate: 1,
    messages: 24,
    late_after: Duration::from_secs(12),
    delay: Duration::from_secs(15),
};

#[test]
fn faults_of_a_server_are_counted_exactly() {
    let receivers = std::env::var("STANDFAST_RECEIVERS").ok().and_then(|n| n.parse().ok());
    let receivers: u64 = receivers.unwrap_or(500);
    let timing = if receivers > 5_000 { MANY } else { FEW };
    let (port, done, _server) = start(receivers, timing.delay);
    let summary = drive(&config(port, receivers, &timing));
    let said = summary.broadcast.as_ref().unwrap();
    let did = |count: &AtomicU64| count.load(Ordering::SeqCst);
    let fanout = said.fanout.as_ref().unwrap();
    println!("{receivers} receivers, the server did {}\n{said}", did_json(&done));
    assert_eq!((said.published, said.receivers), (u64::from(timing.messages), receivers));
    assert_eq!(said.expected, receivers * u64::from(timing.messages));
    for count in [&done.dropped, &done.doubled, &done.swapped, &done.corrupted, &done.delayed] {
        assert!(did(count) > 0, "each fault occurred");
    }
    // A corrupted message also counts as lost.
    assert_eq!(said.lost, did(&done.dropped) + did(&done.corrupted));
    assert_eq!(said.received, said.expected - said.lost);
    assert_eq!(said.duplicated, did(&done.doubled));
    assert_eq!(said.corrupted, did(&done.corrupted));
    assert_eq!(said.reordered, did(&done.swapped) + did(&done.delayed));
    assert_eq!(said.late, did(&done.delayed));
    assert_eq!((said.stale, said.foreign), (0, 0));
    assert!(fanout.receivers_short > 0 && fanout.worst.len() == 10, "{fanout:?}");
    assert!(fanout.worst.iter().all(|worst| worst.lost >= 1), "{fanout:?}");
    assert_eq!(fanout.worst[0].received + fanout.worst[0].lost, u64::from(timing.messages));
    // The server also knows the worst receivers; among equals the run may list any.
    let mut lost: Vec<u64> = done.lost.lock().unwrap().values().copied().collect();
    lost.sort_unstable_by(|one, other| other.cmp(one));
    let named: Vec<u64> = fanout.worst.iter().map(|worst| worst.lost).collect();
    assert_eq!(named, lost[..10]);
    assert_eq!(fanout.receivers_short, lost.len() as u64);
    assert!(fanout.worst.iter().all(|worst| worst.connection < receivers));
    assert_eq!(fanout.publishers, timing.publishers);
    let last = said.times.to_last.as_ref().unwrap();
    assert!(last.max_ms > timing.delay.as_secs_f64() * 900.0, "the delays are the last: {last:?}");
    assert_eq!((last.count, said.times.untimed), (u64::from(timing.messages), 0));
    assert!(!summary.held && summary.reasons.len() == 5, "{:?}", summary.reasons);
    if let Ok(file) = std::env::var("STANDFAST_RESULT") {
        let result = serde_json::json!({ "server_did": did_json(&done), "load_said": summary });
        std::fs::write(file, format!("{result:#}\n")).unwrap();
    }
}

fn did_json(done: &Done) -> serde_json::Value {
    let did = |count: &AtomicU64| count.load(Ordering::SeqCst);
    serde_json::json!({
        "dropped": did(&done.dropped),
        "doubled": did(&done.doubled),
        "swapped": did(&done.swapped),
        "corrupted": did(&done.corrupted),
        "delayed": did(&done.delayed),
        "receivers_short": done.lost.lock().unwrap().len(),
    })
}

fn config(port: u16, connections: u64, timing: &Timing) -> Config {
    let Timing { publishers, rate, messages, late_after, .. } = *timing;
    let endpoint = Endpoint::parse(&format!("ws://127.0.0.1:{port}/")).unwrap();
    let fanout = Fanout {
        rate,
        publishers,
        messages: Some(messages),
        duration: None,
        size: 100,
        late_after,
        publish: Publish::Socket,
    };
    Config {
        connect_timeout: Duration::from_secs(60),
        fanout: Some(fanout),
        ..Config::new(vec![endpoint], connections)
    }
}

fn drive(config: &Config) -> Outcome {
    let wait = |time| {
        std::thread::sleep(time);
        false
    };
    load::drive(config, |_| {}, wait).unwrap()
}

/// The faults of the server.
#[derive(Default)]
struct Done {
    dropped: AtomicU64,
    doubled: AtomicU64,
    swapped: AtomicU64,
    corrupted: AtomicU64,
    delayed: AtomicU64,
    /// Messages dropped or corrupted, by worker and slot.
    lost: Mutex<HashMap<(u16, u32), u64>>,
}

fn start(receivers: u64, delay: Duration) -> (u16, Arc<Done>, Workers<Arc<[u8]>>) {
    let host = capacity::Machine::read();
    let nofile = capacity::raise_nofile().unwrap();
    let plan = Plan::new(receivers + 1_000, host.cores, nofile, 0, Tables::Private);
    let address = ([127, 0, 0, 1], 0).into();
    let defer = Duration::ZERO;
    let listen =
        process::Listen { address, backlog: 4_096, shared_port: false, defer, v6_only: false };
    let (listener, address) = process::listen(&listen).unwrap();
    let done = Arc::new(Done::default());
    let counts = Arc::clone(&done);
    let faulty = move |worker, remote: &Remote<Arc<[u8]>>| Faulty {
        worker,
        remote: remote.clone(),
        done: Arc::clone(&counts),
        delay_ns: delay.as_nanos() as u64,
        delayed: VecDeque::new(),
    };
    let limits = Limits { idle_timeout: None, ..Limits::default() };
    let workers = Workers::start(plan, &limits, &[listener], faulty).unwrap();
    (address.port(), done, workers)
}

/// Broadcasts every message to all, with faults.
struct Faulty {
    worker: u16,
    remote: Remote<Arc<[u8]>>,
    done: Arc<Done>,
    delay_ns: u64,
    delayed: VecDeque<(u64, ConnId, Arc<[u8]>)>,
}

enum Fault {
    None,
    Drop,
    Double,
    Swap,
    Corrupt,
    Delay,
}

impl Faulty {
    /// Each eighth publication of a publisher has faults, which differ by receiver.
    fn fault(&self, slot: u32, publisher: u32, sequence: u32) -> Fault {
        if sequence % 8 != 3 {
            return Fault::None;
        }
        let receiver = u64::from(self.worker) << 20 | u64::from(slot);
        let mut hash = receiver << 28 | u64::from(publisher) << 20 | u64::from(sequence);
        for _ in 0..3 {
            hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        }
        match hash >> 40 & 0x7 {
            0 => Fault::Drop,
            1 => Fault::Double,
            2 => Fault::Swap,
            3 => Fault::Corrupt,
            4 => Fault::Delay,
            _ => Fault::None,
        }
    }
}

impl Handler for Faulty {
    /// Messages held back until after the next of their publisher, with the publisher.
    type User = Vec<(u32, Arc<[u8]>)>;
    type Post = Arc<[u8]>;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, incoming: &Incoming) -> Answer {
        match incoming.head.target {
            "/" => Answer::Upgrade(None),
            _ => Answer::Respond(Response::text(404, "no such path\n")),
        }
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, core: &mut Core<S, Self>, _: ConnId, _: OpCode, data: &mut [u8]) {
        let data: Arc<[u8]> = Arc::from(&*data);
        for worker in (0..self.remote.workers()).filter(|&to| to != usize::from(self.worker)) {
            let _ = self.remote.post(worker, Arc::clone(&data), data.len());
        }
        self.post(core, data);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, data: Arc<[u8]>) {
        let publication::Publication { publisher, sequence, .. } =
            publication::parse(&data).expect("a publication of the run");
        let count = |count: &AtomicU64| count.fetch_add(1, Ordering::SeqCst);
        let lose =
            |slot| *self.done.lost.lock().unwrap().entry((self.worker, slot)).or_default() += 1;
        for slot in 0..core.slots() {
            let Some(id) = core.id_at(slot).filter(|&id| core.is_open(id)) else { continue };
            match self.fault(slot, publisher, sequence) {
                Fault::None => drop(core.send(id, OpCode::Text, &data)),
                Fault::Drop => {
                    count(&self.done.dropped);
                    lose(slot);
                }
                Fault::Double => {
                    count(&self.done.doubled);
                    core.send(id, OpCode::Text, &data);
                    core.send(id, OpCode::Text, &data);
                }
                Fault::Swap => {
                    count(&self.done.swapped);
                    if let Some(held) = core.user_at(slot) {
                        held.push((publisher, Arc::clone(&data)));
                    }
                    continue;
                }
                Fault::Corrupt => {
                    count(&self.done.corrupted);
                    lose(slot);
                    let mut changed = data.to_vec();
                    changed[20] ^= 1;
                    core.send(id, OpCode::Text, &changed);
                }
                Fault::Delay => {
                    count(&self.done.delayed);
                    let due_ns = core.clock_ns() + self.delay_ns;
                    self.delayed.push_back((due_ns, id, Arc::clone(&data)));
                }
            }
            let Some(held) = core.user_at(slot) else { continue };
            let Some(at) = held.iter().position(|(owner, _)| *owner == publisher) else { continue };
            let (_, held) = held.swap_remove(at);
            core.send(id, OpCode::Text, &held);
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        while let Some((due_ns, id, data)) = self.delayed.pop_front() {
            if due_ns > core.now_ns() {
                self.delayed.push_front((due_ns, id, data));
                return Some(due_ns);
            }
            core.send(id, OpCode::Text, &data);
        }
        None
    }
}
