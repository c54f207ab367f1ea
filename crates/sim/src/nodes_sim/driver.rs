//! [`Driver`]: one connection of a node, as `brokers/src/driver` runs it: it connects, subscribes in batches,
//! publishes a batch when the one before is answered, delivers in order, and begins again when the connection ends.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use brokers::envelope::{Envelope, Except, Message, NodeId, Sequence};
use brokers::gaps::{Observed, Received, Sequences};
use brokers::limits::{ALIVE_INTERVAL, BEACON_NS, LAST_DELIVERIES};
use brokers::{Channel, GapCause, Outgoing};
use engine::Remote;
use fastrand::Rng;
use topics::{Directory, Publication, Refused};

use super::ledger::Ledger;
use super::node::Post;
use super::pubsub::{Pubsub, Queued, topic_of};
use super::scenario::Scenario;
use super::server::{Command, Push, Server, message_bytes};
use crate::ledger::Judge;

const MS: u64 = 1_000_000;
/// As `limits::DELIVERY_PAUSE` and `limits::DELIVERY_NS`.
const PAUSE_NS: u64 = 2 * MS;
const DELIVERY_NS: u64 = 2_000 * MS;
/// After so long without answers a connection is given up: a ping every 2 s, and 5 s for its answer.
const SILENT_NS: u64 = 7_000 * MS;

/// What the program is told, again until it takes it.
enum Tell {
    Gap(VecDeque<u32>),
    Publication { topic: u32, data: Rc<[u8]>, until_ns: u64 },
    Confirmed(Vec<Channel>),
}

/// Tells that wait, and when to try again.
#[derive(Default)]
struct Lane {
    tells: VecDeque<Tell>,
    again_ns: u64,
}

/// A batch on its way, with the numbers of its publications.
struct InFlight {
    batch: Vec<Outgoing>,
    numbers: Vec<Sequence>,
}

/// The part of a node that workers do not see.
pub(crate) struct Driver {
    ledger: Ledger,
    node: usize,
    id: NodeId,
    /// Which server.
    at: usize,
    pubsub: Pubsub,
    directory: Directory,
    remote: Remote<Post>,
    scenario: Scenario,
    sequences: Sequences,
    received: Received,
    connected: bool,
    /// When the connection ended, while what had arrived is still delivered.
    ended_ns: Option<u64>,
    retry_ns: u64,
    /// What the server is asked to do with subscriptions.
    asked: Option<Vec<Channel>>,
    /// Channels of before the connection that are not asked for again.
    left: usize,
    in_flight: Option<InFlight>,
    resend: VecDeque<(Outgoing, Sequence)>,
    inbox: VecDeque<(Channel, Rc<[u8]>)>,
    inbox_bytes: usize,
    deliver: Lane,
    confirm: Lane,
    alive_ns: u64,
}

/// What a driver shares with the workers of its node.
pub(crate) struct Wiring {
    pub(crate) pubsub: Pubsub,
    pub(crate) directory: Directory,
    pub(crate) remote: Remote<Post>,
}

impl Driver {
    pub(crate) fn new(
        ledger: &Ledger,
        node: usize,
        at: usize,
        wiring: &Wiring,
        scenario: &Scenario,
        starts_ns: u64,
    ) -> Self {
        Driver {
            ledger: ledger.clone(),
            node,
            id: NodeId(node as u64 + 1),
            at,
            pubsub: wiring.pubsub.clone(),
            directory: wiring.directory.clone(),
            remote: wiring.remote.clone(),
            scenario: scenario.clone(),
            sequences: Sequences::new(BEACON_NS, scenario.sent_max),
            received: Received::new(scenario.received_max),
            connected: false,
            ended_ns: None,
            retry_ns: starts_ns,
            asked: None,
            left: 0,
            in_flight: None,
            resend: VecDeque::new(),
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            deliver: Lane::default(),
            confirm: Lane::default(),
            alive_ns: 0,
        }
    }

    /// Does what is due; whether there was anything.
    pub(crate) fn step(&mut self, now_ns: u64, server: &mut Server, random: &mut Rng) -> bool {
        if self.pubsub.is_dead() {
            let there = std::mem::take(&mut self.connected);
            if there {
                server.end(now_ns, self.node);
                server.links.remove(&self.node);
            }
            return there;
        }
        if !self.connected {
            return self.connect(now_ns, server, random);
        }
        if ends_ns(self.node, server).is_some_and(|at_ns| at_ns <= now_ns) {
            server.end(now_ns, self.node);
            server.links.remove(&self.node);
            self.ended_ns = Some(now_ns);
        }
        if let Some(since_ns) = self.ended_ns {
            let acted = self.deliver(now_ns);
            let left = !self.inbox.is_empty() || !self.deliver.tells.is_empty();
            if left && now_ns < since_ns + LAST_DELIVERIES.as_nanos() as u64 {
                return acted;
            }
            self.disconnected();
            self.retry_ns = now_ns + random.u64(..50 * MS);
            return true;
        }
        let mut acted = self.receive(now_ns, server);
        acted |= self.subscribe(now_ns, server);
        acted |= self.deliver(now_ns);
        acted | self.publish(now_ns, server)
    }

    fn connect(&mut self, now_ns: u64, server: &mut Server, random: &mut Rng) -> bool {
        if now_ns < self.retry_ns {
            return false;
        }
        let delay_ns = random.u64(1_000..=self.scenario.latency_ns.max(1_001));
        self.connected = server.connect(now_ns, self.node, delay_ns);
        if !self.connected {
            self.retry_ns = now_ns + random.u64(1..500 * MS);
        }
        self.left = self.pubsub.shard(self.at).interest.len();
        self.alive_ns = now_ns;
        true
    }

    /// All parts of the connection are dropped where they are.
    fn disconnected(&mut self) {
        if let Some(InFlight { batch, numbers }) = self.in_flight.take() {
            self.resend.extend(batch.into_iter().zip(numbers));
        }
        (self.connected, self.ended_ns, self.asked) = (false, None, None);
        (self.deliver, self.confirm) = Default::default();
        (self.inbox, self.inbox_bytes) = Default::default();
        let mut inner = self.pubsub.shard(self.at);
        inner.interest.disconnected();
        inner.is_up = false;
    }

    fn receive(&mut self, now_ns: u64, server: &mut Server) -> bool {
        let mut acted = false;
        let Some(link) = server.links.get_mut(&self.node) else { return false };
        while let Some(reached) = link.replies.pop(now_ns) {
            acted = true;
            let Some(InFlight { batch, numbers }) = self.in_flight.take() else { continue };
            for ((outgoing, at), reached) in batch.iter().zip(numbers).zip(reached) {
                self.sequences.published(&outgoing.channel, at, Some(reached));
            }
        }
        let mut done = Vec::new();
        while let Some(push) = link.pushes.pop(now_ns) {
            acted = true;
            match push {
                Push::Done => done.extend(self.asked.take()),
                Push::Message(channel, body) => {
                    let bytes = message_bytes(&channel, &body);
                    Server::read(link, bytes);
                    if self.inbox_bytes + bytes > self.scenario.inbox_bytes {
                        dropped(&self.ledger, self.node, &channel, &body);
                    } else {
                        self.inbox_bytes += bytes;
                        self.inbox.push_back((channel, body));
                    }
                }
            }
        }
        for channels in done {
            self.confirmed(&channels);
        }
        acted
    }

    /// The server has executed a command; those of UNSUBSCRIBE name nothing.
    fn confirmed(&mut self, channels: &[Channel]) {
        let generation = self.received.generation();
        let confirmed = self.pubsub.shard(self.at).interest.confirm(channels, generation);
        let missed = confirmed.iter().filter(|one| one.missed);
        let missed: VecDeque<u32> = missed.filter_map(|one| topic_of(&one.channel)).collect();
        self.gap(GapCause::Reconnected, missed, false);
        let awaited = confirmed.into_iter().filter(|one| one.awaited).map(|one| one.channel);
        let awaited: Vec<Channel> = awaited.filter(|one| topic_of(one).is_some()).collect();
        if !awaited.is_empty() {
            self.confirm.tells.push_back(Tell::Confirmed(awaited));
        }
    }

    /// Tells that something may be missing, before all that is delivered later.
    fn gap(&mut self, cause: GapCause, topics: VecDeque<u32>, delivers: bool) {
        if topics.is_empty() {
            return;
        }
        if let Some(count) = self.ledger.book().coverage.gaps.get_mut(cause as usize) {
            *count += topics.len() as u64;
        }
        let lane = if delivers { &mut self.deliver } else { &mut self.confirm };
        lane.tells.push_back(Tell::Gap(topics));
    }

    fn subscribe(&mut self, now_ns: u64, server: &mut Server) -> bool {
        let mut acted = self.tell(now_ns, true);
        if self.asked.is_some() || !self.confirm.tells.is_empty() {
            return acted;
        }
        let mut inner = self.pubsub.shard(self.at);
        let unwanted = inner.interest.take_unwanted(now_ns);
        inner.interest.take_gone();
        if !unwanted.is_empty() {
            drop(inner);
            server.command(now_ns, self.node, Command::Unsubscribe(unwanted));
            // Confirming nothing.
            self.asked = Some(Vec::new());
            return true;
        }
        let wanted = inner.interest.take_wanted();
        self.left = if wanted.is_empty() { 0 } else { self.left.saturating_sub(wanted.len()) };
        let may_be_up = wanted.is_empty() && self.left == 0;
        if may_be_up && !inner.is_up {
            (inner.is_up, acted) = (true, true);
        }
        drop(inner);
        if !wanted.is_empty() {
            acted = true;
            server.command(now_ns, self.node, Command::Subscribe(wanted.clone()));
            self.asked = Some(wanted);
        }
        acted
    }

    fn deliver(&mut self, now_ns: u64) -> bool {
        let mut acted = self.tell(now_ns, false);
        while self.deliver.tells.is_empty() {
            let Some((channel, body)) = self.inbox.pop_front() else { break };
            self.inbox_bytes -= message_bytes(&channel, &body);
            self.arrived(now_ns, &channel, &body);
            self.tell(now_ns, false);
            acted = true;
        }
        acted
    }

    fn arrived(&mut self, now_ns: u64, channel: &Channel, body: &Rc<[u8]>) {
        let found = self.pubsub.shard(self.at).interest.get(channel);
        let Some(subscribed) = found else { return };
        let (id, generation) = (subscribed.id, subscribed.generation);
        let Ok(envelope) = Envelope::decode(body) else { return };
        let topic = topic_of(channel);
        let (seen, data) = match envelope {
            Envelope::Publication(message) => {
                let (node, at) = (message.node, message.at);
                (self.received.publication(id, generation, node, at), Some(message.data))
            }
            Envelope::Beacon { node, newest } => {
                (self.received.beacon(id, generation, node, newest), None)
            }
            Envelope::Command { .. } | Envelope::Alive { .. } => return,
        };
        if let Observed::Gap(_) = seen {
            self.gap(GapCause::Missing, topic.into_iter().collect(), true);
        }
        if seen == Observed::Repeated {
            self.ledger.book().coverage.repeated += 1;
            return;
        }
        if let (Some(topic), Some(data)) = (topic, data) {
            let until_ns = now_ns + DELIVERY_NS;
            let data = data.into();
            self.deliver.tells.push_back(Tell::Publication { topic, data, until_ns });
        }
    }

    /// Tells what waits in a lane, as far as it is taken.
    fn tell(&mut self, now_ns: u64, confirms: bool) -> bool {
        let lane = if confirms { &mut self.confirm } else { &mut self.deliver };
        if now_ns < lane.again_ns {
            return false;
        }
        let mut acted = false;
        while let Some(tell) = lane.tells.front_mut() {
            acted = true;
            let mut overloaded = None;
            let is_told = match tell {
                Tell::Gap(topics) => {
                    while let Some(topic) = topics.front() {
                        let told = format!("{now_ns:016x}").into_bytes();
                        let mut notice = publication(*topic, &told);
                        (notice.gap, notice.transient) = (true, true);
                        if self.directory.publish(&self.remote, &Arc::new(notice)).is_err() {
                            break;
                        }
                        topics.pop_front();
                    }
                    topics.is_empty()
                }
                Tell::Publication { topic, data, until_ns } => {
                    let publication = Arc::new(publication(*topic, data));
                    match self.directory.publish(&self.remote, &publication) {
                        Ok(_) => true,
                        Err(Refused::MailboxFull) if now_ns < *until_ns => false,
                        Err(_) => {
                            overloaded = Some(*topic);
                            true
                        }
                    }
                }
                Tell::Confirmed(channels) => {
                    let posted = post_confirmed(&self.remote, channels);
                    if posted {
                        self.pubsub.shard(self.at).interest.told(channels);
                    }
                    posted
                }
            };
            if !is_told {
                lane.again_ns = now_ns + PAUSE_NS;
                return true;
            }
            lane.tells.pop_front();
            if let Some(topic) = overloaded {
                self.ledger.book().coverage.gaps[GapCause::Overloaded as usize] += 1;
                lane.tells.push_front(Tell::Gap(VecDeque::from([topic])));
            }
        }
        acted
    }

    fn publish(&mut self, now_ns: u64, server: &mut Server) -> bool {
        if self.in_flight.is_some() {
            return false;
        }
        let mut inner = self.pubsub.shard(self.at);
        if !inner.is_up {
            return false;
        }
        let (mut batch, mut numbers) = (Vec::new(), Vec::new());
        while batch.len() < self.scenario.batch {
            let Some((outgoing, at)) = self.resend.pop_front() else { break };
            batch.push(outgoing);
            numbers.push(at);
        }
        while batch.len() < self.scenario.batch {
            let Some(Queued { channel, data }) = inner.queue.pop_front() else { break };
            inner.queue_bytes -= data.len();
            let at = self.sequences.next(now_ns, &channel);
            let (node, except) = (self.id, Except::None);
            let (binary, transient, kind) = (false, false, None);
            let message = Message { node, at, binary, transient, except, kind, data: &data };
            batch.push(outgoing(channel, Envelope::Publication(message).encode()));
            numbers.push(at);
        }
        drop(inner);
        let most = self.scenario.batch.saturating_sub(batch.len()).max(1);
        for beacon in self.sequences.take_due(now_ns, most) {
            let body = Envelope::Beacon { node: self.id, newest: beacon.newest }.encode();
            batch.push(outgoing(beacon.channel, body));
        }
        if self.pubsub.has_control(self.at) && now_ns >= self.alive_ns {
            self.alive_ns = now_ns + ALIVE_INTERVAL.as_nanos() as u64;
            let name = format!("node-{:03}", self.node);
            let body = Envelope::Alive { node: self.id, name: &name }.encode();
            batch.push(outgoing(super::pubsub::CONTROL.into(), body));
        }
        if batch.is_empty() {
            return false;
        }
        server.publish(now_ns, self.node, batch.clone());
        self.in_flight = Some(InFlight { batch, numbers });
        true
    }

    /// When there is something to do even if nothing happens.
    pub(crate) fn next_ns(&self, server: &Server) -> Option<u64> {
        if self.pubsub.is_dead() {
            return self.connected.then_some(0);
        }
        if !self.connected {
            return Some(self.retry_ns);
        }
        if let Some(since_ns) = self.ended_ns {
            let again_ns = if self.deliver.tells.is_empty() { 0 } else { self.deliver.again_ns };
            return Some(again_ns.min(since_ns + LAST_DELIVERIES.as_nanos() as u64));
        }
        let link = server.links.get(&self.node);
        let arrivals = link.map(|link| [link.replies.next_ns(), link.pushes.next_ns()]);
        let mut times: Vec<u64> = arrivals.into_iter().flatten().flatten().collect();
        times.extend(ends_ns(self.node, server));
        for lane in [&self.deliver, &self.confirm] {
            times.extend((!lane.tells.is_empty()).then_some(lane.again_ns));
        }
        let inner = self.pubsub.shard(self.at);
        if self.asked.is_none() && self.confirm.tells.is_empty() {
            times.extend(inner.interest.due_ns());
            // Without anything to ask for it is up at once.
            times.extend((!inner.is_up).then_some(0));
        }
        if self.in_flight.is_none() && inner.is_up {
            times.extend(self.sequences.due_ns());
            times.extend(self.pubsub.has_control(self.at).then_some(self.alive_ns));
        }
        times.into_iter().min()
    }

    /// Whether workers have left something to do.
    pub(crate) fn is_rung(&self) -> bool {
        if !self.connected || self.ended_ns.is_some() || self.pubsub.is_dead() {
            return false;
        }
        let inner = self.pubsub.shard(self.at);
        let publishes = inner.is_up && self.in_flight.is_none() && !inner.queue.is_empty();
        let subscribes = self.asked.is_none() && self.confirm.tells.is_empty();
        publishes || subscribes && inner.interest.has_wanted()
    }

    /// When nothing happens any more nothing is left, and the server has what is wanted.
    pub(crate) fn check(&self, server: &Server) {
        let inner = self.pubsub.shard(self.at);
        let mut has = server.channels_of(self.node);
        let interest = &inner.interest;
        let known = has.iter().filter(|channel| interest.get(channel).is_some()).count();
        has.sort();
        let mut book = self.ledger.book();
        let node = self.node;
        book.require(self.connected && inner.is_up, || {
            let (connected, asked) = (self.connected, self.asked.is_some());
            let (left, tells) = (self.left, self.confirm.tells.len());
            format!(
                "node {node} is not up: connected {connected}, asked {asked}, {left} channels left, {tells} \
                 tells wait"
            )
        });
        book.require(interest.open() == 0, || {
            format!("{} channels of {node} are open", interest.open())
        });
        book.require(known == has.len() && has.len() == interest.len(), || {
            format!("node {node} has {} channels, its server has {has:?}", interest.len())
        });
        let waiting = inner.queue.len() + self.resend.len() + self.inbox.len();
        book.require(waiting == 0 && inner.queue_bytes == 0, || {
            format!("{waiting} wait at {node}")
        });
        let (sent, received) = (self.sequences.len(), self.received.len());
        let bounded =
            sent <= self.scenario.sent_max && received <= self.scenario.received_max.max(2);
        book.require(bounded, || format!("node {node} remembers {sent} and {received}"));
    }
}

/// A message that no server keeps.
fn outgoing(channel: Channel, body: Vec<u8>) -> Outgoing {
    Outgoing { channel, body, keep: false, again: false }
}

/// When a node notices that its connection has ended, or is of no use.
fn ends_ns(node: usize, server: &Server) -> Option<u64> {
    let link = server.links.get(&node)?;
    let silent_ns = link.swallows_ns.map(|since_ns| since_ns + SILENT_NS);
    link.ended_ns.into_iter().chain(silent_ns).min()
}

fn publication(topic: u32, data: &[u8]) -> Publication {
    Publication::new(topic.to_string().into(), data.into(), false)
}

/// Posts to every worker.
fn post_confirmed(remote: &Remote<Post>, channels: &[Channel]) -> bool {
    let topics: Arc<[u32]> = channels.iter().filter_map(|channel| topic_of(channel)).collect();
    (0..remote.workers()).all(|worker| {
        let post = Post::Confirmed(Arc::clone(&topics));
        remote.post(worker, post, 8 * topics.len()).is_ok()
    })
}

fn dropped(ledger: &Ledger, node: usize, channel: &Channel, body: &[u8]) {
    if let (Some(topic), Ok(Envelope::Publication(message))) =
        (topic_of(channel), Envelope::decode(body))
    {
        ledger.book().dropped(node, topic, message.data);
    }
}
