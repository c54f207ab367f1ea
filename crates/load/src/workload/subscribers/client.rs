//! [`Clients`]: the handler of one worker's subscribers. It keeps each subscribed: after a failed or lost
//! connection it waits as [`Retry`](crate::Retry) says and connects to the next endpoint.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use action_cable::{Command, History, Message, Position, V1_EXT, data_prefix};
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sys, Target, invariant};
use wire::websocket::OpCode;

use super::log::{Event, SubscriberLog};
use super::{Speech, SubscriberCounts, Subscribing};
use crate::delivery::publication;

/// Connects begun per turn: the servers and this generator share a machine.
const CONNECTS_PER_TURN: usize = 64;

/// What the main thread orders.
pub(crate) enum Order {
    /// Connect all clients.
    Begin,
    /// Reset the connections of about this share of the clients.
    Drop { percent: u32, seed: u64 },
    /// Return the logs and connect no more.
    Finish,
}

/// One worker's clients.
pub(crate) struct Clients {
    settings: Arc<Subscribing>,
    counts: Arc<SubscriberCounts>,
    finished: Sender<Vec<SubscriberLog>>,
    clients: Vec<Client>,
    /// When each client without a connection is to connect.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// When a subscription has to be confirmed, in the order of time.
    confirmations: BinaryHeap<Reverse<(u64, usize, u32)>>,
}

struct Client {
    log: SubscriberLog,
    /// Endpoint of the current or next connection.
    endpoint: usize,
    /// Failed attempts in a row.
    attempts: u32,
    id: Option<ConnId>,
    /// Counts connections, so that what was planned for an earlier one is recognized.
    connection: u32,
    subscribed: bool,
    /// With Action Cable: the identifier and the beginning of each publication.
    identifier: String,
    prefix: Vec<u8>,
    /// The epoch and the offset of the last publication, where the client recovers by them.
    last: Option<(Box<str>, u64)>,
}

impl Clients {
    pub(crate) fn new(
        settings: Arc<Subscribing>,
        (worker, workers): (usize, usize),
        counts: Arc<SubscriberCounts>,
        finished: Sender<Vec<SubscriberLog>>,
    ) -> Clients {
        let own = (0..settings.clients).skip(worker).step_by(workers.max(1));
        let clients = own.map(|number| Client::new(number, &settings)).collect();
        let (due, confirmations) = (BinaryHeap::new(), BinaryHeap::new());
        Clients { settings, counts, finished, clients, due, confirmations }
    }

    /// One target per endpoint and topic, in this order.
    fn add_targets<S: Sys>(&self, core: &mut Core<S, Self>) {
        for address in &self.settings.endpoints {
            let host = address.to_string();
            for topic in &self.settings.topics {
                let (path, protocols) = match self.settings.speech {
                    Speech::Topics => (format!("/topics/{topic}"), &[][..]),
                    Speech::Cable | Speech::CableHistory => ("/cable".to_owned(), &[V1_EXT][..]),
                };
                let target = Target::websocket(*address, &host, &path, protocols, false, &[]);
                // `Subscribers::start` has checked their number.
                let _ = core.add_target(target);
            }
        }
    }

    fn connect<S: Sys>(&mut self, core: &mut Core<S, Self>, at: usize) {
        let (topics, endpoints) = (self.settings.topics.len(), self.settings.endpoints.len());
        let Some(client) = self.clients.get_mut(at) else { return };
        let target = (client.endpoint % endpoints) * topics + client.log.topic as usize;
        let Ok(target) = u8::try_from(target) else {
            return invariant::broken("targets of subscribers have a number of 8 bits");
        };
        let connected = core.connect(target, None);
        match connected {
            Ok(id) => {
                if let Some(user) = core.user_mut(id) {
                    *user = at as u32 + 1;
                }
                client.id = Some(id);
                client.connection = client.connection.wrapping_add(1);
            }
            Err(_) => self.retry(core, at),
        }
    }

    /// Plans the next connect of a client, to the next endpoint.
    fn retry<S: Sys>(&mut self, core: &mut Core<S, Self>, at: usize) {
        let random = core.random();
        let Some(client) = self.clients.get_mut(at) else { return };
        client.attempts = client.attempts.saturating_add(1);
        client.endpoint = client.endpoint.wrapping_add(1);
        let wait_ns = self.settings.retry.wait_ns(client.attempts, random);
        self.due.push(Reverse((core.now_ns() + wait_ns, at)));
    }

    fn client_of<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) -> Option<&mut Client> {
        let at = (*core.user(id)?).checked_sub(1)?;
        self.clients.get_mut(at as usize).filter(|client| client.id == Some(id))
    }

    fn subscribed<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let (now_ns, most) = (core.clock_ns(), self.settings.events_max);
        let endpoints = self.settings.endpoints.len();
        let Some(client) = self.client_of(core, id) else { return };
        if client.subscribed {
            return;
        }
        (client.subscribed, client.attempts) = (true, 0);
        let endpoint = (client.endpoint % endpoints) as u8;
        client.log.note(now_ns, Event::Subscribed { endpoint }, most);
        self.counts.subscribed.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the end of a connection, once.
    fn ended<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        let (now_ns, most) = (core.clock_ns(), self.settings.events_max);
        let Some(client) = self.client_of(core, id) else { return };
        client.id = None;
        if std::mem::take(&mut client.subscribed) {
            client.log.note(now_ns, Event::Ended { why }, most);
            self.counts.subscribed.fetch_sub(1, Ordering::Relaxed);
            self.counts.ended.fetch_add(1, Ordering::Relaxed);
        }
        let at = core.user(id).and_then(|user| user.checked_sub(1));
        if let Some(at) = at {
            self.retry(core, at as usize);
        }
    }

    fn publication<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId, data: &[u8]) {
        let (now_ns, most) = (core.clock_ns(), self.settings.events_max);
        let parsed = publication::find(data).and_then(publication::parse);
        let event = match parsed {
            Some(publication) => {
                self.counts.received.fetch_add(1, Ordering::Relaxed);
                let (publisher, sequence) = (publication.publisher, publication.sequence);
                Event::Received { publisher, sequence }
            }
            None => Event::Damaged,
        };
        if let Some(client) = self.client_of(core, id) {
            client.log.note(now_ns, event, most);
        }
    }

    fn gap<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let (now_ns, most) = (core.clock_ns(), self.settings.events_max);
        if let Some(client) = self.client_of(core, id) {
            client.log.note(now_ns, Event::Gap, most);
        }
    }

    /// A message of Action Cable, of AnyCable's extended protocol: there gaps are told.
    fn cable<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        let settings = Arc::clone(&self.settings);
        let recovers = settings.speech == Speech::CableHistory;
        let since = self.counts.recover_since.load(Ordering::Relaxed);
        let Some(client) = self.client_of(core, id) else { return };
        if data.starts_with(&client.prefix) && !recovers {
            return self.publication(core, id, data);
        }
        let message = std::str::from_utf8(data).ok().and_then(|text| Message::decode(text).ok());
        match message {
            Some(Message::Welcome { .. }) => {
                let subscribe = client.subscribe(&settings, recovers.then_some(since));
                core.send(id, OpCode::Text, &subscribe);
                let (at, connection) = (core.user(id).copied().unwrap_or(0), client.connection);
                let timeout_ns = self.settings.connect_timeout.as_nanos() as u64;
                let due_ns = core.now_ns() + timeout_ns;
                self.confirmations.push(Reverse((
                    due_ns,
                    at.saturating_sub(1) as usize,
                    connection,
                )));
            }
            Some(Message::Confirm { .. }) => self.subscribed(core, id),
            Some(Message::Data { position, .. }) => {
                if let Some(Position { epoch, offset, .. }) = position.filter(|_| recovers) {
                    client.reached(&epoch, offset);
                }
                self.publication(core, id, data);
            }
            Some(Message::RejectHistory { .. }) => self.gap(core, id),
            Some(Message::Ping { .. } | Message::Pong | Message::ConfirmHistory { .. }) => {}
            // It comes again, as it knows of no other way.
            Some(Message::Reject { .. } | Message::Disconnect { .. }) => {
                self.ended(core, id, Closed::ByPeer);
                core.reset(id);
            }
            _ => self.publication(core, id, data),
        }
    }

    /// Gives up connections whose subscription is not confirmed in time. Returns when to look again.
    fn unconfirmed<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        while let Some(&Reverse((due_ns, at, connection))) = self.confirmations.peek() {
            if due_ns > core.now_ns() {
                return Some(due_ns);
            }
            self.confirmations.pop();
            let client = self.clients.get(at);
            let late = client.filter(|one| one.connection == connection && !one.subscribed);
            if let Some(id) = late.and_then(|client| client.id) {
                core.reset(id);
            }
        }
        None
    }

    fn drop_some<S: Sys>(&mut self, core: &mut Core<S, Self>, percent: u32, seed: u64) {
        for client in &self.clients {
            let drawn = mix(seed ^ u64::from(client.log.client)) % 100;
            if let Some(id) = client.id.filter(|_| drawn < u64::from(percent)) {
                core.reset(id);
            }
        }
    }

    fn finish(&mut self) {
        self.due.clear();
        self.confirmations.clear();
        let logs = self.clients.drain(..).map(|client| client.log).collect();
        // Without a receiver the main thread has given up.
        let _ = self.finished.send(logs);
    }
}

impl Client {
    fn new(number: u32, settings: &Subscribing) -> Client {
        let topics = settings.topics.len().max(1) as u32;
        let (mut identifier, mut prefix) = (String::new(), Vec::new());
        let topic = number % topics;
        if settings.speech != Speech::Topics {
            let name = settings.topics.get(topic as usize).map_or("", String::as_str);
            let channel = serde_json::json!({ "channel": "$pubsub", "stream_name": name });
            identifier = channel.to_string();
            data_prefix(&identifier, &mut prefix);
        }
        Client {
            log: SubscriberLog { client: number, topic, ..SubscriberLog::default() },
            endpoint: (number / topics) as usize,
            attempts: 0,
            id: None,
            connection: 0,
            subscribed: false,
            identifier,
            prefix,
            last: None,
        }
    }

    /// The message that subscribes. With `since` it asks for what it has missed, once that is not 0.
    fn subscribe(&self, settings: &Subscribing, since: Option<u64>) -> Vec<u8> {
        let topic = settings.topics.get(self.log.topic as usize).map_or("", String::as_str);
        let history = since.filter(|since| *since > 0).map(|since| match &self.last {
            Some((epoch, offset)) => {
                let (stream_id, epoch) = (topic.into(), (&**epoch).into());
                let last = Position { stream_id, epoch, offset: *offset };
                History { since: None, streams: vec![last] }
            }
            None => History { since: i64::try_from(since).ok(), streams: Vec::new() },
        });
        let identifier = (&*self.identifier).into();
        let mut message = Vec::new();
        Command::Subscribe { identifier, history, presence: None }.encode(&mut message);
        message
    }

    fn reached(&mut self, epoch: &str, offset: u64) {
        match &mut self.last {
            Some((known, last)) if **known == *epoch => *last = offset,
            last => *last = Some((epoch.into(), offset)),
        }
    }
}

impl Handler for Clients {
    /// The number of the client on this worker, from 1.
    type User = u32;
    type Post = Order;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        self.add_targets(core);
    }

    /// Never called: a client does not listen.
    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, "This is a client.\n"))
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if self.settings.speech == Speech::Topics {
            self.subscribed(core, id);
        }
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        _: OpCode,
        data: &mut [u8],
    ) {
        match self.settings.speech {
            Speech::Topics => self.publication(core, id, data),
            Speech::Cable | Speech::CableHistory => self.cable(core, id, data),
        }
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        self.ended(core, id, why);
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, _: bool) {
        self.ended(core, id, why);
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, order: Order) {
        match order {
            Order::Begin => {
                let now_ns = core.now_ns();
                self.due.extend((0..self.clients.len()).map(|at| Reverse((now_ns, at))));
            }
            Order::Drop { percent, seed } => self.drop_some(core, percent, seed),
            Order::Finish => self.finish(),
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let late_ns = self.unconfirmed(core);
        for _ in 0..CONNECTS_PER_TURN {
            match self.due.peek() {
                Some(&Reverse((due_ns, at))) if due_ns <= core.now_ns() => {
                    self.due.pop();
                    self.connect(core, at);
                }
                _ => break,
            }
        }
        let due_ns = self.due.peek().map(|&Reverse((due_ns, _))| due_ns);
        [late_ns, due_ns].into_iter().flatten().min()
    }
}

/// SplitMix64.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
