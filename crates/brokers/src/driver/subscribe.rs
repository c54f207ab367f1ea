//! The part of a connection that subscribes to what is wanted and unsubscribes from the rest.

use std::time::Duration;

use super::Driver;
use crate::broker::ConfirmedTopic;
use crate::figures::{Counters, GapCause};
use crate::interest::Confirmed;
use crate::transport::{Channel, Fault, Link};

/// Longest sleep without being woken.
const SLEEP_MAX: Duration = Duration::from_secs(5);

impl Driver {
    /// Subscribes and unsubscribes as interest changes. Ends with a fault.
    pub(super) async fn subscribe(&self, link: &impl Link) -> Fault {
        let counters = &self.broker.counters;
        // Those of before the connection; meanwhile there may always be new ones.
        let mut left = self.shard().lock().interest.len();
        loop {
            let now_ns = self.broker.now_ns();
            let (unwanted, gone, wanted, due_ns, topics) = {
                let mut inner = self.shard().lock();
                let interest = &mut inner.interest;
                let unwanted = interest.take_unwanted(now_ns);
                let gone = interest.take_gone();
                (unwanted, gone, interest.take_wanted(), interest.due_ns(), interest.len())
            };
            self.unfollow(&gone);
            self.unfollow(&unwanted);
            self.release_members(&gone);
            self.release_members(&unwanted);
            if !unwanted.is_empty() {
                if let Err(fault) = link.unsubscribe(&unwanted).await {
                    return fault;
                }
                Counters::add(&counters.unsubscribed, unwanted.len());
            }
            if !wanted.is_empty() {
                self.follow(&wanted);
                if let Err(fault) = link.subscribe(&wanted).await {
                    return fault;
                }
                Counters::add(&counters.subscribed, wanted.len());
                if let Err(fault) = self.sync(link, &wanted).await {
                    return fault;
                }
                if let Err(fault) = self.load_members(link, &wanted).await {
                    return fault;
                }
                self.confirm(&wanted).await;
            }
            left = if wanted.is_empty() { 0 } else { left.saturating_sub(wanted.len()) };
            if left == 0 {
                self.connected(topics);
            }
            if wanted.is_empty() && unwanted.is_empty() {
                let sleep = due_ns.map_or(SLEEP_MAX, |due_ns| {
                    Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(SLEEP_MAX)
                });
                let woken = self.shard().wakes.interest.notified();
                let _ = tokio::time::timeout(sleep, woken).await;
            }
        }
    }

    /// The broker has confirmed channels. Tells what was missed before it tells that they are confirmed.
    pub(super) async fn confirm(&self, channels: &[Channel]) {
        let generation = self.received.borrow().generation();
        let confirmed = self.shard().lock().interest.confirm(channels, generation);
        // What is kept was fetched.
        let is_kept = |channel: &Channel| {
            self.broker.settings.history.is_some() && self.broker.topic(channel).is_some()
        };
        let missed = confirmed.iter().filter(|one| one.missed).map(|one| &one.channel);
        let missed: Vec<&Channel> = missed.filter(|channel| !is_kept(channel)).collect();
        if !missed.is_empty() {
            self.gap(&missed, GapCause::Reconnected).await;
        }
        let topic = |one: &Confirmed| {
            let topic = self.broker.topic(&one.channel)?.into();
            Some(ConfirmedTopic { topic, awaited: one.awaited })
        };
        let confirmed: Vec<ConfirmedTopic> = confirmed.iter().filter_map(topic).collect();
        if !confirmed.is_empty() {
            self.tell(|receiver| receiver.confirmed(&confirmed)).await;
        }
        // Not before: if the connection ends while they wait to be told, the next one tells them.
        self.shard().lock().interest.told(channels);
    }
}
