//! The part of a connection that delivers what arrives.

use std::sync::PoisonError;

use super::Driver;
use crate::broker::Undelivered;
use crate::envelope::{Envelope, Message, NodeId, Sequence};
use crate::figures::{Counters, GapCause};
use crate::gaps::Observed;
use crate::interest::Subscribed;
use crate::limits::{DELIVERY_NS, DELIVERY_PAUSE};
use crate::transport::{Fault, FaultKind, InboxReceiver, Incoming};

impl Driver {
    /// Delivers until the connection ends.
    pub(super) async fn deliver(&self, mut inbox: InboxReceiver) -> Fault {
        while let Some(message) = inbox.next().await {
            self.arrived(&message).await;
        }
        Fault::new(FaultKind::Closed, "the connection was closed")
    }

    async fn arrived(&self, message: &Incoming) {
        let channel = &*message.channel;
        let counters = &self.broker.counters;
        let Ok(envelope) = Envelope::decode(&message.body) else {
            return Counters::add(&counters.malformed, 1);
        };
        let found = self.shard().lock().interest.get(channel);
        // It may have been unsubscribed a moment ago.
        let Some(subscribed) = found else { return };
        match envelope {
            Envelope::Publication(publication) => {
                self.publication(channel, subscribed, &publication).await;
            }
            Envelope::Beacon { node, newest } => {
                let seen = self.received.borrow_mut().beacon(
                    subscribed.id,
                    subscribed.generation,
                    node,
                    newest,
                );
                self.tell_missing(channel, seen).await;
            }
            Envelope::Command { node, at, body } => {
                if self.is_new(channel, subscribed, node, at).await && node != self.broker.node {
                    self.tell(|receiver| receiver.command(body)).await;
                }
            }
            Envelope::Alive { node, name } if node != self.broker.node => {
                let now_ns = self.broker.now_ns();
                let nodes = self.broker.nodes.lock();
                nodes.unwrap_or_else(PoisonError::into_inner).heard(now_ns, node, name);
            }
            Envelope::Alive { .. } => {}
        }
    }

    /// Whether a publication or a command was not received before. Tells what is missing before it.
    async fn is_new(
        &self,
        channel: &str,
        subscribed: Subscribed,
        node: NodeId,
        at: Sequence,
    ) -> bool {
        let seen =
            self.received.borrow_mut().publication(subscribed.id, subscribed.generation, node, at);
        self.tell_missing(channel, seen).await;
        if seen == Observed::Repeated {
            Counters::add(&self.broker.counters.repeated, 1);
        }
        seen != Observed::Repeated
    }

    async fn tell_missing(&self, channel: &str, seen: Observed) {
        if let Observed::Gap(_) = seen {
            self.gap(&[channel], GapCause::Missing).await;
        }
    }

    async fn publication(&self, channel: &str, subscribed: Subscribed, message: &Message<'_>) {
        Counters::add(&self.broker.counters.received, 1);
        if !self.is_new(channel, subscribed, message.node, message.at).await {
            return;
        }
        let Some(topic) = self.broker.topic(channel) else { return };
        let mut until_ns = None;
        loop {
            match self.receiver.publication(topic, message, None) {
                Ok(()) => return,
                Err(Undelivered::Overloaded) => break,
                Err(Undelivered::Busy) => {
                    let now_ns = self.broker.now_ns();
                    let until_ns = *until_ns.get_or_insert(now_ns.saturating_add(DELIVERY_NS));
                    if now_ns >= until_ns {
                        break;
                    }
                    tokio::time::sleep(DELIVERY_PAUSE).await;
                }
            }
        }
        self.gap(&[channel], GapCause::Overloaded).await;
    }
}
