//! [`Control`]: the control plane as a scripted peer: it publishes, answers deferred requests, sends
//! to single connections and closes some, all through mailboxes.

use std::sync::Arc;

use engine::{Answer, Remote, Response};
use fastrand::Rng;
use topics::{Directory, Publication};
use wire::websocket::OpCode;

use super::envelope::{Envelope, Kind};
use super::ledger::{CONTROL, Ledger};
use super::scenario::Scenario;
use super::server::Post;

pub(crate) struct Control {
    ledger: Ledger,
    remote: Remote<Post>,
    directory: Directory,
    direct_sent: u32,
    pub(crate) due_ns: u64,
}

impl Control {
    pub(crate) fn new(ledger: Ledger, remote: Remote<Post>, directory: Directory) -> Self {
        Control { ledger, remote, directory, direct_sent: 0, due_ns: 0 }
    }

    pub(crate) fn step(&mut self, now_ns: u64, scenario: &Scenario, random: &mut Rng) {
        let calm = self.ledger.book().calm;
        self.due_ns = now_ns + random.u64(..3_000_000);
        match if calm { 0 } else { random.u8(..8) } {
            0 | 1 => self.settle(random, calm),
            2 => self.kick(random),
            3 | 4 => (0..scenario.burst / 5).for_each(|_| self.send_direct(random)),
            _ => {
                for _ in 0..random.u8(1..=scenario.burst) {
                    self.publish(random.u32(..scenario.topics));
                }
            }
        }
        if calm && self.ledger.book().later.is_empty() {
            self.due_ns = now_ns + 100_000_000;
        }
    }

    fn publish(&mut self, topic: u32) {
        let number = self.ledger.book().published(topic, CONTROL);
        let envelope = Envelope { kind: Kind::Publish, peer_id: CONTROL, number };
        // Some are longer than the shortest queues allow.
        let data = envelope.write(if number % 16 == 9 { 9000 } else { number as usize % 700 });
        let binary = envelope.opcode() == OpCode::Binary;
        let publication = Arc::new(Publication::new(topic.to_string().into(), data.into(), binary));
        if self.directory.publish(&self.remote, &publication).is_ok() {
            self.ledger.book().publishes(topic, CONTROL, number);
        }
    }

    /// Answers a request that was put off, in any order; some of them belong to the dead.
    fn settle(&mut self, random: &mut Rng, calm: bool) {
        let mut book = self.ledger.book();
        while !book.later.is_empty() {
            let at = random.usize(..book.later.len());
            let id = book.later.swap_remove(at);
            let answer = match random.u8(..8) {
                0 => Answer::Respond(Response::text(403, "no\n")),
                1 => Answer::Respond(Response::text(200, "no WebSocket here\n")),
                2..=4 => Answer::ByHandler,
                _ => Answer::Upgrade(None),
            };
            self.remote.answer(id, answer);
            if !calm {
                return;
            }
        }
    }

    /// To a connection that may be dead by now, and its slot another's.
    fn send_direct(&mut self, random: &mut Rng) {
        let mut book = self.ledger.book();
        if book.known.is_empty() {
            return;
        }
        let at = random.usize(..book.known.len());
        let Some(&(id, peer_id)) = book.known.get(at) else { return };
        self.direct_sent += 1;
        let envelope = Envelope { kind: Kind::Direct, peer_id, number: self.direct_sent };
        let worker = usize::from(id.worker());
        if self.remote.post(worker, Post::Direct(id, envelope), 64).is_ok() {
            book.posted += 1;
        }
    }

    fn kick(&mut self, random: &mut Rng) {
        let mut book = self.ledger.book();
        if book.known.is_empty() || random.u8(..4) > 0 {
            return;
        }
        let at = random.usize(..book.known.len());
        let Some(&(id, _)) = book.known.get(at) else { return };
        let worker = usize::from(id.worker());
        if self.remote.post(worker, Post::Kick(id, random.u8(..3)), 64).is_ok() {
            book.posted += 1;
        }
    }
}
