//! What operators see of a worker: its connections and topics, a portion per request, so that no
//! request delays a turn. Nothing is kept for it.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use engine::{ConnId, ConnInfo, Core, Mode, Network, Sys};
use topics::{TopTopics, Traffic};

use super::ServeHandler;
use crate::protocols::Disconnect;
use crate::session::{Session, SessionProtocol};

/// Work for one list request: a slot or a compared subscription counts 1, a connection whose address
/// is read (a system call) [`INFO_COST`].
const LIST_COST_MAX: u32 = 16 * 1024;
const INFO_COST: u32 = 16;
/// Topics of a connection that are listed.
const LISTED_TOPICS_MAX: usize = 20;
/// Groups of topics that are visited for one request.
const GROUPS_MAX: u32 = 8 * 1024;

/// Which connections are listed: those that match all that is set.
#[derive(Debug, Default)]
pub(crate) struct ConnectionFilter {
    /// Subscribed to this topic.
    pub(crate) topic: Option<Box<str>>,
    /// With a token that has these identifiers, byte for byte.
    pub(crate) identity: Option<Box<str>>,
    pub(crate) protocol: Option<SessionProtocol>,
    /// With an address in this network: the client's if a trusted proxy reported it, else the peer's.
    pub(crate) address: Option<Network>,
}

/// A request for up to `limit` connections in slots from `slot` on.
pub(crate) struct ListRequest {
    pub(crate) slot: u32,
    pub(crate) limit: usize,
    pub(crate) filter: Arc<ConnectionFilter>,
    /// Where the reply goes. The channel needs room for it: a worker never waits.
    pub(crate) reply: SyncSender<ListReply>,
}

/// The reply: connections in the order of their slots, and the next slot unless these were the last.
pub(crate) struct ListReply {
    pub(crate) connections: Vec<ConnectionEntry>,
    pub(crate) next_slot: Option<u32>,
}

/// A connection in the list.
pub(crate) struct ConnectionEntry {
    pub(crate) info: ConnInfo,
    pub(crate) protocol: SessionProtocol,
    /// The identifiers of its token.
    pub(crate) identity: Option<Arc<str>>,
    /// Its first topics, each once.
    pub(crate) topics: Vec<Arc<str>>,
    pub(crate) subscriptions: usize,
}

/// A request to close one connection.
pub(crate) struct CloseRequest {
    pub(crate) id: ConnId,
    /// Whether its client may reconnect, where the protocol has a message for that.
    pub(crate) reconnect: bool,
    /// Where to report whether there was such a connection that was not closing yet. The channel needs
    /// room.
    pub(crate) reply: SyncSender<bool>,
}

/// A request for figures of topics.
pub(crate) struct TopicsRequest {
    pub(crate) query: TopicsQuery,
    /// Where the worker's number and the reply go. The channel needs room.
    pub(crate) reply: SyncSender<(usize, TopicsReply)>,
}

/// What is requested of topics.
#[derive(Clone)]
pub(crate) enum TopicsQuery {
    /// Those with this prefix that have most subscribers, from this position on; and with position 0 the
    /// traffic.
    Largest { prefix: Arc<str>, position: u32 },
    /// The subscribers of each of these topics, from this position on.
    Count { topics: Arc<[Arc<str>]>, position: usize },
}

/// The reply to a [`TopicsQuery`].
pub(crate) enum TopicsReply {
    Largest { top: TopTopics, traffic: Option<Traffic> },
    Count { position: usize, subscribers: Vec<u64> },
}

impl ServeHandler {
    pub(super) fn list<S: Sys>(&self, core: &Core<S, Self>, list: &ListRequest) {
        let (mut slot, mut cost) = (list.slot, 0);
        let mut connections = Vec::new();
        while slot < core.slots() && connections.len() < list.limit && cost < LIST_COST_MAX {
            cost += 1;
            let id = core.id_at(slot);
            connections.extend(id.and_then(|id| self.entry(core, id, &list.filter, &mut cost)));
            slot += 1;
        }
        let next_slot = (slot < core.slots()).then_some(slot);
        // The requester may have given up.
        let _ = list.reply.try_send(ListReply { connections, next_slot });
    }

    /// The entry of a connection, if the filter admits it.
    fn entry<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        filter: &ConnectionFilter,
        cost: &mut u32,
    ) -> Option<ConnectionEntry> {
        let session = core.user(id)?;
        let (protocol, subscriptions) = (session.protocol(), session.subscriptions());
        let identity = self.sessions.identifiers(id);
        let same = |text: &str| identity.is_some_and(|identity| **identity == *text);
        if filter.protocol.is_some_and(|wanted| wanted.name() != protocol.name())
            || filter.identity.as_deref().is_some_and(|wanted| !same(wanted))
        {
            return None;
        }
        if let Some(topic) = filter.topic.as_deref() {
            *cost += subscriptions.len() as u32;
            if !self.topics.topics_of(subscriptions).any(|other| **other == *topic) {
                return None;
            }
        }
        *cost += INFO_COST;
        let info = core.info(id)?;
        let address = info.client.or(info.peer.map(|peer| peer.ip()));
        if let Some(network) = filter.address
            && !address.is_some_and(|address| network.contains(address))
        {
            return None;
        }
        Some(ConnectionEntry {
            info,
            protocol,
            identity: identity.cloned(),
            topics: self.first_topics(session),
            subscriptions: subscriptions.len(),
        })
    }

    fn first_topics(&self, session: &Session) -> Vec<Arc<str>> {
        let mut first: Vec<Arc<str>> = Vec::new();
        // A topic may be named by several identifiers.
        for topic in self.topics.topics_of(session.subscriptions()).take(2 * LISTED_TOPICS_MAX) {
            if first.len() < LISTED_TOPICS_MAX && !first.contains(topic) {
                first.push(Arc::clone(topic));
            }
        }
        first
    }

    /// Closes a connection as its protocol does.
    pub(super) fn close_one<S: Sys>(&mut self, core: &mut Core<S, Self>, request: &CloseRequest) {
        let mode = core.mode(request.id);
        let open = !matches!(mode, None | Some(Mode::Closing | Mode::Lingering | Mode::Dead));
        if open {
            self.counters(core.worker()).disconnected.add(1);
            let reconnect = request.reconnect;
            self.disconnect(core, request.id, Disconnect::Remote { reconnect });
        }
        let _ = request.reply.try_send(open);
    }

    pub(super) fn report_topics<S: Sys>(&self, core: &Core<S, Self>, request: &TopicsRequest) {
        let reply = match &request.query {
            TopicsQuery::Largest { prefix, position } => TopicsReply::Largest {
                top: self.topics.largest(prefix, *position, GROUPS_MAX),
                traffic: (*position == 0).then(|| self.topics.traffic(core.now_ns())),
            },
            TopicsQuery::Count { topics, position } => {
                let mut budget = GROUPS_MAX;
                let mut subscribers = Vec::new();
                for topic in topics.get(*position..).unwrap_or_default() {
                    subscribers.push(self.topics.subscribers(topic, &mut budget));
                    if budget == 0 {
                        break;
                    }
                }
                TopicsReply::Count { position: *position, subscribers }
            }
        };
        let _ = request.reply.try_send((usize::from(core.worker()), reply));
    }
}
