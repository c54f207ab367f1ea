//! [`Inward`]: what arrives from other nodes, to this node's workers.

use std::sync::{Arc, Weak};

use brokers::envelope::{Except, Message, NodeId};
use brokers::members::Members;
use brokers::{ConfirmedTopic, GapCause, Kept, Past, Receiver, Undelivered};
use engine::sys::process::now_ns;
use engine::{ConnId, Remote};
use topics::{Epoch, KeptAt, PastPublication, Position, Publication, Refused};
use tracing::warn;

use crate::broadcast::Disconnect;
use crate::handler::Post;
use crate::presence::Presence;
use crate::shared::Shared;

/// A command that ends sessions: this byte, 1 if their clients may reconnect, plus 2 if Rails names them, and
/// their identifiers.
const DISCONNECT: u8 = 1;

pub(super) struct Inward {
    shared: Weak<Shared>,
    remote: Remote<Post>,
    node: NodeId,
    no_data: Arc<[u8]>,
    presence: Option<Arc<Presence>>,
}

/// The command that ends sessions.
pub(super) fn disconnect_command(request: &Disconnect) -> Box<[u8]> {
    let how = u8::from(request.reconnect) | u8::from(request.rails_name) << 1;
    let mut body = vec![DISCONNECT, how];
    body.extend_from_slice(request.identifiers.as_bytes());
    body.into()
}

fn parse_disconnect(body: &[u8]) -> Option<Disconnect> {
    let [DISCONNECT, how @ 0..=3, identifiers @ ..] = body else { return None };
    let identifiers = str::from_utf8(identifiers).ok()?.to_owned();
    Some(Disconnect { identifiers, rails_name: how & 2 != 0, reconnect: how & 1 != 0 })
}

impl Inward {
    pub(super) fn new(shared: &Arc<Shared>, remote: Remote<Post>, node: NodeId) -> Self {
        let (no_data, presence) = (Arc::default(), shared.presence.clone());
        Inward { shared: Arc::downgrade(shared), remote, node, no_data, presence }
    }

    /// Wakes the control plane where it waits for topics.
    fn wake(&self, shared: &Shared) {
        if let Some(pubsub) = &shared.pubsub {
            pubsub.topics.changed();
        }
    }

    /// A publication as the workers of this node get it.
    fn inward(&self, shared: &Shared, topic: &Arc<str>, message: &Message<'_>) -> Publication {
        let data = Arc::from(message.data);
        let mut publication = Publication::new(Arc::clone(topic), data, message.binary);
        publication.accepted_ns = now_ns();
        publication.kind = message.kind.map(Arc::from);
        publication.transient = message.transient;
        publication.except = match message.except {
            Except::Own(connection) => {
                (message.node == self.node).then(|| ConnId::from_u64(connection))
            }
            Except::Session(sid) => shared.sids.find(sid),
            Except::None => None,
        };
        publication
    }

    /// Posts to every worker that runs. False if one of them has no room.
    fn post_all(&self, shared: &Shared, bytes: usize, post: impl Fn() -> Post) -> bool {
        shared.running().all(|worker| self.remote.post(worker, post(), bytes).is_ok())
    }
}

/// The place of a publication, and its time by this process's clock.
fn kept_at(shared: &Shared, kept: Kept) -> KeptAt {
    let Kept { position, time_ms } = kept;
    let position = Position { epoch: Epoch::new(position.epoch), offset: position.offset };
    KeptAt { position, at_ns: shared.clock.monotonic_ns(time_ms) }
}

impl Receiver for Inward {
    fn publication(
        &self,
        topic: &str,
        message: &Message<'_>,
        kept: Option<Kept>,
    ) -> Result<(), Undelivered> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let publication = Arc::new(self.inward(&shared, &topic.into(), message));
        let published = match kept {
            Some(kept) => {
                let at = kept_at(&shared, kept);
                shared.directory.publish_kept(&self.remote, &publication, at)
            }
            None => shared.directory.publish(&self.remote, &publication),
        };
        match published {
            Ok(_) => Ok(()),
            Err(Refused::MailboxFull) => Err(Undelivered::Busy),
            Err(Refused::TopicOverloaded) => Err(Undelivered::Overloaded),
        }
    }

    fn loaded(&self, topic: &str, past: &Past<'_>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let Some(history) = shared.history().filter(|history| history.is_replica()) else { return };
        let name = topic.into();
        let publication = |(kept, message): &(Kept, Message<'_>)| {
            let KeptAt { position, at_ns } = kept_at(&shared, *kept);
            let publication = self.inward(&shared, &name, message);
            PastPublication { offset: position.offset, at_ns, publication }
        };
        let publications = past.messages.iter().map(publication).collect();
        let past = topics::Past {
            epoch: Epoch::new(past.epoch),
            floor: past.floor,
            floor_ns: shared.clock.monotonic_ns(past.floor_ms),
            last: past.last,
            publications,
        };
        history.load(topic, past, now_ns());
        self.wake(&shared);
    }

    fn kept_again(&self, topic: &str, message: &Message<'_>, kept: Kept) {
        let Some(shared) = self.shared.upgrade() else { return };
        if let Some(history) = shared.history().filter(|history| history.is_replica()) {
            let publication = self.inward(&shared, &topic.into(), message);
            history.record(&publication, kept_at(&shared, kept));
        }
    }

    fn released(&self, topics: &[Box<str>]) {
        let Some(shared) = self.shared.upgrade() else { return };
        if let Some(history) = shared.history() {
            history.forget(topics.iter().map(|topic| &**topic));
        }
    }

    fn confirmed(&self, topics: &[ConfirmedTopic]) -> bool {
        let Some(shared) = self.shared.upgrade() else { return true };
        if let Some(history) = shared.history().filter(|history| !history.is_replica()) {
            // What was published before is not in it.
            let now_ns = now_ns();
            topics.iter().for_each(|one| history.begin(&one.topic, now_ns));
        }
        self.wake(&shared);
        let awaited = topics.iter().filter(|one| one.awaited).map(|one| one.topic.clone());
        let awaited: Arc<[Box<str>]> = awaited.collect();
        let bytes = awaited.iter().map(|topic| topic.len() + size_of::<Box<str>>()).sum();
        awaited.is_empty()
            || self.post_all(&shared, bytes, || Post::Confirmed(Arc::clone(&awaited)))
    }

    fn gap(&self, topics: &[Box<str>], _: GapCause) -> usize {
        let Some(shared) = self.shared.upgrade() else { return topics.len() };
        for (told, topic) in topics.iter().enumerate() {
            // What a broker keeps and has lost is loaded already.
            if let Some(history) = shared.history().filter(|history| !history.is_replica()) {
                history.interrupt(topic, now_ns());
            }
            let data = Arc::clone(&self.no_data);
            let mut notice = Publication::new((&**topic).into(), data, false);
            (notice.gap, notice.transient) = (true, true);
            if shared.directory.publish(&self.remote, &Arc::new(notice)).is_err() {
                return told;
            }
        }
        topics.len()
    }

    fn command(&self, body: &[u8]) -> bool {
        let Some(shared) = self.shared.upgrade() else { return true };
        let Some(request) = parse_disconnect(body) else {
            warn!("pubsub command ignored: it is of another version");
            return true;
        };
        let bytes = size_of::<Disconnect>() + request.identifiers.len();
        shared.end_named(&request);
        let request = Arc::new(request);
        self.post_all(&shared, bytes, || Post::Disconnect(Arc::clone(&request)))
    }

    fn members(&self) -> Option<&dyn Members> {
        self.presence.as_deref().map(|presence| presence as &dyn Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_the_way_and_others_are_ignored() {
        for (reconnect, rails_name) in [(true, false), (false, true)] {
            let identifiers = r#"{"user":"é"}"#.to_owned();
            let request = Disconnect { identifiers, rails_name, reconnect };
            assert_eq!(parse_disconnect(&disconnect_command(&request)), Some(request));
        }
        for other in [&b""[..], b"\x01", b"\x02\x01x", b"\x01\x04x", b"\x01\x01\xff"] {
            assert_eq!(parse_disconnect(other), None, "{other:?}");
        }
    }
}
