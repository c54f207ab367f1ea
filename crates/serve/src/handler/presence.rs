//! Presence of clients: their commands, what applications answer, and the lists of members, sent when
//! few enough are joining and leaving that a list is right for a while. The members themselves are in
//! [`crate::presence`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use action_cable::{Encoding, Message, Presence, PresenceEvent, data_prefix, typed_prefix};
use engine::{ConnId, Core, SharedFrame, Sys};

use super::ServeHandler;
use crate::app::reply::PresenceReply;
use crate::identifiers::Index;
use crate::log_events::Part;
use crate::presence::{Info, Refused};
use crate::session::{Session, SessionProtocol};

/// Memory of a subscription that is present beyond its texts, in bytes: entries in tables, with spare room.
const JOINED_BYTES: usize = 128;
/// Longest wait for a list while very many are joining.
const PATIENCE_NS: u64 = 5_000_000_000;
/// How long a list is kept for others who ask for it, unless it changes.
const LIST_NS: u64 = 1_000_000_000;
/// Lists sent in one turn, and their bytes.
const LISTS_PER_TURN: usize = 64;
const LIST_BYTES_PER_TURN: usize = 1024 * 1024;

/// A subscription that is present.
struct Joined {
    identifier: Index,
    topic: Arc<str>,
    id: Arc<str>,
    /// What counts for it at its connection, in bytes.
    bytes: u32,
}

/// A request for a list that waits.
struct Request {
    id: ConnId,
    identifier: Arc<str>,
    topic: Arc<str>,
    since_ns: u64,
    /// When to look again.
    next_ns: u64,
}

/// The last list that was sent: many ask for the same.
struct LastList {
    topic: Arc<str>,
    identifier: Arc<str>,
    /// Of the connection, and of its messages.
    encoding: (u32, Encoding),
    version: u64,
    frame: SharedFrame,
    /// When it was made.
    made_ns: u64,
}

/// One worker's connections that are present somewhere, and requests for lists.
#[derive(Default)]
pub(super) struct Members {
    by_id: HashMap<ConnId, Vec<Joined>>,
    requests: VecDeque<Request>,
    /// The same, to find those that are repeated.
    requested: HashSet<(ConnId, Arc<str>)>,
    /// Bytes of lists sent in this turn.
    sent_bytes: usize,
    last: Option<LastList>,
}

impl Members {
    fn find(&self, id: ConnId, identifier: Index) -> Option<&Joined> {
        self.by_id.get(&id)?.iter().find(|joined| joined.identifier == identifier)
    }

    fn remove(&mut self, id: ConnId, identifier: Index) -> Option<Joined> {
        let all = self.by_id.get_mut(&id)?;
        let at = all.iter().position(|joined| joined.identifier == identifier)?;
        let joined = all.swap_remove(at);
        if all.is_empty() {
            self.remove_all(id);
        }
        Some(joined)
    }

    fn remove_all(&mut self, id: ConnId) -> Vec<Joined> {
        let all = self.by_id.remove(&id).unwrap_or_default();
        if self.by_id.capacity() > 64 && self.by_id.len() < self.by_id.capacity() / 8 {
            self.by_id.shrink_to(2 * self.by_id.len());
        }
        all
    }

    /// Memory that a connection's presence holds, in bytes.
    pub(super) fn held(&self, id: ConnId) -> usize {
        if self.by_id.is_empty() {
            return 0;
        }
        self.by_id.get(&id).into_iter().flatten().map(|joined| joined.bytes as usize).sum()
    }
}

impl ServeHandler {
    /// Executes the command `join`, or that part of a `subscribe`. Nothing is answered: the event follows.
    pub(super) fn join_presence<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: Cow<'_, str>,
        presence: &Presence<'_>,
    ) {
        let extended = core.user(id).map(Session::protocol) == Some(SessionProtocol::CableExt);
        let joined = match extended {
            true => self.join_member(core, id, &identifier, &presence.id, presence.info),
            false => Err(Refused::Stream),
        };
        if let Err(why) = joined {
            self.refuse_presence(core, id, identifier, why);
        }
    }

    fn join_member<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
        member: &str,
        info: Option<&str>,
    ) -> Result<(), Refused> {
        let presence = self.shared.presence.clone().ok_or(Refused::Stream)?;
        let (index, topic) = self.presence_topic(core, id, identifier).ok_or(Refused::Stream)?;
        let before = self.members.find(id, index);
        if before.is_some_and(|joined| *joined.id != *member || *joined.topic != *topic) {
            return Err(Refused::OtherId);
        }
        let again = before.is_some();
        let before = before.map_or(0, |joined| joined.bytes);
        let length = member.len() + info.map_or(0, str::len);
        let bytes = u32::try_from(JOINED_BYTES.saturating_add(length)).unwrap_or(u32::MAX);
        let more = bytes.saturating_sub(before);
        let held = self.session_bytes(core, id).saturating_add(more as usize);
        if more > 0 && held > self.policy.channels.max_subscription_bytes {
            return Err(Refused::Connection);
        }
        let member = presence.join(&topic, member, info, again, core.now_ns())?;
        let all = self.members.by_id.entry(id).or_default();
        match all.iter_mut().find(|joined| joined.identifier == index) {
            Some(joined) => joined.bytes = bytes,
            None => {
                // Most have one.
                all.reserve_exact(1);
                all.push(Joined { identifier: index, topic, id: member, bytes });
            }
        }
        let counters = self.counters(core.worker());
        counters.subscription_bytes.add(more.into());
        counters.uncount_bytes(before.saturating_sub(bytes));
        Ok(())
    }

    /// Executes the command `leave`.
    pub(super) fn leave_presence<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &str,
    ) {
        if let Some((index, _)) = self.identifiers.find(identifier) {
            self.end_presence(core, id, index);
        }
    }

    /// A subscription that ends or leaves is not present any more.
    pub(super) fn end_presence<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: Index,
    ) {
        if self.members.by_id.is_empty() {
            return;
        }
        let Some(joined) = self.members.remove(id, identifier) else { return };
        self.counters(core.worker()).uncount_bytes(joined.bytes);
        if let Some(presence) = &self.shared.presence {
            presence.leave(&joined.topic, &joined.id, core.now_ns());
        }
    }

    /// A connection has ended: its members stay for a while.
    pub(super) fn lose_presence<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        if self.members.by_id.is_empty() {
            return;
        }
        let lost = self.members.remove_all(id);
        if let Some(presence) = &self.shared.presence {
            for joined in lost {
                self.counters(core.worker()).uncount_bytes(joined.bytes);
                presence.disconnected(&joined.topic, &joined.id, core.now_ns());
            }
        }
    }

    /// Performs what the application has answered.
    pub(super) fn app_presence<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: &Arc<str>,
        reply: &PresenceReply,
    ) {
        let info = (!reply.info.is_empty()).then(|| reply.info_json());
        match &*reply.kind {
            "join" => {
                let joined = self.join_member(core, id, identifier, &reply.id, info.as_deref());
                if let Err(why) = joined {
                    self.refuse_presence(core, id, (&**identifier).into(), why);
                }
            }
            "leave" => self.leave_presence(core, id, identifier),
            _ => self.refuse_presence(core, id, (&**identifier).into(), Refused::Record),
        }
    }

    /// Executes the command `presence`.
    pub(super) fn request_members<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: Cow<'_, str>,
        records: bool,
    ) {
        let stream = self.presence_topic(core, id, &identifier);
        let presence = self.shared.presence.clone();
        let Some((presence, (_, topic))) = presence.zip(stream) else {
            return self.refuse_presence(core, id, identifier, Refused::Stream);
        };
        let now_ns = core.now_ns();
        if !records {
            let info = presence.info(&topic, false, true, None, now_ns);
            if let Info::Ready(json, _) = info {
                let message = presence_message(&identifier, &json);
                self.send_json(core, id, &message);
            }
            return;
        }
        let found = self.identifiers.find(&identifier).map(|(_, found)| Arc::clone(found.text()));
        let identifier = found.unwrap_or_else(|| (&*identifier).into());
        if self.members.requested.contains(&(id, Arc::clone(&identifier))) {
            // Its answer follows.
            return;
        }
        let request = Request { id, identifier, topic, since_ns: now_ns, next_ns: now_ns };
        let waiting = match self.members.sent_bytes < LIST_BYTES_PER_TURN {
            true => self.answer_request(core, request),
            false => Some(request),
        };
        if let Some(request) = waiting {
            self.members.requested.insert((id, Arc::clone(&request.identifier)));
            self.members.requests.push_back(request);
        }
    }

    /// Sends lists that waited, a portion per turn. Returns when to be called again.
    pub(super) fn send_members<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        self.members.sent_bytes = 0;
        if self.members.requests.is_empty() {
            let until_ns = self.members.last.as_ref()?.made_ns.saturating_add(LIST_NS);
            if now_ns < until_ns {
                return Some(until_ns);
            }
            self.members.last = None;
            return None;
        }
        for _ in 0..LISTS_PER_TURN.min(self.members.requests.len()) {
            let due = self.members.requests.front().is_some_and(|first| first.next_ns <= now_ns);
            if !due || self.members.sent_bytes >= LIST_BYTES_PER_TURN {
                break;
            }
            let Some(request) = self.members.requests.pop_front() else { break };
            let key = (request.id, Arc::clone(&request.identifier));
            let open = core.is_open(request.id);
            match open.then(|| self.answer_request(core, request)).flatten() {
                Some(request) => self.members.requests.push_back(request),
                None => drop(self.members.requested.remove(&key)),
            }
        }
        if self.members.requests.is_empty() {
            self.members.requests = VecDeque::new();
            self.members.requested = HashSet::new();
        }
        self.members.requests.front().map(|first| first.next_ns)
    }

    /// Answers a request for a list, or returns it to be answered later.
    fn answer_request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        mut request: Request,
    ) -> Option<Request> {
        let presence = self.shared.presence.clone()?;
        let (id, now_ns) = (request.id, core.now_ns());
        let messages = core.user(id).map_or(Encoding::Json, Session::encoding);
        let encoding = (core.encoding(id), messages);
        let last = self.members.last.as_ref().filter(|last| {
            *last.topic == *request.topic
                && *last.identifier == *request.identifier
                && last.encoding == encoding
        });
        let at_once = now_ns >= request.since_ns.saturating_add(PATIENCE_NS);
        let known = last.map(|last| last.version);
        match presence.info(&request.topic, true, at_once, known, now_ns) {
            Info::Same => {
                let frame = last.map(|last| last.frame.clone())?;
                self.members.sent_bytes += frame.bytes().len();
                core.send_shared(id, &frame);
            }
            Info::Ready(json, version) => {
                let message = presence_message(&request.identifier, &json);
                let mut out = Vec::new();
                self.frame_json(core, id, &message, &mut out);
                if out.is_empty() {
                    return None;
                }
                let frame = SharedFrame::new(&out, 1);
                self.members.sent_bytes += out.len();
                core.send_shared(id, &frame);
                let Request { topic, identifier, .. } = request;
                let made_ns = now_ns;
                let last = LastList { topic, identifier, encoding, version, frame, made_ns };
                self.members.last = Some(last);
            }
            Info::Later => {
                request.next_ns = now_ns.saturating_add(presence.window_ns());
                return Some(request);
            }
            Info::TooLong => {
                let identifier = (&*request.identifier).into();
                self.refuse_presence(core, id, identifier, Refused::List);
            }
        }
        None
    }

    /// The stream in which the clients of a subscription are present, if the connection has it.
    fn presence_topic<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        identifier: &str,
    ) -> Option<(Index, Arc<str>)> {
        let (index, found) = self.identifiers.find(identifier)?;
        if !found.topic.is_empty() {
            let topic = Arc::clone(&found.topic);
            return self.is_subscribed(core, id, identifier).then_some((index, topic));
        }
        let stream = self.app_presence_stream(id, index)?;
        Some((index, stream.into()))
    }

    /// Refuses a command, and counts why.
    fn refuse_presence<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        identifier: Cow<'_, str>,
        why: Refused,
    ) {
        match &self.shared.presence {
            Some(presence) => presence.refused(why),
            None => self.shared.log_off(Part::Presence),
        }
        self.send_message(core, id, &Message::Presence { identifier, event: PresenceEvent::Error });
    }
}

/// The message with an event.
fn presence_message(identifier: &str, event: &[u8]) -> Vec<u8> {
    let (mut prefix, mut message) = (Vec::new(), Vec::new());
    data_prefix(identifier, &mut prefix);
    typed_prefix("presence", &prefix, &mut message);
    message.extend_from_slice(event);
    message.push(b'}');
    message
}
