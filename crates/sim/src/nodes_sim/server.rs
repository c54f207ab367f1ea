//! [`Server`]: a model of Redis' publish and subscribe, which holds for NATS' core, too.
//!
//! What it does is what redis-server 7.0 does (`src/pubsub.c`, `src/networking.c`) and the tests of several nodes
//! see of the real one: commands of one connection are executed in their order, each at once for all subscribers;
//! a subscriber's stream has the confirmation of a channel before its messages, and messages in the order in which
//! they were published; nothing is kept for who is not subscribed; PUBLISH is answered with the number of
//! connections that got it; a connection whose output is longer than `client-output-buffer-limit pubsub` is
//! closed, and what it was not sent is lost; a restart forgets all. A link is two connections, as
//! `brokers/src/redis.rs` opens them: what goes over one may overtake what goes over the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use brokers::envelope::Envelope;
use brokers::{Channel, Outgoing};

use super::ledger::Ledger;
use super::pubsub::topic_of;
use crate::ledger::Judge;

/// One direction of a connection: what arrives when, in order.
pub(crate) struct Pipe<T> {
    items: VecDeque<(u64, T)>,
    last_ns: u64,
}

impl<T> Default for Pipe<T> {
    fn default() -> Self {
        Pipe { items: VecDeque::new(), last_ns: 0 }
    }
}

impl<T> Pipe<T> {
    pub(crate) fn push(&mut self, at_ns: u64, item: T) {
        self.last_ns = self.last_ns.max(at_ns);
        self.items.push_back((self.last_ns, item));
    }

    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<T> {
        let due = self.items.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns);
        if due { self.items.pop_front().map(|(_, item)| item) } else { None }
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.items.front().map(|(at_ns, _)| *at_ns)
    }
}

pub(crate) enum Command {
    Subscribe(Vec<Channel>),
    Unsubscribe(Vec<Channel>),
}

/// What a subscriber's connection gets.
pub(crate) enum Push {
    /// The last command is executed.
    Done,
    Message(Channel, Rc<[u8]>),
}

/// The two connections of a node.
#[derive(Default)]
pub(crate) struct Link {
    publisher: Pipe<Vec<Outgoing>>,
    subscriber: Pipe<Command>,
    pub(crate) replies: Pipe<Vec<u64>>,
    pub(crate) pushes: Pipe<Push>,
    pushed_bytes: usize,
    /// How long each direction takes, and messages in addition.
    delay_ns: u64,
    pub(crate) slow_ns: u64,
    /// Since when what is sent is lost, without an end of the connection.
    pub(crate) swallows_ns: Option<u64>,
    /// When the node notices that it has ended.
    pub(crate) ended_ns: Option<u64>,
}

/// What a server has done since its counters were reset.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) commands: u64,
    pub(crate) bytes_in: u64,
    pub(crate) publications: u64,
    pub(crate) beacons: u64,
    pub(crate) alive: u64,
    /// Publications to nodes that are subscribed, and all messages.
    pub(crate) passed: u64,
    pub(crate) messages: u64,
    pub(crate) bytes_out: u64,
}

pub(crate) struct Server {
    ledger: Ledger,
    output_bytes: usize,
    /// It is away until then.
    pub(crate) away_ns: u64,
    channels: BTreeMap<Channel, BTreeSet<usize>>,
    pub(crate) links: BTreeMap<usize, Link>,
    pub(crate) counts: Counts,
}

impl Server {
    pub(crate) fn new(ledger: Ledger, output_bytes: usize) -> Self {
        Server {
            ledger,
            output_bytes,
            away_ns: 0,
            channels: BTreeMap::new(),
            links: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// A node connects. False if the server is away.
    pub(crate) fn connect(&mut self, now_ns: u64, node: usize, delay_ns: u64) -> bool {
        if now_ns < self.away_ns {
            return false;
        }
        self.end(now_ns, node);
        self.links.insert(node, Link { delay_ns, ..Link::default() });
        true
    }

    /// A connection ends: what was on its way is lost in both directions.
    pub(crate) fn end(&mut self, now_ns: u64, node: usize) {
        self.channels.retain(|_, subscribed| {
            subscribed.remove(&node);
            !subscribed.is_empty()
        });
        if let Some(link) = self.links.get_mut(&node) {
            let ended_ns = Some(now_ns + link.delay_ns);
            *link = Link { ended_ns, delay_ns: link.delay_ns, ..Link::default() };
        }
    }

    pub(crate) fn restart(&mut self, now_ns: u64, away_ns: u64) {
        self.away_ns = now_ns + away_ns;
        let nodes: Vec<usize> = self.links.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.end(now_ns, node));
    }

    pub(crate) fn publish(&mut self, now_ns: u64, node: usize, batch: Vec<Outgoing>) {
        let link = self
            .links
            .get_mut(&node)
            .filter(|link| link.swallows_ns.is_none() && link.ended_ns.is_none());
        if let Some(link) = link {
            link.publisher.push(now_ns + link.delay_ns, batch);
        }
    }

    pub(crate) fn command(&mut self, now_ns: u64, node: usize, command: Command) {
        let link = self
            .links
            .get_mut(&node)
            .filter(|link| link.swallows_ns.is_none() && link.ended_ns.is_none());
        if let Some(link) = link {
            link.subscriber.push(now_ns + link.delay_ns, command);
        }
    }

    /// The node has read a message.
    pub(crate) fn read(link: &mut Link, bytes: usize) {
        link.pushed_bytes = link.pushed_bytes.saturating_sub(bytes);
    }

    /// Executes the commands that have arrived, in the order of their arrival.
    pub(crate) fn step(&mut self, now_ns: u64) -> bool {
        let mut acted = false;
        while let Some((at_ns, node, publishes)) = self.first() {
            if at_ns > now_ns {
                break;
            }
            acted = true;
            if publishes {
                self.take_batch(at_ns, node);
            } else {
                self.take_command(at_ns, node);
            }
        }
        acted
    }

    /// When the next command arrives, of which node, and whether it is a batch of publications.
    fn first(&self) -> Option<(u64, usize, bool)> {
        let of = |(node, link): (&usize, &Link)| {
            let publisher = link.publisher.next_ns().map(|at_ns| (at_ns, *node, true));
            let subscriber = link.subscriber.next_ns().map(|at_ns| (at_ns, *node, false));
            publisher.into_iter().chain(subscriber).min()
        };
        self.links.iter().filter_map(of).min()
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.first().map(|(at_ns, ..)| at_ns)
    }

    fn take_batch(&mut self, now_ns: u64, node: usize) {
        let batch = self.links.get_mut(&node).and_then(|link| link.publisher.pop(now_ns));
        let mut reached = Vec::new();
        for Outgoing { channel, body, .. } in batch.unwrap_or_default() {
            self.count(&channel, &body);
            let body: Rc<[u8]> = body.into();
            let to: Vec<usize> =
                self.channels.get(&channel).into_iter().flatten().copied().collect();
            reached.push(to.len() as u64);
            for node in to {
                self.pass(now_ns, node, &channel, &body);
            }
        }
        if let Some(link) = self.links.get_mut(&node) {
            link.replies.push(now_ns + link.delay_ns, reached);
        }
    }

    fn count(&mut self, channel: &Channel, body: &[u8]) {
        let subscribed = self.channels.get(channel).map_or(0, BTreeSet::len) as u64;
        self.counts.commands += 1;
        self.counts.bytes_in += publish_bytes(channel, body) as u64;
        match Envelope::decode(body) {
            Ok(Envelope::Publication(message)) => {
                self.counts.publications += 1;
                self.counts.passed += subscribed;
                if let Some(topic) = topic_of(channel) {
                    self.ledger.book().passed(topic, message.data);
                }
            }
            Ok(Envelope::Beacon { .. }) => self.counts.beacons += 1,
            Ok(Envelope::Alive { .. }) => self.counts.alive += 1,
            other => self.ledger.book().fail(format!("a server was sent {other:?}")),
        }
    }

    fn pass(&mut self, now_ns: u64, node: usize, channel: &Channel, body: &Rc<[u8]>) {
        let Some(link) = self.links.get_mut(&node) else { return };
        let bytes = message_bytes(channel, body);
        // One that reads at once has nothing waiting: a server reads 16 KiB of each connection, and then writes.
        if link.slow_ns > 0 {
            link.pushed_bytes += bytes;
        }
        if link.pushed_bytes > self.output_bytes {
            return self.end(now_ns, node);
        }
        self.counts.messages += 1;
        self.counts.bytes_out += bytes as u64;
        if link.swallows_ns.is_none() {
            let at_ns = now_ns + link.delay_ns + link.slow_ns;
            link.pushes.push(at_ns, Push::Message(Channel::clone(channel), Rc::clone(body)));
        }
    }

    fn take_command(&mut self, now_ns: u64, node: usize) {
        let command = self.links.get_mut(&node).and_then(|link| link.subscriber.pop(now_ns));
        self.counts.commands += 1;
        match command {
            Some(Command::Subscribe(channels)) => {
                for channel in channels {
                    self.channels.entry(channel).or_default().insert(node);
                }
            }
            Some(Command::Unsubscribe(channels)) => {
                for channel in channels {
                    let Some(subscribed) = self.channels.get_mut(&channel) else { continue };
                    subscribed.remove(&node);
                    if subscribed.is_empty() {
                        self.channels.remove(&channel);
                    }
                }
            }
            None => {}
        }
        if let Some(link) = self.links.get_mut(&node).filter(|link| link.swallows_ns.is_none()) {
            let at_ns = now_ns + link.delay_ns + link.slow_ns;
            link.pushes.push(at_ns, Push::Done);
        }
    }

    /// The channels that a node is subscribed to.
    pub(crate) fn channels_of(&self, node: usize) -> Vec<Channel> {
        let own = self.channels.iter().filter(|(_, subscribed)| subscribed.contains(&node));
        own.map(|(channel, _)| Channel::clone(channel)).collect()
    }

    /// Subscriptions of all nodes.
    pub(crate) fn subscriptions(&self) -> usize {
        self.channels.values().map(BTreeSet::len).sum()
    }
}

/// Bytes of a message in RESP3: `>3 message CHANNEL BODY`.
pub(crate) fn message_bytes(channel: &str, body: &[u8]) -> usize {
    "$7\r\nmessage\r\n".len() + 4 + bulk(channel.len()) + bulk(body.len())
}

/// Bytes of a PUBLISH.
fn publish_bytes(channel: &str, body: &[u8]) -> usize {
    "$7\r\nPUBLISH\r\n".len() + 4 + bulk(channel.len()) + bulk(body.len())
}

fn bulk(bytes: usize) -> usize {
    bytes + 5 + bytes.max(1).ilog10() as usize + 1
}
