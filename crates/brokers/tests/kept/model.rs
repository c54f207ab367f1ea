//! A broker in memory that keeps publications: what the contract promises, and nothing more. It can lose what it
//! should pass on, and connections.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use brokers::envelope::{Envelope, NodeId, Sequence};
use brokers::{
    Channel, Fault, FaultKind, Fetched, HistorySettings, Inbox, Incoming, Kept, Link, Outgoing,
    Position, Rejected, Settings, Taken, Transport,
};
use tokio::sync::Notify;

use crate::support::{clock, random};

#[derive(Clone, Default)]
pub(crate) struct Model(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    topics: HashMap<Channel, Topic>,
    links: HashMap<u64, Subscriber>,
    next_link: u64,
    lose_next: usize,
    is_away: bool,
}

struct Subscriber {
    inbox: Inbox,
    channels: HashSet<Channel>,
    ended: Arc<Notify>,
}

#[derive(Default)]
struct Topic {
    epoch: u32,
    offset: u64,
    began_ms: u64,
    evicted_ms: Option<u64>,
    entries: VecDeque<(Kept, Vec<u8>)>,
    senders: HashMap<NodeId, Sequence>,
}

pub(crate) struct ModelLink {
    model: Model,
    number: u64,
    history: HistorySettings,
    ended: Arc<Notify>,
}

fn now_ms() -> u64 {
    clock() / 1_000_000 + 1_000_000
}

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Ends all connections, and takes none while it is away.
    pub(crate) fn away(&self, is_away: bool) {
        let mut state = self.lock();
        state.is_away = is_away;
        state.links.drain().for_each(|(_, one)| one.ended.notify_one());
    }

    /// Forgets all topics.
    pub(crate) fn empty(&self) {
        self.lock().topics.clear();
    }

    /// The next messages reach nobody.
    pub(crate) fn lose_next(&self, many: usize) {
        self.lock().lose_next = many;
    }
}

impl Transport for Model {
    type Link = ModelLink;

    fn server(&self) -> String {
        "model".to_owned()
    }

    async fn connect(&self, inbox: Inbox, settings: &Settings) -> Result<ModelLink, Fault> {
        let mut state = self.lock();
        if state.is_away {
            return Err(Fault::new(FaultKind::Unreachable, "it is away"));
        }
        state.next_link += 1;
        let (number, ended) = (state.next_link, Arc::new(Notify::new()));
        let channels = HashSet::new();
        state.links.insert(number, Subscriber { inbox, channels, ended: Arc::clone(&ended) });
        drop(state);
        let history = settings.history.unwrap();
        Ok(ModelLink { model: self.clone(), number, history, ended })
    }
}

impl Topic {
    fn begin(&mut self) {
        if self.epoch == 0 {
            (self.epoch, self.began_ms) = ((random() as u32).max(1), now_ms());
        }
    }

    fn evict(&mut self, history: HistorySettings) {
        let oldest_ms = now_ms().saturating_sub(history.age.as_millis() as u64);
        while let Some((kept, _)) = self.entries.front()
            && (self.entries.len() > history.messages || kept.time_ms < oldest_ms)
        {
            self.evicted_ms = Some(kept.time_ms);
            self.entries.pop_front();
        }
    }

    fn find(&self, node: NodeId, at: Sequence) -> Option<Position> {
        let is_it = |body: &Vec<u8>| match Envelope::decode(body) {
            Ok(Envelope::Publication(message)) => (message.node, message.at) == (node, at),
            _ => false,
        };
        let found = self.entries.iter().find(|(_, body)| is_it(body));
        found.map(|(kept, _)| kept.position)
    }
}

impl State {
    fn pass(&mut self, channel: &Channel, body: &[u8], kept: Option<(Kept, u64)>) -> u64 {
        if self.lose_next > 0 {
            self.lose_next -= 1;
            return self.links.len() as u64;
        }
        let reached = self.links.values().filter(|one| one.channels.contains(channel));
        let pass = |one: &Subscriber| {
            one.inbox.push(Incoming { channel: (**channel).into(), body: body.to_vec(), kept });
        };
        reached.map(pass).count() as u64
    }
}

impl brokers::members::MemberStore for ModelLink {}

impl Link for ModelLink {
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Taken>, Fault> {
        // Others may be served in between.
        let mut taken = Vec::new();
        for one in batch {
            tokio::task::yield_now().await;
            let mut state = self.state()?;
            if !one.keep {
                taken.push(Taken::To(Some(state.pass(&one.channel, &one.body, None))));
                continue;
            }
            let topic = state.topics.entry(Channel::clone(&one.channel)).or_default();
            topic.begin();
            let Ok(Envelope::Publication(message)) = Envelope::decode(&one.body) else {
                return Err(Fault::new(FaultKind::Protocol, "only publications are kept"));
            };
            let (node, at) = (message.node, message.at);
            let last = topic.senders.get(&node);
            if last.is_some_and(|last| last.epoch == at.epoch && last.number >= at.number) {
                let position = topic.find(node, at);
                taken.push(Taken::Kept { reached: None, position });
                continue;
            }
            topic.senders.insert(node, at);
            topic.offset += 1;
            let position = Position { epoch: topic.epoch, offset: topic.offset };
            let kept = Kept { position, time_ms: now_ms() };
            topic.entries.push_back((kept, one.body.clone()));
            topic.evict(self.history);
            let reached = state.pass(&one.channel, &one.body, Some((kept, position.offset - 1)));
            taken.push(Taken::Kept { reached: Some(reached), position: Some(position) });
        }
        Ok(taken)
    }

    async fn subscribe(&self, channels: &[Channel]) -> Result<Vec<(Channel, Rejected)>, Fault> {
        tokio::task::yield_now().await;
        let mut state = self.state()?;
        let own = state.links.get_mut(&self.number).map(|own| &mut own.channels);
        own.into_iter().for_each(|own| own.extend(channels.iter().cloned()));
        Ok(Vec::new())
    }

    async fn unsubscribe(&self, channels: &[Channel]) -> Result<(), Fault> {
        let mut state = self.state()?;
        if let Some(own) = state.links.get_mut(&self.number) {
            own.channels.retain(|channel| !channels.contains(channel));
        }
        Ok(())
    }

    async fn fetch(
        &self,
        channels: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
        tokio::task::yield_now().await;
        let all = self.fetch_now(channels);
        tokio::task::yield_now().await;
        Ok(all?.into_iter().map(Ok).collect())
    }

    async fn check(&self) -> Result<(), Fault> {
        self.state().map(drop)
    }

    async fn ended(&self) -> Fault {
        self.ended.notified().await;
        closed()
    }
}

fn closed() -> Fault {
    Fault::new(FaultKind::Closed, "the connection was closed")
}

impl ModelLink {
    fn state(&self) -> Result<MutexGuard<'_, State>, Fault> {
        let state = self.model.lock();
        if state.links.contains_key(&self.number) { Ok(state) } else { Err(closed()) }
    }

    fn fetch_now(&self, channels: &[(Channel, Option<Position>)]) -> Result<Vec<Fetched>, Fault> {
        let mut state = self.state()?;
        let mut all = Vec::new();
        for (channel, after) in channels {
            let topic = state.topics.entry(Channel::clone(channel)).or_default();
            topic.begin();
            topic.evict(self.history);
            let after = after
                .filter(|after| after.epoch == topic.epoch && after.offset <= topic.offset)
                .map_or(0, |after| after.offset);
            let wanted = topic.entries.iter().filter(|(kept, _)| kept.position.offset > after);
            let messages: Vec<(Kept, Vec<u8>)> = wanted.cloned().collect();
            let first = messages.first().map(|(kept, _)| kept.position.offset - 1);
            all.push(Fetched {
                epoch: topic.epoch,
                floor: first.unwrap_or(topic.offset),
                floor_ms: topic.evicted_ms.unwrap_or(topic.began_ms),
                last: topic.offset,
                messages,
            });
        }
        Ok(all)
    }
}

impl Drop for ModelLink {
    fn drop(&mut self) {
        self.model.lock().links.remove(&self.number);
    }
}
